"""Models behind Anthropic's messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from actors.llm_blocks import order, told
from actors.llm_messages import Message, Model, Reply, ToolCall, ToolSpec, Usage, as_arguments
from actors.llm_provider import (
    FRESH,
    PerLoop,
    Prices,
    ReplyRefusedError,
    ReplyTooLongError,
    count_of,
    cut,
    joined,
    pieces,
    require,
)

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

MAX_TOKENS = 8_192
"""How long a reply may be, unless the model says otherwise."""
_WHOLE = ("end_turn", "stop_sequence", "tool_use")
_LONG = ("max_tokens", "model_context_window_exceeded")


class AnthropicModel(Model):
    """A model that is asked by Anthropic's messages, on the official client (extra `anthropic`).

        model = AnthropicModel("claude-sonnet-4-5", prices=Prices(input=3, output=15, cached="0.30", written="3.75"))

    The reply is streamed, and whole or an error: see `actors.llm_provider`, which also says when it is tried again.
    The client's own retries are switched off. It has an `estimate`, for budgets: one that is nearly always too high.
    What the model has thought is in the log, as `extra`, and goes back to it with the reply. Not supported: tools that
    the provider itself runs.

    Args:
        name: the model's, as its provider has it.
        prices: what its tokens cost; without, replies cost nothing.
        client: makes the client, once for each event loop; by default AsyncAnthropic, which reads ANTHROPIC_API_KEY.
        max_tokens: how long a reply may be.
        options: of each request, such as `thinking` or `stop_sequences`.

    Raises DefinitionError where the client is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        prices: Prices | None = None,
        client: Callable[[], AsyncAnthropic] | None = None,
        max_tokens: int = MAX_TOKENS,
        **options: Any,
    ) -> None:
        require("anthropic", type(self).__name__)
        from anthropic import AnthropicError, AsyncAnthropic  # noqa: PLC0415  it takes longer than perdure's own imports

        make = client or AsyncAnthropic
        self.name = name
        self._who = f"AnthropicModel {name}"
        self._prices = prices or Prices()
        self._clients = PerLoop(lambda: make().with_options(max_retries=0))
        self._most = max_tokens
        self._options = options
        self._error = AnthropicError

    def estimate(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Usage:
        """Give what a reply may take at most: `max_tokens` of output, and a token for each byte of the request."""
        return self._prices.at_most(told(messages, tools), self._most)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, on_delta: Callable[[str], None]
    ) -> Reply:
        """Give the next message of the conversation. Raises ModelError where there is no whole one."""
        request = {"model": self.name, "max_tokens": self._most, **told(messages, tools), **self._options}

        def begin() -> Any:
            return self._clients.get().messages.create(stream=True, **request, extra_headers=FRESH)

        heard = _Heard()
        async with aclosing(pieces(self._who, begin, self._error, heard.add)) as texts:
            async for text in texts:
                on_delta(text)
        return heard.whole(self._who, self._prices)


class _Heard:
    """What has come of a reply: its blocks, each as it began, with what was added."""

    def __init__(self) -> None:
        self.blocks: dict[int, dict[str, Any]] = {}
        self.usage: dict[str, int] = {}
        self.why: str | None = None
        self.details = ""
        self.over = False

    def add(self, event: Any) -> str:
        """Take an event in, and give the text that it brings."""
        if event.type == "message_start":
            self._count(event.message.usage)
        elif event.type == "content_block_start":
            block = self.blocks[event.index] = {**event.content_block.to_dict(), "json": ""}
            return (block.get("text") or "") if block["type"] == "text" else ""
        elif event.type == "content_block_delta":
            return self._add_to_block(self.blocks[event.index], event.delta)
        elif event.type == "message_delta":
            self._count(event.usage)
            self.why = event.delta.stop_reason or self.why
            self.details = getattr(getattr(event.delta, "stop_details", None), "explanation", None) or ""
        elif event.type == "message_stop":
            self.over = True
        return ""

    def _add_to_block(self, block: dict[str, Any], delta: Any) -> str:
        if delta.type == "text_delta":
            block["text"] += delta.text
            text: str = delta.text
            return text
        if delta.type == "input_json_delta":
            block["json"] += delta.partial_json
        elif delta.type == "thinking_delta":
            block["thinking"] += delta.thinking
        elif delta.type == "signature_delta":
            block["signature"] = delta.signature
        return ""

    def _count(self, usage: Any) -> None:
        """Take the tokens in; later counts are of the whole reply, and leave out what has not changed."""
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            self.usage[name] = count_of(usage, name) or self.usage.get(name, 0)

    def whole(self, who: str, prices: Prices) -> Reply:
        """Give it as a reply. Raises ModelError where it is none."""
        if self.why is None or not self.over:
            raise cut(who, "the stream ended without a message_stop")
        took = self.usage.get("output_tokens", 0)
        if self.why in _LONG:
            raise ReplyTooLongError(
                f"{who}: the reply was cut at its limit ({took} tokens, stop_reason={self.why}): raise max_tokens"
            )
        if self.why not in _WHOLE:
            raise ReplyRefusedError(f"{who} would not answer: {self.details or f'stop_reason={self.why}'}")
        count = self.usage.get
        cached, written = count("cache_read_input_tokens", 0), count("cache_creation_input_tokens", 0)
        usage = prices.usage(count("input_tokens", 0), took, cached=cached, written=written)
        blocks = [_joined(self.blocks[index]) for index in sorted(self.blocks)]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [_call(block) for block in blocks if block["type"] == "tool_use"]
        return Reply(text, tuple(calls), usage, order(blocks))


def _joined(block: dict[str, Any]) -> dict[str, Any]:
    return {key: joined(value) if isinstance(value, str) else value for key, value in block.items()}


def _call(block: dict[str, Any]) -> ToolCall:
    given = block["json"] or block.get("input") or {}
    return ToolCall(block.get("id") or "", block.get("name") or "", as_arguments(given))
