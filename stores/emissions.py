"""Emissions: what running code has said, the newest rows of each task; never an event, and part of no state.

A row's `base` is the head of its task's log when it was committed. So (base, number) is the order of commits, that of
events too: a row of base v was committed after event v and before event v+1.
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

EMIT, RESET = "emit", "reset"

MOST_EMISSIONS = 10_000
"""Rows that are kept of a task: the newest."""
LAST_NUMBER = 2**24 - 1
"""The number after which nothing more of a task is stored: more than 40 hours of a hundred rows a second."""


class Emission(NamedTuple):
    """What one line of running code has said, or that what its `path` has said so far counts no more (a reset).

    `value`: any text; it has no meaning here. `at`: Unix seconds. `base` and `number`, from 1, are the store's to give.
    """

    path: str
    attempt: int
    activation: int
    kind: str
    channel: str
    value: str
    at: float
    base: int = 0
    number: int = 0


CREATE = """CREATE TABLE IF NOT EXISTS emissions (
    task_id TEXT NOT NULL, birth TEXT NOT NULL, base INTEGER NOT NULL, number INTEGER NOT NULL,
    path TEXT NOT NULL, attempt INTEGER NOT NULL, activation INTEGER NOT NULL, kind TEXT NOT NULL,
    channel TEXT NOT NULL, at REAL NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (task_id, birth, base, number)
) WITHOUT ROWID"""
_COLUMNS = ", ".join(Emission._fields)
_OF_TASK = "FROM emissions WHERE task_id=? AND birth=?"
_UP, _DOWN = "ORDER BY base, number", "ORDER BY base DESC, number DESC"
SELECT = f"SELECT {_COLUMNS} {_OF_TASK} AND (base, number)>(?, ?) AND base<=? {_UP} LIMIT ?"
DELETE = "DELETE FROM emissions WHERE task_id=?"
_ROW = "SELECT head, activation FROM task_index WHERE id=? AND birth=?"
_LAST = f"SELECT base, number {_OF_TASK} {_DOWN} LIMIT 1"
_KIND = f"SELECT kind {_OF_TASK} AND path=? {_DOWN} LIMIT 1"
_NTH = f"SELECT base, number {_OF_TASK} {_UP} LIMIT 1 OFFSET ?"
_TRIM = f"DELETE {_OF_TASK} AND (base, number)<(?, ?)"
_INSERT = f"INSERT INTO emissions (task_id, birth, {_COLUMNS}) VALUES (?, ?, {', '.join('?' * len(Emission._fields))})"


def save(cursor: sqlite3.Cursor, task_id: str, birth: str, rows: Sequence[Emission]) -> None:
    """Do what `TaskRecorder.save_emissions` says, inside a transaction."""
    key = (task_id, birth)
    found = cursor.execute(_ROW, key).fetchall()
    if not found:
        return
    ((head, newest),) = found
    last = cursor.execute(_LAST, key).fetchall()
    if not last:
        cursor.execute(DELETE, (task_id,))  # of an older birth
    base, number = last[0] if last else (0, 0)
    base = max(base, head)
    for row in rows:
        if row.activation < newest or number == LAST_NUMBER or not _counts(cursor, key, row):
            continue
        number += 1
        cursor.execute(_INSERT, (*key, *row._replace(base=base, number=number)))
    _trim(cursor, key, number)


def _counts(cursor: sqlite3.Cursor, key: tuple[str, str], row: Emission) -> bool:
    """Tell whether a row is to be stored: a reset only where there is something to reset."""
    return row.kind != RESET or cursor.execute(_KIND, (*key, row.path)).fetchall() == [(EMIT,)]


def _trim(cursor: sqlite3.Cursor, key: tuple[str, str], number: int) -> None:
    """Keep the newest rows: their numbers have no gap, so the oldest one's tells how many there are."""
    oldest = cursor.execute(_NTH, (*key, 0)).fetchall()
    surplus = number - MOST_EMISSIONS - oldest[0][1] + 1 if oldest else 0
    if surplus > 0:
        ((base, first),) = cursor.execute(_NTH, (*key, surplus)).fetchall()
        cursor.execute(_TRIM, (*key, base, first))
