"""Tables for `perdure list` and `perdure show`: as wide as the terminal, plain and whole where they are piped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.wording import ago, json_text, plain, span
from domain.events import (
    Activated,
    Completed,
    Created,
    Failed,
    Held,
    Passivated,
    Released,
    Restarted,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
)
from domain.faults import Fault
from domain.task import AgentTask
from stores import IndexRow

PIPED_WIDTH = 120
"""Columns of a table that goes to no terminal, unless COLUMNS says otherwise."""
_STYLES = {"running": "cyan", "completed": "green", "failed": "red", "held": "yellow"}


def print_tasks(rows: list[IndexRow], workers: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one line a task. `workers` are the living ones, with what each says of itself."""
    fixed = sum(max(len(plain(text)) for text in column) + 2 for column in _columns(rows))
    console = _console(fixed + 60)
    table = _table()
    for name in ("id", "status", "age", "agent"):
        foldable = name in ("id", "agent") and console.is_terminal
        table.add_column(name, no_wrap=not foldable, overflow="fold", min_width=10 if foldable else None)
    table.add_column("where / why", overflow="fold", min_width=30)
    now = time.time()
    for row in rows:
        table.add_row(
            Text(plain(row.id)),
            Text(_status(row, now), style=_STYLES.get(row.status, "")),
            Text(ago(row.created, now)),
            Text(plain(row.agent)),
            Text(plain(_where(row, workers, now))),
        )
    _print(console, table)


def print_log(events: Iterable[TaskEvent]) -> None:
    """Print a task's log, one line an event; values are cut to the width there is."""
    events = list(events)
    days = {_local(event.timestamp).date() for event in events}
    console = _console()
    table = _table()
    for name in ("version", "time", "event", "path", "step"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    table.add_column("attempt", no_wrap=True, justify="right")
    table.add_column("label", no_wrap=True, overflow="ellipsis", max_width=max(12, console.width // 5))
    table.add_column("value", no_wrap=True, overflow="ellipsis", ratio=1)
    for event in events:
        facts = event.__dict__
        table.add_row(
            str(event.originator_version),
            _local(event.timestamp).strftime("%H:%M:%S.%f" if len(days) == 1 else "%m-%d %H:%M:%S.%f")[:-3],
            type(event).__name__,
            *[Text(plain(str(facts.get(fact, "")))) for fact in ("path", "name", "attempt", "label")],
            Text(_VALUES[type(event)](event)),
        )
    table.expand = True
    _print(console, table)


def has_worker(row: IndexRow, workers: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tell whether a living worker would run this task: one that knows its agent, and is not there for another task."""
    return any(
        row.agent in about.get("agents", ()) and about.get("only") in (None, row.id) for about in workers.values()
    )


WORKER_DIED = "its worker died, the next one goes on"


def status_line(task: AgentTask, workers: Collection[str]) -> str:
    """Give the line above a task's log; `workers` are the ids of the live ones."""
    now = time.time()
    lost = task.status == "running" and task.worker not in workers
    created = f"{_local(task.created):%Y-%m-%d %H:%M:%S}"
    parts = [
        plain(task.id),
        f"{task.status} {ago(task.updated, now)}" if task.status == "held" else task.status,
        *([WORKER_DIED] if lost else []),
        f"agent {plain(task.agent)}",
        f"created {created}, {ago(task.created, now)} ago",
        f"{task.activation} activation{'s' if task.activation != 1 else ''}",
        *[plain(f"{name}={text}") for name, text in task.tags.items()],
    ]
    return "  ".join(parts)


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _columns(rows: list[IndexRow]) -> list[list[str]]:
    """Give the texts by which the columns but the last are as wide as they are."""
    return [["id", *[row.id for row in rows]], ["held 59 min"], ["59 min"], ["agent", *[row.agent for row in rows]]]


def _console(least: int = 0) -> Console:
    """Give the console of standard output, where it is no terminal at least `least` columns wide: nothing is cut."""
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        columns = os.environ.get("COLUMNS", "")
        console.width = max(int(columns) if columns.isdecimal() else PIPED_WIDTH, least)
    return console


def _print(console: Console, table: Table) -> None:
    """Print a table, without blanks at the ends of its lines where it goes to no terminal."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        console.file.write(line.rstrip() + "\n")


def _status(row: IndexRow, now: float) -> str:
    return f"held {ago(row.updated, now)}" if row.status == "held" else row.status


def _where(row: IndexRow, workers: Mapping[str, Mapping[str, Any]], now: float) -> str:
    """Say where a task is, why it is held or has failed, or for what it waits."""
    if row.status == "queued" and not has_worker(row, workers):
        return _joined(str(row.note), "no live worker knows this agent")
    if row.status == "queued" and row.due is not None and row.due > now:
        return _joined(str(row.note), f"restarts in {span(row.due - now)}")
    if row.status == "running" and row.owner not in workers:
        return _joined(str(row.note), WORKER_DIED)
    return str(row.note)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _local(moment: float) -> datetime:
    return datetime.fromtimestamp(moment).astimezone()


def _created(event: Created) -> str:
    args, kwargs = event.input
    texts = [*map(json_text, args), *[f"{plain(name)}={json_text(value)}" for name, value in kwargs.items()]]
    return f"{plain(event.agent)}({', '.join(texts)})"


def _failed(event: StepFailed | Failed) -> str:
    return plain(str(Fault.from_data(event.error)))


def _succeeded(event: StepSucceeded) -> str:
    return json_text(event.value) + (f"  told by {plain(event.source)}" if event.source else "")


def _released(event: Released) -> str:
    value = f"  {json_text(event.value)}" if event.decision == "value" else ""
    return plain(f"{event.decision} by {event.by}") + value


_VALUES: dict[type[TaskEvent], Callable[[Any], str]] = {
    Created: _created,
    Activated: lambda event: plain(f"activation {event.number} by {event.worker}"),
    StepStarted: lambda event: plain(event.doubt),
    StepSucceeded: _succeeded,
    StepFailed: _failed,
    Restarted: lambda event: plain(f"restart {event.strikes} after {Fault.from_data(event.error)}"),
    Passivated: lambda event: plain(f"cut off, in doubt: {', '.join(event.cut_off)}") if event.cut_off else "",
    Held: lambda event: plain(_joined(event.reason, str(event.details.get("message", "")))),
    Released: _released,
    Completed: lambda event: json_text(event.value),
    Failed: _failed,
}
"""What an event says beyond its path, name, attempt and label."""
