"""Rows and events: the one place that knows the bytes of a row.

A row's `state` is a checksum of 8 bytes, the 8 byte token of the append that wrote it, and a JSON array. The checksum
covers id, birth, version, topic and all that follows it, so that a flipped byte, or a row of an earlier task under
the same id, is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from eventsourcing.domain import DomainEventProtocol
from eventsourcing.persistence import AggregateRecorder, EventStore, Mapper, StoredEvent

from domain.errors import UnreadableTaskError
from domain.events import Created, TaskEvent, revive
from domain.values import dumps, loads

TOKEN_SIZE = 8
_CHECKSUM_SIZE = 8
HEAD = _CHECKSUM_SIZE + TOKEN_SIZE

SEPARATOR = "\x1f"
"""Between topic and id in the name of an entity's stream: no task's id can have it."""
ENTITY = "entity"
"""What the index has as the status of an entity."""


def is_stream(name: str) -> bool:
    """Tell the stream of an entity from the id of a task."""
    return SEPARATOR in name


class TaskMapper(Mapper[str]):
    """Maps events to rows and back, for the task that has `birth`.

    Raises UnreadableTaskError for a row that is not as it was written.
    """

    def __init__(self) -> None:
        """Make a mapper; it needs none of the library's transcoders, ciphers and compressors."""

    def to_stored_event(
        self, domain_event: DomainEventProtocol[str], *, birth: str = "", token: bytes = bytes(TOKEN_SIZE)
    ) -> StoredEvent:
        """Give the row of an event, written under an append's token."""
        assert isinstance(domain_event, TaskEvent)  # noqa: S101  narrows the library's type
        task_id, version, topic = domain_event.originator_id, domain_event.originator_version, domain_event.TOPIC
        payload = dumps(domain_event.payload()).encode()
        return StoredEvent(task_id, version, topic, sealed(task_id, birth, version, topic, token, payload))

    def to_domain_event(self, stored_event: StoredEvent, *, birth: str = "") -> TaskEvent:
        """Read a row. `Created` brings its task's birth itself."""
        task_id, version, topic = str(stored_event.originator_id), stored_event.originator_version, stored_event.topic
        try:
            if version == 1:
                birth = str(_payload(stored_event)[_BIRTH])
            unsealed(stored_event, birth)
            return revive(topic, task_id, version, _payload(stored_event))
        except (ValueError, TypeError, IndexError, KeyError, RecursionError) as error:
            raise UnreadableTaskError(
                f"task {task_id}: version {version} of its log cannot be read: {error}",
                task_id=task_id,
                version=version,
            ) from None


class TaskEvents(EventStore[str]):
    """The library's event store, which hands the birth of a task on from its first row to the others."""

    mapper: TaskMapper

    def __init__(self, mapper: TaskMapper, recorder: AggregateRecorder) -> None:
        super().__init__(mapper, recorder)

    def get(
        self,
        originator_id: str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
        birth: str = "",
    ) -> Iterator[TaskEvent]:
        """Read events; `birth` is needed where the first row is not among them. The stream of an entity is no task."""
        if is_stream(originator_id):
            return iter(())
        rows = self.recorder.select_events(originator_id, gt=gt, lte=lte, desc=desc, limit=limit)
        return self.read(rows, birth)

    def read(self, rows: Iterable[StoredEvent], birth: str = "") -> Iterator[TaskEvent]:
        """Map rows of one task, one by one."""
        to_event = self.mapper.to_domain_event
        for row in rows:
            event = to_event(row, birth=birth)
            if isinstance(event, Created):
                birth = event.birth
            yield event


def token_of(row: StoredEvent) -> bytes:
    """Give the token of the append that wrote a row."""
    return row.state[_CHECKSUM_SIZE:HEAD]


def sealed(stream: str, birth: str, version: int, topic: str, token: bytes, payload: bytes) -> bytes:
    """Give a row's state: checksum, token and payload."""
    rest = token + payload
    return _checksum(stream, birth, version, topic, rest) + rest


def unsealed(row: StoredEvent, birth: str) -> None:
    """Raise ValueError unless a row is as it was sealed, and for this birth."""
    rest = row.state[_CHECKSUM_SIZE:]
    checksum = _checksum(str(row.originator_id), birth, row.originator_version, row.topic, rest)
    if checksum != row.state[:_CHECKSUM_SIZE]:
        raise ValueError("its checksum does not match: the row was changed after it was written")


def _checksum(stream: str, birth: str, version: int, topic: str, rest: bytes) -> bytes:
    head = f"{stream}\0{birth}\0{version}\0{topic}\0".encode()
    return blake2b(head + rest, digest_size=_CHECKSUM_SIZE).digest()


def _payload(row: StoredEvent) -> list[Any]:
    payload = loads(row.state[HEAD:])
    if not isinstance(payload, list):
        raise ValueError("it holds no event")  # noqa: TRY004  a fault of the data, not of a type in the program
    return payload


_BIRTH = Created.STORED.index("birth")
