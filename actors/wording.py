"""Texts for a terminal: nothing that a log holds can break a line, colour it or be taken for markup."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from shlex import quote
from typing import Any, TextIO

from actors.showing import counted, value_text
from actors.view import clock_time, explain, fault_of, headline
from domain.events import CancelDelivered, Released, SignalReceived, StepFailed, WaitEnded
from domain.faults import Fault
from domain.record import StepRecord
from domain.task import AgentTask
from domain.waits import ANSWER, CHILD_END, TIMER
from stores import IndexRow

UNLIMITED = sys.maxsize
"""Columns of a line that goes to no terminal, unless COLUMNS says otherwise: nothing is cut or folded."""
WORKER_DIED = "its worker died, the next one goes on"

_LONG = 120.0  # seconds from which a wait is told with the time on the clock
_LONGEST = 2_000  # characters of a value that are looked at: no line shows more
_SPANS = ((172_800.0, 86_400, "d"), (7_200.0, 3_600, "h"), (120.0, 60, "min"), (1.0, 1, "s"))


def plain(text: str) -> str:
    r"""Give a text in one line, with what does not print as in a `repr`.

    >>> plain("two\nlines, \x1b[31mred")
    'two\\nlines, \\x1b[31mred'
    """
    return text if text.isprintable() else "".join(map(_printable, text))


def shown(stored: Any) -> str:
    """Give an encoded value as a text in one line, its end cut off where it is very long and lines have an end."""
    return plain(fitted(value_text(stored), _LONGEST))


def span(seconds: float) -> str:
    """Give a length of time in one unit.

    >>> span(0.034), span(7.9), span(130), span(8000), span(1e6)
    ('34 ms', '7 s', '2 min', '2 h', '11 d')
    """
    for least, unit, name in _SPANS:
        if seconds >= least:
            return f"{int(seconds // unit)} {name}"
    return f"{max(0, round(seconds * 1000))} ms"


def named(path: str, name: str, label: str = "", attempt: int = 1) -> str:
    """Give a step as a line shows it: path, name, label, and from the second attempt on its number."""
    text = f"{path}  {name}" + (f' "{label}"' if label else "")
    return plain(text) + (f" (attempt {attempt})" if attempt > 1 else "")


def outcome_of(record: StepRecord) -> tuple[str, str]:
    """Tell in a word, and what there is to say besides, how a step came out that never runs again."""
    outcome = record.outcome
    if isinstance(outcome, Released):
        return "decided", decision(outcome)
    if isinstance(outcome, StepFailed):
        return "failed", brief(Fault.from_data(outcome.error))
    if isinstance(outcome, CancelDelivered):
        return "cancelled", "in doubt" if record.in_doubt else ""
    return "replayed", ""


def ago(moment: float, now: float) -> str:
    """Give the time between two moments of Unix time, as an age.

    >>> ago(100.0, 100.4), ago(100.0, 820.0)
    ('0 s', '12 min')
    """
    return span(float(int(now - moment))) if now - moment >= 1 else "0 s"


def until(due: float, now: float) -> str:
    """Say when something is due, a moment of Unix time: in a while, and on the clock where that is long.

    >>> until(112.0, 100.0), until(99.0, 100.0)
    ('in 12 s', 'now')
    """
    left = due - now
    if left <= 0:
        return "now"
    return f"in {span(left)}" + (f", at {clock_time(due)}" if left >= _LONG else "")


def shortened(text: str, limit: int, *, tail: int = 0) -> str:
    """Give a text of at most so many characters; `tail` of them from its end.

    >>> shortened("to be or not to be", 5), shortened("~some-long-key/12", 9, tail=3)
    ('to b…', '~some…/12')
    """
    if len(text) <= limit:
        return text
    return text[: limit - 1 - tail] + "…" + (text[-tail:] if tail else "")


def fitted(text: str, limit: int) -> str:
    """Give a text of at most so many characters; a whole one where lines have no end, as in a pipe."""
    return text if columns() == UNLIMITED else shortened(text, limit)


def brief(fault: Fault) -> str:
    """Give an error in one line, without its traceback, its end cut off where it is long and lines have an end."""
    return fitted(plain(str(fault)), 200)


def decision(said: Released) -> str:
    """Say what a person has decided of a step, or of a task."""
    what = {
        "value": f"happened, with {fitted(shown(said.value), 60)},",
        "fail": "given up",
        "rerun": "to be run again,",
        "release": "released",
    }.get(said.decision, plain(said.decision))
    return f"{what} by {plain(said.by)}"


def columns(stream: TextIO | None = None) -> int:
    """Give the width of a line on standard output, or another stream.

    Where that is no terminal it is `UNLIMITED`, unless COLUMNS says otherwise.
    """
    stream = stream or sys.stdout
    if stream.isatty():
        return os.get_terminal_size(stream.fileno()).columns or UNLIMITED
    said = os.environ.get("COLUMNS", "")
    return int(said) if said.isdecimal() and int(said) > 0 else UNLIMITED


def held_text(task: AgentTask, options: str = "", stream: TextIO | None = None) -> str:
    """Give the paragraph about a held task; `options` are what the commands that it names need besides.

    On a terminal its first line is broken between words.
    """
    age = ago(task.updated, time.time())
    since = "just now" if age == "0 s" else age
    head, *rest = [plain(line) for line in explain(task, options).splitlines()] or [""]
    fault = fault_of(task)
    trace = [traceback_text(fault)] if fault is not None and fault.traceback else []
    first = _broken(f"{plain(task.id)}  held {since}  {head}".rstrip(), stream or sys.stdout)
    return "\n".join([first, *[f"  {line}" for line in rest], *trace])


def _broken(text: str, stream: TextIO) -> str:
    if not stream.isatty():
        return text
    wrapper = textwrap.TextWrapper(columns(stream), break_long_words=False, break_on_hyphens=False)
    wrapper.subsequent_indent = "  "
    return wrapper.fill(text)


def traceback_text(fault: Fault) -> str:
    """Give the traceback of an error, indented and without its last lines, which say what the error itself says."""
    lines = fault.traceback.expandtabs(4).splitlines()
    last = max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1)
    return "\n".join(f"  {plain(line)}" for line in lines[: last + 1])


def how_it_ended(event: WaitEnded) -> str:
    """Say how a wait has ended."""
    if event.signal:
        return f"by version {event.signal}"
    return "its time has come" if event.kind == TIMER or event.source >= 0 else "timed out"


def received_text(event: SignalReceived) -> str:
    """Say what has come from outside: a signal, an answer, the end of a child."""
    if event.name.startswith(ANSWER):
        facts, path = event.value, event.name.removeprefix(ANSWER)
        return answer_text(path, facts["value"], event.by, facts["note"], approved=facts["approved"])
    if event.name.startswith(CHILD_END):
        return plain(f"{event.name.removeprefix(CHILD_END)} {event.value['status']}")
    return f"{plain(event.name)}  {shown(event.value)}  by {plain(event.by)}"


def answer_text(path: str, stored: Any, by: str, note: str, *, approved: bool) -> str:
    """Say how the approval that was asked for at `path` was answered, with the value encoded."""
    said = f': "{note}"' if note else ""
    value = "" if stored is None else f", {shown(stored)}"
    return plain(f"{'yes' if approved else 'no'} to {path}, by {by}{said}{value}")


def how_to_answer(pause: str, options: str) -> str:
    """Give the command that says yes to an approval; `options` are what it needs besides.

    >>> how_to_answer("trip 1#2@51a2b3", "")
    "perdure approve 'trip 1#2@51a2b3'"
    """
    return f"perdure approve {quote(pause)}{options}"


def how_to_signal(task_id: str, name: str, options: str) -> str:
    """Give the command that brings a signal; `options` are what it needs besides.

    >>> how_to_signal("order 7", "paid", " --store x")
    "perdure signal 'order 7' paid JSON --store x"
    """
    return f"perdure signal {quote(task_id)} {quote(name)} JSON{options}"


# ------------------------------------------------------------------ where a task is


def has_worker(row: IndexRow, workers: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tell whether a living worker would run this task: one that knows its agent, and is not there for another task."""
    return any(row.agent in about.get("agents", ()) and _is_of(row.id, about.get("only")) for about in workers.values())


def _is_of(task_id: str, only: str | None) -> bool:
    """Tell whether a task is the one for which a worker is there, or looks like a descendant of it."""
    return only is None or task_id == only or task_id.startswith(f"{only}/")


def where(row: IndexRow, workers: Mapping[str, Mapping[str, Any]]) -> str:
    """Say where a task is, why it is held or has failed, for what it waits, or how long it took.

    `workers` are the living ones.
    """
    note, now = str(row.note), time.time()
    if row.status == "running" and row.owner not in workers:
        return joined(note, WORKER_DIED)
    if row.status == "waiting" and row.due is not None:
        note = f"{note} {until(row.due, now)}"
    if row.status in ("queued", "waiting") and not has_worker(row, workers):
        return joined(note, "no live worker knows this agent" if workers else "no worker runs")
    if row.status == "completed":
        return f"took {span(row.updated - row.created)}"
    if row.status == "queued" and row.due is not None and row.due > now:
        return joined(note, f"restarts in {span(row.due - now)}")
    return note


def status_line(task: AgentTask, workers: Collection[str]) -> str:
    """Give the line above a task's log, or several where it is too long; `workers` are the ids of the live ones."""
    now = time.time()
    lost = task.status == "running" and task.worker not in workers
    waits = task.status == "waiting"
    parts = [
        plain(task.id),
        f"{task.status} {ago(task.updated, now)}" if task.status == "held" else task.status,
        *(
            [plain(f"{headline(task)} {until(task.due, now) if task.due is not None else ''}".rstrip())]
            if waits
            else []
        ),
        *([WORKER_DIED] if lost else []),
        f"agent {plain(task.agent)}",
        *([plain(f"child of {task.parent}")] if task.parent else []),
        f"created {local(task.created):%Y-%m-%d %H:%M:%S}, {ago(task.created, now)} ago",
        counted(task.activation, "activation"),
        *[plain(f"{name}={text}") for name, text in task.tags.items()],
    ]
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}  {part}"
        if len(longer) <= columns():
            lines[-1] = longer
        else:
            lines.append(f"  {part}")
    return "\n".join(lines)


def _waits(task: AgentTask, now: float) -> str:
    return headline(task) + (f" {until(task.due, now)}" if task.due is not None else "")


def joined(*parts: str) -> str:
    """Give the parts that there are as one text."""
    return "; ".join(part for part in parts if part)


def local(moment: float) -> datetime:
    """Give a moment of Unix time as this machine's clocks have it."""
    return datetime.fromtimestamp(moment).astimezone()


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
