"""What is done with an SQLite file now and then, outside every transaction, by a connection of its own.

What was deleted is overwritten with zeros (`secure_delete`), but two things keep it longer: the write-ahead log has
pages as they were before, and SQLite leaves copies behind where it moves rows from page to page. An emptied log ends
the first, VACUUM the second.
"""

import sqlite3
from collections.abc import Iterator
from time import monotonic

from stores.sqlite_file import SQLiteFile

LONGEST_CHECKPOINT = 5.0
"""Seconds for which the write-ahead log is tried to be emptied, while others read."""


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


def damages(file: SQLiteFile) -> Iterator[str]:
    """Have SQLite look through all pages and indexes, and give what it finds, at most a hundred."""
    with file.aside() as connection:
        for (text,) in connection.execute("PRAGMA integrity_check"):
            if text != "ok":
                yield from str(text).splitlines()
