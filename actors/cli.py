"""The command line. Only `run` and `worker` ever run a task; the others look, or decide for a person.

What is a result goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from actors.bring import approvals, approve, cancel, reject, signal
from actors.command import DEFAULT_STORE, StoreUrl, complain, complain_of_damage, log_to_stderr, options, result_only
from actors.decide import release, resolve
from actors.follow import conclude, run_task
from actors.hygiene import delete, reindex, vacuum, verify_store
from actors.leaving import Signals, leave
from actors.look import list_tasks, show, tree
from actors.pool import Pool
from actors.rehearse import check_tasks, replay_task
from actors.serve import serve
from actors.showing import plain_json
from actors.system import GRACE, MAX_ACTIVE
from actors.target import CommandError, load_agent, load_agents, read_arguments
from domain.errors import PerdureError, UnreadableTaskError
from domain.retry import MOST_SECONDS
from stores import StoreError, open_store

TOLD = ("task %s is held", "task %s: agent %s crashed", "%s. The task is held")
"""Beginnings of log messages that `run` leaves out: it tells the same in its own words, from the events."""

app = typer.Typer(
    name="perdure",
    epilog="Example:  perdure run report.py:report notes.txt --id report-1",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


# ------------------------------------------------------------------ run


class _Run(TyperCommand):
    """Takes a word such as `-5` for an option, as any command does, but says how it is told that it is none."""

    def parse_args(self, *args: Any) -> list[str]:
        try:
            return super().parse_args(*args)
        except Exception as error:
            if re.match(r"-[.\d]", str(getattr(error, "option_name", ""))) and hasattr(error, "message"):
                error.message = "a negative number is taken for an option, unless it comes last, after `--`: -- -5"
            raise


@app.command(cls=_Run, epilog="Example:  perdure run report.py:report notes.txt --id report-1")
def run(
    agent: Annotated[
        str, typer.Argument(metavar="MODULE_OR_FILE:AGENT", help="The agent's place.", show_default=False)
    ],
    id: Annotated[str, typer.Option("--id", metavar="ID", help="The task's id, the same each time.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARG",
            help='A text or JSON, as the agent\'s annotations say; a list: \'["a", "b"]\'.',
            show_default=False,
        ),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Run one task to its end, and print its result as plain JSON.

    Killed and started again with the same words, it goes on where it was. Run once more, it prints the recorded result
    and runs nothing. Where another process runs the task, this one follows. Arguments that begin with a dash come
    last, after `--`.

    In the result a tuple or set is a list, an object has its fields, an enum is its member's name, bytes are base64,
    times are ISO 8601.

    Exit code: 0 completed, 1 failed or cancelled, 2 not run, 3 held, 74 not told for want of room, 130 or 143 stopped
    by a signal.
    """
    signals = Signals()
    signals.install()
    with result_only() as write:
        found = load_agent(agent)
        values = read_arguments(found, arguments or [])
        log_to_stderr(*TOLD)
        with closing(open_store(store)) as opened:
            try:
                task = run_task(found, values, id, opened, signals, options(store))
            except UnreadableTaskError as error:
                complain_of_damage(error)
                raise typer.Exit(3) from None
            code = conclude(
                task, signals, lambda value: write(json.dumps(plain_json(value), ensure_ascii=False)), options(store)
            )
    if signals.received is not None:
        leave(code)
    raise typer.Exit(code)


# ------------------------------------------------------------------ work


@app.command(epilog="Example:  perdure worker report.py --processes 2")
def worker(
    modules: Annotated[
        list[str],
        typer.Argument(metavar="MODULE_OR_FILE", help="Where the agents are: all of them run.", show_default=False),
    ],
    processes: Annotated[int, typer.Option(metavar="N", help="Worker processes, started again when they die.")] = 1,
    max_active: Annotated[int, typer.Option(metavar="M", help="Tasks that a process runs at once.")] = MAX_ACTIVE,
    grace: Annotated[float, typer.Option(metavar="S", help="Seconds that running steps have to end.")] = GRACE,
    store: StoreUrl = DEFAULT_STORE,
    lifeline: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run all open tasks, and those that come, until a signal.

    At SIGTERM or Ctrl-C no further step starts; those that run have the grace to end, and are stored. What has not
    ended then is in doubt, and no strike. A second signal leaves at once. Any number of workers may share a store.

    Exit code: 143 or 130 stopped by a signal, 2 not run, or the store was brought up to date by a newer perdure.
    """
    for name, number in (("--processes", processes), ("--max-active", max_active)):
        if number < 1:
            raise CommandError(f"{name} is a whole number from 1, not {number}")
    if not 0 <= grace <= MOST_SECONDS:
        raise CommandError(f"--grace is a number of seconds from 0 to {MOST_SECONDS:g}, not {grace:g}")
    signals = Signals(patient=lifeline is not None)
    signals.install()
    if processes > 1:
        os.environ["PERDURE_STORE"] = store  # a list of processes shows their words to everybody
        words = [f"--max-active={max_active}", f"--grace={grace}", "--", *modules]
        leave(Pool(processes, words, grace, signals).run())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    load_agents(modules)
    log_to_stderr("closing: ")
    leave(serve(store, signals, max_active=max_active, grace=grace, lifeline=lifeline))


# ------------------------------------------------------------------ look, decide, rehearse

app.command("list", epilog="Example:  perdure list --status held")(list_tasks)
app.command(epilog="Example:  perdure show report-1")(show)
app.command(epilog="Example:  perdure tree")(tree)
app.command(epilog="Example:  perdure resolve invoice-7 3 --value '\"txn_1\"' --by ann")(resolve)
app.command(epilog="Example:  perdure release report-1 --by ann")(release)
app.command(epilog="Example:  perdure signal order-7 paid '{\"amount\": 20}'")(signal)
app.command(epilog="Example:  perdure cancel report-1 --reason 'not needed any more' --by ann")(cancel)
app.command(epilog="Example:  perdure approvals")(approvals)
app.command(epilog="Example:  perdure approve invoice-7#3 --by ann")(approve)
app.command(epilog="Example:  perdure reject invoice-7#3 --note 'too much' --by ann")(reject)
app.command("check", epilog="Example:  perdure check report.py billing.agents")(check_tasks)
app.command("replay", epilog="Example:  perdure replay report-1 report.py:report")(replay_task)


# ------------------------------------------------------------------ keep

app.command(epilog="Example:  perdure delete --older-than 30d --status completed")(delete)
app.command(epilog="Example:  perdure vacuum")(vacuum)
app.command("verify", epilog="Example:  perdure verify")(verify_store)
app.command(epilog="Example:  perdure reindex")(reindex)


# ------------------------------------------------------------------ learn


@app.command(epilog="Example:  perdure demo --interactive")
def demo(
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Lead one agent by hand: next step, kill, restart.")
    ] = False,
) -> None:
    """Watch what a real kill after a real e-mail does, and does not.

    With --interactive it waits for you: the process stands still around each step and each record, and you say whether
    it goes on, is killed there, or is restarted, and see what its log and the mailbox have. It reads single keys on a
    terminal, and lines anywhere else.

    Exit code: 0 when every count is what it claims, else 1; 0 when you quit; 130 or 143 stopped by a signal.
    """
    if find_spec("aiosmtpd") is None:
        raise CommandError('the demo needs a mail server: pip install "perdure[demo]"')
    if interactive:
        from actors.demo_by_hand import demo_by_hand as play
    else:
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
