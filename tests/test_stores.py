"""The contract of every store, run for each of them; and one history in which they must agree."""

import itertools
import pickle
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent
from hypothesis import given, settings
from hypothesis import strategies as st

import stores
from stores import (
    AppendConflictError,
    IndexRow,
    InvalidStoreURLError,
    MemoryStore,
    NewerStoreError,
    SQLiteStore,
    Store,
    StoreClosedError,
    StoreCorruptError,
    StoreForkedError,
    StoreUnavailableError,
    open_store,
)
from stores.crash import CrashingStore, CrashPlan, SimulatedCrash
from stores.emissions import EMIT, LAST_NUMBER, MOST_EMISSIONS, RESET, Emission
from stores.sqlite import ROWS_AT_ONCE
from stores.task_index import START, Birth, Place, place

TIMEOUT = 20


@pytest.fixture(params=["memory", "sqlite", "crashing", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/tasks.db"
    with open_store(request.getfixturevalue("postgres") if request.param == "postgres" else url) as store:
        yield CrashingStore(store, CrashPlan(None)) if request.param == "crashing" else store


def row(task_id: str = "a", head: int = 1, **facts: object) -> IndexRow:
    plain = IndexRow(task_id, f"birth-of-{task_id}", head, 0, "queued", "agent", created=1.0, updated=2.0)
    return plain._replace(**facts)


def events(task_id: str, *versions: int, state: bytes = b"\x00state\xff") -> list[StoredEvent]:
    return [StoredEvent(task_id, version, "topic", state) for version in versions]


def create(store: Store, task_id: str = "a", **facts: object) -> IndexRow:
    entry = row(task_id, **facts)
    store.recorder.insert_events(events(task_id, 1), entry=entry, expected=None)
    return entry


def contents(store: Store) -> object:
    recorder = store.recorder
    return recorder.select_entries(), {name: recorder.select_events(name) for name in recorder.select_ids()}


def test_an_append_stores_its_events_and_its_row(store: Store) -> None:
    entry = row("a", 3, due=7.5, owner="w", strikes=2, hold="doubt", note="one line")
    store.recorder.insert_events(events("a", 1, 2, 3), entry=entry, expected=None)
    assert store.recorder.select_events("a") == events("a", 1, 2, 3)
    assert store.recorder.select_entry("a") == entry


def test_an_append_replaces_every_column_of_the_row(store: Store) -> None:
    first = create(store)
    entry = IndexRow("a", first.birth, 2, 9, "held", "other", 3.0, 4.0, 5.0, "w", 6, "strikes", "why")
    store.recorder.insert_events(events("a", 2), entry=entry, expected=(first.birth, 1))
    assert store.recorder.select_entry("a") == entry


@pytest.mark.parametrize(("before", "after"), [(None, None), (None, 1.0), (1.0, None), (1.0, 1.0), (1.0, 2.0)])
def test_an_append_may_change_when_a_task_is_due(store: Store, before: float | None, after: float | None) -> None:
    entry = create(store, due=before)._replace(head=2, due=after)
    store.recorder.insert_events(events("a", 2), entry=entry, expected=(entry.birth, 1))
    assert store.recorder.select_entry("a") == entry
    due = store.recorder.select_ready(9.0, agents=["agent"], busy_owners=[], limit=9)
    assert due == ([entry] if after else [])


def test_a_second_creation_is_a_conflict_that_shows_the_first(store: Store) -> None:
    first = create(store)
    before = contents(store)
    with pytest.raises(AppendConflictError, match="no such task") as caught:
        store.recorder.insert_events(events("a", 1), entry=row(birth="another"), expected=None)
    assert (caught.value.expected, caught.value.found, caught.value.task_id) == (None, first, "a")
    assert contents(store) == before


@pytest.mark.parametrize("expected", [("birth-of-a", 2), ("birth-of-a", 4), ("another", 3)])
def test_an_append_from_another_head_or_birth_is_a_conflict(store: Store, expected: tuple[str, int]) -> None:
    entry = row(head=3)
    store.recorder.insert_events(events("a", 1, 2, 3), entry=entry, expected=None)
    before = contents(store)
    head = expected[1] + 1
    with pytest.raises(AppendConflictError) as caught:
        store.recorder.insert_events(events("a", head), entry=row(head=head), expected=expected)
    assert (caught.value.expected, caught.value.found) == (expected, entry)
    assert contents(store) == before


def test_an_append_to_a_task_that_is_not_there_is_a_conflict_with_nothing(store: Store) -> None:
    with pytest.raises(AppendConflictError) as caught:
        store.recorder.insert_events(events("ghost", 2), entry=row("ghost", 2), expected=("b", 1))
    assert (caught.value.found, caught.value.task_id) == (None, "ghost")
    assert contents(store) == ([], {})


def test_a_key_that_is_taken_is_an_integrity_error_and_undoes_the_row(store: Store) -> None:
    entry = create(store)
    store.recorder.insert_events(events("a", 2), entry=entry._replace(head=2), expected=(entry.birth, 1))
    store.recorder.rebuild_index(lambda task_id, old: entry)  # the index now says 1, the log has 2
    before = contents(store)
    with pytest.raises(IntegrityError):
        store.recorder.insert_events(events("a", 2, 3), entry=entry._replace(head=3), expected=(entry.birth, 1))
    assert contents(store) == before


@pytest.mark.parametrize(
    ("appended", "entry"),
    [
        (events("a", 3), row(head=3)),
        (events("a", 2, 4), row(head=4)),
        (events("a", 2), row(head=3)),
        (events("b", 2), row(head=2)),
        ([], row(head=2)),
    ],
)
def test_an_append_that_would_leave_a_gap_is_refused(
    store: Store, appended: list[StoredEvent], entry: IndexRow
) -> None:
    create(store)
    before = contents(store)
    with pytest.raises(ValueError, match="task 'a'"):
        store.recorder.insert_events(appended, entry=entry, expected=(entry.birth, 1))
    assert contents(store) == before


@pytest.mark.parametrize("error", [ZeroDivisionError, SimulatedCrash("here"), KeyboardInterrupt])
def test_whatever_inside_raises_undoes_the_append(store: Store, error: type[BaseException] | BaseException) -> None:
    entry = create(store)
    before = contents(store)

    def inside() -> None:
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        store.recorder.insert_events(
            events("a", 2), entry=entry._replace(head=2, due=1.0), expected=(entry.birth, 1), inside=inside
        )
    assert contents(store) == before
    store.recorder.insert_events(events("a", 2), entry=entry._replace(head=2), expected=(entry.birth, 1))


def test_inside_is_not_called_for_a_conflict(store: Store) -> None:
    create(store)
    calls: list[int] = []
    with pytest.raises(AppendConflictError):
        store.recorder.insert_events(events("a", 1), entry=row(), expected=None, inside=lambda: calls.append(1))
    assert calls == []


def test_inside_is_called_once_and_sees_nothing_of_the_append(store: Store) -> None:
    seen: list[object] = []
    store.recorder.insert_events(
        events("a", 1), entry=row(), expected=None, inside=lambda: seen.append(store.recorder.select_entry("a"))
    )
    assert seen == [None]


def birth(task_id: str, **facts: object) -> Birth:
    return Birth(events(task_id, 1)[0], row(task_id, **facts))


def test_an_append_may_make_other_tasks_with_it(store: Store) -> None:
    entry = create(store)
    children = [birth("b", due=1.0), birth("c", hold="doubt")]
    store.recorder.insert_events(
        events("a", 2), entry=entry._replace(head=2), expected=(entry.birth, 1), births=children
    )
    assert store.recorder.select_events("a") == events("a", 1, 2)
    for child in children:
        assert store.recorder.select_events(child.entry.id) == [child.event]
        assert store.recorder.select_entry(child.entry.id) == child.entry
    due = store.recorder.select_ready(9.0, agents=["agent"], busy_owners=[], limit=9)
    assert due == [children[0].entry]
    more = row("b", 2)
    store.recorder.insert_events(events("b", 2), entry=more, expected=(more.birth, 1))


def test_a_task_may_be_made_with_others(store: Store) -> None:
    store.recorder.insert_events(events("a", 1), entry=row(), expected=None, births=[birth("b")])
    assert store.recorder.select_ids() == ["a", "b"]


@pytest.mark.parametrize("taken", ["b", "c"])
def test_a_birth_under_an_id_that_is_taken_is_a_conflict_that_names_it_and_leaves_nothing(
    store: Store, taken: str
) -> None:
    entry, other = create(store), create(store, taken, note="another's")
    before = contents(store)
    with pytest.raises(AppendConflictError) as caught:
        store.recorder.insert_events(
            events("a", 2), entry=entry._replace(head=2), expected=(entry.birth, 1), births=[birth("b"), birth("c")]
        )
    assert (caught.value.task_id, caught.value.expected, caught.value.found) == (taken, None, other)
    assert contents(store) == before


def test_a_conflict_of_the_parent_comes_before_one_of_its_child_and_makes_no_child(store: Store) -> None:
    entry = create(store)
    create(store, "c")
    before = contents(store)
    for births in ([birth("b")], [birth("c")]):
        with pytest.raises(AppendConflictError) as caught:
            store.recorder.insert_events(
                events("a", 3), entry=entry._replace(head=3), expected=(entry.birth, 2), births=births
            )
        assert (caught.value.task_id, caught.value.found) == ("a", entry)
    assert contents(store) == before


@pytest.mark.parametrize("twice", [["b", "b"], ["a"]])
def test_one_id_twice_in_one_append_is_refused(store: Store, twice: list[str]) -> None:
    entry = create(store)
    before = contents(store)
    births = [birth(one) for one in twice]
    with pytest.raises(ValueError, match=f"task '{twice[0]}' is in one append twice"):
        store.recorder.insert_events(
            events("a", 2), entry=entry._replace(head=2), expected=(entry.birth, 1), births=births
        )
    assert contents(store) == before


def test_a_birth_whose_log_is_there_without_its_row_is_an_integrity_error_and_leaves_nothing(store: Store) -> None:
    entry = create(store)
    create(store, "b")
    store.recorder.rebuild_index(lambda task_id, old: old if task_id == "a" else None)
    before = contents(store)
    with pytest.raises(IntegrityError):
        store.recorder.insert_events(
            events("a", 2), entry=entry._replace(head=2), expected=(entry.birth, 1), births=[birth("b")]
        )
    assert contents(store) == before


@pytest.mark.parametrize(
    "born",
    [
        Birth(events("b", 2)[0], row("b", 2)),
        Birth(events("b", 1)[0], row("b", 2)),
        Birth(events("b", 1)[0], row("c", 1)),
    ],
)
def test_a_birth_that_is_no_beginning_is_refused(store: Store, born: Birth) -> None:
    entry = create(store)
    before = contents(store)
    with pytest.raises(ValueError, match=r"task '[bc]'"):
        store.recorder.insert_events(
            events("a", 2), entry=entry._replace(head=2), expected=(entry.birth, 1), births=[born]
        )
    assert contents(store) == before


@pytest.mark.parametrize("error", [ZeroDivisionError, SimulatedCrash("here"), KeyboardInterrupt])
def test_whatever_inside_raises_undoes_births_as_well(store: Store, error: type[BaseException] | BaseException) -> None:
    entry = create(store)
    before = contents(store)

    def inside() -> None:
        raise error

    append = {"entry": entry._replace(head=2), "expected": (entry.birth, 1), "births": [birth("b")]}
    with pytest.raises(error if isinstance(error, type) else type(error)):
        store.recorder.insert_events(events("a", 2), inside=inside, **append)
    assert contents(store) == before
    seen: list[object] = []
    store.recorder.insert_events(events("a", 2), inside=lambda: seen.append(store.recorder.select_entry("b")), **append)
    assert seen == [None]
    assert store.recorder.select_ids() == ["a", "b"]


def test_threads_that_race_to_make_one_child_make_it_once_with_one_parents_event(store: Store) -> None:
    for name in "wxyz":
        create(store, name)
    wins: list[str] = []
    start = threading.Barrier(4)

    def race(name: str) -> None:
        entry = row(name, 2)
        start.wait(TIMEOUT)
        with suppress(AppendConflictError):
            store.recorder.insert_events(
                events(name, 2), entry=entry, expected=(entry.birth, 1), births=[birth("child", note=name)]
            )
            wins.append(name)

    threads = [threading.Thread(target=race, args=(name,)) for name in "wxyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    (winner,) = wins
    child = store.recorder.select_entry("child")
    assert child is not None
    assert child.note == winner
    assert [name for name in "wxyz" if len(store.recorder.select_events(name)) == 2] == [winner]


def test_the_index_row_alone_changes_by_the_same_compare_and_swap(store: Store) -> None:
    entry = create(store)
    held = entry._replace(hold="unreadable", note="version 1")
    store.recorder.update_index(held, expected=(entry.birth, 1))
    assert store.recorder.select_entry("a") == held
    with pytest.raises(AppendConflictError):
        store.recorder.update_index(entry, expected=(entry.birth, 2))
    with pytest.raises(AppendConflictError):
        store.recorder.update_index(row("ghost"), expected=("birth-of-ghost", 1))
    assert store.recorder.select_entries() == [held]
    assert store.recorder.select_events("a") == events("a", 1)


def test_rebuilding_the_index_asks_for_each_id_in_the_log_and_leaves_the_log(store: Store) -> None:
    a, b = create(store, "a"), create(store, "b")
    store.recorder.rebuild_index(lambda task_id, old: None if task_id == "a" else row("b", 5)._replace(note=old.note))
    assert store.recorder.select_entries() == [row("b", 5)]
    asked = []
    store.recorder.rebuild_index(lambda task_id, old: asked.append((task_id, old)) or {"a": a, "b": b}[task_id])
    assert asked == [("a", None), ("b", row("b", 5))]
    assert sorted(store.recorder.select_entries(), key=lambda entry: entry.id) == [a, b]
    assert store.recorder.select_ids() == ["a", "b"]


def test_a_rebuild_that_fails_leaves_the_index(store: Store) -> None:
    create(store, "a")
    before = contents(store)
    with pytest.raises(KeyError):
        store.recorder.rebuild_index(lambda task_id, old: {}[task_id])
    assert contents(store) == before


def test_events_are_selected_by_version(store: Store) -> None:
    entry = row(head=12)
    store.recorder.insert_events(events("a", *range(1, 13)), entry=entry, expected=None)

    def versions(**bounds: object) -> list[int]:
        return [event.originator_version for event in store.recorder.select_events("a", **bounds)]

    assert versions() == list(range(1, 13))
    assert versions(gt=3, lte=5) == [4, 5]
    assert versions(gt=9, desc=True) == [12, 11, 10]
    assert versions(desc=True, limit=2) == [12, 11]
    assert versions(limit=0) == []
    assert store.recorder.select_events("b") == []
    assert store.recorder.select_ids() == ["a"]  # asking makes nothing


def test_events_come_by_version_in_whatever_order_they_were_stored(store: Store) -> None:
    recorder, birth = store.recorder, row().birth
    recorder.insert_events([], entry=row(head=0), expected=None)
    recorder.update_index(row(head=1), expected=(birth, 0))  # an index that does not fit the log
    recorder.insert_events(events("a", 2), entry=row(head=2), expected=(birth, 1))
    recorder.update_index(row(head=0), expected=(birth, 2))
    recorder.insert_events(events("a", 1), entry=row(head=1), expected=(birth, 0))
    assert recorder.select_events("a") == events("a", 1, 2)
    assert recorder.select_events("a", limit=1, desc=True) == events("a", 2)


def test_entries_are_selected_newest_last(store: Store) -> None:
    a = create(store, "a", created=3.0, status="held", hold="doubt")
    b = create(store, "b", created=1.0, status="held", hold="strikes", agent="other")
    c = create(store, "c", created=2.0, status="queued")
    select = store.recorder.select_entries
    assert select() == [b, c, a]
    assert select(limit=2) == [c, a]
    assert select(limit=0) == []
    assert select(status={"held"}) == [b, a]
    assert select(status=["held", "queued"], limit=1) == [a]
    assert select(status=[]) == []
    assert select(agent="other") == [b]
    assert select(hold={"doubt", "spent"}) == [a]
    assert select(status={"held"}, agent="agent", hold={"strikes"}) == []
    assert store.recorder.select_entry("d") is None


@pytest.mark.parametrize("count", [0, 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 1])
def test_rows_are_selected_by_id_and_what_is_not_there_is_left_out(store: Store, count: int) -> None:
    made = {entry.id: entry for entry in (create(store, f"task-{number}") for number in range(count))}
    create(store, "another")
    assert store.recorder.select_rows([*made, "missing", "task-%"]) == made
    assert store.recorder.select_rows([]) == {}


def test_a_prefix_means_exactly_itself(store: Store) -> None:
    ids = [
        "a%",
        "a%b",
        "a_",
        "aXb",
        "A%",
        "a'\"",
        "é",
        "é1",
        "e\u0301",
        "\ud7ff",
        "\ue000",
        "\U0010ffff",
        "\U0010ffffz",
    ]
    for number, task_id in enumerate(ids):
        create(store, task_id, created=float(number))

    def begin_with(prefix: str) -> list[str]:
        return [entry.id for entry in store.recorder.select_entries(prefix=prefix)]

    assert begin_with("") == ids
    assert begin_with("a") == ["a%", "a%b", "a_", "aXb", "a'\""]
    assert begin_with("a%") == ["a%", "a%b"]
    assert begin_with("a_") == ["a_"]
    assert begin_with("a'") == ["a'\""]
    assert begin_with("a%b ") == begin_with("b") == begin_with("a\0") == []
    assert begin_with("é") == ["é", "é1"]
    assert begin_with("\ud7ff") == ["\ud7ff"]
    assert begin_with("\U0010ffff") == ["\U0010ffff", "\U0010ffffz"]
    assert begin_with("a\U0010ffff") == []
    assert begin_with("\udcff") == begin_with("a\ud800") == []
    assert [entry.id for entry in store.recorder.select_entries(prefix="a", agent="agent", limit=2)] == ["aXb", "a'\""]
    assert store.recorder.select_entries(prefix="a", status=["held"]) == []


def test_entries_may_be_only_those_updated_after_a_moment(store: Store) -> None:
    create(store, "old", updated=4.0, hold="differs")
    create(store, "open", updated=6.0)
    new = create(store, "new", updated=5.0, hold="differs")
    unknown = create(store, "unknown", updated=5.0, created=2.0, hold="unknown")
    select = store.recorder.select_entries
    assert select(hold=["differs", "unknown"], after=4.0) == [new, unknown]
    assert select(hold=["differs"], after=4.0) == [new]
    assert select(hold=["differs", "unknown"], after=4.0, limit=1) == [unknown]
    assert select(hold=["differs"], after=5.0) == []
    assert [entry.id for entry in select(after=4.0)] == ["new", "open", "unknown"]
    released = new._replace(head=2, updated=7.0, hold=None)
    store.recorder.insert_events(events("new", 2), entry=released, expected=(new.birth, 1))
    assert select(hold=["differs"], after=4.0) == []


def test_a_heartbeat_is_overwritten_by_the_next(store: Store) -> None:
    recorder = store.recorder
    assert recorder.select_heartbeat("a", "x", "1") is None
    for attempt, detail in [(1, "page 1"), (1, "page 2"), (2, ""), (2, "page 9")]:
        recorder.save_heartbeat("a", "x", "1", attempt, detail)
        assert recorder.select_heartbeat("a", "x", "1") == (attempt, detail)
    assert contents(store) == ([], {})


def test_the_late_heartbeat_of_a_body_that_was_given_up_changes_nothing(store: Store) -> None:
    store.recorder.save_heartbeat("a", "x", "1", 10, "the second body's")
    store.recorder.save_heartbeat("a", "x", "1", 9, "the first body's")
    assert store.recorder.select_heartbeat("a", "x", "1") == (10, "the second body's")


def test_a_heartbeat_of_another_birth_is_not_seen_and_is_replaced(store: Store) -> None:
    store.recorder.save_heartbeat("a", "x", "1", 3, "of the first life")
    assert store.recorder.select_heartbeat("a", "y", "1") is None
    store.recorder.save_heartbeat("a", "y", "1", 1, "of the second")
    assert store.recorder.select_heartbeat("a", "y", "1") == (1, "of the second")
    assert store.recorder.select_heartbeat("a", "x", "1") is None


def test_heartbeats_are_deleted_by_task_or_by_step(store: Store) -> None:
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


def test_threads_that_beat_at_once_leave_the_highest_attempt(store: Store) -> None:
    start = threading.Barrier(4)

    def beat(first: int) -> None:
        start.wait(TIMEOUT)
        for attempt in range(first, 41, 4):
            store.recorder.save_heartbeat("a", "x", "1", attempt, str(attempt))

    threads = [threading.Thread(target=beat, args=(first,)) for first in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert store.recorder.select_heartbeat("a", "x", "1") == (40, "40")


def test_a_beat_is_overwritten_by_the_next_whatever_it_counts_until_it_is_deleted(store: Store) -> None:
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


def said(path: str, value: str = "", *, attempt: int = 1, activation: int = 0, kind: str = EMIT) -> Emission:
    return Emission(path, attempt, activation, kind, "text", value, 5.0)


def emitted(store: Store, task_id: str = "a", **bounds: object) -> list[tuple[int, int, str]]:
    bounds = {"upto": 99, "limit": 99_999} | bounds
    rows = store.recorder.select_emissions(task_id, f"birth-of-{task_id}", **bounds)
    return [(row.base, row.number, row.value if row.kind == EMIT else f"reset {row.path}") for row in rows]


def grow(store: Store, entry: IndexRow, **facts: object) -> IndexRow:
    """Append one event to a task."""
    longer = entry._replace(head=entry.head + 1, **facts)
    store.recorder.insert_events(events(entry.id, longer.head), entry=longer, expected=(entry.birth, entry.head))
    return longer


def test_emissions_come_back_as_they_are_in_the_order_of_their_commits_and_of_events(store: Store) -> None:
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


def test_what_a_task_emits_that_is_not_there_or_has_another_birth_is_left_out(store: Store) -> None:
    entry = create(store)
    store.recorder.save_emissions("ghost", "birth-of-ghost", [said("1", "x")])
    store.recorder.save_emissions("a", "another", [said("1", "x")])
    assert emitted(store) == emitted(store, "ghost") == []
    assert store.recorder.select_emissions("a", "another", upto=9, limit=9) == []
    store.recorder.save_emissions("a", entry.birth, [])
    assert emitted(store) == []


def test_what_an_older_activation_emits_is_left_out(store: Store) -> None:
    entry = create(store, activation=2)
    rows = [said("1", "old", activation=1), said("1", "new", activation=2), said("1", activation=1, kind=RESET)]
    store.recorder.save_emissions("a", entry.birth, rows)
    assert emitted(store) == [(1, 1, "new")]


def test_a_reset_is_stored_only_where_there_is_something_to_reset(store: Store) -> None:
    recorder, birth = store.recorder, create(store).birth
    reset = said("1", kind=RESET)
    recorder.save_emissions("a", birth, [reset, said("2", "x"), reset])
    assert emitted(store) == [(1, 1, "x")]
    recorder.save_emissions("a", birth, [said("1", "y"), said("2", "z"), reset, reset, said("1", "w")])
    recorder.save_emissions("a", birth, [reset, reset])
    recorder.save_emissions("a", birth, [reset])
    assert emitted(store)[1:] == [(1, 2, "y"), (1, 3, "z"), (1, 4, "reset 1"), (1, 5, "w"), (1, 6, "reset 1")]


def test_only_the_newest_emissions_of_a_task_are_kept(store: Store) -> None:
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


def test_emissions_end_where_their_numbers_do(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stores.emissions, stores.memory):
        monkeypatch.setattr(module, "LAST_NUMBER", 2)
    entry = create(store)
    store.recorder.save_emissions("a", entry.birth, [said("1", text) for text in "xyz"])
    assert emitted(store) == [(1, 1, "x"), (1, 2, "y")]
    assert LAST_NUMBER == 2**24 - 1


def test_emissions_of_an_older_birth_go_with_the_first_of_the_next(store: Store) -> None:
    entry, recorder = create(store), store.recorder
    recorder.save_emissions("a", entry.birth, [said("1", "old"), said("1", "older")])
    recorder.rebuild_index(lambda task_id, old: old._replace(birth="next"))
    recorder.save_emissions("a", "next", [said("1", kind=RESET), said("1", "new")])
    assert emitted(store) == []
    (row,) = recorder.select_emissions("a", "next", upto=9, limit=9)
    assert (row.value, row.number) == ("new", 1)


def test_the_numbers_of_emissions_never_go_back_even_where_the_head_does(store: Store) -> None:
    entry, recorder = grow(store, create(store)), store.recorder
    recorder.save_emissions("a", entry.birth, [said("1", "x")])
    recorder.update_index(entry._replace(head=1), expected=(entry.birth, 2))  # a log that has lost its end
    for text in "yz":
        recorder.save_emissions("a", entry.birth, [said("1", text)])
    assert emitted(store) == [(2, 1, "x"), (2, 2, "y"), (2, 3, "z")]


def test_emissions_are_deleted_by_task(store: Store) -> None:
    for entry in (create(store, "a"), create(store, "b")):
        store.recorder.save_emissions(entry.id, entry.birth, [said("1", "x")])
    for name in ("a", "a", "nobody"):
        store.recorder.delete_emissions(name)
    assert (emitted(store), emitted(store, "b")) == ([], [(1, 1, "x")])
    store.recorder.save_emissions("a", "birth-of-a", [said("1", "again")])
    assert emitted(store) == [(1, 1, "again")]


def test_what_is_emitted_between_two_appends_stands_between_them_whatever_else_is_written(store: Store) -> None:
    entry, start = create(store), threading.Barrier(2)
    heads: list[tuple[int, int]] = []

    def append() -> None:
        row = entry
        start.wait(TIMEOUT)
        for _ in range(40):
            row = grow(store, row)

    appending = threading.Thread(target=append)
    appending.start()
    start.wait(TIMEOUT)
    for number in range(40):
        before = store.recorder.select_entry("a").head
        store.recorder.save_emissions("a", entry.birth, [said("1", str(number))])
        heads.append((before, store.recorder.select_entry("a").head))
    appending.join(TIMEOUT)
    rows = emitted(store)
    assert [row[1:] for row in rows] == [(number + 1, str(number)) for number in range(40)]
    assert all(before <= base <= after for (base, _, _), (before, after) in zip(rows, heads, strict=True))


def test_ready_is_what_is_due_known_and_not_of_a_busy_owner(store: Store) -> None:
    late = create(store, "a", due=3.0)
    early = create(store, "b", due=1.0, owner="dead")
    same = create(store, "c", due=1.0)
    create(store, "busy", due=1.0, owner="alive")
    create(store, "ended", owner="dead")
    create(store, "future", due=3.5)
    create(store, "unknown", due=1.0, agent="other")

    def ready(limit: int = 9, agents: tuple[str, ...] = ("agent", "third"), **after: Place) -> list[IndexRow]:
        return store.recorder.select_ready(3.0, agents=agents, busy_owners={"alive"}, limit=limit, **after)

    assert ready() == [early, same, late]
    assert ready(limit=1) == [early]
    assert ready(agents=()) == []
    assert [ready(after=after) for after in ((1.0, "b"), (1.0, "c"), (3.0, "a"))] == [[same, late], [late], []]
    everyone = store.recorder.select_ready(9.0, agents={"agent", "other"}, busy_owners=(), limit=99)
    assert [entry.id for entry in everyone] == ["b", "busy", "c", "unknown", "a", "future"]


def test_the_earliest_of_many_agents_are_ready_in_one_order(store: Store) -> None:
    rows = [create(store, f"t{n:02}", agent=f"agent-{n % 3}", due=float(n * 7 % 10)) for n in range(30)]
    rows.sort(key=place)

    def ready(limit: int, after: Place = START) -> list[IndexRow]:
        agents = [f"agent-{n}" for n in range(4)]
        return store.recorder.select_ready(9.0, agents=agents, busy_owners=(), after=after, limit=limit)

    for limit in (1, 2, 7, 30, 99):
        assert ready(limit) == rows[:limit]
        assert ready(limit, place(rows[9])) == rows[10 : 10 + limit]


def test_the_next_that_is_due_is_one_of_a_known_agent_that_is_not_due_yet(store: Store) -> None:
    create(store, "ended")
    for number, agent in enumerate(("agent", "other", "agent", "third"), start=1):
        create(store, agent=agent, task_id=f"t{number}", due=float(number))

    def next_due(after: float, *agents: str) -> float | None:
        return store.recorder.next_due(after, agents=agents)

    assert [next_due(after, "agent") for after in (0.0, 1.0, 2.5, 3.0)] == [1.0, 3.0, 3.0, None]
    assert [next_due(0.0), next_due(0.0, "unknown"), next_due(0.0, "third", "other", "unknown")] == [None, None, 2.0]


def test_what_is_held_comes_by_kind_in_the_order_of_its_last_change(store: Store) -> None:
    held = [
        create(store, name, hold="doubt", updated=updated) for name, updated in (("b", 1.0), ("c", 1.0), ("a", 2.0))
    ]
    other = create(store, "other", hold="differs")
    create(store, "free")
    assert store.recorder.select_held("doubt", limit=9) == held
    assert store.recorder.select_held("differs", limit=9) == [other]
    for number, entry in enumerate(held, start=1):
        after = entry.updated, entry.id
        assert store.recorder.select_held("doubt", after=after, limit=1) == held[number : number + 1]


def test_hostile_text_comes_back(store: Store) -> None:
    text = "'; DROP TABLE task_index; -- \x00 é\u202e 💻"
    entry = create(store, text, note=text, agent=text)
    assert store.recorder.select_entry(text) == entry
    assert store.recorder.select_rows([text]) == {text: entry}
    assert store.recorder.select_entries(agent=text) == [entry]
    assert store.recorder.select_entries(prefix=text) == store.recorder.select_entries(prefix=text[:-1]) == [entry]
    assert store.recorder.select_ids() == [text]
    store.recorder.save_emissions(text, entry.birth, [said(text, text)._replace(channel=text)])
    (found,) = store.recorder.select_emissions(text, entry.birth, upto=1, limit=1)
    assert (found.path, found.channel, found.value) == (text, text, text)
    store.recorder.save_heartbeat(text, text, text, 1, text)
    assert store.recorder.select_heartbeat(text, text, text) == (1, text)
    store.recorder.delete_heartbeats(text, text)
    assert store.recorder.select_heartbeat(text, text, text) is None


def test_threads_that_race_for_a_version_win_it_once_each(store: Store) -> None:
    create(store)
    wins: list[int] = []
    start = threading.Barrier(8)

    def race() -> None:
        start.wait(TIMEOUT)
        for head in range(2, 22):
            entry = row(head=head)
            try:
                store.recorder.insert_events(events("a", head), entry=entry, expected=(entry.birth, head - 1))
            except AppendConflictError:
                continue
            wins.append(head)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert sorted(wins) == list(range(2, 22))
    assert [event.originator_version for event in store.recorder.select_events("a")] == list(range(1, 22))


def test_nothing_tails_by_number(store: Store) -> None:
    for refused in (
        store.recorder.max_notification_id,
        store.recorder.subscribe,
        lambda: store.recorder.select_notifications(1, 10),
        store.aggregate_recorder,
        store.tracking_recorder,
        store.process_recorder,
    ):
        with pytest.raises(NotImplementedError, match="perdure's stores"):
            refused()
    assert store.application_recorder() is store.recorder


def test_after_close_everything_says_so(store: Store) -> None:
    entry = create(store)
    store.close()
    store.close()
    recorder = store.recorder
    for use in (
        lambda: recorder.select_events("a"),
        lambda: recorder.select_entry("a"),
        recorder.select_entries,
        recorder.select_ids,
        lambda: recorder.select_held("doubt", limit=1),
        lambda: recorder.next_due(1.0, agents=["x"]),
        lambda: recorder.select_ready(1.0, agents=["x"], busy_owners=[], limit=1),
        lambda: recorder.insert_events(events("a", 2), entry=row(head=2), expected=(entry.birth, 1)),
        lambda: recorder.update_index(entry, expected=(entry.birth, 1)),
        lambda: recorder.rebuild_index(lambda task_id, old: old),
        lambda: recorder.save_heartbeat("a", "x", "1", 1, ""),
        lambda: recorder.select_heartbeat("a", "x", "1"),
        lambda: recorder.delete_heartbeats("a"),
        lambda: recorder.save_emissions("a", "x", []),
        lambda: recorder.select_emissions("a", "x", upto=1, limit=1),
        lambda: recorder.delete_emissions("a"),
        lambda: recorder.save_beat("w", 1, 1.0),
        recorder.select_beats,
        lambda: recorder.delete_beat("w"),
    ):
        with pytest.raises(StoreClosedError, match="closed"):
            use()


def test_every_memory_store_is_its_own() -> None:
    with open_store("memory:") as one, open_store("memory:") as other:
        create(one)
        assert contents(other) == ([], {})


def test_a_url_is_made_absolute_and_opens_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///tasks #1%20.db?timeout=0.5") as store:
        assert store.url == f"sqlite:///{tmp_path}/tasks #1%20.db?timeout=0.5"
        create(store)
        monkeypatch.chdir("/")
        with open_store(store.url) as same:
            assert same.recorder.select_ids() == ["a"]
            assert same.url == store.url
    assert {path.name for path in tmp_path.iterdir()} == {"tasks #1%20.db", "tasks #1%20.db.locks"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "tasks.db",
        "sqlite:tasks.db",
        "sqlite://tasks.db",
        "sqlite:///",
        "sqlite:///?timeout=1",
        "sqlite:///:memory:",
        "sqlite:///a\0b",
        "memory:x",
        "memory:?timeout=1",
        "mysql://host/db",
        "sqlite:///a.db?timeout=soon",
        "sqlite:///a.db?timeout=-1",
        "sqlite:///a.db?timeout=inf",
        "sqlite:///a.db?mode=ro",
        "sqlite:///a.db?timeout",
    ],
)
def test_a_bad_url_is_named_with_what_is_expected(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidStoreURLError, match="expected 'memory:'") as caught:
        open_store(url)
    assert caught.value.url == url
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        AppendConflictError(("b", 1), row()),
        AppendConflictError(None, None, "ghost", "memory:"),
        StoreUnavailableError("locked", url="u", reason="r", unknown_fate=True),
        NewerStoreError("newer", url="u", found=2, known=1),
        InvalidStoreURLError("bad", url="u"),
        StoreCorruptError("bad", url="u"),
        StoreClosedError("closed", url="u"),
        StoreForkedError("forked", url="u"),
        SimulatedCrash("append.after"),
    ],
)
def test_errors_pickle_with_their_facts(error: BaseException) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_what_is_exported_is_what_is_named() -> None:
    assert sorted(stores.__all__) == stores.__all__
    exported = {name for name, value in vars(stores).items() if getattr(value, "__module__", "").startswith("stores")}
    assert {name for name in exported if not name.startswith("_")} == set(stores.__all__)
    assert {MemoryStore, SQLiteStore} < set(Store.__subclasses__())


names = st.sampled_from(["a", "b", "c"])
heads = st.integers(1, 4)
moments = st.none() | st.sampled_from([0.0, 1.0, 2.0])
owners = st.none() | st.sampled_from(["v", "w"])
entries = st.builds(
    IndexRow,
    id=names,
    birth=st.sampled_from(["x", "y"]),
    head=heads,
    activation=heads,
    status=st.sampled_from(["queued", "held"]),
    agent=st.sampled_from(["f", "g"]),
    created=st.sampled_from([1.0, 2.0]),
    updated=st.sampled_from([1.0, 2.0]),
    due=moments,
    owner=owners,
    strikes=st.integers(0, 3),
    hold=st.none() | st.sampled_from(["doubt", "differs"]),
    note=st.just(""),
)
births = st.sampled_from(["x", "y"])
paths = st.sampled_from(["1", "2"])
marks = st.none() | st.tuples(births, heads)
sayings = st.builds(said, paths, activation=heads, kind=st.sampled_from([EMIT, RESET]))
born = st.lists(entries.map(lambda entry: entry._replace(head=1)), max_size=2)
acts = st.one_of(
    st.tuples(st.just("insert"), entries, marks, st.integers(0, 3), born),
    st.tuples(st.just("update"), entries, st.tuples(births, heads)),
    st.tuples(st.just("replace"), st.lists(entries, max_size=3, unique_by=lambda entry: entry.id)),
    st.tuples(st.just("beat"), names, births, paths, st.integers(1, 3), st.sampled_from(["", "half"])),
    st.tuples(st.just("forget"), names, st.none() | paths),
    st.tuples(st.just("say"), names, births, st.lists(sayings, max_size=4)),
    st.tuples(st.just("unsay"), names),
)


def perform(store: Store, act: tuple) -> str:
    """Do one thing and say how it ended."""
    recorder = store.recorder
    try:
        match act:
            case ("insert", entry, expected, count, children):
                head = expected[1] if expected else 0
                appended = events(entry.id, *range(head + 1, head + 1 + count))
                births = [Birth(events(child.id, 1)[0], child) for child in children]
                after = entry._replace(head=head + count)
                recorder.insert_events(appended, entry=after, expected=expected, births=births)
            case ("update", entry, expected):
                recorder.update_index(entry, expected=expected)
            case ("replace", rows):
                by_id = {entry.id: entry for entry in rows}
                recorder.rebuild_index(lambda task_id, old: by_id.get(task_id))
            case ("beat", *heartbeat):
                recorder.save_heartbeat(*heartbeat)
            case ("forget", task_id, path):
                recorder.delete_heartbeats(task_id, path)
            case ("say", *emissions):
                recorder.save_emissions(*emissions)
            case ("unsay", task_id):
                recorder.delete_emissions(task_id)
    except (AppendConflictError, IntegrityError) as error:
        return f"{type(error).__name__} {getattr(error, 'found', None)}"
    except ValueError as error:
        return str(error)
    return "done"


def heartbeats(store: Store) -> list[tuple[int, str] | None]:
    keys = itertools.product(["a", "b", "c"], ["x", "y"], ["1", "2"])
    return [store.recorder.select_heartbeat(*key) for key in keys]


def sayings_of(store: Store) -> list[list[Emission]]:
    bounds = itertools.product(["a", "b", "c"], ["x", "y"], [(0, 0), (2, 1)], [1, 9])
    return [store.recorder.select_emissions(*who, after=after, upto=upto, limit=9) for *who, after, upto in bounds]


awkward = st.text(st.sampled_from("aAbé%_*'\0\ud7ff\ue000\U0010fffe\U0010ffff"), max_size=3)


@settings(deadline=None, max_examples=50)
@given(st.sets(awkward, max_size=12), st.lists(awkward | st.text(max_size=1) | st.just("a\udcff"), max_size=12))
def test_all_stores_agree_with_python_on_what_begins_with_a_text(
    tmp_path_factory: pytest.TempPathFactory, ids: set[str], prefixes: list[str]
) -> None:
    path = tmp_path_factory.mktemp("begin") / "tasks.db"
    with open_store("memory:") as memory, open_store(f"sqlite:///{path}") as sqlite:
        for store in (memory, sqlite):
            for task_id in ids:
                store.recorder.insert_events([], entry=row(task_id, 0), expected=None)
            for prefix in prefixes:
                found = [entry.id for entry in store.recorder.select_entries(prefix=prefix)]
                assert found == sorted(task_id for task_id in ids if task_id.startswith(prefix))


@settings(deadline=None)
@given(st.lists(acts, max_size=12), st.sets(st.sampled_from(["f", "g", "h"])), st.sets(owners.filter(bool)))
def test_all_stores_agree_on_any_history(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple], agents: set[str], busy: set[str]
) -> None:
    path = tmp_path_factory.mktemp("agree") / "tasks.db"
    with open_store("memory:") as memory, open_store(f"sqlite:///{path}") as sqlite:
        for act in history:
            assert perform(memory, act) == perform(sqlite, act)
            assert contents(memory) == contents(sqlite)
            assert heartbeats(memory) == heartbeats(sqlite)
            assert sayings_of(memory) == sayings_of(sqlite)
        recorders = (memory.recorder, sqlite.recorder)
        for after, limit in itertools.product([START, (0.0, "b"), (1.0, "")], [1, 9]):
            due = [
                one.select_ready(1.0, agents=agents, busy_owners=busy, after=after, limit=limit) for one in recorders
            ]
            assert due[0] == due[1]
            held = [one.select_held("doubt", after=after, limit=limit) for one in recorders]
            assert held[0] == held[1]
        for after in (-1.0, 0.0, 1.0):
            assert len({one.next_due(after, agents=agents) for one in recorders}) == 1
        for limit in (1, 9):
            held = [store.recorder.select_entries(hold={"doubt"}, agent="f", limit=limit) for store in (memory, sqlite)]
            assert held[0] == held[1]
            for facts in ({"hold": ["doubt", "differs"], "after": 1.0}, {"after": 1.0, "prefix": "a"}, {"prefix": "b"}):
                some = [store.recorder.select_entries(limit=limit, **facts) for store in (memory, sqlite)]
                assert some[0] == some[1]
        rows = [store.recorder.select_rows(["a", "c", *agents]) for store in (memory, sqlite)]
        assert rows[0] == rows[1]
