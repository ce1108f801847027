"""How values of users' own classes are taken apart into fields, and put together again.

For enums, dataclasses, named tuples and pydantic models. Nothing is imported, and no user code runs when a value is put
together: no `__init__`, `__post_init__` or validator. So an instance is what it was, also where today's checks would
refuse it. A field that was not there when the value was stored gets its default, where that is a constant or the empty
value of a built-in type such as `list`; a default that other code makes is a matter for an upgrade function.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum, Flag
from functools import cached_property
from inspect import getattr_static
from types import MemberDescriptorType
from typing import Any, NamedTuple, TypeAlias

from domain.json_text import Json
from domain.leaves import Refused, type_name


class Misfit(Exception):  # noqa: N818  never seen outside the domain
    """Stops a value from being put together; its argument says why, as a predicate of the class."""


class Parts(NamedTuple):
    """An instance, taken apart. All but the fields is of pydantic models: extras, private attributes, names set."""

    fields: dict[str, Any]
    extra: dict[str, Any] | None = None
    private: dict[str, Any] | None = None
    given: list[str] | None = None

    def named(self) -> dict[str, Any]:
        """Give all values by name."""
        return {**self.fields, **(self.extra or {}), **(self.private or {})}


class EnumShape:
    """Members, by their names: a name that was changed is kept alive by an alias. Combined flags are lists of names."""

    def __init__(self, cls: type[Enum]) -> None:
        self.cls = cls

    def take_apart(self, value: Enum) -> Json:
        """Name a member; bits of a flag that have no name are a number."""
        members: Mapping[str, Enum] = self.cls.__members__
        name: Any = value._name_
        if name is not None and members.get(name) is value:
            return str(name)
        if not isinstance(value, Flag):
            raise Refused(f"is no member of {type_name(self.cls)} that has a name")
        names: list[Json] = []
        rest: int = value._value_
        for one, member in members.items():
            bit: int = member._value_
            if bit and bit & (bit - 1) == 0 and rest & bit:
                names.append(one)
                rest &= ~bit
        return [*names, rest] if rest else names

    def put_together(self, stored: Json) -> Enum:
        """Find a member again."""
        if not isinstance(stored, list):
            return self._member(stored)
        if not issubclass(self.cls, Flag):
            raise Misfit("is no flag, so that nothing can be combined")
        value: int = 0
        for one in stored:
            value |= one if type(one) is int else self._member(one)._value_
        found: Any = None
        with suppress(Exception):  # an error of the user's `_missing_` may be any
            found = self.cls(value)
        if type(found) is not self.cls or found._value_ != value:
            raise Misfit(f"can no longer combine {stored!r}")
        return found

    def _member(self, name: Json) -> Enum:
        member: Enum | None = self.cls.__members__.get(name) if isinstance(name, str) else None
        if member is None:
            raise Misfit(f"has no member {name!r}; give it one, or an alias that says which member took its place")
        return member


class _FieldsShape:
    """What the classes with fields have in common: which there are, and what stands in for one that was not stored."""

    def __init__(self, cls: type, names: tuple[str, ...]) -> None:
        self.cls: Any = cls
        self.names = names
        self._known = frozenset(names)

    def default(self, name: str) -> Any:
        """Give the default of a field. Raises Misfit where it has none, or none that is a constant."""
        raise NotImplementedError

    def complete(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Give a value to each field of today. Raises Misfit for fields that have come without a default, or gone."""
        gone = next((name for name in stored if name not in self._known), None)
        if gone is not None:
            raise Misfit(f"has no field {gone!r}; give register(…, upgrade=…), which says what became of it")
        return {name: stored[name] if name in stored else self.default(name) for name in self.names}

    def _check_attributes(self, value: object) -> dict[str, Any]:
        """Give the instance's own attributes; refuse those that are neither a field nor made from fields."""
        held = _own_attributes(value)
        if not held.keys() <= self._known:
            for name in held.keys() - self._known - _TYPING:
                if not isinstance(getattr_static(self.cls, name, None), cached_property):
                    raise Refused(f"has the attribute {name!r}, which is no field of {type_name(self.cls)}")
        return held


_TYPING = {"__orig_class__", "__pydantic_private__"}  # how a generic class was called; where a root model keeps them


class DataclassShape(_FieldsShape):
    """Dataclasses: frozen ones, with slots, keyword-only, and with fields that `__init__` does not take."""

    def __init__(self, cls: type) -> None:
        self._fields = {field.name: field for field in fields(cls)}
        super().__init__(cls, tuple(self._fields))
        found = {name: getattr_static(cls, name, None) for name in self.names}
        self._slots = {name: slot for name, slot in found.items() if isinstance(slot, MemberDescriptorType)}
        managed = next((n for n, one in found.items() if n not in self._slots and hasattr(type(one), "__set__")), None)
        if managed is not None:
            raise Misfit(f"manages its field {managed!r} by a descriptor")
        self._hidden = [
            slot
            for base in cls.__mro__
            for name, slot in vars(base).items()
            if isinstance(slot, MemberDescriptorType) and name not in self._known
        ]
        _check_blank(cls)

    def take_apart(self, value: Any) -> Parts:
        """Read the fields where they are kept, past whatever the class does about attributes."""
        held = self._check_attributes(value)
        for slot in self._hidden:
            if _in_slot(slot, value) is not MISSING:
                raise Refused(f"has the attribute {slot.__name__!r}, which is no field of {type_name(self.cls)}")
        return Parts({name: self._read(name, held, value) for name in self.names})

    def _read(self, name: str, held: dict[str, Any], value: Any) -> Any:
        found = held.get(name, MISSING)
        if found is MISSING:
            slot = self._slots.get(name)
            found = self._fields[name].default if slot is None else _in_slot(slot, value)
        if found is MISSING:
            raise Refused(f"has a field {name!r} that was never set")
        return found

    def put_together(self, parts: Parts, _: frozenset[str]) -> Any:
        """Make an instance with these fields."""
        _check_plain(parts)
        made = object.__new__(self.cls)
        for name, value in self.complete(parts.fields).items():
            object.__setattr__(made, name, value)
        return made

    def default(self, name: str) -> Any:
        field = self._fields[name]
        return field.default if field.default is not MISSING else _made_default(name, field.default_factory)


class NamedTupleShape(_FieldsShape):
    """Named tuples, of either kind."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls, cls._fields)

    def take_apart(self, value: Any) -> Parts:
        """Read the items."""
        self._check_attributes(value)
        items = tuple.__getitem__(value, slice(None))
        if len(items) != len(self.names):
            raise Refused(f"has {len(items)} items, not one for each field of {type_name(self.cls)}")
        return Parts(dict(zip(self.names, items, strict=True)))

    def put_together(self, parts: Parts, _: frozenset[str]) -> Any:
        """Make an instance with these fields."""
        _check_plain(parts)
        return tuple.__new__(self.cls, self.complete(parts.fields).values())

    def default(self, name: str) -> Any:
        return _constant(name, self.cls._field_defaults.get(name, MISSING))


class ModelShape(_FieldsShape):
    """Pydantic models, with their extras, private attributes and the names of the fields that were set."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls, tuple(cls.model_fields))
        self._private = cls.__private_attributes__
        _check_blank(cls)

    def take_apart(self, value: Any) -> Parts:
        """Read the fields, and what pydantic keeps beside them."""
        held = self._check_attributes(value)
        unset = next((name for name in self.names if name not in held), None)
        if unset is not None:
            raise Refused(f"has a field {unset!r} that was never set")
        extra, private = _kept(value, "__pydantic_extra__"), _kept(value, "__pydantic_private__")
        if (private is not None) != bool(self._private):
            raise Refused("has private attributes that were never set up")
        values = {name: held[name] for name in self.names}
        given = _kept(value, "__pydantic_fields_set__")
        return Parts(
            values, extra or None, private or None, None if given == {*values, *(extra or ())} else sorted(given)
        )

    def put_together(self, parts: Parts, stored: frozenset[str]) -> Any:
        """Make an instance; what was in `stored` and not set is not set, what an upgrade has added is."""
        made = object.__new__(self.cls)
        extra = dict(parts.extra or ())
        given = {*parts.fields, *extra}
        if parts.given is not None:
            before = {*stored, *extra}
            given = (given | set(parts.given) - before) - (before - set(parts.given))
        object.__setattr__(made, "__dict__", self.complete(parts.fields))
        object.__setattr__(made, "__pydantic_fields_set__", given)
        if not getattr(self.cls, "__pydantic_root_model__", False):
            allows = self.cls.model_config.get("extra") == "allow"
            object.__setattr__(made, "__pydantic_extra__", extra if extra or allows else None)
            object.__setattr__(made, "__pydantic_private__", None)
        if self._private or parts.private:
            object.__setattr__(made, "__pydantic_private__", self._complete_private(parts.private or {}))
        return made

    def _complete_private(self, stored: dict[str, Any]) -> dict[str, Any]:
        gone = next((name for name in stored if name not in self._private), None)
        if gone is not None:
            raise Misfit(f"has no private attribute {gone!r} any more")
        new = {name: private for name, private in self._private.items() if name not in stored}
        return stored | {name: _model_default(name, private) for name, private in new.items() if _has_default(private)}

    def default(self, name: str) -> Any:
        field = self.cls.model_fields[name]
        return _model_default(name, field) if _has_default(field) else _constant(name, MISSING)


Shape: TypeAlias = EnumShape | DataclassShape | NamedTupleShape | ModelShape


def has_shape(cls: type) -> bool:
    """Tell whether a class is of a kind whose values can be taken apart."""
    return issubclass(cls, Enum) or is_dataclass(cls) or is_model(cls) or is_named_tuple(cls)


def shape_of(cls: type) -> Shape:
    """Tell how to take values of a class apart, for one that `has_shape`. Raises Misfit where they could not return."""
    if issubclass(cls, Enum):
        return EnumShape(cls)
    if is_model(cls):
        return ModelShape(cls)
    return DataclassShape(cls) if is_dataclass(cls) else NamedTupleShape(cls)


def is_model(cls: type) -> bool:
    """Tell whether a class is a pydantic model, without importing pydantic."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return isinstance(base, type) and issubclass(cls, base)


def is_named_tuple(cls: type) -> bool:
    """Tell whether a class is a named tuple, of either kind."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def _check_blank(cls: type) -> None:
    """Raise Misfit where a bare instance is not all there is below the fields: on top of a list, an exception."""
    try:
        object.__new__(cls)
    except TypeError as error:
        raise Misfit(f"cannot be made without its own code: {error}") from None


def _check_plain(parts: Parts) -> None:
    if parts.extra or parts.private:
        raise Misfit("is no pydantic model, so that extras and private attributes have no place in it")


def _own_attributes(value: object) -> dict[str, Any]:
    try:
        held: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held


def _kept(model: object, name: str) -> Any:
    try:
        return object.__getattribute__(model, name)
    except AttributeError:
        return None


def _in_slot(slot: Any, value: object) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return MISSING


def _constant(name: str, default: Any) -> Any:
    if default is MISSING:
        raise Misfit(f"has a field {name!r} without a default, which was not stored; give register(…, upgrade=…)")
    return default


def _has_default(field: Any) -> bool:
    return field.default_factory is not None or type(field.default).__name__ != "PydanticUndefinedType"


def _model_default(name: str, field: Any) -> Any:
    return deepcopy(field.default) if field.default_factory is None else _made_default(name, field.default_factory)


_EMPTY = (list, dict, set, frozenset, tuple, str, bytes, int, float, bool)


def _made_default(name: str, factory: Any) -> Any:
    if factory is MISSING:
        return _constant(name, MISSING)
    if factory not in _EMPTY:
        raise Misfit(
            f"has a field {name!r} that was not stored and whose default is made by a function, which may make another "
            "at each replay; give register(…, upgrade=…)"
        )
    return factory()
