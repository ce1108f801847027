"""What has written the store files: run with the perdure of each schema, it leaves `store.db` behind, killed in a step.

    python program.py

Its last words were moved from the write-ahead log into the file afterwards. Tasks: `done`, `failed`, `open`.
"""

from __future__ import annotations

import os
import signal
import sys

from actors import AgentSystem, FailTask, TaskFailedError, agent, step


@step(name="old-note")
def note(word: str) -> str:
    if "kill" in sys.argv and word == "two":
        os.kill(os.getpid(), signal.SIGKILL)
    return word.upper()


@agent(name="old-notes")
def notes(*words: str) -> list[str]:
    if not words:
        raise FailTask("no words")
    return [note(word) for word in words]


if __name__ == "__main__":
    sys.argv.append("kill")
    with AgentSystem("sqlite:///store.db") as system:
        system.spawn(notes, "one", "three", id="done").result(20)
        try:
            system.spawn(notes, id="failed").result(20)
        except TaskFailedError:
            system.spawn(notes, "one", "two", "three", id="open").result(20)
