"""Restarts: numbers in, decisions out."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from domain.retry import FIRST_DELAY, JITTER, LONGEST_DELAY, STRIKE_LIMIT, is_out, is_suspect, restart_delay

strikes = st.integers(1, 10**6)
limits = st.none() | st.integers(1, 100)


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
