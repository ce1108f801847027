"""The held tasks that a worker looks at again: its code may be other than what they were held by."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from actors.worker import Worker
from domain.state import FOR_CODE, UNREADABLE
from stores import IndexRow
from stores.task_index import START, Place

PAGE = 100
"""Rows that are read at once."""
PAUSE = 0.5
"""Seconds between two looks whether another worker has held something."""
LATE = 5.0
"""Seconds that a hold may be committed later than its row says."""


@dataclass
class _Walk:
    """How far the rows with one kind of hold were read. Up to `before` only the tasks of new agents are news."""

    hold: str
    read: Place = START
    before: Place = START


class SecondLooks:
    """What this worker has to look at again: held for other code, or for rows that could not be read.

    Once each: when the worker starts, when it learns of the agent, or when another worker, with other code, has held
    it. The rows are read in the order in which they were held, a page at a time when all before was looked at: so it
    does not matter how many there are. Not guaranteed: that a foreign hold is seen whose row says much too early a
    time; whichever worker starts next looks at it.

    Asked by any thread, changed by one.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._walks = {hold: _Walk(hold) for hold in (*FOR_CODE, UNREADABLE)}
        self._queue: deque[IndexRow] = deque()
        self._met: dict[tuple[str, str, int], float] = {}
        self._agents: frozenset[str] | None = None
        self._new: frozenset[str] = frozenset()
        self._next = 0.0

    def has(self, task_id: str) -> bool:
        """Tell whether a task stands in line here, or may still turn out to."""
        return self._agents is None or any(row.id == task_id for row in list(self._queue))

    def is_news(self, row: IndexRow) -> bool:
        """Tell whether a hold, as this row has it, was not met yet: another worker's, whose code may be other."""
        walk, only = self._walks.get(row.hold or ""), self._worker.only
        if walk is None or _place(row) <= walk.read or row.agent not in self._worker.agents():
            return False
        known = row.agent not in self._new and _place(row) <= walk.before
        mine = self._worker.held_here.get((row.id, row.birth)) == row.head
        return not (known or mine or _key(row) in self._met) and (only is None or row.id in only)

    def first(self) -> IndexRow | None:
        """Give the task that is next."""
        return self._queue[0] if self._queue else None

    def pop(self) -> None:
        """Forget the first: it was looked at."""
        self._queue.popleft()

    def put_off(self) -> None:
        """Send the first to the end of the line: it cannot be looked at now. Nobody who asks misses it meanwhile."""
        self._queue.rotate(-1)

    def __len__(self) -> int:
        """Count who stands in line."""
        return len(self._queue)

    def read_on(self, put_off: Collection[str] = ()) -> bool:
        """Read a page of what is held, where nothing is left to look at; tell whether more stands there.

        `put_off` are the tasks that cannot be looked at now: however long they take, the others are read.
        """
        agents = frozenset(self._worker.agents())
        if agents != self._agents:
            self._begin_anew(agents)
        if any(row.id not in put_off for row in self._queue) or time.monotonic() < self._next:
            return False
        pages = [self._read_page(walk) for walk in self._walks.values()]
        if PAGE in pages:
            return True
        self._next = time.monotonic() + PAUSE
        self._step_back()
        return False

    def _begin_anew(self, agents: frozenset[str]) -> None:
        self._new |= agents - (agents if self._agents is None else self._agents)
        for walk in self._walks.values():
            walk.before = max(walk.before, walk.read)
            walk.read = START
        self._agents, self._next = agents, 0.0

    def _read_page(self, walk: _Walk) -> int:
        rows, since = self._page(walk), self._since()
        for row in rows:
            if self.is_news(row):
                self._queue.append(row)
                if row.updated > since:
                    self._met[_key(row)] = row.updated
        if rows:
            walk.read = _place(rows[-1])  # only now: whoever asks finds each row in line or ahead
        return len(rows)

    def _page(self, walk: _Walk) -> list[IndexRow]:
        recorder, only = self._worker.log.recorder, self._worker.only
        if only is None:
            return recorder.select_held(walk.hold, after=walk.read, limit=PAGE)
        rows = [row for row in only.rows(self._worker.log) if row.hold == walk.hold and _place(row) > walk.read]
        return sorted(rows, key=_place)[:PAGE]

    def _step_back(self) -> None:
        """Let what was committed late, among rows that were read already, be read as well."""
        since = self._since()
        for walk in self._walks.values():
            walk.read, walk.before = min(walk.read, (since, "")), START
        self._met = {key: updated for key, updated in self._met.items() if updated > since}
        self._new = frozenset()

    def _since(self) -> float:
        return self._worker.log.now() - LATE


def _key(row: IndexRow) -> tuple[str, str, int]:
    return row.id, row.birth, row.head


def _place(row: IndexRow) -> Place:
    return row.updated, row.id
