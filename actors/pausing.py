"""What an agent waits for: time, signals, and the first of several. `approvals.py` and `children.py` have the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from actors.activation import Activation
from actors.body import running_body
from actors.context import Context
from actors.definitions import current
from actors.waits import WaitCall, due_in
from domain.errors import NestedStepError, OutsideTaskError, WaitTimeoutError
from domain.events import SignalReceived, WaitEnded
from domain.retry import MOST_SECONDS
from domain.waits import ANY, RESERVED, SIGNAL, TIMER, Due, Source, Wait, first_of

YEARS = 1970, 9998
"""The years that a time may have: what is beyond them not every clock can show."""
NAME_LIMIT = 200
"""Characters that the name of a signal may have."""


def caller_of(what: str) -> Context:
    """Give the place in a program from which a wait is called.

    Raises NestedStepError in a body, OutsideTaskError where no task runs.
    """
    body = running_body.get()
    if body is not None:
        info = body.info
        raise NestedStepError(
            f"{what} was called inside the body of step {info.path} {info.name} of task {info.task_id}: a body is one"
            " effect; call it in the agent"
        )
    caller = current.get()
    if not isinstance(caller, Context):
        raise OutsideTaskError(f"{what} was called where no task runs: call it in an agent")
    return caller


def seconds_of(what: str, length: float | timedelta | None) -> float | None:
    """Check a length of time. Raises ValueError for what is none."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds is None:
        return None
    if type(seconds) not in (int, float) or not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(f"{what} is a timedelta, or seconds from 0 to {MOST_SECONDS:g}, not {length!r:.40}")
    return float(seconds)


def moment_of(what: str, moment: datetime) -> float:
    """Give Unix seconds. Raises ValueError for a time without a zone, TypeError for what is no time."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{what} is a datetime, not {moment!r:.60}")
    if moment.tzinfo is None:
        raise ValueError(f"{what} is a datetime with a zone, such as datetime.now(UTC), not {moment.isoformat()}")
    if not YEARS[0] <= moment.year <= YEARS[1]:
        raise ValueError(f"{what} is from the year {YEARS[0]} to {YEARS[1]}, not {moment.isoformat()}")
    return moment.timestamp()


def checked_signal(name: object) -> str:
    """Check the name of a signal. Raises ValueError."""
    if type(name) is not str or not 0 < len(name) <= NAME_LIMIT or not name.isprintable() or name[0] == RESERVED:
        what = f"1 to {NAME_LIMIT} printable characters that do not begin with {RESERVED!r}"
        raise ValueError(f"the name of a signal has {what}, not {name!r:.250}")
    return name


# ------------------------------------------------------------------ time


def sleep(length: float | timedelta) -> None:
    """Wait for some seconds, or a timedelta, in a sync agent; durably, whatever dies meanwhile.

    When it is over is in the log: a restart neither shortens nor lengthens it, and what is overdue is over at once.
    While its process lives it follows elapsed time, whatever the clock on the wall is set to; after that the wall. A
    task that waits for more than a moment costs one row. It may be longer than asked for by as much as recovery takes
    to look, half a second at most where a worker has a place; and never shorter.

    Raises TaskCancelled where the task is called off; ValueError; OutsideTaskError; NestedStepError;
    BlockingCallError in async code: await `sleep_async`.
    """
    caller = caller_of("sleep()")
    caller.wait("sleep()", _sleep(caller, length), "sleep_async")


async def sleep_async(length: float | timedelta) -> None:
    """Do what `sleep` does, in an async agent."""
    caller = caller_of("sleep_async()")
    await caller.wait_async("sleep_async()", _sleep(caller, length), "sleep")


def _sleep(caller: Context, length: float | timedelta) -> Wait:
    return Wait(TIMER, "sleep", (), due_in(caller.activation, seconds_of("a sleep", length)))


def sleep_until(moment: datetime) -> None:
    """Wait until a moment, a datetime with a zone, in a sync agent. It follows the clock on the wall.

    Raises what `sleep` does.
    """
    caller_of("sleep_until()").wait("sleep_until()", _sleep_until(moment), "sleep_until_async")


async def sleep_until_async(moment: datetime) -> None:
    """Do what `sleep_until` does, in an async agent."""
    await caller_of("sleep_until_async()").wait_async("sleep_until_async()", _sleep_until(moment), "sleep_until")


def _sleep_until(moment: datetime) -> Wait:
    return Wait(TIMER, "sleep_until", (), Due(moment_of("the end of a sleep", moment)))


# ------------------------------------------------------------------ signals


def receive(name: str, *, timeout: float | timedelta | None = None) -> Any:
    """Wait for a signal of that name in a sync agent, and give its value; signals of a name come in order, each once.

    Who sends it does so by `TaskRef.signal` or `perdure signal`; one that came before is kept. A signal that is in the
    log beats a time-out that is not. `timeout`: seconds, or a timedelta.

    Raises WaitTimeoutError, which fails the task where it is not caught; and what `sleep` does.
    """
    caller = caller_of("receive()")
    return _received(*caller.wait("receive()", _signal(caller, name, timeout), "receive_async"))


async def receive_async(name: str, *, timeout: float | timedelta | None = None) -> Any:  # noqa: ASYNC109  as `receive`
    """Do what `receive` does, in an async agent."""
    caller = caller_of("receive_async()")
    return _received(*await caller.wait_async("receive_async()", _signal(caller, name, timeout), "receive"))


def _signal(caller: Context, name: str, timeout: float | timedelta | None) -> Wait:
    source = Signal(name).source(caller.activation)
    return Wait(SIGNAL, name, (source,), due_in(caller.activation, seconds_of("a timeout", timeout)))


def _received(call: WaitCall, ended: WaitEnded) -> Any:
    raise_if_timed_out(call, ended, f"signal {call.wait.name!r} did not come")
    return call.value(call.letter(ended).value)


def raise_if_timed_out(call: WaitCall, ended: WaitEnded, what: str) -> None:
    """Raise WaitTimeoutError where a wait has ended by its time."""
    if ended.source < 0:
        raise WaitTimeoutError(f"task {call.activation.task.id}: {what} in time, for the wait at {call.path}")


# ------------------------------------------------------------------ the first of several


class Awaited(ABC):
    """Something for which `wait_any` waits: a `Signal`, a `Timer`, an `Approval`, a `ChildRef`."""

    @abstractmethod
    def source(self, activation: Activation) -> Source:
        """Give what is waited for."""

    @abstractmethod
    def take(self, call: WaitCall, letter: SignalReceived | None) -> Any:
        """Give the value of what has come, or raise what it means."""


@dataclass(frozen=True)
class Signal(Awaited):
    """A signal of that name, for `wait_any`; who gets it has received it."""

    name: str

    def source(self, activation: Activation) -> Source:  # noqa: ARG002  names are the same in every activation
        return Source(SIGNAL, checked_signal(self.name))

    def take(self, call: WaitCall, letter: SignalReceived | None) -> Any:
        assert letter is not None  # noqa: S101  it is what has come
        return call.value(letter.value)


@dataclass(frozen=True)
class Timer(Awaited):
    """Some seconds, a timedelta, or a moment with a zone, for `wait_any`. Its value is None."""

    length: float | timedelta | datetime

    def source(self, activation: Activation) -> Source:
        if isinstance(self.length, datetime):
            return Source(TIMER, "", Due(moment_of("a timer", self.length)))
        return Source(TIMER, "", due_in(activation, seconds_of("a timer", self.length)))

    def take(self, call: WaitCall, letter: SignalReceived | None) -> Any:  # noqa: ARG002  time brings nothing
        return None


class First:
    """What came first: `index` is its place among the arguments of `wait_any`."""

    def __init__(self, index: int, awaited: Awaited, call: WaitCall, letter: SignalReceived | None) -> None:
        self.index = index
        self.awaited = awaited
        self._call = call
        self._letter = letter

    def __repr__(self) -> str:
        return f"First(index={self.index}, awaited={self.awaited!r})"

    @property
    def value(self) -> Any:
        """Give a fresh copy of its value: of a signal, the Decision of an approval, what a child has returned.

        Raises ChildError for a child that has failed, or was cancelled.
        """
        return self.awaited.take(self._call, self._letter)


def wait_any(*awaited: Awaited, timeout: float | timedelta | None = None) -> First:
    """Wait for the first of several things, in a sync agent; which it was is in the log, and the same at each replay.

        first = wait_any(Signal("paid"), Timer(3600), pause, child)

    Of those that have come the first in the log counts, and times come after what is in the log. `timeout` in seconds,
    or a timedelta. What did not come first is not lost: it can be waited for again. Each call writes into the log what
    it waits for: of very many things, rather wait one by one.

    Raises WaitTimeoutError; TypeError for what cannot be waited for; and what `sleep` does.
    """
    caller = caller_of("wait_any()")
    return _first(awaited, *caller.wait("wait_any()", _any(caller, awaited, timeout), "wait_any_async"))


async def wait_any_async(
    *awaited: Awaited,
    timeout: float | timedelta | None = None,  # noqa: ASYNC109  as `wait_any`
) -> First:
    """Do what `wait_any` does, in an async agent."""
    caller = caller_of("wait_any_async()")
    return _first(awaited, *await caller.wait_async("wait_any_async()", _any(caller, awaited, timeout), "wait_any"))


def _any(caller: Context, awaited: Sequence[Awaited], timeout: float | timedelta | None) -> Wait:
    things: Sequence[object] = awaited
    for number, one in enumerate(things, 1):
        if not isinstance(one, Awaited):
            hint = "Signal(name), Timer(seconds), an Approval or a ChildRef"
            raise TypeError(f"wait_any: nothing can wait for argument {number}, {one!r:.80}: give {hint}")
    if not awaited:
        raise TypeError("wait_any: give at least one thing to wait for")
    sources = tuple(one.source(caller.activation) for one in awaited)
    due = due_in(caller.activation, seconds_of("a timeout", timeout))
    return Wait(ANY, first_of(sources), sources, due)


def _first(awaited: Sequence[Awaited], call: WaitCall, ended: WaitEnded) -> First:
    raise_if_timed_out(call, ended, "nothing that was waited for came")
    letter = call.letter(ended) if ended.signal else None
    return First(ended.source, awaited[ended.source], call, letter)
