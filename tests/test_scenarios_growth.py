"""Scenarios about long logs: P20 five thousand steps."""

from __future__ import annotations

import json

import pytest

from tests.scenario_kit import KILLED, World
from tests.scenario_postgres import on_both

CLIMB = """
    import json
    import resource
    import sys
    from time import perf_counter
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, die_once, hear, say

    took, entered = [], []

    @step
    def climb(number):
        entered.append(number)
        took.append(perf_counter())
        return "x" * 200

    @agent
    def climber():
        for number in range(5000):
            climb(number)
            if number == 999:
                say("a fifth")
                hear()
        if "kill" in sys.argv:
            spans = [after - before for before, after in zip(took, took[1:])]
            first, last = sorted(spans[:100]), sorted(spans[-100:])
            say(json.dumps([first[10], last[10]]))  # near the fastest: what the others on this machine take is left out
            hear()
            die_once("top")
        return len(entered)

    with AgentSystem(STORE) as system:
        system.tasks()
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, perf_counter()
        again = system.spawn(climber, id="climber").result(300)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        say(json.dumps([again, perf_counter() - began, grown / 1024]))
"""


@on_both
@pytest.mark.timeout(600)
def test_five_thousand_steps_cost_what_they_cost_at_first_and_come_back_in_seconds(world: World) -> None:
    """P20: growth of the store, of the time an append takes, and of memory; and no effect is repeated."""
    program = world.write(CLIMB)
    climber = world.start(program, "kill")
    assert climber.hear() == "a fifth"
    fifth = world.size()
    climber.say("go on")
    first, last = json.loads(climber.hear(300))
    assert last <= 3 * first
    assert world.size() <= 5.5 * fifth
    climber.say("die")
    climber.end(KILLED)
    again = world.start(program)
    assert again.hear() == "a fifth"
    again.say("go on")
    entered, seconds, megabytes = json.loads(again.hear())
    assert entered == 0
    assert seconds < 10
    assert megabytes < 64
    again.end()
    with world.client() as client:
        assert len(client.task("climber").events()) == 1 + 2 + 2 * 5000 + 1
