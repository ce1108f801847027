"""The processes of a round: started, frozen, thawed, killed, sent away, and what became of each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Self

from tests.chaos.plan import Action, Plan

ROOT = Path(__file__).parents[2]
SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "thaw": signal.SIGCONT, "leave": signal.SIGTERM}
TELL, TELLING = signal.SIGUSR1, 1.0
"""The signal at which a worker writes down what each of its threads does, and the seconds that it has for that."""
LEAVING = 30.0
"""Seconds in which a process has to be gone that was asked to leave: its grace, and what a loaded machine adds."""


@dataclass(frozen=True)
class End:
    """How a process has ended, and what it wrote to standard error. `signals`: the deadly ones that it was sent."""

    process: str
    pid: int
    code: int
    signals: frozenset[int]
    errors: str


class Process:
    """One real process, with the name that the plan has for it."""

    def __init__(self, name: str, module: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.signals: set[int] = set()
        self._errors = folder / f"{name}.stderr"
        command = [sys.executable, "-m", *module]
        with self._errors.open("ab") as errors:
            self.popen = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None

    def send(self, number: int) -> None:
        """Send it a signal."""
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.signals.add(number)
        self.popen.send_signal(number)

    def end(self, timeout: float) -> End:
        """Wait for its end; who is late says what it does, and is killed, and that was not asked of it."""
        try:
            self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.popen.send_signal(TELL)
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(TELLING)
        self.popen.kill()
        told = self._errors.read_text(errors="replace")
        return End(self.name, self.popen.pid, self.popen.wait(), frozenset(self.signals), told)


class Fleet:
    """Real processes by name, whose folder is the round's. All that still run are killed at the end of the `with`.

    `bytecode` is a folder that rounds share, so that processes start fast whatever the environment says about it.
    """

    def __init__(self, folder: Path, bytecode: Path, store: str, plan: Plan) -> None:
        self.diary: list[str] = []
        self.done: Counter[str] = Counter()
        self._folder = folder
        self._modules = {
            "worker": ["tests.chaos.worker", store, str(plan.strikes or 0), "hasty" if plan.hasty else ""],
            "client": ["tests.chaos.client", store, str(plan.seed)],
        }
        self._environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(bytecode)}
        # No coverage either: a killed process leaves none, and would spend most of its life on getting ready for it.
        for name in ("PYTHONDONTWRITEBYTECODE", "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):
            self._environment.pop(name, None)
        self._began = 0.0
        self._all: list[Process] = []
        self._newest: dict[str, Process] = {}

    def __enter__(self) -> Self:
        """Begin, once all that the processes import is compiled: they would spend their lives on it."""
        command = [sys.executable, "-c", "import tests.chaos.worker, tests.chaos.client"]
        subprocess.run(command, cwd=self._folder, env=self._environment, check=True)
        self._began = monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.popen.kill()
            process.popen.wait()

    @property
    def time(self) -> float:
        """Seconds since the beginning."""
        return monotonic() - self._began

    def do(self, action: Action) -> None:
        """Do it; a signal to a process that is gone does nothing."""
        name = action.process
        if action.what == "start":
            module = self._modules[name.partition("-")[0]]
            self._newest[name] = Process(name, module, self._folder, self._environment)
            self._all.append(self._newest[name])
        elif self._newest[name].runs:
            self._newest[name].send(SIGNALS[action.what])
        else:
            return
        self.done[action.what] += 1
        self.diary.append(f"{self.time:7.3f} {action.what:6} {name} (pid {self._newest[name].popen.pid})")

    def revive(self) -> None:
        """Start again, under the same names, those that have killed themselves."""
        for name, process in list(self._newest.items()):
            if not process.signals and process.popen.poll() == -signal.SIGKILL:
                self.diary.append(f"{self.time:7.3f} died   {name} (pid {process.popen.pid})")
                self.done["died"] += 1
                self.do(Action(self.time, "start", name))

    def working(self) -> list[str]:
        """Name the processes that run and were not asked to leave."""
        return [name for name, process in self._newest.items() if process.runs and not process.signals]

    def everybody(self, what: str, kind: str = "") -> None:
        """Do something to all that run and were not asked to leave."""
        for name in self.working():
            if name.startswith(kind):
                self.do(Action(self.time, what, name))

    def ends(self) -> list[End]:
        """Wait for all to end, and tell how each has ended."""
        until = monotonic() + LEAVING
        return [process.end(max(0.0, until - monotonic())) for process in self._all]
