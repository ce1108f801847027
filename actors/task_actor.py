"""The actor that runs an agent: read, claim, call, conclude."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from actors.activation import GRACE, Activation
from actors.appender import Appender
from actors.context import Outcome, run_agent
from actors.definitions import AnyAgent
from actors.event_sourced import EventSourcedActor
from actors.hints import Hints, Refusal
from actors.info import checked
from actors.lines import LINGER
from actors.raised import FAILS, step_error_of
from actors.runtime import Runtime
from actors.settling import knows_undos, settle
from actors.showing import counted
from actors.threads import NoThreadError
from actors.view import headline
from actors.where import where
from actors.worker import Worker
from domain.errors import (
    OwnershipLost,
    PerdureError,
    StepError,
    Suspended,
    TaskCancelled,
    TaskConflictError,
    UnknownTaskError,
    UnknownTypeError,
    UnreadableTaskError,
    UnstorableValueError,
)
from domain.events import Held, Released, Restarted, TaskEvent
from domain.faults import Fault
from domain.state import FAILED_STEP, FOR_CODE, UNKNOWN_CLASS, UNREADABLE
from domain.task import AgentTask
from domain.values import decode
from domain.waits import first_left, settled
from stores import StoreError
from stores.crash import SimulatedCrash

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

    def __init__(
        self, worker: Worker, task_id: str, hints: Hints, task: AgentTask | None, created: Callable[[Self], None]
    ) -> None:
        super().__init__(worker, task_id, created)
        self.hints = hints
        self.fresh = task
        self.activation: Activation | None = None
        self.claimed = self.too_early = False

    def _start_actor_loop(self) -> None:
        """Live on a thread that another task has left, if there is one: a new one costs more than a step."""
        self.worker.runtime.tasks.start(self._actor_loop)

    def leaves_something(self) -> bool:
        """Tell whether there may be something to do for this task when its actor is gone: its end leaves nothing."""
        if self.activation is None or self.task.ending is None:
            return True
        return bool(self.task.parent or self.task.group)

    def live(self) -> None:
        """Run the task as far as it goes. A log that cannot be read is held in the index row and never written to."""
        try:
            agent = self._claimed()
            if agent is not None:
                self._run_and_conclude(agent)
        except UnreadableTaskError as error:
            row = self.worker.log.mark_unreadable(error)
            if row is not None:
                self.worker.held_here[row.id, row.birth] = row.head
        except UnknownTaskError as error:
            logger.warning("%s: nothing more of it is run here", error)
        except AgentCrashError as crash:
            self._strike(crash)
            raise

    def _claimed(self) -> AnyAgent | None:
        """Read the log and claim the task; None where there is nothing to run."""
        try:
            self.rehydrate()
        except UnknownTaskError as error:
            raise UnreadableTaskError(f"{error}, but an index row of it", task_id=self.name, version=1) from None
        agent = self.worker.find(self.task.agent)
        if self.worker.begins(self.task):
            self.claimed = True
            return agent
        release = self._fits_again(agent)
        claimed = self.rehydrated.append(lambda task, now: self._claim(task, now, release=release))
        self.claimed = bool(claimed)
        if not claimed and not self.worker.stopping.is_set():
            self.worker.log.compare(self.name)
        if claimed and self.task.held is not None:
            self._say_held()
        return agent if claimed and self.task.held is None and self.task.ending is None else None

    def _say_held(self) -> None:
        logger.error("task %s is held: %s", self.name, headline(self.task))

    def _fits_again(self, agent: AnyAgent) -> bool:
        """Replay a task that is held for its code, read-only, up to the first body: does the code fit its log now?"""
        if self.task.held is None or self.task.held.reason not in FOR_CODE:
            return False
        if self.task.concluded is not None:
            return knows_undos(self.task, agent.file)
        refusal = probe(self.rehydrated, agent, self.worker.runtime)
        if refusal is not None:
            logger.warning("task %s stays held, today's code does not fit either: %s", self.task.id, refusal.message)
        return refusal is None

    def _claim(self, task: AgentTask, now: float, *, release: bool) -> list[TaskEvent]:
        worker = self.worker
        if worker.stopping.is_set() or not worker.tenure.holds() or not worker.owns_or_may_take(task.worker):
            return []
        self.too_early = not self._is_due(task, now)
        if self.too_early:  # or another was faster, and has given it back to wait
            return []
        if task.activation == 0 and (expired := task.expire(now, GRACE)):
            return expired
        return worker.claim(task, now, release=release)

    def _is_due(self, task: AgentTask, now: float) -> bool:
        """Tell whether there is something to do: by the clock on the wall, or by the time that has passed here."""
        if task.due is not None and now >= task.line:
            return True
        if task.due is None and not task.waits:
            return True
        moment, waits = self.worker.runtime.clock.moment(), list(task.waiting.values()) if task.waits else []
        if any(settled(wait, task.first_mail, moment) is not None for wait in waits):
            return True
        lefts = [first_left(waits, moment), None if task.due is None else task.line - now]
        rest = min((left for left in lefts if left is not None), default=math.inf)
        self.worker.too_early[task.id, task.birth] = task.version, moment.mono + rest
        return False

    def _run_and_conclude(self, agent: AnyAgent) -> None:
        try:
            self._run(agent)
        finally:
            if self.activation is not None:  # a branch that still waits for something has nothing to wait for any more
                self.activation.lose(Suspended(f"task {self.name}: this activation is over"))
        if self.task.ending is not None and self.task.activation > 1:
            with suppress(StoreError):  # what deaths and people's words have left behind; nobody asks for it again
                self.worker.log.recorder.delete_heartbeats(self.task.id)

    def _run(self, agent: AnyAgent) -> None:
        number, runtime = self.task.activation, self.worker.runtime
        if self._settle(agent, number):
            return
        self.activation = activation = Activation(self.rehydrated, number, runtime, self.hints)
        activation.expire()
        given = input_of(activation)
        try:
            outcome = Outcome() if given is None else run_agent(activation, agent, *given)
        except NoThreadError as error:
            logger.warning("task %s waits for a moment: %s", self.name, error)
            due = self.worker.log.now() + LINGER
            self.rehydrated.append(lambda task, now: task.passivate(number, now, [], due=due))
            return
        closed = activation.settle()
        activation.flush()
        if self.task.held is not None and self.task.held.reason in FOR_CODE:
            self.worker.held_here[self.task.id, self.task.birth] = self.task.version
        if closed is not None:
            self._closed_by(number, closed)
            return
        self._conclude(agent, activation, outcome)
        self._settle(agent, number)

    def _settle(self, agent: AnyAgent, number: int) -> bool:
        """Do what the task owes before its ending, where that is decided, and end it; tells whether it is."""
        if self.task.concluded is None or self.task.ending is not None:
            return False
        self.activation = activation = Activation(self.rehydrated, number, self.worker.runtime, self.hints)
        error: BaseException | None = None
        try:
            activation.expire()
            settle(activation, agent.file)
        except BaseException as raised:
            error = raised
        closed = activation.settle()
        if closed is not None:
            self._closed_by(number, closed)
        elif error is not None:
            raise AgentCrashError(number, Fault.of(error), where(error)) from error
        return True

    def _closed_by(self, number: int, closed: BaseException) -> None:
        if isinstance(closed, OwnershipLost | SimulatedCrash):
            raise closed
        self._tell_why(number, closed.__cause__)

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

        # Before the crash is in the log: a death here is one of the process, not of the task alone.
        if self.task.group and self.worker.siblings is not None:
            cause = f"{self.task.birth} {crash.activation}"
            self.worker.siblings.begin_anew(self.task.group, self.name, "", cause)
        self.rehydrated.append(decide)

    def _tell_why(self, activation: int, cause: BaseException | None) -> None:
        """Tell the supervisor of a failed append: of the store's error as it is, of anything else as of a crash.

        So of a child whose id is taken, too: no further try would do any better.
        """
        if isinstance(cause, StoreError | PerdureError) and not isinstance(cause, TaskConflictError):
            raise cause
        if cause is not None:
            raise AgentCrashError(activation, Fault.of(cause), where(cause)) from cause

    def _conclude(self, agent: AnyAgent, activation: Activation, outcome: Outcome) -> None:
        """Append what the agent's end means: a value, a failure, a hold; the rest is for the supervisor."""
        number, error, append = activation.number, outcome.error, self.rehydrated.append
        step_error = None if error is None else step_error_of(error, activation.declared)
        if error is None:
            try:
                value = checked(outcome.value, self.worker.runtime.value_limit)
            except UnstorableValueError as unstorable:
                message = f"what the agent returned cannot be stored: {unstorable}"
                raise AgentCrashError(number, Fault(Fault.of(unstorable).kinds, message), agent.where) from None
            else:
                append(lambda task, now: task.complete(number, now, value))
        elif step_error is not None:
            self._conclude_failed_step(agent, number, step_error)
        elif issubclass(type(error), FAILS):
            append(lambda task, now: task.fail(number, now, Fault.of(error)))
        elif issubclass(type(error), TaskCancelled) and self.task.delivered:
            append(lambda task, now: task.end_cancelled(number, now))
        else:
            raise AgentCrashError(number, Fault.of(error), where(error)) from error

    def _conclude_failed_step(self, agent: AnyAgent, number: int, error: StepError) -> None:
        fault, append = error.fault, self.rehydrated.append
        record = self.task.steps.get(error.path)
        if agent.on_failure == "hold" and record is not None and not isinstance(record.outcome, Released):
            details = {"message": str(fault)}
            append(lambda task, now: task.hold(number, now, FAILED_STEP, error.path, details))
            self._say_held()
            return
        told = Fault(fault.kinds, f"step {error.path} {error.step}: {fault.message}", fault.traceback, fault.causes)
        append(lambda task, now: task.fail(number, now, told))


def input_of(activation: Activation) -> tuple[list[Any], dict[str, Any]] | None:
    """Give what the agent was spawned with; None where it cannot be read, and the task is held for it."""
    try:
        given: Any = decode(activation.task.input)
    except ValueError as error:
        reason = UNKNOWN_CLASS if isinstance(error, UnknownTypeError) else UNREADABLE
        with suppress(BaseException):  # it has closed the activation, which is looked at
            activation.hold(
                reason, "", {"message": f"what the task was spawned with cannot be read: {error}"}, here=True
            )
        return None
    args, kwargs = given
    return args, kwargs


def probe(appender: Appender, agent: AnyAgent, runtime: Runtime) -> Refusal | None:
    """Replay a task read-only, up to the first body of each branch; tell why it would be held, if it would."""
    activation = Activation(appender, appender.task.activation, runtime, probe=True)
    given = input_of(activation)
    error = None if given is None else run_agent(activation, agent, *given).error
    ends = (
        error is None
        or issubclass(type(error), (*FAILS, Suspended, TaskCancelled))
        or step_error_of(error, activation.declared) is not None
    )
    if activation.refused is None and not ends:
        assert error is not None  # noqa: S101  it is no end
        return Refusal("crash", "", f"its code crashes at {where(error)} before its next step: {Fault.of(error)}")
    return activation.refused


def _verdict(event: TaskEvent) -> str:
    if isinstance(event, Restarted):
        return f"restart {event.strikes} in {event.due - event.timestamp:.1f} s"
    assert isinstance(event, Held)  # noqa: S101  a restart or a hold
    return f"held after {counted(event.details['strikes'], 'crash', 'crashes')} in a row"
