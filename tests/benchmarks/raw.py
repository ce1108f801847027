"""What there is to compare with: the disk, and a database driver with nothing around it, one insert to a commit."""

from __future__ import annotations

import os
import sqlite3
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.benchmarks.contender import path_of
from tests.benchmarks.work import stamps, work

BLOCK = 4096
TASK = "benchmark-task-000000001"
"""The id of the task: 24 characters."""
STATE = os.urandom(160)
"""As long as the state in the row of a finished step of perdure's."""
TABLE = "CREATE TABLE IF NOT EXISTS rows (id TEXT, v INTEGER, topic TEXT, state {}, PRIMARY KEY (id, v))"


def fdatasync_seconds(folder: Path, writes: int = 200) -> float:
    """Give the median time of a write of 4 KiB at the end of a file, and its fdatasync."""
    times = []
    with open(folder / "block", "wb", buffering=0) as file:
        for _ in range(writes):
            started = perf_counter()
            file.write(bytes(BLOCK))
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            times.append(perf_counter() - started)
    os.unlink(folder / "block")
    return statistics.median(times)


class Raw:
    """One connection; a step is one row in one transaction, as durable as perdure's."""

    _insert: Callable[[str, int], object]
    _execute: Callable[[str], Any]

    @contextmanager
    def open(self, url: str) -> Iterator[None]:
        """Connect, and make the table."""
        self._version = 0
        with self._sqlite(path_of(url)) if url.startswith("sqlite") else self._postgres(url):
            yield

    @contextmanager
    def _sqlite(self, path: str) -> Iterator[None]:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", TABLE.format("BLOB")):
                connection.execute(statement)
            self._execute = execute = connection.execute

            def insert(name: str, version: int) -> None:
                execute("BEGIN IMMEDIATE")
                execute("INSERT INTO rows VALUES (?, ?, 'step.succeeded', ?)", (name, version, STATE))
                execute("COMMIT")

            self._insert = insert
            yield

    @contextmanager
    def _postgres(self, url: str) -> Iterator[None]:
        import psycopg  # the extra `bench` brings it

        with psycopg.connect(url, autocommit=True) as connection:
            self._execute = connection.execute
            connection.execute(TABLE.format("BYTEA"))
            insert = "INSERT INTO rows VALUES (%s, %s, 'step.succeeded', %s)"
            self._insert = lambda name, version: connection.execute(insert, (name, version, STATE), prepare=True)
            yield

    def run(self, tasks: int, steps: int) -> None:
        """Make as many commits, one after the other."""
        for _ in range(tasks * steps):
            stamps.append(perf_counter())
            self._version += 1
            self._insert(TASK, self._version)

    def begin(self, steps: int) -> None:
        """Commit a row after each body."""
        for number in range(steps):
            work(number)
            self._insert(TASK, number)

    def start_over(self, steps: int) -> None:
        """Read all rows, and run the next body."""
        rows = self._execute(f"SELECT v, topic, state FROM rows WHERE id = '{TASK}' ORDER BY v").fetchall()
        work(len(rows))

    def fall_asleep(self, name: str) -> None:
        """Leave one row."""
        self._insert(name, 1)
