"""The live entities of one process: who is served by an actor, what waits for it, and what follows its end."""

from __future__ import annotations

import logging
import os
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable

from actors.entity_actor import EntityActor
from actors.entity_log import EntityLog, stream_of
from actors.mailbox import FAILURES, Envelope, Mailbox, Restart
from actors.patience import CLIENT_PATIENCE, Patience
from actors.places import Places
from actors.runtime import Runtime
from actors.supervised import Down
from domain.entity import Entity, topic_of
from domain.errors import EntityCrashError, SystemClosedError
from domain.faults import Fault
from domain.json_text import Json
from domain.retry import restart_delay
from stores import Store
from stores.crash import SimulatedCrash
from stores.lifetime import forked_error

logger = logging.getLogger("perdure")

CRASHES_REMEMBERED = 256
"""Entities without an actor of which it is remembered that they have crashed."""


class Entities:
    """Entity to mailbox, and to the actor that serves it; started by a command, gone when nothing is asked.

    Guaranteed: every command that was taken is answered, or is a logged dead letter where nobody waits for the answer,
    whatever becomes of actors. Not guaranteed: that it is the only process with this entity in memory; the log judges.
    `report` is told of each end; without a supervisor this answers it itself. `siblings` tells a crash to a group.
    """

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        over: threading.Event | None = None,
        report: Callable[[Down], None] | None = None,
    ) -> None:
        self.log = EntityLog(store, runtime.value_limit)
        self.value_limit = runtime.value_limit
        self.now = runtime.clock.now
        self.commits = runtime.commits
        self._url, self._process = store.url, os.getpid()
        self._over = over
        self._report = report or self.told
        self._downs: deque[Down] = deque()
        self._answering = threading.Lock()
        self._lock = threading.Lock()
        self._boxes: dict[str, Mailbox] = {}
        self._fallen: dict[Mailbox, None] = {}
        self._places = Places()
        self._closed = threading.Event()
        self.siblings: Callable[[str, str, str, str], None] | None = None
        self._gone = threading.Condition(self._lock)

    @property
    def patience(self) -> Patience:
        """How long an actor tries a store that is away: a worker's for as long as it lives."""
        return Patience(CLIENT_PATIENCE, self._closed) if self._over is None else Patience(None, self._over)

    # ------------------------------------------------------------------ commands

    def send(self, cls: type[Entity], entity_id: str, envelope: Envelope) -> None:
        """Put a command into its entity's mailbox, and see that it is served. Raises SystemClosedError."""
        if self._process != os.getpid():  # its actors, and who holds its lock, are threads of the parent's
            raise forked_error(self._url)
        with self._lock:
            if self._closed.is_set():
                raise SystemClosedError(f"{envelope}: this AgentSystem was closed; nothing was done")
            box = self._box(cls, entity_id)
            box.queue.append(envelope)
            box.changed.notify_all()
            self._places.want(box)
            admitted = self._places.admitted()
        self._launch(admitted)

    def keep(self, cls: type[Entity], entity_id: str, restart: Restart, group: str) -> None:
        """Say what follows the ends of an entity's actors from now on; a permanent one is started."""
        with self._lock:
            if self._closed.is_set():
                return
            box = self._box(cls, entity_id)
            box.restart, box.group = restart, group
            if restart == "permanent":
                self._places.want(box)
            admitted = self._places.admitted()
        self._launch(admitted)

    def revive(self) -> None:
        """Start the permanent entities that have no actor: one may have ended for want of a thread."""
        with self._lock:
            for box in self._boxes.values():
                if box.restart == "permanent" and not self._closed.is_set():
                    self._places.want(box)
            admitted = self._places.admitted()
        self._launch(admitted)

    def start_again(self, cls: type[Entity], entity_id: str) -> None:
        """Let a live entity begin anew after the command that it is at: its state is read from its log again."""
        with self._lock:
            box = self._boxes.get(stream_of(cls, entity_id))
            if box is not None and not box.fresh:
                box.again = True
                box.changed.notify_all()

    def delete(self, cls: type[Entity], entity_id: str) -> bool:
        """Delete an entity, and let an actor that serves it here begin anew; tells whether there was anything."""
        if self._closed.is_set():
            raise SystemClosedError(f"{topic_of(cls)} {entity_id}: this AgentSystem was closed; nothing was deleted")
        deleted = self.log.delete(topic_of(cls), entity_id, self.patience)
        self.start_again(cls, entity_id)
        return deleted

    def _box(self, cls: type[Entity], entity_id: str) -> Mailbox:
        stream = stream_of(cls, entity_id)
        box = self._boxes.get(stream)
        if box is None:
            box = self._boxes[stream] = Mailbox(cls, entity_id, threading.Condition(self._lock))
        self._fallen.pop(box, None)
        return box

    def _launch(self, boxes: list[Mailbox]) -> None:
        for box in boxes:
            box.lives += 1
            EntityActor.launch(box, box.rests_until - time.monotonic(), self, self._report)

    # ------------------------------------------------------------------ what an actor asks for

    def rest(self, box: Mailbox, seconds: float) -> None:
        """Wait, at most until all is closed; others may have the place meanwhile."""
        if seconds <= 0:
            return
        with self._lock:
            self._places.give_back(box)
            admitted = self._places.admitted()
        self._launch(admitted)
        self._closed.wait(seconds)
        with self._lock:
            self._places.take(box)

    def next(self, box: Mailbox) -> Envelope | None:
        """Wait for the next command; None where the actor is to end. What comes until that is told waits for it."""
        with self._lock:
            if not self._has_news(box):
                self._places.idle(box)
                box.changed.wait_for(lambda: self._has_news(box), box.patience)
                self._places.not_idle(box)
            box.serving = None
            if box.queue and not box.again and not self._closed.is_set():
                box.leave = box.fresh = False
                box.serving = box.queue.popleft()
            return box.serving

    def _has_news(self, box: Mailbox) -> bool:
        return bool(box.queue) or box.again or box.leave or self._closed.is_set()

    def answered(self, box: Mailbox, envelope: Envelope, answer: Json | BaseException) -> None:
        """Deliver an answer."""
        with self._lock:
            box.serving, box.crashes = None, 0
        envelope.answer(answer)

    def failed(self, box: Mailbox, envelope: Envelope, error: BaseException) -> None:
        """Answer by what ends the actor; unless the entity goes on after it, it is the answer to all that waits now."""
        refused: deque[Envelope] = deque()
        with self._lock:
            box.serving = None
            if not box.goes_on_after(error):
                refused, box.queue = box.queue, refused
        envelope.answer(error)
        box.refuse(refused, error)

    def fell(self, box: Mailbox) -> None:
        """Tell the siblings of an entity that it has crashed."""
        if box.group and self.siblings is not None:
            self.siblings(box.group, box.id, topic_of(box.cls), secrets.token_hex(8))

    # ------------------------------------------------------------------ ends

    def ended(self, down: Down) -> None:
        """Answer an actor's end: what waits goes on with another one, or is refused."""
        assert isinstance(down.actor, EntityActor)  # noqa: S101  only they are told here
        box, error = down.actor.box, down.error
        if isinstance(error, EntityCrashError):
            with self._lock:
                box.crashes += 1
                box.rests_until = time.monotonic() + restart_delay(box.crashes, random.uniform(-1, 1))
        try:
            self._tell(box, error)
        finally:
            self._go_on(box, error)

    def told(self, down: Down) -> None:
        """Answer ends one by one: where the machine has no thread left, the answer to one brings about the next."""
        self._downs.append(down)
        while self._downs and self._answering.acquire(blocking=False):
            try:
                while self._downs:
                    self.ended(self._downs.popleft())
            finally:
                self._answering.release()

    def _go_on(self, box: Mailbox, error: BaseException | None) -> None:
        refused: deque[Envelope] = deque()
        with self._lock:
            box.actor = box.again = box.leave = False
            box.fresh = True
            self._places.give_back(box)
            if self._closed.is_set() or not (error is None or isinstance(error, FAILURES)):
                refused, box.queue = box.queue, refused
                self._forget(box)
            elif box.queue or box.restart == "permanent":
                self._places.want(box)
            elif box.crashes:
                self._remember(box)
            else:
                self._forget(box)
            admitted = self._places.admitted()
            self._gone.notify_all()
        box.refuse(refused, error)
        self._launch(admitted)

    def _forget(self, box: Mailbox) -> None:
        if self._closed.is_set() or not box.kept:
            self._boxes.pop(stream_of(box.cls, box.id), None)

    def _remember(self, box: Mailbox) -> None:
        """Keep in mind that an entity has crashed, as long as there are not too many of them."""
        self._fallen[box] = None
        if len(self._fallen) > CRASHES_REMEMBERED:
            self._fallen.pop(oldest := next(iter(self._fallen)))
            self._forget(oldest)

    def _tell(self, box: Mailbox, error: BaseException | None) -> None:
        if isinstance(error, EntityCrashError):
            rest, trace = max(0.0, box.rests_until - time.monotonic()), error.fault.traceback.rstrip()
            logger.error("%s crashed: %s; it may start again in %.1f s\n%s", box, error.fault, rest, trace)
        elif error is not None and not isinstance(error, SimulatedCrash):
            logger.error("%s stopped: %s; its next command starts it again", box, Fault.of(error))

    def close(self, timeout: float, *, last: bool = True) -> None:
        """Take no more commands, refuse those that wait, and give the running ones `timeout` seconds.

        What runs then is cut off, unless there is a `last` call to come.
        """
        with self._lock:
            self._closed.set()
            self._places.close()
            waiting = [(box, box.queue) for box in self._boxes.values()]
            for stream, box in list(self._boxes.items()):
                box.queue = deque()
                box.changed.notify_all()
                if not box.actor:
                    del self._boxes[stream]
        for box, queue in waiting:
            box.refuse(queue, None)
        with self._lock:
            gone = self._gone.wait_for(lambda: not self._boxes, timeout)
            if last and not gone:
                for box in self._boxes.values():
                    box.cut_off()
                self._boxes.clear()

    def alive(self) -> list[tuple[Mailbox, str]]:
        """List the entities that have an actor, and what each does."""
        with self._lock:
            return [(box, box.doing) for box in self._boxes.values() if box.actor]
