"""What of a store's URL may be shown: no password stands in an error, in a log, or in what a command prints.

Of a URL that is understood all is shown but the password and those parameters that are not known to be harmless. Of one
that is not, nobody knows where in it a password stands: its scheme is shown, the names of parameters that are known,
and the path of an SQLite file.
"""

import re
from urllib.parse import unquote

SCHEMES = ("postgresql://", "postgres://")
OURS = ("schema", "timeout", "readers", "idle")
"""Parameters of a PostgreSQL URL that are perdure's own."""
_HARMLESS = (
    "user host hostaddr port dbname service passfile channel_binding connect_timeout client_encoding options"
    " application_name fallback_application_name keepalives keepalives_idle keepalives_interval keepalives_count"
    " tcp_user_timeout ssl sslmode sslnegotiation sslcompression sslcert sslkey sslcertmode sslrootcert sslcrl"
    " sslcrldir sslsni requirepeer require_auth min_protocol_version max_protocol_version ssl_min_protocol_version"
    " ssl_max_protocol_version gssencmode krbsrvname gsslib gssdelegation replication target_session_attrs"
    " load_balance_hosts oauth_issuer oauth_client_id oauth_scope"
)
HARMLESS = frozenset((*_HARMLESS.split(), *OURS))
"""Parameters of which the value may be shown."""
SECRET = frozenset(("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"))
"""Parameters that are known, and of which it may not."""
PARTS = re.compile(r"(postgres(?:ql)?://)(?:([^@/]*)@)?([^?]*)\??(.*)", re.DOTALL)
"""Scheme, user and password, hosts and database, parameters: as libpq reads a URL that it understands."""
_HOST = r"(?:\[[^\]/@]*\]|[^:\[\]/@,&=]*)(?::\d*)?"
_WHERE = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/[^@&=]*)?", re.DOTALL)
_PATH = re.compile(r"[\w./\\~ -]*")
_SCHEME = re.compile(r"[\s'\"]*([A-Za-z][A-Za-z0-9+.-]*:(?://)?)")


def shown_url(url: str) -> str:
    """Give a store's URL without a password: it opens the same store where libpq finds that elsewhere.

    >>> shown_url("postgresql://me:secret@host/db?password=too&sslmode=require")
    'postgresql://me@host/db?sslmode=require'
    >>> shown_url("sqlite:///a:b@c.db")
    'sqlite:///a:b@c.db'
    """
    match = PARTS.fullmatch(url)
    if match is None or misread(url):
        return hidden(url)
    scheme, credentials, where, query = match.groups()
    user = "" if credentials is None else f"{credentials.partition(':')[0]}@"
    pairs = [pair for pair in query.split("&") if _name(pair) in HARMLESS]
    return f"{scheme}{user}{where}{'?' if pairs else ''}{'&'.join(pairs)}"


def misread(url: str) -> str:
    """Say why a PostgreSQL URL may mean something else than libpq reads in it; "" where it does not.

    A password with an '@' or '/' in it becomes part of a host or a database, and would be shown as that.

    >>> misread("postgresql://me:5432/secret@host"), misread("postgresql://me@h/db?schema=x")
    ("a '/', '@', '&' or '=' in a name or password is written %2F, %40, %26, %3D, and a port is a number", '')
    """
    match = PARTS.fullmatch(url)
    if match is None or "\0" in url:
        return "not a URL of PostgreSQL"
    if not _WHERE.fullmatch(match[3]):
        return "a '/', '@', '&' or '=' in a name or password is written %2F, %40, %26, %3D, and a port is a number"
    if any(mark in match[4] for mark in "@?"):
        return "an '@' or '?' in a parameter is written %40, %3F"
    return ""


def hidden(url: str) -> str:
    """Give what may be shown of a URL that is not understood.

    >>> hidden("postgresql://me:se@cr/et@host:x/db?password=too")
    'postgresql://…?password=…'
    >>> hidden("sqlite:///a.db?mode=ro"), hidden("tasks.db")
    ('sqlite:///a.db?mode=…', 'tasks.db')
    """
    place, _, query = url.partition("?")
    if place.startswith("sqlite:"):
        names = [name for name, is_named, _ in (pair.partition("=") for pair in query.split("&")) if is_named]
        return url if not query else f"{place}?{'&'.join(f'{name}=…' for name in names) or '…'}"
    if _PATH.fullmatch(url):
        return url
    names = [name for name in map(_name, query.split("&")) if name in HARMLESS | SECRET]
    scheme = _SCHEME.match(url)
    return f"{scheme[1] if scheme else ''}…{'?' if names else ''}{'&'.join(f'{name}=…' for name in names)}"


def _name(pair: str) -> str:
    return unquote(pair.partition("=")[0])
