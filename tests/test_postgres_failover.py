"""A server that is lost for good: one that followed it takes its place, and running systems go on there."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from actors import AgentSystem, TaskHeldError, UnknownTaskError, agent, step
from domain.events import Completed, StepStarted, StepSucceeded, TaskEvent
from stores import StoreUnavailableError, open_store
from tests.clusters import Cluster, crash, follower
from tests.lives import PATIENCE, wait_for
from tests.postgres import Server, own_server

entered: list[int] = []
inside, go_on = threading.Event(), threading.Event()
reached, opened = [[threading.Event() for _ in range(2)] for _ in range(2)]


@pytest.fixture(autouse=True)
def anew() -> None:
    entered.clear()
    for event in (inside, go_on, *reached, *opened):
        event.clear()


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


@agent(name="failover: climber")
def climber(height: int) -> int:
    return sum(climb(number) for number in range(height))


@agent(name="failover: sitter")
def sitter(height: int) -> int:
    return climb(0) + pause_in(1) + sum(climb(number) for number in range(2, height))


@step
def gate(number: int) -> int:
    entered.append(number)
    reached[number].set()
    opened[number].wait(PATIENCE)
    return number


@agent(name="failover: through gates")
def through_gates() -> int:
    return gate(0) + gate(1)


@pytest.fixture
def pair() -> Iterator[tuple[Server, Cluster, str]]:
    """Give a server, one that follows it, and the URL of a store on the one of them that writes."""
    with own_server() as primary, follower(primary) as standby:
        yield primary, standby, f"postgresql://postgres@/postgres?host={primary.socket.parent},{standby.folder}"


def wait_for_each_commit(primary: Server) -> None:
    """Have each commit wait until the one that follows has it too."""
    with psycopg.connect(primary.url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        admin.execute("SELECT pg_reload_conf()")
        wait_for(lambda: admin.execute("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'").fetchall())


def whole(log: list[TaskEvent], height: int) -> None:
    """Hold a log to this: each step began once and succeeded once, and the task completed once."""
    kinds = [type(event) for event in log]
    assert [event.attempt for event in log if isinstance(event, StepStarted)] == [1] * height
    assert (kinds.count(StepSucceeded), kinds.count(Completed)) == (height, 1)
    assert [event.originator_version for event in log] == list(range(1, len(log) + 1))


def test_a_server_that_is_killed_and_replaced_by_its_follower_costs_time_and_no_step(
    pair: tuple[Server, Cluster, str],
) -> None:
    primary, standby, url = pair
    wait_for_each_commit(primary)
    with AgentSystem(url, lease=60) as system:
        sitting = system.spawn(sitter, 4, id="sitter")
        assert inside.wait(PATIENCE)
        climbing = [system.spawn(climber, 50, id=f"t{number}") for number in range(8)]
        wait_for(lambda: len(entered) > 100)  # in the middle of it
        crash(primary)
        go_on.set()
        with pytest.raises(StoreUnavailableError, match=r"read-only|connection"):
            open_store(url)
        standby.promote()
        assert sitting.result(PATIENCE) == 6
        assert [task.result(PATIENCE) for task in climbing] == [1225] * 8
        whole(sitting.events(), 4)
        for task in climbing:
            whole(task.events(), 50)
        assert system.spawn(climber, 2, id="late").result(PATIENCE) == 1
    assert len(entered) == 4 + 8 * 50 + 2
    with open_store(f"{standby.url}&target_session_attrs=any") as there:
        assert len(there.recorder.select_entries(status=["completed"])) == 10


def cut_off(primary: Server, standby: Cluster) -> None:
    """Have a server follow no longer, when it has all that there is."""
    behind = "SELECT FROM pg_stat_replication WHERE flush_lsn < pg_current_wal_lsn()"
    with psycopg.connect(primary.url, autocommit=True) as admin, psycopg.connect(standby.url, autocommit=True) as there:
        wait_for(lambda: not admin.execute(behind).fetchall())
        there.execute("ALTER SYSTEM SET primary_conninfo = ''")
        there.execute("SELECT pg_reload_conf()")
        wait_for(lambda: not admin.execute("SELECT FROM pg_stat_replication").fetchall())


def test_what_a_follower_has_not_received_is_lost_and_a_task_that_ran_meanwhile_is_held(
    pair: tuple[Server, Cluster, str],
) -> None:
    """So it is where commits do not wait for the one that follows; nothing is mended in silence."""
    primary, standby, url = pair
    with AgentSystem(url, lease=60) as system:
        task = system.spawn(through_gates, id="t")
        assert reached[0].wait(PATIENCE)
        cut_off(primary, standby)
        opened[0].set()
        assert reached[1].wait(PATIENCE)  # that it began is acknowledged, by the one that goes
        assert system.spawn(climber, 2, id="lost").result(PATIENCE) == 1
        crash(primary)
        standby.promote()
        opened[1].set()
        with pytest.raises(TaskHeldError, match=r"says .* version 3, its log says .* ends at version 5"):
            task.result(PATIENCE)
        with pytest.raises(UnknownTaskError):
            system.task("lost").status()
        assert entered == [0, 1, 0, 1]
        system.task("t").release(by="ann")
        assert system.task("t").result(PATIENCE) == 1
        assert entered == [0, 1, 0, 1, 0, 1]
