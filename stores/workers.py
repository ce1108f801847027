"""Who is alive: each worker holds a lock that its death lets go.

A worker whose lock can be taken is dead, and its tasks are free at once: no time-out, no clock. Says
nothing of a worker that is alive but frozen.
"""

import fcntl
import json
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from stores.errors import StoreClosedError
from stores.file_lock import FileLock, os_errors
from stores.lifetime import Resource

About: TypeAlias = Mapping[str, Any]
"""What a worker says of itself: JSON values by name."""

ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
"""What a worker's id may be."""


class WorkerLock(ABC):
    """What a living worker holds. `id`: the worker."""

    id: str

    @abstractmethod
    def update(self, about: About) -> None:
        """Replace what the worker says of itself."""

    @abstractmethod
    def keep(self, about: About) -> bool:
        """See that others still find the lock, and make it again where it was removed; False says that it was."""

    @abstractmethod
    def release(self) -> None:
        """End the worker in good order. May be called again."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go as the death of the process would: the lock is free, nothing is tidied up."""


class Workers(ABC):
    """The workers of one store.

    Guarantee: a worker is alive from the return of `hold` until its `release` or the end of its process,
    whichever way it ends; children that it forked do not count. Ids are made at random and never used
    twice.
    """

    @abstractmethod
    def hold(self, worker_id: str, about: About) -> WorkerLock:
        """Make this process the worker of that id; ValueError if it is no plain word, or in use."""

    @abstractmethod
    def is_alive(self, worker_id: str) -> bool:
        """Say whether that worker lives. An unknown id is dead."""

    @abstractmethod
    def live(self) -> dict[str, dict[str, Any]]:
        """Give the living workers, and what each says of itself ({} while it is just beginning)."""

    @abstractmethod
    def close(self) -> None:
        """Release every lock that was taken here."""


class FileWorkers(Workers):
    """A file for each worker in a folder beside the database, locked by `flock`.

    The file of a dead worker is removed by whoever finds it. POSIX, not for network file systems. Any error
    of the file system is StoreUnavailableError: never is a worker called dead because its file could not be
    opened.
    """

    def __init__(self, folder: str, *, url: str) -> None:
        self._folder = folder
        self._url = url
        self._held: set[_WorkerFile] = set()

    def hold(self, worker_id: str, about: About) -> WorkerLock:
        if not ID.fullmatch(worker_id):
            raise ValueError(f"worker id {worker_id!r}: letters, digits, '-' and '_' only, at most 100")
        with os_errors(self._url, f"make the lock of worker {worker_id}"):
            lock = self._lock_in_place(worker_id, about)
        worker = _WorkerFile(worker_id, lock, self._held, self._url, partial(self._lock_again, worker_id))
        self._held.add(worker)
        return worker

    def _lock_in_place(self, worker_id: str, about: About) -> FileLock:
        """Lock a file that is still in its place then: whoever looked too early took it for dead."""
        while True:
            lock = FileLock(self._path(worker_id), create=True)
            locked = lock.try_lock()
            if locked and lock.is_in_place():
                lock.write(json.dumps(dict(about)).encode())
                return lock
            lock.close()
            if not locked and self.is_alive(worker_id):
                raise ValueError(f"worker id {worker_id!r} is in use")

    def _lock_again(self, worker_id: str, about: About) -> FileLock:
        os.makedirs(self._folder, exist_ok=True)
        return self._lock_in_place(worker_id, about)

    def is_alive(self, worker_id: str) -> bool:
        return bool(ID.fullmatch(worker_id)) and self._look(worker_id) is not None

    def live(self) -> dict[str, dict[str, Any]]:
        with os_errors(self._url, f"list {self._folder}"):
            names = sorted(os.listdir(self._folder))
        ids = [name.removesuffix(".worker") for name in names if name.endswith(".worker")]
        looks = {worker_id: self._look(worker_id) for worker_id in ids}
        return {worker_id: about for worker_id, about in looks.items() if about is not None}

    def close(self) -> None:
        for worker in list(self._held):
            worker.release()

    def _path(self, worker_id: str) -> str:
        return os.path.join(self._folder, f"{worker_id}.worker")

    def _look(self, worker_id: str) -> dict[str, Any] | None:
        """Give what a living worker says of itself; None for a dead one, whose file goes."""
        with os_errors(self._url, f"look at the lock of worker {worker_id}"):
            try:
                lock = FileLock(self._path(worker_id), create=False)
            except FileNotFoundError:
                return None
            try:
                # Shared, so that two who look at once do not take each other for the worker.
                if lock.try_lock(shared=True):
                    self._remove(lock)
                    return None
                return parsed_about(lock.read())
            finally:
                lock.close()

    def _remove(self, lock: FileLock) -> None:
        """Remove a dead worker's file, one remover at a time; who finds another at it leaves it to that one.

        Two at once, of which the second is slow, would remove the file that a new worker has made in its place.
        """
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.is_in_place():
                lock.remove()
        except BlockingIOError:
            return
        finally:
            os.close(folder)


def parsed_about(content: bytes) -> dict[str, Any]:
    """Give what a worker has said of itself; nothing where that is not to be read."""
    try:
        about = json.loads(content)
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


class _WorkerFile(WorkerLock):
    """The lock as a file. Safe in all threads; once it is let go, `keep` does not make it again.

    In a forked child it is closed, which is looked at before the mutex: a thread of the parent's may have that.
    """

    def __init__(
        self,
        worker_id: str,
        lock: FileLock,
        held: "set[_WorkerFile]",
        url: str,
        remake: Callable[[About], FileLock],
    ) -> None:
        self.id = worker_id
        self._lock = lock
        self._remake = remake
        self._held = held
        self._url = url
        self._mutex = threading.Lock()

    def update(self, about: About) -> None:
        self._lock.check()
        with self._mutex, os_errors(self._url, f"write the lock of worker {self.id}"):
            self._lock.write(json.dumps(dict(about)).encode())

    def keep(self, about: About) -> bool:
        if self._is_let_go():
            return True
        with self._mutex, os_errors(self._url, f"look after the lock of worker {self.id}"):
            if self._is_let_go() or self._lock.is_in_place():
                return True
            lost, self._lock = self._lock, self._remake(about)
            lost.close()
            return False

    def release(self) -> None:
        self._let_go(remove=True)

    def abandon(self) -> None:
        self._let_go(remove=False)

    def _is_let_go(self) -> bool:
        return self._lock.closed

    def _let_go(self, *, remove: bool) -> None:
        if self._is_let_go():
            return
        with self._mutex:
            try:
                if remove and not self._is_let_go():
                    with os_errors(self._url, f"remove the lock of worker {self.id}"):
                        self._lock.remove()
            finally:
                self._lock.close()
                self._held.discard(self)


class MemoryWorkers(Resource, Workers):
    """The workers of a store in memory: all in this process, alive until released."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._mutex = threading.Lock()
        self._abouts: dict[str, dict[str, Any]] = {}

    def hold(self, worker_id: str, about: About) -> WorkerLock:
        self.check()
        if not ID.fullmatch(worker_id):
            raise ValueError(f"worker id {worker_id!r}: letters, digits, '-' and '_' only, at most 100")
        with self._mutex:
            if worker_id in self._abouts:
                raise ValueError(f"worker id {worker_id!r} is in use")
            self._abouts[worker_id] = _copied(about)
        return _MemoryWorker(worker_id, self)

    def is_alive(self, worker_id: str) -> bool:
        self.check()
        with self._mutex:
            return worker_id in self._abouts

    def live(self) -> dict[str, dict[str, Any]]:
        self.check()
        with self._mutex:
            return {worker_id: _copied(about) for worker_id, about in sorted(self._abouts.items())}

    def update(self, worker_id: str, about: About) -> None:
        """Replace what a worker says of itself."""
        self.check()
        with self._mutex:
            if worker_id not in self._abouts:
                raise StoreClosedError(f"worker {worker_id} has been released", url=self.url)
            self._abouts[worker_id] = _copied(about)

    def discard(self, worker_id: str) -> None:
        """Make the worker dead, if it is not."""
        if not self.forked:
            with self._mutex:
                self._abouts.pop(worker_id, None)

    def close(self) -> None:
        if not self.forked:
            with self._mutex:
                self._abouts.clear()


def _copied(about: About) -> dict[str, Any]:
    return parsed_about(json.dumps(dict(about)).encode())


class _MemoryWorker(WorkerLock):
    def __init__(self, worker_id: str, workers: MemoryWorkers) -> None:
        self.id = worker_id
        self._workers = workers

    def update(self, about: About) -> None:
        self._workers.update(self.id, about)

    def keep(self, about: About) -> bool:  # noqa: ARG002  nobody can remove it
        return True

    def release(self) -> None:
        self._workers.discard(self.id)

    def abandon(self) -> None:
        self._workers.discard(self.id)
