"""What running code is told, what it may answer about a doubt, and which values it may hand to the log."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from types import CoroutineType
from typing import Any, Protocol
from uuid import UUID

from domain.errors import UnstorableValueError
from domain.state import idempotency_key
from domain.values import dumps, encode

logger = logging.getLogger("perdure")

VALUE_WARNING = 256 * 1024
"""Bytes of an encoded value from which a warning is logged."""
VALUE_LIMIT = 4 * 1024 * 1024
"""Bytes of an encoded value from which it is refused."""


@dataclass(frozen=True)
class StepInfo:
    """What a body may know of itself. The key is the same in every attempt, and never that of another step.

    `heartbeat` is the last detail that an earlier attempt has given to `heartbeat(detail)`, or None.
    """

    task_id: str
    path: str
    name: str
    attempt: int
    birth: str
    heartbeat: Any = None

    @cached_property
    def idempotency_key(self) -> str:
        """Give the key by which the world can tell a repeat: 27 printable characters, derived from birth and path."""
        return idempotency_key(self.birth, self.path)


class Repeatable(Protocol):
    """What is the same in every run of an agent's code, at its place."""

    @property
    def is_replaying(self) -> bool:
        """Whether the log goes on from here."""
        ...

    @property
    def random(self) -> random.Random:
        """Random numbers."""
        ...

    def now(self) -> float:
        """Give the time, in seconds of Unix time."""
        ...

    def uuid4(self) -> UUID:
        """Give a UUID."""
        ...


@dataclass(frozen=True)
class TaskInfo:
    """What an agent's code may know of its task; ask for it anew in each branch.

    `activation` counts the starts of this task and differs between replays.
    """

    id: str
    agent: str
    activation: int
    tags: dict[str, str]
    _here: Repeatable = field(repr=False, compare=False)

    @property
    def is_replaying(self) -> bool:
        """Whether the code here has run before: the log goes on from this place.

        False also where the last process died between the last record and this line: what is done only then may be
        done once more.
        """
        return self._here.is_replaying

    @property
    def random(self) -> random.Random:
        """Random numbers that each replay draws again, derived from the task's birth and the scope: no secret."""
        return self._here.random

    def now(self) -> datetime:
        """Give the time in UTC at which this call was first reached; each replay is given the same.

        It takes a position, as a step does, and is in the log with the next append.
        """
        return datetime.fromtimestamp(self._here.now(), UTC)

    def uuid4(self) -> UUID:
        """Give a random UUID that each replay is given again, derived from the task's birth and the scope."""
        return self._here.uuid4()


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


ELSEWHERE = " (AgentSystem(value_limit=…)): keep it elsewhere, and store where it is"


def checked(value: Any, limit: int = VALUE_LIMIT, way_out: str = ELSEWHERE) -> Any:
    """Encode a value for the log.

    Raises UnstorableValueError for one that it cannot give back, or that takes more than `limit` bytes; `way_out` tells
    what to do then.
    """
    if type(value) is CoroutineType:
        value.close()
        hint = "await it, or call an async step or agent by .sync(…) where the code is sync"
        raise UnstorableValueError(
            f"it is a coroutine that nobody has awaited: {hint}", path="value", type_name="coroutine"
        )
    encoded = encode(value)
    if isinstance(encoded, str) and len(encoded) * 6 < min(limit, VALUE_WARNING):
        return encoded  # however it is escaped, it is small
    size = len(dumps(encoded))
    if size > min(limit, VALUE_WARNING):
        if size > limit:
            raise UnstorableValueError(
                f"the value takes {size:,} bytes, the limit is {limit:,}{way_out}",
                path="value",
                type_name=type(value).__qualname__,
            )
        logger.warning("a value of %s bytes is stored; better keep it elsewhere and store where it is", f"{size:,}")
    return encoded
