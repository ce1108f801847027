"""What the log has of one position of the program."""

from __future__ import annotations

from typing import NamedTuple, Self, TypeAlias

from domain.events import (
    ApprovalRequested,
    CancelDelivered,
    ChildSpawned,
    Released,
    StepFailed,
    StepStarted,
    StepSucceeded,
    WaitBegan,
    WaitEnded,
)
from domain.faults import Fault

STEP, PATCH, NOW, UNDO, REQUEST, SPAWN = "step", "patch", "now", "undo", "request", "spawn"
"""The kinds of a record, besides those of waits: a step, an answer of `patched`, a reading of the clock, an undo that
was registered, an approval that was asked for, a child that was spawned."""

Placed: TypeAlias = (
    StepStarted
    | StepSucceeded
    | StepFailed
    | WaitBegan
    | WaitEnded
    | ApprovalRequested
    | ChildSpawned
    | CancelDelivered
)
"""The events that take a position."""
Outcome: TypeAlias = (
    StepSucceeded | StepFailed | Released | WaitEnded | ApprovalRequested | ChildSpawned | CancelDelivered
)
"""What a call at a position gives, or raises, at each replay."""


class Call(NamedTuple):
    """What is called at which path; the digest is of its arguments, empty where they cannot be encoded."""

    path: str
    kind: str
    name: str
    digest: str = ""


class StepRecord:
    """What the log has of one position: of a step, mostly.

    A step without an outcome waits for its next attempt (`retry_at`), or it is in doubt: started, and nobody knows
    whether it happened. `began` is the time of its first event, `failures` are the attempts that ended in an error.
    `unsure` tells that the task was cancelled there while it was in doubt, which it stays.
    """

    __slots__ = (
        *("attempt", "began", "digest", "failures", "kind", "label", "name", "outcome", "path", "retry_at", "settled"),
        *("started", "unsure"),
    )

    def __init__(self, event: Placed) -> None:
        self.path = event.path
        self.kind = event.kind
        self.name = event.name
        self.digest: str = getattr(event, "digest", "")
        self.attempt: int = getattr(event, "attempt", 0)
        self.began = self.started = event.timestamp
        self.label: str = getattr(event, "label", "")
        self.outcome: Outcome | None = None
        self.settled: Released | None = None
        self.failures: tuple[StepFailed, ...] = ()
        self.retry_at: float | None = None
        self.unsure = False

    @property
    def in_doubt(self) -> bool:
        """Whether it is a step that was started, and neither its end nor a person's word is in the log."""
        if self.outcome is not None or self.kind != STEP:
            return self.unsure
        return self.settled is None and self.retry_at is None

    @property
    def errors(self) -> tuple[Fault, ...]:
        """The fault of each attempt that ended in one."""
        return tuple(Fault.from_data(failure.error) for failure in self.failures)

    def copy(self) -> Self:
        """Give a record of its own with the same facts."""
        other = object.__new__(type(self))
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        return other
