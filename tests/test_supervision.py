"""A crash is an event: restarts, holds, suspects, stops, fences, and a recovery loop that nothing ends."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pykka
import pytest

from actors import AgentSystem, ResolveError, TaskHeldError, TaskRef, agent, step
from actors.appender import Appender
from actors.definitions import find_agent, known_agents
from actors.directory import Directory
from actors.hints import Hints
from actors.lease import Lease
from actors.recovery import Recovery
from actors.runtime import Runtime
from actors.supervised import Down
from actors.supervisor import Supervisor
from actors.task_actor import TaskActor
from actors.task_log import TaskLog
from actors.worker import Worker
from domain.events import Activated, Held, Passivated, Released, Restarted, StepFailed, StepStarted, StepSucceeded
from domain.record import Call
from domain.retry import restart_delay
from stores import Store, StoreCorruptError, open_store
from stores.crash import CrashingStore, CrashPlan, SimulatedCrash

names = itertools.count()
SOON = 10


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as opened:
        yield opened


def topics(task: TaskRef[Any]) -> list[str]:
    return [type(event).__name__ for event in task.events()]


def new_agent(fn: Callable[..., Any], name: str | None = None) -> Any:
    return agent(name=name or f"agent-{next(names)}")(fn)


def test_an_agent_that_crashes_is_restarted_with_growing_delays_and_then_held(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    @step
    def before() -> int:
        return 1

    def buggy() -> int:
        before()
        raise KeyError("a bug")

    with AgentSystem(store) as system:
        task = system.spawn(new_agent(buggy))
        with pytest.raises(TaskHeldError, match=r"3 crashes in a row, its log ends at step 1 .*before") as caught:
            task.result(timeout=SOON)
    assert f"at {__file__}:" in str(caught.value)
    assert caught.value.reason == "strikes"
    with AgentSystem(store, run=False) as client:
        events = client.task(task.id).events()
    restarts = [event for event in events if isinstance(event, Restarted)]
    assert [event.strikes for event in restarts] == [1, 2]
    for event in restarts:
        assert event.due - event.timestamp == pytest.approx(restart_delay(event.strikes), rel=0.11)
    begun = [event.timestamp for event in events if isinstance(event, Activated)]
    assert all(later >= event.due for later, event in zip(begun[1:], restarts, strict=True))
    assert isinstance(events[-1], Held)
    told = [record for record in caplog.records if "crashed at" in record.getMessage()]
    assert len(told) == 3


def test_a_mended_task_goes_on_after_release_without_repeating_a_step(store: Store) -> None:
    runs: list[str] = []
    broken = threading.Event()
    broken.set()

    @step
    def paid() -> str:
        runs.append("paid")
        return "receipt"

    def work() -> str:
        receipt = paid()
        if broken.is_set():
            raise RuntimeError
        return receipt

    with AgentSystem(store, strikes=1) as system:
        task = system.spawn(new_agent(work))
        with pytest.raises(TaskHeldError):
            task.result(timeout=SOON)
        broken.clear()
        task.release(by="me")
        assert task.result(timeout=SOON) == "receipt"
        assert [event.by for event in task.events() if isinstance(event, Released)] == ["me"]
    assert runs == ["paid"]


def test_one_bad_task_takes_no_sibling_along(store: Store) -> None:
    def bad() -> None:
        raise SystemExit(3)

    def good(n: int) -> int:
        return n

    with AgentSystem(store, max_active=2) as system:
        bad_task = system.spawn(new_agent(bad))
        fine = new_agent(good)
        assert [system.spawn(fine, n).result(timeout=SOON) for n in range(5)] == list(range(5))
        with pytest.raises(TaskHeldError, match="SystemExit"):
            bad_task.result(timeout=SOON)


def lose(store: Store, task_id: str, times: int) -> None:
    """Let `times` activations of a task die without a mark, as a killed process leaves it."""
    log = TaskLog(store)
    for number in range(times):
        appender = Appender(log, log.load(task_id))
        appender.append(partial(_activate, f"dead{number}"))


def create_suspect(store: Store) -> str:
    """Make the task `suspect`, which has died twice, of an agent that no worker here knows yet; give that one's name.

    One that a worker knew could be claimed, and run, before it has died.
    """
    name = f"agent-{next(names)}"
    TaskLog(store).create("suspect", name, [[], {}], {})
    lose(store, "suspect", 2)
    return name


def _activate(worker: str, task: Any, now: float) -> list[Any]:
    return list(task.activate(now, worker=worker, token="t", limit=None))


def test_a_suspect_runs_alone_until_its_first_outcome(store: Store) -> None:
    active: set[str] = set()
    together: list[set[str]] = []
    proven = threading.Event()
    others_may_end = threading.Event()

    @step
    def first(name: str) -> None:
        active.add(name)
        together.append(set(active))

    @step
    def second(name: str) -> None:
        if name == "suspect":
            assert proven.wait(SOON)
        else:
            proven.set()
            assert others_may_end.wait(SOON)

    def work(name: str) -> str:
        first(name)
        second(name)
        active.discard(name)
        return name

    named = new_agent(work)
    with AgentSystem(store, run=False) as client:
        client.spawn(named, "suspect", id="suspect")
        lose(store, "suspect", 2)
        for number in range(3):
            client.spawn(named, f"innocent{number}", id=f"innocent{number}")
    with AgentSystem(store, max_active=8) as system:
        assert system.task("suspect").result(timeout=SOON) == "suspect"
        others_may_end.set()
        for number in range(3):
            system.task(f"innocent{number}").result(timeout=SOON)
    assert together[0] == {"suspect"}


def test_who_runs_makes_way_for_a_suspect_at_its_next_step_and_goes_on_after_it(store: Store) -> None:
    entered, go_on, suspect_ran = threading.Event(), threading.Event(), threading.Event()

    @step
    def long() -> None:
        entered.set()
        assert go_on.wait(SOON)

    @step
    def after() -> bool:
        return suspect_ran.wait(SOON)

    @step
    def only() -> None:
        suspect_ran.set()

    def busy() -> bool:
        long()
        return after()

    def suspect() -> None:
        only()

    busy_agent, suspect_name = new_agent(busy), create_suspect(store)
    with AgentSystem(store, max_active=8) as system, AgentSystem(store, run=False) as client:
        task = system.spawn(busy_agent, id="busy")
        assert entered.wait(SOON)
        new_agent(suspect, suspect_name)
        wait_for(lambda: asked_to_make_way(system, "busy"))
        assert client.task("suspect").status() == "running"  # as its log has it; its last worker is dead
        assert not suspect_ran.is_set()
        go_on.set()
        assert task.result(timeout=SOON)
        assert client.task("suspect").result(timeout=SOON) is None
        assert [event.attempt for event in task.events() if isinstance(event, StepStarted)] == [1, 1]
        assert topics(task).count("Passivated") == 1
        assert task.describe().strikes == 0


def asked_to_make_way(system: AgentSystem, task_id: str) -> bool:
    assert system._tree is not None
    actor = system._tree.directory.hosted()[task_id]
    return actor is not None and actor.hints.way.is_set()


def test_at_the_limit_a_lost_task_is_held_at_the_claim_and_its_agent_not_called(store: Store) -> None:
    called = threading.Event()

    def work() -> None:
        called.set()

    never = new_agent(work)
    with AgentSystem(store, run=False) as client:
        task = client.spawn(never, id="poison")
        lose(store, "poison", 3)
    with AgentSystem(store) as system:
        with pytest.raises(TaskHeldError, match="3 crashes in a row, before its first step"):
            system.task(task.id).result(timeout=SOON)
        assert topics(system.task(task.id))[-2:] == ["Activated", "Held"]
    assert not called.is_set()


def test_a_deliberate_stop_lets_the_body_end_starts_nothing_new_and_is_no_strike(store: Store) -> None:
    entered, go_on = threading.Event(), threading.Event()
    nexts: list[int] = []

    @step
    def slow() -> str:
        entered.set()
        assert go_on.wait(SOON)
        return "stored"

    @step
    def after() -> None:
        nexts.append(1)

    def work() -> str:
        value = slow()
        after()
        return value

    slow_agent = new_agent(work)
    system = AgentSystem(store)
    with system:
        task = system.spawn(slow_agent, id="t")
        assert entered.wait(SOON)
        closing = threading.Thread(target=system.close)
        closing.start()
        go_on.set()
        closing.join(SOON)
    with AgentSystem(store, run=False) as client:
        assert topics(client.task("t")) == ["Created", "Activated", "StepStarted", "StepSucceeded", "Passivated"]
        assert client.task("t").describe().strikes == 0
    assert nexts == []
    with AgentSystem(store) as system:
        assert system.spawn(slow_agent, id="t").result(timeout=SOON) == "stored"
    assert nexts == [1]
    assert task.id == "t"


def test_a_body_that_outlives_the_grace_is_given_up_and_its_late_result_stored_nowhere(store: Store) -> None:
    entered, go_on, late = threading.Event(), threading.Event(), threading.Event()

    @step
    def hangs() -> str:
        entered.set()
        go_on.wait(SOON)
        late.set()
        return "late"

    def work() -> str:
        return hangs()

    hanging = new_agent(work)
    with AgentSystem(store, grace=0.05) as system:
        system.spawn(hanging, id="t")
        assert entered.wait(SOON)
    with AgentSystem(store, run=False) as client:
        task = client.task("t")
        events = task.events()
        assert isinstance(events[-1], Passivated)
        assert events[-1].cut_off == ["1"]
        go_on.set()
        assert late.wait(SOON)
        assert not threads_named("TaskActor", wait=SOON)
        assert task.events() == events
    with AgentSystem(store) as system:
        assert system.task("t").result(timeout=SOON) == "late"
        assert [event.attempt for event in system.task("t").events() if isinstance(event, StepStarted)] == [1, 2]


def threads_named(name: str, *, wait: float) -> list[str]:
    """The live threads of that name, once they had `wait` seconds each to end."""
    found = [thread for thread in threading.enumerate() if thread.name.startswith(name)]
    for thread in found:
        thread.join(wait)
    return [thread.name for thread in found if thread.is_alive()]


def test_who_lost_the_task_writes_nothing_more_and_starts_nothing_more(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    entered, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    started: list[str] = []

    @step
    def held_up() -> str:
        entered.set()
        assert go_on.wait(SOON)
        return "of the old owner"

    @step
    def next_one() -> None:
        started.append("next")

    def work() -> None:
        try:
            held_up()
            next_one()
        finally:
            ended.set()

    with AgentSystem(store) as system:
        task = system.spawn(new_agent(work), id="t")
        assert entered.wait(SOON)
        lose(store, "t", 1)
        with TaskWatch(store, "someone-else"):
            go_on.set()
            assert ended.wait(SOON)
            assert not threads_named("TaskActor", wait=SOON)
            assert topics(task) == ["Created", "Activated", "StepStarted", "Activated"]
    assert started == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


class TaskWatch:
    """A worker that lives and owns what the lost activations are said to be owned by."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store

    def __enter__(self) -> None:
        self.lock = self.store.workers.hold("dead0", {})

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_recovery_that_dies_is_made_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Recovery._round
    deaths: list[int] = []

    def dies_twice(self: Recovery) -> int:
        if len(deaths) < 2:
            deaths.append(1)
            raise ZeroDivisionError
        return rounds(self)

    monkeypatch.setattr(Recovery, "_round", dies_twice)

    def work() -> str:
        return "done"

    with AgentSystem(store) as system:
        assert system.spawn(new_agent(work)).result(timeout=SOON) == "done"
    assert len(deaths) == 2


def test_a_thread_that_cannot_start_costs_no_task(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, list[str]()

    def no_thread(self: threading.Thread) -> None:
        if self.name.startswith("TaskActor") and len(refused) < 3:
            refused.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", no_thread)

    def work() -> str:
        return "done"

    with AgentSystem(store) as system:
        task = system.spawn(new_agent(work))
        assert task.result(timeout=SOON) == "done"
        assert task.describe().activation == 1
    assert len(refused) == 3


def test_a_worker_leaves_a_task_whose_agent_it_does_not_know(store: Store) -> None:
    with AgentSystem(store, run=False) as client:
        log = TaskLog(store)
        log.create("stranger", "known-to-nobody", [[], {}], {})
        assert client.task("stranger").status() == "queued"

    def work() -> str:
        return "done"

    with AgentSystem(store) as system:
        assert system.spawn(new_agent(work)).result(timeout=SOON) == "done"
        assert system.task("stranger").status() == "queued"
        assert topics(system.task("stranger")) == ["Created"]


def test_a_task_held_for_its_code_is_tried_again_once_per_worker_and_nothing_written_until_it_fits(
    store: Store,
) -> None:
    calls: list[str] = []

    @step
    def old() -> str:
        return "old"

    @step
    def new() -> str:
        calls.append("new")
        return "new"

    @step
    def boom() -> str:
        raise ValueError

    name = f"agent-{next(names)}"

    def one() -> str:
        old()
        return boom()

    def two() -> str:
        new()
        return boom()

    def three() -> str:
        old()
        return new()

    with AgentSystem(store, run=False) as client:
        client.spawn(new_agent(one, name), id="t")
    log = TaskLog(store)
    appender = Appender(log, log.load("t"))
    appender.append(partial(_activate, "gone"))
    appender.append(lambda task, now: task.start_step(1, now, Call("1", "step", old.name, ""), "", ""))
    appender.append(lambda task, now: task.finish_step(1, now, Call("1", "step", old.name, ""), 1, value="old"))
    appender.append(lambda task, now: task.passivate(1, now, []))
    new_agent(two, name)
    with AgentSystem(store) as system, pytest.raises(TaskHeldError, match=r"position 1.*step .*old.*step .*new"):
        system.task("t").result(timeout=SOON)
    held = log.load("t").version
    for _ in range(2):
        with AgentSystem(store) as system, pytest.raises(TaskHeldError):
            system.task("t").result(timeout=SOON)
        assert log.load("t").version == held
    new_agent(three, name)
    with AgentSystem(store) as system:
        assert system.task("t").result(timeout=SOON) == "new"
        assert topics(system.task("t"))[held : held + 2] == ["Released", "Activated"]
    assert calls == ["new"]


def test_who_comes_late_to_a_task_leaves_it_until_it_is_due(store: Store) -> None:
    """Two workers have seen the row of a new task; the other has claimed it meanwhile, and given it back to wait."""

    def work() -> None: ...

    with AgentSystem(store, run=False) as client:
        client.spawn(new_agent(work), id="t")
    log = TaskLog(store)
    appender = Appender(log, log.load("t"))
    appender.append(partial(_activate, "other"))
    appender.append(lambda task, now: task.passivate(1, now, [], due=now + 60))
    worker = Worker("late", log, Runtime(), 3, None, find_agent, known_agents, lambda _: None, lambda: None)
    assert TaskActor.launch(worker, "t", Hints(), None).actor_stopped.wait(SOON)
    assert log.load("t").version == appender.task.version == 3


def test_ten_thousand_deaths_would_not_make_a_restart_wait_longer_than_a_minute() -> None:
    assert restart_delay(10_000, jitter=1) <= 66


def test_a_body_that_waits_for_another_task_lends_its_place(store: Store) -> None:
    def inner() -> int:
        return 7

    inner_agent = new_agent(inner)
    systems: list[AgentSystem] = []

    @step
    def waits() -> int:
        return systems[0].spawn(inner_agent, id="inner").result(timeout=SOON)

    def outer() -> int:
        return waits()

    with AgentSystem(store, max_active=1) as system:
        systems.append(system)
        assert system.spawn(new_agent(outer), id="outer").result(timeout=SOON) == 7


def test_no_thread_is_left_behind(store: Store) -> None:
    before = threading.active_count()

    def work() -> str:
        return "done"

    busy = new_agent(work)
    with AgentSystem(store) as system:
        for task in [system.spawn(busy) for _ in range(20)]:
            task.result(timeout=SOON)
    for name in ("TaskActor", "Recovery", "Lease", "Supervisor"):
        assert not threads_named(name, wait=SOON)
    assert threading.active_count() <= before


def test_outcomes_and_failures_are_counted_as_getting_somewhere(store: Store) -> None:
    @step
    def fails() -> None:
        raise ValueError("no")

    def work() -> None:
        fails()

    with AgentSystem(store, run=False) as client:
        client.spawn(new_agent(work), id="t")
        lose(store, "t", 2)
    with AgentSystem(store) as system:
        with pytest.raises(Exception, match="ValueError: step 1"):
            system.task("t").result(timeout=SOON)
        events = system.task("t").events()
    assert any(isinstance(event, StepFailed) for event in events)
    assert not any(isinstance(event, StepSucceeded) for event in events)


def test_an_actor_that_falls_by_no_fault_of_its_agent_is_left_alone_for_a_while(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, falls = TaskLog.load, list[float]()

    def unlucky(self: TaskLog, task_id: str) -> Any:
        if threading.current_thread().name.startswith("TaskActor") and len(falls) < 3:
            falls.append(time.monotonic())
            raise StoreCorruptError("a page is damaged, for a test", url="sqlite:///x")
        return load(self, task_id)

    monkeypatch.setattr(TaskLog, "load", unlucky)

    def work() -> str:
        return "done"

    with AgentSystem(store) as system:
        task = system.spawn(new_agent(work))
        assert task.result(timeout=SOON) == "done"
        assert task.describe().activation == 1
    pauses = [later - earlier for earlier, later in itertools.pairwise(falls)]
    assert all(pause >= restart_delay(number) for number, pause in enumerate(pauses, start=1))


def test_a_crash_of_an_agent_makes_no_suspect_a_death_does(store: Store) -> None:
    def work() -> None:
        raise KeyError

    log = TaskLog(store)
    log.create("crashed", new_agent(work).name, [[], {}], {})
    log.create("dead", "nobody", [[], {}], {})
    lose(store, "dead", 2)
    with AgentSystem(store, strikes=None) as system:
        wait_for(lambda: system.task("crashed").describe().strikes >= 2)
    rows = {row.id: row.strikes for row in log.recorder.select_entries()}
    assert rows["dead"] == 2
    assert rows["crashed"] == 0


def wait_for(condition: Callable[[], bool]) -> None:
    event = threading.Event()
    for _ in range(SOON * 100):
        if condition():
            return
        event.wait(0.01)
    raise AssertionError("it never came about")


def test_a_step_in_doubt_whose_arguments_differ_each_time_is_decided_by_a_person_but_never_rerun(store: Store) -> None:
    calls = itertools.count()

    @step
    def pay(amount: int) -> str:
        return f"paid {amount}"

    def work() -> str:
        return pay(next(calls))

    paying = new_agent(work)
    dying = CrashingStore(store, CrashPlan(1, "body.after"))
    with pytest.raises(SimulatedCrash), AgentSystem(dying) as system:
        system.spawn(paying, id="t").result(timeout=SOON)
    dying.close()
    with AgentSystem(store) as system:
        task = system.task("t")
        with pytest.raises(TaskHeldError, match="in doubt with other arguments") as caught:
            task.result(timeout=SOON)
        assert "perdure resolve t 1 --value JSON" in str(caught.value)
        assert "--rerun" not in str(caught.value)
        with pytest.raises(ResolveError, match="its idempotency key would lie"):
            task.resolve("1", rerun=True)
        task.resolve("1", value="paid 0")
        assert task.result(timeout=SOON) == "paid 0"


def test_a_hold_says_what_a_person_needs_in_text_and_as_facts(store: Store) -> None:
    @step
    def push() -> None:
        raise ConnectionError("host down")

    def work() -> None:
        push()

    def buggy() -> None:
        raise KeyError("a bug")

    holding = agent(name=f"agent-{next(names)}", on_failure="hold")(work)
    with AgentSystem(store, strikes=1) as system:
        for fn, strikes, kind in ((holding, 0, "ConnectionError"), (new_agent(buggy), 1, "KeyError")):
            task = system.spawn(fn)
            with pytest.raises(TaskHeldError):
                task.result(timeout=SOON)
            view = task.describe()
            assert view.strikes == strikes
            assert view.fault is not None
            assert view.fault.kind == kind
            assert "raise" in view.fault.traceback


def test_tasks_that_fall_again_and_again_starve_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    load = TaskLog.load

    def unlucky(self: TaskLog, task_id: str) -> Any:
        if threading.current_thread().name.startswith("TaskActor") and task_id.startswith("falls"):
            raise StoreCorruptError("a page is damaged, for a test", url="sqlite:///x")
        return load(self, task_id)

    monkeypatch.setattr(TaskLog, "load", unlucky)

    def work() -> str:
        return "done"

    busy = new_agent(work)
    with AgentSystem(store, run=False) as client:
        for number in range(10):
            client.spawn(busy, id=f"falls{number}")
        client.spawn(busy, id="sound")
    with AgentSystem(store, max_active=2) as system:
        assert system.task("sound").result(timeout=SOON) == "done"


def test_an_agent_that_fights_its_hold_keeps_nobody_waiting_for_an_answer(store: Store) -> None:
    over = threading.Event()

    @step(on_doubt="hold")
    def pay() -> str:
        return "paid"

    def stubborn() -> str:
        while not over.wait(0.01):
            with contextlib.suppress(BaseException):
                return pay()
        return "never mind"

    dying = CrashingStore(store, CrashPlan(1, "body.after"))
    stubborn_agent = new_agent(stubborn)
    with pytest.raises(SimulatedCrash), AgentSystem(dying, grace=0.2) as system:
        system.spawn(stubborn_agent, id="t").result(timeout=SOON)
    over.set()
    dying.close()
    assert not threads_named("TaskActor", wait=SOON)
    over.clear()
    with AgentSystem(store, grace=0.2) as system:
        with pytest.raises(TaskHeldError, match="in doubt"):
            system.task("t").result(timeout=SOON)
        over.set()


def test_a_crash_in_a_nested_agent_is_a_strike_and_no_difference_unless_it_is_passed_over(store: Store) -> None:
    crashes = itertools.chain([0, 1, 1, 9, 9], itertools.repeat(9))

    @step
    def fine(number: int) -> int:
        return number

    @agent(name=f"agent-{next(names)}")
    def inner() -> int:
        total = fine(1)
        if next(crashes) == 1:
            raise OSError("for a moment")
        return total + fine(2)

    def outer() -> int:
        total = inner() + fine(3)
        if next(crashes) == 1:
            raise KeyError
        return total

    with AgentSystem(store) as system:
        task = system.spawn(new_agent(outer))
        assert task.result(timeout=SOON) == 6
        assert [event.strikes for event in task.events() if isinstance(event, Restarted)] == [1, 2]


def test_a_caller_that_passes_over_a_crash_of_a_nested_agent_does_not_pass_over_its_records(store: Store) -> None:
    broken = threading.Event()

    @step
    def fine(number: int) -> int:
        return number

    @agent(name=f"agent-{next(names)}")
    def inner() -> int:
        if broken.is_set():
            raise OSError("for a moment")
        return fine(1)

    def outer() -> int:
        with contextlib.suppress(OSError):
            inner()
        if not broken.is_set():
            broken.set()
            raise KeyError
        return fine(2)

    with AgentSystem(store) as system:
        task = system.spawn(new_agent(outer))
        with pytest.raises(TaskHeldError, match="code differs at position 1/1"):
            task.result(timeout=SOON)


def test_an_agent_that_becomes_known_later_has_its_held_tasks_looked_at_then(store: Store) -> None:
    @step
    def old() -> str:
        return "old"

    def work() -> str:
        return old()

    def changed() -> str:
        return "changed"

    name = f"agent-{next(names)}"
    log = TaskLog(store)
    log.create("t", name, [[], {}], {})
    appender = Appender(log, log.load("t"))
    appender.append(partial(_activate, "gone"))
    appender.append(lambda task, now: task.start_step(1, now, Call("1", "step", old.name, ""), "", ""))
    appender.append(lambda task, now: task.finish_step(1, now, Call("1", "step", old.name, ""), 1, value="old"))
    appender.append(lambda task, now: task.hold(1, now, "differs", "1", {"message": "for a test"}))
    with AgentSystem(store) as system:
        wait_for(lambda: system._tree is not None and not system._tree.recovery.may_go_on("t"))
        assert system.task("t").status() == "held"
        system.spawn(new_agent(work, name), id="another")
        wait_for(lambda: system.task("t").status() == "completed")


def test_an_index_row_that_says_due_of_a_task_that_has_ended_is_mended_and_makes_no_storm(store: Store) -> None:
    def work() -> str:
        return "done"

    with AgentSystem(store) as system:
        system.spawn(new_agent(work), id="t").result(timeout=SOON)
        recorder = TaskLog(store).recorder
        row = recorder.select_entry("t")
        assert row is not None
        recorder.update_index(row._replace(status="queued", due=1.0), expected=(row.birth, row.head))
        wait_for(lambda: recorder.select_entry("t") == row)
        assert system.task("t").result(timeout=SOON) == "done"


def test_no_body_starts_when_the_stop_comes_while_its_start_waits_for_the_store(tmp_path: Path) -> None:
    entered: list[str] = []
    ready, go_on = threading.Event(), threading.Event()

    @step
    def first() -> None:
        ready.set()
        assert go_on.wait(SOON)

    @step
    def second() -> None:
        entered.append("second")

    def work() -> None:
        first()
        second()

    class StopAtTheSecondStart(CrashPlan):
        def reach(self, point: str, **facts: object) -> None:
            if point == "append.before" and "step.started" in facts["topics"] and ready.is_set():  # type: ignore[operator]
                assert system._tree is not None
                system._tree.worker.stopping.set()
            super().reach(point, **facts)

    disk = open_store(f"sqlite:///{tmp_path}/stop.db")
    with disk, AgentSystem(CrashingStore(disk, StopAtTheSecondStart(None))) as system:
        task = system.spawn(new_agent(work))
        assert ready.wait(SOON)
        go_on.set()
        assert not threads_named("TaskActor", wait=SOON)
        assert topics(task) == ["Created", "Activated", "StepStarted", "StepSucceeded", "Passivated"]
    assert entered == []


def test_closing_lets_the_lock_go_whatever_keeps_the_supervisor_busy(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr("actors.tree.LAST_WORD", 0.05)
    monkeypatch.setattr(Supervisor, "_answer", lambda self, down, error: go_on.wait(SOON))

    def buggy() -> None:
        raise KeyError

    with AgentSystem(store, grace=0) as system:
        task = system.spawn(new_agent(buggy))
        wait_for(lambda: "Restarted" in topics(task))
    assert store.workers.live() == {}
    go_on.set()


def test_a_supervisor_that_dies_is_made_anew_and_its_children_go_on(store: Store) -> None:
    entered, go_on = threading.Event(), threading.Event()

    @step
    def waits() -> str:
        entered.set()
        assert go_on.wait(SOON)
        return "kept"

    def work() -> str:
        return waits()

    def quick() -> str:
        return "done"

    with AgentSystem(store, max_active=1) as system:
        task = system.spawn(new_agent(work))
        assert entered.wait(SOON)
        tree = system._tree
        assert tree is not None
        tree.supervisor.stop(timeout=SOON)
        go_on.set()
        assert task.result(timeout=SOON) == "kept"
        assert system.spawn(new_agent(quick)).result(timeout=SOON) == "done"
        assert len([event for event in task.events() if isinstance(event, Activated)]) == 1


def test_an_end_that_was_lost_with_its_supervisor_is_answered_after_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, lost = Supervisor.on_receive, list[str]()

    def deaf(self: Supervisor, down: Any) -> None:
        if isinstance(down.actor, TaskActor) and not lost:
            lost.append(down.name)
        else:
            receive(self, down)

    monkeypatch.setattr(Supervisor, "on_receive", deaf)

    def quick() -> str:
        return "done"

    named = new_agent(quick)
    with AgentSystem(store, max_active=1) as system:
        assert system.spawn(named, id="first").result(timeout=SOON) == "done"
        assert system.spawn(named, id="second").result(timeout=SOON) == "done"
    assert lost == ["first"]


class Busy:
    """A supervisor that is held up at the first end it is told; `told` are the ends that have arrived by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.told = threading.Event(), list[str]()
        monkeypatch.setattr("actors.tree.TOLD_WITHIN", 0.0)
        receive = Supervisor.on_receive

        def slow(supervisor: Supervisor, down: Down) -> None:
            assert self.go_on.wait(SOON)
            self.told.append(down.name)
            receive(supervisor, down)

        monkeypatch.setattr(Supervisor, "on_receive", slow)

    def answer(self, system: AgentSystem) -> None:
        """Look for untold ends again and again, from two threads, then let it answer all that it was told."""
        tree = system._tree
        assert tree is not None
        lookers = [threading.Thread(target=lambda: [tree._look_after() for _ in range(5)]) for _ in range(2)]
        for looker in lookers:
            looker.start()
        for looker in lookers:
            looker.join(SOON)
        self.go_on.set()
        last = Down("last", tree.lease)  # its answer says that all before it have been answered
        tree.supervisor.tell(last)
        wait_for(lambda: "last" in self.told)


def test_ends_that_a_busy_supervisor_has_still_before_it_are_told_again_once_and_are_no_falls(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Busy(monkeypatch)

    def quick() -> str:
        return "done"

    named = new_agent(quick)
    with AgentSystem(store) as system:
        tasks = [system.spawn(named) for _ in range(3)]
        for task in tasks:
            assert task.result(timeout=SOON) == "done"
        tree = system._tree
        assert tree is not None
        wait_for(lambda: all(actor and actor.actor_stopped.is_set() for actor in tree.directory.hosted().values()))
        busy.answer(system)
        assert sorted(busy.told) == sorted([*(task.id for task in tasks), *(task.id for task in tasks), "last"])
        assert tree.directory.hosted() == {}
        assert tree.directory._falls == {}


@pytest.mark.parametrize("part", [Recovery, Lease])
def test_a_part_whose_end_is_told_twice_is_made_anew_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, part: type[Recovery | Lease]
) -> None:
    busy, made, live = Busy(monkeypatch), list[Any](), part.live

    def dies_once(self: Any) -> None:
        made.append(self)
        if len(made) == 1:
            raise ZeroDivisionError
        live(self)

    monkeypatch.setattr(part, "live", dies_once)
    with AgentSystem(store) as system:
        wait_for(lambda: bool(made) and made[0].actor_stopped.is_set())
        busy.answer(system)
        wait_for(lambda: len(made) > 1)
        assert busy.told.count(made[0].name) == 2
        assert [actor.actor_stopped.is_set() for actor in made] == [True, False]


def test_an_end_that_is_told_twice_takes_no_place_from_the_tasks_next_actor(store: Store) -> None:
    """Neither between the taking of the place and the entering of the actor, nor after."""

    def quick() -> str:
        return "done"

    seen, enter = list[TaskActor](), Directory.enter
    with pytest.MonkeyPatch.context() as monkeypatch:

        def keep(self: Directory, task_id: str, actor: TaskActor) -> None:
            seen.append(actor)
            enter(self, task_id, actor)

        monkeypatch.setattr(Directory, "enter", keep)
        with AgentSystem(store) as system:
            system.wait_for_look(SOON)  # before, what that look has found may be handed over too, to one more actor
            for task_id in ("t", "u"):
                assert system.spawn(new_agent(quick), id=task_id).result(timeout=SOON) == "done"
    old, new = seen
    directory = Directory(1)
    assert directory.admit("t", new.hints.way)
    directory.leave("t", old, fell=True)
    directory.enter("t", old)
    assert directory.hosted() == {"t": None}
    directory.enter("t", new)
    directory.leave("t", old, fell=True)
    assert directory.hosted() == {"t": new}
    directory.leave("t", new)
    assert directory.hosted() == {}
    assert directory.resting() == set()


@pytest.mark.parametrize("last", [Supervisor, Lease, Recovery])
def test_a_worker_that_cannot_begin_leaves_nothing_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch, last: type[pykka.ThreadingActor]
) -> None:
    started = list[Any]()

    def no_thread(self: Any) -> None:
        if isinstance(self, last):
            raise MemoryError if last is not Supervisor else RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    start = pykka.ThreadingActor._start_actor_loop
    monkeypatch.setattr(pykka.ThreadingActor, "_start_actor_loop", no_thread)
    with pytest.raises((MemoryError, RuntimeError)), AgentSystem(store):
        raise AssertionError("it has begun")
    assert store.workers.live() == {}
    for actor in started:
        assert actor.actor_stopped.wait(SOON)
    assert not [
        ref for ref in pykka.ActorRegistry.get_all() if issubclass(ref.actor_class, (Supervisor, Lease, Recovery))
    ]


def test_a_task_that_the_store_says_is_ours_and_that_nobody_hosts_is_started_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, lost = list[int](), list[str]()

    def vanishes(self: TaskActor, agent: Any) -> None:
        if not lost:
            lost.append(self.name)
        else:
            conclude(self, agent)

    conclude = TaskActor._run_and_conclude
    monkeypatch.setattr(TaskActor, "_run_and_conclude", vanishes)

    def work() -> str:
        runs.append(1)
        return "done"

    with AgentSystem(store) as system:
        task = system.spawn(new_agent(work))
        assert task.result(timeout=SOON) == "done"
        assert [type(event) for event in task.events()].count(Activated) == 2
    assert lost
    assert runs == [1]


def test_who_was_begun_keeps_its_place_in_line_before_those_who_came_later(store: Store) -> None:
    """After a stop, and after a death: a deploy does not send what is half done behind all that waits."""
    order: list[str] = []

    @step
    def first(_name: str) -> None:
        return

    @step
    def last(name: str) -> None:
        order.append(name)

    def work(name: str) -> None:
        first(name)
        last(name)

    named = new_agent(work)
    with AgentSystem(store, run=False) as client:
        for name in ("stopped", "lost", "later", "latest"):
            client.spawn(named, name, id=name)
    log = TaskLog(store)
    for name in ("lost", "stopped"):
        appender = Appender(log, log.load(name))
        appender.append(partial(_activate, f"worker-of-{name}"))
        if name == "stopped":
            appender.append(lambda task, now: task.passivate(1, now, []))
    with AgentSystem(store, max_active=1) as system:
        for name in ("stopped", "lost", "later", "latest"):
            system.task(name).result(timeout=SOON)
    assert order == ["stopped", "lost", "later", "latest"]


def test_a_suspect_that_waits_for_a_long_body_does_not_stop_the_worker(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.directory.FIRST_QUIET", 0.1)
    entered, go_on = threading.Event(), threading.Event()

    @step
    def long() -> None:
        entered.set()
        assert go_on.wait(SOON)

    def slow() -> str:
        long()
        return "slow"

    def quick() -> str:
        return "quick"

    slow_agent, quick_name = new_agent(slow), create_suspect(store)
    with AgentSystem(store) as system:
        task = system.spawn(slow_agent)
        assert entered.wait(SOON)
        quick_agent = new_agent(quick, quick_name)
        system.wake()
        wait_for(lambda: bool(system._tree and system._tree.directory.is_quiet()))
        for number in range(3):
            assert system.spawn(quick_agent, id=f"other-{number}").result(timeout=SOON) == "quick"
        assert system.task("suspect").status() == "running"  # as its dead worker has left it
        assert len(topics(system.task("suspect"))) == 3
        go_on.set()
        assert system.task("suspect").result(timeout=SOON) == "quick"
        assert task.result(timeout=SOON) == "slow"
