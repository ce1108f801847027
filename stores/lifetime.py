"""Who may use what a process has opened: nobody after its close, and never a child made by fork.

A database connection that two processes share destroys the file, and a lock file that a child keeps open
keeps its dead parent alive. So what must not be shared is known here, and let go in the child before
anything else runs there.
"""

import os
import threading
from weakref import WeakSet

from stores.errors import StoreClosedError, StoreForkedError

guard = threading.Lock()
"""Held while a fork happens. Whoever opens a descriptor that a child must close holds it while opening."""


class Resource:
    """Something that belongs to the process that opened it.

    Guarantee: in a child made by `os.fork` (so also by multiprocessing's "fork") `abandon()` has run before
    the child goes on. Not guaranteed for a fork made by foreign C code that does not tell Python.
    """

    closed = False
    forked = False

    def __init__(self, url: str) -> None:
        self.url = url
        with guard:
            _resources.add(self)

    def check(self) -> None:
        """Raise StoreForkedError in a forked child, StoreClosedError after the close; else do nothing."""
        if self.forked:
            raise forked_error(self.url)
        if self.closed:
            raise StoreClosedError(f"{self.url} is closed", url=self.url)

    def abandon(self) -> None:
        """Let go in a forked child, without a trace for the parent; called once by the fork itself."""
        self.forked = True


_resources: WeakSet[Resource] = WeakSet()


def inherited() -> list[Resource]:
    """Give what a parent had open when it forked this process; nothing in a process that was not forked."""
    with guard:
        return [resource for resource in _resources if resource.forked and not resource.closed]


def forked_error(url: str) -> StoreForkedError:
    """Give the error for a child made by fork that uses what its parent had open."""
    message = (
        f"{url} was open when process {os.getpid()} was forked from its parent, and the two cannot share it: "
        "fork before the store is opened, or start the child by multiprocessing's 'spawn' or by subprocess"
    )
    return StoreForkedError(message, url=url)


def _abandon_all() -> None:
    try:
        for resource in list(_resources):
            resource.abandon()
    finally:
        guard.release()


os.register_at_fork(before=guard.acquire, after_in_parent=guard.release, after_in_child=_abandon_all)
