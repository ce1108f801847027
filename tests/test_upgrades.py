"""Values outlive the code of their classes: they fit the class of today, are upgraded, or say what it has not."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from domain import values
from domain.errors import PerdureError, UnknownTypeError
from domain.types import Registry
from domain.values import decode, dumps, encode, loads


def in_two_lives(
    name: str, before: Any, after: Any, value: Callable[[Any], Any], stored_version: int = 1, **options: Any
) -> Any:
    """Store a value of one class under a name, and read it when another class has the name."""
    first, second = Registry(), Registry()
    first.register(before, name, stored_version, None)
    second.register(after, name, options.get("version", 1), options.get("upgrade"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "types", SimpleNamespace(of_class=first.of_class, of_name=first.of_name))
        text = dumps(encode(value(before)))
        patch.setattr(values, "types", SimpleNamespace(of_class=second.of_class, of_name=second.of_name))
        return decode(loads(text))


class Colour(enum.Enum):
    RED = "red"


class Mask(enum.IntFlag):
    ONE = 1
    WIDE = 6


@dataclass
class Bill1:
    amount: int
    payer: str = "me"


@dataclass
class Bill2:
    total: int
    currency: str
    notes: list[str] = field(default_factory=list)


@dataclass
class Bill3:
    amount: int
    payer: str
    paid: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass
class Bill4:
    amount: int
    payer: str
    due: Any = field(default_factory=object)


class BillRow(NamedTuple):
    payer: str
    amount: int
    paid: bool = True


class Colour2(enum.Enum):
    GREEN = "red"


class Flag1(enum.Flag):
    A, B, C = 1, 2, 4


class Flag2(enum.Flag):
    A, B = 1, 2


def bill(cls: Any) -> Any:
    return cls(7, "you")


def to_bill2(fields: dict[str, Any], version: int) -> dict[str, Any]:
    return {"total": fields["amount"], "currency": f"EUR since {version}"}


def test_an_older_version_is_upgraded_and_what_the_upgrade_leaves_out_gets_its_default() -> None:
    assert in_two_lives("Bill", Bill1, Bill2, bill, version=2, upgrade=to_bill2) == Bill2(7, "EUR since 1")
    back = in_two_lives("Bill", Bill1, Bill2, bill, stored_version=3, version=5, upgrade=to_bill2)
    assert back == Bill2(7, "EUR since 3")


def test_a_value_of_todays_version_is_not_upgraded() -> None:
    def never(fields: dict[str, Any], version: int) -> dict[str, Any]:
        raise AssertionError(version)

    assert in_two_lives("Bill", Bill1, Bill1, bill, stored_version=2, version=2, upgrade=never) == Bill1(7, "you")


def test_a_new_field_with_a_constant_default_needs_no_upgrade() -> None:
    assert in_two_lives("Bill", Bill1, Bill3, bill) == Bill3(7, "you", False, [])


def test_a_class_may_become_a_named_tuple() -> None:
    assert in_two_lives("Bill", Bill1, BillRow, bill) == BillRow("you", 7, True)


def fails(error: Exception | None = None, result: Any = None) -> Callable[[dict[str, Any], int], Any]:
    def upgrade(fields: dict[str, Any], version: int) -> Any:
        if error is not None:
            raise error
        return result

    return upgrade


@pytest.mark.parametrize(
    ("after", "options", "why"),
    [
        (Bill2, {}, r"Bill2, known as Bill, has no field 'amount'; give register\(…, upgrade=…\)"),
        (Bill4, {}, "has a field 'due' that was not stored and whose default is made by a function.*upgrade="),
        (
            Bill1,
            {"stored_version": 3, "version": 2},
            "is of version 2 here, and version 3 was stored: go on with the newer",
        ),
        (
            Bill2,
            {"version": 2, "upgrade": fails(KeyError("vat"))},
            "upgrade function that raised KeyError for version 1: 'v",
        ),
        (Bill2, {"version": 2, "upgrade": fails()}, "returned NoneType, not a dict of fields"),
        (
            Bill2,
            {"version": 2, "upgrade": fails(result={"total": 1})},
            "has a field 'currency' without a default, which w",
        ),
        (Bill2, {"version": 2, "upgrade": fails(result={"sum": 1})}, "has no field 'sum'"),
        (Colour2, {}, "is an enum today"),
    ],
)
def test_a_class_that_cannot_take_what_was_stored_is_named_with_what_to_do(after: Any, options: Any, why: str) -> None:
    with pytest.raises(UnknownTypeError, match=why) as caught:
        in_two_lives("Bill", Bill1, after, bill, **options)
    assert caught.value.type_name == "Bill"
    assert f"{__name__}.{after.__qualname__}" in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "value", "why"),
    [
        (
            Colour,
            Colour2,
            lambda cls: cls.RED,
            "has no member 'RED'; give it one, or an alias that says which member took",
        ),
        (Flag1, Flag2, lambda cls: cls.A | cls.C, "has no member 'C'"),
        (Flag1, Colour2, lambda cls: cls.A | cls.B, "is no flag"),
        (Mask, Flag2, lambda cls: cls(66), r"can no longer combine \[66\]"),
        (Colour, Bill1, lambda cls: cls.RED, "is no enum today; a member of one was stored"),
    ],
)
def test_a_member_that_is_gone_is_named(before: Any, after: Any, value: Any, why: str) -> None:
    with pytest.raises(UnknownTypeError, match=why) as caught:
        in_two_lives("Kind", before, after, value)
    assert caught.value.type_name == "Kind"


def test_a_renamed_member_is_found_by_its_alias() -> None:
    class Renamed(enum.Enum):
        SCARLET = "red"
        RED = "red"  # noqa: PIE796  an alias

    assert in_two_lives("Kind", Colour, Renamed, lambda cls: cls.RED) is Renamed.SCARLET


@pytest.mark.parametrize("text", ['{"$":"obj","t":"No.Such","v":{}}', '[{"$":"enum","t":"No.Such","v":"A"}]'])
def test_an_unknown_name_says_what_to_do_and_imports_nothing(text: str) -> None:
    before = set(sys.modules)
    with pytest.raises(
        UnknownTypeError, match=r"of the class No\.Such, which is not known here.*name='No\.Such'"
    ) as caught:
        decode(loads(text))
    assert caught.value.type_name == "No.Such"
    assert isinstance(caught.value, PerdureError)
    assert isinstance(caught.value, ValueError)
    assert set(sys.modules) == before
