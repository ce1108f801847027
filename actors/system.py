"""`AgentSystem`: what a program opens. The supervision tree stands in `tree.py`, `TaskRef` in `ref.py`."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any, Self, TypeVar, TypeVarTuple, get_args

from actors.asked import tasks_that_ask
from actors.clock import Clock
from actors.colours import AWAITING
from actors.context import refuse_inside_agent, refuse_on_loop
from actors.definitions import AnyAgent, find_agent, known_agents
from actors.entities import Entities
from actors.entity_ref import ASK_TIMEOUT, EntityRef, checked_entity_id
from actors.group_ref import TaskGroup
from actors.groups import Siblings, Strategy, checked_strategy
from actors.info import VALUE_LIMIT
from actors.keeping import Keeper
from actors.outline import TreeNode, outline_of_process
from actors.outsiders import Outsiders
from actors.ref import TaskRef
from actors.runtime import Runtime
from actors.spawning import Spawner
from actors.task_log import Claim, TaskLog
from actors.tenure import LEASE, SHORTEST_LEASE
from actors.threads import NoThreadError
from actors.tree import SupervisionTree
from actors.view import ApprovalView, open_approvals
from actors.watching import Watching
from domain.entity import Entity, topic_of
from domain.errors import SystemClosedError
from domain.retry import MOST_SECONDS, STRIKE_LIMIT
from domain.state import Status
from domain.task import AgentTask
from stores import IndexRow, Store, open_store
from stores.crash import SimulatedCrash
from stores.lifetime import Resource

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
E = TypeVar("E", bound=Entity)

MAX_ACTIVE = 64
"""Tasks that a worker runs at once, unless told otherwise."""
GRACE = 10.0
"""Seconds that a stopping worker gives running bodies to end."""


class AgentSystem(Spawner, Keeper):
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
        lease: seconds after which a worker that is frozen, and so neither dead nor at work (stopped, or with a body
            that keeps Python's interpreter lock in C code), may be robbed of its tasks; it beats four times in each, by
            real time whatever the clock. At least 0.1.
        only: the id of the one task that this worker may run, besides what descends from it.
        value_limit: bytes that one stored value, input or result may take; above 256 KiB there is a warning.
        clock: what tells it the time; by default the machine's own. For tests there is `actors.testing.FakeClock`.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        run: bool = True,
        max_active: int = MAX_ACTIVE,
        strikes: int | None = STRIKE_LIMIT,
        grace: float = GRACE,
        lease: float = LEASE,
        only: str | None = None,
        value_limit: int = VALUE_LIMIT,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(store, str | Store):
            raise TypeError(f"a store is a URL, such as 'sqlite:///tasks.db', or an opened store, not {store!r}")
        if any(type(n) is not int or n < 1 for n in (max_active, value_limit, 1 if strikes is None else strikes)):
            raise ValueError("max_active, strikes and value_limit are whole numbers from 1")
        if not 0 <= grace <= MOST_SECONDS:
            raise ValueError(f"grace is a number of seconds from 0 to {MOST_SECONDS:g}, not {grace!r}")
        if not SHORTEST_LEASE <= lease <= MOST_SECONDS:
            raise ValueError(f"lease is a number of seconds from {SHORTEST_LEASE:g} to {MOST_SECONDS:g}, not {lease!r}")
        self._given = store
        self._run = run
        self._max_active = max_active
        self._strikes = strikes
        self._grace = grace
        self._lease = lease
        self._only = only
        self._runtime = Runtime(clock, value_limit)
        self._log: TaskLog | None = None
        self._watching: Watching | None = None
        self._outsiders: Outsiders | None = None
        self._agents: dict[str, AnyAgent] = {}
        self._closed, self._closer = False, 0
        self._closing, self._ended = threading.Lock(), threading.Event()
        self._opening = threading.RLock()
        self._tree: SupervisionTree | None = None

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Self:
        """Open the store and, for a worker, start its supervision tree. Raises the store's errors, InsideTaskError."""
        refuse_inside_agent("opening an AgentSystem", "open it in a step, or outside")
        with self._opening:
            return self._open()

    def _open(self) -> Self:
        if self._log is not None:
            raise RuntimeError("an AgentSystem is opened once; make another")
        store = open_store(self._given) if isinstance(self._given, str) else self._given
        self._ours = Resource(store.url)
        log = TaskLog(store, now=self._runtime.clock.now)
        self._watching, self._log = Watching(log, self._runtime.threads), log
        if self._run:
            try:
                self._tree = SupervisionTree(
                    self._log,
                    self._runtime,
                    max_active=self._max_active,
                    strikes=self._strikes,
                    only=self._only,
                    lease=self._lease,
                    find=self._find,
                    agents=self._known,
                )
                log.listen(self.wake)
            except BaseException:
                self.close()
                raise
        else:
            entities = self._runtime.entities = Entities(store, self._runtime)
            entities.siblings = Siblings(log, entities, log.patience).begin_anew
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        """Open the system without blocking the event loop. Raises what `with` does."""
        refuse_inside_agent("opening an AgentSystem", "open it in a step, or outside")
        _, cancelled = await AWAITING.run(self._runtime.threads, self.__enter__)
        if cancelled:
            import asyncio  # noqa: PLC0415  who was cancelled has it

            await self.close_async()
            raise asyncio.CancelledError
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def close(self) -> None:
        """Leave in good order: no new body starts, running ones get the grace and are stored; then the store is closed.

        A body that has not ended within the grace is given up: it is in doubt, and its late result is not stored. So is
        one that ends because this system refuses it something by now, such as the result of a task for which it waits.
        So it is with the commands of entities: those that have not begun are refused. Who watches a task
        (`TaskRef.on_end`) is told at last what the log has then, within a second. Calling it again only waits until it
        is closed. In a child made by fork it does nothing: it is the parent's.
        """
        refuse_inside_agent("closing an AgentSystem", "close it where it was opened")
        if self._log is not None and self._ours.forked:
            return
        with self._opening:  # what another thread is just opening is closed when it is open
            if self._is_not_ours():
                return
        with self._closing:
            if self._tree is not None:
                self._tree.worker.stopping.set()  # first: a body that is refused then knows why
            mine, self._closed = not self._closed, True
        if mine:
            self._closer = threading.get_ident()
            try:
                self._shut_down()
            finally:
                self._ended.set()
        elif self._closer != threading.get_ident():
            self.watching.excuse()
            self._ended.wait()

    def _is_not_ours(self) -> bool:
        """Tell whether there is nothing to close: it was never open, or a parent has opened it that forked us."""
        return self._log is None or self._ours.forked

    def _shut_down(self) -> None:
        assert self._log is not None  # noqa: S101  it is open
        store = self._log.store
        try:
            try:
                if self._tree is not None:
                    with contextlib.suppress(SimulatedCrash):
                        self._tree.stop(self._grace)
                elif self._runtime.entities is not None:
                    self._runtime.entities.close(self._grace)
            finally:
                self._log.deafen()
                self.watching.stop()
        finally:
            self._runtime.close()
            if isinstance(self._given, str):
                store.close()
            else:
                store.hurry(on=False)

    async def close_async(self) -> None:
        """Do what `close` does, without blocking the event loop; cancelled, it gives no grace any more, but marks all.

        The cancellation goes through when the system is closed.
        """
        refuse_inside_agent("closing an AgentSystem", "close it where it was opened")
        if self._log is not None and self._ours.forked:
            return
        with self._opening:  # what another thread is just opening is closed when it is open
            if self._is_not_ours():
                return
        try:
            _, cancelled = await AWAITING.run(self._runtime.threads, self.close, on_cancel=self._hasten)
        except NoThreadError:  # better a loop that waits than a system that stays open
            self.close()
            return
        if cancelled:
            import asyncio  # noqa: PLC0415  who was cancelled has it

            raise asyncio.CancelledError

    def _hasten(self) -> None:
        if self._tree is not None:
            self._tree.directory.hasten()

    @property
    def log(self) -> TaskLog:
        """The log of this system's tasks.

        Raises SystemClosedError, RuntimeError before it is open, StoreForkedError in a child made by fork.
        """
        if self._closed:
            raise SystemClosedError("this AgentSystem was closed; its tasks go on with the next worker of the store")
        if self._log is None:
            raise RuntimeError("this AgentSystem is not open: use it in a `with` block")
        self._ours.check()
        return self._log

    @property
    def outsiders(self) -> Outsiders:
        """What brings something to tasks. Raises as `log` does."""
        log = self.log
        if self._outsiders is None:
            self._outsiders = Outsiders(log)
        return self._outsiders

    @property
    def watching(self) -> Watching:
        """The watches on this system's tasks. Raises RuntimeError before it is open."""
        if self._watching is None:
            raise RuntimeError("this AgentSystem is not open: use it in a `with` block")
        return self._watching

    def _known(self) -> frozenset[str]:
        return known_agents() | self._agents.keys()

    @property
    def runtime(self) -> Runtime:
        """What this system has to run things on."""
        return self._runtime

    def may_go_on(self, task_id: str) -> bool:
        """Tell whether a held task is still to be looked at again by this worker."""
        return self._tree is not None and self._tree.recovery.may_go_on(task_id)

    def hosts(self, task_id: str) -> bool:
        """Tell whether a task has a place here, and so will be hinted at when it has ended."""
        return self._tree is not None and self._tree.directory.hosts(task_id)

    def will_look_at(self, row: IndexRow) -> bool:
        """Tell whether a hold is news to this worker, and still to be looked at."""
        return self._tree is not None and self._tree.recovery.will_look_at(row)

    def wake(self, task_id: str = "") -> None:
        """Look for work at once, and at that task, where it runs here."""
        if self._tree is not None:
            self._tree.directory.ring(task_id)
            self._tree.worker.wake.set()

    def wait_for_look(self, timeout: float) -> None:
        """Wait until this worker has looked once for what is due: from then on new tasks are begun with at once."""
        if self._tree is not None:
            self._tree.recovery.has_looked.wait(timeout)

    def begin(self, task_id: str, birth: str, make: Callable[[Claim | None], AgentTask], *, claims: bool) -> AgentTask:
        """Have a task made, and begin with it, where this is a worker."""
        return make(None) if self._tree is None else self._tree.recovery.begin(task_id, birth, make, claims=claims)

    def _find(self, name: str) -> AnyAgent:
        return self._agents.get(name) or find_agent(name)

    # ------------------------------------------------------------------ tasks

    @property
    def _home(self) -> Self:
        return self

    def know(self, agent: AnyAgent) -> None:
        """Take note of an agent, so that its tasks are run here."""
        if self._agents.get(agent.name) is not agent:
            self._agents.update(dict.fromkeys(agent.names, agent))
            if self._tree is not None:
                self._tree.agents_changed()

    def task(self, id: str) -> TaskRef[Any]:
        """Give a task by its id. Whether the store has it shows when it is asked something."""
        return TaskRef(self, id)

    def tasks(self, *, status: Status | None = None, agent: str | None = None) -> list[TaskRef[Any]]:
        """List the store's tasks, the oldest first."""
        if status is not None and status not in get_args(Status):
            raise ValueError(f"there is no status {status!r}: it is one of {', '.join(get_args(Status))}")
        refuse_on_loop("tasks()", "await tasks_async(…)")
        rows = self.log.recorder.select_entries(status=[status] if status else get_args(Status), agent=agent)
        return [TaskRef(self, row.id) for row in rows]

    async def tasks_async(self, *, status: Status | None = None, agent: str | None = None) -> list[TaskRef[Any]]:
        """Do what `tasks` does, without blocking the event loop."""
        return await self._runtime.commits.call(functools.partial(self.tasks, status=status, agent=agent))

    def approvals(self) -> list[ApprovalView]:
        """List the approvals that nobody has answered, of all tasks: `task(a.task_id).answer(a.id, approved=True)`."""
        refuse_on_loop("approvals()", "await approvals_async()")
        return [approval for task in tasks_that_ask(self.log) for approval in open_approvals(task)]

    async def approvals_async(self) -> list[ApprovalView]:
        """Do what `approvals` does, without blocking the event loop."""
        return await self._runtime.commits.call(self.approvals)

    # ------------------------------------------------------------------ entities

    def entity(self, cls: type[E], id: str, *, timeout: float | None = ASK_TIMEOUT) -> EntityRef[E]:
        """Give an entity by its class and id, to be asked: `system.entity(Budget, "team-7").ask(Budget.spend, 20)`.

        It exists for any id; a client asks as a worker does. `timeout`: seconds to wait for each answer, None for ever.
        Raises DefinitionError for what is no entity, ValueError for an id that is not 1 to 200 printable characters.
        """
        topic_of(cls)
        _ = self.log
        return EntityRef(self._runtime.entities, cls, checked_entity_id(id), timeout=timeout)

    def group(self, name: str, *, strategy: Strategy = "one_for_one") -> TaskGroup:
        """Give a group of tasks and entities that are supervised together, made when it is first used.

            with system.group("crew", strategy="one_for_all") as crew:
                crew.spawn(cook, id="cook")
                crew.spawn(waiter, id="waiter")

        The group is in the log; a group of that name is the same from every process. Raises ValueError for a name that
        is not 1 to 200 printable characters, and for what is no strategy.
        """
        return TaskGroup(self, checked_entity_id(name, "a group's name"), checked_strategy(strategy))

    def tree(self) -> TreeNode:
        """Give the supervision tree of this process, as it is now; as a text it is drawn. Nothing is read from the log.

        What other processes run is drawn by `perdure tree`.
        """
        _ = self.log
        return outline_of_process(self._tree, self._runtime.entities)
