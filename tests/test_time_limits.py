"""Time limits and heartbeats: a body that is given up is in doubt, and nothing that it does later counts."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from actors import (
    AgentSystem,
    Doubt,
    GivenUp,
    Happened,
    NotHappened,
    OutsideTaskError,
    StepError,
    StepInfo,
    StepTimeoutError,
    StoreUnavailableError,
    TaskFailedError,
    Unknown,
    UnstorableValueError,
    agent,
    gather,
    heartbeat,
    map_steps,
    open_store,
    step,
    step_info,
)
from actors.testing import CrashPlan, FakeClock, SimulatedCrash, every_crash_point
from domain.events import Passivated, StepFailed, StepStarted, StepSucceeded
from stores import Store
from stores.crash import CrashingStore, FaultPlan
from tests.lives import PATIENCE, bodies, decide, die, held, kinds, live, log, wait_for
from tests.scenario_kit import KILLED, World

SOON = 0.5
"""Seconds after which a body that hangs is given up; one that does not hang has ended by then."""
COLOURS = ["sync", "async", "sync in async", "async in sync"]


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


class Gate:
    """Where bodies hang, until the test lets them go on, or is over."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.over = False

    def hang(self) -> None:
        self.opened.wait(2 * PATIENCE)
        if self.over:
            raise GivenUp

    async def hang_async(self) -> None:
        await asyncio.sleep(2 * PATIENCE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.over = True
    gate.opened.set()


class Slow:
    """An agent of one step, which hangs in its first `times` attempts; `then` is what they do if they are let go on."""

    def __init__(
        self,
        gate: Gate,
        colour: str = "sync",
        times: int = 1,
        then: Callable[[], Any] = lambda: "old value",
        before: Callable[[], Any] = lambda: None,
        **options: Any,
    ) -> None:
        self.infos: list[StepInfo] = []
        self.ends: list[str] = []
        options = {"timeout": SOON, "backoff": 0} | options

        def hangs() -> bool:
            self.infos.append(step_info())
            return len(self.infos) <= times

        def body() -> Any:
            if not hangs():
                return "new value"
            before()
            gate.hang()
            return then()

        async def body_async() -> Any:
            if not hangs():
                return "new value"
            before()
            try:
                await gate.hang_async()
            except asyncio.CancelledError:
                self.ends.append("cancelled")
                raise
            return None

        @agent(name=f"limits: slow, {colour}")
        def flow() -> Any:
            one: Any = self.step
            return one.sync() if colour == "async in sync" else one()

        @agent(name=f"limits: slow, {colour}")
        async def flow_async() -> Any:
            one: Any = self.step
            return await (one.aio() if colour == "sync in async" else one())

        self.step: Any = step(name="slow", **options)(body_async if colour.startswith("async") else body)
        self.flow: Any = flow_async if colour in ("async", "sync in async") else flow

    @property
    def attempts(self) -> list[int]:
        return [info.attempt for info in self.infos]


def failures(disk: Store) -> list[StepFailed]:
    return [event for event in log(disk) if isinstance(event, StepFailed)]


def failed(disk: Store, flow: Any, *args: Any, **options: Any) -> TaskFailedError:
    with pytest.raises(TaskFailedError) as caught:
        live(disk, flow, *args, **options)
    return caught.value


def late(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Give the notices of late results."""
    return [record.getMessage() for record in caplog.records if "late result dropped" in record.getMessage()]


def beats(disk: Store) -> list[Any]:
    """Give the rows of heartbeats that are left of the task."""
    row = disk.recorder.select_entry("t")
    assert row is not None
    found = [disk.recorder.select_heartbeat("t", row.birth, path) for path in ("1", "2")]
    return [one for one in found if one is not None]


# ------------------------------------------------------------------ one attempt


@pytest.mark.parametrize("colour", COLOURS)
def test_a_body_that_passes_its_limit_is_given_up_and_the_next_attempt_counts(
    disk: Store, gate: Gate, colour: str
) -> None:
    slow = Slow(gate, colour, retries=1)
    assert live(disk, slow.flow) == "new value"
    assert slow.attempts == [1, 2]
    assert len({info.idempotency_key for info in slow.infos}) == 1
    assert slow.ends == (["cancelled"] if colour.startswith("async") else [])
    (failure,) = failures(disk)
    assert failure.error["message"] == f"it was given up at its time limit, after {SOON} s"
    assert failure.attempt == 1


@pytest.mark.parametrize("colour", COLOURS)
def test_without_retries_a_time_out_is_the_step_error_of_its_step(disk: Store, gate: Gate, colour: str) -> None:
    slow = Slow(gate, colour, timeout=0.1)
    error = failed(disk, slow.flow)
    assert error.fault.is_a(StepTimeoutError)
    assert error.fault.is_a(TimeoutError)
    assert "step 1 slow: it was given up at its time limit, after 0.1 s" in str(error)
    assert slow.attempts == [1]


def test_retries_bound_the_attempts_that_time_out(disk: Store, gate: Gate) -> None:
    slow = Slow(gate, times=9, timeout=0.1, retries=2)
    error = failed(disk, slow.flow)
    assert slow.attempts == [1, 2, 3]
    assert error.fault.is_a(StepTimeoutError)
    assert [failure.retry_at is None for failure in failures(disk)] == [False, False, True]


def test_a_time_out_is_an_error_that_a_policy_may_give_up_on(disk: Store, gate: Gate) -> None:
    slow = Slow(gate, times=9, timeout=0.1, retries=2, give_up_on=TimeoutError)
    failed(disk, slow.flow)
    assert slow.attempts == [1]


def test_an_idempotent_step_has_limits_as_well(disk: Store, gate: Gate) -> None:
    slow = Slow(gate, retries=1, idempotent=True)
    assert live(disk, slow.flow) == "new value"
    assert slow.attempts == [1, 2]
    assert "StepStarted" not in kinds(disk)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_body_within_its_limits_is_left_alone(disk: Store, gate: Gate, colour: str) -> None:
    slow = Slow(gate, colour, times=0, timeout=PATIENCE, heartbeat_timeout=PATIENCE, total_timeout=PATIENCE)
    assert live(disk, slow.flow) == "new value"
    assert kinds(disk) == ["Created", "Activated", "StepStarted", "StepSucceeded", "Completed"]


def test_a_limited_body_runs_on_a_thread_of_its_own_in_the_context_of_its_agent(disk: Store) -> None:
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour")
    threads: list[int] = []

    @step(name="look", timeout=PATIENCE)
    def look() -> str:
        threads.append(threading.get_ident())
        return f"{colour.get()} {step_info().name}"

    @agent
    def flow() -> str:
        colour.set("red")
        threads.append(threading.get_ident())
        return look()

    assert live(disk, flow) == "red look"
    assert len(set(threads)) == 2


# ------------------------------------------------------------------ all attempts


def test_no_retry_is_due_after_the_limit_over_all_attempts(disk: Store) -> None:
    ran: list[int] = []

    @step(name="fetch", retries=9, backoff=10, jitter=0, total_timeout=25)
    def fetch() -> None:
        ran.append(step_info().attempt)
        raise ConnectionError("no answer")

    @agent
    def flow() -> None:
        fetch()

    assert failed(disk, flow, clock=FakeClock(jump=True)).fault.is_a(ConnectionError)
    assert ran == [1, 2], "at 0 s and at 10 s; at 30 s it would be too late"


def test_a_body_may_take_what_is_left_of_the_limit_over_all_attempts(disk: Store, gate: Gate) -> None:
    slow = Slow(gate, times=9, timeout=PATIENCE, total_timeout=0.2, retries=9)
    error = failed(disk, slow.flow)
    assert "given up at the limit over all its attempts, after 0.2 s" in str(error)
    assert slow.attempts == [1]


def test_the_smaller_of_two_limits_counts(disk: Store, gate: Gate) -> None:
    slow = Slow(gate, times=9, timeout=0.1, total_timeout=PATIENCE)
    assert "at its time limit, after 0.1 s" in str(failed(disk, slow.flow))


@pytest.mark.parametrize("how", ["during the wait", "in the body"])
def test_a_process_that_comes_back_after_the_limit_over_all_attempts_runs_nothing_more(disk: Store, how: str) -> None:
    clock, ran = FakeClock(), list[int]()

    @step(name="fetch", retries=9, backoff=50, total_timeout=60)
    def fetch() -> None:
        ran.append(step_info().attempt)
        raise ConnectionError("no answer")

    @agent
    def flow() -> None:
        fetch()

    life = CrashingStore(disk, CrashPlan(1, "retry.wait" if how == "during the wait" else "body.after"))
    with pytest.raises(SimulatedCrash), AgentSystem(life, clock=clock) as system:
        system.spawn(flow, id="t").result(PATIENCE)
    life.close()
    clock.advance(61)
    error = failed(disk, flow, clock=clock)
    assert "the limit over all its attempts, 60 s, has passed; the last one may have happened" in str(error)
    assert ran == [1]
    assert failures(disk)[-1].attempt == 1


# ------------------------------------------------------------------ late results


def fails() -> None:
    raise ValueError("old value")


@pytest.mark.parametrize("colour", ["sync", "sync in async"])
@pytest.mark.parametrize(("then", "how"), [(lambda: "old value", "with a value"), (fails, "with ValueError")])
def test_what_a_body_does_after_it_was_given_up_is_dropped_with_one_notice(
    tmp_path: Path, gate: Gate, colour: str, then: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as disk:
        slow = Slow(gate, colour, then=then, retries=1)
        with AgentSystem(disk) as system:
            assert system.spawn(slow.flow, id="t").result(PATIENCE) == "new value"
            before = log(disk)
            assert late(caplog) == []
            gate.opened.set()
            wait_for(lambda: late(caplog) != [])
        assert log(disk) == before
    (notice,) = late(caplog)
    assert f"step 1 slow of task t, attempt 1, has ended after all ({how}), but it was given up" in notice
    assert caplog.records[-1].levelno == logging.WARNING
    for file in tmp_path.glob("tasks.db*"):
        assert file.is_dir() or b"old value" not in file.read_bytes()


@pytest.mark.parametrize("colour", ["async", "async in sync"])
@pytest.mark.parametrize("prompt", [True, False], ids=["at once", "later"])
def test_a_coroutine_that_swallows_its_cancellation_is_dropped_too(
    disk: Store, colour: str, prompt: bool, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[int] = []
    endings: list[Callable[[], object]] = []

    async def body() -> str:
        attempts.append(step_info().attempt)
        if len(attempts) == 2:
            return "new value"
        may_end = asyncio.Event()
        endings.append(partial(asyncio.get_running_loop().call_soon_threadsafe, may_end.set))
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            if not prompt:
                await may_end.wait()
        return "old value"

    slow = step(name="slow", timeout=SOON, retries=1, backoff=0)(body)

    @agent(name="limits: swallows")
    def flow() -> str:
        return slow.sync()

    @agent(name="limits: swallows, async")
    async def flow_async() -> str:
        return await slow()

    chosen: Any = flow_async if colour == "async" else flow
    with AgentSystem(disk) as system:
        assert system.spawn(chosen, id="t").result(PATIENCE) == "new value"
        assert len(late(caplog)) == prompt
        endings[0]()
        wait_for(lambda: late(caplog) != [])
    assert len(late(caplog)) == 1
    assert attempts == [1, 2]
    assert [event.value for event in log(disk) if isinstance(event, StepSucceeded)] == ["new value"]


def test_a_body_that_ends_while_its_doubt_is_settled_has_one_outcome(
    disk: Store, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    def let_it_end() -> None:
        gate.opened.set()
        wait_for(lambda: late(caplog) != [])

    slow = Slow(gate, retries=1)
    assert live(CrashingStore(disk, CrashPlan(1, "body.given up", let_it_end)), slow.flow) == "new value"
    assert [type(event).__name__ for event in log(disk) if isinstance(event, StepSucceeded | StepFailed)] == [
        "StepFailed",
        "StepSucceeded",
    ]
    assert len(late(caplog)) == 1


def settled(call: Callable[[], str]) -> str:
    try:
        return call()
    except StepError as error:
        return "given up" if error.is_a(StepTimeoutError) else str(error)


async def settled_async(awaitable: Awaitable[str]) -> str:
    try:
        return await awaitable
    except StepError as error:
        return "given up" if error.is_a(StepTimeoutError) else str(error)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_body_that_ends_at_the_very_moment_of_its_limit_has_exactly_one_outcome(
    disk: Store, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    limit, never = 0.15, threading.Event()
    ends = [limit + offset / 2000 for offset in range(-20, 20)]

    @step(name="close", timeout=limit)
    def close(end: float) -> str:
        never.wait(end)
        return "in time"

    @step(name="close", timeout=limit)
    async def close_async(end: float) -> str:
        try:
            await asyncio.sleep(end)
        except asyncio.CancelledError:
            return "late"
        return "in time"

    @agent(name="limits: close")
    def flow() -> list[str]:
        return map_steps(lambda end: settled(partial(close, end)), ends)

    @agent(name="limits: close, async")
    async def flow_async() -> list[str]:
        return await map_steps(lambda end: settled_async(close_async(end)), ends)

    chosen: Any = flow if colour == "sync" else flow_async
    with AgentSystem(disk) as system:
        results = system.spawn(chosen, id="t").result(PATIENCE)
        wait_for(lambda: len(late(caplog)) == results.count("given up"))
    assert set(results) <= {"in time", "given up"}
    outcomes = [event for event in log(disk) if isinstance(event, StepSucceeded | StepFailed)]
    assert len({event.path for event in outcomes}) == len(outcomes) == len(ends)
    assert len(late(caplog)) == results.count("given up")


# ------------------------------------------------------------------ doubt


def test_on_doubt_hold_holds_a_body_that_was_given_up(disk: Store, gate: Gate) -> None:
    slow = Slow(gate, on_doubt="hold", retries=5, timeout=0.1)
    error = held(disk, slow.flow)
    assert error.reason == "in doubt"
    assert "was given up at its time limit, after 0.1 s" in str(error)
    assert slow.infos[0].idempotency_key in str(error)
    gate.opened.set()
    assert held(disk, slow.flow).reason == "in doubt"
    decide(disk, value="by hand")
    assert live(disk, slow.flow) == "by hand"
    assert slow.attempts == [1]
    assert failures(disk) == []


def test_a_person_may_have_a_body_that_was_given_up_run_again(disk: Store, gate: Gate) -> None:
    slow = Slow(gate, on_doubt="hold")
    held(disk, slow.flow)
    decide(disk, rerun=True)
    assert live(disk, slow.flow) == "new value"
    assert slow.attempts == [1, 2]


def asking(gate: Gate, answer: Any, **options: Any) -> tuple[Slow, list[Doubt]]:
    """Give an agent whose step asks what became of it, and what was asked."""
    asked: list[Doubt] = []

    def look(doubt: Doubt) -> Any:
        asked.append(doubt)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Slow(gate, on_doubt=look, **options), asked


@pytest.mark.parametrize("colour", COLOURS)
def test_a_function_that_knows_that_it_happened_gives_the_value(disk: Store, gate: Gate, colour: str) -> None:
    slow, asked = asking(gate, Happened("found"), colour=colour, timeout=0.1)
    assert live(disk, slow.flow) == "found"
    assert slow.attempts == [1]
    (outcome,) = (event for event in log(disk) if isinstance(event, StepSucceeded))
    assert (outcome.source, outcome.attempt) == ("on_doubt", 1)
    assert [(doubt.attempt, doubt.idempotency_key) for doubt in asked] == [(1, slow.infos[0].idempotency_key)]


@pytest.mark.parametrize("colour", COLOURS)
def test_where_a_function_knows_that_it_did_not_happen_that_was_an_attempt_that_failed(
    disk: Store, gate: Gate, colour: str
) -> None:
    slow, asked = asking(gate, NotHappened(), colour=colour, retries=1)
    assert live(disk, slow.flow) == "new value"
    assert (slow.attempts, len(asked), len(failures(disk))) == ([1, 2], 1, 1)


def test_where_it_did_not_happen_retries_bound_the_attempts(disk: Store, gate: Gate) -> None:
    slow, asked = asking(gate, NotHappened(), times=9, retries=1, timeout=0.1)
    assert failed(disk, slow.flow).fault.is_a(StepTimeoutError)
    assert (slow.attempts, len(asked)) == ([1, 2], 2)


@pytest.mark.parametrize(
    ("answer", "why"),
    [(Unknown("the server is away"), "look does not know: the server is away"), (OSError("no"), "look could not tell")],
)
def test_where_nobody_can_tell_the_task_is_held(disk: Store, gate: Gate, answer: Any, why: str) -> None:
    slow, asked = asking(gate, answer, timeout=0.1, retries=5)
    error = held(disk, slow.flow)
    assert (error.reason, slow.attempts, len(asked)) == ("in doubt", [1], 1)
    assert why in str(error)


# ------------------------------------------------------------------ heartbeats


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_heartbeats_keep_a_body_alive_beyond_their_limit(disk: Store, colour: str) -> None:
    limit = 0.8
    pause = threading.Event()

    @step(name="long", heartbeat_timeout=limit)
    def long() -> int:
        began, count = monotonic(), 0
        while monotonic() < began + 2.5 * limit:
            heartbeat(count)
            count += 1
            pause.wait(0.02)
        return count

    @step(name="long", heartbeat_timeout=limit)
    async def long_async() -> int:
        began, count = monotonic(), 0
        while monotonic() < began + 2.5 * limit:
            heartbeat(count)
            count += 1
            await asyncio.sleep(0.02)
        return count

    @agent(name="limits: long")
    def flow() -> int:
        return long()

    @agent(name="limits: long, async")
    async def flow_async() -> int:
        return await long_async()

    chosen: Any = flow if colour == "sync" else flow_async
    assert live(disk, chosen) > 5
    assert kinds(disk).count("StepFailed") == 0
    assert beats(disk) == []


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("before", [lambda: None, lambda: heartbeat("begun")], ids=["none", "one"])
def test_a_body_that_goes_without_a_heartbeat_is_given_up(disk: Store, gate: Gate, colour: str, before: Any) -> None:
    slow = Slow(gate, colour, timeout=None, heartbeat_timeout=SOON, retries=1, before=before)
    assert live(disk, slow.flow) == "new value"
    (failure,) = failures(disk)
    assert failure.error["message"] == f"it was given up after {SOON} s without a heartbeat"
    assert slow.attempts == [1, 2]


@pytest.mark.parametrize("colour", COLOURS)
def test_the_last_detail_reaches_the_next_attempt_after_a_time_out(disk: Store, gate: Gate, colour: str) -> None:
    def before() -> None:
        heartbeat({"page": 1})
        heartbeat({"page": 2})

    slow = Slow(gate, colour, retries=1, before=before)
    assert live(disk, slow.flow) == "new value"
    assert [info.heartbeat for info in slow.infos] == [None, {"page": 2}]
    assert beats(disk) == []


def beating(colour: str, **options: Any) -> tuple[Any, list[Any]]:
    """Give an agent of two steps that beat and fail at first, and what heartbeat each attempt was told."""
    told: list[Any] = []

    def beat(name: str) -> str:
        info = step_info()
        told.append((name, info.heartbeat))
        heartbeat((name, info.attempt))
        if info.attempt < 3:
            raise ConnectionError
        return name

    async def beat_async(name: str) -> str:
        return beat(name)

    options = {"retries": 2, "backoff": 0} | options

    @agent(name=f"limits: beating, {colour}")
    def flow() -> list[str]:
        one: Any = step(name="beat", **options)(beat if colour == "sync" else beat_async)
        return [one(name) if colour == "sync" else one.sync(name) for name in ("a", "b")]

    @agent(name=f"limits: beating, {colour}")
    async def flow_async() -> list[str]:
        one: Any = step(name="beat", **options)(beat if colour == "sync in async" else beat_async)
        return [await (one.aio(name) if colour == "sync in async" else one(name)) for name in ("a", "b")]

    return flow_async if colour in ("async", "sync in async") else flow, told


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("options", [{}, {"timeout": PATIENCE}, {"idempotent": True}], ids=["plain", "limited", "idem"])
def test_the_last_detail_reaches_the_next_attempt_after_an_error_and_no_other_step(
    disk: Store, colour: str, options: dict[str, Any]
) -> None:
    flow, told = beating(colour, **options)
    assert live(disk, flow) == ["a", "b"]
    assert told == [(name, last) for name in "ab" for last in (None, (name, 1), (name, 2))]
    assert beats(disk) == []


@pytest.mark.parametrize("colour", COLOURS)
def test_the_last_detail_outlives_a_far_wait(disk: Store, colour: str) -> None:
    flow, told = beating(colour, backoff=50)
    assert live(disk, flow, clock=FakeClock(jump=True)) == ["a", "b"]
    assert told == [(name, last) for name in "ab" for last in (None, (name, 1), (name, 2))]


DYING = """
    import sys
    from actors import AgentSystem, agent, heartbeat, step, step_info
    from tests.scenario_kit import STORE, die, effect

    @step
    def crunch():
        begin = step_info().heartbeat or 0
        effect("began", begin)
        for page in range(begin, 9):
            if page == 5 and sys.argv[1] == "die":
                die()
            heartbeat(page + 1)
        return "crunched"

    @agent
    def flow():
        return crunch()

    with AgentSystem(STORE) as system:
        print(system.spawn(flow, id="t").result(timeout=30))
"""


def test_the_last_detail_reaches_the_next_attempt_after_the_death_of_the_process(world: World) -> None:
    program = world.write(DYING)
    world.run(program, "die", code=KILLED)
    assert world.run(program, "live") == "crunched"
    assert [(line.note, line.attempt) for line in world.ledger("began")] == [(0, 1), (5, 2)]
    with world.database() as database:
        assert database.execute("SELECT count(*) FROM heartbeats").fetchone() == (0,)


@pytest.mark.parametrize("idempotent", [False, True], ids=["recorded", "idempotent"])
def test_the_last_detail_outlives_a_simulated_death_with_and_without_a_recorded_start(
    disk: Store, idempotent: bool
) -> None:
    told: list[Any] = []

    @step(name="first", idempotent=idempotent)
    def first() -> None:
        heartbeat("of the first")

    @step(name="crunch", idempotent=idempotent)
    def crunch() -> None:
        told.append(step_info().heartbeat)
        heartbeat(len(told))

    @agent
    def flow() -> None:
        first()
        crunch()

    for _ in range(2):
        life = CrashingStore(disk, CrashPlan(2 if not told else 1, "body.after"))
        with pytest.raises(SimulatedCrash), AgentSystem(life) as system:
            system.spawn(flow, id="t").result(PATIENCE)
        life.close()
    live(disk, flow)
    assert told == [None, 1, 2]
    assert beats(disk) == []


def test_of_a_step_that_has_failed_for_good_no_heartbeat_is_left(disk: Store) -> None:
    @step(name="beat")
    def beat() -> None:
        heartbeat("half")
        raise ConnectionError

    @agent
    def flow() -> None:
        beat()

    failed(disk, flow)
    assert beats(disk) == []


class Stubborn:
    """An agent of one step whose first body beats for ever, whatever it is told of errors and cancellations."""

    def __init__(self, colour: str) -> None:
        self.attempts: list[int] = []
        self.errors: list[BaseException] = []
        self.ended = threading.Event()
        options: Any = {"name": "stubborn", "timeout": SOON, "retries": 1, "backoff": 0}

        @step(**options)
        def stubborn() -> str:
            self.attempts.append(step_info().attempt)
            while step_info().attempt == 1:
                self.beat()
                self.ended.wait(0.01)
            return "new value"

        @step(**options)
        async def stubborn_async() -> str:
            self.attempts.append(step_info().attempt)
            while step_info().attempt == 1:
                self.beat()
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            return "new value"

        @agent(name="limits: stubborn")
        def flow() -> str:
            return stubborn()

        @agent(name="limits: stubborn, async")
        async def flow_async() -> str:
            return await stubborn_async()

        self.flow: Any = flow if colour == "sync" else flow_async

    def beat(self) -> None:
        try:
            with suppress(Exception):
                heartbeat()
        except BaseException as error:
            self.errors.append(error)
            self.ended.set()
            raise


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_in_a_body_that_was_given_up_a_heartbeat_raises_what_no_handler_of_errors_catches(
    disk: Store, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn = Stubborn(colour)
    with AgentSystem(disk) as system:
        assert system.spawn(stubborn.flow, id="t").result(PATIENCE) == "new value"
        assert stubborn.ended.wait(PATIENCE)
    (error,) = stubborn.errors
    assert isinstance(error, GivenUp)
    assert "step 1 stubborn of task t, attempt 1: nobody waits for it any more: it was given up" in str(error)
    assert stubborn.attempts == [1, 2]
    assert late(caplog) == []
    assert beats(disk) == []


def test_a_heartbeat_after_its_body_has_ended_leaves_no_row(disk: Store) -> None:
    begun, may_go_on, errors = threading.Event(), threading.Event(), list[BaseException]()
    stragglers: list[threading.Thread] = []

    def straggle() -> None:
        begun.set()
        may_go_on.wait(PATIENCE)
        try:
            heartbeat("late")
        except BaseException as error:
            errors.append(error)

    @step(name="quick")
    def quick() -> str:
        stragglers.append(threading.Thread(target=partial(contextvars.copy_context().run, straggle), daemon=True))
        stragglers[0].start()
        assert begun.wait(PATIENCE)
        return "done"

    @agent
    def flow() -> str:
        return quick()

    with AgentSystem(disk) as system:
        assert system.spawn(flow, id="t").result(PATIENCE) == "done"
        may_go_on.set()
        stragglers[0].join(PATIENCE)
    (error,) = errors
    assert isinstance(error, GivenUp)
    assert "nobody waits for it any more: it has ended" in str(error)
    assert beats(disk) == []


def test_a_thread_that_inherits_the_context_of_a_body_may_beat_for_it(disk: Store) -> None:
    seen: list[Any] = []

    @step(name="beat", retries=1, backoff=0)
    def beat() -> None:
        seen.append(step_info().heartbeat)
        thread = threading.Thread(target=partial(contextvars.copy_context().run, heartbeat, "from a thread"))
        thread.start()
        thread.join(PATIENCE)
        if len(seen) == 1:
            raise ConnectionError

    @agent
    def flow() -> None:
        beat()

    live(disk, flow)
    assert seen == [None, "from a thread"]


def test_outside_of_a_body_there_is_nothing_to_keep_alive(disk: Store) -> None:
    @agent
    def flow() -> str:
        with pytest.raises(OutsideTaskError, match="outside of the body of a step"):
            heartbeat()
        return "done"

    with pytest.raises(OutsideTaskError, match="outside of the body of a step"):
        heartbeat()
    assert live(disk, flow) == "done"


@pytest.mark.parametrize("detail", [threading.Lock(), {"a": object()}, "x" * 6000], ids=["lock", "object", "too large"])
def test_a_detail_that_cannot_be_stored_is_refused_and_the_last_one_stays(disk: Store, detail: Any) -> None:
    seen: list[Any] = []

    @step(name="beat", retries=1, backoff=0)
    def beat() -> None:
        seen.append(step_info().heartbeat)
        if len(seen) == 1:
            heartbeat("fine")
            with pytest.raises(UnstorableValueError):
                heartbeat(detail)
            raise ConnectionError

    @agent
    def flow() -> None:
        beat()

    live(disk, flow, value_limit=5000)
    assert seen == [None, "fine"]


class Reluctant:
    """A store that takes its time for a heartbeat: until the body has gone on, and a bit more unless it starts anew."""

    dead = False

    def __init__(self) -> None:
        self.went_on, self.again = threading.Event(), threading.Event()
        self.waited: list[bool] = []
        self.starts = 0

    def reach(self, point: str, **facts: Any) -> None:
        if point == "heartbeat.before":
            self.waited.append(self.went_on.wait(PATIENCE))
            self.again.wait(0.3)
        if point == "append.before" and "step.started" in facts["topics"]:
            self.starts += 1
            if self.starts == 2:
                self.again.set()

    def check(self) -> None:
        return


def test_a_heartbeat_of_an_async_body_does_not_block_the_loop_and_the_newest_detail_counts(disk: Store) -> None:
    seen: list[Any] = []
    plan = Reluctant()

    @step(name="beat", retries=1, backoff=0)
    async def beat() -> None:
        seen.append(step_info().heartbeat)
        if len(seen) == 1:
            for number in range(5):
                heartbeat(number)
                await asyncio.sleep(0)
            plan.went_on.set()
            raise ConnectionError

    @agent
    async def flow() -> None:
        await beat()

    live(CrashingStore(disk, plan), flow)
    assert plan.waited[0]
    assert len(plan.waited) <= 2, "what comes while a row is written is overwritten"
    assert seen == [None, 4]
    assert beats(disk) == []


def test_a_store_that_cannot_take_a_heartbeat_harms_no_body(disk: Store, caplog: pytest.LogCaptureFixture) -> None:
    away = partial(StoreUnavailableError, "the store is away", url="memory:", reason="away")

    @step(name="beat")
    def beat() -> str:
        for number in range(3):
            heartbeat(number)
        return "done"

    @agent
    def flow() -> str:
        return beat()

    assert live(CrashingStore(disk, FaultPlan(2, "heartbeat.before", away)), flow) == "done"
    (told,) = (record.getMessage() for record in caplog.records if "heartbeat" in record.getMessage())
    assert "a heartbeat of step 1 of task t is not stored: the store is away" in told


# ------------------------------------------------------------------ cancelled from outside


class Cancelled:
    """An async agent that limits its step itself, as no replay could follow, and then has to replay."""

    def __init__(self, gate: Gate, kind: str, limited: bool, around: Callable[[float, Any], Any]) -> None:
        self.attempts: list[int] = []
        self.told: list[str] = []
        options: dict[str, Any] = {"timeout": PATIENCE} if limited else {}

        @step(name="hangs", retries=3, backoff=1.0, jitter=0, **options)
        async def hangs() -> str:
            self.attempts.append(step_info().attempt)
            if kind == "retry":
                raise ConnectionError("no answer")
            await gate.hang_async()
            return "never"

        @step(name="hangs", retries=3, **options)
        def hangs_sync() -> str:
            self.attempts.append(step_info().attempt)
            gate.hang()
            return "never"

        @step(name="after")
        async def after() -> str:
            return "after"

        @agent(name="limits: cancelled")
        async def flow() -> str:
            try:
                return str(await around(0.3, hangs_sync.aio() if kind == "sync" else hangs()))
            except Exception as error:
                self.told.append(f"{type(error).__name__}: {error}")
            if len(self.told) == 1:
                raise RuntimeError("a bug, once")
            return await after()

        self.flow = flow


async def within(seconds: float, awaitable: Any) -> Any:
    async with asyncio.timeout(seconds):
        return await awaitable


@pytest.mark.parametrize("limited", [False, True], ids=["unlimited", "limited"])
@pytest.mark.parametrize("kind", ["async", "sync", "retry"])
def test_a_cancellation_from_outside_fails_the_step_with_a_word_about_timeout_live_and_in_a_replay(
    disk: Store, gate: Gate, kind: str, limited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = Cancelled(gate, kind, limited, within)
    assert live(disk, cancelled.flow) == "after"
    assert cancelled.attempts == [1]
    first, second = cancelled.told
    assert first == second
    assert first.startswith("StepError: step 1 hangs failed")
    assert "step 1 hangs was cancelled from outside (asyncio.timeout or wait_for around it" in first
    assert "give the step a limit by timeout= instead" in first
    assert failures(disk)[-1].retry_at is None
    assert bodies(disk) == [("1", "hangs", 1), ("2", "after", 1)]
    assert late(caplog) == []


def test_a_cancellation_of_a_gather_fails_each_of_its_steps_with_that_word(disk: Store, gate: Gate) -> None:
    ran: list[int] = []
    told: list[str] = []

    @step(name="hangs", retries=3)
    async def hangs(number: int) -> int:
        ran.append(number)
        if number:
            await gate.hang_async()
        return number

    @agent
    async def flow() -> str:
        try:
            async with asyncio.timeout(0.3):
                await gather(hangs(1), hangs(0), hangs(2))
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
        if len(told) == 1:
            raise RuntimeError("a bug, once")
        return "after"

    assert live(disk, flow) == "after"
    assert sorted(ran) == [0, 1, 2]
    assert told[0] == told[1]
    assert told[0].startswith("StepError: step 1/1/1 hangs failed: CancelledError: step 1/1/1 hangs was cancelled from")
    assert sorted(failure.path for failure in failures(disk)) == ["1/1/1", "1/3/1"]


def test_wait_for_around_a_step_has_the_same_word_about_timeout(disk: Store, gate: Gate) -> None:
    async def wait_for(seconds: float, awaitable: Any) -> Any:
        return await asyncio.wait_for(awaitable, seconds)

    cancelled = Cancelled(gate, "async", False, wait_for)
    assert live(disk, cancelled.flow) == "after"
    first, second = cancelled.told
    assert first == second
    assert "timeout=" in first
    if sys.version_info < (3, 12):  # it makes a task of its own, where calls have no order
        assert first.startswith("OutsideTaskError: step hangs was called in another asyncio task")
        assert cancelled.attempts == []
    else:
        assert first.startswith("StepError: step 1 hangs failed")
        assert cancelled.attempts == [1]


def test_a_sync_body_that_was_cancelled_from_outside_is_dropped_when_it_ends(
    disk: Store, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = Cancelled(gate, "sync", False, within)
    with AgentSystem(disk) as system:
        assert system.spawn(cancelled.flow, id="t").result(PATIENCE) == "after"
        gate.opened.set()
        wait_for(lambda: late(caplog) != [])
    assert "but it was cancelled from outside" in late(caplog)[0]


# ------------------------------------------------------------------ closing


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("limited", [False, True], ids=["unlimited", "limited"])
def test_a_body_that_outlasts_the_grace_is_in_doubt_and_no_failure(
    disk: Store, gate: Gate, colour: str, limited: bool
) -> None:
    begun = threading.Event()
    slow = Slow(gate, colour, before=begun.set, timeout=PATIENCE if limited else None, retries=0)
    with AgentSystem(disk, grace=0.2) as system:
        task = system.spawn(slow.flow, id="t")
        assert begun.wait(PATIENCE)
        began = monotonic()
    assert monotonic() - began < PATIENCE / 2
    assert kinds(disk) == ["Created", "Activated", "StepStarted", "Passivated"]
    passivated = log(disk)[-1]
    assert isinstance(passivated, Passivated)
    assert passivated.cut_off == ["1"]
    with AgentSystem(disk) as system:
        task = system.spawn(slow.flow, id="t")
        assert task.result(PATIENCE) == "new value"
        assert task.describe().strikes == 0
    assert slow.attempts == [1, 2]
    assert [event.doubt for event in log(disk) if isinstance(event, StepStarted)] == ["", "rerun"]


@pytest.mark.parametrize("limited", [False, True], ids=["unlimited", "limited"])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_body_that_hears_by_its_heartbeat_that_its_worker_stops_is_in_doubt_and_no_failure(
    disk: Store, colour: str, limited: bool
) -> None:
    begun, heard = threading.Event(), threading.Event()
    attempts: list[int] = []

    def beat() -> None:
        try:
            heartbeat(len(attempts))
        except GivenUp:
            heard.set()
            raise
        begun.set()

    def body() -> str:
        attempts.append(step_info().attempt)
        while len(attempts) == 1:
            beat()
            heard.wait(0.01)
        return "new value"

    async def body_async() -> str:
        attempts.append(step_info().attempt)
        while len(attempts) == 1:
            beat()
            await asyncio.sleep(0.01)
        return "new value"

    options: dict[str, Any] = {"timeout": PATIENCE} if limited else {}
    one: Any = step(name="beats", **options)(body if colour == "sync" else body_async)

    @agent(name="limits: beats")
    def flow() -> str:
        result: str = one()
        return result

    @agent(name="limits: beats, async")
    async def flow_async() -> str:
        result: str = await one()
        return result

    chosen: Any = flow if colour == "sync" else flow_async
    with AgentSystem(disk, grace=0.1) as system:
        system.spawn(chosen, id="t")
        assert begun.wait(PATIENCE)
    assert heard.wait(PATIENCE)
    assert kinds(disk) == ["Created", "Activated", "StepStarted", "Passivated"]
    assert log(disk)[-1].cut_off == ["1"]  # type: ignore[attr-defined]
    assert live(disk, chosen) == "new value"
    assert attempts == [1, 2]


class Stumbling:
    """A store that is away for the first word about a worker that stops."""

    dead = False

    def __init__(self) -> None:
        self.stumbled = False

    def reach(self, point: str, **facts: Any) -> None:
        if point == "append.before" and "task.passivated" in facts["topics"] and not self.stumbled:
            self.stumbled = True
            raise StoreUnavailableError("the store is away", url="memory:", reason="away")

    def check(self) -> None:
        return


@pytest.mark.parametrize("limited", [False, True], ids=["unlimited", "limited"])
def test_a_body_that_is_cancelled_by_its_closing_worker_is_in_doubt_even_if_the_store_stumbles(
    disk: Store, gate: Gate, limited: bool
) -> None:
    begun, plan = threading.Event(), Stumbling()
    slow = Slow(gate, "async", before=begun.set, timeout=PATIENCE if limited else None)
    with AgentSystem(CrashingStore(disk, plan), grace=0.1) as system:
        system.spawn(slow.flow, id="t")
        assert begun.wait(PATIENCE)
    assert plan.stumbled
    assert failures(disk) == []
    assert live(disk, slow.flow) == "new value"
    assert slow.attempts == [1, 2]


def test_nobody_is_asked_about_a_body_that_its_closing_worker_has_given_up(disk: Store, gate: Gate) -> None:
    begun, plan = threading.Event(), Stumbling()
    slow, asked = asking(gate, NotHappened(), colour="async", before=begun.set, timeout=PATIENCE)
    with AgentSystem(CrashingStore(disk, plan), grace=0.1) as system:
        system.spawn(slow.flow, id="t")
        assert begun.wait(PATIENCE)
    assert plan.stumbled
    assert (failures(disk), asked) == ([], [])
    assert live(disk, slow.flow) == "new value"
    assert (slow.attempts, len(asked)) == ([1, 2], 1)


def test_a_limit_that_passes_while_the_system_closes_ends_the_waiting_for_its_body(disk: Store, gate: Gate) -> None:
    begun = threading.Event()
    slow = Slow(gate, before=begun.set, retries=1)
    with AgentSystem(disk, grace=PATIENCE) as system:
        system.spawn(slow.flow, id="t")
        assert begun.wait(PATIENCE)
        began = monotonic()
    assert monotonic() - began < PATIENCE / 2
    assert kinds(disk) == ["Created", "Activated", "StepStarted", "StepFailed", "Passivated"]
    assert live(disk, slow.flow) == "new value"
    assert slow.attempts == [1, 2]


# ------------------------------------------------------------------ every crash


@pytest.mark.parametrize("new_store", ["sqlite"], indirect=True)
def test_wherever_the_process_dies_around_time_outs_the_promises_are_kept(new_store: Any, gate: Gate) -> None:
    told: list[Any] = []

    @step(name="limits: hangs", timeout=0.06, retries=9, backoff=0.3, jitter=0)
    def hangs() -> str:
        told.append((step_info().attempt, step_info().heartbeat))
        if step_info().attempt == 1:
            heartbeat("half")
            gate.hang()
        return "done"

    @step(name="limits: hangs, async", timeout=0.06, retries=9, backoff=30, jitter=0)
    async def hangs_async() -> str:
        if step_info().attempt == 1:
            heartbeat("half")
            await gate.hang_async()
        return "done, async"

    @step(name="limits: asks", timeout=0.06, on_doubt=lambda doubt: Happened("found"))
    def asks() -> str:
        gate.hang()
        return "never"

    @agent(name="limits: all kinds")
    def flow() -> list[str]:
        return [hangs(), hangs_async.sync(), asks()]

    whole, *runs = every_crash_point(flow, new_store=new_store)
    reached = set(whole.points)
    assert {"body.given up", "retry.wait", "heartbeat.before", "heartbeat.after", "doubt.before"} <= reached
    assert len(runs) == len(whole.points) > 40
    for run in (whole, *runs):
        run.check()
        assert run.result == ["done", "done, async", "found"]
        assert run.count("limits: asks") <= 1
    assert {heard for attempt, heard in told if attempt == 1} == {None}
    assert {heard for attempt, heard in told if attempt > 1} <= {None, "half"}


def test_a_heartbeat_that_a_death_has_left_behind_is_gone_when_the_task_has_ended(disk: Store) -> None:
    @step(name="limits: beats once")
    def beats() -> str:
        heartbeat("half")
        return "done"

    @agent(name="limits: left behind")
    def flow() -> str:
        return beats()

    die(disk, flow, at="append.after", nth=4)  # the outcome is in the log, the row is not forgotten yet
    birth = log(disk)[0].birth  # type: ignore[attr-defined]
    assert disk.recorder.select_heartbeat("t", birth, "1") == (1, '"half"')
    assert live(disk, flow) == "done"
    assert disk.recorder.select_heartbeat("t", birth, "1") is None
