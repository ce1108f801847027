"""The commands that hold today's code against logs: `check` all open tasks, `replay` one. Neither runs a step."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import closing
from typing import Annotated

import typer

from actors.check import FITS, HELD, LIMIT, NOT_HERE, PERSON, UNFIT, WORDS, Verdict, check
from actors.command import (
    DEFAULT_STORE,
    SHOWN,
    AsJson,
    StoreUrl,
    TaskId,
    existing,
    full_id,
    log_to_stderr,
    result_only,
)
from actors.definitions import AnyAgent, find_agent, known_agents
from actors.documents import check_document, text_of
from actors.replay import CRASHES, HANGS, Misfit, OneThread, Replay, Stop, replay, under_debugger
from actors.showing import counted
from actors.target import CommandError, load_agent, load_agents
from actors.task_log import TaskLog
from actors.view import clock_time
from actors.wording import (
    brief,
    columns,
    fitted,
    local,
    named,
    outcome_of,
    plain,
    shortened,
    shown,
    traceback_text,
)
from domain.events import Completed, StepSucceeded
from domain.record import NOW, PATCH, STEP, StepRecord
from domain.state import DIFFERS, IN_DOUBT
from domain.task import AgentTask

# ------------------------------------------------------------------ check


def check_tasks(
    modules: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE_OR_FILE", help="Where the agents are: all that are deployed.", show_default=False
        ),
    ],
    store: StoreUrl = DEFAULT_STORE,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds that the agent's own code may take, for each task.")
    ] = LIMIT,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Others use the store too: tasks of agents that are not here do not count."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replay the open tasks with today's code: which do not fit?

    Lists what would be held, and why, for the moment before a deploy. No step runs and nothing is written; an agent's
    code between its steps runs, as at each replay. Workers may run meanwhile. What is held for a person is counted, not
    replayed.

    A task with a step in doubt that a person decides is counted apart; it fits.

    Exit code: 0 when all fit; 1 when a task would be held, would crash or would hang; 2 not checked; 3 when all that
    were looked at fit, but some were not: their agents are in none of these modules (renamed without an alias, or
    another program's, for which there is --partial), and no worker of this code would run them.
    """
    if not timeout > 0:
        raise CommandError(f"--timeout is a number of seconds above 0, not {timeout:g}")
    with result_only() as write:
        load_agents(modules)
        log_to_stderr()
        with closing(existing(store, looks=True)) as opened:
            verdicts = list(check(opened, _found, timeout))
            url = opened.url
        words = Counter(verdict.word for verdict in verdicts)
        counts = {word.replace(" ", "_"): words[word] for word in WORDS}
        write(text_of(check_document(url, verdicts, counts)) if as_json else _report(verdicts, words, modules))
        code = 1 if any(words[word] for word in UNFIT) else 3 if words[NOT_HERE] and not partial else 0
        if words[HANGS]:
            sys.stderr.flush()
            os._exit(code)  # code that hangs would keep this process too
    raise typer.Exit(code)


def _found(name: str) -> AnyAgent | None:
    return find_agent(name) if name in known_agents() else None


def _report(verdicts: list[Verdict], words: Counter[str], modules: list[str]) -> str:
    lines = [line for verdict in verdicts for line in _told(verdict)]
    strangers: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.word == NOT_HERE:
            strangers.setdefault(verdict.row.agent, []).append(verdict.row.id)
    for agent, ids in strangers.items():
        more = f" and {len(ids) - SHOWN:,} more" if len(ids) > SHOWN else ""
        lines.append(plain(f"not here  agent {agent}: {_tasks(len(ids))} ({_listed(ids[:SHOWN])}{more})"))
    if not verdicts:
        return "no task is open"
    parts = [f"{_tasks(len(verdicts))}: {counted(words[FITS], 'fits', 'fit')}", f"{words[HELD]:,} would be held"]
    parts += [f"{words[CRASHES]:,} would crash"] if words[CRASHES] else []
    parts += [f"{words[HANGS]:,} would hang"] if words[HANGS] else []
    parts += [f"{words[IN_DOUBT]:,} in doubt"] if words[IN_DOUBT] else []
    parts += [f"{words[PERSON]:,} held for a person"] if words[PERSON] else []
    if words[NOT_HERE]:
        parts.append(f"{words[NOT_HERE]:,} not looked at, as {_listed(modules)} has no such agent")
    return "\n".join([*lines, *([""] if lines else []), ", ".join(parts)])


def _told(verdict: Verdict) -> list[str]:
    """Say why a task does not fit, or what is worth knowing of it."""
    row, misfit = verdict.row, verdict.misfit
    head = plain(f"{row.id}  agent {row.agent}  {row.status}")
    notes = [plain(f"note      {row.id}: {note}") for note in verdict.notes]
    return notes if misfit is None else [head, *_why(misfit), *notes]


def _why(misfit: Misfit) -> list[str]:
    """Say in indented lines why code does not fit a log."""
    if misfit.reason == DIFFERS:
        return [
            f"  would be held: code differs at position {plain(misfit.path)}",
            f"    the log has        {plain(misfit.log)}",
            f"    the code asks for  {plain(misfit.code)}",
        ]
    if misfit.reason == CRASHES and misfit.fault is not None:
        return [
            f"  would crash: {plain(str(misfit.fault))}",
            *traceback_text(misfit.fault).splitlines(),
            "    a worker would start it again, crash after crash, and hold it at the strike limit",
        ]
    if misfit.reason == HANGS:
        return [
            f"  would hang: {plain(misfit.message)}",
            "    a worker would wait for it without end, and the task stay running; --timeout S gives slow code longer",
        ]
    return [f"  would be held: {plain(misfit.reason)}", f"    {plain(misfit.message)}"]


def _tasks(count: int) -> str:
    return counted(count, "task")


def _listed(words: list[str]) -> str:
    return ", ".join(words)


# ------------------------------------------------------------------ replay


def replay_task(
    id: TaskId,
    agent: Annotated[
        str, typer.Argument(metavar="MODULE_OR_FILE:AGENT", help="The agent's place.", show_default=False)
    ],
    store: StoreUrl = DEFAULT_STORE,
    debugger: Annotated[bool, typer.Option("--debugger", help="Stop at the agent's first line, in pdb.")] = False,
) -> None:
    """Replay one task's log with today's code, step by step.

    It says where that stops, and why. No step runs and nothing is written. The agent's code runs on this program's
    main thread, branch after branch, so that a breakpoint() in it works.

    Exit code: 0 when the code fits the log, 1 when the task would be held or would crash, 2 not replayed.
    """
    if debugger and not sys.stdin.isatty():
        raise CommandError("--debugger needs a terminal: standard input is none")
    found = load_agent(agent)
    log_to_stderr()
    with closing(existing(store, looks=True)) as opened:
        log = TaskLog(opened)
        task = log.load(full_id(opened, id))
        if task.agent not in found.names:
            raise CommandError(f"task {task.id} is one of agent {task.agent}, and {agent} is agent {found.name}")
        code = under_debugger(found) if debugger else None
        runs = task.worker is not None and opened.workers.is_alive(task.worker)
        came = replay(log, task, found, runtime=OneThread(), tell=_tell, code=code)
    typer.echo("\n".join(_conclusion(task, came, runs=runs)))
    raise typer.Exit(1 if came.misfit is not None else 0)


def _tell(record: StepRecord) -> None:
    """Print one line about a record that is handed over."""
    outcome = record.outcome
    if record.kind in (NOW, PATCH):
        value = outcome.value if isinstance(outcome, StepSucceeded) else 0.0
        text = (
            f"{record.path}  the clock: {local(value)}" if record.kind == NOW else f"{record.path}  patch {record.name}"
        )
        typer.echo(shortened(f"          {plain(text)}", columns()))
        return
    word, more = outcome_of(record)
    text = named(record.path, record.name, record.label)
    text += f" ({record.attempt} attempts)" if record.attempt > 1 else ""
    if more:
        text = f"{text}  {more}"
    elif isinstance(outcome, StepSucceeded):
        text = f"{text}  {shown(outcome.value)}"
    typer.echo(shortened(f"{word:<8}  {text}", columns()))


def _conclusion(task: AgentTask, came: Replay, *, runs: bool) -> list[str]:
    """Say where a replay has stopped, and why; `runs` tells whether a worker is at it."""
    head = plain(f"{task.id}  {task.status}")
    if came.quit:
        return [f"{head}  you have left the debugger before it came to its end"]
    if came.misfit is not None:
        return [head, *_why(came.misfit)]
    if came.stops:
        return [
            *[_stop_text(stop, runs=runs) for stop in came.stops],
            f"{head}  the code fits the log, which ends here",
        ]
    if came.failure is not None:
        what = "is held for a person, after" if came.parks else "fails with"
        return [f"{head}  the code fits the log, and comes to its end: it {what} {brief(came.failure)}"]
    end = f"{head}  the code fits the log, and comes to its end: it returns {fitted(shown(came.value), 200)}"
    if isinstance(task.ending, Completed) and not came.returns_as_recorded:
        return [end, f"  the task has ended with {fitted(shown(task.ending.value), 200)}, and that stands"]
    return [end]


def _stop_text(stop: Stop, *, runs: bool) -> str:
    """Say what a step is at which a line of execution ends."""
    record, text = stop.record, named(stop.path, stop.name)
    if record is None:
        return f"{'next':<8}  {text}  it has not begun"
    text = named(stop.path, stop.name, record.label)
    if record.kind != STEP:
        return f"{'waits':<8}  {text}  {record.kind}, since {clock_time(record.started)}"
    if record.retry_at is not None:
        error = f" after {brief(record.errors[-1])}" if record.errors else ""
        return f"{'waits':<8}  {text}  attempt {record.attempt + 1} at {clock_time(record.retry_at)}{error}"
    if record.settled is not None:
        return f"{'next':<8}  {text}  to be run again, by {plain(record.settled.by)}"
    if runs:
        return f"{'running':<8}  {text}  attempt {record.attempt} began {clock_time(record.started)}"
    began = f"attempt {record.attempt} began {clock_time(record.started)}, its end is not in the log"
    return f"{'in doubt':<8}  {text}  {began}" + ("; a person decides" if stop.holds else "")
