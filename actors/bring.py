"""The commands that bring something to a task: signals, answers, a cancellation. None of them runs a task."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from actors.asked import task_of, tasks_that_ask
from actors.command import DEFAULT_STORE, SHOWN, AsJson, StoreUrl, TaskId, existing, full_id
from actors.decide import By, what_next
from actors.decide import parsed as parsed_json
from actors.documents import approval_document, text_of
from actors.showing import value_text
from actors.system import AgentSystem
from actors.target import CommandError
from actors.task_log import TaskLog
from actors.view import open_approvals, pause_id
from actors.wording import ago, plain, shortened
from domain.errors import AlreadyDecidedError, PerdureError, TaskEndedError
from stores import Store
from stores.shown_url import shown_url

PauseId = Annotated[
    str,
    typer.Argument(
        metavar="PAUSE", help="The approval's id, as `approvals` has it, or its beginning.", show_default=False
    ),
]
Note = Annotated[str, typer.Option("--note", metavar="TEXT", help="A word for the agent, kept with the decision.")]
Value = Annotated[str | None, typer.Option("--value", metavar="JSON", help="A value for the agent.")]

DETAILS = 300
"""Characters of an approval's details that are shown."""


def signal(
    id: TaskId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.", show_default=False)],
    value: Annotated[str, typer.Argument(metavar="JSON", help="Its value; by default null.")] = "null",
    signal_id: Annotated[
        str | None, typer.Option("--signal-id", metavar="KEY", help="By which a repeat is known: it counts once.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Bring a signal to a task, with a value.

    `receive(NAME)` in its agent gets it; it is kept until the task asks for it. Exit code 2 for a task that has ended.
    """
    with closing(existing(store)) as opened, AgentSystem(opened, run=False) as system:
        task = system.task(full_id(opened, id))
        with _said():
            task.signal(name, parsed_json(value, "the value"), signal_id=signal_id)
        typer.echo(plain(f"{task.id}: signal {name} accepted. {what_next(opened, task.id)}"))


def cancel(
    id: TaskId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = "",
    by: By = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Call a task off. Its agent cleans up, and its undos run; one that is held or has not begun ends at once.

    Exit code: 0 also where it was called off before, 1 where it had ended otherwise.
    """
    with closing(existing(store)) as opened, AgentSystem(opened, run=False) as system:
        with _said():
            answer = system.task(full_id(opened, id)).cancel(reason, by=by)
        goes_on = answer.status in ("queued", "running", "waiting")
        typer.echo(plain(f"{answer}. {what_next(opened, answer.task_id)}" if goes_on else str(answer)))
    if not answer.accepted and (answer.ends or answer.status) in ("completed", "failed"):
        raise typer.Exit(1)


def approvals(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List the approvals that nobody has answered."""
    with closing(existing(store, looks=True)) as opened:
        tasks = list(tasks_that_ask(TaskLog(opened)))
    if as_json:
        typer.echo(text_of([approval_document(task, one) for task in tasks for one in open_approvals(task)]))
        return
    now = time.time()
    for task in tasks:
        for one in open_approvals(task):
            stored = task.pauses[one.path].details
            typer.echo(f'{plain(one.id)}  "{plain(one.question)}"  asked {ago(one.at, now)} ago')
            if stored is not None:
                typer.echo(f"  {shortened(plain(value_text(stored)), DETAILS)}")
    if not tasks:
        typer.echo(f"perdure: {plain(shown_url(store))} · nothing waits for an approval", err=True)
    elif sys.stdout.isatty():
        typer.echo("\nanswer one by  perdure approve PAUSE --by YOU  or  perdure reject PAUSE --note WHY --by YOU")


def approve(
    pause: PauseId, value: Value = None, note: Note = "", by: By = None, store: StoreUrl = DEFAULT_STORE
) -> None:
    """Say yes to an approval. The first answer counts.

    Exit code 1 where it was decided otherwise before, or its task has ended.
    """
    _answer(pause, store, approved=True, value=value, note=note, by=by)


def reject(
    pause: PauseId, value: Value = None, note: Note = "", by: By = None, store: StoreUrl = DEFAULT_STORE
) -> None:
    """Say no to an approval. The first answer counts.

    Exit code 1 where it was decided otherwise before, or its task has ended.
    """
    _answer(pause, store, approved=False, value=value, note=note, by=by)


@contextmanager
def _said() -> Iterator[None]:
    """Tell what is wrong with what somebody has said in a line."""
    try:
        yield
    except PerdureError:
        raise
    except ValueError as error:
        raise CommandError(str(error)) from None


def _answer(pause: str, store: str, *, approved: bool, value: str | None, note: str, by: str | None) -> None:
    given = None if value is None else parsed_json(value, "--value")
    with closing(existing(store)) as opened, AgentSystem(opened, run=False) as system:
        full = _full_pause(opened, pause)
        task = system.task(task_of(TaskLog(opened), full))
        try:
            with _said():
                stands = task.answer(full, approved=approved, value=given, note=note, by=by)
        except (AlreadyDecidedError, TaskEndedError) as error:
            typer.echo(f"perdure: {plain(str(error))}", err=True)
            raise typer.Exit(1) from None
        word = "approved" if stands.approved else "rejected"
        typer.echo(plain(f"{full}: {word} by {stands.by}. {what_next(opened, task.id)}".rstrip()))


def _full_pause(store: Store, typed: str) -> str:
    """Give the approval's id that was typed, or the only one that begins so; of open ones first, then of its task's."""
    if "@" in typed:
        return typed
    log = TaskLog(store)
    found = [one.id for task in tasks_that_ask(log) for one in open_approvals(task) if one.id.startswith(typed)]
    if not found and store.recorder.select_entry(named := typed.partition("#")[0]) is not None:
        task = log.load(named)
        every = [pause_id(task.id, task.birth, path) for path in task.pauses]
        found = [one for one in every if one.startswith(typed)]
    if len(found) > 1:
        more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
        raise CommandError(f"{len(found):,} approvals begin with {typed!r}: {', '.join(found[:SHOWN])}{more}")
    return found[0] if found else typed
