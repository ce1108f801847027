"""Trouble between running systems and PostgreSQL: the network is cut, the server goes. No body runs again for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from actors import AgentSystem, agent, receive, step
from domain.events import Completed, StepStarted, StepSucceeded, TaskEvent
from stores import AppendConflictError, Store, StoreUnavailableError, open_store
from stores.contract.kit import events, row
from tests.lives import PATIENCE, wait_for
from tests.postgres import Server, fresh_schema, own_server, with_option
from tests.proxy import Proxy

entered: list[int] = []
inside, go_on = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def anew() -> None:
    entered.clear()
    inside.clear()
    go_on.clear()


@pytest.fixture
def network(postgres: str) -> Iterator[Proxy]:
    with open_store(postgres), Proxy(postgres) as network:
        yield network


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as server:
        yield server


@step
def climb(number: int) -> int:
    entered.append(number)
    return number


@step
def pause_in(number: int) -> int:
    entered.append(number)
    inside.set()
    go_on.wait(PATIENCE)
    return number


@agent
def climber(height: int) -> int:
    return sum(climb(number) for number in range(height))


@agent
def listener() -> str:
    climb(0)
    return str(receive("word"))


@agent
def sitter(height: int) -> int:
    return climb(0) + pause_in(1) + sum(climb(number) for number in range(2, height))


def whole(log: list[TaskEvent], height: int) -> None:
    """Hold a log to this: each step began once and succeeded once, and the task completed once."""
    kinds = [type(event) for event in log]
    assert [event.attempt for event in log if isinstance(event, StepStarted)] == [1] * height
    assert (kinds.count(StepSucceeded), kinds.count(Completed)) == (height, 1)
    assert [event.originator_version for event in log] == list(range(1, len(log) + 1))


def append(store: Store, task_id: str, head: int, **facts: Any) -> None:
    entry = row(task_id, head)
    expected = (entry.birth, head - 1) if head > 1 else None
    store.recorder.insert_events(events(task_id, head), entry=entry, expected=expected, **facts)


# ------------------------------------------------------------------ an acknowledgement that is lost


@pytest.mark.parametrize("inside", [None, lambda: None], ids=["by itself", "with something inside"])
def test_a_commit_whose_acknowledgement_is_lost_is_of_unknown_fate_and_was_stored(network: Proxy, inside: Any) -> None:
    with open_store(network.url) as store:
        append(store, "before", 1)
        network.lose_the_answer_to(b'"version":1')
        with pytest.raises(StoreUnavailableError, match="only by reading back") as caught:
            append(store, "a", 1, inside=inside)
        assert caught.value.unknown_fate
        assert network.cuts == 1
        assert store.recorder.select_events("a") == events("a", 1)
        append(store, "a", 2)


def test_what_is_cut_before_the_server_has_it_is_not_stored(network: Proxy) -> None:
    with open_store(network.url) as store:
        append(store, "a", 1)
        network.go_down()
        with pytest.raises(StoreUnavailableError) as caught:
            append(store, "a", 2)
        assert not caught.value.unknown_fate
        network.come_up()
        append(store, "a", 2)


def test_a_lost_acknowledgement_costs_a_task_no_step_whichever_append_it_is_of(network: Proxy) -> None:
    for version in range(1, 10):
        entered.clear()
        network.lose_the_answer_to(f'"version":{version},'.encode())
        with AgentSystem(network.url) as system:
            task = system.spawn(climber, 3, id=f"climber-{version}")
            assert task.result(PATIENCE) == 3
            assert entered == [0, 1, 2]
            whole(task.events(), 3)
        assert network.cuts == version


def test_lost_acknowledgements_of_batches_cost_no_task_a_step(network: Proxy) -> None:
    with AgentSystem(network.url) as system:
        tasks = [system.spawn(climber, 5, id=f"t{number}") for number in range(20)]
        for version in (3, 5, 7, 9):
            network.lose_the_answer_to(f'"version":{version},'.encode())
            wait_for(lambda: network._mark is None or all(task.status() == "completed" for task in tasks))
        assert [task.result(PATIENCE) for task in tasks] == [10] * 20
        assert len(entered) == 100
        for task in tasks:
            whole(task.events(), 5)
    assert network.cuts >= 1


# ------------------------------------------------------------------ the network, the server


def test_a_network_that_is_cut_while_a_body_runs_costs_time_and_no_step(network: Proxy, postgres: str) -> None:
    with AgentSystem(network.url, lease=60) as system:
        task = system.spawn(sitter, 4, id="sitter")
        assert inside.wait(PATIENCE)
        network.go_down()
        go_on.set()
        with open_store(postgres) as near:
            wait_for(lambda: near.workers.live() == {})
        network.come_up()
        assert task.result(PATIENCE) == 6
        whole(task.events(), 4)
    assert entered == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_server_that_restarts_while_tasks_run_costs_time_and_no_step(server: Server, how: str) -> None:
    with fresh_schema(server.url) as url, AgentSystem(url, lease=60) as system:
        sitting = system.spawn(sitter, 4, id="sitter")
        assert inside.wait(PATIENCE)
        climbing = [system.spawn(climber, 10, id=f"t{number}") for number in range(8)]
        server.stop(how)
        go_on.set()
        server.start()
        assert sitting.result(PATIENCE) == 6
        assert [task.result(PATIENCE) for task in climbing] == [45] * 8
        whole(sitting.events(), 4)
        for task in climbing:
            whole(task.events(), 10)
        late = system.spawn(climber, 2, id="late")
        assert late.result(PATIENCE) == 1
    assert len(entered) == 4 + 80 + 2


def test_a_server_that_is_down_is_an_error_for_who_opens_and_a_wait_for_who_works(server: Server) -> None:
    with fresh_schema(server.url) as url, AgentSystem(url, lease=60) as system:
        task = system.spawn(sitter, 3, id="sitter")
        assert inside.wait(PATIENCE)
        server.stop()
        with pytest.raises(StoreUnavailableError), open_store(url):
            pass
        go_on.set()
        with pytest.raises(StoreUnavailableError):
            system.log.recorder.select_entry("sitter")
        server.start()
        assert task.result(PATIENCE) == 3
    assert entered == [0, 1, 2]


def test_a_standby_is_refused_and_nothing_is_written_where_only_reading_is_allowed(server: Server) -> None:
    """What fails over goes to the server that writes: libpq is told so, whatever hosts the URL names."""
    with fresh_schema(server.url) as url:
        with open_store(url) as store:
            append(store, "a", 1)
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
        try:
            with pytest.raises(StoreUnavailableError, match="read-only"), open_store(url):
                pass
        finally:
            with psycopg.connect(server.url, autocommit=True) as admin:
                admin.execute("SET default_transaction_read_only = off")
                admin.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
        with open_store(url) as store:
            append(store, "a", 2)


def test_a_network_that_stands_still_is_an_error_in_time_and_what_was_on_its_way_is_of_unknown_fate(
    network: Proxy,
) -> None:
    with open_store(with_option(network.url, "timeout=0.3")) as store:
        append(store, "a", 1)
        assert store.recorder.select_ids() == ["a"]
        with network.standing_still():
            with pytest.raises(StoreUnavailableError, match=r"no answer within 0\.6 s") as caught:
                append(store, "a", 2)
            assert caught.value.unknown_fate
            with pytest.raises(StoreUnavailableError):
                store.recorder.select_ids()
    with open_store(network.url) as store:
        head = len(store.recorder.select_events("a"))
        try:
            append(store, "a", head + 1)
        except AppendConflictError:  # what stood in the network has arrived only now: it was there before us
            assert head == 1
            append(store, "a", 3)
        versions = [event.originator_version for event in store.recorder.select_events("a")]
        assert versions == list(range(1, len(versions) + 1))
        assert len(versions) in (2, 3)


# ------------------------------------------------------------------ wake-ups


def test_a_worker_learns_at_once_of_a_task_that_another_process_has_spawned(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll is the safety net, and made so slow here that only a wake-up can explain the answer."""
    slow = 1000.0
    for module in ("recovery", "remote", "ref", "watching", "feed"):
        monkeypatch.setattr(f"actors.{module}.FIRST_POLL", slow, raising=False)
        monkeypatch.setattr(f"actors.{module}.LONGEST_POLL", slow, raising=False)
    with AgentSystem(postgres) as worker, AgentSystem(postgres, run=False) as client:
        assert worker.spawn(climber, 1, id="warm").result(PATIENCE) == 0
        task = client.spawn(climber, 3, id="t")
        assert task.result(PATIENCE) == 3


def test_a_signal_of_another_process_reaches_a_task_at_once(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = 1000.0
    for module in ("recovery", "remote", "ref", "watching", "feed"):
        monkeypatch.setattr(f"actors.{module}.FIRST_POLL", slow, raising=False)
        monkeypatch.setattr(f"actors.{module}.LONGEST_POLL", slow, raising=False)
    with AgentSystem(postgres) as worker, AgentSystem(postgres, run=False) as client:
        worker.spawn(listener, id="l")
        wait_for(lambda: client.task("l").status() == "waiting")
        client.task("l").signal("word", "go")
        assert client.task("l").result(PATIENCE) == "go"
