"""Daemon threads of our own, for bodies that nobody can kill.

Never `concurrent.futures`: its exit handler waits for every body that still runs, and one that hangs would keep the
process for ever.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, ParamSpec, TypeVar

logger = logging.getLogger("perdure")

P = ParamSpec("P")
T = TypeVar("T")


class NoThreadError(RuntimeError):
    """Raised where the machine has no thread left; what was to run on one has not begun."""


class Job(Generic[T]):
    """Work that somebody else does, and how it ended; `done` is set when that is known.

    Guaranteed: the first word about it counts, every later one is ignored. Not guaranteed: that it ever ends; in a
    child made by fork no job of the parent does.
    """

    def __init__(self) -> None:
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Job[T]], object]] = []
        self._error: BaseException | None = None
        self._value: T

    def result(self, timeout: float | None = None) -> T:
        """Wait for the outcome: the value, or the work's own error raised again, of whatever kind.

        Raises TimeoutError when there is none after `timeout` seconds; the work goes on.
        """
        if not self.done.wait(timeout):
            raise TimeoutError(f"no outcome after {timeout} s; the work goes on")
        try:
            if self._error is not None:
                raise self._error
            return self._value
        finally:
            del self  # the error's traceback holds this frame, which would hold the error: a cycle

    def add_done_callback(self, callback: Callable[[Job[T]], object]) -> None:
        """Call `callback` with this job once: on the thread that ends it, or here and now where it has ended."""
        with self._lock:
            if not self.done.is_set():
                self._callbacks.append(callback)
                return
        self._tell(callback)

    def remove_done_callback(self, callback: Callable[[Job[T]], object]) -> None:
        """Forget a callback that has not been called yet."""
        with self._lock, suppress(ValueError):
            self._callbacks.remove(callback)

    def succeed(self, value: T) -> None:
        """Set the outcome to a value, and wake who waits."""
        with self._lock:
            if self.done.is_set():
                return
            self._value = value
            self.done.set()
        self._tell_all()

    def fail(self, error: BaseException) -> None:
        """Set the outcome to an error of any kind, and wake who waits."""
        with self._lock:
            if self.done.is_set():
                return
            self._error = error
            self.done.set()
        self._tell_all()

    def _tell_all(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._tell(callback)

    def _tell(self, callback: Callable[[Job[T]], object]) -> None:
        try:
            callback(self)
        except BaseException:
            logger.exception("a callback of a job ended in an error, which changes nothing")


class _Seat:
    """Where one thread waits for its next work: a lock that whoever brings some releases."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work: Callable[[], object] | None = work
        self.wake = threading.Lock()
        self.wake.acquire()

    def carry_out(self) -> None:
        """Do the work and forget it; no error of any kind ends the thread."""
        work, self.work = self.work, None
        try:
            if work is not None:
                work()
        except BaseException:
            with suppress(BaseException):
                logger.exception("work on thread %s ended in an error", threading.current_thread().name)


class Threads:
    """Daemon threads that are started on demand, taken again when idle, and gone after `idle` seconds without work.

    `limit` is how many there are at most: what is beyond that waits for its turn, first come, first served. Without
    one nothing ever waits for other work to end, unless the machine itself has no thread left; and with `queues` False
    not even then: `start` raises.

    Guaranteed: work runs in a copy of the context of whoever brought it, and never keeps the process from ending.
    Not guaranteed: that work which is running or queued when the process ends is ended.
    """

    def __init__(self, name: str, *, limit: int | None = None, idle: float = 5.0, queues: bool = True) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"threads {name}: the limit must be at least 1, not {limit}")
        self._name, self._limit, self._patience, self._queues = name, limit, idle, queues
        self._forget()
        _everyone.add(self)

    def _forget(self) -> None:
        """Begin with no thread: at first, and in a child made by fork, where no thread of ours has survived."""
        self._crew = object()
        self._lock = threading.Lock()
        self._queue: deque[Callable[[], object]] = deque()
        self._idle: list[_Seat] = []
        self._count = self._started = 0

    def start(self, fn: Callable[[], object]) -> None:
        """Run `fn` on a thread; an error that it lets through is logged, and ends nothing.

        Raises RuntimeError where the machine has no thread left and none is there that could take it later: `fn` is
        then not run at all.
        """
        work = partial(contextvars.copy_context().run, fn)
        with self._lock:
            if self._idle:
                seat = self._idle.pop()  # the last to come: those who are not needed grow old and go
                seat.work = work
                seat.wake.release()
            elif self._limit is not None and self._count >= self._limit:
                self._queue.append(work)
            else:
                self._hire(work)

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Run `fn(*args, **kwargs)` on a thread and keep the outcome. Raises like `start`."""
        job: Job[T] = Job()

        def carry_out() -> None:
            try:
                value = fn(*args, **kwargs)
            except BaseException as error:
                job.fail(error)
            else:
                job.succeed(value)

        self.start(carry_out)
        return job

    async def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `fn(*args, **kwargs)` on a thread, in any event loop; raises like `start`, and what `fn` raises.

        Cancelled, the awaiter goes at once; the work goes on and its outcome is dropped. The loop itself only ever
        hears *that* the work has ended: the outcome, a `BaseException` as well, is raised in the awaiter alone.
        """
        import asyncio  # noqa: PLC0415  only who awaits has need of it

        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def tell(_job: Job[T]) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile, nobody waits
                loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))

        job = self.run(fn, *args, **kwargs)
        job.add_done_callback(tell)
        await ended
        return job.result()

    def dismiss(self) -> None:
        """Send idle threads home, and from now on every one that has nothing more to do. Work is still taken."""
        with self._lock:
            self._patience = 0.0
            seats, self._idle = self._idle, []
            self._count -= len(seats)
        for seat in seats:
            seat.wake.release()

    def _hire(self, work: Callable[[], object]) -> None:
        self._count += 1
        self._started += 1
        name = f"{self._name}-{self._started}"
        try:
            threading.Thread(target=self._serve, args=(_Seat(work), self._crew), name=name, daemon=True).start()
        except RuntimeError as error:
            self._count -= 1
            if not self._count or not self._queues:
                raise NoThreadError(f"the machine has no thread left: {error}") from error
            self._queue.append(work)

    def _serve(self, seat: _Seat, crew: object) -> None:
        seat.carry_out()
        while self._await_work(seat, crew):
            seat.carry_out()

    def _await_work(self, seat: _Seat, crew: object) -> bool:
        """Wait for a thread's next work; tells whether there is some, or else the thread no longer counts."""
        if self._crew is not crew:  # the work forked: in the child this is nobody's thread
            return False
        with self._lock:
            if self._queue:
                seat.work = self._queue.popleft()
                return True
            self._idle.append(seat)
        if seat.wake.acquire(timeout=self._patience):
            return seat.work is not None
        with self._lock:
            if seat in self._idle:
                self._idle.remove(seat)
                self._count -= 1
                return False
        seat.wake.acquire()  # work came at the very moment in which patience ended
        return seat.work is not None


_everyone: weakref.WeakSet[Threads] = weakref.WeakSet()


def _begin_child() -> None:
    for threads in list(_everyone):
        threads._forget()


os.register_at_fork(after_in_child=_begin_child)
