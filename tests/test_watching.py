"""Who watches a task is told of its end, its holds and its restarts: once, in the order of the log, whoever ran it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import (
    AgentSystem,
    BlockingCallError,
    FailTask,
    InsideTaskError,
    Notice,
    OutsideTaskError,
    SystemClosedError,
    TaskHeldError,
    TaskRef,
    UnknownTaskError,
    Watch,
    agent,
    step,
    step_info,
)
from actors.appender import Appender
from actors.task_log import TaskLog
from actors.testing import CrashPlan, SimulatedCrash
from actors.watching import Watching
from domain.events import Completed, Failed, Held, Restarted, TaskEvent
from domain.faults import Fault
from domain.state import DIFFERS
from domain.task import AgentTask
from stores import Store, StoreCorruptError, StoreUnavailableError, open_store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, wait_for
from tests.scenario_kit import KILLED, World

BOTH = ("held", "restarted")


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("memory:") as opened:
        yield opened


class Told:
    """A callback that keeps what it is told."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._changed = threading.Condition()

    def __call__(self, notice: Notice) -> None:
        with self._changed:
            self.notices.append(notice)
            self._changed.notify_all()

    def wait(self, count: int = 1) -> list[Notice]:
        """Wait until so many notices have come, and give all that have."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.notices) >= count, PATIENCE), self.notices
            return self.notices.copy()

    @property
    def facts(self) -> list[tuple[str, str]]:
        return [(notice.kind, notice.reason) for notice in self.notices]


@step(name="watching: fine")
def fine(value: Any) -> Any:
    return value


@agent(name="watching: good")
def good(value: Any) -> Any:
    return fine(value)


@agent(name="watching: bad")
def bad() -> None:
    raise FailTask("no such customer")


crash = threading.Event()


@agent(name="watching: buggy")
def buggy() -> None:
    assert crash.wait(PATIENCE)
    raise KeyError("a bug")


@pytest.fixture(autouse=True)
def crashes_at_once() -> None:
    crash.set()


@pytest.fixture(autouse=True)
def has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a close wait for its callbacks for as long as a busy machine needs."""
    monkeypatch.setattr("actors.watching.LAST_WORD", PATIENCE)


def watched(system: AgentSystem, *callbacks: Callable[[Notice], object]) -> TaskRef[None]:
    """Spawn a task that is about to crash, with all that it may come to told to these."""
    crash.clear()
    task = system.spawn(buggy, id="t")
    for callback in callbacks:
        task.on_end(callback, also=BOTH)
    crash.set()
    return task


# ------------------------------------------------------------------ what is told


def test_an_end_is_told_once_with_plain_facts_whether_it_came_before_or_after_one_asked(store: Store) -> None:
    early, late = Told(), Told()
    go_on = threading.Event()

    @step
    def slow() -> None:
        assert go_on.wait(PATIENCE)

    @agent(name="watching: slow")
    def work() -> str:
        slow()
        return "done"

    with AgentSystem(store) as system:
        task = system.spawn(work, id="t")
        watch = task.on_end(early)
        assert isinstance(watch, Watch)
        assert repr(watch) == "Watch('t')"
        go_on.set()
        assert task.result(PATIENCE) == "done"
        task.on_end(late)
        last = task.events()[-1]
        told = early.wait() + late.wait()
    assert told == [Notice("t", "ended", "completed", last.originator_version, "", last.timestamp)] * 2


def test_a_failure_is_told_with_the_text_of_its_error(store: Store) -> None:
    told = Told()
    with AgentSystem(store) as system:
        system.spawn(bad, id="t").on_end(told)
        (notice,) = told.wait()
        assert system.task("t").status() == notice.status == "failed"
    assert notice.reason == "FailTask: no such customer"


def test_restarts_and_holds_are_told_to_who_wants_them_and_a_hold_that_stands_to_who_comes_late(store: Store) -> None:
    everything, only_the_end, late, late_too = Told(), Told(), Told(), Told()
    with AgentSystem(store) as system:
        task = watched(system, everything)
        task.on_end(only_the_end)
        everything.wait(3)
        task.on_end(late, also=["held"])
        task.on_end(late_too, also=["restarted"])
        late.wait()
        task.release(by="me")
        everything.wait(6)
        events = task.events()
    error = "KeyError: 'a bug'"
    one_life = [("restarted", error), ("restarted", error), ("held", "strikes")]
    assert everything.facts == one_life * 2
    assert [notice.status for notice in everything.notices] == ["queued", "queued", "held"] * 2
    assert late.facts == [("held", "strikes")] * 2
    assert late_too.facts == [("restarted", error)] * 2
    assert only_the_end.notices == []
    stand = [(event.originator_version, event.timestamp) for event in events if isinstance(event, Held | Restarted)]
    assert [(notice.version, notice.at) for notice in everything.notices] == stand


def test_a_log_that_cannot_be_read_is_told_as_a_hold_and_the_rest_when_it_is_mended(world: World) -> None:
    with AgentSystem(world.url) as system:
        system.spawn(buggy, id="t")
        with pytest.raises(TaskHeldError):
            system.task("t").result(PATIENCE)
        head = system.task("t").describe().version
    told = Told()
    with world.client() as client:
        client.task("t").on_end(told, also=BOTH)
        assert [notice.version for notice in told.wait()] == [head]
        client.task("t").release(by="me")
        world.flip("t", 1, 20)
        with AgentSystem(world.url):
            assert told.wait(2)[-1].reason == "unreadable"
        assert (told.notices[-1].kind, told.notices[-1].version) == ("held", head + 1)
        world.flip("t", 1, 20)
        with AgentSystem(world.url):
            told.wait(5)
    assert [kind for kind, _ in told.facts] == ["held", "held", "restarted", "restarted", "held"]


def test_an_event_that_is_damaged_is_told_all_the_same(world: World) -> None:
    told = Told()
    with AgentSystem(world.url) as system:
        task = system.spawn(bad, id="t")
        task.on_end(Told()).cancel()
        wait_for(lambda: task.status() == "failed")
        version = task.describe().version
        world.flip("t", version, 20)
        task.on_end(told)
        (notice,) = told.wait()
    assert (notice.kind, notice.status, notice.version) == ("ended", "failed", version)
    assert f"version {version} of its log cannot be read" in notice.reason


WORKER = """
    import sys
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, die, hear

    @step
    def pay():
        if sys.argv[1] == "die":
            die()

    @agent
    def work(crashes):
        pay()
        if sys.argv[1] == "crash":
            raise KeyError(crashes)
        return crashes

    with AgentSystem(STORE):
        hear()
"""


def test_what_other_processes_do_is_told_to_a_client_that_runs_nothing(world: World) -> None:
    program, told, ended = world.write(WORKER), Told(), Told()
    with world.client() as client:
        client.log.create("t", "work", [[1], {}], {})
        client.task("t").on_end(told, also=BOTH)
        client.task("t").on_end(ended)
        world.start(program, "die").end(KILLED)
        crashing = world.start(program, "crash")
        told.wait(3)
        crashing.kill()
        assert told.facts == [("restarted", "KeyError: 1"), ("restarted", "KeyError: 1"), ("held", "strikes")]
        client.task("t").release(by="me")
        working = world.start(program, "work")
        (notice,) = ended.wait()
        assert told.wait(4)[-1] == notice
        assert (notice.kind, notice.status) == ("ended", "completed")
        working.kill()


# ------------------------------------------------------------------ who may ask


def test_an_unknown_task_is_refused_at_once_and_so_is_what_cannot_be_called_or_told(store: Store) -> None:
    async def later(notice: Notice) -> None: ...

    class Later:
        async def __call__(self, notice: Notice) -> None: ...

    def later_than(when: float, notice: Notice) -> None: ...

    with AgentSystem(store) as system:
        task: Any = system.spawn(good, 1, id="t")
        with pytest.raises(UnknownTaskError, match="there is no task 'nobody' in memory:") as caught:
            system.task("nobody").on_end(Told())
        assert caught.value.task_id == "nobody"
        refusals: dict[Any, str] = {
            None: "$",
            later: ": it is async$",
            Later(): ": it is async$",
            (lambda notice, more: None): ": called with one argument, missing a required argument: 'more'$",
            (lambda: None): ": called with one argument, too many positional arguments$",
        }
        for callback, why in refusals.items():
            with pytest.raises(TypeError, match=f"a callback is a plain function that takes a Notice, not .*{why}"):
                task.on_end(callback)
        for callback in (print, [].append, partial(later_than, 1), lambda *notices: None):
            task.on_end(callback).cancel()
        for also in ("held", ["ended"], ["held", "released"]):
            with pytest.raises(ValueError, match='also is a collection of "held" and "restarted", not '):
                task.on_end(Told(), also=also)
        assert system.watching._all() == []
    with pytest.raises(SystemClosedError):
        task.on_end(Told())
    with pytest.raises(RuntimeError, match="not open"):
        AgentSystem(store).task("t").on_end(Told())


def test_a_task_that_is_deleted_ends_its_watch_with_a_word(world: World, caplog: pytest.LogCaptureFixture) -> None:
    told, again = Told(), Told()
    with world.client() as client:
        for name in ("gone", "again"):
            client.log.create(name, "nobody", [[], {}], {})
        client.task("gone").on_end(told)
        client.task("again").on_end(again)
        with world.database() as database:
            for table, key in (("stored_events", "originator_id"), ("task_index", "id")):
                database.execute(f"DELETE FROM {table} WHERE {key} IN ('gone', 'again')")
        client.log.create("again", "nobody", [[], {}], {})
        wait_for(lambda: client.watching._all() == [])
    words = {record.getMessage() for record in caplog.records}
    assert words == {f"task {name} was deleted: who watches it is told nothing more" for name in ("gone", "again")}
    assert told.notices == again.notices == []


def test_an_agent_between_its_steps_is_refused_and_a_body_is_not(store: Store) -> None:
    told, refused = Told(), list[BaseException]()
    systems: list[AgentSystem] = []

    def in_body(notice: Notice) -> None:
        with pytest.raises(OutsideTaskError):
            step_info()  # it belongs to no body, whoever has asked for it
        told(notice)

    @step
    def ask() -> None:
        systems[0].task("t").on_end(in_body)

    @step
    async def ask_async() -> None:
        with pytest.raises(BlockingCallError, match=r"await on_end_async"):
            systems[0].task("t").on_end(in_body)
        await systems[0].task("t").on_end_async(in_body)

    @agent(name="watching: asks")
    async def asks() -> None:
        for call in (systems[0].task("t").on_end, systems[0].task("t").on_end_async):
            try:
                answer = call(told)
                if asyncio.iscoroutine(answer):
                    await answer
            except InsideTaskError as error:
                refused.append(error)
        await ask.aio()
        await ask_async()

    with AgentSystem(store) as system:
        systems.append(system)
        system.spawn(asks, id="t").result(PATIENCE)
        assert [notice.kind for notice in told.wait(2)] == ["ended"] * 2
    assert len(refused) == 2
    assert len(told.notices) == 2


def test_a_loop_that_asks_is_not_blocked_and_is_told_on_another_thread(store: Store) -> None:
    async def main() -> tuple[Notice, bool]:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        here, notices = threading.get_ident(), list[tuple[Notice, bool]]()

        def callback(notice: Notice) -> None:
            notices.append((notice, threading.get_ident() == here))
            loop.call_soon_threadsafe(told.set)

        async with AgentSystem(store) as system:
            task = await system.spawn_async(good, 1, id="t")
            await task.on_end_async(callback, also=["held"])
            await asyncio.wait_for(told.wait(), PATIENCE)
            return notices[0]

    notice, same_thread = asyncio.run(main())
    assert (notice.status, same_thread) == ("completed", False)


# ------------------------------------------------------------------ callbacks


class AwkwardError(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("not to be printed")


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), AwkwardError()], ids=repr)
def test_what_a_callback_raises_is_logged_with_its_task_and_changes_nothing(
    store: Store, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    told = Told()

    def raises(notice: Notice) -> None:
        told(notice)
        raise error

    with AgentSystem(store) as system:
        task = watched(system, raises)
        told.wait(3)
        task.on_end(raises, also=["held"])
        told.wait(4)
    said = [record.getMessage() for record in caplog.records if "a callback of on_end raised" in record.getMessage()]
    assert len(said) == 4
    assert all(line.startswith(f"task t: a callback of on_end raised {type(error).__name__}") for line in said)
    assert all("in raises" in line for line in said)


def test_a_slow_callback_delays_nobody_elses_and_has_its_own_one_after_the_other(store: Store) -> None:
    go_on, inside, told = threading.Event(), threading.Semaphore(0), Told()
    slow_ones: list[tuple[int, str]] = []

    def slow(number: int, notice: Notice) -> None:
        slow_ones.append((number, notice.kind))
        inside.release()
        assert go_on.wait(PATIENCE)
        slow_ones.append((number, notice.kind))

    with AgentSystem(store) as system:
        task = watched(system, *(partial(slow, number) for number in range(20)))
        with pytest.raises(TaskHeldError):
            task.result(PATIENCE)
        for _ in range(20):
            assert inside.acquire(timeout=PATIENCE)
        system.spawn(good, 1).on_end(told)
        told.wait()
        assert len(slow_ones) == 20
        go_on.set()
        wait_for(lambda: len(slow_ones) == 120)
    for number in range(20):
        mine = [kind for each, kind in slow_ones if each == number]
        assert mine == ["restarted"] * 4 + ["held"] * 2


def test_a_watch_that_was_cancelled_is_told_nothing_more_not_even_what_waits_for_it(store: Store) -> None:
    told, others, never = Told(), Told(), Told()
    go_on, ended = threading.Event(), threading.Event()

    def slow(notice: Notice) -> None:
        told(notice)
        assert go_on.wait(PATIENCE)
        ended.set()

    with AgentSystem(store) as system:
        crash.clear()
        task = system.spawn(buggy, id="t")
        watch, gone, _ = [task.on_end(callback, also=BOTH) for callback in (slow, never, others)]
        crash.set()
        gone.cancel()
        gone.cancel()
        others.wait(3)
        task.release(by="me")
        others.wait(4)  # so the holds of the first life wait for the slow one now
        watch.cancel()
        go_on.set()
        assert ended.wait(PATIENCE)
        others.wait(6)
    assert len(told.notices) == 1
    assert never.notices == []


def test_a_callback_may_cancel_its_own_watch(store: Store) -> None:
    told, watches = Told(), list[Watch]()

    def once(notice: Notice) -> None:
        told(notice)
        watches[0].cancel()

    with AgentSystem(store) as system:
        crash.clear()
        task = system.spawn(buggy, id="t")
        watches.append(task.on_end(once, also=BOTH))
        crash.set()
        with pytest.raises(TaskHeldError):
            task.result(PATIENCE)
        wait_for(lambda: system.watching._all() == [])
    assert len(told.notices) == 1


def test_a_callback_may_use_the_system(store: Store) -> None:
    told = Told()
    results = list[Any]()

    def goes_on(notice: Notice) -> None:
        results.append(system.task(notice.id).result(PATIENCE))
        following = system.spawn(good, 2, id="second")
        results.append(following.result(PATIENCE))
        following.on_end(told)

    with AgentSystem(store) as system:
        system.spawn(good, 1, id="first").on_end(goes_on)
        assert told.wait()[0].id == "second"
    assert results == [1, 2]


# ------------------------------------------------------------------ what it costs


def test_nothing_is_started_or_asked_before_the_first_watch_and_after_the_last(store: Store) -> None:
    looks = counted(store, "select_rows")
    with AgentSystem(store) as system:
        before = threading.active_count()
        told = Told()
        task = system.spawn(good, 1, id="t")
        assert task.result(PATIENCE) == 1
        assert looks == []
        task.on_end(told)
        told.wait()
        wait_for(lambda: system.watching._loop_ended is None)
        assert system.log._watchers == {}
        count = len(looks)
        assert task.result(PATIENCE) == 1
        assert len(looks) == count <= 2
    assert threading.active_count() <= before


def counted(store: Store, name: str) -> list[float]:
    """Count the calls of a recorder's method, by when each was made."""
    method, calls = getattr(store.recorder, name), list[float]()

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(monotonic())
        return method(*args, **kwargs)

    setattr(store.recorder, name, count)
    return calls


def test_a_thousand_watches_cost_one_thread_and_one_look_at_a_time(store: Store) -> None:
    count, told, others = 1000, Told(), TaskLog(store)
    with AgentSystem(store, run=False) as client:
        before = set(threading.enumerate())
        for number in range(count):
            client.log.create(f"t{number}", "nobody", [[number], {}], {})
        looks, rows = counted(store, "select_rows"), counted(store, "select_entry")
        for number in range(count):
            client.task(f"t{number}").on_end(told)
        assert len(set(threading.enumerate()) - before) == 1
        assert len(rows) == count
        began, asked = monotonic(), len(looks)
        for number in range(count):
            complete(others, f"t{number}")
        told.wait(count)
        assert len(set(threading.enumerate()) - before) <= 3
        assert len(looks) - asked <= (monotonic() - began) / 0.05 + 5
        assert len(rows) == count
    assert sorted(notice.id for notice in told.notices) == sorted(f"t{number}" for number in range(count))


def complete(log: TaskLog, task_id: str) -> None:
    appender = Appender(log, log.load(task_id))
    appender.append(claim)
    appender.append(lambda task, now: task.complete(task.activation, now, None))


def claim(task: AgentTask, now: float) -> list[TaskEvent]:
    return list(task.activate(now, worker="w", token="t", limit=None))


# ------------------------------------------------------------------ closing, and a store that is away


def test_what_the_log_has_before_a_close_is_told_before_it_returns(store: Store) -> None:
    for number in range(10):
        told = Told()
        others = TaskLog(store)
        with AgentSystem(store, run=False) as client:
            client.log.create(f"t{number}", "nobody", [[], {}], {})
            client.task(f"t{number}").on_end(told)
            complete(others, f"t{number}")
        assert [notice.id for notice in told.notices] == [f"t{number}"]


def test_what_ends_in_the_grace_of_a_close_is_told_before_it_returns(store: Store) -> None:
    told, entered, go_on = Told(), threading.Event(), threading.Event()

    @step
    def last() -> str:
        entered.set()
        assert go_on.wait(PATIENCE)
        return "done"

    @agent(name="watching: last")
    def work() -> str:
        return last()

    with AgentSystem(store) as system:
        system.spawn(work, id="t").on_end(told)
        assert entered.wait(PATIENCE)
        closing = threading.Thread(target=system.close)
        closing.start()
        wait_for(lambda: system._closed)
        go_on.set()
        closing.join(PATIENCE)
        assert [notice.status for notice in told.notices] == ["completed"]


def test_a_close_waits_for_no_callback_longer_than_a_moment_and_says_what_is_missed(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.watching.LAST_WORD", 0.1)
    go_on, entered = threading.Event(), threading.Event()
    told = list[Notice]()

    def stuck(notice: Notice) -> None:
        told.append(notice)
        entered.set()
        go_on.wait(PATIENCE)

    with AgentSystem(store) as system:
        task = watched(system, stuck)
        with pytest.raises(TaskHeldError):
            task.result(PATIENCE)
        assert entered.wait(PATIENCE)
    go_on.set()
    wait_for(lambda: not system.watching._desk._calling)
    assert [notice.kind for notice in told] == ["restarted"]
    assert "task t: the system is closed, and a callback of on_end is not told of 2 more" in caplog.text


@pytest.mark.parametrize("closers", [1, 3])
def test_a_callback_may_close_the_system(store: Store, closers: int) -> None:
    together, closed = threading.Barrier(closers), threading.Semaphore(0)

    def close(_notice: Notice) -> None:
        together.wait(PATIENCE)
        system.close()
        closed.release()

    began = monotonic()
    system = AgentSystem(store)
    with system:
        task = system.spawn(good, 1, id="t")
        for _ in range(closers):
            task.on_end(close)
        for _ in range(closers):
            assert closed.acquire(timeout=PATIENCE)
    assert monotonic() - began < PATIENCE / 2, "it has waited for its own callback"
    with pytest.raises(SystemClosedError):
        system.spawn(good, 1)


class Unlucky:
    """Looks at what is watched of which the third and the fourth end in an error."""

    def __init__(self, store: Store, error: BaseException) -> None:
        self.looks = 0
        self._select, self._error = store.recorder.select_rows, error
        store.recorder.select_rows = self  # type: ignore[method-assign, assignment]

    def __call__(self, ids: Any) -> Any:
        self.looks += 1
        if 2 < self.looks < 5:
            raise self._error
        return self._select(ids)


def test_a_store_that_is_away_is_waited_for(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    unlucky = Unlucky(store, StoreUnavailableError("no such disk, for a test", url="memory:", reason="a test"))
    with AgentSystem(store, run=False) as client:
        client.log.create("t", "nobody", [[], {}], {})
        client.task("t").on_end(told)
        wait_for(lambda: unlucky.looks > 5)
        complete(TaskLog(store), "t")
        assert [notice.status for notice in told.wait()] == ["completed"]
    assert caplog.text.count("watches wait, the store is away: no such disk, for a test") == 1


def test_an_error_of_any_kind_is_logged_once_and_what_is_watched_looked_at_again(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    told, unlucky = Told(), Unlucky(store, MemoryError("for a test"))
    with AgentSystem(store, run=False) as client:
        client.log.create("t", "nobody", [[], {}], {})
        client.task("t").on_end(told)
        wait_for(lambda: unlucky.looks > 5)
        complete(TaskLog(store), "t")
        assert [notice.status for notice in told.wait()] == ["completed"]
    assert caplog.text.count("watches wait, what is watched could not be looked at") == 1
    assert caplog.text.count("MemoryError: for a test") == 1


def test_where_the_loop_was_ended_by_force_the_next_watch_begins_another_for_all(store: Store) -> None:
    told, late, unlucky = Told(), Told(), Unlucky(store, SystemExit())
    with AgentSystem(store, run=False) as client:
        client.log.create("t", "nobody", [[], {}], {})
        client.task("t").on_end(told)
        wait_for(lambda: client.watching._loop_ended is None)
        unlucky.looks = 10
        complete(TaskLog(store), "t")
        client.task("t").on_end(late)
        assert [notice.status for notice in (*told.wait(), *late.wait())] == ["completed"] * 2


def test_a_loop_that_leaves_looks_at_nothing_that_another_looks_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, goes_on, select = Told(), Watching._goes_on, store.recorder.select_rows
    leaves, may_leave = threading.Event(), threading.Event()
    ended, looks = list[Any](), list[Any]()

    def slow_to_leave(self: Watching) -> bool:
        mine = self._loop_ended
        if goes_on(self):
            return True
        ended.append(mine)
        leaves.set()
        assert may_leave.wait(PATIENCE)
        return False

    def slow_to_look(ids: Any) -> Any:
        looks.append(ids)
        if leaves.is_set() and not may_leave.is_set():
            may_leave.set()
            wait_for(lambda: ended[0].is_set() or len(looks) > 2)
        return select(ids)

    monkeypatch.setattr(Watching, "_goes_on", slow_to_leave)
    store.recorder.select_rows = slow_to_look  # type: ignore[method-assign]
    with AgentSystem(store) as system:
        task = system.spawn(good, 1, id="t")
        task.result(PATIENCE)
        task.on_end(Told())
        assert leaves.wait(PATIENCE)
        task.on_end(told)
        told.wait()
    assert (len(told.notices), len(looks)) == (1, 2)


def test_a_task_that_the_store_cannot_read_ends_its_watch_and_nobody_elses(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, told, select = Told(), Told(), store.recorder.select_events

    def damaged(task_id: Any, **bounds: Any) -> Any:
        if task_id == "damaged" and threading.current_thread().name.startswith("perdure-body"):
            raise StoreCorruptError("a page is damaged, for a test", url="memory:")
        return select(task_id, **bounds)

    monkeypatch.setattr(store.recorder, "select_events", damaged)
    with AgentSystem(store, run=False) as client:
        for name, callback in (("damaged", lost), ("sound", told)):
            client.log.create(name, "nobody", [[], {}], {})
            client.task(name).on_end(callback, also=BOTH)
            complete(TaskLog(store), name)
        assert [notice.id for notice in told.wait()] == ["sound"]
        wait_for(lambda: client.watching._all() == [])
    assert lost.notices == []
    assert "task damaged: what is new of it cannot be told; this watch on it ends" in caplog.text


def test_a_process_that_has_died_tells_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    told, plan = Told(), CrashPlan(None)
    with AgentSystem(CrashingStore(store, plan), run=False) as client:
        client.log.create("t", "nobody", [[], {}], {})
        client.task("t").on_end(told)
        plan.die_now("here")
        complete(TaskLog(store), "t")
        with pytest.raises(SimulatedCrash):
            client.task("t").on_end(told)
    assert told.notices == []
    assert caplog.text == ""


# ------------------------------------------------------------------ any program


def hold(task: AgentTask, now: float) -> list[TaskEvent]:
    return task.hold(task.activation, now, DIFFERS, "1", {"message": "for a test"})


def restart(task: AgentTask, now: float) -> list[TaskEvent]:
    error = Fault(("ValueError",), f"at {task.version}")
    return task.restart(task.activation, now, error, where="f.py:7", jitter=0.0, limit=None)


DEEDS: dict[str, list[Callable[[AgentTask, float], list[TaskEvent]]]] = {
    "restart": [claim, restart],
    "hold": [claim, hold],
    "release": [lambda task, now: task.release(now, "me")],
    "stop": [claim, lambda task, now: task.passivate(task.activation, now, [])],
    "complete": [claim, lambda task, now: task.complete(task.activation, now, 1)],
    "fail": [claim, lambda task, now: task.fail(task.activation, now, Fault(("ValueError",), "no"))],
}


@st.composite
def lives(draw: st.DrawFn) -> list[str]:
    """Draw what becomes of a task."""
    deeds = draw(st.lists(st.sampled_from(["restart", "hold", "hold", "stop"]), max_size=6))
    life = [part for deed in deeds for part in ([deed, "release"] if deed == "hold" else [deed])]
    if life and life[-1] == "release" and draw(st.booleans()):
        return life[:-1]
    return life + draw(st.sampled_from([["complete"], ["fail"], []]))


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[list[str], bool, list[tuple[int, tuple[Any, ...]]]]]:
    """Draw tasks: what becomes of each, whether in this process, and at which deeds who begins to watch for what."""
    program = []
    for _ in range(draw(st.integers(1, 3))):
        life = draw(lives())
        also = st.sampled_from([(), ("held",), ("restarted",), BOTH])
        moments = st.integers(0, len(life)) | st.just(len(life))
        watches = draw(st.lists(st.tuples(moments, also), max_size=4))
        program.append((life, draw(st.booleans()), watches))
    return program


class Asked:
    """One watch, and where the log was before and after it was asked for."""

    def __init__(self, system: AgentSystem, task_id: str, also: tuple[Any, ...]) -> None:
        self.told, self.also, self.task = Told(), also, system.task(task_id)

    def ask(self) -> None:
        self.before = self.task.describe().version
        self.task.on_end(self.told, also=self.also)
        self.after = self.task.describe().version

    def check(self) -> None:
        """Hold what it was told to the log: an unbroken end of it, no more than is new or stands, and no less."""
        events = self.task.events()
        wanted = [event for event in events if kind_of(event) in ("ended", *self.also)]
        told = [(notice.version, notice.kind, notice.at) for notice in self.told.notices]
        all_of_it = [(event.originator_version, kind_of(event), event.timestamp) for event in wanted]
        assert told == all_of_it[len(all_of_it) - len(told) :]
        due = [fact for fact in all_of_it if fact[0] > self.after or fact[1] == "ended"]
        stood = standing(events[: self.before]) if "held" in self.also else 0
        due += [fact for fact in all_of_it if fact[0] == stood == standing(events[: self.after])]
        assert set(due) <= set(told)
        assert {fact[0] for fact in told if fact[1] != "ended" and fact[0] <= self.before} <= {stood}


def kind_of(event: TaskEvent) -> str:
    known = {Held: "held", Restarted: "restarted", Completed: "ended", Failed: "ended"}
    return known.get(type(event), "")


def standing(events: list[TaskEvent]) -> int:
    """Give the version of the hold that stands at the end of these events; 0 for none."""
    return events[-1].originator_version if isinstance(events[-1], Held) else 0


@settings(deadline=None, max_examples=100)
@given(programs())
def test_each_watch_is_told_exactly_what_the_log_has_once_and_in_order(program: Any) -> None:
    """Through several threads, in this process and past it; all is told when the system has closed."""
    with open_store("memory:") as store:
        asked = list[Asked]()
        with AgentSystem(store, run=False) as system:
            threads = []
            for number, (life, here, watches) in enumerate(program):
                log = system.log if here else TaskLog(store)
                system.log.create(f"t{number}", "nobody", [[], {}], {})
                begun = [threading.Event() for _ in range(len(life) + 1)]
                for at, also in watches:
                    asked.append(Asked(system, f"t{number}", also))
                    threads.append(threading.Thread(target=ask_at, args=(asked[-1], begun[at])))
                threads.append(threading.Thread(target=live_on, args=(log, f"t{number}", life, begun)))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        with AgentSystem(store, run=False) as client:
            for each in asked:
                each.task = client.task(each.task.id)
                each.check()


def ask_at(asked: Asked, begun: threading.Event) -> None:
    assert begun.wait(PATIENCE)
    asked.ask()


def live_on(log: TaskLog, task_id: str, life: list[str], begun: list[threading.Event]) -> None:
    appender = Appender(log, log.load(task_id))
    for event, deed in zip(begun, life, strict=False):
        event.set()
        for decide in DEEDS[deed]:
            appender.append(decide)
        if deed == "restart":
            log.hint(task_id)  # as the end of its actor does
    begun[-1].set()
