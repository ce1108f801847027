"""Budgets: counted from the log over failures and deaths, and asked before each call of a model."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from actors import AgentSystem, DefinitionError, TaskFailedError, TaskHeldError, agent, gather, open_store
from actors.llm import (
    Budget,
    Message,
    NotBilledError,
    Reply,
    ScriptedModel,
    ToolCall,
    ToolSpec,
    Usage,
    UserMessage,
    converse,
    llm_agent,
    tool,
)
from actors.testing import every_crash_point
from domain.events import Held, StepFailed, StepStarted
from stores import Store
from tests.lives import die, held, live, log


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


@tool
def look() -> str:
    """Look."""
    return "nothing"


def dear(turns: int, cost: str = "0.50", **tokens: int) -> ScriptedModel:
    """Give a model of which each reply costs the same, and the last is the answer."""
    usage = Usage(cost=Decimal(cost), **tokens)
    wanted = Reply(tool_calls=[ToolCall("c", "look")], usage=usage)
    return ScriptedModel(*[wanted] * (turns - 1), Reply("Done.", usage=usage))


def talker(model: Any, budget: Budget, **options: Any) -> Any:
    return llm_agent("talker", model=model, tools=[look], budget=budget, **options)


def release(disk: Store, **grant: Any) -> None:
    with AgentSystem(disk, run=False) as client:
        client.task("t").release(by="ann", grant=grant or None)


def test_at_the_limit_the_task_is_held_before_the_call_and_a_grant_lets_it_go_on(disk: Store) -> None:
    model = dear(6)
    helper = talker(model, Budget(cost=2.00))
    error = held(disk, helper, "Well?")
    assert error.reason == "spent"
    assert str(error).endswith("2.00 of 2.00 spent\nallow more    perdure release t --budget +AMOUNT")
    assert len(model.transcripts) == 4
    release(disk)
    assert "2.00 of 2.00 spent" in str(held(disk, helper, "Well?"))
    release(disk, cost=Decimal("0.50"))
    assert "2.50 of 2.50 spent" in str(held(disk, helper, "Well?"))
    release(disk, cost=Decimal("1.00"))
    assert live(disk, helper, "Well?") == "Done."
    assert len(model.transcripts) == 6


def test_tokens_and_turns_have_limits_too(disk: Store) -> None:
    helper = talker(dear(5, input_tokens=90, output_tokens=30), Budget(tokens=300, turns=4))
    assert "360 of 300 tokens spent" in str(held(disk, helper, "Well?"))
    release(disk, tokens=1000)
    assert "4 of 4 turns spent" in str(held(disk, helper, "Well?"))
    release(disk, turns=1)
    assert live(disk, helper, "Well?") == "Done."


def test_an_attempt_in_doubt_counts_at_its_reservation(disk: Store) -> None:
    model = dear(3)
    helper = talker(model, Budget(cost=2, per_call=Usage(cost=Decimal("0.75"))))
    die(disk, helper, "Well?", at="body.after", nth=1)
    assert [event.reserved for event in log(disk) if isinstance(event, StepStarted)] == [{"usage": [0, 0, "0.75"]}]
    told = "1.75 of 2.00 spent, and the next call may take 0.75"
    assert told in str(held(disk, helper, "Well?"))
    assert len(model.transcripts) == 3, "one in doubt, and two that are known"


def test_a_model_that_can_tell_what_a_reply_may_take_is_asked(disk: Store) -> None:
    class Estimating(ScriptedModel):
        def estimate(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Usage:
            assert [one.name for one in tools] == ["look"]
            return Usage(cost=Decimal("0.1") * len(messages))

    helper = talker(Estimating(*dear(3).lines), Budget(cost=9))
    live(disk, helper, "Well?")
    starts = [event for event in log(disk) if isinstance(event, StepStarted) and event.name == "model"]
    assert [event.reserved for event in starts] == [{"usage": [0, 0, cost]} for cost in ("0.1", "0.3", "0.5")]


def failing(error: Exception, model: ScriptedModel) -> Any:
    """Give a model whose first call fails."""
    errors = [error]

    class Failing:
        def reply(self, messages: Any, tools: Any, *, on_delta: Any) -> Reply:
            if errors:
                raise errors.pop()
            return model.reply(messages, tools, on_delta=on_delta)

    return Failing()


AGAIN: Any = {"retries": 1, "backoff": 0}
ONE_EACH = Budget(cost=1, per_call=Usage(cost=Decimal("0.50")))


def test_a_failed_attempt_counts_at_its_reservation(disk: Store) -> None:
    helper = talker(failing(ConnectionError("cut"), dear(2)), ONE_EACH, model_options=AGAIN)
    assert "1.00 of 1.00 spent" in str(held(disk, helper, "Well?"))
    assert sum(isinstance(event, StepFailed) for event in log(disk)) == 1


def test_an_attempt_that_was_not_billed_counts_nothing(disk: Store) -> None:
    class TooManyRequestsError(NotBilledError):
        pass

    helper = talker(failing(TooManyRequestsError("429"), dear(2)), ONE_EACH, model_options=AGAIN)
    assert live(disk, helper, "Well?") == "Done."


def test_a_retry_that_does_not_fit_any_more_holds_the_task_too(disk: Store) -> None:
    helper = talker(failing(ConnectionError("cut"), dear(1)), Budget(turns=1), model_options=AGAIN)
    assert "1 of 1 turns spent" in str(held(disk, helper, "Well?"))
    release(disk, turns=1)
    assert live(disk, helper, "Well?") == "Done."


def test_conversations_side_by_side_have_one_budget_together(disk: Store) -> None:
    async def talk(model: ScriptedModel) -> str:
        budget = Budget(cost=1, per_call=Usage(cost=Decimal("0.50")))
        return (await converse([UserMessage("Well?")], model=model, tools=[look], budget=budget)).text

    models = [dear(1), dear(1), dear(1)]

    @agent(name="panel")
    async def panel() -> tuple[str, ...]:
        return await gather(*[talk(model) for model in models])

    assert "1.00 of 1.00 spent" in str(held(disk, panel))
    assert sum(len(model.transcripts) for model in models) == 2


def test_no_crash_makes_a_budget_forget_or_count_twice() -> None:
    """Each death leaves at most one attempt in doubt, which counts at 0.50 as its reply would: five fit, and no six."""
    helper = talker(dear(4), Budget(cost="2.50", per_call=Usage(cost=Decimal("0.50"))))
    for run in every_crash_point(helper, "Well?"):
        run.check()
        assert run.result == "Done."
        assert not [event for event in run.events if isinstance(event, Held)]


def test_no_crash_makes_a_budget_larger() -> None:
    helper = talker(dear(4), Budget(cost="1.50", per_call=Usage(cost=Decimal("0.50"))))
    for run in every_crash_point(helper, "Well?"):
        assert run.status == "held"
        starts = [event for event in run.events if isinstance(event, StepStarted) and event.name == "model"]
        assert len(starts) == 3, "in doubt or not, three fit"


@pytest.mark.parametrize("limits", [{"cost": -1}, {"cost": "much"}, {"tokens": float("nan")}])
def test_what_is_no_amount_is_refused(limits: Any) -> None:
    with pytest.raises(DefinitionError, match="amount"):
        Budget(**limits)


def test_without_a_budget_nothing_is_reserved(disk: Store) -> None:
    live(disk, llm_agent("free", model=dear(1)), "Well?")
    assert [event.reserved for event in log(disk) if isinstance(event, StepStarted)] == [None]


def test_a_model_that_fails_for_good_fails_the_task(disk: Store) -> None:
    helper = talker(failing(ConnectionError("cut"), dear(1)), ONE_EACH, model_options={"retries": 0})
    with pytest.raises(TaskFailedError, match="step 1 model: cut"):
        live(disk, helper, "Well?")


def test_tasks_of_one_agent_are_counted_apart() -> None:
    helper = talker(dear(2), Budget(cost=1, per_call=Usage(cost=Decimal("0.50"))))
    with AgentSystem("memory:") as system:
        tasks = [system.spawn(helper, f"Well, {number}?") for number in range(3)]
        assert [task.result(20) for task in tasks] == ["Done."] * 3
        assert helper.name == "talker"


def test_a_dear_task_does_not_make_another_of_its_agent_dear() -> None:
    costs = {"dear": "0.90", "cheap": "0.10"}

    class Priced:
        def reply(self, messages: Any, tools: Any, *, on_delta: Any) -> Reply:
            usage = Usage(cost=Decimal(costs[messages[0].text]))
            turn = sum(isinstance(one, Reply) for one in messages)
            return Reply("Done.", usage=usage) if turn == 2 else Reply("", [ToolCall("c", "look")], usage)

    helper = talker(Priced(), Budget(cost="1.50"))
    with AgentSystem("memory:") as system:
        assert held_in(system, helper, "dear") == "1.80 of 1.50 spent"
        assert system.spawn(helper, "cheap").result(20) == "Done."


def held_in(system: AgentSystem, helper: Any, prompt: str) -> str:
    with pytest.raises(TaskHeldError) as caught:
        system.spawn(helper, prompt, id="t").result(20)
    return str(caught.value).partition("\n")[0].rpartition(": ")[2]
