"""What a store in PostgreSQL is made of, compared with what perdure makes.

The tables are made once more, as temporary ones in a transaction that is rolled back, and the server itself says of
both what they consist of: so nothing here says again what the tables are, and each server is asked in its own words.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import psycopg
from psycopg.errors import InsufficientPrivilege
from psycopg.sql import SQL, Identifier

from stores.errors import StoreUnavailableError
from stores.postgres_schema import FIRST, NAMES, TABLES
from stores.schema import statements_since

# Of a table: that it is one, that a crash does not empty it, that no rows are hidden from anybody. Then its columns,
# its keys and other constraints, its indexes, and what else would act when it is written. What tunes it is nobody's
# business but the administrator's.
_MADE_OF = """
    WITH ours AS (
        SELECT c.oid, c.relname AS name, c.relkind, c.relpersistence, c.relrowsecurity FROM pg_class c
        WHERE c.relnamespace = {space} AND c.relname = ANY(%(names)s) AND c.relkind <> 'i'
    )
    SELECT 'table', t.name, t.name,
        concat_ws(
            ', ', CASE t.relkind WHEN 'r' THEN 'a plain table' ELSE 'relkind ' || t.relkind::text END,
            CASE t.relpersistence WHEN 'u' THEN 'unlogged' END, CASE WHEN t.relrowsecurity THEN 'row security' END
        )
    FROM ours t
    UNION ALL SELECT 'column', a.attname, t.name, concat_ws(
        ' ', format_type(a.atttypid, a.atttypmod), 'COLLATE ' || nullif(a.attcollation, 0)::regcollation::text,
        CASE WHEN a.attnotnull THEN 'NOT NULL' END, 'IDENTITY ' || nullif(a.attidentity::text, ''),
        CASE a.attgenerated::text WHEN '' THEN 'DEFAULT ' ELSE 'GENERATED ' END || pg_get_expr(d.adbin, d.adrelid)
    ) FROM ours t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = t.oid AND d.adnum = a.attnum
    UNION ALL SELECT CASE k.contype WHEN 'p' THEN 'primary key' ELSE 'constraint' END, k.conname, t.name,
        concat_ws(', ', pg_get_constraintdef(k.oid), CASE WHEN NOT (i.indisvalid AND i.indisready) THEN 'unusable' END)
    FROM ours t JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype <> 'n'
        LEFT JOIN pg_index i ON i.indexrelid = k.conindid
    UNION ALL SELECT 'index', x.relname, t.name, concat_ws(
        ', ', substring(pg_get_indexdef(x.oid) FROM ' (USING .*)'), CASE WHEN i.indisunique THEN 'unique' END,
        CASE WHEN NOT (i.indisvalid AND i.indisready) THEN 'unusable' END
    ) FROM ours t JOIN pg_index i ON i.indrelid = t.oid JOIN pg_class x ON x.oid = i.indexrelid
    WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = x.oid AND k.conrelid = t.oid)
    UNION ALL SELECT 'trigger', g.tgname, t.name, pg_get_triggerdef(g.oid)
    FROM ours t JOIN pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal
    UNION ALL SELECT 'rule', r.rulename, t.name, '' FROM ours t JOIN pg_rewrite r ON r.ev_class = t.oid
        AND t.relkind = 'r'
"""
_THEIRS = _MADE_OF.format(space="to_regnamespace(quote_ident(%(schema)s))")
_NEW = _MADE_OF.format(space="pg_my_temp_schema()")


class _Part(NamedTuple):
    """Kind and name of what belongs to a table, and that table."""

    kind: str
    name: str
    table: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}" + (f" of table {self.table}" if self.kind != "table" else "")


def damages(connection: psycopg.Connection, schema: str, url: str) -> Iterator[str]:
    """Say what is missing, is another, or has been added to a table of ours; other tables are their owners'.

    Looked at: tables, columns with type, order of texts and default, keys, constraints, indexes and whether the server
    can use them, triggers, rules. Not looked at: the pages of tables and indexes, which the server checks as it reads
    them where its data checksums are on; `pg_amcheck` looks at all of them.

    Raises StoreUnavailableError where the role may make no temporary tables, and errors of psycopg.
    """
    found, expected = _both(connection, schema, url)
    gone = {name for name in (*NAMES, "perdure") if _Part("table", name, name) not in found}
    for part in sorted(found.keys() | expected.keys()):
        if part.table in gone and part.kind != "table":
            continue
        if part not in found:
            yield f"{part} is missing{_remedy(part, expected[part], schema, connection)}"
        elif part not in expected:
            yield f"{part} is none of perdure's"
        elif found[part] != expected[part]:
            yield f"{part} is not as perdure makes it: {found[part]}; it should be: {expected[part]}"


def _both(connection: psycopg.Connection, schema: str, url: str) -> tuple[dict[_Part, str], dict[_Part, str]]:
    """Give what the store consists of, and what a new one does."""
    names = {"names": [*NAMES, "perdure"], "schema": schema}
    with connection.transaction(force_rollback=True):
        # What is said of both is said with nothing else in sight, and so in the same words.
        connection.execute("SET LOCAL search_path = pg_catalog")
        found = _parts(connection, _THEIRS, names)
        connection.execute("SET LOCAL search_path = pg_temp")
        try:
            for statement in _statements():
                connection.execute(statement)
        except InsufficientPrivilege as error:
            reason = (
                f"what the store is made of cannot be looked at: {error.diag.message_primary}; an administrator may do"
                f" GRANT TEMPORARY ON DATABASE {_quoted(connection.info.dbname, connection)}"
                f" TO {_quoted(connection.info.user, connection)}"
            )
            raise StoreUnavailableError(f"{url}: {reason}", url=url, reason=reason) from error
        connection.execute("SET LOCAL search_path = pg_catalog")
        return found, _parts(connection, _NEW, names)


def _parts(connection: psycopg.Connection, sql: str, names: Mapping[str, object]) -> dict[_Part, str]:
    rows = connection.execute(SQL(sql), names).fetchall()
    return {_Part(kind, name, table): words for kind, name, table, words in rows}


def _statements() -> Collection[str]:
    """Give what makes the tables of a new store, but for the rows in them."""
    made = (*TABLES, *statements_since(FIRST, "postgres"))
    return [statement for statement in made if not statement.startswith("INSERT")]


def _remedy(part: _Part, words: str, schema: str, connection: psycopg.Connection) -> str:
    """Say what makes anew what is missing, where that needs nothing but the rows that are there."""
    table = Identifier(schema, part.table).as_string(connection)
    if part.kind == "primary key":
        return f"; it comes back by: ALTER TABLE {table} ADD {words}"
    if part.kind == "index":
        return f"; it comes back by: CREATE INDEX {part.name} ON {table} {words}"
    return ""


def _quoted(name: str, connection: psycopg.Connection) -> str:
    return Identifier(name).as_string(connection)
