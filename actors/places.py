"""Which entities of a process have an actor, and so a thread: at most so many, the others stand in line."""

from __future__ import annotations

from collections import deque
from itertools import islice

from actors.mailbox import Mailbox

MOST_ALIVE = 256
"""Entities that have an actor at once; above that, one that has nothing to do leaves memory before its time."""


class Places:
    """Places for actors. Guarded by the lock of the directory that made it.

    Guaranteed: first come, first served; while somebody stands in line, an actor that has nothing to do leaves, and
    the first of them is the one idle for longest. A permanent entity takes no place, nor does one that rests after a
    crash. Not guaranteed: a place while as many others are asked without a pause.
    """

    def __init__(self) -> None:
        self._taken = 0
        self._line: deque[Mailbox] = deque()
        self._idle: dict[Mailbox, None] = {}

    def want(self, box: Mailbox) -> None:
        """Put a mailbox that has no actor into the line, once."""
        if box.actor or box.in_line:
            return
        box.in_line = True
        if box.restart == "permanent":
            self._line.appendleft(box)
        else:
            self._line.append(box)

    def admitted(self) -> list[Mailbox]:
        """Take those out of the line for whom there is a place: their actors count as there. Make room for the rest."""
        admitted = []
        while self._line and (self._taken < MOST_ALIVE or self._line[0].restart == "permanent"):
            box = self._line.popleft()
            box.in_line, box.actor = False, True
            self.take(box)
            admitted.append(box)
        for box in list(islice(self._idle, len(self._line))):
            self.not_idle(box)
            box.leave = True
            box.changed.notify_all()
        return admitted

    def take(self, box: Mailbox) -> None:
        """Take a place, even above the number."""
        box.placed = box.restart != "permanent"
        self._taken += box.placed

    def give_back(self, box: Mailbox) -> None:
        """Give a place back, if the actor has one."""
        self._taken -= box.placed
        box.placed = False

    def idle(self, box: Mailbox) -> None:
        """Take note that an actor has nothing to do; where somebody stands in line, it is to leave."""
        if box.restart != "permanent":
            self._idle[box] = None
            box.leave = box.leave or bool(self._line)

    def not_idle(self, box: Mailbox) -> None:
        """Take note that an actor has something to do, or ends."""
        self._idle.pop(box, None)

    def close(self) -> None:
        """Send the line home."""
        self._line.clear()
