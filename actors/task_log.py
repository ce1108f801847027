"""The log of every task: an eventsourcing Application that loads, appends and catches up. The one place that appends.

Commit, then fold: a decision is made on the state that is in the log, its events are committed with the task's index
row by compare-and-swap, and only then folded. On a conflict the appender reads on and decides again. When the fate of
a commit is unknown it looks for its own token, and sends the same rows again only where nothing is there.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from shlex import quote
from typing import Any

from eventsourcing.application import AggregateNotFoundError, Application
from eventsourcing.persistence import IntegrityError, StoredEvent
from eventsourcing.utils import Environment, EnvType

from actors.mapper import TOKEN_SIZE, TaskEvents, TaskMapper, token_of
from actors.view import call_text, headline
from domain.errors import PerdureError, TaskConflictError, UnknownTaskError, UnreadableTaskError
from domain.events import Created, TaskEvent
from domain.task import UNREADABLE, AgentTask, fold, preview
from domain.values import dumps
from stores import AppendConflictError, IndexRow, Store, StoreError, StoreUnavailableError, TaskRecorder

logger = logging.getLogger("perdure")

CLIENT_PATIENCE = 30.0
"""Seconds after which a client gives up on a store that is away."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
"""Seconds between tries at a store that is away: doubled from the first up to the longest."""

QUIET = 1.0
"""Seconds that one waits for a store that is away before it is said."""

Decide = Callable[[AgentTask, float], list[TaskEvent]]
"""A decision: the task and the time in seconds of Unix time to events; called again after a conflict."""


class Patience:
    """How long to go on trying a store that is away: `limit` seconds, or with None until `over` is set."""

    def __init__(self, limit: float | None = CLIENT_PATIENCE, over: threading.Event | None = None) -> None:
        self._limit = limit
        self._over = over or threading.Event()

    def waiter(self) -> Callable[[StoreUnavailableError], None]:
        """Give what to call each time the store was away: it waits, longer each time, or raises the error at last."""
        started, pause, told = time.monotonic(), FIRST_PAUSE, False

        def wait(error: StoreUnavailableError) -> None:
            nonlocal pause, told
            waited = time.monotonic() - started
            if (self._limit is not None and waited + pause > self._limit) or self._over.wait(pause):
                raise error
            if not told and waited > QUIET:
                told = True
                logger.warning("waiting for the store, nothing is lost meanwhile: %s", error)
            pause = min(pause * 2, LONGEST_PAUSE)

        return wait


class TaskLog(Application[str]):
    """Loads tasks, makes new ones, and says when one has ended or is held.

    Guarded by the store, safe in all threads.
    """

    name = "perdure"
    mapper: TaskMapper
    events: TaskEvents
    recorder: TaskRecorder

    def __init__(self, store: Store, *, patience: Patience | None = None, now: Callable[[], float] = time.time) -> None:
        self.store = store
        self.now = now
        self.patience = patience or Patience()
        self._watchers: dict[str, set[threading.Event]] = {}
        self._watching = threading.Lock()
        super().__init__()

    def construct_env(self, name: str, env: EnvType | None = None) -> Environment:  # noqa: ARG002
        """Keep `os.environ` out: a stray COMPRESSOR_TOPIC of another application must not change our rows."""
        return Environment(name, {})

    def construct_factory(self, env: Environment) -> Store:  # noqa: ARG002
        """Give the opened store."""
        return self.store

    def construct_mapper(self) -> TaskMapper:
        """Give our own mapper: token, checksum, closed table of topics."""
        return TaskMapper()

    def construct_recorder(self) -> TaskRecorder:
        """Give the store's recorder."""
        return self.store.recorder

    def construct_event_store(self) -> TaskEvents:
        """Give the event store that knows births."""
        return TaskEvents(self.mapper, self.recorder)

    def close(self) -> None:
        """Leave the store open, also when this is collected as garbage: whoever opened the store closes it."""
        self.closing.set()

    def load(self, task_id: str, patience: Patience | None = None) -> AgentTask:
        """Rehydrate a task by replay.

        Raises UnknownTaskError, UnreadableTaskError, or the store's errors when patience is out.
        """
        away = (patience or self.patience).waiter()
        while True:
            try:
                return self.repository.get(task_id, projector_func=fold)
            except AggregateNotFoundError:
                raise UnknownTaskError(f"there is no task {task_id!r} in {self.store.url}", task_id=task_id) from None
            except StoreUnavailableError as error:
                away(error)
            except (StoreError, PerdureError):
                raise
            except Exception as error:
                raise UnreadableTaskError(
                    f"task {task_id}: its log cannot be followed: {type(error).__name__}: {error}",
                    task_id=task_id,
                    version=0,
                ) from error

    def create(self, task_id: str, agent: str, arguments: Any, tags: Any, parent: str = "") -> AgentTask:
        """Make a task, or give the one that has this id with the same agent and input, ended or not.

        When it returns, the task is in the store. Raises TaskConflictError where the id is in use otherwise; nothing
        is changed then.
        """
        created = Created(task_id, 1, self.now(), secrets.token_hex(8), agent, arguments, parent, tags, {})
        task = fold(None, [created])
        assert task is not None  # noqa: S101
        row = self.mapper.to_stored_event(created, birth=created.birth, token=secrets.token_bytes(TOKEN_SIZE))
        away = self.patience.waiter()
        while True:
            try:
                self.recorder.insert_events([row], entry=index_row(task), expected=None)
            except AppendConflictError:
                return self._in_use(created)
            except IntegrityError:
                raise UnreadableTaskError(
                    f"task {task_id}: its log is there, its index row is not: the index has to be rebuilt from the log",
                    task_id=task_id,
                    version=1,
                ) from None
            except StoreUnavailableError as error:
                away(error)
            else:
                return task

    def _in_use(self, created: Created) -> AgentTask:
        """Settle a spawn under an id that is in use; after a lost acknowledgement it may be our own."""
        task = fold(None, self.events.get(created.originator_id, lte=1))
        if task is None:
            raise UnknownTaskError(f"task {created.originator_id} was deleted meanwhile", task_id=created.originator_id)
        same = (task.agent, dumps(task.input)) == (created.agent, dumps(created.input))
        if task.birth == created.birth or same:
            return task
        what = f"agent {task.agent}" if task.agent != created.agent else "other input"
        raise TaskConflictError(
            f"task {task.id} exists already, with {what}: it was spawned as {call_text(task.agent, task.input)}, asked"
            f" for is {call_text(created.agent, created.input)}. Nothing was changed; choose another id",
            task_id=task.id,
        )

    def mark_unreadable(self, error: UnreadableTaskError) -> None:
        """Hold a task in its index row alone: nothing is ever appended to a log that cannot be read."""
        row = self.recorder.select_entry(error.task_id)
        if row is None:
            return
        held = row._replace(status="held", due=None, owner=None, hold=UNREADABLE, note=str(error))
        if held != row:
            logger.error("%s. The task is held; mended, it goes on after: perdure release %s", error, quote(row.id))
            self.recorder.update_index(held, expected=(row.birth, row.head))
        self.hint(row.id)

    def mended(self, row: IndexRow, *, by_a_person: bool) -> bool:
        """Look at an unreadable task again, and let it go on where its log can be read. Raises UnreadableTaskError.

        A log that ends before its index row says goes on only by a person's word: what is missing may have been done.
        """
        task = self.load(row.id, None if by_a_person else Patience(0.0))
        if not by_a_person and (task.birth, task.version) != (row.birth, row.head):
            raise self._astray(row, task)
        self.recorder.update_index(index_row(task), expected=(row.birth, row.head))
        return task.held is None

    def _astray(self, row: IndexRow, task: AgentTask) -> UnreadableTaskError:
        return UnreadableTaskError(
            f"task {task.id}: its index row says birth {row.birth} and version {row.head}, its log says birth"
            f" {task.birth} and ends at version {task.version}: one of them was changed from outside",
            task_id=task.id,
            version=task.version + 1,
        )

    def astray(self, task: AgentTask, row: IndexRow | None) -> PerdureError:
        """Name a conflict for which the log has no cause: the task was deleted, or its index row is not its log's."""
        if row is None or self.load(task.id).birth != task.birth:
            return UnknownTaskError(f"task {task.id} was deleted while it ran", task_id=task.id)
        return self._astray(row, task)

    def compare(self, task_id: str) -> None:
        """Look why a task that is due could not be claimed, and mend its index row where it is not what its log says.

        Raises UnreadableTaskError where log and index row are not of one task, or the log is the shorter.
        """
        row = self.recorder.select_entry(task_id)
        if row is None:
            return
        task = self.load(task_id)
        if row.birth != task.birth or row.head > task.version:
            raise self._astray(row, task)
        if row.head == task.version and row != index_row(task):
            logger.warning("the index row of task %s was changed from outside; it is made again from the log", task_id)
            with suppress(AppendConflictError):
                self.recorder.update_index(index_row(task), expected=(row.birth, row.head))
                self.hint(task_id)

    def rebuild_index(self) -> list[IndexRow]:
        """Rebuild the index from the log, and find what cannot be read by reading. Returns the new rows.

        Raises PerdureError, and changes nothing, while a worker lives: it would lose what it owns.
        """
        live = self.store.workers.live()
        if live:
            raise PerdureError(f"the index cannot be rebuilt while a worker lives: {', '.join(sorted(live))}")
        return self.recorder.rebuild_index(self._row_from_log)

    def _row_from_log(self, task_id: str, old: IndexRow | None) -> IndexRow:
        try:
            return index_row(self.load(task_id))
        except UnreadableTaskError as error:
            row = old or IndexRow(task_id, "", error.version - 1, 0, "held", "?", 0.0, 0.0, None, None, 0, None, "")
            return row._replace(status="held", due=None, owner=None, hold=UNREADABLE, note=str(error))

    @contextmanager
    def watch(self, task_id: str) -> Iterator[threading.Event]:
        """Give an event that is set each time the task has ended or is held in this process."""
        event = threading.Event()
        with self._watching:
            self._watchers.setdefault(task_id, set()).add(event)
        try:
            yield event
        finally:
            with self._watching:
                events = self._watchers[task_id]
                events.discard(event)
                if not events:
                    del self._watchers[task_id]

    def hint(self, task_id: str) -> None:
        """Wake who watches a task here; a hint only, the log is what counts."""
        with self._watching:
            for event in self._watchers.get(task_id, ()):
                event.set()


class Appender:
    """Appends to one task's log, one append in flight, and holds the task's state: the fold of its log at every moment.

    A decision is called under a lock and must not call the appender. `append` returns when the events are durably in
    the log and folded.
    Raises what the decision raises; UnknownTaskError when the task was deleted meanwhile; the store's errors when
    patience is out.
    """

    def __init__(self, log: TaskLog, task: AgentTask, patience: Patience | None = None) -> None:
        self.log = log
        self.task = task
        self._patience = patience or log.patience
        self._lock = threading.Lock()

    def append(self, decide: Decide, *, turn: float = -1, inside: Callable[[], None] | None = None) -> list[TaskEvent]:
        """Decide, commit, fold; after a conflict read on and decide again.

        Returns the events, none where none were decided. `turn`: seconds to wait while another append is in flight;
        StoreUnavailableError then. `inside` is called in the transaction, and undoes it by raising.
        """
        if not self._lock.acquire(timeout=turn):
            message = f"{self.log.store.url}: an append to task {self.task.id} is in flight"
            raise StoreUnavailableError(message, url=self.log.store.url, reason="in flight")
        try:
            while True:
                events = decide(self.task, self.log.now())
                if not events or self._commit(events, inside):
                    break
        finally:
            self._lock.release()
        if self.task.held is not None or self.task.ending is not None:
            self.log.hint(self.task.id)
        return events

    def catch_up(self) -> None:
        """Fold what others have appended since."""
        with self._lock:
            self._read_on()

    def _commit(self, events: list[TaskEvent], inside: Callable[[], None] | None) -> bool:
        task, log = self.task, self.log
        token = os.urandom(TOKEN_SIZE)
        rows = [log.mapper.to_stored_event(event, birth=task.birth, token=token) for event in events]
        entry = index_row(preview(task, events))
        away = self._patience.waiter()
        while True:
            try:
                log.recorder.insert_events(rows, entry=entry, expected=(task.birth, task.version), inside=inside)
            except AppendConflictError as conflict:
                found = self._read_on()
                if not found:
                    raise log.astray(task, conflict.found) from None
                return token_of(found[0]) == token
            except StoreUnavailableError as error:
                away(error)
                if found := self._read_on():
                    return token_of(found[0]) == token
            else:
                fold(task, events)
                return True

    def _read_on(self) -> list[StoredEvent]:
        """Fold what the log has beyond our state, and give its rows."""
        task, log = self.task, self.log
        away = self._patience.waiter()
        while True:
            try:
                rows = list(log.recorder.select_events(task.id, gt=task.version))
            except StoreUnavailableError as error:
                away(error)
            else:
                fold(task, log.events.read(rows, task.birth))
                return rows


def index_row(task: AgentTask) -> IndexRow:
    """Give the index row that follows from a task's log."""
    return IndexRow(
        task.id,
        task.birth,
        task.version,
        task.activation,
        task.status,
        task.agent,
        task.created,
        task.updated,
        task.due,
        task.worker,
        task.suspicion,
        task.held.reason if task.held is not None else None,
        headline(task),
    )
