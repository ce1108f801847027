"""The actors of one worker: the supervision tree, in one constructor."""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pykka
from pykka import ActorDeadError

from actors.definitions import AnyAgent
from actors.directory import Directory
from actors.entities import Entities
from actors.entity_actor import EntityActor
from actors.family import Family
from actors.groups import Siblings
from actors.lease import Lease
from actors.patience import Patience
from actors.recovery import Recovery
from actors.runtime import Runtime
from actors.showing import counted
from actors.supervised import Down, SupervisedActor, UntoldError
from actors.supervisor import Supervisor
from actors.task_actor import TaskActor
from actors.task_log import TaskLog
from actors.tenure import Tenure
from actors.worker import Worker
from domain.errors import OwnershipLost, PerdureError
from domain.events import TaskEvent
from domain.state import Named
from domain.task import AgentTask
from stores import StoreError

logger = logging.getLogger("perdure")

QUIET = 0.5
"""Seconds that a stop may take before it says what it waits for."""
TOLD_WITHIN = 1.0
"""Seconds after which the end of an actor that nobody has answered was lost."""
LAST_WORD = 1.0
"""Seconds that recovery, the lease and the supervisor get to end, each, once the tasks have."""


class SupervisionTree:
    """One worker at work.

        root supervisor            every actor's end is told to it, once
        ├── lease                  beats, and watches the beats of other workers
        ├── recovery               finds what is due
        ├── task actors            one for each active task, listed in the directory
        └── entity actors          one for each entity in memory, with mailboxes that outlive them

    Lease and recovery are made anew by their supervisor when they die, and the supervisor by whoever misses it. A group
    has no actor: what its strategy says is carried out by the child that crashes, from the log (`groups.py`).

    Guaranteed: the worker's lock is held from before the first claim until after the last append. Of a worker that
    cannot begin, for want of a thread say, nothing is left behind.
    """

    def __init__(
        self,
        log: TaskLog,
        runtime: Runtime,
        *,
        max_active: int,
        strikes: int | None,
        only: str | None,
        lease: float,
        find: Callable[[str], AnyAgent],
        agents: Callable[[], Collection[str]],
    ) -> None:
        over = threading.Event()
        patience = Patience(None, over)
        entities = runtime.entities = Entities(log.store, runtime, over=over, report=self._report)
        siblings = Siblings(log, entities, patience)
        entities.siblings = siblings.begin_anew
        self.worker = Worker(
            f"w{secrets.token_hex(6)}",
            *(
                log,
                runtime,
                strikes,
                None if only is None else Family(only),
                find,
                agents,
                self._report,
                self._look_after,
                Tenure(lease),
                siblings,
            ),
            over=over,
        )
        log.store.prepare_to_write()
        self._lock = log.store.workers.hold(self.worker.id, self._about())
        self.directory = Directory(max_active)
        self._mending = threading.RLock()  # who makes a part anew may miss the supervisor meanwhile
        self._parts: dict[str, SupervisedActor] = {}
        self._ended: dict[SupervisedActor, float] = {}
        self._begin()

    def _begin(self) -> None:
        with ExitStack() as undo:
            undo.callback(self._lock.release)
            undo.callback(self.worker.runtime.entities.close, 0.0)
            self._supervise()
            undo.callback(self.supervisor.stop, block=False)
            undo.callback(self._end_parts)
            self._launch("lease")
            self._launch("recovery")
            undo.pop_all()

    def _end_parts(self) -> None:
        for event in (self.worker.stopping, self.worker.over, self.worker.wake):
            event.set()
        for part in self._parts.values():
            part.actor_stopped.wait(LAST_WORD)

    def _launch(self, name: str) -> None:
        """Start one of the actors that a worker has one of, for the first time or anew."""
        with self._mending:  # its end may be told before it is listed
            if name == "lease" and not self.worker.over.is_set():
                self._parts[name] = self.lease = Lease.launch(self.worker, self.directory)
            elif name == "recovery" and not self.worker.stopping.is_set():
                self._parts[name] = self.recovery = Recovery.launch(self.worker, self.directory)

    def _rebuild(self, down: Down) -> None:
        """Make anew what has died, unless that was done already."""
        with self._mending:
            if self._parts.get(down.name) is down.actor:
                self._ended.pop(down.actor, None)  # told again where this fails
                self._launch(down.name)

    def infrastructure(self) -> list[tuple[str, str]]:
        """List the actors that no task has, and how each is."""
        parts = self._parts.items()
        return [(name, "alive" if part.actor_ref.is_alive() else "is made anew") for name, part in parts]

    def _report(self, down: Down) -> None:
        """Tell the supervisor of an end; one that has ended itself is made anew first."""
        if isinstance(down.actor, EntityActor):  # here and now: the answer waits for nothing, and cannot be lost
            self.worker.runtime.entities.told(down)
            return
        try:
            self.supervisor.tell(down)
        except ActorDeadError:
            if not self.worker.over.is_set():
                self._supervise_anew()
                with suppress(ActorDeadError):
                    self.supervisor.tell(down)

    def _supervise(self) -> None:
        self.supervisor = Supervisor.launch(self.worker, self.directory, self._place_free, self._rebuild)
        self._ended.clear()  # what its predecessor was told may be lost with it

    def _supervise_anew(self) -> None:
        """Make the supervisor anew, as where other actors of the process have stopped all: its children go on."""
        with self._mending:
            if not self.supervisor.is_alive():
                logger.error("the supervisor has ended, and is made anew; its children go on")
                self._supervise()

    def _look_after(self) -> None:
        """See that others find our lock, that there is a supervisor, and that it was told of every end.

        An actor that has ended and still counts a while later is one whose end was lost with its supervisor.
        """
        if not self._lock.keep(self._about()):
            logger.warning("the lock by which this worker is known to live was lost, and is taken again")
        if self.worker.stopping.is_set():
            return
        if not self.supervisor.is_alive():
            self._supervise_anew()
        for actor in self._untold():
            self._report(Down(actor.name, actor, UntoldError("its end was not told")))

    def _untold(self) -> list[SupervisedActor]:
        """List the actors that have ended a while ago, and whose end nobody has answered: once for each supervisor.

        A supervisor that is busy has their ends still before it, and would be told of them at every look.
        """
        actors = [*self._parts.copy().values(), *self.directory.hosted().values()]
        now = time.monotonic()
        with self._mending:
            ended = [actor for actor in actors if actor is not None and actor.actor_stopped.is_set()]
            self._ended = {actor: self._ended.get(actor, now) for actor in ended}
            untold = [actor for actor, since in self._ended.items() if now - since >= TOLD_WITHIN]
            self._ended |= dict.fromkeys(untold, math.inf)
            return untold

    def _place_free(self, actor: TaskActor) -> None:
        """Have recovery look for who is next, and for what the task that is gone has left: mostly nothing at all."""
        self.worker.log.hint(actor.name)
        if actor.leaves_something() or self.recovery.is_crowded or self.worker.runtime.clock.jumps:
            self.worker.wake.set()

    def _about(self) -> dict[str, Any]:
        return {
            "agents": sorted(self.worker.agents()),
            "only": self.worker.only and self.worker.only.head,
            "pid": os.getpid(),
        }

    def agents_changed(self) -> None:
        """Tell others which agents this worker knows now, and look for work at once."""
        self._lock.update(self._about())
        self.worker.wake.set()

    def running(self) -> int:
        """Count the bodies that run now."""
        activations = [actor.activation for actor in self.directory.hosted().values() if actor is not None]
        return sum(len(activation.running) for activation in activations if activation is not None)

    def stop(self, grace: float) -> None:
        """Start no new body, give running ones `grace` seconds, mark what is given up, release the lock."""
        worker, until = self.worker, time.monotonic() + grace
        try:
            worker.stopping.set()
            worker.wake.set()
            self._wake_waiters()
            if not self.directory.wait_empty(min(grace, QUIET)):
                left = counted(len(self.directory.hosted()), "task")
                logger.warning("closing: up to %g s for what still runs, in %s", grace, left)
                if not self.directory.wait_empty(grace - min(grace, QUIET)):
                    self._give_up(grace)
            self.recovery.actor_stopped.wait(LAST_WORD)
            worker.runtime.entities.close(max(0.0, until - time.monotonic()), last=False)
        except BaseException:  # whatever hurries a stop: what runs is marked, or it would count as a death
            self._give_up(0.0)
            raise
        finally:
            worker.over.set()
            try:
                worker.runtime.entities.close(LAST_WORD)
                self.lease.actor_stopped.wait(LAST_WORD)
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
                mark = partial(_passivate, activation.number, running, activation.registered())
                left = until - time.monotonic()
                with suppress(StoreError, PerdureError, OwnershipLost):
                    activation.appender.append(mark, turn=max(0.0, left))
                activation.cancel()


def _passivate(activation: int, cut_off: list[str], undos: Named, task: AgentTask, now: float) -> list[TaskEvent]:
    return task.passivate(activation, now, cut_off, undos=undos)
