"""Who is alive, in PostgreSQL: each worker has a session of its own with an advisory lock, which ends with it."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

from stores.postgres_errors import is_lost, translated
from stores.postgres_links import Link, Links
from stores.postgres_schema import lock_key
from stores.postgres_text import loaded, stored
from stores.postgres_url import Place
from stores.workers import ID, About, WorkerLock, Workers, parsed_about

T = TypeVar("T")

# Exclusive is the lock of a worker; who removes the row of a dead one holds a shared one for that moment.
_HELD = (
    "SELECT l.pid FROM pg_locks l WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.objsubid = 1"
    " AND (l.classid::bigint << 32) | l.objid::bigint = {key}"
)
_IS_HELD = f"SELECT EXISTS ({_HELD.format(key='%s')})"
_LIVE = f"SELECT w.id, w.about, EXISTS ({_HELD.format(key='w.key')}) FROM workers w ORDER BY w.id"
_REMOVE = "DELETE FROM workers WHERE id = %s AND pg_try_advisory_xact_lock_shared(key)"
_SAVE = """INSERT INTO workers (id, key, about) VALUES (%s, %s, %s)
    ON CONFLICT (id) DO UPDATE SET key = excluded.key, about = excluded.about"""
_IS_LISTED = "SELECT 1 FROM workers WHERE id = %s"

# The server notices within some 25 seconds that a worker's machine is gone without a word, and frees what it had.
_WATCHED = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
# Whoever has the lock of a worker that takes it again is its own lost session, of which the server does not know yet.
_END_OTHERS = f"SELECT pg_terminate_backend(h.pid) FROM ({_HELD.format(key='%s')}) h WHERE h.pid <> pg_backend_pid()"


class PostgresWorkers(Workers):
    """A row for each worker, and a session that holds the lock on it.

    The row of a dead worker is removed by whoever finds it. Never is a worker called dead because the server could not
    be asked: that is StoreUnavailableError. Where the server itself has ended the session, by its restart or because
    the network was cut, the worker counts as dead until it takes the lock again, which `keep` does.
    """

    def __init__(self, place: Place, links: Links) -> None:
        self._place = place
        self._links = links
        self._held: set[_WorkerSession] = set()

    def hold(self, worker_id: str, about: About) -> WorkerLock:
        if not ID.fullmatch(worker_id):
            raise ValueError(f"worker id {worker_id!r}: letters, digits, '-' and '_' only, at most 100")
        self._links.check()
        worker = _WorkerSession(worker_id, self._place, self._forget)
        if not worker.begin(about):
            raise ValueError(f"worker id {worker_id!r} is in use")
        self._held.add(worker)
        self._links.owners.add(worker_id)
        return worker

    def _forget(self, worker: "_WorkerSession") -> None:
        self._held.discard(worker)
        self._links.owners.discard(worker.id)

    def is_alive(self, worker_id: str) -> bool:
        if not ID.fullmatch(worker_id):
            return False
        ((alive,),) = self._links.read(_IS_HELD, [lock_key("worker", self._place.schema, worker_id)])
        return bool(alive)

    def live(self) -> dict[str, dict[str, Any]]:
        rows = self._links.read(_LIVE)
        for worker_id, _, alive in rows:
            if not alive:
                self._links.read(f"{_REMOVE} RETURNING 1", [worker_id])
        return {loaded(worker_id): parsed_about(loaded(about).encode()) for worker_id, about, alive in rows if alive}

    def close(self) -> None:
        for worker in list(self._held):
            worker.release()


class _WorkerSession(WorkerLock):
    """The session of one worker. Safe in all threads; once it is let go, `keep` does not make it again."""

    def __init__(self, worker_id: str, place: Place, forget: "Callable[[_WorkerSession], None]") -> None:
        self.id = worker_id
        self._place = place
        self._key = lock_key("worker", place.schema, worker_id)
        self._forget = forget
        self._mutex = threading.Lock()
        self._let_go = False
        self._link = Link(place, exactly=True)

    def begin(self, about: About) -> bool:
        """Take the lock, and list the worker; False where another has it. Raises StoreUnavailableError."""
        try:
            return self._take("SELECT pg_try_advisory_lock(%s)", about)
        except BaseException:
            self._link.close()
            raise

    def _take(self, sql: str, about: About) -> bool:
        def take(connection: psycopg.Connection) -> bool:
            connection.execute(_WATCHED)
            (taken,) = connection.execute(sql, [self._key]).fetchall()[0]
            if taken is False:
                return False
            connection.execute(_SAVE, [stored(self.id), self._key, _said(about)])
            return True

        if self._ask(take):
            return True
        self._link.close()
        return False

    def _ask(self, question: Callable[[psycopg.Connection], T]) -> T:
        try:
            return question(self._link.connection)
        except psycopg.Error as error:
            raise translated(error, self._place.url) from error

    def update(self, about: About) -> None:
        self._link.check()
        with self._mutex:
            self._link.check()
            self._ask(lambda connection: connection.execute(_SAVE, [stored(self.id), self._key, _said(about)]))

    def keep(self, about: About) -> bool:
        if self._is_let_go():
            return True
        with self._mutex:
            if self._is_let_go():
                return True
            try:
                if self._is_listed():
                    return True
                self._link.connection.execute(_SAVE, [stored(self.id), self._key, _said(about)])
            except psycopg.Error as error:
                if not is_lost(error):
                    raise translated(error, self._place.url) from error
                self._begin_anew(about)
            return False

    def _is_let_go(self) -> bool:
        return self._let_go or self._link.forked

    def _is_listed(self) -> bool:
        return bool(self._link.connection.execute(_IS_LISTED, [stored(self.id)]).fetchall())

    def _begin_anew(self, about: About) -> None:
        """Take the lock in a new session. Raises StoreUnavailableError, and the next `keep` tries again."""
        self._link.close()
        self._link = Link(self._place, exactly=True)
        try:
            self._ask(lambda connection: connection.execute(_END_OTHERS, [self._key]))
            self._take("SELECT pg_advisory_lock(%s)", about)
        except BaseException:  # nobody may take a session without the lock for one that has it
            self._link.close()
            raise

    def release(self) -> None:
        self._end(remove=True)

    def abandon(self) -> None:
        self._end(remove=False)

    def _end(self, *, remove: bool) -> None:
        """Unlock by asking for it: a session that is merely closed is gone a moment later."""
        if self._is_let_go():
            return
        with self._mutex:
            if self._is_let_go():
                return
            self._let_go = True
            with suppress(psycopg.Error):
                if remove:
                    self._link.connection.execute("DELETE FROM workers WHERE id = %s", [stored(self.id)])
                self._link.connection.execute("SELECT pg_advisory_unlock_all()")
            self._link.close()
            self._forget(self)


def _said(about: About) -> str:
    return stored(json.dumps(dict(about)))
