"""The contract as plain dictionaries: what any store has to hold after the same calls."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from eventsourcing.persistence import IntegrityError, StoredEvent

from stores.emissions import EMIT, RESET, Emission
from stores.errors import AppendConflictError
from stores.orphans import Orphans
from stores.recorder import check_append
from stores.task_index import START, Birth, Expected, IndexRow, Place, place


@dataclass
class Model:
    """What a store holds, and its methods by the words of their docstrings. Slow, and nothing to be kept in."""

    rows: dict[str, IndexRow] = field(default_factory=dict)
    log: dict[str, dict[int, StoredEvent]] = field(default_factory=dict)
    heartbeats: dict[tuple[str, str], tuple[str, int, str]] = field(default_factory=dict)
    emissions: dict[str, tuple[str, list[Emission]]] = field(default_factory=dict)
    beats: dict[str, tuple[int, float]] = field(default_factory=dict)

    def insert_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        entry: IndexRow,
        expected: Expected,
        inside: Callable[[], None] | None = None,
        births: Sequence[Birth] = (),
    ) -> None:
        check_append(stored_events, entry, expected, births)
        self._compare(entry.id, expected)
        for birth in births:
            self._compare(birth.entry.id, None)
        added = [*stored_events, *(birth.event for birth in births)]
        if any(event.originator_version in self.log.get(str(event.originator_id), {}) for event in added):
            raise IntegrityError
        if inside is not None:
            inside()
        for event in added:
            self.log.setdefault(str(event.originator_id), {})[event.originator_version] = event
        self.rows |= {row.id: row for row in (entry, *(birth.entry for birth in births))}

    def _compare(self, task_id: str, expected: Expected) -> None:
        found = self.rows.get(task_id)
        if expected != (None if found is None else (found.birth, found.head)):
            raise AppendConflictError(expected, found, task_id)

    def update_index(self, entry: IndexRow, *, expected: tuple[str, int]) -> None:
        self._compare(entry.id, expected)
        self.rows[entry.id] = entry

    def rebuild_index(self, row_of: Callable[[str, IndexRow | None], IndexRow | None]) -> list[IndexRow]:
        new = [row_of(task_id, self.rows.get(task_id)) for task_id in self.select_ids()]
        self.rows = {row.id: row for row in new if row is not None}
        return list(self.rows.values())

    def delete_task(self, task_id: str, *, expected: tuple[str, int]) -> None:
        self._compare(task_id, expected)
        del self.rows[task_id]
        self.log.pop(task_id, None)
        self.delete_heartbeats(task_id)
        self.delete_emissions(task_id)

    def select_orphans(self) -> list[Orphans]:
        found: Counter[tuple[str, str, str]] = Counter()
        for (task_id, _), (birth, *_) in self.heartbeats.items():
            found["heartbeats", task_id, birth] += 1
        for task_id, (birth, rows) in self.emissions.items():
            found["emissions", task_id, birth] += len(rows)
        return [Orphans(*key, rows) for key, rows in sorted(found.items()) if self._is_orphan(*key[1:])]

    def _is_orphan(self, task_id: str, birth: str) -> bool:
        row = self.rows.get(task_id)
        return not self.log.get(task_id) if row is None else row.birth != birth

    def delete_orphans(self) -> int:
        found = self.select_orphans()
        for orphans in found:
            if orphans.table == "emissions":
                del self.emissions[orphans.task_id]
            else:
                old = self.heartbeats.items()
                self.heartbeats = {at: b for at, b in old if (at[0], b[0]) != (orphans.task_id, orphans.birth)}
        return sum(orphans.rows for orphans in found)

    def save_heartbeat(self, task_id: str, birth: str, path: str, attempt: int, detail: str) -> None:
        found = self.heartbeats.get((task_id, path))
        if found is None or found[0] != birth or found[1] <= attempt:
            self.heartbeats[task_id, path] = birth, attempt, detail

    def delete_heartbeats(self, task_id: str, path: str | None = None) -> None:
        for key in [key for key in self.heartbeats if key[0] == task_id and path in (None, key[1])]:
            del self.heartbeats[key]

    def save_emissions(self, task_id: str, birth: str, rows: Sequence[Emission]) -> None:
        entry = self.rows.get(task_id)
        if entry is None or entry.birth != birth:
            return
        old_birth, old = self.emissions.get(task_id, (birth, []))
        said = list(old) if old_birth == birth else []
        for row in rows:
            last = [one.kind for one in said if one.path == row.path][-1:]
            if row.activation >= entry.activation and (row.kind != RESET or last == [EMIT]):
                base, number = (said[-1].base, said[-1].number) if said else (0, 0)
                said.append(row._replace(base=max(base, entry.head), number=number + 1))
        if said:
            self.emissions[task_id] = birth, said

    def delete_emissions(self, task_id: str) -> None:
        self.emissions.pop(task_id, None)

    def save_beat(self, worker: str, count: int, lease: float) -> None:
        self.beats[worker] = count, lease

    def delete_beat(self, worker: str) -> None:
        self.beats.pop(worker, None)

    # ------------------------------------------------------------------ reads

    def select_ids(self, *, after: str = "", limit: int | None = None) -> list[str]:
        return sorted(task_id for task_id, events in self.log.items() if events and task_id > after)[:limit]

    def select_page(self, *, after: str = "", limit: int) -> list[IndexRow]:
        return [self.rows[task_id] for task_id in sorted(self.rows) if task_id > after][:limit]

    def select_events(
        self,
        task_id: str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        events = self.log.get(task_id, {})
        some = [version for version in events if (gt is None or version > gt) and (lte is None or version <= lte)]
        return [events[version] for version in sorted(some, reverse=desc)[:limit]]

    def select_entry(self, task_id: str) -> IndexRow | None:
        return self.rows.get(task_id)

    def select_rows(self, ids: Collection[str]) -> dict[str, IndexRow]:
        return {task_id: row for task_id, row in self.rows.items() if task_id in ids}

    def select_entries(self, *, prefix: str = "", limit: int | None = None, **facts: Any) -> list[IndexRow]:
        tests: dict[str, Callable[[IndexRow, Any], bool]] = {
            "status": lambda row, chosen: row.status in chosen,
            "hold": lambda row, chosen: row.hold in chosen,
            "agent": lambda row, agent: row.agent == agent,
            "after": lambda row, after: row.updated > after,
        }
        found = [
            row
            for row in self.rows.values()
            if row.id.startswith(prefix) and all(tests[name](row, value) for name, value in facts.items())
        ]
        found.sort(key=lambda row: (row.created, row.id))
        return found if limit is None else found[max(0, len(found) - limit) :]

    def select_held(self, hold: str, *, after: Place = START, limit: int) -> list[IndexRow]:
        held = [row for row in self.rows.values() if row.hold == hold and (row.updated, row.id) > after]
        return sorted(held, key=lambda row: (row.updated, row.id))[:limit]

    def select_ready(
        self, now: float, *, agents: Collection[str], busy_owners: Collection[str], after: Place = START, limit: int
    ) -> list[IndexRow]:
        due = [row for row in self._due_of(agents) if place(row)[0] <= now and row.owner not in busy_owners]
        return sorted([row for row in due if place(row) > after], key=place)[:limit]

    def next_due(self, after: float, *, agents: Collection[str]) -> float | None:
        return min((place(row)[0] for row in self._due_of(agents) if place(row)[0] > after), default=None)

    def _due_of(self, agents: Collection[str]) -> list[IndexRow]:
        return [row for row in self.rows.values() if row.due is not None and row.agent in agents]

    def select_heartbeat(self, task_id: str, birth: str, path: str) -> tuple[int, str] | None:
        found = self.heartbeats.get((task_id, path))
        return found[1:] if found is not None and found[0] == birth else None

    def select_emissions(
        self, task_id: str, birth: str, *, after: tuple[int, int] = (0, 0), upto: int, limit: int
    ) -> list[Emission]:
        said_by, said = self.emissions.get(task_id, (birth, []))
        rows = said if said_by == birth else []
        return [row for row in rows if (row.base, row.number) > after and row.base <= upto][:limit]

    def select_beats(self) -> dict[str, tuple[int, float]]:
        return dict(self.beats)
