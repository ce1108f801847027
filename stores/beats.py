"""Beats: one row for each worker that renews its lease, overwritten by its next; never an event."""

CREATE = """CREATE TABLE IF NOT EXISTS beats (
    worker TEXT PRIMARY KEY, count INTEGER NOT NULL, lease REAL NOT NULL
) WITHOUT ROWID"""
SAVE = (
    "INSERT INTO beats (worker, count, lease) VALUES (?, ?, ?)"
    " ON CONFLICT (worker) DO UPDATE SET count=excluded.count, lease=excluded.lease"
)
SELECT = "SELECT worker, count, lease FROM beats"
DELETE = "DELETE FROM beats WHERE worker=?"
