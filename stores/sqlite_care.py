"""What is done with an SQLite file now and then, outside every transaction, by a connection of its own.

What was deleted is overwritten with zeros (`secure_delete`), but two things keep it longer: the write-ahead log has
pages as they were before, and SQLite leaves copies behind where it moves rows from page to page. An emptied log ends
the first, VACUUM the second.
"""

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from time import monotonic
from typing import Any

from stores.sqlite_file import SQLiteFile

LONGEST_CHECKPOINT = 5.0
"""Seconds for which the write-ahead log is tried to be emptied, while others read."""
MOST = 100
"""Values of a wrong type that are named of one table."""


def empty_journal(file: SQLiteFile) -> bool:
    """Move what is in the write-ahead log into the database, and cut the log to nothing; False where readers hold it.

    Raises StoreUnavailableError.
    """
    with file.aside() as connection:
        until = monotonic() + min(LONGEST_CHECKPOINT, file.timeout)
        while True:
            ((is_busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if not is_busy:
                return True
            if file.hurried or monotonic() >= until:
                return False


def vacuum(file: SQLiteFile) -> None:
    """Make the file anew of what is in it. Raises StoreUnavailableError where it stays locked, or the disk is full."""
    with file.aside() as connection:
        until = monotonic() + file.timeout
        while True:
            try:
                connection.execute("VACUUM")
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or file.hurried or monotonic() >= until:
                    raise
            else:
                return


def damages(file: SQLiteFile, statements: Collection[str], *, is_current: bool) -> Iterator[str]:
    """Have SQLite look through all pages and indexes; compare what the file is made of with what it should be.

    `statements`: what makes a new file; `is_current`: whether this one is of their schema, else only what its tables
    hold is looked at.
    """
    with file.aside() as connection, closing(sqlite3.connect(":memory:")) as new:
        for statement in statements:
            new.execute(statement)
        for (text,) in connection.execute("PRAGMA integrity_check"):
            if text != "ok":
                yield from str(text).splitlines()
        if is_current:
            yield from _unlike(_made_of(connection), _made_of(new))
        for table in sorted(_tables(connection) & _tables(new)):
            yield from _mistyped(connection, table, new.execute(f"PRAGMA table_info({table})").fetchall())


_Object = tuple[str, str, str]
"""Kind and name of a table, index or trigger, and the table to which it belongs."""


def _made_of(connection: sqlite3.Connection) -> dict[_Object, str]:
    """Give what a file consists of, with the words that made it, but for their spaces and quotes."""
    sql = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    return {tuple(key): "".join(words.replace('"', "").split()) for *key, words in connection.execute(sql)}


def _unlike(found: dict[_Object, str], expected: dict[_Object, str]) -> Iterator[str]:
    """Say what is missing, is another, or has been added to a table of ours; tables of others are theirs."""
    ours = {table for _, _, table in expected}
    for one in sorted(expected.keys() | {one for one in found if one[2] in ours}):
        kind, name, table = one
        if one not in found:
            yield f"the {kind} {name} is missing"
        elif one not in expected:
            yield f"the {kind} {name} of table {table} is none of perdure's"
        elif found[one] != expected[one]:
            yield f"the {kind} {name} is not made as perdure makes it: a column, key or condition of it was changed"


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}


def _mistyped(connection: sqlite3.Connection, table: str, columns: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Name values of another type than their column's, at most a hundred: SQLite takes any anywhere."""
    known = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
    keys = ", ".join(name for _, name, *_, key in sorted(columns, key=lambda one: one[-1]) if key and name in known)
    found = 0
    for _, name, kind, *_ in columns:
        if name in known:
            sql = f"SELECT typeof({name}), {keys} FROM {table} WHERE typeof({name}) NOT IN ('null', ?) LIMIT ?"
            for other, *key in connection.execute(sql, (kind.lower(), MOST - found)):
                found += 1
                yield f"{table} has a value of type {other} as {name}, which is {kind}, where {keys} is {key!r:.200}"
