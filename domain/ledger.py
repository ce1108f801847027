"""What attempts at steps have been reserved at, and what came of them: for who decides whether one more may begin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from domain.events import StepFailed, StepSucceeded
from domain.faults import Fault
from domain.values import decode

if TYPE_CHECKING:
    from domain.record import StepRecord
    from domain.state import TaskState


@dataclass(frozen=True)
class Attempt:
    """One attempt at a step that was begun with a reservation.

    `state` is `finished`, `failed` (with its `fault`), or `open`: it runs, its end is not in the log, or a person has
    decided about it.
    """

    path: str
    number: int
    state: Literal["finished", "failed", "open"]
    fault: Fault | None = None
    _reserved: Any = field(default=None, repr=False)
    _value: Any = field(default=None, repr=False)

    @property
    def reserved(self) -> Any:
        """What `reserve` gave before it began."""
        return decode(self._reserved)

    @property
    def value(self) -> Any:
        """What it returned; None unless it is finished."""
        return decode(self._value)


@dataclass(frozen=True)
class Ledger:
    """What `reserve` is given: all attempts of the task that have a reservation, and what people have granted since."""

    attempts: tuple[Attempt, ...] = ()
    granted: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Spent:
    """The answer of `reserve` that no further attempt may begin: the task is held.

    `why` is for people, such as "2.00 of 2.00 spent"; `of` names what is spent.
    """

    why: str
    of: str = ""


def ledger_of(task: TaskState) -> Ledger:
    """Read what a task's log has."""
    attempts = [
        _attempt(task.steps[path], number, reserved)
        for path, begun in task.reserved.items()
        for number, reserved in begun
    ]
    return Ledger(tuple(attempts), tuple(decode(grant) for grant in task.granted))


def _attempt(record: StepRecord, number: int, reserved: Any) -> Attempt:
    outcome = record.outcome
    if isinstance(outcome, StepSucceeded) and outcome.attempt == number:
        return Attempt(record.path, number, "finished", None, reserved, outcome.value)
    failure: StepFailed | None = next((one for one in record.failures if one.attempt == number), None)
    if failure is not None:
        return Attempt(record.path, number, "failed", Fault.from_data(failure.error), reserved)
    return Attempt(record.path, number, "open", None, reserved)
