"""The events of a task: all that is ever known of it.

Past tense, only the delta, with a time that is handed in. `TOPIC` and the order of the fields are stored bytes and
outlive this code: a new field goes to the end, with a default and a higher `SCHEMA`. Values, inputs and faults are
held encoded (`domain.values`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from eventsourcing.domain import HasOriginatorIDVersion


@dataclass(frozen=True)
class TaskEvent(HasOriginatorIDVersion[str]):
    """What every event of a task carries: whose, its version (1 is `Created`), and when, in seconds of Unix time."""

    TOPIC: ClassVar[str]
    SCHEMA: ClassVar[int] = 1
    FIELDS: ClassVar[tuple[str, ...]]
    STORED: ClassVar[tuple[str, ...]]

    originator_id: str
    originator_version: int
    timestamp: float

    def payload(self) -> list[Any]:
        """Give what is stored besides id, version and topic: the schema, then the fields in declared order."""
        facts = self.__dict__
        return [self.SCHEMA, *[facts[name] for name in self.FIELDS]]


@dataclass(frozen=True)
class Created(TaskEvent):
    """The task was spawned. `birth` is random: a later task under the same id has another."""

    TOPIC = "task.created"
    birth: str
    agent: str
    input: Any
    parent: str
    tags: Any
    options: Any


@dataclass(frozen=True)
class Activated(TaskEvent):
    """A worker claimed the task. `number` is the fence: only the newest activation may write for the agent."""

    TOPIC = "task.activated"
    number: int
    worker: str
    token: str


@dataclass(frozen=True)
class StepStarted(TaskEvent):
    """A body is about to run.

    `doubt` tells how an earlier attempt in doubt was settled: by rerun, an answer, or a person.
    """

    TOPIC = "step.started"
    path: str
    kind: str
    name: str
    attempt: int
    digest: str
    label: str
    doubt: str


@dataclass(frozen=True)
class StepSucceeded(TaskEvent):
    """A step has its value. `source` is empty for a body that ran, or names who knew that it had."""

    TOPIC = "step.succeeded"
    path: str
    kind: str
    name: str
    digest: str
    attempt: int
    value: Any
    source: str


@dataclass(frozen=True)
class StepFailed(TaskEvent):
    """A body ended in an error.

    `retry_at` is when the next attempt is due, or None where the step has failed for good.
    """

    TOPIC = "step.failed"
    path: str
    kind: str
    name: str
    digest: str
    attempt: int
    error: Any
    retry_at: float | None


@dataclass(frozen=True)
class Restarted(TaskEvent):
    """The supervisor restarts the task after a crash of its agent; it is due again at `due`."""

    TOPIC = "task.restarted"
    activation: int
    error: Any
    strikes: int
    due: float


@dataclass(frozen=True)
class Passivated(TaskEvent):
    """The activation was stopped on purpose. `cut_off` lists the paths of bodies that did not end within the grace."""

    TOPIC = "task.passivated"
    activation: int
    cut_off: Any


@dataclass(frozen=True)
class Held(TaskEvent):
    """The task is parked, with a reason and the facts that its explanation needs."""

    TOPIC = "task.held"
    activation: int
    reason: str
    path: str
    details: Any


@dataclass(frozen=True)
class Released(TaskEvent):
    """A hold is over. With a path it decides what became of that step: `value`, `rerun` or `fail`."""

    TOPIC = "task.released"
    path: str
    decision: str
    value: Any
    by: str


@dataclass(frozen=True)
class Completed(TaskEvent):
    """The agent returned."""

    TOPIC = "task.completed"
    value: Any


@dataclass(frozen=True)
class Failed(TaskEvent):
    """The task failed: `doubts` lists the steps that were in doubt when it did."""

    TOPIC = "task.failed"
    error: Any
    doubts: Any


EVENTS: dict[str, type[TaskEvent]] = {
    event.TOPIC: event
    for event in (
        Created,
        Activated,
        StepStarted,
        StepSucceeded,
        StepFailed,
        Restarted,
        Passivated,
        Held,
        Released,
        Completed,
        Failed,
    )
}
"""The closed table from which topics are resolved: no row of a log can make us import anything."""

for _event in EVENTS.values():
    _event.FIELDS = tuple(
        field.name for field in dataclasses.fields(_event) if field.name not in ("originator_id", "originator_version")
    )
    _event.STORED = ("SCHEMA", *_event.FIELDS)


def revive(topic: str, task_id: str, version: int, payload: list[Any]) -> TaskEvent:
    """Give the event that a row holds.

    Raises ValueError, with what was found, where this code does not know the row.
    """
    event_class = EVENTS.get(topic)
    if event_class is None:
        raise ValueError(f"its topic {topic!r} is not known to this version of perdure")
    if not payload or payload[0] != event_class.SCHEMA or len(payload) != len(event_class.STORED):
        raise ValueError(f"it is not a {topic!r} event of schema {event_class.SCHEMA}")
    event = object.__new__(event_class)
    facts = event.__dict__
    facts.update(zip(event_class.STORED, payload))  # noqa: B905  the lengths are compared above
    del facts["SCHEMA"]
    facts["originator_id"] = task_id
    facts["originator_version"] = version
    return event
