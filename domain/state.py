"""What a task is: the state that follows from its events, and nothing that decides anything (`task.py` does)."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from domain.events import (
    Cancelled,
    CancelRequested,
    Completed,
    Concluded,
    Created,
    Ending,
    Failed,
    Held,
    SignalReceived,
)
from domain.record import StepRecord
from domain.values import decode
from domain.waits import Wait, answer_name, child_name

Status = Literal["queued", "running", "waiting", "held", "completed", "failed", "cancelled"]
ENDED: tuple[Status, ...] = ("completed", "failed", "cancelled")
"""The statuses of a task that has ended."""

IN_DOUBT, STRIKES, DIFFERS, UNKNOWN_CLASS, FAILED_STEP, UNREADABLE, SPENT = (
    "in doubt",
    "strikes",
    "differs",
    "unknown class",
    "failed step",
    "unreadable",
    "spent",
)
"""The reasons for which a task is held."""
HOLDS = (IN_DOUBT, STRIKES, DIFFERS, UNKNOWN_CLASS, FAILED_STEP, UNREADABLE, SPENT)
"""All of them."""
FOR_CODE = (DIFFERS, UNKNOWN_CLASS)
"""The holds that wait for other code; the rest waits for a person."""
UNDOS = "undo"
"""The scope in which undos run: no agent's code has such a path."""

CANCEL, WAIT, ABANDON = "cancel", "wait", "abandon"
"""What becomes of a child when its parent ends: it is cancelled too, it is waited for, it goes on alone."""


def idempotency_key(birth: str, path: str, generation: int = 0) -> str:
    """Give the key of a step: the same in every attempt, in every process, and never that of another step or task.

    >>> idempotency_key("b", "1")
    'pd_4p8P9QTNfekiEbCoydVt9yjA'
    """
    digest = hashlib.sha256("\0".join((birth, str(generation), path)).encode()).digest()
    return "pd_" + base64.urlsafe_b64encode(digest[:18]).decode()


class Pause(NamedTuple):
    """An approval that was asked for, at `path`."""

    path: str
    label: str
    details: Any
    at: float


class Undo(NamedTuple):
    """An undo that was registered, of the step at `path` or by the agent there: `name` is the step that does it."""

    path: str
    name: str
    arguments: Any


Named: TypeAlias = Sequence[tuple[str, str, Any]]
"""Undos of bodies that may not be registered yet: the path of each, its step's name, and the arguments."""


class TaskState:
    """One run of an agent. Made by `fold`, never by hand; every attribute follows from the events folded so far.

    `line` is since when it stands in line for a worker: who was begun and is stopped, or whose worker dies, keeps it.
    `steps` has the record of each position by its path; `scopes` the highest number of each scope, `keyed` the scope of
    each branch that has a key, and `places` the first path of a name with its arguments. `waiting` are the waits that
    are not over, by path; `letters` what has come from outside, by version, and `mail` the versions of those under each
    name that nobody has taken. `reserved` has by path the attempts with a reservation, and `granted` what people have
    allowed besides. `cancel_until` is when the grace of a cancelled task is over; it
    `hurries` where it was called off when its agent was done, and is `called_off` until the next activation knows so.
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
        self.deadline: float | None = created.options.get("deadline")
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
        self.ending: Ending | None = None
        self.borrowed = False
        self._begin_conversation()

    def _begin_conversation(self) -> None:
        """Begin with nothing that was said from outside, waited for, or owed."""
        self.waiting: dict[str, Wait] = {}
        self.letters: dict[int, SignalReceived] = {}
        self.mail: dict[str, tuple[int, ...]] = {}
        self.signals: dict[str, int] = {}
        self.pauses: dict[str, Pause] = {}
        self.open_pauses: tuple[str, ...] = ()
        self.children: dict[str, str] = {}
        self.undos: tuple[Undo, ...] = ()
        self.reserved: dict[str, tuple[tuple[int, Any], ...]] = {}
        self.granted: tuple[Any, ...] = ()
        self.cancel: CancelRequested | None = None
        self.cancel_until = 0.0
        self.delivered = self.hurries = self.called_off = False
        self.concluded: Concluded | None = None

    @property
    def status(self) -> Status:
        """The task's status in one word."""
        if self.ending is not None:
            return _ENDINGS[type(self.ending)]
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

    def strike_facts(self, strikes: int) -> tuple[str, dict[str, Any]]:
        """Give the path of the step at which the log ends, and what a hold for so many strikes tells of it."""
        details: dict[str, Any] = {"strikes": strikes}
        if self.latest is None:
            return "", details
        details |= {"name": self.latest.name, "label": self.latest.label, "in_doubt": self.latest.in_doubt}
        return self.latest.path, details

    @property
    def suspicion(self) -> int:
        """Count the strikes that make a suspect: none where no process died, a crash of an agent hurts nobody else."""
        return self.strikes_if_lost if self.deaths or self.worker is not None else 0

    @property
    def doubts(self) -> list[StepRecord]:
        """The steps that are in doubt, in the order in which they were started."""
        return [record for record in self.steps.values() if record.in_doubt]

    @property
    def owed_undos(self) -> list[tuple[str, Undo]]:
        """The undos that have not run, the last registered first, each with the path at which it is to run."""
        undos = [(f"{UNDOS}/{number}", undo) for number, undo in enumerate(reversed(self.undos), 1)]
        return [(path, undo) for path, undo in undos if path not in self.steps or self.steps[path].outcome is None]

    def unregistered(self, undos: Named) -> list[tuple[str, str, Any]]:
        """Give those undos of bodies that are not registered yet, each with its path; none of a step with an outcome.

        An earlier attempt may have said the same already.
        """
        known, fresh = list[tuple[str, str, Any]](self.undos), list[tuple[str, str, Any]]()
        for undo in undos:
            record = self.steps.get(undo[0])
            if undo in known:
                known.remove(undo)
            elif record is None or record.outcome is None:
                fresh.append(undo)
        return fresh

    @property
    def owed_children(self) -> list[tuple[str, str]]:
        """The children that have not ended and are not left alone when their parent ends, each with its policy."""
        return [
            (child, policy)
            for child, policy in self.children.items()
            if policy != ABANDON and child_name(child) not in self.mail
        ]

    @property
    def asked_for(self) -> list[str]:
        """The paths of approvals that nobody has answered, and whose task was not called off since."""
        since = -math.inf if self.cancel is None else self.cancel.timestamp
        return [path for path in self.open_pauses if self.pauses[path].at > since]

    def answer(self, path: str) -> SignalReceived | None:
        """Give the answer to the approval that was asked for there, if there is one."""
        versions = self.mail.get(answer_name(path))
        return self.letters[versions[0]] if versions else None

    def first_mail(self, name: str) -> int | None:
        """Give the version of the first thing under a name that nobody has taken."""
        versions = self.mail.get(name)
        return versions[0] if versions else None

    def copy(self) -> Self:
        """Give a task of its own that can be folded on: what this one knows stays as it is."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.borrowed = True
        for name in ("steps", "places", "scopes", "keyed", "letters", "mail", "signals", "children", "reserved"):
            setattr(other, name, getattr(self, name).copy())
        return other


_ENDINGS: dict[type, Status] = {Completed: "completed", Failed: "failed", Cancelled: "cancelled"}
