"""What a round does to its processes, and when: drawn from the seed, and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from domain.retry import STRIKE_LIMIT

STOP = 0.3, 2.5
"""Seconds for which a process is frozen. It may hold the store's lock for writing: all wait for it then."""
LIFE = 0.8, 5.0
"""Seconds from the start of a process to what is done to it."""
GAP = 0.05, 0.6
"""Seconds in which nothing runs in a place."""
OUTAGE = 12.0
"""Seconds, on average, from one moment at which every process is killed to the next."""


@dataclass(frozen=True, order=True)
class Action:
    """Something done to a process, `at` seconds after the beginning.

    `what`: "start", "kill", "freeze" (SIGSTOP), "thaw" (SIGCONT), or "leave": go in good order (SIGTERM).
    """

    at: float
    what: str
    process: str

    def __str__(self) -> str:
        return f"{self.at:7.3f} {self.what:6} {self.process}"


@dataclass(frozen=True)
class Plan:
    """A round: its actions in the order of time, and of what kind its workers are.

    `strikes`: their limit, None for none. `hasty`: they take living workers for dead now and then.
    """

    seed: int
    seconds: float
    processes: int
    strikes: int | None
    hasty: bool
    actions: tuple[Action, ...]


def draw_plan(seed: int, seconds: float, processes: int) -> Plan:
    """Draw a round: `processes` places for workers and one for a client, each with one life after another.

    Of four seeds in a row one has plain workers, one such with the real strike limit, one hasty ones, one both.
    """
    draw = Random(seed)
    outages = [at for at in _moments(draw) if at < seconds]
    places = [f"worker-{number}" for number in range(1, processes + 1)] + ["client-1"]
    actions = [action for place in places for action in _lives(draw, place, seconds, outages)]
    strikes, hasty = STRIKE_LIMIT if seed % 2 else None, seed % 4 > 1
    return Plan(seed, seconds, processes, strikes, hasty, tuple(sorted(actions)))


def _moments(draw: Random) -> list[float]:
    return [OUTAGE * (number + draw.random()) for number in range(1000)]


def _lives(draw: Random, place: str, seconds: float, outages: list[float]) -> Iterator[Action]:
    """Draw what happens in one place; what would come after the end does not."""
    at, number = draw.uniform(0, 0.2), 0
    while at < seconds:
        number += 1
        end = min([outage for outage in outages if outage > at], default=seconds)
        life = list(_life(draw, f"{place}.{number}", at, leaves=place != "client-1"))
        cut = [action for action in life if action.at < end]
        if len(cut) < len(life) and end < seconds:
            cut.append(Action(end, "kill", f"{place}.{number}"))
        yield from cut
        at = cut[-1].at + draw.uniform(*GAP)
        if len(cut) < len(life) and end >= seconds:
            return


def _life(draw: Random, process: str, at: float, *, leaves: bool) -> Iterator[Action]:
    """Draw one life, from a start to a kill or a leave; some that leave are killed while they do."""
    yield Action(at, "start", process)
    while True:
        at += draw.uniform(*LIFE)
        what = draw.choices(("freeze", "kill", "leave"), weights=(4, 5, 3 if leaves else 0))[0]
        yield Action(at, what, process)
        if what == "freeze":
            at += draw.uniform(*STOP)
            yield Action(at, "thaw", process)
        elif what == "leave" and draw.random() < 0.3:
            yield Action(at + draw.uniform(0, 0.8), "kill", process)
            return
        else:
            return
