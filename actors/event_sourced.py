"""An actor whose state is the fold of its log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from actors.appender import Appender
from actors.supervised import SupervisedActor
from actors.worker import Worker
from domain.task import AgentTask


class EventSourcedActor(SupervisedActor):
    """An actor that rehydrates from its log when its life begins, and changes only by events that are in the log first.

    Guaranteed: `task` is the fold of the log at every moment, whatever append has failed. Not guaranteed: that it is
    the newest state; another process may have appended, and the next append finds out.
    """

    def __init__(
        self,
        worker: Worker,
        task_id: str,
        created: Callable[[Self], None],
    ) -> None:
        super().__init__(task_id, worker.report)
        self.worker = worker
        self.appender: Appender | None = None
        self.fresh: AgentTask | None = None
        created(self)

    def rehydrate(self) -> Appender:
        """Replay the log, or begin with `fresh`, its fold a moment ago: the next append finds out what came since.

        Raises UnknownTaskError, UnreadableTaskError, or the store's errors when patience is out.
        """
        log = self.worker.log
        self.appender = Appender(log, self.fresh or log.load(self.name), self.worker.patience)
        return self.appender

    @property
    def task(self) -> AgentTask:
        """The actor's state; it has none before it was rehydrated."""
        return self.rehydrated.task

    @property
    def rehydrated(self) -> Appender:
        """The one appender of this incarnation. Raises RuntimeError before `rehydrate`."""
        if self.appender is None:
            raise RuntimeError(f"actor {self.name} was not rehydrated")
        return self.appender
