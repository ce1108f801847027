"""What becomes of a child that a person has to decide about when its parent ends, or calls it off once more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors import AgentSystem, FailTask, agent, compensate, receive, spawn_child, step
from domain.events import Cancelled, CancelRequested, Completed, Failed
from stores import Store, open_store
from tests.lives import PATIENCE, wait_for

undone: list[str] = []


@step
def undo(what: str) -> None:
    if not undone:
        undone.append("tried")
        raise ConnectionError("not now")
    undone.append(what)


@step
def book(what: str) -> None:
    compensate(undo, what)


@agent(name="held children: booker")
def booker(end: str) -> None:
    """Book, and fail, or wait to be called off; either way the undo fails, and the task is held."""
    book("room")
    if end == "fail":
        raise FailTask("no flight")
    receive("never")


@agent(name="held children: parent")
def parent(end: str) -> str:
    child = spawn_child(booker, end)
    receive("ready")
    if end == "call off":
        child.cancel("enough")
    receive("held")
    child.cancel("again")
    return child.id


@pytest.fixture(params=["memory:", "sqlite"])
def disk(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[Store]:
    undone.clear()
    url = "memory:" if request.param == "memory:" else f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as store:
        yield store


@pytest.mark.parametrize(("end", "kind"), [("fail", Failed), ("call off", Cancelled)])
def test_a_child_that_is_held_for_its_undo_keeps_what_it_owes_when_its_parent_calls_it_off_or_ends(
    disk: Store, end: str, kind: type
) -> None:
    """Before, the parent's second word ended it as a person's does: its undo was lost, and nobody had decided that."""
    with AgentSystem(disk) as system:
        task = system.spawn(parent, end, id="t")
        wait_for(lambda: bool(disk.recorder.select_entries(agent=booker.name)))
        (row,) = disk.recorder.select_entries(agent=booker.name)
        child = system.task(row.id)
        wait_for(lambda: child.status() in ("waiting", "held"))
        task.signal("ready")
        wait_for(lambda: child.status() == "held")
        task.signal("held")
        assert task.result(PATIENCE) == child.id
        assert child.status() == "held"
        child.resolve("undo/1", rerun=True, by="ann")
        wait_for(lambda: child.status() in ("failed", "cancelled"))
        assert undone == ["tried", "room"]
        assert isinstance(task.events()[-1], Completed)
        assert isinstance(child.events()[-1], kind)
        assert sum(isinstance(event, CancelRequested) for event in child.events()) == (end == "call off")
