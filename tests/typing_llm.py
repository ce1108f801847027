"""What type checkers know of tools and LLM agents. Checked by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_type

from actors import AgentSystem, AsyncAgent, TaskRef, agent
from actors.llm import (
    Answer,
    AsyncTool,
    Message,
    Model,
    Reply,
    ScriptedModel,
    Tool,
    ToolSpec,
    UserMessage,
    continue_conversation,
    converse,
    llm_agent,
    tool,
)


@tool
def look(city: str, days: int = 1) -> list[str]:
    return [city] * days


@tool(needs_approval=True, retries=3, on_doubt="hold")
async def pay(amount: int) -> str:
    return f"paid {amount}"


class Mine:
    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, on_delta: Callable[[str], None]
    ) -> Reply:
        on_delta("Hello")
        return Reply("Hello")


assert_type(look, Tool[[str, int], list[str]])  # type: ignore[assert-type]  # its names are kept besides
assert_type(pay.name, str)
assert isinstance(pay, AsyncTool)

model: Model = Mine()
scripted: Model = ScriptedModel("Hello")
helper = llm_agent("typed helper", model=Mine(), tools=[look, pay])
assert_type(helper, AsyncAgent[[str | list[Message]], str])


@agent
async def flow() -> str:
    assert_type(await look.aio("Rome", days=2), list[str])
    assert_type(await pay(amount=3), str)
    answer = await converse([UserMessage("hi")], model=model, tools=[look])
    assert_type(answer, Answer)
    return answer.text


@agent
def plain() -> list[str]:
    assert_type(pay.sync(3), str)
    assert_type(converse.sync([UserMessage("hi")], model=scripted), Answer)
    return look("Rome")


def outside(system: AgentSystem) -> None:
    assert_type(system.spawn(helper, "hi"), TaskRef[str])
    assert_type(continue_conversation(system, "t", "again"), TaskRef[str])
