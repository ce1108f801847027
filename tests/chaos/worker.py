"""A worker: `python -m tests.chaos.worker STORE STRIKES HASTY`; 0 is no limit. SIGTERM lets it leave in good order."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import time
from zlib import crc32

from actors import AgentSystem, open_store
from stores import Store
from tests.chaos import kinds, programs  # noqa: F401  all the agents are in the first
from tests.chaos.fleet import TELL

GRACE = 2.0
"""Seconds that bodies get when a worker leaves; one that waits for another task may want more, and is cut off."""
PLACES = 6
"""Tasks that run at once: fewer than are open."""
HASTE, SPELL = 0.1, 0.1
"""The share of time in which a hasty worker takes another for dead; seconds that it takes to think better of it."""
LEASE = 1.0
"""Seconds after which a frozen worker's tasks are taken over: less than most are frozen for."""


def main(url: str, strikes: str, hasty: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # before any thread: all inherit it
    faulthandler.register(TELL)
    logging.basicConfig(format="%(relativeCreated)d %(levelname)s %(message)s")
    with open_store(url) as store:
        if hasty:
            make_hasty(store)
        with AgentSystem(
            store, strikes=int(strikes) or None, grace=GRACE, max_active=PLACES, lease=LEASE
        ) as programs.system:
            signal.sigwait([signal.SIGTERM])


def make_hasty(store: Store) -> None:
    """Let this worker rob others that are alive, as if their leases had run out: nothing but the fence is left then."""
    is_alive = store.workers.is_alive

    def alive_as_far_as_one_can_tell(worker_id: str) -> bool:
        spell = f"{os.getpid()} {worker_id} {time.monotonic() // SPELL}"
        return crc32(spell.encode()) % 1000 >= 1000 * HASTE and is_alive(worker_id)

    store.workers.is_alive = alive_as_far_as_one_can_tell  # type: ignore[method-assign]


if __name__ == "__main__":
    main(*sys.argv[1:])
