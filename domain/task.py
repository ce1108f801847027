"""The aggregate `AgentTask`: one run of an agent, as its log tells it.

State is a fold of events and nothing else. A decision is a pure function of state and command to events: it changes
nothing, and its events count only once they are in the log. `guard` is the fence: what is written for an activation
is refused unless it is the newest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from shlex import quote
from typing import Any, Literal

from domain.errors import OwnershipLost, ResolveError, TaskEndedError, UnreadableTaskError
from domain.events import (
    Activated,
    Completed,
    Created,
    Failed,
    Held,
    Passivated,
    Released,
    Restarted,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
)
from domain.faults import Fault
from domain.record import StepRecord
from domain.retry import is_out, restart_delay
from domain.values import decode

Status = Literal["queued", "running", "held", "completed", "failed"]

IN_DOUBT, STRIKES, DIFFERS, FAILED_STEP, UNREADABLE = (
    "in doubt",
    "strikes",
    "differs",
    "failed step",
    "unreadable",
)
"""The reasons for which a task is held. `differs` waits for other code, the rest for a person."""


def idempotency_key(birth: str, path: str, generation: int = 0) -> str:
    """Give the key of a step: the same in every attempt, in every process, and never that of another step or task.

    >>> idempotency_key("b", "1")
    'pd_4p8P9QTNfekiEbCoydVt9yjA'
    """
    digest = hashlib.sha256("\0".join((birth, str(generation), path)).encode()).digest()
    return "pd_" + base64.urlsafe_b64encode(digest[:18]).decode()


class AgentTask:
    """One run of an agent. Made by `fold`, never by hand; every attribute follows from the events folded so far."""

    def __init__(self, created: Created) -> None:
        self.id = created.originator_id
        self.version = 0
        self.birth = created.birth
        self.agent = created.agent
        self.input = created.input
        self.parent = created.parent
        self.tags: Any = decode(created.tags)
        self.created = self.updated = created.timestamp
        self.due: float | None = created.timestamp
        self.activation = 0
        self.worker: str | None = None
        self.strikes = 0
        self.deaths = 0
        self.steps: dict[str, StepRecord] = {}
        self.latest: StepRecord | None = None
        self.place = ""
        self.scopes: dict[str, int] = {}
        self.places: dict[tuple[str, str], str] = {}
        self.held: Held | None = None
        self.ending: Completed | Failed | None = None

    @property
    def status(self) -> Status:
        """The task's status in one word."""
        if self.ending is not None:
            return "completed" if isinstance(self.ending, Completed) else "failed"
        if self.held is not None:
            return "held"
        return "running" if self.worker is not None else "queued"

    @property
    def question(self) -> str | None:
        """The path of the step for which the task is held, if a person may decide what became of it."""
        held = self.held
        if held is None:
            return None
        differs_in_doubt = held.reason == DIFFERS and held.details.get("in_doubt") is True
        return held.path if differs_in_doubt or held.reason in (IN_DOUBT, FAILED_STEP) else None

    @property
    def strikes_if_lost(self) -> int:
        """The strikes that stand if the present activation, where there is one, has died without a mark."""
        return self.strikes + (self.worker is not None)

    @property
    def suspicion(self) -> int:
        """Count the strikes that make a suspect: none where no process died, a crash of an agent hurts nobody else."""
        return self.strikes_if_lost if self.deaths or self.worker is not None else 0

    @property
    def doubts(self) -> list[StepRecord]:
        """The steps that are in doubt, in the order in which they were started."""
        return [record for record in self.steps.values() if record.in_doubt]

    # ------------------------------------------------------------------ decisions

    def guard(self, activation: int) -> None:
        """Refuse to go on for an activation that is not the newest, or is over. Raises OwnershipLost."""
        if self.activation != activation or self.worker is None:
            raise OwnershipLost(
                f"task {self.id}: ownership lost: activation {activation} is over"
                f" (status {self.status}, newest activation {self.activation})"
            )

    def activate(
        self, now: float, *, worker: str, token: str, limit: int | None, release: bool = False
    ) -> list[TaskEvent]:
        """Claim the task for a worker; at its strike limit it is held in the same append, and its agent not called.

        `release` also ends a hold for its code. Nothing is decided for a task that has ended, or is held otherwise.
        """
        if self.ending is not None or (self.held is not None and not (release and self.held.reason == DIFFERS)):
            return []
        version, events = self.version, list[TaskEvent]()
        if self.held is not None:
            version += 1
            events.append(Released(self.id, version, now, "", "release", None, f"worker {worker}"))
        number, strikes = self.activation + 1, 0 if events else self.strikes_if_lost
        events.append(Activated(self.id, version + 1, now, number, worker, token))
        if is_out(strikes, limit):
            path, details = self._strike_facts(strikes)
            events.append(Held(self.id, version + 2, now, number, STRIKES, path, details))
        return events

    def start_step(
        self, activation: int, now: float, path: str, kind: str, name: str, digest: str, label: str, doubt: str
    ) -> list[TaskEvent]:
        """Begin the next attempt at a step; the body runs only after this is in the log."""
        self.guard(activation)
        record = self.steps.get(path)
        attempt = 1 if record is None else record.attempt + 1
        return [StepStarted(self.id, self.version + 1, now, path, kind, name, attempt, digest, label, doubt)]

    def finish_step(
        self,
        activation: int,
        now: float,
        path: str,
        kind: str,
        name: str,
        digest: str,
        attempt: int,
        *,
        value: Any = None,
        source: str = "",
        error: Fault | None = None,
    ) -> list[TaskEvent]:
        """Record the outcome of a step, its value or its error. A step that has an outcome never gets a second one."""
        self.guard(activation)
        record = self.steps.get(path)
        if record is not None and record.outcome is not None:
            raise RuntimeError(f"task {self.id}: step {path} {name} has its outcome already")
        version = self.version + 1
        if error is not None:
            data = error.to_data()
            return [StepFailed(self.id, version, now, path, kind, name, digest, attempt, data, None)]
        return [StepSucceeded(self.id, version, now, path, kind, name, digest, attempt, value, source)]

    def restart(
        self, activation: int, now: float, error: Fault, *, where: str, jitter: float, limit: int | None
    ) -> list[TaskEvent]:
        """Decide what follows a crash of the agent: another start after a delay, or a hold at the strike limit."""
        self.guard(activation)
        strikes = self.strikes + 1
        if is_out(strikes, limit):
            path, details = self._strike_facts(strikes)
            details |= {"error": error.to_data(), "where": f"{error}, at {where}"}
            return [Held(self.id, self.version + 1, now, activation, STRIKES, path, details)]
        due = now + restart_delay(strikes, jitter)
        return [Restarted(self.id, self.version + 1, now, activation, error.to_data(), strikes, due)]

    def passivate(self, activation: int, now: float, cut_off: list[str]) -> list[TaskEvent]:
        """Mark a deliberate stop, so that it is no strike; nothing where the activation is over already."""
        if self.activation != activation or self.worker is None:
            return []
        return [Passivated(self.id, self.version + 1, now, activation, cut_off)]

    def hold(self, activation: int, now: float, reason: str, path: str, details: dict[str, Any]) -> list[TaskEvent]:
        """Park the task with a reason."""
        self.guard(activation)
        return [Held(self.id, self.version + 1, now, activation, reason, path, details)]

    def complete(self, activation: int, now: float, value: Any) -> list[TaskEvent]:
        """End the task with its agent's value."""
        self.guard(activation)
        return [Completed(self.id, self.version + 1, now, value)]

    def fail(self, activation: int, now: float, error: Fault) -> list[TaskEvent]:
        """End the task with an error."""
        self.guard(activation)
        doubts = [record.path for record in self.doubts]
        return [Failed(self.id, self.version + 1, now, error.to_data(), doubts)]

    def release(self, now: float, by: str) -> list[TaskEvent]:
        """Let a held task go on.

        Raises TaskEndedError, or ResolveError where it is not held or a step is in question.
        """
        held = self._held()
        if held.reason in (IN_DOUBT, FAILED_STEP):
            raise ResolveError(
                f"task {self.id} is held because of step {held.path}, which has to be decided first:"
                f" perdure resolve {quote(self.id)} {held.path} --value JSON | --rerun | --fail",
                task_id=self.id,
            )
        return [Released(self.id, self.version + 1, now, "", "release", None, by)]

    def resolve(self, now: float, path: str, decision: str, value: Any, by: str) -> list[TaskEvent]:
        """Decide what became of the step in question: it happened (`value`), is to `rerun`, or is given up (`fail`)."""
        held = self._held()
        if path != self.question:
            raise ResolveError(
                f"task {self.id}: step {path} is not in question: it is held ({held.reason}), and"
                f" {f'step {self.question}' if self.question else 'no step'} waits for a decision",
                task_id=self.id,
            )
        if held.reason == DIFFERS and decision == "rerun":
            message = f"task {self.id}: step {path} cannot be rerun with other arguments: its idempotency key would lie"
            raise ResolveError(message, task_id=self.id)
        return [Released(self.id, self.version + 1, now, path, decision, value, by)]

    def _held(self) -> Held:
        if self.ending is not None:
            raise TaskEndedError(f"task {self.id} has ended: {self.status}", task_id=self.id, status=self.status)
        if self.held is None:
            message = f"task {self.id} is not held: it is {self.status}; there is nothing to decide"
            raise ResolveError(message, task_id=self.id)
        return self.held

    def _strike_facts(self, strikes: int) -> tuple[str, dict[str, Any]]:
        details: dict[str, Any] = {"strikes": strikes}
        if self.latest is None:
            return "", details
        details |= {"name": self.latest.name, "label": self.latest.label, "in_doubt": self.latest.in_doubt}
        return self.latest.path, details

    # ------------------------------------------------------------------ fold

    def enter(self, record: StepRecord) -> None:
        """Enter a step where the replay rule looks for it: by path, by name with arguments, and in its scopes."""
        path = record.path
        self.steps[path] = record
        if record.digest:
            self.places.setdefault((record.name, record.digest), path)
        while path:
            path, _, number = path.rpartition("/")
            if int(number) > self.scopes.get(path, 0):
                self.scopes[path] = int(number)


def _activated(task: AgentTask, event: Activated) -> None:
    task.strikes = task.strikes_if_lost
    task.deaths += task.worker is not None
    task.activation = event.number
    task.worker = event.worker
    task.due = event.timestamp


def _started(task: AgentTask, event: StepStarted) -> None:
    task.place = f"step {event.path} {event.name}"


def _finished(task: AgentTask, event: StepSucceeded | StepFailed) -> None:
    task.place = f"step {event.path} {event.name}"
    task.strikes = task.deaths = 0


def _restarted(task: AgentTask, event: Restarted) -> None:
    task.strikes, task.worker, task.due = event.strikes, None, event.due


def _passivated(task: AgentTask, event: Passivated) -> None:
    task.worker, task.due = None, event.timestamp


def _held(task: AgentTask, event: Held) -> None:
    task.held, task.worker, task.due = event, None, None


def _released(task: AgentTask, event: Released) -> None:
    task.held, task.strikes, task.deaths, task.due = None, 0, 0, event.timestamp


def _ended(task: AgentTask, event: Completed | Failed) -> None:
    task.ending, task.worker, task.due = event, None, None


_ADVANCE: dict[type[TaskEvent], Callable[[AgentTask, Any], None]] = {
    Created: lambda _task, _event: None,
    Activated: _activated,
    StepStarted: _started,
    StepSucceeded: _finished,
    StepFailed: _finished,
    Restarted: _restarted,
    Passivated: _passivated,
    Held: _held,
    Released: _released,
    Completed: _ended,
    Failed: _ended,
}


def _record_start(task: AgentTask, event: StepStarted) -> None:
    record = task.steps.get(event.path)
    if record is None:
        record = StepRecord(event)
        task.enter(record)
    else:
        record.attempt, record.digest = event.attempt, event.digest
        record.label, record.started = event.label, event.timestamp
    record.settled = None
    task.latest = record


def _record_outcome(task: AgentTask, event: StepSucceeded | StepFailed) -> None:
    record = task.steps.get(event.path)
    if record is None:
        record = StepRecord(event)
        task.enter(record)
    record.attempt = event.attempt
    record.outcome = event
    record.settled = None
    task.latest = record


def _record_decision(task: AgentTask, event: Released) -> None:
    if not event.path:
        return
    record = task.steps[event.path]
    if event.decision == "rerun":
        record.outcome, record.settled = None, event
    else:
        record.outcome = event


_RECORD: dict[type[TaskEvent], Callable[[AgentTask, Any], None]] = {
    StepStarted: _record_start,
    StepSucceeded: _record_outcome,
    StepFailed: _record_outcome,
    Released: _record_decision,
}


def fold(task: AgentTask | None, events: Iterable[TaskEvent]) -> AgentTask | None:
    """Apply events in order; the first ever makes the task.

    Raises UnreadableTaskError where one does not follow the one before it.
    """
    for event in events:
        version = event.originator_version
        if task is None and isinstance(event, Created):
            task = AgentTask(event)
        if task is None or version != task.version + 1:
            raise UnreadableTaskError(
                f"task {event.originator_id}: version {version} ({event.TOPIC}) is where"
                f" {'task.created' if task is None else f'version {task.version + 1}'} is expected",
                task_id=event.originator_id,
                version=version,
            )
        kind = type(event)
        _ADVANCE[kind](task, event)
        record = _RECORD.get(kind)
        if record is not None:
            record(task, event)
        task.version = version
        task.updated = event.timestamp
    return task


def preview(task: AgentTask, events: Iterable[TaskEvent]) -> AgentTask:
    """Give what the task will be after `events`, all but its steps, and change nothing; for its index row."""
    after = object.__new__(AgentTask)
    after.__dict__.update(task.__dict__)
    for event in events:
        _ADVANCE[type(event)](after, event)
        after.version = event.originator_version
        after.updated = event.timestamp
    return after
