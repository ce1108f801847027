"""Errors that reach the agent: by their class where `raises` says so, as StepError else; live and replayed alike."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors import AgentSystem, StepError, TaskFailedError, agent, gather, open_store, step, task_info
from actors.testing import crash_plans, run_through_crashes
from domain.events import StepFailed
from stores import Store
from tests.lives import held, kinds, live, log

numbers = itertools.count()
SOME = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


# ------------------------------------------------------------------ errors of all sorts


class PlainError(Exception):
    pass


class DemandingError(Exception):
    def __init__(self, code: Any, *, reason: Any = None) -> None:
        super().__init__(f"code {code}")
        self.code, self.reason = code, reason


class SilentError(ValueError):
    def __init__(self, *values: Any) -> None:  # never tells its base
        self.values = values

    def __str__(self) -> str:
        return f"values {self.values!r}"


class BothError(KeyError, ConnectionError):
    pass


class ThirdError(BothError, LookupError):
    def __init__(self, *values: Any) -> None:
        super().__init__(*values[:1])
        self.rest = values[1:]


class NumberedError(OSError):
    def __init__(self, *values: Any) -> None:
        super().__init__(len(values), "numbered")
        self.values = values


class SlottedError(Exception):
    __slots__ = ("code", "never", "nothing")

    def __init__(self, *values: Any) -> None:
        super().__init__("slotted")
        self.code, self.nothing = values, None

    def __str__(self) -> str:
        return f"{self.code!r} {self.nothing!r}"


@dataclass
class DataError(Exception):
    code: Any
    reason: Any = "no reason"


def undecodable(*values: Any) -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", repr(values).encode("utf-8", "backslashreplace"), 0, 1, "no reason")


class PickyError(Exception):
    def __new__(cls, *, code: Any) -> Self:
        return super().__new__(cls, code)

    def __init__(self, *, code: Any) -> None:
        super().__init__(code)


class SternError(Exception):
    def __new__(cls, *values: Any) -> Self:
        if values:
            raise RuntimeError("not with values")
        return super().__new__(cls)

    def __init__(self, *values: Any) -> None:
        self.args = ("something",)


class SlipperyError(Exception):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __reduce__(self) -> Any:
        raise RuntimeError("not to be pickled")


FAITHFUL: dict[str, Callable[..., Exception]] = {
    "plain": PlainError,
    "builtin": ValueError,
    "demanding": lambda *values: DemandingError(len(values), reason=values),
    "silent": SilentError,
    "both": lambda *values: BothError(*values[:3]),
    "third": ThirdError,
    "numbered": NumberedError,
    "no file": lambda *values: OSError(2, "no file", repr(values)),
    "slotted": SlottedError,
    "data": lambda *values: DataError(values),
    "undecodable": undecodable,
    "picky": lambda *values: PickyError(code=values),
    "stern": lambda *values: SternError(),
    "slippery": SlipperyError,
    "key": KeyError,
}


class LockedError(Exception):
    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.lock = threading.Lock()


class SlottedLockError(Exception):
    __slots__ = ("lock",)

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.lock = threading.Lock()


class FickleError(Exception):
    def __str__(self) -> str:
        return f"number {next(numbers)}"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not to be printed")


def group(*values: Any) -> Exception:
    return ExceptionGroup("several", [PlainError(*values), ValueError()])


AWKWARD: dict[str, Callable[..., Exception]] = {
    "locked": LockedError,
    "slotted lock": SlottedLockError,
    "fickle": FickleError,
    "unprintable": UnprintableError,
    "group": group,
}
ALL = FAITHFUL | AWKWARD


def made(kind: str, values: tuple[Any, ...], notes: list[str]) -> Exception:
    error = ALL[kind](*values)
    for note in notes:
        error.add_note(note)
    return error


@step(name="raised: throw")
def throw(kind: str, values: tuple[Any, ...], notes: list[str]) -> None:
    raise made(kind, values, notes)


def describe(error: Exception) -> str:
    """Tell all that code could see of an error, but for what lies behind it."""
    slots = [
        (name, repr(getattr(error, name, "unset"))) for name in ("code", "never", "nothing", "errno", "filename", "end")
    ]
    facts: tuple[Any, ...] = (type(error).__qualname__, error.args, sorted(vars(error).items()), str(error), slots)
    if isinstance(error, StepError):
        faults = [(fault.kinds, fault.causes) for fault in error.errors]
        facts = (error.fault.kinds, error.step, error.path, faults)
    return repr(facts)


# ------------------------------------------------------------------ the property

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
calls = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(ALL)),
        "values": st.lists(values, max_size=3).map(tuple),
        "notes": st.lists(st.text(max_size=9), max_size=2),
        "declared": st.booleans(),
        "retries": st.integers(0, 1),
        "caught": st.integers(0, 9).map(bool),
    }
)
seen: dict[int, list[str]] = {}
"""What each activation's agent was given, in order."""


@agent(name="raised: walk")
def walk(calls: list[dict[str, Any]]) -> list[str]:
    out: list[str] = []
    for call in calls:
        classes = (type(made(call["kind"], call["values"], [])),) if call["declared"] else ()
        retries: int = call["retries"]
        one = throw.options(retries=retries, backoff=0.01, raises=(*classes, ZeroDivisionError))
        try:
            one(call["kind"], call["values"], call["notes"])
        except Exception as error:
            itself = not isinstance(error, StepError)
            behind = describe(error.__cause__) if isinstance(error.__cause__, StepError) else ""
            out.append(f"{itself} {describe(error)} {behind}")
            info = task_info()
            assert info is not None
            seen.setdefault(info.activation, []).append(out[-1])
            if not call["caught"]:
                raise
    return out


@SOME
@given(calls=st.lists(calls, min_size=1, max_size=4), plan=crash_plans())
def test_live_and_replay_raise_alike(calls: list[dict[str, Any]], plan: list[int]) -> None:
    whole = run_through_crashes(walk, calls)
    seen.clear()
    crashed = run_through_crashes(walk, calls, plan=plan)
    crashed.check()
    views = sorted(seen.values(), key=len)
    for shorter, longer in itertools.pairwise(views):
        assert longer[: len(shorter)] == shorter
    assert crashed.status == whole.status
    assert without_chance(crashed.value) == without_chance(whole.value)
    assert without_chance(str(crashed.error)) == without_chance(str(whole.error))


def without_chance(text: Any) -> Any:
    """Leave out what differs from run to run by its own nature."""
    return None if "number " in str(text) or "Fickle" in str(text) else text


@SOME
@given(calls=st.lists(calls, min_size=1, max_size=4))
def test_a_declared_error_that_can_be_stored_is_the_one_that_was_raised(calls: list[dict[str, Any]]) -> None:
    calls = [{**call, "caught": True} for call in calls]
    run = run_through_crashes(walk, calls)
    for call, told in zip(calls, run.result, strict=True):
        error = made(call["kind"], call["values"], call["notes"])
        if call["kind"] in FAITHFUL and call["declared"]:
            assert told.startswith(f"True {describe(error)} ((")
        else:
            assert told.startswith("False ")


# ------------------------------------------------------------------ one by one


def thrown(kind: str, *values: Any, raises: tuple[type[Exception], ...], on_failure: Any = "fail") -> Any:
    """Give an agent that lets a declared error through."""

    @agent(name="raised: one", on_failure=on_failure)
    def flow() -> Any:
        return throw.options(raises=raises)(kind, values, [])

    return flow


def test_only_exactly_the_declared_classes_arrive_as_themselves(disk: Store) -> None:
    arrived: list[type] = []

    @agent
    def flow() -> None:
        for kind, raises in (
            ("both", (KeyError, ConnectionError, OSError)),
            ("both", (BothError,)),
            ("third", (BothError,)),
            ("builtin", (Exception,)),
            ("builtin", (TypeError, ValueError)),
        ):
            try:
                throw.options(raises=raises)(kind, (), [])
            except Exception as error:
                arrived.append(type(error))

    live(disk, flow)
    assert arrived == [StepError, BothError, StepError, StepError, ValueError]


def test_the_cause_of_a_declared_error_is_the_step_error_with_all_its_facts(disk: Store) -> None:
    causes: list[BaseException | None] = []

    @agent
    def flow() -> None:
        try:
            throw.options(raises=(PlainError,), retries=2, backoff=0)("plain", (7,), [])
        except PlainError as error:
            causes.append(error.__cause__)

    live(disk, flow)
    (cause,) = causes
    assert isinstance(cause, StepError)
    assert (cause.step, cause.path, cause.attempts, len(cause.errors)) == ("raised: throw", "1", 3, 3)
    assert "raise made(kind, values, notes)" in cause.fault.traceback


def test_each_hand_over_is_a_fresh_error_made_without_its_own_init(disk: Store) -> None:
    inits: list[int] = []

    class CountedError(Exception):
        def __init__(self, items: list[int]) -> None:
            super().__init__(items)
            inits.append(len(items))

    @step(name="fetch", raises=(CountedError,))
    def fetch() -> None:
        raise CountedError([1])

    @agent
    def flow() -> list[int]:
        try:
            fetch()
        except CountedError as error:
            error.args[0].append(2)
            items: list[int] = error.args[0]
            if len(starts) == 0:
                starts.append(1)
                raise RuntimeError("a bug, once") from None
            return items
        return []

    starts: list[int] = []
    assert live(disk, flow) == [1, 2]
    assert (inits, kinds(disk).count("Activated")) == ([1], 2)


@pytest.mark.parametrize("caught", [False, True], ids=["let through", "raised again"])
def test_a_declared_error_that_leaves_the_agent_fails_its_task_like_a_step_error(disk: Store, caught: bool) -> None:
    one = throw.options(raises=(PlainError,))

    @agent
    def inner() -> None:
        one("plain", (7,), [])

    @agent
    def flow() -> None:
        try:
            gather(inner, lambda: None)
        except PlainError as error:
            if caught:
                raise error from None
            raise

    with pytest.raises(TaskFailedError, match="PlainError: step 1/1/1/1 raised: throw: 7") as failed:
        live(disk, flow)
    assert failed.value.fault.is_a(PlainError)
    assert "Restarted" not in kinds(disk)


def test_a_declared_error_that_leaves_the_agent_is_held_where_failures_are(disk: Store) -> None:
    error = held(disk, thrown("plain", 7, raises=(PlainError,), on_failure="hold"))
    assert error.reason == "failed step"
    assert "PlainError: 7" in str(error)


def test_an_error_of_a_declared_class_that_the_agent_raises_itself_is_a_bug_of_the_agent(disk: Store) -> None:
    @agent
    def flow() -> None:
        try:
            throw.options(raises=(PlainError,))("plain", (7,), [])
        except PlainError:
            raise PlainError(8) from None

    with AgentSystem(disk, strikes=1) as system:
        task = system.spawn(flow, id="t")
        with pytest.raises(Exception, match="PlainError: 8, at ") as caught:
            task.result(20)
    assert type(caught.value).__name__ == "TaskHeldError"


@pytest.mark.parametrize("kind", AWKWARD)
def test_a_declared_error_that_cannot_come_back_is_a_step_error_and_the_reason_is_logged(
    disk: Store, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    raises = (type(made(kind, (1,), [])),)
    with pytest.raises(TaskFailedError) as caught:
        live(disk, thrown(kind, 1, raises=raises))
    assert caught.value.fault.is_a(raises[0])
    (told,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert f"{raises[0].__name__} is in raises=, but cannot be stored so that it comes back: " in told


def test_a_declared_error_that_is_too_large_is_a_step_error(disk: Store, caplog: pytest.LogCaptureFixture) -> None:
    flow = thrown("plain", "x" * 10_000, raises=(PlainError,))
    with pytest.raises(TaskFailedError):
        live(disk, flow, value_limit=5_000)
    (failure,) = (event for event in log(disk) if isinstance(event, StepFailed))
    assert len(repr(failure.error)) < 20_000
    assert "the value takes" in caplog.text


def test_a_class_that_is_declared_no_more_arrives_as_a_step_error(disk: Store) -> None:
    raises: tuple[type[Exception], ...] = (PlainError,)
    arrived: list[type] = []

    @agent
    def flow() -> None:
        try:
            throw.options(raises=raises)("plain", (7,), [])
        except Exception as error:
            arrived.append(type(error))
        if len(arrived) == 1:
            raise RuntimeError("a bug, once")

    with AgentSystem(disk, strikes=1) as system:
        with pytest.raises(Exception, match="a bug, once"):
            system.spawn(flow, id="t").result(20)
        raises = ()
        system.task("t").release(by="ann")
        system.task("t").result(20)
    assert arrived == [PlainError, StepError]
