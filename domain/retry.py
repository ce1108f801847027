"""Strikes and restarts: numbers in, decisions out."""

from __future__ import annotations

FIRST_DELAY = 0.1
"""Seconds before the first restart."""
LONGEST_DELAY = 60.0
"""Seconds that no restart waits longer than, jitter aside."""
JITTER = 0.1
"""The share by which a delay is moved at most, either way."""
STRIKE_LIMIT = 3
"""Strikes at which a task is held, unless its system says otherwise."""


def restart_delay(strikes: int, jitter: float = 0.0) -> float:
    """Give the seconds to wait before restart number `strikes`, with `jitter` drawn by the caller from [-1, 1].

    >>> [restart_delay(n) for n in (1, 2, 3)]
    [0.1, 0.2, 0.4]
    >>> restart_delay(10_000)
    60.0
    >>> round(restart_delay(1, jitter=-1), 6)
    0.09
    """
    delay: float = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(strikes - 1, 32))
    return delay * (1 + JITTER * jitter)


def is_out(strikes: int, limit: int | None) -> bool:
    """Tell whether a task has reached the limit; None means no limit.

    >>> is_out(3, limit=3), is_out(2, limit=3), is_out(99, limit=None)
    (True, False, False)
    """
    return limit is not None and strikes >= limit


def is_suspect(strikes: int, limit: int | None) -> bool:
    """Tell whether one more strike would hold the task: it runs alone, so that the next death has one suspect.

    With a limit of 1 nobody would be innocent until proven so, and everything would run alone; there a first death is
    taken as proof.

    >>> is_suspect(2, limit=3), is_suspect(1, limit=3), is_suspect(0, limit=1)
    (True, False, False)
    """
    return limit is not None and 0 < strikes == limit - 1
