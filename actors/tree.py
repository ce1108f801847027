"""The actors of one worker: the supervision tree, in one constructor."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any

import pykka
from pykka import ActorDeadError

from actors.definitions import AnyAgent
from actors.directory import Directory
from actors.entities import Entities
from actors.recovery import Recovery
from actors.runtime import Runtime
from actors.supervised import Down
from actors.supervisor import Supervisor
from actors.task_log import TaskLog
from actors.worker import Worker
from domain.errors import OwnershipLost, PerdureError
from domain.events import TaskEvent
from domain.task import AgentTask
from stores import StoreError

logger = logging.getLogger("perdure")

QUIET = 0.5
"""Seconds that a stop may take before it says what it waits for."""
LAST_WORD = 1.0
"""Seconds that recovery and the supervisor get to end, once the tasks have."""


class SupervisionTree:
    """One worker at work.

        root supervisor            every actor's end is told to it, once
        ├── recovery               finds what is due; made anew by its supervisor when it dies
        ├── task actors            one for each active task, listed in the directory
        └── entity actors          one for each entity in memory, with mailboxes that outlive them

    Guaranteed: the worker's lock is held from before the first claim until after the last append.
    """

    def __init__(
        self,
        log: TaskLog,
        runtime: Runtime,
        *,
        max_active: int,
        strikes: int | None,
        only: str | None,
        find: Callable[[str], AnyAgent],
        agents: Callable[[], Collection[str]],
    ) -> None:
        self.worker = Worker(
            f"w{secrets.token_hex(6)}", log, runtime, strikes, only, find, agents, self._report, self._keep_lock
        )
        self._lock = log.store.workers.hold(self.worker.id, self._about())
        self.directory = Directory(max_active)
        runtime.entities = Entities(log.store, runtime, over=self.worker.over, report=self._report)
        self.supervisor = Supervisor.start(self.worker, self.directory, self._place_free, self._start_recovery)
        self._start_recovery()

    def _start_recovery(self) -> None:
        if not self.worker.stopping.is_set():
            self.recovery = Recovery.launch(self.worker, self.directory)

    def _report(self, down: Down) -> None:
        with suppress(ActorDeadError):
            self.supervisor.tell(down)

    def _keep_lock(self) -> None:
        if not self._lock.keep(self._about()):
            logger.warning("the lock of this worker was removed and is made again: do not touch the store's .locks")

    def _place_free(self, task_id: str) -> None:
        self.worker.log.hint(task_id)
        self.worker.wake.set()

    def _about(self) -> dict[str, Any]:
        return {"agents": sorted(self.worker.agents()), "only": self.worker.only}

    def agents_changed(self) -> None:
        """Tell others which agents this worker knows now, and look for work at once."""
        self._lock.update(self._about())
        self.worker.wake.set()

    def stop(self, grace: float) -> None:
        """Start no new body, give running ones `grace` seconds, mark what is given up, release the lock."""
        worker, until = self.worker, time.monotonic() + grace
        try:
            worker.stopping.set()
            worker.wake.set()
            self._wake_waiters()
            if not self.directory.wait_empty(min(grace, QUIET)):
                logger.warning(
                    "closing: up to %g s for what still runs, in tasks: %d", grace, len(self.directory.hosted())
                )
                if not self.directory.wait_empty(grace - min(grace, QUIET)):
                    self._give_up(grace)
            self.recovery.actor_stopped.wait(LAST_WORD)
            worker.runtime.entities.close(max(0.0, until - time.monotonic()))
        except BaseException:  # whatever hurries a stop: what runs is marked, or it would count as a death
            self._give_up(0.0)
            raise
        finally:
            worker.over.set()
            try:
                worker.runtime.entities.close(LAST_WORD)
                with suppress(pykka.Timeout):
                    self.supervisor.stop(timeout=LAST_WORD)
            finally:
                self._lock.release()

    def _wake_waiters(self) -> None:
        """Make tasks that wait in place look again."""
        for actor in self.directory.hosted().values():
            if actor is not None and actor.activation is not None:
                actor.activation.wake()

    def _give_up(self, grace: float) -> None:
        """Wait for nothing any more, not for bodies nor for the store; mark what was cut off, where the store can."""
        until = time.monotonic() + LAST_WORD
        self.worker.log.store.hurry(on=True)
        self.worker.over.set()
        self.directory.wait_empty(LAST_WORD / 4)
        for task_id, actor in self.directory.hosted().items():
            activation = actor.activation if actor is not None else None
            if activation is not None:
                running = activation.running
                what = f"given up is step {', '.join(running)}" if running else "its agent's own code goes on"
                logger.warning("task %s did not end within %g s: %s", task_id, grace, what)
                mark, left = partial(_passivate, activation.number, running), until - time.monotonic()
                with suppress(StoreError, PerdureError, OwnershipLost):
                    activation.appender.append(mark, turn=max(0.0, left))
                activation.cancel()


def _passivate(activation: int, cut_off: list[str], task: AgentTask, now: float) -> list[TaskEvent]:
    return task.passivate(activation, now, cut_off)
