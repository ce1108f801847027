"""How a JSON value becomes what an annotation asks for.

For values that a person types: the arguments of `perdure run`, the value of `perdure resolve`. What the log
gives back has its type already and does not come here.
"""

from __future__ import annotations

import collections.abc
import inspect
import json
import types
from collections.abc import Callable
from dataclasses import InitVar, is_dataclass
from enum import Enum
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    ForwardRef,
    Literal,
    NewType,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from domain.annotations import hints_of, is_typed_dict
from domain.scalars import SCALARS, fail, shown, to_enum
from domain.structures import is_model, is_named_tuple


def convert(value: object, annotation: object) -> Any:
    """Turn a JSON value into what `annotation` asks for.

    A value that has the type already stays as it is; of a union it is the member that leaves the value alone, else the
    first that can take it. Text becomes a Decimal, UUID, path, datetime, date, time (ISO 8601) or (as UTF-8) bytes, an
    int becomes a float or a Decimal; a number of seconds, or text like "P1DT2H30M", a timedelta; the name or the value
    of a member an enum, "READ|WRITE" a flag; a list a tuple, set or frozenset; an object a dataclass, named tuple,
    TypedDict or pydantic model, made by its own constructor. What is inside is converted likewise.

    An annotation that says nothing (missing, `Any`, a type variable, an unresolved name) leaves every value alone.
    Nothing is guessed: 5 is no str, true is no int, 1.5 is no Decimal (write "1.5").

    Raises `ValueError`, saying where, what was expected and what was found.
    """
    return _convert(value, annotation, "")


def _convert(value: Any, annotation: Any, where: str) -> Any:
    annotation = _bare(annotation)
    if _says_nothing(annotation):
        return value
    if annotation is None or annotation is type(None):
        return value if value is None else fail(value, annotation, where)
    origin = get_origin(annotation)
    if origin is Union or origin is types.UnionType:
        return _convert_union(value, annotation, where)
    if origin is Literal:
        return _convert_literal(value, annotation, where)
    kind = origin or annotation
    converter = _converter(kind) if isinstance(kind, type) else None
    if converter is not None:
        return converter(value, annotation, where)
    return _check_instance(value, annotation, kind, where)


def _converter(kind: type) -> Callable[[Any, Any, str], Any] | None:
    found = SCALARS.get(kind) or _CONTAINERS.get(kind)
    if found is not None:
        return found
    if issubclass(kind, Enum):
        return to_enum
    if is_typed_dict(kind):
        return _to_typed_dict
    if is_model(kind):
        return _to_model
    if is_dataclass(kind):
        return _to_dataclass
    return _to_named_tuple if is_named_tuple(kind) else None


def _bare(annotation: Any) -> Any:
    """Take `Annotated`, `NewType`, the `type` statement and what a field may be marked with off an annotation."""
    while True:
        if get_origin(annotation) in _MARKS:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, InitVar):
            annotation = annotation.type
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


_MARKS = (Annotated, Required, NotRequired, ClassVar, Final)


def _says_nothing(annotation: Any) -> bool:
    silent = annotation is inspect.Parameter.empty or annotation is Any or annotation is object
    return silent or isinstance(annotation, (str, ForwardRef, TypeVar))


def _convert_union(value: object, annotation: object, where: str) -> object:
    results = []
    for member in get_args(annotation):
        try:
            result = _convert(value, member, where)
        except ValueError:
            continue
        if result is value and not _says_nothing(_bare(member)):
            return value
        results.append(result)
    return results[0] if results else fail(value, annotation, where)


def _convert_literal(value: object, annotation: object, where: str) -> object:
    allowed = get_args(annotation)
    known = any(type(value) is type(one) and value == one for one in allowed)
    return value if known else fail(value, annotation, where)


def _check_instance(value: object, annotation: object, kind: Any, where: str) -> object:
    try:
        fits = isinstance(value, kind)
    except TypeError:  # a protocol, or whatever else cannot tell
        return value
    return value if fits else fail(value, annotation, where, "; JSON has no way to write one")


# --- containers


def _to_list(value: Any, annotation: object, where: str) -> Any:
    if type(value) is not list:
        return fail(value, annotation, where)
    wanted, *_ = get_args(annotation) or (Any,)
    items = [_convert(item, wanted, f"{where}[{number}]") for number, item in enumerate(value)]
    return value if _same(items, value) else items


def _to_tuple(value: Any, annotation: object, where: str) -> Any:
    if type(value) not in {list, tuple}:
        return fail(value, annotation, where)
    if not hasattr(annotation, "__args__"):  # a bare tuple: of anything
        return tuple(value)
    wanted = get_args(annotation)
    if len(wanted) == 2 and wanted[1] is ...:
        wanted = (wanted[0],) * len(value)
    if len(wanted) != len(value):
        return fail(value, annotation, where, f"; {len(wanted)} items are expected, {len(value)} are there")
    items = [_convert(item, kind, f"{where}[{n}]") for n, (item, kind) in enumerate(zip(value, wanted, strict=True))]
    return value if type(value) is tuple and _same(items, value) else tuple(items)


def _to_set(value: Any, annotation: object, where: str) -> Any:
    wanted = frozenset if (get_origin(annotation) or annotation) is frozenset else set
    if type(value) not in {list, tuple, wanted}:
        return fail(value, annotation, where)
    item_type, *_ = get_args(annotation) or (Any,)
    items = [_convert(item, item_type, f"{where}[{number}]") for number, item in enumerate(value)]
    if type(value) is wanted and _same(items, value):
        return value
    try:
        return wanted(items)
    except TypeError as error:
        return fail(value, annotation, where, f"; {error}")


def _to_dict(value: Any, annotation: object, where: str) -> Any:
    if type(value) is not dict:
        return fail(value, annotation, where)
    if len(get_args(annotation)) != 2:
        return value
    key_type, item_type = get_args(annotation)
    result = {}
    for key, item in value.items():
        inside = f"{where}[{shown(key)}]"
        result[_convert_key(key, key_type, inside)] = _convert(item, item_type, inside)
    if len(result) != len(value):
        return fail(value, annotation, where, "; two of its keys are the same")
    return value if _same(result, value) and _same(result.values(), value.values()) else result


def _convert_key(key: object, annotation: object, where: str) -> Any:
    """Convert a key; JSON writes every key as text, so 1 arrives as "1"."""
    try:
        return _convert(key, annotation, where)
    except ValueError:
        if type(key) is not str:
            raise
        try:
            read = json.loads(key)
        except (ValueError, RecursionError):
            read = key
        return _convert(read, annotation, where)


def _same(some: Any, others: Any) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))


# --- structures


def _to_dataclass(value: Any, annotation: Any, where: str) -> Any:
    kind = get_origin(annotation) or annotation
    if isinstance(value, kind):
        return value
    if type(value) is not dict:
        return fail(value, annotation, where, "; write it as an object with its fields")
    parameters = inspect.signature(kind).parameters.values()
    names = [one.name for one in parameters if one.kind not in {one.VAR_POSITIONAL, one.VAR_KEYWORD}]
    required = [one.name for one in parameters if one.name in names and one.default is one.empty]
    given = _fields(value, annotation, where, names, required)
    try:
        return kind(**given)
    except Exception as error:  # of the user's own checks
        return fail(value, annotation, where, f"; {type(error).__name__}: {error}")


def _to_named_tuple(value: Any, annotation: Any, where: str) -> Any:
    names = (get_origin(annotation) or annotation)._fields
    if type(value) is list and len(value) <= len(names):
        value = dict(zip(names, value, strict=False))
    return _to_dataclass(value, annotation, where)


def _to_typed_dict(value: Any, annotation: Any, where: str) -> Any:
    kind = get_origin(annotation) or annotation
    if type(value) is not dict:
        return fail(value, annotation, where)
    required = set(kind.__required_keys__)
    for name, hint in hints_of(kind).known.items():  # an annotation that was text has kept its mark from the class
        required -= {name} if get_origin(hint) is NotRequired else set()
        required |= {name} if get_origin(hint) is Required else set()
    result = _fields(value, annotation, where, list(kind.__annotations__), sorted(required))
    return value if _same(result.values(), value.values()) else result


def _to_model(value: Any, annotation: Any, where: str) -> Any:
    if isinstance(value, annotation):
        return value
    try:
        return annotation.model_validate(value)
    except ValueError as error:
        told = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in getattr(error, "errors", list)()]
        return fail(value, annotation, where, f"; {'; '.join(told) or error}")


def _fields(
    value: dict[Any, Any], annotation: Any, where: str, names: list[str], required: list[str]
) -> dict[str, Any]:
    """Convert the fields of an object, each as its own annotation says."""
    unknown = next((key for key in value if key not in names), None)
    if unknown is not None:
        fail(value, annotation, where, f"; it has no {shown(unknown)}, only {', '.join(names) or 'nothing'}")
    missing = next((name for name in required if name not in value), None)
    if missing is not None:
        fail(value, annotation, where, f"; {missing!r} is missing")
    kind = get_origin(annotation) or annotation
    filled_in = dict(zip(getattr(kind, "__parameters__", ()), get_args(annotation), strict=False))
    hints = hints_of(kind).known
    result = {}
    for name, item in value.items():
        hint = _filled_in(hints.get(name, Any), filled_in)
        result[name] = _convert(item, hint, f"{where}.{name}" if where else name)
    return result


def _filled_in(hint: Any, types_of: dict[Any, Any]) -> Any:
    """Put types in the place of type variables."""
    if isinstance(hint, TypeVar):
        return types_of.get(hint, hint)
    free = () if isinstance(hint, type) else getattr(hint, "__parameters__", ())
    return hint[tuple(types_of.get(one, one) for one in free)] if free else hint


_CONTAINERS: dict[Any, Callable[[Any, Any, str], Any]] = {
    list: _to_list,
    tuple: _to_tuple,
    dict: _to_dict,
    set: _to_set,
    frozenset: _to_set,
    collections.abc.Collection: _to_list,
    collections.abc.Iterable: _to_list,
    collections.abc.MutableSequence: _to_list,
    collections.abc.Sequence: _to_list,
    collections.abc.Mapping: _to_dict,
    collections.abc.MutableMapping: _to_dict,
    collections.abc.MutableSet: _to_set,
    collections.abc.Set: _to_set,
}
