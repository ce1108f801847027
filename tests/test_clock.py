"""Clocks: real time passes by itself, fake time when it is told; neither leaves a waiter behind."""

import threading
import time
from collections.abc import Callable

import pytest

from actors.clock import Clock, FakeClock

PATIENCE = 30.0
START = 1_700_000_000.0


class Waiter(threading.Thread):
    """Waits for fake seconds to pass, again and again until they have; `woken` tells when it is through."""

    def __init__(self, clock: Clock, seconds: float | None, condition: threading.Condition | None = None) -> None:
        super().__init__(daemon=True)
        self.clock, self.seconds, self.until = clock, seconds, clock.monotonic() + (seconds or 0)
        self.condition = condition or threading.Condition()
        self.waits, self.woken, self.wakings = threading.Event(), threading.Event(), 0

    def run(self) -> None:
        with self.condition:
            self.waits.set()
            while self.seconds is None or self.clock.monotonic() < self.until:
                self.clock.wait(self.condition, self.seconds and self.until - self.clock.monotonic())
                self.wakings += 1
                if self.seconds is None:
                    break
        self.woken.set()


def waiting(clock: Clock, seconds: float | None, condition: threading.Condition | None = None) -> Waiter:
    """Start a waiter; returns when it waits."""
    waiter = Waiter(clock, seconds, condition)
    waiter.start()
    assert waiter.waits.wait(PATIENCE)
    with waiter.condition:  # free only when it waits
        return waiter


def test_the_real_clock_tells_the_machines_time() -> None:
    clock = Clock()
    before, after = (time.time(), time.monotonic()), (clock.now(), clock.monotonic())

    assert after >= before
    assert clock.monotonic() <= time.monotonic()
    assert (time.time() + 60) > clock.now() > (time.time() - 60)


def test_the_real_clock_waits_no_longer_than_asked() -> None:
    clock, condition = Clock(), threading.Condition()
    with condition:
        before = clock.monotonic()
        clock.wait(condition, 0.01)
        clock.wait(condition, 0)
        clock.wait(condition, -1)

    assert 0.01 <= clock.monotonic() - before < PATIENCE


@pytest.mark.parametrize("clock", [Clock, FakeClock])
@pytest.mark.parametrize("seconds", [None, float("inf"), 1e300])
def test_a_waiter_is_woken_by_a_notification(clock: Callable[[], Clock], seconds: float | None) -> None:
    condition, told = threading.Condition(), list[str]()

    def notify() -> None:
        with condition:
            told.append("told")
            condition.notify()

    teller = threading.Thread(target=notify, daemon=True)
    with condition:
        teller.start()
        while not told:
            clock().wait(condition, seconds)
    teller.join(PATIENCE)

    assert told == ["told"]


def test_real_time_ignores_who_is_idle() -> None:
    clock = Clock()
    clock.idle(clock.now() + 3600)
    clock.idle(None)

    assert abs(clock.now() - time.time()) < 60


def test_fake_time_stands_still_until_it_is_advanced() -> None:
    clock = FakeClock()
    assert (clock.now(), clock.now()) == (START, START)

    clock.advance(0.5)
    clock.advance(0)

    assert (clock.now(), clock.monotonic()) == (START + 0.5, START + 0.5)
    assert FakeClock(12.0).now() == 12.0


@pytest.mark.parametrize("seconds", [-0.1, float("nan"), float("inf")])
def test_fake_time_never_goes_back_nor_does_it_end(seconds: float) -> None:
    clock = FakeClock()
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(seconds)

    assert clock.now() == START


def test_advancing_wakes_those_whose_time_has_come_and_no_other() -> None:
    clock = FakeClock()
    soon, later = waiting(clock, 10), waiting(clock, 100)

    clock.advance(10)
    assert soon.woken.wait(PATIENCE)
    assert not later.woken.is_set()

    clock.advance(90)
    assert later.woken.wait(PATIENCE)
    assert (soon.wakings, later.wakings) == (1, 1)


def test_no_waiter_is_stuck_by_a_wake_up_that_was_lost() -> None:
    condition = threading.Condition(threading.Lock())
    clock = FakeClock()
    waiter = waiting(clock, 10, condition)

    with condition:  # whoever advances holds the very lock that a notification takes
        clock.advance(10)

    assert waiter.woken.wait(PATIENCE)


def test_who_waits_looks_again_after_a_moment_for_a_notification_may_be_lost() -> None:
    clock, condition, looked = FakeClock(), threading.Condition(), threading.Event()

    def wait() -> None:
        with condition:
            clock.wait(condition, 3600)
        looked.set()

    threading.Thread(target=wait, daemon=True).start()
    assert looked.wait(PATIENCE)


def test_who_waits_for_nothing_still_lets_the_others_in() -> None:
    clock, condition, been = FakeClock(), threading.Condition(), threading.Event()

    def enter() -> None:
        with condition:
            been.set()

    visitor = threading.Thread(target=enter, daemon=True)
    deadline = time.monotonic() + PATIENCE
    with condition:
        visitor.start()
        while not been.is_set() and time.monotonic() < deadline:
            clock.wait(condition, 0)

    assert been.is_set()


def test_a_clock_that_jumps_goes_to_where_there_is_something_to_do() -> None:
    clock = FakeClock(jump=True)
    waiter = waiting(clock, 3600)

    clock.idle(START + 3600.25)

    assert clock.now() == START + 3600.25
    assert waiter.woken.wait(PATIENCE)


@pytest.mark.parametrize("until", [None, START - 1, START, float("inf"), float("nan")])
def test_a_jump_never_goes_back_and_never_to_the_end_of_time(until: float | None) -> None:
    clock = FakeClock(jump=True)
    clock.idle(until)

    assert clock.now() == START


def test_a_clock_that_does_not_jump_ignores_who_is_idle() -> None:
    clock = FakeClock()
    clock.idle(START + 3600)

    assert clock.now() == START


def test_time_never_goes_back_for_any_thread() -> None:
    clock, together, wrong = FakeClock(jump=True), threading.Barrier(4), list[float]()

    def push(step: float) -> None:
        together.wait(PATIENCE)
        seen = clock.now()
        for n in range(500):
            clock.advance(step)
            clock.idle(START + n)
            now = clock.now()
            if now < max(seen + step, START + n):
                wrong.append(now)
            seen = now

    threads = [threading.Thread(target=push, args=(0.25 * n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert not wrong
    assert clock.now() >= START + 500 * 0.25 * 6


def test_a_thousand_short_waits_pass_by_fake_time_alone() -> None:
    clock = FakeClock(jump=True)
    condition = threading.Condition()
    with condition:
        for n in range(1000):
            clock.idle(START + n)
            clock.wait(condition, 0)

    assert clock.now() == START + 999
