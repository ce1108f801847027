"""The commands that decide for a person: `resolve` and `release`. Neither runs a task."""

from __future__ import annotations

from contextlib import closing, suppress
from decimal import Decimal, InvalidOperation
from inspect import formatannotation
from shlex import quote
from typing import Annotated, Any

import typer

from actors.command import DEFAULT_STORE, StoreUrl, TaskId, existing, full_id
from actors.definitions import find_agent, find_step, known_agents
from actors.system import AgentSystem
from actors.target import CommandError, load_agents, parse_json
from actors.task_log import TaskLog
from actors.wording import has_worker, plain
from domain.state import ENDED, SPENT
from domain.task import AgentTask
from domain.values import convert, decode
from stores import Store

By = Annotated[
    str | None, typer.Option("--by", metavar="YOU", help="Who decides, for the record; by default the user's name.")
]


def resolve(
    id: TaskId,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The step's path, as `show` has it.", show_default=False)],
    value: Annotated[
        str | None, typer.Option("--value", metavar="JSON", help="It happened, and this is what it gave.")
    ] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="It did not happen: run it again.")] = False,
    fail: Annotated[bool, typer.Option("--fail", help="Give it up: the agent gets a StepError.")] = False,
    code: Annotated[
        str | None,
        typer.Option(
            "--code", metavar="MODULE_OR_FILE", help="Where the step is: whether the value fits it is checked."
        ),
    ] = None,
    by: By = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Decide what became of the step for which a task is held.

    Exactly one of --value, --rerun and --fail. A worker, or the task's own `perdure run` again, then goes on with it.

    A value has to fit what the step is annotated to return. With --code that is checked here and now, and a value that
    does not fit is refused; else it is seen when the task goes on, and the task is held again.
    """
    if (value is not None) + rerun + fail != 1:
        raise CommandError("say exactly one of --value JSON, --rerun and --fail")
    if code is not None:
        load_agents([code])
    with closing(existing(store)) as opened, AgentSystem(opened, run=False) as system:
        task = system.task(full_id(opened, id))
        if value is not None:
            given = parsed(value)
            if code is not None:
                _check_value(TaskLog(opened).load(task.id), path, given, code)
            task.resolve(path, value=given, by=by)
            what = f"step {path} happened, with {value}"
        else:
            task.resolve(path, rerun=rerun, fail=fail, by=by)
            what = f"step {path} is run again" if rerun else f"step {path} is given up"
        typer.echo(plain(f"{task.id}: {what}. {what_next(opened, task.id)}"))


def release(
    id: TaskId,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="+AMOUNT", help="What it may spend besides, of what it is held for."),
    ] = None,
    by: By = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Let a held task go on, after what held it was mended.

    With --budget one that has spent what it had. A step in doubt is for `perdure resolve`.
    """
    with closing(existing(store)) as opened, AgentSystem(opened, run=False) as system:
        task = system.task(full_id(opened, id))
        grant = None if budget is None else _granted(TaskLog(opened).load(task.id), budget)
        task.release(by=by, grant=grant)
        more = "" if grant is None else f" with {budget} {next(iter(grant))}"
        typer.echo(plain(f"{task.id}: released{more}. {what_next(opened, task.id)}"))


def _granted(task: AgentTask, budget: str) -> dict[str, Decimal]:
    """Read an amount, in terms of what the task is held for. Raises CommandError."""
    held, amount = task.held, Decimal(0)
    of = held.details.get("of", "") if held is not None and held.reason == SPENT else ""
    if not of:
        raise CommandError(f"task {task.id} is not held because a budget is spent: there is nothing to add to")
    with suppress(InvalidOperation):
        amount = Decimal(budget)
    if not (budget.startswith("+") and amount.is_finite() and amount > 0):
        raise CommandError(f"--budget takes what is added, such as +1.00, not {budget!r}")
    return {of: amount}


def _check_value(task: AgentTask, path: str, value: object, code: str) -> None:
    """Refuse a value that is none of what a step returns, by its annotation. Raises CommandError.

    The step is known by its name alone. What an agent does by `run_step` has none here: that is said too.
    """
    record = task.steps.get(path)
    if record is None or path != task.question:
        return  # the decision itself is refused, with what is in question
    if task.agent not in known_agents():
        raise CommandError(f"{code} has no agent {task.agent}, of which task {task.id} is one: nothing was changed")
    try:
        step = find_step(record.name, find_agent(task.agent).file)
    except LookupError as error:
        raise CommandError(
            f"{code}: {error}: nothing was changed; without --code the value is taken as it is"
        ) from None
    try:
        convert(value, step.returns)
    except ValueError as error:
        gives = f"step {path} {record.name} gives {formatannotation(step.returns)}, and this value does not fit"
        raise CommandError(f"task {task.id}: {gives}: {error}; nothing was changed") from None


def parsed(text: str, what: str = "--value") -> Any:
    """Read a value: JSON, in which a tag, as the log has it, stands for what JSON has no word for."""
    try:
        found = parse_json(text)
    except ValueError:
        raise CommandError(f"{what} takes JSON, and {text!r} is none; a text has quotes: '\"…\"'") from None
    try:
        return decode(found)
    except ValueError as error:
        raise CommandError(f"{what} {text}: {error}") from None


def what_next(store: Store, id: str) -> str:
    """Say who goes on with a task. Nothing here runs it."""
    row = store.recorder.select_entry(id)
    if row is None or row.status in ENDED:
        return ""
    if row.status == "held":
        return f"It is still held: perdure show {quote(id)}"
    if has_worker(row, store.workers.live()):
        return "A worker that is running goes on with it."
    again = f"perdure run … --id {quote(id)}"
    return f"It goes on when a worker starts that knows agent {row.agent}, or by the same `{again}` as before."
