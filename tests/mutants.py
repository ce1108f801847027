"""Stores that break the contract, each in one way, and the test of the contract that has to see it.

`tests/test_contract.py` runs this file; pytest does not by itself. Each is a store in memory that can be opened again,
`Sound` but for what its class says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from eventsourcing.persistence import StoredEvent

from stores import AppendConflictError, MemoryStore, Store, WorkerLock
from stores.contract import LastingStoreContract
from stores.memory import MemoryRecorder
from stores.task_index import IndexRow
from stores.workers import MemoryWorkers

PAUSE = threading.Event()


class SoundRecorder(MemoryRecorder):
    """What two openings of one store share is all but whether they are closed."""

    def rebuild_index(self, row_of: Callable[[str, Any], Any]) -> list[IndexRow]:
        shared = self._index
        try:
            return super().rebuild_index(row_of)
        finally:
            new = dict(self._index)
            shared.clear()
            shared.update(new)
            self._index = shared


class SoundWorkers(MemoryWorkers):
    """The workers of all openings; those of one end with it."""

    def __init__(self, store: MemoryStore, shared: dict[str, Any]) -> None:
        super().__init__(store.url)
        self._abouts = shared
        self._mine: set[str] = set()

    def hold(self, worker_id: str, about: Any) -> WorkerLock:
        lock = super().hold(worker_id, about)
        self._mine.add(worker_id)
        return lock

    def close(self) -> None:
        for worker_id in self._mine:
            self.discard(worker_id)


def opened(recorder: type[MemoryRecorder], workers: type[SoundWorkers], first: Store | None = None) -> Store:
    """Open a new store, or the first one again."""
    store = MemoryStore()
    store.recorder.__class__ = recorder
    if first is not None:
        own = {"closed": False, "url": store.url}
        vars(store.recorder).update(vars(first.recorder) | own)
    store.workers = workers(store, {} if first is None else first.workers._abouts)
    return store


class Base(LastingStoreContract):
    recorder: ClassVar[type[MemoryRecorder]] = SoundRecorder
    workers: ClassVar[type[SoundWorkers]] = SoundWorkers
    seen_by: ClassVar[str] = ""
    seen_by_the_machine: ClassVar[bool] = True

    def fresh(self, folder: Path) -> Store:
        return opened(self.recorder, self.workers)

    def again(self, store: Store) -> Store:
        return opened(self.recorder, self.workers, store)


class TestSound(Base):
    has_commits = False


# ---------------------------------------------------------------------- appends


class TestLosesTheRowOnAConflict(Base):
    seen_by = "test_a_second_creation_is_a_conflict_that_shows_the_first"

    class recorder(SoundRecorder):  # noqa: N801  it stands for the attribute
        def insert_events(self, stored_events: Any, *, entry: IndexRow, **options: Any) -> None:
            try:
                super().insert_events(stored_events, entry=entry, **options)
            except AppendConflictError:
                self._index.pop(entry.id, None)
                raise


class TestForgetsInside(Base):
    seen_by = "test_whatever_inside_raises_undoes_the_append"

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, inside: Any = None, **options: Any) -> None:
            super().insert_events(stored_events, **options)


class TestCallsInsideWhenAllIsCommitted(Base):
    seen_by = "test_inside_is_called_once_and_sees_nothing_of_the_append"

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, inside: Any = None, **options: Any) -> None:
            super().insert_events(stored_events, **options)
            if inside is not None:
                inside()


class TestCallsInsideBeforeItLooks(Base):
    seen_by = "test_inside_is_not_called_for_a_conflict"

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, inside: Any = None, **options: Any) -> None:
            if inside is not None:
                inside()
            super().insert_events(stored_events, **options)


class TestUndoesOnlyForAnException(Base):
    seen_by = "test_whatever_inside_raises_undoes_births_as_well"
    seen_by_the_machine = False

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, inside: Any = None, **options: Any) -> None:
            torn: list[BaseException] = []

            def inside_and_on() -> None:
                try:
                    inside()
                except Exception:
                    raise
                except BaseException as error:
                    torn.append(error)

            super().insert_events(stored_events, inside=inside_and_on if inside else None, **options)
            for error in torn:
                raise error


class TestLetsAGhostWrite(Base):
    seen_by = "test_an_append_from_another_head_or_birth_is_a_conflict"

    class recorder(SoundRecorder):  # noqa: N801
        def _compare(self, task_id: str, expected: Any) -> None:
            found = self._index.get(task_id)
            if expected is not None and found is not None and found.head == expected[1]:
                return
            super()._compare(task_id, expected)


class TestMakesATaskOverAnother(Base):
    seen_by = "test_a_birth_whose_log_is_there_without_its_row_is_an_integrity_error_and_leaves_nothing"

    class recorder(SoundRecorder):  # noqa: N801
        def _assert_uniqueness(self, rows: list[StoredEvent]) -> None:
            return


class TestTakesWhatIsThereForAChild(Base):
    seen_by = "test_a_birth_under_an_id_that_is_taken_is_a_conflict_that_names_it_and_leaves_nothing"

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, births: Any = (), **options: Any) -> None:
            births = [birth for birth in births if birth.entry.id not in self._index]
            super().insert_events(stored_events, births=births, **options)


class TestNamesTheParentForItsChild(Base):
    seen_by = "test_a_birth_under_an_id_that_is_taken_is_a_conflict_that_names_it_and_leaves_nothing"

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, entry: IndexRow, **options: Any) -> None:
            try:
                super().insert_events(stored_events, entry=entry, **options)
            except AppendConflictError as error:
                raise AppendConflictError(error.expected, error.found, entry.id) from None


class TestMakesChildrenBeforeItLooks(Base):
    seen_by = "test_a_conflict_of_the_parent_comes_before_one_of_its_child_and_makes_no_child"

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, births: Any = (), **options: Any) -> None:
            for birth in births:
                super().insert_events([birth.event], entry=birth.entry, expected=None)
            super().insert_events(stored_events, **options)


class TestLeavesGaps(Base):
    seen_by = "test_an_append_that_would_leave_a_gap_is_refused"

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, entry: IndexRow, expected: Any, **options: Any) -> None:
            self._compare(entry.id, expected)
            self._update_table(stored_events)
            self._index[entry.id] = entry


class TestLeavesTheTimeThatWasDue(Base):
    seen_by = "test_an_append_may_change_when_a_task_is_due"

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, entry: IndexRow, **options: Any) -> None:
            old = self._index.get(entry.id)
            entry = entry if old is None else entry._replace(due=old.due)
            super().insert_events(stored_events, entry=entry, **options)


class TestLooksBeforeItHasTheTurn(Base):
    seen_by = "test_threads_that_race_for_a_version_win_it_once_each"
    seen_by_the_machine = False

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, entry: IndexRow, expected: Any, **options: Any) -> None:
            self._compare(entry.id, expected)
            PAUSE.wait(0.001)
            self._update_table(stored_events)
            self._index[entry.id] = entry


class TestTellsAnotherOfAConflict(Base):
    seen_by = "test_a_conflict_or_an_error_reaches_its_own_caller_alone"
    seen_by_the_machine = False

    class recorder(SoundRecorder):  # noqa: N801
        met: ClassVar[list[tuple[threading.Thread, BaseException]]] = []

        def insert_events(self, *args: Any, **options: Any) -> None:
            if self.met and self.met[0][0] is not threading.current_thread():
                raise self.met.pop(0)[1]
            try:
                super().insert_events(*args, **options)
            except AppendConflictError as error:
                self.met.append((threading.current_thread(), error))
                raise


# ---------------------------------------------------------------------- the index and reads


class TestChangesARowWhateverItsHead(Base):
    seen_by = "test_the_index_row_alone_changes_by_the_same_compare_and_swap"

    class recorder(SoundRecorder):  # noqa: N801
        def update_index(self, entry: IndexRow, *, expected: Any) -> None:
            if entry.id in self._index:
                self._index[entry.id] = entry
            else:
                super().update_index(entry, expected=expected)


class TestEmptiesTheIndexBeforeARebuild(Base):
    seen_by = "test_a_rebuild_that_fails_leaves_the_index"
    seen_by_the_machine = False

    class recorder(SoundRecorder):  # noqa: N801
        def rebuild_index(self, row_of: Callable[[str, Any], Any]) -> list[IndexRow]:
            old = dict(self._index)
            self._index.clear()
            return super().rebuild_index(lambda task_id, _: row_of(task_id, old.get(task_id)))


class TestGivesEventsAsTheyCameIn(Base):
    seen_by = "test_events_come_by_version_in_whatever_order_they_were_stored"
    seen_by_the_machine = False

    class recorder(SoundRecorder):  # noqa: N801
        def select_events(self, originator_id: Any, **bounds: Any) -> list[StoredEvent]:
            places = self._stored_events_index.get(str(originator_id), {})
            events = super().select_events(originator_id, **bounds)
            return sorted(events, key=lambda event: places[event.originator_version], reverse=bounds.get("desc", False))


class TestKnowsOnlyWhatIsInTheIndex(Base):
    seen_by = "test_rebuilding_the_index_asks_for_each_id_in_the_log_and_leaves_the_log"

    class recorder(SoundRecorder):  # noqa: N801
        def select_ids(self, *, after: str = "", limit: int | None = None) -> list[str]:
            return sorted(name for name in self._index if name > after)[:limit]


class TestTakesAPrefixForAPattern(Base):
    seen_by = "test_a_prefix_means_exactly_itself"
    seen_by_the_machine = False

    class recorder(SoundRecorder):  # noqa: N801
        def select_entries(self, *, prefix: str | None = None, **facts: Any) -> list[IndexRow]:
            rows = super().select_entries(**facts)
            return [row for row in rows if prefix is None or row.id.lower().startswith(prefix.lower())]


class TestGivesTheOldestOfMany(Base):
    seen_by = "test_entries_are_selected_newest_last"

    class recorder(SoundRecorder):  # noqa: N801
        def select_entries(self, *, limit: int | None = None, **facts: Any) -> list[IndexRow]:
            return super().select_entries(**facts)[:limit]


class TestGivesWhatABusyOwnerHas(Base):
    seen_by = "test_ready_is_what_is_due_known_and_not_of_a_busy_owner"

    class recorder(SoundRecorder):  # noqa: N801
        def select_ready(self, now: float, *, busy_owners: Any, **bounds: Any) -> list[IndexRow]:
            return super().select_ready(now, busy_owners=(), **bounds)


class TestGivesWhatIsDueAlready(Base):
    seen_by = "test_the_next_that_is_due_is_one_of_a_known_agent_that_is_not_due_yet"

    class recorder(SoundRecorder):  # noqa: N801
        def next_due(self, after: float, *, agents: Any) -> float | None:
            return super().next_due(after - 0.001, agents=agents)


# ---------------------------------------------------------------------- beside the log


class TestTakesALateHeartbeat(Base):
    seen_by = "test_the_late_heartbeat_of_a_body_that_was_given_up_changes_nothing"

    class recorder(SoundRecorder):  # noqa: N801
        def save_heartbeat(self, task_id: str, birth: str, path: str, attempt: int, detail: str) -> None:
            self.delete_heartbeats(task_id, path)
            super().save_heartbeat(task_id, birth, path, attempt, detail)


class TestNumbersEmissionsAnewForEachEvent(Base):
    seen_by = "test_emissions_come_back_as_they_are_in_the_order_of_their_commits_and_of_events"

    class recorder(SoundRecorder):  # noqa: N801
        def select_emissions(self, *args: Any, **bounds: Any) -> Any:
            rows = super().select_emissions(*args, **bounds)
            return [row._replace(number=row.number - sum(one.base < row.base for one in rows)) for row in rows]


class TestStoresWhatAnOlderActivationSays(Base):
    seen_by = "test_what_an_older_activation_emits_is_left_out"

    class recorder(SoundRecorder):  # noqa: N801
        def save_emissions(self, task_id: str, birth: str, rows: Any) -> None:
            super().save_emissions(task_id, birth, [row._replace(activation=9) for row in rows])


class TestForgetsWhatWasSaidWhenTheRowChanges(Base):
    seen_by = "test_emissions_come_back_as_they_are_in_the_order_of_their_commits_and_of_events"

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, entry: IndexRow, **options: Any) -> None:
            super().insert_events(stored_events, entry=entry, **options)
            self._emissions.pop(entry.id, None)


class TestTakesALowerBeatForALateOne(Base):
    seen_by = "test_a_beat_is_overwritten_by_the_next_whatever_it_counts_until_it_is_deleted"

    class recorder(SoundRecorder):  # noqa: N801
        def save_beat(self, worker: str, count: int, lease: float) -> None:
            if count >= self._beats.get(worker, (0, 0.0))[0]:
                super().save_beat(worker, count, lease)


class TestGivesOneIdToTwoWorkers(Base):
    seen_by = "test_two_workers_cannot_have_one_id"
    seen_by_the_machine = False

    class workers(SoundWorkers):  # noqa: N801
        def hold(self, worker_id: str, about: Any) -> WorkerLock:
            self._abouts.pop(worker_id, None)
            return super().hold(worker_id, about)


# ---------------------------------------------------------------------- deletions


class TestDeletesWhateverIsThere(Base):
    seen_by = "test_a_task_that_is_not_as_expected_is_not_deleted"

    class recorder(SoundRecorder):  # noqa: N801
        def delete_task(self, task_id: str, *, expected: Any) -> None:
            row = self._index.get(task_id)
            super().delete_task(task_id, expected=expected if row is None else (row.birth, row.head))


class TestLeavesTheLogOfADeletedTask(Base):
    seen_by = "test_a_new_task_under_a_deleted_id_is_another_and_takes_nothing_of_the_old_one"

    class recorder(SoundRecorder):  # noqa: N801
        def _delete_events(self, task_id: str) -> None:
            return


class TestLetsTheGhostOfADeletedTaskWrite(Base):
    seen_by = "test_a_new_task_under_a_deleted_id_is_another_and_takes_nothing_of_the_old_one"

    class recorder(SoundRecorder):  # noqa: N801
        def insert_events(self, stored_events: Any, *, entry: IndexRow, expected: Any, **options: Any) -> None:
            row = self._index.get(entry.id)
            if expected is not None and row is not None and row.birth != expected[0]:
                self._index[entry.id] = entry._replace(head=expected[1])
            super().insert_events(stored_events, entry=entry, expected=expected, **options)


class TestSweepsWhatATaskHasSaidWhoseRowIsLost(Base):
    seen_by = "test_what_a_task_has_said_is_no_orphan_while_only_its_index_row_is_lost"

    class recorder(SoundRecorder):  # noqa: N801
        def _is_orphan(self, task_id: str, birth: str) -> bool:
            return task_id not in self._index or super()._is_orphan(task_id, birth)


# ---------------------------------------------------------------------- openings


class TestGoesOnAfterItsClose(Base):
    seen_by = "test_after_close_everything_says_so"
    seen_by_the_machine = False

    class recorder(SoundRecorder):  # noqa: N801
        def check(self) -> None:
            return


class TestSeesOnlyWhatWasThereWhenItOpened(Base):
    seen_by = "test_what_has_returned_is_seen_by_another_at_once_and_what_was_undone_never"

    def again(self, store: Store) -> Store:
        again = super().again(store)
        again.recorder._index = dict(again.recorder._index)  # type: ignore[attr-defined]
        return again


class TestHasForgottenHeartbeatsWhenItIsOpenedAgain(Base):
    seen_by = "test_a_store_that_is_opened_again_has_everything"

    def again(self, store: Store) -> Store:
        again = super().again(store)
        again.recorder._heartbeats = {}  # type: ignore[attr-defined]
        return again


class TestKeepsWorkersAliveAfterTheClose(Base):
    seen_by = "test_closing_one_lets_go_of_its_workers_and_of_nothing_else"
    seen_by_the_machine = False

    class workers(SoundWorkers):  # noqa: N801
        def close(self) -> None:
            return


MUTANTS = {name: one for name, one in vars().items() if name.startswith("Test") and one is not TestSound}
