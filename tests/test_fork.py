"""Forked by accident: a child of a program that has an AgentSystem open, and its parent, which goes on unharmed."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.scenario_kit import World

FORK = """
    import asyncio
    import os
    import signal
    import sys
    from actors import AgentSystem, agent, step
    from stores import StoreForkedError
    from tests.scenario_kit import STORE, TIMEOUT, say

    @step
    def work(number):
        return number

    @agent
    def busy(count):
        return sum(work(number) for number in range(count))

    def in_child(system, task):
        signal.alarm(20)
        uses = [
            lambda: system.spawn(busy, 1),
            lambda: task.result(timeout=5),
            task.status,
            task.describe,
            task.events,
            task.release,
            system.tasks,
            lambda: asyncio.run(task.result_async(5)),
            lambda: AgentSystem(STORE).__enter__(),
        ]
        for use in uses:
            try:
                use()
            except StoreForkedError as error:
                assert "fork before the store is opened" in str(error), error
            else:
                say("no error")

    def check(pid):
        _, status = os.waitpid(pid, 0)
        say(os.waitstatus_to_exitcode(status))
"""

AROUND_IT = """
    with AgentSystem(STORE, run=sys.argv[1] == "worker") as system:
        long = system.spawn(busy, 300, id="long")
        for end in ("end", "exit", "_exit", "error", "close") * 4:
            system.spawn(busy, 3, id=f"before-{os.urandom(4).hex()}")
            busy_lock = system.log._watching  # as if a thread had it that is not there in the child
            busy_lock.acquire()
            child = os.fork()
            if child:
                busy_lock.release()
                check(child)
                continue
            in_child(system, long)
            if end == "exit":
                sys.exit(3)
            if end == "_exit":
                os._exit(4)
            if end == "error":
                sys.stderr.close()
                raise ValueError
            if end == "close":
                system.close()
                asyncio.run(system.close_async())
                os._exit(5)
            break
        else:
            if system._tree is not None:
                lock, = system.log.store.workers.live()
                say(lock == system._tree.worker.id)
                say(long.result(TIMEOUT), *[task.result(TIMEOUT) for task in system.tasks()][1:4])
            else:
                say(len(system.tasks()))
"""


@pytest.mark.parametrize("role", ["worker", "client"])
def test_a_child_gets_a_clear_error_for_each_use_and_ends_in_any_way_at_once(world: World, role: str) -> None:
    said = world.run(world.write(dedent(FORK) + dedent(AROUND_IT)), role).splitlines()
    assert said[:20] == ["0", "3", "4", "1", "5"] * 4
    assert said[20:] == (["True", "44850 3 3 3"] if role == "worker" else ["21"])
    check_sound(world)


IN_A_BODY = """
    import multiprocessing

    @step
    def forks(end):
        if end == "multiprocessing":
            child = multiprocessing.get_context("fork").Process(target=in_child, args=(system, long))
            child.start()
            child.join(20)
            return child.exitcode
        child = os.fork()
        if child:
            return check(child)
        in_child(system, long)
        if end == "exit":
            sys.exit(3)
        if end == "_exit":
            os._exit(4)
        if end == "error":
            raise ValueError
        return "of the child"

    def check(pid):
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)

    @agent
    def forker(end):
        return forks(end)

    with AgentSystem(STORE) as system:
        long = system.spawn(busy, 300, id="long")
        for end in ("end", "exit", "_exit", "error", "multiprocessing"):
            say(end, system.spawn(forker, end, id=end).result(TIMEOUT))
        say(long.result(TIMEOUT))
"""


def test_a_child_that_the_body_of_a_step_has_forked_writes_nothing_however_it_ends(world: World) -> None:
    """It unwinds the agent that it has a copy of, without a trace; what it exits with is nobody's outcome."""
    said = world.run(world.write(dedent(FORK) + dedent(IN_A_BODY))).splitlines()
    assert said == ["end 0", "exit 0", "_exit 4", "error 0", "multiprocessing 0", "44850"]
    with world.client() as client:
        for task in client.tasks(agent="forker"):
            assert [event.TOPIC for event in task.events()] == [
                "task.created", "task.activated", "step.started", "step.succeeded", "task.completed",
            ]  # fmt: skip
    check_sound(world)


def check_sound(world: World) -> None:
    with world.database() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_system_in_memory_is_not_shared_either(world: World) -> None:
    program = world.write(
        """
        import os
        from actors import AgentSystem
        from stores import StoreForkedError

        with AgentSystem("memory:") as system:
            child = os.fork()
            if not child:
                try:
                    system.tasks()
                except StoreForkedError:
                    os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert system.tasks() == []
        """
    )
    world.run(program)
