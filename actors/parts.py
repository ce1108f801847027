"""What stands in line for an append, and what is in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeAlias

from eventsourcing.persistence import StoredEvent

from domain.events import ChildSpawned, TaskEvent
from domain.task import AgentTask
from stores.task_index import Birth

Inside: TypeAlias = Callable[[], None] | None
"""What is called in the transaction."""
Births: TypeAlias = Sequence[Birth]
Decide: TypeAlias = Callable[[AgentTask, float], list[TaskEvent]]
"""A decision: the task and the time in seconds of Unix time to events; called again after a conflict."""

INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""What hits a thread from outside, wherever it is: it is for that thread's caller alone, whatever it was doing."""


class Part:
    """What one caller brings to an append, or a rider, and its answer; with `nothing` to decide it only reads on.

    `done`: `events` or `error` is the answer, if anybody waits for it still. `word` wakes who follows: it has the
    answer now, or the lead.
    """

    def __init__(self, decide: Decide, inside: Inside = None, births: Births = (), *, rides: bool = False) -> None:
        self.decide = decide
        self.inside = inside
        self.births = births
        self.rides = rides
        self.events: list[TaskEvent] = []
        self.error: BaseException | None = None
        self.done = False
        self.word: SimpleQueue[None] = SimpleQueue()

    def answer(self) -> list[TaskEvent]:
        """Give the events, or raise the error. Called once, by who brought the part."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return self.events
        finally:
            del error  # its traceback holds this frame


class Flight:
    """One transaction: its parts, the version on which they decided, and the rows that its token marks as ours."""

    def __init__(self, parts: list[Part], base: int, token: bytes) -> None:
        self.parts = parts
        self.base = base
        self.token = token
        self.events: list[TaskEvent] = []
        self.rows: list[StoredEvent] = []
        self.births = [birth for part in parts for birth in part.births]

    def inside(self) -> None:
        """Call what the parts want to be called in the transaction. Raises Undone for the one that raises."""
        for part in self.parts:
            if part.inside is not None and part.events:
                try:
                    part.inside()
                except INTERRUPTS:
                    raise
                except BaseException as error:
                    raise Undone(part, error) from None


class Undone(BaseException):
    """Undoes what is in flight: this part, by this error, goes no further, and the others begin again without it."""

    @property
    def part(self) -> Part:
        """The part that goes no further."""
        part: Part = self.args[0]
        return part

    @property
    def error(self) -> BaseException:
        """What it goes no further by."""
        error: BaseException = self.args[1]
        return error


def unanswered(parts: list[Part]) -> list[Part]:
    """Give those that wait for their answer still."""
    return [part for part in parts if not part.done]


def speak_of(events: list[TaskEvent], birth: Birth) -> bool:
    """Tell whether a child is spawned by these events: its parent may have been called off instead."""
    return any(isinstance(event, ChildSpawned) and event.child == birth.entry.id for event in events)


def nothing(_task: AgentTask, _now: float) -> list[TaskEvent]:
    """Decide nothing: for who only reads on."""
    return []
