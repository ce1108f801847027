"""Recovery is a loop: what is open, due and owned by nobody alive is given an actor.

The index is the timer heap: a restart, a new task, a task whose worker died are all rows that are due. One bad task
never stops the loop, and a store that is away is met with growing waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self

from actors.activation import Hints
from actors.directory import Directory
from actors.second_looks import SecondLooks
from actors.supervised import SupervisedActor
from actors.task_actor import TaskActor
from actors.worker import Worker
from domain.errors import OwnershipLost, PerdureError
from domain.retry import is_suspect
from domain.task import UNREADABLE
from stores import IndexRow, StoreError
from stores.task_index import START, place

logger = logging.getLogger("perdure")

FIRST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks at the index when nothing wakes the loop: growing from the first to the longest."""
SPARE, BATCH = 10, 100
"""Rows that are read beyond the free places at first, for those that are passed over; rows that are read after that."""
HEAD_START = 2.0
"""Seconds that a worker whose code does not fit a task leaves it to others, once it has been released."""


class Recovery(SupervisedActor):
    """Claims nothing itself: it finds rows and starts task actors, which read, claim and run."""

    def __init__(self, worker: Worker, directory: Directory, created: Callable[[Self], None]) -> None:
        super().__init__("recovery", worker.report)
        self._worker = worker
        self._log = worker.log
        self._directory = directory
        self._looks = SecondLooks(worker)
        self._looks_first = False
        self._next_compare = 0.0
        created(self)

    def may_go_on(self, task_id: str) -> bool:
        """Tell whether a held task is still to be looked at again by this worker, or is just being."""
        if self._looks.has(task_id):
            return True
        hosted = self._directory.hosted()
        actor = hosted.get(task_id)
        return task_id in hosted and (actor is None or actor.activation is None)

    def will_look_at(self, row: IndexRow) -> bool:
        """Tell whether a held task, as this row has it, is news: held by another worker, whose code may be other."""
        return self._looks.is_news(row) or self.may_go_on(row.id)

    def live(self) -> None:
        """Loop until the system stops."""
        pause = FIRST_POLL
        while not self._worker.stopping.is_set():
            self._worker.wake.clear()
            try:
                started = self._round()
            except StoreError as error:
                started = 0
                if not self._worker.stopping.is_set():
                    logger.warning("recovery waits, the store is away: %s", error)
            pause = FIRST_POLL if started else min(pause * 1.5, LONGEST_POLL)
            if not started and self._worker.wake.wait(self._nap(pause)):
                pause = FIRST_POLL

    def _round(self) -> int:
        """Look once; returns how many actors were started, and one more where the next round is to follow at once."""
        more = self._looks.read_on()
        hosted = self._directory.hosted()
        self._look_after(hosted)
        first, second = (self._look_again, self._start_due)[:: 1 if self._looks_first else -1]
        started = first(hosted)
        if started:  # by turns, so that neither kind waits until there is nothing left of the other
            self._looks_first = not self._looks_first
        return started + second(hosted) + more

    def _start_due(self, hosted: Collection[str]) -> int:
        """Start what is due, the oldest first, while there is a place; returns how many actors were started."""
        started = 0
        if self._directory.free() <= 0:
            return started
        passed_over, live = {*hosted, *self._directory.resting()}, self._log.store.workers.live()
        for row in self._due(live):
            if row.id not in passed_over and not self._leaves_to_others(row, live):
                if not self._start(row):
                    break
                started += 1
        return started

    def _due(self, live: Collection[str]) -> Iterator[IndexRow]:
        """Give what is due and may be claimed, by due time, read in batches: as far as somebody asks for more."""
        recorder, now, only = self._log.recorder, self._log.now(), self._worker.only
        if only is not None:
            row = recorder.select_entry(only)
            if row is not None and place(row)[0] <= now and self._worker.owns_or_may_take(row.owner):
                yield row
            return
        agents, busy = self._worker.agents(), [one for one in live if not self._worker.owns_or_may_take(one)]
        after, limit = START, self._directory.free() + SPARE
        while True:
            rows = recorder.select_ready(now, agents=agents, busy_owners=busy, after=after, limit=limit)
            yield from rows
            if len(rows) < limit or self._directory.free() <= 0:
                return
            after, limit = place(rows[-1]), BATCH

    def _start(self, row: IndexRow) -> bool:
        """Give a row an actor, if there is a place.

        A suspect waits until the rest is done, and nothing new starts meanwhile.
        """
        alone = row.due is not None and is_suspect(row.strikes, self._worker.strikes)
        if not self._directory.admit(row.id, alone=alone):
            return False
        worker = self._worker
        hints = Hints(worker.stopping, worker.over, lambda: self._directory.proven(row.id), lambda: self._lend(row.id))
        actor = TaskActor.launch(worker, row.id, hints)
        self._directory.enter(row.id, actor)
        return True

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

    def _look_again(self, hosted: Collection[str]) -> int:
        """Take the second looks for which there is a place; returns how many actors were started."""
        started = 0
        while (row := self._looks.first()) is not None and self._directory.free() > 0:
            if row.hold == UNREADABLE:
                with suppress(PerdureError, StoreError):
                    started += self._log.mended(row, by_a_person=False)
            elif row.id not in hosted and not self._start(row):
                break
            else:
                started += 1
            self._looks.pop()
        return started

    def _look_after(self, hosted: dict[str, TaskActor | None]) -> None:
        """See that others find our lock, and that our tasks are still ours; a lost one starts no further body."""
        if time.monotonic() < self._next_compare:
            return
        self._next_compare = time.monotonic() + LONGEST_POLL
        self._worker.keep_lock()
        for task_id, actor in hosted.items():
            activation = actor.activation if actor is not None else None
            if activation is None or activation.closed is not None:
                continue
            row = self._log.recorder.select_entry(task_id)
            if row is None or row.birth != activation.task.birth or row.activation > activation.number:
                activation.lose(OwnershipLost(f"task {task_id}: ownership lost to another worker"))

    def _nap(self, pause: float) -> float:
        """Seconds until the next look: the pause, or less where a task is due before for which there is a place."""
        if self._directory.free() <= 0:
            return pause
        try:
            due = self._next_due()
        except StoreError:
            return pause
        if not self._directory.hosted():
            self._worker.runtime.clock.idle(due)
        return pause if due is None else max(0.0, min(pause, due - self._log.now()))

    def _next_due(self) -> float | None:
        """Give when the next task that this worker could run is due, of those that are not yet."""
        recorder, now, only = self._log.recorder, self._log.now(), self._worker.only
        if only is None:
            return recorder.next_due(now, agents=self._worker.agents())
        row = recorder.select_entry(only)
        return row.due if row is not None and row.due is not None and row.due > now else None
