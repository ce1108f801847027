"""The process that is timed by `restart.py`: a user's program, which is killed and started again with the same words.

    python restarted.py FOLDER FINISHED

The first time it makes that many steps and dies between two of them; the next time it says when its first new body
runs, and dies there.
"""

from __future__ import annotations

import os
import sys

from actors import AgentSystem, agent, step

path = os.path.join(sys.argv[1], "perdure.db")
finished = int(sys.argv[2])
is_first = not os.path.exists(path)
result = "r" * 98


@step
def default_step(word: str, number: int) -> str:
    if number < finished:
        return result
    print("new step", flush=True)
    os._exit(0)


@agent
def killed(finished: int) -> None:
    for number in range(finished + 1):
        if is_first and number == finished:
            os._exit(0)
        default_step("word", number)


with AgentSystem(f"sqlite:///{path}") as system:
    system.spawn(killed, finished, id="benchmark-task-000000001").result(timeout=600)
