"""The tables of a store in PostgreSQL, and the version that says which ones they are.

Guarantee: they are made once, also when many processes open a new store together: all in one transaction, under a lock
that only one of them has. A store of a newer perdure is refused, and nothing is changed in it.
"""

from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b

import psycopg
from psycopg.sql import SQL, Identifier

from stores.emissions import Emission
from stores.errors import StoreCorruptError, StoreUnavailableError
from stores.schema import SCHEMA, check_schema, statements_since
from stores.task_index import COLUMNS

FIRST = 2
"""The schema with which PostgreSQL came: what a new store is made with, before every migration since."""
ENCODING = "UTF8"

# Names are compared and ordered by their bytes, which in UTF-8 is the order of code points, as in every other store.
_TEXT = 'text COLLATE "C"'
_TYPES = {"head": "bigint", "activation": "bigint", "strikes": "bigint", "attempt": "bigint"} | {
    "created": "float8",
    "updated": "float8",
    "due": "float8",
    "at": "float8",
    "base": "bigint",
    "number": "bigint",
}
_MAY_BE_NULL = ("due", "owner", "hold")


def kind(column: str) -> str:
    """Give the type of a column."""
    return _TYPES.get(column, "text")


def _definition(column: str) -> str:
    return f"{column} {_TYPES.get(column, _TEXT)}{'' if column in _MAY_BE_NULL else ' NOT NULL'}"


TABLES = [
    f"""CREATE TABLE stored_events (
        originator_id {_TEXT} NOT NULL, originator_version bigint NOT NULL, topic {_TEXT} NOT NULL,
        state bytea NOT NULL, PRIMARY KEY (originator_id, originator_version)
    )""",
    # Nearly every append changes a row of this. With room in its page, and no index on what changes, it touches none of
    # the indexes: so `updated`, which always changes, stands in one only where a task is held.
    f"""CREATE TABLE task_index (
        {", ".join(map(_definition, COLUMNS))}, PRIMARY KEY (id),
        held_since float8 GENERATED ALWAYS AS (CASE WHEN hold IS NOT NULL THEN updated END) STORED
    ) WITH (fillfactor = 70)""",
    "CREATE INDEX task_ready ON task_index (agent, due, id) WHERE due IS NOT NULL",
    "CREATE INDEX task_held ON task_index (hold, held_since, id) WHERE hold IS NOT NULL",
    f"""CREATE TABLE heartbeats (
        task_id {_TEXT} NOT NULL, path {_TEXT} NOT NULL, birth {_TEXT} NOT NULL, attempt bigint NOT NULL,
        detail {_TEXT} NOT NULL, PRIMARY KEY (task_id, path)
    ) WITH (fillfactor = 70)""",
    f"CREATE TABLE beats (worker {_TEXT} PRIMARY KEY, count bigint NOT NULL, lease float8 NOT NULL)",
    f"""CREATE TABLE emissions (
        task_id {_TEXT} NOT NULL, birth {_TEXT} NOT NULL,
        {", ".join(f"{name} {_TYPES.get(name, _TEXT)} NOT NULL" for name in Emission._fields)},
        PRIMARY KEY (task_id, birth, base, number)
    )""",
    f"CREATE TABLE workers (id {_TEXT} PRIMARY KEY, key bigint NOT NULL, about {_TEXT} NOT NULL)",
    "CREATE TABLE perdure (schema integer NOT NULL)",
    f"INSERT INTO perdure (schema) VALUES ({FIRST})",
]
NAMES = ("stored_events", "task_index", "heartbeats", "beats", "emissions", "workers")
"""The tables."""
VERSION = "SELECT schema FROM perdure"
_OURS: dict[str, set[str]] = {
    "stored_events": {"originator_id", "originator_version", "topic", "state"},
    "task_index": {*COLUMNS, "held_since"},
    "heartbeats": {"task_id", "path", "birth", "attempt", "detail"},
    "beats": {"worker", "count", "lease"},
    "emissions": {"task_id", "birth", *Emission._fields},
    "workers": {"id", "key", "about"},
    "perdure": {"schema"},
}
"""What columns of them tell them from another program's."""
_COLUMNS = """SELECT c.relname, a.attname, format_type(a.atttypid, NULL)
    FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = to_regnamespace(quote_ident(%s))"""


def lock_key(*names: str) -> int:
    """Give the key of an advisory lock: such a key is one number for the whole database, whoever uses it."""
    digest = blake2b("\0".join(("perdure", *names)).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big", signed=True)


def prepare(connection: psycopg.Connection, schema: str, url: str, *, make: bool = True) -> None:
    """Make the tables where there are none, unless told not to; or see that they are ours, and of today.

    Raises StoreCorruptError, NewerStoreError, StoreUnavailableError and errors of psycopg.
    """
    (encoding,) = _row(connection, "SELECT current_setting('server_encoding')")
    if encoding != ENCODING:
        reason = f"the database has encoding {encoding}: a store needs one with {ENCODING}"
        raise StoreUnavailableError(f"{url}: {reason}", url=url, reason=reason)
    found = _found(connection, schema, url)
    if found is None and not make:
        reason = f"there is no store in schema {schema!r} of the database"
        raise StoreUnavailableError(f"{url}: {reason}", url=url, reason=reason)
    if found != SCHEMA:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [lock_key("open", schema)])
            found = _found(connection, schema, url)  # another may have done it meanwhile
            if found is None:
                _make(connection, schema, url)
            _upgrade(connection, FIRST if found is None else found)


def _upgrade(connection: psycopg.Connection, found: int) -> None:
    for statement in statements_since(found, "postgres"):
        connection.execute(statement)
    connection.execute("UPDATE perdure SET schema = %s WHERE schema <> %s", [SCHEMA, SCHEMA])


def _found(connection: psycopg.Connection, schema: str, url: str) -> int | None:
    """Give the schema version of the tables, if they are there. Raises StoreCorruptError, NewerStoreError.

    Ours is a table `perdure` with a version in it, and others of ours beside it: names alone are anybody's.
    """
    tables: dict[str, dict[str, str]] = {}
    for table, column, of_type in connection.execute(_COLUMNS, [schema]):
        tables.setdefault(table, {})[column] = of_type
    if tables.keys().isdisjoint(_OURS):
        return None
    whole = sum(tables.get(name, {}).keys() >= _OURS[name] for name in NAMES)
    version = None
    if tables.get("perdure", {}).get("schema") == "integer" and not tables.keys().isdisjoint(NAMES):
        _check_right(connection, schema, "USAGE", url)
        version = _version(connection, schema, url)
    missing = "; no ".join(_missing(tables))
    if missing and whole >= (len(NAMES) if version is None else 1):
        message = f"{url}: damaged: schema {schema!r} has no {missing}: restore it from a backup of the database"
        raise StoreCorruptError(message, url=url)
    if version is None or not whole:
        message = f"schema {schema!r} has tables of another program, left as they are: name another schema by"
        raise StoreCorruptError(f"{url}: {message} ?schema=NAME", url=url)
    return version


def _version(connection: psycopg.Connection, schema: str, url: str) -> int:
    rows = connection.execute(SQL("SELECT schema FROM {}").format(Identifier(schema, "perdure"))).fetchall()
    if len(rows) != 1 or rows[0][0] is None:
        raise StoreCorruptError(f"{url}: damaged, or not a store of perdure: it has no one version", url=url)
    version = int(rows[0][0])
    check_schema(version, url)
    return version


def _missing(tables: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Say which tables of ours, and which columns of those that are there, a schema lacks."""
    if gone := [name for name in _OURS if name not in tables]:
        yield f"table {', '.join(gone)}"
    for name, columns in _OURS.items():
        if lost := sorted(columns - {*tables.get(name, columns)}):
            yield f"column {', '.join(lost)} in table {name}"


def _check_right(connection: psycopg.Connection, schema: str, right: str, url: str) -> None:
    """Raise StoreUnavailableError where the role has not this right to the schema, which is there."""
    if _row(connection, "SELECT has_schema_privilege(quote_ident(%s), %s)", schema, right)[0]:
        return
    name, user = Identifier(schema).as_string(connection), connection.info.user
    role = Identifier(user).as_string(connection)
    reason = (
        f"role {user!r} has no right {right} to schema {schema!r}; an administrator may do"
        f" GRANT USAGE, CREATE ON SCHEMA {name} TO {role}"
    )
    raise StoreUnavailableError(f"{url}: {reason}", url=url, reason=reason)


def _make(connection: psycopg.Connection, schema: str, url: str) -> None:
    name = Identifier(schema)
    if not _row(connection, "SELECT to_regnamespace(quote_ident(%s)) IS NULL", schema)[0]:
        for right in ("USAGE", "CREATE"):
            _check_right(connection, schema, right, url)
    else:
        try:
            connection.execute(SQL("CREATE SCHEMA {}").format(name))
        except psycopg.errors.InsufficientPrivilege as error:
            user = connection.info.user
            reason = (
                f"{' '.join(str(error).split())}: role {user!r} may not make the tables; an administrator may do"
                f" CREATE SCHEMA {name.as_string(connection)} AUTHORIZATION {Identifier(user).as_string(connection)}"
            )
            raise StoreUnavailableError(f"{url}: {reason}", url=url, reason=reason) from error
    for statement in TABLES:
        connection.execute(statement)  # into the first schema of the search path, which is ours


def _row(connection: psycopg.Connection, sql: str, *params: object) -> tuple[object, ...]:
    (row,) = connection.execute(sql, params).fetchall()
    return tuple(row)
