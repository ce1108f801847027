"""The kit itself: it tells a bug of the agent from a crash, and a broken promise from a kept one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors import TaskFailedError, agent, step, step_info
from actors.testing import AgentBugError, BodyRun, Run, every_crash_point, run_through_crashes
from domain.events import StepFailed, StepStarted, StepSucceeded


@step
def one() -> str:
    return "one"


@agent(name="kit-plain")
def plain() -> str:
    return one()


@agent(name="kit-buggy")
def buggy() -> str:
    return one() + {}["missing"]  # type: ignore[no-any-return,call-overload]


@agent(name="kit-failing")
def failing() -> str:
    return broken()


@step
def broken() -> str:
    raise ValueError("no")


@step(retries=2, backoff=30.0)
def flaky() -> int:
    attempt = step_info().attempt
    if attempt < 3:
        raise ConnectionError(f"no answer to attempt {attempt}")
    return attempt


@agent(name="kit-retrying")
def retrying() -> int:
    return flaky()


def test_every_boundary_is_one_run_with_one_crash(tmp_path: Path) -> None:
    numbers = iter(range(1000))
    for new_store in (lambda: None, lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"):
        whole, *runs = every_crash_point(plain, new_store=new_store)
        assert whole.crashes == []
        assert len(runs) == len(whole.points)
        assert [run.crashes for run in runs] == [[point] for point in whole.points]
        for run in (whole, *runs):
            run.check()
            assert run.result == "one"


def test_a_run_dies_between_attempts_too_and_waits_for_none_of_them() -> None:
    whole, *runs = every_crash_point(retrying)
    assert (whole.result, whole.count("flaky")) == (3, 3)
    assert whole.points.count("retry.wait") >= 2
    for run in (whole, *runs):
        run.check()
        assert run.result >= 3
        failures = [event for event in run.events if isinstance(event, StepFailed)]
        assert all(event.retry_at is not None for event in failures)


def test_a_bug_of_the_agent_is_told_at_once_with_its_line() -> None:
    with pytest.raises(AgentBugError, match="KeyError: 'missing'") as caught:
        run_through_crashes(buggy, plan=[5])
    assert __file__ in str(caught.value)


def test_a_failed_run_raises_its_error_where_its_result_is_asked_for() -> None:
    run = run_through_crashes(failing)
    assert run.status == "failed"
    with pytest.raises(TaskFailedError, match="ValueError: step 1 broken: no"):
        _ = run.result


def body(version: int, attempt: int = 1, key: str = "k", life: int = 1) -> BodyRun:
    return BodyRun("one", "1", attempt, key, life, version)


STARTED = StepStarted("t", 3, 0.0, "1", "step", "one", 1, "", "", "", None)
DONE = StepSucceeded("t", 4, 0.0, "1", "step", "one", "", 1, "one", "")
TO_BE_RETRIED = StepFailed("t", 4, 0.0, "1", "step", "one", "", 1, {}, 7.0)
GIVEN_UP = StepFailed("t", 5, 0.0, "1", "step", "one", "", 2, {}, None)


@pytest.mark.parametrize(
    ("change", "broken_promise"),
    [
        (lambda run: run.bodies.append(body(4, life=2)), "ran again after its outcome was in the log"),
        (lambda run: run.events.append(DONE), "has 2 outcomes"),
        (lambda run: run.bodies.append(body(3, attempt=2, key="other", life=2)), "more than one key"),
        (lambda run: (run.events.insert(0, STARTED), run.bodies.append(body(3, life=2))), "do not rise"),
        (lambda run: run.bodies.append(body(3)), "an attempt ran twice in one life"),
        (lambda run: run.events.append(GIVEN_UP), "has 2 outcomes"),
    ],
)
def test_a_broken_promise_is_seen(change: Callable[[Run], Any], broken_promise: str) -> None:
    run = Run(bodies=[body(3)], events=[DONE])
    run.check()
    change(run)
    with pytest.raises(AssertionError, match=broken_promise):
        run.check()


def test_a_further_attempt_is_no_broken_promise_and_its_outcome_is_the_last_word() -> None:
    run = Run(bodies=[body(3), body(4, attempt=2)], events=[STARTED, TO_BE_RETRIED, GIVEN_UP])
    run.check()
    run.bodies.append(body(5, attempt=3))
    with pytest.raises(AssertionError, match="ran again after its outcome was in the log"):
        run.check()
