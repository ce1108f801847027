"""Waits wherever the process dies: simulated at every boundary and at random ones, and really, by SIGKILL."""

from __future__ import annotations

import itertools
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors import (
    AgentSystem,
    Signal,
    TaskEndedError,
    TaskHeldError,
    TaskRef,
    Timer,
    agent,
    receive,
    sleep,
    step,
    wait_any,
)
from actors.testing import CrashPlan, Run, SimulatedCrash, crash_plans, every_crash_point, run_through_crashes
from domain.events import Activated, WaitBegan, WaitEnded
from stores import Store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, kinds, wait_for
from tests.scenario_kit import World
from tests.waiters import WAITERS, check_waits

BOTH = pytest.mark.parametrize("colour", ["sync", "async"])
numbers = itertools.count()


def bring(signals: list[tuple[str, int]], task: TaskRef[Any]) -> None:
    """Bring signals as a client that tries again: each has an id of its own."""
    for name, number in signals:
        with suppress(TaskEndedError):  # nothing has waited for it, or all timed out
            task.signal(name, number, signal_id=f"{name} {number}")


def check(run: Run) -> None:
    run.check()
    check_waits(run.events)
    assert run.status == "completed"


# ------------------------------------------------------------------ simulated

PROGRAMS: dict[str, tuple[list[Any], list[Any]]] = {
    "time": ([["sleep", 100], ["step", 1], ["until", 300]], [None, 1, None]),
    "signals": ([["receive", "a", None], ["step", 1], ["receive", "a", None]], [1, 1, 2]),
    "any": ([["any", ["b", "a"], None, None], ["any", ["b"], 100, None]], [[1, 1], [1, None]]),
    "approval": ([["ask", "yes?", None], ["step", 1]], [[True, "test"], 1]),
    "side by side": (
        [["gather", [[["sleep", 10], ["step", 1]], [["receive", "a", None]], [["ask", "no?", None]]]]],
        [[[None, 1], [1], [[False, "test"]]]],
    ),
}


@BOTH
@pytest.mark.parametrize(("name", "on_disk"), [*((name, False) for name in PROGRAMS), ("signals", True)])
def test_wherever_the_process_dies_a_wait_ends_once_with_what_came_first(
    tmp_path: Path, colour: str, name: str, on_disk: bool
) -> None:
    def new_store() -> str | None:
        return f"sqlite:///{tmp_path}/{next(numbers)}.db" if on_disk else None

    program, values = PROGRAMS[name]
    signals = [("a", 1), ("a", 2)] if name not in ("time", "approval") else []
    for run in every_crash_point(
        WAITERS[colour],
        program,
        new_store=new_store,
        meanwhile=partial(bring, signals),
        answer=lambda approval: approval.question == "yes?",
    ):
        check(run)
        assert run.result == values


names = st.sampled_from(["a", "b"])
limits = st.sampled_from([None, 0, 5, 400])
operations = st.one_of(
    st.tuples(st.just("sleep"), st.sampled_from([0, 0.5, 60])),
    st.tuples(st.just("until"), st.sampled_from([0, 60])),
    st.tuples(st.just("receive"), names, st.sampled_from([0, 5, 400])),
    st.tuples(st.just("any"), st.lists(names, max_size=2, unique=True), st.sampled_from([0, 60]), limits),
    st.tuples(st.just("ask"), st.sampled_from(["yes?", "no?", "?"]), st.sampled_from([0, 400])),
    st.tuples(st.just("step"), st.integers(0, 9)),
).map(list)
programs = st.recursive(
    st.lists(operations, min_size=1, max_size=4),
    lambda inner: st.lists(
        st.one_of(operations, st.tuples(st.just("gather"), st.lists(inner, min_size=1, max_size=3)).map(list)),
        min_size=1,
        max_size=4,
    ),
    max_leaves=5,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    program=programs,
    plan=crash_plans(max_crashes=4, max_boundary=25),
    many=st.integers(0, 3),
    colour=st.sampled_from(["sync", "async"]),
)
def test_random_programs_that_die_at_random_keep_what_is_promised_of_waits(
    new_store: Any, program: list[Any], plan: list[int], many: int, colour: str
) -> None:
    run = run_through_crashes(
        WAITERS[colour],
        program,
        plan=plan,
        store=new_store(),
        meanwhile=partial(bring, [(name, number) for number in range(many) for name in "ab"]),
        answer=lambda approval: {"yes?": True, "no?": False}.get(approval.question),
    )
    check(run)


# ------------------------------------------------------------------ strikes


class DieAfter(CrashPlan):
    """Die when an event of a kind is in the log."""

    def __init__(self, topic: str) -> None:
        super().__init__(None)
        self._topic = topic

    def reach(self, point: str, **facts: Any) -> None:
        super().reach(point, **facts)
        if point == "append.after" and self._topic in facts["topics"]:
            self.die_now(point)
            self.check()


@BOTH
def test_a_wait_that_has_ended_ends_a_row_of_strikes(disk: Store, colour: str) -> None:
    program = [["receive", "a", None] for _ in range(8)]
    with AgentSystem(disk, run=False) as client:
        task = client.spawn(WAITERS[colour], program, id="t")
        for number in range(8):
            task.signal("a", number)
    for _ in range(8):
        life = CrashingStore(disk, DieAfter(WaitEnded.TOPIC))
        with pytest.raises(SimulatedCrash), AgentSystem(life, strikes=2) as system:
            system.task("t").result(PATIENCE)
        life.close()
    with AgentSystem(disk, strikes=2) as system:
        assert system.task("t").result(PATIENCE) == list(range(8))


def test_deaths_without_the_end_of_a_wait_between_them_are_strikes(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        client.spawn(WAITERS["sync"], [["receive", "a", None]], id="t")
    for _ in range(3):
        life = CrashingStore(disk, DieAfter(Activated.TOPIC))
        with pytest.raises(SimulatedCrash), AgentSystem(life, strikes=3) as system:
            system.task("t").result(PATIENCE)
        life.close()
    with AgentSystem(disk, strikes=3) as system, pytest.raises(TaskHeldError, match="in a row"):
        system.task("t").result(PATIENCE)


# ------------------------------------------------------------------ code that has changed


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (lambda: receive("a"), lambda: receive("b"), "the log has signal a, the code asks for signal b"),
        (lambda: receive("a"), lambda: sleep(5), "the log has signal a, the code asks for timer sleep"),
        (
            lambda: wait_any(Signal("a"), Timer(9999)).value,
            lambda: wait_any(Signal("b"), Timer(9999)).value,
            "the log has any signal a, timer, the code asks for any signal b, timer",
        ),
        (
            lambda: wait_any(Signal("a"), Timer(9999)).value,
            lambda: receive("a"),
            "the log has any signal a, timer, the code asks for signal a",
        ),
    ],
)
def test_code_that_waits_for_something_else_is_held_with_both_sides_named(
    disk: Store, old: Any, new: Any, says: str
) -> None:
    code = [old]

    @step(name="waits: never")
    def never() -> None: ...

    @agent(name="waits: changed")
    def flow() -> Any:
        value = code[0]()
        never()
        return value

    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: task.status() == "waiting")
    code[0] = new
    with AgentSystem(disk) as system:
        system.task("t").signal("a", "came")
        with pytest.raises(TaskHeldError, match=says):
            system.task("t").result(PATIENCE)
    assert "StepStarted" not in kinds(disk)
    code[0] = old
    with AgentSystem(disk) as system:
        wait_for(lambda: system.task("t").status() == "completed")
        assert system.task("t").result(PATIENCE) == "came"


# ------------------------------------------------------------------ really

WAITING = """
    import sys
    from actors import AgentSystem
    from tests.scenario_kit import STORE, answer, say
    from tests.waiters import WAITERS
    import json

    colour, program = sys.argv[1], json.loads(sys.argv[2])
    with AgentSystem(STORE) as system:
        task = system.spawn(WAITERS[colour], program, id="t")
        say("ready")
        say(json.dumps(answer(task)))
"""


@BOTH
@pytest.mark.parametrize("when", ["in place", "as a row"])
def test_a_wait_goes_on_in_another_process_after_a_real_kill(world: World, colour: str, when: str) -> None:
    program = '[["step", 1], ["receive", "a", null], ["any", ["b"], 0.4, null]]'
    first = world.start(world.write(WAITING), colour, program)
    first.hear()
    with world.client() as client:
        task = client.task("t")
        wait_for(lambda: any(isinstance(event, WaitBegan) for event in task.events()))
        if when == "as a row":
            wait_for(lambda: task.status() == "waiting")
        first.kill()
        task.signal("a", "between two lives", signal_id="1")
        second = world.start(world.write(WAITING), colour, program)
        second.hear()
        assert second.hear() == '[1, "between two lives", [1, null]]'
        second.end()
        events = task.events()
    check_waits(events)
    assert sum(isinstance(event, WaitBegan) for event in events) == 2


def test_a_process_hands_a_sleep_to_another_that_lives(world: World) -> None:
    program = '[["sleep", 2.5], ["step", 1]]'
    first = world.start(world.write(WAITING), "sync", program)
    first.hear()
    with world.client() as client:
        task = client.task("t")
        wait_for(lambda: task.status() == "waiting")
        second = world.start(world.write(WAITING), "sync", program)
        second.hear()
        first.kill()
        assert second.hear() == "[null, 1]"
        second.end()
        events = task.events()
    (began,) = [event for event in events if isinstance(event, WaitBegan)]
    (ended,) = [event for event in events if isinstance(event, WaitEnded)]
    assert 2.5 <= ended.timestamp - began.timestamp <= 2.5 + 1.5
