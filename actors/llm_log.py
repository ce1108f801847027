"""The conversation that a log holds: who said what, and what came of each call of a tool, however its task ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from actors.llm_messages import Message, Reply, ToolCall, ToolResult, Transcript, UserMessage, illegal, unpack
from actors.llm_tools import BAD_CALL, MODEL, ToolError, result_text
from domain.errors import UnknownTaskError
from domain.events import CancelDelivered, Released, SignalReceived, StepFailed, StepSucceeded, TaskEvent, WaitEnded
from domain.faults import Fault
from domain.fold import fold
from domain.journal import join
from domain.record import REQUEST, STEP, StepRecord
from domain.task import AgentTask
from domain.values import decode
from domain.waits import SIGNAL

FOLLOW_UP = "user says"
"""The name of the signal that brings the user's next words."""
PARTS = 3
"""Records that a call of a tool has at most: a question, the wait for its answer, the step."""


@dataclass(frozen=True)
class Used:
    """One call of a tool, in a log: its result, or as far as it has come.

    `over` tells that the result is what the model was told, or will be; else it is what stands for one where the task
    has ended. `state` is a word for people, and `path` that of its last record.
    """

    call: ToolCall
    result: ToolResult
    over: bool
    state: str
    path: str


@dataclass(frozen=True)
class Turn:
    """One reply of a model, at a path of a log, and what came of each of its calls."""

    path: str
    reply: Reply
    used: tuple[Used, ...]


def rejected_text(by: str, note: str) -> str:
    """Say what a model is told of a call to which a person has said no."""
    return f"rejected by {by}" + (f": {note}" if note else "")


def given_up_text(how: str) -> str:
    """Say what a model is told of a call that a person has given up."""
    return f"cancelled: {how}; it may or may not have happened"


CUT_OFF = "cancelled: it was cut off while it ran; it may or may not have happened"
NOT_RUN = "cancelled: it was not run"


def conversation(events: Iterable[TaskEvent]) -> list[Message]:
    """Give the transcript that a task's log holds (`TaskRef.events()`), but for the instructions, which are code's.

    It is legal whatever has happened: each tool call has exactly one result, and one that was cut off has one that says
    so. Of a task that still runs, that is what would be taken up if it ended now.

    Raises ValueError for a task that was not begun with what a user says, or with a conversation, as those of an
    `llm_agent` are.
    """
    task = fold(None, events)
    if task is None:
        raise UnknownTaskError("a task has at least one event", task_id="")
    first = opening(task)
    if first is None:
        what = f"task {task.id} of agent {task.agent} is no llm_agent's"
        raise ValueError(f"{what}: it does not begin with a user's words, nor with a conversation")
    transcript = Transcript(first)
    for turn in turns(task, transcript):
        for used in turn.used if isinstance(turn, Turn) else ():
            transcript.add(used.result)
    for version in task.mail.get(FOLLOW_UP, ()):  # that came, and to which nobody could listen any more
        transcript.add(_heard(task.letters[version]))
    return transcript.messages


def opening(task: AgentTask) -> list[Message] | None:
    """Give what a task of an `llm_agent` was begun with; None for any other, and for what is no conversation."""
    given: Any = decode(task.input)
    args, kwargs = given
    said = args[0] if len(args) == 1 and not kwargs else None
    if isinstance(said, str):
        return [UserMessage(said)]
    return said if isinstance(said, list) and not illegal(said) else None


def turns(task: AgentTask, transcript: Transcript | None = None) -> Iterable[Turn | UserMessage]:
    """Give the replies that a log has, in order, with what came of their calls, and what the user has said meanwhile.

    Each is added to the transcript.
    """
    transcript = Transcript() if transcript is None else transcript
    for record in list(task.steps.values()):
        if is_reply(record):
            reply = transcript.numbered(reply_of(record))
            transcript.add(reply)
            scope, _, number = record.path.rpartition("/")
            beside = join(scope, int(number) + 1)
            used = [_used(task, call, join(beside, nth)) for nth, call in enumerate(reply.tool_calls, 1)]
            yield Turn(record.path, reply, tuple(used))
        elif (record.kind, record.name) == (SIGNAL, FOLLOW_UP) and isinstance(record.outcome, WaitEnded):
            said = _heard(task.letters[record.outcome.signal])
            transcript.add(said)
            yield said


def _heard(letter: SignalReceived) -> UserMessage:
    return UserMessage(str(decode(letter.value)))


def is_reply(record: StepRecord) -> bool:
    """Tell whether a record is that of a model's reply, or of one that a person has given in its place."""
    outcome = record.outcome
    given = isinstance(outcome, Released) and outcome.decision == "value"
    if record.kind != STEP or record.name != MODEL or not (given or isinstance(outcome, StepSucceeded)):
        return False
    value = getattr(outcome, "value", None)
    ours = isinstance(value, dict) and "text" in value and value.keys() <= {"text", "calls", "usage", "extra"}
    return given or ours


def reply_of(record: StepRecord) -> Reply:
    """Give the reply that a record holds which is one."""
    stored: Any = decode(getattr(record.outcome, "value", None))
    return unpack(stored)


def call_of(task: AgentTask, record: StepRecord) -> Used | None:
    """Find the call of a tool to which a step belongs; None where a model has wanted none there."""
    branch = record.path.rpartition("/")[0]
    beside, _, nth = branch.rpartition("/")
    scope, _, number = beside.rpartition("/")
    if not (nth.isdecimal() and number.isdecimal()):
        return None
    asked = task.steps.get(join(scope, int(number) - 1))
    if asked is None or not is_reply(asked):
        return None
    calls = reply_of(asked).tool_calls
    return _used(task, calls[int(nth) - 1], branch) if int(nth) <= len(calls) else None


def _used(task: AgentTask, call: ToolCall, branch: str) -> Used:
    """Find what came of one call in its branch."""
    found = [task.steps[path] for n in range(1, PARTS + 1) if (path := join(branch, n)) in task.steps]
    if not found:
        return _told(call, branch, NOT_RUN, "not run", over=False)
    last = found[-1]
    if last.kind == STEP:
        return _stepped(call, last)
    asked = found[0].path
    answer = task.answer(asked) if found[0].kind == REQUEST else None
    if answer is not None and not answer.value["approved"]:
        return _rejected(call, last.path, answer)
    if isinstance(last.outcome, CancelDelivered) or answer is not None:
        return _told(call, last.path, NOT_RUN, "not run", over=False)
    return _told(call, asked, f"{NOT_RUN}: nobody has approved it", "waits for approval", over=False)


def _rejected(call: ToolCall, path: str, answer: SignalReceived) -> Used:
    text = rejected_text(answer.by, answer.value["note"])
    return _told(call, path, text, "rejected", over=True)


def _stepped(call: ToolCall, record: StepRecord) -> Used:
    outcome, path = record.outcome, record.path
    if isinstance(outcome, StepSucceeded):
        text = result_text(outcome.value)
        return _told(call, path, text, "refused" if record.name == BAD_CALL else "done", over=True)
    if isinstance(outcome, StepFailed):
        fault = Fault.from_data(outcome.error)
        ours = fault.is_a(ToolError)
        return _told(call, path, fault.message if ours else f"failed: {fault}", "failed", over=ours)
    if isinstance(outcome, Released) and outcome.decision == "value":
        return _told(call, path, result_text(outcome.value), "done", over=True)
    if isinstance(outcome, Released):
        return _told(call, path, given_up_text(f"given up by {outcome.by}"), "given up", over=True)
    text = CUT_OFF if record.in_doubt else NOT_RUN
    if record.errors and not record.in_doubt:
        text = f"failed: {record.errors[-1]}; it was not tried again"
    state = "cancelled" if outcome is not None else "running" if record.retry_at is None else "to be tried again"
    return _told(call, path, text, state, over=False)


def _told(call: ToolCall, path: str, text: str, state: str, *, over: bool) -> Used:
    return Used(call, ToolResult(call.id, call.name, text, is_error=state != "done"), over, state, path)


def usage_of(reply: Reply) -> str:
    """Say in short what a reply took; empty where its model does not say.

    >>> from decimal import Decimal
    >>> from actors.llm_messages import Usage
    >>> usage_of(Reply(usage=Usage(10, 2, Decimal("0.01")))), usage_of(Reply())
    ('12 tokens, 0.01', '')
    """
    usage: Any = reply.usage
    parts = [f"{usage.tokens:,} tokens"] if usage.tokens else []
    return ", ".join([*parts, *([f"{usage.cost:f}"] if usage.cost else [])])
