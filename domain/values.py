"""Which values a log can hold, and how.

A value is stored by its exact type and comes back equal and of the same type, or it is refused with its
path. Plain JSON is stored as it is; everything else as a tagged object, `{"$":"bytes","v":"…"}`. A dict that
has a key `$`, or a key that is no plain text, is stored as `{"$":"dict","v":[[key, value], …]}`, so that no
payload is ever taken for a tag. Decoding looks names up in a closed table and never imports what a row names.
"""

from __future__ import annotations

import math
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from domain.conversion import convert, parse_decimal
from domain.errors import UnstorableValueError
from domain.json_text import Json, digest, dumps, loads

__all__ = ["MAX_DEPTH", "STORABLE", "Json", "convert", "decode", "digest", "dumps", "encode", "loads"]

MAX_DEPTH = 128
"""How many containers may be inside each other; each takes up to three levels of JSON on a parser's stack."""

STORABLE = "None, bool, int, float, str, bytes, list, dict, tuple, datetime, UUID and Decimal"

_TAG = "$"
_PLAIN_INT_BITS = 2048  # 617 digits; `sys.set_int_max_str_digits` cannot forbid less than 640
_PLAIN_NAN = struct.pack(">d", float("nan"))


def encode(value: object) -> Json:
    """Encode a value for the log.

    The result is fresh: it shares no container with `value`. Only exact types are taken; a subclass (an enum
    that is a str, a named tuple) is refused, because it could not come back as what it was.

    Raises `UnstorableValueError`, with the path and the type of what cannot be stored, for any other type,
    for containers that hold themselves and for more than `MAX_DEPTH` of them inside each other.
    """
    found = None
    try:
        return _encode(value, 0)
    except _Refused as refused:
        why = str(refused)
        with suppress(RuntimeError):
            found = _find_refused(value, "", [])
    except RuntimeError as error:  # no stack left for it, or another thread changed it meanwhile
        why = f"cannot be read: {error}"
    found = found or _Unstorable("", value, why)
    path = found.path or "value"
    raise UnstorableValueError(f"{path} {found.why}", path=path, type_name=_name(type(found.value)))


def decode(stored: Json) -> object:
    """Give back the value that was encoded, each time as a fresh object.

    Raises `ValueError`, which names the tag, for a tag that is unknown here or malformed.
    """
    try:
        return _decode(stored)
    except RecursionError:
        raise ValueError("the stored value is nested too deeply") from None


# --- encoding: quick, and blind for paths; what is refused is looked for in a second walk


class _Refused(Exception):  # noqa: N818  seen in this file only
    """Stops an encoding; its argument says why, as a predicate of the value."""


def _encode(value: Any, depth: int) -> Json:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _encode_text(value)
    encoder = _LEAVES.get(kind)
    if encoder is not None:
        return encoder(value)
    container = _CONTAINERS.get(kind)
    if container is None:
        raise _Refused(_not_storable(kind))
    if depth >= MAX_DEPTH:
        raise _Refused(_TOO_DEEP)
    return container(value, depth + 1)


def _tagged(tag: str, v: Json) -> Json:
    return {_TAG: tag, "v": v}


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode_text(text: str) -> Json:
    if text.isascii() or _is_utf8(text):
        return text
    # JSON would join two halves of a surrogate pair
    return _tagged("str", _base64(text.encode("utf-8", "surrogatepass")))


def _encode_as_is(value: Any) -> Json:
    return value  # type: ignore[no-any-return]


def _encode_int(value: int) -> Json:
    return value if value.bit_length() <= _PLAIN_INT_BITS else _tagged("int", hex(value))


def _encode_float(value: float) -> Json:
    if math.isfinite(value):
        return value
    if not math.isnan(value):
        return _tagged("float", repr(value))
    bits = struct.pack(">d", value)
    return _tagged("float", "nan" if bits == _PLAIN_NAN else bits.hex())


def _encode_list(value: list[Any], depth: int) -> Json:
    return [_encode(item, depth) for item in value]


def _encode_tuple(value: tuple[Any, ...], depth: int) -> Json:
    return _tagged("tuple", [_encode(item, depth) for item in value])


def _encode_dict(value: dict[Any, Any], depth: int) -> Json:
    plain = {}
    for key, item in value.items():
        if type(key) is not str or key == _TAG or not (key.isascii() or _is_utf8(key)):
            return _tagged("dict", [[_encode(k, depth), _encode(v, depth)] for k, v in value.items()])
        plain[key] = _encode(item, depth)
    return plain


def _encode_bytes(value: bytes) -> Json:
    return _tagged("bytes", _base64(value))


def _encode_uuid(value: UUID) -> Json:
    return _tagged("uuid", str(value))


def _encode_decimal(value: Decimal) -> Json:
    return _tagged("decimal", str(value).replace("e", "E"))  # the ambient context decides on the case


def _encode_datetime(value: datetime) -> Json:
    zone = value.tzinfo
    result: dict[str, Any] = {_TAG: "datetime"}
    if zone is None:
        result["v"] = value.isoformat()
    elif type(zone) is timezone:
        result["v"] = value.isoformat()
        name = zone.tzname(None)
        if name != timezone(zone.utcoffset(None)).tzname(None):
            result["name"] = _encode_text(name)
    elif type(zone) is ZoneInfo and _is_known_zone(zone, value):
        result["v"] = value.replace(tzinfo=None).isoformat()
        result["zone"] = zone.key
    else:
        raise _Refused(
            f"is a datetime whose time zone, a {_name(type(zone))}, cannot be stored; "
            "use a ZoneInfo with a key, a fixed datetime.timezone, or UTC"
        )
    if value.fold:
        result["fold"] = value.fold
    return result


def _is_known_zone(zone: ZoneInfo, value: datetime) -> bool:
    try:
        known = ZoneInfo(zone.key)
    except (KeyError, OSError, TypeError, ValueError):
        return False
    return known is zone or value.replace(tzinfo=known).utcoffset() == value.utcoffset()


_LEAVES: dict[type, Callable[[Any], Json]] = {
    type(None): _encode_as_is,
    bool: _encode_as_is,
    int: _encode_int,
    float: _encode_float,
    str: _encode_text,
    bytes: _encode_bytes,
    datetime: _encode_datetime,
    UUID: _encode_uuid,
    Decimal: _encode_decimal,
}
_CONTAINERS: dict[type, Callable[[Any, int], Json]] = {
    list: _encode_list,
    tuple: _encode_tuple,
    dict: _encode_dict,
}


# --- refusing: the same walk once more, slowly, with the path

_TOO_DEEP = f"is nested too deeply: at most {MAX_DEPTH} containers inside each other can be stored"
_PATH_LIMIT = 200  # characters
_KEY_LIMIT = 60  # characters


class _Unstorable(NamedTuple):
    path: str
    value: object
    why: str


def _find_refused(value: object, path: str, above: list[object]) -> _Unstorable | None:
    """Find the first part of `value` that cannot be stored; `above` are the containers it is in."""
    if type(value) not in _CONTAINERS:
        try:
            _encode(value, 0)
        except _Refused as refused:
            return _Unstorable(path, value, str(refused))
        return None
    if any(value is container for container in above):
        return _Unstorable(path, value, "contains itself; what is stored is a tree")
    if len(above) >= MAX_DEPTH:
        return _Unstorable(path, value, _TOO_DEEP)
    inside = [*above, value]
    found = (_find_refused(part, where, inside) for where, part in _parts(value, path))
    return next((one for one in found if one is not None), None)


def _parts(container: Any, path: str) -> Iterator[tuple[str, object]]:
    if type(container) is dict:
        for key, item in container.items():
            where = _cut(f"{path}{_key_path(key, path)}", _PATH_LIMIT)
            if type(key) is not str:
                yield f"{where} (the key)", key
            yield where, item
    else:
        for number, item in enumerate(container):
            yield _cut(f"{path}[{number}]", _PATH_LIMIT), item


def _key_path(key: object, path: str) -> str:
    if type(key) is str and key.isidentifier():
        return f".{key}" if path else key
    try:
        return f"[{_cut(repr(key), _KEY_LIMIT)}]"
    except Exception:  # a stranger's repr, or an int too long to be shown
        return f"[a {_name(type(key))}]"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit // 2) :]}"


def _not_storable(kind: type) -> str:
    base = next((base.__name__ for base in (*_LEAVES, *_CONTAINERS) if issubclass(kind, base)), None)
    if base is not None:
        hint = f"a subclass of {base} would come back as a plain {base}, so convert it first"
    else:
        hint = f"can be stored: {STORABLE}"
    return f"is of the type {_name(kind)}, which the log cannot give back as it was; {hint}"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# --- decoding


class _BadTagError(ValueError):
    """Raised when a tag is unknown or malformed."""


def _decode(stored: Json) -> Any:
    kind = type(stored)
    if kind is dict:
        if _TAG in stored:  # type: ignore[operator]
            return _decode_tagged(stored)  # type: ignore[arg-type]
        return {key: _decode(item) for key, item in stored.items()}  # type: ignore[union-attr]
    if kind is list:
        return [_decode(item) for item in stored]  # type: ignore[union-attr]
    return stored


def _decode_tagged(stored: dict[str, Any]) -> object:
    tag = stored[_TAG]
    decoder = _DECODERS.get(tag) if type(tag) is str else None
    if decoder is None:
        raise _BadTagError(
            f"unknown tag {_cut(repr(tag), _KEY_LIMIT)} in a stored value: damaged, or of a newer perdure"
        )
    try:
        return decoder(**{key: item for key, item in stored.items() if key != _TAG})
    except _BadTagError:
        raise
    except Exception as error:
        raise _BadTagError(f"malformed tag {tag!r} in a stored value: {error}") from error


def _text(v: object) -> str:
    if type(v) is not str:
        raise TypeError("text expected")
    return v


def _list(v: object) -> list[Any]:
    if type(v) is not list:
        raise TypeError("a list expected")
    return v


def _decode_bytes(v: str) -> bytes:
    return a2b_base64(_text(v), strict_mode=True)


def _decode_text(v: str) -> str:
    return _decode_bytes(v).decode("utf-8", "surrogatepass")


def _decode_int(v: str) -> int:
    return int(_text(v), 16)


def _decode_float(v: str) -> float:
    if v in ("inf", "-inf", "nan"):
        return float(v)
    number: float = struct.unpack(">d", bytes.fromhex(v))[0]
    return number


def _decode_tuple(v: list[Any]) -> tuple[Any, ...]:
    return tuple([_decode(item) for item in _list(v)])


def _decode_dict(v: list[Any]) -> dict[Any, Any]:
    result = {_decode(key): _decode(item) for key, item in _list(v)}
    if len(result) != len(v):
        raise ValueError("a key occurs twice")
    return result


def _decode_uuid(v: str) -> UUID:
    return UUID(_text(v))


def _decode_decimal(v: str) -> Decimal:
    return parse_decimal(_text(v))


def _decode_datetime(v: str, zone: str | None = None, name: Json = None, fold: int = 0) -> datetime:
    moment = datetime.fromisoformat(v).replace(fold=fold)
    if zone is not None:
        return moment.replace(tzinfo=ZoneInfo(zone))
    offset = moment.utcoffset()
    if name is not None and offset is not None:
        return moment.replace(tzinfo=timezone(offset, _decode(name)))
    return moment


_DECODERS: dict[str, Callable[..., object]] = {
    "bytes": _decode_bytes,
    "datetime": _decode_datetime,
    "decimal": _decode_decimal,
    "dict": _decode_dict,
    "float": _decode_float,
    "int": _decode_int,
    "str": _decode_text,
    "tuple": _decode_tuple,
    "uuid": _decode_uuid,
}
