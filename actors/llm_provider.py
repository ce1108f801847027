"""What the models of all providers have in common: what a reply costs, and what is raised where there is none.

    ModelError                      there is no whole reply; tried again
    ├── ModelUnavailableError       refused for now, or not reached: nothing was billed; a wait asked for is honoured
    ├── ReplyCutError               the stream ended before the reply did
    ├── RequestRefusedError         refused for good: nothing was billed; not tried again
    ├── ReplyTooLongError           the reply was cut at its limit; not tried again
    └── ReplyRefusedError           the model, or a filter, would not answer; not tried again

A part of a reply is never taken for a whole one. What is tried again, and how often, the step decides: the clients' own
retries are switched off, since neither the log nor a budget would see them, and their waits would die with the process.
"""

from __future__ import annotations

import hashlib
import json
import re
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from actors.llm_messages import NotBilledError, Usage, as_arguments
from domain.errors import DefinitionError, RetryAfterError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

UNAVAILABLE = frozenset({408, 409, 429, 503, 529})
"""Statuses of HTTP that refuse a request for now."""
UNREACHED = frozenset({"ConnectError", "ConnectTimeout"})
"""The errors of an HTTP client that has not come as far as to send a request."""
FRESH = {"Connection": "close"}
"""Headers of each request. A connection that is kept may be closed by the provider just when it is used again, which
costs an attempt; and it belongs to one event loop. Beside a reply a new one takes little time."""


class ModelError(Exception):
    """Raised when a provider has given no whole reply. By itself it is tried again, and may have been billed."""


class ModelUnavailableError(ModelError, RetryAfterError, NotBilledError):
    """Raised when a provider refuses for now, or is not reached: again after `retry_after` seconds, if it says so."""


class ReplyCutError(ModelError):
    """Raised when a stream ends before the reply does; what has come of it is dropped, and may have been billed."""


class RequestRefusedError(ModelError, NotBilledError):
    """Raised when a provider refuses a request as it is: a wrong key, an unknown model, a spent account."""


class ReplyTooLongError(ModelError):
    """Raised when a reply was cut at the limit of its length: it is billed, and another would be cut there too."""


class ReplyRefusedError(ModelError):
    """Raised when the model, or a filter of its provider, would not answer."""


NEVER_AGAIN = (RequestRefusedError, ReplyTooLongError, ReplyRefusedError)
"""What another attempt would meet again."""


@dataclass(frozen=True)
class Prices:
    """What a provider takes for a million tokens; by whatever currency, and as its list says today: we have none.

        Prices(input="2.50", output="10", cached="1.25")

    Args:
        input: of what is sent.
        output: of what is replied.
        cached: of what is sent and found in a cache; by default as `input`.
        written: of what is sent and written to a cache; by default as `input`.

    Raises DefinitionError for what is no price.
    """

    input: Decimal | float | str = Decimal(0)
    output: Decimal | float | str = Decimal(0)
    cached: Decimal | float | str | None = None
    written: Decimal | float | str | None = None

    def __post_init__(self) -> None:
        for name, given in vars(self).items():
            try:
                price = Decimal(0) if given is None else Decimal(str(given))
            except ArithmeticError:
                price = Decimal(-1)
            if not (price.is_finite() and price >= 0):
                raise DefinitionError(f"Prices: {name} is a price of a million tokens, from 0, not {given!r}")

    def usage(self, fresh: int, output: int, *, cached: int = 0, written: int = 0) -> Usage:
        """Give what a reply took; of the input, `fresh` tokens have nothing to do with a cache.

        >>> Prices(input=2, output="10.5", cached="0.2").usage(1_000, 100, cached=9_000)
        Usage(input_tokens=10000, output_tokens=100, cost=Decimal('0.00485'), cached_tokens=9000)
        """
        plain = Decimal(str(self.input))
        read, wrote = (plain if price is None else Decimal(str(price)) for price in (self.cached, self.written))
        cost = (fresh * plain + cached * read + written * wrote + output * Decimal(str(self.output))) / 1_000_000
        return Usage(fresh + cached + written, output, cost.normalize() if cost else Decimal(0), cached)

    def at_most(self, request: Any, output: int) -> Usage:
        """Give what a request may take at most: a token of input is at least a byte, and a dear one.

        >>> Prices(input=2, written=3, output=10).at_most({"content": "é"}, 1_000)
        Usage(input_tokens=17, output_tokens=1000, cost=Decimal('0.010051'), cached_tokens=0)
        """
        size = len(json.dumps(request, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))
        plain = self.usage(size, output)
        return max(plain, self.usage(0, output, written=size), key=lambda usage: usage.cost)


class PerLoop(Generic[T]):
    """A client for each event loop: its connections belong to one, and a model may serve several systems."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, T] = weakref.WeakKeyDictionary()

    def get(self) -> T:
        """Give the client of the loop that runs here."""
        import asyncio  # noqa: PLC0415  a loop runs, so it is there

        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._made[loop] = self._make()
        return self._made[loop]


def require(package: str, kind: str) -> None:
    """Raise DefinitionError where the official client is not installed."""
    if find_spec(package) is None:
        raise DefinitionError(f'{kind} needs the official client of {package}: pip install "perdure[{package}]"')


async def pieces(
    who: str, begin: Callable[[], Awaitable[Any]], known: type[Exception], hear: Callable[[Any], str]
) -> AsyncGenerator[str, None]:
    """Give the text of a stream that `begin` opens; to be closed by `aclosing`, which closes the connection.

    `hear` takes each piece in, and gives its text; what it cannot understand cuts the reply. Raises ModelError for what
    goes wrong on the way; `known` is the client's own error, and others, but for a TypeError about what it was given,
    go through as they are as long as nothing has begun.
    """
    stream = None
    try:
        stream = await begin()
        async with stream:
            async for piece in stream:
                if text := hear(piece):
                    yield text
    except Exception as error:
        if stream is not None:
            raise cut(who, f"{type(error).__name__}: {error}") from error
        if isinstance(error, (known, TypeError)):
            raise refused(who, error) from error
        raise


def cut(who: str, why: str) -> ReplyCutError:
    """Say that a reply was cut."""
    return ReplyCutError(f"{who}: the reply was cut, and what had come of it is dropped: {why}")


def refused(who: str, error: Any) -> ModelError:
    """Say what a client's error means, by the status of the provider's answer, if there is one."""
    status: int | None = getattr(error, "status_code", None)
    headers = getattr(getattr(error, "response", None), "headers", {})
    spent = getattr(error, "code", None) == "insufficient_quota"
    if status is None and type(error.__cause__).__name__ in UNREACHED:
        return ModelUnavailableError(f"{who} was not reached: {error.__cause__}")
    if status in UNAVAILABLE and not spent:
        return ModelUnavailableError(f"{who}: {error}", retry_after=asked_wait(headers))
    if spent or (status or 500) < 500 or not hasattr(error, "request"):  # without one nothing was sent: no key, say
        return RequestRefusedError(f"{who}: {error}; it would be refused again: mend what it says, and go on then")
    return ModelError(f"{who}: {error}")


def asked_wait(headers: Any, now: datetime | None = None) -> float | None:
    """Give the seconds that a provider asks to be left alone; None where it does not say so in a way that we know.

    >>> asked_wait({"retry-after-ms": "1500"}), asked_wait({"retry-after": "20"}), asked_wait({"retry-after": "soon"})
    (1.5, 20.0, None)
    >>> asked_wait({"retry-after": "Mon, 30 Nov 2026 10:00:30 GMT"}, datetime(2026, 11, 30, 10, tzinfo=UTC))
    30.0
    >>> asked_wait({"retry-after-ms": "nan", "retry-after": "3"}), asked_wait({"retry-after": "-5"})
    (3.0, None)
    """
    for name, unit in (("retry-after-ms", 1_000), ("retry-after", 1)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < inf:
            return seconds
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  few ask like that, and it takes longer than this file

    try:
        due = parsedate_to_datetime(headers["retry-after"])
    except (KeyError, ValueError):
        return None
    if due.tzinfo is None:
        due = due.replace(tzinfo=UTC)
    return max(0.0, (due - (now or datetime.now(UTC))).total_seconds())


def as_object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    """Give the arguments of a call as providers take them back: an object, also where the model has sent none.

    >>> as_object({"city": "Rome"}), as_object("Rome"), as_object({"x": float("nan")})
    ({'city': 'Rome'}, {'not_an_object': 'Rome'}, {'not_an_object': '{"x": NaN}'})
    """
    found = as_arguments(arguments)
    return found if isinstance(found, dict) else {"not_an_object": found}


def as_id(call: str) -> str:
    """Give a call's id in the letters that Anthropic takes; a conversation may have been another's, which has others.

    Two that differ stay two.

    >>> as_id("call_1-a"), as_id("f.x:0"), as_id("f.x.0"), len(as_id("é" * 80))
    ('call_1-a', 'f_x_0_f45a9b2f', 'f_x_0_80d945ed', 49)
    """
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call):
        return call
    digest = hashlib.blake2b(call.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{as_name(call)[:40]}_{digest}"


def as_name(tool: str) -> str:
    """Give the name of a tool as every provider takes it, also that of one which there is not.

    >>> as_name("look_up"), as_name("functions.look up"), as_name("")
    ('look_up', 'functions_look_up', '_')
    """
    return re.sub(r"[^A-Za-z0-9_-]", "_", tool)[:64] or "_"


def joined(text: str) -> str:
    r"""Give a text that came in pieces, the two halves of a character that was cut made one again.

    >>> joined("\ud83d" + "\ude00") == "\U0001f600", joined("a\ud83d") == "a\ud83d"
    (True, True)
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def sendable(value: Any) -> Any:
    r"""Give a part of a request with nothing in it that UTF-8 has not: it could not be sent, today or ever.

    >>> sendable({"content": ["a\ud83d"]}) == {"content": ["a\ufffd"]}
    True
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {sendable(key): sendable(one) for key, one in value.items()}
    return [sendable(one) for one in value] if isinstance(value, list) else value


def count_of(told: Any, name: str) -> int:
    """Read a count of tokens that a provider tells; 0 where it is none.

    >>> count_of({"input": 3}, "input"), count_of({"input": -3}, "input"), count_of(None, "input")
    (3, 0, 0)
    """
    found = told.get(name) if isinstance(told, dict) else getattr(told, name, None)
    return found if type(found) is int and found > 0 else 0
