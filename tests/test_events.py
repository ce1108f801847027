"""The events: a closed table, and stored bytes that outlive the code."""

import dataclasses
from typing import Any

import pytest

from domain.events import EVENTS, TaskEvent, revive

FROZEN = {
    ("task.created", 1): ["timestamp", "birth", "agent", "input", "parent", "tags", "options"],
    ("task.activated", 1): ["timestamp", "number", "worker", "token"],
    ("step.started", 1): ["timestamp", "path", "kind", "name", "attempt", "digest", "label", "doubt"],
    ("step.started", 2): ["timestamp", "path", "kind", "name", "attempt", "digest", "label", "doubt", "reserved"],
    ("step.succeeded", 1): ["timestamp", "path", "kind", "name", "digest", "attempt", "value", "source"],
    ("step.failed", 1): ["timestamp", "path", "kind", "name", "digest", "attempt", "error", "retry_at"],
    ("task.restarted", 1): ["timestamp", "activation", "error", "strikes", "due"],
    ("task.restart_asked", 1): ["timestamp", "cause", "by"],
    ("task.passivated", 1): ["timestamp", "activation", "cut_off"],
    ("task.passivated", 2): ["timestamp", "activation", "cut_off", "due"],
    ("task.passivated", 3): ["timestamp", "activation", "cut_off", "due", "waits"],
    ("task.held", 1): ["timestamp", "activation", "reason", "path", "details"],
    ("task.released", 1): ["timestamp", "path", "decision", "value", "by"],
    ("task.completed", 1): ["timestamp", "value"],
    ("task.failed", 1): ["timestamp", "error", "doubts"],
    ("wait.began", 1): ["timestamp", "path", "kind", "name", "sources", "due"],
    ("wait.ended", 1): ["timestamp", "path", "kind", "name", "source", "signal"],
    ("signal.received", 1): ["timestamp", "signal", "name", "value", "by"],
    ("approval.requested", 1): ["timestamp", "path", "kind", "name", "label", "details"],
    ("child.spawned", 1): ["timestamp", "path", "kind", "name", "child", "policy"],
    ("undo.registered", 1): ["timestamp", "path", "name", "arguments"],
    ("cancel.requested", 1): ["timestamp", "reason", "by", "grace"],
    ("cancel.delivered", 1): ["timestamp", "path", "kind", "name", "digest"],
    ("task.concluded", 1): ["timestamp", "status", "value", "error", "doubts", "cut"],
    ("task.cancelled", 1): ["timestamp", "reason", "by", "doubts", "cut"],
}
"""Topic and schema: the order of the stored fields. Written by a release, so never edited: a new field goes to the end
of a higher schema, and logs of this one must still be read."""
MISSING: dict[tuple[str, int], dict[str, Any]] = {
    ("task.passivated", 1): {"due": None, "waits": False},
    ("task.passivated", 2): {"waits": False},
    ("step.started", 1): {"reserved": None},
}
"""What an event of an older schema has in the fields that it was stored without."""
NEWEST = {topic: schema for topic, schema in FROZEN}  # noqa: C416  the last of each

SAMPLES: dict[tuple[str, int], list[Any]] = {
    (topic, schema): [schema, 12.5, *[f"the {field}" for field in fields[1:]]]
    for (topic, schema), fields in FROZEN.items()
}


def test_topics_schemas_and_the_order_of_the_fields_are_frozen() -> None:
    now = {(topic, event.SCHEMA): list(event.STORED[1:]) for topic, event in EVENTS.items()}
    assert now == {(topic, schema): FROZEN[topic, schema] for topic, schema in NEWEST.items()}


def test_a_higher_schema_only_adds_fields_to_the_end() -> None:
    for (topic, schema), fields in FROZEN.items():
        assert FROZEN[topic, NEWEST[topic]][: len(fields)] == fields
        assert schema == 1 or (topic, schema - 1) in FROZEN


def test_every_event_is_in_the_table() -> None:
    assert set(EVENTS.values()) == set(TaskEvent.__subclasses__())


@pytest.mark.parametrize(("topic", "schema"), FROZEN)
def test_an_event_comes_back_as_it_was_stored(topic: str, schema: int) -> None:
    payload = SAMPLES[topic, schema]
    missing = MISSING.get((topic, schema), {})
    event = revive(topic, "t", 7, payload)
    assert type(event) is EVENTS[topic]
    assert event == EVENTS[topic]("t", 7, *payload[1:], *missing.values())
    assert (event.originator_id, event.originator_version) == ("t", 7)
    assert event.payload() == payload, "in the oldest schema that holds it"
    assert {name: getattr(event, name) for name in missing} == missing
    assert payload == SAMPLES[topic, schema], "what was read is not changed"


def test_a_passivation_of_the_first_schema_waits_for_nothing() -> None:
    event = revive("task.passivated", "t", 3, [1, 12.5, 2, ["1"]])
    assert vars(event) == {
        "originator_id": "t",
        "originator_version": 3,
        "timestamp": 12.5,
        "activation": 2,
        "cut_off": ["1"],
        "due": None,
        "waits": False,
    }


@pytest.mark.parametrize("topic", EVENTS)
def test_an_event_cannot_be_changed(topic: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        revive(topic, "t", 1, SAMPLES[topic, 1]).timestamp = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "topic", ["", "task.Created", "task.created ", "domain.events:Created", "builtins:print", "os:system"]
)
def test_an_unknown_topic_is_refused_and_imports_nothing(topic: str) -> None:
    with pytest.raises(ValueError, match=r"its topic .* is not known to this version of perdure"):
        revive(topic, "t", 1, [1, 2.0])


@pytest.mark.parametrize(("topic", "schema"), FROZEN)
def test_another_schema_or_number_of_fields_is_refused(topic: str, schema: int) -> None:
    payload, newest = SAMPLES[topic, schema], NEWEST[topic]
    schemas: list[Any] = [0, -1, newest + 1, str(schema), float(schema) + 0.5, None]
    for bad in ([], *([other, *payload[1:]] for other in schemas), payload[:-1], [*payload, None]):
        with pytest.raises(ValueError, match=f"it is not a '{topic}' event of schema {newest}"):
            revive(topic, "t", 1, bad)
