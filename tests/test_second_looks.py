"""What is held and looked at again: each once, in order, a page at a time, whatever the number."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from actors import AgentSystem, UnreadableTaskError, agent, second_looks, step
from actors.appender import Appender
from actors.clock import FakeClock
from actors.family import Family
from actors.info import VALUE_LIMIT
from actors.recovery import Recovery
from actors.runtime import Runtime
from actors.second_looks import LATE, PAGE, SecondLooks
from actors.task_log import TaskLog
from actors.worker import Worker
from domain.state import DIFFERS, IN_DOUBT, UNKNOWN_CLASS, UNREADABLE
from stores import IndexRow, Store, StoreUnavailableError, open_store
from tests.lives import PATIENCE, wait_for

LONG_AGO = 1000.0


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_looks, "PAUSE", 0.0)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("memory:") as store:
        yield store


def hold(store: Store, id: str, updated: float = LONG_AGO, agent: str = "known", hold: str = DIFFERS) -> IndexRow:
    row = IndexRow(id, f"birth-of-{id}", 0, 0, "held", agent, 1.0, updated, hold=hold)
    store.recorder.insert_events([], entry=row, expected=None)
    return row


def a_worker(store: Store, clock: FakeClock, agents: set[str], only: str | None = None) -> Worker:
    def unused(*_: Any) -> Any:
        raise AssertionError

    log, runtime = TaskLog(store, now=clock.now), Runtime(clock, VALUE_LIMIT)
    family = None if only is None else Family(only)
    return Worker("w", log, runtime, 3, family, unused, lambda: agents, unused, lambda: None)


@pytest.fixture
def agents() -> set[str]:
    return {"known"}


@pytest.fixture
def worker(store: Store, clock: FakeClock, agents: set[str]) -> Worker:
    return a_worker(store, clock, agents)


@pytest.fixture
def looks(worker: Worker) -> SecondLooks:
    return SecondLooks(worker)


def look(looks: SecondLooks) -> list[str]:
    """Look at all there is to look at now."""
    ids = list[str]()
    for _ in range(100):
        more = looks.read_on()
        while (row := looks.first()) is not None:
            ids.append(row.id)
            looks.pop()
        if not more:
            return ids
    raise AssertionError("there is no end of it")


def test_each_is_looked_at_once_in_the_order_in_which_it_was_held(store: Store, looks: SecondLooks) -> None:
    for number in range(PAGE * 2 + 50):
        hold(store, f"t{number * 7 % 250:03}", LONG_AGO + number)
    hold(store, "for a person", hold=IN_DOUBT)
    hold(store, "of another agent", agent="unknown")
    assert look(looks) == [f"t{number * 7 % 250:03}" for number in range(250)]
    assert look(looks) == []


def test_whatever_is_held_for_code_or_unreadable_is_looked_at(store: Store, looks: SecondLooks) -> None:
    for kind in (DIFFERS, UNKNOWN_CLASS, UNREADABLE):
        hold(store, kind, hold=kind)
    assert look(looks) == [DIFFERS, UNKNOWN_CLASS, UNREADABLE]


def test_no_more_than_a_page_of_each_kind_stands_in_line(store: Store, looks: SecondLooks) -> None:
    for number in range(PAGE * 3):
        hold(store, f"t{number:03}")
    assert [looks.read_on() for _ in range(5)] == [True] + [False] * 4
    assert [looks.has(f"t{number:03}") for number in range(PAGE * 3)] == [True] * PAGE + [False] * PAGE * 2
    row = store.recorder.select_entry("t299")
    assert row is not None
    assert looks.is_news(row)


def test_what_another_worker_holds_later_is_looked_at_and_what_this_one_holds_is_not(
    store: Store, clock: FakeClock, worker: Worker, looks: SecondLooks
) -> None:
    hold(store, "first", clock.now())
    assert look(looks) == ["first"]
    clock.advance(1)
    theirs, mine = hold(store, "theirs", clock.now()), hold(store, "mine", clock.now())
    worker.held_here[mine.id, mine.birth] = mine.head
    assert (looks.is_news(theirs), looks.is_news(mine)) == (True, False)
    assert look(looks) == ["theirs"]
    again = mine._replace(head=0, birth="another life", updated=clock.now())
    store.recorder.update_index(again, expected=(mine.birth, mine.head))
    assert look(looks) == ["mine"]
    clock.advance(LATE * 2)
    assert look(looks) == []


def test_a_hold_that_is_committed_late_is_looked_at_and_none_before_it_twice(
    store: Store, clock: FakeClock, looks: SecondLooks
) -> None:
    hold(store, "early", clock.now())
    assert look(looks) == ["early"]
    hold(store, "late", clock.now() - LATE / 2)
    assert look(looks) == ["late"]
    clock.advance(LATE / 4)
    assert look(looks) == []


def test_an_agent_that_becomes_known_has_its_tasks_looked_at_and_no_other_its_own_again(
    store: Store, clock: FakeClock, agents: set[str], looks: SecondLooks
) -> None:
    for when in (LONG_AGO, clock.now()):
        for name in ("known", "new"):
            hold(store, f"{name} {when:.0f}", when, name)
    assert len(look(looks)) == 2
    agents.add("new")
    assert look(looks) == [f"new {LONG_AGO:.0f}", f"new {clock.now():.0f}"]
    assert look(looks) == []
    clock.advance(1)
    hold(store, "one more", clock.now())
    assert look(looks) == ["one more"]


def test_an_agent_that_becomes_known_on_the_way_has_all_its_tasks_looked_at(
    store: Store, agents: set[str], looks: SecondLooks
) -> None:
    for number in range(PAGE * 3):
        hold(store, f"t{number:03}", LONG_AGO + number, ("known", "new")[number % 2])
    assert looks.read_on()
    seen = [f"t{number:03}" for number in range(0, PAGE, 2)]
    for _ in seen:
        looks.pop()
    agents.add("new")
    assert sorted([*seen, *look(looks)]) == [f"t{number:03}" for number in range(PAGE * 3)]


def test_a_worker_for_one_task_looks_at_that_alone(store: Store, clock: FakeClock, agents: set[str]) -> None:
    for number in range(PAGE * 2):
        hold(store, f"t{number:03}")
    looks = SecondLooks(a_worker(store, clock, agents, only="t123"))
    assert not looks.read_on()
    assert look(looks) == ["t123"]
    assert look(looks) == []


def test_at_every_moment_a_held_task_is_ahead_or_in_line_until_it_was_looked_at(
    store: Store, looks: SecondLooks
) -> None:
    """Whoever waits for its result would otherwise take the hold for the last word."""
    rows = [hold(store, f"t{number:03}", LONG_AGO + number) for number in range(PAGE * 3)]
    done, lost = threading.Event(), list[str]()

    def watch() -> None:
        while not done.is_set():
            lost.extend(row.id for row in rows[-PAGE:] if not (looks.is_news(row) or looks.has(row.id)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(PAGE * 2):
        looks.read_on()
        looks.pop()
    looks.read_on()
    done.set()
    watcher.join()
    assert lost == []


def test_what_is_put_off_is_still_in_line_and_keeps_no_other_from_being_read(store: Store, looks: SecondLooks) -> None:
    for number in range(PAGE + 1):
        hold(store, f"t{number:03}", LONG_AGO + number)
    looks.read_on()
    for _ in range(PAGE - 1):
        looks.pop()
    hosted = {f"t{PAGE - 1:03}"}
    looks.put_off()
    assert not looks.read_on()
    assert not looks.has(f"t{PAGE:03}")
    looks.read_on(hosted)
    assert look(looks) == [*hosted, f"t{PAGE:03}"]


@agent(name="looks.quick")
def quick(number: int) -> int:
    return number


def test_what_another_worker_could_not_read_goes_on_here_where_it_can_be_read(store: Store) -> None:
    TaskLog(store, now=lambda: LONG_AGO).create("t", "looks.quick", [[7], {}], {})
    row = store.recorder.select_entry("t")
    assert row is not None
    store.recorder.update_index(row._replace(due=4e9), expected=(row.birth, row.head))
    earlier = hold(store, "earlier", LONG_AGO * 2, "looks.quick", UNREADABLE)
    with AgentSystem(store) as system:
        wait_for(lambda: not system.will_look_at(earlier))
        TaskLog(store).mark_unreadable(UnreadableTaskError("by other code", task_id="t", version=1))
        wait_for(lambda: system.task("t").status() == "completed")


def test_a_look_that_the_store_keeps_from_being_taken_is_taken_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    TaskLog(store, now=lambda: LONG_AGO).create("t", "looks.quick", [[7], {}], {})
    TaskLog(store, now=lambda: LONG_AGO).mark_unreadable(UnreadableTaskError("by other code", task_id="t", version=1))
    mended, tries = TaskLog.mended, list[str]()

    def away_at_first(self: TaskLog, row: IndexRow, *, by_a_person: bool) -> bool:
        tries.append(row.id)
        if len(tries) < 3:
            raise StoreUnavailableError("no such disk, for a test", url="memory:", reason="a test")
        return mended(self, row, by_a_person=by_a_person)

    monkeypatch.setattr(TaskLog, "mended", away_at_first)
    with AgentSystem(store) as system:
        assert system.task("t").result(PATIENCE) == 7
    assert tries == ["t"] * 3


go_on = threading.Event()


@step(name="looks.slow body")
def slow_body() -> None:
    assert go_on.wait(PATIENCE)


@agent(name="looks.slow")
def slow() -> str:
    slow_body()
    return "done"


def test_a_task_that_was_taken_and_held_while_our_body_runs_on_is_looked_at_when_that_has_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, look_again = list[int](), Recovery._look_again

    def count(self: Recovery, hosted: Any) -> int:
        rounds.append(look_again(self, hosted))
        return rounds[-1]

    monkeypatch.setattr(Recovery, "_look_again", count)
    refusal = {"message": "other code", "recorded": "x", "asked": "y", "in_doubt": False}
    with AgentSystem(store) as system:
        task = system.spawn(slow, id="t")
        wait_for(lambda: [type(event).__name__ for event in task.events()][-1] == "StepStarted")
        other = Appender(system.log, system.log.load("t"))
        store.workers.hold("other", {})
        other.append(lambda task, now: task.activate(now, worker="other", token="x", limit=None))
        other.append(lambda task, now: task.hold(task.activation, now, DIFFERS, "1", refusal))
        wait_for(lambda: system._tree is not None and system._tree.recovery._looks.has("t"))
        asked = len(rounds)
        wait_for(lambda: len(rounds) > asked + 2)
        assert system.may_go_on("t")
        assert sum(rounds) == 0
        go_on.set()
        wait_for(lambda: not system.may_go_on("t"))
    assert sum(rounds) == 1
