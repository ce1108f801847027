"""The operator of a round: the person who decides, answers, sends and calls off."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self
from zlib import crc32

from actors import AgentSystem, ResolveError, TaskEndedError
from actors.task_log import UNTOLD
from domain.state import FAILED_STEP, IN_DOUBT, STRIKES, idempotency_key
from domain.values import decode
from stores import IndexRow
from tests.chaos import ledger
from tests.chaos.client import send
from tests.chaos.ledger import Line
from tests.chaos.plan import Plan
from tests.chaos.talks import TALKERS, Sending, sendings, will_approve
from tests.chaos.trips import BOOKERS

LOOK = 0.1
"""Seconds between two looks at what is open, or held."""
OPEN = ("queued", "running", "waiting", "held")
LATEST = 4.0
"""Seconds after its spawn within which a task is called off, if it is."""
AGAIN = 0.15
"""The share of looks at which what was brought before is brought again."""


class Errand(NamedTuple):
    """What a task is brought: signals, and perhaps a cancellation, so many seconds after it was spawned."""

    signals: list[Sending]
    cancel_after: float | None
    grace: float


def errand(task: str, agent: str, args: Any) -> Errand:
    """Give what is brought to a task: it follows from its id and its input."""
    draw = Random(crc32(task.encode()))
    after, grace, chance = draw.uniform(0, LATEST), draw.choice((0.3, 3.0, 10.0)), draw.random()
    if agent in TALKERS:
        return Errand(sendings(args[1]), after if chance < 0.2 else None, grace)
    called_off = agent in BOOKERS and (args[2] == "wait" or chance < 0.3)
    return Errand([], after if called_off else None, grace)


class Operator:
    """Works on a thread, for the time of the `with`.

    Lets a task go on that is held for strikes, where its workers have a limit, or for an undo that has failed. Any
    other hold stays: it is a fault.
    """

    def __init__(self, system: AgentSystem, folder: Path, plan: Plan) -> None:
        self.decisions = 0
        self._over = threading.Event()
        self._system = system
        self._folder = folder
        self._strikes = plan.strikes
        self._draw = Random(plan.seed)
        self._errands: dict[str, Errand] = {}
        self._done: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._work, name="operator")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def has_work(self) -> bool:
        """Tell whether a task is open, or has a parent that is not told of its end."""
        recorder = self._system.log.recorder
        return bool(recorder.select_entries(status=OPEN, limit=1) or recorder.select_held(UNTOLD, limit=1))

    def _work(self) -> None:
        while not self._over.wait(LOOK):
            for row in self._system.log.recorder.select_entries(status=OPEN):
                if row.status == "held":
                    with suppress(ResolveError, TaskEndedError):  # it goes on already
                        self._decide(row.id)
                if row.agent in (*TALKERS, *BOOKERS):
                    self._bring(row)
            for approval in self._system.approvals():
                self._answer(approval.task_id, approval.id, approval.path)

    def _decide(self, task: str) -> None:
        held = self._system.log.load(task)
        if held.held is None:
            return
        ref = self._system.task(task)
        if held.held.reason == STRIKES and self._strikes is not None:
            ref.release(by="the operator")
        elif held.held.reason == FAILED_STEP:
            ref.resolve(held.held.path, rerun=True, by="the operator")
        elif held.held.reason == IN_DOUBT:
            path, key = held.held.path, idempotency_key(held.birth, held.held.path)
            made = ledger.effect_of(key, self._folder)
            happened = {"value": [made.number, made.token]} if made is not None else {"rerun": True}
            ref.resolve(path, **happened, by="the operator")
        else:
            return
        self.decisions += 1

    def _bring(self, row: IndexRow) -> None:
        """Bring a task what is due for it, some of it more than once."""
        if row.id not in self._errands:
            args, _ = decode(self._system.log.load(row.id).input)  # type: ignore[misc]  as it was drawn
            self._errands[row.id] = errand(row.id, row.agent, args)
        signals, cancel_after, grace = self._errands[row.id]
        age = self._system.log.now() - row.created
        for sending in signals:
            known = (row.id, sending.id) in self._done
            if age >= sending.delay and (not known or self._draw.random() < AGAIN):
                send(self._system.task(row.id), sending, self._folder)
                self._done.add((row.id, sending.id))
        known = (row.id, "cancel") in self._done
        if cancel_after is not None and age >= cancel_after and (not known or self._draw.random() < AGAIN):
            self._cancel(row.id, grace)
            self._done.add((row.id, "cancel"))

    def _cancel(self, task: str, grace: float) -> None:
        reason = f"the operator's, number {len(self._done)}"
        told = self._system.task(task).cancel(reason, by="the operator", grace=grace)
        if told.accepted:
            first = self._system.log.load(task).cancel.reason == reason
            ledger.write(Line("cancelled" if first else "ended", task, token=reason), self._folder)

    def _answer(self, task: str, pause: str, path: str) -> None:
        yes = will_approve(pause)
        with suppress(TaskEndedError):
            for _ in range(self._draw.randint(1, 2)):
                self._system.task(task).answer(pause, approved=yes, by="the operator")
            ledger.write(Line("decided", task, path=path, number=int(yes)), self._folder)
