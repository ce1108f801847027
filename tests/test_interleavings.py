"""Forced interleavings: moments at which threads, cancellations and the end of an agent or a system meet."""

import asyncio
import contextvars
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from types import ModuleType
from typing import Any

import pytest

from actors import (
    AgentSystem,
    Happened,
    StepError,
    TaskFailedError,
    TaskHeldError,
    agent,
    branch,
    gather,
    map_steps,
    open_store,
    step,
    task_info,
)
from actors.appender import Appender
from actors.colours import AWAITING
from actors.task_log import TaskLog
from actors.testing import CrashPlan, FakeClock, every_crash_point
from actors.threads import Job
from domain.events import Completed, Held, Passivated, StepStarted, StepSucceeded, TaskEvent
from domain.task import AgentTask
from stores import Store, StoreUnavailableError
from stores.crash import CrashingStore
from tests.lives import PATIENCE, bodies, kinds, live, log, wait_for


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    """Let bodies that wait for this go when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def _hectic() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


hectic = pytest.mark.usefixtures("_hectic")


def by_hand(code: Callable[[], Any]) -> threading.Thread:
    """Run code on a thread of one's own that has the agent's context, as a framework does; its errors are its own."""

    def run() -> None:
        with suppress(BaseException):
            code()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    thread.start()
    return thread


def task_of(disk: Store, task_id: str = "t") -> AgentTask:
    return TaskLog(disk).load(task_id)


def place_of(events: list[TaskEvent], kind: type[TaskEvent], path: str = "") -> int:
    """Give the place in the log of the first event of a kind, of a step where a path is given."""
    return next(
        number
        for number, event in enumerate(events)
        if isinstance(event, kind) and path in ("", getattr(event, "path", ""))
    )


# ------------------------------------------------------------------ a cancellation at the start of a gather


def at_once() -> asyncio.Timeout:
    return asyncio.timeout(0)


def in_the_past() -> asyncio.Timeout:
    return asyncio.timeout_at(asyncio.get_running_loop().time() - 1)


each_timeout = pytest.mark.parametrize("over", [at_once, in_the_past])
each_way = pytest.mark.parametrize("how", ["gather", "map_steps", "map_steps limit=1"])


def cancelled_at_the_start(how: str, over: Callable[[], asyncio.Timeout], ran: list[int], *, idempotent: bool) -> Any:
    """Give an agent whose branches are cancelled before their asyncio tasks have begun; it tells how each has left."""

    @step(name="quote", idempotent=idempotent)
    async def quote(number: int) -> int:
        await asyncio.sleep(0)
        ran.append(number)
        return number

    async def asked(number: int) -> str | None:
        try:
            await quote(number)
        except StepError as error:
            return str(error)
        return "a value"

    @agent(name="interleaved: cancelled at the start")
    async def flow() -> Any:
        async with over():
            if how == "gather":
                return list(await gather(*[lambda number=number: asked(number) for number in range(3)]))
            return await map_steps(asked, range(3), limit=1 if how.endswith("1") else None)

    return flow


@each_timeout
@each_way
@pytest.mark.parametrize("idempotent", [False, True])
def test_a_branch_that_is_cancelled_before_it_begins_fails_and_runs_no_body(
    disk: Store, how: str, over: Callable[[], asyncio.Timeout], idempotent: bool
) -> None:
    ran: list[int] = []
    left = live(disk, cancelled_at_the_start(how, over, ran, idempotent=idempotent))

    assert len(left) == 3
    assert all("was cancelled from outside" in text and "timeout=" in text for text in left)
    assert ran == []


@each_timeout
def test_a_branch_that_is_taken_after_the_cancellation_runs_no_body_that_never_awaits(
    disk: Store, over: Callable[[], asyncio.Timeout]
) -> None:
    ran: list[int] = []

    @step(name="quote", idempotent=True)
    async def quote(number: int) -> int:
        ran.append(number)
        return number

    async def asked(number: int) -> str:
        try:
            return f"value {await quote(number)}"
        except StepError as error:
            return str(error)

    @agent(name="interleaved: never awaits")
    async def flow() -> list[str]:
        async with over():
            return await map_steps(asked, range(4), limit=1)

    first, *others = live(disk, flow)
    assert len(others) == 3
    assert all("timeout=" in text for text in others)
    assert (first, ran) == ("value 0", [0]) or ("timeout=" in first and ran == [])


@pytest.mark.parametrize("how", ["gather", "map_steps limit=1"])
def test_a_cancellation_at_the_start_is_the_same_wherever_the_process_dies(how: str) -> None:
    ran: list[int] = []
    for run in every_crash_point(cancelled_at_the_start(how, at_once, ran, idempotent=False)):
        run.check()
        assert len(run.result) == 3
        assert all("timeout=" in text for text in run.result)
    assert ran == []


@each_way
def test_a_gather_that_is_cancelled_at_its_start_raises_the_failed_step(disk: Store, how: str) -> None:
    @step(name="quote")
    async def quote(number: int) -> int:
        await asyncio.sleep(0)
        return number

    @agent(name="interleaved: raises")
    async def flow() -> Any:
        async with asyncio.timeout(0):
            if how == "gather":
                return await gather(quote(1), quote(2))
            return await map_steps(quote, [1, 2], limit=1 if how.endswith("1") else None)

    for _ in range(2):  # the log says it again
        with pytest.raises(TaskFailedError, match="timeout="):
            live(disk, flow)


def test_a_gather_in_a_task_group_whose_sibling_fails_at_once_gives_no_none(disk: Store) -> None:
    @step(name="quote")
    async def quote(number: int) -> int:
        await asyncio.sleep(0)
        return number

    @agent(name="interleaved: sibling")
    async def flow() -> str:
        got: list[Any] = []

        async def gathers() -> None:
            with branch("gathers"):
                got.append(await gather(quote(1), quote(2)))

        async def fails() -> None:
            raise ValueError("sibling")

        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(gathers())
                group.create_task(fails())
        return repr(got)

    assert live(disk, flow) == "[]"


# ------------------------------------------------------------------ errors beside errors


class RefusedError(Exception):
    pass


@hectic
def test_an_error_of_a_branch_is_not_lost_while_others_are_handed_declared_errors(disk: Store) -> None:
    @step(name="ask", raises=(RefusedError,), idempotent=True)
    def ask(number: int) -> str:
        raise RefusedError(str(number))

    def asks() -> None:
        for number in range(250):
            with suppress(RefusedError):
                ask(number)

    def bug() -> None:
        raise ValueError("this branch has failed")

    def fails() -> list[Any]:
        lost: list[Any] = []
        for _ in range(150):
            with suppress(ValueError):
                lost.append(gather(bug))
        return lost

    @agent(name="interleaved: beside")
    def flow() -> list[Any]:
        return list(gather(asks, fails, asks))

    assert live(disk, flow, strikes=1) == [None, [], None]


@hectic
def test_a_scope_ends_while_others_open_branches_with_keys(disk: Store) -> None:
    @step(name="aside", idempotent=True)
    def aside(number: int) -> int:
        return number

    def opens() -> str:
        for number in range(80):
            with branch(f"k{number}"):
                aside(number)
        return "opened"

    def nests() -> str:
        for number in range(80):
            gather(lambda number=number: aside(number))
        return "nested"

    @agent(name="interleaved: keyed")
    def flow() -> list[Any]:
        return list(gather(opens, nests, nests))

    assert live(disk, flow, strikes=1) == ["opened", "nested", "nested"]


# ------------------------------------------------------------------ the end of an agent, and a branch made by hand


class Meeting(CrashPlan):
    """Never dies; stops the append that has the nth start of a step on its way, until the agent's function was left."""

    def __init__(self, nth: int) -> None:
        super().__init__(None)
        self.under_way, self.left, self.over = threading.Event(), threading.Event(), threading.Event()
        self._starts, self._nth = 0, nth

    def reach(self, point: str, **facts: Any) -> None:
        super().reach(point, **facts)
        topics = facts.get("topics", ())
        if point == "append.before" and StepStarted.TOPIC in topics:
            self._starts += 1
            if self._starts == self._nth:
                self.under_way.set()
                assert self.left.wait(PATIENCE)
        if point == "append.after" and {Completed.TOPIC, Held.TOPIC} & set(topics):
            self.over.set()


@pytest.mark.parametrize("crashes", [False, True])
def test_a_body_whose_start_is_on_its_way_when_the_agent_leaves_is_recorded_before_the_end(
    disk: Store, crashes: bool
) -> None:
    plan, too_early = Meeting(2), list[bool]()

    @step(name="first")
    def first() -> str:
        return "1"

    @step(name="second")
    def second() -> str:
        too_early.append(plan.over.wait(0.2))
        return "2"

    @agent(name="interleaved: leaves")
    def flow() -> str:
        def aside() -> None:
            with branch("k"):
                first()
                second()

        try:
            by_hand(aside)
            assert plan.under_way.wait(PATIENCE)
            if crashes:
                raise ValueError("a bug")
            return "done"
        finally:
            plan.left.set()

    if crashes:
        with pytest.raises(TaskHeldError, match="a bug"):
            live(CrashingStore(disk, plan), flow, strikes=1)
    else:
        assert live(CrashingStore(disk, plan), flow) == "done"

    assert too_early == [False]
    events = log(disk)
    second_ended = max(number for number, event in enumerate(events) if isinstance(event, StepSucceeded))
    assert place_of(events, Held if crashes else Completed) == second_ended + 1
    assert [name for _, name, _ in bodies(disk)] == ["first", "second"]


@pytest.mark.parametrize("crashes", [False, True])
def test_a_branch_that_comes_to_its_step_after_the_end_begins_no_body(disk: Store, crashes: bool) -> None:
    plan, ran, told = Meeting(0), list[str](), list[BaseException]()
    done = threading.Event()

    @step(name="second")
    def second() -> None:
        ran.append("second")

    @step(name="first")
    def first() -> str:
        return "1"

    @agent(name="interleaved: has left")
    def flow() -> str:
        went = threading.Event()

        def aside() -> None:
            try:
                with branch("k"):
                    first()
                    went.set()
                    plan.over.wait(PATIENCE)
                    second()
            except BaseException as error:
                told.append(error)
            finally:
                done.set()

        by_hand(aside)
        assert went.wait(PATIENCE)
        if crashes:
            raise ValueError("a bug")
        return "done"

    with suppress(TaskHeldError):
        live(CrashingStore(disk, plan), flow, strikes=1)
    assert done.wait(PATIENCE)
    assert ran == []
    assert [type(error).__name__ for error in told] == ["Suspended"]
    assert [name for _, name, _ in bodies(disk)] == ["first"]


class SlowError(Exception):
    """Takes a moment to be printed, which happens on the way from an agent's crash to its record."""

    def __init__(self, print_it: Callable[[], object]) -> None:
        super().__init__()
        self.print_it = print_it

    def __str__(self) -> str:
        self.print_it()
        return "a slow bug"


class Overhearing(logging.Handler):
    """Does something on the thread that warns of a large value, which happens on the way to its record."""

    def __init__(self, do: Callable[[], object]) -> None:
        super().__init__(logging.WARNING)
        self.do = do

    def emit(self, record: logging.LogRecord) -> None:
        self.do()


@pytest.mark.parametrize("crashes", [False, True])
def test_no_body_begins_while_the_end_of_the_agent_is_on_its_way_to_the_log(disk: Store, crashes: bool) -> None:
    first_done, go, done, in_second = (threading.Event() for _ in range(4))
    ran, on_the_way = list[str](), list[str]()

    @step(name="first")
    def first() -> str:
        return "1"

    @step(name="second")
    def second() -> str:
        ran.append("began")
        in_second.set()
        return "2"

    def let_the_branch_go_on() -> None:
        on_the_way.append("to the log")
        go.set()
        in_second.wait(0.1)

    @agent(name="interleaved: ends slowly")
    def flow() -> str:
        def aside() -> None:
            try:
                with branch("k"):
                    first()
                    first_done.set()
                    go.wait(PATIENCE)
                    second()
            finally:
                done.set()

        by_hand(aside)
        assert first_done.wait(PATIENCE)
        if crashes:
            raise SlowError(let_the_branch_go_on)
        return "x" * 300_000

    handler, logger = Overhearing(let_the_branch_go_on), logging.getLogger("perdure")
    if crashes:
        with pytest.raises(TaskHeldError, match="a slow bug"):
            live(disk, flow, strikes=1)
    else:
        logger.addHandler(handler)
        try:
            assert live(disk, flow) == "x" * 300_000
        finally:
            logger.removeHandler(handler)
    assert on_the_way
    assert done.wait(PATIENCE)
    assert ran == []
    assert [name for _, name, _ in bodies(disk)] == ["first"]


def test_no_body_that_began_is_left_without_its_outcome_when_an_agent_returns(disk: Store) -> None:
    ran: dict[str, list[int]] = {}

    @step(name="ok")
    def ok(task: str, number: int) -> int:
        time.sleep(0.002)
        ran.setdefault(task, []).append(number)
        return number

    @agent(name="interleaved: natural")
    def flow(name: str) -> list[int]:
        begun = threading.Event()

        def aside() -> None:
            with branch("b"):
                for number in range(40):
                    ok(name, number)
                    begun.set()

        by_hand(aside)
        assert begun.wait(PATIENCE)
        return list(range(30_000))  # it takes a moment to store

    with AgentSystem(disk) as system:
        for number in range(3):
            task = system.spawn(flow, f"n{number}", id=f"n{number}")
            task.result(PATIENCE)
            events = task.events()
            started = [event.path for event in events if isinstance(event, StepStarted)]
            assert started == [event.path for event in events if isinstance(event, StepSucceeded)]
            assert ran[f"n{number}"] == list(range(len(started)))
            assert isinstance(events[-1], Completed)


def test_a_body_that_outlasts_the_grace_keeps_a_returned_agent_from_completing(
    disk: Store, ended: threading.Event
) -> None:
    begun, asked = threading.Event(), list[str]()

    def on_doubt(doubt: Any) -> Happened:
        asked.append(doubt.path)
        return Happened("paid")

    @step(name="pay", on_doubt=on_doubt)
    def pay() -> str:
        begun.set()
        ended.wait(PATIENCE)
        return "late"

    got, lives = list[str](), list[str]()

    @agent(name="interleaved: outlasted")
    def flow() -> str:
        def aside() -> None:
            with branch("k"):
                got.append(pay())

        thread = by_hand(aside)
        lives.append("one")
        if len(lives) > 1:
            thread.join(PATIENCE)
        else:
            assert begun.wait(PATIENCE)
        return "done"

    with AgentSystem(disk, grace=0.1) as system:
        system.spawn(flow, id="t")
        assert begun.wait(PATIENCE)

    last = log(disk)[-1]
    assert isinstance(last, Passivated)
    (path,) = last.cut_off
    assert [record.path for record in task_of(disk).doubts] == [path]
    assert live(disk, flow) == "done"
    assert (asked, got) == ([path], ["paid"])


# ------------------------------------------------------------------ closing


class ToldError(Exception):
    pass


def blocked_flow(begun: threading.Event, ended: threading.Event) -> Any:
    """Give an agent whose body goes on until the test is over."""

    @step(name="long", idempotent=False)
    def long() -> str:
        begun.set()
        ended.wait(PATIENCE)
        return "late"

    @agent(name="interleaved: blocked")
    def flow() -> str:
        return long()

    return flow


@contextmanager
def raising_signal(error: BaseException) -> Iterator[None]:
    """Let a signal raise this on the main thread, as a handler of SIGTERM does."""

    def handle(*_: object) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def marked(disk: Store, task_id: str = "t") -> None:
    """Assert that a task was stopped on purpose, in its only body, which is no strike."""
    task = task_of(disk, task_id)
    *_, last = TaskLog(disk).events.get(task_id, birth=task.birth)
    assert isinstance(last, Passivated)
    assert last.cut_off == ["1"]
    assert task.strikes_if_lost == 0


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ToldError()])
def test_whatever_is_raised_while_closing_waits_the_tasks_are_marked(
    disk: Store, ended: threading.Event, error: BaseException
) -> None:
    begun, system = threading.Event(), AgentSystem(disk, grace=PATIENCE)

    def interrupt() -> None:
        assert system._tree is not None
        if system._tree.worker.stopping.wait(PATIENCE):
            os.kill(os.getpid(), signal.SIGUSR1)

    with raising_signal(error):
        system.__enter__()
        system.spawn(blocked_flow(begun, ended), id="t")
        assert begun.wait(PATIENCE)
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        since = monotonic()
        with pytest.raises(type(error)):
            system.close()
        interrupter.join(PATIENCE)
    assert monotonic() - since < PATIENCE / 2
    marked(disk)
    assert disk.workers.live() == {}


def test_a_close_async_that_is_cancelled_marks_all_and_lets_the_cancellation_through(
    disk: Store, ended: threading.Event
) -> None:
    begun = threading.Event()

    async def main() -> float:
        system = await AgentSystem(disk, grace=PATIENCE).__aenter__()
        await system.spawn_async(blocked_flow(begun, ended), id="t")
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        closing = asyncio.create_task(system.close_async())
        assert system._tree is not None
        assert await asyncio.to_thread(system._tree.worker.stopping.wait, PATIENCE)
        since = monotonic()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        marked(disk)  # already
        return monotonic() - since

    assert asyncio.run(main()) < PATIENCE / 2
    assert disk.workers.live() == {}


def test_a_second_close_waits_for_the_first(disk: Store, ended: threading.Event) -> None:
    begun, calling, closed, seen = threading.Event(), threading.Event(), threading.Event(), list[list[str]]()
    system = AgentSystem(disk, grace=PATIENCE).__enter__()
    system.spawn(blocked_flow(begun, ended), id="t")
    assert begun.wait(PATIENCE)
    first = threading.Thread(target=system.close)
    first.start()
    assert system._tree is not None
    assert system._tree.worker.stopping.wait(PATIENCE)

    def second() -> None:
        calling.set()
        system.close()
        seen.append(kinds(disk))
        closed.set()

    other = threading.Thread(target=second)
    other.start()
    assert calling.wait(PATIENCE)
    assert not closed.wait(0.1)
    ended.set()
    assert closed.wait(PATIENCE)
    for thread in (first, other):
        thread.join(PATIENCE)
    assert "StepSucceeded" in seen[0]
    assert disk.workers.live() == {}


def test_a_system_that_is_cancelled_while_it_opens_leaves_no_worker_behind(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, start = set(threading.enumerate()), threading.Thread.start
    opening, go = threading.Event(), threading.Event()

    def slow(self: threading.Thread) -> None:
        if self.name.startswith("Supervisor"):
            opening.set()
            assert go.wait(PATIENCE)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", slow)
    inside: list[bool] = []

    async def main() -> None:
        async def enter() -> None:
            async with AgentSystem(disk):
                inside.append(True)

        entering = asyncio.create_task(enter())
        assert await asyncio.to_thread(opening.wait, PATIENCE)
        entering.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await entering

    asyncio.run(main())
    assert inside == []
    assert disk.workers.live() == {}
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_a_task_that_was_lost_with_a_rider_keeps_no_other_task_from_its_mark(
    disk: Store, ended: threading.Event
) -> None:
    begun = threading.Semaphore(0)

    @step(name="long", idempotent=True)
    def long() -> str:
        begun.release()
        ended.wait(PATIENCE)
        return "late"

    @agent(name="interleaved: rides")
    def rides() -> str:
        here = task_info()
        assert here is not None
        here.now()
        return long()

    @agent(name="interleaved: plain")
    def plain() -> str:
        return long()

    with AgentSystem(disk, grace=0.05) as system:
        tasks = [system.spawn(flow, id=name) for name, flow in [("a", rides), ("b", plain), ("c", plain)]]
        assert all(begun.acquire(timeout=PATIENCE) for _ in tasks)
        appender = Appender(TaskLog(disk), task_of(disk, "a"))
        appender.append(lambda task, now: task.activate(now, worker="other", token="x", limit=None))

    assert task_of(disk, "a").worker == "other"
    for name in "bc":
        marked(disk, name)


def test_closing_names_no_body_where_none_runs(
    disk: Store, ended: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    @agent(name="interleaved: own code")
    def flow() -> None:
        begun.set()
        ended.wait(PATIENCE)

    with AgentSystem(disk, grace=0) as system:
        system.spawn(flow, id="t")
        assert begun.wait(PATIENCE)

    assert "its agent's own code goes on" in caplog.text
    assert "given up is step" not in caplog.text


def test_closing_names_the_body_that_runs(
    disk: Store, ended: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()
    with AgentSystem(disk, grace=0) as system:
        system.spawn(blocked_flow(begun, ended), id="t")
        assert begun.wait(PATIENCE)

    assert "given up is step 1" in caplog.text
    assert "own code goes on" not in caplog.text


# ------------------------------------------------------------------ no thread left at one moment


class NoThread:
    """Lets the machine have no thread of a name: the next `times`, or none ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, times: float) -> None:
        self.refused, start = 0, threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name.startswith(name) and self.refused < times:
                self.refused += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


@step(name="limited", timeout=PATIENCE)
def limited() -> str:
    return "limited"


@step(name="answer")
def answer() -> str:
    return "answer"


@step(name="answer_async")
async def answer_async() -> str:
    return "answer"


tries: list[str] = []


@step(name="second_try", retries=1, backoff=30, jitter=0)
async def second_try() -> str:
    tries.append("once")
    if len(tries) == 1:
        raise OSError("not yet")
    return "second"


@agent(name="interleaved: inner")
def inner() -> str:
    return answer()


@agent(name="interleaved: inner_async")
async def inner_async() -> str:
    return await answer_async()


def guarded(call: Callable[[], Any]) -> Any:
    """Catch what perdure may not raise, as an agent's code often does."""
    try:
        return call()
    except Exception as error:
        return f"caught {type(error).__name__}: {error}"


async def guarded_async(call: Callable[[], Any]) -> Any:
    try:
        return await call()
    except Exception as error:
        return f"caught {type(error).__name__}: {error}"


@agent(name="interleaved: no thread")
def sync_flow(what: str) -> list[Any]:
    calls: dict[str, Callable[[], Any]] = {
        "limited": limited,
        "async step": answer_async.sync,
        "async agent": inner_async.sync,
    }
    return [guarded(calls[what]), answer()]


@agent(name="interleaved: no thread, async")
async def async_flow(what: str) -> list[Any]:
    calls: dict[str, Callable[[], Any]] = {
        "limited": limited.aio,
        "async step": answer_async,
        "sync step": answer.aio,
        "sync agent": inner.aio,
        "retry": second_try,
    }
    return [await guarded_async(calls[what]), await answer_async()]


@pytest.mark.parametrize(
    ("flow", "what", "name", "got"),
    [
        (sync_flow, "limited", "perdure-body", "limited"),
        (sync_flow, "async step", "perdure-loop", "answer"),
        (sync_flow, "async agent", "perdure-loop", "answer"),
        (async_flow, "async step", "perdure-loop", "answer"),
        (async_flow, "limited", "perdure-body", "limited"),
        (async_flow, "sync step", "perdure-body", "answer"),
        (async_flow, "sync agent", "perdure-body", "answer"),
        (async_flow, "retry", "perdure-body", "second"),
    ],
)
def test_no_thread_left_at_one_moment_is_no_error_and_no_strike(
    disk: Store, monkeypatch: pytest.MonkeyPatch, flow: Any, what: str, name: str, got: str
) -> None:
    tries.clear()
    machine = NoThread(monkeypatch, name, 1)

    assert live(disk, flow, what, strikes=1, clock=FakeClock(jump=True)) == [got, "answer"]
    assert machine.refused == 1
    assert "Restarted" not in kinds(disk)
    succeeded = [event.name for event in log(disk) if isinstance(event, StepSucceeded)]
    assert len(succeeded) == 2  # each outcome once


class Stumbling:
    """A store that stumbles once over each append of a step, at a point of it."""

    dead = False

    def __init__(self, point: str) -> None:
        self.point = point
        self.met: set[int] = set()

    def reach(self, point: str, *, version: int = 0, topics: tuple[str, ...] = (), **_: object) -> None:
        if point == self.point and version not in self.met and any(topic.startswith("step.") for topic in topics):
            self.met.add(version)
            raise StoreUnavailableError("away", reason="away", unknown_fate=True)

    def check(self) -> None:
        return


@pytest.mark.parametrize("threads", [0, float("inf")])
@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
@pytest.mark.parametrize("what", ["limited", "async step", "sync agent", "retry"])
def test_no_outcome_is_lost_or_doubled_where_each_append_of_an_async_agent_stumbles(
    disk: Store, monkeypatch: pytest.MonkeyPatch, what: str, point: str, threads: float
) -> None:
    """It is gone on with on a thread, or, where the machine never has one, right there."""
    tries.clear()
    machine, plan = NoThread(monkeypatch, "perdure-commit", threads), Stumbling(point)
    got = {"limited": "limited", "retry": "second"}.get(what, "answer")

    store = CrashingStore(disk, plan)
    assert live(store, async_flow, what, strikes=1, clock=FakeClock(jump=True)) == [got, "answer"]
    assert len(plan.met) >= 4
    assert bool(machine.refused) is bool(threads)
    assert "Restarted" not in kinds(disk)
    assert len([event for event in log(disk) if isinstance(event, StepSucceeded)]) == 2


def test_no_thread_left_to_ask_what_became_of_a_doubt_is_no_error(
    disk: Store, monkeypatch: pytest.MonkeyPatch, ended: threading.Event
) -> None:
    begun = threading.Event()

    @step(name="pay", on_doubt=lambda _doubt: Happened("paid"))
    async def pay() -> str:
        begun.set()
        await asyncio.to_thread(ended.wait, PATIENCE)
        return "late"

    @agent(name="interleaved: asks")
    async def flow() -> str:
        return str(await guarded_async(pay))

    with AgentSystem(disk, grace=0) as system:
        system.spawn(flow, id="t")
        assert begun.wait(PATIENCE)
    assert [record.path for record in task_of(disk).doubts] == ["1"]
    machine = NoThread(monkeypatch, "perdure-body", 1)
    assert live(disk, flow, strikes=1, clock=FakeClock(jump=True)) == "paid"
    assert machine.refused == 1


def test_a_system_is_closed_where_there_is_no_thread_to_close_it(
    disk: Store, monkeypatch: pytest.MonkeyPatch, ended: threading.Event
) -> None:
    begun = threading.Event()

    async def main() -> None:
        system = AgentSystem(disk, grace=0).__enter__()
        system.spawn(blocked_flow(begun, ended), id="t")
        assert begun.wait(PATIENCE)
        machine = NoThread(monkeypatch, "perdure-body", float("inf"))
        await system.close_async()
        assert machine.refused == 1

    asyncio.run(main())
    marked(disk)
    assert disk.workers.live() == {}


# ------------------------------------------------------------------ waiting, lending, looking


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_clock_that_jumps_does_so_for_a_branch_made_by_hand_that_waits(disk: Store, colour: str) -> None:
    runs: list[str] = []

    @step(name="flaky", retries=1, backoff=30)
    def flaky() -> str:
        runs.append("once")
        if len(runs) == 1:
            raise OSError("once")
        return "ok"

    @agent(name="interleaved: by hand")
    def by_a_thread() -> str:
        got: list[str] = []

        def aside() -> None:
            with branch("k"):
                got.append(flaky())

        by_hand(aside).join(PATIENCE)
        return got[0]

    @agent(name="interleaved: by asyncio")
    async def by_asyncio() -> str:
        async def aside() -> str:
            with branch("k"):
                return await flaky.aio()

        (got,) = await asyncio.gather(aside())
        return got

    flow = by_a_thread if colour == "sync" else by_asyncio
    assert live(disk, flow, clock=FakeClock(jump=True), grace=0) == "ok"
    assert len(runs) == 2


def test_a_body_that_was_given_up_while_it_waits_for_a_task_lends_no_place(disk: Store) -> None:
    systems: list[AgentSystem] = []
    lock, inside, most, both = threading.Lock(), list[int](), list[int](), threading.Event()

    @step(name="waits", timeout=0.05)
    def waits() -> Any:
        return systems[0].task("never").result(PATIENCE)

    @agent(name="interleaved: parent")
    def parent() -> Any:
        return waits()

    @step(name="work")
    def work(number: int) -> int:
        with lock:
            inside.append(number)
            most.append(len(inside))
            if len(inside) > 1:
                both.set()
        both.wait(0.05)
        with lock:
            inside.remove(number)
        return number

    @agent(name="interleaved: child")
    def child(number: int) -> int:
        return work(number)

    with AgentSystem(disk, max_active=1, grace=0) as system:
        systems.append(system)
        system.log.create("never", "an agent that nobody has", [[], {}], {})
        with pytest.raises(TaskFailedError):
            system.spawn(parent, id="p").result(PATIENCE)
        tasks = [system.spawn(child, number) for number in range(4)]
        assert [task.result(PATIENCE) for task in tasks] == [0, 1, 2, 3]
    assert max(most) == 1


def test_callbacks_of_a_job_do_not_grow_with_the_looks_at_it() -> None:
    job: Job[None] = Job()

    async def look() -> None:
        for _ in range(100):
            assert not await AWAITING.wait(job, 0)
            assert len(job._callbacks) <= 1
        job.succeed(None)
        assert await AWAITING.wait(job, None)

    asyncio.run(look())
    assert job._callbacks == []


def test_sync_steps_do_not_mind_an_asyncio_that_another_thread_is_just_importing(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    @agent(name="interleaved: half imported")
    def flow() -> list[Any]:
        def fails() -> None:
            raise ValueError("no")

        with branch("k"):
            got = [answer(), limited()]
        with pytest.raises(ValueError, match="no"):
            gather(fails, answer)
        return [*got, *map_steps(lambda _: answer(), range(2))]

    with monkeypatch.context() as during:
        during.setitem(sys.modules, "asyncio", ModuleType("asyncio"))
        assert live(disk, flow, strikes=1) == ["answer", "limited", "answer", "answer"]
