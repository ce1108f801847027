"""perdure: an event-sourced actor framework for agent tasks.

Begin with `agent`, `step` and `AgentSystem`; side by side there are `gather`, `map_steps` and `branch`. What many
agents share is an `Entity`, reached by `entity` inside an agent and `AgentSystem.entity` elsewhere; who is supervised
together is an `AgentSystem.group`. A task is watched, decided about and waited for by its `TaskRef`; `actors.testing`
is the kit for your own tests, `actors.llm` an agent that talks with a model and its tools. What each guarantees, and
what not, stands in its docstring.
"""

# What depends on what, each file only on those above it, and on `domain` and `stores`:
#
#     clock, threads, loop                  what time it is; daemon threads of our own; the loop of async agents
#     supervised, where                     actors whose every end is told; where an error came from
#     patience, commit                      a store that is away; the one way into a store
#     mapper, view                          rows and events; what a person is told
#     info                                  what running code is told, and which values it may store
#     entity_log, task_log, appender        what is in the logs; the one appender of a task
#     options, naming, definitions          what can be said of a step; @agent, @step
#     colours, output, runtime              how sync and async code wait; what is emitted; what a system runs things on
#     spawned                               what a spawn is given, checked
#     mailbox, places                       what entities are asked; which of them have an actor
#     entity_actor, entities                who answers; which entities are in memory
#     hints, lines, activation              how an agent's lines wait together; one incarnation and how it closes
#     reserving, body                       what an attempt is reserved at; one entry into a body
#     raised, recorded                      errors that arrive as themselves; what the log has of a call
#     waits, call                           one wait; one call of a step
#     scope, context, emitting              where in the program code stands; what running code calls; `emit`
#     pausing, undo, approvals, children    sleep, receive, wait_any; compensate; people; children
#     settling, entity_ref                  what a task owes before it ends; how an entity is asked
#     branches, frameworks, pydantic_ai     side by side; steps by name; pydantic-ai agents, for who imports it
#     groups, family, worker                who begins anew with whom; what a worker runs that has one task only; what
#                                           the actors of one worker share
#     outsiders, tenure, outage             what brings something to tasks; the rules of the lease; growing waits for
#                                           the store
#     event_sourced, task_actor             an actor whose state is a fold of its log; the one that runs an agent
#     directory, supervisor                 who is active; what follows an end
#     lease, second_looks                   beats and the frozen; what is held and looked at again
#     outbox, deleting, recovery            which parents have to be told of their children; what has ended and goes;
#                                           what is due
#     tree, outline                         the supervision tree in one constructor; trees to look at
#     notice, telling, watching             what is new of a task; who is told, on which thread; the loop that looks
#     replay, history                       one log against today's code; a log as a file
#     updates, feed                         what a follower is told; all of it in one order
#     remote, ref, asked                    what is brought to a task; TaskRef; approvals that nobody has answered
#     spawning, keeping, group_ref, system  how tasks are spawned, and how a store is kept small; TaskGroup, AgentSystem
#     testing                               the kit for users' own tests
#     llm_messages, llm_provider, llm_openai, llm_blocks, llm_anthropic,
#     llm_tools, llm_budget, llm_log, llm_show, llm_scripted, llm
#                                           an LLM agent, on what everybody has; imported by who wants it
#     verify                                what is wrong with a store
#     check, live, look, serve, pool, cli … the command line

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

from eventsourcing.domain import event  # noqa: E402  the library's own, for entities

from actors.approvals import Approval, Decision, request_approval, request_approval_async  # noqa: E402  after the guard
from actors.body import heartbeat  # noqa: E402
from actors.branches import branch, gather, map_steps  # noqa: E402
from actors.children import ChildRef, spawn_child, spawn_child_async  # noqa: E402
from actors.context import inside_task, patched, step_info, task_info  # noqa: E402
from actors.definitions import Agent, AsyncAgent, AsyncStep, Step, agent, step  # noqa: E402
from actors.emitting import emit  # noqa: E402
from actors.entity_ref import EntityRef, entity  # noqa: E402
from actors.feed import Feed  # noqa: E402
from actors.frameworks import get_logger, run_step, run_step_async  # noqa: E402
from actors.group_ref import TaskGroup  # noqa: E402
from actors.info import Doubt, Happened, NotHappened, StepInfo, TaskInfo, Unknown  # noqa: E402
from actors.notice import Notice  # noqa: E402
from actors.options import StepOptions  # noqa: E402
from actors.outline import TreeNode  # noqa: E402
from actors.pausing import (  # noqa: E402
    Awaited,
    First,
    Signal,
    Timer,
    receive,
    receive_async,
    sleep,
    sleep_async,
    sleep_until,
    sleep_until_async,
    wait_any,
    wait_any_async,
)
from actors.ref import TaskRef  # noqa: E402
from actors.remote import Cancellation  # noqa: E402
from actors.system import AgentSystem  # noqa: E402
from actors.undo import compensate  # noqa: E402
from actors.updates import (  # noqa: E402
    ApprovalAnswered,
    ApprovalAsked,
    CancelAsked,
    ChildBegan,
    ChildEnded,
    Emitted,
    Reset,
    SignalArrived,
    StepBegan,
    StepEnded,
    TaskEnded,
    TaskHeld,
    TaskReleased,
    TaskWaiting,
    Update,
    WaitOver,
)
from actors.view import ApprovalView, StepView, TaskView  # noqa: E402
from actors.watching import Watch  # noqa: E402
from domain.entity import Entity  # noqa: E402
from domain.errors import (  # noqa: E402
    AlreadyDecidedError,
    AskTimeoutError,
    BlockingCallError,
    ChildError,
    DefinitionError,
    EntityCrashError,
    EntityError,
    EntityStoppedError,
    FailTask,
    GivenUp,
    GroupConflictError,
    InsideTaskError,
    InvalidTaskIdError,
    KeyConflictError,
    NestedStepError,
    OutsideTaskError,
    OwnershipLost,
    PerdureError,
    Rejected,
    ResolveError,
    RetryAfterError,
    SignalConflictError,
    StepError,
    StepTimeoutError,
    Suspended,
    SystemClosedError,
    TaskCancelled,
    TaskCancelledError,
    TaskConflictError,
    TaskEndedError,
    TaskError,
    TaskFailedError,
    TaskHeldError,
    TaskNotEndedError,
    UnknownAgentError,
    UnknownApprovalError,
    UnknownTaskError,
    UnknownTypeError,
    UnreadableEntityError,
    UnreadableTaskError,
    UnstorableValueError,
    WaitTimeoutError,
)
from domain.faults import Fault  # noqa: E402
from domain.ledger import Attempt, Ledger, Spent  # noqa: E402
from domain.retry import RetryPolicy  # noqa: E402
from domain.types import register  # noqa: E402
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
    "AlreadyDecidedError",
    "Approval",
    "ApprovalAnswered",
    "ApprovalAsked",
    "ApprovalView",
    "AskTimeoutError",
    "AsyncAgent",
    "AsyncStep",
    "Attempt",
    "Awaited",
    "BlockingCallError",
    "CancelAsked",
    "Cancellation",
    "ChildBegan",
    "ChildEnded",
    "ChildError",
    "ChildRef",
    "Decision",
    "DefinitionError",
    "Doubt",
    "Emitted",
    "Entity",
    "EntityCrashError",
    "EntityError",
    "EntityRef",
    "EntityStoppedError",
    "FailTask",
    "Fault",
    "Feed",
    "First",
    "GivenUp",
    "GroupConflictError",
    "Happened",
    "InsideTaskError",
    "InvalidStoreURLError",
    "InvalidTaskIdError",
    "KeyConflictError",
    "Ledger",
    "NestedStepError",
    "NewerStoreError",
    "NotHappened",
    "Notice",
    "OutsideTaskError",
    "OwnershipLost",
    "PerdureError",
    "Rejected",
    "Reset",
    "ResolveError",
    "RetryAfterError",
    "RetryPolicy",
    "Signal",
    "SignalArrived",
    "SignalConflictError",
    "Spent",
    "Step",
    "StepBegan",
    "StepEnded",
    "StepError",
    "StepInfo",
    "StepOptions",
    "StepTimeoutError",
    "StepView",
    "StoreCorruptError",
    "StoreError",
    "StoreUnavailableError",
    "Suspended",
    "SystemClosedError",
    "TaskCancelled",
    "TaskCancelledError",
    "TaskConflictError",
    "TaskEnded",
    "TaskEndedError",
    "TaskError",
    "TaskFailedError",
    "TaskGroup",
    "TaskHeld",
    "TaskHeldError",
    "TaskInfo",
    "TaskNotEndedError",
    "TaskRef",
    "TaskReleased",
    "TaskView",
    "TaskWaiting",
    "Timer",
    "TreeNode",
    "Unknown",
    "UnknownAgentError",
    "UnknownApprovalError",
    "UnknownTaskError",
    "UnknownTypeError",
    "UnreadableEntityError",
    "UnreadableTaskError",
    "UnstorableValueError",
    "Update",
    "WaitOver",
    "WaitTimeoutError",
    "Watch",
    "agent",
    "branch",
    "compensate",
    "emit",
    "entity",
    "event",
    "gather",
    "get_logger",
    "heartbeat",
    "inside_task",
    "map_steps",
    "open_store",
    "patched",
    "receive",
    "receive_async",
    "register",
    "request_approval",
    "request_approval_async",
    "run_step",
    "run_step_async",
    "sleep",
    "sleep_async",
    "sleep_until",
    "sleep_until_async",
    "spawn_child",
    "spawn_child_async",
    "step",
    "step_info",
    "task_info",
    "wait_any",
    "wait_any_async",
]
