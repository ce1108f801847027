"""Commands on their way to an entity, and the mailbox in which they wait: it outlives the actor that serves it.

pykka's own mailbox dies with its actor, and what is in it is lost without a word (library facts B1, B2). So an entity's
commands wait here, and an actor that starts again goes on with the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from actors.threads import Job
from domain.entity import Entity, topic_of
from domain.errors import EntityCrashError, EntityStoppedError, SystemClosedError, UnreadableEntityError
from domain.faults import Fault
from domain.json_text import Json
from stores import StoreError
from stores.crash import SimulatedCrash

logger = logging.getLogger("perdure")

Restart = Literal["permanent", "transient", "temporary"]
"""What follows the end of an entity's actor.

permanent: it is started again, always, and never leaves memory. transient: after a crash, and by the next command.
temporary: not after a crash; what waited for it is refused, and the next command begins anew.
"""


FAILURES = (EntityCrashError, StoreError, UnreadableEntityError, SimulatedCrash)
"""What ends an actor and is the answer to the command that it was at."""
Fate = Literal["begun", "answered", "never done", "goes on"]
"""How a command stands that waits no more; the last two are those of one that was given up."""


class Command(NamedTuple):
    """What is asked of an entity: a method's name, its arguments as they are stored, and the key, where it has one."""

    name: str
    arguments: Json
    key: str
    digest: str


class Envelope:
    """A command on its way, and the one answer to it. Safe in all threads.

    `whose` names the entity. `job` is where the asker waits, for the reply as it is stored; None for what was told,
    whose answer reaches nobody.
    """

    def __init__(self, command: Command, whose: str, *, asked: bool) -> None:
        self.command = command
        self.whose = whose
        self.job: Job[Json] | None = Job() if asked else None
        self._lock = threading.Lock()
        self._state: Fate | Literal["waiting"] = "waiting"
        self._given: Json | BaseException = None

    def __str__(self) -> str:
        return f"{self.command.name} of {self.whose}"

    def begin(self) -> bool:
        """Take the command's turn; False where it was given up or answered before: then it is not done."""
        with self._lock:
            if self._state != "waiting":
                return False
            self._state = "begun"
            return True

    def withdraw(self) -> bool:
        """Take the command back; False where it has begun."""
        with self._lock:
            if self._state == "waiting":
                self._state = "never done"
            return self._state == "never done"

    def give_up(self) -> Fate:
        """Wait no more, unless the answer is there; tells what becomes of the command."""
        with self._lock:
            if self._state == "waiting":
                self._state = "never done"
            elif self._state == "begun":
                self._state = "goes on"
            return self._state

    def answer(self, answer: Json | BaseException) -> None:
        """Answer, by an error or by a reply, the first time; what nobody waits for is a dead letter.

        The reply to what was told is none: nobody ever asked for it.
        """
        with self._lock:
            first = self._state in ("waiting", "begun")
            if first:
                self._state, self._given = "answered", answer
        if self.job is None or not first:
            if self.job is not None or (first and isinstance(answer, BaseException)):
                self._dead_letter(answer)
        elif isinstance(answer, BaseException):
            self.job.fail(answer)
        else:
            self.job.succeed(answer)

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Give the command up where the wait for its answer, which stands in this block, is torn."""
        try:
            yield
        except BaseException:
            if self.give_up() == "answered":
                self._dead_letter(self._given)
            raise

    def _dead_letter(self, answer: Json | BaseException) -> None:
        what = Fault.of(answer) if isinstance(answer, BaseException) else answer
        logger.warning("dead letter: nobody waits for %s; its answer is %.200s", self, what)


@dataclass(eq=False)
class Mailbox:
    """What one entity has to do, and how its actor stands. Guarded by the lock of the directory that made it.

    `actor` is whether one serves it, `lives` how many have; `placed` whether that takes a place, `in_line` whether it
    waits for one; `serving` the command that it is at, `fresh` that it was at none yet, and so knows nothing of the
    entity's state; `again` that it is to begin anew after that command, with the state read from the log; `leave` that
    it is to leave memory if it has nothing to do. `crashes` counts those since the last command that was answered,
    `rests_until` is when it may begin again, by the monotonic clock.
    """

    cls: type[Entity]
    id: str
    changed: threading.Condition
    restart: Restart = "transient"
    group: str = ""
    queue: deque[Envelope] = field(default_factory=deque)
    actor: bool = False
    lives: int = 0
    placed: bool = False
    in_line: bool = False
    serving: Envelope | None = None
    fresh: bool = True
    again: bool = False
    leave: bool = False
    crashes: int = 0
    rests_until: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether it holds what was said of its entity, and so is never forgotten."""
        return self.restart != "transient" or bool(self.group)

    @property
    def patience(self) -> float | None:
        """Seconds that its actor waits for a command; None for one that never leaves."""
        return None if self.restart == "permanent" else self.cls.PASSIVATE_AFTER

    @property
    def doing(self) -> str:
        """What its actor does, in words."""
        rest = self.rests_until - time.monotonic()
        if rest > 0:
            return f"{len(self.queue)} waiting, begins again in {rest:.1f} s"
        return f"{len(self.queue)} waiting" if self.queue else "busy" if self.serving else "idle"

    def __str__(self) -> str:
        return f"{topic_of(self.cls)} {self.id}"

    def goes_on_after(self, error: BaseException | None) -> bool:
        """Tell whether what waits when an actor fails so is served by the next one."""
        return self.restart == "permanent" or (self.restart == "transient" and isinstance(error, EntityCrashError))

    def refuse(self, envelopes: Iterable[Envelope], error: BaseException | None) -> None:
        """Answer commands that are not done any more: because of an error, or of a close."""
        for envelope in envelopes:
            why = f"{envelope} was not its turn yet, and nothing of it was done"
            if isinstance(error, FAILURES) and not isinstance(error, EntityCrashError):
                answer: BaseException = copy(error)
            elif error is None:
                answer = SystemClosedError(f"{why}: this AgentSystem was closed")
            else:
                why = f"{why}: it was stopped: {Fault.of(error)}"
                answer = EntityStoppedError(why, topic=topic_of(self.cls), entity_id=self.id)
            if envelope.begin():
                envelope.answer(answer)

    def cut_off(self) -> None:
        """Answer the command that its actor is at, as nobody knows what becomes of it."""
        if self.serving is not None:
            why = "this AgentSystem was closed; it has begun, and may yet be done"
            self.serving.answer(SystemClosedError(f"{self.serving}: {why}"))
