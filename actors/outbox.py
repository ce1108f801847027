"""Parents are told how their children have ended: the index has who was not told, so that no death loses a word.

A child's ending and the mark that its parent is to be told stand in one transaction. Whoever finds the mark puts the
word into the parent's log, once, and takes the mark away; in between anybody may die.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from actors.outsiders import Outsiders
from actors.task_log import UNTOLD, TaskLog
from domain.errors import PerdureError, SignalConflictError, TaskEndedError, UnknownTaskError, UnreadableTaskError
from domain.events import Completed, Ending, Failed, TaskEvent
from domain.retry import restart_delay
from domain.task import AgentTask
from domain.waits import child_name
from stores import AppendConflictError, IndexRow

logger = logging.getLogger("perdure")

PAGE = 100
"""Children whose ends are told at a time."""


def end_of(ending: Ending) -> dict[str, Any]:
    """Give what a parent is told of a child's end: its status, and its value, error or reason."""
    if isinstance(ending, Completed):
        return {"status": "completed", "value": ending.value}
    if isinstance(ending, Failed):
        return {"status": "failed", "error": ending.error}
    return {"status": "cancelled", "reason": ending.reason}


Ended: TypeAlias = tuple[str, str, dict[str, Any]]
"""A child that has ended: its id, its agent, and what its parent is told of its end."""


def tell_parent(outsiders: Outsiders, parent: str, children: Sequence[Ended]) -> None:
    """Put the ends of children into their parent's log, once; where there is none, or it has ended, nobody asks.

    Raises UnreadableTaskError, the store's errors.
    """
    with suppress(UnknownTaskError, TaskEndedError):
        outsiders.append(parent, lambda task, now: _words(task, now, children))


class Outbox:
    """Tells parents. For one thread.

    `ring` is told of each parent that has news. A word that cannot be told, for a log cannot be read, is tried again,
    after longer and longer; nothing else waits for it.
    """

    def __init__(self, log: TaskLog, ring: Callable[[str], None]) -> None:
        self._log = log
        self._ring = ring
        self._outsiders = Outsiders(log)
        self._put_off: dict[tuple[str, str], tuple[int, float]] = {}

    def empty(self) -> bool:
        """Tell some, if there are any; tells whether there may be more. Raises the store's errors."""
        now = time.monotonic()
        resting = {key for key, (_, until) in self._put_off.items() if until > now}
        found = self._log.recorder.select_held(UNTOLD, limit=PAGE + len(resting))
        rows = [row for row in found if (row.id, row.birth) not in resting]
        families: dict[str, list[tuple[IndexRow, AgentTask]]] = {}
        for row in rows:
            try:
                child = self._child(row)
            except UnknownTaskError:
                continue  # it was deleted meanwhile, and its parent told before
            except PerdureError as error:
                self._rest([row], error)
            else:
                families.setdefault(child.parent, []).append((row, child))
        for parent, children in families.items():
            self._tell(parent, children)
        self._outsiders.tidy()
        return len(rows) >= PAGE

    def _child(self, row: IndexRow) -> AgentTask:
        try:
            return self._log.load(row.id)
        except UnknownTaskError as error:
            if self._log.recorder.select_entry(row.id) is None:
                raise
            raise UnreadableTaskError(f"{error}, but an index row of it", task_id=row.id, version=1) from None

    def _tell(self, parent: str, children: Sequence[tuple[IndexRow, AgentTask]]) -> None:
        rows = [row for row, _ in children]
        ended = [(child.id, child.agent, end_of(child.ending)) for _, child in children if child.ending is not None]
        try:
            tell_parent(self._outsiders, parent, ended)
        except PerdureError as error:
            self._rest(rows, error)
            return
        self._ring(parent)
        for row in rows:
            self._put_off.pop((row.id, row.birth), None)
            with suppress(AppendConflictError):  # the child is another by now
                self._log.recorder.update_index(row._replace(hold=None), expected=(row.birth, row.head))

    def _rest(self, rows: Sequence[IndexRow], error: PerdureError) -> None:
        """Leave children alone for a while; a log that cannot be read is held, unless somebody is at work on it."""
        now = time.monotonic()
        for row in rows:
            tries, _ = self._put_off.get((row.id, row.birth), (0, 0.0))
            if not tries:
                logger.warning("the parent of task %s is not told of its end yet: %s", row.id, error)
            self._put_off[row.id, row.birth] = tries + 1, now + restart_delay(tries + 1)
        if isinstance(error, UnreadableTaskError):
            unread = self._log.recorder.select_entry(error.task_id)
            if unread is not None and unread.owner is None:
                with suppress(AppendConflictError):
                    self._log.mark_unreadable(error)


def _words(parent: AgentTask, now: float, children: Sequence[Ended]) -> list[TaskEvent]:
    """Give what the parent's log gets: the ends of those that it has spawned and does not know of."""
    events: list[TaskEvent] = []
    for child, agent, end in children:
        if child in parent.children:
            name = child_name(child)
            with suppress(SignalConflictError, TaskEndedError):
                events += parent.receive(now, name, name, end, agent, after=len(events))
    return events
