"""What a person types to name an agent and its arguments: `report.py:report notes.txt 3`."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from inspect import Parameter, Signature
from pathlib import Path
from shlex import quote
from types import ModuleType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin, get_type_hints

from actors.definitions import AnyAgent, AnyStep, known_agents
from domain.values import convert

_OURS = tuple(str(Path(__file__).resolve().parent.parent / name) + os.sep for name in ("actors", "domain", "stores"))


class CommandError(Exception):
    """Raised when a command cannot do what it is asked to; the message is for the person who typed it."""


# ------------------------------------------------------------------ the agent


def load_agent(target: str) -> AnyAgent:
    """Import the module or file before the last colon, and give the agent named after it.

    A file is imported as python runs a script: its folder comes first on `sys.path`, and no bytecode is left beside it;
    but its `__name__` is its own. Raises CommandError, with the traceback where the user's code is what failed.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise CommandError(f"{target!r} names no agent: write FILE.py:AGENT or MODULE:AGENT, such as report.py:report")
    return _agent_in(load_module(place), place, name)


def load_agents(places: Iterable[str]) -> None:
    """Import files and modules for all agents that they bring. Raises CommandError, also for one that brings none."""
    for place in places:
        if ":" in place:
            raise CommandError(f"{place!r}: all agents of a module are meant: write {place.rpartition(':')[0]}")
        before = known_agents()
        module = load_module(place)
        if known_agents() == before and not any(isinstance(value, AnyAgent) for value in vars(module).values()):
            raise CommandError(f"{place}: no agent in it: @agent makes one of a function")


def load_module(place: str) -> ModuleType:
    """Import a file or a module, as `load_agent` does. Raises CommandError."""
    return _import_file(place) if place.endswith(".py") or os.sep in place else _import_module(place)


class _Script(SourceFileLoader):
    """Reads a file from its source, always: a script has no cache that could be out of date."""

    def path_stats(self, path: Any) -> NoReturn:
        raise OSError(path)


def _import_file(place: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise CommandError(f"there is no file {place} in {Path.cwd()}")
    _put_first(str(path.parent))
    name = path.stem
    while name in sys.modules:  # a script may be named like a module that is in use
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Script(name, str(path)))
    if spec is None or spec.loader is None:
        raise CommandError(f"{place} cannot be imported")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with _users_errors(place):
        spec.loader.exec_module(module)
    return module


def _import_module(place: str) -> ModuleType:
    if not all(part.isidentifier() for part in place.split(".")):
        raise CommandError(f"{place!r} is neither a module nor a file: write FILE.py:AGENT or MODULE:AGENT")
    _put_first(str(Path.cwd()))
    with _users_errors(place):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise CommandError(f"there is no module {place} in {Path.cwd()}, nor is one installed: {error}") from None


def _put_first(folder: str) -> None:
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)


@contextmanager
def _users_errors(place: str) -> Iterator[None]:
    try:
        yield
    except CommandError:
        raise
    except SystemExit as error:
        raise CommandError(
            f"{place} called sys.exit({error.code!r}) while it was imported: what only a script does belongs under"
            ' `if __name__ == "__main__":`'
        ) from None
    except Exception as error:
        raise CommandError(f"{place} cannot be imported:\n{_users_traceback(error)}") from None


def _users_traceback(error: Exception) -> str:
    """Format an exception without the frames through which we and Python have imported the file."""
    report = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = report
    while one is not None:
        one.stack[:] = [frame for frame in one.stack if not _is_ours(frame.filename)]
        one = one.__cause__ or one.__context__
    return "".join(report.format()).rstrip()


def _is_ours(file: str) -> bool:
    return file.startswith((*_OURS, "<frozen ")) or file == importlib.__file__


def _agent_in(module: ModuleType, place: str, name: str) -> AnyAgent:
    agents = {key: value for key, value in vars(module).items() if isinstance(value, AnyAgent)}
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    found = found or next((one for one in agents.values() if one.name == name), None)
    if isinstance(found, AnyAgent):
        return found
    there = f"its agents: {', '.join(agents)}" if agents else "it has no agent at all: @agent makes one of a function"
    if found is None:
        raise CommandError(f"{place} has no {name!r}; {there}")
    what = "a step" if isinstance(found, AnyStep) else _with_article(type(found).__name__)
    raise CommandError(f"{name!r} in {place} is {what}, not an agent; {there}")


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


# ------------------------------------------------------------------ its arguments


def read_arguments(agent: AnyAgent, words: list[str]) -> list[Any]:
    """Turn words into the agent's arguments, by position. Raises CommandError where they do not fit."""
    signature = _resolved(agent)
    try:
        signature.bind(*words)
    except TypeError as error:
        by_name = any(p.kind is Parameter.KEYWORD_ONLY for p in signature.parameters.values())
        hint = "; `run` passes arguments by position only, and what comes by name alone needs a default"
        told = "".join(how_to_write(p.annotation, f"{p.name} is") for p in signature.parameters.values())
        raise CommandError(f"agent {agent.name}{signature}: {error}{hint if by_name else told}") from None
    positional = [p for p in signature.parameters.values() if p.kind is not Parameter.KEYWORD_ONLY]
    values = []
    for number, word in enumerate(words):
        parameter = positional[min(number, len(positional) - 1)]
        try:
            values.append(read_argument(word, parameter.annotation))
        except ValueError as error:
            told = how_to_write(parameter.annotation)
            raise CommandError(f"agent {agent.name}{signature}: argument {parameter.name}: {error}{told}") from None
    return values


def how_to_write(annotation: Any, what: str = "write it as") -> str:
    """Say how a list or a dict is written as one word of a command; empty for an annotation that asks for neither.

    >>> print(how_to_write(list[str]), how_to_write(dict[str, tuple[int, float]] | None))
    ; write it as JSON in quotes: '["a", "b"]' ; write it as JSON in quotes: '{"a": [1, 0.5]}'
    """
    sample = _sample(annotation)
    return f"; {what} JSON in quotes: {quote(sample)}" if sample[:1] in ("[", "{") else ""


def _sample(annotation: Any, number: int = 0) -> str:
    """Give a JSON text that fits; `number` counts those that stand beside each other."""
    kind, inner = get_origin(annotation) or annotation, get_args(annotation)
    if kind is Annotated:
        return _sample(inner[0], number)
    if kind in (Union, UnionType):
        return _sample(next((one for one in inner if one is not NoneType), None), number)
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        return f"[{', '.join(_sample(one) for one in inner)}]"
    if not isinstance(kind, type) or kind in (str, bytes, bytearray):
        return _SAMPLES.get(kind, _ANY)[number]
    if issubclass(kind, Mapping):
        return f'{{"a": {_sample(inner[1]) if inner[1:] else 1}}}'
    if issubclass(kind, Collection):
        items = [_sample(inner[0] if inner else str, place) for place in (0, 1)]
        return f"[{', '.join(dict.fromkeys(items))}]"
    return _SAMPLES.get(kind, _ANY)[number]


_ANY = ('"…"', '"…"')
_SAMPLES: dict[Any, tuple[str, str]] = {
    str: ('"a"', '"b"'),
    int: ("1", "2"),
    float: ("0.5", "1.5"),
    bool: ("true", "false"),
}
"""Two JSON texts for each kind of scalar."""


def read_argument(word: str, annotation: Any = Parameter.empty) -> Any:
    """Read a word as JSON where it is JSON, else as text, and convert it to what the annotation asks for.

    Where JSON gives the wrong thing but the word itself fits, the word it is. Raises ValueError.

    >>> read_argument("[1, 2]"), read_argument("hello"), read_argument("5", str), read_argument("5", float)
    ([1, 2], 'hello', '5', 5.0)
    """
    try:
        value = parse_json(word)
    except ValueError:
        value = word
    try:
        return convert(value, annotation)
    except ValueError:
        if not isinstance(value, str):
            try:
                return convert(word, annotation)
            except ValueError:
                pass
        raise


def parse_json(text: str) -> Any:
    """Read JSON, without the NaN and Infinity that Python takes for it. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _resolved(agent: AnyAgent) -> Signature:
    """Give the agent's signature with its annotations as objects, as far as they can be had."""
    signature = agent.signature
    parameters = [p.replace(annotation=_hint(agent, p.annotation)) for p in signature.parameters.values()]
    returns = _hint(agent, signature.return_annotation)
    return signature.replace(parameters=parameters, return_annotation=returns)


def _hint(agent: AnyAgent, annotation: Any) -> Any:
    if annotation is Parameter.empty or annotation is None:
        return annotation
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        hint = get_type_hints(holder, agent.fn.__globals__)["it"]
    except Exception:
        return annotation
    return None if hint is NoneType else hint
