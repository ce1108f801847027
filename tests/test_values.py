"""Every value comes back equal and of the same type, or is refused with its path."""

import enum
import math
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from domain.errors import UnknownTypeError, UnstorableValueError
from domain.values import MAX_DEPTH, decode, digest, dumps, encode, loads

NEW_YORK = ZoneInfo("America/New_York")
ZONES = ["America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]


def opaque(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Hide a strategy's text from hypothesis, which writes it out at full length, level by level."""

    @st.composite
    def part(draw: st.DrawFn) -> Any:
        return draw(strategy)

    return part()


texts = st.text(st.characters(), max_size=12) | st.text(st.sampled_from("a$\x00\ud83d\ude00\u0301é😀"), max_size=6)
ints = st.integers() | st.integers(0, 9000).flatmap(lambda n: st.sampled_from([1 << n, -(1 << n), (1 << n) - 1]))
bits = st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack(">d", raw)[0])
floats = st.floats() | bits | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan])
offsets = st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59)).map(timezone)
named = st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)), texts)
zones = st.sampled_from(ZONES).map(ZoneInfo)
datetimes = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.datetimes(),
    st.none() | st.just(UTC) | offsets | named | zones,
    st.sampled_from([0, 1]),
)
times = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.times(),
    st.none() | st.just(UTC) | offsets | named | zones,
    st.sampled_from([0, 1]),
)
paths = st.builds(
    lambda kind, text: kind(text),
    st.sampled_from([PosixPath, PurePosixPath, PureWindowsPath]),
    texts | st.sampled_from(["", "/", "//a/../b", "a/./b/", "C:\\x", "c:a", "\\\\host\\share\\x", "..", "~"]),
).filter(lambda path: type(path)(str(path)).parts == path.parts)
special = st.sampled_from(["-0", "1.10", "1E+400", "NaN", "-NaN7", "sNaN", "-sNaN123", "Infinity", "-Infinity"])
decimals = st.decimals() | special.map(Decimal)
hashable = st.recursive(
    opaque(
        st.none()
        | st.booleans()
        | ints
        | floats
        | texts
        | st.binary(max_size=9)
        | st.uuids()
        | datetimes
        | st.dates()
        | times
        | st.timedeltas()
        | paths
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
lookalikes = st.sampled_from(
    [
        {"$": "bytes", "v": "AAEC"},
        {"$": "dict", "v": [["a", 1]]},
        {"$": None},
        {"$": ["list"]},
        {"v": 1, "$": "no such tag"},
        {"a": {"$": {"$": "tuple", "v": []}}},
        ["$", "v"],
    ]
)
values = st.recursive(
    opaque(hashable | decimals | lookalikes),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(texts | st.just("$"), inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.sets(hashable, max_size=4)
    ),
    max_leaves=12,
)


def told(value: Any) -> Any:
    """Tell all that makes a value what it is, as something that `==` compares without mercy."""
    kind = type(value)
    if kind in (list, tuple):
        return kind, [told(item) for item in value]
    if kind is dict:
        return kind, [(told(key), told(item)) for key, item in value.items()]
    if kind in (set, frozenset):
        return kind, sorted([told(item) for item in value], key=repr)
    if kind is float:
        return kind, struct.pack(">d", value)
    if kind is Decimal:
        return kind, value.as_tuple()
    if issubclass(kind, PurePath):
        return kind, str(value), value.parts
    if kind in (datetime, time):
        zone = value.tzinfo
        about = (type(zone), getattr(zone, "key", None), value.utcoffset(), value.tzname(), value.fold)
        return kind, value.replace(tzinfo=None, fold=0).isoformat(), about
    return kind, value


def through_the_log(value: object) -> Any:
    text = dumps(encode(value))
    assert text.isascii()
    return decode(loads(text))


@given(values)
def test_a_value_comes_back_equal_and_of_the_same_type(value: object) -> None:
    assert told(through_the_log(value)) == told(value)


@given(values)
@example({2: {"$": 1}, "a": [(), {}]})
def test_encoding_is_the_same_for_what_came_back(value: object) -> None:
    assert dumps(encode(through_the_log(value))) == dumps(encode(value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**63 + 1,
        10**5000,
        -(10**5000),
        0.1 + 0.2,
        -0.0,
        bytes(range(256)),
        "a\ud83db\0ce\u0301\U0001f469\u200d\U0001f4bb\u202eabc",
        "\ud83d\ude00",
        "\U0001f600",
        {"\ud83d": 1, "\ud83d\ude00": 2, "😀": 3},
        (1, (2, []), ()),
        {1: "int", "1": "text", None: 0, (1, 2): [b"x"]},
        {True: 1, 2.5: 2},
        Decimal("1.10"),
        Decimal("-sNaN123"),
        UUID(int=7),
        datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK),
        datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1),
        datetime(2026, 11, 1, 1, 30, fold=1),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(seconds=-1, microseconds=-1))),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1))),
        time(1, tzinfo=timezone(timedelta(microseconds=-999_999), "nearly")),
        datetime(9999, 12, 31, tzinfo=timezone(timedelta(hours=1), "CET \ud83d")),
        date(2026, 11, 1),
        time(1, 30, 0, 1, fold=1),
        time(1, 30, tzinfo=NEW_YORK),
        time(1, 30, tzinfo=timezone(timedelta(hours=-1, microseconds=7), "left")),
        timedelta.min,
        timedelta.max,
        timedelta(days=-1, microseconds=1),
        Path("a/../b \udcff"),
        PurePosixPath("//a"),
        PureWindowsPath("C:\\a/b"),
        {"a", "\ud83d", (1, 2), frozenset({1, b"x"}), None},
        {True, 2, 2.5},
        {frozenset(): {frozenset({frozenset()})}},
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_awkward_value_comes_back(value: object) -> None:
    assert told(through_the_log(value)) == told(value)


def test_the_two_half_past_ones_of_new_york_stay_apart() -> None:
    moments = [datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=fold) for fold in (0, 1)]
    back = [moment.astimezone(UTC).hour for moment in through_the_log(moments)]
    assert back == [5, 6]


def test_hostile_text_keeps_its_length() -> None:
    text = "a\ud83db\0ce\u0301\U0001f469\u200d\U0001f4bb\u202eabc"
    assert len(through_the_log(text)) == len(text) == 14


def test_plain_json_is_stored_without_tags() -> None:
    value = {"items": [1, 2.5, "é\0", None, True, {}], "": {"a": []}}
    assert encode(value) == value


STORED = [
    (Decimal("1.10"), '{"$":"decimal","v":"1.10"}'),
    (
        datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1),
        '{"$":"datetime","v":"2026-11-01T01:30:00","zone":"America/New_York","fold":1}',
    ),
    (datetime(2026, 11, 1, tzinfo=UTC), '{"$":"datetime","v":"2026-11-01T00:00:00+00:00"}'),
    (date(2026, 11, 1), '{"$":"date","v":"2026-11-01"}'),
    (time(1, 30, tzinfo=timezone(timedelta(0), "Z")), '{"$":"time","v":"01:30:00+00:00","name":"Z"}'),
    (timedelta(-1, 7), '{"$":"timedelta","v":[-1,7,0]}'),
    (PurePosixPath("a/b"), '{"$":"path","t":"PurePosixPath","v":"a/b"}'),
    ({2, 10, "b", (1,)}, '{"$":"set","v":["b",10,2,{"$":"tuple","v":[1]}]}'),
    (frozenset(), '{"$":"frozenset","v":[]}'),
]


@pytest.mark.parametrize(("value", "text"), STORED)
def test_a_stored_form_never_changes(value: object, text: str) -> None:
    assert dumps(encode(value)) == text


@given(values)
def test_an_encoded_value_shares_nothing_with_the_original(value: object) -> None:
    def containers(part: Any) -> list[int]:
        inside = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
        own = [id(part)] if isinstance(part, dict | list) else []
        return own + [one for item in inside for one in containers(item)]

    stored = encode(value)
    assert not set(containers(value)) & set(containers(stored))
    assert not set(containers(stored)) & set(containers(decode(stored)))


@pytest.mark.parametrize("limit", [0, 640, 4300])
def test_an_int_of_any_size_is_stored_whatever_the_limit_on_digits(limit: int) -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(limit)
    try:
        for size in (2047, 2048, 2049, 20000):
            assert through_the_log([2**size, -(2**size)]) == [2**size, -(2**size)]
    finally:
        sys.set_int_max_str_digits(before)


def test_the_ambient_decimal_context_changes_nothing() -> None:
    value = Decimal("1.23456789012345678901234567890E+40")
    with localcontext() as context:
        context.prec, context.capitals = 3, 0
        context.clear_traps()
        assert dumps(encode(value)) == '{"$":"decimal","v":"1.23456789012345678901234567890E+40"}'
        assert told(through_the_log(value)) == told(value)
        with pytest.raises(ValueError, match="malformed tag 'decimal'"):
            decode({"$": "decimal", "v": "no number"})


# --- what is refused


class Colour(str, enum.Enum):  # noqa: UP042  the older spelling is the trap
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Seconds(float):
    pass


class Pair(tuple):
    pass


class Text(str):
    pass


class LocalZone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=1)


REFUSED = [
    (threading.Lock(), "_thread.lock"),
    (Colour.RED, "test_values.Colour"),
    (Size.BIG, "test_values.Size"),
    (Text("a"), "test_values.Text"),
    (Pair((1, 2)), "test_values.Pair"),
    (Seconds(1), "test_values.Seconds"),
    (OrderedDict(a=1), "collections.OrderedDict"),
    (bytearray(b"a"), "bytearray"),
    (1j, "complex"),
    (range(3), "range"),
    (int, "type"),
    (datetime(2026, 1, 1, tzinfo=LocalZone()), "datetime.datetime"),
    (time(1, tzinfo=LocalZone()), "datetime.time"),
]


@pytest.mark.parametrize(("value", "type_name"), REFUSED, ids=[name for _, name in REFUSED])
def test_what_cannot_come_back_is_refused_with_path_and_type(value: object, type_name: str) -> None:
    for holder, path in (
        (value, "value"),
        ({"items": [0, 1, {"lock": value}]}, "items[2].lock"),
        ({"a b": [0, 1, 2, value]}, "['a b'][3]"),
        ((1, {7: value}), "[1][7]"),
        ({"$": {"a": value}}, "['$'].a"),
    ):
        with pytest.raises(UnstorableValueError) as caught:
            encode(holder)
        assert caught.value.path == path
        assert caught.value.type_name.endswith(type_name)
        assert str(caught.value).startswith(f"{path} is ")


def test_a_refusal_says_what_can_be_stored() -> None:
    with pytest.raises(UnstorableValueError, match=r"^items\[2\] is of the type _thread\.lock.*pydantic models"):
        encode({"items": [1, 2, threading.Lock()]})
    with pytest.raises(UnstorableValueError, match="a subclass of str would come back as a plain str"):
        encode(Text("a"))
    with pytest.raises(
        UnstorableValueError, match=r"Colour, which the log does not know by name: annotate it on a step"
    ):
        encode(Colour.RED)
    with pytest.raises(UnstorableValueError, match=r"LocalZone, cannot be stored; use a ZoneInfo with a key"):
        encode(datetime(2026, 1, 1, tzinfo=LocalZone()))


def test_a_refusal_pickles_with_its_facts() -> None:
    with pytest.raises(UnstorableValueError) as caught:
        encode([Size.BIG])
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.path, copy.type_name) == (
        str(caught.value),
        caught.value.path,
        caught.value.type_name,
    )


def test_a_key_is_refused_like_a_value() -> None:
    with pytest.raises(UnstorableValueError) as caught:
        encode({"by size": {Size.BIG: 1}})
    assert "(the key)" in caught.value.path
    with pytest.raises(UnstorableValueError, match="a subclass of str"):
        encode({Text("a"): 1})
    with pytest.raises(UnstorableValueError) as caught:
        encode({"kinds": {Size.BIG}})
    assert caught.value.path == "kinds{<Size.BIG: 3>}"
    with pytest.raises(UnstorableValueError) as caught:
        encode([{(1, Size.BIG)}])
    assert caught.value.path == "[0]{(1, <Size.BIG: 3>)}[1]"


def test_a_key_that_cannot_be_shown_still_has_a_path() -> None:
    with pytest.raises(UnstorableValueError) as caught:
        encode({10**5000: object()})
    assert caught.value.path == "[a int]"
    with pytest.raises(UnstorableValueError) as caught:
        encode({"k" * 10_000: {"x y" * 10_000: object()}})
    assert len(caught.value.path) < 300


@pytest.mark.parametrize("kind", [list, dict, tuple])
def test_a_container_that_holds_itself_is_refused_where_it_does(kind: type) -> None:
    inner: list[object] = []
    inner.append({"back": inner} if kind is dict else (inner,) if kind is tuple else [inner])
    with pytest.raises(UnstorableValueError, match="contains itself") as caught:
        encode({"tree": inner})
    assert caught.value.path == ("tree[0].back" if kind is dict else "tree[0][0]")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda v: [v],
        lambda v: (v,),
        lambda v: {"a": v},
        lambda v: {1: v},
        lambda v: {"$": v},
    ],
)
def test_nesting_is_stored_up_to_the_limit_and_refused_beyond(wrap: Any) -> None:
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    assert told(through_the_log(value)) == told(value)
    assert len(digest(encode(value))) == 16
    with pytest.raises(UnstorableValueError, match=f"at most {MAX_DEPTH} containers"):
        encode(wrap(value))
    for _ in range(100_000):
        value = wrap(value)
    with pytest.raises(UnstorableValueError, match=f"at most {MAX_DEPTH} containers"):
        encode(value)
    while isinstance(value, list | tuple | dict):  # take it apart by hand: its own end would be deep too
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]


def test_frozen_sets_are_stored_inside_each_other_up_to_the_limit() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = frozenset([value])
    stored = encode(value)
    assert len(digest(stored)) == 16
    assert encode(decode(stored)) == stored
    with pytest.raises(UnstorableValueError, match=f"at most {MAX_DEPTH} containers"):
        encode([value])


def test_a_path_whose_text_is_another_path_is_refused() -> None:
    path = PureWindowsPath(".", "c:a") if PureWindowsPath("./c:a").parts == ("c:", "a") else PureWindowsPath("./c:a")
    if PureWindowsPath(str(path)).parts == path.parts:
        pytest.skip("this Python writes such a path so that it can be read")
    with pytest.raises(UnstorableValueError, match="is that of another path"):
        encode(path)


def test_little_stack_left_is_an_error_of_the_value() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = [value]

    def near_the_end() -> None:
        try:
            near_the_end()
        except RecursionError:
            encode(value)

    with pytest.raises(UnstorableValueError, match=r"^value cannot be read: maximum recursion depth"):
        near_the_end()


def test_a_zone_that_is_not_the_one_of_its_key_is_refused() -> None:
    with open(os.path.join(zone_folder(), "Asia/Kathmandu"), "rb") as file:
        for key in ("Europe/Berlin", "No/Where", None):
            file.seek(0)
            with pytest.raises(UnstorableValueError, match="time zone"):
                encode(datetime(2026, 1, 1, tzinfo=ZoneInfo.from_file(file, key=key)))
            file.seek(0)
            with pytest.raises(UnstorableValueError, match="is a time whose time zone"):
                encode(time(1, tzinfo=ZoneInfo.from_file(file, key=key)))
    own = ZoneInfo.no_cache("Europe/Berlin")
    assert through_the_log(datetime(2026, 1, 1, tzinfo=own)).utcoffset() == timedelta(hours=1)


def zone_folder() -> str:
    import zoneinfo

    for folder in zoneinfo.TZPATH:
        if os.path.exists(os.path.join(folder, "Asia/Kathmandu")):
            return folder
    pytest.skip("this machine has no zone files")


# --- what a damaged or newer row gives


@pytest.mark.parametrize(
    ("stored", "tag"),
    [
        ({"$": "os.system", "v": "true"}, "unknown tag 'os.system'"),
        ({"$": ["bytes"], "v": ""}, r"unknown tag \['bytes'\]"),
        ({"$": None}, "unknown tag None"),
        ([{"a": {"$": "tuple", "v": [{"$": "bag", "v": []}]}}], "unknown tag 'bag'"),
        ({"$": "set", "v": [1, True]}, "malformed tag 'set'.*two of its items are equal"),
        ({"$": "set", "v": [[]]}, "malformed tag 'set'"),
        ({"$": "frozenset", "v": {"a": 1}}, "malformed tag 'frozenset'"),
        ({"$": "date", "v": "2026-11-31"}, "malformed tag 'date'"),
        ({"$": "time", "v": "25:00"}, "malformed tag 'time'"),
        ({"$": "time", "v": "01:00:00", "zone": "No/Where"}, "malformed tag 'time'"),
        ({"$": "timedelta", "v": [1, 2]}, "malformed tag 'timedelta'"),
        ({"$": "timedelta", "v": [10**12, 0, 0]}, "malformed tag 'timedelta'"),
        ({"$": "path", "v": "a"}, "malformed tag 'path'"),
        ({"$": "path", "t": "Popen", "v": "a"}, "malformed tag 'path'"),
        ({"$": "path", "t": "PosixPath", "v": {"$": "bytes", "v": ""}}, "malformed tag 'path'"),
        ({"$": "obj", "t": "X"}, "malformed tag 'obj'"),
        ({"$": "obj", "t": "X", "v": []}, "malformed tag 'obj'"),
        ({"$": "obj", "t": 1, "v": {}}, "malformed tag 'obj'"),
        ({"$": "obj", "t": "X", "v": {}, "n": "2"}, "malformed tag 'obj'"),
        ({"$": "obj", "t": "X", "v": {}, "q": 1}, "malformed tag 'obj'"),
        ({"$": "enum", "v": "RED"}, "malformed tag 'enum'"),
        ({"$": "enum", "t": ["X"], "v": "RED"}, "malformed tag 'enum'"),
        ({"$": "bytes"}, "malformed tag 'bytes'"),
        ({"$": "bytes", "v": "*"}, "malformed tag 'bytes'"),
        ({"$": "bytes", "v": 5}, "malformed tag 'bytes'"),
        ({"$": "bytes", "v": "AAEC", "w": 1}, "malformed tag 'bytes'"),
        ({"$": "str", "v": "/w=="}, "malformed tag 'str'"),
        ({"$": "int", "v": 1}, "malformed tag 'int'"),
        ({"$": "int", "v": "zz"}, "malformed tag 'int'"),
        ({"$": "float", "v": "7ff8"}, "malformed tag 'float'"),
        ({"$": "tuple", "v": "ab"}, "malformed tag 'tuple'"),
        ({"$": "dict", "v": [[1, 2], [1, 3]]}, "malformed tag 'dict'"),
        ({"$": "dict", "v": [[[], 2]]}, "malformed tag 'dict'"),
        ({"$": "dict", "v": [[1]]}, "malformed tag 'dict'"),
        ({"$": "uuid", "v": "12"}, "malformed tag 'uuid'"),
        ({"$": "decimal", "v": "1,5"}, "malformed tag 'decimal'"),
        ({"$": "decimal", "v": 1.5}, "malformed tag 'decimal'"),
        ({"$": "datetime", "v": "yesterday"}, "malformed tag 'datetime'"),
        ({"$": "datetime", "v": "2026-01-01T00:00:00", "fold": 2}, "malformed tag 'datetime'"),
        ({"$": "datetime", "v": "2026-01-01T00:00:00", "zone": "No/Where"}, "malformed tag 'datetime'"),
        ({"$": "datetime", "v": "2026-01-01T00:00:00", "zone": "../../etc"}, "malformed tag 'datetime'"),
        ({"$": "datetime", "v": "2026-01-01T00:00:00", "zone": "America"}, "malformed tag 'datetime'"),
    ],
)
def test_a_bad_tag_is_named(stored: Any, tag: str) -> None:
    with pytest.raises(ValueError, match=tag):
        decode(stored)


def test_a_path_of_another_system_is_named_with_a_way_out() -> None:
    stored = {"$": "path", "t": "WindowsPath", "v": "C:\\a"}
    if os.name == "nt":
        assert told(decode(stored)) == told(WindowsPath("C:\\a"))
    else:
        with pytest.raises(
            UnknownTypeError, match=r"'C:.*a' is a WindowsPath, which this system does not have"
        ) as caught:
            decode([stored])
        assert caught.value.type_name == "WindowsPath"


TAGS = ["bytes", "str", "int", "float", "tuple", "dict", "uuid", "decimal", "datetime", "date", "time", "timedelta"]
TAGS += ["path", "set", "frozenset", "obj", "enum"]


@given(values, st.sampled_from(TAGS))
def test_whatever_stands_in_a_tag_gives_a_value_or_a_value_error(value: object, tag: str) -> None:
    with suppress(ValueError):
        decode({"$": tag, "v": encode(value)})


def test_text_nested_without_end_is_a_value_error() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "[1", "", "nope"):
        with pytest.raises(ValueError, match=r"."):
            loads(text)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        decode(deep)


# --- digests

FROZEN = [
    (None, "7376b2cbfa0ad26e"),
    (True, "f56975c80364f63f"),
    (5, "8b54089fee8d99a0"),
    (-0.0, "a3472e6653d0cdfa"),
    (2**3000, "8cf119c5f1ad3dce"),
    ("é", "eb3e65575ac0e515"),
    ("\ud83d", "3bd2346eccb097d1"),
    (b"\x00\xff", "bd191745ba1ee829"),
    ([1, "a", None], "3cff7f5613a949d8"),
    ((1, (2,)), "7764070ded7697e2"),
    ({"b": 1, "a": [2]}, "e8ff960f4e772061"),
    ({2: "b", 1: "a", "$": 0}, "10ff7cd92ff89043"),
    (Decimal("1.10"), "7ee4898e1692131e"),
    (UUID(int=7), "36c7c2fe2440c325"),
    (datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1), "5e514ca4938e7cda"),
    (datetime(2026, 1, 1, tzinfo=UTC), "c4e6fc2289325cbe"),
    (float("nan"), "cdc5bd0f8edfa7ad"),
    (date(2026, 11, 1), "395e9e34f63aeb01"),
    (time(1, 30, tzinfo=UTC, fold=1), "f5a7b5f264c866bd"),
    (timedelta(days=-1, seconds=7), "b59b59756120b5ac"),
    (PurePosixPath("a/b"), "ac420e7523b05957"),
    ({"b", "a", 10, 9, (1, b"x")}, "2b876e35e5b38f5d"),
    (frozenset({frozenset(), frozenset({1})}), "06c82f9d001c7f21"),
]


@pytest.mark.parametrize(("value", "expected"), FROZEN)
def test_a_digest_never_changes(value: object, expected: str) -> None:
    assert digest(encode(value)) == expected


@given(st.dictionaries(hashable, values, max_size=5), st.randoms(use_true_random=False))
def test_a_digest_is_blind_for_the_order_of_a_dict_but_the_value_keeps_it(value: dict[Any, Any], random: Any) -> None:
    pairs = list(value.items())
    random.shuffle(pairs)
    shuffled = dict(pairs)
    assert digest(encode({"in": [shuffled]})) == digest(encode({"in": [value]}))
    assert told(list(through_the_log(shuffled))) == told(list(shuffled))


def test_digests_tell_types_apart() -> None:
    alike: list[object] = [
        1,
        1.0,
        True,
        "1",
        b"1",
        Decimal(1),
        Decimal("1.0"),
        [1],
        (1,),
        {"1": 1},
        {1: 1},
        0.0,
        -0.0,
    ]
    assert len({digest(encode(value)) for value in alike}) == len(alike)


@pytest.mark.parametrize("seed", ["1", "2026"])
def test_a_digest_is_the_same_under_another_hash_seed(seed: str) -> None:
    program = (
        "from domain.values import digest, encode\n"
        "from datetime import datetime\n"
        "value = {'s': set('hash seed'), 'b': (1, b'x'), 'a': {2: datetime(2026, 1, 1), 'two': {'$': 1}}}\n"
        "value['c'] = {n: str(n) for n in range(9)}\n"
        "print(digest(encode(value)), end='')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    value = {
        "c": {n: str(n) for n in reversed(range(9))},
        "a": {"two": {"$": 1}, 2: datetime(2026, 1, 1)},
        "b": (1, b"x"),
        "s": set("hash seed"),
    }
    assert found.stdout == digest(encode(value))
