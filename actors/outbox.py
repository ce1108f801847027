"""Parents are told how their children have ended: the index has who was not told, so that no death loses a word.

A child's ending and the mark that its parent is to be told stand in one transaction. Whoever finds the mark puts the
word into the parent's log, once, and takes the mark away; in between anybody may die.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from actors.appender import Appender
from actors.task_log import UNTOLD, TaskLog
from domain.errors import PerdureError, SignalConflictError, TaskEndedError, UnknownTaskError
from domain.events import Cancelled, Completed, Failed, TaskEvent
from domain.task import AgentTask
from domain.waits import child_name
from stores import AppendConflictError, IndexRow

logger = logging.getLogger("perdure")

PAGE = 100
"""Children whose ends are told at a time."""


def end_of(ending: Completed | Failed | Cancelled) -> dict[str, Any]:
    """Give what a parent is told of a child's end: its status, and its value, error or reason."""
    if isinstance(ending, Completed):
        return {"status": "completed", "value": ending.value}
    if isinstance(ending, Failed):
        return {"status": "failed", "error": ending.error}
    return {"status": "cancelled", "reason": ending.reason}


class Outbox:
    """Tells parents. For one thread.

    `ring` is told of each parent that has news. A word that cannot be told, for its parent cannot be read, is tried
    again by the next worker.
    """

    def __init__(self, log: TaskLog, ring: Callable[[str], None]) -> None:
        self._log = log
        self._ring = ring
        self._given_up: set[tuple[str, str]] = set()

    def empty(self) -> bool:
        """Tell some, if there are any; tells whether there may be more. Raises the store's errors."""
        found = self._log.recorder.select_held(UNTOLD, limit=PAGE + len(self._given_up))
        rows = [row for row in found if (row.id, row.birth) not in self._given_up]
        families: dict[str, list[tuple[IndexRow, AgentTask]]] = {}
        for row in rows:
            try:
                child = self._log.load(row.id)
            except PerdureError as error:
                self._give_up([row], error)
            else:
                families.setdefault(child.parent, []).append((row, child))
        for parent, children in families.items():
            self._tell(parent, children)
        return len(rows) >= PAGE

    def _tell(self, parent: str, children: Iterable[tuple[IndexRow, AgentTask]]) -> None:
        rows = [row for row, _ in children]
        try:
            appender = Appender(self._log, self._log.load(parent))
            appender.append(lambda task, now: _words(task, now, [child for _, child in children]))
        except (UnknownTaskError, TaskEndedError):
            pass  # nobody asks any more
        except PerdureError as error:
            self._give_up(rows, error)
            return
        self._ring(parent)
        for row in rows:
            with suppress(AppendConflictError):  # another was faster
                self._log.recorder.update_index(row._replace(hold=None), expected=(row.birth, row.head))

    def _give_up(self, rows: Iterable[IndexRow], error: Exception) -> None:
        for row in rows:
            logger.warning("the parent of task %s is not told of its end: %s", row.id, error)
            self._given_up.add((row.id, row.birth))


def _words(parent: AgentTask, now: float, children: Iterable[AgentTask]) -> list[TaskEvent]:
    """Give what the parent's log gets: the ends of those that it has spawned and does not know of."""
    events: list[TaskEvent] = []
    for child in children:
        if child.ending is None or child.id not in parent.children:
            continue
        name = child_name(child.id)
        with suppress(SignalConflictError, TaskEndedError):
            events += parent.receive(now, name, name, end_of(child.ending), child.agent, after=len(events))
    return events
