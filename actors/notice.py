"""What is new in the log of a task that is watched, in plain facts."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from eventsourcing.persistence import StoredEvent

from actors.task_log import TaskLog
from domain.errors import UnreadableTaskError
from domain.events import Held, Restarted
from domain.faults import Fault
from domain.state import UNREADABLE, Status
from stores import IndexRow

logger = logging.getLogger("perdure")

Also = Literal["held", "restarted"]
"""What may be told besides the end."""

_OPEN = ("queued", "running", "waiting", "held")
_STATUS: dict[Also, Status] = {"held": "held", "restarted": "queued"}
_TOPICS: dict[Also, str] = {"held": Held.TOPIC, "restarted": Restarted.TOPIC}


@dataclass(frozen=True)
class Notice:
    """What the log of a task says has become of it. The result is not in it: ask for it, `system.task(id).result()`.

    `id`: the task's. `kind`: "ended", "held" or "restarted". `status`: the task's status from then on, such as
    "completed" or "failed". `version`: where in the log that stands (1 is the spawn); of a log that cannot be read,
    where it ended when that was found. `reason`: why it is held, in a word or two ("in doubt", "strikes",
    "unreadable" …), or the text of the error for which it has failed or is restarted; empty for one that has
    completed. `at`: when, in Unix seconds.
    """

    id: str
    kind: Literal["ended", "held", "restarted"]
    status: str
    version: int
    reason: str
    at: float


class News:
    """What has not been told yet of one task, to one who watches it from now on; a hold that stands counts as new.

    `over`: nothing more can come. Whatever an event is damaged by, it is told of: that it stands in the log is known.
    """

    def __init__(self, log: TaskLog, row: IndexRow, also: Collection[Also]) -> None:
        self.id = row.id
        self.over = False
        self._log = log
        self._birth = row.birth
        self._also = {_TOPICS[kind]: kind for kind in also}
        self._version = row.head
        self._is_unreadable = False
        if Held.TOPIC in self._also and row.status == "held" and row.hold != UNREADABLE:
            rows = log.recorder.select_events(row.id, lte=row.head, desc=True)
            self._version = next((each.originator_version - 1 for each in rows if each.topic == Held.TOPIC), row.head)

    def take(self, row: IndexRow | None) -> list[Notice]:
        """Give what is new, as the index row has it now, in the order of the log. Raises the store's errors.

        Where it raises, nothing was taken. A task that was deleted, or whose id is another task's now, is told nothing
        more of.
        """
        if row is None or row.birth != self._birth:
            logger.warning("task %s was deleted: who watches it is told nothing more", self.id)
            self.over = True
            return []
        version, notices = self._read_on(row)
        unreadable = row.hold == UNREADABLE
        if unreadable and not self._is_unreadable and Held.TOPIC in self._also:
            notices.append(Notice(self.id, "held", "held", row.head, UNREADABLE, row.updated))
        over = row.status not in _OPEN
        if over:
            notices.append(self._end(row))
        self._version, self._is_unreadable, self.over = version, unreadable, over
        return notices

    def _read_on(self, row: IndexRow) -> tuple[int, list[Notice]]:
        """Read the events that came since; the last one's version, and what is to be told of them."""
        if not self._also or row.head <= self._version:
            return self._version, []
        rows = self._log.recorder.select_events(self.id, gt=self._version)
        version = rows[-1].originator_version if rows else self._version
        return version, [self._between(each, row) for each in rows if each.topic in self._also]

    def _between(self, stored: StoredEvent, row: IndexRow) -> Notice:
        kind = self._also[stored.topic]
        reason, at = self._facts(stored, row)
        return Notice(self.id, kind, _STATUS[kind], stored.originator_version, reason, at)

    def _end(self, row: IndexRow) -> Notice:
        reason = ""
        if row.status != "completed":
            for stored in self._log.recorder.select_events(self.id, gt=row.head - 1, limit=1):
                reason, _ = self._facts(stored, row)
        return Notice(self.id, "ended", row.status, row.head, reason, row.updated)

    def _facts(self, stored: StoredEvent, row: IndexRow) -> tuple[str, float]:
        """Give an event's reason, or its error's text, and its time; where it cannot be read, why not."""
        try:
            event = self._log.mapper.to_domain_event(stored, birth=self._birth)
        except UnreadableTaskError as unreadable:
            return str(unreadable), row.updated
        error = getattr(event, "error", None)
        reason = getattr(event, "reason", "") if error is None else str(Fault.from_data(error))
        return reason, event.timestamp
