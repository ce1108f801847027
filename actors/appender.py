"""The appender of one task: the only way in which events come into a log, and the one place where they are folded.

Commit, then fold: a decision is made on the state that is in the log, its events are committed with the task's index
row by compare-and-swap, and only then folded. On a conflict the appender reads on and decides again. When the fate of
a commit is unknown it looks for its own token, and sends the same rows again only where nothing is there.

One append is in flight. What other threads bring meanwhile goes together in the next one: the first of them leads,
which is to decide for all, commit once and answer each; the others follow, which is to wait. A batch is decided in
order on a copy that is folded tentatively, and what a decision came to, its refusal too, counts only once the
transaction is in the log: where that is undone or meets a conflict, all is decided again. A decision that comes alone
needs none of this. A leader that is torn away leaves its followers to the next one, which first finds out what is in
the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty

from eventsourcing.persistence import StoredEvent

from actors.commit import commit
from actors.mapper import token_of
from actors.parts import INTERRUPTS, Births, Decide, Flight, Inside, Part, Undone, nothing, speak_of, unanswered
from actors.patience import Patience
from actors.submission import Submission
from actors.task_log import TaskLog, index_row
from actors.threads import Threads
from domain.events import TaskEvent
from domain.fold import fold, preview
from domain.task import AgentTask
from stores import AppendConflictError, StoreError, StoreUnavailableError


class Appender:
    """Appends to one task's log, one append in flight, and holds the task's state: the fold of its log at every moment.

    Any thread may call. A decision, and an `inside`, may be called on the thread of any caller and several times, and
    must not call the appender, but for `ride`.
    """

    def __init__(self, log: TaskLog, task: AgentTask, patience: Patience | None = None) -> None:
        self.log = log
        self.task = task
        self.patience = patience or log.patience
        # No loop stands in a `with` of it: from Python 3.12 on, an interrupt at the jump back may not leave the block.
        self._mutex = threading.Lock()
        self._leader: object = None
        self._queue: list[Part] = []
        self._batch: list[Part] = []
        self._riders: list[Part] = []
        self._flight: Flight | None = None
        self._begun: Submission | None = None
        self._torn = False

    def append(
        self, decide: Decide, *, turn: float = -1, inside: Inside = None, births: Births = ()
    ) -> list[TaskEvent]:
        """Decide, commit, fold; after a conflict read on and decide again. Returns this decision's events, or none.

        When it returns, the events are durably in the log and folded, together with what others brought. `turn`:
        seconds to wait while another append is in flight; StoreUnavailableError then, and nothing is decided later.
        `inside` is called once in each transaction that carries the events, and undoes it by raising, whatever it is.
        `births` are the children that a `ChildSpawned` among the events speaks of: made with it, or not at all.

        Raises what the decision or `inside` raises, and then the others go on without it; UnknownTaskError when the
        task was deleted meanwhile; UnreadableTaskError; the store's errors when patience is out.
        """
        me = object()
        try:
            with self._mutex:
                if self._may_go_alone():
                    self._leader = me
            if self._leader is me:
                return self._alone(decide, inside, births)
        finally:
            try:
                self._leave(me)
            except BaseException:  # interrupted on the way out: those behind must not wait for ever
                self._leave(me)
                raise
        return self._together(Part(decide, inside, births), turn)

    def submit(
        self,
        decide: Decide,
        told: Callable[[], object],
        threads: Threads,
        *,
        inside: Inside = None,
        births: Births = (),
    ) -> Submission | None:
        """Begin the same without waiting for it, where nothing else is in flight; None where something is.

        `told` is called on any thread when it is over: then `answer()` of what is given here says how. What does not go
        through at the first try is gone on with as `append` does it: by who stands in line meanwhile, or else on one of
        these threads. Raises what the decision raises.
        """
        me = Submission(told, threads)
        with self._mutex:
            if not self._may_go_alone():
                return None
            self._leader = me
        try:
            events = decide(self.task, self.log.now())
            if not events:
                self._leave(me)
                me.end(None)
                return me
            token = self.log.token()
            rows, entry = self._mapped(events, token), index_row(preview(self.task, events))
            me.fold = lambda: self._landed(events)
            me.leave = lambda: self._leave(me)
            me.send_again = lambda: self._alone(decide, inside, births, (events, rows, token))
            me.hand_on = lambda: self._hand_on(me)
            me.lead_again = lambda: self._together(Part(lambda _task, _now: []), -1)
            expected, born = (self.task.birth, self.task.version), _born(events, births)
            try:
                self.log.recorder.submit_events(
                    rows, entry=entry, expected=expected, done=me.hear, inside=inside, births=born
                )
            except StoreError as error:  # it was not taken: to be gone on with, as after any other first try
                me.hear(error)
        except BaseException:
            self._leave(me)
            raise
        return me

    def catch_up(self) -> None:
        """Fold what others have appended since."""
        self._together(Part(nothing), -1)

    def ride(self, decide: Decide) -> None:
        """Let a decision go first in the next append that anybody makes here; in order of riding, exactly once.

        Nothing waits for it, and without a further append it is lost. Where it raises, the append that carries it
        raises the same, for all that are in it, and it rides no more.
        """
        with self._mutex:
            self._riders.append(Part(decide, rides=True))

    # ------------------------------------------------------------------ whose turn it is

    def _may_go_alone(self) -> bool:
        """Tell whether nothing else is in flight or has to go first; the mutex is held."""
        return self._leader is None and self._begun is None and not self._riders and not self._torn

    def _together(self, part: Part, turn: float) -> list[TaskEvent]:
        """Bring a part to its answer: lead, or follow who does."""
        try:
            if self._enter(part) or self._follow(part, turn):
                self._lead()
        finally:
            try:
                part.done = True  # where nobody waits for the answer any more, it is not decided again
                self._leave(part)
            except BaseException:
                self._leave(part)
                raise
        return part.answer()

    def _enter(self, part: Part) -> bool:
        """Stand in line, and tell whether the part leads at once."""
        with self._mutex:
            self._queue.append(part)
            if self._leader is None:
                self._leader = part
            return self._leader is part

    def _follow(self, part: Part, turn: float) -> bool:
        """Wait for the answer, or until the lead falls to this part: then tell so."""
        timeout = None if turn < 0 else turn
        while True:
            with suppress(Empty):
                part.word.get(timeout=timeout)
            with self._mutex:
                if part.done or self._leader is part:
                    return self._leader is part
                if timeout is not None and part in self._queue:
                    part.done = True
                    url = self.log.store.url
                    message = f"{url}: an append to task {self.task.id} is in flight"
                    raise StoreUnavailableError(message, url=url, reason="in flight")
                timeout = None  # it is itself in flight

    def _leave(self, me: object) -> None:
        """Go; a leader hands on the lead. May be called again."""
        with self._mutex:
            if self._begun is me:
                self._begun = None
            if self._leader is me:
                self._leader = self._heir() if self._batch or self._queue else None

    def _hand_on(self, me: Submission) -> bool:
        """Leave what was not committed to who leads next; tells whether somebody stands in line to do so."""
        with self._mutex:
            self._begun, self._leader = me, self._heir()
            return self._leader is not None

    def _heir(self) -> Part | None:
        """Wake whom the leader has answered, put back the rest, and wake the first of them: it leads next."""
        for part in self._batch:
            if part.done:
                part.word.put(None)
        queue = unanswered(self._batch + self._queue)
        self._queue, self._batch = queue, []
        if not queue:
            return None
        queue[0].word.put(None)
        return queue[0]

    def _lead(self) -> None:
        """Take all that stand in line and bring them to their answers; an error that is nobody's own is everybody's."""
        with self._mutex:
            self._batch, self._queue = self._queue, []
            batch = self._batch
        try:
            if self._begun is not None:
                self._begun.go_on()
            if self._torn or self._flight is not None:
                self._settle()
            self._serve(batch)
        except INTERRUPTS:
            raise
        except BaseException as error:
            for part in batch:
                if not part.done:
                    part.error, part.done = error, True

    # ------------------------------------------------------------------ one append

    def _alone(
        self,
        decide: Decide,
        inside: Inside,
        births: Births,
        begun: tuple[list[TaskEvent], list[StoredEvent], bytes] | None = None,
    ) -> list[TaskEvent]:
        """Append one decision that nothing goes with: it needs no copy, and has nobody to answer but its caller.

        `begun` is what was decided and sent already: the same rows are sent again.
        """
        if begun is not None and self._commit(*begun, inside, births):
            self._hint()
            return begun[0]
        while True:
            events = decide(self.task, self.log.now())
            if not events:
                break
            token = self.log.token()
            if self._commit(events, self._mapped(events, token), token, inside, births):
                break
        self._hint()
        return events

    def _serve(self, batch: list[Part]) -> None:
        waiting = [part for part in unanswered(batch) if part.decide is not nothing]
        if len(waiting) < len(batch):
            self._read_on()
            self._answered([part for part in batch if part.decide is nothing])
        while waiting:
            out = None
            try:
                flight = self._decide(self._riding() + waiting)
                if self._land(flight):
                    self._answered(flight.parts)
            except Undone as undone:
                out = undone.part
                out.error, out.done = undone.error, True
            self._flight = None
            if out is not None and out.rides:
                out.answer()  # which raises: nobody else is there to be told
            waiting = unanswered(waiting)

    def _riding(self) -> list[Part]:
        with self._mutex:
            self._riders = unanswered(self._riders)
            return self._riders.copy()

    def _decide(self, parts: list[Part]) -> Flight:
        """Let each decide on what those before it have decided; what one raises is its own, a rider's is everybody's.

        The task itself is not touched: it is copied where events have to be folded for those who come after.
        """
        after = self.task
        flight = Flight(parts, after.version, self.log.token())
        for part in parts:
            part.events, part.error = [], None
            try:
                events = part.decide(after, self.log.now())
                rows = self._mapped(events, flight.token)
            except INTERRUPTS:
                raise
            except BaseException as error:
                if part.rides:
                    raise Undone(part, error) from None
                part.error = error
                continue
            if events and part is not parts[-1]:
                after = self.task.copy() if after is self.task else after
                try:
                    fold(after, events)
                except Exception as error:  # a bug in the decision, and no reason to fail the others
                    raise Undone(part, error) from None
            part.events = events
            flight.events += events
            flight.rows += rows
        return flight

    def _mapped(self, events: list[TaskEvent], token: bytes) -> list[StoredEvent]:
        to_row, birth = self.log.mapper.to_stored_event, self.task.birth
        return [to_row(event, birth=birth, token=token) for event in events]

    def _land(self, flight: Flight) -> bool:
        """Commit what a batch has decided, if anything; it is remembered while its fate is unknown."""
        if not flight.rows:
            return True
        self._flight = flight
        return self._commit(flight.events, flight.rows, flight.token, flight.inside, flight.births)

    def _commit(
        self, events: list[TaskEvent], rows: list[StoredEvent], token: bytes, inside: Inside, births: Births
    ) -> bool:
        """Append and fold; False where others were first: their events are folded instead."""
        task, log = self.task, self.log
        try:
            found = commit(
                log.recorder,
                rows,
                index_row(preview(task, events)),
                (task.birth, task.version),
                read_on=self._read_on,
                away=self.patience.waiter(),
                inside=inside,
                births=_born(events, births),
            )
        except AppendConflictError as conflict:
            if conflict.task_id != task.id:
                raise log.taken(conflict.task_id) from None
            raise log.astray(task, conflict.found) from None
        if found:
            return token_of(found[0]) == token
        self._fold(events)
        return True

    def _answered(self, parts: list[Part]) -> None:
        """Count what these have come to as their answers."""
        for part in parts:
            part.done = True
        self._hint()

    def _landed(self, events: list[TaskEvent]) -> None:
        self._fold(events)
        self._hint()

    def _hint(self) -> None:
        if self.task.held is not None or self.task.ending is not None:
            self.log.hint(self.task.id, self.task)

    # ------------------------------------------------------------------ what the log has

    def _settle(self) -> None:
        """Find out what became of a batch that was given up in flight, and replay: the fold may be torn too."""
        task, log, flight = self.task, self.log, self._flight
        rows = [] if flight is None else self._rows(flight.base)
        fresh = log.load(task.id, self.patience)
        if fresh.birth != task.birth:
            raise log.astray(task, None)
        vars(task).update(vars(fresh))
        self._torn = False
        if flight is not None and rows and token_of(rows[0]) == flight.token:
            self._answered(flight.parts)
        self._flight = None

    def _read_on(self) -> list[StoredEvent]:
        """Fold what the log has beyond our state, and give its rows."""
        rows = self._rows(self.task.version)
        self._fold(self.log.events.read(rows, self.task.birth))
        return rows

    def _rows(self, beyond: int) -> list[StoredEvent]:
        away = self.patience.waiter()
        while True:
            try:
                return list(self.log.recorder.select_events(self.task.id, gt=beyond))
            except StoreUnavailableError as error:
                away(error)

    def _fold(self, events: Iterable[TaskEvent]) -> None:
        self._torn = True
        fold(self.task, events)
        self._torn = False


def _born(events: list[TaskEvent], births: Births) -> Births:
    return [birth for birth in births if speak_of(events, birth)] if births else ()
