"""A client that spawns a round's tasks: `python -m tests.chaos.client STORE SEED`. It goes on until it is killed.

What it tells the ledger after a spawn has returned is what must not be lost. The next client goes on behind the last
task that was accepted, and so spawns once more what may be in the store or not. Meanwhile a thread of it waits for
results, and tells the ledger of them.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from actors import AgentSystem, TaskFailedError, TaskHeldError, TaskRef
from tests.chaos import ledger
from tests.chaos.ledger import Line
from tests.chaos.programs import program

CROWD = 24
"""Tasks that are open at most; a child counts."""
PAUSE = 0.05


def main(store: str, seed: str) -> None:
    accepted = [line.task.removeprefix(f"{seed}-") for line in ledger.read() if line.what == "accepted"]
    number = max((int(text) for text in accepted if text.isdigit()), default=0)
    tasks: SimpleQueue[TaskRef[Any]] = SimpleQueue()
    with AgentSystem(store, run=False) as system:
        threading.Thread(target=wait_for_results, args=[tasks], daemon=True).start()
        while True:
            if len(system.log.recorder.select_entries(status=["queued", "running", "waiting", "held"])) >= CROWD:
                time.sleep(PAUSE)
                continue
            number += 1
            tasks.put(spawn(system, int(seed), number))


def spawn(system: AgentSystem, seed: int, number: int, folder: Path | str = ".") -> TaskRef[Any]:
    """Spawn a round's nth task, and tell the ledger in that folder that it was accepted."""
    agent, args = program(seed, number)
    task = system.spawn(agent, *args, id=f"{seed}-{number}")
    ledger.write(Line("accepted", task.id), folder)
    return task


def wait_for_results(tasks: SimpleQueue[TaskRef[Any]]) -> None:
    while True:
        task = tasks.get()
        with suppress(TaskHeldError):
            ledger.write(Line("answered", task.id, token=json.dumps(answer(task))))


def answer(task: TaskRef[Any]) -> Any:
    """Wait for a task's value, or the message with which it has failed."""
    try:
        return task.result()
    except TaskFailedError as error:
        return error.fault.message


if __name__ == "__main__":
    main(*sys.argv[1:])
