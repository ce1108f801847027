"""A PostgreSQL URL: what of it is for libpq, what is ours, and what of it may be shown."""

import math
from typing import Any, NamedTuple
from urllib.parse import unquote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from stores.errors import InvalidStoreURLError
from stores.shown_url import OURS, PARTS, hidden, misread, shown_url

SCHEMA_NAME = "perdure"
"""The database schema in which a store has its tables; `?schema=` in the URL says otherwise."""
TIMEOUT = 30.0
"""Seconds to wait for a lock, a connection or an answer of the network; `?timeout=` in the URL says otherwise."""
READERS = 4
"""Connections that read at once, at most; `?readers=` in the URL says otherwise."""
IDLE = 300.0
"""Seconds without use after which a connection is not trusted any more; `?idle=` in the URL says otherwise."""
CONNECTING = 10.0
"""Seconds to wait for one server to accept a connection, where the URL names no `connect_timeout`."""

FORM = (
    "'postgresql://[user@]host[:port]/database', with libpq's own parameters after a '?', and with"
    " schema=NAME, timeout=SECONDS, readers=COUNT, idle=SECONDS if wanted"
)
_LONGEST_NAME = 63
_NOT_OURS = ("$user", "information_schema")  # the first is another one for each role, also where it is quoted


class Place(NamedTuple):
    """Where a store is.

    `url`: what may be shown, and opens the same store where the password comes from elsewhere. `libpq`: the parameters
    of a connection, the password among them.
    """

    url: str
    libpq: dict[str, Any]
    schema: str
    timeout: float
    readers: int
    idle: float

    def __repr__(self) -> str:
        return f"Place({self.url!r})"


def parsed(url: str) -> Place:
    """Take a URL apart. Raises InvalidStoreURLError, in which no password stands."""
    match, why = PARTS.fullmatch(url), misread(url)
    if match is None or why:
        raise _invalid(url, why)
    scheme, credentials, where, query = match.groups()
    pairs = [pair for pair in query.split("&") if pair]
    ours = {name: unquote(value) for name, _, value in map(_split, pairs) if name in OURS}
    theirs = [pair for pair in pairs if _split(pair)[0] not in OURS]
    user = "" if credentials is None else f"{credentials}@"
    libpq = _understood(f"{scheme}{user}{where}{_joined(theirs)}")
    if libpq is None:
        raise _invalid(url, "libpq does not understand it, or not a parameter of it")
    if not all(port.isdigit() or not port for port in str(libpq.get("port", "")).split(",")):
        raise _invalid(url, "a port is a number")
    return _checked(Place(shown_url(url), libpq, SCHEMA_NAME, 0, 0, 0), ours)


def _understood(url: str) -> dict[str, Any] | None:
    """Give what libpq reads in a URL; its error, whose words may show a password, is nobody's context."""
    try:
        return conninfo_to_dict(url)
    except (ProgrammingError, UnicodeError):
        return None


def _checked(place: Place, ours: dict[str, str]) -> Place:
    schema = ours.get("schema", SCHEMA_NAME)
    if not 1 <= len(schema.encode()) <= _LONGEST_NAME or not schema.isprintable():
        raise _invalid(place.url, f"its schema is no name for one: 1 to {_LONGEST_NAME} bytes, all of them printable")
    if schema in _NOT_OURS or schema.startswith("pg_"):
        raise _invalid(place.url, "its schema has a name that PostgreSQL keeps for itself")
    timeout, idle = _number(ours, "timeout", TIMEOUT), _number(ours, "idle", IDLE)
    readers = _number(ours, "readers", READERS)
    if not (math.isfinite(timeout) and timeout > 0 and idle >= 0 and readers >= 1 and readers == readers // 1):
        raise _invalid(place.url, "timeout is a number above 0, readers a whole one from 1, idle one from 0")
    libpq = place.libpq | {
        "client_encoding": "UTF8",
        **{name: value for name, value in _defaults(timeout).items() if name not in place.libpq},
    }
    return Place(place.url, libpq, schema, timeout, int(readers), idle)


def _number(ours: dict[str, str], name: str, default: float) -> float:
    try:
        return float(ours.get(name, default))
    except ValueError:  # its words show what was given
        return math.nan


def _defaults(timeout: float) -> dict[str, Any]:
    """Give parameters by which a link that is cut is noticed, and a server that only reads is passed over."""
    return {
        "application_name": "perdure",
        "connect_timeout": max(2, math.ceil(min(timeout, CONNECTING))),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": math.ceil(timeout * 1000),
        "target_session_attrs": "read-write",
    }


def _split(pair: str) -> tuple[str, str, str]:
    return pair.partition("=")


def _joined(pairs: list[str]) -> str:
    return f"?{'&'.join(pairs)}" if pairs else ""


def _invalid(url: str, why: str) -> InvalidStoreURLError:
    shown = hidden(url)
    return InvalidStoreURLError(f"store URL {shown!r}: {why}; expected {FORM}", url=shown)
