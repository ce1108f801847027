"""The process in which one contender is measured once. It says what it came to in its last line, as JSON.

    python -m tests.benchmarks.child CONTENDER PART URL [NUMBER …]

CONTENDER is a key of `CONTENDERS` in `contenders.py`, PART one of the functions below `PARTS`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

from tests.benchmarks.contender import Contender
from tests.benchmarks.contenders import CONTENDERS
from tests.benchmarks.work import on_step, stamps

WARM = 20
"""Steps that are made before anything is timed."""
HUNDRED = 100
LOOK = 1.0
"""Seconds between two looks at whether a process is still at work."""
DORMANT = "dormant-000000000"
"""The id of the task that sleeps; `databases.py` counts on from it."""


def peak() -> float:
    """Give the most megabytes that this process has had in memory; NaN where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else ["VmHWM: nan"]
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def steps(contender: Contender, url: str, count: int) -> dict[str, Any]:
    """Time so many whole steps of one task, from body to body; `growth`: its last hundred beside its first."""
    with contender.open(url):
        contender.run(1, WARM)
        stamps.clear()
        contender.run(1, count + 1)
    first, last = stamps[HUNDRED] - stamps[0] if count > HUNDRED else 0, stamps[-1] - stamps[-HUNDRED - 1 :][0]
    return {"rate": count / (stamps[-1] - stamps[0]), "growth": last / first if first else None}


def tasks(contender: Contender, url: str, count: int, length: int) -> dict[str, Any]:
    """Time so many tasks of that length, from before the first is started to the last result."""
    with contender.open(url):
        contender.run(1, WARM)
        started = perf_counter()
        contender.run(count, length)
        return {"rate": count * length / (perf_counter() - started)}


def latency(contender: Contender, url: str, count: int) -> dict[str, Any]:
    """Time tasks of one step, one after the other, each from its start to its result."""
    with contender.open(url):
        contender.run(1, WARM)
        times = []
        for _ in range(count):
            started = perf_counter()
            contender.run(1, 1)
            times.append(perf_counter() - started)
    return {"times": times}


def size(contender: Contender, url: str, count: int) -> dict[str, Any]:
    """Run one task of so many steps, for the sake of what it leaves."""
    with contender.open(url):
        contender.run(1, count)
    return {}


def killed(contender: Contender, url: str, finished: int) -> dict[str, Any]:
    """Die in the body of the step that comes after so many finished ones."""

    def die(number: int) -> None:
        if number == finished:
            os.kill(os.getpid(), signal.SIGKILL)

    on_step.append(die)
    with contender.open(url):
        contender.begin(finished + 1)
    raise RuntimeError(f"the step after {finished} did not come")


def restart(contender: Contender, url: str, finished: int) -> dict[str, Any]:
    """Go on with what `killed` left; say which body is the first to run, and leave."""

    def say(number: int) -> None:
        print(json.dumps({"number": number}), flush=True)
        os._exit(0)

    on_step.append(say)
    with contender.open(url):
        contender.start_over(finished + 1)
    raise RuntimeError("no step ran")


def fall_asleep(contender: Contender, url: str) -> dict[str, Any]:
    """Leave a task that sleeps."""
    with contender.open(url):
        contender.fall_asleep(DORMANT)
        if CONTENDERS[sys.argv[1]].dies_asleep:
            print("{}", flush=True)
            os._exit(0)
    return {}


def ready(contender: Contender, url: str) -> dict[str, Any]:
    """Time the way from nothing open to the result of a new task, beside all that sleep; and until that is all."""
    imports, started = peak(), perf_counter()
    with contender.open(url):
        contender.run(1, 1)
        found = {"seconds": perf_counter() - started, "imports": imports}
        found["quiet"] = found["seconds"] + busy_seconds()
        print(json.dumps({**found, "peak": peak()}), flush=True)
        os._exit(0)  # how long it takes to close is not what is asked


def busy_seconds() -> float:
    """Wait until this process uses less than a twentieth of a processor, and say how long it took until then.

    A peer may still be at its recovery when a new task has its result: what sleeps is not yet where it will be woken.
    """
    started = perf_counter()
    while True:
        began, used = perf_counter(), process_time()
        sleep(LOOK)
        if process_time() - used < LOOK / 20:
            return began - started


def worker(contender: Contender, url: str) -> dict[str, Any]:
    """Run what a client brings, until its input ends."""
    with contender.open(url):
        print("{}", flush=True)
        sys.stdin.read()
    return {}


def client(contender: Contender, url: str, count: int, length: int) -> dict[str, Any]:
    """Time tasks as `tasks` does, while other processes run them."""
    from tests.benchmarks.ours import Perdure

    if not isinstance(contender, Perdure):
        raise TypeError("only perdure is measured with several processes")
    with contender.open_client(url):
        contender.run(1, WARM)
        started = perf_counter()
        contender.run(count, length)
        return {"rate": count * length / (perf_counter() - started)}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    part.__name__: part for part in (steps, tasks, latency, size, killed, restart, fall_asleep, ready, worker, client)
}


def make(name: str) -> Contender:
    """Import a contender, and nothing of the others."""
    module, _, factory = CONTENDERS[name].factory.partition(":")
    contender: Contender = getattr(importlib.import_module(module), factory)()
    return contender


if __name__ == "__main__":
    who, what, where, *numbers = sys.argv[1:]
    print(json.dumps(PARTS[what](make(who), where, *map(int, numbers))), flush=True)
