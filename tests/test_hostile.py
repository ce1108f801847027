"""Hostile users: errors that fight whoever looks at them, bodies that block, methods, classes that cannot be raised."""

import asyncio
import gc
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType
from typing import Any

import pytest

import actors
from actors import (
    DefinitionError,
    StepError,
    StepTimeoutError,
    TaskFailedError,
    TaskHeldError,
    agent,
    branch,
    gather,
    map_steps,
    open_store,
    run_step,
    step,
)
from actors.testing import FakeClock
from domain.events import Held, StepFailed, StepSucceeded
from stores import Store
from tests.lives import PATIENCE, bodies, kinds, live, log, wait_for

HERE = os.path.realpath(__file__)
OURS = os.path.dirname(os.path.realpath(actors.__file__))


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


def struck(disk: Store, flow: Any, *args: Any) -> str:
    """Run the task `t` until its first crash holds it; give where that was, and what."""
    with pytest.raises(TaskHeldError):
        live(disk, flow, *args, strikes=1)
    (event,) = [event for event in log(disk) if isinstance(event, Held)]
    assert event.reason == "strikes"
    return str(event.details["where"])


def line_of(code: CodeType, offset: int) -> str:
    return f"{HERE}:{code.co_firstlineno + offset}"


# ------------------------------------------------------------------ errors that fight


class TracebackError(Exception):
    def with_traceback(self, tb: Any) -> Any:
        raise ValueError("no traceback for you")


class ClassError(Exception):
    @property
    def __class__(self) -> Any:
        raise ValueError("no class")

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise ValueError("no class")


class AttributeLessError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class OwnTracebackError(Exception):
    @property
    def __traceback__(self) -> Any:
        raise ValueError("no traceback")

    @__traceback__.setter
    def __traceback__(self, trace: Any) -> None:
        raise ValueError("no traceback")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class UnequalError(Exception):
    def __eq__(self, other: object) -> bool:
        raise ValueError("equal to nobody")

    __hash__ = None  # type: ignore[assignment]


class NeitherError(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("neither")

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError(f"no {name}")


HOSTILE = [
    TracebackError,
    ClassError,
    AttributeLessError,
    OwnTracebackError,
    UnprintableError,
    UnequalError,
    NeitherError,
]

each_hostile = pytest.mark.parametrize("kind", HOSTILE)
each_colour = pytest.mark.parametrize("colour", ["sync", "async"])


@each_hostile
@each_colour
@pytest.mark.parametrize("timeout", [None, PATIENCE])
@pytest.mark.parametrize("declared", [False, True])
def test_a_hostile_error_of_a_body_is_a_failed_step_after_one_body(
    disk: Store, kind: type[Exception], colour: str, timeout: float | None, declared: bool
) -> None:
    ran: list[str] = []
    raises = (kind,) if declared else ()

    @step(name="fights", retry_on=OSError, retries=1, backoff=0, timeout=timeout, raises=raises)
    def fights() -> None:
        ran.append("once")
        raise kind("x")

    @step(name="fights", retry_on=OSError, retries=1, backoff=0, timeout=timeout, raises=raises)
    async def fights_async() -> None:
        ran.append("once")
        raise kind("x")

    @agent(name="hostile: fought")
    def flow() -> None:
        fights()

    @agent(name="hostile: fought, async")
    async def flow_async() -> None:
        await fights_async()

    for _ in range(2):
        with pytest.raises(TaskFailedError) as caught:
            live(disk, flow if colour == "sync" else flow_async, strikes=1)
        assert kind.__name__ in str(caught.value)
    assert ran == ["once"]
    (failed,) = [event for event in log(disk) if isinstance(event, StepFailed)]
    assert failed.error["kinds"][0].endswith(f":{kind.__name__}")


@each_hostile
@each_colour
def test_a_hostile_error_of_an_agents_code_is_a_strike_at_the_users_line(
    disk: Store, kind: type[Exception], colour: str
) -> None:
    def bug() -> None:
        raise kind("x")

    @agent(name="hostile: strikes")
    def flow() -> None:
        bug()

    @agent(name="hostile: strikes, async")
    async def flow_async() -> None:
        bug()

    where = struck(disk, flow if colour == "sync" else flow_async)
    assert where.endswith(f"at {line_of(bug.__code__, 1)}")
    assert kind.__name__ in where


def from_a_hostile_cause(kind: type[Exception]) -> None:
    raise ValueError("beside a hostile one") from kind("x")


def while_a_hostile_one_is_handled(kind: type[Exception]) -> None:
    try:
        raise kind("x")
    except kind:
        raise ValueError("beside a hostile one")  # noqa: B904  the context is the point


def in_a_group(kind: type[Exception]) -> None:
    raise ExceptionGroup("beside a hostile one", [kind("x")])


def after_a_branch(kind: type[Exception]) -> None:
    def bug() -> None:
        raise kind("x")

    with suppress(kind):
        gather(bug, lambda: None)
    raise ValueError("beside a hostile one")


@agent(name="hostile: raises a hostile one")
def inside(name: str) -> None:
    raise next(kind for kind in HOSTILE if kind.__name__ == name)("x")


def after_an_agent(kind: type[Exception]) -> None:
    try:
        inside(kind.__name__)
    except kind:
        raise ValueError("beside a hostile one") from None


WAYS = [from_a_hostile_cause, while_a_hostile_one_is_handled, in_a_group, after_a_branch, after_an_agent]


@each_hostile
@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_error_may_come_along_with_another(disk: Store, kind: type[Exception], way: Any) -> None:
    @agent(name="hostile: along")
    def flow() -> None:
        way(kind)

    where = struck(disk, flow)
    assert "beside a hostile one" in where
    assert f"at {HERE}:" in where


@each_hostile
@pytest.mark.parametrize("way", WAYS[:3])
def test_a_hostile_error_may_come_along_with_another_in_async_code(
    disk: Store, kind: type[Exception], way: Any
) -> None:
    @agent(name="hostile: along, async")
    async def flow() -> None:
        async def raises() -> None:
            way(kind)

        await gather(raises(), raises())

    where = struck(disk, flow)
    assert "beside a hostile one" in where
    assert f"at {HERE}:" in where


# ------------------------------------------------------------------ where a crash was


def calls_json() -> Any:
    return json.loads("{")


def calls_perdure() -> Any:
    return map_steps(print, [], limit=0)


def asks_too_much() -> Any:
    return run_step("x", print, retrys=1)  # type: ignore[call-arg]


def opens_no_branch() -> Any:
    with branch("a\nb"):
        return None


def closes_over_the_standard_library() -> Any:
    return sorted([1, 2], key=lambda _: json.loads("{"))


@each_colour
@pytest.mark.parametrize(
    "bug", [calls_json, calls_perdure, asks_too_much, opens_no_branch, closes_over_the_standard_library]
)
def test_where_a_crash_was_is_the_users_own_line(disk: Store, bug: Callable[[], Any], colour: str) -> None:
    @agent(name="hostile: where")
    def flow() -> None:
        bug()

    @agent(name="hostile: where, async")
    async def flow_async() -> None:
        bug()

    where = struck(disk, flow if colour == "sync" else flow_async)
    assert where.endswith(f"at {line_of(bug.__code__, 1)}")


def test_where_a_crash_was_is_the_line_of_a_branch_on_another_thread(disk: Store) -> None:
    @agent(name="hostile: where, side by side")
    def flow() -> None:
        gather(lambda: None, calls_json, lambda: None)

    assert struck(disk, flow).endswith(f"at {line_of(calls_json.__code__, 1)}")


def test_what_an_agent_returns_that_cannot_be_stored_is_told_at_the_agent(disk: Store) -> None:
    @agent(name="hostile: unstorable")
    def flow() -> Any:
        return object()

    where = struck(disk, flow)
    assert f"at {HERE}:" in where
    assert OURS not in where


# ------------------------------------------------------------------ declared errors


class RefusedError(Exception):
    pass


class VeryRefusedError(RefusedError):
    pass


class Document:
    pass


def test_a_declared_error_keeps_no_frames_alive(disk: Store) -> None:
    documents: list[weakref.ref[Document]] = []

    @step(name="ask", raises=(RefusedError,))
    def ask(number: int) -> str:
        raise RefusedError(str(number))

    def one(number: int) -> bool:
        document = Document()
        documents.append(weakref.ref(document))
        try:
            ask(number)
        except RefusedError:
            return document is not None
        return False

    @agent(name="hostile: keeps nothing")
    def flow() -> list[bool]:
        asked = map_steps(one, range(6), limit=2)
        gc.collect()
        return [*asked, *(document() is None for document in documents)]

    assert live(disk, flow) == [True] * 12


@pytest.mark.parametrize("how", ["itself", "from None", "in a group"])
def test_more_than_a_thousand_declared_errors_still_fail_the_task(disk: Store, how: str) -> None:
    @step(name="ask", raises=(RefusedError,), idempotent=True)
    def ask(number: int) -> str:
        raise RefusedError(str(number))

    @agent(name="hostile: a thousand")
    def flow() -> None:
        kept: list[RefusedError] = []
        for number in range(1_010):
            try:
                ask(number)
            except RefusedError as error:
                kept.append(error)
        if how == "itself":
            raise kept[0]
        if how == "from None":
            raise kept[0] from None
        raise ExceptionGroup("two", [kept[0], kept[-1]]) from None

    with pytest.raises(TaskFailedError, match="RefusedError: step 1 ask: 0"):
        live(disk, flow, strikes=1)


def test_a_task_group_of_failed_steps_fails_the_task(disk: Store) -> None:
    @step(name="work")
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        if number == 1:
            raise ValueError("boom")
        return number

    @agent(name="hostile: task group")
    async def flow() -> None:
        async def one(number: int) -> int:
            with branch(f"b{number}"):
                return await work(number)

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(one(number))

    with pytest.raises(TaskFailedError):
        live(disk, flow, strikes=1)
    assert kinds(disk)[-1] == "Failed"


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_group_fails_the_task_where_it_has_failed_steps_alone(disk: Store, mixed: bool, nested: bool) -> None:
    @step(name="work")
    def work(number: int) -> int:
        raise ValueError(f"boom {number}")

    @agent(name="hostile: group")
    def flow() -> None:
        errors: list[Exception] = []
        for number in range(2):
            try:
                work(number)
            except StepError as error:
                errors.append(error)
        inner: list[Exception] = [*errors[1:], *([KeyError("a bug")] if mixed else [])]
        raise ExceptionGroup("outer", [errors[0], ExceptionGroup("inner", inner)] if nested else [errors[0], *inner])

    if mixed:
        assert "ExceptionGroup" in struck(disk, flow)
    else:
        with pytest.raises(TaskFailedError, match="step 1 work: boom 0"):
            live(disk, flow, strikes=1)


@pytest.mark.parametrize("raises", [OSError, [OSError], (OSError,), (ValueError, OSError)])
def test_raises_takes_a_class_a_list_and_a_tuple(disk: Store, raises: Any) -> None:
    @step(name="io", raises=raises)
    def io() -> None:
        raise OSError(5, "no")

    @agent(name="hostile: declares")
    def flow() -> str:
        try:
            io()
        except StepError:
            return "StepError"
        except OSError as error:
            return f"OSError {error.errno}"
        return "nothing"

    for _ in range(2):
        assert live(disk, flow) == "OSError 5"


@pytest.mark.parametrize("error", [FileNotFoundError("x"), VeryRefusedError("x")])
def test_subclasses_of_what_is_declared_arrive_as_step_errors(disk: Store, error: Exception) -> None:
    @step(name="io", raises=(OSError, RefusedError))
    def io() -> None:
        raise error

    @agent(name="hostile: declares a base")
    def flow() -> str:
        try:
            io()
        except StepError as caught:
            return caught.fault.kind
        except Exception as caught:
            return f"itself: {caught!r}"
        return "nothing"

    for _ in range(2):
        assert live(disk, flow) == type(error).__name__


class NeverError(StopIteration):
    pass


@pytest.mark.parametrize(
    "raises",
    [
        (StopIteration,),
        StopIteration,
        [StopAsyncIteration],
        (ValueError, StopIteration),
        (NeverError,),
        (SystemExit,),
        (BaseException,),
        ("ValueError",),
        "ValueError",
        {ValueError},
        None,
        (ValueError("x"),),
    ],
)
def test_what_cannot_be_raised_into_an_agent_is_refused(raises: Any) -> None:
    with pytest.raises(DefinitionError, match="raises is a tuple of classes of errors"):

        @step(name="refused", raises=raises)
        def refused() -> None: ...

    with pytest.raises(DefinitionError, match="raises is a tuple of classes of errors"):
        outside.options(raises=raises)


# ------------------------------------------------------------------ bodies that block the loop


@each_colour
@pytest.mark.parametrize("when", ["at once", "after an await"])
@pytest.mark.parametrize("limit", ["timeout", "total_timeout"])
def test_a_body_that_blocks_the_loop_past_its_limit_is_late(
    disk: Store, caplog: pytest.LogCaptureFixture, colour: str, when: str, limit: Any
) -> None:
    @step(name="blocks", **{limit: 0.3})
    async def blocks() -> str:
        if when != "at once":
            await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251  this is what it is about
        return "late"

    @agent(name="hostile: blocked")
    def flow() -> str:
        return blocks.sync()

    @agent(name="hostile: blocked, async")
    async def flow_async() -> str:
        return await blocks()

    with pytest.raises(TaskFailedError) as caught:
        live(disk, flow if colour == "sync" else flow_async, strikes=1)
    assert caught.value.fault is not None
    assert caught.value.fault.is_a(StepTimeoutError)
    assert not [event for event in log(disk) if isinstance(event, StepSucceeded)]
    wait_for(lambda: "late result dropped: step 1 blocks" in caplog.text)


def test_a_late_body_is_tried_again_and_its_first_value_never_stored(disk: Store) -> None:
    ran: list[int] = []

    @step(name="blocks once", timeout=0.1, retries=1, backoff=0)
    async def blocks_once() -> str:
        ran.append(len(ran))
        if len(ran) > 1:
            return "in time"
        time.sleep(0.2)  # noqa: ASYNC251  this is what it is about
        return "late"

    @agent(name="hostile: tries again")
    async def flow() -> str:
        return await blocks_once()

    assert live(disk, flow, clock=FakeClock(jump=True)) == "in time"
    assert [event.value for event in log(disk) if isinstance(event, StepSucceeded)] == ["in time"]
    assert [attempt for _, _, attempt in bodies(disk)] == [1, 2]


# ------------------------------------------------------------------ methods


@step(name="outside")
def outside(number: int) -> int:
    return number


@agent(name="hostile: outside agent")
def outside_agent(number: int) -> int:
    return number


class Clerk:
    @step
    def ask(self, number: int = 1) -> int:
        return number

    @step
    async def ask_async(self, number: int = 1) -> int:
        return number

    @agent
    def work(self, number: int = 1) -> int:
        return number

    @agent
    async def work_async(self, number: int = 1) -> int:
        return number

    @staticmethod
    @step
    def add(number: int) -> int:
        return number + 1

    @staticmethod
    @agent
    def run(number: int) -> int:
        return number + 1

    borrowed = outside
    borrowed_agent = outside_agent
    again = ask

    class Desk:
        @step
        def sit(self, number: int = 1) -> int:
            return number


class Assistant(Clerk):
    pass


@pytest.mark.parametrize("name", ["ask", "ask_async", "work", "work_async", "again"])
@pytest.mark.parametrize("owner", [Clerk, Assistant])
def test_a_method_is_no_step_and_no_agent(owner: type[Clerk], name: str) -> None:
    with pytest.raises(DefinitionError, match="is a method: the log cannot hold its self"):
        getattr(owner(), name)


def test_a_method_of_a_nested_class_is_no_step() -> None:
    with pytest.raises(DefinitionError, match=r"Clerk\.Desk\.sit is a method"):
        _ = Clerk.Desk().sit


def test_a_method_of_a_local_class_is_no_step() -> None:
    class Local:
        @step
        def ask(self, number: int = 1) -> int:
            return number

    with pytest.raises(DefinitionError, match="is a method"):
        Local().ask(1)


def test_a_method_called_in_an_agent_is_a_strike_at_the_users_line(disk: Store) -> None:
    @agent(name="hostile: calls a method")
    def flow() -> int:
        return Clerk().ask(7)

    where = struck(disk, flow)
    assert "DefinitionError" in where
    assert where.endswith(f"at {line_of(flow.fn.__code__, 2)}")
    assert bodies(disk) == []


@pytest.mark.parametrize("owner", [Clerk, Assistant])
def test_static_methods_and_borrowed_steps_are_steps(disk: Store, owner: type[Clerk]) -> None:
    @agent(name="hostile: uses a clerk")
    def flow() -> list[int]:
        clerk = owner()
        return [clerk.add(1), owner.add(2), clerk.borrowed(3), clerk.run(4), clerk.borrowed_agent(5)]  # type: ignore[call-arg, arg-type]

    assert live(disk, flow, strikes=1) == [2, 3, 3, 5, 5]
    assert Clerk().borrowed is outside
    assert Clerk.ask.name == "Clerk.ask"
    assert Clerk().borrowed_agent is outside_agent
