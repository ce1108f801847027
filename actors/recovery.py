"""Recovery is a loop: what is open, due and owned by nobody alive is given an actor.

The index is the timer heap: a restart, a new task, a task whose worker died are all rows that are due. One bad task
never stops the loop, and a store that is away is met with growing waits.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from actors.activation import Hints
from actors.directory import Directory
from actors.supervised import SupervisedActor
from actors.task_actor import TaskActor
from actors.worker import Worker
from domain.errors import OwnershipLost, PerdureError
from domain.retry import is_suspect
from domain.task import DIFFERS, UNREADABLE
from stores import IndexRow, StoreError

logger = logging.getLogger("perdure")

FIRST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks at the index when nothing wakes the loop: growing from the first to the longest."""


class Recovery(SupervisedActor):
    """Claims nothing itself: it finds rows and starts task actors, which read, claim and run."""

    def __init__(self, worker: Worker, directory: Directory, created: Callable[[Self], None]) -> None:
        super().__init__("recovery", worker.report)
        self._worker = worker
        self._log = worker.log
        self._directory = directory
        self._second_looks: deque[IndexRow] = deque()
        self._looked_for: frozenset[str] | None = None
        self._next_compare = 0.0
        created(self)

    def may_go_on(self, task_id: str) -> bool:
        """Tell whether a held task is still to be looked at again by this new worker, or is just being."""
        if self._looked_for is None or any(row.id == task_id for row in list(self._second_looks)):
            return True
        hosted = self._directory.hosted()
        actor = hosted.get(task_id)
        return task_id in hosted and (actor is None or actor.context is None)

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
        """Look once; returns how many actors were started."""
        self._remember_held()
        hosted = self._directory.hosted()
        self._look_after(hosted)
        started = self._look_again(hosted)
        passed_over = hosted.keys() | self._directory.resting()
        for row in self._ready(len(passed_over)):
            if row.id not in passed_over:
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

        A suspect waits until the rest is done, and nothing new starts meanwhile.
        """
        alone = row.due is not None and is_suspect(row.strikes, self._worker.strikes)
        if not self._directory.admit(row.id, alone=alone):
            return False
        hints = Hints(self._worker.stopping, lambda: self._directory.proven(row.id), lambda: self._lend(row.id))
        actor = TaskActor.launch(self._worker, row.id, hints)
        self._directory.enter(row.id, actor)
        return True

    @contextmanager
    def _lend(self, task_id: str) -> Iterator[None]:
        with self._directory.lend(task_id):
            self._worker.wake.set()
            yield

    def _remember_held(self) -> None:
        """Remember what this worker has to look at again: held for its code, or for rows that could not be read.

        Once for each agent, when it becomes known here.
        """
        agents = frozenset(self._worker.agents())
        new = agents - (self._looked_for or frozenset())
        if new:
            rows = self._log.recorder.select_entries(status=["held"], hold=[DIFFERS, UNREADABLE])
            mine = [row for row in rows if row.agent in new and self._worker.only in (None, row.id)]
            self._second_looks.extend(mine)
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

    def _look_after(self, hosted: dict[str, TaskActor | None]) -> None:
        """See that others find our lock, and that our tasks are still ours; a lost one starts no further body."""
        if time.monotonic() < self._next_compare:
            return
        self._next_compare = time.monotonic() + LONGEST_POLL
        self._worker.keep_lock()
        for task_id, actor in hosted.items():
            context = actor.context if actor is not None else None
            if context is None or context.closed is not None:
                continue
            row = self._log.recorder.select_entry(task_id)
            if row is None or row.birth != context.task.birth or row.activation > context.number:
                context.closed = OwnershipLost(f"task {task_id}: ownership lost to another worker")

    def _nap(self, pause: float) -> float:
        """Seconds until the next look: the pause, or less where a task is due before."""
        try:
            due = self._log.recorder.next_due(self._log.now())
        except StoreError:
            return pause
        return pause if due is None else max(0.0, min(pause, due - self._log.now()))
