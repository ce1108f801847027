"""Signals: kept once accepted, in order, each once; the log's order decides between a signal and a time."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest

from actors import (
    AgentSystem,
    FailTask,
    InsideTaskError,
    Signal,
    SignalConflictError,
    TaskEndedError,
    TaskError,
    Timer,
    UnknownTaskError,
    UnstorableValueError,
    agent,
    receive,
    step,
    wait_any,
    wait_any_async,
)
from actors.testing import CrashPlan, FakeClock, SimulatedCrash
from domain.events import SignalReceived, WaitBegan, WaitEnded
from stores import Store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, kinds, log, wait_for
from tests.scenario_kit import World
from tests.test_lines import bring
from tests.waiters import TOO_LATE, WAITERS, check_waits

BOTH = pytest.mark.parametrize("colour", ["sync", "async"])


def received(disk: Store) -> list[tuple[str, Any]]:
    return [(event.name, event.value) for event in log(disk) if isinstance(event, SignalReceived)]


# ------------------------------------------------------------------ kept, in order, once


@BOTH
def test_signals_of_a_name_come_in_the_order_of_the_log_also_those_that_came_before(disk: Store, colour: str) -> None:
    program = [["receive", name, None] for name in ("b", "a", "a", "b", "a")]
    with AgentSystem(disk, run=False) as client:
        task = client.spawn(WAITERS[colour], program, id="t")
        for number in range(3):
            task.signal("a", number)
        task.signal("b", "first")
    with AgentSystem(disk) as system:
        task = system.task("t")
        wait_for(lambda: task.status() == "waiting")
        task.signal("b", "second")
        assert task.result(PATIENCE) == ["first", 0, 1, "second", 2]
    check_waits(log(disk))


def test_a_signal_that_is_repeated_by_its_id_counts_once_also_after_the_end(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(WAITERS["sync"], [["receive", "a", None], ["receive", "a", 0]], id="t")
        for _ in range(3):
            task.signal("a", {"paid": 20}, signal_id="delivery-1")
        assert task.result(PATIENCE) == [{"paid": 20}, TOO_LATE]
        task.signal("a", {"paid": 20}, signal_id="delivery-1")
    assert received(disk) == [("a", {"paid": 20})]


@pytest.mark.parametrize(("name", "value"), [("a", 2), ("b", 1), ("a", True), ("a", 1.0)])
def test_another_signal_under_a_used_id_is_refused_and_changes_nothing(disk: Store, name: str, value: Any) -> None:
    with AgentSystem(disk, run=False) as client:
        task = client.spawn(WAITERS["sync"], [], id="t")
        task.signal("a", 1, signal_id="one")
        with pytest.raises(SignalConflictError, match="was used before, for a signal 'a'"):
            task.signal(name, value, signal_id="one")
        task.signal("a", 1)
        task.signal("a", 1)
    assert received(disk) == [("a", 1)] * 3


@agent(name="signals: fails")
def fails() -> None:
    raise FailTask("no")


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_an_ended_task_refuses_a_signal_and_names_its_ending(disk: Store, status: str) -> None:
    with AgentSystem(disk) as system:
        program: list[Any] = [["receive", "a", None]] if status == "cancelled" else []
        task = system.spawn(fails, id="t") if status == "failed" else system.spawn(WAITERS["sync"], program, id="t")
        if status == "cancelled":
            task.cancel()
        with pytest.raises(TaskError) if status != "completed" else nullcontext():
            task.result(PATIENCE)
        before = kinds(disk)
        with pytest.raises(TaskEndedError, match=f"has ended: {status}") as caught:
            task.signal("a")
        assert caught.value.status == status
        assert kinds(disk) == before


def test_there_is_no_task_to_signal(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client, pytest.raises(UnknownTaskError):
        client.task("nobody").signal("a")


def test_a_held_task_keeps_its_signals_for_when_it_is_released(disk: Store) -> None:
    @step(name="signals: held", on_doubt="hold")
    def risky() -> str:
        return "done"

    @agent(name="signals: held")
    def flow() -> Any:
        return [risky(), receive("a")]

    life = CrashingStore(disk, CrashPlan(1, "body.after"))
    with pytest.raises(SimulatedCrash), AgentSystem(life) as system:
        system.spawn(flow, id="t").result(PATIENCE)
    life.close()
    with AgentSystem(disk) as system:
        task = system.task("t")
        wait_for(lambda: task.status() == "held")
        task.signal("a", "kept")
        assert task.status() == "held"
        task.resolve("1", value="found", by="ann")
        assert task.result(PATIENCE) == ["found", "kept"]


@pytest.mark.parametrize("name", ["", "~answer 1", "a\n", "a" * 201, "\x00", 5, None])
def test_a_name_that_is_none_is_refused(disk: Store, name: Any) -> None:
    with AgentSystem(disk, run=False) as client:
        task = client.spawn(WAITERS["sync"], [], id="t")
        with pytest.raises(ValueError, match="the name of a signal has 1 to 200 printable characters"):
            task.signal(name)
        with pytest.raises(ValueError, match="the id of a signal has 1 to 200 characters"):
            task.signal("a", signal_id=name if name in ("", 5) else "a" * 201)
        with pytest.raises(UnstorableValueError):
            task.signal("a", threading.Lock())
    assert received(disk) == []


def test_an_agent_signals_others_in_a_step_and_not_between(disk: Store) -> None:
    @step(name="signals: tell")
    def tell(to: str) -> None:
        system.task(to).signal("a", f"to {to}", signal_id="1")

    @step(name="signals: tell async")
    async def tell_async(to: str) -> None:
        await system.task(to).signal_async("b", f"to {to}")

    @agent(name="signals: teller")
    def flow() -> str:
        tell("t")
        tell_async.sync("t")
        try:
            system.task("t").signal("a")
        except InsideTaskError as error:
            return str(error)
        return ""

    with AgentSystem(disk) as system:
        task = system.spawn(WAITERS["async"], [["receive", "a", None], ["receive", "b", None]], id="t")
        assert "would happen again at each replay" in system.spawn(flow).result(PATIENCE)
        assert task.result(PATIENCE) == ["to t", "to t"]


@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
def test_a_signal_whose_sender_dies_is_there_once_after_it_was_sent_again(disk: Store, point: str) -> None:
    with AgentSystem(disk, run=False) as client:
        client.spawn(WAITERS["sync"], [["receive", "a", None], ["receive", "a", 0]], id="t")
    life = CrashingStore(disk, CrashPlan(1, point))
    with pytest.raises(SimulatedCrash), AgentSystem(life, run=False) as client:
        client.task("t").signal("a", 1, signal_id="1")
    life.close()
    assert len(received(disk)) == (point == "append.after")
    with AgentSystem(disk) as system:
        system.task("t").signal("a", 1, signal_id="1")
        assert system.task("t").result(PATIENCE) == [1, TOO_LATE]


# ------------------------------------------------------------------ a signal and a time-out


class Meddling(CrashPlan):
    """Never dies; calls `meddle` once, before the append that ends a wait is on its way."""

    def __init__(self, meddle: Any) -> None:
        super().__init__(None)
        self._meddle = [meddle]

    def reach(self, point: str, **facts: Any) -> None:
        super().reach(point, **facts)
        if point == "append.before" and WaitEnded.TOPIC in facts["topics"] and self._meddle:
            self._meddle.pop()()


@BOTH
@pytest.mark.parametrize("program", [[["receive", "a", 100]], [["any", ["b", "a"], 100, None]]])
def test_a_signal_that_gets_into_the_log_before_the_time_out_beats_it(
    disk: Store, colour: str, program: list[Any]
) -> None:
    """The decision for the time is made, and not in the log yet: after the conflict it is decided again."""
    clock = FakeClock()
    life = CrashingStore(disk, Meddling(lambda: bring(disk, "t", [("a", "came")])))
    with AgentSystem(life, clock=clock) as system:
        task = system.spawn(WAITERS[colour], program, id="t")
        wait_for(lambda: task.status() == "waiting")
        clock.advance(100)
        assert task.result(PATIENCE) in (["came"], [[1, "came"]])
    life.close()
    check_waits(log(disk))


def test_a_time_out_that_is_in_the_log_stands_and_the_signal_is_kept(disk: Store) -> None:
    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(
            WAITERS["sync"], [["receive", "a", 100], ["receive", "b", None], ["receive", "a", 0]], id="t"
        )
        wait_for(lambda: task.status() == "waiting")
        clock.advance(100)
        wait_for(lambda: "WaitEnded" in kinds(disk))
        task.signal("a", "late")
        task.signal("b", "go on")
        assert task.result(PATIENCE) == [TOO_LATE, "go on", "late"]
    check_waits(log(disk))


@BOTH
def test_signals_and_time_outs_that_race_come_out_as_the_log_has_them(disk: Store, colour: str) -> None:
    clock, many = FakeClock(), 20
    with AgentSystem(disk, clock=clock) as system, AgentSystem(disk, run=False, clock=clock) as client:
        tasks = [
            system.spawn(WAITERS[colour], [["receive", "a", 10], ["receive", "a", 0]], id=f"t{n}") for n in range(many)
        ]
        wait_for(lambda: all(task.status() == "waiting" for task in tasks))
        late = list[str]()

        def send() -> None:
            for task in tasks:
                try:
                    client.task(task.id).signal("a", "came")
                except TaskEndedError:
                    late.append(task.id)

        sender = threading.Thread(target=send)
        sender.start()
        clock.advance(10)
        sender.join(PATIENCE)
        for task in tasks:
            values = task.result(PATIENCE)
            assert values in (["came", TOO_LATE], [TOO_LATE, "came"], [TOO_LATE, TOO_LATE])
            check_waits(task.events())
            accepted = any(isinstance(event, SignalReceived) for event in task.events())
            assert accepted == (task.id not in late)


def test_a_time_out_of_nothing_takes_what_is_there(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        client.spawn(WAITERS["sync"], [["receive", "a", 0], ["receive", "a", 0]], id="t").signal("a", 1)
    with AgentSystem(disk) as system:
        assert system.task("t").result(PATIENCE) == [1, TOO_LATE]


# ------------------------------------------------------------------ the first of several


@BOTH
def test_of_what_has_come_the_first_in_the_log_counts_and_the_rest_is_not_lost(disk: Store, colour: str) -> None:
    with AgentSystem(disk, run=False) as client:
        task = client.spawn(WAITERS[colour], [["any", ["a", "b"], 5, None]] * 3, id="t")
        task.signal("b", 1)
        task.signal("a", 2)
    clock = FakeClock(jump=True)
    with AgentSystem(disk, clock=clock) as system:
        assert system.task("t").result(PATIENCE) == [[1, 1], [0, 2], [2, None]]
    check_waits(log(disk))


@BOTH
def test_what_came_first_is_told_with_its_place_and_a_fresh_value(disk: Store, colour: str) -> None:
    def look(first: Any, again: Any) -> list[Any]:
        first.value.append("changed")
        return [first.index, first.awaited == Signal("b"), first.value, repr(first), again.awaited]

    @agent(name="signals: first")
    def flow() -> list[Any]:
        out = look(wait_any(Timer(500), Signal("b")), wait_any(Signal("c"), Timer(1)))
        return [*out[:4], out[4] == Timer(1)]

    @agent(name="signals: first async")
    async def flow_async() -> list[Any]:
        out = look(await wait_any_async(Timer(500), Signal("b")), await wait_any_async(Signal("c"), Timer(1)))
        return [*out[:4], out[4] == Timer(1)]

    with AgentSystem(disk, run=False) as client:
        client.spawn(flow if colour == "sync" else flow_async, id="t").signal("b", ["value"])
    with AgentSystem(disk, clock=FakeClock(jump=True)) as system:
        said = system.task("t").result(PATIENCE)
    assert said == [1, True, ["value"], "First(index=1, awaited=Signal(name='b'))", True]


@pytest.mark.parametrize(("seconds", "timeout", "what"), [(50, 10, TOO_LATE), (10, 50, [1, None]), (10, 10, [1, None])])
def test_of_times_that_have_passed_together_the_earliest_counts(
    disk: Store, seconds: float, timeout: float, what: Any
) -> None:
    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(WAITERS["sync"], [["any", ["a"], seconds, timeout]], id="t")
        wait_for(lambda: task.status() == "waiting")
    clock.advance(10_000)
    with AgentSystem(disk, clock=FakeClock(clock.now())) as system:
        assert system.task("t").result(PATIENCE) == [what]


# ------------------------------------------------------------------ from the command line


def test_the_command_brings_a_signal_and_refuses_it_for_a_task_that_has_ended(world: World) -> None:
    with AgentSystem(world.url) as system:
        task = system.spawn(WAITERS["sync"], [["receive", "paid", None]], id="t")
        wait_for(lambda: any(isinstance(event, WaitBegan) for event in task.events()))
        said = world.perdure("signal", "t", "paid", '{"amount": 20}', "--signal-id", "1").end()
        assert "t: signal paid accepted" in said
        assert task.result(PATIENCE) == [{"amount": 20}]
    late = world.perdure("signal", "t", "paid", "21")
    late.end(2)
    assert "has ended: completed" in late.errors


def test_what_is_brought_to_one_task_reads_only_what_is_new(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand signals cost a thousand reads of a row or two, and not of all that came before."""
    with AgentSystem(disk, run=False) as client:
        task = client.spawn(WAITERS["sync"], [["receive", "a", None]], id="t")
        for number in range(50):
            task.signal("a", number)
        read, select = list[int](), disk.recorder.select_events

        def counted(*args: Any, **options: Any) -> Any:
            rows = select(*args, **options)
            read.append(len(rows))
            return rows

        monkeypatch.setattr(disk.recorder, "select_events", counted)
        for number in range(50):
            task.signal("a", number)
        assert sum(read) <= 50
        with AgentSystem(disk, run=False) as other:
            other.task("t").signal("a", "between")
        read.clear()
        task.signal("a", "after")
        assert sum(read) <= 2
        assert [event.value for event in task.events() if isinstance(event, SignalReceived)][-2:] == [
            "between",
            "after",
        ]


def test_a_repeat_is_known_whatever_the_order_of_its_keys(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        task = client.spawn(WAITERS["sync"], [["receive", "a", None]], id="t")
        task.signal("a", {"one": 1, "two": [2]}, signal_id="1")
        task.signal("a", {"two": [2], "one": 1}, signal_id="1")
        with pytest.raises(SignalConflictError):
            task.signal("a", {"one": 1, "two": [3]}, signal_id="1")
        assert kinds(disk).count("SignalReceived") == 1
