"""A round: chaos for a time, then peace until all has settled, then the verdict."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from actors import AgentSystem
from actors.mapper import is_stream
from domain.events import (
    Activated,
    ApprovalRequested,
    CancelDelivered,
    Cancelled,
    CancelRequested,
    ChildSpawned,
    Passivated,
    SignalReceived,
    StepFailed,
    StepStarted,
    StepSucceeded,
    WaitEnded,
)
from domain.record import STEP
from domain.state import UNDOS
from domain.waits import RESERVED
from tests.chaos import ledger
from tests.chaos.client import spawn
from tests.chaos.evidence import Evidence, is_outcome
from tests.chaos.fleet import Fleet
from tests.chaos.judge import Complaint, judge
from tests.chaos.operator import LOOK, Operator
from tests.chaos.plan import Action, Plan, draw_plan
from tests.chaos.purses import bookings

SETTLING = 90.0
"""Seconds after the chaos in which every task has to end."""
FIRST = 24
"""Tasks that are there from the beginning, so that no machine is too slow for a round."""


@dataclass(frozen=True)
class Verdict:
    """What a round came to."""

    plan: Plan
    folder: Path
    totals: Counter[str]
    complaints: list[Complaint]
    diary: list[str]

    def __str__(self) -> str:
        told = ", ".join(f"{count} {what}" for what, count in sorted(self.totals.items()))
        strikes = f"{self.plan.strikes} strikes" if self.plan.strikes else "no limit of strikes"
        workers = f"{self.plan.processes} {'hasty ' if self.plan.hasty else ''}workers"
        first = f"seed {self.plan.seed} ({workers}, {strikes}): {told}"
        if not self.complaints:
            return first
        return "\n".join([first, f"in {self.folder}", *self.diary, *map(str, self.complaints)])


def play(
    seed: int, seconds: float, folder: Path, *, bytecode: Path, processes: int = 3, store: str | None = None
) -> Verdict:
    """Play the round of a seed: `seconds` of chaos, in an empty folder, with a store in it by default.

    Another `store`, a URL, must not have seen this seed, and nothing else may go on in it.
    """
    plan = draw_plan(seed, seconds, processes)
    store = store or f"sqlite:///{folder / 'chaos.db'}"
    with Fleet(folder, bytecode, store, plan) as fleet, AgentSystem(store, run=False) as system:
        for number in range(1, FIRST + 1):
            spawn(system, seed, number, folder)
        with Operator(system, folder, plan) as operator:
            for action in plan.actions:
                pass_time(fleet, action.at)
                fleet.do(action)
            pass_time(fleet, seconds)
            settled = settle(fleet, plan, operator)
        fleet.everybody("leave")
        ends = fleet.ends()
        evidence = Evidence(
            ledger.read(folder), *collect(system, f"{seed}-"), plan.strikes, ends, bookings(system, f"{seed}-")
        )
    totals = totalled(evidence) + fleet.done + Counter({"decisions": operator.decisions, "seconds settling": settled})
    return Verdict(plan, folder, totals, judge(evidence), fleet.diary)


def pass_time(fleet: Fleet, until: float) -> None:
    """Let the round's time pass, and see to those that kill themselves."""
    fleet.revive()
    while fleet.time < until:
        time.sleep(min(LOOK, max(0.0, until - fleet.time)))
        fleet.revive()


def settle(fleet: Fleet, plan: Plan, operator: Operator) -> int:
    """End the chaos, and wait until every task has ended; give the seconds that it took."""
    began = monotonic()
    fleet.everybody("kill", "client")
    fleet.everybody("thaw")
    for number in range(plan.processes - len(fleet.working())):
        fleet.do(Action(fleet.time, "start", f"worker-{number + 1}.last"))
    while operator.has_work() and monotonic() < began + SETTLING:
        pass_time(fleet, fleet.time + LOOK)
    return round(monotonic() - began)


def collect(system: AgentSystem, prefix: str = "") -> tuple[dict, dict]:
    """Give the log and the index row of each task whose id begins so."""
    recorder, log = system.log.recorder, system.log
    rows = {row.id: row for row in recorder.select_entries(prefix=prefix) if not is_stream(row.id)}
    tasks = [task for task in recorder.select_ids() if task.startswith(prefix) and not is_stream(task)]
    return {task: list(log.events.get(task)) for task in tasks}, rows


def totalled(evidence: Evidence) -> Counter[str]:
    """Count what has happened."""
    events = [event for log in evidence.logs.values() for event in log]
    kinds = Counter(map(type, events))
    return Counter(
        {
            "tasks": len(evidence.logs),
            "steps": sum(
                isinstance(e, StepSucceeded | StepFailed) and e.kind == STEP and is_outcome(e) for e in events
            ),
            "attempts": kinds[StepStarted],
            "doubts": sum(isinstance(event, StepStarted) and bool(event.doubt) for event in events),
            "activations": kinds[Activated],
            "passivations": kinds[Passivated],
            "effects": sum(map(len, evidence.effects.values())),
            "waits": kinds[WaitEnded],
            "signals": sum(isinstance(e, SignalReceived) and not e.name.startswith(RESERVED) for e in events),
            "approvals": kinds[ApprovalRequested],
            "children": kinds[ChildSpawned],
            "cancels": kinds[CancelRequested],
            "cancels heard": kinds[CancelDelivered],
            "cancelled": kinds[Cancelled],
            "undos": sum(isinstance(e, StepSucceeded) and e.path.startswith(f"{UNDOS}/") for e in events),
            "bookings": sum(map(len, evidence.purses.values())),
        }
    )
