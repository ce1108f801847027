"""The write-ahead log grows in one go, by what is never committed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from actors import AgentSystem, agent, run_step
from stores import Store, open_store
from stores.contract.kit import events, row
from stores.sqlite_growth import grow_log

GROWN = 1_900_000


def log_of(path: Path) -> int:
    return os.path.getsize(f"{path}-wal")


def write(store: Store, numbers: Iterable[int]) -> None:
    for number in numbers:
        name = f"task-{number:03}"
        store.recorder.insert_events(events(name, 1), entry=row(name), expected=None)


def names(count: int) -> list[str]:
    return [f"task-{number:03}" for number in range(count)]


@agent(name="growth: one step")
def one_step() -> str:
    return str(run_step("said", lambda: "done"))


def test_a_worker_has_the_log_grow_once_and_nothing_else_changes(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with AgentSystem(f"sqlite:///{path}", run=False) as client:
        task = client.spawn(one_step)
        before, log = os.path.getsize(path), log_of(path)
        assert log < GROWN // 2
        with AgentSystem(f"sqlite:///{path}"):
            grown = log_of(path)
            assert grown > GROWN
            assert task.result(20) == "done"
        with AgentSystem(f"sqlite:///{path}"):
            assert log_of(path) == grown
        assert os.path.getsize(path) == before
    with closing(sqlite3.connect(path)) as looked:
        assert looked.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert ("grown",) not in looked.execute("SELECT name FROM sqlite_master").fetchall()


@pytest.mark.parametrize("in_the_way", ["a full disk", "another writer"])
def test_what_keeps_it_from_growing_is_nobodys_error(tmp_path: Path, in_the_way: str) -> None:
    path = str(tmp_path / "one.db")
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        for statement in ("page_size=2048", "journal_mode=WAL", "max_page_count=10"):
            connection.execute(f"PRAGMA {statement}").fetchall()
        connection.execute("CREATE TABLE one (id)")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            if in_the_way == "another writer":
                connection.execute("PRAGMA max_page_count=100000").fetchall()
                other.execute("BEGIN IMMEDIATE")
            grow_log(connection, path)
            assert not connection.in_transaction
            assert os.path.getsize(path + "-wal") < GROWN // 2
        connection.execute("PRAGMA max_page_count=100000").fetchall()
        grow_log(connection, path)
        assert os.path.getsize(path + "-wal") > GROWN


DIES = """
import resource, signal, sys
from stores import open_store
from tests.test_sqlite_growth import write

store = open_store(sys.argv[1])
write(store, range(5))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # a file that grows beyond the limit is the end
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
store.prepare_to_write()
"""


@pytest.mark.parametrize("at", [300_000, 1_000_000])
def test_a_death_while_it_grows_leaves_what_was_committed(tmp_path: Path, at: int) -> None:
    path = tmp_path / "tasks.db"
    words = [sys.executable, "-c", DIES, f"sqlite:///{path}", str(at)]
    dead = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert dead.returncode == -signal.SIGXFSZ, dead.stderr
    assert at // 2 < log_of(path) <= at
    with open_store(f"sqlite:///{path}") as store:
        assert store.recorder.select_ids() == names(5)
        assert list(store.damages()) == []
        write(store, range(5, 50))
        assert store.recorder.select_ids() == names(50)
