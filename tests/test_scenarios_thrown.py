"""Scenarios about one process: P24 things thrown in an actor."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from actors import agent, step
from actors.definitions import find_agent, known_agents
from actors.hints import Hints
from actors.runtime import Runtime
from actors.supervised import Down
from actors.task_actor import AgentCrashError, TaskActor
from actors.task_log import TaskLog
from actors.worker import Worker
from domain.events import Held, Restarted, StepFailed, StepStarted, StepSucceeded
from stores import open_store
from tests.scenario_kit import KILLED, World

THROWN: dict[str, type[BaseException]] = {
    "ValueError": ValueError,
    "SystemExit": SystemExit,
    "CancelledError": asyncio.CancelledError,
    "KeyboardInterrupt": KeyboardInterrupt,
}

THROW = """
    import asyncio
    import json
    import logging
    import sys
    import threading
    from time import monotonic
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, TIMEOUT, answer, die, join_all, say

    what, where, neighbours = sys.argv[1:]
    told, struck = [], threading.Event()
    all_are_in = threading.Barrier(4)

    class Told(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())
            if neighbours == "go on at the first crash":
                struck.set()

    def throw():
        if what == "SystemExit":
            sys.exit(3)
        if what == "death":
            die()
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
        harmless()
        number = stand(number)
        harmless()
        return number

    def threads():
        return set(threading.enumerate())

    if neighbours == "none":
        with AgentSystem(STORE, run=what == "death") as system:
            task = system.spawn(thrower, id="task-1")
            if what == "death":
                answer(task)
        sys.exit()
    logging.getLogger("perdure").addHandler(Told())
    outside = threads()
    with AgentSystem(STORE) as system:
        idle = threads()
        others = [system.spawn(bystander, number, id=f"task-{number}") for number in (2, 3, 4)]
        all_are_in.wait(TIMEOUT)
        began = monotonic()
        first = system.spawn(thrower, id="task-1") if where != "nowhere" else system.task("task-1")
        try:
            outcome = answer(first, 5)
        except TimeoutError:
            outcome = "none in time"
        waited = monotonic() - began
        struck.set()
        answers = [answer(other) for other in others]
        left = join_all(threads() - idle)
    left += join_all(threads() - outside)
    report = {"outcome": outcome, "waited": waited, "others": answers, "left": left}
    say(json.dumps(report | {"told": [words for words in told if "task-1" in words], "all": len(told)}))
"""


def throw(world: World, what: str, where: str, neighbours: str = "go on at the first crash") -> dict[str, Any]:
    """Throw something in task 1 of four, and check what concerns the others; its report, with what the log has."""
    report: dict[str, Any] = json.loads(world.run(world.write(THROW), what, where, neighbours))
    assert report["others"] == [2, 3, 4]
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


@pytest.mark.parametrize("what", THROWN)
def test_what_a_step_throws_is_its_tasks_own_failure(world: World, what: str) -> None:
    """P24: an exit, a cancellation and a Ctrl-C too: failed with the class, not run again, and no actor has crashed."""
    report = throw(world, what, "in a step")
    assert (report["outcome"], report["status"]) == ("TaskFailedError", "failed")
    assert report["view"].fault.kind == what
    (failed,) = [event for event in report["events"] if isinstance(event, StepFailed)]
    assert failed.error["kinds"][0].endswith(what)
    assert [event.attempt for event in report["events"] if isinstance(event, StepStarted)] == [1, 1]
    assert report["told"] == []


@pytest.mark.parametrize("what", THROWN)
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


def test_a_crashing_task_is_answered_for_while_its_neighbours_are_in_a_long_step(world: World) -> None:
    """P24: the others end their step only after whoever waits on task 1 was answered."""
    report = throw(world, "ValueError", "between steps", "go on after the answer")
    assert report["outcome"] == "TaskHeldError"


def told_of(log: TaskLog) -> list[Down]:
    """Run task-1 in an actor of its own, and give what its supervisor is told until its thread has ended."""
    told: list[Down] = []
    worker = Worker("w1", log, Runtime(), 3, None, find_agent, known_agents, told.append, lambda: None)
    worker.tenure.renew(monotonic())
    actor = TaskActor.launch(worker, "task-1", Hints(), None)
    assert actor.actor_stopped.wait(10)
    return told


@step
def thrown_in_a_step(what: str) -> None:
    raise THROWN[what](3)


@agent
def thrown_somewhere(what: str, where: str) -> None:
    if where == "in a step":
        thrown_in_a_step(what)
    raise THROWN[what](3)


@pytest.mark.parametrize("what", THROWN)
@pytest.mark.parametrize(("where", "error"), [("in a step", None), ("between steps", AgentCrashError)])
def test_the_end_of_an_actor_is_told_exactly_once(
    tmp_path: Path, what: str, where: str, error: type[BaseException] | None
) -> None:
    """P24: whatever was thrown, and wherever."""
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        log = TaskLog(store)
        log.create("task-1", thrown_somewhere.name, [[what, where], {}], {})
        (down,) = told_of(log)
    assert down.name == "task-1"
    assert down.error is None if error is None else isinstance(down.error, error)


@pytest.mark.parametrize("version", [1, 3], ids=["its first row", "a later row"])
def test_a_task_that_cannot_be_rehydrated_is_held_alone_and_told_once(world: World, version: int) -> None:
    """P24: rehydration itself raises; whoever waits is answered, the others complete."""
    program = world.write(THROW)
    if version == 1:
        world.run(program, "nothing", "nowhere", "none")
    else:
        world.run(program, "death", "between steps", "none", code=KILLED)
    world.flip("task-1", version, 20)
    report = throw(world, "nothing", "nowhere")
    assert (report["outcome"], report["status"]) == ("TaskHeldError", "held")
    assert len(report["told"]) == 1
    assert f"task task-1: version {version} of its log cannot be read" in report["told"][0]
