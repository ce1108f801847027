"""The outbox: each parent gets one word for each child, whoever dies or cannot be read, and nothing waits for it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import AgentSystem, TaskRef, UnreadableTaskError, agent, open_store, outsiders, receive, spawn_child
from actors.appender import Appender
from actors.outbox import PAGE, Outbox
from actors.outsiders import MOST
from actors.task_log import ASKS, UNTOLD, TaskLog, index_row
from actors.testing import CrashPlan, SimulatedCrash
from domain.events import ChildSpawned, Completed, SignalReceived
from domain.state import FOR_CODE, UNREADABLE
from domain.task import AgentTask
from stores import IndexRow, Store, StoreUnavailableError
from stores.crash import CrashingStore, FaultPlan
from tests.families import Unclaimed, check_families, children_of, logs, status, unknown_to_workers, words_to
from tests.lives import PATIENCE, wait_for
from tests.scenario_kit import World


@agent(name="outbox: parent")
def parent(count: int, policy: Any = "abandon") -> list[str]:
    children = [spawn_child(unknown_to_workers, on_parent_end=policy) for _ in range(count)]
    return [child.result() for child in children]


@agent(name="outbox: waiting for one")
def waiting_for_one() -> str:
    spawn_child(unknown_to_workers, on_parent_end="abandon")
    return str(receive("go"))


def spawned(disk: Store, program: Any = parent, *args: Any, id: str = "t") -> list[str]:
    """Run a parent until all it does is wait, and give its children, which nobody has begun."""
    with Unclaimed(), AgentSystem(disk) as system:
        task = system.spawn(program, *args, id=id)
        wait_for(lambda: task.status() == "waiting")
    return children_of(disk, id)


def end(disk: Store, child: str, value: str = "done") -> None:
    """End a child, as a worker does that dies at once."""
    log = TaskLog(disk)
    appender = Appender(log, log.load(child))
    appender.append(lambda task, now: task.activate(now, worker="another", token="token", limit=None))
    appender.append(lambda task, now: task.complete(task.activation, now, value))


def untold(disk: Store) -> list[str]:
    return [row.id for row in disk.recorder.select_held(UNTOLD, limit=9999)]


class Told:
    """An outbox, and whom it has rung."""

    def __init__(self, disk: Store) -> None:
        self.rung: list[str] = []
        self.outbox = Outbox(TaskLog(disk), self.rung.append)

    def all(self) -> list[str]:
        while self.outbox.empty():
            pass
        return self.rung


def test_a_child_that_ends_is_marked_in_the_same_append_until_its_parent_is_told(disk: Store) -> None:
    (child,) = spawned(disk, parent, 1)
    assert untold(disk) == []
    end(disk, child)
    assert untold(disk) == [child]
    assert Told(disk).all() == ["t"]
    assert untold(disk) == []
    assert words_to(disk, "t") == [child]
    row = disk.recorder.select_entry(child)
    assert row is not None
    assert (row.status, row.hold) == ("completed", None)


def test_a_task_without_a_parent_is_never_marked(disk: Store) -> None:
    with AgentSystem(disk) as system:
        system.spawn(unknown_to_workers, id="alone").result(PATIENCE)
    assert untold(disk) == []


def test_all_children_of_a_page_are_one_append_to_their_parent_and_a_second_page_another(disk: Store) -> None:
    children = spawned(disk, parent, PAGE + 20)
    for child in children:
        end(disk, child)
    before = logs(disk)["t"].version
    told = Told(disk)
    assert told.outbox.empty(), "there may be more"
    assert logs(disk)["t"].version == before + PAGE
    assert not told.outbox.empty()
    assert sorted(words_to(disk, "t")) == sorted(children)
    assert told.rung == ["t", "t"]


def test_what_was_told_already_is_not_told_again(disk: Store) -> None:
    """A death between the word and the taking away of the mark."""
    (child,) = spawned(disk, parent, 1)
    end(disk, child)
    row = disk.recorder.select_entry(child)
    assert row is not None
    Told(disk).all()
    disk.recorder.update_index(row, expected=(row.birth, row.head))
    Told(disk).all()
    assert untold(disk) == []
    assert words_to(disk, "t") == [child]


def test_two_workers_that_tell_at_once_tell_each_word_once(disk: Store) -> None:
    children = spawned(disk, parent, 40)
    start, failures = threading.Barrier(4), list[BaseException]()

    def tell() -> None:
        try:
            told = Told(disk)
            start.wait(PATIENCE)
            until = 0
            while len(untold(disk)) or until < 3:
                told.all()
                until += not untold(disk)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=tell) for _ in range(3)]
    for thread in threads:
        thread.start()
    for child in children[:20]:
        end(disk, child)
    start.wait(PATIENCE)
    for child in children[20:]:
        end(disk, child)
    for thread in threads:
        thread.join(PATIENCE)
    Told(disk).all()
    assert failures == []
    assert sorted(words_to(disk, "t")) == sorted(children)
    assert len(set(words_to(disk, "t"))) == len(children)


@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
def test_a_death_in_the_middle_of_telling_loses_no_word_and_tells_none_twice(disk: Store, point: str) -> None:
    children = spawned(disk, parent, 2)
    for child in children:
        end(disk, child)
    life = CrashingStore(disk, CrashPlan(1, point))
    with pytest.raises(SimulatedCrash):
        Told(life).all()
    assert sorted(untold(disk)) == sorted(children)
    with AgentSystem(disk) as system:
        assert system.task("t").result(PATIENCE) == ["done", "done"]
        wait_for(lambda: untold(disk) == [])
    assert sorted(words_to(disk, "t")) == sorted(children)


def test_a_hint_that_is_lost_costs_a_beat_and_no_more(disk: Store) -> None:
    """The child ends in a process that tells nobody; the parent waits in one that has heard nothing."""
    with Unclaimed(), AgentSystem(disk) as system:
        task = system.spawn(parent, 1, id="t")
        wait_for(lambda: task.status() == "waiting")
        (child,) = children_of(disk)
        end(disk, child, "from elsewhere")
        assert task.result(PATIENCE) == ["from elsewhere"]


def test_a_parent_that_keeps_its_place_hears_of_a_child_that_was_told_elsewhere(disk: Store) -> None:
    """Its body runs when another process puts the word into its log; it goes on without having been rung."""
    with Unclaimed(), AgentSystem(disk, run=False) as client:
        client.spawn(parent, 1, id="t")
    with Unclaimed(), AgentSystem(disk) as system:
        wait_for(lambda: len(children_of(disk)) == 1)
        (child,) = children_of(disk)
        end(disk, child, "told elsewhere")
        Told(disk).all()
        assert system.task("t").result(PATIENCE) == ["told elsewhere"]


def test_a_parent_that_has_ended_or_is_gone_is_told_nothing_and_the_mark_is_taken_away(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "tasks.db"
    with open_store(f"sqlite:///{path}") as disk:
        (first,) = spawned(disk, waiting_for_one, id="ended")
        (second,) = spawned(disk, waiting_for_one, id="gone")
        with AgentSystem(disk) as system, Unclaimed():
            system.task("ended").signal("go")
            system.task("ended").result(PATIENCE)
        for child in (first, second):
            if disk.recorder.select_entry(child).status != "completed":  # type: ignore[union-attr]
                end(disk, child)
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM stored_events WHERE originator_id='gone'")
            connection.execute("DELETE FROM task_index WHERE id='gone'")
        connection.close()
        before = logs(disk)["ended"].version
        Told(disk).all()
        assert untold(disk) == []
        assert logs(disk)["ended"].version == before


def test_another_life_of_the_parents_id_hears_nothing_of_a_child_that_is_not_its_own(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "tasks.db"
    with open_store(f"sqlite:///{path}") as disk:
        one, two = spawned(disk, parent, 2)
        told = Told(disk)
        end(disk, one)
        told.all()  # what it remembers of the parent is of the first life
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM stored_events WHERE originator_id='t'")
            connection.execute("DELETE FROM task_index WHERE id='t'")
        connection.close()
        (third,) = spawned(disk, parent, 1)
        end(disk, two)
        end(disk, third)
        told.all()
        assert untold(disk) == []
        assert words_to(disk, "t") == [third]


def test_what_is_remembered_of_parents_is_read_on_and_has_a_limit(disk: Store) -> None:
    families = {f"t{n}": spawned(disk, parent, 2, id=f"t{n}") for n in range(MOST + 2)}  # more than are remembered
    told = Told(disk)
    for nth in range(2):
        for children in families.values():
            end(disk, children[nth])
        told.all()
        assert len(told.outbox._outsiders._known) <= MOST
    assert {name: sorted(words_to(disk, name)) for name in families} == {
        name: sorted(children) for name, children in families.items()
    }


def test_what_is_remembered_of_parents_is_forgotten_after_a_while(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (child,) = spawned(disk, parent, 1)
    end(disk, child)
    told = Told(disk)
    told.all()
    assert list(told.outbox._outsiders._known) == ["t"]
    monkeypatch.setattr(outsiders, "KEPT", -1.0)
    told.all()
    assert told.outbox._outsiders._known == {}


def test_to_tell_one_more_child_of_a_large_family_reads_only_what_is_new(disk: Store) -> None:
    children = spawned(disk, parent, 30)
    read: list[int] = []

    told = Told(disk)
    end(disk, children[0])
    told.all()
    select = disk.recorder.select_events

    def counted(originator_id: Any, **bounds: Any) -> Any:
        found = select(originator_id, **bounds)
        if originator_id == "t":
            read.append(len(found))
        return found

    disk.recorder.select_events = counted  # type: ignore[method-assign]
    try:
        for child in children[1:]:
            end(disk, child)
            told.all()
    finally:
        del disk.recorder.select_events  # type: ignore[method-assign]
    assert sum(read) == 0, "nobody else has appended to it"


# ------------------------------------------------------------------ what cannot be read


def spoil(world: World, task: str, version: int) -> Callable[[], None]:
    """Flip bytes of a row; gives what puts them back."""
    world.flip(task, version, 20)
    return lambda: world.flip(task, version, 20)


@pytest.fixture
def file(world: World) -> Iterator[Store]:
    with open_store(world.url) as store:
        yield store


def test_an_unreadable_child_is_held_leaves_its_siblings_alone_and_is_told_when_it_was_mended(
    world: World, file: Store, caplog: pytest.LogCaptureFixture
) -> None:
    children = spawned(file, parent, 3)
    mend = spoil(world, children[0], 1)
    for child in children[1:]:
        end(file, child)
    row = file.recorder.select_entry(children[0])
    assert row is not None
    file.recorder.update_index(row._replace(status="completed", due=None, hold=UNTOLD), expected=(row.birth, row.head))
    rounds = count_rounds(file, caplog)
    assert rounds <= 5, "it is no busy loop"
    assert status(file, children[0]) == "held"
    assert sorted(words_to(file, "t")) == sorted(children[1:])
    mend()
    with AgentSystem(file) as system:
        wait_for(lambda: status(file, children[0]) != "held")
        assert system.task("t").result(PATIENCE) == ["at last", "done", "done"]
    check_families(file)


def count_rounds(file: Store, caplog: pytest.LogCaptureFixture) -> int:
    with caplog.at_level(logging.WARNING, "perdure"), Unclaimed():
        caplog.clear()
        told = Told(file)
        rounds = 1
        while told.outbox.empty() and rounds < 50:
            rounds += 1
        return rounds


def test_an_ended_child_whose_log_was_spoilt_is_held_and_released_its_parent_is_told(world: World, file: Store) -> None:
    (child,) = spawned(file, parent, 1)
    end(file, child)
    mend = spoil(world, child, 3)
    told = Told(file)
    told.all()
    row = file.recorder.select_entry(child)
    assert row is not None
    assert (row.status, row.hold) == ("held", "unreadable")
    assert "version 3" in row.note
    told.all()
    assert words_to(file, "t") == []
    with AgentSystem(file, run=False) as client:
        with pytest.raises(UnreadableTaskError):
            client.task(child).release(by="ann")
        mend()
        client.task(child).release(by="ann")
    assert untold(file) == [child]
    wait_for(lambda: told.all() and words_to(file, "t") == [child])
    assert status(file, child) == "completed"
    assert untold(file) == []


def test_an_unreadable_parent_is_held_and_hears_of_all_its_children_when_it_was_mended(
    world: World, file: Store, caplog: pytest.LogCaptureFixture
) -> None:
    children = spawned(file, parent, 2)
    others = spawned(file, parent, 1, id="other")
    mend = spoil(world, "t", 3)
    for child in (*children, *others):
        end(file, child)
    with AgentSystem(file) as system:
        assert system.task("other").result(PATIENCE) == ["done"]
        wait_for(lambda: status(file, "t") == "held")
        assert sorted(untold(file)) == sorted(children)
        mend()
        system.task("t").release(by="ann")
        assert system.task("t").result(PATIENCE) == ["done", "done"], "no other worker has to be started for it"
        wait_for(lambda: untold(file) == [])
    said = [record for record in caplog.records if "is not told of its end yet" in record.getMessage()]
    assert 1 <= len(said) <= 4, "it is said once for each"


def test_a_child_that_has_a_row_and_no_log_stops_nobody(world: World, file: Store) -> None:
    row = IndexRow("ghost", "birth", 3, 1, "completed", "agent", 1.0, 1.0, hold=UNTOLD)
    file.recorder.insert_events([], entry=row._replace(head=0), expected=None)
    (child,) = spawned(file, parent, 1)
    end(file, child)
    Told(file).all()
    assert words_to(file, "t") == [child]
    assert status(file, "ghost") == "held"


def test_a_store_that_is_away_for_a_while_delays_the_word_and_recovery_goes_on(disk: Store) -> None:
    (child,) = spawned(disk, parent, 1)
    end(disk, child)
    plan = FaultPlan(3, "append.before", lambda: StoreUnavailableError("away", url="here", reason="test"))
    with AgentSystem(CrashingStore(disk, plan)) as system:
        assert system.task("t").result(PATIENCE) == ["done"]
    assert words_to(disk, "t") == [child]
    assert plan.failed == 3


# ------------------------------------------------------------------ who reads the column


def ended_family(disk: Store) -> str:
    (child,) = spawned(disk, parent, 1)
    end(disk, child)
    with AgentSystem(disk) as system:
        system.task("t").result(PATIENCE)
        wait_for(lambda: untold(disk) == [])
    return child


def test_a_mark_that_was_taken_away_is_not_mended_back(disk: Store, caplog: pytest.LogCaptureFixture) -> None:
    child = ended_family(disk)
    before = disk.recorder.select_entry(child)
    log = TaskLog(disk)
    log.compare(child)
    assert disk.recorder.select_entry(child) == before
    assert "changed from outside" not in caplog.text
    assert before is not None
    disk.recorder.update_index(before._replace(status="running"), expected=(before.birth, before.head))
    log.compare(child)
    row = disk.recorder.select_entry(child)
    assert row is not None
    assert row.status == "completed"
    assert "changed from outside" in caplog.text


def test_a_mark_that_was_not_taken_away_is_not_lost_by_a_comparison(disk: Store) -> None:
    (child,) = spawned(disk, parent, 1)
    end(disk, child)
    TaskLog(disk).compare(child)
    assert untold(disk) == [child]


def test_a_rebuilt_index_marks_all_who_may_be_untold_and_they_are_told_once(disk: Store) -> None:
    child = ended_family(disk)
    (other,) = spawned(disk, parent, 1, id="other")
    end(disk, other)
    rows = {row.id: row.hold for row in TaskLog(disk).rebuild_index()}
    assert rows == {"t": None, "other": None, child: UNTOLD, other: UNTOLD}
    Told(disk).all()
    assert untold(disk) == []
    assert words_to(disk, "t") == [child]
    assert words_to(disk, "other") == [other]


def test_a_mark_is_no_hold_for_second_looks_lists_and_results(disk: Store) -> None:
    (child,) = spawned(disk, parent, 1)
    end(disk, child)
    row = disk.recorder.select_entry(child)
    assert row is not None
    assert row.hold == UNTOLD
    with AgentSystem(disk, run=False) as client:
        task: TaskRef[Any] = client.task(child)
        assert task.status() == "completed"
        assert task.result() == "done"
        assert task.describe().hold is None
        assert [one.id for one in client.tasks(status="held")] == []
    from actors.documents import row_document

    assert row_document(row, [], "")["hold"] is None
    assert not [walk for walk in (*FOR_CODE, UNREADABLE) if walk in (UNTOLD, ASKS)], "what second looks walk through"
    assert json.dumps(row_document(row, [], ""))


def test_what_a_row_says_of_an_ended_child_follows_from_its_log_but_for_the_mark(disk: Store) -> None:
    child = ended_family(disk)
    task: AgentTask = logs(disk)[child]
    row = disk.recorder.select_entry(child)
    assert row is not None
    assert index_row(task) == row._replace(hold=UNTOLD)
    kinds = [type(event) for event in TaskLog(disk).events.get("t")]
    assert kinds.count(ChildSpawned) == kinds.count(SignalReceived) == kinds.count(Completed) == 1


def test_a_parent_and_its_child_read_well_in_the_commands(world: World, file: Store) -> None:
    (child,) = spawned(file, parent, 1)
    shown = world.perdure("show", "t").end()
    assert f"waits for child {child}" in shown
    assert "ChildSpawned" in shown
    assert child in shown
    asked = json.loads(world.perdure("show", "t", "--json").end())
    assert (asked["parent"], asked["children"]) == (None, [child])
    assert asked["waits"] == f"waits for child {child}"
    end(file, child)
    listed = {one["id"]: one for one in json.loads(world.perdure("list", "--json").end())}
    assert listed[child]["status"] == "completed"
    assert listed[child]["hold"] is None
    Told(file).all()
    asked = json.loads(world.perdure("show", child, "--json").end())
    assert asked["parent"] == "t"
    assert "child of t" in world.perdure("show", child).end()
    shown = world.perdure("show", "t").end()
    assert f"{child} completed" in shown
