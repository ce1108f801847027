"""Whose turn it is to write a file that several processes share: a queue of two locks beside it.

SQLite lets in whoever happens to ask when its lock is free: a process that commits at full rate asks again at once, and
the others, which look again only after a sleep, wait for seconds. So who wants to write takes `next`, then `write`, and
gives `next` to whoever comes after; `write` goes when the transaction has ended. The kernel keeps the queue.
"""

import os
import threading
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from stores.file_lock import FileLock

PATIENCE = 1.0
"""Seconds that a write waits for its turn; after that SQLite's own lock decides alone."""
LOOK_AGAIN = 1.0
"""Seconds between two looks whether the locks are still where others look for them."""
IDLE = 5.0
"""Seconds after which the thread that stands in line is gone, where nobody sends it again."""


class _Locks(NamedTuple):
    next: FileLock
    write: FileLock

    def try_both(self) -> bool:
        """Take the turn if nobody has it; where only the second lock is another's, the first stays ours."""
        if not self.next.try_lock():
            return False
        if not self.write.try_lock():
            return False
        self.next.unlock()
        return True

    def wait_for_both(self) -> bool:
        """Take the turn, however long that takes; False where the system refuses."""
        try:
            self.next.lock()
            self.write.lock()
            self.next.unlock()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.next.close()
        self.write.close()


class Turns:
    """The turns of one process at a file; the locks are in `folder`.

    Guarantee: as long as all who write take turns, and none is stopped in the middle of one, they write in the order in
    which they came. A courtesy, never safety: a turn that does not come, or cannot be asked for, costs `PATIENCE`
    seconds once; later writes do not wait, until there was a turn again. No error of the file system comes from here.

    Whoever waits for a lock in the kernel's queue cannot leave it. So where somebody else has the turn a thread stands
    in line, and the write waits for the thread. A turn that comes too late is that of the write which then goes on, or
    is given back at once.

    One thread at a time is between `take` and `give`. In a forked child the locks are closed, and nobody may call.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._locks: _Locks | None = None
        self._looked = -LOOK_AGAIN
        self._thread: threading.Thread | None = None
        self._line: _Locks | None = None  # where the thread stands: nobody else touches any locks then
        self._changed = threading.Condition()
        self._wanted = False  # a write goes on that would take the turn from the thread
        self._mine = False
        self._missed = False  # the last turn did not come in time
        self._hurried = False

    def take(self, timeout: float) -> None:
        """Wait until it is this process's turn, at most `timeout` seconds."""
        now = monotonic()
        if now - self._looked >= LOOK_AGAIN:
            self._looked = now
            self._look()
        locks = self._locks
        if locks is None:
            return
        try:
            self._mine = self._line is None and locks.try_both()
        except BaseException as error:  # whatever it was, and wherever it came: no lock of ours stays taken
            self._let_go()
            if not isinstance(error, OSError):
                raise
            return
        if self._mine:
            self._missed = False
        else:
            self._wait(locks, timeout)

    def _look(self) -> None:
        """Make the locks anew where they are gone, or could not be made so far."""
        with suppress(OSError):
            if self._locks is not None and self._locks.next.is_in_place() and self._locks.write.is_in_place():
                return
        self._let_go()
        with suppress(OSError):
            first = FileLock(os.path.join(self._folder, "next"), create=True)
            self._locks = _Locks(first, FileLock(os.path.join(self._folder, "write"), create=True))

    def _wait(self, locks: _Locks, timeout: float) -> None:
        with self._changed:
            self._wanted = True
            if self._line is None:
                self._send(locks)
            if not self._missed:
                self._changed.wait_for(lambda: self._mine or self._hurried, timeout)
                self._missed = not self._mine

    def _send(self, locks: _Locks) -> None:
        """Let the thread stand in line; where the machine has no thread left, nobody does."""
        self._line = locks
        self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._stand, name="perdure-turn", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._thread, self._line, self._missed = None, None, True
                self._let_go()

    def _stand(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._line is not None or self._locks is None, IDLE)
                line = self._line
                if line is None:
                    self._thread = None
                    return
            came = line.wait_for_both()
            with self._changed:
                self._line = None
                self._arrive(line, came=came)

    def _arrive(self, line: _Locks, *, came: bool) -> None:
        """Hand the turn over, or give it back where nobody wants it any more."""
        if line is not self._locks:
            line.close()
        elif not came:
            self._let_go()
        elif self._wanted:
            self._mine, self._missed = True, False
            self._changed.notify_all()
        else:
            line.write.unlock()

    def give(self) -> None:
        """Let the next one in; nothing where it was not this process's turn."""
        if self._wanted:
            with self._changed:
                self._wanted = False
        if self._mine and self._locks is not None:
            self._mine = False
            self._locks.write.unlock()

    def hurry(self, *, on: bool) -> None:
        """Let nobody wait for his turn, while `on`."""
        with self._changed:
            self._hurried = on
            self._changed.notify_all()

    def close(self) -> None:
        """Leave. Where the thread is still in line, the locks are closed when its turn comes."""
        with self._changed:
            self._let_go()
            self._changed.notify_all()

    def _let_go(self) -> None:
        locks, self._locks = self._locks, None
        if locks is not None and locks is not self._line:
            locks.close()
