"""Crashes on purpose: what a dead process has done is there, what it had not is not, and it does nothing more."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from eventsourcing.persistence import StoredEvent

from stores import IndexRow, Store, StoreClosedError, StoreUnavailableError, open_store
from stores.crash import CrashingStore, CrashPlan, FaultPlan, SimulatedCrash
from stores.task_index import Birth

TIMEOUT = 30
ROOT = Path(__file__).parents[1]
POINTS = ["append.before", "append.inside", "append.after"]


def append(store: Store, head: int, bears: str = "") -> None:
    entry = IndexRow("a", "birth", head, 0, "queued", "agent", 1.0, 1.0)
    stored = [StoredEvent("a", head, "topic", b"state")]
    expected = ("birth", head - 1) if head > 1 else None
    born = [Birth(StoredEvent(bears, 1, "topic", b"child"), entry._replace(id=bears, head=1))] if bears else []
    store.recorder.insert_events(stored, entry=entry, expected=expected, births=born)


def heads(store: Store) -> tuple[int, int]:
    entry = store.recorder.select_entry("a")
    return (entry.head if entry else 0, len(store.recorder.select_events("a")))


@pytest.mark.parametrize(("point", "kept"), [("append.before", 1), ("append.inside", 1), ("append.after", 2)])
def test_a_crash_leaves_what_was_committed(disk: Store, point: str, kept: int) -> None:
    store = CrashingStore(disk, CrashPlan(2, point))
    append(store, 1)
    with pytest.raises(SimulatedCrash, match=point) as caught:
        append(store, 2)
    assert caught.value.point == point
    assert heads(disk) == (kept, kept)
    append(disk, kept + 1)


@pytest.mark.parametrize(("point", "kept"), [("append.before", 1), ("append.inside", 1), ("append.after", 2)])
def test_a_crash_leaves_a_child_with_its_parents_event_or_neither(disk: Store, point: str, kept: int) -> None:
    store = CrashingStore(disk, CrashPlan(2, point))
    append(store, 1)
    with pytest.raises(SimulatedCrash, match=point):
        append(store, 2, bears="child")
    assert heads(disk) == (kept, kept)
    assert disk.recorder.select_ids() == ["a", "child"][:kept]
    child = disk.recorder.select_entry("child")
    assert (child is not None) == (kept == 2)


def test_a_point_tells_who_is_born_there(disk: Store) -> None:
    told: list[object] = []

    class Listening(CrashPlan):
        def reach(self, point: str, **facts: object) -> None:
            told.append((point, facts.get("births")))
            super().reach(point, **facts)

    append(CrashingStore(disk, Listening(None)), 1, bears="child")
    assert told == [(point, ("child",)) for point in POINTS]


@pytest.mark.parametrize(("point", "kept"), [("heartbeat.before", (1, "one")), ("heartbeat.after", (1, "two"))])
def test_a_crash_at_a_heartbeat_leaves_what_was_committed(disk: Store, point: str, kept: tuple[int, str]) -> None:
    store = CrashingStore(disk, CrashPlan(2, point))
    store.recorder.save_heartbeat("a", "birth", "1", 1, "one")
    with pytest.raises(SimulatedCrash, match=point):
        store.recorder.save_heartbeat("a", "birth", "1", 1, "two")
    assert disk.recorder.select_heartbeat("a", "birth", "1") == kept


def test_beats_are_no_crash_points(disk: Store) -> None:
    plan = CrashPlan(1)
    store = CrashingStore(disk, plan)
    store.recorder.save_beat("w", 1, 1.0)
    assert store.recorder.select_beats() == {"w": (1, 1.0)}
    store.recorder.delete_beat("w")
    assert plan.points == []


def test_after_a_crash_the_store_refuses_everything(disk: Store) -> None:
    plan = CrashPlan(1, "body.before")
    store = CrashingStore(disk, plan)
    append(store, 1)
    lock = store.workers.hold("w", {})
    assert not plan.dead
    with pytest.raises(SimulatedCrash):
        store.reach("body.before", path="1")
    assert plan.dead
    entry = disk.recorder.select_entry("a")
    for use in (
        lambda: append(store, 2),
        lambda: store.recorder.update_index(entry, expected=("birth", 1)),
        lambda: store.recorder.rebuild_index(lambda task_id, old: old),
        lambda: store.recorder.select_events("a"),
        lambda: store.recorder.select_entry("a"),
        lambda: store.recorder.select_rows(["a"]),
        store.recorder.select_entries,
        lambda: store.recorder.select_ready(1.0, agents=["agent"], busy_owners=[], limit=1),
        lambda: store.recorder.select_held("doubt", limit=1),
        lambda: store.recorder.next_due(1.0, agents=["agent"]),
        store.recorder.select_ids,
        lambda: store.recorder.save_heartbeat("a", "birth", "1", 1, ""),
        lambda: store.recorder.select_heartbeat("a", "birth", "1"),
        lambda: store.recorder.delete_heartbeats("a"),
        lambda: store.recorder.save_beat("w", 1, 1.0),
        store.recorder.select_beats,
        lambda: store.recorder.delete_beat("w"),
        lambda: store.workers.hold("v", {}),
        lambda: store.workers.is_alive("w"),
        store.workers.live,
        lambda: lock.update({}),
        lock.release,
        lambda: store.reach("anything else"),
    ):
        with pytest.raises(SimulatedCrash, match=r"body\.before"):
            use()
    assert heads(disk) == (1, 1)
    assert disk.recorder.select_heartbeat("a", "birth", "1") is None


def test_a_dead_store_frees_its_workers_when_it_closes_and_leaves_the_disk_open(disk: Store) -> None:
    store = CrashingStore(disk, CrashPlan(1))
    store.workers.hold("w", {})
    with pytest.raises(SimulatedCrash):
        append(store, 1)
    assert disk.workers.is_alive("w")
    store.close()
    store.close()
    assert not disk.workers.is_alive("w")
    append(disk, 1)


def test_a_living_store_closes_in_good_order(disk: Store) -> None:
    store = CrashingStore(disk, CrashPlan(None))
    store.workers.hold("w", {})
    store.close()
    assert disk.workers.live() == {}
    with pytest.raises(StoreClosedError):
        append(store, 1)
    append(disk, 1)
    CrashingStore(disk, CrashPlan(None), close_inner=True).close()
    with pytest.raises(StoreClosedError):
        append(disk, 2)


def test_a_plan_without_a_number_only_keeps_the_list(disk: Store) -> None:
    plan = CrashPlan(None)
    store = CrashingStore(disk, plan)
    append(store, 1)
    store.reach("body.before")
    append(store, 2)
    assert plan.points == [*POINTS, "body.before", *POINTS]
    assert not plan.dead


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_plan_dies_at_the_nth_point_of_all(disk: Store, nth: int) -> None:
    plan = CrashPlan(nth)
    store = CrashingStore(disk, plan)
    for head in range(1, (nth + 2) // 3):
        append(store, head)
    with pytest.raises(SimulatedCrash):
        append(store, (nth + 2) // 3)
    assert len(plan.points) == nth
    assert heads(disk)[0] == nth // 3


def test_a_point_tells_what_is_written_there(disk: Store) -> None:
    told: list[object] = []

    class Listening(CrashPlan):
        def reach(self, point: str, **facts: object) -> None:
            told.append((point, facts))
            super().reach(point, **facts)

    store = CrashingStore(disk, Listening(None))
    append(store, 1)
    store.recorder.save_heartbeat("a", "birth", "3/1", 2, "half")
    appended, beaten = {"id": "a", "version": 1, "topics": ("topic",)}, {"id": "a", "path": "3/1", "attempt": 2}
    beats = ["heartbeat.before", "heartbeat.after"]
    assert told == [*((point, appended) for point in POINTS), *((point, beaten) for point in beats)]


def test_one_thread_dies_of_itself_and_the_others_of_it(disk: Store) -> None:
    plan = CrashPlan(100)
    store = CrashingStore(disk, plan)
    ends: list[BaseException] = []

    def run() -> None:
        try:
            while True:
                store.reach("body.before")
        except SimulatedCrash as crash:
            ends.append(crash)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert len(ends) == 8
    assert len(plan.points) == 100


def test_a_plan_may_really_kill(tmp_path: Path) -> None:
    script = f"""
import os, signal
from eventsourcing.persistence import StoredEvent
from stores import IndexRow, open_store
from stores.crash import CrashingStore, CrashPlan
plan = CrashPlan(2, "append.inside", die=lambda: os.kill(os.getpid(), signal.SIGKILL))
store = CrashingStore(open_store("sqlite:///{tmp_path}/tasks.db"), plan)
for head in range(1, 5):
    entry = IndexRow("a", "birth", head, 0, "queued", "agent", 1.0, 1.0)
    expected = ("birth", head - 1) if head > 1 else None
    store.recorder.insert_events([StoredEvent("a", head, "topic", b"")], entry=entry, expected=expected)
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=TIMEOUT, check=False)
    assert ended.returncode == -signal.SIGKILL
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        assert heads(store) == (1, 1)
        append(store, 2)


def test_a_death_that_returns_lets_the_plan_count_on(disk: Store) -> None:
    deaths: list[int] = []
    plan = CrashPlan(1, "append.before", die=lambda: deaths.append(os.getpid()))
    store = CrashingStore(disk, plan)
    append(store, 1)
    append(store, 2)
    assert (len(deaths), plan.dead, heads(disk)) == (1, False, (2, 2))


@pytest.mark.parametrize(("point", "kept"), [("append.before", 0), ("append.inside", 0), ("append.after", 1)])
def test_a_fault_fails_the_next_that_match_and_nobody_dies(disk: Store, point: str, kept: int) -> None:
    plan = FaultPlan(2, point, lambda: StoreUnavailableError("away", unknown_fate=True))
    store = CrashingStore(disk, plan)
    with pytest.raises(StoreUnavailableError, match="away"):
        append(store, 1)
    assert heads(store) == (kept, kept)
    with pytest.raises(StoreUnavailableError, match="away"):
        append(store, kept + 1)
    assert plan.failed == 2
    head = heads(store)[0]
    append(store, head + 1)
    assert heads(store) == (head + 1, head + 1)


def test_a_fault_may_be_an_exception_that_exists(disk: Store) -> None:
    error = OSError("no")
    store = CrashingStore(disk, FaultPlan(1, None, error))
    with pytest.raises(OSError, match="no") as caught:
        store.reach("body.after")
    assert caught.value is error
    store.reach("body.after")
