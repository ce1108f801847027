"""What a system has to run things on: its clock, its threads, and the loop that its async agents share."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from actors.clock import Clock
from actors.definitions import step_of
from actors.info import VALUE_LIMIT
from actors.output import Output
from actors.threads import Threads

if TYPE_CHECKING:
    from actors.loop import Frames, SharedLoop

logger = logging.getLogger("perdure")

COMMITTERS = 16
"""Threads on which appends of async agents and the `_async` methods wait for the store."""


class Runtime:
    """Clock, threads and loop of one system, each made when it is first needed; and how large a value may be."""

    def __init__(self, clock: Clock | None = None, value_limit: int = VALUE_LIMIT) -> None:
        self.clock = clock or Clock()
        self.value_limit = value_limit
        self.threads = Threads("perdure-body")
        self.commits = Threads("perdure-commit", limit=COMMITTERS)
        self.tasks = Threads("TaskActor", idle=0.5, queues=False)
        self.output = Output(self.threads)
        self.entities: Any = None  # the `Entities` of the system, which has made this
        self._loop: SharedLoop | None = None
        self._making = threading.Lock()

    @property
    def loop(self) -> SharedLoop:
        """The loop that all async agents of this system share."""
        from actors.loop import SharedLoop  # noqa: PLC0415  asyncio is for those who use it

        with self._making:
            if self._loop is None:
                self._loop = SharedLoop(on_blocked=_name_blocker)
            return self._loop

    def close(self) -> None:
        """Store what was emitted, send idle threads home, cancel what is left on the loop, and end it."""
        self.output.close()
        self.threads.dismiss()
        self.commits.dismiss()
        self.tasks.dismiss()
        if self._loop is not None:
            self._loop.close()


def _name_blocker(seconds: float, frames: Frames) -> None:
    """Warn of what blocks the loop, by the name of the step where it is one."""
    from actors.loop import log_blocked  # noqa: PLC0415

    found = [(step, code, line) for code, line in frames if (step := step_of(code)) is not None]
    if not found:
        log_blocked(seconds, frames)
        return
    step, code, line = found[-1]
    logger.warning(
        "step %s has blocked the event loop that all async agents share for %.1f s, at %s:%d: nothing else runs on it"
        " meanwhile; make it a plain def step and await %s.aio(…), or await in it",
        *(step.name, seconds, code.co_filename, line, step.name),
    )
