"""One activation of a task: what keeps its agent's code and its log together, and how that closes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn

from actors.info import StepInfo
from actors.task_log import Appender, Decide
from domain.errors import Suspended
from domain.journal import Differs
from domain.task import DIFFERS, AgentTask

logger = logging.getLogger("perdure")

running_body: ContextVar[StepInfo | None] = ContextVar("perdure_body", default=None)
"""The step whose body runs in this context, also in threads to which the body has copied it."""


class StopAsked(Exception):  # noqa: N818  control flow, caught where it is raised for
    """Undoes the record of a start that no body may follow: the activation was asked to stop meanwhile."""


@dataclass
class Hints:
    """What a running activation and its surroundings tell each other, past the mailbox that its agent keeps busy.

    `stop` is looked at before each body. `proven` is called at the first outcome, `lend` while a body waits for a task.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    proven: Callable[[], None] = lambda: None
    lend: Callable[[], AbstractContextManager[None]] = nullcontext


class Activation:
    """One incarnation of a task's actor, on the thread that made it.

    It closes when it stops, for any reason: from then on every call in it raises the same exception again, and nothing
    runs and nothing is written. `probe` replays only: it closes where a body would run, and never writes.
    """

    def __init__(self, appender: Appender, number: int, hints: Hints | None = None, *, probe: bool = False) -> None:
        self.appender = appender
        self.task: AgentTask = appender.task
        self.store = appender.log.store
        self.number = number
        self.closed: BaseException | None = None
        self.body: StepInfo | None = None
        self.differs: Differs | None = None
        self.hints = hints or Hints()
        self._probe = probe
        self._proven = False
        self.thread = threading.get_ident()

    def is_here(self) -> bool:
        """Tell whether this is the activation's own thread: contexts can be copied to others."""
        return threading.get_ident() == self.thread

    def close(self, reason: BaseException) -> NoReturn:
        """Close for good: from now on every call raises `reason`."""
        if self.closed is None:
            self.closed = reason
        raise self.closed.with_traceback(None)

    def unless_stopped(self) -> None:
        """Undo the transaction in which it is called if the activation is asked to stop. Raises StopAsked."""
        if self.hints.stop.is_set():
            raise StopAsked

    def append(self, decide: Decide, *, inside: Callable[[], None] | None = None) -> None:
        """Append for this activation; whatever keeps it from being written closes the context.

        `inside` is called in the transaction; where it raises StopAsked, nothing is written and the activation stops.
        """
        try:
            self.appender.append(decide, inside=inside)
        except StopAsked:
            self.before_body()
        except Exception as error:
            stop = Suspended(f"task {self.task.id}: nothing more can be written: {error}")
            stop.__cause__ = error
            self.close(stop)
        except BaseException as error:
            self.close(error)

    def hold(self, reason: str, path: str, details: dict[str, Any]) -> NoReturn:
        """Park the task and unwind its agent; a probe only ends."""
        if self._probe:
            self.close(Suspended(f"task {self.task.id}: the code fits its log, as far as it goes"))
        self.append(lambda task, now: task.hold(self.number, now, reason, path, details))
        self.close(Suspended(f"task {self.task.id} is held: {reason}"))

    def before_body(self) -> None:
        """Stop here where the activation is asked to; a probe never gets further."""
        if self._probe:
            self.close(Suspended(f"task {self.task.id}: the code fits its log"))
        if self.hints.stop.is_set():
            self.append(lambda task, now: task.passivate(self.number, now, []))
            self.close(Suspended(f"task {self.task.id} was stopped between two steps"))

    def after_outcome(self) -> None:
        """Tell that this activation has got somewhere: its first new outcome ends a suspicion."""
        if not self._proven:
            self._proven = True
            self.hints.proven()

    def hold_for_code(self, differs: Differs) -> NoReturn:
        """Park the task until its code fits its log; a probe only takes notice."""
        self.differs = differs
        if self._probe:
            self.close(Suspended(str(differs)))
        logger.error("task %s is held: %s", self.task.id, differs)
        details = {"message": str(differs), "recorded": differs.recorded, "asked": differs.asked}
        self.hold(DIFFERS, differs.path, details | {"in_doubt": differs.in_doubt})


def from_users_code(error: BaseException) -> BaseException:
    """Cut our own frame off a traceback: it begins in the user's function."""
    trace = error.__traceback__
    return error.with_traceback(trace and trace.tb_next)
