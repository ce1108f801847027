"""For how long a worker may act on what it owns, and which others have let theirs run out: the rules of the lease.

All by this process's own monotonic clock, never by a system's `clock`: a clock that tests move says nothing of whether
a process is frozen, and wall clocks of two machines cannot be compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

LEASE = 10.0
"""Seconds for which a worker without a further beat is taken for alive, unless told otherwise."""
SHORTEST_LEASE = 0.1
"""Seconds that a lease has at least: a beat is a commit, and there are four in each."""


class Tenure:
    """One worker's lease, and what it has seen of the beats of others. Any thread may ask; one renews and observes.

    `interval` is the time from beat to beat, in seconds; `count` how often was beaten, however often the actor that
    does it was made anew: a count that stands still says that nobody beats.

    Guaranteed: a worker is called frozen only when its lease has run out by its own clock too, and only by one whose
    own lease holds: what is renewed counts from before the beat was written, what is watched from after it was read.
    Not guaranteed: that it is frozen still a moment later.
    """

    def __init__(self, lease: float = LEASE) -> None:
        self.lease = lease
        self.interval = lease / 4
        self.count = 0
        self._until = -math.inf
        self._watched = -math.inf
        self._still: dict[str, tuple[int, float]] = {}
        self._frozen: dict[str, int] = {}

    def holds(self) -> bool:
        """Tell whether this worker may claim tasks and start bodies now."""
        return time.monotonic() < self._until

    def renew(self, since: float) -> None:
        """Let the lease begin anew: a beat was stored whose writing began at `since`, in monotonic seconds."""
        self._until = since + self.lease

    def observe(self, beats: Mapping[str, tuple[int, float]], asked: float, answered: float) -> bool:
        """Take note of all beats, read between two moments, after one of our own; tells whether one is newly frozen.

        Frozen is whose count stood still for as long as its own lease, added up over our intervals. One that was longer
        than two beats should be was no watching, and all begins anew: we were frozen ourselves, or could not write. Of
        each no more than half of the other's lease counts: who was frozen together with us has a beat to come back.
        """
        passed = asked - self._watched
        if passed > 2 * self.interval:
            self._still = {}
        still = {}
        for worker, (count, lease) in beats.items():
            seen, stood = self._still.get(worker, (None, 0.0))
            still[worker] = count, stood + min(passed, lease / 2) if seen == count else 0.0
        frozen = {worker: count for worker, (count, stood) in still.items() if stood >= beats[worker][1]}
        news = not frozen.keys() <= self._frozen.keys()
        self._still, self._frozen, self._watched = still, frozen, answered
        return news

    def frozen_at(self, worker: str) -> int | None:
        """Give the count at which that worker's beat stands still; None where it is not frozen, or we may not tell."""
        return self._frozen.get(worker) if self.holds() else None
