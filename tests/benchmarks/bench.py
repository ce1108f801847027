"""How a measurement is made: a process for each, rounds by turns, everything in a new database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from time import perf_counter
from typing import Any

from tests.benchmarks.contenders import CONTENDERS
from tests.benchmarks.databases import Databases

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Sizes:
    """How much of everything; the defaults are what the targets speak of.

    Args:
        rounds, crowds: how often W1 is measured, and W2.
        few: how often the rest is.
        steps, tasks, length: W1's steps, W2's tasks and steps a task.
        many: the steps of one task whose last hundred stand beside its first.
        starts: tasks a round in W3.
        finished: steps that are there when W4's process is killed.
        dormant: W5's numbers of tasks.
        queue: rows beside which the next task is found.
        crowd: tasks that are there at once, for the count of threads.
        stored: steps over which W6 takes the mean.
        by_steps, by_tasks: where the curves are measured.
        patience: seconds after which a measurement is given up.
    """

    rounds: int = 15
    crowds: int = 5
    few: int = 3
    steps: int = 200
    tasks: int = 200
    length: int = 10
    many: int = 10_000
    starts: int = 500
    finished: int = 5000
    dormant: tuple[int, ...] = (10_000, 100_000)
    queue: int = 1_000_000
    crowd: int = 10_000
    stored: int = 2000
    by_steps: tuple[int, ...] = (10, 100, 1000, 10_000)
    by_tasks: tuple[int, ...] = (1, 10, 100, 1000)
    patience: float = 300.0


QUICK = Sizes(
    rounds=3,
    crowds=1,
    few=1,
    many=2000,
    starts=100,
    finished=1000,
    dormant=(1000,),
    queue=100_000,
    crowd=1000,
    stored=500,
    by_steps=(10, 100, 1000),
    by_tasks=(1, 10, 100),
    patience=120.0,
)
"""Some minutes; the figures vary more, and targets that speak of larger numbers are not looked at."""


class GivenUpError(Exception):
    """Raised when a measurement takes too long, or its process fails: the others go on."""


@dataclass
class Bench:
    """Measures contenders in one kind of database.

    Args:
        names: who may be measured.
        folder: where children keep their bytecode, as installed packages have it, outside of the tree.
        words: what is to be said beside the figures.
    """

    databases: Databases
    names: Sequence[str]
    sizes: Sizes
    folder: Path
    say: Callable[[str], None]
    words: list[str] = field(default_factory=list)

    def among(self, *wanted: str) -> list[str]:
        """Give those of the wanted who can be measured here, in that order."""
        return [name for name in wanted if name in self.names]

    def by_turns(self, names: Sequence[str], part: str, *numbers: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
        """Measure each once, then each again: what drifts meanwhile is the same for all. A new database each time."""
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for turn in range(rounds):
            for name in names:
                self.say(f"{self.databases.kind} {part} {numbers} {name} {turn + 1}/{rounds}")
                with self.databases.new() as url:
                    try:
                        found[name].append(self.child(name, part, url, *numbers))
                    except GivenUpError as error:
                        self.words.append(str(error))
        return {name: said for name, said in found.items() if len(said) == rounds}

    def child(self, name: str, part: str, url: str, *numbers: int) -> dict[str, Any]:
        """Measure once, in a process of its own. Raises GivenUpError."""
        what = f"{CONTENDERS[name].label} on {self.databases.kind}: {part} {numbers}"
        return self.program("tests.benchmarks.child", name, part, url, *map(str, numbers), what=what)

    def program(self, module: str, *words: str, what: str) -> dict[str, Any]:
        """Run one of the programs here, and read its last line. Raises GivenUpError, which says what it was."""
        with self.process(module, *words) as process:
            try:
                out, err = process.communicate(timeout=self.sizes.patience)
            except subprocess.TimeoutExpired:
                raise GivenUpError(f"{what} took over {self.sizes.patience:g} s") from None
        lines = out.splitlines()
        if process.returncode or not lines:
            raise GivenUpError(f"{what}: exit {process.returncode}\n{out}{err}")
        said: dict[str, Any] = json.loads(lines[-1])
        return said

    @contextmanager
    def process(self, module: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Start one of the programs, which is over with the context."""
        command = [sys.executable, "-m", module, *words]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, cwd=ROOT, env=self.environment, text=True, **pipes) as process:
            try:
                yield process
            finally:
                process.kill()

    def seconds_to_a_line(self, *arguments: str) -> tuple[float, str]:
        """Start Python with these words, and give the time from there to its first line, and the line.

        Raises GivenUpError.
        """
        command = [sys.executable, *arguments]
        started = perf_counter()
        with subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, text=True) as process:
            patience = Timer(self.sizes.patience, process.kill)
            patience.start()
            line = process.stdout.readline() if process.stdout else ""
            seconds = perf_counter() - started
            patience.cancel()
            process.kill()
        if not line:
            raise GivenUpError(f"{arguments} had no line after {seconds:.0f} s: exit {process.returncode}")
        return seconds, line

    @property
    def environment(self) -> dict[str, str]:
        """Let the children keep their bytecode in the folder of the run."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(self.folder)}
