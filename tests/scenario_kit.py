"""What the scenarios are played with: programs in processes of their own, and a ledger that no store knows of.

A `World` is a folder with a store, program files and the ledger; programs run with it as their working directory, and
take what they need from `tests.scenario_kit`. Only the ledger proves what happened outside.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import dedent
from time import monotonic
from typing import Any, Self, TextIO

from actors import AgentSystem, TaskError, TaskRef, step_info

ROOT = Path(__file__).parents[1]
STORE = os.environ.get("PERDURE_TEST_STORE", "sqlite:///tasks.db")
LEDGER = "ledger.jsonl"
KILLED = -signal.SIGKILL
TIMEOUT = 30.0


@dataclass(frozen=True)
class Line:
    """One line of the ledger: an effect that has really happened."""

    effect: str
    task: str
    path: str
    key: str
    attempt: int
    note: Any


# ---------------------------------------------------------------------- in the programs


def effect(name: str, note: Any = None) -> None:
    """Do the effect of the running step: one line in the ledger, on the disk when this returns."""
    info = step_info()
    line = Line(name, info.task_id, info.path, info.idempotency_key, info.attempt, note)
    ledger = os.open(LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(ledger, json.dumps(asdict(line)).encode() + b"\n")
        os.fsync(ledger)
    finally:
        os.close(ledger)


def die() -> None:
    """End this process as nothing can prevent."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(mark: str) -> None:
    """Die here, but only the first process that comes by."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(f"{mark}.died", os.O_CREAT | os.O_EXCL))
        die()


def pass_door(name: str) -> None:
    """Wait until the test has opened the door of that name."""
    with open(f"{name}.door") as door:
        fcntl.flock(door, fcntl.LOCK_SH)


def say(*words: object) -> None:
    """Tell the test something, in one line."""
    print(*words, flush=True)


def hear() -> str:
    """Wait for a line from the test; no words at its end."""
    return sys.stdin.readline().strip()


def answer(task: TaskRef[Any], timeout: float = TIMEOUT) -> Any:
    """Give a task's result, or the name of the error in its place."""
    try:
        return task.result(timeout)
    except TaskError as error:
        return type(error).__name__


# ---------------------------------------------------------------------- in the tests


class Program:
    """A running program."""

    def __init__(self, command: list[str], folder: Path, errors: Path, bytecode: Path, url: str = STORE) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(bytecode)}
        environment["PERDURE_TEST_STORE"] = url
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._errors = errors
        self._heard = b""
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                process_group=0,
            )

    @property
    def errors(self) -> str:
        """What it has written to standard error so far."""
        return self._errors.read_text()

    @property
    def pid(self) -> int:
        """Its process, which leads a group of its own, as that of a terminal does."""
        return self._process.pid

    def complain(self, words: str, count: int = 1, timeout: float = TIMEOUT) -> None:
        """Wait until it, or what it has started and left behind, has written something to standard error so often."""
        until, pause = monotonic() + timeout, threading.Event()
        while self.errors.count(words) < count and monotonic() < until:
            pause.wait(0.01)
        assert self.errors.count(words) >= count, f"{words!r} is not among what it has written:\n{self.errors}"

    def say(self, line: str) -> None:
        """Tell it something."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, timeout: float = TIMEOUT) -> str:
        """Wait for its next line."""
        deadline = monotonic() + timeout
        while b"\n" not in self._heard:
            more = self._read(deadline)
            assert more, f"the program ended without a word:\n{self.errors}"
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def end(self, code: int = 0, timeout: float = TIMEOUT) -> str:
        """Wait for its end, which has to be `code`, and give what it said meanwhile."""
        deadline = monotonic() + timeout
        while more := self._read(deadline):
            self._heard += more
        found = self._process.wait(max(0.0, deadline - monotonic()))
        assert found == code, f"the program ended with {found}, not with {code}:\n{self.errors}"
        self.kill()
        return self._heard.decode().strip()

    def code(self, timeout: float = TIMEOUT) -> int:
        """Wait for its end, however it ends, and give its exit code."""
        return self._process.wait(timeout)

    def freeze(self) -> None:
        """Stop it where it stands, and wait until all of it does."""
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"the program has ended instead:\n{self.errors}"

    def thaw(self) -> None:
        """Let a frozen one go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, if it still runs, and leave nothing open."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - monotonic()))
        assert ready, f"the program said nothing in time:\n{self.errors}"
        return os.read(self._process.stdout.fileno(), 65536)


class World:
    """A folder with a store, programs and a ledger. Whatever still runs is killed at its end.

    `bytecode` is a folder that worlds share, so that programs start fast whatever the environment says about it.
    """

    def __init__(self, folder: Path, bytecode: Path) -> None:
        self.folder = folder
        self._bytecode = bytecode
        self._programs: list[Program] = []
        self._doors: dict[str, TextIO] = {}
        self.use("tasks.db")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.kill()
        for name in list(self._doors):
            self.open_door(name)

    def shut_door(self, name: str) -> None:
        """Let everybody who comes to a door wait there, in any process, until it is opened."""
        self._doors[name] = (self.folder / f"{name}.door").open("w")
        fcntl.flock(self._doors[name], fcntl.LOCK_EX)

    def open_door(self, name: str) -> None:
        """Open a door for good."""
        self._doors.pop(name).close()

    def use(self, name: str) -> None:
        """Go on with another store file."""
        self.file = self.folder / name
        self.url = f"sqlite:///{self.file}"

    def write(self, text: str, name: str = "program.py") -> Path:
        """Write a program, over the one that was there."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))
        return path

    def start(self, program: Path, *args: object) -> Program:
        """Start a program and let it run."""
        return self._start([str(program), *map(str, args)])

    def perdure(self, *words: str) -> Program:
        """Start the command `perdure` with these words, on this store."""
        return self._start(["-m", "actors", *words, "--store", self.url])

    def _start(self, words: list[str]) -> Program:
        errors = self.folder / f"stderr-{len(self._programs)}.txt"
        started = Program([sys.executable, *words], self.folder, errors, self._bytecode, self.url)
        self._programs.append(started)
        return started

    def run(self, program: Path, *args: object, code: int = 0) -> str:
        """Run a program to its end, which has to be `code`, and give what it said."""
        return self.start(program, *args).end(code)

    def client(self) -> AgentSystem:
        """Give a system of this process that only looks: it has never heard of the programs' classes."""
        return AgentSystem(self.url, run=False)

    def ledger(self, effect: str | None = None, task: str | None = None) -> list[Line]:
        """Read the ledger: all of it, or the lines of one effect or task."""
        path = self.folder / LEDGER
        lines = [Line(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if effect in (None, line.effect) and task in (None, line.task)]

    def count(self, effect: str) -> int:
        """Count how often an effect has happened."""
        return len(self.ledger(effect))

    def url_with(self, option: str) -> str:
        """Give the store's URL with one more option."""
        return f"{self.url}?{option}"

    def is_there(self) -> bool:
        """Tell whether the store has been made."""
        return self.file.exists()

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """Open the store's file with nothing of ours in between."""
        with contextlib.closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            yield connection

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody write to the store."""
        with self.database() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    def freeze(self, program: Program) -> None:
        """Freeze a program, but not in the middle of a commit: it would keep the store locked for everybody."""
        with self.locked():
            program.freeze()

    def size(self) -> int:
        """Give the bytes that the store takes."""
        return sum(file.stat().st_size for file in self.folder.glob(f"{self.file.name}*") if file.is_file())

    def check_sound(self) -> None:
        """See that the database itself finds nothing wrong with the store."""
        with self.database() as connection:
            assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    def rows(self, task: str) -> list[tuple[int, bytes]]:
        """Give the versions and bytes of a task's log."""
        sql = "SELECT originator_version, state FROM stored_events WHERE originator_id=? ORDER BY originator_version"
        with self.database() as connection:
            return connection.execute(sql, [task]).fetchall()

    def flip(self, task: str, version: int, at: int) -> None:
        """Flip 4 bytes of a row, from index `at` on; once more puts them back."""
        state = bytearray(dict(self.rows(task))[version])
        for index in range(at, at + 4):
            state[index] ^= 0x03
        self.set_state(task, version, bytes(state))

    def set_state(self, task: str, version: int, state: bytes) -> None:
        """Change the bytes of a row."""
        sql = "UPDATE stored_events SET state=? WHERE originator_id=? AND originator_version=?"
        with self.database() as connection:
            assert connection.execute(sql, [state, task, version]).rowcount == 1


def join_all(threads: set[threading.Thread], timeout: float = 5.0) -> list[str]:
    """Wait for threads to end, and name those that did not."""
    deadline = monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
