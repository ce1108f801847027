"""The logs of entities: rows and events, and how a state is loaded, read on, and appended to.

An entity's stream stands in the same table as the tasks', under its class's topic and its id, with a row in the same
index, by which an append is a compare-and-swap. A row's `state` begins as a task's does (`mapper.py`); its JSON array
is: 1, the version of the event's class, the time, the fields by name, the receipt, and in the first row the birth.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from eventsourcing.persistence import StoredEvent

from actors.commit import REINDEX, commit, has_lost_its_row, remove
from actors.info import VALUE_LIMIT, checked
from actors.mapper import ENTITY, HEAD, SEPARATOR, TOKEN_SIZE, sealed, token_of, unsealed
from actors.patience import Patience
from domain.entity import BASE, STORED, Entity, event_class, topic_of
from domain.entity_state import AnyEvent, EntityState, Receipt
from domain.errors import UnreadableEntityError
from domain.faults import Fault
from domain.values import decode, dumps, loads
from stores import AppendConflictError, IndexRow, Store, StoreUnavailableError, TaskRecorder
from stores.task_index import Expected

logger = logging.getLogger("perdure")

FORMAT = 1


def stream_of(cls: type[Entity], entity_id: str) -> str:
    """Give the name of an entity's stream."""
    return f"{topic_of(cls)}{SEPARATOR}{entity_id}"


class EntityLog:
    """Loads entities, and appends what their commands have decided. Safe in all threads."""

    def __init__(self, store: Store, value_limit: int = VALUE_LIMIT) -> None:
        self._store = store
        self._value_limit = value_limit

    def load(self, cls: type[Entity], entity_id: str, patience: Patience) -> EntityState:
        """Rehydrate an entity by replay; one without a log is new. Raises UnreadableEntityError, the store's errors."""
        state = EntityState(cls, entity_id)
        self.read_on(state, patience)
        return state

    def read_on(self, state: EntityState, patience: Patience) -> list[StoredEvent]:
        """Fold what the log has beyond a state, and give its rows; all of them where it is another log by now.

        The last row that is known is read again: where it has gone, the entity was deleted, and the state is forgotten.
        Raises what `load` does.
        """
        stream, away = stream_of(state.cls, state.id), patience.waiter()
        while True:
            try:
                rows = list(self._store.recorder.select_events(stream, gt=max(0, state.version - 1)))
            except StoreUnavailableError as error:
                away(error)
                continue
            if state.version:
                if not rows or (rows[0].originator_version, rows[0].state[:HEAD]) != (state.version, state.last):
                    state.forget()
                    continue
                del rows[0]
            for row in rows:
                self._fold(state, row)
            return rows

    def delete(self, topic: str, entity_id: str, patience: Patience) -> bool:
        """Delete an entity, whose class need not be known and whose log need not be readable; tells if there was one.

        It is one transaction, and goes by the index: who appends for the deleted one afterwards is refused. Raises
        UnreadableEntityError where the index has lost its row, with nothing deleted; the store's errors.
        """
        stream, recorder = f"{topic}{SEPARATOR}{entity_id}", self._store.recorder

        def prepare(row: IndexRow | None) -> IndexRow | None:
            if row is None and has_lost_its_row(recorder, stream):
                what = f"{topic} {entity_id}: its log is there, its index row is not, and nothing was deleted"
                what += f": stop the workers, make the index again by {REINDEX}, and delete it then"
                raise UnreadableEntityError(what, topic=topic, entity_id=entity_id, version=1)
            return row

        return remove(recorder, stream, prepare, patience.waiter())

    def append(
        self, state: EntityState, events: Sequence[AnyEvent], receipt: Receipt | None, patience: Patience
    ) -> bool:
        """Commit events, then take them for the state; False where others were first: theirs are folded instead.

        False too where the entity was deleted meanwhile: the state is forgotten then.

        Raises what the fold of the events does, UnstorableValueError, both with nothing stored; the store's errors
        when patience is out.
        """
        stream, token = stream_of(state.cls, state.id), os.urandom(TOKEN_SIZE)
        birth = state.birth or secrets.token_hex(8)
        receipts = [*[None] * (len(events) - 1), receipt]
        rows = [self._row(e, stream, birth, token, r) for e, r in zip(events, receipts, strict=True)]
        read = [_read(row, state.id, birth)[0] for row in rows]
        entity, draft = state.after(read)
        times = [event.timestamp.timestamp() for event in read]
        entry = _entry(stream, birth, rows[-1].originator_version, state.created or times[0], times[-1])
        expected = (state.birth, state.version) if state.version else None
        away, recorder = patience.waiter(), self._store.recorder
        try:
            found = commit(recorder, rows, entry, expected, read_on=lambda: self.read_on(state, patience), away=away)
        except AppendConflictError as conflict:  # and no row says why
            now = (state.birth, state.version) if state.version else None
            if now != expected or self._is_at(stream, expected, away):
                return False
            why = f"its index row is not what its log says, and has to be made again from it: {conflict}"
            raise _unreadable(state, state.version, why) from conflict
        if found:
            return token_of(found[0]) == token
        state.birth = birth
        state.swap(entity, draft, read, receipt)
        state.last = rows[-1].state[:HEAD]
        return True

    def _is_at(self, stream: str, expected: Expected, away: Callable[[StoreUnavailableError], None]) -> bool:
        """Tell whether the index row is as expected after all: what stood in the way was deleted meanwhile."""
        while True:
            try:
                row = self._store.recorder.select_entry(stream)
            except StoreUnavailableError as error:
                away(error)
            else:
                return expected == (None if row is None else (row.birth, row.head))

    def _row(self, event: AnyEvent, stream: str, birth: str, token: bytes, receipt: Receipt | None) -> StoredEvent:
        kind, version = type(event), event.originator_version
        stored = vars(event).get(STORED, {})
        now = {name: value for name, value in vars(event).items() if name not in BASE and name != STORED}
        fields = checked(now, self._value_limit) | stored
        at, class_version = event.timestamp.timestamp(), getattr(kind, "class_version", 1)
        payload = [FORMAT, class_version, at, fields, receipt and [*receipt]]
        if version == 1:
            payload.append(birth)
        topic: str = vars(kind)["TOPIC"]
        state = sealed(stream, birth, version, topic, token, dumps(payload).encode())
        return StoredEvent(stream, version, topic, state)

    def _fold(self, state: EntityState, row: StoredEvent) -> None:
        try:
            if row.originator_version != state.version + 1:
                raise ValueError(f"version {state.version + 1} is expected here")
            event, receipt, state.birth = _read(row, state.id, state.birth)
            state.fold(event, receipt)
            state.last = row.state[:HEAD]
        except Exception as error:
            why = f"version {row.originator_version} of its log cannot be read: {Fault.of(error)!s:.500}"
            raise _unreadable(state, row.originator_version, why) from error


def _unreadable(state: EntityState, version: int, why: str) -> UnreadableEntityError:
    message = f"{state.topic} {state.id}: {why}"
    return UnreadableEntityError(message, topic=state.topic, entity_id=state.id, version=version)


def _read(row: StoredEvent, entity_id: str, birth: str) -> tuple[AnyEvent, Receipt | None, str]:
    """Read a row: its event, the receipt that goes with it, and the birth. Raises ValueError."""
    payload = loads(row.state[HEAD:])
    if not isinstance(payload, list) or payload[:1] != [FORMAT] or len(payload) not in (5, 6):
        raise ValueError("it holds no event of an entity, or one that a newer perdure has written")
    _, class_version, at, fields, receipt, *born = payload
    birth = str(born[0]) if born else birth
    unsealed(row, birth)
    kind: Any = event_class(row.topic)
    if kind is None:
        raise ValueError(
            f"its topic {row.topic!r} is not known to this process: import the entity's class; an event that was"
            f" renamed keeps its old name by @event(…, topic={row.topic!r})"
        )
    known = getattr(kind, "class_version", 1)
    if class_version > known:
        raise ValueError(f"it is of version {class_version} of {row.topic}, this code knows up to {known}")
    values = {name: decode(value) for name, value in fields.items()}
    for older in range(class_version, known):
        getattr(kind, f"upcast_v{older}_v{older + 1}")(values)
    if hasattr(kind, "originator_topic") or "originator_topic" in kind.__dataclass_fields__:
        values["originator_topic"] = str(row.originator_id).partition(SEPARATOR)[0]
    when = datetime.fromtimestamp(at, UTC)
    event = kind(originator_id=entity_id, originator_version=row.originator_version, timestamp=when, **values)
    return event, Receipt(*receipt) if receipt else None, birth


def _entry(stream: str, birth: str, head: int, created: float, updated: float) -> IndexRow:
    topic = stream.partition(SEPARATOR)[0]
    return IndexRow(stream, birth, head, 0, ENTITY, topic, created, updated)


def entity_row(recorder: TaskRecorder, stream: str, old: IndexRow | None) -> IndexRow:
    """Make the index row of an entity again from its log; where that cannot be read, the old one stays.

    Without an old one it is one that fits no append, and by which the entity can be deleted.
    """
    rows = list(recorder.select_events(stream))
    try:
        return row_of_log(stream, rows)
    except ValueError as error:
        name = stream.replace(SEPARATOR, " ")
        logger.error("the index row of entity %s is not made again, its log cannot be read: %s", name, error)
        return old or _entry(stream, "", len(rows), 0.0, 0.0)


def row_of_log(stream: str, rows: Sequence[StoredEvent]) -> IndexRow:
    """Give the index row that follows from all rows of an entity; its class need not be known.

    Raises ValueError, which names the version, for rows with a gap, and for what was changed after it was written.
    """
    birth, version = "", 0
    try:
        first: Any = loads(rows[0].state[HEAD:])
        last: Any = loads(rows[-1].state[HEAD:])
        birth = str(first[5])
        for version, row in enumerate(rows, 1):
            if row.originator_version != version:
                raise ValueError("it is missing")
            unsealed(row, birth)
        return _entry(stream, birth, version, float(first[2]), float(last[2]))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"version {version or 1}: {error}") from None
