"""The ledger: what has really happened, one line each, on the disk before anything can follow from it.

No store knows of it. Its lines stand in the order in which they were written, whichever process wrote them. It is the
file `ledger.jsonl` in the folder in which the processes of a round run.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = "ledger.jsonl"


@dataclass(frozen=True)
class Line:
    """One thing that has happened.

    `what`:
        effect: a body has done its work, and made `number` and `token`.
        asked: an `on_doubt` function has found `token`, or nothing, for that attempt.
        beat, heard: a body has told of heartbeat `number`; a body was given it, or 0, as the last of those before.
        died: a body is about to kill its process, whose pid is `number`.
        crashed: an agent is about to crash, once.
        accepted: a spawn of `task` has returned.
        signalled: a signal was accepted, whose id, name and value are the JSON in `token`.
        decided: the approval that was asked for at `path` was answered by yes (`number` is 1) or no.
        cancelled: a cancellation for the reason `token` was accepted, and was the first.
        ended: a later cancellation has ended a task that was held.
        answered: who waited for `task` was given the JSON in `token`.
    `activation`: the one for which the code ran. `at`: Unix seconds.
    """

    what: str
    task: str
    path: str = ""
    key: str = ""
    attempt: int = 0
    activation: int = 0
    number: int = 0
    token: str = ""
    at: float = field(default_factory=time.time)


def write(line: Line, folder: Path | str = ".") -> None:
    """Add a line; it is on the disk when this returns."""
    file = os.open(Path(folder) / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, json.dumps(asdict(line)).encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def read(folder: Path | str = ".", containing: str = "") -> list[Line]:
    """Give all lines that contain a text, in the order in which they were written."""
    path = Path(folder) / FILE
    texts = path.read_text().splitlines() if path.exists() else []
    return [Line(**json.loads(text)) for text in texts if containing in text]


def effect_of(key: str, folder: Path | str = ".") -> Line | None:
    """Give the last effect that has this idempotency key, if there is one."""
    effects = [line for line in read(folder, key) if line.what == "effect"]
    return effects[-1] if effects else None
