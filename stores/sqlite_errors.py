"""The errors of SQLite, as a store raises them."""

import sqlite3

import eventsourcing.persistence as library

from stores.errors import StoreCorruptError, StoreUnavailableError

_UNAVAILABLE = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
}
_CORRUPT = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB}


def translated(error: sqlite3.Error, url: str, *, committing: bool = False) -> Exception:
    """Give the error to raise for one of sqlite3: ours, or the library's for a wrong row or call."""
    reason = str(error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if committing:
        message = f"{url}: the commit failed ({reason}); whether it is stored is known only by reading back"
        return StoreUnavailableError(message, url=url, reason=reason, unknown_fate=True)
    if code in _UNAVAILABLE:
        return StoreUnavailableError(f"{url}: {reason}", url=url, reason=reason)
    if code in _CORRUPT:
        return StoreCorruptError(f"{url}: damaged, or not a store of perdure: {reason}", url=url)
    mirror: type[Exception] = getattr(library, type(error).__name__, library.DatabaseError)
    return mirror(reason)
