"""The store in one SQLite file."""

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import eventsourcing.sqlite as es_sqlite
from eventsourcing.persistence import StoredEvent

from stores import beats, emissions, heartbeats, orphans, schema, sqlite_care, task_index
from stores.emissions import Emission
from stores.errors import StoreCorruptError, StoreError
from stores.file_lock import locked, os_errors
from stores.orphans import Orphans
from stores.recorder import RowOf, TaskRecorder, check_append
from stores.sqlite_append import Append, conflict, swap
from stores.sqlite_file import APPLICATION_ID, SQLiteFile
from stores.sqlite_growth import grow_log
from stores.store import Store
from stores.task_index import START, Birth, Expected, IndexRow, Place
from stores.workers import FileWorkers

BUSY_TIMEOUT = 30.0
"""Seconds to wait for another process that has the file locked; `?timeout=` in the URL says otherwise."""
ROWS_AT_ONCE = 200
"""Rows that one statement reads by id: others who read have not to wait for all of them."""


class SQLiteRecorder(es_sqlite.SQLiteAggregateRecorder, TaskRecorder):
    """The library's table of events (keyed by id and version, no row numbers) and the task index beside it.

    Guarantee: what an append returned from survives the death of the process and of the machine, as far as
    the disk keeps what it said it had written.
    """

    datastore: SQLiteFile

    def construct_create_table_statements(self) -> list[str]:
        first = super().construct_create_table_statements() + task_index.CREATE
        return [*first, *_upgrade(0), f"PRAGMA application_id={APPLICATION_ID}"]

    def create_table(self) -> None:
        self.datastore.write(self._create_table)  # type: ignore[arg-type]  # the library's cursor is one of sqlite3

    def upgrade(self) -> None:
        """Bring a file of an older perdure up to date, once; where nothing is to be done no writer is waited for.

        Only one process at a time may be here. Whoever dies in it has changed nothing.
        """
        found = self.schema_version()
        if found < schema.SCHEMA:
            self.datastore.write(lambda cursor: [cursor.execute(statement) for statement in _upgrade(found)])

    def schema_version(self) -> int:
        ((version,),) = self.datastore.read("PRAGMA user_version")
        return int(version)

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
        append = Append(stored_events, entry, expected, inside, births, self.datastore.url)
        self.datastore.write(append, append.size)

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
        append = Append(stored_events, entry, expected, inside, births, self.datastore.url)
        self.datastore.submit(append, done, append.size)

    def update_index(self, entry: IndexRow, *, expected: tuple[str, int]) -> None:
        self.datastore.write(lambda cursor: swap(cursor, entry, expected, self.datastore.url))

    def rebuild_index(self, row_of: RowOf) -> list[IndexRow]:
        entries: list[IndexRow] = []

        def rebuild(cursor: sqlite3.Cursor) -> None:
            entries.clear()
            old = {row.id: row for row in self._entries(cursor.execute(task_index.SELECT).fetchall())}
            ids = self._ids(cursor.execute(self._select_ids, ("", -1)).fetchall())
            entries.extend(entry for task_id in ids if (entry := row_of(task_id, old.get(task_id))) is not None)
            cursor.execute(task_index.DELETE_ALL)
            cursor.executemany(task_index.INSERT, entries)

        self.datastore.write(rebuild)
        return entries

    def delete_task(self, task_id: str, *, expected: tuple[str, int]) -> None:
        def delete(cursor: sqlite3.Cursor) -> None:
            if not cursor.execute(task_index.DELETE, (task_id, *expected)).rowcount:
                raise conflict(cursor, task_id, expected, self.datastore.url)
            for statement in (self._delete_events, heartbeats.DELETE, emissions.DELETE):
                cursor.execute(statement, (task_id,))

        self.datastore.write(delete)

    def delete_orphans(self) -> int:
        deleted = 0

        def delete(cursor: sqlite3.Cursor) -> None:
            nonlocal deleted
            statements = orphans.delete(self.events_table_name)
            deleted = sum(cursor.execute(statement).rowcount for statement in statements)

        if self.select_orphans():
            self.datastore.write(delete)
        return deleted

    def select_orphans(self) -> list[Orphans]:
        return [Orphans(*row) for row in self.datastore.read(orphans.select(self.events_table_name))]

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        # A state whose type was changed from outside comes as bytes all the same: its reader sees that it is spoilt.
        sql = (
            "SELECT originator_id, originator_version, topic, CAST(state AS BLOB)"
            f" FROM {self.events_table_name} WHERE originator_id=?"
        )
        params: list[object] = [str(originator_id)]
        for condition, bound in (("originator_version>?", gt), ("originator_version<=?", lte)):
            if bound is not None:
                sql, params = f"{sql} AND {condition}", [*params, bound]
        sql += f" ORDER BY originator_version {'DESC' if desc else 'ASC'} LIMIT ?"
        rows = self.datastore.read(sql, [*params, -1 if limit is None else limit])
        return [StoredEvent(*row) for row in rows]

    def select_entry(self, task_id: str) -> IndexRow | None:
        rows = self.datastore.read(task_index.SELECT_ONE, [task_id])
        return IndexRow(*rows[0]) if rows else None

    def select_rows(self, ids: Collection[str]) -> dict[str, IndexRow]:
        names, found = list(ids), dict[str, IndexRow]()
        for start in range(0, len(names), ROWS_AT_ONCE):
            condition, some = task_index.one_of("id", names[start : start + ROWS_AT_ONCE])
            rows = self.datastore.read(f"{task_index.SELECT} WHERE {condition}", some)
            found |= {row.id: row for row in self._entries(rows)}
        return found

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
        agents = None if agent is None else [agent]
        choices = (("status", status), ("agent", agents), ("hold", hold))
        terms = [task_index.one_of(column, chosen) for column, chosen in choices if chosen is not None]
        if prefix is not None:
            terms.append(task_index.begins_with(prefix))
        if after is not None:
            terms.append(("updated>?", [after]))
        conditions = " AND ".join(["TRUE", *(condition for condition, _ in terms)])
        params = [value for _, values in terms for value in values]
        sql = f"{task_index.SELECT} WHERE {conditions} ORDER BY created DESC, id DESC LIMIT ?"
        rows = self.datastore.read(sql, [*params, -1 if limit is None else limit])
        return self._entries(reversed(rows))

    def select_page(self, *, after: str = "", limit: int) -> list[IndexRow]:
        return self._entries(self.datastore.read(task_index.SELECT_PAGE, [after, limit]))

    def select_held(self, hold: str, *, after: Place = START, limit: int) -> list[IndexRow]:
        return self._entries(self.datastore.read(task_index.SELECT_HELD, [hold, *after, limit]))

    def select_ready(
        self,
        now: float,
        *,
        agents: Collection[str],
        busy_owners: Collection[str],
        after: Place = START,
        limit: int,
    ) -> list[IndexRow]:
        free, busy = task_index.one_of("owner", busy_owners, negate=True)
        sql = (
            f"{task_index.SELECT} WHERE agent=? AND due<=? AND (due, id)>(?, ?) AND (owner IS NULL OR {free})"
            " ORDER BY due, id LIMIT ?"
        )
        ready: list[IndexRow] = []
        for due, agent in self._first_due(agents, ">=?", after[0]):
            if due > now:
                break
            rows = self.datastore.read(sql, [agent, now, *after, *busy, limit])
            ready = sorted([*ready, *(IndexRow(*row) for row in rows)], key=task_index.place)[:limit]
            if ready and len(ready) == limit:  # what is due later than the last of them counts no more
                now = task_index.place(ready[-1])[0]
        return ready

    def next_due(self, after: float, *, agents: Collection[str]) -> float | None:
        return next((due for due, _ in self._first_due(agents, ">?", after)), None)

    def _first_due(self, agents: Collection[str], comparison: str, bound: float) -> list[tuple[float, str]]:
        """Give each agent that has a task due then, and its first due time, the earliest first."""
        names = set(agents)
        if not names:
            return []
        rows = self.datastore.read(task_index.first_due(names, comparison), [*names, bound])
        return sorted((due, agent) for agent, due in rows if due is not None)

    def save_heartbeat(self, task_id: str, birth: str, path: str, attempt: int, detail: str) -> None:
        row = (task_id, path, birth, attempt, detail)
        self.datastore.write(lambda cursor: cursor.execute(heartbeats.SAVE, row))

    def select_heartbeat(self, task_id: str, birth: str, path: str) -> tuple[int, str] | None:
        rows = self.datastore.read(heartbeats.SELECT, [task_id, birth, path])
        return tuple(rows[0]) if rows else None

    def delete_heartbeats(self, task_id: str, path: str | None = None) -> None:
        sql, key = (heartbeats.DELETE, [task_id]) if path is None else (heartbeats.DELETE_ONE, [task_id, path])
        self.datastore.write(lambda cursor: cursor.execute(sql, key))

    def save_emissions(self, task_id: str, birth: str, rows: Sequence[Emission]) -> None:
        self.datastore.write(lambda cursor: emissions.save(cursor, task_id, birth, rows))

    def select_emissions(
        self, task_id: str, birth: str, *, after: tuple[int, int] = (0, 0), upto: int, limit: int
    ) -> list[Emission]:
        rows = self.datastore.read(emissions.SELECT, [task_id, birth, *after, upto, limit])
        return [Emission(*row) for row in rows]

    def delete_emissions(self, task_id: str) -> None:
        self.datastore.write(lambda cursor: cursor.execute(emissions.DELETE, (task_id,)))

    def save_beat(self, worker: str, count: int, lease: float) -> None:
        self.datastore.write(lambda cursor: cursor.execute(beats.SAVE, (worker, count, lease)))

    def select_beats(self) -> dict[str, tuple[int, float]]:
        return {worker: (count, lease) for worker, count, lease in self.datastore.read(beats.SELECT)}

    def delete_beat(self, worker: str) -> None:
        self.datastore.write(lambda cursor: cursor.execute(beats.DELETE, (worker,)))

    def select_ids(self, *, after: str = "", limit: int | None = None) -> list[str]:
        return self._ids(self.datastore.read(self._select_ids, [after, -1 if limit is None else limit]))

    def _ids(self, rows: Iterable[tuple[Any]]) -> list[str]:
        ids = [task_id for (task_id,) in rows]
        self._check_texts(self.events_table_name, ids)
        return ids

    def _entries(self, rows: Iterable[tuple[Any, ...]]) -> list[IndexRow]:
        """Give these rows of the index. Raises StoreCorruptError where one was changed to what no column of it is."""
        entries = [IndexRow(*row) for row in rows]
        for entry in entries:
            self._check_texts("task_index", entry)
        return entries

    def _check_texts(self, table: str, values: Sequence[object]) -> None:
        if bytes in map(type, values):
            (found, *_) = (value for value in values if isinstance(value, bytes))
            message = f"{self.datastore.url}: damaged: {table} has the bytes {found!r:.100} where a text is expected"
            raise StoreCorruptError(f"{message}; all such places are named by: perdure verify", url=self.datastore.url)

    @property
    def _select_ids(self) -> str:
        table = self.events_table_name
        return f"SELECT DISTINCT originator_id FROM {table} WHERE originator_id>? ORDER BY originator_id LIMIT ?"

    @property
    def _delete_events(self) -> str:
        return f"DELETE FROM {self.events_table_name} WHERE originator_id=?"


def _upgrade(found: int) -> list[str]:
    return [*schema.statements_since(found, "sqlite"), f"PRAGMA user_version={schema.SCHEMA}"]


class SQLiteStore(Store):
    """A store in the SQLite file at `path`, made if it is not there; its folder must be.

    Worker locks, the lock for opening and those for turns stand in the folder `<path>.locks` beside it.
    `timeout`: seconds to wait for other processes. Not for network file systems. A process and a child that it
    forks cannot share it.

    With `upgrade=False` a file of an older perdure is left as it is: it can be read, and every write raises
    StoreUnavailableError. Not guaranteed: that it sees all that others write once they have brought it up to date.

    Raises StoreUnavailableError, StoreCorruptError, NewerStoreError; whatever it raises, nothing stays open.
    """

    def __init__(self, path: str, *, timeout: float = BUSY_TIMEOUT, upgrade: bool = True) -> None:
        path = os.path.abspath(path)
        url = f"sqlite:///{path}" + ("" if timeout == BUSY_TIMEOUT else f"?timeout={timeout:g}")
        folder = f"{path}.locks"
        file = SQLiteFile(path, folder, url=url, timeout=timeout)
        recorder = SQLiteRecorder(file)
        with os_errors(url, "open it"):
            _make_folder(folder)
        try:
            # The first to come makes the file; those who come meanwhile would meet it half made, or locked.
            with locked(os.path.join(folder, "open"), timeout=timeout, url=url):
                if file.open():
                    recorder.create_table()
                recorder.select_entry("")  # a file without its first tables is damaged, and nothing is added to it
                if upgrade:
                    recorder.upgrade()
                elif (found := recorder.schema_version()) < schema.SCHEMA:
                    file.only_read(schema.tables_since(found))
        except BaseException:
            file.close()
            raise
        super().__init__(url, recorder, FileWorkers(folder, url=url))
        self._file = file
        self._recorder = recorder

    def hurry(self, *, on: bool) -> None:
        self._file.hurry(on=on)

    def damages(self) -> Iterator[str]:
        recorder = self._recorder
        statements = recorder.construct_create_table_statements()
        return sqlite_care.damages(self._file, statements, is_current=recorder.schema_version() == schema.SCHEMA)

    def empty_journal(self) -> bool:
        return sqlite_care.empty_journal(self._file)

    def prepare_to_write(self) -> None:
        """Have the write-ahead log grow in one go, which takes some milliseconds: see `stores/sqlite_growth.py`."""
        with suppress(StoreError), self._file.aside() as connection:
            grow_log(connection, self._file.path)

    def vacuum(self) -> None:
        super().vacuum()
        sqlite_care.vacuum(self._file)
        sqlite_care.empty_journal(self._file)

    def close(self) -> None:
        try:
            self.workers.close()
        finally:
            self._file.close()


def _make_folder(folder: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(folder)
