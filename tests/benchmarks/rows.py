"""Tasks by the hundred thousand, written past perdure: an index row and a log of one event for each."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from stores import SQLiteStore

STATE = bytes(160)
"""What stands for the state of an event that nobody reads."""


def fill(
    path: Path,
    count: int,
    *,
    status: str,
    agent: str,
    due: float | None = None,
    hold: str | None = None,
    prefix: str = "benchmark-task",
) -> None:
    """Make `count` tasks, a second apart from `due` on, where that is given."""
    SQLiteStore(str(path)).close()
    numbers = "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < ? - 1)"
    name = "printf('%s-%09d', ?, n)"
    with closing(sqlite3.connect(path)) as connection, connection:
        for quickly in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-200000"):
            connection.execute(f"PRAGMA {quickly}")
        connection.execute(
            f"INSERT INTO task_index {numbers}"
            f" SELECT {name}, hex(randomblob(8)), 1, 0, ?, ?, 1.0, 1.0, ? + n, NULL, 0, ?, 'asleep' FROM numbers",
            (count, prefix, status, agent, due, hold),
        )
        connection.execute(
            f"INSERT INTO stored_events {numbers} SELECT {name}, 1, 'task.created', ? FROM numbers",
            (count, prefix, STATE),
        )
