"""For code that is not written for perdure: steps by name, and a logger that a replay does not wake."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar, Unpack

from actors.body import running_body
from actors.context import task_info
from actors.definitions import AsyncStep, Step
from actors.naming import checked_name
from actors.options import Options, StepOptions

R = TypeVar("R")


def run_step(name: str, fn: Callable[..., R], /, *args: Any, **options: Unpack[StepOptions]) -> R:
    """Do a call of any function as a step of that name, in a sync agent: `run_step("ask", model.ask, text, retries=3)`.

    As `@step` on `fn`, without a definition: `args` are what a replay compares, and `options` may be a plain mapping,
    spread (see StepOptions). Keywords of `fn` go into a `functools.partial`. Raises what a step does, DefinitionError.
    """

    def body(*args: Any) -> R:
        value = fn(*args)
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError(f"run_step({name!r}) was given an async function: await run_step_async({name!r}, …)")
        return value

    return Step(body, (checked_name(name, "step"),), Options().but(name, options))(*args)


async def run_step_async(
    name: str, fn: Callable[..., Awaitable[R] | R], /, *args: Any, **options: Unpack[StepOptions]
) -> R:
    """Do a call of any function as a step of that name, in an async agent; see `run_step`.

    Where `fn` is no `async def`, it is called on a thread, so that it may block, and an awaitable that it returns is
    awaited on the loop.
    """

    async def body(*args: Any) -> R:
        running = running_body.get()
        if running is None or inspect.iscoroutinefunction(fn):
            made: Any = fn(*args)
        else:
            made = await running.activation.runtime.threads.call(fn, *args)
        value: R = await made if inspect.isawaitable(made) else made
        return value

    return await AsyncStep(body, (checked_name(name, "step"),), Options().but(name, options))(*args)


def get_logger(name: str | None = None) -> logging.LoggerAdapter[logging.Logger]:
    """Give a logger for agent code: silent where the code has run before, and naming the task elsewhere.

    Outside of a task, and in the body of a step, it is as any other. Not guaranteed: that a line is logged once; a
    process may die between the line and the next record.
    """
    return _ReplayLogger(logging.getLogger(name))


class _ReplayLogger(logging.LoggerAdapter[logging.Logger]):
    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  logging's own name
        info = task_info()
        return (info is None or not info.is_replaying) and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        info = task_info()
        return (msg if info is None else f"task {info.id}: {msg}"), kwargs
