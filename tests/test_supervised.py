"""Every end of an actor is told to its supervisor exactly once, and gives its place back."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pykka
import pytest

from actors import AgentSystem, FailTask, TaskFailedError, TaskHeldError, agent, step
from actors.appender import Appender
from actors.supervised import Down
from actors.supervisor import Supervisor
from actors.task_actor import AgentCrashError, TaskActor
from actors.task_log import TaskLog
from actors.threads import NoThreadError
from domain.errors import OwnershipLost
from domain.events import Activated
from stores import Store, StoreCorruptError, open_store
from stores.crash import CrashingStore, CrashPlan, SimulatedCrash
from tests.lives import PATIENCE, wait_for

names = itertools.count()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as opened:
        yield opened


class Ends:
    """The task actors that began, and what the supervisor was told."""

    def __init__(self) -> None:
        self.begun = 0
        self.told: list[Down] = []

    def check(self, system: AgentSystem, *errors: type[BaseException] | None) -> None:
        """Hold it to this: these ends, one for each actor that began, and all places are free again."""
        assert system._tree is not None
        directory = system._tree.directory
        wait_for(lambda: not directory.hosted())
        assert [down.error and type(down.error) for down in self.told] == list(errors)
        assert self.begun == len(errors)
        assert directory.free() == 64


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    counted, begin, receive = Ends(), TaskActor.__init__, Supervisor.on_receive

    def count_begin(self: TaskActor, *args: Any) -> None:
        counted.begun += 1
        begin(self, *args)

    def count_end(self: Supervisor, down: Down) -> None:
        if isinstance(down.actor, TaskActor):
            counted.told.append(down)
        receive(self, down)

    monkeypatch.setattr(TaskActor, "__init__", count_begin)
    monkeypatch.setattr(Supervisor, "on_receive", count_end)
    return counted


@contextmanager
def at_work(store: Store, **about: Any) -> Iterator[AgentSystem]:
    """Give a worker that has looked once: before, a task may be found by that look and be handed over too.

    Then a second actor may begin, which finds nothing to do.
    """
    with AgentSystem(store, **about) as system:
        system.wait_for_look(PATIENCE)
        yield system


@step
def work() -> str:
    return "done"


@agent(name="supervised: steady")
def steady() -> str:
    return work()


def raising(error: BaseException, *, is_async: bool = False) -> Any:
    """Make an agent that raises between its steps."""

    def crash() -> None:
        work()
        raise error

    async def crash_async() -> None:
        await work.aio()
        raise error

    return agent(name=f"supervised: {next(names)}")(crash_async if is_async else crash)


# ------------------------------------------------------------------ by its agent


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_an_agent_that_lets_anything_through(
    store: Store, ends: Ends, error: type[BaseException], is_async: bool
) -> None:
    with at_work(store, strikes=1) as system:
        with pytest.raises(TaskHeldError):
            system.spawn(raising(error(), is_async=is_async)).result(PATIENCE)
        ends.check(system, AgentCrashError)


def test_an_agent_that_returns_fails_or_is_restarted(store: Store, ends: Ends) -> None:
    with at_work(store, strikes=2) as system:
        assert system.spawn(steady).result(PATIENCE) == "done"
        ends.check(system, None)
        with pytest.raises(TaskFailedError):
            system.spawn(raising(FailTask("no"))).result(PATIENCE)
        ends.check(system, None, None)
        with pytest.raises(TaskHeldError):
            system.spawn(raising(KeyError())).result(PATIENCE)
        ends.check(system, None, None, AgentCrashError, AgentCrashError)


# ------------------------------------------------------------------ before its agent


@pytest.mark.parametrize(
    "error", [StoreCorruptError("damaged"), ValueError(), MemoryError(), KeyboardInterrupt(), SystemExit()], ids=repr
)
def test_an_exception_in_rehydration(
    store: Store, ends: Ends, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Once; then the actor that is started in its place brings the task to its end."""
    rehydrate = TaskActor.rehydrate

    def unlucky(self: TaskActor) -> Appender:
        if ends.begun == 1:
            raise error
        return rehydrate(self)

    monkeypatch.setattr(TaskActor, "rehydrate", unlucky)
    with at_work(store) as system:
        assert system.spawn(steady).result(PATIENCE) == "done"
        ends.check(system, type(error), None)


def test_a_thread_that_cannot_start(store: Store, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def no_thread(self: threading.Thread) -> None:
        if self.name.startswith("TaskActor") and ends.begun == 1:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with at_work(store) as system:
        assert system.spawn(steady).result(PATIENCE) == "done"
        ends.check(system, NoThreadError, None)


def test_an_actor_that_is_stopped_before_it_lives(store: Store, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = TaskActor.__init__

    def stopped_at_once(self: TaskActor, *args: Any) -> None:
        begin(self, *args)
        if ends.begun == 1:
            self.stop()

    monkeypatch.setattr(TaskActor, "__init__", stopped_at_once)
    with at_work(store) as system:
        assert system.spawn(steady).result(PATIENCE) == "done"
        ends.check(system, None, None)


# ------------------------------------------------------------------ from outside


class Shut:
    """A step that waits for a door."""

    def __init__(self) -> None:
        self.entered, self.door = threading.Event(), threading.Event()

        @step
        def wait() -> str:
            self.entered.set()
            assert self.door.wait(PATIENCE)
            return "open"

        @agent(name=f"supervised: {next(names)}")
        def waiting() -> str:
            return wait()

        self.agent = waiting


def test_an_actor_that_is_told_to_stop_while_it_lives(store: Store, ends: Ends) -> None:
    shut = Shut()
    with at_work(store) as system:
        task = system.spawn(shut.agent, id="t")
        assert shut.entered.wait(PATIENCE)
        assert system._tree is not None
        actor = system._tree.directory.hosted()["t"]
        assert actor is not None
        actor.stop()
        shut.door.set()
        assert task.result(PATIENCE) == "open"
        ends.check(system, None)


def test_a_system_that_closes_in_good_order(store: Store, ends: Ends) -> None:
    shut = Shut()
    with at_work(store, grace=PATIENCE) as system:
        system.spawn(shut.agent)
        assert shut.entered.wait(PATIENCE)
        closing = threading.Thread(target=system.close)
        closing.start()
        assert system._tree is not None
        assert system._tree.worker.stopping.wait(PATIENCE)
        shut.door.set()
        closing.join(PATIENCE)
    ends.check(system, None)


def test_a_task_that_is_another_workers_now(store: Store, ends: Ends) -> None:
    shut = Shut()
    log = TaskLog(store)
    with at_work(store) as system:
        system.spawn(shut.agent, id="t")
        assert shut.entered.wait(PATIENCE)
        lock = store.workers.hold("other", {})
        Appender(log, log.load("t")).append(lambda task, now: task.activate(now, worker="other", token="t", limit=None))
        shut.door.set()
        ends.check(system, OwnershipLost)
        lock.release()


def test_a_process_that_dies(store: Store, ends: Ends) -> None:
    life = CrashingStore(store, CrashPlan(1, "body.after"))
    with suppress(SimulatedCrash), at_work(life) as system:
        with suppress(SimulatedCrash):
            system.spawn(steady).result(PATIENCE)
        ends.check(system, SimulatedCrash)
    life.close()


# ------------------------------------------------------------------ what follows


def test_a_task_that_is_ours_by_the_store_but_has_no_actor_is_started_again(
    store: Store, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its actor ended after the claim and left no mark: the row still says that it runs here."""
    run, rows = TaskActor._run, list[Any]()

    def falls(self: TaskActor, agent: Any) -> None:
        if ends.begun == 1:
            rows.append(store.recorder.select_entry(self.name))
            raise ZeroDivisionError
        run(self, agent)

    monkeypatch.setattr(TaskActor, "_run", falls)
    with at_work(store) as system:
        task = system.spawn(steady)
        assert task.result(PATIENCE) == "done"
        ends.check(system, ZeroDivisionError, None)
        assert system._tree is not None
        ours = system._tree.worker.id
        assert [(row.status, row.owner) for row in rows] == [("running", ours)]
        assert [event.worker for event in task.events() if isinstance(event, Activated)] == [ours, ours]


class Own(pykka.ThreadingActor):
    """An actor of the user's own, in the same process."""

    use_daemon_thread = True

    def on_receive(self, message: Callable[[], object]) -> object:
        return message()


def test_the_users_own_actors_and_ours_do_not_stop_each_other(store: Store, ends: Ends) -> None:
    """A `BaseException` in an actor makes pykka stop all that it knows of, and wait for them."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    shut = Shut()
    with at_work(store) as system:
        task = system.spawn(shut.agent)
        assert shut.entered.wait(PATIENCE)
        one, other = Own.start(), Own.start()
        one.tell(interrupt)
        for own in (one, other):
            assert own.actor_stopped.wait(PATIENCE)
        pykka.ActorRegistry.stop_all()
        shut.door.set()
        assert task.result(PATIENCE) == "open"
        assert system.spawn(steady).result(PATIENCE) == "done"
        ends.check(system, None, None)
        third = Own.start()
        assert third.is_alive()
    assert third.is_alive(), "nor does the end of a system stop them"
    third.stop()
