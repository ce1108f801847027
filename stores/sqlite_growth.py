"""The write-ahead log of an SQLite file, grown in one go.

Where a commit makes the log longer, the file system has to write down its new length with it: such a commit takes half
as long again. SQLite overwrites a log from its start after each checkpoint, and never makes it shorter; so it costs
that only until it is as long as it is between two checkpoints.
"""

import os
import sqlite3
from contextlib import suppress

MOST = 4 << 20
"""Bytes to which a log is grown at most."""
_SPILL = 8
"""Pages that the cache holds meanwhile: what does not fit is written to the log."""


def grow_log(connection: sqlite3.Connection, path: str) -> None:
    """Make the log as long as it is between two checkpoints, if it is not half as long already.

    It is done with what is never committed, which SQLite itself passes over, also where the process dies in the middle.
    A courtesy: what keeps it from being done, such as a full disk or another writer, is nobody's error. The connection
    is for nothing else.
    """
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA wal_autocheckpoint").fetchone()
    size = min(MOST, page * pages)
    with suppress(sqlite3.Error, OSError):
        if os.path.getsize(path + "-wal") >= size // 2:
            return
        connection.execute(f"PRAGMA cache_size={_SPILL}")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE grown (bytes)")
        connection.execute("INSERT INTO grown VALUES (zeroblob(?))", (size - size // 16,))
    if connection.in_transaction:
        connection.rollback()
