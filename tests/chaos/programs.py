"""What the tasks run: a mixture of everything, in ordinary code. Each effect is a line in the ledger.

Every step is given a number and gives a *mark*: the next number, and the token of the effect that made it. So a result
says which effects it is made of, and in which order their values were handed on. `trips.py`, `talks.py` and `purses.py`
have more of them; `kinds.py` says how they are drawn.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
from functools import partial
from random import Random
from typing import Any

from actors import (
    AgentSystem,
    Doubt,
    FailTask,
    Happened,
    NotHappened,
    StepError,
    TaskHeldError,
    agent,
    branch,
    gather,
    heartbeat,
    map_steps,
    step,
    step_info,
    task_info,
)
from actors.body import running_body
from domain.retry import STRIKE_LIMIT
from tests.chaos import ledger
from tests.chaos.ledger import Line

Mark = list[Any]
"""A number, the token of the effect that made it, and what else there is to say."""

system: AgentSystem | None = None
"""The worker in which this code runs; a body asks it for other tasks."""


LONG = 0.05
"""Seconds that a body takes which a death is to meet often."""
BEATS = 3
"""Heartbeats of one attempt."""


class OnPurposeError(Exception):
    """Raised where a program is meant to go wrong."""


# ------------------------------------------------------------------ steps


def activation() -> int:
    body = running_body.get()
    assert body is not None
    return body.activation.number


def effect(number: int) -> Mark:
    """Do the effect of the running step: make a mark."""
    token = secrets.token_hex(6)
    tell("effect", number, token)
    return [number, token]


def tell(what: str, number: int, token: str = "") -> None:
    """Write a line about the running step."""
    info = step_info()
    where = (info.task_id, info.path, info.idempotency_key, info.attempt, activation())
    ledger.write(Line(what, *where, number, token))


def look(doubt: Doubt) -> Happened | NotHappened:
    """Ask the ledger whether the effect has happened."""
    made = ledger.effect_of(doubt.idempotency_key)
    where = (doubt.task_id, doubt.path, doubt.idempotency_key, doubt.attempt, activation())
    if made is None:
        ledger.write(Line("asked", *where))
        return NotHappened()
    ledger.write(Line("asked", *where, made.number, made.token))
    return Happened([made.number, made.token])


@step
def plain(number: int) -> Mark:
    return effect(number + 1)


@step
async def on_loop(number: int) -> Mark:
    mark = effect(number + 1)
    await asyncio.sleep(LONG)
    return mark


@step(idempotent=True)
def idempotent(number: int) -> Mark:
    return effect(number + 1)


@step(on_doubt=look, label="asks for {number}")
def asking(number: int) -> Mark:
    mark = effect(number + 1)
    threading.Event().wait(LONG)
    return mark


@step(on_doubt="hold")
def guarded(number: int) -> Mark:
    return effect(number + 1)


@step(retries=3, backoff=0.1)
def flaky(number: int) -> Mark:
    return stumble(number)


@step(retries=3, backoff=1.5)
def patient(number: int) -> Mark:
    return stumble(number)


def stumble(number: int) -> Mark:
    """Fail at the first attempt."""
    mark = effect(number + 1)
    if step_info().attempt == 1:
        raise OnPurposeError(mark[1])
    return mark


@step(timeout=0.5, retries=1000, backoff=0.05, max_backoff=0.2)
def hanging(number: int) -> Mark:
    """Hang at the first attempt, beyond the time limit."""
    mark = effect(number + 1)
    if step_info().attempt == 1:
        threading.Event().wait(1.0)
    return mark


@step(retries=3, backoff=0.1)
def beating(number: int) -> Mark:
    """Tell of heartbeats, and of the last one that an earlier attempt has left."""
    tell("heard", step_info().heartbeat or 0)
    for beat in range(1, BEATS + 1):
        heartbeat(step_info().attempt * BEATS + beat)
        tell("beat", step_info().attempt * BEATS + beat)
    return stumble(number)


@step
def deadly(number: int) -> Mark:
    """Kill the worker at the worst moment: the effect has happened, and is not in the log."""
    mark = effect(number + 1)
    if step_info().attempt <= STRIKE_LIMIT:
        tell("died", os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
    return mark


@step(retries=1, backoff=0.05)
def failing(number: int) -> Mark:
    raise OnPurposeError(effect(number)[1])


@step(retries=1000, backoff=0.2, max_backoff=1.0, retry_on=(TimeoutError, TaskHeldError))
def awaiting(number: int) -> Mark:
    """Spawn another task, whose id follows from this step, and wait for its result."""
    assert system is not None
    info = step_info()
    child = f"{info.task_id}.{info.path.replace('/', '-')}"
    task = system.spawn(errands, number, ["plain", "asking"], id=child)
    ledger.write(Line("accepted", child))
    result = task.result(timeout=30)
    return [*effect(number + 1), child, result]


STEPS: dict[str, Any] = {
    made.name: made
    for made in (
        *(plain, on_loop, idempotent, asking, guarded, flaky, patient, hanging, beating, deadly, failing, awaiting),
    )
}
COMMON = ("plain", "on_loop", "idempotent", "asking", "flaky")
RARE = ("patient", "hanging", "beating", "failing", "guarded", "awaiting")

# ------------------------------------------------------------------ agents


@agent(name="chaos.errands")
def errands(number: int, names: list[str]) -> list[Mark]:
    """One step after the other."""
    marks: list[Mark] = []
    for name in names:
        made = STEPS[name]
        try:
            marks.append((made.sync if made.is_async else made)(number))
        except StepError as error:
            marks.append([number, error.fault.message])
        number = marks[-1][0]
    return marks


@agent(name="chaos.errands_async")
async def errands_async(number: int, names: list[str]) -> list[Mark]:
    marks: list[Mark] = []
    for name in names:
        made = STEPS[name]
        try:
            marks.append(await (made if made.is_async else made.aio)(number))
        except StepError as error:
            marks.append([number, error.fault.message])
        number = marks[-1][0]
    return marks


@agent(name="chaos.fan")
def fan(number: int, branches: list[list[str]], width: int) -> list[Mark]:
    """Side by side: branches of errands, one step many times, and a branch that has a key."""
    starts = range(number, number + 100 * len(branches), 100)
    marks = [mark for made in gather(*map(partial(partial, errands), starts, branches)) for mark in made]
    marks += map_steps(plain, range(number, number + 10 * width, 10), limit=2)
    with branch("last"):
        return [*marks, asking(number)]


@agent(name="chaos.fan_async")
async def fan_async(number: int, branches: list[list[str]], width: int) -> list[Mark]:
    starts = range(number, number + 100 * len(branches), 100)
    marks = [mark for made in await gather(*map(errands_async, starts, branches)) for mark in made]
    marks += await map_steps(on_loop, range(number, number + 10 * width, 10), limit=2)
    with branch("last"):
        return [*marks, await asking.aio(number)]


@agent(name="chaos.stumbler")
def stumbler(number: int) -> list[Mark]:
    """Crash between two steps, but only once."""
    first, info = plain(number), task_info()
    assert info is not None
    if not any(line.what == "crashed" and line.task == info.id for line in ledger.read(containing=info.id)):
        ledger.write(Line("crashed", info.id, activation=info.activation))
        raise OnPurposeError(info.id)
    return [first, asking(first[0])]


@agent(name="chaos.quitter")
def quitter(number: int, names: list[str]) -> list[Mark]:
    """End in a failure, as a decision of the business."""
    marks = errands(number, names)
    raise FailTask(f"on purpose, at {marks[-1][0]}")


@agent(name="chaos.killer")
def killer(number: int) -> list[Mark]:
    """Kill one worker after the other; where there is a limit of strikes, up to it."""
    return errands(number, ["plain", "deadly", "asking"])


def some(draw: Random, most: int, names: tuple[str, ...] = COMMON) -> list[str]:
    """Draw the names of one step or more."""
    return draw.choices(names, k=draw.randint(1, most))
