"""Heartbeats: one row for each step that gave one, overwritten by the next; never an event."""

CREATE = """CREATE TABLE IF NOT EXISTS heartbeats (
    task_id TEXT NOT NULL, path TEXT NOT NULL, birth TEXT NOT NULL, attempt INTEGER NOT NULL, detail TEXT NOT NULL,
    PRIMARY KEY (task_id, path)
) WITHOUT ROWID"""
SAVE = (
    "INSERT INTO heartbeats (task_id, path, birth, attempt, detail) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (task_id, path) DO UPDATE SET birth=excluded.birth, attempt=excluded.attempt, detail=excluded.detail"
    " WHERE birth<>excluded.birth OR attempt<=excluded.attempt"
)
SELECT = "SELECT attempt, detail FROM heartbeats WHERE task_id=? AND birth=? AND path=?"
DELETE = "DELETE FROM heartbeats WHERE task_id=?"
DELETE_ONE = f"{DELETE} AND path=?"
