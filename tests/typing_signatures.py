"""What mypy --strict and pyright must accept, and the types they must see. Checked by `.ci/run`, never run."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Literal, assert_type
from uuid import UUID

from actors import (
    Agent,
    AgentSystem,
    Approval,
    AsyncAgent,
    AsyncStep,
    ChildError,
    ChildRef,
    Decision,
    Doubt,
    Emitted,
    Entity,
    EntityRef,
    FailTask,
    Fault,
    Feed,
    First,
    Happened,
    NotHappened,
    Notice,
    Rejected,
    RetryPolicy,
    Signal,
    Step,
    StepEnded,
    StepError,
    StepInfo,
    StepOptions,
    TaskFailedError,
    TaskHeldError,
    TaskInfo,
    TaskRef,
    TaskView,
    Timer,
    Unknown,
    Update,
    Watch,
    agent,
    branch,
    compensate,
    emit,
    entity,
    event,
    gather,
    get_logger,
    heartbeat,
    map_steps,
    open_store,
    patched,
    receive,
    receive_async,
    request_approval,
    request_approval_async,
    run_step,
    run_step_async,
    sleep,
    sleep_async,
    sleep_until,
    sleep_until_async,
    spawn_child,
    spawn_child_async,
    step,
    step_info,
    task_info,
    wait_any,
    wait_any_async,
)
from actors.testing import CrashPlan, Run, every_crash_point, run_through_crashes
from domain.events import TaskEvent
from domain.state import Status


def has_arrived(doubt: Doubt) -> Happened | NotHappened | Unknown:
    assert_type(doubt.args, tuple[Any, ...])
    assert_type(doubt.kwargs, dict[str, Any])
    assert_type(doubt.idempotency_key, str)
    return Happened("id") if doubt.attempt > 1 else NotHappened()


@step
def draft(document: str, words: int = 100, *, lang: str = "en") -> str:
    info = step_info()
    assert_type(info, StepInfo)
    assert_type(info.idempotency_key, str)
    return f"{document} {words} {lang}"


@step(on_doubt=has_arrived, label="mail to {to}")
def send(to: str, body: str) -> bytes:
    return f"{to} {body}".encode()


@step(idempotent=True, name="look")
def look(*paths: str, **options: int) -> dict[str, list[float]]:
    return {path: [len(options)] for path in paths}


@step(on_doubt="hold")
def pay(amount: int) -> datetime | None:
    return None if amount else datetime.max


@step(on_doubt=lambda doubt: Unknown("nobody knows"))
def ring() -> None: ...


@step(retries=3, backoff=1.0, max_backoff=60, jitter=0.2, retry_on=OSError, give_up_on=(FileNotFoundError,))
async def fetch(url: str, *, times: float = 3.0) -> list[bytes]:
    heartbeat({"url": url})
    return [url.encode()] * int(times)


@step(retry=RetryPolicy(retries=2), timeout=30, total_timeout=90.0, heartbeat_timeout=5, raises=(ValueError,))
def slow(text: str) -> int:
    heartbeat()
    emit(len(text), channel="progress")
    assert_type(step_info().heartbeat, Any)
    return len(text)


@step(name="new name", aliases=("old name", "older name"))
async def renamed() -> None: ...


@agent
def report(document: str, lang: str = "en") -> int:
    assert_type(draft(document), str)
    assert_type(draft(document, 50, lang=lang), str)
    assert_type(draft.fn(document, words=5), str)
    assert_type(send("a@example.org", body="b"), bytes)
    assert_type(look("a", "b", depth=2), dict[str, list[float]])
    assert_type(pay(3), datetime | None)
    assert_type(inner(1, 2.5), tuple[int, float])
    info = task_info()
    assert_type(info, TaskInfo | None)
    assert info is not None
    assert_type(info.is_replaying, bool)
    assert_type(info.now(), datetime)
    assert_type(info.random, Random)
    assert_type(info.uuid4(), UUID)
    ring()
    try:
        pay(4)
    except StepError as error:
        assert_type(error.attempts, int)
        assert_type(error.is_a(ValueError), bool)
        assert_type(error.is_a("bank:Declined"), bool)
        raise FailTask("no funds") from error
    side_by_side()
    return len(document)


def side_by_side() -> None:
    assert_type(fetch.sync("u", times=2), list[bytes])
    assert_type(slow.options(retries=5, timeout=None)("x"), int)
    assert_type(fetch.options(retries=5).sync("x"), list[bytes])
    assert_type(crawl.sync("x"), float)
    assert_type(gather(partial(draft, "a"), partial(slow, "b")), tuple[str, int])
    assert_type(gather(partial(draft, "a"), partial(slow, "b"), lambda: None), tuple[str, int, None])
    assert_type(gather(*[partial(slow, text) for text in "abcd"]), tuple[int, ...])
    nested = gather(lambda: gather(partial(draft, "a"), partial(slow, "b")), partial(fetch.sync, "c"))
    assert_type(nested, tuple[tuple[str, int], list[bytes]])
    assert_type(map_steps(slow, ["a", "b"], limit=2), list[int])
    assert_type(map_steps(lambda text: slow(text) / 2, ["a", "b"]), list[float])
    with branch("a key"):
        assert_type(run_step("ask", slow.fn, "x", retries=3), int)
    options: StepOptions = {"retries": 3, "timeout": None}
    assert_type(run_step("ask", slow.fn, "x", **options), int)
    assert_type(patched("a new prompt"), bool)
    assert_type(get_logger("mine"), logging.LoggerAdapter[logging.Logger])


@agent(aliases=["walk"])
async def crawl(url: str, depth: int = 1) -> float:
    assert_type(await fetch(url), list[bytes])
    assert_type(await fetch.options(timeout=1)(url, times=1.0), list[bytes])
    plain = assert_type(fetch.fn(url), Coroutine[Any, Any, list[bytes]])
    assert_type(await plain, list[bytes])
    assert_type(await draft.aio(url, words=3), str)
    assert_type(await report.aio(url), int)
    assert_type(await crawl(url, depth - 1), float)
    assert_type(await gather(fetch(url), draft.aio(url)), tuple[list[bytes], str])
    assert_type(await gather(partial(fetch, url), renamed, partial(draft.aio, url)), tuple[list[bytes], None, str])
    assert_type(await gather(*[fetch(url) for _ in "abcd"]), tuple[list[bytes], ...])
    assert_type(await gather(*[partial(fetch, url) for _ in "abcd"]), tuple[list[bytes], ...])
    nested = gather(fetch(url), renamed())
    assert_type(await gather(nested, fetch(url)), tuple[tuple[list[bytes], None], list[bytes]])
    assert_type(await map_steps(fetch, [url], limit=3), list[list[bytes]])
    assert_type(await map_steps(draft.aio, [url]), list[str])
    assert_type(await run_step_async("ask", len, url), int)
    return float(depth)


@agent(name="inner agent", on_failure="hold")
def inner(a: int, b: float) -> tuple[int, float]:
    return a, b


@agent()
def nothing() -> None: ...


def tell(notice: Notice) -> str:
    assert_type(notice.kind, Literal["ended", "held", "restarted"])
    assert_type((notice.id, notice.version, notice.at), tuple[str, int, float])
    return notice.status + notice.reason


def program(system: AgentSystem) -> Iterator[TaskRef[Any]]:
    assert_type(system.spawn(report, "x"), TaskRef[int])
    assert_type(system.spawn(report, "x", "fr", id="report-1", tags={"team": "a"}), TaskRef[int])
    assert_type(system.spawn(inner, 1, 2.5), TaskRef[tuple[int, float]])
    assert_type(system.spawn(nothing), TaskRef[None])
    assert_type(system.spawn(partial(report, lang="fr"), "x"), TaskRef[int])
    assert_type(system.spawn(partial(report, "x")), TaskRef[int])
    assert_type(system.spawn(report, "x").result(timeout=60), int)
    assert_type(report("x", lang="fr"), int)
    assert_type(report.fn("x"), int)
    assert_type(system.spawn(crawl, "x", 3, id="crawl-1"), TaskRef[float])
    assert_type(system.spawn(partial(crawl, depth=3), "x"), TaskRef[float])
    assert_type(system.spawn(crawl, "x").result(), float)
    task = system.task("report-1")
    assert_type(task, TaskRef[Any])
    assert_type(task.id, str)
    assert_type(task.describe(), TaskView)
    assert_type(task.events(after=2), list[TaskEvent])
    assert_type(task.status(), Status)
    task.release(by="ann")
    task.resolve("1", value={"any": ["value"]}, by="ann")
    task.resolve("1", rerun=True)
    task.resolve("1", fail=True)
    assert_type(task.on_end(tell), Watch)
    task.on_end(print, also=["held"])
    task.on_end(lambda notice: notice.status, also={"held", "restarted"}).cancel()
    assert_type(task.follow(after=7), Feed)
    for update in task.follow():
        assert_type(update, Update)
        match update:
            case Emitted(channel="text", value=value):
                assert_type(value, Any)
            case StepEnded():
                assert_type(update.error, str | None)
            case _:
                assert_type(update.at, float)
    try:
        task.result()
    except TaskHeldError as error:
        assert_type(error.reason, str)
    except TaskFailedError as error:
        assert_type(error.fault.is_a(KeyError), bool)
    yield from system.tasks(status="held", agent="report")


async def program_async() -> float:
    async with AgentSystem("memory:", run=False) as system:
        assert_type(system, AgentSystem)
        assert_type(await system.spawn_async(report, "x", "fr", id="report-1"), TaskRef[int])
        assert_type(await system.spawn_async(partial(report, lang="fr"), "x"), TaskRef[int])
        task = await system.spawn_async(crawl, "x", 3)
        assert_type(task, TaskRef[float])
        assert_type(await system.tasks_async(status="waiting"), list[TaskRef[Any]])
        assert_type(await task.status_async(), Status)
        assert_type(await task.describe_async(), TaskView)
        assert_type(await task.events_async(after=2), list[TaskEvent])
        await task.release_async(by="ann")
        await task.resolve_async("1", value=3, by="ann")
        assert_type(await task.on_end_async(tell, also=("restarted",)), Watch)
        assert_type([update.cursor async for update in task.follow()], list[int])
        assert_type(await task, float)
        return await task.result_async(timeout=3)


def takes_async(any_agent: AsyncAgent[..., object], any_step: AsyncStep[..., Any]) -> tuple[str, str]:
    return any_agent.name, any_step.name


def takes_any_agent(any_agent: Agent[..., object], any_step: Step[..., Any]) -> tuple[str, str]:
    return any_agent.name, any_step.name


def opens() -> None:
    takes_any_agent(report, draft)
    takes_any_agent(nothing, ring)
    takes_async(crawl, fetch)
    with AgentSystem("sqlite:///tasks.db", max_active=4, strikes=None, grace=1.5) as system:
        assert_type(system, AgentSystem)
    with open_store("memory:") as store, AgentSystem(store, run=False, only="report-1") as client:
        assert_type(client.tasks(), list[TaskRef[Any]])


def tested() -> None:
    for run in every_crash_point(report, "x"):
        assert_type(run, Run)
        run.check()
        assert_type(run.count("send"), int)
    run_through_crashes(report, "x", plan=[1, 2], store="memory:")
    CrashPlan(1, "body.after")


class Budget(Entity):
    TOPIC = "typed-budget"

    def __init__(self) -> None:
        self.limit, self.spent = 100, 0

    def spend(self, amount: int, *, why: str = "") -> int:
        if self.spent + amount > self.limit:
            raise Rejected(f"{why}: over the limit")
        self.book(amount)
        return self.limit - self.spent

    @event("Spent")
    def book(self, amount: int) -> None:
        self.spent += amount


@agent
def spender() -> int:
    budget = entity(Budget, "team-7")
    assert_type(budget, EntityRef[Budget])
    return budget.ask(Budget.spend, 20, why="lunch")


@agent
async def async_spender() -> int:
    return await entity(Budget, "team-7").ask_async(Budget.spend, 20)


def asks(system: AgentSystem) -> None:
    budget = system.entity(Budget, "team-7", timeout=5)
    assert_type(budget.ask(Budget.spend, 20), int)
    assert_type(budget.with_key("order-42").ask(Budget.spend, 20, why="order"), int)
    assert_type(budget.with_timeout(None).ask(Budget.book, 3), None)
    budget.tell(Budget.book, 3)


@step
def undo_pay(amount: int, *, why: str = "") -> None: ...


@step
async def undo_fetch(url: str) -> None: ...


@agent
def waits(text: str) -> str:
    sleep(1.5)
    sleep(timedelta(days=2))
    sleep_until(datetime(2027, 1, 1, tzinfo=UTC))
    assert_type(receive("paid", timeout=3), Any)
    compensate(undo_pay, 3, why=text)
    compensate(undo_fetch, text)
    pause = request_approval("pay 20 to acme", details={"invoice": 7})
    assert_type(pause, Approval)
    assert_type(pause.id, str)
    assert_type(pause.wait(timeout=timedelta(hours=1)), Decision)
    child = spawn_child(report, text, "fr", on_parent_end="wait", tags={"team": "a"})
    assert_type(child, ChildRef[int])
    assert_type(child.id, str)
    assert_type(spawn_child(crawl, text).result(timeout=60), float)
    assert_type(spawn_child(partial(report, lang="fr"), text), ChildRef[int])
    assert_type([spawn_child(inner, n, 2.5) for n in range(3)], list[ChildRef[tuple[int, float]]])
    first = wait_any(child, pause, Signal("paid"), Timer(timedelta(days=1)), timeout=5)
    assert_type(first, First)
    assert_type(first.index, int)
    assert_type(first.value, Any)
    try:
        assert_type(child.result(), int)
    except ChildError as error:
        assert_type((error.child, error.status), tuple[str, str])
        assert_type(error.fault, Fault | None)
    child.cancel("enough")
    return text


@agent
async def waits_async(text: str) -> int:
    await sleep_async(1)
    await sleep_until_async(datetime(2027, 1, 1, tzinfo=UTC))
    assert_type(await receive_async("paid"), Any)
    pause = await request_approval_async("pay?")
    assert_type(await pause, Decision)
    assert_type(await pause.wait_async(timeout=1), Decision)
    child = await spawn_child_async(crawl, text, 3, on_parent_end="abandon")
    assert_type(child, ChildRef[float])
    assert_type(await child, float)
    assert_type(await child.result_async(timeout=3), float)
    assert_type(await spawn_child_async(report, text), ChildRef[int])
    assert_type(await wait_any_async(child, Timer(3)), First)
    await child.cancel_async()
    return await (await spawn_child_async(report, text))
