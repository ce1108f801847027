"""Whatever is stored comes back equal and of the same type: from text, from each store, and in another process."""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors import AgentSystem, agent, step
from domain.events import StepSucceeded
from domain.types import register
from domain.values import decode, digest, dumps, encode, loads
from tests.test_values import hashable, lookalikes, opaque, texts, told, values

try:
    from pydantic import BaseModel, ConfigDict, PrivateAttr, RootModel
except ImportError:  # pragma: no cover
    BaseModel = None  # type: ignore[assignment,misc]


@register(name="trip.Colour")
class Colour(enum.Enum):
    RED = "red"
    GREEN = ("g", 1)


@register(name="trip.Level")
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@register(name="trip.Tone")
class Tone(enum.StrEnum):
    WARM = "warm"


@register(name="trip.Access")
class Access(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4
    BOTH = 3


@register(name="trip.Bits")
class Bits(enum.IntFlag):
    ONE = 1
    FOUR = 4


@register(name="trip.Key", version=3)
@dataclass(frozen=True, slots=True)
class Key:
    name: Any
    part: Any = None


@register(name="trip.Node")
@dataclass
class Node:
    value: Any
    nodes: list[Any] = field(default_factory=list)
    depth: int = field(default=0, init=False, kw_only=True)


class Pair(NamedTuple):
    one: Any
    other: Any = ()


register(Pair, name="trip.Pair")
Row = register(namedtuple("Row", "id"), name="trip.Row")  # noqa: PYI024

members = st.sampled_from([*Colour, *Level, Tone.WARM, *Access, Access.BOTH])
flags = st.builds(Access, st.integers(0, 7)) | st.builds(Bits, st.integers(0, 40))


def more_keys(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    inner = opaque(inner)
    sets = st.frozensets(inner, max_size=3)
    return st.builds(Key, inner, inner) | st.builds(Pair, inner, inner) | st.builds(Row, inner) | sets


keys = opaque(st.recursive(opaque(hashable | members | flags), more_keys, max_leaves=4))


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def deepen(node: Node, depth: int) -> Node:
        node.depth = depth
        return node

    return st.builds(deepen, st.builds(Node, inner, st.lists(inner, max_size=3)), st.integers())


def models(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make pydantic models, where there is pydantic."""
    return st.nothing()


if BaseModel is not None:

    @register(name="trip.Model")
    class Model(BaseModel):
        model_config = ConfigDict(extra="allow")
        item: Any
        count: int = 0
        _seen: Any = PrivateAttr(default=None)

    @register(name="trip.Plain")
    class Plain(BaseModel):
        item: Any = None
        model: Model | None = None

    @register(name="trip.Root")
    class Root(RootModel[list[Any]]):
        pass

    extras = st.sampled_from(["more", "$", "", "é\0", "item 2"])

    def models(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        def build(item: Any, seen: Any, more: dict[str, Any]) -> Model:
            model = Model(item=item, **more)
            model._seen = seen
            return model

        full = st.builds(build, inner, inner, st.dictionaries(extras, inner, max_size=2))
        plain = st.builds(Plain) | st.builds(Plain, item=inner) | st.builds(Plain, model=full)
        return full | plain | st.builds(Root, st.lists(inner, max_size=2))


def more_values(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    inner = opaque(inner)
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(texts | st.just("$"), inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.sets(keys, max_size=3)
        | st.builds(Pair, inner, inner)
        | nodes(inner)
        | models(inner)
    )


everything = opaque(st.recursive(opaque(values | lookalikes) | keys, more_values, max_leaves=8))
slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def told_fully(value: Any) -> Any:
    """Tell all that makes a value what it is, inside structures too."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        return kind, repr(value)
    if is_dataclass(kind):
        return kind, [(one.name, told_fully(getattr(value, one.name))) for one in fields(kind)]
    if kind in (list, tuple) or hasattr(kind, "_fields"):
        return kind, [told_fully(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted([told_fully(item) for item in value], key=repr)
    if kind is dict:
        return kind, [(told_fully(key), told_fully(item)) for key, item in value.items()]
    if BaseModel is not None and isinstance(value, BaseModel):
        beside = (value.__pydantic_extra__, value.__pydantic_private__)
        return kind, told_fully(dict(value.__dict__)), told_fully(value.model_fields_set), told_fully(list(beside))
    return told(value)


# ------------------------------------------------------------------ through text


@slow
@given(everything)
def test_every_value_comes_back_equal_and_of_the_same_type(value: object) -> None:
    text = dumps(encode(value))
    back = decode(loads(text))
    assert text.isascii()
    assert told_fully(back) == told_fully(value)
    assert dumps(encode(back)) == text


@slow
@given(everything, st.randoms(use_true_random=False))
def test_a_digest_is_blind_for_order_at_every_depth(value: object, random: Any) -> None:
    def shuffled(part: Any) -> Any:
        kind = type(part)
        if kind is dict:
            pairs = [(key, shuffled(item)) for key, item in part.items()]
            random.shuffle(pairs)
            return dict(pairs)
        if kind in (list, tuple, Pair):
            items = [shuffled(item) for item in part]
            return Pair(*items) if kind is Pair else kind(items)
        if kind in (set, frozenset):
            items = list(part)
            random.shuffle(items)
            return kind(items)
        return part

    assert digest(encode(shuffled(value))) == digest(encode(value))


@slow
@given(everything)
def test_a_stored_value_in_the_place_of_a_value_stays_what_it_is(value: object) -> None:
    stored = encode(value)
    assert told_fully(decode(encode(stored))) == told_fully(stored)


# ------------------------------------------------------------------ through a store


payloads: dict[int, Any] = {}
numbers = count()


@step
def give(number: int) -> Any:
    return payloads[number]


@step
def tell(value: Any) -> str:
    return repr(told_fully(value))


@agent
def carry(number: int, given: Any) -> Any:
    value = give(number)
    return [value, tell(value), given]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_every_value_comes_back_from_a_store(tmp_path: Path, kind: str) -> None:
    url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/tasks.db"
    with AgentSystem(url) as system:

        @settings(slow, max_examples=60)
        @given(everything)
        def check(value: Any) -> None:
            number = next(numbers)
            payloads[number] = value
            task = system.spawn(carry, number, value, id=f"{kind}-{number}")
            check_result(task.result(timeout=30), value)
            stored = next(event.value for event in task.events() if isinstance(event, StepSucceeded))
            assert told_fully(decode(stored)) == told_fully(value)

        check()
    if kind == "sqlite":
        with AgentSystem(url, run=False) as client:
            for task in client.tasks():
                check_result(task.result(timeout=30), payloads[int(task.id.partition("-")[2])])


def check_result(result: Any, value: Any) -> None:
    returned, in_the_next_step, given = result
    assert told_fully(returned) == told_fully(value)
    assert in_the_next_step == repr(told_fully(value))
    assert told_fully(given) == told_fully(value)


# ------------------------------------------------------------------ in another process


def answer_all() -> None:
    """Answer each encoded value on standard input by what is made of it here."""
    for line in sys.stdin:
        value = decode(loads(line.rstrip("\n")))
        again = encode(value)
        print(json.dumps([dumps(again), digest(again), repr(told_fully(value))]), flush=True)


@contextmanager
def other_process(seed: str) -> Iterator[Any]:
    """Give a function that asks a process with another hash seed."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import answer_all; answer_all()"],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None

    def ask(text: str) -> Any:
        child.stdin.write(f"{text}\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline())

    with child:
        try:
            yield ask
        finally:
            child.stdin.close()
            child.wait(30)


@pytest.mark.parametrize("seed", ["1", "2026"])
def test_every_value_is_the_same_in_another_process_with_another_hash_seed(seed: str) -> None:
    with other_process(seed) as ask:

        @settings(slow, max_examples=200)
        @given(everything)
        def check(value: object) -> None:
            stored = encode(value)
            assert ask(dumps(stored)) == [dumps(stored), digest(stored), repr(told_fully(value))]

        check()
