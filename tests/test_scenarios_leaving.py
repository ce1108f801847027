"""Scenarios about leaving: P25 in good order, by `perdure worker` and by a program of one's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from time import monotonic

import pytest

from actors import AgentSystem, TaskRef
from domain.events import Passivated, StepStarted, StepSucceeded
from tests.lives import wait_for
from tests.patient import patient
from tests.scenario_kit import KILLED, Program, World

TERM, INT = signal.SIGTERM, signal.SIGINT
NOW = 5
"""Seconds that "at once" may take on a machine that is busy with something else."""

Tasks = list[TaskRef[str]]


@pytest.fixture
def tasks(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasks]:
    """Give four tasks, whose step `slow` comes to a shut door: three to the front door, one to that of the cellar."""
    monkeypatch.chdir(world.folder)
    world.shut_door("front")
    world.shut_door("cellar")
    with world.client() as client:
        yield [client.spawn(patient, door, id=f"at-{door}-{number}") for number, door in enumerate(DOORS)]


DOORS = ["front", "front", "front", "cellar"]


def start(world: World, processes: int = 1, grace: float = 10) -> Program:
    """Start workers that have a place for four tasks, all of them together."""
    options = {"processes": processes, "grace": grace, "max-active": 4 // processes}
    return world.perdure("worker", "tests.patient", *[f"--{name}={value}" for name, value in options.items()])


def all_are_in(world: World, times: int = 1) -> None:
    """Wait until all four tasks are in their step `slow`, for the nth time."""
    wait_for(lambda: world.count("begins") == 4 * times)


def leave(program: Program, number: int) -> None:
    """Send all processes of a program a signal, as Ctrl-C does in a terminal and a service manager at a stop."""
    os.killpg(program.pid, number)


def go_on(world: World, tasks: Tasks) -> None:
    """See that the store is sound, and that the next worker brings each task to its end."""
    with world.database() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with AgentSystem(world.url):
        assert [task.result(timeout=30) for task in tasks] == DOORS
    assert world.count("next") == 4


def kinds(task: TaskRef[str]) -> list[str]:
    return [type(event).__name__ for event in task.events()]


@pytest.mark.parametrize(("number", "processes"), [(TERM, 1), (INT, 2)], ids=["SIGTERM", "Ctrl-C for 2 processes"])
def test_a_signal_lets_running_steps_end_and_starts_no_other(
    world: World, tasks: Tasks, number: int, processes: int
) -> None:
    """P25: the four results are stored, no step `next` starts after the signal, each step has happened once."""
    leaving = start(world, processes, grace=5)
    all_are_in(world)
    leave(leaving, number)
    since = monotonic()
    leaving.complain(f"up to 5 s for {4 // processes} running steps", processes)
    world.open_door("front")
    world.open_door("cellar")
    leaving.end(128 + number)
    assert monotonic() - since < 6
    assert (world.count("slow"), world.count("next")) == (4, 0)
    for task in tasks:
        assert kinds(task) == ["Created", "Activated", "StepStarted", "StepSucceeded", "Passivated"]
    go_on(world, tasks)
    assert world.count("slow") == 4


@pytest.mark.parametrize("processes", [1, 2])
def test_a_step_that_hangs_is_cut_off_at_the_end_of_the_grace_and_is_attempt_2_then(
    world: World, tasks: Tasks, processes: int
) -> None:
    """P25: the process is gone right after the grace, and what ended within it is stored."""
    leaving = start(world, processes, grace=2)
    all_are_in(world)
    leave(leaving, TERM)
    leaving.complain("up to 2 s for", processes)
    world.open_door("front")
    leaving.end(143, timeout=2 + NOW)
    *others, hanging = tasks
    assert [kinds(task)[-2:] for task in others] == [["StepSucceeded", "Passivated"]] * 3
    *_, last = hanging.events()
    assert isinstance(last, Passivated)
    assert last.cut_off == ["1"]
    world.open_door("cellar")
    go_on(world, tasks)
    assert [line.attempt for line in world.ledger("slow")] == [1, 1, 1, 2]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_signal_leaves_at_once_and_the_store_is_intact(world: World, tasks: Tasks, processes: int) -> None:
    """P25: two quick Ctrl-C, the second as soon as the first is noticed."""
    leaving = start(world, processes, grace=60)
    all_are_in(world)
    leave(leaving, INT)
    leaving.complain("a second signal leaves at once")
    leave(leaving, INT)
    leaving.end(130, timeout=NOW)
    world.open_door("front")
    world.open_door("cellar")
    go_on(world, tasks)


def test_workers_whose_parent_is_killed_leave_in_good_order(world: World, tasks: Tasks) -> None:
    leaving = start(world, processes=2, grace=30)
    all_are_in(world)
    with world.client() as client:
        workers = client.log.store.workers
        assert len(workers.live()) == 2
        os.kill(leaving.pid, signal.SIGKILL)
        leaving.complain("the parent of this worker process is gone", 2)
        world.open_door("front")
        world.open_door("cellar")
        leaving.end(KILLED)
        wait_for(lambda: not workers.live())
    assert [kinds(task)[-2:] for task in tasks] == [["StepSucceeded", "Passivated"]] * 4
    assert (world.count("slow"), world.count("next")) == (4, 0)


def test_three_deploys_during_one_long_step_are_no_strikes(world: World, tasks: Tasks) -> None:
    """P25: each deliberate stop leaves a mark, so the step counts its attempts and its task is never held."""
    for deploy in (1, 2, 3):
        leaving = start(world, grace=0.1)
        all_are_in(world, deploy)
        leave(leaving, TERM)
        leaving.end(143)
        for task in tasks:
            view = task.describe()
            assert (view.status, view.strikes, [step.attempt for step in view.steps]) == ("queued", 0, [deploy])
    world.open_door("front")
    world.open_door("cellar")
    go_on(world, tasks)
    assert [line.attempt for line in world.ledger("slow")] == [4] * 4


OWN = """
    import sys
    import threading
    import tests.patient
    from actors import AgentSystem
    from tests.scenario_kit import STORE, join_all, say

    before = set(threading.enumerate())
    try:
        with AgentSystem(STORE, grace=5) as system:
            system.task("at-cellar-3").result()
    except KeyboardInterrupt:
        say(join_all(set(threading.enumerate()) - before, timeout=float(sys.argv[1])))
        raise
"""


def test_ctrl_c_in_a_program_of_ones_own_leaves_in_good_order_and_no_thread_behind(world: World, tasks: Tasks) -> None:
    """P25 without the command: the block's end is what gives the grace, and Python ends as a Ctrl-C ends it."""
    leaving = world.start(world.write(OWN), NOW)
    all_are_in(world)
    leave(leaving, INT)
    leaving.complain("closing: up to 5 s for what still runs, in 4 tasks")
    world.open_door("front")
    world.open_door("cellar")
    assert leaving.end(-INT) == "[]"
    assert [kinds(task)[-2:] for task in tasks] == [["StepSucceeded", "Passivated"]] * 4
    assert (world.count("slow"), world.count("next")) == (4, 0)


def test_a_second_ctrl_c_in_a_program_of_ones_own_marks_what_it_cuts_off(world: World, tasks: Tasks) -> None:
    leaving = world.start(world.write(OWN), 0)
    all_are_in(world)
    leave(leaving, INT)
    leaving.complain("closing: ")
    leave(leaving, INT)
    leaving.end(-INT, timeout=NOW)
    assert [task.describe().strikes for task in tasks] == [0] * 4
    outcomes = [event for task in tasks for event in task.events() if isinstance(event, StepStarted | StepSucceeded)]
    assert len(outcomes) == 4
    assert [kinds(task)[-1] for task in tasks] == ["Passivated"] * 4
    world.open_door("front")
    world.open_door("cellar")
    go_on(world, tasks)
