"""Values as people and other programs read them: the log's encoding turned into plain JSON, or into a text in one line.

Neither can be turned back. What the log holds exactly is in a history.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from domain.leaves import TAG
from domain.values import Json, decode


def plain_json(stored: Json) -> Json:
    """Turn an encoded value into plain JSON: containers into lists and objects, other values into text.

    >>> plain_json({"$": "tuple", "v": [27, {"$": "obj", "t": "Page", "v": {"url": "a"}}]})
    [27, {'url': 'a'}]
    >>> plain_json([{"$": "timedelta", "v": [1, 90, 0]}, {"$": "int", "v": "0xff"}, {"$": "float", "v": "-inf"}])
    ['P1DT90S', 255, '-inf']
    """
    if isinstance(stored, list):
        return [plain_json(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    if TAG not in stored:
        return {key: plain_json(item) for key, item in stored.items()}
    turn = _PLAIN.get(str(stored[TAG]))
    if turn is not None:
        with suppress(Exception):  # what is damaged, or of a newer perdure, is shown as it is
            return turn(stored)
    return stored


def value_text(stored: Json) -> str:
    """Give an encoded value as a text in one line: JSON, but that objects and enums have the names of their classes.

    >>> value_text([{"$": "obj", "t": "shop:Page", "v": {"url": "a"}}, {"$": "enum", "t": "Colour", "v": "RED"}, None])
    '[Page(url="a"), Colour.RED, null]'
    """
    if isinstance(stored, list):
        return f"[{', '.join(map(value_text, stored))}]"
    if not isinstance(stored, dict):
        return _dumps(stored)
    tag = stored.get(TAG)
    if TAG not in stored:
        return f"{{{', '.join(f'{_dumps(key)}: {value_text(item)}' for key, item in stored.items())}}}"
    with suppress(Exception):  # as above
        if tag == "obj":
            return f"{_class_name(stored)}({', '.join(f'{k}={value_text(v)}' for k, v in _fields(stored).items())})"
        if tag == "enum":
            names = stored["v"] if isinstance(stored["v"], list) else [stored["v"]]
            return "|".join(f"{_class_name(stored)}.{name}" for name in names or ["0"])
        if tag in _LISTS:
            return value_text(stored["v"])
        if tag == "dict":
            return f"{{{', '.join(f'{value_text(key)}: {value_text(item)}' for key, item in stored['v'])}}}"
    return _dumps(plain_json(stored))


def counted(count: int, one: str, many: str = "") -> str:
    """Give a number of things, with the noun in its right form.

    >>> counted(1, "task"), counted(2000, "task"), counted(0, "entity", "entities")
    ('1 task', '2,000 tasks', '0 entities')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def _dumps(plain: Json) -> str:
    return json.dumps(plain, ensure_ascii=False)


def _class_name(stored: dict[str, Any]) -> str:
    return str(stored["t"]).replace(":", ".").rpartition(".")[2]


def _fields(stored: dict[str, Any]) -> dict[str, Json]:
    """Give the fields of an object, with the extras of a model."""
    extras = stored.get("x")
    return {**stored["v"], **(extras if isinstance(extras, dict) and TAG not in extras else {})}


def _from_list(stored: dict[str, Any]) -> Json:
    return [plain_json(item) for item in stored["v"]]


def _from_object(stored: dict[str, Any]) -> Json:
    return {name: plain_json(item) for name, item in _fields(stored).items()}


def _from_dict(stored: dict[str, Any]) -> Json:
    """Make an object with text keys; pairs, where two keys would have the same text."""
    pairs = [(plain_json(key), plain_json(item)) for key, item in stored["v"]]
    found = {key if isinstance(key, str) else _dumps(key): item for key, item in pairs}
    return found if len(found) == len(pairs) else [list(pair) for pair in pairs]


def _from_enum(stored: dict[str, Any]) -> Json:
    name: Json = stored["v"]
    return name


def _from_text(stored: dict[str, Any]) -> Json:
    return str(decode(stored)).encode("utf-8", "backslashreplace").decode()


def _as_written(stored: dict[str, Any]) -> Json:
    return str(stored["v"])


def _from_moment(stored: dict[str, Any]) -> Json:
    moment: Any = decode(stored)
    return str(moment.isoformat())


def _from_int(stored: dict[str, Any]) -> Json:
    number = int(stored["v"], 16)
    try:
        str(number)
    except ValueError:  # longer than Python writes in digits
        return str(stored["v"])
    return number


def _from_float(stored: dict[str, Any]) -> Json:
    return str(decode(stored))


def _from_path(stored: dict[str, Any]) -> Json:
    return plain_json(stored["v"])


def _from_timedelta(stored: dict[str, Any]) -> Json:
    """Write a length of time as ISO 8601 does, in days and seconds."""
    length = timedelta(*stored["v"])
    sign, length = ("-", -length) if length < timedelta(0) else ("", length)
    parts = f"{length.microseconds:06}".rstrip("0")
    seconds = f"{length.seconds}{'.' if parts else ''}{parts}"
    days = f"{length.days}D" if length.days else ""
    return f"{sign}P{days}T{seconds}S" if seconds != "0" or not days else f"{sign}P{days}"


_LISTS = ("tuple", "set", "frozenset")
_PLAIN: dict[str, Callable[[dict[str, Any]], Json]] = {
    **dict.fromkeys(_LISTS, _from_list),
    **dict.fromkeys(("date", "datetime", "time"), _from_moment),
    **dict.fromkeys(("decimal", "uuid", "bytes"), _as_written),
    "obj": _from_object,
    "dict": _from_dict,
    "enum": _from_enum,
    "str": _from_text,
    "int": _from_int,
    "float": _from_float,
    "path": _from_path,
    "timedelta": _from_timedelta,
}
"""How a tagged value becomes plain."""
