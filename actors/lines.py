"""The lines of execution of one activation, and how they wait together.

An agent's main line, and each branch on a thread or in an asyncio task of its own, is a line. A line that waits keeps
its place while others run. When all of them wait, and for longer than a moment, the task is unwound.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NoReturn

from actors.clock import Clock

LINGER = 1.0
"""Seconds that a task which only waits for a time keeps its place; what waits for longer is unwound: one row."""
HOPE = 0.2
"""Seconds that a task which waits for others keeps its place, where nobody else needs it."""

GLANCE = 0.05
"""Seconds between two looks of who keeps its place for longer than that: a task that cleans up."""
LOOK_AGAIN = 1.0
"""Seconds after which who waits in place looks at the clocks again: somebody may have set the one on the wall."""

Left = Callable[[], float | None]
"""Tells the seconds until a wait may be over by time; None where it has no time."""


class Lines(ABC):
    """What the lines of one activation share. Safe in all threads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._gate = threading.Condition()
        self._lines, self._by_hand = 1, 0
        self._lefts: dict[object, Left | None] = {}
        self._newest = 0.0

    # ------------------------------------------------------------------ what an activation knows

    @abstractmethod
    def check(self) -> None:
        """Raise what this activation was closed by, if it was."""

    @abstractmethod
    def asked_to_stop(self) -> bool:
        """Tell whether the task is to stop."""

    @abstractmethod
    def runs_bodies(self) -> bool:
        """Tell whether a body runs; the gate is held."""

    @abstractmethod
    def keeps_place(self, waited: float) -> bool:
        """Tell whether a task that has waited for others for so long is to keep its place; the gate is held."""

    @abstractmethod
    def leave(self, rest: float | None, *, waits: bool) -> NoReturn:
        """Unwind the task: it is to stop, or (`waits`) all of it waits, for `rest` seconds where it has a time."""

    # ------------------------------------------------------------------ counting

    def wake(self) -> None:
        """Make who waits here look again."""
        with self._gate:
            self._gate.notify_all()

    def add_line(self, *, by_hand: bool = False) -> None:
        """Count one more line of execution: a branch on a thread, or in an asyncio task, of its own."""
        with self._gate:
            self._lines += 1
            self._by_hand += by_hand

    def drop_line(self, *, by_hand: bool = False) -> None:
        """Count one line of execution less; if all that are left wait, the task is unwound."""
        with self._gate:
            self._lines -= 1
            self._by_hand -= by_hand
            self._gate.notify_all()

    # ------------------------------------------------------------------ waiting

    def wait_for(self, left: Left, over: Callable[[], bool]) -> None:
        """Wait in place until no time is left, or it is `over()`, for which `wake` has to be called.

        Where all of the task waits for longer than a moment, it is unwound. Raises what closed the activation, also
        while it waits.
        """
        with self._waiting(left):
            while not self._waited(left, over):
                pass

    def join(self, over: Callable[[], bool]) -> None:
        """Wait until `over()`, which other lines of execution bring about by ending, unwound or not."""
        with self.joining(), self._gate:
            self._gate.wait_for(over)

    def joining(self) -> AbstractContextManager[None]:
        """Count the line of execution that calls among those that wait."""
        return self._waiting(None)

    @contextmanager
    def _waiting(self, left: Left | None) -> Iterator[None]:
        me = object()
        with self._gate:
            self._lefts[me], self._newest = left, time.monotonic()
            self._gate.notify_all()
        try:
            yield
        finally:
            with self._gate:
                del self._lefts[me]

    def _waited(self, left: Left, over: Callable[[], bool]) -> bool:
        """Wait once; tells whether the wait is over."""
        with self._gate:
            self.check()
            mine = left()
            if over() or (mine is not None and mine <= 0):
                return True
            alone = len(self._lefts) >= self._lines
            rest = self._first_left()
            if not self.asked_to_stop() and self._stays(mine, rest, alone=alone):
                return False
        return self.leave(rest, waits=alone)

    def _stays(self, mine: float | None, rest: float | None, *, alone: bool) -> bool:
        """Wait for a moment in place; False where the task is to be unwound, for all of it waits."""
        idle = alone or self._waits_for_hands()
        if idle:
            self.clock.idle(None if rest is None else self.clock.now() + rest)
        if not alone or (rest is not None and rest <= LINGER):
            lefts = [left for left in (mine, rest, LOOK_AGAIN) if left is not None]
            self.clock.wait(self._gate, max(0.0, min(lefts)))
            return True
        waited = time.monotonic() - self._newest
        if not self.keeps_place(waited):
            return False
        self._gate.wait(HOPE - waited if waited < HOPE else GLANCE)
        return True

    def _waits_for_hands(self) -> bool:
        """Tell whether only the main line does not wait, as far as one can tell here.

        It may sit in a join of its own, for lines that were opened by hand.
        """
        return bool(self._by_hand) and not self.runs_bodies() and len(self._lefts) == self._lines - 1

    def _first_left(self) -> float | None:
        lefts = [left() for left in self._lefts.values() if left is not None]
        return min((left for left in lefts if left is not None), default=None)
