"""The events of a task: all that is ever known of it.

Past tense, only the delta, with a time that is handed in. `TOPIC` and the order of the fields are stored bytes and
outlive this code: a new field goes to the end, with a default and a higher `SCHEMA`. Values, inputs and faults are
held encoded (`domain.values`).
"""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError
from typing import Any, ClassVar, NoReturn, TypeAlias, dataclass_transform

from eventsourcing.domain import HasOriginatorIDVersion


@dataclass_transform(frozen_default=True)
class Fact(HasOriginatorIDVersion[str]):
    """A frozen record of the fields that its class and its bases annotate: a frozen dataclass, to type checkers too.

    Not a real one: that sets its fields one by one, which every append would pay, and compiles six methods for each
    class, which every start would pay.
    """

    NAMES: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Take the fields that the class adds, in declared order."""
        super().__init_subclass__()
        own = inspect.get_annotations(cls)
        cls.NAMES = (*cls.NAMES, *(name for name, kind in own.items() if not str(kind).startswith("ClassVar")))

    def __init__(self, *values: Any) -> None:
        if len(values) != len(self.NAMES):
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.NAMES)}, not {len(values)} values")
        self.__dict__.update(zip(self.NAMES, values))  # noqa: B905  compared above

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot set {name!r}: what has happened has happened")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete {name!r}: what has happened has happened")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # its values are lists and dicts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in self.NAMES)})"


class TaskEvent(Fact):
    """What every event of a task carries: whose, its version (1 is `Created`), and when, in seconds of Unix time."""

    TOPIC: ClassVar[str]
    SCHEMA: ClassVar[int] = 1
    ADDED: ClassVar[dict[int, tuple[Any, ...]]] = {}
    """By schema, oldest first, what an older row has in the fields that this schema has added."""
    STORED: ClassVar[tuple[str, ...]]
    """The names of what a row holds, in order: the schema, then the fields but for id and version."""
    LACKED: ClassVar[dict[int, tuple[Any, ...]]]
    """By schema, what a row of it has in all the fields that were added since."""

    originator_id: str
    originator_version: int
    timestamp: float

    def __init_subclass__(cls) -> None:
        """Name what is stored of the event, and what an older row of it lacks."""
        super().__init_subclass__()
        cls.STORED = ("SCHEMA", *cls.NAMES[2:])
        later: tuple[Any, ...] = ()
        cls.LACKED = {schema - 1: (later := (*added, *later)) for schema, added in reversed(cls.ADDED.items())}

    def payload(self) -> list[Any]:
        """Give what is stored besides id, version and topic: the schema, then the fields in declared order.

        In the oldest schema that can hold it: where it says nothing new, an older perdure can read it.
        """
        stored = [self.SCHEMA, *list(self.__dict__.values())[2:]]
        for schema, added in reversed(self.ADDED.items()):
            if tuple(stored[-len(added) :]) != added:
                break
            del stored[-len(added) :]
            stored[0] = schema - 1
        return stored


class Created(TaskEvent):
    """The task was spawned. `birth` is random: a later task under the same id has another."""

    TOPIC = "task.created"
    birth: str
    agent: str
    input: Any
    parent: str
    tags: Any
    options: Any


class Activated(TaskEvent):
    """A worker claimed the task. `number` is the fence: only the newest activation may write for the agent."""

    TOPIC = "task.activated"
    number: int
    worker: str
    token: str


class StepStarted(TaskEvent):
    """A body is about to run.

    `doubt` tells how an earlier attempt in doubt was settled: by rerun, an answer, or a person. `reserved` is what the
    attempt was reserved at, where its step reserves something.
    """

    TOPIC = "step.started"
    SCHEMA = 2
    ADDED = {2: (None,)}  # noqa: RUF012  as declared above
    path: str
    kind: str
    name: str
    attempt: int
    digest: str
    label: str
    doubt: str
    reserved: Any


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


class Restarted(TaskEvent):
    """The supervisor restarts the task after a crash of its agent; it is due again at `due`."""

    TOPIC = "task.restarted"
    activation: int
    error: Any
    strikes: int
    due: float


class RestartAsked(TaskEvent):
    """Another child of the task's group has crashed, and the task is to begin anew at its next step boundary.

    `cause` names that crash, and is unique to it; `by` is the child.
    """

    TOPIC = "task.restart_asked"
    cause: str
    by: str


class Passivated(TaskEvent):
    """The activation was stopped on purpose. `cut_off` lists the paths of bodies that did not end within the grace.

    `waits` tells that all it does is wait, until `due`, or for what others bring where that is None; else it may go on
    at once.
    """

    TOPIC = "task.passivated"
    SCHEMA = 3
    ADDED = {2: (None,), 3: (False,)}  # noqa: RUF012  as declared above
    activation: int
    cut_off: Any
    due: float | None
    waits: bool


class Held(TaskEvent):
    """The task is parked, with a reason and the facts that its explanation needs."""

    TOPIC = "task.held"
    activation: int
    reason: str
    path: str
    details: Any


class Released(TaskEvent):
    """A hold is over. With a path it decides what became of that step: `value`, `rerun` or `fail`."""

    TOPIC = "task.released"
    path: str
    decision: str
    value: Any
    by: str


class WaitBegan(TaskEvent):
    """The task waits for the first of `sources`, or until `due` (`domain.waits` has what each is)."""

    TOPIC = "wait.began"
    path: str
    kind: str
    name: str
    sources: Any
    due: Any


class WaitEnded(TaskEvent):
    """A wait is over: by the source of that number, from 0, or by its time where that is -1.

    `signal` is the version at which the log has what was waited for; 0 where it was a time.
    """

    TOPIC = "wait.ended"
    path: str
    kind: str
    name: str
    source: int
    signal: int


class SignalReceived(TaskEvent):
    """Something from outside was accepted, once for each `signal`: it waits here for who asks for its name."""

    TOPIC = "signal.received"
    signal: str
    name: str
    value: Any
    by: str


class ApprovalRequested(TaskEvent):
    """A person is to be asked; before anybody is shown the question it is here."""

    TOPIC = "approval.requested"
    path: str
    kind: str
    name: str
    label: str
    details: Any


class ChildSpawned(TaskEvent):
    """A child was made, in the same transaction. `policy` is what becomes of it when its parent ends."""

    TOPIC = "child.spawned"
    path: str
    kind: str
    name: str
    child: str
    policy: str


class UndoRegistered(TaskEvent):
    """The body of the step at `path` has said how to undo it: by the step `name` with these arguments."""

    TOPIC = "undo.registered"
    path: str
    name: str
    arguments: Any


class CancelRequested(TaskEvent):
    """Somebody has called the task off. It has `grace` seconds for its clean-up from when it hears of it."""

    TOPIC = "cancel.requested"
    reason: str
    by: str
    grace: float


class CancelDelivered(TaskEvent):
    """The call at `path` has raised that the task was cancelled, and does so at each replay."""

    TOPIC = "cancel.delivered"
    path: str
    kind: str
    name: str
    digest: str


class Concluded(TaskEvent):
    """The agent is done, and how the task ends is decided; its ending follows when nothing is owed any more.

    Owed are undos, and to each child what its policy says. `status` is that of the ending, which gets `value`, `error`
    and the `doubts` of now; `cut` tells that the agent's own clean-up did not come to its end.
    """

    TOPIC = "task.concluded"
    status: str
    value: Any
    error: Any
    doubts: Any
    cut: bool


class Completed(TaskEvent):
    """The agent returned."""

    TOPIC = "task.completed"
    value: Any


class Failed(TaskEvent):
    """The task failed: `doubts` lists the steps that were in doubt when it did."""

    TOPIC = "task.failed"
    error: Any
    doubts: Any


class Cancelled(TaskEvent):
    """The task was called off. `doubts` lists the steps that are in doubt.

    `cut` tells that the agent's own clean-up did not come to its end, or never began.
    """

    TOPIC = "task.cancelled"
    reason: str
    by: str
    doubts: Any
    cut: bool


Ending: TypeAlias = Completed | Failed | Cancelled
"""The last event of a task."""

EVENTS: dict[str, type[TaskEvent]] = {
    event.TOPIC: event
    for event in (
        Created,
        Activated,
        StepStarted,
        StepSucceeded,
        StepFailed,
        Restarted,
        RestartAsked,
        Passivated,
        Held,
        Released,
        WaitBegan,
        WaitEnded,
        SignalReceived,
        ApprovalRequested,
        ChildSpawned,
        UndoRegistered,
        CancelRequested,
        CancelDelivered,
        Concluded,
        Completed,
        Failed,
        Cancelled,
    )
}
"""The closed table from which topics are resolved: no row of a log can make us import anything."""


def revive(topic: str, task_id: str, version: int, payload: list[Any]) -> TaskEvent:
    """Give the event that a row holds.

    Raises ValueError, with what was found, where this code does not know the row.
    """
    event_class = EVENTS.get(topic)
    if event_class is None:
        raise ValueError(f"its topic {topic!r} is not known to this version of perdure")
    if event_class.LACKED and payload and payload[0] in range(1, event_class.SCHEMA):
        payload = [event_class.SCHEMA, *payload[1:], *event_class.LACKED[int(payload[0])]]
    if not payload or payload[0] != event_class.SCHEMA or len(payload) != len(event_class.STORED):
        raise ValueError(f"it is not a {topic!r} event of schema {event_class.SCHEMA}")
    event = object.__new__(event_class)
    facts = event.__dict__
    facts["originator_id"] = task_id
    facts["originator_version"] = version
    facts.update(zip(event_class.STORED, payload))  # noqa: B905  compared above
    del facts["SCHEMA"]
    return event
