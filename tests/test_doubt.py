"""Failed steps and steps in doubt: what the log says, what a function knows, what a person decides."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from actors import (
    Doubt,
    FailTask,
    Happened,
    NotHappened,
    StepError,
    StepInfo,
    TaskFailedError,
    Unknown,
    agent,
    open_store,
    step,
    step_info,
)
from domain.events import StepStarted, StepSucceeded
from stores import Store
from tests.lives import decide, die, held, kinds, live, log


@pytest.fixture
def disk() -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:") as store:
        yield store


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
        (lambda doubt: Happened(object()), "ask could not tell: UnstorableValueError: value is of the type object"),
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


def test_a_rerun_with_other_arguments_would_make_the_key_a_lie(disk: Store) -> None:
    sent: list[tuple[str, str]] = []
    to = "ann"

    @step(name="send", on_doubt="hold")
    def send(to: str) -> None:
        sent.append((to, step_info().idempotency_key))

    @agent
    def flow() -> None:
        send(to)

    die(disk, flow)
    held(disk, flow)
    to = "bob"
    decide(disk, rerun=True)
    assert held(disk, flow).reason == "differs"
    assert [name for name, _ in sent] == ["ann"]
    to = "ann"
    live(disk, flow)
    assert sent == [sent[0]] * 2


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
