"""Providers that send what no documentation has, and conversations that hold what no provider takes."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from actors import TaskFailedError, open_store
from actors.llm import RETRIES as DEFAULTS
from actors.llm import (
    Budget,
    Message,
    Reply,
    ReplyCutError,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    conversation,
    llm_agent,
)
from stores import Store
from tests.lives import PATIENCE, held, live, log
from tests.providers import BOTH, HI, ONE, Anthropic, Line, OpenAI, ask, weather

Piece = tuple[str, Any]


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


def heard(kind: type[OpenAI] | type[Anthropic], *pieces: Piece) -> Any:
    """Ask a model whose provider answers by these pieces."""
    with kind(*[ONE] * 3) as provider:
        provider.chunks = lambda _line: iter(pieces)  # type: ignore[method-assign,assignment]
        return ask(provider.model())


# ------------------------------------------------------------------ chat completions


def chunk(reason: str | None = None, *, index: int = 0, usage: Any = None, **delta: Any) -> Piece:
    base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "usage": usage}
    return "", {**base, "choices": [{"index": index, "delta": delta, "finish_reason": reason}]}


def part(index: int | None, id: str | None, name: str | None, arguments: str) -> Piece:
    return chunk(tool_calls=[{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}])


STOP = chunk("stop")
USED = chunk("tool_calls")
TWO = (ToolCall("a", "look", {"x": 1}), ToolCall("b", "find", {"y": 2}))


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([("", {"choices": None}), chunk(content="a"), ("", {"choices": []}), chunk("stop", content=None)], Reply("a")),
        ([("", {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]})], Reply("")),
        ([chunk(content="A"), chunk(index=1, content="B"), chunk("stop", index=1), STOP], Reply("A")),
        ([chunk(content="\ud83d"), chunk(content="\ude00"), STOP], Reply("\U0001f600")),
        (
            [
                part(0, "a", "look", '{"x'),
                part(1, "b", "find", '{"y'),
                part(0, None, None, '": 1}'),
                part(1, "b", None, '": 2}'),
                USED,
            ],
            Reply("", TWO),
        ),
        (
            [
                part(0, "a", "look", '{"x'),
                part(0, "b", "find", '{"y'),
                part(0, "a", None, '": 1}'),
                part(0, "b", None, '": 2}'),
                USED,
            ],
            Reply("", TWO),
        ),
        ([part(None, "a", "look", '{"x": 1}'), part(None, "b", "find", '{"y": 2}'), USED], Reply("", TWO)),
        ([part(0, "a", "look", '{"x'), USED], Reply("", (ToolCall("a", "look", '{"x'),))),
        ([part(0, "a", "look", "[" * 100_000), USED], Reply("", (ToolCall("a", "look", "[" * 100_000),))),
        ([part(0, None, None, "{}"), USED], Reply("", (ToolCall("", "", {}),))),
    ],
    ids=[
        *("empty", "no-delta", "two-choices", "half-characters", "interleaved"),
        *("one-index", "no-index", "cut", "deep", "nameless"),
    ],
)
def test_chat_completions_are_put_together_however_they_come(pieces: list[Piece], expected: Reply) -> None:
    assert ascii(heard(OpenAI, *pieces)) == ascii(expected)  # what pytest-xdist cannot carry is in some


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens": -5, "completion_tokens": "x"}, {"prompt_tokens": 1.5}, [1], {"prompt_tokens_details": 5}],
)
def test_a_count_of_tokens_that_is_none_costs_no_reply(usage: Any) -> None:
    assert heard(OpenAI, chunk(content="a"), chunk("stop", usage=usage)) == Reply("a")


@pytest.mark.parametrize("piece", [("", [1]), ("", 5), chunk(content=[{"type": "text", "text": "a"}])])
def test_what_a_stream_should_not_hold_cuts_the_reply(piece: Piece) -> None:
    with pytest.raises(ReplyCutError, match="OpenAIModel m-1: the reply was cut, and what had come of it is dropped"):
        heard(OpenAI, chunk(content="a"), piece, STOP)


# ------------------------------------------------------------------ messages


def event(kind: str, **more: Any) -> Piece:
    return kind, {"type": kind, **more}


BEGUN = event("message_start", message={"id": "x", "type": "message", "role": "assistant", "content": []})
OVER = event("message_stop")


def block(index: int, **begun: Any) -> Piece:
    return event("content_block_start", index=index, content_block=begun)


def more(index: int, kind: str, **delta: Any) -> Piece:
    return event("content_block_delta", index=index, delta={"type": kind, **delta})


def ended(reason: str | None = "end_turn", **usage: Any) -> Piece:
    return event("message_delta", delta={"stop_reason": reason}, usage=usage or None)


TEXT = (block(0, type="text", text=""), more(0, "text_delta", text="a"))


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([*TEXT, ended(), OVER], Reply("a")),
        ([event("new"), block(1, type="new", text="zz"), *TEXT, more(0, "new_delta"), ended(), OVER], Reply("a")),
        ([*TEXT, ended(), ended(None), OVER], Reply("a")),
        ([*TEXT, ended(output_tokens="x", input_tokens=-3), OVER], Reply("a")),
        (
            [
                block(2, type="tool_use", id="b", name="find", input={}),
                block(1, type="tool_use", id="a", name="look", input={}),
                more(1, "input_json_delta", partial_json='{"x'),
                more(2, "input_json_delta", partial_json='{"y": 2}'),
                more(1, "input_json_delta", partial_json='": 1}'),
                ended("tool_use"),
                OVER,
            ],
            Reply("", TWO),
        ),
        ([block(0, type="tool_use", name="look"), ended("tool_use"), OVER], Reply("", (ToolCall("", "look", {}),))),
        (
            [block(0, type="text", text="\ud83d"), more(0, "text_delta", text="\ude00"), ended(), OVER],
            Reply("\U0001f600"),
        ),
    ],
    ids=["no-usage", "unknown", "two-ends", "usage", "interleaved", "no-id", "half-characters"],
)
def test_messages_are_put_together_however_they_come(pieces: list[Piece], expected: Reply) -> None:
    assert ascii(heard(Anthropic, BEGUN, *pieces)) == ascii(expected)


@pytest.mark.parametrize(
    "piece", [more(7, "text_delta", text="a"), more(0, "text_delta", text=None), event("content_block_start", index=1)]
)
def test_what_a_message_should_not_hold_cuts_the_reply(piece: Piece) -> None:
    with pytest.raises(ReplyCutError, match="AnthropicModel m-1: the reply was cut"):
        heard(Anthropic, BEGUN, *TEXT, piece, ended(), OVER)


# ------------------------------------------------------------------ what is sent

AWKWARD: list[list[Message]] = [
    [Reply("a\ud83db"), UserMessage("\ud83d again")],
    [Reply("", (ToolCall("a", "look", {"x": "\ud83d"}),)), ToolResult("a", "look", "\ud83d")],
    [Reply("", (ToolCall("a", "look", {"x": float("nan")}),)), ToolResult("a", "look", "1")],
    [Reply("", (ToolCall("a", "functions.look up", {}),)), ToolResult("a", "functions.look up", "none")],
    [Reply("", (ToolCall("a", "x" * 300, {}),)), ToolResult("a", "x" * 300, "none")],
    [Reply("", (ToolCall("a", "", {}),)), ToolResult("a", "", "none")],
    [
        Reply("", (ToolCall("f.x:0", "look"), ToolCall("f.x.0", "look"))),
        ToolResult("f.x:0", "look", "1"),
        ToolResult("f.x.0", "look", "2"),
    ],
    [Reply("", (ToolCall("a" * 300, "look"),)), ToolResult("a" * 300, "look", "1")],
    [Reply(" \n"), UserMessage("")],
]


@BOTH
@pytest.mark.parametrize(
    "said",
    AWKWARD,
    ids=[
        *("text", "half-characters", "nan", "dotted", "long-name"),
        *("no-name", "folding-ids", "long-id", "blank"),
    ],
)
def test_what_was_said_before_never_keeps_a_conversation_from_going_on(kind: Any, said: list[Message]) -> None:
    with kind(*[Line("Fine.")] * 4) as provider:  # which refuses what a provider does
        assert ask(provider.model(), [*HI, *said]).text == "Fine. "


@BOTH
def test_a_tool_that_there_is_not_is_told_so_and_the_conversation_goes_on(disk: Store, kind: Any) -> None:
    lines = Line(calls=(("c1", "functions.fly away", '{"to": NaN}'),)), Line("Then not.")
    with kind(*lines) as provider:
        helper = llm_agent("hostile providers", model=provider.model(), tools=[weather])
        assert live(disk, helper, "Fly!") == "Then not. "
    told = "there is no tool 'functions.fly away'; there are: weather"
    assert conversation(log(disk))[2] == ToolResult("c1", "functions.fly away", told, is_error=True)


# ------------------------------------------------------------------ what it costs


def test_a_stream_that_ends_before_its_usage_counts_as_it_was_reserved(disk: Store) -> None:
    with OpenAI(*[ONE] * 9) as provider:
        provider.chunks = lambda _line: iter([part(0, "a", "weather", "{}"), USED])  # type: ignore[method-assign,assignment]
        budget = Budget(tokens=250, per_call=Usage(100, 0))
        helper = llm_agent("hostile providers", model=provider.model(), tools=[weather], budget=budget)
        error = held(disk, helper, "Well?")
    assert "200 of 250 tokens spent, and the next call may take 100" in str(error)
    assert len(provider.asked) == 2


TALKS = [Line("One two three.")] * 3


@BOTH
def test_a_stream_that_never_ends_is_given_up(disk: Store, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert DEFAULTS["timeout"] == 3_600
    monkeypatch.setitem(DEFAULTS, "timeout", 2)
    with kind(*TALKS) as provider:
        provider.door.clear()
        helper = llm_agent("hostile providers", model=provider.model(), model_options={"retries": 0})
        with pytest.raises(TaskFailedError, match="step 1 model: it was given up at its time limit"):
            live(disk, helper, "Well?")
        assert provider.left.wait(PATIENCE)


@BOTH
def test_an_error_of_who_listens_is_not_taken_for_one_of_the_provider(kind: Any) -> None:
    def refuse(_text: str) -> None:
        raise LookupError("mine")

    with kind(*TALKS) as provider, pytest.raises(LookupError, match="mine"):
        asyncio.run(provider.model().reply(HI, (), on_delta=refuse))
