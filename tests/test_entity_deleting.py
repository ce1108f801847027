"""Deleting entities: what goes and what stays, what those meet who knew it, and what a death in the middle leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors import (
    AgentSystem,
    Entity,
    InsideTaskError,
    StoreUnavailableError,
    SystemClosedError,
    UnreadableEntityError,
    agent,
    entity,
    event,
    step,
)
from actors.commit import has_lost_its_row
from actors.entity_log import EntityLog, stream_of
from actors.patience import Patience
from actors.task_log import TaskLog
from actors.testing import CrashPlan, SimulatedCrash
from actors.verify import Read, verify
from stores import IndexRow, Store, open_store
from stores.crash import CrashingStore, FaultPlan
from tests.budgets import PATIENCE, Budget, bookings, gate, living, replayed, rows
from tests.lives import wait_for
from tests.test_store_hygiene import bytes_of

SECRET = "the name of somebody who wants to be forgotten"


class Person(Entity):
    TOPIC = "deleting.person"

    def __init__(self) -> None:
        self.name = ""

    def call(self, name: str) -> str:
        before = self.name
        self.called(name)
        return before

    @event("Called")
    def called(self, name: str) -> None:
        self.name = name

    def who(self) -> str:
        return self.name


@step
def forget(name: str) -> bool:
    return entity(Budget, name).delete()


@agent(name="deleting: spends, deletes, spends")
def spends() -> list[Any]:
    budget = entity(Budget, "b")
    return [budget.ask(Budget.spend, 10), forget("b"), forget("b"), budget.ask(Budget.spend, 1)]


@pytest.fixture
def disk(new_store: Callable[[], str | None]) -> Iterator[Store]:
    with open_store(new_store() or "memory:") as store:
        yield store


@pytest.fixture
def system(disk: Store) -> Iterator[AgentSystem]:
    with AgentSystem(disk) as opened:
        yield opened


@pytest.fixture
def elsewhere(disk: Store) -> Iterator[AgentSystem]:
    """Give a system that shares the store alone with the other: what it deletes, the other is not told."""
    with AgentSystem(disk, run=False) as opened:
        yield opened


def left(disk: Store) -> list[str]:
    """Name what the store has of anything, in its log and its index."""
    ids = {*disk.recorder.select_ids(), *(row.id for row in disk.recorder.select_entries())}
    return sorted(name.replace("\x1f", " ") for name in ids)


def sound(disk: Store) -> None:
    assert list(verify(TaskLog(disk), Read())) == []


def test_a_deleted_entity_leaves_nothing_is_new_then_and_its_neighbours_stay(disk: Store, system: AgentSystem) -> None:
    for name in ("b", "bb"):
        system.entity(Budget, name).ask(Budget.spend, 30)
    system.entity(Person, "b").ask(Person.call, "Ann")
    with AgentSystem(disk, run=False) as client:
        client.spawn(spends, id="b").cancel()
    birth = replayed(disk, "b").birth
    assert system.entity(Budget, "b").delete()
    wait_for(lambda: "tests.budget b" not in living(system))
    assert left(disk) == ["b", "deleting.person b", "tests.budget bb"]
    assert not system.entity(Budget, "b").delete()
    assert system.entity(Budget, "b").ask(Budget.left) == 100
    assert system.entity(Budget, "b").ask(Budget.spend, 1) == 99
    assert [row.version for row in rows(disk, "b")] == [1, 2]
    assert replayed(disk, "b").birth != birth
    assert system.entity(Budget, "bb").ask(Budget.left) == 70
    assert system.entity(Person, "b").ask(Person.who) == "Ann"
    sound(disk)


def test_after_a_vacuum_no_text_of_a_deleted_entity_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with open_store(f"sqlite:///{path}") as store, AgentSystem(store) as system:
        system.entity(Person, "p").with_key(SECRET).ask(Person.call, SECRET)
        assert SECRET.encode() in bytes_of(path)
        system.entity(Person, "p").delete()
        system.vacuum()
        assert SECRET.encode() not in bytes_of(path)


@pytest.mark.parametrize("spent", [[], [1], [1, 2], [1, 2, 3]], ids=lambda spent: f"{len(spent)} since")
def test_who_has_it_in_memory_elsewhere_meets_the_new_one(
    disk: Store, system: AgentSystem, elsewhere: AgentSystem, spent: list[int]
) -> None:
    """However long the new log is, compared with the old one, of which a question reads no more than what is new."""
    for amount in (30, 20):
        system.entity(Budget, "b").ask(Budget.spend, amount)
    assert elsewhere.entity(Budget, "b").delete()
    for amount in spent:
        elsewhere.entity(Budget, "b").ask(Budget.spend, amount)
    assert system.entity(Budget, "b").ask(Budget.left) == 100 - sum(spent)
    assert system.entity(Budget, "b").ask(Budget.spend, 4) == 96 - sum(spent)
    assert elsewhere.entity(Budget, "b").ask(Budget.left) == 96 - sum(spent)
    assert bookings(disk, "b") == [*spent, 4]
    sound(disk)


@pytest.mark.parametrize("spent", [[], [1], [1, 2]], ids=lambda spent: f"{len(spent)} since")
def test_a_command_that_is_stored_after_the_deletion_is_decided_again_by_the_new_one(
    disk: Store, system: AgentSystem, elsewhere: AgentSystem, spent: list[int]
) -> None:
    system.entity(Budget, "b").ask(Budget.spend, 30)
    with gate("late") as late:
        answers: list[int] = []
        asked = threading.Thread(
            target=lambda: answers.append(system.entity(Budget, "b").ask(Budget.spend_at, "late", 5))
        )
        asked.start()
        assert late.reached.wait(PATIENCE)
        elsewhere.entity(Budget, "b").delete()
        for amount in spent:
            elsewhere.entity(Budget, "b").ask(Budget.spend, amount)
        late.opened.set()
        asked.join(PATIENCE)
    assert answers == [95 - sum(spent)]
    assert bookings(disk, "b") == [*spent, 5]
    sound(disk)


def test_a_first_command_that_another_was_before_is_done_though_the_others_is_deleted_by_then(
    disk: Store, system: AgentSystem, elsewhere: AgentSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_on, log = EntityLog.read_on, system.runtime.entities.log

    def read_late(self: EntityLog, *args: Any) -> Any:
        if self is log and bookings(disk, "b"):  # it has met a conflict, and looks what was first
            EntityLog(disk).delete(Budget.TOPIC, "b", Patience(0.0))
        return read_on(self, *args)

    with gate("first") as first:
        answers: list[int] = []
        ask = partial(system.entity(Budget, "b").ask, Budget.spend_at, "first", 5)
        asked = threading.Thread(target=lambda: answers.append(ask()))
        asked.start()
        assert first.reached.wait(PATIENCE)
        elsewhere.entity(Budget, "b").ask(Budget.spend, 50)
        monkeypatch.setattr(EntityLog, "read_on", read_late)
        first.opened.set()
        asked.join(PATIENCE)
    assert answers == [95]
    assert bookings(disk, "b") == [5]


def test_a_key_of_the_deleted_one_counts_no_more(disk: Store, system: AgentSystem, elsewhere: AgentSystem) -> None:
    budget = system.entity(Budget, "b").with_key("k")
    assert [budget.ask(Budget.spend, 10), budget.ask(Budget.spend, 10)] == [90, 90]
    elsewhere.entity(Budget, "b").delete()
    assert [budget.ask(Budget.spend, 20), budget.ask(Budget.spend, 20)] == [80, 80]
    assert bookings(disk, "b") == [20]


def test_a_task_that_has_asked_it_goes_on_and_deletes_it_in_a_step_alone(disk: Store, system: AgentSystem) -> None:
    assert system.spawn(spends, id="t").result(PATIENCE) == [90, True, False, 99]

    @agent(name="deleting: between its steps")
    def between() -> list[str]:
        refused = []
        for delete in (entity(Budget, "b").delete, system.entity(Budget, "b").delete):
            with pytest.raises(InsideTaskError, match="call it in a step"):
                delete()
            refused.append("refused")
        return refused

    assert system.spawn(between).result(PATIENCE) == ["refused"] * 2
    assert bookings(disk, "b") == [1]


def test_it_is_deleted_on_a_loop_and_not_by_a_system_that_is_closed(disk: Store) -> None:
    with AgentSystem(disk) as system:
        budget = system.entity(Budget, "b")
        budget.ask(Budget.spend, 30)
        assert asyncio.run(budget.delete_async())
        assert left(disk) == []
        budget.ask(Budget.spend, 30)
    with pytest.raises(SystemClosedError, match="nothing was deleted"):
        budget.delete()
    assert left(disk) == ["tests.budget b"]


def test_those_who_delete_and_those_who_ask_at_once_all_get_an_answer_and_the_store_is_sound(
    disk: Store, system: AgentSystem, elsewhere: AgentSystem
) -> None:
    errors: list[BaseException] = []

    def often(call: Callable[[], object]) -> None:
        try:
            for _ in range(20):
                call()
        except BaseException as error:
            errors.append(error)

    calls: list[Callable[[], object]] = []
    for opened in (system, elsewhere):
        budget = opened.entity(Budget, "b")
        calls += [budget.delete, partial(budget.ask, Budget.left), partial(budget.ask, Budget.spend, 1)]
    threads = [threading.Thread(target=often, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert errors == []
    assert system.entity(Budget, "b").ask(Budget.left) == 100 - sum(bookings(disk, "b"))
    sound(disk)


def test_a_life_that_ends_and_another_that_begins_between_two_looks_has_lost_no_row(
    monkeypatch: pytest.MonkeyPatch, disk: Store, system: AgentSystem
) -> None:
    budget, stream = system.entity(Budget, "b"), stream_of(Budget, "b")
    look, looks = disk.recorder.select_entry, list[str]()

    def meddled(id: str) -> IndexRow | None:
        if id != stream or looks:
            return look(id)
        looks.append(id)
        assert budget.delete()  # which looks by itself
        row = look(id)
        budget.ask(Budget.spend, 1)
        return row

    budget.ask(Budget.spend, 1)
    monkeypatch.setattr(disk.recorder, "select_entry", meddled)
    assert not has_lost_its_row(disk.recorder, stream)
    assert looks == [stream]
    entry = look(stream)
    assert entry is not None
    assert not has_lost_its_row(disk.recorder, stream), "it is there"
    monkeypatch.setattr(disk.recorder, "select_entry", lambda _id: None)
    assert has_lost_its_row(disk.recorder, stream)
    assert not has_lost_its_row(disk.recorder, "another")


def spoil(disk: Store, id: str) -> None:
    """Change the last bytes of its second row, as a disk does."""
    first, second = disk.recorder.select_events(stream_of(Budget, id))
    entry = disk.recorder.select_entry(stream_of(Budget, id))
    assert entry is not None
    disk.recorder.delete_task(entry.id, expected=(entry.birth, entry.head))
    spoilt = type(second)(entry.id, 2, second.topic, second.state[:-4] + b"????")
    disk.recorder.insert_events([first, spoilt], entry=entry, expected=None)


@pytest.mark.parametrize("index", ["has it", "has lost it"])
def test_one_whose_log_cannot_be_read_is_deleted_all_the_same(disk: Store, index: str) -> None:
    with AgentSystem(disk) as system:
        system.entity(Budget, "b").ask(Budget.spend, 30)
    spoil(disk, "b")
    if index == "has lost it":
        disk.recorder.rebuild_index(lambda name, old: None)
        (row,) = TaskLog(disk).rebuild_index()
        assert (row.id, row.birth, row.head) == (stream_of(Budget, "b"), "", 2)
    with AgentSystem(disk) as system:
        with pytest.raises(UnreadableEntityError):
            system.entity(Budget, "b").ask(Budget.spend, 1)
        assert system.entity(Budget, "b").delete()
        assert system.entity(Budget, "b").ask(Budget.spend, 1) == 99


def test_one_that_the_index_has_lost_is_refused_with_what_finds_it_again(disk: Store) -> None:
    with AgentSystem(disk) as system:
        system.entity(Budget, "b").ask(Budget.spend, 30)
    disk.recorder.rebuild_index(lambda name, old: None)
    log = EntityLog(disk)
    with pytest.raises(UnreadableEntityError, match=r"nothing was deleted: stop the workers.*perdure reindex"):
        log.delete(Budget.TOPIC, "b", Patience(0.0))
    assert bookings(disk, "b") == [30]
    TaskLog(disk).rebuild_index()
    assert log.delete(Budget.TOPIC, "b", Patience(0.0))
    assert left(disk) == []


# ------------------------------------------------------------------ when things fail


@pytest.mark.parametrize("point", ["delete.before", "delete.after"])
def test_a_store_that_stumbles_costs_no_deletion_and_deletes_no_other(disk: Store, point: str) -> None:
    with AgentSystem(disk) as system:
        system.entity(Budget, "b").ask(Budget.spend, 30)
        lost = partial(StoreUnavailableError, "the acknowledgement is lost", unknown_fate=True)
        stumbling = CrashingStore(disk, FaultPlan(3 if point == "delete.before" else 1, point, lost))
        with AgentSystem(stumbling, run=False) as client:
            assert client.entity(Budget, "b").delete()
        assert left(disk) == []


@pytest.mark.parametrize("point", ["delete.before", "delete.after"])
def test_a_death_in_a_deletion_leaves_it_whole_or_gone_and_the_next_one_ends_it(disk: Store, point: str) -> None:
    with AgentSystem(disk) as system:
        system.entity(Budget, "b").ask(Budget.spend, 30)
    life = CrashingStore(disk, CrashPlan(1, point))
    with suppress(SimulatedCrash), AgentSystem(life, run=False) as client:
        client.entity(Budget, "b").delete()
    life.close()
    assert life.plan.dead
    assert bookings(disk, "b") == ([30] if point == "delete.before" else [])
    sound(disk)
    with AgentSystem(disk, run=False) as client:
        assert client.entity(Budget, "b").delete() is (point == "delete.before")
    assert left(disk) == []
