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
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from actors.activation import Activation, Hints, from_users_code, running_body
from actors.call import StepCall
from actors.definitions import Agent, Step, current
from actors.info import StepInfo, TaskInfo
from actors.task_log import Appender
from domain.errors import FailTask, InsideTaskError, NestedStepError, OutsideTaskError, StepError
from domain.journal import Differs, arguments_changed, join, left_over, look_up, look_up_scope

logger = logging.getLogger("perdure")


@dataclass(frozen=True)
class Outcome:
    """How an agent's function left: `value`, or `error`; neither counts where the context was closed."""

    value: Any = None
    error: BaseException | None = None
    closed: BaseException | None = None


def step_info() -> StepInfo:
    """Tell the running step about itself. Raises OutsideTaskError where no step's body runs."""
    info = running_body.get()
    if info is None:
        raise OutsideTaskError(
            "step_info() was called outside of the body of a step: only a step has a key and an attempt"
        )
    return info


def task_info() -> TaskInfo | None:
    """Tell agent code about its task; None where no task runs, and inside the body of a step."""
    caller = current.get()
    if running_body.get() is not None or not isinstance(caller, Context) or not caller.is_here():
        return None
    task = caller.task
    return TaskInfo(task.id, task.agent, caller.number, dict(task.tags))


def lend_place() -> AbstractContextManager[None]:
    """Lend the place of the task whose body runs here, if one does, while it waits for another task."""
    caller = current.get()
    if running_body.get() is None or not isinstance(caller, Context):
        return nullcontext()
    return caller.hints.lend()


def refuse_inside_agent(what: str, instead: str) -> None:
    """Raise InsideTaskError between an agent's steps: what is done there happens again at each replay."""
    if task_info() is not None:
        raise InsideTaskError(f"{what} inside an agent would happen again at each replay: {instead}")


class Context(Activation):
    """An activation with a place in the program: it numbers the calls of its agent's code."""

    def __init__(self, appender: Appender, number: int, hints: Hints | None = None, *, probe: bool = False) -> None:
        super().__init__(appender, number, hints, probe=probe)
        self._scope, self._asked = "", 0
        self._passed_over: Differs | None = None

    def run(self, agent: Agent[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Outcome:
        """Call the agent from the top and tell how it left.

        A closed context decides, not what the function did about it.
        """
        token = current.set(self)
        try:
            outcome = Outcome(agent.fn(*args, **kwargs))
        except BaseException as error:
            outcome = Outcome(error=from_users_code(error))
        finally:
            current.reset(token)
        if self.closed is None and (outcome.error is None or issubclass(type(outcome.error), StepError | FailTask)):
            with suppress(BaseException):
                self._end_scope()
        return Outcome(outcome.value, outcome.error, self.closed)

    # ------------------------------------------------------------------ calls

    def call_agent(self, agent: Agent[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an agent in a scope of its own, which takes one position of the caller's."""
        if running_body.get() is not None or not self.is_here():
            return agent.fn(*args, **kwargs)
        self._check("agent", agent.name)
        path = self._next_path()
        if differs := look_up_scope(self.task, path, agent.name):
            self.hold_for_code(differs)
        outer = self._scope, self._asked
        self._scope, self._asked = path, 0
        try:
            value = agent.fn(*args, **kwargs)
        except BaseException as error:
            self._leave_by(error)
            self._scope, self._asked = outer
            raise
        if self.closed is not None:
            self.close(self.closed)
        self._end_scope()
        self._scope, self._asked = outer
        return value

    def _leave_by(self, error: BaseException) -> None:
        """End a scope that an exception leaves: a crash is no difference, unless the caller goes on after it."""
        if self.closed is not None:
            self.close(self.closed)
        if issubclass(type(error), StepError | FailTask):
            self._end_scope()
        self._passed_over = self._passed_over or left_over(self.task, self._scope, self._asked)

    def call_step(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the step at the next position: hand over what the log has, or run the body."""
        self._check("step", step.name)
        arguments = step.arguments(args, kwargs)
        path = self._next_path()
        call = StepCall(self, step, path, arguments, args, kwargs)
        found = look_up(self.task, path, "step", step.name, call.digest)
        if found is None:
            return call.run(1, "")
        if isinstance(found, Differs):
            self.hold_for_code(found)
        if arguments_changed(found, call.digest):
            logger.warning(
                "task %s: step %s %s has other arguments than when it was recorded; its recorded outcome stands",
                *(self.task.id, path, step.name),
            )
        return call.hand_over(found)

    # ------------------------------------------------------------------ places

    def _check(self, kind: str, name: str) -> None:
        here = threading.get_ident() == self.thread and not _in_event_loop()
        if running_body.get() is not None or not here or self.closed is not None:
            self._refuse(f"{kind} {name}", f"call the plain function {name}.fn(…)")

    def _refuse(self, what: str, instead: str) -> NoReturn:
        info = running_body.get()
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
            self.close(self.closed)
        raise OutsideTaskError(
            f"{what} was called in an event loop that the code of its task {self.task.id} runs by itself, where calls"
            f" have no order that a replay could follow: call it outside of the loop, or {instead}"
        )

    def _next_path(self) -> str:
        if self._passed_over is not None:
            self.hold_for_code(self._passed_over)
        self._asked += 1
        return join(self._scope, self._asked)

    def _end_scope(self) -> None:
        if differs := self._passed_over or left_over(self.task, self._scope, self._asked):
            self.hold_for_code(differs)


def _in_event_loop() -> bool:
    """Tell whether an event loop runs on this thread, without importing asyncio for it."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None
