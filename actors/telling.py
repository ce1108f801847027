"""Calls of users' callbacks, on as few threads as it takes that a slow one delays nobody else's."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from actors.notice import Notice
from actors.threads import Threads
from domain.faults import Fault

logger = logging.getLogger("perdure")

STALL = 0.02
"""Seconds without a new call after which more threads are put to what waits."""


class Listener:
    """One callback and what it has not been told yet. Its facts are the desk's to change."""

    def __init__(self, task_id: str, callback: Callable[[Notice], object]) -> None:
        self.id = task_id
        self.waiting: deque[Notice] = deque()
        self.in_turn = self.is_dropped = False
        self._callback = callback

    def tell(self, notice: Notice) -> None:
        """Call the callback. What it raises, a BaseException too, is logged and changes nothing."""
        try:
            self._callback(notice)
        except BaseException as raised:
            with suppress(BaseException):
                fault = Fault.of(raised)
                trace = fault.traceback.rstrip()  # its text: printing the exception again may do anything
                logger.error("task %s: a callback of on_end raised %s\n%s", self.id, fault, trace)


class Desk:
    """Has callbacks called, those of one listener one after the other.

    One thread serves all while calls are quick. `look`, called now and then while something waits, puts as many again
    to it each time that no call has begun since the last one: so there are about as many threads as slow calls.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._changed = threading.Condition()
        self._queue: deque[Listener] = deque()
        self._calling: dict[int, Listener] = {}
        self._excused: set[int] = set()
        self._serving = self._begun = self._begun_before = 0
        self._look_at = 0.0
        self._closed = False

    def put(self, listener: Listener, notices: list[Notice]) -> None:
        """Have a listener told, after what it waits for already."""
        with self._changed:
            if self._closed or listener.is_dropped or not notices:
                return
            listener.waiting.extend(notices)
            if not listener.in_turn:
                listener.in_turn = True
                self._queue.append(listener)
            if not self._serving:
                self._employ(1)
                self._look_at = time.monotonic() + STALL

    def drop(self, listener: Listener) -> None:
        """Tell a listener nothing more; a call of it that has begun goes on."""
        with self._changed:
            listener.is_dropped = True
            listener.waiting.clear()

    def look(self) -> bool:
        """Put more threads to what waits, where those that serve are held up; tells whether something waits."""
        with self._changed:
            now = time.monotonic()
            if now >= self._look_at:
                if self._queue and self._begun == self._begun_before:
                    self._employ(min(len(self._queue), max(1, self._serving)))
                self._begun_before, self._look_at = self._begun, now + STALL
            return bool(self._queue)

    def excuse(self) -> None:
        """Let no close wait for the callback that runs on this thread, if one does: it waits for the close itself."""
        with self._changed:
            if threading.get_ident() in self._calling:
                self._excused.add(threading.get_ident())
                self._changed.notify_all()

    def close(self, until: float) -> None:
        """Wait until all have been told, at most until then by `time.monotonic`; then begin no call any more."""
        self.excuse()
        with self._changed:
            while self._queue or self._calling.keys() - self._excused:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(STALL, left))
                self.look()
            self._closed = True
            listeners = [*self._queue, *self._calling.values()]
            self._queue.clear()
        for listener in listeners:
            if untold := len(listener.waiting):
                logger.warning(
                    "task %s: the system is closed, and a callback of on_end is not told of %d more",
                    listener.id,
                    untold,
                )

    def _employ(self, count: int) -> None:
        """Put threads to it. Where the machine has none left, the next look tries again."""
        with suppress(RuntimeError):
            for _ in range(count):
                contextvars.Context().run(self._threads.start, self._serve)
                self._serving += 1

    def _serve(self) -> None:
        while (turn := self._next()) is not None:
            listener, notice = turn
            try:
                listener.tell(notice)
            finally:
                self._after(listener)

    def _next(self) -> tuple[Listener, Notice] | None:
        with self._changed:
            while self._queue:
                listener = self._queue.popleft()
                if listener.waiting:
                    self._begun += 1
                    self._calling[threading.get_ident()] = listener
                    return listener, listener.waiting.popleft()
                listener.in_turn = False
            self._serving -= 1
            self._changed.notify_all()
            return None

    def _after(self, listener: Listener) -> None:
        with self._changed:
            del self._calling[threading.get_ident()]
            self._excused.discard(threading.get_ident())
            if listener.waiting and not self._closed:
                self._queue.append(listener)
            else:
                listener.in_turn = False
            self._changed.notify_all()
