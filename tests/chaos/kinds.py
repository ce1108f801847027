"""The kinds of programs: how their arguments are drawn, and what their results have to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.chaos import programs, talks, trips
from tests.chaos.programs import (
    COMMON,
    RARE,
    errands,
    errands_async,
    fan,
    fan_async,
    killer,
    quitter,
    some,
    stumbler,
)
from tests.chaos.purses import ASK, draw_shopper, shopper
from tests.chaos.talks import CANCEL_CHILD, TALKERS, draw_talk, talker, talker_async
from tests.chaos.trips import BOOKERS, booker, booker_async, draw_trip

STEPS: dict[str, Any] = programs.STEPS | trips.STEPS | talks.STEPS
"""All steps that leave effects in the ledger, by name."""
UNTOLD = (ASK, CANCEL_CHILD)
"""The steps that leave none: what they do is in other logs."""
UNRECORDED = (*(name for name, made in STEPS.items() if made.settings.idempotent), *UNTOLD)
"""The steps of which no start is in the log."""


@dataclass(frozen=True)
class Kind:
    """A kind of program. `numbers` gives what the marks of its result have to count, or how its task has to fail.

    It is None where the result is no list of marks: the judge has a rule of its own for that kind.
    """

    agent: Any
    draw: Callable[[Random], tuple[Any, ...]]
    numbers: Callable[..., list[int] | str] | None


def draw_errands(draw: Random) -> tuple[Any, ...]:
    rare = draw.sample(RARE, k=draw.randint(0, 2))
    names = some(draw, 8) + rare
    draw.shuffle(names)
    return draw.randint(0, 99), names


def draw_fan(draw: Random) -> tuple[Any, ...]:
    branches = [some(draw, 3, (*COMMON, "patient", "awaiting")) for _ in range(draw.randint(2, 4))]
    return draw.randint(0, 99), branches, draw.randint(1, 5)


def count(number: int, names: list[str]) -> list[int]:
    numbers = []
    for name in names:
        number += name != "failing"
        numbers.append(number)
    return numbers


def count_fan(number: int, branches: list[list[str]], width: int) -> list[int]:
    inner = [count(number + 100 * index, names) for index, names in enumerate(branches)]
    mapped = [number + 10 * index + 1 for index in range(width)]
    return [*(one for numbers in inner for one in numbers), *mapped, number + 1]


KINDS = {
    kind.agent.name: kind
    for kind in (
        Kind(errands, draw_errands, count),
        Kind(errands_async, draw_errands, count),
        Kind(fan, draw_fan, count_fan),
        Kind(fan_async, draw_fan, count_fan),
        Kind(stumbler, lambda draw: (draw.randint(0, 99),), lambda number: [number + 1, number + 2]),
        Kind(
            quitter,
            lambda draw: (draw.randint(0, 99), some(draw, 3)),
            lambda number, names: f"on purpose, at {number + len(names)}",
        ),
        Kind(shopper, draw_shopper, None),
        Kind(talker, draw_talk, None),
        Kind(talker_async, draw_talk, None),
        Kind(booker, draw_trip, None),
        Kind(booker_async, draw_trip, None),
        Kind(killer, lambda draw: (draw.randint(0, 99),), lambda number: [number + 1, number + 2, number + 3]),
    )
}


def deadline(seed: int, number: int) -> float | None:
    """Give the seconds in which a round's nth task has to end, if there is such a limit; few have one."""
    draw = Random(f"{seed}-{number}, deadline")
    may_be_called_off = program(seed, number)[0].name in (*TALKERS, *BOOKERS)
    return draw.uniform(0.1, 4.0) if may_be_called_off and draw.random() < 0.1 else None


def program(seed: int, number: int) -> tuple[Any, tuple[Any, ...]]:
    """Give the agent and the arguments of a round's nth task."""
    draw = Random(f"{seed}-{number}")
    kind = draw.choices(list(KINDS.values()), weights=(40, 30, 20, 20, 8, 8, 30, 60, 60, 50, 40, 1))[0]
    return kind.agent, kind.draw(draw)
