"""A closed context: whatever an agent does then, nothing runs and nothing is written."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from actors import (
    AgentSystem,
    FailTask,
    Fault,
    Happened,
    StepError,
    StoreError,
    Suspended,
    SystemClosedError,
    agent,
    open_store,
    step,
    step_info,
)
from actors.appender import Appender
from actors.task_log import TaskLog
from actors.testing import CrashPlan, SimulatedCrash
from domain.events import Passivated, StepStarted
from stores import Store
from stores.crash import CrashingStore, FaultPlan
from tests.lives import PATIENCE, die, kinds, live, log, wait_for


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


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


@pytest.mark.parametrize("close", LAST)
def test_a_nested_agent_cannot_hide_that_the_context_is_closed(disk: Store, close: Any) -> None:
    got: list[object] = []

    def behave(stop: Act, later: Act) -> object:
        hides = agent(name="contexts: hides")(lambda_to_function(has_a_bare_except, stop, later))
        for _ in range(2):
            try:
                got.append(hides())
            except BaseException as error:
                got.append(error)
        return "fine"

    closing = Closing(disk, behave)
    close(closing)
    assert len(got) >= 2
    assert got[-1] is got[-2] is closing.raised[0]


def test_an_append_that_is_refused_closes_the_context_and_the_task_starts_again(disk: Store) -> None:
    plan = FaultPlan(0, "append.before", StoreError("refused, once"))
    ran: list[int] = []
    raised: list[BaseException] = []

    @step
    def send() -> None:
        ran.append(1)

    @agent
    def flow() -> str:
        plan.times += not raised
        try:
            send()
        except BaseException as error:
            raised.append(error)
        return "fine" if raised and not ran else "done"

    assert live(CrashingStore(disk, plan), flow) == "done"
    (error,) = raised
    assert isinstance(error, Suspended)
    assert isinstance(error.__cause__, StoreError)
    assert ran == [1]
    assert kinds(disk) == ["Created", "Activated", "Activated", "StepStarted", "StepSucceeded", "Completed"]


def test_a_body_that_outlives_the_grace_is_given_up_and_its_late_result_is_not_stored(disk: Store) -> None:
    entered, go_on, left = threading.Event(), threading.Event(), threading.Event()
    attempts: list[int] = []

    @step(name="slow")
    def slow() -> str:
        attempts.append(step_info().attempt)
        entered.set()
        assert go_on.wait(PATIENCE)
        return f"attempt {attempts[-1]}"

    @agent
    def flow() -> str:
        try:
            return slow()
        finally:
            left.set()

    with AgentSystem(disk, grace=0) as system:
        system.spawn(flow, id="t")
        assert entered.wait(PATIENCE)
    stopped = log(disk)[-1]
    assert isinstance(stopped, Passivated)
    assert stopped.cut_off == ["1"]
    go_on.set()
    assert left.wait(PATIENCE)
    assert live(disk, flow) == "attempt 2"
    assert attempts == [1, 2]
    assert kinds(disk).count("StepSucceeded") == 1


@pytest.mark.parametrize("colour", ["parent", "async_parent"])
def test_a_body_that_waits_for_another_task_while_its_system_closes_is_cut_off_and_has_not_failed(
    disk: Store, colour: str
) -> None:
    """A deploy is no reason for a task to fail: its next worker waits again."""
    waiting = Waiting()
    with AgentSystem(disk, grace=PATIENCE) as waiting.system:
        waiting.system.spawn(getattr(waiting, colour), id="t")
        assert waiting.entered.wait(PATIENCE)
        waiting.finish_after(waiting.system)
    stopped = log(disk)[-1]
    assert isinstance(stopped, Passivated)
    assert stopped.cut_off == ["1"]
    with AgentSystem(disk) as waiting.system:
        assert waiting.system.task("t").result(PATIENCE) == "of the child"
    assert kinds(disk)[2:] == ["StepStarted", "Passivated", "Activated", "StepStarted", "StepSucceeded", "Completed"]


def test_an_answer_that_waits_for_another_task_while_its_system_closes_is_asked_for_again(disk: Store) -> None:
    waiting = Waiting()
    die(disk, waiting.asking_parent, at="body.before")
    with AgentSystem(disk, grace=PATIENCE) as waiting.system:
        assert waiting.entered.wait(PATIENCE)
        waiting.finish_after(waiting.system)
    assert kinds(disk)[3:] == ["Activated", "Passivated"]
    with AgentSystem(disk) as waiting.system:
        assert waiting.system.task("t").result(PATIENCE) == "of the child"
    assert kinds(disk)[5:] == ["Activated", "StepSucceeded", "Completed"]


class Waiting:
    """Agents of which a body, or an `on_doubt` function, waits for a child that ends only when its system closes."""

    def __init__(self) -> None:
        self.system: AgentSystem | None = None
        self.entered, self.go_on = threading.Event(), threading.Event()

        @step(name="sits")
        def sits() -> str:
            self.entered.set()
            assert self.go_on.wait(PATIENCE)
            return "of the child"

        @agent(name="waiting: child")
        def child() -> str:
            return sits()

        def wait(*_: object) -> str:
            assert self.system is not None
            return self.system.spawn(child, id="child").result(PATIENCE)

        @step(name="waits")
        async def waits_async() -> str:
            assert self.system is not None
            task = await self.system.spawn_async(child, id="child")
            return await task.result_async(PATIENCE)

        @agent(name="waiting: async parent")
        async def async_parent() -> str:
            return await waits_async()

        waits = step(name="waits")(lambda_to_function(wait))
        asks = step(name="asks", on_doubt=lambda doubt: Happened(wait()))(lambda_to_function(wait))
        self.async_parent = async_parent
        self.parent = agent(name="waiting: parent")(lambda_to_function(waits))
        self.asking_parent = agent(name="waiting: asking parent")(lambda_to_function(asks))

    def finish_after(self, system: AgentSystem) -> None:
        """Let the child's step end as soon as the task `t` was stopped."""

        def finish() -> None:
            wait_for(lambda: system._tree is not None and "t" not in system._tree.directory.hosted())
            self.go_on.set()

        threading.Thread(target=finish).start()


def test_a_step_that_is_stopped_for_is_not_started(disk: Store) -> None:
    closing = Closing(disk, swallows)
    by_a_stop_of_the_system(closing)
    assert [event.name for event in log(disk) if isinstance(event, StepStarted)] == ["closes the system"]
    closing.stop = "stop"
    closing.forget()
    die(disk, closing.flow, at="append.before")
    assert closing.ran == []


def test_a_close_while_another_thread_is_opening_closes_what_is_opened_then() -> None:
    opening, go_on = threading.Event(), threading.Event()

    class Slow(AgentSystem):
        def _open(self) -> Any:
            opening.set()
            assert go_on.wait(PATIENCE)
            return super()._open()

    before = threading.active_count()
    system = Slow("memory:")
    opener = threading.Thread(target=system.__enter__)
    opener.start()
    assert opening.wait(PATIENCE)
    closer = threading.Thread(target=system.close)
    closer.start()
    go_on.set()
    opener.join(PATIENCE)
    closer.join(PATIENCE)
    with pytest.raises(SystemClosedError):
        system.tasks()
    for thread in threading.enumerate():
        if thread.name.startswith(("Supervisor", "Lease", "Recovery")):
            thread.join(PATIENCE)
    assert threading.active_count() <= before
