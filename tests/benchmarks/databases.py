"""Where a measurement writes: a new SQLite file or a new PostgreSQL database each time, gone afterwards."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from stores import InvalidStoreURLError, open_store
from stores.errors import StoreError
from tests.benchmarks.child import DORMANT
from tests.benchmarks.contender import path_of
from tests.benchmarks.contenders import POSTGRES, SQLITE

NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {})"


class Databases(Protocol):
    """One kind of database."""

    kind: str

    def new(self) -> Any:
        """Give, in a `with`, the URL of an empty one."""
        ...

    def copy(self, url: str) -> Any:
        """Give, in a `with`, the URL of a copy of one that nobody has open."""
        ...

    def size(self, url: str) -> int:
        """Give the bytes of one that nobody has open."""
        ...

    def multiply(self, url: str, count: int) -> None:
        """Make `count` tasks of the one that sleeps in it, by copying the rows that bear its id."""
        ...


class SQLiteFiles:
    """Files in folders of their own."""

    kind = SQLITE

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    @contextmanager
    def new(self) -> Iterator[str]:
        """Give a file that is not there yet."""
        with tempfile.TemporaryDirectory(dir=self._parent, ignore_cleanup_errors=True) as folder:
            yield f"sqlite:///{folder}/benchmark.db"

    @contextmanager
    def copy(self, url: str) -> Iterator[str]:
        """Copy the whole folder, with the write-ahead log."""
        with self.new() as other:
            shutil.copytree(Path(path_of(url)).parent, Path(path_of(other)).parent, dirs_exist_ok=True)
            yield other

    def size(self, url: str) -> int:
        """Give the size of the file, its write-ahead log moved into it."""
        with closing(sqlite3.connect(path_of(url))) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(path_of(url)).stat().st_size

    def multiply(self, url: str, count: int) -> None:
        """Copy rows without a sync: this is not what is measured."""
        with closing(sqlite3.connect(path_of(url), isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN IMMEDIATE")
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
                _multiply(connection, table, columns, count, "printf('%09d', n)", "?")
            connection.execute("COMMIT")


class PostgresServer:
    """Databases of one server."""

    kind = POSTGRES

    def __init__(self, url: str) -> None:
        import psycopg

        self._server = psycopg.connect(url, autocommit=True)
        self._url = url
        self._names = (f"perdure_benchmark_{os.getpid()}_{number}" for number in itertools.count(1))

    def close(self) -> None:
        """Leave the server."""
        self._server.close()

    @contextmanager
    def new(self) -> Iterator[str]:
        """Create a database."""
        with self._created("") as url:
            yield url

    @contextmanager
    def copy(self, url: str) -> Iterator[str]:
        """Create one from another as its template; of a killed process a session may still be there, and is ended."""
        source = urlsplit(url).path[1:]
        self._server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [source])
        with self._created(f" TEMPLATE {source}") as other:
            yield other

    @contextmanager
    def _created(self, how: str) -> Iterator[str]:
        name = next(self._names)
        self._server.execute(f"CREATE DATABASE {name}{how}")
        try:
            yield urlsplit(self._url)._replace(path=f"/{name}").geturl()
        finally:
            self._server.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def size(self, url: str) -> int:
        """Give the bytes of all tables and indexes."""
        (size,) = self._server.execute("SELECT pg_database_size(%s)", [urlsplit(url).path[1:]]).fetchone() or (0,)
        return int(size)

    def multiply(self, url: str, count: int) -> None:
        """Copy rows in the database itself; a column that counts by itself counts on."""
        import psycopg

        tables = (
            "SELECT c.table_schema, c.table_name, array_agg(c.column_name::text) FROM information_schema.columns c"
            " JOIN information_schema.tables t USING (table_schema, table_name) WHERE t.table_type = 'BASE TABLE'"
            " AND c.table_schema NOT IN ('pg_catalog', 'information_schema') AND c.is_identity = 'NO'"
            " AND c.is_generated = 'NEVER'"
            " AND COALESCE(c.column_default, '') NOT LIKE 'nextval%' GROUP BY 1, 2"
        )
        with psycopg.connect(url) as connection:
            for schema, table, columns in connection.execute(tables).fetchall():
                _multiply(connection, f'{schema}"."{table}', columns, count, "lpad(n::text, 9, '0')", "%s")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")


def _multiply(connection: Any, table: str, columns: list[str], count: int, digits: str, mark: str) -> None:
    """Copy the rows of one table in which some column is the id, whatever the column is called."""
    prefix = DORMANT[:-9]
    for column in columns:
        with ExitStack() as stack:
            if mark == "%s":
                stack.enter_context(connection.transaction())
            like = f'"{column}"' if mark == "?" else f'"{column}"::text'
            found = connection.execute(f'SELECT 1 FROM "{table}" WHERE {like} = {mark} LIMIT 1', [DORMANT]).fetchone()
        if found:
            names = ", ".join(f'"{name}"' for name in columns)
            values = ", ".join(f"'{prefix}' || {digits}" if name == column else f'"{name}"' for name in columns)
            connection.execute(
                f'INSERT INTO "{table}" ({names}) {NUMBERS.format(count - 1)}'
                f' SELECT {values} FROM "{table}", numbers WHERE {like} = {mark}',
                [DORMANT],
            )
            return


@contextmanager
def postgres() -> Iterator[PostgresServer | str]:
    """Give a server: the one that PERDURE_TEST_POSTGRES names, else one of its own; or the word why there is none."""
    with ExitStack() as stack:
        try:
            from tests.postgres import GIVEN, own_server

            server = PostgresServer(GIVEN or stack.enter_context(own_server()).url)
        except ImportError as error:
            yield f"PostgreSQL left out: {error.name} is not installed; pip install 'perdure[bench]'"
            return
        stack.callback(server.close)
        yield server


def can_open(url: str) -> str | None:
    """Tell by what error perdure refuses a URL, None if it does not. Its message may show the URL, and is not told."""
    try:
        open_store(url).close()
    except (InvalidStoreURLError, ImportError, StoreError) as error:
        return type(error).__name__
    return None
