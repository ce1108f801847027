"""Cancelling: delivered once to each line of a program, at a call of ours, and clean-up within a grace."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from actors import (
    AgentSystem,
    GivenUp,
    Happened,
    Notice,
    StepError,
    TaskCancelled,
    TaskFailedError,
    TaskHeldError,
    agent,
    branch,
    heartbeat,
    open_store,
    receive,
    sleep,
    step,
    step_info,
)
from actors.testing import (
    CrashPlan,
    FakeClock,
    Run,
    every_crash_point,
    replay_history,
    run_through_crashes,
    save_history,
)
from domain.events import (
    Activated,
    CancelDelivered,
    Cancelled,
    CancelRequested,
    Completed,
    Concluded,
    Held,
    Passivated,
    Restarted,
    StepStarted,
    StepSucceeded,
)
from stores import Store
from stores.crash import CrashingStore
from tests.called_off import (
    BOTH,
    DAY,
    ENDINGS,
    Hands,
    Notes,
    cancelled,
    delivered,
    elsewhere,
    events_of,
    made,
    of,
    spotless,
    started,
)
from tests.lives import PATIENCE, die, held, kinds, wait_for


@pytest.fixture
def memory() -> Iterator[Store]:
    """Give a store for what does not depend on which it is, and takes a beat of the worker."""
    with open_store("memory:") as store:
        yield store


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def door() -> Iterator[threading.Event]:
    """Give what bodies wait for that nobody lets go before the test is over."""
    event = threading.Event()
    yield event
    event.set()


# ------------------------------------------------------------------ where it is delivered

WAITS: dict[str, Callable[[Hands], Any]] = {
    "sleep": lambda hands: hands.sleep(DAY),
    "receive": lambda hands: hands.receive("never"),
    "receive with a time-out": lambda hands: hands.receive("never", DAY),
}


@BOTH
@pytest.mark.parametrize("wait", WAITS)
def test_a_cancel_ends_a_suspended_wait_at_once_and_clean_up_runs_once(
    disk: Store, notes: Notes, colour: str, wait: str
) -> None:
    async def code(hands: Hands) -> None:
        await hands.do(notes.note, "before")
        await WAITS[wait](hands)
        await hands.do(notes.note, "after")

    flow = made(colour, spotless(code, notes, "tidy"))
    with AgentSystem(disk, clock=FakeClock()) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: task.status() == "waiting")
        answer = task.cancel("no longer wanted", by="ann")
        assert (answer.accepted, answer.status) == (True, "queued")
        error = cancelled(task)
    assert notes.ran == ["before", "tidy"]
    assert (error.reason, error.by, error.doubts, error.cut) == ("no longer wanted", "ann", [], False)
    assert delivered(disk) == ["2"]
    assert started(disk) == [("1", 1), ("3", 1)]
    assert kinds(disk)[-6:] == [
        *("CancelRequested", "Activated", "CancelDelivered", "StepStarted", "StepSucceeded", "Cancelled")
    ]


@BOTH
def test_a_cancel_ends_a_wait_in_place_though_no_time_passes(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> None:
        await hands.do(notes.note, "before")
        await hands.sleep(0.9)

    with AgentSystem(disk, clock=FakeClock()) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t")
        wait_for(lambda: "WaitBegan" in kinds(disk))
        task.cancel()
        cancelled(task)
    assert notes.ran == ["before", "tidy"]
    assert len(of(events_of(disk), Activated)) == 1


@BOTH
@pytest.mark.parametrize("backoff", [0.9, DAY], ids=["in place", "suspended"])
def test_a_cancel_ends_the_wait_for_a_retry_and_its_attempts_stay(
    disk: Store, notes: Notes, colour: str, backoff: float
) -> None:
    @step(name="fetch", retries=4, backoff=backoff, max_backoff=backoff, jitter=0)
    def fetch() -> None:
        notes.ran.append(step_info().attempt)
        raise ConnectionError("no answer")

    async def code(hands: Hands) -> None:
        await hands.do(fetch)

    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t")
        wait_for(lambda: "StepFailed" in kinds(disk) and (backoff < 1 or task.status() == "waiting"))
        task.cancel()
        error = cancelled(task)
        clock.advance(2 * DAY)
        (view, *_) = task.describe().steps
    assert notes.ran == [1, "tidy"]
    assert error.doubts == []
    assert (view.state, view.attempt, view.due, len(view.errors)) == ("cancelled", 1, None, 1)


@BOTH
def test_a_body_that_ends_after_the_cancel_keeps_its_outcome_and_the_next_call_raises(
    disk: Store, notes: Notes, colour: str
) -> None:
    with AgentSystem(disk) as system:
        notes.does["first"] = lambda: [system.task("t").cancel("from its own body"), "kept"][1]
        seen = list[Any]()

        async def code(hands: Hands) -> None:
            seen.append(await hands.do(notes.note, "first"))
            await hands.do(notes.note, "second")

        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t")
        assert cancelled(task).reason == "from its own body"
    assert seen == ["kept"]
    assert notes.ran == ["first", "tidy"]
    assert delivered(disk) == ["2"]
    assert started(disk) == [("1", 1), ("3", 1)], "no start of a step whose body does not run"


@BOTH
@pytest.mark.parametrize("on_doubt", ["rerun", "hold", "function"])
def test_a_step_in_doubt_is_neither_rerun_nor_held_nor_asked_about_once_its_task_is_called_off(
    disk: Store, notes: Notes, colour: str, on_doubt: str
) -> None:
    def ask(_doubt: Any) -> Happened:
        notes.ran.append("asked")
        return Happened("yes")

    @step(name="pay", on_doubt=ask if on_doubt == "function" else on_doubt)  # type: ignore[arg-type]
    def pay() -> str:
        notes.ran.append("pay")
        return "paid"

    async def code(hands: Hands) -> None:
        await hands.do(pay)

    flow = made(colour, spotless(code, notes, "tidy"))
    die(disk, flow, at="body.after")
    with AgentSystem(disk, run=False) as client:
        client.task("t").cancel("enough")
    with AgentSystem(disk) as system:
        error = cancelled(system.spawn(flow, id="t"))
        assert system.task("t").describe().steps[0].state == "cancelled"
    assert notes.ran == ["pay", "tidy"]
    assert error.doubts == ["1"]
    assert started(disk) == [("1", 1), ("2", 1)]


@BOTH
@pytest.mark.parametrize("kind", ["idempotent", "default"])
def test_a_cancel_before_a_call_lets_no_body_begin(disk: Store, notes: Notes, colour: str, kind: str) -> None:
    @step(name="look", idempotent=True)
    def look() -> None:
        notes.ran.append("look")

    async def code(hands: Hands) -> None:
        await hands.do(notes.note, "cancel it")
        if kind == "idempotent":
            await hands.do(look)
        else:
            await hands.do(notes.note, "x")

    with AgentSystem(disk) as system:
        notes.does["cancel it"] = lambda: bool(system.task("t").cancel())
        cancelled(system.spawn(made(colour, code), id="t"))
    assert notes.ran == ["cancel it"]
    assert delivered(disk) == ["2"]


# ------------------------------------------------------------------ lines

GATHERS: dict[str, dict[str, Any]] = {"all at once": {}, "one after the other": {"limit": 1}}


@BOTH
@pytest.mark.parametrize("how", GATHERS)
def test_each_branch_of_a_gather_gets_a_cancel_once_and_cleans_up_by_steps(
    disk: Store, notes: Notes, colour: str, how: str
) -> None:
    def line(hands: Hands, number: int) -> Callable[[], Any]:
        async def inside() -> None:
            try:
                await hands.receive(f"never {number}")
            except TaskCancelled:
                await hands.do(notes.note, f"tidy {number}")
                await hands.do(notes.note, f"tidier {number}")
                raise

        return inside

    async def code(hands: Hands) -> None:
        await hands.gather(*(line(hands, number) for number in range(3)), **GATHERS[how])

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel()
        cancelled(task)
    assert notes.ran[-1] == "tidy"
    assert sorted(notes.ran[:-1]) == sorted(f"{word} {number}" for word in ("tidy", "tidier") for number in range(3))
    assert sorted(delivered(disk)) == ["1/1/1", "1/2/1", "1/3/1"]


@BOTH
def test_no_error_of_another_branch_hides_that_the_task_was_called_off(disk: Store, notes: Notes, colour: str) -> None:
    notes.does["bad"] = lambda: 1 // 0

    async def code(hands: Hands) -> str:
        try:
            await hands.gather(lambda: hands.do(notes.note, "bad"), lambda: hands.receive("never"))
        except StepError:
            await hands.do(notes.note, "fallback")
        return "done"

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: "StepFailed" in kinds(disk) and bool(task.describe().waits))
        task.cancel()
        cancelled(task)
    assert notes.ran == ["bad"]


@BOTH
def test_lines_with_keys_get_a_cancel_once_each_and_so_does_the_wait_beside_them(
    disk: Store, notes: Notes, colour: str
) -> None:
    def line(hands: Hands, key: str) -> Callable[[], Any]:
        async def inside() -> None:
            try:
                await hands.receive(key)
            except TaskCancelled:
                await hands.do(notes.note, f"tidy {key}")
                raise

        return inside

    async def beside(hands: Hands) -> None:
        await hands.receive("beside")

    async def code(hands: Hands) -> None:
        async def keyed() -> None:
            came = await hands.keyed({key: line(hands, key) for key in "ab"})
            assert {type(error).__name__ for error in came} == {"TaskCancelled"}
            raise came[0]

        await hands.gather(keyed, lambda: beside(hands))

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t")
        wait_for(lambda: kinds(disk).count("WaitBegan") == 3)
        task.cancel()
        cancelled(task)
    assert notes.ran[-1] == "tidy"
    assert sorted(notes.ran[:-1]) == ["tidy a", "tidy b"]
    assert len(delivered(disk)) == 3


def test_a_wait_beside_a_keyed_branch_that_has_heard_of_the_cancel_first_hears_of_it_too(disk: Store) -> None:
    left, came = threading.Event(), list[str]()

    @agent(name="beside")
    def flow() -> None:
        def inside() -> None:
            with suppress(TaskCancelled), branch("key"):
                receive("never")
            came.append("branch")
            left.set()

        thread = threading.Thread(target=contextvars.copy_context().run, args=(inside,), daemon=True)
        thread.start()
        try:
            receive("never either")
        except TaskCancelled:
            came.append("main")
            assert left.wait(PATIENCE)
            raise

    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: kinds(disk).count("WaitBegan") == 2)
        task.cancel()
        assert not cancelled(task).cut
    assert sorted(came) == ["branch", "main"]


@BOTH
def test_a_sub_agent_hears_of_a_cancel_and_the_line_that_called_it_cleans_up(
    disk: Store, notes: Notes, colour: str
) -> None:
    async def inner(hands: Hands) -> None:
        await hands.receive("never")

    sub = made(colour, spotless(inner, notes, "tidy inside"), name="sub")

    async def code(hands: Hands) -> None:
        await hands.do(sub)

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy outside")), id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel()
        cancelled(task)
    assert notes.ran == ["tidy inside", "tidy outside"]
    assert delivered(disk) == ["1/1"]


@BOTH
def test_an_agent_that_returns_after_the_cancel_has_completed(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> str:
        with suppress(TaskCancelled):
            await hands.receive("never")
        return str(await hands.do(notes.note, "all the same"))

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel()
        assert task.result(PATIENCE) == "all the same"
        assert str(task.cancel()) == "task t: already completed"
    assert isinstance(events_of(disk)[-1], Completed)


@BOTH
def test_code_that_catches_every_exception_does_not_eat_a_cancel(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> str:
        try:
            await hands.receive("never")
        except Exception:
            await hands.do(notes.note, "eaten")
        return "eaten"

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel()
        cancelled(task)
    assert notes.ran == []


# ------------------------------------------------------------------ bodies


@BOTH
@pytest.mark.parametrize("limit", [None, 60.0], ids=["inline", "with a time limit"])
def test_a_heartbeat_tells_a_sync_body_that_its_task_was_called_off(
    disk: Store, notes: Notes, colour: str, limit: float | None
) -> None:
    pause = threading.Event()

    @step(name="long", timeout=limit)
    def long() -> None:
        notes.ran.append("long")
        while True:
            heartbeat()
            pause.wait(0.01)

    async def code(hands: Hands) -> None:
        await hands.do(long)

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t")
        wait_for(lambda: "long" in notes.ran)
        task.cancel()
        error = cancelled(task)
    assert notes.ran == ["long", "tidy"]
    assert (error.doubts, error.cut) == (["1"], False)
    assert delivered(disk) == ["1"]


@BOTH
@pytest.mark.parametrize("limit", [None, 60.0], ids=["inline", "with a time limit"])
def test_an_async_body_is_cancelled_when_its_task_is_called_off(
    disk: Store, notes: Notes, colour: str, limit: float | None
) -> None:
    @step(name="long", timeout=limit)
    async def long() -> None:
        notes.ran.append("long")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            notes.ran.append("its finally")
            raise

    async def code(hands: Hands) -> None:
        await hands.do(long)

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t")
        wait_for(lambda: "long" in notes.ran)
        task.cancel()
        error = cancelled(task)
    assert notes.ran == ["long", "its finally", "tidy"]
    assert (error.doubts, error.cut) == (["1"], False)


@BOTH
@pytest.mark.parametrize("body", ["sync", "async"])
def test_a_body_that_swallows_the_word_and_returns_has_succeeded(
    disk: Store, notes: Notes, colour: str, body: str
) -> None:
    pause = threading.Event()

    @step(name="stubborn")
    def beating() -> str:
        notes.ran.append("long")
        with suppress(GivenUp):
            while True:
                heartbeat()
                pause.wait(0.01)
        return "done"

    @step(name="stubborn")
    async def awaiting() -> str:
        notes.ran.append("long")
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return "done"

    async def code(hands: Hands) -> None:
        notes.ran.append(await hands.do(beating if body == "sync" else awaiting))
        await hands.do(notes.note, "next")

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t")
        wait_for(lambda: "long" in notes.ran)
        task.cancel()
        error = cancelled(task)
    assert notes.ran == ["long", "done", "tidy"]
    assert (error.doubts, error.cut) == ([], False)
    assert delivered(disk) == ["2"]


@pytest.mark.parametrize("swallows", [True, False])
def test_the_asyncio_task_of_an_agent_is_not_left_cancelled(disk: Store, swallows: bool) -> None:
    began, counts = threading.Event(), list[int]()

    @step(name="long")
    async def long() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise

    @step(name="more")
    async def more() -> None:
        await asyncio.sleep(0)

    @agent(name="cancelling")
    async def flow() -> None:
        try:
            await long()
            await more()
        except TaskCancelled:
            me = asyncio.current_task()
            assert me is not None
            counts.append(me.cancelling())
            await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE):
                await more()
            counts.append(me.cancelling())
            raise

    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        assert began.wait(PATIENCE)
        task.cancel()
        assert not cancelled(task).cut
    assert counts == [0, 0]


@BOTH
def test_a_cancel_that_comes_to_be_known_by_the_append_of_another_branch_reaches_the_bodies_that_run(
    memory: Store, notes: Notes, colour: str
) -> None:
    """The branch's own append meets a conflict and reads the cancel: no beat sees a head that is new."""
    pause = threading.Event()
    with AgentSystem(memory) as system, AgentSystem(memory, run=False) as client:

        @step(name="long")
        def long() -> None:
            notes.ran.append("long")
            while True:
                heartbeat()
                pause.wait(0.01)

        def call_off() -> None:
            wait_for(lambda: "long" in notes.ran)
            client.task("t").cancel()  # of another process: nobody here is told

        notes.does["cancel"] = call_off

        async def code(hands: Hands) -> None:
            await hands.gather(lambda: hands.do(long), lambda: hands.do(notes.note, "cancel"))

        task = system.spawn(made(colour, code), id="t")
        assert not cancelled(task).cut
    assert "1/1/1" in delivered(memory)


# ------------------------------------------------------------------ the grace


@BOTH
def test_a_body_that_blocks_for_ever_is_cut_when_the_grace_is_over_and_all_goes_on_without_it(
    disk: Store, notes: Notes, colour: str, door: threading.Event
) -> None:
    notes.does["stuck"] = lambda: door.wait(PATIENCE) and "late"
    clock, ended = FakeClock(), threading.Event()

    async def code(hands: Hands) -> None:
        await hands.do(notes.book, "first")
        try:
            await hands.do(notes.book, "stuck")
        finally:
            ended.set()

    async def other(hands: Hands) -> str:
        return str(await hands.do(notes.note, "other"))

    with AgentSystem(disk, clock=clock, max_active=1) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: "stuck" in notes.ran)
        task.cancel("enough", grace=5)
        second = system.spawn(made(colour, other, name="other"))
        clock.advance(4.9)
        assert task.status() == "running"
        assert notes.count("other") == 0
        clock.advance(0.2)
        error = cancelled(task)
        assert second.result(PATIENCE) == "other", "its place is free"
        before = task.events()
        door.set()
        assert ended.wait(PATIENCE)
        assert system.spawn(made(colour, other, name="other")).result(PATIENCE) == "other"
        assert task.events() == before, "the late body writes nothing"
    assert (error.cut, error.doubts) == (True, ["2"])
    assert [note for note in notes.ran if note != "other"] == ["first", "stuck", "undo stuck", "undo first"]
    (concluded,) = of(before, Concluded)
    assert concluded.doubts == ["2"]
    assert len(of(before, Activated)) == 2, "undos run in another activation"


@BOTH
@pytest.mark.parametrize("what", ["a body", "a sleep", "a signal", "its own code"])
def test_clean_up_that_outlasts_the_grace_is_cut(
    memory: Store, notes: Notes, colour: str, what: str, door: threading.Event
) -> None:
    notes.does["stuck"] = lambda: door.wait(PATIENCE)
    clock = FakeClock()

    async def code(hands: Hands) -> None:
        try:
            await hands.receive("never")
        except TaskCancelled:
            await hands.do(notes.note, "tidy")
            if what == "a body":
                await hands.do(notes.note, "stuck")
            elif what == "a sleep":
                await hands.sleep(DAY)
            elif what == "a signal":
                await hands.receive("never either")
            elif hands.awaits:
                await asyncio.Event().wait()
            else:
                door.wait(PATIENCE)
            notes.ran.append("never")
            raise

    with AgentSystem(memory, clock=clock) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: bool(task.describe().waits))
        clock.advance(60)
        task.cancel(grace=5)
        wait_for(lambda: kinds(memory).count("StepSucceeded") == 1)
        wait_for(lambda: what == "its own code" or len(kinds(memory)) > kinds(memory).index("StepSucceeded") + 1)
        clock.advance(4.5)
        assert task.status() == "running"
        clock.advance(0.6)
        error = cancelled(task)
    assert error.cut
    assert error.doubts == (["3"] if what == "a body" else [])
    assert "never" not in notes.ran


@BOTH
def test_clean_up_waits_within_the_grace(memory: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> None:
        try:
            await hands.receive("never")
        except TaskCancelled:
            await hands.sleep(8)
            notes.ran.append(await hands.receive("tidied"))
            raise

    clock = FakeClock()
    with AgentSystem(memory, clock=clock) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel(grace=9)
        wait_for(lambda: kinds(memory).count("WaitBegan") == 2)
        clock.advance(8)
        wait_for(lambda: kinds(memory).count("WaitBegan") == 3)
        task.signal("tidied", "yes")
        assert not cancelled(task).cut
    assert notes.ran == ["yes"]


async def tidied_by_a_signal(hands: Hands, notes: Notes) -> None:
    """Clean up by a step, and a wait, which would be cut off at once if the grace were over."""
    try:
        await hands.do(notes.note, "work")
        await hands.receive("never")
    except TaskCancelled:
        await hands.do(notes.note, "tidy")
        await hands.receive("tidied")
        raise


def signal_tidied(task: Any) -> None:
    wait_for(lambda: "signal tidied" in task.describe().waits or task.status() == "cancelled")
    if task.status() != "cancelled":
        task.signal("tidied")


@BOTH
def test_the_grace_of_the_clean_up_begins_when_it_begins(disk: Store, notes: Notes, colour: str) -> None:
    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:

        def work() -> None:
            system.task("t").cancel(grace=5)
            clock.advance(4)

        notes.does["work"] = work
        notes.does["tidy"] = lambda: clock.advance(4)
        task = system.spawn(made(colour, lambda hands: tidied_by_a_signal(hands, notes)), id="t")
        signal_tidied(task)
        assert not cancelled(task).cut
    assert notes.ran == ["work", "tidy"]


@BOTH
def test_the_grace_begins_anew_in_a_new_process(disk: Store, notes: Notes, colour: str) -> None:
    clock, plan = FakeClock(), CrashPlan(None)
    flow = made(colour, lambda hands: tidied_by_a_signal(hands, notes))
    life = CrashingStore(disk, plan)

    def dies() -> None:
        clock.advance(4)
        plan.die_now("killed")

    notes.does["tidy"] = dies
    with suppress(BaseException), AgentSystem(life, clock=clock) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel(grace=5)
        task.result(PATIENCE)
    life.close()
    assert plan.dead
    notes.does["tidy"] = lambda: clock.advance(4)
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flow, id="t")
        signal_tidied(task)
        assert not cancelled(task).cut
    assert notes.ran == ["work", "tidy", "tidy"]
    assert delivered(disk) == ["2"]


def test_a_clean_up_that_waits_does_not_spin(memory: Store, notes: Notes) -> None:
    looks = list[int]()

    class Counting(FakeClock):
        def moment(self) -> Any:
            looks.append(1)
            return super().moment()

    async def code(hands: Hands) -> None:
        try:
            await hands.receive("never")
        except TaskCancelled:
            await hands.sleep(60)
            raise

    clock = Counting()
    with AgentSystem(memory, clock=clock) as system:
        task = system.spawn(made("sync", code), id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel(grace=DAY)
        wait_for(lambda: kinds(memory).count("WaitBegan") == 2)
        looks.clear()
        threading.Event().wait(0.5)
        assert len(looks) < 100
        clock.advance(60)
        cancelled(task)


# ------------------------------------------------------------------ clean-up that goes wrong


@BOTH
def test_a_bug_in_the_clean_up_is_a_strike_and_the_cancel_is_not_delivered_anew(
    memory: Store, notes: Notes, colour: str
) -> None:
    bugs = [ValueError("first")]

    async def code(hands: Hands) -> None:
        try:
            await hands.receive("never")
        except TaskCancelled:
            await hands.do(notes.note, "tidy")
            if bugs:
                raise bugs.pop() from None
            raise

    with AgentSystem(memory) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel()
        assert not cancelled(task).cut
    assert notes.ran == ["tidy"]
    assert len(of(events_of(memory), Restarted)) == 1
    assert delivered(memory) == ["1"]


@BOTH
def test_a_clean_up_that_crashes_again_and_again_holds_the_task_and_a_second_cancel_ends_it(
    memory: Store, notes: Notes, colour: str
) -> None:
    async def code(hands: Hands) -> None:
        await hands.do(notes.book, "trip")
        try:
            await hands.receive("never")
        except TaskCancelled:
            raise ValueError("a bug") from None

    with AgentSystem(memory, strikes=2) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel("first")
        wait_for(lambda: task.status() == "held")
        answer = task.cancel("second")
        assert answer.accepted
        assert answer.cut
        assert answer.undos == ("undo",)
        error = cancelled(task)
    assert (error.reason, error.cut) == ("first", True)
    assert notes.ran == ["trip", "undo trip"]


@BOTH
def test_a_cancel_is_delivered_at_once_to_a_task_that_rests_after_a_crash(
    memory: Store, notes: Notes, colour: str
) -> None:
    runs = list[int]()

    async def code(hands: Hands) -> None:
        runs.append(1)
        if len(runs) < 3:
            raise ValueError("a bug")
        await hands.do(notes.note, "x")

    clock = FakeClock()
    with AgentSystem(memory, clock=clock, strikes=10) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: kinds(memory).count("Restarted") == 1)
        task.cancel()
        wait_for(lambda: kinds(memory).count("Restarted") == 2)
        clock.advance(60)
        cancelled(task)
    assert notes.ran == []


# ------------------------------------------------------------------ nobody runs it


@BOTH
def test_a_task_that_has_never_run_ends_at_once_without_a_worker(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> None:
        await hands.do(notes.note, "never")

    flow = made(colour, code)
    with AgentSystem(disk, run=False) as client:
        task = client.spawn(flow, id="t")
        answer = task.cancel("not wanted", by="ann")
        assert str(answer) == "task t: cancelled"
        assert (answer.accepted, answer.status, answer.cut, answer.doubts) == (True, "cancelled", False, ())
        assert cancelled(task).by == "ann"
    with AgentSystem(disk) as system:
        cancelled(system.spawn(flow, id="t"))
    assert notes.ran == []
    assert kinds(disk) == ["Created", "CancelRequested", "Cancelled"]


@BOTH
def test_a_cancel_of_a_task_held_in_doubt_ends_it_at_once_and_says_what_is_not_known(
    disk: Store, notes: Notes, colour: str
) -> None:
    @step(name="pay", on_doubt="hold")
    def pay() -> None:
        notes.ran.append("pay")

    async def code(hands: Hands) -> None:
        await hands.do(pay)

    flow = made(colour, spotless(code, notes, "tidy"))
    die(disk, flow)
    held(disk, flow)
    with AgentSystem(disk, run=False) as client:
        task = client.task("t")
        answer = task.cancel("enough")
        assert (answer.accepted, answer.status, answer.cut, answer.doubts) == (True, "cancelled", True, ("1",))
        assert str(answer) == "task t: cancelled; the agent's own clean-up is not run; in doubt: step 1"
        error = cancelled(task)
        assert (error.cut, error.doubts) == (True, ["1"])
        assert "in doubt: step 1" in str(error)
    assert notes.ran == ["pay"]


@BOTH
@pytest.mark.parametrize("hold", ["in doubt", "differs"])
def test_a_cancel_of_a_held_task_leaves_its_undos_to_a_worker_that_does_not_run_the_agent(
    disk: Store, notes: Notes, colour: str, hold: str
) -> None:
    @step(name="pay", on_doubt="hold")
    def pay() -> None:
        notes.ran.append("pay")

    async def code(hands: Hands) -> None:
        notes.ran.append("agent")
        await hands.do(notes.book, "trip")
        await hands.do(pay)

    async def changed(hands: Hands) -> None:
        notes.ran.append("agent")
        await hands.do(notes.note, "something else")

    flow = made(colour, code)
    die(disk, flow, at="body.after", nth=2)
    if hold == "differs":
        flow = made(colour, changed)
    assert held(disk, flow).reason == hold
    notes.ran.clear()
    with AgentSystem(disk, run=False) as client:
        task = client.task("t")
        answer = task.cancel("enough")
        assert (answer.status, answer.cut, answer.undos) == ("queued", True, ("undo",))
        assert "to be undone by undo" in str(answer)
        assert not task.cancel().accepted
        assert isinstance(task.events()[-1], Concluded)
    with AgentSystem(disk) as system:
        assert cancelled(system.spawn(flow, id="t")).cut
    assert notes.ran == ["undo trip"]


# ------------------------------------------------------------------ again


@BOTH
@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
def test_a_cancel_after_the_ending_is_told_so_and_writes_nothing(
    disk: Store, notes: Notes, colour: str, ending: str
) -> None:
    async def code(hands: Hands) -> None:
        await hands.do(notes.note, "it")
        if ending == "cancelled":
            await hands.receive("never")

    if ending == "failed":
        notes.does["it"] = lambda: 1 // 0
    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code), id="t")
        if ending == "cancelled":
            wait_for(lambda: bool(task.describe().waits))
            assert task.cancel("first").accepted
        with suppress(TaskFailedError, BaseException):
            task.result(PATIENCE)
        before = task.events()
        again = task.cancel("again")
        assert (again.accepted, again.status) == (False, ending)
        assert str(again) == f"task t: already {ending}"
        assert task.events() == before


@BOTH
def test_a_second_cancel_while_it_cleans_up_is_told_so_and_writes_nothing(
    disk: Store, notes: Notes, colour: str, door: threading.Event
) -> None:
    notes.does["tidy"] = lambda: door.wait(PATIENCE) and None

    async def code(hands: Hands) -> None:
        await hands.receive("never")

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t")
        wait_for(lambda: bool(task.describe().waits))
        assert task.cancel("first").accepted
        wait_for(lambda: "tidy" in notes.ran)
        before = task.events()
        again = task.cancel("second")
        assert (again.accepted, again.status) == (False, "running")
        assert str(again) == "task t: already cancelled, and cleaning up"
        assert task.events() == before
        door.set()
        assert cancelled(task).reason == "first"


@BOTH
def test_a_cancel_of_a_task_whose_ending_is_decided_is_told_so_and_writes_nothing(
    disk: Store, notes: Notes, colour: str, door: threading.Event
) -> None:
    notes.does["bad"] = lambda: 1 // 0
    notes.does["undo trip"] = lambda: door.wait(PATIENCE) and None

    async def code(hands: Hands) -> None:
        await hands.do(notes.book, "trip")
        await hands.do(notes.note, "bad")

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: "undo trip" in notes.ran)
        before = task.events()
        answer = task.cancel()
        assert (answer.accepted, answer.ends) == (False, "failed")
        assert str(answer) == "task t: already failed, and does what it owes"
        assert task.events() == before
        door.set()
        with pytest.raises(TaskFailedError):
            task.result(PATIENCE)


@BOTH
def test_of_two_who_cancel_at_once_one_is_told_that_it_was_first(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> None:
        await hands.receive("never")

    flow = made(colour, code)
    for number in range(5):
        with AgentSystem(disk, run=False) as ann, AgentSystem(disk, run=False) as bob:
            ann.spawn(flow, id=f"t{number}")
            start, answers = threading.Barrier(2), list[bool]()

            def cancel(client: AgentSystem, number: int = number, start: Any = start, answers: Any = answers) -> None:
                task = client.task(f"t{number}")
                start.wait()
                answers.append(task.cancel().accepted)

            threads = [threading.Thread(target=cancel, args=[client]) for client in (ann, bob)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
            assert sorted(answers) == [False, True]
            assert len(of(events_of(disk, f"t{number}"), CancelRequested)) == 1


class Interloper(CrashPlan):
    """Does something once, just before or after the first append of a kind."""

    def __init__(self, point: str, topic: str, act: Callable[[], object]) -> None:
        super().__init__(None)
        self._at, self._topic, self._act = point, topic, act

    def reach(self, point: str, **facts: Any) -> None:
        if point == self._at and self._topic in facts.get("topics", ()):
            self._topic = ""
            elsewhere(self._act)


@BOTH
@pytest.mark.parametrize("point", ["append.before", "append.after"])
@pytest.mark.parametrize("topic", ["task.completed", "task.failed", "task.cancelled", "step.started", "wait.began"])
def test_a_cancel_that_races_with_an_append_leaves_one_ending(
    disk: Store, notes: Notes, colour: str, point: str, topic: str
) -> None:
    answers = list[Any]()

    async def code(hands: Hands) -> str:
        await hands.do(notes.note, "one")
        await hands.sleep(0)
        await hands.do(notes.note, "two")
        return "done"

    if topic == "task.failed":
        notes.does["two"] = lambda: 1 // 0
    with AgentSystem(disk, run=False) as client:
        life = CrashingStore(disk, Interloper(point, topic, lambda: answers.append(client.task("t").cancel("race"))))
        with AgentSystem(life) as system:
            task = system.spawn(made(colour, code), id="t")
            if topic == "task.cancelled":
                client.task("t").cancel("first")
            with suppress(BaseException):
                task.result(PATIENCE)
            status = task.status()
        life.close()
    found = events_of(disk)
    assert len(of(found, ENDINGS)) == 1  # type: ignore[arg-type]
    assert isinstance(found[-1], ENDINGS)
    if answers and answers[0].accepted and topic in ("step.started", "wait.began"):
        assert status == "cancelled"


@BOTH
def test_a_cancel_that_is_first_in_the_log_keeps_the_body_from_running(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> None:
        await hands.do(notes.note, "never")

    with AgentSystem(disk, run=False) as client:
        life = CrashingStore(disk, Interloper("append.before", "step.started", lambda: client.task("t").cancel()))
        with AgentSystem(life) as system:
            cancelled(system.spawn(made(colour, code), id="t"))
        life.close()
    assert notes.ran == []
    assert (started(disk), delivered(disk)) == ([], ["1"])


# ------------------------------------------------------------------ what is told


@BOTH
def test_who_asks_is_told_of_a_cancelled_task(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> None:
        await hands.receive("never")

    notices, told = list[Notice](), threading.Event()
    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code), id="t")
        task.on_end(lambda notice: [notices.append(notice), told.set()])
        wait_for(lambda: bool(task.describe().waits))
        task.cancel("out of money", by="ann")
        error = cancelled(task)
        again = pickle.loads(pickle.dumps(error))
        facts = ("reason", "by", "doubts", "cut", "task_id")
        assert [getattr(again, fact) for fact in facts] == ["out of money", "ann", [], False, "t"]
        assert str(again) == str(error) == "task t was cancelled by ann: out of money"
        assert [one.id for one in system.tasks(status="cancelled")] == ["t"]
        assert told.wait(PATIENCE)
        view = task.describe()
    assert [(one.kind, one.status, one.reason) for one in notices] == [("ended", "cancelled", "out of money")]
    assert (view.status, view.cancel) == ("cancelled", "out of money")


# ------------------------------------------------------------------ replay


@BOTH
def test_the_history_of_a_cancelled_task_replays(disk: Store, notes: Notes, colour: str, tmp_path: Path) -> None:
    calls = list[str]()

    async def code(hands: Hands) -> None:
        await hands.do(notes.note, "before")
        try:
            await hands.receive("never")
        except TaskCancelled as error:
            calls.append(f"{error.by}: {error.reason}")
            await hands.do(notes.note, "tidy")
            raise

    async def other(hands: Hands) -> None:
        await hands.do(notes.note, "before")
        await hands.receive("never")

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel("why", by="ann")
        cancelled(task)
        save_history(task, tmp_path / "t.json")
    calls.clear()
    replay_history(made(colour, code), tmp_path / "t.json")
    assert calls == ["ann: why"]
    with pytest.raises(AssertionError, match="code differs at position 3"):
        replay_history(made(colour, other), tmp_path / "t.json")
    assert notes.ran == ["before", "tidy"]


@BOTH
def test_a_task_held_for_its_code_in_its_clean_up_goes_on_when_the_code_fits(
    disk: Store, notes: Notes, colour: str
) -> None:
    async def code(hands: Hands) -> None:
        await hands.receive("never")

    async def changed(hands: Hands) -> None:
        await hands.do(notes.note, "else")

    notes.does["tidy"] = lambda: 1 // 0
    good = made(colour, spotless(code, notes, "one", "two"))
    life = CrashingStore(disk, plan := CrashPlan(None))
    notes.does["two"] = lambda: plan.die_now("killed")
    with suppress(BaseException), AgentSystem(life) as system:
        task = system.spawn(good, id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel()
        task.result(PATIENCE)
    life.close()
    other = made(colour, changed)
    with pytest.raises(TaskHeldError), AgentSystem(disk) as system:
        system.spawn(other, id="t").result(PATIENCE)
    del notes.does["two"]
    good = made(colour, spotless(code, notes, "one", "two"))
    with AgentSystem(disk) as system:
        assert not cancelled(system.spawn(good, id="t")).cut
    assert notes.ran == ["one", "two", "two"]
    assert of(events_of(disk), Held)
    assert delivered(disk) == ["1"]


# ------------------------------------------------------------------ crashes


def once_it_waits(task: Any) -> None:
    """Call a task off as soon as it waits, in each of its lives, as a client that tries again."""
    wait_for(lambda: (view := task.describe()).waits != "" or view.cancel is not None)
    task.cancel("why", by="ann")


def once_it_is_suspended(task: Any) -> None:
    """Call a task off as soon as it is unwound."""
    wait_for(lambda: task.status() in ("waiting", "cancelled") or task.describe().cancel is not None)
    task.cancel("why", by="ann")


@pytest.mark.parametrize(
    ("call_off", "colour"),
    [(once_it_waits, "sync"), (once_it_waits, "async"), (once_it_is_suspended, "sync")],
    ids=["in place, sync", "in place, async", "suspended"],
)
def test_a_cancelled_task_cleans_up_wherever_its_process_dies(
    notes: Notes, call_off: Callable[[Any], None], colour: str
) -> None:
    async def code(hands: Hands) -> None:
        await hands.receive("never")

    flow = made(colour, spotless(code, notes, "tidy"))
    if call_off is once_it_waits:
        runs = [*every_crash_point(flow, meanwhile=call_off)]
        assert len(runs) > 10
    else:  # with a beat and a linger in each, every other one
        runs = [run_through_crashes(flow, plan=[nth], meanwhile=call_off) for nth in range(1, 24, 2)]
    for run in runs:
        check_cancelled(run)


def test_a_cancelled_task_cleans_up_wherever_its_process_dies_on_sqlite(notes: Notes, tmp_path: Path) -> None:
    async def code(hands: Hands) -> None:
        await hands.receive("never")

    flow = made("sync", spotless(code, notes, "tidy"))
    for nth in range(1, 19):
        url = f"sqlite:///{tmp_path}/{nth}.db"
        check_cancelled(run_through_crashes(flow, plan=[nth], store=url, meanwhile=once_it_waits))


def check_cancelled(run: Run) -> None:
    run.check()
    assert run.status == "cancelled", run.crashes
    assert [event.path for event in of(run.events, CancelDelivered)] == ["1"]
    assert len(of(run.events, Cancelled)) == 1
    assert [event.name for event in of(run.events, StepSucceeded)] == ["note"]


@BOTH
def test_a_system_that_closes_during_clean_up_leaves_it_to_the_next(disk: Store, notes: Notes, colour: str) -> None:
    began, go = threading.Event(), threading.Event()
    notes.does["one"] = lambda: [began.set(), go.wait(PATIENCE), None][2]

    async def code(hands: Hands) -> None:
        await hands.receive("never")

    flow = made(colour, spotless(code, notes, "one", "two"))
    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: bool(task.describe().waits))
        task.cancel()
        assert began.wait(PATIENCE)
        threading.Timer(0.1, go.set).start()
    assert notes.ran == ["one"]
    assert isinstance(events_of(disk)[-1], Passivated)
    with AgentSystem(disk) as system:
        assert not cancelled(system.spawn(flow, id="t")).cut
    assert notes.ran == ["one", "two"]
    assert [event.name for event in of(events_of(disk), StepStarted)] == ["note", "note"]


@pytest.mark.parametrize("state", ["waiting", "not begun"])
@pytest.mark.parametrize("text", ["caf\udce9", "\ud83d", "a\0b\u202e", "x\ny"])
def test_a_cancel_bears_any_text_as_its_reason_and_as_who_it_is_by(disk: Store, text: str, state: str) -> None:
    @agent(name="cancelling: of any text")
    def flow() -> None:
        sleep(DAY)

    with AgentSystem(disk, run=state == "waiting") as system:
        task = system.spawn(flow, id="t")
        if state == "waiting":
            wait_for(lambda: task.status() == "waiting")
        assert task.cancel(text, by=text).accepted
        error = cancelled(task)
        assert (error.reason, error.by) == (text, text)
        assert task.describe().status == "cancelled"


def test_what_is_no_text_or_too_long_is_refused_and_changes_nothing(disk: Store) -> None:
    @agent(name="cancelling: of any text")
    def flow() -> None:
        sleep(DAY)

    with AgentSystem(disk, run=False) as client:
        task = client.spawn(flow, id="t")
        given: Any
        for given in (5, b"x", None):
            with pytest.raises(TypeError, match="a reason is a text"):
                task.cancel(given)
        for given in (5, b"x"):
            with pytest.raises(TypeError, match="the name of who decides is a text"):
                task.cancel(by=given)
        with pytest.raises(ValueError, match="a reason has at most 4,000 characters, not 4,001"):
            task.cancel("x" * 4001)
        assert (task.status(), len(task.events())) == ("queued", 1)
