"""`@agent` and `@step`: what a user writes, the names it has in the log, and where running code finds its task."""

from __future__ import annotations

import inspect
import os
import string
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cached_property, update_wrapper
from types import CodeType
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, get_type_hints, overload

from actors.info import Doubt, Happened, NotHappened, Unknown
from domain.errors import DefinitionError, OutsideTaskError, UnknownAgentError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

LABEL_LIMIT = 200
"""Characters of a label that are kept."""
NAME_LIMIT = 200
"""Characters that the name of an agent or a step may have."""


OnDoubt = Literal["rerun", "hold"] | Callable[[Doubt], Happened | NotHappened | Unknown]
"""What becomes of a step in doubt: run it again, hold the task, or find out."""


class Caller(Protocol):
    """The running task, as steps and agents see it."""

    def call_step(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do a step at the next position."""
        ...

    def call_agent(self, agent: Agent[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an agent inside the running one, in a scope of its own."""
        ...


current: ContextVar[Caller | None] = ContextVar("perdure_task", default=None)
"""The task that runs in this context; None outside, and in threads made by hand."""


class Step(Generic[P, R]):
    """A function of which each call inside an agent is recorded: a finished call never runs again. Made by `@step`."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        on_doubt: OnDoubt = "rerun",
        idempotent: bool = False,
        label: str | None = None,
    ) -> None:
        update_wrapper(self, fn)
        self.fn = fn
        self.name = _checked_name(fn, name, "step")
        self.on_doubt = on_doubt
        self.idempotent = idempotent
        self._signature = inspect.signature(fn)
        self._positional = _plain_positional(self._signature)
        self._label = _checked_label(self, label)
        self._defaults = {
            p.name: p.default for p in self._signature.parameters.values() if p.default is not inspect.Parameter.empty
        }
        self._check_doubt()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the step: give its recorded value, or run its body and record the outcome before this returns.

        Raises StepError where the step has failed; OutsideTaskError where no task runs, and NestedStepError inside a
        body: there call the plain function, `.fn`.
        """
        caller = current.get()
        if caller is None:
            raise OutsideTaskError(
                f"step {self.name} was called where no task runs (a thread made by hand is such a place too):"
                f" spawn an agent that calls it, or call the plain function {self.name}.fn(…)"
            )
        result: R = caller.call_step(self, args, kwargs)
        return result

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """Bind a call's arguments to names, defaults not applied. Raises TypeError as the function itself would."""
        if not kwargs and self._positional is not None and len(args) == len(self._positional):
            return dict(zip(self._positional, args))  # noqa: B905  they are as many
        return self._signature.bind(*args, **kwargs).arguments

    def label(self, arguments: Mapping[str, Any]) -> str:
        """Format the label; what cannot be formatted gives `?`, never an error."""
        if not self._label:
            return ""
        values = {**self._defaults, **arguments}
        text = "".join(
            literal + _formatted(field, spec, conversion, values)
            for literal, field, spec, conversion in string.Formatter().parse(self._label)
        )
        text = text.encode("utf-8", "replace").decode()
        return text if len(text) <= LABEL_LIMIT else text[: LABEL_LIMIT - 1] + "…"

    @cached_property
    def returns(self) -> Any:
        """The return annotation, or `inspect.Parameter.empty` where there is none that can be resolved."""
        try:
            return get_type_hints(self.fn).get("return", inspect.Parameter.empty)
        except Exception:
            return inspect.Parameter.empty

    def _check_doubt(self) -> None:
        plain = callable(self.on_doubt) and not inspect.iscoroutinefunction(self.on_doubt)
        if not plain and self.on_doubt not in ("rerun", "hold"):
            raise DefinitionError(
                f"step {self.name}: on_doubt is 'rerun', 'hold' or a function (doubt) -> Happened(value) |"
                f" NotHappened() | Unknown(), not {self.on_doubt!r}"
            )
        if self.idempotent and self.on_doubt != "rerun":
            raise DefinitionError(
                f"step {self.name}: idempotent=True says that it may always be run again, and its start is not in the"
                " log; on_doubt cannot be had with it"
            )


class Agent(Generic[P, R_co]):
    """A function whose every run is a task. Made by `@agent`; its code between steps runs again at each replay."""

    def __init__(
        self, fn: Callable[P, R_co], *, name: str | None = None, on_failure: Literal["fail", "hold"] = "fail"
    ) -> None:
        update_wrapper(self, fn)
        self.fn = fn
        self.name = _checked_name(fn, name, "agent")
        if on_failure not in ("fail", "hold"):
            raise DefinitionError(f"agent {self.name}: on_failure is 'fail' or 'hold', not {on_failure!r}")
        self.on_failure = on_failure
        self.signature = inspect.signature(fn)
        _register(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the agent as a function: inside another its steps are of the same task, in a scope of their own."""
        caller = current.get()
        if caller is None:
            return self.fn(*args, **kwargs)
        result: R_co = caller.call_agent(self, args, kwargs)
        return result

    @property
    def where(self) -> str:
        """The file and line of its function."""
        return f"{self.file}:{_code(self.fn).co_firstlineno}"

    @property
    def file(self) -> str:
        """The file of its function."""
        return os.path.realpath(_code(self.fn).co_filename)


@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    on_doubt: OnDoubt = "rerun",
    idempotent: bool = False,
    label: str | None = None,
) -> Callable[[Callable[P, R]], Step[P, R]]: ...
def step(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    on_doubt: OnDoubt = "rerun",
    idempotent: bool = False,
    label: str | None = None,
) -> Any:
    """Make a function a step: its outcome is in the log before the agent goes on; once finished it never runs again.

    Not guaranteed: that an outside effect happens exactly once. A process that dies between the effect and its record
    leaves the step *in doubt*, and `on_doubt` says what then: "rerun" (the same idempotency key, the next attempt),
    "hold" (a person decides), or a function `(doubt: Doubt) -> Happened(value) | NotHappened() | Unknown()` that
    finds out. Nor is what a body changes in its arguments there after a restart: return what is to last.

    Args:
        name: the step's name in the log; by default the function's qualified name. It has to outlive changes of code.
        on_doubt: see above.
        idempotent: the body may always be entered once more; its start is not recorded, which saves a commit a step.
        label: a text for people, formatted with the arguments, such as "mail to {to}"; at most 200 characters.

    What a step returns, and what an agent is given and returns, is stored: None, bool, int, float, str, bytes, list,
    dict, tuple, datetime, UUID and Decimal, nested as you like, up to 4 MiB. Anything else fails the step, naming where
    it is. A step that raises gives its agent a StepError.

    Raises DefinitionError for what cannot be used.
    """

    def decorate(function: Callable[P, R]) -> Step[P, R]:
        return Step(function, name=name, on_doubt=on_doubt, idempotent=idempotent, label=label)

    return decorate if fn is None else decorate(fn)


@overload
def agent(fn: Callable[P, R], /) -> Agent[P, R]: ...
@overload
def agent(
    *, name: str | None = None, on_failure: Literal["fail", "hold"] = "fail"
) -> Callable[[Callable[P, R]], Agent[P, R]]: ...
def agent(fn: Any = None, /, *, name: str | None = None, on_failure: Literal["fail", "hold"] = "fail") -> Any:
    """Make a function an agent, of which each run is a task that survives its process.

    Its code is ordinary, and runs again from the top at each replay: what touches the world, reads a clock or draws a
    random number belongs in a step.

    Args:
        name: the agent's name in the log; by default the function's qualified name. Two agents of one name from
            different files fail.
        on_failure: what a StepError that leaves the agent does: "fail" ends the task, "hold" parks it for a person.
            Any other exception is a bug: the task is restarted, and held at the strike limit.

    Raises DefinitionError for what cannot be used.
    """

    def decorate(function: Callable[P, R]) -> Agent[P, R]:
        return Agent(function, name=name, on_failure=on_failure)

    return decorate if fn is None else decorate(fn)


_agents: dict[str, Agent[..., Any]] = {}


def find_agent(name: str) -> Agent[..., Any]:
    """Give the agent of a name. Raises UnknownAgentError where this process has not imported it."""
    try:
        return _agents[name]
    except KeyError:
        known = ", ".join(sorted(_agents)) or "none"
        raise UnknownAgentError(
            f"no agent {name!r} is known to this process: import its module first (known: {known})"
        ) from None


def known_agents() -> frozenset[str]:
    """Give the names of the agents that this process has imported."""
    return frozenset(_agents)


def _register(agent: Agent[..., Any]) -> None:
    other = _agents.get(agent.name)
    if other is not None and other.file != agent.file:
        raise DefinitionError(
            f"two agents are named {agent.name!r}: {other.where} and {agent.where}. The log knows an agent by its name:"
            " give one of them another with @agent(name=…)"
        )
    _agents[agent.name] = agent


def _code(fn: Callable[..., Any]) -> CodeType:
    """Give the code of what the user wrote, below the wrappers that decorators of other files put around it."""
    inner = inspect.unwrap(fn)
    code: CodeType = getattr(inner, "__code__", None) or fn.__code__
    return code


def _checked_name(fn: Any, name: object, kind: str) -> str:
    if not inspect.isfunction(fn):
        raise DefinitionError(f"@{kind} is for functions written with def, not for {fn!r}")
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(f"@{kind} {fn.__qualname__}: async functions and generators cannot be {kind}s yet")
    name = fn.__qualname__ if name is None else name
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
        raise DefinitionError(f"@{kind}: a name has 1 to {NAME_LIMIT} printable characters, not {name!r}")
    return name


def _plain_positional(signature: inspect.Signature) -> tuple[str, ...] | None:
    """Give the parameters' names, where all can be given by position and none collects."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    return tuple(signature.parameters) if all(p.kind in plain for p in parameters) else None


def _checked_label(step: Step[..., Any], label: str | None) -> str:
    if label is None:
        return ""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(label) if field is not None]
    except (ValueError, TypeError) as error:
        raise DefinitionError(f"step {step.name}: label {label!r} is not a format: {error}") from None
    for field in fields:
        name = _first_name(field)
        if name not in inspect.signature(step.fn).parameters:
            raise DefinitionError(
                f"step {step.name}: label {label!r} names {name!r}, which is not one of its parameters"
            )
    return label


def _first_name(field: str) -> str:
    return field.replace("[", ".").split(".")[0]


def _formatted(field: str | None, spec: str | None, conversion: str | None, arguments: Mapping[str, Any]) -> str:
    if field is None:
        return ""
    try:
        value, _ = string.Formatter().get_field(field, (), arguments)
        return format(string.Formatter().convert_field(value, conversion), spec or "")
    except Exception:
        return "?"
