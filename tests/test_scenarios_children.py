"""Scenarios about children: C01 the family, C02 the lost word, C03 two workers, C04 a thousand, C05 the ending.

As in the others, deaths are real, and only the ledger proves what has happened outside.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from actors import AgentSystem, agent, gather, open_store, spawn_child, spawn_child_async, step
from domain.events import ChildSpawned, Completed, Held, SignalReceived
from domain.state import ENDED
from tests.families import check_families, children_of, logs, tell_all, words_to
from tests.lives import wait_for
from tests.scenario_kit import KILLED, World

# ------------------------------------------------------------------ C01

FAMILY = """
    import os
    import signal
    import sys
    from actors import AgentSystem, agent, spawn_child, spawn_child_async, step
    from stores import open_store
    from stores.crash import CrashingStore, CrashPlan
    from tests.scenario_kit import STORE, answer, die, effect, say

    nth, colour = int(sys.argv[1]), sys.argv[2]

    @step
    def work(number):
        effect("work", number)
        return number * number

    @step
    def add_up(numbers):
        effect("add up", numbers)
        return sum(numbers)

    @agent
    def square(number):
        return work(number)

    @agent
    async def square_async(number):
        return await work.aio(number)

    @agent
    def sum_of_squares(count):
        children = [spawn_child(square, number) for number in range(count)]
        return add_up([child.result() for child in children])

    @agent
    async def sum_of_squares_async(count):
        children = [await spawn_child_async(square_async, number) for number in range(count)]
        return await add_up.aio([await child for child in children])

    plan = CrashPlan(nth or None, die=die)
    with open_store(STORE) as disk, AgentSystem(CrashingStore(disk, plan), strikes=None) as system:
        program = sum_of_squares if colour == "sync" else sum_of_squares_async
        say(answer(system.spawn(program, 4, id="family")))
"""


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_killed_again_and_again_a_family_has_the_same_children_and_each_works_once(
    world: World, colour: str, seeds: range
) -> None:
    """C01: a parent of four, killed at random boundaries of its own or its children's, six times in all."""
    program, draw, deaths = world.write(FAMILY), random.Random(colour), 0
    born: set[str] = set()
    for nth in [draw.randint(4, 40) for _ in range(2 * len(seeds))]:
        running = world.start(program, nth, colour)
        code = running.code()
        assert code in (0, KILLED), running.errors
        deaths += code == KILLED
        with open_store(world.url) as disk:
            found = set(children_of(disk, "family")) if "family" in disk.recorder.select_ids() else set()
            check_families(disk)
        assert born <= found, "a child was lost"
        born = found
    assert world.run(program, 0, colour) == "14"
    with open_store(world.url) as disk:
        check_families(disk)
        assert born <= set(children_of(disk, "family"))
        tasks = logs(disk)
        assert len(tasks) == 5
    assert deaths > 0
    for lines in (world.ledger("work", child) for child in tasks if child != "family"):
        assert len({line.key for line in lines}) == 1
        assert [line.attempt for line in lines] == sorted({line.attempt for line in lines})
        assert len(lines) <= deaths + 1
    assert len({line.key for line in world.ledger("work")}) == 4
    assert {line.note for line in world.ledger("work")} == {0, 1, 2, 3}


# ------------------------------------------------------------------ C02

LOST = """
    import sys
    from actors import AgentSystem, agent, spawn_child, step
    from stores import open_store
    from stores.crash import CrashingStore
    from tests.scenario_kit import STORE, answer, die, effect, say

    class Death:
        dead = False

        def reach(self, point, **facts):
            if point == sys.argv[1] and facts.get("topics") == ("signal.received",):
                die()

        def check(self):
            return

    @step
    def work():
        effect("work")
        return "worked"

    @agent
    def child():
        return work()

    @agent
    def parent():
        return spawn_child(child).result()

    with open_store(STORE) as disk, AgentSystem(CrashingStore(disk, Death())) as system:
        say(answer(system.spawn(parent, id="parent")))
"""


@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
def test_a_process_that_dies_between_a_childs_end_and_the_word_of_it_leaves_the_word_to_the_next(
    world: World, point: str
) -> None:
    """C02: the child's ending is in its log, its parent's has no word of it, or has, and nobody else knows."""
    program = world.write(LOST)
    world.run(program, point, code=KILLED)
    with open_store(world.url) as disk:
        (child,) = children_of(disk, "parent")
        assert isinstance(logs(disk)[child].ending, Completed)
        assert len(words_to(disk, "parent")) == (point == "append.after")
    assert world.run(program, "never") == "worked"
    with open_store(world.url) as disk:
        assert words_to(disk, "parent") == [child]
        tell_all(disk)
        check_families(disk)
    assert world.count("work") == 1


# ------------------------------------------------------------------ C03

PARENT = """
    from actors import AgentSystem, agent, definitions, spawn_child
    from tests.scenario_kit import STORE, say

    @agent(name="child")
    def child(number):
        raise AssertionError("this is the other process's")

    @agent(name="parent")
    def parent():
        children = [spawn_child(child, number) for number in range(3)]
        return [type(one.result()).__name__ for one in children]

    del definitions._agents["child"]  # this process only spawns them

    with AgentSystem(STORE) as system:
        task = system.spawn(parent, id="parent")
        say("at work")
        try:
            say(task.result(30))
        except Exception as error:
            say(type(error).__name__, error)
"""
CHILDREN = """
    from dataclasses import dataclass
    from actors import AgentSystem, agent, register, step
    from tests.scenario_kit import STORE, effect, hear, pass_door, say

    @register(name="Page")
    @dataclass
    class Page:
        number: int

    @step
    def read(number):
        effect("read", number)
        pass_door("reading")
        return number

    @agent(name="child")
    def child(number) -> Page:
        return Page(read(number))

    with AgentSystem(STORE) as system:
        say("at work")
        hear()
"""


def test_a_parent_in_another_process_than_its_children_waits_whatever_dies_there_and_is_held_for_their_class(
    world: World,
) -> None:
    """C03: the children's worker is killed in their bodies and started again; the parent's has not their class."""
    parent, children = world.write(PARENT, "parent.py"), world.write(CHILDREN, "children.py")
    first = world.start(parent)
    assert first.hear() == "at work"
    world.shut_door("reading")
    second = world.start(children)
    assert second.hear() == "at work"
    wait_for(lambda: world.count("read") == 3)
    second.kill()
    world.open_door("reading")
    third = world.start(children)
    assert third.hear() == "at work"
    said = first.hear()
    assert said.startswith("TaskHeldError")
    assert "Page" in said
    first.end()
    third.say("enough")
    third.end()
    with open_store(world.url) as disk:
        tell_all(disk)
        check_families(disk)
        assert sorted(words_to(disk, "parent")) == sorted(children_of(disk, "parent"))
        assert isinstance(logs(disk)["parent"].held, Held)
    assert Counter(line.note for line in world.ledger("read")) == {0: 2, 1: 2, 2: 2}
    assert len({line.key for line in world.ledger("read")}) == 3


# ------------------------------------------------------------------ C04


@step(name="C04: work", idempotent=True)
def work(number: int) -> int:
    return number


@agent(name="C04: child")
def child(number: int) -> int:
    return work(number)


@agent(name="C04: child, async")
async def child_async(number: int) -> int:
    return await work.aio(number)


@agent(name="C04: fan out")
def fan_out(count: int) -> int:
    children = [spawn_child(child, number) for number in range(count)]
    return sum(one.result() for one in children)


@agent(name="C04: fan out, async")
async def fan_out_async(count: int) -> int:
    children = [await spawn_child_async(child_async, number) for number in range(count)]
    return sum(await gather(*[one.result_async for one in children]))


@pytest.mark.parametrize(("program", "count"), [(fan_out, 300), (fan_out_async, 1000)], ids=["sync", "async"])
def test_a_thousand_children_are_spawned_and_joined(tmp_path: Path, program: Any, count: int) -> None:
    """C04: one parent, a thousand children on SQLite, at most 64 at once; its log grows with their number."""
    threads = [threading.active_count()]
    with AgentSystem(f"sqlite:///{tmp_path}/tasks.db") as system:
        task = system.spawn(program, count, id="t")
        wait_for(lambda: threads.append(threading.active_count()) or task.status() in ENDED, 90)
        assert task.result() == count * (count - 1) // 2
        kinds = Counter(type(event) for event in task.events())
    assert kinds[ChildSpawned] == kinds[SignalReceived] == count
    assert sum(kinds.values()) <= 4 * count + 50
    assert max(threads) <= 3 * 64, "a child that waits for its turn has no thread, nor has one that has ended"


# ------------------------------------------------------------------ C05

ENDING = """
    import sys
    from actors import AgentSystem, FailTask, agent, receive, spawn_child, step
    from stores import open_store
    from stores.crash import CrashingStore, CrashPlan
    from tests.scenario_kit import answer, die, effect, say

    nth, url = int(sys.argv[1]), sys.argv[2]

    @step
    def work(what):
        effect(what)

    @agent
    def waiting():
        work("waited")
        receive("never")

    @agent
    def working():
        work("worked")

    @agent
    def parent():
        spawn_child(waiting, on_parent_end="cancel")
        spawn_child(working, on_parent_end="wait")
        spawn_child(waiting, on_parent_end="abandon")
        raise FailTask("on purpose")

    plan = CrashPlan(nth or None, die=die)
    with open_store(url) as disk, AgentSystem(CrashingStore(disk, plan), strikes=None) as system:
        say(answer(system.spawn(parent, id="parent")))
        say(len(plan.points))
"""


def test_wherever_it_is_killed_a_parent_ends_with_what_each_policy_owes(world: World, seeds: range) -> None:
    """C05: one child each to be called off, waited for and left alone; killed at boundaries of all three kinds."""
    program = world.write(ENDING)
    for nth in range(3, 45, 42 // (2 * len(seeds))):
        world.use(f"{nth}.db")
        ended = world.start(program, nth, world.url)
        assert ended.code() in (0, KILLED), ended.errors
        assert world.run(program, 0, world.url).splitlines()[0] == "TaskFailedError"
        with open_store(world.url) as disk:
            tell_all(disk)
            check_families(disk)
            called_off, awaited, alone = children_of(disk, "parent")
            tasks = logs(disk)
            assert tasks[called_off].cancel is not None
            assert tasks[awaited].status == "completed"
            assert tasks[alone].cancel is None


# ------------------------------------------------------------------ one command

RUN = """
    from actors import agent, spawn_child, step
    from tests.scenario_kit import die_once, effect

    @step
    def work(number):
        effect("work", number)
        if number == 2:
            die_once("two")
        return number

    @agent
    def child(number):
        return work(number)

    @agent
    def parent():
        return [spawn_child(child, number).result() for number in range(4)]
"""


def test_the_command_that_runs_one_task_runs_its_children_too_killed_and_started_again(world: World) -> None:
    world.write(RUN, "family.py")
    words = ("run", "family.py:parent", "--id", "family")
    world.perdure(*words).end(KILLED)
    assert json.loads(world.perdure(*words).end()) == [0, 1, 2, 3]
    assert Counter(line.note for line in world.ledger("work")) == {0: 1, 1: 1, 2: 2, 3: 1}
