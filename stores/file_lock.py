"""A lock that the operating system takes back when its process dies: `flock` on a file.

POSIX only, and not for network file systems, where `flock` may mean nothing.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

from stores.errors import StoreUnavailableError
from stores.lifetime import Resource, guard

_POLL = 0.005  # seconds between two tries at a lock that another process has


class FileLock(Resource):
    """One open file that can be locked.

    Guarantee: the lock ends with `close()`, with the process, and is not kept by a child made by fork or
    exec. Not guaranteed: that the file is still in its place (`is_in_place`); whoever finds a lock dead
    removes its file.

    Raises OSError as the system does; `os_errors` makes a StoreError of it.
    """

    def __init__(self, path: str, *, create: bool) -> None:
        super().__init__(path)
        self.path = path
        self._fd = -1
        with guard:
            self._fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o666)

    def try_lock(self, *, shared: bool = False) -> bool:
        """Take the lock if nobody has it; say whether it is ours now."""
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self) -> None:
        """Wait for the lock, in the order in which the system lets in: however long it takes."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def unlock(self) -> None:
        """Let go of the lock, and keep the file open."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def is_in_place(self) -> bool:
        """Say whether the path still leads to this very file."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def read(self) -> bytes:
        """Give the content of the file."""
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0)

    def write(self, content: bytes) -> None:
        """Overwrite the file from its start in one call, so that a reader does not see half of it.

        Shorter content is filled up with blanks: a cut would be a second call.
        """
        self.check()
        os.pwrite(self._fd, content.ljust(os.fstat(self._fd).st_size), 0)

    def remove(self) -> None:
        """Remove the file, if it is still there. Only for whoever has the lock."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def close(self) -> None:
        """Let go of the lock and the file; the file stays. May be called again."""
        fd, self._fd, self.closed = self._fd, -1, True
        if fd >= 0:
            os.close(fd)

    def abandon(self) -> None:
        """Close the child's copy of the descriptor. No unlock: that would take the lock from the parent."""
        self.close()
        super().abandon()

    def __del__(self) -> None:
        self.close()


@contextmanager
def os_errors(url: str, doing: str) -> Iterator[None]:
    """Turn an OSError of the block into StoreUnavailableError, saying what was being done."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(f"{url}: cannot {doing}: {error}", url=url, reason=str(error)) from error


@contextmanager
def locked(path: str, *, timeout: float, url: str) -> Iterator[None]:
    """Hold the lock of `path` for the block; wait `timeout` seconds at most.

    Raises StoreUnavailableError when the lock cannot be had. The file stays behind: removing it would let
    two in.
    """
    deadline = monotonic() + timeout
    with os_errors(url, f"lock {path}"):
        lock = FileLock(path, create=True)
    try:
        while not lock.try_lock():
            if monotonic() >= deadline:
                reason = f"another process holds {path}"
                raise StoreUnavailableError(f"{url}: {reason} for {timeout:g} s", url=url, reason=reason)
            sleep(_POLL)
        yield
    finally:
        lock.close()
