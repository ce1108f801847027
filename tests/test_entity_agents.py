"""Entities asked by agents: a step whose key goes with the events that it causes, in both colours."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import actors.tree
from actors import (
    AgentSystem,
    BlockingCallError,
    EntityCrashError,
    InsideTaskError,
    OutsideTaskError,
    StepError,
    TaskFailedError,
    agent,
    branch,
    entity,
    gather,
    step,
    step_info,
)
from actors.testing import FakeClock, replay_history, save_history
from domain.events import Passivated, StepFailed, StepStarted, StepSucceeded
from domain.state import idempotency_key
from stores import Store, open_store
from tests.budgets import PATIENCE, Budget, TooMuch, bookings, gate, living, rows
from tests.lives import die, kinds, live, log, wait_for
from tests.test_entity_ends import refuse_threads

COLOURS = ["sync", "async"]


@pytest.fixture(params=["memory", "sqlite"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/entities.db"
    with open_store(url) as opened:
        yield opened


ran: list[str] = []
"""What agents' code and bodies have come by."""


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    ran.clear()


@agent(name="entities: spend all")
def spend_all(amount: int, times: int) -> list[Any]:
    budget, out = entity(Budget, "b"), list[Any]()
    for _ in range(times):
        try:
            out.append(budget.ask(Budget.spend, amount, note="agent"))
        except TooMuch as no:
            out.append(f"only {no.left}")
    return out


@agent(name="entities: spend all async")
async def spend_all_async(amount: int, times: int) -> list[Any]:
    budget, out = entity(Budget, "b"), list[Any]()
    for _ in range(times):
        try:
            out.append(await budget.ask_async(Budget.spend, amount, note="agent"))
        except TooMuch as no:
            out.append(f"only {no.left}")
    return out


SPENDERS = {"sync": spend_all, "async": spend_all_async}


@pytest.mark.parametrize("colour", COLOURS)
def test_an_ask_is_a_step_whose_key_is_in_the_entitys_log(disk: Store, colour: str) -> None:
    assert live(disk, SPENDERS[colour], 40, 3) == [60, 20, "only 20"]
    events = log(disk)
    assert kinds(disk) == ["Created", "Activated", "StepSucceeded", "StepSucceeded", "StepFailed", "Completed"]
    done = [event for event in events if isinstance(event, StepSucceeded | StepFailed)]
    assert [(event.path, event.name) for event in done] == [(f"{n}", "tests.budget.spend") for n in (1, 2, 3)]
    birth = events[0].birth  # type: ignore[attr-defined]
    assert [row.key for row in rows(disk, "b")] == [None, idempotency_key(birth, "1"), idempotency_key(birth, "2")]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("point", ["body.before", "append.before", "append.inside", "append.after", "body.after"])
def test_a_death_at_an_ask_books_once_and_a_replay_gets_the_first_answer(colour: str, point: str) -> None:
    for nth in range(1, 12):
        with open_store("memory:") as store:
            try:
                die(store, SPENDERS[colour], 40, 3, at=point, nth=nth)
            except pytest.fail.Exception:
                break
            with AgentSystem(store, run=False) as client:
                client.entity(Budget, "b").with_key("others").ask(Budget.refund, 0)
            assert live(store, SPENDERS[colour], 40, 3) == [60, 20, "only 20"]
            assert [amount for amount in bookings(store, "b") if amount] == [40, 40]
    assert nth > 3


@pytest.mark.parametrize("colour", COLOURS)
def test_a_no_arrives_as_itself_live_and_in_a_replay(disk: Store, colour: str, tmp_path: Path) -> None:
    assert live(disk, SPENDERS[colour], 101, 2) == ["only 100"] * 2
    with AgentSystem(disk, run=False) as client:
        save_history(client.task("t"), tmp_path / "spender.json")
    replay_history(SPENDERS[colour], tmp_path / "spender.json")


@agent(name="entities: lets through")
def lets_through(how: str) -> Any:
    budget = entity(Budget, "b")
    if how == "no":
        return budget.ask(Budget.spend, 101)
    if how == "lock":
        return budget.ask(Budget.spend, 1, note=threading.Lock())
    return budget.ask(Budget.crash, how)


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("no", TooMuch, "100"),
        ("ValueError", EntityCrashError, "its command crash ended in ValueError: a bug"),
        ("SystemExit", EntityCrashError, "its command crash ended in SystemExit: 3"),
        ("lock", "UnstorableValueError", "_thread.lock"),
    ],
)
def test_what_an_agent_lets_through_fails_its_task(disk: Store, how: str, kind: Any, message: str) -> None:
    with pytest.raises(TaskFailedError, match=message) as failed:
        live(disk, lets_through, how)
    assert failed.value.fault.is_a(kind)
    assert bookings(disk, "b") == []


@agent(name="entities: catches")
def catches() -> list[str]:
    found = []
    for how in ("ValueError", "KeyboardInterrupt"):
        try:
            entity(Budget, "b").ask(Budget.crash, how)
        except StepError as error:
            found.append(f"{error.is_a(EntityCrashError)} {how in error.fault.message}")
    return [*found, str(entity(Budget, "b").ask(Budget.left))]


def test_a_crash_arrives_as_a_step_error(disk: Store) -> None:
    assert live(disk, catches) == ["True True", "True True", "100"]


# ------------------------------------------------------------------ everywhere in a program


@agent(name="asks.inner")
def inner(amount: int) -> int:
    return entity(Budget, "b").ask(Budget.spend, amount)


@agent(name="asks.inner_async")
async def inner_async(amount: int) -> int:
    return await entity(Budget, "b").ask_async(Budget.spend, amount)


@step
def in_a_body(amount: int) -> int:
    ran.append("body")
    return entity(Budget, "b").with_key(step_info().idempotency_key).ask(Budget.spend, amount)


@step
async def in_an_async_body(amount: int) -> int:
    with pytest.raises(BlockingCallError, match="await ask_async"):
        entity(Budget, "b").ask(Budget.left)
    return await entity(Budget, "b").with_key(step_info().idempotency_key).ask_async(Budget.spend, amount)


def by_hand(amount: int) -> int:
    with branch("hand"):
        return entity(Budget, "b").ask(Budget.spend, amount)


@agent(name="entities: everywhere")
def everywhere() -> list[int]:
    out = [inner(1), inner_async.sync(1), in_a_body(1), in_an_async_body.sync(1)]
    out += sorted(gather(partial(entity(Budget, "b").ask, Budget.spend, 1), partial(inner, 1), partial(in_a_body, 1)))
    with branch("keyed"):
        out.append(inner(1))
    place = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:
        out.append(thread.submit(place.run, by_hand, 1).result())
    return out


@agent(name="entities: everywhere async")
async def everywhere_async() -> list[int]:
    out = [await inner.aio(1), await inner_async(1), await in_a_body.aio(1), await in_an_async_body(1)]
    asks = entity(Budget, "b").ask_async(Budget.spend, 1), inner_async(1), in_a_body.aio(1)
    out += sorted(await gather(*asks))
    with branch("keyed"):
        out.append(await inner_async(1))
    return out


@pytest.mark.parametrize("whole", [everywhere, everywhere_async])
def test_an_entity_is_asked_from_everywhere_in_a_program(disk: Store, whole: Any) -> None:
    expected = list(range(99, 90 if whole is everywhere else 91, -1))
    assert live(disk, whole) == [99, 98, 97, 96, 93, 94, 95, *expected[7:]]
    assert bookings(disk, "b") == [1] * len(expected)
    keys = [row.key for row in rows(disk, "b")[1:]]
    assert None not in keys
    assert len(set(keys)) == len(keys)


@agent(name="entities: asks in vain")
def asks_in_vain() -> dict[str, str]:
    """Does what may not be done inside an agent."""
    budget, refused = entity(Budget, "b"), dict[str, str]()

    def refuse(name: str, error: type[Exception], call: Any) -> None:
        with pytest.raises(error) as caught:
            call()
        refused[name] = str(caught.value)

    refuse("tell", InsideTaskError, lambda: budget.tell(Budget.spend, 1))
    refuse("key", InsideTaskError, lambda: budget.with_key("k").ask(Budget.spend, 1))
    refuse("id", ValueError, lambda: entity(Budget, ""))
    refuse("arguments", TypeError, lambda: budget.ask(Budget.spend))  # type: ignore[call-arg]
    place = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:
        for name, error, ask, *args in (
            ("thread", OutsideTaskError, budget.ask, Budget.spend, 1),
            ("told", InsideTaskError, budget.tell, Budget.spend, 1),
            ("entity", OutsideTaskError, entity, Budget, "b"),
        ):
            refuse(name, error, lambda ask=ask, args=args: thread.submit(place.run, ask, *args).result())  # type: ignore[misc]
    refuse("loop", OutsideTaskError, lambda: asyncio.run(budget.ask_async(Budget.spend, 1)))
    return refused


@agent(name="entities: asks in vain async")
async def asks_in_vain_async() -> dict[str, str]:
    budget = entity(Budget, "b")
    with pytest.raises(BlockingCallError) as blocks:
        budget.ask(Budget.spend, 1)
    with pytest.raises(InsideTaskError) as key:
        await budget.with_key("k").ask_async(Budget.spend, 1)
    with pytest.raises(OutsideTaskError) as elsewhere:
        await asyncio.create_task(budget.ask_async(Budget.spend, 1))
    return {"blocks": str(blocks.value), "key": str(key.value), "elsewhere": str(elsewhere.value)}


def test_what_an_agent_may_not_do_with_an_entity_is_refused_in_words(disk: Store) -> None:
    refused = live(disk, asks_in_vain)
    assert "ask, which is a step" in refused["tell"] == refused["told"]
    assert "leave out with_key" in refused["key"]
    assert "another thread" in refused["thread"]
    assert "where no task runs" in refused["entity"]
    assert "runs by itself" in refused["loop"]
    with open_store("memory:") as other:
        refused = live(other, asks_in_vain_async)
    assert "block the event loop" in refused["blocks"]
    assert "leave out with_key" in refused["key"]
    assert "another asyncio task" in refused["elsewhere"]
    assert bookings(disk, "b") == []


def test_an_entity_outside_of_a_task_is_the_systems() -> None:
    with pytest.raises(OutsideTaskError, match=r"ask system\.entity"):
        entity(Budget, "b")


# ------------------------------------------------------------------ bodies


@step
def careless(amount: int) -> int:
    ran.append("body")
    return entity(Budget, "b").ask(Budget.spend, amount)


@agent(name="entities: runs a body")
def runs_a_body(which: str) -> int:
    return (careless if which == "careless" else in_a_body)(10)


@pytest.mark.parametrize(("which", "booked"), [("careless", [10, 10]), ("careful", [10])])
def test_an_ask_in_a_body_is_repeated_with_it_unless_it_has_the_steps_key(
    disk: Store, which: str, booked: list[int]
) -> None:
    die(disk, runs_a_body, which, at="body.after")
    live(disk, runs_a_body, which)
    assert ran == ["body", "body"]
    assert bookings(disk, "b") == booked


# ------------------------------------------------------------------ cut off


@agent(name="entities: spends at")
def spends_at(name: str) -> list[int]:
    return [entity(Budget, "b").ask(Budget.spend_at, name, 10), entity(Budget, "b").ask(Budget.left)]


@agent(name="entities: spends at async")
async def spends_at_async(name: str) -> list[int]:
    budget = entity(Budget, "b")
    return [await budget.ask_async(Budget.spend_at, name, 10), await budget.ask_async(Budget.left)]


AT_A_GATE = {"sync": spends_at, "async": spends_at_async}


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("begun", [True, False])
def test_an_ask_that_a_closing_worker_cuts_off_is_in_doubt_and_asked_again(
    disk: Store, colour: str, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.tree, "LAST_WORD", 0.1)
    name = f"{colour}-{begun}"
    with gate(name) as held:
        with AgentSystem(disk, grace=0.05) as worker:
            if not begun:
                worker.entity(Budget, "b").tell(Budget.spend_at, name, 0)
                assert held.reached.wait(PATIENCE)
            worker.spawn(AT_A_GATE[colour], name, id="t")
            wait_for(lambda: any("1 waiting" in state for _, state in worker.runtime.entities.alive())
                     if not begun else held.reached.is_set())  # fmt: skip
        assert [event.cut_off for event in log(disk) if isinstance(event, Passivated)] == [["1"]]
        held.opened.set()
        assert live(disk, AT_A_GATE[colour], name) == [90, 90]
    assert [amount for amount in bookings(disk, "b") if amount] == [10]
    assert not [event for event in log(disk) if isinstance(event, StepFailed)]


def test_an_ask_in_a_body_of_a_worker_that_closes_is_no_failure_of_the_body(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.tree, "LAST_WORD", 0.1)

    @step
    def waits() -> int:
        return entity(Budget, "b").with_key("k").ask(Budget.spend_at, "body", 10)

    @agent(name="entities: body cut off")
    def flow() -> int:
        return waits()

    with gate("body") as held:
        with AgentSystem(disk, grace=0.05) as worker:
            worker.spawn(flow, id="t")
            assert held.reached.wait(PATIENCE)
        assert [event.cut_off for event in log(disk) if isinstance(event, Passivated)] == [["1"]]
        held.opened.set()
        assert live(disk, flow) == 90
    assert bookings(disk, "b") == [10]
    assert len([event for event in log(disk) if isinstance(event, StepStarted)]) == 2


@agent(name="entities: cancels")
async def cancels(name: str) -> list[Any]:
    budget = entity(Budget, "b")
    try:
        async with asyncio.timeout(0.05):
            out = [await budget.ask_async(Budget.spend_at, name, 10)]
    except StepError as error:
        out = [error.fault.kind]
    return [*out, await budget.ask_async(Budget.left)]


@pytest.mark.parametrize(("begun", "out"), [(True, [90, 90]), (False, ["CancelledError", 100])])
def test_a_cancellation_leaves_the_agent_with_what_the_entity_has_done(disk: Store, begun: bool, out: Any) -> None:
    with gate("cancel") as held, gate("before") as before, AgentSystem(disk) as system:
        if not begun:
            system.entity(Budget, "b").tell(Budget.spend_at, "before", 0)
            assert before.reached.wait(PATIENCE)
        task = system.spawn(cancels, "cancel", id="t")
        if begun:
            assert held.reached.wait(PATIENCE)
            threading.Timer(0.2, held.opened.set).start()
        else:
            wait_for(lambda: "StepFailed" in kinds(disk))
            before.opened.set()
        assert task.result(PATIENCE) == out
    assert [amount for amount in bookings(disk, "b") if amount] == [10] * begun


# ------------------------------------------------------------------ around


@agent(name="entities: asks once")
def asks_once() -> int:
    return entity(Budget, "b").ask(Budget.spend, 10)


@agent(name="entities: asks once async")
async def asks_once_async() -> int:
    return await entity(Budget, "b").ask_async(Budget.spend, 10)


@pytest.mark.parametrize("asker", [asks_once, asks_once_async])
def test_an_agent_asks_again_where_the_machine_had_no_thread_for_the_entity(
    disk: Store, asker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_threads(monkeypatch, 2)
    assert live(disk, asker, clock=FakeClock(jump=True)) == 90
    failed = [event for event in log(disk) if isinstance(event, StepFailed)]
    assert len(failed) == 2
    assert all("EntityStoppedError" in event.error["kinds"][0] for event in failed)
    assert bookings(disk, "b") == [10]


def test_many_tasks_share_one_budget(disk: Store) -> None:
    with AgentSystem(disk) as system:
        tasks = [system.spawn(SPENDERS[COLOURS[n % 2]], 7, 3, id=f"spender-{n}") for n in range(10)]
        results = [task.result(PATIENCE) for task in tasks]
    assert sum(isinstance(reply, int) for replies in results for reply in replies) == 14
    assert bookings(disk, "b") == [7] * 14


def test_a_task_that_has_ended_may_be_followed_by_an_ask_wherever_one_waits_for_it(disk: Store) -> None:
    done: list[int] = []
    with AgentSystem(disk) as system:

        def follow() -> None:
            system.spawn(asks_once, id="t").result(PATIENCE)
            done.append(system.entity(Budget, "b").ask(Budget.spend, 5))

        waiting = threading.Thread(target=follow)
        waiting.start()
        waiting.join(PATIENCE)
        assert living(system) == ["tests.budget b"]
    assert done == [85]


def test_an_entity_of_another_system_is_asked_as_a_step_too(disk: Store) -> None:
    with open_store("memory:") as elsewhere, AgentSystem(elsewhere, run=False) as other:
        budget = other.entity(Budget, "b")

        @agent(name="entities: of another system")
        def asks_elsewhere() -> int:
            return budget.ask(Budget.spend, 10)

        assert live(disk, asks_elsewhere) == 90
        assert live(disk, asks_elsewhere) == 90
        assert (bookings(disk, "b"), bookings(elsewhere, "b")) == ([], [10])
    with AgentSystem(disk) as system, pytest.raises(TaskFailedError, match="SystemClosedError"):
        system.spawn(asks_elsewhere, id="late").result(PATIENCE)


def test_an_entity_of_an_agent_that_is_asked_on_a_thread_of_its_own_is_refused(disk: Store) -> None:
    @agent(name="asks.on-a-thread")
    def on_a_thread() -> str:
        budget = entity(Budget, "b")
        with (
            ThreadPoolExecutor(1) as pool,
            pytest.raises(OutsideTaskError, match="on a thread of the agent's own") as no,
        ):
            pool.submit(budget.ask, Budget.spend, 5).result()
        return str(no.value)

    with AgentSystem(disk) as system:
        assert "gather" in system.spawn(on_a_thread, id="t").result(PATIENCE)
        assert system.entity(Budget, "b").ask(Budget.left) == 100
