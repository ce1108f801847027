"""Names in the log, labels, and where a function stands."""

from __future__ import annotations

import inspect
import os
import string
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from domain.errors import DefinitionError

LABEL_LIMIT = 200
"""Characters of a label that are kept."""
NAME_LIMIT = 200
"""Characters that the name of an agent or a step may have."""


def checked_name(name: object, kind: str) -> str:
    """Give the name of an agent or a step. Raises DefinitionError for one that no log may have."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
        raise DefinitionError(f"@{kind}: a name has 1 to {NAME_LIMIT} printable characters, not {name!r}")
    return name


def checked_names(fn: Any, name: object, aliases: object, kind: str) -> tuple[str, ...]:
    """Give the name of a function, then those that it had before. Raises DefinitionError."""
    if not inspect.isfunction(fn):
        raise DefinitionError(f"@{kind} is for functions written with def, not for {fn!r}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(f"@{kind} {fn.__qualname__}: generators cannot be {kind}s")
    if isinstance(aliases, str) or not isinstance(aliases, tuple | list):
        raise DefinitionError(f"@{kind} {fn.__qualname__}: aliases is a tuple of names, not {aliases!r}")
    return tuple(checked_name(one, kind) for one in (fn.__qualname__ if name is None else name, *aliases))


def refuse_method(fn: Callable[..., Any], instance: object, owner: type | None) -> None:
    """Raise DefinitionError where a function is a method of a class: its `self` is nothing that a log can hold."""
    homes = [] if instance is None or owner is None else [base.__qualname__ for base in owner.__mro__]
    if fn.__qualname__ in [f"{home}.{fn.__name__}" for home in homes]:
        raise DefinitionError(
            f"{fn.__qualname__} is a method: the log cannot hold its self. Make it a function, or a @staticmethod, and"
            " give it what it needs as arguments"
        )


def code_of(fn: Callable[..., Any]) -> CodeType:
    """Give the code of what the user wrote, below the wrappers that decorators of other files put around it."""
    inner = inspect.unwrap(fn)
    code: CodeType = getattr(inner, "__code__", None) or fn.__code__
    return code


def home_of(fn: Callable[..., Any], made_at: object) -> tuple[str, int]:
    """Give the file and line where an agent was made: those of its function, or `made_at`. Raises DefinitionError."""
    code = code_of(fn)
    match (code.co_filename, code.co_firstlineno) if made_at is None else made_at:
        case (str(file), int(line)):
            return os.path.realpath(file), line
    raise DefinitionError(f"@agent: made_at is a file and a line, such as ('agents.py', 12), not {made_at!r}")


def plain_positional(signature: inspect.Signature) -> tuple[str, ...] | None:
    """Give the parameters' names, where all can be given by position and none collects."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    return tuple(signature.parameters) if all(p.kind in plain for p in parameters) else None


def checked_label(name: str, signature: inspect.Signature, label: str | None) -> str:
    """Give the label, or an empty text. Raises DefinitionError where it names what is no parameter."""
    if label is None:
        return ""
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(label) if field is not None]
    except (ValueError, TypeError) as error:
        raise DefinitionError(f"step {name}: label {label!r} is not a format: {error}") from None
    for field in fields:
        first = field.replace("[", ".").split(".")[0]
        if first not in signature.parameters:
            raise DefinitionError(f"step {name}: label {label!r} names {first!r}, which is not one of its parameters")
    return label


def format_label(label: str, values: Mapping[str, Any]) -> str:
    """Format a label; what cannot be formatted gives `?`, never an error.

    >>> format_label("mail to {to}, {cc.name}", {"to": "ann", "cc": None})
    'mail to ann, ?'
    """
    text = "".join(
        literal + _formatted(field, spec, conversion, values)
        for literal, field, spec, conversion in string.Formatter().parse(label)
    )
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= LABEL_LIMIT else text[: LABEL_LIMIT - 1] + "…"


def _formatted(field: str | None, spec: str | None, conversion: str | None, values: Mapping[str, Any]) -> str:
    if field is None:
        return ""
    try:
        value, _ = string.Formatter().get_field(field, (), values)
        return format(string.Formatter().convert_field(value, conversion), spec or "")
    except Exception:
        return "?"
