"""Random programs through random crashes: what perdure promises, on each store and in both colours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors import TaskHeldError
from actors.testing import Run, crash_plans, every_crash_point, run_through_crashes
from domain.events import StepFailed, StepSucceeded
from tests import programs
from tests.programs import WALKERS, walk

SOME = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)
FEW = settings(SOME, max_examples=15)
"""For a server: what differs from store to store is in the contract suite, and each run here takes half a second."""
colours = st.sampled_from(sorted(WALKERS))


@pytest.fixture(autouse=True)
def no_body_hangs_for_longer_than_its_test() -> Iterator[None]:
    programs.hung.clear()
    yield
    programs.hung.set()


def run(program: list[Any], plan: list[int], store: str | None, colour: str = "sync") -> Run:
    programs.forget()
    done = run_through_crashes(WALKERS[colour], program, plan=plan, store=store)
    done.check()
    return done


def strip(value: Any) -> Any:
    """Drop the random tokens of a result: what is left follows from the program alone."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], str):
        return value[0]
    return [strip(item) for item in value] if isinstance(value, list) else value


def tokens(value: Any) -> list[str]:
    """Give the tokens of the effects whose values are in a result."""
    if isinstance(value, list):
        return list(itertools.chain.from_iterable(tokens(item) for item in value))
    return [value] if isinstance(value, str) and not value.startswith(("failed", "~")) else []


def outcomes(done: Run) -> dict[str, list[tuple[str, str, str]]]:
    """Give the outcomes of each scope, in their order; across branches order is free."""
    by_scope: dict[str, list[tuple[str, str, str]]] = {}
    for event in done.events:
        if isinstance(event, StepSucceeded) or (isinstance(event, StepFailed) and event.retry_at is None):
            scope = event.path.rpartition("/")[0]
            by_scope.setdefault(scope, []).append((event.path, event.name, event.TOPIC))
    return by_scope


def ending(done: Run) -> tuple[Any, ...]:
    return done.status, strip(done.value), str(done.error and done.error.args[0])[:40]


@pytest.fixture
def some(request: pytest.FixtureRequest) -> settings:
    return FEW if request.node.callspec.params["new_store"] == "postgres" else SOME


def test_random_programs_through_random_crashes_keep_what_is_promised(new_store: Any, some: settings) -> None:
    @some
    @given(program=programs.programs, plan=crash_plans(), colour=colours)
    def promises_are_kept(program: list[Any], plan: list[int], colour: str) -> None:
        whole = run(program, [], new_store(), colour)
        crashed = run(program, plan, new_store(), colour)
        crashes_change_nothing_but_the_number_of_attempts(whole, crashed)
        what_the_agent_saw_live_is_what_a_replay_gives(crashed)
        an_effect_that_can_be_asked_about_happens_once()
        a_body_runs_again_only_for_a_recorded_failure_or_a_death_before_its_record(crashed)
        no_body_of_a_dead_activation_is_still_at_work_in_the_next(crashed)

    promises_are_kept()


def crashes_change_nothing_but_the_number_of_attempts(whole: Run, crashed: Run) -> None:
    assert ending(crashed) == ending(whole)
    assert outcomes(crashed) == outcomes(whole)


def what_the_agent_saw_live_is_what_a_replay_gives(crashed: Run) -> None:
    for scope in {scope for view in programs.seen.values() for scope in view}:
        views = sorted((view.get(scope, []) for view in programs.seen.values()), key=len)
        for shorter, longer in itertools.pairwise(views):
            assert longer[: len(shorter)] == shorter
    if crashed.error is None:
        steps = [event for event in crashed.events if isinstance(event, StepSucceeded) and event.kind == "step"]
        assert sorted(tokens(crashed.result)) == sorted(event.value[1] for event in steps)


def an_effect_that_can_be_asked_about_happens_once() -> None:
    keys = [effect["key"] for effect in programs.world.effects() if effect["step"] == "asking"]
    assert len(keys) == len(set(keys))


def a_body_runs_again_only_for_a_recorded_failure_or_a_death_before_its_record(crashed: Run) -> None:
    failures = {(event.path, event.attempt) for event in crashed.events if isinstance(event, StepFailed)}
    for first, second in itertools.combinations(crashed.bodies, 2):
        if first.path == second.path:
            assert second.life > first.life or (first.path, first.attempt) in failures
    assert len(programs.world.effects()) <= len(crashed.bodies)


def no_body_of_a_dead_activation_is_still_at_work_in_the_next(crashed: Run) -> None:
    activations = [effect["activation"] for effect in programs.world.effects()]
    assert activations == sorted(activations)
    if crashed.error is None:
        assert programs.ended[-1] == len(activations)


def test_an_async_agent_does_the_same_as_a_sync_one(new_store: Any, some: settings) -> None:
    @some
    @given(program=programs.programs, plan=crash_plans())
    def both_end_alike(program: list[Any], plan: list[int]) -> None:
        blocking = run(program, [], new_store(), "sync")
        awaiting = run(program, plan, new_store(), "async")
        assert ending(awaiting) == ending(blocking)
        assert outcomes(awaiting) == outcomes(blocking)

    both_end_alike()


EVERYTHING = [
    *(["step", kind, 1] for kind in programs.STEPS),
    ["agent", [["step", "plain", 2], ["agent", [["step", "asking", 3], ["now"]]]]],
    ["if", [["step", "plain", 4]], [["step", "idempotent", 5]]],
    ["patched", "a"],
    ["gather", [[["step", "asking", 6], ["retry", 1, 2]], [["agent", [["step", "plain", 7]]], ["random"]]]],
    ["map", "idempotent", [0, 1], 1],
    ["keyed", "k", [["retry", 2, 1]]],
]


WAITING = [["step", "plain", 1], ["gather", [[["late", 2]], [["retry", 1, 3], ["step", "asking", 4]]]]]


def check_every_boundary(program: list[Any], colour: str, new_store: Any, boundaries: int) -> None:
    programs.forget()
    whole, *runs = every_crash_point(WALKERS[colour], program, new_store=new_store)
    assert len(runs) == len(whole.points) > boundaries
    for crashed in runs:
        crashed.check()
        assert (ending(crashed), outcomes(crashed)) == (ending(whole), outcomes(whole))
    deaths = [crashed for crashed in runs if crashed.crashes]
    assert len(deaths) >= boundaries, "where branches meet there may be fewer boundaries, but not many"


@pytest.mark.parametrize("colour", sorted(WALKERS))
def test_every_single_boundary_of_a_program_with_everything_in_it(colour: str) -> None:
    check_every_boundary(EVERYTHING, colour, lambda: None, 100)


@pytest.mark.parametrize(("new_store", "colour"), [("sqlite", "sync"), ("memory", "async")], indirect=["new_store"])
def test_every_single_boundary_of_retries_and_time_limits_side_by_side(new_store: Any, colour: str) -> None:
    check_every_boundary(WAITING, colour, new_store, 30)


@SOME
@given(plan=st.lists(st.integers(1, 6), min_size=10, max_size=14), colour=colours)
def test_a_plan_may_hold_any_number_of_crashes(plan: list[int], colour: str) -> None:
    crashed = run([["step", "plain", 1], ["step", "plain", 2]], plan, None, colour)
    assert strip(crashed.result) == [1, 2]


@SOME
@given(plan=st.lists(st.integers(1, 25), max_size=8), limit=st.integers(1, 4))
def test_with_a_strike_limit_no_body_is_entered_more_often_than_the_limit_without_an_outcome(
    plan: list[int], limit: int
) -> None:
    programs.forget()
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
