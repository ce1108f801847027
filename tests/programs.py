"""Random programs as data, two agents that walk them, and a world outside that remembers every effect.

A program is a list of operations, JSON all through, so that it can be an agent's argument and cross to another process:

    ["step", kind, value]     call a step of a kind from `STEPS`; its value is [value, a random token]
    ["retry", times, value]   call a step that fails so many times before
    ["late", value]           call a step that hangs at first, beyond its time limit
    ["if", then, otherwise]   go on by the parity of the last value
    ["agent", program]        call a walking agent inside itself
    ["gather", [program, …]]  walk programs side by side
    ["map", kind, [value, …], limit]    call a step for each value, so many at once
    ["keyed", key, program]   walk a program in a branch that has a key
    ["now"], ["random"], ["patched", name]    what is the same in every run
    ["fail", how]             end in FailTask, or by letting a StepError through

`walk` is a sync agent and `walk_async` an async one. Each calls steps and agents of both colours.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from functools import partial
from typing import Any

from hypothesis import strategies as st

from actors import (
    Doubt,
    FailTask,
    Happened,
    NotHappened,
    StepError,
    TaskInfo,
    agent,
    branch,
    gather,
    map_steps,
    patched,
    step,
    step_info,
    task_info,
)
from actors.body import running_body
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
        line = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(line, json.dumps(effect).encode() + b"\n")
            os.fsync(line)
        finally:
            os.close(line)

    def effects(self, key: str | None = None) -> list[dict[str, Any]]:
        lines = self._lines
        if self.path is not None:
            with open(self.path, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        return [line for line in lines if key in (None, line["key"])]


world = World(os.environ.get("PERDURE_TEST_WORLD"))
seen: dict[int, dict[str, list[str]]] = {}
"""What each activation's agent code was given, in order, in each scope."""
ended: list[int] = []
"""How many effects there were whenever the outermost agent came to its end."""


def forget() -> None:
    """Begin with an empty world."""
    global world  # noqa: PLW0603
    world = World()
    seen.clear()
    ended.clear()


# ------------------------------------------------------------------ steps


def effect(value: int) -> list[Any]:
    info, body = step_info(), running_body.get()
    assert body is not None
    facts = {"key": info.idempotency_key, "path": info.path, "step": info.name, "attempt": info.attempt}
    token = secrets.token_hex(4)
    world.happen(**facts, token=token, activation=body.activation.number)
    return [value, token]


def find_out(doubt: Doubt) -> Happened | NotHappened:
    happened = world.effects(doubt.idempotency_key)
    return Happened([doubt.args[0], happened[-1]["token"]]) if happened else NotHappened()


@step
def plain(value: int) -> list[Any]:
    return effect(value)


@step(name="plain")
async def plain_async(value: int) -> list[Any]:
    return effect(value)


@step(idempotent=True)
def idempotent(value: int) -> list[Any]:
    return effect(value)


@step(name="idempotent", idempotent=True)
async def idempotent_async(value: int) -> list[Any]:
    return effect(value)


@step(on_doubt=find_out, label="asks for {value}")
def asking(value: int) -> list[Any]:
    return effect(value)


@step(name="asking", on_doubt=find_out, label="asks for {value}")
async def asking_async(value: int) -> list[Any]:
    return effect(value)


@step
def failing(value: int) -> list[Any]:
    raise ValueError(effect(value))


@step(name="failing")
async def failing_async(value: int) -> list[Any]:
    raise ValueError(effect(value))


STEPS = {"plain": plain, "idempotent": idempotent, "asking": asking, "failing": failing}
ASYNC_STEPS = {
    "plain": plain_async,
    "idempotent": idempotent_async,
    "asking": asking_async,
    "failing": failing_async,
}


@step(retries=3, backoff=0.7)
def retried(times: int, value: int) -> list[Any]:
    made = effect(value)
    if step_info().attempt <= times:
        raise ValueError(made)
    return made


@step(name="retried", retries=3, backoff=0.7)
async def retried_async(times: int, value: int) -> list[Any]:
    made = effect(value)
    if step_info().attempt <= times:
        raise ValueError(made)
    return made


hung = threading.Event()
"""Set to let those bodies end that hang beyond their time limit."""


@step(timeout=0.2, retries=3, backoff=0)
def late(value: int) -> list[Any]:
    made = effect(value)
    if step_info().attempt == 1:
        hung.wait(30)
    return made


# ------------------------------------------------------------------ the walkers


def here() -> Context:
    context = current.get()
    assert isinstance(context, Context)
    return context


def info() -> TaskInfo:
    found = task_info()
    assert found is not None
    return found


def is_odd(value: int) -> bool:
    return value % 2 == 1


def note(result: list[Any]) -> list[Any]:
    """Take note of what the code was given here, and check the state that it was taken from."""
    context = here()
    seen.setdefault(context.activation.number, {}).setdefault(context.path, []).append(repr(result))
    check_fold(context)
    return result


def failed(value: int, error: StepError) -> list[Any]:
    return [value, f"failed: {error.is_a(ValueError)} {error.fault.message}"]


def constant(operation: str, rest: list[Any]) -> list[Any]:
    """Do what is the same in every run."""
    if operation == "now":
        return [7, f"~{info().now()}"]
    if operation == "random":
        return [8, f"~{info().random.random()} {info().uuid4()}"]
    return [9 if patched(rest[0]) else 10, "~"]


def way(out: list[Any], rest: list[Any]) -> list[Any]:
    """Choose by the parity of the last value."""
    last = out[-1][0] if out and out[-1] and isinstance(out[-1][0], int) else 0
    chosen: list[Any] = rest[last % 2]
    return chosen


def do(kind: str, value: int) -> list[Any]:
    try:
        result = ASYNC_STEPS[kind].sync(value) if is_odd(value) else STEPS[kind](value)
    except StepError as error:
        result = failed(value, error)
    return note(result)


def do_again(times: int, value: int) -> list[Any]:
    return note(retried_async.sync(times, value) if is_odd(value) else retried(times, value))


@agent
def walk(program: list[Any]) -> list[Any]:
    out: list[Any] = []
    for operation, *rest in program:
        if operation == "if":
            out.extend(walk(way(out, rest)))
        else:
            out.append(walk_on(operation, rest))
    return over(out)


def walk_on(operation: str, rest: list[Any]) -> list[Any]:
    match operation:
        case "step":
            return do(*rest)
        case "late":
            return note(late(*rest))
        case "retry":
            return do_again(*rest)
        case "agent":
            return walk_async.sync(rest[0]) if is_odd(len(rest[0])) else walk(rest[0])
        case "gather":
            return list(gather(*(partial(walk.fn, program) for program in rest[0])))
        case "map":
            return map_steps(partial(do, rest[0]), rest[1], limit=rest[2])
        case "keyed":
            with branch(rest[0]):
                return walk.fn(rest[1])
        case "fail":
            return fail(rest[0])
    return note(constant(operation, rest))


def fail(how: str) -> list[Any]:
    if how == "on purpose":
        raise FailTask("on purpose")
    return failing(0)


async def do_async(kind: str, value: int) -> list[Any]:
    try:
        result = await (STEPS[kind].aio(value) if is_odd(value) else ASYNC_STEPS[kind](value))
    except StepError as error:
        result = failed(value, error)
    return note(result)


async def do_again_async(times: int, value: int) -> list[Any]:
    return note(await (retried.aio(times, value) if is_odd(value) else retried_async(times, value)))


@agent
async def walk_async(program: list[Any]) -> list[Any]:
    out: list[Any] = []
    for operation, *rest in program:
        if operation == "if":
            out.extend(await walk_async(way(out, rest)))
        else:
            out.append(await walk_on_async(operation, rest))
    return over(out)


async def walk_on_async(operation: str, rest: list[Any]) -> list[Any]:
    match operation:
        case "step":
            return await do_async(*rest)
        case "late":
            return note(await late.aio(*rest))
        case "retry":
            return await do_again_async(*rest)
        case "agent":
            return await (walk.aio(rest[0]) if is_odd(len(rest[0])) else walk_async(rest[0]))
        case "gather":
            return list(await gather(*(walk_async.fn(program) for program in rest[0])))
        case "map":
            return await map_steps(partial(do_async, rest[0]), rest[1], limit=rest[2])
        case "keyed":
            with branch(rest[0]):
                return await walk_async.fn(rest[1])
        case "fail":
            return await failing_async(0) if rest[0] == "by a step" else fail(rest[0])
    return note(constant(operation, rest))


def over(out: list[Any]) -> list[Any]:
    if not here().path:
        ended.append(len(world.effects()))
    return out


WALKERS = {"sync": walk, "async": walk_async}


# ------------------------------------------------------------------ the fold


def check_fold(context: Context) -> None:
    """The live state equals a fresh replay of the log, at this very point, whatever other branches append."""
    appender = context.activation.appender
    compared: list[bool] = []

    def compare(task: AgentTask, _now: float) -> list[Any]:
        fresh = appender.log.load(task.id)
        compared.append(fresh.version == task.version)  # what others have decided before us is not in the log yet
        if compared[-1]:
            assert state(task) == state(fresh)
        return []

    while not any(compared):
        appender.append(compare)


def state(task: AgentTask) -> dict[str, Any]:
    """Everything that a task knows, in a form that compares by value."""
    facts = {name: value for name, value in vars(task).items() if name != "borrowed"}
    facts["steps"] = {path: plain_record(record) for path, record in task.steps.items()}
    facts["latest"] = task.latest and plain_record(task.latest)
    return facts


def plain_record(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


# ------------------------------------------------------------------ random programs

values = st.integers(0, 3)
kinds = st.sampled_from(sorted(STEPS))
steps = st.one_of(
    st.tuples(st.just("step"), kinds, values).map(list),
    st.tuples(st.just("step"), kinds, values).map(list),
    st.tuples(st.just("retry"), st.integers(0, 2), values).map(list),
    st.tuples(st.just("map"), kinds, st.lists(values, max_size=3), st.sampled_from([None, 1, 2])).map(list),
    st.sampled_from([["now"], ["random"], ["patched", "a"], ["patched", "b"]]),
)
endings = st.sampled_from([["fail", "on purpose"], ["fail", "by a step"]])


def larger(inner: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[list[Any]]:
    """Give programs that have smaller ones inside."""
    return st.lists(
        st.one_of(
            steps,
            st.tuples(st.just("if"), inner, inner).map(list),
            st.tuples(st.just("agent"), inner).map(list),
            st.tuples(st.just("gather"), st.lists(may_fail(inner), max_size=3)).map(list),
            st.tuples(st.just("gather"), st.lists(inner, min_size=2, max_size=3)).map(list),
            st.tuples(st.just("keyed"), st.sampled_from(["a", "b/c#%"]), inner).map(list),
        ),
        min_size=2,
        max_size=5,
    )


def may_fail(some: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[list[Any]]:
    return some.flatmap(
        lambda program: st.one_of(st.just(program), st.just(program), endings.map(lambda end: [*program, end]))
    )


leaves = st.one_of(st.lists(steps, max_size=2), st.lists(steps, min_size=1, max_size=4))
programs = may_fail(st.one_of(larger(leaves), st.recursive(leaves, larger, max_leaves=6)))
