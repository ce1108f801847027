"""One activation of a task: what keeps its agent's code and its log together, and how that closes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NoReturn, Protocol, TypeVar

from actors.appender import Appender
from actors.colours import asyncio_task, has_time_limit
from actors.hints import Hints, Refusal, StopAsked
from actors.lines import HOPE, LINGER, Lines
from actors.parts import Decide
from actors.runtime import Runtime
from actors.submission import Submission
from domain.errors import OwnershipLost, StepError, Suspended
from domain.journal import Differs
from domain.state import DIFFERS, IN_DOUBT
from domain.task import AgentTask
from stores.task_index import Birth

logger = logging.getLogger("perdure")

T = TypeVar("T")

GRACE = 10.0
"""Seconds that a cancelled task has to clean up, unless told otherwise."""
LOOK_AGAIN = 0.1
"""Seconds between two looks: whether a worker that waits for bodies has given them up, whether a lease holds again."""
LAST_MARK = 0.5
"""Seconds that an activation which is given up waits for a mark that another thread is about to append."""


class RunningBody(Protocol):
    """A body, as its activation knows it; `undos` are those that it has registered so far."""

    undos: Sequence[tuple[str, Any]]

    def call_off(self) -> None:
        """Let it know that its task was called off."""
        ...


class Activation(Lines):
    """One incarnation of a task's actor. Safe in all threads: an agent's branches share it.

    It closes when it stops, for any reason: from then on every call in it raises the same exception again, and nothing
    runs and nothing is written, but for the outcomes of bodies that are running. It is over when its last body is: only
    then is its mark (held, passivated) appended. `probe` replays only: a line of execution ends where a body would run,
    and nothing is ever written.
    """

    def __init__(
        self,
        appender: Appender,
        number: int,
        runtime: Runtime,
        hints: Hints | None = None,
        *,
        probe: bool = False,
    ) -> None:
        super().__init__(runtime.clock)
        self.appender = appender
        self.task: AgentTask = appender.task
        self.store = appender.log.store
        self.number = number
        self.runtime = runtime
        self.closed: BaseException | None = None
        self.refused: Refusal | None = None
        self.hints = hints or Hints()
        self.patches: dict[str, bool] = {}
        self.declared: dict[str, StepError] = {}
        self.probe = probe
        self.cancel: Callable[[], None] = lambda: None
        self._bodies: dict[RunningBody, str] = {}
        self._proven = self._ending = False
        self._mark: Decide | None = None

    # ------------------------------------------------------------------ closing

    def check(self) -> None:
        """Raise what this activation was closed by, if it was."""
        if self.closed is not None:
            raise self.closed.with_traceback(None)

    def check_owned(self) -> None:
        """Raise what this activation was closed by, if that is the loss of its task to another worker."""
        if isinstance(self.closed, OwnershipLost):
            self.check()

    def close(self, reason: BaseException) -> NoReturn:
        """Close for good: from now on every call raises `reason`."""
        self.lose(reason)
        raise (self.closed or reason).with_traceback(None)

    def lose(self, reason: BaseException) -> None:
        """Close because the task is another's; nothing more of it is written here."""
        with self._gate:
            self.closed = self.closed or reason
            self._gate.notify_all()

    def end(self, mark: Decide, reason: BaseException, *, here: bool) -> NoReturn:
        """Close, let running bodies end and be recorded, then append the mark that says why.

        `here` False leaves that to a thread of ours: the caller is on an event loop, on which those bodies may run.
        """
        with self._gate:
            first = self.closed is None
            if first:
                self.closed, self._ending = reason, True
            self._gate.notify_all()
        if first and here:
            self._finish(mark)
        elif first:
            try:
                self.runtime.threads.start(lambda: self._finish(mark))
            except RuntimeError:  # the machine has no thread left: the actor's own does it, once its agent is unwound
                self._mark = mark
        assert self.closed is not None  # noqa: S101
        raise self.closed.with_traceback(None)

    def _finish(self, mark: Decide) -> None:
        try:
            self._await_bodies()
            self.flush()
            self.appender.append(mark)
        except BaseException as error:
            self.closed = self.unwritten(error)
        finally:
            with self._gate:
                self._ending = False
                self._gate.notify_all()

    def wait_over(self) -> None:
        """Wait until no body runs any more and what was to be appended is, or the worker has given them up."""
        self._await_bodies()
        if self._mark is not None:
            self._finish(self._mark)
        with self._gate:
            while self._ending and not self.hints.over.is_set():
                self._gate.wait(LOOK_AGAIN)
            self._gate.wait_for(lambda: not self._ending, LAST_MARK)  # on its way to the log, unless the store is away

    def settle(self) -> BaseException | None:
        """Wait until no body runs, and let none begin any more; give what had closed the activation, if anything had.

        Bodies that the worker has given up meanwhile close it too: it was cut off, and has not come to its end.
        """
        while True:
            self.wait_over()
            with self._gate:
                closed, runs, over = self.closed, bool(self._bodies), self.hints.over.is_set()
                undos = self.registered()
                if closed is not None or not runs:
                    self.closed = closed or Suspended(f"task {self.task.id}: this activation is over")
                    self._gate.notify_all()
                    return closed
            if over:
                with suppress(BaseException):  # it closes the activation, which is looked at
                    self.stop(here=True, cut_off=self.running, undos=undos)

    def _await_bodies(self) -> None:
        with self._gate:
            while self._bodies and not self.hints.over.is_set():
                self._gate.wait(LOOK_AGAIN)

    def unwritten(self, error: BaseException) -> BaseException:
        """Give what unwinds an agent of which something could not be written."""
        if not isinstance(error, Exception):
            return error
        stop = Suspended(f"task {self.task.id}: nothing more can be written: {error}")
        stop.__cause__ = error
        return stop

    # ------------------------------------------------------------------ appending

    def append(self, decide: Decide, inside: Callable[[], None] | None = None, births: Sequence[Birth] = ()) -> None:
        """Append for this activation; whatever keeps it from being written closes it.

        `inside` is called in the transaction; where it raises StopAsked, nothing is written, and that goes through.
        """

        def flush_and_append() -> None:
            self.flush()
            self.appender.append(decide, inside=inside, births=births)

        self.take(flush_and_append)

    def submit(
        self, decide: Decide, told: Callable[[], object], inside: Callable[[], None] | None, births: Sequence[Birth]
    ) -> Submission | None:
        """Begin such an append, and return; None where it would have to wait. Its answer is to be taken by `take`."""
        if self.runtime.output.holds(self.task.id, self.task.birth):
            return None
        appender, threads = self.appender, self.runtime.commits
        return self.take(lambda: appender.submit(decide, told, threads, inside=inside, births=births))

    def take(self, answer: Callable[[], T]) -> T:
        """Take the answer of an append; what has kept it from being written closes the activation."""
        try:
            return answer()
        except StopAsked:
            raise
        except BaseException as error:
            self.close(self.unwritten(error))

    def flush(self) -> None:
        """Store what was emitted before the next append: a follower sees what a step has said, then its end."""
        self.runtime.output.flush(self.task.id, self.task.birth)

    def unless_stopped(self) -> None:
        """Undo the transaction in which it is called if no body may start any more. Raises StopAsked."""
        if self.asked_to_stop():
            raise StopAsked

    def must_stop(self) -> bool:
        """Tell whether no further body may start."""
        return self.closed is not None or self.probe or self.asked_to_stop()

    def asked_to_stop(self) -> bool:
        """Tell whether the task is to stop at this step boundary: by its worker, for a suspect, with its group."""
        return self.hints.asked_to_stop() or self.task.to_restart

    def stop(
        self, *, here: bool, cut_off: Sequence[str] = (), undos: Sequence[tuple[str, str, object]] = ()
    ) -> NoReturn:
        """Stop between two steps, as asked, or where bodies were cut off; a probe ends this line of execution only.

        `undos` are those that the bodies had registered, each with its path: what is in doubt may have to be undone.
        """
        self.check()
        if self.probe:
            raise Suspended(f"task {self.task.id}: the code fits its log, as far as it goes")
        self.end(
            lambda task, now: task.passivate(self.number, now, list(cut_off), undos=undos),
            Suspended(f"task {self.task.id} was stopped {'in a step' if cut_off else 'between two steps'}"),
            here=here,
        )

    def hold(self, reason: str, path: str, details: dict[str, object], *, here: bool) -> NoReturn:
        """Park the task and unwind its agent; a probe only takes notice."""
        self.check()
        if self.probe:
            self.refused = Refusal(reason, path, str(details.get("message") or details.get("answer") or reason))
            self.close(Suspended(f"task {self.task.id} would be held: {reason}"))
        in_doubt = f"step {path} {self.task.steps[path].name} is in doubt" if reason == IN_DOUBT else ""
        logger.error("task %s is held: %s", self.task.id, in_doubt or details.get("message", reason))
        self.end(
            lambda task, now: task.hold(self.number, now, reason, path, details),
            Suspended(f"task {self.task.id} is held: {reason}"),
            here=here,
        )

    def hold_for_code(self, differs: Differs, *, here: bool) -> NoReturn:
        """Park the task until its code fits its log."""
        details = {"message": str(differs), "recorded": differs.recorded, "asked": differs.asked}
        self.hold(DIFFERS, differs.path, details | {"in_doubt": differs.in_doubt}, here=here)

    # ------------------------------------------------------------------ bodies

    @property
    def running(self) -> list[str]:
        """The paths of the bodies that run now."""
        with self._gate:
            return sorted(self._bodies.values())

    def registered(self) -> list[tuple[str, str, object]]:
        """List the undos that the bodies which run have registered so far, each with its path."""
        with self._gate:
            return [(path, *undo) for body, path in self._bodies.items() for undo in list(body.undos)]

    def enter_body(self, body: RunningBody, path: str) -> None:
        """Take note that a body is about to run. Raises what the activation was closed by meanwhile."""
        with self._gate:
            self.check()
            self._bodies[body] = path

    def leave_body(self, body: RunningBody) -> None:
        """Take note that a body has ended and is recorded, or was given up."""
        with self._gate:
            self._bodies.pop(body, None)
            self._gate.notify_all()

    def after_outcome(self) -> None:
        """Tell that this activation has got somewhere: its first new outcome ends a suspicion."""
        if not self._proven:
            self._proven = True
            self.hints.proven()

    # ------------------------------------------------------------------ waiting

    def runs_bodies(self) -> bool:
        """Tell whether a body runs; the gate is held."""
        return bool(self._bodies)

    def keeps_place(self, waited: float) -> bool:
        """Tell whether a task that has waited for others for so long is to keep its place; the gate is held.

        Who cleans up after a cancellation does: it has a grace of seconds, and that is over soon.
        """
        if self.task.delivered and self.task.concluded is None:
            return True
        return waited < HOPE and bool(self.task.waiting) and not self.hints.crowded()

    def under_limit(self) -> AbstractContextManager[None]:
        """Keep the task in its place while an `asyncio.timeout` runs down around who awaits: it would be lost."""
        if not has_time_limit(asyncio_task()):
            return nullcontext()
        text = "task %s: asyncio.timeout around a wait keeps its place, and begins anew in each process: use timeout="
        logger.warning(text, self.task.id)
        return self.in_place()

    def look(self) -> None:
        """Have the worker look whether there is nothing left but time to pass."""
        self.hints.look()

    def leave(self, rest: float | None, *, waits: bool) -> NoReturn:
        """Unwind the task: it is to stop, or (`waits`) all of it waits, for `rest` seconds where it has a time."""
        if waits:
            self.suspend(None if rest is None else self.clock.moment().wall + rest, here=True)
        self.stop(here=True)

    def wait_for_threads(self, error: BaseException, *, here: bool) -> NoReturn:
        """Unwind the task for a moment: the machine has no thread left, what was to run has not begun."""
        self.check()
        logger.warning("task %s waits for a moment: %s", self.task.id, error)
        due = self.clock.now() + LINGER
        self.end(
            lambda task, now: task.passivate(self.number, now, [], due=due),
            Suspended(f"task {self.task.id} waits"),
            here=here,
        )

    def suspend(self, due: float | None, *, here: bool) -> NoReturn:
        """Unwind the task until `due`, Unix seconds, or until what it waits for is in its log."""
        self.end(
            lambda task, now: task.suspend(self.number, now, due, self.clock.moment()),
            Suspended(f"task {self.task.id} waits"),
            here=here,
        )

    # ------------------------------------------------------------------ news

    def read_news(self) -> None:
        """Fold what others have appended, and let who waits or runs here know of it."""
        if self.closed is not None:
            return
        self.appender.catch_up()
        self.call_off()
        self.wake()

    def call_off(self) -> None:
        """Let bodies and waits know where the task was called off, whichever append has brought the word here."""
        if self.task.cancel is None or self.closed is not None:
            return
        with self._gate:
            bodies = list(self._bodies)
        for body in bodies:
            body.call_off()
        self.wake()

    def expire(self) -> None:
        """Call the task off where its deadline has passed."""
        deadline = self.task.deadline
        if self.closed is None and deadline is not None and self.task.cancel is None and self.clock.now() >= deadline:
            self.appender.append(lambda task, now: task.expire(now, GRACE))
            self.read_news()

    def rests(self) -> float | None:
        """Tell what `Lines.rests` does, up to the deadline of the task."""
        rest, deadline = super().rests(), self.task.deadline
        if rest is None or deadline is None or self.task.cancel is not None:
            return rest
        left = deadline - self.clock.now()
        return min(rest, left) if left > 0 else None

    def cut_short(self) -> bool:
        """End the task where the grace after its cancellation has passed; tells whether that is so.

        Bodies that run on are in doubt: nobody waits for them any more.
        """
        task = self.task
        if task.cancel is None or task.concluded is not None or self.clock.now() < task.cancel_until:
            return False
        with self._gate:
            if self.closed is not None:
                return False
            self.closed = Suspended(f"task {task.id} was cancelled, and its grace is over")
            cut_off = self.registered()
            self._bodies.clear()
            self._gate.notify_all()
        logger.warning("task %s was cancelled, and its clean-up has not ended within %g s", task.id, task.cancel.grace)
        self.appender.append(lambda task, now: task.end_cancelled(self.number, now, cut=True, undos=cut_off))
        self.cancel()
        return True
