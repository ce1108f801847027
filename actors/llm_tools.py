"""`@tool`: a step that a model may call, with a schema from its signature and docstring."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from importlib.util import find_spec
from typing import (
    Annotated,
    Any,
    Generic,
    NotRequired,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    get_type_hints,
    overload,
)

from actors.definitions import AnyStep, AsyncStep, Step, step
from actors.llm_messages import ToolSpec
from actors.options import StepOptions
from actors.showing import plain_json
from domain.errors import DefinitionError
from domain.retry import RetryPolicy

P = ParamSpec("P")
R = TypeVar("R")

MODEL, BAD_CALL = "model", "bad_call"
"""The names of the steps that ask a model, and that tell it what was wrong with a call."""
NeedsApproval = bool | Callable[[dict[str, Any]], bool]
"""Whether a person has to say yes before a call; or a function of its arguments that tells. It must have no effects."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class ToolError(Exception):
    """Raised by a tool for what the model is to know and to deal with; it is not tried again.

    Its message is the result of the call. Every other error is tried again as the tool's options say, and then is the
    agent's: its `on_failure` says what follows.
    """


class AnyTool:
    """What sync and async tools have in common: a step, what a model is told of it, and who has to agree."""

    step: AnyStep

    def __init__(self, made: AnyStep, description: str, needs_approval: NeedsApproval) -> None:
        self.step = made
        self.fn = made.fn
        self.name = made.name
        self.needs_approval = needs_approval
        self._arguments, schema = _arguments_of(made)
        self.spec = ToolSpec(self.name, description, schema)

    def checked(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Turn a model's arguments into what the function's annotations ask for.

        Raises ToolError, with a text for the model.
        """
        from pydantic import ValidationError  # noqa: PLC0415  as in `_arguments_of`

        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        try:
            found: dict[str, Any] = self._arguments.validate_json(text)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors()]
            raise ToolError(f"{self.name} was not called: {'; '.join(wrong)}") from None
        return found

    def asks(self, arguments: dict[str, Any]) -> bool:
        """Tell whether a call with these arguments needs a person's yes."""
        if isinstance(self.needs_approval, bool):
            return self.needs_approval
        given = self.step.signature.bind(**arguments)
        given.apply_defaults()
        return bool(self.needs_approval(dict(given.arguments)))

    async def perform(self, arguments: dict[str, Any]) -> Any:
        """Do the step in an async agent, whatever its colour."""
        one = self.step
        if isinstance(one, AsyncStep):
            return await one(**arguments)
        return await cast("Step[..., Any]", one).aio(**arguments)


class Tool(AnyTool, Generic[P, R]):
    """A function that models and agents may call; each call is a step. Made by `@tool`."""

    step: Step[P, R]
    fn: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do it as a step, in a sync agent. Raises what `Step` does."""
        return self.step(*args, **kwargs)

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do it as a step, in an async agent."""
        return await self.step.aio(*args, **kwargs)


class AsyncTool(AnyTool, Generic[P, R]):
    """An `async def` tool. Made by `@tool`."""

    step: AsyncStep[P, R]
    fn: Callable[P, Coroutine[Any, Any, R]]

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do it as a step, in an async agent. Raises what `AsyncStep` does."""
        return await self.step(*args, **kwargs)

    def sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do it as a step, in a sync agent."""
        return self.step.sync(*args, **kwargs)


class ToolDecorator(Protocol):
    """What `@tool(…)` gives."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTool[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTool[P, R]: ...  # type: ignore[overload-overlap]
@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: NeedsApproval = False,
    **options: Unpack[StepOptions],
) -> ToolDecorator: ...
def tool(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: NeedsApproval = False,
    **options: Unpack[StepOptions],
) -> Any:
    """Make a function a tool: a step, of which a model knows the name, the description and a JSON Schema.

        @tool(on_doubt="hold", needs_approval=lambda arguments: arguments["amount"] > 100)
        def pay(amount: int, to: str) -> str:
            '''Pay somebody.

            Args:
                amount: in euros.
                to: the name of the account.
            '''

    What a model gives as arguments is checked against the annotations; where it does not fit, the model is told so and
    the function is not called. What it returns may be anything that can be stored: the model gets a text as it is, and
    anything else as JSON.

    Args:
        name: by default the function's; 1 to 64 letters, digits, `_` and `-`. It is the step's name in the log.
        description: by default the docstring, without its `Args:`, which describe the parameters.
        needs_approval: whether a person has to say yes before each call: True, or a function of the arguments, checked,
            and with the defaults of those that the model left out.
        options: see StepOptions; `on_doubt` says what becomes of a call whose process died in it.

    Raises DefinitionError for what cannot be used, and where pydantic is not installed.
    """

    def decorate(function: Callable[..., Any]) -> AnyTool:
        named = str(name or getattr(function, "__name__", ""))
        if not _NAME.fullmatch(named) or named in (MODEL, BAD_CALL):
            what = "1 to 64 letters, digits, _ and -, and neither model nor bad_call"
            raise DefinitionError(f"tool {named!r}: a name has {what}: give it another by @tool(name=…)")
        made = step(name=named, **_given_up_on_tool_errors(options))(function)
        kind: type[AnyTool] = AsyncTool if isinstance(made, AsyncStep) else Tool
        text, _ = _described(function)
        return kind(made, text if description is None else description, needs_approval)

    return decorate if fn is None else decorate(fn)


def tools_by_name(tools: Iterable[AnyTool | Callable[..., Any]]) -> dict[str, AnyTool]:
    """Give tools by their names; a plain function becomes one. Raises DefinitionError where two have the same name."""
    found: dict[str, AnyTool] = {}
    for one in tools:
        made: AnyTool = one if isinstance(one, AnyTool) else tool(one)
        if found.setdefault(made.name, made) is not made:
            raise DefinitionError(f"two tools are named {made.name!r}: give one of them another by @tool(name=…)")
    return found


def result_text(stored: Any) -> str:
    """Give what a model is told that a tool has returned; the same in every process.

    >>> from domain.values import encode
    >>> result_text(encode("rain")), result_text(encode({"b": (1, None), "a": {"é"}}))
    ('rain', '{"b": [1, null], "a": ["é"]}')
    """
    plain = plain_json(stored)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _given_up_on_tool_errors(options: StepOptions) -> StepOptions:
    policy: Any = options.get("retry", RetryPolicy())
    given: Any = options.get("give_up_on", getattr(policy, "give_up_on", ()))
    return {**options, "give_up_on": (*(given if isinstance(given, tuple) else (given,)), ToolError)}


def _arguments_of(made: AnyStep) -> tuple[Any, dict[str, Any]]:
    """Give what checks the arguments of a tool, and their JSON Schema. Raises DefinitionError.

    pydantic is an extra, and imported only where there are tools: its import takes longer than all of perdure's.
    """
    if find_spec("pydantic") is None:
        raise DefinitionError(f'tool {made.name}: schemas are made by pydantic: pip install "perdure[llm]"')
    from pydantic import ConfigDict, Field, TypeAdapter  # noqa: PLC0415
    from typing_extensions import TypedDict  # noqa: PLC0415  the one that pydantic takes on every Python

    _, texts = _described(made.fn)
    fields: dict[str, Any] = {}
    try:
        hints = get_type_hints(made.fn, include_extras=True)
        for name, parameter in made.signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(f"parameter {parameter} cannot be given by name")
            hint: Any = Annotated[hints.get(name, Any), Field(description=texts.get(name))]
            fields[name] = hint if parameter.default is parameter.empty else NotRequired[hint]
        make: Any = TypedDict  # its arguments are made here, which type checkers cannot follow
        kind = make(made.name, fields)
        kind.__pydantic_config__ = ConfigDict(extra="forbid")
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        schema = adapter.json_schema()
    except Exception as error:
        raise DefinitionError(f"tool {made.name}: its signature gives no JSON Schema: {error}") from error
    schema.pop("title", None)
    for name, about in schema.setdefault("properties", {}).items():
        default = made.signature.parameters[name].default
        if type(default) in (str, int, float, bool, type(None)):
            about["default"] = default
    return adapter, schema


def _described(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Give what a docstring says of a function, and of each parameter that its `Args:` names."""
    text, _, rest = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    about: dict[str, str] = {}
    name = ""
    for line in rest.splitlines():
        if line.strip() and not line.startswith(" "):
            break
        if found := re.match(r" {1,4}(\w+)(?: \([^)]*\))?: *(.*)", line):
            name, about[found[1]] = found[1], found[2]
        elif name:
            about[name] = f"{about[name]} {line.strip()}".strip()
    return text.strip(), about
