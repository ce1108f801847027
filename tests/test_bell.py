"""New tasks are begun with at once, without a look at the store; whoever stands in line goes before them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from actors import AgentSystem, TaskCancelledError, UnknownTaskError, agent, receive, sleep
from actors.bell import Bell, NewTask
from domain.events import Created
from domain.fold import fold
from stores import IndexRow, open_store
from stores.crash import CrashingStore, CrashPlan

TIMEOUT = 20.0


def made(task_id: str) -> NewTask:
    task = fold(None, [Created(task_id, 1, 1.0, "birth", "agent", [[], {}], "", {}, {})])
    assert task is not None
    return NewTask(task)


@agent(name="bell: quick")
def quick(number: int) -> int:
    return number


@agent(name="bell: sleeper")
def sleeper() -> str:
    sleep(0.5)
    return "slept"


def test_a_ring_tells_what_it_is_for_and_is_taken_once() -> None:
    bell = Bell()
    assert not bell.wait(0)
    one, other = made("a"), made("b")
    bell.hand(one)
    bell.hand(other)
    assert bell.wait(0)
    assert bell.take() == ([one, other], False)
    assert not bell.wait(0)
    bell.set()
    bell.hand(one)
    assert bell.take() == ([one], True)
    assert bell.take() == ([], False)


def test_no_look_that_was_asked_for_is_lost_while_another_is_being_taken() -> None:
    bell, asked, seen = Bell(), 0, threading.Semaphore(0)

    def ask() -> None:
        for _ in range(2000):
            bell.set()
            assert seen.acquire(timeout=TIMEOUT)

    asker = threading.Thread(target=ask)
    asker.start()
    while asked < 2000:
        assert bell.wait(TIMEOUT)
        if bell.take()[1]:
            asked += 1
            seen.release()
    asker.join(TIMEOUT)
    assert not asker.is_alive()


def test_new_tasks_are_begun_without_a_look_at_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    with open_store("memory:") as store:
        select = store.recorder.select_ready

        def counted(now: float, **more: object) -> list[IndexRow]:
            looks.append(now)
            return select(now, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(store.recorder, "select_ready", counted)
        with AgentSystem(store) as system:
            assert system.spawn(quick, -1).result(TIMEOUT) == -1
            before = len(looks)
            for number in range(200):
                assert system.spawn(quick, number).result(TIMEOUT) == number
            assert len(looks) - before < 50


def test_a_stream_of_new_tasks_does_not_put_off_what_is_due() -> None:
    over = threading.Event()
    with AgentSystem("memory:") as system:

        def stream() -> None:
            number = 0
            while not over.is_set():
                number += 1
                system.spawn(quick, number).result(TIMEOUT)

        task = system.spawn(sleeper)
        spawner = threading.Thread(target=stream)
        spawner.start()
        try:
            assert task.result(TIMEOUT) == "slept"
        finally:
            over.set()
            spawner.join(TIMEOUT)


def test_who_stands_in_line_goes_before_who_comes_later() -> None:
    gate, order = threading.Event(), list[int]()

    @agent(name="bell: in line")
    def in_line(number: int) -> None:
        order.append(number)
        if number == 0:
            gate.wait(TIMEOUT)

    with AgentSystem("memory:", max_active=1) as system:
        tasks = [system.spawn(in_line, number) for number in range(6)]
        gate.set()
        late = system.spawn(in_line, 6)
        for task in (*tasks, late):
            task.result(TIMEOUT)
    assert order == list(range(7))


class Meddling(CrashPlan):
    """Does something once, right before the first claim."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        super().__init__(None)
        self.meddle = [meddle]
        self.done = threading.Event()

    def reach(self, point: str, **facts: object) -> None:
        if point == "append.before" and "task.activated" in str(facts["topics"]) and self.meddle:
            self.meddle.pop()()
            self.done.set()
        super().reach(point, **facts)


@pytest.mark.parametrize("what", ["signal", "cancel", "delete", "another life"])
def test_what_befalls_a_new_task_before_it_is_claimed_is_seen(what: str, tmp_path: Path) -> None:
    entered: list[int] = []

    @agent(name="bell: meddled with")
    def meddled(number: int) -> str:
        entered.append(number)
        return str(receive("word")) if number == 1 else "another"

    def meddle() -> None:
        task = client.task("new")
        if what == "signal":
            task.signal("word", "heard")
            return
        task.cancel("not needed")
        if what != "cancel":
            task.delete()
        if what == "another life":
            client.spawn(meddled, 2, id="new")

    disk = open_store(f"sqlite:///{tmp_path}/tasks.db")
    meddling = Meddling(meddle)
    with disk, AgentSystem(disk, run=False) as client, AgentSystem(CrashingStore(disk, meddling)) as system:
        task = system.spawn(meddled, 1, id="new", deadline=60)  # so that it is claimed only later
        assert meddling.done.wait(TIMEOUT)
        if what == "signal":
            assert task.result(TIMEOUT) == "heard"
        elif what == "cancel":
            with pytest.raises(TaskCancelledError):
                task.result(TIMEOUT)
        elif what == "delete":
            with pytest.raises(UnknownTaskError):
                task.result(TIMEOUT)
        else:
            assert client.task("new").result(TIMEOUT) == "another"
    assert entered == {"signal": [1], "another life": [2]}.get(what, [])
