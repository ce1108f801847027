"""`perdure worker --processes N`: a parent and its worker processes, which die in every way."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from tests.lives import wait_for
from tests.patient import patient
from tests.scenario_kit import ROOT, TIMEOUT, Program, World

NOW = 5
"""Seconds that "at once" may take on a machine that is busy with something else."""


def at_work(program: Program, count: int) -> dict[str, int]:
    """Wait until so many have said that they are at work, the dead included; give their processes by worker."""
    program.complain(" runs patient", count)
    return {name: int(pid) for name, pid in re.findall(r"worker (w\w+) \(pid (\d+)\) runs", program.errors)}


def stop(program: Program) -> None:
    os.kill(program.pid, signal.SIGTERM)
    program.end(143, timeout=NOW)


def test_a_process_that_is_killed_is_told_of_and_replaced_and_its_task_goes_on(world: World) -> None:
    world.shut_door("front")
    with world.client() as client:
        task = client.spawn(patient, "front")
        program = world.perdure("worker", "tests.patient", "--processes", "2")
        workers = at_work(program, 2)
        assert f"perdure: 2 worker processes, their parent is pid {program.pid}\n" in program.errors
        wait_for(lambda: world.count("begins") == 1)
        victim = workers[task.describe().worker or ""]
        for death, delay in ((1, 0.1), (2, 0.2)):
            os.kill(victim, signal.SIGKILL)
            program.complain(f"(pid {victim}) was killed by SIGKILL; another in {delay} s")
            *_, victim = at_work(program, 2 + death).values()
        world.open_door("front")
        assert task.result(timeout=30) == "front"
    assert world.ledger("slow")[0].attempt > 1
    stop(program)


def test_what_cannot_begin_is_told_once_and_ends_the_command(world: World) -> None:
    program = world.perdure("worker", "nowhere.py", "--processes", "3")
    program.end(2)
    assert program.errors == f"perdure: there is no file nowhere.py in {world.folder}\n"


def test_one_that_cannot_begin_takes_none_along_that_is_at_work(world: World) -> None:
    """A file that is broken for a moment costs a worker, not all of them."""
    sound = "from tests.patient import *\n"
    file = world.write(sound, "fragile.py")
    program = world.perdure("worker", "fragile.py", "--processes", "2")
    victim, _ = at_work(program, 2).values()
    file.write_text("this is no Python\n")
    os.kill(victim, signal.SIGKILL)
    program.complain("fragile.py cannot be imported")
    program.complain("ended with exit code 2; another in 0.2 s")
    file.write_text(sound)
    at_work(program, 3)
    stop(program)


SLOW_TO_START = """
    import os
    from actors.cli import main

    os.environ["PYTHONPATH"] += ":slow"
    main()
"""


def test_a_ctrl_c_for_a_process_that_is_just_starting_leaves_no_traceback(world: World) -> None:
    world.shut_door("start")
    world.write(
        """
        import os
        import sys
        from tests.scenario_kit import pass_door

        print(f"process {os.getpid()} starts", file=sys.stderr, flush=True)
        pass_door("start")
        """,
        "slow/sitecustomize.py",
    )
    command = world.write(SLOW_TO_START)
    program = world.start(command, "worker", "tests.patient", "--processes", "2", "--store", world.url)
    program.complain(" starts\n")
    (starting,) = re.findall(r"process (\d+) starts", program.errors)
    os.kill(int(starting), signal.SIGINT)
    world.open_door("start")
    program.complain("ended with exit code 130; another in 0.1 s")
    at_work(program, 2)
    assert "Traceback" not in program.errors
    stop(program)


@pytest.mark.parametrize("heard", [False, True], ids=["before the first word", "with the first word unread"])
def test_a_process_whose_parent_dies_while_it_starts_leaves_in_good_order(world: World, *, heard: bool) -> None:
    ours, theirs = socket.socketpair()
    words = ["-m", "actors", "worker", "tests.patient", f"--lifeline={theirs.fileno()}", "--store", world.url]
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=world.folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
        text=True,
    )
    theirs.close()
    if heard:
        ours.settimeout(TIMEOUT)
        assert ours.recv(1, socket.MSG_PEEK)
    ours.close()
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 143, errors
    assert f"pid {process.pid}: the parent of this worker process is gone" in errors
    assert "Error" not in errors


IMPATIENT = """
    import actors.pool
    from actors.cli import main

    actors.pool.PATIENCE = 0.1
    main()
"""


def test_a_process_that_does_not_leave_is_killed(world: World) -> None:
    """Frozen, or kept busy by code that lets no other thread run. The folder has a package that hides one of ours."""
    world.write("", "domain/__init__.py")
    command = world.write(IMPATIENT, "bin/impatient.py")
    program = world.start(command, "worker", "tests.patient", "--processes", "2", "--grace", "0", "--store", world.url)
    frozen, _ = at_work(program, 2).values()
    os.kill(frozen, signal.SIGSTOP)
    stop(program)
    assert f"(pid {frozen}) has not left within its grace" in program.errors
    with world.client() as client:
        wait_for(lambda: not client.log.store.workers.live())
