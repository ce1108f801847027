"""The task index: one row a task, written in the transaction of the task's own events.

It holds what a list, a claim and a compare-and-swap ask for, so that none of them reads a log. The store
gives the columns no meaning beyond that: what a status is, and when a task is due, is decided above.
"""

import math
import sys
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from eventsourcing.persistence import StoredEvent

Expected: TypeAlias = tuple[str, int] | None
"""What an append expects to find: (birth, head), or None for no row."""

Place: TypeAlias = tuple[float, str]
"""Where a row stands in an order by time: (Unix seconds, id)."""

START: Place = (-math.inf, "")
"""Before every row."""


class IndexRow(NamedTuple):
    """One task in the index.

    `id`, `birth`: which task, and which life of that id. `head`: version of its last event. `activation`:
    number of its newest activation. `created`, `updated`: Unix seconds. `due`: Unix seconds from which it
    may be claimed, None when it is not to be. `owner`: id of the worker that has it. `strikes`: a count.
    `hold`: the kind of hold. `note`: one line for a list.
    """

    id: str
    birth: str
    head: int
    activation: int
    status: str
    agent: str
    created: float
    updated: float
    due: float | None = None
    owner: str | None = None
    strikes: int = 0
    hold: str | None = None
    note: str = ""


class Birth(NamedTuple):
    """A task that is made in the append of another: its first event, and its index row."""

    event: StoredEvent
    entry: IndexRow


_FIRST_SURROGATE, _LAST_SURROGATE = 0xD800, 0xDFFF

COLUMNS = IndexRow._fields
_ALL = ", ".join(COLUMNS)
FIRM = ("agent", "created", "due")
FREE = [name for name in COLUMNS if name not in ("id", "birth", *FIRM)]

CREATE = [
    """CREATE TABLE IF NOT EXISTS task_index (
        id TEXT PRIMARY KEY, birth TEXT NOT NULL, head INTEGER NOT NULL, activation INTEGER NOT NULL,
        status TEXT NOT NULL, agent TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
        due REAL, owner TEXT, strikes INTEGER NOT NULL, hold TEXT, note TEXT NOT NULL
    ) WITHOUT ROWID""",
]
# A worker asks only for tasks of agents that it knows: by this it steps over any number of others.
CREATE_READY = "CREATE INDEX IF NOT EXISTS task_ready ON task_index (agent, due) WHERE due IS NOT NULL"
DROP_DUE = "DROP INDEX IF EXISTS task_due"  # of the first files: every change of `due` had to write it too
# What is held is little and changes seldom; an append to a task that is not held touches no page of this.
CREATE_HELD = "CREATE INDEX IF NOT EXISTS task_held ON task_index (hold, updated) WHERE hold IS NOT NULL"
INSERT = f"INSERT INTO task_index ({_ALL}) VALUES ({', '.join('?' * len(COLUMNS))}) ON CONFLICT (id) DO NOTHING"
_KEY = "WHERE id=? AND birth=? AND head=?"
# Most appends leave these alone. Saying so spares each of them the page of the index on agent and due.
UPDATE_STEADY = (
    f"UPDATE task_index SET {', '.join(f'{name}=?' for name in FREE)} {_KEY}"
    f" AND {' AND '.join(f'{name} IS ?' for name in FIRM)}"
)
UPDATE = f"UPDATE task_index SET {', '.join(f'{name}=?' for name in COLUMNS[1:])} {_KEY}"
DELETE_ALL = "DELETE FROM task_index"
DELETE = f"{DELETE_ALL} {_KEY}"
SELECT = f"SELECT {_ALL} FROM task_index"
SELECT_ONE = f"{SELECT} WHERE id=?"
SELECT_PAGE = f"{SELECT} WHERE id>? ORDER BY id LIMIT ?"
SELECT_HELD = f"{SELECT} WHERE hold=? AND (updated, id)>(?, ?) ORDER BY updated, id LIMIT ?"


def place(row: IndexRow) -> Place:
    """Give where a row that is due stands among those that are."""
    return (math.inf if row.due is None else row.due), row.id


def steady_values(entry: IndexRow, key: tuple[str, str, int]) -> tuple[object, ...]:
    """Give the parameters of `UPDATE_STEADY`. `key`: id, birth and head of the row."""
    return (
        entry.head,
        entry.activation,
        entry.status,
        entry.updated,
        entry.owner,
        entry.strikes,
        entry.hold,
        entry.note,
        *key,
        entry.agent,
        entry.created,
        entry.due,
    )


def one_of(column: str, choices: Iterable[object], *, negate: bool = False) -> tuple[str, list[object]]:
    """Give the SQL and the parameters of "column is (not) one of these".

    >>> one_of("status", ["held", "queued"])
    ('status IN (?, ?)', ['held', 'queued'])
    """
    params = list(choices)
    return f"{column} {'NOT IN' if negate else 'IN'} ({', '.join('?' * len(params))})", params


def first_due(agents: Collection[str], comparison: str) -> str:
    """Give the SQL of "by agent, its first due time that compares so": a step into the index for each, no scan.

    >>> print(first_due(["f", "g"], ">?").partition(" SELECT ")[0])
    WITH known(agent) AS (VALUES (?), (?))
    """
    known = f"WITH known(agent) AS (VALUES {', '.join(['(?)'] * len(agents))})"
    first = f"SELECT min(due) FROM task_index WHERE agent=known.agent AND due{comparison}"
    return f"{known} SELECT agent, ({first}) FROM known"


def begins_with(prefix: str) -> tuple[str, list[object]]:
    """Give the SQL and the parameters of "the id begins with this text": a range of the primary key.

    SQLite compares texts by their bytes, and UTF-8 keeps the order of code points: so the ids wanted stand
    from the text itself up to the first that no longer begins with it. (LIKE would take `%` for anything
    and `A` for `a`.)

    >>> begins_with("mail-")
    ('id>=? AND id<?', ['mail-', 'mail.'])
    """
    if any(_FIRST_SURROGATE <= ord(character) <= _LAST_SURROGATE for character in prefix):
        return "FALSE", []  # an argument of a command may have one, a stored text never: UTF-8 cannot say it
    stem = prefix.rstrip(chr(sys.maxunicode))
    if not stem:
        return "id>=?", [prefix]
    following = ord(stem[-1]) + 1
    if following == _FIRST_SURROGATE:
        following = _LAST_SURROGATE + 1
    return "id>=? AND id<?", [prefix, stem[:-1] + chr(following)]
