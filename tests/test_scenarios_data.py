"""Scenarios about what is stored: P07 a record that cannot be read, P17 exceptions that cannot be handled."""

from __future__ import annotations

import json

import pytest

from actors import TaskFailedError, TaskHeldError, TaskView, UnreadableTaskError
from domain.events import Held, Restarted, TaskEvent
from tests.scenario_kit import KILLED, Program, World
from tests.scenario_postgres import on_both

TRIPLES = """
    import json
    import sys
    from threading import Barrier, Event
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, TIMEOUT, answer, die, effect, hear, say

    mode = sys.argv[1]
    all_are_here, reached = Barrier(4), Event()

    @step
    def go(number, what):
        effect(what, number)
        if (number, what) == (2, "third"):
            reached.set()
        return f"{what} of {number}"

    @agent
    def triple(number):
        answers = [go(number, "first"), go(number, "second")]
        if mode == "stop":
            all_are_here.wait(TIMEOUT)
            die()
        return [*answers, go(number, "third")]

    with AgentSystem(STORE) as system:
        if mode in ("stop", "spawn"):
            for number in range(4):
                system.spawn(triple, number, id=f"triple-{number}")
        say(json.dumps([answer(system.task(f"triple-{number}")) for number in (0, 1, 3)]))
        if mode == "mended":
            assert reached.wait(TIMEOUT)
            say(json.dumps(answer(system.task("triple-2"))))
        hear()
"""
SPOILT, SECOND_COMPLETION = "triple-2", 6
DONE = [[f"{what} of {number}" for what in ("first", "second", "third")] for number in range(4)]
OTHERS = [DONE[0], DONE[1], DONE[3]]


PLACES: dict[str, int | None] = {"checksum": 0, "token": 8, "value": None, "end": -4}


def stop_and_spoil(world: World, place: str = "value") -> tuple[list[tuple[int, bytes]], int]:
    """Stop four tasks after two of three steps, spoil 4 bytes of one, and give its rows, and where it was done."""
    world.run(world.write(TRIPLES), "stop", code=KILLED)
    assert [line.effect for line in world.ledger(task=SPOILT)] == ["first", "second"]
    row = dict(world.rows(SPOILT))[SECOND_COMPLETION]
    at = PLACES[place]
    at = row.index(b"second of 2") if at is None else at
    world.flip(SPOILT, SECOND_COMPLETION, at)
    return world.rows(SPOILT), at


def start_worker(world: World, mode: str = "work") -> Program:
    """Start a worker that stays, and wait until the three others have completed."""
    worker = world.start(world.folder / "program.py", mode)
    assert json.loads(worker.hear()) == OTHERS
    return worker


def stop(worker: Program) -> None:
    worker.say("")
    worker.end()


def check_held(world: World, rows: list[tuple[int, bytes]]) -> None:
    """Hold the store to this: held, with task and version named, nothing written, no effect."""
    with world.client() as client:
        task = client.task(SPOILT)
        with pytest.raises(TaskHeldError, match=rf"{SPOILT}.* version {SECOND_COMPLETION} ") as held:
            task.result(timeout=5)
        assert held.value.reason == "unreadable"
        assert [each.id for each in client.tasks(status="held")] == [SPOILT]
        with pytest.raises(UnreadableTaskError) as unreadable:
            task.release(by="operator")
        assert (unreadable.value.task_id, unreadable.value.version) == (SPOILT, SECOND_COMPLETION)
        assert task.status() == "held"
    assert world.rows(SPOILT) == rows
    assert [line.effect for line in world.ledger(task=SPOILT)] == ["first", "second"]


@on_both
@pytest.mark.parametrize("place", PLACES)
def test_a_task_with_an_unreadable_record_is_held_untouched_and_goes_on_when_mended_and_released(
    world: World, place: str
) -> None:
    """P07: 4 bytes of one row of one task; the others complete; put back and released under a running worker."""
    rows, at = stop_and_spoil(world, place)
    worker = start_worker(world)
    check_held(world, rows)
    world.flip(SPOILT, SECOND_COMPLETION, at)
    with world.client() as client:
        client.task(SPOILT).release(by="operator")
        assert client.task(SPOILT).result(timeout=20) == DONE[2]
    stop(worker)
    effects = [(line.effect, line.attempt) for line in world.ledger(task=SPOILT)]
    assert effects == [("first", 1), ("second", 1), ("third", 1)]


@on_both
def test_an_unreadable_record_is_looked_at_again_whenever_a_worker_starts(world: World) -> None:
    """P07: still spoilt, it stays held and untouched; mended, it goes on with no word from anyone."""
    rows, at = stop_and_spoil(world)
    for _ in range(3):
        worker = start_worker(world)
        check_held(world, rows)
        stop(worker)
    world.flip(SPOILT, SECOND_COMPLETION, at)
    worker = start_worker(world, "mended")
    assert json.loads(worker.hear()) == DONE[2]
    stop(worker)
    assert [line.effect for line in world.ledger(task=SPOILT)] == ["first", "second", "third"]


def test_a_worker_says_once_what_it_cannot_read(world: World) -> None:
    """P07: one error in the log of the worker that met it, naming task and version; not one a look."""
    stop_and_spoil(world)
    worker = start_worker(world)
    with world.client() as client, pytest.raises(TaskHeldError):
        client.task(SPOILT).result(timeout=20)
    stop(worker)
    assert worker.errors.count(f"task {SPOILT}: version {SECOND_COMPLETION} of its log cannot be read") == 1


@on_both
def test_the_same_program_that_spawns_all_four_again_is_not_stopped_by_the_unreadable_one(world: World) -> None:
    """P07: restarted with the same code and the same words, the three others complete."""
    rows, _ = stop_and_spoil(world)
    worker = start_worker(world, "spawn")
    check_held(world, rows)
    stop(worker)


AWKWARD = """
    import json
    import sys
    from threading import Lock
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, answer, effect, say

    class AwkwardError(Exception):
        def __init__(self, code, reason):
            super().__init__(f"code {code}: {reason}")
            self.lock = Lock()
            self.__cause__ = self

    class SilentError(AwkwardError):
        def __str__(self):
            raise RuntimeError("not to be printed")

    class SlipperyError(AwkwardError):
        __hash__ = None

        def __getattr__(self, name):
            raise RuntimeError(name)

        def __reduce__(self):
            raise RuntimeError("not to be pickled")

        def __eq__(self, other):
            raise RuntimeError("not to be compared")

    class WordyError(AwkwardError):
        def __str__(self):
            return "code 7: " + "word " * 1_000_000 + "the end"

    def awkward(kind=AwkwardError):
        return kind(7, "the pump")

    def ring():
        first, second = awkward(), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        return first

    def deep():
        first = error = awkward()
        for number in range(5_000):
            error.__cause__ = ValueError(f"cause {number}")
            error = error.__cause__
        return first

    def crowd():
        error = awkward()
        error.__cause__ = ExceptionGroup("crowd", [awkward(), ExceptionGroup("inner", [ring()])])
        return error

    def silent():
        return awkward(SilentError)

    def slippery():
        return awkward(SlipperyError)

    def wordy():
        return awkward(WordyError)

    @step
    def pump(make):
        effect("pump")
        raise globals()[make]()

    @agent
    def in_step(make):
        pump(make)

    @agent
    def between_steps(make):
        raise globals()[make]()

    AGENTS = (in_step, between_steps)

    with AgentSystem(STORE) as system:
        makers = json.loads(sys.argv[1])
        tasks = [system.spawn(each, make, id=f"{make} {each.name}") for make in makers for each in AGENTS]
        say(json.dumps([answer(task) for task in tasks]))
"""
MAKERS = {
    "awkward": "AwkwardError",
    "ring": "AwkwardError",
    "deep": "AwkwardError",
    "crowd": "AwkwardError",
    "silent": "SilentError",
    "slippery": "SlipperyError",
    "wordy": "WordyError",
}


def test_whatever_is_raised_is_recorded_and_read_elsewhere_and_asking_runs_nothing(world: World) -> None:
    """P17: two arguments, a lock, its own cause, and worse; asked for by a process that has not the class."""
    program = world.write(AWKWARD)
    for _ in range(2):
        said = json.loads(world.run(program, json.dumps(list(MAKERS))))
        assert said == ["TaskFailedError", "TaskHeldError"] * len(MAKERS)
        assert world.count("pump") == len(MAKERS)
    with world.client() as client:
        assert len(client.tasks(status="failed")) == len(client.tasks(status="held")) == len(MAKERS)
        for make, kind in MAKERS.items():
            with pytest.raises(TaskFailedError, match=kind) as failed:
                client.task(f"{make} in_step").result(timeout=5)
            assert failed.value.fault.kind == kind
            check_failure(client.task(f"{make} in_step").describe(), kind)
            check_crashes(client.task(f"{make} between_steps").events(), kind)
            assert kind in client.task(f"{make} between_steps").describe().why
    assert world.count("pump") == len(MAKERS)


def check_failure(view: TaskView, kind: str) -> None:
    """Hold a failure to this: class, message, the trace with the raising line, and an end."""
    fault = view.fault
    assert fault is not None
    assert fault.is_a(kind)
    assert fault.is_a("Exception")
    assert ("cannot be printed" if kind == "SilentError" else "code 7") in fault.message
    assert "raise globals()[make]()" in fault.traceback
    assert "in pump" in fault.traceback
    assert len(fault.causes) <= 10
    assert len(fault.message) + len(fault.traceback) + sum(map(len, fault.causes)) < 40_000


def check_crashes(events: list[TaskEvent], kind: str) -> None:
    """Hold crashes of agent code to this: each is in the log with its class."""
    errors = [event.error for event in events if isinstance(event, Restarted)]
    errors += [event.details["error"] for event in events if isinstance(event, Held)]
    assert [error["kinds"][0].rpartition(":")[2] for error in errors] == [kind] * 3
