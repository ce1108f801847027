"""The parent of several worker processes: it starts them, starts again what dies, and stops them all."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from actors.leaving import Signals
from actors.saying import say
from actors.serve import AGAIN
from domain.retry import restart_delay

LONG = 60.0
"""Seconds after which a worker process has lived long enough: its next death counts as the first."""
PATIENCE = 5.0
"""Seconds that a worker process has to leave, besides the grace of its steps; then it is killed."""
UNUSABLE = 2
"""The exit code of a worker that cannot begin: its module cannot be imported, its store was refused."""


class Pool:
    """Worker processes that are started again when they die.

    Guaranteed: when the parent dies, in whatever way, they leave in good order by themselves. One that cannot begin
    ends the pool where no other is at work; so the first begins alone, and what is wrong is told once. Not guaranteed:
    that what the body of a step has started ends too.

    Args:
        count: how many.
        words: what comes after `perdure worker` for each of them.
        grace: seconds that running steps have to end.
        signals: those of this process, installed.
    """

    def __init__(self, count: int, words: Sequence[str], grace: float, signals: Signals) -> None:
        self._processes = [WorkerProcess(number, words) for number in range(1, count + 1)]
        self._waiting = self._processes[:1]
        self._grace = grace
        self._signals = signals
        signals.at_once = self._kill
        signals.notice_children()

    def run(self) -> int:
        """Keep the processes at work until a signal comes; give the exit code."""
        with self._signals.in_good_order():
            usable = self._keep_at_work()
            self._stop()
        if not usable:
            return UNUSABLE
        say("stopped", AGAIN)
        return 128 + (self._signals.received or signal.SIGTERM)

    def _keep_at_work(self) -> bool:
        """Start, and start again, until a signal comes; False where a process cannot begin."""
        while self._signals.received is None:
            for process in self._waiting:
                if process.due is not None and process.due <= time.monotonic():
                    self._start(process)
            silent = [process.line for process in self._processes if process.line is not None]
            self._signals.wait(*silent, timeout=self._nap())
            for process in self._processes:
                process.listen()
                if process.at_work and self._waiting is not self._processes:
                    self._waiting = self._processes
                    say("", f"perdure: {len(self._processes)} worker processes, their parent is pid {os.getpid()}")
                if process.has_ended() and not self._goes_on_after(process):
                    return False
        return True

    def _start(self, process: WorkerProcess) -> None:
        try:
            process.start()
        except OSError as error:  # no process or descriptor left on this machine, for now
            say(
                "waiting",
                f"worker process {process.number} cannot be started: {error}; again in {process.rest():.1f} s",
            )

    def _goes_on_after(self, process: WorkerProcess) -> bool:
        """Say how a process died and when there is another; False where there is none."""
        pid, code = process.pid, process.code
        if code == UNUSABLE and not any(one.at_work for one in self._processes):
            return False
        delay = process.rest()
        say("crashed", f"worker process {process.number} (pid {pid}) {how_it_ended(code)}; another in {delay:.1f} s")
        return True

    def _nap(self) -> float | None:
        dues = [process.due for process in self._waiting if process.due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _stop(self) -> None:
        """Tell all to leave, and wait until they have; what does not is killed."""
        left = self._alive()
        if left and self._signals.received is not None:
            say("stopping", f"worker processes: {len(left)}; a second signal leaves at once, as a crash does")
        for process in left:
            process.send(signal.SIGTERM)
        until = time.monotonic() + self._grace + PATIENCE
        while (left := self._alive()) and (rest := until - time.monotonic()) > 0:
            self._signals.wait(timeout=rest)
        for process in left:
            say("killed", f"worker process {process.number} (pid {process.pid}) has not left within its grace")
        self._kill()

    def _alive(self) -> list[WorkerProcess]:
        return [process for process in self._processes if process.is_alive()]

    def _kill(self) -> None:
        for process in self._processes:
            process.send(signal.SIGKILL)


class WorkerProcess:
    """A worker process, and after its death another one, each `perdure worker` with the same words.

    `due`: when the next one is to be started, by the monotonic clock; None while one lives. `line`: the descriptor on
    which the present one tells that it is `at_work`; None when it has.
    """

    def __init__(self, number: int, words: Sequence[str]) -> None:
        self.number = number
        self.due: float | None = time.monotonic()
        self.line: int | None = None
        self.at_work = False
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._began = 0.0
        self._deaths = 0

    @property
    def pid(self) -> int:
        """The process; 0 where there has been none."""
        return self._process.pid if self._process is not None else 0

    @property
    def code(self) -> int | None:
        """The exit code, below 0 for a signal; None while it lives."""
        return self._process.poll() if self._process is not None else None

    def start(self) -> None:
        """Start one. Raises OSError.

        It holds one end of a pair of sockets, and knows by the end of the other that its parent is dead. SIGINT is held
        back until it can handle it: a Ctrl-C is for all processes of a terminal.
        """
        self._began = time.monotonic()
        ours, theirs = socket.socketpair()
        self._lifeline = ours
        ours.setblocking(False)
        alike = [] if os.getcwd() in sys.path else ["-P"]  # it finds modules where this process would
        command = [sys.executable, *alike, "-m", "actors", "worker", f"--lifeline={theirs.fileno()}", *self._words]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        self.line, self.due = ours.fileno(), None

    def listen(self) -> None:
        """Hear whether it is at work."""
        if self.line is not None and self._lifeline is not None:
            try:
                self.at_work = bool(self._lifeline.recv(1))
            except BlockingIOError:
                return
            self.line = None

    def is_alive(self) -> bool:
        """Tell whether there is one."""
        return self._process is not None and self._process.poll() is None

    def has_ended(self) -> bool:
        """Tell whether it has died, and no other is due yet."""
        return self.due is None and not self.is_alive()

    def rest(self) -> float:
        """Give the seconds until another one is due: longer after each death, unless it had lived long."""
        now = time.monotonic()
        self._deaths = deaths_after(self._deaths, now - self._began)
        delay = restart_delay(self._deaths, random.uniform(-1, 1))
        if self._lifeline is not None:
            self._lifeline.close()
        self.due, self.line, self.at_work = now + delay, None, False
        return delay

    def send(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self._process is not None:
            self._process.send_signal(number)


def deaths_after(deaths: int, lived: float) -> int:
    """Count a death of one that has lived so many seconds.

    >>> deaths_after(3, lived=1.0), deaths_after(3, lived=60.0)
    (4, 1)
    """
    return 1 if lived >= LONG else deaths + 1


def how_it_ended(code: int | None) -> str:
    """Say in words what an exit code means.

    >>> how_it_ended(-9), how_it_ended(70)
    ('was killed by SIGKILL', 'ended with exit code 70')
    """
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # one of those that have no name
        return f"was killed by signal {-code}"
