"""A process that is killed in the middle of a trouble: another goes on; nothing done is lost, or done again.

Each task has done one step and is in the body of the next when the trouble begins; the process is killed when it has
the outcomes and cannot store them. What it has sent last may reach the database only after its death.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple
from uuid import uuid4

import psycopg
import pytest

from actors.task_log import TaskLog
from actors.verify import Read, verify
from domain.events import Completed, SignalReceived, StepStarted, StepSucceeded, TaskEvent
from stores import open_store
from tests.lives import wait_for
from tests.postgres import fresh_schema, own_server, with_option
from tests.proxy import Proxy
from tests.scenario_kit import KILLED, Program, World
from tests.troubles import LIKE_ANYBODY, FullDisk, Locked

NAMES = ["walk-0", "walk-1", "walk-2", "walk-3"]
ANSWER = f"{3 * 100_000} told"
WALK = """
    import sys
    from actors import AgentSystem, agent, receive, step, step_info
    from tests.scenario_kit import answer, effect, pass_door, say

    @step
    def stride(number):
        effect("stride", number)
        if (number, step_info().attempt) == (1, 1):
            pass_door("outcome")
        return str(number) * 100_000

    @agent
    def walk():
        return f"{sum(len(stride(number)) for number in range(3))} {receive('news')}"

    with AgentSystem(sys.argv[1], lease=1) as system:
        tasks = [system.spawn(walk, id=f"walk-{number}") for number in range(4)]
        for task in tasks:
            task.signal("news", "told", signal_id="once")
        say("told")
        for task in tasks:
            say(answer(task, 60))
"""

Logs = dict[str, list[TaskEvent]]


class Case(NamedTuple):
    """A trouble for a program: the store as the program has it, and as who comes after it has it."""

    url: str
    url_after: str
    begin: Callable[[Program], object]
    end: Callable[[], object]
    stored: bool | None = False
    """Whether the store has outcomes of which the program does not know that it has them; None: perhaps."""


def enter(world: World, url: str) -> Program:
    """Start a program, and wait until each of its tasks is in the body of its second step."""
    world.shut_door("outcome")
    program = world.start(world.write(WALK), url)
    assert program.hear() == "told"
    wait_for(lambda: [line.note for line in world.ledger()].count(1) == len(NAMES))
    return program


def leave(world: World, program: Program) -> None:
    """Let the bodies end, and kill the program when it waits for the store with what they have given."""
    world.open_door("outcome")
    program.complain("waiting for the store")
    program.kill()
    assert program.code() == KILLED


def logs_of(url: str) -> Logs:
    with open_store(url) as store:
        log = TaskLog(store)
        return {name: list(log.events.get(name)) for name in NAMES}


def done(log: list[TaskEvent]) -> list[str]:
    return [event.path for event in log if isinstance(event, StepSucceeded)]


def check(world: World, url: str, before: Logs) -> None:
    """Hold the end to this: what stood in the logs stands there, each step is done, none again that was recorded."""
    for name, log in logs_of(url).items():
        assert log[: len(before[name])] == before[name]
        assert done(log) == ["1", "2", "3"]
        kinds = [type(event) for event in log]
        assert (kinds.count(Completed), kinds.count(SignalReceived)) == (1, 1)
        for path in done(log):
            lines = [line for line in world.ledger(task=name) if line.path == path]
            assert [line.attempt for line in lines] == list(range(1, len(lines) + 1))
            assert len({line.key for line in lines}) == 1
            assert len(lines) == len([event for event in log if isinstance(event, StepStarted) and event.path == path])
            assert len(lines) == 1 or (len(lines) == 2 and path == "2" and path not in done(before[name]))
    with open_store(url) as store:
        assert list(verify(TaskLog(store), Read())) == []


def play(world: World, case: Case) -> None:
    program = enter(world, case.url)
    assert all(done(log) == ["1"] for log in logs_of(case.url_after).values())
    case.begin(program)
    leave(world, program)
    case.end()
    before = logs_of(case.url_after)
    assert case.stored in (None, any(done(log) == ["1", "2"] for log in before.values()))
    assert world.run(world.write(WALK), case.url_after).splitlines() == ["told", *[ANSWER] * len(NAMES)]
    check(world, case.url_after, before)


# ------------------------------------------------------------------ SQLite


@contextmanager
def full_disk(world: World) -> Iterator[Case]:
    with FullDisk(world.folder) as disk:

        def begin(program: Program) -> None:
            disk.process = program.pid
            disk.begin(None)

        yield Case(disk.url, disk.url, begin, disk.end)


@contextmanager
def locked_file(world: World) -> Iterator[Case]:
    with Locked(world.folder) as lock:
        yield Case(lock.url, world.url, lambda _: lock.begin(None), lock.end)


@pytest.mark.parametrize("trouble", [full_disk, locked_file])
def test_a_death_while_a_file_cannot_be_written_costs_no_step_that_was_recorded(
    world: World, trouble: Callable[[World], AbstractContextManager[Case]]
) -> None:
    with trouble(world) as case:
        play(world, case)


def test_a_death_while_the_file_is_read_only_costs_nothing(world: World) -> None:
    """Tasks of a dead worker meet one who cannot even begin, and dies of it; the next one goes on with them."""
    enter(world, world.url).kill()
    world.open_door("outcome")
    before, effects = logs_of(world.url), world.ledger()
    world.file.chmod(0o444)
    second = world.start(world.write(LIKE_ANYBODY + WALK), world.url)
    second.complain("attempt to write a readonly database")
    second.kill()
    for file in world.folder.glob("tasks.db*"):
        if file.is_file():
            file.chmod(0o644)
    assert (logs_of(world.url), world.ledger()) == (before, effects)
    assert world.run(world.write(WALK), world.url).splitlines() == ["told", *[ANSWER] * len(NAMES)]
    check(world, world.url, before)


# ------------------------------------------------------------------ PostgreSQL


@contextmanager
def standing_still(world: World) -> Iterator[Case]:
    with open_store(world.url), Proxy(world.url) as network:
        impatient = with_option(network.url, "timeout=0.3")
        yield Case(impatient, world.url, lambda _: network.flows.clear(), network.flows.set, stored=None)


@contextmanager
def cut(world: World) -> Iterator[Case]:
    with open_store(world.url), Proxy(world.url) as network:
        yield Case(network.url, world.url, lambda _: network.go_down(), network.come_up)


@contextmanager
def acknowledgement_dropped(world: World) -> Iterator[Case]:
    with open_store(world.url), Proxy(world.url) as network:

        def begin(_: Program) -> None:
            network.lose_the_answer_to(b'"version":7,', then_go_down=True)

        yield Case(network.url, world.url, begin, network.come_up, stored=True)


@contextmanager
def locked_tables(world: World) -> Iterator[Case]:
    with ExitStack() as lock:
        impatient = world.url_with("timeout=0.3")
        yield Case(impatient, world.url, lambda _: lock.enter_context(world.locked()), lock.close, stored=None)


@contextmanager
def server_crashed(_: World) -> Iterator[Case]:
    with own_server() as server, fresh_schema(server.url) as url:
        yield Case(url, url, lambda _: server.stop("immediate"), server.start)


@pytest.mark.parametrize("trouble", [standing_still, cut, acknowledgement_dropped, locked_tables, server_crashed])
@pytest.mark.parametrize("world", ["postgres"], indirect=True)
def test_a_death_while_a_server_cannot_be_reached_costs_no_step_that_was_recorded(
    world: World, trouble: Callable[[World], AbstractContextManager[Case]]
) -> None:
    with trouble(world) as case:
        play(world, case)


@pytest.mark.parametrize("world", ["postgres"], indirect=True)
def test_what_a_dead_worker_has_sent_and_arrives_when_another_has_gone_on_changes_nothing(
    world: World, postgres_server: str
) -> None:
    """The server still takes the dead for alive, and gets its appends when its tasks have ended elsewhere."""
    name = f"killed-{uuid4().hex[:16]}"

    def sessions() -> int:
        with psycopg.connect(postgres_server) as connection:
            counted = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name=%s", [name])
            return int(counted.fetchall()[0][0])

    with standing_still(world) as case:
        program = enter(world, with_option(case.url, f"application_name={name}"))
        case.begin(program)
        leave(world, program)
        before = logs_of(world.url)
        assert world.run(world.write(WALK), world.url).splitlines() == ["told", *[ANSWER] * len(NAMES)]
        after = logs_of(world.url)
        assert sessions() > 0
        case.end()
        wait_for(lambda: sessions() == 0)
        assert logs_of(world.url) == after
        check(world, world.url, before)
