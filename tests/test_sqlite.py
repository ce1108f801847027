"""One SQLite file under everything that can happen to it: locks, full disks, bad bytes, forks, kills, crowds."""

import contextlib
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import eventsourcing.sqlite as es_sqlite
import pytest
from eventsourcing.persistence import PersistenceError, StoredEvent

from stores import (
    IndexRow,
    NewerStoreError,
    SQLiteStore,
    StoreCorruptError,
    StoreUnavailableError,
    task_index,
)
from stores.file_lock import locked
from stores.sqlite_file import PAGE_SIZE

TIMEOUT = 30
ROOT = Path(__file__).parents[1]

PRELUDE = """
import os, signal, sys, threading
from eventsourcing.persistence import StoredEvent
from stores import *

def append(store, task_id, head, state=b"state", inside=None):
    entry = IndexRow(task_id, "birth", head, 0, "queued", "agent", 1.0, 1.0)
    expected = ("birth", head - 1) if head > 1 else None
    store.recorder.insert_events([StoredEvent(task_id, head, "topic", state)], entry=entry, expected=expected,
                                 inside=inside)

def say(*words):
    print(*words, flush=True)

"""


@contextlib.contextmanager
def process(script: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Run the script in a process of its own, and end it with the block."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + script, *map(str, args)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def run(script: str, *args: object) -> list[str]:
    """Run the script to its end and give its lines; it must end well, or by the SIGKILL that it asks for."""
    with process(script, *args) as child:
        out, err = child.communicate(timeout=TIMEOUT)
    assert child.returncode in (0, -9), err
    assert err == ""
    return out.splitlines()


def row(task_id: str, head: int) -> IndexRow:
    return IndexRow(task_id, "birth", head, 0, "queued", "agent", 1.0, 1.0)


def append(store: SQLiteStore, task_id: str, head: int, **options: object) -> None:
    expected = ("birth", head - 1) if head > 1 else None
    stored = [StoredEvent(task_id, head, "topic", b"state")]
    store.recorder.insert_events(stored, entry=row(task_id, head), expected=expected, **options)


def versions(store: SQLiteStore, task_id: str) -> list[int]:
    return [event.originator_version for event in store.recorder.select_events(task_id)]


@contextlib.contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def assert_sound(path: Path) -> None:
    """The file is whole, and index and log say the same."""
    with raw(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        log = connection.execute(
            "SELECT originator_id, max(originator_version), count(*) FROM stored_events GROUP BY originator_id"
        ).fetchall()
        heads = connection.execute("SELECT id, head, head FROM task_index ORDER BY id").fetchall()
    assert log == heads


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(str(path), timeout=0.3) as store:
        yield store


# What the file is


def test_a_commit_is_synced_and_the_journal_is_a_write_ahead_log(store: SQLiteStore, path: Path) -> None:
    file = store.recorder.datastore
    assert file._writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert file._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    append(store, "a", 1)
    assert_sound(path)


def test_the_librarys_own_recorder_reads_the_log(store: SQLiteStore, path: Path) -> None:
    append(store, "a", 1)
    datastore = es_sqlite.SQLiteDatastore(str(path), originator_id_type="text")
    assert es_sqlite.SQLiteAggregateRecorder(datastore).select_events("a") == store.recorder.select_events("a")
    datastore.close()


def test_a_store_that_is_opened_again_has_everything(path: Path) -> None:
    for head in (1, 2, 3):
        with SQLiteStore(str(path)) as store:
            append(store, "a", head)
            assert versions(store, "a") == list(range(1, head + 1))
    assert_sound(path)
    assert {entry.name for entry in path.parent.iterdir()} == {"tasks.db", "tasks.db.locks"}


def test_an_empty_file_is_a_new_store(path: Path) -> None:
    path.touch()
    with SQLiteStore(str(path)) as store:
        append(store, "a", 1)
    assert_sound(path)


# What the first files were made without

FIRST_FILE = """
CREATE TABLE stored_events (originator_id TEXT, originator_version INTEGER, topic TEXT, state BLOB,
    PRIMARY KEY (originator_id, originator_version)) WITHOUT ROWID;
CREATE TABLE task_index (
    id TEXT PRIMARY KEY, birth TEXT NOT NULL, head INTEGER NOT NULL, activation INTEGER NOT NULL,
    status TEXT NOT NULL, agent TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
    due REAL, owner TEXT, strikes INTEGER NOT NULL, hold TEXT, note TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX task_due ON task_index (due) WHERE due IS NOT NULL;
INSERT INTO stored_events VALUES ('a', 1, 'topic', x'7374617465');
INSERT INTO task_index VALUES ('a', 'birth', 1, 0, 'held', 'agent', 1.0, 1.0, NULL, NULL, 0, 'doubt', '');
PRAGMA application_id=0x50455244;
PRAGMA user_version=1;
"""
HELD = row("a", 1)._replace(status="held", hold="doubt")


@pytest.fixture
def first_file(path: Path) -> Path:
    with raw(path) as connection:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(FIRST_FILE)
    return path


def schema(path: Path) -> object:
    """What a file is made of: statements without their spaces, and the version that says who can read it."""
    with raw(path) as connection:
        made = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    return {name: "".join(sql.split()) for name, sql in made}, version


def test_a_file_of_the_first_perdure_gets_what_it_lacks_when_it_is_opened(first_file: Path, tmp_path: Path) -> None:
    with SQLiteStore(str(first_file)) as store:
        assert store.recorder.select_entries(hold=["doubt"], after=0.0) == [HELD]
        store.recorder.save_heartbeat("a", "birth", "1", 1, "half")
        append(store, "a", 2)
        assert versions(store, "a") == [1, 2]
        assert store.recorder.select_entries(hold=["doubt"], after=0.0) == []
    SQLiteStore(str(tmp_path / "new.db")).close()
    assert schema(first_file) == schema(tmp_path / "new.db")
    with SQLiteStore(str(first_file)) as store:
        assert store.recorder.select_heartbeat("a", "birth", "1") == (1, "half")
    assert_sound(first_file)


def test_an_older_perdure_that_has_the_file_open_goes_on_and_keeps_the_new_index_true(first_file: Path) -> None:
    hold = "UPDATE task_index SET hold=?, updated=? WHERE id='a'"
    with raw(first_file) as older:
        older.execute(hold, ("doubt", 2.0))
        with SQLiteStore(str(first_file)) as store:
            older.execute(hold, ("strikes", 3.0))
            assert store.recorder.select_entries(hold=["doubt", "strikes"], after=2.5) == [
                HELD._replace(hold="strikes", updated=3.0)
            ]
            older.execute(hold, (None, 4.0))
            assert store.recorder.select_entries(hold=["doubt", "strikes"], after=2.5) == []
    assert_sound(first_file)


def test_a_first_file_that_is_locked_is_unavailable_unchanged_and_opens_later(first_file: Path) -> None:
    before = schema(first_file)
    with raw(first_file) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            SQLiteStore(str(first_file), timeout=0.05)
    assert schema(first_file) == before
    SQLiteStore(str(first_file), timeout=0.05).close()
    assert schema(first_file) != before


def test_an_opening_that_has_nothing_to_add_waits_for_no_writer(path: Path) -> None:
    SQLiteStore(str(path)).close()
    with raw(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with SQLiteStore(str(path), timeout=0.05) as store:
            assert store.recorder.select_heartbeat("a", "birth", "1") is None


# How it is read


def plan_of(store: SQLiteStore, path: Path, **facts: object) -> str:
    """Ask SQLite how it reads what this selection of entries really sends."""
    sent: list[str] = []
    store.recorder.select_ids()  # a reader is there from its first use
    reader = store.recorder.datastore._reader
    reader.set_trace_callback(sent.append)
    store.recorder.select_entries(**facts)
    reader.set_trace_callback(None)
    (sql,) = sent
    with raw(path) as connection:
        return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}"))


@pytest.mark.parametrize("prefix", ["a", "a%_", "it's", "é", "\ud7ff", "a\U0010ffff"])
def test_a_prefix_is_read_as_a_range_of_the_primary_key(store: SQLiteStore, path: Path, prefix: str) -> None:
    assert "SEARCH task_index USING PRIMARY KEY (id>? AND id<?)" in plan_of(store, path, prefix=prefix)
    assert "(id>? AND id<?)" in plan_of(store, path, prefix=prefix, status=["held"], agent="f", limit=1)


def test_a_prefix_with_nothing_above_it_is_read_from_it_to_the_end(store: SQLiteStore, path: Path) -> None:
    assert "SEARCH task_index USING PRIMARY KEY (id>?)" in plan_of(store, path, prefix="\U0010ffff")


def test_what_is_held_is_read_by_its_own_index(store: SQLiteStore, path: Path) -> None:
    newly = plan_of(store, path, hold=["differs", "unknown"], after=1.0)
    assert "SEARCH task_index USING INDEX task_held (hold=? AND updated>?)" in newly
    assert "USING INDEX task_held (hold=?)" in plan_of(store, path, hold=["differs"], status=["held"])


NOW = 1000.0
CROWDS = {
    "sleeping": row("", 1)._replace(status="waiting", due=NOW + 9),
    "queued": row("", 1)._replace(due=NOW - 9),
    "of an agent that nobody here knows": row("", 1)._replace(agent="unknown", due=NOW - 9),
    "asleep and of an agent that nobody here knows": row("", 1)._replace(agent="unknown", due=NOW + 9),
    "ended": row("", 1)._replace(status="completed"),
    "held": row("", 1)._replace(status="held", hold="doubt"),
    "held before the place": row("", 1)._replace(status="held", hold="differs", updated=0.5),
}


def steps(store: SQLiteStore) -> int:
    """Count the steps that SQLite takes to answer what recovery asks in each round."""
    recorder, taken = store.recorder, [0]

    def count() -> None:
        taken[0] += 1

    recorder.select_ids()
    reader = recorder.datastore._reader
    reader.set_progress_handler(count, 1)
    recorder.select_ready(NOW, agents=["agent", "other"], busy_owners=["w"], limit=5)
    recorder.next_due(NOW, agents=["agent", "other"])
    for hold in ("doubt", "differs"):
        recorder.select_held(hold, after=(0.5, "~"), limit=5)
    reader.set_progress_handler(None, 0)
    return taken[0]


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS.keys())
def test_what_recovery_asks_is_answered_in_as_many_steps_however_many_rows_there_are(
    tmp_path: Path, crowd: IndexRow
) -> None:
    taken = []
    for number in (20, 4000):
        path = tmp_path / f"{number}.db"
        with SQLiteStore(str(path)) as store:
            with raw(path) as connection:
                rows = [crowd._replace(id=f"t{n}") for n in range(number)] + [row("one", 1)._replace(due=NOW - 1)]
                connection.execute("BEGIN")
                connection.executemany(task_index.INSERT, rows)
                connection.execute("COMMIT")
            taken.append(steps(store))
            due = store.recorder.select_ready(NOW, agents=["agent"], busy_owners=[], limit=4001)
            assert due[-1].id == "one"
    assert taken[0] == taken[1]


# Whose turn it is


def test_a_heartbeat_that_returned_is_there_for_another_process(store: SQLiteStore, path: Path) -> None:
    store.recorder.save_heartbeat("a", "birth", "1", 1, "half")
    assert run("say(*open_store(f'sqlite:///{sys.argv[1]}').recorder.select_heartbeat('a', 'birth', '1'))", path) == [
        "1 half"
    ]


def test_a_heartbeat_waits_for_another_process_no_longer_than_an_append(store: SQLiteStore, path: Path) -> None:
    with raw(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for write in (
            lambda: store.recorder.save_heartbeat("a", "birth", "1", 1, ""),
            lambda: store.recorder.delete_heartbeats("a"),
        ):
            with pytest.raises(StoreUnavailableError, match="locked"):
                write()
        assert store.recorder.select_heartbeat("a", "birth", "1") is None
    store.recorder.save_heartbeat("a", "birth", "1", 1, "")


def test_a_beat_that_returned_is_there_for_another_process(store: SQLiteStore, path: Path) -> None:
    store.recorder.save_beat("w", 7, 2.5)
    assert run("say(open_store(f'sqlite:///{sys.argv[1]}').recorder.select_beats())", path) == ["{'w': (7, 2.5)}"]


def test_a_heartbeat_does_not_keep_a_store_that_is_in_a_hurry(path: Path) -> None:
    with SQLiteStore(str(path), timeout=TIMEOUT) as store, raw(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        store.hurry(on=True)
        began = monotonic()
        with pytest.raises(StoreUnavailableError, match="locked"):
            store.recorder.save_heartbeat("a", "birth", "1", 1, "")
        assert monotonic() - began < TIMEOUT / 2


def test_a_read_does_not_wait_for_a_write(store: SQLiteStore) -> None:
    append(store, "a", 1)
    writing, go_on = threading.Event(), threading.Event()

    def inside() -> None:
        writing.set()
        assert go_on.wait(TIMEOUT)

    writer = threading.Thread(target=append, args=(store, "a", 2), kwargs={"inside": inside})
    writer.start()
    assert writing.wait(TIMEOUT)
    assert versions(store, "a") == [1]
    assert store.recorder.select_entry("a") == row("a", 1)
    go_on.set()
    writer.join(TIMEOUT)
    assert versions(store, "a") == [1, 2]


def test_a_reader_sees_the_last_commit_and_keeps_no_snapshot(store: SQLiteStore, path: Path) -> None:
    with SQLiteStore(str(path)) as other:
        for head in range(1, 5):
            append(store, "a", head)
            assert other.recorder.select_entry("a") == row("a", head)
            assert versions(other, "a") == list(range(1, head + 1))
            assert other.recorder.select_entries(limit=1) == [row("a", head)]
            with raw(path) as connection:  # a snapshot that is kept would stop the log from being emptied
                busy, left, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            assert (busy, left) == (0, 0)


def test_a_file_that_stays_locked_is_unavailable_and_then_goes_on(store: SQLiteStore, path: Path) -> None:
    append(store, "a", 1)
    with raw(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked") as caught:
            append(store, "a", 2)
        assert not caught.value.unknown_fate
        assert versions(store, "a") == [1]
        connection.execute("ROLLBACK")
    append(store, "a", 2)
    assert versions(store, "a") == [1, 2]


def test_a_write_waits_for_another_process_within_the_limit(path: Path) -> None:
    with SQLiteStore(str(path)) as store, raw(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        writer = threading.Thread(target=append, args=(store, "a", 1))
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        connection.execute("ROLLBACK")
        writer.join(TIMEOUT)
        assert versions(store, "a") == [1]


def test_who_stands_in_line_behind_a_lock_does_not_wait_all_over_again(path: Path) -> None:
    errors: list[StoreUnavailableError] = []
    with SQLiteStore(str(path), timeout=0.5) as store, raw(path) as connection:
        connection.execute("BEGIN IMMEDIATE")

        def write(task_id: str) -> None:
            with pytest.raises(StoreUnavailableError, match="locked") as caught:
                append(store, task_id, 1)
            errors.append(caught.value)

        threads = [threading.Thread(target=write, args=(f"t{n}",)) for n in range(16)]
        began = monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        assert len(errors) == 16
        assert monotonic() - began < 16 * 0.5 / 2


def test_an_opening_that_never_ends_elsewhere_is_unavailable(path: Path) -> None:
    SQLiteStore(str(path)).close()
    with (
        locked(f"{path}.locks/open", timeout=1, url="u"),
        pytest.raises(StoreUnavailableError, match="another process holds"),
    ):
        SQLiteStore(str(path), timeout=0.05)
    SQLiteStore(str(path), timeout=0.05).close()


# What the disk refuses


def test_a_full_database_is_unavailable_and_goes_on_when_there_is_room(store: SQLiteStore, path: Path) -> None:
    append(store, "a", 1)
    writer = store.recorder.datastore._writer
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count={pages}")
    big = [StoredEvent("a", 2, "topic", bytes(50_000))]
    with pytest.raises(StoreUnavailableError, match="full"):
        store.recorder.insert_events(big, entry=row("a", 2), expected=("birth", 1))
    assert store.recorder.select_entry("a") == row("a", 1)
    writer.execute("PRAGMA max_page_count=100000")
    store.recorder.insert_events(big, entry=row("a", 2), expected=("birth", 1))
    assert_sound(path)


def test_a_commit_that_fails_is_of_unknown_fate_and_leaves_a_sound_store(path: Path) -> None:
    """The file system refuses the write that the commit makes: the file may not grow beyond a limit."""
    lines = run(
        """
import resource
store = open_store(f"sqlite:///{sys.argv[1]}")
append(store, "a", 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(sys.argv[1] + "-wal") + 5000, resource.RLIM_INFINITY))
try:
    append(store, "a", 2, bytes(20_000))
except StoreUnavailableError as error:
    say(error.unknown_fate, error.reason)
say(store.recorder.select_entry("a").head, len(store.recorder.select_events("a")))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
append(store, "a", 2, bytes(20_000))
append(store, "a", 3)
say(store.recorder.select_entry("a").head, len(store.recorder.select_events("a")))
store.close()
""",
        path,
    )
    assert lines == ["True disk I/O error", "1 1", "3 3"]
    assert_sound(path)


def test_without_descriptors_nothing_opens_and_nothing_leaks(path: Path) -> None:
    lines = run(
        """
import resource
url = f"sqlite:///{sys.argv[1]}"
with open_store(url) as store:
    append(store, "a", 1)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
hoard = []
try:
    while True:
        hoard.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
outcomes = []
while hoard:
    try:
        open_store(url).close()
        outcomes.append("opened")
    except StoreUnavailableError:
        outcomes.append("unavailable")
        before = len(hoard)
    os.close(hoard.pop())
say(outcomes[0], outcomes[-1], "unavailable" in outcomes[outcomes.index("opened"):])
with open_store(url) as store:
    hoard = []
    try:
        while True:
            hoard.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    append(store, "a", 2)  # all that a write needs is open already
    for look in (store.workers.live, lambda: store.workers.is_alive("w"), lambda: store.workers.hold("w", {})):
        try:
            look()
        except StoreUnavailableError as error:
            say("unavailable")
    os.close(hoard.pop())
    say(store.workers.is_alive("w"))
    for descriptor in hoard:
        os.close(descriptor)
say(len(os.listdir("/dev/fd")))
with open_store(url) as store:
    append(store, "a", 3)
say(len(os.listdir("/dev/fd")))
""",
        path,
    )
    assert lines[:5] == ["unavailable opened False", "unavailable", "unavailable", "unavailable", "False"]
    assert lines[5] == lines[6]
    assert_sound(path)


@pytest.mark.parametrize("name", ["missing/tasks.db", "file/tasks.db", "folder"])
def test_a_path_that_cannot_be_a_file_is_unavailable(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError, match=name):
        SQLiteStore(str(tmp_path / name))
    assert not (tmp_path / "missing").exists()


def test_a_connection_that_breaks_is_replaced(store: SQLiteStore) -> None:
    append(store, "a", 1)
    store.recorder.datastore._writer.close()
    with pytest.raises(PersistenceError):
        append(store, "a", 2)
    append(store, "a", 2)
    assert versions(store, "a") == [1, 2]


def test_no_error_of_the_driver_goes_through(store: SQLiteStore) -> None:
    append(store, "a", 1)
    with pytest.raises(PersistenceError):
        store.recorder.insert_events([StoredEvent("a", 2, "topic", object())], entry=row("a", 2), expected=("birth", 1))
    with pytest.raises(PersistenceError):
        store.recorder.update_index(row("a", 1)._replace(note=None), expected=("birth", 1))
    with pytest.raises(PersistenceError):
        store.recorder.select_entry(object())
    with pytest.raises(PersistenceError):
        store.recorder.save_heartbeat("a", "birth", "1", 1, None)
    assert store.recorder.select_entry("a") == row("a", 1)
    append(store, "a", 2)


# What is in the file


@pytest.mark.parametrize("content", [b"not a database\n" * 400, b"SQLite format 3\0" + bytes(4080), b"xy"])
def test_a_file_that_is_no_database_is_refused_unchanged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError, match="not a store"):
        SQLiteStore(str(path))
    assert path.read_bytes() == content


def test_a_damaged_header_is_refused_unchanged(path: Path) -> None:
    with SQLiteStore(str(path)) as store:
        append(store, "a", 1)
    content = bytearray(path.read_bytes())
    content[:60] = random.Random(1).randbytes(60)
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError):
        SQLiteStore(str(path))
    assert path.read_bytes() == content


def test_a_truncated_file_is_refused_unchanged(path: Path) -> None:
    with SQLiteStore(str(path)) as store:
        append(store, "a", 1)
    content = path.read_bytes()[:5000]
    path.write_bytes(content)
    with pytest.raises(StoreCorruptError):
        SQLiteStore(str(path))
    assert path.read_bytes() == content


def test_a_damaged_page_is_corrupt_where_it_is_read(path: Path) -> None:
    with SQLiteStore(str(path)) as store:
        for head in range(1, 400):
            append(store, "a", head)
    content = bytearray(path.read_bytes())
    assert len(content) > 6 * PAGE_SIZE
    content[5 * PAGE_SIZE :] = b"\xff" * (len(content) - 5 * PAGE_SIZE)
    path.write_bytes(content)
    with SQLiteStore(str(path)) as store, pytest.raises(StoreCorruptError):
        store.recorder.select_events("a")


def test_a_store_without_its_tables_is_corrupt(path: Path) -> None:
    SQLiteStore(str(path)).close()
    with raw(path) as connection:
        connection.execute("DROP TABLE task_index")
    with pytest.raises(StoreCorruptError, match="no such table"):
        SQLiteStore(str(path))


def test_a_database_of_another_program_is_refused_unchanged(path: Path) -> None:
    with raw(path) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    content = path.read_bytes()
    with pytest.raises(StoreCorruptError, match="another program"):
        SQLiteStore(str(path))
    assert path.read_bytes() == content


def test_a_newer_store_is_refused_unchanged(path: Path) -> None:
    SQLiteStore(str(path)).close()
    with raw(path) as connection:
        connection.execute("PRAGMA user_version=99")
    content = path.read_bytes()
    with pytest.raises(NewerStoreError, match="newer perdure") as caught:
        SQLiteStore(str(path))
    assert (caught.value.found, caught.value.known) == (99, 2)
    assert path.read_bytes() == content
    assert {entry.name for entry in path.parent.iterdir()} == {"tasks.db", "tasks.db.locks"}


def test_a_newer_store_whose_process_was_killed_is_refused_unchanged(path: Path) -> None:
    """What it wrote is still in the write-ahead log: an opening that ends in the usual way would move it."""
    run(
        """
import sqlite3
open_store(f"sqlite:///{sys.argv[1]}").close()
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA user_version=99")
os.kill(os.getpid(), signal.SIGKILL)
""",
        path,
    )
    log = path.with_name("tasks.db-wal")
    content = path.read_bytes(), log.read_bytes()
    with pytest.raises(NewerStoreError):
        SQLiteStore(str(path))
    assert (path.read_bytes(), log.read_bytes()) == content


# Crowds, kills and forks


def test_eight_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    worker = """
for line in sys.stdin:
    name, path = line.split()
    with open_store(f"sqlite:///{path}") as store:
        for head in range(1, 6):
            append(store, name, head)
    say("done")
"""
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(process(worker)) for _ in range(8)]
        for number in range(20):
            path = tmp_path / f"{number}.db"
            for name, child in enumerate(crowd):
                child.stdin.write(f"t{name} {path}\n")
            for child in crowd:
                child.stdin.flush()
            assert [child.stdout.readline() for child in crowd] == ["done\n"] * 8, crowd[0].stderr.read()
            assert_sound(path)
            with SQLiteStore(str(path)) as store:
                assert store.recorder.select_ids() == [f"t{name}" for name in range(8)]
                assert all(versions(store, f"t{name}") == [1, 2, 3, 4, 5] for name in range(8))


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_between_any_two_instructions_loses_nothing_acknowledged(path: Path, seed: int) -> None:
    script = """
with open_store(f"sqlite:///{sys.argv[1]}") as store:
    for head in range(1, 100_000):
        append(store, "a", head, os.urandom(3000))
        say(head)
"""
    with process(script, path) as child:
        for _ in range(random.Random(seed).randrange(1, 200)):
            last = child.stdout.readline()
        child.kill()
        acknowledged = int([last, *child.stdout.read().splitlines()][-1])
    with SQLiteStore(str(path)) as store:
        found = versions(store, "a")
        assert found == list(range(1, len(found) + 1))
        assert len(found) in (acknowledged, acknowledged + 1)
        append(store, "a", len(found) + 1)
    assert_sound(path)


def test_a_kill_inside_a_transaction_undoes_it(path: Path) -> None:
    run(
        """
store = open_store(f"sqlite:///{sys.argv[1]}")
append(store, "a", 1)
append(store, "a", 2, inside=lambda: os.kill(os.getpid(), signal.SIGKILL))
""",
        path,
    )
    with SQLiteStore(str(path)) as store:
        assert versions(store, "a") == [1]
        append(store, "a", 2)
    assert_sound(path)


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_during_the_first_opening_leaves_a_usable_file(tmp_path: Path, seed: int) -> None:
    script = """
for number in range(100_000):
    say(number)
    open_store(f"sqlite:///{sys.argv[1]}/{number}.db").close()
"""
    with process(script, tmp_path) as child:
        for _ in range(random.Random(seed).randrange(2, 20)):
            child.stdout.readline()
        child.kill()
    folders = list(tmp_path.glob("*.locks"))
    assert folders
    for folder in folders:
        path = folder.with_suffix("")
        with SQLiteStore(str(path)) as store:
            append(store, "a", 1)
        assert_sound(path)


def test_a_forked_child_gets_a_clear_error_and_the_parent_is_unharmed(path: Path) -> None:
    """The child ends in the usual way, closing what it can, while a thread of the parent is writing."""
    lines = run(
        """
store = open_store(f"sqlite:///{sys.argv[1]}")
append(store, "a", 1)
lock = store.workers.hold("w", {"pid": os.getpid()})
def write():
    for head in range(1, 100_000):
        append(store, "b", head)
        if done.is_set():
            break
done = threading.Event()
writer = threading.Thread(target=write)
writer.start()
for n in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        for use in (lambda: append(store, "a", 2), lambda: store.recorder.select_ids(), lambda: lock.update({}),
                    lambda: open_store(store.url)):
            try:
                use()
                os._exit(1)
            except StoreForkedError as error:
                if "fork" not in str(error):
                    os._exit(2)
        lock.release()
        store.close()
        del lock, store
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        say("child", n, status)
    append(store, "a", n + 2)
done.set()
writer.join()
say(store.recorder.select_entry("a").head, store.workers.live()["w"]["pid"] == os.getpid())
store.close()
""",
        path,
    )
    assert lines == ["21 True"]
    assert_sound(path)


def test_a_child_forked_before_or_after_may_open_the_store(path: Path) -> None:
    lines = run(
        """
for head in (1, 2):
    child = os.fork()
    if child == 0:
        with open_store(f"sqlite:///{sys.argv[1]}") as store:
            append(store, "child", head)
        sys.exit(0)
    say(os.waitpid(child, 0)[1])
    with open_store(f"sqlite:///{sys.argv[1]}") as store:
        append(store, "parent", head)
        if os.fork() == 0:
            with open_store(f"sqlite:///{sys.argv[1]}.other") as other:
                append(other, "child", 1)
            os._exit(0)
        say(os.wait()[1])
    os.remove(f"{sys.argv[1]}.other")
""",
        path,
    )
    assert lines == ["0"] * 4
    assert_sound(path)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("lock", ["_turns._changed", "_commits._mutex", "_read_lock"])
def test_a_process_ends_though_a_thread_that_is_gone_has_kept_a_lock(path: Path, lock: str, closed: bool) -> None:
    """The interpreter ends daemon threads wherever they are, and collects what is left after that."""
    script = """
store, taken = SQLiteStore(sys.argv[1]), threading.Event()
file = store.recorder.datastore
if sys.argv[3] == "True":
    store.close()

def keep(lock):
    lock.acquire()
    taken.set()
    threading.Event().wait()

threading.Thread(target=keep, args=[eval(f"file.{sys.argv[2]}")], daemon=True).start()
taken.wait()
import gc
gc.disable()  # what measures coverage may collect before the interpreter ends
file.itself = file
del store, file
say("ends")
"""
    assert run(script, path, lock, closed) == ["ends"]


def test_a_memory_store_is_not_shared_with_a_forked_child() -> None:
    lines = run(
        """
store = open_store("memory:")
if os.fork() == 0:
    for use in (lambda: append(store, "a", 1), store.recorder.select_ids, store.workers.live):
        try:
            use()
            os._exit(1)
        except StoreForkedError:
            pass
    store.close()
    os._exit(0)
say(os.wait()[1])
append(store, "a", 1)
store.close()
"""
    )
    assert lines == ["0"]
