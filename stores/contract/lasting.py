"""The contract of a store that outlives its process, or that several processes open at once."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stores.contract.kit import (
    Suite,
    at_once,
    birth,
    contents,
    create,
    emitted,
    events,
    grow,
    raising,
    row,
    said,
    versions,
)
from stores.errors import AppendConflictError
from stores.store import Store


class Lasting(Suite):
    """What a second opening of the same store sees, beside the first or after it."""

    @abstractmethod
    def again(self, store: Store) -> Store:
        """Open the same store once more, as another process would: `store` may be open still, or closed."""

    @pytest.fixture
    def other(self, store: Store) -> Iterator[Store]:
        """Give the store as another process would have it open."""
        with self.again(store) as other:
            yield other

    def test_a_store_that_is_opened_again_has_everything(self, tmp_path: Path) -> None:
        store = self.fresh(tmp_path)
        for head in range(3):
            entry = grow(store, row(head=head)) if head else create(store, due=1.5, hold="doubt", note="é\0")
            store.recorder.save_emissions("a", entry.birth, [said("1", str(head))])
            store.recorder.save_heartbeat("a", entry.birth, "1", 1, f"page {head}")
            store.recorder.save_beat("w", head, 2.5)
            before = everything(store)
            store.close()
            store = self.again(store)
            assert everything(store) == before
        assert versions(store, "a") == [1, 2, 3]
        store.close()

    def test_what_has_returned_is_seen_by_another_at_once_and_what_was_undone_never(
        self, store: Store, other: Store
    ) -> None:
        entry = create(store)
        for _ in range(5):
            assert contents(other) == contents(store)
            with pytest.raises(ZeroDivisionError):
                grow(store, entry, inside=raising(ZeroDivisionError), births=[birth("b")])
            assert other.recorder.select_entries() == [entry]
            entry = grow(other, entry)
            store, other = other, store
        assert versions(store, "a") == versions(other, "a") == list(range(1, 7))

    def test_what_is_not_committed_is_seen_by_nobody(self, store: Store, other: Store) -> None:
        seen: list[object] = []
        entry = create(store)
        grow(store, entry, inside=lambda: seen.append(contents(other)), births=[birth("b")])
        assert seen == [([entry], {"a": events("a", 1)})]

    def test_the_compare_and_swap_holds_between_two(self, store: Store, other: Store) -> None:
        entry = create(store)
        longer = grow(other, entry)
        with pytest.raises(AppendConflictError) as caught:
            grow(store, entry)
        assert caught.value.found == longer
        wins: list[int] = []

        def race(one: Store) -> None:
            for head in range(2, 22):
                with suppress(AppendConflictError):
                    wins.append(grow(one, row(head=head)).head)

        at_once(*[lambda: race(store), lambda: race(other)] * 2)
        assert sorted(wins) == list(range(3, 23))
        assert versions(store, "a") == list(range(1, 23))

    def test_a_task_whose_row_was_taken_away_elsewhere_is_written_to_no_more(self, store: Store, other: Store) -> None:
        entry = create(store)
        other.recorder.rebuild_index(lambda task_id, old: entry._replace(birth="of the next life"))
        with pytest.raises(AppendConflictError):
            grow(store, entry)
        with pytest.raises(AppendConflictError):
            store.recorder.update_index(entry, expected=(entry.birth, 1))
        store.recorder.save_emissions("a", entry.birth, [said("1", "of a ghost")])
        assert emitted(other) == []
        assert versions(other, "a") == [1]

    def test_a_worker_is_alive_for_others_until_it_lets_go_however_it_does(self, store: Store, other: Store) -> None:
        for let_go in ("release", "abandon"):
            lock = store.workers.hold("w", {"pid": 1})
            assert other.workers.is_alive("w")
            assert other.workers.live() == {"w": {"pid": 1}}
            with pytest.raises(ValueError, match="in use"):
                other.workers.hold("w", {})
            lock.update({"pid": 2})
            assert other.workers.live() == {"w": {"pid": 2}}
            getattr(lock, let_go)()
            assert not other.workers.is_alive("w")
            assert other.workers.live() == {}

    def test_closing_one_lets_go_of_its_workers_and_of_nothing_else(self, store: Store, other: Store) -> None:
        entry = create(store)
        store.workers.hold("w", {})
        kept = other.workers.hold("v", {})
        store.close()
        assert other.workers.live() == {"v": {}}
        grow(other, entry)
        kept.release()


def everything(store: Store) -> object:
    """Give all that a test of this file has written."""
    recorder: Any = store.recorder
    beside = recorder.select_heartbeat("a", "birth-of-a", "1"), recorder.select_beats(), emitted(store)
    return contents(store), beside
