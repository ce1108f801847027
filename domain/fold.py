"""How a task's state follows from its events: the fold, the one way in which an `AgentTask` comes about and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from domain.errors import UnreadableTaskError
from domain.events import (
    Activated,
    Completed,
    Created,
    Failed,
    Held,
    Passivated,
    Released,
    RestartAsked,
    Restarted,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
)
from domain.record import StepRecord
from domain.task import AgentTask


def _activated(task: AgentTask, event: Activated) -> None:
    task.strikes = task.strikes_if_lost
    task.deaths += task.worker is not None
    task.activation = event.number
    task.worker, task.waits = event.worker, False
    task.due = event.timestamp
    task.to_restart = False


def _started(task: AgentTask, event: StepStarted) -> None:
    task.place = f"step {event.path} {event.name}"


def _succeeded(task: AgentTask, event: StepSucceeded) -> None:
    if event.kind == "step":
        task.place = f"step {event.path} {event.name}"
    task.strikes = task.deaths = 0


def _step_failed(task: AgentTask, event: StepFailed) -> None:
    again = "" if event.retry_at is None else f", attempt {event.attempt} failed, to be tried again"
    task.place = f"step {event.path} {event.name}{again}"
    task.strikes = task.deaths = 0


def _restarted(task: AgentTask, event: Restarted) -> None:
    task.strikes, task.worker, task.due = event.strikes, None, event.due
    task.line = event.due


def _restart_asked(task: AgentTask, event: RestartAsked) -> None:
    task.asked, task.to_restart = event.cause, task.worker is not None


def _passivated(task: AgentTask, event: Passivated) -> None:
    task.worker, task.waits = None, event.due is not None
    task.due = event.timestamp if event.due is None else event.due
    task.line = task.line if event.due is None else event.due


def _held(task: AgentTask, event: Held) -> None:
    task.held, task.worker, task.due, task.waits = event, None, None, False


def _released(task: AgentTask, event: Released) -> None:
    task.held, task.strikes, task.deaths, task.due = None, 0, 0, event.timestamp
    task.line = event.timestamp


def _ended(task: AgentTask, event: Completed | Failed) -> None:
    task.ending, task.worker, task.due = event, None, None


_ADVANCE: dict[type[TaskEvent], Callable[[AgentTask, Any], None]] = {
    Created: lambda _task, _event: None,
    Activated: _activated,
    StepStarted: _started,
    StepSucceeded: _succeeded,
    StepFailed: _step_failed,
    Restarted: _restarted,
    RestartAsked: _restart_asked,
    Passivated: _passivated,
    Held: _held,
    Released: _released,
    Completed: _ended,
    Failed: _ended,
}


def _record_start(task: AgentTask, event: StepStarted) -> None:
    record = _record(task, event)
    record.attempt, record.digest = event.attempt, event.digest
    record.label, record.started = event.label, event.timestamp
    record.settled = record.retry_at = None
    task.latest = record


def _record_value(task: AgentTask, event: StepSucceeded) -> None:
    record = _record(task, event)
    record.attempt = event.attempt
    record.outcome = event
    record.settled = record.retry_at = None
    task.latest = record


def _record_failure(task: AgentTask, event: StepFailed) -> None:
    record = _record(task, event)
    record.attempt, record.digest = event.attempt, event.digest
    record.failures = (*record.failures, event)
    record.retry_at = event.retry_at
    record.outcome = event if event.retry_at is None else None
    record.settled = None
    task.latest = record


def _record_decision(task: AgentTask, event: Released) -> None:
    if not event.path:
        return
    record = _own(task, task.steps[event.path])
    if event.decision == "rerun":
        record.outcome, record.settled, record.retry_at = None, event, None
        record.failures, record.began = (), event.timestamp
    else:
        record.outcome, record.retry_at = event, None


def _record(task: AgentTask, event: StepStarted | StepSucceeded | StepFailed) -> StepRecord:
    record = task.steps.get(event.path)
    if record is not None:
        return _own(task, record)
    record = StepRecord(event)
    _enter(task, record)
    return record


def _own(task: AgentTask, record: StepRecord) -> StepRecord:
    """Give the record to change: a copy where the task is a copy, whose records are still another's."""
    if not task.borrowed:
        return record
    mine = task.steps[record.path] = record.copy()
    if task.latest is record:
        task.latest = mine
    return mine


def _enter(task: AgentTask, record: StepRecord) -> None:
    """Enter a step where the replay rule looks for it: by path, by name with arguments, and in its scopes."""
    path = record.path
    task.steps[path] = record
    if record.digest:
        task.places.setdefault((record.name, record.digest), path)
    while path:
        inside = path
        path, _, number = path.rpartition("/")
        if number[0] == "~":
            task.keyed[inside] = path
            task.scopes.setdefault(path, 0)
        elif int(number) > task.scopes.get(path, 0):
            task.scopes[path] = int(number)


_RECORD: dict[type[TaskEvent], Callable[[AgentTask, Any], None]] = {
    StepStarted: _record_start,
    StepSucceeded: _record_value,
    StepFailed: _record_failure,
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
