"""Runs one task in the foreground, and tells of it line by line as its log grows.

What is told comes from the log alone, so it is the same whether this process runs the task or another one does.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from actors.definitions import AnyAgent
from actors.leaving import Signals
from actors.llm_show import said
from actors.ref import TaskRef
from actors.saying import INDENT, say
from actors.showing import counted
from actors.system import GRACE, AgentSystem
from actors.task_log import TaskLog
from actors.view import clock_time, headline, pause_id, wait_name, wait_text
from actors.wording import (
    ago,
    decision,
    held_text,
    how_it_ended,
    how_to_answer,
    how_to_signal,
    named,
    outcome_of,
    plain,
    received_text,
    shortened,
    span,
    traceback_text,
    until,
)
from domain.errors import PerdureError
from domain.events import (
    Activated,
    ApprovalRequested,
    CancelDelivered,
    Cancelled,
    CancelRequested,
    ChildSpawned,
    Completed,
    Concluded,
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
    WaitBegan,
    WaitEnded,
)
from domain.faults import Fault
from domain.fold import fold
from domain.record import STEP, StepRecord
from domain.state import CANCEL, FOR_CODE, STRIKES, Status
from domain.task import AgentTask
from domain.values import Json
from domain.waits import SIGNAL, Wait
from stores import Store, StoreUnavailableError

GOING_ON: tuple[Status, ...] = ("queued", "running", "waiting")
"""The statuses of a task that goes on by itself."""
OPEN: tuple[Status, ...] = (*GOING_ON, "held")
"""The statuses of a task that has not ended."""
POLL, LOOK = 0.05, 0.25
"""Seconds between two looks at the log, and at children when it has come to its end."""
SECOND_LOOK = 2.0
"""Seconds that a worker has at most to try again a task that is held for its code."""
REPLAYED_LINES = 20
"""Replayed steps that have a line each; of more of them the first share one line."""

_LONGEST = 300  # characters that are told of an outcome
Say = Callable[[str, str], None]
"""Prints a line: its first word, and the rest."""


class Follower:
    """Folds a task's log as it grows, and says what is new in it.

    `task` is the fold so far. What the log had when the task was met is told when an activation replays it, or at once
    where another living process is at work on it. `options` are what a command that is named needs besides.
    """

    def __init__(self, ref: TaskRef[Any], say: Say, options: str = "") -> None:
        self._options = options
        self._ref = ref
        self._say = say
        self.task = _folded(None, ref.events())
        self._met = self.task.version
        self._ours = ""
        self._paused = self._has_told_waits = False

    @property
    def is_settled(self) -> bool:
        """Whether the task has ended or is held."""
        return self.task.status not in GOING_ON

    @property
    def is_held_for_code(self) -> bool:
        """Whether a worker that starts looks at the task again, though it is held."""
        return self.task.held is not None and self.task.held.reason in FOR_CODE

    @property
    def has_news(self) -> bool:
        """Whether anything was appended since the task was met."""
        return self.task.version > self._met

    def meet(self, ours: str, others: set[str]) -> None:
        """Know our own worker, and tell of a task that waits, or that one of these other living ones is running."""
        self._ours = ours
        if self.task.worker in others:
            self._tell_other(self.task.worker)
            for record in self._steps():
                if record.outcome is None:
                    self._tell_record(record, "running")
                else:
                    self._tell_done(record, "finished")
        elif self.task.status == "waiting":
            if not self.task.waiting:
                due = "" if self.task.due is None else f" {until(self.task.due, time.time())}"
                self._say("waiting", plain(f"{headline(self.task)}{due}"))
            self._tell_waits()
            self._has_told_waits = True

    def _tell_waits(self) -> None:
        """Say again what is asked of others, and what is waited for."""
        for path in self.task.asked_for:
            self._ask(path, self.task.pauses[path].label)
        for path, wait in self.task.waiting.items():
            self._tell_wait(wait, path, time.time())

    def _ask(self, path: str, question: str) -> None:
        pause = pause_id(self.task.id, self.task.birth, path)
        self._say("asks", plain(f'{path}  "{question}"  {how_to_answer(pause, self._options)}'))

    def _tell_wait(self, wait: Wait, path: str, now: float) -> None:
        dues = [due.at for due in wait.first_due()]
        due = f" {until(min(dues), now)}" if dues else ""
        signals = [source.name for source in wait.sources if source.kind == SIGNAL]
        self._say("waiting", plain(f"{path}  for {wait_text(self.task, wait)}{due}"))
        for name in signals:
            self._say("", " " * INDENT + plain(how_to_signal(self.task.id, name, self._options)))

    def look(self) -> None:
        """Read on, and tell. Raises UnreadableTaskError, StoreUnavailableError."""
        events = self._ref.events(after=self.task.version)
        for number, event in enumerate(events):
            self.task = _folded(self.task, [event])
            following = events[number + 1] if number + 1 < len(events) else None
            self._tell(event, following)

    def _tell(self, event: TaskEvent, following: TaskEvent | None) -> None:
        if isinstance(event, Activated):
            self._tell_start(event, following)
        elif isinstance(event, StepStarted):
            self._say("running", named(event.path, event.name, event.label, event.attempt))
        elif isinstance(event, StepSucceeded | StepFailed):
            if event.kind == STEP and not self._tell_talk(event.path):
                self._tell_outcome(event)
        elif isinstance(event, Restarted):
            self._tell_crash(event)
        elif isinstance(event, RestartAsked):
            self._say("restarts", plain(f"at its next step, after a crash of {event.by}"))
        elif isinstance(event, Passivated):
            self._paused = event.waits or event.due is not None
            for path in event.cut_off:
                self._tell_record(self.task.steps[path], "cut off")
        elif isinstance(event, Released):
            self._tell_decision(event)
        else:
            self._tell_news(event)

    def _tell_news(self, event: TaskEvent) -> None:
        """Tell of waits, of what came from outside, and of what follows from that."""
        if isinstance(event, WaitBegan):
            self._tell_wait(self.task.waiting[event.path], event.path, event.timestamp)
        elif isinstance(event, WaitEnded):
            how = "" if event.signal else how_it_ended(event)
            self._say("finished", f"{named(event.path, wait_name(event))}  {how}".rstrip())
        elif isinstance(event, SignalReceived):
            self._say("received", received_text(event))
        elif isinstance(event, ApprovalRequested):
            self._ask(event.path, event.label)
        elif isinstance(event, ChildSpawned):
            self._say("spawned", plain(f"{event.path}  {event.child}"))
        elif isinstance(event, CancelRequested):
            self._say("cancel", plain(f"by {event.by}" + (f": {event.reason}" if event.reason else "")))
        elif isinstance(event, CancelDelivered):
            self._say("cancelled", f"{named(event.path, wait_name(event))}  what follows is clean-up")
        elif isinstance(event, Concluded):
            self._say("", plain(f"the agent is done ({event.status}); now what it owes"))

    def _tell_start(self, event: Activated, following: TaskEvent | None) -> None:
        paused, self._paused = self._paused, False
        if event.worker != self._ours:
            self._tell_other(event.worker)
        if paused or (isinstance(following, Held) and following.reason == STRIKES):  # told already; not called
            return
        done = [record for record in self._steps() if record.outcome is not None]
        first = len(done) - REPLAYED_LINES if len(done) > REPLAYED_LINES + 1 else 0
        if first:
            self._say("replayed", f"{done[0].path} … {done[first - 1].path}  ({first:,} steps)")
        for record in done[first:]:
            self._tell_done(record, "replayed")
        for record in self.task.doubts:
            started = f"began {clock_time(record.started)}, its end is not in the log"
            self._say("in doubt", f"{named(record.path, record.name, record.label, record.attempt)}  {started}")
        if not self._has_told_waits:
            self._tell_waits()
        self._has_told_waits = False

    def _steps(self) -> list[StepRecord]:
        return [record for record in self.task.steps.values() if record.kind == STEP]

    def _tell_record(self, record: StepRecord, word: str) -> None:
        self._say(word, named(record.path, record.name, record.label, record.attempt))

    def _tell_done(self, record: StepRecord, finished: str) -> None:
        """Tell of a step that never runs again: `finished` is the word for one that has a value of its own."""
        word, more = outcome_of(record)
        text = named(record.path, record.name, record.label, record.attempt)
        self._say(word if more else finished, f"{text}  {shortened(more, _LONGEST, tail=40)}".rstrip())

    def _tell_decision(self, event: Released) -> None:
        record = self.task.steps.get(event.path)
        if record is None:
            self._say("released", plain(f"by {event.by}"))
        else:
            self._say(
                "decided",
                f"{named(record.path, record.name, record.label)}  {shortened(decision(event), _LONGEST, tail=40)}",
            )

    def _tell_talk(self, path: str) -> bool:
        """Tell what a step has brought to a conversation with a model, if that is what it did."""
        record = self.task.steps[path]
        word, text = said(self.task, record) if record.outcome is not None else ("", "")
        if word:
            self._say(word, text)
        return bool(word)

    def _tell_other(self, worker: str | None) -> None:
        self._say("followed", f"another process runs this task (worker {worker})")

    def _tell_outcome(self, event: StepSucceeded | StepFailed) -> None:
        record = self.task.steps[event.path]
        took = event.timestamp - record.started
        text = named(event.path, event.name, record.label, event.attempt)
        if isinstance(event, StepFailed):
            due, fault = event.retry_at, plain(str(Fault.from_data(event.error)))
            again = "" if due is None else f"; attempt {event.attempt + 1} {until(due, event.timestamp)}"
            self._say("failed", f"{text}  {fault}{again}")
        elif event.source:
            self._say("finished", f"{text}  told by {event.source}")
        else:
            self._say("finished", f"{text}  {span(took)}" if took > 0 else text)

    def _tell_crash(self, event: Restarted) -> None:
        pause = max(0.0, event.due - event.timestamp)
        fault = Fault.from_data(event.error)
        self._say("crashed", f"{plain(str(fault))}; restart {event.strikes} in {span(pause)}")
        self._say("", traceback_text(fault))


# ------------------------------------------------------------------ one task in the foreground


def run_task(
    agent: AnyAgent, arguments: list[Any], task_id: str, store: Store, signals: Signals, options: str = ""
) -> AgentTask:
    """Spawn the task, run it here or follow the process that does, until it has ended, is held, or a signal came.

    Says on standard error what happens, and returns the task as its log has it then. Raises what `AgentSystem.spawn`
    raises, and UnreadableTaskError.
    """
    with AgentSystem(store, run=False) as client:
        ref: TaskRef[Any] = client.spawn(cast("Callable[..., Any]", agent), *arguments, id=task_id)
        count = len(store.recorder.select_entries(status=OPEN))
        say("", f"perdure: {store.url} · {counted(count, 'task')} open")
        follower = Follower(ref, say, options)
        if follower.is_settled and not follower.is_held_for_code and not called_off_children(store, follower.task):
            if follower.task.ending is not None:
                age = ago(follower.task.updated, time.time())
                say("recorded", f"{plain(task_id)} {follower.task.status} {age} ago; nothing runs again")
            return follower.task
        with signals.in_good_order():
            _work(follower, store, signals)
        follower.look()
    return follower.task


def conclude(task: AgentTask, signals: Signals, write: Callable[[Json], None], options: str = "") -> int:
    """Say how the task stands, write its result where it has one, and give the exit code.

    `options` are what a command that is named needs besides, such as the store.
    """
    if signals.received is not None:
        if task.status in GOING_ON:
            say("stopped", "the same command again goes on where it was")
        else:
            say(task.status, "the same command again tells how")
        return 128 + signals.received
    if isinstance(task.ending, Completed):
        write(task.ending.value)
        return 0
    if task.ending is not None:
        if isinstance(task.ending, Cancelled):
            say("cancelled", plain(f"{task.id}  {headline(task)}"))
        else:
            fault = Fault.from_data(task.ending.error)
            say("failed", f"{plain(task.id)}  {plain(str(fault))}")
            say("", traceback_text(fault))
        say("", "  it has ended for good: another --id starts a new task")
        return 1
    say("", held_text(task, options, sys.stderr))
    return 3


def _work(follower: Follower, store: Store, signals: Signals) -> None:
    others = set(store.workers.live())
    task_id = follower.task.id
    with AgentSystem(store, only=task_id) as system, system.log.watch(task_id, threading.Event()) as hint:
        follower.meet(system._tree.worker.id if system._tree is not None else "", others)
        _follow(follower, hint, signals, _Stay(store, follower))
        if signals.received is not None and follower.task.status == "running":
            say("stopping", f"a running step has {GRACE:g} s to end; a second signal leaves at once, as a crash does")


def called_off_children(store: Store, task: AgentTask) -> list[str]:
    """List the descendants of a task that has ended which were called off with it, and have not ended."""
    log, found, parents = TaskLog(store), list[str](), [task] if task.ending is not None else []
    for parent in parents:
        rows = store.recorder.select_rows([child for child, policy in parent.children.items() if policy == CANCEL])
        found += [row.id for row in rows.values() if row.status in GOING_ON]
        with suppress(PerdureError):
            parents += [log.load(child) for child in rows]
    return found


class _Stay:
    """Tells whether a command stays when its task has ended: until children that were called off have cleaned up."""

    def __init__(self, store: Store, follower: Follower) -> None:
        self._store = store
        self._follower = follower
        self._said = False
        self._next = 0.0

    def __call__(self) -> bool:
        if time.monotonic() < self._next:
            return True
        left = called_off_children(self._store, self._follower.task)
        self._next = time.monotonic() + LOOK if left else 0.0
        if left and not self._said:
            self._said = True
            more = "…" if left[3:] else ""
            say("waiting", plain(f"for children that were called off: {', '.join(left[:3])}{more}"))
        return bool(left)


def _follow(follower: Follower, hint: threading.Event, signals: Signals, stays: Callable[[], bool]) -> None:
    """Look until nothing is left to wait for; a hint comes when the task's actor is gone, even one that only looked."""
    second_look, until, away = follower.is_held_for_code, time.monotonic() + SECOND_LOOK, False
    while signals.received is None:
        hinted = hint.wait(POLL)
        hint.clear()
        try:
            follower.look()
        except StoreUnavailableError as error:
            if not away:
                say("waiting", f"the store is away: {error}")
            away = True
            continue
        away = False
        second_look = second_look and not follower.has_news and not hinted and time.monotonic() < until
        if follower.is_settled and not second_look and not stays():
            return


def _folded(task: AgentTask | None, events: list[TaskEvent]) -> AgentTask:
    task = fold(task, events)
    if task is None:
        raise RuntimeError("a log without an event")
    return task
