"""What a person is told about a task: views, and the texts of a hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Any

from actors.showing import counted, plain_json, value_text
from domain.events import CancelDelivered, Cancelled, Failed, Released, StepFailed, WaitBegan, WaitEnded
from domain.faults import Fault
from domain.record import STEP, StepRecord
from domain.state import DIFFERS, FAILED_STEP, IN_DOUBT, STRIKES, UNKNOWN_CLASS, Status, idempotency_key
from domain.task import AgentTask
from domain.values import decode
from domain.waits import APPROVAL, CHILD, SIGNAL, TIMER, Wait, child_name

MANY = 3
"""Things that a task waits for at once that are named; of more only how many."""
CALL_LIMIT = 100
"""Characters of a call's arguments that are shown in a message."""


@dataclass(frozen=True)
class StepView:
    """One step of a task, or another thing that takes a position.

    `kind` is `step`, `patch`, `now` or `undo` (registered); `request` (of an approval) or `spawn` (of a child); or that
    of a wait: `timer`, `signal`, `approval`, `child` or `any`.

    `state` is `finished`, `failed`, `decided` (a person has said that it happened, or gave it up), `started` (running,
    or in doubt), `waiting` (a wait that is not over, or a step whose next attempt is due at `due`), `cancelled` (its
    task was called off there) or `to rerun`. `errors` has the error of each attempt that ended in one; times are
    seconds of Unix time.
    """

    path: str
    name: str
    label: str
    attempt: int
    state: str
    kind: str = "step"
    errors: tuple[Fault, ...] = ()
    due: float | None = None


@dataclass(frozen=True)
class ApprovalView:
    """An approval that nobody has answered: `id` is what it is answered by, `at` when it was asked for, Unix seconds.

    `waited_for` tells whether the task waits for it now.
    """

    id: str
    task_id: str
    path: str
    question: str
    details: Any
    at: float
    waited_for: bool


@dataclass(frozen=True)
class TaskView:
    """A task as its log has it at one moment; times are seconds of Unix time.

    `hold` is the kind of hold, `why` its explanation. `waits` says for what it waits, `approvals` are those that nobody
    has answered, `undos` the calls that are owed if it fails or is cancelled, or are still to be run, the first first.
    `children` are the ids of those that have not ended, as far as it has heard; `cancel` is why it was called off.
    `parent` is the id of the task that has spawned it, if one has.
    """

    id: str
    agent: str
    status: Status
    created: float
    updated: float
    version: int
    activation: int
    strikes: int
    worker: str | None
    tags: dict[str, str]
    steps: tuple[StepView, ...]
    hold: str | None
    why: str
    fault: Fault | None
    waits: str = ""
    approvals: tuple[ApprovalView, ...] = ()
    undos: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    cancel: str | None = None
    parent: str | None = None


def describe(task: AgentTask) -> TaskView:
    """Give the view of a task."""
    return TaskView(
        id=task.id,
        agent=task.agent,
        status=task.status,
        created=task.created,
        updated=task.updated,
        version=task.version,
        activation=task.activation,
        strikes=task.held.details.get("strikes", task.strikes) if task.held else task.strikes,
        worker=task.worker,
        tags=dict(task.tags),
        steps=tuple(_step(record) for record in task.steps.values()),
        hold=task.held.reason if task.held else None,
        why=explain(task),
        fault=fault_of(task),
        waits=waits_text(task),
        approvals=open_approvals(task),
        undos=owed_undos(task),
        children=tuple(child for child in task.children if child_name(child) not in task.mail),
        cancel=task.cancel.reason if task.cancel is not None else None,
        parent=task.parent or None,
    )


def pause_id(task_id: str, birth: str, path: str) -> str:
    """Give the id of an approval: no later task under the same id has the same."""
    return f"{task_id}#{path}@{birth[:6]}"


def open_approvals(task: AgentTask) -> tuple[ApprovalView, ...]:
    """List the approvals that nobody has answered."""
    waited = {wait.name for wait in task.waiting.values() if wait.kind == APPROVAL}
    pauses = [task.pauses[path] for path in task.asked_for]
    return tuple(
        ApprovalView(
            *(pause_id(task.id, task.birth, pause.path), task.id, pause.path, pause.label, _details(pause.details)),
            *(pause.at, pause.path in waited),
        )
        for pause in pauses
    )


def _details(stored: Any) -> Any:
    try:
        return decode(stored)
    except ValueError:  # of a class that this process has not
        return plain_json(stored)


def owed_undos(task: AgentTask) -> tuple[str, ...]:
    """List the undos that are owed if the task fails or is cancelled, or are still to be run, the first first."""
    if task.ending is not None or (task.concluded is not None and task.concluded.status == "completed"):
        return ()
    return tuple(call_text(undo.name, undo.arguments) for _, undo in task.owed_undos)


def headline(task: AgentTask) -> str:
    """Give one line for a list, the same on any day: where the task is, or why it is held or has failed."""
    if task.worker is not None and task.cancel is None and task.concluded is None:
        return task.place  # as at almost every append
    if task.held is not None and task.held.reason == STRIKES:
        return cut(strikes_text(task.held.details) or _hold_headline(task))
    if task.held is not None:
        return _hold_headline(task, _dated).splitlines()[0]
    if isinstance(task.ending, Failed):
        return cut(str(Fault.from_data(task.ending.error)))
    if isinstance(task.ending, Cancelled):
        return cut(cancelled_text(task.ending))
    if task.waits:
        return cut(_joined(_next_try(task), waits_text(task), coming_end(task)) or task.place)
    return cut(_joined(task.place, coming_end(task)))


def coming_end(task: AgentTask) -> str:
    """Say that a task has been called off, or what it still does before its ending; empty where there is no word yet.

    The same in its index row, which is made before the records are folded.
    """
    if task.ending is not None:
        return ""
    if task.concluded is not None:
        return f"{task.concluded.status}, it does what it owes"
    return "cancelled, it cleans up" if task.cancel is not None else ""


def called_off(task: AgentTask) -> str:
    """Say who has called a task off that has not ended, and why; empty where nobody has."""
    cancel = task.cancel
    if cancel is None or task.ending is not None:
        return ""
    return f"called off by {cancel.by}" + (f": {cancel.reason}" if cancel.reason else "")


def cancelled_text(ending: Cancelled) -> str:
    """Say who has called a task off, why, and what is not known, or was not done."""
    parts = [f"by {ending.by}" + (f": {ending.reason}" if ending.reason else "")]
    parts += ["its clean-up was cut off, or never begun"] if ending.cut else []
    parts += [f"in doubt: step {', '.join(ending.doubts)}"] if ending.doubts else []
    return "; ".join(parts)


def waits_text(task: AgentTask) -> str:
    """Say what a task waits for; where it goes on without it after a while, such a text asks for the time."""
    texts = list(dict.fromkeys(wait_text(task, wait) for wait in task.waiting.values() if wait.kind != TIMER))
    more = f" and {len(texts) - MANY} more" if len(texts) > MANY else ""
    if not texts:
        return "sleeps and goes on" if task.waiting else ""
    return f"waits for {', '.join(texts[:MANY])}{more}" + _or_else(task)


def _or_else(task: AgentTask) -> str:
    if not task.waits or task.due is None:
        return ""
    return " or is called off" if task.due == task.deadline else " or goes on"


def wait_text(task: AgentTask, wait: Wait) -> str:
    """Say what is waited for."""
    if wait.kind == SIGNAL:
        return f"signal {wait.name}"
    if wait.kind == APPROVAL:
        pause = task.pauses.get(wait.name)
        return f'approval "{pause.label}"' if pause is not None else "an approval"
    if wait.kind == CHILD:
        return f"child {wait.name}"
    return "a time" if wait.kind == TIMER else f"the first of {wait.name}"


def wait_name(event: WaitBegan | WaitEnded | CancelDelivered) -> str:
    """Give the name of a step, or of a wait: what it is for."""
    return f"{event.kind} {event.name}" if event.kind in (SIGNAL, APPROVAL, CHILD) else event.name


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def strikes_text(details: dict[str, Any]) -> str:
    """Say in short which crashes a task is held for, the last one's error with its place; empty where it has none."""
    if "where" not in details:
        return ""
    text, place = str(details["where"]), ""
    if "error" in details:
        error = str(Fault.from_data(details["error"]))
        text, place = cut(error, 120), text.removeprefix(error)
    return f"{counted(details['strikes'], 'crash', 'crashes')} in a row: {text}{place}"


def given_up(task: AgentTask) -> str:
    """Say that the body in doubt for which a task is held was given up, and at what; empty where it was not."""
    answer = str(task.held.details.get("answer", "")) if task.held is not None else ""
    return answer.removeprefix("it ") if answer.startswith("it was ") else ""


def explain(task: AgentTask, options: str = "") -> str:
    """Say why a task is held and what leads out, naming only commands that exist; empty where it is not held.

    `options` are added to each command, such as the store that it needs.
    """
    if task.held is None:
        return ""
    details: dict[str, Any] = task.held.details
    lines, release = [_hold_headline(task)], f"perdure release {quote(task.id)}{options}"
    if task.held.reason == IN_DOUBT:
        key = idempotency_key(task.birth, task.held.path)
        answer = details.get("answer")
        lines += [answer] if answer and not given_up(task) else []
        lines += [f"it may or may not have happened; idempotency key {key}", *_decisions(task, options)]
    elif task.held.reason == FAILED_STEP:
        lines += _decisions(task, options)
    elif task.held.reason == STRIKES and "where" in details:
        lines += [details["where"], f"mend it, then    {release}"]
    elif task.held.reason == STRIKES:
        lines += [
            "each time its process died, or could not write any more",
            f"mend what kills it, or if it was killed from outside just let it go on    {release}",
        ]
    elif task.held.reason == UNKNOWN_CLASS:
        lines += ["it goes on by itself when a worker starts with code that has the class"]
        lines += [f"try again now    {release}"]
    elif task.held.reason == DIFFERS:
        lines += ["nothing ran. It goes on by itself when a worker starts with code that fits its log"]
        lines += _decisions(task, options) if task.question else []
        lines += [f"try again now    {release}"]
    else:
        lines += [f"allow more    {release} --budget +AMOUNT" if details.get("of") else f"mend it, then    {release}"]
    return "\n".join(lines)


def fault_of(task: AgentTask) -> Fault | None:
    """Give the error for which a task has failed or is held, if it was one."""
    if isinstance(task.ending, Failed):
        return Fault.from_data(task.ending.error)
    if task.held is None:
        return None
    record = task.steps.get(task.held.path)
    if task.held.reason == FAILED_STEP and record is not None and isinstance(record.outcome, StepFailed):
        return Fault.from_data(record.outcome.error)
    error = task.held.details.get("error")
    return None if error is None else Fault.from_data(error)


def call_text(agent: str, arguments: Any) -> str:
    """Give the call of an agent as a person would write it; `arguments` are the encoded positional and named ones.

    >>> call_text("buy", [["milk"], {"count": 2}])
    'buy("milk", count=2)'
    """
    args, kwargs = arguments
    texts = [*map(value_text, args), *(f"{name}={value_text(value)}" for name, value in kwargs.items())]
    text = ", ".join(texts)
    return f"{agent}({text if len(text) <= CALL_LIMIT else text[: CALL_LIMIT - 1] + '…'})"


def clock_time(moment: float) -> str:
    """Give the local time of day of a moment in seconds of Unix time, and the date where that is not today."""
    local, today = _local(moment), _local(time.time())
    if local.date() == today.date():
        return local.strftime("%H:%M:%S")
    return _dated(moment) if local.year == today.year else local.strftime("%Y-%m-%d %H:%M:%S")


def cut(text: str, limit: int = 200) -> str:
    """Give the first line of a text, its end cut off where it is long."""
    line, *_ = text.splitlines() or [""]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _dated(moment: float) -> str:
    return _local(moment).strftime("%m-%d %H:%M:%S")


def _local(moment: float) -> datetime:
    return datetime.fromtimestamp(moment)  # noqa: DTZ006  a person reads it on this machine


def _decisions(task: AgentTask, options: str) -> list[str]:
    assert task.held is not None  # noqa: S101
    command = f"perdure resolve {quote(task.id)} {task.held.path}"
    rerun = [] if task.held.reason == DIFFERS else [f"run it again     {command} --rerun --by YOU{options}"]
    return [
        f"happened         {command} --value JSON --by YOU{options}",
        *rerun,
        f"give up          {command} --fail --by YOU{options}",
    ]


def _hold_headline(task: AgentTask, clock: Callable[[float], str] = clock_time) -> str:
    assert task.held is not None  # noqa: S101
    held, details = task.held, task.held.details
    if held.reason == IN_DOUBT:
        record, ended = task.steps[held.path], given_up(task)
        how = f" and {ended}" if ended else ", its end is not in the log"
        return f"in doubt: {_name(record)}, attempt {record.attempt} began {clock(record.started)}{how}"
    if held.reason == FAILED_STEP:
        return f"failed: {_name(task.steps[held.path])}: {details['message']}"
    if held.reason == STRIKES:
        return f"{counted(details['strikes'], 'crash', 'crashes')} in a row, {_last_step(held.path, details)}"
    return str(details.get("message", held.reason))


def _last_step(path: str, details: dict[str, Any]) -> str:
    if not path:
        return "before its first step"
    name = f"step {path} {details['name']}" + (f' "{details["label"]}"' if details.get("label") else "")
    if "where" in details:
        return f"its log ends at {name}" + (", in doubt" if details.get("in_doubt") else "")
    return f"in {name}" if details.get("in_doubt") else f"after {name}"


def _name(record: StepRecord) -> str:
    return f"step {record.path} {record.name}" + (f' "{record.label}"' if record.label else "")


def _next_try(task: AgentTask) -> str:
    """Name the step that a waiting task tries again first."""
    tries = [(record.retry_at, record.path) for record in task.steps.values() if record.retry_at is not None]
    if not tries:
        return ""
    record = task.steps[min(tries)[1]]
    return f"tries step {record.path} {record.name} again"


def state_of(record: StepRecord) -> str:
    """Give the state of a step in a word or two, as `StepView` has it."""
    outcome = record.outcome
    if outcome is None and record.kind != STEP:
        return "waiting"
    if isinstance(outcome, CancelDelivered):
        return "cancelled"
    if outcome is None:
        return "waiting" if record.retry_at is not None else "to rerun" if record.settled is not None else "started"
    if isinstance(outcome, Released):
        return "decided"
    return "failed" if isinstance(outcome, StepFailed) else "finished"


def _step(record: StepRecord) -> StepView:
    name, attempt, state = record.name, record.attempt, state_of(record)
    return StepView(record.path, name, record.label, attempt, state, record.kind, record.errors, record.retry_at)
