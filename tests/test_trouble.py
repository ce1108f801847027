"""A store in trouble under a running system: told, waited for, nothing lost, no body run again, and on it goes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from actors import AgentSystem, agent, heartbeat, receive, sleep, step
from domain.events import Held, Restarted, StepStarted, StepSucceeded
from stores import StoreUnavailableError, open_store
from tests.scenario_kit import World
from tests.troubles import LIKE_ANYBODY, TROUBLES, FullDisk, Trouble, integrity

SOON = 30.0
BIG = 100_000
"""Characters of a result: more than there is room for, wherever a file has room left."""

bodies: list[str] = []
gates: dict[str, tuple[threading.Event, threading.Event]] = {}


@step
def make(name: str) -> str:
    bodies.append(name)
    if name in gates:
        entered, go_on = gates[name]
        entered.set()
        heartbeat("half")
        assert go_on.wait(SOON)
    return name * BIG


@agent(name="in-trouble")
def work(name: str) -> int:
    return sum(len(make(f"{name}{number}")) for number in range(3))


@agent(name="asleep-in-trouble")
def asleep() -> int:
    sleep(0.2)
    return len(make("s"))


@agent(name="told-in-trouble")
def told() -> str:
    return str(receive("news"))


@pytest.fixture(params=TROUBLES)
def trouble(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trouble]:
    bodies.clear()
    gates.clear()
    with TROUBLES[request.param](tmp_path) as trouble:
        yield trouble


def until(condition: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    for _ in range(int(SOON * 100)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError(f"it never came about: {what}")


def test_what_runs_in_a_trouble_is_stored_when_it_ends_and_no_body_runs_again(
    trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    entered, go_on = gates["a0"] = threading.Event(), threading.Event()
    with open_store(trouble.url) as store, AgentSystem(store) as system:
        tasks = {
            "a": system.spawn(work, "a", id="a"),
            "s": system.spawn(asleep, id="s"),
            "t": system.spawn(told, id="t"),
        }
        assert entered.wait(SOON)
        until(lambda: tasks["t"].status() == "waiting", "told waits for its news")
        trouble.begin(store)
        callers = [
            threading.Thread(target=partial(system.spawn, work, "l", id="l")),
            threading.Thread(target=partial(tasks["t"].signal, "news", "x" * BIG)),
        ]
        for caller in callers:
            caller.start()
        go_on.set()
        until(lambda: trouble.words in caplog.text, f"{trouble.words!r} is said")
        assert tasks["a"].status() == "running"  # who reads, reads on
        trouble.end()
        for caller in callers:
            caller.join(SOON)
        late = system.task("l")
        assert [tasks["a"].result(SOON), late.result(SOON)] == [6 * BIG, 6 * BIG]
        assert [tasks["s"].result(SOON), tasks["t"].result(SOON)] == [BIG, "x" * BIG]
        logs = {ref.id: ref.events() for ref in (*tasks.values(), late)}
    assert sorted(bodies) == ["a0", "a1", "a2", "l0", "l1", "l2", "s"]
    for log in logs.values():
        assert [event.originator_version for event in log] == list(range(1, len(log) + 1))
        assert not [event for event in log if isinstance(event, Held | Restarted)]
        steps = [event for event in log if isinstance(event, StepStarted | StepSucceeded)]
        assert [event.attempt for event in steps] == [1] * len(steps)
    assert integrity(trouble.url) == [("ok",)]


@pytest.mark.parametrize("old", [True, False], ids=["a store that is there", "a new store"])
def test_on_a_full_disk_nothing_opens_and_nothing_is_spoilt(tmp_path: Path, old: bool) -> None:
    bodies.clear()
    with FullDisk(tmp_path) as disk:
        if old:
            with AgentSystem(disk.url) as system:
                system.spawn(work, "o", id="old").result(SOON)
        disk.begin(None)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match=r"tasks\.db: (database or disk is full|disk I/O error)"):
                AgentSystem(disk.url).__enter__()
        disk.end()
        with AgentSystem(disk.url) as system:
            assert system.spawn(work, "n", id="new").result(SOON) == 6 * BIG
            assert sorted(task.id for task in system.tasks()) == (["new", "old"] if old else ["new"])
        assert integrity(disk.url) == [("ok",)]
    assert sorted(bodies) == (["n0", "n1", "n2", "o0", "o1", "o2"] if old else ["n0", "n1", "n2"])


READER = f"""{LIKE_ANYBODY}
    import sys
    from actors import AgentSystem, StoreUnavailableError, agent, step
    from tests.scenario_kit import effect, say

    @step
    def stride(number):
        effect("stride", number)
        return number

    @agent
    def walk():
        return stride(1) + stride(2)

    try:
        with AgentSystem(sys.argv[1]) as system:
            say("open")
            say(system.spawn(walk, id="walk").result(30))
    except StoreUnavailableError as error:
        say(error)
"""


def make_writable(world: World) -> bool:
    """Do `chmod u+w tasks.db*`: what SQLite makes beside the file is read-only with it, and comes and goes."""
    for file in (world.file, *world.folder.glob("tasks.db-*")):
        with suppress(FileNotFoundError):
            file.chmod(0o644)
    return True


def test_a_file_that_is_read_only_is_told_and_waited_for_and_on_it_goes_when_it_may_be_written(world: World) -> None:
    open_store(world.url).close()
    world.file.chmod(0o444)
    program = world.start(world.write(READER), world.url)
    assert program.hear() == "open"
    program.complain("waiting for the store, nothing is lost meanwhile")
    assert f"{world.file}: attempt to write a readonly database" in program.errors
    with world.client() as client:
        assert client.tasks() == []
    until(lambda: make_writable(world) and bool(world.ledger()), "a step runs")
    assert program.hear() == "3"
    program.end()
    assert [(line.note, line.attempt) for line in world.ledger()] == [(1, 1), (2, 1)]


KEEPER = f"""{LIKE_ANYBODY}
    import os, sys
    from glob import glob
    from stores import StoreUnavailableError, open_store
    from tests.scenario_kit import say

    file, kept = sys.argv[1], []
    with open_store(f"sqlite:///{{file}}") as store:
        for mode in (0o444, 0o644):
            for name in glob(f"{{file}}*"):
                if os.path.isfile(name):
                    os.chmod(name, mode)
            for _ in range(3):
                try:
                    store.recorder.save_beat("w", 1, 1.0)
                except StoreUnavailableError as error:
                    kept.append(error)
        say(len(kept), sorted(store.recorder.select_beats()))
    say([name for name in map(os.path.realpath, glob("/proc/self/fd/*")) if name.startswith(file)])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is open is read from /proc")
def test_who_keeps_the_error_of_a_write_does_not_keep_the_file_open(world: World) -> None:
    open_store(world.url).close()
    world.file.chmod(0o444)
    assert world.run(world.write(KEEPER), world.file).splitlines() == ["3 ['w']", "[]"]


def test_a_file_in_a_folder_that_is_read_only_is_unavailable_with_the_reason_and_opens_later(world: World) -> None:
    open_store(world.url).close()
    program = world.write(READER)
    world.folder.chmod(0o555)
    try:
        said = world.run(program, world.url)
    finally:
        world.folder.chmod(0o755)
    assert str(world.file) in said
    assert "unable to open database file" in said or "readonly" in said
    assert world.run(program, world.url).splitlines() == ["open", "3"]
