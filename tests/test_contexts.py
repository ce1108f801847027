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
    Doubt,
    FailTask,
    Fault,
    Happened,
    InsideTaskError,
    NestedStepError,
    NotHappened,
    OutsideTaskError,
    StepError,
    StepInfo,
    Suspended,
    TaskFailedError,
    TaskHeldError,
    TaskInfo,
    Unknown,
    UnstorableValueError,
    agent,
    open_store,
    step,
    step_info,
    task_info,
)
from actors.info import VALUE_LIMIT, VALUE_WARNING
from actors.task_log import Appender, TaskLog
from actors.testing import CrashPlan, SimulatedCrash
from domain.events import StepFailed, StepStarted, StepSucceeded, TaskEvent
from domain.task import idempotency_key
from stores import Store
from stores.crash import CrashingStore

PATIENCE = 20.0
"""Seconds after which a test gives up."""


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


def live(disk: Store, agent: Any, *args: Any, **options: Any) -> Any:
    """Run the task `t` in a system of its own, from where it is, to its result."""
    with AgentSystem(disk, **options) as system:
        return system.spawn(agent, *args, id="t").result(PATIENCE)


def die(disk: Store, agent: Any, *args: Any, at: str = "body.after", nth: int = 1) -> None:
    """Run the task `t` until its process dies at the nth point of that name."""
    life = CrashingStore(disk, CrashPlan(nth, at))
    with pytest.raises(SimulatedCrash), AgentSystem(life) as system:
        system.spawn(agent, *args, id="t").result(PATIENCE)
    life.close()


def held(disk: Store, agent: Any, *args: Any) -> TaskHeldError:
    with pytest.raises(TaskHeldError) as caught:
        live(disk, agent, *args)
    return caught.value


def log(disk: Store) -> list[TaskEvent]:
    with AgentSystem(disk, run=False) as client:
        return client.task("t").events()


def kinds(disk: Store) -> list[str]:
    return [type(event).__name__ for event in log(disk)]


def bodies(disk: Store) -> list[tuple[str, str, int]]:
    return [(event.path, event.name, event.attempt) for event in log(disk) if isinstance(event, StepStarted)]


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
    errors, infos, ran = [], [], []

    @step(name="send")
    def send() -> None:
        ran.append(1)

    @agent
    def flow() -> None:
        errors.append(elsewhere(send))
        infos.append(elsewhere(lambda: ran.append(task_info())))
        ran.clear()
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

    assert "another thread than that of its task t:" in live(disk, flow)


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
    assert told == [StepInfo("t", "1", "send", attempt, key) for attempt in (1, 2)]


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
        pause(1)
        again = fetch()
        pause(2)
        return [first, again]

    for nth in (2, 3):
        kept["items"][:] = [1, 2]
        die(disk, flow, ["ann"], nth=nth)
    kept["items"][:] = [7]
    assert live(disk, flow, ["ann"]) == [{"items": [1, 2, 3]}, {"items": []}]
    assert given == [[["ann"], {"items": [1, 2]}]] * 3
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
        ({"items": [1, {2}]}, "items[1]", "set"),
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


def test_a_result_of_an_agent_that_cannot_be_stored_fails_its_task(disk: Store) -> None:
    @agent
    def flow() -> Any:
        return {"a": {1}}

    with pytest.raises(TaskFailedError, match="what the agent returned cannot be stored: a is of the type set") as caught:
        live(disk, flow)
    assert caught.value.fault.is_a(UnstorableValueError)


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
    assert messages == [
        "task t: step 1 ask has other arguments than when it was recorded; its recorded outcome stands"
    ]


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


# ------------------------------------------------------------------ a closed context


Act = Callable[[], object]


def swallows(stop: Act, later: Act) -> object:
    for act in (stop, later, stop, later):
        with suppress(BaseException):
            act()
    return "fine"


def has_a_bare_except(stop: Act, later: Act) -> object:
    try:
        stop()
    except:  # noqa: E722
        return "fine"
    return None


def cleans_up(stop: Act, later: Act) -> object:
    try:
        stop()
    finally:
        later()
    return None


def raises_its_own(stop: Act, later: Act) -> object:
    try:
        stop()
    except BaseException as error:
        raise ValueError("mine") from error
    return None


def fails_the_task(stop: Act, later: Act) -> object:
    try:
        stop()
    except BaseException as error:
        raise FailTask("given up") from error
    return None


def raises_a_step_error(stop: Act, later: Act) -> object:
    try:
        stop()
    except BaseException as error:
        raise StepError("mine", step="s", path="1", attempts=1, fault=Fault(("E",), "m")) from error
    return None


def raises_a_group(stop: Act, later: Act) -> object:
    try:
        stop()
    except BaseException as error:
        raise BaseExceptionGroup("some", [error, ValueError()]) from None
    return None


def exits(stop: Act, later: Act) -> object:
    try:
        stop()
    except BaseException as error:
        raise SystemExit(0) from error
    return None


def swallows_in_a_nested_agent(stop: Act, later: Act) -> object:
    inner = agent(name="contexts: inner")(lambda_to_function(swallows, stop, later))
    outer = agent(name="contexts: outer")(lambda_to_function(inner))
    with suppress(BaseException):
        outer()
    with suppress(BaseException):
        inner()
    with suppress(BaseException):
        later()
    return "fine"


def lambda_to_function(function: Any, *args: Any) -> Any:
    def called() -> Any:
        return function(*args)

    return called


BEHAVIOURS = [
    swallows,
    has_a_bare_except,
    cleans_up,
    raises_its_own,
    fails_the_task,
    raises_a_step_error,
    raises_a_group,
    exits,
    swallows_in_a_nested_agent,
]


class Closing:
    """An agent whose context is closed in the middle, in one of several ways, and which then behaves as it likes."""

    def __init__(self, disk: Store, behave: Callable[[Act, Act], object]) -> None:
        self.disk = disk
        self.raised: list[BaseException] = []
        self.ran: list[str] = []
        self.left = threading.Event()
        self.system: AgentSystem | None = None

        @step(name="later")
        def later() -> None:
            self.ran.append("later")

        @step(name="stop", on_doubt="hold")
        def stop() -> None:
            self.ran.append("stop")

        @step(name="other")
        def other() -> None:
            self.ran.append("other")

        @step(name="closes the system")
        def closes() -> None:
            assert self.system is not None
            assert self.system._tree is not None
            threading.Thread(target=self.system.close).start()
            assert self.system._tree.worker.stopping.wait(PATIENCE)

        @step(name="loses the task")
        def loses() -> None:
            task_log = TaskLog(self.disk)
            appender = Appender(task_log, task_log.load("t"))
            appender.append(lambda task, now: task.activate(now, worker="other", token="x", limit=None))

        def closes_and_goes_on() -> None:
            closes()
            stop()

        self.stops: dict[str, Act] = {
            "stop": stop,
            "other": other,
            "closes": closes_and_goes_on,
            "loses": loses,
        }
        self.stop = "stop"

        @agent
        def flow() -> object:
            try:
                return behave(lambda: self.call(self.stops[self.stop]), lambda: self.call(later))
            finally:
                self.left.set()

        self.flow = flow

    def call(self, act: Act) -> object:
        try:
            return act()
        except BaseException as error:
            self.raised.append(error)
            raise

    def run(self, *, life: Store | None = None) -> None:
        """Run until the agent's function was left, and its system was closed."""
        self.left.clear()
        with suppress(SimulatedCrash), AgentSystem(life or self.disk) as system:
            self.system = system
            system.spawn(self.flow, id="t")
            assert self.left.wait(PATIENCE)

    def crash(self) -> None:
        life = CrashingStore(self.disk, CrashPlan(1, "body.after"))
        self.run(life=life)
        life.close()

    def forget(self) -> None:
        self.raised.clear()
        self.ran.clear()


def by_a_crash(closing: Closing) -> None:
    closing.crash()
    closing.ran.remove("stop")  # its body ran, then the process died


def by_a_hold_in_doubt(closing: Closing) -> None:
    closing.crash()
    closing.forget()
    closing.run()


def by_code_that_differs(closing: Closing) -> None:
    closing.stop = "other"
    closing.crash()
    closing.forget()
    closing.stop = "stop"
    closing.run()


def by_a_stop_of_the_system(closing: Closing) -> None:
    closing.stop = "closes"
    closing.run()


def by_a_loss_of_the_task(closing: Closing) -> None:
    closing.stop = "loses"
    closing.disk.workers.hold("other", {})
    closing.run()


LAST = {
    by_a_crash: ["Activated", "StepStarted"],
    by_a_hold_in_doubt: ["Activated", "Held"],
    by_code_that_differs: ["Activated", "Held"],
    by_a_stop_of_the_system: ["StepStarted", "StepSucceeded", "Passivated"],
    by_a_loss_of_the_task: ["Activated", "StepStarted", "Activated"],
}


@pytest.mark.parametrize("close", LAST)
@pytest.mark.parametrize("behave", BEHAVIOURS)
def test_a_closed_context_raises_the_same_again_runs_nothing_and_writes_nothing(
    disk: Store, behave: Any, close: Any, caplog: pytest.LogCaptureFixture
) -> None:
    closing = Closing(disk, behave)
    close(closing)
    assert closing.raised
    assert all(error is closing.raised[0] for error in closing.raised)
    assert not isinstance(closing.raised[0], Exception)
    assert closing.ran == []
    assert kinds(disk)[-len(LAST[close]) :] == LAST[close]
    assert "could not be answered" not in caplog.text
    assert "crashed" not in caplog.text


# ------------------------------------------------------------------ failure and hold


def paying(disk: Store, **options: Any) -> tuple[Any, list[int]]:
    """Give an agent whose step fails at its first attempt, and the attempts that were made."""
    attempts: list[int] = []

    @step(name="pay")
    def pay(amount: int) -> tuple[str, int]:
        attempts.append(step_info().attempt)
        if len(attempts) == 1:
            raise ConnectionError("no answer")
        return "paid", amount

    @agent(**options)
    def flow() -> Any:
        return pay(20)

    return flow, attempts


def test_a_step_error_that_is_let_through_fails_the_task(disk: Store) -> None:
    flow, attempts = paying(disk)
    with pytest.raises(TaskFailedError) as caught:
        live(disk, flow)
    assert "step 1 pay: no answer" in str(caught.value)
    assert caught.value.fault.is_a(OSError)
    assert attempts == [1]
    with pytest.raises(TaskFailedError):
        live(disk, flow)
    assert attempts == [1]


def test_a_business_decision_fails_the_task_at_once(disk: Store) -> None:
    @agent
    def flow() -> None:
        raise FailTask("no funds")

    with pytest.raises(TaskFailedError, match="task t failed: FailTask: no funds"):
        live(disk, flow)
    assert kinds(disk) == ["Created", "Activated", "Failed"]


def test_on_failure_hold_parks_the_task_with_what_leads_out(disk: Store) -> None:
    flow, attempts = paying(disk, on_failure="hold")
    error = held(disk, flow)
    assert error.reason == "failed step"
    for text in ("failed: step 1 pay: ConnectionError: no answer", "perdure resolve t 1 --value JSON", "--rerun"):
        assert text in str(error)
    assert attempts == [1]
    assert kinds(disk)[-2:] == ["StepFailed", "Held"]


def decide(disk: Store, **decision: Any) -> None:
    with AgentSystem(disk, run=False) as client:
        client.task("t").resolve("1", by="ann", **decision)


def test_a_failed_step_that_is_run_again_may_succeed(disk: Store) -> None:
    flow, attempts = paying(disk, on_failure="hold")
    held(disk, flow)
    decide(disk, rerun=True)
    assert live(disk, flow) == ("paid", 20)
    assert attempts == [1, 2]
    starts = [event for event in log(disk) if isinstance(event, StepStarted)]
    assert [start.doubt for start in starts] == ["", "rerun by ann"]


def test_a_value_given_by_a_person_is_converted_by_the_return_annotation(disk: Store) -> None:
    flow, attempts = paying(disk, on_failure="hold")
    held(disk, flow)
    decide(disk, value=["by hand", 20])
    assert live(disk, flow) == ("by hand", 20)
    assert attempts == [1]


def test_a_value_given_by_a_person_that_does_not_fit_is_held_again_and_may_be_given_anew(disk: Store) -> None:
    flow, attempts = paying(disk, on_failure="hold")
    held(disk, flow)
    decide(disk, value="by hand")
    error = held(disk, flow)
    assert error.reason == "in doubt"
    assert "the value given by ann does not fit: expected tuple[str, int], found 'by hand' (str)" in str(error)
    decide(disk, value=["by hand", 20])
    assert live(disk, flow) == ("by hand", 20)
    assert attempts == [1]


def test_a_failed_step_that_a_person_gives_up_fails_its_task(disk: Store) -> None:
    flow, attempts = paying(disk, on_failure="hold")
    held(disk, flow)
    decide(disk, fail=True)
    with pytest.raises(TaskFailedError, match="given up by ann"):
        live(disk, flow)
    assert attempts == [1]


def test_an_agent_may_go_on_after_a_step_that_a_person_gave_up(disk: Store) -> None:
    @step(name="pay", on_doubt="hold")
    def pay() -> str:
        return "paid"

    @agent
    def flow() -> str:
        try:
            return pay()
        except StepError as error:
            return str(error)

    die(disk, flow)
    held(disk, flow)
    decide(disk, fail=True)
    assert live(disk, flow) == "step 1 pay failed: GivenUp: given up by ann"


# ------------------------------------------------------------------ doubt


class Mailing:
    """A mail that was sent, but not recorded: its process died in the gap."""

    def __init__(self, on_doubt: Any) -> None:
        self.sent: list[str] = []
        self.infos: list[StepInfo] = []
        self.asked: list[Doubt] = []

        def ask(doubt: Doubt) -> Any:
            self.asked.append(doubt)
            return on_doubt(doubt)

        @step(name="send", on_doubt=ask if callable(on_doubt) else on_doubt, label="mail to {to}")
        def send(to: str, *, body: str = "b") -> str:
            self.infos.append(step_info())
            self.sent.append(to)
            return f"sent {len(self.sent)}"

        @agent
        def flow() -> str:
            return send("ann", body="hello")

        self.flow = flow


def test_in_doubt_a_step_is_run_again_with_the_same_key_by_default(disk: Store) -> None:
    mailing = Mailing("rerun")
    die(disk, mailing.flow)
    assert live(disk, mailing.flow) == "sent 2"
    assert [info.attempt for info in mailing.infos] == [1, 2]
    assert len({info.idempotency_key for info in mailing.infos}) == 1
    starts = [event for event in log(disk) if isinstance(event, StepStarted)]
    assert [(start.attempt, start.doubt, start.label) for start in starts] == [
        (1, "", "mail to ann"),
        (2, "rerun", "mail to ann"),
    ]


def test_in_doubt_a_step_may_be_held_for_a_person(disk: Store) -> None:
    mailing = Mailing("hold")
    die(disk, mailing.flow)
    error = held(disk, mailing.flow)
    assert error.reason == "in doubt"
    key = mailing.infos[0].idempotency_key
    for text in (
        'in doubt: step 1 send "mail to ann", attempt 1 began ',
        f"it may or may not have happened; idempotency key {key}",
        "perdure resolve t 1 --value JSON",
        "perdure resolve t 1 --rerun",
        "perdure resolve t 1 --fail",
    ):
        assert text in str(error)
    decide(disk, value="sent by hand")
    assert live(disk, mailing.flow) == "sent by hand"
    assert mailing.sent == ["ann"]


def test_a_function_that_knows_it_happened_gives_its_value(disk: Store) -> None:
    mailing = Mailing(lambda doubt: Happened(f"arrived as {doubt.idempotency_key}"))
    die(disk, mailing.flow)
    key = mailing.infos[0].idempotency_key
    assert live(disk, mailing.flow) == f"arrived as {key}"
    assert mailing.sent == ["ann"]
    (doubt,) = mailing.asked
    started = next(event for event in log(disk) if isinstance(event, StepStarted))
    assert doubt == Doubt("t", "1", "send", 1, started.timestamp, key, ("ann",), {"body": "hello"})
    (outcome,) = (event for event in log(disk) if isinstance(event, StepSucceeded))
    assert (outcome.source, outcome.attempt) == ("on_doubt", 1)


def test_a_function_that_knows_it_did_not_happen_has_it_run_again(disk: Store) -> None:
    mailing = Mailing(lambda doubt: NotHappened())
    die(disk, mailing.flow)
    assert live(disk, mailing.flow) == "sent 2"
    assert [info.attempt for info in mailing.infos] == [1, 2]
    starts = [event for event in log(disk) if isinstance(event, StepStarted)]
    assert [start.doubt for start in starts] == ["", "not happened"]


def raises(error: BaseException) -> Callable[[Doubt], Any]:
    def on_doubt(doubt: Doubt) -> Any:
        raise error

    return on_doubt


@step(name="contexts: elsewhere")
def elsewhere() -> None: ...


@pytest.mark.parametrize(
    ("on_doubt", "answer"),
    [
        (lambda doubt: Unknown("the server is away"), "ask does not know: the server is away"),
        (lambda doubt: Unknown(), "ask does not know"),
        (raises(ConnectionError("no answer")), "ask could not tell: ConnectionError: no answer"),
        (raises(SystemExit(1)), "ask could not tell: SystemExit: 1"),
        (lambda doubt: None, "ask answered NoneType, not one of Happened, NotHappened, Unknown"),
        (lambda doubt: True, "ask answered bool, not one of Happened, NotHappened, Unknown"),
        (lambda doubt: Happened, "ask answered type, not one of Happened, NotHappened, Unknown"),
        (lambda doubt: Happened({1}), "ask could not tell: UnstorableValueError: what it returned cannot be stored"),
        (lambda doubt: elsewhere(), "ask could not tell: NestedStepError: "),
    ],
)
def test_a_function_that_cannot_tell_holds_and_nothing_runs(disk: Store, on_doubt: Any, answer: str) -> None:
    mailing = Mailing(on_doubt)
    die(disk, mailing.flow)
    error = held(disk, mailing.flow)
    assert error.reason == "in doubt"
    assert answer in str(error)
    assert (mailing.sent, len(mailing.asked)) == (["ann"], 1)
    decide(disk, rerun=True)
    assert live(disk, mailing.flow) == "sent 2"
    assert len(mailing.asked) == 1, "a person has decided: nobody is asked again"


def test_a_function_is_asked_again_when_its_answer_was_not_recorded(disk: Store) -> None:
    mailing = Mailing(lambda doubt: Happened("arrived"))
    die(disk, mailing.flow)
    die(disk, mailing.flow, at="doubt.after")
    assert live(disk, mailing.flow) == "arrived"
    assert (mailing.sent, len(mailing.asked)) == (["ann"], 2)


def test_an_idempotent_step_writes_no_start_and_is_simply_entered_again(disk: Store) -> None:
    infos: list[StepInfo] = []

    @step(idempotent=True)
    def look() -> int:
        infos.append(step_info())
        return len(infos)

    @agent
    def flow() -> list[int]:
        return [look(), look()]

    die(disk, flow, nth=2)
    assert live(disk, flow) == [1, 3]
    assert "StepStarted" not in kinds(disk)
    assert kinds(disk).count("StepSucceeded") == 2
    assert [(info.path, info.attempt) for info in infos] == [("1", 1), ("2", 1), ("2", 1)]
    assert infos[1].idempotency_key == infos[2].idempotency_key != infos[0].idempotency_key


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
    patience = 5.0
    crashed: list[int] = []
    with AgentSystem(disk, strikes=2) as system:

        @agent
        def other() -> int:
            return 1

        @step
        def ask() -> int:
            return system.spawn(other, id="other").result(patience)

        @agent
        def flow() -> int:
            if not crashed:
                crashed.append(1)
                raise ValueError("a bug, once")
            return ask()

        assert system.spawn(flow, id="t").result(PATIENCE) == 1
