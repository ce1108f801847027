"""The evidence of a round: what it has left in ledger, logs and index, told in the words that rules need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from domain.events import (
    Activated,
    Completed,
    Created,
    Failed,
    Held,
    Passivated,
    Released,
    Restarted,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
)
from stores import IndexRow
from tests.chaos.fleet import End
from tests.chaos.ledger import Line
from tests.chaos.purses import Booking

Ending = Completed | Failed
StepEvent = StepStarted | StepSucceeded | StepFailed


class History:
    """One log, told in the words that the rules need. `at` gives the activation that was open at each event, or 0."""

    def __init__(self, events: list[TaskEvent]) -> None:
        self.events = events
        self.at: list[int] = []
        self.steps: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        number = 0
        for event in events:
            number = event.number if isinstance(event, Activated) else number
            self.at.append(number)
            if isinstance(event, StepEvent) or (isinstance(event, Released) and event.path):
                self.steps[event.path].append((number, event))
            if isinstance(event, Restarted | Passivated | Held | Ending):
                number = 0

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

    def outcome(self, path: str) -> tuple[int, Any] | None:
        """Give the outcome of a step, and in which activation it was recorded; 0 where a person has decided it."""
        for number, event in self.steps[path]:
            if is_outcome(event):
                return number, event
        return None

    def could_begin(self, path: str, attempt: int) -> float:
        """Give a time before which an attempt has not begun: that of its activation, or of the attempt before it."""
        time = 0.0
        for event in self.events:
            if isinstance(event, StepStarted) and (event.path, event.attempt) == (path, attempt):
                break
            if isinstance(event, Activated) or (isinstance(event, StepEvent) and event.path == path):
                time = event.timestamp
        return time


def is_outcome(event: TaskEvent) -> bool:
    """Tell whether a step ends with this event for good."""
    if isinstance(event, Released):
        return event.decision != "rerun"
    return isinstance(event, StepSucceeded) or (isinstance(event, StepFailed) and event.retry_at is None)


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
