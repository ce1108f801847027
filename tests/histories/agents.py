"""The agents whose histories are checked in, and how each was run. They stay as they are, as long as the files do.

What decides how a body ends, and whether an agent's own code crashes, is `world`: a replay finds it empty, where
nothing goes wrong.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from actors import (
    AgentSystem,
    Doubt,
    Entity,
    FailTask,
    Happened,
    NotHappened,
    Rejected,
    Signal,
    StepError,
    TaskCancelled,
    TaskCancelledError,
    TaskHeldError,
    TaskRef,
    Timer,
    WaitTimeoutError,
    agent,
    branch,
    compensate,
    entity,
    event,
    gather,
    map_steps,
    patched,
    receive,
    register,
    request_approval,
    run_step,
    sleep,
    sleep_until,
    spawn_child,
    step,
    task_info,
    wait_any,
)
from actors.appender import Appender
from actors.llm import Budget, Reply, ScriptedModel, ToolCall, ToolError, Usage, llm_agent, tool
from actors.task_log import TaskLog
from actors.testing import CrashPlan, FakeClock, SimulatedCrash
from stores import Store
from stores.crash import CrashingStore

world: set[str] = set()
"""What is to go wrong once: whoever meets his word takes it out."""


def goes_wrong(what: str) -> bool:
    if what in world:
        world.discard(what)
        return True
    return False


@register(name="history.Colour")
class Colour(Enum):
    RED = "red"


@register(name="history.Invoice", version=2)
@dataclass
class Invoice:
    number: int
    amount: Decimal
    colour: Colour = Colour.RED


VALUES: list[Any] = [
    None, True, 10**30, 0.1, float("inf"), "é", "\ud800", b"\x00\xff", (1, (2,)), {3, 1}, {"a": [1], "$": 2},
    {1: "one"}, datetime(2026, 11, 1, 2, 30, tzinfo=UTC), timedelta(days=1), UUID(int=7), Decimal("1.50"),
    Path("a/b"), Invoice(7, Decimal("1.50")), Colour.RED,
]  # fmt: skip


# ------------------------------------------------------------------ steps


@step(name="h-note", label="about {what}")
def note(what: Any) -> Any:
    return what


@step(name="h-idempotent", idempotent=True)
def idempotent(what: str) -> str:
    return what


@step(name="h-flaky", retries=3, backoff=100.0, jitter=0, label="to {what}")
def flaky(what: str) -> str:
    for word in ("first", "second"):
        if goes_wrong(word):
            raise ConnectionError(f"no route to {what}, the {word} time")
    return what


@step(name="h-slow", timeout=0.05, retries=1, backoff=0.01, jitter=0)
def slow() -> str:
    if goes_wrong("slow"):
        threading.Event().wait(0.5)
    return "in time"


@step(name="h-pay", on_doubt="hold", timeout=0.05, label="pay {amount}")
def pay(amount: int) -> str:
    if goes_wrong("slow"):
        threading.Event().wait(0.5)
    return "paid"


def has_been_sent(doubt: Doubt) -> Happened | NotHappened:
    return Happened("found in the folder") if doubt.args[0] == "ann" else NotHappened()


@step(name="h-sent", on_doubt=has_been_sent)
def sent(to: str) -> str:
    return f"sent to {to}"


@step(name="h-broken")
def broken(why: str) -> None:
    raise ValueError(why)


@step(name="h-restarts")
def restarts(what: str) -> str:
    if goes_wrong("sibling"):
        log = sibling[0]
        told = Appender(log, log.load("task"))
        told.append(lambda task, now: task.ask_to_restart(now, "h-crew", cause="a crash", by="h-sibling"))
    return what


sibling: list[TaskLog] = []


class Till(Entity):
    TOPIC = "h-till"

    def __init__(self) -> None:
        self.coins = 0

    def take(self, number: int) -> int:
        if self.coins + number > 10:
            raise Rejected("it holds ten", self.coins)
        self.taken(number)
        return self.coins

    @event("Taken")
    def taken(self, number: int) -> None:
        self.coins += number


@step(name="h-anote")
async def anote(what: str) -> str:
    await asyncio.sleep(0)
    return what


# ------------------------------------------------------------------ agents


@agent(name="h-values")
def values() -> list[Any]:
    return [note(value) for value in VALUES]


@agent(name="h-nested")
def nested(what: str) -> list[str]:
    return [note(what), *inner(what), idempotent("once more"), run_step("by name", str.upper, what)]


@agent(name="h-inner")
def inner(what: str) -> list[str]:
    return [note(f"{what} inside"), note("again")]


@agent(name="h-retry")
def retry(what: str) -> str:
    return flaky(what) + slow()


@agent(name="h-beside")
def beside() -> list[Any]:
    info = task_info()
    assert info is not None
    began, new = info.now(), patched("new way")
    pair = gather(partial(note, "left"), lambda: [note("right"), gather(partial(note, "deep"), partial(note, "er"))])
    with branch("tool/mail #1"):
        first = note("in a branch")
    with branch("tool/mail #1"):
        second = note("in its twin")
    return [began, new, pair, first, second, map_steps(note, "xyz", limit=2)]


@agent(name="h-purchase")
def purchase(amount: int) -> str:
    try:
        return pay(amount)
    except StepError as error:
        return f"not paid: {error.fault.message}"


@agent(name="h-letters")
def letters() -> list[str]:
    return [sent("ann"), sent("bob")]


@agent(name="h-crashing")
def crashing(what: str) -> str:
    done = note(what)
    if goes_wrong("agent") or goes_wrong("agent again"):
        raise KeyError("a bug")
    return done


@agent(name="h-changing")
def changing() -> list[str]:
    first = note("first")
    if "new code" in world:
        idempotent("slipped in")
    return [first, note("second")]


@agent(name="h-failing")
def failing(how: str) -> None:
    note(how)
    if how == "by a step":
        broken("no such page")
    raise FailTask("the customer is gone")


@agent(name="h-parked", on_failure="hold")
def parked() -> None:
    broken("not today")


@agent(name="h-async")
async def asynchronous(what: str) -> list[Any]:
    first = await anote(what)
    both = await gather(anote("left"), both_again("right"))
    return [first, both, await note.aio("from a sync step"), await inner.aio("in")]


async def both_again(what: str) -> list[str]:
    return [await anote(what), await anote("again")]


# ------------------------------------------------------------------ how they were run


def run(store: Store, agent: Any, *args: Any, wrong: str = "", strikes: int | None = 3, **options: Any) -> None:
    """Run a task to its end, or until it is held, with a clock that jumps over what it waits for."""
    world.update(wrong.split(","))
    with AgentSystem(store, strikes=strikes, clock=FakeClock(jump=True)) as system, suppress(Exception):
        task_of(system, agent, *args, **options).result(30)


def task_of(system: AgentSystem, agent: Any, *args: Any, **options: Any) -> TaskRef[Any]:
    return system.spawn(agent, *args, id="task", **options)


def die_in(store: Store, plan: CrashPlan, agent: Any, *args: Any) -> None:
    """Run a task in a process that dies."""
    life = CrashingStore(store, plan, close_inner=False)
    try:
        with suppress(SimulatedCrash), AgentSystem(life, strikes=None) as system:
            task_of(system, agent, *args).result(30)
    finally:
        life.close()


class DiesIn(CrashPlan):
    """Dies at the nth time that a point is reached."""

    def __init__(self, point: str, times: int = 1) -> None:
        super().__init__(None)
        self._point = point
        self._times = times

    def reach(self, point: str, **facts: object) -> None:
        super().reach(point, **facts)
        if point == self._point:
            self._times -= 1
            if self._times == 0:
                self.die_now(point)


def decide(store: Store, decision: Callable[[TaskRef[Any]], object]) -> None:
    with AgentSystem(store, run=False) as client:
        decision(client.task("task"))


def waiting_for_retry(store: Store) -> None:
    world.add("first")
    with AgentSystem(store) as system:
        task = task_of(system, retry, "the moon")
        while task.status() != "waiting":
            threading.Event().wait(0.01)


def cut_off(store: Store) -> None:
    world.add("slow")
    with AgentSystem(store, grace=0) as system:
        task = task_of(system, uninterrupted)
        while len(task.events()) < 3:
            threading.Event().wait(0.01)


@step(name="h-long")
def long() -> str:
    if goes_wrong("slow"):
        threading.Event().wait(0.5)
    return "long"


@agent(name="h-uninterrupted")
def uninterrupted() -> str:
    return long()


def held_for_code(store: Store) -> None:
    """Die after the second step, come back with a step that slipped in, and then with the old code."""
    die_in(store, DiesIn("body.before", 2), changing)
    world.add("new code")
    run(store, changing)
    world.clear()


def released_by_worker(store: Store) -> None:
    held_for_code(store)
    run(store, changing)


def in_doubt(store: Store, letter: int) -> None:
    die_in(store, DiesIn("body.before", letter), letters)
    run(store, letters)


def given_up(store: Store, decision: Callable[[TaskRef[Any]], object] | None = None) -> None:
    run(store, purchase, 20, wrong="slow")
    if decision is not None:
        decide(store, decision)
        run(store, purchase, 20)


def struck(store: Store, *, released: bool) -> None:
    run(store, crashing, "x", wrong="agent,agent again", strikes=2)
    if released:
        decide(store, lambda task: task.release(by="ann"))
        run(store, crashing, "x")


def parked_and_run_again(store: Store) -> None:
    run(store, parked)
    decide(store, lambda task: task.resolve("1", rerun=True, by="ann"))
    run(store, parked)


@agent(name="h-grouped")
def grouped() -> list[Any]:
    coins = entity(Till, "bar").ask(Till.take, 7)
    try:
        entity(Till, "bar").ask(Till.take, 7)
    except Rejected as no:
        refused = list(no.args)
    return [coins, refused, restarts("before"), note("after")]


def restarted_with_its_group(store: Store) -> None:
    sibling[:] = [TaskLog(store)]
    world.add("sibling")
    with AgentSystem(store) as system, system.group("h-crew", strategy="one_for_all") as crew:
        crew.spawn(grouped, id="task").result(20)


@step(name="h-book")
def book(what: str) -> str:
    compensate(unbook, what, how="by phone")
    return f"number of {what}"


@step(name="h-unbook", retries=1, backoff=0.01, jitter=0)
def unbook(what: str, how: str) -> str:
    return f"no {what} any more, {how}"


@agent(name="h-conversation")
def conversation(what: str) -> list[Any]:
    compensate(unbook, "everything", how="in person")
    number = book(what)
    pause = request_approval(f"pay for {what}", details={"number": number})
    child = spawn_child(nested, what, on_parent_end="wait", tags={"of": what})
    sleep(60)
    sleep_until(datetime(2030, 1, 1, tzinfo=UTC))
    said = [receive("word"), receive("word", timeout=5)]
    try:
        receive("silence", timeout=timedelta(minutes=1))
    except WaitTimeoutError as error:
        said.append(str(error))
    first = wait_any(Signal("silence"), Timer(3), child, timeout=600)
    later = wait_any(Signal("silence"), Timer(3))
    return [*said, first.index, later.index, later.value, pause.wait().note, child.result()]


@agent(name="h-called-off")
def called_off(what: str) -> str:
    compensate(unbook, "everything", how="in person")
    book(what)
    try:
        sleep(3600)
    except TaskCancelled:
        note("the clean-up")
        raise
    return what


@agent(name="h-sold-out")
def sold_out(what: str) -> None:
    book(what)
    spawn_child(called_off, what)
    raise FailTask(f"no {what} left")


def converse(store: Store, *, whole: bool = True) -> None:
    """Have a conversation: all of it is said before the agent asks, but for the approval."""
    with AgentSystem(store, clock=FakeClock(jump=True)) as system:
        task = task_of(system, conversation, "tea")
        for word in ("one", "two", "one"):
            task.signal("word", [word], signal_id=word)
        while not task.describe().approvals:
            threading.Event().wait(0.01)
        if whole:
            task.answer(task.describe().approvals[0].id, approved=True, value={"card": 7}, note="go on", by="ann")
            task.result(30)
        else:
            while "approval" not in task.describe().waits:
                threading.Event().wait(0.01)


def call_off(store: Store) -> None:
    with AgentSystem(store, clock=FakeClock()) as system:
        task = task_of(system, called_off, "tea")
        while task.status() != "waiting":
            threading.Event().wait(0.01)
        task.cancel("enough", by="ann")
        with suppress(TaskCancelledError):
            task.result(30)


def die_in_undos(store: Store) -> None:
    life = CrashingStore(store, DiesIn("body.before", 3), close_inner=False)
    with suppress(SimulatedCrash):
        call_off(life)
    life.close()


def held_and_called_off(store: Store) -> None:
    run(store, purchase, 20, wrong="slow")
    decide(store, lambda task: task.cancel("enough", by="ann"))


@tool
def look_up(city: str) -> str:
    """Tell the weather in a city."""
    if city == "Atlantis":
        raise ToolError("there is no such city")
    return f"rain in {city}"


HALF = Usage(100, 20, Decimal("0.50"))
asked = Reply(
    "I look.",
    [
        ToolCall("c1", "look_up", {"city": "Rome"}),
        ToolCall("c1", "look_up", {"city": "Atlantis"}),
        ToolCall("c2", "look_up", {"town": "Rome"}),
    ],
    HALF,
)
spender = llm_agent(
    "history: spender",
    model=ScriptedModel(asked, Reply("It rains in Rome.", usage=HALF)),
    tools=[look_up],
    instructions="Be brief.",
    budget=Budget(cost="0.50", per_call=HALF),
)


def spend(store: Store, *, released: bool) -> None:
    with AgentSystem(store, clock=FakeClock()) as system:
        task = task_of(system, spender, "Does it rain in Rome?")
        with suppress(TaskHeldError):
            task.result(30)
        if released:
            task.release(grant={"cost": Decimal("0.50")}, by="ann")
            task.result(30)


PROGRAMS: dict[str, tuple[Any, Callable[[Store], object]]] = {
    "values": (values, lambda store: run(store, values, tags={"customer": "acme"})),
    "nested": (nested, lambda store: run(store, nested, "x")),
    "retry": (retry, lambda store: run(store, retry, "the moon", wrong="first,second,slow")),
    "waiting": (retry, waiting_for_retry),
    "beside": (beside, lambda store: run(store, beside)),
    "beside-open": (beside, lambda store: die_in(store, DiesIn("body.before", 5), beside)),
    "async": (asynchronous, lambda store: run(store, asynchronous, "x")),
    "async-open": (asynchronous, lambda store: die_in(store, DiesIn("body.before", 3), asynchronous, "x")),
    "given-up-held": (purchase, given_up),
    "given-up-happened": (purchase, lambda store: given_up(store, lambda t: t.resolve("1", value="txn_1", by="ann"))),
    "given-up-rerun": (purchase, lambda store: given_up(store, lambda t: t.resolve("1", rerun=True, by="ann"))),
    "given-up-failed": (purchase, lambda store: given_up(store, lambda t: t.resolve("1", fail=True, by="ann"))),
    "doubt-happened": (letters, lambda store: in_doubt(store, 1)),
    "doubt-not-happened": (letters, lambda store: in_doubt(store, 2)),
    "cut-off": (uninterrupted, cut_off),
    "restarted": (crashing, lambda store: run(store, crashing, "x", wrong="agent")),
    "struck-held": (crashing, lambda store: struck(store, released=False)),
    "struck-released": (crashing, lambda store: struck(store, released=True)),
    "changed-held": (changing, held_for_code),
    "changed-released": (changing, released_by_worker),
    "failed-step": (failing, lambda store: run(store, failing, "by a step")),
    "failed-task": (failing, lambda store: run(store, failing, "on purpose")),
    "parked": (parked, lambda store: run(store, parked)),
    "parked-rerun": (parked, parked_and_run_again),
    "grouped": (grouped, restarted_with_its_group),
    "conversation": (conversation, converse),
    "conversation-open": (conversation, lambda store: converse(store, whole=False)),
    "called-off": (called_off, call_off),
    "called-off-open": (called_off, die_in_undos),
    "called-off-held": (purchase, held_and_called_off),
    "sold-out": (sold_out, lambda store: run(store, sold_out, "tea")),
    "spent-held": (spender, lambda store: spend(store, released=False)),
    "spent-released": (spender, lambda store: spend(store, released=True)),
}  # fmt: skip
"""By the name of its history: the agent, and what was done in a new store."""
