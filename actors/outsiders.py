"""What brings something to tasks from outside; the last few are remembered: much for one of them costs little."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from actors.appender import Appender
from actors.parts import Decide
from actors.task_log import TaskLog
from domain.errors import PerdureError
from domain.task import AgentTask
from stores import StoreUnavailableError

MOST = 8
"""Tasks that are remembered: their logs were read already, and only what is new has to be."""
KEPT = 5.0
"""Seconds without a further word after which they are forgotten, when somebody looks."""


class Outsiders:
    """Appends to logs of tasks that others may run. Safe in all threads."""

    def __init__(self, log: TaskLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Appender, float]] = {}

    def append(self, task_id: str, decide: Decide) -> AgentTask:
        """Append, and give the task as it is then. Raises what `TaskLog.load` and `Appender.append` do.

        The decision is made on what the log has now, even where it comes to nothing.
        """
        appender = self._remembered(task_id) or Appender(self._log, self._log.load(task_id))
        appender.append(decide)
        if appender.task.ending is None:
            with self._lock:
                self._known[task_id] = appender, time.monotonic()
                while len(self._known) > MOST:
                    del self._known[next(iter(self._known))]
        return appender.task

    def tidy(self) -> None:
        """Forget who has not been brought anything for a while."""
        if self._known:
            now = time.monotonic()
            with self._lock:
                self._known = {name: known for name, known in self._known.items() if known[1] + KEPT > now}

    def _remembered(self, task_id: str) -> Appender | None:
        """Take who is remembered, read on; None where it is not, or is another life of that id by now."""
        with self._lock:
            appender, _ = self._known.pop(task_id, (None, 0.0))
        if appender is None:
            return None
        with suppress(PerdureError, StoreUnavailableError):  # who reads anew says it better, or waits
            row = self._log.recorder.select_entry(task_id)
            if row is not None and row.birth == appender.task.birth:
                appender.catch_up()
                return appender
        return None
