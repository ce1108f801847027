"""Retries and restarts: numbers in, decisions out."""

import asyncio
import itertools
import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.retry import (
    FIRST_DELAY,
    JITTER,
    LONGEST_DELAY,
    STRIKE_LIMIT,
    RetryPolicy,
    is_out,
    is_suspect,
    restart_delay,
)

strikes = st.integers(1, 10**6)
limits = st.none() | st.integers(1, 100)

# ------------------------------------------------------------------ retries


seconds = st.integers(0, 10**6) | st.floats(0, 1e9)
policies = st.builds(
    RetryPolicy,
    retries=st.integers(0, 20),
    backoff=seconds,
    max_backoff=seconds,
    jitter=st.floats(0, 1) | st.integers(0, 1),
)
failures = st.integers(1, 30) | st.integers(1, 10**9)
draws = st.floats(-1, 1)
times = st.floats(0, 4e9)


@given(policies, failures, draws)
def test_no_wait_is_negative_or_longer_than_the_longest_and_its_jitter(
    policy: RetryPolicy, number: int, draw: float
) -> None:
    plain, moved = policy.delay(number), policy.delay(number, draw)
    assert 0 <= plain <= min(policy.max_backoff, policy.backoff * 2.0 ** min(number - 1, 1000))
    assert 0 <= moved <= policy.max_backoff * (1 + policy.jitter)
    assert abs(moved - plain) <= plain * (policy.jitter + 1e-12)  # but for what floats round
    assert type(plain) is type(moved) is float


@given(policies, failures)
def test_without_jitter_a_later_retry_never_waits_less(policy: RetryPolicy, number: int) -> None:
    assert policy.delay(number) <= policy.delay(number + 1)


@given(policies, failures, draws)
def test_a_wait_grows_with_what_is_drawn(policy: RetryPolicy, number: int, draw: float) -> None:
    assert policy.delay(number, -1) <= policy.delay(number, draw) <= policy.delay(number, 1)


@given(policies, times, draws)
def test_a_step_is_tried_once_more_than_it_is_retried(policy: RetryPolicy, now: float, draw: float) -> None:
    answers = [policy.next_attempt(number, now, jitter=draw) for number in range(1, policy.retries + 4)]
    assert [answer is not None for answer in answers] == [True] * policy.retries + [False] * 3


@given(policies, failures, times, draws, st.none() | times)
def test_an_attempt_is_due_after_its_wait_and_before_the_limit_over_all(
    policy: RetryPolicy, number: int, now: float, draw: float, until: float | None
) -> None:
    due = policy.next_attempt(number, now, jitter=draw, until=until)
    wanted = now + policy.delay(number, draw)
    if number <= policy.retries and (until is None or wanted < until):
        assert due == wanted >= now
    else:
        assert due is None


def test_waits_double_from_a_second_up_to_a_minute_and_nothing_is_retried_unasked() -> None:
    policy = RetryPolicy()
    assert policy.next_attempt(1, 0.0) is None
    assert [policy.delay(number) for number in range(1, 9)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert RetryPolicy(retries=1, backoff=0).next_attempt(1, 7.0, jitter=1.0) == 7.0


KINDS: list[type[BaseException]] = [
    *(Exception, OSError, ConnectionError, FileNotFoundError, LookupError, KeyError, ValueError, ExceptionGroup),
    *(BaseException, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError),
]
ERRORS: list[BaseException] = [
    kind("no", [ValueError()]) if kind is ExceptionGroup else kind("no") for kind in KINDS if kind is not BaseException
]
kinds = st.sampled_from(KINDS) | st.lists(st.sampled_from(KINDS), max_size=3).map(tuple)


@given(kinds, kinds, st.sampled_from(ERRORS))
def test_what_is_given_up_on_wins_over_what_is_retried(retry_on: Any, give_up_on: Any, error: BaseException) -> None:
    wanted = RetryPolicy(retry_on=retry_on, give_up_on=give_up_on).wants(error)
    assert wanted is (
        isinstance(error, retry_on) and not isinstance(error, give_up_on) and isinstance(error, Exception)
    )


def test_an_error_cannot_lie_about_its_class() -> None:
    class Liar(BaseException):
        __class__ = ConnectionError  # type: ignore[assignment]

    assert isinstance(Liar(), ConnectionError)
    assert not RetryPolicy(retry_on=ConnectionError).wants(Liar())


BAD: dict[str, list[Any]] = {
    "retries": [-1, 1.0, True, "1", None, math.nan],
    "backoff": [-1, -0.1, math.inf, math.nan, True, "1", None],
    "max_backoff": [-1, -0.1, math.inf, math.nan, True, "1"],
    "jitter": [-0.1, 1.1, 2, math.inf, math.nan, True, "1", None],
}


@pytest.mark.parametrize(("name", "number"), [(name, number) for name, numbers in BAD.items() for number in numbers])
def test_a_number_that_makes_no_sense_is_refused_by_its_name(name: str, number: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} is a .*, not {number!r}$"):
        RetryPolicy(**{name: number})


@pytest.mark.parametrize("name", ["retry_on", "give_up_on"])
@pytest.mark.parametrize("kinds", [None, "OSError", OSError(), [OSError], int, (OSError, int), (OSError, (KeyError,))])
def test_what_is_no_class_of_errors_is_refused(name: str, kinds: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name} is a class of errors, or a tuple of them, not "):
        RetryPolicy(**{name: kinds})


def test_a_policy_is_a_value() -> None:
    policy = RetryPolicy(retries=3, retry_on=(OSError,))
    assert policy == RetryPolicy(retries=3, retry_on=(OSError,))
    assert len({policy, RetryPolicy(retries=3, retry_on=(OSError,))}) == 1
    with pytest.raises(FrozenInstanceError):
        policy.retries = 4  # type: ignore[misc]


# ------------------------------------------------------------------ restarts


def test_a_delay_doubles_from_a_tenth_of_a_second_up_to_a_minute() -> None:
    delays = [restart_delay(number) for number in range(1, 14)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0, 60.0]


@given(strikes, st.floats(-1, 1))
def test_jitter_moves_a_delay_by_a_tenth_at_most(number: int, jitter: float) -> None:
    plain = restart_delay(number)
    assert FIRST_DELAY <= plain <= LONGEST_DELAY
    assert abs(restart_delay(number, jitter) - plain) <= plain * JITTER * 1.000001
    assert restart_delay(number, jitter) > 0


@given(strikes)
def test_a_later_restart_never_waits_less(number: int) -> None:
    assert restart_delay(number) <= restart_delay(number + 1)


@given(st.integers(0, 200), limits)
def test_one_more_strike_of_a_suspect_holds_it(number: int, limit: int | None) -> None:
    if is_suspect(number, limit):
        assert not is_out(number, limit)
        assert is_out(number + 1, limit)
        assert number > 0


@given(st.integers(2, 100))
def test_each_task_is_a_suspect_once_before_it_is_out(limit: int) -> None:
    life = list(itertools.takewhile(lambda number: not is_out(number, limit), itertools.count()))
    assert [number for number in life if is_suspect(number, limit)] == [limit - 1]


@given(st.integers(0, 10**9))
def test_without_a_limit_nobody_is_out_or_suspect(number: int) -> None:
    assert not is_out(number, None)
    assert not is_suspect(number, None)


def test_three_strikes_are_the_default() -> None:
    assert STRIKE_LIMIT == 3
