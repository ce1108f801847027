"""What `perdure demo` and its tests stand on: a mail server and agents as processes of their own, which never outlive the block."""

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

from actors.demo_mail_file import mbox_file

PATIENCE = 20.0
"""Seconds after which a process that does not end is ended."""


@dataclass(frozen=True)
class MailServer:
    """A running mail server, and what it has kept."""

    pid: int
    port: int
    folder: Path

    def message_ids(self, recipient: str) -> list[str]:
        """Give the Message-IDs of the mails in a mailbox, in the order of their arrival."""
        file = mbox_file(self.folder, recipient)
        if not file.exists():
            return []
        with closing(mailbox.mbox(file, create=False)) as box:
            return [str(message["Message-ID"]).strip() for message in box]


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
    """Run a mail server on 127.0.0.1 for the length of the block. `lose`: the number of the one mail that it drops, for tests."""
    folder.mkdir(exist_ok=True)
    with _started("actors.demo_mail", [str(folder), str(lose)], folder, {}) as process:
        port = process.stdout.readline() if process.stdout else ""
        if not port.strip().isdigit():
            raise RuntimeError(f"the mail server did not start:\n{port}{process.communicate()[0]}")
        yield MailServer(process.pid, int(port), folder)


def run_module(
    module: str,
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    hear: Callable[[int, str], None],
) -> Ending:
    """Run a module in a process of its own, in a folder, and hand over each line that it writes, as it comes."""
    with _started(module, words, folder, environment) as process:
        watchdog = threading.Timer(PATIENCE, process.terminate)
        watchdog.start()
        try:
            for line in process.stdout or ():
                hear(process.pid, line.rstrip())
            return Ending(process.pid, process.wait())
        finally:
            watchdog.cancel()


@contextmanager
def _started(
    module: str, words: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start `python -m module`, which finds its imports where this process does; it ends with the block at the latest.

    It has a session of its own: Ctrl-C reaches this process alone, which then ends it.
    """
    imports = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words],
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
