"""Who is active here: task id to live actor, and what may be active at once."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from actors.activation import Activation
from actors.task_actor import TaskActor
from actors.task_log import TaskLog
from domain.errors import OwnershipLost, PerdureError
from domain.retry import LONGEST_DELAY, restart_delay
from stores import IndexRow

logger = logging.getLogger("perdure")

FIRST_QUIET, BUSY_SHARE = 1.0, 4.0
"""Seconds for which nobody is let in at first, so that a suspect can be alone; how much longer the others go on then.

Each time it is twice as long: a suspect comes to its turn, whatever lasts, and the worker is at work for most of it.
"""


class Directory:
    """The live task actors of one worker, at most `limit` at once; a suspect is alone until its first new outcome.

    Safe in all threads. A place is taken before an actor starts, and given back when its end was told.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lent: Counter[str] = Counter()
        self._suspects: set[str] = set()
        self._another_suspect = False
        self._window = self._quiet_until = 0.0
        self._ways: dict[str, threading.Event] = {}
        self._actors: dict[str, TaskActor | None] = {}
        self._reserved: dict[str, threading.Event] = {}
        self._rung: set[str] = set()
        self._falls: dict[str, tuple[int, float]] = {}
        self._changed = threading.Condition()
        self._hastened = False

    def admit(self, task_id: str, way: threading.Event, *, alone: bool = False) -> bool:
        """Take a place for a task, if there is one. `way` is set when it is to make way for a suspect.

        For a suspect that cannot be alone yet those who run make way, but for another suspect: that one does so
        after its first outcome. Nobody else is let in meanwhile, for a while; where a long body outlasts that, the
        others go on for some time, and then it is longer.
        """
        with self._changed:
            if task_id in self._actors or self.free() <= 0 or (alone and len(self._actors) > self._lenders()):
                if alone:
                    self._keep_quiet()
                return False
            self._actors[task_id], self._ways[task_id] = None, way
            if alone:
                self._suspects.add(task_id)
                self._another_suspect, self._window = False, 0.0
            return True

    def _keep_quiet(self) -> None:
        """Let who runs make way, and nobody in, unless that was tried a moment ago."""
        now = time.monotonic()
        if not self._window or now >= self._quiet_until + BUSY_SHARE * self._window:
            self._window = self._window * 2 or FIRST_QUIET
            self._quiet_until = now + self._window
            self._make_way()

    def is_quiet(self) -> bool:
        """Tell whether nobody but a suspect is let in."""
        with self._changed:
            return self._window > 0 and time.monotonic() < self._quiet_until

    def _make_way(self) -> None:
        self._another_suspect = True
        for task_id, way in self._ways.items():
            if task_id not in self._suspects:
                way.set()

    def reserve(self, task_id: str, way: threading.Event) -> bool:
        """Take a place for a task that is about to be made, if there is one, until it is taken up or given back."""
        with self._changed:
            if not self.admit(task_id, way):
                return False
            self._reserved[task_id] = way
            return True

    def take_up(self, task_id: str, way: threading.Event) -> bool:
        """Take up a place that was reserved; False where it was given back meanwhile."""
        with self._changed:
            if self._reserved.get(task_id) is not way:
                return False
            del self._reserved[task_id]
            return True

    def give_back(self, task_id: str, way: threading.Event) -> bool:
        """Give a place back that was reserved, unless it was taken up; tells whether it was."""
        with self._changed:
            if self._reserved.get(task_id) is not way:
                return False
            del self._reserved[task_id], self._actors[task_id], self._ways[task_id]
            self._changed.notify_all()
            return True

    def forsake(self) -> None:
        """Give back all places that were reserved: who was to start their actors may have died. A look finds them."""
        with self._changed:
            for task_id, way in list(self._reserved.items()):
                self.give_back(task_id, way)

    def enter(self, task_id: str, actor: TaskActor) -> None:
        """Enter the actor for which a place was taken, unless it has ended already."""
        with self._changed:
            if self._is_place_of(task_id, actor):
                self._actors[task_id] = actor

    def leave(self, task_id: str, actor: TaskActor, *, fell: bool = False) -> None:
        """Give an actor's place back, once; one that fell by no fault of its agent's rests longer each time."""
        with self._changed:
            if not self._is_place_of(task_id, actor):
                return
            del self._actors[task_id], self._ways[task_id]
            falls, _ = self._falls.pop(task_id, (0, 0.0))
            if fell:
                self._falls[task_id] = falls + 1, time.monotonic() + restart_delay(falls + 1)
            self._suspects.discard(task_id)
            self._changed.notify_all()

    def _is_place_of(self, task_id: str, actor: TaskActor) -> bool:
        """Tell whether the task's place was taken for this actor, and not for one before it or after it.

        Its way says so from the moment at which the place is taken: the actor itself is entered only later.
        """
        return self._ways.get(task_id) is actor.hints.way

    def resting(self) -> set[str]:
        """List the tasks that fell and are still to be left alone; what has not come again for long is forgotten."""
        with self._changed:
            now = time.monotonic()
            self._falls = {name: fall for name, fall in self._falls.items() if fall[1] + LONGEST_DELAY > now}
            return {task_id for task_id, (_, until) in self._falls.items() if until > now}

    def proven(self, task_id: str) -> bool:
        """Let others in again where this is a suspect, which has got somewhere; tells whether it is one."""
        with self._changed:
            if task_id not in self._suspects:
                return False
            self._suspects.discard(task_id)
            if self._another_suspect:
                self._ways[task_id].set()
            return True

    def free(self) -> int:
        """Count the places that are free now; a suspect has them all, but for one that it lends."""
        with self._changed:
            limit = 1 if self._suspects else self._limit
            return limit + self._lenders() - len(self._actors)

    def _lenders(self) -> int:
        """Count the places that are lent: by tasks that have one."""
        return len(self._lent.keys() & self._actors.keys())

    def hosts(self, task_id: str) -> bool:
        """Tell whether a task has a place."""
        return task_id in self._actors

    def hosted(self) -> dict[str, TaskActor | None]:
        """List the tasks that have a place, and their actors; None for one that is just starting."""
        with self._changed:
            return dict(self._actors)

    def ring(self, task_id: str) -> None:
        """Have a task looked at soon: somebody here has put something into its log."""
        with self._changed:
            if task_id in self._actors:
                self._rung.add(task_id)

    def rung(self) -> set[str]:
        """Give the tasks that are to be looked at, once."""
        with self._changed:
            rung, self._rung = self._rung, set()
            return rung

    def compare(self, log: TaskLog, only: Collection[str] | None = None) -> None:
        """Look whether the tasks that have a place are still ours, and whether there is news of them in their logs.

        A lost one starts no further body. One that was called off, and has not ended within its grace, loses its place.
        """
        for task_id, actor in self.hosted().items():
            activation = actor.activation if actor is not None else None
            if activation is None or activation.closed is not None or (only is not None and task_id not in only):
                continue
            row = log.recorder.select_entry(task_id)
            if row is None or row.birth != activation.task.birth or row.activation > activation.number:
                activation.lose(OwnershipLost(f"task {task_id}: ownership lost to another worker"))
                continue
            try:
                self._look_at(row, activation)
                if activation.cut_short() and actor is not None:
                    self.leave(task_id, actor)
            except (OwnershipLost, PerdureError) as error:
                logger.debug("task %s is not looked at: %s", task_id, error)

    def _look_at(self, row: IndexRow, activation: Activation) -> None:
        activation.expire()
        if row.head > activation.task.version:
            activation.read_news()
        activation.call_off()

    def wait_empty(self, timeout: float) -> bool:
        """Wait until no place is taken, at most `timeout` seconds, and not at all any more after `hasten`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._actors or self._hastened, timeout)
            return not self._actors

    def hasten(self) -> None:
        """Let who waits for places to be given back wait no longer."""
        with self._changed:
            self._hastened = True
            self._changed.notify_all()

    @contextmanager
    def lend(self, task_id: str) -> Iterator[None]:
        """Lend a task's place while its body waits for another task: a waiter never starves what it waits for."""
        with self._changed:
            self._lent[task_id] += 1
        try:
            yield
        finally:
            with self._changed:
                self._lent[task_id] -= 1
                self._lent = +self._lent
