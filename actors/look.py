"""The commands that look: `list` and `show`. Neither runs nor changes anything."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import closing
from typing import Annotated, NoReturn, get_args

import typer

from actors.command import DEFAULT_STORE, AsJson, StoreUrl, TaskId, complain_of_damage, existing, full_id, options
from actors.documents import row_document, task_document, text_of
from actors.llm_show import conversation_lines
from actors.outline import outline_of_store
from actors.saying import head_of
from actors.target import CommandError
from actors.task_log import TaskLog
from actors.view import called_off, cancelled_text, owed_undos, pause_id
from actors.wording import (
    columns,
    fitted,
    held_text,
    how_to_answer,
    how_to_signal,
    plain,
    status_line,
    traceback_text,
    where,
)
from domain.errors import UnknownTaskError, UnreadableTaskError
from domain.events import Cancelled, Failed, TaskEvent
from domain.faults import Fault
from domain.fold import fold
from domain.state import Status
from domain.task import AgentTask
from domain.waits import SIGNAL
from stores import Store


def list_tasks(
    store: StoreUrl = DEFAULT_STORE,
    status: Annotated[
        str | None, typer.Option(metavar="S", help=f"Only tasks that are S: {', '.join(get_args(Status))}.")
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="A", help="Only tasks of agent A.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks, the oldest first: where each is, or why not."""
    if status not in (None, *get_args(Status)):
        raise CommandError(f"there is no status {status!r}: it is one of {', '.join(get_args(Status))}")
    with closing(existing(store, looks=True)) as opened:
        rows = opened.recorder.select_entries(status=get_args(Status) if status is None else [status], agent=agent)
        workers = opened.workers.live()
    if as_json:
        typer.echo(text_of([row_document(row, workers, where(row, workers)) for row in rows]))
    elif rows:
        from actors.render import print_tasks  # noqa: PLC0415  rich is for who looks

        print_tasks(rows, workers)
    else:
        typer.echo(f"perdure: {opened.url} · no such tasks", err=True)


def show(
    id: TaskId,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
    follow: Annotated[bool, typer.Option("--follow", help="Tell what happens, as it comes, until the end.")] = False,
    after: Annotated[
        int | None, typer.Option("--after", metavar="CURSOR", help="With --follow: go on behind it.")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Show the log also where it is a conversation.")] = False,
) -> None:
    """Show a task's log or conversation, and what it waits for.

    The log is a table; under it stands why the task is held or failed, or who can answer it and how. Of a conversation
    with a model it shows who said what, which tools were called, what it took, and what waits for whom; --log has its
    log.

    Of a log that cannot be read it shows what stands before the damage. Exit code 1 then. With --json it prints all
    that is known of the task; as a file it is a history, which `actors.testing.replay_history` replays.

    With --follow it tells from the beginning, line by line, what happens and what steps emit, and leaves when the task
    has ended. With --json besides, each line is a document with a cursor.
    """
    if after is not None and (not follow or after < 0):
        raise CommandError("--after takes a cursor, a whole number from 0, and goes with --follow")
    with closing(existing(store, looks=True)) as opened:
        task_id = full_id(opened, id)
        if follow:
            _follow(opened, task_id, after or 0, as_json=as_json, options=options(store))
            return
        task, events, error = _read_log(opened, task_id)
        workers = opened.workers.live()
    if task is not None and as_json:
        typer.echo(text_of(task_document(task, events, workers, error)))
    elif task is not None:
        typer.echo(status_line(task, workers) + "\n")
        talk = [] if log else conversation_lines(task, time.time())
        for word, text in talk:
            typer.echo(head_of(word) + text)
        if not talk:
            from actors.render import print_log  # noqa: PLC0415  as above

            print_log(events)
    if error is not None:
        _refuse_damaged(error)
    if task is not None and not as_json:
        _tell_ending(task, store)


def _follow(store: Store, id: str, after: int, *, as_json: bool, options: str) -> None:
    from actors.live import follow_task  # noqa: PLC0415  for who looks on

    try:
        follow_task(store, id, after, as_json=as_json, options=options)
    except UnreadableTaskError as error:
        _refuse_damaged(error)
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None


def _refuse_damaged(error: UnreadableTaskError) -> NoReturn:
    sys.stdout.flush()
    complain_of_damage(error)
    raise typer.Exit(1)


def tree(store: StoreUrl = DEFAULT_STORE) -> None:
    """Draw who works on the store, and on what.

    Living workers with the tasks that they run, groups with their children, and how many tasks are open besides.
    """
    with closing(existing(store, looks=True)) as opened:
        for line in outline_of_store(TaskLog(opened), where).lines():
            typer.echo(fitted(plain(line), columns()))


def _tell_ending(task: AgentTask, store: str) -> None:
    _tell_owed(task)
    _tell_asked(task, options(store))
    if task.held is not None:
        typer.echo("\n" + held_text(task, options(store)))
    elif isinstance(task.ending, Cancelled):
        typer.echo(f"\n{plain(task.id)}  cancelled  {plain(cancelled_text(task.ending))}")
    elif isinstance(task.ending, Failed):
        fault = Fault.from_data(task.ending.error)
        typer.echo(f"\n{plain(task.id)}  failed  {plain(str(fault))}\n{traceback_text(fault)}")


def _tell_owed(task: AgentTask) -> None:
    """Say who has called off a task that has not ended, and which undos it owes, the first first."""
    lines = [f"{task.id}  {called}"] if (called := called_off(task)) else []
    if owed := owed_undos(task):
        decided = task.concluded is not None or task.cancel is not None
        what = "this undo" if len(owed) == 1 else f"{len(owed)} undos, in this order"
        lines.append(f"{task.id}  owes {what}{'' if decided else ', if it fails or is cancelled'}:")
        lines += [f"  {undo}" for undo in owed]
    if lines:
        typer.echo("\n" + "\n".join(plain(line) for line in lines))


def _tell_asked(task: AgentTask, options: str) -> None:
    """Say what others can bring to a task that has not ended, with the command."""
    if task.ending is not None:
        return
    asked = [task.pauses[path] for path in task.asked_for]
    lines = [(f'asks "{one.label}"', how_to_answer(pause_id(task.id, task.birth, one.path), options)) for one in asked]
    sources = [source for wait in task.waiting.values() for source in wait.sources]
    names = dict.fromkeys(source.name for source in sources if source.kind == SIGNAL)
    lines += [(f"waits for signal {name}", how_to_signal(task.id, name, options)) for name in names]
    if lines:
        typer.echo("\n" + "\n".join(f"{plain(f'{task.id}  {what}')}\n  {plain(how)}" for what, how in lines))


def _read_log(store: Store, id: str) -> tuple[AgentTask | None, list[TaskEvent], UnreadableTaskError | None]:
    """Read a task's log as far as it can be read. Raises UnknownTaskError where there is none."""
    task, events = None, list[TaskEvent]()
    try:
        for event in TaskLog(store).events.get(id):
            task = fold(task, [event])
            events.append(event)
    except UnreadableTaskError as error:
        return task, events, error
    if task is None:
        raise UnknownTaskError(f"there is no task {id!r} in {store.url}", task_id=id)
    return task, events, None
