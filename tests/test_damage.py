"""What people and disks do to a store: each damage holds its own task, is told, and moves no effect."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors import (
    AgentSystem,
    InsideTaskError,
    StoreCorruptError,
    SystemClosedError,
    TaskHeldError,
    UnreadableTaskError,
    agent,
    step,
)
from actors.appender import Appender
from actors.task_log import TaskLog
from domain.record import Call
from stores import StoreUnavailableError, open_store
from stores.crash import CrashingStore, FaultPlan

SOON = 10
effects: list[str] = []


@step
def one(name: str) -> str:
    effects.append(name)
    return name


@agent(name="damaged-work")
def work(name: str) -> str:
    return one(name) + one(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two tasks of which a first step is finished and whose worker has stopped."""
    file = tmp_path / "tasks.db"
    with open_store(f"sqlite:///{file}") as store:
        log = TaskLog(store)
        for name in ("spoilt", "sound"):
            task = log.create(name, work.name, [[name], {}], {})
            append = Appender(log, task).append
            append(partial(_activate))
            append(lambda task, now: task.start_step(1, now, Call("1", "step", "one", ""), "", ""))
            append(lambda task, now, name=name: task.finish_step(1, now, Call("1", "step", "one", ""), 1, value=name))
            append(lambda task, now: task.passivate(1, now, []))
    effects.clear()
    return file


def _activate(task: Any, now: float) -> list[Any]:
    return list(task.activate(now, worker="w", token="t", limit=None))


def edit(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(sql).rowcount == 1


EVENT = "WHERE originator_id='spoilt' AND originator_version"
DAMAGES = {
    "a state that is text": f"UPDATE stored_events SET state='no bytes' {EVENT}=4",
    "a state that is text and no UTF-8": f"UPDATE stored_events SET state=CAST(x'ff00ff' AS TEXT) {EVENT}=4",
    "a state that is a number": f"UPDATE stored_events SET state=7 {EVENT}=4",
    "a state that is gone": f"UPDATE stored_events SET state=NULL {EVENT}=4",
    "an empty state": f"UPDATE stored_events SET state=x'' {EVENT}=4",
    "another topic": f"UPDATE stored_events SET topic='task.completed' {EVENT}=4",
    "a topic that is a number": f"UPDATE stored_events SET topic=7 {EVENT}=4",
    "a row in the middle is missing": f"DELETE FROM stored_events {EVENT}=3",
    "the last row is missing": f"DELETE FROM stored_events {EVENT}=5",
    "the first row is missing": f"DELETE FROM stored_events {EVENT}=1",
    "an index row with another birth": "UPDATE task_index SET birth='another' WHERE id='spoilt'",
    "an index row with another head": "UPDATE task_index SET head=3 WHERE id='spoilt'",
}


@pytest.mark.parametrize("sql", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_task_is_held_and_told_and_its_neighbour_completes(path: Path, sql: str) -> None:
    edit(path, sql)
    with AgentSystem(f"sqlite:///{path}") as system:
        assert system.task("sound").result(timeout=SOON) == "soundsound"
        with pytest.raises(TaskHeldError, match="spoilt") as caught:
            system.task("spoilt").result(timeout=SOON)
        assert caught.value.reason == "unreadable"
        assert system.task("spoilt").status() == "held"
    assert effects == ["sound"]


def test_a_log_that_lost_its_end_goes_on_by_a_persons_word_alone(path: Path) -> None:
    edit(path, DAMAGES["the last row is missing"])
    for _ in range(2):
        with AgentSystem(f"sqlite:///{path}") as system, pytest.raises(TaskHeldError, match="ends at version 4"):
            system.task("spoilt").result(timeout=SOON)
    with AgentSystem(f"sqlite:///{path}") as system:
        system.task("spoilt").release(by="me")
        assert system.task("spoilt").result(timeout=SOON) == "spoiltspoilt"


def test_a_task_that_the_index_has_lost_is_named_at_spawn(path: Path) -> None:
    edit(path, "DELETE FROM task_index WHERE id='spoilt'")
    with (
        AgentSystem(f"sqlite:///{path}") as system,
        pytest.raises(UnreadableTaskError, match="make the index again, by perdure reindex"),
    ):
        system.spawn(work, "spoilt", id="spoilt")
    with open_store(f"sqlite:///{path}") as store:
        TaskLog(store).rebuild_index()
    with AgentSystem(f"sqlite:///{path}") as system:
        assert system.spawn(work, "spoilt", id="spoilt").result(timeout=SOON) == "spoiltspoilt"


def test_a_database_that_is_gone_while_its_write_ahead_log_is_there_is_no_new_store(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE task_index SET note='x'")
        connection.commit()
        wal = path.with_name(path.name + "-wal")
        copy = wal.read_bytes()
    path.unlink()
    wal.write_bytes(copy)
    with pytest.raises(StoreCorruptError, match="put the database back"):
        open_store(f"sqlite:///{path}")
    assert wal.read_bytes() == copy


def test_a_worker_whose_lock_was_removed_makes_it_again_and_says_so(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with AgentSystem(f"sqlite:///{path}") as system:
        system.task("sound").result(timeout=SOON)
        with open_store(f"sqlite:///{path}") as store:
            (worker,) = store.workers.live()
            shutil.rmtree(f"{path}.locks")
            wait_for(lambda: Path(f"{path}.locks").exists() and list(store.workers.live()) == [worker])
    assert "is taken again" in caplog.text


def wait_for(condition: Callable[[], bool]) -> None:
    event = threading.Event()
    for _ in range(SOON * 100):
        if condition():
            return
        event.wait(0.01)
    raise AssertionError("it never came about")


def test_closing_does_not_wait_for_a_store_that_is_away(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    away = partial(StoreUnavailableError, "the disk is full, for a test", url="sqlite:///x", reason="test")
    with open_store(f"sqlite:///{path}") as store:
        plan = FaultPlan(10_000, "append.before", away)
        plan.times = 0
        with AgentSystem(CrashingStore(store, plan), grace=0.2) as system:
            entered = threading.Event()

            @step
            def fills_the_disk() -> str:
                plan.times = 10_000
                entered.set()
                return "done, and not to be stored"

            @agent(name="fills")
            def fills() -> str:
                return fills_the_disk()

            task = system.spawn(fills)
            assert entered.wait(SOON)
            wait_for(lambda: "waiting for the store" in caplog.text)
            started = time.monotonic()
        assert time.monotonic() - started < 3
        assert "may not be stored" in caplog.text
        plan.times = 0
        with AgentSystem(store) as system:
            assert system.task(task.id).result(timeout=SOON) == "done, and not to be stored"
            assert system.task(task.id).describe().steps[0].attempt == 2


def test_closing_does_not_wait_for_another_process_that_has_the_file_locked(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        with AgentSystem(f"sqlite:///{path}", grace=0.2) as system:
            system.task("sound").result(timeout=SOON)
            other.execute("BEGIN IMMEDIATE")
            wait_for(lambda: bool(system._tree))
            entered = threading.Event()
            spawner = threading.Thread(target=lambda: entered.set() or _ignored(lambda: system.spawn(work, "late")))
            spawner.start()
            assert entered.wait(SOON)
            started = time.monotonic()
        assert time.monotonic() - started < 3
        other.execute("ROLLBACK")
        spawner.join(40)
    assert not spawner.is_alive()


def _ignored(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        logging.getLogger(__name__).debug("the spawn came too late")


def test_who_waits_for_a_result_is_told_when_the_system_is_closed(path: Path) -> None:
    go_on, told = threading.Event(), list[BaseException]()

    @step
    def waits() -> None:
        go_on.wait(SOON)

    @agent(name="waits")
    def waiting() -> None:
        waits()

    def ask(ref: Any) -> None:
        try:
            ref.result()
        except BaseException as error:
            told.append(error)

    with AgentSystem(f"sqlite:///{path}", grace=0.1) as system:
        ref = system.spawn(waiting)
        threads = [threading.Thread(target=ask, args=(ref,)) for _ in range(5)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(SOON)
    go_on.set()
    assert [type(error) for error in told] == [SystemClosedError] * 5


def test_an_agent_cannot_close_the_system_under_the_others(path: Path) -> None:
    systems: list[AgentSystem] = []

    @agent(name="closer")
    def closer() -> list[str]:
        refused = []
        for call in (systems[0].close, AgentSystem("memory:").__enter__):
            try:
                call()
            except InsideTaskError as error:
                refused.append(str(error).split(" inside")[0])
        return refused

    with AgentSystem(f"sqlite:///{path}") as system:
        systems.append(system)
        assert system.spawn(closer).result(timeout=SOON) == ["closing an AgentSystem", "opening an AgentSystem"]
        assert system.task("sound").result(timeout=SOON) == "soundsound"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: AgentSystem(Path("x.db")), TypeError),  # type: ignore[arg-type]
        (lambda: AgentSystem("memory:", max_active=1.5), ValueError),  # type: ignore[arg-type]
        (lambda: AgentSystem("memory:", grace=float("inf")), ValueError),
        (lambda: AgentSystem("memory:", strikes=0), ValueError),
    ],
)
def test_what_a_system_cannot_use_is_refused_when_it_is_made(make: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_plain_mistakes_are_plain_errors() -> None:
    with AgentSystem("memory:", run=False) as system:
        for mistake, error in (
            (lambda: system.spawn(work, "x", id=5), "a task's id has 1 to 200 characters"),  # type: ignore[arg-type]
            (lambda: system.spawn(work, "x", tags=["a"]), "tags are texts by name"),  # type: ignore[arg-type]
            (lambda: system.spawn(work, "x", tags={"a": 1}), "tags are texts by name"),  # type: ignore[dict-item]
            (lambda: system.tasks(status="x"), "there is no status 'x'"),  # type: ignore[arg-type]
            (lambda: system.task("t").resolve("1"), "say one of three"),
        ):
            with pytest.raises(Exception, match=error):
                mistake()
