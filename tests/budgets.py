"""A budget that can be asked, and that misbehaves where told; gates to stop at; and what the store has of it."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

from actors import AgentSystem, Entity, Rejected, event
from actors.entity_log import EntityLog, stream_of
from actors.mapper import HEAD
from actors.patience import Patience
from domain.entity_state import EntityState
from domain.values import loads
from stores import Store

PATIENCE = 20.0
"""Seconds after which a test gives up."""


class TooMuch(Rejected):
    def __init__(self, left: int) -> None:
        super().__init__(left)
        self.left = left


class Gate:
    """Where a command stops until a test lets it go on."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()


gates: defaultdict[str, Gate] = defaultdict(Gate)


@contextmanager
def gate(name: str) -> Iterator[Gate]:
    """Give a new gate, which is open at the latest when the block ends."""
    gates[name] = made = Gate()
    try:
        yield made
    finally:
        made.opened.set()


class Unprintable(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise ValueError("no words")


class Stubborn(Rejected):
    """Refuses to be printed, and to be raised again without its traceback."""

    def __str__(self) -> str:
        raise ValueError("no words")

    def with_traceback(self, _trace: Any) -> Any:
        raise ValueError("no")


def endless(depth: int) -> int:
    return endless(depth + 1) + 1


CRASHES: dict[str, Any] = {
    "ValueError": lambda: ValueError("a bug"),
    "AssertionError": AssertionError,
    "Unprintable": Unprintable,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError()]),
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "MemoryError": MemoryError,
    "StopIteration": StopIteration,
    "SystemExit": lambda: SystemExit(3),
}


class Budget(Entity):
    TOPIC = "tests.budget"

    def __init__(self) -> None:
        self.limit, self.spent = 100, 0
        self.notes: list[Any] = []

    def spend(self, amount: int, *, note: Any = None) -> int:
        if self.spent + amount > self.limit:
            raise TooMuch(self.limit - self.spent)
        self.book(amount, note)
        return self.limit - self.spent

    def refund(self, amount: int) -> int:
        self.book(-amount, "refund")
        return self.limit - self.spent

    def spend_twice(self, amount: int) -> int:
        self.book(amount, "first")
        return self.spend(amount)

    @event("Spent")
    def book(self, amount: int, note: Any) -> None:
        self.spent += amount
        self.notes.append(note)

    def left(self) -> int:
        return self.limit - self.spent

    def all_notes(self) -> list[Any]:
        return self.notes

    def changed(self) -> datetime:
        return self.modified_on

    # ------------------------------------------------------------------ what a command may not, or slowly

    def meddle(self) -> int:
        self.limit += 1_000_000
        self.notes.append("mine")
        return self.limit

    def refuse_with(self, kind: str) -> None:
        no = Rejected(self.notes) if kind == "notes" else Stubborn()
        raise no

    def crash(self, how: str) -> None:
        self.spent += 1
        self.book(1, "never")
        error: BaseException = CRASHES[how]()
        raise error

    def recurse(self) -> int:
        return endless(0)

    def spend_at(self, name: str, amount: int) -> int:
        gates[name].reached.set()
        assert gates[name].opened.wait(PATIENCE)
        return self.spend(amount)

    def crash_at(self, name: str) -> None:
        gates[name].reached.set()
        assert gates[name].opened.wait(PATIENCE)
        raise ValueError("a bug")

    def give(self, what: str) -> Any:
        self.book(1, "never")
        return {"lock": threading.Lock, "huge": lambda: "x" * 5_000_000}[what]()

    def note_lock(self) -> None:
        self.book(1, {"deep": [threading.Lock()]})

    def note_huge(self) -> None:
        self.book(1, "x" * 5_000_000)


class Row(NamedTuple):
    """What a row of an entity's log says."""

    version: int
    topic: str
    at: float
    fields: dict[str, Any]
    key: str | None


def rows(disk: Store, id: str, cls: type[Entity] = Budget) -> list[Row]:
    """Read the log of an entity."""
    found = []
    for row in disk.recorder.select_events(stream_of(cls, id)):
        payload: Any = loads(row.state[HEAD:])
        _, _, at, fields, receipt, *_ = payload
        found.append(Row(row.originator_version, row.topic, at, fields, receipt[0] if receipt else None))
    return found


def bookings(disk: Store, id: str) -> list[int]:
    """Give the amounts that were booked, in their order."""
    return [row.fields["amount"] for row in rows(disk, id) if row.topic == "tests.budget.Spent"]


def replayed(disk: Store, id: str, cls: type[Entity] = Budget) -> EntityState:
    """Fold the log of an entity afresh."""
    return EntityLog(disk).load(cls, id, Patience(0.0))


def spent(disk: Store, id: str = "b") -> int:
    """Give what is spent of a budget, as its log has it."""
    state: Any = replayed(disk, id).aggregate
    return state.spent if state is not None else 0


def living(system: AgentSystem) -> list[str]:
    """Name the entities that have an actor in this process."""
    return [str(box) for box, _ in system.runtime.entities.alive()]
