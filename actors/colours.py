"""The two colours of running code, for an engine that is written once.

The engine is coroutines. In sync code nothing in them ever suspends: `drive` runs one to its end on the spot. In async
code they are awaited on the loop, and what would block it is handed to a thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import get_ident
from typing import Any, Protocol, TypeVar

from actors.threads import Job, Threads

R = TypeVar("R")


class Colour(Protocol):
    """How a line of execution waits."""

    awaits: bool

    async def run(
        self, threads: Threads, fn: Callable[..., R], *args: Any, on_cancel: Callable[[], object] = lambda: None
    ) -> tuple[R, bool]:
        """Run what blocks, to its end whatever happens; tells also whether a cancellation came meanwhile.

        `on_cancel` is told of one at once.
        """
        ...

    async def wait(self, job: Job[Any], seconds: float | None) -> bool:
        """Wait for a job, at most so long; tells whether it is done. A cancellation goes through."""
        ...


class _Blocking:
    awaits = False

    async def run(
        self,
        threads: Threads,  # noqa: ARG002  it runs right here
        fn: Callable[..., R],
        *args: Any,
        on_cancel: Callable[[], object] = lambda: None,  # noqa: ARG002  nothing can cancel it
    ) -> tuple[R, bool]:
        return fn(*args), False

    async def wait(self, job: Job[Any], seconds: float | None) -> bool:
        return job.done.wait(seconds)


class _Awaiting:
    awaits = True

    async def run(
        self, threads: Threads, fn: Callable[..., R], *args: Any, on_cancel: Callable[[], object] = lambda: None
    ) -> tuple[R, bool]:
        import asyncio  # noqa: PLC0415  a loop runs, so it is there

        job, cancelled = threads.run(fn, *args), False
        while not job.done.is_set():
            try:
                await self.wait(job, None)
            except asyncio.CancelledError:
                cancelled = True
                on_cancel()
        return job.result(), cancelled

    async def wait(self, job: Job[Any], seconds: float | None) -> bool:
        import asyncio  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def tell(_job: Job[Any]) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile, nobody waits
                loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))

        job.add_done_callback(tell)
        try:
            await asyncio.wait([ended], timeout=seconds)
        finally:
            job.remove_done_callback(tell)
        return job.done.is_set()


class Arrival:
    """A word that comes once, from any thread, and is awaited whatever happens to who awaits. Made on the loop."""

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415  a loop runs, so it is there

        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._came = False
        self._word: Any = None

    def tell(self) -> None:
        """Let the word come."""
        self._came = True
        if get_ident() == self._thread:
            self._wake()
            return
        with suppress(RuntimeError):  # the loop was closed meanwhile, nobody waits
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._word is not None and not self._word.done():
            self._word.set_result(None)

    async def wait(self) -> bool:
        """Await the word; tells whether a cancellation came meanwhile. Others on the loop have their turn."""
        import asyncio  # noqa: PLC0415

        cancelled = False
        if self._came:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                cancelled = True
        while not self._came:
            self._word = self._loop.create_future()
            try:
                await self._word
            except asyncio.CancelledError:
                cancelled = True
        return cancelled


class LoopBell:
    """What rings an asyncio event from any thread."""

    def __init__(self, event: Any, loop: Any) -> None:
        self.event = event
        self._loop = loop

    def set(self) -> None:
        """Ring."""
        with suppress(RuntimeError):  # the loop was closed, nobody waits
            self._loop.call_soon_threadsafe(self.event.set)


BLOCKING: Colour = _Blocking()
AWAITING: Colour = _Awaiting()


def drive(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine of the engine to its end, in sync code, where none of them ever suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: R = end.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine of the engine has suspended in sync code")


def asyncio_task() -> Any:
    """Give the asyncio task that runs here, without importing asyncio for it; the loop, where it runs none.

    None where no event loop runs on this thread.
    """
    asyncio: Any = sys.modules.get("asyncio")
    running_loop = getattr(asyncio, "_get_running_loop", None)  # another thread may be in the middle of its import
    loop = running_loop() if running_loop is not None else None
    if loop is None:
        return None
    return asyncio.current_task(loop) or loop


def has_time_limit(task: Any) -> bool:
    """Tell whether an `asyncio.timeout` is running down around what an asyncio task does, as far as one can tell."""
    import asyncio  # noqa: PLC0415  a loop runs, so it is there

    for handle in list(getattr(task.get_loop(), "_scheduled", ())):
        limit = getattr(getattr(handle, "_callback", None), "__self__", None)
        if isinstance(limit, asyncio.Timeout) and getattr(limit, "_task", None) is task and not handle.cancelled():
            return True
    return False
