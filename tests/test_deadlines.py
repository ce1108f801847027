"""Deadlines: a whole task that is called off when it has not ended in time."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from actors import AgentSystem, TaskCancelled, heartbeat, open_store, step
from actors.testing import CrashPlan, FakeClock
from domain.events import Activated, Cancelled, CancelRequested, Completed, Created
from stores import Store
from stores.crash import CrashingStore
from tests.called_off import BOTH, DAY, Hands, Notes, cancelled, delivered, events_of, made, of, spotless
from tests.lives import PATIENCE, die, kinds, wait_for

PASSED = "its deadline has passed"


@pytest.fixture
def notes() -> Notes:
    return Notes()


async def wait_for_ever(hands: Hands) -> None:
    await hands.receive("never")


# ------------------------------------------------------------------ what one may say

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (None, None),
        (0, NOW),
        (90, NOW + 90),
        (1.5, NOW + 1.5),
        (timedelta(minutes=2), NOW + 120),
        (datetime.fromtimestamp(NOW + 60, UTC), NOW + 60),
        (datetime.fromtimestamp(NOW + 60, timezone(timedelta(hours=5, minutes=30))), NOW + 60),
        (datetime.fromtimestamp(NOW - DAY, UTC), NOW - DAY),
    ],
)
def test_a_deadline_is_seconds_a_length_or_a_moment_and_is_stored_as_a_moment(
    disk: Store, given: Any, stored: float | None
) -> None:
    flow = made("sync", wait_for_ever)
    with AgentSystem(disk, run=False, clock=FakeClock(NOW)) as client:
        client.spawn(flow, id="t", deadline=given)
    (created,) = of(events_of(disk), Created)
    assert created.options.get("deadline") == stored


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (-1, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (timedelta(seconds=-1), ValueError),
        (True, ValueError),
        ("tomorrow", ValueError),
        (datetime(2026, 11, 1, 10, 0), ValueError),
    ],
)
def test_what_is_no_deadline_is_refused_and_nothing_is_spawned(disk: Store, given: Any, error: type[Exception]) -> None:
    flow = made("sync", wait_for_ever)
    with AgentSystem(disk, run=False) as client:
        with pytest.raises(error, match="a deadline is"):
            client.spawn(flow, id="t", deadline=given)
        assert list(client.tasks()) == []


def test_the_deadline_of_the_first_spawn_stands(disk: Store, notes: Notes) -> None:
    flow = made("sync", spotless(wait_for_ever, notes, "tidy"))
    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flow, id="t", deadline=10)
        assert system.spawn(flow, id="t", deadline=DAY).id == task.id
        system.spawn(flow, id="t")
        wait_for(lambda: task.status() == "waiting")
        clock.advance(10)
        assert cancelled(task).reason == PASSED


# ------------------------------------------------------------------ where a task is when it passes


@BOTH
def test_a_task_that_waits_is_called_off_at_its_deadline_and_cleans_up(disk: Store, notes: Notes, colour: str) -> None:
    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(made(colour, spotless(wait_for_ever, notes, "tidy")), id="t", deadline=60)
        wait_for(lambda: task.status() == "waiting")
        clock.advance(59)
        other = system.spawn(made(colour, spotless(wait_for_ever, notes), name="other"), deadline=0.5)
        clock.advance(0.5)
        cancelled(other)
        assert task.status() == "waiting", "not before its time"
        clock.advance(0.5)
        error = cancelled(task)
        assert (error.reason, error.by, error.cut) == (PASSED, "deadline", False)
    assert notes.ran == ["tidy"]
    assert delivered(disk) == ["1"]
    (request,) = of(events_of(disk), CancelRequested)
    assert request.timestamp == pytest.approx(NOW + 60)


@BOTH
def test_a_clock_that_jumps_jumps_to_the_deadline_and_no_further(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> None:
        await hands.sleep(DAY)

    clock = FakeClock(jump=True)
    with AgentSystem(disk, clock=clock) as system:
        began = clock.now()
        assert cancelled(system.spawn(made(colour, code), id="t", deadline=3600)).reason == PASSED
        assert clock.now() - began < 3700


@BOTH
def test_what_ends_before_its_deadline_completes_and_is_not_called_off_later(
    disk: Store, notes: Notes, colour: str
) -> None:
    async def code(hands: Hands) -> Any:
        return await hands.do(notes.note, "done")

    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(made(colour, code), id="t", deadline=5)
        assert task.result(PATIENCE) == "done"
        clock.advance(10)
        assert cancelled(system.spawn(made(colour, wait_for_ever, name="other"), deadline=0)).reason == PASSED
    assert isinstance(events_of(disk)[-1], Completed)


@BOTH
def test_a_task_whose_deadline_has_passed_before_it_began_never_runs(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> None:
        notes.ran.append("agent")
        await hands.do(notes.note, "never")

    clock = FakeClock()
    with AgentSystem(disk, run=False, clock=clock) as client:
        client.spawn(made(colour, code), id="t", deadline=10)
    clock.advance(10)
    with AgentSystem(disk, clock=clock) as system:
        error = cancelled(system.task("t"))
    assert (error.reason, error.cut) == (PASSED, False)
    assert notes.ran == []
    assert kinds(disk) == ["Created", "CancelRequested", "Cancelled"]


@BOTH
def test_a_deadline_in_the_past_calls_a_task_off_before_it_begins(disk: Store, notes: Notes, colour: str) -> None:
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    with AgentSystem(disk) as system:
        cancelled(system.spawn(made(colour, wait_for_ever), id="t", deadline=long_ago))
    assert kinds(disk) == ["Created", "CancelRequested", "Cancelled"]


@BOTH
def test_a_task_that_queues_for_a_place_past_its_deadline_never_runs(disk: Store, notes: Notes, colour: str) -> None:
    go = threading.Event()
    notes.does["busy"] = lambda: go.wait(PATIENCE)

    async def busy(hands: Hands) -> None:
        await hands.do(notes.note, "busy")

    async def code(hands: Hands) -> None:
        await hands.do(notes.note, "never")

    clock = FakeClock()
    with AgentSystem(disk, clock=clock, max_active=1) as system:
        first = system.spawn(made(colour, busy, name="busy"))
        wait_for(lambda: "busy" in notes.ran)
        task = system.spawn(made(colour, code), id="t", deadline=10)
        clock.advance(11)
        go.set()
        first.result(PATIENCE)
        cancelled(task)
    assert notes.ran == ["busy"]
    assert not of(events_of(disk), Activated)


@BOTH
def test_a_body_that_runs_past_the_deadline_of_its_task_is_told(disk: Store, notes: Notes, colour: str) -> None:
    pause = threading.Event()

    @step(name="long")
    def long() -> None:
        notes.ran.append("long")
        while True:
            heartbeat()
            pause.wait(0.01)

    async def code(hands: Hands) -> None:
        await hands.do(long)

    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t", deadline=30)
        wait_for(lambda: "long" in notes.ran)
        clock.advance(30)
        error = cancelled(task)
    assert notes.ran == ["long", "tidy"]
    assert (error.reason, error.doubts, error.cut) == (PASSED, ["1"], False)


@BOTH
def test_a_body_that_does_not_listen_is_cut_a_grace_after_the_deadline(disk: Store, notes: Notes, colour: str) -> None:
    door, clock = threading.Event(), FakeClock()
    notes.does["stuck"] = lambda: door.wait(PATIENCE)

    async def code(hands: Hands) -> None:
        await hands.do(notes.note, "stuck")

    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(made(colour, code), id="t", deadline=30)
        wait_for(lambda: "stuck" in notes.ran)
        clock.advance(30)
        wait_for(lambda: bool(of(task.events(), CancelRequested)))
        clock.advance(10)
        error = cancelled(task)
        door.set()
    assert (error.cut, error.doubts) == (True, ["1"])


@BOTH
def test_a_deadline_that_passes_in_the_clean_up_of_a_cancel_changes_nothing(
    disk: Store, notes: Notes, colour: str
) -> None:
    clock = FakeClock()
    notes.does["tidy"] = lambda: clock.advance(8)

    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(made(colour, spotless(wait_for_ever, notes, "tidy", "more")), id="t", deadline=5)
        wait_for(lambda: bool(task.describe().waits))
        task.cancel("sooner", by="ann")
        error = cancelled(task)
    assert (error.reason, error.by, error.cut) == ("sooner", "ann", False)
    assert len(of(events_of(disk), CancelRequested)) == 1


@BOTH
def test_a_task_that_waits_for_a_retry_is_called_off_at_its_deadline(disk: Store, notes: Notes, colour: str) -> None:
    @step(name="fetch", retries=9, backoff=DAY, max_backoff=DAY, jitter=0)
    def fetch() -> None:
        notes.ran.append("fetch")
        raise ConnectionError("no answer")

    async def code(hands: Hands) -> None:
        await hands.do(fetch)

    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(made(colour, spotless(code, notes, "tidy")), id="t", deadline=60)
        wait_for(lambda: task.status() == "waiting")
        clock.advance(60)
        cancelled(task)
    assert notes.ran == ["fetch", "tidy"]


# ------------------------------------------------------------------ restarts and holds


@BOTH
def test_a_restart_neither_shortens_nor_lengthens_a_deadline(disk: Store, notes: Notes, colour: str) -> None:
    clock, plan = FakeClock(), CrashPlan(None)
    flow = made(colour, spotless(wait_for_ever, notes, "tidy"))
    life = CrashingStore(disk, plan)
    with suppress(BaseException), AgentSystem(life, clock=clock) as system:
        task = system.spawn(flow, id="t", deadline=60)
        wait_for(lambda: task.status() == "waiting")
        clock.advance(40)
        plan.die_now("killed")
    life.close()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flow, id="t", deadline=DAY)
        clock.advance(19)
        assert cancelled(system.spawn(made(colour, wait_for_ever, name="other"), deadline=0)).reason == PASSED
        assert task.status() == "waiting"
        clock.advance(1)
        cancelled(task)
    (request,) = of(events_of(disk), CancelRequested)
    assert request.timestamp == pytest.approx(NOW + 60)


@BOTH
def test_a_deadline_that_passes_while_nothing_runs_is_seen_at_the_restart(
    disk: Store, notes: Notes, colour: str
) -> None:
    clock = FakeClock()
    flow = made(colour, spotless(wait_for_ever, notes, "tidy"))
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flow, id="t", deadline=60)
        wait_for(lambda: task.status() == "waiting")
    clock.advance(100)
    with AgentSystem(disk, clock=clock) as system:
        assert not cancelled(system.spawn(flow, id="t")).cut
    assert notes.ran == ["tidy"]


@BOTH
def test_a_task_that_is_held_past_its_deadline_is_called_off_when_it_is_let_go(
    disk: Store, notes: Notes, colour: str
) -> None:
    @step(name="pay", on_doubt="hold")
    def pay() -> str:
        notes.ran.append("pay")
        return "paid"

    async def code(hands: Hands) -> None:
        notes.ran.append(await hands.do(pay))
        await hands.do(notes.note, "never")

    flow, clock = made(colour, spotless(code, notes, "tidy")), FakeClock()
    with AgentSystem(disk, run=False, clock=clock) as client:
        client.spawn(flow, id="t", deadline=60)
    life = CrashingStore(disk, CrashPlan(1, "body.after"))
    with suppress(BaseException), AgentSystem(life, clock=clock) as system:
        system.spawn(flow, id="t").result(PATIENCE)
    life.close()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: task.status() == "held")
        clock.advance(100)
        assert task.status() == "held"
        task.resolve("1", value="by hand", by="ann")
        assert cancelled(task).reason == PASSED
    assert notes.ran == ["pay", "by hand", "tidy"]


@BOTH
def test_an_agent_that_ignores_its_deadline_and_returns_has_completed(disk: Store, notes: Notes, colour: str) -> None:
    async def code(hands: Hands) -> str:
        with suppress(TaskCancelled):
            await hands.receive("never")
        return "what there is"

    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(made(colour, code), id="t", deadline=60)
        wait_for(lambda: task.status() == "waiting")
        clock.advance(60)
        assert task.result(PATIENCE) == "what there is"


@pytest.mark.parametrize(("colour", "every"), [("sync", 1), ("async", 4)])
def test_a_task_with_a_deadline_ends_once_wherever_its_process_dies(notes: Notes, colour: str, every: int) -> None:
    flow, nth = made(colour, spotless(wait_for_ever, notes, "tidy")), 0
    while True:
        nth += every
        clock = FakeClock(jump=True)
        with open_store("memory:") as disk:
            plan = CrashPlan(nth)
            life = CrashingStore(disk, plan)
            with suppress(BaseException), AgentSystem(life, clock=clock) as system:
                cancelled(system.spawn(flow, id="t", deadline=60))
            life.close()
            with AgentSystem(disk, clock=clock) as system:
                error = cancelled(system.spawn(flow, id="t", deadline=60))
            assert error.reason == PASSED
            found = events_of(disk)
            assert len(of(found, Cancelled)) == len(of(found, CancelRequested)) == 1
        if not plan.dead:
            break
    assert nth > 10


def test_a_deadline_does_not_touch_who_has_none(disk: Store, notes: Notes) -> None:
    die(disk, made("sync", spotless(wait_for_ever, notes, "tidy")), at="append.after", nth=2)
    with AgentSystem(disk, run=False) as client:
        assert client.task("t").describe().cancel is None
