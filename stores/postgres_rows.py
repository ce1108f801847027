"""Index rows on their way to PostgreSQL, as JSON, and back."""

import json
import math
from collections.abc import Sequence
from typing import Any

from stores.postgres_text import loaded, loaded_or_none, stored, stored_or_none
from stores.task_index import IndexRow

encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def as_record(entry: IndexRow) -> dict[str, Any]:
    """Give an index row as it is sent."""
    return {
        "id": stored(entry.id),
        "birth": stored(entry.birth),
        "head": entry.head,
        "activation": entry.activation,
        "status": stored(entry.status),
        "agent": stored(entry.agent),
        "created": number(entry.created),
        "updated": number(entry.updated),
        "due": None if entry.due is None else number(entry.due),
        "owner": stored_or_none(entry.owner),
        "strikes": entry.strikes,
        "hold": stored_or_none(entry.hold),
        "note": stored(entry.note),
    }


def as_row(row: Sequence[Any]) -> IndexRow:
    """Give an index row as it was read."""
    task_id, birth, head, activation, status, agent, created, updated, due, owner, strikes, hold, note = row
    return IndexRow(
        loaded(task_id),
        loaded(birth),
        head,
        activation,
        loaded(status),
        loaded(agent),
        created,
        updated,
        due,
        loaded_or_none(owner),
        strikes,
        loaded_or_none(hold),
        loaded(note),
    )


def number(value: float) -> float | str:
    """Give a number as JSON can say it."""
    return value if math.isfinite(value) else str(value)
