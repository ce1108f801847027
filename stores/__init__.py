"""Where tasks are kept. Bytes only: a store has never heard of a task's meaning.

errors <- lifetime <- file_lock <- workers, turns;  task_index, emissions, orphans <- recorder <- store;
task_index, beats, heartbeats, emissions <- schema;  schema, store <- memory;  errors <- group_commit;
schema, turns, group_commit, sqlite_append <- sqlite_file <- sqlite_care;  sqlite_care, store <- sqlite;
crash_plan, store <- crash;  errors <- sqlite_errors, postgres_errors;  schema <- postgres_schema;
postgres_text <- postgres_rows;  postgres_rows, postgres_errors, postgres_schema <- postgres_append <- postgres_links;
postgres_links <- postgres_workers, postgres_news <- postgres;  all of them <- contract: tests of a store
"""

import math
import os
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
from stores.shown_url import SCHEMES
from stores.shown_url import hidden as _hidden
from stores.shown_url import shown_url as _shown_url
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


def open_store(url: str, *, make: bool = True, upgrade: bool = True) -> Store:
    """Open the store that the URL names; an SQLite file is made if it is not there, its folder is not.

    What follows `postgresql://` is as libpq takes it, with a few parameters of ours: see `stores/postgres_url.py`. Its
    tables are made if they are not there, the database is not. With `make=False` nothing is made. With `upgrade=False`
    an SQLite file of an older perdure is only read, and left as it is.

    Everything between `sqlite:///` and the first `?` is the path, as it is written: nothing in it is
    decoded or expanded. Each `memory:` is a new store, shared with nobody.

    Raises InvalidStoreURLError, StoreUnavailableError, StoreCorruptError, NewerStoreError.
    """
    if url.startswith(SCHEMES):
        return _open_postgres(url, make)
    place, mark, query = url.partition("?")
    if place == "memory:" and not mark:
        return MemoryStore()
    path = place.removeprefix("sqlite:///")
    if path in (place, "") or path.startswith(":memory:") or "\0" in path:
        raise _invalid(url, f"expected {_FORMS}")
    timeout = _timeout(url, query)
    if not make and not os.path.exists(path):
        message = f"there is no store {os.path.abspath(path)}"
        raise StoreUnavailableError(message, url=url, reason="no such file")
    return SQLiteStore(path, timeout=timeout, upgrade=upgrade)


def _timeout(url: str, query: str) -> float:
    timeout = _asked(query)
    if timeout is None or not (math.isfinite(timeout) and timeout >= 0):
        raise _invalid(url, f"bad options; expected {_FORMS}")
    return timeout


def _asked(query: str) -> float | None:
    """Give the time-out; None where the options are not understood."""
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
        timeout = float(options.pop("timeout", BUSY_TIMEOUT))
    except ValueError:  # its words show what was given
        return None
    return None if options else timeout


def _invalid(url: str, why: str) -> InvalidStoreURLError:
    shown = _hidden(url)
    return InvalidStoreURLError(f"store URL {shown!r}: {why}", url=shown)


def _open_postgres(url: str, make: bool) -> Store:
    try:
        from stores.postgres import PostgresStore  # noqa: PLC0415  who has no PostgreSQL needs no driver for it
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("psycopg", "psycopg_pool"):
            raise
        shown = _shown_url(url)
        message = f"store URL {shown}: the driver is missing ({error}); install it: pip install 'perdure[postgres]'"
        raise InvalidStoreURLError(message, url=shown) from error
    return PostgresStore(url, make=make)
