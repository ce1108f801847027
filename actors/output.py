"""What running code emits, on its way to the store: buffered for a moment, and written by a thread of the system."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import weakref
from collections.abc import Callable

from actors.threads import Threads
from stores import StoreUnavailableError, TaskRecorder
from stores.crash import SimulatedCrash
from stores.emissions import RESET, Emission

logger = logging.getLogger("perdure")

DELAY = 0.05
"""Seconds for which what is emitted may be buffered."""
LONGEST_PAUSE = 2.0
"""Seconds between two tries at most while the store is away."""
MOST_BUFFERED = 16 * 1024 * 1024
"""Bytes that may be buffered, about: what is emitted beyond that is dropped."""
_ROW = 200  # bytes that a row takes besides its value


class Output:
    """The buffer of one system. Safe in all threads; nothing is started before something is emitted.

    Guaranteed: what is added for a task is stored in that order, in few transactions; adding waits for no store and
    never fails. Not guaranteed: that it is stored. A death loses what is buffered, and so does a store that is away
    when there is too much of it, or when the system closes; of a commit of unknown fate nothing is sent again.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._forget()
        _everyone.add(self)

    def _forget(self) -> None:
        """Begin with nothing: at first, and in a child made by fork, whose parent stores what is buffered."""
        self._lock = threading.Lock()
        self._saving = threading.Lock()  # one transaction at a time: rows stay in order
        self._buffers: dict[tuple[str, str], _Buffer] = {}
        self._size = 0
        self._is_served = self._told = False
        self._closing = threading.Event()

    def add(self, recorder: TaskRecorder, task_id: str, birth: str, rows: list[Emission]) -> None:
        """Take rows of a task, to be stored soon. A reset is taken however much is buffered: there are few."""
        with self._lock:
            if self._closing.is_set():
                return
            taken = [row for row in rows if row.kind == RESET or self._size < MOST_BUFFERED]
            if taken:
                buffer = self._buffers.setdefault((task_id, birth), _Buffer(recorder))
                buffer.rows += taken
                self._size += _size(taken)
            if len(taken) < len(rows):
                self._warn("what is emitted is dropped: it comes faster than the store takes it, or that is away")
            if self._is_served or not taken:
                return
            self._is_served = True
        try:
            contextvars.Context().run(self._threads.start, self._serve)
        except RuntimeError:  # the machine has no thread left: the next emission, or append, tries again
            self._is_served = False

    def holds(self, task_id: str, birth: str) -> bool:
        """Tell whether something is buffered for a task, so that `flush` would have to wait for the store."""
        return (task_id, birth) in self._buffers

    def flush(self, task_id: str, birth: str) -> None:
        """Store what is buffered for a task now, if anything is and the store is there; never fails."""
        if self._buffers:
            self._save((task_id, birth))

    def close(self) -> None:
        """Store what is buffered, and take nothing any more."""
        self._closing.set()
        self._save_all()
        with self._lock:
            self._buffers.clear()

    def _serve(self) -> None:
        """Store what is buffered, again and again, until nothing is."""
        pause = DELAY
        while not self._closing.wait(pause):
            pause = DELAY if self._save_all() else min(2 * pause, LONGEST_PAUSE)
            with self._lock:
                if not self._buffers:
                    self._is_served = False
                    return

    def _save_all(self) -> bool:
        with self._lock:
            keys = list(self._buffers)
        return all(self._save(key) for key in keys)

    def _save(self, key: tuple[str, str]) -> bool:
        """Store what is buffered for a task. It stays in the buffer meanwhile: who finds that empty need not wait."""
        with self._saving:
            with self._lock:
                buffer = self._buffers.get(key)
                rows = list(buffer.rows) if buffer is not None else []
            if buffer is None:
                return True
            try:
                buffer.recorder.save_emissions(*key, rows)
            except StoreUnavailableError as error:
                if error.unknown_fate:
                    self._drop(key, len(rows), lambda row: row.kind != RESET)
                return False
            except (Exception, SimulatedCrash) as error:
                if isinstance(error, Exception):
                    self._warn(f"what task {key[0]} has emitted is not stored: {error}")
            else:
                self._told = False
            self._drop(key, len(rows))
            return True

    def _drop(self, key: tuple[str, str], count: int, which: Callable[[Emission], bool] = lambda _: True) -> None:
        """Take those of the first rows out of a buffer that are done with, and the buffer away where it is empty."""
        with self._lock:
            buffer = self._buffers[key]
            done = [row for row in buffer.rows[:count] if which(row)]
            buffer.rows[:count] = [row for row in buffer.rows[:count] if not which(row)]
            self._size -= _size(done)
            if not buffer.rows:
                del self._buffers[key]

    def _warn(self, message: str) -> None:
        """Warn once, until something could be stored again."""
        if not self._told:
            self._told = True
            logger.warning("%s", message)


class _Buffer:
    """What is buffered for one task."""

    def __init__(self, recorder: TaskRecorder) -> None:
        self.recorder = recorder
        self.rows: list[Emission] = []


def _size(rows: list[Emission]) -> int:
    return sum(len(row.value) + _ROW for row in rows)


_everyone: weakref.WeakSet[Output] = weakref.WeakSet()


def _begin_child() -> None:
    for output in list(_everyone):
        output._forget()


os.register_at_fork(after_in_child=_begin_child)
