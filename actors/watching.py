"""Watches on tasks: one loop looks for all watches of a system, and is there only while there is one.

What this process appends rings the watches of that task, and they are looked at in that moment. What others append is
found by looking from time to time at the index rows of all that is watched: a few statements, however many they are.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial

from actors.notice import Also, News, Notice
from actors.task_log import TaskLog
from actors.telling import STALL, Desk, Listener
from actors.threads import Threads
from domain.errors import SystemClosedError, UnknownTaskError
from stores import IndexRow, StoreError, StoreUnavailableError
from stores.crash import SimulatedCrash

logger = logging.getLogger("perdure")

FIRST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks at all that is watched: growing from the first to the longest while nothing is new."""
MOST_LOOKING, LONGEST_REST = 0.1, 5.0
"""The share of its time that the loop spends on them at most, however much is watched; and the seconds that this may
make it rest at most, lest a store that was away for long be thought slow."""
LAST_WORD = 1.0
"""Seconds that a close waits for callbacks."""


class Watch:
    """A watch on a task, given by `TaskRef.on_end`. Nobody has to keep it: it goes on until the task has ended.

    `id`: the task's.
    """

    def __init__(self, task_id: str, cancel: Callable[[], None]) -> None:
        self.id = task_id
        self._cancel = cancel

    def __repr__(self) -> str:
        return f"Watch({self.id!r})"

    def cancel(self) -> None:
        """Have nothing told any more: when it returns, no call begins; one that has begun goes on.

        May be called again, after the end, and in the callback itself.
        """
        self._cancel()


class _Watched(Listener):
    """A watch as the loop has it: what it has been told of its task, and the bell that news in this process ring."""

    news: News

    def __init__(self, task_id: str, callback: Callable[[Notice], object], ring: Callable[[_Watched], None]) -> None:
        super().__init__(task_id, callback)
        self.bell = ExitStack()
        self._ring = ring

    def set(self) -> None:
        """Ring."""
        self._ring(self)


class Watching:
    """The watches of one system. Safe in all threads; nothing is started before the first watch."""

    def __init__(self, log: TaskLog, threads: Threads) -> None:
        self._log = log
        self._threads = threads
        self._desk = Desk(threads)
        self._lock = threading.Lock()
        self._watched: set[_Watched] = set()
        self._rung: deque[_Watched] = deque()
        self._wake = threading.Event()
        self._loop_ended: threading.Event | None = None
        self._fresh = self._stopping = self._away = False

    def add(self, task_id: str, callback: Callable[[Notice], object], also: Iterable[Also]) -> Watch:
        """Watch a task. Raises what `TaskRef.on_end` does."""
        kinds = _checked(callback, also)
        self._refuse_if_closed()
        watched = _Watched(task_id, callback, self._ring)
        with ExitStack() as undo:
            # First the bell, then the row: what comes in between rings.
            undo.callback(watched.bell.close)
            watched.bell.enter_context(self._log.watch(task_id, watched))
            row = self._log.recorder.select_entry(task_id)
            if row is None:
                raise UnknownTaskError(f"there is no task {task_id!r} in {self._log.store.url}", task_id=task_id)
            watched.news = News(self._log, row, kinds)
            self._begin(watched)
            undo.pop_all()
        watched.set()
        return Watch(task_id, partial(self._cancel, watched))

    def excuse(self) -> None:
        """Let no stop wait for the callback that runs on this thread, if one does: it waits for the stop itself."""
        self._desk.excuse()

    def stop(self) -> None:
        """Have told what the log has by now, wait for that a second at most, and have nothing told any more.

        A callback may call it. The store has to be open.
        """
        until = time.monotonic() + LAST_WORD
        with self._lock:
            self._stopping, loop_ended = True, self._loop_ended
        self._wake.set()
        if loop_ended is not None:
            loop_ended.wait(LAST_WORD)
        self._desk.close(until)
        for watched in self._all():
            self._forget(watched)

    def _begin(self, watched: _Watched) -> None:
        with self._lock:
            self._refuse_if_closed()
            if self._loop_ended is None:
                ended = threading.Event()
                # In a context of its own: whoever asks first, the loop belongs to no body and no agent.
                contextvars.Context().run(self._threads.start, lambda: self._live(ended))
                self._loop_ended = ended
            self._watched.add(watched)
            self._fresh = True

    def _refuse_if_closed(self) -> None:
        if self._stopping:
            raise SystemClosedError("this AgentSystem was closed: nothing is watched in it any more")

    def _cancel(self, watched: _Watched) -> None:
        self._forget(watched)
        self._desk.drop(watched)
        self._wake.set()

    def _forget(self, watched: _Watched) -> None:
        watched.bell.close()
        with self._lock:
            self._watched.discard(watched)

    def _all(self) -> list[_Watched]:
        with self._lock:
            return list(self._watched)

    def _ring(self, watched: _Watched) -> None:
        self._rung.append(watched)
        self._wake.set()

    def _who_rang(self) -> list[_Watched]:
        rung = {self._rung.popleft() for _ in range(len(self._rung))}
        with self._lock:
            return list(rung & self._watched)

    # ------------------------------------------------------------------ the loop

    def _live(self, ended: threading.Event) -> None:
        """Look until nothing is watched any more; or until the system stops, and then once more at all.

        Whatever ends it, the next watch begins another; one looks at a time, so that nothing is told twice.
        """
        pause = FIRST_POLL
        poll_at = time.monotonic() + pause
        try:
            while self._goes_on():
                self._wake.clear()
                self._look(self._who_rang())
                began = time.monotonic()
                if self._fresh:
                    self._fresh, pause = False, FIRST_POLL
                    poll_at = min(poll_at, began + pause)
                if began >= poll_at:
                    pause = FIRST_POLL if self._look(self._all()) else min(pause * 1.5, LONGEST_POLL)
                    now = time.monotonic()
                    poll_at = now + max(pause, min((now - began) / MOST_LOOKING, LONGEST_REST))
                waits = self._desk.look()
                self._wake.wait(max(0.0, min(poll_at - time.monotonic(), STALL if waits else LONGEST_POLL)))
            if self._loop_ended is ended:  # else nothing was watched when it left; what is by now has a loop of its own
                self._look(self._all())
        except SimulatedCrash:  # the dead tell nothing
            self._desk.close(0.0)
        finally:
            with self._lock:
                if self._loop_ended is ended:
                    self._loop_ended = None
            ended.set()

    def _goes_on(self) -> bool:
        waits = self._desk.look()
        with self._lock:
            if not self._stopping and not self._watched and not waits:
                self._loop_ended = None
                return False
            return not self._stopping

    def _look(self, some: Collection[_Watched]) -> bool:
        """Look at some of what is watched, and hand on what is new; tells whether anything is.

        What fails is tried again when all is looked at next.
        """
        if not some:
            return False
        found = False
        try:
            rows = self._log.recorder.select_rows({watched.id for watched in some})
            for watched in some:
                found |= self._take(watched, rows.get(watched.id))
            self._away = False
        except StoreError as error:
            if not self._away and not self._stopping:
                logger.warning("watches wait, the store is away: %s", error)
            self._away = True
        except Exception:
            if not self._away:
                logger.exception("watches wait, what is watched could not be looked at")
            self._away = True
        return found

    def _take(self, watched: _Watched, row: IndexRow | None) -> bool:
        """Hand on what is new of one task. What goes wrong with one is no other's business, but for the store."""
        try:
            notices = watched.news.take(row)
        except StoreUnavailableError:
            raise
        except Exception:
            logger.exception("task %s: what is new of it cannot be told; this watch on it ends", watched.id)
            self._forget(watched)
            return False
        if watched.news.over:
            self._forget(watched)
        self._desk.put(watched, notices)
        return bool(notices)


def _checked(callback: object, also: Iterable[Also]) -> frozenset[Also]:
    why = _why_not(callback)
    if why is not None:
        raise TypeError(f"a callback is a plain function that takes a Notice, not {callback!r}{why}")
    kinds = frozenset(also)
    if not kinds <= {"held", "restarted"}:
        raise ValueError(f'also is a collection of "held" and "restarted", not {also!r}')
    return kinds


def _why_not(callback: object) -> str | None:
    """Say why this cannot be called with one argument and do its work in that call; None where it can, or may."""
    if not callable(callback):
        return ""
    if any(inspect.iscoroutinefunction(each) for each in (callback, type(callback).__call__)):
        return ": it is async"
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):  # some of what is written in C has none
        return None
    try:
        signature.bind(None)
    except TypeError as error:
        return f": called with one argument, {error}"
    return None
