"""One log, replayed with today's code: nothing is written, and no body runs.

It is what a worker does before it goes on with a task, but that each line of execution (the agent, each branch of it)
ends where a body would run.
"""

from __future__ import annotations

import bdb
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NoReturn, ParamSpec, TypeVar

from actors.activation import Activation
from actors.appender import Appender
from actors.context import Context, Outcome
from actors.definitions import AnyAgent, AnyStep
from actors.info import checked
from actors.raised import FAILS, step_error_of
from actors.recorded import AnyCall
from actors.runtime import Runtime
from actors.task_actor import input_of
from actors.task_log import TaskLog
from actors.threads import Job, Threads
from domain.errors import TaskCancelled, UnstorableValueError
from domain.events import Completed, Released
from domain.faults import Fault
from domain.journal import Differs, join
from domain.record import StepRecord
from domain.state import DIFFERS
from domain.task import AgentTask
from domain.values import Json

P = ParamSpec("P")
T = TypeVar("T")

CRASHES, HANGS = "crashes", "hangs"
"""Why code does not fit a log, besides the reasons for which a task is held."""


@dataclass(frozen=True)
class Misfit:
    """Why a task would not go on with today's code: the reason of a hold, or `crashes` or `hangs`.

    Where code and log differ, `log` and `code` are what each has at position `path`.
    """

    reason: str
    message: str
    path: str = ""
    log: str = ""
    code: str = ""
    fault: Fault | None = None


@dataclass(frozen=True)
class Stop:
    """A step at which a line of execution ends, for its body would run next; no `record`: it has not begun.

    `holds` tells that it is in doubt and a person would have to decide.
    """

    path: str
    name: str
    record: StepRecord | None = None
    holds: bool = False


@dataclass
class Replay:
    """What came of a replay: why the code does not fit, if it does not, or how far it went.

    With neither `misfit` nor `stops` the agent came to its end, with `value` (encoded) or `failure`; where it `parks`,
    that is for a person to decide.
    """

    task: AgentTask
    misfit: Misfit | None = None
    stops: list[Stop] = field(default_factory=list)
    value: Json = None
    failure: Fault | None = None
    parks: bool = False
    quit: bool = False

    @property
    def returns_as_recorded(self) -> bool:
        """Whether the agent ends in the value with which its task has ended."""
        ending = self.task.ending
        return self.failure is None and isinstance(ending, Completed) and ending.value == self.value


Tell = Callable[[StepRecord], object]
"""Is told of each record as it is handed over, on the thread that asks for it."""


def replay(
    log: TaskLog,
    task: AgentTask,
    agent: AnyAgent,
    *,
    runtime: Runtime | None = None,
    tell: Tell = lambda _record: None,
    code: Callable[..., Any] | None = None,
) -> Replay:
    """Replay a task, on this thread; an async agent gets an event loop of its own on it.

    `code` is called in place of the agent's function, as by a debugger. Nothing limits how long the agent's code takes.
    """
    activation = _Rehearsal(Appender(log, task), runtime or Runtime(), tell)
    found = activation.replay
    given = input_of(activation)
    outcome = Outcome() if given is None else _run(activation, agent, code or agent.fn, *given)
    if activation.refused is not None:
        refused, differs = activation.refused, activation.differs
        sides = (differs.recorded, differs.asked) if differs is not None and refused.reason == DIFFERS else ("", "")
        found.misfit = Misfit(refused.reason, refused.message, refused.path, *sides)
    elif not found.stops:
        _conclude(activation, agent, outcome)
    return found


def _run(
    activation: _Rehearsal, agent: AnyAgent, code: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> Outcome:
    if not agent.is_async:
        return _Walk(activation).run(lambda: code(*args, **kwargs))

    import asyncio  # noqa: PLC0415  only who awaits has need of it

    async def run() -> Outcome:
        return await _Walk(activation).run_async(lambda: code(*args, **kwargs))

    return asyncio.run(run())


def _conclude(activation: _Rehearsal, agent: AnyAgent, outcome: Outcome) -> None:
    """Say how the agent left, as its actor would conclude."""
    found, error = activation.replay, outcome.error
    failed = None if error is None else step_error_of(error, activation.declared)
    if error is None:
        try:
            found.value = checked(outcome.value)
        except UnstorableValueError as unstorable:
            found.failure = Fault.of(unstorable)
    elif isinstance(error, bdb.BdbQuit):
        found.quit = True
    elif failed is not None:
        record = activation.task.steps.get(failed.path)
        decided = record is not None and isinstance(record.outcome, Released)
        found.failure, found.parks = failed.fault, agent.on_failure == "hold" and not decided
    elif issubclass(type(error), (*FAILS, TaskCancelled)):
        found.failure = Fault.of(error)
    else:
        fault = Fault.of(error)
        found.misfit = Misfit(CRASHES, str(fault), fault=fault)


class _Rehearsal(Activation):
    """A probe that takes notes."""

    def __init__(self, appender: Appender, runtime: Runtime, tell: Tell) -> None:
        super().__init__(appender, appender.task.activation, runtime, probe=True)
        self.replay = Replay(appender.task)
        self.differs: Differs | None = None
        self._tell = tell

    def came_to(self, path: str, name: str, record: StepRecord | None, *, asks: bool = False) -> None:
        """Take note of what the code asks for; `asks` tells that a doubt about it is for a person."""
        if record is None or record.outcome is None:
            holds = asks and record is not None and record.in_doubt
            self.replay.stops.append(Stop(path, name, record, holds))
        else:
            self.hand_over(record)

    def hand_over(self, record: StepRecord) -> None:
        """Take note of a record that the log has."""
        self._tell(record)


class _Walk(Context):
    """A context of which each call is noted."""

    activation: _Rehearsal

    def _find(self, step: AnyStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        call, found = super()._find(step, args, kwargs)
        self.activation.came_to(call.path, step.name, found, asks=step.settings.on_doubt == "hold")
        return call, found

    def look_up(self, call: AnyCall, names: Collection[str] = ()) -> StepRecord | None:
        found = super().look_up(call, names)
        self.activation.came_to(call.path, call.call.name, found)
        return found

    def register_undo(self, name: str, arguments: Any) -> None:
        super().register_undo(name, arguments)
        self._note()

    def now(self) -> float:
        value = super().now()
        self._note()
        return value

    def patched(self, name: str) -> bool:
        before = self.asked
        answer = super().patched(name)
        if self.asked > before:
            self._note()
        return answer

    def hold_for_code(self, differs: Differs) -> NoReturn:
        self.activation.differs = self.activation.differs or differs
        super().hold_for_code(differs)

    def _note(self) -> None:
        record = self.activation.task.steps.get(join(self.path, self.asked))
        if record is not None:
            self.activation.hand_over(record)


# ------------------------------------------------------------------ for a person who watches


class OneThread(Runtime):
    """A runtime in which branches of sync code run one after the other, where they are gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = _NoneFree("perdure-replay")


class _NoneFree(Threads):
    """Threads of which none is free, but for who has to wait for one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._others = Threads(name)

    def start(self, fn: Callable[[], object]) -> None:  # noqa: ARG002  it is not run
        raise RuntimeError("no thread is free: what was brought runs where it is")

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        return self._others.run(fn, *args, **kwargs)


def under_debugger(agent: AnyAgent) -> Callable[..., Any]:
    """Give the agent's function, made to stop at its first line in pdb, which does not step into perdure."""
    import pdb  # noqa: PLC0415, T100  a debugger is what was asked for

    debugger = pdb.Pdb(skip=["actors.*", "domain.*", "stores.*", "asyncio.*", "contextlib", "namedtuple_*"])

    def begin() -> None:
        debugger.reset()
        sys.settrace(debugger.trace_dispatch)

    def call(*args: Any, **kwargs: Any) -> Any:
        begin()
        try:
            return agent.fn(*args, **kwargs)
        finally:
            sys.settrace(None)

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        begin()
        try:
            return await agent.fn(*args, **kwargs)
        finally:
            sys.settrace(None)

    return call_async if agent.is_async else call
