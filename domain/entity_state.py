"""The state of one entity, and what a command makes of it: pure, but for the user's own decision.

A command decides on a copy, and its events are folded on another, from the form in which they are stored: so the live
state is what a replay would give, whatever a command does to it, and a failed append leaves nothing to undo.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from eventsourcing.domain import CanMutateAggregate

from domain.entity import Deciding, Entity, deciding, topic_of
from domain.json_text import Json

AnyEvent = CanMutateAggregate[str]

_SHARED = frozenset((type(None), bool, int, float, complex, str, bytes, date, datetime, time, timedelta, Decimal, UUID))
"""Types of which a copy is the thing itself."""


class Receipt(NamedTuple):
    """What is kept of a command that was asked with a key, with the events that it caused."""

    key: str
    command: str
    digest: str
    reply: Json


class EntityState:
    """One entity as its log tells it. Changed by `fold` alone.

    `version` is its place in the log, 0 before the first event; `aggregate` is None then. `birth` is random, and tells
    this log from another under the same id. `receipts` are the replies to the commands that came with a key.
    """

    def __init__(self, cls: type[Entity], entity_id: str) -> None:
        self.cls = cls
        self.topic = topic_of(cls)
        self.id = entity_id
        self.birth = ""
        self.version = 0
        self.created = self.updated = 0.0
        self.aggregate: Entity | None = None
        self.receipts: dict[str, Receipt] = {}

    def decide(self, command: str, args: Sequence[Any], kwargs: dict[str, Any], now: datetime) -> tuple[list[Any], Any]:
        """Call a command on a copy; give its events and its reply. A first `Created` alone is nothing.

        Raises what the command raises.
        """
        token = deciding.set(Deciding(self.id, now))
        try:
            entity = self.cls() if self.aggregate is None else copy_of(self.aggregate)
            reply = getattr(entity, command)(*args, **kwargs)
            events = list(entity.collect_events())
        finally:
            deciding.reset(token)
        return ([] if self.aggregate is None and len(events) == 1 else events), reply

    def after(self, events: Sequence[AnyEvent]) -> Entity:
        """Fold events on a copy. Raises what the entity's own code does."""
        entity = None if self.aggregate is None else copy_of(self.aggregate)
        for event in events:
            entity = event.mutate(entity)
        assert entity is not None  # noqa: S101  there is at least one event, or state
        return entity

    def swap(self, entity: Entity, events: Sequence[AnyEvent], receipt: Receipt | None) -> None:
        """Take what `after` gave for the state, once its events are in the log."""
        self.aggregate = entity
        self.version = events[-1].originator_version
        self.updated = events[-1].timestamp.timestamp()
        self.created = self.created or events[0].timestamp.timestamp()
        if receipt is not None:
            self.receipts[receipt.key] = receipt

    def fold(self, event: AnyEvent, receipt: Receipt | None) -> None:
        """Apply an event that is in the log. Raises what the entity's own code does."""
        self.swap(event.mutate(self.aggregate), [event], receipt)  # type: ignore[arg-type]  # it gives what it took


def copy_of(entity: Entity) -> Entity:
    """Copy an entity as deeply as it can change."""
    other = object.__new__(type(entity))
    memo: dict[int, Any] = {}
    other.__dict__.update(
        {k: v if type(v) in _SHARED else deepcopy(v, memo) for k, v in entity.__dict__.items()}
    )  # fmt: skip
    return other


def command_name(cls: type[Entity], command: object) -> str:
    """Give the name of a command, a method of the entity's class. Raises TypeError for anything else."""
    name, owner = getattr(command, "__name__", ""), getattr(command, "__qualname__", "").rpartition(".")[0]
    ours = name.startswith("_") or hasattr(Entity, name)
    if ours or not callable(getattr(cls, name, None)) or owner not in _names_of(cls):
        raise TypeError(
            f"a command of {cls.__qualname__} is one of its public methods, such as {cls.__qualname__}."
            f"{next(iter(_commands(cls)), 'method')}, not {command!r}"
        )
    return str(name)


def _names_of(cls: type) -> set[str]:
    return {base.__qualname__ for base in cls.__mro__ if base is not object}


def _commands(cls: type[Entity]) -> list[str]:
    return [name for name, value in vars(cls).items() if not name.startswith("_") and not isinstance(value, type)
            and callable(value)]  # fmt: skip
