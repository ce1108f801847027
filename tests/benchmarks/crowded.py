"""The processes that `admission.py` measures: a worker's program, which says what it came to in a line of JSON.

    python -m tests.benchmarks.crowded PART STORE COUNT

PART is the name of what is measured, STORE a URL, COUNT how many tasks there are.
"""

from __future__ import annotations

import json
import sys
import threading
from time import perf_counter, sleep
from typing import Any

from actors import AgentSystem, agent, step
from tests.benchmarks.child import peak

MAX_ACTIVE = 64
BODY = 0.01
"""Seconds that a body takes: long enough for all places to be taken."""
threads = 0
go, arrived = threading.Event(), threading.Semaphore(0)


@step
def small_step(number: int) -> int:
    global threads  # noqa: PLW0603  a lost update would only be a smaller figure of two that were there
    threads = max(threads, threading.active_count())
    sleep(BODY)
    return number


@agent
def small(number: int) -> int:
    return small_step(number)


@step
def blocking_step() -> None:
    arrived.release()
    go.wait()


@agent
def blocked() -> None:
    blocking_step()


def at_once(url: str, count: int) -> dict[str, float]:
    """Let a worker find many tasks that were spawned at once, and run them all."""
    with AgentSystem(url, run=False) as client:
        for number in range(count):
            client.spawn(small, number, id=f"task-{number}")
    started = perf_counter()
    with AgentSystem(url, max_active=MAX_ACTIVE) as system:
        finished = sum(system.task(f"task-{number}").result(timeout=600) == number for number in range(count))
        seconds = perf_counter() - started
    return {"finished": finished, "seconds": seconds, "threads": threads, "peak": peak()}


def spawning(url: str, count: int) -> dict[str, float]:
    """Spawn tasks while every place is taken by a body that does not end."""
    with AgentSystem(url, max_active=MAX_ACTIVE) as system:
        tasks = [system.spawn(blocked) for _ in range(MAX_ACTIVE)]
        for _ in tasks:
            arrived.acquire()
        rate = _rate(system, count)
        go.set()
    with AgentSystem(url, run=False) as client:
        alone = _rate(client, count)
    return {"rate": rate, "alone": alone}


def _rate(system: AgentSystem, count: int) -> float:
    started = perf_counter()
    for number in range(count):
        system.spawn(small, number)
    return count / (perf_counter() - started)


if __name__ == "__main__":
    parts: dict[str, Any] = {"at-once": at_once, "spawning": spawning}
    part, url, count = sys.argv[1:]
    print(json.dumps(parts[part](url, int(count))))
