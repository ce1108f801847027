"""Values of users' classes come back field by field and member by member, or say what the class of today has not."""

from __future__ import annotations

import enum
import functools
import threading
from abc import ABC, abstractmethod
from collections import namedtuple
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pytest

from domain.errors import DefinitionError, UnstorableValueError
from domain.types import register
from domain.values import MAX_DEPTH, decode, dumps, encode, loads

T = TypeVar("T")


def through_the_log(value: object) -> Any:
    text = dumps(encode(value))
    assert text.isascii()
    return decode(loads(text))


def stored(value: object) -> str:
    return dumps(encode(value))


# ------------------------------------------------------------------ what is stored, and comes back


@register
class Colour(enum.Enum):
    RED = "red"
    BLUE = ("b", 2)
    CRIMSON = "red"  # noqa: PIE796  an alias


@register
class Level(enum.IntEnum):
    LOW = 1


@register
class Tone(enum.StrEnum):
    WARM = enum.auto()


@register
class Old(str, enum.Enum):  # noqa: UP042  the older spelling
    NEW = "new"


@register
class Access(enum.Flag):
    NONE = 0
    READ = 1
    WRITE = 2
    RUN = 4
    BOTH = 3


@register
class Mask(enum.IntFlag):
    ONE = 1
    WIDE = 6


@register
@dataclass
class Line:
    text: str
    price: int | None = None
    kind: ClassVar[str] = "line"


@register
@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    tags: frozenset[str]
    size: int = 3


@register
@dataclass
class Made:
    first: str
    _: KW_ONLY
    scale: InitVar[int] = 2
    length: int = field(init=False)
    fixed: str = field(default="x", init=False)
    lines: list[Line] = field(default_factory=list)
    hidden: int = field(default=0, repr=False, compare=False)

    def __post_init__(self, scale: int) -> None:
        self.length = len(self.first) * scale

    @cached_property
    def shout(self) -> str:
        return self.first.upper()


@register
class Point(NamedTuple):
    x: int
    y: float = 0.0


@register
@dataclass
class Holder(Generic[T]):
    item: T


Row = register(namedtuple("Row", "id name"))  # noqa: PYI024

STORED = [
    (Colour.RED, '{"$":"enum","t":"Colour","v":"RED"}'),
    (Colour.CRIMSON, '{"$":"enum","t":"Colour","v":"RED"}'),
    (Level.LOW, '{"$":"enum","t":"Level","v":"LOW"}'),
    (Tone.WARM, '{"$":"enum","t":"Tone","v":"WARM"}'),
    (Old.NEW, '{"$":"enum","t":"Old","v":"NEW"}'),
    (Access.BOTH, '{"$":"enum","t":"Access","v":"BOTH"}'),
    (Access.NONE, '{"$":"enum","t":"Access","v":"NONE"}'),
    (Access.WRITE | Access.RUN, '{"$":"enum","t":"Access","v":["WRITE","RUN"]}'),
    (Mask(0), '{"$":"enum","t":"Mask","v":[]}'),
    (Mask(1 | 2 | 64), '{"$":"enum","t":"Mask","v":["ONE",66]}'),
    (Line("a"), '{"$":"obj","t":"Line","v":{"text":"a","price":null}}'),
    (Point(1), '{"$":"obj","t":"Point","v":{"x":1,"y":0.0}}'),
    (Row(1, (2,)), '{"$":"obj","t":"Row","v":{"id":1,"name":{"$":"tuple","v":[2]}}}'),
    (Frozen(tags=frozenset("a")), '{"$":"obj","t":"Frozen","v":{"tags":{"$":"frozenset","v":["a"]},"size":3}}'),
    (
        {Tone.WARM: Line("a")},
        '{"$":"dict","v":[[{"$":"enum","t":"Tone","v":"WARM"},{"$":"obj","t":"Line","v":{"text":"a","price":null}}]]}',
    ),
]


@pytest.mark.parametrize(("value", "text"), STORED, ids=[repr(value) for value, _ in STORED])
def test_a_stored_form_never_changes_and_comes_back(value: object, text: str) -> None:
    back = through_the_log(value)
    assert stored(value) == text
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, enum.Enum):
        assert back is value or type(value)(value.value) is not value, "CPython 3.11.2 makes some combinations anew"


def test_the_version_is_stored_where_it_is_above_one() -> None:
    @functools.partial(register, name="Versioned", version=2)
    @dataclass
    class Versioned:
        x: int

    assert stored(Versioned(1)) == '{"$":"obj","t":"Versioned","n":2,"v":{"x":1}}'


def test_a_dataclass_comes_back_field_by_field_and_none_of_its_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made("ab", scale=5, lines=[Line("a"), Line("b", 3)])
    made.fixed, made.hidden = "y", 7
    text = stored(made)
    monkeypatch.setattr(Made, "__init__", None)
    monkeypatch.setattr(Made, "__post_init__", None)
    back: Any = decode(loads(text))
    assert type(back) is Made
    assert vars(back) == vars(made)
    assert (back.length, back.fixed, back.hidden) == (10, "y", 7)


def test_what_a_class_computes_from_its_fields_is_computed_again() -> None:
    made = Made("ab")
    assert made.shout == "AB"
    back = through_the_log(made)
    assert "shout" not in vars(back)
    assert back.shout == "AB"


def test_a_generic_dataclass_comes_back_however_it_was_made() -> None:
    assert through_the_log(Holder[int](3)) == Holder(3)


def test_what_is_unhashable_or_compares_oddly_is_stored_all_the_same() -> None:
    @register
    @dataclass(eq=False)
    class Same:
        at: dict[str, int]

    back = through_the_log({Same({"a": 1, "b": 2}), Same({"b": 2, "a": 1})})
    assert [one.at for one in back] == [{"a": 1, "b": 2}] * 2


def test_a_payload_that_looks_like_a_structure_stays_a_dict() -> None:
    for value in (encode(Line("a")), encode(Colour.RED), {"$": "obj", "t": "Line", "v": {"text": 1}, "n": 9}):
        assert through_the_log(value) == value
        assert type(through_the_log([value])[0]) is dict


def test_a_structure_counts_as_a_container() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = Holder(value)
    assert stored(through_the_log(value)) == stored(value)
    with pytest.raises(UnstorableValueError, match="at most 128 containers"):
        encode(Holder(value))
    ring = Holder[Any](None)
    ring.item = [ring]
    with pytest.raises(UnstorableValueError, match="contains itself") as caught:
        encode({"ring": ring})
    assert caught.value.path == "ring.item[0]"


def test_an_enum_member_may_stand_at_the_deepest_place() -> None:
    value: Any = Colour.RED
    for _ in range(MAX_DEPTH):
        value = [value]
    assert stored(through_the_log(value)) == stored(value)


# ------------------------------------------------------------------ what is refused when it is stored


@dataclass
class Unknown:
    text: str


class SubLine(Line):
    pass


class Sneaky(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        made = object.__new__(cls)
        made._name_, made._value_ = "TWO", value
        return made


class Slotted:
    __slots__ = ("secret",)


@register
@dataclass(slots=True)
class Hiding(Slotted):
    shown: int


def more_attributes() -> Line:
    line = Line("a")
    line.note = "b"  # type: ignore[attr-defined]
    return line


def secretive() -> Hiding:
    hiding = Hiding(1)
    hiding.secret = 2  # type: ignore[attr-defined]
    return hiding


def unset() -> Made:
    made = Made("a")
    del made.length
    return made


register(Sneaky)
HINT = "annotate it on a step or agent, or register"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            Unknown("a"),
            rf"^items\[1\]\.item is of the type .*test_structures\.Unknown, which the log does not know.*{HINT}\(Unk",
        ),
        (SubLine("a"), rf"test_structures\.SubLine, which the log does not know by name: {HINT}\(SubLine\)"),
        (more_attributes(), r"^items\[1\]\.item has the attribute 'note', which is no field of .*Line"),
        (secretive(), "has the attribute 'secret', which is no field of .*Hiding"),
        (unset(), "has a field 'length' that was never set"),
        (Sneaky(2), "is no member of .*Sneaky that has a name"),
        (tuple.__new__(Point, [1]), "has 1 items, not one for each field"),
    ],
)
def test_what_could_not_come_back_is_refused_with_its_path(value: object, why: str) -> None:
    with pytest.raises(UnstorableValueError, match=why) as caught:
        encode({"items": [0, Holder(value)]})
    assert caught.value.path == "items[1].item"
    assert caught.value.type_name == f"{__name__}.{type(value).__qualname__}"


def test_a_part_of_a_structure_is_refused_with_the_path_to_it() -> None:
    with pytest.raises(UnstorableValueError) as caught:
        encode([Made("a", lines=[Line("b", price=threading.Lock())])])  # type: ignore[arg-type]
    assert caught.value.path == "[0].lines[0].price"
    with pytest.raises(UnstorableValueError) as caught:
        encode(Point(1, {2: 1j}))  # type: ignore[arg-type]
    assert caught.value.path == "y[2]"


def test_a_dataclass_on_top_of_what_its_fields_do_not_hold_is_refused() -> None:
    @dataclass
    class Grown(list[int]):
        x: int

    @dataclass
    class FailedError(Exception):
        x: int

    @dataclass
    class Abstract(ABC):
        x: int

        @abstractmethod
        def show(self) -> None: ...

    @dataclass
    class Managed:
        x: int

    Managed.x = property(lambda self: 1, lambda self, value: None)  # type: ignore[assignment,misc]

    for cls in (Grown, FailedError, Abstract):
        with pytest.raises(DefinitionError, match="cannot be made without its own code"):
            register(cls)
    with pytest.raises(DefinitionError, match="manages its field 'x' by a descriptor"):
        register(Managed)
