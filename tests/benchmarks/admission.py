"""What many tasks cost that do not run: threads beside the active ones, spawning, and the way to the next task.

Of perdure alone: on SQLite, whose rows `rows.py` can write.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from actors.appender import Appender
from actors.task_log import TaskLog
from domain.events import TaskEvent
from domain.task import AgentTask
from stores import open_store
from tests.benchmarks.bench import Bench
from tests.benchmarks.contender import path_of
from tests.benchmarks.contenders import SQLITE
from tests.benchmarks.figures import Row
from tests.benchmarks.rows import fill

FAR = 4e9
"""Unix seconds at which nobody measures any more."""
CLAIMS = 21
SPAWNS = 1000
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


def crowd(bench: Bench) -> list[Row]:
    """Run many tasks that are there at once, then spawn beside a full worker: threads alive, and rates."""
    count = bench.sizes.crowd
    bench.say(f"{count} tasks at once, and spawning")
    with bench.databases.new() as url:
        found = bench.program("tests.benchmarks.crowded", "at-once", url, str(count), what=f"{count:,} tasks at once")
    with bench.databases.new() as url:
        spawns = bench.program("tests.benchmarks.crowded", "spawning", url, str(SPAWNS), what="spawning")
    note = f"{count / found['seconds']:,.0f} tasks/s, {found['peak']:.0f} MB at the most"
    what = f"threads alive, of {count:,} tasks at once, 64 active"
    return [
        Row("W2", SQLITE, "perdure", what, "threads", [found["threads"]], note=note),
        Row(
            "W2",
            SQLITE,
            "perdure",
            "spawning beside 64 bodies that block",
            "tasks/s",
            [spawns["rate"]],
            [spawns["alone"]],
            "alone",
        ),
    ]


def claims(bench: Bench) -> list[Row]:
    """Give, by what so many rows are, how long it takes to find the task that is due next, and to claim it."""
    count, rows = bench.sizes.queue, []
    for name, shape in SHAPES.items():
        bench.say(f"the next task beside {count} {name}")
        with bench.databases.new() as url:
            claim = _claim(Path(path_of(url)), count, *shape)
        note = f"found in {claim.finding * 1e3:.2f} ms"
        what = f"the next task beside {count:,} {name}"
        rows.append(Row("W5", SQLITE, "perdure", what, "ms", [claim.whole * 1e3], note=note))
    return rows


def _claim(path: Path, count: int, status: str, agent: str, due: float | None) -> Claim:
    fill(path, count, status=status, agent=agent, due=due)
    with open_store(f"sqlite:///{path}") as store:
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
