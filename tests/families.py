"""Parents and their children: the order of all that a store is told, and what has to be true of a family then."""

from __future__ import annotations

import threading
from typing import Any

from actors import ChildError, ChildRef, FailTask, agent, receive, spawn_child, spawn_child_async, step
from actors import definitions as definitions_module
from actors.definitions import Agent
from actors.mapper import is_stream
from actors.outbox import Outbox
from actors.task_log import TaskLog
from domain.events import Cancelled, Completed, Created, Failed, SignalReceived
from domain.state import ABANDON, CANCEL, WAIT
from domain.task import AgentTask
from domain.waits import child_name
from stores import Store
from tests.lives import PATIENCE

gates: dict[str, threading.Event] = {}
did: list[Any] = []

ENDINGS = {Completed.TOPIC, Failed.TOPIC, Cancelled.TOPIC}


class Order:
    """A plan by which nothing goes wrong: it writes down what is appended, in the order of the commits."""

    dead = False

    def __init__(self) -> None:
        self.appends: list[tuple[str, str]] = []
        self._mutex = threading.Lock()

    def reach(self, point: str, **facts: object) -> None:
        if point == "append.inside":  # in the transaction, and one is in it at a time
            with self._mutex:
                self.appends += [(str(facts["id"]), topic) for topic in facts["topics"]]  # type: ignore[attr-defined]
                self.appends += [(child, Created.TOPIC) for child in facts.get("births", ())]  # type: ignore[attr-defined]

    def check(self) -> None:
        return

    def place(self, task: str, *topics: str) -> int | None:
        """Give the place of the first append of one of these topics to a task; None where there is none."""
        return next((n for n, (one, topic) in enumerate(self.appends) if one == task and topic in topics), None)


def logs(store: Store) -> dict[str, AgentTask]:
    """Give every task of a store, as its log has it."""
    log = TaskLog(store)
    return {task_id: log.load(task_id) for task_id in store.recorder.select_ids() if not is_stream(task_id)}


def tell_all(store: Store) -> None:
    """Tell all parents what they have to be told."""
    outbox = Outbox(TaskLog(store), lambda _: None)
    while outbox.empty():
        pass


def check_families(store: Store, order: Order | None = None) -> None:
    """Assert what is true of all parents and children, wherever whoever has died."""
    tasks = logs(store)
    for task in tasks.values():
        recorded = {child for child, parent in ((one.id, one.parent) for one in tasks.values()) if parent == task.id}
        assert recorded == set(task.children), "a child without its record, or a record without its child"
        words = [letter.name for letter in task.letters.values() if letter.name.startswith("~child ")]
        assert len(words) == len(set(words)), "a parent was told twice"
        assert all(tasks[child].ending for child in task.children if child_name(child) in task.mail)
        if task.ending is not None:
            check_owed(task, tasks, order)


def check_owed(parent: AgentTask, tasks: dict[str, AgentTask], order: Order | None) -> None:
    """Assert that the ending of a parent came when each child had what its policy owes."""
    for child, policy in parent.children.items():
        assert policy in (CANCEL, WAIT, ABANDON)
        due = {CANCEL: {"cancel.requested", *ENDINGS}, WAIT: ENDINGS, ABANDON: set[str]()}[policy]
        if policy == CANCEL:
            assert tasks[child].ending is not None or tasks[child].cancel is not None
        elif policy == WAIT:
            assert tasks[child].ending is not None
        else:
            assert tasks[child].cancel is None, "nobody has called it off"
        if order is not None and due:
            mine, ended = order.place(child, *due), order.place(parent.id, *ENDINGS)
            assert mine is not None
            assert ended is not None
            assert mine < ended, f"{parent.id} has ended before {child} had what {policy!r} owes"


def words_to(store: Store, parent: str) -> list[str]:
    """List the children of whose end a parent's log tells, in its order."""
    found = [event for event in TaskLog(store).events.get(parent) if isinstance(event, SignalReceived)]
    return [event.name.removeprefix("~child ") for event in found if event.name.startswith("~child ")]


# ------------------------------------------------------------------ programs


@step(name="children: note")
def note(what: Any) -> Any:
    did.append(what)
    return what


@step(name="children: fail")
def fail(what: str) -> None:
    raise LookupError(what)


@step(name="children: stand")
def stand() -> str:
    assert gates["gate"].wait(PATIENCE)
    return "stood"


@agent(name="children: double")
def double(number: int) -> int:
    return int(note(number)) * 2


@agent(name="children: double, async")
async def double_async(number: int) -> int:
    return int(await note.aio(number)) * 2


@agent(name="children: failing")
def failing(what: str) -> None:
    fail(what)


@agent(name="children: giving up")
def giving_up(what: str) -> None:
    raise FailTask(what)


@agent(name="children: waiting")
def waiting() -> Any:
    return receive("word")


@agent(name="children: running")
def running() -> str:
    stood = stand()
    note("after standing")
    return stood


@agent(name="children: held", on_failure="hold")
def to_be_held() -> str:
    fail("held")
    return "never"


@agent(name="children: ended")
def ended() -> str:
    return "at once"


@agent(name="children: parent")
def parent(numbers: list[int]) -> list[int]:
    children = [spawn_child(double, number) for number in numbers]
    return [child.result() for child in children]


@agent(name="children: parent, async")
async def parent_async(numbers: list[int]) -> list[int]:
    children = [await spawn_child_async(double_async, number) for number in numbers]
    return [await child for child in children]


@agent(name="children: only one worker knows")
def unknown_to_workers() -> str:
    return "at last"


class Unclaimed:
    """Keeps the tasks of an agent queued: its name is taken out of what this process knows."""

    def __enter__(self) -> None:
        del definitions_module._agents[unknown_to_workers.name]

    def __exit__(self, *_: object) -> None:
        definitions_module._agents[unknown_to_workers.name] = unknown_to_workers


@agent(name="children: middle")
def middle(number: int) -> int:
    return sum(child.result() for child in [spawn_child(double, number), spawn_child(double_async, number)])


def how_it_ended(child: ChildRef[Any]) -> str:
    try:
        child.result()
    except ChildError as error:
        return error.status
    return "completed"


PARENTS: dict[str, Agent[[list[int]], Any] | Any] = {"sync": parent, "async": parent_async}


def children_of(store: Store, task: str = "t") -> list[str]:
    return list(logs(store)[task].children)


def status(store: Store, task: str) -> str:
    row = store.recorder.select_entry(task)
    assert row is not None
    return row.status
