"""The contract of what keeps a store small and sound: tasks deleted whole, pages, orphans, a vacuum, its schema."""

from contextlib import suppress

import pytest
from eventsourcing.persistence import StoredEvent

from stores.contract.kit import Suite, at_once, grow, refused
from stores.emissions import EMIT, Emission
from stores.errors import AppendConflictError, StoreClosedError
from stores.orphans import Orphans
from stores.schema import SCHEMA
from stores.store import Store
from stores.task_index import IndexRow


def furnish(store: Store, task_id: str, birth: str = "b", head: int = 3, text: str = "text") -> IndexRow:
    """Make a task that has a bit of everything."""
    row = IndexRow(task_id, birth, head, 1, "completed", "agent", 1.0, 2.0, note=f"note {text}")
    events = [StoredEvent(task_id, version, "topic", text.encode()) for version in range(1, head + 1)]
    store.recorder.insert_events(events, entry=row, expected=None)
    store.recorder.save_heartbeat(task_id, birth, "1", 1, f"heartbeat {text}")
    speak(store, task_id, birth, text)
    return row


def speak(store: Store, task_id: str, birth: str, text: str = "text") -> None:
    """Let a task emit something."""
    store.recorder.save_emissions(task_id, birth, [Emission("1", 1, 1, EMIT, "text", f"emitted {text}", 1.0)])


def all_of(store: Store, task_id: str, birth: str = "b") -> list[object]:
    """Give the parts of a task that are there: at most its log, row, heartbeat, emissions."""
    recorder = store.recorder
    parts = (
        recorder.select_events(task_id),
        recorder.select_entry(task_id),
        recorder.select_heartbeat(task_id, birth, "1"),
        recorder.select_emissions(task_id, birth, upto=99, limit=9),
    )
    return [part for part in parts if part]


class Hygiene(Suite):
    """What a store does to stay small and sound."""

    def test_a_deleted_task_leaves_nothing_and_its_neighbours_everything(self, store: Store) -> None:
        gone, stay = ("b", "kind\x1fb"), ["a", "bb", "kind\x1fbb", "other\x1fb"]  # entities' streams are deleted too
        for name in (*gone, *stay):
            furnish(store, name)
        for name in gone:
            store.recorder.delete_task(name, expected=("b", 3))
        assert [part for name in gone for part in all_of(store, name)] == []
        assert [len(all_of(store, name)) for name in stay] == [4] * 4
        assert store.recorder.select_ids() == stay
        assert [row.id for row in store.recorder.select_entries()] == stay
        assert store.recorder.select_orphans() == []

    @pytest.mark.parametrize("expected", [("another", 3), ("b", 2), ("b", 4)])
    def test_a_task_that_is_not_as_expected_is_not_deleted(self, store: Store, expected: tuple[str, int]) -> None:
        row = furnish(store, "a")
        with pytest.raises(AppendConflictError) as caught:
            store.recorder.delete_task("a", expected=expected)
        assert (caught.value.expected, caught.value.found, caught.value.task_id) == (expected, row, "a")
        assert len(all_of(store, "a")) == 4

    def test_a_task_that_is_not_there_is_a_conflict_with_nothing(self, store: Store) -> None:
        with pytest.raises(AppendConflictError, match="no such task") as caught:
            store.recorder.delete_task("ghost", expected=("b", 1))
        assert (caught.value.found, caught.value.task_id) == (None, "ghost")

    def test_a_new_task_under_a_deleted_id_is_another_and_takes_nothing_of_the_old_one(self, store: Store) -> None:
        old = furnish(store, "a")
        store.recorder.delete_task("a", expected=("b", 3))
        new = furnish(store, "a", birth="c", head=1)
        late = StoredEvent("a", 4, "topic", b"late")
        with pytest.raises(AppendConflictError) as caught:
            store.recorder.insert_events([late], entry=old._replace(head=4), expected=("b", 3))
        assert caught.value.found == new
        with pytest.raises(AppendConflictError):
            store.recorder.delete_task("a", expected=("b", 3))
        speak(store, "a", "b", "late")
        assert store.recorder.select_emissions("a", "b", upto=99, limit=9) == []
        assert [event.state for event in store.recorder.select_events("a")] == [b"text"]
        assert len(all_of(store, "a", "c")) == 4

    def test_of_those_who_delete_one_task_at_once_and_one_that_appends_one_is_first(self, store: Store) -> None:
        row = furnish(store, "a", head=1)
        done: list[str] = []

        def delete() -> None:
            with suppress(AppendConflictError):
                store.recorder.delete_task("a", expected=("b", 1))
                done.append("delete")

        def append() -> None:
            with suppress(AppendConflictError):
                grow(store, row)
                done.append("append")

        at_once(append, *[delete] * 4)
        assert len(done) == 1
        assert bool(all_of(store, "a")) is (done == ["append"])

    def test_pages_by_id_give_each_row_and_each_log_once_in_order(self, store: Store) -> None:
        names = ["a", "ab", "b", "\x00", "é", "💻", "Z"]
        for name in names:
            furnish(store, name, head=2)
        for limit in (1, 3, 99):
            rows, ids = list[str](), list[str]()
            while page := store.recorder.select_page(after=rows[-1] if rows else "", limit=limit):
                rows += [row.id for row in page]
            while found := store.recorder.select_ids(after=ids[-1] if ids else "", limit=limit):
                ids += found
            assert rows == ids == sorted(names)
        assert store.recorder.select_page(limit=9) == sorted(store.recorder.select_entries())

    def test_orphans_are_what_no_task_has_and_only_they_are_swept(self, store: Store) -> None:
        recorder = store.recorder
        furnish(store, "a")
        furnish(store, "b")
        recorder.save_heartbeat("ghost", "x", "1", 1, "late")
        recorder.save_heartbeat("ghost", "x", "2", 1, "late")
        recorder.delete_task("b", expected=("b", 3))
        recorder.save_heartbeat("b", "b", "7", 1, "of a body that outlives its task")
        recorder.rebuild_index(lambda task_id, old: old and old._replace(birth="another"))
        orphans = [
            Orphans("emissions", "a", "b", 1),
            Orphans("heartbeats", "a", "b", 1),
            Orphans("heartbeats", "b", "b", 1),
            Orphans("heartbeats", "ghost", "x", 2),
        ]
        assert recorder.select_orphans() == orphans
        assert recorder.delete_orphans() == 5
        assert recorder.select_orphans() == []
        assert recorder.delete_orphans() == 0
        assert [event.originator_version for event in recorder.select_events("a")] == [1, 2, 3]

    def test_what_a_task_has_said_is_no_orphan_while_only_its_index_row_is_lost(self, store: Store) -> None:
        furnish(store, "a")
        store.recorder.rebuild_index(lambda task_id, old: None)
        assert store.recorder.select_orphans() == []
        assert store.recorder.delete_orphans() == 0

    def test_a_store_says_its_schema_is_sound_and_may_be_made_anew_at_any_time(self, store: Store) -> None:
        furnish(store, "a")
        store.recorder.save_heartbeat("ghost", "x", "1", 1, "late")
        assert store.recorder.schema_version() == SCHEMA
        assert list(store.damages()) == []
        assert store.empty_journal()
        store.vacuum()
        assert store.recorder.select_orphans() == []
        assert len(all_of(store, "a")) == 4

    def test_after_close_all_of_this_says_so_too(self, store: Store) -> None:
        store.close()
        refused(
            StoreClosedError,
            "closed",
            lambda: store.recorder.delete_task("a", expected=("b", 1)),
            lambda: store.recorder.select_page(limit=1),
            store.recorder.select_orphans,
            store.recorder.delete_orphans,
            store.recorder.schema_version,
            store.vacuum,
        )
