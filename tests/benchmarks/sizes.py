"""How many bytes of the file a step takes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from actors import Agent
from tests.benchmarks.steps import KINDS, new_folder, run

STEPS = 2000


def bytes_a_step(folder: Path, kind: str) -> float:
    """Give the growth of the file over many steps of one task, its write-ahead log moved into it."""
    agent, _ = KINDS[kind]
    return (_size_after(folder, agent, STEPS) - _size_after(folder, agent, 0)) / STEPS


def _size_after(folder: Path, agent: Agent[[int], None], steps: int) -> int:
    with new_folder(folder) as place:
        path = place / "perdure.db"
        run(f"sqlite:///{path}", agent, steps)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path.stat().st_size
