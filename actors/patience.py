"""How long to go on trying a store that is away."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from stores import StoreUnavailableError

logger = logging.getLogger("perdure")

CLIENT_PATIENCE = 30.0
"""Seconds after which a client gives up on a store that is away."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
"""Seconds between tries at a store that is away: doubled from the first up to the longest."""
QUIET = 1.0
"""Seconds that one waits for a store that is away before it is said."""


class Patience:
    """How long to go on trying a store that is away: `limit` seconds, or with None until `over` is set."""

    def __init__(self, limit: float | None = CLIENT_PATIENCE, over: threading.Event | None = None) -> None:
        self._limit = limit
        self._over = over or threading.Event()

    def waiter(self) -> Callable[[StoreUnavailableError], None]:
        """Give what to call each time the store was away: it waits, longer each time, or raises the error at last."""
        started, pause, told = time.monotonic(), FIRST_PAUSE, False

        def wait(error: StoreUnavailableError) -> None:
            nonlocal pause, told
            waited = time.monotonic() - started
            if (self._limit is not None and waited + pause > self._limit) or self._over.wait(pause):
                raise error
            if not told and waited > QUIET:
                told = True
                logger.warning("waiting for the store, nothing is lost meanwhile: %s", error)
            pause = min(pause * 2, LONGEST_PAUSE)

        return wait
