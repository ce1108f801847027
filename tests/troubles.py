"""Troubles of a real store, for a system that runs on it: each begins and ends when it is told.

Another kind of store puts its own beside these: a class with `url`, `words` (what is said of it), `begin` and `end`.
"""

from __future__ import annotations

import resource
import shutil
import sqlite3
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

from stores import Store

ROOM = 8_000_000
"""Bytes of the small disk."""


class Trouble(ABC):
    """A store and what can be wrong with it. `url`: the store. `words`: what its error says."""

    url: str
    words: str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @abstractmethod
    def begin(self, store: Store | None) -> None:
        """Make trouble for the store, as a system has it open if it has."""

    @abstractmethod
    def end(self) -> None:
        """End the trouble, if there is any."""


class FullDisk(Trouble):
    """A disk without room: a small file system of its own; a limit for files where this process may mount none.

    `process`: whose files are limited then; 0 is this one.
    """

    process = 0

    def __init__(self, folder: Path) -> None:
        self._disk = folder / "disk"
        self._disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(self._disk)]
        may = shutil.which("mount") is not None
        self._mounted = may and subprocess.run(mount, capture_output=True, check=False).returncode == 0
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.url = f"sqlite:///{self._disk}/tasks.db"
        self.words = "database or disk is full" if self._mounted else "disk I/O error"

    def begin(self, store: Store | None) -> None:
        self._take_the_room_that_a_worker_has_set_aside()
        if not self._mounted:
            log = self._disk / "tasks.db-wal"
            size = log.stat().st_size if log.exists() else 0
            resource.prlimit(self.process, resource.RLIMIT_FSIZE, (size + 5_000, self._limits[1]))
            return
        with (self._disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while ballast.write(bytes(4096)):
                pass

    def _take_the_room_that_a_worker_has_set_aside(self) -> None:
        path = self._disk / "tasks.db"
        if path.exists():
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                while other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    pass

    def end(self) -> None:
        with suppress(ProcessLookupError):  # it is dead
            resource.prlimit(self.process, resource.RLIMIT_FSIZE, self._limits)
        (self._disk / "ballast").unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self._disk)], check=True)  # an error in a log may keep a cursor


class NoPageLeft(Trouble):
    """The file is as big as it may become."""

    words = "database or disk is full"

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/tasks.db"
        self._writer: Any = None

    def begin(self, store: Store | None) -> None:
        assert store is not None
        self._writer = store.recorder.datastore._writer  # type: ignore[attr-defined]
        self._writer.execute("PRAGMA max_page_count=1")

    def end(self) -> None:
        if self._writer is not None:
            self._writer.execute("PRAGMA max_page_count=100000")
            self._writer = None


LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""


class Locked(Trouble):
    """Another process has the file locked for longer than the store waits."""

    words = "database is locked"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tasks.db"
        self.url = f"sqlite:///{self._path}?timeout=0.1"
        self._other: subprocess.Popen[bytes] | None = None

    def begin(self, store: Store | None) -> None:
        command = [sys.executable, "-c", LOCK, str(self._path)]
        self._other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._other.stdout is not None
        assert self._other.stdout.readline() == b"locked\n"

    def end(self) -> None:
        if self._other is not None:
            self._other.kill()
            self._other.communicate()
            self._other = None


TROUBLES: dict[str, Callable[[Path], Trouble]] = {"full disk": FullDisk, "no page left": NoPageLeft, "locked": Locked}


LIKE_ANYBODY = """
    import ctypes, os, sys
    if os.geteuid() == 0 and sys.argv[-1] != "like anybody":
        ctypes.CDLL(None).prctl(24, 1)
        os.execv(sys.executable, [sys.executable, *sys.argv, "like anybody"])
"""
"""How a program begins that meets read-only files: root may write to any, unless it gives that up."""


def integrity(url: str) -> list[tuple[str]]:
    """Give what SQLite says of the file."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///").partition("?")[0])
    try:
        return connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()
