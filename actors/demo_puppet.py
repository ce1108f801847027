"""The process that the demo by hand plays with: an agent that stands still before each beat until it is told to go on.

`python -m actors.demo_puppet AGENT RECIPIENT` says `stop PLACE STEP ATTEMPT` where it stands still, and goes on with
each line of its standard input. When that ends it ends at once, so it never outlives whoever started it.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors import AgentSystem, StepInfo, TaskError, open_store
from actors.demo_agent import (
    NOTES,
    STORE,
    deliver,
    mail_report,
    mail_report_asking,
    naive_report,
    say,
    summarize,
    tick_off,
)
from actors.demo_play import AFTER, ASKS, BEFORE, GAP, TOLD
from domain.events import StepSucceeded
from stores.crash import CrashingStore

PLACES = {"body.before": BEFORE, "body.after": GAP, "doubt.before": ASKS, "doubt.after": TOLD}
STOP = "stop"


class Beats:
    """A plan, as those for crashes are, that stands still where they would die."""

    dead = False

    def __init__(self) -> None:
        self._step = ("", 1)

    def reach(self, point: str, **facts: Any) -> None:
        """Stand still around a body and a question, and once the record of a step is committed."""
        info = facts.get("info")
        if isinstance(info, StepInfo):
            self._step = (info.name, info.attempt)
        if point in PLACES:
            stand_still(PLACES[point], *self._step)
        elif point == "append.after" and StepSucceeded.TOPIC in facts["topics"]:
            stand_still(AFTER, *self._step)

    def check(self) -> None:
        """Do nothing: it never dies by itself."""


def stand_still(place: str, step: str, attempt: int = 1) -> None:
    """Say where it stands, and wait to be told to go on."""
    try:
        say(f"{STOP} {place} {step} {attempt}")
        told = sys.stdin.readline()
    except OSError:
        told = ""
    if not told:
        os._exit(os.EX_IOERR)


def play_naively(to: str) -> None:
    """Do what `naive_report` does, standing still before each step and after it."""
    done: dict[str, str | None] = {}
    steps: dict[str, Callable[[], str | None]] = {
        "draft_summary": lambda: summarize(Path(NOTES).read_text()),
        "send_email": lambda: deliver(to, str(done["draft_summary"]), f"<{secrets.token_hex(12)}@example.org>"),
        "mark_complete": lambda: tick_off(to),
    }
    for name, body in steps.items():
        stand_still(BEFORE, name)
        done[name] = body()
        stand_still(AFTER, name)


def main(name: str, to: str) -> None:
    """Run one agent to its end. A task's id is its recipient's: run again, it is the same task.

    It runs no other task of the store, as one that was left when another agent began. And it is never held for its
    deaths: whoever plays kills it as often as only a poisonous step would.
    """
    if name == naive_report.__name__:
        play_naively(to)
        return
    agents = {known.name: known for known in (mail_report, mail_report_asking)}
    store, task = CrashingStore(open_store(STORE), Beats(), close_inner=True), to.partition("@")[0]
    with store, AgentSystem(store, strikes=None, only=task) as system:
        try:
            system.spawn(agents[name], NOTES, to, id=task).result()
        except TaskError as error:
            sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
