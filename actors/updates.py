"""What a follower of a task is told: one class for each kind of news, made from an event or an emission alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from actors.view import wait_name
from domain.events import (
    Cancelled,
    Completed,
    Failed,
    Held,
    Passivated,
    Released,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
    WaitBegan,
)
from domain.faults import Fault
from domain.record import STEP
from domain.values import decode, loads
from domain.waits import Wait
from stores.emissions import EMIT, RESET, Emission

SHIFT = 24
"""Bits of a cursor that number emissions; what is above is a version of the log. Below 2**53 in all: exact in JSON."""


@dataclass(frozen=True)
class Update:
    """One piece of news of a task, given by `TaskRef.follow`.

    `cursor`: where it stands in the order of all news of this task: `follow(after=cursor)` goes on behind it. It only
    grows, and serves as the id of a server-sent event. `at`: Unix seconds.
    """

    cursor: int
    at: float


@dataclass(frozen=True)
class StepBegan(Update):
    """An attempt at a step begins. An `idempotent` step has none."""

    path: str
    name: str
    label: str
    attempt: int


@dataclass(frozen=True)
class StepEnded(Update):
    """An attempt at a step has ended: with a value where `error` is None, else in an error.

    `retry_at`: when the next attempt is due, Unix seconds; None where there is none.
    """

    path: str
    name: str
    attempt: int
    error: str | None
    retry_at: float | None


@dataclass(frozen=True)
class Emitted(Update):
    """Running code has called `emit`. `path` is its step's, `attempt` the step's attempt.

    What code between steps emits has the path of the step that would come next, followed by a dash ("2-"), and the
    number of the task's activation as its attempt. `stored`: the value as the store has it, JSON.
    """

    path: str
    attempt: int
    channel: str
    stored: str

    @property
    def value(self) -> Any:
        """Give a fresh copy of the value. Raises UnknownTypeError for a class that this process does not know."""
        return decode(loads(self.stored))


@dataclass(frozen=True)
class Reset(Update):
    """What was emitted so far under this path counts no more: `attempt` says it anew."""

    path: str
    attempt: int


@dataclass(frozen=True)
class TaskWaiting(Update):
    """A wait has begun, for `what` ("signal paid"), at `path`; or, with an empty path, all that the task does is wait.

    `until`: Unix seconds; None: until it comes.
    """

    until: float | None
    what: str
    path: str


@dataclass(frozen=True)
class TaskHeld(Update):
    """The task is held. `reason`: in a word or two; `path`: the step in question, or empty; `message`: what is known.

    What leads out is in `TaskRef.describe().why`.
    """

    reason: str
    path: str
    message: str


@dataclass(frozen=True)
class TaskReleased(Update):
    """A hold is over. With a `path`, `decision` says of that step: `value`, `rerun` or `fail`; by whom, says `by`."""

    path: str
    decision: str
    by: str


@dataclass(frozen=True)
class TaskEnded(Update):
    """The task has ended.

    `status`: "completed", "failed" or "cancelled". `reason`: the error's text, or why it was cancelled; or empty.
    """

    status: str
    reason: str


def cursor_of(version: int, number: int = 0) -> int:
    """Give the cursor of an event, or of an emission: the head of the log at its commit, and its number.

    >>> cursor_of(3), cursor_of(3, 17), place_of(cursor_of(3, 17))
    (50331648, 50331665, (3, 17))
    """
    return version << SHIFT | number


def place_of(cursor: int) -> tuple[int, int]:
    """Give the version and the number that a cursor is made of."""
    return cursor >> SHIFT, cursor & ((1 << SHIFT) - 1)


def update_of(event: TaskEvent) -> Update | None:
    """Give what a follower is told of an event; None for one that is no news to it."""
    tell = _TOLD.get(type(event))
    return None if tell is None else tell(event, (cursor_of(event.originator_version), event.timestamp))


def update_of_emission(row: Emission) -> Update:
    """Give what a follower is told of an emission, or of a reset."""
    place = cursor_of(row.base, row.number), row.at
    if row.kind == RESET:
        return Reset(*place, row.path, row.attempt)
    return Emitted(*place, row.path, row.attempt, row.channel, row.value)


def spoilt(row: Emission) -> str:
    """Say why an emission cannot be read; "" where it can. Whether its classes are known is not looked at.

    >>> row = Emission("1", 1, 1, "emit", "text", '"a"', 1.5, 2, 1)
    >>> spoilt(row), spoilt(row._replace(at="zzz")), spoilt(row._replace(value="{")).partition(":")[0]
    ('', "its at is 'zzz'", 'its value is no JSON')
    """
    for name, value in zip(row._fields, row, strict=True):
        if type(value) not in _TYPES[name]:
            return f"its {name} is {value!r:.100}"
    if row.kind not in (EMIT, RESET):
        return f"its kind is {row.kind!r:.100}"
    try:
        if row.kind == EMIT:
            loads(row.value)
    except ValueError as error:
        return f"its value is no JSON: {error}"
    return ""


_TYPES = {name: (float, int) if kind is float else (kind,) for name, kind in get_type_hints(Emission).items()}
"""What the fields of an emission are."""

_Place = tuple[int, float]


def _step_ended(event: StepSucceeded | StepFailed, place: _Place) -> Update | None:
    if event.kind != STEP:
        return None
    error = str(Fault.from_data(event.error)) if isinstance(event, StepFailed) else None
    return StepEnded(*place, event.path, event.name, event.attempt, error, getattr(event, "retry_at", None))


def _waiting(event: Passivated, place: _Place) -> Update | None:
    waits = event.waits or event.due is not None
    return TaskWaiting(*place, event.due, "", "") if waits else None


def _wait_began(event: WaitBegan, place: _Place) -> Update:
    wait = Wait.read(event.kind, event.name, event.sources, event.due)
    until = min((due.at for due in wait.first_due()), default=None)
    return TaskWaiting(*place, until, wait_name(event), event.path)


def _held(event: Held, place: _Place) -> Update:
    message = event.details.get("message") or event.details.get("answer") or event.details.get("where") or ""
    return TaskHeld(*place, event.reason, event.path, str(message))


_TOLD: dict[type[TaskEvent], Callable[[Any, _Place], Update | None]] = {
    StepStarted: lambda event, place: StepBegan(*place, event.path, event.name, event.label, event.attempt),
    StepSucceeded: _step_ended,
    StepFailed: _step_ended,
    Passivated: _waiting,
    WaitBegan: _wait_began,
    Held: _held,
    Released: lambda event, place: TaskReleased(*place, event.path, event.decision, event.by),
    Completed: lambda _, place: TaskEnded(*place, "completed", ""),
    Failed: lambda event, place: TaskEnded(*place, "failed", str(Fault.from_data(event.error))),
    Cancelled: lambda event, place: TaskEnded(*place, "cancelled", event.reason),
}
