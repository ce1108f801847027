"""One entry into the body of a step: on whichever thread or loop it belongs, within its time limits, beating or not.

Python cannot kill a thread. A body that passes a limit is given up: nobody waits for it any more, it is in doubt, and
what it returns later is dropped with a warning. A coroutine is cancelled besides.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.activation import Activation
from actors.colours import Colour, asyncio_task
from actors.info import StepInfo, checked
from actors.options import Options
from actors.threads import Job
from domain.errors import GivenUp, OutsideTaskError, OwnershipLost
from domain.faults import traceback_of
from domain.values import dumps
from stores import StoreError

if TYPE_CHECKING:
    from actors.loop import LoopJob

logger = logging.getLogger("perdure")

CANCEL_GRACE = 1.0
"""Seconds that a cancelled coroutine has to end before the agent goes on without it."""

running_body: ContextVar[Body | None] = ContextVar("perdure_body", default=None)
"""The body that runs in this context, also in threads to which it has copied it."""


class Ended:
    """How a body ended: with a value, with an error, or not at all: then `given_up` says why nobody waits for it.

    `cancelled` tells that a cancellation from outside ended it, `at` when it ended, by the monotonic clock.
    """

    __slots__ = ("at", "cancelled", "error", "given_up", "value")

    def __init__(
        self, value: Any = None, error: BaseException | None = None, given_up: str = "", *, cancelled: bool = False
    ) -> None:
        self.value = value
        self.error = error
        self.given_up = given_up
        self.cancelled = cancelled
        self.at = time.monotonic()


@dataclass(frozen=True)
class Limits:
    """Seconds that a body may take, and that it may go without a heartbeat; what the first is called."""

    timeout: float | None = None
    heartbeat: float | None = None
    name: str = "its time limit"


NO_LIMITS = Limits()


def limits_of(options: Options, began: float | None, now: float) -> Limits | None:
    """Give the limits of the next attempt at a step that `began` then; None where that over all attempts has passed.

    >>> limits_of(Options(timeout=9.0, total_timeout=30.0), began=100.0, now=125.0)
    Limits(timeout=5.0, heartbeat=None, name='the limit over all its attempts')
    """
    if not options.limited:
        return NO_LIMITS
    timeout, name = options.timeout, "its time limit"
    if options.total_timeout is not None:
        left = options.total_timeout
        if began is not None:
            left = min(left, began + left - now)
        if left <= 0:
            return None
        if timeout is None or left < timeout:
            timeout, name = left, "the limit over all its attempts"
    return Limits(timeout, options.heartbeat_timeout, name)


class Body:
    """One entry into a function that touches the world. Safe in all threads: it may beat from any."""

    _lock = threading.Condition(threading.Lock())
    """Guards what beats change, in all bodies: few beat, and each step would pay for a lock of its own."""
    _called_off = False
    _cancel: Callable[[], object] | None = None

    def __init__(
        self, activation: Activation, info: StepInfo, limits: Limits = NO_LIMITS, *, cleans_up: bool = False
    ) -> None:
        self.activation = activation
        self.info = info
        self.undos: Sequence[tuple[str, Any]] = ()
        self._limits = limits
        self._cleans_up = cleans_up
        self._began = self._beat = time.monotonic()
        self._given_up = ""
        self._detail: str | None = None
        self._writing = False
        self._told = False
        self.has_beaten = False

    # ------------------------------------------------------------------ running

    async def run(
        self, colour: Colour, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_async: bool
    ) -> Ended:
        """Run it, where the agent runs if it can, and tell how it ended; whatever it raises is data."""
        token = running_body.set(self)
        self._began = self._beat = time.monotonic()
        try:
            if self._limits is NO_LIMITS and is_async is colour.awaits:
                return await self._call_async(fn, args, kwargs) if is_async else self._call(fn, args, kwargs)
            return await self._await(colour, self._start(colour, fn, args, kwargs, is_async=is_async))
        finally:
            running_body.reset(token)
            self._end("it has ended")

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ended:
        try:
            return Ended(fn(*args, **kwargs))
        except BaseException as raised:
            return Ended(error=from_users_code(raised))

    async def _call_async(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ended:
        me = asyncio_task()
        ours = _Cancelling(me)
        self._cancel = ours.begin
        try:
            if self._called_off:
                return Ended(given_up="its task was called off")
            return Ended(await fn(*args, **kwargs))
        except BaseException as raised:
            if issubclass(type(raised), GeneratorExit) and asyncio_task() is not me:  # it is collected as garbage
                raise
            return Ended(error=from_users_code(raised), cancelled=was_cancelled(raised))
        finally:
            ours.end()

    def _start(
        self, colour: Colour, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_async: bool
    ) -> Job[Ended]:
        runtime = self.activation.runtime
        if not is_async:
            return runtime.threads.run(self._call, fn, args, kwargs)
        if not colour.awaits:
            return runtime.loop.start(lambda: self._call_async(fn, args, kwargs))
        import asyncio  # noqa: PLC0415  a loop runs, so it is there

        from actors.loop import LoopJob  # noqa: PLC0415

        job: LoopJob[Ended] = LoopJob(asyncio.get_running_loop())
        job.begin(lambda: self._call_async(fn, args, kwargs))
        return job

    async def _await(self, colour: Colour, job: Job[Ended]) -> Ended:
        why, cancelled = "", False
        while not why:
            try:
                done = await colour.wait(job, self._time_left())
            except BaseException as error:
                if not was_cancelled(error):
                    raise
                done, cancelled = False, True
            why = "" if done else "it was cancelled from outside" if cancelled else self._overdue()
            if done:
                ended = _outcome(job)
                why = self._overdue_at(ended.at)  # it may have kept the very loop busy that was to see to its limit
                if not why:
                    return ended
        self._end(why)
        job.add_done_callback(self._late)
        cancel = getattr(job, "cancel", None)
        if cancel is not None:
            cancel()
            await _patiently(colour, job)
        return Ended(given_up=why, cancelled=cancelled)

    def call_off(self) -> None:
        """Let it know that its task was called off: a heartbeat raises, a coroutine is cancelled; but for clean-up."""
        if not self._cleans_up and not self._called_off:
            self._called_off = True
            if self._cancel is not None:
                self._cancel()

    def _end(self, why: str) -> None:
        """Take no heartbeat any more; the first reason counts."""
        with self._lock:
            self._given_up = self._given_up or why

    def _time_left(self) -> float | None:
        now, limits = time.monotonic(), self._limits
        ends = [self._began + limits.timeout] if limits.timeout is not None else []
        ends += [self._beat + limits.heartbeat] if limits.heartbeat is not None else []
        return max(0.0, min(ends) - now) if ends else None

    def _overdue_at(self, moment: float) -> str:
        limits = self._limits
        if limits.timeout is None or moment < self._began + limits.timeout:
            return ""
        return f"it was given up at {limits.name}, after {limits.timeout:.4g} s"

    def _overdue(self) -> str:
        now, limits = time.monotonic(), self._limits
        if why := self._overdue_at(now):
            return why
        if limits.heartbeat is not None and now >= self._beat + limits.heartbeat:
            return f"it was given up after {limits.heartbeat:.4g} s without a heartbeat"
        return ""

    def _late(self, job: Job[Ended]) -> None:
        ended = _outcome(job)
        if issubclass(type(ended.error), GivenUp) or type(ended.error).__name__ == "CancelledError":
            return
        info = self.info
        logger.warning(
            "late result dropped: step %s %s of task %s, attempt %d, has ended after all (%s), but %s",
            *(info.path, info.name, info.task_id, info.attempt),
            "with a value" if ended.error is None else f"with {type(ended.error).__name__}",
            self._given_up,
        )

    # ------------------------------------------------------------------ beating

    def beat(self, detail: Any) -> None:
        """Take note that the body is alive, and store its detail. Raises GivenUp where nobody waits for it any more."""
        text = dumps(checked(detail, self.activation.runtime.value_limit))
        with self._lock:
            if self._is_given_up() or self._called_off:
                off = "its task was called off" if self._called_off else "its worker has lost the task, or was stopped"
                info = self.info
                raise GivenUp(
                    f"step {info.path} {info.name} of task {info.task_id}, attempt {info.attempt}: nobody waits for it"
                    f" any more: {self._given_up or off}"
                )
            self._beat, self.has_beaten = time.monotonic(), True
            self._detail = text
            if self._writing:
                return
            self._writing = True
        if asyncio_task() is not None:
            with suppress(RuntimeError):  # the machine has no thread left: better a short wait of the loop than no row
                self.activation.runtime.threads.start(self._write)
                return
        self._write()

    def _is_given_up(self) -> bool:
        lost = isinstance(self.activation.closed, OwnershipLost) or self.activation.hints.over.is_set()
        return lost or bool(self._given_up)

    def unless_given_up(self, act: Callable[[], object]) -> None:
        """Act, unless nobody waits for this body any more; it is not given up while that lasts."""
        with self._lock:
            if not self._is_given_up():
                act()

    def _write(self) -> None:
        """Store the newest detail, until there is no newer one."""
        while True:
            with self._lock:
                text, self._detail = self._detail, None
                if text is None:
                    self._written()
                    return
            self._save(text)

    def _written(self) -> None:
        self._writing = False
        self._lock.notify_all()

    def flush(self) -> None:
        """Wait until the last detail is stored: the next attempt asks for it, and a step that has ended forgets it."""
        with self._lock:
            self._lock.wait_for(lambda: not self._writing)

    def _save(self, text: str) -> None:
        info = self.info
        try:
            self.activation.store.recorder.save_heartbeat(info.task_id, info.birth, info.path, info.attempt, text)
        except StoreError as error:
            if not self._told:
                self._told = True
                logger.warning("a heartbeat of step %s of task %s is not stored: %s", info.path, info.task_id, error)
        except BaseException:
            with self._lock:
                self._written()
            raise


class _Cancelling:
    """Cancels the asyncio task on which a coroutine body runs, from any thread, while the body runs and no longer."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._over = self._begun = False

    def begin(self) -> None:
        """Cancel it, from any thread."""
        with suppress(RuntimeError):  # the loop was closed
            self._task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._over and not self._begun:
            self._begun = True
            self._task.cancel()

    def end(self) -> None:
        """Take the cancellation back, on the loop: what the task does from now on is not the body's."""
        self._over = True
        if self._begun:
            self._task.uncancel()


def heartbeat(detail: Any = None) -> None:
    """Tell from the body of a step that it is alive, and how far it is.

    The last `detail`, any value that can be stored, is given to the next attempt as `step_info().heartbeat`. One row is
    overwritten each time, which costs a commit; on an event loop that is left to a thread. Not guaranteed: that a
    detail is stored while the store is away, or that of an async body when its process dies in the same moment.

    Raises OutsideTaskError outside of a body, UnstorableValueError; and GivenUp, a BaseException, where the body was
    given up meanwhile, or its task called off: let it through.
    """
    body = running_body.get()
    if body is None:
        raise OutsideTaskError("heartbeat() was called outside of the body of a step: only a body can be given up")
    body.beat(detail)


def was_cancelled(error: BaseException) -> bool:
    """Tell whether an error is the cancellation of the asyncio task that runs here, asked for from outside."""
    cancelled = getattr(sys.modules.get("asyncio"), "CancelledError", None)
    if cancelled is None or not issubclass(type(error), cancelled):
        return False
    task = asyncio_task()
    cancelling = getattr(task, "cancelling", None)
    return cancelling is not None and cancelling() > 0


def from_users_code(error: BaseException) -> BaseException:
    """Cut our own frame off a traceback: it begins in the user's function."""
    trace = traceback_of(error)
    return BaseException.with_traceback(error, trace and trace.tb_next)


async def _patiently(colour: Colour, job: Job[Ended]) -> None:
    """Give a cancelled coroutine a moment to end, so that the next attempt does not meet its clean-up."""
    try:
        await colour.wait(job, CANCEL_GRACE)
    except BaseException as error:
        if not was_cancelled(error):
            raise


def _outcome(job: Job[Ended]) -> Ended:
    try:
        return job.result(0)
    except BaseException as error:  # cancelled before it began
        return Ended(error=error)


def last_heartbeat(activation: Activation, path: str) -> str | None:
    """Give the detail of the last heartbeat of a step; what keeps it from being read closes the activation."""
    task = activation.task
    found = activation.take(lambda: activation.store.recorder.select_heartbeat(task.id, task.birth, path))
    return None if found is None else found[1]


def forget_heartbeat(activation: Activation, path: str) -> None:
    """Forget the heartbeats of a step that has ended; where the store cannot, nobody asks for them again."""
    task = activation.task
    if task.steps[path].outcome is None:
        return
    try:
        activation.store.recorder.delete_heartbeats(task.id, path)
    except StoreError as error:
        logger.debug("the heartbeats of step %s of task %s are left behind: %s", path, task.id, error)
    except BaseException as error:
        activation.close(error)
