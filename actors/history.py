"""Histories: a task's log as a file that is checked in, to be replayed by all code to come.

A file has one JSON document: `id`, `birth`, and `rows`, each `[version, topic, payload]`, the payload as it is stored;
or one that holds such a document as `history`, as `perdure show ID --json` prints it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from actors.colours import asyncio_task
from actors.definitions import AnyAgent
from actors.ref import TaskRef
from actors.replay import CRASHES, Misfit, replay
from actors.task_log import TaskLog
from actors.threads import Threads
from domain.errors import PerdureError
from domain.events import Created, TaskEvent, revive
from domain.fold import fold
from domain.state import DIFFERS, UNREADABLE
from domain.task import AgentTask
from domain.values import Json
from stores import open_store

File = str | os.PathLike[str]


class HistoryError(PerdureError, AssertionError):
    """Raised when today's code does not fit a history: `where` is its file, `path` the position in the program.

    `reason` is that of the hold that a task with this log would get, or `crashes`; `expected` is what the log has at
    the position, and `found` what the code asks for.
    """

    def __init__(
        self, message: str, *, where: str, path: str = "", reason: str = "", expected: str = "", found: str = ""
    ) -> None:
        super().__init__(message)
        self.where = where
        self.path = path
        self.reason = reason
        self.expected = expected
        self.found = found


def save_history(task: TaskRef[Any], path: File) -> None:
    """Write a task's log as a history, wherever the task is; an existing file is refused: a history is never edited.

    Raises FileExistsError, UnknownTaskError, UnreadableTaskError.
    """
    with open(path, "x", encoding="ascii") as file:
        file.write(history_text(to_history(task.events())) + "\n")


def replay_history(agent: AnyAgent, path: File) -> None:
    """Replay a history with today's code: no body runs. Raises HistoryError where a task with this log would be held.

    The code fits where it asks for what the log has, position by position. It may go on to new steps after that, and
    return something else. The agent's own code may take as long as it likes.

    Raises ValueError for a file that is no history, OSError where it cannot be read.
    """
    __tracebackhide__ = True
    task = load_history(path)
    if not isinstance(agent, AnyAgent):
        raise TypeError(f"{agent!r:.80} is not an agent: decorate it with @agent")
    if task.agent not in agent.names:
        message = f"{path}: it is a history of agent {task.agent}, not of {agent.name}; a name it had is an alias"
        raise HistoryError(message, where=str(path), expected=task.agent, found=agent.name)
    log = TaskLog(open_store("memory:"))
    if asyncio_task() is None:
        found = replay(log, task, agent)
    else:
        found = Threads("perdure-replay").run(replay, log, task, agent).result()
    if found.misfit is not None:
        raise _unfit(path, task, found.misfit)


def histories(folder: File) -> list[Path]:
    """Give the histories in a folder, sorted by name: its files that end in `.json`.

    Raises FileNotFoundError where there is none: a test of no history would pass for ever.
    """
    found = sorted(Path(folder).glob("*.json"))
    if not found:
        raise FileNotFoundError(f"there is no history (*.json) in {Path(folder).absolute()}")
    return found


def to_history(events: Iterable[TaskEvent]) -> dict[str, Any]:
    """Give a task's events in the form in which they are stored."""
    events = list(events)
    created = events[0]
    assert isinstance(created, Created)  # noqa: S101  the first event of every log
    rows: list[Json] = [[event.originator_version, event.TOPIC, event.payload()] for event in events]
    return {"id": created.originator_id, "birth": created.birth, "rows": rows}


def history_text(history: dict[str, Any]) -> str:
    """Write a history as JSON, one row a line, so that people can compare two."""
    rows = ",\n".join(f"    {json.dumps(row)}" for row in history["rows"])
    others = [f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in history.items() if key != "rows"]
    return f'{{\n{"".join(others)}  "rows": [\n{rows}\n  ]\n}}'


def load_history(path: File) -> AgentTask:
    """Fold the task of a history. Raises HistoryError where this code cannot read a row, ValueError, OSError."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        document = document.get("history", document)
        task_id, birth, rows = document["id"], document["birth"], [tuple(row) for row in document["rows"]]
        raw = [(int(version), str(topic), list(payload)) for version, topic, payload in rows]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is no history of a task: {type(error).__name__}: {error}") from None
    try:
        task = fold(None, [revive(topic, task_id, version, payload) for version, topic, payload in raw])
    except (ValueError, PerdureError) as error:
        raise HistoryError(f"{path}: its log cannot be read: {error}", where=str(path), reason=UNREADABLE) from error
    if task is None or task.birth != birth:
        raise ValueError(f"{path} is no history of a task: its rows are not those of birth {birth}")
    return task


def _unfit(path: File, task: AgentTask, misfit: Misfit) -> HistoryError:
    head = f"{path}: task {task.id} of agent {task.agent}"
    if misfit.reason == CRASHES and misfit.fault is not None:
        text = f"{head} would crash: {misfit.message}\n{misfit.fault.traceback}".rstrip()
    elif misfit.reason == DIFFERS:
        text = f"{head} would be held: {misfit.message}"
    else:
        at = f" at position {misfit.path}" if misfit.path else ""
        text = f"{head} would be held{at}: {misfit.reason}: {misfit.message}"
    facts = {"path": misfit.path, "reason": misfit.reason, "expected": misfit.log, "found": misfit.code}
    return HistoryError(text, where=str(path), **facts)
