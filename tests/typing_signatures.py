"""What mypy --strict and pyright must accept, and the types they must see. Checked by `.ci/run`, never run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any, Literal, assert_type

from actors import (
    Agent,
    AgentSystem,
    Doubt,
    FailTask,
    Happened,
    NotHappened,
    Step,
    StepError,
    StepInfo,
    TaskFailedError,
    TaskHeldError,
    TaskInfo,
    TaskRef,
    TaskView,
    Unknown,
    agent,
    open_store,
    step,
    step_info,
    task_info,
)
from actors.testing import CrashPlan, Run, every_crash_point, run_through_crashes
from domain.events import TaskEvent


def has_arrived(doubt: Doubt) -> Happened | NotHappened | Unknown:
    assert_type(doubt.args, tuple[Any, ...])
    assert_type(doubt.kwargs, dict[str, Any])
    assert_type(doubt.idempotency_key, str)
    return Happened("id") if doubt.attempt > 1 else NotHappened()


@step
def draft(document: str, words: int = 100, *, lang: str = "en") -> str:
    info = step_info()
    assert_type(info, StepInfo)
    assert_type(info.idempotency_key, str)
    return f"{document} {words} {lang}"


@step(on_doubt=has_arrived, label="mail to {to}")
def send(to: str, body: str) -> bytes:
    return f"{to} {body}".encode()


@step(idempotent=True, name="look")
def look(*paths: str, **options: int) -> dict[str, list[float]]:
    return {path: [len(options)] for path in paths}


@step(on_doubt="hold")
def pay(amount: int) -> datetime | None:
    return None if amount else datetime.max


@step(on_doubt=lambda doubt: Unknown("nobody knows"))
def ring() -> None: ...


@agent
def report(document: str, lang: str = "en") -> int:
    assert_type(draft(document), str)
    assert_type(draft(document, 50, lang=lang), str)
    assert_type(draft.fn(document, words=5), str)
    assert_type(send("a@example.org", body="b"), bytes)
    assert_type(look("a", "b", depth=2), dict[str, list[float]])
    assert_type(pay(3), datetime | None)
    assert_type(inner(1, 2.5), tuple[int, float])
    info = task_info()
    assert_type(info, TaskInfo | None)
    ring()
    try:
        pay(4)
    except StepError as error:
        assert_type(error.attempts, int)
        assert_type(error.is_a(ValueError), bool)
        assert_type(error.is_a("bank:Declined"), bool)
        raise FailTask("no funds") from error
    return len(document)


@agent(name="inner agent", on_failure="hold")
def inner(a: int, b: float) -> tuple[int, float]:
    return a, b


@agent()
def nothing() -> None: ...


def program(system: AgentSystem) -> Iterator[TaskRef[Any]]:
    assert_type(system.spawn(report, "x"), TaskRef[int])
    assert_type(system.spawn(report, "x", "fr", id="report-1", tags={"team": "a"}), TaskRef[int])
    assert_type(system.spawn(inner, 1, 2.5), TaskRef[tuple[int, float]])
    assert_type(system.spawn(nothing), TaskRef[None])
    assert_type(system.spawn(partial(report, lang="fr"), "x"), TaskRef[int])
    assert_type(system.spawn(partial(report, "x")), TaskRef[int])
    assert_type(system.spawn(report, "x").result(timeout=60), int)
    assert_type(report("x", lang="fr"), int)
    assert_type(report.fn("x"), int)
    task = system.task("report-1")
    assert_type(task, TaskRef[Any])
    assert_type(task.id, str)
    assert_type(task.describe(), TaskView)
    assert_type(task.events(after=2), list[TaskEvent])
    assert_type(task.status(), Literal["queued", "running", "held", "completed", "failed"])
    task.release(by="ann")
    task.resolve("1", value={"any": ["value"]}, by="ann")
    task.resolve("1", rerun=True)
    task.resolve("1", fail=True)
    try:
        task.result()
    except TaskHeldError as error:
        assert_type(error.reason, str)
    except TaskFailedError as error:
        assert_type(error.fault.is_a(KeyError), bool)
    yield from system.tasks(status="held", agent="report")


def takes_any_agent(any_agent: Agent[..., object], any_step: Step[..., Any]) -> tuple[str, str]:
    return any_agent.name, any_step.name


def opens() -> None:
    takes_any_agent(report, draft)
    takes_any_agent(nothing, ring)
    with AgentSystem("sqlite:///tasks.db", max_active=4, strikes=None, grace=1.5) as system:
        assert_type(system, AgentSystem)
    with open_store("memory:") as store, AgentSystem(store, run=False, only="report-1") as client:
        assert_type(client.tasks(), list[TaskRef[Any]])


def tested() -> None:
    for run in every_crash_point(report, "x"):
        assert_type(run, Run)
        run.check()
        assert_type(run.count("send"), int)
    run_through_crashes(report, "x", plan=[1, 2], store="memory:")
    CrashPlan(1, "body.after")
