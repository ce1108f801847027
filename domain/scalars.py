"""How a JSON value becomes a number, a text, a time, a path or a member of an enum, as an annotation asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, get_args
from uuid import UUID

from domain.leaves import parse_decimal

_SHOWN = 60  # characters of a value in a message
_DURATION = (  # compiled at its first use: an import of ours pays for what a program may never need
    r"(?P<sign>[+-]?)P(?=.)((?P<weeks>\d+)W)?((?P<days>\d+)D)?"
    r"(T(?=.)((?P<hours>\d+)H)?((?P<minutes>\d+)M)?((?P<seconds>\d+)(\.(?P<fraction>\d{1,6}))?S)?)?"
)


def fail(value: object, annotation: object, where: str, hint: str = "") -> Any:
    """Raise ValueError, saying where, what was expected and what was found."""
    expected = annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    if annotation is None or annotation is type(None):
        expected = "None"
    found = f"{shown(value)} ({type(value).__qualname__})" if value is not None else "None"
    place = f"{where}: " if where else ""
    raise ValueError(f"{place}expected {expected.replace('typing.', '')}, found {found}{hint}")


def shown(value: object) -> str:
    """Show the beginning of a value."""
    try:
        return f"{value!r:.{_SHOWN}}"
    except ValueError:
        return "an int of thousands of digits"


def to_enum(value: Any, annotation: Any, where: str) -> Any:
    """Find a member by its name or its value; flags can be combined, by names or as a number."""
    if isinstance(value, annotation):
        return value
    members: Mapping[str, Enum] = annotation.__members__
    found = {id(one): one for one in members.values() if type(one._value_) is type(value) and one._value_ == value}
    named = members.get(value) if type(value) is str else None
    if named is not None:
        found[id(named)] = named
    if len(found) == 1:
        return found.popitem()[1]
    if found:
        return fail(value, annotation, where, "; it is the name of one member and the value of another")
    combined = _combined(value, annotation) if issubclass(annotation, Flag) else None
    return fail(value, annotation, where, f"; it has {', '.join(members)}") if combined is None else combined


def _combined(value: Any, kind: Any) -> Any:
    names = value.split("|") if type(value) is str else value
    try:
        if type(names) is int:
            return _with_bits(names, kind)
        if type(names) is not list:
            return None
        result = kind(0)
        for name in names:
            result |= kind.__members__[name.strip()]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return result


def _with_bits(bits: int, kind: Any) -> Any:
    """Give the flag with these bits; None where some would be dropped, as CPython 3.11.2 does by default."""
    made = kind(bits)
    return made if type(made) is kind and (bits < 0 or made._value_ == bits) else None


def _exactly(value: object, annotation: type, where: str) -> object:
    return value if type(value) is annotation else fail(value, annotation, where)


def _to_float(value: object, annotation: object, where: str) -> Any:
    if type(value) is float:
        return value
    if type(value) is not int:
        return fail(value, annotation, where)
    try:
        return float(value)
    except OverflowError:
        return fail(value, annotation, where, "; it is too large")


def _to_decimal(value: object, annotation: object, where: str) -> Any:
    if type(value) is int:
        return Decimal(value)
    hint = "; write it as text, a float has lost its digits" if type(value) is float else ""
    return _from_text(value, annotation, where, parse_decimal, hint)


def _to_uuid(value: object, annotation: object, where: str) -> Any:
    return _from_text(value, annotation, where, UUID)


def _to_bytes(value: object, annotation: object, where: str) -> Any:
    return _from_text(value, annotation, where, str.encode)


def _to_datetime(value: object, annotation: object, where: str) -> Any:
    return _from_text(value, annotation, where, datetime.fromisoformat, "; write it like 2026-11-01T01:30:00+00:00")


def _to_date(value: object, annotation: object, where: str) -> Any:
    return _from_text(value, annotation, where, date.fromisoformat, "; write it like 2026-11-01")


def _to_time(value: object, annotation: object, where: str) -> Any:
    return _from_text(value, annotation, where, time.fromisoformat, "; write it like 01:30:00")


def _to_timedelta(value: Any, annotation: object, where: str) -> Any:
    hint = "; write a number of seconds, or a duration like P1DT2H30M or PT1.5S"
    if type(value) not in {int, float}:
        return _from_text(value, annotation, where, _parse_duration, hint)
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        return fail(value, annotation, where, hint)


def _parse_duration(text: str) -> timedelta:
    """Read an ISO 8601 duration without years and months, which have no length.

    >>> str(_parse_duration("P1DT2H30M")), str(_parse_duration("-PT0.5S"))
    ('1 day, 2:30:00', '-1 day, 23:59:59.500000')
    """
    found = re.fullmatch(_DURATION, text, re.ASCII)
    if found is None:
        raise ValueError("not a duration")
    parts = {name: int(found[name] or 0) for name in ("weeks", "days", "hours", "minutes", "seconds")}
    try:
        length = timedelta(**parts, microseconds=int((found["fraction"] or "").ljust(6, "0")))
    except OverflowError:
        raise ValueError("too long a duration") from None
    return -length if found["sign"] == "-" else length


def _to_path(value: Any, annotation: Any, where: str) -> Any:
    if isinstance(value, annotation):
        return value
    if type(value) is not str:
        return fail(value, annotation, where)
    try:
        return annotation(value)
    except NotImplementedError:
        return fail(value, annotation, where, "; this system has no such paths")


def _from_text(value: Any, annotation: object, where: str, parse: Callable[[str], Any], hint: str = "") -> Any:
    if type(value) is annotation:
        return value
    if type(value) is not str:
        return fail(value, annotation, where, hint)
    try:
        return parse(value)
    except ValueError:
        return fail(value, annotation, where, hint)


SCALARS: dict[Any, Callable[[Any, Any, str], Any]] = {
    bool: _exactly,
    int: _exactly,
    str: _exactly,
    float: _to_float,
    bytes: _to_bytes,
    date: _to_date,
    datetime: _to_datetime,
    time: _to_time,
    timedelta: _to_timedelta,
    Decimal: _to_decimal,
    UUID: _to_uuid,
    **dict.fromkeys((Path, PosixPath, WindowsPath, PurePath, PurePosixPath, PureWindowsPath), _to_path),
}
