"""perdure: an event-sourced actor framework for agent tasks.

What depends on what, each file only on those above it, and on `domain` and `stores`:

    mapper, view                          rows and events; what a person is told
    task_log                              the one place that appends
    info, definitions                     what running code is told; @agent, @step
    activation, call, context             one incarnation and how it closes; one step; what running code calls
    supervised, worker                    actors whose every end is told; what those of one worker share
    event_sourced, task_actor             an actor whose state is a fold of its log; the one that runs an agent
    directory, supervisor, recovery       who is active; what follows an end; what is due
    tree                                  the supervision tree in one constructor
    system                                AgentSystem, TaskRef
    testing, cli, demo                    the kit for users' own tests; the command line
"""

from __future__ import annotations

from importlib.util import find_spec as _find_spec
from os import path as _path


def _guard_names() -> None:
    """Raise ImportError where another package of the same name hides one of ours."""
    home = _path.dirname(_path.dirname(_path.realpath(__file__)))
    for name in ("domain", "stores"):
        spec = _find_spec(name)
        found = spec.origin if spec is not None and spec.origin is not None else "no file"
        if _path.dirname(_path.dirname(_path.realpath(found))) != home:
            raise ImportError(
                f"perdure needs its own package {name!r} beside {_path.join(home, 'actors')}, but Python finds {found}."
                " Rename the other package, or keep its folder off sys.path when perdure is imported"
            )


_guard_names()

from actors.context import step_info, task_info  # noqa: E402  after the guard
from actors.definitions import Agent, Step, agent, step  # noqa: E402
from actors.info import Doubt, Happened, NotHappened, StepInfo, TaskInfo, Unknown  # noqa: E402
from actors.system import AgentSystem, TaskRef  # noqa: E402
from actors.view import StepView, TaskView  # noqa: E402
from domain.errors import (  # noqa: E402
    DefinitionError,
    FailTask,
    InsideTaskError,
    InvalidTaskIdError,
    NestedStepError,
    OutsideTaskError,
    OwnershipLost,
    PerdureError,
    ResolveError,
    StepError,
    Suspended,
    SystemClosedError,
    TaskConflictError,
    TaskEndedError,
    TaskError,
    TaskFailedError,
    TaskHeldError,
    UnknownAgentError,
    UnknownTaskError,
    UnreadableTaskError,
    UnstorableValueError,
)
from domain.faults import Fault  # noqa: E402
from stores import (  # noqa: E402
    InvalidStoreURLError,
    NewerStoreError,
    StoreCorruptError,
    StoreError,
    StoreUnavailableError,
    open_store,
)

__all__ = [
    "Agent",
    "AgentSystem",
    "DefinitionError",
    "Doubt",
    "FailTask",
    "Fault",
    "Happened",
    "InsideTaskError",
    "InvalidStoreURLError",
    "InvalidTaskIdError",
    "NestedStepError",
    "NewerStoreError",
    "NotHappened",
    "OutsideTaskError",
    "OwnershipLost",
    "PerdureError",
    "ResolveError",
    "Step",
    "StepError",
    "StepInfo",
    "StepView",
    "StoreCorruptError",
    "StoreError",
    "StoreUnavailableError",
    "Suspended",
    "SystemClosedError",
    "TaskConflictError",
    "TaskEndedError",
    "TaskError",
    "TaskFailedError",
    "TaskHeldError",
    "TaskInfo",
    "TaskRef",
    "TaskView",
    "Unknown",
    "UnknownAgentError",
    "UnknownTaskError",
    "UnreadableTaskError",
    "UnstorableValueError",
    "agent",
    "open_store",
    "step",
    "step_info",
    "task_info",
]
