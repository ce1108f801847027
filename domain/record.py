"""What the log has of one step."""

from __future__ import annotations

from typing import NamedTuple, Self

from domain.events import Released, StepFailed, StepStarted, StepSucceeded
from domain.faults import Fault


class Call(NamedTuple):
    """What is called at which path; the digest is of its arguments, empty where they cannot be encoded."""

    path: str
    kind: str
    name: str
    digest: str = ""


class StepRecord:
    """What the log has of one step.

    Without an outcome it waits for its next attempt (`retry_at`), or it is in doubt: started, and nobody knows whether
    it happened. `began` is the time of its first event, `failures` are the attempts that ended in an error.
    """

    __slots__ = (
        *("attempt", "began", "digest", "failures", "kind", "label", "name", "outcome", "path", "retry_at", "settled"),
        "started",
    )

    def __init__(self, event: StepStarted | StepSucceeded | StepFailed) -> None:
        self.path = event.path
        self.kind = event.kind
        self.name = event.name
        self.digest = event.digest
        self.attempt = event.attempt
        self.began = self.started = event.timestamp
        self.label = event.label if isinstance(event, StepStarted) else ""
        self.outcome: StepSucceeded | StepFailed | Released | None = None
        self.settled: Released | None = None
        self.failures: tuple[StepFailed, ...] = ()
        self.retry_at: float | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether it was started, and neither its end nor a person's word is in the log."""
        return self.outcome is None and self.settled is None and self.retry_at is None

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
