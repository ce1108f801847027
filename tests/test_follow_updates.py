"""Who follows a task is told everything once and in one order, from any process, wherever one begins or goes on."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import (
    AgentSystem,
    ApprovalAnswered,
    ApprovalAsked,
    BlockingCallError,
    CancelAsked,
    ChildBegan,
    ChildEnded,
    Emitted,
    FailTask,
    Feed,
    InsideTaskError,
    Reset,
    Signal,
    SignalArrived,
    StepBegan,
    StepEnded,
    StoreUnavailableError,
    SystemClosedError,
    TaskEnded,
    TaskHeld,
    TaskHeldError,
    TaskReleased,
    TaskWaiting,
    Timer,
    UnknownTaskError,
    UnknownTypeError,
    UnreadableTaskError,
    Update,
    WaitOver,
    WaitTimeoutError,
    agent,
    emit,
    gather,
    open_store,
    receive,
    request_approval,
    spawn_child,
    step,
    step_info,
    wait_any,
)
from actors.appender import Appender
from actors.task_log import TaskLog
from actors.testing import FakeClock
from domain.record import Call
from stores import Store
from stores.emissions import EMIT, RESET, Emission
from stores.memory import MemoryStore
from tests.lives import PATIENCE, die, live, wait_for
from tests.scenario_kit import World

numbers = itertools.count()


@step(name="following: tell", retries=1, backoff=0)
def tell(name: str, *, stumbles: bool = False) -> str:
    for number in range(3):
        emit(f"{name}{number} ")
    if stumbles and step_info().attempt == 1:
        raise ConnectionError("no route")
    return name


@agent(name="following: story")
def story() -> str:
    emit("beginning ")
    tell("a", stumbles=True)
    gather(lambda: tell("b"), lambda: tell("c", stumbles=True))
    emit({"cost": 1}, "usage")
    return tell("d")


def cursors(updates: list[Update]) -> list[int]:
    return [update.cursor for update in updates]


# ------------------------------------------------------------------ what is told


def test_what_happens_is_told_as_plain_facts_and_ends_with_the_end(disk: Store) -> None:
    @step(label="of {name}", retries=1, backoff=0)
    def refuse(name: str) -> None:
        raise ConnectionError(f"no {name}")

    @agent
    def failing() -> None:
        refuse("route")

    with AgentSystem(disk) as system:
        updates = list(system.spawn(failing, id="t").follow())
        events = system.task("t").events()
    began, failed, again, ended, over = updates
    assert isinstance(began, StepBegan)
    assert (began.path, began.name, began.label, began.attempt) == ("1", refuse.name, "of route", 1)
    assert isinstance(failed, StepEnded)
    assert (failed.path, failed.attempt, failed.error) == ("1", 1, "ConnectionError: no route")
    assert failed.retry_at is not None
    assert isinstance(again, StepBegan)
    assert again.attempt == 2
    assert isinstance(ended, StepEnded)
    assert (ended.error, ended.retry_at) == ("ConnectionError: no route", None)
    assert isinstance(over, TaskEnded)
    assert (over.status, over.reason) == ("failed", f"ConnectionError: step 1 {refuse.name}: no route")
    assert [update.at for update in updates] == [event.timestamp for event in events[2:]]
    assert cursors(updates) == [event.originator_version << 24 for event in events[2:]]


def test_a_hold_ends_nothing_and_a_decision_is_told(disk: Store) -> None:
    @step(on_doubt="hold")
    def pay() -> str:
        return "paid"

    @agent
    def invoice() -> str:
        return pay()

    die(disk, invoice)
    with AgentSystem(disk) as system:
        feed = system.spawn(invoice, id="t").follow()
        assert [type(next(feed)) for _ in range(2)] == [StepBegan, TaskHeld]
        with pytest.raises(TaskHeldError):
            system.task("t").result(PATIENCE)
        system.task("t").resolve("1", value="paid", by="ann")
        released, ended = feed
    assert isinstance(released, TaskReleased)
    assert (released.path, released.decision, released.by) == ("1", "value", "ann")
    assert isinstance(ended, TaskEnded)


def test_a_long_wait_for_the_next_attempt_is_told_with_its_end(disk: Store) -> None:
    @step(retries=1, backoff=60, jitter=0)
    def patient() -> None:
        if step_info().attempt == 1:
            raise ConnectionError

    @agent
    def waits() -> None:
        patient()

    with AgentSystem(disk, clock=FakeClock(jump=True)) as system:
        updates = list(system.spawn(waits, id="t").follow())
    failed = next(update for update in updates if isinstance(update, StepEnded))
    (waiting,) = [update for update in updates if isinstance(update, TaskWaiting)]
    assert waiting.until == failed.retry_at
    assert isinstance(updates[-1], TaskEnded)


def test_what_a_task_asks_of_others_and_what_they_bring_is_told(disk: Store) -> None:
    @agent
    def child() -> str:
        return "here"

    @agent
    def asking() -> str:
        pause = request_approval("go on?", details=("a", 1))
        began = spawn_child(child)
        first = wait_any(Signal("go"), Timer(3_600))
        return f"{pause.wait().note} {first.value} {began.result()}"

    with AgentSystem(disk) as system:
        task = system.spawn(asking, id="t")
        feed, seen = task.follow(), list[Update]()
        for update in feed:
            seen.append(update)
            if isinstance(update, TaskWaiting) and update.signals:
                task.signal("go", {"gate": 7}, signal_id="1")
            elif isinstance(update, TaskWaiting) and update.what == "approval 1":
                asked = next(each for each in seen if isinstance(each, ApprovalAsked))
                task.answer(asked.pause, approved=True, note="well", value=[1], by="ann")
        assert task.result() == "well {'gate': 7} here"
    assert (asked.path, asked.question, asked.details) == ("1", "go on?", ("a", 1))
    (answered,) = [each for each in seen if isinstance(each, ApprovalAnswered)]
    assert (answered.path, answered.approved, answered.by) == ("1", True, "ann")
    assert (answered.note, answered.value) == ("well", [1])
    (arrived,) = [each for each in seen if isinstance(each, SignalArrived)]
    assert (arrived.name, arrived.value) == ("go", {"gate": 7})
    (began,) = [each for each in seen if isinstance(each, ChildBegan)]
    assert began.path == "2"
    assert [(each.child, each.status) for each in seen if isinstance(each, ChildEnded)] == [(began.child, "completed")]
    over = [each for each in seen if isinstance(each, WaitOver)]
    assert next((each.path, each.timed_out) for each in over) == ("3", False)
    assert {each.what for each in over} <= {"signal go, timer", "approval 1", f"child {began.child}"}


def test_a_wait_that_timed_out_and_a_cancel_are_told(disk: Store) -> None:
    @agent
    def patient() -> None:
        with suppress(WaitTimeoutError):
            receive("go", timeout=0.01)
        receive("never")

    with AgentSystem(disk) as system:
        task = system.spawn(patient, id="t")
        seen = list[Update]()
        for update in task.follow():
            seen.append(update)
            if isinstance(update, TaskWaiting) and update.signals == ("never",):
                task.cancel("not needed", by="ann")
    assert [each.timed_out for each in seen if isinstance(each, WaitOver)] == [True]
    (cancel,) = [each for each in seen if isinstance(each, CancelAsked)]
    assert (cancel.by, cancel.reason) == ("ann", "not needed")
    assert isinstance(seen[-1], TaskEnded)


def test_what_takes_a_position_and_is_no_step_is_no_news(disk: Store) -> None:
    from actors import patched, task_info

    @agent
    def quiet() -> str:
        info = task_info()
        assert info is not None
        return f"{info.now()} {patched('new')}"

    live(disk, quiet)
    with AgentSystem(disk, run=False) as client:
        assert [type(update) for update in client.task("t").follow()] == [TaskEnded]


def test_a_value_of_a_class_that_is_not_known_here_stops_only_who_asks_for_it() -> None:
    emitted = Emitted(1, 1.0, "1", 1, "text", '{"$":"obj","t":"nobody knows it","v":{}}')
    with pytest.raises(UnknownTypeError):
        _ = emitted.value


# ------------------------------------------------------------------ one order


def test_async_for_tells_the_same_and_leaves_the_loop_free(disk: Store) -> None:
    async def follow() -> list[Update]:
        async with AgentSystem(disk) as system:
            task = await system.spawn_async(story, id="t")
            return [update async for update in task.follow()]

    updates = asyncio.run(follow())
    with AgentSystem(disk, run=False) as client:
        assert updates == list(client.task("t").follow())


def test_cut_anywhere_and_gone_on_after_the_last_cursor_it_is_the_same(disk: Store) -> None:
    live(disk, story)
    with AgentSystem(disk, run=False) as client:
        task = client.task("t")
        whole = list(task.follow())
        assert cursors(whole) == sorted(set(cursors(whole)))
        assert max(cursors(whole)) < 2**53
        for cut in range(len(whole) + 1):
            first = list(itertools.islice(task.follow(), cut))
            assert first + list(task.follow(after=first[-1].cursor if first else 0)) == whole
        for between in (whole[3].cursor + 1, whole[-1].cursor + 7, 2**60):
            assert list(task.follow(between)) == [update for update in whole if update.cursor > between]
        feed = task.follow()
        for update in feed:
            assert feed.cursor == update.cursor
        assert list(feed) == []


def test_every_connection_may_be_cut_after_one_update_while_the_task_runs(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(story, id="t")
        seen: list[Update] = []
        while not seen or not isinstance(seen[-1], TaskEnded):
            seen.append(next(task.follow(seen[-1].cursor if seen else 0)))
        assert seen == list(task.follow())


class Writers:
    """Two who write to one task: who appends the next event, and who emits; `truth` is what is told of it."""

    def __init__(self, store: Store) -> None:
        self.recorder = store.recorder
        log = TaskLog(store)
        task = log.create("t", "nobody's", [[], {}], {})
        self.birth = task.birth
        self.appender = Appender(log, task)
        self.truth: list[tuple[str, str]] = []
        self._said: dict[str, str] = {}
        self._steps = itertools.count(2)
        self.appender.append(lambda task, now: task.activate(now, worker="w", token="", limit=None))

    def append(self) -> None:
        """Begin a step, or end it."""
        number, ends = divmod(next(self._steps), 2)
        call = Call(str(number), "step", "s", "")
        if ends:
            self.appender.append(lambda task, now: task.finish_step(1, now, call, 1, value=None))
        else:
            self.appender.append(lambda task, now: task.start_step(1, now, call, "", ""))
        self.truth.append(("StepEnded" if ends else "StepBegan", call.path))

    def say(self, path: str, kinds: list[str]) -> None:
        """Emit, and reset, in one transaction."""
        rows = [Emission(path, 1, 1, kind, "text", str(next(numbers)), 1.0) for kind in kinds]
        self.recorder.save_emissions("t", self.birth, rows)
        for row in rows:
            if row.kind == EMIT or self._said.get(path) == EMIT:
                self.truth.append(("Emitted", row.value) if row.kind == EMIT else ("Reset", path))
                self._said[path] = row.kind

    def end(self) -> None:
        """End the task; what is emitted then is not told."""
        self.appender.append(lambda task, now: task.complete(1, now, None))
        self.truth.append(("TaskEnded", ""))
        self.recorder.save_emissions("t", self.birth, [Emission("1", 1, 1, EMIT, "text", "late", 1.0)])


def fact(update: Update) -> tuple[str, str]:
    return type(update).__name__, getattr(update, "stored", getattr(update, "path", ""))


ACTS = st.one_of(
    st.just(("append",)),
    st.tuples(st.just("say"), st.sampled_from(["1", "2", "1-"]), st.lists(st.sampled_from([EMIT, RESET]), max_size=4)),
    st.tuples(st.just("read"), st.integers(0, 3), st.integers(1, 5)),
    st.tuples(st.just("connect"), st.integers(0, 3), st.integers(0, 99), st.integers(-1, 1)),
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(deadline=None, max_examples=150)
@given(history=st.lists(ACTS, max_size=30), page=st.sampled_from([1, 2, 3, 1_000]))
def test_whoever_follows_from_any_cursor_sees_the_one_order_without_a_gap_or_a_repeat(
    tmp_path_factory: pytest.TempPathFactory, kind: str, history: list[tuple[Any, ...]], page: int
) -> None:
    with ExitStack() as stack:
        url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path_factory.mktemp('follow')}/tasks.db"
        store = stack.enter_context(open_store(url))
        other = store if kind == "memory" else stack.enter_context(open_store(url))  # as another process has it
        stack.enter_context(pytest.MonkeyPatch.context()).setattr("actors.feed.PAGE", page)
        task = stack.enter_context(AgentSystem(other, run=False)).task("t")
        writers = Writers(store)
        seen: list[Update] = []
        first, feeds = task.follow(), [task.follow() for _ in range(4)]

        def read(feed: Feed, count: int) -> None:
            expected = [update for update in seen if update.cursor > feed.cursor][:count]
            assert list(itertools.islice(feed, len(expected))) == expected

        for act in [*history, ("end",)]:
            match act:
                case ("append",):
                    writers.append()
                case ("say", path, kinds):
                    writers.say(path, kinds)
                case ("read", which, count):
                    read(feeds[which], count)
                case ("connect", which, place, offset):
                    cursor = seen[place % len(seen)].cursor + offset if seen else place
                    feeds[which] = task.follow(cursor)
                case ("end",):
                    writers.end()
            seen += itertools.islice(first, len(writers.truth) - len(seen))
            assert [fact(update) for update in seen] == writers.truth
        assert cursors(seen) == sorted(set(cursors(seen)))
        assert list(first) == []
        for feed in feeds:
            rest = [update for update in seen if update.cursor > feed.cursor]
            assert list(feed) == rest


def test_threads_that_append_and_emit_at_once_are_followed_in_one_order(disk: Store) -> None:
    writers = Writers(disk)
    start = threading.Barrier(5)
    found: list[list[Update]] = []

    def append() -> None:
        start.wait(PATIENCE)
        for _ in range(100):
            writers.append()

    def say() -> None:
        start.wait(PATIENCE)
        for number in range(100):
            writers.recorder.save_emissions("t", writers.birth, [Emission("1", 1, 1, EMIT, "", str(number), 1.0)] * 3)

    with AgentSystem(disk, run=False) as client:

        def follow() -> None:
            start.wait(PATIENCE)
            found.append(list(client.task("t").follow()))

        threads = [threading.Thread(target=each) for each in (append, say, follow, follow, follow)]
        for thread in threads:
            thread.start()
        for thread in threads[:2]:
            thread.join(PATIENCE)
        writers.end()
        for thread in threads:
            thread.join(PATIENCE)
        whole = list(client.task("t").follow())
    assert len(found) == 3
    assert all(each == whole for each in found)
    assert len(whole) == 100 + 300 + 1
    assert cursors(whole) == sorted(set(cursors(whole)))
    assert [each.stored for each in whole if isinstance(each, Emitted)] == [
        str(number) for number in range(100) for _ in range(3)
    ]


# ------------------------------------------------------------------ from another process

TELLER = """
    import asyncio
    import sys
    from actors import AgentSystem, agent, emit, step, step_info
    from tests.scenario_kit import STORE, pass_door, say

    def part(numbers):
        words = [f"word {number} " for number in numbers]
        for word in words:
            emit(word)
        return "".join(words)

    @step
    def tell():
        first = part(range(50))
        pass_door("middle")
        return first + part(range(50, 100))

    @step
    async def tell_async():
        first = part(range(50))
        await asyncio.to_thread(pass_door, "middle")
        return first + part(range(50, 100))

    @agent
    def story():
        emit("here it comes")
        return tell()

    @agent
    async def story_async():
        emit("here it comes")
        return await tell_async()

    with AgentSystem(STORE) as system:
        print(system.spawn({"sync": story, "async": story_async}[sys.argv[1]], id="t").result(timeout=60))
"""


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_worker_killed_in_the_middle_of_a_stream_is_followed_by_a_reset_and_the_whole_text(
    world: World, colour: str
) -> None:
    program = world.write(TELLER)
    world.shut_door("middle")
    with world.client() as client, AgentSystem(world.url, run=False) as other:
        first = world.start(program, colour)
        wait_for(lambda: client.log.recorder.select_entry("t") is not None)
        texts: list[str] = []
        resets = 0
        for update in client.task("t").follow():
            if isinstance(update, Reset):
                assert (update.path, update.attempt) == ("1", 2)
                resets, texts = resets + 1, []
            elif isinstance(update, Emitted) and update.path == "1":
                assert update.attempt == resets + 1
                texts.append(update.value)
                if len(texts) == 50 and not resets:
                    first.kill()
                    world.open_door("middle")
                    world.start(program, colour)
        assert resets == 1
        assert "".join(texts) == client.task("t").result(PATIENCE)
        assert len(texts) == 100
        told = list(other.task("t").follow())
        assert [each.value for each in told if isinstance(each, Emitted) and each.path == "1-"] == ["here it comes"]


# ------------------------------------------------------------------ what is refused, and what goes wrong


def test_a_task_that_is_not_there_is_unknown(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        feed = client.task("nobody").follow()
        with pytest.raises(UnknownTaskError, match="there is no task 'nobody'"):
            next(feed)


@pytest.mark.parametrize("after", [-1, 1.0, "5", None, True])
def test_what_is_no_cursor_is_refused(disk: Store, after: Any) -> None:
    with AgentSystem(disk, run=False) as client, pytest.raises(ValueError, match="a cursor is a whole number from 0"):
        client.task("t").follow(after)


def test_an_agent_may_not_follow_between_its_steps_and_a_body_lends_its_place_meanwhile(disk: Store) -> None:
    @step
    def follows() -> int:
        return len(list(system.spawn(story, id="other").follow()))

    @agent
    def outer() -> int:
        for use in (lambda: system.task("t").follow(), lambda: next(made)):
            with pytest.raises(InsideTaskError, match="inside an agent would happen again"):
                use()
        return follows()

    with AgentSystem(disk, max_active=1) as system:
        made = system.task("t").follow()
        assert system.spawn(outer, id="t").result(PATIENCE) == len(list(system.task("other").follow()))


def test_a_plain_for_on_an_event_loop_is_refused(disk: Store) -> None:
    async def follow() -> None:
        with AgentSystem(disk, run=False) as client:
            next(client.task("t").follow())

    with pytest.raises(BlockingCallError, match="use `async for`"):
        asyncio.run(follow())


def test_a_cancelled_wait_loses_nothing(disk: Store) -> None:
    writers = Writers(disk)

    async def follow() -> list[tuple[str, str]]:
        with AgentSystem(disk, run=False) as client:
            feed, seen = client.task("t").follow(), list[Update]()
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(feed), 0.02)
                await asyncio.to_thread(writers.append)
                seen.append(await anext(feed))
            assert not client.log._watchers
            return [fact(update) for update in seen]

    assert asyncio.run(follow()) == writers.truth


def test_a_feed_that_nobody_goes_on_with_leaves_nothing_behind(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(story, id="t")
        feed = task.follow()
        next(feed)
        task.result(PATIENCE)
        assert not system.log._watchers
        assert repr(feed) == f"Feed('t', after={feed.cursor})"


def test_a_feed_ends_with_its_system(disk: Store) -> None:
    writers = Writers(disk)
    system = AgentSystem(disk, run=False)
    with system:
        feed = system.task("t").follow()
        writers.append()
        next(feed)
    with pytest.raises(SystemClosedError):
        next(feed)


def test_a_task_that_was_made_anew_under_its_id_is_another(disk: Store) -> None:
    writers = Writers(disk)
    with AgentSystem(disk, run=False) as client:
        feed = client.task("t").follow()
        writers.append()
        next(feed)
        disk.recorder.rebuild_index(lambda _, row: row._replace(birth="another"))  # type: ignore[union-attr]
        with pytest.raises(UnknownTaskError, match="was deleted"):
            next(feed)


def test_before_a_damaged_row_all_is_told_that_can_be_read(world: World) -> None:
    with open_store(world.url) as store, world.client() as client:
        writers = Writers(store)
        for _ in range(4):
            writers.append()
        writers.end()
        world.flip("t", 6, 20)
        feed = client.task("t").follow()
        assert [fact(update) for update in itertools.islice(feed, 3)] == writers.truth[:3]
        for _ in range(2):
            with pytest.raises(UnreadableTaskError, match="version 6"):
                next(feed)
        world.flip("t", 6, 20)
        assert [fact(update) for update in client.task("t").follow(feed.cursor)] == writers.truth[3:]


def test_a_log_that_ends_before_its_index_row_says_is_unreadable(disk: Store) -> None:
    writers = Writers(disk)
    writers.append()
    row = disk.recorder.select_entry("t")
    assert row is not None
    disk.recorder.update_index(row._replace(head=9), expected=(row.birth, row.head))
    with AgentSystem(disk, run=False) as client:
        feed = client.task("t").follow()
        assert fact(next(feed)) == writers.truth[0]
        with pytest.raises(UnreadableTaskError, match="its log ends at version 3, its index row says 9"):
            next(feed)


class Away(MemoryStore):
    """A store that is away while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Semaphore(0)
        self.is_away = False
        select = self.recorder.select_entry

        def select_entry(task_id: str) -> Any:
            self.looked.release()
            if self.is_away:
                raise StoreUnavailableError("no such disk, for a test", url="memory:", reason="a test")
            return select(task_id)

        self.recorder.select_entry = select_entry  # type: ignore[method-assign]


def test_a_store_that_is_away_is_waited_for_and_nothing_is_lost() -> None:
    with Away() as store, AgentSystem(store, run=False) as client:
        writers, found = Writers(store), list[Update]()
        store.is_away = True
        follower = threading.Thread(target=lambda: found.extend(client.task("t").follow()))
        follower.start()
        assert all(store.looked.acquire(timeout=PATIENCE) for _ in range(3))
        store.is_away = False
        writers.append()
        writers.end()
        follower.join(PATIENCE)
        assert [fact(update) for update in found] == writers.truth


def test_a_store_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.feed.CLIENT_PATIENCE", 0.1)
    with Away() as store, AgentSystem(store, run=False) as client:
        Writers(store)
        store.is_away = True
        with pytest.raises(StoreUnavailableError, match="no such disk"):
            next(client.task("t").follow())


def test_a_failed_task_tells_why_it_has_ended(disk: Store) -> None:
    @agent
    def refusing() -> None:
        raise FailTask("no such customer")

    with AgentSystem(disk) as system:
        (ended,) = system.spawn(refusing, id="t").follow()
    assert isinstance(ended, TaskEnded)
    assert (ended.status, ended.reason) == ("failed", "FailTask: no such customer")
