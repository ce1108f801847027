"""The rules for every log: whole, written by the newest activation alone, and nothing comes too early."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from actors.task_log import index_row
from domain.errors import UnreadableTaskError
from domain.events import (
    Activated,
    ApprovalRequested,
    CancelDelivered,
    CancelRequested,
    ChildSpawned,
    Concluded,
    Created,
    Held,
    Passivated,
    Released,
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
from domain.fold import fold
from domain.state import ENDED
from stores import IndexRow
from tests.chaos.evidence import Ending, Evidence, StepEvent, is_outcome
from tests.chaos.kinds import UNRECORDED
from tests.chaos.waits import SLEW

Found = Iterator[tuple[str, str]]


def logs_are_whole(evidence: Evidence) -> Found:
    """Versions have no gap, one ending stands at the end, and the index row follows from the log."""
    for task, history in evidence.histories.items():
        events = history.events
        versions = [event.originator_version for event in events]
        if versions != list(range(1, len(events) + 1)):
            yield task, f"its versions are {versions}"
        if sum(isinstance(event, Created) for event in events) != 1 or history.created is None:
            yield task, "it is not created once, at its beginning"
        if [event for event in events if isinstance(event, Ending)] != [history.ending]:
            yield task, "it does not end once, at its end"
        yield from _row_follows(task, events, evidence.rows.get(task))


def _row_follows(task: str, events: list[TaskEvent], row: IndexRow | None) -> Found:
    try:
        folded = fold(None, events)
        wanted = index_row(folded) if folded is not None else None
    except (UnreadableTaskError, LookupError, AttributeError) as error:
        yield task, f"its log cannot be folded: {error!r}"
    else:
        if row is not None and wanted is not None and row.hold is None and row.status in ENDED:
            wanted = wanted._replace(hold=None)  # its parent was told
        if row not in (None, wanted):
            yield task, f"its index row is {row}, and its log says {wanted}"


IN_ACTIVATION = (
    StepEvent | Ending | WaitBegan | WaitEnded | ApprovalRequested | ChildSpawned | UndoRegistered | Concluded
)
"""What only an agent that is active can bring about."""


def activations_are_fences(evidence: Evidence) -> Found:
    """Activations are numbered from 1, and nothing is written for one that is not the newest, or is over.

    A cancellation ends in no activation what is held, or has never been active.
    """
    for task, history in evidence.histories.items():
        numbers = [event.number for event in history.events if isinstance(event, Activated)]
        if numbers != list(range(1, len(numbers) + 1)):
            yield task, f"its activations are {numbers}"
        for number, idle, event in zip(history.at, history.idle, history.events, strict=True):
            called_off = idle and history.is_cancelled and isinstance(event, Concluded | Ending)
            if isinstance(event, Restarted | Passivated | Held) and event.activation != number:
                yield task, f"written in activation {number}: {event}"
            elif isinstance(event, IN_ACTIVATION) and number == 0 and not called_off:
                yield task, f"written in no activation: {event}"


def outcomes_stand_where_their_attempt_began(evidence: Evidence) -> Found:
    """What an attempt came to is recorded in the activation that began it: a later one has fenced it off."""
    for task, path, history, _ in evidence.steps():
        started: dict[int, int] = {}
        for number, event in history.steps[path]:
            if isinstance(event, StepStarted):
                started[event.attempt] = number
                continue
            ran = isinstance(event, StepFailed) or (isinstance(event, StepSucceeded) and not event.source)
            if ran and event.name not in UNRECORDED and started.get(event.attempt) != number:
                yield task, f"step {path}, begun in activations {started}, ended in {number}: {event}"


def attempts_follow_each_other(evidence: Evidence) -> Found:
    """Attempts are numbered from 1, none follows an outcome or comes before it is due, and no doubt is hidden."""
    for task, path, history, _ in evidence.steps():
        last: TaskEvent | None = None
        attempts = 0
        for _, event in history.steps[path]:
            decided = isinstance(last, StepFailed) and isinstance(event, Released)
            if last is not None and is_outcome(last) and not decided:
                yield task, f"step {path} goes on after its outcome {last}: {event}"
            if isinstance(event, StepStarted):
                attempts += 1
                if event.attempt != attempts:
                    yield task, f"step {path}: attempt {event.attempt} is the {attempts}. that was started"
                if isinstance(last, StepFailed) and last.retry_at is not None and event.timestamp < last.retry_at:
                    yield task, f"step {path}: attempt {event.attempt} was not due before {last.retry_at}: {event}"
                if bool(event.doubt) != isinstance(last, StepStarted | Released):
                    yield task, f"step {path}: attempt {event.attempt} says {event.doubt!r} of a doubt after {last}"
            last = event


def restarts_wait(evidence: Evidence) -> Found:
    """A task is activated only when it is due: by a time, or by what has come for it."""
    for task, history in evidence.histories.items():
        due: float | None = None
        waits: dict[str, list[str]] = {}
        for event in history.events:
            if isinstance(event, Activated) and due is not None and event.timestamp < due:
                yield task, f"activation {event.number} came at {event.timestamp}, and was due at {due}"
            if isinstance(event, WaitBegan):
                waits[event.path] = [name for _, name, _ in event.sources if name]
            elif isinstance(event, WaitEnded | CancelDelivered):
                waits.pop(event.path, None)
            elif isinstance(event, Concluded):
                waits.clear()
            came = isinstance(event, SignalReceived) and any(event.name in names for names in waits.values())
            if isinstance(event, Restarted | Passivated | Activated):
                due = _due(event)
            elif isinstance(event, CancelRequested | Concluded | Released) or came:
                due = None


def _due(event: Restarted | Passivated | Activated) -> float | None:
    """Give when a task may be activated again; never, where it waits for what has no time."""
    due = getattr(event, "due", None)
    if isinstance(event, Passivated) and event.waits:
        return inf if due is None else due - SLEW
    return due
