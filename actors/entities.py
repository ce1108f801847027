"""The live entities of one process: who is served by an actor, what waits for it, and what follows its end."""

from __future__ import annotations

import logging
import os
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy

from actors.entity_actor import EntityActor
from actors.entity_log import EntityLog, stream_of
from actors.mailbox import Envelope, Mailbox, Restart
from actors.patience import CLIENT_PATIENCE, Patience
from actors.runtime import Runtime
from actors.supervised import Down
from domain.entity import Entity, topic_of
from domain.errors import EntityCrashError, EntityStoppedError, SystemClosedError, UnreadableEntityError
from domain.faults import Fault
from domain.json_text import Json
from domain.retry import restart_delay
from stores import Store, StoreError
from stores.crash import SimulatedCrash
from stores.lifetime import forked_error

logger = logging.getLogger("perdure")

MOST_ALIVE = 256
"""Entities above which one that has nothing to do leaves memory before its time: each has a thread."""


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
        self._url, self._process = store.url, os.getpid()
        self._over = over
        self._report = report or self.ended
        self._lock = threading.Lock()
        self._boxes: dict[str, Mailbox] = {}
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
            box.used = time.monotonic()
            box.changed.notify_all()
            missing = self._to_launch(box)
        if missing:
            self._launch(box)

    def keep(self, cls: type[Entity], entity_id: str, restart: Restart, group: str) -> None:
        """Say what follows the ends of an entity's actors from now on; a permanent one is started."""
        with self._lock:
            if self._closed.is_set():
                return
            box = self._box(cls, entity_id)
            box.restart, box.group = restart, group
            missing = restart == "permanent" and self._to_launch(box)
        if missing:
            self._launch(box)

    def start_again(self, cls: type[Entity], entity_id: str) -> None:
        """Let an entity that is live begin anew after the command that it is at: it reads its state from its log."""
        with self._lock:
            box = self._boxes.get(stream_of(cls, entity_id))
            if box is not None and box.actor:
                box.again = True
                box.changed.notify_all()

    def _box(self, cls: type[Entity], entity_id: str) -> Mailbox:
        stream = stream_of(cls, entity_id)
        box = self._boxes.get(stream)
        if box is None:
            if len(self._boxes) >= MOST_ALIVE:
                self._make_room()
            box = self._boxes[stream] = Mailbox(cls, entity_id, threading.Condition(self._lock))
        return box

    def _make_room(self) -> None:
        """Forget mailboxes that only remember a crash, and let the entity leave that has been idle for longest."""
        for stream, box in list(self._boxes.items()):
            if not (box.actor or box.queue or box.kept):
                del self._boxes[stream]
        idle = [box for box in self._boxes.values() if box.actor and not (box.queue or box.serving or box.leave)]
        if may := [box for box in idle if box.restart != "permanent"]:
            oldest = min(may, key=lambda box: box.used)
            oldest.leave = True
            oldest.changed.notify_all()

    def _to_launch(self, box: Mailbox) -> bool:
        """Tell whether an actor has to be launched for a mailbox, and count it as there."""
        missing, box.actor = not box.actor, True
        box.lives += missing
        return missing

    def _launch(self, box: Mailbox) -> None:
        EntityActor.launch(box, box.rests_until - time.monotonic(), self, self._report)

    # ------------------------------------------------------------------ what an actor asks for

    def rest(self, seconds: float) -> None:
        """Wait, at most until all is closed."""
        if seconds > 0:
            self._closed.wait(seconds)

    def next(self, box: Mailbox) -> Envelope | None:
        """Wait for the next command; None where the actor is to end. What comes until that is told waits for it."""
        with self._lock:
            box.changed.wait_for(lambda: self._has_news(box), self._patience_with(box))
            box.serving = None
            if box.queue and not box.again and not self._closed.is_set():
                box.leave = False
                box.serving = box.queue.popleft()
            return box.serving

    def _has_news(self, box: Mailbox) -> bool:
        return bool(box.queue) or box.again or box.leave or self._closed.is_set()

    def _patience_with(self, box: Mailbox) -> float | None:
        return None if box.restart == "permanent" else box.cls.PASSIVATE_AFTER

    def answered(self, box: Mailbox, envelope: Envelope, answer: Json | BaseException) -> None:
        """Deliver an answer."""
        with self._lock:
            box.used, box.serving = time.monotonic(), None
            if not isinstance(answer, EntityCrashError):
                box.crashes = 0
        envelope.answer(answer)

    def fell(self, box: Mailbox) -> None:
        """Tell the siblings of an entity that it has crashed."""
        if box.group and self.siblings is not None:
            self.siblings(box.group, box.id, topic_of(box.cls), secrets.token_hex(8))

    # ------------------------------------------------------------------ ends

    def ended(self, down: Down) -> None:
        """Answer an actor's end: what waits goes on with another one, or is refused."""
        actor, error = down.actor, down.error
        assert isinstance(actor, EntityActor)  # noqa: S101  only they are told here
        box = actor.box
        if isinstance(error, EntityCrashError):
            with self._lock:
                box.crashes += 1
                box.rests_until = time.monotonic() + restart_delay(box.crashes, random.uniform(-1, 1))
        try:
            self._tell(box, error)
        finally:
            self._go_on(box, error)

    def _go_on(self, box: Mailbox, error: BaseException | None) -> None:
        refused: deque[Envelope] = deque()
        with self._lock:
            may, wanted = self._may_start_again(box, error), bool(box.queue) or box.restart == "permanent"
            box.actor, box.again, box.leave = may and wanted, False, False
            if not may:
                refused, box.queue = box.queue, refused
            if self._closed.is_set() or not (box.kept or (may and (wanted or box.crashes))):
                self._boxes.pop(stream_of(box.cls, box.id), None)
            box.lives += box.actor
            self._gone.notify_all()
        self._refuse(box, refused, error)
        if may and wanted:
            self._launch(box)

    def _may_start_again(self, box: Mailbox, error: BaseException | None) -> bool:
        """Tell whether what waits for an entity is served by another actor, at once."""
        if self._closed.is_set():
            return False
        if isinstance(error, EntityCrashError):
            return box.restart != "temporary"
        return error is None or (box.restart == "permanent" and isinstance(error, StoreError | UnreadableEntityError))

    def _tell(self, box: Mailbox, error: BaseException | None) -> None:
        if isinstance(error, EntityCrashError):
            rest, trace = max(0.0, box.rests_until - time.monotonic()), error.fault.traceback.rstrip()
            logger.error("%s crashed: %s; it may start again in %.1f s\n%s", box, error.fault, rest, trace)
        elif error is not None and not isinstance(error, SimulatedCrash):
            logger.error("%s stopped: %s; its next command starts it again", box, Fault.of(error))

    def _refuse(self, box: Mailbox, envelopes: Iterable[Envelope], error: BaseException | None) -> None:
        """Answer commands that are not done any more."""
        for envelope in envelopes:
            why = f"{envelope} was not its turn yet, and nothing of it was done"
            if isinstance(error, StoreError | UnreadableEntityError | SimulatedCrash):
                answer: BaseException = copy(error)
            elif error is None:
                answer = SystemClosedError(f"{why}: this AgentSystem was closed")
            else:
                answer = EntityStoppedError(
                    f"{why}: it was stopped: {Fault.of(error)}", topic=topic_of(box.cls), entity_id=box.id
                )
            if envelope.begin():
                envelope.answer(answer)

    def close(self, timeout: float) -> bool:
        """Take no more commands, refuse those that wait, let the running ones end; tells whether all actors are gone.

        A command that has not ended after `timeout` seconds is answered so: it may yet be done.
        """
        with self._lock:
            self._closed.set()
            waiting = [(box, box.queue) for box in self._boxes.values()]
            for stream, box in list(self._boxes.items()):
                box.queue = deque()
                box.changed.notify_all()
                if not box.actor:
                    del self._boxes[stream]
        for box, queue in waiting:
            self._refuse(box, queue, None)
        with self._lock:
            gone = self._gone.wait_for(lambda: not self._boxes, timeout)
            begun = [box.serving for box in self._boxes.values() if box.serving is not None]
            self._boxes.clear()
        for envelope in begun:
            why = "this AgentSystem was closed; it has begun, and may yet be done"
            envelope.answer(SystemClosedError(f"{envelope}: {why}"))
        return gone

    # ------------------------------------------------------------------ looking

    def alive(self) -> list[tuple[Mailbox, str]]:
        """List the entities that have an actor, and what each does."""
        with self._lock:
            boxes = [box for box in self._boxes.values() if box.actor]
            return [
                (box, f"{len(box.queue)} waiting" if box.queue else "busy" if box.serving else "idle") for box in boxes
            ]
