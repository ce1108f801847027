"""What a task owes when its agent is done: undos, and to each child what its policy says. Then it ends.

That it is done, and how it ends, is in the log already (`Concluded`): no code of the agent runs for this any more.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from actors.activation import Activation
from actors.children import cancel_child
from actors.context import Context
from actors.definitions import AnyStep, find_step
from domain.errors import PerdureError, StepError
from domain.events import Released
from domain.faults import Fault
from domain.state import CANCEL, DIFFERS, FAILED_STEP, UNDOS, UNREADABLE, WAIT, Undo
from domain.task import AgentTask
from domain.values import decode
from domain.waits import CHILD, Source, Wait, child_name

logger = logging.getLogger("perdure")

LAST = "end"
"""The scope in which a task waits for its children when its agent is done."""


def settle(activation: Activation, near: str) -> None:
    """Call off children, run undos in reverse order, wait for children; then end the task.

    A death in between goes on with the rest. An undo that fails holds the task, for a person to decide.
    """
    task = activation.task
    _call_off_children(activation)
    if task.concluded is not None and task.concluded.status != "completed":
        _undo(activation, near)
    _await_children(activation)
    activation.append(lambda task, now: task.settle(activation.number, now))


def _call_off_children(activation: Activation) -> None:
    """Call off the children for which that is owed; one that cannot be reached holds the task, after all the others."""
    task, failed = activation.task, list[str]()
    for child, policy in task.owed_children:
        if policy == CANCEL or task.hurries:
            try:
                cancel_child(activation, child, f"its parent {task.id} has ended")
            except PerdureError as error:
                failed.append(f"child {child} cannot be called off: {error}")
            except BaseException as error:
                activation.close(activation.unwritten(error))
    if failed:
        activation.hold(UNREADABLE, "", {"message": failed[0]}, here=True)


def knows_undos(task: AgentTask, near: str) -> bool:
    """Tell whether this process has the steps of all undos that a task still owes."""
    with suppress(LookupError, ValueError, TypeError):
        return all(_find(undo, near) for _, undo in task.owed_undos)
    return False


def _undo(activation: Activation, near: str) -> None:
    task = activation.task
    scope = Context(activation, UNDOS)
    scope.cancelled = True
    for number, undo in enumerate(reversed(task.undos), 1):
        path = f"{UNDOS}/{number}"
        try:
            step, args, kwargs = _find(undo, near)
        except (LookupError, ValueError, TypeError) as error:
            message = f"the undo {undo.name} of what was done at {undo.path} cannot be run: {error}"
            activation.hold(DIFFERS, path, {"message": message}, here=True)
        try:
            scope.call_step(step, args, kwargs)
        except StepError as error:
            record = task.steps[path]
            if not isinstance(record.outcome, Released):
                activation.hold(FAILED_STEP, path, {"message": str(error.fault)}, here=True)
            logger.warning("task %s: the undo %s at %s was given up", task.id, undo.name, path)
        except Exception as error:  # one of its `raises`
            activation.hold(FAILED_STEP, path, {"message": str(Fault.of(error))}, here=True)


def _find(undo: Undo, near: str) -> tuple[AnyStep, tuple[Any, ...], dict[str, Any]]:
    """Give the step of an undo, and its arguments.

    Raises LookupError where there is none of that name here, ValueError for arguments of a class that is not here,
    TypeError where it does not take them any more.
    """
    step = find_step(undo.name, near)
    given: Any = decode(undo.arguments)
    args, kwargs = given
    step.arguments(tuple(args), kwargs)
    return step, tuple(args), kwargs


def _await_children(activation: Activation) -> None:
    task, scope = activation.task, Context(activation, LAST)
    scope.cancelled = True
    awaited = [child for child, policy in task.children.items() if policy == WAIT]
    for number, child in enumerate(awaited):
        name, scope.asked = child_name(child), number  # its place is its own, whether or not the others are waited for
        if name not in task.mail or scope.next_position.path in task.steps:
            scope.wait("a child", Wait(CHILD, child, (Source(CHILD, name),)))
