"""Scenarios about conversations: P11 the transcript stays legal, P13 two approvals answered backwards."""

from __future__ import annotations

from typing import Any

import pytest

from actors import Emitted, Reset
from domain.events import StepSucceeded
from tests.lives import wait_for
from tests.scenario_kit import KILLED, Program, World

TALK = """
    import asyncio
    import sys
    from actors import AgentSystem
    from actors.llm import Reply, ScriptedModel, ToolCall, continue_conversation, llm_agent, tool
    from tests.scenario_kit import STORE, answer, effect, say

    class Model(ScriptedModel):
        def reply(self, messages, tools, *, on_delta):
            effect("asked", [[type(one).__name__, getattr(one, "call_id", ""), one.text] for one in messages])
            return super().reply(messages, tools, on_delta=on_delta)

    @tool
    def quick() -> str:
        effect("quick")
        return "quickly"

    @tool(on_doubt="hold")
    async def slow() -> str:
        effect("slow")
        await asyncio.Event().wait()

    model = Model(Reply("I do.", [ToolCall("c1", "quick"), ToolCall("c2", "slow")]), "Yes.", "Yes again.")
    helper = llm_agent("helper", model=model, tools=[quick, slow])

    if __name__ == "__main__":
        with AgentSystem(STORE) as system:
            if sys.argv[1] == "again":
                task = continue_conversation(system, "talk", "again", id="talk-2")
            else:
                task = system.spawn(helper, "hello", id="talk")
            say(answer(task))
"""

ASKED = [["UserMessage", "", "hello"]]
CALLED = [*ASKED, ["Reply", "", "I do."], ["ToolResult", "c1", "quickly"]]
CUT_OFF = [*CALLED, ["ToolResult", "c2", "cancelled: it was cut off while it ran; it may or may not have happened"]]
GIVEN_UP = [*CALLED, ["ToolResult", "c2", "cancelled: given up by ann; it may or may not have happened"]]
AGAIN = [["UserMessage", "", "again"]]


def in_the_second_call(world: World, program: Any) -> Program:
    """Start the conversation, and give it when the first call is in the log and the second one runs."""
    running = world.start(program, "talk")

    def there() -> bool:
        if not world.is_there() or not world.count("slow"):
            return False
        with world.client() as client:
            events = client.task("talk").events()
        return any(isinstance(event, StepSucceeded) and event.name == "quick" for event in events)

    wait_for(there)
    return running


def kill_and_hold(world: World, program: Any) -> None:
    in_the_second_call(world, program).kill()
    assert world.run(program, "talk") == "TaskHeldError"


def decide(world: World, *words: str) -> None:
    with world.client() as client:
        task = client.task("talk")
        if "give up" in words:
            task.resolve("2/2/1", fail=True, by="ann")
        if "cancel" in words:
            task.cancel("enough", by="ann")


@pytest.mark.parametrize(
    ("words", "between"),
    [
        pytest.param(["cancel"], CUT_OFF, id="cancelled"),
        pytest.param(["kill", "cancel"], CUT_OFF, id="killed, cancelled"),
        pytest.param(["kill", "give up", "cancel"], GIVEN_UP, id="killed, given up, cancelled"),
        pytest.param(["kill", "give up"], [*GIVEN_UP, ["Reply", "", "Yes."]], id="killed, given up"),
    ],
)
def test_the_transcript_stays_legal(world: World, words: list[str], between: list[list[str]]) -> None:
    """P11."""
    program = world.write(TALK)
    if "kill" in words:
        kill_and_hold(world, program)
        decide(world, *words)
        ended = world.run(program, "talk")
    else:
        running = in_the_second_call(world, program)
        decide(world, *words)
        ended = running.end()
    assert ended == ("TaskCancelledError" if "cancel" in words else "Yes.")
    assert world.run(program, "again") == ("Yes." if "cancel" in words else "Yes again.")

    transcripts = [line.note for line in world.ledger("asked")]
    assert transcripts[0] == ASKED
    assert transcripts[-1] == between + AGAIN
    assert len(transcripts) == (2 if "cancel" in words else 3), "nobody is asked twice"
    assert world.count("quick") == world.count("slow") == 1


PAY = """
    from actors import AgentSystem
    from actors.llm import Reply, ScriptedModel, ToolCall, llm_agent, tool
    from tests.scenario_kit import STORE, answer, effect, say

    class Model(ScriptedModel):
        def reply(self, messages, tools, *, on_delta):
            effect("asked", [one.text for one in messages])
            return super().reply(messages, tools, on_delta=on_delta)

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        effect("pay", amount)
        return f"paid {amount}"

    calls = [ToolCall("c1", "pay", {"amount": 10}), ToolCall("c1", "pay", {"amount": 20})]
    payer = llm_agent("payer", model=Model(Reply(tool_calls=calls), "Done."), tools=[pay])

    if __name__ == "__main__":
        with AgentSystem(STORE) as system:
            task = system.spawn(payer, "pay both", id="pay")
            say("ready")
            say(answer(task))
"""


def approvals(world: World) -> dict[str, str]:
    if not world.is_there():
        return {}
    with world.client() as client:
        return {one.question: one.id for one in client.approvals() if one.task_id == "pay"}


def reply_to(world: World, pause: str, *, approved: bool, note: str = "") -> None:
    with world.client() as client:
        client.task("pay").answer(pause, approved=approved, note=note, by="ann")


def test_two_approvals_are_answered_backwards(world: World) -> None:
    """P13."""
    program = world.write(PAY)
    running = world.start(program)
    wait_for(lambda: len(approvals(world)) == 2)
    asked = approvals(world)
    ten, twenty = asked["pay(amount=10)"], asked["pay(amount=20)"]
    assert ten != twenty
    reply_to(world, twenty, approved=False, note="too much")
    running.kill()
    assert running.code() == KILLED

    again = world.start(program)
    assert again.hear() == "ready"
    wait_for(lambda: approvals(world) == {"pay(amount=10)": ten})
    assert world.count("pay") == 0
    reply_to(world, ten, approved=True)
    assert again.end() == "Done."
    assert [line.note for line in world.ledger("pay")] == [10]
    assert [line.note for line in world.ledger("asked")] == [
        ["pay both"],
        ["pay both", "", "paid 10", "rejected by ann: too much"],
    ]


# ------------------------------------------------------------------ in the same form

MORTAL = """
    from decimal import Decimal
    from actors import AgentSystem
    from actors.llm import Budget, Reply, ScriptedModel, ToolCall, Usage, llm_agent, tool
    from tests.scenario_kit import STORE, answer, die_once, effect, say

    class Model(ScriptedModel):
        def reply(self, messages, tools, *, on_delta):
            effect("asked", len(messages))
            on_delta("It may ")
            on_delta("rain")
            die_once("model")
            return super().reply(messages, tools, on_delta=on_delta)

    @tool
    def look() -> str:
        effect("looked")
        return "nothing"

    half = Usage(cost=Decimal("0.50"))
    model = Model(Reply("I look.", [ToolCall("c1", "look")], half), Reply("It is dry.", usage=half))
    helper = llm_agent("helper", model=model, tools=[look], budget=Budget(cost="1.00", per_call=half))

    if __name__ == "__main__":
        with AgentSystem(STORE) as system:
            say(answer(system.spawn(helper, "hello", id="talk")))
"""


def test_a_call_that_died_counts_against_the_budget_until_a_person_allows_more(world: World) -> None:
    program = world.write(MORTAL)
    world.run(program, code=KILLED)
    assert world.run(program) == "TaskHeldError"
    with world.client() as client:
        assert "1.00 of 1.00 spent" in client.task("talk").describe().why
    assert [line.note for line in world.ledger("asked")] == [1, 1], "the third call was not made"
    assert "released with +0.50 cost" in world.perdure("release", "talk", "--budget", "+0.50").end()
    assert world.run(program) == "It is dry."
    assert [(line.note, line.attempt) for line in world.ledger("asked")] == [(1, 1), (1, 2), (3, 1)]
    assert world.count("looked") == 1


def test_a_stream_cut_by_a_death_is_stored_and_shown_as_one_attempts_text(world: World) -> None:
    program = world.write(MORTAL)
    world.run(program, code=KILLED)
    world.run(program)
    shown: dict[str, str] = {}
    with world.client() as client:
        task = client.task("talk")
        task.release(grant={"cost": 1})
        assert world.run(program) == "It is dry."
        for update in task.follow():
            if isinstance(update, Reset):
                shown[update.path] = ""
            elif isinstance(update, Emitted):
                shown[update.path] = shown.get(update.path, "") + update.value
        done = [event for event in task.events() if isinstance(event, StepSucceeded) and event.name == "model"]
    assert shown == {"1": "It may rainI look.", "3": "It may rainIt is dry."}
    assert [event.value["text"] for event in done] == ["I look.", "It is dry."]


ORDER = """
    import asyncio
    from actors import AgentSystem, step_info
    from actors.llm import Reply, ScriptedModel, ToolCall, llm_agent, tool
    from tests.scenario_kit import STORE, answer, effect, say

    class Model(ScriptedModel):
        def reply(self, messages, tools, *, on_delta):
            effect("asked", [[getattr(one, "call_id", ""), one.text] for one in messages])
            return super().reply(messages, tools, on_delta=on_delta)

    @tool
    def quick(turn: int) -> str:
        effect("quick", turn)
        return f"quickly in turn {turn}"

    @tool
    async def slow() -> str:
        effect("slow")
        if step_info().attempt == 1:
            await asyncio.Event().wait()
        return "slowly"

    both = Reply(tool_calls=[ToolCall("c1", "slow"), ToolCall("c1", "quick", {"turn": 1})])
    model = Model(both, Reply(tool_calls=[ToolCall("c1", "quick", {"turn": 2})]), "Done.")
    helper = llm_agent("helper", model=model, tools=[quick, slow])

    if __name__ == "__main__":
        with AgentSystem(STORE) as system:
            say(answer(system.spawn(helper, "hello", id="talk")))
"""


def test_results_stand_in_the_order_of_their_calls_under_ids_that_no_two_share(world: World) -> None:
    program = world.write(ORDER)
    in_the_second_call(world, program).kill()
    assert world.run(program, "talk") == "Done."
    first = [["", "hello"], ["", ""], ["c1", "slowly"], ["c1_2", "quickly in turn 1"]]
    assert [line.note for line in world.ledger("asked")] == [
        [["", "hello"]],
        first,
        [*first, ["", ""], ["c1_3", "quickly in turn 2"]],
    ]
    assert [line.note for line in world.ledger("quick")] == [1, 2]
    assert [line.attempt for line in world.ledger("slow")] == [1, 2]
