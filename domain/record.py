"""What the log has of one step."""

from __future__ import annotations

from domain.events import Released, StepFailed, StepStarted, StepSucceeded


class StepRecord:
    """What the log has of one step.

    Without an outcome it is in doubt: started, and nobody knows whether it happened.
    """

    __slots__ = ("attempt", "digest", "kind", "label", "name", "outcome", "path", "settled", "started")

    def __init__(self, event: StepStarted | StepSucceeded | StepFailed) -> None:
        self.path = event.path
        self.kind = event.kind
        self.name = event.name
        self.digest = event.digest
        self.attempt = event.attempt
        self.started = event.timestamp
        self.label = event.label if isinstance(event, StepStarted) else ""
        self.outcome: StepSucceeded | StepFailed | Released | None = None
        self.settled: Released | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether it was started and neither an outcome nor a person's word is in the log."""
        return self.outcome is None and self.settled is None
