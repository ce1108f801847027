"""One worker in the foreground: it runs what is open until it is told to stop, and says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress
from threading import Event

from actors.command import SHOWN
from actors.follow import OPEN
from actors.leaving import Signals
from actors.saying import say
from actors.showing import counted
from actors.system import AgentSystem
from actors.target import CommandError
from actors.tree import SupervisionTree
from actors.wording import plain

AGAIN = "the same command again goes on where it was"
LOOK = 1.0
"""Seconds between two looks whether the worker may still claim anything."""
OUTDATED = 2
"""The exit code of a worker that is older than its store is by now: as of one that could not begin."""


def serve(store: str, signals: Signals, *, max_active: int, grace: float, lifeline: int | None = None) -> int:
    """Run the open tasks of all agents that are known until a signal comes, and give the exit code.

    `lifeline` is a descriptor that a parent process has the other end of: it is told there when the worker is at work,
    and its death, which closes that end, is a signal too; all but the first words are left to it.

    A worker whose store a newer perdure has brought up to date leaves too.

    Raises CommandError for a store in memory, and what opening a store raises.
    """
    if store == "memory:":
        raise CommandError("a memory: store is private to the process that made it: there is nothing in it to run")
    with signals.in_good_order():
        with AgentSystem(store, max_active=max_active, grace=grace) as system:
            tree = system._tree
            assert tree is not None  # noqa: S101  it is no client
            name = f"worker {tree.worker.id} (pid {os.getpid()})"
            _say_opening(system, name, tree.worker.agents())
            _wait(signals, lifeline, tree.worker.stopping)
            outdated = signals.received is None and tree.worker.stopping.is_set()
            _say_stopping(tree, grace, "" if lifeline is None else f"{name}: ", alone=lifeline is None)
        if lifeline is None:
            say("stopped", "start it again with the newer perdure" if outdated else AGAIN)
    return OUTDATED if outdated else 128 + (signals.received or signal.SIGTERM)


def _wait(signals: Signals, lifeline: int | None, retired: Event) -> None:
    if lifeline is None:
        while signals.received is None and not retired.is_set():
            signals.wait(timeout=LOOK)
        return
    os.set_inheritable(lifeline, False)
    with suppress(BrokenPipeError, ConnectionResetError):  # it is dead already, which the wait finds out
        os.write(lifeline, b"!")
    while signals.received is None and not retired.is_set():
        if signals.wait(lifeline, timeout=LOOK) and _has_ended(lifeline):
            say("stopping", f"pid {os.getpid()}: the parent of this worker process is gone")
            return


def _has_ended(lifeline: int) -> bool:
    """Tell whether the other end is closed; a reset says that it was before our word was read there."""
    try:
        return not os.read(lifeline, 1)
    except ConnectionResetError:
        return True


def _say_opening(system: AgentSystem, name: str, agents: Collection[str]) -> None:
    store = system.log.store
    count = len(store.recorder.select_entries(status=OPEN))
    first = sorted(agents)[:SHOWN]
    more = f" and {len(agents) - SHOWN:,} more" if len(agents) > SHOWN else ""
    say("", f"perdure: {store.url} · {counted(count, 'task')} open · {name} runs {plain(', '.join(first))}{more}")


def _say_stopping(tree: SupervisionTree, grace: float, who: str, *, alone: bool) -> None:
    """Say for what the worker still waits, if for anything."""
    tasks, steps = len(tree.directory.hosted()), tree.running()
    if tasks:
        what = counted(steps, "running step") if steps else f"{counted(tasks, 'task')} between steps"
        second = "; a second signal leaves at once, as a crash does" if alone else ""
        say("stopping", f"{who}up to {grace:g} s for {what}{second}")
