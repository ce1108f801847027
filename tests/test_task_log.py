"""The one place that appends: commit, then fold; decide again; our own rows are known by their token."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.appender import Appender
from actors.patience import Patience
from actors.task_log import TaskLog, index_row
from domain.errors import (
    OwnershipLost,
    PerdureError,
    TaskConflictError,
    UnknownTaskError,
    UnreadableTaskError,
)
from domain.events import TaskEvent
from domain.faults import Fault
from domain.fold import fold
from domain.record import Call, StepRecord
from domain.task import AgentTask
from stores import Store, StoreUnavailableError, open_store
from stores.crash import CrashingStore, FaultPlan, Plan


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("memory:") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon: what is tested is what happens then."""
    monkeypatch.setattr("actors.patience.FIRST_PAUSE", 0.0005)


def away() -> StoreUnavailableError:
    return StoreUnavailableError("the store is away, for a test", url="memory:", reason="test")


def created(log: TaskLog, task_id: str = "t") -> Appender:
    return Appender(log, log.create(task_id, "walk", [[], {}], {}), Patience(5))


def activate(task: AgentTask, now: float) -> list[TaskEvent]:
    return task.activate(now, worker="w", token="t", limit=None)


def start(activation: int, path: str) -> Callable[[AgentTask, float], list[TaskEvent]]:
    return lambda task, now: task.start_step(activation, now, Call(path, "step", "s", ""), "", "")


def finish(activation: int, path: str, value: Any = None) -> Callable[[AgentTask, float], list[TaskEvent]]:
    return lambda task, now: task.finish_step(activation, now, Call(path, "step", "s", ""), 1, value=value)


def state(task: AgentTask) -> dict[str, Any]:
    """Everything that a task knows, in a form that compares by value."""
    facts = dict(vars(task))
    facts["steps"] = {path: plain_record(record) for path, record in task.steps.items()}
    facts["latest"] = task.latest and plain_record(task.latest)
    return facts


def plain_record(record: StepRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


class RandomFaults:
    """A plan that loses the store before or after some commits, and never for good."""

    def __init__(self, seed: int, share: float) -> None:
        self._random = random.Random(seed)
        self._share = share

    def reach(self, point: str, **facts: object) -> None:
        if point.startswith("append") and self._random.random() < self._share:
            raise away()

    def check(self) -> None:
        pass


@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
def test_a_store_that_stumbles_costs_no_event_and_doubles_none(store: Store, point: str) -> None:
    created(TaskLog(store))
    for times in (1, 2):
        log = TaskLog(CrashingStore(store, FaultPlan(times, point, away)))
        appender = Appender(log, log.load("t"), Patience(5))
        before = appender.task.version
        appender.append(activate)
        assert appender.task.version == before + 1
        assert state(appender.task) == state(TaskLog(store).load("t"))


def test_a_spawn_whose_acknowledgement_is_lost_is_the_same_task(store: Store) -> None:
    plan = FaultPlan(1, "append.after", away)
    task = TaskLog(CrashingStore(store, plan)).create("t", "walk", [[], {}], {})
    assert plan.failed == 1
    assert state(task) == state(TaskLog(store).load("t"))


def test_a_client_gives_up_on_a_store_that_stays_away(store: Store) -> None:
    log = TaskLog(CrashingStore(store, FaultPlan(10_000, None, away)), patience=Patience(0.2))
    with pytest.raises(StoreUnavailableError, match="for a test"):
        log.create("t", "walk", [[], {}], {})


def test_a_worker_tries_until_it_is_over(store: Store) -> None:
    over = threading.Event()
    created(TaskLog(store))

    class AwayUntilOver(FaultPlan):
        def reach(self, point: str, **facts: object) -> None:
            if self.failed == 3:
                over.set()
            super().reach(point, **facts)

    plan = AwayUntilOver(10_000, "append.before", away)
    log = TaskLog(CrashingStore(store, plan))
    with pytest.raises(StoreUnavailableError):
        Appender(log, log.load("t"), Patience(None, over)).append(activate)
    assert plan.failed >= 3


def test_a_newer_activation_is_a_fence_for_outcomes_too(store: Store) -> None:
    log = TaskLog(store)
    old = created(log)
    old.append(activate)
    old.append(start(1, "1"))
    new = Appender(log, log.load("t"))
    new.append(activate)
    for decide in (finish(1, "1"), start(1, "2"), lambda task, now: task.complete(1, now, None)):
        with pytest.raises(OwnershipLost, match="activation 1 is over"):
            old.append(decide)
    assert old.task.version == new.task.version == 4


def test_after_a_conflict_the_decision_is_made_again_on_the_new_state(store: Store) -> None:
    log = TaskLog(store)
    one, other = created(log), Appender(log, log.load("t"))
    one.append(activate)
    one.append(lambda task, now: task.hold(1, now, "strikes", "", {"strikes": 3}))
    decided: list[int] = []

    def release(task: AgentTask, now: float) -> list[TaskEvent]:
        decided.append(task.version)
        return task.release(now, "someone") if task.held is not None else activate(task, now)

    other.append(release)
    assert decided == [1, 3]
    assert other.task.version == 4
    assert other.task.status == "queued"


def test_a_deleted_task_takes_no_event_and_neither_does_its_successor(store: Store) -> None:
    log = TaskLog(store)
    ghost = created(log)
    log.recorder.rebuild_index(lambda task_id, old: None)
    with pytest.raises(UnknownTaskError, match="was deleted"):
        ghost.append(activate)


def test_an_id_in_use_with_other_input_is_a_conflict_that_names_both_and_changes_nothing(store: Store) -> None:
    log = TaskLog(store)
    log.create("order-42", "buy", [[5], {}], {"by": "a"})
    assert log.create("order-42", "buy", [[5], {}], {"by": "b"}).tags == {"by": "a"}
    for agent, other, named in (
        ("buy", [[6], {}], r"buy\(5\), asked for is buy\(6\)"),
        ("sell", [[5], {}], "agent buy"),
    ):
        with pytest.raises(TaskConflictError, match=named):
            log.create("order-42", agent, other, {})
    assert log.load("order-42").version == 1


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.0, 0.1, 0.3]))
def test_whatever_fails_and_whoever_appends_the_state_is_the_fold_of_the_log(seed: int, share: float) -> None:
    draw = random.Random(seed)
    with open_store("memory:") as store:
        quiet = TaskLog(store)
        created(quiet)
        faulty = TaskLog(CrashingStore(store, RandomFaults(seed, share)))
        owner = Appender(faulty, faulty.load("t"), Patience(30))
        foreign = Appender(faulty, faulty.load("t"), Patience(30))
        open_paths: list[str] = []
        for number in range(1, 15):
            who = owner if draw.random() < 0.7 else foreign
            before = quiet.load("t").version
            action = draw.choice(["activate", "start", "finish", "passivate", "restart"])
            try:
                who.append(decision(action, who, open_paths, number))
            except OwnershipLost:
                assert quiet.load("t").version == before
            assert state(who.task) == state(at_version(quiet, who.task.version))
            assert quiet.recorder.select_entry("t") == index_row(quiet.load("t"))


def at_version(log: TaskLog, version: int) -> AgentTask:
    task: AgentTask = log.repository.get("t", version=version, projector_func=fold)
    return task


def decision(action: str, who: Appender, open_paths: list[str], number: int) -> Any:
    activation = who.task.activation
    if action == "activate":
        return activate
    if action == "start":
        open_paths.append(str(number))
        return start(activation, str(number))
    if action == "finish" and open_paths:
        return finish(activation, open_paths.pop(), number)
    if action == "passivate":
        return lambda task, now: task.passivate(activation, now, [])
    return lambda task, now: task.restart(
        activation, now, Fault(("ValueError",), "x"), where="here", jitter=0.5, limit=None
    )


@pytest.mark.parametrize("seed", range(20))
def test_many_threads_and_foreign_appenders_lose_no_event(seed: int) -> None:
    with open_store("memory:") as store:
        created(TaskLog(store))
        plan: Plan = RandomFaults(seed, 0.1)
        log = TaskLog(CrashingStore(store, plan))
        owner = Appender(log, log.load("t"), Patience(30))
        owner.append(activate)
        errors: list[BaseException] = []

        def branch(number: int) -> None:
            try:
                owner.append(start(1, str(number)))
                owner.append(finish(1, str(number), number))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=branch, args=(number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not errors
        fresh = TaskLog(store).load("t")
        assert state(fresh) == state(owner.task)
        assert {path: record.outcome.value for path, record in fresh.steps.items()} == {  # type: ignore[union-attr]
            str(number): number for number in range(1, 9)
        }


def test_the_index_is_rebuilt_from_the_log_and_finds_the_unreadable_by_reading(store: Store) -> None:
    log = TaskLog(store)
    for number in range(5):
        created(log, f"t{number}").append(activate)
    before = log.recorder.select_entries()
    log.recorder.rebuild_index(lambda task_id, old: old if task_id == "t1" else None)
    assert len(log.recorder.select_entries()) == 1
    log.rebuild_index()
    assert log.recorder.select_entries() == before
    spoil(store, "t3", 2)
    log.rebuild_index()
    row = log.recorder.select_entry("t3")
    assert row is not None
    assert (row.status, row.hold, row.due) == ("held", "unreadable", None)
    assert "t3: version 2" in row.note


def test_the_index_is_not_rebuilt_while_a_worker_lives(store: Store) -> None:
    log = TaskLog(store)
    created(log)
    store.workers.hold("w1", {})
    with pytest.raises(PerdureError, match="while a worker lives: w1"):
        log.rebuild_index()


def test_a_log_that_cannot_be_read_names_task_and_version_and_takes_no_event(store: Store) -> None:
    log = TaskLog(store)
    appender = created(log)
    appender.append(activate)
    spoil(store, "t", 2)
    with pytest.raises(UnreadableTaskError, match="task t: version 2 of its log cannot be read") as caught:
        log.load("t")
    assert (caught.value.task_id, caught.value.version) == ("t", 2)
    log.mark_unreadable(caught.value)
    assert log.recorder.select_entry("t").head == 2  # type: ignore[union-attr]


def test_environment_variables_of_other_applications_do_not_reach_our_rows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESSOR_TOPIC", "zlib")
    monkeypatch.setenv("AGGREGATE_CACHE_MAXSIZE", "100")
    log = TaskLog(store)
    created(log)
    assert log.repository.cache is None
    assert TaskLog(store).load("t").version == 1


def spoil(store: Store, task_id: str, version: int) -> None:
    """Change bytes of a stored row, as a fault of the disk would."""
    rows = store.recorder._stored_events  # type: ignore[attr-defined]
    place = store.recorder._stored_events_index[task_id][version]  # type: ignore[attr-defined]
    row = rows[place]
    rows[place] = type(row)(row.originator_id, row.originator_version, row.topic, row.state[:-4] + b"????")
