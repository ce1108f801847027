"""Entities: event-sourced aggregates of the user's own, such as a budget, a conversation, an inventory.

An entity is a plain aggregate of the eventsourcing library with a text id. What is special here is where its events get
their names, their time and their owner from: from its class and from who decides, never from a row or from a clock.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar, cast

from eventsourcing.domain import (
    BaseAggregate,
    CanInitAggregate,
    CanMutateAggregate,
    MetaAggregate,
    MetaDomainEvent,
    ProgrammingError,
)

from domain.errors import DefinitionError
from domain.types import learn

EntityT = TypeVar("EntityT", bound="Entity")

_TOPIC = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class Deciding(NamedTuple):
    """For whom, and at what time, a decision is made: events that are triggered meanwhile say so."""

    entity_id: str
    at: datetime


deciding: ContextVar[Deciding | None] = ContextVar("perdure_deciding", default=None)
"""What actors set around a command; None where an aggregate is used by hand, as in a test of its own."""


class EntityType(MetaAggregate["Entity"]):
    """Gives each event of an entity its topic: that of the entity, and the event's name, unless it has one of its own.

    Raises DefinitionError for what cannot be an entity.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> EntityType:
        """Make the class, and know it by its topic from now on."""
        if any(isinstance(base, EntityType) for base in bases):
            topic = namespace.get("TOPIC")
            if not (isinstance(topic, str) and _TOPIC.fullmatch(topic)):
                raise DefinitionError(
                    f'entity {name} needs a name for the log that outlives its code: TOPIC = "{name.lower()}"'
                    f" (letters, digits, '_', '.' and '-'), not {topic!r}"
                )
        try:
            made = super().__new__(mcs, name, bases, namespace, **options)
        except (ProgrammingError, TypeError) as error:
            raise DefinitionError(f"entity {name}: {error}") from None
        if "TOPIC" in namespace:
            _register(cast("type[Entity]", made), namespace)
        return made

    def _define_event_class(
        cls,
        name: str,
        bases: tuple[type[CanMutateAggregate[Any]], ...],
        apply_method: Callable[..., Any] | None,
        event_topic: str | None = None,
    ) -> type[CanMutateAggregate[Any]]:
        own = [vars(base)["TOPIC"] for base in bases if base.__qualname__ == f"{cls.__qualname__}.{name}"
               and "TOPIC" in vars(base)]  # fmt: skip
        if "TOPIC" in vars(cls):
            event_topic = event_topic or (own[0] if own else f"{vars(cls)['TOPIC']}.{name}")
        return super()._define_event_class(name, bases, apply_method, event_topic)


@dataclass(frozen=True)
class EntityEvent(CanMutateAggregate[str], metaclass=MetaDomainEvent):
    """What every event of an entity carries: whose, its version (1 is the first), and when, in UTC."""

    originator_id: str
    originator_version: int
    timestamp: datetime

    @staticmethod
    def create_timestamp() -> datetime:
        """Give the time of the decision; the library's own, where there is none."""
        decision = deciding.get()
        return CanMutateAggregate.create_timestamp() if decision is None else decision.at


@dataclass(frozen=True)
class EntityCreated(EntityEvent, CanInitAggregate[str]):
    """The first event of an entity."""

    originator_topic: str


class Entity(BaseAggregate[str], metaclass=EntityType):
    """The base of event-sourced entities of your own: subclass it, and reach one by `system.entity(Budget, id)`.

        class Budget(Entity):
            TOPIC = "budget"                            # its name in the log: it outlives the class

            def __init__(self) -> None:                 # the state before the first event; takes no argument
                self.limit, self.spent = Decimal(100), Decimal(0)

            def spend(self, amount: Decimal) -> Decimal:    # a command: decides, by the state alone
                if self.spent + amount > self.limit:
                    raise Rejected(f"only {self.limit - self.spent} is left")
                self.book(amount)
                return self.limit - self.spent

            @event("Spent")                             # an event: changes the state, and can refuse nothing
            def book(self, amount: Decimal) -> None:
                self.spent += amount

    An entity of any id exists, in the state of `__init__`, until its first event. Only events change it: what a command
    changes beside them is gone when it ends. A command may be called again, after another process was first, and on
    any thread: it touches nothing but the entity. What events, arguments and replies hold is stored as a step's values
    are. `PASSIVATE_AFTER`: seconds without a command after which it leaves memory; the next one brings it back.
    """

    PASSIVATE_AFTER = 30.0

    class Event(EntityEvent):
        """The base of an entity's events."""

    class Created(EntityCreated):
        """The entity had its first command that changed something."""

    @staticmethod
    def create_id(*_: Any, **__: Any) -> str:
        """Give the id for which the decision is made; "new" for an aggregate that is made by hand."""
        decision = deciding.get()
        return "new" if decision is None else decision.entity_id


_entities: dict[str, type[Entity]] = {}
_events: dict[str, type[CanMutateAggregate[str]]] = {}


def _register(cls: type[Entity], namespace: dict[str, Any]) -> None:
    needed = [p for p in list(inspect.signature(vars(cls).get("__init__", cls.__init__)).parameters.values())[1:]
              if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]  # fmt: skip
    if needed:
        raise DefinitionError(
            f"entity {cls.__qualname__}: __init__ takes {', '.join(p.name for p in needed)}, but an entity of any id"
            " exists without being made: give a default, and a command that sets it"
        )
    waiting = [name for name, value in namespace.items() if inspect.iscoroutinefunction(value)]
    if waiting:
        raise DefinitionError(
            f"entity {cls.__qualname__}: {', '.join(waiting)} is an async def, but a command decides at once and waits"
            " for nothing: wait before it, in a step"
        )
    _entities[topic_of(cls)] = cls
    for value in vars(cls).values():
        if isinstance(value, type) and issubclass(value, CanMutateAggregate) and "TOPIC" in vars(value):
            _events[vars(value)["TOPIC"]] = cast("type[CanMutateAggregate[str]]", value)
    for value in namespace.values():
        function = getattr(value, "decorated_func", value)
        if inspect.isfunction(function):
            learn(function)


def topic_of(cls: type[Entity]) -> str:
    """Give the name by which the log knows an entity's class. Raises DefinitionError for what is no such class."""
    topic = vars(cls).get("TOPIC")
    if topic is None:
        raise DefinitionError(f"{cls!r} is not an entity: subclass Entity, with a TOPIC")
    return str(topic)


def event_class(topic: str) -> type[CanMutateAggregate[str]] | None:
    """Give the class of an event by its topic, from a closed table: no row of a log can make us import anything."""
    return _events.get(topic)


def find_entity(topic: str) -> type[Entity] | None:
    """Give the class of an entity by its topic, if this process has it."""
    return _entities.get(topic)


def known_topics() -> frozenset[str]:
    """Give the topics of the entities that this process has."""
    return frozenset(_entities)
