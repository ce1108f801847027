"""The state of one entity, and what a command makes of it: pure, but for the user's own decision.

A command decides on a copy, and its events are folded on another, from the form in which they are stored: so the live
state is what a replay would give, whatever a command does to it, and a failed append leaves nothing to undo. The next
copy to decide on is made before the append: a state that could not be copied could be asked no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from inspect import Signature, getattr_static, isfunction, signature
from typing import Any, NamedTuple
from uuid import UUID

from eventsourcing.domain import CanMutateAggregate

from domain.entity import Deciding, Entity, deciding, own_bases, topic_of
from domain.faults import Fault
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
    """One entity as its log tells it. Changed by `fold`, and by `forget` where there is no such log any more.

    `version` is its place in the log, 0 before the first event; `aggregate` is None then. `birth` is random, and tells
    this log from another under the same id; `last` is what its last row is known by. `receipts` are the replies to the
    commands that came with a key.
    """

    def __init__(self, cls: type[Entity], entity_id: str) -> None:
        self.cls = cls
        self.topic = topic_of(cls)
        self.id = entity_id
        self.forget()

    def forget(self) -> None:
        """Be as an entity without a log is."""
        self.birth, self.last = "", b""
        self.version = 0
        self.created = self.updated = 0.0
        self.aggregate: Entity | None = None
        self.receipts: dict[str, Receipt] = {}
        self._draft: Entity | None = None

    def decide(self, command: str, args: Sequence[Any], kwargs: dict[str, Any], now: datetime) -> tuple[list[Any], Any]:
        """Call a command on a copy; give its events and its reply. A first `Created` alone is nothing.

        Raises what the command raises.
        """
        token = deciding.set(Deciding(self.id, now))
        try:
            entity = self._take_draft()
            reply = getattr(entity, command)(*args, **kwargs)
            if entity.failed is not None:
                raise entity.failed
            events = list(entity.collect_events())
        finally:
            deciding.reset(token)
        return ([] if self.aggregate is None and len(events) == 1 else events), reply

    def after(self, events: Sequence[AnyEvent]) -> tuple[Entity, Entity]:
        """Fold events on a copy; give it, and one to decide on next. Raises what the entity's own code does."""
        entity = None if self.aggregate is None else copy_of(self.aggregate)
        for event in events:
            entity = event.mutate(entity)
        assert entity is not None  # noqa: S101  there is at least one event, or state
        return entity, copy_of(entity)

    def swap(self, entity: Entity, draft: Entity | None, events: Sequence[AnyEvent], receipt: Receipt | None) -> None:
        """Take what `after` gave for the state, once its events are in the log."""
        self.aggregate, self._draft = entity, draft
        self.version = events[-1].originator_version
        self.updated = events[-1].timestamp.timestamp()
        self.created = self.created or events[0].timestamp.timestamp()
        if receipt is not None:
            self.receipts[receipt.key] = receipt

    def fold(self, event: AnyEvent, receipt: Receipt | None) -> None:
        """Apply an event that is in the log. Raises what the entity's own code does."""
        self.swap(event.mutate(self.aggregate), None, [event], receipt)  # type: ignore[arg-type]  # it gives what it took

    def _take_draft(self) -> Entity:
        """Give a copy to decide on, which nothing else will look at."""
        draft, self._draft = self._draft, None
        if draft is not None:
            return draft
        return self.cls() if self.aggregate is None else copy_of(self.aggregate)


def copy_of(entity: Entity) -> Entity:
    """Copy an entity as deeply as it can change. Raises TypeError, naming the attribute, where that cannot be done."""
    other, memo = object.__new__(type(entity)), dict[int, Any]()
    for name, value in entity.__dict__.items():
        try:
            other.__dict__[name] = _copy(value, memo)
        except Exception as error:
            what = f"{type(entity).__qualname__}.{name} cannot be copied, as the state of an entity is for each command"
            raise TypeError(f"{what}: {Fault.of(error)}") from error
    return other


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Copy a value as `deepcopy` would, which takes ten times as long for a long list of plain values."""
    kind = type(value)
    if kind in _SHARED:
        return value
    if kind not in (list, dict) or id(value) in memo:
        return deepcopy(value, memo)
    made: Any = kind()
    memo[id(value)] = made
    if kind is list:
        made.extend([item if type(item) in _SHARED else _copy(item, memo) for item in value])
    else:
        for key, item in value.items():
            made[key if type(key) in _SHARED else deepcopy(key, memo)] = _copy(item, memo)
    return made


def called(
    cls: type[Entity], command: object, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[str, list[Any], dict[str, Any]]:
    """Give the name of a command, a method of the entity's class, and its arguments in the one form that they have.

    Raises TypeError for anything else, in the words of Python for wrong arguments: a slip of who asks is no crash of
    the entity.
    """
    name, owner = getattr(command, "__name__", ""), getattr(command, "__qualname__", "").rpartition(".")[0]
    if name not in _commands(cls) or owner not in {base.__qualname__ for base in cls.__mro__}:
        raise TypeError(
            f"a command of {cls.__qualname__} is one of its public methods, such as {cls.__qualname__}."
            f"{next(iter(_commands(cls)), 'method')}, not {command!r}"
        )
    try:
        bound = _commands(cls)[name].bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{cls.__qualname__}.{name}: {error}") from None
    return name, list(bound.args), bound.kwargs


@cache
def _commands(cls: type[Entity]) -> dict[str, Signature]:
    """Give the methods by which an entity can be asked, and what they take, without itself."""
    names = [
        name for base in own_bases(cls) for name in vars(base) if not (name.startswith("_") or hasattr(Entity, name))
    ]
    return {name: found for name in names if (found := _signature(cls, name)) is not None}


def _signature(cls: type[Entity], name: str) -> Signature | None:
    held = getattr_static(cls, name)
    function = getattr(held, "decorated_func", held)
    if isinstance(held, staticmethod | classmethod):
        return signature(getattr(cls, name))
    if not isfunction(function):
        return None
    whole = signature(function)
    return whole.replace(parameters=list(whole.parameters.values())[1:])
