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

from actors import AgentSystem, TaskCancelledError, TaskEndedError, TaskFailedError, TaskHeldError, TaskRef
from tests.chaos import ledger
from tests.chaos.kinds import deadline, program
from tests.chaos.ledger import Line
from tests.chaos.talks import TALKERS, Sending, sendings

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
    """Spawn a round's nth task, tell the ledger in that folder that it was accepted, and send what it is sent first."""
    agent, args = program(seed, number)
    task = system.spawn(agent, *args, id=f"{seed}-{number}", deadline=deadline(seed, number))
    ledger.write(Line("accepted", task.id), folder)
    for sending in sendings(args[1]) if agent.name in TALKERS else []:
        if not sending.delay:
            send(task, sending, folder)
    return task


def send(task: TaskRef[Any], sending: Sending, folder: Path | str = ".") -> None:
    """Send a signal, and tell the ledger when that has returned; to a task that has ended nothing is sent."""
    with suppress(TaskEndedError):
        task.signal(sending.name, sending.value, signal_id=sending.id)
        ledger.write(Line("signalled", task.id, token=json.dumps(sending[:3])), folder)


def wait_for_results(tasks: SimpleQueue[TaskRef[Any]]) -> None:
    while True:
        task = tasks.get()
        with suppress(TaskHeldError):
            ledger.write(Line("answered", task.id, token=json.dumps(answer(task))))


def answer(task: TaskRef[Any]) -> Any:
    """Wait for a task's value, the message with which it has failed, or the reason for which it was cancelled."""
    try:
        return task.result()
    except TaskFailedError as error:
        return error.fault.message
    except TaskCancelledError as error:
        return error.reason


if __name__ == "__main__":
    main(*sys.argv[1:])
