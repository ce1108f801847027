"""What `perdure demo` stands on: a mail server and agents as processes, which never outlive whoever started them.

And an end in good order, also where a signal brings it.
"""

from __future__ import annotations

import mailbox
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType


@dataclass(frozen=True)
class MailServer:
    """A running mail server, and what it has kept."""

    pid: int
    port: int
    file: Path

    def message_ids(self, recipient: str) -> list[str]:
        """Give the Message-IDs of the mails that a recipient has, in the order of their arrival."""
        with closing(mailbox.mbox(self.file)) as box:
            return [str(mail["Message-ID"]).strip() for mail in box if mail["To"] == recipient]


@dataclass(frozen=True)
class Ending:
    """How a process ended: `code` is its exit code, or minus the signal that killed it."""

    pid: int
    code: int

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL


@contextmanager
def mail_server(folder: Path, lose: int = 0) -> Iterator[MailServer]:
    """Run a mail server on 127.0.0.1 for the length of the block; it keeps what arrives in `folder`.

    `lose`: the number of the one mail that it accepts and drops, for tests; 0 for none.
    """
    file = folder / "mails.mbox"
    program = str(Path(__file__).with_name("demo_mail.py"))  # not as a module: it needs none of ours, and starts sooner
    with started([program, str(file), str(lose)], folder, {}) as process:
        port = process.stdout.readline() if process.stdout else ""
        if not port.strip().isdigit():
            raise RuntimeError(f"the mail server did not start:\n{port}{process.communicate()[0]}")
        yield MailServer(process.pid, int(port), file)
        process.communicate()


def run_module(
    module: str,
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    hear: Callable[[int, str], None],
    patience: float,
) -> Ending:
    """Run a module in a process of its own, in a folder, and hand over each line that it writes, as it comes.

    A process that does not end within `patience` seconds is ended by SIGTERM.
    """
    with started(["-m", module, *words], folder, environment) as process:
        watchdog = threading.Timer(patience, process.terminate)
        watchdog.start()
        try:
            for line in process.stdout or ():
                hear(process.pid, line.rstrip())
            return Ending(process.pid, process.wait())
        finally:
            watchdog.cancel()


@contextmanager
def started(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start `python WORDS`, which finds its imports where this process does; it ends with the block at the latest.

    It has a session of its own: Ctrl-C reaches this process alone, which then ends it.
    """
    imports = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-P", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": imports, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def in_good_order(play: Callable[[], int]) -> int:
    """Play, and give the exit code, 130 after Ctrl-C; SIGTERM and SIGHUP end the program with 143 and 129.

    All that the play cleans up on its way out it has cleaned up then: a second signal does not interrupt that.
    """
    try:
        with _unwinding(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            return play()
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; its processes and its folder are gone\n")
        return 130


@contextmanager
def _unwinding(*signals: signal.Signals) -> Iterator[None]:
    """Let the first of these signals end the block as an exit does, with all that is cleaned up on the way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: handler for number in signals if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }

    def leave(number: int, _: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
