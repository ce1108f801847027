"""`perdure worker` in one process: what it runs and what it tells."""

from __future__ import annotations

import os
import re
import signal

from actors.appender import Appender
from tests.scenario_kit import World
from tests.shell import agent_named

AGENTS = """
    from actors import agent, step

    @step(retries=0)
    def refuse():
        raise ConnectionError("no route")

    @agent(on_failure="hold")
    def holding():
        refuse()

    @agent
    def buggy():
        raise KeyError("a bug")

    @agent
    def echo(text):
        print("echo of", text)
        return text
"""

MORE = """
    from actors import agent

    @agent(aliases=("b",))
    def a():
        return "a"

    @agent
    def c():
        return "c"

    @agent
    def d():
        return "d"
"""


def test_a_worker_runs_what_is_open_and_what_comes_of_all_its_modules(world: World) -> None:
    world.write(AGENTS, "agents.py")
    world.write(MORE, "more.py")
    with world.client() as client:
        early = client.spawn(agent_named("echo"), "early")
        worker = world.perdure("worker", "agents.py", "more")
        assert early.result(timeout=30) == "early"
        assert client.spawn(agent_named("echo"), "late").result(timeout=30) == "late"
        assert client.spawn(agent_named("c")).result(timeout=30) == "c"
        stranger = client.spawn(agent_named("nobody's"))
        assert stranger.status() == "queued"
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.end(143) == "echo of early\necho of late", "what a body prints goes where it always goes"
    opening, stopped = worker.errors.splitlines()
    assert re.fullmatch(
        rf"perdure: {re.escape(world.url)} · 1 task open · worker w\w{{12}} \(pid {worker.pid}\)"
        r" runs a, b, buggy, c, d and 2 more",
        opening,
    )
    assert stopped == "stopped   the same command again goes on where it was"


def test_crashes_and_holds_are_told_as_they_come(world: World) -> None:
    """Also of a task that was started three times, and whose worker died each time, when it is claimed."""
    world.write(AGENTS, "agents.py")
    with world.client() as client:
        for name in ("holding", "buggy", "echo"):
            client.spawn(agent_named(name), id=name)
        for death in range(3):
            Appender(client.log, client.log.load("echo")).append(
                lambda task, now, death=death: task.activate(now, worker=f"dead{death}", token="t", limit=None)
            )
        worker = world.perdure("worker", "agents.py")
        worker.complain("perdure: task holding is held: failed: step 1 refuse: ConnectionError: no route")
        worker.complain("perdure: task buggy: agent buggy crashed at ", 3)
        worker.complain("held after 3 crashes in a row")
        worker.complain("perdure: task echo is held: 3 crashes in a row, before its first step")
        os.kill(worker.pid, signal.SIGTERM)
        worker.end(143)
        assert {task.status() for task in client.tasks()} == {"held"}
