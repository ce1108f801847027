"""What other processes have done, as PostgreSQL tells it: LISTEN, on a connection of its own.

A hint, and no more: what is said while the connection is cut is never heard. Who listens is told so once it is there
again, and looks for itself, as it does from time to time anyway.
"""

import json
import logging
import os
import select
import threading
from collections.abc import Callable, Collection
from contextlib import suppress

import psycopg
from psycopg.sql import SQL, Identifier

from stores.errors import StoreError
from stores.postgres_links import Link, Links
from stores.postgres_text import loaded

logger = logging.getLogger("perdure")

Tell = Callable[[Collection[str] | None], object]
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to connect, growing from the first to the longest."""
GATHERING = 0.02
"""Seconds after one telling in which words are gathered: who hears of each of many tasks does nothing but look."""
LAST_WORD = 1.0
"""Seconds that a close waits for the thread."""


class Listener:
    """Calls `tell` on a thread of its own, with the ids of tasks of which there is news, or None for any of them.

    Not told is what this process writes itself. Several words that have come together are told at once.
    """

    def __init__(self, links: Links, channel: str, tell: Tell) -> None:
        self._links = links
        self._channel = channel
        self._tell = tell
        self._closing = threading.Event()
        self._bell: tuple[int, int] | None = os.pipe()
        self._mutex = threading.Lock()
        self._thread = threading.Thread(target=self._live, name="perdure-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell nothing any more. May be called again, and by `tell` itself; does nothing in a forked child."""
        if self._closing.is_set() or self._links.forked:
            return
        with self._mutex:
            self._closing.set()
            if self._bell is not None:
                os.write(self._bell[1], b"!")
        if self._thread is not threading.current_thread():
            self._thread.join(LAST_WORD)

    def _live(self) -> None:
        pause = FIRST_PAUSE
        try:
            while not self._closing.is_set():
                try:
                    self._connect_and_listen()
                    pause = FIRST_PAUSE  # it was connected
                except (StoreError, psycopg.Error, OSError) as error:
                    logger.debug("nothing is heard of other processes, which is looked for instead: %s", error)
                self._closing.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            with self._mutex:
                bell, self._bell = self._bell, None
            for end in bell or ():
                os.close(end)

    def _connect_and_listen(self) -> None:
        link = Link(self._links.place)
        try:
            link.connection.execute(SQL("LISTEN {}").format(Identifier(self._channel)))
            self._say(None)
            with suppress(psycopg.Error, OSError):
                while self._wait(link.connection.fileno()):
                    self._pass_on(link.connection)
                    self._closing.wait(GATHERING)
        finally:
            link.close()

    def _wait(self, descriptor: int) -> bool:
        """Wait for a word; False when it is time to go."""
        poll = select.poll()
        for each in (descriptor, *(self._bell or ())[:1]):
            poll.register(each, select.POLLIN)
        poll.poll()
        return not self._closing.is_set()

    def _pass_on(self, connection: psycopg.Connection) -> None:
        ids, anything = set[str](), False
        for notice in connection.notifies(timeout=0):
            if notice.pid not in self._links.writers:
                some = _ids(notice.payload)
                anything |= not some
                ids.update(some)
        if ids or anything:
            self._say(None if anything else ids)

    def _say(self, ids: Collection[str] | None) -> None:
        try:
            if not self._closing.is_set():
                self._tell(ids)
        except Exception:
            logger.exception("who was told of news has failed")


def _ids(payload: str) -> list[str]:
    with suppress(ValueError):
        ids = json.loads(payload)
        if isinstance(ids, list):
            return [loaded(one) for one in ids if isinstance(one, str)]
    return []
