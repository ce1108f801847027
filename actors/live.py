"""`show --follow`: what happens to a task, line by line as it comes, with the text that its steps emit."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress

import typer

from actors.documents import update_document
from actors.follow import head_of
from actors.ref import TaskRef
from actors.system import AgentSystem
from actors.updates import (
    Emitted,
    Reset,
    StepBegan,
    StepEnded,
    TaskEnded,
    TaskHeld,
    TaskReleased,
    TaskWaiting,
    Update,
)
from actors.wording import columns, named, plain, shown, span, until
from domain.values import loads
from stores import Store

INDENT = 10
"""Columns that stand before the text of a line."""
TEXT = "text"
"""The channel whose pieces go on in one line."""

_DECIDED = {"value": "happened", "fail": "given up", "rerun": "to be run again"}


def follow_task(store: Store, id: str, after: int, *, as_json: bool) -> None:
    """Write what happens to a task to standard output until it has ended. Raises what `TaskRef.follow` names."""
    with AgentSystem(store, run=False) as system:
        task = system.task(id)
        if as_json:
            for update in task.follow(after):
                typer.echo(json.dumps(update_document(update)))
        else:
            _print(task, after)


def _print(task: TaskRef[object], after: int) -> None:
    printer = Printer(task.id, lambda text: typer.echo(text, nl=False), columns())
    try:
        for update in task.follow(after):
            printer.tell(update)
    finally:
        with suppress(OSError):  # nobody reads any more
            printer.end_line()


class Printer:
    """Turns updates into lines of at most so many columns; a text that comes in pieces goes on where it ended.

    `write` is given pieces of lines.
    """

    def __init__(self, id: str, write: Callable[[str], object], width: int) -> None:
        self._id = id
        self._write = write
        self._width = width
        self._began: dict[str, StepBegan] = {}
        self._speaker: str | None = None
        self._column = 0
        self._owed = ""

    def tell(self, update: Update) -> None:
        """Write what an update says."""
        if isinstance(update, Emitted):
            self._tell_emitted(update)
            return
        if isinstance(update, StepBegan):
            self._began[update.path] = update
        word, text = self._line(update)
        self.end_line()
        self._write(f"{head_of(word)}{text}\n")

    def end_line(self) -> None:
        """End the line in which a text stands, if one does."""
        if self._speaker is not None:
            self._write("\n")
        self._speaker, self._owed = None, ""

    def _tell_emitted(self, update: Emitted) -> None:
        stored = loads(update.stored)
        who = "" if update.path.endswith("-") else f"{plain(update.path)}  "
        if update.channel != TEXT or not isinstance(stored, str):
            self.end_line()
            self._write(f"{head_of('says')}{who}{plain(update.channel)}: {shown(stored)}\n")
            return
        if self._speaker != update.path:
            self.end_line()
            self._write(head_of("says") + who)
            self._speaker, self._column = update.path, INDENT + len(who)
        for blank, word in re.findall(r"([\n ]*)([^\n ]*)", re.sub(r"\r\n?", "\n", stored).expandtabs(4)):
            self._owed += blank
            if word:
                self._speak(plain(word))

    def _speak(self, word: str) -> None:
        """Write a word, or a part of one, and what stood before it: blanks are written when something follows them."""
        lines, blanks = self._owed.count("\n"), self._owed.rpartition("\n")[2]
        if not lines and self._column > INDENT and self._column + len(blanks + word) > self._width:
            lines, blanks = 1, ""
        if lines:
            self._write("\n" * lines + " " * INDENT)
            self._column = INDENT
        self._write(blanks + word)
        self._column += len(blanks + word)
        self._owed = ""

    def _line(self, update: Update) -> tuple[str, str]:
        match update:
            case StepBegan(path=path, name=name, label=label, attempt=attempt):
                return "running", named(path, name, label, attempt)
            case StepEnded():
                return self._ending_of(update)
            case Reset(path=path):
                who = "" if path.endswith("-") else f"{plain(path)}  "
                return "again", f"{who}what was said above counts no more"
            case TaskWaiting(until=due, what=what, path=path):
                text = f"{path}  for {what}" if path else "all it does is wait"
                return "waiting", plain(text + ("" if due is None else f", {until(due, time.time())}"))
            case TaskHeld(reason=reason, path=path, message=message):
                step = f": step {path}" if path else ""
                more = f": {message}" if message else ""
                return "held", plain(f"{reason}{step}{more}; what leads out tells: perdure show {self._id}")
            case TaskReleased(path=path, decision=decision, by=by):
                step = f"{path}  {_DECIDED.get(decision, decision)}, " if path else ""
                return "decided" if path else "released", plain(f"{step}by {by}")
            case TaskEnded(status=status, reason=reason):
                return "ended", plain(f"{self._id}  {status}" + (f"  {reason}" if reason else ""))
        return "", plain(repr(update))

    def _ending_of(self, ended: StepEnded) -> tuple[str, str]:
        began = self._began.pop(ended.path, None)
        text = named(ended.path, ended.name, began.label if began else "", ended.attempt)
        if ended.error is None:
            took = ended.at - began.at if began else 0.0
            return "finished", f"{text}  {span(took)}" if took > 0 else text
        due = ended.retry_at
        again = "" if due is None else f"; attempt {ended.attempt + 1} {until(due, ended.at)}"
        return "failed", f"{text}  {plain(ended.error)}{again}"
