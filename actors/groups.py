"""Groups: who belongs together, in which order, and who begins anew when one of them crashes.

A group is an entity itself. So its supervisor has no memory that could be lost: what it decides, it decides by the
group's log, on the thread of the child that has crashed, before that crash is in the child's own log. A process that
dies in the middle leaves a child that died, and what its siblings shared with it in memory died too.
"""

from __future__ import annotations

import logging
from typing import Literal, NamedTuple, cast, get_args

from eventsourcing.domain import event

from actors.appender import Appender
from actors.entities import Entities
from actors.entity_log import EntityLog
from actors.mailbox import Restart
from actors.mapper import SEPARATOR
from actors.patience import Patience
from actors.task_log import TaskLog
from domain.entity import Entity, find_entity, known_topics
from domain.entity_state import EntityState
from domain.errors import PerdureError, Rejected
from stores import IndexRow, StoreError, StoreUnavailableError

logger = logging.getLogger("perdure")

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""Who begins anew when a child crashes, besides itself: nobody; all others; those that came after it."""


class Child(NamedTuple):
    """One child of a group: a task by its id, or an entity by its class's topic, its id and what follows its ends."""

    id: str
    topic: str = ""
    restart: str = ""


class Group(Entity):
    """The children of a group, in the order in which they came, and its strategy."""

    TOPIC = "perdure.group"

    def __init__(self) -> None:
        self.strategy: Strategy = "one_for_one"
        self.children: list[Child] = []

    def open(self, strategy: str) -> None:
        """Say how crashes are answered. Rejected for a group that answers them otherwise."""
        if self.version > 1 and strategy != self.strategy:
            raise Rejected(f"it is {self.strategy} already, and is not made {strategy}: choose another name")
        if self.version == 1:
            self.opened(strategy)

    def add(self, id: str, topic: str = "", restart: str = "") -> None:
        """Add a child, once."""
        child = Child(id, topic, restart)
        if child not in self.children:
            self.added(id, topic, restart)

    def siblings(self, id: str, topic: str = "") -> list[Child]:
        """Give who begins anew when a child has crashed."""
        keys = [(child.id, child.topic) for child in self.children]
        place = keys.index((id, topic)) if (id, topic) in keys else len(keys)
        first = {"one_for_all": 0, "rest_for_one": place + 1}.get(self.strategy, len(keys))
        return [child for child in self.children[first:] if (child.id, child.topic) != (id, topic)]

    @event("Opened")
    def opened(self, strategy: str) -> None:
        self.strategy = cast("Strategy", strategy)  # it was checked where it came from

    @event("Added")
    def added(self, id: str, topic: str, restart: str) -> None:
        self.children = [child for child in self.children if (child.id, child.topic) != (id, topic)]
        self.children.append(Child(id, topic, restart))


def checked_strategy(strategy: str) -> Strategy:
    """Give the strategy back. Raises ValueError for what is none."""
    if strategy not in get_args(Strategy):
        raise ValueError(f"a strategy is one of {', '.join(get_args(Strategy))}, not {strategy!r}")
    return cast("Strategy", strategy)


def load_group(log: TaskLog, name: str, patience: Patience) -> Group:
    """Give a group as its log has it. Raises UnreadableEntityError, the store's errors."""
    state: EntityState = EntityLog(log.store).load(Group, name, patience)
    group = state.aggregate or Group()
    assert isinstance(group, Group)  # noqa: S101  it was loaded as one
    return group


def group_rows(log: TaskLog) -> list[IndexRow]:
    """List the groups of a store, as the index has them. Raises the store's errors."""
    return log.recorder.select_entries(prefix=f"{Group.TOPIC}{SEPARATOR}")


class Siblings:
    """Who is told when a child of a group crashes."""

    def __init__(self, log: TaskLog, entities: Entities, patience: Patience) -> None:
        self._log = log
        self._entities = entities
        self._patience = patience

    def begin_anew(self, group: str, id: str, topic: str, cause: str) -> None:
        """Let the siblings of a child that has crashed begin anew; tasks do so at their next step, wherever they are.

        Entities of this process do so after the command that they are at. `cause` is unique to the crash: told twice, a
        task begins anew once. What cannot be read, or reached when patience is out, is passed over with a warning: the
        crash itself is never lost for it.
        """
        try:
            children = load_group(self._log, group, self._patience).siblings(id, topic)
        except (PerdureError, StoreError) as error:
            logger.warning("group %s: the siblings of %s are not restarted: %s", group, id, error)
            return
        for child in children:
            if child.topic:
                self._restart_entity(child)
            else:
                self._restart_task(group, child, f"{topic} {id}".lstrip(), cause)

    def _restart_entity(self, child: Child) -> None:
        cls = find_entity(child.topic)
        if cls is not None:
            self._entities.start_again(cls, child.id)

    def _restart_task(self, group: str, child: Child, by: str, cause: str) -> None:
        try:
            if not self._is_running(child):
                return
            appender = Appender(self._log, self._log.load(child.id, self._patience), self._patience)
            appender.append(lambda task, now: task.ask_to_restart(now, group, cause=cause, by=by))
        except (PerdureError, StoreError) as error:
            logger.warning("task %s is not restarted with its group: %s", child.id, error)

    def _is_running(self, child: Child) -> bool:
        away = self._patience.waiter()
        while True:
            try:
                row = self._log.recorder.select_entry(child.id)
            except StoreUnavailableError as error:
                away(error)
            else:
                return row is not None and row.status == "running"


class PermanentEntities:
    """Sees that the permanent entities of all groups are in memory, where this process has their classes."""

    def __init__(self, log: TaskLog, entities: Entities, patience: Patience) -> None:
        self._log = log
        self._entities = entities
        self._patience = patience
        self._seen: dict[str, int] = {}
        self._known: frozenset[str] = frozenset()

    def look(self) -> None:
        """Look for groups that have changed, or whose classes have become known. Raises the store's errors."""
        known = known_topics()
        if known != self._known:
            self._seen.clear()
        for row in group_rows(self._log):
            name = row.id.partition(SEPARATOR)[2]
            if self._seen.get(name) != row.head:
                self._keep(name)
                self._seen[name] = row.head
        self._known = known
        self._entities.revive()

    def _keep(self, name: str) -> None:
        try:
            children = load_group(self._log, name, self._patience).children
        except PerdureError as error:
            logger.warning("group %s: its entities are not started: %s", name, error)
            return
        for child in children:
            cls = find_entity(child.topic) if child.topic else None
            if cls is not None:
                self._entities.keep(cls, child.id, cast("Restart", child.restart), name)
