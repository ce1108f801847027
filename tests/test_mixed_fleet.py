"""An old and a new worker share a store, as in every deploy: what one of them cannot follow, the other does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lives import wait_for
from tests.scenario_kit import KILLED, Program, World

WORKER = """
    import sys
    from threading import Event
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, answer, die_once, effect, hear, say

    go = Event()

    def make(name):
        def body(given="", /):
            effect(name, given)
            return given + name
        body.__qualname__ = name
        return step(body)

    a, b, c, x = (make(name) for name in ("a", "b", "c", "x"))

    @agent
    def chain():
        {body}

    @step
    def sit():
        say("busy")
        go.wait()

    @agent
    def keep_busy():
        sit()

    with AgentSystem(STORE, max_active=1) as system:
        if "first" in sys.argv:
            answer(system.spawn(chain, id="chain"))
        if "busy" in sys.argv:
            system.spawn(keep_busy)
        else:
            say("ready")
        for order in iter(hear, ""):
            if order == "go":
                go.set()
            elif order == "answer":
                say(answer(system.task("chain")))
"""
OLD = WORKER.replace("{body}", 'given = b(a()); die_once("after b"); return c(given)')
NEW = WORKER.replace("{body}", "given = a(); x(); return c(b(given))")


@pytest.fixture
def fleet(world: World) -> Iterator[tuple[Program, Program]]:
    """Two workers; the old one is busy, so that the new one has held a task that died after its step b."""
    release = world.write(OLD, "old.py")
    old = world.start(release, "busy")
    assert old.hear() == "busy"
    world.run(release, "first", code=KILLED)
    new = world.start(world.write(NEW, "new.py"))
    assert new.hear() == "ready"
    wait_for(lambda: status(world) == "held")
    yield old, new
    for worker in (old, new):
        worker.say("")
        worker.end()


def status(world: World) -> str:
    with world.client() as client:
        return client.task("chain").status()


def done_once(world: World) -> bool:
    return [(line.effect, line.attempt) for line in world.ledger()] == [("a", 1), ("b", 1), ("c", 1)]


def test_a_task_that_the_new_worker_holds_is_taken_by_the_old_one_as_soon_as_it_has_a_place(
    world: World, fleet: tuple[Program, Program]
) -> None:
    fleet[0].say("go")
    wait_for(lambda: status(world) == "completed")
    assert done_once(world)
    for worker in fleet:
        worker.say("answer")
        assert worker.hear() == "abc"


def test_a_release_is_left_to_the_worker_whose_code_may_fit_and_tried_by_the_other_if_that_has_no_place(
    world: World, fleet: tuple[Program, Program]
) -> None:
    with world.client() as client:
        client.task("chain").release(by="me")
        wait_for(lambda: client.task("chain").status() == "held")
        *_, released, _activated, held = client.task("chain").events()
    assert held.timestamp - released.timestamp >= 2.0
    fleet[0].say("go")
    wait_for(lambda: status(world) == "completed")
    assert done_once(world)


def test_who_waits_at_the_worker_that_can_go_on_gets_the_result_and_no_hold(
    world: World, fleet: tuple[Program, Program]
) -> None:
    fleet[0].say("go")
    fleet[0].say("answer")
    assert fleet[0].hear() == "abc"
    assert done_once(world)
