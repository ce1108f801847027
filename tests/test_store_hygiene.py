"""A deletion in one SQLite file is whole, and leaves no text. What every store does of it: stores/contract."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from eventsourcing.persistence import StoredEvent

from stores import IndexRow, Store, open_store
from stores.contract.hygiene import all_of, furnish, speak

TIMEOUT = 20
ROOT = Path(__file__).parents[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


def bytes_of(path: Path) -> bytes:
    """Give all that stands in the folder of a store: file, write-ahead log, locks."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.rglob("*")) if file.is_file())


def fill(store: Store, seed: int) -> dict[str, IndexRow]:
    """Make tasks whose rows lie between each other, of all sizes, and change them: pages split, rows move."""
    chance, rows = random.Random(seed), dict[str, IndexRow]()
    for number in range(700):
        name = f"t{chance.randrange(20)}"
        secret = f"SECRET-{name}-" * chance.choice([1, 30, 90, 500])
        row = rows.get(name)
        head = 1 if row is None else row.head + 1
        facts = {"due": chance.choice([None, 1.0 * number]), "hold": chance.choice([None, "x"])}
        entry = IndexRow(name, "b", head, 0, "completed", "a", 1.0, 1.0, **facts, note=secret[:200])
        expected = None if row is None else (row.birth, row.head)
        store.recorder.insert_events([StoredEvent(name, head, "t", secret.encode())], entry=entry, expected=expected)
        rows[name] = entry
        if chance.random() < 0.2:
            store.recorder.save_heartbeat(name, "b", str(chance.randrange(3)), number, secret[:300])
        if chance.random() < 0.3:
            speak(store, name, "b", secret[:300])
    return rows


def test_after_a_vacuum_no_text_of_a_deleted_task_is_in_the_file_nor_in_its_write_ahead_log(
    path: Path, seeds: range
) -> None:
    for seed in seeds:
        file = path.parent / str(seed) / "tasks.db"
        file.parent.mkdir()
        with open_store(f"sqlite:///{file}") as store:
            rows = fill(store, seed)
            gone, kept = dict(list(rows.items())[:12]), dict(list(rows.items())[12:])
            assert all(f"SECRET-{name}-".encode() in bytes_of(file) for name in gone)
            for name, row in gone.items():
                store.recorder.delete_task(name, expected=(row.birth, row.head))
            store.vacuum()
            content = bytes_of(file)
            assert [name for name in gone if f"SECRET-{name}-".encode() in content] == []
            assert {row.id: row for row in store.recorder.select_entries()} == kept
            assert all(f"SECRET-{name}-".encode() in content for name in kept)
            assert list(store.damages()) == []


def test_an_emptied_write_ahead_log_is_a_file_without_a_byte_and_what_was_deleted_alone_is_gone(path: Path) -> None:
    with open_store(f"sqlite:///{path}") as store:
        furnish(store, "a", text="SECRET" * 500)
        furnish(store, "b", text="of another")
        store.recorder.delete_task("a", expected=("b", 3))
        assert b"SECRET" in bytes_of(path)
        assert store.empty_journal()
        assert path.with_name("tasks.db-wal").stat().st_size == 0
        assert b"SECRET" not in bytes_of(path)


def test_a_write_ahead_log_that_somebody_reads_is_not_emptied_and_nothing_is_lost(path: Path) -> None:
    with open_store(f"sqlite:///{path}?timeout=0.3") as store, open_store(f"sqlite:///{path}") as other:
        furnish(store, "a")
        reader = other.recorder.datastore._connect("ro")  # type: ignore[attr-defined]
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM stored_events").fetchall()
        furnish(store, "b")
        assert not store.empty_journal()
        reader.close()
        assert store.empty_journal()
        assert store.recorder.select_ids() == ["a", "b"]


DELETER = """
import os, sys, threading
from stores import *
store = open_store(f"sqlite:///{sys.argv[1]}")
rows = store.recorder.select_entries()
print("ready", flush=True)
sys.stdin.readline()
for row in rows:
    store.recorder.delete_task(row.id, expected=(row.birth, row.head))
    print(row.id, flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_between_any_two_instructions_of_a_deletion_leaves_a_task_whole_or_gone(path: Path, seed: int) -> None:
    with open_store(f"sqlite:///{path}") as store:
        for number in range(60):
            furnish(store, f"t{number:02}", head=20, text="x" * 500)
    command = [sys.executable, "-c", DELETER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        timer = threading.Timer(random.Random(seed).uniform(0.001, 0.03), os.kill, (child.pid, signal.SIGKILL))
        timer.start()
        child.stdin.write("go\n")
        child.stdin.flush()
        said = child.stdout.read().split()
        timer.join(TIMEOUT)
    with open_store(f"sqlite:///{path}") as store:
        assert list(store.damages()) == []
        parts = {f"t{number:02}": len(all_of(store, f"t{number:02}")) for number in range(60)}
        assert set(parts.values()) <= {0, 4}
        assert [name for name in said if parts[name]] == [], "what was told as deleted is"
        assert sum(not count for count in parts.values()) <= len(said) + 1
        assert store.recorder.select_orphans() == []
