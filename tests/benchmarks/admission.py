"""What many tasks cost that do not run: the process, its start, its threads, and the way to the next task."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from actors.appender import Appender
from actors.task_log import TaskLog
from domain.events import TaskEvent
from domain.task import AgentTask
from stores import open_store
from tests.benchmarks.restart import ROOT
from tests.benchmarks.rows import fill
from tests.benchmarks.steps import new_folder

PROGRAM = Path(__file__).with_name("crowded.py")
FAR = 4e9
"""Unix seconds at which nobody measures any more."""
CLAIMS = 21
SHAPES: dict[str, tuple[str, str, float | None]] = {
    "asleep": ("waiting", "small", FAR),
    "queued": ("queued", "small", 10.0),
    "of unknown agents": ("queued", "unknown", 1.0),
    "ended": ("completed", "small", None),
}
"""By name: status and agent of the rows that stand around, and when the first of them is due."""


class Claim(NamedTuple):
    """Median seconds: from asking for what is due to the row; from there to the committed claim."""

    finding: float
    claiming: float

    @property
    def whole(self) -> float:
        """Both together."""
        return self.finding + self.claiming


def dormant(folder: Path, count: int) -> dict[str, float]:
    """Measure a worker's start beside that many tasks that sleep: `seconds`, and megabytes `imports` and `peak`."""
    with new_folder(folder) as place:
        fill(place / "perdure.db", count, status="waiting", agent="sleeper", due=FAR)
        return _measured("dormant", place, count)


def at_once(folder: Path, count: int) -> dict[str, float]:
    """Measure that many tasks that are there at once: `finished`, `seconds`, `threads` alive at most, `peak`."""
    with new_folder(folder) as place:
        return _measured("at-once", place, count)


def spawning(folder: Path, count: int) -> dict[str, float]:
    """Measure spawns a second: `rate` beside a full worker, `alone` without any."""
    with new_folder(folder) as place:
        return _measured("spawning", place, count)


def _measured(part: str, place: Path, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.crowded", part, f"sqlite:///{place}/perdure.db", str(count)]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    figures: dict[str, float] = json.loads(said)
    return figures


def claims(folder: Path, count: int) -> dict[str, Claim]:
    """Give, by what so many rows are, how long it takes to find the task that is due next, and to claim it."""
    return {name: _claim(folder, count, *shape) for name, shape in SHAPES.items()}


def _claim(folder: Path, count: int, status: str, agent: str, due: float | None) -> Claim:
    with new_folder(folder) as place:
        fill(place / "perdure.db", count, status=status, agent=agent, due=due)
        with open_store(f"sqlite:///{place}/perdure.db") as store:
            log = TaskLog(store, now=lambda: 5.0 if due == 10.0 else FAR - 1)
            for number in range(CLAIMS):
                log.create(f"next-{number:02}", "small", [[number], {}], {})
            times = [_claim_next(log, number) for number in range(CLAIMS)]
    return Claim(*(statistics.median(part) for part in zip(*times, strict=True)))


def _claim_next(log: TaskLog, number: int) -> tuple[float, float]:
    started = perf_counter()
    (row,) = log.recorder.select_ready(FAR - 1, agents=["small"], busy_owners=["worker"], limit=1)
    found = perf_counter()
    Appender(log, log.load(row.id)).append(partial(_activate, worker="worker"))
    claimed = perf_counter()
    if row.id != f"next-{number:02}":
        raise RuntimeError(f"{row.id} came in place of task {number}")
    return found - started, claimed - found


def _activate(task: AgentTask, now: float, *, worker: str) -> list[TaskEvent]:
    return task.activate(now, worker=worker, token="", limit=None)
