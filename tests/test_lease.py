"""The lease: who is called frozen and when, and what a worker does not do while its own does not hold."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import AgentSystem, NotHappened, StepError, agent, open_store, step, step_info
from actors.appender import Appender
from actors.definitions import find_agent, known_agents
from actors.lease import Lease
from actors.outage import FIRST_WAIT, LONGEST_WAIT, Outage
from actors.runtime import Runtime
from actors.task_log import TaskLog
from actors.tenure import Tenure
from actors.testing import CrashPlan, FakeClock
from actors.worker import Worker
from domain.events import Activated, Passivated, StepFailed, StepStarted
from stores import Store, StoreError, StoreUnavailableError
from stores.crash import CrashingStore
from tests.lives import PATIENCE, bodies, die, kinds, live, log, wait_for

# ------------------------------------------------------------------ who is called frozen


def watching(lease: float) -> Tenure:
    """Give the tenure of a worker that may tell what it has seen: its own lease holds."""
    tenure = Tenure(lease)
    tenure.renew(monotonic() + 3600)
    return tenure


def seconds_until_frozen(own: float, others: float, interval: float) -> float:
    """Let one watch another that has stopped, at such intervals, until it is called frozen."""
    tenure, passed = watching(own), 0.0
    while tenure.frozen_at("other") is None:
        tenure.observe({"other": (5, others)}, passed, passed)
        passed += interval
        assert passed < 100
    assert tenure.frozen_at("other") == 5
    return passed - interval


def test_a_lease_holds_for_its_seconds_from_each_renewal_and_never_before_the_first() -> None:
    tenure = Tenure(50.0)
    assert not tenure.holds()
    tenure.renew(monotonic() - 49.0)
    assert tenure.holds()
    tenure.renew(monotonic() - 50.0)
    assert not tenure.holds()


@pytest.mark.parametrize(("own", "others", "seconds"), [(8.0, 8.0, 8.0), (2.0, 8.0, 8.0), (8.0, 2.0, 4.0)])
def test_frozen_is_who_stood_still_for_its_own_lease_however_long_that_of_the_watcher_is(
    own: float, others: float, seconds: float
) -> None:
    assert seconds_until_frozen(own, others, own / 4) == seconds


def test_a_watcher_that_beats_half_as_often_as_it_should_watches_and_one_that_beats_less_does_not() -> None:
    assert seconds_until_frozen(8.0, 8.0, 4.0) == 8.0
    with pytest.raises(AssertionError):
        seconds_until_frozen(8.0, 8.0, 4.1)


def test_who_was_away_itself_begins_to_watch_anew() -> None:
    tenure = watching(8.0)
    seen = []
    for moment in (0, 2, 4, 6, 1000, 1002, 1004, 1006, 1008):
        tenure.observe({"other": (5, 8.0)}, moment, moment)
        seen.append(tenure.frozen_at("other"))
    assert seen == [None] * 8 + [5]


def test_what_the_look_itself_takes_is_not_counted() -> None:
    tenure = watching(8.0)
    for moment in (0, 2, 4, 6, 8, 10):
        tenure.observe({"other": (5, 8.0)}, moment, moment + 1)
    assert tenure.frozen_at("other") is None


def test_who_beats_again_or_has_gone_is_not_frozen_any_more_and_only_a_new_one_is_news() -> None:
    tenure = watching(8.0)
    still = {"one": (5, 4.0), "two": (7, 6.0)}
    assert [tenure.observe(still, moment, moment) for moment in (0, 2, 4, 6, 8)] == [False, False, True, True, False]
    assert not tenure.observe({"one": (6, 4.0)}, 10, 10)
    assert (tenure.frozen_at("one"), tenure.frozen_at("two")) == (None, None)
    assert [tenure.observe({"one": (6, 4.0)}, moment, moment) for moment in (12, 14)] == [False, True]


def test_whose_own_lease_does_not_hold_calls_nobody_frozen() -> None:
    tenure = watching(8.0)
    for moment in (0, 2, 4, 6, 8):
        tenure.observe({"other": (5, 8.0)}, moment, moment)
    assert tenure.frozen_at("other") == 5
    tenure.renew(-math.inf)
    assert tenure.frozen_at("other") is None


gaps = st.floats(0.0, 12.0)
short = st.floats(0.0, 3.0)


@given(
    st.lists(st.tuples(gaps, short), min_size=1, max_size=12),
    st.lists(st.tuples(gaps, short, short), max_size=30),
    st.sampled_from([1.0, 4.0, 8.0]),
    st.sampled_from([1.0, 4.0, 8.0]),
)
def test_nobody_is_called_frozen_whose_lease_holds_by_its_own_clock(
    beats: list[tuple[float, float]], looks: list[tuple[float, float, float]], own: float, others: float
) -> None:
    """Beats and looks at any moments, each taking any time: a beat counts from its beginning, its row comes later."""
    moments = list(accumulate(passed for beat in beats for passed in beat))
    began, stored = moments[::2], moments[1::2]
    tenure, now = watching(own), 0.0
    for gap, asking, answering in looks:
        asked, read, now = now + gap, now + gap + asking, now + gap + asking + answering
        count = sum(moment <= read for moment in stored)
        tenure.observe({"other": (count, others)} if count else {}, asked, now)
        if tenure.frozen_at("other") is not None:
            assert read >= began[count - 1] + others - 1e-6


# ------------------------------------------------------------------ beats


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


@agent(name="lease: nothing")
def nothing() -> str:
    return "done"


def worker_of(system: AgentSystem) -> Worker:
    assert system._tree is not None
    return system._tree.worker


def wait_for_beats(system: AgentSystem, beats: int) -> None:
    tenure = worker_of(system).tenure
    before = tenure.count
    wait_for(lambda: tenure.count >= before + beats)


def claim(store: Store, task_id: str, worker: str) -> None:
    """Let a worker of that name have the task, as it has it when it stops doing anything."""
    task_log = TaskLog(store)
    appender = Appender(task_log, task_log.load(task_id))
    appender.append(lambda task, now: task.activate(now, worker=worker, token="t", limit=None))


def owners(store: Store, task_id: str) -> list[str]:
    return [event.worker for event in TaskLog(store).events.get(task_id) if isinstance(event, Activated)]


def test_a_worker_has_beaten_before_it_runs_anything_and_takes_its_beat_away_when_it_closes(disk: Store) -> None:
    @agent(name="lease: looks")
    def looks() -> list[float]:
        return [lease for _, lease in disk.recorder.select_beats().values()]

    assert live(disk, looks, lease=7.0) == [7.0]
    assert owners(disk, "t")
    assert disk.recorder.select_beats() == {}


def test_the_beat_of_a_dead_worker_is_taken_away_and_that_of_a_living_one_is_not(disk: Store) -> None:
    lock = disk.workers.hold("living", {})
    for worker in ("living", "dead"):
        disk.recorder.save_beat(worker, 3, 60.0)
    with AgentSystem(disk):
        wait_for(lambda: "dead" not in disk.recorder.select_beats())
        assert disk.recorder.select_beats()["living"] == (3, 60.0)
    lock.release()


def test_a_frozen_worker_is_robbed_and_a_living_one_without_a_beat_never(disk: Store) -> None:
    """One without a beat is of an older version, or just starting."""
    for name in ("frozen", "older"):
        TaskLog(disk).create(name, nothing.name, [[], {}], {})
        claim(disk, name, name)
    locks = [disk.workers.hold(name, {}) for name in ("frozen", "older")]
    disk.recorder.save_beat("frozen", 3, 0.2)
    with AgentSystem(disk, lease=0.2) as system:
        assert system.task("frozen").result(PATIENCE) == "done"
        wait_for_beats(system, 5)
        assert owners(disk, "older") == ["older"]
        assert owners(disk, "frozen") == ["frozen", worker_of(system).id]
    for lock in locks:
        lock.release()


def test_a_worker_that_may_run_one_task_only_takes_it_from_a_frozen_one_too(disk: Store) -> None:
    TaskLog(disk).create("t", nothing.name, [[], {}], {})
    claim(disk, "t", "frozen")
    lock = disk.workers.hold("frozen", {})
    disk.recorder.save_beat("frozen", 3, 0.2)
    with AgentSystem(disk, lease=0.2, only="t") as system:
        assert system.task("t").result(PATIENCE) == "done"
    lock.release()


def test_who_has_beaten_since_it_was_seen_frozen_is_not_robbed(disk: Store) -> None:
    lock = disk.workers.hold("other", {})
    disk.recorder.save_beat("other", 3, 4.0)
    tenure = watching(4.0)
    facts = (TaskLog(disk), Runtime(), 3, None, find_agent, known_agents)
    worker = Worker("w1", *facts, lambda down: None, lambda: None, tenure)
    for moment in range(6):
        tenure.observe(disk.recorder.select_beats(), moment, moment)
        assert worker.owns_or_may_take("other") == (moment >= 4)
    disk.recorder.save_beat("other", 4, 4.0)
    assert not worker.owns_or_may_take("other")
    disk.recorder.delete_beat("other")
    assert not worker.owns_or_may_take("other")
    lock.release()


def test_a_lease_actor_that_dies_is_made_anew_and_counts_on(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, deaths = Lease._watch, list[int]()

    def dies_twice(self: Lease) -> None:
        if len(deaths) < 2:
            deaths.append(disk.recorder.select_beats()[self._worker.id][0])
            raise ZeroDivisionError
        watch(self)

    monkeypatch.setattr(Lease, "_watch", dies_twice)
    with AgentSystem(disk, lease=0.2) as system:
        wait_for_beats(system, 4)
        assert system.spawn(nothing).result(PATIENCE) == "done"
    assert deaths == [1, 2]


@pytest.mark.parametrize("lease", [0.0, 0.05, -1.0, math.inf, math.nan])
def test_a_lease_that_cannot_be_kept_is_refused(lease: float) -> None:
    with pytest.raises(ValueError, match="lease is a number of seconds"):
        AgentSystem("memory:", lease=lease)


# ------------------------------------------------------------------ while it does not hold


class LockedOut:
    """A store that takes no beat while `away` is set, and everything else."""

    def __init__(self, disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = threading.Event()
        self._save = disk.recorder.save_beat
        monkeypatch.setattr(disk.recorder, "save_beat", self.save_beat)

    def save_beat(self, *beat: Any) -> None:
        if self.away.is_set():
            raise StoreUnavailableError("no beat, for a test", url="memory:", reason="test")
        self._save(*beat)

    def lock_out(self, system: AgentSystem) -> None:
        """Let no beat through, and wait until the system's lease has run out."""
        self.away.set()
        wait_for(lambda: not worker_of(system).tenure.holds())


@pytest.fixture
def locked_out(disk: Store, monkeypatch: pytest.MonkeyPatch) -> LockedOut:
    return LockedOut(disk, monkeypatch)


class Halting:
    """An agent that halts between two steps; in either colour."""

    def __init__(self, *, idempotent: bool, is_async: bool) -> None:
        self.between, self.go, self.before = threading.Event(), threading.Event(), threading.Event()
        self.entered: list[int] = []

        @step(name="lease: next", idempotent=idempotent)
        def following() -> None:
            self.entered.append(step_info().attempt)

        @agent(name="lease: halting")
        def flow() -> None:
            self.halt()
            following()

        @agent(name="lease: halting")
        async def flow_async() -> None:
            self.halt()
            await following.aio()

        self.flow: Any = flow_async if is_async else flow

    def halt(self) -> None:
        self.between.set()
        assert self.go.wait(PATIENCE)
        self.before.set()


@pytest.fixture(params=["sync", "sync, idempotent", "async", "async, idempotent"])
def halting(request: pytest.FixtureRequest) -> Halting:
    colour, _, option = request.param.partition(", ")
    return Halting(idempotent=bool(option), is_async=colour == "async")


each_colour = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def test_a_body_waits_in_place_until_the_lease_is_renewed(disk: Store, locked_out: LockedOut, halting: Halting) -> None:
    with AgentSystem(disk, lease=0.1) as system:
        task = system.spawn(halting.flow, id="t")
        assert halting.between.wait(PATIENCE)
        locked_out.lock_out(system)
        halting.go.set()
        assert halting.before.wait(PATIENCE)
        with pytest.raises(TimeoutError):
            task.result(timeout=0.15)
        assert (halting.entered, kinds(disk)) == ([], ["Created", "Activated"])
        locked_out.away.clear()
        task.result(PATIENCE)
    assert halting.entered == [1]
    assert kinds(disk).count("Activated") == 1


def test_a_body_that_waits_for_the_lease_keeps_no_system_from_closing_and_is_not_begun(
    disk: Store, locked_out: LockedOut, halting: Halting
) -> None:
    with AgentSystem(disk, lease=0.1, grace=PATIENCE) as system:
        system.spawn(halting.flow, id="t")
        assert halting.between.wait(PATIENCE)
        locked_out.lock_out(system)
        halting.go.set()
        assert halting.before.wait(PATIENCE)
    assert halting.entered == []
    assert kinds(disk) == ["Created", "Activated", "Passivated"]
    locked_out.away.clear()
    live(disk, halting.flow)
    assert halting.entered == [1]


def test_before_the_lease_holds_again_a_lost_task_is_found_so_that_no_body_of_it_is_entered(
    disk: Store, locked_out: LockedOut, halting: Halting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.recovery.LONGEST_POLL", 3600.0)  # it compares too, but not at this very moment
    lock = disk.workers.hold("other", {})
    with AgentSystem(disk, lease=0.1) as system:
        system.spawn(halting.flow, id="t")
        assert halting.between.wait(PATIENCE)
        locked_out.lock_out(system)
        claim(disk, "t", "other")
        locked_out.away.clear()
        wait_for(worker_of(system).tenure.holds)
        halting.go.set()
        assert system._tree is not None
        assert system._tree.directory.wait_empty(PATIENCE)
        assert system.spawn(nothing).result(PATIENCE) == "done"
    lock.release()
    assert halting.entered == []
    assert kinds(disk) == ["Created", "Activated", "Activated"]


def test_nothing_is_claimed_nor_tried_in_vain_while_the_lease_does_not_hold(disk: Store, locked_out: LockedOut) -> None:
    """Nor does a clock jump to what is due next, as if nothing was left to do now."""
    clock = FakeClock(jump=True)
    began = clock.now()
    with AgentSystem(disk, lease=0.1, clock=clock) as system:
        wait_for(worker_of(system).tenure.holds)
        locked_out.lock_out(system)
        task = system.spawn(nothing, id="t")
        TaskLog(disk, now=lambda: began + 100).create("later", nothing.name, [[], {}], {})
        with pytest.raises(TimeoutError):
            task.result(timeout=0.3)
        assert (kinds(disk), clock.now()) == (["Created"], began)
        assert system._tree is not None
        assert (system._tree.directory.hosted(), system._tree.directory.resting()) == ({}, set())
        locked_out.away.clear()
        assert task.result(PATIENCE) == "done"


def test_a_claim_is_not_made_when_the_lease_has_run_out_since_recovery_looked(
    disk: Store, locked_out: LockedOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, late = TaskLog.load, threading.Event()

    def load_late(self: TaskLog, *args: Any) -> Any:
        if threading.current_thread().name.startswith("TaskActor") and not late.is_set():
            locked_out.lock_out(system)
            late.set()
        return load(self, *args)

    monkeypatch.setattr(TaskLog, "load", load_late)
    with AgentSystem(disk, run=False) as client:
        client.spawn(nothing, id="t")  # so that recovery has to look for it
    with AgentSystem(disk, lease=0.1) as system:
        task = system.task("t")
        assert late.wait(PATIENCE)
        assert system._tree is not None
        assert system._tree.directory.wait_empty(PATIENCE)
        assert kinds(disk) == ["Created"]
        locked_out.away.clear()
        assert task.result(PATIENCE) == "done"


def test_a_lease_counts_from_before_the_beat_was_written(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others see the beat when it is stored, and watch from then on: they must not be the first to know."""
    save, writing, go_on = disk.recorder.save_beat, threading.Event(), threading.Event()

    def save_slowly(*beat: Any) -> None:
        save(*beat)
        if beat[1] == 1:
            writing.set()
            assert go_on.wait(PATIENCE)

    monkeypatch.setattr(disk.recorder, "save_beat", save_slowly)
    renewed = list[float]()
    monkeypatch.setattr(Tenure, "renew", lambda self, since: renewed.append(since))
    with AgentSystem(disk):
        assert writing.wait(PATIENCE)
        written = monotonic()
        go_on.set()
        wait_for(lambda: bool(renewed))
    assert renewed[0] < written


def test_a_store_that_is_back_is_met_with_a_beat_within_the_next_quarter_of_the_lease(
    disk: Store, locked_out: LockedOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may be back earlier, and watch: it waits no longer, however long the outage was."""
    monkeypatch.setattr("actors.outage.FIRST_WAIT", LONGEST_WAIT)
    with AgentSystem(disk, lease=0.4) as system:
        locked_out.lock_out(system)
        locked_out.away.clear()
        wait_for(worker_of(system).tenure.holds, timeout=LONGEST_WAIT / 2)


class AfterTheStart(CrashPlan):
    """Calls `then` when the start of a step is in the log, and its body is not yet entered."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__(None)
        self.then = then

    def reach(self, point: str, **facts: Any) -> None:
        if point == "append.after" and StepStarted.TOPIC in facts["topics"]:
            self.then()
        super().reach(point, **facts)


@each_colour
def test_a_body_whose_start_is_in_the_log_is_not_entered_when_the_lease_has_run_out_since(
    disk: Store, locked_out: LockedOut, is_async: bool
) -> None:
    """It stays in doubt where the system closes, and says so."""
    halting = Halting(idempotent=False, is_async=is_async)
    halting.go.set()
    late = threading.Event()

    def lock_out() -> None:
        locked_out.lock_out(system)
        late.set()

    with AgentSystem(CrashingStore(disk, AfterTheStart(lock_out)), lease=0.1, grace=PATIENCE) as system:
        system.spawn(halting.flow, id="t")
        assert late.wait(PATIENCE)
        closing = monotonic()
    assert monotonic() - closing < PATIENCE / 2
    assert halting.entered == []
    last = log(disk)[-1]
    assert isinstance(last, Passivated)
    assert last.cut_off == ["1"]
    locked_out.away.clear()
    live(disk, halting.flow)
    assert halting.entered == [2]
    assert bodies(disk) == [("1", "lease: next", 1), ("1", "lease: next", 2)]


@each_colour
def test_a_body_whose_task_was_taken_after_its_start_is_not_entered(
    disk: Store, locked_out: LockedOut, is_async: bool
) -> None:
    halting = Halting(idempotent=False, is_async=is_async)
    halting.go.set()
    lock = disk.workers.hold("other", {})

    def take() -> None:
        locked_out.lock_out(system)
        claim(disk, "t", "other")
        locked_out.away.clear()
        wait_for(worker_of(system).tenure.holds)

    with AgentSystem(CrashingStore(disk, AfterTheStart(take)), lease=0.1) as system:
        system.spawn(halting.flow, id="t")
        assert system._tree is not None
        wait_for(lambda: kinds(disk)[-1] == "Activated" and len(kinds(disk)) == 4)
        assert system._tree.directory.wait_empty(PATIENCE)
    lock.release()
    assert halting.entered == []
    assert kinds(disk) == ["Created", "Activated", "StepStarted", "Activated"]


class Doubtful:
    """An agent whose step was left in doubt, and whose worker's lease runs out just after it has claimed it."""

    def __init__(self, disk: Store, locked_out: LockedOut) -> None:
        self.disk, self.locked_out = disk, locked_out
        self.asked: list[bool] = []
        self.late = threading.Event()
        self.system: AgentSystem | None = None

        def look(doubt: Any) -> NotHappened:
            self.asked.append(locked_out.away.is_set())
            return NotHappened()

        @step(name="lease: doubtful", on_doubt=look)
        def doubtful() -> str:
            return "done"

        @agent(name="lease: in doubt")
        def flow() -> str:
            if self.system is not None:
                locked_out.lock_out(self.system)
                self.late.set()
            return doubtful()

        die(disk, flow)

    def reopen(self) -> AgentSystem:
        self.system = AgentSystem(self.disk, lease=0.1, grace=PATIENCE)
        return self.system


def running(system: AgentSystem) -> list[str]:
    """Give the paths of the bodies of task t that run, or are about to."""
    assert system._tree is not None
    actor = system._tree.directory.hosted()["t"]
    return actor.activation.running if actor is not None and actor.activation is not None else []


def test_a_function_that_settles_a_doubt_waits_for_the_lease_too(disk: Store, locked_out: LockedOut) -> None:
    doubtful = Doubtful(disk, locked_out)
    with doubtful.reopen() as system:
        assert doubtful.late.wait(PATIENCE)
        with pytest.raises(TimeoutError):
            system.task("t").result(timeout=0.15)
        locked_out.away.clear()
        assert system.task("t").result(PATIENCE) == "done"
    assert doubtful.asked == [False]


def test_a_function_that_settles_a_doubt_is_not_asked_when_its_system_closes_meanwhile(
    disk: Store, locked_out: LockedOut, caplog: pytest.LogCaptureFixture
) -> None:
    doubtful = Doubtful(disk, locked_out)
    with doubtful.reopen() as system:
        assert doubtful.late.wait(PATIENCE)
        wait_for(lambda: running(system) == ["1"])
        closing = monotonic()
    assert monotonic() - closing < PATIENCE / 2
    assert doubtful.asked == []
    assert kinds(disk)[-2:] == ["Activated", "Passivated"]
    assert "ended by an error" not in caplog.text


def test_a_cancellation_that_comes_while_a_body_waits_for_the_lease_is_recorded_and_the_body_not_entered(
    disk: Store, locked_out: LockedOut
) -> None:
    entered: list[int] = []

    @step(name="lease: cancelled")
    async def cancelled() -> None:
        entered.append(1)

    @agent(name="lease: in a time limit")
    async def flow() -> str:
        locked_out.lock_out(system)
        try:
            async with asyncio.timeout(0.05):
                await cancelled()
        except StepError as error:
            return str(error)
        return "in time"

    with AgentSystem(disk, lease=0.1) as system:
        value = system.spawn(flow, id="t").result(PATIENCE)
    assert entered == []
    assert "was cancelled from outside" in value
    assert [event.attempt for event in log(disk) if isinstance(event, StepFailed)] == [1]


# ------------------------------------------------------------------ outages


class AwayStore(CrashingStore):
    """A store of which neither log nor index can be had, for reading neither, while `away` is set."""

    def __init__(self, disk: Store) -> None:
        super().__init__(disk, CrashPlan(None))
        self.workers = disk.workers
        self.away = threading.Event()

    def check(self) -> None:
        super().check()
        if self.away.is_set():
            raise StoreUnavailableError("away, for a test", url=self.url, reason="test")


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


def test_waits_double_up_to_the_longest_and_an_outage_is_said_once_at_each_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage, error = Outage("somebody waits", "somebody goes on"), StoreError("locked")
    for _ in range(2):
        waits = [outage.met(error) for _ in range(9)]
        assert waits[:4] == [FIRST_WAIT, FIRST_WAIT * 2, FIRST_WAIT * 4, FIRST_WAIT * 8]
        assert waits[7:] == [LONGEST_WAIT] * 2
        outage.over()
        outage.over()
    told = [record.getMessage() for record in caplog.records]
    assert told == ["the store is away, somebody waits: locked", "the store is back, somebody goes on"] * 2
    assert Outage("", "", longest=0.03).met(error) == 0.03


def test_an_outage_of_some_seconds_needs_no_operator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One task is between two steps, one due to be retried meanwhile, one spawned meanwhile by somebody else."""
    disk = open_store(f"sqlite:///{tmp_path}/tasks.db")
    halting, store, tries = Halting(idempotent=False, is_async=False), AwayStore(disk), list[int]()

    @step(name="lease: retried", retries=1, backoff=1.1, jitter=0)
    def retried() -> int:
        tries.append(step_info().attempt)
        if len(tries) == 1:
            raise ConnectionError
        return len(tries)

    @agent(name="lease: retrying")
    def retrying() -> int:
        return retried()

    with disk, AgentSystem(store, lease=0.4) as system:
        tasks = [system.spawn(halting.flow, id="t"), system.spawn(retrying, id="r")]
        assert halting.between.wait(PATIENCE)
        wait_for(lambda: tasks[1].status() == "waiting")
        store.away.set()
        until = monotonic() + 2.5
        halting.go.set()
        with AgentSystem(disk, run=False) as client:
            client.spawn(nothing, id="n")
        wait_for(lambda: monotonic() >= until)
        assert (halting.entered, tries) == ([], [1])
        store.away.clear()
        assert [task.result(PATIENCE) for task in tasks] == [None, 2]
        assert system.task("n").result(PATIENCE) == "done"
    for words in ("recovery waits", "recovery goes on", "when the lease runs out", "the lease is renewed"):
        assert said(caplog, words) == 1
    assert said(caplog, "the store is away") == said(caplog, "the store is back") == 2


def test_whoever_waits_for_a_store_that_is_away_is_awake_at_once_when_its_system_closes(
    disk: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("actors.outage.FIRST_WAIT", LONGEST_WAIT)
    monkeypatch.setattr("actors.tree.LAST_WORD", PATIENCE)
    store = AwayStore(disk)
    with AgentSystem(store, lease=4 * LONGEST_WAIT) as system:
        tree = system._tree
        assert tree is not None
        wait_for(tree.worker.tenure.holds)
        store.away.set()
        wait_for(lambda: said(caplog, "recovery waits") == 1)
        closing = monotonic()
    assert monotonic() - closing < LONGEST_WAIT / 2
    assert tree.recovery.actor_stopped.is_set()
    assert tree.lease.actor_stopped.is_set()
