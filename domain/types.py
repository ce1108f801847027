"""The names by which the log knows users' classes.

A class is known by an explicit `register`, or by its qualified name once an annotation of a function that was given to
`learn` names it. The log holds that name and never a module, so that files can move. Names outlive the code: a class
that is renamed keeps its old name alive with `register(New, name="Old")`.

    @register(version=2, upgrade=add_currency)
    @dataclass
    class Invoice: ...

    def add_currency(fields, version):
        return {**fields, "currency": "EUR"}

Safe to use from any thread: each change is one operation of a dict, and nothing is locked while annotations, which are
code, are read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

from domain.annotations import named_by
from domain.errors import DefinitionError, UnknownTypeError
from domain.leaves import Refused, type_name
from domain.structures import EnumShape, Misfit, Parts, Shape, has_shape, shape_of

T = TypeVar("T")
Upgrade: TypeAlias = Callable[[dict[str, Any], int], dict[str, Any]]
"""Given the fields of an older version, and which version: today's fields."""

NAME_LIMIT = 200
_TOLD = 300  # characters of what could not be resolved


class Known(NamedTuple):
    """A class under one of its names, with how its values are stored."""

    name: str
    shape: Shape
    version: int = 1
    upgrade: Upgrade | None = None

    @property
    def cls(self) -> type:
        """The class of today."""
        return self.shape.cls

    def revive(self, parts: Parts, version: int) -> object:
        """Make a value of its stored parts. Raises UnknownTypeError where the class of today cannot take them."""
        if isinstance(self.shape, EnumShape):
            raise self.unfit("is an enum today; a class with fields was stored")
        if version > self.version:
            raise self.unfit(
                f"is of version {self.version} here, and version {version} was stored: go on with the newer code"
            )
        stored = frozenset(parts.fields)
        if version < self.version and self.upgrade is not None:
            parts = parts._replace(fields=self._upgraded(self.upgrade, parts.fields, version))
        try:
            return self.shape.put_together(parts, stored)
        except Misfit as misfit:
            raise self.unfit(str(misfit)) from None

    def member(self, stored: Any) -> object:
        """Find an enum's member. Raises UnknownTypeError where the enum of today has it no more."""
        if not isinstance(self.shape, EnumShape):
            raise self.unfit("is no enum today; a member of one was stored")
        try:
            return self.shape.put_together(stored)
        except Misfit as misfit:
            raise self.unfit(str(misfit)) from None

    def unfit(self, why: str) -> UnknownTypeError:
        """Make the error that says why a stored value and the class do not go together."""
        named = "" if self.name == self.cls.__qualname__ else f", known as {self.name},"
        return UnknownTypeError(
            f"the stored value does not fit its class: {type_name(self.cls)}{named} {why}", type_name=self.name
        )

    def _upgraded(self, upgrade: Upgrade, fields: dict[str, Any], version: int) -> dict[str, Any]:
        try:
            result = upgrade(dict(fields), version)
        except Exception as error:
            raise self.unfit(
                f"has an upgrade function that raised {type(error).__name__} for version {version}: {error}"
            ) from error
        if not isinstance(result, dict):
            raise self.unfit(f"has an upgrade function that returned {type(result).__name__}, not a dict of fields")
        return result


class Registry:
    """Names and classes; `register` and `learn` below are those of the one that the log uses."""

    def __init__(self) -> None:
        self._names: dict[str, Known] = {}
        self._registered: dict[type, Known] = {}
        self._annotated: dict[str, dict[object, type]] = {}
        self._learned: dict[int, Any] = {}
        self._unresolved: dict[int, tuple[Any, list[str]]] = {}
        self._found: dict[type | str, Known] = {}  # what has been looked up; another dict after each change

    def register(self, cls: type, name: str | None, version: int, upgrade: Upgrade | None) -> None:
        """Make a class known by a name."""
        known = _checked(cls, name, version, upgrade)
        before = self._registered.get(cls)
        if before is not None and before.name != known.name and before.version > known.version:
            known = known._replace(version=before.version, upgrade=before.upgrade)
        other = self._names.setdefault(known.name, known)
        if other is not known:
            if _identity(other.cls) != _identity(cls):
                raise DefinitionError(_rivals(known.name, [other.cls, cls]))
            self._names[known.name] = known
            if other.cls is not cls:
                self._registered.pop(other.cls, None)
        self._registered[cls] = known
        self._found = {}

    def learn(self, function: object) -> None:
        """Take note of a function, whose annotations are read at the first need."""
        self._learned[id(function)] = function

    def of_class(self, cls: type) -> Known | None:
        """Tell under which name values of exactly this class are stored; None where it is not known.

        Raises Refused where it is known and cannot be stored all the same.
        """
        self._read_learned()
        found = self._found  # before anything is looked up: a change meanwhile takes another dict
        known = found.get(cls)
        if known is None and has_shape(cls):
            known = self._search(cls)
            if known is None and self._read_unresolved():
                found = self._found
                known = self._search(cls)
            if known is not None:
                found[cls] = known
        return known

    def of_name(self, name: str) -> Known:
        """Tell which class values of this name are of. Raises UnknownTypeError where there is no single one."""
        self._read_learned()
        found = self._found
        known = found.get(name)
        if known is None:
            known = self._search_name(name)
            if known is None and self._read_unresolved():
                found = self._found
                known = self._search_name(name)
            if known is None:
                raise UnknownTypeError(
                    f"the stored value is of the class {name}, which is not known here: gone, renamed or not imported."
                    f" Import it and annotate it on a step or agent, or register(…, name={name!r}){self.untold()}",
                    type_name=name,
                )
            found[name] = known
        return known

    def untold(self) -> str:
        """Tell, for the end of a message, which annotations could not be resolved so far."""
        told = "; ".join(dict.fromkeys(why for _, whys in list(self._unresolved.values()) for why in whys))
        if len(told) > _TOLD:
            told = f"{told[:_TOLD]}…"
        return f" (not resolved so far: {told})" if told else ""

    def _search(self, cls: type) -> Known | None:
        known = self._registered.get(cls)
        if known is not None:
            return known
        name = cls.__qualname__
        classes = self._candidates(name)
        if not any(one is cls for one in classes):
            return None
        if name in self._names:
            classes = [self._names[name].cls, cls]
        if len(classes) > 1:
            raise Refused(f"cannot be stored by name: {_rivals(name, classes)}")
        try:
            return Known(name, shape_of(cls))
        except Misfit as misfit:
            raise Refused(f"is of the type {type_name(cls)}, which {misfit}") from None

    def _search_name(self, name: str) -> Known | None:
        known = self._names.get(name)
        classes = [known.cls] if known else self._candidates(name)
        if len(classes) > 1:
            raise UnknownTypeError(_rivals(name, classes), type_name=name)
        if not classes:
            return None
        registered = self._registered.get(classes[0])
        if registered is not None:  # maybe by another name; a class has one version
            return registered._replace(name=name)
        try:
            return Known(name, shape_of(classes[0]))
        except Misfit as misfit:
            raise UnknownTypeError(f"{type_name(classes[0])} {misfit}", type_name=name) from None

    def _candidates(self, name: str) -> list[type]:
        """Give the annotated classes of a name; of several, those that have no other by `register`."""
        classes = list(self._annotated.get(name, {}).values())
        return classes if len(classes) == 1 else [cls for cls in classes if cls not in self._registered]

    def _read_learned(self) -> None:
        if self._learned:
            self._read(list(self._learned.items()))

    def _read_unresolved(self) -> bool:
        """Try what failed before once more, and tell whether there was anything to try."""
        again = [(key, function) for key, (function, _) in list(self._unresolved.items())]
        self._read(again)
        return bool(again)

    def _read(self, functions: Iterable[tuple[int, Any]]) -> None:
        for key, function in functions:
            named = named_by(function)
            for cls in named.classes:
                self._note(cls)
            if named.unresolved:
                self._unresolved[key] = (function, named.unresolved)
            else:
                self._unresolved.pop(key, None)
            self._learned.pop(key, None)  # last: until then another thread reads it too

    def _note(self, cls: type) -> None:
        classes = self._annotated.setdefault(cls.__qualname__, {})
        identity = _identity(cls)
        if classes.get(identity) is not cls:
            classes[identity] = cls
            self._found = {}


def _checked(cls: Any, name: Any, version: Any, upgrade: Any) -> Known:
    if not isinstance(cls, type) or not has_shape(cls):
        raise DefinitionError(
            f"register takes an enum, a dataclass, a named tuple or a pydantic model, not {cls!r}; as a decorator it "
            "stands above @dataclass"
        )
    name = cls.__qualname__ if name is None else name
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
        raise DefinitionError(f"register: a name has 1 to {NAME_LIMIT} printable characters, not {name!r}")
    if type(version) is not int or version < 1:
        raise DefinitionError(f"register {name}: a version is a number from 1 on, not {version!r}")
    if upgrade is not None and not callable(upgrade):
        raise DefinitionError(f"register {name}: upgrade is a function of fields and version, not {upgrade!r}")
    if issubclass(cls, Enum) and (version != 1 or upgrade is not None):
        raise DefinitionError(f"register {name}: an enum has no versions; a renamed member is kept alive by an alias")
    try:
        return Known(name, shape_of(cls), version, upgrade)
    except Misfit as misfit:
        raise DefinitionError(f"register {name}: {type_name(cls)} {misfit}") from None


def _identity(cls: type) -> object:
    """Tell classes apart, but not a class from itself imported again, nor `__main__` from the module of its file."""
    module: object = getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
    arguments = getattr(cls, "__pydantic_generic_metadata__", {}).get("args", ())
    return module, cls.__qualname__, tuple(_identity(one) if isinstance(one, type) else repr(one) for one in arguments)


def _rivals(name: str, classes: list[type]) -> str:
    told = " and ".join(type_name(cls) for cls in classes)
    return (
        f"the log knows a class by its name, and {told} are both {name}: give the newer one another, by "
        "register(…, name=…)"
    )


_registry = Registry()
learn = _registry.learn
of_class = _registry.of_class
of_name = _registry.of_name
untold = _registry.untold


@overload
def register(
    cls: type[T], /, *, name: str | None = None, version: int = 1, upgrade: Upgrade | None = None
) -> type[T]: ...
@overload
def register(
    *, name: str | None = None, version: int = 1, upgrade: Upgrade | None = None
) -> Callable[[type[T]], type[T]]: ...
def register(cls: Any = None, /, *, name: str | None = None, version: int = 1, upgrade: Upgrade | None = None) -> Any:
    """Make a class known to the log: an enum, a dataclass, a named tuple or a pydantic model. A call, or a decorator.

    A class that an annotation of a step or agent names needs this only for another name, or for versions. A class may
    have several names, for values that were stored under an older one; the last is the one that is written. A class
    that is imported again takes the place of the one before, whose values are then refused.

    Args:
        name: what the log holds; by default the class's qualified name. It outlives the code.
        version: raised by one whenever the fields change so that older values need an upgrade.
        upgrade: `(fields, version) -> fields`, given the fields of an older version; returns today's. It runs at each
            decode, so it must depend on nothing else. What it does not return gets the field's default.

    Raises DefinitionError for other classes, and for a name that another class has.
    """

    def decorate(decorated: type[T]) -> type[T]:
        _registry.register(decorated, name, version, upgrade)
        return decorated

    return decorate if cls is None else decorate(cls)
