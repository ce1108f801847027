"""What there is to compare with: the disk, and `sqlite3` with nothing around it."""

from __future__ import annotations

import os
import sqlite3
import statistics
from pathlib import Path
from time import perf_counter

from tests.benchmarks.agents import TASK

BLOCK = 4096


def fdatasync_seconds(folder: Path, writes: int = 200) -> float:
    """Give the median time of a write of 4 KiB at the end of a file, and its fdatasync."""
    times = []
    with open(folder / "block", "wb", buffering=0) as file:
        for _ in range(writes):
            started = perf_counter()
            file.write(bytes(BLOCK))
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            times.append(perf_counter() - started)
    return statistics.median(times)


def commits_per_second(path: Path, commits: int, topic: str, size: int) -> float:
    """Insert rows with a state of `size` bytes into a new file, each in a transaction of its own."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE rows (id TEXT, v INTEGER, topic TEXT, state BLOB, PRIMARY KEY (id, v))")
    state = os.urandom(size)
    started = perf_counter()
    for version in range(commits):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?)", (TASK, version, topic, state))
        connection.execute("COMMIT")
    rate = commits / (perf_counter() - started)
    connection.close()
    return rate
