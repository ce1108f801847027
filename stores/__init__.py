"""Where tasks are kept. Bytes only: a store has never heard of a task's meaning.

errors <- lifetime <- file_lock <- workers, turns;  task_index, emissions, orphans <- recorder <- store;
task_index, beats, heartbeats, emissions <- schema;  schema, store <- memory;  errors <- group_commit;
schema, turns, group_commit, sqlite_append <- sqlite_file <- sqlite_care;  sqlite_care, store <- sqlite;
crash_plan, store <- crash;  errors <- sqlite_errors, postgres_errors;  schema <- postgres_schema;
postgres_text, postgres_errors, postgres_schema <- postgres_append <- postgres_links;
postgres_links <- postgres_workers, postgres_news <- postgres;  all of them <- contract: tests of a store
"""

import math
from urllib.parse import parse_qsl

from stores.errors import (
    AppendConflictError,
    InvalidStoreURLError,
    NewerStoreError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreForkedError,
    StoreUnavailableError,
)
from stores.memory import MemoryStore
from stores.recorder import TaskRecorder
from stores.sqlite import BUSY_TIMEOUT, SQLiteStore
from stores.store import Store
from stores.task_index import IndexRow
from stores.workers import WorkerLock, Workers

__all__ = [
    "AppendConflictError",
    "IndexRow",
    "InvalidStoreURLError",
    "MemoryStore",
    "NewerStoreError",
    "SQLiteStore",
    "Store",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreError",
    "StoreForkedError",
    "StoreUnavailableError",
    "TaskRecorder",
    "WorkerLock",
    "Workers",
    "open_store",
]

_FORMS = (
    "'memory:', 'sqlite:///relative.db' or 'sqlite:////absolute/path.db', with '?timeout=SECONDS' if wanted,"
    " or 'postgresql://…'"
)
_POSTGRES = ("postgresql://", "postgres://")


def open_store(url: str) -> Store:
    """Open the store that the URL names; an SQLite file is made if it is not there, its folder is not.

    What follows `postgresql://` is as libpq takes it, with a few parameters of ours: see `stores/postgres_url.py`. Its
    tables are made if they are not there, the database is not.

    Everything between `sqlite:///` and the first `?` is the path, as it is written: nothing in it is
    decoded or expanded. Each `memory:` is a new store, shared with nobody.

    Raises InvalidStoreURLError, StoreUnavailableError, StoreCorruptError, NewerStoreError.
    """
    if url.startswith(_POSTGRES):
        return _open_postgres(url)
    place, mark, query = url.partition("?")
    if place == "memory:" and not mark:
        return MemoryStore()
    path = place.removeprefix("sqlite:///")
    if path in (place, "") or path.startswith(":memory:") or "\0" in path:
        raise InvalidStoreURLError(f"store URL {url!r}: expected {_FORMS}", url=url)
    return SQLiteStore(path, timeout=_timeout(url, query))


def _timeout(url: str, query: str) -> float:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
        timeout = float(options.pop("timeout", BUSY_TIMEOUT))
        if options or not (math.isfinite(timeout) and timeout >= 0):
            raise ValueError
    except ValueError:
        raise InvalidStoreURLError(f"store URL {url!r}: bad options; expected {_FORMS}", url=url) from None
    return timeout


def _open_postgres(url: str) -> Store:
    try:
        from stores.postgres import PostgresStore  # noqa: PLC0415  who has no PostgreSQL needs no driver for it
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("psycopg", "psycopg_pool"):
            raise
        scheme = url.partition("//")[0]
        message = f"store URL {scheme}//…: the driver is missing ({error}); install it: pip install 'perdure[postgres]'"
        raise InvalidStoreURLError(message, url=f"{scheme}//…") from error
    return PostgresStore(url)
