"""`show --follow`: what happens to a task, line by line as it comes, with the text that its steps emit."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress

import typer

from actors.documents import update_document
from actors.ref import TaskRef
from actors.saying import INDENT, head_of
from actors.system import AgentSystem
from actors.updates import (
    ApprovalAnswered,
    ApprovalAsked,
    CancelAsked,
    ChildBegan,
    ChildEnded,
    Emitted,
    Reset,
    SignalArrived,
    StepBegan,
    StepEnded,
    TaskEnded,
    TaskHeld,
    TaskReleased,
    TaskWaiting,
    Update,
    WaitOver,
)
from actors.wording import answer_text, columns, fitted, how_to_answer, how_to_signal, named, plain, shown, span, until
from domain.values import loads
from domain.waits import APPROVAL
from stores import Store

TEXT = "text"
"""The channel whose pieces go on in one line."""
DETAILS = 300
"""Characters of an approval's details that are shown on a terminal."""

_DECIDED = {"value": "happened", "fail": "given up", "rerun": "to be run again"}


def follow_task(store: Store, id: str, after: int, *, as_json: bool, options: str = "") -> None:
    """Write what happens to a task to standard output until it has ended. Raises what `TaskRef.follow` names.

    `options` are what a command that is named needs besides.
    """
    with AgentSystem(store, run=False) as system:
        task = system.task(id)
        if as_json:
            for update in task.follow(after):
                typer.echo(json.dumps(update_document(update)))
        else:
            _print(task, after, options)


def _print(task: TaskRef[object], after: int, options: str) -> None:
    printer = Printer(task.id, lambda text: typer.echo(text, nl=False), columns(), options)
    try:
        for update in task.follow(after):
            printer.tell(update)
    finally:
        with suppress(OSError):  # nobody reads any more
            printer.end_line()


class Printer:
    """Turns updates into lines of at most so many columns; a text that comes in pieces goes on where it ended.

    `write` is given pieces of lines. What the task waits for has the command that brings it; `options` are what that
    needs besides.
    """

    def __init__(self, id: str, write: Callable[[str], object], width: int, options: str = "") -> None:
        self._id = id
        self._write = write
        self._width = width
        self._options = options
        self._began: dict[str, StepBegan] = {}
        self._questions: dict[str, str] = {}
        self._waits: set[str] = set()
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
        if isinstance(update, TaskWaiting) and not update.path and self._waits:
            return  # it was told for what
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
            case TaskWaiting():
                return "waiting", self._wait_of(update)
            case TaskHeld(reason=reason, path=path, message=message):
                step = f": step {path}" if path else ""
                more = f": {message}" if message else ""
                return "held", plain(f"{reason}{step}{more}; what leads out tells: perdure show {self._id}")
            case TaskReleased(path=path, decision=decision, by=by):
                step = f"{path}  {_DECIDED.get(decision, decision)}, " if path else ""
                return "decided" if path else "released", plain(f"{step}by {by}")
            case TaskEnded(status=status, reason=reason):
                return "ended", plain(f"{self._id}  {status}" + (f"  {reason}" if reason else ""))
        return self._brought(update)

    def _brought(self, update: Update) -> tuple[str, str]:
        """Tell of what a task asks others for, and of what they bring."""
        match update:
            case WaitOver(path=path, what=what, timed_out=late):
                self._waits.discard(path)
                return "finished", plain(f"{path}  {self._for(what)}" + ("  timed out" if late else ""))
            case ApprovalAsked(path=path, question=question, pause=pause, stored=stored):
                self._questions[path] = question
                details = loads(stored)
                more = "" if details is None else f"\n{' ' * INDENT}{fitted(shown(details), DETAILS)}"
                return "asks", plain(f'{path}  "{question}"  {how_to_answer(pause, self._options)}') + more
            case ApprovalAnswered(path=path, approved=approved, by=by, note=note, stored=stored):
                return "received", answer_text(path, loads(stored), by, note, approved=approved)
            case SignalArrived(name=name, by=by, stored=stored):
                return "received", f"signal {plain(name)}  {shown(loads(stored))}  by {plain(by)}"
            case ChildBegan(path=path, child=child):
                return "spawned", plain(f"{path}  {child}")
            case ChildEnded(child=child, status=status):
                return "received", plain(f"child {child}  {status}")
            case CancelAsked(by=by, reason=reason):
                return "cancel", plain(f"by {by}" + (f": {reason}" if reason else ""))
        return "", plain(repr(update))

    def _wait_of(self, waiting: TaskWaiting) -> str:
        due = "" if waiting.until is None else until(waiting.until, time.time())
        if not waiting.path:
            return f"goes on {due}" if due else "for what others bring"
        self._waits.add(waiting.path)
        text = f"{waiting.path}  for {self._for(waiting.what)} {due}".rstrip()
        how = [plain(how_to_signal(self._id, name, self._options)) for name in waiting.signals]
        return f"\n{' ' * INDENT}".join([plain(text), *how])

    def _for(self, what: str) -> str:
        """Give what is waited for, an approval by its question where that was told."""
        kind, _, path = what.partition(" ")
        is_known = kind == APPROVAL and path in self._questions
        return f'{kind} "{self._questions[path]}"' if is_known else what

    def _ending_of(self, ended: StepEnded) -> tuple[str, str]:
        began = self._began.pop(ended.path, None)
        text = named(ended.path, ended.name, began.label if began else "", ended.attempt)
        if ended.error is None:
            took = ended.at - began.at if began else 0.0
            return "finished", f"{text}  {span(took)}" if took > 0 else text
        due = ended.retry_at
        again = "" if due is None else f"; attempt {ended.attempt + 1} {until(due, ended.at)}"
        return "failed", f"{text}  {plain(ended.error)}{again}"
