"""What a person types becomes what the annotation asks for, or an error says where it does not fit."""

import collections.abc
import dataclasses
import enum
import inspect
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePath, PureWindowsPath, WindowsPath
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Protocol,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import pytest
from hypothesis import given

from domain.values import convert
from tests.test_values import told, values

T = TypeVar("T")
Invoice = NewType("Invoice", Decimal)


POSIX_ONLY = pytest.mark.skipif(os.name == "nt", reason="it has such paths")


class Speaks(Protocol):
    def speak(self) -> str: ...


class Colour(str, enum.Enum):  # noqa: UP042  the older spelling
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Turned(enum.Enum):
    left = "right"
    right = "left"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Line(NamedTuple):
    price: Decimal
    colour: str = "red"


@dataclass
class Bill:
    due: date
    lines: "list[Line]" = dataclasses.field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("a number is not negative")


class Settings(TypedDict):
    name: str
    colour: "NotRequired[Colour]"


@dataclass
class Box(Generic[T]):
    item: T
    others: "list[T]" = dataclasses.field(default_factory=list)


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (5, inspect.Parameter.empty, 5),
        ("5", Any, "5"),
        ([1], object, [1]),
        ("x", T, "x"),
        ("x", "Unresolved", "x"),
        ("x", Speaks, "x"),
        ("x", str, "x"),
        (5, int, 5),
        (True, bool, True),
        (None, None, None),
        (None, type(None), None),
        (5, float, 5.0),
        (5.5, float, 5.5),
        ("1.10", Decimal, Decimal("1.10")),
        (5, Decimal, Decimal(5)),
        ("nan", Decimal, Decimal("nan")),
        ("00000000-0000-0000-0000-000000000007", UUID, UUID(int=7)),
        (
            "2026-11-01T01:30:00+01:00",
            datetime,
            datetime(2026, 11, 1, 1, 30, tzinfo=timezone(timedelta(hours=1))),
        ),
        ("é", bytes, "é".encode()),
        (b"a", bytes, b"a"),
        (None, Optional[Decimal], None),  # noqa: UP045
        ("1.5", Decimal | None, Decimal("1.5")),
        ("1.5", Decimal | str, "1.5"),
        (5, float | int, 5),
        (5, str | float, 5.0),
        (["1.5"], list[Decimal] | None, [Decimal("1.5")]),
        ([1, 2], list, [1, 2]),
        ([1, "x"], list[Any], [1, "x"]),
        ([1, 2], Sequence[float], [1.0, 2.0]),
        ([1, 2], tuple, (1, 2)),
        ([1, "1"], tuple[int, Decimal], (1, Decimal(1))),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ([], tuple[()], ()),
        ([], tuple[int, ...], ()),
        ({"a": 1}, dict, {"a": 1}),
        ({"a": "1.5"}, dict[str, Decimal], {"a": Decimal("1.5")}),
        ({"1": [2]}, Mapping[int, list[float]], {1: [2.0]}),
        ({"a": {"b": ["x"]}}, dict[str, dict[str, list[bytes]]], {"a": {"b": [b"x"]}}),
        ("a", Literal["a", "b"], "a"),
        ("1.5", Annotated[Decimal, "money"], Decimal("1.5")),
        ("1.5", Invoice, Decimal("1.5")),
        ("1.5", Invoice | None, Decimal("1.5")),
        ([1, 2, 1], set, {1, 2}),
        (["1.5"], set[Decimal], {Decimal("1.5")}),
        ([1], frozenset[int], frozenset({1})),
        ({1, 2}, set[int], {1, 2}),
        ([1], collections.abc.Set[float], {1.0}),
        ("2026-11-01", date, date(2026, 11, 1)),
        ("2026-11-01", datetime | date, datetime(2026, 11, 1)),
        ("01:30+01:00", time, time(1, 30, tzinfo=timezone(timedelta(hours=1)))),
        (90, timedelta, timedelta(seconds=90)),
        (-0.5, timedelta, timedelta(seconds=-0.5)),
        ("P1W2DT3H4M5.000006S", timedelta, timedelta(9, 5, 6, 0, 4, 3)),
        ("-PT0.5S", timedelta, timedelta(seconds=-0.5)),
        ("a/b", Path, Path("a/b")),
        ("a\\b", PureWindowsPath, PureWindowsPath("a/b")),
        ("a", PurePath, PurePath("a")),
        (Path("a"), PurePath, Path("a")),
        ("RED", Colour, Colour.RED),
        ("red", Colour, Colour.RED),
        (3, Size, Size.BIG),
        ("BIG", Size | None, Size.BIG),
        (Size.BIG, Size, Size.BIG),
        ("READ", Access, Access.READ),
        ("READ|WRITE", Access, Access.READ | Access.WRITE),
        (["READ", "WRITE"], Access, Access.READ | Access.WRITE),
        (3, Access, Access.READ | Access.WRITE),
        ([], Access, Access(0)),
        (
            {"due": "2026-11-01", "lines": [{"price": "1.5"}, ["2", "blue"]]},
            Bill,
            Bill(date(2026, 11, 1), [Line(Decimal("1.5")), Line(Decimal(2), "blue")]),
        ),
        (Bill(date(2026, 11, 1)), Bill, Bill(date(2026, 11, 1))),
        ({"name": "x", "colour": "RED"}, Settings, {"name": "x", "colour": Colour.RED}),
        ({"name": "x"}, Settings, {"name": "x"}),
        ({"item": "1.5", "others": ["2"]}, Box[Decimal], Box(Decimal("1.5"), [Decimal(2)])),
        ({"item": "1.5"}, Box, Box("1.5")),
    ],
)
def test_a_json_value_becomes_what_the_annotation_asks_for(value: object, annotation: object, expected: object) -> None:
    found = convert(value, annotation)
    if expected != expected:
        assert found != found
    else:
        assert told(found) == told(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        (5, str, r"^expected str, found 5 \(int\)$"),
        ("5", int, r"^expected int, found '5' \(str\)$"),
        (True, int, r"^expected int, found True \(bool\)$"),
        (1, bool, "expected bool"),
        (True, float, "expected float"),
        (5.0, int, "expected int"),
        ("5", float, "expected float"),
        (10**400, float, "too large"),
        pytest.param(10**5000, str, "thousands of digits", id="long int"),
        (1.5, Decimal, "write it as text"),
        ("1,5", Decimal, "expected Decimal, found '1,5'"),
        ("x", UUID, "expected UUID, found 'x'"),
        ("tomorrow", datetime, "expected datetime, found 'tomorrow'"),
        (5, bytes, "expected bytes"),
        ("\ud83d", bytes, "expected bytes"),
        (None, int, "expected int, found None$"),
        (0, None, r"expected None, found 0"),
        ("x", int | None, r"expected int \| None, found 'x'"),
        ("c", Literal["a", "b"], r"expected Literal\['a', 'b'\], found 'c'"),
        (True, Literal[1], "found True"),
        ({}, list[int], r"expected list\[int\], found \{\}"),
        ([1, "x"], list[int], r"^\[1\]: expected int, found 'x'"),
        ({"a": [1, None]}, dict[str, list[int]], r"^\['a'\]\[1\]: expected int, found None"),
        ({"x": 1}, dict[int, int], r"^\['x'\]: expected int, found 'x'"),
        ({"1": 1, "1.0": 2}, dict[float, int], "the same"),
        ([1], tuple[int, int], "2 items are expected, 1 are there"),
        ("a", tuple[str, ...], "expected tuple"),
        ([1], dict[str, int], "expected dict"),
        ([1, "x"], set[int], r"^\[1\]: expected int, found 'x'"),
        ([[1]], set, r"expected set, found \[\[1\]\] \(list\); unhashable type"),
        ({"a": 1}, frozenset, "expected frozenset"),
        ("2026-11-01T01:30", date, "expected date, found '2026-11-01T01:30' .*; write it like 2026-11-01"),
        (20261101, date, "expected date"),
        (datetime(2026, 11, 1), date, "expected date"),
        ("25:00", time, "expected time, found '25:00'"),
        (
            "P1Y",
            timedelta,
            "expected timedelta, found 'P1Y' .*; write a number of seconds, or a duration like P1DT2H30M",
        ),
        ("P", timedelta, "expected timedelta"),
        ("P1DT", timedelta, "expected timedelta"),
        ("P1.5D", timedelta, "expected timedelta"),
        ("90", timedelta, "expected timedelta"),
        (True, timedelta, "expected timedelta"),
        (math.nan, timedelta, "expected timedelta"),
        (1e300, timedelta, "expected timedelta"),
        ("P999999999999D", timedelta, "expected timedelta"),
        (5, Path, "expected Path, found 5"),
        pytest.param("a", WindowsPath, "this system has no such paths", marks=POSIX_ONLY),
        ("GREEN", Colour, r"expected Colour, found 'GREEN' \(str\); it has RED"),
        (3.0, Size, "expected Size, found 3.0"),
        (True, Size, "expected Size"),
        ("left", Turned, "it is the name of one member and the value of another"),
        ("READ|FLY", Access, "expected Access, found 'READ|FLY'"),
        (64, Access, "expected Access"),
        ({"number": 1}, Bill, r"^expected Bill, found \{'number': 1\} \(dict\); 'due' is missing"),
        ({"due": "2026-11-01", "size": 3}, Bill, "it has no 'size', only due, lines, number"),
        ({"due": "today"}, Bill, "^due: expected date, found 'today'"),
        ([{"due": "2026-11-01", "lines": [{"price": "x"}]}], list[Bill], r"^\[0\].lines\[0\].price: expected Decimal"),
        ({"due": "2026-11-01", "number": -1}, Bill, "; ValueError: a number is not negative"),
        (["2026-11-01"], Bill, "write it as an object with its fields"),
        ({"price": "1", 5: 2}, Line, "it has no 5"),
        (["1", "1", "1"], Line, "expected Line"),
        ([], Line, "'price' is missing"),
        ({"name": 5}, Settings, "^name: expected str, found 5"),
        ({}, Settings, "'name' is missing"),
        ({"name": "x", "colour": "RED", "more": 1}, Settings, "it has no 'more', only name, colour"),
        ({"item": "x"}, Box[Decimal], "^item: expected Decimal"),
        ("a", threading.Event, "expected Event, found 'a'"),
    ],
)
def test_what_does_not_fit_is_said_clearly(value: object, annotation: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(value, annotation)


@given(values)
def test_a_value_stays_as_it_is_where_the_annotation_is_its_type(value: object) -> None:
    assert told(convert(value, type(value))) == told(value)
    assert told(convert(value, Optional[type(value)])) == told(value)  # noqa: UP045
