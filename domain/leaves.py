"""Values that hold no others, as JSON and back: numbers, text, bytes, times and paths, each by its exact type."""

from __future__ import annotations

import math
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, DecimalException
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from domain.errors import UnknownTypeError
from domain.json_text import Json

TAG = "$"

_PLAIN_INT_BITS = 2048  # 617 digits; `sys.set_int_max_str_digits` cannot forbid less than 640
_PLAIN_NAN = struct.pack(">d", float("nan"))


class Refused(Exception):  # noqa: N818  never seen outside the domain
    """Stops an encoding; its argument says why, as a predicate of the value."""


def tagged(tag: str, v: Json) -> dict[str, Any]:
    """Give the stored form of what JSON has no form for."""
    return {TAG: tag, "v": v}


def type_name(kind: type) -> str:
    """Name a class for a person."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# --- encoding


def is_utf8(text: str) -> bool:
    """Tell whether a text has no lone surrogate, which JSON could not be trusted with."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_text(text: str) -> Json:
    """Encode a text; JSON would join two halves of a surrogate pair."""
    if text.isascii() or is_utf8(text):
        return text
    return tagged("str", _base64(text.encode("utf-8", "surrogatepass")))


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _encode_as_is(value: Any) -> Json:
    return value  # type: ignore[no-any-return]


def _encode_int(value: int) -> Json:
    return value if value.bit_length() <= _PLAIN_INT_BITS else tagged("int", hex(value))


def _encode_float(value: float) -> Json:
    if math.isfinite(value):
        return value
    if not math.isnan(value):
        return tagged("float", repr(value))
    bits = struct.pack(">d", value)
    return tagged("float", "nan" if bits == _PLAIN_NAN else bits.hex())


def _encode_bytes(value: bytes) -> Json:
    return tagged("bytes", _base64(value))


def _encode_uuid(value: UUID) -> Json:
    return tagged("uuid", str(value))


def _encode_decimal(value: Decimal) -> Json:
    return tagged("decimal", str(value).replace("e", "E"))  # the ambient context decides on the case


def _encode_date(value: date) -> Json:
    return tagged("date", value.isoformat())


def _encode_timedelta(value: timedelta) -> Json:
    return tagged("timedelta", [value.days, value.seconds, value.microseconds])


def _encode_datetime(value: datetime) -> Json:
    moment = value.replace(tzinfo=None, fold=0)
    return _encode_clock("datetime", value, value.tzinfo, moment.isoformat(), _is_known_zone)


def _encode_time(value: time) -> Json:
    moment = value.replace(tzinfo=None, fold=0)
    return _encode_clock("time", value, value.tzinfo, moment.isoformat(), _is_known_zone_of_a_time)


def _encode_clock(
    tag: str,
    value: datetime | time,
    zone: tzinfo | None,
    bare: str,
    is_known: Callable[[ZoneInfo, Any], bool],
) -> Json:
    result: dict[str, Any] = {TAG: tag}
    if zone is None:
        result["v"] = bare
    elif type(zone) is timezone:
        result["v"] = value.isoformat()
        name = zone.tzname(None)
        if name != timezone(zone.utcoffset(None)).tzname(None):
            result["name"] = encode_text(name)
    elif type(zone) is ZoneInfo and is_known(zone, value):
        result["v"] = bare
        result["zone"] = zone.key
    else:
        raise Refused(
            f"is a {tag} whose time zone, a {type_name(type(zone))}, cannot be stored; "
            "use a ZoneInfo with a key, a fixed datetime.timezone, or UTC"
        )
    if value.fold:
        result["fold"] = value.fold
    return result


def _zone_of_the_key(zone: ZoneInfo) -> ZoneInfo | None:
    try:
        return ZoneInfo(zone.key)
    except (KeyError, OSError, TypeError, ValueError):
        return None


def _is_known_zone(zone: ZoneInfo, value: datetime) -> bool:
    known = _zone_of_the_key(zone)
    if known is None:
        return False
    return known is zone or value.replace(tzinfo=known).utcoffset() == value.utcoffset()


def _is_known_zone_of_a_time(zone: ZoneInfo, _: time) -> bool:
    return _zone_of_the_key(zone) is zone  # a time without a date has no offset by which to compare


def _encode_path(value: PurePath) -> Json:
    text, kind = str(value), type(value)
    again = kind(text)
    if again.parts != value.parts or str(again) != text:  # PureWindowsPath("./c:a") is written as another path
        raise Refused(f"is a {kind.__name__} whose text, {text!r}, is that of another path")
    return {TAG: "path", "t": kind.__name__, "v": encode_text(text)}


ENCODERS: dict[type, Callable[[Any], Json]] = {
    type(None): _encode_as_is,
    bool: _encode_as_is,
    int: _encode_int,
    float: _encode_float,
    str: encode_text,
    bytes: _encode_bytes,
    datetime: _encode_datetime,
    date: _encode_date,
    time: _encode_time,
    timedelta: _encode_timedelta,
    UUID: _encode_uuid,
    Decimal: _encode_decimal,
    PosixPath: _encode_path,
    WindowsPath: _encode_path,
    PurePosixPath: _encode_path,
    PureWindowsPath: _encode_path,
}

# --- decoding: each raises some exception for what is malformed


def checked_text(v: object) -> str:
    """Give a text that has to be one."""
    if type(v) is not str:
        raise TypeError("text expected")
    return v


def checked_list(v: object) -> list[Any]:
    """Give a list that has to be one."""
    if type(v) is not list:
        raise TypeError("a list expected")
    return v


def _decode_bytes(v: str) -> bytes:
    return a2b_base64(checked_text(v), strict_mode=True)


def _decode_str(v: str) -> str:
    return _decode_bytes(v).decode("utf-8", "surrogatepass")


def decode_text(stored: Json) -> str:
    """Give back what `encode_text` has encoded."""
    if isinstance(stored, dict) and stored.get(TAG) == "str":
        return _decode_str(stored["v"])
    return checked_text(stored)


def _decode_int(v: str) -> int:
    return int(checked_text(v), 16)


def _decode_float(v: str) -> float:
    if v in ("inf", "-inf", "nan"):
        return float(v)
    number: float = struct.unpack(">d", bytes.fromhex(v))[0]
    return number


def _decode_uuid(v: str) -> UUID:
    return UUID(checked_text(v))


def parse_decimal(text: str) -> Decimal:
    """Read a Decimal exactly, whatever the ambient context traps. Raises `ValueError` for other text."""
    try:
        number = Decimal(text)
    except DecimalException:
        raise ValueError(f"not a Decimal: {text[:60]!r}") from None
    if number.is_nan() and "nan" not in text.lower():
        raise ValueError(f"not a Decimal: {text[:60]!r}")
    return number


def _decode_decimal(v: str) -> Decimal:
    return parse_decimal(checked_text(v))


def _decode_date(v: str) -> date:
    return date.fromisoformat(v)


def _decode_timedelta(v: list[int]) -> timedelta:
    days, seconds, microseconds = checked_list(v)
    return timedelta(days, seconds, microseconds)


def _decode_datetime(v: str, zone: str | None = None, name: Json = None, fold: int = 0) -> datetime:
    moment = datetime.fromisoformat(v)
    return moment.replace(tzinfo=_zone(v, moment.tzinfo, zone, name), fold=fold)


def _decode_time(v: str, zone: str | None = None, name: Json = None, fold: int = 0) -> time:
    moment = time.fromisoformat(v)
    return moment.replace(tzinfo=_zone(v, moment.tzinfo, zone, name), fold=fold)


def _zone(v: str, fixed: tzinfo | None, key: str | None, name: Json) -> tzinfo | None:
    if key is not None:
        return ZoneInfo(key)
    if fixed is None:
        return None
    offset = fixed.utcoffset(None) or _small_offset(v)
    if name is not None:
        return timezone(offset, decode_text(name))
    return timezone(offset) if offset else fixed


def _small_offset(v: str) -> timedelta:
    """Read an offset of less than a second, which `fromisoformat` takes for UTC."""
    sign, offset = v[-16:-15], v[-15:]
    if sign not in ("+", "-") or not offset.startswith("00:00:00."):
        return timedelta(0)
    microseconds = int(offset[9:])
    return timedelta(microseconds=microseconds if sign == "+" else -microseconds)


_PATHS = {kind.__name__: kind for kind in (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)}


def _decode_path(v: Json, t: str) -> PurePath:
    text, kind = decode_text(v), _PATHS[t]
    try:
        return kind(text)
    except NotImplementedError:
        raise UnknownTypeError(
            f"the stored path {text!r} is a {t}, which this system does not have: go on where it was stored, "
            "or store a PurePath",
            type_name=t,
        ) from None


DECODERS: dict[str, Callable[..., object]] = {
    "bytes": _decode_bytes,
    "date": _decode_date,
    "datetime": _decode_datetime,
    "decimal": _decode_decimal,
    "float": _decode_float,
    "int": _decode_int,
    "path": _decode_path,
    "str": _decode_str,
    "time": _decode_time,
    "timedelta": _decode_timedelta,
    "uuid": _decode_uuid,
}
