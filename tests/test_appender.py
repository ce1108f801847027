"""What several threads bring at the same time goes together in one append, and each is told its own."""

from __future__ import annotations

import copy
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import appender as module
from actors import parts
from actors.appender import Appender
from actors.mapper import token_of
from actors.parts import Decide
from actors.patience import Patience
from actors.task_log import TaskLog, index_row
from domain.errors import OwnershipLost, UnknownTaskError, UnreadableTaskError
from domain.events import StepFailed, StepStarted, StepSucceeded, TaskEvent
from domain.fold import fold
from domain.record import Call
from domain.task import AgentTask
from stores import Store, StoreUnavailableError, open_store
from stores.crash import CrashingStore, CrashPlan, FaultPlan, Plan, SimulatedCrash
from tests.test_task_log import RandomFaults, activate, away, created, finish, spoil, start, state

SOON = 30
POINTS = ["append.before", "append.inside", "append.after"]
Told = list[TaskEvent] | BaseException


class StopNow(BaseException):
    """What an `inside` raises that wants its events undone."""


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("memory:") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon: what is tested is what happens then."""
    monkeypatch.setattr("actors.patience.FIRST_PAUSE", 0.0005)


def owned(store: Store, plan: Plan | None = None, patience: float = SOON) -> Appender:
    """Give an appender of a task whose activation 1 runs; its store goes by the plan."""
    created(TaskLog(store)).append(activate)
    log = TaskLog(CrashingStore(store, plan) if plan is not None else store)
    return Appender(log, log.load("t"), Patience(patience))


def quiet(appender: Appender) -> TaskLog:
    """Give the same log, past every fault."""
    store = appender.log.store
    return TaskLog(store.inner if isinstance(store, CrashingStore) else store)


def assert_true(appender: Appender) -> None:
    """The appender's state is the fold of its log, and the index row is the state's."""
    log = quiet(appender)
    fresh = log.load("t")
    assert state(appender.task) == state(fresh)
    assert log.recorder.select_entry("t") == index_row(fresh)


def wait_for(condition: Callable[[], bool]) -> None:
    event = threading.Event()
    for _ in range(SOON * 1000):
        if condition():
            return
        event.wait(0.001)
    raise AssertionError("it never came about")


def waiting(appender: Appender) -> int:
    return sum(not part.done for part in appender._queue)


def told_by(call: Callable[[], list[TaskEvent]]) -> Told:
    try:
        return call()
    except BaseException as error:
        return error


def together(appender: Appender, *calls: Callable[[], list[TaskEvent]], riders: Sequence[Decide] = ()) -> list[Told]:
    """Bring all this while an append is in flight, so that it goes in the next one, in this order; give the answers.

    The first of the calls leads.
    """
    entered, go = threading.Event(), threading.Event()

    def in_flight(task: AgentTask, now: float) -> list[TaskEvent]:
        entered.set()
        assert go.wait(SOON)
        return []

    told: list[Told] = [AssertionError("never answered")] * len(calls)

    def bring(place: int, call: Callable[[], list[TaskEvent]]) -> None:
        told[place] = told_by(call)

    holder = threading.Thread(target=lambda: appender.append(in_flight))
    threads = [threading.Thread(target=bring, args=pair) for pair in enumerate(calls)]
    holder.start()
    assert entered.wait(SOON)
    for rider in riders:
        appender.ride(rider)
    for thread in threads:
        thread.start()
        wait_for(lambda: waiting(appender) == sum(one.is_alive() for one in threads))
    go.set()
    for thread in (holder, *threads):
        thread.join(SOON)
        assert not thread.is_alive(), "it waits for ever"
    return told


def failure(path: str) -> Decide:
    """Decide an event that a fold must not meet twice."""
    call = Call(path, "step", "s", "")
    return lambda task, now: task.finish_step(1, now, call, 1, error={"kinds": ["E"]}, retry_at=now)


def brings(appender: Appender, decide: Decide, **options: Any) -> Callable[[], list[TaskEvent]]:
    return lambda: appender.append(decide, **options)


def outcome(path: str) -> Decide:
    return finish(1, path, path)


def paths(told: Any) -> list[str]:
    assert not isinstance(told, BaseException), repr(told)
    return [event.path for event in told]


def ended(appender: Appender) -> list[str]:
    """The paths of the outcomes in the log, in its order."""
    return [event.path for event in quiet(appender).events.get("t") if isinstance(event, StepSucceeded | StepFailed)]


def stop() -> None:
    raise StopNow


# ------------------------------------------------------------------ together


def test_what_comes_while_an_append_is_in_flight_goes_in_one_transaction_and_each_is_told_its_own(store: Store) -> None:
    plan = CrashPlan(None)
    appender = owned(store, plan)
    told = together(appender, *(brings(appender, outcome(str(number))) for number in range(1, 9)))
    assert [paths(one) for one in told] == [[str(number)] for number in range(1, 9)]
    assert plan.points.count("append.before") == 1
    assert len({token_of(row) for row in store.recorder.select_events("t", gt=2)}) == 1
    assert_true(appender)


def test_each_decides_on_what_those_before_it_have_decided(store: Store) -> None:
    appender = owned(store)
    begun, ended, second = together(appender, *(brings(appender, d) for d in (start(1, "1"), *[outcome("1")] * 2)))
    assert isinstance(begun, list)
    assert isinstance(begun[0], StepStarted)
    assert paths(ended) == ["1"]
    assert "has its outcome already" in str(second)
    assert_true(appender)


def test_a_decision_that_raises_or_decides_nothing_is_no_business_of_the_others(store: Store) -> None:
    appender = owned(store)
    told = together(
        appender,
        brings(appender, finish(7, "1"), inside=stop),
        brings(appender, outcome("1")),
        brings(appender, lambda task, now: []),
        brings(appender, lambda task, now: [StepSucceeded("t", 99, now, "9", "step", "s", "", 1, None, "")]),
        brings(appender, outcome("2")),
    )
    assert isinstance(told[0], OwnershipLost)
    assert isinstance(told[3], UnreadableTaskError)
    assert [paths(told[place]) for place in (1, 2, 4)] == [["1"], [], ["2"]]
    assert_true(appender)


@pytest.mark.parametrize("undone", [0, 1, 2])
@pytest.mark.parametrize("error", [StopNow, ValueError, StoreUnavailableError("mine", url="u", reason="r")])
def test_an_inside_that_raises_undoes_the_transaction_and_only_its_own_part(
    store: Store, undone: int, error: Any
) -> None:
    appender, calls = owned(store), [0, 0, 0]

    def inside(place: int) -> None:
        calls[place] += 1
        if place == undone:
            raise error

    told = together(
        appender,
        *(brings(appender, outcome(str(place)), inside=lambda place=place: inside(place)) for place in range(3)),
    )
    assert [one for one in told if isinstance(one, BaseException)] == [told[undone]]
    assert isinstance(told[undone], error if isinstance(error, type) else type(error))
    assert calls == [2 if place < undone else 1 for place in range(3)]
    assert ended(appender) == [str(place) for place in range(3) if place != undone]
    assert_true(appender)


def test_a_refusal_that_rests_on_what_was_undone_is_decided_again(store: Store) -> None:
    appender = owned(store)
    ends: Decide = lambda task, now: task.complete(1, now, None)  # noqa: E731
    told = together(appender, brings(appender, ends, inside=stop), brings(appender, outcome("1")))
    assert isinstance(told[0], StopNow)
    assert paths(told[1]) == ["1"]
    assert quiet(appender).load("t").status == "running"


def test_after_a_conflict_all_decide_again_on_the_new_state(store: Store) -> None:
    appender, decided = owned(store), []
    created(TaskLog(store)).append(activate)  # another worker, that this one knows nothing of

    def outsider(task: AgentTask, now: float) -> list[TaskEvent]:
        decided.append(task.activation)
        return task.hold(task.activation, now, "strikes", "", {"strikes": 3})

    told = together(appender, brings(appender, outcome("1")), brings(appender, outsider))
    assert isinstance(told[0], OwnershipLost)
    assert isinstance(told[1], list)
    assert decided == [1, 2]
    assert_true(appender)


def test_who_watches_is_woken_when_any_of_a_batch_ends_the_task(store: Store) -> None:
    appender, event = owned(store), threading.Event()
    with appender.log.watch("t", event):
        together(appender, brings(appender, outcome("1")))
        assert not event.is_set()
        together(
            appender, brings(appender, outcome("2")), brings(appender, lambda task, now: task.complete(1, now, None))
        )
        assert event.is_set()


def test_catching_up_folds_what_others_have_appended_and_carries_no_rider(store: Store) -> None:
    appender, other = owned(store), created(TaskLog(store))
    other.append(activate)
    appender.catch_up()
    assert appender.task.activation == 2
    other.append(activate)
    together(appender, lambda: appender.catch_up() or [], riders=[finish(3, "~r/1")])  # type: ignore[func-returns-value]
    assert appender.task.activation == 3
    assert ended(appender) == []
    assert_true(appender)


# ------------------------------------------------------------------ everybody's errors


def lost(store: Store, appender: Appender) -> None:
    appender.log.recorder.rebuild_index(lambda task_id, old: None)


def unreadable(store: Store, appender: Appender) -> None:
    created(TaskLog(store)).append(activate)
    spoil(store, "t", 3)


@pytest.mark.parametrize(("damage", "error"), [(lost, UnknownTaskError), (unreadable, UnreadableTaskError)])
def test_what_is_wrong_with_the_task_is_told_to_all(store: Store, damage: Any, error: type[BaseException]) -> None:
    appender = owned(store)
    damage(store, appender)
    told = together(appender, *(brings(appender, outcome(str(number))) for number in range(4)))
    assert [type(one) for one in told] == [error] * 4


@pytest.mark.parametrize("point", POINTS)
def test_a_store_that_stays_away_is_told_to_all_and_what_it_kept_is_in_the_state_when_it_is_back(
    store: Store, point: str
) -> None:
    plan = FaultPlan(10_000, point, away)
    appender = owned(store, plan, patience=0.05)
    told = together(appender, *(brings(appender, outcome(str(number))) for number in range(4)))
    kept = point == "append.after"  # it is read back
    assert [type(one) for one in told] == [list if kept else StoreUnavailableError] * 4
    plan.times = 0
    appender.append(outcome("5"))
    assert ended(appender) == [*("0123" if kept else ""), "5"]
    assert_true(appender)


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_has_died_is_told_to_all(store: Store, point: str) -> None:
    appender = owned(store, CrashPlan(1, point))
    told = together(
        appender, *(brings(appender, outcome(str(number))) for number in range(4)), riders=[outcome("~r/1")]
    )
    assert [type(one) for one in told] == [SimulatedCrash] * 4


# ------------------------------------------------------------------ a leader that is torn away


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("point", [*POINTS, "deciding", "inside"])
def test_an_interrupt_is_for_the_leader_alone_and_the_others_go_on(store: Store, point: str, interrupt: Any) -> None:
    appender, once = owned(store, FaultPlan(1, point, interrupt)), [interrupt]

    def decide(task: AgentTask, now: float) -> list[TaskEvent]:
        return hit("deciding") or outcome("2")(task, now)

    def hit(where: str) -> list[TaskEvent]:
        if point == where and once:
            raise once.pop()
        return []

    told = together(
        appender,
        brings(appender, outcome("1")),
        brings(appender, decide, inside=lambda: hit("inside") and None),
        brings(appender, outcome("3")),
        riders=[outcome("~r/1")],
    )
    assert isinstance(told[0], interrupt)
    assert [paths(one) for one in told[1:]] == [["2"], ["3"]]
    assert ended(appender) == ["~r/1", *("1" if point == "append.after" else ""), "2", "3"]
    appender.append(outcome("4"))
    assert_true(appender)


def test_what_others_have_appended_is_not_taken_for_what_was_torn_away(store: Store) -> None:
    class TornAwayByOthers(FaultPlan):
        def reach(self, point: str, **facts: object) -> None:
            if self.failed < self.times:
                Appender(TaskLog(store), TaskLog(store).load("t")).append(outcome("9"))
            super().reach(point, **facts)

    appender = owned(store, TornAwayByOthers(1, "append.before", KeyboardInterrupt))
    told = together(appender, *(brings(appender, outcome(path)) for path in "123"))
    assert isinstance(told[0], KeyboardInterrupt)
    assert ended(appender) == ["9", "2", "3"]
    assert_true(appender)


def test_another_task_that_has_the_id_now_is_not_taken_for_what_was_torn_away(store: Store) -> None:
    appender = owned(store, FaultPlan(1, "append.after", KeyboardInterrupt))
    appender.ride(outcome("~r/1"))
    with pytest.raises(KeyboardInterrupt):
        appender.append(outcome("1"))
    for table in ("_index", "_stored_events_index"):
        del getattr(store.recorder, table)["t"]
    successor = created(TaskLog(store))
    with pytest.raises(UnknownTaskError):
        appender.append(lambda task, now: task.activate(now, worker="ghost", token="t", limit=None))
    assert quiet(appender).load("t").version == successor.task.version == 1


class InterruptAt:
    """Interrupts the thread that it is set in, once, when it comes to the `nth` line of the code that appends."""

    FILES = (module.__file__, parts.__file__, fold.__code__.co_filename)
    ATOMIC = ("with self._mutex:", "try:", "finally:")
    """Where no interrupt comes through: the interpreter looks for one at calls, and a lock is left in the same step."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.fired = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line" and not self.fired and source_line(frame) not in self.ATOMIC:
            self.left -= 1
            if self.left == 0:
                self.fired = True
                raise KeyboardInterrupt
        return self

    def during(self, call: Callable[[], list[TaskEvent]]) -> list[TaskEvent]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return call()
        finally:
            sys.settrace(before)


LINES: dict[str, list[str]] = {}


def source_line(frame: FrameType) -> str:
    file = frame.f_code.co_filename
    if file not in LINES:
        with open(file, encoding="utf-8") as opened:
            LINES[file] = opened.read().splitlines()
    return LINES[file][frame.f_lineno - 1].strip()


def interrupted_leader(nth: int) -> bool:
    """Interrupt the leader of three, of which one rides, at its nth line; tell whether it came so far."""
    with open_store("memory:") as store:
        appender, interrupt = owned(store), InterruptAt(nth)
        first, second, third = together(
            appender,
            lambda: interrupt.during(brings(appender, failure("1"))),
            brings(appender, outcome("2"), inside=lambda: None),
            brings(appender, finish(7, "x")),
            riders=[outcome("~r/1")],
        )
        assert paths(second) == ["2"]
        assert isinstance(third, OwnershipLost)
        assert isinstance(first, KeyboardInterrupt) or paths(first) == ["1"]
        appender.append(outcome("4"), turn=0)
        in_log = ended(appender)
        assert [path for path in in_log if path != "1"] == ["~r/1", "2", "4"]
        assert in_log.count("1") <= 1 if interrupt.fired else in_log.count("1") == 1
        assert_true(appender)
    return interrupt.fired


def interrupted_alone(nth: int) -> bool:
    with open_store("memory:") as store:
        appender, interrupt = owned(store), InterruptAt(nth)
        with suppress(KeyboardInterrupt):
            interrupt.during(brings(appender, failure("1")))
        appender.append(outcome("2"), turn=0)
        assert ended(appender) in (["2"], ["1", "2"])
        assert_true(appender)
    return interrupt.fired


@pytest.mark.parametrize("interrupted", [interrupted_leader, interrupted_alone])
def test_wherever_an_interrupt_hits_the_state_is_true_and_nobody_waits_for_ever(
    interrupted: Callable[[int], bool],
) -> None:
    nth = 1
    while interrupted(nth):
        nth += 1
    assert nth > 20


# ------------------------------------------------------------------ turns


@pytest.mark.parametrize("turn", [0, 0.01])
def test_who_gets_no_turn_in_time_is_told_so_and_nothing_of_it_is_decided_later(store: Store, turn: float) -> None:
    appender, late = owned(store), list[Told]()

    def in_flight(task: AgentTask, now: float) -> list[TaskEvent]:
        run_all([lambda: late.append(told_by(brings(appender, outcome("2"), turn=turn)))])
        return []

    appender.append(in_flight)
    appender.append(outcome("3"), turn=turn)
    assert "an append to task t is in flight" in str(late[0])
    assert ended(appender) == ["3"]


def test_who_is_itself_in_flight_waits_for_its_answer_whatever_its_turn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_over, waits_on = threading.Event(), threading.Event()

    class Word(parts.SimpleQueue):  # type: ignore[type-arg]
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            if timeout is not None:
                assert turn_over.wait(SOON)
                raise module.Empty
            if turn_over.is_set():
                waits_on.set()
            super().get()

    def inside() -> None:
        turn_over.set()
        assert waits_on.wait(SOON)

    monkeypatch.setattr(parts, "SimpleQueue", Word)
    appender = owned(store)
    told = together(appender, brings(appender, outcome("1"), inside=inside), brings(appender, outcome("2"), turn=1))
    assert [paths(one) for one in told] == [["1"], ["2"]]


# ------------------------------------------------------------------ riders


def test_riders_go_first_in_the_next_append_in_their_order_and_once(store: Store) -> None:
    plan = CrashPlan(None)
    appender = owned(store, plan)
    for path in ("~r/1", "~r/2", "~r/3"):
        appender.ride(outcome(path))
    assert plan.points == []
    assert paths(appender.append(outcome("1"))) == ["1"]
    assert paths(appender.append(outcome("2"))) == ["2"]
    assert ended(appender) == ["~r/1", "~r/2", "~r/3", "1", "2"]
    assert plan.points.count("append.before") == 2
    assert_true(appender)


def test_a_rider_goes_with_an_append_that_decides_nothing_itself(store: Store) -> None:
    appender = owned(store)
    appender.ride(outcome("~r/1"))
    assert appender.append(lambda task, now: []) == []
    assert ended(appender) == ["~r/1"]


def test_a_rider_of_an_append_that_was_undone_rides_again(store: Store) -> None:
    appender = owned(store)
    appender.ride(outcome("~r/1"))
    with pytest.raises(StopNow):
        appender.append(outcome("1"), inside=stop)
    assert ended(appender) == []
    appender.append(outcome("2"))
    assert ended(appender) == ["~r/1", "2"]
    assert_true(appender)


def test_a_rider_that_raises_is_told_to_all_that_it_rides_with_and_rides_no_more(store: Store) -> None:
    appender = owned(store)
    told = together(
        appender,
        brings(appender, outcome("1")),
        brings(appender, outcome("2")),
        riders=[outcome("~r/1"), finish(7, "x")],
    )
    assert [type(one) for one in told] == [OwnershipLost] * 2
    appender.append(outcome("3"))
    assert ended(appender) == ["~r/1", "3"]
    assert_true(appender)


@pytest.mark.parametrize("point", POINTS)
def test_a_rider_of_an_append_that_was_given_up_is_in_the_log_once(store: Store, point: str) -> None:
    over = threading.Event()
    over.set()
    created(TaskLog(store)).append(activate)
    plan = FaultPlan(1, point, away)
    log = TaskLog(CrashingStore(store, plan))
    appender = Appender(log, log.load("t"), Patience(None, over))
    appender.ride(outcome("~r/1"))
    with pytest.raises(StoreUnavailableError):
        appender.append(outcome("1"))
    appender.append(outcome("2"))
    assert ended(appender) == ["~r/1", *("1" if point == "append.after" else ""), "2"]
    assert_true(appender)


# ------------------------------------------------------------------ whatever happens


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), share=st.sampled_from([0.0, 0.1, 0.3]), threads=st.integers(2, 8))
def test_whatever_fails_each_outcome_is_in_the_log_once_and_each_is_told_its_own(
    seed: int, share: float, threads: int
) -> None:
    with open_store("memory:") as store:
        appender = owned(store, RandomFaults(seed, share))
        outsider = Appender(appender.log, appender.log.load("t"), Patience(SOON))
        told: dict[str, Told] = {}

        def outcomes(number: int) -> None:
            draw = random.Random(f"{seed} {number}")
            for step in range(1, 5):
                path = f"~{number}/{step}"
                if draw.random() < 0.2:
                    appender.ride(outcome(f"~r{number}/{step}"))
                inside = stop if draw.random() < 0.2 else None
                told[path] = told_by(brings(appender, outcome(path), inside=inside))
                assert isinstance(told[path], StopNow if inside else list), repr(told[path])

        def foreign() -> None:
            for number in range(1, 5):
                outsider.append(outcome(f"~f/{number}"))

        run_all([*(lambda number=number: outcomes(number) for number in range(threads)), foreign])  # type: ignore[misc]
        appender.append(outcome("1"))
        in_log = ended(appender)
        riders = [path for path in in_log if path.startswith("~r")]
        kept = [path for path, answer in told.items() if not isinstance(answer, BaseException)]
        assert len(told) == 4 * threads
        assert all(paths(told[path]) == [path] for path in kept)
        assert sorted(in_log) == sorted([*kept, *riders, *(f"~f/{number}" for number in range(1, 5)), "1"])
        for number in (*range(threads), *(f"r{number}" for number in range(threads)), "f"):
            of_one = [path for path in in_log if path.startswith(f"~{number}/")]
            assert of_one == sorted(of_one), "what one thread brings keeps its order"
        assert_true(appender)


def run_all(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive(), "it waits for ever"


# ------------------------------------------------------------------ the copy of a task


def random_events(draw: random.Random, task: AgentTask) -> list[TaskEvent]:
    """Decide something that the task allows."""
    path = draw.choice(["1", "2", "3/1", "~k/1"])
    call, number, now = Call(path, "step", "s", draw.choice(["", "d"])), task.activation, task.updated + 1
    choices: list[Callable[[], list[TaskEvent]]] = [
        lambda: task.activate(now, worker="w", token="t", limit=None, release=True),
        lambda: task.start_step(number, now, call, "", ""),
        lambda: task.finish_step(number, now, call, 1, value=1),
        lambda: task.finish_step(number, now, call, 1, error={"kinds": ["E"]}, retry_at=draw.choice([None, now])),
        lambda: task.passivate(number, now, [path]),
        lambda: task.complete(number, now, 1) if draw.random() < 0.2 else [],
        lambda: task.hold(number, now, "failed step", path, {}) if path in task.steps else [],
        lambda: task.resolve(now, path, draw.choice(["value", "rerun", "fail"]), 1, "me"),
    ]
    with suppress(Exception, OwnershipLost):
        return draw.choice(choices)()
    return []


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 2**32))
def test_folding_a_copy_changes_nothing_of_the_original_and_comes_to_the_same(seed: int) -> None:
    draw = random.Random(seed)
    with open_store("memory:") as store:
        task = created(TaskLog(store)).task
    for _ in range(12):
        fold(task, random_events(draw, task))
    before, other = copy.deepcopy(state(task)), task.copy()
    events: list[TaskEvent] = []
    for _ in range(12):
        more = random_events(draw, other)
        other = draw.choice([other, other.copy()])
        fold(other, more)
        events += more
        assert state(task) == before
    fold(task, events)
    assert state(task) == state(other) | {"borrowed": False}
