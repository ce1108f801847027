"""`TaskGroup`: children that are supervised together, reached by the group's name."""

from __future__ import annotations

from functools import partial
from typing import Any, Self, TypeVar

from actors.context import refuse_inside_agent, refuse_on_loop
from actors.entity_ref import ASK_TIMEOUT, EntityRef, checked_entity_id
from actors.groups import Child, Group, Strategy, group_rows, load_group
from actors.mailbox import Restart
from actors.mapper import SEPARATOR
from actors.spawning import Spawner, SpawningHome
from domain.entity import Entity, topic_of
from domain.errors import GroupConflictError, Rejected, TaskConflictError

E = TypeVar("E", bound=Entity)


class TaskGroup(Spawner):
    """A group: tasks and entities in the order in which they came, and what happens when one of them crashes.

    `strategy`: "one_for_one", only the one that crashed starts again; "one_for_all", all others begin anew too;
    "rest_for_one", those that came after it do. A task that begins anew does so at its next step boundary, with what it
    had in memory gone and all its steps kept; an entity does so after the command that it is at.

    Guaranteed: what crashed is counted and held by itself, as without a group: no sibling is ever held for it; a child
    is in the group's log before it starts. Not guaranteed: that all are down at the same moment; that the death of a
    process makes anything begin anew but what it ran: what was shared with that, in memory, is gone too; and of
    entities, that those of other processes begin anew. Leaving the `with` block waits for nothing and stops nothing.
    """

    def __init__(self, system: SpawningHome, name: str, strategy: Strategy) -> None:
        self._system = system
        self.name = name
        self.strategy = strategy
        self._opened = False

    def __repr__(self) -> str:
        return f"TaskGroup({self.name!r}, strategy={self.strategy!r})"

    def __enter__(self) -> Self:
        """Make the group, or find it. Raises GroupConflictError for one with another strategy, the store's errors."""
        refuse_inside_agent("a group", "open it in a step, or outside")
        refuse_on_loop("a group", "async with")
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        return

    async def __aenter__(self) -> Self:
        """Do what `with` does, without blocking the event loop."""
        refuse_inside_agent("a group", "open it in a step, or outside")
        await self._system.runtime.commits.call(self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    def entity(
        self, cls: type[E], id: str, *, restart: Restart = "transient", timeout: float | None = ASK_TIMEOUT
    ) -> EntityRef[E]:
        """Add an entity, and give it to be asked. `restart` says what follows the ends of its actors.

        "permanent": it is started again, always, and never leaves memory, in each worker that has its class;
        "transient": it is started again after a crash, with a growing pause, and by the next command; "temporary": not
        after a crash: commands that wait for it are refused with EntityStoppedError, and the next begins anew.

        Said again with another `restart`, the last word counts. Raises what `AgentSystem.entity` does, ValueError for
        what is no `restart`, GroupConflictError where the entity is in another group, or this one has another strategy.
        """
        refuse_inside_agent("a group", "add to it in a step, or outside")
        refuse_on_loop("entity()", "await entity_async(…)")
        topic, entity_id, how = topic_of(cls), checked_entity_id(id), checked_restart(restart)
        self._refuse_other_groups(topic, entity_id)
        self._open().ask(Group.add, entity_id, topic, how)
        self._system.runtime.entities.keep(cls, entity_id, how, self.name)
        return EntityRef(self._system.runtime.entities, cls, entity_id, timeout=timeout)

    async def entity_async(
        self,
        cls: type[E],
        id: str,
        *,
        restart: Restart = "transient",
        timeout: float | None = ASK_TIMEOUT,  # noqa: ASYNC109  as `entity`
    ) -> EntityRef[E]:
        """Do what `entity` does, without blocking the event loop."""
        call = partial(self.entity, cls, id, restart=restart, timeout=timeout)
        return await self._system.runtime.commits.call(call)

    def _refuse_other_groups(self, topic: str, entity_id: str) -> None:
        """Refuse an entity that is in another group, as far as the log has it now."""
        log = self._system.log
        for row in group_rows(log):
            name = row.id.partition(SEPARATOR)[2]
            children = [] if name == self.name else load_group(log, name, log.patience).children
            if any((child.id, child.topic) == (entity_id, topic) for child in children):
                message = f"{topic} {entity_id} is in group {name}, and cannot be in group {self.name} too"
                raise GroupConflictError(message, topic=topic, entity_id=entity_id)

    def children(self) -> list[Child]:
        """List the children, in the order in which they came. Raises the store's errors."""
        refuse_on_loop("children()", "await children_async()")
        log = self._system.log
        return list(load_group(log, self.name, log.patience).children)

    async def children_async(self) -> list[Child]:
        """Do what `children` does, without blocking the event loop."""
        return await self._system.runtime.commits.call(self.children)

    @property
    def _home(self) -> SpawningHome:
        return self._system

    def _group_of(self, task_id: str) -> str:
        self._refuse_others(task_id)
        self._open().ask(Group.add, task_id)
        return self.name

    def _refuse_others(self, task_id: str) -> None:
        """Refuse a task that is there and not of this group, before it is added."""
        log = self._system.log
        task = log.load(task_id, log.patience) if log.recorder.select_entry(task_id) is not None else None
        if task is not None and task.group != self.name:
            where = f"is in group {task.group}" if task.group else "is in no group"
            raise TaskConflictError(
                f"task {task_id} exists already and {where}: it cannot be spawned into group {self.name}. Nothing was"
                " changed; choose another id",
                task_id=task_id,
            )

    def _open(self) -> EntityRef[Group]:
        _ = self._system.log
        group: EntityRef[Group] = EntityRef(self._system.runtime.entities, Group, self.name)
        if not self._opened:
            try:
                group.ask(Group.open, self.strategy)
            except Rejected as no:
                raise GroupConflictError(f"group {self.name}: {no}", topic=Group.TOPIC, entity_id=self.name) from None
            self._opened = True
        return group


def checked_restart(restart: Any) -> Restart:
    """Give it back. Raises ValueError for what is none."""
    if restart not in ("permanent", "transient", "temporary"):
        raise ValueError(f"restart is 'permanent', 'transient' or 'temporary', not {restart!r}")
    return restart  # type: ignore[no-any-return]
