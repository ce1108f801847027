"""Crashes on purpose: a store whose process "dies" at a named point, for tests.

The points of an append are `append.before`, `append.inside` (written, not committed) and `append.after`
(committed, not yet known to the caller); those of a heartbeat are `heartbeat.before` and `heartbeat.after`, of a
task's deletion `delete.before` and `delete.after`.
What runs above the store reports its own through `Store.reach`: `body.before`, `body.after`, `doubt.before`,
`doubt.after`.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from stores.crash_plan import CrashPlan, FaultPlan, Plan, SimulatedCrash
from stores.emissions import Emission
from stores.errors import StoreClosedError, StoreUnavailableError
from stores.orphans import Orphans
from stores.recorder import RowOf, TaskRecorder, check_append
from stores.store import Store
from stores.task_index import START, Birth, Expected, IndexRow, Place
from stores.workers import About, WorkerLock, Workers

__all__ = ["CrashPlan", "CrashingStore", "FaultPlan", "Plan", "SimulatedCrash"]

DRAIN = 1.0
"""Seconds that a close waits for an append that was submitted."""


class CrashingStore(Store):
    """The store of one process that dies by `plan`; the inner store plays the disk, which outlives it.

    Guarantee: once the plan is dead everything here refuses with SimulatedCrash, so a dead process's
    threads change and learn nothing more; a write that was past `append.inside` at that moment may still
    land, as in life. `close()` frees the worker locks as the death of the process would; it closes the
    inner store only with `close_inner=True`.
    """

    def __init__(self, store: Store, plan: Plan, *, close_inner: bool = False) -> None:
        self.inner = store
        self.plan = plan
        self.closed = False
        self._close_inner = close_inner
        self._workers = _CrashingWorkers(self)
        self._recorder = _CrashingRecorder(self)
        super().__init__(store.url, self._recorder, self._workers)

    def reach(self, point: str, **facts: object) -> None:
        self.plan.reach(point, **facts)

    def hurry(self, *, on: bool) -> None:
        self.inner.hurry(on=on)

    def listen(self, tell: Callable[[Collection[str] | None], object]) -> Callable[[], None]:
        return self.inner.listen(lambda ids: None if self.plan.dead else tell(ids))

    def damages(self) -> Iterator[str]:
        self.check()
        return self.inner.damages()

    def empty_journal(self) -> bool:
        self.check()
        return self.inner.empty_journal()

    def prepare_to_write(self) -> None:
        self.inner.prepare_to_write()

    def vacuum(self) -> None:
        self.check()
        self.inner.vacuum()

    def check(self) -> None:
        """Raise SimulatedCrash when dead, StoreClosedError when closed."""
        self.plan.check()
        if self.closed:
            raise StoreClosedError(f"{self.url} is closed", url=self.url)

    def close(self) -> None:
        self._recorder.drain()
        self.closed = True
        self._workers.close()
        if self._close_inner:
            self.inner.close()


class _CrashingRecorder(TaskRecorder):
    def __init__(self, store: CrashingStore) -> None:
        self._store = store
        self._pending: set[threading.Thread] = set()

    def drain(self) -> None:
        """Wait for what was submitted, unless the process is dead; not for a plan that keeps it at a point."""
        for thread in list(self._pending):
            if not self._store.plan.dead and thread is not threading.current_thread():
                thread.join(DRAIN)

    @property
    def _inner(self) -> TaskRecorder:
        self._store.check()
        return self._store.inner.recorder

    def insert_events(  # type: ignore[override]  # see TaskRecorder
        self,
        stored_events: Sequence[StoredEvent],
        *,
        entry: IndexRow,
        expected: Expected,
        inside: Callable[[], None] | None = None,
        births: Sequence[Birth] = (),
    ) -> None:
        facts: dict[str, Any] = {
            "id": entry.id,
            "version": entry.head,
            "topics": tuple(event.topic for event in stored_events),
        }
        if births:
            facts["births"] = tuple(birth.entry.id for birth in births)

        def inside_and_reach() -> None:
            if inside is not None:
                inside()
            self._store.reach("append.inside", **facts)

        self._store.check()
        self._store.reach("append.before", **facts)
        self._inner.insert_events(stored_events, entry=entry, expected=expected, inside=inside_and_reach, births=births)
        self._store.reach("append.after", **facts)

    def submit_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        entry: IndexRow,
        expected: Expected,
        done: Callable[[BaseException | None], object],
        inside: Callable[[], None] | None = None,
        births: Sequence[Birth] = (),
    ) -> None:
        def insert() -> None:
            verdict: BaseException | None = None
            try:
                self.insert_events(stored_events, entry=entry, expected=expected, inside=inside, births=births)
            except BaseException as error:
                verdict = error
            done(verdict)
            self._pending.discard(threading.current_thread())

        check_append(stored_events, entry, expected, births)
        self._store.check()
        thread = threading.Thread(target=insert, name="perdure-crash", daemon=True)
        try:  # on a thread of its own: a plan may take its time at each point
            self._pending.add(thread)
            thread.start()
        except RuntimeError as error:
            self._pending.discard(thread)
            raise StoreUnavailableError(
                f"{self._store.url}: {error}", url=self._store.url, reason=str(error)
            ) from error

    def update_index(self, entry: IndexRow, *, expected: tuple[str, int]) -> None:
        self._inner.update_index(entry, expected=expected)

    def rebuild_index(self, row_of: RowOf) -> list[IndexRow]:
        return self._inner.rebuild_index(row_of)

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        return self._inner.select_events(originator_id, gt=gt, lte=lte, desc=desc, limit=limit)

    def select_entry(self, task_id: str) -> IndexRow | None:
        return self._inner.select_entry(task_id)

    def select_rows(self, ids: Collection[str]) -> dict[str, IndexRow]:
        return self._inner.select_rows(ids)

    def select_entries(
        self,
        *,
        status: Collection[str] | None = None,
        agent: str | None = None,
        hold: Collection[str] | None = None,
        prefix: str | None = None,
        after: float | None = None,
        limit: int | None = None,
    ) -> list[IndexRow]:
        return self._inner.select_entries(
            status=status, agent=agent, hold=hold, prefix=prefix, after=after, limit=limit
        )

    def select_held(self, hold: str, *, after: Place = START, limit: int) -> list[IndexRow]:
        return self._inner.select_held(hold, after=after, limit=limit)

    def select_ready(
        self,
        now: float,
        *,
        agents: Collection[str],
        busy_owners: Collection[str],
        after: Place = START,
        limit: int,
    ) -> list[IndexRow]:
        return self._inner.select_ready(now, agents=agents, busy_owners=busy_owners, after=after, limit=limit)

    def next_due(self, after: float, *, agents: Collection[str]) -> float | None:
        return self._inner.next_due(after, agents=agents)

    def save_heartbeat(self, task_id: str, birth: str, path: str, attempt: int, detail: str) -> None:
        facts = {"id": task_id, "path": path, "attempt": attempt}
        self._store.check()
        self._store.reach("heartbeat.before", **facts)
        self._inner.save_heartbeat(task_id, birth, path, attempt, detail)
        self._store.reach("heartbeat.after", **facts)

    def select_heartbeat(self, task_id: str, birth: str, path: str) -> tuple[int, str] | None:
        return self._inner.select_heartbeat(task_id, birth, path)

    def delete_heartbeats(self, task_id: str, path: str | None = None) -> None:
        self._inner.delete_heartbeats(task_id, path)

    def save_emissions(self, task_id: str, birth: str, rows: Sequence[Emission]) -> None:
        self._inner.save_emissions(task_id, birth, rows)  # no crash point, for the reason of `save_beat`

    def select_emissions(
        self, task_id: str, birth: str, *, after: tuple[int, int] = (0, 0), upto: int, limit: int
    ) -> list[Emission]:
        return self._inner.select_emissions(task_id, birth, after=after, upto=upto, limit=limit)

    def delete_emissions(self, task_id: str) -> None:
        self._inner.delete_emissions(task_id)

    def save_beat(self, worker: str, count: int, lease: float) -> None:
        self._inner.save_beat(worker, count, lease)  # no crash point: how many there are must not depend on the time

    def select_beats(self) -> dict[str, tuple[int, float]]:
        return self._inner.select_beats()

    def delete_beat(self, worker: str) -> None:
        self._inner.delete_beat(worker)

    def select_ids(self, *, after: str = "", limit: int | None = None) -> list[str]:
        return self._inner.select_ids(after=after, limit=limit)

    def select_page(self, *, after: str = "", limit: int) -> list[IndexRow]:
        return self._inner.select_page(after=after, limit=limit)

    def delete_task(self, task_id: str, *, expected: tuple[str, int]) -> None:
        self._store.check()
        self._store.reach("delete.before", id=task_id)
        self._inner.delete_task(task_id, expected=expected)
        self._store.reach("delete.after", id=task_id)

    def delete_orphans(self) -> int:
        return self._inner.delete_orphans()

    def select_orphans(self) -> list[Orphans]:
        return self._inner.select_orphans()

    def schema_version(self) -> int:
        return self._inner.schema_version()


class _CrashingWorkers(Workers):
    def __init__(self, store: CrashingStore) -> None:
        self._store = store
        self._held: set[WorkerLock] = set()

    def hold(self, worker_id: str, about: About) -> WorkerLock:
        self._store.check()
        lock = self._store.inner.workers.hold(worker_id, about)
        self._held.add(lock)
        return _CrashingLock(lock, self._store)

    def is_alive(self, worker_id: str) -> bool:
        self._store.check()
        return self._store.inner.workers.is_alive(worker_id)

    def live(self) -> dict[str, dict[str, Any]]:
        self._store.check()
        return self._store.inner.workers.live()

    def close(self) -> None:
        for lock in list(self._held):
            if self._store.plan.dead:
                lock.abandon()
            else:
                lock.release()
        self._held.clear()


class _CrashingLock(WorkerLock):
    def __init__(self, lock: WorkerLock, store: CrashingStore) -> None:
        self.id = lock.id
        self._lock = lock
        self._store = store

    def update(self, about: About) -> None:
        self._store.check()
        self._lock.update(about)

    def keep(self, about: About) -> bool:
        self._store.check()
        return self._lock.keep(about)

    def release(self) -> None:
        self._store.check()
        self._lock.release()

    def abandon(self) -> None:
        self._lock.abandon()
