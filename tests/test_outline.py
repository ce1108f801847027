"""Trees to look at: of a process, and of a store, from any process."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import AgentSystem, Entity, TreeNode, agent, event, step
from actors.outline import SHOWN, node
from stores import Store, open_store
from tests.lives import wait_for
from tests.shell import PERDURE

SOON = 20
entered, go_on = threading.Event(), threading.Event()


class Till(Entity):
    TOPIC = "outline.till"

    def __init__(self) -> None:
        self.coins = 0

    @event("Paid")
    def pay(self) -> None:
        self.coins += 1


@step
def stands(_name: str) -> None:
    entered.set()
    assert go_on.wait(SOON)


@agent(name="outline.stands")
def standing(name: str) -> None:
    stands(name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    entered.clear()
    go_on.clear()
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as opened:
        yield opened


def test_a_tree_is_drawn_with_a_branch_for_each_child() -> None:
    tree = TreeNode(
        "store", "here", "", (TreeNode("worker", "w", "busy", (TreeNode("task", "t"),)), TreeNode("x", "y"))
    )
    assert str(tree) == "store here\n├── worker w  busy\n│   └── task t\n└── x y"


def test_of_very_many_children_the_rest_is_counted() -> None:
    drawn = str(node("group", "g", "", (TreeNode("task", f"t{n}") for n in range(SHOWN + 7))))
    assert drawn.splitlines()[-1] == "└── … and 7 more"
    assert len(drawn.splitlines()) == SHOWN + 2


def test_the_tree_of_a_process_has_its_supervisors_and_the_actors_under_each(store: Store) -> None:
    with AgentSystem(store) as system:
        with system.group("crew", strategy="one_for_all") as crew:
            crew.spawn(standing, "a", id="a")
            crew.entity(Till, "bar", restart="permanent")
        system.entity(Till, "door").ask(Till.pay)
        assert entered.wait(SOON)
        lines = str(system.tree()).splitlines()
        assert lines[0].startswith("supervisor w")
        assert lines[1:3] == ["├── lease  alive", "├── recovery  alive"]
        at = lines.index("├── group crew")
        assert lines[at + 1 : at + 3] == [
            "│   ├── task a  outline.stands  running  step 1 stands",
            "│   └── entity outline.till bar  permanent, idle",
        ]
        assert lines[-1] == "└── entity outline.till door  transient, idle"
        go_on.set()
        system.task("a").result(SOON)
        wait_for(lambda: "task a" not in str(system.tree()))


def test_a_client_has_no_supervisor(store: Store) -> None:
    with AgentSystem(store, run=False) as client:
        assert str(client.tree()) == "client  runs no tasks"


def test_perdure_tree_draws_workers_groups_and_what_is_open(store: Store) -> None:
    def drawn() -> list[str]:
        done = subprocess.run(
            [*PERDURE, "tree", "--store", store.url],
            env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    with AgentSystem(store, max_active=1) as system:
        with system.group("crew", strategy="rest_for_one") as crew:
            crew.spawn(standing, "a", id="a")
            crew.entity(Till, "bar")
        assert entered.wait(SOON)
        system.spawn(standing, "b", id="b")
        lines = drawn()
        assert lines[0] == f"store {store.url}"
        assert lines[1].startswith("├── worker w")
        assert "outline.stands" in lines[1]
        assert "pid " in lines[1]
        assert lines[2:] == [
            "│   └── task a  outline.stands  running  step 1 stands",
            "├── group crew  rest_for_one",
            "│   ├── task a  outline.stands  running  step 1 stands",
            "│   └── entity outline.till bar  transient",
            "└── tasks 1 queued",
        ]
        go_on.set()
        system.task("b").result(SOON)
    assert drawn()[1] == "└── group crew  rest_for_one"
