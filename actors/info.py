"""What running code is told, what it may answer about a doubt, and which values it may hand to the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from domain.errors import UnstorableValueError
from domain.task import idempotency_key
from domain.values import dumps, encode

logger = logging.getLogger("perdure")

VALUE_WARNING = 256 * 1024
"""Bytes of an encoded value from which a warning is logged."""
VALUE_LIMIT = 4 * 1024 * 1024
"""Bytes of an encoded value from which it is refused."""


@dataclass(frozen=True)
class StepInfo:
    """What a body may know of itself. The key is the same in every attempt, and never that of another step."""

    task_id: str
    path: str
    name: str
    attempt: int
    birth: str

    @cached_property
    def idempotency_key(self) -> str:
        """Give the key by which the world can tell a repeat: 27 printable characters, derived from birth and path."""
        return idempotency_key(self.birth, self.path)


@dataclass(frozen=True)
class TaskInfo:
    """What an agent's code may know of its task.

    `activation` counts the starts of this task and differs between replays.
    """

    id: str
    agent: str
    activation: int
    tags: dict[str, str]


@dataclass(frozen=True)
class Doubt:
    """What an `on_doubt` function is told of its step: it began at `started` (Unix seconds), no end is in the log."""

    task_id: str
    path: str
    name: str
    attempt: int
    started: float
    idempotency_key: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Happened:
    """The answer that the step in doubt did happen, with the value it would have returned."""

    value: Any = None


@dataclass(frozen=True)
class NotHappened:
    """The answer that the step in doubt did not happen: it is run again, with the same key."""


@dataclass(frozen=True)
class Unknown:
    """The answer that nobody can tell: the task is held for a person."""

    why: str = ""


def checked(value: Any) -> Any:
    """Encode a value for the log.

    Raises UnstorableValueError for one that it cannot give back, or that is too large.
    """
    encoded = encode(value)
    if isinstance(encoded, str) and len(encoded) * 6 < VALUE_WARNING:
        return encoded  # however it is escaped, it is small
    size = len(dumps(encoded))
    if size > VALUE_WARNING:
        if size > VALUE_LIMIT:
            raise UnstorableValueError(
                f"the value takes {size:,} bytes, the limit is {VALUE_LIMIT:,}: keep it elsewhere, store where it is",
                path="value",
                type_name=type(value).__qualname__,
            )
        logger.warning("a value of %s bytes is stored; better keep it elsewhere and store where it is", f"{size:,}")
    return encoded
