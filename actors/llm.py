"""LLM agents that one can afford to lose: every reply of a model and every result of a tool is in the log.

    from actors import AgentSystem
    from actors.llm import Reply, ScriptedModel, ToolCall, llm_agent, tool

    @tool
    def weather(city: str) -> str:
        '''Tell the weather in a city.'''
        return f"It rains in {city}."

    model = ScriptedModel(Reply(tool_calls=[ToolCall("c1", "weather", {"city": "Rome"})]), "Take an umbrella.")
    helper = llm_agent("helper", model=model, tools=[weather], instructions="Be brief.")

    with AgentSystem("sqlite:///perdure.db") as system:
        print(system.spawn(helper, "What shall I wear in Rome?", id="rome-1").result())

This file is the loop, on hooks that everybody has: `run_step`, `gather`, `request_approval`, `emit`, and the `reserve`
of a step. Where it does not do what you need, write your own beside it. Its parts:

    llm_messages   what a conversation is made of, and what a model is
    llm_tools      `@tool`: a step with a schema
    llm_budget     what a task may spend
    llm_log        the conversation as a log has it
    llm_scripted   a model that follows a script
    llm_provider   what providers' models have in common: prices, errors
    llm_openai     OpenAI's chat completions, and those of others
    llm_anthropic  Anthropic's messages; llm_blocks, as they are sent
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from actors.approvals import request_approval_async
from actors.branches import gather
from actors.definitions import AsyncAgent, AsyncStep, agent, find_agent
from actors.emitting import emit
from actors.frameworks import run_step_async
from actors.llm_anthropic import AnthropicModel
from actors.llm_budget import Budget, Counted
from actors.llm_log import FOLLOW_UP, conversation, given_up_text, rejected_text
from actors.llm_messages import (
    Message,
    Model,
    NoReplyError,
    NotBilledError,
    Reply,
    SystemMessage,
    ToolCall,
    ToolResult,
    ToolSpec,
    Transcript,
    Usage,
    UserMessage,
    illegal,
    pack,
    unpack,
)
from actors.llm_openai import OpenAIModel
from actors.llm_provider import (
    NEVER_AGAIN,
    ModelError,
    ModelUnavailableError,
    Prices,
    ReplyCutError,
    ReplyRefusedError,
    ReplyTooLongError,
    RequestRefusedError,
)
from actors.llm_scripted import ScriptedModel
from actors.llm_tools import BAD_CALL, MODEL, AnyTool, AsyncTool, Tool, ToolError, result_text, tool, tools_by_name
from actors.options import Options, StepOptions
from actors.pausing import receive_async
from actors.ref import TaskRef
from actors.system import AgentSystem
from domain.errors import DefinitionError, FailTask, StepError, TaskEndedError, TaskNotEndedError
from domain.fold import fold
from domain.values import encode

RETRIES: StepOptions = {"retries": 3, "backoff": 1.0, "give_up_on": (*NEVER_AGAIN, NoReplyError), "timeout": 3_600}
"""How a call of a model is tried again, where its agent does not say otherwise; a stream may never end by itself."""
MAX_TURNS = 50
"""Replies until which there has to be an answer, unless the agent says otherwise."""
PIECE = 5_000
"""Characters that are emitted at once: however they are escaped, they are within the limit of `emit`."""

_takes_follow_ups: dict[str, bool] = {}
"""Each `llm_agent` by its name."""


@dataclass(frozen=True)
class Answer:
    """What a conversation has come to: the text of the last reply, the whole transcript, what all its replies took."""

    text: str
    messages: tuple[Message, ...]
    usage: Usage


def llm_agent(
    name: str,
    *,
    model: Model,
    tools: Iterable[AnyTool | Callable[..., Any]] = (),
    instructions: str = "",
    max_turns: int = MAX_TURNS,
    budget: Budget | None = None,
    on_failure: Literal["fail", "hold"] = "fail",
    follow_ups: bool = False,
    model_options: StepOptions | None = None,
) -> AsyncAgent[[str | list[Message]], str]:
    """Make an agent that asks a model, runs the tools that it wants, and goes on until it answers.

    It is spawned like any other, with the user's text, or a whole transcript that ends with it; its value is the text
    of the answer. A replay calls neither model nor tools for what is in the log. The log grows by each message once.

    The tool calls of one reply run side by side. Each has exactly one result: what the tool returned; the message of
    its ToolError; what is wrong with its arguments; that a person has rejected it, with the note, or has given it up.
    Any other error, after its retries, follows `on_failure`. A task that ended anyhow is gone on with by
    `continue_conversation`. Not guaranteed: that a model is paid once for a reply. A process that dies between the
    reply and its record asks again; a `budget` counts both.

    Args:
        name: the agent's name in the log.
        model: what answers; see Model.
        tools: what it may call: made by `@tool`, or plain functions.
        instructions: what the model is told first, at each turn; today's code says what.
        max_turns: replies to one word of the user after which the task fails, when none of them was an answer.
        budget: what it may spend; by default anything.
        on_failure: as for `@agent`.
        follow_ups: whether its task waits for the user's next words after each answer, as a row, and so ends only when
            it is called off or fails. `continue_conversation` brings them to it, and its log grows by them alone;
            `conversation(task.events())` and `task.follow()` tell the answers.
        model_options: options of the steps that ask the model; see StepOptions. By default 3 retries, but
            none of what would be refused again (NEVER_AGAIN in `actors.llm_provider`), and an hour for each.

    Raises DefinitionError for what cannot be used.
    """
    talk = _Talk(model, tools_by_name(tools), max_turns, budget, _options(model_options, budget))
    caller = sys._getframe(1)

    @agent(name=name, on_failure=on_failure, made_at=(caller.f_code.co_filename, caller.f_lineno))
    async def run(prompt: str | list[Message]) -> str:
        transcript, counted = _begun(prompt, instructions), Counted()
        answer = await talk.until_answered(transcript, counted)
        while follow_ups:
            transcript.add(UserMessage(str(await receive_async(FOLLOW_UP))))
            answer = await talk.until_answered(transcript, counted)
        return answer.text

    run.__doc__ = instructions or f"Talk with {name}."
    _takes_follow_ups[name] = follow_ups
    return run


@agent(name="perdure.converse")
async def converse(
    messages: Sequence[Message],
    *,
    model: Model,
    tools: Iterable[AnyTool | Callable[..., Any]] = (),
    max_turns: int = MAX_TURNS,
    budget: Budget | None = None,
    model_options: StepOptions | None = None,
) -> Answer:
    """Do what an `llm_agent` does, as a part of an agent of your own.

        answer = await converse([UserMessage(text)], model=model, tools=[weather])       # in an async agent
        answer = converse.sync([UserMessage(text)], model=model, tools=[weather])        # in a sync one

    The messages have to be the same at each replay, as any arguments. What is in the log is what was replied, not what
    was asked. Raises FailTask where there is no answer after `max_turns`, or where the messages are no conversation (a
    tool call without its one result, say); StepError as a step does.
    """
    talk = _Talk(model, tools_by_name(tools), max_turns, budget, _options(model_options, budget))
    return await talk.until_answered(_begun(messages), Counted())


def continue_conversation(system: AgentSystem, task_id: str, text: str, *, id: str | None = None) -> TaskRef[str]:
    """Go on with a conversation by a further word of the user; gives the task that will answer. Idempotent by `id`.

    A task that has ended, however it did, is gone on with by a new one of the same agent. It begins with the whole
    transcript, which its log holds once more, and in which each tool call has its one result: calls that were cut off
    have one that says so. Nothing in it is run again. `id` is that of the new task.

    A task that takes `follow_ups`, and has not ended, gets the word itself, after those before it; `id` is that of the
    signal which brings it.

    Raises TaskNotEndedError for another that may still answer; ValueError for one that is no `llm_agent`'s;
    UnknownAgentError, UnknownTaskError, UnreadableTaskError, TaskConflictError, SignalConflictError.
    """
    ref: TaskRef[str] = system.task(task_id)
    events = ref.events()
    task = fold(None, events)
    assert task is not None  # noqa: S101  else it was unknown
    made: AsyncAgent[[list[Message]], str] = find_agent(task.agent)  # type: ignore[assignment]
    if made.name not in _takes_follow_ups:
        raise ValueError(f"task {task_id} of agent {task.agent} is no llm_agent's: how it goes on is its own matter")
    if _takes_follow_ups[made.name]:
        with suppress(TaskEndedError):  # that may be news, too; but not where it has had this very word
            ref.signal(FOLLOW_UP, text, signal_id=id)
            return ref
        events = ref.events()
    elif task.ending is None:
        raise TaskNotEndedError(
            f"task {task_id} has not ended: it is {task.status}. Wait for its answer, or cancel it first",
            task_id=task_id,
            status=task.status,
        )
    return system.spawn(made, [*conversation(events), UserMessage(text)], id=id)


async def continue_conversation_async(
    system: AgentSystem, task_id: str, text: str, *, id: str | None = None
) -> TaskRef[str]:
    """Do what `continue_conversation` does, without blocking the event loop."""
    return await system.runtime.commits.call(partial(continue_conversation, system, task_id, text, id=id))


# ------------------------------------------------------------------ the loop


@dataclass
class _Talk:
    """What a conversation needs; it knows nothing of any one of them."""

    model: Model
    tools: dict[str, AnyTool]
    max_turns: int
    budget: Budget | None
    options: StepOptions

    def __post_init__(self) -> None:
        turns: Any = self.max_turns
        if not callable(getattr(self.model, "reply", None)):
            raise DefinitionError(f"a model has a method reply, and {self.model!r:.80} has none: see actors.llm.Model")
        if type(turns) is not int or turns < 1:
            raise DefinitionError(f"max_turns is a whole number from 1, not {turns!r:.80}")

    async def until_answered(self, transcript: Transcript, counted: Counted) -> Answer:
        """Ask the model and run its tools until it answers."""
        usage = Usage()
        for _ in range(self.max_turns):
            reply = transcript.numbered(await self.ask(transcript, counted))
            transcript.add(reply)
            usage += reply.usage
            if not reply.tool_calls:
                return Answer(reply.text, tuple(transcript.messages), usage)
            for result in await gather(*[partial(self.use, call) for call in reply.tool_calls]):
                transcript.add(result)
        raise FailTask(f"no answer after {self.max_turns} turns, the limit of max_turns")

    async def ask(self, transcript: Transcript, counted: Counted) -> Reply:
        """Have the model's next reply, as a step; its argument stands for the transcript in the log."""
        options, specs = self.options, [one.spec for one in self.tools.values()]
        if self.budget is not None:
            estimate = getattr(self.model, "estimate", None)
            expected = self.budget.per_call if estimate is None else estimate(transcript.messages, specs)
            options = {**options, "reserve": self.budget.reserve(expected, counted)}
        body = _asking(self.model, list(transcript.messages), specs)
        return unpack(await run_step_async(MODEL, body, transcript.digest, **options))

    async def use(self, call: ToolCall) -> ToolResult:
        """Do what the model wants, in a branch of its own, and give the one result that the call has."""
        try:
            one, arguments = self.checked(call)
        except ToolError as error:  # in the log, so that it stays what it was when checks become others
            text = await run_step_async(BAD_CALL, str, str(error), idempotent=True)
            return ToolResult(call.id, call.name, text, is_error=True)
        if one.asks(arguments):
            pause = await request_approval_async(_question(call), details=call.arguments)
            decision = await pause.wait_async()
            if not decision:
                text = rejected_text(decision.by, decision.note)
                return ToolResult(call.id, call.name, text, is_error=True)
        try:
            value = await one.perform(arguments)
        except StepError as error:
            if error.fault.is_a(ToolError):
                return ToolResult(call.id, call.name, error.fault.message, is_error=True)
            if error.fault.kinds == ("GivenUp",):  # by a person
                return ToolResult(call.id, call.name, given_up_text(error.fault.message), is_error=True)
            raise
        return ToolResult(call.id, call.name, result_text(encode(value)))

    def checked(self, call: ToolCall) -> tuple[AnyTool, dict[str, Any]]:
        """Find a call's tool, and check its arguments. Raises ToolError."""
        one = self.tools.get(call.name)
        if one is None:
            known = ", ".join(self.tools) or "none"
            raise ToolError(f"there is no tool {call.name!r}; there are: {known}")
        return one, one.checked(call.arguments)


def _begun(said: Any, instructions: str = "") -> Transcript:
    """Begin with what others have put together. Raises FailTask for what no provider would take up."""
    messages = said if isinstance(said, Sequence) and not isinstance(said, (str, bytes)) else [said]
    messages = [UserMessage(said)] if isinstance(said, str) else messages
    if wrong := illegal(messages):
        raise FailTask(f"this is no conversation to go on with: {wrong}")
    return Transcript([*([SystemMessage(instructions)] if instructions else []), *messages])


def _asking(model: Model, messages: list[Message], specs: list[ToolSpec]) -> Callable[[str], Any]:
    """Give the body of the step that asks a model; each piece of text is emitted, from whatever thread it comes."""

    def begin() -> Any:
        context = copy_context()
        return model.reply(messages, specs, on_delta=lambda text: context.copy().run(_emit, text))

    async def ask_async(_transcript: str) -> dict[str, Any]:
        return pack(await begin())

    def ask(_transcript: str) -> Any:
        made = begin()
        return _packed(made) if inspect.isawaitable(made) else pack(made)

    return ask_async if inspect.iscoroutinefunction(model.reply) else ask


def _emit(text: str) -> None:
    for start in range(0, len(text), PIECE):
        emit(text[start : start + PIECE])


async def _packed(made: Any) -> dict[str, Any]:
    return pack(await made)


def _options(given: StepOptions | None, budget: Budget | None) -> StepOptions:
    """Give the options of the steps that ask a model; a whole policy of the user's is left as it is.

    Raises DefinitionError for what a step of that kind cannot have: here, and not in every task.
    """
    limit: Any = budget
    if not (limit is None or isinstance(limit, Budget)):
        raise DefinitionError(f"budget is a Budget, not {limit!r:.80}")
    options: StepOptions = given if given is not None and "retry" in given else {**RETRIES, **(given or {})}
    tried: StepOptions = {**options}
    if budget is not None:
        tried["reserve"] = budget.reserve(budget.per_call, Counted())

    async def ask(*args: str) -> None:
        """Stand for the body of such a step."""

    AsyncStep(ask, (MODEL,), Options().but(MODEL, tried))
    return options


def _question(call: ToolCall) -> str:
    given = call.arguments.items() if isinstance(call.arguments, dict) else ()
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in given)})"


__all__ = [
    "Answer",
    "AnthropicModel",
    "AnyTool",
    "AsyncTool",
    "Budget",
    "Message",
    "Model",
    "ModelError",
    "ModelUnavailableError",
    "NotBilledError",
    "OpenAIModel",
    "Prices",
    "Reply",
    "ReplyCutError",
    "ReplyRefusedError",
    "ReplyTooLongError",
    "RequestRefusedError",
    "ScriptedModel",
    "SystemMessage",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "UserMessage",
    "continue_conversation",
    "continue_conversation_async",
    "conversation",
    "converse",
    "llm_agent",
    "tool",
]
