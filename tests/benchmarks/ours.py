"""perdure, as a user's program has it: an `AgentSystem` with its defaults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from actors import Agent, AgentSystem, AsyncAgent
from tests.benchmarks.agents import async_steps, default_steps, idempotent_steps, sleeper
from tests.benchmarks.raw import TASK

PATIENCE = 600.0
"""Seconds after which a task is taken to be stuck."""


class Perdure:
    """Tasks of one of the agents."""

    def __init__(self, agent: Agent[[int], None] | AsyncAgent[[int], None]) -> None:
        self._agent = agent

    @contextmanager
    def open(self, url: str) -> Iterator[None]:
        """Open a worker."""
        with AgentSystem(url) as self._system:
            yield

    @contextmanager
    def open_client(self, url: str) -> Iterator[None]:
        """Open what spawns, and runs nothing."""
        with AgentSystem(url, run=False) as self._system:
            yield

    def run(self, tasks: int, steps: int) -> None:
        """Spawn, then ask for each result."""
        for task in [self._system.spawn(self._agent, steps) for _ in range(tasks)]:
            task.result(timeout=PATIENCE)

    def begin(self, steps: int) -> None:
        """Spawn under the id; spawning again gives the task that is there."""
        self._system.spawn(self._agent, steps, id=TASK).result(timeout=PATIENCE)

    start_over = begin

    def fall_asleep(self, name: str) -> None:
        """Let a task sleep, until its row says so."""
        task = self._system.spawn(sleeper, id=name)
        while task.status() != "waiting":
            time.sleep(0.01)


def default() -> Perdure:
    """Give steps as they are without an option: two commits each, their start and their outcome."""
    return Perdure(default_steps)


def idempotent() -> Perdure:
    """Give steps with `idempotent=True`: one commit each."""
    return Perdure(idempotent_steps)


def asynchronous() -> Perdure:
    """Give default steps of an async agent."""
    return Perdure(async_steps)
