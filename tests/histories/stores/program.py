"""What has written the store files: run with the perdure of each schema, it leaves `store.db` behind, killed in a step.

    python program.py

What stood in the write-ahead log then was moved into the file. Tasks: `done`, `failed`, and `open`, whose second step
was cut off by the end of a grace at first, and by the kill then.
"""

from __future__ import annotations

import os
import signal
import threading

from actors import AgentSystem, FailTask, TaskFailedError, agent, step

entered = threading.Event()
once_more = False


@step(name="old-note")
def note(word: str) -> str:
    if word == "two" and __name__ == "__main__":
        entered.set()
        if once_more:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    return word.upper()


@agent(name="old-notes")
def notes(*words: str) -> list[str]:
    if not words:
        raise FailTask("no words")
    return [note(word) for word in words]


if __name__ == "__main__":
    with AgentSystem("sqlite:///store.db", grace=0) as system:
        system.spawn(notes, "one", "three", id="done").result(20)
        try:
            system.spawn(notes, id="failed").result(20)
        except TaskFailedError:
            system.spawn(notes, "one", "two", "three", id="open")
        entered.wait(20)
    once_more = True
    with AgentSystem("sqlite:///store.db") as system:
        system.task("open").result(20)
