"""Undos: registered with what they undo, owed on failure and on cancel, run in reverse, each once, through crashes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import (
    AgentSystem,
    DefinitionError,
    Doubt,
    FailTask,
    Happened,
    NotHappened,
    OutsideTaskError,
    StepError,
    TaskCancelled,
    TaskCancelledError,
    TaskError,
    TaskFailedError,
    TaskHeldError,
    UnstorableValueError,
    agent,
    compensate,
    open_store,
    step,
    step_info,
)
from actors.context import context
from actors.testing import (
    CrashPlan,
    FakeClock,
    SimulatedCrash,
    crash_plans,
    every_crash_point,
    replay_history,
    save_history,
)
from domain.events import (
    Activated,
    CancelDelivered,
    Completed,
    Concluded,
    Failed,
    Held,
    Passivated,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
    UndoRegistered,
)
from stores import Store
from stores.crash import CrashingStore
from tests.called_off import (
    BOTH,
    COLOURS,
    DAY,
    ENDINGS,
    Hands,
    Notes,
    cancelled,
    elsewhere,
    events_of,
    made,
    of,
)
from tests.lives import PATIENCE, die, kinds, wait_for

LIMIT = 0.5
"""Seconds within which a body has said how to undo it, also on a machine that is busy; they are real ones."""


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def door() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


class Appends(CrashPlan):
    """Keeps the topics of each append to a log."""

    def __init__(self) -> None:
        super().__init__(None)
        self.topics: list[tuple[str, ...]] = []

    def reach(self, point: str, **facts: Any) -> None:
        if point == "append.after":
            self.topics.append(facts["topics"])

    def with_(self, topic: str) -> list[tuple[str, ...]]:
        return [topics for topics in self.topics if topic in topics]


def failing(disk: Store, flow: Any, **options: Any) -> TaskFailedError:
    with AgentSystem(disk, **options) as system, pytest.raises(TaskFailedError) as caught:
        system.spawn(flow, id="t").result(PATIENCE)
    return caught.value


def undone(disk: Store) -> list[tuple[str, str]]:
    """List the undos that are finished: where, and what."""
    return [(event.path, event.name) for event in of(events_of(disk), StepSucceeded) if event.path.startswith("undo/")]


async def book_and_fail(hands: Hands, notes: Notes, *values: Any) -> None:
    for value in values:
        await hands.do(notes.book, value)
    raise FailTask("changed our minds")


# ------------------------------------------------------------------ how it is registered


@BOTH
def test_an_undo_stands_in_the_append_of_its_steps_success(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> None:
        await hands.do(notes.book, "trip")
        await hands.do(notes.book, "room")

    appends = Appends()
    life = CrashingStore(disk, appends)
    with AgentSystem(life) as system:
        system.spawn(made(colour, code), id="t").result(PATIENCE)
    life.close()
    assert appends.with_("undo.registered") == [("step.succeeded", "undo.registered")] * 2
    found = events_of(disk)
    for registered in of(found, UndoRegistered):
        succeeded = found[registered.originator_version - 2]
        assert isinstance(succeeded, StepSucceeded)
        assert (succeeded.path, registered.name) == (registered.path, "undo")


@BOTH
def test_an_undo_of_the_agents_own_stands_in_the_append_of_the_next_steps_start(
    disk: Store, notes: Notes, colour: str
) -> None:
    async def code(hands: Hands) -> None:
        compensate(notes.undo, "the transfer")
        await hands.do(notes.note, "transfer")

    appends = Appends()
    life = CrashingStore(disk, appends)
    with AgentSystem(life) as system:
        task = system.spawn(made(colour, code), id="t")
        task.result(PATIENCE)
        views = task.describe().steps
    life.close()
    assert ("step.succeeded", "step.started") in appends.topics
    assert [(view.path, view.kind, view.name) for view in views] == [("1", "undo", "undo"), ("2", "step", "note")]


@BOTH
def test_an_undo_that_is_registered_right_before_the_end_is_owed(disk: Store, notes: Notes, colour: str) -> None:
    async def code(_hands: Hands) -> None:
        compensate(notes.undo, "last")
        raise FailTask("now")

    failing(disk, made(colour, code))
    assert notes.ran == ["undo last"]


@BOTH
def test_a_retried_step_registers_its_undo_once(disk: Store, notes: Notes, colour: str) -> None:
    @step(name="book", retries=3, backoff=0, jitter=0)
    def book() -> str:
        compensate(notes.undo, f"attempt {step_info().attempt}")
        if step_info().attempt < 3:
            raise ConnectionError("no answer")
        return "booked"

    async def code(hands: Hands) -> None:
        await hands.do(book)
        raise FailTask("no")

    failing(disk, made(colour, code))
    assert notes.ran == ["undo attempt 3"]
    assert len(of(events_of(disk), UndoRegistered)) == 1


@BOTH
def test_several_undos_of_one_body_are_all_owed_the_last_first(disk: Store, notes: Notes, colour: str) -> None:
    @step(name="two")
    def two() -> None:
        compensate(notes.undo, 1)
        compensate(notes.undo, 2)
        compensate(notes.undo, 2)

    async def code(hands: Hands) -> None:
        await hands.do(two)
        raise FailTask("no")

    failing(disk, made(colour, code))
    assert notes.ran == ["undo 2", "undo 2", "undo 1"]


def test_what_is_no_undo_is_refused(disk: Store, notes: Notes) -> None:
    caught = list[BaseException]()

    def tries() -> None:
        for args in ((print,), (notes.undo,), (notes.undo, 1, 2), (notes.undo, threading.Lock())):
            try:
                compensate(*args)  # type: ignore[arg-type]
            except Exception as error:
                caught.append(error)

    notes.does["tries"] = tries

    async def code(hands: Hands) -> None:
        await hands.do(notes.note, "tries")
        tries()
        raise FailTask("no")

    with pytest.raises(OutsideTaskError):
        compensate(notes.undo, 1)
    failing(disk, made("sync", code))
    kinds_of = [DefinitionError, TypeError, TypeError, UnstorableValueError]
    assert [type(error) for error in caught] == kinds_of * 2
    assert notes.ran == ["tries"]


# ------------------------------------------------------------------ when it runs


@BOTH
def test_undos_run_in_reverse_order_each_a_recorded_step_in_a_scope_of_its_own(
    disk: Store, notes: Notes, colour: str
) -> None:
    async def code(hands: Hands) -> None:
        await hands.do(notes.book, 1)
        compensate(notes.undo, 2)
        await book_and_fail(hands, notes, 3, 4)

    error = failing(disk, made(colour, code))
    assert "changed our minds" in str(error)
    assert notes.ran == [1, 3, 4, "undo 4", "undo 3", "undo 2", "undo 1"]
    assert undone(disk) == [(f"undo/{number}", "undo") for number in range(1, 5)]
    found = events_of(disk)
    assert [event.path for event in of(found, StepStarted)][-4:] == ["undo/1", "undo/2", "undo/3", "undo/4"]
    assert isinstance(found[-1], Failed)


@BOTH
def test_no_undo_runs_in_a_task_that_completes(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> str:
        await hands.do(notes.book, 1)
        with suppress(StepError):
            await hands.do(notes.book, "bad")
        return "done"

    notes.does["bad"] = lambda: 1 // 0
    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code), id="t")
        assert task.result(PATIENCE) == "done"
        assert task.describe().undos == ()
    assert notes.ran == [1, "bad"]
    assert not of(events_of(disk), Concluded)


@BOTH
@pytest.mark.parametrize("how", ["FailTask", "StepError", "cancel"])
def test_undos_run_however_a_task_does_not_complete(disk: Store, notes: Notes, colour: str, how: str) -> None:
    notes.does["bad"] = lambda: 1 // 0

    async def code(hands: Hands) -> None:
        await hands.do(notes.book, 1)
        if how == "StepError":
            await hands.do(notes.book, "bad")
        elif how == "cancel":
            try:
                await hands.receive("never")
            except TaskCancelled:
                await hands.do(notes.note, "tidy")
                await hands.do(notes.book, "in clean-up")
                raise
        raise FailTask("no")

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code), id="t")
        if how == "cancel":
            wait_for(lambda: bool(task.describe().waits))
            task.cancel()
        with pytest.raises((TaskFailedError, TaskCancelledError)):
            task.result(PATIENCE)
    before = {"FailTask": [1], "StepError": [1, "bad"], "cancel": [1, "tidy", "in clean-up", "undo in clean-up"]}[how]
    assert notes.ran == [*before, "undo 1"]


@BOTH
@pytest.mark.parametrize("way_out", ["fail", "value", "cancel"])
def test_a_failure_that_holds_owes_nothing_before_it_ends(disk: Store, notes: Notes, colour: str, way_out: str) -> None:
    notes.does["bad"] = lambda: 1 // 0

    async def code(hands: Hands) -> str:
        await hands.do(notes.book, 1)
        await hands.do(notes.book, "bad")
        return "done"

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code, on_failure="hold"), id="t")
        with pytest.raises(TaskHeldError):
            task.result(PATIENCE)
        assert notes.ran == [1, "bad"]
        assert task.describe().undos == ("undo(1)",)
        if way_out == "cancel":
            task.cancel()
            assert cancelled(task).cut
        elif way_out == "fail":
            task.resolve("2", fail=True, by="ann")
            with pytest.raises(TaskFailedError):
                task.result(PATIENCE)
        else:
            task.resolve("2", value="by hand", by="ann")
            assert task.result(PATIENCE) == "done"
    assert notes.ran == [1, "bad", *([] if way_out == "value" else ["undo 1"])]


# ------------------------------------------------------------------ of a step in doubt


@BOTH
def test_the_undo_of_a_step_whose_process_died_is_owed_where_the_agent_said_so_before(
    disk: Store, notes: Notes, colour: str
) -> None:
    async def code(hands: Hands) -> None:
        compensate(notes.undo, "transfer")
        await hands.do(notes.note, "transfer")

    flow = made(colour, code)
    die(disk, flow, at="body.after")
    with AgentSystem(disk, run=False) as client:
        client.task("t").cancel()
    with AgentSystem(disk) as system:
        error = cancelled(system.spawn(flow, id="t"))
    assert error.doubts == ["2"]
    assert notes.ran == ["transfer", "undo transfer"]


@BOTH
def test_the_undo_of_a_body_that_was_given_up_at_its_time_limit_is_owed_once(
    disk: Store, notes: Notes, colour: str, door: threading.Event
) -> None:
    @step(name="slow", timeout=LIMIT, retries=1, backoff=0, jitter=0)
    def slow() -> None:
        compensate(notes.undo, "slow")
        notes.ran.append("slow")
        door.wait(PATIENCE)

    async def code(hands: Hands) -> None:
        await hands.do(slow)

    failing(disk, made(colour, code))
    assert notes.ran == ["slow", "slow", "undo slow"]


@BOTH
@pytest.mark.parametrize("ending", ["success", "failure"])
def test_an_attempt_after_one_that_was_given_up_speaks_for_both(
    disk: Store, notes: Notes, colour: str, ending: str, door: threading.Event
) -> None:
    @step(name="slow", timeout=LIMIT, retries=1, backoff=0, jitter=0)
    def slow() -> None:
        compensate(notes.undo, f"attempt {step_info().attempt}")
        if step_info().attempt == 1:
            door.wait(PATIENCE)
        elif ending == "failure":
            raise ConnectionError("no answer")

    async def code(hands: Hands) -> None:
        await hands.do(slow)
        raise FailTask("no")

    failing(disk, made(colour, code))
    assert notes.ran == ["undo attempt 2" if ending == "success" else "undo attempt 1"]


@BOTH
@pytest.mark.parametrize("says", ["nothing", "its own"])
def test_a_doubt_that_is_settled_as_happened_keeps_the_undo(
    disk: Store, notes: Notes, colour: str, says: str, door: threading.Event
) -> None:
    def ask(_doubt: Doubt) -> Happened:
        if says == "its own":
            compensate(notes.undo, "as asked")
        return Happened("yes")

    @step(name="slow", timeout=LIMIT, on_doubt=ask)
    def slow() -> None:
        compensate(notes.undo, "as begun")
        door.wait(PATIENCE)

    async def code(hands: Hands) -> None:
        assert await hands.do(slow) == "yes"
        raise FailTask("no")

    failing(disk, made(colour, code))
    assert notes.ran == ["undo as asked" if says == "its own" else "undo as begun"]


@BOTH
def test_a_body_that_has_not_happened_after_all_is_run_again_and_undone_once(
    disk: Store, notes: Notes, colour: str
) -> None:
    @step(name="pay", on_doubt=lambda _doubt: NotHappened())
    def pay() -> None:
        compensate(notes.undo, "pay")
        notes.ran.append("pay")

    async def code(hands: Hands) -> None:
        await hands.do(pay)
        raise FailTask("no")

    flow = made(colour, code)
    die(disk, flow, at="body.after")
    failing(disk, flow)
    assert notes.ran == ["pay", "pay", "undo pay"]


@BOTH
@pytest.mark.parametrize("then", ["cancel", "restart"])
def test_the_undo_of_a_body_that_was_cut_off_when_its_worker_closed_is_owed(
    disk: Store, notes: Notes, colour: str, then: str, door: threading.Event
) -> None:
    @step(name="pay", on_doubt="hold" if then == "cancel" else "rerun")
    def pay() -> None:
        compensate(notes.undo, "pay")
        notes.ran.append("pay")
        if notes.count("pay") == 1:
            door.wait(PATIENCE)

    async def code(hands: Hands) -> None:
        await hands.do(pay)
        raise FailTask("no")

    flow = made(colour, code)
    with AgentSystem(disk, grace=0.1) as system:
        system.spawn(flow, id="t")
        wait_for(lambda: "pay" in notes.ran)
    (passivated,) = of(events_of(disk), Passivated)
    assert passivated.cut_off == ["1"]
    assert len(of(events_of(disk), UndoRegistered)) == 1
    if then == "restart":
        failing(disk, flow)
        assert notes.ran == ["pay", "pay", "undo pay"]
        return
    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        with pytest.raises(TaskHeldError):
            task.result(PATIENCE)
        assert task.cancel().undos == ("undo",)
        assert cancelled(task).doubts == ["1"]
    assert notes.ran == ["pay", "undo pay"]


class DiesAtTheCut(CrashPlan):
    """Dies at a point of the first append that decides how a task ends."""

    def reach(self, point: str, **facts: Any) -> None:
        self.check()
        if Concluded.TOPIC in facts.get("topics", ()):
            super().reach(point, **facts)


@BOTH
@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
def test_of_a_task_that_is_cut_its_end_and_the_undo_of_its_body_are_in_the_log_together_or_not_at_all(
    disk: Store, notes: Notes, colour: str, point: str, door: threading.Event
) -> None:
    notes.does["stuck"] = lambda: door.wait(PATIENCE)
    clock, plan = FakeClock(), DiesAtTheCut(1, point)
    life = CrashingStore(disk, plan)

    async def code(hands: Hands) -> None:
        await hands.do(notes.book, "first")
        await hands.do(notes.book, "stuck")

    flow = made(colour, code)
    with AgentSystem(life, clock=clock, grace=0.01) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: "stuck" in notes.ran)
        task.cancel(grace=5)
        clock.advance(6)
        with pytest.raises(SimulatedCrash):
            task.result(PATIENCE)
    life.close()
    written = point == "append.after"
    events = events_of(disk)
    assert plan.points[-1] == point
    assert [undo.path for undo in of(events, UndoRegistered)] == (["1", "2"] if written else ["1"])
    assert [end.doubts for end in of(events, Concluded)] == ([["2"]] if written else [])
    assert kinds(disk)[-1] == ("Passivated" if written else "CancelRequested")
    with AgentSystem(disk, clock=clock) as system:
        assert cancelled(system.spawn(flow, id="t")).doubts == ["2"]
    assert notes.ran == ["first", "stuck", *(["undo stuck"] if written else []), "undo first"]
    assert len(of(events_of(disk), ENDINGS)) == 1  # type: ignore[arg-type]


# ------------------------------------------------------------------ an undo that goes wrong


@BOTH
@pytest.mark.parametrize("way_out", ["value", "rerun", "fail"])
def test_an_undo_that_fails_holds_the_task_and_a_persons_word_lets_the_rest_go_on(
    disk: Store, notes: Notes, colour: str, way_out: str
) -> None:
    notes.does["undo 2"] = lambda: 1 // 0
    flow = made(colour, lambda hands: book_and_fail(hands, notes, 1, 2, 3))
    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        with pytest.raises(TaskHeldError, match=r"failed: step undo/2 undo: .*by zero"):
            task.result(PATIENCE)
        assert task.describe().undos == ("undo(1)",)
        assert "perdure resolve t undo/2" in task.describe().why
        del notes.does["undo 2"]
        with pytest.raises(TaskError, match="undo/2"):
            task.release()
        task.resolve("undo/2", by="ann", **{way_out: "by hand" if way_out == "value" else True})
        with pytest.raises(TaskFailedError, match="changed our minds"):
            task.result(PATIENCE)
    tried = ["undo 2", "undo 2"] if way_out == "rerun" else ["undo 2"]
    assert notes.ran == [1, 2, 3, "undo 3", *tried, "undo 1"]


@BOTH
def test_a_task_held_for_an_undo_is_cancelled_with_the_ending_that_was_decided(
    disk: Store, notes: Notes, colour: str
) -> None:
    notes.does["undo 2"] = lambda: 1 // 0
    flow = made(colour, lambda hands: book_and_fail(hands, notes, 1, 2))
    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        with pytest.raises(TaskHeldError):
            task.result(PATIENCE)
        answer = task.cancel("leave it")
        assert (answer.accepted, answer.status, answer.undos) == (True, "failed", ("undo",))
        assert str(answer) == "task t: failed; not undone by undo"
        assert not task.cancel().accepted
    assert notes.ran == [1, 2, "undo 2"]
    assert len(of(events_of(disk), ENDINGS)) == 1  # type: ignore[arg-type]


@BOTH
def test_an_undo_is_tried_again_as_its_step_says(disk: Store, notes: Notes, colour: str) -> None:
    @step(name="back", retries=3, backoff=DAY, max_backoff=DAY, jitter=0)
    def back() -> None:
        notes.ran.append(step_info().attempt)
        if step_info().attempt < 3:
            raise ConnectionError("no answer")

    async def code(hands: Hands) -> None:
        await hands.do(notes.book, 1)
        compensate(back)
        raise FailTask("no")

    with AgentSystem(disk, clock=FakeClock(jump=True)) as system, pytest.raises(TaskFailedError):
        system.spawn(made(colour, code), id="t").result(PATIENCE)
    assert notes.ran == [1, 1, 2, 3, "undo 1"]


@BOTH
def test_async_undos_run_whatever_the_colour_of_the_agent(disk: Store, notes: Notes, colour: str) -> None:
    @step(name="back")
    async def back(value: int) -> None:

        await asyncio.sleep(0)
        notes.ran.append(f"back {value}")

    async def code(hands: Hands) -> None:
        compensate(back, 1)
        await hands.do(notes.book, 2)
        raise FailTask("no")

    failing(disk, made(colour, code))
    assert notes.ran == [2, "undo 2", "back 1"]


def back_of(notes: Notes, how: str) -> Any:
    """Give the step that the undos of a task name, as a deploy has it that fits."""

    @step(name=f"back, {how}")
    def back(value: int) -> None:
        notes.ran.append(f"back {value}")

    return back


@BOTH
@pytest.mark.parametrize("how", ["unknown", "other arguments"])
def test_an_undo_that_this_code_cannot_run_holds_the_task_until_a_worker_can(
    disk: Store, notes: Notes, colour: str, how: str
) -> None:
    how = f"{how} {colour} {type(disk).__name__}"
    back = back_of(notes, how) if how.startswith("other") else None

    async def code(hands: Hands) -> None:
        here = context()
        assert here is not None
        here.register_undo(f"back, {how}", [[1], {}])  # as code did that had the step
        await hands.do(notes.note, "it")
        raise FailTask("no")

    if back is not None:

        @step(name=f"back, {how}")
        def back_other(value: int, more: int) -> None:
            notes.ran.append(f"never {value} {more}")

        back = back_other
    for _ in range(2):
        with AgentSystem(disk) as system:
            task = system.spawn(made(colour, code), id="t")
            with pytest.raises(TaskHeldError, match="of what was done at 1 cannot be run") as caught:
                task.result(PATIENCE)
            assert caught.value.reason == "differs"
    assert len(of(events_of(disk), Held)) == 1, "looked at again, and nothing written"
    fits = back_of(notes, how)
    failing(disk, made(colour, code))
    assert fits is not back
    assert notes.ran == ["it", "back 1"]


@BOTH
def test_an_undo_that_kills_its_process_holds_the_task_at_the_strike_limit(
    disk: Store, notes: Notes, colour: str
) -> None:
    flow = made(colour, lambda hands: book_and_fail(hands, notes, 1, 2))
    for _ in range(3):
        life = CrashingStore(disk, plan := CrashPlan(None))
        notes.does["undo 2"] = lambda plan=plan: plan.die_now("killed")
        with suppress(BaseException), AgentSystem(life) as system:
            system.spawn(flow, id="t").result(PATIENCE)
        life.close()
    del notes.does["undo 2"]
    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        with pytest.raises(TaskHeldError) as caught:
            task.result(PATIENCE)
        assert caught.value.reason == "strikes"
        task.release()
        with pytest.raises(TaskFailedError):
            task.result(PATIENCE)
    assert notes.ran == [1, 2, *["undo 2"] * 4, "undo 1"]


# ------------------------------------------------------------------ closing


@BOTH
def test_a_system_that_closes_during_undos_leaves_the_rest_to_the_next(disk: Store, notes: Notes, colour: str) -> None:
    began, go = threading.Event(), threading.Event()
    notes.does["undo 2"] = lambda: [began.set(), go.wait(PATIENCE), None][2]
    flow = made(colour, lambda hands: book_and_fail(hands, notes, 1, 2))
    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        assert began.wait(PATIENCE)
        assert task.describe().undos == ("undo(2)", "undo(1)")
        threading.Timer(0.1, go.set).start()
    assert notes.ran == [1, 2, "undo 2"]
    assert isinstance(events_of(disk)[-1], Passivated)
    failing(disk, flow)
    assert notes.ran == [1, 2, "undo 2", "undo 1"]
    assert kinds(disk).count("Concluded") == 1


# ------------------------------------------------------------------ what is told


@BOTH
def test_what_is_owed_is_told_in_the_order_in_which_it_would_run(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> None:
        await hands.do(notes.book, "trip")
        await hands.do(notes.book, "room")
        await hands.receive("never")

    with AgentSystem(disk) as system:
        task = system.spawn(made(colour, code), id="t")
        wait_for(lambda: bool(task.describe().waits))
        assert task.describe().undos == ('undo("room")', 'undo("trip")')
        task.cancel()
        cancelled(task)
        assert task.describe().undos == ()


@BOTH
def test_the_history_of_a_task_that_was_undone_replays(disk: Store, notes: Notes, colour: str, tmp_path: Path) -> None:
    async def code(hands: Hands) -> None:
        compensate(notes.undo, 0)
        await book_and_fail(hands, notes, 1)

    failing(disk, made(colour, code))
    with AgentSystem(disk, run=False) as client:
        save_history(client.task("t"), tmp_path / "t.json")
    replay_history(made(colour, code), tmp_path / "t.json")
    assert notes.ran == [1, "undo 1", "undo 0"]


# ------------------------------------------------------------------ crashes


def new_stores(kind: str, folder: Path) -> Callable[[], str | None]:
    numbers = iter(range(10_000))
    return lambda: None if kind == "memory" else f"sqlite:///{folder}/{next(numbers)}.db"


@pytest.mark.parametrize(("kind", "colour"), [("memory", "sync"), ("memory", "async"), ("sqlite", "sync")])
def test_a_crash_anywhere_goes_on_with_the_rest_and_each_finished_undo_ran_once(
    notes: Notes, tmp_path: Path, kind: str, colour: str
) -> None:
    async def code(hands: Hands) -> None:
        compensate(notes.undo, 0)
        await book_and_fail(hands, notes, 1, 2)

    runs = 0
    for run in every_crash_point(made(colour, code), new_store=new_stores(kind, tmp_path)):
        runs += 1
        run.check()
        assert isinstance(run.error, TaskFailedError)
        ended = [event.path for event in of(run.events, StepSucceeded) if event.path.startswith("undo/")]
        assert ended == ["undo/1", "undo/2", "undo/3"]
        assert all(run.count(name) <= 3 + run.lives for name in ("undo", "book"))
    assert runs > 30


# ------------------------------------------------------------------ a cancel at any moment

STEP, BOOK, OWN, WAIT, FAIL, GATHER, SAVE = "step", "book", "own", "wait", "fail", "gather", "save"

PLAIN = st.sampled_from([(BOOK,), (STEP,), (OWN,), (WAIT,), (BOOK,), (FAIL,)])
PROGRAMS = st.lists(
    st.one_of(PLAIN, PLAIN, st.tuples(st.just(GATHER), st.lists(st.lists(PLAIN, max_size=2), min_size=2, max_size=2))),
    min_size=2,
    max_size=5,
)


class Rehearsed:
    """A random program: what it does is steps, some with undos, and its clean-up is two steps more."""

    def __init__(self, colour: str, program: list[Any]) -> None:
        self.notes = Notes()
        self.flow = made(colour, lambda hands: self._tidily(hands, program), name="random")

        @step(name="fail", retries=0)
        def fail() -> None:
            raise ConnectionError("no answer")

        self.fail = fail

    async def _tidily(self, hands: Hands, program: list[Any]) -> None:
        try:
            await self._walk(hands, program)
        except TaskCancelled:
            await hands.do(self.notes.note, "tidy")
            await hands.do(self.notes.book, "tidier")
            raise

    async def _walk(self, hands: Hands, program: list[Any]) -> None:
        for number, (word, *rest) in enumerate(program):
            if word == GATHER:
                await hands.gather(*(self._branch(hands, one) for one in rest[0]))
            elif word == STEP:
                await hands.do(self.notes.note, number)
            elif word == BOOK:
                await hands.do(self.notes.book, number)
            elif word == OWN:
                compensate(self.notes.undo, number)
            elif word == WAIT:
                await hands.sleep(5)
            else:
                await hands.do(self.fail)

    def _branch(self, hands: Hands, program: list[Any]) -> Callable[[], Any]:
        return lambda: self._walk(hands, program)


class Canceller(CrashPlan):
    """Calls the task off at the nth of the moments at which nothing is locked, and dies at another."""

    def __init__(self, nth: int | None, cancel_at: int, cancel: Callable[[], object]) -> None:
        super().__init__(nth)
        self._left, self._cancel = cancel_at, cancel

    def reach(self, point: str, **facts: Any) -> None:
        super().reach(point, **facts)
        if point in ("append.before", "append.after", "body.before", "body.after"):
            self._left -= 1
            if self._left == 0:
                elsewhere(self._cancel)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("colour", COLOURS)
def test_a_cancel_at_any_moment_and_crashes_at_others_leave_one_ending_and_nothing_undone(
    kind: str, colour: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, numbers = tmp_path_factory.mktemp("stores"), iter(range(10_000))

    @settings(max_examples=60 if kind == "memory" else 20, deadline=None)
    @given(PROGRAMS, st.integers(2, 20), crash_plans(3, 30))
    def holds(program: list[Any], cancel_at: int, plan: list[int]) -> None:
        url = "memory:" if kind == "memory" else f"sqlite:///{folder}/{next(numbers)}.db"
        with open_store(url) as disk:
            check_undone(*play(disk, Rehearsed(colour, program), cancel_at, plan))

    holds()


def play(disk: Store, rehearsed: Rehearsed, cancel_at: int, plan: list[int]) -> tuple[list[TaskEvent], str]:
    """Live a task to its end; a cancel comes in its first life, the deaths where the plan says."""
    clock = FakeClock(jump=True)
    with AgentSystem(disk, run=False, clock=clock) as client:
        client.spawn(rehearsed.flow, id="t")
        for life_number, nth in enumerate((*plan, None)):
            at = cancel_at if life_number == 0 else 0
            life = CrashingStore(disk, Canceller(nth, at, lambda: client.task("t").cancel("any moment")))
            try:
                with AgentSystem(life, clock=clock, strikes=None) as system:
                    system.task("t")
                    system.spawn(rehearsed.flow, id="t").result(PATIENCE)
                    break
            except (TaskFailedError, TaskCancelledError):
                break
            except SimulatedCrash:
                pass
            finally:
                life.close()
        return client.task("t").events(), client.task("t").status()


def check_undone(events: list[TaskEvent], status: str) -> None:
    assert len(of(events, ENDINGS)) == 1, [type(event).__name__ for event in events]  # type: ignore[arg-type]
    outcomes = [event for event in events if isinstance(event, StepSucceeded | CancelDelivered) or is_failed(event)]
    paths = [event.path for event in outcomes]  # type: ignore[attr-defined]
    assert len(paths) == len(set(paths)), "a second outcome"
    own = [event for event in of(events, StepSucceeded) if event.kind == "undo"]
    owed = len(own) + len(of(events, UndoRegistered))
    undos = [event.path for event in of(events, StepSucceeded) if event.path.startswith("undo/")]
    done = status == "completed"
    assert undos == ([] if done else [f"undo/{number}" for number in range(1, owed + 1)])
    delivered = of(events, CancelDelivered)
    assert not delivered or status == "cancelled"
    if delivered:
        first = delivered[0].originator_version
        late = {event.name for event in of(events, StepStarted) if event.originator_version > first}
        mine = {event.path.rpartition("/")[0] for event in delivered}
        for event in of(events, StepStarted):
            clean_up = event.path.startswith("undo/") or event.name in ("note", "book")
            beside = event.path.rpartition("/")[0] not in mine
            assert event.originator_version < first or clean_up or beside, late
    books = [event for event in of(events, StepSucceeded) if event.kind == "step" and event.name == "book"]
    assert len(of(events, UndoRegistered)) == len(books)
    assert len(of(events, Activated)) >= 1 or status == "cancelled"
    assert done == bool(of(events, Completed))


def is_failed(event: TaskEvent) -> bool:
    return isinstance(event, StepFailed) and event.retry_at is None


def test_what_an_undo_registers_itself_counts_nothing() -> None:
    """A step that undoes itself, such as a move there and back, runs back once, however often its process dies."""

    @step(name="move there and back")
    def move(what: str, to: str, back: str) -> None:
        compensate(move, what, back, to)

    @agent(name="moves")
    def moves() -> None:
        move("x", "B", "A")
        move("y", "B", "A")
        raise FailTask("no use")

    for run in every_crash_point(moves):
        run.check()
        back = [event.path for event in run.events if isinstance(event, StepSucceeded) and event.path[0] == "u"]
        assert back == ["undo/1", "undo/2"]
        assert sum(isinstance(event, UndoRegistered) for event in run.events) == 2
