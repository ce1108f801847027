"""The lines of execution of one activation, and how they wait together.

An agent's main line, and each branch on a thread or in an asyncio task of its own, is a line. A line that waits keeps
its place while others run. When all of them wait, and for longer than a moment, the task is unwound. Lines on a loop
have no thread each: one waits for them all.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from actors.clock import Clock
from actors.threads import Job, Threads

LINGER = 1.0
"""Seconds that a task which only waits for a time keeps its place; what waits for longer is unwound: one row."""
HOPE = 0.2
"""Seconds that a task which waits for others keeps its place, where nobody else needs it."""

GLANCE = 0.05
"""Seconds between two looks of who keeps its place for longer than that: a task that cleans up."""
LOOK_AGAIN = 1.0
"""Seconds after which who waits in place looks at the clocks again: somebody may have set the one on the wall."""

CALLS = 10
"""Calls after the end of an activation that are refused at once; who calls on is kept for longer and longer."""

Left = Callable[[], float | None]
"""Tells the seconds until a wait may be over by time; None where it has no time."""
Over = Callable[[], bool]
"""Tells whether a wait may be over by anything else."""


class Lines(ABC):
    """What the lines of one activation share. Safe in all threads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._gate = threading.Condition()
        self._lines, self._by_hand = 1, 0
        self._waits: dict[object, tuple[Left, Over]] = {}
        self._joins: dict[object, Over] = {}
        self._newest = 0.0
        self._awaited: dict[Job[None], tuple[Left, Over]] = {}
        self._kept = False
        self._pinned = self._refused = 0

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
    def look(self) -> None:
        """Have the worker look whether there is nothing left but time to pass; the gate is held."""

    @abstractmethod
    def leave(self, rest: float | None, *, waits: bool) -> NoReturn:
        """Unwind the task: it is to stop, or (`waits`) all of it waits, for `rest` seconds where it has a time."""

    def seconds_for_who_goes_on(self) -> float:
        """Count a call that comes after the end, and tell for how long who goes on all the same is to be kept.

        Code that catches even this and tries again, in a loop, would take a processor, or the loop, from all others.
        """
        self._refused += 1
        return 0.0 if self._refused <= CALLS else min(1.0, 0.001 * 2 ** min(self._refused - CALLS, 10))

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

    def wait_for(self, left: Left, over: Over) -> None:
        """Wait in place until no time is left, or it is `over()`, for which `wake` has to be called.

        Where all of the task waits for longer than a moment, it is unwound. Raises what closed the activation, also
        while it waits.
        """
        me = object()
        with self._gate:
            self._waits[me], self._newest = (left, over), time.monotonic()
            self._gate.notify_all()
        try:
            while not self._waited(left, over):
                pass
        finally:
            with self._gate:
                del self._waits[me]

    def await_for(self, threads: Threads, left: Left, over: Over) -> Job[None]:
        """Begin to wait as `wait_for` does, for a line that may not block: the job is done when it is to look again.

        Who waits no longer has to `forget` it. The job raises what closed the activation meanwhile. Raises that too,
        and NoThreadError.
        """
        job: Job[None] = Job()
        with self._gate:
            self.check()
            if not self._kept:
                threads.start(self._keep)
            self._kept = True
            self._awaited[job] = self._waits[job] = left, over
            self._newest = time.monotonic()
            self._gate.notify_all()
        return job

    def forget(self, job: Job[None]) -> None:
        """Wait for that job no longer."""
        with self._gate:
            self._awaited.pop(job, None)
            self._waits.pop(job, None)
            self._gate.notify_all()

    def join(self, over: Over) -> None:
        """Wait until `over()`, which other lines of execution bring about by ending, unwound or not."""
        with self.joining(over), self._gate:
            self._gate.wait_for(over)

    @contextmanager
    def joining(self, over: Over) -> Iterator[None]:
        """Count the line of execution that calls among those that wait, until `over()`.

        That has to be so before the last of the others is dropped: a line that is about to go on waits for nothing.
        """
        me = object()
        with self._gate:
            self._joins[me], self._newest = over, time.monotonic()
            self._gate.notify_all()
        try:
            yield
        finally:
            with self._gate:
                del self._joins[me]

    def rests(self) -> float | None:
        """Tell for how many seconds nothing but time goes on here, as far as one can tell; None where more does.

        So it is where the task is about to be unwound.
        """
        with self._gate:
            if not (self._all_wait() or self._waits_for_hands()):
                return None
            if not self._waits or any(over() for _, over in self._waits.values()):
                return None
            rest = self._first_left()
            leaves = self._all_wait() and (rest is None or rest > LINGER)
            if leaves and not self.keeps_place(time.monotonic() - self._newest):
                return None  # it is about to be unwound
        return math.inf if rest is None else rest if rest > 0 else None

    def _keep(self) -> None:
        """Wait for all lines that may not block, until there is none."""
        try:
            while self._keeps_on():
                if self._waited(self._first_awaited, self._is_any_over):
                    self._let_go([job for job, (left, over) in self._awaited_now() if over() or _has_come(left())])
        except BaseException as error:  # it has closed the activation, of which each line hears
            self._let_go([job for job, _ in self._awaited_now()], error)

    def _is_any_over(self) -> bool:
        return not self._awaited or any(over() for _, over in self._awaited.values())

    def _keeps_on(self) -> bool:
        with self._gate:
            self._kept = bool(self._awaited)
            return self._kept

    def _awaited_now(self) -> list[tuple[Job[None], tuple[Left, Over]]]:
        with self._gate:
            return list(self._awaited.items())

    def _let_go(self, jobs: Iterable[Job[None]], error: BaseException | None = None) -> None:
        for job in jobs:
            self.forget(job)
            if error is None:
                job.succeed(None)
            else:
                job.fail(error)

    def _waited(self, left: Left, over: Over) -> bool:
        """Wait once; tells whether the wait is over."""
        with self._gate:
            self.check()
            mine = left()
            if over() or _has_come(mine):
                return True
            alone = self._all_wait()
            rest = self._first_left()
            if not self.asked_to_stop() and self._stays(mine, rest, alone=alone):
                return False
        return self.leave(rest, waits=alone)

    def _stays(self, mine: float | None, rest: float | None, *, alone: bool) -> bool:
        """Wait for a moment in place; False where the task is to be unwound, for all of it waits."""
        idle = alone or self._waits_for_hands()
        if idle and self.clock.jumps:
            self.look()
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
        return bool(self._by_hand) and not self._pinned and not self.runs_bodies() and self._number() == self._lines - 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Keep the task in its place for as long as this lasts, whatever waits."""
        with self._gate:
            self._pinned += 1
        try:
            yield
        finally:
            with self._gate:
                self._pinned -= 1

    def _all_wait(self) -> bool:
        return not self._pinned and self._number() >= self._lines

    def _number(self) -> int:
        """Count the lines that wait."""
        return len(self._waits) + sum(not over() for over in self._joins.values())

    def _first_left(self) -> float | None:
        return _first([left for left, _ in self._waits.values()])

    def _first_awaited(self) -> float | None:
        return _first([left for left, _ in self._awaited.values()])


def _first(lefts: Iterable[Left]) -> float | None:
    found = [left() for left in lefts]
    return min((left for left in found if left is not None), default=None)


def _has_come(left: float | None) -> bool:
    return left is not None and left <= 0
