"""One task, `t`, in life after life: systems that come and go, and the store that outlives them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from actors import AgentSystem, TaskHeldError
from actors.testing import CrashPlan, SimulatedCrash
from domain.events import StepStarted, TaskEvent
from stores import Store
from stores.crash import CrashingStore

PATIENCE = 20.0
"""Seconds after which a test gives up."""


def live(disk: Store, agent: Any, *args: Any, **options: Any) -> Any:
    """Run the task `t` in a system of its own, from where it is, to its result."""
    with AgentSystem(disk, **options) as system:
        return system.spawn(agent, *args, id="t").result(PATIENCE)


def die(disk: Store, agent: Any, *args: Any, at: str = "body.after", nth: int = 1) -> None:
    """Run the task `t` until its process dies at the nth point of that name; it is made first, and claimed then."""

    def run() -> None:
        with AgentSystem(life, run=False) as client:
            client.spawn(agent, *args, id="t")
        with AgentSystem(life) as system:
            system.task("t").result(PATIENCE)

    life = CrashingStore(disk, CrashPlan(nth, at))
    with pytest.raises(SimulatedCrash):
        run()
    life.close()


def held(disk: Store, agent: Any, *args: Any) -> TaskHeldError:
    with pytest.raises(TaskHeldError) as caught:
        live(disk, agent, *args)
    return caught.value


def log(disk: Store) -> list[TaskEvent]:
    with AgentSystem(disk, run=False) as client:
        return client.task("t").events()


def kinds(disk: Store) -> list[str]:
    return [type(event).__name__ for event in log(disk)]


def bodies(disk: Store) -> list[tuple[str, str, int]]:
    return [(event.path, event.name, event.attempt) for event in log(disk) if isinstance(event, StepStarted)]


def decide(disk: Store, **decision: Any) -> None:
    """Decide what became of step 1, as `ann`."""
    with AgentSystem(disk, run=False) as client:
        client.task("t").resolve("1", by="ann", **decision)


def wait_for(condition: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Wait until something has come about that nobody announces."""
    until, pause = monotonic() + timeout, threading.Event()
    while not condition():
        assert monotonic() < until, "it never came about"
        pause.wait(0.01)
