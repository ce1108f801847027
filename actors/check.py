"""Every open task's log, replayed with today's code, before that code is deployed. Nothing is written, no body runs."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from actors.definitions import AnyAgent
from actors.replay import CRASHES, HANGS, Misfit, Replay, replay
from actors.runtime import Runtime
from actors.task_log import TaskLog
from actors.threads import Threads
from domain.errors import UnknownTaskError, UnreadableTaskError
from domain.state import FOR_CODE, IN_DOUBT, UNREADABLE, Status
from domain.task import AgentTask
from stores import IndexRow, Store

OPEN: tuple[Status, ...] = ("queued", "running", "waiting", "held")
"""The statuses of a task that has not ended."""
FITS, HELD, PERSON, NOT_HERE = "fits", "held", "for a person", "not here"
WORDS = (FITS, HELD, CRASHES, HANGS, IN_DOUBT, PERSON, NOT_HERE)
"""What can come of a task: it fits; it would be held, would crash, or did not come to its next step; it fits, but a
step is in doubt and a person decides; it waits for a person, whatever the code; or its agent is in no module."""
UNFIT = (HELD, CRASHES, HANGS)
"""The verdicts for which a deploy had better wait."""
LIMIT = 10.0
"""Seconds that an agent's code has between two steps, unless told otherwise; those of one replay, all together."""


@dataclass(frozen=True)
class Verdict:
    """What today's code makes of one task. `notes` say what is worth knowing though it fits."""

    row: IndexRow
    misfit: Misfit | None = None
    known: bool = True
    for_person: bool = False
    in_doubt: bool = False
    notes: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The verdict in one word of `WORDS`."""
        if not self.known:
            return NOT_HERE
        if self.misfit is None:
            return PERSON if self.for_person else IN_DOUBT if self.in_doubt else FITS
        return self.misfit.reason if self.misfit.reason in (CRASHES, HANGS) else HELD


def check(store: Store, find: Callable[[str], AnyAgent | None], limit: float = LIMIT) -> Iterator[Verdict]:
    """Replay the open tasks of the agents that `find` knows, the oldest first, each within `limit` seconds.

    What waits for a person is not replayed, and neither is what has ended meanwhile. Workers may run; what they do to
    a task after its log was read is not seen.
    """
    log, threads = TaskLog(store), Threads("perdure-check")
    for row in store.recorder.select_entries(status=OPEN):
        agent = find(row.agent)
        if agent is None:
            yield Verdict(row, known=False)
        elif row.status == "held" and row.hold not in FOR_CODE:
            yield Verdict(row, for_person=True, notes=(f"it is held for a person: {row.note}",))
        else:
            try:
                task = log.load(row.id)
            except UnknownTaskError:
                continue
            except UnreadableTaskError as error:
                yield Verdict(row, Misfit(UNREADABLE, str(error)))
                continue
            if task.concluded is not None:  # nothing of the agent's code is run for it any more
                yield Verdict(row)
            elif task.ending is None:
                with _warnings(task.id) as warned:
                    found = replay_within(limit, threads, log, task, agent)
                runs = task.worker is not None and store.workers.is_alive(task.worker)
                yield _verdict(row, task, found, warned, runs=runs)


@contextmanager
def _warnings(task_id: str) -> Iterator[list[str]]:
    """Give the list of what is logged as a warning about a task within this block, each text once."""
    found = list[str]()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage().removeprefix(f"task {task_id}: ")
            if isinstance(record.args, tuple) and record.args[:1] == (task_id,) and text not in found:
                found.append(text)

    listener, logger = Listener(logging.WARNING), logging.getLogger("perdure")
    logger.addHandler(listener)
    try:
        yield found
    finally:
        logger.removeHandler(listener)


def replay_within(limit: float, threads: Threads, log: TaskLog, task: AgentTask, agent: AnyAgent) -> Replay:
    """Replay a task on a thread that is left behind where it takes longer than `limit` seconds."""
    runtime, thread = Runtime(), list[int]()

    def run() -> Replay:
        thread.append(threading.get_ident())
        return replay(log, task, agent, runtime=runtime)

    job = threads.run(run)
    if not job.done.wait(limit):
        place = _place(thread, agent)
        return Replay(task, Misfit(HANGS, f"it did not come to its next step within {limit:g} s{place}"))
    runtime.close()
    return job.result()


def _place(thread: list[int], agent: AnyAgent) -> str:
    """Say where in the agent's own file a thread is now."""
    frame = sys._current_frames().get(thread[0]) if thread else None
    while frame is not None and os.path.realpath(frame.f_code.co_filename) != agent.file:
        frame = frame.f_back
    return "" if frame is None else f": it is at {frame.f_code.co_filename}:{frame.f_lineno}"


def _verdict(row: IndexRow, task: AgentTask, found: Replay, warned: list[str], *, runs: bool) -> Verdict:
    doubts = [
        f"step {stop.path} {stop.name} is in doubt, and a person has to decide it: a worker that starts holds the task"
        for stop in found.stops
        if stop.holds and not runs
    ]
    notes = [*doubts, *warned]
    if found.parks:
        notes.append(f"a step has failed, and a person has to decide: {found.failure}")
    if found.misfit is None and task.held is not None:
        notes.append("it is held for its code, and fits now: it goes on when a worker starts")
    return Verdict(row, found.misfit, for_person=found.parks, in_doubt=bool(doubts), notes=tuple(notes))
