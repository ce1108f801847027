"""A function's annotations make the classes that they name known, as far and as soon as they can be resolved."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union

import pytest

from domain.types import Registry, learn
from domain.values import decode, dumps, encode

T = TypeVar("T")


@dataclass
class Line:
    text: str


@dataclass
class Holder(Generic[T]):
    item: T


class Inner(enum.Enum):
    A = 1


class Leaf(NamedTuple):
    inner: Inner | None


@dataclass
class Branch:
    leaves: dict[str, list[Leaf]]
    parent: Branch | None = None


class Options(TypedDict, total=False):
    branch: Branch


Alias = NewType("Alias", Branch)
Bound = TypeVar("Bound", bound=Leaf)


class Nested:
    @dataclass
    class Deep:
        x: int


@dataclass
class Twin:
    other: Holder[Inner]


KNOWN = {
    "plain": (Inner, {"Inner"}),
    "text": ("Inner", {"Inner"}),
    "list": (list["Inner"], {"Inner"}),
    "optional": (Optional[Inner], {"Inner"}),  # noqa: UP045
    "union": (Union[Leaf, int], {"Inner", "Leaf"}),  # noqa: UP007
    "new union": (Inner | None, {"Inner"}),
    "annotated": (Annotated[Inner, Twin], {"Inner"}),
    "dict": (dict[str, tuple[Leaf, ...]], {"Inner", "Leaf"}),
    "dataclass": (Branch, {"Branch", "Inner", "Leaf"}),
    "typed dict": (list[Options], {"Branch", "Inner", "Leaf"}),
    "new type": (Alias, {"Branch", "Inner", "Leaf"}),
    "type variable": (Bound, {"Inner", "Leaf"}),
    "literal": (Literal[Inner.A, 3], {"Inner"}),
    "callable": (Callable[[Leaf], Inner], {"Inner", "Leaf"}),
    "generic": (Holder[Inner], {"Holder", "Inner"}),
    "field": (Twin, {"Holder", "Inner", "Twin"}),
    "nested": (Nested.Deep, {"Nested.Deep"}),
    "nothing": (dict[str, Any] | None, set()),
    "type": (type[Inner], {"Inner"}),
}


@pytest.mark.parametrize("where", ["parameter", "return"])
@pytest.mark.parametrize("case", KNOWN)
def test_a_class_that_an_annotation_names_is_known(case: str, where: str) -> None:
    def function(one: Any) -> Any: ...

    annotation, expected = KNOWN[case]
    function.__annotations__ = {("return" if where == "return" else "one"): annotation}
    registry = Registry()
    registry.learn(function)
    assert known_names(registry) == expected


def known_names(registry: Registry) -> set[str]:
    classes: list[type] = [Inner, Leaf, Branch, Twin, Nested.Deep, Holder, Line, Later]
    found = {cls.__qualname__ for cls in classes if registry.of_class(cls) is not None}
    for name in found:
        assert registry.of_name(name).cls.__qualname__ == name
    return found


def test_one_annotation_that_cannot_be_resolved_hides_no_other() -> None:
    def function(one: NoSuch, two: Inner, three: list[NoSuch]) -> Leaf: ...  # type: ignore[name-defined]  # noqa: F821

    registry = Registry()
    registry.learn(function)
    assert known_names(registry) == {"Inner", "Leaf"}
    assert "'one' of test_one_annotation_" in registry.untold()
    assert "name 'NoSuch' is not defined" in registry.untold()


def test_a_class_that_comes_later_is_known_when_it_is_needed() -> None:
    module = ModuleType("later_module")
    exec("def make(one: 'Coming', two: 'list[Coming]'): ...", module.__dict__)
    registry = Registry()
    registry.learn(module.make)
    registry.learn(later)
    assert known_names(registry) == {"Later"}
    module.Coming = Line  # type: ignore[attr-defined]
    assert known_names(registry) == {"Later", "Line"}
    assert registry.untold() == ""
    del module.Coming
    assert known_names(registry) == {"Later", "Line"}


def later(one: Later) -> None: ...


@dataclass
class Later:
    x: int


def test_a_local_class_that_the_function_uses_is_known() -> None:
    @dataclass
    class Local:
        x: int

    def function() -> Local:
        return Local(1)

    learn(function)
    stored = encode(function())
    assert decode(stored) == Local(1)
    assert '"t":"test_a_local_class_that_the_function_uses_is_known.<locals>.Local"' in dumps(stored)


@pytest.mark.parametrize(
    "wrap", [functools.partial, staticmethod, functools.lru_cache, lambda f: SimpleNamespace(go=f).go]
)
def test_a_wrapped_function_is_read_through(wrap: Any) -> None:
    def function(one: Inner) -> None: ...

    registry = Registry()
    registry.learn(wrap(function))
    assert known_names(registry) == {"Inner"}
