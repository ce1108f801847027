"""Errors that reach the agent as themselves: stored as data, made again at each hand-over, live and in a replay."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any, cast

from actors.info import checked
from domain.errors import ChildError, FailTask, RetryAfterError, StepError, WaitTimeoutError
from domain.faults import Fault, cause_of, name_of
from domain.retry import MOST_SECONDS
from domain.values import decode, digest, encode

logger = logging.getLogger("perdure")


def to_data(error: BaseException, raises: Collection[type[BaseException]], limit: int) -> dict[str, Any]:
    """Describe an error for the log; one of exactly a class in `raises` so that it can be made again.

    Where it could not be made again equal, in no more than `limit` bytes, the reason is logged, and it will reach the
    agent as a StepError.
    """
    data = Fault.of(error).to_data()
    if type(error) not in raises:
        return data
    try:
        parts = checked(_parts(error), limit)
        again = remade(type(error), decode(parts))
        if encode(_parts(again)) == parts and str(again) == str(error):
            return data | {"raised": parts}
        problem = "it would come back as another"
    except BaseException as why:  # whatever the class does when it is looked at
        problem = str(Fault.of(why))
    logger.warning("%s is in raises=, but cannot be stored so that it comes back: %s", type(error).__name__, problem)
    return data


def asked_wait(error: BaseException) -> float:
    """Give the seconds that an error asks to be left alone before the next attempt; 0 for none that make sense.

    >>> asked_wait(RetryAfterError(retry_after=7)), asked_wait(RetryAfterError(retry_after=float("nan")))
    (7.0, 0.0)
    """
    if not issubclass(type(error), RetryAfterError):
        return 0.0
    seconds = object.__getattribute__(error, "__dict__").get("retry_after")  # past what the class does about attributes
    return float(seconds) if type(seconds) in (int, float) and 0 <= seconds <= MOST_SECONDS else 0.0


FAILS = (FailTask, WaitTimeoutError, ChildError)
"""What fails a task when it leaves its agent, besides a StepError: a decision, and what a replay would meet again."""


def step_error_of(error: BaseException, declared: Mapping[str, StepError]) -> StepError | None:
    """Give the failed step that an error stands for: its StepError, or what it has declared and was handed over.

    `declared` has those that were handed over, by their `mark`: an error may be raised again from something else, and
    an equal one is taken for it. Of a group that consists of such errors alone it is the first.
    """
    if issubclass(type(error), BaseExceptionGroup):  # as a TaskGroup raises
        parts = cast("BaseExceptionGroup[BaseException]", error).exceptions
        found = [step_error_of(part, declared) for part in parts]
        return found[0] if all(found) else None
    if issubclass(type(error), StepError):
        return cast("StepError", error)
    cause = cause_of(error)
    if cause is not None and issubclass(type(cause), StepError):
        cause = cast("StepError", cause)
        if cause.fault.kinds[:1] == (name_of(type(error)),):
            return cause
    return declared.get(mark(error)) if declared else None


def mark(error: BaseException) -> str:
    """Give what an error is known by: its class and all that makes it this one; empty where that cannot be stored."""
    try:
        return f"{name_of(type(error))} {digest(encode(_parts(error)))}"
    except BaseException:  # whatever the class does when it is looked at
        return ""


def kind_of(data: dict[str, Any], raises: Collection[type[BaseException]]) -> type[BaseException] | None:
    """Give the class in `raises` of an error that was described so that it can be made again; None for a StepError."""
    if "raised" not in data:
        return None
    itself = Fault(tuple(data["kinds"][:1]), "")
    return next((kind for kind in raises if itself.is_a(kind)), None)


def remade(kind: type[BaseException], parts: Any) -> BaseException:
    """Make an error again: with the same `args`, attributes, notes and slots, and without running its class's code.

    Raises what Python does where that cannot be.
    """
    args, state, slots = parts
    error: BaseException = _built_in(kind).__new__(kind, *args)
    error.args = tuple(args)
    vars(error).update(state)
    for name, slot in _slots(kind):
        if name in slots:
            with suppress(AttributeError, TypeError):  # one that is read-only has its value, or will be missed
                slot.__set__(error, slots[name])
    return error


def _built_in(kind: type[BaseException]) -> Any:
    """Give the class of Python's own that lays out the instances of a class."""
    base: type = kind
    while base.__module__ != "builtins" and base.__base__ is not None:
        base = base.__base__
    return base


def _parts(error: BaseException) -> list[Any]:
    """Give all that makes an error this one."""
    slots = {name: slot.__get__(error) for name, slot in _slots(type(error)) if _is_set(slot, error)}
    return [list(error.args), dict(vars(error)), slots]


def _slots(kind: type[BaseException]) -> list[tuple[str, MemberDescriptorType]]:
    """List what instances of a class keep outside of their `__dict__`, such as the `errno` of an OSError."""
    classes = [base for base in kind.__mro__ if base is not BaseException]
    return [(n, slot) for base in classes for n, slot in vars(base).items() if isinstance(slot, MemberDescriptorType)]


def _is_set(slot: MemberDescriptorType, error: BaseException) -> bool:
    """Tell whether a slot has a value; where C code gives None, there is none."""
    try:
        return slot.__get__(error) is not None or "__slots__" in vars(slot.__objclass__)
    except AttributeError:
        return False
