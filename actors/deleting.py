"""Deleting tasks: only what has ended goes, with all that is known of it, and never a word with it that is still owed.

A deletion is one transaction, by compare-and-swap as an append is. Who dies in it has deleted nothing; who writes for
the deleted task afterwards is refused; a later task under its id is another one, with another birth. What other logs
have of it stays: in its parent's its result, in those of entities the keys of what it has asked.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from shlex import quote
from typing import Any

from actors.commit import REINDEX, has_lost_its_row, remove
from actors.mapper import is_stream
from actors.outbox import end_of, tell_parent
from actors.outsiders import Outsiders
from actors.task_log import UNTOLD, TaskLog
from domain.errors import PerdureError, TaskNotEndedError, UnknownTaskError, UnreadableTaskError
from domain.events import Created
from domain.state import ENDED, UNREADABLE
from domain.task import AgentTask
from stores import IndexRow, StoreUnavailableError

logger = logging.getLogger("perdure")

PAGE = 200
"""Index rows that are read at a time."""


def delete_task(
    log: TaskLog, outsiders: Outsiders, task_id: str, *, force: bool = False, birth: str | None = None
) -> None:
    """Delete a task that has ended, once its parent was told how.

    `force`: also one whose log cannot be read, whether it is held for that or its parent is not told yet. `birth`: that
    life of its id alone. Raises UnknownTaskError, TaskNotEndedError, UnreadableTaskError where a parent cannot be told
    or the index has to be made again, the store's errors.
    """

    def prepare(found: IndexRow | None) -> IndexRow:
        if found is not None and birth not in (None, found.birth):
            raise UnknownTaskError(f"task {task_id} was deleted meanwhile, and another has its id", task_id=task_id)
        row = _checked(log, task_id, found, force=force)
        _settle(log, outsiders, row, force=force)
        return row

    remove(log.recorder, task_id, prepare, log.patience.waiter())
    log.hint(task_id)


def delete_ended(log: TaskLog, outsiders: Outsiders, older_than: float, statuses: Collection[str]) -> int:
    """Delete all tasks of these statuses that ended at least so many seconds ago, and count them.

    What cannot be deleted is passed over with a warning. Raises the store's errors: what was deleted by then is gone.
    """
    until, after, deleted = log.now() - older_than, "", 0
    while rows := _page(log, after):
        after = rows[-1].id
        for row in rows:
            if row.status not in statuses or row.updated > until:
                continue
            try:
                delete_task(log, outsiders, row.id, birth=row.birth)
            except UnknownTaskError:
                continue  # another was faster
            except PerdureError as error:
                logger.warning("task %s is not deleted: %s", row.id, error)
            else:
                deleted += 1
    return deleted


def _page(log: TaskLog, after: str) -> list[IndexRow]:
    away = log.patience.waiter()
    while True:
        try:
            return log.recorder.select_page(after=after, limit=PAGE)
        except StoreUnavailableError as error:
            away(error)


def _checked(log: TaskLog, task_id: str, row: IndexRow | None, *, force: bool) -> IndexRow:
    """Give the row of a task that may be deleted."""
    if row is None and not is_stream(task_id) and has_lost_its_row(log.recorder, task_id):
        raise UnreadableTaskError(
            f"task {task_id}: its log is there, its index row is not: first make the index again, by {REINDEX}",
            task_id=task_id,
            version=1,
        )
    if row is None or is_stream(task_id):
        raise UnknownTaskError(f"there is no task {task_id!r} in {log.store.url}", task_id=task_id)
    if row.status in ENDED or (force and row.hold == UNREADABLE):
        return row
    if row.hold == UNREADABLE:
        why = "cannot be read and may be mended, so nothing was deleted; as it is it goes by force, --force"
    elif _is_called_off(log, task_id):
        why = f"was called off and has not ended yet, it is {row.status}, and nothing was deleted: a worker that knows"
        why += f" its agent {row.agent} ends it, perdure worker"
    else:
        why = f"has not ended, it is {row.status}, and nothing was deleted: call it off first, perdure cancel"
        why += f" {quote(task_id)}, or wait for its end"
    raise TaskNotEndedError(f"task {task_id} {why}", task_id=task_id, status=row.status)


def _is_called_off(log: TaskLog, task_id: str) -> bool:
    with suppress(PerdureError):
        return log.load(task_id).cancel is not None
    return False


def _settle(log: TaskLog, outsiders: Outsiders, row: IndexRow, *, force: bool) -> None:
    """See that a task's parent knows of its end before nobody else does any more."""
    child = _untold(log, row, force=force)
    if child is not None and child.ending is not None:
        tell_parent(outsiders, child.parent, [(child.id, child.agent, end_of(child.ending))])
    elif child is None and row.hold in (UNTOLD, UNREADABLE):
        end: dict[str, Any] = {"status": "cancelled", "reason": "it was deleted, since its log could not be read"}
        with suppress(UnreadableTaskError):  # the first row tells whose child it is, if it can be read
            for first in log.events.get(row.id, lte=1):
                if isinstance(first, Created) and first.parent:
                    tell_parent(outsiders, first.parent, [(row.id, row.agent, end)])


def _untold(log: TaskLog, row: IndexRow, *, force: bool) -> AgentTask | None:
    """Give a task whose parent is to be told, unless it cannot be read and goes by force."""
    try:
        return log.load(row.id) if row.hold == UNTOLD else None
    except UnreadableTaskError as error:
        if force:
            return None
        why = f"{error}; its parent was not told of its end yet, so nothing was deleted; as it is it goes by force,"
        raise UnreadableTaskError(f"{why} --force", task_id=row.id, version=error.version) from error
