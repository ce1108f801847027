"""Who is active here: task id to live actor, and what may be active at once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from actors.task_actor import TaskActor
from domain.retry import LONGEST_DELAY, restart_delay


class Directory:
    """The live task actors of one worker, at most `limit` at once; a suspect is alone until its first new outcome.

    Safe in all threads. A place is taken before an actor starts, and given back when its end was told.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lent: Counter[str] = Counter()
        self._suspects: set[str] = set()
        self._actors: dict[str, TaskActor | None] = {}
        self._falls: dict[str, tuple[int, float]] = {}
        self._changed = threading.Condition()
        self._hastened = False

    def admit(self, task_id: str, *, alone: bool = False) -> bool:
        """Take a place for a task, if there is one."""
        with self._changed:
            if task_id in self._actors or self.free() <= 0 or (alone and len(self._actors) > self._lenders()):
                return False
            self._actors[task_id] = None
            if alone:
                self._suspects.add(task_id)
            return True

    def enter(self, task_id: str, actor: TaskActor) -> None:
        """Enter the actor for which a place was taken, unless it has ended already."""
        with self._changed:
            if task_id in self._actors:
                self._actors[task_id] = actor

    def leave(self, task_id: str, *, fell: bool = False) -> None:
        """Give a place back; one that fell by no fault of its agent's rests a little longer each time."""
        with self._changed:
            self._actors.pop(task_id, None)
            falls, _ = self._falls.pop(task_id, (0, 0.0))
            if fell:
                self._falls[task_id] = falls + 1, time.monotonic() + restart_delay(falls + 1)
            self._suspects.discard(task_id)
            self._changed.notify_all()

    def resting(self) -> set[str]:
        """List the tasks that fell and are still to be left alone; what has not come again for long is forgotten."""
        with self._changed:
            now = time.monotonic()
            self._falls = {name: fall for name, fall in self._falls.items() if fall[1] + LONGEST_DELAY > now}
            return {task_id for task_id, (_, until) in self._falls.items() if until > now}

    def proven(self, task_id: str) -> None:
        """Let others in again: the suspect has got somewhere."""
        with self._changed:
            self._suspects.discard(task_id)

    def free(self) -> int:
        """Count the places that are free now; a suspect has them all, but for one that it lends."""
        with self._changed:
            limit = 1 if self._suspects else self._limit
            return limit + self._lenders() - len(self._actors)

    def _lenders(self) -> int:
        """Count the places that are lent: by tasks that have one."""
        return len(self._lent.keys() & self._actors.keys())

    def hosted(self) -> dict[str, TaskActor | None]:
        """List the tasks that have a place, and their actors; None for one that is just starting."""
        with self._changed:
            return dict(self._actors)

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
