"""How a command leaves: at a first signal in good order, at a second one at once."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import typer

LAST_MOMENT = 2.0
"""Seconds that Python has to end a process in which all is done: exit handlers may have work, or hang."""


class Signals:
    """SIGINT and SIGTERM: within `in_good_order` the first is only noted, any other leaves at once.

    Not in a child that a step's body has forked: it has them as if they had never been handled.

    Args:
        patient: ignore all but the first in there. For a worker process whose parent decides how long it waits: what a
            terminal or a service manager sends goes to both, and comes once more from the parent.
        at_once: called before it leaves at once.
    """

    def __init__(self, *, patient: bool = False, at_once: Callable[[], object] = lambda: None) -> None:
        self.received: int | None = None
        self.at_once = at_once
        self._patient = patient
        self._in_good_order = False
        self._before: dict[int, signal.Handlers | Callable[[int, FrameType | None], object]] = {}
        self._heard, self._bell = os.pipe()  # no lock: a handler must not wait for what its own thread may hold
        os.set_blocking(self._heard, False)
        os.set_blocking(self._bell, False)

    def install(self) -> None:
        """Handle both, but for one that was ignored from the start, as by `nohup`; let in what was held back so far."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before if callable(before) else signal.SIG_DFL
                signal.signal(number, self._handle)
        os.register_at_fork(after_in_child=self._forget)
        # Of two signals at once the kernel may give both to another thread, and then this one sleeps on in its `wait`.
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def notice_children(self) -> None:
        """Let the end of a child process end a `wait` too."""
        signal.signal(signal.SIGCHLD, lambda *_: None)

    @contextmanager
    def in_good_order(self) -> Iterator[None]:
        """Only note the first signal within this block; whoever is in it looks at `received`."""
        self._in_good_order = True
        try:
            yield
        finally:
            self._in_good_order = False

    def wait(self, *others: int, timeout: float | None = None) -> list[int]:
        """Wait for a signal, or for one of these descriptors to have something to read; give those that have.

        Not guaranteed: that anything has happened when it returns. Look again.
        """
        ready, _, _ = select.select([self._heard, *others], [], [], timeout)
        with suppress(BlockingIOError):
            os.read(self._heard, 1024)
        return [other for other in others if other in ready]

    def _forget(self) -> None:
        """Let a child have its signals as they were: Python's own handler may come too late for a call that blocks."""
        signal.set_wakeup_fd(-1)
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received is None and self._in_good_order:
            self.received = number
            self._ring()
        elif not (self._patient and self._in_good_order):
            self.at_once()
            os._exit(128 + number)

    def _ring(self) -> None:
        """End the next `wait`: the first ring may have been heard before the handler has run."""
        with suppress(BlockingIOError):  # it is full of rings that nobody has heard yet
            os.write(self._bell, b"!")


def leave(code: int) -> NoReturn:
    """End the process with this code, after `LAST_MOMENT` seconds even where a thread that a body has left hangs."""
    watchdog = threading.Timer(LAST_MOMENT, os._exit, [code])
    watchdog.daemon = True
    with suppress(RuntimeError):  # the machine has no thread left
        watchdog.start()
    try:
        sys.stdout.flush()
    except OSError:  # nobody reads it any more
        os._exit(code)
    raise typer.Exit(code)
