"""The world of a scenario whose store is in PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from stores.postgres_schema import NAMES
from tests.postgres import drop, with_option
from tests.scenario_kit import Program, World

on_both = pytest.mark.parametrize("world", ["sqlite", "postgres"], indirect=True)
"""Plays a scenario once on each database."""


class PostgresWorld(World):
    """A world with a schema for each store that it uses; they are dropped at its end."""

    def __init__(self, folder: Path, bytecode: Path, server: str) -> None:
        self._server = server
        self._schemas: list[str] = []
        super().__init__(folder, bytecode)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for schema in self._schemas:
            drop(self._server, schema)

    def use(self, name: str) -> None:
        self._schemas.append(f"test_{uuid4().hex[:16]}")
        self.url = with_option(self._server, f"schema={self._schemas[-1]}")

    def url_with(self, option: str) -> str:
        return with_option(self.url, option)

    def is_there(self) -> bool:
        with self.tables() as tables:
            return bool(tables.execute("SELECT to_regclass('perdure') IS NOT NULL").fetchall()[0][0])

    @contextlib.contextmanager
    def tables(self) -> Iterator[psycopg.Connection]:
        """Open the store's tables with nothing of ours in between."""
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(f"SET search_path = {self._schemas[-1]}")
            yield connection

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with self.tables() as tables, tables.transaction():
            tables.execute("LOCK TABLE task_index, stored_events IN EXCLUSIVE MODE")
            yield

    def freeze(self, program: Program) -> None:
        with self.locked():
            program.freeze()

    def rows(self, task: str) -> list[tuple[int, bytes]]:
        sql = "SELECT originator_version, state FROM stored_events WHERE originator_id = %s ORDER BY originator_version"
        with self.tables() as tables:
            return tables.execute(sql, [task]).fetchall()

    def set_state(self, task: str, version: int, state: bytes) -> None:
        sql = "UPDATE stored_events SET state = %s WHERE originator_id = %s AND originator_version = %s"
        with self.tables() as tables:
            assert tables.execute(sql, [state, task, version]).rowcount == 1

    def size(self) -> int:
        with self.tables() as tables:
            sizes = (tables.execute("SELECT pg_total_relation_size(%s::regclass)", [name]) for name in NAMES)
            return sum(size for cursor in sizes for (size,) in cursor)

    def check_sound(self) -> None:
        with self.tables() as tables:
            for name in NAMES:
                tables.execute(f"SELECT * FROM {name}").fetchall()
