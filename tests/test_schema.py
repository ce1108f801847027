"""The versions of a store's schema: upgraded once, refused when newer, and minded by workers that are older."""

from __future__ import annotations

import logging
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from actors import AgentSystem, NewerStoreError, TaskFailedError, agent, receive, step
from actors.task_log import TaskLog
from actors.verify import Read, verify
from stores import SQLiteStore, Store, StoreCorruptError, StoreUnavailableError, open_store, schema
from stores.schema import MIGRATIONS, SCHEMA, Migration, check_schema, statements_since
from tests.histories.stores import program
from tests.lives import PATIENCE, wait_for
from tests.shell import Shell

ROOT = Path(__file__).parents[1]
FILES = sorted((Path(__file__).parent / "histories" / "stores").glob("schema-*.sqlite"))
NEXT = Migration(SCHEMA + 1, sqlite=("CREATE TABLE later (id TEXT)",), postgres=())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def old(request: pytest.FixtureRequest, path: Path) -> Path:
    """Give a copy of a file that an older perdure, or today's, has left behind."""
    shutil.copy(request.param, path)
    return path


def made_of(path: Path) -> tuple[int, dict[str, str]]:
    """Give the version of a file's schema, and what it consists of, without the spaces."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        ((version,),) = connection.execute("PRAGMA user_version").fetchall()
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return version, {name: "".join(sql.split()) for name, sql in rows}


# ------------------------------------------------------------------ the list


def test_the_migrations_lead_from_the_first_schema_to_todays_one_by_one() -> None:
    assert [migration.version for migration in MIGRATIONS] == list(range(2, SCHEMA + 1))
    assert list(statements_since(1, "sqlite")) == [one for migration in MIGRATIONS for one in migration.sqlite]
    assert list(statements_since(SCHEMA, "sqlite")) == list(statements_since(SCHEMA, "postgres")) == []


def test_a_newer_schema_is_named_with_both_versions() -> None:
    check_schema(SCHEMA, "url")
    with pytest.raises(NewerStoreError, match=rf"schema {SCHEMA + 1}; this one reads up to {SCHEMA}") as caught:
        check_schema(SCHEMA + 1, "url")
    assert (caught.value.found, caught.value.known, caught.value.url) == (SCHEMA + 1, SCHEMA, "url")


# ------------------------------------------------------------------ files of older schemas


def test_there_is_a_file_of_each_schema() -> None:
    versions = {int.from_bytes(file.read_bytes()[60:64]) for file in FILES}  # without opening what is never changed
    assert versions == set(range(1, SCHEMA + 1))


def test_an_older_file_is_brought_up_to_date_and_is_made_as_a_new_one_is(old: Path, tmp_path: Path) -> None:
    SQLiteStore(str(old)).close()
    SQLiteStore(str(tmp_path / "new.db")).close()
    assert made_of(old) == made_of(tmp_path / "new.db")
    assert made_of(old)[0] == SCHEMA


def test_nothing_of_an_older_file_is_lost_and_its_open_task_goes_on_to_its_end(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        before = connection.execute("SELECT * FROM stored_events ORDER BY 1, 2").fetchall()
    with AgentSystem(f"sqlite:///{old}") as system:
        assert system.task("open").result(PATIENCE) == ["ONE", "TWO", "THREE"]
        assert system.task("done").result(PATIENCE) == ["ONE", "THREE"]
        with pytest.raises(TaskFailedError, match="no words"):
            system.task("failed").result(PATIENCE)
        steps = system.task("open").describe().steps
        assert [(one.state, one.attempt) for one in steps] == [("finished", 1), ("finished", 3), ("finished", 1)]
        assert program.notes.name == system.task("open").describe().agent
    with closing(sqlite3.connect(old)) as connection:
        after = connection.execute("SELECT * FROM stored_events ORDER BY 1, 2").fetchall()
    assert set(before) < set(after)


def test_nothing_is_wrong_with_an_older_file_but_for_a_time_that_the_first_perdure_took_otherwise(old: Path) -> None:
    with open_store(f"sqlite:///{old}") as store:
        log = TaskLog(store)
        faults = list(verify(log, Read()))
        assert [fault for fault in faults if not fault.startswith("task open: its index row has due ")] == []
        log.rebuild_index()
        assert list(verify(log, Read())) == []


def test_commands_that_only_look_leave_an_older_file_as_it_is_and_say_what_is_in_it(old: Path, tmp_path: Path) -> None:
    content, where, shell = old.read_bytes(), ("--store", f"sqlite:///{old}"), Shell(tmp_path)
    said = {words: shell(*words, *where) for words in LOOKS}
    assert old.read_bytes() == content
    assert {done.stderr for words, done in said.items() if words[0] != "verify"} <= {"", NOTHING.format(old)}
    assert "open" in said["list",].stdout
    assert "done" in said["show", "done"].stdout
    assert "completed" in said["show", "done", "--follow"].stdout
    verdict = "".join(said["verify",].stdout.splitlines()[-1:]) + said["verify",].stderr
    assert re.search(r": \d+ tasks, \d+ events: (sound|1 thing is wrong)$", verdict)
    assert all("no such table" not in f"{done.stdout}{done.stderr}" for done in said.values())


LOOKS = [("list",), ("show", "done"), ("show", "done", "--follow"), ("tree",), ("approvals",), ("verify",)]
NOTHING = "perdure: sqlite:///{} · nothing waits for an approval\n"


def test_an_older_file_that_is_only_read_refuses_every_write(path: Path) -> None:
    shutil.copy(FILES[0], path)
    content = path.read_bytes()
    with open_store(f"sqlite:///{path}", upgrade=False) as store:
        for _ in range(2):  # new connections, after one that could only read, refuse it too
            with pytest.raises(StoreUnavailableError, match="readonly"):
                store.recorder.save_beat("w", 1, 1.0)
            with pytest.raises(StoreUnavailableError, match="readonly"):
                store.vacuum()
        assert store.recorder.select_beats() == {}
        assert store.recorder.select_orphans() == []
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, -1, -(2**31)])
def test_a_version_that_no_perdure_has_written_is_damage_and_not_a_byte_changes(path: Path, version: int) -> None:
    SQLiteStore(str(path)).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={version}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    content = path.read_bytes()
    for upgrade in (True, False):
        with pytest.raises(StoreCorruptError, match=f"damaged: its schema is {version}, which no perdure has written"):
            open_store(f"sqlite:///{path}", upgrade=upgrade)
    assert path.read_bytes() == content


CROWD = """
import sys, threading
from stores import *
writes = []
import stores.sqlite as one
upgrade = one._upgrade
def counted(found):
    if found:  # else it is only said how a new file is made
        writes.append(found)
    return upgrade(found)
one._upgrade = counted
for line in sys.stdin:
    writes.clear()
    store = open_store(f"sqlite:///{line.strip()}")
    ids = store.recorder.select_ids()
    store.close()
    print(len(writes), *ids, flush=True)
"""


def test_of_eight_processes_that_open_an_older_file_at_once_one_brings_it_up_to_date(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", CROWD], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
            )
            for _ in range(8)
        ]
        for number in range(10):
            file = tmp_path / f"{number}.db"
            shutil.copy(FILES[0], file)
            for child in crowd:
                assert child.stdin is not None
                child.stdin.write(f"{file}\n")
                child.stdin.flush()
            said = [child.stdout.readline().split() for child in crowd if child.stdout is not None]
            assert [ids for _, *ids in said] == [["done", "failed", "open"]] * 8
            assert sorted(count for count, *_ in said) == ["0"] * 7 + ["1"]
            assert made_of(file)[0] == SCHEMA
        for child in crowd:
            assert child.stdin is not None
            child.stdin.close()


def test_a_death_in_an_upgrade_leaves_the_older_file_and_the_next_one_does_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(FILES[0], path)
    before = made_of(path)
    die = (
        "import os, signal, sqlite3, sys, stores.schema as schema\n"
        "from stores import SQLiteStore\n"
        "import stores.sqlite as one\n"
        "real = one._upgrade\n"
        "class Deadly(list):\n"
        "    def __iter__(self):\n"
        "        yield from real(1)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "one._upgrade = lambda found: Deadly()\n"
        "SQLiteStore(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", die, str(path)], cwd=ROOT, check=False, timeout=PATIENCE)
    assert done.returncode == -9
    assert made_of(path) == before
    SQLiteStore(str(path)).close()
    assert made_of(path)[0] == SCHEMA


# ------------------------------------------------------------------ newer than we are


@pytest.fixture
def newer(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a file of the next schema, as the next perdure makes it."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, NEXT))
        patch.setattr(schema, "SCHEMA", SCHEMA + 1)
        with open_store(f"sqlite:///{path}") as store:
            TaskLog(store).create("t", program.notes.name, [["one"], {}], {})
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}


def test_a_newer_file_is_refused_by_everything_and_not_a_byte_of_it_changes(newer: Path, tmp_path: Path) -> None:
    before = contents(newer)
    words = rf"newer perdure \(schema {SCHEMA + 1}; this one reads up to {SCHEMA}\)"
    for run in (True, False):
        with pytest.raises(NewerStoreError, match=words), AgentSystem(f"sqlite:///{newer}", run=run):
            pass
    shell = Shell(tmp_path)
    for command in (["list"], ["verify"], ["vacuum"], ["reindex"], ["delete", "t"], ["worker", "work.py"]):
        done = shell(*command, "--store", f"sqlite:///{newer}")
        assert done.returncode == 2
        assert f"schema {SCHEMA + 1}" in done.stderr
    assert {name: contents(newer)[name] for name in before} == before


# ------------------------------------------------------------------ a worker that is older by now


gate = threading.Event()
did: list[str] = []


@step(name="schema: slow")
def slow() -> str:
    did.append("slow")
    gate.wait(PATIENCE)
    return "slow"


@step(name="schema: after")
def after() -> str:
    did.append("after")
    return "after"


@agent(name="schema: two")
def two() -> list[str]:
    return [slow(), after()]


@agent(name="schema: waits")
def waits() -> Any:
    return receive("go")


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    gate.clear()
    did.clear()
    yield
    gate.set()


def raise_schema(path: Path) -> None:
    """Do what the next perdure does to a store that it opens."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(NEXT.sqlite[0])
        connection.execute(f"PRAGMA user_version={NEXT.version}")


def test_a_worker_that_is_older_than_its_store_says_so_claims_nothing_more_and_leaves_its_task_at_the_next_step(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with AgentSystem(f"sqlite:///{path}", lease=0.4) as older:
        running = older.spawn(two, id="running")
        wait_for(lambda: did == ["slow"])
        waiting = older.spawn(waits, id="waiting")
        wait_for(lambda: waiting.status() == "waiting")
        raise_schema(path)
        said = f"brought the store to schema {SCHEMA + 1}, this one knows up to {SCHEMA}"
        wait_for(lambda: said in caplog.text)
        older.spawn(two, id="new")
        waiting.signal("go", 1)
        gate.set()
        wait_for(lambda: running.status() == "queued")
        assert [type(each).__name__ for each in running.events()][-2:] == ["StepSucceeded", "Passivated"]
        # A whole round of the newer store's worker would have taken both by now, and so would this one.
        beats = count_of_beats(older)
        wait_for(lambda: count_of_beats(older) > beats + 4)
        assert [older.task(each).status() for each in ("running", "new", "waiting")] == ["queued"] * 3
        assert did == ["slow"]
    assert caplog.text.count(said) == 1
    assert [record.levelno for record in caplog.records if said in record.getMessage()] == [logging.ERROR]


def count_of_beats(system: AgentSystem) -> int:
    (beat,) = system.log.recorder.select_beats().values()
    return beat[0]


def test_what_an_older_worker_has_left_goes_on_with_a_newer_one_in_the_same_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AgentSystem(f"sqlite:///{path}", lease=0.4) as older:
        task = older.spawn(two, id="t")
        wait_for(lambda: did == ["slow"])
        raise_schema(path)
        wait_for(lambda: older._tree is not None and older._tree.worker.stopping.is_set())
        gate.set()
        wait_for(lambda: task.status() == "queued")
        with ExitStack() as stack:
            stack.enter_context(as_the_next(monkeypatch))
            newer = stack.enter_context(AgentSystem(f"sqlite:///{path}"))
            assert newer.task("t").result(PATIENCE) == ["slow", "after"]
        assert task.result(PATIENCE) == ["slow", "after"], "who waits at the older one is told too"
    assert did == ["slow", "after"]


class as_the_next:  # noqa: N801  reads as a word
    """Let stores be opened as the next perdure opens them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __enter__(self) -> None:
        self._patch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, NEXT))
        self._patch.setattr(schema, "SCHEMA", SCHEMA + 1)
        self._patch.setattr("actors.lease.SCHEMA", SCHEMA + 1)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def test_the_worker_command_leaves_when_its_store_is_newer(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with shell.start("worker", "work.py") as worker:
        worker.read_until("perdure: sqlite:////")
        raise_schema(Path(shell.url.removeprefix("sqlite:///")))
        code, out, err = worker.end()
    assert (code, out) == (2, "")
    assert re.search(r"^perdure: worker w\w+ claims nothing more: a newer perdure", err, re.MULTILINE)
    assert err.endswith("stopped   start it again with the newer perdure\n")


def test_a_store_of_memory_is_of_todays_schema() -> None:
    with open_store("memory:") as store:
        assert isinstance(store, Store)
        assert store.recorder.schema_version() == SCHEMA
