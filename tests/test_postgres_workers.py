"""Who is alive, in PostgreSQL: a session with an advisory lock says so, whichever way a worker ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from stores import Store, StoreUnavailableError, open_store
from stores.postgres_schema import lock_key
from stores.postgres_url import parsed
from tests.lives import wait_for
from tests.proxy import Proxy
from tests.test_workers import both, worker

TIMEOUT = 20


@pytest.fixture
def store(postgres: str) -> Iterator[Store]:
    with open_store(postgres) as store:
        yield store


@pytest.fixture
def admin(postgres: str, postgres_server: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f'SET search_path = "{parsed(postgres).schema}"')
        yield connection


def rows(admin: psycopg.Connection) -> list[str]:
    return [worker_id for (worker_id,) in admin.execute("SELECT id FROM workers ORDER BY id")]


def end_session_of(admin: psycopg.Connection, store: Store, worker_id: str) -> None:
    """End the session that has a worker's lock, as a server does that restarts."""
    key = lock_key("worker", parsed(store.url).schema, worker_id)
    sql = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32) | objid::bigint = %s"
    ((pid,),) = admin.execute(sql, [key]).fetchall()
    assert admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid]).fetchall() == [(True,)]


def test_another_process_sees_a_worker_and_what_it_says_and_a_killed_one_is_dead(
    store: Store, admin: psycopg.Connection
) -> None:
    with worker(store, "print(flush=True); sys.stdin.read()") as process:
        process.stdout.readline()
        assert store.workers.live() == {"w": {"pid": process.pid}}
        process.kill()
        process.wait(TIMEOUT)
        wait_for(lambda: not store.workers.is_alive("w"))
        assert rows(admin) == ["w"]
        assert store.workers.live() == {}
        assert rows(admin) == []  # removed by who has found it


def test_a_worker_that_leaves_in_good_order_leaves_no_row(store: Store, admin: psycopg.Connection) -> None:
    with worker(store, "store.close(); print(flush=True)") as process:
        process.stdout.readline()
        assert not store.workers.is_alive("w")
        assert rows(admin) == []


def test_a_worker_whose_session_was_ended_is_dead_until_it_looks_after_its_lock(
    store: Store, admin: psycopg.Connection
) -> None:
    lock = store.workers.hold("w", {"pid": 1})
    assert lock.keep({"pid": 1})
    end_session_of(admin, store, "w")
    assert not store.workers.is_alive("w")
    assert store.workers.live() == {}
    with pytest.raises(StoreUnavailableError):
        lock.update({})
    assert not lock.keep({"pid": 2})  # it was lost, and is made again
    assert store.workers.live() == {"w": {"pid": 2}}
    assert lock.keep({"pid": 2})
    with pytest.raises(ValueError, match="in use"):
        store.workers.hold("w", {})
    lock.release()
    assert rows(admin) == []


def test_a_row_that_was_removed_is_made_again(store: Store, admin: psycopg.Connection) -> None:
    lock = store.workers.hold("w", {"pid": 1})
    admin.execute("DELETE FROM workers")
    assert store.workers.is_alive("w")
    assert not lock.keep({"pid": 1})
    assert store.workers.live() == {"w": {"pid": 1}}
    assert lock.keep({"pid": 1})


def test_a_session_that_is_lost_without_the_servers_knowing_does_not_keep_its_worker_from_coming_back(
    store: Store, admin: psycopg.Connection
) -> None:
    lock = store.workers.hold("w", {})
    end_session_of(admin, store, "w")
    admin.execute("SELECT pg_advisory_lock(%s)", [lock_key("worker", parsed(store.url).schema, "w")])  # stands for it
    assert not lock.keep({})
    assert store.workers.is_alive("w")
    with pytest.raises(psycopg.errors.AdminShutdown):
        admin.execute("SELECT 1")


def test_a_worker_without_a_network_says_so_and_comes_back_with_it(postgres: str, store: Store) -> None:
    with Proxy(postgres) as network, open_store(network.url) as far:
        lock = far.workers.hold("w", {})
        network.go_down()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                lock.keep({})
        wait_for(lambda: not store.workers.is_alive("w"))
        network.come_up()
        assert not lock.keep({})
        assert store.workers.is_alive("w")
        network.go_down()
        lock.release()


def test_two_threads_that_look_after_a_lost_lock_make_it_again_once(store: Store, admin: psycopg.Connection) -> None:
    lock = store.workers.hold("w", {})
    for _ in range(10):
        end_session_of(admin, store, "w")
        assert sorted(map(repr, both(*[lambda: lock.keep({})] * 2))) == ["False", "True"]
        assert store.workers.is_alive("w")


def test_a_worker_that_is_looked_at_while_it_begins_is_listed_in_the_end(store: Store) -> None:
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            store.workers.live()

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for number in range(30):
            lock = store.workers.hold(f"w{number}", {"n": number})
            assert store.workers.live() == {f"w{number}": {"n": number}}
            lock.release()
            assert store.workers.live() == {}
    finally:
        stop.set()
        looker.join(TIMEOUT)


def test_a_forked_child_does_not_keep_its_dead_parent_alive(store: Store) -> None:
    script = """
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""
    with worker(store, script) as process:
        child = int(process.stdout.readline())
        assert child != process.pid
        assert store.workers.is_alive("w")
        process.kill()
        process.wait(TIMEOUT)
        assert Path(f"/proc/{child}").exists() or sys.platform != "linux"
        wait_for(lambda: not store.workers.is_alive("w"))
        process.stdin.close()  # the child ends


def test_a_forked_child_that_releases_and_ends_leaves_its_parents_lock(store: Store) -> None:
    script = """
if os.fork() == 0:
    assert lock.keep({})
    lock.release()
    lock.abandon()
    store.close()
    sys.exit()
os.wait()
print(flush=True)
sys.stdin.read()
"""
    with worker(store, script) as process:
        process.stdout.readline()
        assert store.workers.live() == {"w": {"pid": process.pid}}


def test_the_store_that_is_asked_says_when_it_cannot_tell_who_is_alive(postgres: str) -> None:
    with Proxy(postgres) as network, open_store(network.url) as far:
        far.workers.hold("w", {})
        network.go_down()
        with pytest.raises(StoreUnavailableError):
            far.workers.is_alive("w")
        with pytest.raises(StoreUnavailableError):
            far.workers.live()
