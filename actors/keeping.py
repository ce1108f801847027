"""How a store is kept small: what has ended is deleted after some time, and the room is given back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from datetime import timedelta
from functools import partial
from typing import cast

from actors.context import refuse_inside_agent, refuse_on_loop
from actors.deleting import delete_ended
from actors.pausing import seconds_of
from actors.remote import Reach
from domain.state import ENDED, Status


class Keeper(ABC):
    """Keeps a store small."""

    @property
    @abstractmethod
    def _home(self) -> Reach:
        """The system."""

    def delete_ended(self, older_than: float | timedelta, *, status: Collection[Status] = ENDED) -> int:
        """Delete the tasks that ended at least so long ago, and give their number.

            system.delete_ended(timedelta(days=30), status=["completed"])

        Each is deleted as `TaskRef.delete` does it; one that cannot be is passed over with a warning. Other tasks go on
        meanwhile, and it may be called again, or at once from several processes.

        Args:
            older_than: seconds, or a timedelta.
            status: which endings go: of "completed", "failed" and "cancelled".

        Raises ValueError, InsideTaskError in an agent between its steps, BlockingCallError, the store's errors.
        """
        refuse_inside_agent("delete_ended()", "call it in a step")
        refuse_on_loop("delete_ended()", "await delete_ended_async(…)")
        seconds = seconds_of("older_than", older_than)
        if seconds is None:
            raise ValueError("older_than is a number of seconds or a timedelta")
        home, chosen = self._home, checked_endings(status)
        deleted = delete_ended(home.log, home.outsiders, seconds, chosen)
        home.wake()
        return deleted

    async def delete_ended_async(self, older_than: float | timedelta, *, status: Collection[Status] = ENDED) -> int:
        """Do what `delete_ended` does, without blocking the event loop."""
        refuse_inside_agent("delete_ended_async()", "call it in a step")
        return await self._home.runtime.commits.call(partial(self.delete_ended, older_than, status=status))

    def vacuum(self) -> None:
        """Make the store anew of what is in it: what was deleted stands in it nowhere any more, and its room is free.

        For an SQLite file it needs as much room again meanwhile, and others wait to write; so it is for quiet hours. It
        deletes besides what heartbeats and emissions deleted tasks have left behind.

        Not guaranteed: anything about backups, or what the disk keeps of blocks that are not in use.

        Raises StoreUnavailableError where somebody is in the way for too long; InsideTaskError, BlockingCallError.
        """
        refuse_inside_agent("vacuum()", "call it in a step")
        refuse_on_loop("vacuum()", "await vacuum_async()")
        self._home.log.store.vacuum()

    async def vacuum_async(self) -> None:
        """Do what `vacuum` does, without blocking the event loop."""
        refuse_inside_agent("vacuum_async()", "call it in a step")
        await self._home.runtime.commits.call(self.vacuum)


def checked_endings(status: Iterable[str]) -> frozenset[Status]:
    """Give these statuses as a set. Raises ValueError for one that is no ending.

    >>> sorted(checked_endings(iter(["failed", "completed"])))
    ['completed', 'failed']
    """
    chosen = [status] if isinstance(status, str) else list(status)  # a generator gives them once only
    wrong = [repr(one) for one in chosen if one not in ENDED]
    if wrong or isinstance(status, str):
        what = f"the text {status!r}: write [{status!r}]" if isinstance(status, str) else ", ".join(wrong)
        raise ValueError(f"status is a collection of {', '.join(ENDED)}, not {what}")
    return cast("frozenset[Status]", frozenset(chosen))
