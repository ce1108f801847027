"""Group commit: writes of many threads, one transaction.

A commit costs a write to the disk, whatever it carries. So who comes while another's commit is on its way waits for
that one to end, and then goes with all the others who came meanwhile. Nobody waits for company: a write that finds
nobody before it goes at once, by itself.

There is no thread for it: the first who waits leads, which is to take all that wait, write them, answer each, and hand
the lead to the first of those who came meanwhile. Only what was submitted without a thread that waits for it has one
to lead it.
"""

import copy
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from stores.errors import StoreClosedError, StoreUnavailableError

logger = logging.getLogger("perdure")

Request = TypeVar("Request")
Verdict = BaseException | None
"""What became of one request: None where it is committed."""

MOST = 256
"""Requests that one transaction carries at most: a commit is answered soon, and other processes have their turn."""
MOST_BYTES = 1 << 20
"""Bytes after which a transaction takes no further request."""
IDLE = 5.0
"""Seconds after which the thread that leads for others is gone, where nobody has wanted it."""
MOST_SUBMITTED = 10_000
"""Requests without a waiting thread that may stand in line."""


class GroupCommit(Generic[Request]):
    """Folds what many threads write into transactions, in the order in which they came.

    `transact` writes requests in one transaction, on the thread of any of those who wait, and gives a verdict for each
    once it has committed; what it raises is the verdict of all. `prepare`, if given, is called before a transaction
    takes its requests: a place to wait for another process's lock, while company gathers; what it raises is the verdict
    of those who stood in line when that began.

    Guarantee: each request is in one transaction that ends before it is answered, is never written after its answer,
    and an error of its own reaches nobody else. Interrupts (KeyboardInterrupt, SystemExit) reach the thread that they
    hit; the others of its transaction get StoreUnavailableError with `unknown_fate`.
    """

    def __init__(
        self,
        transact: Callable[[Sequence[Request]], Sequence[Verdict]],
        *,
        url: str,
        prepare: Callable[[], None] | None = None,
        most: int = MOST,
    ) -> None:
        self._transact = transact
        self._prepare = prepare
        self._url = url
        self._most = most
        self._mutex = threading.Lock()
        self._queue: deque[_Entry[Request]] = deque()
        self._batch: list[_Entry[Request]] = []
        self._leader: _Entry[Request] | None = None
        self._writer: _Entry[Request] | None = None  # the lead of what nobody waits for, with a thread of its own
        self._submitted = 0
        self._closed = False
        self._idle = threading.Condition(self._mutex)

    def do(self, request: Request, size: int = 0) -> None:
        """Write a request; it is committed when this returns. `size`: its bytes, about.

        Raises its verdict; StoreClosedError after the close.
        """
        entry = _Entry(request, size)
        try:
            if self._enter(entry) or entry.wait():
                while not entry.done:
                    self._lead(entry)
        finally:
            try:
                self._leave(entry)
            except BaseException:  # interrupted on the way out: those behind must not wait for ever
                self._leave(entry)
                raise
        entry.answer()

    def submit(self, request: Request, done: Callable[[Verdict], object], size: int = 0) -> None:
        """Stand in line with a request and return. `done` is called once with its verdict, on any thread, and is quick.

        Raises StoreUnavailableError where too many stand in line already: then wait for some, or use `do`;
        also where the machine has no thread left; StoreClosedError after the close. `done` is not called then.
        """
        with self._mutex:
            self._check()
            if self._submitted >= MOST_SUBMITTED:
                reason = f"{MOST_SUBMITTED} writes stand in line"
                raise StoreUnavailableError(f"{self._url}: {reason}", url=self._url, reason=reason)
            if self._writer is None:
                self._writer = self._hire()
            self._submitted += 1
            self._queue.append(_Entry(request, size, done))
            if self._leader is None:
                self._promote(self._writer)

    def close(self) -> None:
        """Take no more, wait until all that stand in line are answered, and end the thread. May be called again."""
        with self._mutex:
            self._closed = True
            self._idle.wait_for(lambda: self._leader is None and not self._queue)
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.done = True
            writer.wake()

    # ------------------------------------------------------------------ whose turn it is

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._url} is closed", url=self._url)

    def _enter(self, entry: "_Entry[Request]") -> bool:
        """Stand in line, and tell whether this one leads at once."""
        with self._mutex:
            self._check()
            self._queue.append(entry)
            if self._leader is None:
                self._leader = entry
            return self._leader is entry

    def _leave(self, entry: "_Entry[Request]") -> None:
        """Go; a leader hands on the lead, and answers whom it has left without one. May be called again."""
        if entry.done and self._leader is not entry:
            return
        with self._mutex:
            if not entry.done and entry is not self._writer:
                with suppress(ValueError):
                    self._queue.remove(entry)  # torn away before it was taken: it is not written
            if self._leader is entry:
                if left := [each for each in self._batch if not each.done]:
                    self._end(left, self._unknown())
                self._batch = []
                self._promote(self._heir())

    def _heir(self) -> "_Entry[Request] | None":
        """Give who leads next: the first that has a thread to do so."""
        if not self._queue:
            return None
        return next((entry for entry in self._queue if entry.tell is None), self._writer)

    def _promote(self, heir: "_Entry[Request] | None") -> None:
        self._leader = heir
        if heir is not None:
            heir.wake()
        elif self._closed:
            self._idle.notify_all()

    def _unknown(self) -> Exception:
        reason = "the thread that wrote it was interrupted"
        message = f"{self._url}: {reason}; whether it is stored is known only by reading back"
        return StoreUnavailableError(message, url=self._url, reason=reason, unknown_fate=True)

    # ------------------------------------------------------------------ one transaction

    def _lead(self, leader: "_Entry[Request]") -> None:
        """Take the first of those who stand in line, write them, answer each."""
        stood = len(self._queue)
        try:
            if self._prepare is not None:
                self._prepare()
        except Exception as error:
            with self._mutex:
                self._end(self._take(stood), error)
            return
        with self._mutex:
            batch = self._batch = self._take(self._most)
        try:
            verdicts = self._transact([entry.request for entry in batch])
        except Exception as error:
            self._end(batch, error)
            return
        except BaseException as error:  # an interrupt: the leader's own
            self._end([entry for entry in batch if entry is leader], error)
            self._end([entry for entry in batch if entry is not leader], self._unknown())
            return
        for entry, verdict in zip(batch, verdicts, strict=True):
            self._finish(entry, verdict)

    def _take(self, most: int) -> "list[_Entry[Request]]":
        """Take the first ones out of the queue; the mutex is held."""
        batch: list[_Entry[Request]] = []
        size = 0
        while self._queue and len(batch) < most and size <= MOST_BYTES:
            entry = self._queue.popleft()
            self._submitted -= entry.tell is not None
            size += entry.size
            batch.append(entry)
        return batch

    def _end(self, batch: "Sequence[_Entry[Request]]", error: BaseException) -> None:
        """Answer all with one error; each raises its own copy, since threads write into what they raise."""
        for number, entry in enumerate(batch):
            mine = error
            if number:
                mine = copy.copy(error)
                mine.__cause__ = error
            self._finish(entry, mine)

    def _finish(self, entry: "_Entry[Request]", verdict: Verdict) -> None:
        entry.error, entry.done = verdict, True
        if entry.tell is not None:
            try:
                entry.tell(verdict)
            except Exception:
                logger.exception("%s: who was told of a commit has failed", self._url)
        elif entry is not self._leader:
            entry.wake()

    # ------------------------------------------------------------------ the thread

    def _hire(self) -> "_Entry[Request]":
        writer = _Entry[Any](None, 0)
        thread = threading.Thread(target=self._serve, args=[writer], name="perdure-writer", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreUnavailableError(f"{self._url}: {error}", url=self._url, reason=str(error)) from error
        return writer

    def _serve(self, writer: "_Entry[Request]") -> None:
        """Lead where nobody else can; gone when nobody has wanted that for a while."""
        while not writer.done:
            if writer.gate.acquire(timeout=IDLE):
                if not writer.done:
                    self._lead(writer)
                    self._leave(writer)
            elif self._is_let_go(writer):
                return

    def _is_let_go(self, writer: "_Entry[Request]") -> bool:
        with self._mutex:
            if self._leader is writer or self._writer is not writer or self._submitted:
                return False
            self._writer = None
            return True


class _Entry(Generic[Request]):
    """One request in line. `tell` is who hears the verdict where no thread waits for it."""

    __slots__ = ("done", "error", "gate", "request", "size", "tell")

    def __init__(self, request: Request, size: int, tell: Callable[[Verdict], object] | None = None) -> None:
        self.request = request
        self.size = size
        self.tell = tell
        self.error: Verdict = None
        self.done = False
        self.gate = threading.Lock()
        self.gate.acquire()

    def wait(self) -> bool:
        """Wait for the answer, or for the lead; tell whether it is the lead."""
        self.gate.acquire()
        return not self.done

    def wake(self) -> None:
        """Let the thread of this one go on."""
        self.gate.release()

    def answer(self) -> None:
        """Raise the verdict, if it is an error."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
