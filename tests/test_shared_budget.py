"""One budget, many agents, several processes, real SIGKILLs: never overspent, nothing booked twice, nothing lost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

from actors import AgentSystem, TaskRef
from domain.events import Activated, Created, StepFailed, StepSucceeded
from domain.state import idempotency_key
from stores import open_store
from tests.budgets import Budget, bookings, replayed, rows, spent
from tests.lives import wait_for
from tests.spending import async_spender, spender

ROOT = Path(__file__).parent.parent
TASKS, WORKERS, DEATHS = 24, 3, 4


def start(url: str, nth: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.spending", url, str(nth)]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def work_through_deaths(url: str, chance: random.Random) -> int:
    """Keep workers at work until one of them has seen all tasks end; gives how many were killed."""
    deaths, workers = 0, [start(url, chance.randint(10, 120)) for _ in range(WORKERS)]
    try:
        while workers:
            wait_for(lambda: any(worker.poll() is not None for worker in workers), 60)
            for worker in [worker for worker in workers if worker.poll() is not None]:
                workers.remove(worker)
                _, errors = worker.communicate()
                assert worker.returncode in (0, -signal.SIGKILL), errors
                if worker.returncode:
                    deaths += 1
                    workers.append(start(url, chance.randint(10, 120) if deaths < DEATHS else 0))
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return deaths


def test_a_budget_shared_by_many_processes_is_never_overspent_and_books_each_ask_once(tmp_path: Path) -> None:
    url, chance = f"sqlite:///{tmp_path}/tasks.db", random.Random(7)
    with AgentSystem(url, run=False) as client:
        for number in range(TASKS):
            amounts = [chance.randint(1, 4) for _ in range(3)]
            client.spawn(async_spender if number % 2 else spender, amounts, id=f"task-{number}")
    deaths = work_through_deaths(url, chance)
    assert deaths >= DEATHS

    with open_store(url) as store, AgentSystem(store, run=False) as client:
        assert max(accumulate(bookings(store, "b"))) <= 100
        assert client.entity(Budget, "b").ask(Budget.left) == 100 - spent(store)
        state, log = replayed(store, "b"), rows(store, "b")
        assert [row.key for row in log[1:]] == list(state.receipts), "a booking without its ask, or one twice"
        left = {key: 100 - total for key, total in zip(state.receipts, accumulate(bookings(store, "b")), strict=True)}
        asked = {key: reply for task in client.tasks() for key, reply in replies(task).items()}
        assert {key: reply for key, reply in asked.items() if isinstance(reply, int)} == left
        assert sum(activations(task) for task in client.tasks()) > TASKS, "a death has met nobody at work"


def replies(task: TaskRef[Any]) -> dict[str, Any]:
    """Give what a task was answered, by the key of the ask, and see that its result says the same."""
    created, *events = task.events()
    assert isinstance(created, Created)
    found: dict[str, Any] = {}
    for event in events:
        if isinstance(event, StepSucceeded):
            found[idempotency_key(created.birth, event.path)] = event.value
        elif isinstance(event, StepFailed):
            (left,), *_ = event.error["raised"]
            found[idempotency_key(created.birth, event.path)] = f"only {left}"
    assert sorted(map(json.dumps, task.result())) == sorted(map(json.dumps, found.values()))
    return found


def activations(task: TaskRef[Any]) -> int:
    return sum(isinstance(event, Activated) for event in task.events())
