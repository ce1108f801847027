"""Which of several workers takes a task first: if all tried at once, all but one would have read for nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from stores import IndexRow

LEFT_FOR = 0.1
"""Seconds for which a task is left to the worker whose it is to take."""


class Shares:
    """What one worker leaves to others for a moment. By its own monotonic clock, from when it saw the task first.

    All workers choose alike, without a word between them. Not guaranteed: that the chosen one has a place, or is awake;
    so it is only for a moment.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._seen: dict[tuple[str, int], float] = {}
        self.left = False

    def begin(self) -> None:
        """Begin a look: nothing is left to others yet."""
        self.left = False
        if len(self._seen) > 10_000:
            since = time.monotonic() - LEFT_FOR
            self._seen = {key: seen for key, seen in self._seen.items() if seen > since}

    def leaves(self, row: IndexRow, live: Mapping[str, Mapping[str, Any]]) -> bool:
        """Tell whether a task that is due is another's to take first."""
        if row.owner == self._worker or chosen(row, live, self._worker) == self._worker:
            return False
        now = time.monotonic()
        leaves = now - self._seen.setdefault((row.id, row.head), now) < LEFT_FOR
        self.left |= leaves
        return leaves


def chosen(row: IndexRow, live: Mapping[str, Mapping[str, Any]], asking: str) -> str:
    """Give the worker that takes a task first, of those that run all tasks and know its agent, or else who asks.

    Each is chosen for as many tasks as any other, and for the same ones as long as it lives.

    >>> from stores.task_index import IndexRow
    >>> row = IndexRow("t", "b", 1, 0, "queued", "f", 0.0, 0.0)
    >>> both = {"v": {"agents": ["f"]}, "w": {"agents": ["f"]}}
    >>> chosen(row, both, "v") == chosen(row, both, "w")
    True
    >>> chosen(row, both | {"v": {"agents": ["f"], "only": "x"}}, "v")
    'v'
    """
    able = [worker for worker, about in live.items() if row.agent in about.get("agents", ()) and not about.get("only")]
    return max(able, key=lambda worker: _lot(worker, row.id)) if asking in able else asking


def _lot(worker: str, task: str) -> bytes:
    return blake2b(f"{worker} {task}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
