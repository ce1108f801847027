"""What happens around a conversation: people who decide, who calls it off, who goes on with it, who looks on."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actors import AgentSystem, Emitted, Reset, TaskCancelledError, TaskNotEndedError, TaskRef, agent, open_store
from actors.llm import (
    Message,
    Reply,
    ScriptedModel,
    ToolCall,
    ToolResult,
    UserMessage,
    continue_conversation,
    continue_conversation_async,
    conversation,
    llm_agent,
    tool,
)
from actors.llm_show import conversation_lines
from actors.testing import every_crash_point
from domain.events import ApprovalRequested, StepSucceeded, TaskEvent
from domain.fold import fold
from domain.task import AgentTask
from stores import Store
from tests.lives import PATIENCE, die, live, log, wait_for


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


def results(messages: list[Message]) -> list[tuple[str, str, bool]]:
    return [(one.call_id, one.text, one.is_error) for one in messages if isinstance(one, ToolResult)]


# ------------------------------------------------------------------ approvals


def payer(needs_approval: Any, *amounts: int) -> tuple[Any, ScriptedModel, list[int]]:
    """Give an agent whose model wants to pay these amounts in one reply, and what was paid."""
    paid: list[int] = []

    @tool(needs_approval=needs_approval)
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    wanted = [ToolCall("c", "pay", {"amount": amount}) for amount in amounts]
    model = ScriptedModel(Reply(tool_calls=wanted), "Done.")
    return llm_agent("payer", model=model, tools=[pay]), model, paid


def test_one_of_two_calls_needs_approval_and_the_other_does_not_wait_for_it(disk: Store) -> None:
    helper, model, paid = payer(lambda arguments: arguments["amount"] > 15, 10, 20)
    with AgentSystem(disk) as system:
        task = system.spawn(helper, "Pay!", id="t")
        wait_for(lambda: paid == [10] and task.status() == "waiting")
        (asked,) = task.describe().approvals
        assert (asked.question, asked.details) == ("pay(amount=20)", {"amount": 20})
        task.answer(asked.id, approved=True, by="ann")
        assert task.result(PATIENCE) == "Done."
    assert paid == [10, 20]
    assert results(model.transcripts[-1]) == [("c", "paid 10", False), ("c_2", "paid 20", False)]


def test_wherever_the_process_dies_each_call_has_one_pause_and_what_is_approved_is_paid_once() -> None:
    helper, model, paid = payer(True, 10, 20)
    for run in every_crash_point(helper, "Pay!", answer=lambda asked: asked.details["amount"] == 20):
        run.check()
        assert run.result == "Done."
        assert sum(isinstance(event, ApprovalRequested) for event in run.events) == 2
        told = [("c", "rejected by test", True), ("c_2", "paid 20", False)]
        assert results(conversation(run.events)) == results(model.transcripts[-1]) == told
    assert set(paid) == {20}


def test_a_call_that_nobody_has_approved_has_a_result_when_its_task_is_called_off(disk: Store) -> None:
    helper, model, paid = payer(True, 10)
    with AgentSystem(disk) as system:
        task = system.spawn(helper, "Pay!", id="t")
        wait_for(lambda: len(task.describe().approvals) == 1)
        task.cancel("enough")
        with pytest.raises(TaskCancelledError):
            task.result(PATIENCE)
        assert continue_conversation(system, "t", "Then don't.").result(PATIENCE) == "Done."
    assert paid == []
    assert results(model.transcripts[-1]) == [("c", "cancelled: it was not run", True)]


# ------------------------------------------------------------------ going on


def test_a_follow_up_begins_with_all_that_was_said_and_runs_nothing_again(disk: Store) -> None:
    helper, model, paid = payer(False, 10)
    model.lines = (*model.lines, "You are welcome.", "Bye.")
    with AgentSystem(disk) as system:
        system.spawn(helper, "Pay!", id="t").result(PATIENCE)
        second = continue_conversation(system, "t", "Thanks", id="t-2")
        assert second.result(PATIENCE) == "You are welcome."
        assert continue_conversation(system, "t", "Thanks", id="t-2").result(PATIENCE) == "You are welcome."
        assert continue_conversation(system, "t-2", "Bye").result(PATIENCE) == "Bye."
    assert paid == [10]
    assert [one.text for one in model.transcripts[-1]] == [
        *("Pay!", "", "paid 10", "Done."),
        *("Thanks", "You are welcome.", "Bye"),
    ]


def test_what_may_still_answer_is_not_gone_on_with(disk: Store) -> None:
    helper, _, _ = payer(True, 10)
    with AgentSystem(disk, run=False) as client:
        client.spawn(helper, "Pay!", id="t")
        with pytest.raises(TaskNotEndedError, match="has not ended: it is queued"):
            continue_conversation(client, "t", "again")


def test_another_agents_task_is_no_conversation(disk: Store) -> None:
    @agent(name="adder")
    def add(one: int, other: int) -> int:
        return one + other

    live(disk, add, 1, 2)
    with AgentSystem(disk, run=False) as client, pytest.raises(ValueError, match="is no llm_agent's"):
        continue_conversation(client, "t", "again")


def test_a_follow_up_has_a_twin_for_event_loops(disk: Store) -> None:
    helper = llm_agent("awaited", model=ScriptedModel("One.", "Two."))

    async def talk() -> str:
        async with AgentSystem(disk) as system:
            await (await system.spawn_async(helper, "First", id="t"))
            return await (await continue_conversation_async(system, "t", "Second"))

    assert asyncio.run(talk()) == "Two."


def test_what_a_tool_that_was_called_off_does_is_cut_off_and_the_rest_is_real(disk: Store) -> None:
    running = threading.Event()

    @tool
    async def slow() -> str:
        """Never end."""
        running.set()
        await asyncio.Event().wait()
        raise AssertionError

    @tool
    def quick() -> int:
        """End."""
        return 1

    model = ScriptedModel(Reply("", [ToolCall("a", "slow"), ToolCall("b", "quick")]), "Fine.")
    helper = llm_agent("called off", model=model, tools=[slow, quick])
    with AgentSystem(disk) as system:
        task = system.spawn(helper, "Go!", id="t")
        assert running.wait(PATIENCE)
        wait_for(lambda: any(isinstance(one, StepSucceeded) and one.name == "quick" for one in task.events()))
        task.cancel("enough")
        with pytest.raises(TaskCancelledError):
            task.result(PATIENCE)
        assert continue_conversation(system, "t", "again").result(PATIENCE) == "Fine."
    cut_off = "cancelled: it was cut off while it ran; it may or may not have happened"
    assert results(model.transcripts[-1]) == [("a", cut_off, True), ("b", "1", False)]
    assert model.transcripts[-1][-1] == UserMessage("again")


# ------------------------------------------------------------------ looking on


def said(updates: Any) -> tuple[list[str], int]:
    """Fold what a follower is told as one who shows it would; and how often it was told to forget."""
    text: list[str] = []
    resets = 0
    for update in updates:
        if isinstance(update, Reset):
            text.clear()
            resets += 1
        elif isinstance(update, Emitted):
            text.append(update.value)
    return text, resets


class Streaming:
    """A model whose stream tells its pieces, from another thread, and may be cut in the middle."""

    def __init__(self, *streams: list[str]) -> None:
        self.streams = list(streams)

    def reply(self, messages: Any, tools: Any, *, on_delta: Callable[[str], None]) -> Reply:
        pieces = self.streams.pop(0)

        def tell() -> None:
            for piece in pieces:
                on_delta(piece)

        thread = threading.Thread(target=tell)
        thread.start()
        thread.join(PATIENCE)
        if not pieces[-1].endswith("."):
            raise ConnectionError("the stream was cut")
        return Reply("".join(pieces))


def test_a_stream_cut_in_the_middle_stores_one_attempts_text_and_followers_drop_the_first_part(disk: Store) -> None:
    model = Streaming(["It is", " ra"], ["The sun", " shines", "."])
    helper = llm_agent("streaming", model=model, model_options={"retries": 1, "backoff": 0})
    assert live(disk, helper, "Well?") == "The sun shines."
    with AgentSystem(disk, run=False) as client:
        assert said(client.task("t").follow()) == (["The sun", " shines", "."], 1)


def test_a_death_in_the_middle_of_a_stream_mixes_nothing(disk: Store) -> None:
    model = Streaming(["It is", " raining."], ["The sun", " shines."])
    helper = llm_agent("mortal", model=model)
    die(disk, helper, "Well?", at="body.after")
    assert live(disk, helper, "Well?") == "The sun shines."
    with AgentSystem(disk, run=False) as client:
        text, _ = said(client.task("t").follow())
    assert text == ["The sun", " shines."]
    (reply,) = [event.value for event in log(disk) if isinstance(event, StepSucceeded)]
    assert reply == {"text": "The sun shines."}


def test_who_decides_whether_to_ask_is_given_the_defaults_too() -> None:
    seen: list[Any] = []

    @tool(needs_approval=lambda arguments: bool(seen.append(arguments)))
    def pay(amount: int, currency: str = "EUR") -> str:
        """Pay."""
        return currency

    assert not pay.asks(pay.checked({"amount": "3"}))
    assert seen == [{"amount": 3, "currency": "EUR"}]


# ------------------------------------------------------------------ follow-ups of a task that stays


def chatting() -> tuple[Any, ScriptedModel]:
    model = ScriptedModel(*[f"Answer {number}." for number in range(1, 5)])
    return llm_agent("chatting", model=model, follow_ups=True), model


def answered(task: Any, times: int) -> bool:
    return task.status() == "waiting" and sum(isinstance(one, Reply) for one in conversation(task.events())) == times


def test_a_task_that_takes_follow_ups_waits_for_them_and_grows_by_them_alone(disk: Store) -> None:
    helper, model = chatting()
    with AgentSystem(disk) as system:
        task = system.spawn(helper, "One", id="t")
        wait_for(lambda: answered(task, 1))
        assert continue_conversation(system, "t", "Two", id="s2").id == "t"
        assert continue_conversation(system, "t", "Two", id="s2").id == "t"
        wait_for(lambda: answered(task, 2))
    with AgentSystem(disk) as system:
        task = continue_conversation(system, "t", "Three")
        wait_for(lambda: answered(task, 3))
        assert [one.text for one in conversation(task.events())] == [
            *("One", "Answer 1.", "Two", "Answer 2.", "Three", "Answer 3."),
        ]
        assert len(model.transcripts) == 3
        words = [word for word, _ in conversation_lines(fold_of(task), 0.0)]
        assert words == ["user", "model"] * 3 + ["in all"]


def test_a_word_that_comes_when_the_task_has_just_ended_goes_to_the_one_after_it(
    monkeypatch: pytest.MonkeyPatch, disk: Store
) -> None:
    helper, _ = chatting()
    with AgentSystem(disk) as system:
        task = system.spawn(helper, "One", id="t")
        wait_for(lambda: answered(task, 1))
        read = TaskRef.events

        def end_then(self: TaskRef[Any], *, after: int = 0) -> list[TaskEvent]:
            events = read(self, after=after)
            if task.cancel("enough").accepted:
                with pytest.raises(TaskCancelledError):
                    task.result(PATIENCE)
            return events

        monkeypatch.setattr(TaskRef, "events", end_then)
        later = continue_conversation(system, "t", "Two", id="t2")
        monkeypatch.undo()
        wait_for(lambda: answered(later, 2))
        assert later.id == "t2"
        assert [one.text for one in conversation(later.events())] == ["One", "Answer 1.", "Two", "Answer 2."]


def test_a_word_that_a_task_has_had_is_not_said_again_after_its_end(disk: Store) -> None:
    helper, model = chatting()
    with AgentSystem(disk) as system:
        task = system.spawn(helper, "One", id="t")
        wait_for(lambda: answered(task, 1))
        continue_conversation(system, "t", "Two", id="s2")
        wait_for(lambda: answered(task, 2))
        task.cancel("enough")
        with pytest.raises(TaskCancelledError):
            task.result(PATIENCE)
        assert continue_conversation(system, "t", "Two", id="s2").id == "t"
        assert len(model.transcripts) == 2


def test_what_was_said_to_a_task_that_was_called_off_is_not_lost(disk: Store) -> None:
    helper, model = chatting()
    with AgentSystem(disk) as system:
        task = system.spawn(helper, "One", id="t")
        wait_for(lambda: answered(task, 1))
    with AgentSystem(disk, run=False) as client:
        continue_conversation(client, "t", "Two")
        client.task("t").cancel("enough")
    with AgentSystem(disk) as system:
        with pytest.raises(TaskCancelledError):
            system.task("t").result(PATIENCE)
        task = continue_conversation(system, "t", "Three", id="t2")
        wait_for(lambda: answered(task, 2))
    assert [one.text for one in model.transcripts[-1]] == ["One", "Answer 1.", "Two", "Three"]


def test_200_messages_by_follow_ups_take_less_than_300_kib(disk: Store) -> None:
    kib = "m" * 1024
    helper = llm_agent("talk: patient", model=ScriptedModel(*[kib] * 100), follow_ups=True)
    with AgentSystem(disk, run=False) as client:
        client.spawn(helper, kib, id="t")
        for _ in range(99):
            continue_conversation(client, "t", kib)
    with AgentSystem(disk) as system:
        wait_for(lambda: answered(system.task("t"), 100), 60)
    rows = list(disk.recorder.select_events("t"))
    size = sum(len(row.state) + len(row.topic) + len(row.originator_id) + 8 for row in rows)
    assert size < 300 * 1024, f"{size / 1024:.1f} KiB"


def test_wherever_the_process_dies_each_follow_up_is_answered_once() -> None:
    model = ScriptedModel("Answer 1.", "Answer 2.")  # and fails when it is asked once more
    helper = llm_agent("mortal chat", model=model, follow_ups=True, model_options={"retries": 0})

    def meanwhile(task: Any) -> None:
        task.signal("user says", "Two", signal_id="2")
        task.signal("user says", "Three", signal_id="3")

    for run in every_crash_point(helper, "One", meanwhile=meanwhile):
        run.check()
        assert run.status == "failed"
        assert [one.text for one in conversation(run.events)] == ["One", "Answer 1.", "Two", "Answer 2.", "Three"]


def fold_of(task: Any) -> AgentTask:
    folded = fold(None, task.events())
    assert folded is not None
    return folded
