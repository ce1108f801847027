"""Who is one death below the limit runs alone: a killer is found, and no innocent is held, or slowed down for long."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from actors import AgentSystem, agent, step
from actors.testing import FakeClock
from domain.events import Activated, Held, Passivated, StepStarted, TaskEvent
from stores import open_store
from tests.scenario_kit import KILLED, World

KILLER = """
    import json
    import sys
    from random import Random
    from threading import Event
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import answer, die, effect, say

    seed = int(sys.argv[1])
    draw = Random(seed)

    def moment():
        return draw.uniform(0.0, 0.06)

    @step
    def work(seconds):
        Event().wait(seconds)

    @step
    def strike(seconds):
        effect("entered", seed)
        Event().wait(seconds)
        die()

    @agent
    def killer(before, seconds):
        for wait in before:
            work(wait)
        strike(seconds)

    @agent
    def innocent(waits):
        for wait in waits:
            work(wait)
        return len(waits)

    with AgentSystem(f"sqlite:///{seed}.db") as system:
        spawns = [(innocent, [moment() for _ in range(draw.randint(1, 4))], f"innocent-{n}") for n in range(5)]
        spawns = [(fn, (waits,), id) for fn, waits, id in spawns]
        spawns.append((killer, ([moment() for _ in range(draw.randint(0, 2))], moment()), "killer"))
        draw.shuffle(spawns)
        tasks = [system.spawn(fn, *args, id=id) for fn, args, id in spawns]
        say(json.dumps({task.id: answer(task) for task in tasks}))
"""


def test_a_killer_among_innocents_is_entered_three_times_and_held_and_no_innocent_ever_is(
    world: World, seeds: range
) -> None:
    """P06 in any order: an outer loop starts the process again until all is settled."""
    program = world.write(KILLER)
    for seed in seeds:
        world.use(f"{seed}.db")
        deaths, answers = restarted_until_settled(world, program, seed)
        events = events_of(world)
        assert answers.pop("killer") == "TaskHeldError"
        assert set(map(type, answers.values())) == {int}
        assert deaths == 3, f"seed {seed}"
        assert [line.attempt for line in world.ledger("entered") if line.note == seed] == [1, 2, 3]
        held = {task for task, log in events.items() if any(isinstance(event, Held) for event in log)}
        assert held == {"killer"}, f"seed {seed}"


def restarted_until_settled(world: World, program: Path, seed: int) -> tuple[int, dict[str, object]]:
    for deaths in range(8):
        running = world.start(program, seed)
        with contextlib.suppress(AssertionError):
            return deaths, json.loads(running.hear())
        running.end(KILLED)
    raise AssertionError(f"seed {seed}: eight starts, and not settled")


def events_of(world: World) -> dict[str, list[TaskEvent]]:
    with world.client() as client:
        return {task.id: task.events() for task in client.tasks()}


BUSY = """
    import json
    import sys
    import threading
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, TIMEOUT, answer, effect, hear, say

    life = int(sys.argv[1])
    together, ready, forever = threading.Barrier(8), threading.Barrier(9), threading.Event()
    inside, beside, guard = set(), [], threading.Lock()

    @step
    def first(number):
        with guard:
            inside.add(number)
            beside.append(len(inside))
        effect("first", life)
        if life < 3:
            ready.wait(TIMEOUT)
            forever.wait()
        with guard:
            inside.remove(number)

    @step
    def second(number):
        with guard:
            inside.add(number)
        effect("second", life)
        together.wait(TIMEOUT)

    @agent
    def busy(number):
        first(number)
        second(number)
        return number

    with AgentSystem(STORE) as system:
        tasks = [system.spawn(busy, number, id=f"busy-{number}") for number in range(8)]
        if life < 3:
            ready.wait(TIMEOUT)
            say("busy")
            hear()
        say(json.dumps([answer(task) for task in tasks]), max(beside))
"""


def test_a_busy_worker_that_is_killed_from_outside_runs_its_tasks_side_by_side_again(world: World) -> None:
    """Killed once, none runs alone; killed twice, each does until its first outcome, and no longer. All complete."""
    program = world.write(BUSY)
    for life in (1, 2):
        running = world.start(program, life)
        assert running.hear() == "busy"
        running.kill()
    assert world.run(program, 3) == "[0, 1, 2, 3, 4, 5, 6, 7] 1"
    assert sorted(line.note for line in world.ledger("first")) == [1] * 8 + [2] * 8 + [3] * 8
    assert [line.attempt for line in world.ledger("second")] == [1] * 8
    for log in events_of(world).values():
        kinds = [type(event) for event in log]
        assert Held not in kinds
        assert kinds.count(StepStarted) == 4
        # what makes way is a stop on purpose: one more activation, and no strike
        assert kinds.count(Activated) == 3 + kinds.count(Passivated)
        assert kinds.count(Passivated) <= 1


@step(retries=5, backoff=10)
def try_again() -> None:
    raise ConnectionError("host down")


@agent(name="suspects: patient")
def patient() -> str:
    with contextlib.suppress(Exception):
        try_again()
    return "gave up in the end"


def test_a_task_that_is_woken_again_and_again_gathers_no_strike() -> None:
    """With a limit of one, the first strike would hold it."""
    with open_store("memory:") as store, AgentSystem(store, strikes=1, clock=FakeClock(jump=True)) as system:
        task = system.spawn(patient, id="patient")
        assert task.result(timeout=20) == "gave up in the end"
        marks = [type(event) for event in task.events() if isinstance(event, Activated | Passivated)]
    assert marks == [Activated, Passivated] * 5 + [Activated]
