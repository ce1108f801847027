"""How tasks are spawned: by a system, or into a group of one."""

from __future__ import annotations

import functools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar, TypeVarTuple, overload

from actors.context import refuse_inside_agent, refuse_on_loop
from actors.definitions import AnyAgent
from actors.info import checked
from actors.ref import Home, TaskRef
from domain.errors import DefinitionError, InvalidTaskIdError
from domain.values import encode

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

ID_LIMIT = 200
"""Characters that a task's id may have."""


class SpawningHome(Home, Protocol):
    """The system into which tasks are spawned."""

    def know(self, agent: AnyAgent) -> None:
        """Take note of an agent, so that its tasks are run here."""
        ...


class Spawner(ABC):
    """Spawns tasks."""

    @property
    @abstractmethod
    def _home(self) -> SpawningHome:
        """The system."""

    def _group_of(self, task_id: str) -> str:  # noqa: ARG002  for groups
        """Give the group into which a task is about to be spawned, after it has been told; empty for none."""
        return ""

    @overload
    def spawn(
        self,
        agent: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[R]: ...
    @overload
    def spawn(
        self,
        agent: Callable[[*Ts], R],
        /,
        *args: *Ts,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[R]: ...
    def spawn(
        self,
        agent: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[Any]:
        """Make a task of an agent. When it returns, the task is in the store and will be run, whatever dies.

        Idempotent by id: the same agent with the same input gives the task that is there, also when it has ended.

        Args:
            agent: a function decorated with `@agent`, or a `functools.partial` of one, for keywords.
            args: its arguments; they are stored, and the agent gets equal ones at each replay.
            id: 1 to 200 printable characters; a random one where it is left out.
            tags: texts by name, kept with the task; those of the first spawn stay.

        Raises TypeError for arguments that the agent does not take, UnstorableValueError, InvalidTaskIdError,
        TaskConflictError where the id is in use otherwise, InsideTaskError in an agent between its steps,
        StoreUnavailableError after 30 s.
        """
        refuse_inside_agent("spawn()", "call it in a step, with an id")
        refuse_on_loop("spawn()", "await spawn_async(…)")
        home = self._home
        log = home.log
        definition, args, kwargs = _unwrap(agent, args)
        try:
            bound = definition.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"agent {definition.name}{definition.signature}: {error}") from None
        arguments = checked([list(bound.args), dict(bound.kwargs)], home.runtime.value_limit)
        task_id = _checked_id(id) if id is not None else f"{definition.name}-{secrets.token_hex(4)}"
        labels = _checked_tags(tags or {})
        home.know(definition)
        group = self._group_of(task_id)
        task = log.create(task_id, definition.name, arguments, labels, aliases=definition.names[1:], group=group)
        home.wake()
        return TaskRef(home, task.id)

    @overload
    async def spawn_async(
        self,
        agent: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[R]: ...
    @overload
    async def spawn_async(
        self,
        agent: Callable[[*Ts], R],
        /,
        *args: *Ts,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[R]: ...
    async def spawn_async(
        self,
        agent: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[Any]:
        """Do what `spawn` does, without blocking the event loop."""
        refuse_inside_agent("spawn_async()", "call it in a step, with an id")
        return await self._home.runtime.commits.call(functools.partial(self.spawn, agent, *args, id=id, tags=tags))


def _unwrap(agent: Any, args: tuple[Any, ...]) -> tuple[AnyAgent, tuple[Any, ...], dict[str, Any]]:
    kwargs: dict[str, Any] = {}
    while isinstance(agent, functools.partial):
        args, kwargs, agent = (*agent.args, *args), {**agent.keywords, **kwargs}, agent.func
    if not isinstance(agent, AnyAgent):
        name = getattr(agent, "__qualname__", repr(agent))
        raise DefinitionError(f"{name} is not an agent: decorate it with @agent before it is spawned")
    return agent, args, kwargs


def _checked_id(id: object) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= ID_LIMIT:
        raise InvalidTaskIdError(f"a task's id has 1 to {ID_LIMIT} characters, not {id!r:.250}", task_id=str(id))
    for index, character in enumerate(id):
        if not character.isprintable():
            raise InvalidTaskIdError(
                f"a task's id has printable characters only; at index {index} there is {character!a}", task_id=id
            )
    return id


def _checked_tags(tags: object) -> Any:
    if not isinstance(tags, Mapping):
        raise TypeError(f"tags are texts by name, not {tags!r}")
    for name, text in tags.items():
        if type(name) is not str or type(text) is not str:
            raise TypeError(f"tags are texts by name, not {name!r}: {text!r}")
    return encode(dict(tags))
