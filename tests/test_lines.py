"""How the lines of one task wait together: which keep their place, when all is unwound, and on how many threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from actors import (
    AgentSystem,
    BlockingCallError,
    NestedStepError,
    OutsideTaskError,
    Signal,
    StepError,
    agent,
    gather,
    receive,
    receive_async,
    request_approval,
    request_approval_async,
    sleep,
    sleep_async,
    sleep_until,
    sleep_until_async,
    step,
    wait_any,
    wait_any_async,
)
from actors.appender import Appender
from actors.task_log import TaskLog
from actors.testing import FakeClock
from domain.events import Activated, Passivated, StepFailed, WaitBegan
from stores import Store
from tests.lives import PATIENCE, kinds, log, wait_for
from tests.waiters import WAITERS, check_waits, moment

BOTH = pytest.mark.parametrize("colour", ["sync", "async"])


def waits_of(disk: Store) -> int:
    return sum(isinstance(event, WaitBegan) for event in log(disk))


# ------------------------------------------------------------------ who keeps its place


@BOTH
def test_branches_that_receive_the_same_name_get_one_signal_each(disk: Store, colour: str) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(WAITERS[colour], [["gather", [[["receive", "a", None]]] * 3]], id="t")
        wait_for(lambda: waits_of(disk) == 3)
        for number in range(3):
            task.signal("a", number)
        assert sorted(task.result(PATIENCE)[0]) == [[0], [1], [2]]
    check_waits(log(disk))


@BOTH
def test_a_branch_that_waits_keeps_its_place_while_others_run(disk: Store, colour: str) -> None:
    here, go = threading.Event(), threading.Event()

    @step(name="lines: beside")
    def beside() -> str:
        here.set()
        assert go.wait(PATIENCE)
        return "ran"

    @agent(name="lines: keeps")
    def flow() -> Any:
        return gather(lambda: receive("a"), beside)

    @agent(name="lines: keeps async")
    async def flow_async() -> Any:
        return await gather(receive_async("a"), beside.aio())

    with AgentSystem(disk) as system:
        task = system.spawn(flow if colour == "sync" else flow_async, id="t")
        assert here.wait(PATIENCE)
        wait_for(lambda: waits_of(disk) == 1)
        task.signal("a", "came")
        wait_for(lambda: "WaitEnded" in kinds(disk))
        assert task.status() == "running"
        go.set()
        assert task.result(PATIENCE) == ("came", "ran")
    assert [event.number for event in log(disk) if isinstance(event, Activated)] == [1]


@BOTH
def test_a_task_of_which_all_waits_is_one_row_and_no_thread(disk: Store, colour: str) -> None:
    with AgentSystem(disk) as system:
        system.spawn(WAITERS[colour], [["step", 1]]).result(PATIENCE)
        task = system.spawn(WAITERS[colour], [["gather", [[["receive", f"s{n}", None]] for n in range(5)]]], id="t")
        wait_for(lambda: task.status() == "waiting")
        (row,) = [row for row in system.log.recorder.select_entries() if row.id == "t"]
        assert (row.owner, row.due) == (None, None)
        wait_for(lambda: not [name for name in names_of_threads() if "TaskActor" in name])
        for number in range(5):
            task.signal(f"s{number}", number)
        assert task.result(PATIENCE) == [[[number] for number in range(5)]]
    wait_for(lambda: not [name for name in names_of_threads() if name.startswith("perdure-body")])
    check_waits(log(disk))


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


@BOTH
def test_no_task_is_unwound_for_a_wait_while_a_branch_is_about_to_go_on(
    colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gather inside a gather has ended, and its line has not gone on yet; beside it another waits for a signal."""
    many, ran = 30, list[int]()
    monkeypatch.setattr("actors.activation.HOPE", 0.0)

    @step(name="lines: quick")
    def quick() -> None: ...

    @step(name="lines: after")
    def after(number: int) -> None:
        ran.append(number)

    @agent(name="lines: nested")
    def flow(number: int) -> Any:
        def inner() -> None:
            gather(quick, quick)
            after(number)

        return gather(lambda: receive("a"), inner)

    @agent(name="lines: nested async")
    async def flow_async(number: int) -> Any:
        async def inner() -> None:
            await gather(quick.aio(), quick.aio())
            await after.aio(number)

        return await gather(receive_async("a"), inner())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with AgentSystem("memory:") as system:
            tasks = [system.spawn(flow if colour == "sync" else flow_async, number) for number in range(many)]
            wait_for(lambda: len(ran) >= many)
            for task in tasks:
                task.signal("a", "came")
                assert task.result(PATIENCE) == ("came", None)
    finally:
        sys.setswitchinterval(interval)


# ------------------------------------------------------------------ threads


def test_five_hundred_branches_of_an_async_agent_wait_on_one_thread(disk: Store) -> None:
    many, most = 500, [0]
    program = [["gather", [[["receive", "a", None]] for _ in range(many)] + [[["step", "beside"]]]]]
    before = threading.active_count()

    def all_wait() -> bool:
        most[0] = max(most[0], threading.active_count())
        return waits_of(disk) == many

    with AgentSystem(disk) as system:
        task = system.spawn(WAITERS["async"], program, id="t")
        wait_for(all_wait)
        assert most[0] <= before + 30, "sixteen that commit, one that waits, and those of the system"
        bring(disk, "t", [("a", number) for number in range(many)])
        values = task.result(PATIENCE)[0]
        assert sorted(value for (value,) in values[:many]) == list(range(many))
    check_waits(log(disk))


def test_retries_of_an_async_agent_wait_on_one_thread() -> None:
    clock, many, tried = FakeClock(), 300, list[int]()

    @step(name="lines: again", retries=1, backoff=100, jitter=0)
    async def again(number: int) -> int:
        tried.append(number)
        if tried.count(number) == 1:
            raise ConnectionError
        return number

    @agent(name="lines: retries")
    async def flow() -> Any:
        return await gather(*[again(number) for number in range(many)])

    before, most = threading.active_count(), [0]

    def all_wait() -> bool:
        most[0] = max(most[0], threading.active_count())
        return task.status() == "waiting"

    with AgentSystem("memory:", clock=clock) as system:
        task = system.spawn(flow)
        wait_for(all_wait)
        assert most[0] <= before + 30
        clock.advance(200)
        assert task.result(PATIENCE) == tuple(range(many))


def bring(disk: Store, task_id: str, signals: list[tuple[str, Any]]) -> None:
    """Bring signals in one append, as another process may: nobody here is told."""
    tasks = TaskLog(disk)
    Appender(tasks, tasks.load(task_id)).append(
        lambda task, now: [
            event
            for number, (name, value) in enumerate(signals)
            for event in task.receive(now, f"id {number}", name, value, "test", after=number)
        ]
    )


# ------------------------------------------------------------------ leaving


@BOTH
@pytest.mark.parametrize("program", [[["receive", "a", None]], [["receive", "a", 1000]], [["any", ["a"], 5, None]]])
def test_a_deploy_in_the_middle_of_a_wait_is_no_strike_and_the_wait_goes_on_elsewhere(
    disk: Store, colour: str, program: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.activation.HOPE", PATIENCE)
    clock = FakeClock()
    for _ in range(4):
        with AgentSystem(disk, clock=clock, strikes=2) as system:
            task = system.spawn(WAITERS[colour], program, id="t")
            wait_for(lambda: waits_of(disk) == 1)
    with AgentSystem(disk, run=False, clock=clock) as client:
        assert client.task("t").status() == "waiting"
        (row,) = client.log.recorder.select_entries()
        assert (row.owner, row.strikes) == (None, 0)
        client.task("t").signal("a", "came")
    with AgentSystem(disk, clock=clock, strikes=2) as system:
        task = system.task("t")
        assert task.result(PATIENCE) in (["came"], [[0, "came"]])
    assert not [event for event in log(disk) if isinstance(event, Passivated) and not event.waits]
    assert (kinds(disk).count("WaitBegan"), kinds(disk).count("WaitEnded")) == (1, 1)


@BOTH
@pytest.mark.parametrize("hope", [0.0, PATIENCE], ids=["as a row", "in place"])
def test_what_another_process_brings_without_a_hint_is_found_by_the_beat(
    disk: Store, colour: str, hope: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.activation.HOPE", hope)
    with AgentSystem(disk) as system:
        task = system.spawn(WAITERS[colour], [["receive", "a", None]], id="t")
        wait_for(lambda: waits_of(disk) == 1 and (hope > 0 or task.status() == "waiting"))
        bring(disk, "t", [("a", "unheard")])
        assert task.result(PATIENCE) == ["unheard"]


# ------------------------------------------------------------------ cancelled by asyncio


def test_a_wait_that_asyncio_cancels_fails_the_same_at_each_replay_and_waits_no_longer(disk: Store) -> None:
    @agent(name="lines: cancelled")
    async def flow() -> list[Any]:
        seen = list[Any]()
        try:
            async with asyncio.timeout(0.01):
                await receive_async("a")
        except StepError as error:
            seen.append("cancelled from outside" in str(error))
        seen.append(await receive_async("b"))
        seen.append(await receive_async("a"))
        return seen

    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: task.status() == "waiting")
        task.signal("a", "late")
        wait_for(lambda: "SignalReceived" in kinds(disk))
        system.spawn(WAITERS["sync"], [["step", 1]]).result(PATIENCE)
        assert task.status() == "waiting", "what it does not wait for any more does not wake it"
        task.signal("b", "go on")
        assert task.result(PATIENCE) == [True, "go on", "late"]
    (failure,) = [event for event in log(disk) if isinstance(event, StepFailed)]
    assert (failure.kind, failure.name) == ("signal", "a")
    assert kinds(disk).count("Activated") == 2


def test_a_wait_that_is_cancelled_at_once_fails_too(disk: Store) -> None:
    @agent(name="lines: cancelled at once")
    async def flow() -> str:
        try:
            async with asyncio.timeout(0):
                await sleep_async(5)
        except StepError:
            return "failed"
        return "slept"

    with AgentSystem(disk, clock=FakeClock()) as system:
        assert system.spawn(flow, id="t").result(PATIENCE) == "failed"
    assert "WaitEnded" not in kinds(disk)


# ------------------------------------------------------------------ where a wait may stand

SYNC: dict[str, Callable[[], Any]] = {
    "sleep": lambda: sleep(1),
    "sleep_until": lambda: sleep_until(moment(0, 1)),
    "receive": lambda: receive("a"),
    "wait_any": lambda: wait_any(Signal("a")),
    "request_approval": lambda: request_approval("really?"),
}
ASYNC: dict[str, Callable[[], Any]] = {
    "sleep_async": lambda: sleep_async(1),
    "sleep_until_async": lambda: sleep_until_async(moment(0, 1)),
    "receive_async": lambda: receive_async("a"),
    "wait_any_async": lambda: wait_any_async(Signal("a")),
    "request_approval_async": lambda: request_approval_async("really?"),
}


@pytest.mark.parametrize("name", SYNC)
def test_a_wait_where_no_task_runs_says_so(name: str) -> None:
    with pytest.raises(OutsideTaskError, match=rf"{name}\(\) was called where no task runs"):
        SYNC[name]()


@pytest.mark.parametrize("name", ASYNC)
def test_an_async_wait_where_no_task_runs_says_so(name: str) -> None:
    with pytest.raises(OutsideTaskError, match=rf"{name}\(\) was called where no task runs"):
        asyncio.run(ASYNC[name]())


@pytest.mark.parametrize("name", SYNC)
def test_a_wait_in_the_body_of_a_step_is_refused(name: str) -> None:
    @step(name="lines: body", raises=(NestedStepError,))
    def body() -> None:
        SYNC[name]()

    @agent(name="lines: nested wait")
    def flow() -> str:
        try:
            body()
        except NestedStepError as error:
            return str(error)
        return ""

    with AgentSystem("memory:") as system:
        said = system.spawn(flow).result(PATIENCE)
    assert f"{name}() was called inside the body of step 1 lines: body" in said


@pytest.mark.parametrize("name", SYNC)
def test_a_sync_wait_in_an_async_agent_names_what_to_await(name: str) -> None:
    @agent(name="lines: blocks")
    async def flow() -> str:
        try:
            SYNC[name]()
        except BlockingCallError as error:
            return str(error)
        return ""

    with AgentSystem("memory:") as system:
        assert f"await {name}_async(" in system.spawn(flow).result(PATIENCE)


@pytest.mark.parametrize("name", ASYNC)
def test_an_async_wait_in_a_sync_agent_names_what_to_call(name: str) -> None:
    @agent(name="lines: awaits")
    def flow() -> str:
        waiting = ASYNC[name]()
        try:
            waiting.send(None)
        except OutsideTaskError as error:
            return str(error)
        return ""

    with AgentSystem("memory:") as system:
        assert f": call {name.removesuffix('_async')}(" in system.spawn(flow).result(PATIENCE)


def test_a_wait_in_a_thread_made_by_hand_is_refused() -> None:
    said = list[str]()

    @agent(name="lines: by hand")
    def flow() -> None:
        import contextvars

        def elsewhere() -> None:
            try:
                receive("a")
            except OutsideTaskError as error:
                said.append(str(error))

        thread = threading.Thread(target=contextvars.copy_context().run, args=(elsewhere,))
        thread.start()
        thread.join(PATIENCE)

    with AgentSystem("memory:") as system:
        system.spawn(flow).result(PATIENCE)
    assert "receive() was called on another thread than that of its task" in said[0]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "gathered"])
def test_a_time_limit_of_asyncio_around_a_wait_is_never_lost_by_unwinding(disk: Store, beside: bool) -> None:
    @agent(name=f"lines: limited {beside}")
    async def flow() -> str:
        try:
            async with asyncio.timeout(0.5):  # longer than a task that only waits keeps its place
                if beside:
                    await gather(receive_async("a"), receive_async("b"))
                else:
                    await receive_async("a")
        except StepError:
            return "failed"
        return "received"

    with AgentSystem(disk) as system:
        assert system.spawn(flow, id="t").result(PATIENCE) == "failed"
    assert kinds(disk).count("Activated") == 1


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_an_agent_that_swallows_its_end_in_a_loop_costs_nobody_else_their_turn(disk: Store, colour: str) -> None:
    calls, over = list[int](), threading.Event()

    @agent(name="lines: swallows")
    def swallows() -> None:
        while not over.is_set():
            calls.append(1)
            with suppress(BaseException):
                sleep(0.2)

    @agent(name="lines: swallows async")
    async def swallows_async() -> None:
        while not over.is_set():
            calls.append(1)
            with suppress(BaseException):
                await sleep_async(0.2)

    with AgentSystem(disk, grace=0) as system:
        task = system.spawn(swallows if colour == "sync" else swallows_async, id="t")
        wait_for(lambda: len(calls) > 1)
        task.cancel(grace=0)
        wait_for(lambda: task.status() == "cancelled")
        calls.clear()
        assert system.spawn(WAITERS[colour], [["step", 1], ["sleep", 0.1], ["step", 2]]).result(PATIENCE)
        assert len(calls) < 100, "it is kept from going on"
        over.set()
