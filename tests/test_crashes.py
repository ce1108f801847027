"""Random programs through random crashes: what perdure promises, on each store."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors import TaskHeldError
from actors.testing import Run, crash_plans, every_crash_point, run_through_crashes
from domain.events import StepSucceeded
from tests import programs
from tests.programs import World, walk

numbers = itertools.count()
SOME = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)


@pytest.fixture(params=["memory", "sqlite"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return lambda: None
    return lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"


def run(program: list[Any], plan: list[int], store: str | None) -> Run:
    programs.world = World()
    programs.seen.clear()
    return run_through_crashes(walk, program, plan=plan, store=store)


def strip(value: Any) -> Any:
    """Drop the random tokens of a result: what is left follows from the program alone."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], str):
        return value[0]
    return [strip(item) for item in value] if isinstance(value, list) else value


def tokens(value: Any) -> list[str]:
    if isinstance(value, list):
        return list(itertools.chain.from_iterable(tokens(item) for item in value))
    return [value] if isinstance(value, str) else []


@SOME
@given(program=programs.programs, plan=crash_plans())
def test_crashes_change_nothing_but_the_number_of_attempts(new_store: Any, program: list[Any], plan: list[int]) -> None:
    whole = run(program, [], new_store())
    whole.check()
    crashed = run(program, plan, new_store())
    crashed.check()
    assert crashed.status == whole.status
    assert strip(crashed.value) == strip(whole.value)
    assert str(crashed.error and crashed.error.args[0])[:40] == str(whole.error and whole.error.args[0])[:40]
    outcomes = [(event.path, event.name) for event in whole.events if event.TOPIC in ("step.succeeded", "step.failed")]  # type: ignore[attr-defined]
    again = [(event.path, event.name) for event in crashed.events if event.TOPIC in ("step.succeeded", "step.failed")]  # type: ignore[attr-defined]
    assert again == outcomes


@SOME
@given(program=programs.programs, plan=crash_plans())
def test_what_the_agent_saw_live_is_what_a_replay_gives(new_store: Any, program: list[Any], plan: list[int]) -> None:
    crashed = run(program, plan, new_store())
    views = sorted(programs.seen.values(), key=len)
    for shorter, longer in itertools.pairwise(views):
        assert longer[: len(shorter)] == shorter
    recorded = [event.value[1] for event in crashed.events if isinstance(event, StepSucceeded)]
    if crashed.error is None:
        assert [token for token in tokens(crashed.result) if not token.startswith("failed")] == recorded


@SOME
@given(program=programs.programs, plan=crash_plans())
def test_an_effect_that_can_be_asked_about_happens_once(new_store: Any, program: list[Any], plan: list[int]) -> None:
    run(program, plan, new_store())
    keys = [effect["key"] for effect in programs.world.effects() if effect["step"] == "asking"]
    assert len(keys) == len(set(keys))


@SOME
@given(program=programs.programs, plan=crash_plans())
def test_a_body_runs_again_only_if_its_process_died_before_the_outcome_was_stored(
    new_store: Any, program: list[Any], plan: list[int]
) -> None:
    crashed = run(program, plan, new_store())
    again = len(programs.world.effects()) - len({effect["key"] for effect in programs.world.effects()})
    lost = sum(point in ("body.after", "append.before", "append.inside") for point in crashed.crashes)
    assert again <= lost
    assert len(programs.world.effects()) <= sum(
        body.finished or body.life <= len(crashed.crashes) for body in crashed.bodies
    )


def test_every_single_boundary_of_a_program_with_everything_in_it(new_store: Any) -> None:
    program = [
        *(["step", kind, 1] for kind in programs.STEPS),
        ["agent", [["step", "plain", 2], ["agent", [["step", "asking", 3]]]]],
        ["if", [["step", "plain", 4]], [["step", "idempotent", 5]]],
    ]
    programs.world = World()
    programs.seen.clear()
    whole, *runs = every_crash_point(walk, program, new_store=new_store)
    assert len(runs) == len(whole.points) > 50
    for crashed in runs:
        crashed.check()
        assert strip(crashed.result) == strip(whole.result)
        assert len(crashed.crashes) == 1


@SOME
@given(plan=st.lists(st.integers(1, 6), min_size=10, max_size=14))
def test_a_plan_may_hold_any_number_of_crashes(plan: list[int]) -> None:
    crashed = run([["step", "plain", 1], ["step", "plain", 2]], plan, None)
    crashed.check()
    assert strip(crashed.result) == [1, 2]


@SOME
@given(plan=st.lists(st.integers(1, 25), max_size=8), limit=st.integers(1, 4))
def test_with_a_strike_limit_no_body_is_entered_more_often_than_the_limit_without_an_outcome(
    plan: list[int], limit: int
) -> None:
    programs.world = World()
    programs.seen.clear()
    program = [["step", "plain", 1], ["step", "asking", 2], ["step", "plain", 3]]
    crashed = run_through_crashes(walk, program, plan=plan, strikes=limit)
    crashed.check()
    for path in {body.path for body in crashed.bodies}:
        assert sum(body.path == path for body in crashed.bodies) <= limit
    if crashed.status == "held":
        assert isinstance(crashed.error, TaskHeldError)
        assert crashed.error.reason == "strikes"
        assert len(crashed.crashes) >= limit
    else:
        assert strip(crashed.result) == [1, 2, 3]
