"""Messages as Anthropic takes them: of two roles in turn, each of blocks; and where a reply's thoughts stood in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from actors.llm_messages import Message, Reply, SystemMessage, ToolResult, ToolSpec
from actors.llm_provider import as_id, as_name, as_object, sendable

EMPTY = "(nothing)"
"""What is sent for a word of the user that is blank: Anthropic refuses those, and with it all that would follow."""
_THOUGHTS = ("thinking", "redacted_thinking")


def told(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """Give a conversation and its tools as a request has them."""
    system = sendable("\n\n".join(message.text for message in messages if isinstance(message, SystemMessage)))
    said = sendable(_said(message for message in messages if not isinstance(message, SystemMessage)))
    given = [{"name": one.name, "description": one.description, "input_schema": one.parameters} for one in tools]
    return {"messages": said, **({"system": system} if system else {}), **({"tools": given} if given else {})}


def _said(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Give the messages, those of one role after each other as one: all results of a reply have to stand together."""
    said: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if isinstance(message, Reply) else "user"
        if said and said[-1]["role"] == role:
            said[-1]["content"] += _blocks(message)
        elif blocks := _blocks(message):
            said.append({"role": role, "content": blocks})
    return said


def _blocks(message: Message) -> list[dict[str, Any]]:
    if isinstance(message, ToolResult):
        result = {"type": "tool_result", "tool_use_id": as_id(message.call_id), "content": message.text}
        return [{**result, "is_error": True} if message.is_error else result]
    if not isinstance(message, Reply):
        return [{"type": "text", "text": message.text if message.text.strip() else EMPTY}]
    calls = [
        {"type": "tool_use", "id": as_id(call.id), "name": as_name(call.name), "input": as_object(call.arguments)}
        for call in message.tool_calls
    ]
    extra = message.extra
    known = extra.get("anthropic") if isinstance(extra, dict) else None
    return _ordered(known or [len(message.text), *["call"] * len(calls)], message.text, calls)


def _ordered(places: Iterable[Any], text: str, calls: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks, at, rest = list[dict[str, Any]](), 0, iter(calls)
    for one in places:
        if isinstance(one, int):
            piece, at = text[at : at + one], at + one
            blocks += [{"type": "text", "text": piece}] if piece.strip() else []
        else:
            blocks.append(next(rest) if one == "call" else one)
    return blocks


def order(blocks: Sequence[dict[str, Any]]) -> Any:
    """Give what a reply does not hold: thoughts, as they are, and where they stand among pieces of text and calls."""
    if not any(block["type"] in _THOUGHTS for block in blocks):
        return None
    return {"anthropic": [_kept(block) for block in blocks if block["type"] in ("text", "tool_use", *_THOUGHTS)]}


def _kept(block: dict[str, Any]) -> Any:
    if block["type"] == "text":
        return len(block["text"])
    return "call" if block["type"] == "tool_use" else {key: block[key] for key in block if key != "json"}
