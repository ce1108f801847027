"""What the actors of one worker share."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from actors.bell import Bell
from actors.definitions import AnyAgent
from actors.family import Family
from actors.groups import Siblings
from actors.patience import Patience
from actors.runtime import Runtime
from actors.supervised import Down
from actors.task_log import TaskLog
from actors.tenure import Tenure
from domain.events import TaskEvent
from domain.task import AgentTask


@dataclass(frozen=True)
class Worker:
    """One worker of a store: the id by which the log knows it, its limits, and whom its actors tell of their end.

    `find` gives the agent of a name, `agents` the names that are known; `only` has the one task that may run, if any,
    and its descendants.
    `look_after` sees that the worker's lock is where others look for it, and that each end of an actor was told.
    `siblings`, where there are groups, are told when a task of a group crashes.
    `tenure` is its lease; while that does not hold, nothing is claimed and no body starts.
    `held_here` are the tasks, by id and birth, with the version at which this worker has held them for its code.
    `too_early` are those whose time the index row has, but which wait by another clock: with the version that was seen
    and the monotonic time before which it is of no use to look again.
    `unbegun` are those that were claimed in the very append that made them, and with which nobody has begun.
    `wake` makes recovery look at once, or hands it a new task; `stopping` says that no new body starts, `over` that
    nothing is written.
    """

    id: str
    log: TaskLog
    runtime: Runtime
    strikes: int | None
    only: Family | None
    find: Callable[[str], AnyAgent]
    agents: Callable[[], Collection[str]]
    report: Callable[[Down], None]
    look_after: Callable[[], None]
    tenure: Tenure = field(default_factory=Tenure)
    siblings: Siblings | None = None
    held_here: dict[tuple[str, str], int] = field(default_factory=dict)
    too_early: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    unbegun: set[tuple[str, str]] = field(default_factory=set)
    wake: Bell = field(default_factory=Bell)
    stopping: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def patience(self) -> Patience:
        """Give the patience of a worker: it goes on trying a store that is away for as long as it lives."""
        return Patience(None, self.over)

    def claim(self, task: AgentTask, now: float, *, release: bool = False) -> list[TaskEvent]:
        """Decide that a task is this worker's; see `AgentTask.activate`."""
        token = secrets.token_hex(4)
        return task.activate(now, worker=self.id, token=token, limit=self.strikes, release=release)

    def begins(self, task: AgentTask) -> bool:
        """Tell whether a task is this worker's since it was made, and nobody has begun with it: asked once for each."""
        try:
            self.unbegun.remove((task.id, task.birth))
        except KeyError:
            return False
        return task.worker == self.id and task.activation == 1 and task.held is None and task.ending is None

    def owns_or_may_take(self, owner: str | None) -> bool:
        """Tell whether a task of that owner may be claimed: nobody's, our own, or that of a dead or frozen worker."""
        return owner in (None, self.id) or self._is_frozen(owner) or not self.log.store.workers.is_alive(owner)

    def must_leave(self, owner: str) -> bool:
        """Tell whether a living worker's tasks are its own: another's, which is not frozen."""
        return owner != self.id and not self._is_frozen(owner)

    def _is_frozen(self, owner: str) -> bool:
        """Tell whether a worker is frozen, and has not beaten since that was seen either."""
        count = self.tenure.frozen_at(owner)
        return count is not None and self.log.recorder.select_beats().get(owner, (0,))[0] == count
