"""Scenarios about values: P15 all that goes in, P16 what will not."""

from __future__ import annotations

import json

import pytest

from actors import TaskFailedError, TaskHeldError
from domain.errors import UnknownTypeError
from tests.scenario_kit import KILLED, World

TYPES = """
    import enum
    from dataclasses import dataclass, field
    from datetime import UTC, date, datetime, time, timedelta, timezone
    from decimal import Decimal
    from pathlib import Path, PurePosixPath, PureWindowsPath
    from typing import NamedTuple
    from uuid import UUID
    from zoneinfo import ZoneInfo
    from domain.types import register

    @register
    class Plain(enum.Enum):
        RED = "red"

    @register
    class Text(str, enum.Enum):
        RED = "red"

    @register
    class Tone(enum.StrEnum):
        WARM = "warm"

    @register
    class Size(enum.IntEnum):
        BIG = 3

    @register
    class Access(enum.Flag):
        READ = 1
        WRITE = 2

    @register
    @dataclass
    class Line:
        text: str
        price: Decimal | None = None

    @register
    @dataclass
    class Invoice:
        number: int
        lines: list[Line]

    @register
    @dataclass(frozen=True, slots=True)
    class Key:
        name: str

    @register
    class Point(NamedTuple):
        x: int
        y: float

    NEW_YORK = ZoneInfo("America/New_York")

    def scenario():
        return {
            "early": datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK),
            "late": datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1),
            "date": date(2026, 11, 1),
            "uuid": UUID(int=7),
            "decimal": Decimal("1.10"),
            "bytes": bytes(range(256)),
            "set": {"a", "b", 3},
            "tuple": (1, (2,)),
            "int key": {1: "one"},
            "enum": Plain.RED,
            "text enum": Text.RED,
            "invoice": Invoice(7, [Line("a"), Line("b", Decimal("2.50"))]),
            "large": 2**63 + 1,
            "float": 0.1 + 0.2,
        }

    def more():
        return {
            "nothing": [None, {}, [], (), set(), frozenset(), "", b""],
            "both booleans": [True, False, 1, 0, 1.0, -0.0],
            "floats": [float("inf"), float("-inf"), 5e-324],
            "digits": 10**5000,
            "time": time(1, 30, tzinfo=UTC, fold=1),
            "zone": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45), "Nepal")),
            "duration": timedelta(days=-1, microseconds=1),
            "decimals": [Decimal("-0"), Decimal("1E+400"), Decimal("Infinity")],
            "paths": [Path("a/../b"), PurePosixPath("/"), PureWindowsPath("C:/x")],
            "flags": [Access.READ, Access.READ | Access.WRITE, Access(0)],
            "more enums": {Tone.WARM: Size.BIG},
            "sets": {frozenset({Key("a"), Point(1, 2.0)}), (Key("b"), Plain.RED)},
            "keys": {Key("a"): 1, Point(1, 2.0): 2, None: 3, (1, 2): 4, 2.5: 5, b"x": 6, "$": 7},
            "looks like a tag": [{"$": "bytes", "v": "AAEC"}, {"$": "obj", "t": "Line", "v": {}}, {"$": None}],
            "text": "a\\ud83db\\0ce\\u0301",
        }

    def told(value):
        kind = type(value)
        if kind in (list, tuple) or hasattr(kind, "_fields"):
            return kind.__name__, [told(item) for item in value]
        if kind in (set, frozenset):
            return kind.__name__, sorted([told(item) for item in value], key=repr)
        if kind is dict:
            return kind.__name__, [(told(key), told(item)) for key, item in value.items()]
        if kind in (Invoice, Line, Key):
            return kind.__name__, [(name, told(getattr(value, name))) for name in kind.__dataclass_fields__]
        if kind is datetime:
            return kind.__name__, repr(value), value.astimezone(UTC).isoformat()
        return kind.__name__, hex(value) if kind is int else repr(value)
"""
ROUND_TRIP = """
    import json
    import sys
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, die_once, effect, say
    import kinds

    def point(name):
        if name in sys.argv:
            die_once(name)

    @step
    def give(what):
        effect("gave")
        return getattr(kinds, what)()

    @step
    def compare(what, value, given):
        effect("compared")
        expected = getattr(kinds, what)()
        wrong = [key for key in expected if kinds.told(value[key]) != kinds.told(expected[key])]
        return [wrong, kinds.told(given) == kinds.told(expected)]

    @agent
    def carry(what, given):
        value = give(what)
        point("C")
        answer = compare(what, value, given)
        point("end")
        return [answer, value]

    with AgentSystem(STORE) as system:
        wrong = []
        for what in ("scenario", "more"):
            expected = getattr(kinds, what)()
            answer, value = system.spawn(carry, what, expected, id=what).result(30)
            wrong += [] if answer == [[], True] else [answer]
            wrong += [key for key in expected if kinds.told(value[key]) != kinds.told(expected[key])]
        early, late = (kinds.scenario()[key].astimezone(kinds.UTC).isoformat() for key in ("early", "late"))
        say(json.dumps([wrong, early, late]))
"""
HALF_PAST_ONE = ["2026-11-01T05:30:00+00:00", "2026-11-01T06:30:00+00:00"]


@pytest.mark.parametrize("points", [[], ["C"], ["end"], ["C", "end"]], ids=lambda points: "+".join(points) or "none")
def test_what_goes_in_comes_out_equal_and_of_the_same_type(world: World, points: list[str]) -> None:
    """P15: live, and handed over to a new process after a kill: as argument, as result, and to the next step."""
    world.write(TYPES, "kinds.py")
    program = world.write(ROUND_TRIP)
    for _ in points:
        world.run(program, *points, code=KILLED)
    assert json.loads(world.run(program, *points)) == [[], *HALF_PAST_ONE]
    assert json.loads(world.run(program, *points)) == [[], *HALF_PAST_ONE]
    assert (world.count("gave"), world.count("compared")) == (2, 2)


def test_the_results_of_a_process_that_has_other_classes_are_listed_and_named_not_guessed(world: World) -> None:
    """P15: a silent change is the only wrong answer, and another process has not the classes."""
    world.write(TYPES, "kinds.py")
    world.run(world.write(ROUND_TRIP))
    with world.client() as client:
        assert [task.status() for task in client.tasks()] == ["completed"] * 2
        for task in client.tasks():
            assert task.describe().steps
            with pytest.raises(UnknownTypeError, match="which is not known here"):
                task.result(timeout=5)


GONE = """
    import enum
    import json
    import sys
    from dataclasses import dataclass
    from actors import AgentSystem, TaskError, agent, step
    from domain.types import register
    from tests.scenario_kit import STORE, die_once, effect, say

    mode = sys.argv[1]
    if mode == "field":
        @register(version=2)
        @dataclass
        class Invoice:
            digits: str
    elif mode != "class":
        @register(version=1 if mode == "version" else 2)
        @dataclass
        class Invoice:
            number: int
            kind: object

    @register
    class Kind(enum.Enum):
        PAID = 1
        if mode != "member":
            OPEN = 2

    @step
    def bill():
        effect("billed")
        return {"invoices": [Invoice(7, Kind.OPEN)]}

    @step
    def send(number):
        effect("sent")
        return number

    @agent
    def billing():
        invoice = bill()["invoices"][0]
        if mode == "first":
            die_once("C")
        return send(invoice.number)

    with AgentSystem(STORE) as system:
        task = system.task("billing") if mode == "look" else system.spawn(billing, id="billing")
        try:
            say(json.dumps([task.result(30)]))
        except TaskError as error:
            say(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("class", "of the class Invoice, which is not known here"),
        ("member", "Kind has no member 'OPEN'"),
        ("version", "is of version 1 here, and version 2 was stored"),
        ("field", "has no field 'number'"),
    ],
)
def test_a_class_that_is_not_there_any_more_holds_the_task_and_runs_nothing_until_it_is_back(
    world: World, mode: str, told: str
) -> None:
    """P15, the same kind: the code of the next process has not what was stored; with it, the task goes on."""
    program = world.write(GONE)
    world.run(program, "first", code=KILLED)
    for _ in range(2):
        name, message = json.loads(world.run(program, mode))
        assert name == "TaskHeldError"
        assert told in message
        assert "step 1 bill" in message
    assert (world.count("billed"), world.count("sent")) == (1, 0)
    with world.client() as client:
        client.task("billing").release(by="operator")
    assert json.loads(world.run(program, "back")) == [7]
    assert (world.count("billed"), world.count("sent")) == (1, 1)


# ------------------------------------------------------------------ P16


UNSTORABLE = """
    import enum
    import json
    import sys
    import threading
    from collections import OrderedDict, defaultdict
    from dataclasses import dataclass
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, answer, die_once, effect, say

    @dataclass
    class Unregistered:
        x: int

    class Colour(enum.Enum):
        RED = 1

    def ring():
        items = []
        items.append(items)
        return items

    def deep():
        value = []
        for _ in range(100_000):
            value = [value]
        return value

    class Hostile:
        def __repr__(self):
            raise RuntimeError("not to be shown")

        __eq__ = __hash__ = __reduce__ = __getstate__ = None

    MAKERS = {
        "_thread.lock": threading.Lock,
        "generator": lambda: (n for n in range(3)),
        "function": lambda: ring,
        "module": lambda: sys,
        "TextIOWrapper": lambda: sys.stderr,
        "complex": lambda: 1j,
        "object": object,
        "Unregistered": lambda: Unregistered(1),
        "Colour": lambda: Colour.RED,
        "OrderedDict": lambda: OrderedDict(a=1),
        "defaultdict": lambda: defaultdict(list),
        "contains itself": ring,
        "nested too deeply": deep,
        "Hostile": Hostile,
    }

    @step(retries=3)
    def pay(name):
        effect("pay")
        return {"items": [1, 2, MAKERS[name]()]}

    @agent
    def shop(name):
        return pay(name)

    @agent
    def give(name):
        return {"items": [1, 2, MAKERS[name]()]}

    @step
    def ship(number):
        effect("ship")
        return number

    @agent
    def healthy():
        return sum(ship(number) for number in range(3))

    with AgentSystem(STORE) as system:
        tasks = [system.spawn(each, name, id=f"{each.name} {name}") for name in MAKERS for each in (shop, give)]
        tasks.append(system.spawn(healthy, id="healthy"))
        say(json.dumps([answer(task) for task in tasks]))
"""
UNSTORABLE_NAMES = [
    "_thread.lock",
    "generator",
    "function",
    "module",
    "TextIOWrapper",
    "complex",
    "object",
    "Unregistered",
    "Colour",
    "OrderedDict",
    "defaultdict",
    "contains itself",
    "nested too deeply",
    "Hostile",
]


def test_what_cannot_be_stored_fails_the_task_once_with_the_path_and_the_type(world: World) -> None:
    """P16: a lock in items[2], and every other kind of thing; no retry; neighbours go on.

    What an agent returns is a bug like any other of its code: held, with what it has paid for kept.
    """
    program = world.write(UNSTORABLE)
    expected = ["TaskFailedError", "TaskHeldError"] * len(UNSTORABLE_NAMES) + [3]
    for _ in range(2):
        assert json.loads(world.run(program)) == expected
        assert world.count("pay") == len(UNSTORABLE_NAMES)
        assert world.count("ship") == 3
    assert all(line.attempt == 1 for line in world.ledger("pay"))
    with world.client() as client:
        assert len(client.tasks(status="failed")) == len(client.tasks(status="held")) == len(UNSTORABLE_NAMES)
        for name in UNSTORABLE_NAMES:
            for task, where in ((f"shop {name}", "step 1 pay"), (f"give {name}", "what the agent returned")):
                with pytest.raises((TaskFailedError, TaskHeldError)) as failed:
                    client.task(task).result(timeout=5)
                fault = client.task(task).describe().fault
                assert fault is not None
                assert fault.is_a("domain.errors:UnstorableValueError")
                for told in ("items[2]", name, where, "cannot be stored"):
                    assert told in str(failed.value), task
                assert len(str(failed.value)) < 2_000
