"""Async agents and steps, and sync ones beside and inside them: one loop, which nothing ends and nothing blocks."""

import asyncio
import contextvars
import gc
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from actors import (
    AgentSystem,
    BlockingCallError,
    DefinitionError,
    InsideTaskError,
    NestedStepError,
    OutsideTaskError,
    StepError,
    TaskFailedError,
    TaskHeldError,
    TaskInfo,
    agent,
    gather,
    get_logger,
    open_store,
    run_step,
    run_step_async,
    step,
    step_info,
    task_info,
)
from actors.appender import Appender
from actors.task_log import TaskLog
from actors.testing import CrashPlan, every_crash_point
from domain.events import Passivated, StepFailed, StepStarted, StepSucceeded
from stores import Store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, bodies, decide, die, held, kinds, live, log, wait_for
from tests.scenario_kit import World

each_kind = pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
"""What is no Exception, and might end a loop, or everything on it."""


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


@step(name="double")
def double(number: int) -> int:
    return number * 2


@step(name="double_async")
async def double_async(number: int) -> int:
    return number * 2


# ------------------------------------------------------------------ both colours


@agent
def blocking(depth: int) -> list[Any]:
    """Call steps and agents of both colours, so many levels deep."""
    inside = [blocking(depth - 1), awaiting.sync(depth - 1)] if depth else []
    return [double(depth), double_async.sync(depth), *inside]


@agent
async def awaiting(depth: int) -> list[Any]:
    """Do the same in the other colour."""
    inside = [await blocking.aio(depth - 1), await awaiting(depth - 1)] if depth else []
    return [await double.aio(depth), await double_async(depth), *inside]


def levels(depth: int) -> list[Any]:
    return [depth * 2, depth * 2, *([levels(depth - 1)] * 2 if depth else [])]


@pytest.mark.parametrize("walk", [blocking, awaiting], ids=["sync", "async"])
def test_each_colour_calls_steps_and_agents_of_both(disk: Store, walk: Any) -> None:
    assert live(disk, walk, 3) == levels(3)
    paths = [path for path, *_ in bodies(disk)]
    assert len(paths) == len(set(paths)) == 30
    assert paths[:4] == ["1/1/1/1", "1/1/1/2", "1/1/2/1", "1/1/2/2"]


@pytest.mark.parametrize("walk", [blocking, awaiting], ids=["sync", "async"])
def test_at_every_boundary_a_death_changes_no_result(walk: Any) -> None:
    for run in every_crash_point(walk, 1):
        run.check()
        assert run.result == levels(1)


def test_async_code_runs_on_one_loop_and_sync_code_never_on_its_thread(disk: Store) -> None:
    threads: dict[str, set[str]] = {"async": set(), "sync": set()}

    def tell(kind: str) -> None:
        threads[kind].add(threading.current_thread().name)

    @step
    def sync_step() -> None:
        tell("sync")

    @step
    async def async_step() -> None:
        tell("async")

    @agent
    def sync_agent() -> None:
        tell("sync")
        async_step.sync()
        sync_step()

    @agent
    async def async_agent() -> None:
        tell("async")
        await gather(async_step, sync_step.aio)
        await sync_agent.aio()

    live(disk, async_agent)
    assert threads["async"] == {"perdure-loop"}
    assert not any(name.startswith("perdure-loop") for name in threads["sync"])


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_context_variables_of_an_agent_reach_bodies_and_agents_of_both_colours(disk: Store, colour: str) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    @step(timeout=PATIENCE)
    def sync_step() -> str:
        return variable.get()

    @step(timeout=PATIENCE)
    async def async_step() -> str:
        return variable.get()

    @agent
    def sync_agent() -> Any:
        return [variable.get(), sync_step(), async_step.sync()]

    @agent
    async def async_agent() -> Any:
        return [variable.get(), await sync_step.aio(), await async_step()]

    @agent
    def flow() -> Any:
        variable.set("mine")
        return [sync_agent(), async_agent.sync(), sync_step(), async_step.sync()]

    @agent
    async def flow_async() -> Any:
        variable.set("mine")
        return [await sync_agent.aio(), await async_agent(), await sync_step.aio(), await async_step()]

    assert live(disk, flow if colour == "sync" else flow_async) == [["mine"] * 3, ["mine"] * 3, "mine", "mine"]
    assert variable.get() == "unset"


def test_an_async_body_is_told_its_step_and_no_task(disk: Store) -> None:
    @step(name="look")
    async def look() -> list[Any]:
        return [step_info().path, step_info().name, task_info()]

    @agent
    async def flow() -> Any:
        assert isinstance(task_info(), TaskInfo)
        return await look()

    assert live(disk, flow) == ["1", "look", None]


# ------------------------------------------------------------------ from asyncio


def test_everything_can_be_done_from_asyncio(disk: Store) -> None:
    @step(name="pay", on_doubt="hold")
    async def pay(amount: int) -> int:
        return amount

    @agent(name="paying")
    async def flow(amount: int) -> int:
        return await pay(amount)

    die(disk, flow, 20)

    async def main() -> None:
        async with AgentSystem(disk) as system:
            task = await system.spawn_async(flow, 20, id="t")
            with pytest.raises(TaskHeldError, match="in doubt"):
                await task
            assert await task.status_async() == "held"
            assert [ref.id for ref in await system.tasks_async(status="held")] == ["t"]
            assert (await task.describe_async()).status == "held"
            assert len(await task.events_async(after=1)) == len(await task.events_async()) - 1
            await task.resolve_async("1", value=21, by="ann")
            assert await asyncio.wait_for(task.result_async(PATIENCE), PATIENCE) == 21
            others = [await system.spawn_async(flow, number) for number in range(5)]
            assert await asyncio.gather(*others) == [0, 1, 2, 3, 4]
        await system.close_async()

    asyncio.run(main())


def test_result_async_gives_up_at_its_time_and_the_task_goes_on(disk: Store) -> None:
    go = threading.Event()

    @step
    def wait_until_told() -> bool:
        return go.wait(PATIENCE)

    @agent
    async def flow() -> bool:
        return await wait_until_told.aio()

    async def main() -> None:
        async with AgentSystem(disk) as system:
            task = await system.spawn_async(flow, id="t")
            with pytest.raises(TimeoutError, match=r"task t has no result after 0\.01 s"):
                await task.result_async(0.01)
            waiter = asyncio.create_task(task.result_async())
            await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await task
            go.set()
            assert await task is True
            assert await task.result_async(0) is True

    asyncio.run(main())


def test_a_failed_task_raises_where_it_is_awaited(disk: Store) -> None:
    @agent
    async def flow() -> None:
        await run_step_async("fail", raises, ValueError("no"))

    async def main() -> None:
        async with AgentSystem(disk) as system:
            with pytest.raises(TaskFailedError, match="step 1 fail: no"):
                await system.spawn(flow)

    asyncio.run(main())


def raises(error: BaseException) -> None:
    raise error


def test_a_body_that_awaits_another_task_gives_its_place_to_it(disk: Store) -> None:
    with AgentSystem(disk, max_active=1) as system:

        @step
        async def ask(depth: int) -> int:
            task = await system.spawn_async(flow, depth - 1, id=f"t{depth - 1}")
            return await task.result_async(PATIENCE)

        @agent
        async def flow(depth: int) -> int:
            return await ask(depth) + 1 if depth else 0

        assert system.spawn(flow, 3, id="t3").result(PATIENCE) == 3


# ------------------------------------------------------------------ calls that would block


def message_of(kind: type[Exception], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)


def test_a_plain_call_in_an_async_agent_names_what_to_await_and_takes_no_place(disk: Store) -> None:
    @agent(name="inner")
    def inner() -> None: ...

    @agent(name="inner_async")
    async def inner_async() -> None: ...

    @agent
    async def flow() -> list[str]:
        calls = (lambda: double(1), lambda: double_async.sync(1), inner, inner_async.sync)
        messages = [message_of(BlockingCallError, call) for call in calls]
        await double.aio(1)
        return messages

    messages = live(disk, flow)
    assert [message.rpartition(": ")[2] for message in messages] == [
        "await double.aio(…)",
        "await double_async(…)",
        "await inner.aio(…)",
        "await inner_async(…)",
    ]
    assert all("in async code of task t, where it would block the event loop" in message for message in messages)
    assert bodies(disk) == [("1", "double", 1)]


def test_what_blocks_is_refused_on_a_loop_and_names_its_twin(disk: Store) -> None:
    with AgentSystem(disk) as system:

        @step
        async def body() -> list[str]:
            task = system.task("t")
            calls: list[Callable[[], object]] = [
                partial(system.spawn, awaiting, 0),
                system.tasks,
                task.result,
                task.status,
                task.describe,
                task.events,
                task.release,
                partial(task.resolve, "1", rerun=True),
            ]
            return [message_of(BlockingCallError, call) for call in calls]

        @agent
        async def flow() -> list[str]:
            message_of(InsideTaskError, lambda: system.spawn(awaiting, 0))
            message_of(InsideTaskError, system.task("t").result)
            return await body()

        messages = system.spawn(flow, id="t").result(PATIENCE)

        async def main() -> str:
            return message_of(BlockingCallError, system.task("t").result)

        assert "await the task, or result_async(timeout)" in asyncio.run(main())
    twins = ["spawn", "tasks", "result", "status", "describe", "events", "release", "resolve"]
    for name, message in zip(twins, messages, strict=True):
        assert message.startswith(f"{name}() would block the event loop")
        assert f"{name}_async(" in message


# ------------------------------------------------------------------ elsewhere


@pytest.mark.parametrize("how", ["create_task", "gather", "wait_for", "TaskGroup"])
def test_a_step_in_an_asyncio_task_made_by_hand_names_what_to_use(disk: Store, how: str) -> None:
    if how == "wait_for" and sys.version_info >= (3, 12):
        pytest.skip("here wait_for makes no task of its own")

    async def by_hand() -> None:
        match how:
            case "create_task":
                await asyncio.create_task(double_async(1))
            case "gather":
                await asyncio.gather(double_async(1), return_exceptions=False)
            case "wait_for":
                await asyncio.wait_for(double_async(1), PATIENCE)
            case "TaskGroup":
                async with asyncio.TaskGroup() as group:
                    group.create_task(double_async(1))

    @agent
    async def flow() -> tuple[str, int]:
        try:
            await by_hand()
        except* OutsideTaskError as group:
            (error,) = group.exceptions
        return str(error), await double_async(2)

    message, value = live(disk, flow)
    assert "step double_async was called in another asyncio task than that of its task t" in message
    for hint in ("asyncio.gather, create_task", "wait_for", "gather(…)", "timeout=", 'branch("key")', ".fn(…)"):
        assert hint in message
    assert (value, bodies(disk)) == (4, [("1", "double_async", 1)])


def test_a_loop_of_ones_own_in_a_sync_agent_is_told_so(disk: Store) -> None:
    @agent
    def flow() -> tuple[str, str]:
        with pytest.raises(OutsideTaskError) as caught:
            asyncio.run(double_async(1))
        driven = double.aio(2)
        message = message_of(OutsideTaskError, lambda: driven.send(None))
        return str(caught.value), message

    in_a_loop, by_hand = live(disk, flow)
    assert "in an event loop that the code of its task t runs by itself" in in_a_loop
    assert by_hand == "step double was awaited in sync code of task t: call double(…)"


@pytest.mark.filterwarnings("error")
def test_in_a_body_the_other_colour_of_an_agent_is_refused_and_the_own_is_a_plain_call(disk: Store) -> None:
    @agent(name="inner")
    def inner() -> str:
        return "plain"

    @agent(name="inner_async")
    async def inner_async() -> str:
        return "plain"

    @step
    def body() -> list[str]:
        message = message_of(NestedStepError, inner_async.sync)
        return [inner(), message]

    @step
    async def async_body() -> list[str]:
        with pytest.raises(NestedStepError) as caught:
            await inner.aio()
        return [await inner_async(), str(caught.value)]

    @agent
    async def flow() -> Any:
        return [await body.aio(), await async_body()]

    (plain, refused), (plain_async, refused_async) = live(disk, flow)
    assert plain == plain_async == "plain"
    assert "call the plain function inner_async.fn(…)" in refused
    assert "call the plain function inner.fn(…)" in refused_async


def test_a_time_limit_from_outside_is_a_failed_step_that_names_its_own_limit(disk: Store) -> None:
    @step(name="hang")
    async def hang() -> None:
        await asyncio.Event().wait()

    @step(name="hang")
    def hang_on_a_thread() -> None:
        go.wait(PATIENCE)

    go = threading.Event()

    async def within(call: Callable[[], Awaitable[None]]) -> str:
        with pytest.raises(StepError) as caught:
            async with asyncio.timeout(0.01):
                await call()
        return str(caught.value)

    @agent
    async def flow() -> Any:
        messages = [await within(hang), await within(hang_on_a_thread.aio), await within(partial(gather, hang, hang))]
        return messages, await double_async(1)

    die(disk, flow)
    try:
        messages, value = live(disk, flow)
    finally:
        go.set()
    assert value == 2
    for path, message in zip(["1", "2", "3/1/1"], messages, strict=True):
        assert message.startswith(f"step {path} hang failed")
        assert "was cancelled from outside" in message
        assert "give the step a limit by timeout= instead" in message
    failed = [event.path for event in log(disk) if isinstance(event, StepFailed)]
    assert sorted(failed) == ["1", "2", "3/1/1", "3/2/1"]


@pytest.mark.parametrize(("during", "value"), [(StepStarted, "cancelled"), (StepSucceeded, 2)])
def test_a_cancellation_never_undoes_what_is_being_written(disk: Store, during: type[Any], value: Any) -> None:
    cancelled = threading.Event()

    class Plan(CrashPlan):
        def reach(self, point: str, **facts: Any) -> None:
            if point == "append.before" and during.TOPIC in facts["topics"]:
                assert cancelled.wait(PATIENCE)
            super().reach(point, **facts)

    @agent
    async def flow() -> Any:
        asyncio.get_running_loop().call_later(0.1, cancelled.set)
        try:
            async with asyncio.timeout(0.01):
                return await double_async(1)
        except StepError as error:
            return "cancelled" if "was cancelled from outside" in str(error) else str(error)

    assert live(CrashingStore(disk, Plan(None)), flow) == value
    outcome = "StepFailed" if value == "cancelled" else "StepSucceeded"
    assert kinds(disk) == ["Created", "Activated", "StepStarted", outcome, "Completed"]


def test_a_cancellation_ends_the_wait_for_a_retry(disk: Store) -> None:
    attempts: list[int] = []
    cancels: list[Callable[[], object]] = []

    class Plan(CrashPlan):
        def reach(self, point: str, **facts: Any) -> None:
            if point == "retry.wait":
                cancels.pop()()
            super().reach(point, **facts)

    @step(name="again", retries=1, backoff=0.9, jitter=0)
    async def again() -> None:
        attempts.append(step_info().attempt)
        raise ConnectionError

    @agent
    async def flow() -> Any:
        me = asyncio.current_task()
        assert me is not None
        cancels.append(partial(asyncio.get_running_loop().call_soon, me.cancel))
        with pytest.raises(StepError, match=r"step 1 again failed.*was cancelled from outside"):
            await again()
        me.uncancel()
        return await double_async(1)

    assert live(CrashingStore(disk, Plan(None)), flow) == 2
    assert attempts == [1]


# ------------------------------------------------------------------ what is no Exception


def beside(disk: Store, flow: Any) -> Any:
    """Run the task `t` while another async task waits on the same loop; that one ends well, whatever `t` does."""
    go, arrived = threading.Event(), threading.Event()

    @step
    async def waits() -> str:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        threading.Thread(target=lambda: (go.wait(PATIENCE), loop.call_soon_threadsafe(told.set)), daemon=True).start()
        arrived.set()
        await told.wait()
        return "well"

    @agent
    async def other() -> str:
        return await waits()

    with AgentSystem(disk) as system:
        neighbour = system.spawn(other, id="other")
        assert arrived.wait(PATIENCE)
        task = system.spawn(flow, id="t")
        try:
            return task.result(PATIENCE)
        finally:
            go.set()
            assert neighbour.result(PATIENCE) == "well"
            assert len([event for event in neighbour.events() if type(event).__name__ == "Activated"]) == 1


@pytest.mark.parametrize(
    "kind",
    [
        SystemExit,
        KeyboardInterrupt,
        asyncio.CancelledError,
        GeneratorExit,
    ],
)
def test_whatever_an_async_body_raises_is_a_step_error_and_ends_nothing_else(
    disk: Store, kind: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    @step(name="quits", retries=3)
    async def quits() -> None:
        ran.append(1)
        await asyncio.sleep(0)
        raise kind

    @agent
    async def flow() -> list[Any]:
        with pytest.raises(StepError) as caught:
            await quits()
        return [caught.value.is_a(kind), await double_async(1)]

    assert beside(disk, flow) == [True, 2]
    assert ran == [1]
    assert capfd.readouterr().err == ""


@each_kind
@pytest.mark.parametrize("where", ["agent", "agent inside", "branch"])
def test_whatever_async_agent_code_raises_is_a_crash_of_its_task_alone(
    disk: Store, kind: type[BaseException], where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def code() -> None:
        await asyncio.sleep(0)
        raise kind

    inner = agent(name="raising")(code)

    @agent
    async def flow() -> None:
        if where == "agent inside":
            await inner()
        elif where == "branch":
            await gather(code, double_async(1))
        else:
            await code()

    with pytest.raises(TaskHeldError, match="3 crashes in a row"):
        beside(disk, flow)
    assert kinds(disk).count("Restarted") == 2
    assert capfd.readouterr().err == ""


@each_kind
def test_whatever_an_asyncio_task_made_by_hand_raises_ends_nothing_else(
    disk: Store, kind: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    async def boom() -> None:
        raise kind

    @agent
    async def flow() -> list[Any]:
        made = asyncio.create_task(boom())
        await asyncio.wait([made])
        with pytest.raises(kind):
            await made
        left = asyncio.create_task(boom())
        await asyncio.wait([left])
        del left
        return [await double_async(1), await double.aio(2)]

    assert beside(disk, flow) == [2, 4]
    gc.collect()
    assert capfd.readouterr().err == ""


# ------------------------------------------------------------------ ends


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_body_of_a_lost_activation_writes_nothing(disk: Store, colour: str, caplog: pytest.LogCaptureFixture) -> None:
    bell, runs = Bell(), Bell()

    @step
    async def slow() -> None:
        runs.ring()
        await bell.wait_async()

    @step
    def slow_on_a_thread() -> None:
        runs.ring()
        bell.wait()

    @agent
    async def flow() -> None:
        await (slow() if colour == "async" else slow_on_a_thread.aio())

    with AgentSystem(disk) as system:
        system.spawn(flow, id="t")
        runs.wait()
        lock = disk.workers.hold("other", {})
        other = Appender(TaskLog(disk), TaskLog(disk).load("t"))
        other.append(lambda task, now: task.activate(now, worker="other", token="", limit=None))
        before = kinds(disk)
        bell.ring()
        wait_for(lambda: "ownership lost" in caplog.text)
    assert kinds(disk) == before
    lock.release()


class Bell:
    """Rings once, for who waits on a thread and for who waits on a loop."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], object]] = []

    def ring(self) -> None:
        with self._lock:
            self._rung.set()
            for wake in self._waiting:
                wake()

    def wait(self) -> None:
        assert self._rung.wait(PATIENCE)

    async def wait_async(self) -> None:
        loop, rung = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiting.append(partial(loop.call_soon_threadsafe, rung.set))
            if self._rung.is_set():
                return
        await asyncio.wait_for(rung.wait(), PATIENCE)


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_body_that_ends_within_the_grace_is_recorded(disk: Store, colour: str) -> None:
    bell, runs = Bell(), Bell()

    @step
    async def slow() -> str:
        runs.ring()
        await bell.wait_async()
        return "in time"

    @step
    def slow_on_a_thread() -> str:
        runs.ring()
        bell.wait()
        return "in time"

    @agent
    async def flow() -> Any:
        first = await (slow() if colour == "async" else slow_on_a_thread.aio())
        return first, await double_async(1)

    with AgentSystem(disk) as system:
        system.spawn(flow, id="t")
        runs.wait()
        closing = threading.Thread(target=system.close)
        closing.start()
        wait_for(lambda: system._closed)
        bell.ring()
        closing.join(PATIENCE)
    assert kinds(disk)[-3:] == ["StepStarted", "StepSucceeded", "Passivated"]
    assert live(disk, flow) == ("in time", 2)
    assert [attempt for *_, attempt in bodies(disk)] == [1, 1]


def test_an_async_body_that_outlives_the_grace_is_cancelled_and_in_doubt(disk: Store) -> None:
    ended: list[str] = []
    runs, over = Bell(), threading.Event()

    @step
    async def hang() -> str:
        if step_info().attempt > 1:
            return "again"
        runs.ring()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            over.set()
        return "never"

    @agent
    async def flow() -> str:
        return await hang()

    with AgentSystem(disk, grace=0.01) as system:
        system.spawn(flow, id="t")
        runs.wait()
    assert over.wait(PATIENCE)
    assert ended == ["cancelled"]
    (mark,) = (event for event in log(disk) if isinstance(event, Passivated))
    assert mark.cut_off == ["1"]
    assert kinds(disk)[-2:] == ["StepStarted", "Passivated"]
    assert live(disk, flow) == "again"


@pytest.mark.parametrize("hangs", ["a body on a thread", "a coroutine", "both, closed"])
def test_the_end_of_the_process_does_not_wait_for_what_hangs(world: World, hangs: str) -> None:
    closes = hangs == "both, closed"
    program = world.write(
        f"""
        import asyncio, threading
        from actors import AgentSystem, agent, gather, step
        from tests.scenario_kit import STORE, say

        started = threading.Barrier(3)

        @step
        def on_a_thread():
            started.wait(20)
            threading.Event().wait()

        @step
        async def coroutine():
            await asyncio.to_thread(started.wait, 20)  # the loop is to start the other one
            while True:
                try:
                    await asyncio.Event().wait()
                except BaseException:
                    pass

        @agent
        async def flow():
            await gather(on_a_thread.aio, {"coroutine" if hangs != "a body on a thread" else "on_a_thread.aio"})

        if __name__ == "__main__":
            system = AgentSystem(STORE, grace=0.1).__enter__()
            system.spawn(flow, id="t")
            started.wait(20)
            {"system.close()" if closes else ""}
            say("over")
        """
    )
    assert world.run(program) == "over"


# ------------------------------------------------------------------ blocking the loop


def test_a_step_that_blocks_the_loop_is_named_in_one_warning(disk: Store, caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has blocked the event loop" in record.getMessage():
                warnings.append(record)
                told.set()

    warnings = list[logging.LogRecord]()

    @step(name="greedy")
    async def greedy() -> bool:
        return told.wait(PATIENCE)

    @agent
    async def flow() -> bool:
        return await greedy()

    listener = Listener()
    logging.getLogger("perdure").addHandler(listener)
    try:
        assert live(disk, flow) is True
    finally:
        logging.getLogger("perdure").removeHandler(listener)
    (warning,) = warnings  # caplog may not have it yet
    assert warning.levelname == "WARNING"
    assert warning.getMessage().startswith("step greedy has blocked the event loop that all async agents share for ")
    assert "await greedy.aio(…)" in warning.getMessage()
    assert f"{__file__}:" in warning.getMessage()


# ------------------------------------------------------------------ steps by name


class Model:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failures = 0

    def ask(self, text: str, *more: str) -> str:
        self.asked.append(text)
        if len(self.asked) <= self.failures:
            raise ConnectionError
        return " ".join([text.upper(), *more])

    async def ask_async(self, text: str) -> str:
        await asyncio.sleep(0)
        return self.ask(text)


def test_run_step_makes_a_step_of_any_call(disk: Store) -> None:
    model = Model()

    @agent
    def flow() -> Any:
        options: Any = {"retries": 2, "backoff": 0, "label": None}
        return [
            run_step("ask", model.ask, "a", "b"),
            run_step("ask again", lambda text: text * 2, "c", **options),
            run_step("length", len, [1, 2]),
            run_step("partial", partial(int, base=2), "101"),
        ]

    die(disk, flow, nth=3)
    assert live(disk, flow) == ["A b", "cc", 2, 5]
    assert model.asked == ["a"]
    assert [(path, name) for path, name, attempt in bodies(disk) if attempt == 1] == [
        *(("1", "ask"), ("2", "ask again"), ("3", "length"), ("4", "partial")),
    ]


def test_run_step_async_takes_functions_of_both_colours_and_what_gives_an_awaitable(disk: Store) -> None:
    model, threads = Model(), list[str]()

    def blocks() -> str:
        threads.append(threading.current_thread().name)
        return "sync"

    class Asking:
        async def __call__(self, text: str) -> str:
            return text

    @agent
    async def flow() -> Any:
        return [
            await run_step_async("async", model.ask_async, "a"),
            await run_step_async("lambda", lambda text: model.ask_async(text + "!"), "b"),
            await run_step_async("partial", partial(model.ask_async, "c")),
            await run_step_async("object", Asking(), "d"),
            await run_step_async("sync", blocks),
        ]

    die(disk, flow, nth=5)
    assert live(disk, flow) == ["A", "B!", "C", "d", "sync"]
    assert model.asked == ["a", "b!", "c"]
    assert not any(name.startswith("perdure-loop") for name in threads)


def test_options_come_from_a_plain_mapping_and_are_checked(disk: Store) -> None:
    model = Model()
    model.failures = 2
    wrong: dict[str, Any] = {"retry_count": 3}
    options: dict[str, Any] = {"retries": 2, "backoff": 0, "retry_on": ConnectionError, "timeout": PATIENCE}

    @agent
    def flow() -> Any:
        with pytest.raises(DefinitionError, match="step ask: there is no option retry_count; there are retries,"):
            run_step("ask", model.ask, "x", **wrong)
        with pytest.raises(DefinitionError, match="a name has 1 to 200 printable characters"):
            run_step("", model.ask, "x")
        with pytest.raises(StepError, match=r"await run_step_async\('wrong', …\)"):
            run_step("wrong", model.ask_async, "x")
        return run_step("ask", model.ask, "x", **options)

    assert live(disk, flow) == "X"
    assert model.asked == ["x"] * 3


def test_a_step_by_name_in_doubt_may_be_held_and_resolved(disk: Store) -> None:
    @agent
    def flow() -> Any:
        return run_step("pay", lambda amount: amount, 20, on_doubt="hold")

    die(disk, flow)
    assert held(disk, flow).reason == "in doubt"
    decide(disk, value={"paid": 20})
    assert live(disk, flow) == {"paid": 20}


def test_steps_by_name_are_refused_where_steps_are(disk: Store) -> None:
    with pytest.raises(OutsideTaskError, match="step ask was called where no task runs"):
        run_step("ask", len, "x")
    with pytest.raises(OutsideTaskError, match="step ask was called where no task runs"):
        asyncio.run(run_step_async("ask", len, "x"))

    @agent
    async def flow() -> str:
        return message_of(BlockingCallError, lambda: run_step("ask", len, "x"))

    assert "step ask was called in async code of task t" in live(disk, flow)


def test_a_logger_for_agents_names_the_task_and_is_silent_in_a_replay(
    disk: Store, caplog: pytest.LogCaptureFixture
) -> None:
    logger = get_logger("tests.async")

    @step
    async def body() -> None:
        logger.warning("in a body")

    @agent
    async def flow() -> None:
        logger.warning("before")
        await body()
        logger.warning("after %d", 1)
        await double_async(1)

    die(disk, flow, nth=2)
    live(disk, flow)
    logger.warning("outside")
    told = [record.getMessage() for record in caplog.records if record.name == "tests.async"]
    assert told == ["task t: before", "in a body", "task t: after 1", "outside"]


# ------------------------------------------------------------------ many


def test_a_thousand_async_agents_wait_at_once_in_one_process_under_300_mb(world: World) -> None:
    program = world.write(
        """
        import asyncio, os, resource, sys, time
        from actors import AgentSystem, agent, step
        from tests.scenario_kit import STORE, say

        def peak():  # in megabytes, of this process alone: getrusage on Linux begins with the size of its parent
            if os.path.exists("/proc/self/status"):
                with open("/proc/self/status") as status:
                    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024
            scale = 1024 * 1024 if sys.platform == "darwin" else 1024
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // scale

        MANY = 1000
        arrived = []
        everyone = asyncio.Event()

        @step
        async def meet(number):
            arrived.append(number)
            if len(arrived) == MANY:
                everyone.set()
            await everyone.wait()
            return number

        @agent
        async def flow(number):
            return await meet(number)

        if __name__ == "__main__":
            before = peak()
            begun = time.monotonic()
            with AgentSystem(STORE, max_active=MANY) as system:
                tasks = [system.spawn(flow, number) for number in range(MANY)]
                results = [task.result(100) for task in tasks]
            after = peak()
            say(results == list(range(MANY)), len(set(arrived)), len(arrived))
            say(before, after, round(time.monotonic() - begun, 1))
        """
    )
    told = world.start(program)
    assert told.hear(110) == "True 1000 1000"
    before, after, seconds = told.hear().split()
    print(f"1,000 async agents: {before} MB before, {after} MB at most, {seconds} s")
    assert int(after) < 300
    told.end()
