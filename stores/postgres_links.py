"""Connections to PostgreSQL: one that writes, a few that read, all of the process that opened them.

The library's pool is not used: it has three threads of its own, which no fork survives; it hands out a link that the
server has closed long ago; and what runs on it is run again after an error, though it may be stored already. Here a
link is looked at before it is used, a read is done again on a fresh one where its own was cut, and a write never.
"""

import ctypes
import math
import os
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn

import eventsourcing.postgres as es_postgres
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import Identifier

from stores.errors import StoreError, StoreUnavailableError
from stores.group_commit import GroupCommit, Verdict
from stores.lifetime import Resource, guard
from stores.postgres_append import Message, Request, Transaction
from stores.postgres_errors import is_lost, translated
from stores.postgres_locked import WAIT, Around, Ask, LockedError, Shelf
from stores.postgres_url import Place

_SESSION = "SELECT set_config('search_path', %s, false), set_config('lock_timeout', %s, false)"
_LOCK_WAIT = "SELECT set_config('lock_timeout', %s, false)"
# Rows are found by key, whatever statistics say of a table that was small a moment ago.
_ALWAYS = "SET default_transaction_isolation = 'read committed'; SET enable_seqscan = off; SET jit = off"
_READS = "SET synchronous_commit = off"  # what only reads waits for no disk
_WRITES = """
    SET plan_cache_mode = force_generic_plan; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET idle_in_transaction_session_timeout = '5s';
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off', 'local')
"""
# What a commit has said is on the disk, whatever the database's own default; a stronger one stays. Of a process that is
# frozen in the middle of a transaction the server lets go, so that its locks are in nobody's way.


class Link(Resource):
    """One connection. A child made by fork closes its copy without a word to the server, and never uses it.

    `connection`: psycopg's own, in autocommit.
    """

    connection: psycopg.Connection

    def __init__(
        self,
        place: Place,
        *,
        writes: bool = False,
        exactly: bool = False,
        patience: float | None = None,
        wait: float | None = None,
    ) -> None:
        """Connect. `exactly`: no fork happens meanwhile, so that no child keeps the session alive.

        `patience`: seconds to wait for an answer, by default twice the time-out, which the server itself may use up.
        `wait`: seconds to wait for a lock, by default the time-out.

        Raises StoreUnavailableError.
        """
        self._patience = 2 * place.timeout if patience is None else patience
        self._wait = place.timeout if wait is None else wait
        super().__init__(place.url)
        self._place = place
        self.used = monotonic()
        try:
            if exactly:
                with guard:
                    self.connection = self._connected()
            else:
                self.connection = self._connected()
            self._begin(writes)
        except psycopg.Error as error:
            self.close()
            raise translated(error, place.url) from error
        except BaseException:
            self.close()
            raise

    def _connected(self) -> "_Patient":
        connection = _Patient.connect(**self._place.libpq, autocommit=True, prepare_threshold=1)
        connection.patience = self._patience
        return connection

    def _begin(self, writes: bool) -> None:
        path = Identifier(self._place.schema).as_string(self.connection)
        self.connection.execute(_SESSION, [path, f"{max(1, round(self._wait * 1000))}ms"])
        self.connection.execute(f"{_ALWAYS}; {_WRITES if writes else _READS}")

    def is_sound(self) -> bool:
        """Tell whether the link may be used: not idle for too long, and nothing unasked for has come meanwhile.

        What the server says unasked is mostly that it goes.
        """
        if self.connection.closed or monotonic() - self.used > self._place.idle:
            return False
        return not _is_readable(self.connection.fileno())

    def close(self) -> None:
        """Close the connection, if it is ours and open."""
        if not self.forked and not self.closed:
            self.closed = True
            with suppress(AttributeError, psycopg.Error):
                self.connection.close()

    def abandon(self) -> None:
        """Close the child's copy of the socket, and put nothing in its place that could be written to.

        psycopg's object must not end: it would speak to the server in the parent's name.
        """
        super().abandon()
        with suppress(AttributeError, psycopg.Error, OSError):
            connection = self.connection
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, connection.fileno())
            os.close(nothing)


class Links(Resource, es_postgres.PostgresDatastore):
    """The connections of one store, in the place of the library's datastore.

    Guarantee: a write that returned is on the server's disk (`synchronous_commit` at least `on`), and one that raised
    is not stored, but where its error says `unknown_fate`. A read sees the last commit of any process.
    """

    def __init__(self, place: Place, channel: str) -> None:
        self.place = place
        self.schema = place.schema
        self.originator_id_type = "text"
        self.single_row_tracking = True
        self.enable_db_functions = False
        self.lock_timeout = 0
        self.db_type_names = set()
        self.psycopg_type_adapters = {}
        self.psycopg_python_types = {}
        self._writer: Link | None = None
        self._free: list[Link] = []
        self._mutex = threading.Lock()
        self._returned = threading.Condition(self._mutex)
        self._lent = 0
        self._may_read = threading.Semaphore(place.readers)
        self._commits: GroupCommit[Ask] = GroupCommit(self._transact, url=place.url)
        self._lock_wait = min(WAIT, place.timeout)
        self._around = Around(place.url, self._lock_wait)
        self._shelf = Shelf()
        self._channel = channel
        self.owners: set[str] = set()
        """The workers of this process: what they do with their own tasks is no news to other processes."""
        self.writers: set[int] = set()
        """By what number the server knows who writes here: what that says, others are meant to hear."""
        Resource.__init__(self, place.url)

    def register_type_adapters(self) -> None:
        """Do nothing: no composite type of the library is used."""

    def begin(self, opening: Link) -> None:
        """Take the link of the opening for what is written, and make one that reads: with fewer there is no store.

        Raises StoreUnavailableError.
        """
        opening.connection.execute(_LOCK_WAIT, [f"{max(1, round(self._lock_wait * 1000))}ms"])
        self._writer = opening
        self.writers = {opening.connection.info.backend_pid}
        self._free.append(Link(self.place))

    # ------------------------------------------------------------------ writing

    def write(self, request: Request | Message, size: int = 0) -> None:
        """Do what is asked in a transaction, with what others write meanwhile; its error is its own.

        Where another session has locked what it needs, it alone waits, up to the time-out.

        Raises AppendConflictError, StoreError, the library's IntegrityError, and what the request itself raises.
        """
        self.check()
        ask = Ask(request, self.place.timeout)
        while True:
            try:
                return self._commits.do(ask, size)
            except LockedError as error:
                pause = ask.pause()
                if pause is None or self._shelf.closing.wait(pause):
                    raise ask.final(error) from error

    def submit(self, request: Request | Message, done: Callable[[Verdict], object], size: int = 0) -> None:
        """Do the same for who does not wait; see `GroupCommit.submit`."""
        self.check()
        ask = Ask(request, self.place.timeout)

        def told(verdict: Verdict) -> None:
            if not isinstance(verdict, LockedError):
                done(verdict)
                return
            pause = ask.pause()
            if pause is None or not self._shelf.put(pause, again):
                done(ask.final(verdict))

        def again() -> None:
            try:
                self._commits.submit(ask, told, size)
            except StoreError as error:
                done(error)

        self._commits.submit(ask, told, size)

    def _transact(self, asks: Sequence[Ask]) -> Sequence[Verdict]:
        self.check()
        link = self._writing()

        def transaction() -> Transaction:
            return Transaction(link.connection, self.url, self._channel, self.owners)

        try:
            return self._around.run(link.connection, transaction, asks)
        finally:
            self._end(link)

    def _writing(self) -> Link:
        link = self._writer
        if link is None or not link.is_sound():
            self._writer = None
            if link is not None:
                link.close()
            link = self._writer = Link(self.place, writes=True, wait=self._lock_wait)
            self.writers = {link.connection.info.backend_pid}
        return link

    def _end(self, link: Link) -> None:
        """See that no transaction is left open; a link on which that cannot be done is replaced by the next."""
        link.used = monotonic()
        connection = link.connection
        try:
            status = connection.info.transaction_status
            if status == TransactionStatus.ACTIVE:  # whose answer has not come, and would be taken for the next's
                link.close()
            elif status != TransactionStatus.IDLE:
                connection.rollback()
        except psycopg.Error:
            link.close()
        if connection.closed:
            self._writer = None

    def aside(self) -> Link:
        """Give a link for what is done now and then, outside every transaction; who asks for it closes it."""
        self.check()
        return Link(self.place, writes=True, patience=math.inf)

    # ------------------------------------------------------------------ reading

    def read(self, sql: str, params: Sequence[object] = (), *, binary: bool = False) -> list[Any]:
        """Give the rows of one statement, as of the last commit of any process; it may be done twice.

        Raises StoreError.
        """
        self.check()
        if not self._may_read.acquire(timeout=self.place.timeout):
            reason = f"all {self.place.readers} connections that read were in use for {self.place.timeout:g} s"
            raise StoreUnavailableError(f"{self.url}: {reason}", url=self.url, reason=reason)
        try:
            link = self._reading()
            try:
                return self._read(link, sql, params, binary)
            except psycopg.Error as error:
                if isinstance(error, _NoAnswer) or not is_lost(error):
                    raise
            finally:
                self._unlend()
            return self._read(Link(self.place), sql, params, binary)
        except psycopg.Error as error:
            raise translated(error, self.url) from error
        finally:
            self._may_read.release()

    def _reading(self) -> Link:
        """Lend a link: one that is free, a new one, or, where none can be had, the next that comes back."""
        while True:
            with self._mutex:
                link = self._free.pop() if self._free else None
                self._lent += 1
            try:
                if link is None:
                    return Link(self.place)
                if link.is_sound():
                    return link
                link.close()
            except StoreUnavailableError:
                self._unlend()
                if not self._comes_back():
                    raise
            except BaseException:
                self._unlend()
                raise
            else:
                self._unlend()

    def _unlend(self) -> None:
        with self._returned:
            self._lent -= 1
            self._returned.notify_all()

    def _comes_back(self) -> bool:
        """Wait for a link that is lent; False where none is, or none has come in time."""
        with self._returned:
            self._returned.wait_for(lambda: self._free or not self._lent, self.place.timeout)
            return bool(self._free)

    def _read(self, link: Link, sql: str, params: Sequence[object], binary: bool) -> list[Any]:
        try:
            rows = link.connection.execute(sql, params, prepare=True, binary=binary).fetchall()
        except psycopg.Error:
            self._give_back(link)
            raise
        except BaseException:  # interrupted in the middle: what comes next on it may be the answer to this
            link.close()
            raise
        self._give_back(link)
        return rows

    def _give_back(self, link: Link) -> None:
        link.used = monotonic()
        with self._mutex:
            if not self.closed and link.connection.info.transaction_status == TransactionStatus.IDLE:
                self._free.append(link)
                return
        link.close()

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Close all connections, after all that was begun. May be called again; does nothing in a forked child."""
        if self.forked:
            return
        self._shelf.closing.set()
        self._commits.close()
        self._shelf.close()
        with self._mutex:
            self.closed = True
            links, self._free = self._free, []
        for link in (self._writer, *links):
            if link is not None:
                link.close()

    def __del__(self) -> None:
        """Do nothing: who has opened a store closes it, and a process that ends lets go of its connections."""

    def get_connection(self) -> NoReturn:
        """Refuse: the library's own way in. Use `write` and `read`."""
        raise NotImplementedError("Links has write() and read() in place of the library's connections")

    def transaction(self, *, commit: bool = False) -> NoReturn:
        """Refuse: the library's own way in. Use `write` and `read`."""
        raise NotImplementedError("Links has write() and read() in place of the library's transactions")


class _NoAnswer(psycopg.OperationalError):
    """Raised where the server has said nothing for too long: it, or what is between, stands still."""


class _Patient(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for an answer for `patience` seconds, and then says so."""

    patience = math.inf

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        limit = self.patience if timeout is None and math.isfinite(self.patience) else timeout
        began = monotonic()
        try:
            return super().wait(gen, interval=interval, timeout=limit)
        except psycopg.OperationalError as error:
            if timeout is None and monotonic() - began >= self.patience:
                raise _NoAnswer(f"no answer within {self.patience:g} s") from error
            raise


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
