"""Run a task of an agent in this process, and kill this process with SIGKILL at a named point.

`python -m tests.dying_worker FILE AGENT ARGUMENTS ID STORE POINT WHAT`: ARGUMENTS is a JSON list; POINT is one of
`stores.crash`, such as "append.after" or "body.after"; WHAT is the topic of an event or the name of a step. A POINT
that never comes lets the task end; its result is printed.
"""

import json
import os
import runpy
import signal
import sys
from typing import Any

from actors import AgentSystem
from stores import open_store
from stores.crash import CrashingStore


class Death:
    """Die at the first point of that name which concerns this event or step."""

    dead = False

    def __init__(self, point: str, what: str) -> None:
        self.point = point
        self.what = what

    def reach(self, point: str, **facts: Any) -> None:
        concerned = facts["topics"] if "topics" in facts else [facts["info"].name]
        if point == self.point and self.what in concerned:
            os.kill(os.getpid(), signal.SIGKILL)

    def check(self) -> None:
        return


if __name__ == "__main__":
    file, agent, arguments, task_id, url, point, what = sys.argv[1:]
    store = CrashingStore(open_store(url), Death(point, what), close_inner=True)
    with store, AgentSystem(store) as system:
        print(system.spawn(runpy.run_path(file)[agent], *json.loads(arguments), id=task_id).result(timeout=60))
