"""`TaskRef`: a task by its id, and what can be asked of it and decided about it, from any process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from actors.colours import LoopBell
from actors.context import lend_place, refuse_inside_agent, refuse_on_any_loop, refuse_on_loop
from actors.feed import Feed
from actors.notice import Also, Notice
from actors.patience import CLIENT_PATIENCE
from actors.remote import Reach, Reached
from actors.task_log import EndBell
from actors.view import TaskView, describe
from actors.watching import Watch, Watching
from domain.errors import TaskCancelledError, TaskFailedError, TaskHeldError, UnknownTaskError, UnreadableTaskError
from domain.events import Cancelled, Completed, Ending, Failed, TaskEvent
from domain.faults import Fault
from domain.state import ENDED, UNREADABLE, Status
from domain.values import decode
from stores import IndexRow, StoreUnavailableError

R = TypeVar("R")

FIRST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks of who waits for a result."""


class Home(Reach, Protocol):
    """The system through which a task is reached."""

    @property
    def watching(self) -> Watching:
        """The watches on tasks. Raises RuntimeError before the system is open."""
        ...

    def may_go_on(self, task_id: str) -> bool:
        """Tell whether a held task is still to be looked at again here."""
        ...

    def hosts(self, task_id: str) -> bool:
        """Tell whether a task has a place here, and so will be hinted at when it has ended."""
        ...

    def will_look_at(self, row: IndexRow) -> bool:
        """Tell whether a hold is news here, and still to be looked at."""
        ...


class TaskRef(Reached, Generic[R]):
    """A task, by its id: the same from every process.

    Holds nothing but the id; one that `spawn` gives has the task's birth too, lest a wait ask for it.
    """

    def __init__(self, system: Home, id: str, birth: str = "") -> None:
        self._system: Home = system
        self._birth = birth
        self.id = id

    def __repr__(self) -> str:
        return f"TaskRef({self.id!r})"

    def result(self, timeout: float | None = None) -> R:
        """Wait for the agent's value, at most `timeout` seconds, and give a fresh copy of it.

        Raises TaskFailedError, TaskCancelledError, TaskHeldError at once when the task is held, TimeoutError,
        UnknownTaskError, InsideTaskError in an agent between its steps, BlockingCallError on an event loop,
        UnknownTypeError for a class that this process does not know; and StoreUnavailableError when the store was away
        for 30 s.

        In the body of a step, or a thread to which it has copied its context, it lends the place of its task meanwhile.
        Other threads of a body lend nothing: with as many of them as there are places, all could wait for ever.
        """
        refuse_inside_agent("result()", "call it in a step")
        refuse_on_any_loop("result()", "await the task, or result_async(timeout)")
        with lend_place():
            wait = _Wait(self, timeout, bell := _Bell())
            with self._log.watch(self.id, bell):
                while (pause := wait.look()) is not None:
                    bell.wait(pause)
                    bell.clear()
            return self._outcome(wait)

    async def result_async(self, timeout: float | None = None) -> R:  # noqa: ASYNC109  as `result`
        """Do what `result` does, without blocking the event loop; cancelled, it goes, and the task goes on."""
        import asyncio  # noqa: PLC0415  a loop runs, so it is there

        refuse_inside_agent("result_async()", "call it in a step")
        with lend_place():
            wait = _Wait(self, timeout, bell := _LoopBell(asyncio.Event(), asyncio.get_running_loop()))
            with self._log.watch(self.id, bell):
                while (pause := await self._call(wait.look)) is not None:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(bell.event.wait(), pause)
                    bell.event.clear()
            return await self._call(self._outcome, wait)

    def __await__(self) -> Generator[Any, None, R]:
        """Wait for the result: `await task`. Raises what `result` does."""
        return self.result_async().__await__()

    def status(self) -> Status:
        """Give the task's status. Raises UnknownTaskError."""
        refuse_on_loop("status()", "await status_async()")
        return self._row().status  # type: ignore[return-value]

    async def status_async(self) -> Status:
        """Do what `status` does, without blocking the event loop."""
        return await self._call(self.status)

    def describe(self) -> TaskView:
        """Give what the log says of the task now. Raises UnknownTaskError, UnreadableTaskError."""
        refuse_on_loop("describe()", "await describe_async()")
        return describe(self._log.load(self.id))

    async def describe_async(self) -> TaskView:
        """Do what `describe` does, without blocking the event loop."""
        return await self._call(self.describe)

    def events(self, *, after: int = 0) -> list[TaskEvent]:
        """Give the task's events, those with a version above `after`. Raises UnknownTaskError, UnreadableTaskError."""
        refuse_on_loop("events()", "await events_async()")
        row = self._row()
        return list(self._log.events.get(self.id, gt=after, birth=row.birth))

    async def events_async(self, *, after: int = 0) -> list[TaskEvent]:
        """Do what `events` does, without blocking the event loop."""
        return await self._call(partial(self.events, after=after))

    def on_end(self, callback: Callable[[Notice], object], *, also: Iterable[Also] = ()) -> Watch:
        """Have `callback(notice)` called once when the task has ended, or soon where it has, whichever process ran it.

            system.task("report-7").on_end(lambda notice: print(notice.status, notice.reason))

        With "held" or "restarted" in `also` it is called as well each time that this happens from now on, and for a
        hold that stands now; in the order of the log. "restarted" is told after a crash of the task's own, not when it
        begins anew with its group.

        Guaranteed: each notice is told once to each watch, as long as this system is open; while the store is away it
        waits. What the log has when `close` is called, or gets while tasks end in its grace, is told before `close`
        returns, if all callbacks together take less than a second. Not guaranteed: anything after the death of the
        process. A watch is in no log: after a restart ask again, which tells an end that was missed. What another
        process does is seen within half a second, or with tens of thousands of watches a few.

        Calls come from threads of the system, one after the other for each watch; a slow one delays no other watch.
        What a callback raises is logged, and changes nothing. It may use the system, `close` it too.

        Raises UnknownTaskError, InsideTaskError in an agent between its steps, BlockingCallError, SystemClosedError,
        the store's errors, RuntimeError where the machine has no thread left; TypeError for what cannot be called
        with one argument, or is async, ValueError for what cannot be told.
        """
        refuse_inside_agent("on_end()", "call it in a step, or where the task was spawned")
        refuse_on_loop("on_end()", "await on_end_async(…)")
        return self._system.watching.add(self.id, callback, also)

    async def on_end_async(self, callback: Callable[[Notice], object], *, also: Iterable[Also] = ()) -> Watch:
        """Do what `on_end` does, without blocking the event loop, on which the callback is not called either.

        Cancelled, the watch may have begun all the same.
        """
        refuse_inside_agent("on_end_async()", "call it in a step, or where the task was spawned")
        return await self._call(partial(self.on_end, callback, also=also))

    def follow(self, after: int = 0) -> Feed:
        """Give what happens to the task, as it comes: an iterator for `for`, and for `async for`.

            for update in system.task("report-7").follow():
                match update:
                    case StepBegan(name=name):
                        print(name)
                    case Emitted(channel="text", value=text):
                        print(text, end="")

        Updates are `StepBegan`, `StepEnded`, `Emitted`, `Reset`; `TaskWaiting` and `WaitOver`; `ApprovalAsked`, with
        the id by which it is answered, and `ApprovalAnswered`; `SignalArrived`; `ChildBegan`, `ChildEnded`;
        `CancelAsked`; `TaskHeld`, `TaskReleased`; and, at last, `TaskEnded`. A hold ends nothing. Each has a cursor, an
        int that only grows, and serves a browser as `Last-Event-ID`: with `after` one goes on behind it, in any
        process, without a gap or a repeat. Releases may add kinds.

        Not guaranteed: what `emit` does not. An update of another process is seen within 50 ms while the task runs,
        else within half a second.

        Raises ValueError for a cursor that is none, InsideTaskError in an agent between its steps. The iterator raises
        UnknownTaskError, also where the task was deleted meanwhile, UnreadableTaskError, StoreCorruptError
        for an emission that cannot be read, SystemClosedError, StoreUnavailableError when the store was away for 30 s;
        `for` on an event loop BlockingCallError.
        """
        refuse_inside_agent("follow()", "call it in a step")
        if type(after) is not int or after < 0:
            raise ValueError(f"a cursor is a whole number from 0, as an update has it, not {after!r}")
        return Feed(self._system, self.id, after)

    def _last(self, row: IndexRow) -> Ending:
        """Read the last event of a task that has ended. Raises UnknownTaskError where it was deleted meanwhile."""
        try:
            events = list(self._log.events.get(self.id, desc=True, limit=1, birth=row.birth))
        except UnreadableTaskError:
            if self._row().birth == row.birth:
                raise
            events = []
        if not events or not isinstance(events[0], Completed | Failed | Cancelled):
            raise UnknownTaskError(f"task {self.id} was deleted meanwhile", task_id=self.id)
        return events[0]

    def _outcome(self, wait: _Wait) -> R:
        row, ending = wait.row, wait.ending
        if ending is None and row.status == "held":
            why = row.note if row.hold == UNREADABLE else self.describe().why
            raise TaskHeldError(f"task {self.id} is held: {why}", task_id=self.id, reason=row.hold or "held")
        ending = ending or self._last(row)
        if isinstance(ending, Completed):
            return decode(ending.value)  # type: ignore[return-value]
        if isinstance(ending, Cancelled):
            raise _cancelled(self.id, ending)
        assert isinstance(ending, Failed)  # noqa: S101
        fault = Fault.from_data(ending.error)
        raise TaskFailedError(f"task {self.id} failed: {fault}", task_id=self.id, fault=fault)


def _cancelled(task_id: str, ending: Cancelled) -> TaskCancelledError:
    why = f": {ending.reason}" if ending.reason else ""
    cut = "; its own clean-up was cut off, or never begun" if ending.cut else ""
    doubts = f"; in doubt: step {', '.join(ending.doubts)}" if ending.doubts else ""
    message = f"task {task_id} was cancelled by {ending.by}{why}{cut}{doubts}"
    facts = {"reason": ending.reason, "by": ending.by, "doubts": ending.doubts, "cut": ending.cut}
    return TaskCancelledError(message, task_id=task_id, **facts)


class _Bell(EndBell, threading.Event):
    """What a wait on a thread hears."""


class _LoopBell(EndBell, LoopBell):
    """What a wait on an event loop hears."""


class _Wait:
    """One wait for a task to end or to be held, look by look."""

    def __init__(self, task: TaskRef[Any], timeout: float | None, bell: EndBell) -> None:
        self.row: Any = None
        self._bell = bell
        self.ending: Ending | None = None
        self._task = task
        self._timeout = timeout
        self._until = None if timeout is None else time.monotonic() + timeout
        self._pause = FIRST_POLL
        self._birth = ""
        self._trusts_hints = bool(task._birth)
        self._away_since: float | None = None

    def look(self) -> float | None:
        """Look once: seconds until the next look, or None where the task has ended or is held.

        How it has ended `ending` says, or `row`.
        """
        task = self._task
        self.ending = self._bell.has_heard(self._birth or task._birth)
        if self.ending is not None:
            return None
        try:
            if self._trusts_hints and task._system.hosts(task.id):
                self._trusts_hints = False  # once: the hint of who lets go of it wakes this, or the next look finds it
                return FIRST_POLL if self._timeout is None else min(FIRST_POLL, max(0.0, self._timeout))
            again = task._system.may_go_on(task.id)
            self.row = row = self._found(task._row())
            if row.status in ENDED or (row.status == "held" and not again and self._stays(row)):
                return None
            status, self._away_since = row.status, None
        except StoreUnavailableError:
            status, self._away_since = "unknown: the store is away", self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > CLIENT_PATIENCE:
                raise
        pause, self._pause = self._pause, min(self._pause * 1.5, LONGEST_POLL)
        left = pause if self._until is None else self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"task {task.id} has no result after {self._timeout:g} s: it is {status}")
        return min(pause, left)

    def _found(self, row: IndexRow) -> IndexRow:
        """Give the row back. Raises UnknownTaskError where it is that of another life of the id by now."""
        if self._birth not in ("", row.birth):
            raise UnknownTaskError(f"task {row.id} was deleted, its id is another task's now", task_id=row.id)
        self._birth = row.birth
        return row

    def _stays(self, row: IndexRow) -> bool:
        """Tell whether a hold is the last word, as far as one can tell here; this worker may be about to look at it."""
        return not self._task._system.will_look_at(row) and self._task._row() == row
