"""The contract of appends that no thread waits for."""

import threading
from queue import SimpleQueue

import pytest

from stores.contract.kit import TIMEOUT, Suite, contents, create, events, grow, raising, row, submit
from stores.crash import SimulatedCrash
from stores.errors import AppendConflictError, StoreClosedError
from stores.store import Store


class Submitted(Suite):
    """What `submit_events` guarantees: the same as `insert_events`, and that it waits for nothing."""

    def test_a_submitted_append_is_stored_when_that_is_said(self, store: Store) -> None:
        entry = row("a", 2, due=7.5)
        submit(store, events("a", 1, 2), entry=entry, expected=None)
        assert store.recorder.select_entry("a") == entry
        assert store.recorder.select_events("a") == events("a", 1, 2)

    def test_a_conflict_is_the_word_of_its_own_append(self, store: Store) -> None:
        first = create(store)
        before = contents(store)
        with pytest.raises(AppendConflictError) as caught:
            submit(store, events("a", 3), entry=row(head=3), expected=(first.birth, 2))
        assert (caught.value.task_id, caught.value.found) == ("a", first)
        assert contents(store) == before

    @pytest.mark.parametrize("error", [ZeroDivisionError(), SimulatedCrash("here")])
    def test_what_inside_raises_undoes_it_and_is_its_word(self, store: Store, error: BaseException) -> None:
        first = create(store)
        before = contents(store)
        with pytest.raises(type(error)):
            submit(store, events("a", 2), entry=row(head=2), expected=(first.birth, 1), inside=raising(error))
        assert contents(store) == before

    def test_what_leads_nowhere_is_refused_at_once(self, store: Store) -> None:
        with pytest.raises(ValueError, match="version 1 comes next"):
            store.recorder.submit_events(events("a", 2), entry=row(head=2), expected=None, done=print)

    def test_many_are_submitted_by_one_thread_and_each_has_one_word(self, store: Store) -> None:
        words: SimpleQueue[BaseException | None] = SimpleQueue()
        for number in range(100):
            name = f"t{number:02}"
            store.recorder.submit_events(events(name, 1), entry=row(name), expected=None, done=words.put)
        assert [words.get(timeout=TIMEOUT) for _ in range(100)] == [None] * 100
        assert len(store.recorder.select_entries()) == 100
        assert words.empty()

    def test_the_thread_that_submits_does_not_wait_for_a_commit_that_takes_its_time(self, store: Store) -> None:
        """A slow transaction of another thread holds the store; submitting returns meanwhile."""
        entry, gate, at_gate = create(store), threading.Event(), threading.Event()

        def stand() -> None:
            at_gate.set()
            assert gate.wait(TIMEOUT)

        words: SimpleQueue[BaseException | None] = SimpleQueue()
        returned = threading.Event()

        def submits() -> None:
            store.recorder.submit_events(events("b", 1), entry=row("b"), expected=None, done=words.put)
            returned.set()

        slow = threading.Thread(target=grow, args=[store, entry], kwargs={"inside": stand})
        slow.start()
        assert at_gate.wait(TIMEOUT)
        submitter = threading.Thread(target=submits)
        submitter.start()
        in_time = returned.wait(TIMEOUT / 4) or not self.has_commits
        gate.set()
        slow.join(TIMEOUT)
        submitter.join(TIMEOUT)
        assert in_time
        assert words.get(timeout=TIMEOUT) is None

    has_commits = True
    """Whether a commit of this store may take its time; one in memory has none."""

    def test_after_the_close_nothing_is_submitted(self, store: Store) -> None:
        store.close()
        with pytest.raises(StoreClosedError):
            store.recorder.submit_events(events("a", 1), entry=row(), expected=None, done=print)

    def test_a_close_waits_for_what_was_submitted(self, store: Store) -> None:
        words: SimpleQueue[BaseException | None] = SimpleQueue()
        for number in range(50):
            name = f"t{number:02}"
            store.recorder.submit_events(events(name, 1), entry=row(name), expected=None, done=words.put)
        store.close()
        assert [words.get_nowait() for _ in range(50)] == [None] * 50
