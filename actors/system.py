"""`AgentSystem` and `TaskRef`: what a program holds. The supervision tree stands in `tree.py`."""

from __future__ import annotations

import contextlib
import functools
import getpass
import math
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar, TypeVarTuple, get_args

from actors.context import lend_place, refuse_inside_agent
from actors.definitions import Agent, find_agent, known_agents
from actors.info import checked
from actors.task_log import CLIENT_PATIENCE, Appender, TaskLog
from actors.tree import SupervisionTree
from actors.view import TaskView, describe
from domain.errors import (
    DefinitionError,
    InvalidTaskIdError,
    PerdureError,
    SystemClosedError,
    TaskFailedError,
    TaskHeldError,
    UnknownTaskError,
)
from domain.events import Completed, Failed, TaskEvent
from domain.faults import Fault
from domain.retry import STRIKE_LIMIT
from domain.task import UNREADABLE, Status
from domain.values import decode, encode
from stores import IndexRow, Store, StoreUnavailableError, open_store
from stores.crash import SimulatedCrash

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

MAX_ACTIVE = 64
"""Tasks that a worker runs at once, unless told otherwise."""
GRACE = 10.0
"""Seconds that a stopping worker gives running bodies to end."""
FIRST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks of a waiting `result()`."""
NOT_GIVEN: Any = object()
ID_LIMIT = 200
"""Characters that a task's id may have."""


class AgentSystem:
    """Spawns tasks into a store, and runs them unless it is a client.

        with AgentSystem("sqlite:///tasks.db") as system:
            task = system.spawn(report, "notes.txt", id="report-2026-11")
            print(task.result(timeout=60))

    Guaranteed: a task is in the store when `spawn` returns; a worker goes on with what a dead one has left, at once.
    Not guaranteed: that an agent's code between steps runs once; it runs again at each replay.

    Constructing does no I/O and starts no thread: `with` opens. A library installs no signal handlers, and neither
    does this class.

    Args:
        store: a URL ("sqlite:///relative.db", "sqlite:////absolute.db", "memory:"), or a store, which then stays open.
        run: False makes a client, which spawns, reads and decides, but runs nothing.
        max_active: how many tasks may run at the same time; the rest wait as rows.
        strikes: crashes in a row at which a task is held; None for no limit.
        grace: seconds that bodies have to end when the system closes; what has not ended then is in doubt.
        only: the id of the one task that this worker may run.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        run: bool = True,
        max_active: int = MAX_ACTIVE,
        strikes: int | None = STRIKE_LIMIT,
        grace: float = GRACE,
        only: str | None = None,
    ) -> None:
        if not isinstance(store, str | Store):
            raise TypeError(f"a store is a URL, such as 'sqlite:///tasks.db', or an opened store, not {store!r}")
        if type(max_active) is not int or max_active < 1 or (strikes is not None and strikes < 1):
            raise ValueError("max_active and strikes are whole numbers from 1")
        if not (math.isfinite(grace) and grace >= 0):
            raise ValueError("grace is a number of seconds, finite and not negative")
        self._given = store
        self._run = run
        self._max_active = max_active
        self._strikes = strikes
        self._grace = grace
        self._only = only
        self._log: TaskLog | None = None
        self._agents: dict[str, Agent[..., Any]] = {}
        self._closed = False
        self._tree: SupervisionTree | None = None

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Self:
        """Open the store and, for a worker, start its supervision tree. Raises the store's errors, InsideTaskError."""
        refuse_inside_agent("opening an AgentSystem", "open it in a step, or outside")
        if self._log is not None:
            raise RuntimeError("an AgentSystem is opened once; make another")
        store = open_store(self._given) if isinstance(self._given, str) else self._given
        self._log = TaskLog(store)
        if self._run:
            try:
                self._tree = SupervisionTree(
                    self._log,
                    max_active=self._max_active,
                    strikes=self._strikes,
                    only=self._only,
                    find=self._find,
                    agents=self._known,
                )
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave in good order: no new body starts, running ones get the grace and are stored; then the store is closed.

        A body that has not ended within the grace is given up: it is in doubt, and its late result is not stored.
        Calling it again does nothing.
        """
        refuse_inside_agent("closing an AgentSystem", "close it where it was opened")
        if self._log is None or self._closed:
            return
        self._closed = True
        try:
            if self._tree is not None:
                with contextlib.suppress(SimulatedCrash):
                    self._tree.stop(self._grace)
        finally:
            if isinstance(self._given, str):
                self._log.store.close()
            else:
                self._given.hurry(on=False)

    def _opened(self) -> TaskLog:
        if self._closed:
            raise SystemClosedError("this AgentSystem was closed; its tasks go on with the next worker of the store")
        if self._log is None:
            raise RuntimeError("this AgentSystem is not open: use it in a `with` block")
        return self._log

    def _known(self) -> frozenset[str]:
        return known_agents() | self._agents.keys()

    def _wake(self) -> None:
        if self._tree is not None:
            self._tree.worker.wake.set()

    def _find(self, name: str) -> Agent[..., Any]:
        return self._agents.get(name) or find_agent(name)

    # ------------------------------------------------------------------ tasks

    def spawn(
        self,
        agent: Callable[[*Ts], R],
        /,
        *args: *Ts,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> TaskRef[R]:
        """Make a task of an agent. When it returns, the task is in the store and will be run, whatever dies.

        Idempotent by id: the same agent with the same input gives the task that is there, also when it has ended.

        Args:
            agent: a function decorated with `@agent`, or a `functools.partial` of one, for keywords.
            args: its arguments; they are stored, and the agent gets equal ones at each replay.
            id: 1 to 200 printable characters; a random one where it is left out.
            tags: texts by name, kept with the task; those of the first spawn stay.

        Raises TypeError for arguments that the agent does not take, UnstorableValueError, InvalidTaskIdError,
        TaskConflictError where the id is in use otherwise, InsideTaskError in an agent between its steps,
        StoreUnavailableError after 30 s.
        """
        refuse_inside_agent("spawn()", "call it in a step, with an id")
        log = self._opened()
        definition, args, kwargs = _unwrap(agent, args)
        bound = definition.signature.bind(*args, **kwargs)
        arguments = checked([list(bound.args), dict(bound.kwargs)])
        task_id = _checked_id(id) if id is not None else f"{definition.name}-{secrets.token_hex(4)}"
        labels = _checked_tags(tags or {})
        if self._agents.get(definition.name) is not definition:
            self._agents[definition.name] = definition
            if self._tree is not None:
                self._tree.agents_changed()
        task = log.create(task_id, definition.name, arguments, labels)
        self._wake()
        return TaskRef(self, task.id)

    def task(self, id: str) -> TaskRef[Any]:
        """Give a task by its id. Whether the store has it shows when it is asked something."""
        return TaskRef(self, id)

    def tasks(self, *, status: Status | None = None, agent: str | None = None) -> list[TaskRef[Any]]:
        """List the store's tasks, the oldest first."""
        if status is not None and status not in get_args(Status):
            raise ValueError(f"there is no status {status!r}: it is one of {', '.join(get_args(Status))}")
        rows = self._opened().recorder.select_entries(status=status and [status], agent=agent)
        return [TaskRef(self, row.id) for row in rows]


class TaskRef(Generic[R]):
    """A task, by its id: the same from every process. Holds nothing but the id."""

    def __init__(self, system: AgentSystem, id: str) -> None:
        self._system = system
        self.id = id

    def __repr__(self) -> str:
        return f"TaskRef({self.id!r})"

    def result(self, timeout: float | None = None) -> R:
        """Wait for the agent's value, at most `timeout` seconds, and give a fresh copy of it.

        Raises TaskFailedError, TaskHeldError at once when the task is held, TimeoutError, UnknownTaskError,
        InsideTaskError in an agent between its steps; and StoreUnavailableError when the store was away for 30 s.
        """
        refuse_inside_agent("result()", "call it in a step")
        with lend_place():
            return self._wait(timeout)

    def status(self) -> Status:
        """Give the task's status. Raises UnknownTaskError."""
        return self._row().status  # type: ignore[return-value]

    def describe(self) -> TaskView:
        """Give what the log says of the task now. Raises UnknownTaskError, UnreadableTaskError."""
        return describe(self._log.load(self.id))

    def events(self, *, after: int = 0) -> list[TaskEvent]:
        """Give the task's events, those with a version above `after`. Raises UnknownTaskError, UnreadableTaskError."""
        row = self._row()
        return list(self._log.events.get(self.id, gt=after, birth=row.birth))

    def release(self, by: str | None = None) -> None:
        """Let a held task go on; one whose log could not be read is read again first.

        Raises ResolveError where it is not held, or where a step has to be decided; UnreadableTaskError;
        TaskEndedError.
        """
        row, who = self._row(), by or _who()
        if row.hold == UNREADABLE and self._log.mended(row, by_a_person=True):
            self._system._wake()
            return
        self._append(lambda task, now: task.release(now, who))

    def resolve(
        self, path: str, *, value: Any = NOT_GIVEN, rerun: bool = False, fail: bool = False, by: str | None = None
    ) -> None:
        """Decide what became of the step in question: it happened, with `value`; or `rerun` it; or give it up (`fail`).

        A value is converted by the step's return annotation when it is handed to the agent. Raises ResolveError where
        the task is not held because of this step, TaskEndedError, UnstorableValueError.
        """
        if (value is not NOT_GIVEN) + rerun + fail != 1:
            raise ValueError("say one of three: value=…, rerun=True or fail=True")
        decision = "rerun" if rerun else "fail" if fail else "value"
        encoded, who = checked(value) if decision == "value" else None, by or _who()
        self._append(lambda task, now: task.resolve(now, path, decision, encoded, who))

    @property
    def _log(self) -> TaskLog:
        return self._system._opened()

    def _append(self, decide: Callable[[Any, float], list[TaskEvent]]) -> None:
        Appender(self._log, self._log.load(self.id)).append(decide)
        self._system._wake()

    def _row(self) -> IndexRow:
        row = self._log.recorder.select_entry(self.id)
        if row is None:
            raise UnknownTaskError(f"there is no task {self.id!r} in {self._log.store.url}", task_id=self.id)
        return row

    def _wait(self, timeout: float | None) -> R:
        deadline = None if timeout is None else time.monotonic() + timeout
        pause, away_since = FIRST_POLL, None
        with self._log.watch(self.id) as changed:
            while True:
                try:
                    again = self._may_go_on()
                    row = self._row()
                    if row.status in ("completed", "failed") or (row.status == "held" and not again):
                        return self._outcome(row)
                    status, away_since = row.status, None
                except StoreUnavailableError:
                    status, away_since = "unknown: the store is away", away_since or time.monotonic()
                    if time.monotonic() - away_since > CLIENT_PATIENCE:
                        raise
                left = pause if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"task {self.id} has no result after {timeout:g} s: it is {status}")
                changed.wait(min(pause, left))
                changed.clear()
                pause = min(pause * 1.5, LONGEST_POLL)

    def _may_go_on(self) -> bool:
        tree = self._system._tree
        return tree is not None and tree.recovery.may_go_on(self.id)

    def _outcome(self, row: IndexRow) -> R:
        if row.status == "held":
            why = row.note if row.hold == UNREADABLE else self.describe().why
            raise TaskHeldError(f"task {self.id} is held: {why}", task_id=self.id, reason=row.hold or "held")
        (ending,) = self._log.events.get(self.id, desc=True, limit=1, birth=row.birth)
        if isinstance(ending, Completed):
            return decode(ending.value)  # type: ignore[return-value]
        assert isinstance(ending, Failed)  # noqa: S101
        fault = Fault.from_data(ending.error)
        raise TaskFailedError(f"task {self.id} failed: {fault}", task_id=self.id, fault=fault)


def _unwrap(agent: Any, args: tuple[Any, ...]) -> tuple[Agent[..., Any], tuple[Any, ...], dict[str, Any]]:
    kwargs: dict[str, Any] = {}
    while isinstance(agent, functools.partial):
        args, kwargs, agent = (*agent.args, *args), {**agent.keywords, **kwargs}, agent.func
    if not isinstance(agent, Agent):
        name = getattr(agent, "__qualname__", repr(agent))
        raise DefinitionError(f"{name} is not an agent: decorate it with @agent before it is spawned")
    return agent, args, kwargs


def _checked_id(id: object) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= ID_LIMIT:
        raise InvalidTaskIdError(f"a task's id has 1 to {ID_LIMIT} characters, not {id!r:.250}", task_id=str(id))
    for index, character in enumerate(id):
        if not character.isprintable():
            raise InvalidTaskIdError(
                f"a task's id has printable characters only; at index {index} there is {character!a}", task_id=id
            )
    return id


def _checked_tags(tags: object) -> Any:
    if not isinstance(tags, Mapping):
        raise TypeError(f"tags are texts by name, not {tags!r}")
    for name, text in tags.items():
        if type(name) is not str or type(text) is not str:
            raise TypeError(f"tags are texts by name, not {name!r}: {text!r}")
    return encode(dict(tags))


def _who() -> str:
    """Name the person at this machine, for the record of a decision."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, PerdureError):
        return "someone"
