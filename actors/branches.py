"""Side by side: branches of a program, each in a scope of its own, whatever finishes first."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, overload

from actors.body import running_body
from actors.colours import asyncio_task
from actors.context import Context, Outcome
from actors.definitions import current
from domain.errors import NestedStepError, OutsideTaskError, Suspended, TaskCancelled
from domain.journal import left_over, look_up_gather

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")

KEY_LIMIT = 200
"""Characters that the key of a branch may have."""


@overload
async def gather(a: Awaitable[A], b: Awaitable[B], /) -> tuple[A, B]: ...
@overload
async def gather(a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> tuple[A, B, C]: ...
@overload
async def gather(*branches: Awaitable[A]) -> tuple[A, ...]: ...
@overload
async def gather(  # type: ignore[overload-overlap]
    a: Callable[[], Awaitable[A]], b: Callable[[], Awaitable[B]], /
) -> tuple[A, B]: ...
@overload
async def gather(  # type: ignore[overload-overlap]
    a: Callable[[], Awaitable[A]], b: Callable[[], Awaitable[B]], c: Callable[[], Awaitable[C]], /
) -> tuple[A, B, C]: ...
@overload
async def gather(*branches: Callable[[], Awaitable[A]]) -> tuple[A, ...]: ...  # type: ignore[overload-overlap]
@overload
def gather(a: Callable[[], A], b: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def gather(a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], /) -> tuple[A, B, C]: ...
@overload
def gather(*branches: Callable[[], A]) -> tuple[A, ...]: ...
def gather(*branches: Any) -> Any:
    """Run branches side by side; give their results in call order, whatever finishes first.

        summary, price = gather(partial(draft, text), partial(look_up, "acme"))         # in a sync agent
        summary, price = await gather(draft_async(text), look_up_async("acme"))         # in an async one

    A branch is a callable without arguments; in an async agent an awaitable, or a callable that gives one. It may have
    several steps, agents and gathers of its own. Every branch settles, however others end; then the first error in call
    order is raised, if there is one, but TaskCancelled before any other. After a crash only what is unfinished runs.
    Guaranteed: no thread is ever waited for; where none is free a branch runs on the thread that gathers. Not
    guaranteed: the order in which branches run, nor that any two run at the same moment; a choice by who came first
    belongs in a step.

    Raises OutsideTaskError where no task runs, NestedStepError in a body, TypeError for what is no branch.
    """
    return _gather("gather", branches, None, tuple)


@overload
async def map_steps(  # type: ignore[overload-overlap]
    fn: Callable[[T], Awaitable[R]], items: Iterable[T], *, limit: int | None = None
) -> list[R]: ...
@overload
def map_steps(fn: Callable[[T], R], items: Iterable[T], *, limit: int | None = None) -> list[R]: ...
def map_steps(fn: Callable[[Any], Any], items: Iterable[Any], *, limit: int | None = None) -> Any:
    """Run `fn(item)` for each item side by side, at most `limit` at once; give the results in the items' order.

    `fn` is a step, an agent, or any function that calls some: each call is a branch of a `gather`. The items have to
    be the same, in the same order, at each replay. Raises what `gather` does.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit is a whole number from 1, or None, not {limit!r}")
    return _gather("map_steps", [partial(fn, item) for item in items], limit, list)


@contextmanager
def branch(key: str, *, alone: bool = False) -> Iterator[None]:
    """Give the steps that are called inside a place of their own, by a key instead of their order.

        with branch(f"tool-{call.name}-{position}"):
            ...

    For code whose order is not its own, such as that of a framework: what is inside may run in any thread or asyncio
    task that inherits the agent's context. Inside, steps have an order again. A second branch of the same key in the
    same scope is another, by the order of opening. Every branch has to be opened again at each replay, and has to have
    ended before the agent does. Not guaranteed: that the task is unwound while all its branches wait, as in `gather`;
    nor that a framework which cancels the others when one fails can be replayed: where it cannot, the task is held.
    Never around a `yield`: a generator leaves the branch open in the code that it yields to.

    `alone` says that the code from which it was opened does nothing meanwhile but wait for its branches: then the task
    is unwound while they all wait, as in `gather`, and keeps no place. What goes on all the same begins anew then.

    Raises OutsideTaskError where no task runs, NestedStepError in a body, ValueError for a key that is no text of 1 to
    200 printable characters.
    """
    if type(key) is not str or not 0 < len(key) <= KEY_LIMIT or not key.isprintable():
        raise ValueError(f"the key of a branch is a text of 1 to {KEY_LIMIT} printable characters, not {key!r}")
    outer = _caller(f"branch({key!r})")
    outer.activation.check()
    inline = outer.is_here()
    here = outer.keyed(key)
    if not inline:
        here.activation.add_line(by_hand=True)
    token = current.set(here)
    try:
        with _left_waiting(outer, here) if alone and not inline else nullcontext():
            yield
    except BaseException as error:
        here.left(Outcome(error=error), outer)
        here.activation.check()
        raise
    else:
        here.left(Outcome(), outer)
        here.activation.check()
    finally:
        with suppress(ValueError):  # left by an async generator that was finalized elsewhere
            current.reset(token)
        if not inline:
            here.activation.drop_line(by_hand=True)


@contextmanager
def _left_waiting(outer: Context, here: Context) -> Iterator[None]:
    """Count the line of `outer` among those that wait; of several branches that say so, the first does that."""
    outer.left_to.append(here)
    try:
        with outer.activation.joining(lambda: outer.left_to[:1] != [here]):
            yield
    finally:
        outer.left_to.remove(here)
        outer.activation.wake()


def _caller(what: str) -> Context:
    body = running_body.get()
    if body is not None:
        raise NestedStepError(f"{what} was called inside the body of step {body.info.path} {body.info.name}")
    caller = current.get()
    if not isinstance(caller, Context):
        raise OutsideTaskError(f"{what} was called where no task runs: call it in an agent")
    return caller


def _gather(what: str, branches: Sequence[Any], limit: int | None, kind: Callable[[Iterable[Any]], Any]) -> Any:
    try:
        caller = _caller(f"{what}()")
    except BaseException:
        _discard(branches)
        raise
    if caller.colour.awaits if caller.is_here() else asyncio_task() is not None:
        return _gather_async(what, branches, limit, kind)
    return kind(_Gathering(what, branches, limit, awaits=False).run_all())


async def _gather_async(
    what: str, branches: Sequence[Any], limit: int | None, kind: Callable[[Iterable[Any]], Any]
) -> Any:
    """Gather where and when this is awaited: it may be a branch of another gather."""
    if (here := current.get()) is not None and isinstance(here, Context):
        await here.give_way()
    return kind(await _Gathering(what, branches, limit, awaits=True).await_all())


UNTOLD = Outcome(error=RuntimeError("a branch has ended without a word: a bug of perdure"))


class _Gathering:
    """One gather: its branches, and how each has left."""

    def __init__(self, what: str, branches: Sequence[Any], limit: int | None, *, awaits: bool) -> None:
        self._branches = branches
        self._limit = limit or len(branches)
        try:
            self._caller = caller = _caller(f"{what}()")
            caller.check(f"{what}()", "", blocks=not awaits)
            self._check_branches(what, awaits=awaits)
            self._path = caller.next_place().path
            if differs := look_up_gather(caller.activation.task, self._path, len(branches)):
                caller.hold_for_code(differs)
        except BaseException:
            _discard(branches)
            raise
        self._activation = caller.activation
        self._cleans_up = caller.cancelled  # before the first branch hears of a cancellation: each gets it
        self._outcomes: list[Outcome] = [UNTOLD] * len(branches)
        self._next = iter(range(len(branches)))
        self._lock = threading.Lock()
        self._called = self._helpers = 0
        self._running: set[Any] = set()
        self._cancelled = False

    def _check_branches(self, what: str, *, awaits: bool) -> None:
        for number, one in enumerate(self._branches, 1):
            if not (callable(one) or (awaits and inspect.isawaitable(one))):
                hint = "; give the call unmade, such as partial(fn, …)"
                if inspect.isawaitable(one):
                    hint = "; in a sync agent call an async step by .sync, such as partial(fn.sync, …)"
                raise TypeError(f"{what}: branch {number} is no callable without arguments, but {one!r:.80}{hint}")

    # ------------------------------------------------------------------ sync

    def run_all(self) -> list[Any]:
        """Run the branches on threads, and on this one; give their results."""
        with suppress(RuntimeError):  # the machine has no thread left: this one does the rest
            for _ in range(min(self._limit, len(self._branches)) - 1):
                self._call_helper()
        self._take_branches()
        self._activation.join(lambda: not self._helpers)
        return self._settled()

    def _call_helper(self) -> None:
        """Ask for a thread. It is a line of execution from here on: nothing is unwound because it is slow to come."""
        with self._lock:
            self._called += 1
        self._activation.add_line()
        try:
            self._activation.runtime.threads.start(self._help)
        except RuntimeError:
            self._send_home(1)
            raise

    def _send_home(self, most: int | None = None) -> None:
        """Count no longer on helpers that have not come: on `most` of them, or on none any more."""
        with self._lock:
            gone = self._called if most is None else min(most, self._called)
            self._called -= gone
        for _ in range(gone):
            self._activation.drop_line()

    def _help(self) -> None:
        """Run branches on a thread that was free; one that comes too late is not waited for."""
        first = self._take(helps=True)
        if first is None:
            return
        try:
            copy_context().run(self._run, first)
            self._take_branches()
        finally:
            with self._lock:
                self._helpers -= 1
            self._activation.drop_line()

    def _take_branches(self) -> None:
        """Run branches that nobody has begun, one after the other."""
        while (number := self._take()) is not None:
            copy_context().run(self._run, number)

    def _take(self, *, helps: bool = False) -> int | None:
        with self._lock:
            number = next(self._next, None)
            if helps and number is not None:
                self._called, self._helpers = self._called - 1, self._helpers + 1
        if number is None:
            self._send_home()
        return number

    def _run(self, number: int) -> None:
        scope = self._scope(number)
        self._outcomes[number] = scope.run(partial(_plain, self._branches[number]), self._caller)

    # ------------------------------------------------------------------ async

    async def await_all(self) -> list[Any]:
        """Run the branches in asyncio tasks of their own; give their results.

        A cancellation from outside is handed on to them all; what they make of it is in the log.
        """
        import asyncio  # noqa: PLC0415  a loop runs, so it is there

        many = min(self._limit, len(self._branches))
        for _ in range(many):  # before they run: nothing is unwound because a task of the loop has not begun
            self._activation.add_line()
        self._helpers = many
        runners = {asyncio.create_task(self._take_branches_async()) for _ in range(many)}
        with self._activation.under_limit(), self._activation.joining(lambda: not self._helpers):
            while runners:
                try:
                    _, runners = await asyncio.wait(runners)
                except asyncio.CancelledError:
                    self._cancelled = True  # a branch that begins later hears of it then
                    for task in list(self._running):
                        task.cancel()
        return self._settled()

    async def _take_branches_async(self) -> None:
        import asyncio  # noqa: PLC0415

        try:
            while (number := self._take()) is not None:
                task = asyncio.create_task(self._run_async(number), context=copy_context())
                await asyncio.wait([task])
                self._running.discard(task)
        finally:
            self._helpers -= 1
            self._activation.drop_line()

    async def _run_async(self, number: int) -> None:
        """Run one branch; nothing that it raises reaches its asyncio task."""
        me = asyncio_task()
        self._running.add(me)  # only now: a task that is cancelled before it has begun would never run
        if self._cancelled:
            me.cancel()
        try:
            scope = self._scope(number)
            self._outcomes[number] = await scope.run_async(partial(_await, self._branches[number]), self._caller)
        except BaseException as error:
            self._outcomes[number] = Outcome(error=error)

    # ------------------------------------------------------------------ both

    def _scope(self, number: int) -> Context:
        scope = self._caller.branch(self._path, number + 1)
        scope.cancelled = self._cleans_up
        return scope

    def _settled(self) -> list[Any]:
        """Give the results in call order, or raise the first error; all branches have left."""
        activation, outcomes = self._activation, self._outcomes
        activation.check()
        for error in [outcome.error for outcome in outcomes if activation.probe]:
            if error is not None and issubclass(type(error), Suspended):  # it has come to a body there
                activation.close(error)
        if differs := left_over(activation.task, self._path, len(outcomes)):
            self._caller.hold_for_code(differs)
        errors = [outcome.error for outcome in outcomes if outcome.error is not None]
        for error in sorted(errors, key=lambda error: not issubclass(type(error), TaskCancelled)):
            raise error
        return [outcome.value for outcome in outcomes]


def _plain(one: Callable[[], Any]) -> Any:
    made = one()
    if inspect.iscoroutine(made):
        made.close()
        raise TypeError(f"{one!r:.80} gives a coroutine, which a sync agent cannot await: call an async step by .sync")
    return made


async def _await(one: Any) -> Any:
    made = one() if callable(one) else one
    return await made if inspect.isawaitable(made) else made


def _discard(branches: Iterable[Any]) -> None:
    """Close coroutines that nobody will await, so that Python does not complain of them."""
    for one in branches:
        if inspect.iscoroutine(one):
            one.close()
