"""Whatever dies or stumbles: what is asked is in an entity's log once, the asker has the reply that stands there."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import actors.entities
import actors.tree
from actors import (
    AgentSystem,
    KeyConflictError,
    StoreUnavailableError,
    agent,
    entity,
    gather,
    step,
    step_info,
)
from actors.entity_log import stream_of
from actors.mapper import is_stream
from actors.testing import Run, crash_plans, every_crash_point, run_through_crashes
from domain.events import Created, Passivated, StepFailed, StepSucceeded
from domain.state import idempotency_key
from domain.values import decode
from stores import Store, open_store
from stores.crash import CrashingStore, CrashPlan, FaultPlan, SimulatedCrash
from tests.budgets import PATIENCE, Budget, TooMuch, bookings, gate, replayed, rows, spent
from tests.lives import live, log, wait_for
from tests.test_entity_agents import asks_once, asks_once_async

SOME = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=15)
COLOURS = ["sync", "async"]

# ------------------------------------------------------------------ programs that ask
#
#     ["spend", amount]  ["spend_twice", amount]  ["refund", amount]  ["left"]      ask
#     ["body", amount]                         spend in the body of a step, with its key
#     ["agent", program]  ["gather", [program, …]]


def refused(no: TooMuch) -> str:
    return f"only {no.left}"


@step
def spend_in_a_body(amount: int) -> Any:
    try:
        return entity(Budget, "b").with_key(step_info().idempotency_key).ask(Budget.spend, amount)
    except TooMuch as no:
        return refused(no)


@agent(name="entities: walk")
def walk(program: list[Any]) -> list[Any]:
    return [do(*operation) for operation in program]


def do(operation: str, *args: Any) -> Any:
    match operation:
        case "gather":
            return list(gather(*(partial(walk.fn, program) for program in args[0])))
        case "agent":
            return walk(args[0])
        case "body":
            return spend_in_a_body(*args)
    try:
        return entity(Budget, "b").ask(getattr(Budget, operation), *args)
    except TooMuch as no:
        return refused(no)


@agent(name="entities: walk async")
async def walk_async(program: list[Any]) -> list[Any]:
    return [await do_async(*operation) for operation in program]


async def do_async(operation: str, *args: Any) -> Any:
    match operation:
        case "gather":
            return list(await gather(*(walk_async.fn(program) for program in args[0])))
        case "agent":
            return await walk_async(args[0])
        case "body":
            return await spend_in_a_body.aio(*args)
    try:
        return await entity(Budget, "b").ask_async(getattr(Budget, operation), *args)
    except TooMuch as no:
        return refused(no)


WALKERS: dict[str, Any] = {"sync": walk, "async": walk_async}
amounts = st.integers(0, 60)
asks = st.one_of(
    st.tuples(st.sampled_from(["spend", "spend", "spend_twice", "refund", "body"]), amounts).map(list),
    st.just(["left"]),
)
straight = st.recursive(
    st.lists(asks, max_size=4), lambda inner: st.lists(st.one_of(asks, st.tuples(st.just("agent"), inner).map(list)))
)
branching = st.lists(
    st.one_of(asks, st.tuples(st.just("gather"), st.lists(straight, min_size=1, max_size=3)).map(list)), max_size=3
)
numbers = itertools.count()


class Disks:
    """Where runs leave what outlives them; a new one for each run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last: Any = None

    def new(self, kind: str = "memory") -> Any:
        sqlite = kind == "sqlite"
        self.last = f"sqlite:///{self.folder}/{next(numbers)}.db" if sqlite else open_store("memory:")
        return self.last

    def opened(self) -> Store:
        return open_store(self.last) if isinstance(self.last, str) else self.last


@pytest.fixture
def disk() -> Iterator[Store]:
    with open_store("memory:") as opened:
        yield opened


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(tmp_path)


def flat(result: Any) -> list[Any]:
    return [one for part in result for one in flat(part)] if isinstance(result, list) else [result]


def check(run: Run, disk: Store) -> None:
    """Compare what a task remembers with what the entity does."""
    run.check()
    with disk:
        log, state = rows(disk, "b"), replayed(disk, "b")
        total = 0
        for amount in bookings(disk, "b"):
            total += amount
            assert total <= 100, "overspent"
        assert spent(disk) == total
        created = run.events[0]
        assert isinstance(created, Created)
        asked = [e for e in run.events if isinstance(e, StepSucceeded | StepFailed) and e.kind == "step"]
        kept = {idempotency_key(created.birth, outcome.path): outcome for outcome in asked}
        assert set(state.receipts) <= set(kept), "a receipt of nobody"
        assert [row.key for row in log if row.key] == list(state.receipts), "a key twice"
        for key, outcome in kept.items():
            changes = outcome.name.endswith(("spend", "spend_twice", "refund", "spend_in_a_body"))
            accepted = isinstance(outcome, StepSucceeded) and not isinstance(outcome.value, str)
            assert (key in state.receipts) is (changes and accepted), outcome
            if key in state.receipts:
                assert isinstance(outcome, StepSucceeded)
                assert state.receipts[key].reply == outcome.value
        assert sorted(map(str, flat(run.result))) == sorted(map(reply, asked))


def reply(outcome: StepSucceeded | StepFailed) -> str:
    """Give what the agent was told."""
    if isinstance(outcome, StepSucceeded):
        return str(decode(outcome.value))
    (left,), *_ = outcome.error["raised"]
    return f"only {left}"


def run(program: list[Any], plan: list[int], disks: Disks, kind: str, colour: str) -> Run:
    done = run_through_crashes(WALKERS[colour], program, plan=plan, store=disks.new(kind))
    check(done, disks.opened())
    return done


stores = st.sampled_from(["memory"] * 5 + ["sqlite"])
colours = st.sampled_from(COLOURS)


@SOME
@given(program=straight, plan=crash_plans(), kind=stores, colour=colours)
def test_crashes_change_no_answer_of_an_agent_that_asks(
    disks: Disks, program: list[Any], plan: list[int], kind: str, colour: str
) -> None:
    assert run(program, plan, disks, kind, colour).result == run(program, [], disks, "memory", colour).result


@SOME
@given(program=branching, plan=crash_plans(), kind=stores, colour=colours)
def test_branches_that_ask_book_each_of_their_asks_once(
    disks: Disks, program: list[Any], plan: list[int], kind: str, colour: str
) -> None:
    run(program, plan, disks, kind, colour)


EVERYTHING = [
    ["gather", [[["spend", 40]], [["body", 10]]]],
    ["agent", [["spend_twice", 15], ["spend", 50]]],
    ["refund", 5],
]


@pytest.mark.parametrize("colour", COLOURS)
def test_every_single_boundary_of_a_program_that_asks(disks: Disks, colour: str) -> None:
    runs = []
    for done in every_crash_point(WALKERS[colour], EVERYTHING, new_store=disks.new):
        check(done, disks.opened())
        runs.append(done)
    assert len(runs) == len(runs[0].points) + 1 > 35
    assert {tuple(flat(done.result)[-3:]) for done in runs} == {(20, "only 20", 25)}


booked, looked = threading.Event(), threading.Event()


@step
def books() -> None:
    entity(Budget, "b").ask(Budget.spend, 1)
    booked.set()
    assert looked.wait(PATIENCE)


@step(idempotent=True)
def looks() -> None:
    looked.set()


@agent(name="entities: books while another looks")
def side_by_side() -> None:
    gather(books, lambda: booked.wait(PATIENCE) and looks())


def test_the_kit_takes_the_version_of_an_entity_for_no_place_in_the_tasks_log(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        for _ in range(20):
            client.entity(Budget, "b").ask(Budget.spend, 1)
    done = run_through_crashes(side_by_side, store=disk)
    done.check()
    assert [body.version for body in done.bodies if body.step == "looks"] == [3]
    assert done.head == len(done.events) == 6


# ------------------------------------------------------------------ two processes against a plain model


class Process:
    """One process on the common disk, which dies or stumbles where told."""

    def __init__(self, disk: Store, run: bool) -> None:
        self.disk, self.run = disk, run
        self.open(None)

    def open(self, plan: Any) -> None:
        self.plan = plan or CrashPlan(None)
        self.store = CrashingStore(self.disk, self.plan)
        self.system = AgentSystem(self.store, run=self.run)
        self.system.__enter__()

    def close(self) -> None:
        with suppress(SimulatedCrash):
            self.system.close()
        self.store.close()

    def reopen(self, plan: Any = None) -> None:
        self.close()
        self.open(plan)


FAULTS = {
    "before": lambda n: FaultPlan(n, "append.before", lambda: StoreUnavailableError("away")),
    "inside": lambda n: FaultPlan(n, "append.inside", lambda: StoreUnavailableError("away")),
    "after": lambda n: FaultPlan(n, "append.after", lambda: StoreUnavailableError("lost", unknown_fate=True)),
    "dies before": lambda n: CrashPlan(n, "append.before"),
    "dies inside": lambda n: CrashPlan(n, "append.inside"),
    "dies after": lambda n: CrashPlan(n, "append.after"),
}


class TwoProcesses(RuleBasedStateMachine):
    """What two processes answer by turns is what a plain object would; each key is done once, whoever dies."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = open_store("memory:")
        self.spent = 0
        self.notes = 0
        self.done: dict[str, tuple[str, int, int]] = {}
        self.keys = itertools.count()

    @initialize(client=st.booleans())
    def begin(self, client: bool) -> None:
        self.processes = [Process(self.disk, run=True), Process(self.disk, run=not client)]

    def teardown(self) -> None:
        for process in getattr(self, "processes", ()):
            process.close()
        self.disk.close()

    def ask(self, who: int, command: str, amount: int, key: str) -> Any:
        """Ask, again in a new life where the process died; gives a reply, or what was left where it is no."""
        while True:
            process = self.processes[who]
            try:
                budget = process.system.entity(Budget, "b", timeout=PATIENCE)
                if key:
                    budget = budget.with_key(key)
                return budget.ask(getattr(Budget, command), *([] if command == "left" else [amount]))
            except TooMuch as no:
                return f"only {no.left}"
            except SimulatedCrash:
                process.reopen()

    def expected(self, command: str, amount: int) -> tuple[int, int, Any]:
        """Give what is spent then, how often was booked, and the reply."""
        if command == "spend" and self.spent + amount > 100:
            return self.spent, 0, f"only {100 - self.spent}"
        if command == "spend_twice" and self.spent + 2 * amount > 100:
            return self.spent, 0, f"only {100 - self.spent - amount}"
        by, times = {"spend": (amount, 1), "spend_twice": (2 * amount, 2), "refund": (-amount, 1), "left": (0, 0)}[
            command
        ]
        return self.spent + by, times, 100 - self.spent - by

    commands = st.sampled_from(["spend", "spend", "spend_twice", "refund"])
    who = st.integers(0, 1)

    @rule(who=who, command=commands, amount=st.integers(0, 70))
    def do(self, who: int, command: str, amount: int) -> None:
        key = f"key-{next(self.keys)}"
        spent, times, reply = self.expected(command, amount)
        assert self.ask(who, command, amount, key) == reply
        self.spent, self.notes = spent, self.notes + times
        if times:
            self.done[key] = (command, amount, reply)

    @rule(who=who)
    def look(self, who: int) -> None:
        assert self.ask(who, "left", 0, "") == 100 - self.spent

    @precondition(lambda self: self.done)
    @rule(who=who, data=st.data())
    def repeat(self, who: int, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.done)))
        command, amount, reply = self.done[key]
        assert self.ask(who, command, amount, key) == reply
        with pytest.raises(KeyConflictError):
            self.ask(who, command, amount + 1, key)

    @rule(who=who, fault=st.sampled_from(sorted(FAULTS)), nth=st.integers(1, 3))
    def arm(self, who: int, fault: str, nth: int) -> None:
        self.processes[who].reopen(FAULTS[fault](nth))

    @rule(who=who)
    def begin_anew(self, who: int) -> None:
        self.processes[who].system.runtime.entities.start_again(Budget, "b")

    @invariant()
    def the_log_says_what_the_model_says(self) -> None:
        state: Any = replayed(self.disk, "b").aggregate
        assert (state.spent, len(state.notes)) == (self.spent, self.notes) if state else self.notes == 0


TwoProcesses.TestCase.settings = settings(SOME, max_examples=15, stateful_step_count=25)
test_two_processes_answer_as_one_object_would = TwoProcesses.TestCase


# ------------------------------------------------------------------ a store that stumbles


def away(unknown_fate: bool) -> StoreUnavailableError:
    return StoreUnavailableError("away", unknown_fate=unknown_fate)


@pytest.mark.parametrize("run", [True, False])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
def test_a_command_is_done_once_whatever_its_append_meets(disk: Store, point: str, times: int, run: bool) -> None:
    plan = FaultPlan(0, point, lambda: away(unknown_fate=True))
    with AgentSystem(CrashingStore(disk, plan), run=run) as system:
        for booked in (1, 2):
            plan.times += times if point != "append.after" else 1
            assert system.entity(Budget, "b").ask(Budget.spend, 10) == 100 - 10 * booked
            assert bookings(disk, "b") == [10] * booked
    assert plan.failed == plan.times


class Meanwhile(FaultPlan):
    """Lets others write before the fault."""

    def __init__(self, point: str, others: Callable[[], object]) -> None:
        super().__init__(1, point, lambda: away(unknown_fate=True))
        self._others = others

    def reach(self, point: str, **facts: object) -> None:
        try:
            super().reach(point, **facts)
        except StoreUnavailableError:
            Context().run(self._others)
            raise


@pytest.mark.parametrize(("point", "first"), [("append.before", 85), ("append.after", 90)])
def test_what_others_write_while_the_fate_of_an_append_is_unknown_is_seen(disk: Store, point: str, first: int) -> None:
    with AgentSystem(disk, run=False) as other:
        plan = Meanwhile(point, partial(other.entity(Budget, "b").ask, Budget.spend, 5))
        with AgentSystem(CrashingStore(disk, plan), run=False) as system:
            order = system.entity(Budget, "b").with_key("k")
            assert order.ask(Budget.spend, 10) == first
            assert system.entity(Budget, "b").ask(Budget.left) == 85
            assert order.ask(Budget.spend, 10) == first
    assert sorted(bookings(disk, "b")) == [5, 10]


class LostAndAway(FaultPlan):
    """Loses one acknowledgement, and from then on cannot be asked either, until it is `back`."""

    def __init__(self) -> None:
        super().__init__(1, "append.after", lambda: away(unknown_fate=True))
        self.back = False

    def check(self) -> None:
        if self.failed and not self.back:
            raise away(unknown_fate=False)


def test_a_client_gives_up_in_time_and_its_next_command_finds_out_what_was_stored(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.entities, "CLIENT_PATIENCE", 0.1)
    plan = LostAndAway()
    with AgentSystem(CrashingStore(disk, plan), run=False) as client:
        order = client.entity(Budget, "b").with_key("k")
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                order.ask(Budget.spend, 10)
        plan.back = True
        assert order.ask(Budget.spend, 10) == 90
    assert bookings(disk, "b") == [10]


class EntitiesAway:
    """A store in which only the entities' logs cannot be written, from `begin` until `end`."""

    dead = False

    def __init__(self) -> None:
        self.begin, self.end, self.met = threading.Event(), threading.Event(), threading.Event()

    def reach(self, point: str, **facts: Any) -> None:
        if point == "append.before" and is_stream(facts["id"]) and not self.end.is_set():
            self.met.set()
            raise away(unknown_fate=False)

    def check(self) -> None:
        return


@pytest.mark.parametrize("asker", [asks_once, asks_once_async])
def test_an_ask_whose_worker_closes_while_the_store_is_away_is_in_doubt_and_no_failure(
    disk: Store, asker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.tree, "LAST_WORD", 1.0)
    plan = EntitiesAway()
    with AgentSystem(CrashingStore(disk, plan), grace=0.05) as worker:
        worker.spawn(asker, id="t")
        assert plan.met.wait(PATIENCE)
    assert not [event for event in log(disk) if isinstance(event, StepFailed)]
    assert [event.cut_off for event in log(disk) if isinstance(event, Passivated)] == [["1"]]
    assert live(disk, asker) == 90
    assert bookings(disk, "b") == [10]


def test_a_client_that_closes_does_not_wait_for_a_store_that_is_away(disk: Store) -> None:
    plan = EntitiesAway()
    with ThreadPoolExecutor(1) as thread:
        with AgentSystem(CrashingStore(disk, plan), run=False, grace=PATIENCE) as client:
            asked = thread.submit(client.entity(Budget, "b").ask, Budget.spend, 10)
            assert plan.met.wait(PATIENCE)
        assert isinstance(asked.exception(PATIENCE), StoreUnavailableError)
    assert rows(disk, "b") == []


def test_a_worker_waits_for_a_store_that_is_away_and_loses_nothing(
    disk: Store, caplog: pytest.LogCaptureFixture
) -> None:
    plan = EntitiesAway()
    with AgentSystem(CrashingStore(disk, plan)) as worker, ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(worker.entity(Budget, "b").ask, Budget.spend, 10) for _ in range(4)]
        assert plan.met.wait(PATIENCE)
        plan.end.set()
        assert sorted(future.result(PATIENCE) for future in asked) == [60, 70, 80, 90]
    assert caplog.records == []


def test_a_dead_process_answers_everybody_and_books_nothing_more(disk: Store) -> None:
    plan = CrashPlan(None)
    life = CrashingStore(disk, plan)
    system = AgentSystem(life)
    with suppress(SimulatedCrash), gate("dead") as held, ThreadPoolExecutor(4) as threads, system:
        first = threads.submit(system.entity(Budget, "b").ask, Budget.spend_at, "dead", 1)
        assert held.reached.wait(PATIENCE)
        behind = [threads.submit(system.entity(Budget, "b").ask, Budget.spend, 1) for _ in range(3)]
        wait_for(lambda: any("3 waiting" in state for _, state in system.runtime.entities.alive()))
        plan.die_now("power cut")
        held.opened.set()
        for future in (first, *behind):
            assert isinstance(future.exception(PATIENCE), SimulatedCrash)
    life.close()
    assert disk.recorder.select_entry(stream_of(Budget, "b")) is None
