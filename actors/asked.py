"""The approvals of a store that nobody has answered, and to which task one belongs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from actors.task_log import ASKS, TaskLog
from actors.view import open_approvals
from domain.errors import PerdureError, UnknownApprovalError
from domain.state import HOLDS, UNREADABLE
from domain.task import AgentTask
from stores import IndexRow
from stores.task_index import START

logger = logging.getLogger("perdure")

PAGE = 100
"""Rows that are read at a time."""


def tasks_that_ask(log: TaskLog) -> Iterator[AgentTask]:
    """Give the tasks that have asked for an approval which nobody has answered, the longest unchanged first.

    No more is read than those, and what is held. Raises the store's errors.
    """
    for hold in (ASKS, *HOLDS):
        if hold == UNREADABLE:
            continue
        for row in _rows(log, hold):
            try:
                task = log.load(row.id)
            except PerdureError as error:  # deleted meanwhile, or damaged
                logger.debug("task %s is passed over: %s", row.id, error)
                continue
            if open_approvals(task):
                yield task


def _rows(log: TaskLog, hold: str) -> Iterator[IndexRow]:
    after = START
    while rows := log.recorder.select_held(hold, after=after, limit=PAGE):
        yield from rows
        after = rows[-1].updated, rows[-1].id


def task_of(log: TaskLog, approval: str) -> str:
    """Give the id of the task that an approval's id names. Raises UnknownApprovalError where there is none."""
    named = approval.rpartition("@")[0]
    ends = [index for index, character in enumerate(named) if character == "#"]
    for end in reversed(ends):
        if log.recorder.select_entry(named[:end]) is not None:
            return named[:end]
    raise UnknownApprovalError(f"there is no approval {approval!r} in {log.store.url}", task_id="")
