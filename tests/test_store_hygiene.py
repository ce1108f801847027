"""What every store does to stay small and sound: tasks deleted whole, pages by id, orphans, a vacuum, its schema."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventsourcing.persistence import StoredEvent

from stores import AppendConflictError, IndexRow, Store, StoreClosedError, open_store
from stores.crash import CrashingStore, CrashPlan
from stores.emissions import EMIT, Emission
from stores.orphans import Orphans
from stores.schema import SCHEMA

TIMEOUT = 20
ROOT = Path(__file__).parents[1]


@pytest.fixture(params=["memory", "sqlite", "crashing"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_store("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/tasks.db") as store:
        yield CrashingStore(store, CrashPlan(None)) if request.param == "crashing" else store


def create(store: Store, task_id: str, birth: str = "b", head: int = 3, text: str = "text") -> IndexRow:
    """Make a task that has a bit of everything."""
    row = IndexRow(task_id, birth, head, 1, "completed", "agent", 1.0, 2.0, note=f"note {text}")
    events = [StoredEvent(task_id, version, "topic", text.encode()) for version in range(1, head + 1)]
    store.recorder.insert_events(events, entry=row, expected=None)
    store.recorder.save_heartbeat(task_id, birth, "1", 1, f"heartbeat {text}")
    say(store, task_id, birth, text)
    return row


def say(store: Store, task_id: str, birth: str, text: str = "text") -> None:
    store.recorder.save_emissions(task_id, birth, [Emission("1", 1, 1, EMIT, "text", f"emitted {text}", 1.0)])


def all_of(store: Store, task_id: str, birth: str = "b") -> list[object]:
    recorder = store.recorder
    parts = (
        recorder.select_events(task_id),
        recorder.select_entry(task_id),
        recorder.select_heartbeat(task_id, birth, "1"),
        recorder.select_emissions(task_id, birth, upto=99, limit=9),
    )
    return [part for part in parts if part]


def test_a_deleted_task_leaves_nothing_and_its_neighbours_everything(store: Store) -> None:
    for name in ("a", "b", "bb"):
        create(store, name)
    store.recorder.delete_task("b", expected=("b", 3))
    assert all_of(store, "b") == []
    assert [len(all_of(store, name)) for name in ("a", "bb")] == [4, 4]
    assert store.recorder.select_ids() == ["a", "bb"]
    assert [row.id for row in store.recorder.select_entries()] == ["a", "bb"]
    assert store.recorder.select_orphans() == []


@pytest.mark.parametrize("expected", [("another", 3), ("b", 2), ("b", 4)])
def test_a_task_that_is_not_as_expected_is_not_deleted(store: Store, expected: tuple[str, int]) -> None:
    row = create(store, "a")
    with pytest.raises(AppendConflictError) as caught:
        store.recorder.delete_task("a", expected=expected)
    assert (caught.value.expected, caught.value.found, caught.value.task_id) == (expected, row, "a")
    assert len(all_of(store, "a")) == 4


def test_a_task_that_is_not_there_is_a_conflict_with_nothing(store: Store) -> None:
    with pytest.raises(AppendConflictError, match="no such task") as caught:
        store.recorder.delete_task("ghost", expected=("b", 1))
    assert (caught.value.found, caught.value.task_id) == (None, "ghost")


def test_a_new_task_under_a_deleted_id_is_another_and_takes_nothing_of_the_old_one(store: Store) -> None:
    old = create(store, "a")
    store.recorder.delete_task("a", expected=("b", 3))
    new = create(store, "a", birth="c", head=1)
    late = StoredEvent("a", 4, "topic", b"late")
    with pytest.raises(AppendConflictError) as caught:
        store.recorder.insert_events([late], entry=old._replace(head=4), expected=("b", 3))
    assert caught.value.found == new
    with pytest.raises(AppendConflictError):
        store.recorder.delete_task("a", expected=("b", 3))
    say(store, "a", "b", "late")
    assert store.recorder.select_emissions("a", "b", upto=99, limit=9) == []
    assert [event.state for event in store.recorder.select_events("a")] == [b"text"]
    assert len(all_of(store, "a", "c")) == 4


def test_of_those_who_delete_one_task_at_once_and_one_that_appends_one_is_first(store: Store) -> None:
    row = create(store, "a", head=1)
    start, done, lock = threading.Barrier(5), list[str](), threading.Lock()

    def attempt(name: str) -> None:
        start.wait(TIMEOUT)
        try:
            if name == "append":
                late = StoredEvent("a", 2, "topic", b"late")
                store.recorder.insert_events([late], entry=row._replace(head=2), expected=("b", 1))
            else:
                store.recorder.delete_task("a", expected=("b", 1))
        except AppendConflictError:
            return
        with lock:
            done.append(name)

    threads = [threading.Thread(target=attempt, args=(name,)) for name in ("append", "d", "d", "d", "d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert len(done) == 1
    assert bool(all_of(store, "a")) is (done == ["append"])


def test_pages_by_id_give_each_row_and_each_log_once_in_order(store: Store) -> None:
    names = ["a", "ab", "b", "\x00", "é", "💻", "Z"]
    for name in names:
        create(store, name, head=2)
    for limit in (1, 3, 99):
        rows, ids = list[str](), list[str]()
        while page := store.recorder.select_page(after=rows[-1] if rows else "", limit=limit):
            rows += [row.id for row in page]
        while found := store.recorder.select_ids(after=ids[-1] if ids else "", limit=limit):
            ids += found
        assert rows == ids == sorted(names)
    assert store.recorder.select_page(limit=9) == sorted(store.recorder.select_entries())


def test_orphans_are_what_no_task_has_and_only_they_are_swept(store: Store) -> None:
    recorder = store.recorder
    create(store, "a")
    create(store, "b")
    recorder.save_heartbeat("ghost", "x", "1", 1, "late")
    recorder.save_heartbeat("ghost", "x", "2", 1, "late")
    recorder.delete_task("b", expected=("b", 3))
    recorder.save_heartbeat("b", "b", "7", 1, "of a body that outlives its task")
    recorder.rebuild_index(lambda task_id, old: old and old._replace(birth="another"))
    orphans = [
        Orphans("emissions", "a", "b", 1),
        Orphans("heartbeats", "a", "b", 1),
        Orphans("heartbeats", "b", "b", 1),
        Orphans("heartbeats", "ghost", "x", 2),
    ]
    assert recorder.select_orphans() == orphans
    assert recorder.delete_orphans() == 5
    assert recorder.select_orphans() == []
    assert recorder.delete_orphans() == 0
    assert [event.originator_version for event in recorder.select_events("a")] == [1, 2, 3]


def test_what_a_task_has_said_is_no_orphan_while_only_its_index_row_is_lost(store: Store) -> None:
    create(store, "a")
    store.recorder.rebuild_index(lambda task_id, old: None)
    assert store.recorder.select_orphans() == []
    assert store.recorder.delete_orphans() == 0


def test_a_store_says_its_schema_is_sound_and_may_be_made_anew_at_any_time(store: Store) -> None:
    create(store, "a")
    store.recorder.save_heartbeat("ghost", "x", "1", 1, "late")
    assert store.recorder.schema_version() == SCHEMA
    assert list(store.damages()) == []
    assert store.empty_journal()
    store.vacuum()
    assert store.recorder.select_orphans() == []
    assert len(all_of(store, "a")) == 4


def test_after_close_all_of_it_says_so(store: Store) -> None:
    store.close()
    for use in (
        lambda: store.recorder.delete_task("a", expected=("b", 1)),
        lambda: store.recorder.select_page(limit=1),
        store.recorder.select_orphans,
        store.recorder.delete_orphans,
        store.recorder.schema_version,
        store.vacuum,
    ):
        with pytest.raises(StoreClosedError, match="closed"):
            use()


# ------------------------------------------------------------------ one SQLite file


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
            say(store, name, "b", secret[:300])
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
        create(store, "a", text="SECRET" * 500)
        create(store, "b", text="of another")
        store.recorder.delete_task("a", expected=("b", 3))
        assert b"SECRET" in bytes_of(path)
        assert store.empty_journal()
        assert path.with_name("tasks.db-wal").stat().st_size == 0
        assert b"SECRET" not in bytes_of(path)


def test_a_write_ahead_log_that_somebody_reads_is_not_emptied_and_nothing_is_lost(path: Path) -> None:
    with open_store(f"sqlite:///{path}?timeout=0.3") as store, open_store(f"sqlite:///{path}") as other:
        create(store, "a")
        reader = other.recorder.datastore._connect("ro")  # type: ignore[attr-defined]
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM stored_events").fetchall()
        create(store, "b")
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
            create(store, f"t{number:02}", head=20, text="x" * 500)
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
