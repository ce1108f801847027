"""How long a killed task takes from the start of its new process to its first new step."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from tests.benchmarks.steps import new_folder

FINISHED = 5000
PROGRAM = Path(__file__).with_name("restarted.py")
ROOT = PROGRAM.parents[2]


@dataclass(frozen=True)
class Restart:
    """Medians, in seconds from before the process is started to its line of output.

    `whole`: to the first new step. `imports`: to the end of `import actors`. `python`: nothing imported.
    """

    whole: float
    imports: float
    python: float


def measure(folder: Path, rounds: int) -> Restart:
    """Make a log once, and restart its task in a fresh copy of it each time.

    The log and all bytecode are where a second start finds them: in the system's cache and on the disk.
    """
    whole, imports, python = [], [], []
    with new_folder(folder) as place, new_folder(folder) as bytecode:
        environment = _environment(bytecode)
        subprocess.run([sys.executable, PROGRAM, place, str(FINISHED)], env=environment, check=True)
        for _ in range(rounds):
            with new_folder(folder) as copy:
                shutil.copytree(place, copy, dirs_exist_ok=True)
                whole.append(_seconds_to_a_line(environment, str(PROGRAM), str(copy), str(FINISHED)))
            imports.append(_seconds_to_a_line(environment, "-c", "import actors; print()"))
            python.append(_seconds_to_a_line(environment, "-c", "print()"))
    return Restart(statistics.median(whole), statistics.median(imports), statistics.median(python))


def _seconds_to_a_line(environment: dict[str, str], *arguments: str) -> float:
    started = perf_counter()
    with subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE) as process:
        line = process.stdout.readline() if process.stdout else b""
        seconds = perf_counter() - started
    if not line or process.returncode:
        raise RuntimeError(f"{arguments} did not get to its line: exit {process.returncode}")
    return seconds


def _environment(bytecode: Path) -> dict[str, str]:
    """Let the children keep their bytecode, as installed packages have it, outside of the tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(bytecode)}
