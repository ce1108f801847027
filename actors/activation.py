"""One activation of a task: what keeps its agent's code and its log together, and how that closes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import NoReturn

from actors.appender import Appender, Decide
from actors.runtime import Runtime
from domain.errors import OwnershipLost, StepError, Suspended
from domain.journal import Differs
from domain.task import DIFFERS, IN_DOUBT, AgentTask
from stores import StoreError

logger = logging.getLogger("perdure")

LINGER = 1.0
"""Seconds that a task which only waits keeps its place; what waits for longer is unwound, and costs one row."""
LOOK_AGAIN = 0.1
"""Seconds between two looks: whether a worker that waits for bodies has given them up, whether a lease holds again."""


class StopAsked(Exception):  # noqa: N818  control flow, caught where it is raised for
    """Tells that no body may begin any more: the activation was asked to stop. Raised in a transaction, it undoes it.

    Its arguments are the paths of steps whose start is in the log all the same.
    """


@dataclass
class Hints:
    """What a running activation and its surroundings tell each other, past the mailbox that its agent keeps busy.

    `stop`, the worker's, and `way`, the task's own, are looked at before each body; after `over` nobody waits for
    bodies any more. `proven` is called at the first outcome, `lend` while a body waits for a task. While not
    `leased()`, no body begins.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    way: threading.Event = field(default_factory=threading.Event)
    proven: Callable[[], None] = lambda: None
    lend: Callable[[], AbstractContextManager[None]] = nullcontext
    leased: Callable[[], bool] = lambda: True

    def asked_to_stop(self) -> bool:
        """Tell whether no further body may start: the worker stops, or the task is to make way for another."""
        return self.stop.is_set() or self.way.is_set()


@dataclass(frozen=True)
class Refusal:
    """Why the task would be held, as a probe has found it."""

    reason: str
    path: str
    message: str


class Activation:
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
        self._gate = threading.Condition()
        self._bodies: dict[object, str] = {}
        self._lines, self._by_hand = 1, 0
        self._dues: dict[object, float | None] = {}
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
        with self._gate:
            if self.closed is None:
                self.closed = reason
            self._gate.notify_all()
        raise self.closed.with_traceback(None)

    def wake(self) -> None:
        """Make who waits here look again: the system stops, or the task is lost."""
        with self._gate:
            self._gate.notify_all()

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
            self.closed = self._unwritten(error)
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

    def settle(self) -> BaseException | None:
        """Wait until no body runs, and let none begin any more; give what had closed the activation, if anything had.

        Bodies that the worker has given up meanwhile close it too: it was cut off, and has not come to its end.
        """
        while True:
            self.wait_over()
            with self._gate:
                closed, runs, over = self.closed, bool(self._bodies), self.hints.over.is_set()
                if closed is not None or not runs:
                    self.closed = closed or Suspended(f"task {self.task.id}: this activation is over")
                    self._gate.notify_all()
                    return closed
            if over:
                with suppress(BaseException):  # it closes the activation, which is looked at
                    self.stop(here=True, cut_off=self.running)

    def _await_bodies(self) -> None:
        with self._gate:
            while self._bodies and not self.hints.over.is_set():
                self._gate.wait(LOOK_AGAIN)

    def _unwritten(self, error: BaseException) -> BaseException:
        """Give what unwinds an agent of which something could not be written."""
        if not isinstance(error, Exception):
            return error
        stop = Suspended(f"task {self.task.id}: nothing more can be written: {error}")
        stop.__cause__ = error
        return stop

    # ------------------------------------------------------------------ appending

    def append(self, decide: Decide, inside: Callable[[], None] | None = None) -> None:
        """Append for this activation; whatever keeps it from being written closes it.

        `inside` is called in the transaction; where it raises StopAsked, nothing is written, and that goes through.
        """
        try:
            self.flush()
            self.appender.append(decide, inside=inside)
        except StopAsked:
            raise
        except BaseException as error:
            self.close(self._unwritten(error))

    def flush(self) -> None:
        """Store what was emitted before the next append: a follower sees what a step has said, then its end."""
        self.runtime.output.flush(self.task.id, self.task.birth)

    def last_heartbeat(self, path: str) -> str | None:
        """Give the detail of the last heartbeat of a step; what keeps it from being read closes the activation."""
        try:
            found = self.store.recorder.select_heartbeat(self.task.id, self.task.birth, path)
        except BaseException as error:
            self.close(self._unwritten(error))
        return None if found is None else found[1]

    def forget_heartbeat(self, path: str) -> None:
        """Forget the heartbeats of a step that has ended; where the store cannot, nobody asks for them again."""
        record = self.task.steps[path]
        if record.outcome is None:
            return
        try:
            self.store.recorder.delete_heartbeats(self.task.id, path)
        except StoreError as error:
            logger.debug("the heartbeats of step %s of task %s are left behind: %s", path, self.task.id, error)
        except BaseException as error:
            self.close(error)

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

    def stop(self, *, here: bool, cut_off: Sequence[str] = ()) -> NoReturn:
        """Stop between two steps, as asked, or where bodies were cut off; a probe ends this line of execution only."""
        self.check()
        if self.probe:
            raise Suspended(f"task {self.task.id}: the code fits its log, as far as it goes")
        self.end(
            lambda task, now: task.passivate(self.number, now, list(cut_off)),
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

    def enter_body(self, body: object, path: str) -> None:
        """Take note that a body is about to run. Raises what the activation was closed by meanwhile."""
        with self._gate:
            self.check()
            self._bodies[body] = path

    def leave_body(self, body: object) -> None:
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

    def add_line(self, *, by_hand: bool = False) -> None:
        """Count one more line of execution: a branch on a thread, or in an asyncio task, of its own."""
        with self._gate:
            self._lines += 1
            self._by_hand += by_hand

    def drop_line(self, *, by_hand: bool = False) -> None:
        """Count one line of execution less; if all that are left wait, the task is unwound."""
        with self._gate:
            self._lines -= 1
            self._by_hand -= by_hand
            self._gate.notify_all()

    def wait_until(self, due: float, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait in place until `due`, Unix seconds, or `unless()`, for which `wake` has to be called.

        Where all of the task waits for longer than a moment, it is unwound. Raises what closed the activation, also
        while it waits.
        """
        me = object()
        with self._gate:
            self._dues[me] = due
            self._gate.notify_all()
        try:
            while not self._waited(due, unless):
                pass
        finally:
            with self._gate:
                del self._dues[me]

    def join(self, over: Callable[[], bool]) -> None:
        """Wait until `over()`, which other lines of execution bring about by ending, unwound or not."""
        with self.joining(), self._gate:
            self._gate.wait_for(over)

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Count the line of execution that calls among those that wait."""
        me = object()
        with self._gate:
            self._dues[me] = None
            self._gate.notify_all()
        try:
            yield
        finally:
            with self._gate:
                del self._dues[me]

    def _waited(self, due: float, unless: Callable[[], bool]) -> bool:
        """Wait once; tells whether the wait is over."""
        clock = self.runtime.clock
        with self._gate:
            self.check()
            if unless() or clock.now() >= due:
                return True
            stop, rest = self.hints.asked_to_stop(), self._all_wait_until()
            if not stop and (rest is None or rest - clock.now() <= LINGER):
                clock.idle(rest if rest is not None else self._hands_wait_until())
                clock.wait(self._gate, due - clock.now())
                return False
        return self.stop(here=True) if rest is None else self.suspend(rest, here=True)

    def _all_wait_until(self) -> float | None:
        """Give when the first wait of this task is over, if all that it does is wait."""
        return None if len(self._dues) < self._lines else self._first_due()

    def _hands_wait_until(self) -> float | None:
        """Give when the first wait is over where only the main line does not wait, as far as one can tell here.

        It may sit in a join of its own, for lines that were opened by hand.
        """
        joins = self._by_hand and not self._bodies and len(self._dues) == self._lines - 1
        return self._first_due() if joins else None

    def _first_due(self) -> float | None:
        return min((due for due in self._dues.values() if due is not None), default=None)

    def wait_for_threads(self, error: BaseException, *, here: bool) -> NoReturn:
        """Unwind the task for a moment: the machine has no thread left, what was to run has not begun."""
        self.check()
        logger.warning("task %s waits for a moment: %s", self.task.id, error)
        self.suspend(self.runtime.clock.now() + LINGER, here=here)

    def suspend(self, due: float, *, here: bool) -> NoReturn:
        """Unwind the task until `due`, Unix seconds."""
        waits = Suspended(f"task {self.task.id} waits")
        self.end(lambda task, now: task.passivate(self.number, now, [], due=due), waits, here=here)
