"""Groups: who begins anew when a child crashes, at which moment, and that nobody is held for another's bug."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import (
    AgentSystem,
    Entity,
    EntityCrashError,
    EntityStoppedError,
    GroupConflictError,
    TaskConflictError,
    TaskGroup,
    TaskHeldError,
    agent,
    event,
    step,
)
from actors.groups import Siblings
from domain.events import Activated, Held, Passivated, RestartAsked, Restarted
from stores import Store, StoreUnavailableError, open_store
from stores.crash import CrashingStore, CrashPlan, SimulatedCrash
from tests.lives import wait_for

SOON = 20


class Counter(Entity):
    TOPIC = "groups.counter"
    PASSIVATE_AFTER = 0.05

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.added()
        return self.count

    def crash(self) -> None:
        raise RuntimeError("a bug in a command")

    @event("Added")
    def added(self) -> None:
        self.count += 1


class Stage:
    """What the agents of a test share in memory: bodies wait here until they are let go."""

    def __init__(self) -> None:
        self.entered: dict[str, threading.Event] = defaultdict(threading.Event)
        self.go_on: dict[str, threading.Event] = defaultdict(threading.Event)
        self.calls: dict[str, int] = defaultdict(int)
        self.crashes = 1


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    fresh = Stage()
    monkeypatch.setattr("tests.test_groups.here", fresh)
    return fresh


here = Stage()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as opened:
        yield opened


@step
def first(name: str) -> str:
    here.entered[name].set()
    assert here.go_on[name].wait(SOON)
    return name


@step
def last(name: str) -> str:
    return name


@agent(name="groups.steady")
def steady(name: str) -> str:
    here.calls[name] += 1
    first(name)
    return last(name)


@agent(name="groups.buggy")
def buggy(name: str) -> str:
    here.calls[name] += 1
    first(name)
    if here.calls[name] <= here.crashes:
        raise RuntimeError("a bug in an agent")
    return last(name)


def run_crew(system: AgentSystem, stage: Stage, strategy: Any) -> TaskGroup:
    """Spawn three, crash the middle one while all are in their first step, then let all go on; wait for the end."""
    with system.group("crew", strategy=strategy) as crew:
        tasks = [crew.spawn(steady, "a", id="a"), crew.spawn(buggy, "b", id="b"), crew.spawn(steady, "c", id="c")]
    for name in "abc":
        assert stage.entered[name].wait(SOON)
    stage.go_on["b"].set()
    wait_for(lambda: any(isinstance(event, Restarted | Held) for event in system.task("b").events()))
    stage.go_on["a"].set()
    stage.go_on["c"].set()
    for task in tasks:
        if task.id != "b" or stage.crashes < 3:
            assert task.result(SOON) == task.id
    return crew


@pytest.mark.parametrize(
    ("strategy", "anew"), [("one_for_one", ""), ("one_for_all", "ac"), ("rest_for_one", "c")], ids=str
)
def test_who_begins_anew_follows_from_the_strategy(store: Store, stage: Stage, strategy: str, anew: str) -> None:
    with AgentSystem(store) as system:
        run_crew(system, stage, strategy)
        for name in "ac":
            kinds = [type(event) for event in system.task(name).events()]
            assert kinds.count(RestartAsked) == (name in anew), name
            assert kinds.count(Activated) == 1 + (name in anew), name
            assert stage.calls[name] == 1 + (name in anew)
    assert stage.calls["b"] == 2


def test_a_sibling_begins_anew_at_its_next_step_with_its_steps_kept_and_without_a_strike(
    store: Store, stage: Stage
) -> None:
    with AgentSystem(store) as system:
        run_crew(system, stage, "one_for_all")
        events = system.task("a").events()
        names = [type(event).__name__ for event in events]
        assert names == [
            *("Created", "Activated", "StepStarted", "RestartAsked", "StepSucceeded"),
            *("Passivated", "Activated", "StepStarted", "StepSucceeded", "Completed"),
        ]
        asked = next(event for event in events if isinstance(event, RestartAsked))
        assert asked.by == "b"
        assert next(event for event in events if isinstance(event, Passivated)).cut_off == []
        assert system.task("a").describe().strikes == 0


def test_no_sibling_is_held_for_another_ones_bug_however_often_it_crashes(store: Store, stage: Stage) -> None:
    stage.crashes = 3
    with AgentSystem(store) as system:
        run_crew(system, stage, "one_for_all")
        with pytest.raises(TaskHeldError, match="3 crashes in a row"):
            system.task("b").result(SOON)
        assert [system.task(name).status() for name in "ac"] == ["completed", "completed"]


def test_a_sibling_that_runs_in_another_worker_is_told_through_its_log(store: Store, stage: Stage) -> None:
    with AgentSystem(store) as one:
        with one.group("crew", strategy="one_for_all") as crew:
            task = crew.spawn(steady, "a", id="a")
        assert stage.entered["a"].wait(SOON)
        with AgentSystem(store, only="b") as other:
            with other.group("crew", strategy="one_for_all") as crew:
                crew.spawn(buggy, "b", id="b")
            stage.go_on["b"].set()
            assert other.task("b").result(SOON) == "b"
        stage.go_on["a"].set()
        assert task.result(SOON) == "a"
        assert [event.by for event in task.events() if isinstance(event, RestartAsked)] == ["b"]


def test_who_waits_or_has_ended_or_is_no_member_is_left_alone(store: Store, stage: Stage) -> None:
    stage.go_on["done"].set()
    stage.go_on["b"].set()
    with AgentSystem(store, run=False) as client:
        client.spawn(steady, "stranger", id="stranger")
    with AgentSystem(store) as system:
        with system.group("crew", strategy="one_for_all") as crew:
            crew.spawn(steady, "done", id="done").result(SOON)
            with pytest.raises(TaskConflictError, match="in no group: it cannot be spawned into group crew"):
                crew.spawn(steady, "stranger", id="stranger")
            assert stage.entered["stranger"].wait(SOON)
            assert crew.spawn(buggy, "b", id="b").result(SOON) == "b"
        stage.go_on["stranger"].set()
        system.task("stranger").result(SOON)
        for name in ("done", "stranger"):
            assert not [event for event in system.task(name).events() if isinstance(event, RestartAsked)]


def test_a_group_is_the_same_from_everywhere_and_keeps_its_strategy_and_its_order(store: Store, stage: Stage) -> None:
    stage.go_on["a"].set()
    with AgentSystem(store) as system, system.group("crew", strategy="rest_for_one") as crew:
        crew.spawn(steady, "a", id="a").result(SOON)
        crew.entity(Counter, "n", restart="temporary")
        crew.spawn(steady, "a", id="a")
    with AgentSystem(store, run=False) as client:
        with client.group("crew", strategy="rest_for_one") as again:
            assert [(c.id, c.topic, c.restart) for c in again.children()] == [
                ("a", "", ""),
                ("n", "groups.counter", "temporary"),
            ]
        with pytest.raises(GroupConflictError, match="rest_for_one already"), client.group("crew"):
            pass
        with pytest.raises(ValueError, match="one_for_one, one_for_all, rest_for_one"):
            client.group("other", strategy="all")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="permanent"):
            again.entity(Counter, "m", restart="always")  # type: ignore[arg-type]


@pytest.mark.parametrize("nth", range(1, 40))
def test_wherever_the_process_dies_the_crew_comes_to_its_end(stage: Stage, nth: int) -> None:
    """Each boundary of each append and body, siblings' and the group's included; what shares memory dies together."""
    stage.go_on = defaultdict(lambda: Opened)
    with open_store("memory:") as disk:
        for plan in (CrashPlan(nth), CrashPlan(None)):
            life = CrashingStore(disk, plan)
            try:
                with AgentSystem(life, strikes=None) as system:
                    with system.group("crew", strategy="one_for_all") as crew:
                        for fn, name in ((steady, "a"), (buggy, "b"), (steady, "c")):
                            crew.spawn(fn, name, id=name)
                    results = [system.task(name).result(SOON) for name in "abc"]
                    assert results == ["a", "b", "c"]
            except SimulatedCrash:
                continue
            finally:
                life.close()
        with AgentSystem(disk, run=False) as client:
            for name in "abc":
                finished = [e.path for e in client.task(name).events() if type(e).__name__ == "StepSucceeded"]
                assert sorted(finished) == ["1", "2"]


Opened = threading.Event()
Opened.set()


# ------------------------------------------------------------------ entities


def alive(system: AgentSystem) -> list[str]:
    return [str(box) for box, _ in system.runtime.entities.alive() if box.cls is Counter]


def test_a_permanent_entity_is_in_memory_from_the_start_and_after_each_end(store: Store) -> None:
    with AgentSystem(store) as system:
        with system.group("crew") as crew:
            counter = crew.entity(Counter, "n", restart="permanent")
        wait_for(lambda: alive(system) == ["groups.counter n"])
        with pytest.raises(EntityCrashError):
            counter.ask(Counter.crash)
        wait_for(lambda: alive(system) == ["groups.counter n"])
        assert counter.ask(Counter.add) == 1
    with AgentSystem(store) as system:  # rebuilt, with its children, from the log
        wait_for(lambda: alive(system) == ["groups.counter n"])
        assert system.entity(Counter, "n").ask(Counter.add) == 2


def test_a_worker_learns_of_a_permanent_entity_that_another_process_has_added(store: Store) -> None:
    with AgentSystem(store) as system:
        with AgentSystem(store, run=False) as client, client.group("crew") as crew:
            crew.entity(Counter, "n", restart="permanent")
        wait_for(lambda: alive(system) == ["groups.counter n"])


def test_a_transient_entity_leaves_memory_and_comes_back_with_the_next_command(store: Store) -> None:
    with AgentSystem(store) as system:
        with system.group("crew") as crew:
            counter = crew.entity(Counter, "n")
        assert counter.ask(Counter.add) == 1
        wait_for(lambda: alive(system) == [])
        assert counter.ask(Counter.add) == 2


def test_what_waits_for_a_temporary_entity_that_crashes_is_refused_and_the_next_begins_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def crash(_: Counter) -> None:
        entered.set()
        assert go_on.wait(SOON)
        raise RuntimeError

    monkeypatch.setattr(Counter, "crash", crash)
    crash.__qualname__, crash.__name__ = "Counter.crash", "crash"
    with AgentSystem(store) as system:
        with system.group("crew") as crew:
            counter = crew.entity(Counter, "n", restart="temporary")
        answers: list[BaseException] = []

        def ask(command: Callable[..., Any]) -> None:
            try:
                counter.ask(command)
            except BaseException as error:
                answers.append(error)

        threads = [threading.Thread(target=ask, args=[crash])]
        threads[0].start()
        assert entered.wait(SOON)
        threads.append(threading.Thread(target=ask, args=[Counter.add]))
        threads[1].start()
        wait_for(lambda: "1 waiting" in [what for _, what in system.runtime.entities.alive()])
        go_on.set()
        for thread in threads:
            thread.join(SOON)
        assert {type(error) for error in answers} == {EntityCrashError, EntityStoppedError}
        assert counter.ask(Counter.add) == 1


def test_the_crash_of_an_entity_lets_tasks_and_entities_of_its_group_begin_anew(store: Store, stage: Stage) -> None:
    with AgentSystem(store) as system:
        with system.group("crew", strategy="one_for_all") as crew:
            bad, good = crew.entity(Counter, "bad"), crew.entity(Counter, "good", restart="permanent")
            task = crew.spawn(steady, "a", id="a")
        assert good.ask(Counter.add) == 1
        (before,) = [box for box, _ in system.runtime.entities.alive() if box.id == "good"]
        assert stage.entered["a"].wait(SOON)
        lives = before.lives
        with pytest.raises(EntityCrashError):
            bad.ask(Counter.crash)
        wait_for(lambda: any(isinstance(event, RestartAsked) for event in task.events()))
        wait_for(lambda: before.lives > lives)
        stage.go_on["a"].set()
        assert task.result(SOON) == "a"
        assert good.ask(Counter.add) == 2
        assert [event.by for event in task.events() if isinstance(event, RestartAsked)] == ["groups.counter bad"]


def test_a_store_that_stumbles_while_siblings_are_told_loses_neither_the_crash_nor_a_sibling(
    store: Store, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, failed = Siblings._is_running, list[str]()

    def stumbles(self: Siblings, child: Any) -> bool:
        select, me = self._log.recorder.select_entry, threading.get_ident()

        def once(task_id: str) -> Any:
            if threading.get_ident() == me and task_id not in failed:
                failed.append(task_id)
                raise StoreUnavailableError("away", url="", reason="for a moment")
            return select(task_id)

        with monkeypatch.context() as patch:
            patch.setattr(self._log.recorder, "select_entry", once)
            return told(self, child)

    monkeypatch.setattr(Siblings, "_is_running", stumbles)
    with AgentSystem(store) as system:
        run_crew(system, stage, "one_for_all")
        assert sum(isinstance(event, Restarted) for event in system.task("b").events()) == 1
        for name in "ac":
            assert sum(isinstance(event, RestartAsked) for event in system.task(name).events()) == 1
    assert sorted(failed) == ["a", "c"]


def test_a_permanent_entity_that_found_no_thread_is_started_when_there_is_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def no_thread(self: threading.Thread) -> None:
        if self.name.startswith("EntityActor") and len(refused) < 2:
            refused.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    with AgentSystem(store) as system:
        with system.group("crew") as crew:
            monkeypatch.setattr(threading.Thread, "start", no_thread)
            with contextlib.suppress(EntityStoppedError):
                crew.entity(Counter, "n", restart="permanent")
            wait_for(lambda: len(refused) == 2)
            crew.entity(Counter, "n", restart="permanent")
        wait_for(lambda: alive(system) == ["groups.counter n"])


def test_a_crash_in_a_client_is_told_to_the_siblings_too(store: Store, stage: Stage) -> None:
    with AgentSystem(store) as system:
        with system.group("crew", strategy="one_for_all") as crew:
            task = crew.spawn(steady, "a", id="a")
        assert stage.entered["a"].wait(SOON)
        with AgentSystem(store, run=False) as client:
            with client.group("crew", strategy="one_for_all") as there:
                counter = there.entity(Counter, "n")
            with pytest.raises(EntityCrashError):
                counter.ask(Counter.crash)
            wait_for(lambda: any(isinstance(event, RestartAsked) for event in task.events()))
        stage.go_on["a"].set()
        assert task.result(SOON) == "a"


def test_an_entity_is_in_one_group(store: Store) -> None:
    with AgentSystem(store, run=False) as client:
        client.group("one").entity(Counter, "n", restart="permanent")
        with pytest.raises(GroupConflictError, match=r"groups\.counter n is in group one, and cannot be"):
            client.group("other").entity(Counter, "n")
        assert client.group("other").children() == []
        client.group("one").entity(Counter, "n", restart="temporary")
        assert [child.restart for child in client.group("one").children()] == ["temporary"]


def test_a_task_of_one_group_is_refused_by_another_before_that_takes_it_in(store: Store) -> None:
    with AgentSystem(store, run=False) as client:
        client.group("one").spawn(steady, "a", id="a")
        with pytest.raises(TaskConflictError, match="task a exists already and is in group one: it cannot be spawned"):
            client.group("other").spawn(steady, "a", id="a")
        assert client.group("other").children() == []
