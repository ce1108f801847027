"""Models of providers: asked once a turn, whole or an error, each error as the step's policy needs it."""

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from actors import AgentSystem, TaskFailedError, TaskHeldError, agent, open_store
from actors.llm import (
    Budget,
    ModelError,
    ModelUnavailableError,
    Reply,
    ReplyCutError,
    RequestRefusedError,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    continue_conversation,
    conversation,
    converse,
    llm_agent,
)
from actors.testing import FakeClock, every_crash_point
from domain.events import StepFailed, StepStarted, StepSucceeded
from stores import Store
from tests.lives import PATIENCE, live, log, wait_for
from tests.providers import (
    ANSWER,
    BOTH,
    ONE,
    ROME,
    TALK,
    Anthropic,
    Line,
    OpenAI,
    Trouble,
    ask,
    helper_of,
    population,
    rome,
    weather,
)
from tests.scenario_kit import World


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


def failed(disk: Store, agent: Any, **options: Any) -> StepFailed:
    """Run the task to its failure, and give the last one of its steps."""
    with pytest.raises(TaskFailedError):
        live(disk, agent, "What about Rome?", **options)
    return [event for event in log(disk) if isinstance(event, StepFailed)][-1]


# ------------------------------------------------------------------ a conversation


@BOTH
def test_a_conversation_with_tools_is_streamed_and_counted_and_each_turn_asked_once(disk: Store, kind: Any) -> None:
    with kind(*TALK) as provider:
        helper = helper_of(provider.model())
        with AgentSystem(disk) as system:
            task = system.spawn(helper, "What about Rome?", id="t")
            assert task.result(PATIENCE) == ANSWER
            messages = conversation(task.events())
        assert live(disk, helper, "What about Rome?") == ANSWER
        assert provider.turns == [0, 1, 2]
    usage, sunk = Usage(100, 20, Decimal("0.00264"), 40), ToolCall("c1_3", "weather", {"city": "Atlantis"})
    assert messages == [
        UserMessage("What about Rome?"),
        Reply("I look. ", (rome("c1", "weather"), rome("c1_2", "population")), usage),
        ToolResult("c1", "weather", "rain in Rome"),
        ToolResult("c1_2", "population", "2800000"),
        Reply("", (sunk, ToolCall("c9", "weather", '{"city": "Ro')), usage),
        ToolResult("c1_3", "weather", "there is no such city", is_error=True),
        messages[6],
        Reply(ANSWER, (), usage),
    ]
    assert isinstance(messages[6], ToolResult)
    assert messages[6].text.startswith("weather was not called: ")


@BOTH
def test_text_is_told_piece_by_piece_and_is_the_replys(kind: Any) -> None:
    told: list[str] = []
    with kind(ONE) as provider:
        reply = ask(provider.model(), on_delta=told.append)
    assert told == ["It ", "rains. "]
    assert reply.text == "".join(told)


@BOTH
def test_an_ended_conversation_is_taken_up_again(disk: Store, kind: Any) -> None:
    with kind(*TALK, Line("Really.")) as provider, AgentSystem(disk) as system:
        helper = helper_of(provider.model())
        system.spawn(helper, "What about Rome?", id="t").result(PATIENCE)
        assert continue_conversation(system, "t", "Really?").result(PATIENCE) == "Really. "
        assert provider.turns == [0, 1, 2, 3]


@BOTH
def test_a_sync_agent_asks_as_well_and_a_model_serves_several_systems(kind: Any) -> None:
    with kind(ONE, Line("Wet.")) as provider:
        model = provider.model()

        @agent(name="providers: sync asker")
        def asker() -> str:
            return converse.sync([UserMessage("hi")], model=model, tools=[weather]).text

        for _ in range(2):
            with AgentSystem("memory:") as one, AgentSystem("memory:") as two:
                tasks = [system.spawn(asker) for system in (one, two)]
                assert [task.result(PATIENCE) for task in tasks] == ["Wet. ", "Wet. "]


@BOTH
def test_whatever_point_it_dies_at_a_turn_is_asked_once_but_for_a_reply_that_was_not_in_the_log_yet(kind: Any) -> None:
    again = Counter[str]()
    with kind(*TALK) as provider:
        helper = llm_agent("providers: crashing", model=provider.model(), tools=[weather, population])
        for run in every_crash_point(helper, "What about Rome?"):
            run.check()
            assert run.result == ANSWER
            assert [event.name for event in run.events if isinstance(event, StepSucceeded)].count("model") == 3
            assert sorted(set(provider.turns)) == [0, 1, 2]
            again.update(run.crashes * (len(provider.asked) - 3))
            provider.asked.clear()
    assert again == {"body.after": 3, "append.before": 3, "append.inside": 3}


PROGRAM = """
    import sys
    from functools import partial
    from actors import AgentSystem
    from actors.llm import {model}, llm_agent, tool
    from {package} import {client}
    from tests.scenario_kit import STORE, answer, die_once, effect, say

    @tool
    def weather(city: str) -> str:
        effect("weather")
        die_once("tool")
        return "rain in " + city

    make = partial({client}, base_url=sys.argv[1], api_key="none")
    helper = llm_agent("helper", model={model}("m-1", client=make), tools=[weather])

    if __name__ == "__main__":
        with AgentSystem(STORE) as system:
            say(answer(system.spawn(helper, "hi", id="talk")))
"""


@BOTH
def test_a_killed_process_goes_on_without_asking_again(world: World, kind: Any) -> None:
    names = {"model": kind.kind.__name__, "package": kind.extra, "client": f"Async{kind.__name__}"}
    program = world.write(PROGRAM.format(**names))
    with kind(ONE, Line("Wet.")) as provider:
        url = provider.url + ("/v1" if kind is OpenAI else "")
        assert world.start(program, url).code(60) != 0
        assert provider.turns == [0]
        assert world.run(program, url) == "Wet."
        assert provider.turns == [0, 1]
    assert world.count("weather") == 2


# ------------------------------------------------------------------ what is refused for now


@BOTH
def test_a_provider_that_asks_for_a_wait_gets_it_and_bills_nothing(disk: Store, kind: Any) -> None:
    with kind(*TALK) as provider:
        provider.troubles += [Trouble(429, {"Retry-After": "77"}), Trouble(503, {"retry-after-ms": "88000"})]
        helper = helper_of(provider.model(), budget=Budget(turns=3), model_options={"jitter": 0})
        assert live(disk, helper, "What about Rome?", clock=FakeClock(jump=True)) == ANSWER
        assert provider.turns == [0, 0, 0, 1, 2]
    found = [event for event in log(disk) if isinstance(event, StepFailed) and event.name == "model"]
    assert [event.retry_at and event.retry_at - event.timestamp for event in found] == [77, 88]
    starts = [event.timestamp for event in log(disk) if isinstance(event, StepStarted) and event.path == "1"]
    assert starts[1:] == [event.retry_at for event in found]


@BOTH
def test_without_a_word_about_the_wait_the_steps_own_counts(disk: Store, kind: Any) -> None:
    with kind(*TALK) as provider:
        provider.troubles.append(Trouble(429))
        helper = helper_of(provider.model(), model_options={"jitter": 0, "backoff": 5})
        assert live(disk, helper, "What about Rome?", clock=FakeClock(jump=True)) == ANSWER
    first = next(event for event in log(disk) if isinstance(event, StepFailed))
    assert first.retry_at == first.timestamp + 5


@BOTH
def test_a_client_never_tries_again_by_itself(kind: Any) -> None:
    with kind(*TALK) as provider:
        for status, expected in ((429, ModelUnavailableError), (500, ModelError), (409, ModelUnavailableError)):
            provider.troubles.append(Trouble(status))
            provider.asked.clear()
            with pytest.raises(ModelError) as caught:
                ask(provider.model())
            assert type(caught.value) is expected
            assert len(provider.asked) == 1
            assert f"{kind.kind.__name__} m-1: " in str(caught.value)
            assert "no luck" in str(caught.value)


@BOTH
def test_a_provider_that_is_not_there_bills_nothing(kind: Any) -> None:
    with kind(ONE) as provider:
        model = provider.model()
    with pytest.raises(ModelUnavailableError, match="was not reached"):
        ask(model)


# ------------------------------------------------------------------ what may have been billed


@BOTH
def test_an_internal_error_is_tried_again_and_counts_as_it_was_reserved(disk: Store, kind: Any) -> None:
    with kind(*TALK) as provider:
        provider.troubles.append(Trouble(500))
        helper = helper_of(provider.model(), budget=Budget(turns=3), model_options={"backoff": 0})
        with pytest.raises(TaskHeldError, match="3 of 3 turns spent"):
            live(disk, helper, "What about Rome?")
        assert provider.turns == [0, 0, 1]


@BOTH
@pytest.mark.parametrize("torn", [True, False])
@pytest.mark.parametrize("line", [ONE, Line("A long story.")], ids=["calls", "text"])
def test_a_cut_stream_is_never_taken_for_a_whole_reply(kind: Any, line: Line, torn: bool) -> None:
    with kind(line) as provider:
        model = provider.model()
        for after in range(provider.count() - (0 if torn else provider.needed)):
            provider.troubles.append(Trouble(after=after, torn=torn))
            with pytest.raises(ReplyCutError, match="what had come of it is dropped"):
                ask(model)
        assert ask(model).text in ("It rains. ", "A long story. ")


@BOTH
def test_an_error_in_the_middle_of_a_stream_is_tried_again_with_the_providers_words(disk: Store, kind: Any) -> None:
    with kind(*TALK) as provider:
        provider.troubles.append(
            Trouble(after=3, says=True, error={"type": "overloaded_error", "message": "overloaded"})
        )
        helper = helper_of(provider.model(), model_options={"backoff": 0})
        assert live(disk, helper, "What about Rome?") == ANSWER
        assert provider.turns == [0, 0, 1, 2]
    first = next(event for event in log(disk) if isinstance(event, StepFailed))
    assert "the reply was cut" in first.error["message"]
    assert "overloaded" in first.error["message"]


@BOTH
def test_a_cancelled_task_hangs_up(disk: Store, kind: Any) -> None:
    with kind(ONE) as provider, AgentSystem(disk) as system:
        provider.door.clear()
        task = system.spawn(helper_of(provider.model()), "hi", id="t")
        wait_for(lambda: bool(provider.asked))
        task.cancel("enough", by="ann")
        assert provider.left.wait(PATIENCE)


# ------------------------------------------------------------------ what is refused for good

LONG = {OpenAI: "length", Anthropic: "max_tokens"}
REFUSED = {OpenAI: "content_filter", Anthropic: "refusal"}


@BOTH
def test_a_reply_that_was_cut_at_its_limit_fails_at_once_and_says_what_to_raise(disk: Store, kind: Any) -> None:
    with kind(Line("Once upon a", (("c1", "weather", ROME),), LONG[kind])) as provider:
        failure = failed(disk, helper_of(provider.model()))
        assert provider.turns == [0]
    assert failure.retry_at is None
    name = "finish_reason" if kind is OpenAI else "stop_reason"
    assert f"cut at its limit (20 tokens, {name}={LONG[kind]}): raise max_" in failure.error["message"]


@BOTH
def test_a_refusal_fails_at_once(disk: Store, kind: Any) -> None:
    with kind(Line("I will", (), REFUSED[kind])) as provider:
        failure = failed(disk, helper_of(provider.model()))
        assert provider.turns == [0]
    assert f"would not answer: {'the' if kind is OpenAI else 'stop_reason=refusal'}" in failure.error["message"]


@BOTH
@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_request_that_is_wrong_fails_at_once(disk: Store, kind: Any, status: int) -> None:
    with kind(*TALK) as provider:
        provider.troubles.append(Trouble(status))
        failure = failed(disk, helper_of(provider.model()))
        assert provider.turns == [0]
    assert "no luck" in failure.error["message"]
    assert "it would be refused again: mend what it says" in failure.error["message"]


@BOTH
def test_an_option_that_the_client_does_not_know_fails_at_once(disk: Store, kind: Any) -> None:
    with kind(*TALK) as provider:
        failure = failed(disk, helper_of(provider.model(temprature=0)))
        assert provider.asked == []
    assert "'temprature'; it would be refused again" in failure.error["message"]


@BOTH
def test_the_users_options_add_to_ours_and_a_policy_of_their_own_replaces_them(disk: Store, kind: Any) -> None:
    with kind(*TALK) as provider:
        provider.troubles += [Trouble(401), Trouble(401), Trouble(401)]
        helper = helper_of(provider.model(), model_options={"retries": 2, "backoff": 0, "give_up_on": ()})
        failed(disk, helper)
        assert provider.turns == [0, 0, 0]


def test_a_spent_account_is_not_asked_again_although_its_status_says_later() -> None:
    with OpenAI(ONE) as provider:
        provider.troubles.append(Trouble(429, error={"message": "pay first", "code": "insufficient_quota"}))
        with pytest.raises(RequestRefusedError, match="pay first"):
            ask(provider.model())


def test_a_key_that_is_not_there_is_no_trouble_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    from actors.llm import OpenAIModel

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(RequestRefusedError, match="OPENAI_API_KEY"):
        ask(OpenAIModel("m-1"))
