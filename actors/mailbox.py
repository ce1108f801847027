"""Commands on their way to an entity, and the mailbox in which they wait: it outlives the actor that serves it.

pykka's own mailbox dies with its actor, and what is in it is lost without a word (library facts B1, B2). So an entity's
commands wait here, and an actor that starts again goes on with the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from actors.threads import Job
from domain.entity import Entity, topic_of
from domain.json_text import Json

Restart = Literal["permanent", "transient", "temporary"]
"""What follows the end of an entity's actor.

permanent: it is started again, always, and never leaves memory. transient: after a crash, and by the next command.
temporary: not after a crash; what waited for it is refused, and the next command begins anew.
"""


class Command(NamedTuple):
    """What is asked of an entity: a method's name, its arguments as they are stored, and the key, where it has one."""

    name: str
    arguments: Json
    key: str
    digest: str


class Envelope:
    """A command, and the one answer to it. Safe in all threads.

    `job` is where the asker waits, for the reply as it is stored; None for what was told, whose answer reaches nobody.
    """

    def __init__(self, command: Command, *, asked: bool) -> None:
        self.command = command
        self.job: Job[Json] | None = Job() if asked else None
        self._lock = threading.Lock()
        self._state: Literal["waiting", "begun", "given up", "late"] = "waiting"

    def begin(self) -> bool:
        """Take the command's turn; False where its asker has given it up: then it is not done."""
        with self._lock:
            if self._state == "waiting":
                self._state = "begun"
            return self._state == "begun"

    def give_up(self) -> bool:
        """Wait no more; tells whether the command has not begun, and so is never done."""
        with self._lock:
            self._state = "given up" if self._state in ("waiting", "given up") else "late"
            return self._state == "given up"

    def answer(self, answer: Json | BaseException) -> bool:
        """Answer, by an error or by a reply; tells whether anybody waits for it."""
        if self.job is None:
            return False
        if isinstance(answer, BaseException):
            self.job.fail(answer)
        else:
            self.job.succeed(answer)
        with self._lock:
            return self._state != "late"


@dataclass(eq=False)
class Mailbox:
    """What one entity has to do, and how its actor stands. Guarded by the lock of the directory that made it.

    `actor` is whether one serves it, `lives` how many have; `again` that it is to begin anew after the command that it
    is at, with its state read from the log; `leave` that it is to leave memory if it has nothing to do. `crashes`
    counts those since the last command that was answered, `rests_until` is when it may begin again, `used` when it last
    had something to do; both by the monotonic clock.
    """

    cls: type[Entity]
    id: str
    changed: threading.Condition
    restart: Restart = "transient"
    group: str = ""
    queue: deque[Envelope] = field(default_factory=deque)
    actor: bool = False
    lives: int = 0
    again: bool = False
    leave: bool = False
    crashes: int = 0
    rests_until: float = 0.0
    used: float = 0.0

    def __str__(self) -> str:
        return f"{topic_of(self.cls)} {self.id}"
