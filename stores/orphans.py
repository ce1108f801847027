"""Orphans: heartbeats and emissions whose task is not there, or is another life of its id by now.

What a task leaves behind goes with it; only a body that outlives its task's deletion may leave some.
"""

from typing import NamedTuple

TABLES = ("heartbeats", "emissions")


class Orphans(NamedTuple):
    """Rows of one table that no task has: those of one id and birth, and how many they are."""

    table: str
    task_id: str
    birth: str
    rows: int


# A task whose index row is lost, but whose log is there, comes back when the index is made again.
_IS_ORPHAN = (
    "NOT EXISTS (SELECT 1 FROM task_index WHERE id=task_id AND task_index.birth={table}.birth) AND"
    " (EXISTS (SELECT 1 FROM task_index WHERE id=task_id) OR"
    " NOT EXISTS (SELECT 1 FROM {events} WHERE originator_id=task_id))"
)
_SELECT = "SELECT '{table}', task_id, birth, count(*) FROM {table} WHERE {is_orphan} GROUP BY task_id, birth"


def select(events: str) -> str:
    """Give the SQL of all orphans, by table, id and birth; `events`: the table of events."""
    selects = [_SELECT.format(table=table, is_orphan=_is_orphan(table, events)) for table in TABLES]
    return f"{' UNION ALL '.join(selects)} ORDER BY 1, 2, 3"


def delete(events: str) -> list[str]:
    """Give the SQL that deletes them."""
    return [f"DELETE FROM {table} WHERE {_is_orphan(table, events)}" for table in TABLES]


def _is_orphan(table: str, events: str) -> str:
    return _IS_ORPHAN.format(table=table, events=events)
