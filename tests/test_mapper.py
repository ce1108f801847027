"""Rows: their bytes are frozen, and whatever is not as it was written is refused."""

import pytest
from eventsourcing.persistence import StoredEvent
from hypothesis import given
from hypothesis import strategies as st

from actors.mapper import TOKEN_SIZE, TaskEvents, TaskMapper, token_of
from domain.errors import UnreadableTaskError
from domain.events import Created, StepSucceeded, TaskEvent
from domain.state import idempotency_key
from domain.values import encode
from stores import IndexRow, open_store

BIRTH = "5d1bcaa2d1f4bb10"
TOKEN = b"\x00\x01token"[:TOKEN_SIZE].ljust(TOKEN_SIZE, b"\xff")
CREATED = Created("invoice-7", 1, 1762000000.25, BIRTH, "report", [["Grüße"], {}], "", {"team": "a"}, {})
SUCCEEDED = StepSucceeded(
    "invoice-7", 4, 1762000001.5, "1", "step", "draft", "00ff00ff00ff00ff", 1, encode((1, b"\x00", None, 0.1)), ""
)
MAPPER = TaskMapper()


def stored(event: TaskEvent, birth: str = BIRTH) -> StoredEvent:
    return MAPPER.to_stored_event(event, birth=birth, token=TOKEN)


FROZEN = [
    (
        CREATED,
        "task.created",
        bytes.fromhex("804497aa2b584cf1") + b"\x00\x01token\xff"
        b'[1,1762000000.25,"5d1bcaa2d1f4bb10","report",[["Gr\\u00fc\\u00dfe"],{}],"",{"team":"a"},{}]',
    ),
    (
        SUCCEEDED,
        "step.succeeded",
        bytes.fromhex("9fbb8eb9a75a8228") + b"\x00\x01token\xff"
        b'[1,1762000001.5,"1","step","draft","00ff00ff00ff00ff",1,'
        b'{"$":"tuple","v":[1,{"$":"bytes","v":"AA=="},null,0.1]},""]',
    ),
]
"""Rows as a release has written them: never edit one."""


@pytest.mark.parametrize(("event", "topic", "state"), FROZEN, ids=["created", "succeeded"])
def test_the_bytes_of_a_row_are_frozen(event: TaskEvent, topic: str, state: bytes) -> None:
    row = stored(event)
    assert (row.originator_id, row.originator_version, row.topic) == ("invoice-7", event.originator_version, topic)
    assert row.state == state
    assert MAPPER.to_domain_event(row, birth=BIRTH) == event


def test_idempotency_keys_are_frozen() -> None:
    assert idempotency_key(BIRTH, "1") == "pd_DR0oEaDmh4vmj84vxIM0hfXh"
    assert idempotency_key(BIRTH, "3/1/1") == "pd_T-70LNQ93KFCr5_v8cHC84QS"
    assert idempotency_key(BIRTH, "1", 1) == "pd_KMZW_3LddYhFBK0WiHd3zXmP"


def refused(row: StoredEvent, birth: str = BIRTH) -> UnreadableTaskError:
    with pytest.raises(UnreadableTaskError, match=f"version {row.originator_version} of its log cannot") as caught:
        MAPPER.to_domain_event(row, birth=birth)
    assert (caught.value.task_id, caught.value.version) == (row.originator_id, row.originator_version)
    return caught.value


def with_state(row: StoredEvent, state: bytes) -> StoredEvent:
    return StoredEvent(row.originator_id, row.originator_version, row.topic, state)


@pytest.mark.parametrize("event", [CREATED, SUCCEEDED], ids=["created", "succeeded"])
def test_every_flipped_byte_is_seen(event: TaskEvent) -> None:
    row = stored(event)
    for index, byte in enumerate(row.state):
        for flip in (0x01, 0x02, 0x08, 0x20, 0x80, 0xFF):
            refused(with_state(row, row.state[:index] + bytes([byte ^ flip]) + row.state[index + 1 :]))


@pytest.mark.parametrize("event", [CREATED, SUCCEEDED], ids=["created", "succeeded"])
def test_a_row_that_was_cut_or_has_more_is_seen(event: TaskEvent) -> None:
    row = stored(event)
    for state in [row.state[:size] for size in range(len(row.state))] + [row.state + b" ", row.state + b"\x00"]:
        refused(with_state(row, state))


@given(st.binary(max_size=120), st.sampled_from([1, 4]))
def test_no_other_bytes_are_taken_for_a_row(state: bytes, version: int) -> None:
    refused(StoredEvent("invoice-7", version, "step.succeeded", state))


def test_a_row_of_another_birth_is_refused() -> None:
    refused(stored(SUCCEEDED, birth="another"))
    refused(stored(SUCCEEDED), birth="another")
    refused(stored(SUCCEEDED), birth="")


def test_a_row_of_another_task_version_or_topic_is_refused() -> None:
    row = stored(SUCCEEDED)
    for other in [
        StoredEvent("invoice-8", 4, row.topic, row.state),
        StoredEvent("invoice-7", 5, row.topic, row.state),
        StoredEvent("invoice-7", 1, row.topic, row.state),
        StoredEvent("invoice-7", 4, "step.failed", row.state),
        StoredEvent("invoice-7", 4, "task.no.such", row.state),
    ]:
        refused(other)


def test_a_message_says_what_is_wrong_with_a_row() -> None:
    row = stored(SUCCEEDED)
    flipped = with_state(row, row.state[:-1] + b"}")
    assert str(refused(flipped)) == (
        "task invoice-7: version 4 of its log cannot be read: its checksum does not match: the row was changed after"
        " it was written"
    )


def test_the_token_of_a_row_is_that_of_its_append() -> None:
    assert token_of(stored(SUCCEEDED)) == TOKEN


def test_a_creation_brings_its_birth_and_hands_it_on() -> None:
    with open_store("memory:") as store:
        entry = IndexRow("invoice-7", BIRTH, 1, 0, "queued", "report", 1.0, 1.0)
        store.recorder.insert_events([stored(CREATED)], entry=entry, expected=None)
        second = StepSucceeded("invoice-7", 2, *SUCCEEDED.payload()[1:])
        head = IndexRow("invoice-7", BIRTH, 2, 0, "queued", "report", 1.0, 1.0)
        store.recorder.insert_events([stored(second)], entry=head, expected=(BIRTH, 1))
        events = TaskEvents(MAPPER, store.recorder)
        assert list(events.get("invoice-7")) == [CREATED, second]
        assert list(events.get("invoice-7", gt=1, birth=BIRTH)) == [second]
        with pytest.raises(UnreadableTaskError, match="version 2"):
            list(events.get("invoice-7", gt=1))
