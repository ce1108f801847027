"""Text in PostgreSQL, which can hold any character but U+0000.

So that one is written as two others, and the first of these two, where it stands in a text, as two likewise. Order,
equality and "begins with" stay what they were, and a text without either is stored as it is.
"""

_NUL, _MARK = "\0", "\1"
_AS_NUL, _AS_MARK = "\1\1", "\1\2"


def stored(text: str) -> str:
    r"""Give what PostgreSQL stores for a text.

    >>> stored("a\0b"), stored("plain")
    ('a\x01\x01b', 'plain')
    """
    if _NUL in text or _MARK in text:
        return text.replace(_MARK, _AS_MARK).replace(_NUL, _AS_NUL)
    return text


def stored_or_none(text: str | None) -> str | None:
    """Give what PostgreSQL stores for a text that may be missing."""
    return None if text is None else stored(text)


def loaded(text: str) -> str:
    r"""Give the text for which PostgreSQL has stored this.

    >>> loaded(stored("\1\0\2\1"))
    '\x01\x00\x02\x01'
    """
    # A run of marks begins where a pair does, so that from the left each pair is found as it was written.
    return text.replace(_AS_NUL, _NUL).replace(_AS_MARK, _MARK) if _MARK in text else text


def loaded_or_none(text: str | None) -> str | None:
    """Give the text that may be missing for which PostgreSQL has stored this."""
    return None if text is None else loaded(text)
