"""The aggregate `AgentTask`: one run of an agent, as its log tells it.

State is a fold of events and nothing else (`fold.py`). A decision is a pure function of state and command to events:
it changes nothing, and its events count only once they are in the log. `guard` is the fence: what is written for an
activation is refused unless it is the newest.
"""

from __future__ import annotations

import base64
import hashlib
from shlex import quote
from typing import Any, Literal, Self

from domain.errors import OwnershipLost, ResolveError, TaskEndedError
from domain.events import (
    Activated,
    Completed,
    Created,
    Failed,
    Held,
    Passivated,
    Released,
    RestartAsked,
    Restarted,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
)
from domain.faults import Fault
from domain.record import Call, StepRecord
from domain.retry import is_out, restart_delay
from domain.values import decode

Status = Literal["queued", "running", "waiting", "held", "completed", "failed"]

IN_DOUBT, STRIKES, DIFFERS, UNKNOWN_CLASS, FAILED_STEP, UNREADABLE = (
    "in doubt",
    "strikes",
    "differs",
    "unknown class",
    "failed step",
    "unreadable",
)
"""The reasons for which a task is held."""
FOR_CODE = (DIFFERS, UNKNOWN_CLASS)
"""The holds that wait for other code; the rest waits for a person."""


def idempotency_key(birth: str, path: str, generation: int = 0) -> str:
    """Give the key of a step: the same in every attempt, in every process, and never that of another step or task.

    >>> idempotency_key("b", "1")
    'pd_4p8P9QTNfekiEbCoydVt9yjA'
    """
    digest = hashlib.sha256("\0".join((birth, str(generation), path)).encode()).digest()
    return "pd_" + base64.urlsafe_b64encode(digest[:18]).decode()


class AgentTask:
    """One run of an agent. Made by `fold`, never by hand; every attribute follows from the events folded so far.

    `line` is since when it stands in line for a worker: who was begun and is stopped, or whose worker dies, keeps it.
    `steps` has the record of each step by its path; `scopes` the highest number of each scope, `keyed` the scope of
    each branch that has a key, and `places` the first path of a name with its arguments.
    """

    def __init__(self, created: Created) -> None:
        self.id = created.originator_id
        self.version = 0
        self.birth = created.birth
        self.agent = created.agent
        self.input = created.input
        self.parent = created.parent
        self.tags: Any = decode(created.tags)
        self.group = str(created.options.get("group", ""))
        self.created = self.updated = created.timestamp
        self.due: float | None = created.timestamp
        self.line = created.timestamp
        self.activation = 0
        self.worker: str | None = None
        self.strikes = 0
        self.deaths = 0
        self.steps: dict[str, StepRecord] = {}
        self.latest: StepRecord | None = None
        self.place = ""
        self.waits = False
        self.asked, self.to_restart = "", False
        self.scopes: dict[str, int] = {}
        self.keyed: dict[str, str] = {}
        self.places: dict[tuple[str, str], str] = {}
        self.held: Held | None = None
        self.ending: Completed | Failed | None = None
        self.borrowed = False

    @property
    def status(self) -> Status:
        """The task's status in one word."""
        if self.ending is not None:
            return "completed" if isinstance(self.ending, Completed) else "failed"
        if self.held is not None:
            return "held"
        if self.worker is not None:
            return "running"
        return "waiting" if self.waits else "queued"

    @property
    def question(self) -> str | None:
        """The path of the step for which the task is held, if a person may decide what became of it."""
        held = self.held
        if held is None:
            return None
        differs_in_doubt = held.reason == DIFFERS and held.details.get("in_doubt") is True
        return held.path if differs_in_doubt or held.reason in (IN_DOUBT, FAILED_STEP) else None

    @property
    def strikes_if_lost(self) -> int:
        """The strikes that stand if the present activation, where there is one, has died without a mark."""
        return self.strikes + (self.worker is not None)

    @property
    def suspicion(self) -> int:
        """Count the strikes that make a suspect: none where no process died, a crash of an agent hurts nobody else."""
        return self.strikes_if_lost if self.deaths or self.worker is not None else 0

    @property
    def doubts(self) -> list[StepRecord]:
        """The steps that are in doubt, in the order in which they were started."""
        return [record for record in self.steps.values() if record.in_doubt]

    # ------------------------------------------------------------------ decisions

    def guard(self, activation: int) -> None:
        """Refuse to go on for an activation that is not the newest, or is over. Raises OwnershipLost."""
        if self.activation != activation or self.worker is None:
            raise OwnershipLost(
                f"task {self.id}: ownership lost: activation {activation} is over"
                f" (status {self.status}, newest activation {self.activation})"
            )

    def activate(
        self, now: float, *, worker: str, token: str, limit: int | None, release: bool = False
    ) -> list[TaskEvent]:
        """Claim the task for a worker; at its strike limit it is held in the same append, and its agent not called.

        `release` also ends a hold for its code. Nothing is decided for a task that has ended, or is held otherwise.
        """
        if self.ending is not None or (self.held is not None and not (release and self.held.reason in FOR_CODE)):
            return []
        version, events = self.version, list[TaskEvent]()
        if self.held is not None:
            version += 1
            events.append(Released(self.id, version, now, "", "release", None, f"worker {worker}"))
        number, strikes = self.activation + 1, 0 if events else self.strikes_if_lost
        events.append(Activated(self.id, version + 1, now, number, worker, token))
        if is_out(strikes, limit):
            path, details = self._strike_facts(strikes)
            events.append(Held(self.id, version + 2, now, number, STRIKES, path, details))
        return events

    def start_step(self, activation: int, now: float, call: Call, label: str, doubt: str) -> list[TaskEvent]:
        """Begin the next attempt at a step; the body runs only after this is in the log."""
        self.guard(activation)
        record = self.steps.get(call.path)
        attempt = 1 if record is None else record.attempt + 1
        path, kind, name, digest = call
        return [StepStarted(self.id, self.version + 1, now, path, kind, name, attempt, digest, label, doubt)]

    def finish_step(
        self,
        activation: int,
        now: float,
        call: Call,
        attempt: int,
        *,
        value: Any = None,
        source: str = "",
        error: dict[str, Any] | None = None,
        retry_at: float | None = None,
    ) -> list[TaskEvent]:
        """Record how an attempt ended: its value, or its error as data and when the next attempt is due, if any.

        A step that has an outcome never gets a second one.
        """
        self.guard(activation)
        path, kind, name, digest = call
        record = self.steps.get(path)
        if record is not None and record.outcome is not None:
            raise RuntimeError(f"task {self.id}: step {path} {name} has its outcome already")
        version = self.version + 1
        if error is not None:
            return [StepFailed(self.id, version, now, path, kind, name, digest, attempt, error, retry_at)]
        return [StepSucceeded(self.id, version, now, path, kind, name, digest, attempt, value, source)]

    def restart(
        self, activation: int, now: float, error: Fault, *, where: str, jitter: float, limit: int | None
    ) -> list[TaskEvent]:
        """Decide what follows a crash of the agent: another start after a delay, or a hold at the strike limit."""
        self.guard(activation)
        strikes = self.strikes + 1
        if is_out(strikes, limit):
            path, details = self._strike_facts(strikes)
            details |= {"error": error.to_data(), "where": f"{error}, at {where}"}
            return [Held(self.id, self.version + 1, now, activation, STRIKES, path, details)]
        due = now + restart_delay(strikes, jitter)
        return [Restarted(self.id, self.version + 1, now, activation, error.to_data(), strikes, due)]

    def ask_to_restart(self, now: float, group: str, *, cause: str, by: str) -> list[TaskEvent]:
        """Let the task begin anew at its next step boundary, since `by` of its group has crashed; once for each cause.

        Nothing where it is not of that group, or does not run: it has nothing in memory that could be stale.
        """
        if self.worker is None or self.group != group or self.asked == cause:
            return []
        return [RestartAsked(self.id, self.version + 1, now, cause, by)]

    def passivate(
        self, activation: int, now: float, cut_off: list[str], *, due: float | None = None
    ) -> list[TaskEvent]:
        """Mark a deliberate stop, so that it is no strike; nothing where the activation is over already.

        With `due` the task does nothing but wait until then.
        """
        if self.activation != activation or self.worker is None:
            return []
        return [Passivated(self.id, self.version + 1, now, activation, cut_off, due)]

    def hold(self, activation: int, now: float, reason: str, path: str, details: dict[str, Any]) -> list[TaskEvent]:
        """Park the task with a reason."""
        self.guard(activation)
        return [Held(self.id, self.version + 1, now, activation, reason, path, details)]

    def complete(self, activation: int, now: float, value: Any) -> list[TaskEvent]:
        """End the task with its agent's value."""
        self.guard(activation)
        return [Completed(self.id, self.version + 1, now, value)]

    def fail(self, activation: int, now: float, error: Fault) -> list[TaskEvent]:
        """End the task with an error."""
        self.guard(activation)
        doubts = [record.path for record in self.doubts]
        return [Failed(self.id, self.version + 1, now, error.to_data(), doubts)]

    def release(self, now: float, by: str) -> list[TaskEvent]:
        """Let a held task go on.

        Raises TaskEndedError, or ResolveError where it is not held or a step is in question.
        """
        held = self._held()
        if held.reason in (IN_DOUBT, FAILED_STEP):
            raise ResolveError(
                f"task {self.id} is held because of step {held.path}, which has to be decided first:"
                f" perdure resolve {quote(self.id)} {held.path} --value JSON | --rerun | --fail",
                task_id=self.id,
            )
        return [Released(self.id, self.version + 1, now, "", "release", None, by)]

    def resolve(self, now: float, path: str, decision: str, value: Any, by: str) -> list[TaskEvent]:
        """Decide what became of the step in question: it happened (`value`), is to `rerun`, or is given up (`fail`)."""
        held = self._held()
        if path != self.question:
            raise ResolveError(
                f"task {self.id}: step {path} is not in question: it is held ({held.reason}), and"
                f" {f'step {self.question}' if self.question else 'no step'} waits for a decision",
                task_id=self.id,
            )
        if held.reason == DIFFERS and decision == "rerun":
            message = f"task {self.id}: step {path} cannot be rerun with other arguments: its idempotency key would lie"
            raise ResolveError(message, task_id=self.id)
        return [Released(self.id, self.version + 1, now, path, decision, value, by)]

    def _held(self) -> Held:
        if self.ending is not None:
            raise TaskEndedError(f"task {self.id} has ended: {self.status}", task_id=self.id, status=self.status)
        if self.held is None:
            message = f"task {self.id} is not held: it is {self.status}; there is nothing to decide"
            raise ResolveError(message, task_id=self.id)
        return self.held

    def copy(self) -> Self:
        """Give a task of its own that can be folded on: what this one knows stays as it is."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.borrowed = True
        other.steps, other.places = self.steps.copy(), self.places.copy()
        other.scopes, other.keyed = self.scopes.copy(), self.keyed.copy()
        return other

    def _strike_facts(self, strikes: int) -> tuple[str, dict[str, Any]]:
        details: dict[str, Any] = {"strikes": strikes}
        if self.latest is None:
            return "", details
        details |= {"name": self.latest.name, "label": self.latest.label, "in_doubt": self.latest.in_doubt}
        return self.latest.path, details
