"""The OpenAI Agents SDK in a perdure task: its model and its tools are steps, and a payment waits for a person.

    perdure run tests/examples/openai_agents.py:assist "pay 20 to acme" --id assist-1      (perdure approve … meanwhile)

The model is a script, so that this runs anywhere: put a real one, `OpenAIResponsesModel(…)`, into `Lasting(…)`.
"""

from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic import TypeAdapter

from actors import agent, branch, request_approval_async, run_step_async

STORED = TypeAdapter(ModelResponse)
set_tracing_disabled(True)


class Lasting(Model):
    """Any model of the SDK, each reply a step. The branch is its place: it is called in an asyncio task of its own."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        async def ask() -> Any:
            return STORED.dump_python(await self.model.get_response(*args, **kwargs), mode="json")

        with branch("model"):
            return STORED.validate_python(await run_step_async("model", ask, retries=3))

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a stream would have to be one step: use Runner.run")


@function_tool
async def pay(call: ToolContext[Any], amount: int, to: str) -> str:
    """Pay somebody, if a person says yes."""
    with branch(call.tool_call_id):  # of calls side by side each has its place
        if not await (await request_approval_async(f"pay {amount} to {to}")):
            return "refused"
        return await run_step_async("pay", lambda: f"paid {amount} to {to}", on_doubt="hold")


class Script(Model):
    async def get_response(self, *_: Any, **asked: Any) -> ModelResponse:
        said = [item["output"] for item in asked["input"] if item.get("type") == "function_call_output"]
        text = ResponseOutputText(text=", ".join(said), type="output_text", annotations=[])
        message = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        calls = [
            ResponseFunctionToolCall(arguments=PAY % n, call_id=f"c{n}", name="pay", type="function_call")
            for n in (20, 30)
        ]
        return ModelResponse(output=[message] if said else [*calls], usage=Usage(requests=1), response_id=None)

    stream_response = Lasting.stream_response


PAY = '{"amount": %d, "to": "acme"}'


@agent
async def assist(request: str) -> str:
    clerk = Agent(name="clerk", model=Lasting(Script()), tools=[pay])
    return str((await Runner.run(clerk, [{"role": "user", "content": request}])).final_output)
