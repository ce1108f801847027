"""The agents that are measured: small steps, two short arguments, a result of 100 bytes."""

from __future__ import annotations

from time import perf_counter

from actors import agent, step

TASK = "benchmark-task-000000001"
"""The id of the task: 24 characters."""
RESULT = "r" * 98
"""As the log holds it, with its quotes: 100 bytes."""

spans: list[float] = []
"""Seconds from before the first step to after the last one, of each run in this process."""


@step
def default_step(word: str, number: int) -> str:
    return RESULT


@step(idempotent=True)
def idempotent_step(word: str, number: int) -> str:
    return RESULT


@agent
def default_steps(count: int) -> None:
    started = perf_counter()
    for number in range(count):
        default_step("word", number)
    spans.append(perf_counter() - started)


@agent
def idempotent_steps(count: int) -> None:
    started = perf_counter()
    for number in range(count):
        idempotent_step("word", number)
    spans.append(perf_counter() - started)
