"""Deleting tasks, one by one and by age: what goes, what is refused, and what those get who still ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors import (
    AgentSystem,
    ChildError,
    Entity,
    InsideTaskError,
    Notice,
    Rejected,
    StoreUnavailableError,
    TaskNotEndedError,
    UnknownTaskError,
    UnreadableTaskError,
    agent,
    emit,
    entity,
    event,
    heartbeat,
    receive,
    spawn_child,
    step,
)
from actors.appender import Appender
from actors.entity_log import stream_of
from actors.outbox import Outbox
from actors.task_log import UNTOLD, TaskLog
from actors.testing import CrashPlan, FakeClock, SimulatedCrash
from actors.updates import cursor_of
from stores import Store, open_store
from stores.crash import CrashingStore, FaultPlan
from tests.families import Unclaimed, children_of, unknown_to_workers
from tests.lives import PATIENCE, wait_for

DAY = 86_400.0


@pytest.fixture(params=["memory", "sqlite"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_store("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/tasks.db") as store:
        yield store


@step
def work(word: str) -> str:
    heartbeat(f"half of {word}")
    emit(f"at {word}")
    return word.upper()


@agent(name="deleting: quick")
def quick(word: str) -> str:
    return work(word)


@agent(name="deleting: waits")
def waits() -> Any:
    return receive("go")


@agent(name="deleting: fails")
def fails() -> None:
    refuse()


@step
def refuse() -> None:
    raise ConnectionError("no")


@agent(name="deleting: parent")
def parent(count: int) -> list[str]:
    children = [spawn_child(unknown_to_workers, on_parent_end="abandon") for _ in range(count)]
    return [outcome(child) for child in children]


def outcome(child: Any) -> str:
    try:
        return str(child.result())
    except ChildError as error:
        return f"{error.status}: {error}"


def left(store: Store) -> list[str]:
    """Give the ids of which anything is left."""
    recorder = store.recorder
    rows = {row.id for row in recorder.select_entries()}
    return sorted({*rows, *recorder.select_ids(), *(orphan.task_id for orphan in recorder.select_orphans())})


# ------------------------------------------------------------------ one task


def test_a_task_that_has_ended_goes_with_all_that_is_known_of_it(disk: Store) -> None:
    with AgentSystem(disk) as system:
        for word in ("one", "two"):
            system.spawn(quick, word, id=word).result(PATIENCE)
        system.task("one").delete()
        assert left(disk) == ["two"]
        for ask in (system.task("one").status, system.task("one").describe, system.task("one").delete):
            with pytest.raises(UnknownTaskError, match="one"):
                ask()
        assert system.task("two").result(PATIENCE) == "TWO"


def test_a_task_that_has_not_ended_is_refused_with_the_way_out_and_goes_on(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(waits, id="it's")
        wait_for(lambda: task.status() == "waiting")
        with pytest.raises(TaskNotEndedError, match=r"it is waiting.*perdure cancel 'it'") as caught:
            task.delete(force=True)
        assert (caught.value.task_id, caught.value.status) == ("it's", "waiting")
        task.cancel()
        wait_for(lambda: task.status() == "cancelled")
        task.delete()
    assert left(disk) == []


def test_a_task_that_was_called_off_and_has_not_ended_says_who_ends_it(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(waits, id="t")
        wait_for(lambda: task.status() == "waiting")
    with AgentSystem(disk, run=False) as client:
        client.task("t").cancel()
        with pytest.raises(TaskNotEndedError, match=r"was called off and has not ended yet, .*perdure worker"):
            client.task("t").delete()


def test_a_new_task_under_the_id_is_a_new_task_and_what_was_recorded_of_the_old_one_counts_for_nothing(
    disk: Store,
) -> None:
    with AgentSystem(disk) as system:
        assert system.spawn(quick, "one", id="t").result(PATIENCE) == "ONE"
        first = disk.recorder.select_entry("t")
        system.task("t").delete()
        assert system.spawn(quick, "two", id="t").result(PATIENCE) == "TWO"
        second = disk.recorder.select_entry("t")
    assert first is not None
    assert second is not None
    assert first.birth != second.birth


def test_who_writes_for_a_deleted_task_afterwards_is_refused_also_when_another_has_its_id(disk: Store) -> None:
    log = TaskLog(disk)
    task = log.create("t", waits.name, [[], {}], {})
    late = [Appender(log, log.load("t")) for _ in range(2)]
    for one in late:
        one.catch_up()
    Appender(log, task).append(lambda task, now: task.request_cancel(now, "", "ann", 1.0))
    with AgentSystem(disk, run=False) as client:
        client.task("t").delete()
        with pytest.raises(UnknownTaskError, match="deleted while it ran"):
            late[0].append(lambda task, now: task.activate(now, worker="w", token="t", limit=None))
        with Unclaimed():
            client.spawn(quick, "two", id="t")
        with pytest.raises(UnknownTaskError, match="deleted while it ran"):
            late[1].append(lambda task, now: task.activate(now, worker="w", token="t", limit=None))
        assert [type(each).__name__ for each in client.task("t").events()] == ["Created"]


@pytest.mark.parametrize("born_again", [False, True])
def test_who_waits_for_a_task_is_told_soon_that_it_was_deleted_also_when_another_has_its_id(
    disk: Store, caplog: pytest.LogCaptureFixture, born_again: bool
) -> None:
    told, notices = list[BaseException](), list[Notice]()

    def wait(how: Any) -> None:
        try:
            how()
        except BaseException as error:
            told.append(error)

    with AgentSystem(disk, run=False) as client:
        client.spawn(waits, id="t")
        feed = client.task("t").follow(cursor_of(1))
        client.task("t").on_end(notices.append)
        waiting = [threading.Thread(target=wait, args=(how,)) for how in (client.task("t").result, feed.__next__)]
        for thread in waiting:
            thread.start()
        wait_for(lambda: len(client.log._watchers.get("t", ())) == 3)
        wait_for(lambda: feed._found.birth != "")
        row = disk.recorder.select_entry("t")
        assert row is not None
        disk.recorder.delete_task("t", expected=(row.birth, row.head))  # as another process does it: nobody rings
        if born_again:
            client.spawn(quick, "two", id="t")
        for thread in waiting:
            thread.join(PATIENCE)
        wait_for(lambda: "who watches it is told nothing more" in caplog.text)
    assert [type(error) for error in told] == [UnknownTaskError] * 2
    assert notices == []


def test_a_body_that_outlives_its_task_writes_nothing_any_more(disk: Store, caplog: pytest.LogCaptureFixture) -> None:
    entered, go_on = threading.Event(), threading.Event()

    @step
    def long() -> str:
        entered.set()
        go_on.wait(PATIENCE)
        with suppress(BaseException):
            heartbeat("late")
        emit("late")
        return "late"

    @agent(name="deleting: long")
    def outlives() -> str:
        return long()

    with AgentSystem(disk) as system:
        task = system.spawn(outlives, id="t")
        assert entered.wait(PATIENCE)
        task.cancel(grace=0)
        wait_for(lambda: task.status() == "cancelled")
        task.delete()
        go_on.set()
    assert left(disk) == []


def test_a_deletion_is_refused_where_it_would_be_made_again_and_awaited_where_it_would_block(disk: Store) -> None:
    with AgentSystem(disk) as system:
        system.spawn(quick, "one", id="one").result(PATIENCE)

        @agent(name="deleting: deletes")
        def deletes() -> list[str]:
            refused = []
            for call in (
                system.task("one").delete,
                partial(system.delete_ended, 0),
                system.vacuum,
            ):
                with pytest.raises(InsideTaskError) as caught:
                    call()
                refused.append(str(caught.value).split(" inside")[0])
            return refused

        assert system.spawn(deletes, id="t").result(PATIENCE) == ["delete()", "delete_ended()", "vacuum()"]

        async def elsewhere() -> int:
            await system.task("one").delete_async()
            deleted = await system.delete_ended_async(0)
            await system.vacuum_async()
            return deleted

        assert asyncio.run(elsewhere()) == 1
    assert left(disk) == []


# ------------------------------------------------------------------ what cannot be read


def spoilt(store: Store, task_id: str, version: int) -> None:
    """Change the last bytes of a row, as a disk does."""
    recorder: Any = store.recorder
    if hasattr(recorder, "_stored_events"):
        place = recorder._stored_events_index[task_id][version]
        row = recorder._stored_events[place]
        recorder._stored_events[place] = type(row)(task_id, version, row.topic, row.state[:-4] + b"????")
    else:
        sql = "UPDATE stored_events SET state=CAST(state||'?' AS BLOB) WHERE originator_id=? AND originator_version=?"
        recorder.datastore.write(lambda cursor: cursor.execute(sql, (task_id, version)))


def unreadable(store: Store, task_id: str, version: int) -> None:
    log = TaskLog(store)
    spoilt(store, task_id, version)
    with pytest.raises(UnreadableTaskError) as caught:
        log.load(task_id)
    log.mark_unreadable(caught.value)


def test_a_task_that_is_made_anew_between_two_looks_at_it_is_not_said_to_be_damaged(disk: Store) -> None:
    """A worker looks at a row, then at the log; in between it may be deleted, and made anew."""

    class Slow(TaskLog):
        def load(self, task_id: str, patience: Any = None) -> Any:
            row = disk.recorder.select_entry(task_id)
            assert row is not None
            disk.recorder.delete_task(task_id, expected=(row.birth, row.head))
            log.create(task_id, waits.name, [[], {}], {})
            return super().load(task_id, patience)

    log = TaskLog(disk)
    log.create("t", waits.name, [[], {}], {})
    Slow(disk).compare("t")
    log.compare("t")


def test_an_open_task_whose_log_cannot_be_read_goes_by_force_alone(disk: Store) -> None:
    log = TaskLog(disk)
    appender = Appender(log, log.create("t", waits.name, [[], {}], {}))
    appender.append(lambda task, now: task.receive(now, "key", "go", 1, "ann"))
    unreadable(disk, "t", 2)
    with AgentSystem(disk, run=False) as client:
        with pytest.raises(TaskNotEndedError, match=r"cannot be read and may be mended.*--force"):
            client.task("t").delete()
        assert left(disk) == ["t"]
        client.task("t").delete(force=True)
    assert left(disk) == []


def test_a_task_that_has_ended_goes_though_its_log_cannot_be_read_any_more(disk: Store) -> None:
    with AgentSystem(disk) as system:
        system.spawn(quick, "one", id="t").result(PATIENCE)
    spoilt(disk, "t", 2)
    with AgentSystem(disk, run=False) as client:
        client.task("t").delete()
    assert left(disk) == []


def test_a_task_that_the_index_has_lost_is_named_with_what_finds_it_again(disk: Store) -> None:
    TaskLog(disk).create("t", waits.name, [[], {}], {})
    disk.recorder.rebuild_index(lambda task_id, old: None)
    with (
        AgentSystem(disk, run=False) as client,
        pytest.raises(UnreadableTaskError, match=r"its index row is not: .*perdure reindex"),
    ):
        client.task("t").delete()


# ------------------------------------------------------------------ families, entities


def waiting_family(disk: Store, count: int) -> list[str]:
    with Unclaimed(), AgentSystem(disk) as system:
        task = system.spawn(parent, count, id="t")
        wait_for(lambda: task.status() == "waiting")
    return children_of(disk)


def end(disk: Store, child: str) -> None:
    log = TaskLog(disk)
    appender = Appender(log, log.load(child))
    appender.append(lambda task, now: task.activate(now, worker="w", token="token", limit=None))
    appender.append(lambda task, now: task.complete(task.activation, now, "done"))


def test_a_parent_is_told_of_its_childs_end_before_the_child_is_deleted_by_whomever(disk: Store) -> None:
    (child,) = waiting_family(disk, 1)
    end(disk, child)
    assert [row.id for row in disk.recorder.select_held(UNTOLD, limit=9)] == [child]
    with AgentSystem(disk, run=False) as client:
        client.task(child).delete()
    assert left(disk) == ["t"]
    with AgentSystem(disk) as system:
        assert system.task("t").result(PATIENCE) == ["done"]


def test_a_parent_of_a_child_that_goes_by_force_is_told_so(disk: Store) -> None:
    (child,) = waiting_family(disk, 1)
    log = TaskLog(disk)
    appender = Appender(log, log.load(child))
    appender.append(lambda task, now: task.receive(now, "key", "go", 1, "ann"))
    unreadable(disk, child, 2)
    with AgentSystem(disk, run=False) as client:
        client.task(child).delete(force=True)
    with AgentSystem(disk) as system:
        (told,) = system.task("t").result(PATIENCE)
    assert told == f"cancelled: child {child} was cancelled: it was deleted, since its log could not be read"


def test_a_child_that_cannot_be_read_and_whose_parent_is_not_told_yet_goes_by_force_alone(disk: Store) -> None:
    (child,) = waiting_family(disk, 1)
    end(disk, child)
    spoilt(disk, child, 2)
    with AgentSystem(disk, run=False) as client:
        with pytest.raises(UnreadableTaskError, match=r"not told of its end yet, so nothing was deleted.*--force"):
            client.task(child).delete()
        assert left(disk) == sorted(["t", child])
        client.task(child).delete(force=True)
    with AgentSystem(disk) as system:
        (told,) = system.task("t").result(PATIENCE)
    assert told == f"cancelled: child {child} was cancelled: it was deleted, since its log could not be read"


def test_a_child_whose_parent_cannot_be_told_stays(disk: Store) -> None:
    (child,) = waiting_family(disk, 1)
    end(disk, child)
    spoilt(disk, "t", 2)
    with AgentSystem(disk, run=False) as client:
        with pytest.raises(UnreadableTaskError, match="task t: version 2"):
            client.task(child).delete()
        assert client.delete_ended(0) == 0
    assert left(disk) == sorted(["t", child])


def test_a_child_goes_on_though_its_parent_was_deleted_and_another_task_has_the_parents_id(disk: Store) -> None:
    @agent(name="deleting: leaves its child")
    def leaves() -> str:
        return spawn_child(unknown_to_workers, on_parent_end="abandon").id

    with Unclaimed(), AgentSystem(disk) as system:
        child = system.spawn(leaves, id="t").result(PATIENCE)
        system.task("t").delete()
        again = system.spawn(leaves, id="t").result(PATIENCE)
    with AgentSystem(disk) as system:
        assert [system.task(each).result(PATIENCE) for each in (child, again)] == ["at last"] * 2
        wait_for(lambda: not disk.recorder.select_held(UNTOLD, limit=9))
    assert left(disk) == sorted(["t", child, again])


class Till(Entity):
    TOPIC = "deleting.till"

    def __init__(self) -> None:
        self.taken = 0

    def take(self, amount: int) -> int:
        if amount < 0:
            raise Rejected("no")
        self.took(amount)
        return self.taken

    @event("Took")
    def took(self, amount: int) -> None:
        self.taken += amount


@agent(name="deleting: takes")
def takes(amount: int) -> int:
    return entity(Till, "one").ask(Till.take, amount)


def test_what_an_entity_has_done_for_a_deleted_task_stays_done_and_its_successor_asks_anew(disk: Store) -> None:
    with AgentSystem(disk) as system:
        assert system.spawn(takes, 5, id="t").result(PATIENCE) == 5
        system.task("t").delete()
        assert system.spawn(takes, 5, id="t").result(PATIENCE) == 10
        assert system.delete_ended(0) == 1
        with pytest.raises(UnknownTaskError):
            system.task(stream_of(Till, "one")).delete()
        assert system.spawn(takes, 1).result(PATIENCE) == 11


def test_a_child_that_is_deleted_while_its_parent_is_being_told_is_no_damage(
    disk: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (child,) = waiting_family(disk, 1)
    end(disk, child)
    seen = disk.recorder.select_held(UNTOLD, limit=9)
    with AgentSystem(disk, run=False) as client:
        client.task(child).delete()
    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(disk.recorder, "select_held", lambda *_, **__: seen)  # read a moment before
        assert not Outbox(TaskLog(disk), lambda _: None).empty()
    assert caplog.text == ""


# ------------------------------------------------------------------ by age


def test_what_ended_long_ago_goes_by_its_ending_and_what_is_open_stays(disk: Store) -> None:
    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        system.spawn(quick, "one", id="old").result(PATIENCE)
        failed = system.spawn(fails, id="old failure")
        wait_for(lambda: failed.status() == "failed")
        system.spawn(waits, id="open")
        clock.advance(10 * DAY)
        system.spawn(quick, "two", id="new").result(PATIENCE)
        clock.advance(DAY)
        assert system.delete_ended(timedelta(days=11, seconds=9), status=["completed"]) == 0
        assert system.delete_ended(timedelta(days=11), status=["completed", "cancelled"]) == 1
        assert left(disk) == ["new", "old failure", "open"]
        assert system.delete_ended(2 * DAY) == 1
        assert left(disk) == ["new", "open"]
        once: Any = (status for status in ["failed", "completed"])
        assert system.delete_ended(0, status=once) == 1
        assert left(disk) == ["open"]


def test_a_task_that_has_come_under_the_id_of_one_that_ended_long_ago_stays(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what is old enough and the deletion, another process deletes it, and its id is taken anew."""
    clock = FakeClock(start=0.0)
    with AgentSystem(disk, clock=clock) as system:
        system.spawn(quick, "old", id="t").result(PATIENCE)
        clock.advance(DAY)
        select_page = disk.recorder.select_page

        def look(**bounds: Any) -> Any:
            rows = select_page(**bounds)
            if rows and system.task("t").result(PATIENCE) == "OLD":
                system.task("t").delete()
                system.spawn(quick, "new", id="t").result(PATIENCE)
            return rows

        monkeypatch.setattr(disk.recorder, "select_page", look)
        assert system.delete_ended(DAY / 2) == 0
        assert system.task("t").result(PATIENCE) == "NEW"


def test_however_many_have_ended_all_go_also_where_two_delete_them_at_once(disk: Store) -> None:
    log = TaskLog(disk)
    for number in range(450):
        appender = Appender(log, log.create(f"t{number}", quick.name, [["x"], {}], {}))
        if number % 9:
            appender.append(lambda task, now: task.request_cancel(now, "", "ann", 1.0))
    deleted = list[int]()
    with AgentSystem(disk, run=False) as client:
        threads = [threading.Thread(target=lambda: deleted.append(client.delete_ended(0))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE * 2)
    assert sum(deleted) == 400
    assert left(disk) == sorted(f"t{number}" for number in range(0, 450, 9))


@pytest.mark.parametrize("wrong", [-1, None, "30d", float("nan")])
def test_an_age_that_is_none_is_refused(disk: Store, wrong: Any) -> None:
    with AgentSystem(disk, run=False) as client, pytest.raises(ValueError, match="older_than is "):
        client.delete_ended(wrong)


@pytest.mark.parametrize("wrong", ["completed", ["running"], ["completed", "held"]])
def test_a_status_that_is_no_ending_is_refused(disk: Store, wrong: Any) -> None:
    with AgentSystem(disk, run=False) as client, pytest.raises(ValueError, match="status is a collection of completed"):
        client.delete_ended(0, status=wrong)


# ------------------------------------------------------------------ when things fail


@pytest.mark.parametrize("point", ["delete.before", "delete.after"])
def test_a_store_that_stumbles_costs_no_deletion(disk: Store, point: str) -> None:
    with AgentSystem(disk) as system:
        system.spawn(quick, "one", id="t").result(PATIENCE)
    lost = partial(StoreUnavailableError, "the acknowledgement is lost", unknown_fate=True)
    with AgentSystem(
        CrashingStore(disk, FaultPlan(3 if point == "delete.before" else 1, point, lost)), run=False
    ) as client:
        client.task("t").delete()
    assert left(disk) == []


@pytest.mark.parametrize("point", ["append.before", "append.after", "delete.before", "delete.after"])
def test_a_death_in_a_deletion_loses_no_word_to_a_parent_and_the_next_one_ends_it(disk: Store, point: str) -> None:
    (child,) = waiting_family(disk, 1)
    end(disk, child)
    life = CrashingStore(disk, CrashPlan(1, point))
    with suppress(SimulatedCrash), AgentSystem(life, run=False) as client:
        client.task(child).delete()
    life.close()
    assert life.plan.dead
    with AgentSystem(disk, run=False) as client, suppress(UnknownTaskError):
        client.task(child).delete()
    assert left(disk) == ["t"]
    with AgentSystem(disk) as system:
        assert system.task("t").result(PATIENCE) == ["done"]
