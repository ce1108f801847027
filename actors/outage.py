"""An outage of the store, as one who goes on trying meets it."""

from __future__ import annotations

import logging

from stores import StoreError

logger = logging.getLogger("perdure")

FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0
"""Seconds between two tries at a store that is away: doubled from the first up to the longest."""


class Outage:
    """Says once that the store is away and once that it is back, and how long to wait between tries. For one thread.

    `meanwhile` and `after` are what is said; `longest` is the most to wait, in seconds.
    """

    def __init__(self, meanwhile: str, after: str, longest: float = LONGEST_WAIT) -> None:
        self._meanwhile = meanwhile
        self._after = after
        self._longest = longest
        self._wait = 0.0

    def met(self, error: StoreError) -> float:
        """Take note of a failed try; gives the seconds to wait until the next."""
        if not self._wait:
            logger.warning("the store is away, %s: %s", self._meanwhile, error)
        self._wait = min(self._wait * 2 or FIRST_WAIT, self._longest)
        return self._wait

    def over(self) -> None:
        """Take note of a try that did not fail."""
        if self._wait:
            logger.warning("the store is back, %s", self._after)
        self._wait = 0.0
