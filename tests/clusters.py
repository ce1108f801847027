"""Servers whose way of being reached is the test's own: by password, by TLS, two of them of which one follows."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.lives import wait_for
from tests.postgres import Server


class Cluster:
    """A server made and started with the programs in a folder. `url`: of its one database, for its administrator."""

    def __init__(self, folder: Path, programs: Path, user: str | None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self._programs = programs
        self._user = user
        if user is not None:
            shutil.chown(folder, user)

    def run(self, program: str, *words: str) -> None:
        """Run one of the programs to its end."""
        command = [str(self._programs / program), *words]
        done = subprocess.run(command, user=self._user, cwd="/", capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    def make(self) -> None:
        self.run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")

    def put(self, name: str, content: bytes) -> None:
        """Put a file among its own, that nobody else may read."""
        file = self.data / name
        file.touch(0o600)
        file.write_bytes(content)
        if self._user is not None:
            shutil.chown(file, self._user)

    def start(self, **settings: object) -> None:
        """Start it with these settings, and wait until it takes connections on a socket in its folder."""
        options = {"listen_addresses": "", "unix_socket_directories": self.folder, **settings}
        words = " ".join(f"-c {name}='{value}'" for name, value in options.items())
        self.run("pg_ctl", "-w", "-D", str(self.data), "-l", str(self.folder / "log"), "-o", words, "start")

    def promote(self) -> None:
        """Have it follow no longer, and write."""
        self.run("pg_ctl", "-w", "-D", str(self.data), "promote")

    def remove(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.run("pg_ctl", "-w", "-D", str(self.data), "-m", "immediate", "stop")
        shutil.rmtree(self.folder)


@contextmanager
def cluster(programs: Path, user: str | None) -> Iterator[Cluster]:
    """Give a server that is not made yet."""
    made = Cluster(Path(tempfile.mkdtemp(prefix="perdure-cluster-")), programs, user)
    try:
        yield made
    finally:
        made.remove()


@contextmanager
def follower(primary: Server) -> Iterator[Cluster]:
    """Give a server that follows another, and has all that this one has."""
    with cluster(primary.programs, primary.user) as standby:
        copy = ("-D", str(standby.data), "-h", str(primary.socket.parent), "-U", "postgres", "-R", "-c", "fast", "-N")
        standby.run("pg_basebackup", *copy)
        standby.start()
        with psycopg.connect(primary.url, autocommit=True) as admin:
            wait_for(lambda: admin.execute("SELECT FROM pg_stat_replication WHERE state = 'streaming'").fetchall())
        yield standby


def crash(server: Server) -> None:
    """Kill all its processes at once, as a machine does that goes."""
    postmaster = psutil.Process(int((server.folder / "postmaster.pid").read_text().split()[0]))
    everyone = [postmaster, *postmaster.children(recursive=True)]
    for process in everyone:
        process.kill()
    psutil.wait_procs(everyone, timeout=20)


def with_tls() -> tuple[Path, str | None]:
    """Give the programs of a PostgreSQL that was built with TLS, and who may run them; the one from pip was not.

    Skips the test where none is installed: a pooler's TLS before the one from pip is tested everywhere.
    """
    found = shutil.which("postgres")
    folders = [*Path("/usr/lib/postgresql").glob("*/bin"), *([Path(found).resolve().parent] if found else [])]
    for folder in sorted(folders, reverse=True):
        words = subprocess.run([folder / "pg_config", "--configure"], capture_output=True, text=True, check=False)
        if "--with-openssl" in words.stdout or "--with-ssl" in words.stdout:
            return folder, "nobody" if os.geteuid() == 0 else None
    pytest.skip("no PostgreSQL that ends TLS itself is here: install one (Debian: apt-get install postgresql)")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
