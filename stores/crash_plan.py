"""What is to go wrong, and where: deaths and faults as policies, for the points of a store for crash tests."""

import threading
from collections.abc import Callable
from typing import Protocol


class SimulatedCrash(BaseException):
    """Raised where a real process would have died.

    A BaseException, so that no handler of errors takes it for one. `point`: where the process "died".
    """

    def __init__(self, point: str) -> None:
        super().__init__(point)
        self.point = point

    def __str__(self) -> str:
        return f"the process has died at {self.point} (simulated)"


class Plan(Protocol):
    """What is to go wrong, and where."""

    @property
    def dead(self) -> bool:
        """Whether the process has died (simulated)."""

    def reach(self, point: str, **facts: object) -> None:
        """Take notice of a point; raise if this is where it goes wrong."""

    def check(self) -> None:
        """Raise SimulatedCrash if the process has died already."""


class CrashPlan:
    """Die at the `nth` point reached (from 1) of those named `point`, or of all when that is None.

    `nth` None: never, only keep the list. By default to die is to raise SimulatedCrash, there and at
    whatever is reached or asked ever after (`dead`); `die` is called instead, for a real death, and if it
    returns the plan goes on counting. `points`: the names reached, in order, whether they match or not.
    Any thread may reach a point.
    """

    def __init__(self, nth: int | None, point: str | None = None, die: Callable[[], object] | None = None) -> None:
        self.nth = nth
        self.point = point
        self.die = die
        self.points: list[str] = []
        self._count = 0
        self._crash: str | None = None
        self._mutex = threading.Lock()

    @property
    def dead(self) -> bool:
        """Whether the process has died (simulated)."""
        return self._crash is not None

    def reach(self, point: str, **_: object) -> None:
        """Count a point, and die if it is the one."""
        with self._mutex:
            self.check()
            self.points.append(point)
            matches = self.point in (None, point)
            self._count += matches
            due = matches and self._count == self.nth
            if due and self.die is None:
                self._crash = point
                self.check()
        if due and self.die is not None:
            self.die()

    def die_now(self, point: str) -> None:
        """Die at this point, whatever the count says; it is raised from the next thing that is reached or asked."""
        self._crash = self._crash or point

    def check(self) -> None:
        """Raise SimulatedCrash if the process has died already."""
        if self._crash is not None:
            raise SimulatedCrash(self._crash)


class FaultPlan:
    """Fail the next `times` points named `point` (any when None) with `error`; nobody dies.

    `error`: an exception, or what makes one (a class, a function). `failed`: how many times it has.
    """

    def __init__(self, times: int, point: str | None, error: BaseException | Callable[[], BaseException]) -> None:
        self.times = times
        self.point = point
        self.error = error
        self.failed = 0
        self._mutex = threading.Lock()

    dead = False

    def reach(self, point: str, **_: object) -> None:
        """Fail if the point is one of those to fail and its times are not used up."""
        with self._mutex:
            if self.failed >= self.times or self.point not in (None, point):
                return
            self.failed += 1
        raise self.error if isinstance(self.error, BaseException) else self.error()

    def check(self) -> None:
        return
