"""What a conversation is made of: messages, a model's replies, and the transcript that every provider accepts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Protocol, TypeAlias

from domain.errors import UnstorableValueError
from domain.types import register
from domain.values import encode


@register(name="llm.SystemMessage")
@dataclass(frozen=True)
class SystemMessage:
    """What a model is told of its part, before everything else."""

    text: str


@register(name="llm.UserMessage")
@dataclass(frozen=True)
class UserMessage:
    """What a person, or another program, has said."""

    text: str


@register(name="llm.ToolCall")
@dataclass(frozen=True)
class ToolCall:
    """One call of a tool that a model wants. `arguments` are JSON, or the text where that is none."""

    id: str
    name: str
    arguments: dict[str, Any] | str = field(default_factory=dict)


@register(name="llm.Usage")
@dataclass(frozen=True)
class Usage:
    """What a reply took: tokens in and out, and money in whatever currency.

    `cached_tokens` are those of the input that the provider had in its cache. A usage of nothing: nobody knows.

    Raises ValueError for what is no amount: a budget that counted it would hold nothing back any more.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens", "cached_tokens"):
            count: Any = getattr(self, name)
            if type(count) is not int or count < 0:
                raise ValueError(f"Usage: {name} are a whole number from 0, not {count!r:.80}")
        cost: Any = self.cost
        if not (isinstance(cost, Decimal) and cost.is_finite() and cost >= 0):
            raise ValueError(f"Usage: cost is a Decimal from 0, not {cost!r:.80}")

    def __add__(self, other: Usage) -> Usage:
        """Add up what two replies took."""
        tokens = self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens
        return Usage(*tokens, self.cost + other.cost, self.cached_tokens + other.cached_tokens)

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.input_tokens + self.output_tokens

    def packed(self) -> list[Any]:
        """Give it as a log holds it.

        >>> Usage(10, 2, Decimal("0.01")).packed(), Usage.unpacked([10, 2]) == Usage(10, 2)
        ([10, 2, '0.01'], True)
        >>> Usage.unpacked(Usage(10, 2, cached_tokens=8).packed()) == Usage(10, 2, cached_tokens=8)
        True
        """
        more = [str(self.cost), self.cached_tokens] if self.cached_tokens else [str(self.cost)] if self.cost else []
        return [self.input_tokens, self.output_tokens, *more]

    @classmethod
    def unpacked(cls, stored: Sequence[Any]) -> Usage:
        """Read what `packed` gave."""
        tokens_in, tokens_out, *more = stored
        return cls(tokens_in, tokens_out, *([Decimal(more[0]), *more[1:]] if more else []))


@register(name="llm.Reply")
@dataclass(frozen=True)
class Reply:
    """What a model has said: text, calls of tools, or both; without calls it is the answer.

    `extra` is for the model itself: any value that can be stored; it finds it again in the transcript.
    """

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage = Usage()
    extra: Any = None


@register(name="llm.ToolResult")
@dataclass(frozen=True)
class ToolResult:
    """What came of one call; `is_error` where the tool did not do, or may not have done, what was asked for."""

    call_id: str
    name: str
    text: str
    is_error: bool = False


Message: TypeAlias = SystemMessage | UserMessage | Reply | ToolResult


@dataclass(frozen=True)
class ToolSpec:
    """What a model is told of a tool; `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


class Model(Protocol):
    """What answers. `reply` may be a plain function, which runs on a thread, or an `async def`.

        class Mine:
            async def reply(self, messages, tools, *, on_delta):
                async for piece in stream(messages, tools):
                    on_delta(piece)
                return Reply(text, calls, Usage(12, 3))

    A model may also have `estimate(messages, tools) -> Usage`: at most what that reply will take, found out without
    asking anybody. A budget reserves it before each call.
    """

    def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, on_delta: Callable[[str], None]
    ) -> Reply | Awaitable[Reply]:
        """Give the next message of the conversation. `on_delta` may be told each piece of its text as it comes."""
        ...


class NoReplyError(TypeError):
    """Raised for what a model gives and what is no Reply: a bug, which another call would only pay for again."""


class NotBilledError(Exception):
    """Raised by a model whose provider has refused a call before it cost anything: a budget does not count it."""


# ------------------------------------------------------------------ in the log


def pack(reply: Reply) -> dict[str, Any]:
    """Give a reply as a log holds it: with nothing that is empty.

    >>> pack(Reply("hi")), pack(Reply(tool_calls=[ToolCall("c1", "look")], usage=Usage(10, 2)))
    ({'text': 'hi'}, {'text': '', 'calls': [['c1', 'look', {}]], 'usage': [10, 2]})
    """
    if wrong := _wrong(reply):
        raise NoReplyError(f"a model gives {wrong}")
    packed: dict[str, Any] = {"text": reply.text}
    if reply.tool_calls:
        packed["calls"] = [[call.id, call.name, as_arguments(call.arguments)] for call in reply.tool_calls]
    if reply.usage != Usage():
        packed["usage"] = reply.usage.packed()
    return packed if reply.extra is None else {**packed, "extra": reply.extra}


def _wrong(reply: Any) -> str:
    """Say what a model should have given; empty where it has."""
    if not isinstance(reply, Reply):
        return f"a Reply, not {reply!r:.80}"
    text: Any = reply.text
    usage: Any = reply.usage
    if not (isinstance(text, str) and isinstance(usage, Usage)):
        return f"a Reply with a str and a Usage, not with {text!r:.80} and {usage!r:.80}"
    calls: Sequence[Any] = reply.tool_calls or ()
    for call in calls:
        if not isinstance(call, ToolCall) or {type(call.id), type(call.name)} != {str}:
            return f"each call as a ToolCall, with an id and a name that are str, not {call!r:.80}"
        try:
            json.dumps(call.arguments)
        except (TypeError, ValueError, RecursionError) as error:
            return f"the arguments of a call as JSON; those of {call.name!r:.80} are none: {error}"
    return ""


def as_arguments(given: Any) -> dict[str, Any] | str:
    """Give the arguments of a call as a transcript has them: an object of JSON, or the text that is none.

    A text it is too where the object could not be stored, or not be sent back to a provider.

    >>> as_arguments('{"city": "Rome"}'), as_arguments(""), as_arguments('{"city": "Ro'), as_arguments([1])
    ({'city': 'Rome'}, {}, '{"city": "Ro', '[1]')
    >>> as_arguments('{"x": NaN}'), as_arguments('{"x": 1e999}'), as_arguments({1: float("inf")})
    ('{"x": NaN}', '{"x": 1e999}', '{"1": Infinity}')
    >>> type(as_arguments('{"x":' * 150 + "1" + "}" * 150)), type(as_arguments("[" * 100_000))
    (<class 'str'>, <class 'str'>)
    """
    text = given if isinstance(given, str) else json.dumps(given)
    try:
        found = json.loads(text or "{}")
        json.dumps(found, allow_nan=False)
        encode(found)
    except (ValueError, RecursionError, UnstorableValueError):
        return text
    return found if isinstance(found, dict) else text


def unpack(stored: Any) -> Reply:
    """Read what `pack` gave; whatever else a person may have given for a reply in doubt is its text.

    >>> unpack("hi").text, unpack({"answer": 42}).text, unpack({"text": "hi", "calls": [["c1"]]}).text
    ('hi', '{"answer": 42}', '{"text": "hi", "calls": [["c1"]]}')
    """
    if isinstance(stored, str):
        return Reply(stored)
    try:
        calls = tuple(ToolCall(*call) for call in stored.get("calls", ()))
        reply = Reply(stored["text"], calls, Usage.unpacked(stored.get("usage", (0, 0))), stored.get("extra"))
        if not _wrong(reply):
            return reply
    except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError):
        pass
    return Reply(json.dumps(stored, ensure_ascii=False, default=str))


class Transcript:
    """A conversation that grows, each tool call with an id of its own, and a digest that says what it was so far.

    What a model is told first is in no digest: a deploy may change it, and nothing that was said before is another.
    Providers repeat ids, within a reply and over turns: a repeated one gets a number, in the call and in its result.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.messages: list[Message] = []
        self.digest = ""
        self._ids: set[str] = set()
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        """Let it grow by a message."""
        if isinstance(message, Reply):
            self._ids.update(call.id for call in message.tool_calls)
        self.messages.append(message)
        if isinstance(message, SystemMessage):
            return
        text = json.dumps([type(message).__name__, _said(message)], sort_keys=True, default=str)
        self.digest = hashlib.blake2b(f"{self.digest}{text}".encode(), digest_size=8).hexdigest()

    def numbered(self, reply: Reply) -> Reply:
        """Give a reply whose ids are in no reply before it, each once.

        >>> reply = Transcript([Reply(tool_calls=[ToolCall("a", "x")])]).numbered(
        ...     Reply(tool_calls=[ToolCall("a", "x"), ToolCall("a", "y"), ToolCall("", "z")])
        ... )
        >>> [call.id for call in reply.tool_calls]
        ['a_2', 'a_3', 'call']
        """
        taken, calls = set(self._ids), list[ToolCall]()
        for call in reply.tool_calls:
            first = name = call.id or "call"
            number = 1
            while name in taken:
                number += 1
                name = f"{first}_{number}"
            taken.add(name)
            calls.append(replace(call, id=name))
        return replace(reply, tool_calls=tuple(calls))


def _said(message: Message) -> Any:
    if isinstance(message, Reply):
        return [message.text, [[call.id, call.name, call.arguments] for call in message.tool_calls]]
    return vars(message)


def _is_message(one: Any) -> bool:
    if isinstance(one, Reply):
        return not _wrong(one)
    if isinstance(one, ToolResult) and {type(one.call_id), type(one.name)} != {str}:
        return False
    return isinstance(one, SystemMessage | UserMessage | ToolResult) and isinstance(one.text, str)


def illegal(messages: Sequence[Message]) -> str:
    """Say what a provider would refuse in a transcript; empty where there is nothing.

    Each tool call has to have exactly one result, in the messages that follow its reply, and no result may be without.
    What is no message at all is told, too.

    >>> illegal([Reply(tool_calls=[ToolCall("a", "x")]), UserMessage("well?")])
    "message 1: the tool call 'a' of message 0 has no result"
    >>> illegal([UserMessage("hi"), ToolResult("a", "x", "1")])
    "message 1: a result for 'a', which no call before it waits for"
    """
    if wrong := next((f"message {n} is {one!r:.80}" for n, one in enumerate(messages) if not _is_message(one)), ""):
        return wrong
    open_calls, since = list[str](), 0
    for number, message in enumerate([*messages, UserMessage("")]):
        if isinstance(message, ToolResult):
            if message.call_id not in open_calls:
                return f"message {number}: a result for {message.call_id!r}, which no call before it waits for"
            open_calls.remove(message.call_id)
        elif open_calls:
            return f"message {number}: the tool call {open_calls[0]!r} of message {since} has no result"
        elif isinstance(message, Reply):
            open_calls, since = [call.id for call in message.tool_calls], number
            if len(set(open_calls)) < len(open_calls):
                return f"message {number}: two tool calls have the same id"
    return ""
