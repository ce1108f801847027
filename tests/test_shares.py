"""Which of several workers takes a task first, and that nobody waits for it for long."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from actors import AgentSystem, agent, step
from actors.shares import LEFT_FOR, Shares, chosen
from domain.events import Activated
from stores import IndexRow, open_store
from tests.lives import PATIENCE

LIVE: dict[str, dict[str, Any]] = {name: {"agents": ["f"], "only": None} for name in "uvw"}


def row(task: str, agent: str = "f", owner: str | None = None) -> IndexRow:
    return IndexRow(task, "birth", 1, 0, "queued", agent, 1.0, 1.0, due=1.0, owner=owner)


def test_all_choose_alike_and_each_has_its_share() -> None:
    rows = [row(f"t{number}") for number in range(300)]
    picks = [{chosen(one, LIVE, asking) for asking in LIVE} for one in rows]
    assert all(len(pick) == 1 for pick in picks)
    counts = Counter(pick.pop() for pick in picks)
    assert min(counts.values()) > 70


def test_only_who_can_take_a_task_is_chosen_for_it() -> None:
    live = LIVE | {"v": {"agents": ["g"], "only": None}, "w": {"agents": ["f"], "only": "t1"}, "x": {}}
    assert {chosen(row(f"t{number}"), live, "u") for number in range(30)} == {"u"}
    assert chosen(row("t", "g"), live, "v") == "v"
    assert chosen(row("t1"), live, "w") == "w"  # who runs this task alone waits for nobody


def test_what_is_anothers_is_left_to_it_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("actors.shares.time.monotonic", lambda: now)
    shares = Shares("u")
    theirs = next(one for number in range(30) if chosen(one := row(f"t{number}"), LIVE, "u") != "u")
    mine = next(one for number in range(30) if chosen(one := row(f"t{number}"), LIVE, "u") == "u")
    shares.begin()
    assert not shares.leaves(mine, LIVE)
    assert not shares.left
    assert shares.leaves(theirs, LIVE)
    assert shares.left
    assert not shares.leaves(theirs._replace(owner="u"), LIVE)  # ours already: it comes back from a wait
    now += 2 * LEFT_FOR
    shares.begin()
    assert not shares.leaves(theirs, LIVE)
    assert not shares.left


@step
def once(number: int) -> int:
    return number


@agent
def short(number: int) -> int:
    return once(number)


def test_tasks_of_a_worker_that_takes_none_are_taken_by_the_other() -> None:
    """The one that is chosen for half of them has no place: it looks alive, and is another program's."""
    with open_store("memory:") as store, AgentSystem(store) as system:
        lock = store.workers.hold("idle", {"agents": [short.name], "only": None})
        tasks = [system.spawn(short, number) for number in range(20)]
        assert [task.result(PATIENCE) for task in tasks] == list(range(20))
        assert {e.worker for task in tasks for e in task.events() if isinstance(e, Activated)} != {"idle"}
        lock.release()
