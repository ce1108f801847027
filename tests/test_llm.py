"""LLM agents: one transcript, legal whatever happens, each reply and each result once."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actors import (
    AgentSystem,
    DefinitionError,
    Emitted,
    Happened,
    OutsideTaskError,
    TaskFailedError,
    agent,
    open_store,
)
from actors.llm import (
    Answer,
    Message,
    Reply,
    ScriptedModel,
    SystemMessage,
    ToolCall,
    ToolError,
    ToolResult,
    Usage,
    UserMessage,
    continue_conversation,
    conversation,
    converse,
    llm_agent,
    tool,
)
from actors.testing import every_crash_point
from domain.events import StepFailed, StepSucceeded
from stores import Store
from tests.lives import PATIENCE, bodies, die, held, live, log


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


def call(id: str, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id, name, arguments)


def calls(*wanted: ToolCall, **more: Any) -> Reply:
    return Reply(tool_calls=wanted, **more)


def results(messages: list[Message]) -> list[tuple[str, str, bool]]:
    return [(one.call_id, one.text, one.is_error) for one in messages if isinstance(one, ToolResult)]


@tool
def weather(city: str, days: int = 1) -> str:
    """Tell the weather in a city.

    Args:
        city: where.
        days: how many,
            from today.
    """
    return f"rain in {city} for {days}"


@tool
async def population(city: str) -> int:
    """Count people."""
    return {"Rome": 2_800_000}[city]


def script() -> ScriptedModel:
    """Give a conversation of three turns and three calls, two of them side by side."""
    return ScriptedModel(
        calls(call("c1", "weather", city="Rome"), call("c2", "population", city="Rome"), text="I look."),
        calls(call("c1", "weather", city="Oslo", days=3)),
        "Rome is big, and wet.",
    )


# ------------------------------------------------------------------ the loop


def test_an_agent_asks_runs_tools_and_answers(disk: Store) -> None:
    model = script()
    helper = llm_agent("briefed", model=model, tools=[weather, population], instructions="Be brief.")
    assert live(disk, helper, "What about Rome?") == "Rome is big, and wet."
    assert model.transcripts[2] == [
        SystemMessage("Be brief."),
        UserMessage("What about Rome?"),
        Reply("I look.", (call("c1", "weather", city="Rome"), call("c2", "population", city="Rome"))),
        ToolResult("c1", "weather", "rain in Rome for 1"),
        ToolResult("c2", "population", "2800000"),
        Reply("", (call("c1_2", "weather", city="Oslo", days=3),)),
        ToolResult("c1_2", "weather", "rain in Oslo for 3"),
    ]
    assert live(disk, helper, "What about Rome?") == "Rome is big, and wet."
    assert len(model.transcripts) == 3


def test_every_crash_point_gives_the_same_transcript_and_each_reply_and_result_once() -> None:
    whole: list[Message] = []
    for run in every_crash_point(
        llm_agent("crashing", model=script(), tools=[weather, population]), "What about Rome?"
    ):
        run.check()
        assert run.result == "Rome is big, and wet."
        whole = whole or conversation(run.events)
        assert conversation(run.events) == whole
        done = [(event.path, event.name) for event in run.events if isinstance(event, StepSucceeded)]
        assert sorted(done) == [
            ("1", "model"),
            ("2/1/1", "weather"),
            ("2/2/1", "population"),
            ("3", "model"),
            ("4/1/1", "weather"),
            ("5", "model"),
        ]
        assert run.count("model") <= 3 + len(run.crashes)


class AsyncModel:
    """The same, for models that are awaited."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model

    async def reply(self, messages: Any, tools: Any, *, on_delta: Callable[[str], None]) -> Reply:
        await asyncio.sleep(0)
        return self.model.reply(messages, tools, on_delta=on_delta)


class HalfAsyncModel(AsyncModel):
    """A plain function that gives an awaitable."""

    def reply(self, messages: Any, tools: Any, *, on_delta: Callable[[str], None]) -> Any:
        return super().reply(messages, tools, on_delta=on_delta)


@pytest.mark.parametrize("kind", [AsyncModel, HalfAsyncModel])
def test_a_model_may_be_async(disk: Store, kind: type[AsyncModel]) -> None:
    helper = llm_agent("async helper", model=kind(script()), tools=[weather, population])
    assert live(disk, helper, "What about Rome?") == "Rome is big, and wet."


def test_the_loop_is_a_function_of_agents_in_either_colour(disk: Store) -> None:
    @agent(name="plain talk")
    def plain() -> Answer:
        return converse.sync([UserMessage("What about Rome?")], model=script(), tools=[weather, population])

    @agent(name="colourful talk")
    async def colourful() -> Answer:
        return await converse([UserMessage("What about Rome?")], model=script(), tools=[weather, population])

    answer = live(disk, plain)
    assert answer.text == "Rome is big, and wet."
    assert [type(message).__name__ for message in answer.messages].count("ToolResult") == 3
    with open_store("memory:") as other:
        assert live(other, colourful) == answer


def test_who_never_answers_fails_at_the_limit_of_turns(disk: Store) -> None:
    model = ScriptedModel(*[calls(call("c", "weather", city="Rome"))] * 9)
    helper = llm_agent("restless", model=model, tools=[weather], max_turns=3)
    with pytest.raises(TaskFailedError, match="no answer after 3 turns"):
        live(disk, helper, "Well?")
    assert len(model.transcripts) == 3


def test_what_is_no_reply_fails_the_step(disk: Store) -> None:
    class Rude:
        def reply(self, messages: Any, tools: Any, *, on_delta: Any) -> Any:
            return {"text": "hi"}

    helper = llm_agent("rude", model=Rude(), model_options={"retries": 0})
    with pytest.raises(TaskFailedError, match="a model gives a Reply"):
        live(disk, helper, "Well?")


def test_two_agents_of_one_name_from_two_files_are_refused_and_both_places_are_the_users() -> None:
    namespace = {"llm_agent": llm_agent, "agent": agent, "model": ScriptedModel()}
    llm_agent("namesake", model=ScriptedModel())
    here = rf"{__file__}:\d+"
    for other in ("\nllm_agent('namesake', model=model)", "\n@agent(name='namesake')\ndef one(): ..."):
        with pytest.raises(DefinitionError, match=rf"two agents are named 'namesake': {here} and .*elsewhere\.py:2\."):
            exec(compile(other, "elsewhere.py", "exec"), namespace)


def test_a_plain_agent_of_the_same_file_cannot_have_its_name_either() -> None:
    llm_agent("namesake too", model=ScriptedModel())
    with pytest.raises(DefinitionError, match="two agents are named 'namesake too'"):

        @agent(name="namesake too")
        def other() -> None: ...


# ------------------------------------------------------------------ the log


def test_a_conversation_of_200_messages_of_1_kib_takes_less_than_300_kib(disk: Store) -> None:
    kib = "m" * 1024

    @tool
    def read(page: int) -> str:
        """Read a page."""
        return kib

    lines = [calls(call(f"c{page}", "read", page=page), text=kib, usage=Usage(900, 250)) for page in range(100)]
    reader = llm_agent("reader", model=ScriptedModel(*lines, kib), tools=[read], max_turns=200)
    live(disk, reader, "Read!")
    rows = list(disk.recorder.select_events("t"))
    size = sum(len(row.state) + len(row.topic) + len(row.originator_id) + 8 for row in rows)
    assert len(conversation(log(disk))) == 202
    assert size < 300 * 1024, f"{size / 1024:.1f} KiB"


def test_repeated_ids_are_told_apart_within_a_reply_and_over_turns(disk: Store) -> None:
    model = ScriptedModel(
        calls(call("x", "weather", city="Rome"), call("x", "weather", city="Oslo"), call("", "weather", city="Bonn")),
        calls(call("x", "weather", city="Rome")),
        "Done.",
    )
    helper = llm_agent("repeating", model=model, tools=[weather])
    assert live(disk, helper, "Well?") == "Done."
    assert [(one, text) for one, text, _ in results(model.transcripts[-1])] == [
        ("x", "rain in Rome for 1"),
        ("x_2", "rain in Oslo for 1"),
        ("call", "rain in Bonn for 1"),
        ("x_3", "rain in Rome for 1"),
    ]
    assert model.transcripts[-1] == conversation(log(disk))[:-1]


def test_tools_that_finish_in_another_order_have_their_results_in_the_order_of_the_calls() -> None:
    class Relay:
        def __init__(self) -> None:
            self.second = threading.Event()

    relay = Relay()

    @tool
    def first() -> str:
        """Wait for the second."""
        assert relay.second.wait(PATIENCE)
        return "1"

    @tool
    def second() -> str:
        """Go ahead."""
        relay.second.set()
        return "2"

    model = ScriptedModel(calls(call("a", "first"), call("b", "second")), "Done.")
    helper = llm_agent("relay", model=model, tools=[first, second])
    for run in every_crash_point(helper, "Go!"):
        assert run.result == "Done."
        assert results(conversation(run.events)) == [("a", "1", False), ("b", "2", False)]


# ------------------------------------------------------------------ what tools are told and tell


def test_a_schema_comes_from_signature_and_docstring() -> None:
    assert weather.spec.description == "Tell the weather in a city."
    assert weather.spec.parameters == {
        "type": "object",
        "properties": {
            "city": {"description": "where.", "title": "City", "type": "string"},
            "days": {"description": "how many, from today.", "title": "Days", "type": "integer", "default": 1},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (call("c", "weather", town="Rome"), "weather was not called: city: Field required; town: Extra inputs"),
        (call("c", "weather", city="Rome", days="many"), "days: Input should be a valid integer"),
        (ToolCall("c", "weather", '{"city": '), "weather was not called: arguments: Invalid JSON"),
        (call("c", "wheather"), "there is no tool 'wheather'; there are: weather"),
    ],
)
def test_a_bad_call_is_told_to_the_model(disk: Store, wanted: ToolCall, told: str) -> None:
    model = ScriptedModel(calls(wanted), "Sorry.")
    assert live(disk, llm_agent("clumsy", model=model, tools=[weather]), "Well?") == "Sorry."
    ((one, text, is_error),) = results(model.transcripts[-1])
    assert (one, is_error) == ("c", True)
    assert told in text
    assert model.transcripts[-1] == conversation(log(disk))[:-1]
    assert [name for _, name, _ in bodies(disk)] == ["model", "model"]


def test_arguments_that_are_text_are_read_as_json(disk: Store) -> None:
    model = ScriptedModel(calls(ToolCall("c", "weather", '{"city": "Rome"}')), "Ok.")
    live(disk, llm_agent("texting", model=model, tools=[weather]), "Well?")
    assert results(model.transcripts[-1]) == [("c", "rain in Rome for 1", False)]


def test_a_tool_error_is_a_result_and_is_not_tried_again(disk: Store) -> None:
    class NoSuchCityError(ToolError):
        pass

    @tool(retries=5, backoff=0, give_up_on=KeyError)
    def look(city: str) -> str:
        """Look."""
        raise NoSuchCityError(f"there is no {city}")

    model = ScriptedModel(calls(call("c", "look", city="Rmoe")), "Sorry.")
    live(disk, llm_agent("looking", model=model, tools=[look]), "Well?")
    assert results(model.transcripts[-1]) == [("c", "there is no Rmoe", True)]
    assert [name for _, name, _ in bodies(disk)] == ["model", "look", "model"]
    assert model.transcripts[-1] == conversation(log(disk))[:-1]


def shaky(failures: int, **options: Any) -> Any:
    made = iter(range(failures))

    @tool(name="shaky", **options)
    def once() -> str:
        """Try."""
        if next(made, None) is not None:
            raise ConnectionError("no answer")
        return "at last"

    return once


def test_another_error_is_tried_again(disk: Store) -> None:
    model = ScriptedModel(calls(call("c", "shaky")), "Done.")
    live(disk, llm_agent("trying", model=model, tools=[shaky(2, retries=2, backoff=0)]), "Go!")
    assert results(model.transcripts[-1]) == [("c", "at last", False)]
    assert sum(isinstance(event, StepFailed) for event in log(disk)) == 2


def test_an_error_that_stays_fails_the_task_and_the_conversation_can_be_gone_on_with(disk: Store) -> None:
    model = ScriptedModel(calls(call("c", "shaky"), call("d", "weather", city="Rome")), "Never mind.")
    failing = llm_agent("failing", model=model, tools=[shaky(1), weather])
    with pytest.raises(TaskFailedError, match="no answer"):
        live(disk, failing, "Go!")
    with AgentSystem(disk) as system:
        assert continue_conversation(system, "t", "again").result(PATIENCE) == "Never mind."
    assert results(model.transcripts[-1]) == [
        ("c", "failed: ConnectionError: no answer", True),
        ("d", "rain in Rome for 1", False),
    ]


def test_an_error_that_stays_holds_where_the_agent_says_so_and_a_person_gives_the_call_up(disk: Store) -> None:
    model = ScriptedModel(calls(call("c", "shaky")), "Never mind.")
    holding = llm_agent("holding", model=model, tools=[shaky(1)], on_failure="hold")
    assert held(disk, holding, "Go!").reason == "failed step"
    with AgentSystem(disk, run=False) as client:
        client.task("t").resolve("2/1/1", fail=True, by="ann")
    assert live(disk, holding, "Go!") == "Never mind."
    told = "cancelled: given up by ann; it may or may not have happened"
    assert results(model.transcripts[-1]) == [("c", told, True)]
    assert results(conversation(log(disk))) == [("c", told, True)]


def test_a_tool_is_a_step_for_agents_too(disk: Store) -> None:
    @agent(name="by hand")
    def flow() -> tuple[str, int]:
        return weather("Rome"), population.sync("Rome")

    assert live(disk, flow) == ("rain in Rome for 1", 2_800_000)
    assert [name for _, name, _ in bodies(disk)] == ["weather", "population"]
    with pytest.raises(OutsideTaskError):
        weather("Rome")


@pytest.mark.parametrize(
    ("function", "options", "why"),
    [
        (lambda: 1, {"name": "a b"}, "1 to 64 letters"),
        (lambda: 1, {"name": "model"}, "neither model nor bad_call"),
        (lambda *args: 1, {"name": "many"}, "cannot be given by name"),
        (lambda: 1, {"name": "x", "retries": -1}, "retries"),
    ],
)
def test_a_tool_that_cannot_be_is_refused(function: Any, options: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        tool(**options)(function)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(DefinitionError, match="two tools are named 'weather'"):
        llm_agent("double", model=ScriptedModel(), tools=[weather, tool(name="weather")(lambda: "")])


def test_instructions_may_change_while_a_reply_is_in_doubt(disk: Store, caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel("Hello.")
    die(disk, llm_agent("told", model=model, instructions="Be brief."), "Hi")
    assert live(disk, llm_agent("told", model=model, instructions="Be kind."), "Hi") == "Hello."
    assert "other arguments" not in caplog.text
    assert model.transcripts[-1][0] == SystemMessage("Be kind.")


def test_a_call_that_ran_out_of_time_has_a_result_when_the_conversation_goes_on(disk: Store) -> None:
    @tool(timeout=0.05)
    async def slow() -> str:
        """Take long."""
        await asyncio.sleep(PATIENCE)
        return ""

    model = ScriptedModel(calls(call("c", "slow")), "Never mind.")
    with pytest.raises(TaskFailedError, match="given up at its time limit"):
        live(disk, llm_agent("hurried", model=model, tools=[slow]), "Go!")
    with AgentSystem(disk) as system:
        assert continue_conversation(system, "t", "again").result(PATIENCE) == "Never mind."
    ((_, text, is_error),) = results(model.transcripts[-1])
    assert text.startswith("failed: StepTimeoutError: it was given up at its time limit")
    assert is_error


def test_a_process_that_died_in_a_tool_runs_it_again_or_asks_what_became_of_it(disk: Store) -> None:
    asked: list[Any] = []

    def find_out(doubt: Any) -> Any:
        asked.append(doubt.kwargs)
        return Happened("paid before")

    @tool(on_doubt=find_out)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel(calls(call("c", "pay", amount=3)), "Done.")
    helper = llm_agent("doubtful", model=model, tools=[pay])
    die(disk, helper, "Pay!", at="body.after", nth=2)
    assert live(disk, helper, "Pay!") == "Done."
    assert asked == [{"amount": 3}]
    assert results(model.transcripts[-1]) == results(conversation(log(disk))) == [("c", "paid before", False)]


def test_a_long_piece_of_a_stream_is_no_reason_to_fail(disk: Store) -> None:
    text = "\U0001f600" * 100_000
    live(disk, llm_agent("verbose", model=ScriptedModel(text)), "Well?")
    with AgentSystem(disk, run=False) as client:
        pieces = [update.value for update in client.task("t").follow() if isinstance(update, Emitted)]
    assert "".join(pieces) == text


def test_a_reply_in_doubt_may_be_given_by_a_person(disk: Store) -> None:
    helper = llm_agent("given", model=ScriptedModel("Hello."), model_options={"on_doubt": "hold"})
    die(disk, helper, "Hi")
    held(disk, helper, "Hi")
    with AgentSystem(disk, run=False) as client:
        client.task("t").resolve("1", value="Good day.", by="ann")
    assert live(disk, helper, "Hi") == "Good day."
    assert conversation(log(disk)) == [UserMessage("Hi"), Reply("Good day.")]
