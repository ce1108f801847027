"""What a follower of a task is told: one class for each kind of news, made from an event or an emission alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from actors.view import pause_id, wait_name
from domain.events import (
    ApprovalRequested,
    Cancelled,
    CancelRequested,
    ChildSpawned,
    Completed,
    Failed,
    Held,
    Passivated,
    Released,
    SignalReceived,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
    WaitBegan,
    WaitEnded,
)
from domain.faults import Fault
from domain.record import STEP
from domain.values import decode, dumps, loads
from domain.waits import ANSWER, CHILD_END, SIGNAL, TIMER, Wait
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

    `until`: Unix seconds; None: until it comes. `signals`: the names of the signals that would end it; the approval or
    the child that would was told of before.
    """

    until: float | None
    what: str
    path: str
    signals: tuple[str, ...] = ()


@dataclass(frozen=True)
class WaitOver(Update):
    """The wait at `path` is over, by what it was for; or, `timed_out`, it goes on without it."""

    path: str
    what: str
    timed_out: bool


@dataclass(frozen=True)
class ApprovalAsked(Update):
    """A person is asked. `pause` is the approval's id: `TaskRef.answer(pause, approved=…)` answers, from anywhere.

    `stored`: the details as the store has them, JSON.
    """

    path: str
    question: str
    pause: str
    stored: str

    @property
    def details(self) -> Any:
        """Give a fresh copy of the details. Raises UnknownTypeError for a class that this process does not know."""
        return decode(loads(self.stored))


@dataclass(frozen=True)
class ApprovalAnswered(Update):
    """The approval that was asked for at `path` is answered, for good. `stored`: its value, as the store has it."""

    path: str
    approved: bool
    by: str
    note: str
    stored: str

    @property
    def value(self) -> Any:
        """Give a fresh copy of the value. Raises UnknownTypeError for a class that this process does not know."""
        return decode(loads(self.stored))


@dataclass(frozen=True)
class SignalArrived(Update):
    """A signal was accepted; it is kept until the task asks for it. `stored`: its value, as the store has it."""

    name: str
    by: str
    stored: str

    @property
    def value(self) -> Any:
        """Give a fresh copy of the value. Raises UnknownTypeError for a class that this process does not know."""
        return decode(loads(self.stored))


@dataclass(frozen=True)
class ChildBegan(Update):
    """A child was spawned at `path`: `child` is its id, by which it is followed itself."""

    path: str
    child: str


@dataclass(frozen=True)
class ChildEnded(Update):
    """The task has heard of a child's end. `status`: "completed", "failed" or "cancelled"."""

    child: str
    status: str


@dataclass(frozen=True)
class CancelAsked(Update):
    """Somebody has called the task off; it cleans up, and ends."""

    by: str
    reason: str


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


def update_of(event: TaskEvent, birth: str) -> Update | None:
    """Give what a follower is told of an event; None for one that is no news to it. `birth`: the task's."""
    place = cursor_of(event.originator_version), event.timestamp
    if isinstance(event, ApprovalRequested):
        pause = pause_id(event.originator_id, birth, event.path)
        return ApprovalAsked(*place, event.path, event.label, pause, dumps(event.details))
    tell = _TOLD.get(type(event))
    return None if tell is None else tell(event, place)


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
    signals = tuple(source.name for source in wait.sources if source.kind == SIGNAL)
    return TaskWaiting(*place, until, wait_name(event), event.path, signals)


def _wait_ended(event: WaitEnded, place: _Place) -> Update:
    timed_out = not event.signal and event.kind != TIMER and event.source < 0
    return WaitOver(*place, event.path, wait_name(event), timed_out)


def _received(event: SignalReceived, place: _Place) -> Update:
    if event.name.startswith(ANSWER):
        facts = event.value
        answer = facts["approved"], event.by, facts["note"], dumps(facts["value"])
        return ApprovalAnswered(*place, event.name.removeprefix(ANSWER), *answer)
    if event.name.startswith(CHILD_END):
        return ChildEnded(*place, event.name.removeprefix(CHILD_END), event.value["status"])
    return SignalArrived(*place, event.name, event.by, dumps(event.value))


def _held(event: Held, place: _Place) -> Update:
    message = event.details.get("message") or event.details.get("answer") or event.details.get("where") or ""
    return TaskHeld(*place, event.reason, event.path, str(message))


_TOLD: dict[type[TaskEvent], Callable[[Any, _Place], Update | None]] = {
    StepStarted: lambda event, place: StepBegan(*place, event.path, event.name, event.label, event.attempt),
    StepSucceeded: _step_ended,
    StepFailed: _step_ended,
    Passivated: _waiting,
    WaitBegan: _wait_began,
    WaitEnded: _wait_ended,
    SignalReceived: _received,
    ChildSpawned: lambda event, place: ChildBegan(*place, event.path, event.child),
    CancelRequested: lambda event, place: CancelAsked(*place, event.by, event.reason),
    Held: _held,
    Released: lambda event, place: TaskReleased(*place, event.path, event.decision, event.by),
    Completed: lambda _, place: TaskEnded(*place, "completed", ""),
    Failed: lambda event, place: TaskEnded(*place, "failed", str(Fault.from_data(event.error))),
    Cancelled: lambda event, place: TaskEnded(*place, "cancelled", event.reason),
}
