"""Trips that are booked step by step, and undone where they fail or are called off.

An undo is a step as any other: its effect is in the ledger. `undoing.py` has the rules that hold for the undos of all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from actors import (
    FailTask,
    TaskCancelled,
    agent,
    compensate,
    gather,
    heartbeat,
    receive,
    receive_async,
    sleep,
    sleep_async,
    spawn_child,
    spawn_child_async,
    step,
    step_info,
)
from domain.events import CancelDelivered, Completed, Failed, StepSucceeded
from domain.values import decode
from tests.chaos import programs
from tests.chaos.programs import COMMON, LONG, Mark, effect, errands, look, stumble

if TYPE_CHECKING:
    from tests.chaos.evidence import Evidence, History

BESIDE = 0.4
"""Seconds that are waited for beside a booking, so that a cancellation meets both."""
CLEAN_UP = 1.0
"""Seconds that a slow clean-up waits: more than some cancellations have as their grace."""

# ------------------------------------------------------------------ undos


@step
def unbook(number: int, what: str) -> Mark:
    return effect(number)


@step(idempotent=True)
def unbook_again(number: int, what: str) -> Mark:
    return effect(number)


@step(retries=3, backoff=0.1)
def unbook_flaky(number: int, what: str) -> Mark:
    return stumble(number - 1)


@step(on_doubt=look)
def unbook_asking(number: int, what: str) -> Mark:
    mark = effect(number)
    threading.Event().wait(LONG)
    return mark


@step
def unbook_reluctant(number: int, what: str) -> Mark:
    """Fail for good at the first attempt: a person has to decide."""
    return stumble(number - 1)


# ------------------------------------------------------------------ bookings


@step
def book(number: int) -> Mark:
    mark = effect(number + 1)
    compensate(unbook, *mark)
    return mark


@step
async def book_on_loop(number: int) -> Mark:
    compensate(unbook_again, number, "early")
    mark = effect(number + 1)
    await asyncio.sleep(LONG)
    return mark


@step(on_doubt=look)
def book_asking(number: int) -> Mark:
    mark = effect(number + 1)
    compensate(unbook_asking, *mark)
    threading.Event().wait(LONG)
    return mark


@step(retries=3, backoff=0.1)
def book_flaky(number: int) -> Mark:
    """Say how to undo it in each attempt, of which the first fails: that is one undo."""
    compensate(unbook_flaky, number, f"attempt {step_info().attempt}")
    return stumble(number)


@step(timeout=0.5, retries=1000, backoff=0.05, max_backoff=0.2)
def book_late(number: int) -> Mark:
    """Be given up at the first attempt: what it has said is owed, until the second one says it anew."""
    compensate(unbook, number, f"attempt {step_info().attempt}")
    mark = effect(number + 1)
    if step_info().attempt == 1:
        threading.Event().wait(1.0)
    return mark


@step
def book_slowly(number: int) -> Mark:
    """Hear of a cancellation by the beat; that leaves it in doubt, and to be undone."""
    mark = effect(number + 1)
    compensate(unbook_again, *mark)
    for _ in range(5):
        heartbeat()
        threading.Event().wait(LONG)
    return mark


@step
def book_badly(number: int) -> Mark:
    mark = effect(number + 1)
    compensate(unbook_reluctant, *mark)
    return mark


BOOKINGS = book, book_on_loop, book_asking, book_flaky, book_late, book_slowly, book_badly
BOOKING_NAMES = [made.name for made in BOOKINGS]
UNDOS = unbook, unbook_again, unbook_flaky, unbook_asking, unbook_reluctant
STEPS: dict[str, Any] = {made.name: made for made in (*UNDOS, *BOOKINGS)} | programs.STEPS

# ------------------------------------------------------------------ agents


@agent(name="chaos.booker")
def booker(number: int, stops: list[list[str]], end: str, clean_up: str) -> list[Mark]:
    """Book, stop by stop; then end, or wait to be called off."""
    marks: list[Mark] = []
    try:
        for how, name in stops:
            if how == "before":
                compensate(unbook, number, how)
            if how in ("cancel", "wait", "abandon"):
                spawn_child(errands, number, [name], on_parent_end=how)
                continue
            made = STEPS[name]
            call = partial(made.sync if made.is_async else made, number)
            marks.append(gather(call, partial(sleep, BESIDE))[0] if how == "beside" else call())
            number = marks[-1][0]
        if end == "wait":
            receive("never")
    except TaskCancelled:
        marks.append(programs.plain(number))
        sleep(CLEAN_UP if clean_up == "slow" else LONG)
        marks.append(programs.asking(number))
        if clean_up in ("raise", "slow"):
            raise
        end = clean_up
    if end == "fail":
        raise FailTask(f"on purpose, at {number}")
    if end == "step":
        programs.failing(number)
    return marks


@agent(name="chaos.booker_async")
async def booker_async(number: int, stops: list[list[str]], end: str, clean_up: str) -> list[Mark]:
    marks: list[Mark] = []
    try:
        for how, name in stops:
            if how == "before":
                compensate(unbook, number, how)
            if how in ("cancel", "wait", "abandon"):
                await spawn_child_async(errands, number, [name], on_parent_end=how)
                continue
            made = STEPS[name]
            call = partial(made if made.is_async else made.aio, number)
            marks.append((await gather(call, partial(sleep_async, BESIDE)))[0] if how == "beside" else await call())
            number = marks[-1][0]
        if end == "wait":
            await receive_async("never")
    except TaskCancelled:
        marks.append(await programs.plain.aio(number))
        await sleep_async(CLEAN_UP if clean_up == "slow" else LONG)
        marks.append(await programs.asking.aio(number))
        if clean_up in ("raise", "slow"):
            raise
        end = clean_up
    if end == "fail":
        raise FailTask(f"on purpose, at {number}")
    if end == "step":
        await programs.failing.aio(number)
    return marks


BOOKERS = booker.name, booker_async.name


def draw_trip(draw: Random) -> tuple[Any, ...]:
    stops = [draw_stop(draw) for _ in range(draw.randint(1, 6))]
    end = draw.choices(("fail", "step", "complete", "wait"), weights=(3, 2, 2, 4))[0]
    clean_up = draw.choices(("raise", "slow", "complete", "fail", "step"), weights=(5, 2, 1, 1, 1))[0]
    return draw.randint(0, 99), stops, end, clean_up


def draw_stop(draw: Random) -> list[str]:
    how = draw.choices(("", "beside", "before", "cancel", "wait", "abandon"), weights=(10, 4, 4, 1, 1, 1))[0]
    return [how, draw.choice(COMMON if how not in ("", "beside") else BOOKING_NAMES)]


# ------------------------------------------------------------------ the rule


def values(history: History) -> Iterator[StepSucceeded]:
    """Give the steps whose values the agent has got, in order: none beside a wait that came to a cancellation."""
    places = [[int(part) for part in path.split("/")] for path in history.steps if not path.startswith("undo")]
    for place in sorted(places):
        value = history.value_at("/".join(map(str, place)))
        beside = history.places.get(f"{place[0]}/2/1", []) if len(place) > 1 else []
        if value is not None and not any(isinstance(event, CancelDelivered) for event in beside):
            yield value


def bookers_end_as_they_say(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """One that was not called off ends as drawn, one that cleaned up as that ends; a result has all marks, in order."""
    for task, history in evidence.histories.items():
        if history.created is None or history.created.agent not in BOOKERS:
            continue
        (_, _, end, clean_up), _ = decode(history.created.input)  # type: ignore[misc]  as it was drawn
        way = clean_up if history.delivered else end
        tokens = [decode(value.value)[1] for value in values(history)]  # type: ignore[index, call-overload]
        if isinstance(history.ending, Completed):
            marks: Any = decode(history.ending.value)
            if way != "complete" or [mark[1] for mark in marks] != tokens:
                yield task, f"it was to end by {way!r} with {tokens}, and gives {marks}"
        elif isinstance(history.ending, Failed):
            message = history.ending.error["message"]
            wanted = {"fail": "on purpose, at ", "step": "step "}.get(way, "not at all")
            if not message.startswith(wanted):
                yield task, f"it was to end by {way!r}, and has failed: {message}"
