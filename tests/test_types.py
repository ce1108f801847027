"""The log knows users' classes by name: registered, or annotated, and never two by one."""

from __future__ import annotations

import enum
import importlib.util
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from domain.errors import DefinitionError, UnknownTypeError, UnstorableValueError
from domain.leaves import Refused
from domain.types import Registry, learn, register
from domain.values import decode, dumps, encode, loads


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    text: str


@dataclass
class Pair:
    one: Line
    other: Colour


@dataclass
class Bill:
    total: int


@dataclass
class Bill2:
    total: int


@dataclass
class Unknown:
    text: str


class Plain:
    pass


def upgrade(fields: dict[str, Any], version: int) -> dict[str, Any]:
    return fields


def stored(value: object) -> str:
    return dumps(encode(value))


def test_two_classes_of_one_name_are_refused_with_both_named_and_the_first_stays() -> None:
    registry = Registry()
    registry.register(Bill, "Bill", 1, None)
    with pytest.raises(
        DefinitionError, match=r"test_types.Bill and .*test_types\.Bill2 are both Bill.*register\(…, name=…"
    ):
        registry.register(Bill2, "Bill", 1, None)
    assert registry.of_name("Bill").cls is Bill
    assert registry.of_class(Bill2) is None


def test_a_class_registered_again_changes_its_version() -> None:
    registry = Registry()
    registry.register(Bill2, None, 1, None)
    registry.register(Bill2, None, 2, upgrade)
    for known in (registry.of_class(Bill2), registry.of_name("Bill2")):
        assert (known and known.version) == 2


def test_a_class_may_have_an_older_name_and_one_version_under_both() -> None:
    registry = Registry()
    for name, version, change in (("Old", 1, None), ("New", 2, upgrade), ("Other", 1, None)):
        registry.register(Bill2, name, version, change)
    assert (known := registry.of_class(Bill2))
    assert (known.name, known.version) == ("Other", 2)
    for name in ("Old", "New", "Other"):
        assert registry.of_name(name)[:1] + registry.of_name(name)[2:] == (name, 2, upgrade)


def imported(path: Path, name: str) -> ModuleType:
    """Import a file once more."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ITEM = """
from dataclasses import dataclass

@dataclass
class Item:
    x: int

def make(item: Item) -> "Item": ...
"""


@pytest.mark.parametrize("again", ["items_a", "items_b"])
def test_a_class_that_is_imported_again_takes_the_place_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    path = tmp_path / "items.py"
    path.write_text(ITEM)
    for known_by in ("register", "learn"):
        registry = Registry()
        modules = []
        for name in ("items_a", again):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
            modules.append(imported(path, name))
            if known_by == "register":
                registry.register(modules[-1].Item, None, 1, None)
            else:
                registry.learn(modules[-1].make)
            assert registry.of_name("Item").cls is modules[-1].Item
        assert registry.of_class(modules[0].Item) is None


@pytest.mark.parametrize(
    ("cls", "options", "why"),
    [
        (int, {}, "register takes an enum, a dataclass, a named tuple or a pydantic model, not <class 'int'>"),
        (Plain, {}, "above @dataclass"),
        (Line("a"), {}, "register takes"),
        (Line, {"name": ""}, "a name has 1 to 200 printable characters, not ''"),
        (Line, {"name": "a\nb"}, "printable"),
        (Line, {"name": 3}, "printable"),
        (Line, {"version": 0}, "a version is a number from 1 on, not 0"),
        (Line, {"version": True}, "a version is a number"),
        (Line, {"upgrade": {}}, "upgrade is a function"),
        (Colour, {"version": 2}, "an enum has no versions; a renamed member is kept alive by an alias"),
        (Colour, {"upgrade": upgrade}, "an enum has no versions"),
    ],
)
def test_what_cannot_be_registered_is_said_at_once(cls: Any, options: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        register(cls, **options)


# ------------------------------------------------------------------ names from annotations


def test_a_name_from_an_annotation_never_takes_one_that_was_registered() -> None:
    @dataclass
    class Other:
        x: int

    def function(one: Colour) -> None: ...

    for first in ("register", "learn"):
        registry = Registry()
        for what in (first, "register" if first == "learn" else "learn"):
            if what == "register":
                registry.register(Other, "Colour", 1, None)
            else:
                registry.learn(function)
                assert what != first or registry.of_name("Colour").cls is Colour
        assert registry.of_name("Colour").cls is Other
        with pytest.raises(
            Refused, match=r"Other and .*Colour are both Colour: give the newer one another, by register\("
        ):
            registry.of_class(Colour)


@pytest.fixture
def rivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Two modules with a class Item each, learned of by the log's own registry under a name that only a test has."""
    modules = []
    for name in ("rival_one", "rival_two"):
        path = tmp_path / f"{name}.py"
        path.write_text(
            ITEM.replace("Item", f"Item_{tmp_path.name}".replace("-", "_")).replace("make(item", "make(item")
        )
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        modules.append(imported(path, name))
    return modules[0], modules[1]


def item_of(module: ModuleType) -> Any:
    (cls,) = [cls for name, cls in vars(module).items() if name.startswith("Item_")]
    return cls


def test_two_annotated_classes_of_one_name_are_an_error_of_the_value(rivals: tuple[ModuleType, ModuleType]) -> None:
    one, two = rivals
    learn(one.make)
    text = stored(item_of(one)(1))
    learn(two.make)
    both = r"rival_one\.Item_\w+ and rival_two\.Item_\w+ are both Item_\w+: give the newer one another, by register\("
    for module in rivals:
        with pytest.raises(UnstorableValueError, match=rf"^a cannot be stored by name.*{both}"):
            encode({"a": item_of(module)(1)})
    with pytest.raises(UnknownTypeError, match=both) as caught:
        decode(loads(text))
    assert caught.value.type_name == item_of(one).__qualname__
    register(item_of(two), name=f"Second{item_of(two).__name__}")
    assert decode(loads(text)) == item_of(one)(1)
    assert decode(encode(item_of(two)(2))) == item_of(two)(2)
    assert stored(item_of(one)(1)) == text


def test_a_value_stored_under_an_annotated_name_is_still_read_when_the_class_gets_another(
    rivals: tuple[ModuleType, ModuleType],
) -> None:
    one, _ = rivals
    learn(one.make)
    text = stored(item_of(one)(1))
    register(
        item_of(one), name=f"Named{item_of(one).__name__}", version=2, upgrade=lambda fields, _: {"x": fields["x"] + 1}
    )
    assert decode(loads(text)) == item_of(one)(2)
    assert stored(item_of(one)(1)).startswith('{"$":"obj","t":"NamedItem_')


def test_an_unknown_class_tells_of_the_annotations_that_could_not_be_resolved() -> None:
    def function(one: NoSuchThing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    learn(function)
    with pytest.raises(
        UnstorableValueError, match=r"register\(Unknown\) \(not resolved so far: .*'NoSuchThing' is not def"
    ):
        encode(Unknown("a"))
    with pytest.raises(UnknownTypeError, match="'NoSuchThing' is not defined"):
        decode({"$": "obj", "t": "No.Such", "v": {}})


def test_threads_that_meet_an_unread_annotation_at_once_all_know_its_class() -> None:
    gate, refused = threading.Barrier(8), list[object]()

    def meet(registry: Registry) -> None:
        gate.wait(20)
        if registry.of_class(Pair) is None or registry.of_name("Line").cls is not Line:
            refused.append(registry)

    def function(one: Pair) -> None: ...

    for _ in range(50):
        registry = Registry()
        registry.learn(function)
        threads = [threading.Thread(target=meet, args=[registry]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert refused == []
