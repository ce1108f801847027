"""Models, people and callers that give an `llm_agent` what nobody should: it stays legal, paid once, and can go on."""

import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from actors import AgentSystem, DefinitionError, TaskCancelledError, TaskFailedError, agent, open_store
from actors.llm import (
    Budget,
    Message,
    Reply,
    ScriptedModel,
    SystemMessage,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    continue_conversation,
    conversation,
    converse,
    llm_agent,
    tool,
)
from actors.llm_show import conversation_lines
from domain.events import StepStarted
from domain.fold import fold
from stores import Store
from tests.lives import PATIENCE, die, held, live, log, wait_for


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


def results(messages: list[Message]) -> list[tuple[str, bool]]:
    return [(one.text, one.is_error) for one in messages if isinstance(one, ToolResult)]


@tool
def count(x: Any = 1) -> str:
    """Count."""
    return f"counted {x!r:.20}"


def called(arguments: Any) -> Reply:
    return Reply(tool_calls=[ToolCall("c", "count", arguments)])


class Fixed:
    """A model that always gives the same, and knows how often it was paid."""

    def __init__(self, given: Any) -> None:
        self.given = given
        self.asked: list[list[Message]] = []

    def reply(self, messages: Any, tools: Any, *, on_delta: Any) -> Any:
        self.asked.append(list(messages))
        return self.given


# ------------------------------------------------------------------ what a model gives


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    "arguments",
    ['{"x": ' * 100_000 + "1" + "}" * 100_000, '{"x": ' + "9" * 5_000 + "}", "[1]", "{oops", [1], None, 5],
    ids=["deep", "a huge number", "a list", "no JSON", "list", "None", "int"],
)
def test_arguments_that_are_no_object_which_can_be_stored_are_told_to_the_model(disk: Store, arguments: Any) -> None:
    model = ScriptedModel(called(arguments), "Sorry.")
    helper = llm_agent("hostile", model=model, tools=[count])
    assert live(disk, helper, "Count!") == "Sorry."
    ((text, is_error),) = results(model.transcripts[-1])
    assert is_error
    assert text.startswith("count was not called: ")
    assert results(conversation(log(disk))) == [(text, True)]


@pytest.mark.parametrize(
    "arguments", [nested(150), {"x": float("nan")}, {"x": float("inf")}], ids=["deep", "nan", "inf"]
)
def test_an_object_that_cannot_be_stored_or_sent_is_kept_as_its_text(disk: Store, arguments: Any) -> None:
    helper = llm_agent("hostile", model=ScriptedModel(called(arguments), "Ok."), tools=[count])
    assert live(disk, helper, "Count!") == "Ok."
    reply = conversation(log(disk))[1]
    assert isinstance(reply, Reply)
    assert isinstance(reply.tool_calls[0].arguments, str)


def test_who_is_asked_sees_what_will_be_done_also_where_the_arguments_are_a_text(disk: Store) -> None:
    pay = tool(needs_approval=True, name="pay")(lambda amount: f"paid {amount}")
    model = ScriptedModel(Reply(tool_calls=[ToolCall("c", "pay", '{"amount": 1000}')]), "Paid.")
    with AgentSystem(disk) as system:
        task = system.spawn(llm_agent("hostile: payer", model=model, tools=[pay]), "Pay!", id="t")
        wait_for(lambda: len(task.describe().approvals) == 1)
        (asked,) = task.describe().approvals
        assert (asked.question, asked.details) == ("pay(amount=1000)", {"amount": 1000})


WRONG: list[Any] = [
    Reply(None),  # type: ignore[arg-type]
    Reply("x", usage="much"),  # type: ignore[arg-type]
    Reply("x", ["count"]),  # type: ignore[list-item]
    Reply("x", [ToolCall(5, "count")]),  # type: ignore[arg-type]
    Reply("x", [ToolCall("c", 7)]),  # type: ignore[arg-type]
    called({"x": 10**5_000}),
    called({"x": {1, 2}}),
]


@pytest.mark.parametrize("given", WRONG)
def test_a_model_that_gives_no_reply_is_not_paid_for_another(disk: Store, given: Any) -> None:
    model = Fixed(given)
    with pytest.raises(TaskFailedError, match="NoReplyError: step 1 model: a model gives "):
        live(disk, llm_agent("hostile", model=model, tools=[count]), "Count!")
    assert len(model.asked) == 1
    assert conversation(log(disk)) == [UserMessage("Count!")]


@pytest.mark.parametrize(
    "given",
    [{"input_tokens": -5}, {"output_tokens": 1.5}, {"cached_tokens": True}]
    + [{"cost": cost} for cost in (0.5, "1", None, Decimal(-1), Decimal("NaN"), Decimal("Infinity"))],
)
def test_a_usage_that_is_no_amount_is_refused(given: Any) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=f"Usage: {name} (is|are) a"):
        Usage(**given)


# ------------------------------------------------------------------ what people give


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (None, "null"),
        (True, "true"),
        ([1], "[1]"),
        ({"answer": "é"}, '{"answer": "é"}'),
        ({"text": 5}, '{"text": 5}'),
        ({"text": "x", "calls": [["c1"]]}, '{"text": "x", "calls": [["c1"]]}'),
        ({"text": "x", "calls": 5}, '{"text": "x", "calls": 5}'),
        ({"text": "x", "usage": [-1]}, '{"text": "x", "usage": [-1]}'),
        ({"text": "Hello.", "usage": [1, 2]}, "Hello."),
    ],
)
def test_whatever_a_person_gives_for_a_reply_in_doubt_the_task_goes_on(disk: Store, value: Any, text: str) -> None:
    helper = llm_agent("hostile", model=Fixed(Reply("Hi.")), model_options={"on_doubt": "hold"})
    die(disk, helper, "Hi")
    held(disk, helper, "Hi")
    with AgentSystem(disk, run=False) as client:
        client.task("t").resolve("1", value=value, by="ann")
    assert live(disk, helper, "Hi") == text
    said = conversation(log(disk))[-1]
    assert isinstance(said, Reply)
    assert said.text == text


def test_a_follow_up_that_is_no_text_is_the_same_to_the_model_and_in_the_log(disk: Store) -> None:
    model = Fixed(Reply("Well."))
    with AgentSystem(disk) as system:
        task = system.spawn(llm_agent("hostile: stays", model=model, follow_ups=True), "Hi", id="t")
        wait_for(lambda: task.status() == "waiting")
        task.signal("user says", {"a": 1})
        wait_for(lambda: len(model.asked) == 2)
        assert model.asked[-1] == conversation(task.events())[:3]
        assert model.asked[-1][-1] == UserMessage("{'a': 1}")


@pytest.mark.parametrize(
    "grant", [{"cost": "NaN"}, {"cost": "much"}, {"cost": None}, {"cost": [1]}, {"cost": float("inf")}, {"x": 1}, "x"]
)
def test_a_grant_that_is_no_amount_does_not_keep_a_later_one_from_counting(disk: Store, grant: Any) -> None:
    half = Usage(cost=Decimal("0.50"))
    helper = llm_agent("hostile", model=ScriptedModel(Reply("Hi.", usage=half)), budget=Budget(cost=0))
    held(disk, helper, "Hi")
    with AgentSystem(disk, run=False) as client:
        client.task("t").release(by="ann", grant=grant)
    assert "0.00 of 0.00 spent" in str(held(disk, helper, "Hi"))
    with AgentSystem(disk, run=False) as client:
        client.task("t").release(by="ann", grant={"cost": Decimal("1.00")})
    assert live(disk, helper, "Hi") == "Hi."


# ------------------------------------------------------------------ budgets


def test_a_reply_that_does_not_tell_its_usage_counts_as_it_was_reserved(disk: Store) -> None:
    model = Fixed(called({}))
    budget = Budget(cost=2, per_call=Usage(cost=Decimal("0.50")))
    error = held(disk, llm_agent("hostile", model=model, tools=[count], budget=budget), "Count!")
    assert "2.00 of 2.00 spent" in str(error)
    assert len(model.asked) == 4


def test_a_reservation_that_is_no_usage_is_refused_where_it_is_written() -> None:
    with pytest.raises(DefinitionError, match="per_call is a Usage, not 'much'"):
        Budget(cost=1, per_call="much")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"idempotent": True}, {"banana": 1}, {"label": "to {nobody}"}, {"retries": -1}])
def test_options_that_a_call_of_a_model_cannot_have_are_refused_where_they_are_written(options: Any) -> None:
    with pytest.raises(DefinitionError, match="step model"):
        llm_agent("hostile: options", model=Fixed(Reply("Hi.")), model_options=options, budget=Budget(cost=1))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"model": None}, "a model has a method reply, and None has none"),
        ({"max_turns": 0}, "max_turns is a whole number from 1, not 0"),
        ({"max_turns": "x"}, "max_turns is a whole number from 1, not 'x'"),
        ({"budget": 5}, "budget is a Budget, not 5"),
    ],
)
def test_what_no_conversation_can_do_with_is_refused_where_it_is_written(given: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        llm_agent("hostile: parts", **{"model": Fixed(Reply("Hi.")), **given})


# ------------------------------------------------------------------ transcripts

CALLS = Reply(tool_calls=[ToolCall("c", "count")])


@pytest.mark.parametrize(
    ("begun", "why"),
    [
        ([UserMessage("a"), CALLS], "message 2: the tool call 'c' of message 1 has no result"),
        ([UserMessage("a"), CALLS, UserMessage("b")], "message 2: the tool call 'c' of message 1 has no result"),
        ([ToolResult("z", "count", "1")], "message 0: a result for 'z', which no call before it waits for"),
        (["Hi"], "message 0 is 'Hi'"),
        (5, "message 0 is 5"),
        (b"Hi", "message 0 is b'Hi'"),
        ([UserMessage(5)], "message 0 is UserMessage"),  # type: ignore[arg-type]
        ([UserMessage("a"), Reply("", ["c"])], "message 1 is Reply"),  # type: ignore[list-item]
    ],
)
def test_what_is_no_conversation_is_not_gone_on_with(disk: Store, begun: Any, why: str) -> None:
    model = Fixed(Reply("Hi."))
    with pytest.raises(TaskFailedError, match=f"this is no conversation to go on with: {why}"):
        live(disk, llm_agent("hostile", model=model), begun)
    assert model.asked == []
    with pytest.raises(ValueError, match="nor with a conversation"):
        conversation(log(disk))
    task = fold(None, log(disk))
    assert task is not None
    assert conversation_lines(task, 0.0) == []


def test_what_is_no_conversation_is_not_gone_on_with_inside_an_agent(disk: Store) -> None:
    model = Fixed(Reply("Hi."))

    @agent(name="hostile: own")
    def own() -> str:
        return converse.sync([SystemMessage("Be brief."), CALLS], model=model).text

    with pytest.raises(TaskFailedError, match="the tool call 'c' of message 1 has no result"):
        live(disk, own)
    assert model.asked == []


def test_a_call_that_failed_and_was_cancelled_before_it_was_tried_again_is_not_told_as_not_run(disk: Store) -> None:
    failed = threading.Event()

    @tool(retries=1, backoff=1_000)
    def shaky() -> str:
        """Shake."""
        failed.set()
        raise OSError("later")

    model = ScriptedModel(Reply(tool_calls=[ToolCall("c", "shaky")]), "Well.")
    with AgentSystem(disk) as system:
        task = system.spawn(llm_agent("hostile", model=model, tools=[shaky]), "Shake!", id="t")
        assert failed.wait(PATIENCE)
        wait_for(lambda: task.status() == "waiting")
        task.cancel("enough")
        with pytest.raises(TaskCancelledError):
            task.result(PATIENCE)
        assert continue_conversation(system, "t", "Again").result(PATIENCE) == "Well."
    assert results(model.transcripts[-1]) == [("failed: OSError: later; it was not tried again", True)]
    assert sum(isinstance(event, StepStarted) and event.name == "shaky" for event in log(disk)) == 1
