"""Agents of both colours written once, whose steps are written down, and what is asked of tasks that are called off."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest

from actors import (
    AgentSystem,
    TaskCancelled,
    TaskCancelledError,
    TaskRef,
    agent,
    branch,
    compensate,
    gather,
    map_steps,
    receive,
    receive_async,
    sleep,
    sleep_async,
    step,
)
from actors.colours import drive
from domain.events import CancelDelivered, Cancelled, Completed, Failed, StepStarted, TaskEvent
from stores import Store
from tests.lives import PATIENCE

COLOURS = ["sync", "async"]
BOTH = pytest.mark.parametrize("colour", COLOURS)
ENDINGS = (Completed, Failed, Cancelled)
DAY = 86_400.0


class Hands:
    """What an agent does, in its own colour; in a sync one nothing of it ever suspends."""

    def __init__(self, *, awaits: bool) -> None:
        self.awaits = awaits

    async def do(self, fn: Any, *args: Any) -> Any:
        """Call a step, or an agent, of either colour."""
        if self.awaits:
            return await (fn(*args) if fn.is_async else fn.aio(*args))
        return fn.sync(*args) if fn.is_async else fn(*args)

    async def sleep(self, seconds: float) -> None:
        if self.awaits:
            await sleep_async(seconds)
        else:
            sleep(seconds)

    async def receive(self, name: str, timeout: float | None = None) -> Any:  # noqa: ASYNC109  as `receive`
        if self.awaits:
            return await receive_async(name, timeout=timeout)
        return receive(name, timeout=timeout)

    async def gather(self, *branches: Callable[[], Awaitable[Any]], limit: int | None = None) -> list[Any]:
        """Gather coroutine functions."""
        if self.awaits:
            if limit is None:
                return list(await gather(*branches))
            return await map_steps(lambda one: one(), branches, limit=limit)
        sync: list[Callable[[], Any]] = [partial(_driven, one) for one in branches]
        if limit is None:
            return list(gather(*sync))
        return map_steps(lambda one: one(), sync, limit=limit)

    async def keyed(self, branches: dict[str, Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Run coroutine functions in branches that have keys, as a framework would: on threads or tasks by hand."""
        if self.awaits:

            async def inside(key: str) -> Any:
                with branch(key):
                    return await branches[key]()

            return list(await asyncio.gather(*(inside(key) for key in branches), return_exceptions=True))
        return _on_threads(branches)


def _driven(code: Callable[[], Any]) -> Any:
    return drive(code())


def _on_threads(branches: dict[str, Callable[[], Any]]) -> list[Any]:
    came: dict[str, Any] = {}

    def inside(key: str) -> None:
        try:
            with branch(key):
                came[key] = drive(branches[key]())
        except BaseException as error:
            came[key] = error

    threads = [threading.Thread(target=copy_context().run, args=(inside, key), daemon=True) for key in branches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [came[key] for key in branches]


def made(colour: str, code: Callable[..., Any], name: str = "flow", **options: Any) -> Any:
    """Make an agent of `code(hands, *args)`, a coroutine function."""
    if colour == "sync":

        @agent(name=name, **options)
        def flow(*args: Any) -> Any:
            return drive(code(Hands(awaits=False), *args))

        return flow

    @agent(name=name, **options)
    async def flow_async(*args: Any) -> Any:
        return await code(Hands(awaits=True), *args)

    return flow_async


class Notes:
    """Steps `note`, of which each run is written down, and which do for some values what they were told to do."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.does: dict[Any, Callable[[], Any]] = {}

        @step(name="note")
        def note(value: Any) -> Any:
            self.ran.append(value)
            return self.does.get(value, lambda: value)()

        @step(name="undo")
        def undo(value: Any) -> Any:
            self.ran.append(f"undo {value}")
            return self.does.get(f"undo {value}", lambda: value)()

        @step(name="book")
        def book(value: Any) -> Any:
            compensate(undo, value)
            self.ran.append(value)
            return self.does.get(value, lambda: value)()

        self.note, self.undo, self.book = note, undo, book

    def count(self, value: Any) -> int:
        return self.ran.count(value)


def spotless(code: Callable[..., Any], notes: Notes, *cleanup: Any) -> Callable[..., Any]:
    """Give the code with a clean-up of a step for each value."""

    async def tidy(hands: Hands, *args: Any) -> Any:
        try:
            return await code(hands, *args)
        except TaskCancelled:
            for value in cleanup:
                await hands.do(notes.note, value)
            raise

    return tidy


def elsewhere(act: Callable[[], object]) -> None:
    """Do something on a thread of its own, as another process would, and wait until it is done."""
    failed = list[BaseException]()

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for who has called it"
    assert not failed, repr(failed)


def cancelled(task: TaskRef[Any]) -> TaskCancelledError:
    """Wait until a task has ended as cancelled, and give what its result raises."""
    with pytest.raises(TaskCancelledError) as caught:
        task.result(PATIENCE)
    return caught.value


def events_of(disk: Store, id: str = "t") -> list[TaskEvent]:
    with AgentSystem(disk, run=False) as client:
        return client.task(id).events()


def of(events: list[TaskEvent], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def delivered(disk: Store) -> list[str]:
    return [event.path for event in of(events_of(disk), CancelDelivered)]


def started(disk: Store) -> list[tuple[str, int]]:
    return [(event.path, event.attempt) for event in of(events_of(disk), StepStarted)]
