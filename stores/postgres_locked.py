"""Rows that another session has locked: who needs one waits for it, and holds up nobody else.

A batch waits a moment for a lock. Then it is undone, and done without those whose rows are locked. Each of these is
tried by itself, without waiting, and put aside; it is tried again until its own time is over.
"""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import TypeVar

import psycopg
from psycopg.errors import LockNotAvailable
from psycopg.pq import TransactionStatus

from stores.errors import StoreUnavailableError
from stores.group_commit import Verdict
from stores.postgres_append import Message, Request, Transaction, storable
from stores.postgres_errors import translated
from stores.postgres_text import stored

T = TypeVar("T")

WAIT = 0.5
"""Seconds that a batch waits for a lock."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
"""Seconds between two tries of who was put aside: doubled from the first up to the longest."""

_FREE = "SELECT id FROM task_index WHERE id = ANY(%s) FOR UPDATE SKIP LOCKED"
_THERE = "SELECT id FROM task_index WHERE id = ANY(%s)"
_WAIT = "SELECT set_config('lock_timeout', %s, false)"


class LockedError(StoreUnavailableError):
    """The verdict on a request that needs what another session has locked; nothing of it is stored."""


class Ask:
    """A request, and how long it may yet wait. `late`: it was put aside before."""

    def __init__(self, request: Request | Message, timeout: float) -> None:
        self.request = request
        self.late = False
        self._timeout = timeout
        self._began = monotonic()
        self._pause = FIRST_PAUSE

    def pause(self) -> float | None:
        """Give the seconds to the next try, or None where the time is over."""
        left = self._began + self._timeout - monotonic()
        if left <= 0:
            return None
        pause, self._pause = min(self._pause, left), min(self._pause * 2, LONGEST_PAUSE)
        return pause

    def final(self, error: LockedError) -> StoreUnavailableError:
        """Give what is raised when it is put aside no more."""
        reason = f"{error.reason} for {monotonic() - self._began:.1f} s (lock timeout); nothing is stored: try again"
        return StoreUnavailableError(f"{error.url}: {reason}", url=error.url, reason=reason)


class Around:
    """Does asks around what is locked. For one thread at a time."""

    def __init__(self, url: str, wait: float) -> None:
        self._url = url
        self._usual = f"{max(1, round(wait * 1000))}ms"
        self._suspects = set[str]()  # tasks whose rows were locked when they were last asked for

    def run(
        self, connection: psycopg.Connection, transaction: Callable[[], Transaction], asks: Sequence[Ask]
    ) -> Sequence[Verdict]:
        """Do each, in as few transactions as it goes, and give its verdict: LockedError for who has to wait.

        Nothing but interrupts is raised: where one transaction fails, another may be committed already.
        """
        verdicts: dict[int, Verdict] = {}
        for _ in range(2):
            rest = {place: request for place, request in self._prompt(asks) if not isinstance(request, Message)}
            try:
                verdicts.update(zip(rest, self._together(transaction().run, [*rest.values()]), strict=True))
                break
            except LockNotAvailable:
                self._suspect(connection, [*rest.values()])
        messages = {place: request for place, request in self._prompt(asks) if isinstance(request, Message)}
        if messages and (sent := self._sent(transaction(), [*messages.values()])):
            verdicts.update(zip(messages, sent, strict=True))
        late = [place for place in range(len(asks)) if place not in verdicts]
        if late:
            alone = self._one_by_one(connection, transaction, [asks[place] for place in late])
            verdicts.update(zip(late, alone, strict=True))
        return [verdicts[place] for place in range(len(asks))]

    def _sent(self, transaction: Transaction, messages: Sequence[Message]) -> Sequence[Verdict]:
        """Send messages together; no verdicts where that fails for one of them, and then nothing is stored."""
        try:
            return transaction.send(messages)
        except StoreUnavailableError as error:
            return [error, *(copy.copy(error) for _ in messages[1:])]
        except (psycopg.Error, UnicodeError):
            return []

    def _prompt(self, asks: Sequence[Ask]) -> Iterator[tuple[int, Request | Message]]:
        """Give the places and requests of those that have not been put aside."""
        return ((place, ask.request) for place, ask in enumerate(asks) if not self._is_late(ask))

    def _is_late(self, ask: Ask) -> bool:
        return ask.late or not self._suspects.isdisjoint(ask.request.ids)

    def _together(self, do: Callable[[Sequence[T]], Sequence[Verdict]], requests: Sequence[T]) -> Sequence[Verdict]:
        """Do requests in one transaction. Raises LockNotAvailable, and interrupts."""
        try:
            return do(requests) if requests else []
        except LockNotAvailable:
            raise
        except psycopg.Error as error:
            mine: Exception = translated(error, self._url)
            mine.__cause__ = error
        except Exception as error:
            mine = error
        return [mine, *(copy.copy(mine) for _ in requests[1:])]

    def _suspect(self, connection: psycopg.Connection, requests: Sequence[Request]) -> None:
        """Find the rows that are locked now."""
        ids = [name for request in requests for name in request.ids]
        known = [storable(ids)]
        with suppress(psycopg.Error):
            roll_back(connection)
            free = {name for (name,) in connection.execute(_FREE, known)}
            there = {name for (name,) in connection.execute(_THERE, known)}
            self._suspects.update(name for name in ids if stored(name) in there - free)

    def _one_by_one(
        self, connection: psycopg.Connection, transaction: Callable[[], Transaction], asks: Sequence[Ask]
    ) -> Sequence[Verdict]:
        """Do each in a transaction of its own, which waits for nothing."""
        verdicts: list[Verdict] = []
        try:
            connection.execute(_WAIT, ["1ms"])
            for ask in asks:
                verdicts += [self._alone(connection, transaction(), ask)]
            connection.execute(_WAIT, [self._usual])
        except psycopg.Error as error:
            connection.close()
            mine = translated(error, self._url)
            verdicts += [copy.copy(mine) for _ in asks[len(verdicts) :]]
        return verdicts

    def _alone(self, connection: psycopg.Connection, transaction: Transaction, ask: Ask) -> Verdict:
        request = ask.request
        ids = request.ids
        try:
            if isinstance(request, Message):
                (verdict,) = self._together(transaction.send, [request])
            else:
                (verdict,) = self._together(transaction.run, [request])
        except LockNotAvailable as error:
            roll_back(connection)
            ask.late = True
            self._suspects.update(ids)
            what = f"task {ids[0]!r}: its row" if ids else "a table"
            reason = f"{what} is locked by another session"
            locked = LockedError(f"{self._url}: {reason}", url=self._url, reason=reason)
            locked.__cause__ = error
            return locked
        self._suspects.difference_update(ids)
        return verdict


def roll_back(connection: psycopg.Connection) -> None:
    """End the transaction that is open, if one is."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        connection.rollback()


class Shelf:
    """Those put aside for whom no thread waits, each tried again after its pause. Safe in all threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: list[tuple[float, Callable[[], object]]] = []
        self._thread: threading.Thread | None = None
        self.closing = threading.Event()

    def put(self, pause: float, again: Callable[[], object]) -> bool:
        """Call `again` after so many seconds, or at the close; False where nobody can, and then nobody does."""
        with self._mutex:
            if self.closing.is_set():
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="perdure-locked", daemon=True)
                with suppress(RuntimeError):  # the machine has no thread left
                    thread.start()
                    self._thread = thread
            if self._thread is not None:
                self._waiting.append((monotonic() + pause, again))
            return self._thread is not None

    def close(self) -> None:
        """Call what is left, and wait for it."""
        self.closing.set()
        with self._mutex:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _serve(self) -> None:
        """Call whose time has come; gone when nobody waits."""
        while True:
            over = self.closing.wait(FIRST_PAUSE)
            with self._mutex:
                if not self._waiting:
                    self._thread = None
                    return
                now = monotonic()
                due = [again for when, again in self._waiting if over or when <= now]
                self._waiting = [one for one in self._waiting if not over and one[0] > now]
            for again in due:
                again()
