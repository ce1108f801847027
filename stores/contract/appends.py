"""The contract of appends: all or nothing, by compare-and-swap on the index row."""

import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent

from stores.contract.kit import Suite, birth, contents, create, events, grow, raising, row
from stores.crash import SimulatedCrash
from stores.errors import AppendConflictError
from stores.store import Store
from stores.task_index import Birth

ERRORS = [ZeroDivisionError, SimulatedCrash("here"), KeyboardInterrupt]


class Appends(Suite):
    """What an append of one task guarantees."""

    def test_an_append_stores_its_events_and_its_row(self, store: Store) -> None:
        entry = row("a", 3, due=7.5, owner="w", strikes=2, hold="doubt", note="one line")
        store.recorder.insert_events(events("a", 1, 2, 3), entry=entry, expected=None)
        assert store.recorder.select_events("a") == events("a", 1, 2, 3)
        assert store.recorder.select_entry("a") == entry

    def test_an_append_replaces_every_column_of_the_row(self, store: Store) -> None:
        first = create(store)
        entry = type(first)("a", first.birth, 2, 9, "held", "other", 3.0, 4.0, 5.0, "w", 6, "strikes", "why")
        store.recorder.insert_events(events("a", 2), entry=entry, expected=(first.birth, 1))
        assert store.recorder.select_entry("a") == entry

    @pytest.mark.parametrize("state", [b"", bytes(range(256)), b"\0" * 1_000_000], ids=["empty", "any byte", "big"])
    def test_a_state_comes_back_byte_by_byte(self, store: Store, state: bytes) -> None:
        store.recorder.insert_events(events("a", 1, state=state), entry=row(), expected=None)
        (event,) = store.recorder.select_events("a")
        assert (type(event.state), event.state) == (bytes, state)

    @pytest.mark.parametrize(("before", "after"), [(None, None), (None, 1.0), (1.0, None), (1.0, 1.0), (1.0, 2.0)])
    def test_an_append_may_change_when_a_task_is_due(
        self, store: Store, before: float | None, after: float | None
    ) -> None:
        entry = create(store, due=before)._replace(head=2, due=after)
        store.recorder.insert_events(events("a", 2), entry=entry, expected=(entry.birth, 1))
        assert store.recorder.select_entry("a") == entry
        due = store.recorder.select_ready(9.0, agents=["agent"], busy_owners=[], limit=9)
        assert due == ([entry] if after else [])

    def test_a_second_creation_is_a_conflict_that_shows_the_first(self, store: Store) -> None:
        first = create(store)
        before = contents(store)
        with pytest.raises(AppendConflictError, match="no such task") as caught:
            store.recorder.insert_events(events("a", 1), entry=row(birth="another"), expected=None)
        assert (caught.value.expected, caught.value.found, caught.value.task_id) == (None, first, "a")
        assert contents(store) == before

    @pytest.mark.parametrize("expected", [("birth-of-a", 2), ("birth-of-a", 4), ("another", 3)])
    def test_an_append_from_another_head_or_birth_is_a_conflict(self, store: Store, expected: tuple[str, int]) -> None:
        entry = row(head=3)
        store.recorder.insert_events(events("a", 1, 2, 3), entry=entry, expected=None)
        before = contents(store)
        head = expected[1] + 1
        with pytest.raises(AppendConflictError) as caught:
            store.recorder.insert_events(events("a", head), entry=row(head=head), expected=expected)
        assert (caught.value.expected, caught.value.found) == (expected, entry)
        assert contents(store) == before

    def test_an_append_to_a_task_that_is_not_there_is_a_conflict_with_nothing(self, store: Store) -> None:
        with pytest.raises(AppendConflictError) as caught:
            store.recorder.insert_events(events("ghost", 2), entry=row("ghost", 2), expected=("b", 1))
        assert (caught.value.found, caught.value.task_id) == (None, "ghost")
        assert contents(store) == ([], {})

    def test_a_key_that_is_taken_is_an_integrity_error_and_undoes_the_row(self, store: Store) -> None:
        entry = create(store)
        grow(store, entry)
        store.recorder.rebuild_index(lambda task_id, old: entry)  # the index now says 1, the log has 2
        before = contents(store)
        with pytest.raises(IntegrityError):
            grow(store, entry, by=2)
        assert contents(store) == before

    @pytest.mark.parametrize(
        ("appended", "head"),
        [(events("a", 3), 3), (events("a", 2, 4), 4), (events("a", 2), 3), (events("b", 2), 2), ([], 2)],
        ids=["a gap before", "a gap within", "another head", "another task", "no event"],
    )
    def test_an_append_that_would_leave_a_gap_is_refused(
        self, store: Store, appended: list[StoredEvent], head: int
    ) -> None:
        entry = create(store)
        before = contents(store)
        with pytest.raises(ValueError, match="task 'a'"):
            store.recorder.insert_events(appended, entry=row(head=head), expected=(entry.birth, 1))
        assert contents(store) == before

    @pytest.mark.parametrize("error", ERRORS)
    def test_whatever_inside_raises_undoes_the_append(
        self, store: Store, error: type[BaseException] | BaseException
    ) -> None:
        entry = create(store)
        before = contents(store)
        with pytest.raises(error if isinstance(error, type) else type(error)):
            grow(store, entry._replace(due=1.0), inside=raising(error))
        assert contents(store) == before
        grow(store, entry)

    def test_inside_is_not_called_for_a_conflict(self, store: Store) -> None:
        create(store)
        calls: list[int] = []
        with pytest.raises(AppendConflictError):
            store.recorder.insert_events(events("a", 1), entry=row(), expected=None, inside=lambda: calls.append(1))
        assert calls == []

    def test_inside_is_called_once_and_sees_nothing_of_the_append(self, store: Store) -> None:
        seen: list[object] = []
        store.recorder.insert_events(
            events("a", 1), entry=row(), expected=None, inside=lambda: seen.append(store.recorder.select_entry("a"))
        )
        assert seen == [None]


class Births(Suite):
    """What an append guarantees that makes other tasks with it."""

    def test_an_append_may_make_other_tasks_with_it(self, store: Store) -> None:
        entry = create(store)
        children = [birth("b", due=1.0), birth("c", hold="doubt")]
        grow(store, entry, births=children)
        assert store.recorder.select_events("a") == events("a", 1, 2)
        for child in children:
            assert store.recorder.select_events(child.entry.id) == [child.event]
            assert store.recorder.select_entry(child.entry.id) == child.entry
        due = store.recorder.select_ready(9.0, agents=["agent"], busy_owners=[], limit=9)
        assert due == [children[0].entry]
        grow(store, row("b"))

    def test_a_task_may_be_made_with_others(self, store: Store) -> None:
        store.recorder.insert_events(events("a", 1), entry=row(), expected=None, births=[birth("b")])
        assert store.recorder.select_ids() == ["a", "b"]

    @pytest.mark.parametrize("taken", ["b", "c"])
    def test_a_birth_under_an_id_that_is_taken_is_a_conflict_that_names_it_and_leaves_nothing(
        self, store: Store, taken: str
    ) -> None:
        entry, other = create(store), create(store, taken, note="another's")
        before = contents(store)
        with pytest.raises(AppendConflictError) as caught:
            grow(store, entry, births=[birth("b"), birth("c")])
        assert (caught.value.task_id, caught.value.expected, caught.value.found) == (taken, None, other)
        assert contents(store) == before

    def test_a_conflict_of_the_parent_comes_before_one_of_its_child_and_makes_no_child(self, store: Store) -> None:
        entry = create(store)
        create(store, "c")
        before = contents(store)
        for births in ([birth("b")], [birth("c")]):
            with pytest.raises(AppendConflictError) as caught:
                grow(store, entry._replace(head=2), births=births)
            assert (caught.value.task_id, caught.value.found) == ("a", entry)
        assert contents(store) == before

    @pytest.mark.parametrize("twice", [["b", "b"], ["a"]])
    def test_one_id_twice_in_one_append_is_refused(self, store: Store, twice: list[str]) -> None:
        entry = create(store)
        before = contents(store)
        with pytest.raises(ValueError, match=f"task '{twice[0]}' is in one append twice"):
            grow(store, entry, births=[birth(one) for one in twice])
        assert contents(store) == before

    def test_a_birth_whose_log_is_there_without_its_row_is_an_integrity_error_and_leaves_nothing(
        self, store: Store
    ) -> None:
        entry = create(store)
        create(store, "b")
        store.recorder.rebuild_index(lambda task_id, old: old if task_id == "a" else None)
        before = contents(store)
        with pytest.raises(IntegrityError):
            grow(store, entry, births=[birth("b")])
        assert contents(store) == before

    @pytest.mark.parametrize(
        "born",
        [
            Birth(events("b", 2)[0], row("b", 2)),
            Birth(events("b", 1)[0], row("b", 2)),
            Birth(events("b", 1)[0], row("c", 1)),
        ],
        ids=["no first event", "another head", "another task"],
    )
    def test_a_birth_that_is_no_beginning_is_refused(self, store: Store, born: Birth) -> None:
        entry = create(store)
        before = contents(store)
        with pytest.raises(ValueError, match=r"task '[bc]'"):
            grow(store, entry, births=[born])
        assert contents(store) == before

    @pytest.mark.parametrize("error", ERRORS)
    def test_whatever_inside_raises_undoes_births_as_well(
        self, store: Store, error: type[BaseException] | BaseException
    ) -> None:
        entry = create(store)
        before = contents(store)
        with pytest.raises(error if isinstance(error, type) else type(error)):
            grow(store, entry, inside=raising(error), births=[birth("b")])
        assert contents(store) == before
        seen: list[object] = []
        grow(store, entry, inside=lambda: seen.append(store.recorder.select_entry("b")), births=[birth("b")])
        assert seen == [None]
        assert store.recorder.select_ids() == ["a", "b"]
