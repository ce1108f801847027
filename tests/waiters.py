"""Agents that wait as a program tells them, in both colours, and what must be true of any log that they leave.

A program is a list of operations: `["sleep", seconds]`, `["until", seconds from its start]`,
`["receive", name, timeout]`, `["any", [names], seconds, timeout]`, `["ask", question, timeout]`, `["step", value]`,
`["gather", [programs]]`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from actors import (
    Decision,
    First,
    Signal,
    Timer,
    WaitTimeoutError,
    agent,
    gather,
    receive,
    receive_async,
    request_approval,
    request_approval_async,
    sleep,
    sleep_async,
    sleep_until,
    sleep_until_async,
    step,
    task_info,
    wait_any,
    wait_any_async,
)
from domain.events import SignalReceived, TaskEvent, WaitBegan, WaitEnded
from domain.waits import TIMER, Wait

TOO_LATE = "too late"


@step(name="waits: note")
def note(value: Any) -> Any:
    return value


def moment(start: float, seconds: float) -> datetime:
    return datetime.fromtimestamp(start, UTC) + timedelta(seconds=seconds)


def began() -> float:
    """Give when the program began, the same in every run."""
    info = task_info()
    assert info is not None
    return info.now().timestamp()


def sources(names: list[str], seconds: float | None) -> list[Any]:
    return [*map(Signal, names), *([] if seconds is None else [Timer(seconds)])]


def told(first: First) -> list[Any]:
    return [first.index, first.value]


def word(decision: Decision) -> list[Any]:
    return [decision.approved, decision.by]


@agent(name="waits: program")
def wait_through(program: list[Any]) -> list[Any]:
    return walk(program, began())


def walk(program: list[Any], start: float) -> list[Any]:
    return [do(start, *operation) for operation in program]


def do(start: float, what: str, *given: Any) -> Any:
    try:
        match what, given:
            case "sleep", (seconds,):
                return sleep(seconds)
            case "until", (seconds,):
                return sleep_until(moment(start, seconds))
            case "receive", (name, timeout):
                return receive(name, timeout=timeout)
            case "any", (names, seconds, timeout):
                return told(wait_any(*sources(names, seconds), timeout=timeout))
            case "ask", (question, timeout):
                return word(request_approval(question).wait(timeout=timeout))
            case "step", (value,):
                return note(value)
            case _:
                return list(gather(*[partial(walk, branch, start) for branch in given[0]]))
    except WaitTimeoutError:
        return TOO_LATE


@agent(name="waits: async program")
async def wait_through_async(program: list[Any]) -> list[Any]:
    return await walk_async(program, began())


async def walk_async(program: list[Any], start: float) -> list[Any]:
    return [await do_async(start, *operation) for operation in program]


async def do_async(start: float, what: str, *given: Any) -> Any:
    try:
        match what, given:
            case "sleep", (seconds,):
                return await sleep_async(seconds)
            case "until", (seconds,):
                return await sleep_until_async(moment(start, seconds))
            case "receive", (name, timeout):
                return await receive_async(name, timeout=timeout)
            case "any", (names, seconds, timeout):
                return told(await wait_any_async(*sources(names, seconds), timeout=timeout))
            case "ask", (question, timeout):
                return word(await (await request_approval_async(question)).wait_async(timeout=timeout))
            case "step", (value,):
                return await note.aio(value)
            case _:
                return list(await gather(*[partial(walk_async, branch, start) for branch in given[0]]))
    except WaitTimeoutError:
        return TOO_LATE


WAITERS: dict[str, Any] = {"sync": wait_through, "async": wait_through_async}


# ------------------------------------------------------------------ what any log has to keep


def check_waits(events: list[TaskEvent]) -> None:
    """Assert what is promised of waits, by the log alone: each ends once, with what was first, and none too early."""
    begun: dict[str, Wait] = {}
    ended: set[str] = set()
    mail: dict[str, list[int]] = {}
    known: set[str] = set()
    for event in events:
        if isinstance(event, SignalReceived):
            assert event.signal not in known, "a signal counts once"
            known.add(event.signal)
            mail.setdefault(event.name, []).append(event.originator_version)
        elif isinstance(event, WaitBegan):
            assert event.path not in begun, "a wait begins once"
            begun[event.path] = Wait.read(event.kind, event.name, event.sources, event.due)
        elif isinstance(event, WaitEnded):
            assert event.path not in ended, "a wait ends once"
            ended.add(event.path)
            _check_end(event, begun.get(event.path), mail)


def _check_end(event: WaitEnded, wait: Wait | None, mail: dict[str, list[int]]) -> None:
    if wait is None:  # it was over when it was asked for
        names = [name for name, versions in mail.items() if event.signal in versions]
        assert event.kind == TIMER or event.signal == 0 or names
        wanted = names
    else:
        wanted = [source.name for source in wait.sources if source.kind != TIMER]
    first = min((mail[name][0] for name in wanted if mail.get(name)), default=0)
    assert event.signal == first, "what is in the log beats a time, and the first of it counts"
    for name in wanted:
        if event.signal and not name.startswith("~") and mail.get(name, [0])[0] == event.signal:
            mail[name].pop(0)
    if event.signal == 0 and wait is not None:
        times = [source.due for source in wait.sources if source.due is not None] + [wait.due]
        due = min(due.at for due in times if due is not None)
        assert event.timestamp >= due, "no time comes too early"
