"""Recovery is a loop: what is open, due and owned by nobody alive is given an actor.

The index is the timer heap: a restart, a new task, a task whose worker died are all rows that are due. One bad task
never stops the loop, and a store that is away is met with growing waits. Nothing is claimed while this worker's lease
does not hold.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from actors.activation import Hints
from actors.directory import Directory
from actors.groups import PermanentEntities
from actors.outage import Outage
from actors.supervised import SupervisedActor
from actors.task_actor import TaskActor
from actors.worker import Worker
from domain.errors import PerdureError
from domain.retry import is_suspect
from domain.task import FOR_CODE, UNREADABLE
from stores import IndexRow, StoreError

logger = logging.getLogger("perdure")

FIRST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks at the index when nothing wakes the loop: growing from the first to the longest."""
HEAD_START = 2.0
"""Seconds that a worker whose code does not fit a task leaves it to others, once it has been released."""


class Recovery(SupervisedActor):
    """Claims nothing itself: it finds rows and starts task actors, which read, claim and run."""

    def __init__(self, worker: Worker, directory: Directory, created: Callable[[Self], None]) -> None:
        super().__init__("recovery", worker.report)
        self._worker = worker
        self._log = worker.log
        self._directory = directory
        self._second_looks: deque[IndexRow] = deque()
        self._looked_at: set[tuple[str, str, int]] = set()
        self._looked_for: frozenset[str] | None = None
        self._next_look = 0.0
        self._next_compare = self._next_permanent = 0.0
        self._permanent = PermanentEntities(self._log, worker.runtime.entities, worker.patience)
        created(self)

    def may_go_on(self, task_id: str) -> bool:
        """Tell whether a held task is still to be looked at again by this worker, or is just being."""
        if self._looked_for is None or any(row.id == task_id for row in list(self._second_looks)):
            return True
        hosted = self._directory.hosted()
        actor = hosted.get(task_id)
        return task_id in hosted and (actor is None or actor.activation is None)

    def will_look_at(self, row: IndexRow) -> bool:
        """Tell whether a held task, as this row has it, is news: held by another worker, whose code may be other."""
        mine = self._worker.held_here.get((row.id, row.birth)) == row.head
        new = row.hold in FOR_CODE and not mine and (row.id, row.birth, row.head) not in self._looked_at
        return new and row.agent in self._worker.agents() and self._worker.only in (None, row.id)

    def live(self) -> None:
        """Loop until the system stops."""
        pause, wake = FIRST_POLL, self._worker.wake
        outage = Outage("recovery waits", "recovery goes on")
        while not self._worker.stopping.is_set():
            try:
                started = self._round()
                pause = FIRST_POLL if started else min(pause * 1.5, LONGEST_POLL)
                nap = 0.0 if started else self._nap(pause, idle=started is not None)
                outage.over()
            except StoreError as error:
                nap = 0.0 if self._worker.stopping.is_set() else outage.met(error)
            if wake.wait(nap):
                pause = FIRST_POLL
            wake.clear()

    def _round(self) -> int | None:
        """Look once; returns how many actors were started, None where this worker may claim nothing."""
        claims = self._worker.tenure.holds()
        self._remember_held()
        hosted = self._directory.hosted()
        self._look_after()
        if not claims:
            return None
        self._look_after_entities()
        started = self._look_again(hosted)
        passed_over = hosted.keys() | self._directory.resting()
        for row in sorted(self._ready(len(passed_over)), key=self._is_suspect, reverse=True):
            if row.id not in passed_over and not self._leaves_to_others(row):
                if not self._start(row):
                    break
                started += 1
        return started

    def _ready(self, passed_over: int) -> list[IndexRow]:
        free = self._directory.free()
        if free <= 0:
            return []
        recorder = self._log.recorder
        if self._worker.only is not None:
            row = recorder.select_entry(self._worker.only)
            due = row is not None and row.due is not None and row.due <= self._log.now()
            return [row] if row is not None and due and self._worker.owns_or_may_take(row.owner) else []
        busy = {owner for owner in recorder.select_owners() if not self._worker.owns_or_may_take(owner)}
        agents, limit = self._worker.agents(), free + passed_over
        return recorder.select_ready(self._log.now(), agents=agents, busy_owners=busy, limit=limit)

    def _start(self, row: IndexRow) -> bool:
        """Give a row an actor, if there is a place.

        A suspect waits until the rest has made way, and nothing new starts meanwhile.
        """
        worker, way = self._worker, threading.Event()
        if not self._directory.admit(row.id, way, alone=self._is_suspect(row)):
            return False
        hints = Hints(
            worker.stopping,
            worker.over,
            way,
            lambda: self._proven(row.id),
            lambda: self._lend(row.id),
            worker.tenure.holds,
        )
        actor = TaskActor.launch(worker, row.id, hints)
        self._directory.enter(row.id, actor)
        return True

    def _is_suspect(self, row: IndexRow) -> bool:
        """Tell whether a task that is due has to run alone."""
        return row.due is not None and is_suspect(row.strikes, self._worker.strikes)

    def _proven(self, task_id: str) -> None:
        if self._directory.proven(task_id):
            self._worker.wake.set()

    def _leaves_to_others(self, row: IndexRow) -> bool:
        """Tell whether a released task, which our code did not fit, is another worker's to try first."""
        if (row.id, row.birth) not in self._worker.held_here or row.due is None:
            return False
        others = self._log.store.workers.live().items()
        known = any(row.agent in about.get("agents", ()) for worker, about in others if worker != self._worker.id)
        return known and self._log.now() < row.due + HEAD_START

    @contextmanager
    def _lend(self, task_id: str) -> Iterator[None]:
        with self._directory.lend(task_id):
            self._worker.wake.set()
            yield

    def _remember_held(self) -> None:
        """Remember what this worker has to look at again: held for other code, or for rows that could not be read.

        Once each, when it starts, when it learns of the agent, or when another worker, with other code, has held it.
        """
        agents = frozenset(self._worker.agents())
        if agents == self._looked_for and time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LONGEST_POLL
        for row in self._log.recorder.select_entries(hold=[*FOR_CODE, UNREADABLE]):
            key = row.id, row.birth, row.head
            news = self.will_look_at(row) or (row.hold == UNREADABLE and key not in self._looked_at)
            if news and row.agent in agents and self._worker.only in (None, row.id):
                self._second_looks.append(row)
                self._looked_at.add(key)
        self._looked_for = agents

    def _look_again(self, hosted: Collection[str]) -> int:
        """Take the second looks for which there is a place; returns how many actors were started."""
        started = 0
        while self._second_looks and self._directory.free() > 0:
            row = self._second_looks[0]
            if row.hold == UNREADABLE:
                with suppress(PerdureError, StoreError):
                    started += self._log.mended(row, by_a_person=False)
            elif row.id not in hosted and not self._start(row):
                break
            else:
                started += 1
            self._second_looks.popleft()
        return started

    def _look_after(self) -> None:
        """See that others find our lock, and that our tasks are still ours."""
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

    def _nap(self, pause: float, *, idle: bool) -> float:
        """Seconds until the next look: the pause, or less where a task is due before.

        `idle` tells that whatever was due has been started, or has no place.
        """
        due = self._log.recorder.next_due(self._log.now())
        if idle and not self._directory.hosted():
            self._worker.runtime.clock.idle(due)
        return pause if due is None else max(0.0, min(pause, due - self._log.now()))
