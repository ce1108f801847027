"""Signals of a command, as real ones that come to real processes."""

from __future__ import annotations

import os
import signal

import pytest

from tests.patient import patient
from tests.scenario_kit import World

NOW = 5
"""Seconds that "at once" may take on a machine that is busy with something else."""

TWO_AT_ONCE = """
    import sys
    import threading
    from actors.leaving import Signals
    from tests.scenario_kit import hear, say

    threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()
    signals = Signals(patient=True)
    signals.install()
    with signals.in_good_order():
        for _ in range(20):
            signals.received = None
            say("ready")
            while signals.received is None:
                signals.wait()
        say("woken each time")
        hear()
"""


def test_of_two_signals_at_once_the_one_that_waits_is_woken(world: World) -> None:
    """The kernel may give both to another thread; then nothing interrupts what the main thread waits in."""
    program = world.start(world.write(TWO_AT_ONCE))
    for _ in range(20):
        assert program.hear() == "ready"
        os.kill(program.pid, signal.SIGINT)
        os.kill(program.pid, signal.SIGTERM)
    assert program.hear() == "woken each time"
    program.say("bye")
    program.end()


LEFT_BEHIND = """
    import multiprocessing
    import os
    from concurrent.futures import ThreadPoolExecutor
    from actors import agent, step
    from tests.scenario_kit import pass_door

    def wait(begun):
        os.write(begun, b"!")
        pass_door("shut")

    @step
    def fork_and_terminate():
        has_begun, begun = os.pipe()
        child = multiprocessing.get_context("fork").Process(target=wait, args=[begun])
        child.start()
        os.read(has_begun, 1)
        child.terminate()
        child.join(20)
        return child.exitcode

    @step
    def leave_a_thread():
        ThreadPoolExecutor().submit(pass_door, "shut")

    @agent(name="patient")
    def careless(_door):
        leave_a_thread()
        return fork_and_terminate()
"""


def test_what_a_body_has_forked_or_left_behind_keeps_nobody(world: World) -> None:
    """A child gets its signals as if they had never been handled; a thread for which Python waits at its end hangs."""
    world.write(LEFT_BEHIND, "careless.py")
    world.shut_door("shut")
    with world.client() as client:
        program = world.perdure("worker", "careless.py")
        assert client.spawn(patient, "shut").result(timeout=30) == -signal.SIGTERM
    os.kill(program.pid, signal.SIGTERM)
    program.end(143, timeout=NOW)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_signal_before_any_work_leaves_at_once(world: World, processes: str) -> None:
    world.shut_door("shut")
    world.write("from tests.scenario_kit import *\nsay('imports')\npass_door('shut')", "long.py")
    program = world.perdure("worker", "long.py", "--processes", processes)
    assert program.hear() == "imports"
    os.kill(program.pid, signal.SIGTERM)
    program.end(143, timeout=NOW)


def test_a_signal_that_was_ignored_from_the_start_stays_so(world: World) -> None:
    program = world.start(
        world.write(
            "import signal, sys\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "from actors.cli import main\n"
            "sys.argv[1:] = ['worker', 'tests.patient', '--store', 'sqlite:///tasks.db']\n"
            "main()"
        )
    )
    program.complain("runs patient")
    os.kill(program.pid, signal.SIGINT)
    with world.client() as client:
        world.shut_door("open")
        world.open_door("open")
        assert client.spawn(patient, "open").result(timeout=30) == "open"
    os.kill(program.pid, signal.SIGTERM)
    program.end(143, timeout=NOW)
    assert "stopped" in program.errors
