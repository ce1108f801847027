"""What can be an entity, what its events are called, and logs that this code cannot read, or only after a change."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import AgentSystem, DefinitionError, Entity, EntityCrashError, Rejected, UnreadableEntityError, event
from actors.entity_log import stream_of
from actors.task_log import TaskLog
from domain.entity import Entity as DomainEntity
from domain.entity import deciding
from domain.entity_state import copy_of
from domain.values import encode
from stores import Store, open_store
from tests.budgets import Budget, bookings, replayed, rows
from tests.scenario_kit import World


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "entities.db"


@pytest.fixture
def disk(path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{path}") as opened:
        yield opened


@pytest.fixture
def client(disk: Store) -> Iterator[AgentSystem]:
    with AgentSystem(disk, run=False) as opened:
        yield opened


# ------------------------------------------------------------------ definitions

INIT = "entity Broken: __init__ takes limit, but an entity of any id exists without being made"
SETTER = "@property\n def n(self): ...\n @n.setter\n @event('N')\n def n(self, n): ..."
BROKEN = {
    "pass": 'entity Broken needs a name for the log that outlives its code: TOPIC = "broken"',
    "TOPIC = ''": "needs a name",
    "TOPIC = 'with space'": "not 'with space'",
    "TOPIC = 'a\\x1fb'": "needs a name",
    "TOPIC = 'x' * 101": "needs a name",
    "TOPIC = 7": "not 7",
    "TOPIC = 'tests.budget'": "'tests.budget' of .* already registered",
    "TOPIC = 'tests.budget.Spent'": "'tests.budget.Spent' of .* already registered",
    "def __init__(self, limit): ...": INIT,
    "def __init__(self, *, limit): ...": INIT,
    "limit: int": INIT,
    "def __init__(self, **all): ...": r"\*\*all not supported",
    "notes: list = field(default_factory=list)": "default_factory",
    "notes: list = []": "mutable default",
    "async def wait(self): ...": "wait is an async def, but a command decides at once",
    "async def wait(self): yield": "wait is an async def",
    "@event('Done')\n async def done(self): ...": "done is an async def",
    "PASSIVATE_AFTER = '5'": "PASSIVATE_AFTER is a number of seconds from 0 to .*, not '5'",
    "PASSIVATE_AFTER = -1": "PASSIVATE_AFTER",
    "PASSIVATE_AFTER = float('inf')": "PASSIVATE_AFTER",
    "PASSIVATE_AFTER = None": "PASSIVATE_AFTER",
    "__slots__ = ('spent',)": "__slots__",
    "def __len__(self): return 0": "__len__ or __bool__",
    "def __bool__(self): return False": "__len__ or __bool__",
    "@event('Done')\n def done(self, timestamp): ...": "Done has a field timestamp, which each event has",
    "@event('Done')\n def done(self, originator_version): ...": "Done has a field originator_version",
    "class Done(Entity.Event):\n  originator_id: int": "Done has a field originator_id",
    "@event('Done')\n def one(self): ...\n @event('Done')\n def two(self): ...": "Done event already defined",
    "@event('Created')\n def done(self): ...": "Created event already defined",
    "@event('Done', topic='tests.budget.Spent')\n def done(self): ...": "already registered",
    "id = 7": "Setting attribute 'id'",
    SETTER: "@event belongs above the setter",
    "def create_id(self): ...": "create_id",
    "@staticmethod\n def create_id(): return 'x'": "it redefines create_id, which an entity has from its log",
    "INITIAL_VERSION = 0": "it redefines INITIAL_VERSION",
    "@property\n def version(self): return '1.2'": "it redefines version",
}


@pytest.mark.parametrize("body", list(BROKEN), ids=lambda body: re.sub(r"\W+", "-", body)[:60])
def test_what_cannot_be_an_entity_is_refused_where_it_is_defined(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = "" if body == "pass" or body.startswith("TOPIC") else f"TOPIC = 'tests.broken-{abs(hash(body))}'\n "
    source = f"from dataclasses import field\nfrom actors import Entity, event\nclass Broken(Entity):\n {topic}{body}\n"
    module = ModuleType("tests.broken_entity")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(DefinitionError, match=BROKEN[body]):
        exec(source, vars(module))


def test_a_subclass_of_an_entity_needs_a_name_of_its_own() -> None:
    with pytest.raises(DefinitionError, match='TOPIC = "sub"'):

        class Sub(Budget):
            pass


# ------------------------------------------------------------------ kinds of events


@dataclass(frozen=True)
class Money:
    amount: int
    currency: str = "EUR"


@dataclass(frozen=True)
class Coin:
    cents: int


@dataclass(frozen=True)
class Note:
    euros: int


class Counting:
    """A plain base class, whose commands are an entity's too."""

    def add_money(self, money: Money) -> int:
        self.trigger_event(self.Paid, money=money)  # type: ignore[attr-defined]
        return self.count  # type: ignore[attr-defined,no-any-return]

    def worth(self, note: Note) -> int:
        return note.euros


class Till(Counting, Entity):
    TOPIC = "tests.till"
    PASSIVATE_AFTER: ClassVar[float] = 5
    opened: int = 7

    class Paid(Entity.Event):
        money: Money

        def apply(self, till: Any) -> None:
            till.count += self.money.amount

    class Closed(Entity.Event):
        TOPIC = "till-closed"
        by: str

    class Found(Entity.Event):
        coin: Coin

        def apply(self, till: Any) -> None:
            till.count += self.coin.cents

    def __post_init__(self) -> None:
        self.count = self.opened

    @event(Closed)
    def close(self, by: str) -> None:
        self.count = 0

    @event("Lost", topic="till-lost")
    def lose(self, amount: int = 1) -> None:
        self.count -= amount

    @event
    def count_again(self, found: int) -> None:
        self.count = found

    def find(self, cents: int) -> int:
        self.trigger_event(self.Found, coin=Coin(cents))
        return self.count

    def name(self) -> str:
        return f"{self.id} {self.version}"

    @staticmethod
    def currency(of: Money) -> str:
        return of.currency

    @classmethod
    def kind(cls) -> str:
        return cls.__name__


class NightTill(Till):
    TOPIC = "tests.night-till"

    def close(self, by: str) -> None:
        super().close(by=f"{by} at night")

    @event("Lit")
    def light(self) -> None:
        self.count += 100


def test_events_have_topics_of_their_own_or_of_their_entity(disk: Store, client: AgentSystem) -> None:
    till = client.entity(Till, "t")
    assert till.ask(Till.add_money, Money(3)) == 10
    till.ask(Till.lose)
    till.ask(Till.close, by="ann")
    till.ask(Till.count_again, found=5)
    assert till.ask(Till.find, 1) == 6, "a class is known by an event's annotation"
    assert till.ask(Till.worth, Note(5)) == 5, "and by that of a command which is a plain base class's"
    assert [(row.topic, row.fields) for row in rows(disk, "t", Till)] == [
        ("tests.till.Created", {"opened": 7}),
        ("tests.till.Paid", {"money": {"$": "obj", "t": "Money", "v": {"amount": 3, "currency": "EUR"}}}),
        ("till-lost", {"amount": 1}),
        ("till-closed", {"by": "ann"}),
        ("tests.till.CountAgain", {"found": 5}),
        ("tests.till.Found", {"coin": {"$": "obj", "t": "Coin", "v": {"cents": 1}}}),
    ]
    assert (till.ask(Till.name), till.ask(Till.currency, Money(1, "CHF")), till.ask(Till.kind)) == (
        "t 6",
        "CHF",
        "Till",
    )
    assert vars(replayed(disk, "t", Till).aggregate)["count"] == 6


def test_an_inherited_entity_is_one_of_its_own(disk: Store, client: AgentSystem) -> None:
    client.entity(Till, "t").ask(Till.lose)
    night = client.entity(NightTill, "t")
    assert night.ask(Till.add_money, Money(3)) == 10
    night.ask(NightTill.light)
    night.ask(NightTill.lose, 10)
    assert vars(replayed(disk, "t", NightTill).aggregate)["count"] == 100
    night.ask(NightTill.close, "ann")
    assert rows(disk, "t", NightTill)[-1].fields == {"by": "ann at night"}
    assert [row.version for row in rows(disk, "t", Till)] == [1, 2]
    with pytest.raises(TypeError, match="a command of Till"):
        client.entity(Till, "t").ask(NightTill.light)  # type: ignore[arg-type]


class Strange(Entity):
    TOPIC = "tests.strange"

    def __init__(self) -> None:
        self.count = 0

    def trigger(self) -> None:
        self.trigger_event(Outside)


class Outside(Strange.Event):
    pass


def test_an_event_that_has_no_topic_is_a_crash(disk: Store, client: AgentSystem) -> None:
    with pytest.raises(EntityCrashError, match="Outside"):
        client.entity(Strange, "s").ask(Strange.trigger)
    assert rows(disk, "s", Strange) == []


def test_an_aggregate_can_be_used_by_hand_as_in_a_test_of_its_own() -> None:
    budget = Budget()
    assert budget.spend(30) == 70
    with pytest.raises(Rejected):
        budget.spend(71)
    assert (budget.id, budget.version, [type(one).__name__ for one in budget.collect_events()]) == (
        "new",
        2,
        ["Created", "Spent"],
    )
    assert deciding.get() is None
    assert DomainEntity is Entity


# ------------------------------------------------------------------ damage


def flip(path: Path, stream: str, version: int, at: int) -> None:
    """Flip 4 bytes of a row; once more puts them back."""
    where = "WHERE originator_id=? AND originator_version=?"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        (state,) = database.execute(f"SELECT state FROM stored_events {where}", [stream, version]).fetchone()
        changed = bytearray(state)
        changed[at : at + 4] = bytes(byte ^ 0x03 for byte in changed[at : at + 4])
        assert database.execute(f"UPDATE stored_events SET state=? {where}", [changed, stream, version]).rowcount == 1


@pytest.mark.parametrize("at", [0, 8, 17, 60])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_entity_whose_log_was_damaged_is_never_written_to_and_goes_on_once_mended(
    path: Path, disk: Store, client: AgentSystem, at: int, version: int
) -> None:
    for name in ("good", "bad"):
        client.entity(Budget, name).ask(Budget.spend, 10, note="a long note, so that there is something to damage")
        client.entity(Budget, name).ask(Budget.spend, 10, note="a long note, so that there is something to damage")
    flip(path, stream_of(Budget, "bad"), version, at)
    before = disk.recorder.select_events(stream_of(Budget, "bad"))
    with AgentSystem(disk) as worker:
        for _ in range(2):
            with pytest.raises(UnreadableEntityError, match=f"tests.budget bad: version {version} of its log") as error:
                worker.entity(Budget, "bad").ask(Budget.spend, 10)
            assert error.value.version == version
            assert worker.entity(Budget, "good").ask(Budget.left) == 80
        assert disk.recorder.select_events(stream_of(Budget, "bad")) == before
        flip(path, stream_of(Budget, "bad"), version, at)
        assert worker.entity(Budget, "bad").ask(Budget.spend, 10) == 70


def test_damage_that_a_live_entity_has_behind_it_is_seen_by_the_next(
    path: Path, disk: Store, client: AgentSystem
) -> None:
    client.entity(Budget, "b").ask(Budget.spend, 10)
    flip(path, stream_of(Budget, "b"), 1, 20)
    assert client.entity(Budget, "b").ask(Budget.spend, 10) == 80, "what is in memory is right"
    with AgentSystem(disk, run=False) as other, pytest.raises(UnreadableEntityError):
        other.entity(Budget, "b").ask(Budget.left)


def test_a_row_that_is_missing_or_of_another_entity_is_damage(path: Path, client: AgentSystem) -> None:
    for name in ("gap", "donor", "receiver"):
        for _ in range(3):
            client.entity(Budget, name).ask(Budget.spend, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        where = "WHERE originator_id=? AND originator_version=3"
        database.execute(f"DELETE FROM stored_events {where}", [stream_of(Budget, "gap")])
        (state,) = database.execute(f"SELECT state FROM stored_events {where}", [stream_of(Budget, "donor")]).fetchone()
        database.execute(f"UPDATE stored_events SET state=? {where}", [state, stream_of(Budget, "receiver")])
    with AgentSystem(f"sqlite:///{path}", run=False) as other:
        with pytest.raises(UnreadableEntityError, match=r"version 4 of its log .*version 3 is expected"):
            other.entity(Budget, "gap").ask(Budget.left)
        with pytest.raises(UnreadableEntityError, match=r"version 3 of its log cannot be read: .*checksum"):
            other.entity(Budget, "receiver").ask(Budget.left)
        assert other.entity(Budget, "donor").ask(Budget.left) == 97


@pytest.mark.parametrize("version", [1, 2])
def test_a_rebuilt_index_keeps_the_row_of_an_entity_that_cannot_be_read(
    path: Path, disk: Store, client: AgentSystem, version: int
) -> None:
    for name in ("good", "bad"):
        client.entity(Budget, name).ask(Budget.spend, 10)
    before = sorted(disk.recorder.select_entries())
    for at in (17, 25, 40):
        flip(path, stream_of(Budget, "bad"), version, at)
        assert sorted(TaskLog(disk).rebuild_index()) == before
        flip(path, stream_of(Budget, "bad"), version, at)
    assert sorted(TaskLog(disk).rebuild_index()) == before
    assert client.entity(Budget, "bad").ask(Budget.spend, 10) == 80


def test_an_index_row_that_was_lost_is_named_and_can_be_made_again(
    path: Path, disk: Store, client: AgentSystem
) -> None:
    client.entity(Budget, "b").ask(Budget.spend, 10)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("DELETE FROM task_index")
    for _ in range(2):
        with pytest.raises(UnreadableEntityError, match="its index row is not what its log says"):
            client.entity(Budget, "b").ask(Budget.spend, 10)
    TaskLog(disk).rebuild_index()
    assert client.entity(Budget, "b").ask(Budget.spend, 10) == 80
    assert bookings(disk, "b") == [10, 10]


# ------------------------------------------------------------------ other code

OTHER_CODE = """
from actors import AgentSystem, Entity, Rejected, event
from domain.types import register
from dataclasses import dataclass

@register(name="tests.Only.There")
@dataclass
class Only:
    n: int

class Invoice(Entity):
    TOPIC = "tests.invoice"

    class Billed(Entity.Event):
        class_version = {version}
        cents: int
        if {version} == 3:
            to: str = "me"

    class Sent(Entity.Event):
        what: object

    def __init__(self): self.total = 0

    @event(Billed)
    def bill(self, cents): self.total += cents

    @event(Sent)
    def send(self, what): ...

    if {version} == 3:
        @event("Cancelled")
        def cancel(self): ...

with AgentSystem("sqlite:///tasks.db", run=False) as client:
    for name, *commands in {asks!r}:
        for command, *args in commands:
            args = [Only(1) if arg == "Only" else arg for arg in args]
            client.entity(Invoice, name).ask(getattr(Invoice, command), *args)
"""


class Invoice(Entity):
    """The code of today: version 2 of `Billed`, which has euros."""

    TOPIC = "tests.invoice"

    class Billed(Entity.Event):
        class_version = 2
        euros: float

        @staticmethod
        def upcast_v1_v2(state: dict[str, Any]) -> None:
            state["euros"] = state.pop("cents") / 100

    class Sent(Entity.Event):
        what: object

    def __init__(self) -> None:
        self.total = 0.0

    @event(Billed)
    def bill(self, euros: float) -> None:
        self.total += euros

    @event(Sent)
    def send(self, what: object) -> None:
        pass

    def sum(self) -> float:
        return self.total


def test_events_of_older_code_are_raised_to_todays_and_those_of_newer_code_refused(world: World) -> None:
    old = OTHER_CODE.format(version=1, asks=[["old", ["bill", 150], ["bill", 50]]])
    new = [["new", ["bill", 150]], ["gone", ["cancel"]], ["class", ["send", "Only"]], ["fits", ["send", "x"]]]
    world.run(world.write(old))
    world.run(world.write(OTHER_CODE.format(version=3, asks=new)))
    with world.client() as client:
        assert client.entity(Invoice, "old").ask(Invoice.sum) == 2.0
        client.entity(Invoice, "old").ask(Invoice.bill, 1.5)
        assert client.entity(Invoice, "old").ask(Invoice.sum) == 3.5
        assert client.entity(Invoice, "fits").ask(Invoice.sum) == 0.0
        for name, why in (
            ("new", "it is of version 3 of tests.invoice.Billed, this code knows up to 2"),
            ("gone", "topic 'tests.invoice.Cancelled' is not known to this process: import the entity's class"),
            ("class", "tests.Only.There"),
        ):
            with pytest.raises(UnreadableEntityError, match=why):
                client.entity(Invoice, name).ask(Invoice.bill, 1.0)
    with world.client() as client:
        assert client.entity(Invoice, "old").ask(Invoice.sum) == 3.5


# ------------------------------------------------------------------ copies

plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.binary(max_size=3), st.decimals(allow_nan=False)
)
keys = st.one_of(st.integers(), st.text(max_size=3), st.tuples(st.integers(), st.text(max_size=2)))
nested = st.recursive(
    st.one_of(plain, st.sets(st.integers(), max_size=3), st.builds(Money, st.integers())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4), st.tuples(inner, inner)
    ),
)


@given(value=nested)
def test_a_copy_of_a_state_is_equal_and_shares_nothing_that_can_change(value: Any) -> None:
    entity = Budget()
    entity.notes = [value, {"again": value, "twice": [value]}]
    copied = copy_of(entity)
    assert encode(copied.notes) == encode(entity.notes)
    assert not (changeable(copied.notes) & changeable(entity.notes))
    again = copied.notes[1]
    assert again["again"] is copied.notes[0]
    assert again["twice"][0] is copied.notes[0]


def changeable(value: Any) -> set[int]:
    """Give the ids of all that can change in a value."""
    if isinstance(value, list | set):
        return {id(value)}.union(*map(changeable, value))
    if isinstance(value, dict):
        return {id(value)}.union(*map(changeable, value.values()))
    return set().union(*map(changeable, value)) if isinstance(value, tuple) else set()


def test_a_state_may_hold_itself() -> None:
    entity = Budget()
    entity.notes = [entity.notes]
    entity.notes.append(entity.notes)
    copied = copy_of(entity)
    assert copied.notes[1] is copied.notes
    assert copied.notes[1] is not entity.notes
