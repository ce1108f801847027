"""A conversation on the terminal, as it is and as it comes; and the budget of one that is held."""

import re
from pathlib import Path

import pytest

from tests.lives import wait_for
from tests.scenario_kit import World

HELPER = Path(__file__).parent / "examples" / "llm_helper.py"
RUN = ["run", f"{HELPER}:helper", "An umbrella\nfor Rome?", "--id", "umbrella"]


def pause_of(world: World) -> str:
    """Wait for the question that the example asks, and give its id."""

    def asked() -> list[str]:
        if not world.is_there():
            return []
        with world.client() as client:
            return [one.id for one in client.approvals()]

    wait_for(lambda: bool(asked()))
    return asked()[0]


def shown(world: World, *words: str) -> list[str]:
    return world.perdure("show", "umbrella", *words).end().partition("\n\n")[2].splitlines()


def test_the_example_asks_before_it_spends_and_a_conversation_is_shown_as_one(world: World) -> None:
    running = world.perdure(*RUN)
    pause = pause_of(world)
    assert shown(world) == [
        "user      An umbrella",
        "          for Rome?",
        "model     1  Let me look.  (135 tokens, 0.01)",
        'tool      2/1/1  weather(city="Rome", days=2) → ["rain in Rome", "rain in Rome"]',
        "model     3  wants order  (135 tokens, 0.01)",
        'tool      4/1/1  order(what="umbrella", price=25)  waits for yes or no',
        "in all    2 replies, 270 tokens, 0.02",
        "",
        "umbrella  asks \"order(what='umbrella', price=25)\"",
        f"  perdure approve '{pause}' --store {world.url}",
    ]
    world.perdure("approve", pause, "--by", "ann").end()
    assert running.end().startswith('"It rains all along. umbrella is on its way, order pd_')
    told = running.errors.splitlines()
    assert "model     1  Let me look.  (135 tokens, 0.01)" in told
    assert 'tool      2/1/1  weather(city="Rome", days=2) → ["rain in Rome", "rain in Rome"]' in told
    last = told[-1], *[line for line in told if line.startswith("tool      4/1/3")]
    assert last[0].startswith("model     5  It rains all along.")
    assert last[1].startswith('tool      4/1/3  order(what="umbrella", price=25) → umbrella is on its way')
    assert shown(world, "--log")[0].split()[1:] == ["time", "event", "path", "what"]


def test_a_rejection_is_shown_with_its_note(world: World) -> None:
    running = world.perdure(*RUN)
    world.perdure("reject", pause_of(world), "--note", "too dear", "--by", "ann").end()
    assert running.end() == '"No umbrella, then."'
    assert 'tool      4/1/2  order(what="umbrella", price=25) → rejected by ann: too dear' in shown(world)


SPENDER = """
    from decimal import Decimal
    from actors.llm import Budget, Reply, ScriptedModel, ToolCall, Usage, llm_agent, tool

    @tool
    def look() -> str:
        return "nothing"

    usage = Usage(cost=Decimal("0.50"))
    model = ScriptedModel(*[Reply(tool_calls=[ToolCall("c", "look")], usage=usage)] * 5, Reply("Done.", usage=usage))
    spender = llm_agent("spender", model=model, tools=[look], budget=Budget(cost="2.00"))
"""


@pytest.fixture
def spent(world: World) -> list[str]:
    """Give the words that run a task which has spent its budget, and is held."""
    words = ["run", f"{world.write(SPENDER)}:spender", "Look!", "--id", "t"]
    held = world.perdure(*words)
    held.end(3)
    assert re.search(r"t  held just now  2\.00 of 2\.00 spent\n +allow more +perdure release t", held.errors)
    return words


def test_a_budget_is_raised_by_the_command_that_the_hold_names(world: World, spent: list[str]) -> None:
    (hint,) = [line for line in world.perdure("show", "t").end().splitlines() if "allow more" in line]
    command = hint.split("perdure ")[1].replace(f" --store {world.url}", "").replace("+AMOUNT", "+1.00")
    assert "released with +1.00 cost" in world.perdure(*command.split()).end()
    assert world.perdure(*spent).end() == '"Done."'


@pytest.mark.parametrize("amount", ["1.00", "+0", "+-1", "+nan", "+inf", "much"])
def test_an_amount_that_is_none_is_refused_and_nothing_is_released(world: World, spent: list[str], amount: str) -> None:
    refused = world.perdure("release", "t", "--budget", amount)
    refused.end(2)
    assert "--budget takes what is added, such as +1.00" in refused.errors
    with world.client() as client:
        assert client.task("t").status() == "held"


def test_a_budget_of_what_has_none_is_refused(world: World) -> None:
    running = world.perdure(*RUN)
    pause_of(world)
    refused = world.perdure("release", "umbrella", "--budget", "+1.00")
    refused.end(2)
    assert "not held because a budget is spent" in refused.errors
    running.kill()


def test_a_task_that_runs_no_model_is_shown_as_its_log(world: World) -> None:
    plain = world.write("""
        from actors import agent, step

        @step
        def model() -> dict:
            return {"words": "I am no model"}

        @agent
        def flow() -> dict:
            return model()
    """)
    world.perdure("run", f"{plain}:flow", "--id", "umbrella").end()
    assert shown(world)[0].startswith("ver")
