"""Scenarios about waits: P12 the answer comes first, P13 two approvals, answered backwards, P14 yes, yes, yes, no.

And one in the same form for the first of several: **The first of three.** Input: a task waits for a signal `paid`, a
timer of 60 s and an approval, whichever is first; `paid` is delivered at t=59 from another process; kill; the approval
is answered, and restart at t=100, when the timer has long passed. Right: `paid` is the first, before and after every
further kill; the effect `ship` happens once; the answer is not lost: a second wait for the two others gives the
approval, not the timer, since what is in the log beats a time; the log has one end for each wait.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest

from actors import (
    AgentSystem,
    AlreadyDecidedError,
    Signal,
    TaskRef,
    Timer,
    agent,
    gather,
    receive,
    request_approval,
    step,
    wait_any,
)
from actors.testing import CrashPlan, FakeClock
from domain.events import SignalReceived, StepSucceeded, WaitBegan, WaitEnded
from stores import Store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, log, wait_for
from tests.scenario_kit import KILLED, World
from tests.waiters import check_waits


def asked(task: TaskRef[Any], question: str) -> str:
    """Wait until a task has asked a question, and give the approval's id."""
    wait_for(lambda: question in [one.question for one in task.describe().approvals])
    return next(one.id for one in task.describe().approvals if one.question == question)


# ------------------------------------------------------------------ P12

ANSWERED_FIRST = """
    from actors import AgentSystem, agent, receive, step
    from tests.scenario_kit import STORE, die_once, effect, pass_door, say

    @step
    def first():
        effect("first")
        say("in step 1")
        pass_door("delivered")
        die_once("step 1")
        return "first"

    @agent
    def flow():
        return [first(), receive("a1"), receive("a2")]

    with AgentSystem(STORE) as system:
        task = system.spawn(flow, id="t")
        say("ready")
        say(task.result(60))
"""

DELIVER = """
    import sys
    from actors import AgentSystem
    from tests.scenario_kit import STORE

    with AgentSystem(STORE, run=False) as client:
        client.task("t").signal(sys.argv[1], sys.argv[2], signal_id=sys.argv[1])
"""


@pytest.mark.parametrize("how", ["another process", "the command", "this process"])
def test_an_answer_that_comes_while_step_one_runs_is_there_when_step_two_waits_for_it(world: World, how: str) -> None:
    """P12: `a1` is delivered in step 1; kill; restart; its wait is over within 1 s, one for `a2` stays open."""
    program, deliver = world.write(ANSWERED_FIRST), world.write(DELIVER, "deliver.py")
    world.shut_door("delivered")
    first = world.start(program)
    assert {first.hear(), first.hear()} == {"ready", "in step 1"}
    with world.client() as client:
        task = client.task("t")
        if how == "another process":
            world.run(deliver, "a1", "yes")
        elif how == "the command":
            world.perdure("signal", "t", "a1", '"yes"', "--signal-id", "a1").end()
        else:
            task.signal("a1", "yes", signal_id="a1")
        world.open_door("delivered")
        first.end(KILLED)
        second = world.start(program)
        assert {second.hear(), second.hear()} == {"ready", "in step 1"}
        wait_for(lambda: any(isinstance(event, WaitBegan) for event in task.events()))
        (begun,) = [event for event in task.events() if isinstance(event, WaitBegan)]
        (ended,) = [event for event in task.events() if isinstance(event, WaitEnded)]
        assert (ended.name, begun.name) == ("a1", "a2")
        (done,) = [event for event in task.events() if isinstance(event, StepSucceeded)]
        assert begun.timestamp - done.timestamp < 1
        wait_for(lambda: task.status() == "waiting")
        world.run(deliver, "a2", "no")
        assert second.hear() == "['first', 'yes', 'no']"
        second.end()
        check_waits(task.events())
    assert [line.attempt for line in world.ledger("first")] == [1, 2]


def test_an_answer_that_comes_first_is_kept_on_each_store(disk: Store) -> None:
    """P12, with the processes simulated."""
    delivered = list[str]()

    @step(name="P12: first")
    def first() -> str:
        if not delivered:
            delivered.append("a1")
            with AgentSystem(disk, run=False) as client:
                client.task("t").signal("a1", "yes")
            plan.die_now("killed")
        return "first"

    @agent(name="P12: flow")
    def flow() -> list[Any]:
        return [first(), receive("a1"), receive("a2")]

    plan = CrashPlan(None)
    life = CrashingStore(disk, plan)
    with AgentSystem(life) as system:
        system.spawn(flow, id="t")
        wait_for(lambda: plan.dead)
    life.close()
    with AgentSystem(disk) as system:
        task, began = system.task("t"), monotonic()
        wait_for(lambda: any(isinstance(event, WaitEnded) for event in task.events()))
        assert monotonic() - began < 1
        wait_for(lambda: task.status() == "waiting")
        task.signal("a2", "no")
        assert task.result(PATIENCE) == ["first", "yes", "no"]


# ------------------------------------------------------------------ P13

PAYMENTS = """
    from actors import AgentSystem, agent, gather, request_approval, step
    from tests.scenario_kit import STORE, effect, say

    @step(name="pay")
    def pay(amount):
        effect("pay", amount)
        return amount

    def approved(amount):
        pause = request_approval(f"pay {amount}")
        return pay(amount) if pause.wait().approved else 0

    @agent
    def flow():
        return list(gather(lambda: approved(10), lambda: approved(20)))

    with AgentSystem(STORE) as system:
        task = system.spawn(flow, id="t")
        say("ready")
        say(task.result(60))
"""


def test_two_approvals_are_answered_backwards_with_a_restart_between(world: World) -> None:
    """P13: the second: no; restart; the first: yes; each has its own id, and only what was approved is paid."""
    program = world.write(PAYMENTS)
    first = world.start(program)
    first.hear()
    with world.client() as client:
        task = client.task("t")
        ten, twenty = asked(task, "pay 10"), asked(task, "pay 20")
        assert ten != twenty
        task.answer(twenty, approved=False, by="ann")
        first.kill()
        assert [one.id for one in task.describe().approvals] == [ten]
        assert world.count("pay") == 0
        second = world.start(program)
        second.hear()
        wait_for(lambda: task.status() == "waiting")
        assert [one.id for one in task.describe().approvals] == [ten]
        assert world.count("pay") == 0
        world.perdure("approve", ten, "--by", "ann").end()
        assert second.hear() == "[10, 0]"
        second.end()
    assert [line.note for line in world.ledger("pay")] == [10]


def test_two_approvals_are_answered_backwards_on_each_store(disk: Store) -> None:
    """P13, with the processes simulated."""
    paid = list[int]()

    @step(name="P13: pay")
    def pay(amount: int) -> int:
        paid.append(amount)
        return amount

    def approved(amount: int) -> int:
        return pay(amount) if request_approval(f"pay {amount}").wait().approved else 0

    @agent(name="P13: flow")
    def flow() -> Any:
        return gather(lambda: approved(10), lambda: approved(20))

    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        ten, twenty = asked(task, "pay 10"), asked(task, "pay 20")
        task.answer(twenty, approved=False)
    with AgentSystem(disk) as system:
        task = system.task("t")
        assert ([one.id for one in task.describe().approvals], paid) == ([ten], [])
        task.answer(ten, approved=True)
        assert task.result(PATIENCE) == (10, 0)
    assert paid == [10]


# ------------------------------------------------------------------ P14


def test_the_first_of_several_deliveries_decides_before_and_after_a_restart(world: World) -> None:
    """P14: d1 = yes three times, d2 = no, restart, d3 = no: one effect, one decision; d2 and d3 are told of it."""
    program = world.write(PAYMENTS.replace("gather(lambda: approved(10), lambda: approved(20))", "[approved(10)]"))
    first = world.start(program)
    first.hear()
    with world.client() as client:
        task = client.task("t")
        pause = asked(task, "pay 10")
        d1 = [task.answer(pause, approved=True, by="ann") for _ in range(3)]
        assert d1 == d1[:1] * 3
        with pytest.raises(AlreadyDecidedError, match="already decided: yes, by ann"):
            task.answer(pause, approved=False, by="bob")
        wait_for(lambda: any(isinstance(event, StepSucceeded) for event in task.events()))
        first.kill()
        second = world.start(program)
        second.hear()
        assert second.hear() == "[10]"
        second.end()
        with pytest.raises(AlreadyDecidedError, match="already decided: yes, by ann"):
            task.answer(pause, approved=False, by="cy")
        late = world.perdure("reject", pause, "--by", "cy")
        late.end(1)
        assert "already decided: yes, by ann" in late.errors
        assert len([event for event in task.events() if isinstance(event, SignalReceived)]) == 1
    assert world.count("pay") == 1


# ------------------------------------------------------------------ the first of three

SHIPPED = list[str]()


@step(name="first of three: ship")
def ship(why: str) -> str:
    SHIPPED.append(why)
    return why


@agent(name="first of three")
def first_of_three() -> list[Any]:
    pause = request_approval("ship it unpaid?")
    first = wait_any(Signal("paid"), Timer(60), pause)
    shipped = ship(f"{first.index}: {first.value}")
    second = wait_any(Timer(1), pause)
    return [shipped, second.index]


def test_the_first_of_three_is_the_first_in_the_log_whatever_is_killed(disk: Store) -> None:
    """The first of three: the signal came at 59, its process was killed, the timer had passed when another began."""
    SHIPPED.clear()
    clock = FakeClock()
    start = clock.now()
    plan = CrashPlan(None)
    life = CrashingStore(disk, plan)
    with AgentSystem(life, clock=clock) as system:
        task = system.spawn(first_of_three, id="t")
        wait_for(lambda: task.status() == "waiting")
        plan.die_now("killed")
    life.close()
    with AgentSystem(disk, run=False, clock=FakeClock(start + 59)) as client:
        client.task("t").signal("paid", 20)
        client.task("t").answer(asked(client.task("t"), "ship it unpaid?"), approved=True)
    for nth in (3, 5, 7, 9):
        life = CrashingStore(disk, CrashPlan(nth, "append.after"))
        with AgentSystem(life, clock=FakeClock(start + 100), strikes=None) as system:
            try:
                system.task("t").result(PATIENCE)
            except BaseException as death:
                assert type(death).__name__ == "SimulatedCrash"  # noqa: PT017  it may also have ended
        life.close()
    with AgentSystem(disk, clock=FakeClock(start + 200), strikes=None) as system:
        assert system.task("t").result(PATIENCE) == ["0: 20", 1]
    assert SHIPPED == ["0: 20"]
    check_waits(log(disk))
