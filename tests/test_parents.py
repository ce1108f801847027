"""What a parent's end means for its children: it ends when each has what its policy owes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from actors import (
    AgentSystem,
    Entity,
    FailTask,
    StoreUnavailableError,
    TaskCancelled,
    TaskCancelledError,
    TaskFailedError,
    TaskHeldError,
    TaskRef,
    agent,
    compensate,
    entity,
    event,
    open_store,
    receive,
    receive_async,
    request_approval,
    spawn_child,
    spawn_child_async,
    step,
)
from actors.task_log import TaskLog
from actors.testing import FakeClock, crash_plans, every_crash_point, run_through_crashes
from domain.events import Concluded, Held, Released, RestartAsked, Restarted
from domain.state import ENDED
from stores import Store
from stores.crash import CrashingStore, FaultPlan
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
    fail,
    gates,
    how_it_ended,
    logs,
    note,
    running,
    stand,
    status,
    tell_all,
    to_be_held,
    unknown_to_workers,
    waiting,
)
from tests.lives import PATIENCE, wait_for
from tests.scenario_kit import World

pytestmark = pytest.mark.usefixtures("families")
colours = pytest.mark.parametrize("colour", sorted(PARENTS))


STATES: dict[str, Any] = {
    "queued": unknown_to_workers,
    "running": running,
    "waiting": waiting,
    "held": to_be_held,
    "completed": ended,
}


def end(how: str) -> str:
    if how == "failed":
        raise FailTask("on purpose")
    if how == "failed step":
        fail("on purpose")
    return "done"


@agent(name="children: ending")
def ending(how: str, policy: Any) -> str:
    for one in STATES.values():
        spawn_child(one, on_parent_end=policy)
    receive("go")
    return end(how)


@agent(name="children: ending, async")
async def ending_async(how: str, policy: Any) -> str:
    for one in STATES.values():
        await spawn_child_async(one, on_parent_end=policy)
    await receive_async("go")
    if how == "failed step":
        await fail.aio("on purpose")
    return end(how)


ENDS = {
    "completed": "completed",
    "failed": "failed",
    "failed step": "failed",
    "cancel": "cancelled",
    "deadline": "cancelled",
}


@pytest.mark.parametrize("policy", ["cancel", "wait", "abandon"])
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(("kind", "program"), [("memory", ending), ("sqlite", ending_async)], ids=["sync", "async"])
def test_a_parent_ends_when_each_child_has_what_its_policy_owes(
    tmp_path: Path, kind: str, program: Any, how: str, policy: str
) -> None:
    clock, order = FakeClock(), Order()
    url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/tasks.db"
    with open_store(url) as disk, AgentSystem(CrashingStore(disk, order), clock=clock) as system:
        with Unclaimed():
            deadline = 100 if how == "deadline" else None
            task = system.spawn(program, how, policy, id="t", deadline=deadline)
            wait_for(lambda: task.status() == "waiting")
            children = dict(zip(STATES, children_of(disk), strict=True))
            wait_for(lambda: all(status(disk, children[state]) == state for state in STATES))
            bring_about(task, how, clock)
            if policy == "wait":
                wait_for(lambda: any(isinstance(event, Concluded) for event in task.events()))
                let_go(system, children)
            else:
                wait_for(lambda: task.status() == ENDS[how])
        if policy == "wait":  # all but the one that nobody has claimed
            wait_for(lambda: sum(status(disk, child) in ENDED for child in children.values()) == 5)
        wait_for(lambda: task.status() == ENDS[how])
        if policy == "abandon":
            assert {state: status(disk, child) for state, child in children.items() if state != "queued"} == {
                state: state for state in STATES if state != "queued"
            }
            let_go(system, children)
        gates["gate"].set()
        wait_for(lambda: all(status(disk, child) in ENDED for child in children.values()))
        found = {state: status(disk, child) for state, child in children.items()}
        if policy == "cancel":
            assert found == dict.fromkeys(STATES, "cancelled") | {"completed": "completed"}
            assert did == []
            with pytest.raises(TaskCancelledError, match="its parent t has ended"):
                system.task(children["waiting"]).result()
        else:
            assert found == dict.fromkeys(STATES, "completed") | {"held": "failed"}
        tell_all(disk)
        check_families(disk, order)


def bring_about(task: TaskRef[Any], how: str, clock: FakeClock) -> None:
    if how == "cancel":
        assert task.cancel("not needed", by="ann").accepted
    elif how == "deadline":
        clock.advance(100)
    else:
        task.signal("go")


def let_go(system: AgentSystem, children: dict[str, str]) -> None:
    system.task(children["waiting"]).signal("word", "go on")
    system.task(children["held"]).resolve("1", fail=True, by="ann")
    gates["gate"].set()


@pytest.mark.parametrize("policy", ["cancel", "wait", "abandon"])
@pytest.mark.parametrize("program", ["sync", "async"])
def test_wherever_it_dies_a_parent_ends_only_when_each_child_has_what_is_owed(program: str, policy: str) -> None:
    made: list[tuple[Store, Order]] = []

    def new_store() -> Store:
        made.append((open_store("memory:"), Order()))
        return CrashingStore(*made[-1])

    for run in every_crash_point(LEAVING[program], policy, new_store=new_store):
        run.check()
        assert run.status == "failed"
        disk, order = made[-1]
        tell_all(disk)
        check_families(disk, order)
        assert len(children_of(disk, "task")) == 2


@agent(name="children: leaving")
def leaving(policy: Any) -> None:
    spawn_child(double, 1, on_parent_end=policy)
    spawn_child(ended, on_parent_end=policy)
    raise FailTask("on purpose")


@agent(name="children: leaving, async")
async def leaving_async(policy: Any) -> None:
    await spawn_child_async(double_async, 1, on_parent_end=policy)
    await spawn_child_async(ended, on_parent_end=policy)
    raise FailTask("on purpose")


LEAVING: dict[str, Any] = {"sync": leaving, "async": leaving_async}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(deadline=None, max_examples=8)
@given(plan=crash_plans(5, 40))
def test_a_cancelled_family_with_grandchildren_ends_as_a_whole_whatever_crashes(
    tmp_path_factory: pytest.TempPathFactory, kind: str, plan: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("generations")
    order = Order()
    with open_store("memory:" if kind == "memory" else f"sqlite:///{folder}/tasks.db") as disk:
        run = run_through_crashes(
            grandparent,
            plan=plan,
            store=CrashingStore(disk, order),
            meanwhile=call_off_when_it_waits,
        )
        run.check()
        assert run.status == "cancelled"
        with AgentSystem(CrashingStore(disk, order), strikes=None) as system:
            for task_id in disk.recorder.select_ids():
                wait_for(lambda task_id=task_id: system.task(task_id).status() in ENDED)  # type: ignore[misc]
        tell_all(disk)
        check_families(disk, order)


def call_off_when_it_waits(task: TaskRef[Any]) -> None:
    wait_for(lambda: task.status() in ("waiting", *ENDED))
    task.cancel("all of you", by="ann")


@agent(name="children: grandparent")
def grandparent() -> None:
    with_grandchildren = spawn_child(parent_of_waiting, on_parent_end="wait")
    spawn_child(parent_of_waiting)
    with_grandchildren.cancel("before")
    receive("never")


@agent(name="children: of waiting ones")
def parent_of_waiting() -> None:
    spawn_child(waiting)
    spawn_child(waiting).result()


def test_a_parent_that_is_called_off_while_it_is_held_calls_its_children_off(disk: Store) -> None:
    @agent(name="children: held with children", on_failure="hold")
    def held_with_children() -> None:
        spawn_child(waiting)
        spawn_child(waiting, on_parent_end="abandon")
        fail("held")

    order = Order()
    with AgentSystem(CrashingStore(disk, order)) as system:
        task = system.spawn(held_with_children, id="t")
        wait_for(lambda: task.status() == "held")
        first, second = children_of(disk)
        wait_for(lambda: status(disk, first) == status(disk, second) == "waiting")
        assert task.cancel("enough").accepted
        wait_for(lambda: task.status() == "cancelled" and status(disk, first) == "cancelled")
        assert status(disk, second) == "waiting"
        system.task(second).signal("word")
        wait_for(lambda: status(disk, second) == "completed")
        check_families(disk, order)


def test_a_parent_that_cleans_up_may_still_spawn_and_wait_for_children(disk: Store) -> None:
    @agent(name="children: cleaning up")
    def cleaning_up() -> None:
        try:
            receive("never")
        except TaskCancelled:
            note(spawn_child(double, 3).result())
            raise

    with AgentSystem(disk, max_active=1) as system:
        task = system.spawn(cleaning_up, id="t")
        wait_for(lambda: task.status() == "waiting")
        task.cancel("stop")
        with pytest.raises(TaskCancelledError):
            task.result(PATIENCE)
    assert did == [3, 6]
    assert logs(disk)["t"].ending is not None
    assert not logs(disk)["t"].ending.cut  # type: ignore[union-attr]


def test_a_spawn_where_the_task_was_called_off_raises_and_makes_no_child(disk: Store) -> None:
    @agent(name="children: too late")
    def too_late() -> None:
        stand()
        spawn_child(double, 1)

    with AgentSystem(disk) as system:
        task = system.spawn(too_late, id="t")
        wait_for(lambda: bool(task.events()[-1:]) and task.events()[-1].TOPIC == "step.started")
        task.cancel("stop")
        gates["gate"].set()
        with pytest.raises(TaskCancelledError):
            task.result(PATIENCE)
    assert disk.recorder.select_ids() == ["t"]
    assert [record.kind for record in logs(disk)["t"].steps.values()][-1] in ("spawn", "step")


def test_cancelling_a_child_is_a_step_done_once(disk: Store) -> None:
    @agent(name="children: calling off")
    def calling_off() -> list[str]:
        child = spawn_child(waiting)
        child.cancel("one")
        child.cancel("two")
        done = spawn_child(ended)
        done.result()
        done.cancel("three")
        return [how_it_ended(child), how_it_ended(done)]

    with AgentSystem(disk) as system:
        assert system.spawn(calling_off, id="t").result(PATIENCE) == ["cancelled", "completed"]
    tasks = logs(disk)
    first, second = tasks["t"].children
    cancel = tasks[first].cancel
    assert cancel is not None
    assert (cancel.reason, cancel.by) == ("one", "task t")
    assert tasks[second].cancel is None
    assert [record.name for record in tasks["t"].steps.values()].count("perdure.cancel_child") == 3


def test_a_child_that_cannot_be_called_off_holds_its_parent_after_the_others_were(world: World) -> None:
    """Nothing is appended to what cannot be read: the parent has to wait for a person, and its ending with it."""

    @agent(name="children: of a damaged one")
    def of_a_damaged_one() -> None:
        spawn_child(waiting)
        spawn_child(waiting)
        receive("go")

    order = Order()
    with open_store(world.url) as disk, AgentSystem(CrashingStore(disk, order)) as system:
        task = system.spawn(of_a_damaged_one, id="t")
        wait_for(lambda: task.status() == "waiting")
        damaged, sound = children_of(disk)
        wait_for(lambda: status(disk, damaged) == status(disk, sound) == "waiting")
        world.flip(damaged, 2, 20)
        task.signal("go")
        with pytest.raises(TaskHeldError, match=f"child {damaged} cannot be called off: .* version 2"):
            task.result(PATIENCE)
        assert status(disk, sound) in ("cancelled", "running", "queued")
        world.flip(damaged, 2, 20)
        task.release(by="ann")
        assert task.result(PATIENCE) is None
        wait_for(lambda: status(disk, damaged) == status(disk, sound) == "cancelled")
        kinds = [type(event) for event in task.events()]
        assert kinds.count(Held) == kinds.count(Released) == kinds.count(Concluded) == 1
        tell_all(disk)
        check_families(disk, order)


def test_a_store_that_is_away_while_children_are_called_off_is_no_strike(disk: Store) -> None:
    """The parent rests and goes on; nobody has to release it."""

    class Away(FaultPlan):
        def reach(self, point: str, **facts: object) -> None:
            if facts.get("topics") == ("cancel.requested",):
                super().reach(point, **facts)

    @agent(name="children: while the store is away")
    def while_it_is_away() -> str:
        child = spawn_child(waiting)
        receive("go")
        return child.id

    plan = Away(2, "append.before", lambda: StoreUnavailableError("away", url="here", reason="test"))
    with AgentSystem(CrashingStore(disk, plan), strikes=1) as system:
        task = system.spawn(while_it_is_away, id="t")
        wait_for(lambda: task.status() == "waiting")
        (child,) = children_of(disk)
        wait_for(lambda: status(disk, child) == "waiting")
        task.signal("go")
        assert task.result(PATIENCE) == child
        wait_for(lambda: status(disk, child) == "cancelled")
    assert plan.failed == 2
    assert not [event for event in log_of(disk) if isinstance(event, Restarted | Held)]


def log_of(disk: Store) -> list[Any]:
    return list(TaskLog(disk).events.get("t"))


def test_a_parent_in_one_process_ends_when_its_children_have_ended_in_another(disk: Store) -> None:
    """Two workers, of which each knows the agents of one generation only."""

    @agent(name="children: waiting for elsewhere")
    def for_elsewhere() -> str:
        child = spawn_child(unknown_to_workers)
        spawn_child(unknown_to_workers, on_parent_end="wait")
        return child.result()

    with AgentSystem(disk, only="t") as here:
        with Unclaimed():
            task = here.spawn(for_elsewhere, id="t")
            wait_for(lambda: task.status() == "waiting" and len(children_of(disk)) == 2)
        for child in children_of(disk):
            with AgentSystem(disk, only=child) as there:
                there.task(child).result(PATIENCE)
        assert task.result(PATIENCE) == "at last"
    tell_all(disk)
    check_families(disk)


def test_a_child_of_a_groups_member_is_no_member_and_its_crashes_are_nobody_elses(disk: Store) -> None:
    @agent(name="children: crashing")
    def crashing() -> None:
        raise ZeroDivisionError

    @agent(name="children: in a group")
    def in_a_group() -> Any:
        child = spawn_child(crashing)
        stand()
        return child.id

    with AgentSystem(disk) as system:
        group = system.group("children: group", strategy="one_for_all")
        tasks = [group.spawn(in_a_group, id="t"), group.spawn(running, id="sibling")]
        wait_for(lambda: len(children_of(disk)) == 1 and status(disk, children_of(disk)[0]) == "held")
        gates["gate"].set()
        assert [task.result(PATIENCE) for task in tasks] == [children_of(disk)[0], "stood"]
        assert not [event for task in tasks for event in task.events() if isinstance(event, RestartAsked)]
        assert logs(disk)[children_of(disk)[0]].group == ""


def test_a_child_may_ask_entities_and_its_parent_too(disk: Store) -> None:
    @agent(name="children: spending")
    def spending(amount: int) -> int:
        return entity(Purse, "shared").ask(Purse.spend, amount)

    @agent(name="children: spending with others")
    def spending_with_others() -> int:
        for child in [spawn_child(spending, 1) for _ in range(5)]:
            child.result()
        return entity(Purse, "shared").ask(Purse.spend, 10)

    with AgentSystem(disk, max_active=2) as system:
        assert system.spawn(spending_with_others, id="t").result(PATIENCE) == 15


class Purse(Entity):
    TOPIC = "children-purse"

    def __init__(self) -> None:
        self.spent = 0

    def spend(self, amount: int) -> int:
        self.book(amount)
        return self.spent

    @event("Spent")
    def book(self, amount: int) -> None:
        self.spent += amount


def test_what_a_replay_would_meet_again_fails_the_task_and_its_undos_run(disk: Store) -> None:
    """A wait that timed out and a child without a result are outcomes in the log: no restart could mend them."""
    undone: list[str] = []

    @step(name="parents: unbook")
    def unbook(what: str) -> None:
        undone.append(what)

    @step(name="parents: book")
    def book(what: str) -> None:
        compensate(unbook, what)

    @agent(name="parents: sold out")
    def sold_out() -> None:
        raise FailTask("no flights")

    @agent(name="parents: too late")
    def too_late() -> None:
        book("a")
        request_approval("really?").wait(timeout=5)

    @agent(name="parents: in vain")
    def in_vain() -> None:
        book("b")
        spawn_child(sold_out).result()

    with AgentSystem(disk, clock=FakeClock(jump=True)) as system:
        for late, kind in ((too_late, "WaitTimeoutError"), (in_vain, "ChildError")):
            task = system.spawn(late, id=late.name)
            with pytest.raises(TaskFailedError, match=kind):
                task.result(PATIENCE)
            assert task.describe().strikes == 0
    assert undone == ["a", "b"]


@pytest.mark.parametrize("how", ["cancelled", "at its deadline"])
def test_a_parent_that_is_done_and_waits_can_still_be_called_off_and_ends_as_decided(disk: Store, how: str) -> None:
    @agent(name="parents: waits for ever")
    def for_ever() -> None:
        receive("never")

    @agent(name="parents: done")
    def done() -> str:
        spawn_child(for_ever, on_parent_end="wait")
        return "done"

    with AgentSystem(disk, clock=FakeClock(jump=True)) as system:
        task = system.spawn(done, id="t", deadline=60 if how == "at its deadline" else None)
        if how == "cancelled":
            wait_for(lambda: task.status() == "waiting")
            answer = task.cancel("enough", by="ann")
            assert answer.accepted
            assert not task.cancel().accepted
        assert task.result(PATIENCE) == "done"
        (child,) = [one for one in system.tasks() if one.id != "t"]
        assert child.status() == "cancelled"
