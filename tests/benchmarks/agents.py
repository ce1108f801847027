"""The agents that are measured: steps with two short arguments and a result of 100 bytes."""

from __future__ import annotations

from actors import agent, sleep, step
from tests.benchmarks.work import WORD, work

FAR = 1e8
"""Seconds that a dormant task sleeps: years."""


@step
def default_step(word: str, number: int) -> str:
    return work(number)


@step(idempotent=True)
def idempotent_step(word: str, number: int) -> str:
    return work(number)


@step
async def async_step(word: str, number: int) -> str:
    return work(number)


@agent
def default_steps(count: int) -> None:
    for number in range(count):
        default_step(WORD, number)


@agent
def idempotent_steps(count: int) -> None:
    for number in range(count):
        idempotent_step(WORD, number)


@agent
async def async_steps(count: int) -> None:
    for number in range(count):
        await async_step(WORD, number)


@agent
def sleeper() -> None:
    sleep(FAR)
