"""An agent that talks with a model and its tools, and asks a person before it spends money. It runs offline.

    perdure run tests/examples/llm_helper.py:helper "An umbrella for Rome?" --id umbrella
    perdure approvals, perdure approve …, perdure show umbrella

The model is a script. For a real one put an object in its place that has `reply(messages, tools, *, on_delta)`, and
give the agent a budget; nothing else changes.
"""

from collections.abc import Sequence
from decimal import Decimal

from actors import step_info
from actors.llm import Budget, Message, Reply, ScriptedModel, ToolCall, ToolResult, Usage, llm_agent, tool


@tool(retries=2, timeout=10)
async def weather(city: str, days: int = 1) -> list[str]:
    """Tell the weather of the next days.

    Args:
        city: its name, in English.
        days: how many days, from today on.
    """
    return [f"rain in {city}"] * days


@tool(needs_approval=lambda arguments: arguments["price"] > 10, on_doubt="hold")
def order(what: str, price: int) -> str:
    """Order something; the price is in euros."""
    return f"{what} is on its way, order {step_info().idempotency_key[:8]}"


def last(messages: Sequence[Message]) -> str:
    found = [message for message in messages if isinstance(message, ToolResult)]
    return "No umbrella, then." if found[-1].is_error else f"It rains all along. {found[-1].text}."


A_CENT = Usage(120, 15, Decimal("0.01"))
MODEL = ScriptedModel(
    Reply("Let me look.", [ToolCall("c1", "weather", {"city": "Rome", "days": 2})], A_CENT),
    Reply("", [ToolCall("c1", "order", {"what": "umbrella", "price": 25})], A_CENT),
    last,
)

helper = llm_agent(
    "helper",
    model=MODEL,
    tools=[weather, order],
    instructions="Help travellers. Be brief.",
    budget=Budget(cost="2.00", per_call=Usage(cost=Decimal("0.05"))),
)
