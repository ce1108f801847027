"""The store in a PostgreSQL database: the way beyond one machine."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from uuid import UUID

import eventsourcing.postgres as es_postgres
import psycopg
from eventsourcing.persistence import StoredEvent
from psycopg.sql import SQL, Identifier, Literal

from stores import orphans, postgres_care, postgres_emissions, task_index
from stores.emissions import Emission
from stores.orphans import Orphans
from stores.postgres_append import REBUILD, SELECT, Append, Cursor, LostError, Message, Work
from stores.postgres_errors import translated
from stores.postgres_links import Link, Links
from stores.postgres_news import Listener, Tell
from stores.postgres_rows import as_record, as_row, encoded
from stores.postgres_schema import NAMES, VERSION, lock_key, prepare
from stores.postgres_text import loaded, stored
from stores.postgres_url import parsed
from stores.postgres_workers import PostgresWorkers
from stores.recorder import RowOf, TaskRecorder, check_append
from stores.schema import SCHEMA
from stores.store import Store
from stores.task_index import START, Birth, Expected, IndexRow, Place

ROWS_AT_ONCE = 1000
"""Rows of the index that one statement writes in a rebuild."""

# By agent a step into the index. What another transaction is just writing, such as another worker's claim, is passed
# over; it comes with the next look, where that one has left it.
_READY = f"""SELECT {", ".join(f"r.{name}" for name in task_index.COLUMNS)} FROM unnest(%s::text[]) AS known (agent)
    CROSS JOIN LATERAL (
        {SELECT} t WHERE t.agent = known.agent AND t.due <= %s AND (t.due, t.id) > (%s, %s)
        AND (t.owner IS NULL OR t.owner <> ALL (%s::text[])) ORDER BY t.due, t.id LIMIT %s FOR UPDATE SKIP LOCKED
    ) r ORDER BY r.due, r.id LIMIT %s"""
_NEXT_DUE = """SELECT min(first.due) FROM unnest(%s::text[]) AS known (agent)
    CROSS JOIN LATERAL (
        SELECT t.due FROM task_index t WHERE t.agent = known.agent AND t.due > %s ORDER BY t.due LIMIT 1
    ) first"""
_HELD = f"{SELECT} WHERE hold = %s AND (held_since, id) > (%s, %s) ORDER BY held_since, id LIMIT %s"
_EVENTS = "SELECT originator_id, originator_version, topic, state FROM stored_events WHERE originator_id = %s"
_IDS = "SELECT DISTINCT originator_id FROM stored_events WHERE originator_id > %s ORDER BY originator_id LIMIT %s"
_PAGE = f"{SELECT} WHERE id > %s ORDER BY id LIMIT %s"
_DELETE = "DELETE FROM task_index WHERE id = %s AND birth = %s AND head = %s"
_DELETE_REST = (
    "DELETE FROM stored_events WHERE originator_id = %s",
    "DELETE FROM heartbeats WHERE task_id = %s",
    "DELETE FROM emissions WHERE task_id = %s",
)
_SAVE_HEARTBEAT = """INSERT INTO heartbeats AS h (task_id, path, birth, attempt, detail) VALUES ({}, {}, {}, {}, {})
    ON CONFLICT (task_id, path) DO UPDATE SET birth = excluded.birth, attempt = excluded.attempt,
    detail = excluded.detail WHERE h.birth <> excluded.birth OR h.attempt <= excluded.attempt"""
_HEARTBEAT = "SELECT attempt, detail FROM heartbeats WHERE task_id = %s AND birth = %s AND path = %s"
_SAVE_BEAT = """INSERT INTO beats (worker, count, lease) VALUES (%s, %s, %s)
    ON CONFLICT (worker) DO UPDATE SET count = excluded.count, lease = excluded.lease
    RETURNING worker"""


class PostgresRecorder(es_postgres.PostgresAggregateRecorder, TaskRecorder):
    """The library's table of events (keyed by id and version, no numbers across tasks) and the index beside it.

    There is no lock on a table, so that processes do not take turns; nothing here tails the log by a number.

    Guarantee: what an append returned from survives the death of the process and of the server, as far as the server
    keeps what it has flushed, and a standby what it was told to wait for.
    """

    datastore: Links  # in the place of the library's

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
        append = Append(stored_events, entry, expected, inside, births)
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
        append = Append(stored_events, entry, expected, inside, births)
        self.datastore.submit(append, done, append.size)

    def update_index(self, entry: IndexRow, *, expected: tuple[str, int]) -> None:
        self.datastore.write(Append((), entry, expected))

    def rebuild_index(self, row_of: RowOf) -> list[IndexRow]:
        entries: list[IndexRow] = []

        def rebuild(cursor: Cursor) -> None:
            entries.clear()
            cursor.execute("LOCK TABLE task_index IN EXCLUSIVE MODE")
            old = {row.id: row for row in map(as_row, cursor.execute(SELECT).fetchall())}
            ids = [loaded(task_id) for (task_id,) in cursor.execute(_IDS, ["", None]).fetchall()]
            entries.extend(entry for task_id in ids if (entry := row_of(task_id, old.get(task_id))) is not None)
            cursor.execute("DELETE FROM task_index")
            for start in range(0, len(entries), ROWS_AT_ONCE):
                some = [as_record(entry) for entry in entries[start : start + ROWS_AT_ONCE]]
                cursor.execute(REBUILD, [encoded(some)])

        self.datastore.write(Work(rebuild))
        return entries

    def delete_task(self, task_id: str, *, expected: tuple[str, int]) -> None:
        def delete(cursor: Cursor) -> None:
            birth, head = expected
            if not cursor.execute(_DELETE, [stored(task_id), stored(birth), head]).rowcount:
                raise LostError(task_id, expected)
            for statement in _DELETE_REST:
                cursor.execute(statement, [stored(task_id)])

        self.datastore.write(Work(delete, [task_id]))

    def delete_orphans(self) -> int:
        deleted = 0

        def delete(cursor: Cursor) -> None:
            nonlocal deleted
            deleted = sum(cursor.execute(statement).rowcount for statement in orphans.delete(self.events_table_name))

        if self.select_orphans():
            self.datastore.write(Work(delete))
        return deleted

    def select_orphans(self) -> list[Orphans]:
        rows = self.datastore.read(orphans.select(self.events_table_name))
        return [Orphans(table, loaded(task_id), loaded(birth), count) for table, task_id, birth, count in rows]

    def schema_version(self) -> int:
        ((version,),) = self.datastore.read(VERSION)
        return int(version)

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        sql = _EVENTS
        params: list[object] = [stored(str(originator_id))]
        for condition, bound in (("originator_version > %s", gt), ("originator_version <= %s", lte)):
            if bound is not None:
                sql, params = f"{sql} AND {condition}", [*params, bound]
        sql += f" ORDER BY originator_version {'DESC' if desc else 'ASC'} LIMIT %s"
        rows = self.datastore.read(sql, [*params, limit], binary=True)
        return [StoredEvent(loaded(task_id), version, loaded(topic), state) for task_id, version, topic, state in rows]

    def _rows(self, sql: str, params: Sequence[object]) -> list[IndexRow]:
        return [as_row(row) for row in self.datastore.read(sql, params)]

    def select_entry(self, task_id: str) -> IndexRow | None:
        rows = self._rows(f"{SELECT} WHERE id = %s", [stored(task_id)])
        return rows[0] if rows else None

    def select_rows(self, ids: Collection[str]) -> dict[str, IndexRow]:
        if not ids:
            return {}
        return {row.id: row for row in self._rows(f"{SELECT} WHERE id = ANY(%s)", [[*map(stored, ids)]])}

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
        terms: list[tuple[str, list[object]]] = [
            (f"{column} = ANY(%s::text[])", [[*map(stored, chosen)]])
            for column, chosen in choices
            if chosen is not None
        ]
        if prefix is not None:
            condition, bounds = task_index.begins_with(stored(prefix))
            terms.append((condition.replace("?", "%s"), bounds))
        if after is not None:
            terms.append(("updated > %s", [after]))
        conditions = " AND ".join(["TRUE", *(condition for condition, _ in terms)])
        params = [value for _, values in terms for value in values]
        sql = f"{SELECT} WHERE {conditions} ORDER BY created DESC, id DESC LIMIT %s"
        return self._rows(sql, [*params, limit])[::-1]

    def select_page(self, *, after: str = "", limit: int) -> list[IndexRow]:
        return self._rows(_PAGE, [stored(after), limit])

    def select_held(self, hold: str, *, after: Place = START, limit: int) -> list[IndexRow]:
        return self._rows(_HELD, [stored(hold), after[0], stored(after[1]), limit])

    def select_ready(
        self,
        now: float,
        *,
        agents: Collection[str],
        busy_owners: Collection[str],
        after: Place = START,
        limit: int,
    ) -> list[IndexRow]:
        known, busy = [*map(stored, set(agents))], [*map(stored, busy_owners)]
        if not known:
            return []
        return self._rows(_READY, [known, now, after[0], stored(after[1]), busy, limit, limit])

    def next_due(self, after: float, *, agents: Collection[str]) -> float | None:
        ((due,),) = self.datastore.read(_NEXT_DUE, [[*map(stored, set(agents))], after])
        return None if due is None else float(due)

    def _say(self, sql: str, *params: object) -> None:
        self.datastore.write(Message(SQL(sql).format(*map(Literal, params))))

    def save_heartbeat(self, task_id: str, birth: str, path: str, attempt: int, detail: str) -> None:
        self._say(_SAVE_HEARTBEAT, stored(task_id), stored(path), stored(birth), attempt, stored(detail))

    def select_heartbeat(self, task_id: str, birth: str, path: str) -> tuple[int, str] | None:
        rows = self.datastore.read(_HEARTBEAT, [stored(task_id), stored(birth), stored(path)])
        return (rows[0][0], loaded(rows[0][1])) if rows else None

    def delete_heartbeats(self, task_id: str, path: str | None = None) -> None:
        if path is None:
            self._say("DELETE FROM heartbeats WHERE task_id = {}", stored(task_id))
        else:
            self._say("DELETE FROM heartbeats WHERE task_id = {} AND path = {}", stored(task_id), stored(path))

    def save_emissions(self, task_id: str, birth: str, rows: Sequence[Emission]) -> None:
        message = Message(postgres_emissions.saving(task_id, birth, rows), [task_id])
        self.datastore.write(message, sum(len(row.value) for row in rows))

    def select_emissions(
        self, task_id: str, birth: str, *, after: tuple[int, int] = (0, 0), upto: int, limit: int
    ) -> list[Emission]:
        rows = self.datastore.read(postgres_emissions.SELECT, [stored(task_id), stored(birth), *after, upto, limit])
        return [postgres_emissions.as_emission(row) for row in rows]

    def delete_emissions(self, task_id: str) -> None:
        self._say("DELETE FROM emissions WHERE task_id = {}", stored(task_id))

    def save_beat(self, worker: str, count: int, lease: float) -> None:
        # Beside the other writes, so that a worker seems dead by nobody's lock; done twice it is the same.
        self.datastore.read(_SAVE_BEAT, [stored(worker), count, lease])

    def select_beats(self) -> dict[str, tuple[int, float]]:
        rows = self.datastore.read("SELECT worker, count, lease FROM beats")
        return {loaded(worker): (count, lease) for worker, count, lease in rows}

    def delete_beat(self, worker: str) -> None:
        self.datastore.read("DELETE FROM beats WHERE worker = %s RETURNING worker", [stored(worker)])

    def select_ids(self, *, after: str = "", limit: int | None = None) -> list[str]:
        return [loaded(task_id) for (task_id,) in self.datastore.read(_IDS, [stored(after), limit])]


class PostgresStore(Store):
    """A store in the PostgreSQL database that the URL names, in a schema of its own, made if it is not there.

    `url` is that without a password: another process opens the same with it where libpq finds the password by itself
    (PGPASSWORD, a password file). Processes on any machine may share it. A process and a child that it forks cannot.

    Raises InvalidStoreURLError, StoreUnavailableError, StoreCorruptError, NewerStoreError; whatever it raises, nothing
    stays open.
    """

    def __init__(self, url: str, *, make: bool = True) -> None:
        place = parsed(url)
        channel = f"perdure_{lock_key('news', place.schema) & (1 << 64) - 1:016x}"
        links = Links(place, channel)
        opening: Link | None = None
        try:
            opening = Link(place, writes=True)
            prepare(opening.connection, place.schema, place.url, make=make)
            links.begin(opening)
        except BaseException as error:
            for each in (opening, links):
                if each is not None:
                    each.close()
            if isinstance(error, psycopg.Error):
                raise translated(error, place.url) from error
            raise
        super().__init__(place.url, PostgresRecorder(links), PostgresWorkers(place, links))
        self._links = links
        self._channel = channel
        self._listeners: list[Listener] = []

    def damages(self) -> Iterator[str]:
        is_current = self.recorder.schema_version() == SCHEMA
        link = self._links.aside()
        try:
            yield from postgres_care.damages(link.connection, self._links.schema, self.url) if is_current else ()
        except psycopg.Error as error:
            raise translated(error, self.url) from error
        finally:
            link.close()

    def vacuum(self) -> None:
        """Delete orphans, and write the tables anew: the text of what was deleted is in none of their files.

        It takes its time, and as much room again meanwhile; of the table that it is at others neither read nor write.
        Not guaranteed: anything about the server's write-ahead log, its archives, standbys and backups.

        Raises StoreUnavailableError where somebody is in the way for longer than the time-out, or the role may not;
        then nothing is lost, and it can be called again.
        """
        super().vacuum()
        link = self._links.aside()
        try:
            for name in NAMES:
                link.connection.execute(SQL("VACUUM (FULL) {}").format(Identifier(name)))
            with suppress(psycopg.errors.InsufficientPrivilege):
                link.connection.execute("CHECKPOINT")  # the old files go with it, which else would be a little later
        except psycopg.Error as error:
            raise translated(error, self.url) from error
        finally:
            link.close()

    def listen(self, tell: Tell) -> Callable[[], None]:
        self._links.check()
        listener = Listener(self._links, self._channel, tell)
        self._listeners.append(listener)
        return listener.close

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        try:
            self.workers.close()
        finally:
            self._links.close()
