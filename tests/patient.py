"""An agent with a long step and a next one, for tests and their programs alike."""

from __future__ import annotations

from actors import agent, step
from tests.scenario_kit import effect, pass_door


@step
def slow(door: str) -> str:
    effect("begins", door)
    pass_door(door)
    effect("slow", door)
    return door


@step(name="next")
def next_one(door: str) -> str:
    effect("next", door)
    return door


@agent
def patient(door: str) -> str:
    """Take as long in the first step as a door is shut."""
    return next_one(slow(door))
