"""LangGraph in a perdure task, without a checkpointer: each node is a step, and one node waits for a person.

    perdure run tests/examples/langgraph_agent.py:newsletter bridges --id news-1       (perdure approve … meanwhile)

The nodes are scripts, so that this runs anywhere: call a model in `search` and `write`.
"""

import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from actors import agent, branch, request_approval_async, run_step_async


class State(TypedDict):
    topic: str
    found: Annotated[list[str], operator.add]
    text: str


Node = Callable[[State], Awaitable[dict[str, Any]]]


def lasting(name: str, node: Node) -> Node:
    """Make a step of a node. The branch is its place: LangGraph runs nodes side by side, in tasks of its own."""

    async def run(state: State) -> dict[str, Any]:
        with branch(name):
            return await run_step_async(name, node, dict(state), retries=3)

    return run


def search(place: str) -> Node:
    async def look(state: State) -> dict[str, Any]:
        return {"found": [f"{state['topic']} in the {place}"]}

    return look


async def write(state: State) -> dict[str, Any]:
    return {"text": " and ".join(sorted(state["found"]))}


async def publish(state: State) -> dict[str, Any]:
    with branch("publish"):  # no step: it waits
        decision = await (await request_approval_async(f"publish {state['text']!r}"))
    return {"text": state["text"] if decision.approved else f"not published: {decision.note}"}


graph = StateGraph(State)
for place in ("archive", "web"):
    graph.add_node(place, lasting(place, search(place)))
    graph.add_edge(START, place)
graph.add_node("write", lasting("write", write)).add_node("publish", publish)
graph.add_edge(["archive", "web"], "write").add_edge("write", "publish").add_edge("publish", END)
compiled = graph.compile()


@agent
async def newsletter(topic: str) -> str:
    state = await compiled.ainvoke({"topic": topic, "found": [], "text": ""})
    return str(state["text"])
