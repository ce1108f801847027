"""The contract of what stands beside the log: heartbeats, emissions, beats, workers."""

from functools import partial

import pytest

from stores.contract.kit import Suite, at_once, contents, create, emitted, grow, said
from stores.emissions import EMIT, MOST_EMISSIONS, RESET
from stores.errors import StoreClosedError
from stores.store import Store


class Heartbeats(Suite):
    """One heartbeat a step: the last one."""

    def test_a_heartbeat_is_overwritten_by_the_next(self, store: Store) -> None:
        recorder = store.recorder
        assert recorder.select_heartbeat("a", "x", "1") is None
        for attempt, detail in [(1, "page 1"), (1, "page 2"), (2, ""), (2, "page 9")]:
            recorder.save_heartbeat("a", "x", "1", attempt, detail)
            assert recorder.select_heartbeat("a", "x", "1") == (attempt, detail)
        assert contents(store) == ([], {})

    def test_the_late_heartbeat_of_a_body_that_was_given_up_changes_nothing(self, store: Store) -> None:
        store.recorder.save_heartbeat("a", "x", "1", 10, "the second body's")
        store.recorder.save_heartbeat("a", "x", "1", 9, "the first body's")
        assert store.recorder.select_heartbeat("a", "x", "1") == (10, "the second body's")

    def test_a_heartbeat_of_another_birth_is_not_seen_and_is_replaced(self, store: Store) -> None:
        store.recorder.save_heartbeat("a", "x", "1", 3, "of the first life")
        assert store.recorder.select_heartbeat("a", "y", "1") is None
        store.recorder.save_heartbeat("a", "y", "1", 1, "of the second")
        assert store.recorder.select_heartbeat("a", "y", "1") == (1, "of the second")
        assert store.recorder.select_heartbeat("a", "x", "1") is None

    def test_heartbeats_are_deleted_by_task_or_by_step(self, store: Store) -> None:
        recorder = store.recorder
        steps = [("a", "1"), ("a", "2"), ("a", "1/2"), ("b", "1")]

        def left() -> list[tuple[str, str]]:
            return [(task_id, path) for task_id, path in steps if recorder.select_heartbeat(task_id, "x", path)]

        for task_id, path in steps:
            recorder.save_heartbeat(task_id, "x", path, 1, "")
        recorder.delete_heartbeats("a", "1")
        assert left() == [("a", "2"), ("a", "1/2"), ("b", "1")]
        recorder.delete_heartbeats("a")
        assert left() == [("b", "1")]
        recorder.delete_heartbeats("a")
        recorder.delete_heartbeats("b", "2")
        recorder.delete_heartbeats("nobody", "1")
        assert left() == [("b", "1")]
        recorder.save_heartbeat("a", "x", "1", 1, "again")
        assert left() == [("a", "1"), ("b", "1")]

    def test_threads_that_beat_at_once_leave_the_highest_attempt(self, store: Store) -> None:
        def beat(first: int) -> None:
            for attempt in range(first, 41, 4):
                store.recorder.save_heartbeat("a", "x", "1", attempt, str(attempt))

        at_once(*(partial(beat, first) for first in (1, 2, 3, 4)))
        assert store.recorder.select_heartbeat("a", "x", "1") == (40, "40")


class Beats(Suite):
    """One beat a worker: the last one."""

    def test_a_beat_is_overwritten_by_the_next_whatever_it_counts_until_it_is_deleted(self, store: Store) -> None:
        recorder = store.recorder
        assert recorder.select_beats() == {}
        for count, lease in [(1, 10.0), (2, 10.0), (1, 2.5), (2**40, 0.1)]:
            recorder.save_beat("w", count, lease)
            assert recorder.select_beats() == {"w": (count, lease)}
        recorder.save_beat("v", 1, 3.0)
        assert recorder.select_beats() == {"w": (2**40, 0.1), "v": (1, 3.0)}
        for worker in ("w", "w", "nobody"):
            recorder.delete_beat(worker)
        assert recorder.select_beats() == {"v": (1, 3.0)}
        assert contents(store) == ([], {})


class Emissions(Suite):
    """What running code has said, in the order of commits."""

    def test_emissions_come_back_as_they_are_in_the_order_of_their_commits_and_of_events(self, store: Store) -> None:
        entry, recorder = create(store), store.recorder
        rows = [said("1", "one"), said("2-", "two", attempt=3)._replace(channel="log", at=7.25, base=50, number=50)]
        recorder.save_emissions("a", entry.birth, rows)
        entry = grow(store, entry)
        recorder.save_emissions("a", entry.birth, [said("1", "three")])
        stored = recorder.select_emissions("a", entry.birth, upto=2, limit=9)
        assert stored[:2] == [rows[0]._replace(base=1, number=1), rows[1]._replace(base=1, number=2)]
        assert emitted(store) == [(1, 1, "one"), (1, 2, "two"), (2, 3, "three")]
        assert emitted(store, after=(1, 1)) == [(1, 2, "two"), (2, 3, "three")]
        assert emitted(store, after=(1, 9)) == emitted(store, after=(2, 0)) == [(2, 3, "three")]
        assert emitted(store, upto=1, limit=1) == [(1, 1, "one")]
        assert emitted(store, upto=1) == [(1, 1, "one"), (1, 2, "two")]
        assert emitted(store, upto=0) == emitted(store, limit=0) == emitted(store, after=(2, 3)) == []
        assert [event.originator_version for event in recorder.select_events("a")] == [1, 2]
        assert recorder.select_entry("a") == entry

    def test_what_a_task_emits_that_is_not_there_or_has_another_birth_is_left_out(self, store: Store) -> None:
        entry = create(store)
        store.recorder.save_emissions("ghost", "birth-of-ghost", [said("1", "x")])
        store.recorder.save_emissions("a", "another", [said("1", "x")])
        assert emitted(store) == emitted(store, "ghost") == []
        assert store.recorder.select_emissions("a", "another", upto=9, limit=9) == []
        store.recorder.save_emissions("a", entry.birth, [])
        assert emitted(store) == []

    def test_what_an_older_activation_emits_is_left_out(self, store: Store) -> None:
        entry = create(store, activation=2)
        rows = [said("1", "old", activation=1), said("1", "new", activation=2), said("1", activation=1, kind=RESET)]
        store.recorder.save_emissions("a", entry.birth, rows)
        assert emitted(store) == [(1, 1, "new")]

    def test_a_reset_is_stored_only_where_there_is_something_to_reset(self, store: Store) -> None:
        recorder, birth = store.recorder, create(store).birth
        reset = said("1", kind=RESET)
        recorder.save_emissions("a", birth, [reset, said("2", "x"), reset])
        assert emitted(store) == [(1, 1, "x")]
        recorder.save_emissions("a", birth, [said("1", "y"), said("2", "z"), reset, reset, said("1", "w")])
        recorder.save_emissions("a", birth, [reset, reset])
        recorder.save_emissions("a", birth, [reset])
        assert emitted(store)[1:] == [(1, 2, "y"), (1, 3, "z"), (1, 4, "reset 1"), (1, 5, "w"), (1, 6, "reset 1")]

    def test_only_the_newest_emissions_of_a_task_are_kept(self, store: Store) -> None:
        recorder, entry = store.recorder, create(store)
        other = create(store, "b")
        recorder.save_emissions("b", other.birth, [said("1", "of b")])
        recorder.save_emissions("a", entry.birth, [said("1", str(n)) for n in range(MOST_EMISSIONS - 1)])
        assert len(emitted(store)) == MOST_EMISSIONS - 1
        entry = grow(store, entry)
        recorder.save_emissions("a", entry.birth, [said("1", "x") for _ in range(4)])
        kept = emitted(store)
        assert (len(kept), kept[0], kept[-1]) == (MOST_EMISSIONS, (1, 4, "3"), (2, MOST_EMISSIONS + 3, "x"))
        recorder.save_emissions("a", entry.birth, [said("1", str(n)) for n in range(2 * MOST_EMISSIONS)])
        kept = emitted(store)
        assert (len(kept), kept[0][1:]) == (MOST_EMISSIONS, (2 * MOST_EMISSIONS + 4, str(MOST_EMISSIONS)))
        assert emitted(store, "b") == [(1, 1, "of b")]

    def test_emissions_of_an_older_birth_go_with_the_first_of_the_next(self, store: Store) -> None:
        entry, recorder = create(store), store.recorder
        recorder.save_emissions("a", entry.birth, [said("1", "old"), said("1", "older")])
        recorder.rebuild_index(lambda task_id, old: entry._replace(birth="next"))
        recorder.save_emissions("a", "next", [said("1", kind=RESET), said("1", "new")])
        assert emitted(store) == []
        (row,) = recorder.select_emissions("a", "next", upto=9, limit=9)
        assert (row.value, row.number) == ("new", 1)

    def test_the_numbers_of_emissions_never_go_back_even_where_the_head_does(self, store: Store) -> None:
        entry, recorder = grow(store, create(store)), store.recorder
        recorder.save_emissions("a", entry.birth, [said("1", "x")])
        recorder.update_index(entry._replace(head=1), expected=(entry.birth, 2))  # a log that has lost its end
        for text in "yz":
            recorder.save_emissions("a", entry.birth, [said("1", text)])
        assert emitted(store) == [(2, 1, "x"), (2, 2, "y"), (2, 3, "z")]

    def test_emissions_are_deleted_by_task(self, store: Store) -> None:
        for entry in (create(store, "a"), create(store, "b")):
            store.recorder.save_emissions(entry.id, entry.birth, [said("1", "x")])
        for name in ("a", "a", "nobody"):
            store.recorder.delete_emissions(name)
        assert (emitted(store), emitted(store, "b")) == ([], [(1, 1, "x")])
        store.recorder.save_emissions("a", "birth-of-a", [said("1", "again", kind=EMIT)])
        assert emitted(store) == [(1, 1, "again")]


class WorkersOfAStore(Suite):
    """Who is alive."""

    def test_a_worker_is_alive_until_it_is_released(self, store: Store) -> None:
        workers = store.workers
        assert not workers.is_alive("w")
        lock = workers.hold("w", {"pid": 1})
        other = workers.hold("v", {})
        assert lock.id == "w"
        assert workers.is_alive("w")
        assert workers.live() == {"v": {}, "w": {"pid": 1}}
        assert lock.keep({"pid": 1})
        lock.release()
        lock.release()
        assert not workers.is_alive("w")
        assert workers.is_alive("v")
        other.abandon()
        assert workers.live() == {}

    def test_a_worker_may_say_something_else_of_itself(self, store: Store) -> None:
        lock = store.workers.hold("w", {"tasks": list(range(100))})
        lock.update({"tasks": []})
        assert store.workers.live() == {"w": {"tasks": []}}
        lock.update({"note": "é" * 500})
        assert store.workers.live() == {"w": {"note": "é" * 500}}
        lock.release()
        with pytest.raises(StoreClosedError):
            lock.update({})
        assert store.workers.live() == {}

    def test_two_workers_cannot_have_one_id(self, store: Store) -> None:
        lock = store.workers.hold("w", {"pid": 1})
        with pytest.raises(ValueError, match="in use"):
            store.workers.hold("w", {"pid": 2})
        assert store.workers.live() == {"w": {"pid": 1}}
        lock.release()

    @pytest.mark.parametrize("worker_id", ["", "../w", "a/b", "a b", "w\0", "ü", "w" * 101])
    def test_a_worker_id_is_a_plain_word(self, store: Store, worker_id: str) -> None:
        with pytest.raises(ValueError, match="worker id"):
            store.workers.hold(worker_id, {})
        assert not store.workers.is_alive(worker_id)
