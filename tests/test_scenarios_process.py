"""Scenarios about many in one place: P23 everybody opens the door at once, P24 things thrown in an actor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from domain.events import Completed, Held, Restarted, StepFailed, StepStarted, StepSucceeded
from tests.scenario_kit import World

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
    while url := hear():
        with AgentSystem(url) as system:
            say(system.spawn(climber, 20, id=f"climber-{os.getpid()}").result(timeout=60))
"""


def test_many_processes_open_a_new_file_at_once_and_each_runs_its_task(world: World, trials: int) -> None:
    """P23: 8 processes released together on a file that does not exist, a new file each round."""
    crowd = [world.start(world.write(CLIMB)) for _ in range(8)]
    assert [process.hear() for process in crowd] == ["ready"] * 8
    for number in range(max(1, trials // 4)):
        world.use(f"round-{number}.db")
        for process in crowd:
            process.say(world.url)
        assert [process.hear(60) for process in crowd] == ["190"] * 8
        check_climb(world)
    for process in crowd:
        process.say("")
        process.end()
    assert [process.errors for process in crowd] == [""] * 8


def check_climb(world: World) -> None:
    """Hold a round to this: 8 tasks completed, 160 completions, none started twice, the file sound."""
    with world.client() as client:
        logs = [task.events() for task in client.tasks(status="completed")]
    kinds = [type(event) for log in logs for event in log]
    assert (len(logs), kinds.count(Completed)) == (8, 8)
    assert (kinds.count(StepStarted), kinds.count(StepSucceeded)) == (160, 160)
    with world.database() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


WALK = """
    import sys
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import answer, effect, hear, say

    mode, url, task_id = sys.argv[1:]

    @step
    def stride(number):
        effect("stride", number)
        if mode == "work" and number == 0:
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


@pytest.mark.parametrize("options", ["", "?timeout=0.1"], ids=["waits in the store", "waits in the appender"])
def test_a_writer_from_outside_that_holds_the_lock_costs_time_and_no_step(world: World, options: str) -> None:
    """P23: held for 2 s, longer than the store waits or not: appends and a submit succeed, no step is repeated."""
    program = world.write(WALK)
    worker = world.start(program, "work", world.url + options, "walk")
    assert [worker.hear() for _ in range(3)] == ["open", "has walk", "in a step"]
    with world.database() as outsider, world.client() as client:
        outsider.execute("BEGIN IMMEDIATE")
        worker.say("go on")
        submitter = world.start(program, "submit", world.url + options, "late")
        assert submitter.hear() == "open"
        with pytest.raises(TimeoutError):
            client.task("walk").result(timeout=2)
        assert [task.id for task in client.tasks()] == ["walk"]
        outsider.execute("ROLLBACK")
        assert worker.hear() == "10"
        assert submitter.hear() == "has late"
        walk = [event for event in client.task("walk").events() if isinstance(event, StepStarted | StepSucceeded)]
    worker.end()
    assert [(event.path, event.attempt) for event in walk] == [(str(n), 1) for n in range(1, 6) for _ in range(2)]
    assert [line.note for line in world.ledger(task="walk")] == [0, 1, 2, 3, 4]
    assert worker.errors == submitter.errors == ""


THROW = """
    import asyncio
    import json
    import logging
    import sys
    import threading
    from time import monotonic
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, TIMEOUT, answer, join_all, say

    what, where = sys.argv[1:]
    told, struck = [], threading.Event()
    all_are_in = threading.Barrier(4)

    class Told(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())
            struck.set()

    def throw():
        if what == "SystemExit":
            sys.exit(3)
        raise {"ValueError": ValueError, "CancelledError": asyncio.CancelledError,
               "KeyboardInterrupt": KeyboardInterrupt}[what]("thrown")

    @step
    def harmless():
        return None

    @step
    def tool():
        throw()

    @agent
    def thrower():
        harmless()
        if where == "in a step":
            tool()
        harmless() if where == "nowhere" else throw()

    @step
    def stand(number):
        all_are_in.wait(TIMEOUT)
        struck.wait(TIMEOUT)
        return number

    @agent
    def bystander(number):
        return stand(number) + stand.name.count("stand") + (harmless() or 0)

    def threads():
        return set(threading.enumerate())

    if what == "only spawn":
        with AgentSystem(STORE, run=False) as client:
            client.spawn(thrower, id="task-1")
        sys.exit()
    logging.getLogger("perdure").addHandler(Told())
    outside = threads()
    with AgentSystem(STORE) as system:
        idle = threads()
        others = [system.spawn(bystander, number, id=f"task-{number}") for number in (2, 3, 4)]
        all_are_in.wait(TIMEOUT)
        began = monotonic()
        outcome = answer(system.spawn(thrower, id="task-1") if where != "nowhere" else system.task("task-1"))
        waited = monotonic() - began
        struck.set()
        answers = [answer(other) for other in others]
        left = join_all(threads() - idle)
    left += join_all(threads() - outside)
    report = {"outcome": outcome, "waited": waited, "others": answers, "left": left}
    say(json.dumps(report | {"told": [words for words in told if "task-1" in words], "all": len(told)}))
"""


def throw(world: World, what: str, where: str) -> dict[str, Any]:
    """Throw something in task 1 of four, and check what concerns the others; its report, with what the log has."""
    report: dict[str, Any] = json.loads(world.run(world.write(THROW), what, where))
    assert report["others"] == [3, 4, 5]
    assert report["waited"] < 2
    assert report["left"] == []
    assert len(report["told"]) == report["all"]
    with world.client() as client:
        assert [client.task(f"task-{number}").status() for number in (2, 3, 4)] == ["completed"] * 3
        report["status"] = client.task("task-1").status()
        if where != "nowhere":
            report["events"] = client.task("task-1").events()
            report["view"] = client.task("task-1").describe()
    return report


@pytest.mark.parametrize("what", ["ValueError", "SystemExit", "CancelledError", "KeyboardInterrupt"])
def test_what_a_step_throws_is_its_tasks_own_failure(world: World, what: str) -> None:
    """P24: sys.exit, CancelledError and KeyboardInterrupt in a step too: failed, not run again, no actor has crashed."""
    report = throw(world, what, "in a step")
    assert (report["outcome"], report["status"]) == ("TaskFailedError", "failed")
    assert report["view"].fault.kind == what
    (failed,) = [event for event in report["events"] if isinstance(event, StepFailed)]
    assert failed.error["kinds"][0].endswith(what)
    assert [event.attempt for event in report["events"] if isinstance(event, StepStarted)] == [1, 1]
    assert report["told"] == []


@pytest.mark.parametrize("what", ["ValueError", "SystemExit", "CancelledError", "KeyboardInterrupt"])
def test_what_is_thrown_between_steps_is_told_to_the_supervisor_once_a_crash(world: World, what: str) -> None:
    """P24: three crashes, each told once, then held with the class, in the same process as three others."""
    report = throw(world, what, "between steps")
    assert (report["outcome"], report["status"], report["view"].hold) == ("TaskHeldError", "held", "strikes")
    assert what in report["view"].why
    crashes = [event.error for event in report["events"] if isinstance(event, Restarted)]
    crashes += [event.details["error"] for event in report["events"] if isinstance(event, Held)]
    assert [crash["kinds"][0].rpartition(":")[2].rpartition(".")[2] for crash in crashes] == [what] * 3
    assert len(report["told"]) == 3
    assert all(f"agent thrower crashed at {world.folder / 'program.py'}" in words for words in report["told"])
    assert [event.path for event in report["events"] if isinstance(event, StepSucceeded)] == ["1"]


@pytest.mark.parametrize("version", [1, 3], ids=["its first row", "a later row"])
def test_a_task_that_cannot_be_rehydrated_is_held_alone_and_told_once(world: World, version: int) -> None:
    """P24: rehydration itself raises; whoever waits is answered, the others complete."""
    program = world.write(THROW)
    world.run(program, "only spawn", "nowhere")
    if version > 1:
        world.run(program, "nothing", "nowhere")
    world.flip("task-1", version, 20)
    report = throw(world, "nothing", "nowhere")
    assert (report["outcome"], report["status"]) == ("TaskHeldError", "held")
    assert len(report["told"]) == 1
    assert f"task task-1: version {version} of its log cannot be read" in report["told"][0]
