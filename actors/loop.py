"""The one event loop that all async agents of a worker share, and the dog that watches it.

The only file that imports asyncio; whoever needs the loop imports this file late.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import CodeType
from typing import Any, TypeAlias, TypeVar

from actors.threads import Job, NoThreadError
from domain.errors import Suspended, SystemClosedError

logger = logging.getLogger("perdure")

T = TypeVar("T")

Frames: TypeAlias = list[tuple[CodeType, int]]
"""The stack of what runs on a loop as code and line, from the loop's `run_forever` to the innermost."""

BLOCKED = 0.5
"""Seconds after which a loop that has not come round is called blocked."""

GRACE = 1.0
"""Seconds that `close` waits for what it has cancelled."""

_STDLIB = os.path.dirname(os.__file__) + os.sep


class LoopJob(Job[T]):
    """A coroutine that runs on the loop, and how it ended; callbacks are called on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Ask the coroutine to end, from any thread. It may refuse, and one that has ended hears nothing."""
        with suppress(RuntimeError):  # the loop is closed, so it has ended
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def begin(self, coroutine_function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Make the task; called on the loop's thread."""
        self._task = self._loop.create_task(self._contain(coroutine_function))
        self._task.add_done_callback(lambda _task: self.fail(asyncio.CancelledError("cancelled before it began")))

    async def _contain(self, coroutine_function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Run a coroutine so that its outcome is data: a task that let SystemExit through would stop the loop."""
        try:
            value = await coroutine_function()
        except BaseException as error:
            self.fail(error)
        else:
            self.succeed(value)


def log_blocked(seconds: float, frames: Frames) -> None:
    """Warn that the loop is blocked, and where: at the innermost line that is not the standard library's."""
    code, line = [(code, line) for code, line in frames if not _is_stdlib(code)][-1]
    logger.warning(
        "the event loop that all async agents share has been blocked for %.1f s by %s, %s:%d: nothing else runs on it"
        " meanwhile; await instead, or hand blocking work to a thread",
        seconds,
        code.co_qualname,
        code.co_filename,
        line,
    )


class SharedLoop:
    """An event loop on a daemon thread of its own, which begins with the first coroutine.

    Guaranteed: nothing that a coroutine raises, of whatever kind, ends the loop or another coroutine; neither keeps
    the process from ending. While a coroutine of `start` has not ended, a watchdog on a thread of its own calls
    `on_blocked(seconds, frames)` once for each time that code keeps the loop from coming round; otherwise nothing
    wakes up. Not guaranteed: that anything else runs while a coroutine blocks the loop, and that a blockage of less
    than one and a half times `blocked` seconds is seen.
    """

    def __init__(
        self,
        name: str = "perdure-loop",
        *,
        blocked: float = BLOCKED,
        on_blocked: Callable[[float, Frames], object] = log_blocked,
    ) -> None:
        self._name, self._blocked, self._on_blocked = name, blocked, on_blocked
        self._forget()
        _everyone.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._watchdog: threading.Thread | None = None
        self._jobs: set[Job[Any]] = set()
        self._busy, self._closing, self._over = threading.Event(), threading.Event(), False
        self._give_up_at = 0.0

    def start(self, coroutine_function: Callable[[], Coroutine[Any, Any, T]]) -> LoopJob[T]:
        """Run a coroutine as a task of its own, in a copy of the caller's context.

        What it raises, CancelledError included, is raised by the job's `result()`, on the thread that asks: never this
        loop's own, which would wait for itself. Raises SystemClosedError after `close`, and RuntimeError where the
        machine has no thread left.
        """
        with self._lock:
            if self._closing.is_set():
                raise SystemClosedError("the event loop of async agents was closed: nothing can be started on it")
            loop = self._loop or self._open()
            job: LoopJob[T] = LoopJob(loop)
            self._jobs.add(job)
            self._busy.set()
            if self._watchdog is None:
                self._watch(loop)
            loop.call_soon_threadsafe(job.begin, coroutine_function)
        job.add_done_callback(self._ended)
        return job

    def is_current(self) -> bool:
        """Tell whether the caller is on this loop's thread."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def close(self) -> None:
        """Cancel what is left and end the loop; wait for that at most 1 s, and not at all on the loop's own thread.

        What refuses to be cancelled goes on until it ends or the process does; its job is not done before that.
        """
        with self._lock:
            if not self._closing.is_set():
                self._give_up_at = time.monotonic() + GRACE
                self._closing.set()
                self._busy.set()
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._wind_down, self._loop)
        if self._thread is not None and not self.is_current():
            self._thread.join(max(0.0, self._give_up_at - time.monotonic()))

    def _open(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(self._log)
        thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            loop.close()
            raise NoThreadError(f"the machine has no thread left: {error}") from error
        self._loop, self._thread = loop, thread
        return loop

    def _ended(self, job: Job[Any]) -> None:
        with self._lock:
            self._jobs.discard(job)
            if not self._jobs and not self._closing.is_set():
                self._busy.clear()

    def _log(self, _loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        """Log what nobody has taken from a task of a user's own, if anybody could: not where all of it is unwound."""
        over = self._closing.is_set() or sys.is_finalizing() or issubclass(type(about.get("exception")), Suspended)
        level = logging.DEBUG if over else logging.ERROR
        logger.log(level, "on the event loop: %s", about.get("message"), exc_info=about.get("exception"))

    # ------------------------------------------------------------------ on the loop's thread

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._over:
            self._go_on(loop.run_forever)
        self._go_on(lambda: loop.run_until_complete(loop.shutdown_asyncgens()))
        loop.close()

    def _go_on(self, run: Callable[[], object]) -> None:
        """Run the loop until it is told to stop, by us or by a user's code, which does not decide that."""
        try:
            run()
        except BaseException:
            logger.exception("a task or callback raised this into the event loop, which goes on")
            self._closing.wait(0.01)  # were the loop itself broken, this would come again at once

    def _wind_down(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel all tasks, and those that they make meanwhile; when none is left, it is over."""
        left = asyncio.all_tasks(loop)
        if not left:
            self._over = True
            loop.stop()
            return

        def ended(task: asyncio.Task[Any]) -> None:
            left.discard(task)
            if not left:
                self._wind_down(loop)

        for task in list(left):
            task.cancel()
            task.add_done_callback(ended)

    # ------------------------------------------------------------------ the watchdog

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the watchdog; where there is no thread for it, the next coroutine tries again."""
        watchdog = threading.Thread(target=self._patrol, args=(loop,), name=f"{self._name}-watchdog", daemon=True)
        with suppress(RuntimeError):
            watchdog.start()
            self._watchdog = watchdog

    def _patrol(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closing.wait(self._blocked / 2):
            self._busy.wait()
            came_round = threading.Event()
            with suppress(RuntimeError):  # closed this very moment
                loop.call_soon_threadsafe(came_round.set)
                self._await_round(came_round)

    def _await_round(self, came_round: threading.Event) -> None:
        """Wait until the loop has come round; tell once if that takes too long."""
        since, told = time.monotonic(), False
        while not came_round.wait(self._blocked) and not self._closing.is_set():
            frames = self._stack()
            if told or all(_is_stdlib(code) for code, _ in frames):  # nobody's code: the machine is busy elsewhere
                continue
            told = True
            try:
                self._on_blocked(time.monotonic() - since, frames)
            except BaseException:
                logger.exception("on_blocked ended in an error, which changes nothing")

    def _stack(self) -> Frames:
        """Tell what runs on the loop at this moment."""
        frame = sys._current_frames().get(self._thread.ident or 0) if self._thread is not None else None
        frames: Frames = []
        while frame is not None and frame.f_code is not SharedLoop._go_on.__code__:
            frames.append((frame.f_code, frame.f_lineno or 0))
            frame = frame.f_back
        return frames[::-1] if frame is not None else []


def _is_stdlib(code: CodeType) -> bool:
    file = code.co_filename
    return file.startswith("<frozen ") or (file.startswith(_STDLIB) and "-packages" not in file)


_everyone: weakref.WeakSet[SharedLoop] = weakref.WeakSet()
_inherited: list[object] = []


def _begin_child() -> None:
    """Begin with no loop in a child made by fork. The parent's is kept: closing it here would stop it there."""
    for shared in list(_everyone):
        _inherited.append((shared._loop, shared._jobs))
        shared._forget()


os.register_at_fork(after_in_child=_begin_child)
