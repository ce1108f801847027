"""What running code emits is stored soon, in order and bounded; it is in no log, and no replay says it twice."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors import (
    AgentSystem,
    Doubt,
    Emitted,
    Entity,
    EntityCrashError,
    NotHappened,
    OutsideTaskError,
    Reset,
    StepBegan,
    StepEnded,
    TaskEnded,
    Unknown,
    UnstorableValueError,
    Update,
    agent,
    branch,
    emit,
    gather,
    open_store,
    step,
    step_info,
    task_info,
)
from actors.appender import Appender
from actors.output import Output
from actors.testing import every_crash_point
from actors.threads import NoThreadError, Threads
from stores import Store, StoreCorruptError, StoreUnavailableError
from stores.emissions import EMIT, RESET, Emission
from stores.memory import MemoryRecorder
from tests.lives import PATIENCE, die, held, live, log, wait_for
from tests.scenario_kit import World

WORDS = ["once", "upon", "a", "time", "there", "was", "a", "log"]


def updates(store: Store, id: str = "t") -> list[Update]:
    """Give all that a follower of a task that has ended is told."""
    with AgentSystem(store, run=False) as client:
        return list(client.task(id).follow())


def said(all_updates: list[Update]) -> list[tuple[str, int, Any]]:
    return [(each.path, each.attempt, each.value) for each in all_updates if isinstance(each, Emitted)]


def texts(all_updates: list[Update]) -> dict[str, list[Any]]:
    """Give what each path has said that counts."""
    found: dict[str, list[Any]] = {}
    for each in all_updates:
        if isinstance(each, Reset):
            found[each.path] = []
        elif isinstance(each, Emitted):
            found.setdefault(each.path, []).append(each.value)
    return found


def stored(store: Store) -> list[Any]:
    """Give what is stored of a task by now."""
    row = store.recorder.select_entry("t")
    assert row is not None
    return [each.value for each in store.recorder.select_emissions("t", row.birth, upto=row.head, limit=99)]


@step(name="emissions: tell")
def tell(prefix: str = "") -> str:
    for word in WORDS:
        emit(f"{prefix}{word}")
    return " ".join(WORDS)


@step(name="emissions: tell, async")
async def tell_async(prefix: str = "") -> str:
    for word in WORDS:
        emit(f"{prefix}{word}")
        await asyncio.sleep(0)
    return " ".join(WORDS)


@step(name="emissions: tell, idempotent", idempotent=True)
def tell_again() -> str:
    for word in WORDS:
        emit(word)
    return " ".join(WORDS)


@agent(name="emissions: story")
def story() -> str:
    emit("beginning")
    text = tell()
    emit({"done": 1}, "progress")
    return text + tell_again()


@agent(name="emissions: story, async")
async def story_async() -> str:
    emit("beginning")
    text = await tell_async()
    emit({"done": 1}, "progress")
    return text + await tell_again.aio()


STORIES = [story, story_async]
WHOLE = {"1-": ["beginning"], "1": WORDS, "2-": [{"done": 1}], "2": WORDS}


# ------------------------------------------------------------------ what is told, and where


@pytest.mark.parametrize("each", STORIES, ids=lambda each: each.name)
def test_what_is_emitted_stands_between_the_beginning_and_the_end_of_its_step(disk: Store, each: Any) -> None:
    live(disk, each)
    told = updates(disk)
    assert [(type(update), getattr(update, "path", "")) for update in told] == [
        (Emitted, "1-"),
        (StepBegan, "1"),
        *[(Emitted, "1")] * len(WORDS),
        (StepEnded, "1"),
        (Emitted, "2-"),
        *[(Emitted, "2")] * len(WORDS),
        (StepEnded, "2"),
        (TaskEnded, ""),
    ]
    assert texts(told) == WHOLE
    assert {each.attempt for each in told if isinstance(each, Emitted)} == {1}
    assert [each.channel for each in told if isinstance(each, Emitted) and each.channel != "text"] == ["progress"]


@pytest.mark.parametrize("each", STORIES, ids=lambda each: each.name)
def test_nothing_that_is_emitted_is_in_the_log(disk: Store, each: Any) -> None:
    live(disk, each)
    assert [type(event).__name__ for event in log(disk)] == [
        *("Created", "Activated", "StepStarted", "StepSucceeded", "StepSucceeded", "Completed"),
    ]
    assert "beginning" not in repr(log(disk))


def test_each_branch_emits_under_its_own_paths(disk: Store) -> None:
    def one(name: str) -> str:
        emit(f"{name} begins")
        return tell(name)

    @agent
    def pair() -> None:
        gather(partial(one, "a"), partial(one, "b"))
        with branch("key"):
            emit("in a branch")
            tell("c")

    live(disk, pair)
    found = texts(updates(disk))
    assert found == {
        "1/1/1-": ["a begins"],
        "1/1/1": [f"a{word}" for word in WORDS],
        "1/2/1-": ["b begins"],
        "1/2/1": [f"b{word}" for word in WORDS],
        "~key/1-": ["in a branch"],
        "~key/1": [f"c{word}" for word in WORDS],
    }


def test_any_value_that_a_log_can_hold_comes_back(disk: Store) -> None:
    values = [None, 1, 2.5, "é\ud800\0\x1b", b"\xff", (1, {2}), {"$": "tag"}, Path("a")]

    @agent
    def emitter() -> None:
        for value in values:
            emit(value, "values")

    live(disk, emitter)
    assert [value for _, _, value in said(updates(disk))] == values


def test_a_thread_to_which_a_body_has_copied_its_context_emits_too_and_no_other(disk: Store) -> None:
    refused: list[Exception] = []

    def try_it() -> None:
        try:
            emit("nobody's")
        except OutsideTaskError as error:
            refused.append(error)

    @step
    def with_threads() -> None:
        context = contextvars.copy_context()
        for target in (lambda: context.run(emit, "mine"), try_it):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join(PATIENCE)

    @agent
    def threaded() -> None:
        with_threads()

    live(disk, threaded)
    assert said(updates(disk)) == [("1", 1, "mine")]
    assert len(refused) == 1


# ------------------------------------------------------------------ soon


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_what_is_emitted_is_seen_while_the_body_still_runs(disk: Store, colour: str) -> None:
    go_on = threading.Event()

    @step
    def waits() -> None:
        emit("waiting")
        assert go_on.wait(PATIENCE)

    @step
    async def waits_async() -> None:
        emit("waiting")
        assert await asyncio.to_thread(go_on.wait, PATIENCE)

    @agent
    def sync() -> None:
        waits()

    @agent
    async def asynchronous() -> None:
        await waits_async()

    with AgentSystem(disk) as system:
        task = system.spawn(sync if colour == "sync" else asynchronous, id="t")  # type: ignore[arg-type]
        assert said([next(update for update in task.follow() if isinstance(update, Emitted))])
        go_on.set()
        task.result(PATIENCE)


def test_what_was_emitted_is_stored_when_the_system_closes(disk: Store) -> None:
    go_on, entered = threading.Event(), threading.Event()

    @step
    def hangs() -> None:
        emit("last words")
        entered.set()
        go_on.wait(PATIENCE)
        emit("too late")

    @agent
    def hanging() -> None:
        hangs()

    with AgentSystem(disk, grace=0) as system:
        system.spawn(hanging, id="t")
        assert entered.wait(PATIENCE)
    assert stored(disk) == ['"last words"']
    go_on.set()


# ------------------------------------------------------------------ what is refused


def test_emit_is_refused_where_no_task_runs() -> None:
    with pytest.raises(OutsideTaskError, match=r"emit\(\) was called where no task runs"):
        emit("x")


class Loud(Entity):
    TOPIC = "emissions.loud"

    def shout(self) -> None:
        emit("x")


def test_an_entity_may_not_emit(disk: Store) -> None:
    with (
        AgentSystem(disk) as system,
        pytest.raises(EntityCrashError, match=r"InsideTaskError: emit\(\) inside the code"),
    ):
        system.entity(Loud, "a").ask(Loud.shout)


@pytest.mark.parametrize(
    ("value", "channel", "error", "words"),
    [
        (object(), "text", UnstorableValueError, "object"),
        ("x" * 70_000, "text", UnstorableValueError, r"takes 70,002 bytes, the limit is 65,536: emit it in parts"),
        ("x", "", ValueError, "1 to 100 printable characters, not ''"),
        ("x", "a\nb", ValueError, "printable"),
        ("x", "\ud800", ValueError, "printable"),
        ("x", "c" * 101, ValueError, "1 to 100"),
        ("x", 7, ValueError, "not 7"),
    ],
)
def test_what_cannot_be_emitted_is_refused_where_it_is_called(
    disk: Store, value: Any, channel: Any, error: type[Exception], words: str
) -> None:
    @step
    def refused() -> None:
        with pytest.raises(error, match=words):
            emit(value, channel)

    @agent
    def refuses() -> None:
        refused()
        with pytest.raises(error, match=words):
            emit(value, channel)

    live(disk, refuses)
    assert said(updates(disk)) == []


def test_an_emission_of_64_kib_goes_through(disk: Store) -> None:
    @agent
    def large() -> None:
        emit("x" * (64 * 1024 - 2))

    live(disk, large)
    assert len(said(updates(disk))) == 1


# ------------------------------------------------------------------ again


@pytest.mark.parametrize("each", STORIES, ids=lambda each: each.name)
def test_wherever_the_process_dies_what_counts_is_said_once(each: Any) -> None:
    stores: list[Store] = []

    def new_store() -> Store:
        stores.append(open_store("memory:"))
        return stores[-1]

    for run in every_crash_point(each, new_store=new_store):
        run.check()
        told = updates(stores[-1], "task")
        assert run.result == run.value == " ".join(WORDS) * 2
        assert texts(told) == WHOLE, run.crashes
    assert len(stores) > 10
    for store in stores:
        store.close()


def test_a_new_attempt_resets_what_the_last_one_has_said(disk: Store) -> None:
    @step(retries=2, backoff=0)
    def stumbles() -> None:
        attempt = step_info().attempt
        if attempt != 2:
            emit(f"attempt {attempt}")
        if attempt < 3:
            raise ConnectionError

    @agent
    def stumbling() -> None:
        emit("before it")
        stumbles()

    live(disk, stumbling)
    told = [each for each in updates(disk) if isinstance(each, Emitted | Reset)]
    assert [(type(each).__name__, each.path, each.attempt) for each in told] == [
        ("Emitted", "1-", 1),
        ("Emitted", "1", 1),
        ("Reset", "1", 2),
        ("Emitted", "1", 3),
    ]


def test_code_between_steps_says_again_only_what_comes_after_the_end_of_the_log(disk: Store) -> None:
    numbers: list[int] = []

    @agent
    def numbered() -> None:
        info = task_info()
        assert info is not None
        numbers.append(info.activation)
        emit(f"first in {info.activation}")
        tell("a")
        emit(f"second in {info.activation}")
        emit("and more")
        tell("b")

    die(disk, numbered, at="append.after", nth=4)  # created, activated, step 1
    die(disk, numbered, at="append.before", nth=3)  # before step 2 starts
    live(disk, numbered)
    assert len(numbers) == 3
    found = texts(updates(disk))
    assert (found["1-"], found["2-"]) == (["first in 1"], [f"second in {numbers[-1]}", "and more"])
    resets = [each.path for each in updates(disk) if isinstance(each, Reset)]
    assert resets.count("2-") <= 1
    assert "1-" not in resets


@pytest.mark.parametrize("settle", [lambda doubt: NotHappened(), lambda doubt: Unknown()], ids=["rerun", "held"])
def test_who_is_asked_about_a_doubt_may_emit(disk: Store, settle: Callable[[Doubt], Any]) -> None:
    def ask(doubt: Doubt) -> Any:
        emit("asking")
        return settle(doubt)

    @step(on_doubt=ask)
    def doubtful() -> None:
        emit("told")

    @agent
    def doubting() -> None:
        doubtful()

    die(disk, doubting)
    with AgentSystem(disk) as system:
        system.spawn(doubting, id="t")
        wait_for(lambda: system.task("t").status() in ("held", "completed"))
    assert stored(disk)[-1] == ('"told"' if settle(None) == NotHappened() else '"asking"')  # type: ignore[arg-type]


def test_a_rehearsal_emits_nothing_whether_the_code_fits_or_not(disk: Store) -> None:
    def code(step_name: str) -> Any:
        @step(name=step_name)
        def named() -> None:
            return

        @agent(name="emissions: changing")
        def changing() -> None:
            emit("hello")
            named()
            emit("and then")
            tell()

        return changing

    die(disk, code("old"), at="append.after", nth=4)  # created, activated, step 1
    held(disk, code("new"))
    held(disk, code("newer"))
    assert stored(disk) == ['"hello"']
    live(disk, code("old"))
    told = updates(disk)
    assert [each for each in said(told) if each[0] != "2"] == [("1-", 1, "hello"), ("2-", 3, "and then")]
    assert not [each for each in told if isinstance(each, Reset)]


# ------------------------------------------------------------------ what is dropped


def test_what_a_body_says_that_was_given_up_is_dropped(disk: Store) -> None:
    go_on, over = threading.Event(), threading.Event()

    @step(timeout=0.1)
    def slow() -> None:
        emit("in time")
        go_on.wait(PATIENCE)
        emit("too late")
        over.set()

    @agent
    def impatient() -> str:
        try:
            slow()
        except Exception as error:
            emit(type(error).__name__)
            go_on.set()
            tell("x")
            assert over.wait(PATIENCE)
            tell("y")
        return "done"

    live(disk, impatient)
    assert texts(updates(disk))["1"] == ["in time"]


def test_what_is_said_after_the_loss_of_the_task_is_dropped(disk: Store) -> None:
    entered, go_on = threading.Event(), threading.Event()

    @step
    def robbed() -> None:
        emit("mine")
        entered.set()
        assert go_on.wait(PATIENCE)
        emit("and now?")

    @agent
    def victim() -> None:
        robbed()

    with AgentSystem(disk) as system:
        task = system.spawn(victim, id="t")
        assert entered.wait(PATIENCE)
        wait_for(lambda: len(stored(disk)) == 1)
        robber = Appender(system.log, system.log.load("t"))
        robber.append(lambda task, now: task.activate(now, worker="robber", token="", limit=None, release=False))
        go_on.set()
        task.result(PATIENCE)
    told = updates(disk)
    assert [value for _, attempt, value in said(told) if attempt == 1] == ["mine"]
    assert texts(told) == {"1": ["mine", "and now?"]}


class Stubborn(MemoryRecorder):
    """A store that refuses emissions while it is told to."""

    error: Exception | None = None

    def save_emissions(self, task_id: str, birth: str, rows: Any) -> None:
        if self.error is not None:
            raise self.error
        super().save_emissions(task_id, birth, rows)


@pytest.fixture
def stubborn() -> Stubborn:
    from stores import IndexRow

    recorder = Stubborn("memory:")
    recorder.insert_events([], entry=IndexRow("t", "b", 0, 1, "running", "a", 1.0, 1.0), expected=None)
    return recorder


def rows(*values: str, kind: str = EMIT) -> list[Emission]:
    return [Emission("1", 1, 1, kind, "text", value, 1.0) for value in values]


def kept(recorder: Stubborn) -> list[str]:
    return [each.value or each.kind for each in recorder.select_emissions("t", "b", upto=9, limit=99_999)]


def away(**facts: Any) -> StoreUnavailableError:
    return StoreUnavailableError("no such disk, for a test", url="memory:", reason="a test", **facts)


def test_what_is_emitted_waits_for_a_store_that_is_away(stubborn: Stubborn) -> None:
    output = Output(Threads("test"))
    stubborn.error = away()
    output.add(stubborn, "t", "b", rows("x"))
    output.flush("t", "b")
    output.add(stubborn, "t", "b", rows("y"))
    output.flush("t", "b")
    assert kept(stubborn) == []
    stubborn.error = None
    wait_for(lambda: kept(stubborn) == ["x", "y"])


def test_beyond_a_bound_what_is_emitted_is_dropped_with_one_warning_but_no_reset(
    stubborn: Stubborn, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.output.MOST_BUFFERED", 1_000)
    output = Output(Threads("test"))
    stubborn.error = away()
    for number in range(100):
        output.add(stubborn, "t", "b", rows(f"{number:090}"))
    output.add(stubborn, "t", "b", rows("", kind=RESET))
    assert [record.getMessage() for record in caplog.records] == [
        "what is emitted is dropped: it comes faster than the store takes it, or that is away"
    ]
    stubborn.error = None
    output.flush("t", "b")
    assert kept(stubborn) == [f"{number:090}" for number in range(4)] + ["reset"]
    output.add(stubborn, "t", "b", rows("x"))
    output.close()
    assert kept(stubborn)[-1] == "x"


def test_of_a_commit_of_unknown_fate_nothing_is_sent_again_but_resets(stubborn: Stubborn) -> None:
    output = Output(Threads("test"))
    output.add(stubborn, "t", "b", rows("old"))
    output.flush("t", "b")
    stubborn.error = away(unknown_fate=True)
    output.add(stubborn, "t", "b", rows("x") + rows("", kind=RESET) + rows("y"))
    output.flush("t", "b")
    stubborn.error = None
    output.close()
    assert kept(stubborn) == ["old", "reset"]


def test_what_a_damaged_store_refuses_is_dropped_with_a_warning_and_disturbs_nobody(
    stubborn: Stubborn, caplog: pytest.LogCaptureFixture
) -> None:
    output = Output(Threads("test"))
    stubborn.error = StoreCorruptError("the disk is spoilt", url="memory:")
    output.add(stubborn, "t", "b", rows("x"))
    output.flush("t", "b")
    output.add(stubborn, "t", "b", rows("y"))
    output.close()
    assert not output._buffers
    output.add(stubborn, "t", "b", rows("z"))
    output.flush("t", "b")
    assert kept(stubborn) == []
    assert [record.getMessage() for record in caplog.records] == [
        "what task t has emitted is not stored: the disk is spoilt"
    ]


@pytest.fixture
def without_emissions(tmp_path: Path) -> Iterator[Store]:
    """Give a store that can hold no emissions."""
    with open_store(f"sqlite:///{tmp_path}/spoilt.db") as store:
        with closing(sqlite3.connect(tmp_path / "spoilt.db")) as outside:
            outside.execute("DROP TABLE emissions")
        yield store


def test_a_task_goes_on_though_nothing_that_it_emits_can_be_stored(
    without_emissions: Store, caplog: pytest.LogCaptureFixture
) -> None:
    assert live(without_emissions, story) == " ".join(WORDS) * 2
    (record,) = caplog.records
    assert "what task t has emitted is not stored" in record.getMessage()


def test_a_task_that_emits_nothing_asks_the_store_for_nothing_more(
    without_emissions: Store, caplog: pytest.LogCaptureFixture
) -> None:
    @step
    def plain() -> None:
        return

    @agent
    def quiet() -> None:
        plain()
        plain()

    live(without_emissions, quiet)
    assert caplog.records == []


def test_many_who_emit_at_once_are_each_in_order_and_before_their_own_end(disk: Store) -> None:
    @step
    def count(name: str) -> None:
        for number in range(200):
            emit(f"{name} {number}")

    @agent
    def crowd() -> None:
        gather(*[partial(count, name) for name in "abcd"])

    live(disk, crowd)
    told = updates(disk)
    for number, name in enumerate("abcd", 1):
        mine = [each for each in told if getattr(each, "path", "") == f"1/{number}/1"]
        assert [type(each) for each in mine] == [StepBegan, *[Emitted] * 200, StepEnded]
        assert [each.value for each in mine[1:-1] if isinstance(each, Emitted)] == [f"{name} {n}" for n in range(200)]


class NoThreads(Threads):
    """Threads of a machine that has none left."""

    def start(self, work: Callable[[], object], /) -> None:
        raise NoThreadError("the machine has no thread left")


def test_where_the_machine_has_no_thread_left_the_next_append_stores_what_was_emitted(stubborn: Stubborn) -> None:
    output = Output(NoThreads("test"))
    output.add(stubborn, "t", "b", rows("x"))
    output.add(stubborn, "t", "b", rows("y"))
    assert kept(stubborn) == []
    output.flush("t", "b")
    assert kept(stubborn) == ["x", "y"]


FORKING = """
    import os
    from actors import AgentSystem, agent, emit, step
    from tests.scenario_kit import STORE, say

    @step
    def forks():
        emit("before")
        child = os.fork()
        if not child:
            emit("the child's")
            os._exit(0)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        emit("after")

    @agent
    def forking():
        forks()

    with AgentSystem(STORE) as system:
        system.spawn(forking, id="t").result(timeout=60)
"""


def test_what_a_child_made_by_fork_emits_disturbs_nobody(world: World) -> None:
    assert world.run(world.write(FORKING)) == "0"
    with open_store(world.url) as store:
        assert texts(updates(store)) == {"1": ["before", "after"]}
