"""What running code may call, and what it is given: live and at every replay alike."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from actors import (
    AgentSystem,
    InsideTaskError,
    NestedStepError,
    OutsideTaskError,
    StepError,
    StepInfo,
    Suspended,
    TaskConflictError,
    TaskInfo,
    UnstorableValueError,
    agent,
    inside_task,
    open_store,
    step,
    step_info,
    task_info,
)
from actors.info import VALUE_LIMIT, VALUE_WARNING
from actors.task_log import TaskLog
from actors.testing import CrashPlan, SimulatedCrash
from domain.events import StepFailed, StepSucceeded
from domain.state import idempotency_key
from stores import Store
from stores.crash import CrashingStore
from tests.lives import PATIENCE, bodies, die, held, kinds, live, log


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


# ------------------------------------------------------------------ where no task runs


def test_outside_of_a_task_there_is_no_task_and_no_step() -> None:
    assert task_info() is None
    with pytest.raises(OutsideTaskError, match="only a step has a key and an attempt"):
        step_info()


def in_a_thread(call: Callable[[], object]) -> BaseException | None:
    """Call it in a thread made by hand, and give what it raised."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).exception(PATIENCE)


def in_a_thread_with_the_context(call: Callable[[], object]) -> BaseException | None:
    context = contextvars.copy_context()
    return in_a_thread(lambda: context.run(call))


@pytest.mark.parametrize("elsewhere", [in_a_thread, in_a_thread_with_the_context])
def test_a_step_in_a_thread_made_by_hand_is_refused_and_takes_no_place(disk: Store, elsewhere: Any) -> None:
    errors: list[BaseException | None] = []
    infos: list[TaskInfo | None] = []
    ran: list[int] = []

    @step(name="send")
    def send() -> None:
        ran.append(1)

    @agent
    def flow() -> None:
        errors.append(elsewhere(send))
        assert elsewhere(lambda: infos.append(task_info())) is None
        send()

    live(disk, flow)
    assert [type(error) for error in errors] == [OutsideTaskError]
    assert "send.fn(" in str(errors[0])
    assert infos == [None]
    assert (ran, bodies(disk)) == ([1], [("1", "send", 1)])


def test_a_thread_with_a_copied_context_is_told_of_which_task(disk: Store) -> None:
    @step(name="send")
    def send() -> None: ...

    @agent
    def flow() -> str:
        return str(in_a_thread_with_the_context(send))

    message = live(disk, flow)
    assert "step send was called on another thread than that of its task t, where calls have no order" in message
    assert 'use gather(…), or open a branch("key") there' in message


@pytest.mark.parametrize("elsewhere", [None, in_a_thread_with_the_context])
def test_a_step_inside_a_body_is_refused_and_leaves_no_trace(disk: Store, elsewhere: Any) -> None:
    @step(name="send")
    def send() -> None: ...

    @step(name="draft")
    def draft() -> list[str]:
        error = elsewhere(send) if elsewhere else None
        if elsewhere is None:
            with pytest.raises(NestedStepError) as caught:
                send()
            error = caught.value
        return [type(error).__name__, str(error)]

    @agent
    def flow() -> list[str]:
        return draft()

    kind, message = live(disk, flow)
    assert kind == "NestedStepError"
    assert "step send was called inside the body of step 1 draft of task t" in message
    assert "send.fn(" in message
    assert bodies(disk) == [("1", "draft", 1)]


def test_a_nested_step_that_is_not_caught_is_the_error_of_the_outer_one(disk: Store) -> None:
    @step
    def send() -> None: ...

    @step
    def draft() -> None:
        send()

    @agent
    def flow() -> list[bool]:
        with pytest.raises(StepError) as caught:
            draft()
        return [caught.value.is_a(NestedStepError), caught.value.is_a("OutsideTaskError")]

    assert live(disk, flow) == [True, True]


@pytest.mark.parametrize("where", ["a body", "a thread", "a thread with the context", "no task"])
def test_an_agent_is_a_plain_function_there_and_its_steps_are_refused(disk: Store, where: str) -> None:
    @step(name="send")
    def send() -> None: ...

    @agent
    def inner(with_step: bool) -> str:
        if with_step:
            send()
        return "plain"

    def both() -> list[str]:
        assert inner(False) == "plain"
        with pytest.raises(OutsideTaskError, match=r"send\.fn\(") as caught:
            inner(True)
        return [type(caught.value).__name__]

    call_both = step(both)

    @agent
    def flow() -> Any:
        if where == "a body":
            return call_both()
        elsewhere = in_a_thread if where == "a thread" else in_a_thread_with_the_context
        names: list[str] = []
        assert elsewhere(lambda: names.extend(both())) is None
        return names

    found = both() if where == "no task" else live(disk, flow)
    assert found == ["NestedStepError" if where == "a body" else "OutsideTaskError"]


def test_arguments_that_do_not_fit_are_a_type_error_that_takes_no_place(disk: Store) -> None:
    @step(name="send")
    def send(to: str) -> str:
        return to

    @agent
    def flow() -> str:
        with pytest.raises(TypeError):
            send()  # type: ignore[call-arg]
        return send("ann")

    assert live(disk, flow) == "ann"
    assert bodies(disk) == [("1", "send", 1)]


# ------------------------------------------------------------------ what running code is told


def test_a_body_is_told_its_task_place_attempt_and_key(disk: Store) -> None:
    told: list[StepInfo] = []

    @step(name="send")
    def send() -> None:
        told.append(step_info())
        assert task_info() is None

    @agent
    def flow() -> None:
        send()
        with pytest.raises(OutsideTaskError):
            step_info()

    die(disk, flow)
    live(disk, flow)
    with AgentSystem(disk, run=False) as client:
        birth = TaskLog(disk).load("t").birth
        assert client.task("t").status() == "completed"
    key = idempotency_key(birth, "1")
    assert told == [StepInfo("t", "1", "send", attempt, birth) for attempt in (1, 2)]
    assert {info.idempotency_key for info in told} == {key}


def test_code_of_a_task_knows_it_in_asyncio_tasks_and_threads_that_have_its_context(disk: Store) -> None:
    told: list[tuple[bool, bool]] = []

    def look() -> None:
        told.append((inside_task(), task_info() is not None))

    async def look_there() -> None:
        look()

    @step
    def body() -> None:
        look()

    @agent
    async def flow() -> None:
        look()
        await asyncio.create_task(look_there())
        await asyncio.to_thread(look)
        await body.aio()

    live(disk, flow)
    look()
    assert told == [(True, True), (True, False), (True, False), (False, False), (False, False)]


def test_an_agent_is_told_its_task_and_cannot_change_it(disk: Store) -> None:
    told: list[TaskInfo | None] = []

    @step
    def pause() -> None: ...

    @agent
    def flow() -> None:
        info = task_info()
        assert info is not None
        told.append(info)
        info.tags["team"] = "b"
        told.append(task_info())
        pause()

    life = CrashingStore(disk, CrashPlan(1, "body.after"))
    with pytest.raises(SimulatedCrash), AgentSystem(life) as system:
        system.spawn(flow, id="t", tags={"team": "a"}).result(PATIENCE)
    life.close()
    live(disk, flow)
    assert [(info.id, info.agent, info.activation) for info in told[::2] if info] == [
        ("t", flow.name, 1),
        ("t", flow.name, 2),
    ]
    assert [info.tags for info in told[1::2] if info] == [{"team": "a"}] * 2


# ------------------------------------------------------------------ scopes


def test_an_agent_inside_an_agent_has_a_scope_of_its_own(disk: Store) -> None:
    @step(name="note")
    def note(what: str) -> str:
        return what

    @agent
    def innermost() -> str:
        return note("2/2/1")

    @agent
    def inner(first: str) -> list[str]:
        return [note(first), innermost(), note("2/3")]

    @agent
    def flow() -> list[Any]:
        return [note("1"), inner("2/1"), note("3"), inner("4/1"), innermost()]

    expected = ["1", ["2/1", "2/2/1", "2/3"], "3", ["4/1", "2/2/1", "2/3"], "2/2/1"]
    assert live(disk, flow) == expected
    assert [path for path, *_ in bodies(disk)] == ["1", "2/1", "2/2/1", "2/3", "3", "4/1", "4/2/1", "4/3", "5/1"]


def test_agents_that_changed_places_run_nothing(disk: Store) -> None:
    ran: list[str] = []

    @step(name="note")
    def note(what: str) -> None:
        ran.append(what)

    @agent
    def first() -> None:
        note("a")

    @agent
    def second() -> None:
        note("a")
        note("b")

    @step(name="pause")
    def pause() -> None: ...

    order = [first, second]

    @agent
    def flow() -> None:
        for inner in order:
            inner()
        pause()

    die(disk, flow, nth=4)
    assert ran == ["a", "a", "b"]
    order.reverse()
    assert held(disk, flow).reason == "differs"
    assert ran == ["a", "a", "b"], "a finished step never runs again"


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("nth", range(1, 6))
def test_an_agent_without_steps_does_not_confuse_a_replay(disk: Store, nth: int, raises: bool) -> None:
    ran: list[int] = []

    @step(name="note")
    def note(number: int) -> int:
        ran.append(number)
        return number

    @agent
    def silent() -> None:
        if raises:
            raise LookupError

    @agent
    def inner() -> int:
        with suppress(LookupError):
            silent()
        return note(2)

    @agent
    def flow() -> list[int]:
        got = [note(1)]
        for _ in range(2):
            with suppress(LookupError):
                silent()
        got += [inner(), note(3)]
        with suppress(LookupError):
            silent()
        return got

    die(disk, flow, at="append.after", nth=nth + 2)  # after Created and Activated
    assert live(disk, flow) == [1, 2, 3]
    assert {path for path, *_ in bodies(disk)} == {"1", "4/2", "5"}
    outcomes = [event.path for event in log(disk) if isinstance(event, StepSucceeded)]
    assert outcomes == ["1", "4/2", "5"]
    assert len(ran) <= 4


# ------------------------------------------------------------------ the live run is the replay


def test_each_hand_over_is_a_fresh_copy_of_what_is_in_the_log(disk: Store) -> None:
    kept = {"items": [1, 2]}
    given: list[Any] = []

    @step
    def fetch() -> dict[str, list[int]]:
        return kept

    @step
    def pause(number: int) -> None: ...

    @agent
    def flow(names: list[str]) -> Any:
        first = fetch()
        given.append([list(names), {"items": list(first["items"])}])
        first["items"].append(3)
        names.append("mine")
        kept["items"].clear()
        given.append(list(first["items"]))
        pause(1)
        again = fetch()
        pause(2)
        return [first, again]

    for nth in (2, 3):
        kept["items"][:] = [1, 2]
        die(disk, flow, ["ann"], nth=nth)
    kept["items"][:] = [7]
    assert live(disk, flow, ["ann"]) == [{"items": [1, 2, 3]}, {"items": []}]
    assert given == [[["ann"], {"items": [1, 2]}], [1, 2, 3]] * 3
    values = [event.value for event in log(disk) if isinstance(event, StepSucceeded) and event.name.endswith("fetch")]
    assert values == [{"items": [1, 2]}, {"items": []}]


def test_a_result_is_a_fresh_copy_too(disk: Store) -> None:
    @agent
    def flow() -> list[int]:
        return [1]

    with AgentSystem(disk) as system:
        task = system.spawn(flow, id="t")
        task.result(PATIENCE).append(2)
        assert task.result(PATIENCE) == [1]


def test_a_failed_step_raises_the_same_live_and_at_a_replay(disk: Store) -> None:
    seen: list[StepError] = []

    @step(name="pay")
    def pay(amount: int) -> None:
        try:
            raise KeyError("account")
        except KeyError as error:
            raise ConnectionError(f"no answer for {amount}") from error

    @step
    def pause() -> None: ...

    @agent
    def flow() -> str:
        try:
            pay(20)
        except StepError as error:
            seen.append(error)
        pause()
        return "went on"

    die(disk, flow, nth=2)
    assert live(disk, flow) == "went on"
    live_error, replayed = seen
    assert str(live_error) == str(replayed) == "step 1 pay failed: ConnectionError: no answer for 20"
    assert vars(live_error) == vars(replayed)
    assert (live_error.step, live_error.path, live_error.attempts) == ("pay", "1", 1)
    assert live_error.is_a(OSError)
    assert live_error.fault.causes == ("KeyError: 'account'",)
    assert "test_contexts.py" in live_error.fault.traceback
    assert "actors/" not in live_error.fault.traceback
    assert live_error.__cause__ is replayed.__cause__ is None


class OwnExit(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), OwnExit("x"), Suspended("s")],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_body_raises_is_a_step_error(disk: Store, error: BaseException) -> None:
    ran: list[int] = []

    @step
    def quits() -> None:
        ran.append(1)
        raise error

    @agent
    def flow() -> list[Any]:
        with pytest.raises(StepError) as caught:
            quits()
        return [caught.value.is_a(type(error)), caught.value.attempts]

    assert live(disk, flow) == [True, 1]
    assert (ran, kinds(disk)) == ([1], ["Created", "Activated", "StepStarted", "StepFailed", "Completed"])


@pytest.mark.parametrize(
    ("value", "where", "type_name"),
    [
        ({"items": [1, iter(())]}, "items[1]", "tuple_iterator"),
        ([1, object()], "[1]", "object"),
        (threading.Event, "value", "type"),
        (("a", lambda: 1), "[1]", "function"),
    ],
)
def test_a_value_that_cannot_be_stored_is_a_failed_step_whose_body_ran_once(
    disk: Store, value: Any, where: str, type_name: str
) -> None:
    ran: list[int] = []

    @step(name="fetch")
    def fetch() -> Any:
        ran.append(1)
        return value

    @step
    def pause() -> None: ...

    @agent
    def flow() -> list[Any]:
        with pytest.raises(StepError) as caught:
            fetch()
        pause()
        return [str(caught.value), caught.value.is_a(UnstorableValueError)]

    die(disk, flow, nth=2)
    message, is_a = live(disk, flow)
    assert message.startswith("step 1 fetch failed: UnstorableValueError: what it returned cannot be stored: ")
    assert f"{where} is of the type {type_name}" in message
    assert is_a
    assert (ran, [event.path for event in log(disk) if isinstance(event, StepFailed)]) == ([1], ["1"])


def test_a_value_that_is_too_large_is_refused_and_a_large_one_is_warned_of(
    disk: Store, caplog: pytest.LogCaptureFixture
) -> None:
    @step
    def fetch(size: int) -> str:
        return "x" * size

    @agent
    def flow() -> int:
        with pytest.raises(StepError, match=r"takes 4,194,30. bytes, the limit is 4,194,304"):
            fetch(VALUE_LIMIT + 1)
        return len(fetch(VALUE_WARNING))

    assert live(disk, flow) == VALUE_WARNING
    assert [record.levelname for record in caplog.records if record.name == "perdure"] == ["WARNING"]


def test_a_result_of_an_agent_that_cannot_be_stored_is_a_bug_to_be_mended_and_its_steps_are_kept(disk: Store) -> None:
    entered: list[int] = []
    mended: list[bool] = []

    @step
    def pay() -> int:
        entered.append(1)
        return 7

    @agent
    def flow() -> Any:
        paid = pay()
        return {"a": {1: paid if mended else object()}}

    error = held(disk, flow)
    assert error.reason == "strikes"
    assert r"what the agent returned cannot be stored: a[1] is of the type object" in str(error)
    mended.append(True)
    with AgentSystem(disk) as system:
        system.task("t").release()
        assert system.spawn(flow, id="t").result(PATIENCE) == {"a": {1: 7}}
    assert entered == [1]


def test_a_coroutine_that_nobody_awaited_is_named_as_what_it_is(disk: Store) -> None:
    @step
    async def fetch() -> int:
        return 1

    @agent
    def flow() -> Any:
        return fetch()

    assert "it is a coroutine that nobody has awaited" in str(held(disk, flow))


def test_a_task_spawned_under_an_old_name_of_its_agent_is_the_same_task(disk: Store) -> None:
    @agent(name="old name")
    def old(value: int) -> int:
        return value

    @agent(name="new name", aliases=("old name",))
    def new(value: int) -> int:
        return value

    assert live(disk, old, 1) == live(disk, new, 1) == 1
    with pytest.raises(TaskConflictError, match="with other input"):
        live(disk, new, 2)


def test_arguments_need_not_be_storable(disk: Store) -> None:
    @step
    def fetch(lock: Any, size: int) -> str:
        return type(lock).__name__ + str(size)

    @step
    def pause() -> None: ...

    @agent
    def flow() -> str:
        got = fetch(threading.Event(), 3)
        pause()
        return got

    die(disk, flow, nth=2)
    assert live(disk, flow) == "Event3"


def test_other_arguments_at_a_finished_step_are_a_notice_and_its_outcome_stands(
    disk: Store, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = "v1"

    @step(name="ask")
    def ask(text: str) -> str:
        return text

    @step
    def pause() -> None: ...

    @agent
    def flow() -> str:
        answer = ask(prompt)
        pause()
        return answer

    die(disk, flow, nth=2)
    prompt = "v2"
    assert live(disk, flow) == "v1"
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert messages == ["task t: step 1 ask has other arguments than when it was recorded; its recorded outcome stands"]


def test_code_that_differs_is_held_runs_nothing_and_goes_on_when_it_fits_again(disk: Store) -> None:
    ran: list[str] = []

    def doing(name: str) -> Any:
        return step(name=name)(lambda: ran.append(name))

    draft, send, check = doing("draft"), doing("send"), doing("check")
    plan = [draft, send]

    @agent
    def flow() -> str:
        for do in plan:
            do()
        return "done"

    die(disk, flow, nth=2)
    ran.clear()
    plan[:] = [check, draft, send]
    error = held(disk, flow)
    assert error.reason == "differs"
    assert "code differs at position 1: the log has step draft, the code asks for step check" in str(error)
    before = kinds(disk)
    assert held(disk, flow).reason == "differs"
    assert (ran, kinds(disk)) == ([], before), "a second look that does not fit writes nothing"
    plan[:] = [draft, send]
    assert live(disk, flow) == "done"
    assert ran == ["send"]
    assert kinds(disk)[len(before) :] == ["Released", "Activated", "StepStarted", "StepSucceeded", "Completed"]


# ------------------------------------------------------------------ tasks inside tasks


def test_an_agent_may_not_spawn_or_wait_between_its_steps(disk: Store) -> None:
    @agent
    def other() -> int:
        return 1

    with AgentSystem(disk) as system:

        @agent
        def flow() -> list[str]:
            messages = []
            for call in (lambda: system.spawn(other, id="other"), lambda: system.task("seed").result(0)):
                with pytest.raises(InsideTaskError) as caught:
                    call()
                messages.append(str(caught.value))
            return messages

        assert system.spawn(other, id="seed").result(PATIENCE) == 1
        spawned, waited = system.spawn(flow, id="t").result(PATIENCE)
        assert "spawn() inside an agent would happen again at each replay" in spawned
        assert "result() inside an agent would happen again at each replay" in waited
        assert {task.id for task in system.tasks()} == {"seed", "t"}


def test_a_body_that_waits_for_another_task_gives_its_place_to_it(disk: Store) -> None:
    with AgentSystem(disk, max_active=1) as system:

        @step
        def ask(depth: int) -> int:
            return system.spawn(flow, depth - 1, id=f"t{depth - 1}").result(PATIENCE)

        @agent
        def flow(depth: int) -> int:
            return ask(depth) + 1 if depth else 0

        assert system.spawn(flow, 3, id="t3").result(PATIENCE) == 3
        assert [task.status() for task in system.tasks()] == ["completed"] * 4


def test_a_suspect_whose_body_waits_for_another_task_does_not_wait_for_ever(disk: Store) -> None:
    crashed: list[int] = []
    with AgentSystem(disk, strikes=2) as system:

        @agent
        def other() -> int:
            return 1

        @step
        def ask() -> int:
            return system.spawn(other, id="other").result(3)

        @agent
        def flow() -> int:
            if not crashed:
                crashed.append(1)
                raise ValueError("a bug, once")
            return ask()

        assert system.spawn(flow, id="t").result(PATIENCE) == 1


def test_a_body_that_waits_through_a_client_gives_its_place_too(disk: Store) -> None:
    with AgentSystem(disk, run=False) as client, AgentSystem(disk, max_active=1) as system:

        @agent
        def other() -> int:
            return 1

        @step
        def ask() -> int:
            return client.spawn(other, id="other").result(3)

        @agent
        def flow() -> int:
            return ask()

        assert system.spawn(flow, id="t").result(PATIENCE) == 1
