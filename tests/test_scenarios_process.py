"""Scenarios about many processes on one file: P23 everybody opens the door at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from domain.events import Completed, StepStarted, StepSucceeded
from tests.scenario_kit import Program, World
from tests.scenario_postgres import on_both

CLIMB = """
    import os
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import hear, say

    @step
    def climb(number):
        return number

    @agent
    def climber(height):
        return sum(climb(number) for number in range(height))

    say("ready")
    while words := hear():
        height, url = words.split(maxsplit=1)
        with AgentSystem(url, run=height != "0") as system:
            task = system.spawn(climber, int(height), id=f"climber-{os.getpid()}")
            say(task.result(timeout=60) if height != "0" else "open")
"""


@pytest.fixture
def crowd(world: World) -> Iterator[list[Program]]:
    """Give 8 running processes; they have to end without a word of complaint.

    That one which closes waits for a body, one of another's task, is no complaint.
    """
    program = world.write(CLIMB)
    crowd = [world.start(program) for _ in range(8)]
    assert [process.hear() for process in crowd] == ["ready"] * 8
    yield crowd
    for process in crowd:
        process.say("")
        process.end()
    said = [line for process in crowd for line in process.errors.splitlines()]
    assert [line for line in said if not line.startswith("closing: ")] == []


def release(world: World, crowd: list[Program], height: int) -> list[str]:
    """Release the crowd on the world's file, which is not there yet, and give what each answers."""
    assert not world.is_there()
    for process in crowd:
        process.say(f"{height} {world.url}")
    return [process.hear(60) for process in crowd]


@on_both
def test_many_processes_make_a_new_file_together_and_each_finds_it_whole(
    world: World, crowd: list[Program], trials: int
) -> None:
    """P23, the door alone: clients that open and submit, a new file each round."""
    for number in range(trials):
        world.use(f"door-{number}.db")
        assert release(world, crowd, 0) == ["open"] * 8
        with world.client() as client:
            assert len(client.tasks(status="queued")) == 8


@on_both
def test_many_processes_open_a_new_file_at_once_and_each_runs_its_task(
    world: World, crowd: list[Program], trials: int
) -> None:
    """P23: 8 processes released together on a file that does not exist, a new file each round."""
    for number in range(max(1, trials // 5)):
        world.use(f"round-{number}.db")
        assert release(world, crowd, 20) == ["190"] * 8
        check_climb(world)


def check_climb(world: World) -> None:
    """Hold a round to this: 8 tasks completed, 160 completions, none started twice, the file sound."""
    with world.client() as client:
        logs = [task.events() for task in client.tasks(status="completed")]
    kinds = [type(event) for log in logs for event in log]
    assert (len(logs), kinds.count(Completed)) == (8, 8)
    assert (kinds.count(StepStarted), kinds.count(StepSucceeded)) == (160, 160)
    world.check_sound()


WALK = """
    import sys
    from actors import AgentSystem, agent, step, step_info
    from tests.scenario_kit import answer, effect, hear, say

    mode, url, task_id = sys.argv[1:]

    @step
    def stride(number):
        effect("stride", number)
        if (step_info().task_id, number) == ("walk", 0):
            say("in a step")
            hear()
        return number

    @agent
    def walk(length):
        return sum(stride(number) for number in range(length))

    with AgentSystem(url, run=mode == "work") as system:
        say("open")
        task = system.spawn(walk, 5, id=task_id)
        say(f"has {task.id}")
        say(answer(task))
"""


@on_both
@pytest.mark.parametrize("options", ["", "timeout=0.1"], ids=["waits in the store", "waits in the appender"])
def test_a_writer_from_outside_that_holds_the_lock_costs_time_and_no_step(world: World, options: str) -> None:
    """P23: held for 8 s, longer than the store waits or not: appends and a submit succeed, no step is repeated."""
    program, url = world.write(WALK), world.url_with(options) if options else world.url
    worker = world.start(program, "work", url, "walk")
    assert [worker.hear() for _ in range(3)] == ["open", "has walk", "in a step"]
    with world.client() as client:
        with world.locked():
            worker.say("go on")
            submitter = world.start(program, "submit", url, "late")
            assert submitter.hear() == "open"
            with pytest.raises(TimeoutError):
                client.task("walk").result(timeout=8)
            assert [task.id for task in client.tasks()] == ["walk"]
        assert worker.hear() == "10"
        assert submitter.hear() == "has late"
        walk = [event for event in client.task("walk").events() if isinstance(event, StepStarted | StepSucceeded)]
    worker.end()
    assert [(event.path, event.attempt) for event in walk] == [(str(n), 1) for n in range(1, 6) for _ in range(2)]
    assert [line.note for line in world.ledger(task="walk")] == [0, 1, 2, 3, 4]
    said = {line.partition(",")[0] for program in (worker, submitter) for line in program.errors.splitlines()}
    outage = {"waiting for the store", "the store is away", "the store is back"}
    assert said <= (outage if options else set())
