"""What of a store's URL is shown: wherever a password stands in one that is refused, nobody reads it."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores import InvalidStoreURLError, open_store
from stores.postgres_url import parsed
from stores.shown_url import hidden, shown_url

SECRET = "S3CR3T"
NETWORK = (
    "postgresql://",
    "postgres://",
    "POSTGRESQL://",
    "postgresql+psycopg://",
    "postgresql+asyncpg://",
    "jdbc:postgresql://",
    "postgresql:/",
    "mysql://",
    " postgresql://",
    "'postgresql://",
)
PIECES = (
    *("u", ":", "@", "/", "?", "&", "=", "#", "%", "%00", "\0", "[", "]", ",", " ", "5432", "h", "db", "a.b"),
    *("schema=", "timeout=", "p%61ssword=", "password=", "password =", "nosuch=", "scram_client_key=", "sslmode="),
)


def words_of(error: BaseException) -> str:
    """Give all that may be shown of an error, and of those that it came from."""
    said, each = "".join(traceback.format_exception(error)), error
    while True:
        said += f"{each} {each!r} {vars(each)}"
        following = each.__cause__ or each.__context__
        if following is None:
            return said
        each = following


def words_of_parsing(url: str, *, understood: bool = False) -> str:
    """Give what is shown of a URL that is refused; and, if wanted, of one that is understood."""
    try:
        place = parsed(url)
    except InvalidStoreURLError as error:
        return words_of(error)
    return f"{place!r} {place.url}" if understood else ""


@settings(max_examples=400)
@given(
    st.sampled_from(NETWORK),
    st.lists(st.sampled_from(PIECES), max_size=8),
    st.lists(st.sampled_from(PIECES), max_size=8),
)
def test_a_secret_at_any_place_of_a_url_that_is_refused_is_shown_nowhere(
    scheme: str, before: list[str], after: list[str]
) -> None:
    url = f"{scheme}{''.join(before)}{SECRET}{''.join(after)}"
    assert SECRET not in hidden(url)
    assert SECRET not in words_of_parsing(url)
    if not url.startswith(("postgresql://", "postgres://")):
        with pytest.raises(InvalidStoreURLError) as caught:
            open_store(url)
        assert SECRET not in words_of(caught.value)
        assert SECRET not in shown_url(url)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), st.sampled_from(("", "?schema=x", "/db", ":5432/d")))
def test_a_password_in_its_place_is_shown_nowhere_whatever_stands_in_it(more: str, rest: str) -> None:
    for password in (f"{more}{SECRET}", f"{SECRET}{more}"):
        url = f"postgresql://u:{password}@h{rest}"
        assert SECRET not in words_of_parsing(url, understood=True) + shown_url(url)


@pytest.mark.parametrize(
    "url",
    [
        f"host=127.0.0.1 user=u password={SECRET} dbname=d",
        f"jdbc:postgresql://h/d?user=u&password={SECRET}",
        f"postgresql:u:{SECRET}@h/d",
        f"postgresql://u@h/db&password={SECRET}",
        f"postgresql://u@h/db?nosuch={SECRET}",
        f"postgresql://u@h/db?schema=a?password={SECRET}",
        f"postgresql://u@h/db?{SECRET}",
        f"postgresql://u:5432/{SECRET}@h",
        f"postgresql://u:5432/{SECRET}@h?password={SECRET}",
        f"postgresql://u@h/db?timeout={SECRET}",
        f"postgresql://u@h/db?schema=pg_{SECRET}",
        f"sqlite:///x.db?password={SECRET}",
        f"sqlite:///x.db?{SECRET}",
        f"sqlite:///x.db?timeout={SECRET}",
        f"memory:{SECRET}",
    ],
)
def test_a_url_that_people_have_really_written_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(InvalidStoreURLError) as caught:
        open_store(url)
    assert SECRET not in words_of(caught.value)


@pytest.mark.parametrize(
    "parameter", ["p%61ssword", "password", "password ", "sslpassword", "scram_client_key", "oauth_client_secret"]
)
def test_a_parameter_that_is_a_secret_is_not_shown_however_its_name_is_written(parameter: str) -> None:
    assert (
        shown_url(f"postgresql://u@h/db?sslmode=require&{parameter}={SECRET}") == "postgresql://u@h/db?sslmode=require"
    )
