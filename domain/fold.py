"""How a task's state follows from its events: the fold, the one way in which an `AgentTask` comes about and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from domain.errors import UnreadableTaskError
from domain.events import (
    Activated,
    ApprovalRequested,
    CancelDelivered,
    Cancelled,
    CancelRequested,
    ChildSpawned,
    Completed,
    Concluded,
    Created,
    Ending,
    Failed,
    Held,
    Passivated,
    Released,
    RestartAsked,
    Restarted,
    SignalReceived,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
    UndoRegistered,
    WaitBegan,
    WaitEnded,
)
from domain.record import UNDO, Placed, StepRecord
from domain.state import Pause, Undo
from domain.task import AgentTask
from domain.waits import RESERVED, Wait, answer_name


def _activated(task: AgentTask, event: Activated) -> None:
    task.strikes = task.strikes_if_lost
    task.deaths += task.worker is not None
    task.activation = event.number
    task.worker, task.waits = event.worker, False
    task.due = event.timestamp
    task.to_restart = task.called_off = False
    if task.cancel is not None:
        task.cancel_until = max(task.cancel_until, event.timestamp + task.cancel.grace)


def _started(task: AgentTask, event: StepStarted) -> None:
    task.place = f"step {event.path} {event.name}"


def _succeeded(task: AgentTask, event: StepSucceeded) -> None:
    if event.kind == "step":
        task.place = f"step {event.path} {event.name}"
    task.strikes = task.deaths = 0


def _step_failed(task: AgentTask, event: StepFailed) -> None:
    _waits_no_longer(task, event.path)
    again = "" if event.retry_at is None else f", attempt {event.attempt} failed, to be tried again"
    task.place = f"step {event.path} {event.name}{again}"
    task.strikes = task.deaths = 0


def _restarted(task: AgentTask, event: Restarted) -> None:
    task.strikes, task.worker, task.due = event.strikes, None, event.due
    task.line = event.due


def _restart_asked(task: AgentTask, event: RestartAsked) -> None:
    task.asked, task.to_restart = event.cause, task.worker is not None


def _passivated(task: AgentTask, event: Passivated) -> None:
    waits = event.waits or event.due is not None
    task.worker, task.waits = None, waits
    task.due = event.due if waits else event.timestamp
    task.line = task.line if event.due is None else event.due


def _held(task: AgentTask, event: Held) -> None:
    task.held, task.worker, task.due, task.waits = event, None, None, False


def _released(task: AgentTask, event: Released) -> None:
    task.held, task.strikes, task.deaths, task.due = None, 0, 0, event.timestamp
    task.line = event.timestamp


def _wait_began(task: AgentTask, event: WaitBegan) -> None:
    wait = Wait.read(event.kind, event.name, event.sources, event.due)
    task.waiting = {**task.waiting, event.path: wait}


def _wait_ended(task: AgentTask, event: WaitEnded) -> None:
    _waits_no_longer(task, event.path)
    task.strikes = task.deaths = 0


def _waits_no_longer(task: AgentTask, path: str) -> None:
    if path in task.waiting:
        task.waiting = {other: wait for other, wait in task.waiting.items() if other != path}


def _received(task: AgentTask, event: SignalReceived) -> None:
    if task.open_pauses:
        task.open_pauses = tuple(path for path in task.open_pauses if answer_name(path) != event.name)
    if task.waits and any(wait.wants(event.name) for wait in task.waiting.values()):
        _go_on(task, event.timestamp)


def _go_on(task: AgentTask, moment: float) -> None:
    """Let a task that waits stand in line from now on."""
    task.waits, task.due, task.line = False, moment, moment


def _approval_requested(task: AgentTask, event: ApprovalRequested) -> None:
    task.open_pauses = (*task.open_pauses, event.path)


def _cancel_requested(task: AgentTask, event: CancelRequested) -> None:
    task.cancel, task.cancel_until = event, event.timestamp + event.grace
    task.hurries = task.called_off = task.concluded is not None
    rests = task.worker is None and task.due is not None and task.due > event.timestamp  # after a crash
    if task.waits or rests:
        _go_on(task, event.timestamp)


def _cancel_delivered(task: AgentTask, event: CancelDelivered) -> None:
    _waits_no_longer(task, event.path)
    if not task.delivered and task.cancel is not None:
        task.delivered, task.cancel_until = True, max(task.cancel_until, event.timestamp + task.cancel.grace)


def _concluded(task: AgentTask, event: Concluded) -> None:
    task.concluded, task.waiting = event, {}
    task.strikes = task.deaths = 0
    if task.held is not None or task.worker is None:
        task.held = None
        _go_on(task, event.timestamp)


def _ended(task: AgentTask, event: Ending) -> None:
    task.ending, task.worker, task.due, task.held = event, None, None, None
    task.waits, task.waiting, task.open_pauses = False, {}, ()


def _nothing(_task: AgentTask, _event: TaskEvent) -> None:
    return


_ADVANCE: dict[type[TaskEvent], Callable[[AgentTask, Any], None]] = {
    Created: _nothing,
    Activated: _activated,
    StepStarted: _started,
    StepSucceeded: _succeeded,
    StepFailed: _step_failed,
    Restarted: _restarted,
    RestartAsked: _restart_asked,
    Passivated: _passivated,
    Held: _held,
    Released: _released,
    WaitBegan: _wait_began,
    WaitEnded: _wait_ended,
    SignalReceived: _received,
    ApprovalRequested: _approval_requested,
    ChildSpawned: _nothing,
    UndoRegistered: _nothing,
    CancelRequested: _cancel_requested,
    CancelDelivered: _cancel_delivered,
    Concluded: _concluded,
    Completed: _ended,
    Failed: _ended,
    Cancelled: _ended,
}


def _record_start(task: AgentTask, event: StepStarted) -> None:
    record = _record(task, event)
    record.attempt, record.digest = event.attempt, event.digest
    record.label, record.started = event.label, event.timestamp
    record.settled = record.retry_at = None
    task.latest = record
    if event.reserved is not None:
        task.reserved[event.path] = (*task.reserved.get(event.path, ()), (event.attempt, event.reserved))


def _record_value(task: AgentTask, event: StepSucceeded) -> None:
    record = _record(task, event)
    record.attempt = event.attempt
    record.outcome = event
    record.settled = record.retry_at = None
    task.latest = record
    if task.undos:  # what an attempt in doubt has said counts no more: this one says it anew
        task.undos = tuple(undo for undo in task.undos if undo.path != event.path)
    if event.kind == UNDO:  # the agent's own word, which takes a position
        task.undos = (*task.undos, Undo(event.path, event.name, event.value))


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
        task.granted += () if event.value is None else (event.value,)
        return
    record = _own(task, task.steps[event.path])
    if event.decision == "rerun":
        record.outcome, record.settled, record.retry_at = None, event, None
        record.failures, record.began = (), event.timestamp
    else:
        record.outcome, record.retry_at = event, None


def _record_wait(task: AgentTask, event: WaitBegan) -> None:
    _record(task, event)


def _record_outcome(task: AgentTask, event: WaitEnded | ApprovalRequested | ChildSpawned) -> None:
    _record(task, event).outcome = event


def _record_wait_over(task: AgentTask, event: WaitEnded) -> None:
    _record_outcome(task, event)
    letter = task.letters.get(event.signal)
    if letter is not None and _is_taken(letter.name):
        mail = task.mail[letter.name]  # it is the first of them, but where two lines take at once
        first = mail[0] == event.signal
        task.mail[letter.name] = mail[1:] if first else tuple(one for one in mail if one != event.signal)


def _record_cancel(task: AgentTask, event: CancelDelivered) -> None:
    record = _record(task, event)
    record.unsure = record.in_doubt and record.attempt > 0
    record.outcome, record.retry_at = event, None


def _record_letter(task: AgentTask, event: SignalReceived) -> None:
    version = event.originator_version
    task.letters[version] = event
    task.signals[event.signal] = version
    task.mail[event.name] = (*task.mail.get(event.name, ()), version)


def _is_taken(name: str) -> bool:
    """Tell whether what comes under that name is for one wait only: answers, and ends of children, are for all."""
    return not name.startswith(RESERVED)


def _record_request(task: AgentTask, event: ApprovalRequested) -> None:
    _record_outcome(task, event)
    task.pauses = {**task.pauses, event.path: Pause(event.path, event.label, event.details, event.timestamp)}


def _record_child(task: AgentTask, event: ChildSpawned) -> None:
    _record_outcome(task, event)
    task.children[event.child] = event.policy


def _record_undo(task: AgentTask, event: UndoRegistered) -> None:
    task.undos = (*task.undos, Undo(event.path, event.name, event.arguments))


def _record(task: AgentTask, event: Placed) -> StepRecord:
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
        elif not number.isdecimal():  # the scope of the undos, which no code has to open again
            task.scopes.setdefault(path, 0)
        elif int(number) > task.scopes.get(path, 0):
            task.scopes[path] = int(number)


_RECORD: dict[type[TaskEvent], Callable[[AgentTask, Any], None]] = {
    StepStarted: _record_start,
    StepSucceeded: _record_value,
    StepFailed: _record_failure,
    Released: _record_decision,
    WaitBegan: _record_wait,
    WaitEnded: _record_wait_over,
    SignalReceived: _record_letter,
    ApprovalRequested: _record_request,
    ChildSpawned: _record_child,
    UndoRegistered: _record_undo,
    CancelDelivered: _record_cancel,
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
