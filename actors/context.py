"""What running agent code calls: the live run is the replay.

An activation walks its agent's code from the top. Each step takes the next position of its scope; the log's word for
that position is given back as a fresh copy, and only where the log has none does a body run, between the record of
its start and of its outcome.

A context closes when its activation stops, for any reason. From then on every call of ours in it raises the same
exception again, runs nothing and writes nothing; what the agent's function then returns or raises is ignored.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from actors.definitions import Agent, Step, current
from actors.info import Doubt, Happened, NotHappened, StepInfo, TaskInfo, Unknown, checked
from actors.task_log import Appender, Decide
from domain.errors import (
    FailTask,
    InsideTaskError,
    NestedStepError,
    OutsideTaskError,
    StepError,
    Suspended,
    UnstorableValueError,
)
from domain.events import Released, StepFailed, StepSucceeded
from domain.faults import Fault
from domain.journal import Differs, arguments_changed, join, left_over, look_up, look_up_scope
from domain.record import StepRecord
from domain.task import DIFFERS, IN_DOUBT, UNREADABLE, AgentTask, idempotency_key
from domain.values import convert, decode, digest, encode

logger = logging.getLogger("perdure")


@dataclass
class Hints:
    """What a running activation and its surroundings tell each other, past the mailbox that its agent keeps busy.

    `stop` is looked at before each body. `proven` is called at the first outcome, `lend` while a body waits for a task.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    proven: Callable[[], None] = lambda: None
    lend: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Outcome:
    """How an agent's function left: `value`, or `error`; neither counts where the context was closed."""

    value: Any = None
    error: BaseException | None = None
    closed: BaseException | None = None


_body: ContextVar[StepInfo | None] = ContextVar("perdure_body", default=None)


def step_info() -> StepInfo:
    """Tell the running step about itself. Raises OutsideTaskError where no step's body runs."""
    info = _body.get()
    if info is None:
        raise OutsideTaskError(
            "step_info() was called outside of the body of a step: only a step has a key and an attempt"
        )
    return info


def task_info() -> TaskInfo | None:
    """Tell agent code about its task; None where no task runs, and inside the body of a step."""
    caller = current.get()
    if _body.get() is not None or not isinstance(caller, Context) or not caller.is_here():
        return None
    task = caller.task
    return TaskInfo(task.id, task.agent, caller.activation, dict(task.tags))


def lend_place() -> AbstractContextManager[None]:
    """Lend the place of the task whose body runs here, if one does, while it waits for another task."""
    caller = current.get()
    if _body.get() is None or not isinstance(caller, Context):
        return nullcontext()
    return caller.hints.lend()


def refuse_inside_agent(what: str, instead: str) -> None:
    """Raise InsideTaskError where an agent's code between steps runs: what is done there happens again at each
    replay.
    """
    if task_info() is not None:
        raise InsideTaskError(f"{what} inside an agent would happen again at each replay: {instead}")


class Context:
    """One activation of a task, on the thread that made it.

    `probe` replays only: it ends where a body would run, and writes nothing.
    """

    def __init__(self, appender: Appender, activation: int, hints: Hints | None = None, *, probe: bool = False) -> None:
        self.appender = appender
        self.task: AgentTask = appender.task
        self.store = appender.log.store
        self.activation = activation
        self.closed: BaseException | None = None
        self.body: StepInfo | None = None
        self.differs: Differs | None = None
        self.hints = hints or Hints()
        self._probe = probe
        self._proven = False
        self._thread = threading.get_ident()
        self._scope, self._asked = "", 0

    def run(self, agent: Agent[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Outcome:
        """Call the agent from the top and tell how it left.

        A closed context decides, not what the function did about it.
        """
        token = current.set(self)
        try:
            outcome = Outcome(agent.fn(*args, **kwargs))
        except BaseException as error:
            outcome = Outcome(error=_from_users_code(error))
        finally:
            current.reset(token)
        if self.closed is None and isinstance(outcome.error, StepError | FailTask | None):
            with suppress(BaseException):
                self._end_scope()
        return Outcome(outcome.value, outcome.error, self.closed)

    def is_here(self) -> bool:
        """Tell whether this is the activation's own thread: contexts can be copied to others."""
        return threading.get_ident() == self._thread

    def close(self, reason: BaseException) -> NoReturn:
        """Close for good: from now on every call raises `reason`."""
        if self.closed is None:
            self.closed = reason
        raise self.closed

    # ------------------------------------------------------------------ calls

    def call_agent(self, agent: Agent[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an agent in a scope of its own, which takes one position of the caller's."""
        if _body.get() is not None or not self.is_here():
            return agent.fn(*args, **kwargs)
        self._check("agent", agent.name)
        path = self._next_path()
        if differs := look_up_scope(self.task, path, agent.name):
            self._hold_for_code(differs)
        outer = self._scope, self._asked
        self._scope, self._asked = path, 0
        try:
            return agent.fn(*args, **kwargs)
        finally:
            if self.closed is not None:
                raise self.closed
            self._end_scope()
            self._scope, self._asked = outer

    def call_step(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the step at the next position: hand over what the log has, or run the body."""
        self._check("step", step.name)
        arguments = step.arguments(args, kwargs)
        path = self._next_path()
        call = _Call(self, step, path, arguments, args, kwargs)
        found = look_up(self.task, path, "step", step.name, call.digest)
        if found is None:
            return call.run(1, "")
        if isinstance(found, Differs):
            self._hold_for_code(found)
        if arguments_changed(found, call.digest):
            logger.warning(
                "task %s: step %s %s has other arguments than when it was recorded; its recorded outcome stands",
                *(self.task.id, path, step.name),
            )
        return call.hand_over(found)

    def append(self, decide: Decide) -> None:
        """Append for this activation; whatever keeps it from being written closes the context."""
        try:
            self.appender.append(decide)
        except Exception as error:
            stop = Suspended(f"task {self.task.id}: nothing more can be written: {error}")
            stop.__cause__ = error
            self.close(stop)
        except BaseException as error:
            self.close(error)

    def hold(self, reason: str, path: str, details: dict[str, Any]) -> NoReturn:
        """Park the task and unwind its agent; a probe only ends."""
        if self._probe:
            self.close(Suspended(f"task {self.task.id}: the code fits its log, as far as it goes"))
        self.append(lambda task, now: task.hold(self.activation, now, reason, path, details))
        self.close(Suspended(f"task {self.task.id} is held: {reason}"))

    def before_body(self) -> None:
        """Stop here where the activation is asked to; a probe never gets further."""
        if self._probe:
            self.close(Suspended(f"task {self.task.id}: the code fits its log"))
        if self.hints.stop.is_set():
            self.append(lambda task, now: task.passivate(self.activation, now, []))
            self.close(Suspended(f"task {self.task.id} was stopped between two steps"))

    def after_outcome(self) -> None:
        """Tell that this activation has got somewhere: its first new outcome ends a suspicion."""
        if not self._proven:
            self._proven = True
            self.hints.proven()

    # ------------------------------------------------------------------ places

    def _check(self, kind: str, name: str) -> None:
        here = threading.get_ident() == self._thread and not _in_event_loop()
        if _body.get() is not None or not here or self.closed is not None:
            self._refuse(f"{kind} {name}", f"call the plain function {name}.fn(…)")

    def _refuse(self, what: str, instead: str) -> NoReturn:
        info = _body.get()
        if info is not None:
            raise NestedStepError(
                f"{what} was called inside the body of step {info.path} {info.name} of task {info.task_id}:"
                f" a body is one effect; call it in the agent, or {instead}"
            )
        if not self.is_here():
            raise OutsideTaskError(
                f"{what} was called on another thread than that of its task {self.task.id}:"
                f" a step belongs to its agent's own thread; {instead}"
            )
        if self.closed is not None:
            raise self.closed
        raise OutsideTaskError(
            f"{what} was called in an event loop that the code of its task {self.task.id} runs by itself, where calls"
            f" have no order that a replay could follow: call it outside of the loop, or {instead}"
        )

    def _next_path(self) -> str:
        self._asked += 1
        return join(self._scope, self._asked)

    def _end_scope(self) -> None:
        if differs := left_over(self.task, self._scope, self._asked):
            self._hold_for_code(differs)

    def _hold_for_code(self, differs: Differs) -> NoReturn:
        self.differs = differs
        if self._probe:
            self.close(Suspended(str(differs)))
        logger.error("task %s is held: %s", self.task.id, differs)
        self.hold(
            DIFFERS, differs.path, {"message": str(differs), "recorded": differs.recorded, "asked": differs.asked}
        )


class _Call:
    """One call of a step, at its place."""

    __slots__ = ("args", "arguments", "context", "digest", "kwargs", "path", "step")

    def __init__(
        self,
        context: Context,
        step: Step[..., Any],
        path: str,
        arguments: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.context = context
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
        context, step, path = self.context, self.step, self.path
        context.before_body()
        if not step.idempotent:
            label = step.label(self.arguments)
            context.append(
                lambda task, now: task.start_step(
                    context.activation, now, path, "step", step.name, self.digest, label, doubt
                )
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
        self.context.before_body()
        if self.step.on_doubt == "hold":
            self._hold_in_doubt("")
        return self._ask(record)

    def _ask(self, record: StepRecord) -> Any:
        key = idempotency_key(self.context.task.birth, self.path)
        doubt = Doubt(
            self.context.task.id, self.path, self.step.name, record.attempt, record.started, key, self.args, self.kwargs
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
        context = self.context
        info = StepInfo(context.task.id, self.path, self.step.name, attempt, context.task.birth)
        self._reach(f"{kind}.before", info)
        token = _body.set(info)
        context.body = info
        try:
            value, error = fn(*args, **kwargs), None
        except BaseException as raised:
            value, error = None, Fault.of(_from_users_code(raised))
        finally:
            context.body = None
            _body.reset(token)
        self._reach(f"{kind}.after", info)
        return value, error

    def _reach(self, point: str, info: StepInfo) -> None:
        try:
            self.context.store.reach(point, info=info)
        except BaseException as death:
            self.context.close(death)

    def _finish(self, attempt: int, encoded: Any, error: Fault | None, source: str) -> None:
        context = self.context
        context.append(
            lambda task, now: task.finish_step(
                *(context.activation, now, self.path, "step", self.step.name, self.digest, attempt),
                value=encoded,
                source=source,
                error=error,
            )
        )
        context.after_outcome()

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
        logger.error("task %s is held: step %s %s is in doubt", self.context.task.id, self.path, self.step.name)
        self.context.hold(IN_DOUBT, self.path, {"answer": answer} if answer else {})

    def _hold_unreadable(self, why: str) -> NoReturn:
        message = f"the value of step {self.path} {self.step.name} cannot be read: {why}"
        self.context.hold(UNREADABLE, self.path, {"message": message})


def _from_users_code(error: BaseException) -> BaseException:
    """Cut our own frame off a traceback: it begins in the user's function."""
    trace = error.__traceback__
    return error.with_traceback(trace and trace.tb_next)


def _in_event_loop() -> bool:
    """Tell whether an event loop runs on this thread, without importing asyncio for it."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def _digest(arguments: Any) -> str:
    """Give the digest of a call's arguments; empty where they cannot be encoded: they are not stored, so they may
    be anything.
    """
    try:
        return digest(encode(arguments))
    except UnstorableValueError:
        return ""


def _step_error(name: str, path: str, attempts: int, fault: Fault) -> StepError:
    return StepError(f"step {path} {name} failed: {fault}", step=name, path=path, attempts=attempts, fault=fault)
