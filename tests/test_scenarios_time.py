"""Scenarios about time: P08 attempts and waits survive, P09 the late answer, and P02, the gap, with retries."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from actors import AgentSystem, agent, step, step_info
from actors.testing import CrashPlan, FakeClock
from domain.events import Activated, Failed, StepFailed, StepStarted, StepSucceeded, TaskEvent
from stores import Store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, log, wait_for
from tests.scenario_kit import KILLED, World


def until(moment: float) -> None:
    """Wait until a moment of Unix time."""
    wait_for(lambda: time.time() >= moment)


# ------------------------------------------------------------------ P08

FETCH = """
    import os
    import signal
    import sys
    import time
    from actors import AgentSystem, agent, step, step_info
    from stores import open_store
    from stores.crash import CrashingStore
    from tests.scenario_kit import STORE, answer, die, effect, say

    mode, always, backoff = sys.argv[1], sys.argv[2] == "always", float(sys.argv[3])

    class Death:
        dead = False

        def reach(self, point, **facts):
            if mode == "die" and point == "append.after" and "step.failed" in facts["topics"]:
                die()

        def check(self):
            return

    @step(retries=4, backoff=backoff, max_backoff=backoff, jitter=0)
    def fetch():
        effect("tried", time.time())
        if always or step_info().attempt == 1:
            raise ConnectionError("no answer")
        return f"answer {step_info().attempt}"

    @agent
    def flow():
        return fetch()

    with open_store(STORE) as disk, AgentSystem(CrashingStore(disk, Death())) as system:
        task = system.spawn(flow, id="fetching")
        say(time.time())
        say(answer(task))
        say(time.time())
"""


def events(world: World) -> list[TaskEvent]:
    with world.client() as client:
        return client.task("fetching").events()


def failures(found: list[TaskEvent]) -> list[StepFailed]:
    return [event for event in found if isinstance(event, StepFailed)]


def test_an_attempt_is_made_when_it_was_due_whatever_was_killed_and_restarted_meanwhile(world: World) -> None:
    """P08, first leg, on a scale of 3 to 10: killed 1.2 s after the failure, restarted at 1.8 s, due at 3 s."""
    program = world.write(FETCH)
    first = world.start(program, "live", "once", 3)
    first.hear()
    wait_for(lambda: bool(failures(events(world))))
    (failure,) = failures(events(world))
    until(failure.timestamp + 1.2)
    first.kill()
    until(failure.timestamp + 1.8)
    second = world.start(program, "live", "once", 3)
    ready = float(second.hear())
    assert second.hear() == "answer 2"
    second.hear()
    second.end()
    assert [line.attempt for line in world.ledger("tried")] == [1, 2]
    after = world.ledger("tried")[1].note - failure.timestamp
    assert 3 - 0.01 <= after <= max(3, ready - failure.timestamp) + 0.5
    starts = [event.timestamp for event in events(world) if isinstance(event, StepStarted)]
    assert failure.retry_at == pytest.approx(failure.timestamp + 3)
    assert failure.retry_at is not None
    assert starts[1] >= failure.retry_at


def test_an_attempt_that_is_due_in_ten_seconds_is_made_in_ten_seconds(disk: Store) -> None:
    """P08, first leg, by the clock of the product: fails at t=0, killed at t=4, restarted at t=6, due at t=10."""
    clock, ran = FakeClock(), list[tuple[int, float]]()
    began = clock.now()

    @step(name="fetch", retries=4, backoff=10, max_backoff=10, jitter=0)
    def fetch() -> str:
        ran.append((step_info().attempt, clock.now() - began))
        if len(ran) == 1:
            raise ConnectionError("no answer")
        return "answer"

    @agent(name="P08: fetching")
    def flow() -> str:
        return fetch()

    @agent(name="P08: nothing")
    def nothing() -> None: ...

    plan = CrashPlan(None)
    life = CrashingStore(disk, plan)
    with AgentSystem(life, clock=clock) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: task.status() == "waiting")
        clock.advance(4)
        plan.die_now("killed")
    life.close()
    clock.advance(2)
    with AgentSystem(disk, clock=clock) as system:
        for seconds in (0, 3.9):
            clock.advance(seconds)
            system.spawn(nothing).result(PATIENCE)
            assert system.task("t").status() == "waiting"
        assert ran == [(1, 0)]
        clock.advance(0.1)
        assert system.task("t").result(PATIENCE) == "answer"
    assert [attempt for attempt, _ in ran] == [1, 2]
    assert ran[1][1] == pytest.approx(10)
    assert [event.number for event in log(disk) if isinstance(event, Activated)] == [1, 2]


@pytest.mark.parametrize("kills", [4, 5])
def test_a_step_that_always_fails_fails_after_its_fifth_attempt_with_no_further_wait(world: World, kills: int) -> None:
    """P08, second leg, on a scale of 1 to 10: killed after each attempt, when its failure is in the log."""
    program = world.write(FETCH)
    for attempts in range(1, kills + 1):
        world.run(program, "die", "always", 1, code=KILLED)
        assert world.count("tried") == attempts
    ready, answered, at = world.run(program, "live", "always", 1).splitlines()
    assert answered == "TaskFailedError"
    assert [line.attempt for line in world.ledger("tried")] == [1, 2, 3, 4, 5]
    assert float(at) <= max(float(ready), world.ledger("tried")[4].note) + 0.5
    found = events(world)
    waits = [failure.retry_at and failure.retry_at - failure.timestamp for failure in failures(found)]
    assert waits == [*[pytest.approx(1)] * 4, None]
    for line, failure in zip(world.ledger("tried")[1:], failures(found)[:4], strict=True):
        assert failure.retry_at is not None
        assert line.note >= failure.retry_at
    assert isinstance(found[-1], Failed)
    assert kills == 5 or found[-1].timestamp - world.ledger("tried")[4].note <= 0.5
    with world.client() as client:
        error = client.task("fetching").describe().fault
        assert error is not None
        assert error.is_a(ConnectionError)


# ------------------------------------------------------------------ P09

OLD, NEW = "old-answer", "new-answer"
after: list[str] = []


@step(name="P09: answer", timeout=1, retries=1, backoff=0)
def in_a_thread() -> str:
    if step_info().attempt == 2:
        return NEW
    time.sleep(3)
    return OLD


@step(name="P09: answer", timeout=1, retries=1, backoff=0)
async def obedient() -> str:
    if step_info().attempt == 2:
        return NEW
    await asyncio.sleep(3)
    return OLD


@step(name="P09: answer", timeout=1, retries=1, backoff=0)
async def disobedient() -> str:
    if step_info().attempt == 2:
        return NEW
    rest = asyncio.get_running_loop().create_task(asyncio.sleep(3))
    try:
        await asyncio.shield(rest)
    except asyncio.CancelledError:
        await rest
    return OLD


@step(name="P09: after")
def go_on(task: str, value: str) -> str:
    after.append(task)
    return value


@agent(name="P09: sync")
def wait_in_a_thread() -> str:
    return go_on("sync", in_a_thread())


@agent(name="P09: sync in async")
async def await_a_thread() -> str:
    return await go_on.aio("sync in async", await in_a_thread.aio())


@agent(name="P09: obedient")
async def await_the_obedient() -> str:
    return await go_on.aio("obedient", await obedient())


@agent(name="P09: disobedient")
async def await_the_disobedient() -> str:
    return await go_on.aio("disobedient", await disobedient())


AGENTS: dict[str, Any] = {
    "sync": wait_in_a_thread,
    "sync in async": await_a_thread,
    "obedient": await_the_obedient,
    "disobedient": await_the_disobedient,
}


def test_the_late_answer_of_a_body_that_was_given_up_is_dropped(
    disk: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P09: limit 1 s, the first attempt sleeps 3 s and answers `old`, the second answers `new` at once."""
    after.clear()
    began = time.time()
    with AgentSystem(disk) as system:
        tasks = {name: system.spawn(one, id=name) for name, one in AGENTS.items()}
        assert [task.result(PATIENCE) for task in tasks.values()] == [NEW] * 4
        before = {name: task.events() for name, task in tasks.items()}
        until(began + 4)
        wait_for(lambda: len(notices(caplog)) >= 3)
        assert {name: task.events() for name, task in tasks.items()} == before
    assert sorted(after) == sorted(AGENTS)
    for name, found in before.items():
        (failure,) = failures(found)
        assert "given up at its time limit, after 1 s" in failure.error["message"]
        assert [event.value for event in found if isinstance(event, StepSucceeded)] == [NEW, NEW]
        assert [event.attempt for event in found if isinstance(event, StepStarted)] == [1, 2, 1]
        assert sum(f" of task {name}, attempt 1," in notice for notice in notices(caplog)) == (name != "obedient")
        assert OLD not in repr([event for event in found if not isinstance(event, StepFailed)])
    for file in tmp_path.glob("tasks.db*"):
        assert file.is_dir() or OLD.encode() not in file.read_bytes()


def notices(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "late result dropped" in record.getMessage()]


# ------------------------------------------------------------------ P02

LETTER = """
    import json
    import sys
    from actors import AgentSystem, agent, step, step_info
    from tests.scenario_kit import LEDGER, STORE, answer, die_once, effect

    @step(retries=2, backoff=0.2)
    def mail():
        effect("mail")
        die_once("B")
        if step_info().attempt < int(sys.argv[1]):
            raise ConnectionResetError("sent, but no word of it")
        return f"sent by attempt {step_info().attempt}"

    @agent
    def letter():
        return mail()

    with AgentSystem(STORE) as system:
        print(answer(system.spawn(letter, id="letter")))
"""


@pytest.mark.parametrize("attempts", [2, 4], ids=["the death alone", "errors after it"])
def test_attempts_after_a_death_and_after_errors_alike_have_the_same_key(world: World, attempts: int) -> None:
    """P02, default mode, of a step with two retries: killed in the gap, which uses up none of them."""
    program = world.write(LETTER)
    world.run(program, attempts, code=KILLED)
    assert world.run(program, attempts) == f"sent by attempt {attempts}"
    lines = world.ledger("mail")
    assert [line.attempt for line in lines] == list(range(1, attempts + 1))
    server = {line.key: json.dumps(line.path) for line in lines}
    assert len(server) == 1, "a server that drops repeated keys shows one mail"
