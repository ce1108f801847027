"""Undos: what is to be done where a task fails, or is called off, after something has happened."""

from __future__ import annotations

from typing import Any, ParamSpec

from actors.body import running_body
from actors.definitions import AnyStep, AsyncStep, Step
from actors.info import checked
from actors.pausing import caller_of
from domain.errors import DefinitionError

P = ParamSpec("P")


def compensate(undo: Step[P, Any] | AsyncStep[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Register how to undo what is done here: a step, and its arguments. It runs if the task fails or is cancelled.

        @step
        def book(trip: str) -> str:
            number = hotel.book(trip)
            compensate(cancel_booking, number)      # in the log with this step's success, in one append
            return number

    In the body of a step the undo is owed from the step's success on, and in the same append; also where the body is
    given up, or is called off, which leaves the step in doubt. In an agent's own code it is owed from the next append
    on: written before a step, that is its start, so that the undo of a step in doubt is owed too, also after the death
    of its process. Either way the undo has to bear that there is nothing to undo.

    When the task fails, by FailTask or a StepError, or is cancelled, the undos run before its ending, the last
    registered first, each as a recorded step: a death goes on with the rest. One that fails for good holds the task,
    for a person to decide. In a task that completes none runs, and what an undo registers itself counts nothing. They
    run as their steps were defined, without what `.options(…)` changes; in a process that has none of that name the
    task is held until one has.

    Raises DefinitionError for what is no step, TypeError for arguments that it does not take, UnstorableValueError,
    OutsideTaskError where no task runs.
    """
    if not isinstance(undo, AnyStep):
        raise DefinitionError(f"an undo is a step: decorate {getattr(undo, '__qualname__', repr(undo))} with @step")
    try:
        undo.signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"undo {undo.name}{undo.signature}: {error}") from None
    body = running_body.get()
    if body is not None:
        limit = body.activation.runtime.value_limit
        body.undos = [*body.undos, (undo.name, checked([list(args), kwargs], limit))]
        return
    caller = caller_of("compensate()")
    caller.check("compensate()", "", blocks=caller.colour.awaits is False)
    caller.register_undo(undo.name, checked([list(args), kwargs], caller.activation.runtime.value_limit))
