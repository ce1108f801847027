"""How fast one task makes steps, beside raw commits: raw, perdure, raw, perdure …, so that drift cancels out."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from actors import Agent, AgentSystem
from stores import open_store
from tests.benchmarks.agents import TASK, default_steps, idempotent_steps, spans
from tests.benchmarks.raw import commits_per_second, fdatasync_seconds

STEPS = 200
KINDS: dict[str, tuple[Agent[[int], None], int]] = {"default": (default_steps, 2), "idempotent": (idempotent_steps, 1)}
"""By kind of step: the agent that makes such steps, and how many commits each of them is."""


@dataclass(frozen=True)
class Speed:
    """What one kind of step reached: medians over the rounds; `ratios` are of neighbours in time."""

    steps_per_second: float
    raw_per_second: float
    ratios: list[float]
    fdatasync: float

    @property
    def ratio(self) -> float:
        """The median ratio of steps to raw commits."""
        return statistics.median(self.ratios)


def measure(folder: Path, kind: str, rounds: int) -> Speed:
    """Make the same number of commits by turns, raw and as steps, each time in a new file."""
    agent, commits_a_step = KINDS[kind]
    size = state_size(folder, agent)
    raw, ours, syncs = [], [], []
    for _ in range(rounds):
        with new_folder(folder) as place:
            syncs.append(fdatasync_seconds(place))
            raw.append(commits_per_second(place / "raw.db", STEPS * commits_a_step, "step.succeeded", size))
            run(f"sqlite:///{place}/perdure.db", agent, STEPS)
            ours.append(STEPS / spans[-1])
    ratios = [mine / theirs for mine, theirs in zip(ours, raw, strict=True)]
    return Speed(statistics.median(ours), statistics.median(raw), ratios, statistics.median(syncs))


def run(url: str, agent: Agent[[int], None], count: int) -> None:
    """Run an agent to its end."""
    with AgentSystem(url) as system:
        system.spawn(agent, count, id=TASK).result(timeout=600)


def state_size(folder: Path, agent: Agent[[int], None]) -> int:
    """Give the mean size of `state` in the rows of an agent's steps."""
    with new_folder(folder) as place:
        url = f"sqlite:///{place}/perdure.db"
        run(url, agent, STEPS)
        store = open_store(url)
        rows = store.recorder.select_events(TASK)
        store.close()
    return round(statistics.mean(len(row.state) for row in rows if row.topic.startswith("step.")))


@contextmanager
def new_folder(parent: Path) -> Iterator[Path]:
    """Give a folder that is gone afterwards."""
    with TemporaryDirectory(dir=parent) as name:
        yield Path(name)
