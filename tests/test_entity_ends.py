"""Every way in which an entity's actor can end is seen once, and no command stays without its answer."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import actors.entities
import actors.places
import actors.tree
from actors import (
    AgentSystem,
    AskTimeoutError,
    Entity,
    EntityCrashError,
    EntityError,
    EntityStoppedError,
    InsideTaskError,
    Rejected,
    StoreError,
    SystemClosedError,
    UnreadableEntityError,
    agent,
    event,
    step,
)
from actors.entities import Entities
from actors.mailbox import Command, Envelope
from stores import Store, open_store
from tests.budgets import CRASHES, PATIENCE, Budget, TooMuch, bookings, gate, living, rows, spent
from tests.lives import wait_for
from tests.scenario_kit import join_all
from tests.shell import agent_named


@pytest.fixture
def disk() -> Iterator[Store]:
    with open_store("memory:") as opened:
        yield opened


@pytest.fixture(params=["worker", "client"])
def system(request: pytest.FixtureRequest, disk: Store) -> Iterator[AgentSystem]:
    with AgentSystem(disk, run=request.param == "worker") as opened:
        yield opened


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Give the first line of each error that was logged."""
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    return [record.getMessage().splitlines()[0] for record in records]


# ------------------------------------------------------------------ crashes


@pytest.mark.parametrize(
    ("system", "how"), [("client", "SystemExit"), *(("worker", how) for how in sorted(CRASHES))], indirect=["system"]
)
def test_a_crash_is_answered_told_once_and_leaves_the_state_unharmed(
    disk: Store, system: AgentSystem, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    budget = system.entity(Budget, "b")
    budget.ask(Budget.spend, 10)
    with pytest.raises(EntityCrashError) as crash:
        budget.ask(Budget.crash, how)
    assert crash.value.fault.kind == how
    assert (crash.value.topic, crash.value.entity_id) == ("tests.budget", "b")
    assert "in crash" in crash.value.fault.traceback
    assert type(crash.value.__cause__).__name__ == how
    assert budget.ask(Budget.left) == 90
    (line,) = told(caplog)
    assert line.startswith(f"tests.budget b crashed: {how}")
    assert "/actors/" not in caplog.text, "the traceback is of the user's own code"
    assert bookings(disk, "b") == [10]


@pytest.mark.parametrize("how", ["ValueError", "SystemExit"])
def test_a_crash_of_what_was_told_is_told_once_and_a_dead_letter(
    system: AgentSystem, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    budget = system.entity(Budget, "b")
    budget.tell(Budget.crash, how)
    assert budget.ask(Budget.left) == 100
    assert len(told(caplog)) == 1
    assert len([record for record in caplog.records if "dead letter" in record.getMessage()]) == 1


def test_a_stack_that_overflows_is_a_crash(system: AgentSystem) -> None:
    with pytest.raises(EntityCrashError, match="RecursionError"):
        system.entity(Budget, "b").ask(Budget.recurse)
    assert system.entity(Budget, "b").ask(Budget.left) == 100


@pytest.mark.parametrize("system", ["worker"], indirect=True)
def test_the_next_command_waits_for_a_growing_pause_which_an_answer_ends(
    system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    budget, began = system.entity(Budget, "b"), time.monotonic()
    for command in (Budget.crash, Budget.crash, Budget.crash, Budget.left):
        with suppress(EntityCrashError):
            budget.ask(command, *(["ValueError"] if command is Budget.crash else []))  # type: ignore[operator]
    assert time.monotonic() - began >= 0.09 + 0.18 + 0.36  # all pauses lie in between, each shorter by a tenth at most
    with pytest.raises(EntityCrashError):
        budget.ask(Budget.crash, "ValueError")
    wait_for(lambda: len(told(caplog)) == 4)
    assert [re.findall(r"in (\S+) s", line)[0] for line in told(caplog)] == ["0.1", "0.2", "0.4", "0.1"]


def test_what_waited_behind_a_crash_goes_on(disk: Store, system: AgentSystem) -> None:
    budget = system.entity(Budget, "b")
    with gate("crash") as held, ThreadPoolExecutor(5) as threads:
        crash = threads.submit(budget.ask, Budget.crash_at, "crash")
        assert held.reached.wait(PATIENCE)
        behind = [threads.submit(budget.ask, Budget.spend, 10) for _ in range(4)]
        held.opened.set()
        with pytest.raises(EntityCrashError):
            crash.result(PATIENCE)
        assert sorted(future.result(PATIENCE) for future in behind) == [60, 70, 80, 90]
    assert bookings(disk, "b") == [10] * 4


def test_a_crash_of_one_entity_costs_no_other(system: AgentSystem) -> None:
    system.entity(Budget, "bad").tell(Budget.crash, "SystemExit")
    for number in range(5):
        assert system.entity(Budget, f"good-{number}").ask(Budget.spend, 1) == 99


class Moody(Entity):
    """Folds what it is told as its mood is."""

    TOPIC = "tests.moody"
    mood = ""

    def __init__(self) -> None:
        self.lock: Any = None
        self.count = 0

    def add(self) -> int:
        self.added()
        return self.count

    def hold(self) -> None:
        self.held()

    def sees(self) -> int:
        return self.count

    @event("Added")
    def added(self) -> None:
        if self.mood:
            error: BaseException = CRASHES[self.mood]()
            raise error
        self.count += 1

    @event("Held")
    def held(self) -> None:
        self.lock = [threading.Lock()]


@pytest.mark.parametrize("mood", ["ValueError", "Unprintable"])
def test_an_event_that_cannot_be_folded_again_makes_the_log_unreadable_and_nothing_more(
    disk: Store, system: AgentSystem, mood: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with AgentSystem(disk, run=False) as earlier:
        earlier.entity(Moody, "m").ask(Moody.add)
    monkeypatch.setattr(Moody, "mood", mood)
    with pytest.raises(UnreadableEntityError, match=f"version 2 of its log cannot be read: {mood}") as unreadable:
        system.entity(Moody, "m").ask(Moody.sees)
    assert (unreadable.value.topic, unreadable.value.entity_id, unreadable.value.version) == ("tests.moody", "m", 2)
    with pytest.raises(EntityCrashError, match=mood):
        system.entity(Moody, "new").ask(Moody.add)
    monkeypatch.setattr(Moody, "mood", "")
    assert system.entity(Moody, "m").ask(Moody.add) == 2
    wait_for(lambda: len(told(caplog)) == 2)
    assert any(line.startswith("tests.moody m stopped: UnreadableEntityError") for line in told(caplog))


def test_a_rehydration_that_ends_in_no_exception_is_a_crash(
    disk: Store, system: AgentSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with AgentSystem(disk, run=False) as earlier:
        earlier.entity(Moody, "m").ask(Moody.add)
    monkeypatch.setattr(Moody, "mood", "SystemExit")
    with pytest.raises(EntityCrashError, match="SystemExit"):
        system.entity(Moody, "m").ask(Moody.sees)
    monkeypatch.setattr(Moody, "mood", "")
    assert system.entity(Moody, "m").ask(Moody.sees) == 1
    assert len(told(caplog)) == 1


def test_a_state_that_cannot_be_copied_is_refused_before_it_is_in_the_log(disk: Store, system: AgentSystem) -> None:
    with pytest.raises(EntityCrashError, match=r"Moody.lock cannot be copied.*cannot pickle '_thread.lock'"):
        system.entity(Moody, "m").ask(Moody.hold)
    assert rows(disk, "m", Moody) == []
    assert system.entity(Moody, "m").ask(Moody.add) == 1


# ------------------------------------------------------------------ no thread


def refuse_threads(monkeypatch: pytest.MonkeyPatch, times: int, started: list[str] | None = None) -> list[str]:
    """Let the machine have no thread for an entity, so many times; gives who was refused, and who `started`."""
    start, refused = threading.Thread.start, list[str]()

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("EntityActor") and len(refused) < times:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        if thread.name.startswith("EntityActor") and started is not None:
            started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return refused


def test_a_thread_that_cannot_start_is_told_once_and_refuses_the_command(
    disk: Store, system: AgentSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_threads(monkeypatch, 1)
    budget = system.entity(Budget, "b")
    with pytest.raises(EntityStoppedError, match=r"was not its turn yet, and nothing of it was done.*new thread") as no:
        budget.ask(Budget.spend, 10)
    assert (no.value.topic, no.value.entity_id) == ("tests.budget", "b")
    assert budget.ask(Budget.spend, 10) == 90
    wait_for(lambda: len(told(caplog)) == 1)
    assert told(caplog)[0].startswith("tests.budget b stopped: RuntimeError: can't start new thread")


def test_a_permanent_entity_without_a_thread_is_tried_again_by_its_next_command(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = refuse_threads(monkeypatch, 3)
    with AgentSystem(disk, run=False) as client:
        client.runtime.entities.keep(Budget, "b", "permanent", "")
        for _ in range(2):
            with pytest.raises(EntityStoppedError):
                client.entity(Budget, "b").ask(Budget.left)
        assert client.entity(Budget, "b").ask(Budget.left) == 100
    assert len(refused) == 3


def letters(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records.copy() if "can't start new thread" in record.getMessage()]


def test_a_line_of_entities_without_a_thread_is_refused_one_by_one(
    disk: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(actors.places, "MOST_ALIVE", 1)
    with AgentSystem(disk, run=False) as client, gate("first") as first:
        client.entity(Budget, "first").tell(Budget.spend_at, "first", 1)
        assert first.reached.wait(PATIENCE)
        refused = refuse_threads(monkeypatch, 300)
        for number in range(300):
            client.entity(Budget, f"{number}").tell(Budget.spend, 1)
        client.runtime.entities.start_again(Budget, "first")
        first.opened.set()
        wait_for(lambda: len(refused) == 300 and not client.runtime.entities._boxes)
        wait_for(lambda: len(letters(caplog)) >= 600)
    assert len(letters(caplog)) == 600, "each is told, and each command is a dead letter"


# ------------------------------------------------------------------ restarts


def test_what_follows_a_crash_is_what_was_said_of_the_entity(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client, ThreadPoolExecutor(3) as threads:
        entities: Entities = client.runtime.entities
        entities.keep(Budget, "temporary", "temporary", "g")
        entities.keep(Budget, "permanent", "permanent", "g")
        wait_for(lambda: living(client) == ["tests.budget permanent"])
        for restart, name in (("temporary", "EntityStoppedError"), ("permanent", "")):
            budget = client.entity(Budget, restart)
            with gate(restart) as held:
                crash = threads.submit(budget.ask, Budget.crash_at, restart)
                assert held.reached.wait(PATIENCE)
                behind = threads.submit(budget.ask, Budget.spend, 10)
                wait_for(lambda: any("1 waiting" in state for _, state in entities.alive()))
                held.opened.set()
                assert isinstance(crash.exception(PATIENCE), EntityCrashError)
                assert type(behind.exception(PATIENCE)).__name__ == (name or "NoneType")
            assert budget.ask(Budget.spend, 10) == (90 if name else 80), "it begins anew"


def test_an_entity_that_begins_anew_loses_nothing_that_waits(disk: Store, system: AgentSystem) -> None:
    entities: Entities = system.runtime.entities
    budget, stop = system.entity(Budget, "b"), threading.Event()

    def unsettle() -> None:
        while not stop.is_set():
            entities.start_again(Budget, "b")

    unsettled = threading.Thread(target=unsettle)
    unsettled.start()
    try:
        with ThreadPoolExecutor(4) as threads:
            replies = list(threads.map(lambda _: budget.ask(Budget.spend, 1), range(30)))
    finally:
        stop.set()
        unsettled.join()
    assert sorted(replies) == list(range(70, 100))
    assert bookings(disk, "b") == [1] * 30


def test_what_knows_nothing_of_the_state_yet_need_not_begin_anew(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.entities, "restart_delay", lambda _crashes, _jitter: 0.5)
    refuse_threads(monkeypatch, 0, started := list[str]())
    with AgentSystem(disk, run=False) as client:
        budget, entities = client.entity(Budget, "b"), client.runtime.entities
        with pytest.raises(EntityCrashError):
            budget.ask(Budget.crash, "ValueError")
        budget.tell(Budget.left)
        wait_for(lambda: len(started) == 2)
        entities.start_again(Budget, "b")
        assert budget.ask(Budget.left) == 100
        assert len(started) == 2
        entities.start_again(Budget, "b")
        wait_for(lambda: living(client) == [])
        assert budget.ask(Budget.left) == 100
        assert len(started) == 3


# ------------------------------------------------------------------ closing


def test_a_close_lets_the_running_command_end_and_refuses_what_waits(
    disk: Store, system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    budget = system.entity(Budget, "b")
    with gate("close") as held, ThreadPoolExecutor(4) as threads:
        running = threads.submit(budget.ask, Budget.spend_at, "close", 10)
        assert held.reached.wait(PATIENCE)
        with pytest.raises(AskTimeoutError):
            budget.with_timeout(0).ask(Budget.spend, 10)
        waiting = [threads.submit(budget.with_timeout(None).ask, Budget.spend, 10) for _ in range(2)]
        wait_for(lambda: any("3 waiting" in state for _, state in system.runtime.entities.alive()))
        closing = threads.submit(system.close)
        for future in waiting:
            with pytest.raises(SystemClosedError, match="not its turn yet, and nothing of it was done: this AgentSyst"):
                future.result(PATIENCE)
        held.opened.set()
        assert running.result(PATIENCE) == 90
        closing.result(PATIENCE)
    assert bookings(disk, "b") == [10]
    assert "dead letter" not in caplog.text, "who has given up has been told"


def test_a_close_sends_home_who_stands_in_line(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.places, "MOST_ALIVE", 1)
    refuse_threads(monkeypatch, 0, started := list[str]())
    before = set(threading.enumerate())
    with gate("line") as held, ThreadPoolExecutor(8) as threads:
        with AgentSystem(disk, run=False, grace=0.05) as client:
            running = threads.submit(client.entity(Budget, "b").ask, Budget.spend_at, "line", 10)
            assert held.reached.wait(PATIENCE)
            waiting = [threads.submit(client.entity(Budget, f"{number}").ask, Budget.left) for number in range(5)]
            wait_for(lambda: len(client.runtime.entities._boxes) == 6)
        for future in waiting:
            assert isinstance(future.exception(PATIENCE), SystemClosedError)
        held.opened.set()
        assert isinstance(running.exception(PATIENCE), SystemClosedError)
    assert join_all(set(threading.enumerate()) - before) == []
    assert len(started) == 1


def test_a_closing_worker_gives_commands_its_grace(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.tree, "LAST_WORD", 0.02)
    with gate("grace") as held, ThreadPoolExecutor(2) as threads:
        system = AgentSystem(disk, grace=PATIENCE)
        with system:
            running = threads.submit(system.entity(Budget, "b").ask, Budget.spend_at, "grace", 10)
            assert held.reached.wait(PATIENCE)
            closing = threads.submit(system.close)
            assert not wait([closing], 0.3).done
            held.opened.set()
        assert running.result(PATIENCE) == 90


def test_a_command_that_outlasts_the_close_is_answered_all_the_same(
    disk: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with gate("hangs") as held, ThreadPoolExecutor(2) as threads:
        with AgentSystem(disk, run=False, grace=0.05) as client:
            hanging = threads.submit(client.entity(Budget, "b", timeout=None).ask, Budget.spend_at, "hangs", 10)
            assert held.reached.wait(PATIENCE)
        with pytest.raises(SystemClosedError, match=r"spend_at of .*: this AgentSystem was closed; it has begun"):
            hanging.result(PATIENCE)
        held.opened.set()
        wait_for(lambda: "dead letter" in caplog.text)
    assert bookings(disk, "b") == [10]
    assert "its answer is 90" in caplog.text


def test_no_thread_is_left_behind_by_a_close(disk: Store) -> None:
    before = set(threading.enumerate())
    for run in (True, False):
        with AgentSystem(disk, run=run) as system:
            for number in range(20):
                system.entity(Budget, f"{number}").ask(Budget.left)
            with suppress(EntityCrashError):
                system.entity(Budget, "resting").ask(Budget.crash, "ValueError")
            system.entity(Budget, "resting").tell(Budget.left)
        assert join_all(set(threading.enumerate()) - before) == []


def ask_until_closed(system: AgentSystem, budgets: int, seed: int) -> int:
    """Ask without a limit until the system is closed; gives how often it was booked."""
    chance, booked = random.Random(seed), 0
    try:
        while True:
            budget = system.entity(Budget, f"b{chance.randrange(budgets)}", timeout=None)
            with suppress(TooMuch, EntityCrashError):
                if chance.random() < 0.02:
                    budget.ask(Budget.crash, "ValueError")
                elif chance.random() < 0.1:
                    budget.tell(Budget.left)
                budget.ask(Budget.spend, 1)
                booked += 1
    except SystemClosedError:
        return booked


@pytest.mark.parametrize("run", [True, False])
def test_every_ask_that_races_with_a_close_gets_its_answer(
    disk: Store, run: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "perdure")
    for life in range(5):
        with open_store("memory:") as store, ThreadPoolExecutor(8) as threads:
            system = AgentSystem(store, run=run)
            with system:
                asking = [threads.submit(ask_until_closed, system, 3, 100 * life + n) for n in range(8)]
                wait(asking, 0.03 * life)
            done = wait(asking, PATIENCE)
            assert not done.not_done, "an ask stays unanswered"
            booked = sum(future.result() for future in asking)
            assert sum(spent(store, f"b{number}") for number in range(3)) == booked


# ------------------------------------------------------------------ leaving memory


class Brief(Budget):
    """Leaves memory at once."""

    TOPIC = "tests.brief"
    PASSIVATE_AFTER = 0


def test_an_idle_entity_leaves_memory_and_its_next_command_brings_it_back(disk: Store, system: AgentSystem) -> None:
    before = set(threading.enumerate())
    for number in range(5):
        assert system.entity(Brief, "b").ask(Brief.spend, 1) == 99 - number
        wait_for(lambda: living(system) == [])
        assert join_all(set(threading.enumerate()) - before) == []


def test_no_command_is_lost_between_an_actor_that_leaves_and_the_next(disk: Store, system: AgentSystem) -> None:
    def spend(thread: int) -> None:
        for number in range(40):
            system.entity(Brief, f"{(thread + number) % 3}").ask(Brief.spend, 0)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(spend, range(6)))
    assert sum(len(rows(disk, f"{number}", Brief)) - 1 for number in range(3)) == 240


def test_there_are_never_more_threads_than_places_and_who_stands_in_line_is_served_in_turn(
    disk: Store, system: AgentSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.places, "MOST_ALIVE", 3)
    most = 0
    for number in range(60):
        system.entity(Budget, f"{number}").tell(Budget.spend, 1)
        most = max(most, len(living(system)))
    replies = [system.entity(Budget, f"{number}").ask(Budget.left) for number in range(60)]
    assert replies == [99] * 60
    assert most <= 3


def test_an_entity_that_rests_after_a_crash_leaves_its_place_to_others(
    system: AgentSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.places, "MOST_ALIVE", 1)
    monkeypatch.setattr(actors.entities, "restart_delay", lambda _crashes, _jitter: 3 * PATIENCE)
    with pytest.raises(EntityCrashError):
        system.entity(Budget, "bad").ask(Budget.crash, "ValueError")
    system.entity(Budget, "bad").tell(Budget.left)
    assert system.entity(Budget, "good", timeout=PATIENCE).ask(Budget.left) == 100
    wait_for(lambda: "tests.budget bad" in living(system))


def test_an_entity_that_has_rested_takes_a_place_again(system: AgentSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.places, "MOST_ALIVE", 1)
    with pytest.raises(EntityCrashError):
        system.entity(Budget, "bad").ask(Budget.crash, "ValueError")
    assert system.entity(Budget, "bad").ask(Budget.left) == 100
    assert system.entity(Budget, "good").ask(Budget.left) == 100
    wait_for(lambda: living(system) == ["tests.budget good"])


def test_above_a_number_of_live_entities_the_one_idle_for_longest_leaves(
    disk: Store, system: AgentSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.places, "MOST_ALIVE", 3)
    with gate("busy") as busy, ThreadPoolExecutor(1) as thread:
        at_work = thread.submit(system.entity(Budget, "0").ask, Budget.spend_at, "busy", 1)
        assert busy.reached.wait(PATIENCE)
        for number in range(1, 7):
            system.entity(Budget, f"{number}").ask(Budget.spend, 1)
            wait_for(lambda: len(living(system)) <= 3)
        busy.opened.set()
        assert at_work.result(PATIENCE) == 99
    for number in range(7):
        assert system.entity(Budget, f"{number}").ask(Budget.left) == 99


def test_mailboxes_that_only_remember_a_crash_are_forgotten_in_time(
    system: AgentSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(actors.entities, "CRASHES_REMEMBERED", 3)
    for number in range(20):
        with suppress(EntityCrashError):
            system.entity(Budget, f"{number}").ask(Budget.crash, "ValueError")
    wait_for(lambda: len(told(caplog)) == 20)
    assert system.entity(Budget, "last").ask(Budget.left) == 100
    assert len(system.runtime.entities._boxes) <= 4


def test_nothing_keeps_what_was_asked_once_it_is_answered(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        kept = [weakref.ref(sent(client, Budget.left)) for _ in range(3)]
        assert client.entity(Budget, "b").ask(Budget.left) == 100
        wait_for(lambda: gc.collect() >= 0 and not any(ref() for ref in kept[:2]))


def sent(client: AgentSystem, command: Callable[..., Any]) -> Envelope:
    envelope = Envelope(Command(command.__name__, [[], {}], "", ""), "b", asked=True)
    client.runtime.entities.send(Budget, "b", envelope)
    assert envelope.job is not None
    envelope.job.result(PATIENCE)
    return envelope


# ------------------------------------------------------------------ an entity's own code

asked: dict[str, Any] = {}
"""What a command of Nosy asks."""


class Nosy(Entity):
    TOPIC = "tests.nosy"

    def __init__(self) -> None:
        self.seen = 0

    def ask(self) -> Any:
        return asked["by"]()

    def ask_in_event(self) -> None:
        self.looked()

    @event("Looked")
    def looked(self) -> None:
        asked["by"]()


@pytest.mark.parametrize("command", [Nosy.ask, Nosy.ask_in_event])
@pytest.mark.parametrize("way", ["itself", "another", "tell", "async", "thread", "spawn", "close"])
def test_an_entity_that_asks_from_its_own_code_is_refused_and_does_not_wait(
    system: AgentSystem, command: Any, way: str
) -> None:
    nosy, budget = system.entity(Nosy, "n", timeout=PATIENCE), system.entity(Budget, "b")
    asked["by"] = {
        "itself": lambda: nosy.ask(Nosy.ask),
        "another": lambda: budget.ask(Budget.spend, 1),
        "tell": lambda: budget.tell(Budget.spend, 1),
        "async": lambda: asyncio.run(budget.ask_async(Budget.spend, 1)),
        "spawn": lambda: system.spawn(agent_named("entities: spawned by one")),
        "close": system.close,
        "thread": lambda: asyncio.run(asyncio.to_thread(budget.ask, Budget.spend, 1)),
    }[way]
    with pytest.raises(EntityCrashError, match=r"inside the code of tests\.nosy n would happen") as crash:
        nosy.ask(command)
    assert crash.value.fault.is_a(InsideTaskError)
    assert spent(system.log.store) == 0


def test_an_entity_that_waits_for_itself_where_nobody_can_tell_ends_by_its_time_limit(system: AgentSystem) -> None:
    nosy = system.entity(Nosy, "n", timeout=PATIENCE)

    def on_a_thread_by_hand() -> str:
        with ThreadPoolExecutor(1) as thread:
            return type(thread.submit(nosy.with_timeout(0.05).ask, Nosy.ask).exception(PATIENCE)).__name__

    asked["by"] = on_a_thread_by_hand
    assert nosy.ask(Nosy.ask) == AskTimeoutError.__name__


# ------------------------------------------------------------------ all at once


@pytest.mark.parametrize("run", [True, False])
def test_in_a_storm_of_crashes_and_ends_every_ask_has_its_answer(
    run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "perdure")
    monkeypatch.setattr(actors.places, "MOST_ALIVE", 3)
    monkeypatch.setattr(actors.entities, "restart_delay", lambda _crashes, _jitter: 0.005)
    refuse_threads(monkeypatch, 5)
    until, counts = time.monotonic() + 0.6, threading.Lock()
    booked = dict.fromkeys((f"b{number}" for number in range(6)), 0)

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < until:
            name = chance.choice(sorted(booked))
            budget = system.entity(Brief, name, timeout=chance.choice([None, None, 0.001]))
            try:
                match chance.randrange(12):
                    case 0:
                        budget.ask(Brief.crash, chance.choice(["ValueError", "SystemExit"]))
                    case 1:
                        budget.tell(Brief.crash, "ValueError")
                    case 2:
                        system.runtime.entities.start_again(Brief, name)
                    case 3:
                        asyncio.run(budget.with_timeout(None).ask_async(Brief.left))
                    case _:
                        budget.with_timeout(None).ask(Brief.spend, 0)
                        with counts:
                            booked[name] += 1
            except (EntityError, Rejected, AskTimeoutError, StoreError):
                continue

    with open_store(f"sqlite:///{tmp_path}/storm.db") as store, AgentSystem(store, run=run) as system:
        with ThreadPoolExecutor(8) as threads:
            asking: list[Future[None]] = [threads.submit(ask, seed) for seed in range(8)]
            done = wait(asking, 1.0 + PATIENCE)
            assert not done.not_done, "an ask stays unanswered"
            for future in asking:
                future.result()
        for name, times in booked.items():
            assert len(rows(store, name, Brief)) - (times > 0) == times


def test_a_command_gets_the_last_moment_also_where_bodies_have_used_up_the_grace(disk: Store) -> None:
    entered, never = threading.Event(), threading.Event()

    @step
    def hangs() -> None:
        entered.set()
        never.wait(PATIENCE)

    @agent(name=f"hangs-{id(entered)}")
    def hanging() -> None:
        hangs()

    with gate("crash") as held, ThreadPoolExecutor(2) as threads:
        system = AgentSystem(disk, grace=0.05)
        with system:
            system.spawn(hanging, id="t")
            assert entered.wait(PATIENCE)
            ask = threads.submit(system.entity(Budget, "b").ask, Budget.spend_at, "crash", 10)
            assert held.reached.wait(PATIENCE)
            closing = threads.submit(system.close)
            wait_for(lambda: bool(system._tree and system._tree.worker.over.is_set()))
            held.opened.set()
            assert ask.result(PATIENCE) == 90
            closing.result(PATIENCE)
        never.set()
    assert bookings(disk, "b") == [10]
