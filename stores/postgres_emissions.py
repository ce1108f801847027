"""Emissions in PostgreSQL: see `emissions`, whose rules these are."""

from collections.abc import Sequence
from typing import Any

from stores import emissions
from stores.emissions import EMIT, RESET, Emission
from stores.postgres_append import Cursor
from stores.postgres_rows import encoded, number
from stores.postgres_schema import kind
from stores.postgres_text import loaded, stored

_COLUMNS = ", ".join(Emission._fields)
_OF_TASK = "FROM emissions WHERE task_id = %s AND birth = %s"
_UP, _DOWN = "ORDER BY base, number", "ORDER BY base DESC, number DESC"
SELECT = f"SELECT {_COLUMNS} {_OF_TASK} AND (base, number) > (%s, %s) AND base <= %s {_UP} LIMIT %s"
_DELETE = "DELETE FROM emissions WHERE task_id = %s"
_ROW = "SELECT head, activation FROM task_index WHERE id = %s AND birth = %s"
_LAST = f"SELECT base, number {_OF_TASK} {_DOWN} LIMIT 1"
_KIND = f"SELECT kind {_OF_TASK} AND path = %s {_DOWN} LIMIT 1"
_NTH = f"SELECT base, number {_OF_TASK} {_UP} LIMIT 1 OFFSET %s"
_TRIM = f"DELETE {_OF_TASK} AND (base, number) < (%s, %s)"
_RECORD = ", ".join(f"{name} {kind(name)}" for name in Emission._fields)
_INSERT = (
    f"INSERT INTO emissions (task_id, birth, {_COLUMNS}) SELECT %s, %s, {_COLUMNS}"
    f" FROM json_to_recordset(%s::json) AS e ({_RECORD})"
)


def save(cursor: Cursor, task_id: str, birth: str, rows: Sequence[Emission]) -> None:
    """Do what `TaskRecorder.save_emissions` says, in a transaction that has the index row of the task locked."""
    key = (stored(task_id), stored(birth))
    found = cursor.execute(_ROW, key).fetchall()
    if not found:
        return
    ((head, newest),) = found
    last = cursor.execute(_LAST, key).fetchall()
    if not last:
        cursor.execute(_DELETE, key[:1])  # of an older birth
    base, count = last[0] if last else (0, 0)
    base = max(base, head)
    kinds: dict[str, str] = {}
    kept: list[dict[str, Any]] = []
    for row in rows:
        if row.activation < newest or count == emissions.LAST_NUMBER or not _counts(cursor, key, row, kinds):
            continue
        count += 1
        kinds[row.path] = row.kind
        kept.append(_as_record(row, base, count))
    if kept:
        cursor.execute(_INSERT, [*key, encoded(kept)])
    _trim(cursor, key, count)


def _counts(cursor: Cursor, key: tuple[str, str], row: Emission, kinds: dict[str, str]) -> bool:
    """Tell whether a row is to be stored: a reset only where there is something to reset."""
    if row.kind != RESET:
        return True
    if row.path not in kinds:
        found = cursor.execute(_KIND, [*key, stored(row.path)]).fetchall()
        kinds[row.path] = found[0][0] if found else RESET
    return kinds[row.path] == EMIT


def _trim(cursor: Cursor, key: tuple[str, str], count: int) -> None:
    """Keep the newest rows: their numbers have no gap, so the oldest one's tells how many there are."""
    oldest = cursor.execute(_NTH, [*key, 0]).fetchall()
    surplus = count - emissions.MOST_EMISSIONS - oldest[0][1] + 1 if oldest else 0
    if surplus > 0:
        ((base, first),) = cursor.execute(_NTH, [*key, surplus]).fetchall()
        cursor.execute(_TRIM, [*key, base, first])


def _as_record(row: Emission, base: int, count: int) -> dict[str, Any]:
    texts = {name: stored(getattr(row, name)) for name in ("path", "kind", "channel", "value")}
    return {**row._asdict(), **texts, "at": number(row.at), "base": base, "number": count}


def as_emission(row: Sequence[Any]) -> Emission:
    """Give an emission as it was read."""
    return Emission._make(loaded(value) if isinstance(value, str) else value for value in row)
