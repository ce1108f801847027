"""What a store in PostgreSQL is made of: `perdure verify` names what is missing, other, or not of perdure's making."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from actors import AgentSystem, agent, receive, step
from actors.task_log import TaskLog
from actors.verify import Read, verify
from stores import Store, StoreCorruptError, StoreUnavailableError, open_store
from stores.postgres_schema import _OURS, NAMES
from stores.postgres_url import parsed
from stores.shown_url import shown_url
from tests.lives import PATIENCE, wait_for
from tests.postgres import drop, fresh_schema, with_option
from tests.shell import Shell
from tests.test_postgres import role

INDEXES = ("task_ready", "task_held")


@step
def call(word: str) -> str:
    return word.upper()


@agent(name="care: working")
def working(word: str) -> str:
    return call(word)


@agent(name="care: waiting")
def waiting() -> int:
    return int(str(receive("go")))


@pytest.fixture
def store(postgres: str) -> Iterator[Store]:
    with open_store(postgres) as store:
        yield store


@pytest.fixture
def admin(postgres: str, postgres_server: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'SET search_path = "{parsed(postgres).schema}"')
        yield connection


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def verified(url: str) -> list[str]:
    """Give what `perdure verify` says is wrong."""
    try:
        with open_store(url, make=False) as store:
            return list(verify(TaskLog(store), Read()))
    except StoreCorruptError as error:
        return [str(error)]


def test_a_store_as_it_was_made_has_no_damage_also_under_a_name_that_needs_quotes(
    postgres: str, store: Store, postgres_server: str
) -> None:
    assert list(store.damages()) == []
    try:
        with open_store(with_option(postgres_server, "schema=Test%20%22of%22%20care")) as other:
            assert list(other.damages()) == []
    finally:
        drop(postgres_server, 'Test "of" care')


DAMAGES = {
    "DROP TABLE beats": "schema .* has no table beats: restore it from a backup of the database$",
    "ALTER TABLE beats DROP COLUMN lease": "schema .* has no column lease in table beats: restore it from a backup",
    "ALTER TABLE beats DROP CONSTRAINT beats_pkey": "the primary key beats_pkey of table beats is missing; it comes",
    "DROP INDEX task_ready": "the index task_ready of table task_index is missing; it comes back by: CREATE INDEX",
}


@pytest.mark.parametrize(("sql", "told"), DAMAGES.items(), ids=DAMAGES)
def test_verify_says_what_is_missing_and_ends_with_1(
    postgres: str, store: Store, admin: psycopg.Connection, shell: Shell, sql: str, told: str
) -> None:
    admin.execute(sql)
    done = shell("verify", "--store", postgres)
    assert done.returncode == 1
    assert re.fullmatch(f".*{told}.*\n", done.stdout)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("table", _OURS)
def test_a_missing_table_is_named_by_who_opens_the_store_and_by_who_has_it_open(
    postgres: str, store: Store, admin: psycopg.Connection, table: str
) -> None:
    admin.execute(f"DROP TABLE {table}")
    (said,) = verified(postgres)
    assert f"has no table {table}: restore it from a backup" in said
    if table == "perdure":
        with pytest.raises(StoreCorruptError, match="perdure"):
            list(store.damages())
    else:
        assert list(store.damages()) == [f"the table {table} is missing"]


@pytest.mark.parametrize("table", _OURS)
def test_each_missing_column_is_named_by_who_opens_the_store_and_by_who_has_it_open(
    postgres_server: str, table: str
) -> None:
    for column in sorted(_OURS[table]):
        with fresh_schema(postgres_server) as url, open_store(url) as store:
            with psycopg.connect(postgres_server, autocommit=True) as admin:
                admin.execute(f'ALTER TABLE "{parsed(url).schema}".{table} DROP COLUMN {column} CASCADE')
            with pytest.raises(StoreCorruptError, match=f"no column ([a-z_]+, )*{column}(, [a-z_]+)* in table {table}"):
                open_store(url, make=False)
            if table != "perdure":
                assert f"the column {column} of table {table} is missing" in list(store.damages())


@pytest.mark.parametrize("table", NAMES)
def test_a_missing_primary_key_is_named_with_what_brings_it_back(
    postgres: str, store: Store, admin: psycopg.Connection, table: str
) -> None:
    admin.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey")
    assert_mended(postgres, admin, f"the primary key {table}_pkey of table {table} is missing")


@pytest.mark.parametrize("index", INDEXES)
def test_a_missing_index_is_named_with_what_brings_it_back(
    postgres: str, store: Store, admin: psycopg.Connection, index: str
) -> None:
    admin.execute(f"DROP INDEX {index}")
    assert_mended(postgres, admin, f"the index {index} of table task_index is missing")


def assert_mended(url: str, admin: psycopg.Connection, told: str) -> None:
    """See that this is said, and that all is well again after what is said to bring it back."""
    (said,) = verified(url)
    assert said.startswith(f"{shown_url(url)}: {told}; it comes back by: ")
    admin.execute(said.partition("it comes back by: ")[2])
    assert verified(url) == []


OTHERS = {
    "ALTER TABLE task_index ADD COLUMN x text": "the column x of table task_index is none of perdure's",
    "ALTER TABLE beats ALTER COLUMN worker TYPE varchar(9)": "the column worker of table beats is not as perdure makes"
    ' it: character varying(9) COLLATE "default" NOT NULL; it should be: text COLLATE "C" NOT NULL',
    'ALTER TABLE stored_events ALTER COLUMN originator_id TYPE text COLLATE "POSIX"': "the column originator_id of",
    "ALTER TABLE task_index ALTER COLUMN note DROP NOT NULL": "the column note of table task_index is not as perdure",
    "ALTER TABLE task_index ALTER COLUMN due SET DEFAULT 0": "the column due of table task_index is not as perdure",
    "ALTER TABLE stored_events SET UNLOGGED": "the table stored_events is not as perdure makes it: a plain table, unl",
    "ALTER TABLE task_index ENABLE ROW LEVEL SECURITY": "the table task_index is not as perdure makes it: a plain tabl",
    "ALTER TABLE beats ADD CONSTRAINT few CHECK (count < 9)": "the constraint few of table beats is none of perdure's",
    "CREATE UNIQUE INDEX i ON task_index (agent)": "the index i of table task_index is none of perdure's",
    "CREATE RULE r AS ON INSERT TO beats DO INSTEAD NOTHING": "the rule r of table beats is none of perdure's",
    "CREATE TRIGGER t BEFORE UPDATE ON beats FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()": "the "
    "trigger t of table beats is none of perdure's",
    "DROP INDEX task_held; CREATE INDEX task_held ON task_index (hold)": "the index task_held of table task_index is",
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'task_ready'::regclass": "the index task_ready of table"
    " task_index is not as perdure makes it: USING btree (agent, due, id) WHERE (due IS NOT NULL), unusable; it should",
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'beats_pkey'::regclass": "the primary key beats_pkey of",
}


@pytest.mark.parametrize(("sql", "told"), OTHERS.items(), ids=OTHERS)
def test_what_was_changed_or_added_is_named(store: Store, admin: psycopg.Connection, sql: str, told: str) -> None:
    admin.execute(sql)
    (said,) = store.damages()
    assert said.startswith(told)


def test_what_an_administrator_adds_beside_the_tables_or_tunes_is_no_damage(
    store: Store, admin: psycopg.Connection
) -> None:
    admin.execute("""
        CREATE TABLE notes (text text PRIMARY KEY); CREATE VIEW open AS SELECT id FROM task_index;
        ALTER TABLE stored_events SET (autovacuum_vacuum_scale_factor = 0.01, fillfactor = 90);
        ALTER TABLE task_index ALTER COLUMN id SET STATISTICS 500; COMMENT ON TABLE beats IS 'ours';
        CREATE ROLE test_of_care; GRANT SELECT ON task_index TO test_of_care; ANALYZE
    """)
    try:
        assert list(store.damages()) == []
    finally:
        admin.execute("DROP OWNED BY test_of_care; DROP ROLE test_of_care")


def test_who_looks_changes_nothing_and_leaves_nothing_behind(store: Store, admin: psycopg.Connection) -> None:
    sql = "SELECT oid, relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace OR"
    sql += " relpersistence = 't' AND relname = 'task_index' ORDER BY oid"
    before = admin.execute(sql).fetchall()
    assert len(before) > len(_OURS)
    assert list(store.damages()) == []
    assert admin.execute(sql).fetchall() == before


def test_who_may_make_no_temporary_table_is_told_what_an_administrator_may_do(
    postgres: str, admin: psycopg.Connection
) -> None:
    with role(postgres, admin) as (name, url), database(url, name, admin) as url, open_store(url) as store:
        assert list(store.damages()) == []
        admin.execute(f'REVOKE TEMPORARY ON DATABASE "{name}" FROM PUBLIC')
        with pytest.raises(StoreUnavailableError, match="GRANT TEMPORARY") as caught:
            list(store.damages())
        assert caught.value.reason
        admin.execute(caught.value.reason.partition("may do ")[2])
        assert list(store.damages()) == []


@contextmanager
def database(url: str, name: str, admin: psycopg.Connection) -> Iterator[str]:
    """Give the URL of a store in a database of its own, in which the role may make a schema and no more."""
    admin.execute(f'CREATE DATABASE "{name}"')
    try:
        admin.execute(f'GRANT CREATE ON DATABASE "{name}" TO "{name}"')
        yield re.sub("@([^/]*)/[^?]*", rf"@\1/{name}", url)
    finally:
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


# ------------------------------------------------------------------ what reindex makes again

REPAIRS = {
    "a row is lost": "DELETE FROM task_index WHERE id = 'open'",
    "all rows are lost": "DELETE FROM task_index",
    "a row is another": "UPDATE task_index SET status = 'completed', due = NULL WHERE id = 'open'",
    "a log is lost": "DELETE FROM stored_events WHERE originator_id = 'one'",
}


@pytest.mark.parametrize("damage", REPAIRS.values(), ids=REPAIRS)
def test_reindex_makes_the_index_again_and_the_store_is_sound(
    postgres: str, admin: psycopg.Connection, shell: Shell, damage: str
) -> None:
    with AgentSystem(postgres) as system:
        assert system.spawn(working, "one", id="one").result(PATIENCE) == "ONE"
        task = system.spawn(waiting, id="open")
        wait_for(lambda: task.status() == "waiting")
    assert verified(postgres) == []
    admin.execute(damage)
    assert verified(postgres)
    done = shell("reindex", "--store", postgres)
    assert (done.returncode, done.stderr) == (0, "")
    with open_store(postgres) as store:
        store.vacuum()  # what a lost log has left behind
    assert verified(postgres) == []
    with AgentSystem(postgres) as system:
        system.task("open").signal("go", 7)
        assert system.task("open").result(PATIENCE) == 7
