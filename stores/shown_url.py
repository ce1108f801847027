"""What of a store's URL may be shown: no password stands in an error, in a log, or in what a command prints."""

import re

SCHEMES = ("postgresql://", "postgres://")
SECRET = ("password", "sslpassword", "oauth_client_secret")
PARTS = re.compile(r"(postgres(?:ql)?://)(?:([^@/]*)@)?([^?]*)\??(.*)", re.DOTALL)
"""Scheme, user and password, hosts and database, parameters: as libpq reads a URL that it understands."""


def shown_url(url: str) -> str:
    """Give a store's URL without a password: it opens the same store where libpq finds that elsewhere.

    >>> shown_url("postgresql://me:secret@host/db?password=too&sslmode=require")
    'postgresql://me@host/db?sslmode=require'
    >>> shown_url("sqlite:///a:b@c.db")
    'sqlite:///a:b@c.db'
    """
    match = PARTS.fullmatch(url)
    if match is None:
        return hidden(url) if url.startswith(SCHEMES) else url
    scheme, credentials, where, query = match.groups()
    if "@" in where.partition("/")[0] or (credentials is None and not _is_port(where)):
        return hidden(url)
    user = "" if credentials is None else f"{credentials.partition(':')[0]}@"
    pairs = [pair for pair in query.split("&") if pair and pair.partition("=")[0] not in SECRET]
    return f"{scheme}{user}{where}{'?' if pairs else ''}{'&'.join(pairs)}"


def hidden(url: str) -> str:
    """Give a URL, which may be no good one, without what could be a secret in it.

    >>> hidden("postgresql://me:se@cr/et@host:x/db?password=too")
    'postgresql://me:…@host:x/db?password=…'
    """
    scheme, mark, rest = url.partition("://")
    rest = re.sub(rf"\b({'|'.join(SECRET)})=[^&]*", r"\1=…", rest, flags=re.IGNORECASE)
    head, at, tail = rest.rpartition("@")
    user, colon, _ = (head or rest).partition(":")
    if at:
        return f"{scheme}{mark}{user}:…@{tail}" if colon else f"{scheme}{mark}{rest}"
    return f"{scheme}{mark}{rest}" if _is_port(rest) else f"{scheme}{mark}{user}:…"


def _is_port(where: str) -> bool:
    """Tell whether what follows a colon, if one is there, is a port; else it may be a password without its host."""
    _, colon, port = where.partition(":")
    return not colon or re.match(r"\d*([/?,]|$)", port) is not None
