"""Appends to an SQLite file: each by itself, or many in two statements.

Python lets other threads run during each statement, and then has to wait for them: in a busy process that waiting
costs more than the statement. So what stands in one transaction is written by as few as can be.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eventsourcing.persistence import StoredEvent

from stores import task_index
from stores.errors import AppendConflictError
from stores.task_index import COLUMNS, FIRM, FREE, Birth, Expected, IndexRow

EVENTS = "stored_events"
_INSERT_EVENTS = f"INSERT INTO {EVENTS} (originator_id, originator_version, topic, state) VALUES "
_EVENT = "(?, ?, ?, ?)"
_INSERT_EVENT = _INSERT_EVENTS + _EVENT
_WANT = f"({', '.join('?' * (len(COLUMNS) + 2))})"
_NUMBER = {name: number for number, name in enumerate(COLUMNS, 1)}


def _swap_all(names: Sequence[str], more: str) -> str:
    """Give the SQL that sets these columns of many rows, where birth and head are as expected."""
    settings = ", ".join(f"{name}=want.column{_NUMBER[name]}" for name in names)
    key = f"t.id=want.column1 AND t.birth=want.column{len(COLUMNS) + 1} AND t.head=want.column{len(COLUMNS) + 2}"
    return f"UPDATE task_index AS t SET {settings} FROM (VALUES {{}}) AS want WHERE {key}{more}"


_SWAP_STEADY = _swap_all(FREE, "".join(f" AND t.{name} IS want.column{_NUMBER[name]}" for name in FIRM))
_SWAP_REST = _swap_all(COLUMNS[1:], "")
INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""What hits the thread that writes, and is the error of none of those for whom it writes."""
CAN_FOLD = sqlite3.sqlite_version_info >= (3, 33)
"""Whether this SQLite knows UPDATE … FROM, and statements of more than 999 parameters."""
CHUNKS = (32, 16, 8, 4, 2, 1)
"""Rows that one statement has: few texts, so that each is prepared once and kept."""


@dataclass(slots=True)
class Append:
    """One append, done by calling it with a cursor in a transaction."""

    events: Sequence[StoredEvent]
    entry: IndexRow
    expected: Expected
    inside: Callable[[], None] | None
    births: Sequence[Birth]
    url: str

    @property
    def size(self) -> int:
        """Bytes that it writes, about."""
        size = 0
        for event in self.events:
            size += len(event.state) if type(event.state) is bytes else 0
        return size

    def __call__(self, cursor: sqlite3.Cursor) -> None:
        """Swap the index row and insert the events. Raises AppendConflictError, sqlite3.Error, what `inside` raises."""
        swap(cursor, self.entry, self.expected, self.url)
        for birth in self.births:
            swap(cursor, birth.entry, None, self.url)
        _insert(cursor, [*self.events, *(birth.event for birth in self.births)] if self.births else self.events)
        if self.inside is not None:
            self.inside()


class Missed(Exception):  # noqa: N818  no error: it says that another way has to be taken
    """Not all of several appends could be done at once; what was written has to be undone."""


def swap(cursor: sqlite3.Cursor, entry: IndexRow, expected: Expected, url: str) -> None:
    """Compare an index row, and set it. Raises AppendConflictError with nothing written."""
    if expected is None:
        swapped = cursor.execute(task_index.INSERT, entry).rowcount
    else:
        key, swapped = (entry.id, *expected), 0
        if _keeps_birth(entry, expected):
            swapped = cursor.execute(task_index.UPDATE_STEADY, task_index.steady_values(entry, key)).rowcount
        swapped = swapped or cursor.execute(task_index.UPDATE, (*entry[1:], *key)).rowcount
    if not swapped:
        raise conflict(cursor, entry.id, expected, url)


def conflict(cursor: sqlite3.Cursor, task_id: str, expected: Expected, url: str) -> AppendConflictError:
    """Give the error of an index row that is not as expected, and say what it is."""
    rows = cursor.execute(task_index.SELECT_ONE, (task_id,)).fetchall()
    return AppendConflictError(expected, IndexRow(*rows[0]) if rows else None, task_id, url)


def fold(cursor: sqlite3.Cursor, works: Sequence[object]) -> set[int]:
    """Do in one go what goes together of these, and give their places; nothing where too few would.

    Raises Missed where one of them fails.
    """
    places = list(_distinct(works)) if CAN_FOLD and len(works) > 1 else []
    appends = [work for place in places if isinstance(work := works[place], Append)]
    if len(appends) < 2:
        return set()
    wants = [(*append.entry, *(append.expected or ())) for append in appends]
    swapped = sum(_swapped(cursor, chunk) for chunk in _chunks(wants))
    if swapped < len(appends):
        raise Missed
    _insert(cursor, [event for append in appends for event in append.events])
    try:
        for append in appends:
            if append.inside is not None:
                append.inside()
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise Missed from error
    return set(places)


def _swapped(cursor: sqlite3.Cursor, wants: list[Any]) -> int:
    """Swap rows and tell how many; first those whose place in the index on agent and due stays what it is."""
    values, params = _rows(_WANT, wants), _flat(wants)
    count = cursor.execute(_SWAP_STEADY.format(values), params).rowcount
    return count if count == len(wants) else count + cursor.execute(_SWAP_REST.format(values), params).rowcount


def _distinct(works: Sequence[object]) -> Iterator[int]:
    """Give the places of appends to tasks that are there, of each task the first."""
    seen = set[str]()
    for place, work in enumerate(works):
        if not isinstance(work, Append) or work.births or work.entry.id in seen:
            continue
        if _keeps_birth(work.entry, work.expected):
            seen.add(work.entry.id)
            yield place


def _keeps_birth(entry: IndexRow, expected: Expected) -> bool:
    """Tell whether a row goes on as the same life of its id: the texts that leave columns alone leave that, too."""
    return expected is not None and entry.birth == expected[0]


def _insert(cursor: sqlite3.Cursor, events: Sequence[StoredEvent]) -> None:
    rows = [(event.originator_id, event.originator_version, event.topic, event.state) for event in events]
    if len(rows) == 1:
        cursor.execute(_INSERT_EVENT, rows[0])
        return
    for chunk in _chunks(rows):
        cursor.execute(_INSERT_EVENTS + _rows(_EVENT, chunk), _flat(chunk))


def _rows(one: str, chunk: Sequence[object]) -> str:
    return one if len(chunk) == 1 else ", ".join([one] * len(chunk))


def _flat(chunk: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
    return chunk[0] if len(chunk) == 1 else [value for row in chunk for value in row]


def _chunks(rows: list[Any]) -> Iterator[list[Any]]:
    """Cut rows into pieces of the sizes that statements are kept for.

    >>> [len(piece) for piece in _chunks([0] * 45)]
    [32, 8, 4, 1]
    """
    start = 0
    for size in CHUNKS:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size
