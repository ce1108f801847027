"""One call, and what the log has for it: handed over as a fresh copy, the same live and in a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from actors.activation import Activation
from actors.colours import Arrival, Colour
from actors.definitions import AnyStep
from actors.lines import Left, Over
from actors.parts import Decide
from actors.raised import kind_of, mark, remade
from actors.threads import NoThreadError
from domain.errors import StepError, TaskCancelled, UnknownTypeError, UnstorableValueError
from domain.events import CancelDelivered, Released, StepFailed, StepSucceeded
from domain.faults import Fault
from domain.journal import Place
from domain.record import STEP, Call, StepRecord
from domain.state import IN_DOUBT, UNKNOWN_CLASS, UNREADABLE
from domain.values import convert, decode, digest, encode
from stores.task_index import Birth


class Line(Protocol):
    """The line of execution that calls."""

    activation: Activation
    colour: Colour
    cancelled: bool


class AnyCall:
    """One call that takes a position.

    `cleans_up` tells that its line knew of the cancellation of the task when it called; a line in whose scope another
    one hears of it meanwhile still gets it here.
    """

    __slots__ = ("activation", "call", "cleans_up", "colour", "line", "path")

    def __init__(self, line: Line, call: Call) -> None:
        self.line = line
        self.activation = line.activation
        self.cleans_up = line.cancelled
        self.colour = line.colour
        self.call = call
        self.path = call.path

    @property
    def cancels(self) -> bool:
        """Whether the task was called off, and this line of its program had not heard of it when it called."""
        return self.activation.task.cancel is not None and not self.cleans_up

    def may_go_on(self) -> None:
        """Stop where nothing new may begin: here ends what a replay can tell."""
        if self.activation.must_stop():
            self.activation.stop(here=not self.colour.awaits)

    def raise_cancelled(self) -> NoReturn:
        """Raise that the task was called off: what this line calls from now on is clean-up."""
        self.line.cancelled = True
        cancel = self.activation.task.cancel
        reason, by = ("", "") if cancel is None else (cancel.reason, cancel.by)
        why = f": {reason}" if reason else ""
        raise TaskCancelled(f"task {self.activation.task.id} was cancelled by {by}{why}", reason=reason, by=by)

    async def append(
        self, decide: Decide, inside: Callable[[], None] | None = None, births: Sequence[Birth] = ()
    ) -> bool:
        """Append; tells whether a cancellation came meanwhile, which never undoes what is in the log."""
        if not self.colour.awaits:
            self.activation.append(decide, inside, births)
            return False
        arrival = Arrival()
        submission = self.activation.submit(decide, arrival.tell, inside, births)
        if submission is None:
            return await self.run_blocking(self.activation.append, decide, inside, births)
        cancelled = await arrival.wait()
        self.activation.take(submission.answer)
        return cancelled

    async def run_blocking(self, fn: Callable[..., object], *args: object) -> bool:
        """Run what waits for the store, without blocking a loop; tells whether a cancellation came meanwhile."""
        try:
            _, cancelled = await self.colour.run(self.activation.runtime.commits, fn, *args)
        except NoThreadError:  # better a short wait of the loop than an end that is not in the log
            fn(*args)
            return False
        return cancelled

    async def wait_in_place(self, left: Left, over: Over) -> bool:
        """Wait until no time is left, or it is `over()`; where all of the task waits, it is unwound meanwhile.

        Tells whether a cancellation from outside came first. Raises what closed the activation; NoThreadError.
        """
        activation = self.activation
        if not self.colour.awaits:
            activation.wait_for(left, over)
            return False
        import asyncio  # noqa: PLC0415  a loop runs, so it is there

        with activation.under_limit():
            job = activation.await_for(activation.runtime.threads, left, over)
            try:
                await self.colour.wait(job, None)
            except asyncio.CancelledError:
                activation.check()
                return True
            finally:
                activation.forget(job)
        job.result()
        return False


class RecordedCall(AnyCall):
    """One call of a step, at its place."""

    __slots__ = ("args", "arguments", "kwargs", "settings", "step")

    def __init__(
        self,
        line: Line,
        step: AnyStep,
        place: Place,
        arguments: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        super().__init__(line, Call(place.path, STEP, step.name, _digest(arguments)))
        self.step = step
        self.settings = step.settings
        self.arguments = arguments
        self.args = args
        self.kwargs = kwargs

    def hand_over(self, record: StepRecord) -> Any:
        """Give the outcome that the log has."""
        outcome = record.outcome
        if isinstance(outcome, StepSucceeded):
            return self._decoded(outcome.value)
        if isinstance(outcome, StepFailed):
            raise self._error(record, outcome)
        if isinstance(outcome, CancelDelivered):
            self.raise_cancelled()
        assert isinstance(outcome, Released)  # noqa: S101  a value, a failure, or a person's word
        if outcome.decision == "fail":
            raise self._step_error(record, Fault(("GivenUp",), f"given up by {outcome.by}"))
        return self._resolved(outcome)

    def _decoded(self, encoded: Any, what: str = "the value") -> Any:
        try:
            return decode(encoded)
        except ValueError as error:
            reason = UNKNOWN_CLASS if isinstance(error, UnknownTypeError) else UNREADABLE
            message = f"{what} of step {self.path} {self.step.name} cannot be read: {error}"
            here = not self.colour.awaits
            self.activation.hold(reason, self.path, {"message": message}, here=here)

    def _resolved(self, outcome: Released) -> Any:
        value = self._decoded(outcome.value)
        try:
            return convert(value, self.step.returns)
        except ValueError as error:
            self._hold_in_doubt(f"the value given by {outcome.by} does not fit: {error}")

    def _error(self, record: StepRecord, outcome: StepFailed) -> BaseException:
        error = self._step_error(record, Fault.from_data(outcome.error))
        kind = kind_of(outcome.error, self.settings.raises)
        if kind is None:
            return error
        parts = self._decoded(outcome.error["raised"], "the error")
        try:
            itself = remade(kind, parts)
        except Exception:  # its class has changed since
            return error
        itself.__cause__ = error
        self.activation.declared[mark(itself)] = error
        return itself

    def _step_error(self, record: StepRecord, fault: Fault) -> StepError:
        name, path = self.step.name, self.path
        message = f"step {path} {name} failed: {fault}"
        if record.attempt > 1:
            message = f"step {path} {name} failed after {record.attempt} attempts: {fault}"
        errors = record.errors
        return StepError(message, step=name, path=path, attempts=record.attempt, fault=fault, errors=errors)

    def _hold_in_doubt(self, answer: str) -> NoReturn:
        details: dict[str, object] = {"answer": answer} if answer else {}
        self.activation.hold(IN_DOUBT, self.path, details, here=not self.colour.awaits)


def _digest(arguments: Any) -> str:
    """Give the digest of a call's arguments; empty where they cannot be encoded: not stored, they may be anything."""
    try:
        return digest(encode(arguments))
    except UnstorableValueError:
        return ""
