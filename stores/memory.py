"""The store in memory: same contract, gone with its process. For tests and for trying things out."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from uuid import UUID

import eventsourcing.popo as es_popo
from eventsourcing.persistence import StoredEvent

from stores.emissions import EMIT, LAST_NUMBER, MOST_EMISSIONS, RESET, Emission
from stores.errors import AppendConflictError, StoreClosedError, StoreForkedError
from stores.lifetime import Resource
from stores.orphans import Orphans
from stores.recorder import RowOf, TaskRecorder, check_append
from stores.schema import SCHEMA
from stores.store import Store
from stores.task_index import START, Birth, Expected, IndexRow, Place, place
from stores.workers import MemoryWorkers

_DELETED = StoredEvent("", 0, "", b"")
"""What stands in the place of an event that was deleted."""


class MemoryRecorder(Resource, es_popo.POPOAggregateRecorder, TaskRecorder):
    """The library's plain-object recorder with the task index beside it, under its lock.

    Guarantee: as every TaskRecorder, but that nothing survives the process.
    """

    def __init__(self, url: str) -> None:
        es_popo.POPOAggregateRecorder.__init__(self)
        self._index: dict[str, IndexRow] = {}
        self._heartbeats: dict[str, dict[str, tuple[str, int, str]]] = {}
        self._emissions: dict[str, tuple[str, deque[Emission]]] = {}
        self._beats: dict[str, tuple[int, float]] = {}
        Resource.__init__(self, url)

    def insert_events(  # type: ignore[override]  # see TaskRecorder
        self,
        stored_events: Sequence[StoredEvent],
        *,
        entry: IndexRow,
        expected: Expected,
        inside: Callable[[], None] | None = None,
        births: Sequence[Birth] = (),
    ) -> None:
        check_append(stored_events, entry, expected, births)
        self.check()
        with self._database_lock:
            self._compare(entry.id, expected)
            for birth in births:
                self._compare(birth.entry.id, None)
            rows = [*stored_events, *(birth.event for birth in births)]
            self._assert_uniqueness(rows)
            if inside is not None:
                inside()  # before anything is touched: then there is nothing to undo
            self._update_table(rows)
            self._index |= {one.id: one for one in (entry, *(birth.entry for birth in births))}

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
        check_append(stored_events, entry, expected, births)
        verdict: BaseException | None = None
        try:
            self.insert_events(stored_events, entry=entry, expected=expected, inside=inside, births=births)
        except (StoreClosedError, StoreForkedError):
            raise
        except BaseException as error:
            verdict = error
        done(verdict)

    def update_index(self, entry: IndexRow, *, expected: tuple[str, int]) -> None:
        self.check()
        with self._database_lock:
            self._compare(entry.id, expected)
            self._index[entry.id] = entry

    def _compare(self, task_id: str, expected: Expected) -> None:
        found = self._index.get(task_id)
        if expected != (None if found is None else (found.birth, found.head)):
            raise AppendConflictError(expected, found, task_id, self.url)

    def rebuild_index(self, row_of: RowOf) -> list[IndexRow]:
        self.check()
        with self._database_lock:
            entries = [
                entry for name in self.select_ids() if (entry := row_of(name, self._index.get(name))) is not None
            ]
            self._index = {entry.id: entry for entry in entries}
        return entries

    def delete_task(self, task_id: str, *, expected: tuple[str, int]) -> None:
        self.check()
        with self._database_lock:
            self._compare(task_id, expected)
            del self._index[task_id]
            self._heartbeats.pop(task_id, None)
            self._emissions.pop(task_id, None)
            self._delete_events(task_id)

    def _delete_events(self, task_id: str) -> None:
        """Leave nothing of them in the library's list but their places, which others' positions count."""
        for position in self._stored_events_index.pop(task_id, {}).values():
            self._stored_events[position] = _DELETED

    def delete_orphans(self) -> int:
        self.check()
        with self._database_lock:
            found = self.select_orphans()
            for table, task_id, birth, _ in found:
                if table == "emissions":
                    del self._emissions[task_id]
                else:
                    steps = self._heartbeats[task_id]
                    self._heartbeats[task_id] = {path: beat for path, beat in steps.items() if beat[0] != birth}
        return sum(orphans.rows for orphans in found)

    def select_orphans(self) -> list[Orphans]:
        self.check()
        with self._database_lock:
            beats = Counter((name, birth) for name, steps in self._heartbeats.items() for birth, *_ in steps.values())
            said = Counter({(name, birth): len(rows) for name, (birth, rows) in self._emissions.items()})
            both = (("emissions", said), ("heartbeats", beats))
            return [
                Orphans(table, task_id, birth, rows)
                for table, counts in both
                for (task_id, birth), rows in sorted(counts.items())
                if self._is_orphan(task_id, birth)
            ]

    def _is_orphan(self, task_id: str, birth: str) -> bool:
        row = self._index.get(task_id)
        return row.birth != birth if row is not None else not self._stored_events_index.get(task_id)

    def schema_version(self) -> int:
        self.check()
        return SCHEMA

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        self.check()
        with self._database_lock:
            index = self._stored_events_index.get(str(originator_id), {})
            versions = [
                version
                for version in sorted(index, reverse=desc)  # the library gives them as they came in
                if (gt is None or version > gt) and (lte is None or version <= lte)
            ]
            return [self._stored_events[index[version]] for version in versions[:limit]]

    def select_entry(self, task_id: str) -> IndexRow | None:
        self.check()
        with self._database_lock:
            return self._index.get(task_id)

    def select_rows(self, ids: Collection[str]) -> dict[str, IndexRow]:
        self.check()
        with self._database_lock:
            return {task_id: self._index[task_id] for task_id in ids if task_id in self._index}

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
        rows = [
            row
            for row in self._rows()
            if (status is None or row.status in status)
            and (agent is None or row.agent == agent)
            and (hold is None or row.hold in hold)
            and (prefix is None or row.id.startswith(prefix))
            and (after is None or row.updated > after)
        ]
        rows.sort(key=lambda row: (row.created, row.id))
        return rows if limit is None else rows[max(0, len(rows) - limit) :]

    def select_page(self, *, after: str = "", limit: int) -> list[IndexRow]:
        return sorted(row for row in self._rows() if row.id > after)[:limit]

    def select_held(self, hold: str, *, after: Place = START, limit: int) -> list[IndexRow]:
        held = [row for row in self._rows() if row.hold == hold and (row.updated, row.id) > after]
        return sorted(held, key=lambda row: (row.updated, row.id))[:limit]

    def select_ready(
        self,
        now: float,
        *,
        agents: Collection[str],
        busy_owners: Collection[str],
        after: Place = START,
        limit: int,
    ) -> list[IndexRow]:
        ready = [
            row
            for row in self._rows()
            if row.due is not None and row.due <= now and row.agent in agents and row.owner not in busy_owners
        ]
        return sorted((row for row in ready if place(row) > after), key=place)[:limit]

    def next_due(self, after: float, *, agents: Collection[str]) -> float | None:
        dues = [row.due for row in self._rows() if row.due is not None and row.agent in agents]
        return min((due for due in dues if due > after), default=None)

    def save_heartbeat(self, task_id: str, birth: str, path: str, attempt: int, detail: str) -> None:
        self.check()
        with self._database_lock:
            steps = self._heartbeats.setdefault(task_id, {})
            found = steps.get(path)
            if found is None or found[0] != birth or found[1] <= attempt:
                steps[path] = (birth, attempt, detail)

    def select_heartbeat(self, task_id: str, birth: str, path: str) -> tuple[int, str] | None:
        self.check()
        with self._database_lock:
            found = self._heartbeats.get(task_id, {}).get(path)
        return found[1:] if found is not None and found[0] == birth else None

    def delete_heartbeats(self, task_id: str, path: str | None = None) -> None:
        self.check()
        with self._database_lock:
            if path is None:
                self._heartbeats.pop(task_id, None)
            else:
                self._heartbeats.get(task_id, {}).pop(path, None)

    def save_emissions(self, task_id: str, birth: str, rows: Sequence[Emission]) -> None:
        self.check()
        with self._database_lock:
            entry = self._index.get(task_id)
            if entry is None or entry.birth != birth:
                return
            said = self._said(task_id, birth)
            for row in rows:
                base, number = (said[-1].base, said[-1].number) if said else (0, 0)
                if row.activation < entry.activation or number == LAST_NUMBER or not _counts(said, row):
                    continue
                said.append(row._replace(base=max(base, entry.head), number=number + 1))
            if said:
                self._emissions[task_id] = birth, said

    def _said(self, task_id: str, birth: str) -> deque[Emission]:
        found = self._emissions.get(task_id)
        return found[1] if found is not None and found[0] == birth else deque(maxlen=MOST_EMISSIONS)

    def select_emissions(
        self, task_id: str, birth: str, *, after: tuple[int, int] = (0, 0), upto: int, limit: int
    ) -> list[Emission]:
        self.check()
        with self._database_lock:
            said = self._said(task_id, birth)
            return [row for row in said if (row.base, row.number) > after and row.base <= upto][:limit]

    def delete_emissions(self, task_id: str) -> None:
        self.check()
        with self._database_lock:
            self._emissions.pop(task_id, None)

    def save_beat(self, worker: str, count: int, lease: float) -> None:
        self.check()
        with self._database_lock:
            self._beats[worker] = count, lease

    def select_beats(self) -> dict[str, tuple[int, float]]:
        self.check()
        with self._database_lock:
            return dict(self._beats)

    def delete_beat(self, worker: str) -> None:
        self.check()
        with self._database_lock:
            self._beats.pop(worker, None)

    def select_ids(self, *, after: str = "", limit: int | None = None) -> list[str]:
        self.check()
        with self._database_lock:
            names = sorted(name for name, versions in self._stored_events_index.items() if versions and name > after)
        return names[:limit]

    def _rows(self) -> list[IndexRow]:
        self.check()
        with self._database_lock:
            return list(self._index.values())


def _counts(said: deque[Emission], row: Emission) -> bool:
    """Tell whether a row is to be stored: a reset only where there is something to reset."""
    return row.kind != RESET or next((each.kind for each in reversed(said) if each.path == row.path), RESET) == EMIT


class MemoryStore(Store):
    """A store of its own in this process's memory, shared with nobody; a child made by fork cannot use it."""

    def __init__(self) -> None:
        url = "memory:"
        recorder = MemoryRecorder(url)
        super().__init__(url, recorder, MemoryWorkers(url))
        self._recorder = recorder

    def close(self) -> None:
        self.workers.close()
        self._recorder.closed = True
