"""A task that is spawned where there is a place for it is claimed in the append that makes it, and never twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from actors import AgentSystem, TaskConflictError, TaskRef, UnknownTaskError, agent, step, task_info
from actors.appender import Appender
from actors.directory import Directory
from actors.recovery import Recovery
from actors.ref import _Wait
from actors.testing import FakeClock
from domain.events import TaskEvent
from domain.task import AgentTask
from stores import Store, StoreUnavailableError, open_store
from stores.crash import CrashingStore, CrashPlan, FaultPlan, SimulatedCrash
from tests.lives import wait_for

TIMEOUT = 20.0


@agent(name="born: quick")
def quick(number: int) -> int:
    return number


@step
def look(number: int) -> int:
    return number


@agent(name="born: looks")
def looks(number: int) -> int:
    return look(number)


class Watched(CrashPlan):
    """Knows what each append had in it, and does something before the one that makes a task."""

    crash = ""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(None)
        self.appends: list[tuple[str, ...]] = []
        self._before = before

    def reach(self, point: str, **facts: object) -> None:
        if point.startswith("append"):
            topics = tuple(str(topic) for topic in facts["topics"])  # type: ignore[attr-defined]
            if point == "append.before":
                self.appends.append(topics)
                if topics[0] == "task.created":
                    self._before()
            if point == self.crash and topics[0] == "task.created":
                self.die_now(point)
        super().reach(point, **facts)


def kinds(events: list[TaskEvent]) -> list[str]:
    return [event.TOPIC.removeprefix("task.") for event in events]


def settle(system: AgentSystem) -> None:
    """Wait until the worker knows that nobody stands in line, and has all its places free."""
    tree = system._tree
    assert tree is not None
    system.wait_for_look(TIMEOUT)
    assert tree.directory.wait_empty(TIMEOUT)


def test_one_append_makes_a_task_and_claims_it(disk: Store) -> None:
    plan = Watched()
    with AgentSystem(CrashingStore(disk, plan)) as system:
        settle(system)
        plan.appends.clear()
        task = system.spawn(quick, 7)
        assert task.result(TIMEOUT) == 7
        assert plan.appends == [("task.created", "task.activated"), ("task.completed",)]
        assert kinds(task.events()) == ["created", "activated", "completed"]


def test_a_task_that_has_to_stand_in_line_or_has_a_deadline_or_comes_from_a_client_is_nobodys(disk: Store) -> None:
    plan, gate = Watched(), threading.Event()

    @agent(name="born: holds its place")
    def holds() -> None:
        gate.wait(TIMEOUT)

    with AgentSystem(CrashingStore(disk, plan), max_active=1) as system, AgentSystem(disk, run=False) as client:
        settle(system)
        plan.appends.clear()
        first = system.spawn(holds)
        second = system.spawn(quick, 2)
        assert plan.appends[:2] == [("task.created", "task.activated"), ("task.created",)]
        gate.set()
        first.result(TIMEOUT)
        assert second.result(TIMEOUT) == 2
        settle(system)
        plan.appends.clear()
        assert system.spawn(quick, 3, deadline=60).result(TIMEOUT) == 3
        assert plan.appends[0] == ("task.created",)
        assert kinds(client.spawn(quick, 4).events())[:1] == ["created"]


def test_a_task_that_is_there_already_takes_no_place(disk: Store) -> None:
    with AgentSystem(disk, max_active=1) as system:
        settle(system)
        for _ in range(5):
            assert system.spawn(quick, 5, id="there").result(TIMEOUT) == 5
        assert system.spawn(quick, 6).result(TIMEOUT) == 6
        assert kinds(system.task("there").events()) == ["created", "activated", "completed"]


@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
def test_a_death_in_that_append_leaves_no_task_or_one_that_goes_on(disk: Store, point: str) -> None:
    plan = Watched()
    with CrashingStore(disk, plan) as life, AgentSystem(life) as system:
        settle(system)
        plan.crash = point
        with pytest.raises(SimulatedCrash):
            system.spawn(looks, 1, id="one")
    with AgentSystem(disk) as system:
        task = system.spawn(looks, 1, id="one")
        assert task.result(TIMEOUT) == 1
        events = task.events()
    assert plan.appends[-1] == ("task.created", "task.activated")
    assert kinds(events).count("created") == kinds(events).count("completed") == 1
    assert [event.TOPIC for event in events].count("step.succeeded") == 1


class Unanswered(CrashPlan):
    """Loses the answer to the append that makes the task `lost`, once."""

    def __init__(self) -> None:
        super().__init__(None)
        self.lost = 0

    def reach(self, point: str, **facts: object) -> None:
        if point == "append.after" and facts["id"] == "lost" and not self.lost:
            self.lost += 1
            raise StoreUnavailableError("memory: gone", url="memory:", reason="gone", unknown_fate=True)
        super().reach(point, **facts)


def test_where_the_answer_was_lost_it_is_begun_with_all_the_same_and_claimed_once(disk: Store) -> None:
    plan = Unanswered()
    with AgentSystem(CrashingStore(disk, plan)) as system:
        settle(system)
        task = system.spawn(looks, 3, id="lost")
        assert task.result(TIMEOUT) == 3
        assert plan.lost == 1
        assert kinds(task.events()).count("activated") == 1


def test_a_spawn_that_is_refused_leaves_nothing_behind(disk: Store) -> None:
    with AgentSystem(disk, max_active=1) as system:
        settle(system)
        system.spawn(quick, 1, id="taken").result(TIMEOUT)
        settle(system)
        for _ in range(3):
            with pytest.raises(TaskConflictError):
                system.spawn(quick, 2, id="taken")
        tree = system._tree
        assert tree is not None
        assert tree.worker.unbegun == set()
        assert tree.directory.free() == 1


def test_a_claim_that_was_not_stored_is_not_taken_for_one_later(disk: Store) -> None:
    """The append that would have claimed it has failed, and another has made it: a loss of its actor is one."""
    entered = list[int]()

    @agent(name="born: falls")
    def falls() -> int:
        info = task_info()
        assert info is not None
        entered.append(info.activation)
        if len(entered) == 1:
            raise KeyError("a bug")
        return info.activation

    away = FaultPlan(0, "append.before", lambda: StoreUnavailableError("memory: gone", url="memory:", reason="gone"))
    with AgentSystem(CrashingStore(disk, away), clock=FakeClock(jump=True)) as system:
        settle(system)
        away.times = 1
        task = system.spawn(falls, id="one")
        assert task.result(TIMEOUT) == 2
        tree = system._tree
        assert tree is not None
        assert tree.worker.unbegun == set()
    assert entered == [1, 2]
    assert kinds(task_events(disk, "one")).count("activated") == 2


def task_events(disk: Store, id: str) -> list[TaskEvent]:
    with AgentSystem(disk, run=False) as client:
        return client.task(id).events()


def test_a_close_while_it_is_made_lets_go_of_it_in_good_order(tmp_path: Path) -> None:
    making, closing = threading.Event(), threading.Event()

    def wait_for_the_close() -> None:
        if armed.is_set():
            making.set()
            assert closing.wait(TIMEOUT)

    armed, entered = threading.Event(), list[int]()

    @step
    def enter(number: int) -> int:
        entered.append(number)
        return number

    @agent(name="born: enters")
    def enters(number: int) -> int:
        return enter(number)

    with open_store(f"sqlite:///{tmp_path}/tasks.db") as disk:
        system = AgentSystem(CrashingStore(disk, Watched(wait_for_the_close)), grace=TIMEOUT)
        with system:
            settle(system)
            armed.set()
            spawner = threading.Thread(target=lambda: system.spawn(enters, 1, id="late"))
            spawner.start()
            assert making.wait(TIMEOUT)
            began = time.monotonic()
            closer = threading.Thread(target=system.close)
            closer.start()
            tree = system._tree
            assert tree is not None
            assert tree.worker.stopping.wait(TIMEOUT)
            tree.recovery.actor_stopped.wait(TIMEOUT)  # it has looked for the last time
            closing.set()
            for thread in (spawner, closer):
                thread.join(TIMEOUT)
                assert not thread.is_alive()
            assert time.monotonic() - began < TIMEOUT / 2, "nothing waits for a place that nobody has"
        assert entered == []
        with AgentSystem(disk) as another:
            task = another.task("late")
            assert task.result(TIMEOUT) == 1
            assert kinds(task.events())[:4] == ["created", "activated", "passivated", "activated"]
    assert entered == [1]


def test_what_was_handed_to_a_recovery_that_dies_is_found_by_the_next(
    monkeypatch: pytest.MonkeyPatch, disk: Store
) -> None:
    died = threading.Event()
    start = Recovery._starts_new

    def die(self: Recovery, new: object) -> bool:
        if not died.is_set():
            died.set()
            raise RuntimeError("recovery dies")
        return start(self, new)  # type: ignore[arg-type]

    with AgentSystem(disk) as system:
        settle(system)
        monkeypatch.setattr(Recovery, "_starts_new", die)
        task = system.spawn(quick, 8)
        assert task.result(TIMEOUT) == 8
        assert died.is_set()
        assert kinds(task.events()) == ["created", "activated", "completed"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")], ids=repr)
@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
def test_an_error_around_that_append_costs_nothing_and_what_is_in_the_log_is_begun_with_once(
    disk: Store, point: str, error: BaseException
) -> None:
    plan = FaultPlan(0, point, error)
    with AgentSystem(CrashingStore(disk, plan), max_active=1, strikes=1) as system:
        settle(system)
        plan.times = 1
        with pytest.raises(type(error)):
            system.spawn(looks, 1, id="one")
        task = system.spawn(looks, 1, id="one")
        assert task.result(TIMEOUT) == 1
        assert kinds(task.events()).count("activated") == 1
        settle(system)


def test_who_waits_for_a_store_keeps_no_place_and_no_close_waiting(disk: Store) -> None:
    plan = FaultPlan(0, "append.before", lambda: StoreUnavailableError("memory: gone", url="memory:", reason="gone"))
    with AgentSystem(CrashingStore(disk, plan), max_active=1, grace=TIMEOUT) as system:
        settle(system)
        plan.times = 1_000_000
        with ThreadPoolExecutor(1) as pool:
            spawning = pool.submit(system.spawn, quick, 1, id="patient")
            wait_for(lambda: plan.failed > 1)
            settle(system)
            began = time.monotonic()
            system.close()
            assert time.monotonic() - began < TIMEOUT / 4
            plan.times = 0
            assert spawning.result(TIMEOUT).id == "patient"
    with AgentSystem(disk) as another:
        assert another.task("patient").result(TIMEOUT) == 1, "what has returned is in the store"


def test_a_system_that_is_closed_runs_nothing_that_was_made_too_late(disk: Store) -> None:
    entered, go = list[int](), threading.Event()

    @agent(name="born: too late")
    def late(number: int) -> int:
        entered.append(number)
        return number

    making = threading.Event()

    def wait() -> None:
        if armed:
            making.set()
            assert go.wait(TIMEOUT)

    armed = list[int]()
    system = AgentSystem(CrashingStore(disk, Watched(wait)), grace=0)
    with system:
        settle(system)
        armed.append(1)
        spawner = threading.Thread(target=lambda: system.spawn(late, 1, id="late"))
        spawner.start()
        assert making.wait(TIMEOUT)
        system.close()
        go.set()
        spawner.join(TIMEOUT)
    assert entered == []
    with AgentSystem(disk) as another:
        assert another.task("late").result(TIMEOUT) == 1
    assert entered == [1]


def test_however_often_recovery_dies_no_new_task_is_begun_with_twice(
    monkeypatch: pytest.MonkeyPatch, disk: Store
) -> None:
    deaths, over = list[int](), threading.Event()
    start = Recovery._starts_new

    def die_at_times(self: Recovery, new: object) -> bool:
        deaths.append(1)
        if len(deaths) % 10 == 0:
            raise RuntimeError("recovery dies")
        return start(self, new)  # type: ignore[arg-type]

    with AgentSystem(disk, strikes=1, max_active=4) as system:
        settle(system)
        monkeypatch.setattr(Recovery, "_starts_new", die_at_times)
        tasks = list[TaskRef[int]]()

        def spawn() -> None:
            for number in range(25):
                tasks.append(system.spawn(quick, number))
                over.wait(0.002)

        spawners = [threading.Thread(target=spawn) for _ in range(4)]
        for spawner in spawners:
            spawner.start()
        for spawner in spawners:
            spawner.join(TIMEOUT)
        for task in tasks:
            task.result(TIMEOUT)
            assert kinds(task.events()) == ["created", "activated", "completed"]
        assert len(tasks) == 100
        assert len(deaths) >= 10


def test_of_many_who_spawn_one_id_at_once_one_makes_it_and_it_is_claimed_once(new_store: Callable[[], str]) -> None:
    with open_store(new_store() or "memory:") as disk, ExitStack() as stack:
        systems = [stack.enter_context(AgentSystem(disk)) for _ in range(3)]
        for system in systems:
            settle(system)
        for number in range(10):
            start = threading.Barrier(6)

            def spawn(system: AgentSystem, start: threading.Barrier = start, number: int = number) -> int:
                start.wait(TIMEOUT)
                return system.spawn(looks, number, id=f"same-{number}").result(TIMEOUT)

            with ThreadPoolExecutor(6) as pool:
                assert list(pool.map(spawn, systems * 2)) == [number] * 6
            told = kinds(systems[0].task(f"same-{number}").events())
            assert told.count("created") == told.count("activated") == told.count("completed") == 1
        for system in systems:
            settle(system)
            assert system._tree is not None
            assert system._tree.worker.unbegun == set()


def test_who_was_frozen_before_he_began_with_what_he_has_claimed_asks_the_store_whose_it_is(
    monkeypatch: pytest.MonkeyPatch, disk: Store
) -> None:
    entered, handed, thawed = list[int](), threading.Event(), threading.Event()
    take_up = Recovery._takes_up

    @step(idempotent=True)
    def note(activation: int) -> int:
        entered.append(activation)
        return activation

    @agent(name="born: frozen")
    def frozen() -> int:
        info = task_info()
        assert info is not None
        return note(info.activation)

    def stand_still(self: Recovery, *new: object) -> bool:
        handed.set()
        assert thawed.wait(TIMEOUT)
        return take_up(self, *new)  # type: ignore[arg-type]

    with AgentSystem(disk, lease=0.4) as system:
        settle(system)
        tree = system._tree
        assert tree is not None
        monkeypatch.setattr(Recovery, "_takes_up", stand_still)
        task = system.spawn(frozen, id="one")
        assert handed.wait(TIMEOUT)
        claim = partial(AgentTask.activate, worker="another", token="t", limit=None)
        Appender(system.log, system.log.load("one")).append(claim)  # meanwhile, and it has died since
        tree.worker.tenure.renew(-TIMEOUT)
        wait_for(tree.worker.tenure.holds)
        thawed.set()
        assert task.result(TIMEOUT) == 3
    assert entered == [3], "not as the first activation, which is lost"


def test_to_spawn_what_is_there_again_starts_nothing(monkeypatch: pytest.MonkeyPatch, disk: Store) -> None:
    with AgentSystem(disk) as system:
        settle(system)
        system.spawn(quick, 1, id="there").result(TIMEOUT)
        settle(system)
        started = list[str]()
        launch = Recovery._launch

        def watched(self: Recovery, task_id: str, *rest: object) -> None:
            started.append(task_id)
            launch(self, task_id, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(Recovery, "_launch", watched)
        for _ in range(3):
            assert system.spawn(quick, 1, id="there").result(TIMEOUT) == 1
        assert system.spawn(quick, 2, id="new").result(TIMEOUT) == 2
        assert started == ["new"]


def test_what_is_handed_over_when_nothing_is_written_any_more_is_not_begun_with(
    monkeypatch: pytest.MonkeyPatch, disk: Store
) -> None:
    """As where the grace is over before recovery has looked for the last time."""
    launched, standing, go_on = list[object](), threading.Event(), threading.Event()

    def stand_still(_self: Recovery, _nap: float) -> bool:
        standing.set()
        return go_on.wait(TIMEOUT)

    with AgentSystem(disk, grace=0) as system:
        settle(system)
        tree = system._tree
        assert tree is not None
        monkeypatch.setattr(Recovery, "_sleep", stand_still)
        tree.worker.wake.set()
        assert standing.wait(TIMEOUT)
        monkeypatch.setattr(Recovery, "_launch", lambda _self, *new: launched.append(new))
        system.spawn(quick, 1, id="late")
        closer = threading.Thread(target=system.close)
        closer.start()
        assert tree.worker.over.wait(TIMEOUT)
        go_on.set()
        closer.join(TIMEOUT)
        assert tree.recovery.actor_stopped.wait(TIMEOUT)
    assert launched == []


def test_a_reserved_place_is_taken_up_or_given_back_once() -> None:
    directory, way, other = Directory(1), threading.Event(), threading.Event()
    assert directory.reserve("a", way)
    assert not directory.reserve("b", other)
    assert not directory.take_up("a", other)
    assert directory.take_up("a", way)
    assert not directory.take_up("a", way)
    directory.give_back("a", way)
    assert directory.free() == 0, "it was taken up"
    directory = Directory(2)
    assert directory.reserve("a", way)
    assert directory.reserve("b", other)
    directory.give_back("a", other)
    assert directory.free() == 0
    directory.give_back("a", way)
    assert not directory.take_up("a", way)
    assert directory.free() == 1
    directory.forsake()
    assert (directory.free(), directory.hosted()) == (2, {})


# ------------------------------------------------------------------ who waits


def test_who_waits_here_for_the_end_of_what_was_spawned_here_asks_the_store_nothing(
    monkeypatch: pytest.MonkeyPatch, disk: Store
) -> None:
    asked, gate, me = list[str](), threading.Event(), threading.get_ident()

    @agent(name="born: gives its argument")
    def gives(value: list[int]) -> list[int]:
        gate.wait(TIMEOUT)
        return value

    for name in ("select_entry", "select_events"):
        look = getattr(disk.recorder, name)

        def watched(*args: object, _look: Callable[..., object] = look, _name: str = name, **more: object) -> object:
            if threading.get_ident() == me:
                asked.append(_name)
            return _look(*args, **more)

        monkeypatch.setattr(disk.recorder, name, watched)
    wait = _Wait.look

    def wait_first(self: _Wait) -> float | None:
        pause = wait(self)
        gate.set()
        return pause

    monkeypatch.setattr(_Wait, "look", wait_first)
    monkeypatch.setattr("actors.ref.FIRST_POLL", TIMEOUT)
    with AgentSystem(disk) as system:
        settle(system)
        task = system.spawn(gives, [1])
        value = task.result(TIMEOUT)
        assert (value, asked) == ([1], [])
        value.append(2)
        assert task.result(TIMEOUT) == [1], "a fresh copy"
        assert set(asked) == {"select_entry", "select_events"}, "nobody has kept the ending"


def test_a_result_that_is_there_is_given_at_once_whether_its_place_is_free_by_now_or_not(disk: Store) -> None:
    with AgentSystem(disk) as system:
        for number in range(100):
            task = system.spawn(quick, number)
            while task.status() != "completed":
                time.sleep(0)
            assert task.result(timeout=0) == number
        gate = threading.Event()

        @agent(name="born: waits for a gate")
        def waits() -> None:
            gate.wait(TIMEOUT)

        task = system.spawn(waits)
        with pytest.raises(TimeoutError, match="it is running"):
            task.result(timeout=0.1)
        gate.set()
        task.result(TIMEOUT)


def test_a_wait_is_for_the_life_that_it_began_with_and_a_reference_is_to_an_id(disk: Store) -> None:
    gate = threading.Event()

    @agent(name="born: two lives")
    def lives(number: int) -> int:
        gate.wait(TIMEOUT)
        return number

    with AgentSystem(disk) as system:
        settle(system)
        first = system.spawn(lives, 1, id="same")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(first.result, TIMEOUT)
            gate.set()
            assert waiting.result(TIMEOUT) == 1
        first.delete()
        assert system.spawn(lives, 2, id="same").result(TIMEOUT) == 2
        assert first.result(TIMEOUT) == 2, "a reference is to an id"


def test_who_waits_while_a_task_is_deleted_and_made_anew_is_told_of_one_or_the_other_or_that_it_is_gone(
    disk: Store,
) -> None:
    over, found = threading.Event(), list[object]()

    def ask(task: TaskRef[int]) -> None:
        while not over.is_set():
            try:
                found.append(task.result(TIMEOUT))
            except UnknownTaskError:
                continue
            except BaseException as error:
                found.append(error)

    with AgentSystem(disk) as system:
        system.spawn(quick, 0, id="same").result(TIMEOUT)
        askers = [threading.Thread(target=ask, args=[system.task("same")]) for _ in range(4)]
        for asker in askers:
            asker.start()
        for number in range(60):
            system.task("same").delete()
            system.spawn(quick, number, id="same").result(TIMEOUT)
        over.set()
        for asker in askers:
            asker.join(TIMEOUT)
    assert found
    assert {type(one) for one in found} == {int}, [one for one in found if type(one) is not int][:3]
