"""What is wrong with a store, and where: all of it is read and replayed, one log at a time.

Nothing is changed, and workers may be at work meanwhile: what does not fit is read again before it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from shlex import quote

from actors.entity_log import row_of_log
from actors.feed import MOST_CURSOR
from actors.mapper import SEPARATOR, is_stream
from actors.task_log import UNTOLD, TaskLog, index_row
from actors.updates import spoilt
from domain.errors import UnreadableTaskError
from domain.fold import fold
from domain.state import ENDED, UNREADABLE
from domain.task import AgentTask
from domain.waits import child_name
from stores import IndexRow, StoreCorruptError

PAGE = 500
"""Ids that are read at a time."""
AGAIN = 5
"""How often one log is read at most, while others write it."""
REINDEX = "stop the workers, then: perdure reindex"


@dataclass
class Read:
    """How much was read: logs of tasks and of entities, and their events."""

    tasks: int = 0
    entities: int = 0
    events: int = 0


def verify(log: TaskLog, read: Read) -> Iterator[str]:
    """Give what is wrong, each in a line that says where, and what to do if there is something; `read` is counted on.

    Looked at: what the store is made of, by its own means; the checksum of each row; that versions have no gap; that
    each log can be followed, and ends once, with its last event; that the index has what the logs say; that heartbeats
    and emissions have a task and can be read, and parents have the children whose ends they have not heard of.

    Not looked at: whether today's code fits (`perdure check`), and what the events of entities mean, whose classes need
    not be known. Raises StoreUnavailableError.
    """
    for look in (_damages, _logs, _rows_without_log, _orphans):
        try:
            yield from look(log, read)
        except StoreCorruptError as error:
            yield str(error)


def _damages(log: TaskLog, _: Read) -> Iterator[str]:
    for text in log.store.damages():
        yield f"{log.store.url}: {text}"


def _logs(log: TaskLog, read: Read) -> Iterator[str]:
    after = ""
    while names := log.recorder.select_ids(after=after, limit=PAGE):
        after = names[-1]
        for name in names:
            yield from _one_log(log, name, read)


def _rows_without_log(log: TaskLog, _: Read) -> Iterator[str]:
    after, recorder = "", log.recorder
    while rows := recorder.select_page(after=after, limit=PAGE + 1):  # one more: a second row of the last would be it
        for one, other in pairwise(rows):
            if one.id == other.id:
                yield f"{called(one.id)}: the index has two rows of it; {REINDEX}"
        rows = rows[:PAGE]
        after = rows[-1].id
        for row in rows:
            if not recorder.select_events(row.id, limit=1) and recorder.select_entry(row.id) == row:
                yield f"{called(row.id)}: the index has a row of it, and its log is gone; {REINDEX}"


def _orphans(log: TaskLog, _: Read) -> Iterator[str]:
    for table, task_id, birth, rows in log.recorder.select_orphans():
        yield f"{called(task_id)}: {table} of birth {birth} that no task has, {rows:,}; they go by: perdure vacuum"


# ------------------------------------------------------------------ one log

Fault = str
"""What is wrong with a log, behind the name of its task or entity."""


def _one_log(log: TaskLog, name: str, read: Read) -> Iterator[str]:
    """Read one log and its index row, until nothing is wrong or nobody changes it meanwhile."""
    look: Callable[[TaskLog, str, IndexRow | None], tuple[int, list[Fault]]]
    look = _entity if is_stream(name) else _task
    events, faults = 0, list[Fault]()
    try:
        row = log.recorder.select_entry(name)
        for _ in range(AGAIN):
            events, faults = look(log, name, row)
            before, row = row, log.recorder.select_entry(name)
            if not faults or row == before:
                break
    except StoreCorruptError as error:
        faults = [str(error)]
    there = events > 0 or bool(faults)  # it may have been deleted meanwhile
    read.entities += there and is_stream(name)
    read.tasks += there and not is_stream(name)
    read.events += events
    for fault in faults:
        yield f"{called(name)}: {fault}"


def _task(log: TaskLog, task_id: str, row: IndexRow | None) -> tuple[int, list[Fault]]:
    """Replay a log; gives the number of events that could be read, and what is wrong."""
    task: AgentTask | None = None
    version, faults = 0, list[Fault]()
    try:
        for event in log.events.get(task_id):
            version = event.originator_version
            if task is not None and task.ending is not None:
                faults.append(f"version {version} is {event.TOPIC}, and it ended before, by {task.ending.TOPIC}")
            task = fold(task, [event])
    except UnreadableTaskError as error:
        ended = row is not None and row.status in ENDED
        again = "" if ended else f"; mended, it goes on after: perdure release {quote(task_id)}"
        return version, [*faults, f"{str(error).removeprefix(f'task {task_id}: ')}{again}"]
    except Exception as error:  # whatever a fold makes of events that no release has written
        return version, [*faults, f"version {version} cannot follow those before: {type(error).__name__}: {error}"]
    if task is None:  # it was deleted meanwhile
        return 0, []
    more = (_row_faults(index_row(task), row), _missing_children(log, task), _emission_faults(log, task))
    return version, [*faults, *chain.from_iterable(more)]


def _row_faults(said: IndexRow, row: IndexRow | None) -> Iterator[Fault]:
    """Compare an index row with what its log says; whether a parent was told of an end is in no log."""
    if row is None:
        yield f"the index has no row of it; {REINDEX}"
        return
    if row.hold == UNREADABLE:
        yield f"its log can be read, and it is still held: perdure release {quote(row.id)}"
        return
    if said.hold == UNTOLD and row.hold is None:
        said = said._replace(hold=None)
    for name, ours, theirs in zip(said._fields, said, row, strict=True):
        if ours != theirs and name != "note":  # which is written for people, by the perdure of that day
            yield f"its index row has {name} {theirs!r}, its log says {ours!r}; {REINDEX}"


def _missing_children(log: TaskLog, task: AgentTask) -> Iterator[Fault]:
    if task.ending is None:
        unheard = [child for child in task.children if child_name(child) not in task.mail]
        for child in sorted({*unheard} - log.recorder.select_rows(unheard).keys()):
            yield f"its child {child} is gone, and it was told of no end: perdure cancel {quote(task.id)}"


def _emission_faults(log: TaskLog, task: AgentTask) -> Iterator[Fault]:
    """Look at what a task has emitted; numbers are compared only within a page: others may cut off the oldest."""
    after, bound = (-MOST_CURSOR, 0), MOST_CURSOR
    while rows := log.recorder.select_emissions(task.id, task.birth, after=after, upto=bound, limit=PAGE):
        number: int | None = None
        for row in rows:
            place = f"what it emitted, {row.base!s:.40}.{row.number!s:.40},"
            if why := spoilt(row):
                yield f"{place} cannot be read: {why}"
                if why.startswith(("its base", "its number")):
                    return
            elif not 0 < row.base <= task.version:
                yield f"{place} is of version {row.base}, and its log ends at version {task.version}"
            elif number is not None and row.number != number + 1:
                yield f"{place} does not follow number {number}: what is between them is lost"
            number = row.number
        after = (rows[-1].base, rows[-1].number)


def _entity(log: TaskLog, stream: str, row: IndexRow | None) -> tuple[int, list[Fault]]:
    rows = log.recorder.select_events(stream)
    if not rows:
        return 0, []
    try:
        said = row_of_log(stream, rows)
    except ValueError as error:
        return len(rows), [str(error)]
    return len(rows), [*_row_faults(said, row)]


def called(name: str | bytes) -> str:
    """Say of what a log or a row is.

    >>> called("t"), called("budget\\x1fteam-7")
    ('task t', 'entity budget team-7')
    """
    if not isinstance(name, str):  # SQLite takes bytes for an id too
        return f"the id {name!r:.100}"
    return f"entity {name.replace(SEPARATOR, ' ')}" if is_stream(name) else f"task {name}"
