"""One SQLite file, one connection that writes and one that reads: the library's datastore without its pool.

The library's pool begins transactions deferred, lets a blocked writer block readers, and loses its writer
lock when a connection cannot be made. Here a write is `BEGIN IMMEDIATE … COMMIT` on the one writer
connection, a read is one statement outside any transaction on the other: it sees the last commit and waits
for none.
"""

import ctypes
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from time import monotonic
from typing import Any, NoReturn
from urllib.parse import quote

import eventsourcing.sqlite as es_sqlite

from stores.errors import StoreCorruptError, StoreError, StoreUnavailableError
from stores.group_commit import GroupCommit, Verdict
from stores.lifetime import Resource, forked_error, inherited
from stores.schema import check_schema
from stores.sqlite_append import INTERRUPTS, Missed, fold
from stores.sqlite_errors import translated
from stores.turns import PATIENCE, Turns

APPLICATION_ID = 0x50455244  # "PERD", in the file's header

PAGE_SIZE = 2048
"""Bytes of a page in a new file: half of SQLite's own, since a small append writes two or three whole pages."""

SLICE = 0.25
"""Seconds that one wait for another process lasts: between two, a system that has to leave is listened to."""

Work = Callable[[sqlite3.Cursor], object]
"""What is done in a transaction."""


class SQLiteFile(Resource, es_sqlite.SQLiteDatastore):
    """The two connections, and whose turn it is.

    Guarantee: a transaction that returned is on the disk (WAL, `synchronous=FULL`, on macOS `fullfsync`);
    one that raised is rolled back and leaves neither lock nor open transaction. Not guaranteed: the fate of
    a commit that itself failed (`StoreUnavailableError.unknown_fate`). `timeout`: seconds to wait for other
    processes. `folder`: where those that write the file keep the locks by which they take turns.
    """

    def __init__(self, path: str, folder: str, *, url: str, timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        self.originator_id_type = "text"
        self.single_row_tracking = True
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._commits: GroupCommit[Work] = GroupCommit(self._transact, url=url, prepare=self._begin)
        self._read_lock = threading.Lock()
        self._turns = Turns(folder)
        self.hurried = False
        self._borrowed: tuple[str, ...] | None = None
        Resource.__init__(self, url)

    def open(self) -> bool:
        """Open the writer, and say whether the file is new and wants its tables.

        Only one process at a time may be here, and it has to make the tables before it lets the next one in.
        Raises StoreCorruptError and NewerStoreError without having changed a byte of the file, and
        StoreForkedError where a parent had it open: SQLite keeps a table of locks for each process, and a child
        finds its parent's in there, which it does not have.
        """
        if any(isinstance(one, SQLiteFile) and _same(one.path, self.path) for one in inherited()):
            raise forked_error(self.url)
        with self._errors():
            left_over = _size(self.path + "-wal") > 0
            if left_over and not _size(self.path):
                message = (
                    f"{self.url}: the database is missing or empty, but its write-ahead log {self.path}-wal is there:"
                    " put the database back, or move that file away too to begin anew"
                )
                raise StoreCorruptError(message, url=self.url)
            self._writer = self._connect("rwc")
            try:
                is_new = self._is_new(self._writer)
            except StoreError:
                self._close_unchanged(left_over)
                raise
            if is_new:
                self._writer.execute(f"PRAGMA page_size={PAGE_SIZE}")
            (mode,) = self._writer.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                reason = f"no write-ahead log on this file system (journal mode {mode!r})"
                raise StoreUnavailableError(f"{self.url}: {reason}", url=self.url, reason=reason)
            return is_new

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{quote(os.fsencode(self.path))}?mode={mode}"
        patience = min(self.timeout, SLICE)
        connection = sqlite3.connect(uri, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA secure_delete=ON").fetchall()  # what is deleted is overwritten
            if sys.platform == "darwin":
                connection.execute("PRAGMA fullfsync=1")
            if self._borrowed is not None:
                for statement in self._borrowed:
                    connection.execute(statement)
                connection.execute("PRAGMA query_only=ON").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def only_read(self, tables: Iterable[str]) -> None:
        """Change nothing in the file from now on. `tables`: what makes, for a connection alone, those it has not."""
        with self._read_lock:
            self._borrowed = tuple(tables)
            self._close_connections()

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        def ask(sql: str) -> int:
            return int(connection.execute(sql).fetchall()[0][0])

        application, schema = ask("PRAGMA application_id"), ask("PRAGMA user_version")
        if (application, schema) == (0, 0) and not ask("SELECT count(*) FROM sqlite_master"):
            return True
        if application != APPLICATION_ID:
            message = f"{self.url}: an SQLite file of another program (application id {application}), left as it is"
            raise StoreCorruptError(message, url=self.url)
        check_schema(schema, self.url)
        return False

    def _close_unchanged(self, left_over: bool) -> None:
        """Close a file that is not ours to change.

        The last to close would move a write-ahead log that was left over into the file, unless it can only read.
        """
        with suppress(sqlite3.Error):
            if left_over:
                self._reader = self._connect("ro")
                self._reader.execute("PRAGMA user_version").fetchall()
        self._close_connections(writer_first=True)

    def write(self, work: Work, size: int = 0) -> None:
        """Do the work in a transaction, with what others write meanwhile; whatever comes out of it undoes it alone.

        `size`: bytes that it writes, about. The work is done on the thread of any who writes, may be done again in a
        further transaction where that one was rolled back, and must not write to this store itself: it has the turn,
        and would wait for it.
        """
        self.check()
        self._commits.do(work, size)

    def submit(self, work: Work, done: Callable[[Verdict], object], size: int = 0) -> None:
        """Do the same for who does not wait; see `GroupCommit.submit`."""
        self.check()
        self._commits.submit(work, done, size)

    def _begin(self) -> None:
        """Begin a transaction, when it is this process's turn."""
        self.check()
        try:
            if self._writer is None:
                self._writer = self._connect("rw")
            if self._writer.in_transaction:  # of a thread that was interrupted before it wrote anything
                self._writer.rollback()
            self._turns.take(min(self.timeout, PATIENCE))
            self._begin_immediate()
        except BaseException as error:
            self._leave_read_only(error)
            self._end()
            if isinstance(error, sqlite3.Error):
                raise translated(error, self.url) from error
            raise

    def _begin_immediate(self) -> None:
        started = monotonic()
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                waits = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY and not self.hurried
                if not waits or monotonic() - started >= self.timeout:
                    raise
            else:
                return

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._writer is None:
            reason = "the connection was lost"
            raise StoreUnavailableError(f"{self.url}: {reason}", url=self.url, reason=reason)
        return self._writer

    def _transact(self, works: Sequence[Work]) -> Sequence[Verdict]:
        """Do all works and commit; where one has to be undone alone, all are done again, each in a savepoint."""
        try:
            try:
                return self._attempt(works, _plainly)
            except _Undo as undo:
                self._roll_back()
                if len(works) == 1:
                    return [undo.error]
            except (Missed, sqlite3.IntegrityError):
                self._roll_back()
            self._begin_immediate()
            return self._attempt(works, _apart)
        except (sqlite3.Error, StoreUnavailableError) as error:
            self._leave_read_only(error)
            if isinstance(error, sqlite3.Error):
                raise translated(error, self.url) from error
            raise
        finally:
            self._end()

    def _attempt(self, works: Sequence[Work], do: Callable[[Work, sqlite3.Cursor, str], Verdict]) -> Sequence[Verdict]:
        # Closed: an error that somebody keeps has the cursor in its traceback, and a connection stays open as long as
        # one of its cursors has a statement.
        with closing(self._connection.cursor()) as cursor:
            done = fold(cursor, works) if len(works) > 1 and do is _plainly else ()
            verdicts = [None if place in done else do(work, cursor, self.url) for place, work in enumerate(works)]
            try:
                cursor.execute("COMMIT")
            except sqlite3.Error as error:
                raise translated(error, self.url, committing=True) from error
            return verdicts

    def _leave_read_only(self, error: BaseException) -> None:
        """Let the next write have new connections: those made while the file could not be written stay read-only."""
        if getattr(error.__cause__ or error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
            with self._read_lock:
                self._close_connections()

    def _end(self) -> None:
        """Let go of the turn, and of what was not committed."""
        self._roll_back()
        self._turns.give()

    def _roll_back(self) -> None:
        """End the transaction, if any; a connection that cannot even do that is replaced by a new one."""
        writer = self._writer
        try:
            if writer is not None and writer.in_transaction:
                writer.execute("ROLLBACK")
        except sqlite3.Error:
            self._writer = None
            if writer is not None:
                writer.close()

    def read(self, sql: str, params: Sequence[object] = ()) -> list[Any]:
        """Give the rows of one statement, as of the last commit of any process.

        Read to its end at once: a statement that is not would keep the reader at an old snapshot.
        """
        self.check()
        with self._read_lock, self._errors():
            self.check()
            if self._reader is None:
                self._reader = self._connect("ro")
            return self._reader.execute(sql, params).fetchall()

    @contextmanager
    def aside(self) -> Iterator[sqlite3.Connection]:
        """Give a connection of its own for the block: for what is done outside all transactions."""
        self.check()
        with self._errors(), closing(self._connect("rw")) as connection:
            yield connection

    def transaction(self, *, commit: bool) -> NoReturn:
        """Refuse: the library's own way in. Use `write` and `read`."""
        raise NotImplementedError("SQLiteFile has write() and read() in place of the library's transactions")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translated(error, self.url) from error

    def hurry(self, *, on: bool) -> None:
        """Let nothing wait for another process any more, while `on`. Does nothing in a forked child."""
        if not self.forked:
            self.hurried = on
            self._turns.hurry(on=on)

    def close(self) -> None:
        """Close both connections, after all that was begun. May be called again; does nothing in a forked child."""
        if not self.forked:
            self.hurry(on=True)
            self._commits.close()
            with self._read_lock:
                self.closed = True
                self._close_connections()
                self._turns.close()

    def __del__(self) -> None:
        """Close what nobody has closed; nothing while the interpreter ends.

        Its threads end wherever they are then, a lock in their hands, and who waits for that waits for ever. The
        process lets go of files and locks by itself.
        """
        if not self.closed and not sys.is_finalizing():
            self.close()

    def _close_connections(self, *, writer_first: bool = False) -> None:
        order = ("_writer", "_reader") if writer_first else ("_reader", "_writer")
        for name in order:
            connection = getattr(self, name)
            setattr(self, name, None)
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()

    def abandon(self) -> None:
        """Never let the child close the connections: that alone can harm the parent, or hang.

        See "How to corrupt an SQLite database file", 2.6. Closing is what the end of an object does, so it
        must not end.
        """
        super().abandon()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


class _Undo(Exception):  # noqa: N818  it says what to do
    """One of several has written something, and failed: it has to be undone alone."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _plainly(work: Work, cursor: sqlite3.Cursor, url: str) -> Verdict:
    """Do one work; its error is its own where it has written nothing, and the transaction is still there."""
    before = cursor.connection.total_changes
    try:
        work(cursor)
    except INTERRUPTS:
        raise
    except BaseException as error:
        verdict = _own(error, cursor, url)
        if cursor.connection.total_changes != before:
            raise _Undo(verdict) from None
        return verdict
    return None


def _apart(work: Work, cursor: sqlite3.Cursor, url: str) -> Verdict:
    """Do one work in a savepoint of its own, to which it is undone where it fails."""
    verdict: Verdict = None
    cursor.execute("SAVEPOINT one")
    try:
        work(cursor)
    except INTERRUPTS:
        raise
    except BaseException as error:
        verdict = _own(error, cursor, url)
        cursor.execute("ROLLBACK TO one")
    cursor.execute("RELEASE one")
    return verdict


def _own(error: BaseException, cursor: sqlite3.Cursor, url: str) -> BaseException:
    """Give the error of one work alone; an error that ends the transaction, or will meet the next too, is raised."""
    if not isinstance(error, sqlite3.Error):
        return error
    mine = translated(error, url)
    mine.__cause__ = error
    if isinstance(mine, StoreUnavailableError) or not cursor.connection.in_transaction:
        raise mine
    return mine


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
