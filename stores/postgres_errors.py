"""What psycopg raises, in the words of a store."""

import eventsourcing.persistence as library
import psycopg

from stores.errors import StoreCorruptError, StoreUnavailableError

_UNAVAILABLE = ("08", "0A", "25", "28", "3D", "40", "53", "54", "55", "57", "58")
"""Classes of SQLSTATE by which the server says that it cannot now, or does not let us in."""
_DENIED = "42501"
_DAMAGED = ("3F", "42", "XX")
_LEFT = ("08", "57P")
"""What a server says as it goes, so that it does not say what became of the commit."""
_FULL = ("too many connections", "too many clients", "remaining connection slots")
"""What a server says, without a SQLSTATE that would reach us, that takes no connection more."""
NEEDED = (
    "a process takes 2 connections to open a store and 1 for each worker, 1 more to hear of other processes at once"
    " (else it looks twice a second), and as it has much to read, up to readers= (4) in place of 1"
)


def is_lost(error: psycopg.Error) -> bool:
    """Tell whether the server has gone without a word on the statement itself."""
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate.startswith(_LEFT)
    )


def translated(error: psycopg.Error, url: str, *, committing: bool = False) -> Exception:
    """Give the error to raise for one of psycopg: ours, or the library's for a wrong row or call.

    `committing`: whether it came out of what would have committed.
    """
    reason = " ".join(str(error).split())
    if any(words in reason for words in _FULL):
        reason = f"{reason}; {NEEDED}"
    if committing and is_lost(error):
        message = (
            f"{url}: the commit was not acknowledged ({reason}); whether it is stored is known only by reading back"
        )
        return StoreUnavailableError(message, url=url, reason=reason, unknown_fate=True)
    state = error.sqlstate or ""
    if is_lost(error) or state == _DENIED or state.startswith(_UNAVAILABLE):
        return StoreUnavailableError(f"{url}: {reason}", url=url, reason=reason)
    if state.startswith(_DAMAGED):
        return StoreCorruptError(f"{url}: damaged, or not a store of perdure: {reason}", url=url)
    names = (kind.__name__ for kind in type(error).__mro__)
    mirror: type[Exception] = next(
        (getattr(library, name) for name in names if hasattr(library, name)), library.DatabaseError
    )
    return mirror(reason)
