"""Entities through their public face: commands in, events in the log before the reply, a state that is their fold."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from actors import (
    AgentSystem,
    AskTimeoutError,
    BlockingCallError,
    DefinitionError,
    Entity,
    EntityCrashError,
    KeyConflictError,
    Rejected,
    SystemClosedError,
    UnknownTaskError,
    UnstorableValueError,
    event,
)
from actors.entity_log import stream_of
from actors.mapper import is_stream
from actors.task_log import TaskLog
from actors.testing import FakeClock
from stores import Store, open_store
from tests.budgets import (
    PATIENCE,
    Budget,
    TooMuch,
    bookings,
    gate,
    living,
    replayed,
    rows,
    spent,
)
from tests.lives import wait_for
from tests.scenario_kit import World
from tests.shell import Shell, agent_named


@pytest.fixture(params=["memory", "sqlite"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/entities.db"
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def system(disk: Store) -> Iterator[AgentSystem]:
    with AgentSystem(disk) as opened:
        yield opened


# ------------------------------------------------------------------ commands


def test_the_events_of_a_command_are_in_the_log_before_its_reply(disk: Store, system: AgentSystem) -> None:
    budget = system.entity(Budget, "b")
    assert budget.ask(Budget.spend, 30, note="lunch") == 70
    assert [(row.version, row.topic, row.fields) for row in rows(disk, "b")] == [
        (1, "tests.budget.Created", {}),
        (2, "tests.budget.Spent", {"amount": 30, "note": "lunch"}),
    ]
    assert budget.ask(Budget.spend_twice, 10) == 50
    assert bookings(disk, "b") == [30, 10, 10]
    assert (budget.ask(Budget.left), budget.id, repr(budget)) == (50, "b", "EntityRef(Budget, 'b')")


def test_an_entity_of_any_id_exists_and_a_question_to_it_leaves_nothing_behind(
    disk: Store, system: AgentSystem
) -> None:
    for name in ("new", "x" * 200, "a b/c%~é漢🎉", "..", "?*", "'; DROP TABLE stored_events; --"):
        assert system.entity(Budget, name).ask(Budget.left) == 100
        assert disk.recorder.select_entry(stream_of(Budget, name)) is None
        assert system.entity(Budget, name).ask(Budget.spend, 1) == 99
        assert system.entity(Budget, name).ask(Budget.left) == 99
        assert len(rows(disk, name)) == 2, "a question appends nothing"


@pytest.mark.parametrize("id", ["", "x" * 201, "a\nb", "a\x1fb", "a\0b", "\ud800", "\u202e", 7, None, b"b"])
def test_an_id_that_no_entity_may_have_is_refused(system: AgentSystem, id: Any) -> None:
    with pytest.raises(ValueError, match="1 to 200 printable characters"):
        system.entity(Budget, id)


def test_a_no_arrives_as_itself_with_its_data_and_stores_nothing(disk: Store, system: AgentSystem) -> None:
    budget = system.entity(Budget, "b")
    with pytest.raises(TooMuch) as refused:
        budget.ask(Budget.spend, 101)
    assert (refused.value.left, refused.value.args) == (100, (100,))
    assert rows(disk, "b") == []
    budget.ask(Budget.spend, 60)
    with pytest.raises(TooMuch, match="10"):
        budget.ask(Budget.spend_twice, 30)
    assert bookings(disk, "b") == [60], "half a command is none"
    with pytest.raises(Rejected) as stubborn:
        budget.ask(Budget.refuse_with, "stubborn")
    assert type(stubborn.value).__name__ == "Stubborn"
    assert budget.ask(Budget.left) == 40


def test_only_events_change_the_state(disk: Store, system: AgentSystem) -> None:
    budget = system.entity(Budget, "b")
    assert budget.ask(Budget.meddle) == 1_000_100
    assert budget.ask(Budget.left) == 100
    budget.ask(Budget.spend, 10)
    assert budget.ask(Budget.meddle) == 1_000_100
    assert (budget.ask(Budget.left), budget.ask(Budget.all_notes)) == (90, [None])


def test_nothing_that_goes_in_or_comes_out_is_a_part_of_the_state(system: AgentSystem) -> None:
    budget, note = system.entity(Budget, "b"), {"deep": [1]}
    budget.ask(Budget.spend, 10, note=note)
    note["deep"].append(2)
    assert budget.ask(Budget.all_notes) == [{"deep": [1]}]
    budget.ask(Budget.all_notes)[0]["deep"].append(3)
    with pytest.raises(Rejected) as refused:
        budget.ask(Budget.refuse_with, "notes")
    refused.value.args[0].append(4)
    assert budget.ask(Budget.all_notes) == [{"deep": [1]}]


def test_values_arrive_as_what_they_were(system: AgentSystem) -> None:
    budget = system.entity(Budget, "b")
    values = [(1, {2}), b"x", datetime(2026, 11, 29, tzinfo=UTC), {"$": "looks like a tag"}, "a\0\ud83d", 10**40, None]
    budget.ask(Budget.spend, 1, note=values)
    assert budget.ask(Budget.all_notes) == [values]


def test_a_client_and_a_worker_are_asked_alike(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        assert client.entity(Budget, "b").ask(Budget.spend, 10) == 90
        with AgentSystem(disk) as worker:
            assert worker.entity(Budget, "b").ask(Budget.spend, 10) == 80
            assert client.entity(Budget, "b").ask(Budget.left) == 80, "a question sees what others have written"
            assert client.entity(Budget, "b").ask(Budget.spend, 10) == 70
            with pytest.raises(TooMuch, match="70"):
                worker.entity(Budget, "b").ask(Budget.spend, 71)
            assert client.entity(Budget, "b").ask(Budget.refund, 5) == 75
            assert worker.entity(Budget, "b").ask(Budget.spend, 75) == 0, "a no is decided on what is so now"
    assert bookings(disk, "b") == [10, 10, 10, -5, 75]


def test_a_restarted_system_goes_on_with_the_state_of_the_log(disk: Store) -> None:
    for life in range(3):
        with AgentSystem(disk) as system:
            assert system.entity(Budget, "b").ask(Budget.spend, 20, note=life) == 80 - 20 * life
    assert vars(replayed(disk, "b").aggregate)["notes"] == [0, 1, 2]


def test_a_budget_is_never_overspent_by_many_threads_of_two_systems(disk: Store) -> None:
    def spend_all(system: AgentSystem) -> int:
        accepted = 0
        with suppress(TooMuch):
            while True:
                system.entity(Budget, "b").ask(Budget.spend, 7)
                accepted += 1
        return accepted

    with AgentSystem(disk) as one, AgentSystem(disk, run=False) as other, ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(spend_all, [one, other] * 3)) == 14
    assert bookings(disk, "b") == [7] * 14


def test_what_is_told_is_done_in_its_turn(disk: Store, system: AgentSystem) -> None:
    budget = system.entity(Budget, "b")
    for number in range(5):
        budget.tell(Budget.spend, 1, note=number)
    assert budget.ask(Budget.all_notes) == [0, 1, 2, 3, 4]


def test_what_is_told_and_ends_in_no_reply_is_a_dead_letter(
    system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    budget = system.entity(Budget, "b")
    budget.tell(Budget.spend, 500)
    budget.tell(Budget.refuse_with, "stubborn")
    assert budget.ask(Budget.left) == 100
    assert [record.getMessage().removeprefix("dead letter: nobody waits for ") for record in caplog.records] == [
        "spend of tests.budget b; its answer is TooMuch: 100",
        "refuse_with of tests.budget b; its answer is Stubborn: (the exception cannot be printed)",
    ]


# ------------------------------------------------------------------ what cannot be asked


@pytest.mark.parametrize(
    "command",
    [
        Budget.collect_events,
        Budget.trigger_event,
        Budget._create,
        Budget.__init__,
        Budget.Event,
        vars(Budget)["Spent"],
        Budget,
        "spend",
        len,
        None,
        lambda budget: budget.spent,
        World.run,
    ],
    ids=lambda command: getattr(command, "__qualname__", str(command)),
)
def test_what_is_no_command_is_refused_where_it_is_asked(system: AgentSystem, command: Any) -> None:
    with pytest.raises(TypeError, match=r"a command of Budget is one of its public methods, such as Budget\.spend"):
        system.entity(Budget, "b").ask(command)
    assert living(system) == []


def test_wrong_arguments_are_a_slip_of_who_asks_and_no_crash(
    system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    budget: Any = system.entity(Budget, "b")
    with pytest.raises(TypeError, match=r"Budget.spend: missing a required argument: 'amount'"):
        budget.ask(Budget.spend)
    with pytest.raises(TypeError, match=r"Budget.spend: got an unexpected keyword argument 'why'"):
        budget.tell(Budget.spend, 1, why="")
    with pytest.raises(TypeError, match=r"Budget.book: missing a required argument: 'note'"):
        budget.ask(Budget.book, 1)
    assert (living(system), caplog.records) == ([], [])


def test_an_argument_that_cannot_be_stored_is_refused_with_its_path(disk: Store, system: AgentSystem) -> None:
    budget = system.entity(Budget, "b")
    for ask in (budget.ask, budget.tell, budget.with_key("k").ask):
        with pytest.raises(UnstorableValueError, match=r"\[1\].note\[1\] is of the type _thread.lock"):
            ask(Budget.spend, 1, note=[0, threading.Lock()])
    with AgentSystem(disk, run=False, value_limit=100) as small, pytest.raises(UnstorableValueError, match="the limit"):
        small.entity(Budget, "b").ask(Budget.spend, 1, note="x" * 100)
    assert rows(disk, "b") == []


@pytest.mark.parametrize(
    ("command", "args", "why"),
    [
        (Budget.give, ["lock"], "_thread.lock"),
        (Budget.give, ["huge"], "the limit is 4,194,304"),
        (Budget.note_lock, [], r"note.deep\[0\] is of the type _thread.lock"),
        (Budget.note_huge, [], "the limit is 4,194,304"),
    ],
)
def test_a_reply_or_event_that_cannot_be_stored_is_a_crash_of_which_nothing_is_stored(
    disk: Store, system: AgentSystem, command: Any, args: list[Any], why: str
) -> None:
    with pytest.raises(EntityCrashError, match=why) as crash:
        system.entity(Budget, "b").ask(command, *args)
    assert crash.value.fault.is_a(UnstorableValueError)
    assert rows(disk, "b") == []


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True])
def test_a_timeout_that_is_none_is_refused_before_anything_is_sent(system: AgentSystem, timeout: Any) -> None:
    with pytest.raises(ValueError, match="a timeout is a number of seconds"):
        system.entity(Budget, "b", timeout=timeout)
    with pytest.raises(ValueError, match="a timeout is a number of seconds"):
        system.entity(Budget, "b").with_timeout(timeout)


@pytest.mark.parametrize("key", ["", "x" * 201, 7, None])
def test_a_key_that_is_none_is_refused(system: AgentSystem, key: Any) -> None:
    with pytest.raises(ValueError, match="a key has 1 to 200 characters"):
        system.entity(Budget, "b").with_key(key)


@pytest.mark.parametrize("cls", [int, object, AgentSystem])
def test_what_is_no_entity_has_no_ref(system: AgentSystem, cls: Any) -> None:
    with pytest.raises(DefinitionError, match="is not an entity"):
        system.entity(cls, "b")


def test_a_system_that_is_not_open_has_no_entities(disk: Store) -> None:
    with pytest.raises(RuntimeError, match="not open"):
        AgentSystem(disk).entity(Budget, "b")
    with AgentSystem(disk) as system:
        budget = system.entity(Budget, "b")
        budget.ask(Budget.spend, 1)
    with pytest.raises(SystemClosedError, match="this AgentSystem was closed; nothing was done"):
        budget.ask(Budget.spend, 1)
    with pytest.raises(SystemClosedError, match="this AgentSystem was closed; nothing was done"):
        budget.tell(Budget.spend, 1)
    with pytest.raises(SystemClosedError):
        system.entity(Budget, "b")
    assert bookings(disk, "b") == [1]


def test_a_child_made_by_fork_is_refused_and_does_not_wait(world: World) -> None:
    program = world.write(
        """
        import os
        import warnings
        from actors import AgentSystem
        from stores import StoreForkedError
        from tests.budgets import Budget

        warnings.simplefilter("ignore")
        with AgentSystem("sqlite:///tasks.db") as system:
            budget = system.entity(Budget, "b")
            budget.ask(Budget.spend, 1)
            if not (child := os.fork()):
                try:
                    budget.ask(Budget.spend, 1)
                except StoreForkedError:
                    os._exit(7)
                os._exit(1)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), budget.ask(Budget.spend, 1))
        """
    )
    assert world.run(program).strip() == "7 98"


# ------------------------------------------------------------------ keys


def test_a_repeat_with_its_key_gives_the_first_reply_and_books_nothing(disk: Store) -> None:
    with AgentSystem(disk) as system:
        order = system.entity(Budget, "b").with_key("order-42")
        assert [order.ask(Budget.spend, 10, note="x") for _ in range(3)] == [90] * 3
        assert system.entity(Budget, "b").ask(Budget.spend, 10) == 80
        assert order.ask(Budget.spend, 10, note="x") == 90
        assert system.entity(Budget, "other").with_key("order-42").ask(Budget.spend, 50) == 50, "a key is one entity's"
    with AgentSystem(disk, run=False) as later:
        assert later.entity(Budget, "b").with_key("order-42").ask(Budget.spend, 10, note="x") == 90
    assert bookings(disk, "b") == [10, 10]
    assert [row.key for row in rows(disk, "b")] == [None, "order-42", None]


def test_a_key_is_for_one_command(disk: Store, system: AgentSystem) -> None:
    order = system.entity(Budget, "b").with_key("k")
    order.ask(Budget.spend, 10)
    with pytest.raises(KeyConflictError, match="used for spend before, and now for spend with other arguments") as no:
        order.ask(Budget.spend, 11)
    assert (no.value.topic, no.value.entity_id) == ("tests.budget", "b")
    with pytest.raises(KeyConflictError, match="used for spend before, and now for refund"):
        order.ask(Budget.refund, 10)
    assert order.ask(Budget.spend, 10) == 90
    assert bookings(disk, "b") == [10]


def test_a_repeat_may_say_its_arguments_in_another_way(disk: Store, system: AgentSystem) -> None:
    order = system.entity(Budget, "b").with_key("k")
    assert (order.ask(Budget.spend, 10), order.ask(Budget.spend, amount=10)) == (90, 90)
    note = system.entity(Budget, "b").with_key("n")
    assert (note.ask(Budget.book, 5, "x"), note.ask(Budget.book, note="x", amount=5)) == (None, None)
    assert bookings(disk, "b") == [10, 5]


def test_two_processes_with_one_key_book_once(disk: Store) -> None:
    with AgentSystem(disk) as one, AgentSystem(disk) as other, ThreadPoolExecutor(8) as threads:

        def order(system: AgentSystem) -> int:
            return system.entity(Budget, "b").with_key("order").ask(Budget.spend, 10)

        for _ in range(3):
            assert list(threads.map(order, [one, other] * 4)) == [90] * 8
    assert bookings(disk, "b") == [10]


def test_the_receipt_of_a_command_with_many_events_is_remembered_with_them(disk: Store, system: AgentSystem) -> None:
    order = system.entity(Budget, "b").with_key("k")
    assert (order.ask(Budget.spend_twice, 5), order.ask(Budget.spend_twice, 5)) == (90, 90)
    assert [row.key for row in rows(disk, "b")] == [None, None, "k"]


def test_what_has_changed_nothing_is_not_remembered(disk: Store, system: AgentSystem) -> None:
    budget = system.entity(Budget, "b")
    budget.ask(Budget.spend, 100)
    with pytest.raises(TooMuch):
        budget.with_key("k").ask(Budget.spend, 10)
    assert budget.with_key("q").ask(Budget.left) == 0
    budget.ask(Budget.refund, 50)
    assert budget.with_key("k").ask(Budget.spend, 10) == 40, "a no was no booking"
    assert budget.with_key("q").ask(Budget.left) == 40


def test_a_told_command_may_have_a_key(disk: Store, system: AgentSystem) -> None:
    for _ in range(3):
        system.entity(Budget, "b").with_key("k").tell(Budget.spend, 10)
    assert system.entity(Budget, "b").ask(Budget.left) == 90


# ------------------------------------------------------------------ time-outs


def test_a_command_that_has_not_begun_in_time_is_never_done(
    disk: Store, system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    budget = system.entity(Budget, "b")
    with gate("busy") as busy:
        budget.tell(Budget.spend_at, "busy", 1)
        assert busy.reached.wait(PATIENCE)
        with pytest.raises(AskTimeoutError, match=r"within 0.01 s: it has not begun, and is never done"):
            budget.with_timeout(0.01).ask(Budget.spend, 10)
        with pytest.raises(AskTimeoutError, match="within 0 s"):
            system.entity(Budget, "b", timeout=0).ask(Budget.spend, 10)
    assert budget.ask(Budget.left) == 99
    assert caplog.records == []


@pytest.mark.parametrize("disk", ["memory"], indirect=True)
def test_a_command_that_has_begun_goes_on_and_its_late_answer_is_a_dead_letter(
    disk: Store, system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    budget = system.entity(Budget, "b")
    budget.ask(Budget.left)
    with gate("slow") as slow, ThreadPoolExecutor(1) as thread:
        late = thread.submit(budget.with_timeout(0.5).with_key("k").ask, Budget.spend_at, "slow", 1)
        assert slow.reached.wait(PATIENCE)
        with pytest.raises(AskTimeoutError, match=r"spend_at of tests.budget b .*: it has begun, and may yet be done"):
            late.result(PATIENCE)
    assert budget.ask(Budget.left) == 99
    assert budget.with_key("k").ask(Budget.spend_at, "slow", 1) == 99
    (letter,) = [record.getMessage() for record in caplog.records]
    assert letter == "dead letter: nobody waits for spend_at of tests.budget b; its answer is 99"


def test_who_is_interrupted_while_asking_leaves_no_answer_without_a_word(
    system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    budget, me, caught = system.entity(Budget, "b", timeout=PATIENCE), threading.get_ident(), threading.Event()

    def interrupt() -> None:  # again, where Python was just about to wait and has not looked
        while held.reached.wait(PATIENCE) and not caught.is_set():
            signal.pthread_kill(me, signal.SIGINT)
            caught.wait(2)

    with gate("interrupt") as held, ThreadPoolExecutor(1) as thread:
        thread.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            budget.ask(Budget.spend_at, "interrupt", 1)
        caught.set()
        held.opened.set()
        assert budget.ask(Budget.left) == 99
    assert [record.getMessage() for record in caplog.records] == [
        "dead letter: nobody waits for spend_at of tests.budget b; its answer is 99"
    ]


# ------------------------------------------------------------------ asyncio


def test_plain_asyncio_code_asks_without_blocking_its_loop(disk: Store, system: AgentSystem) -> None:
    async def main() -> list[Any]:
        budget = system.entity(Budget, "b")
        with pytest.raises(BlockingCallError, match="await ask_async"):
            budget.ask(Budget.left)
        with gate("async") as held:
            slow = asyncio.create_task(budget.ask_async(Budget.spend_at, "async", 1))
            assert await asyncio.to_thread(held.reached.wait, PATIENCE)
            with pytest.raises(AskTimeoutError, match="not begun"):
                await budget.with_timeout(0.01).ask_async(Budget.spend, 50)
            held.opened.set()
            replies = await asyncio.gather(slow, *(budget.ask_async(Budget.spend, 10) for _ in range(3)))
        with pytest.raises(TooMuch) as refused:
            await budget.ask_async(Budget.spend, 70)
        with pytest.raises(EntityCrashError, match="SystemExit: 3"):
            await budget.ask_async(Budget.crash, "SystemExit")
        with pytest.raises(TypeError):
            await budget.ask_async(Budget.spend)  # type: ignore[call-arg]
        return [*replies, refused.value.left, await budget.with_key("k").ask_async(Budget.spend, 9)]

    assert asyncio.run(main()) == [99, 89, 79, 69, 69, 60]


def test_a_cancelled_ask_goes_at_once_and_leaves_no_answer_without_a_word(
    disk: Store, system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        budget = system.entity(Budget, "b")
        with gate("cancel") as held:
            begun = asyncio.create_task(budget.ask_async(Budget.spend_at, "cancel", 1))
            assert await asyncio.to_thread(held.reached.wait, PATIENCE)
            waiting = asyncio.create_task(budget.ask_async(Budget.spend, 50))
            await asyncio.sleep(0)
            for task in (begun, waiting):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert await budget.ask_async(Budget.left) == 99

    asyncio.run(main())
    assert ["spend_at" in record.getMessage() for record in caplog.records] == [True]


def test_an_answer_that_comes_in_the_moment_of_a_cancellation_is_a_dead_letter(
    system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        budget = system.entity(Budget, "b")
        asked = asyncio.create_task(budget.ask_async(Budget.spend, 1))
        await asyncio.sleep(0)
        wait_for(lambda: spent(disk_of(system)) == 1)  # which keeps the loop from taking the answer
        wait_for(lambda: all("idle" in state for _, state in system.runtime.entities.alive()))
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "dead letter: nobody waits for spend of tests.budget b; its answer is 99"
    ]


def disk_of(system: AgentSystem) -> Store:
    return system.log.store


# ------------------------------------------------------------------ time and the index


def test_events_have_the_time_of_the_systems_clock(disk: Store) -> None:
    clock = FakeClock(1_000_000.0)
    with AgentSystem(disk, clock=clock) as system:
        budget = system.entity(Budget, "b")
        budget.ask(Budget.spend, 1)
        clock.advance(60.25)
        budget.ask(Budget.spend_twice, 2)
        assert budget.ask(Budget.changed) == datetime.fromtimestamp(1_000_060.25, UTC)
    assert [row.at for row in rows(disk, "b")] == [1_000_000.0, 1_000_000.0, 1_000_060.25, 1_000_060.25]
    entry = disk.recorder.select_entry(stream_of(Budget, "b"))
    assert entry is not None
    assert (entry.created, entry.updated, entry.head) == (1_000_000.0, 1_000_060.25, 4)
    state: Any = replayed(disk, "b").aggregate
    assert state.created_on.timestamp() == 1_000_000.0


def test_the_index_row_of_an_entity_can_be_made_again_from_its_log(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        client.entity(Budget, "b").ask(Budget.spend, 1)
        client.entity(Budget, "b").ask(Budget.spend, 2)
    before = disk.recorder.select_entry(stream_of(Budget, "b"))
    assert before is not None
    assert (before.status, before.agent, before.head, before.due, before.owner) == (
        "entity",
        "tests.budget",
        3,
        None,
        None,
    )
    assert TaskLog(disk).rebuild_index() == [before]
    with AgentSystem(disk, run=False) as client:
        assert client.entity(Budget, "b").ask(Budget.spend, 3) == 94


def test_entities_are_no_tasks(disk: Store) -> None:
    stream = stream_of(Budget, "b")
    assert is_stream(stream)
    with AgentSystem(disk) as system:
        system.entity(Budget, "b").ask(Budget.spend, 1)
        task = system.spawn(agent_named("tests.budget"), id="tests.budget")
        assert [found.id for found in system.tasks()] == ["tests.budget"]
        assert system.tasks(agent="tests.budget")[0].id == task.id
        stranger = system.task(stream)
        for ask in (stranger.status, stranger.describe, stranger.events, stranger.release, stranger.result):
            with pytest.raises(UnknownTaskError):
                ask()
        assert system.entity(Budget, "b").ask(Budget.spend, 1) == 98


def test_no_command_line_shows_an_entity(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with AgentSystem(shell.url, run=False) as client:
        client.entity(Budget, "b").ask(Budget.spend, 1)
        client.spawn(agent_named("some"), id="tests.badge")
    (code, listed, _), (_, shown, _), (unknown, _, why), (stranger, _, _) = shell.each(
        [["list", "--json"], ["show", "tests.b", "--json"], ["show", "tests.bud"], ["show", stream_of(Budget, "b")]]
    )
    assert [code, unknown, stranger] == [0, 2, 2]
    assert [row["id"] for row in json.loads(listed)] == ["tests.badge"]
    assert json.loads(shown)["id"] == "tests.badge"
    assert "there is no task" in why


class Cart(Entity):
    """Its events' bodies do to their fields what code does to lists."""

    TOPIC = "entities.cart"

    def __init__(self) -> None:
        self.items: list[str] = []
        self.left = 50

    def open(self, first: str) -> list[str]:
        self.opened([])
        self.added(first)
        return self.items

    def spend(self, amounts: list[int]) -> int:
        if sum(amounts) > self.left:
            raise Rejected(self.left)
        self.spent(amounts)
        return self.left

    def nest(self) -> None:
        self.outer()

    def go_on(self) -> int:
        with suppress(ValueError):
            self.half()
        return self.left

    def seen(self) -> tuple[list[str], int]:
        return self.items, self.left

    @event("Opened")
    def opened(self, items: list[str]) -> None:
        self.items = items

    @event("Added")
    def added(self, item: str) -> None:
        self.items.append(item)

    @event("Spent")
    def spent(self, amounts: list[int]) -> None:
        while amounts:
            self.left -= amounts.pop()

    @event("Outer")
    def outer(self) -> None:
        self.added("x")

    @event("Half")
    def half(self) -> None:
        self.left = 6
        raise ValueError("in the middle")


def test_what_the_body_of_an_event_does_to_its_fields_is_not_in_the_log(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        cart = client.entity(Cart, "c")
        assert cart.ask(Cart.open, "x") == ["x"]
        assert cart.ask(Cart.spend, [40]) == 10
        assert cart.ask(Cart.seen) == (["x"], 10)
        with pytest.raises(Rejected):
            cart.ask(Cart.spend, [40])
    with AgentSystem(disk, run=False) as client:
        assert client.entity(Cart, "c").ask(Cart.seen) == (["x"], 10)


def test_the_body_of_an_event_makes_no_other_happen_and_its_error_cannot_be_swallowed(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        cart = client.entity(Cart, "c")
        with pytest.raises(EntityCrashError, match="the body of an event makes no other event happen: Added"):
            cart.ask(Cart.nest)
        with pytest.raises(EntityCrashError, match="in the middle"):
            cart.ask(Cart.go_on)
        assert cart.ask(Cart.seen) == ([], 50)
