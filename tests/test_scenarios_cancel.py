"""Scenarios about calling off: P10 cancel while waiting to retry, and the trip that is taken back."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from actors import AgentSystem, TaskCancelled, TaskRef, agent, step, step_info
from actors.testing import CrashPlan, FakeClock
from domain.events import CancelDelivered, Cancelled, StepStarted, StepSucceeded
from stores import Store
from stores.crash import CrashingStore
from tests.called_off import cancelled, of
from tests.lives import wait_for
from tests.scenario_kit import KILLED, Program, World

START = 1_700_000_000.0


# ------------------------------------------------------------------ P10

FETCH = """
    import sys
    from actors import AgentSystem, TaskCancelled, agent, step
    from actors.testing import FakeClock
    from tests.scenario_kit import STORE, answer, die, effect, hear, say

    clock = FakeClock(float(sys.argv[1]))

    @step(retries=5, backoff=60, max_backoff=60, jitter=0)
    def fetch():
        effect("tried", clock.now())
        raise ConnectionError("no answer")

    @step
    def tidy():
        effect("tidied", clock.now())

    @agent
    def flow():
        try:
            return fetch()
        except TaskCancelled:
            tidy()
            raise

    @agent
    def quick():
        return "done"

    with AgentSystem(STORE, clock=clock) as system:
        task = system.spawn(flow, id="fetching")
        say("ready")
        while word := hear():
            if word == "advance":
                clock.advance(float(hear()))
            elif word == "cancel":
                say(task.cancel("enough", by="ann"))
            elif word == "cancel and die":
                task.cancel("enough", by="ann")
                die()
            elif word == "ended":
                say(answer(task), clock.now())
            elif word == "complete":
                other = system.spawn(quick, id="quick")
                other.result(30)
                say(other.cancel("too late"))
"""


def ask(program: Program, *words: object) -> str:
    for word in words:
        program.say(str(word))
    return program.hear()


@pytest.mark.parametrize("killed", ["after its end", "with the cancel"])
def test_a_task_that_waits_for_a_retry_is_cancelled_at_once_and_for_ever(world: World, killed: str) -> None:
    """P10: fails at t=0, due at t=60, cancelled at t=5, restarted at t=10, and the clock runs to t=120."""
    program = world.write(FETCH)
    first = world.start(program, START)
    assert first.hear() == "ready"
    with world.client() as client:
        task: TaskRef[Any] = client.task("fetching")
        wait_for(lambda: task.status() == "waiting")
        first.say("advance")
        first.say("5")
        if killed == "with the cancel":
            first.say("cancel and die")
            first.end(KILLED)
        else:
            assert ask(first, "cancel").startswith("task fetching: cancel requested")
            assert ask(first, "ended") == f"TaskCancelledError {START + 5}"
            first.kill()
        second = world.start(program, START + 10)
        assert second.hear() == "ready"
        assert ask(second, "ended") == f"TaskCancelledError {START + 10}"
        before = task.events()
        second.say("advance")
        second.say("110")
        assert ask(second, "cancel") == "task fetching: already cancelled"
        assert ask(second, "complete") == "task quick: already completed"
        second.say("")
        second.end()
        assert task.events() == before
        (view, *_) = task.describe().steps
        assert (view.attempt, view.state, len(view.errors)) == (1, "cancelled", 1)
        assert [type(event).__name__ for event in client.task("quick").events()][-1] == "Completed"
    assert [line.attempt for line in world.ledger("tried")] == [1]
    assert world.count("tidied") == 1
    if killed == "after its end":
        (ending,) = of(before, Cancelled)
        assert ending.timestamp <= START + 6


def test_a_task_that_waits_for_a_retry_is_cancelled_by_the_products_clock(disk: Store) -> None:
    """P10 in one process, by the clock of the product, with the restart as a simulated death."""
    clock, ran = FakeClock(START), list[tuple[str, float]]()

    @step(name="P10: fetch", retries=5, backoff=60, max_backoff=60, jitter=0)
    def fetch() -> None:
        ran.append((f"fetch {step_info().attempt}", clock.now() - START))
        raise ConnectionError("no answer")

    @step(name="P10: tidy")
    def tidy() -> None:
        ran.append(("tidy", clock.now() - START))

    @agent(name="P10: flow")
    def flow() -> None:
        try:
            fetch()
        except TaskCancelled:
            tidy()
            raise

    plan = CrashPlan(None)
    life = CrashingStore(disk, plan)
    with AgentSystem(life, clock=clock) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: task.status() == "waiting")
        clock.advance(5)
        assert task.cancel("enough").accepted
        assert cancelled(task).reason == "enough"
        plan.die_now("killed")
    life.close()
    clock.advance(5)
    with AgentSystem(disk, clock=clock) as system:
        before = system.task("t").events()
        clock.advance(110)
        cancelled(system.spawn(flow, id="t"))
        assert str(system.task("t").cancel()) == "task t: already cancelled"
        assert system.task("t").events() == before
    assert ran == [("fetch 1", 0.0), ("tidy", 5.0)]


# ------------------------------------------------------------------ the trip that is taken back

TRIP = """
    import sys
    from actors import AgentSystem, FailTask, agent, compensate, receive, step
    from tests.scenario_kit import STORE, answer, die_once, effect, pass_door

    @step
    def take_back(what, door=""):
        effect(f"take back {what}")
        if door:
            pass_door(door)
        if what == "hotel":
            die_once("B")

    @step
    def book(what, door=""):
        compensate(take_back, what, door=door)
        effect(f"book {what}")
        return what

    @step
    def pay():
        effect("pay")

    @agent
    def trip(door=""):
        for what in ("flight", "hotel", "car"):
            book(what, door if what == "hotel" else "")
        if receive("pay?") == "no":
            raise FailTask("too dear")
        pay()
        return "gone"

    if __name__ == "__main__":
        with AgentSystem(STORE) as system:
            print(answer(system.spawn(trip, id="trip")))
"""
BOOKED = ["book flight", "book hotel", "book car"]


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_trip_is_taken_back_in_reverse_order_through_a_death_in_the_middle(world: World, how: str) -> None:
    """Input: flight, hotel and car are booked, each with its undo; called off, or refused, while it waits to pay.

    The process is killed when the hotel was taken back outside, and that is not in the log (point B); a restart.
    Right: car once, hotel twice with one key and attempts 1 and 2, flight once, in that order; nothing is paid; the
    task has ended as it was told to, once; before, `perdure show` says what is owed, in the order of the undos.
    """
    program = world.write(TRIP)
    first = world.start(program)
    with world.client() as client:
        wait_for(lambda: world.count("book car") == 1)
        task: TaskRef[Any] = client.task("trip")
        wait_for(lambda: task.describe().waits == "waits for signal pay?")
        shown = world.perdure("show", "trip").end()
        assert "trip  owes 3 undos, in this order, if it fails or is cancelled:" in shown
        owed = ['take_back("car", door="")', 'take_back("hotel", door="")', 'take_back("flight", door="")']
        lines = [line.strip() for line in shown.splitlines()]
        first_owed = lines.index("trip  owes 3 undos, in this order, if it fails or is cancelled:") + 1
        assert lines[first_owed : first_owed + 3] == owed
        if how == "cancelled":
            task.cancel("it rains", by="ann")
        else:
            task.signal("pay?", "no")
        first.end(KILLED)
        shown = world.perdure("show", "trip").end()
        assert "trip  owes 2 undos, in this order:" in shown
        assert ("trip  called off by ann: it rains" in shown) == (how == "cancelled")
        ended = "TaskCancelledError" if how == "cancelled" else "TaskFailedError"
        assert world.run(program) == ended
        assert task.status() == how
        assert "owes" not in world.perdure("show", "trip").end()
        paths = [event.path for event in of(task.events(), StepSucceeded) if event.path.startswith("undo/")]
    assert paths == ["undo/1", "undo/2", "undo/3"]
    effects = [line.effect for line in world.ledger()]
    assert effects == [*BOOKED, "take back car", *["take back hotel"] * 2, "take back flight"]
    hotel = world.ledger("take back hotel")
    assert [line.attempt for line in hotel] == [1, 2]
    assert len({line.key for line in hotel}) == 1


def test_a_trip_that_is_made_is_not_taken_back(world: World) -> None:
    program = world.write(TRIP)
    running = world.start(program)
    wait_for(lambda: world.count("book car") == 1)
    with world.client() as client:
        client.task("trip").signal("pay?", "yes")
        assert running.end() == "gone"
        assert client.task("trip").describe().undos == ()
    assert [line.effect for line in world.ledger()] == [*BOOKED, "pay"]


def test_a_signal_to_leave_during_undos_lets_the_running_one_end_and_leaves_the_rest(world: World) -> None:
    """SIGTERM while the hotel is taken back: it is recorded, and the flight is for the next process."""
    (world.folder / "B.died").touch()
    world.shut_door("desk")
    world.write(TRIP, "trip.py")
    first = world.perdure("run", "trip.py:trip", '"desk"', "--id", "trip")
    with world.client() as client:
        wait_for(lambda: world.count("book car") == 1)
        task: TaskRef[Any] = client.task("trip")
        assert world.perdure("cancel", "trip", "--reason", "rain", "--by", "ann").end().startswith("task trip: cancel")
        wait_for(lambda: world.count("take back hotel") == 1)
        os.kill(first.pid, signal.SIGTERM)
        first.complain("closing")
        world.open_door("desk")
        first.end(143)
        assert task.describe().undos == ('take_back("flight", door="")',)
        second = world.perdure("run", "trip.py:trip", '"desk"', "--id", "trip")
        second.end(1)
        assert task.status() == "cancelled"
        listed = world.perdure("list", "--status", "cancelled").end()
        assert "trip" in listed.splitlines()[1]
        assert "by ann: rain" in listed
        again = world.perdure("cancel", "trip")
        assert again.end(0) == "task trip: already cancelled"
        replayed = world.perdure("replay", "trip", "trip.py:trip").end()
    assert [line.effect for line in world.ledger()] == [
        *BOOKED,
        *("take back car", "take back hotel", "take back flight"),
    ]
    assert [line.split()[:2] for line in replayed.splitlines()[:4]] == [
        *(["replayed", str(number)] for number in (1, 2, 3)),
        ["cancelled", "4"],
    ]
    assert replayed.splitlines()[-1].startswith("trip  cancelled  the code fits the log, and comes to its end")


def test_a_second_process_that_replays_a_delivered_cancel_raises_it_there_and_nowhere_else(world: World) -> None:
    """Killed in the clean-up, outside of which nothing has run since: the next process cleans up, and is not told anew.

    Right: the step before the wait and the first of the clean-up happen once; the killed one twice, with one key.
    """
    program = world.write(
        """
        from actors import AgentSystem, TaskCancelled, agent, receive, step
        from tests.scenario_kit import STORE, answer, die_once, effect

        @step
        def do(what):
            effect(what)
            if what == "second":
                die_once("B")

        @agent
        def flow():
            do("before")
            try:
                receive("never")
            except TaskCancelled:
                do("first")
                do("second")
                do("third")
                raise

        with AgentSystem(STORE) as system:
            print(answer(system.spawn(flow, id="t")))
        """
    )
    first = world.start(program)
    with world.client() as client:
        wait_for(lambda: world.count("before") == 1)
        client.task("t").cancel()
        first.end(KILLED)
        assert world.run(program) == "TaskCancelledError"
        found = client.task("t").events()
    assert [line.effect for line in world.ledger()] == ["before", "first", "second", "second", "third"]
    assert len(of(found, CancelDelivered)) == 1
    assert [event.attempt for event in of(found, StepStarted)] == [1, 1, 1, 2, 1]
    assert len({line.key for line in world.ledger("second")}) == 1
