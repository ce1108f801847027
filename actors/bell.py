"""What wakes recovery: to look at the store, or for tasks that were just made here and need no look."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from domain.task import AgentTask


class NewTask(NamedTuple):
    """A task that was just made, and is due; where it is claimed already, the way of the place that it has."""

    task: AgentTask
    way: threading.Event | None = None


class Bell:
    """Wakes one thread, and tells it why. Any thread may ring."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._rings: deque[NewTask | None] = deque()  # None asks for a look; a flag beside it could lose one

    def set(self) -> None:
        """Have the store looked at, at once."""
        self._rings.append(None)
        self._rung.set()

    def hand(self, task: NewTask) -> None:
        """Hand over a task that was just made."""
        self._rings.append(task)
        self._rung.set()

    def wait(self, timeout: float) -> bool:
        """Wait until it is rung, at most so many seconds; tells whether it was. Rings stay until they are taken."""
        return self._rung.wait(timeout)

    def take(self) -> tuple[list[NewTask], bool]:
        """Take all rings so far: the tasks that were handed over, and whether the store is to be looked at."""
        self._rung.clear()
        rings: list[NewTask | None] = []
        while self._rings:
            rings.append(self._rings.popleft())
        tasks = [ring for ring in rings if ring is not None]
        return tasks, len(tasks) < len(rings)
