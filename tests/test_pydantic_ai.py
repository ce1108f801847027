"""pydantic-ai agents in perdure tasks: nothing is asked twice, whatever dies when, and people have their say."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from actors import (
    AgentSystem,
    Emitted,
    TaskCancelledError,
    TaskFailedError,
    TaskRef,
    agent,
    branch,
    emit,
    gather,
    inside_task,
    open_store,
    step,
)
from actors.testing import Run, every_crash_point, run_through_crashes
from actors.view import ApprovalView
from domain.events import StepSucceeded
from tests.lives import PATIENCE, wait_for

pytest.importorskip("pydantic_ai", reason="needs the extra pydantic-ai")

from pydantic_ai import Agent as Bot
from pydantic_ai import ModelRetry, RunContext
from pydantic_ai.capabilities import RequestInput
from pydantic_ai.exceptions import ModelHTTPError, ModelRateLimitError
from pydantic_ai.messages import (
    FunctionToolResultEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDenied

from actors.pydantic_ai import MODEL_ERRORS, PerdureDurability

Call = tuple[str, dict[str, Any], str]

asked: list[str] = []
"""What reached the world: models and tools."""


@pytest.fixture(autouse=True)
def nothing_was_asked_yet() -> Iterator[None]:
    asked.clear()
    yield
    asked.clear()


def returned(messages: list[ModelMessage]) -> list[Any]:
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def scripted(*turns: list[Call]) -> FunctionModel:
    """Give a model that calls tools, turn by turn, and in the end says what they returned."""

    def reply(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        turn = len(messages) // 2
        asked.append(f"model {turn}")
        if turn < len(turns):
            return ModelResponse(parts=[ToolCallPart(*call) for call in turns[turn]])
        return ModelResponse(parts=[TextPart("; ".join(map(str, returned(messages))))])

    return FunctionModel(reply)


def bot(model: Any, *tools: Callable[..., Any], name: str = "bot", **options: Any) -> Bot[None, str]:
    return Bot(model, name=name, capabilities=[PerdureDurability(**options)], tools=tools)


def asked_once_but_for_doubt(run: Run) -> None:
    """See that nothing ran twice in one life, nor again in the next when its end was in the log."""
    assert max(Counter((body.path, body.life) for body in run.bodies).values()) == 1
    run.check()


def some_crash_points(agent: Any, *, every: int) -> Iterator[Run]:
    """Run an agent as `every_crash_point` does, at one in so many."""
    whole = run_through_crashes(agent)
    yield whole
    for nth in range(1, len(whole.points) + 1, every):
        yield run_through_crashes(agent, plan=[nth])


async def look(city: str) -> str:
    await asyncio.sleep(0.01 if city == "Rome" else 0)  # the first that is called is the last that ends
    asked.append(f"look {city}")
    return f"rain in {city}"


weather = bot(
    scripted([("look", {"city": "Rome"}, "a"), ("look", {"city": "Oslo"}, "b")], [("look", {"city": "Bern"}, "a")]),
    look,
)


@agent(name="pydantic-weather")
async def forecast() -> str:
    return (await weather.run("weather?")).output


def test_models_and_tools_are_asked_once_through_every_crash_point() -> None:
    runs = list(every_crash_point(forecast))
    assert len(runs) > 50
    for run in runs:
        asked_once_but_for_doubt(run)
        assert run.result == "rain in Rome; rain in Oslo; rain in Bern"
    whole = runs[0]
    assert [whole.count(name) for name in ("bot__model.request", TOOL.format("look"))] == [3, 3]
    assert sum(isinstance(event, StepSucceeded) for event in whole.events) == 6


TOOL = "bot__function_toolset__<agent>.call_tool:{}"


def test_a_task_that_is_replayed_asks_nobody() -> None:
    disk = open_store("memory:")
    ends = run_through_crashes(forecast, store=disk)
    before = list(asked)
    again = run_through_crashes(forecast, plan=[len(ends.points)])
    assert again.lives == 2
    assert again.result == ends.result
    assert asked[len(before) :].count("model 0") == 1


def test_an_id_that_a_later_reply_repeats_is_another_call() -> None:
    paths = {body.path for body in run_through_crashes(forecast).bodies}
    assert len(paths) == 6


@agent(name="pydantic-test-model")
async def with_test_model() -> str:
    return (await plain_bot.run("hello")).output


def count(word: str) -> int:
    asked.append(f"count {word}")
    return len(word)


plain_bot = bot(TestModel(), count)


def test_the_test_model_runs_through_every_crash_point() -> None:
    for run in every_crash_point(with_test_model):
        asked_once_but_for_doubt(run)
        assert run.result == '{"count":1}'


# ------------------------------------------------------------------ colours and places


@agent(name="pydantic-sync")
def in_sync_code() -> str:
    return asyncio.run(weather.run("weather?")).output


def test_a_sync_agent_runs_one_likewise() -> None:
    for run in some_crash_points(in_sync_code, every=5):
        asked_once_but_for_doubt(run)
        assert run.result == "rain in Rome; rain in Oslo; rain in Bern"


@agent(name="pydantic-beside")
async def side_by_side() -> list[str]:
    runs = await gather(weather.run("one"), weather.run("two"))
    return [run.output for run in runs] + [(await weather.run("three")).output]


def test_runs_side_by_side_and_one_after_the_other_have_places_of_their_own() -> None:
    whole, *crashed = some_crash_points(side_by_side, every=11)
    assert len({body.path for body in whole.bodies}) == len(whole.bodies) == 18
    for run in crashed:
        asked_once_but_for_doubt(run)
        assert run.result == whole.result


def test_outside_of_a_task_it_is_as_any_other() -> None:
    assert asyncio.run(weather.run("weather?")).output == "rain in Rome; rain in Oslo; rain in Bern"


async def ask_a_colleague() -> str:
    assert not inside_task()
    return (await weather.run("weather?")).output


chief = bot(scripted([("ask_a_colleague", {}, "1")]), ask_a_colleague, name="chief")


@agent(name="pydantic-chief")
async def delegating() -> str:
    return (await chief.run("go")).output


def test_an_agent_that_a_tool_runs_is_part_of_that_step() -> None:
    run = run_through_crashes(delegating)
    assert run.result == "rain in Rome; rain in Oslo; rain in Bern"
    assert [body.step.rpartition(".")[2] for body in run.bodies] == ["request", "call_tool:ask_a_colleague", "request"]


@agent(name="pydantic-spread")
async def in_asyncio_tasks_of_its_own() -> list[str]:
    runs = await asyncio.gather(weather.run("one"), weather.run("two"))
    return [run.output for run in runs]


def test_runs_in_asyncio_tasks_of_ones_own_are_durable_too() -> None:
    whole = run_through_crashes(in_asyncio_tasks_of_its_own)
    assert len(whole.bodies) == 12
    run = run_through_crashes(in_asyncio_tasks_of_its_own, plan=[20, 20])
    asked_once_but_for_doubt(run)
    assert run.result == whole.result


def test_an_id_that_no_key_may_have_is_no_trouble() -> None:
    odd = bot(scripted([("look", {"city": "Rome"}, "a\n" + "x" * 300), ("look", {"city": "Oslo"}, "%/#")]), look)

    @agent(name="pydantic-odd")
    async def top() -> str:
        return (await odd.run("weather?")).output

    for plan in ([], [18]):
        assert run_through_crashes(top, plan=plan).result == "rain in Rome; rain in Oslo"


# ------------------------------------------------------------------ errors


def divide(by: int) -> float:
    asked.append(f"divide {by}")
    if by == 0:
        raise ModelRetry("not by zero")
    return 8 / by


divider = bot(scripted([("divide", {"by": 0}, "1")], [("divide", {"by": 2}, "2")]), divide)


@agent(name="pydantic-retry")
async def retrying() -> str:
    return (await divider.run("go")).output


def test_what_a_tool_tells_the_model_to_try_again_is_in_the_log() -> None:
    for run in every_crash_point(retrying):
        asked_once_but_for_doubt(run)
        assert run.result == "not by zero; 4.0"
        assert run.count(TOOL.format("divide")) <= 2 + len(run.crashes)


def busy(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    asked.append("busy")
    raise ModelHTTPError.for_category(
        ModelRateLimitError, status_code=429, model_name="m", body={"why": "busy"}, headers={"Retry-After": "3"}
    )


failing = bot(FunctionModel(busy), name="failing")


@agent(name="pydantic-failing")
async def falling_back() -> str:
    try:
        return (await failing.run("go")).output
    except ModelRateLimitError as error:
        status = error.status_code if isinstance(error, ModelHTTPError) else None
        return f"{status} {error.retry_after}, {(await plain_bot.run('hello')).output}"


def test_an_error_of_a_model_arrives_as_itself_live_and_replayed() -> None:
    for run in every_crash_point(falling_back):
        run.check()
        assert run.result == '429 3.0, {"count":1}'
    assert len({f"{kind.__module__}.{kind.__qualname__}" for kind in MODEL_ERRORS}) == len(MODEL_ERRORS)


tries = {"retries": 2, "backoff": 0.0, "jitter": 0}


async def flaky() -> str:
    asked.append("flaky")
    if asked.count("flaky") < 3:
        raise ConnectionError("no answer")
    return "at last"


def test_options_of_steps_are_per_kind_and_per_tool() -> None:
    from pydantic_ai import Tool

    per_tool = bot(scripted([("flaky", {}, "1")]), Tool(flaky, metadata={"perdure": tries}))
    per_kind = bot(scripted([("flaky", {}, "1")]), flaky, tool_step=tries)
    inline = bot(scripted([("look", {"city": "Oslo"}, "1")]), Tool(look, metadata={"perdure": False}))

    @agent(name="pydantic-options")
    async def top(which: str) -> str:
        return (await {"tool": per_tool, "kind": per_kind, "inline": inline}[which].run("go")).output

    for which in ("tool", "kind"):
        asked.clear()
        assert run_through_crashes(top, which).result == "at last"
    plain = run_through_crashes(top, "inline")
    assert plain.result == "rain in Oslo"
    assert len(plain.bodies) == 2


async def broken() -> str:
    raise OSError("no disk")


def test_a_tool_that_fails_for_good_fails_its_task_and_names_the_step() -> None:
    ruined = bot(scripted([("broken", {}, "1")]), broken)

    @agent(name="pydantic-broken")
    async def top() -> str:
        return (await ruined.run("go")).output

    for run in every_crash_point(top):
        run.check()
        with pytest.raises(TaskFailedError, match=r"call_tool:broken.*no disk"):
            run.result  # noqa: B018


def test_a_tool_that_fails_for_good_beside_another_fails_its_task_by_either() -> None:
    ruined = bot(scripted([("look", {"city": "Rome"}, "1"), ("broken", {}, "2")]), broken, look)

    @agent(name="pydantic-broken-beside")
    async def top() -> str:
        return (await ruined.run("go")).output

    for run in every_crash_point(top):
        asked_once_but_for_doubt(run)
        with pytest.raises(TaskFailedError, match=r"call_tool:broken.*no disk|call_tool:look was cancelled"):
            run.result  # noqa: B018


def test_a_time_limit_of_a_run_is_refused_since_no_replay_could_follow_it() -> None:
    @agent(name="pydantic-limit")
    async def top() -> str:
        with pytest.raises(Exception, match="timeout= cannot be replayed; give the steps a limit"):
            await weather.run("weather?", timeout=5)
        return "refused"

    assert run_through_crashes(top).result == "refused"


# ------------------------------------------------------------------ people


def pay(amount: int) -> str:
    asked.append(f"pay {amount}")
    return f"paid {amount}"


def cashier(*payments: int, **options: Any) -> Bot[None, str]:
    from pydantic_ai import Tool

    calls = [("pay", {"amount": amount}, f"p{amount}") for amount in payments]
    return bot(scripted(calls), Tool(pay, requires_approval=True), **options)


one_of_two = cashier(1, 2)


@agent(name="pydantic-approvals")
async def paying() -> str:
    run = await one_of_two.run("pay")
    return "; ".join(str(part) for part in returned(run.all_messages()))


def only_one(approval: ApprovalView) -> bool:
    return '"amount":1' in approval.question


def test_of_two_calls_one_is_approved_through_every_crash_point() -> None:
    for run in every_crash_point(paying, answer=only_one):
        asked_once_but_for_doubt(run)
        assert run.result == "paid 1; The tool call was denied."
        assert "pay 2" not in asked


def until(task: TaskRef[Any], approvals: int) -> None:
    """Follow a task until it waits for people."""
    for _ in task.follow():
        if len(task.describe().approvals) == approvals:
            return


def test_approvals_are_all_asked_for_at_once_and_answered_in_any_order_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with AgentSystem(url) as system:
        until(system.spawn(paying, id="t"), approvals=2)
    before = list(asked)
    with AgentSystem(url, run=False) as client:
        first, second = sorted(client.approvals(), key=lambda approval: approval.question)
        assert (first.question, first.details) == ('pay {"amount":1}', {"tool": "pay", "args": {"amount": 1}})
        client.task("t").answer(second.id, approved=False, note="too dear", by="ann")
        client.task("t").answer(first.id, approved=True, value={"amount": 7}, by="bob")
    with AgentSystem(url) as system:
        task = system.task("t")
        assert task.result(PATIENCE) == "paid 7; too dear"
    assert before == ["model 0"]
    assert asked == ["model 0", "pay 7", "model 1"]


def test_a_task_that_waits_for_people_keeps_no_place() -> None:
    with AgentSystem("memory:", max_active=1) as system:
        tasks = [system.spawn(paying, id=name) for name in ("one", "two")]
        for task in tasks:
            until(task, approvals=2)
        for approval in system.approvals():
            system.task(approval.task_id).answer(approval.id, approved=True, by="ann")
        assert [task.result(PATIENCE) for task in tasks] == ["paid 1; paid 2"] * 2
    assert asked.count("model 0") == 2


@pytest.mark.parametrize("unwound", [True, False])
def test_a_run_that_waits_for_people_can_be_called_off(unwound: bool) -> None:
    with AgentSystem("memory:") as system:
        task = system.spawn(paying, id="t")
        until(task, approvals=2)
        if unwound:
            wait_for(lambda: task.status() == "waiting")
        task.cancel("enough", by="ann")
        with pytest.raises(TaskCancelledError, match="enough"):
            task.result(PATIENCE)
    assert asked == ["model 0"]


def test_an_approval_with_a_value_that_is_no_arguments_fails_and_says_so() -> None:
    disk = open_store("memory:")
    with AgentSystem(disk) as system:
        task = system.spawn(paying, id="t")
        until(task, approvals=2)
        for approval in system.approvals():
            task.answer(approval.id, approved=True, value=5, by="ann")
        with pytest.raises(
            TaskFailedError, match="ann approved pay with the value 5: what is given with a yes are the"
        ):
            task.result(PATIENCE)


handed: list[str] = []


def hand_out(_ctx: RunContext[None], requests: DeferredToolRequests, token: str) -> DeferredToolResults | None:
    handed.append(token)
    if requests.approvals[0].tool_call_id == "p3":
        return requests.build_results(approvals={"p3": ToolDenied("not three")})
    return None


def requesting(amount: int, timeout: float | None = None) -> Bot[None, str]:
    from pydantic_ai import Tool

    limit = None if timeout is None else timedelta(seconds=timeout)
    return Bot(
        scripted([("pay", {"amount": amount}, f"p{amount}")]),
        name="bot",
        capabilities=[RequestInput(hand_out, timeout=limit), PerdureDurability(approvals=False)],
        tools=[Tool(pay, requires_approval=True)],
    )


requesters = {"3": requesting(3), "4": requesting(4), "5": requesting(5, timeout=60)}


@agent(name="pydantic-request-input")
async def asking_by_token(which: str) -> str:
    run = await requesters[which].run("pay")
    return "; ".join(str(part) for part in returned(run.all_messages()))


def test_a_token_is_handed_out_once_and_is_the_id_of_a_pause() -> None:
    handed.clear()
    for run in every_crash_point(asking_by_token, "3"):
        run.check()
        assert run.result == "not three"
    assert run_through_crashes(asking_by_token, "5").result.startswith(
        "No decision on this tool call arrived: no answer"
    )


@pytest.mark.parametrize(("approved", "said"), [(True, "paid 4"), (False, "closed on Sundays")])
def test_who_has_the_token_answers_it(approved: bool, said: str) -> None:
    with AgentSystem("memory:") as system:
        task = system.spawn(asking_by_token, "4", id="t")
        until(task, approvals=1)
        (approval,) = system.approvals()
        wait_for(lambda: handed[-1:] == [approval.id])  # it is in the log before it is handed out
        value = {"approvals": {"p4": True}} if approved else None
        task.answer(approval.id, approved=approved, value=value, note="" if approved else said, by="ann")
        assert said in task.result(PATIENCE)


# ------------------------------------------------------------------ streams


async def words(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    asked.append("stream")
    for word in ("all ", "is ", "well"):
        yield word


async def tell(_ctx: RunContext[None], events: Any) -> None:
    async for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            emit(event.part.content)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            emit(event.delta.content_delta)


speaker = bot(FunctionModel(stream_function=words), event_stream_handler=tell)


@agent(name="pydantic-stream")
async def speaking() -> str:
    return (await speaker.run("speak")).output


def test_a_stream_is_one_step_whole_wherever_it_is_cut() -> None:
    for run in every_crash_point(speaking):
        run.check()
        assert run.result == "all is well"
        assert run.count("bot__model.request_stream") <= 2


def test_who_follows_the_task_gets_the_stream() -> None:
    with AgentSystem("memory:") as system:
        task = system.spawn(speaking, id="t")
        assert task.result(PATIENCE) == "all is well"
        told = [update.value for update in task.follow() if isinstance(update, Emitted)]
    assert "".join(told) == "all is well"


heard: list[str] = []


async def hear(_ctx: RunContext[None], events: Any) -> None:
    heard.extend([event.part.tool_call_id async for event in events if isinstance(event, FunctionToolResultEvent)])


async def in_words(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
    from pydantic_ai.models.function import DeltaToolCall

    if len(messages) == 1:
        yield {
            0: DeltaToolCall("look", '{"city":"Rome"}', tool_call_id="a"),
            1: DeltaToolCall("look", '{"city":"Oslo"}', tool_call_id="b"),
        }
    else:
        yield "; ".join(map(str, returned(messages)))


listener = bot(FunctionModel(stream_function=in_words), look, event_stream_handler=hear)


@agent(name="pydantic-events")
async def listening() -> str:
    return (await listener.run("weather?")).output


def test_events_of_tools_side_by_side_are_handled_each_once_in_whatever_order_they_end() -> None:
    for run in some_crash_points(listening, every=2):
        asked_once_but_for_doubt(run)
        assert run.result == "rain in Rome; rain in Oslo"
        assert set(heard) == {"a", "b"}
        heard.clear()


# ------------------------------------------------------------------ what is not a function


def test_the_tools_of_an_mcp_server_are_listed_and_called_as_steps(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="needs the extra examples")
    from fastmcp.client.transports import PythonStdioTransport
    from pydantic_ai.mcp import MCPToolset

    ledger = tmp_path / "ledger"

    def harbour() -> Bot[None, str]:
        """Give what each process has for itself: a connection."""
        transport = PythonStdioTransport(Path(__file__).with_name("mcp_server.py"), env={"LEDGER": str(ledger)})
        return Bot(
            scripted([("depth", {"pier": "1"}, "1"), ("depth", {"pier": "2"}, "2")]),
            name="bot",
            capabilities=[PerdureDurability(mcp_step={"retries": 1})],
            toolsets=[MCPToolset(transport, id="harbour", init_timeout=60)],
        )

    @agent(name="pydantic-mcp")
    async def top() -> str:
        return (await harbour().run("how deep?")).output

    whole = run_through_crashes(top)
    assert whole.result == "12 m at 1; 12 m at 2"
    assert sorted(ledger.read_text().split()) == ["1", "2"]
    assert whole.count("bot__mcp_server__harbour.call_tool") == 2
    assert whole.count("bot__mcp_server__harbour.get_tools") == 1
    ended = [index for index, point in enumerate(whole.points, 1) if point == "append.after"]
    again = run_through_crashes(top, plan=[ended[-1]])
    assert again.result == whole.result
    assert sorted(ledger.read_text().split()) == ["1", "1", "2", "2"]


@step
def note() -> str:
    return "noted"


@agent(name="pydantic-mixed")
async def with_steps_of_its_own() -> list[str]:
    told = [await note.aio()]
    told.append((await weather.run("weather?")).output)
    with branch("later"):
        told.append(await note.aio())
    return told


def test_steps_of_ones_own_stand_beside() -> None:
    for run in some_crash_points(with_steps_of_its_own, every=5):
        asked_once_but_for_doubt(run)
        assert run.result == ["noted", "rain in Rome; rain in Oslo; rain in Bern", "noted"]
