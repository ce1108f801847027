"""The versions of a store's schema, and how one becomes the next: one list, for all stores.

A store says its version. One of an older perdure is brought up to date by the first newer process that opens it, in one
transaction; one of a newer perdure is refused. Processes that have the store open meanwhile go on; a worker sees by its
beat that the store is newer than it is, and claims nothing more.

A new store is the first schema and every migration since. So what stands here is never edited, nor are the statements
that it names: a change is another migration. One after which the statements of an older perdure would write what is
wrong has to make them fail, as by another name of the table: clients look at the version only when they open.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from stores import beats, emissions, heartbeats, task_index
from stores.errors import NewerStoreError, StoreCorruptError


class Migration(NamedTuple):
    """What leads to a version of the schema from the one before, in the words of each database."""

    version: int
    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]


MIGRATIONS = (
    Migration(
        2,  # the first files had no heartbeats, beats and emissions, and were made with other indexes
        sqlite=(
            heartbeats.CREATE,
            beats.CREATE,
            emissions.CREATE,
            task_index.CREATE_HELD,
            task_index.CREATE_READY,
            task_index.DROP_DUE,
        ),
        postgres=(),  # PostgreSQL came with this version
    ),
)
SCHEMA = MIGRATIONS[-1].version
"""The schema that this perdure makes, and up to which it reads."""


def tables_since(found: int) -> Iterator[str]:
    """Give the statements that make the tables which an SQLite file of a version has not, for one connection alone.

    With them, empty, it can be read as it is. A migration that changes a table needs more than that.
    """
    for statement in statements_since(found, "sqlite"):
        if statement.startswith(_TABLE):
            yield statement.replace(_TABLE, "CREATE TEMP TABLE IF NOT EXISTS ", 1)


_TABLE = "CREATE TABLE IF NOT EXISTS "
Database = Literal["sqlite", "postgres"]


def statements_since(found: int, database: Database) -> Iterator[str]:
    """Give the statements that lead from a version to today's, in order.

    >>> list(statements_since(SCHEMA, "sqlite"))
    []
    """
    for migration in MIGRATIONS:
        if migration.version > found:
            yield from migration.sqlite if database == "sqlite" else migration.postgres


def check_schema(found: int, url: str) -> None:
    """Raise NewerStoreError for a version that is newer than this perdure, StoreCorruptError for what is none."""
    if found < 1:
        raise StoreCorruptError(f"{url}: damaged: its schema is {found}, which no perdure has written", url=url)
    if found > SCHEMA:
        message = f"{url}: written by a newer perdure (schema {found}; this one reads up to {SCHEMA}): go on with that"
        raise NewerStoreError(message, url=url, found=found, known=SCHEMA)
