"""One call of a step: hand over what the log has, settle a doubt, or run the body between its two records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

from actors.activation import Activation, from_users_code, running_body
from actors.definitions import Step
from actors.info import Doubt, Happened, NotHappened, StepInfo, Unknown, checked
from domain.errors import StepError, UnstorableValueError
from domain.events import Released, StepFailed, StepSucceeded
from domain.faults import Fault
from domain.record import StepRecord
from domain.task import IN_DOUBT, UNREADABLE, idempotency_key
from domain.values import convert, decode, digest, encode

logger = logging.getLogger("perdure")


class StepCall:
    """One call of a step, at its place."""

    __slots__ = ("activation", "args", "arguments", "digest", "kwargs", "path", "step")

    def __init__(
        self,
        activation: Activation,
        step: Step[..., Any],
        path: str,
        arguments: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.activation = activation
        self.step = step
        self.path = path
        self.arguments = arguments
        self.digest = _digest(arguments)
        self.args = args
        self.kwargs = kwargs

    def hand_over(self, record: StepRecord) -> Any:
        """Give what the log has for this call, or settle its doubt."""
        outcome = record.outcome
        if outcome is None:
            return self._settle(record)
        if isinstance(outcome, StepFailed):
            raise _step_error(self.step.name, self.path, record.attempt, Fault.from_data(outcome.error))
        if isinstance(outcome, StepSucceeded):
            return self._decoded(outcome.value)
        if outcome.decision == "fail":
            fault = Fault(("GivenUp",), f"given up by {outcome.by}")
            raise _step_error(self.step.name, self.path, record.attempt, fault)
        return self._resolved(outcome)

    def run(self, attempt: int, doubt: str) -> Any:
        """Run the body: its start is in the log before it, its outcome before anyone sees it."""
        activation, step, path = self.activation, self.step, self.path
        activation.before_body()
        if not step.idempotent:
            label = step.label(self.arguments)
            activation.append(
                lambda task, now: task.start_step(
                    activation.number, now, path, "step", step.name, self.digest, label, doubt
                ),
                inside=activation.unless_stopped,
            )
        value, error = self._body(step.fn, "body", attempt, *self.args, **self.kwargs)
        encoded = None
        if error is None:
            encoded, error = self._encoded(value)
        self._finish(attempt, encoded, error, "")
        if error is not None:
            raise _step_error(step.name, path, attempt, error)
        return self._decoded(encoded)

    def _settle(self, record: StepRecord) -> Any:
        if record.settled is not None:
            return self.run(record.attempt + 1, f"rerun by {record.settled.by}")
        if self.step.on_doubt == "rerun":
            return self.run(record.attempt + 1, "rerun")
        self.activation.before_body()
        if self.step.on_doubt == "hold":
            self._hold_in_doubt("")
        return self._ask(record)

    def _ask(self, record: StepRecord) -> Any:
        key = idempotency_key(self.activation.task.birth, self.path)
        doubt = Doubt(
            self.activation.task.id,
            self.path,
            self.step.name,
            record.attempt,
            record.started,
            key,
            self.args,
            self.kwargs,
        )
        answer, error = self._body(cast("Callable[..., Any]", self.step.on_doubt), "doubt", record.attempt, doubt)
        if isinstance(answer, NotHappened):
            return self.run(record.attempt + 1, "not happened")
        if isinstance(answer, Happened):
            encoded, error = self._encoded(answer.value)
            if error is None:
                self._finish(record.attempt, encoded, None, "on_doubt")
                return self._decoded(encoded)
        name = getattr(self.step.on_doubt, "__name__", "on_doubt")
        if error is not None:
            self._hold_in_doubt(f"{name} could not tell: {error}")
        if isinstance(answer, Unknown):
            self._hold_in_doubt(f"{name} does not know" + (f": {answer.why}" if answer.why else ""))
        return self._hold_in_doubt(
            f"{name} answered {type(answer).__name__}, not one of Happened, NotHappened, Unknown"
        )

    def _body(
        self, fn: Callable[..., Any], kind: str, attempt: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Fault | None]:
        """Enter a function that touches the world; whatever it raises is data."""
        activation = self.activation
        info = StepInfo(activation.task.id, self.path, self.step.name, attempt, activation.task.birth)
        self._reach(f"{kind}.before", info)
        token = running_body.set(info)
        activation.body = info
        try:
            value, error = fn(*args, **kwargs), None
        except BaseException as raised:
            value, error = None, Fault.of(from_users_code(raised))
        finally:
            activation.body = None
            running_body.reset(token)
        self._reach(f"{kind}.after", info)
        return value, error

    def _reach(self, point: str, info: StepInfo) -> None:
        try:
            self.activation.store.reach(point, info=info)
        except BaseException as death:
            self.activation.close(death)

    def _finish(self, attempt: int, encoded: Any, error: Fault | None, source: str) -> None:
        activation = self.activation
        activation.append(
            lambda task, now: task.finish_step(
                *(activation.number, now, self.path, "step", self.step.name, self.digest, attempt),
                value=encoded,
                source=source,
                error=error,
            )
        )
        activation.after_outcome()

    def _encoded(self, value: Any) -> tuple[Any, Fault | None]:
        try:
            return checked(value), None
        except UnstorableValueError as error:
            what = f"what it returned cannot be stored: {error}"
            return None, Fault(Fault.of(error).kinds, what)

    def _decoded(self, encoded: Any) -> Any:
        try:
            return decode(encoded)
        except ValueError as error:
            self._hold_unreadable(str(error))

    def _resolved(self, outcome: Released) -> Any:
        value = self._decoded(outcome.value)
        try:
            return convert(value, self.step.returns)
        except ValueError as error:
            self._hold_in_doubt(f"the value given by {outcome.by} does not fit: {error}")

    def _hold_in_doubt(self, answer: str) -> NoReturn:
        logger.error("task %s is held: step %s %s is in doubt", self.activation.task.id, self.path, self.step.name)
        self.activation.hold(IN_DOUBT, self.path, {"answer": answer} if answer else {})

    def _hold_unreadable(self, why: str) -> NoReturn:
        message = f"the value of step {self.path} {self.step.name} cannot be read: {why}"
        self.activation.hold(UNREADABLE, self.path, {"message": message})


def _digest(arguments: Any) -> str:
    """Give the digest of a call's arguments; empty where they cannot be encoded: not stored, they may be anything."""
    try:
        return digest(encode(arguments))
    except UnstorableValueError:
        return ""


def _step_error(name: str, path: str, attempts: int, fault: Fault) -> StepError:
    return StepError(f"step {path} {name} failed: {fault}", step=name, path=path, attempts=attempts, fault=fault)
