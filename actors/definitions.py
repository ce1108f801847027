"""`@agent` and `@step`: what a user writes, the names it has in the log, and where running code finds its task."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property, update_wrapper
from types import CodeType
from typing import Any, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, get_type_hints, overload
from weakref import WeakValueDictionary

from actors.naming import checked_label, checked_names, code_of, format_label, home_of, plain_positional, refuse_method
from actors.options import Options, StepOptions
from domain.errors import DefinitionError, OutsideTaskError, UnknownAgentError
from domain.types import learn

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


_steps: WeakValueDictionary[CodeType, AnyStep] = WeakValueDictionary()


_named: WeakValueDictionary[tuple[str, str], AnyStep] = WeakValueDictionary()


def find_step(name: str, near: str) -> AnyStep:
    """Give the step of a name, the one in the file `near` where there are several.

    Raises LookupError where this process has none, or several elsewhere.
    """
    if (made := _named.get((name, near))) is not None:
        return made
    found = [step for (known, _), step in _named.items() if known == name]
    if len(found) != 1:
        what = f"{len(found)} steps of that name, in other files than its agent" if found else "no step of that name"
        raise LookupError(f"step {name!r}: this process has {what}")
    return found[0]


def step_of(code: CodeType) -> AnyStep | None:
    """Give the step whose body has this code, if it is one's."""
    return _steps.get(code)


class Caller(Protocol):
    """The place in a running task from which steps and agents are called."""

    def call_step(self, step: AnyStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do a step at the next position, and block until it is done."""
        ...

    async def call_step_async(self, step: AnyStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do a step at the next position."""
        ...

    def call_agent(self, agent: AnyAgent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an agent in a scope of its own, and block until it returns."""
        ...

    async def call_agent_async(self, agent: AnyAgent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an agent in a scope of its own."""
        ...


current: ContextVar[Caller | None] = ContextVar("perdure_task", default=None)
"""Where in which task this context runs; None outside, and in threads made by hand."""


def _take_after(made: object, fn: Callable[..., Any]) -> None:
    """Give what is made of a function the function's looks and attributes, but for those that would hide its own."""
    update_wrapper(cast("Any", made), fn)
    for name in [name for name in vars(made) if not name.startswith("__") and hasattr(type(made), name)]:
        del vars(made)[name]


class AnyStep:
    """What sync and async steps have in common. Made by `@step`."""

    def __init__(self, fn: Callable[..., Any], names: tuple[str, ...], options: Options) -> None:
        _take_after(self, fn)
        self.fn = fn
        self.name = names[0]
        self.names = names
        self.settings = options
        self.is_async = inspect.iscoroutinefunction(fn)
        self.signature = inspect.signature(fn)
        self._positional = plain_positional(self.signature)
        self._label = checked_label(self.name, self.signature, options.label)
        self._defaults = {
            p.name: p.default for p in self.signature.parameters.values() if p.default is not inspect.Parameter.empty
        }

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Refuse to be a method. Raises DefinitionError."""
        refuse_method(self.fn, instance, owner)
        return self

    def options(self, **options: Unpack[StepOptions]) -> Self:
        """Give this step with other options, for one call or many: `draft.options(retries=5)(text)`.

        It is the same step in the log. Raises DefinitionError.
        """
        return type(self)(self.fn, self.names, self.settings.but(self.name, options))

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """Bind a call's arguments to names, defaults not applied. Raises TypeError as the function itself would."""
        if not kwargs and self._positional is not None and len(args) == len(self._positional):
            return dict(zip(self._positional, args))  # noqa: B905  they are as many
        return self.signature.bind(*args, **kwargs).arguments

    def label(self, arguments: Mapping[str, Any]) -> str:
        """Format the label; what cannot be formatted gives `?`, never an error."""
        return format_label(self._label, {**self._defaults, **arguments}) if self._label else ""

    @cached_property
    def returns(self) -> Any:
        """The return annotation, or `inspect.Parameter.empty` where there is none that can be resolved."""
        try:
            return get_type_hints(self.fn).get("return", inspect.Parameter.empty)
        except Exception:
            return inspect.Parameter.empty

    @property
    def file(self) -> str:
        """The file of its function."""
        return os.path.realpath(code_of(self.fn).co_filename)

    def _caller(self) -> Caller:
        caller = current.get()
        if caller is None:
            raise OutsideTaskError(
                f"step {self.name} was called where no task runs (a thread made by hand is such a place too):"
                f" spawn an agent that calls it, or call the plain function {self.name}.fn(…)"
            )
        return caller


class Step(AnyStep, Generic[P, R]):
    """A function of which each call inside an agent is recorded: a finished call never runs again. Made by `@step`."""

    fn: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the step: give its recorded value, or run its body and record the outcome before this returns.

        Raises StepError where the step has failed; OutsideTaskError where no task runs, and NestedStepError inside a
        body: there call the plain function, `.fn`; BlockingCallError in an async agent: there await `.aio(…)`.
        """
        result: R = self._caller().call_step(self, args, kwargs)
        return result

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the step from an async agent; its body runs on a thread, and the loop goes on meanwhile."""
        result: R = await self._caller().call_step_async(self, args, kwargs)
        return result


class AsyncStep(AnyStep, Generic[P, R]):
    """An `async def` step: awaited in an async agent, or called by `.sync(…)` in a sync one. Made by `@step`."""

    fn: Callable[P, Coroutine[Any, Any, R]]

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the step: give its recorded value, or run its body and record the outcome before this returns.

        Raises what `Step` does.
        """
        result: R = await self._caller().call_step_async(self, args, kwargs)
        return result

    def sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the step from a sync agent; its body runs on the loop that all async agents share."""
        result: R = self._caller().call_step(self, args, kwargs)
        return result


class AnyAgent:
    """What sync and async agents have in common. Made by `@agent`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        names: tuple[str, ...],
        on_failure: Literal["fail", "hold"],
        made_at: tuple[str, int] | None,
    ) -> None:
        _take_after(self, fn)
        self.fn = fn
        self.name = names[0]
        self.names = names
        self.file = os.path.realpath(code_of(fn).co_filename)
        self.home, line = home_of(fn, made_at)
        self.where = f"{self.home}:{line}"
        if on_failure not in ("fail", "hold"):
            raise DefinitionError(f"agent {self.name}: on_failure is 'fail' or 'hold', not {on_failure!r}")
        self.on_failure = on_failure
        self.is_async = inspect.iscoroutinefunction(fn)
        self.signature = inspect.signature(fn)
        _register(self)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Refuse to be a method. Raises DefinitionError."""
        refuse_method(self.fn, instance, owner)
        return self


class Agent(AnyAgent, Generic[P, R_co]):
    """A function whose every run is a task. Made by `@agent`; its code between steps runs again at each replay."""

    fn: Callable[P, R_co]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the agent as a function: inside another its steps are of the same task, in a scope of their own."""
        caller = current.get()
        if caller is None:
            return self.fn(*args, **kwargs)
        result: R_co = caller.call_agent(self, args, kwargs)
        return result

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the agent from an async one; its code runs on a thread. Raises OutsideTaskError where no task runs."""
        caller = current.get()
        if caller is None:
            raise OutsideTaskError(f"agent {self.name}.aio(…) was called where no task runs: call {self.name}.fn(…)")
        result: R_co = await caller.call_agent_async(self, args, kwargs)
        return result


class AsyncAgent(AnyAgent, Generic[P, R_co]):
    """An `async def` agent; it runs on the loop that all async agents of a worker share. Made by `@agent`."""

    fn: Callable[P, Coroutine[Any, Any, R_co]]

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the agent as a function: inside another its steps are of the same task, in a scope of their own."""
        caller = current.get()
        if caller is None:
            return await self.fn(*args, **kwargs)
        result: R_co = await caller.call_agent_async(self, args, kwargs)
        return result

    def sync(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the agent from a sync one; its code runs on the shared loop. Raises OutsideTaskError."""
        caller = current.get()
        if caller is None:
            raise OutsideTaskError(f"agent {self.name}.sync(…) was called where no task runs: await {self.name}.fn(…)")
        result: R_co = caller.call_agent(self, args, kwargs)
        return result


class StepDecorator(Protocol):
    """What `@step(…)` gives: it makes a Step of a function, and an AsyncStep of an `async def`."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...


class AgentDecorator(Protocol):
    """What `@agent(…)` gives: it makes an Agent of a function, and an AsyncAgent of an `async def`."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncAgent[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Agent[P, R]: ...


@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(*, name: str | None = None, aliases: Sequence[str] = (), **options: Unpack[StepOptions]) -> StepDecorator: ...
def step(
    fn: Any = None, /, *, name: str | None = None, aliases: Sequence[str] = (), **options: Unpack[StepOptions]
) -> Any:
    """Make a function a step: its outcome is in the log before the agent goes on; once finished it never runs again.

    Not guaranteed: that an outside effect happens exactly once. A process that dies between the effect and its record
    leaves the step *in doubt*, and `on_doubt` says what then: "rerun" (the same idempotency key, the next attempt),
    "hold" (a person decides), or a function `(doubt: Doubt) -> Happened(value) | NotHappened() | Unknown()` that
    finds out. Nor that a body ends at its time limit: Python cannot kill a thread. A body that has passed its
    `timeout`, its `total_timeout` or its `heartbeat_timeout` is given up, which is a doubt like that of a death, and
    what it returns later is dropped with a warning; if `on_doubt` lets it be run again, it counts as an attempt that
    ended in an error. The body of an `async def` step is cancelled. Nor is what a body changes in its arguments there
    after a restart: return what is to last.

    Args:
        name: the step's name in the log; by default the function's qualified name. It has to outlive changes of code.
        aliases: names that it had before.
        options: see StepOptions.

    What a step returns, and what an agent is given and returns, is stored (`domain/values.py` says what can be), up to
    4 MiB. Anything else fails the step, naming where it is. A step that raises is tried again as its RetryPolicy says
    (by default not at all), and then gives its agent a StepError with the error of every attempt.

    Raises DefinitionError for what cannot be used.
    """

    def decorate(function: Callable[..., Any]) -> AnyStep:
        names = checked_names(function, name, aliases, "step")
        kind: type[AnyStep] = AsyncStep if inspect.iscoroutinefunction(function) else Step
        made = kind(function, names, Options().but(names[0], options))
        _steps[code_of(function)] = made
        _named.update(((known, made.file), made) for known in names)
        learn(function)
        return made

    return decorate if fn is None else decorate(fn)


@overload
def agent(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncAgent[P, R]: ...  # type: ignore[overload-overlap]
@overload
def agent(fn: Callable[P, R], /) -> Agent[P, R]: ...
@overload
def agent(
    *,
    name: str | None = None,
    aliases: Sequence[str] = (),
    on_failure: Literal["fail", "hold"] = "fail",
    made_at: tuple[str, int] | None = None,
) -> AgentDecorator: ...
def agent(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    aliases: Sequence[str] = (),
    on_failure: Literal["fail", "hold"] = "fail",
    made_at: tuple[str, int] | None = None,
) -> Any:
    """Make a function an agent, of which each run is a task that survives its process.

    Its code is ordinary, and runs again from the top at each replay: what touches the world, reads a clock or draws a
    random number belongs in a step, or comes from `task_info()`.

    Args:
        name: the agent's name in the log; by default the function's qualified name. Two agents of one name from
            different files fail.
        aliases: names that it had before: tasks of those names are run by it.
        on_failure: what a StepError that leaves the agent does: "fail" ends the task, "hold" parks it for a person.
            Any other exception is a bug: the task is restarted, and held at the strike limit.
        made_at: for functions that make agents: the file and line of who called them, which errors then name.

    Raises DefinitionError for what cannot be used.
    """

    def decorate(function: Callable[..., Any]) -> AnyAgent:
        names = checked_names(function, name, aliases, "agent")
        kind: type[AnyAgent] = AsyncAgent if inspect.iscoroutinefunction(function) else Agent
        made = kind(function, names, on_failure, made_at)
        learn(function)
        return made

    return decorate if fn is None else decorate(fn)


_agents: dict[str, AnyAgent] = {}


def find_agent(name: str) -> AnyAgent:
    """Give the agent of a name. Raises UnknownAgentError where this process has not imported it."""
    try:
        return _agents[name]
    except KeyError:
        known = ", ".join(sorted(_agents)) or "none"
        raise UnknownAgentError(
            f"no agent {name!r} is known to this process: import its module first (known: {known})"
        ) from None


def known_agents() -> frozenset[str]:
    """Give the names of the agents that this process has imported, those that they had before included."""
    return frozenset(_agents)


def _register(agent: AnyAgent) -> None:
    for name in agent.names:
        other = _agents.get(name)
        if other is not None and (other.home, other.file) != (agent.home, agent.file):
            raise DefinitionError(
                f"two agents are named {name!r}: {other.where} and {agent.where}. The log knows an agent by its name:"
                " give one of them another with @agent(name=…)"
            )
    _agents.update(dict.fromkeys(agent.names, agent))
