"""Durable waits: time, signals and the first of several; what is in the log decides, whatever dies or jumps."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import tracemalloc
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors import (
    AgentSystem,
    Signal,
    Timer,
    agent,
    gather,
    open_store,
    receive,
    request_approval,
    sleep,
    sleep_async,
    sleep_until,
    step,
    wait_any,
)
from actors.task_log import TaskLog, index_row
from actors.testing import CrashPlan, FakeClock
from domain.events import Activated, TaskEvent, WaitBegan, WaitEnded
from domain.fold import fold
from stores import IndexRow, Store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, kinds, log, wait_for
from tests.waiters import WAITERS, check_waits

BOTH = pytest.mark.parametrize("colour", ["sync", "async"])
numbers = itertools.count()


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still."""
    return FakeClock()


@agent(name="waits: nothing")
def nothing() -> None: ...


def look_round(system: AgentSystem) -> None:
    """Let recovery look at what is due: it has run another task since, whose turn came last."""
    system.spawn(nothing).result(PATIENCE)


def of_kind(disk: Store, kind: type[TaskEvent]) -> list[Any]:
    return [event for event in log(disk) if isinstance(event, kind)]


def other(clock: FakeClock) -> FakeClock:
    """Give the clock of another process: the same time on the wall, and a monotonic one of its own."""
    return FakeClock(clock.now())


def kill(disk: Store, clock: FakeClock, program: list[Any], colour: str, when: str = "waiting") -> None:
    """Run a program as task `t` until it has a status, and kill its process."""
    plan = CrashPlan(None)
    life = CrashingStore(disk, plan)
    with AgentSystem(life, clock=clock) as system:
        task = system.spawn(WAITERS[colour], program, id="t")
        wait_for(lambda: task.status() == when)
        plan.die_now("killed")
    life.close()


# ------------------------------------------------------------------ time


@BOTH
@pytest.mark.parametrize("what", ["sleep", "until"])
def test_a_sleep_is_a_row_until_its_due_time_which_is_in_the_log(
    disk: Store, clock: FakeClock, colour: str, what: str
) -> None:
    start = clock.now()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(WAITERS[colour], [[what, 100]], id="t")
        wait_for(lambda: task.status() == "waiting")
        (row,) = [row for row in system.log.recorder.select_entries() if row.id == "t"]
        assert (row.due, row.owner) == (start + 100, None)
        clock.advance(99.5)
        look_round(system)
        assert task.status() == "waiting"
        clock.advance(0.5)
        assert task.result(PATIENCE) == [None]
    (wait,) = of_kind(disk, WaitBegan)
    assert wait.due[0] == start + 100
    assert kinds(disk).count("WaitEnded") == 1
    check_waits(log(disk))


@pytest.mark.parametrize("length", [0, 0.0, timedelta(0)])
def test_a_sleep_of_no_length_is_over_at_once_and_in_the_log(disk: Store, clock: FakeClock, length: Any) -> None:
    @agent(name="waits: no length")
    def flow() -> None:
        sleep(length)

    with AgentSystem(disk, clock=clock) as system:
        assert system.spawn(flow, id="t").result(PATIENCE) is None
    assert kinds(disk) == ["Created", "Activated", "WaitEnded", "Completed"]


def test_lengths_are_seconds_or_timedeltas_and_moments_have_a_zone(disk: Store, clock: FakeClock) -> None:
    start = clock.now()

    @agent(name="waits: lengths")
    def flow() -> None:
        sleep(timedelta(minutes=1))
        sleep_until(datetime.fromtimestamp(start + 90, UTC))

    with AgentSystem(disk, clock=FakeClock(start, jump=True)) as system:
        system.spawn(flow, id="t").result(PATIENCE)
    assert [event.due[0] for event in of_kind(disk, WaitBegan)] == [start + 60, start + 90]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sleep(-1), "a sleep is a timedelta, or seconds from 0"),
        (lambda: sleep(float("nan")), "a sleep is"),
        (lambda: sleep(float("inf")), "a sleep is"),
        (lambda: sleep(True), "a sleep is"),
        (lambda: sleep("1"), "a sleep is"),  # type: ignore[arg-type]
        (lambda: receive("a", timeout=-1), "a timeout is"),
        (lambda: sleep_until(datetime(2026, 1, 1)), "with a zone"),
        (lambda: sleep_until(5), "is a datetime, not 5"),  # type: ignore[arg-type]
        (wait_any, "give at least one thing"),
        (lambda: wait_any("a"), "nothing can wait for argument 1"),  # type: ignore[arg-type]
        (lambda: wait_any(Timer(-1)), "a timer is"),
        (lambda: wait_any(Signal("~x")), "the name of a signal"),
        (lambda: receive("\n"), "the name of a signal"),
        (lambda: request_approval(" "), "a question is a text"),
        (lambda: request_approval(5), "a question is a text"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_waited_for_is_refused_with_what_was_given(call: Any, says: str) -> None:
    @agent(name="waits: refused")
    def flow() -> str:
        try:
            call()
        except (ValueError, TypeError) as error:
            return str(error)
        return ""

    with AgentSystem("memory:") as system:
        task = system.spawn(flow)
        assert says in task.result(PATIENCE)
        assert not [event for event in task.events() if isinstance(event, WaitBegan | WaitEnded)]


@BOTH
@pytest.mark.parametrize("what", ["sleep", "until"])
def test_a_restart_neither_shortens_nor_lengthens_a_sleep(
    disk: Store, clock: FakeClock, colour: str, what: str
) -> None:
    """It begins at 0, its process is killed at 40, another begins at 60: it is over at 100."""
    program = [[what, 100]]
    kill(disk, clock, program, colour)
    later = FakeClock(clock.now() + 60)
    with AgentSystem(disk, clock=later) as system:
        look_round(system)
        later.advance(39.5)
        look_round(system)
        assert system.task("t").status() == "waiting"
        later.advance(0.5)
        assert system.task("t").result(PATIENCE) == [None]
    assert [event.number for event in of_kind(disk, Activated)] == [1, 2]


@BOTH
@pytest.mark.parametrize(
    "program", [[["sleep", 100]], [["until", 100]], [["receive", "a", 100]], [["any", [], 9, 100]]]
)
def test_what_is_overdue_is_over_at_once_and_once(
    disk: Store, clock: FakeClock, colour: str, program: list[Any]
) -> None:
    kill(disk, clock, program, colour)
    later = FakeClock(clock.now() + 10_000)
    with ExitStack() as stack:
        systems = [stack.enter_context(AgentSystem(disk, clock=later)) for _ in range(3)]
        systems[0].task("t").result(PATIENCE)
    assert kinds(disk).count("WaitEnded") == kinds(disk).count("Completed") == 1
    assert [event.number for event in of_kind(disk, Activated)] == [1, 2]
    check_waits(log(disk))


# ------------------------------------------------------------------ a wall clock that jumps


class Sleeper:
    """A task `t` that sleeps, as a row or in place: then a step beside it keeps the task from being unwound."""

    def __init__(self, system: AgentSystem, colour: str, what: str, where: str) -> None:
        self.go, here = threading.Event(), threading.Event()
        sleeping = [[what, 100], ["step", "awake"]]

        @step(name="waits: beside")
        def beside() -> None:
            here.set()
            assert self.go.wait(PATIENCE)

        from tests.waiters import walk, walk_async

        start = system.runtime.clock.now()

        @agent(name=f"waits: sleeper {next(numbers)}")
        def flow() -> Any:
            return gather(lambda: walk(sleeping, start), beside)

        @agent(name=f"waits: async sleeper {next(numbers)}")
        async def flow_async() -> Any:
            return await gather(walk_async(sleeping, start), beside.aio())

        if where == "row":
            self.go.set()
        self.task = system.spawn(flow if colour == "sync" else flow_async, id="t")
        assert here.wait(PATIENCE)
        if where == "row":
            wait_for(lambda: self.task.status() == "waiting")
        else:
            wait_for(lambda: any(isinstance(event, WaitBegan) for event in self.task.events()))

    def is_awake(self) -> bool:
        return any(isinstance(event, WaitEnded) for event in self.task.events())

    def ends_once(self) -> None:
        """Let it go on to its end, and check that its wait has ended once, for few activations."""
        wait_for(self.is_awake)
        self.go.set()
        self.task.result(PATIENCE)
        events = [type(event) for event in self.task.events()]
        assert events.count(WaitEnded) == 1
        assert events.count(Activated) <= 3


ANYWHERE = pytest.mark.parametrize(("where", "jump"), list(itertools.product(["row", "in place"], [3600, -3600])))


@BOTH
@ANYWHERE
def test_a_sleep_for_a_while_follows_elapsed_time_whatever_the_wall_is_set_to(
    disk: Store, clock: FakeClock, colour: str, where: str, jump: float
) -> None:
    with AgentSystem(disk, clock=clock) as system:
        sleeper = Sleeper(system, colour, "sleep", where)
        clock.set_wall(jump)
        look_round(system)
        clock.advance(99)
        look_round(system)
        assert not sleeper.is_awake()
        clock.advance(1)
        sleeper.ends_once()


@BOTH
@ANYWHERE
def test_a_sleep_until_a_moment_follows_the_wall(
    disk: Store, clock: FakeClock, colour: str, where: str, jump: float
) -> None:
    with AgentSystem(disk, clock=clock) as system:
        sleeper = Sleeper(system, colour, "until", where)
        clock.set_wall(jump)
        if jump < 0:
            clock.advance(3699)
            look_round(system)
            assert not sleeper.is_awake()
            clock.advance(1)
        sleeper.ends_once()


def test_a_sleep_that_began_while_the_wall_was_ahead_is_over_when_its_time_has_passed(
    disk: Store, clock: FakeClock
) -> None:
    with AgentSystem(disk, clock=clock) as system:
        clock.set_wall(3600)
        task = system.spawn(WAITERS["sync"], [["sleep", 100]], id="t")
        wait_for(lambda: task.status() == "waiting")
        clock.set_wall(-3600)
        clock.advance(99)
        look_round(system)
        assert task.status() == "waiting"
        clock.advance(1)
        assert task.result(PATIENCE) == [None]


@pytest.mark.parametrize("what", ["sleep", "until"])
def test_while_the_wall_is_set_back_nobody_claims_or_reads_in_a_loop(
    disk: Store, clock: FakeClock, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, looks, recorder = list[str](), list[float](), disk.recorder
    select_events, select_ready = recorder.select_events, recorder.select_ready

    def counted(task_id: str, *given: Any, **options: Any) -> Any:
        reads.append(task_id)
        return select_events(task_id, *given, **options)

    def looked(now: float, **options: Any) -> Any:
        looks.append(now)
        return select_ready(now, **options)

    monkeypatch.setattr(recorder, "select_events", counted)
    monkeypatch.setattr(recorder, "select_ready", looked)
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(WAITERS["sync"], [["sleep", 500], [what, 1000]], id="t")
        wait_for(lambda: task.status() == "waiting")
        clock.set_wall(-10_000)
        clock.advance(500)
        wait_for(lambda: kinds(disk).count("WaitBegan") == 2)
        wait_for(lambda: task.status() == "waiting")
        clock.advance(499)
        look_round(system)
        before, since = reads.count("t"), len(looks)
        wait_for(lambda: len(looks) >= since + 8)
        assert reads.count("t") <= before + 2, "and not at each look"
        clock.advance(501 if what == "sleep" else 10_001)
        assert task.result(PATIENCE) == [None, None]
    assert kinds(disk).count("Activated") <= 3


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    program=st.lists(st.tuples(st.sampled_from(["sleep", "until"]), st.integers(0, 300)), min_size=1, max_size=3),
    jumps=st.lists(st.tuples(st.integers(-500, 500), st.integers(0, 200)), max_size=4),
    colour=st.sampled_from(["sync", "async"]),
)
def test_whatever_the_wall_is_set_to_nothing_is_over_twice_or_never(
    program: list[tuple[str, int]], jumps: list[tuple[int, int]], colour: str
) -> None:
    clock = FakeClock()
    with AgentSystem("memory:", clock=clock) as system:
        task = system.spawn(WAITERS[colour], [["gather", [[list(one)] for one in program]]])
        wait_for(lambda: sum(isinstance(event, WaitBegan | WaitEnded) for event in task.events()) == len(program))
        for jump, seconds in jumps:
            clock.set_wall(jump)
            clock.advance(seconds)
        clock.advance(5000)
        assert task.result(PATIENCE) == [[[None]] * len(program)]
        ends = [event.path for event in task.events() if isinstance(event, WaitEnded)]
    assert sorted(ends) == sorted(set(ends))
    assert len(ends) == len(program)


# ------------------------------------------------------------------ the clock of the kit


@BOTH
def test_a_clock_that_jumps_goes_to_what_is_due_first_of_all_tasks(disk: Store, colour: str) -> None:
    clock, woken = FakeClock(jump=True), list[tuple[int, float]]()
    start = clock.now()

    @step(name="waits: woken")
    def awake(seconds: int) -> None:
        woken.append((seconds, clock.now() - start))

    @agent(name="waits: sleeps")
    def flow(seconds: int) -> None:
        sleep(seconds)
        awake(seconds)

    @agent(name="waits: sleeps async")
    async def flow_async(seconds: int) -> None:
        await sleep_async(seconds)
        await awake.aio(seconds)

    with AgentSystem(disk, run=False, clock=clock) as client:
        for seconds in (300, 100, 200):
            client.spawn(flow if colour == "sync" else flow_async, seconds, id=f"t{seconds}")
    with AgentSystem(disk, clock=clock) as system:
        for seconds in (300, 100, 200):
            system.task(f"t{seconds}").result(PATIENCE)
    assert [seconds for seconds, _ in woken] == [100, 200, 300]
    assert [at for _, at in woken] == pytest.approx([100, 200, 300], abs=1)


def test_a_clock_that_jumps_does_not_pass_over_what_another_task_is_to_bring(disk: Store) -> None:
    clock = FakeClock(jump=True)

    @step(name="waits: bring")
    def bring() -> None:
        system.task("t").signal("a", "in time")

    @agent(name="waits: brings")
    def bringer() -> None:
        sleep(0.5)
        sleep(40)
        bring()

    with AgentSystem(disk, run=False, clock=clock) as client:
        client.spawn(WAITERS["sync"], [["receive", "a", 50]], id="t")
        client.spawn(bringer, id="b")
    with AgentSystem(disk, clock=clock) as system:
        assert system.task("t").result(PATIENCE) == ["in time"]


# ------------------------------------------------------------------ many


def test_twenty_thousand_sleepers_cost_rows_and_neither_threads_nor_memory(tmp_path: Path, clock: FakeClock) -> None:
    many, disk = 20_000, open_store(f"sqlite:///{tmp_path}/tasks.db")
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(WAITERS["sync"], [["sleep", 1000]], id="t")
        wait_for(lambda: task.status() == "waiting")
    due = [copy(disk, "t", f"due-{number}") for number in range(5)]
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection, connection:
        columns = ", ".join(name for name in IndexRow._fields if name not in ("id", "due"))
        numbered = f"WITH n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<{many})"
        sql = f"SELECT 'later-' || i, due + i, {columns} FROM task_index, n WHERE id='t'"
        connection.execute(f"{numbered} INSERT INTO task_index (id, due, {columns}) {sql}")
    tracemalloc.start()
    with AgentSystem(disk, clock=clock) as system:
        look_round(system)
        before = threading.active_count()
        clock.advance(999)
        look_round(system)
        assert threading.active_count() <= before + 2
        assert system.task("t").status() == "waiting"
        clock.advance(1)
        for name in ["t", *due]:
            assert system.task(name).result(PATIENCE) == [None]
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size < 4_000_000
        assert sum(row.status == "waiting" for row in system.log.recorder.select_entries()) == many
    disk.close()


def copy(disk: Store, task_id: str, name: str) -> str:
    """Write the log of a task once more, under another id."""
    log = TaskLog(disk)
    mine = [type(event)(name, *list(event.__dict__.values())[1:]) for event in log.events.get(task_id)]
    task = fold(None, mine)
    assert task is not None
    rows = [log.mapper.to_stored_event(event, birth=task.birth, token=b"12345678") for event in mine]
    disk.recorder.insert_events(rows, entry=index_row(task), expected=None)
    return name


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_a_time_that_not_every_clock_can_show_is_refused(disk: Store, year: int) -> None:
    far = datetime(year, 6, 1, tzinfo=UTC)

    @agent(name=f"waits: in the year {year}")
    def flow() -> list[str]:
        said = list[str]()
        for wait in (lambda: sleep_until(far), lambda: wait_any(Timer(far))):
            with pytest.raises(ValueError, match="from the year 1970 to 9998") as refused:
                wait()
            said.append(str(refused.value))
        return said

    with AgentSystem(disk) as system:
        assert len(system.spawn(flow).result(PATIENCE)) == 2
        with pytest.raises(ValueError, match="a deadline is from the year 1970 to 9998"):
            system.spawn(flow, deadline=far)
