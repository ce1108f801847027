"""What whoever is measured must be able to do. A contender lives in a process of its own; see `child.py`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Contender(Protocol):
    """Runs tasks of small steps, each of them durable before the next one begins, in the database of a URL."""

    def open(self, url: str) -> AbstractContextManager[None]:
        """Be ready to run tasks, as a user's program would be, until the context ends."""
        ...

    def run(self, tasks: int, steps: int) -> None:
        """Start so many tasks at once, each of so many steps, and return when all have their results."""
        ...

    def start_over(self, steps: int) -> None:
        """Go on with the task that `begin` has begun in an earlier process, to its end."""
        ...

    def begin(self, steps: int) -> None:
        """Run one task under an id that `start_over` finds again."""
        ...

    def fall_asleep(self, name: str) -> None:
        """Leave one task of that id in the database which waits for years, and return when it is written."""
        ...


def path_of(url: str) -> str:
    """Give the file of an SQLite URL.

    >>> path_of("sqlite:////tmp/a.db")
    '/tmp/a.db'
    """
    return url.removeprefix("sqlite:///")
