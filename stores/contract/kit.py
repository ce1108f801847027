"""What the contract is tried with: rows, events and emissions, and short ways to write and to read them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Barrier, Thread
from typing import Any

import pytest
from eventsourcing.persistence import StoredEvent

from stores.emissions import EMIT, Emission
from stores.store import Store
from stores.task_index import Birth, IndexRow

TIMEOUT = 20.0
"""Seconds after which a thread of a test is taken for stuck."""


class Suite(ABC):
    """A part of the contract: tests of a fresh store, `store`, which is closed after each."""

    @abstractmethod
    def fresh(self, folder: Path) -> Store:
        """Give a store with nothing in it. `folder` is empty, and the store's own; it is removed later."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """Give a fresh store for one test."""
        with self.fresh(tmp_path) as store:
            yield store


def row(task_id: str = "a", head: int = 1, **facts: Any) -> IndexRow:
    """Give an index row of a task that has just been made, but for these facts."""
    plain = IndexRow(task_id, f"birth-of-{task_id}", head, 0, "queued", "agent", created=1.0, updated=2.0)
    return plain._replace(**facts)


def events(task_id: str, *versions: int, state: bytes = b"\x00state\xff") -> list[StoredEvent]:
    """Give events of a task with these versions."""
    return [StoredEvent(task_id, version, "topic", state) for version in versions]


def birth(task_id: str, **facts: Any) -> Birth:
    """Give a task to be made in the append of another."""
    return Birth(events(task_id, 1)[0], row(task_id, **facts))


def create(store: Store, task_id: str = "a", **facts: Any) -> IndexRow:
    """Make a task with one event and give its row."""
    entry = row(task_id, **facts)
    store.recorder.insert_events(events(task_id, 1), entry=entry, expected=None)
    return entry


def grow(store: Store, entry: IndexRow, *, by: int = 1, **options: Any) -> IndexRow:
    """Append to a task that stands as `entry` says, and give its new row; `options` are those of `insert_events`."""
    longer = entry._replace(head=entry.head + by)
    added = events(entry.id, *range(entry.head + 1, longer.head + 1))
    store.recorder.insert_events(added, entry=longer, expected=(entry.birth, entry.head), **options)
    return longer


def submit(store: Store, added: Sequence[StoredEvent], **options: Any) -> None:
    """Append by `submit_events` and wait for the word; raises it where it is an error."""
    words: SimpleQueue[BaseException | None] = SimpleQueue()
    store.recorder.submit_events(added, done=words.put, **options)
    word = words.get(timeout=TIMEOUT)
    if word is not None:
        raise word


def contents(store: Store) -> object:
    """Give all that log and index hold."""
    recorder = store.recorder
    return recorder.select_entries(), {name: recorder.select_events(name) for name in recorder.select_ids()}


def versions(store: Store, task_id: str, **bounds: Any) -> list[int]:
    """Give the versions of a task's events, as they are selected."""
    return [event.originator_version for event in store.recorder.select_events(task_id, **bounds)]


def said(path: str, value: str = "", *, attempt: int = 1, activation: int = 0, kind: str = EMIT) -> Emission:
    """Give an emission."""
    return Emission(path, attempt, activation, kind, "text", value, 5.0)


def emitted(store: Store, task_id: str = "a", **bounds: Any) -> list[tuple[int, int, str]]:
    """Give base, number and value of what a task has said."""
    asked = {"upto": 99, "limit": 99_999} | bounds
    rows = store.recorder.select_emissions(task_id, f"birth-of-{task_id}", **asked)
    return [(row.base, row.number, row.value if row.kind == EMIT else f"reset {row.path}") for row in rows]


def raising(error: BaseException | type[BaseException]) -> Callable[[], None]:
    """Give an `inside` that raises."""

    def inside() -> None:
        raise error

    return inside


def at_once(*calls: Callable[[], object]) -> None:
    """Run calls in threads that begin together; fail with the first error of any, or where one is stuck."""
    start = Barrier(len(calls))
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            start.wait(TIMEOUT)
            call()
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=run, args=[call], daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not any(thread.is_alive() for thread in threads), f"a thread is stuck in the store after {TIMEOUT:g} s"
    for error in errors:
        raise error


def refused(error: type[BaseException], words: str, *calls: Callable[[], object]) -> None:
    """Fail unless each of the calls raises this error with these words."""
    for call in calls:
        with pytest.raises(error, match=words):
            call()
