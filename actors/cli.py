"""The command line. Only `run` ever runs a task; the others look, or decide for a person.

What is a result goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from shlex import quote
from typing import Annotated, Any, get_args

import typer

from actors.follow import Signals, conclude, run_task
from actors.system import AgentSystem
from actors.target import CommandError, load_agent, parse_json, read_arguments
from actors.task_log import TaskLog
from actors.wording import held_text, plain, traceback_text
from domain.errors import PerdureError, UnknownTaskError, UnreadableTaskError
from domain.events import Failed, TaskEvent
from domain.faults import Fault
from domain.task import AgentTask, Status, fold
from domain.values import Json, decode
from stores import Store, StoreError, open_store

DEFAULT_STORE = "sqlite:///perdure.db"

app = typer.Typer(
    name="perdure",
    epilog="Example:  perdure run report.py:report notes.txt --id report-1",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

StoreUrl = Annotated[
    str,
    typer.Option("--store", metavar="URL", envvar="PERDURE_STORE", help="Where the tasks are, as sqlite:///tasks.db."),
]
TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.", show_default=False)]
By = Annotated[
    str | None, typer.Option("--by", metavar="YOU", help="Who decides, for the record; by default the user's name.")
]


def main() -> None:
    """Run the command line; errors of ours are one line, and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="perdure")
    except OSError as error:
        with suppress(OSError):
            complain(error)
        os._exit(os.EX_IOERR)  # not by way of a flush that fails again
    except (CommandError, PerdureError, StoreError) as error:
        complain(error)
        sys.exit(2)


def complain(error: Exception) -> None:
    """Tell an error on standard error; a traceback in it keeps its lines."""
    first, *rest = str(error).splitlines() or [type(error).__name__]
    typer.echo("\n".join([f"perdure: {plain(first)}", *[plain(line) for line in rest]]), err=True)


# ------------------------------------------------------------------ run


@app.command(epilog="Example:  perdure run report.py:report notes.txt --id report-1")
def run(
    agent: Annotated[
        str, typer.Argument(metavar="MODULE_OR_FILE:AGENT", help="The agent's place.", show_default=False)
    ],
    id: Annotated[str, typer.Option("--id", metavar="ID", help="The task's id, the same each time.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARG", help="JSON, else text; as the agent's annotations say.", show_default=False),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Run one task until it has ended, and print its result as JSON.

    Killed and started again with the same words, it goes on where it was. Run once more, it prints the recorded result
    and runs nothing. Where another process runs the task, this one follows. Arguments that begin with a dash come
    last, after `--`.

    Exit code: 0 completed, 1 failed, 2 not run, 3 held, 74 not told for want of room, 130 or 143 stopped by a signal.
    """
    signals = Signals()
    signals.install()
    with _result_only() as write:
        found = load_agent(agent)
        values = read_arguments(found, arguments or [])
        _log_to_stderr()
        with closing(open_store(store)) as opened:
            try:
                task = run_task(found, values, id, opened, signals)
            except UnreadableTaskError as error:
                complain(error)
                typer.echo(f"mended, it goes on after: perdure release {plain(quote(id))}", err=True)
                raise typer.Exit(3) from None
            code = conclude(task, signals, write, _options(store))
    raise typer.Exit(code)


@contextmanager
def _result_only() -> Iterator[Any]:
    """Keep standard output for the result: what user code and its children print goes to standard error instead.

    Gives the function that writes the result.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)

    def write(result: Json) -> None:
        text = json.dumps(result, ensure_ascii=False)
        with open(saved, "wb", closefd=False) as out:
            out.write(f"{text}\n".encode())

    try:
        yield write
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def _log_to_stderr() -> None:
    """Show the library's log where the user has set up none; not what `run` tells in its own words, from the events."""
    import logging

    told = ("task %s is held", "task %s: agent %s crashed", "%s. The task is held")
    logger = logging.getLogger("perdure")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("perdure: %(message)s"))
        handler.addFilter(lambda record: not record.msg.startswith(told))
        logger.addHandler(handler)


# ------------------------------------------------------------------ look


@app.command("list", epilog="Example:  perdure list --status held")
def list_tasks(
    store: StoreUrl = DEFAULT_STORE,
    status: Annotated[
        str | None, typer.Option(metavar="S", help=f"Only tasks that are S: {', '.join(get_args(Status))}.")
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="A", help="Only tasks of agent A.")] = None,
) -> None:
    """List the tasks, the oldest first: where each is, or why not."""
    from actors.render import print_tasks

    if status not in (None, *get_args(Status)):
        raise CommandError(f"there is no status {status!r}: it is one of {', '.join(get_args(Status))}")
    with closing(_existing(store)) as opened:
        rows = opened.recorder.select_entries(status=None if status is None else [status], agent=agent)
        if rows:
            print_tasks(rows, opened.workers.live())
        else:
            typer.echo(f"perdure: {opened.url} · no such tasks", err=True)


@app.command(epilog="Example:  perdure show report-1")
def show(id: TaskId, store: StoreUrl = DEFAULT_STORE) -> None:
    """Show a task's log as a table, and why it is held or failed.

    Of a log that cannot be read it shows what stands before the damage. Exit code 1 then.
    """
    from actors.render import print_log, status_line

    with closing(_existing(store)) as opened:
        task, events, error = _read_log(opened, id)
        workers = opened.workers.live()
    if task is not None:
        typer.echo(status_line(task, workers) + "\n")
        print_log(events)
    if error is not None:
        sys.stdout.flush()
        complain(error)
        typer.echo(f"mended, it goes on after: perdure release {plain(quote(id))}", err=True)
        raise typer.Exit(1)
    if task is not None and task.held is not None:
        typer.echo("\n" + held_text(task, _options(store)))
    elif task is not None and isinstance(task.ending, Failed):
        fault = Fault.from_data(task.ending.error)
        typer.echo(f"\n{plain(task.id)}  failed  {plain(str(fault))}\n{traceback_text(fault)}")


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


def _options(store: str) -> str:
    """Give the words that a command needs to find the store, where it was named by option."""
    return "" if store in (DEFAULT_STORE, os.environ.get("PERDURE_STORE")) else f" --store {quote(store)}"


def _existing(url: str) -> Store:
    """Open a store that is there. Looking at tasks never makes a new one."""
    if url == "memory:":
        raise CommandError("a memory: store is private to the process that made it: there is nothing to see in it")
    path = url.partition("?")[0].removeprefix("sqlite:///")
    if url.startswith("sqlite:///") and path and not os.path.exists(path):
        raise CommandError(f"there is no store {os.path.abspath(path)}: --store or PERDURE_STORE says where it is")
    return open_store(url)


# ------------------------------------------------------------------ decide


@app.command(epilog="Example:  perdure resolve invoice-7 3 --value '\"txn_1\"' --by ann")
def resolve(
    id: TaskId,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The step's path, as `show` has it.", show_default=False)],
    value: Annotated[
        str | None, typer.Option("--value", metavar="JSON", help="It happened, and this is what it gave.")
    ] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="It did not happen: run it again.")] = False,
    fail: Annotated[bool, typer.Option("--fail", help="Give it up: the agent gets a StepError.")] = False,
    by: By = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Decide what became of the step for which a task is held.

    Exactly one of --value, --rerun and --fail. A worker, or the task's own `perdure run` again, then goes on with it.
    """
    if (value is not None) + rerun + fail != 1:
        raise CommandError("say exactly one of --value JSON, --rerun and --fail")
    with closing(_existing(store)) as opened, AgentSystem(opened, run=False) as system:
        task = system.task(id)
        if value is not None:
            given = _json(value)
            task.resolve(path, value=given, by=by)
            what = f"step {path} happened, with {value}"
        else:
            task.resolve(path, rerun=rerun, fail=fail, by=by)
            what = f"step {path} is run again" if rerun else f"step {path} is given up"
        typer.echo(plain(f"{id}: {what}. {_what_next(opened, id)}"))


@app.command(epilog="Example:  perdure release report-1 --by ann")
def release(id: TaskId, by: By = None, store: StoreUrl = DEFAULT_STORE) -> None:
    """Let a held task go on, after what held it was mended.

    A step in doubt is for `perdure resolve`.
    """
    with closing(_existing(store)) as opened, AgentSystem(opened, run=False) as system:
        system.task(id).release(by=by)
        typer.echo(plain(f"{id}: released. {_what_next(opened, id)}"))


def _json(text: str) -> Any:
    """Read a value as `run` prints one: JSON, in which a tag stands for what JSON has no word for."""
    try:
        parsed = parse_json(text)
    except ValueError:
        raise CommandError(f"--value takes JSON, and {text!r} is none; a text has quotes: --value '\"…\"'") from None
    try:
        return decode(parsed)
    except ValueError as error:
        raise CommandError(f"--value {text}: {error}") from None


def _what_next(store: Store, id: str) -> str:
    """Say who goes on with a task. Nothing here runs it."""
    from actors.render import has_worker

    row = store.recorder.select_entry(id)
    if row is None:
        return ""
    if row.status == "held":
        return f"It is still held: perdure show {quote(id)}"
    if has_worker(row, store.workers.live()):
        return "A worker that is running goes on with it."
    again = f"perdure run … --id {quote(id)}"
    return f"It goes on when a worker starts that knows agent {row.agent}, or by the same `{again}` as before."


# ------------------------------------------------------------------ learn


@app.command(epilog="Example:  perdure demo")
def demo() -> None:
    """Watch what a real kill after a real e-mail does, and does not.

    Exit code: 0 when every count is what it claims, else 1.
    """
    if find_spec("aiosmtpd") is None:
        raise CommandError('the demo needs a mail server: pip install "perdure[demo]"')
    from actors.demo import demo as play

    raise typer.Exit(play())


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"perdure {version('perdure')}")
        raise typer.Exit


@app.callback()
def perdure(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Agent tasks that survive their own death: an event-sourced actor framework."""
