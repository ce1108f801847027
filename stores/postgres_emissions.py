"""Emissions in PostgreSQL: see `emissions`, whose rules these are."""

from collections.abc import Sequence
from typing import Any

from psycopg.sql import SQL, Composable, Literal

from stores import emissions
from stores.emissions import EMIT, RESET, Emission
from stores.postgres_rows import encoded, number
from stores.postgres_schema import kind
from stores.postgres_text import loaded, stored

_COLUMNS = ", ".join(Emission._fields)
_SAID = ", ".join(name for name in Emission._fields if name not in ("base", "number"))
_RECORD = ", ".join(f"{name} {kind(name)}" for name in Emission._fields)
_DOWN = "ORDER BY base DESC, number DESC LIMIT 1"
SELECT = f"""SELECT {_COLUMNS} FROM emissions WHERE task_id = %s AND birth = %s
    AND (base, number) > (%s, %s) AND base <= %s ORDER BY base, number LIMIT %s"""

_OF_TASK = "FROM emissions WHERE task_id = {task} AND birth = {birth}"
# What an older birth of the task has said goes with the first row of this one.
_DELETE_OLDER = f"""DELETE FROM emissions WHERE task_id = {{task}} AND NOT EXISTS (SELECT {_OF_TASK})
    AND EXISTS (SELECT FROM task_index WHERE id = {{task}} AND birth = {{birth}})"""
# Of an older activation nothing is stored, and a reset only where there is something to reset.
_INSERT = f"""INSERT INTO emissions (task_id, birth, {_COLUMNS})
    WITH said AS (
        SELECT e.*, t.head, lag(e.kind) OVER (PARTITION BY e.path ORDER BY e.number) AS before
        FROM json_to_recordset({{rows}}::json) AS e ({_RECORD})
        JOIN task_index t ON t.id = {{task}} AND t.birth = {{birth}} AND t.activation <= e.activation
    ), kept AS (
        SELECT s.*, row_number() OVER (ORDER BY s.number) AS place FROM said s WHERE s.kind <> '{RESET}'
        OR coalesce(s.before, (SELECT kind {_OF_TASK} AND path = s.path {_DOWN})) = '{EMIT}'
    ), last AS (SELECT base, number {_OF_TASK} {_DOWN})
    SELECT {{task}}, {{birth}}, {_SAID}, greatest(head, last.base), coalesce(last.number, 0) + place
    FROM kept LEFT JOIN last ON true WHERE coalesce(last.number, 0) + place <= {{last}}"""
# The numbers of a task have no gap, so the oldest one's tells how many rows there are. By their place in the table:
# so the server needs no statistics to go from these few rows to no others.
_TRIM = f"""DELETE FROM emissions WHERE ctid = ANY (ARRAY (
        SELECT ctid {_OF_TASK} ORDER BY base, number LIMIT greatest(
            0, (SELECT number {_OF_TASK} {_DOWN}) - {{most}} + 1
            - (SELECT number {_OF_TASK} ORDER BY base, number LIMIT 1)
        )
    ))"""
_SAVE = SQL(f"{_DELETE_OLDER};\n{_INSERT};\n{_TRIM}")


def saving(task_id: str, birth: str, rows: Sequence[Emission]) -> Composable:
    """Give what does as `TaskRecorder.save_emissions` says, where the index row of the task is locked."""
    records = [_as_record(row, place) for place, row in enumerate(rows)]
    return _SAVE.format(
        task=Literal(stored(task_id)),
        birth=Literal(stored(birth)),
        rows=Literal(encoded(records)),
        last=Literal(emissions.LAST_NUMBER),
        most=Literal(emissions.MOST_EMISSIONS),
    )


def _as_record(row: Emission, place: int) -> dict[str, Any]:
    texts = {name: stored(getattr(row, name)) for name in ("path", "kind", "channel", "value")}
    return {**row._asdict(), **texts, "at": number(row.at), "number": place}


def as_emission(row: Sequence[Any]) -> Emission:
    """Give an emission as it was read."""
    return Emission._make(loaded(value) if isinstance(value, str) else value for value in row)
