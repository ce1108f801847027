"""A terminal that gives its keys one by one, and is as it was afterwards, whatever becomes of who has borrowed it.

Run as a program it is the guardian of that: `demo_terminal.py SETTINGS` waits until its standard input ends. Where that
comes without a word, the one it watches was killed, and it puts the terminal in order.
"""

from __future__ import annotations

import ast
import os
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

END = "\x04"
"""What Ctrl-D types; also given where no key will ever come again."""

_IN_ORDER = b"\x1b[?1049l\x1b[?25h\x1b[0m\r\n"  # leave the other screen, show the cursor, no colour
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)?", re.DOTALL)  # an arrow, a function key, Escape itself
_ENOUGH = 4096


class Keys:
    """The keys of a terminal. `woken` is a file descriptor that becomes readable when there is something to look at."""

    def __init__(self, terminal: int, woken: int) -> None:
        self._terminal = terminal
        self._woken = woken
        self._typed = ""

    def wait(self) -> str:
        """Wait for a key and give it; empty where the size of the terminal has changed, or a child has ended."""
        if not self._typed:
            readable, _, _ = select.select([self._terminal, self._woken], [], [])
            if self._woken in readable:
                os.read(self._woken, _ENOUGH)
            if self._terminal in readable:
                self._typed = self._read()
        key, self._typed = self._typed[:1], self._typed[1:]
        return key

    def _read(self) -> str:
        try:
            typed = os.read(self._terminal, _ENOUGH)
        except OSError:
            typed = b""
        return _SEQUENCE.sub(b"", typed).decode(errors="replace") if typed else END


@contextmanager
def borrowed(terminal: int) -> Iterator[Keys]:
    """Take the keys of a terminal one by one, without echo, for the length of the block.

    Ctrl-C is a signal as ever; Ctrl-Z is a key like any other, since nobody would put the terminal in order then.
    """
    before, ours = termios.tcgetattr(terminal), termios.tcgetattr(terminal)
    ours[3] &= ~(termios.ECHO | termios.ICANON)
    ours[6][termios.VMIN], ours[6][termios.VTIME] = 1, 0
    ours[6][termios.VSUSP] = os.fpathconf(terminal, "PC_VDISABLE").to_bytes(1, "little")
    with _guardian(before, ours), _woken_by(signal.SIGWINCH, signal.SIGCHLD) as woken:
        try:
            termios.tcsetattr(terminal, termios.TCSADRAIN, ours)
            yield Keys(terminal, woken)
        finally:
            with suppress(termios.error):  # it may be gone
                termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


@contextmanager
def _guardian(before: list[Any], ours: list[Any]) -> Iterator[None]:
    """Let a process of its own session restore the terminal, should this one be killed within the block."""
    command = [sys.executable, "-I", "-S", __file__, repr((before, ours))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield
        finally:
            process.communicate(b"all is well")


@contextmanager
def _woken_by(*signals: signal.Signals) -> Iterator[int]:
    """Give a file descriptor that becomes readable when one of these signals has come, or any other that is handled.

    It is written to at once, not by a handler in Python: that could come just before a wait, and not end it.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    told_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    before = [(number, signal.signal(number, lambda *_: None)) for number in signals]
    try:
        yield woken
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        signal.set_wakeup_fd(told_before)
        os.close(woken)
        os.close(wake)


if __name__ == "__main__":
    if not sys.stdin.read():
        with suppress(OSError, termios.error):  # it may be gone
            os.write(1, _IN_ORDER)
            before, ours = ast.literal_eval(sys.argv[1])
            if termios.tcgetattr(1) == ours:  # a shell that was quicker knows better
                termios.tcsetattr(1, termios.TCSANOW, before)
