"""What time it is, how to wait, and a clock for tests that moves only when it is told."""

from __future__ import annotations

import math
import secrets
import threading
import time
from functools import cached_property

from domain.waits import Moment

LOOK_AGAIN = 0.05
"""Real seconds after which who waits by a fake clock looks again, come what may."""


class Clock:
    """The machine's own time.

    Guaranteed: `monotonic()` never goes back. Not guaranteed: that of `now()`, which people and machines set.
    """

    jumps = False
    """Whether time passes by itself, or only where nothing else goes on."""
    _ahead = -math.inf

    def now(self) -> float:
        """Tell the time as Unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Tell the seconds since some moment: only the difference of two answers has a meaning."""
        return time.monotonic()

    def moment(self) -> Moment:
        """Tell the time by both clocks; the monotonic one has a timeline of its own in each process."""
        wall, mono = self.now(), self.monotonic()
        self._ahead = max(self._ahead, wall - mono)
        return Moment(wall, self._timeline, mono)

    def steady(self) -> float:
        """Tell what `now()` would say if nobody had ever set it back, as far as `moment` has seen, in Unix seconds."""
        _, _, mono = self.moment()
        return self._ahead + mono

    @cached_property
    def _timeline(self) -> str:
        return secrets.token_hex(4)

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait on `condition`, which the caller holds, for at most `seconds`; None: until notified.

        Not guaranteed: that anything has happened when it returns. Look again.
        """
        condition.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))

    def idle(self, until: float | None) -> None:
        """Hear that the caller has nothing to do before `until`, Unix seconds; None: for ever. Real time ignores it."""


class FakeClock(Clock):
    """A clock for tests: it stands still, but for `advance`, and, with `jump=True`, for `idle`.

        clock = FakeClock()
        clock.advance(3600)     # whoever waits for less than an hour is awake

    Guaranteed: time never goes back, but for `set_wall`; who waits looks again within 0.05 real seconds, whatever
    wake-up was lost. Not guaranteed: that it has returned when `advance` does.
    """

    def __init__(self, start: float = 1_700_000_000.0, *, jump: bool = False) -> None:
        self._now, self.jumps = start, jump
        self._set_by = 0.0
        self._lock = threading.Lock()
        self._waiters: dict[object, tuple[float, threading.Condition]] = {}

    def now(self) -> float:
        """Tell the fake time as Unix seconds."""
        with self._lock:
            return self._now + self._set_by

    def monotonic(self) -> float:
        """Tell the same as `now()`, but for what `set_wall` has changed: one fake time drives both."""
        with self._lock:
            return self._now

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock on, or back where `seconds` is negative, as people and machines do; no time passes."""
        with self._lock:
            self._set_by += seconds
        self._wake(math.inf)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and wake who waited for no more than that. Raises ValueError for less than nothing."""
        if not 0 <= seconds < math.inf:
            raise ValueError(f"time never goes back, nor does it end: advance({seconds}) is no step forward")
        with self._lock:
            self._now += seconds
        self._wake()

    def idle(self, until: float | None) -> None:
        """Jump to `until`, where that is later than now and this clock was made with `jump=True`."""
        if not self.jumps or until is None or not math.isfinite(until):
            return
        with self._lock:
            self._now = max(self._now, until - self._set_by)
            while self._now + self._set_by < until:  # the difference was rounded
                self._now = math.nextafter(self._now, math.inf)
        self._wake()

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait on `condition`, which the caller holds, until notified or `seconds` of fake time have passed.

        None: until notified. Otherwise no longer than 0.05 real seconds: a notification that comes at the very end of
        a wait with a time limit is lost, and nobody is told. Look again.
        """
        if seconds is None:
            condition.wait()
            return
        waiter = object()
        with self._lock:
            until = self._now + seconds
            self._waiters[waiter] = until, condition
        try:  # even who has nothing to wait for lets the others in, as by a real clock
            condition.wait(LOOK_AGAIN if self.monotonic() < until else 0)
        finally:
            with self._lock:
                del self._waiters[waiter]

    def _wake(self, until: float | None = None) -> None:
        """Notify who waits for a time that has come, but never wait for a lock: the caller may hold it itself."""
        with self._lock:
            come = self._now if until is None else until
            due = {condition for until, condition in self._waiters.values() if until <= come}
        for condition in due:
            if condition.acquire(blocking=False):
                try:
                    condition.notify_all()
                finally:
                    condition.release()
