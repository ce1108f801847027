"""What can be decided about a task from outside, and brought to it: from any process, durable when it returns."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from actors.activation import GRACE
from actors.approvals import Decision, decision_of
from actors.context import refuse_inside_agent, refuse_on_loop
from actors.deleting import delete_task
from actors.info import checked
from actors.mapper import is_stream
from actors.outsiders import Outsiders
from actors.pausing import checked_signal
from actors.runtime import Runtime
from actors.task_log import TaskLog
from actors.view import pause_id as id_of
from domain.errors import AlreadyDecidedError, PerdureError, UnknownApprovalError, UnknownTaskError
from domain.events import TaskEvent
from domain.retry import MOST_SECONDS
from domain.state import ENDED, UNREADABLE
from domain.task import AgentTask
from domain.values import decode
from stores import IndexRow

T = TypeVar("T")

NOT_GIVEN: Any = object()
TEXT_LIMIT = 4_000
"""Characters of a reason, a note, a name."""
ID_LIMIT = 200
"""Characters that the id of a signal may have."""


class Reach(Protocol):
    """The system through which a task is reached."""

    @property
    def log(self) -> TaskLog:
        """The log. Raises SystemClosedError, RuntimeError before the system is open."""
        ...

    @property
    def runtime(self) -> Runtime:
        """Threads for what an event loop must not be blocked by."""
        ...

    @property
    def outsiders(self) -> Outsiders:
        """What appends to tasks from outside. Raises as `log` does."""
        ...

    def wake(self, task_id: str = "") -> None:
        """Look for work at once, and at that task, where it runs here."""
        ...


@dataclass(frozen=True)
class Cancellation:
    """What came of a cancel: `accepted` tells whether this one has called the task off; `status` is that of the task.

    `doubts` are the paths of steps of which nobody knows whether they happened, where it has ended by this; `cut` tells
    that no clean-up of the agent's own was, or will be, done. `undos` are those still to be run, or, where it has
    ended, those that never will be; `ends` is how it ends, where that was decided before. As a text it is said in a
    line.
    """

    task_id: str
    accepted: bool
    status: str
    doubts: tuple[str, ...] = ()
    cut: bool = False
    undos: tuple[str, ...] = ()
    ends: str = ""

    def __str__(self) -> str:
        ended = self.status in ENDED
        if not self.accepted:
            after = f"{self.ends}, and does what it owes" if self.ends else "cancelled, and cleaning up"
            return f"task {self.task_id}: already {self.status if ended else after}"
        text = f"task {self.task_id}: " + (self.status if ended else "cancel requested")
        if self.undos:
            text += f"; {'not undone' if ended else 'to be undone'} by {', '.join(self.undos)}"
        if self.cut:
            text += "; the agent's own clean-up is not run"
        return text + (f"; in doubt: step {', '.join(self.doubts)}" if self.doubts else "")


class Reached:
    """A task that is reached from outside."""

    id: str
    _system: Reach

    # ------------------------------------------------------------------ signals

    def signal(self, name: str, value: Any = None, *, signal_id: str | None = None) -> None:
        """Bring a value to the task, for `receive(name)` in its agent. When this returns, it is in the task's log.

        It waits there for as long as it takes, in the order of the log for each name; `signal_id`: 1 to 200 characters
        by which a repeat is known, and counts once.

        Raises TaskEndedError for a task that has ended, UnknownTaskError, SignalConflictError where the id was used for
        another signal, UnstorableValueError, ValueError for a name that is none, InsideTaskError in an agent between
        its steps, the store's errors.
        """
        refuse_inside_agent("signal()", "call it in a step")
        refuse_on_loop("signal()", "await signal_async(…)")
        self._signal(name, value, signal_id, _who())

    def _signal(self, name: str, value: Any, signal_id: str | None, by: str) -> None:
        given: object = signal_id
        if given is not None and not (isinstance(given, str) and 0 < len(given) <= ID_LIMIT):
            raise ValueError(f"the id of a signal has 1 to {ID_LIMIT} characters, not {signal_id!r:.250}")
        named, encoded = checked_signal(name), checked(value, self._system.runtime.value_limit)
        key = secrets.token_hex(8) if signal_id is None else f"id {signal_id}"
        self._append(lambda task, now: task.receive(now, key, named, encoded, by))

    async def signal_async(self, name: str, value: Any = None, *, signal_id: str | None = None) -> None:
        """Do what `signal` does, without blocking the event loop."""
        refuse_inside_agent("signal_async()", "call it in a step")
        await self._call(partial(self.signal, name, value, signal_id=signal_id))

    # ------------------------------------------------------------------ approvals

    def answer(
        self, pause_id: str, *, approved: bool, value: Any = None, by: str | None = None, note: str = ""
    ) -> Decision:
        """Answer an approval by its id, and give the decision that stands: the first answer counts.

        The same answer again changes nothing, and gives the first. Raises AlreadyDecidedError where it was answered
        otherwise, also after the task has ended; UnknownApprovalError; TaskEndedError for one that nobody has answered
        and nobody asks for any more; and what `signal` does.
        """
        refuse_inside_agent("answer()", "call it in a step")
        refuse_on_loop("answer()", "await answer_async(…)")
        if not isinstance(approved, bool):
            raise TypeError(f"approved is True or False, not {approved!r:.40}")
        _checked_text("a note", note)
        encoded, who = checked(value, self._system.runtime.value_limit), _who(by)
        facts = {"approved": approved, "value": encoded, "note": note}
        path = ""

        def decide(task: AgentTask, now: float) -> list[TaskEvent]:
            nonlocal path
            path = _path_of(task, pause_id)
            return task.decide(now, path, facts, who)

        task = self._append(decide)
        letter = task.answer(path)
        assert letter is not None  # noqa: S101  it was answered by now
        stands = decision_of(letter, decode(letter.value["value"]))
        if stands.approved is not approved:
            word = "yes" if stands.approved else "no"
            message = f"approval {pause_id}: already decided: {word}, by {stands.by}; nothing was changed"
            raise AlreadyDecidedError(message, task_id=self.id, approved=stands.approved, by=stands.by)
        return stands

    async def answer_async(
        self, pause_id: str, *, approved: bool, value: Any = None, by: str | None = None, note: str = ""
    ) -> Decision:
        """Do what `answer` does, without blocking the event loop."""
        refuse_inside_agent("answer_async()", "call it in a step")
        return await self._call(partial(self.answer, pause_id, approved=approved, value=value, by=by, note=note))

    # ------------------------------------------------------------------ calling off

    def cancel(self, reason: str = "", *, by: str | None = None, grace: float = GRACE) -> Cancellation:
        """Call the task off, and tell what came of that; durable when it returns, and done once.

        Its agent gets TaskCancelled: where it waits at once, in a body that heartbeats or is async soon, otherwise at
        its next step. From then on it has `grace` seconds to clean up, by steps too, in each process that it is run in;
        what has not ended then is given up, and in doubt. Undos that are owed run after that. A task that has not begun
        ends here and now; so does one that is held, whose agent cannot go on to clean up: what it returns says what was
        left. One that has ended is not changed.

        Raises UnknownTaskError, UnreadableTaskError, ValueError, InsideTaskError in an agent between its steps, the
        store's errors.
        """
        refuse_inside_agent("cancel()", "call it in a step; a child has ChildRef.cancel()")
        refuse_on_loop("cancel()", "await cancel_async(…)")
        if type(grace) not in (int, float) or not 0 <= grace <= MOST_SECONDS:
            raise ValueError(f"grace is a number of seconds from 0 to {MOST_SECONDS:g}, not {grace!r:.40}")
        why, who, accepted = _checked_text("a reason", reason), _who(by), False

        def decide(task: AgentTask, now: float) -> list[TaskEvent]:
            nonlocal accepted
            events = task.request_cancel(now, why, who, float(grace))
            accepted = bool(events)
            return events

        task = self._append(decide)
        done = task.concluded if task.ending is None else task.ending
        cut, doubts = getattr(done, "cut", False), tuple(getattr(done, "doubts", ()))
        owes = task.concluded is not None and task.concluded.status != "completed"
        undos = tuple(undo.name for _, undo in task.owed_undos) if owes else ()
        ends = task.concluded.status if task.concluded is not None else ""
        return Cancellation(self.id, accepted, task.status, doubts, cut, undos, ends)

    async def cancel_async(self, reason: str = "", *, by: str | None = None, grace: float = GRACE) -> Cancellation:
        """Do what `cancel` does, without blocking the event loop."""
        refuse_inside_agent("cancel_async()", "call it in a step")
        return await self._call(partial(self.cancel, reason, by=by, grace=grace))

    # ------------------------------------------------------------------ holds

    def release(self, by: str | None = None, *, grant: Any = None) -> None:
        """Let a held task go on; one whose log could not be read is read again first.

        `grant`: what a task that is held as spent may have besides, in the terms of who reserves (see StepOptions); for
        a budget of `actors.llm` a dict such as `{"cost": Decimal("1.00")}`.

        Raises ResolveError where it is not held, or not as spent and there is a grant, or where a step has to be
        decided; UnreadableTaskError; TaskEndedError; UnstorableValueError.
        """
        refuse_on_loop("release()", "await release_async()")
        row, who = self._row(), _who(by)
        given = None if grant is None else checked(grant, self._system.runtime.value_limit)
        if grant is None and row.hold == UNREADABLE and self._log.mended(row, by_a_person=True):
            self._system.wake()
            return
        self._append(lambda task, now: task.release(now, who, given))

    async def release_async(self, by: str | None = None, *, grant: Any = None) -> None:
        """Do what `release` does, without blocking the event loop."""
        await self._call(partial(self.release, by, grant=grant))

    def resolve(
        self, path: str, *, value: Any = NOT_GIVEN, rerun: bool = False, fail: bool = False, by: str | None = None
    ) -> None:
        """Decide what became of the step in question: it happened, with `value`; or `rerun` it; or give it up (`fail`).

        A value is converted by the step's return annotation when it is handed to the agent. Raises ResolveError where
        the task is not held because of this step, TaskEndedError, UnstorableValueError.
        """
        refuse_on_loop("resolve()", "await resolve_async()")
        if (value is not NOT_GIVEN) + rerun + fail != 1:
            raise ValueError("say one of three: value=…, rerun=True or fail=True")
        decision = "rerun" if rerun else "fail" if fail else "value"
        limit, who = self._system.runtime.value_limit, _who(by)
        encoded = checked(value, limit) if decision == "value" else None
        self._append(lambda task, now: task.resolve(now, path, decision, encoded, who))

    async def resolve_async(
        self, path: str, *, value: Any = NOT_GIVEN, rerun: bool = False, fail: bool = False, by: str | None = None
    ) -> None:
        """Do what `resolve` does, without blocking the event loop."""
        await self._call(partial(self.resolve, path, value=value, rerun=rerun, fail=fail, by=by))

    # ------------------------------------------------------------------ deleting

    def delete(self, *, force: bool = False) -> None:
        """Delete the task, which has to have ended: its log, its row, what it has emitted. Its id is free then.

        A parent is told of its end first. Who waits for the task gets UnknownTaskError, within half a second; a step's
        late result goes nowhere. `force`: also a task that is held because its log cannot be read.

        Not guaranteed: that its text stands in the database's file nowhere any more; see `AgentSystem.vacuum`. What its
        parent was told, and what entities were asked by it, stays in their logs.

        Raises UnknownTaskError, TaskNotEndedError, which says how to end it, UnreadableTaskError where its parent
        cannot be told, InsideTaskError in an agent between its steps, the store's errors.
        """
        refuse_inside_agent("delete()", "call it in a step")
        refuse_on_loop("delete()", "await delete_async(…)")
        delete_task(self._log, self._system.outsiders, self.id, force=force)
        self._system.wake()

    async def delete_async(self, *, force: bool = False) -> None:
        """Do what `delete` does, without blocking the event loop."""
        refuse_inside_agent("delete_async()", "call it in a step")
        await self._call(partial(self.delete, force=force))

    # ------------------------------------------------------------------ parts

    @property
    def _log(self) -> TaskLog:
        return self._system.log

    async def _call(self, fn: Callable[..., T], *args: Any) -> T:
        return await self._system.runtime.commits.call(fn, *args)

    def _append(self, decide: Callable[[AgentTask, float], list[TaskEvent]]) -> AgentTask:
        """Append for an outsider; give the task as it is then."""
        task = self._system.outsiders.append(self.id, decide)
        self._system.wake(self.id)
        return task

    def _row(self) -> IndexRow:
        row = self._log.recorder.select_entry(self.id)
        if row is None or is_stream(self.id):
            raise UnknownTaskError(f"there is no task {self.id!r} in {self._log.store.url}", task_id=self.id)
        return row


def _path_of(task: AgentTask, asked: str) -> str:
    """Give the path at which an approval was asked for. Raises UnknownApprovalError."""
    for path in task.pauses:
        if id_of(task.id, task.birth, path) == asked:
            return path
    raise UnknownApprovalError(f"task {task.id} has not asked for an approval {asked!r}", task_id=task.id)


def _checked_text(what: str, text: object) -> str:
    """Check what somebody says. Raises TypeError, ValueError for what is long beyond all use."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a text, not {text!r:.80}")
    if len(text) > TEXT_LIMIT:
        raise ValueError(f"{what} has at most {TEXT_LIMIT:,} characters, not {len(text):,}")
    return text


def _who(by: object = None) -> str:
    """Check the name of who decides; by default it is the person at this machine."""
    if by:
        return _checked_text("the name of who decides", by)
    try:
        return getpass.getuser()
    except (OSError, KeyError, PerdureError):
        return "someone"
