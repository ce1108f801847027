"""A worker: `python -m tests.chaos.worker STORE STRIKES`, with 0 for no limit. SIGTERM lets it leave in good order."""

from __future__ import annotations

import inspect
import logging
import signal
import sys
from typing import Any

from actors import AgentSystem
from tests.chaos import programs

GRACE = 2.0
"""Seconds that bodies get when a worker leaves; one that waits for another task may want more, and is cut off."""
PLACES = 6
"""Tasks that run at once: fewer than are open."""
LEASE = {"lease": 1.0} if "lease" in inspect.signature(AgentSystem).parameters else {}


def main(store: str, strikes: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # before any thread: all inherit it
    logging.basicConfig(format="%(relativeCreated)d %(levelname)s %(message)s")
    options: dict[str, Any] = {"strikes": int(strikes) or None, "grace": GRACE, "max_active": PLACES, **LEASE}
    with AgentSystem(store, **options) as programs.system:
        signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    main(*sys.argv[1:])
