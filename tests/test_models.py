"""Pydantic models come back as pydantic itself sees them, and none of their code runs for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Generic, TypeVar

import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from domain.annotations import named_by
from domain.errors import DefinitionError, UnknownTypeError, UnstorableValueError
from domain.types import Registry, learn, register
from domain.values import convert, decode, dumps, encode, loads

T = TypeVar("T")


def through_the_log(value: object) -> Any:
    return decode(loads(dumps(encode(value))))


@register(name="models.Line")
class Line(BaseModel):
    text: str
    price: int = 3
    tags: list[str] = []


@register(name="models.Order")
class Order(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, validate_assignment=True)
    lines: list[Line]
    by_name: dict[str, Line | None] = Field(default_factory=dict, alias="byName")
    _note: Any = PrivateAttr(default=None)
    _late: Any = PrivateAttr()


class Reply(BaseModel, Generic[T]):
    item: T


@register(name="models.Strict")
class Strict(BaseModel):
    _runs: int = PrivateAttr(default=0)
    size: int

    @pydantic.field_validator("size")
    @classmethod
    def check(cls, size: int) -> int:
        if size > 5:
            raise ValueError("too large")
        return size

    def model_post_init(self, _: Any) -> None:
        self._runs += 1


@register(name="models.Tags")
class Tags(pydantic.RootModel[dict[str, int]]):
    _seen: list[int] = PrivateAttr(default_factory=list)


@register(name="models.Data")
@pydantic.dataclasses.dataclass
class Data:
    x: int
    line: Line | None = None


def order() -> Order:
    made = Order(
        lines=[Line(text="a"), Line(text="b", price=5, tags=["c"])], byName={"a": None}, more={"$": 1}, odd=b"x"
    )
    made._note = (1, {2})
    return made


def check_same(back: Any, model: Any) -> None:
    assert type(back) is type(model)
    assert back == model
    assert back.model_fields_set == model.model_fields_set
    assert back.model_extra == model.model_extra
    assert back.__pydantic_private__ == model.__pydantic_private__
    assert back.model_dump() == model.model_dump()
    assert back.model_dump(exclude_unset=True) == model.model_dump(exclude_unset=True)
    assert list(back.__dict__) == list(model.__dict__)


@pytest.mark.parametrize(
    "model",
    [
        Line(text="a"),
        Line(text="a", price=3, tags=[]),
        order(),
        Order(lines=[]),
        Strict(size=5),
        Tags({"a": 1}),
    ],
    ids=repr,
)
def test_a_model_comes_back_with_what_was_set_its_extras_and_private_attributes(model: Any) -> None:
    check_same(through_the_log(model), model)
    check_same(through_the_log([{"in": model}])[0]["in"], model)


def test_a_stored_form_never_changes() -> None:
    assert dumps(encode(Line(text="a", price=1, tags=[]))) == (
        '{"$":"obj","t":"models.Line","v":{"text":"a","price":1,"tags":[]}}'
    )
    assert dumps(encode(order().model_copy(update={"lines": []}))) == (
        '{"$":"obj","t":"models.Order","v":{"lines":[],"by_name":{"a":null}},'
        '"x":{"more":{"$":"dict","v":[["$",1]]},"odd":{"$":"bytes","v":"eA=="}},'
        '"p":{"_note":{"$":"tuple","v":[1,{"$":"set","v":[2]}]}}}'
    )
    assert dumps(encode(Line(text="a"))).endswith('"v":{"text":"a","price":3,"tags":[]},"s":["text"]}')


def test_no_validator_and_no_hook_runs_when_a_model_comes_back() -> None:
    model = Strict(size=5)
    model.size = 50  # what pydantic does not check, the log does not either
    back = through_the_log(model)
    assert (back.size, back._runs) == (50, 1)


def test_a_model_that_came_back_works() -> None:
    back = through_the_log(order())
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        back.lines = []
    line = through_the_log(Line(text="a"))
    line.price = 7
    assert line.model_fields_set == {"text", "price"}
    assert through_the_log(line).model_copy(deep=True) == line
    data = Data(x=1, line=Line(text="a"))
    assert through_the_log(data) == data


def test_a_model_that_pydantic_itself_has_not_finished_is_refused() -> None:
    with pytest.raises(UnstorableValueError, match="has a field 'text' that was never set"):
        encode(Line.model_construct(price=1))
    line = Line(text="a")
    line.__dict__["odd"] = 1
    with pytest.raises(UnstorableValueError, match="has the attribute 'odd', which is no field"):
        encode(line)


def test_what_a_model_holds_is_refused_with_the_path_to_it() -> None:
    made = order()
    made._note = [object()]
    with pytest.raises(UnstorableValueError) as caught:
        encode({"order": made})
    assert caught.value.path == "order._note[0]"
    with pytest.raises(UnstorableValueError) as caught:
        encode(Order(lines=[], more=[1, 2j]))
    assert caught.value.path == "more[1]"


def test_generic_models_are_known_by_their_own_names() -> None:
    def function(one: Reply[Line], two: Reply[dict[str, int]]) -> None: ...

    learn(function)
    for model in (Reply[Line](item=Line(text="a")), Reply[dict[str, int]](item={"a": 1})):
        check_same(through_the_log(model), model)
    with pytest.raises(UnstorableValueError, match=r"Reply\[int\], which the log does not know by name"):
        encode(Reply[int](item=1))


def test_generic_models_of_two_classes_of_one_name_are_two() -> None:
    class Outer:
        class Line(BaseModel):
            pass

    Outer.Line.__qualname__, Outer.Line.__module__ = "Line", "elsewhere"
    registry = Registry()
    registry.register(Reply[Line], "Reply", 1, None)
    with pytest.raises(DefinitionError, match="are both Reply"):
        registry.register(Reply[Outer.Line], "Reply", 1, None)


def test_the_fields_of_a_model_name_classes_too() -> None:
    def function(one: list[Order]) -> Reply[Data]: ...

    assert {cls.__name__ for cls in named_by(function).classes} >= {"Order", "Line", "Data"}


@pytest.mark.parametrize(
    ("after", "value", "why"),
    [
        ("field", Line(text="a"), "has no field 'price'; give register"),
        ("private", order(), "has no private attribute '_note' any more"),
        ("dataclass", order(), "is no pydantic model, so that extras and private attributes have no place in it"),
    ],
)
def test_a_model_that_has_changed_too_much_is_named(after: str, value: Any, why: str) -> None:
    class Short(BaseModel):
        text: str

    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        lines: list[Line]
        by_name: dict[str, Any]

    stored: Any = encode(value) | {"t": f"models.after.{after}"}  # type: ignore[operator]
    register({"field": Short, "private": Open, "dataclass": Data}[after], name=f"models.after.{after}")
    with pytest.raises(UnknownTypeError, match=why):
        decode(stored)


def test_a_new_field_gets_its_default_and_counts_as_not_set() -> None:
    @register(name="models.Longer", version=2, upgrade=lambda fields, _: {**fields, "upgraded": 1})
    class Longer(BaseModel):
        text: str
        upgraded: int
        tags: list[str] = []
        more: dict[str, int] = Field(default_factory=dict)
        made: int = 0
        _new: int = PrivateAttr(default=7)

    back: Any = decode({"$": "obj", "t": "models.Longer", "v": {"text": "a", "made": 1}, "s": ["text"]})
    assert (back.text, back.upgraded, back.tags, back.more, back.made, back._new) == ("a", 1, [], {}, 1, 7)
    assert back.model_fields_set == {"text", "upgraded"}
    assert back.tags is not Longer.model_fields["tags"].default


def test_what_a_person_types_becomes_a_model_or_says_why_not() -> None:
    assert convert({"text": "a", "price": "7"}, Line) == Line(text="a", price=7)
    assert convert([{"item": 1}], list[Reply[int]]) == [Reply[int](item=1)]
    line = Line(text="a")
    assert convert(line, Line) is line
    with pytest.raises(
        ValueError, match=r"^\[0\]: expected Line, found \{'price': 'x'\} \(dict\); text: Field required; price: "
    ):
        convert([{"price": "x"}], list[Line])


def test_the_domain_never_imports_pydantic() -> None:
    program = (
        "import sys\n"
        "from dataclasses import dataclass\n"
        "from domain.values import encode, decode, convert\n"
        "from domain.types import register, learn\n"
        "@register\n@dataclass\nclass A: x: int\n"
        "assert decode(encode(A(1))) == convert({'x': 1}, A)\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    home = str(Path(__file__).parents[1])
    subprocess.run([sys.executable, "-c", program], cwd=home, check=True, timeout=60)
