"""The actor that runs an agent: read, claim, call, conclude."""

from __future__ import annotations

import logging
import os
import random
import secrets
import traceback
from collections.abc import Callable
from typing import Any, Self, cast

import domain
import stores
from actors.activation import Hints
from actors.context import Context, Outcome
from actors.definitions import Agent
from actors.event_sourced import EventSourcedActor
from actors.info import checked
from actors.worker import Worker
from domain.errors import (
    FailTask,
    OwnershipLost,
    PerdureError,
    StepError,
    UnknownTaskError,
    UnreadableTaskError,
    UnstorableValueError,
)
from domain.events import Held, Released, Restarted, TaskEvent
from domain.faults import Fault
from domain.task import DIFFERS, FAILED_STEP, AgentTask
from domain.values import decode
from stores import StoreError

logger = logging.getLogger("perdure")


class AgentCrashError(Exception):
    """Tells the supervisor that something has escaped the agent that is no business of its task: a bug, so far."""

    def __init__(self, activation: int, fault: Fault, where: str) -> None:
        super().__init__(activation, fault, where)
        self.activation = activation
        self.fault = fault
        self.where = where

    def __str__(self) -> str:
        return f"{self.fault}, at {self.where}"


class TaskActor(EventSourcedActor):
    """One activation of one task.

    It ends when the agent has ended, is held, is stopped, or lost its task to another worker.
    """

    def __init__(self, worker: Worker, task_id: str, hints: Hints, created: Callable[[Self], None]) -> None:
        super().__init__(worker, task_id, created)
        self.hints = hints
        self.context: Context | None = None
        self.claimed = False

    def live(self) -> None:
        """Run the task as far as it goes. A log that cannot be read is held in the index row and never written to."""
        try:
            agent = self._claimed()
            if agent is not None:
                self._run(agent)
        except UnreadableTaskError as error:
            self.worker.log.mark_unreadable(error)
        except UnknownTaskError as error:
            logger.warning("%s: nothing more of it is run here", error)
        except AgentCrashError as crash:
            self._strike(crash)
            raise

    def _claimed(self) -> Agent[..., Any] | None:
        """Read the log and claim the task; None where there is nothing to run."""
        try:
            self.rehydrate()
        except UnknownTaskError as error:
            raise UnreadableTaskError(f"{error}, but an index row of it", task_id=self.name, version=1) from None
        agent = self.worker.find(self.task.agent)
        release = self._fits_again(agent)
        claimed = self.rehydrated.append(lambda task, now: self._claim(task, now, release=release))
        self.claimed = bool(claimed)
        if not claimed and not self.worker.stopping.is_set():
            self.worker.log.compare(self.name)
        return agent if claimed and self.task.held is None else None

    def _fits_again(self, agent: Agent[..., Any]) -> bool:
        """Replay a task that is held for its code, read-only, up to the first body: does the code fit its log now?"""
        if self.task.held is None or self.task.held.reason != DIFFERS:
            return False
        probe = Context(self.rehydrated, self.task.activation, probe=True)
        args, kwargs = self._input()
        probe.run(agent, args, kwargs)
        return probe.differs is None

    def _claim(self, task: AgentTask, now: float, *, release: bool) -> list[TaskEvent]:
        if self.worker.stopping.is_set() or not self.worker.owns_or_may_take(task.worker):
            return []
        token, limit = secrets.token_hex(4), self.worker.strikes
        return task.activate(now, worker=self.worker.id, token=token, limit=limit, release=release)

    def _run(self, agent: Agent[..., Any]) -> None:
        self.context = context = Context(self.rehydrated, self.task.activation, self.hints)
        args, kwargs = self._input()
        outcome = context.run(agent, args, kwargs)
        if outcome.closed is None:
            self._conclude(agent, context, outcome)
        elif isinstance(outcome.closed, OwnershipLost):
            raise outcome.closed
        else:
            self._tell_why(context.number, outcome.closed.__cause__)

    def _strike(self, crash: AgentCrashError) -> None:
        """Report a crash of the agent, once, and append what follows: another start after a delay, or a hold."""
        jitter, limit, reported = random.uniform(-1, 1), self.worker.strikes, False
        trace = crash.fault.traceback.rstrip()  # its text: printing the exception again may do anything

        def decide(task: AgentTask, now: float) -> list[TaskEvent]:
            nonlocal reported
            events = task.restart(crash.activation, now, crash.fault, where=crash.where, jitter=jitter, limit=limit)
            if not reported:
                reported = True
                logger.error(
                    "task %s: agent %s crashed at %s: %s; %s\n%s",
                    *(task.id, task.agent, crash.where, crash.fault, _verdict(events[0]), trace),
                )
            return events

        self.rehydrated.append(decide)

    def _tell_why(self, activation: int, cause: BaseException | None) -> None:
        """Tell the supervisor of a failed append: of the store's error as it is, of anything else as of a crash."""
        if isinstance(cause, StoreError | PerdureError):
            raise cause
        if cause is not None:
            raise AgentCrashError(activation, Fault.of(cause), _where(cause)) from cause

    def _input(self) -> tuple[list[Any], dict[str, Any]]:
        given: Any = decode(self.task.input)
        args, kwargs = given
        return args, kwargs

    def _conclude(self, agent: Agent[..., Any], context: Context, outcome: Outcome) -> None:
        """Append what the agent's end means: a value, a failure, a hold; the rest is for the supervisor."""
        number, error, append = context.number, outcome.error, self.rehydrated.append
        if error is None:
            try:
                value = checked(outcome.value)
            except UnstorableValueError as unstorable:
                fault = Fault(Fault.of(unstorable).kinds, f"what the agent returned cannot be stored: {unstorable}")
                append(lambda task, now: task.fail(number, now, fault))
            else:
                append(lambda task, now: task.complete(number, now, value))
        elif issubclass(type(error), StepError):
            self._conclude_failed_step(agent, number, cast("StepError", error))
        elif issubclass(type(error), FailTask):
            append(lambda task, now: task.fail(number, now, Fault.of(error)))
        else:
            raise AgentCrashError(number, Fault.of(error), _where(error)) from error

    def _conclude_failed_step(self, agent: Agent[..., Any], number: int, error: StepError) -> None:
        fault, append = error.fault, self.rehydrated.append
        record = self.task.steps.get(error.path)
        if agent.on_failure == "hold" and record is not None and not isinstance(record.outcome, Released):
            details = {"message": str(fault)}
            append(lambda task, now: task.hold(number, now, FAILED_STEP, error.path, details))
            return
        told = Fault(fault.kinds, f"step {error.path} {error.step}: {fault.message}", fault.traceback, fault.causes)
        append(lambda task, now: task.fail(number, now, told))


def _verdict(event: TaskEvent) -> str:
    if isinstance(event, Restarted):
        return f"restart {event.strikes} in {event.due - event.timestamp:.1f} s"
    assert isinstance(event, Held)  # noqa: S101  a restart or a hold
    return f"held after {event.details['strikes']} crashes in a row"


def _where(error: BaseException) -> str:
    """Name the file and line from which an exception came: the innermost frame that is not perdure's own."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    users = [place for place in frames if os.path.dirname(place[0]) not in _OURS]
    file, line = (users or frames or [("nowhere", 0)])[-1]
    return f"{file}:{line}"


_OURS = {os.path.dirname(os.path.abspath(module.__file__ or "")) for module in (domain, stores)} | {
    os.path.dirname(__file__)
}
