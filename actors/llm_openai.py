"""Models behind OpenAI's chat completions, and the many that speak as they do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from actors.llm_messages import (
    Message,
    Model,
    Reply,
    SystemMessage,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    as_arguments,
)
from actors.llm_provider import (
    FRESH,
    PerLoop,
    Prices,
    ReplyRefusedError,
    ReplyTooLongError,
    as_name,
    as_object,
    count_of,
    cut,
    joined,
    pieces,
    require,
    sendable,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class OpenAIModel(Model):
    """A model that is asked by chat completions, on OpenAI's official client (extra `openai`).

        model = OpenAIModel("gpt-5-mini", prices=Prices(input="0.25", output="2"), max_completion_tokens=4_000)
        local = OpenAIModel("qwen3", client=partial(AsyncOpenAI, base_url="http://localhost:11434/v1", api_key="none"))

    The reply is streamed, and whole or an error: see `actors.llm_provider`, which also says when it is tried again.
    The client's own retries are switched off. With a limit of the length of a reply it has an `estimate`, for budgets:
    one that is nearly always too high. Not guaranteed: a usage from a server that does not tell one. What a model has
    thought is not sent back.

    Args:
        name: the model's, as its provider has it.
        prices: what its tokens cost; without, replies cost nothing.
        client: makes the client, once for each event loop; by default AsyncOpenAI, which reads OPENAI_API_KEY.
        options: of each request, such as `max_completion_tokens` or `temperature`.

    Raises DefinitionError where the client is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        prices: Prices | None = None,
        client: Callable[[], AsyncOpenAI] | None = None,
        **options: Any,
    ) -> None:
        require("openai", type(self).__name__)
        from openai import AsyncOpenAI, OpenAIError  # noqa: PLC0415  it takes longer than all of perdure's imports

        make = client or AsyncOpenAI
        self.name = name
        self._who = f"OpenAIModel {name}"
        self._prices = prices or Prices()
        self._clients = PerLoop(lambda: make().with_options(max_retries=0))
        self._options = options
        self._error = OpenAIError
        most = options.get("max_completion_tokens", options.get("max_tokens"))
        self.estimate = None if most is None else partial(self._at_most, most)

    def _at_most(self, most: int, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Usage:
        return self._prices.at_most([_told(messages), _tools(tools)], most)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, on_delta: Callable[[str], None]
    ) -> Reply:
        """Give the next message of the conversation. Raises ModelError where there is no whole one."""
        request = {"model": self.name, "messages": _told(messages), **_tools(tools), **self._options}

        def begin() -> Any:
            options = {"stream_options": {"include_usage": True}, **request, "extra_headers": FRESH}
            return self._clients.get().chat.completions.create(stream=True, **options)

        heard = _Heard()
        async with aclosing(pieces(self._who, begin, self._error, heard.add)) as texts:
            async for text in texts:
                on_delta(text)
        return heard.whole(self._who, self._prices)


class _Heard:
    """What has come of a reply."""

    def __init__(self) -> None:
        self.text = self.refusal = ""
        self.why: str | None = None
        self.usage: Any = None
        self.calls: list[list[str]] = []
        self._at: dict[Any, list[str]] = {}
        self._choice: Any = None

    def add(self, chunk: Any) -> str:
        """Take a chunk in, and give the text that it brings."""
        self.usage = chunk.usage or self.usage
        if not chunk.choices:
            return ""
        if self._choice is None:
            self._choice = chunk.choices[0].index
        choice = next((one for one in chunk.choices if one.index == self._choice), None)
        if choice is None:  # of another reply, where the request asked for several
            return ""
        self.why = choice.finish_reason or self.why
        delta = choice.delta
        if delta is None:
            return ""
        for call in delta.tool_calls or ():
            self._add_to_call(call)
        self.refusal += delta.refusal or ""
        text: str = delta.content or ""
        self.text += text
        return text

    def _add_to_call(self, delta: Any) -> None:
        """Add to the call of an index; some servers give all the same one, but then each an id of its own."""
        call = self._at.get((delta.index, delta.id)) or self._at.get(delta.index)
        if call is None or (delta.id and call[0] and delta.id != call[0]):
            call = ["", "", ""]
            self.calls.append(call)
        self._at[delta.index] = self._at[delta.index, delta.id or call[0]] = call
        call[0] = call[0] or delta.id or ""
        if delta.function is not None:
            call[1] = call[1] or delta.function.name or ""
            call[2] += delta.function.arguments or ""

    def whole(self, who: str, prices: Prices) -> Reply:
        """Give it as a reply. Raises ModelError where it is none."""
        if self.why in (None, "error"):
            raise cut(who, "the provider had trouble" if self.why else "the stream ended without a finish_reason")
        usage = _usage(self.usage, prices)
        if self.why == "length":
            took = f"{usage.output_tokens} tokens, " if usage.output_tokens else ""
            limit = "max_completion_tokens, or the model's own limit"
            raise ReplyTooLongError(
                f"{who}: the reply was cut at its limit ({took}finish_reason=length): raise {limit}"
            )
        if self.why == "content_filter" or self.refusal:
            said = self.refusal or "the provider's filter has cut the reply (finish_reason=content_filter)"
            raise ReplyRefusedError(f"{who} would not answer: {said}")
        calls = [ToolCall(key, name, as_arguments(joined(arguments))) for key, name, arguments in self.calls]
        return Reply(joined(self.text), tuple(calls), usage)


def _usage(told: Any, prices: Prices) -> Usage:
    if told is None:
        return Usage()
    details = getattr(told, "prompt_tokens_details", None)
    cached, written = (count_of(details, name) for name in ("cached_tokens", "cache_write_tokens"))
    fresh = count_of(told, "prompt_tokens") - cached - written
    return prices.usage(max(0, fresh), count_of(told, "completion_tokens"), cached=cached, written=written)


def _told(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [sendable(_message(message)) for message in messages]


def _message(message: Message) -> dict[str, Any]:
    if isinstance(message, ToolResult):
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    if not isinstance(message, Reply):
        return {"role": "system" if isinstance(message, SystemMessage) else "user", "content": message.text}
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": as_name(call.name), "arguments": _json(as_object(call.arguments))},
        }
        for call in message.tool_calls
    ]
    said: dict[str, Any] = {"role": "assistant", "content": message.text or (None if calls else "")}
    return {**said, "tool_calls": calls} if calls else said


def _json(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _tools(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": dict(vars(one))} for one in tools]} if tools else {}
