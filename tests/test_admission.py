"""Many tasks: what sleeps, waits for a place or is another worker's costs a row; what is due is run in its order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors import AgentSystem, agent, recovery, step
from actors.appender import Appender
from actors.definitions import known_agents
from actors.task_log import TaskLog
from actors.testing import FakeClock
from domain.events import TaskEvent
from domain.task import AgentTask
from stores import SQLiteStore
from stores.sqlite_file import SQLiteFile
from tests.benchmarks.rows import fill
from tests.lives import PATIENCE, wait_for

MANY = 2000
FAR = 4e9
"""Unix seconds at which no test runs any more."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(str(path)) as store:
        yield store


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give how many rows each question to the file was answered with, from now on."""
    counts, read = [], SQLiteFile.read

    def count(file: SQLiteFile, *args: Any) -> list[Any]:
        rows = read(file, *args)
        counts.append(len(rows))
        return rows

    monkeypatch.setattr(SQLiteFile, "read", count)
    return counts


order: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_has_run() -> None:
    order.clear()


@step(idempotent=True)
def note(number: int) -> int:
    order.append(number)
    return number


@agent(name="admission.quick")
def quick(number: int) -> int:
    return note(number)


@agent(name="admission.quick_too")
def quick_too(number: int) -> int:
    return note(number)


@agent(name="admission.sleeper")
def sleeper() -> None:
    """Known here, and asleep in these tests."""


CROWDS = {
    "asleep": {"status": "waiting", "agent": "admission.sleeper", "due": FAR},
    "queued for an agent that nobody here knows": {"status": "queued", "agent": "unknown", "due": 1.0},
    "asleep and unknown": {"status": "waiting", "agent": "unknown", "due": FAR},
    "ended": {"status": "completed", "agent": "admission.quick"},
    "held for a person": {"status": "held", "agent": "admission.quick", "hold": "in doubt"},
    "held for code that nobody here knows": {"status": "held", "agent": "unknown", "hold": "differs"},
}


@pytest.mark.parametrize("crowd", CROWDS.values(), ids=CROWDS.keys())
@pytest.mark.parametrize("only", [None, "new"])
def test_tasks_that_do_not_run_cost_no_thread_and_are_not_read_by_who_runs_another(
    path: Path, rows_read: list[int], crowd: dict[str, Any], only: str | None
) -> None:
    fill(path, MANY, **crowd)
    before = threading.enumerate()
    with AgentSystem(f"sqlite:///{path}", only=only) as system:
        rows_read.clear()
        assert system.spawn(quick, 1, id="new").result(PATIENCE) == 1
        threads = [thread for thread in threading.enumerate() if thread not in before]
        wait_for(lambda: len(rows_read) > 12)
        assert max(rows_read) <= 100 + len(known_agents())  # a page, and one for each agent, whatever was asked
        if crowd.get("hold") != "differs":  # those are gone through once, a page at a time
            each = len(known_agents())  # a row or so a look for each agent that the process knows
            assert sum(rows_read) < MANY + each * len(rows_read)
    assert len(threads) <= 4  # supervisor, lease, recovery, and the actor that has just ended


def test_five_hundred_tasks_with_eight_places_take_eight_threads_and_all_end(store: SQLiteStore) -> None:
    places, lock, running, most, threads = 8, threading.Lock(), set[int](), [0], [0]
    before = threading.enumerate()

    @agent(name="admission.counted")
    def counted(number: int) -> int:
        with lock:
            running.add(number)
            most[0] = max(most[0], len(running))
        threads[0] = max(threads[0], sum(thread not in before for thread in threading.enumerate()))
        with lock:
            running.discard(number)
        return number

    with AgentSystem(store, run=False) as client:
        for number in range(500):
            client.spawn(counted, number, id=f"task-{number}")
    with AgentSystem(store, max_active=places) as system:
        assert [system.task(f"task-{number}").result(PATIENCE * 2) for number in range(500)] == [*range(500)]
    assert most[0] <= places
    assert threads[0] <= 2 * places + 2  # recovery, the supervisor, and those that have just given their place back


def test_a_spawn_waits_for_no_place(store: SQLiteStore) -> None:
    go, arrived = threading.Event(), threading.Semaphore(0)

    @step
    def block() -> None:
        arrived.release()
        go.wait(PATIENCE)

    @agent(name="admission.blocked")
    def blocked() -> None:
        block()

    with AgentSystem(store, max_active=4) as system:
        tasks = [system.spawn(blocked) for _ in range(4)]
        for _ in tasks:
            assert arrived.acquire(timeout=PATIENCE)
        late = [system.spawn(quick, number) for number in range(50)]
        assert [task.status() for task in late] == ["queued"] * 50
        assert [task.status() for task in tasks] == ["running"] * 4
        go.set()
        assert [task.result(PATIENCE) for task in late] == [*range(50)]


# In which order


def test_what_is_due_first_is_run_first_whoever_its_agent_is(path: Path) -> None:
    fill(path, MANY, status="queued", agent="unknown", due=1.0)
    url = f"sqlite:///{path}"
    with AgentSystem(url, run=False) as client:
        for number in range(30):
            client.spawn((quick, quick_too)[number % 3 == 0], number, id=f"task-{-number}")
    with AgentSystem(url, max_active=1) as system:
        assert system.task("task--29").result(PATIENCE) == 29
    assert order == [*range(30)]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_task_behind_any_number_of_running_ones_is_found(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Each of them waits for the next one in a body, and lends its place meanwhile: the last is behind all of them."""
    monkeypatch.setattr(recovery, "SPARE", 0)
    monkeypatch.setattr(recovery, "BATCH", batch)

    @step
    def wait_for_next(depth: int) -> int:
        return 1 + system.spawn(nested, depth - 1, id=f"depth-{depth - 1}").result(PATIENCE)

    @agent(name="admission.nested")
    def nested(depth: int) -> int:
        return wait_for_next(depth) if depth else 0

    with AgentSystem(store, max_active=1) as system:
        assert system.spawn(nested, 12, id="depth-12").result(PATIENCE) == 12


def test_what_is_held_for_other_code_and_what_is_due_take_turns(store: SQLiteStore) -> None:
    """A new release starts beside many held tasks that its code fits: neither kind waits for the end of the other."""
    log = TaskLog(store)
    for number in range(20):
        log.create(f"held-{number}", "admission.quick", [[-number], {}], {})
        appender = Appender(log, log.load(f"held-{number}"))
        appender.append(partial(_activate, "gone"))
        appender.append(lambda task, now: task.hold(1, now, "differs", "", {"message": "for a test"}))
    for number in range(1, 21):
        log.create(f"due-{number}", "admission.quick", [[number], {}], {})
    with AgentSystem(store, max_active=1) as system:
        for number in range(1, 21):
            assert system.task(f"due-{number}").result(PATIENCE) == number
        wait_for(lambda: len(order) == 40)
    assert [number for number in order if number > 0] == [*range(1, 21)]
    assert [number for number in order if number <= 0] == [-number for number in range(20)]
    assert 8 <= sum(number > 0 for number in order[:20]) <= 12


def _activate(worker: str, task: AgentTask, now: float) -> list[TaskEvent]:
    return task.activate(now, worker=worker, token="t", limit=None)


class ListeningClock(FakeClock):
    """A clock that keeps until when it was told that there is nothing to do."""

    def __init__(self) -> None:
        super().__init__(jump=True)
        self.heard: list[float | None] = []

    def idle(self, until: float | None) -> None:
        self.heard.append(until)
        super().idle(until)


@pytest.mark.parametrize("only", [None, "known-000000000"])
def test_a_worker_sleeps_until_a_task_is_due_that_it_could_run(path: Path, only: str | None) -> None:
    clock = ListeningClock()
    start = clock.now()
    fill(path, 5, status="waiting", agent="unknown" if only is None else "admission.sleeper", due=start + 100)
    fill(path, 1, status="waiting", agent="admission.sleeper", due=start + 500, prefix="known")
    with AgentSystem(f"sqlite:///{path}", clock=clock, only=only):
        wait_for(lambda: clock.now() > start)
    assert clock.heard[0] == start + 500
