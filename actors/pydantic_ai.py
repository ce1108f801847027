"""pydantic-ai agents that one can afford to lose: inside a perdure task any of them is durable, by one capability.

    from pydantic_ai import Agent
    from actors import agent
    from actors.pydantic_ai import PerdureDurability

    support = Agent("openai:gpt-5", name="support", capabilities=[PerdureDurability()])

    @support.tool_plain(requires_approval=True, metadata={"perdure": {"on_doubt": "hold"}})
    def refund(order: str) -> str: …

    @agent
    async def answer(question: str) -> str:
        return (await support.run(question)).output

It is written on the durable-execution hooks of pydantic-ai and on our own public ones. Needs the extra `pydantic-ai`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Literal, cast

from pydantic import JsonValue
from pydantic_ai import Agent
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities.abstract import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    EventStreamHandlerId,
    ExternalEventError,
    ExternalEventWaiter,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    conversation_id_from_run_id,
    external_event_scope,
    record_durable_unit,
    replay_scope,
)
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolApprovalResult,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)
from pydantic_core import to_jsonable_python

from actors.approvals import Approval, Decision, request_approval_async
from actors.branches import KEY_LIMIT, branch
from actors.context import inside_task, task_info
from actors.frameworks import run_step_async
from actors.options import StepOptions
from actors.pausing import sleep_async
from domain.errors import FailTask, WaitTimeoutError
from domain.faults import name_of


def _kinds(base: type[Exception]) -> Iterator[type[Exception]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


def _by_name(*bases: type[Exception]) -> tuple[type[Exception], ...]:
    """List classes of errors, one a name: the log knows them by it. Of two it is the one with an HTTP status."""
    kinds = [kind for base in bases for kind in _kinds(base)]
    return tuple(
        {name_of(kind): kind for kind in sorted(kinds, key=lambda kind: issubclass(kind, ModelHTTPError))}.values()
    )


MODEL_ERRORS = _by_name(ModelAPIError, UnexpectedModelBehavior)
"""What a model request raises as itself by default, so that `ModelFallback`, and you, can tell them apart."""


class PerdureDurability(BaseDurabilityCapability[AgentDepsT]):
    """Make each model request, tool call and MCP call of a pydantic-ai agent a step of the perdure task it runs in.

        Agent(…, name="support", capabilities=[PerdureDurability(model_step={"retries": 3}, tool_step={"timeout": 60})])

    Guaranteed, inside a task: what is in the log is not called again, and the run goes on at the first call that is
    not; calls side by side have their places by their ids, whatever finishes first; a wait of pydantic-ai's own is a
    durable one, and a task whose run waits for people or for time keeps no place; replayed work is not reported to
    telemetry twice. A tool that needs an approval asks for it by `request_approval`, one pause a call, all of a reply
    at once: a yes with a value, a dict, calls the tool with these arguments instead; the note of a no goes to the
    model. What a tool returns has to be JSON for pydantic-ai's codec, and comes back as that. Outside of a task, and in
    the body of a step, such as a tool's, the agent runs as any other.

    Not guaranteed, of a tool that fails for good beside others, which pydantic-ai cancels then: which of their errors
    fails the task; nor, after a crash at that moment, that it fails: where a replay does not fit the log it is held.
    Let a tool raise ModelRetry or ToolFailed for what the model should hear of. A run's own `timeout=` is refused: no
    replay could follow it.

    Args:
        models: further models by a name, for `agent.run(model=name)`.
        name: what the steps are named by; the agent's name by default.
        event_stream_handler: gets the events of a model's stream inside the body of that step, where `emit` feeds
            those who follow the task; and each other event in a step of its own.
        model_step, tool_step, mcp_step: options of these steps, see StepOptions. Those of one tool are its
            `metadata={"perdure": {"retries": 3}}`; `False` there runs it as plain code, at each replay again.
        approvals: whether approvals are asked for here; else they are left to other capabilities, such as
            `RequestInput`, whose token is then the id of a pause: `TaskRef.answer(token, approved=True, value=…)` with
            the JSON form of its results.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="perdure",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=JSON_CODEC,
        tool_config_key="perdure",
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        name: str | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        model_step: StepOptions | None = None,
        tool_step: StepOptions | None = None,
        mcp_step: StepOptions | None = None,
        approvals: bool = True,
    ) -> None:
        super().__init__(models=models, name=name, event_stream_handler=event_stream_handler)
        by_default: StepOptions = {"raises": MODEL_ERRORS}
        self._model_step: StepOptions = {**by_default, **(model_step or {})}
        self._tool_step: StepOptions = tool_step or {}
        self._mcp_step: StepOptions = mcp_step or {}
        self._approvals = approvals

    # ------------------------------------------------------------------ the run

    @property
    def in_durable_context(self) -> bool:
        """Whether this code is that of a perdure task, between its steps."""
        return inside_task()

    def get_default_run_id(self) -> str | None:
        """Give the id of a run inside a task: the same at each replay."""
        if not inside_task():
            return None
        with _place("run"):
            info = task_info()
            assert info is not None  # noqa: S101  a branch is a place
            return str(info.uuid4())

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Give the id of its conversation, likewise."""
        return conversation_id_from_run_id(run_id) if inside_task() else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Refuse a run's own time limit: at a replay it would be over before what is in the log."""
        if inside_task():
            raise UserError(
                f"run {run_id} of agent {self.name!r} inside a perdure task: timeout= cannot be replayed; give the"
                ' steps a limit, PerdureDurability(model_step={"timeout": 30}), or the task, spawn(…, deadline=…)'
            )
        return None

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Let the waits of a run inside a task be durable ones, and its replays silent."""
        if not inside_task():
            return await super().wrap_run(ctx, handler=handler)
        with external_event_scope(_Waiter()), Agent.using_sleep(_sleep), replay_scope():
            return await super().wrap_run(ctx, handler=handler)

    # ------------------------------------------------------------------ steps

    def get_durable_operation_backend(self) -> _Steps:
        """Give what does pydantic-ai's operations as steps."""
        return _Steps(
            agent_name=self.name,
            config=RoleBasedOperationConfig[StepOptions](
                model=self._model_step, event={}, capability={}, tool=self._tool_step, resolve_tool=self._options
            ),
        )

    def _toolset_base_config(self, kind: str) -> StepOptions:
        return self._mcp_step if kind == "mcp" else self._tool_step

    def _options(self, operation: DurableOperationId, tool: object, name: str) -> StepOptions | Literal[False]:
        given = self._toolset_base_config(getattr(operation, "toolset_kind", "function"))
        resolved = self._build_resolve_tool_config(given)(cast("Any", tool), name)
        return cast("StepOptions | Literal[False]", resolved)

    # ------------------------------------------------------------------ approvals

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask for the approvals of a reply, all before any is waited for."""
        if not (self._approvals and requests.approvals and inside_task()):
            return None
        with _place(_key("approvals", (ctx,)), alone=True):
            asked = [(call, await _ask(call, requests.metadata)) for call in requests.approvals]
            decided = [(call, await pause) for call, pause in asked]
        return requests.build_results(
            approvals={call.tool_call_id: _verdict(call, decision) for call, decision in decided},
            answered_by={call.tool_call_id: decision.by for call, decision in decided},
        )


class _Steps(JournalCallableOperationBackend[StepOptions]):
    """Does pydantic-ai's operations as steps."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        """Do one operation as a step. Events are told apart by what they are of: they come in the order of the ends."""
        executed = False

        async def once() -> Any:
            nonlocal executed
            executed = True
            return await body()

        key = _key(name, cache_key)
        with branch(key) if isinstance(operation_id, EventStreamHandlerId) else _place(key):
            value: object = await run_step_async(name, once, **(config or {}))
        record_durable_unit(executed=executed)
        return value


class _Waiter(ExternalEventWaiter):
    """Waits for what comes from outside: its token is the id of a pause."""

    async def wait(
        self,
        name: str,
        *,
        ask: Callable[[str], Awaitable[JsonValue]],
        timeout: timedelta | None,  # noqa: ASYNC109  pydantic-ai's signature
    ) -> JsonValue:
        """Ask for a pause, hand its id to `ask` in a step, and wait for the answer, unless that has given it."""
        with _place(f"wait.{name}", alone=True):
            pause = await request_approval_async(name)

            async def hand_out() -> Any:
                return await ask(pause.id)

            answer = await run_step_async(f"{name}.ask", hand_out)
            if answer is not None:
                return cast("JsonValue", answer)
            try:
                decision = await pause.wait_async(timeout=timeout)
            except WaitTimeoutError as error:
                raise ExternalEventError(f"no answer within {timeout}") from error
        if not decision:
            raise ExternalEventError(decision.note or f"refused by {decision.by}")
        return cast("JsonValue", decision.value)


async def _sleep(seconds: float) -> None:
    with _place("sleep", alone=True):
        await sleep_async(max(seconds, 0.0))


def _place(key: str, *, alone: bool = False) -> AbstractContextManager[None]:
    """Give what is called inside a place by its key, where pydantic-ai has made an asyncio task for it.

    Elsewhere it has a place already, by its order. For what waits, all of the run does: `alone`.
    """
    return nullcontext() if task_info() is not None else branch(key, alone=alone)


def _key(name: str, facts: Sequence[object]) -> str:
    """Say what tells an operation apart from those beside it: its run, the run's step, and the tool call it is of.

    Ids are unique in a reply, of which pydantic-ai makes sure; of later repeats the branch keeps the order.
    """
    ctx = next((fact for fact in facts if isinstance(fact, RunContext)), None)
    if ctx is None:
        event = facts[0] if facts else None
        call = getattr(getattr(event, "part", None), "tool_call_id", "")
        parts = [getattr(event, "event_kind", name), call]
    else:
        run = blake2b(str(ctx.run_id).encode(), digest_size=4).hexdigest()
        parts = [run, str(ctx.run_step), ctx.tool_call_id or name]
    key = ".".join(part for part in parts if part)
    if len(key) > KEY_LIMIT or not key.isprintable():  # an id is whatever the provider sends
        return blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return key


async def _ask(call: ToolCallPart, metadata: Mapping[str, Mapping[str, Any]]) -> Approval:
    facts = {"tool": call.tool_name, "args": call.args, "metadata": metadata.get(call.tool_call_id)}
    details = to_jsonable_python({key: value for key, value in facts.items() if value is not None})
    return await request_approval_async(f"{call.tool_name} {call.args_as_json_str()}", details=details)


def _verdict(call: ToolCallPart, decision: Decision) -> DeferredToolApprovalResult:
    if not decision:
        return ToolDenied(decision.note) if decision.note else ToolDenied()
    if decision.value is None or isinstance(decision.value, dict):
        return ToolApproved(override_args=decision.value)
    raise FailTask(
        f"{decision.by} approved {call.tool_name} with the value {decision.value!r:.80}: what is given with a yes are"
        " the arguments to call the tool with instead, a dict by name, or nothing"
    )


__all__ = ["MODEL_ERRORS", "PerdureDurability"]
