"""Encoded values as text: JSON that every database, shell and person can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeAlias

Json: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None


def _writer(*, sort_keys: bool) -> Callable[[Json], str]:
    """Give what `JSONEncoder.encode` does, with its C encoder made once and not at every call, where there is one."""
    encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False, sort_keys=sort_keys)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    text = json.encoder.encode_basestring_ascii
    chunks = make(None, encoder.default, text, None, ":", ",", sort_keys, False, False)
    return lambda stored: "".join(chunks(stored, 0))


_write = _writer(sort_keys=False)
_write_sorted = _writer(sort_keys=True)
_read = json.JSONDecoder().raw_decode


def dumps(stored: Json) -> str:
    """Write an encoded value as compact ASCII JSON."""
    return _write(stored)


def loads(text: str | bytes) -> Json:
    """Read JSON text, the inverse of `dumps`. Raises `ValueError` for anything else."""
    try:
        text = text if isinstance(text, str) else text.decode()
        stored: Json
        stored, end = _read(text)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None
    if end != len(text):
        raise ValueError(f"the JSON text ends at character {end} of {len(text)}")
    return stored


def digest(stored: Json) -> str:
    """Return 16 hex digits that tell encoded values apart, whatever the order of their dicts.

    The same in every process and for ever: logs hold it. Two values of one digest are as good as equal, not
    proven to be.
    """
    return blake2b(canonical(stored).encode("ascii"), digest_size=8).hexdigest()


def canonical(stored: Json) -> str:
    """Write an encoded value so that the order of its dicts, tagged ones too, makes no difference."""
    text = _write_sorted(stored)
    if '"$":"dict"' in text:  # a tagged dict is a list of pairs, which no JSON writer sorts
        text = _write_sorted(_with_sorted_pairs(stored))
    return text


def in_order(items: list[Json]) -> list[Json]:
    """Sort encoded values by their text: the order of a set, which has none, is the same in every process."""
    return sorted(items, key=lambda item: (canonical(item), _write(item)))


def _with_sorted_pairs(stored: Json) -> Json:
    if isinstance(stored, list):
        return [_with_sorted_pairs(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    result: dict[str, Any] = {key: _with_sorted_pairs(item) for key, item in stored.items()}
    if result.get("$") == "dict":
        result["v"] = sorted(result["v"], key=lambda pair: [_write_sorted(part) for part in pair])
    return result
