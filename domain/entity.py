"""Entities: event-sourced aggregates of the user's own, such as a budget, a conversation, an inventory.

An entity is a plain aggregate of the eventsourcing library with a text id. What is special here is where its events get
their names, their time and their owner from: from its class and from who decides, never from a row or from a clock.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from types import FunctionType
from typing import Any, NamedTuple, cast

from eventsourcing.domain import (
    BaseAggregate,
    CanInitAggregate,
    CanMutateAggregate,
    DecoratedFuncCaller,
    MetaAggregate,
    MetaDomainEvent,
    ProgrammingError,
)

from domain.errors import DefinitionError, UnstorableValueError
from domain.retry import MOST_SECONDS
from domain.types import learn
from domain.values import encode

BASE = ("originator_id", "originator_version", "timestamp", "originator_topic")
"""The fields that each event has of its own, and no method that makes one may take."""
STORED = "_stored"
"""Where an event keeps its fields as they are stored: as they were when it happened."""
_LIBRARY = CanMutateAggregate.__module__
_GIVEN = ("INITIAL_VERSION", "create_id", "version", "created_on", "modified_on", "pending_events", "collect_events")
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
        except (AssertionError, AttributeError, ProgrammingError, TypeError, ValueError) as error:
            hint = ": each entity needs a TOPIC of its own" if "already registered" in str(error) else ""
            raise DefinitionError(f"entity {name}: {error}{hint}") from error
        if "TOPIC" in namespace:
            _register(cast("type[Entity]", made))
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

    An entity of any id exists, in the state of `__init__`, until its first event. Only events change it: a command
    decides on a copy of the state, and what it changes there beside them is gone when it ends. It may be called again,
    after another process was first, and on any thread: it touches nothing but the entity, and asks no other. What
    events, arguments and replies hold is stored as a step's values are. `PASSIVATE_AFTER`: seconds without a command
    after which it leaves memory; the next one brings it back.
    """

    PASSIVATE_AFTER = 30.0

    class Event(EntityEvent):
        """The base of an entity's events."""

    class Created(EntityCreated):
        """The entity had its first command that changed something."""

    def trigger_event(self, event_class: type[CanMutateAggregate[str]], **kwargs: Any) -> None:
        """Make an event happen, with its fields as they are now: what its body does to them is not in the log.

        Raises TypeError in the body of another event; what the body raises, and then nothing of the command counts.
        """
        if "_in_event" in self.__dict__:
            raise TypeError(f"the body of an event makes no other event happen: {event_class.__name__}")
        fields = {name: value for name, value in kwargs.items() if name not in BASE}
        self.__dict__["_in_event"] = True
        try:
            stored = _stored(fields)
            super().trigger_event(event_class, **kwargs)
            object.__setattr__(self.pending_events[-1], STORED, stored)
        except BaseException as error:
            self.__dict__["_failed"] = error
            raise
        finally:
            del self.__dict__["_in_event"]

    @property
    def failed(self) -> BaseException | None:
        """What the body of an event has raised, whatever the command has made of it."""
        return self.__dict__.get("_failed")

    @staticmethod
    def create_id(*_: Any, **__: Any) -> str:
        """Give the id for which the decision is made; "new" for an aggregate that is made by hand."""
        decision = deciding.get()
        return "new" if decision is None else decision.entity_id


def _stored(fields: dict[str, Any]) -> dict[str, Any]:
    """Give fields as they are stored; none where one cannot be: that is refused, and named, when it is to be."""
    try:
        return {name: encode(value) for name, value in fields.items()}
    except UnstorableValueError:
        return {}


_entities: dict[str, type[Entity]] = {}
_events: dict[str, type[CanMutateAggregate[str]]] = {}


def _register(cls: type[Entity]) -> None:
    """Know a class's events by their topics, and its annotations. Raises DefinitionError."""
    own = [value for base in own_bases(cls) for value in vars(base).values()]
    functions = [f for f in (getattr(v, "decorated_func", v) for v in own) if inspect.isfunction(f)]
    events = [e for e in vars(cls).values() if isinstance(e, type) and issubclass(e, CanMutateAggregate)]
    wrong = next(filter(None, (_wrong_with_class(cls), *map(_wrong_with, own), *map(_wrong_with_event, events))), None)
    if wrong:
        raise DefinitionError(f"entity {cls.__qualname__}: {wrong}")
    _entities[topic_of(cls)] = cls
    _events.update({vars(event)["TOPIC"]: event for event in events})
    for function in [*functions, *map(_fields_of, events)]:
        learn(function)


def _fields_of(event: type) -> FunctionType:
    """Give a function whose annotations are the fields that a class of events declares in words of its own."""
    mine = [base for base in event.__mro__ if base.__module__ not in (__name__, _LIBRARY)]
    declared = [vars(base).get("__annotations__", {}) for base in mine if not issubclass(base, DecoratedFuncCaller)]
    names = vars(sys.modules[event.__module__]) if event.__module__ in sys.modules else {}
    holder = FunctionType((lambda: None).__code__, names, event.__qualname__)
    holder.__annotations__ = {name: kind for fields in declared for name, kind in fields.items() if name not in BASE}
    holder.__qualname__ = event.__qualname__
    return holder


def _wrong_with_class(cls: Any) -> str:
    """Tell what keeps a class from being an entity; nothing where it can be one."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    if needed:
        what = f"__init__ takes {', '.join(needed)}, but an entity of any id exists without being made"
        return f"{what}: give a default, and a command that sets it"
    if is_dataclass(cls) and any(field.default_factory is not MISSING for field in fields(cls)):
        return "a default_factory makes a new value at each replay: write an __init__"
    if any(vars(base).get("__slots__") for base in cls.__mro__):
        return "it has __slots__, but the state of an entity stands in plain attributes"
    if redefined := [name for base in own_bases(cls) for name in _GIVEN if name in vars(base)]:
        return f"it redefines {redefined[0]}, which an entity has from its log"
    if hasattr(cls, "__len__") or hasattr(cls, "__bool__"):
        return "it has a __len__ or __bool__, by which its @event methods would not work: name it otherwise"
    after = cls.PASSIVATE_AFTER
    if type(after) not in (int, float) or not 0 <= after <= MOST_SECONDS:
        return f"PASSIVATE_AFTER is a number of seconds from 0 to {MOST_SECONDS:g}, not {after!r:.40}"
    return ""


def _wrong_with(value: object) -> str:
    """Tell what keeps an attribute of a class from being one of an entity's."""
    function = getattr(value, "decorated_func", value)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        what = f"{function.__name__} is an async def, but a command decides at once and waits for nothing"
        return f"{what}: wait before it, in a step"
    if isinstance(value, property) and hasattr(value.fset, "decorated_func"):
        return "@event belongs above the setter of a property, not below it"
    return ""


def _wrong_with_event(event: type) -> str:
    """Tell what keeps a class of events from being one of an entity's."""
    mine = [base for base in event.__mro__ if base.__module__ not in (__name__, _LIBRARY)]
    taken = [name for base in mine for name in vars(base).get("__annotations__", {}) if name in BASE]
    if taken:
        return f"{event.__name__} has a field {taken[0]}, which each event has of its own: name it otherwise"
    return "" if "TOPIC" in vars(event) else f"{event.__name__} needs a TOPIC of its own"


def own_bases(cls: type) -> list[type]:
    """Give a class and those of its bases that are a user's own, the first first."""
    return [base for base in cls.__mro__ if base not in Entity.__mro__]


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
