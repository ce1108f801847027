"""Appends that no thread waits for: what an agent on the loop leaves behind, and who has his turn meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from actors import AgentSystem, agent, gather, step
from actors.runtime import COMMITTERS
from actors.submission import Submission
from actors.threads import NoThreadError, Threads
from stores import open_store
from tests.lives import wait_for

TIMEOUT = 20.0
STEPS = 300


@step(name="submitted: plain")
def plain(number: int) -> int:
    return number


@step(name="submitted: awaited")
async def awaited(number: int) -> int:
    return number


@agent(name="submitted: sync")
def in_a_thread(count: int) -> int:
    return sum(plain(1) for _ in range(count))


@agent(name="submitted: async")
async def on_the_loop(count: int) -> int:
    return sum([await awaited(1) for _ in range(count)])


@pytest.mark.parametrize("flow", [in_a_thread, on_the_loop], ids=["sync", "async"])
def test_a_step_leaves_nothing_that_only_a_collection_would_end(flow: Any, tmp_path: Any) -> None:
    with AgentSystem(f"sqlite:///{tmp_path}/tasks.db") as system:
        assert system.spawn(flow, 3).result(TIMEOUT) == 3
        gc.collect()
        gc.disable()
        try:
            assert system.spawn(flow, STEPS).result(TIMEOUT) == STEPS
            assert gc.collect() < STEPS, "of each step something is left"
        finally:
            gc.enable()


def test_who_never_waits_for_a_disk_lets_others_on_the_loop_have_their_turn() -> None:
    turns: list[str] = []
    together = asyncio.Barrier(2)

    @agent(name="submitted: talker")
    async def talker(name: str) -> None:
        await together.wait()
        for number in range(20):
            turns.append(name)
            await awaited(number)

    with AgentSystem("memory:") as system:
        for task in [system.spawn(talker, name) for name in "ab"]:
            task.result(TIMEOUT)
    changes = sum(one != other for one, other in pairwise(turns))
    assert sorted(turns) == ["a"] * 20 + ["b"] * 20
    assert changes >= 20, turns


@agent(name="submitted: many lines")
async def many_lines(count: int) -> int:
    return sum(await gather(*[partial(awaited, 1) for _ in range(count)]))


@pytest.mark.parametrize("threads_left", [True, False], ids=["threads", "no thread left"])
def test_who_stands_in_line_behind_it_goes_on_with_it_when_others_were_first(
    tmp_path: Any, threads_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads on which appends wait stand behind one that meets a conflict, and has none itself."""
    url, told = f"sqlite:///{tmp_path}/tasks.db", list[str]()
    with open_store(url) as store, AgentSystem(store) as system, AgentSystem(url, run=False) as other:
        submit = store.recorder.submit_events

        def submit_late(rows: Any, **about: Any) -> None:
            if not told:
                told.append(about["entry"].id)
                threading.Thread(target=be_late, args=[rows, about]).start()
            else:
                submit(rows, **about)

        def be_late(rows: Any, about: Any) -> None:
            wait_for(lambda: not threads_left or system.runtime.commits._count == COMMITTERS, TIMEOUT)
            other.task("t").signal("news", 1)
            submit(rows, **about)

        monkeypatch.setattr(store.recorder, "submit_events", submit_late)
        if not threads_left:
            monkeypatch.setattr(system.runtime.commits, "start", no_thread)
        assert system.spawn(many_lines, 3 * COMMITTERS, id="t").result(TIMEOUT) == 3 * COMMITTERS
    assert told == ["t"]


def no_thread(_fn: Any) -> None:
    raise NoThreadError("the machine has no thread left")


def test_where_the_machine_has_no_thread_left_who_asks_for_the_answer_goes_on_with_it() -> None:
    class NoThreads(Threads):
        def start(self, fn: Any) -> None:
            raise NoThreadError("the machine has no thread left")

    told, went_on = list[str](), list[str]()
    submission = Submission(lambda: told.append("told"), NoThreads("test"))
    submission.send_again = lambda: went_on.append("went on")
    submission.leave = lambda: went_on.append("left")
    submission.lead_again = submission.go_on
    submission.hear(ValueError("the first try"))
    assert (told, went_on) == (["told"], [])
    submission.answer()
    assert went_on == ["went on", "left"]


def test_what_it_has_ended_with_is_raised_once_by_who_asks() -> None:
    submission = Submission(lambda: None, Threads("test"))

    def fails() -> None:
        raise ValueError("a bug in the fold")

    submission.fold = fails
    submission.hear(None)
    with pytest.raises(ValueError, match="a bug in the fold"):
        submission.answer()
    submission.answer()
