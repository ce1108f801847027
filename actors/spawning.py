"""How tasks are spawned: by a system, or into a group of one."""

from __future__ import annotations

import functools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias, TypeVar, TypeVarTuple, overload

from actors.clock import Clock
from actors.context import refuse_inside_agent, refuse_on_loop
from actors.definitions import AnyAgent
from actors.info import checked
from actors.pausing import moment_of, seconds_of
from actors.ref import Home, TaskRef
from actors.spawned import bound_arguments, checked_id, checked_tags, unwrapped
from actors.task_log import Claim
from domain.task import AgentTask

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

Deadline: TypeAlias = float | timedelta | datetime | None
"""When a task is called off: in some seconds, in a timedelta, at a datetime with a zone, or never."""


class SpawningHome(Home, Protocol):
    """The system into which tasks are spawned."""

    def know(self, agent: AnyAgent) -> None:
        """Take note of an agent, so that its tasks are run here."""
        ...

    def begin(self, task_id: str, birth: str, make: Callable[[Claim | None], AgentTask], *, claims: bool) -> AgentTask:
        """Have a task made, and begin with it, where this is a worker."""
        ...


def until_of(deadline: Deadline, clock: Clock) -> float | None:
    """Give a deadline in Unix seconds. Raises ValueError for what is none."""
    if isinstance(deadline, datetime):
        return moment_of("a deadline", deadline)
    seconds = seconds_of("a deadline", deadline)
    return None if seconds is None else clock.now() + seconds


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
        deadline: Deadline = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[R]: ...
    @overload
    def spawn(
        self,
        agent: Callable[[*Ts], R],
        /,
        *args: *Ts,
        id: str | None = None,
        deadline: Deadline = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[R]: ...
    def spawn(
        self,
        agent: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        id: str | None = None,
        deadline: Deadline = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[Any]:
        """Make a task of an agent. When it returns, the task is in the store and will be run, whatever dies.

        Idempotent by id: the same agent with the same input gives the task that is there, also when it has ended.

        Args:
            agent: a function decorated with `@agent`, or a `functools.partial` of one, for keywords.
            args: its arguments; they are stored, and the agent gets equal ones at each replay.
            id: 1 to 200 printable characters; a random one where it is left out.
            deadline: when the task is called off if it has not ended: in so many seconds, or a timedelta, or at a
                datetime with a zone; by the clock on the wall. One that is held then is called off when it is let go.
            tags: texts by name, kept with the task; those of the first spawn stay.

        Raises TypeError for arguments that the agent does not take, UnstorableValueError, InvalidTaskIdError,
        TaskConflictError where the id is in use otherwise, InsideTaskError in an agent between its steps,
        StoreUnavailableError after 30 s.
        """
        refuse_inside_agent("spawn()", "use spawn_child(…), or call it in a step, with an id")
        refuse_on_loop("spawn()", "await spawn_async(…)")
        home = self._home
        log = home.log
        definition, positional, named = unwrapped(agent, args)
        arguments = checked(bound_arguments(definition, positional, named), home.runtime.value_limit)
        task_id = checked_id(id) if id is not None else f"{definition.name}-{secrets.token_hex(4)}"
        labels = checked_tags(tags or {})
        home.know(definition)
        group = self._group_of(task_id)
        until = until_of(deadline, home.runtime.clock)
        birth = secrets.token_hex(8)
        make = functools.partial(
            log.create,
            *(task_id, definition.name, arguments, labels),
            aliases=definition.names[1:],
            group=group,
            deadline=until,
            birth=birth,
        )
        # With a deadline, which may have passed, it is claimed by a look at the clock.
        task = home.begin(task_id, birth, lambda claim: make(claim=claim), claims=until is None)
        return TaskRef(home, task.id, task.birth)

    @overload
    async def spawn_async(
        self,
        agent: Callable[[*Ts], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        id: str | None = None,
        deadline: Deadline = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[R]: ...
    @overload
    async def spawn_async(
        self,
        agent: Callable[[*Ts], R],
        /,
        *args: *Ts,
        id: str | None = None,
        deadline: Deadline = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[R]: ...
    async def spawn_async(
        self,
        agent: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        id: str | None = None,
        deadline: Deadline = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[Any]:
        """Do what `spawn` does, without blocking the event loop."""
        refuse_inside_agent("spawn_async()", "use spawn_child_async(…), or call it in a step, with an id")
        return await self._home.runtime.commits.call(
            functools.partial(self.spawn, agent, *args, id=id, deadline=deadline, tags=tags)
        )
