"""Errors as data: whatever an exception is, it is stored like any other."""

# ruff: noqa: N818  strangers name their exceptions as they like

import json
import pickle
import threading
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.faults import CHAIN_LIMIT, MESSAGE_LIMIT, TRACEBACK_LIMIT, Fault
from domain.values import dumps, encode


def fault_of(error: BaseException) -> Fault:
    """Raise it, catch it and describe it; the description goes through the log."""
    with suppress(BaseException):
        raise error
    fault = described(error)
    assert Fault.from_data(json.loads(dumps(encode(fault.to_data())))) == fault
    return fault


def described(error: BaseException) -> Fault:
    """Describe it; what that raises is told by name only, for not even pytest can print some of these."""
    raised = None
    try:
        return Fault.of(error)
    except BaseException as found:
        raised = type(found).__name__
    pytest.fail(f"to describe a {type(error).__name__} has raised {raised}")


class Declined(Exception):
    """The bank said no."""


class HardDeclined(Declined, ValueError):
    pass


def test_a_fault_has_names_message_and_traceback() -> None:
    fault = fault_of(HardDeclined("no funds"))
    assert fault.kinds == (
        f"{__name__}:HardDeclined",
        f"{__name__}:Declined",
        "ValueError",
        "Exception",
        "BaseException",
    )
    assert (fault.kind, fault.message, str(fault)) == ("HardDeclined", "no funds", "HardDeclined: no funds")
    assert "test_faults.py" in fault.traceback
    assert "raise error" in fault.traceback
    assert fault.causes == ()


def test_an_exception_without_a_message_is_its_name() -> None:
    assert str(fault_of(KeyError())) == "KeyError"


# ------------------------------------------------------------------ what it was


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (HardDeclined, True),
        (Declined, True),
        (ValueError, True),
        (Exception, True),
        (BaseException, True),
        (KeyError, False),
        (OSError, False),
        ("HardDeclined", True),
        ("Declined", True),
        ("ValueError", True),
        (f"{__name__}:Declined", True),
        ("__main__:Declined", True),
        ("another.module:Declined", False),
        ("declined", False),
        ("lined", False),
        ("", False),
    ],
)
def test_a_fault_is_known_by_class_by_name_and_by_name_with_module(kind: Any, expected: bool) -> None:
    assert fault_of(HardDeclined("x")).is_a(kind) is expected


def test_a_class_of_the_main_file_has_two_modules_and_is_still_the_same() -> None:
    in_main = type("Declined", (Exception,), {"__module__": "__main__"})
    elsewhere = type("Declined", (Exception,), {"__module__": "elsewhere"})
    assert fault_of(in_main("x")).is_a(Declined)
    assert fault_of(Declined("x")).is_a(in_main)
    assert not fault_of(elsewhere("x")).is_a(Declined)


def test_a_class_inside_another_is_known_by_its_qualified_name() -> None:
    class Outer:
        class Lost(Exception):
            pass

    fault = fault_of(Outer.Lost("x"))
    assert fault.is_a(Outer.Lost)
    assert fault.is_a(Outer.Lost.__qualname__)
    assert not fault.is_a("Lost")


# ------------------------------------------------------------------ causes


def test_causes_are_listed_the_nearest_first() -> None:
    def decline() -> None:
        try:
            try:
                raise KeyError("k")
            except KeyError:
                raise ValueError("v")  # noqa: B904  a context is a cause too
        except ValueError as error:
            raise Declined("d") from error

    with pytest.raises(Declined) as caught:
        decline()
    assert Fault.of(caught.value).causes == ("ValueError: v", "KeyError: 'k'")


def test_an_exception_that_is_its_own_cause_ends() -> None:
    error = ValueError("round")
    error.__cause__ = error
    assert fault_of(error).causes == ()
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert fault_of(one).causes == ("ValueError: other",)


def test_a_chain_is_cut() -> None:
    error = ValueError("0")
    for number in range(1, 300):
        above = ValueError(str(number))
        above.__cause__, error = error, above
    fault = fault_of(error)
    assert fault.causes == tuple(f"ValueError: {number}" for number in range(298, 298 - CHAIN_LIMIT, -1))
    assert len(fault.traceback) < TRACEBACK_LIMIT + 100


# ------------------------------------------------------------------ bounds


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    fault = fault_of(ValueError("<" + "x" * 10_000_000 + ">"))
    assert len(fault.message) < MESSAGE_LIMIT + 50
    assert fault.message.startswith("<xxx")
    assert fault.message.endswith("xxx>")
    assert "characters left out" in fault.message
    assert len(fault.traceback) < TRACEBACK_LIMIT + 50


def test_a_traceback_without_end_is_cut() -> None:
    def recurse() -> None:
        recurse()

    with pytest.raises(RecursionError) as caught:
        recurse()
    assert len(Fault.of(caught.value).traceback) < TRACEBACK_LIMIT + 50


def test_a_group_of_many_is_cut() -> None:
    group = ExceptionGroup("many", [ValueError("y" * 1000) for _ in range(500)])
    fault = fault_of(group)
    assert fault.is_a(ExceptionGroup)
    assert len(json.dumps(fault.to_data())) < 50_000


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(), max_size=30).map(lambda text: text * 400))
def test_any_text_is_stored_and_bounded(text: str) -> None:
    fault = fault_of(ValueError(text))
    assert fault.message.encode().decode() == fault.message
    assert len(fault.message) < MESSAGE_LIMIT + 50


# ------------------------------------------------------------------ awkward ones


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("I will not be printed")

    __repr__ = __str__


class Quits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Wordless(Exception):
    def __str__(self) -> Any:
        return None  # noqa: PLE0307


class Falsy(Exception):
    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")


class Empty(Exception):
    def __len__(self) -> int:
        return 0


class Closed(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is closed")


class NoNotes(Exception):
    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no notes")


class HoldsALock(Exception):
    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle")


@pytest.mark.parametrize("kind", [Silent, Quits, Wordless, Falsy, Empty, Closed, NoNotes, HoldsALock])
def test_an_awkward_exception_is_stored_like_any_other(kind: type[Exception]) -> None:
    fault = fault_of(kind())
    assert fault.is_a(kind)
    assert fault.kind == kind.__name__
    assert kind.__name__ in fault.traceback


@pytest.mark.parametrize("kind", [Silent, Quits, Wordless, Falsy, Empty, Closed, NoNotes, HoldsALock])
def test_an_awkward_cause_is_named(kind: type[Exception]) -> None:
    error = ValueError("above")
    error.__cause__ = kind()
    fault = described(error)
    assert [cause.partition(":")[0] for cause in fault.causes] == [kind.__name__]


def test_what_cannot_be_printed_says_so() -> None:
    assert fault_of(Silent()).message == "(the exception cannot be printed)"


def test_no_attribute_of_an_exception_is_looked_at() -> None:
    seen: list[str] = []

    class Watched(Exception):
        def __getattribute__(self, name: str) -> Any:
            seen.append(name)
            return super().__getattribute__(name)

        @property
        def response(self) -> Any:
            raise AssertionError("a connection is opened")

    error = Watched("x")
    error.request = object()  # type: ignore[attr-defined]
    fault_of(error)
    assert [name for name in seen if not name.startswith("__")] == []


def test_a_fault_pickles_and_is_plain_data() -> None:
    fault = fault_of(HoldsALock())
    assert pickle.loads(pickle.dumps(fault)) == fault
    assert set(fault.to_data()) == {"kinds", "message", "traceback"}
