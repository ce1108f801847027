"""Which classes the annotations of a function or class name, as far as they can be told by now.

Annotations may be text that names what is not there yet: a class further down in a module that is still being imported,
or one that only type checkers import. Each is read for itself, so that one that fails hides no other.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NamedTuple,
    NewType,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from domain.structures import has_shape


class Named(NamedTuple):
    """What annotations name: classes whose values can be stored by name, and what could not be resolved, in words."""

    classes: list[type]
    unresolved: list[str]


class Hints(NamedTuple):
    """Annotations as objects, by name, and in words those that could not be resolved."""

    known: dict[str, Any]
    unresolved: list[str]


def named_by(function: object) -> Named:
    """Give the classes that a function's annotations name, and those that the fields of these name, and so on."""
    walk = _Walk()
    walk.take(_hints_of_function(function))
    return Named(walk.found, walk.unresolved)


def hints_of(cls: type) -> Hints:
    """Give the annotations of a class and its bases."""
    result = Hints({}, [])
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] in ("pydantic", "builtins", "typing"):
            continue
        module = vars(sys.modules.get(base.__module__, types.ModuleType("")))
        own = {**vars(base), base.__name__: base, **_type_parameters(base)}
        # the module's names come first, as in typing: a field `date: date = …` hides the class's own `date`
        _resolve(_annotations(base), own, module, base.__qualname__, result)
    return result


class _Walk:
    """Goes through annotations, and through the fields of the classes that it meets."""

    def __init__(self) -> None:
        self.found: list[type] = []
        self.unresolved: list[str] = []
        self._seen: set[int] = set()

    def take(self, hints: Hints) -> None:
        self.unresolved += hints.unresolved
        for hint in hints.known.values():
            self._look_at(hint)

    def _look_at(self, hint: Any) -> None:
        origin = get_origin(hint)
        if origin is Annotated:
            self._look_at(get_args(hint)[0])
        elif origin is Literal:
            self._look_at_all(type(value) for value in get_args(hint) if isinstance(value, Enum))
        elif origin is not None:
            self._look_at_all([origin, *get_args(hint)])
        elif isinstance(hint, list):  # the parameters of a callable
            self._look_at_all(hint)
        elif isinstance(hint, NewType):
            self._look_at(hint.__supertype__)
        elif isinstance(hint, TypeVar):
            self._look_at_all([hint.__bound__, *hint.__constraints__])
        elif isinstance(hint, str | ForwardRef):
            self.unresolved.append(f"{hint!r} cannot be resolved")
        elif (isinstance(hint, type) or type(hint).__name__ == "TypeAliasType") and id(hint) not in self._seen:
            self._seen.add(id(hint))
            self._meet(hint)

    def _look_at_all(self, hints: Iterable[Any]) -> None:
        for hint in hints:
            self._look_at(hint)

    def _meet(self, named: Any) -> None:
        if not isinstance(named, type):  # the `type` statement, which looks at its right side only now
            try:
                value = named.__value__
            except Exception as error:
                self.unresolved.append(f"{named}: {error}")
            else:
                self._look_at(value)
            return
        if has_shape(named):
            self.found.append(named)
        if (has_shape(named) and not issubclass(named, Enum)) or is_typed_dict(named):
            self.take(hints_of(named))
        if getattr(named, "__pydantic_complete__", False):  # a generic model with its types filled in
            self._look_at_all(field.annotation for field in getattr(named, "model_fields", {}).values())


def is_typed_dict(kind: object) -> bool:
    """Tell whether this is a TypedDict, of typing or of typing_extensions."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__")


def _hints_of_function(function: object) -> Hints:
    while isinstance(function, functools.partial):
        function = function.func
    inner: Any = inspect.unwrap(function) if callable(function) else function
    inner = getattr(inner, "__func__", inner)
    result = Hints({}, [])
    scope = {**_closure(inner), **_type_parameters(inner)}
    where = getattr(inner, "__qualname__", repr(inner))
    _resolve(_annotations(inner), getattr(inner, "__globals__", {}), scope, where, result)
    return result


def _resolve(
    annotations: Mapping[str, Any], outer: Mapping[str, Any], inner: Mapping[str, Any], where: str, result: Hints
) -> None:
    outer, inner = dict(outer), dict(inner)
    for name, annotation in annotations.items():
        holder = type("holder", (), {"__annotations__": {"it": annotation}})
        try:
            result.known[name] = get_type_hints(holder, outer, inner, include_extras=True)["it"]
        except Exception as error:  # what stands there is code, and may raise anything
            result.known.pop(name, None)
            result.unresolved.append(f"{name!r} of {where}: {error}")


def _annotations(holder: Any) -> dict[str, Any]:
    try:
        return dict(inspect.get_annotations(holder))
    except Exception:  # evaluated only now, from Python 3.14 on
        return {}


def _closure(function: Any) -> dict[str, Any]:
    """Give the variables of enclosing functions that a function uses."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    found = {}
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _type_parameters(holder: Any) -> dict[str, Any]:
    return {parameter.__name__: parameter for parameter in getattr(holder, "__type_params__", ())}
