"""Random programs as data, one agent that walks them, and a world outside that remembers every effect.

A program is a list of operations, JSON all through, so that it can be an agent's argument and cross to another process:

    ["step", kind, value]     call a step of a kind from `STEPS`; its value is [value, a random token]
    ["if", then, otherwise]   go on by the parity of the last value
    ["agent", program]        call the walking agent inside itself
    ["fail", how]             end in FailTask, or by letting a StepError through
"""

from __future__ import annotations

import json
import os
import secrets
from typing import Any

from hypothesis import strategies as st

from actors import Doubt, FailTask, Happened, NotHappened, StepError, agent, step, step_info, task_info
from actors.context import Context
from actors.definitions import current
from domain.task import AgentTask


class World:
    """What happened outside: one line an effect, in memory or, across processes, in a file that is synced."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self._lines: list[dict[str, Any]] = []

    def happen(self, **effect: Any) -> None:
        if self.path is None:
            self._lines.append(effect)
            return
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(effect) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def effects(self, key: str | None = None) -> list[dict[str, Any]]:
        lines = self._lines
        if self.path is not None:
            with open(self.path, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        return [line for line in lines if key in (None, line["key"])]


world = World(os.environ.get("PERDURE_TEST_WORLD"))
seen: dict[int, list[str]] = {}
"""What each activation's agent code was given, in order."""


def effect(value: int) -> list[Any]:
    info = step_info()
    token = secrets.token_hex(4)
    world.happen(key=info.idempotency_key, path=info.path, step=info.name, attempt=info.attempt, token=token)
    return [value, token]


def find_out(doubt: Doubt) -> Happened | NotHappened:
    happened = world.effects(doubt.idempotency_key)
    return Happened([doubt.args[0], happened[-1]["token"]]) if happened else NotHappened()


@step
def plain(value: int) -> list[Any]:
    return effect(value)


@step(idempotent=True)
def idempotent(value: int) -> list[Any]:
    return effect(value)


@step(on_doubt=find_out, label="asks for {value}")
def asking(value: int) -> list[Any]:
    return effect(value)


@step
def failing(value: int) -> list[Any]:
    raise ValueError(effect(value))


STEPS = {"plain": plain, "idempotent": idempotent, "asking": asking, "failing": failing}


def do(kind: str, value: int) -> list[Any]:
    try:
        result = STEPS[kind](value)
    except StepError as error:
        result = [value, f"failed: {error.is_a(ValueError)} {error.fault.message}"]
    info = task_info()
    assert info is not None
    seen.setdefault(info.activation, []).append(repr(result))
    check_fold()
    return result


@agent
def walk(program: list[Any]) -> list[Any]:
    out: list[Any] = []
    for operation, *rest in program:
        if operation == "step":
            out.append(do(*rest))
        elif operation == "if":
            last = out[-1][0] if out and out[-1] and isinstance(out[-1][0], int) else 0
            out.extend(walk(rest[last % 2]))
        elif operation == "agent":
            out.append(walk(rest[0]))
        elif rest[0] == "on purpose":
            raise FailTask("on purpose")
        else:
            failing(0)
    return out


def check_fold() -> None:
    """The live state equals a fresh replay of the log, at this very point."""
    context = current.get()
    assert isinstance(context, Context)
    fresh = context.appender.log.load(context.task.id)
    assert state(context.task) == state(fresh)


def state(task: AgentTask) -> dict[str, Any]:
    """Everything that a task knows, in a form that compares by value."""
    facts = dict(vars(task))
    facts["steps"] = {path: plain_record(record) for path, record in task.steps.items()}
    facts["latest"] = task.latest and plain_record(task.latest)
    return facts


def plain_record(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


steps = st.tuples(st.just("step"), st.sampled_from(sorted(STEPS)), st.integers(0, 3)).map(list)
endings = st.sampled_from([["fail", "on purpose"], ["fail", "by a step"]])
programs = st.recursive(
    st.lists(steps, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            steps, st.tuples(st.just("if"), inner, inner).map(list), st.tuples(st.just("agent"), inner).map(list)
        ),
        max_size=4,
    ),
    max_leaves=6,
).flatmap(lambda program: st.one_of(st.just(program), st.just(program), endings.map(lambda end: [*program, end])))
