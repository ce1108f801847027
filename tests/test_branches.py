"""Side by side: `gather`, `map_steps` and `branch`, in agents of both colours, live and at every replay."""

import asyncio
import contextvars
import itertools
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from actors import (
    AgentSystem,
    Doubt,
    FailTask,
    NestedStepError,
    OutsideTaskError,
    StepError,
    Suspended,
    TaskFailedError,
    TaskHeldError,
    Unknown,
    agent,
    branch,
    gather,
    get_logger,
    map_steps,
    open_store,
    patched,
    receive_async,
    run_step_async,
    step,
    step_info,
    task_info,
)
from actors.appender import Appender
from actors.context import Context
from actors.definitions import current
from actors.lines import LOOK_AGAIN
from actors.task_log import TaskLog
from actors.testing import CrashPlan, FakeClock, SimulatedCrash, every_crash_point
from domain.events import Completed, Passivated, StepFailed, StepStarted, StepSucceeded
from stores import Store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, bodies, die, held, kinds, live, log, wait_for

BOTH = pytest.mark.parametrize("colour", ["sync", "async"])


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


class Notes:
    """A step `note`, whose bodies are written down, and which does for some value what it was told to do."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.does: dict[Any, Callable[[], Any]] = {}

        @step(name="note")
        def note(value: Any) -> Any:
            self.ran.append(value)
            return self.does.get(value, lambda: value)()

        self.note = note

    def once(self, colour: str, value: Any) -> Callable[[], Any]:
        """Give a branch with one step."""
        return partial(self.note if colour == "sync" else self.note.aio, value)

    def each(self, colour: str, *values: Any) -> Callable[[], Any]:
        """Give a branch with a step for each value."""
        if colour == "sync":
            return lambda: [self.note(value) for value in values]

        async def inside() -> list[Any]:
            return [await self.note.aio(value) for value in values]

        return inside


@pytest.fixture
def notes() -> Notes:
    return Notes()


def gathering(colour: str, branches: list[Any], after: Callable[[], Any] | None = None) -> Any:
    """Give an agent that gathers branches, and then takes one step more, where there is one."""
    if colour == "sync":

        @agent(name="gathering")
        def flow() -> Any:
            got = gather(*branches)
            return (*got, after()) if after else got

        return flow

    @agent(name="gathering")
    async def flow_async() -> Any:
        got = await gather(*branches)
        return (*got, await after()) if after else got

    return flow_async


def raising(error: BaseException) -> Callable[[], Any]:
    def raises() -> Any:
        raise error

    return raises


def in_branch(fn: Callable[[], Any], colour: str) -> Callable[[], Any]:
    """Give code between steps as a branch of either colour."""
    if colour == "sync":
        return fn

    async def inside() -> Any:
        return fn()

    return inside


def outcomes(disk: Store) -> list[str]:
    ended = [event for event in log(disk) if isinstance(event, StepSucceeded | StepFailed)]
    return [event.path for event in ended if event.kind == "step"]


# ------------------------------------------------------------------ results


@BOTH
def test_results_come_in_call_order_whatever_finishes_first(disk: Store, notes: Notes, colour: str) -> None:
    done = [threading.Event() for _ in range(4)]
    done[3].set()

    def after_the_next(number: int) -> str:
        assert done[number + 1].wait(PATIENCE)
        return f"result {number}"

    for number in range(3):
        notes.does[number] = partial(after_the_next, number)
    life = CrashingStore(disk, Telling(lambda path: done[int(path.split("/")[1]) - 1].set()))
    assert live(life, gathering(colour, [notes.once(colour, number) for number in range(3)])) == (
        *("result 0", "result 1", "result 2"),
    )
    assert outcomes(disk) == ["1/3/1", "1/2/1", "1/1/1"]


class Telling(CrashPlan):
    """Never dies, and tells of each step that has succeeded when that is in the log."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__(None)
        self._tell = tell
        self._ended: dict[str, str] = {}

    def reach(self, point: str, **facts: Any) -> None:
        super().reach(point, **facts)
        if point == "body.after":
            self._ended[facts["info"].path] = "body"
        if point == "append.after" and StepSucceeded.TOPIC in facts["topics"]:
            for path in [path for path, what in self._ended.items() if what == "body"]:
                self._ended[path] = "told"
                self._tell(path)


def test_async_bodies_run_side_by_side_on_one_loop(disk: Store) -> None:
    @agent
    async def flow() -> Any:
        there, threads = [asyncio.Event() for _ in range(3)], set()

        @step(name="meet")
        async def meet(number: int) -> int:
            threads.add(threading.get_ident())
            there[number].set()
            await asyncio.gather(*(event.wait() for event in there))
            return number

        return await gather(meet(0), lambda: meet(1), partial(meet, 2)), len(threads)

    assert live(disk, flow) == ((0, 1, 2), 1)


@BOTH
def test_every_branch_settles_and_then_the_first_error_in_call_order_is_raised(
    disk: Store, notes: Notes, colour: str
) -> None:
    last_has_failed = threading.Event()

    def first() -> None:
        assert last_has_failed.wait(PATIENCE)
        raise ValueError("first")

    def last() -> None:
        last_has_failed.set()
        raise KeyError("last")

    notes.does |= {1: first, 3: last}
    with pytest.raises(TaskFailedError, match="step 1/1/1 note: first"):
        live(disk, gathering(colour, [notes.once(colour, number) for number in (1, 2, 3)]))
    assert sorted(outcomes(disk)) == ["1/1/1", "1/2/1", "1/3/1"]


@BOTH
def test_an_agent_may_catch_what_a_branch_has_raised_and_go_on(disk: Store, notes: Notes, colour: str) -> None:
    notes.does["bad"] = raising(ValueError("no"))
    branches = [notes.once(colour, "good"), notes.once(colour, "bad"), in_branch(raising(LookupError("mine")), colour)]

    @agent
    def flow() -> Any:
        with pytest.raises(StepError, match=r"step 1/2/1 note failed.*: ValueError: no"):
            gather(*branches)
        return notes.note("after")

    @agent
    async def flow_async() -> Any:
        with pytest.raises(StepError, match=r"step 1/2/1 note failed.*: ValueError: no"):
            await gather(*branches)
        return await notes.note.aio("after")

    for run in every_crash_point(flow if colour == "sync" else flow_async):
        run.check()
        assert run.result == "after"


@BOTH
def test_whatever_a_branch_raises_is_raised_by_the_gather(disk: Store, colour: str) -> None:
    errors = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), Suspended("mine")]
    caught: list[BaseException | None] = []

    @agent
    def flow() -> None:
        for error in errors:
            with pytest.raises(type(error)) as raised:
                gather(lambda: 1, raising(error))
            caught.append(raised.value)

    @agent
    async def flow_async() -> None:
        for error in errors:
            with pytest.raises(type(error)) as raised:
                await gather(in_branch(lambda: 1, "async"), in_branch(raising(error), "async"))
            caught.append(raised.value)

    assert live(disk, flow if colour == "sync" else flow_async) is None
    assert caught == errors


@BOTH
def test_gathers_and_agents_stand_inside_each_other(disk: Store, notes: Notes, colour: str) -> None:
    @agent
    def inner(value: str) -> Any:
        return gather(partial(notes.note, value), lambda: notes.note(value + "'"))

    @agent
    def flow() -> Any:
        return gather(partial(inner, "a"), lambda: gather(partial(inner, "b"), notes.each("sync", "c", "d")))

    @agent
    async def inner_async(value: str) -> Any:
        return await gather(notes.note.aio(value), lambda: notes.note.aio(value + "'"))

    @agent
    async def flow_async() -> Any:
        return await gather(inner_async("a"), gather(lambda: inner_async("b"), notes.each("async", "c", "d")))

    expected = (("a", "a'"), (("b", "b'"), ["c", "d"]))
    assert live(disk, flow if colour == "sync" else flow_async) == expected
    paths = ["1/1/1/1/1/1", "1/1/1/1/2/1", "1/2/1/1/1/1/1/1", "1/2/1/1/1/1/2/1", "1/2/1/2/1", "1/2/1/2/2"]
    assert sorted(path for path, *_ in bodies(disk)) == paths


def test_awaitables_have_their_place_where_they_are_awaited(disk: Store, notes: Notes) -> None:
    @agent
    async def inner(value: str) -> Any:
        return await notes.note.aio(value)

    @agent
    async def flow() -> Any:
        later = gather(inner("c"), notes.note.aio("d"))
        other = inner("b")
        return await notes.note.aio("a"), await other, await later

    die(disk, flow, nth=4)
    assert live(disk, flow) == ("a", "b", ("c", "d"))
    assert sorted({path for path, *_ in bodies(disk)}) == ["1", "2/1", "3/1/1/1", "3/2/1"]


@BOTH
def test_a_branch_sees_the_callers_context_variables_and_keeps_its_own(disk: Store, notes: Notes, colour: str) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    def change(number: int) -> str:
        before = variable.get()
        variable.set(f"branch {number}")
        return before

    branches = [in_branch(partial(change, number), colour) for number in range(3)]

    @agent
    def flow() -> Any:
        variable.set("agent")
        return gather(*branches), variable.get()

    @agent
    async def flow_async() -> Any:
        variable.set("agent")
        return await gather(*branches), variable.get()

    assert live(disk, flow if colour == "sync" else flow_async) == (("agent",) * 3, "agent")


@BOTH
def test_a_gather_of_nothing_gives_nothing(disk: Store, notes: Notes, colour: str) -> None:
    assert live(disk, gathering(colour, [], notes.once(colour, "after"))) == ("after",)
    assert bodies(disk) == [("2", "note", 1)]


# ------------------------------------------------------------------ map_steps


@BOTH
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_map_steps_gives_a_list_in_the_items_order_and_runs_no_more_than_the_limit_at_once(
    disk: Store, colour: str, limit: int
) -> None:
    together, at_once, most = threading.Barrier(limit), 0, 0
    lock = threading.Lock()

    @step(name="double")
    def double(number: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        together.wait(PATIENCE)
        with lock:
            at_once -= 1
        return number * 2

    @agent
    def flow() -> Any:
        return map_steps(double, range(6), limit=limit)

    @agent
    async def flow_async() -> Any:
        return await map_steps(double.aio, iter(range(6)), limit=limit)

    assert live(disk, flow if colour == "sync" else flow_async) == [0, 2, 4, 6, 8, 10]
    assert most == limit
    assert sorted(outcomes(disk)) == [f"1/{number}/1" for number in range(1, 7)]


@BOTH
def test_map_steps_without_a_limit_runs_all_at_once(disk: Store, notes: Notes, colour: str) -> None:
    together = threading.Barrier(12)
    notes.does |= {number: lambda: together.wait(PATIENCE) >= 0 for number in range(12)}

    @agent
    def flow() -> Any:
        return map_steps(notes.note, range(12)), map_steps(notes.note, [])

    @agent
    async def flow_async() -> Any:
        return await map_steps(notes.note.aio, range(12)), await map_steps(notes.note.aio, [])

    assert live(disk, flow if colour == "sync" else flow_async) == ([True] * 12, [])


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2"])
def test_a_limit_is_a_whole_number_from_one(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit is a whole number from 1, or None, not"):
        map_steps(print, [], limit=limit)


# ------------------------------------------------------------------ where it may be called


@pytest.mark.filterwarnings("error")
def test_outside_of_a_task_and_inside_a_body_side_by_side_is_refused(disk: Store, notes: Notes) -> None:
    with pytest.raises(OutsideTaskError, match=r"gather\(\) was called where no task runs"):
        gather(notes.note.aio("never"), notes.note.aio("awaited"))
    with pytest.raises(OutsideTaskError, match=r"map_steps\(\) was called where no task runs"):
        map_steps(print, [])
    with pytest.raises(OutsideTaskError, match=r"branch\('k'\) was called where no task runs"), branch("k"):
        pass

    @step
    def body() -> list[str]:
        messages = []
        for call in (gather, lambda: map_steps(print, []), lambda: branch("k").__enter__()):
            with pytest.raises(NestedStepError) as caught:
                call()
            messages.append(str(caught.value))
        return messages

    @agent
    def flow() -> list[str]:
        return body()

    assert ["inside the body of step 1" in message for message in live(disk, flow)] == [True] * 3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("what", "message"), [(3, "no callable without arguments, but 3"), ("coroutine", r"call an async step by \.sync")]
)
def test_what_is_no_branch_is_a_type_error_that_names_it_and_takes_no_place(
    disk: Store, notes: Notes, what: Any, message: str
) -> None:
    @agent
    def flow() -> Any:
        wrong = notes.note.aio("never") if what == "coroutine" else what
        with pytest.raises(TypeError, match=f"gather: branch 2 is .*{message}"):
            gather(lambda: 1, wrong)
        with pytest.raises(TypeError, match=r"gives a coroutine, which a sync agent cannot await"):
            gather(partial(notes.note.aio, "never"), lambda: 1)
        return notes.note("after")

    assert live(disk, flow) == "after"
    assert bodies(disk) == [("2", "note", 1)]


def test_a_gather_in_a_thread_made_by_hand_is_told_what_to_do(disk: Store, notes: Notes) -> None:
    @agent
    def flow() -> str:
        with pytest.raises(OutsideTaskError) as caught:
            raise in_a_thread(lambda: gather(partial(notes.note, 1))) or AssertionError
        return str(caught.value)

    message = live(disk, flow)
    assert message.startswith("gather() was called on another thread than that of its task t,")
    assert message.endswith('use gather(…), or open a branch("key") there')


def in_a_thread(call: Callable[[], object]) -> BaseException | None:
    """Call it in a thread made by hand that has a copy of the context; give what it raised."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, call).exception(PATIENCE)


# ------------------------------------------------------------------ crashes


@BOTH
@pytest.mark.parametrize("nth", range(1, 10))
def test_after_a_crash_only_what_is_unfinished_runs(disk: Store, notes: Notes, colour: str, nth: int) -> None:
    branches = [notes.each(colour, *(f"{name}{number}" for number in range(3))) for name in "abc"]
    flow = gathering(colour, branches)
    die(disk, flow, at="body.after", nth=nth)
    with AgentSystem(disk, run=False) as client:
        finished = [event.value for event in client.task("t").events() if isinstance(event, StepSucceeded)]
    notes.ran.clear()
    assert live(disk, flow) == tuple([f"{name}{number}" for number in range(3)] for name in "abc")
    everything = [f"{name}{number}" for name in "abc" for number in range(3)]
    assert sorted(notes.ran) == sorted(set(everything) - set(finished))


@BOTH
def test_at_every_boundary_a_death_repeats_no_finished_body(colour: str) -> None:
    notes = Notes()
    branches = [notes.each(colour, 1, 2), notes.once(colour, 3), notes.each(colour)]
    for run in every_crash_point(gathering(colour, branches, notes.once(colour, 4))):
        run.check()
        assert run.result == ([1, 2], 3, [], 4)
        again = Counter(body.path for body in run.bodies)
        assert max(again.values()) <= run.lives


@BOTH
def test_the_order_in_which_branches_run_may_differ_between_runs(disk: Store, notes: Notes, colour: str) -> None:
    first = ["a", "b"]

    def wait_for_turn(value: str) -> str:
        wait_for(lambda: first[0] == value or len(notes.ran) > 1 or first[0] in notes.ran)
        return value

    notes.does |= {"a": partial(wait_for_turn, "a"), "b": partial(wait_for_turn, "b")}
    flow = gathering(colour, [notes.once(colour, "a"), notes.once(colour, "b")], notes.once(colour, "after"))
    die(disk, flow, at="append.before", nth=5)
    first.reverse()
    assert live(disk, flow) == ("a", "b", "after")


# ------------------------------------------------------------------ waiting


class WaitingClock(FakeClock):
    """Tells when somebody waits by it in place for longer than a moment: looking at it again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        if seconds == LOOK_AGAIN:
            self.waits.set()
        super().wait(condition, seconds)


def failing_once(notes: Notes) -> Any:
    """Give a step whose first attempt fails, with an hour until the next."""

    @step(name="patient", retries=1, backoff=3600, max_backoff=3600, jitter=0)
    def patient() -> str:
        notes.ran.append("patient")
        if step_info().attempt == 1:
            raise ConnectionError
        return "at last"

    return patient


@BOTH
def test_a_waiting_branch_keeps_its_place_while_others_run_and_the_task_is_unwound_when_all_wait(
    disk: Store, notes: Notes, colour: str
) -> None:
    clock, go = WaitingClock(), threading.Event()
    notes.does["other"] = lambda: go.wait(PATIENCE)
    patient = failing_once(notes)
    waiting = patient if colour == "sync" else patient.aio
    flow = gathering(colour, [waiting, notes.each(colour, "other", "more"), waiting])
    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: notes.ran.count("patient") == 2 and "other" in notes.ran)
        assert clock.waits.wait(PATIENCE)
        assert task.status() == "running"
        go.set()
        wait_for(lambda: task.status() == "waiting")
        before = notes.ran.copy()
        assert sorted(before) == ["more", "other", "patient", "patient"]
        clock.advance(3600)
        assert task.result(PATIENCE) == ("at last", [True, "more"], "at last")
    assert notes.ran[len(before) :] == ["patient", "patient"]
    assert kinds(disk).count("Passivated") == 1
    (passivated,) = (event for event in log(disk) if isinstance(event, Passivated))
    assert passivated.due == pytest.approx(clock.now(), abs=1)


def test_a_task_is_not_unwound_because_a_thread_for_a_branch_is_slow_to_come(disk: Store, notes: Notes) -> None:
    clock, late = WaitingClock(), threading.Event()
    flow = gathering("sync", [failing_once(notes), notes.once("sync", "other")])
    with AgentSystem(disk, clock=clock) as system:
        come_late(system, late)
        task = system.spawn(flow, id="t")
        assert clock.waits.wait(PATIENCE)
        late.set()
        wait_for(lambda: task.status() == "waiting")
        assert notes.ran == ["patient", "other"]
        clock.advance(3600)
        assert task.result(PATIENCE) == ("at last", "other")
    assert kinds(disk).count("Passivated") == 1


def test_a_task_is_unwound_when_a_thread_that_gathers_has_only_to_wait_for_others(disk: Store, notes: Notes) -> None:
    clock, busy = FakeClock(), threading.Event()

    def quick() -> str:
        busy.set()
        wait_for(lambda: "patient" in notes.ran)
        return "quick"

    notes.does["quick"] = quick
    flow = gathering("sync", [notes.once("sync", "quick"), failing_once(notes)])
    with AgentSystem(disk, clock=clock) as system:
        come_late(system, busy)
        task = system.spawn(flow, id="t")
        wait_for(lambda: task.status() == "waiting")
        clock.advance(3600)
        assert task.result(PATIENCE) == ("quick", "at last")
    assert notes.ran == ["quick", "patient", "patient"]


def come_late(system: AgentSystem, when: threading.Event) -> None:
    """Let no thread of a system begin with its work before it is told."""
    threads = system.runtime.threads
    start = threads.start
    threads.start = lambda fn: start(lambda: (when.wait(PATIENCE), fn()))  # type: ignore[method-assign]


def test_threads_that_come_too_late_for_a_gather_keep_no_task_from_being_unwound(disk: Store, notes: Notes) -> None:
    clock, late = FakeClock(), threading.Event()
    flow = gathering("sync", [notes.once("sync", "a"), notes.once("sync", "b")], failing_once(notes))
    with AgentSystem(disk, clock=clock) as system:
        come_late(system, late)
        task = system.spawn(flow, id="t")
        wait_for(lambda: task.status() == "waiting")
        clock.advance(3600)
        assert task.result(PATIENCE) == ("a", "b", "at last")
        late.set()
    assert notes.ran == ["a", "b", "patient", "patient"]


def test_a_task_is_not_unwound_while_only_a_branch_in_a_thread_made_by_hand_waits(disk: Store, notes: Notes) -> None:
    clock, patient = WaitingClock(), failing_once(notes)

    def inside() -> None:
        with branch("k"):
            patient()

    @agent
    def flow() -> Any:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(inside,))
        thread.start()
        assert clock.waits.wait(PATIENCE)
        notes.note("meanwhile")
        thread.join(PATIENCE)
        return notes.note("after")

    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: "meanwhile" in notes.ran)
        clock.advance(3600)
        assert task.result(PATIENCE) == "after"
    assert notes.ran == ["patient", "meanwhile", "patient", "after"]
    assert "Passivated" not in kinds(disk)


@BOTH
def test_a_limit_counts_branches_that_wait_so_that_the_rest_runs_later(disk: Store, notes: Notes, colour: str) -> None:
    clock = FakeClock(jump=True)
    patient = failing_once(notes)
    waiting = patient if colour == "sync" else patient.aio
    branches = [waiting, notes.once(colour, "other")]

    @agent
    def flow() -> Any:
        return map_steps(lambda one: one(), branches, limit=1)

    @agent
    async def flow_async() -> Any:
        return await map_steps(lambda one: one(), branches, limit=1)

    assert live(disk, flow if colour == "sync" else flow_async, clock=clock) == ["at last", "other"]
    assert notes.ran == ["patient", "patient", "other"]


# ------------------------------------------------------------------ threads


def no_body_thread(monkeypatch: pytest.MonkeyPatch, allowed: int = 0) -> None:
    """Let the machine have no more than so many threads for bodies and branches."""
    start, left = threading.Thread.start, itertools.count(1)

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("perdure-body") and next(left) > allowed:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_a_gather_never_needs_a_free_thread(
    disk: Store, notes: Notes, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    no_body_thread(monkeypatch, threads)

    @agent
    def deep(depth: int) -> Any:
        return gather(partial(deep, depth - 1), partial(deep, depth - 1)) if depth else notes.note("leaf")

    def leaves(depth: int) -> Any:
        return (leaves(depth - 1),) * 2 if depth else "leaf"

    assert live(disk, deep, 5) == leaves(5)
    assert len(notes.ran) == 32


def test_branches_without_a_thread_wait_one_after_the_other(
    disk: Store, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_body_thread(monkeypatch)
    patient = failing_once(notes)
    flow = gathering("sync", [patient, notes.each("sync", "other"), patient])
    assert live(disk, flow, clock=FakeClock(jump=True)) == ("at last", ["other"], "at last")
    assert sorted(notes.ran) == ["other"] + ["patient"] * 4


def test_deep_nesting_does_not_deadlock(disk: Store, notes: Notes) -> None:
    @agent
    def deep(depth: int) -> int:
        if not depth:
            return 0
        below, _ = gather(lambda: deep(depth - 1), partial(notes.note, depth))
        return below + 1

    @agent
    async def deep_async(depth: int) -> int:
        if not depth:
            return 0
        below, _ = await gather(deep_async(depth - 1), notes.note.aio(depth))
        return below + 1

    assert live(disk, deep, 20) == 20
    with AgentSystem(disk) as system:
        assert system.spawn(deep_async, 20).result(PATIENCE) == 20


# ------------------------------------------------------------------ branches by key


def in_threads(calls: list[Callable[[], object]]) -> None:
    """Call each in a thread made by hand, all of which have a copy of the context."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(contextvars.copy_context().run, call) for call in calls]:
            future.result(PATIENCE)


def keyed(key: str, notes: Notes, *values: Any) -> Callable[[], None]:
    def inside() -> None:
        with branch(key):
            for value in values:
                notes.note(value)

    return inside


def keyed_async(key: str, notes: Notes, *values: Any) -> Callable[[], Any]:
    async def inside() -> None:
        with branch(key):
            for value in values:
                await notes.note.aio(value)

    return inside


@agent(name="branches-alone")
async def waiting_alone() -> list[Any]:
    async def wait_for(name: str) -> Any:
        with branch(name, alone=True):
            return await receive_async(name)

    return list(await asyncio.gather(wait_for("a"), wait_for("b")))


def test_a_task_whose_branches_by_hand_all_wait_alone_is_a_row_until_what_they_wait_for_comes(disk: Store) -> None:
    with AgentSystem(disk, max_active=1) as system:
        tasks = [system.spawn(waiting_alone, id=name) for name in ("one", "two")]
        for task in tasks:
            wait_for(lambda task=task: task.status() == "waiting")  # type: ignore[misc]
        for name, value in (("b", 2), ("a", 1)):
            for task in tasks:
                task.signal(name, value)
        assert [task.result(PATIENCE) for task in tasks] == [[1, 2]] * 2
    with pytest.raises(OutsideTaskError), branch("a", alone=True):
        pass


@agent(name="branches-beside-alone")
async def working_beside_one_that_waits() -> list[Any]:
    async def wait() -> Any:
        with branch("waits", alone=True):
            return await receive_async("go")

    async def work() -> str:
        with branch("works"):
            return await run_step_async("work", asyncio.sleep, 0.5, "done")

    return list(await asyncio.gather(wait(), work()))


def test_a_branch_that_works_keeps_the_place_of_one_that_waits_alone(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(working_beside_one_that_waits, id="t")
        wait_for(lambda: any(isinstance(event, StepSucceeded) for event in task.events()))
        task.signal("go", "went")
        assert task.result(PATIENCE) == ["went", "done"]
        assert sum(isinstance(event, StepStarted) for event in task.events()) == 1


def test_threads_made_by_hand_may_run_steps_in_branches_that_have_a_key(disk: Store, notes: Notes) -> None:
    order = ["a", "b", "c"]

    @agent
    def flow() -> Any:
        in_threads([keyed(key, notes, f"{key}1", f"{key}2") for key in order])
        return notes.note("after")

    die(disk, flow, nth=4)
    finished = {event.value for event in log(disk) if isinstance(event, StepSucceeded)}
    notes.ran.clear()
    order.reverse()
    assert live(disk, flow) == "after"
    assert not finished & set(notes.ran)
    assert sorted(path for path in outcomes(disk)) == ["1", "~a/1", "~a/2", "~b/1", "~b/2", "~c/1", "~c/2"]


async def by_create_task(calls: list[Callable[[], Any]]) -> None:
    for task in [asyncio.create_task(call()) for call in calls]:
        await task


async def by_asyncio_gather(calls: list[Callable[[], Any]]) -> None:
    await asyncio.gather(*(call() for call in calls))


async def by_a_task_group(calls: list[Callable[[], Any]]) -> None:
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(call())


async def by_to_thread(calls: list[Callable[[], Any]]) -> None:
    await asyncio.gather(*(asyncio.to_thread(call) for call in calls))


@pytest.mark.parametrize("by", [by_create_task, by_asyncio_gather, by_a_task_group, by_to_thread])
def test_asyncio_tasks_and_threads_of_async_agents_may_too(disk: Store, notes: Notes, by: Any) -> None:
    inside = keyed if by is by_to_thread else keyed_async
    order = ["a", "b", "c"]

    @agent
    async def flow() -> Any:
        await by([inside(key, notes, f"{key}1", f"{key}2") for key in order])
        return await notes.note.aio("after")

    die(disk, flow, nth=4)
    finished = {event.value for event in log(disk) if isinstance(event, StepSucceeded)}
    notes.ran.clear()
    order.reverse()
    assert live(disk, flow) == "after"
    assert not finished & set(notes.ran)
    assert sorted(path for path in outcomes(disk)) == ["1", "~a/1", "~a/2", "~b/1", "~b/2", "~c/1", "~c/2"]


def test_in_an_asyncio_task_made_by_hand_a_step_and_a_gather_are_refused(disk: Store, notes: Notes) -> None:
    @agent
    async def flow() -> Any:
        calls = [notes.note.aio(1), gather(notes.note.aio(2), notes.note.aio(3)), map_steps(notes.note.aio, [4])]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        return [[type(error).__name__, str(error)] for error in errors], await notes.note.aio("after")

    refused, after = live(disk, flow)
    assert (after, notes.ran) == ("after", ["after"])
    for name, message in refused:
        assert name == "OutsideTaskError"
        assert "was called in another asyncio task than that of its task t," in message
        assert "gather(…)" in message
        assert 'branch("key")' in message


@BOTH
def test_a_repeated_key_is_another_branch_by_the_order_of_opening(disk: Store, notes: Notes, colour: str) -> None:
    @agent
    def flow() -> Any:
        for value in "abc":
            with branch("k"):
                notes.note(value)
        gather(keyed("k", notes, "d"), keyed("k", notes, "e"))

    @agent
    async def flow_async() -> Any:
        for value in "abc":
            with branch("k"):
                await notes.note.aio(value)
        await gather(keyed_async("k", notes, "d"), keyed_async("k", notes, "e"))

    die(disk, flow if colour == "sync" else flow_async, nth=5)
    live(disk, flow if colour == "sync" else flow_async)
    values = {event.path: event.value for event in log(disk) if isinstance(event, StepSucceeded)}
    assert values == {"~k/1": "a", "~k#2/1": "b", "~k#3/1": "c", "1/1/~k/1": "d", "1/2/~k/1": "e"}


@pytest.mark.parametrize(
    "key", ["a/b", "a#2", "100%", "~a", "/", "#", "%2F", "1", " ", "é€😀", "x" * 200, "%" * 200, "a/b#c%d~e"]
)
def test_a_key_may_be_any_printable_text(disk: Store, notes: Notes, key: str) -> None:
    @agent
    def flow() -> Any:
        with branch(key):
            notes.note(1)
            with branch(key):
                notes.note(2)
        with branch(key):
            return notes.note(3)

    die(disk, flow, nth=3)
    assert live(disk, flow) == 3
    assert Counter(notes.ran) == {1: 1, 2: 1, 3: 2}
    assert len(set(outcomes(disk))) == 3


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", "\x00", 3, None, b"k"])
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(ValueError, match="the key of a branch is a text of 1 to 200 printable characters"), branch(key):
        pass


def test_an_exception_goes_through_a_branch_as_it_is(disk: Store, notes: Notes) -> None:
    error = LookupError("mine")

    @agent
    def flow() -> Any:
        try:
            with branch("k"):
                notes.note(1)
                raise error
        except LookupError as caught:
            return caught is error, notes.note(2)

    assert live(disk, flow) == (True, 2)


# ------------------------------------------------------------------ code that changed


def changed(disk: Store, colour: str, before: list[Any], after: list[Any], then: Callable[[], Any]) -> TaskHeldError:
    """Run one gather up to the step after it, go on with another, and give why that is held."""
    branches = before.copy()
    flow = gathering(colour, branches, then)
    with AgentSystem(disk, run=False) as client:
        client.spawn(flow, id="t")
    die(disk, flow, at="body.before", nth=len(before) * 2 + 1)
    branches[:] = after
    return held(disk, flow)


@BOTH
@pytest.mark.parametrize(
    ("change", "position"),
    [("more", "1/3/1"), ("fewer", "1/2"), ("swapped", "1/[12]/1"), ("longer", "1/1/3"), ("shorter", "1/1/2")],
)
def test_a_gather_that_changed_is_held_and_the_position_named(
    disk: Store, notes: Notes, colour: str, change: str, position: str
) -> None:
    each = partial(notes.each, colour)
    branches = {
        "more": [each(1, 2), each(3, 4), each(5)],
        "fewer": [each(1, 2)],
        "swapped": [each(3, 4), each(1, 2)],
        "longer": [each(1, 2, 5), each(3, 4)],
        "shorter": [each(1), each(3, 4)],
    }[change]
    error = changed(disk, colour, [each(1, 2), each(3, 4)], branches, notes.once(colour, "after"))
    ran = notes.ran.copy()
    assert error.reason == "differs"
    assert re.search(f"at position {position}:", str(error)), "of branches that both differ, the one that came first"
    assert 5 not in ran
    assert held(disk, gathering(colour, branches, notes.once(colour, "after"))).reason == "differs"
    assert notes.ran == ran, "nothing runs"
    assert live(disk, gathering(colour, [each(1, 2), each(3, 4)], notes.once(colour, "after"))) == (
        *([1, 2], [3, 4], "after"),
    )


def test_a_last_gather_may_grow(disk: Store, notes: Notes) -> None:
    branches = [notes.once("sync", 1), notes.once("sync", 2)]
    flow = gathering("sync", branches)
    die(disk, flow, nth=2)
    branches.append(notes.once("sync", 3))
    assert live(disk, flow) == (1, 2, 3)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("gather", "step", "position 1: the log has a call of an agent or a gather, the code asks for step note"),
        ("step", "gather", "position 1: the log has step note, the code asks for a gather of 2 branches"),
        ("agent", "gather", "position 1: the log has a call of an agent, with step note, the code asks for a gather"),
        ("gather", "agent", "position 1/1: the log has a call of an agent or a gather, the code asks for step note"),
        ("gather", "nothing", "position 1: the log has a call of an agent or a gather, the code asks for step note"),
        ("keyed", "nothing", "position ~k: the log has a branch, the code asks for no branch of that key"),
        ("keyed", "other key", "position ~k: the log has a branch, the code asks for no branch of that key"),
    ],
)
def test_something_else_where_a_gather_or_a_branch_was_is_held(
    disk: Store, notes: Notes, before: str, after: str, message: str
) -> None:
    @agent
    def inner() -> Any:
        return notes.note("a")

    forms: dict[str, Callable[[], Any]] = {
        "gather": lambda: gather(partial(notes.note, "a"), partial(notes.note, "b")),
        "step": lambda: notes.note("a"),
        "agent": inner,
        "nothing": lambda: None,
        "keyed": keyed("k", notes, "a"),
        "other key": keyed("l", notes, "c"),
        "both keys": lambda: (keyed("k", notes, "a")(), keyed("l", notes, "c")()),
    }
    form = before

    @agent
    def flow() -> Any:
        forms[form]()
        return notes.note("after")

    at = {"gather": 3}.get(before, 2)
    die(disk, flow, at="body.before", nth=at)
    form = after
    error = held(disk, flow)
    assert error.reason == "differs"
    assert message in str(error)
    form = "both keys" if after == "other key" else before
    assert live(disk, flow) == "after"


@BOTH
@pytest.mark.parametrize("more", [True, False], ids=["a step after it", "nothing after it"])
def test_a_branch_that_an_error_leaves_early_has_passed_over_what_the_log_has(
    disk: Store, notes: Notes, colour: str, more: bool
) -> None:
    early = False

    def inside() -> Any:
        notes.note(1)
        if early:
            raise LookupError
        return notes.note(2)

    async def inside_async() -> Any:
        await notes.note.aio(1)
        if early:
            raise LookupError
        return await notes.note.aio(2)

    @agent
    def flow() -> Any:
        with suppress(LookupError):
            gather(inside, lambda: 1)
        return notes.note("after") if more else "after"

    @agent
    async def flow_async() -> Any:
        with suppress(LookupError):
            await gather(inside_async, in_branch(lambda: 1, "async"))
        return await notes.note.aio("after") if more else "after"

    walked = flow if colour == "sync" else flow_async
    die(disk, walked, at="body.before", nth=3) if more else die_at_the_end(disk, walked)
    early = True
    error = held(disk, walked)
    assert "at position 1/1/2: the log has step note, the code asks for nothing more" in str(error)
    early = False
    assert live(disk, walked) == "after"


def die_at_the_end(disk: Store, flow: Any) -> None:
    """Run the task `t` until its process dies when all that is missing is the record of its end."""

    class Plan(CrashPlan):
        def reach(self, point: str, **facts: Any) -> None:
            if point == "append.before" and Completed.TOPIC in facts["topics"]:
                self.die_now(point)
            super().reach(point, **facts)

    life = CrashingStore(disk, Plan(None))
    with pytest.raises(SimulatedCrash), AgentSystem(life) as system:
        system.spawn(flow, id="t").result(PATIENCE)
    life.close()


# ------------------------------------------------------------------ closing


@BOTH
def test_a_hold_waits_for_the_body_of_the_other_branch_and_its_outcome_is_recorded_first(
    disk: Store, notes: Notes, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(_doubt: Doubt) -> Unknown:
        wait_for(lambda: "slow" in notes.ran)
        return Unknown("nobody knows")

    @step(name="unsure", on_doubt=ask)
    def unsure() -> None: ...

    branches = [unsure if colour == "sync" else unsure.aio]
    flow, go = gathering(colour, branches), threading.Event()
    die(disk, flow)
    notes.does["slow"] = lambda: go.wait(PATIENCE) and "slow"
    branches.append(notes.each(colour, "slow", "never"))
    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: "in doubt" in caplog.text)
        assert task.status() == "running"
        go.set()
        with pytest.raises(TaskHeldError, match="nobody knows"):
            task.result(PATIENCE)
    assert kinds(disk)[-2:] == ["StepSucceeded", "Held"]
    assert notes.ran == ["slow"]


@BOTH
@pytest.mark.parametrize(
    ("error", "mark"),
    [(LookupError("a bug"), "Restarted"), (FailTask("enough"), "Failed"), (SystemExit(3), "Restarted")],
)
def test_an_error_in_one_branch_waits_for_the_body_of_the_other(
    disk: Store, notes: Notes, colour: str, error: BaseException, mark: str
) -> None:
    go = threading.Event()
    notes.does["slow"] = lambda: go.wait(PATIENCE)
    flow = gathering(colour, [in_branch(raising(error), colour), notes.each(colour, "slow", "more")])
    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        wait_for(lambda: "slow" in notes.ran)
        go.set()
        wait_for(lambda: mark in kinds(disk))
        assert kinds(disk)[: kinds(disk).index(mark)].count("StepSucceeded") == 2
        assert task.status() in ("queued", "running", "failed", "held")


@BOTH
def test_a_stop_lets_every_running_body_end_and_records_it_before_the_mark(
    disk: Store, notes: Notes, colour: str
) -> None:
    running, go = threading.Barrier(4), threading.Event()

    def body() -> bool:
        running.wait(PATIENCE)
        return go.wait(PATIENCE)

    notes.does |= dict.fromkeys("abc", body)
    flow = gathering(colour, [notes.each(colour, value, value * 2) for value in "abc"])
    system = AgentSystem(disk)
    with system:
        system.spawn(flow, id="t")
        running.wait(PATIENCE)
        closing = threading.Thread(target=system.close)
        closing.start()
        wait_for(lambda: system._closed)
        go.set()
        closing.join(PATIENCE)
    assert kinds(disk)[-4:] == ["StepSucceeded"] * 3 + ["Passivated"]
    assert sorted(notes.ran) == ["a", "b", "c"]
    assert live(disk, flow) == tuple([True, value * 2] for value in "abc")
    assert sorted(notes.ran) == ["a", "aa", "b", "bb", "c", "cc"]


@BOTH
def test_when_the_task_is_lost_every_branch_ends_and_nothing_more_is_written(
    disk: Store, notes: Notes, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    running, go = threading.Barrier(3), threading.Event()

    def body() -> bool:
        running.wait(PATIENCE)
        return go.wait(PATIENCE)

    notes.does |= dict.fromkeys("ab", body)
    flow = gathering(colour, [notes.each(colour, value, value * 2) for value in "ab"])
    with AgentSystem(disk) as system:
        system.spawn(flow, id="t")
        running.wait(PATIENCE)
        lock = disk.workers.hold("other", {})
        other = Appender(TaskLog(disk), TaskLog(disk).load("t"))
        other.append(lambda task, now: task.activate(now, worker="other", token="", limit=None))
        length = len(log(disk))
        go.set()
        wait_for(lambda: any("ownership lost" in record.getMessage() for record in caplog.records))
    assert len(log(disk)) == length
    lock.release()
    assert sorted(notes.ran) == ["a", "b"]


@pytest.mark.parametrize("stubborn_ones", [2, 4])
def test_a_call_after_the_end_of_its_activation_raises_the_same_again_in_every_branch(
    disk: Store, notes: Notes, stubborn_ones: int
) -> None:
    ran: list[str] = []
    together = threading.Barrier(4)

    def stubborn() -> None:
        together.wait(PATIENCE)
        for _ in range(3):
            with suppress(BaseException):
                notes.note("x")
            with suppress(BaseException):
                gather(partial(notes.note, "y"), partial(notes.note, "z"))
            with suppress(BaseException), branch("k"):
                ran.append("opened when closed")
        ran.append("end")

    def swallows() -> None:
        with branch("k"), suppress(BaseException):
            together.wait(PATIENCE)
            notes.note("x")
        ran.append("left a branch when closed")

    def raises_its_own() -> None:
        try:
            with branch("l"):
                together.wait(PATIENCE)
                with suppress(BaseException):
                    notes.note("x")
                raise LookupError
        except LookupError:
            ran.append("left a branch by an error of its own")

    @agent
    def flow() -> Any:
        try:
            gather(*([stubborn] * stubborn_ones + [swallows, raises_its_own])[:4])
        except LookupError:
            ran.append("an error that is not what has closed it")
        ran.append("left a gather when closed")

    die(disk, flow, nth=1)
    assert ran == ["end"] * stubborn_ones
    assert len(notes.ran) <= 4


# ------------------------------------------------------------------ several decisions in one append


@BOTH
def test_where_branches_meet_several_decisions_are_one_append(disk: Store, notes: Notes, colour: str) -> None:
    branches = 8
    together, appenders = threading.Barrier(branches), list[Any]()

    class Plan(CrashPlan):
        def reach(self, point: str, **facts: Any) -> None:
            if point == "append.before" and StepSucceeded.TOPIC in facts["topics"] and len(facts["topics"]) == 1:
                wait_for(lambda: len(appenders[0]._queue) == branches - 1)
            super().reach(point, **facts)

    def body() -> bool:
        return together.wait(PATIENCE) >= 0

    notes.does |= dict.fromkeys(range(branches), body)

    @agent
    def flow() -> Any:
        appenders.append(here().activation.appender)
        return map_steps(notes.note, range(branches))

    @agent
    async def flow_async() -> Any:
        appenders.append(here().activation.appender)
        return await map_steps(notes.note.aio, range(branches))

    plan = Plan(None)
    assert live(CrashingStore(disk, plan), flow if colour == "sync" else flow_async) == [True] * branches
    assert len(outcomes(disk)) == branches
    commits = plan.points.count("append.after")
    assert commits <= 3 + branches + 2, "spawn, claim, completion, at most a start for each, and two for all outcomes"


def here() -> Context:
    context = current.get()
    assert isinstance(context, Context)
    return context


# ------------------------------------------------------------------ the same in every run


@BOTH
def test_what_a_branch_draws_and_is_told_is_its_own_and_the_same_at_each_replay(
    disk: Store, notes: Notes, colour: str
) -> None:
    drawn: dict[tuple[int, str], list[Any]] = {}
    together = threading.Barrier(2)
    notes.does |= dict.fromkeys("ab", lambda: together.wait(PATIENCE) >= 0)

    @step
    def last() -> str:
        return "last"

    def draw(scope: str) -> None:
        info = task_info()
        assert info is not None
        facts = [info.random.random(), info.uuid4(), info.now(), patched("a")]
        drawn.setdefault((info.activation, scope), []).append(facts)

    def inside(scope: str) -> None:
        draw(scope)
        notes.note(scope)
        draw(scope)

    async def inside_async(scope: str) -> None:
        draw(scope)
        await notes.note.aio(scope)
        draw(scope)

    code = inside if colour == "sync" else inside_async
    flow = gathering(colour, [partial(code, "a"), partial(code, "b")], last if colour == "sync" else last.aio)
    die(disk, flow, nth=2)
    notes.does.clear()
    die(disk, flow, nth=3 - len(outcomes(disk)))
    assert live(disk, flow) == (None, None, "last")
    for scope in "ab":
        lives = [drawn.get((number, scope), []) for number in (1, 2, 3)]
        assert lives[1] == lives[2]
        assert lives[0][0] == lives[1][0]
        assert lives[1][0][:2] != lives[1][1][:2]
    a, b = drawn[3, "a"], drawn[3, "b"]
    assert all(one[:2] != other[:2] for one, other in zip(a, b, strict=True))


@BOTH
def test_a_logger_of_a_branch_is_silent_where_its_code_has_run_before(
    disk: Store, notes: Notes, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    logger, replaying = get_logger("tests.gather"), list[tuple[str, bool]]()
    logger.logger.setLevel(logging.INFO)

    def tell(what: str) -> None:
        info = task_info()
        assert info is not None
        replaying.append((what, info.is_replaying))
        logger.info("at %s", what)

    def inside(name: str) -> None:
        for number in range(2):
            tell(f"{name}{number}")
            notes.note(f"{name}{number}")

    async def inside_async(name: str) -> None:
        for number in range(2):
            tell(f"{name}{number}")
            await notes.note.aio(f"{name}{number}")

    code = inside if colour == "sync" else inside_async
    flow = gathering(colour, [partial(code, "a"), partial(code, "b")], notes.once(colour, "after"))
    die(disk, flow, at="body.before", nth=5)
    assert [what for what, again in replaying if again] == []
    live(disk, flow)
    told = [record.getMessage() for record in caplog.records if record.name == "tests.gather"]
    assert sorted(told) == [f"task t: at {name}{number}" for name in "ab" for number in range(2)]
    assert sorted(replaying[4:]) == [(f"{name}{number}", True) for name in "ab" for number in range(2)]
