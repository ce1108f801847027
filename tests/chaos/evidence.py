"""The evidence of a round: what it has left in ledger, logs and index, told in the words that rules need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from domain.events import (
    Activated,
    CancelDelivered,
    Cancelled,
    CancelRequested,
    ChildSpawned,
    Completed,
    Created,
    Failed,
    Held,
    Passivated,
    Released,
    Restarted,
    SignalReceived,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
    WaitEnded,
)
from domain.record import STEP
from stores import IndexRow
from tests.chaos.fleet import End
from tests.chaos.ledger import Line
from tests.chaos.purses import Booking

Ending = Completed | Failed | Cancelled
StepEvent = StepStarted | StepSucceeded | StepFailed | CancelDelivered
"""What the log has of a step; with another kind also of what else takes a place."""


class History:
    """One log, told in the words that the rules need.

    `at` gives the activation that was open at each event, or 0; `idle` tells whether the task was held then, or had
    never been active. `steps` has the events of each step, `places` those of all that takes a place, by path; `letters`
    what came from outside, by version.
    """

    def __init__(self, events: list[TaskEvent]) -> None:
        self.events = events
        self.at: list[int] = []
        self.idle: list[bool] = []
        self.steps: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        self.places: dict[str, list[Any]] = defaultdict(list)
        self.letters = {event.originator_version: event for event in events if isinstance(event, SignalReceived)}
        number, idle = 0, True
        for event in events:
            number, idle = (event.number, False) if isinstance(event, Activated) else (number, idle)
            self.at.append(number)
            self.idle.append(idle)
            if is_of_step(event):
                self.steps[event.path].append((number, event))
            if getattr(event, "path", "") and not isinstance(event, Held):
                self.places[event.path].append(event)
            if isinstance(event, Restarted | Passivated | Held | Ending):
                number, idle = 0, idle or isinstance(event, Held)
            if isinstance(event, Released):
                idle = False

    @property
    def created(self) -> Created | None:
        """How it began, if it did."""
        first = self.events[0] if self.events else None
        return first if isinstance(first, Created) else None

    @property
    def ending(self) -> Ending | None:
        """How it ended, if it did."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Ending) else None

    @property
    def is_cancelled(self) -> bool:
        """Whether it was called off, and whether or not it has heard of that."""
        return any(isinstance(event, CancelRequested) for event in self.events)

    @property
    def delivered(self) -> bool:
        """Whether its agent has heard that it was called off."""
        return any(isinstance(event, CancelDelivered) for event in self.events)

    def value_at(self, path: str) -> StepSucceeded | None:
        """Give the success of the step at a path."""
        return self._at(path, StepSucceeded)

    def end_at(self, path: str) -> WaitEnded | None:
        """Give how the wait at a path has ended, if not by a cancellation."""
        return self._at(path, WaitEnded)

    def spawned_at(self, path: str) -> ChildSpawned | None:
        """Give which child was spawned at a path."""
        return self._at(path, ChildSpawned)

    def _at(self, path: str, kind: type) -> Any:
        found = [event for event in self.places.get(path, []) if isinstance(event, kind)]
        return found[0] if found else None

    def outcome(self, path: str) -> tuple[int, Any] | None:
        """Give the outcome of a step, and in which activation it was recorded; 0 where a person has decided it."""
        found: tuple[int, Any] | None = None
        for number, event in self.steps[path]:
            if isinstance(event, Released) and event.decision == "rerun":
                found = None
            elif found is None and is_outcome(event):
                found = number, event
        return found

    def could_begin(self, path: str, attempt: int) -> float:
        """Give a time before which an attempt has not begun: that of its activation, or of the attempt before it."""
        time = 0.0
        for event in self.events:
            if isinstance(event, StepStarted) and (event.path, event.attempt) == (path, attempt):
                break
            if isinstance(event, Activated) or (isinstance(event, StepEvent) and event.path == path):
                time = event.timestamp
        return time


def is_of_step(event: Any) -> bool:
    """Tell whether an event is one of a step that the agent calls, or that undoes one."""
    if isinstance(event, Released):
        return bool(event.path)
    return isinstance(event, StepEvent) and event.kind == STEP


def is_outcome(event: TaskEvent) -> bool:
    """Tell whether a step ends with this event for good."""
    if isinstance(event, Released):
        return event.decision != "rerun"
    return isinstance(event, StepSucceeded | CancelDelivered) or (
        isinstance(event, StepFailed) and event.retry_at is None
    )


@dataclass(frozen=True)
class Evidence:
    """All that a round has left: the ledger, log and index row of each task, how the processes have ended.

    `strikes` is the limit of the workers, None for none; `purses` are what was booked in each.
    """

    lines: list[Line]
    logs: dict[str, list[TaskEvent]]
    rows: dict[str, IndexRow]
    strikes: int | None = None
    ends: list[End] | None = None
    purses: dict[str, list[Booking]] = field(default_factory=dict)

    @cached_property
    def histories(self) -> dict[str, History]:
        """The logs, told."""
        return {task: History(events) for task, events in self.logs.items()}

    @cached_property
    def effects(self) -> dict[tuple[str, str], list[Line]]:
        """The effects of each step, by task and path."""
        found: dict[tuple[str, str], list[Line]] = defaultdict(list)
        for line in self.lines:
            if line.what == "effect":
                found[line.task, line.path].append(line)
        return found

    def steps(self) -> Iterator[tuple[str, str, History, list[Line]]]:
        """Give each step that is in a log or in the ledger: task, path, the log it should be in, its effects."""
        logged = [(task, path) for task, history in self.histories.items() for path in list(history.steps)]
        for task, path in dict.fromkeys([*logged, *self.effects]):
            yield task, path, self.histories.get(task, History([])), self.effects.get((task, path), [])
