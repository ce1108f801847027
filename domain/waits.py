"""What a task waits for, and when a wait is over: pure, the time is handed in.

A wait has sources: a timer, or a name under which something may come into the log. What is in the log beats a time that
has passed, whatever the clocks say, and of two things in the log the first counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

TIMER, SIGNAL, APPROVAL, CHILD, ANY = "timer", "signal", "approval", "child", "any"
"""The kinds of waits; all but the last are kinds of sources too."""
RESERVED = "~"
"""What the names of signals begin with that are no user's: answers of people, and the ends of children."""
ANSWER, CHILD_END = f"{RESERVED}answer ", f"{RESERVED}child "
"""What stands before an approval's path, and before a child's id, in those names."""


class Moment(NamedTuple):
    """What time it is: on the wall, in Unix seconds, and by the monotonic clock of the timeline of that name."""

    wall: float
    line: str
    mono: float


class Due(NamedTuple):
    """When a time has come: at `at` on the wall; where the timeline `line` lives still, when that shows `mono`.

    A sleep *for* a while has both: it follows elapsed time as long as its process lives. A sleep *until* has the first.
    """

    at: float
    line: str = ""
    mono: float = 0.0

    def left(self, moment: Moment) -> float:
        """Give the seconds until it has come; none or less where it has.

        >>> Due(100.0, "here", 7.0).left(Moment(500.0, "here", 5.0)), Due(100.0, "here", 7.0).left(Moment(98.0, "x", 0))
        (2.0, 2.0)
        """
        return self.mono - moment.mono if self.line and self.line == moment.line else self.at - moment.wall

    def stored(self) -> list[Any]:
        """Give what the log has of it."""
        return list(self) if self.line else [self.at]

    @classmethod
    def read(cls, stored: Any) -> Self | None:
        """Read what the log has; None for no time."""
        return None if stored is None else cls(*stored)


class Source(NamedTuple):
    """One thing to wait for: a timer that is `due`, or what comes under `name`."""

    kind: str
    name: str = ""
    due: Due | None = None


NAME_LIMIT = 200
"""Characters that name a wait for the first of several."""


def first_of(sources: Sequence[Source]) -> str:
    """Name a wait for the first of several by what they are: where the code asks for others, a replay sees it.

    >>> first_of([Source(SIGNAL, "paid"), Source(TIMER), Source(APPROVAL, answer_name("3"))])
    'signal paid, timer, approval 3'
    """
    text = ", ".join(
        f"{kind} {name[1:].partition(' ')[2] if name[:1] == RESERVED else name}".strip() for kind, name, _ in sources
    )
    if len(text) <= NAME_LIMIT:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:NAME_LIMIT]}… ({len(sources)} in all, {digest})"


class Wait(NamedTuple):
    """A wait: for the first of its sources, or until `due`."""

    kind: str
    name: str
    sources: tuple[Source, ...] = ()
    due: Due | None = None

    def first_due(self) -> list[Due]:
        """List the times at which it may be over."""
        dues = [source.due for source in self.sources]
        return [due for due in (*dues, self.due) if due is not None]

    def wants(self, name: str) -> bool:
        """Tell whether it is over when something comes under that name."""
        return any(source.kind != TIMER and source.name == name for source in self.sources)

    def stored(self) -> tuple[list[Any], list[Any] | None]:
        """Give the sources and the time as the log has them."""
        sources = [[kind, name, None if due is None else due.stored()] for kind, name, due in self.sources]
        return sources, None if self.due is None else self.due.stored()

    @classmethod
    def read(cls, kind: str, name: str, sources: Any, due: Any) -> Self:
        """Read what the log has."""
        return cls(kind, name, tuple(Source(k, n, Due.read(d)) for k, n, d in sources), Due.read(due))


TIMED_OUT = (-1, 0)
"""How a wait is over by its own time."""


def settled(wait: Wait, first: Callable[[str], int | None], moment: Moment) -> tuple[int, int] | None:
    """Tell how a wait is over: the number of its source, and the version of what came; None where it is not.

    What came first counts: of times that have passed together the first of the sources, and the wait's own last.
    `first` gives the version of the first thing under a name that nobody has taken.
    """
    came = [
        (version, number)
        for number, source in enumerate(wait.sources)
        if source.kind != TIMER and (version := first(source.name)) is not None
    ]
    if came:
        version, number = min(came)
        return number, version
    times = [(source.due, (number, 0)) for number, source in enumerate(wait.sources)] + [(wait.due, TIMED_OUT)]
    passed = [(left, how) for due, how in times if due is not None and (left := due.left(moment)) <= 0]
    return min(passed, key=lambda one: one[0])[1] if passed else None


def first_left(waits: Sequence[Wait], moment: Moment) -> float | None:
    """Give the seconds until the first of some waits may be over by time; None where none has a time."""
    return min((due.left(moment) for wait in waits for due in wait.first_due()), default=None)


def answer_name(path: str) -> str:
    """Give the name under which the answer to the approval asked for at `path` comes."""
    return f"{ANSWER}{path}"


def child_name(child: str) -> str:
    """Give the name under which a child's end comes."""
    return f"{CHILD_END}{child}"
