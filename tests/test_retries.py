"""Retries: what is tried again and when, and that neither a wait nor an attempt is lost or repeated by a restart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from time import monotonic
from typing import Any

import pytest

from actors import (
    AgentSystem,
    RetryAfterError,
    RetryPolicy,
    StepError,
    StepInfo,
    TaskFailedError,
    TaskHeldError,
    agent,
    gather,
    open_store,
    step,
    step_info,
)
from actors.testing import CrashPlan, FakeClock, Run, SimulatedCrash, every_crash_point, run_through_crashes
from domain.events import Activated, Passivated, StepFailed, StepStarted
from stores import Store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, decide, kinds, live, log, wait_for
from tests.scenario_kit import KILLED, World, join_all


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that jumps to what is due next, so that no test waits for a retry."""
    return FakeClock(jump=True)


class Flaky:
    """An agent of one step, which raises at its first `times` attempts, and what each attempt was told."""

    def __init__(self, times: int = 1, error: Any = ConnectionError, on_failure: Any = "fail", **options: Any) -> None:
        self.infos: list[StepInfo] = []

        @step(name="fetch", **options)
        def fetch() -> str:
            self.infos.append(step_info())
            if len(self.infos) <= times:
                raise error(f"no answer to {len(self.infos)}")
            return f"answer {len(self.infos)}"

        @agent(name="retries: flaky", on_failure=on_failure)
        def flow() -> str:
            return fetch()

        self.flow = flow

    @property
    def attempts(self) -> list[int]:
        return [info.attempt for info in self.infos]


@agent(name="retries: nothing")
def nothing() -> str:
    return "done"


def failures(disk: Store) -> list[StepFailed]:
    return [event for event in log(disk) if isinstance(event, StepFailed)]


def failed(disk: Store, flow: Any, *args: Any, **options: Any) -> TaskFailedError:
    with pytest.raises(TaskFailedError) as caught:
        live(disk, flow, *args, **options)
    return caught.value


def die(disk: Store, flow: Any, clock: FakeClock, at: str = "body.after", nth: int = 1) -> None:
    """Run the task `t` until its process dies at the nth point of that name."""
    life = CrashingStore(disk, CrashPlan(nth, at))
    with pytest.raises(SimulatedCrash), AgentSystem(life, clock=clock) as system:
        system.spawn(flow, id="t").result(PATIENCE)
    life.close()


# ------------------------------------------------------------------ what is tried again


def test_a_step_that_raises_is_tried_again_with_the_same_key_until_it_has_a_value(
    disk: Store, clock: FakeClock
) -> None:
    flaky = Flaky(2, retries=3)
    assert live(disk, flaky.flow, clock=clock) == "answer 3"
    assert flaky.attempts == [1, 2, 3]
    assert len({info.idempotency_key for info in flaky.infos}) == 1
    assert [event.doubt for event in log(disk) if isinstance(event, StepStarted)] == ["", "", ""]


def test_without_a_word_of_retries_a_step_is_tried_once(disk: Store, clock: FakeClock) -> None:
    flaky = Flaky(1)
    assert "step 1 fetch: no answer to 1" in str(failed(disk, flaky.flow, clock=clock))
    assert (flaky.attempts, [failure.retry_at for failure in failures(disk)]) == ([1], [None])


def test_the_agent_is_told_the_error_of_every_attempt(disk: Store, clock: FakeClock) -> None:
    errors: list[StepError] = []

    @step(name="fetch", retries=3)
    def fetch() -> None:
        raise (OSError, KeyError, ValueError, ConnectionError)[step_info().attempt - 1](step_info().attempt)

    @agent
    def flow() -> None:
        try:
            fetch()
        except StepError as error:
            errors.append(error)

    live(disk, flow, clock=clock)
    (error,) = errors
    assert str(error) == "step 1 fetch failed after 4 attempts: ConnectionError: 4"
    assert [fault.kind for fault in error.errors] == ["OSError", "KeyError", "ValueError", "ConnectionError"]
    assert [fault.message for fault in error.errors] == ["1", "2", "3", "4"]
    assert all("in fetch" in fault.traceback for fault in error.errors)
    assert (error.attempts, error.step, error.path) == (4, "fetch", "1")
    assert error.fault == error.errors[-1]
    assert error.is_a(ConnectionError)


@pytest.mark.parametrize(
    ("options", "error", "attempts"),
    [
        ({"retry_on": OSError}, ConnectionError, 3),
        ({"retry_on": (KeyError, OSError)}, ConnectionError, 3),
        ({"retry_on": OSError}, ValueError, 1),
        ({"give_up_on": OSError}, ConnectionError, 1),
        ({"give_up_on": (KeyError, OSError)}, ValueError, 3),
        ({"retry_on": OSError, "give_up_on": ConnectionError}, ConnectionError, 1),
        ({"retry_on": OSError, "give_up_on": FileNotFoundError}, ConnectionError, 3),
        ({"retry_on": ()}, ValueError, 1),
        ({"retry_on": BaseException}, SystemExit, 1),
        ({"retry_on": BaseException}, KeyboardInterrupt, 1),
        ({"retry_on": BaseException}, asyncio.CancelledError, 1),
    ],
)
def test_only_what_is_worth_it_is_tried_again(
    disk: Store, clock: FakeClock, options: dict[str, Any], error: type[BaseException], attempts: int
) -> None:
    flaky = Flaky(9, error, retries=2, **options)
    assert failed(disk, flaky.flow, clock=clock).fault.is_a(error)
    assert flaky.attempts == list(range(1, attempts + 1))


def test_what_cannot_be_stored_is_not_tried_again(disk: Store, clock: FakeClock) -> None:
    ran: list[int] = []

    @step(name="pay", retries=5)
    def pay() -> Any:
        ran.append(step_info().attempt)
        return {"items": [1, 2, threading.Lock()]}

    @agent
    def flow() -> None:
        pay()

    error = failed(disk, flow, clock=clock)
    assert "items" in str(error)
    assert "[2]" in str(error)
    assert "lock" in str(error)
    assert ran == [1]


def test_the_options_of_one_call_are_of_the_same_step_in_the_log(disk: Store, clock: FakeClock) -> None:
    ran: list[int] = []

    @step(name="fetch")
    def fetch() -> None:
        ran.append(step_info().attempt)
        raise ConnectionError

    @agent
    def flow() -> list[int]:
        tries = [fetch, fetch.options(retries=2), fetch.options(retries=1, give_up_on=OSError), fetch]
        return [attempts_of(one) for one in tries]

    def attempts_of(one: Any) -> int:
        with pytest.raises(StepError) as caught:
            one()
        return caught.value.attempts

    assert live(disk, flow, clock=clock) == [1, 3, 1, 1]
    assert ran == [1, 1, 2, 3, 1, 1]
    assert {event.name for event in failures(disk)} == {"fetch"}


def test_a_policy_is_shared_by_steps_and_changed_by_what_is_said_beside_it(disk: Store, clock: FakeClock) -> None:
    patient = RetryPolicy(retries=2, backoff=10, jitter=0)

    @step(name="fetch", retry=patient)
    def fetch() -> None:
        raise ConnectionError

    @step(name="look", retry=patient, retries=1)
    def look() -> None:
        raise ConnectionError

    @agent
    def flow() -> None:
        for one in (fetch, look):
            with pytest.raises(StepError):
                one()

    live(disk, flow, clock=clock)
    assert [(event.name, event.attempt) for event in failures(disk)] == [
        *(("fetch", attempt) for attempt in (1, 2, 3)),
        *(("look", attempt) for attempt in (1, 2)),
    ]


class AwkwardError(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")
        self.lock = threading.Lock()
        self.__cause__ = self


def test_an_awkward_exception_is_tried_again_like_any_other(disk: Store, clock: FakeClock) -> None:
    """P17, with retries."""
    flaky = Flaky(9, partial(AwkwardError, 7), retries=2)
    assert failed(disk, flaky.flow, clock=clock).fault.is_a(AwkwardError)
    assert flaky.attempts == [1, 2, 3]
    assert [failure.error["message"] for failure in failures(disk)] == [f"code 7: no answer to {n}" for n in (1, 2, 3)]


# ------------------------------------------------------------------ when


def test_each_due_time_is_in_the_log_and_the_next_attempt_begins_then(disk: Store, clock: FakeClock) -> None:
    flaky = Flaky(5, retries=5, backoff=0.75, max_backoff=5, jitter=0)
    live(disk, flaky.flow, clock=clock)
    waits = [failure.retry_at - failure.timestamp for failure in failures(disk) if failure.retry_at is not None]
    assert waits == [0.75, 1.5, 3, 5, 5]
    starts = [event.timestamp for event in log(disk) if isinstance(event, StepStarted)]
    assert starts[1:] == [failure.retry_at for failure in failures(disk)]


def test_jitter_moves_a_due_time_by_its_share_at_most(disk: Store, clock: FakeClock) -> None:
    flaky = Flaky(20, retries=20, backoff=10, max_backoff=10, jitter=0.5)
    live(disk, flaky.flow, clock=clock)
    waits = [failure.retry_at - failure.timestamp for failure in failures(disk) if failure.retry_at is not None]
    assert all(4.99 < wait < 15.01 for wait in waits)
    assert len(set(waits)) > 10


def waits(disk: Store) -> list[float | None]:
    return [failure.retry_at and failure.retry_at - failure.timestamp for failure in failures(disk)]


def test_an_error_may_ask_for_a_longer_wait_and_for_no_shorter_one(disk: Store, clock: FakeClock) -> None:
    asked: list[Any] = [70.0, 3, None, -1, float("nan"), "soon", 1e99]
    options: Any = {"retries": 7, "backoff": 5, "max_backoff": 5, "jitter": 0}
    flaky = Flaky(7, lambda _text: RetryAfterError("busy", retry_after=asked.pop(0)), **options)
    live(disk, flaky.flow, clock=clock)
    assert waits(disk) == [70, 5, 5, 5, 5, 5, 5]


def test_a_wait_that_an_error_asks_for_is_not_begun_where_it_would_pass_the_limit_over_all_attempts(
    disk: Store, clock: FakeClock
) -> None:
    flaky = Flaky(9, lambda _text: RetryAfterError("busy", retry_after=70), retries=9, total_timeout=60)
    assert failed(disk, flaky.flow, clock=clock).fault.is_a(RetryAfterError)
    assert waits(disk) == [None]


class SecretiveError(RetryAfterError):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_an_error_that_lets_nobody_look_is_asked_for_its_wait_all_the_same(disk: Store, clock: FakeClock) -> None:
    flaky = Flaky(1, lambda _text: SecretiveError(retry_after=70), retries=1)
    live(disk, flaky.flow, clock=clock)
    assert waits(disk) == [70]


def test_no_backoff_means_at_once(disk: Store) -> None:
    flaky = Flaky(3, retries=3, backoff=0)
    assert live(disk, flaky.flow, clock=FakeClock()) == "answer 4"
    assert kinds(disk).count("Activated") == 1


def test_an_idempotent_step_is_tried_again_as_well(disk: Store, clock: FakeClock) -> None:
    flaky = Flaky(2, retries=2, backoff=10, jitter=0, idempotent=True)
    assert live(disk, flaky.flow, clock=clock) == "answer 3"
    assert flaky.attempts == [1, 2, 3]
    assert "StepStarted" not in kinds(disk)
    assert [(failure.attempt, failure.retry_at) for failure in failures(disk)] == [
        (1, failures(disk)[0].timestamp + 10),
        (2, failures(disk)[1].timestamp + 20),
    ]


@pytest.mark.parametrize("backoff", [0.25, 90])
def test_async_steps_of_async_agents_are_tried_again_alike(disk: Store, clock: FakeClock, backoff: float) -> None:
    attempts: list[int] = []

    @step(name="fetch", retries=2, backoff=backoff)
    async def fetch() -> str:
        attempts.append(step_info().attempt)
        await asyncio.sleep(0)
        if len(attempts) < 3:
            raise ConnectionError
        return "answer"

    @agent
    async def flow() -> str:
        return await fetch()

    assert live(disk, flow, clock=clock) == "answer"
    assert attempts == [1, 2, 3]
    assert kinds(disk).count("Activated") == (1 if backoff < 1 else 3)


# ------------------------------------------------------------------ waiting


def test_a_near_retry_stays_in_its_place_and_a_far_one_costs_a_row(disk: Store, clock: FakeClock) -> None:
    flaky = Flaky(3, retries=3, backoff=0.4, jitter=0)
    assert live(disk, flaky.flow, clock=clock) == "answer 4"
    assert kinds(disk) == [
        *("Created", "Activated", "StepStarted", "StepFailed", "StepStarted", "StepFailed", "StepStarted"),
        *("StepFailed", "Passivated", "Activated", "StepStarted", "StepSucceeded", "Completed"),
    ]
    (passivated,) = (event for event in log(disk) if isinstance(event, Passivated))
    assert passivated.due == failures(disk)[-1].retry_at


def test_a_far_retry_holds_no_thread_and_no_place(disk: Store) -> None:
    clock, flaky = FakeClock(), Flaky(1, retries=1, backoff=60)

    with AgentSystem(disk, clock=clock, max_active=1) as system:
        system.spawn(nothing).result(PATIENCE)
        idle = set(threading.enumerate())
        task = system.spawn(flaky.flow, id="t")
        wait_for(lambda: task.status() == "waiting")
        assert join_all(set(threading.enumerate()) - idle) == []
        row, (failure,) = disk.recorder.select_entry("t"), failures(disk)
        assert row is not None
        assert (row.status, row.owner, row.due) == ("waiting", None, failure.retry_at)
        assert system.spawn(nothing).result(PATIENCE) == "done"
        assert flaky.attempts == [1]
        clock.advance(66.1)
        assert task.result(PATIENCE) == "answer 2"
    assert flaky.attempts == [1, 2]
    assert [event.number for event in log(disk) if isinstance(event, Activated)] == [1, 2]


def test_a_wait_that_outlives_its_system_is_kept_to_the_second(disk: Store) -> None:
    clock, flaky = FakeClock(), Flaky(1, retries=1, backoff=60, jitter=0)
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flaky.flow, id="t")
        wait_for(lambda: task.status() == "waiting")
    before = kinds(disk)
    clock.advance(59.5)
    with AgentSystem(disk, clock=clock) as system:
        system.spawn(nothing).result(PATIENCE)
        assert (kinds(disk), flaky.attempts) == (before, [1])
        clock.advance(0.5)
        assert system.task("t").result(PATIENCE) == "answer 2"
    starts = [event.timestamp for event in log(disk) if isinstance(event, StepStarted)]
    assert starts[1] - starts[0] == 60


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_system_that_closes_during_a_near_wait_neither_waits_nor_strikes_and_the_wait_is_kept(
    disk: Store, colour: str
) -> None:
    clock, attempts = FakeClock(), list[int]()

    @step(name="fetch", retries=1, backoff=1, jitter=0)
    def fetch() -> str:
        attempts.append(step_info().attempt)
        if len(attempts) == 1:
            raise ConnectionError
        return "answer"

    @agent(name="retries: near")
    def flow() -> str:
        return fetch()

    @agent(name="retries: near, async")
    async def flow_async() -> str:
        return await fetch.aio()

    chosen: Any = flow if colour == "sync" else flow_async
    plan = CrashPlan(None)
    life = CrashingStore(disk, plan)
    with AgentSystem(life, clock=clock, grace=PATIENCE) as system:
        task = system.spawn(chosen, id="t")
        wait_for(lambda: "retry.wait" in plan.points)
        assert task.status() == "running"
        began = monotonic()
    assert monotonic() - began < PATIENCE / 2
    assert kinds(disk) == ["Created", "Activated", "StepStarted", "StepFailed", "Passivated"]
    due, passivated = failures(disk)[0].retry_at, log(disk)[-1]
    assert isinstance(passivated, Passivated)
    assert passivated.due == due
    with AgentSystem(disk, clock=clock) as system:
        system.spawn(nothing).result(PATIENCE)
        assert (system.task("t").status(), attempts) == ("waiting", [1])
        clock.advance(1)
        assert system.task("t").result(PATIENCE) == "answer"
        assert system.task("t").describe().strikes == 0
    assert attempts == [1, 2]
    assert [event.timestamp for event in log(disk) if isinstance(event, StepStarted)][1] == due


def test_a_simulated_death_during_the_wait_neither_repeats_nor_forgets_it(disk: Store) -> None:
    flaky = Flaky(1, retries=1, backoff=0.9, jitter=0)
    die(disk, flaky.flow, FakeClock(), at="retry.wait")
    due = failures(disk)[0].retry_at
    assert live(disk, flaky.flow, clock=FakeClock(jump=True)) == "answer 2"
    assert flaky.attempts == [1, 2]
    assert [event.timestamp for event in log(disk) if isinstance(event, StepStarted)][1] == due


DYING = """
    import sys
    from actors import AgentSystem, agent, step, step_info
    from stores import open_store
    from stores.crash import CrashingStore, CrashPlan
    from tests.scenario_kit import STORE, die, effect

    @step(retries=1, backoff=float(sys.argv[2]), jitter=0)
    def fetch():
        effect("fetched")
        if step_info().attempt == 1:
            raise ConnectionError("no answer")
        return "answer"

    @agent
    def flow():
        return fetch()

    plan = CrashPlan(int(sys.argv[3]) or None, sys.argv[1], die)
    with open_store(STORE) as disk, AgentSystem(CrashingStore(disk, plan)) as system:
        print(system.spawn(flow, id="t").result(timeout=30))
"""


@pytest.mark.parametrize(
    ("point", "nth", "backoff"), [("retry.wait", 1, 0.8), ("append.after", 5, 1.5)], ids=["in place", "as a row"]
)
def test_a_process_that_is_killed_during_the_wait_neither_repeats_nor_forgets_it(
    world: World, point: str, nth: int, backoff: float
) -> None:
    program = world.write(DYING)
    world.run(program, point, backoff, nth, code=KILLED)
    assert world.run(program, point, backoff, 0) == "answer"
    assert [line.attempt for line in world.ledger("fetched")] == [1, 2]
    with world.client() as client:
        events = client.task("t").events()
    (failure,) = (event for event in events if isinstance(event, StepFailed))
    starts = [event.timestamp for event in events if isinstance(event, StepStarted)]
    assert failure.retry_at == pytest.approx(failure.timestamp + backoff)
    assert failure.retry_at is not None
    assert starts[1] >= failure.retry_at
    assert "Passivated" in {type(event).__name__ for event in events} or backoff < 1


# ------------------------------------------------------------------ side by side


def test_a_retry_keeps_its_place_while_another_branch_runs_however_far_it_is(disk: Store) -> None:
    clock, attempts = FakeClock(), list[int]()
    again, may_end = threading.Event(), threading.Event()

    @step(name="fetch", retries=1, backoff=3600, max_backoff=3600)
    def fetch() -> str:
        attempts.append(step_info().attempt)
        if len(attempts) == 1:
            raise ConnectionError
        again.set()
        return "fetched"

    @step(name="work")
    def work() -> str:
        assert may_end.wait(PATIENCE)
        return "worked"

    @agent
    def flow() -> list[str]:
        return list(gather(fetch, work))

    plan = CrashPlan(None)
    with AgentSystem(CrashingStore(disk, plan), clock=clock) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: "retry.wait" in plan.points)
        assert task.status() == "running"
        wait_for(lambda: len(kinds(disk)) == 5)
        clock.advance(4000)
        assert again.wait(PATIENCE)
        may_end.set()
        assert task.result(PATIENCE) == ["fetched", "worked"]
    assert kinds(disk).count("Activated") == 1


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_where_every_branch_waits_the_task_is_a_row_until_the_first_is_due(disk: Store, colour: str) -> None:
    clock, ran = FakeClock(), list[tuple[str, int]]()

    @step(name="fetch")
    def fetch(what: str) -> str:
        ran.append((what, step_info().attempt))
        if step_info().attempt == 1:
            raise ConnectionError
        return what

    soon = fetch.options(retries=1, backoff=60, jitter=0)
    late = soon.options(backoff=3600, max_backoff=3600)

    @agent(name="retries: rows")
    def flow() -> list[str]:
        return list(gather(partial(late, "late"), partial(soon, "soon")))

    @agent(name="retries: rows, async")
    async def flow_async() -> list[str]:
        return list(await gather(late.aio("late"), soon.aio("soon")))

    chosen: Any = flow if colour == "sync" else flow_async
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(chosen, id="t")
        for _ in range(2):
            wait_for(lambda: task.status() == "waiting")
            due, row = min(retries_due(disk)), disk.recorder.select_entry("t")
            assert row is not None
            assert row.due == due
            clock.advance(due - clock.now())
            wait_for(lambda due=due: min(retries_due(disk), default=0) != due)  # type: ignore[misc]
        assert task.result(PATIENCE) == ["late", "soon"]
    assert sorted(ran[:2]) == [("late", 1), ("soon", 1)]
    assert ran[2:] == [("soon", 2), ("late", 2)]


def retries_due(disk: Store) -> list[float]:
    """Give the due times of the steps that wait for a retry."""
    waiting: dict[str, float | None] = {}
    for event in log(disk):
        if isinstance(event, StepFailed | StepStarted):
            waiting[event.path] = event.retry_at if isinstance(event, StepFailed) else None
    return [due for due in waiting.values() if due is not None]


# ------------------------------------------------------------------ restarts, deaths, people


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({"retries": 0}, []),
        ({"retries": 1, "backoff": 7}, []),
        ({"retries": 2, "backoff": 7}, [14]),
        ({"retries": 3, "backoff": 7, "max_backoff": 10}, [10, 10]),
    ],
)
def test_a_wait_that_was_promised_is_kept_under_other_options_which_hold_from_then_on(
    disk: Store, options: dict[str, Any], waits: list[float]
) -> None:
    clock, old = FakeClock(), Flaky(9, retries=5, backoff=40, jitter=0)
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(old.flow, id="t")
        wait_for(lambda: task.status() == "waiting")
    new = Flaky(9, jitter=0, **options)
    jumping = FakeClock(clock.now(), jump=True)
    failed(disk, new.flow, clock=jumping)
    assert (old.attempts, new.attempts) == ([1], list(range(2, 3 + len(waits))))
    first, *others = failures(disk)
    starts = [event.timestamp for event in log(disk) if isinstance(event, StepStarted)]
    assert starts[1] == first.retry_at == first.timestamp + 40
    assert [one.retry_at - one.timestamp for one in others if one.retry_at is not None] == waits


def test_deaths_use_up_no_retries(disk: Store, clock: FakeClock) -> None:
    flaky = Flaky(9, retries=2, backoff=0.1)
    for nth in (1, 1, 2):
        die(disk, flaky.flow, clock, nth=nth)
    with pytest.raises(TaskFailedError):
        live(disk, flaky.flow, clock=clock)
    assert flaky.attempts == [1, 2, 3, 4, 5, 6]
    assert [failure.attempt for failure in failures(disk)] == [3, 5, 6]


def test_attempts_that_a_death_cut_short_are_counted_but_have_no_error(disk: Store, clock: FakeClock) -> None:
    errors: list[StepError] = []

    @step(name="fetch", retries=1, backoff=0.1)
    def fetch() -> None:
        raise ConnectionError(step_info().attempt)

    @agent
    def flow() -> None:
        try:
            fetch()
        except StepError as error:
            errors.append(error)

    die(disk, flow, clock, nth=2)
    live(disk, flow, clock=clock)
    (error,) = errors
    assert (error.attempts, [fault.message for fault in error.errors]) == (3, ["1", "3"])
    assert "failed after 3 attempts" in str(error)


def test_a_person_who_has_it_run_again_gives_it_all_its_retries_anew(disk: Store, clock: FakeClock) -> None:
    flaky = Flaky(3, retries=1, backoff=5, on_failure="hold")
    with pytest.raises(TaskHeldError) as caught:
        live(disk, flaky.flow, clock=clock)
    assert caught.value.reason == "failed step"
    assert flaky.attempts == [1, 2]
    decide(disk, rerun=True)
    assert live(disk, flaky.flow, clock=clock) == "answer 4"
    assert flaky.attempts == [1, 2, 3, 4]
    assert len({info.idempotency_key for info in flaky.infos}) == 1
    starts = [event.doubt for event in log(disk) if isinstance(event, StepStarted)]
    assert starts == ["", "", "rerun by ann", ""]


def test_a_rerun_that_fails_again_is_held_again_with_the_errors_since(disk: Store, clock: FakeClock) -> None:
    flaky = Flaky(9, retries=1, backoff=5, on_failure="hold")
    for attempts in ([1, 2], [1, 2, 3, 4]):
        with pytest.raises(TaskHeldError):
            live(disk, flaky.flow, clock=clock)
        assert flaky.attempts == attempts
        decide(disk, rerun=True)


def test_a_retry_with_other_arguments_would_make_the_key_a_lie(disk: Store, clock: FakeClock) -> None:
    sent: list[str] = []
    to = "ann"

    @step(name="send", retries=1, backoff=60)
    def send(to: str) -> None:
        sent.append(to)
        if len(sent) == 1:
            raise ConnectionError

    @agent
    def flow() -> None:
        send(to)

    with AgentSystem(disk, clock=FakeClock()) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: task.status() == "waiting")
    to = "bob"
    with pytest.raises(TaskHeldError) as caught:
        live(disk, flow, clock=clock)
    assert (caught.value.reason, sent) == ("differs", ["ann"])
    to = "ann"
    live(disk, flow, clock=clock)
    assert sent == ["ann", "ann"]


# ------------------------------------------------------------------ every crash


@step(name="retries: near", retries=2, backoff=0.2, jitter=0)
def near(value: int) -> int:
    if step_info().attempt == 1:
        raise ConnectionError
    return value


@step(name="retries: far", retries=2, backoff=600, max_backoff=600, jitter=0)
def far(value: int) -> int:
    if step_info().attempt == 1:
        raise ConnectionError
    return value


@step(name="retries: idempotent", retries=1, backoff=5, jitter=0, idempotent=True)
def repeatable(value: int) -> int:
    if step_info().attempt == 1:
        raise ConnectionError
    return value


@step(name="retries: hopeless", retries=2, backoff=0.25, jitter=0)
def hopeless() -> None:
    raise ValueError("never")


@agent(name="retries: all kinds")
def all_kinds() -> list[Any]:
    values: list[Any] = [near(1), far(2), repeatable(3)]
    try:
        hopeless()
    except StepError as error:
        values.append([str(fault) for fault in error.errors])
    return values


@pytest.mark.parametrize("new_store", ["memory", "sqlite"], indirect=True)
def test_wherever_the_process_dies_no_retry_is_lost_and_none_too_many(new_store: Any) -> None:
    whole, *runs = every_crash_point(all_kinds, new_store=new_store)
    assert whole.result == [1, 2, 3, ["ValueError: never"] * 3]
    assert whole.points.count("retry.wait") == 7, "three near ones, two far ones that are met again when they are due"
    assert len(runs) == len(whole.points) > 40
    for run in (whole, *runs):
        check_all_kinds(run)


@pytest.mark.parametrize("new_store", ["postgres"], indirect=True)
def test_of_a_server_too_no_retry_is_lost_where_the_process_dies(new_store: Any) -> None:
    for nth in range(1, 60, 5):
        check_all_kinds(run_through_crashes(all_kinds, plan=[nth], store=new_store()))


def check_all_kinds(run: Run) -> None:
    run.check()
    assert run.result == [1, 2, 3, ["ValueError: never"] * 3]
    assert abs(len(run.bodies) - 9) <= len(run.crashes)
    failed = [event.name for event in run.events if isinstance(event, StepFailed)]
    assert failed.count("retries: hopeless") == 3
    check_waits(run.events)


def check_waits(events: list[Any]) -> None:
    """No attempt began before it was due."""
    due: dict[str, float] = {}
    for event in events:
        if isinstance(event, StepStarted):
            assert event.timestamp >= due.pop(event.path, 0)
        elif isinstance(event, StepFailed) and event.retry_at is not None:
            due[event.path] = event.retry_at
