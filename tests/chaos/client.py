"""A client that spawns a round's tasks: `python -m tests.chaos.client STORE SEED`. It goes on until it is killed.

What it tells the ledger after a spawn has returned is what must not be lost. The next client goes on behind the last
task that was accepted, and so spawns once more what may be in the store or not.
"""

from __future__ import annotations

import sys
import time

from actors import AgentSystem
from tests.chaos import ledger
from tests.chaos.ledger import Line
from tests.chaos.programs import program

CROWD = 24
"""Tasks that are open at most; a child counts."""
PAUSE = 0.05


def main(store: str, seed: str) -> None:
    prefix = f"{seed}-"
    accepted = [line.task.removeprefix(prefix) for line in ledger.read() if line.what == "accepted"]
    number = max((int(text) for text in accepted if text.isdigit()), default=0)
    with AgentSystem(store, run=False) as system:
        while True:
            if len(system.log.recorder.select_entries(status=["queued", "running", "waiting", "held"])) >= CROWD:
                time.sleep(PAUSE)
                continue
            number += 1
            agent, args = program(int(seed), number)
            task = system.spawn(agent, *args, id=f"{prefix}{number}")
            ledger.write(Line("accepted", task.id))


if __name__ == "__main__":
    main(*sys.argv[1:])
