"""The bytes of an entity's rows: written by a release, and read by every later one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from eventsourcing.persistence import StoredEvent

from actors import AgentSystem, Entity, UnreadableEntityError, event
from actors.entity_log import EntityLog
from actors.mapper import HEAD
from actors.patience import Patience
from stores import IndexRow, Store, open_store


class Safe(Entity):
    TOPIC = "rows.safe"

    def __init__(self, limit: Decimal = Decimal(50)) -> None:
        self.limit = limit
        self.content: list[Decimal] = []

    def put(self, amount: Decimal) -> Decimal:
        self.filled(amount)
        return sum(self.content, Decimal(0))

    @event("Filled", topic="rows.safe.filled")
    def filled(self, amount: Decimal) -> None:
        self.content.append(amount)


STREAM = "rows.safe\x1fvault 7"
ROWS = [
    (
        "rows.safe.Created",
        "c3722b286138171a746f6b656e303031",
        [1, 1, 1790000000.25, {"limit": {"$": "decimal", "v": "50"}}, None, "b1f7"],
    ),
    (
        "rows.safe.filled",
        "dace8575f07ddce4746f6b656e303031",
        [
            1,
            1,
            1790000000.25,
            {"amount": {"$": "decimal", "v": "1.50"}},
            ["key", "put", "d1", {"$": "decimal", "v": "1.50"}],
        ],
    ),
]
"""Topic, checksum and token, payload. Never edited."""


def frozen() -> Store:
    store = open_store("memory:")
    rows = [
        StoredEvent(STREAM, version, topic, bytes.fromhex(head) + json.dumps(payload, separators=(",", ":")).encode())
        for version, (topic, head, payload) in enumerate(ROWS, 1)
    ]
    entry = IndexRow(STREAM, "b1f7", 2, 0, "entity", "rows.safe", 1790000000.25, 1790000000.25)
    store.recorder.insert_events(rows, entry=entry, expected=None)
    return store


def test_rows_of_this_format_are_read_for_ever() -> None:
    state = EntityLog(frozen()).load(Safe, "vault 7", Patience(1))
    assert isinstance(state.aggregate, Safe)
    assert (state.birth, state.version, state.aggregate.id) == ("b1f7", 2, "vault 7")
    assert (state.aggregate.limit, state.aggregate.content) == (Decimal(50), [Decimal("1.50")])
    assert state.aggregate.created_on == datetime.fromtimestamp(1790000000.25, UTC)
    assert tuple(state.receipts["key"]) == ("key", "put", "d1", {"$": "decimal", "v": "1.50"})


def test_what_is_appended_has_this_format_and_leads_on() -> None:
    store = frozen()
    with AgentSystem(store, run=False) as client:
        assert client.entity(Safe, "vault 7").with_key("k2").ask(Safe.put, Decimal(2)) == Decimal("3.50")
        assert client.entity(Safe, "fresh").ask(Safe.put, Decimal(2)) == Decimal(2)
        (row,) = store.recorder.select_events(STREAM, gt=2)
        fresh = store.recorder.select_events("rows.safe\x1ffresh")
    form, version, _, fields, receipt = json.loads(row.state[HEAD:])
    assert (row.topic, form, version, fields) == ("rows.safe.filled", 1, 1, {"amount": {"$": "decimal", "v": "2"}})
    assert receipt[:2] == ["k2", "put"]
    assert receipt[3] == {"$": "decimal", "v": "3.50"}
    assert [len(json.loads(one.state[HEAD:])) for one in fresh] == [6, 5]
    assert json.loads(fresh[1].state[HEAD:])[4] is None


@pytest.mark.parametrize("at", [0, 9, 20, 60])
def test_a_byte_that_was_changed_is_seen(at: int) -> None:
    store = open_store("memory:")
    rows = list(frozen().recorder.select_events(STREAM))
    state = bytearray(rows[1].state)
    state[at] ^= 1
    rows[1] = StoredEvent(STREAM, 2, rows[1].topic, bytes(state))
    entry = IndexRow(STREAM, "b1f7", 2, 0, "entity", "rows.safe", 1790000000.25, 1790000000.25)
    store.recorder.insert_events(rows, entry=entry, expected=None)
    with pytest.raises(UnreadableEntityError, match="version 2") as caught:
        EntityLog(store).load(Safe, "vault 7", Patience(1))
    assert (caught.value.topic, caught.value.entity_id, caught.value.version) == ("rows.safe", "vault 7", 2)
