"""Texts for a terminal: nothing that a log holds can break a line, colour it or be taken for markup."""

from __future__ import annotations

import json
import time
from typing import Any

from actors.view import explain, fault_of
from domain.faults import Fault
from domain.task import AgentTask

_LONGEST = 2_000  # characters of a value that are looked at: no line shows more
_SPANS = ((172_800.0, 86_400, "d"), (7_200.0, 3_600, "h"), (120.0, 60, "min"), (1.0, 1, "s"))


def plain(text: str) -> str:
    r"""Give a text in one line, with what does not print as in a `repr`.

    >>> plain("two\nlines, \x1b[31mred")
    'two\\nlines, \\x1b[31mred'
    """
    return text if text.isprintable() else "".join(map(_printable, text))


def json_text(stored: Any) -> str:
    """Give an encoded value as JSON in one line, its end cut off where it is very long."""
    text = json.dumps(stored, ensure_ascii=False)
    return plain(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


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


def ago(moment: float, now: float) -> str:
    """Give the time between two moments of Unix time, as an age.

    >>> ago(100.0, 100.4), ago(100.0, 820.0)
    ('0 s', '12 min')
    """
    return span(float(int(now - moment))) if now - moment >= 1 else "0 s"


def held_text(task: AgentTask, options: str = "") -> str:
    """Give the paragraph about a held task; `options` are what the commands that it names need besides."""
    age = ago(task.updated, time.time())
    since = "just now" if age == "0 s" else age
    head, *rest = [plain(line) for line in explain(task, options).splitlines()] or [""]
    fault = fault_of(task)
    trace = [traceback_text(fault)] if fault is not None and fault.traceback else []
    return "\n".join([f"{plain(task.id)}  held {since}  {head}".rstrip(), *[f"  {line}" for line in rest], *trace])


def traceback_text(fault: Fault) -> str:
    """Give the traceback of an error, indented and without its last lines, which say what the error itself says."""
    lines = fault.traceback.expandtabs(4).splitlines()
    last = max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1)
    return "\n".join(f"  {plain(line)}" for line in lines[: last + 1])


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
