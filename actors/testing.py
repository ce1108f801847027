"""A kit for tests of your own agents: kill them at every boundary, and see what is left.

    from actors.testing import every_crash_point

    def test_a_report_is_sent_once_wherever_the_process_dies():
        for run in every_crash_point(report, "notes.txt"):
            run.check()
            assert run.result == "sent"

And keep the logs of real tasks, so that no change of your code strands the next ones: `perdure show report-1 --json >
tests/histories/report-1.json`, or `save_history(task, path)`, and in a test:

    from pathlib import Path
    import pytest
    from actors.testing import histories, replay_history
    from report import report

    HISTORIES = histories(Path(__file__).parent / "histories")

    @pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
    def test_todays_code_fits_what_was_recorded(path):
        replay_history(report, path)

A boundary is a moment at which a death makes a difference: before, inside and after each append to the log, and before
and after each body. A death here is simulated: the system's store refuses everything from then on, and a new system is
opened on what it left. The kit's systems have no strike limit, so that a plan may hold any number of crashes.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from actors.clock import Clock, FakeClock
from actors.history import HistoryError, histories, replay_history, save_history
from actors.info import StepInfo
from actors.ref import TaskRef
from actors.system import AgentSystem
from actors.task_log import TaskLog
from actors.view import ApprovalView
from domain.errors import PerdureError, TaskEndedError, TaskError
from domain.events import ApprovalRequested, Restarted, StepFailed, StepStarted, StepSucceeded, TaskEvent
from domain.faults import Fault
from stores import Store, open_store
from stores.crash import CrashingStore, CrashPlan, SimulatedCrash

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


Answer = Callable[[ApprovalView], bool | None]
"""Says yes or no to an approval; None for no answer."""
Asked = Callable[[AgentSystem], Sequence[ApprovalView]]


class AgentBugError(PerdureError):
    """Raised when the agent itself crashes: a bug, which a supervisor would answer with restarts and then a hold."""


@dataclass
class BodyRun:
    """One entry into the body of a step, in one of the lives, when the log of its `task` ended at `version`.

    `finished` tells whether it came to its end. The task may be a child, of which `version` says nothing; it is empty
    for the task that was run.
    """

    step: str
    path: str
    attempt: int
    idempotency_key: str
    life: int
    version: int
    finished: bool = False
    task: str = ""


@dataclass
class Run:
    """What happened outside, and what is in the log. `error` is set where the task has failed or is held."""

    value: Any = None
    error: TaskError | None = None
    status: str = ""
    bodies: list[BodyRun] = field(default_factory=list)
    events: list[TaskEvent] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    head: int = 0

    @property
    def result(self) -> Any:
        """Give the agent's value. Raises `error` where the task has failed or is held."""
        if self.error is not None:
            raise self.error
        return self.value

    @property
    def lives(self) -> int:
        """Give the number of systems that were needed."""
        return len(self.crashes) + 1

    def count(self, step: str) -> int:
        """Count the entries into the bodies of a step."""
        return sum(body.step == step for body in self.bodies)

    def check(self) -> None:
        """Assert what perdure promises of every run, whatever crashed. Raises AssertionError with what was broken.

        A body that ended and whose outcome is in the log ran once. A body that was entered again was in doubt before:
        same key, and a higher attempt, where its start is recorded.
        """
        outcomes = [event for event in self.events if _is_outcome(event)]
        by_path: dict[str, list[BodyRun]] = {}
        families: dict[tuple[str, str], list[BodyRun]] = {}
        for body in self.bodies:
            families.setdefault((body.task, body.path), []).append(body)
            if not body.task:
                by_path.setdefault(body.path, []).append(body)
        started = {event.path for event in self.events if isinstance(event, StepStarted)}
        for outcome in outcomes:
            same = [other for other in outcomes if other.path == outcome.path]
            _require(len(same) == 1, f"step {outcome.path} {outcome.name} has {len(same)} outcomes")
            late = [body for body in by_path.get(outcome.path, ()) if body.version >= outcome.originator_version]
            _require(not late, f"step {outcome.path} {outcome.name} ran again after its outcome was in the log")
        for (task, path), entries in families.items():
            what = f"step {path} {entries[0].step}" + (f" of {task}" if task else "")
            _require(len({entry.idempotency_key for entry in entries}) == 1, f"{what} had more than one key")
            attempts = [entry.attempt for entry in entries]
            if not task and path in started:
                _require(attempts == sorted(set(attempts)), f"{what}: attempts {attempts} do not rise")
            twice = len({(entry.life, entry.attempt) for entry in entries}) != len(entries)
            _require(not twice, f"{what}: an attempt ran twice in one life")


def _is_outcome(event: TaskEvent) -> TypeGuard[StepSucceeded | StepFailed]:
    return isinstance(event, StepSucceeded) or (isinstance(event, StepFailed) and event.retry_at is None)


def crash_plans(max_crashes: int = 5, max_boundary: int = 40) -> SearchStrategy[list[int]]:
    """Draw plans: for each life in turn, the boundary at which it dies, from 1. Needs Hypothesis."""
    from hypothesis import strategies  # noqa: PLC0415  the kit is imported without it

    return strategies.lists(strategies.integers(1, max_boundary), max_size=max_crashes)


def run_through_crashes(
    agent: Callable[..., Any],
    *args: Any,
    plan: Sequence[int] = (),
    store: str | Store | None = None,
    id: str = "task",
    timeout: float = 30.0,
    strikes: int | None = None,
    clock: Clock | None = None,
    meanwhile: Callable[[TaskRef[Any]], object] = lambda _task: None,
    answer: Answer = lambda _approval: None,
) -> Run:
    """Run an agent as a task, die where told, start a new system each time, and return what happened.

    Args:
        agent: the agent, or a `functools.partial` of one.
        args: its arguments.
        plan: for each life in turn the boundary at which it dies, from 1; after that the task runs to its end.
        store: a URL, opened anew in each life, or an opened store; by default a new one in memory.
        id: the task's id.
        timeout: seconds that one life may take.
        strikes: the systems' strike limit; by default none, so that a plan may hold any number of crashes.
        clock: what tells all lives the time; by default one that jumps to what is due next, so that nothing waits. The
            time limits of bodies are real time all the same.
        meanwhile: called in each life once the task is spawned, with the task: what others bring to it, such as
            `lambda task: task.signal("paid", 20, signal_id="1")`. It dies with its life, and is called again in the
            next: as a client that tries again, it has to bring the same once more.
        answer: says yes or no to each approval that the task, or a child of it, asks for, as soon as that is in the
            log; or None, for no answer in this life.

    Raises AgentBugError where the agent's own code raises what is no business of its task; TimeoutError when a life
    does not end in time.
    """
    given: Sequence[object] = (meanwhile, answer)
    if not all(map(callable, given)):
        raise TypeError("meanwhile and answer are functions: of the task, and of an approval, such as lambda _: True")
    disk = open_store("memory:") if store is None else store
    run, clock = Run(), clock or FakeClock(jump=True)
    for nth in (*plan, None):
        witness = _Witness(nth, run, id)
        inner = open_store(disk) if isinstance(disk, str) else disk
        life = CrashingStore(inner, witness, close_inner=isinstance(disk, str))
        try:
            with AgentSystem(life, strikes=strikes, clock=clock) as system:
                witness.answer = partial(_answer, system, answer)
                witness.answer(AgentSystem.approvals)  # what an earlier life has asked for
                if not run.crashes:  # lest two runs differ in whether the task is claimed as it is made
                    system.wait_for_look(timeout)
                task = system.spawn(agent, *args, id=id)
                meanwhile(task)
                _live(task, run, timeout)
                return run
        except SimulatedCrash as death:
            if witness.bug:
                raise _bug(inner, id) from None
            run.crashes.append(death.point)
        finally:
            life.close()
    raise AssertionError("the last life has no crash in its plan")


def every_crash_point(
    agent: Callable[..., Any],
    *args: Any,
    new_store: Callable[[], str | Store | None] = lambda: None,
    meanwhile: Callable[[TaskRef[Any]], object] = lambda _task: None,
    answer: Answer = lambda _approval: None,
) -> Iterator[Run]:
    """Run an agent once for each boundary that it has, dying there once; and first once without a crash.

    `new_store` gives a fresh store, or its URL, for each run; by default each has one in memory. Retries that wait
    about a second or more are boundaries of their own: with `jitter=0` there are as many of them in each run.
    `meanwhile` and `answer` are as in `run_through_crashes`.
    """
    others: dict[str, Any] = {"meanwhile": meanwhile, "answer": answer}
    whole = run_through_crashes(agent, *args, store=new_store(), **others)
    yield whole
    for nth in range(1, len(whole.points) + 1):
        yield run_through_crashes(agent, *args, plan=[nth], store=new_store(), **others)


class _Witness(CrashPlan):
    """A crash plan that writes down which bodies were entered, and which came to their end."""

    def __init__(self, nth: int | None, run: Run, id: str) -> None:
        super().__init__(nth)
        self.bug = False
        self.answer: Callable[[Asked], None] = lambda _asked: None
        self._run, self._id = run, id
        self._life = run.lives

    def reach(self, point: str, **facts: object) -> None:
        info = facts.get("info")
        if point == "body.after":
            self._finish(cast("StepInfo", info))
        self._run.points.append(point)
        if point == "append.after" and facts["id"] == self._id:  # an entity's log has versions of its own
            self._run.head = cast("int", facts["version"])
        super().reach(point, **facts)
        if point == "append.after" and ApprovalRequested.TOPIC in facts["topics"]:  # type: ignore[operator]
            asker = cast("str", facts["id"])
            # In a context of its own: who answers is no agent.
            contextvars.Context().run(self.answer, lambda system: system.task(asker).describe().approvals)
        if point == "append.after" and Restarted.TOPIC in facts["topics"]:  # type: ignore[operator]
            self.bug = True
            self.die_now(point)
        if point == "body.before" and isinstance(info, StepInfo):
            key = info.idempotency_key
            entry = BodyRun(info.name, info.path, info.attempt, key, self._life, self._run.head, task=self._child(info))
            self._run.bodies.append(entry)

    def _finish(self, info: StepInfo) -> None:
        for body in reversed(self._run.bodies):
            ran = body.task, body.path, body.attempt, body.life
            if ran == (self._child(info), info.path, info.attempt, self._life):
                body.finished = True
                return

    def _child(self, info: StepInfo) -> str:
        return "" if info.task_id == self._id else info.task_id


def _live(task: TaskRef[Any], run: Run, timeout: float) -> None:
    try:
        run.value = task.result(timeout)
    except TaskError as error:
        run.error = error
    run.status = task.status()
    run.events = task.events()


def _answer(system: AgentSystem, answer: Answer, asked: Asked) -> None:
    for approval in asked(system):
        word = answer(approval)
        if word is not None:
            with suppress(TaskEndedError):  # meanwhile
                system.task(approval.task_id).answer(approval.id, approved=word, by="test")


def _bug(store: Store, id: str) -> AgentBugError:
    (restarted,) = TaskLog(store).events.get(id, desc=True, limit=1, birth=TaskLog(store).load(id).birth)
    assert isinstance(restarted, Restarted)  # noqa: S101
    fault = Fault.from_data(restarted.error)
    return AgentBugError(f"the agent itself crashed, which no plan of crashes explains: {fault}\n{fault.traceback}")


def _require(kept: bool, otherwise: str) -> None:
    if not kept:
        raise AssertionError(f"perdure's promise is broken: {otherwise}")


__all__ = [
    "AgentBugError",
    "BodyRun",
    "Clock",
    "CrashPlan",
    "FakeClock",
    "HistoryError",
    "Run",
    "SimulatedCrash",
    "crash_plans",
    "every_crash_point",
    "histories",
    "replay_history",
    "run_through_crashes",
    "save_history",
]
