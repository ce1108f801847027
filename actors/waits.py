"""Durable waits: what begins one is in the log first, and what ended it is in the log before the agent goes on."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NoReturn

from actors.activation import Activation
from actors.recorded import AnyCall, Line
from actors.threads import NoThreadError
from domain.errors import StepError, UnknownTypeError
from domain.events import CancelDelivered, SignalReceived, StepFailed, WaitEnded
from domain.faults import Fault
from domain.journal import Place
from domain.record import Call, StepRecord
from domain.state import UNKNOWN_CLASS, UNREADABLE
from domain.values import decode
from domain.waits import Due, Wait, first_left, settled


def due_in(activation: Activation, seconds: float | None) -> Due | None:
    """Give the time in so many seconds, by both clocks."""
    if seconds is None:
        return None
    wall, line, mono = activation.clock.moment()
    return Due(wall + seconds, line, mono + seconds)


class WaitCall(AnyCall):
    """One wait, at its place."""

    __slots__ = ("wait",)

    def __init__(self, line: Line, place: Place, wait: Wait) -> None:
        super().__init__(line, Call(place.path, wait.kind, wait.name))
        self.wait = wait

    async def perform(self, record: StepRecord | None) -> WaitEnded:
        """Wait, or give what the log has of how this wait ended. Raises TaskCancelled."""
        activation, task = self.activation, self.activation.task
        while record is None or record.outcome is None:
            if activation.probe or activation.closed is not None:
                activation.stop(here=not self.colour.awaits)
            self.wait = task.waiting.get(self.path, self.wait)  # a time that is in the log stands
            cancelled = await self._append() or await self._wait_in_place()
            record = task.steps[self.path]
            if record.outcome is None and self.cleans_up:
                await self.run_blocking(activation.cut_short)
            if record.outcome is not None:
                activation.after_outcome()
                continue
            activation.check()
            if cancelled:
                await self._fail()
        return self._over(record)

    async def _append(self) -> bool:
        number, cancels = self.activation.number, not self.cleans_up
        return await self.append(
            lambda task, now: task.wait(
                number, now, self.call, self.wait, self.activation.clock.moment(), cancels=cancels
            )
        )

    async def _wait_in_place(self) -> bool:
        """Wait until it may be over; tells whether a cancellation from outside came first."""
        if self.activation.task.steps[self.path].outcome is not None:
            return False
        cleans_up = self.line.cancelled and self.activation.task.concluded is None
        try:
            with self.activation.hints.lend() if cleans_up else nullcontext():  # what it waits for may need the place
                return await self.wait_in_place(self._left, self._may_end)
        except NoThreadError as error:
            self.activation.wait_for_threads(error, here=not self.colour.awaits)

    def _left(self) -> float | None:
        left = first_left([self.wait], self.activation.clock.moment())
        if self.cleans_up and self.activation.task.concluded is None:
            grace = self.activation.task.cancel_until - self.activation.clock.now()
            left = grace if left is None else min(left, grace)
        return left

    def _may_end(self) -> bool:
        task = self.activation.task
        return self.cancels or settled(self.wait, task.first_mail, self.activation.clock.moment()) is not None

    async def _fail(self) -> None:
        """Record that a cancellation from outside has reached this wait: no replay could follow it."""
        import asyncio  # noqa: PLC0415  who was cancelled has it

        message = (
            f"the wait at {self.path} was cancelled from outside (asyncio.timeout or wait_for around it, or a cancelled"
            " task), at a moment that no replay could find again: give the wait a timeout= instead"
        )
        number, error = self.activation.number, Fault.of(asyncio.CancelledError(message)).to_data()
        await self.append(lambda task, now: task.finish_step(number, now, self.call, 1, error=error))

    def _over(self, record: StepRecord) -> WaitEnded:
        outcome = record.outcome
        if isinstance(outcome, CancelDelivered):
            self.raise_cancelled()
        if isinstance(outcome, StepFailed):
            fault = Fault.from_data(outcome.error)
            raise StepError(str(fault), step=record.name, path=self.path, attempts=1, fault=fault)
        assert isinstance(outcome, WaitEnded)  # noqa: S101  nothing else ends a wait
        return outcome

    # ------------------------------------------------------------------ what has come

    def letter(self, ended: WaitEnded) -> SignalReceived:
        """Give what came from outside, as the log has it."""
        return self.activation.task.letters[ended.signal]

    def value(self, encoded: Any) -> Any:
        """Give a fresh copy of a value that came from outside; where it cannot be read, the task is held."""
        try:
            return decode(encoded)
        except ValueError as error:
            reason = UNKNOWN_CLASS if isinstance(error, UnknownTypeError) else UNREADABLE
            self._hold(reason, f"what came for the wait at {self.path} cannot be read: {error}")

    def _hold(self, reason: str, message: str) -> NoReturn:
        self.activation.hold(reason, self.path, {"message": message}, here=not self.colour.awaits)
