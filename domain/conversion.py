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
from datetime import datetime
from decimal import Decimal, DecimalException
from typing import Annotated, Any, ForwardRef, Literal, NewType, TypeVar, Union, get_args, get_origin
from uuid import UUID

_SHOWN = 60  # characters of a value in a message


def convert(value: object, annotation: object) -> Any:
    """Turn a JSON value into what `annotation` asks for.

    A value that has the type already stays as it is; of a union it is the member that leaves the value
    alone, else the first that can take it. Text becomes a Decimal, UUID, datetime or (as UTF-8) bytes, an
    int becomes a float or a Decimal, a list a tuple; what is inside lists, tuples and dicts is converted
    likewise. An annotation that says nothing (missing, `Any`, a type variable, an unresolved name) leaves
    every value alone. Nothing is guessed: 5 is no str, true is no int, 1.5 is no Decimal (write "1.5").

    Raises `ValueError`, saying where, what was expected and what was found.
    """
    return _convert(value, annotation, "")


def parse_decimal(text: str) -> Decimal:
    """Read a Decimal exactly, whatever the ambient context traps. Raises `ValueError` for other text."""
    try:
        number = Decimal(text)
    except DecimalException:
        raise ValueError(f"not a Decimal: {_shown(text)}") from None
    if number.is_nan() and "nan" not in text.lower():
        raise ValueError(f"not a Decimal: {_shown(text)}")
    return number


def _convert(value: Any, annotation: Any, where: str) -> Any:
    annotation = _bare(annotation)
    if _says_nothing(annotation):
        return value
    if annotation is None or annotation is type(None):
        return value if value is None else _fail(value, annotation, where)
    origin = get_origin(annotation)
    if origin is Union or origin is types.UnionType:
        return _convert_union(value, annotation, where)
    if origin is Literal:
        return _convert_literal(value, annotation, where)
    converter = _CONVERTERS.get(origin or annotation) if isinstance(origin or annotation, type) else None
    if converter is not None:
        return converter(value, annotation, where)
    return _check_instance(value, annotation, origin or annotation, where)


def _bare(annotation: Any) -> Any:
    """Take `Annotated`, `NewType` and the `type` statement off an annotation."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def _says_nothing(annotation: Any) -> bool:
    silent = annotation is inspect.Parameter.empty or annotation is Any or annotation is object
    return silent or isinstance(annotation, (str, ForwardRef, TypeVar))


def _fail(value: object, annotation: object, where: str, hint: str = "") -> Any:
    expected = annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    if annotation is None or annotation is type(None):
        expected = "None"
    found = f"{_shown(value)} ({type(value).__qualname__})" if value is not None else "None"
    place = f"{where}: " if where else ""
    raise ValueError(f"{place}expected {expected.replace('typing.', '')}, found {found}{hint}")


def _shown(value: object) -> str:
    try:
        return f"{value!r:.{_SHOWN}}"
    except ValueError:
        return "an int of thousands of digits"


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
    return results[0] if results else _fail(value, annotation, where)


def _convert_literal(value: object, annotation: object, where: str) -> object:
    allowed = get_args(annotation)
    known = any(type(value) is type(one) and value == one for one in allowed)
    return value if known else _fail(value, annotation, where)


def _check_instance(value: object, annotation: object, kind: Any, where: str) -> object:
    try:
        fits = isinstance(value, kind)
    except TypeError:  # a protocol, or whatever else cannot tell
        return value
    return value if fits else _fail(value, annotation, where, "; JSON has no way to write one")


def _exactly(value: object, annotation: type, where: str) -> object:
    return value if type(value) is annotation else _fail(value, annotation, where)


def _to_float(value: object, annotation: object, where: str) -> Any:
    if type(value) is float:
        return value
    if type(value) is not int:
        return _fail(value, annotation, where)
    try:
        return float(value)
    except OverflowError:
        return _fail(value, annotation, where, "; it is too large")


def _to_decimal(value: object, annotation: object, where: str) -> Any:
    if type(value) is int:
        return Decimal(value)
    hint = "; write it as text, a float has lost its digits" if type(value) is float else ""
    return _from_text(value, annotation, where, parse_decimal, hint)


def _to_uuid(value: object, annotation: object, where: str) -> Any:
    return _from_text(value, annotation, where, UUID)


def _to_datetime(value: object, annotation: object, where: str) -> Any:
    hint = "; write it like 2026-11-01T01:30:00+00:00"
    return _from_text(value, annotation, where, datetime.fromisoformat, hint)


def _to_bytes(value: object, annotation: object, where: str) -> Any:
    return _from_text(value, annotation, where, str.encode)


def _from_text(value: Any, annotation: object, where: str, parse: Callable[[str], Any], hint: str = "") -> Any:
    if type(value) is annotation:
        return value
    if type(value) is not str:
        return _fail(value, annotation, where, hint)
    try:
        return parse(value)
    except ValueError:
        return _fail(value, annotation, where, hint)


def _to_list(value: Any, annotation: object, where: str) -> Any:
    if type(value) is not list:
        return _fail(value, annotation, where)
    wanted, *_ = get_args(annotation) or (Any,)
    items = [_convert(item, wanted, f"{where}[{number}]") for number, item in enumerate(value)]
    return value if _same(items, value) else items


def _to_tuple(value: Any, annotation: object, where: str) -> Any:
    if type(value) not in {list, tuple}:
        return _fail(value, annotation, where)
    if not hasattr(annotation, "__args__"):  # a bare tuple: of anything
        return tuple(value)
    wanted = get_args(annotation)
    if len(wanted) == 2 and wanted[1] is ...:
        wanted = (wanted[0],) * len(value)
    if len(wanted) != len(value):
        return _fail(value, annotation, where, f"; {len(wanted)} items are expected, {len(value)} are there")
    items = [_convert(item, kind, f"{where}[{n}]") for n, (item, kind) in enumerate(zip(value, wanted, strict=True))]
    return value if type(value) is tuple and _same(items, value) else tuple(items)


def _to_dict(value: Any, annotation: object, where: str) -> Any:
    if type(value) is not dict:
        return _fail(value, annotation, where)
    if len(get_args(annotation)) != 2:
        return value
    key_type, item_type = get_args(annotation)
    result = {}
    for key, item in value.items():
        inside = f"{where}[{_shown(key)}]"
        result[_convert_key(key, key_type, inside)] = _convert(item, item_type, inside)
    if len(result) != len(value):
        return _fail(value, annotation, where, "; two of its keys are the same")
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


_CONVERTERS: dict[Any, Callable[[Any, Any, str], Any]] = {
    bool: _exactly,
    int: _exactly,
    str: _exactly,
    float: _to_float,
    bytes: _to_bytes,
    datetime: _to_datetime,
    Decimal: _to_decimal,
    UUID: _to_uuid,
    list: _to_list,
    tuple: _to_tuple,
    dict: _to_dict,
    collections.abc.Collection: _to_list,
    collections.abc.Iterable: _to_list,
    collections.abc.MutableSequence: _to_list,
    collections.abc.Sequence: _to_list,
    collections.abc.Mapping: _to_dict,
    collections.abc.MutableMapping: _to_dict,
}
