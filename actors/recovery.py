"""Recovery is a loop: what is open, due and owned by nobody alive is given an actor.

The index is the timer heap: a restart, a new task, a task whose worker died are all rows that are due. One bad task
never stops the loop, and a store that is away is met with growing waits. Nothing is claimed while this worker's lease
does not hold.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from actors.bell import NewTask
from actors.directory import Directory
from actors.groups import PermanentEntities
from actors.hints import Hints
from actors.outage import Outage
from actors.outbox import Outbox
from actors.second_looks import SecondLooks
from actors.shares import LEFT_FOR, Shares
from actors.supervised import SupervisedActor
from actors.task_actor import TaskActor
from actors.task_log import Claim, index_row
from actors.worker import Worker
from domain.errors import PerdureError
from domain.retry import is_suspect
from domain.state import UNREADABLE
from domain.task import AgentTask
from stores import IndexRow, StoreError, StoreUnavailableError
from stores.task_index import START, place

logger = logging.getLogger("perdure")

FIRST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks at the index when nothing wakes the loop: growing from the first to the longest."""
SPARE, BATCH = 10, 100
"""Rows that are read beyond the free places at first, for those that are passed over; rows that are read after that."""
HEAD_START = 2.0
"""Seconds that a worker whose code does not fit a task leaves it to others, once it has been released."""


class Recovery(SupervisedActor):
    """Finds rows and starts task actors, which read, claim and run; what is spawned here is claimed as it is made."""

    def __init__(self, worker: Worker, directory: Directory, created: Callable[[Self], None]) -> None:
        super().__init__("recovery", worker.report)
        self._worker = worker
        self._log = worker.log
        self._directory = directory
        self._looks = SecondLooks(worker)
        self._looks_first = False
        self._shares = Shares(worker.id)
        self.is_crowded = True  # somebody may stand in line: only a look at the store can tell who is next
        self.has_looked = threading.Event()
        self._seen: Collection[str] = ()
        self._outbox = Outbox(self._log, directory.ring)
        self._next_compare = self._next_permanent = 0.0
        self._permanent = PermanentEntities(self._log, worker.runtime.entities, worker.patience)
        created(self)

    def may_go_on(self, task_id: str) -> bool:
        """Tell whether a held task is still to be looked at again by this worker, or is just being."""
        if self._worker.stopping.is_set():
            return False
        if self._looks.has(task_id):
            return True
        hosted = self._directory.hosted()
        actor = hosted.get(task_id)
        return task_id in hosted and (actor is None or actor.activation is None)

    def will_look_at(self, row: IndexRow) -> bool:
        """Tell whether a held task, as this row has it, is news: held by another worker, whose code may be other."""
        return not self._worker.stopping.is_set() and (self._looks.is_news(row) or self.may_go_on(row.id))

    def live(self) -> None:
        """Loop until the system stops."""
        self._directory.forsake()
        pause = FIRST_POLL
        outage, only = Outage("recovery waits", "recovery goes on"), self._worker.only
        while not self._worker.stopping.is_set():
            try:
                if only is not None and not only.was_read:
                    only.read(self._log)
                started = self._round()
                pause = FIRST_POLL if started else min(pause * 1.5, LONGEST_POLL)
                nap = 0.0 if started or (started == 0 and self._let_time_pass()) else self._nap(pause)
                outage.over()
            except StoreError as error:
                nap = 0.0 if self._worker.stopping.is_set() else outage.met(error)
            if self._sleep(nap):
                pause = FIRST_POLL
        for new in self._worker.wake.take()[0]:
            if new.way is not None:  # it is this worker's, and lets go of it in good order
                self._takes_up(new.task, new.way)

    def _sleep(self, nap: float) -> bool:
        """Sleep until it is time to look at the store; tells whether somebody has asked for that.

        Tasks that are made here meanwhile are begun with at once, while nobody stands in line before them.
        """
        over = time.monotonic() + nap
        while self._worker.wake.wait(max(0.0, over - time.monotonic())):
            tasks, look = self._worker.wake.take()
            in_line = [task for task in tasks if not self._starts_new(task)]
            if look or in_line:
                return True
            if time.monotonic() >= over:
                break
        return False

    def _starts_new(self, new: NewTask) -> bool:
        """Start a task that was just made; False where it has to be looked for among the others."""
        if new.way is not None:
            return self._takes_up(new.task, new.way)
        task = new.task
        due = task.due is not None and task.line <= self._now() and task.agent in self._worker.agents()
        return due and self._takes_new() and self._start(index_row(task), task)

    def _takes_new(self) -> bool:
        """Tell whether a new task may be begun with at once: nobody stands in line before it."""
        worker = self._worker
        return not (self.is_crowded or worker.only or worker.stopping.is_set()) and worker.tenure.holds()

    def _takes_up(self, task: AgentTask, way: threading.Event) -> bool:
        """Start a task that was claimed as it was made, unless its place was given back, or nothing is written here."""
        taken_up = not self._worker.over.is_set() and self._directory.take_up(task.id, way)
        if taken_up:
            self._launch(task.id, way, task)
        return taken_up

    def begin(self, task_id: str, birth: str, make: Callable[[Claim | None], AgentTask], *, claims: bool) -> AgentTask:
        """Have a task made, under this birth, and begin with it; any thread may call.

        Where there is a place for it, and nobody in line, it is claimed in the append that makes it, if it `claims`.
        Where an error or an interrupt comes between, its place is given back, and a look at the store finds it unbegun.
        """
        task = self._born_claimed(task_id, birth, make) if claims else None
        if task is not None:
            return task
        task = make(None)
        if (task.birth, task.version) == (birth, 1):
            self._worker.unbegun.discard((task_id, birth))
            self._worker.wake.hand(NewTask(task))
        else:
            self._worker.wake.set()
        return task

    def _born_claimed(self, task_id: str, birth: str, make: Callable[[Claim | None], AgentTask]) -> AgentTask | None:
        """Have a task made and claimed, and hand it over; None without a place, or where the store is away."""
        worker, way, handed = self._worker, threading.Event(), False
        try:
            if not self._takes_new() or not self._directory.reserve(task_id, way):
                return None
            worker.unbegun.add((task_id, birth))
            task = make(worker.claim)
            if task.birth != birth:  # it was there
                worker.unbegun.discard((task_id, birth))
                worker.wake.set()
                return task
            worker.wake.hand(NewTask(task, way))
            handed = True
            if worker.stopping.is_set():  # recovery may have looked for the last time
                self._takes_up(task, way)
        except PerdureError:  # nothing of it is in the store
            worker.unbegun.discard((task_id, birth))
            raise
        except StoreUnavailableError:
            return None
        finally:
            if not handed and self._directory.give_back(task_id, way) and self.is_crowded:
                worker.wake.set()
        return task

    def _round(self) -> int | None:
        """Look once; returns how many actors were started, and one more where the next round is to follow at once.

        None where this worker may claim nothing.
        """
        claims = self._worker.tenure.holds()
        hosted = self._seen = self._directory.hosted()
        more = any([self._looks.read_on(hosted), self._outbox.empty()])
        self._look_after()
        if not claims:
            return None
        self._look_after_entities()
        first, second = (self._look_again, self._start_due)[:: 1 if self._looks_first else -1]
        started = first(hosted)
        if started:  # by turns, so that neither kind waits until there is nothing left of the other
            self._looks_first = not self._looks_first
        started += second(hosted)
        self.has_looked.set()
        return started + more

    def _start_due(self, hosted: Collection[str]) -> int:
        """Start what is due, the oldest first, while there is a place; returns how many actors were started."""
        started = 0
        self._shares.begin()
        if self._directory.free() <= 0:
            self.is_crowded = True
            return started
        passed_over, live = {*hosted, *self._directory.resting()}, self._log.store.workers.live()
        for row in self._due(live):
            if row.id in passed_over or self._leaves_to_others(row, live) or self._is_too_early(row):
                continue
            if self._shares.leaves(row, live):
                continue
            if self._start(row):
                started += 1
            elif not self._is_suspect(row) or self._directory.is_quiet():
                self.is_crowded = True
                return started
        self.is_crowded = False
        return started

    def _due(self, live: Collection[str]) -> Iterator[IndexRow]:
        """Give what is due and may be claimed, by due time, read in batches: as far as somebody asks for more.

        Of each batch suspects come first, for which the others have to make way.
        """
        recorder, now, only = self._log.recorder, self._now(), self._worker.only
        if only is not None:
            rows = [row for row in only.rows(self._log) if place(row)[0] <= now]
            yield from (row for row in sorted(rows, key=place) if self._worker.owns_or_may_take(row.owner))
            return
        agents, busy = self._worker.agents(), [one for one in live if self._worker.must_leave(one)]
        after, limit = START, self._directory.free() + SPARE
        while True:
            rows = recorder.select_ready(now, agents=agents, busy_owners=busy, after=after, limit=limit)
            yield from sorted(rows, key=self._is_suspect, reverse=True)
            if len(rows) < limit or self._directory.free() <= 0:
                return
            after, limit = place(rows[-1]), BATCH

    def _start(self, row: IndexRow, task: AgentTask | None = None) -> bool:
        """Give a row an actor, if there is a place; `task` is its state, where that is known from its log just now.

        A suspect waits until the rest has made way, and nothing new starts for a while.
        """
        way = threading.Event()
        if not self._directory.admit(row.id, way, alone=self._is_suspect(row)):
            return False
        self._launch(row.id, way, task)
        return True

    def _launch(self, task_id: str, way: threading.Event, task: AgentTask | None) -> None:
        worker = self._worker
        hints = Hints(
            worker.stopping,
            worker.over,
            way,
            lambda: self._proven(task_id),
            lambda: self._lend(task_id),
            worker.tenure.holds,
            lambda: self._directory.free() <= 0,
            worker.wake.set,
            self._adopt,
            self._ring,
        )
        actor = TaskActor.launch(worker, task_id, hints, task)
        self._directory.enter(task_id, actor)

    def _is_suspect(self, row: IndexRow) -> bool:
        """Tell whether a task that is due has to run alone."""
        return row.due is not None and is_suspect(row.strikes, self._worker.strikes)

    def _proven(self, task_id: str) -> None:
        if self._directory.proven(task_id):
            self._worker.wake.set()

    def _leaves_to_others(self, row: IndexRow, live: Mapping[str, Mapping[str, Any]]) -> bool:
        """Tell whether a released task, which our code did not fit, is another worker's to try first."""
        if (row.id, row.birth) not in self._worker.held_here or row.due is None:
            return False
        known = any(row.agent in about.get("agents", ()) for worker, about in live.items() if worker != self._worker.id)
        return known and self._log.now() < row.due + HEAD_START

    @contextmanager
    def _lend(self, task_id: str) -> Iterator[None]:
        with self._directory.lend(task_id):
            self._worker.wake.set()
            yield

    def _adopt(self, child: str) -> None:
        if self._worker.only is not None:
            self._worker.only.adopt(child)
        self._worker.wake.set()

    def _ring(self, task_id: str) -> None:
        self._directory.ring(task_id)
        self._worker.wake.set()

    def _look_again(self, hosted: Collection[str]) -> int:
        """Take the second looks for which there is a place; returns how many actors were started, or rows mended.

        What cannot be looked at now goes to the end of the line, once a round: a task that was taken from us and has
        its actor here still, and one for which the store is away.
        """
        started = 0
        for _ in range(len(self._looks)):
            row = self._looks.first()
            if row is None or self._directory.free() <= 0:
                break
            looked: bool | None = None
            if row.hold == UNREADABLE:
                looked = self._mended(row)
            elif row.id not in hosted and not (looked := self._start(row)):
                break
            if looked is None:
                self._looks.put_off()
            else:
                self._looks.pop()
                started += looked
        return started

    def _mended(self, row: IndexRow) -> bool | None:
        """Look at an unreadable task; tells whether it goes on, or None where the store was away."""
        try:
            return self._log.mended(row, by_a_person=False)
        except StoreUnavailableError:
            return None
        except (PerdureError, StoreError):
            return False

    def _look_after(self) -> None:
        """See that others find our lock, and that our tasks are still ours."""
        if rung := self._directory.rung():
            self._directory.compare(self._log, rung)
        if time.monotonic() < self._next_compare:
            return
        self._next_compare = time.monotonic() + LONGEST_POLL
        self._worker.look_after()
        self._directory.compare(self._log)

    def _look_after_entities(self) -> None:
        """See that permanent entities are in memory."""
        if time.monotonic() < self._next_permanent:
            return
        self._next_permanent = time.monotonic() + LONGEST_POLL
        if self._worker.only is None:
            self._permanent.look()

    def _now(self) -> float:
        """Tell what time it is at the latest: a wait for a while follows elapsed time, and the wall may be behind."""
        return max(self._log.now(), self._worker.runtime.clock.steady())

    def _is_too_early(self, row: IndexRow) -> bool:
        """Tell whether a task was looked at, and waits by another clock than that by which its row is due."""
        version, until = self._worker.too_early.get((row.id, row.birth), (0, 0.0))
        if version == row.head and place(row)[0] > self._log.now():
            return self._worker.runtime.clock.monotonic() < until
        self._worker.too_early.pop((row.id, row.birth), None)
        return False

    def _nap(self, pause: float) -> float:
        """Seconds until the next look: the pause, or less where a task is due before for which there is a place."""
        rest = None if self._directory.free() <= 0 else self._next_due()
        pause = min(pause, LEFT_FOR) if self._shares.left else pause
        return pause if rest is None else max(0.0, min(pause, rest))

    def _let_time_pass(self) -> bool:
        """Let a clock that jumps go to what is due first, where nothing but time goes on, here and in all tasks.

        Whatever was due has been started by now, or has no place. Tells whether to look again at once.
        """
        clock, hosted = self._worker.runtime.clock, self._directory.hosted()
        if not clock.jumps:
            return False
        if hosted.keys() != set(self._seen):  # who has ended meanwhile may have left something
            return True
        activations = [actor.activation for actor in hosted.values() if actor is not None]
        awake = [one for one in activations if one is not None and one.closed is None]
        rests = [one.rests() for one in awake]
        if len(rests) < len(hosted) or None in rests:
            return False
        if self._directory.free() > 0:
            rests.append(self._next_due())
        rest = min((rest for rest in rests if rest is not None), default=math.inf)
        clock.idle(clock.now() + rest)
        for one in awake:
            one.wake()
        return rest < math.inf

    def _next_due(self) -> float | None:
        """Tell in how many seconds the next task that this worker could run is due, of those that are not yet."""
        now, mono, only = self._now(), self._worker.runtime.clock.monotonic(), self._worker.only
        if only is None:
            due = self._log.recorder.next_due(now, agents=self._worker.agents())
        else:
            dues = [row.due for row in only.rows(self._log) if row.due is not None and row.due > now]
            due = min(dues, default=None)
        rests = [until - mono for _, until in self._worker.too_early.values() if until > mono]
        return min([*rests, *([] if due is None else [due - now])], default=None)
