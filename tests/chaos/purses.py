"""Purses that many tasks share: entities, asked by agents in whatever process, and the rules for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from actors import AgentSystem, Entity, Rejected, agent, entity, event, task_info
from actors.mapper import HEAD, SEPARATOR
from domain.events import StepFailed, StepSucceeded
from domain.state import idempotency_key
from domain.values import decode, loads

if TYPE_CHECKING:
    from tests.chaos.evidence import Evidence

PURSES = 3
CONTENT = 400
"""What is in a purse at first: less than is asked of it, so that some are told no."""
ASK = "chaos.purse.take"


class Purse(Entity):
    TOPIC = "chaos.purse"
    PASSIVATE_AFTER = 0.5

    def __init__(self) -> None:
        self.left = CONTENT

    def take(self, amount: int) -> int:
        if amount > self.left:
            raise Rejected(self.left)
        self.taken(amount)
        return self.left

    @event("Taken")
    def taken(self, amount: int) -> None:
        self.left -= amount


@agent(name="chaos.shopper")
def shopper(purse: str, amounts: list[int]) -> list[int]:
    """Take out what is there: what was got each time, nothing where the answer was no."""
    info, got = task_info(), []
    assert info is not None
    name = f"{info.id.partition('-')[0]}-{purse}"  # those of one round share it
    for amount in amounts:
        try:
            entity(Purse, name).ask(Purse.take, amount)
            got.append(amount)
        except Rejected:
            got.append(0)
    return got


def draw_shopper(draw: Random) -> tuple[Any, ...]:
    return f"purse-{draw.randint(1, PURSES)}", [draw.randint(1, 9) for _ in range(draw.randint(1, 8))]


@dataclass(frozen=True)
class Booking:
    """What a purse's log has of one command: the amount, the key it was asked with, the reply that was given."""

    amount: int
    key: str
    reply: int


def bookings(system: AgentSystem, prefix: str = "") -> dict[str, list[Booking]]:
    """Read the logs of all purses whose id begins so, row by row."""
    recorder, found = system.log.recorder, dict[str, list[Booking]]()
    for entry in recorder.select_entries(prefix=f"{Purse.TOPIC}{SEPARATOR}{prefix}"):
        rows: list[Any] = [(row.topic, loads(row.state[HEAD:])) for row in recorder.select_events(entry.id)]
        found[entry.id.partition(SEPARATOR)[2]] = [
            Booking(payload[3]["amount"], payload[4][0], payload[4][3])
            for topic, payload in rows
            if topic == "chaos.purse.Taken"
        ]
    return found


def purses_are_never_overdrawn(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """No purse gives more than it has, and each reply says what was left then."""
    for purse, booked in evidence.purses.items():
        left = CONTENT
        for booking in booked:
            left -= booking.amount
            if left < 0 or booking.reply != left:
                yield "", f"{purse}: {booking} leaves {left}, of {booked}"


def what_is_asked_is_booked_once(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Each yes has one booking, with its step's key and that very reply; each no has none; nothing else is booked."""
    booked: dict[str, list[Booking]] = {}
    for bookings_of_one in evidence.purses.values():
        for booking in bookings_of_one:
            booked.setdefault(booking.key, []).append(booking)
    for task, path, history, _ in evidence.steps():
        outcome = history.outcome(path)
        if outcome is None or getattr(outcome[1], "name", "") != ASK or history.created is None:
            continue
        mine = booked.pop(idempotency_key(history.created.birth, path), [])
        if isinstance(outcome[1], StepFailed) and mine:
            yield task, f"step {path} was told no, and is booked: {mine}"
        elif isinstance(outcome[1], StepSucceeded) and [b.reply for b in mine] != [decode(outcome[1].value)]:
            yield task, f"step {path} was given {outcome[1].value}, booked are {mine}"
    for key, left_over in booked.items():
        yield "", f"booked for no step that has ended: {key} {left_over}"


def shoppers_get_what_is_booked(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The result of a task counts what its asks were answered."""
    for task, history in evidence.histories.items():
        if history.created is None or history.created.agent != shopper.name or history.ending is None:
            continue
        (_, amounts), _ = decode(history.created.input)  # type: ignore[misc]  as it was drawn
        outcomes = [history.outcome(str(place)) for place in range(1, len(amounts) + 1)]
        said_yes = [outcome is not None and isinstance(outcome[1], StepSucceeded) for outcome in outcomes]
        wanted = [amount if yes else 0 for amount, yes in zip(amounts, said_yes, strict=True)]
        if decode(getattr(history.ending, "value", None)) != wanted:
            yield task, f"it gives {history.ending}, and its steps were answered {wanted}"
