"""The contract of threads that use one store at once, and of its close."""

from contextlib import suppress
from functools import partial
from threading import Barrier, Thread

import pytest

from stores.contract.kit import (
    TIMEOUT,
    Suite,
    at_once,
    birth,
    create,
    emitted,
    events,
    grow,
    raising,
    refused,
    row,
    said,
    versions,
)
from stores.errors import AppendConflictError, StoreClosedError
from stores.store import Store


class Threads(Suite):
    """Any thread may call."""

    def test_threads_that_race_for_a_version_win_it_once_each(self, store: Store) -> None:
        create(store)
        wins: list[int] = []

        def race() -> None:
            for head in range(1, 21):
                with suppress(AppendConflictError):
                    wins.append(grow(store, row(head=head)).head)

        at_once(*[race] * 8)
        assert sorted(wins) == list(range(2, 22))
        assert versions(store, "a") == list(range(1, 22))

    def test_threads_that_race_to_make_one_child_make_it_once_with_one_parents_event(self, store: Store) -> None:
        for name in "wxyz":
            create(store, name)
        wins: list[str] = []

        def race(name: str) -> None:
            with suppress(AppendConflictError):
                grow(store, row(name), births=[birth("child", note=name)])
                wins.append(name)

        at_once(*(partial(race, name) for name in "wxyz"))
        (winner,) = wins
        child = store.recorder.select_entry("child")
        assert child is not None
        assert child.note == winner
        assert [name for name in "wxyz" if versions(store, name) == [1, 2]] == [winner]

    def test_a_conflict_or_an_error_reaches_its_own_caller_alone(self, store: Store) -> None:
        """Whatever is written in one transaction with it: half of the threads fail at each turn, half go on."""
        for name in "abcdefgh":
            create(store, name)

        def go_on(name: str) -> None:
            entry = row(name)
            for _ in range(20):
                entry = grow(store, entry)

        def fail(name: str) -> None:
            for number in range(20):
                with pytest.raises(AppendConflictError) as caught:
                    grow(store, row(name, head=5))
                assert caught.value.task_id == name
                with pytest.raises(ZeroDivisionError):
                    grow(store, row(name), inside=raising(ZeroDivisionError), births=[birth(f"{name}{number}")])

        at_once(*(partial(go_on, name) for name in "abcd"), *(partial(fail, name) for name in "efgh"))
        assert store.recorder.select_ids() == list("abcdefgh")
        assert [versions(store, name) for name in "abcdefgh"] == [list(range(1, 22))] * 4 + [[1]] * 4
        heads = {entry.id: entry.head for entry in store.recorder.select_entries()}
        assert heads == dict.fromkeys("abcd", 21) | dict.fromkeys("efgh", 1)

    def test_what_is_emitted_between_two_appends_stands_between_them_whatever_else_is_written(
        self, store: Store
    ) -> None:
        entry, start = create(store), Barrier(2)
        heads: list[tuple[int, int]] = []

        def append() -> None:
            row = entry
            start.wait(TIMEOUT)
            for _ in range(40):
                row = grow(store, row)

        appending = Thread(target=append)
        appending.start()
        start.wait(TIMEOUT)
        for number in range(40):
            before = _head(store)
            store.recorder.save_emissions("a", entry.birth, [said("1", str(number))])
            heads.append((before, _head(store)))
        appending.join(TIMEOUT)
        rows = emitted(store)
        assert [row[1:] for row in rows] == [(number + 1, str(number)) for number in range(40)]
        assert all(before <= base <= after for (base, _, _), (before, after) in zip(rows, heads, strict=True))


def _head(store: Store) -> int:
    entry = store.recorder.select_entry("a")
    assert entry is not None
    return entry.head


class Closing(Suite):
    """The end of a store, and what it refuses all along."""

    def test_after_close_everything_says_so(self, store: Store) -> None:
        entry = create(store)
        store.close()
        store.close()
        recorder = store.recorder
        refused(
            StoreClosedError,
            "closed",
            lambda: recorder.select_events("a"),
            lambda: recorder.select_entry("a"),
            recorder.select_entries,
            recorder.select_ids,
            lambda: recorder.select_rows(["a"]),
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
        )

    def test_nothing_tails_by_number(self, store: Store) -> None:
        refused(
            NotImplementedError,
            "perdure's stores",
            store.recorder.max_notification_id,
            store.recorder.subscribe,
            lambda: store.recorder.select_notifications(1, 10),
            store.aggregate_recorder,
            store.tracking_recorder,
            store.process_recorder,
        )
        assert store.application_recorder() is store.recorder
