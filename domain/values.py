"""Which values a log can hold, and how.

A value is stored by its exact type and comes back equal and of the same type, or it is refused with its path. Plain
JSON is stored as it is; everything else as a tagged object, `{"$":"bytes","v":"…"}`. A dict that has a key `$`, or a
key that is no plain text, is stored as `{"$":"dict","v":[[key, value], …]}`, so that no payload is taken for a tag.

A set is a list in the order of its items' text. Values of users' classes are stored by the name under which
`domain.types` knows the class, an enum's member by its name, combined flags by all of theirs:

    {"$":"enum","t":"Colour","v":"RED"}                       {"$":"enum","t":"Access","v":["READ","WRITE"]}
    {"$":"obj","t":"Invoice","v":{"number":7,"lines":[]}}     … "n":2, the version, where it is above 1

What a pydantic model has beside its fields follows where there is any: its extras (`x`), its private attributes (`p`),
and which names were set (`s`), where those are not all that are there.

Decoding looks names up in closed tables, never imports what a row names, and runs no code of users' classes but their
upgrade functions, and the hash of what is a key or in a set. Two parts that were one object come back as two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from domain import types
from domain.conversion import convert
from domain.errors import UnknownTypeError, UnstorableValueError
from domain.json_text import Json, digest, dumps, in_order, loads
from domain.leaves import (
    DECODERS,
    ENCODERS,
    TAG,
    Refused,
    checked_list,
    checked_text,
    encode_text,
    is_utf8,
    tagged,
    type_name,
)
from domain.structures import EnumShape, Parts, has_shape

__all__ = ["MAX_DEPTH", "STORABLE", "Json", "convert", "decode", "digest", "dumps", "encode", "loads"]

MAX_DEPTH = 128
"""How many containers may be inside each other; each takes up to three levels of JSON on a parser's stack."""

STORABLE = (
    "None, bool, int, float, str, bytes, list, dict, tuple, set, frozenset, datetime, date, time, timedelta, UUID, "
    "Decimal and paths; enums, dataclasses, named tuples and pydantic models that are known by name"
)


def encode(value: object) -> Json:
    """Encode a value for the log.

    The result is fresh: it shares no container with `value`. Only exact types are taken; a subclass that is not known
    itself is refused, because it could not come back as what it was.

    Raises `UnstorableValueError`, with the path and the type of what cannot be stored, for any other type, for
    containers that hold themselves and for more than `MAX_DEPTH` of them inside each other.
    """
    found = None
    try:
        return _encode(value, 0)
    except Refused as refused:
        why = str(refused)
        with suppress(RuntimeError):
            found = _find_refused(value, "", [])
    except RuntimeError as error:  # no stack left for it, or another thread changed it meanwhile
        why = f"cannot be read: {error}"
    found = found or _Unstorable("", value, why)
    path = found.path or "value"
    raise UnstorableValueError(f"{path} {found.why}", path=path, type_name=type_name(type(found.value)))


def decode(stored: Json) -> object:
    """Give back the value that was encoded, each time as a fresh object.

    Raises `UnknownTypeError`, a `ValueError`, for a class, member, field or version that this process has not, and
    other `ValueError`s, which name the tag, for one that is unknown here or malformed.
    """
    try:
        return _decode(stored)
    except RecursionError:
        raise ValueError("the stored value is nested too deeply") from None


# --- encoding: quick, and blind for paths; what is refused is looked for in a second walk


def _encode(value: Any, depth: int) -> Json:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else encode_text(value)
    encoder = ENCODERS.get(kind)
    if encoder is not None:
        return encoder(value)
    container = _CONTAINERS.get(kind)
    if container is None:
        return _encode_known(value, kind, depth)
    if depth >= MAX_DEPTH:
        raise Refused(_TOO_DEEP)
    return container(value, depth + 1)


def _encode_list(value: list[Any], depth: int) -> Json:
    return [_encode(item, depth) for item in value]


def _encode_tuple(value: tuple[Any, ...], depth: int) -> Json:
    return tagged("tuple", [_encode(item, depth) for item in value])


def _encode_set(value: set[Any], depth: int) -> Json:
    return tagged("set", in_order([_encode(item, depth) for item in value]))


def _encode_frozenset(value: frozenset[Any], depth: int) -> Json:
    return tagged("frozenset", in_order([_encode(item, depth) for item in value]))


def _encode_dict(value: dict[Any, Any], depth: int) -> Json:
    plain = {}
    for key, item in value.items():
        if type(key) is not str or key == TAG or not (key.isascii() or is_utf8(key)):
            return tagged("dict", [[_encode(k, depth), _encode(v, depth)] for k, v in value.items()])
        plain[key] = _encode(item, depth)
    return plain


def _encode_known(value: Any, kind: type, depth: int) -> Json:
    known = types.of_class(kind)
    if known is None:
        raise Refused(_not_storable(kind))
    if isinstance(known.shape, EnumShape):
        return {TAG: "enum", "t": known.name, "v": known.shape.take_apart(value)}
    if depth >= MAX_DEPTH:
        raise Refused(_TOO_DEEP)
    parts = known.shape.take_apart(value)
    result: dict[str, Any] = {TAG: "obj", "t": known.name}
    if known.version > 1:
        result["n"] = known.version
    result["v"] = {name: _encode(item, depth + 1) for name, item in parts.fields.items()}
    for key, beside in zip("xps", parts[1:], strict=True):
        if beside is not None:
            result[key] = _encode(beside, depth + 1)
    return result


_CONTAINERS: dict[type, Callable[[Any, int], Json]] = {
    list: _encode_list,
    tuple: _encode_tuple,
    dict: _encode_dict,
    set: _encode_set,
    frozenset: _encode_frozenset,
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
    try:
        parts = _parts(value, path)
        if parts is None:
            _encode(value, 0)
            return None
    except Refused as refused:
        return _Unstorable(path, value, str(refused))
    if any(value is container for container in above):
        return _Unstorable(path, value, "contains itself; what is stored is a tree")
    if len(above) >= MAX_DEPTH:
        return _Unstorable(path, value, _TOO_DEEP)
    inside = [*above, value]
    found = (_find_refused(part, where, inside) for where, part in parts)
    return next((one for one in found if one is not None), None)


def _parts(value: Any, path: str) -> Iterator[tuple[str, object]] | None:
    """Give what a container or a structure holds, with the paths; None for what holds nothing."""
    kind = type(value)
    if kind is dict:
        return _items_of_dict(value, path)
    if kind in _CONTAINERS:
        return _items(value, path, is_set=kind in (set, frozenset))
    if kind in ENCODERS:
        return None
    known = types.of_class(kind)
    if known is None or isinstance(known.shape, EnumShape):
        return None
    return _items_of_dict(known.shape.take_apart(value).named(), path)


def _items(container: Any, path: str, *, is_set: bool) -> Iterator[tuple[str, object]]:
    for number, item in enumerate(container):
        place = f"{{{_shown(item)}}}" if is_set else f"[{number}]"
        yield _cut(f"{path}{place}", _PATH_LIMIT), item


def _items_of_dict(container: dict[Any, Any], path: str) -> Iterator[tuple[str, object]]:
    for key, item in container.items():
        where = _cut(f"{path}{_key_path(key, path)}", _PATH_LIMIT)
        if type(key) is not str:
            yield f"{where} (the key)", key
        yield where, item


def _key_path(key: object, path: str) -> str:
    if type(key) is str and key.isidentifier():
        return f".{key}" if path else key
    return f"[{_shown(key)}]"


def _shown(key: object) -> str:
    try:
        return _cut(repr(key), _KEY_LIMIT)
    except Exception:  # a stranger's repr, or an int too long to be shown
        return f"a {type_name(type(key))}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit // 2) :]}"


def _not_storable(kind: type) -> str:
    if has_shape(kind):
        return (
            f"is of the type {type_name(kind)}, which the log does not know by name: annotate it on a step or agent, "
            f"or register({kind.__name__}){types.untold()}"
        )
    base = next((base.__name__ for base in (*ENCODERS, *_CONTAINERS) if issubclass(kind, base)), None)
    if base is not None:
        hint = f"a subclass of {base} would come back as a plain {base}, so convert it first"
    else:
        hint = f"can be stored: {STORABLE}"
    return f"is of the type {type_name(kind)}, which the log cannot give back as it was; {hint}"


# --- decoding


class _BadTagError(ValueError):
    """Raised when a tag is unknown or malformed."""


def _decode(stored: Json) -> Any:
    kind = type(stored)
    if kind is dict:
        if TAG in stored:  # type: ignore[operator]
            return _decode_tagged(stored)  # type: ignore[arg-type]
        return {key: _decode(item) for key, item in stored.items()}  # type: ignore[union-attr]
    if kind is list:
        return [_decode(item) for item in stored]  # type: ignore[union-attr]
    return stored


def _decode_tagged(stored: dict[str, Any]) -> object:
    tag = stored[TAG]
    decoder = _DECODERS.get(tag) if type(tag) is str else None
    if decoder is None:
        raise _BadTagError(
            f"unknown tag {_cut(repr(tag), _KEY_LIMIT)} in a stored value: damaged, or of a newer perdure"
        )
    try:
        return decoder(**{key: item for key, item in stored.items() if key != TAG})
    except (_BadTagError, UnknownTypeError):
        raise
    except Exception as error:
        raise _BadTagError(f"malformed tag {tag!r} in a stored value: {error}") from error


def _decode_tuple(v: list[Any]) -> tuple[Any, ...]:
    return tuple([_decode(item) for item in checked_list(v)])


def _decode_set(v: list[Any]) -> set[Any]:
    result = {_decode(item) for item in checked_list(v)}
    if len(result) != len(v):
        raise ValueError("two of its items are equal")
    return result


def _decode_frozenset(v: list[Any]) -> frozenset[Any]:
    return frozenset(_decode_set(v))


def _decode_dict(v: list[Any]) -> dict[Any, Any]:
    result = {_decode(key): _decode(item) for key, item in checked_list(v)}
    if len(result) != len(v):
        raise ValueError("a key occurs twice")
    return result


def _decode_enum(t: str, v: Json) -> object:
    return types.of_name(checked_text(t)).member(v)


def _decode_obj(t: str, v: dict[str, Any], n: int = 1, x: Json = None, p: Json = None, s: Json = None) -> object:
    if type(v) is not dict or type(n) is not int:
        raise TypeError("fields and the number of a version expected")
    known = types.of_name(checked_text(t))
    fields = {name: _decode(item) for name, item in v.items()}
    return known.revive(Parts(fields, _decode(x), _decode(p), _decode(s)), n)


_DECODERS: dict[str, Callable[..., object]] = {
    **DECODERS,
    "dict": _decode_dict,
    "enum": _decode_enum,
    "frozenset": _decode_frozenset,
    "obj": _decode_obj,
    "set": _decode_set,
    "tuple": _decode_tuple,
}
