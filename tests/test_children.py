"""Children: made with their record or not at all, waited for, called off, and what a parent's end means for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from actors import (
    AgentSystem,
    ChildError,
    ChildRef,
    DefinitionError,
    NestedStepError,
    OutsideTaskError,
    OwnershipLost,
    Signal,
    TaskFailedError,
    TaskHeldError,
    UnstorableValueError,
    WaitTimeoutError,
    agent,
    branch,
    gather,
    map_steps,
    open_store,
    receive,
    receive_async,
    register,
    spawn_child,
    spawn_child_async,
    step,
    task_info,
    wait_any,
    wait_any_async,
)
from actors.appender import Appender
from actors.children import LONGEST, child_id
from actors.info import VALUE_LIMIT
from actors.runtime import Runtime
from actors.task_log import TaskLog
from actors.testing import FakeClock, crash_plans, every_crash_point, run_through_crashes
from domain.events import (
    Activated,
    ChildSpawned,
    Created,
    Failed,
    Held,
    Passivated,
    SignalReceived,
    WaitEnded,
)
from domain.state import ENDED
from stores import Store
from stores.crash import CrashingStore
from tests.families import (
    PARENTS,
    Order,
    Unclaimed,
    check_families,
    children_of,
    did,
    double,
    double_async,
    ended,
    failing,
    giving_up,
    how_it_ended,
    logs,
    middle,
    note,
    parent,
    status,
    tell_all,
    to_be_held,
    unknown_to_workers,
    waiting,
)
from tests.lives import PATIENCE, wait_for

pytestmark = pytest.mark.usefixtures("families")
colours = pytest.mark.parametrize("colour", sorted(PARENTS))


# ------------------------------------------------------------------ spawning


@colours
def test_a_parent_gets_what_its_children_return(disk: Store, colour: str) -> None:
    with AgentSystem(disk) as system:
        assert system.spawn(PARENTS[colour], [1, 2, 3], id="t").result(PATIENCE) == [2, 4, 6]
    assert sorted(did) == [1, 2, 3]
    tasks = logs(disk)
    assert [tasks[child].parent for child in tasks["t"].children] == ["t"] * 3
    assert all(tasks[child].status == "completed" for child in tasks["t"].children)
    check_families(disk)


@colours
def test_the_ids_of_children_follow_from_birth_and_place_and_are_others_in_another_birth(colour: str) -> None:
    found = []
    for _ in range(2):
        with open_store("memory:") as disk:
            with AgentSystem(disk) as system:
                system.spawn(PARENTS[colour], [1, 2], id="t").result(PATIENCE)
            task = logs(disk)["t"]
            spawned = {record.path: record.outcome for record in task.steps.values() if record.kind == "spawn"}
            assert {path: outcome.child for path, outcome in spawned.items()} == {  # type: ignore[union-attr]
                path: child_id(task, path) for path in ("1", "2")
            }
            found.append(set(task.children))
    assert not found[0] & found[1]


def test_the_id_of_a_child_is_short_and_printable_whatever_its_parents_is() -> None:
    @agent(name="children: nest")
    def nest(depth: int) -> str:
        info = task_info()
        assert info is not None
        with branch("x" * 150):
            return spawn_child(nest, depth - 1).result() if depth else info.id

    with open_store("memory:") as disk, AgentSystem(disk) as system:
        deepest = system.spawn(nest, 3, id="p" * 200).result(PATIENCE)
        ids = disk.recorder.select_ids()
    assert deepest in ids
    assert len(ids) == len(set(ids)) == 4
    assert all(len(one) <= LONGEST and one.isprintable() for one in ids if one != "p" * 200)


@colours
def test_a_spawn_is_one_append_with_the_childs_first_event(disk: Store, colour: str) -> None:
    order = Order()
    with AgentSystem(CrashingStore(disk, order)) as system:
        system.spawn(PARENTS[colour], [1, 2], id="t").result(PATIENCE)
    for child in children_of(disk):
        place = order.place(child, Created.TOPIC)
        assert place is not None
        assert order.appends[place - 1] == ("t", ChildSpawned.TOPIC)


@colours
def test_wherever_a_process_dies_there_is_no_child_without_its_record_nor_the_other_way_round(
    tmp_path: Path, colour: str
) -> None:
    made: list[tuple[Store, Order]] = []

    def new_store() -> Store:
        url = "memory:" if len(made) % 4 else f"sqlite:///{tmp_path}/{len(made)}.db"
        made.append((open_store(url), Order()))
        return CrashingStore(made[-1][0], made[-1][1])

    for run in every_crash_point(PARENTS[colour], [1, 2], new_store=new_store):
        run.check()
        assert run.result == [2, 4]
        check_families(*made[-1])
        assert len(children_of(made[-1][0], "task")) == 2
        made[-1][0].close()


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=crash_plans(6, 45))
@colours
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_whatever_crashes_a_family_comes_to_its_end_once(
    tmp_path_factory: pytest.TempPathFactory, colour: str, kind: str, plan: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("family")
    url = "memory:" if kind == "memory" else f"sqlite:///{folder}/tasks.db"
    order = Order()
    with open_store(url) as disk:
        run = run_through_crashes(FAMILIES[colour], plan=plan, store=CrashingStore(disk, order))
        run.check()
        assert run.result == [2, 40, "failed", "cancelled"]
        with AgentSystem(CrashingStore(disk, order), strikes=None) as system:
            for child in children_of(disk, "task"):
                wait_for(lambda child=child: system.task(child).status() in ENDED)  # type: ignore[misc]
        tell_all(disk)
        check_families(disk, order)


@agent(name="children: family")
def family() -> list[Any]:
    one, two = spawn_child(double, 1), spawn_child(middle, 10, on_parent_end="wait")
    three, four = spawn_child(failing, "on purpose"), spawn_child(waiting)
    spawn_child(double, 5, on_parent_end="wait")
    four.cancel("enough")
    return [one.result(), two.result(), *(how_it_ended(child) for child in (three, four))]


@agent(name="children: family, async")
async def family_async() -> list[Any]:
    one = await spawn_child_async(double_async, 1)
    two = await spawn_child_async(middle, 10, on_parent_end="wait")
    three, four = await spawn_child_async(failing, "on purpose"), await spawn_child_async(waiting)
    await spawn_child_async(double, 5, on_parent_end="wait")
    await four.cancel_async("enough")
    ends = []
    for child in (three, four):
        try:
            await child
        except ChildError as error:
            ends.append(error.status)
    return [await one, await two, *ends]


FAMILIES: dict[str, Any] = {"sync": family, "async": family_async}


@colours
def test_a_replay_finds_the_same_children_and_needs_no_log_of_theirs(tmp_path: Path, colour: str) -> None:
    import sqlite3

    path = tmp_path / "tasks.db"
    with open_store(f"sqlite:///{path}") as disk, AgentSystem(disk) as system:
        task = system.spawn(AFTERWARDS[colour], id="t")
        wait_for(lambda: task.status() == "waiting")
        before = children_of(disk)
        assert all(status(disk, child) in ENDED for child in before)
    with sqlite3.connect(path) as connection:
        for table, column in (("stored_events", "originator_id"), ("task_index", "id")):
            connection.execute(f"DELETE FROM {table} WHERE {column}!='t'")
    connection.close()
    with open_store(f"sqlite:///{path}") as disk, AgentSystem(disk) as system:
        system.task("t").signal("go")
        assert system.task("t").result(PATIENCE) == [2, 4, "failed"]
        assert children_of(disk) == before
        assert disk.recorder.select_ids() == ["t"]
    assert sorted(did) == [1, 2]


@agent(name="children: afterwards")
def afterwards() -> list[Any]:
    children = [spawn_child(double, 1), spawn_child(double, 2)]
    third = spawn_child(giving_up, "no")
    results = [*(child.result() for child in children), how_it_ended(third)]
    receive("go")
    return results


@agent(name="children: afterwards, async")
async def afterwards_async() -> list[Any]:
    children = [await spawn_child_async(double, number) for number in (1, 2)]
    third = await spawn_child_async(giving_up, "no")
    results: list[Any] = list(await gather(*[child.result_async for child in children]))
    try:
        await third
    except ChildError as error:
        results.append(error.status)
    await receive_async("go")
    return results


AFTERWARDS: dict[str, Any] = {"sync": afterwards, "async": afterwards_async}


def test_a_frozen_old_activation_spawns_no_child(disk: Store) -> None:
    """The fence stands before a birth: what a stale owner brings is refused, and nothing is made."""
    arrived, thawed, ends = threading.Event(), threading.Event(), list[BaseException]()

    @agent(name="children: frozen")
    def frozen() -> str:
        if not arrived.is_set():
            arrived.set()
            assert thawed.wait(PATIENCE)
            try:
                spawn_child(double, 1)
            except BaseException as error:
                ends.append(error)
                raise
            return "stale"
        return "fresh"

    with AgentSystem(disk) as system:
        task = system.spawn(frozen, id="t")
        assert arrived.wait(PATIENCE)
        log = TaskLog(disk)
        appender = Appender(log, log.load("t"))  # as another worker takes it over
        appender.append(
            lambda task, now: [
                Activated("t", task.version + 1, now, task.activation + 1, "another worker", "token"),
            ]
        )
        thawed.set()
        wait_for(lambda: bool(ends))
        assert isinstance(ends[0], OwnershipLost)
        assert disk.recorder.select_ids() == ["t"]
        assert not [event for event in task.events() if isinstance(event, ChildSpawned)]


def test_a_child_whose_id_is_taken_leaves_nothing_and_holds_its_parent_who_names_it(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        client.spawn(parent, [1], id="t")
        taken = child_id(logs(disk)["t"], "1")
        client.spawn(ended, id=taken)
    with AgentSystem(disk, strikes=1) as system:
        with pytest.raises(TaskHeldError, match="exists already, and is no child of its parent"):
            system.task("t").result(PATIENCE)
        assert not logs(disk)["t"].children
        assert logs(disk)[taken].parent == ""


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (lambda: spawn_child(print, 1), DefinitionError, "print is not an agent: decorate it with @agent"),
        (lambda: spawn_child(double), TypeError, r"agent children: double\(number.*missing a required argument"),  # type: ignore[call-arg]
        (lambda: spawn_child(double, 1, 2), TypeError, "too many positional arguments"),  # type: ignore[call-arg]
        (lambda: spawn_child(double, object()), UnstorableValueError, "object"),  # type: ignore[arg-type]
        (lambda: spawn_child(double, 1, on_parent_end="kill"), ValueError, "one of cancel, wait, abandon, not 'kill'"),  # type: ignore[arg-type]
        (lambda: spawn_child(double, 1, tags={"a": 1}), TypeError, "tags are texts by name"),  # type: ignore[dict-item]
        (lambda: ChildRef("t").result(), ValueError, "t is no child of task t"),
        (lambda: wait_any(ChildRef("x")), ValueError, "x is no child of task t"),
    ],
)
def test_what_cannot_be_spawned_is_refused_and_takes_no_position(
    bad: Callable[[], Any], error: type[Exception], words: str
) -> None:
    @agent(name="children: bad")
    def trying() -> int:
        with pytest.raises(error, match=words):
            bad()
        return spawn_child(double, 4).result()

    with open_store("memory:") as disk, AgentSystem(disk) as system:
        assert system.spawn(trying, id="t").result(PATIENCE) == 8
        assert next(iter(logs(disk)["t"].steps)) == "1"
        assert len(children_of(disk)) == 1


def test_children_are_spawned_by_agents_alone(disk: Store) -> None:
    with pytest.raises(OutsideTaskError, match=r"spawn_child\(\) was called where no task runs"):
        spawn_child(double, 1)

    @step(name="children: in a body")
    def body() -> None:
        with pytest.raises(NestedStepError, match=r"spawn_child\(\) was called inside the body"):
            spawn_child(double, 1)

    @agent(name="children: of bodies")
    async def caller() -> None:
        await body.aio()
        with pytest.raises(Exception, match="await spawn_child_async"):
            spawn_child(double, 1)

    with AgentSystem(disk) as system:
        system.spawn(caller, id="t").result(PATIENCE)
    assert disk.recorder.select_ids() == ["t"]


# ------------------------------------------------------------------ results


def facts_of(error: ChildError) -> tuple[Any, ...]:
    return error.child, error.status, error.fault.kind if error.fault else None, str(error)


@agent(name="children: learning")
def learning() -> list[tuple[Any, ...]]:
    found = []
    called_off = spawn_child(waiting)
    called_off.cancel("not needed")
    for child in (spawn_child(failing, "no such thing"), spawn_child(giving_up, "out of funds"), called_off):
        try:
            child.result()
        except ChildError as error:
            found.append(facts_of(error))
    return found


@agent(name="children: learning, async")
async def learning_async() -> list[tuple[Any, ...]]:
    found = []
    called_off = await spawn_child_async(waiting)
    await called_off.cancel_async("not needed")
    others = [await spawn_child_async(failing, "no such thing"), await spawn_child_async(giving_up, "out of funds")]
    for child in (*others, called_off):
        try:
            await child.result_async(timeout=timedelta(minutes=1))
        except ChildError as error:
            found.append(facts_of(error))
    return found


@pytest.mark.parametrize("learner", [learning, learning_async], ids=["sync", "async"])
def test_a_parent_learns_how_a_child_failed_or_that_it_was_cancelled(disk: Store, learner: Any) -> None:
    with AgentSystem(disk) as system:
        failed, given_up, cancelled = system.spawn(learner, id="t").result(PATIENCE)
    assert failed[1:3] == ("failed", "LookupError")
    assert failed[3] == f"child {failed[0]} has failed: LookupError: step 1 children: fail: no such thing"
    assert given_up[1] == "failed"
    assert given_up[3].endswith("out of funds")
    assert cancelled[1:3] == ("cancelled", None)
    assert cancelled[3] == f"child {cancelled[0]} was cancelled: not needed"
    assert {failed[0], given_up[0], cancelled[0]} == set(children_of(disk))


def test_a_childs_failure_that_the_agent_lets_through_fails_the_task(disk: Store) -> None:
    @agent(name="children: letting through")
    def letting_through() -> None:
        spawn_child(failing, "x").result()

    with AgentSystem(disk, strikes=1) as system, pytest.raises(TaskFailedError, match="has failed: LookupError"):
        system.spawn(letting_through, id="t").result(PATIENCE)


@pytest.mark.parametrize("seconds", [3600, 0])
def test_a_result_that_does_not_come_in_time_leaves_the_child_alone(disk: Store, seconds: float) -> None:
    clock = FakeClock()

    @agent(name="children: impatient")
    def impatient(seconds: float) -> list[Any]:
        child = spawn_child(waiting)
        try:
            child.result(timeout=seconds)
        except WaitTimeoutError as error:
            note(str(error))
        return [child.result(timeout=timedelta(days=1))]

    with AgentSystem(disk, clock=clock) as system:
        task = system.spawn(impatient, seconds, id="t")
        wait_for(lambda: len(children_of(disk)) == 1)
        (child,) = children_of(disk)
        wait_for(lambda: status(disk, child) == "waiting")
        if seconds:
            wait_for(lambda: task.status() == "waiting")
            assert did == []
            clock.advance(seconds)
        wait_for(lambda: len(did) == 1)
        assert did == [f"task t: child {child} has not ended in time, for the wait at 2"]
        system.task(child).signal("word", "late")
        assert task.result(PATIENCE) == ["late"]


def test_a_childs_value_of_a_class_unknown_here_holds_the_parent_until_the_class_is_known(disk: Store) -> None:
    @agent(name="children: of an unknown class")
    def classy() -> Any:
        return spawn_child(unknown_to_workers).result()

    with Unclaimed(), AgentSystem(disk) as system:
        task = system.spawn(classy, id="t")
        wait_for(lambda: len(children_of(disk)) == 1)
        (child,) = children_of(disk)
        late = f"children.Late.{type(disk).__name__}"
        log, value = TaskLog(disk), {"$": "obj", "t": late, "v": {"pages": 3}}
        claim = {"worker": "another worker", "token": "token", "limit": None}
        there = Appender(log, log.load(child))  # a process that has the class
        there.append(lambda task, now: task.activate(now, **claim))  # type: ignore[arg-type]
        there.append(lambda task, now: task.complete(1, now, value))
        with pytest.raises(TaskHeldError, match=late):
            task.result(PATIENCE)
        assert task.describe().hold == "unknown class"

    @register(name=late)
    @dataclass
    class Late:
        pages: int

    with AgentSystem(disk) as system:
        assert system.task("t").result(PATIENCE) == Late(3)


@colours
def test_the_first_of_several_children_is_the_first_in_the_log_and_the_others_are_not_lost(
    disk: Store, colour: str
) -> None:
    @agent(name="children: racing")
    def racing() -> list[Any]:
        slow, fast = spawn_child(waiting), spawn_child(double, 21)
        first = wait_any(slow, fast, Signal("never"), timeout=60)
        slow.cancel()
        return [first.index, first.value, how_it_ended(slow)]

    @agent(name="children: racing, async")
    async def racing_async() -> list[Any]:
        slow, fast = await spawn_child_async(waiting), await spawn_child_async(double_async, 21)
        first = await wait_any_async(slow, fast, Signal("never"), timeout=60)
        await slow.cancel_async()
        try:
            await slow
        except ChildError as error:
            return [first.index, first.value, error.status]
        return []

    with AgentSystem(disk) as system:
        found = system.spawn(racing if colour == "sync" else racing_async, id="t").result(PATIENCE)
    assert found == [1, 42, "cancelled"]


def test_a_child_may_be_waited_for_again_and_gives_a_fresh_copy_each_time(disk: Store) -> None:
    @agent(name="children: a list")
    def a_list() -> list[int]:
        return [1]

    @agent(name="children: twice")
    def twice() -> list[Any]:
        child = spawn_child(a_list)
        one = child.result()
        one.append(2)
        return [one, child.result(), wait_any(child).value]

    with AgentSystem(disk) as system:
        assert system.spawn(twice, id="t").result(PATIENCE) == [[1, 2], [1], [1]]


def test_children_are_spawned_side_by_side_in_gather_branch_and_map_steps(disk: Store) -> None:
    @agent(name="children: side by side")
    def side_by_side() -> list[Any]:
        pair = gather(lambda: spawn_child(double, 1).result(), lambda: spawn_child(double_async, 2).result())
        with branch("a key"):
            keyed = spawn_child(double, 3).result()
        mapped = map_steps(lambda number: spawn_child(double, number).result(), [4, 5, 6], limit=2)
        return [*pair, keyed, *mapped]

    with AgentSystem(disk) as system:
        assert system.spawn(side_by_side, id="t").result(PATIENCE) == [2, 4, 6, 8, 10, 12]
    assert len(set(children_of(disk))) == 6
    assert any("~a key" in child for child in children_of(disk))


async def doubled(number: int) -> int:
    return await (await spawn_child_async(double, number))


@agent(name="children: side by side, async")
async def side_by_side_async() -> list[Any]:
    pair = await gather(doubled(1), doubled(2))
    with branch("a key"):
        keyed = await doubled(3)
    return [*pair, keyed, *await map_steps(doubled, [4, 5, 6])]


@agent(name="children: a pair, async")
async def a_pair_async() -> tuple[int, int]:
    return await gather(doubled(1), doubled(2))


def test_async_children_are_spawned_in_gather_branch_and_map_steps(disk: Store) -> None:
    with AgentSystem(disk) as system:
        assert system.spawn(side_by_side_async, id="t").result(PATIENCE) == [2, 4, 6, 8, 10, 12]
    assert len(set(children_of(disk))) == 6


def test_async_children_are_spawned_side_by_side_wherever_it_dies() -> None:
    for run in every_crash_point(a_pair_async):
        run.check()
        assert run.result == (2, 4)


def test_a_held_child_leaves_its_parent_waiting_and_released_both_go_on(disk: Store) -> None:
    @agent(name="children: of a held one")
    def patient() -> str:
        return how_it_ended(spawn_child(to_be_held))

    with AgentSystem(disk) as system:
        task = system.spawn(patient, id="t")
        wait_for(lambda: len(children_of(disk)) == 1)
        (child,) = children_of(disk)
        wait_for(lambda: status(disk, child) == "held" and task.status() == "waiting")
        assert task.describe().waits == f"waits for child {child}"
        assert task.describe().children == (child,)
        system.task(child).resolve("1", fail=True, by="ann")
        assert task.result(PATIENCE) == "failed"
        assert task.describe().children == ()


# ------------------------------------------------------------------ places, and where they run


@colours
@pytest.mark.parametrize("most", [1, 2])
def test_a_parent_that_waits_for_its_children_does_not_starve_them(disk: Store, colour: str, most: int) -> None:
    with AgentSystem(disk, max_active=most) as system:
        tasks = [system.spawn(PARENTS[colour], [1, 2, 3], id=f"t{n}") for n in range(2)]
        assert [task.result(PATIENCE) for task in tasks] == [[2, 4, 6]] * 2


def test_a_parent_that_only_waits_for_its_children_to_end_does_not_starve_them(disk: Store) -> None:
    @agent(name="children: waiting at its end")
    def at_its_end() -> str:
        for number in range(3):
            spawn_child(double, number, on_parent_end="wait")
        return "done"

    with AgentSystem(disk, max_active=1) as system:
        assert system.spawn(at_its_end, id="t").result(PATIENCE) == "done"
    assert sorted(did) == [0, 1, 2]


def test_a_worker_that_is_there_for_one_task_runs_its_descendants_too_and_nobody_else(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client:
        client.spawn(ended, id="another")
    with AgentSystem(disk, only="t") as system:
        assert system.spawn(middle, 2, id="t").result(PATIENCE) == 8
    assert status(disk, "another") == "queued"


def test_a_worker_that_is_there_for_a_waiting_parent_goes_on_with_its_descendants(disk: Store) -> None:
    with Unclaimed(), AgentSystem(disk, only="t") as system:
        task = system.spawn(three_generations, id="t")
        wait_for(lambda: task.status() == "waiting" and len(disk.recorder.select_ids()) == 3)
        wait_for(lambda: [status(disk, one) for one in disk.recorder.select_ids()] == ["waiting", "waiting", "queued"])
    with AgentSystem(disk, only="t") as system:
        assert system.task("t").result(PATIENCE) == "at last"


@agent(name="children: three generations")
def three_generations() -> str:
    return spawn_child(second_generation).result()


@agent(name="children: second generation")
def second_generation() -> str:
    return spawn_child(unknown_to_workers).result()


def test_a_probe_of_a_parents_code_spawns_nothing(disk: Store) -> None:
    from actors.task_actor import probe

    with AgentSystem(disk, run=False) as client:
        client.spawn(parent, [1], id="t")
    log, runtime = TaskLog(disk), Runtime(None, VALUE_LIMIT)
    assert probe(Appender(log, log.load("t")), parent, runtime) is None
    assert disk.recorder.select_ids() == ["t"]


def test_a_parents_log_has_what_a_replay_needs_and_no_more(disk: Store) -> None:
    with AgentSystem(disk) as system:
        task = system.spawn(parent, [1], id="t")
        task.result(PATIENCE)
        kinds = [type(event) for event in task.events()]
    kept = [kind for kind in kinds if kind in (ChildSpawned, SignalReceived, WaitEnded)]
    assert kept == [ChildSpawned, SignalReceived, WaitEnded]
    assert not {Held, Failed} & set(kinds)
    assert kinds.count(Passivated) <= 1


def test_children_of_an_async_parent_that_is_cancelled_from_outside_stay_as_recorded(disk: Store) -> None:
    @agent(name="children: cancelled from outside")
    async def from_outside() -> list[Any]:
        child = await spawn_child_async(waiting)
        try:
            async with asyncio.timeout(0.05):
                await child
        except Exception as error:
            return [type(error).__name__, len(child.id) > 0]
        return []

    with AgentSystem(disk) as system:
        name, _ = system.spawn(from_outside, id="t").result(PATIENCE)
    assert name in ("StepError", "TimeoutError")
    assert len(children_of(disk)) == 1
