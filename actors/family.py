"""What a worker may run that is there for one task only: that task, and what descends from it."""

from __future__ import annotations

import threading
from contextlib import suppress

from actors.task_log import TaskLog
from domain.errors import PerdureError
from domain.state import ENDED
from domain.waits import child_name
from stores import IndexRow


class Family:
    """One task and its open descendants, as far as they are known: from the log at first, then as they are spawned.

    Safe in all threads. Not guaranteed: a descendant that another worker spawns; that worker may run it too.
    """

    def __init__(self, head: str) -> None:
        self.head = head
        self.was_read = False
        self._ids = frozenset([head])
        self._changing = threading.Lock()

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._ids

    def adopt(self, child: str) -> None:
        """Take in a child."""
        with self._changing:
            self._ids |= {child}

    def rows(self, log: TaskLog) -> list[IndexRow]:
        """Give the index rows of all; who has ended is forgotten. Raises the store's errors."""
        rows = list(log.recorder.select_rows(self._ids).values())
        with self._changing:
            self._ids -= {row.id for row in rows if row.status in ENDED and row.id != self.head}
        return rows

    def read(self, log: TaskLog) -> None:
        """Take in whom the log knows: children that have not ended, and theirs. Raises the store's errors."""
        found = [self.head]
        for task_id in found:
            self.adopt(task_id)
            with suppress(PerdureError):  # it is not there yet, or cannot be read
                task = log.load(task_id)
                found += [child for child in task.children if child_name(child) not in task.mail]
        self.was_read = True
