"""Tables for `perdure list` and `perdure show`: as wide as the terminal, plain and whole where they are piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.view import clock_time, strikes_text, wait_name
from actors.wording import (
    ago,
    brief,
    columns,
    decision,
    fitted,
    how_it_ended,
    joined,
    local,
    plain,
    received_text,
    shortened,
    shown,
    where,
)
from domain.events import (
    Activated,
    ApprovalRequested,
    CancelDelivered,
    Cancelled,
    CancelRequested,
    ChildSpawned,
    Completed,
    Concluded,
    Created,
    Failed,
    Held,
    Passivated,
    Released,
    RestartAsked,
    Restarted,
    SignalReceived,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
    UndoRegistered,
    WaitBegan,
    WaitEnded,
)
from domain.faults import Fault
from domain.record import NOW, PATCH, UNDO
from domain.waits import Wait
from stores import IndexRow

WIDE = 100
"""Columns from which there is room for parts of a second."""
_STYLES = {
    "running": "cyan",
    "waiting": "cyan",
    "completed": "green",
    "failed": "red",
    "held": "yellow",
    "cancelled": "red",
}
_ASIDE = {PATCH: "Patched", NOW: "ClockRead", UNDO: "UndoRegistered"}


def print_tasks(rows: list[IndexRow], workers: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one line a task. `workers` are the living ones, with what each says of itself."""
    console, table, now = Console(markup=False, emoji=False, highlight=False), _table(), time.time()
    for name in ("id", "status", "age", "agent"):
        foldable = name in ("id", "agent")
        table.add_column(name, no_wrap=not foldable, overflow="fold", min_width=10 if foldable else None)
    table.add_column("where / why", overflow="fold", min_width=30)
    lines = [["id", "status", "age", "agent", "where / why"]]
    for row in rows:
        status = f"held {ago(row.updated, now)}" if row.status == "held" else row.status
        cells = [plain(row.id), status, ago(row.created, now), plain(row.agent), plain(where(row, workers))]
        lines.append(cells)
        table.add_row(*[Text(cell, style=_STYLES.get(row.status, "") if cell is status else "") for cell in cells])
    if console.is_terminal:
        console.print(table)
    else:
        _print_whole(lines)


def print_log(events: Iterable[TaskEvent]) -> None:
    """Print a task's log, one line an event; what does not fit in it on a terminal is cut off."""
    events, console = list(events), Console(markup=False, emoji=False, highlight=False)
    days = {local(event.timestamp).date() for event in events}
    width = console.width if console.is_terminal else columns()
    narrow = width < WIDE
    clock = ("" if len(days) == 1 else "%m-%d ") + ("%H:%M:%S" if narrow else "%H:%M:%S.%f")
    lines = [["ver" if narrow else "version", "time", "event", "path", "what"]]
    table = _table()
    for name in lines[0]:
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=1 if name == "what" else None)
    for event in events:
        kind = event.__dict__.get("kind", "")
        path = plain(str(event.__dict__.get("path", "")))
        cells = [
            str(event.originator_version),
            local(event.timestamp).strftime(clock)[: None if narrow else -3],
            _ASIDE.get(kind) or type(event).__name__,
            shortened(path, max(12, width // 5), tail=8),
            _what(event),
        ]
        lines.append(cells)
        table.add_row(*map(Text, cells), style="bright_black" if kind in _ASIDE else None)
    table.expand = True
    if console.is_terminal:
        console.print(table)
    else:
        _print_whole(lines)


def _print_whole(lines: list[list[str]]) -> None:
    """Print a table as text, for where it goes to no terminal: one line a row, cut only where COLUMNS says so."""
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True))
        sys.stdout.write(shortened("  ".join(padded).rstrip(), columns()) + "\n")


def _what(event: TaskEvent) -> str:
    """Say in one line what an event tells: the step, if it is about one, and the rest."""
    facts, rest = event.__dict__, _VALUES[type(event)](event)
    if "name" not in facts or isinstance(event, SignalReceived):
        return rest
    name = wait_name(event) if isinstance(event, WaitBegan | WaitEnded | CancelDelivered) else facts["name"]
    text = name + (f' "{facts["label"]}"' if facts.get("label") else "")
    number = facts.get("attempt", 1)
    attempt = f" (attempt {number})" if number > 1 else ""
    return f"{plain(text)}{attempt}  {rest}".rstrip()


def _reserved(event: StepStarted) -> str:
    return "" if event.reserved is None else f"reserves {shown(event.reserved)}"


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _created(event: Created) -> str:
    return f"{plain(event.agent)}{_call(event.input)}"


def _call(arguments: Any) -> str:
    args, kwargs = arguments
    texts = [*map(shown, args), *[f"{plain(name)}={shown(value)}" for name, value in kwargs.items()]]
    return f"({', '.join(texts)})"


def _step_failed(event: StepFailed) -> str:
    fault = Fault.from_data(event.error)
    if event.retry_at is None:
        return brief(fault)
    again = f"{plain(fault.kind)}, again {clock_time(event.retry_at)}"
    return fitted(f"{again}: {plain(fault.message)}" if fault.message else again, 200)


def _succeeded(event: StepSucceeded) -> str:
    if event.kind == NOW:
        return local(event.value).isoformat(sep=" ", timespec="milliseconds")
    if event.kind == PATCH:
        return ""
    if event.kind == UNDO:
        return _call(event.value)
    return shown(event.value) + (f"  told by {plain(event.source)}" if event.source else "")


def _passivated(event: Passivated) -> str:
    cut_off = f"cut off, in doubt: {', '.join(event.cut_off)}" if event.cut_off else ""
    waits = f"waits until {clock_time(event.due)}" if event.due is not None else "waits" if event.waits else ""
    return plain(joined(cut_off, waits))


def _wait_began(event: WaitBegan) -> str:
    wait = Wait.read(event.kind, event.name, event.sources, event.due)
    dues = [due.at for due in wait.first_due()]
    return f"until {clock_time(min(dues))}" if dues else ""


def _requested(event: CancelRequested) -> str:
    return plain(f"by {event.by}" + (f": {event.reason}" if event.reason else ""))


def _concluded(event: Concluded) -> str:
    return plain(event.status + (", its clean-up was cut off or never begun" if event.cut else ""))


def _cancelled(event: Cancelled) -> str:
    doubts = f"in doubt: step {', '.join(event.doubts)}" if event.doubts else ""
    cut = "its clean-up was cut off or never begun" if event.cut else ""
    return plain(joined(f"by {event.by}" + (f": {event.reason}" if event.reason else ""), cut, doubts))


def _held(event: Held) -> str:
    details = event.details
    return plain(joined(event.reason, strikes_text(details) or str(details.get("message", ""))))


_VALUES: dict[type[TaskEvent], Callable[[Any], str]] = {
    Created: _created,
    Activated: lambda event: plain(f"activation {event.number} by {event.worker}"),
    StepStarted: lambda event: joined(plain(event.doubt), _reserved(event)),
    StepSucceeded: _succeeded,
    StepFailed: _step_failed,
    Restarted: lambda event: plain(f"restart {event.strikes} after {Fault.from_data(event.error)}"),
    RestartAsked: lambda event: plain(f"after a crash of {event.by}"),
    Passivated: _passivated,
    Held: _held,
    Released: decision,
    WaitBegan: _wait_began,
    WaitEnded: how_it_ended,
    SignalReceived: received_text,
    ApprovalRequested: lambda event: "" if event.details is None else shown(event.details),
    ChildSpawned: lambda event: plain(event.child),
    UndoRegistered: lambda event: _call(event.arguments),
    CancelRequested: _requested,
    CancelDelivered: lambda _event: "",
    Concluded: _concluded,
    Completed: lambda event: shown(event.value),
    Failed: lambda event: brief(Fault.from_data(event.error)),
    Cancelled: _cancelled,
}
"""What an event says beyond its path, name, attempt and label."""
