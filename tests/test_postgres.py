"""The store in PostgreSQL: what the contract of all stores does not say."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import psycopg
import pytest
from eventsourcing.persistence import IntegrityError
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL

from actors import AgentSystem, agent, step
from stores import (
    AppendConflictError,
    InvalidStoreURLError,
    NewerStoreError,
    Store,
    StoreClosedError,
    StoreCorruptError,
    StoreForkedError,
    StoreUnavailableError,
    open_store,
    postgres_emissions,
)
from stores.contract.kit import contents, create, events, row, said
from stores.emissions import Emission
from stores.postgres_append import LONGEST_WORD, Append, Message, Transaction, Work
from stores.postgres_errors import is_lost, translated
from stores.postgres_locked import Around, Ask, LockedError
from stores.postgres_text import loaded, stored
from stores.postgres_url import parsed
from stores.schema import SCHEMA
from stores.shown_url import hidden, shown_url
from tests.lives import wait_for
from tests.postgres import PASSWORD, Server, fresh_schema, make_role, own_server, with_option

TIMEOUT = 20
ROOT = Path(__file__).parents[1]
SECRET = "s3cr3t"


@pytest.fixture
def store(postgres: str) -> Iterator[Store]:
    with open_store(postgres) as store:
        yield store


@pytest.fixture
def other(postgres: str, store: Store) -> Iterator[Store]:
    """Give the same store, opened once more."""
    with open_store(postgres) as other:
        yield other


@pytest.fixture
def admin(postgres: str, postgres_server: str) -> Iterator[psycopg.Connection]:
    """Give a connection to the database with nothing of ours in between."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'SET search_path = "{parsed(postgres).schema}"')
        yield connection


# ------------------------------------------------------------------ text


@given(st.text(st.sampled_from("\0\1\2ab"), max_size=6), st.text(st.sampled_from("\0\1\2ab"), max_size=6))
def test_a_text_comes_back_and_keeps_its_order_and_its_beginning(one: str, other: str) -> None:
    assert loaded(stored(one)) == one
    assert "\0" not in stored(one)
    assert (stored(one) < stored(other)) == (one < other)
    assert stored(one).startswith(stored(other)) == one.startswith(other)


# ------------------------------------------------------------------ URLs


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://me:{SECRET}@host/db", "postgresql://me@host/db"),
        (f"postgres://me:{SECRET}%40x?@host:5433/db?schema=x", "postgres://me@host:5433/db?schema=x"),
        (
            f"postgresql://me@a,b:1/db?password={SECRET}&sslpassword={SECRET}&sslmode=require",
            "postgresql://me@a,b:1/db?sslmode=require",
        ),
        ("postgresql:///db?host=/run/pg&timeout=3", "postgresql:///db?host=/run/pg&timeout=3"),
    ],
)
def test_what_is_shown_of_a_url_opens_the_same_store_and_has_no_password(url: str, shown: str) -> None:
    place = parsed(url)
    assert place.url == shown
    assert SECRET not in repr(place)
    again = parsed(shown)
    secrets = ("password", "sslpassword")
    assert {name: value for name, value in place.libpq.items() if name not in secrets} == again.libpq
    assert place[2:] == again[2:]
    assert (SECRET in str(place.libpq.get("password", ""))) == (SECRET in url)


def test_options_of_ours_and_those_of_libpq_stand_side_by_side() -> None:
    place = parsed("postgresql://h/db?schema=a%20b&timeout=2.5&readers=7&idle=0&connect_timeout=3&sslmode=verify-full")
    assert (place.schema, place.timeout, place.readers, place.idle) == ("a b", 2.5, 7, 0)
    assert (place.libpq["connect_timeout"], place.libpq["sslmode"]) == ("3", "verify-full")
    assert place.libpq["tcp_user_timeout"] == 2500
    assert not {"schema", "timeout", "readers", "idle"} & place.libpq.keys()


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@host:port/db",
        f"postgresql://me:{SECRET}/x@host/db",
        f"postgresql://me:{SECRET}@@host/db",
        f"postgresql://me:{SECRET}",
        f"postgresql://me:{SECRET}@host/db?nonsense=1",
        f"postgresql://host/db?nonsense=1&password={SECRET}",
        f"postgresql://me:{SECRET}@host/db?timeout=0",
        f"postgresql://me:{SECRET}@host/db?timeout=soon",
        f"postgresql://me:{SECRET}@host/db?readers=0",
        f"postgresql://me:{SECRET}@host/db?idle=-1",
        f"postgresql://me:{SECRET}@host/db?schema=",
        f"postgresql://me:{SECRET}@host/db?schema=pg_x",
        f"postgresql://me:{SECRET}@host/db?schema=$user",
        f"postgresql://me:{SECRET}@host/db?schema=%24user",
        f"postgresql://me:{SECRET}@host/db?schema=information_schema",
        f"postgresql://me:{SECRET}@host/db?schema={'%C3%A9' * 32}",
        f"postgresql://me:{SECRET}@host/db?schema={'x' * 64}",
        f"postgresql://me:{SECRET}\0@host/db",
    ],
)
def test_a_bad_url_is_refused_with_what_is_expected_and_without_its_password(url: str) -> None:
    with pytest.raises(InvalidStoreURLError, match="expected 'postgresql://") as caught:
        open_store(url)
    assert SECRET not in f"{caught.value!r} {caught.value} {caught.value.url} {caught.value.__cause__}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_what_is_hidden_is_only_what_may_be_secret() -> None:
    assert hidden("postgresql://me@host:5432/db?schema=x&y=z") == "postgresql://…?schema=…"
    assert hidden("sqlite:////tmp/a.db?mode=ro") == "sqlite:////tmp/a.db?mode=…"
    assert (hidden("tasks.db"), hidden("/tmp/tasks.db"), hidden("")) == ("tasks.db", "/tmp/tasks.db", "")
    assert hidden("host=h password=x") == "…"


def test_a_server_that_is_not_there_is_unavailable_and_the_error_has_no_password() -> None:
    with pytest.raises(StoreUnavailableError, match="connection") as caught:
        open_store(f"postgresql://me:{SECRET}@/db?host=/nowhere")
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.url} {caught.value.reason}"
    assert not caught.value.unknown_fate


def test_a_missing_driver_is_named_with_the_way_to_install_it() -> None:
    script = f"""
import sys
sys.modules["psycopg"] = None
from stores import InvalidStoreURLError, open_store
with open_store("memory:"):
    pass
try:
    open_store("postgresql://me:{SECRET}@host/db")
except InvalidStoreURLError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "pip install 'perdure[postgres]'" in said.stdout, said.stderr
    assert SECRET not in said.stdout


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (psycopg.errors.DiskFull("full"), StoreUnavailableError),
        (psycopg.errors.LockNotAvailable("locked"), StoreUnavailableError),
        (psycopg.errors.InsufficientPrivilege("denied"), StoreUnavailableError),
        (psycopg.errors.ReadOnlySqlTransaction("a standby"), StoreUnavailableError),
        (psycopg.OperationalError("the connection is lost"), StoreUnavailableError),
        (psycopg.InterfaceError("closed"), StoreUnavailableError),
        (psycopg.errors.DataCorrupted("page 7"), StoreCorruptError),
        (psycopg.errors.UndefinedTable("none"), StoreCorruptError),
        (psycopg.errors.UniqueViolation("twice"), IntegrityError),
    ],
)
def test_what_the_driver_raises_comes_as_an_error_of_stores(error: psycopg.Error, expected: type[Exception]) -> None:
    found = translated(error, "url")
    assert type(found) is expected
    if isinstance(found, StoreUnavailableError):
        assert (found.unknown_fate, found.url) == (False, "url")


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.errors.AdminShutdown("terminating connection"), True),
        (psycopg.errors.ConnectionFailure("lost"), True),
        (psycopg.errors.DiskFull("full"), False),
        (psycopg.errors.QueryCanceled("by a person"), False),
    ],
)
def test_only_a_server_that_has_gone_leaves_a_commit_of_unknown_fate(error: psycopg.Error, unknown: bool) -> None:
    assert is_lost(error) == unknown
    found = translated(error, "url", committing=True)
    assert isinstance(found, StoreUnavailableError)
    assert found.unknown_fate == unknown


# ------------------------------------------------------------------ the schema


def test_a_store_has_a_schema_of_its_own_and_others_in_the_database_do_not_see_it(postgres_server: str) -> None:
    server = postgres_server
    with fresh_schema(server) as here, fresh_schema(server) as there, open_store(here) as one, open_store(there) as two:
        create(one)
        lock = one.workers.hold("w", {})
        assert contents(two) == ([], {})
        assert two.workers.live() == {}
        assert not two.workers.is_alive("w")
        lock.release()


def test_many_processes_open_a_new_store_together_and_each_finds_it_whole(postgres_server: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(8) as pool:
        for _ in range(3):
            with fresh_schema(postgres_server) as url:
                assert pool.map(_open_and_create, [(url, f"t{number}") for number in range(8)], 1) == ["done"] * 8
                with open_store(url) as store:
                    assert store.recorder.select_ids() == [f"t{number}" for number in range(8)]


def _open_and_create(arguments: tuple[str, str]) -> str:
    url, task_id = arguments
    with open_store(url) as store:
        create(store, task_id)
    return "done"


def test_a_newer_store_is_refused_with_both_versions_and_stays_as_it_is(
    store: Store, postgres: str, admin: psycopg.Connection
) -> None:
    create(store)
    admin.execute("UPDATE perdure SET schema = %s", [SCHEMA + 1])
    admin.execute("DROP TABLE heartbeats")
    with pytest.raises(NewerStoreError, match=f"schema {SCHEMA + 1}; this one reads up to {SCHEMA}") as caught:
        open_store(postgres)
    assert (caught.value.found, caught.value.known) == (SCHEMA + 1, SCHEMA)
    assert admin.execute("SELECT to_regclass('heartbeats')").fetchall() == [(None,)]


def test_the_tables_of_another_program_are_left_as_they_are(postgres: str, admin: psycopg.Connection) -> None:
    admin.execute(f'CREATE SCHEMA "{parsed(postgres).schema}"')
    admin.execute("CREATE TABLE stored_events (mine text)")
    with pytest.raises(StoreCorruptError, match=r"name another schema by \?schema="):
        open_store(postgres)
    names = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'"
    assert admin.execute(names, [parsed(postgres).schema]).fetchall() == [("stored_events",)]


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TABLE perdure (schema int)",
        "CREATE TABLE perdure (schema int); INSERT INTO perdure VALUES (1)",
        "CREATE TABLE perdure (schema int); INSERT INTO perdure VALUES (NULL)",
        "CREATE TABLE perdure (schema int); INSERT INTO perdure VALUES (1), (2)",
        "CREATE TABLE perdure (schema int); INSERT INTO perdure VALUES (99)",
        "CREATE TABLE perdure (schema text); INSERT INTO perdure VALUES ('mine')",
        "CREATE TABLE perdure (other text); INSERT INTO perdure VALUES ('mine')",
        "CREATE TABLE perdure (); CREATE TABLE workers (name text)",
        "CREATE VIEW perdure AS SELECT 1 AS schema",
        "CREATE VIEW workers AS SELECT 1 AS name",
        "CREATE TABLE perdure (schema int); INSERT INTO perdure VALUES (1); CREATE TABLE workers (name text)",
        "CREATE TABLE perdure (schema int); INSERT INTO perdure VALUES (NULL); CREATE TABLE workers (name text)",
    ],
)
def test_a_table_is_not_ours_by_its_name_alone_and_left_as_it_is(
    postgres: str, admin: psycopg.Connection, statements: str
) -> None:
    admin.execute(f'CREATE SCHEMA "{parsed(postgres).schema}"')
    admin.execute(statements)

    def all_there_is() -> list[object]:
        names = "SELECT relname, relkind FROM pg_class WHERE relnamespace = to_regnamespace(%s) ORDER BY 1"
        found = admin.execute(names, [parsed(postgres).schema]).fetchall()
        return [
            (name, admin.execute(f'SELECT x::text FROM "{name}" x').fetchall()) for name, kind in found if kind in "rv"
        ]

    before = all_there_is()
    for make in (True, False):
        with pytest.raises(StoreCorruptError):
            open_store(postgres, make=make)
    assert all_there_is() == before


def test_a_store_that_misses_a_table_is_damaged_and_the_error_names_it(
    store: Store, postgres: str, admin: psycopg.Connection
) -> None:
    admin.execute("DROP TABLE emissions, beats")
    with pytest.raises(StoreCorruptError, match=r"has no table beats, emissions"):
        open_store(postgres)


@pytest.mark.parametrize(("granted", "missing"), [("", "USAGE"), ("CREATE", "USAGE"), ("USAGE", "CREATE")])
def test_who_lacks_a_right_to_the_schema_is_told_which(
    postgres: str, admin: psycopg.Connection, granted: str, missing: str
) -> None:
    with role(postgres, admin) as (name, url):
        admin.execute(f'CREATE SCHEMA "{name}"')
        if granted:
            admin.execute(f'GRANT {granted} ON SCHEMA "{name}" TO "{name}"')
        with pytest.raises(StoreUnavailableError, match=f"has no right {missing} to schema") as caught:
            open_store(url)
        admin.execute(str(caught.value.reason).partition("may do ")[2])
        with open_store(url) as store:
            create(store)
        admin.execute(f'REVOKE USAGE ON SCHEMA "{name}" FROM "{name}"')
        with pytest.raises(StoreUnavailableError, match="has no right USAGE to schema"):
            open_store(url)


@pytest.mark.parametrize("limit", [0, 1])
def test_too_few_connections_are_an_error_that_says_how_many_are_needed(
    postgres: str, admin: psycopg.Connection, limit: int
) -> None:
    with role(postgres, admin) as (name, url):
        admin.execute(f'CREATE SCHEMA "{name}" AUTHORIZATION "{name}"; ALTER ROLE "{name}" CONNECTION LIMIT {limit}')
        with pytest.raises(StoreUnavailableError, match="takes 2 connections to open a store") as caught:
            open_store(url)
        assert not caught.value.unknown_fate


def test_two_connections_are_enough_for_a_store_and_are_one_too_few_for_a_worker(
    postgres: str, admin: psycopg.Connection
) -> None:
    with role(postgres, admin) as (name, url):
        admin.execute(f'CREATE SCHEMA "{name}" AUTHORIZATION "{name}"; ALTER ROLE "{name}" CONNECTION LIMIT 2')
        with open_store(url) as store, ThreadPoolExecutor(8) as pool:
            for number in range(8):
                create(store, f"t{number}")
            assert all(pool.map(store.recorder.select_entry, [f"t{number % 8}" for number in range(200)]))
            with pytest.raises(StoreUnavailableError, match="and 1 for each worker"):
                store.workers.hold("w", {})


def test_three_connections_are_enough_for_a_worker(postgres: str, admin: psycopg.Connection) -> None:
    with role(postgres, admin) as (name, url):
        admin.execute(f'CREATE SCHEMA "{name}" AUTHORIZATION "{name}"; ALTER ROLE "{name}" CONNECTION LIMIT 3')
        with AgentSystem(url) as system:
            tasks = [system.spawn(counter, 3, id=f"t{number}") for number in range(10)]
            assert [task.result(TIMEOUT) for task in tasks] == [3] * 10


@step
def plus_one(number: int) -> int:
    return number + 1


@agent
def counter(upto: int) -> int:
    number = 0
    while number < upto:
        number = plus_one(number)
    return number


@contextmanager
def role(postgres: str, admin: psycopg.Connection) -> Iterator[tuple[str, str]]:
    """Give a role that has no rights, named as the schema of a store, and the URL of that store for it."""
    place = parsed(postgres)
    name = place.schema
    host, port = place.libpq.get("host", ""), place.libpq.get("port", "5432")
    make_role(admin, name)
    try:
        yield name, f"postgresql://{name}@/{place.libpq.get('dbname', name)}?host={host}&port={port}&schema={name}"
    finally:
        admin.execute(f'DROP OWNED BY "{name}" CASCADE; DROP SCHEMA IF EXISTS "{name}" CASCADE; DROP ROLE "{name}"')


def test_who_may_make_no_schema_is_told_what_an_administrator_may_do(postgres: str, admin: psycopg.Connection) -> None:
    with role(postgres, admin) as (name, url):
        with pytest.raises(StoreUnavailableError, match=f'CREATE SCHEMA "{name}" AUTHORIZATION "{name}"'):
            open_store(url)
        admin.execute(f'CREATE SCHEMA "{name}" AUTHORIZATION "{name}"')
        with open_store(url) as store:
            create(store)


def test_a_commit_is_durable_whatever_the_database_says(
    store: Store, postgres_server: str, admin: psycopg.Connection
) -> None:
    seen: list[object] = []

    def look(cursor: psycopg.Cursor) -> None:
        seen.extend(cursor.execute("SELECT current_setting('synchronous_commit')").fetchall())

    store.recorder.datastore.write(Work(look))
    assert seen == [("on",)]


# ------------------------------------------------------------------ one transaction for many


def run(store: Store, *requests: Append | Work) -> list[BaseException | None]:
    """Do requests in one transaction, whatever comes when."""
    place = parsed(store.url)
    with psycopg.connect(**place.libpq, autocommit=True) as connection:
        connection.execute(f'SET search_path = "{place.schema}"')
        return list(Transaction(connection, store.url, "channel", {"w"}).run(requests))


def append(task_id: str, head: int, **facts: object) -> Append:
    entry = row(task_id, head)
    return Append(events(task_id, head), entry, (entry.birth, head - 1) if head > 1 else None, **facts)


def raise_it(error: BaseException) -> None:
    raise error


def test_who_loses_in_a_batch_costs_the_others_nothing(store: Store) -> None:
    for name in "abc":
        create(store, name)
    lost = append("b", 3)
    verdicts = run(store, append("a", 2), lost, append("new", 1), append("c", 2), append("a", 1))
    assert [type(verdict) for verdict in verdicts] == [type(None), AppendConflictError] + [type(None)] * 2 + [
        AppendConflictError
    ]
    assert (verdicts[1].expected, verdicts[1].found) == (lost.expected, row("b"))
    assert (verdicts[4].expected, verdicts[4].found) == (None, row("a", 2))
    assert {name: entry.head for name, entry in store.recorder.select_rows("abc").items()} == {"a": 2, "b": 1, "c": 2}
    assert store.recorder.select_events("b") == events("b", 1)
    assert store.recorder.select_ids() == ["a", "b", "c", "new"]


def test_two_appends_to_one_task_in_a_batch_follow_each_other(store: Store) -> None:
    create(store)
    assert run(store, append("a", 2), append("a", 3), append("a", 3))[:2] == [None, None]
    assert [event.originator_version for event in store.recorder.select_events("a")] == [1, 2, 3]


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), GeneratorExit("mine")])
def test_whatever_one_inside_raises_is_its_own(store: Store, error: BaseException) -> None:
    for name in "abc":
        create(store, name)
    bad = append("b", 2, inside=lambda: raise_it(error))
    verdicts = run(store, append("a", 2), bad, append("c", 2, inside=lambda: None))
    assert verdicts == [None, error, None]
    assert {name: entry.head for name, entry in store.recorder.select_rows("abc").items()} == {"a": 2, "b": 1, "c": 2}


def test_a_log_that_does_not_fit_its_index_is_an_error_of_that_task_alone(store: Store) -> None:
    for name in "abc":
        create(store, name)
    entry = row("b")
    store.recorder.insert_events(events("b", 2), entry=row("b", 2), expected=(entry.birth, 1))
    store.recorder.update_index(entry, expected=(entry.birth, 2))
    verdicts = run(store, append("a", 2), append("b", 2), append("c", 2))
    assert [type(verdict) for verdict in verdicts] == [type(None), IntegrityError, type(None)]
    assert store.recorder.select_entry("b") == entry


def test_a_text_that_utf_8_cannot_hold_is_an_error_of_that_request_alone(store: Store) -> None:
    create(store)
    verdicts = run(store, append("a", 2), append("\ud800", 1), append("b", 1))
    assert [type(verdict) for verdict in verdicts] == [type(None), UnicodeEncodeError, type(None)]
    with pytest.raises(UnicodeEncodeError):
        create(store, "c", note="\udcff")
    assert store.recorder.select_ids() == ["a", "b"]


def test_work_that_fails_is_undone_alone(store: Store) -> None:
    create(store)

    def save(cursor: psycopg.Cursor) -> None:
        cursor.execute("INSERT INTO beats VALUES ('w', 1, 1.0)")

    def fail(cursor: psycopg.Cursor) -> None:
        save(cursor)
        raise ZeroDivisionError

    verdicts = run(store, append("a", 2), Work(fail), Work(lambda cursor: cursor.execute("nonsense")), Work(save))
    assert [type(verdict) for verdict in verdicts] == [type(None), ZeroDivisionError, StoreCorruptError, type(None)]
    assert store.recorder.select_beats() == {"w": (1, 1.0)}
    assert store.recorder.select_entry("a").head == 2


def test_writers_that_meet_on_the_same_tasks_in_any_order_do_not_stop_each_other(store: Store, other: Store) -> None:
    names = [f"t{number}" for number in range(12)]
    for name in names:
        create(store, name)
    start, errors = threading.Barrier(2), list[BaseException]()

    def write(mine: Store, order: list[str]) -> None:
        start.wait(TIMEOUT)
        for _ in range(25):
            found = mine.recorder.select_rows(order)
            requests = [
                Append(
                    events(name, found[name].head + 1),
                    row(name, found[name].head + 1),
                    (found[name].birth, found[name].head),
                )
                for name in order
            ]
            errors.extend(
                error for error in run(mine, *requests) if error and not isinstance(error, AppendConflictError)
            )

    threads = [threading.Thread(target=write, args=each) for each in ((store, names), (other, names[::-1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert errors == []
    heads = {entry.head for entry in store.recorder.select_entries()}
    assert heads == {len(store.recorder.select_events(names[0]))}
    assert max(heads) > 25


def test_a_row_that_another_is_writing_is_passed_over_and_not_waited_for(
    store: Store, admin: psycopg.Connection
) -> None:
    rows = [create(store, name, due=1.0) for name in "abc"]

    def ready() -> list[object]:
        return store.recorder.select_ready(2.0, agents=["agent"], busy_owners=[], limit=2)

    with admin.transaction():
        admin.execute("UPDATE task_index SET note = note WHERE id = 'a'")
        assert ready() == rows[1:]
    assert ready() == rows[:2]


def test_a_lock_that_is_held_too_long_is_an_error_and_the_append_may_be_sent_again(
    store: Store, postgres: str, admin: psycopg.Connection
) -> None:
    create(store)
    with open_store(with_option(postgres, "timeout=0.2")) as hasty:
        with admin.transaction():
            admin.execute("SELECT * FROM task_index FOR UPDATE")
            with pytest.raises(StoreUnavailableError, match="lock timeout") as caught:
                hasty.recorder.insert_events(events("a", 2), entry=row("a", 2), expected=("birth-of-a", 1))
        assert not caught.value.unknown_fate
        hasty.recorder.insert_events(events("a", 2), entry=row("a", 2), expected=("birth-of-a", 1))


def test_who_needs_a_locked_row_waits_alone_and_nobody_else(
    store: Store, other: Store, admin: psycopg.Connection
) -> None:
    """The victim waits for its 30 s, or until the row is free; the others are done long before."""
    for name in ("victim", "twin"):
        create(store, name)
    answers = queue.SimpleQueue[tuple[str, BaseException | None]]()

    def begin(name: str, head: int) -> None:
        expected = (row(name, head).birth, head - 1) if head > 1 else None
        store.recorder.submit_events(
            events(name, head),
            entry=row(name, head),
            expected=expected,
            done=lambda verdict: answers.put((name, verdict)),
        )

    with admin.transaction():
        admin.execute("SELECT * FROM task_index WHERE id = 'victim' FOR UPDATE")
        admin.execute(
            "INSERT INTO task_index SELECT 'born', birth, head, activation, status, agent, created, updated,"
            " due, owner, strikes, hold, note FROM task_index WHERE id = 'twin'"
        )
        saved = threading.Thread(target=store.recorder.save_emissions, args=("victim", "birth-of-victim", []))
        saved.start()
        began = monotonic()
        for name, head in (("victim", 2), ("twin", 2), ("born", 1), ("new", 1)):
            begin(name, head)
        assert {answers.get(timeout=TIMEOUT), answers.get(timeout=TIMEOUT)} == {("twin", None), ("new", None)}
        for number in range(3, 40):
            begin("twin", number)
            assert answers.get(timeout=TIMEOUT) == ("twin", None)
        store.recorder.save_beat("worker", 1, 10.0)
        assert monotonic() - began < 10
        assert saved.is_alive()
    found = dict([answers.get(timeout=TIMEOUT), answers.get(timeout=TIMEOUT)])
    assert found["victim"] is None
    assert isinstance(found["born"], AppendConflictError)
    saved.join(TIMEOUT)
    assert not saved.is_alive()
    assert store.recorder.select_entry("victim") == row("victim", 2)


def test_a_link_that_is_lost_on_the_way_costs_nobody_the_answer_that_is_committed(store: Store) -> None:
    """Who was put aside goes after the others, in a transaction of its own: its end says nothing of theirs."""

    def die(cursor: psycopg.Cursor) -> None:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    place = parsed(store.url)
    late = [Ask(Work(die), 1.0), Ask(append("late", 1), 1.0)]
    for ask in late:
        ask.late = True
    with psycopg.connect(**place.libpq, autocommit=True) as connection:
        connection.execute(f'SET search_path = "{place.schema}"')
        verdicts = Around(store.url, 1.0).run(
            connection,
            lambda: Transaction(connection, store.url, "channel", {"w"}),
            [late[0], Ask(append("a", 1), 1.0), late[1]],
        )
    assert [type(verdict) for verdict in verdicts] == [StoreUnavailableError, type(None), StoreUnavailableError]
    assert [entry.id for entry in store.recorder.select_entries()] == ["a"]


def test_a_beat_is_held_up_by_no_lock_on_a_task(store: Store, postgres: str, admin: psycopg.Connection) -> None:
    create(store)
    with admin.transaction():
        admin.execute("LOCK TABLE task_index")
        done = threading.Event()
        thread = threading.Thread(target=lambda: (create(store, "b"), done.set()))
        thread.start()
        began = monotonic()
        for number in range(10):
            store.recorder.save_beat("worker", number, 10.0)
        assert monotonic() - began < 5
        assert not done.is_set()
    thread.join(TIMEOUT)
    assert done.is_set()


def test_what_was_put_aside_is_answered_at_the_close(postgres: str, store: Store, admin: psycopg.Connection) -> None:
    create(store)
    answers = queue.SimpleQueue[BaseException | None]()
    with open_store(postgres) as mine, admin.transaction():
        admin.execute("SELECT * FROM task_index FOR UPDATE")
        entry = row("a", 2)
        mine.recorder.submit_events(events("a", 2), entry=entry, expected=("birth-of-a", 1), done=answers.put)
        with pytest.raises(queue.Empty):
            answers.get(timeout=1)
        mine.close()
        verdict = answers.get_nowait()
        assert isinstance(verdict, StoreUnavailableError | StoreClosedError)
    assert store.recorder.select_entry("a") == row("a", 1)
    assert not [thread for thread in threading.enumerate() if thread.name == "perdure-locked"]


def test_who_freezes_inside_a_transaction_is_let_go_of_by_the_server(store: Store, other: Store) -> None:
    create(store)
    entered, go_on = threading.Event(), threading.Event()
    verdicts: list[BaseException] = []

    def freeze(cursor: psycopg.Cursor) -> None:
        cursor.execute("SELECT * FROM task_index FOR UPDATE")
        entered.set()
        go_on.wait(TIMEOUT)

    def write() -> None:
        try:
            store.recorder.datastore.write(Work(freeze, ["a"]))
        except StoreUnavailableError as error:
            verdicts.append(error)

    frozen = threading.Thread(target=write)
    frozen.start()
    assert entered.wait(TIMEOUT)
    other.recorder.insert_events(events("a", 2), entry=row("a", 2), expected=("birth-of-a", 1))
    go_on.set()
    frozen.join(TIMEOUT)
    assert len(verdicts) == 1


SPEAKER = """
import itertools, sys
from stores import open_store
from stores.contract.kit import said
with open_store(sys.argv[1]) as store:
    for number in itertools.count():
        store.recorder.save_emissions("a", "birth-of-a", [said("1", str(number))])
        store.recorder.save_heartbeat("a", "birth-of-a", "1", 1, str(number))
        if not number:
            print(flush=True)
"""


def test_who_freezes_while_it_emits_or_beats_holds_no_lock(store: Store, admin: psycopg.Connection) -> None:
    """The server has all that it needs to end by itself, whenever the process is stopped."""
    create(store)
    url = with_option(store.url, "application_name=speaker")
    sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'speaker' AND datname = current_database()"
    with subprocess.Popen([sys.executable, "-c", SPEAKER, url], cwd=ROOT, stdout=subprocess.PIPE) as speaker:
        try:
            assert speaker.stdout
            assert speaker.stdout.readline() == b"\n"
            for head in range(2, 32):
                os.kill(speaker.pid, signal.SIGSTOP)
                assert os.waitid(os.P_PID, speaker.pid, os.WSTOPPED)
                wait_for(lambda: not admin.execute(f"{sql} AND state = 'active'").fetchall())
                assert admin.execute(f"{sql} AND state LIKE 'idle in%'").fetchall() == []
                entry = row("a", head)
                store.recorder.insert_events(events("a", head), entry=entry, expected=(entry.birth, head - 1))
                before = store.recorder.select_heartbeat("a", "birth-of-a", "1")
                os.kill(speaker.pid, signal.SIGCONT)
                wait_for(lambda was=before: store.recorder.select_heartbeat("a", "birth-of-a", "1") != was)
        finally:
            speaker.kill()
    numbers = [one.number for one in store.recorder.select_emissions("a", "birth-of-a", upto=99, limit=100_000)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_messages_go_together_and_one_that_fails_or_has_to_wait_costs_the_others_nothing(
    store: Store, admin: psycopg.Connection
) -> None:
    names = ("locked", "other")
    for name in names:
        create(store, name)

    def asks() -> list[Ask]:
        says = [saying("other", said("1", "x")), saying("locked", said("1", "x")), saying("other", said("1", "\ud800"))]
        beat = Message(SQL("INSERT INTO beats VALUES ('w', 1, 1)"))
        return [Ask(one, 1.0) for one in (*says, beat, beat, Append([], row("other"), ("birth-of-other", 1)))]

    place = parsed(store.url)
    with psycopg.connect(**place.libpq, autocommit=True) as connection:
        connection.execute(f'SET search_path = "{place.schema}"')
        around = Around(store.url, 1.0)

        def run(asks: list[Ask]) -> list[type]:
            verdicts = around.run(connection, lambda: Transaction(connection, store.url, "channel", {"w"}), asks)
            return [type(verdict) for verdict in verdicts]

        none = type(None)
        with admin.transaction():
            admin.execute("SELECT FROM task_index WHERE id = 'locked' FOR UPDATE")
            assert run(asks()) == [none, LockedError, UnicodeEncodeError, none, IntegrityError, none]
        assert run(asks()[:2]) == [none, none]
    assert [
        len(store.recorder.select_emissions(name, f"birth-of-{name}", upto=9, limit=9)) for name in ["locked", "other"]
    ] == [1, 2]


def saying(task_id: str, *rows: Emission) -> Message:
    return Message(postgres_emissions.saving(task_id, f"birth-of-{task_id}", rows), [task_id])


# ------------------------------------------------------------------ order


@settings(deadline=None, max_examples=10)
@given(st.sets(st.text(st.sampled_from("aAbé%_*'\0\1\2\ud7ff\ue000\U0010ffff"), min_size=1, max_size=3), max_size=12))
def test_ids_come_in_the_order_of_their_code_points_and_by_any_prefix(postgres_server: str, ids: set[str]) -> None:
    with fresh_schema(postgres_server) as url, open_store(url) as postgres:
        for task_id in ids:
            create(postgres, task_id)
        assert postgres.recorder.select_ids() == sorted(ids)
        assert [entry.id for entry in postgres.recorder.select_entries()] == sorted(ids)
        for prefix in {task_id[:1] for task_id in ids}:
            found = [entry.id for entry in postgres.recorder.select_entries(prefix=prefix)]
            assert found == sorted(task_id for task_id in ids if task_id.startswith(prefix))


# ------------------------------------------------------------------ connections


def sessions(admin: psycopg.Connection, store: Store) -> set[int]:
    sql = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
    return {pid for (pid,) in admin.execute(sql, [parsed(store.url).libpq["application_name"]])}


@pytest.fixture
def named(postgres: str) -> Iterator[Store]:
    """Give a store whose sessions have a name of their own."""
    with open_store(with_option(postgres, f"application_name={parsed(postgres).schema}")) as store:
        yield store


def test_a_link_that_the_server_has_closed_is_replaced_and_nobody_notices(
    named: Store, admin: psycopg.Connection
) -> None:
    entry = create(named)
    assert named.recorder.select_entry("a") == entry
    for pid in sessions(admin, named):
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert named.recorder.select_entry("a") == entry
    named.recorder.insert_events(events("a", 2), entry=row("a", 2), expected=("birth-of-a", 1))
    assert named.recorder.select_ids() == ["a"]


def test_a_link_that_was_idle_for_too_long_is_not_used_again(postgres: str, admin: psycopg.Connection) -> None:
    name = f"application_name={parsed(postgres).schema}"
    with open_store(with_option(with_option(postgres, name), "idle=0")) as store:
        create(store)
        store.recorder.select_entry("a")
        before = sessions(admin, store)
        store.recorder.select_entry("a")
        create(store, "b")
        wait_for(lambda: not before & sessions(admin, store))
    with open_store(with_option(postgres, name)) as store:
        create(store, "c")
        before = sessions(admin, store)
        create(store, "d")
        assert before == sessions(admin, store)


def test_closing_leaves_no_session_and_no_thread(named: Store, admin: psycopg.Connection) -> None:
    before = threading.active_count()
    create(named)
    named.workers.hold("w", {})
    named.listen(lambda ids: None)
    named.recorder.select_entry("a")
    wait_for(lambda: len(sessions(admin, named)) >= 4)  # who listens connects on a thread of its own
    named.close()
    wait_for(lambda: not sessions(admin, named))
    assert threading.active_count() == before
    with pytest.raises(StoreClosedError):
        named.listen(lambda ids: None)


def test_reads_that_find_no_link_in_time_say_so(postgres: str) -> None:
    with open_store(with_option(postgres, "readers=1&timeout=0.2")) as store:
        links = store.recorder.datastore
        reading, go = threading.Event(), threading.Event()

        def hold() -> None:
            with links._may_read:
                reading.set()
                go.wait(TIMEOUT)

        thread = threading.Thread(target=hold)
        thread.start()
        assert reading.wait(TIMEOUT)
        with pytest.raises(StoreUnavailableError, match="all 1 connections that read"):
            store.recorder.select_ids()
        go.set()
        thread.join(TIMEOUT)
        assert store.recorder.select_ids() == []


def test_a_child_made_by_fork_cannot_use_the_store_and_leaves_its_parent_unharmed(store: Store) -> None:
    entry = create(store)
    store.recorder.select_entry("a")
    child = os.fork()
    if not child:
        code = 1
        try:
            store.recorder.select_entry("a")
        except StoreForkedError:
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.recorder.select_entry("a") == entry
    create(store, "b")


# ------------------------------------------------------------------ news


class Ear:
    """Hears what a store tells."""

    def __init__(self) -> None:
        self.heard: list[set[str] | None] = []
        self._changed = threading.Condition()

    def __call__(self, ids: object) -> None:
        with self._changed:
            self.heard.append(None if ids is None else set(ids))
            self._changed.notify_all()

    def wait(self, count: int) -> list[set[str] | None]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.heard) >= count, TIMEOUT), self.heard
            return self.heard


def test_another_process_hears_of_tasks_that_nobody_has_but_not_of_each_step(store: Store, other: Store) -> None:
    ear, own = Ear(), Ear()
    store.listen(own)
    stop = other.listen(ear)
    own.wait(1)
    assert ear.wait(1) == [None]  # it has just begun to listen
    lock = store.workers.hold("w", {})
    create(store, "a\0")
    assert ear.wait(2)[1:] == [{"a\0"}]
    claimed = row("a\0", 2, owner="w")
    store.recorder.insert_events(events("a\0", 2), entry=claimed, expected=("birth-of-a\0", 1))
    store.recorder.insert_events(events("a\0", 3), entry=claimed._replace(head=3), expected=("birth-of-a\0", 2))
    store.recorder.insert_events(events("a\0", 4), entry=row("a\0", 4), expected=("birth-of-a\0", 3))
    assert ear.wait(3)[2:] == [{"a\0"}]
    other.recorder.insert_events(events("a\0", 5), entry=row("a\0", 5, owner="w"), expected=("birth-of-a\0", 4))
    assert own.wait(2)[1:] == [{"a\0"}]  # somebody else has brought something to our task
    stop()
    create(store, "b")
    lock.release()
    assert len(ear.heard) == 3


def test_of_more_tasks_than_a_word_can_name_it_is_said_that_there_is_something(store: Store, other: Store) -> None:
    ear = Ear()
    other.listen(ear)
    ear.wait(1)
    assert all(verdict is None for verdict in run_on(store, [append(f"{n:03}{'x' * 190}", 1) for n in range(60)]))
    assert ear.wait(2)[1:] == [None]
    assert LONGEST_WORD < 60 * 190


def run_on(store: Store, requests: list[Append]) -> list[BaseException | None]:
    """Do requests in one transaction on the store's own channel."""
    place = parsed(store.url)
    with psycopg.connect(**place.libpq, autocommit=True) as connection:
        connection.execute(f'SET search_path = "{place.schema}"')
        return list(Transaction(connection, store.url, store._channel, set()).run(requests))


def test_who_listens_hears_again_after_the_connection_was_cut(
    named: Store, store: Store, admin: psycopg.Connection
) -> None:
    ear = Ear()
    named.listen(ear)
    ear.wait(1)
    for pid in sessions(admin, named):
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert ear.wait(2) == [None, None]  # it may have missed something
    create(store)
    assert ear.wait(3)[2:] == [{"a"}]


# ------------------------------------------------------------------ what commands show


@pytest.mark.parametrize(
    "url", [f"postgresql://me:{SECRET}@host/db", f"postgresql://host/db?password={SECRET}&schema=x"]
)
def test_commands_show_no_password_and_make_nothing_where_they_only_look(url: str) -> None:
    from actors.command import options

    assert SECRET not in options(url)
    assert options(url) == f" --store '{shown_url(url)}'" or "?" not in shown_url(url)


def test_looking_at_tasks_makes_no_tables(postgres: str, admin: psycopg.Connection) -> None:
    with pytest.raises(StoreUnavailableError, match="there is no store in schema"):
        open_store(postgres, make=False)
    assert admin.execute("SELECT to_regnamespace(%s)", [parsed(postgres).schema]).fetchall() == [(None,)]
    with open_store(postgres), open_store(postgres, make=False) as looking:
        assert looking.recorder.select_ids() == []


# ------------------------------------------------------------------ deletion


def test_after_a_vacuum_the_text_of_what_was_deleted_is_in_no_file_of_the_tables() -> None:
    word = b"a text that has to go"
    with own_server() as server, fresh_schema(server.url) as url, open_store(url) as store:
        for number in range(50):
            entry = row(f"t{number}", note=word.decode())
            store.recorder.insert_events(events(entry.id, 1, state=word * 9), entry=entry, expected=None)
            store.recorder.save_heartbeat(entry.id, entry.birth, "1", 1, word.decode())
            store.recorder.save_emissions(entry.id, entry.birth, [said("1", word.decode())])
        create(store, "kept")
        store.vacuum()
        assert has(server, word)
        for number in range(50):
            store.recorder.delete_task(f"t{number}", expected=(f"birth-of-t{number}", 1))
        store.vacuum()
        assert not has(server, word)
        assert store.recorder.select_ids() == ["kept"]


def has(server: Server, word: bytes) -> bool:
    """Tell whether a file of a table has this text; the server's write-ahead log is another matter."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
    return any(word in file.read_bytes() for file in (server.folder / "base").rglob("*") if file.is_file())


def test_a_vacuum_that_finds_others_in_the_way_says_so_and_may_come_again(
    postgres: str, admin: psycopg.Connection
) -> None:
    with open_store(with_option(postgres, "timeout=0.2")) as store:
        create(store)
        with admin.transaction():
            admin.execute("SELECT * FROM task_index")
            with pytest.raises(StoreUnavailableError, match="lock timeout"):
                store.vacuum()
        store.vacuum()
        assert store.recorder.select_ids() == ["a"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the words of processes where Linux shows them")
def test_no_process_of_a_pool_has_the_password_among_its_words(postgres: str, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("from actors import agent\n@agent\ndef f(): pass\n")
    secret = PASSWORD or SECRET  # one that is not asked for is not looked at
    url = with_option(postgres, f"password={secret}")
    words = [sys.executable, "-m", "actors", "worker", "work.py", "--processes", "2"]
    environment = os.environ | {"PERDURE_STORE": url, "PYTHONPATH": str(ROOT)}
    with (
        open_store(postgres) as store,
        subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as pool,
    ):
        try:
            wait_for(lambda: len(store.workers.live()) == 2)
            pids = [pool.pid, *(about["pid"] for about in store.workers.live().values())]
            shown = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
        finally:
            pool.terminate()
        said = pool.communicate()[1]
    assert len(set(pids)) == 3
    assert secret.encode() not in b"".join([*shown, said])
