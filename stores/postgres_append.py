"""What is written to PostgreSQL in one transaction: appends of many tasks in one statement, all else beside it.

A statement is a transaction by itself, and so a whole batch of appends is one trip to the server and back. It locks the
index rows in the order of their ids, as every such statement does, sets those that are as expected, and logs the events
of these alone: who loses costs the others nothing.
"""

from binascii import b2a_base64
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import eventsourcing.persistence as library
import psycopg
from eventsourcing.persistence import StoredEvent
from psycopg.sql import SQL, Composable, Literal

from stores.errors import AppendConflictError
from stores.group_commit import Verdict
from stores.postgres_errors import translated
from stores.postgres_rows import as_record, as_row, encoded
from stores.postgres_schema import kind
from stores.postgres_text import loaded, stored
from stores.task_index import COLUMNS, Birth, Expected, IndexRow

Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]

_ALL = ", ".join(COLUMNS)
SELECT = f"SELECT {_ALL} FROM task_index"
LOCK = "SELECT id FROM task_index WHERE id = ANY(%s) ORDER BY id FOR UPDATE"
_LOCK_NOW = "SELECT id FROM task_index WHERE id = ANY({}::text[]) ORDER BY id FOR UPDATE"
_HURRY = "SELECT set_config('lock_timeout', '20ms', true)"  # until the end of the transaction
_SOME = f"{SELECT} WHERE id = ANY(%s)"
_RECORD = ", ".join(f"{name} {kind(name)}" for name in COLUMNS)
_WANT = f"SELECT * FROM json_to_recordset(%s::json) AS w ({_RECORD}, born text, seen bigint, events json)"
_LOCKED = (
    "SELECT w.* FROM want w JOIN task_index t ON t.id = w.id WHERE w.born IS NOT NULL ORDER BY t.id FOR UPDATE OF t"
)
_CHANGED = (
    f"UPDATE task_index t SET {', '.join(f'{name} = w.{name}' for name in COLUMNS[1:])} FROM locked w"
    " WHERE t.id = w.id AND t.birth = w.born AND t.head = w.seen RETURNING t.id, w.events"
)
_MADE = (
    f"INSERT INTO task_index ({_ALL}) SELECT {_ALL} FROM want WHERE born IS NULL ORDER BY id"
    " ON CONFLICT (id) DO NOTHING RETURNING id"
)
_LOGGED = (
    "INSERT INTO stored_events (originator_id, originator_version, topic, state)"
    " SELECT s.id, e.version, e.topic, decode(e.state, 'base64')"
    " FROM swapped s, json_to_recordset(s.events) AS e (version bigint, topic text, state text)"
)
# A transaction that notifies keeps all others in the server that do so waiting until it is on the disk. So this is one
# of its own, which waits for no disk: what it says is a hint, and may be lost.
_TELL = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"
REBUILD = f"INSERT INTO task_index ({_ALL}) SELECT {_ALL} FROM json_to_recordset(%s::json) AS w ({_RECORD})"

LONGEST_WORD = 7900
"""Bytes that a notification can carry, about: of more tasks than fit it is only said that there is something."""
TRIES = 5
"""Times that a transaction is tried which the server has undone as a whole: a deadlock, or a row that moved."""

_UNDONE = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_LOCKED_OUT = psycopg.errors.LockNotAvailable


class Append(NamedTuple):
    """One append. `inside` and `births`: see `TaskRecorder.insert_events`."""

    events: Sequence[StoredEvent]
    entry: IndexRow
    expected: Expected
    inside: Callable[[], None] | None = None
    births: Sequence[Birth] = ()

    @property
    def size(self) -> int:
        """Give its bytes, about."""
        return sum(len(event.state) for event in self.events)

    @property
    def ids(self) -> list[str]:
        """Give the tasks whose index rows it writes."""
        return [self.entry.id, *(birth.entry.id for birth in self.births)]


class Message(NamedTuple):
    """Statements with their parameters in them. The server has all of them before it begins, and ends by itself.

    So a process that freezes meanwhile holds up nobody. `ids`: the index rows that are locked first.
    """

    sql: Composable
    ids: Sequence[str] = ()


class Work(NamedTuple):
    """Anything else, in as many trips to the server as it takes.

    `do` may be called again, where the first time was undone. `ids`: the index rows that it locks.
    """

    do: Callable[[Cursor], object]
    ids: Sequence[str] = ()


Request: TypeAlias = Append | Work


class Transaction:
    """Does requests in one transaction, and knows what became of each.

    `owners`: the workers of this process; other processes are told, on `channel`, of tasks that no such worker has.
    """

    def __init__(self, connection: psycopg.Connection, url: str, channel: str, owners: Collection[str]) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._url = url
        self._channel = channel
        self._owners = owners
        self._news = set[str]()

    def run(self, requests: Sequence[Request]) -> Sequence[Verdict]:
        """Do them, and give a verdict for each; what is raised is that of all, and then nothing is stored.

        Raises errors of psycopg, StoreUnavailableError with `unknown_fate`, and interrupts.
        """
        for _ in range(TRIES - 1):
            try:
                verdicts = self._run(requests)
                break
            except _UNDONE:
                self._roll_back()
        else:
            verdicts = self._run(requests)
        named = self._named(verdicts)
        self._tell()
        return named

    def send(self, messages: Sequence[Message]) -> Sequence[Verdict]:
        """Do all of these by one message, or none. Hardly waits for a lock.

        Raises errors of psycopg and of an encoding, and StoreUnavailableError with `unknown_fate`.
        """
        ids = sorted(stored(name) for message in messages for name in message.ids)
        lock = [SQL(_LOCK_NOW).format(Literal(ids))] if ids else []
        text = SQL(";\n").join([SQL(_HURRY), *lock, *(message.sql for message in messages)]).as_bytes(self._connection)
        for tries_left in range(TRIES - 1, -1, -1):
            try:
                self._committing(lambda: self._cursor.execute(text))
                break
            except _UNDONE:
                if not tries_left:
                    raise
        return [None] * len(messages)

    def _run(self, requests: Sequence[Request]) -> "list[Verdict]":
        try:
            return self._together(requests)
        except _Undo as undo:
            error = undo.error
        except (psycopg.DataError, UnicodeError) as wrong:
            error = self._own(wrong)
        except psycopg.IntegrityError:
            error = None  # which of them, and why, is yet to be seen
        self._roll_back()
        return [error] if error and len(requests) == 1 else self._apart(requests)

    # ------------------------------------------------------------------ the three ways

    def _together(self, requests: Sequence[Request]) -> "list[Verdict]":
        """Do all at once. Raises _Undo, or an error of psycopg or of an encoding, for the one that fails alone."""
        first = list(_first_of_each(requests))
        appends = {place: one for place in first if isinstance(one := requests[place], Append)}
        others = [place for place in range(len(requests)) if place not in appends]
        if not others and all(append.inside is None for append in appends.values()):
            swapped = self._committing(lambda: self._swap(list(appends.values())))
            return [_verdict(append, swapped) for append in appends.values()]
        verdicts: dict[int, Verdict] = {}
        self._cursor.execute("BEGIN")
        if appends and others:
            self._cursor.execute(LOCK, [sorted(stored(name) for one in requests for name in one.ids)])
        if appends:
            swapped = self._swap(list(appends.values()))
            for place, append in appends.items():
                verdicts[place] = _verdict(append, swapped)
                if verdicts[place] is None:
                    self._call(append.inside)
        for place in others:
            verdicts[place] = self._one(requests[place], alone=len(requests) == 1)
        self._commit()
        return [verdicts[place] for place in range(len(requests))]

    def _apart(self, requests: Sequence[Request]) -> "list[Verdict]":
        """Do each in a savepoint of its own, to which it is undone where it fails."""
        self._cursor.execute("BEGIN")
        self._cursor.execute(LOCK, [sorted(storable(name for one in requests for name in one.ids))])
        verdicts = [self._one(request, alone=False) for request in requests]
        self._commit()
        return verdicts

    def _one(self, request: Request, *, alone: bool) -> Verdict:
        """Do one; where it is alone its error is raised as _Undo, and undoes the transaction."""
        if not alone:
            self._cursor.execute("SAVEPOINT one")
        verdict: Verdict
        try:
            verdict = self._do(request)
        except (KeyboardInterrupt, SystemExit):
            raise
        except (psycopg.OperationalError, psycopg.InterfaceError):
            raise  # the next would meet it too
        except BaseException as error:
            if alone and isinstance(error, psycopg.IntegrityError):
                raise
            verdict = self._own(error)
        if alone and verdict is not None:
            raise _Undo(verdict)
        if not alone:
            self._cursor.execute("RELEASE one" if verdict is None else "ROLLBACK TO one; RELEASE one")
        if isinstance(request, Append) and isinstance(verdict, library.IntegrityError):
            return self._conflict(request) or verdict
        return verdict

    def _conflict(self, append: Append) -> Verdict:
        """Find the conflict of an append, if any: a row that is not as expected comes before a log that does not fit.

        One statement swaps the rows and writes the logs, and so it may have met the second first.
        """
        rows = self._cursor.execute(_SOME, [[stored(name) for name in append.ids]]).fetchall()
        found = {row.id: (row.birth, row.head) for row in map(as_row, rows)}
        wanted = [(append.entry.id, append.expected), *((birth.entry.id, None) for birth in append.births)]
        lost = (LostError(task_id, expected) for task_id, expected in wanted if found.get(task_id) != expected)
        return next(lost, None)

    def _do(self, request: Request) -> Verdict:
        if isinstance(request, Work):
            request.do(self._cursor)
            return None
        swapped = self._swap([request])
        verdict = _verdict(request, swapped)
        if verdict is None and request.inside is not None:
            request.inside()
        return verdict

    # ------------------------------------------------------------------ statements

    def _swap(self, appends: Sequence[Append]) -> set[str]:
        """Set the index rows that are as expected, log their events, and give the ids of these."""
        wants = [_want(append.events, append.entry, append.expected) for append in appends]
        wants += [_want([birth.event], birth.entry, None) for append in appends for birth in append.births]
        wants.sort(key=_id)
        sql = _swapping(any(want["born"] is not None for want in wants), any(want["born"] is None for want in wants))
        swapped = {task_id for (task_id,) in self._cursor.execute(sql, [encoded(wants)]).fetchall()}
        self._news |= {want["id"] for want in wants if want["id"] in swapped and want["owner"] not in self._owners}
        return {loaded(task_id) for task_id in swapped}

    def _tell(self) -> None:
        """Tell other processes of the tasks that no worker of this one has."""
        if self._news:
            with suppress(psycopg.Error):
                self._cursor.execute(_TELL, [self._channel, _word(sorted(self._news))])

    def _call(self, inside: Callable[[], None] | None) -> None:
        """Call what an append wants to be called. Raises _Undo, and interrupts as they are."""
        if inside is not None:
            try:
                inside()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                raise _Undo(error) from None

    def _commit(self) -> None:
        status = self._committing(lambda: self._cursor.execute("COMMIT").statusmessage)
        if status != "COMMIT":  # the server's way to say that the transaction had failed before
            raise psycopg.InternalError("the transaction was rolled back")

    def _committing(self, commit: Callable[[], Any]) -> Any:
        try:
            return commit()
        except (*_UNDONE, _LOCKED_OUT):
            raise
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise translated(error, self._url, committing=True) from error

    def _roll_back(self) -> None:
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self._cursor.execute("ROLLBACK")

    # ------------------------------------------------------------------ verdicts

    def _own(self, error: BaseException) -> BaseException:
        """Give the error of one request as its caller gets it."""
        if not isinstance(error, psycopg.Error):
            return error
        mine = translated(error, self._url)
        mine.__cause__ = error
        return mine

    def _named(self, verdicts: "list[Verdict]") -> list[Verdict]:
        """Give each conflict with the row that stands there. All else is committed, whatever comes out of this."""
        lost = [verdict for verdict in verdicts if isinstance(verdict, LostError)]
        if not lost:
            return verdicts
        try:
            rows = self._cursor.execute(_SOME, [[stored(one.task_id) for one in lost]]).fetchall()
        except psycopg.Error as error:
            away = self._own(error)
            return [away if isinstance(verdict, LostError) else verdict for verdict in verdicts]
        found = {row.id: row for row in map(as_row, rows)}
        return [
            AppendConflictError(verdict.expected, found.get(verdict.task_id), verdict.task_id, self._url)
            if isinstance(verdict, LostError)
            else verdict
            for verdict in verdicts
        ]


class _Undo(Exception):  # noqa: N818  it says what to do
    """One of several has failed after something was written: it has to be undone alone."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class LostError(Exception):
    """Raised by work whose index row is not as expected; the caller gets an AppendConflictError with what stands there.

    A verdict until then: what stands there is read when the transaction is over.
    """

    def __init__(self, task_id: str, expected: Expected) -> None:
        super().__init__(task_id, expected)
        self.task_id = task_id
        self.expected = expected


def _first_of_each(requests: Sequence[Request]) -> Iterable[int]:
    """Give the places of appends that go together: of each task the first, and none with births."""
    seen = set[str]()
    for place, request in enumerate(requests):
        if isinstance(request, Append) and not request.births and request.entry.id not in seen:
            seen.add(request.entry.id)
            yield place


def _verdict(append: Append, swapped: Collection[str]) -> Verdict:
    if append.entry.id not in swapped:
        return LostError(append.entry.id, append.expected)
    taken = (birth.entry.id for birth in append.births if birth.entry.id not in swapped)
    return next((LostError(task_id, None) for task_id in taken), None)


@cache
def _swapping(changes: bool, makes: bool) -> str:
    """Give the statement that swaps rows which are there, makes such as are not, or both."""
    parts = [f"want AS MATERIALIZED ({_WANT})"]
    swapped = []
    if changes:
        parts += [f"locked AS MATERIALIZED ({_LOCKED})", f"changed AS ({_CHANGED})"]
        swapped.append("SELECT id, events FROM changed")
    if makes:
        parts.append(f"made AS ({_MADE})")
        swapped.append("SELECT w.id, w.events FROM made JOIN want w ON w.id = made.id")
    parts += [f"swapped AS MATERIALIZED ({' UNION ALL '.join(swapped)})", f"logged AS ({_LOGGED})"]
    return f"WITH {', '.join(parts)} SELECT id FROM swapped"


def _want(events: Sequence[StoredEvent], entry: IndexRow, expected: Expected) -> dict[str, Any]:
    want = as_record(entry)
    want["born"], want["seen"] = (None, None) if expected is None else (stored(expected[0]), expected[1])
    want["events"] = [
        {
            "version": event.originator_version,
            "topic": stored(event.topic),
            "state": b2a_base64(event.state, newline=False).decode(),
        }
        for event in events
    ]
    return want


def _id(want: dict[str, Any]) -> bytes:
    return str(want["id"]).encode("utf-8", "surrogatepass")


def storable(names: Iterable[str]) -> list[str]:
    """Give those that UTF-8 can hold: no other is in the store."""
    return [stored(name) for name in names if name.encode("utf-8", "replace").decode() == name]


def _word(ids: Sequence[str]) -> str:
    """Give what is said of these tasks: a JSON array of their ids, or nothing where they are too many."""
    word = encoded(ids)
    return word if len(word.encode("utf-8", "surrogatepass")) <= LONGEST_WORD else ""
