"""What models of providers send, what they make of what comes back, and what it costs."""

import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from actors import DefinitionError, TaskHeldError, open_store
from actors.llm import (
    Budget,
    Prices,
    Reply,
    SystemMessage,
    ToolCall,
    ToolResult,
    ToolSpec,
    UserMessage,
)
from stores import Store
from tests.lives import live
from tests.providers import BOTH, HI, ONE, ROME, TALK, Anthropic, Line, OpenAI, ask, helper_of, rome


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


# ------------------------------------------------------------------ what is sent, and what comes back

SPECS = [ToolSpec("weather", "Tell.", {"type": "object", "properties": {}})]
SAID = [
    SystemMessage("Be brief."),
    UserMessage("hi"),
    Reply("", (ToolCall("f.x:0", "weather", "[]"),)),
    ToolResult("f.x:0", "weather", "no", is_error=True),
    UserMessage("again"),
    Reply("I did.", extra={"of": "another provider"}),
    UserMessage("and?"),
]


def test_openai_gets_roles_calls_and_schemas() -> None:
    with OpenAI(*[ONE] * 3) as provider:
        ask(provider.model(temperature=0), SAID, SPECS)
        (asked,) = provider.asked
    function = {"name": "weather", "arguments": '{"not_an_object": "[]"}'}
    call = {"id": "f.x:0", "type": "function", "function": function}
    assert asked["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "f.x:0", "content": "no"},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "I did."},
        {"role": "user", "content": "and?"},
    ]
    schema = {"name": "weather", "description": "Tell.", "parameters": SPECS[0].parameters}
    assert asked["tools"] == [{"type": "function", "function": schema}]
    assert (asked["model"], asked["temperature"]) == ("m-1", 0)


def test_anthropic_gets_all_results_of_a_reply_together_and_ids_as_it_takes_them() -> None:
    with Anthropic(*[ONE] * 3) as provider:
        ask(provider.model(metadata={"user_id": "u"}), SAID, SPECS)
        (asked,) = provider.asked
    result = {"type": "tool_result", "tool_use_id": "f_x_0_f45a9b2f", "content": "no", "is_error": True}
    call = {"type": "tool_use", "id": "f_x_0_f45a9b2f", "name": "weather", "input": {"not_an_object": "[]"}}
    assert asked["system"] == "Be brief."
    assert asked["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "again"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I did."}]},
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    ]
    assert asked["tools"] == [{"name": "weather", "description": "Tell.", "input_schema": SPECS[0].parameters}]
    assert (asked["model"], asked["metadata"], asked["max_tokens"]) == ("m-1", {"user_id": "u"}, 8192)


def test_anthropics_thoughts_go_back_where_they_stood(disk: Store) -> None:
    thought = {"type": "thinking", "thinking": "Rome…", "signature": "s1"}
    call = {"type": "tool_use", "id": "c1", "name": "weather", "json": ROME}
    text = {"type": "text", "text": "I look."}
    other = {"type": "thinking", "thinking": "More…", "signature": "s2"}
    first = Line(blocks=(thought, text, other, call), reason="tool_use")
    with Anthropic(first, Line("Wet.")) as provider:
        assert live(disk, helper_of(provider.model()), "hi") == "Wet. "
        sent = provider.asked[1]["messages"][1]["content"]
    assert sent == [
        thought,
        {"type": "text", "text": "I look. "},
        other,
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
    ]


def test_calls_of_a_server_that_gives_all_the_same_index_are_kept_apart() -> None:
    class Careless(OpenAI):
        def chunks(self, line: Line) -> Any:
            for kind, data in super().chunks(line):
                for choice in data["choices"]:
                    for call in choice["delta"].get("tool_calls", ()):
                        call["index"] = 0
                yield kind, {**data, "usage": None}

    with Careless(Line("", (("a", "weather", ROME), ("b", "population", ROME)))) as provider:
        reply = ask(provider.model())
    assert reply == Reply("", (rome("a", "weather"), rome("b", "population")))


@BOTH
def test_an_estimate_is_more_than_a_reply_takes_and_holds_a_task_before_the_call(disk: Store, kind: Any) -> None:
    limit = {"max_completion_tokens": 100} if kind is OpenAI else {"max_tokens": 100}
    with kind(*TALK) as provider:
        model = provider.model(**limit)
        expected = model.estimate(SAID, SPECS)
        assert expected.cost >= Decimal(100 * 100) / 1_000_000
        assert expected.input_tokens > 200
        helper = helper_of(model, budget=Budget(cost="0.01"))
        with pytest.raises(TaskHeldError, match=r"0\.00 of 0\.01 spent, and the next call may take 0\.01"):
            live(disk, helper, "What about Rome?")
        assert provider.asked == []


def test_without_a_limit_of_a_reply_openai_has_no_estimate() -> None:
    with OpenAI(ONE) as provider:
        assert provider.model().estimate is None
        assert provider.model(max_tokens=7).estimate(HI, []).output_tokens == 7


# ------------------------------------------------------------------ parts


@pytest.mark.parametrize("price", ["dear", -1, "nan"])
def test_a_price_that_is_none_is_refused(price: Any) -> None:
    with pytest.raises(DefinitionError, match="output is a price of a million tokens"):
        Prices(output=price)


@BOTH
def test_a_client_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setitem(sys.modules, kind.extra, None)
    with pytest.raises(DefinitionError, match=rf'pip install "perdure\[{kind.extra}\]"'):
        kind.kind("m-1")


def test_an_import_loads_no_client() -> None:
    source = "import sys, actors.llm; print({'openai', 'anthropic', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
