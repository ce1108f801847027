"""Walk a program in this process, which kills itself with SIGKILL at the nth boundary that it reaches; 0 lets it live.

`python -m tests.killed_walk STORE COLOUR PROGRAM NTH`; the colour is that of the agent, and the world is the file that
PERDURE_TEST_WORLD names.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from actors import AgentSystem, TaskError
from stores import open_store
from stores.crash import CrashingStore, CrashPlan
from tests.programs import WALKERS

if __name__ == "__main__":
    url, colour, program, nth = sys.argv[1:]
    plan = CrashPlan(int(nth) or None, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
    with AgentSystem(CrashingStore(open_store(url), plan), strikes=None) as system:
        try:
            print(json.dumps(system.spawn(WALKERS[colour], json.loads(program), id="task").result(timeout=60)))
        except TaskError as error:
            print(json.dumps(f"{type(error).__name__}: {error}"))
