"""Approvals in two phases: the question is in the log before anybody is shown it; the first answer counts."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from actors import (
    AgentSystem,
    AlreadyDecidedError,
    Decision,
    TaskCancelledError,
    TaskEndedError,
    Timer,
    UnknownApprovalError,
    UnstorableValueError,
    WaitTimeoutError,
    agent,
    gather,
    request_approval,
    request_approval_async,
    step,
    wait_any,
    wait_any_async,
)
from actors.testing import CrashPlan, FakeClock, SimulatedCrash, every_crash_point
from domain.events import ApprovalRequested, SignalReceived, TaskEvent, WaitBegan
from stores import Store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, kinds, log, wait_for
from tests.scenario_kit import World
from tests.waiters import TOO_LATE, WAITERS, check_waits

BOTH = pytest.mark.parametrize("colour", ["sync", "async"])


def asked(task: Any, many: int = 1) -> list[str]:
    """Wait until a task has asked for so many approvals that nobody has answered, and give their ids."""
    wait_for(lambda: len(task.describe().approvals) == many)
    return [one.id for one in task.describe().approvals]


def of_kind(disk: Store, kind: type[TaskEvent]) -> list[Any]:
    return [event for event in log(disk) if isinstance(event, kind)]


# ------------------------------------------------------------------ two phases


@BOTH
def test_the_question_is_in_the_log_with_its_id_before_anybody_waits_for_the_answer(disk: Store, colour: str) -> None:
    shown = list[str]()

    @step(name="approvals: show")
    def show(id: str) -> None:
        assert [one.id for one in system.task("t").describe().approvals] == [id]
        assert len(of_kind(disk, ApprovalRequested)) == 1
        shown.append(id)

    @agent(name="approvals: two phases")
    def flow() -> tuple[str, Decision, Decision]:
        pause = request_approval("pay 20 to acme", details={"invoice": 7})
        show(pause.id)
        return pause.id, pause.wait(), pause.wait()

    @agent(name="approvals: two phases async")
    async def flow_async() -> tuple[str, Decision, Decision]:
        pause = await request_approval_async("pay 20 to acme", details={"invoice": 7})
        await show.aio(pause.id)
        return pause.id, await pause, await pause.wait_async()

    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flow if colour == "sync" else flow_async, id="t")
        wait_for(lambda: task.status() == "waiting")
        (one,) = task.describe().approvals
        assert (one.question, one.details, one.waited_for) == ("pay 20 to acme", {"invoice": 7}, True)
        stands = task.answer(one.id, approved=True, value=[1, (2,)], by="ann", note="fine")
        pause, first, again = task.result(PATIENCE)
        assert task.describe().approvals == ()
    at = datetime.fromtimestamp(clock.now(), UTC)
    assert first == again == stands == Decision(approved=True, value=[1, (2,)], by="ann", note="fine", at=at)
    assert shown == [pause] == [one.id]
    check_waits(log(disk))


def test_an_approval_that_was_not_answered_in_time_can_still_be(disk: Store) -> None:
    @agent(name="approvals: late")
    def flow() -> list[Any]:
        pause = request_approval("really?")
        try:
            pause.wait(timeout=60)
        except WaitTimeoutError as error:
            return [str(error), pause.wait(timeout=60).approved]
        return []

    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flow, id="t")
        (pause,) = asked(task)
        wait_for(lambda: task.status() == "waiting")
        clock.advance(60)
        wait_for(lambda: len(of_kind(disk, WaitBegan)) == 2)
        task.answer(pause, approved=False)
        said, approved = task.result(PATIENCE)
    assert f"approval {pause} was not answered in time" in said
    assert approved is False


@BOTH
def test_several_are_open_at_once_and_answered_in_any_order(disk: Store, colour: str) -> None:
    questions = [f"question {number}" for number in range(4)]
    with AgentSystem(disk) as system:
        task = system.spawn(WAITERS[colour], [["gather", [[["ask", one, None]] for one in questions]]], id="t")
        asked(task, 4)
        by_question = {one.question: one.id for one in task.describe().approvals}
        assert len(set(by_question.values())) == 4
        for left, number in ((3, 2), (2, 0), (1, 3), (0, 1)):
            task.answer(by_question[questions[number]], approved=number % 2 == 0, by=f"person {number}")
            assert len(task.describe().approvals) == left
        assert task.result(PATIENCE) == [[[[number % 2 == 0, f"person {number}"]] for number in range(4)]]
    check_waits(log(disk))


@BOTH
def test_an_approval_may_be_the_first_of_several_and_be_asked_for_again_by_who_was_too_early(
    disk: Store, colour: str
) -> None:
    @agent(name="approvals: any")
    def flow() -> list[Any]:
        pause = request_approval("really?")
        return [wait_any(pause, Timer(60)).index, wait_any(Timer(600), pause).value.approved, pause.wait().approved]

    @agent(name="approvals: any async")
    async def flow_async() -> list[Any]:
        pause = await request_approval_async("really?")
        first = await wait_any_async(pause, Timer(60))
        again = await wait_any_async(Timer(600), pause)
        return [first.index, again.value.approved, (await pause).approved]

    clock = FakeClock()
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flow if colour == "sync" else flow_async, id="t")
        wait_for(lambda: task.status() == "waiting")
        clock.advance(60)
        wait_for(lambda: len(of_kind(disk, WaitBegan)) == 2)
        task.answer(*asked(task), approved=True)
        assert task.result(PATIENCE) == [1, True, True]


# ------------------------------------------------------------------ once


def test_the_same_answer_again_gives_the_first_and_another_is_told_what_was_decided(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(WAITERS["sync"], [["ask", "really?", None]], id="t")
        (pause,) = asked(task)
        first = task.answer(pause, approved=True, value=1, by="ann")
        for _ in range(2):
            assert task.answer(pause, approved=True, value=2, by="bob", note="too") == first
            with pytest.raises(AlreadyDecidedError, match="already decided: yes, by ann") as caught:
                task.answer(pause, approved=False, by="bob")
            assert (caught.value.approved, caught.value.by) == (True, "ann")
            assert task.result(PATIENCE) == [[True, "ann"]]
    assert len(of_kind(disk, SignalReceived)) == 1


def test_of_answers_that_race_one_is_the_decision_and_all_are_told_so(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(WAITERS["sync"], [["ask", "really?", None]], id="t")
        (pause,) = asked(task)
        together, told = threading.Barrier(6), list[tuple[bool, str]]()

        def answer(number: int) -> None:
            together.wait(PATIENCE)
            try:
                stands = task.answer(pause, approved=number % 2 == 0, by=f"person {number}")
                told.append((stands.approved, stands.by))
            except AlreadyDecidedError as error:
                told.append((error.approved, error.by))

        threads = [threading.Thread(target=answer, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        (decision,) = task.result(PATIENCE)
    assert told == [tuple(decision)] * 6
    assert len(of_kind(disk, SignalReceived)) == 1


def test_who_answers_what_nobody_asks_for_is_told_so(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(WAITERS["sync"], [["ask", "really?", None]], id="t")
        (pause,) = asked(task)
        other = system.spawn(WAITERS["sync"], [["ask", "really?", None]], id="other")
        for wrong in (*asked(other), "", "t#9@x", pause + "x"):
            with pytest.raises(UnknownApprovalError):
                task.answer(wrong, approved=True)
        with pytest.raises(TypeError):
            task.answer(pause, approved=1)  # type: ignore[arg-type]
        with pytest.raises(UnstorableValueError):
            task.answer(pause, approved=True, value=threading.Lock())
        task.cancel()
        with pytest.raises(TaskCancelledError):
            task.result(PATIENCE)
        with pytest.raises(TaskEndedError, match="has ended: cancelled"):
            task.answer(pause, approved=True)
        other.cancel()


def test_an_answer_counts_for_an_agent_that_is_down(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(WAITERS["async"], [["ask", "really?", None]], id="t")
        (pause,) = asked(task)
    with AgentSystem(disk, run=False) as client:
        assert asyncio.run(client.task("t").answer_async(pause, approved=True, by="ann")).approved
        assert client.task("t").status() == "queued"
    with AgentSystem(disk) as system:
        assert system.task("t").result(PATIENCE) == [[True, "ann"]]


@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
def test_an_answer_whose_sender_dies_is_there_once_after_it_was_given_again(disk: Store, point: str) -> None:
    with AgentSystem(disk) as system:
        (pause,) = asked(system.spawn(WAITERS["sync"], [["ask", "really?", None]], id="t"))
    life = CrashingStore(disk, CrashPlan(1, point))
    with pytest.raises(SimulatedCrash), AgentSystem(life, run=False) as client:
        client.task("t").answer(pause, approved=True, by="ann")
    life.close()
    with AgentSystem(disk) as system:
        system.task("t").answer(pause, approved=True, by="ann")
        assert system.task("t").result(PATIENCE) == [[True, "ann"]]
    assert kinds(disk).count("SignalReceived") == 1


def test_nobody_answers_in_time_and_the_agent_goes_on(disk: Store) -> None:
    clock = FakeClock(jump=True)
    with AgentSystem(disk, clock=clock) as system:
        assert system.spawn(WAITERS["sync"], [["ask", "really?", 3600]], id="t").result(PATIENCE) == [TOO_LATE]


def test_a_long_question_is_cut_and_its_details_are_not(disk: Store) -> None:
    long = "x" * 1000

    @agent(name="approvals: long")
    def flow() -> Any:
        return gather(lambda: request_approval(long, details=long).wait(timeout=0.1).approved)

    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        (one,) = (wait_for(lambda: len(task.describe().approvals) == 1), task.describe().approvals)[1]
        assert (len(one.question), one.details) == (200, long)
        task.answer(one.id, approved=True)
        assert task.result(PATIENCE) == (True,)


# ------------------------------------------------------------------ from the command line


def test_the_commands_list_answer_and_tell_what_was_decided(world: World) -> None:
    with AgentSystem(world.url) as system:
        program = [["gather", [[["ask", one, None]] for one in ("pay 20", "pay 10")]]]
        task = system.spawn(WAITERS["sync"], program, id="t")
        asked(task, 2)
        ids = {one.question: one.id for one in task.describe().approvals}
        listed = world.perdure("approvals").end()
        assert all(f'{pause}  "{question}"' in listed for question, pause in ids.items())
        assert "approved by ann" in world.perdure("approve", ids["pay 10"], "--by", "ann").end()
        assert ids["pay 10"] not in world.perdure("approvals").end()
        late = world.perdure("reject", ids["pay 10"], "--note", "no", "--by", "bob")
        late.end(1)
        assert "already decided: yes, by ann" in late.errors
        assert "rejected by bob" in world.perdure("reject", ids["pay 20"], "--note", "no", "--by", "bob").end()
        assert task.result(PATIENCE) == [[[[False, "bob"]], [[True, "ann"]]]]


def test_an_approval_is_neither_yes_nor_no_and_a_decision_is_what_it_says(disk: Store) -> None:
    @agent(name="approvals: truth")
    def flow() -> list[bool]:
        pauses = [request_approval("yes?"), request_approval("no?")]
        with pytest.raises(TypeError, match="is neither yes nor no: wait for its answer"):
            bool(pauses[0])
        return [bool(pause.wait()) for pause in pauses]

    for run in every_crash_point(flow, answer=lambda approval: approval.question == "yes?"):
        assert run.result == [True, False]
    given: Any = True
    with pytest.raises(TypeError, match="answer are functions"):
        next(every_crash_point(flow, answer=given))
