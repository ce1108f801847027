"""Errors as data: any exception can be stored, listed and read by a process that has not its class.

Nothing is pickled, no attribute is looked at, and texts and chains are bounded, so that an exception which holds a
lock, refuses to be printed or is its own cause is stored like any other.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from types import TracebackType
from typing import Any

MESSAGE_LIMIT = 2_000
"""Characters of a message that are kept."""
TRACEBACK_LIMIT = 8_000
"""Characters of a traceback text that are kept: its beginning and, mostly, its end."""
CHAIN_LIMIT = 8
"""Causes that are kept of one exception."""


@dataclass(frozen=True)
class Fault:
    """What is known of an exception: the names of its class and of its bases, message, traceback text, causes."""

    kinds: tuple[str, ...]
    message: str
    traceback: str = ""
    causes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The class's own name, without its module."""
        return self.kinds[0].rpartition(":")[2]

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind

    def is_a(self, kind: type[BaseException] | str) -> bool:
        """Tell whether the exception was an instance of `kind`: a class, `"module:Name"`, or a bare `"Name"`."""
        name = name_of(kind) if isinstance(kind, type) else kind
        return any(_same(name, known) for known in self.kinds)

    def to_data(self) -> dict[str, Any]:
        """Give the plain form that an event holds."""
        data: dict[str, Any] = {"kinds": list(self.kinds), "message": self.message}
        if self.traceback:
            data["traceback"] = self.traceback
        if self.causes:
            data["causes"] = list(self.causes)
        return data

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Fault:
        """Read what `to_data` gave."""
        return cls(tuple(data["kinds"]), data["message"], data.get("traceback", ""), tuple(data.get("causes", ())))

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """Describe an exception; never raises, whatever the exception does when it is looked at."""
        return cls(
            tuple(name_of(kind) for kind in type(error).__mro__ if issubclass(kind, BaseException)),
            _bounded(_message(error), MESSAGE_LIMIT),
            _bounded(_traceback(error), TRACEBACK_LIMIT),
            _causes(error),
        )


def _same(one: str, other: str) -> bool:
    """Compare two names; one without a module, or of the main file, whose module has two names, matches by itself."""
    (module, _, name), (other_module, _, other_name) = one.rpartition(":"), other.rpartition(":")
    return name == other_name and (module == other_module or not {module, other_module}.isdisjoint(("", "__main__")))


def name_of(kind: type[BaseException]) -> str:
    """Give the name of a class of errors, with its module unless it is built in."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}:{kind.__qualname__}"


def _own(error: BaseException, name: str) -> Any:
    """Read an attribute as `BaseException` keeps it, past whatever the class does about attributes."""
    return getattr(BaseException, name).__get__(error)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Give the traceback of an exception as it really is."""
    trace: TracebackType | None = _own(error, "__traceback__")
    return trace


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "(the exception cannot be printed)"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:
        frames = traceback.format_tb(_own(error, "__traceback__"))
        return "".join([*frames, f"{type(error).__qualname__}: {_message(error)}\n"])


def cause_of(error: BaseException) -> BaseException | None:
    """Give what an exception was raised from, as it really is."""
    cause: BaseException | None = _own(error, "__cause__")
    return cause


def _cause(error: BaseException) -> BaseException | None:
    cause = cause_of(error)
    if cause is None and not _own(error, "__suppress_context__"):
        cause = _own(error, "__context__")
    return cause


def _causes(error: BaseException) -> tuple[str, ...]:
    seen, texts = {id(error)}, list[str]()
    cause = _cause(error)
    while cause is not None and id(cause) not in seen and len(texts) < CHAIN_LIMIT:
        seen.add(id(cause))
        texts.append(_bounded(f"{type(cause).__qualname__}: {_message(cause)}", MESSAGE_LIMIT))
        cause = _cause(cause)
    return tuple(texts)


def _bounded(text: str, limit: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    head = limit // 4
    return f"{text[:head]}\n… {len(text) - limit} characters left out …\n{text[head - limit :]}"
