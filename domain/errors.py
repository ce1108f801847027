"""What a caller of tasks may catch.

    PerdureError
    ├── OutsideTaskError            a step or `task_info` where no task runs
    │   └── NestedStepError         a step inside the body of another step
    ├── SystemClosedError           the system was closed meanwhile; its tasks go on with the next worker
    ├── InsideTaskError             a call that an agent may not make between its steps, nor an entity's code
    ├── BlockingCallError           a call that would block an event loop
    ├── DefinitionError             a decorator was given what it cannot use
    ├── UnknownAgentError           no agent of that name is known to this process
    ├── UnstorableValueError        a value that the log cannot give back as it was
    ├── UnknownTypeError            a stored value of a class that this process has not, or not any more so
    ├── StepError                   a step has failed; raised into the agent
    ├── RetryAfterError             raised *by* the body of a step: try again, but not so soon
    ├── StepTimeoutError            what a step failed with that was given up at its time limit
    ├── AskTimeoutError             a command was not answered in time
    ├── WaitTimeoutError            what an agent waited for did not come in time
    ├── ChildError                  a child of this task has failed, or was cancelled; raised into the agent
    ├── EntityError                 about one entity, named in `.topic` and `.entity_id`
    │   ├── EntityCrashError        its command ended in an error that is no answer
    │   ├── EntityStoppedError      it was stopped before the command was its turn
    │   ├── GroupConflictError      the group has another strategy, or the entity another group
    │   ├── KeyConflictError        the key was used for another command
    │   └── UnreadableEntityError   a row of its log cannot be read
    └── TaskError                   about one task, named in `.task_id`
        ├── InvalidTaskIdError      an id that no task may have
        ├── UnknownTaskError        the store has no task of that id
        ├── TaskConflictError       the id is in use by another agent or other input
        ├── UnreadableTaskError     a row of its log cannot be read
        ├── TaskEndedError          it has ended, nothing can be added
        ├── TaskNotEndedError       it has not ended, and so is not deleted
        ├── ResolveError            there is nothing to resolve or release like this
        ├── SignalConflictError     a signal's id was used for another signal
        ├── UnknownApprovalError    there is no approval of that id
        ├── AlreadyDecidedError     an approval was answered otherwise before
        ├── TaskFailedError         its result is a failure
        ├── TaskCancelledError      it was called off
        └── TaskHeldError           it is parked, waiting for a person or for other code

    FailTask                        raised *by* an agent: fail this task at once
    Rejected                        raised *by* an entity's command: its answer is no
    TaskCancelled (BaseException)   raised *into* an agent where its task is called off
    GivenUp (BaseException)         raised by `heartbeat` in a body that was given up: end it
    Suspended (BaseException)       unwinds an agent whose activation has stopped; never to be caught
    └── OwnershipLost               … because another activation of the task is the newest

The store's own errors are drawn in `stores/errors.py`. Every error pickles, and carries the facts of its message as
attributes.
"""

from __future__ import annotations

from typing import Any

from domain.faults import Fault


class PerdureError(Exception):
    """The base of every error that perdure raises on purpose, but for the store's."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[PerdureError], args: tuple[Any, ...], facts: dict[str, Any]) -> PerdureError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class OutsideTaskError(PerdureError):
    """Raised when what belongs to a task is called where no task runs; a hand-made thread is such a place."""


class NestedStepError(OutsideTaskError):
    """Raised when a step is called inside the body of a step."""


class SystemClosedError(PerdureError):
    """Raised when a system is used, or a result waited for, that was closed; the tasks are in the store."""


class InsideTaskError(PerdureError):
    """Raised when an agent, between its steps, or an entity's own code calls what would happen again with it."""


class BlockingCallError(PerdureError):
    """Raised when a call would block an event loop; the message names the call to await instead."""


class DefinitionError(PerdureError):
    """Raised when `@agent`, `@step` or `register` is given what it cannot use, or a name that is taken."""


class UnknownAgentError(PerdureError):
    """Raised when an agent is named that this process has not imported."""


class UnstorableValueError(PerdureError):
    """Raised when a value cannot be stored so that it comes back equal and of the same type."""

    def __init__(self, message: str, *, path: str, type_name: str) -> None:
        super().__init__(message)
        self.path = path
        self.type_name = type_name


class UnknownTypeError(PerdureError, ValueError):
    """Raised when a stored value is of a class, member, field or version that the code of this process does not have.

    `type_name` is the name under which the log knows the class. Nothing is lost: other code can read the value.
    """

    def __init__(self, message: str, *, type_name: str) -> None:
        super().__init__(message)
        self.type_name = type_name


class StepError(PerdureError):
    """Raised into the agent when a step has failed; live and at every replay alike.

    The original exception is data: `fault` has its type, message, traceback text and causes, and `is_a` tells what it
    was. `errors` has the fault of each attempt that ended in one; attempts that a death cut short have none, so there
    can be fewer than `attempts`. `fault` is the last of them, unless a person has given the step up.
    """

    def __init__(
        self, message: str, *, step: str, path: str, attempts: int, fault: Fault, errors: tuple[Fault, ...] = ()
    ) -> None:
        super().__init__(message)
        self.step = step
        self.path = path
        self.attempts = attempts
        self.fault = fault
        self.errors = errors or (fault,)

    def is_a(self, kind: type[BaseException] | str) -> bool:
        """Tell whether the original exception was an instance of `kind`, a class or the name of one."""
        return self.fault.is_a(kind)


class RetryAfterError(PerdureError):
    """Raised by the body of a step, or a subclass of it, to be tried again no sooner than after `retry_after` seconds.

    Whether there is another attempt is the step's policy's to say, and its own wait counts where that is longer. The
    wait is in the log; `max_backoff` does not shorten it, and none is made that `total_timeout` would cut short.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StepTimeoutError(PerdureError, TimeoutError):
    """Raised by nobody: it is what the log says of an attempt given up at its time limit, or without a heartbeat."""


class AskTimeoutError(PerdureError, TimeoutError):
    """Raised when a command was not answered in time.

    One that has not begun is not done later either. One that has may be; asked again with the same key, it gives the
    first reply.
    """


class WaitTimeoutError(PerdureError, TimeoutError):
    """Raised into an agent when what it waited for did not come in time; live and at every replay alike.

    Uncaught, it fails the task.
    """


class ChildError(PerdureError):
    """Raised into an agent that asks for the result of a child which has none: `status` is "failed" or "cancelled".

    `fault` is the error with which it has failed. Uncaught, it fails the task.
    """

    def __init__(self, message: str, *, child: str, status: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.child = child
        self.status = status
        self.fault = fault


class EntityError(PerdureError):
    """The base of the errors about one entity: `topic` names its class, `entity_id` which one."""

    def __init__(self, message: str, *, topic: str, entity_id: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.entity_id = entity_id


class EntityCrashError(EntityError):
    """Raised when a command ended in an error that is no answer; nothing of it was stored. `fault` says how."""

    def __init__(self, message: str, *, topic: str, entity_id: str, fault: Fault) -> None:
        super().__init__(message, topic=topic, entity_id=entity_id)
        self.fault = fault


class EntityStoppedError(EntityError):
    """Raised when an entity was stopped for good before a command was its turn; nothing of the command was done."""


class GroupConflictError(EntityError):
    """Raised when a group has another strategy than is asked for, or an entity another group; nothing was changed."""


class KeyConflictError(EntityError):
    """Raised when a key was used before, for another command or other arguments; nothing of this one was done."""


class UnreadableEntityError(EntityError):
    """Raised when a row of an entity's log cannot be read; `version` is its place in the log.

    Nothing is ever appended to such a log.
    """

    def __init__(self, message: str, *, topic: str, entity_id: str, version: int) -> None:
        super().__init__(message, topic=topic, entity_id=entity_id)
        self.version = version


class TaskError(PerdureError):
    """The base of the errors about one task."""

    def __init__(self, message: str, *, task_id: str) -> None:
        super().__init__(message)
        self.task_id = task_id


class InvalidTaskIdError(TaskError):
    """Raised when an id is empty, longer than 200 characters, or has a character that does not print."""


class UnknownTaskError(TaskError):
    """Raised when the store has no task of that id."""


class TaskConflictError(TaskError):
    """Raised when an id is in use by a task of another agent or with other input; nothing was changed."""


class UnreadableTaskError(TaskError):
    """Raised when a row of a task's log cannot be read; `version` is its place in the log.

    Nothing is ever appended to such a log.
    """

    def __init__(self, message: str, *, task_id: str, version: int) -> None:
        super().__init__(message, task_id=task_id)
        self.version = version


class TaskEndedError(TaskError):
    """Raised when something is asked of a task that has ended; `status` names the ending."""

    def __init__(self, message: str, *, task_id: str, status: str) -> None:
        super().__init__(message, task_id=task_id)
        self.status = status


class TaskNotEndedError(TaskError):
    """Raised when a task is to be deleted that has not ended; `status` is how it is. Nothing was deleted."""

    def __init__(self, message: str, *, task_id: str, status: str) -> None:
        super().__init__(message, task_id=task_id)
        self.status = status


class ResolveError(TaskError):
    """Raised when a task is resolved or released that is not held, or at a path that is not in question."""


class SignalConflictError(TaskError):
    """Raised when a signal comes under an id that a signal with another name or value had; nothing was changed."""


class UnknownApprovalError(TaskError):
    """Raised when a task has never asked for the approval that is answered, or another life of its id has."""


class AlreadyDecidedError(TaskError):
    """Raised when an approval was answered otherwise before: `approved` and `by` say how, and that stands."""

    def __init__(self, message: str, *, task_id: str, approved: bool, by: str) -> None:
        super().__init__(message, task_id=task_id)
        self.approved = approved
        self.by = by


class TaskFailedError(TaskError):
    """Raised by `result()` when the task has failed; `fault` says how."""

    def __init__(self, message: str, *, task_id: str, fault: Fault) -> None:
        super().__init__(message, task_id=task_id)
        self.fault = fault


class TaskCancelledError(TaskError):
    """Raised by `result()` when the task was called off; `reason` is what was given, `by` who did it.

    `doubts` are the paths of steps of which nobody knows whether they happened; `cut` tells that the agent's own
    clean-up did not come to its end.
    """

    def __init__(self, message: str, *, task_id: str, reason: str, by: str, doubts: list[str], cut: bool) -> None:
        super().__init__(message, task_id=task_id)
        self.reason = reason
        self.by = by
        self.doubts = doubts
        self.cut = cut


class TaskHeldError(TaskError):
    """Raised by `result()` when the task is held; `reason` is the kind of hold, the message says what leads out."""

    def __init__(self, message: str, *, task_id: str, reason: str) -> None:
        super().__init__(message, task_id=task_id)
        self.reason = reason


class FailTask(Exception):  # noqa: N818  a control signal says what it does
    """Raise it in an agent to fail the task at once: a business decision, no bug and no strike."""


class Rejected(Exception):  # noqa: N818  an answer, and no error of the entity's
    """Raise it in an entity's command to answer no: whoever asked gets it raised, and nothing of the command is stored.

    It may be subclassed; its arguments are stored as a step's values are, where an agent asks.
    """


class TaskCancelled(BaseException):
    """Raised into an agent when its task was called off: once in each line of its program, at a call of ours.

    Whoever catches it may clean up, by steps too, within a grace of some seconds, and raises it again: the task has
    then ended as cancelled. An agent that returns instead has completed after all. `reason` and `by` say why, and who.
    """

    def __init__(self, message: str = "", *, reason: str = "", by: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.by = by


class GivenUp(BaseException):
    """Raised by `heartbeat` in a body that was given up, or whose task was called off: end, and let it through."""


class Suspended(BaseException):
    """Unwinds an agent whose activation has stopped. Never catch it: every later call of ours raises it again."""


class OwnershipLost(Suspended):
    """Unwinds an agent whose task has a newer activation: another process owns it now. Nothing more is written."""
