"""Scenarios about processes that die: P01 finished steps, P02 the gap, P03 what was accepted, P06 poison."""

from __future__ import annotations

import contextlib
import json
from collections import deque

import pytest

from domain.events import Activated, StepStarted, StepSucceeded, TaskEvent
from stores import open_store
from tests.scenario_kit import KILLED, World

THREE_STEPS = """
    import secrets
    import sys
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, die_once, effect

    def point(name):
        if name in sys.argv:
            die_once(name)

    @step
    def one():
        point("A1")
        token = secrets.token_hex(8)
        effect("one", token)
        return token

    @step
    def two():
        point("A2")
        effect("two")

    @step
    def three(token):
        point("A3")
        effect("three")
        return token

    @agent
    def chain():
        token = one()
        point("C1")
        two()
        point("C2")
        token = three(token)
        point("C3")
        return token

    with AgentSystem(STORE) as system:
        print(system.spawn(chain, id="chain").result(timeout=30))
"""
POINTS = ["A1", "C1", "A2", "C2", "A3", "C3"]


@pytest.mark.parametrize("points", [*([point] for point in POINTS), POINTS], ids="+".join)
def test_a_finished_step_never_runs_again_wherever_the_process_was_killed(world: World, points: list[str]) -> None:
    """P01: killed once at each point A (started, not run) and C (stored, next not begun), and at all in one task."""
    program = world.write(THREE_STEPS)
    for _ in points:
        world.run(program, *points, code=KILLED)
    token = world.run(program, *points)
    (first,) = world.ledger("one")
    assert (world.count("one"), world.count("two"), world.count("three")) == (1, 1, 1)
    assert token == first.note
    assert [line.attempt for line in world.ledger()] == [1 + (f"A{number}" in points) for number in (1, 2, 3)]
    with world.client() as client:
        done = [event for event in client.task("chain").events() if isinstance(event, StepSucceeded)]
        assert [(event.path, event.name) for event in done] == [("1", "one"), ("2", "two"), ("3", "three")]
        assert client.task("chain").status() == "completed"


def test_a_completed_task_that_is_started_again_gives_its_result_and_runs_nothing(world: World) -> None:
    """P01: the same words once more."""
    program = world.write(THREE_STEPS)
    assert world.run(program) == world.run(program)
    assert len(world.ledger()) == 3


LETTER = """
    import sys
    from actors import AgentSystem, Happened, NotHappened, Unknown, agent, step, step_info
    from tests.scenario_kit import LEDGER, STORE, answer, die_once, effect

    mode, gap = sys.argv[1:]

    def look(doubt):
        if mode == "no idea":
            return Unknown("the server is down")
        with open(LEDGER, "a+") as mailbox:
            mailbox.seek(0)
            return Happened("found") if doubt.idempotency_key in mailbox.read() else NotHappened()

    @step(on_doubt=mode if mode in ("rerun", "hold") else look)
    def mail():
        if gap == "before":
            die_once("A")
        effect("mail")
        if gap == "after":
            die_once("B")
        return f"sent by attempt {step_info().attempt}"

    @step
    def file_away(receipt):
        effect("filed", receipt)

    @agent
    def letter():
        receipt = mail()
        file_away(receipt)
        return receipt

    with AgentSystem(STORE) as system:
        print(answer(system.spawn(letter, id="letter")))
"""


def test_in_the_gap_the_default_runs_the_step_again_with_the_same_key_and_the_next_attempt(world: World) -> None:
    """P02, default mode: two mails, one key, so that a server which drops repeated keys shows one."""
    program = world.write(LETTER)
    world.run(program, "rerun", "after", code=KILLED)
    assert world.run(program, "rerun", "after") == "sent by attempt 2"
    assert [line.attempt for line in world.ledger("mail")] == [1, 2]
    assert len({line.key for line in world.ledger("mail")}) == 1
    assert world.ledger("mail")[0].key.startswith("pd_")
    assert world.count("filed") == 1


@pytest.mark.parametrize("mode", ["hold", "no idea"])
def test_in_the_gap_a_step_that_may_not_repeat_waits_for_a_person_whose_word_the_next_step_sees(
    world: World, mode: str
) -> None:
    """P02, at most once: neither completed nor run again; the operator's value goes on, however often it restarts."""
    program = world.write(LETTER)
    world.run(program, mode, "after", code=KILLED)
    for _ in range(2):
        assert world.run(program, mode, "after") == "TaskHeldError"
    with world.client() as client:
        task = client.task("letter")
        view = task.describe()
        assert (view.status, view.hold) == ("held", "in doubt")
        assert world.ledger("mail")[0].key in view.why
        assert "perdure resolve letter 1" in view.why
        assert [step.state for step in view.steps] == ["started"]
        task.resolve("1", value="id-7", by="operator")
    assert world.run(program, mode, "after") == "id-7"
    assert [line.note for line in world.ledger("filed")] == ["id-7"]
    assert world.count("mail") == 1


@pytest.mark.parametrize(
    ("gap", "result", "attempts"), [("after", "found", [1]), ("before", "sent by attempt 2", [2])], ids=["did", "not"]
)
def test_in_the_gap_a_function_that_asks_the_world_makes_it_one_mail(
    world: World, gap: str, result: str, attempts: list[int]
) -> None:
    """P02, with a function: killed after the effect or before it, there is one mail in the end."""
    program = world.write(LETTER)
    world.run(program, "ask", gap, code=KILLED)
    assert world.run(program, "ask", gap) == result
    assert [line.attempt for line in world.ledger("mail")] == attempts
    assert [line.note for line in world.ledger("filed")] == [result]


INTAKE = """
    import sys
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, answer, die, effect, say
    from stores import open_store
    from stores.crash import CrashingStore, CrashPlan

    @step
    def receive(number):
        effect("received", number)

    @agent
    def intake(number):
        receive(number)
        return number

    def submit(count, store=STORE):
        with AgentSystem(store, run=False) as client:
            for number in range(count):
                say(client.spawn(intake, number).id)
            die()

    if sys.argv[1] == "submit":
        submit(int(sys.argv[2]))
    elif sys.argv[1] == "run":
        with AgentSystem(STORE, strikes=None) as system:
            for number in range(10_000):
                say(system.spawn(intake, number).id)
    elif sys.argv[1] == "die":
        submit(1, CrashingStore(open_store(STORE), CrashPlan(1, sys.argv[2], die)))
    else:
        with AgentSystem(STORE) as system:
            for task in system.tasks():
                answer(task)
"""


def check_intake(world: World, accepted: list[str]) -> None:
    """Hold a store whose tasks have all been run to what was accepted, and the index to the log."""
    with world.client() as client:
        tasks = {task.id: task.status() for task in client.tasks()}
    assert len(set(accepted)) == len(accepted)
    assert set(accepted) <= tasks.keys()
    assert set(tasks.values()) <= {"completed"}
    assert sorted(line.task for line in world.ledger("received")) == sorted(tasks)
    with open_store(world.url) as store:
        assert store.recorder.select_ids() == sorted(tasks)


def test_a_task_whose_submit_returned_is_never_lost(world: World, trials: int) -> None:
    """P03: the submitting process is killed the moment it has the id, as often as `--trials` says; one restart."""
    program = world.write(INTAKE)
    accepted, running = list[str](), deque(world.start(program, "submit", 1) for _ in range(3))
    for _ in range(trials):
        accepted.append(running.popleft().end(KILLED))
        running.append(world.start(program, "submit", 1))
    accepted += [client.end(KILLED) for client in running]
    world.run(program, "work")
    check_intake(world, accepted)
    assert world.count("received") == len(accepted) == trials + 3


@pytest.mark.parametrize(("point", "kept"), [("append.before", 0), ("append.inside", 0), ("append.after", 1)])
def test_a_submit_that_did_not_return_is_there_or_not_but_never_half(world: World, point: str, kept: int) -> None:
    """P03: killed inside the submit, before, in and after its transaction."""
    program = world.write(INTAKE)
    assert world.run(program, "die", point, code=KILLED) == ""
    world.run(program, "work")
    check_intake(world, [])
    assert world.count("received") == kept


def test_of_a_stream_of_submits_all_that_returned_are_kept_when_the_client_is_killed(world: World) -> None:
    """P03: the kill comes from outside, in the middle of whatever submit is under way."""
    program = world.write(INTAKE)
    accepted = []
    for length in (1, 7, 20):
        client = world.start(program, "submit", 10_000)
        accepted += [client.hear() for _ in range(length)]
        client.kill()
    world.run(program, "work")
    check_intake(world, accepted)


def test_of_a_stream_of_tasks_that_a_worker_spawns_and_runs_all_that_returned_are_kept_when_it_is_killed(
    world: World,
) -> None:
    """P03, where the one who spawns is the worker itself, which claims what it spawns as it is made."""
    program = world.write(INTAKE)
    accepted = []
    for length in (1, 7, 20, 80):
        worker = world.start(program, "run")
        accepted += [worker.hear() for _ in range(length)]
        worker.kill()
    world.run(program, "work")
    with world.client() as client:
        tasks = {task.id: [type(event).__name__ for event in task.events()] for task in client.tasks()}
    assert set(accepted) <= tasks.keys()
    assert {line.task for line in world.ledger("received")} == tasks.keys()
    for events in tasks.values():
        assert events[-1] == "Completed"
        assert events.count("Created") == events.count("StepSucceeded") == 1
        assert events.index("Activated") == 1
    with open_store(world.url) as store:
        assert store.recorder.select_ids() == sorted(tasks)


POISON = """
    import json
    import os
    import sys
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, answer, die, effect, say

    manner = sys.argv[1]

    @step
    def touch():
        effect("entered")
        os._exit(3) if manner == "exit" else die()

    @step(idempotent=True)
    def touch_unrecorded():
        effect("entered")
        die()

    @agent
    def poison():
        (touch_unrecorded if manner == "idempotent" else touch)()

    @step
    def work(number):
        effect("work", number)
        return number

    @agent
    def healthy():
        return sum(work(number) for number in range(5))

    with AgentSystem(STORE) as system:
        tasks = [system.spawn(healthy, id="healthy"), system.spawn(poison, id="poison")]
        say(json.dumps([answer(task) for task in tasks]))
"""


@pytest.mark.parametrize("manner", ["kill", "exit", "idempotent"])
def test_a_step_that_kills_its_process_is_entered_three_times_and_then_held(world: World, manner: str) -> None:
    """P06: next to a healthy task, restarted six times; restarts 4 to 6 enter the body no more."""
    program = world.write(POISON)
    for _ in range(3):
        world.run(program, manner, code=3 if manner == "exit" else KILLED)
    assert world.count("entered") == 3
    for _ in range(3):
        assert json.loads(world.run(program, manner)) == [10, "TaskHeldError"]
    assert world.count("entered") == 3
    with world.client() as client:
        view = client.task("poison").describe()
        activations = [event for event in client.task("poison").events() if isinstance(event, Activated)]
        assert (view.status, view.hold) == ("held", "strikes")
        assert view.why.startswith("3 crashes in a row")
        assert "perdure release poison" in view.why
        if manner != "idempotent":
            assert "step 1 touch" in view.why
            assert [line.attempt for line in world.ledger("entered")] == [1, 2, 3]
        assert len(activations) == 4  # three that died, and the one that held it without calling the agent
        assert client.task("healthy").status() == "completed"
        check_repeats(client.task("healthy").events(), world)


def check_repeats(events: list[TaskEvent], world: World) -> None:
    """Hold a task that was killed with its neighbour to its log: no start, no effect."""
    starts = [(event.path, event.attempt) for event in events if isinstance(event, StepStarted)]
    effects = [(line.path, line.attempt) for line in world.ledger("work")]
    assert set(effects) <= set(starts)
    assert len(set(effects)) == len(effects)


NEIGHBOURS = """
    import json
    import sys
    import threading
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, answer, die, effect, say

    neighbours = [threading.Event() for _ in range(3)]
    struck = threading.Event()

    @step
    def touch():
        effect("entered")
        struck.set()
        for neighbour in neighbours:
            neighbour.wait(0.3)  # those that run beside it are in their long step when it dies
        die()

    @agent
    def poison():
        touch()

    @step
    def take_long(number):
        effect("long", number)
        neighbours[number].set()
        if struck.wait(0.5):  # whoever runs beside the poison dies with it
            threading.Event().wait(30)
        return number

    @agent
    def innocent(number):
        return take_long(number)

    with AgentSystem(STORE) as system:
        tasks = [system.spawn(innocent, number, id=f"innocent-{number}") for number in range(3)]
        tasks.append(system.spawn(poison, id="poison"))
        say(json.dumps([answer(task) for task in tasks]))
"""


def test_neighbours_that_were_in_a_long_step_at_each_death_are_not_held(world: World) -> None:
    """P06: whoever is one death below the limit runs alone, so that only the guilty one reaches it."""
    program = world.write(NEIGHBOURS)
    deaths = 0
    for _ in range(4):
        with contextlib.suppress(AssertionError):
            assert json.loads(world.run(program)) == [0, 1, 2, "TaskHeldError"]
            break
        deaths += 1
    assert deaths == 3
    assert world.count("entered") == 3
    with world.client() as client:
        assert [task.status() for task in client.tasks()] == ["completed"] * 3 + ["held"]
