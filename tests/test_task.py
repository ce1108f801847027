"""The aggregate: what it decides, what it folds, what it refuses."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from domain.errors import OwnershipLost, ResolveError, TaskEndedError, UnreadableTaskError
from domain.events import (
    Activated,
    Completed,
    Created,
    Failed,
    Held,
    Passivated,
    Released,
    Restarted,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
    revive,
)
from domain.faults import Fault
from domain.fold import fold, preview
from domain.journal import join
from domain.record import Call
from domain.retry import restart_delay
from domain.state import DIFFERS, FAILED_STEP, IN_DOUBT, STRIKES, UNREADABLE, idempotency_key
from domain.task import AgentTask

BUG = Fault(("ValueError", "Exception", "BaseException"), "no such page")
LATE = Fault(("TimeoutError", "OSError", "Exception", "BaseException"), "no answer")
OF_ITS_STEPS = {"steps", "latest", "scopes", "keyed", "places"}
PAY = Call("1", "step", "pay", "d1")
OUTCOMES = StepSucceeded | StepFailed
ENDINGS = Completed | Failed


def scalars(task: AgentTask) -> dict[str, Any]:
    return {name: value for name, value in vars(task).items() if name not in OF_ITS_STEPS}


def state(task: AgentTask) -> dict[str, Any]:
    """Tell all that a task is, its steps included, as something that `==` compares."""
    told = vars(task) | {
        "steps": [{name: getattr(record, name) for name in record.__slots__} for record in task.steps.values()]
    }
    return told | {"latest": task.latest.path if task.latest else None}


class Kept:
    """A task with its log: decided, then folded, as its appender does; and previewed, as its index row is."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[TaskEvent] = [Created("t", 1, self.now, "birth", "agent", [[], {}], "", {}, {})]
        task = fold(None, self.events)
        assert task is not None
        self.task = task

    def write(self, events: list[TaskEvent]) -> list[TaskEvent]:
        before = state(self.task)
        after = preview(self.task, events)
        assert state(self.task) == before, "a preview changes nothing"
        fold(self.task, events)
        assert scalars(after) == scalars(self.task), "an index row is that of the task it stands for"
        assert [event.originator_version for event in events] == list(
            range(len(self.events) + 1, len(self.events) + 1 + len(events))
        )
        self.events += events
        self.now += 1.0
        return events

    def activate(self, limit: int | None = 3, *, release: bool = False) -> list[TaskEvent]:
        return self.write(self.task.activate(self.now, worker="w", token="t", limit=limit, release=release))

    def start(self, path: str = "1", name: str = "pay", doubt: str = "") -> list[TaskEvent]:
        task = self.task
        return self.write(
            task.start_step(task.activation, self.now, Call(path, "step", name, "d" + path), "label", doubt)
        )

    def finish(self, path: str = "1", name: str = "pay", **outcome: Any) -> list[TaskEvent]:
        task = self.task
        attempt = task.steps[path].attempt if path in task.steps else 1
        if "error" in outcome:
            outcome["error"] = outcome["error"].to_data()
        return self.write(
            task.finish_step(task.activation, self.now, Call(path, "step", name, "d" + path), attempt, **outcome)
        )

    def crash(self, limit: int | None = 3, jitter: float = 0.0) -> list[TaskEvent]:
        task = self.task
        return self.write(task.restart(task.activation, self.now, BUG, where="f.py:7", jitter=jitter, limit=limit))

    def passivate(self, due: float | None = None) -> list[TaskEvent]:
        return self.write(self.task.passivate(self.task.activation, self.now, [], due=due))

    def hold(self, reason: str, path: str = "1") -> list[TaskEvent]:
        return self.write(self.task.hold(self.task.activation, self.now, reason, path, {"message": "why"}))

    def complete(self, value: Any = None) -> list[TaskEvent]:
        return self.write(self.task.complete(self.task.activation, self.now, value))

    def fail(self) -> list[TaskEvent]:
        return self.write(self.task.fail(self.task.activation, self.now, BUG))

    def release(self) -> list[TaskEvent]:
        return self.write(self.task.release(self.now, "ann"))

    def resolve(self, decision: str, path: str = "1", value: Any = None) -> list[TaskEvent]:
        return self.write(self.task.resolve(self.now, path, decision, value, "ann"))


def running() -> Kept:
    kept = Kept()
    kept.activate()
    return kept


def kinds(events: list[TaskEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


# ------------------------------------------------------------------ life


def test_a_new_task_is_queued_and_due_at_once() -> None:
    task = Kept().task
    assert (task.status, task.due, task.version, task.activation, task.strikes) == ("queued", 1000.0, 1, 0, 0)


def test_a_claim_makes_it_running_and_numbers_the_activation() -> None:
    kept = running()
    assert (kept.task.status, kept.task.worker, kept.task.activation) == ("running", "w", 1)
    kept.activate()
    assert kept.task.activation == 2


def test_a_stop_on_purpose_makes_it_queued_and_due_again() -> None:
    kept = running()
    kept.passivate()
    assert (kept.task.status, kept.task.worker, kept.task.due) == ("queued", None, kept.task.updated)


def test_a_task_that_does_nothing_but_wait_is_waiting_and_due_when_its_wait_is_over() -> None:
    kept = running()
    (event,) = kept.passivate(due=5000.0)
    assert isinstance(event, Passivated)
    assert (kept.task.status, kept.task.worker, kept.task.due) == ("waiting", None, 5000.0)
    assert kept.task.strikes_if_lost == 0
    kept.activate()
    assert (kept.task.status, kept.task.worker, kept.task.due) == ("running", "w", kept.events[-1].timestamp)
    kept.passivate()
    assert (kept.task.status, kept.task.due) == ("queued", kept.task.updated)


def test_a_wait_that_is_over_is_forgotten() -> None:
    kept = running()
    kept.passivate(due=5000.0)
    kept.activate()
    kept.crash()
    assert kept.task.status == "queued"


def test_a_task_that_waits_is_fenced_like_any_other() -> None:
    kept = running()
    kept.passivate(due=5000.0)
    with pytest.raises(OwnershipLost, match=r"activation 1 is over \(status waiting, newest activation 1\)"):
        kept.start()
    assert kept.task.passivate(1, kept.now, [], due=6000.0) == []
    with pytest.raises(ResolveError, match="task t is not held: it is waiting"):
        kept.release()


def test_a_stop_in_a_log_of_the_first_schema_waits_for_nothing() -> None:
    kept = running()
    kept.events.append(revive(Passivated.TOPIC, "t", 3, [1, 1001.0, 1, []]))
    again = fold(None, kept.events)
    assert again is not None
    assert (again.status, again.due) == ("queued", 1001.0)


def test_a_restart_is_due_after_its_delay_and_a_hold_never() -> None:
    kept = running()
    (event,) = kept.crash(jitter=1.0)
    assert isinstance(event, Restarted)
    assert kept.task.due == event.due == event.timestamp + restart_delay(1, 1.0)
    assert kept.task.status == "queued"
    kept.activate()
    kept.hold(DIFFERS)
    assert (kept.task.status, kept.task.due, kept.task.worker) == ("held", None, None)


@pytest.mark.parametrize(("end", "status"), [(Kept.complete, "completed"), (Kept.fail, "failed")])
def test_an_ending_is_the_last_event(end: Any, status: str) -> None:
    kept = running()
    kept.start()
    end(kept)
    task = kept.task
    assert (task.status, task.due, task.worker) == (status, None, None)
    assert task.activate(kept.now, worker="w", token="t", limit=3, release=True) == []
    assert task.passivate(task.activation, kept.now, []) == []
    for write in (kept.start, kept.finish, kept.crash, kept.complete, kept.fail, lambda: kept.hold(DIFFERS)):
        with pytest.raises(OwnershipLost, match=f"task t: ownership lost: activation 1 is over .status {status}"):
            write()
    for decide in (kept.release, lambda: kept.resolve("rerun")):
        with pytest.raises(TaskEndedError, match=f"task t has ended: {status}") as caught:
            decide()
        assert (caught.value.task_id, caught.value.status) == ("t", status)
    assert kinds(kept.events)[-1] == status.capitalize()


def test_a_failure_lists_the_steps_that_are_in_doubt() -> None:
    kept = running()
    kept.start("1")
    kept.finish("1", value=1)
    kept.start("2")
    (event,) = kept.fail()
    assert isinstance(event, Failed)
    assert event.doubts == ["2"]
    assert Fault.from_data(event.error) == BUG


# ------------------------------------------------------------------ the fence


@pytest.mark.parametrize("over", [Kept.activate, Kept.passivate, Kept.crash, lambda kept: kept.hold(DIFFERS)])
def test_only_the_newest_activation_may_write(over: Any) -> None:
    kept = running()
    over(kept)
    with pytest.raises(OwnershipLost, match="activation 1 is over"):
        kept.task.guard(1)
    version = kept.task.version
    assert kept.task.passivate(1, kept.now, []) == []
    assert kept.task.version == version


def test_an_activation_that_is_not_born_yet_may_not_write_either() -> None:
    for number in (0, 1, 2):
        with pytest.raises(OwnershipLost):
            Kept().task.guard(number)
    running().task.guard(1)
    with pytest.raises(OwnershipLost):
        running().task.guard(2)


def test_outsiders_need_no_activation() -> None:
    kept = running()
    kept.start()
    kept.hold(IN_DOUBT)
    kept.resolve("rerun")
    assert kept.task.status == "queued"


# ------------------------------------------------------------------ steps


def test_each_start_is_the_next_attempt() -> None:
    kept = running()
    for attempt in (1, 2, 3):
        (event,) = kept.start()
        assert isinstance(event, StepStarted)
        assert event.attempt == attempt == kept.task.steps["1"].attempt
    assert kept.task.doubts == [kept.task.steps["1"]]


def test_a_started_step_is_in_doubt_until_its_outcome() -> None:
    kept = running()
    kept.start()
    record = kept.task.steps["1"]
    assert record.in_doubt
    kept.finish(value={"a": 1})
    assert not record.in_doubt
    assert isinstance(record.outcome, StepSucceeded)
    assert record.outcome.value == {"a": 1}
    assert kept.task.doubts == []


def test_an_idempotent_step_has_an_outcome_without_a_start() -> None:
    kept = running()
    kept.finish(value=7)
    record = kept.task.steps["1"]
    assert (record.attempt, record.label, record.in_doubt) == (1, "", False)
    assert kept.task.latest is record


@pytest.mark.parametrize("first", [{"value": 1}, {"error": BUG}])
def test_a_step_never_gets_a_second_outcome(first: dict[str, Any]) -> None:
    kept = running()
    kept.start()
    kept.finish(**first)
    for second in ({"value": 2}, {"error": BUG}):
        with pytest.raises(RuntimeError, match="task t: step 1 pay has its outcome already"):
            kept.finish(**second)


def test_where_a_task_is_follows_its_latest_step() -> None:
    kept = running()
    kept.start("1", "draft")
    assert kept.task.place == "step 1 draft"
    kept.finish("1", "draft")
    kept.finish("2", "send")
    assert kept.task.place == "step 2 send"


def test_scopes_know_their_highest_number() -> None:
    kept = running()
    for path in ("1", "2/1", "2/2", "4/1/1"):
        kept.finish(path)
    assert kept.task.scopes == {"": 4, "2": 2, "4": 1, "4/1": 1}


def test_branches_that_have_a_key_know_their_scope_and_take_no_number_of_it() -> None:
    kept = running()
    for path in ("~k/1", "~k/2", "2/~a%2Fb#2/1/1", "~k/~l/1"):
        kept.finish(path)
    assert kept.task.keyed == {"~k": "", "2/~a%2Fb#2": "2", "~k/~l": "~k"}
    assert kept.task.scopes == {"": 2, "~k": 2, "2": 0, "2/~a%2Fb#2": 1, "2/~a%2Fb#2/1": 1, "~k/~l": 1}


def test_the_key_is_another_for_each_birth_path_and_generation() -> None:
    keys = [idempotency_key(*facts) for facts in (("b", "1"), ("b", "2"), ("c", "1"), ("b", "1/1"), ("b", "1", 1))]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 27 and key.isascii() and key.isprintable() for key in keys)


# ------------------------------------------------------------------ retries


def test_an_attempt_that_is_to_be_retried_is_no_outcome_and_no_doubt() -> None:
    kept = running()
    kept.start()
    (event,) = kept.finish(error=LATE, retry_at=1060.0)
    record = kept.task.steps["1"]
    assert (record.outcome, record.in_doubt, record.retry_at, record.failures) == (None, False, 1060.0, (event,))
    assert kept.task.doubts == []
    assert kept.task.place == "step 1 pay, attempt 1 failed, to be tried again"
    assert kept.task.status == "running"


def test_each_error_is_kept_until_the_step_has_its_outcome_and_after_it() -> None:
    kept = running()
    for error in (LATE, BUG):
        kept.start()
        kept.finish(error=error, retry_at=kept.now + 1)
    kept.start()
    record = kept.task.steps["1"]
    assert (record.attempt, record.retry_at, record.in_doubt) == (3, None, True)
    kept.finish(value="paid")
    assert isinstance(record.outcome, StepSucceeded)
    assert record.errors == (LATE, BUG)


def test_the_last_failure_is_the_outcome_and_the_others_are_told_with_it() -> None:
    kept = running()
    kept.start()
    kept.finish(error=LATE, retry_at=1060.0)
    kept.start()
    (event,) = kept.finish(error=BUG)
    record = kept.task.steps["1"]
    assert record.outcome is event
    assert record.errors == (LATE, BUG)
    assert (record.attempt, record.retry_at) == (2, None)
    assert kept.task.place == "step 1 pay"
    with pytest.raises(RuntimeError, match="has its outcome already"):
        kept.finish(error=BUG, retry_at=1.0)


def test_attempts_that_a_death_cut_short_have_a_number_and_no_error() -> None:
    kept = running()
    kept.start()
    kept.activate()
    kept.start()
    kept.finish(error=LATE, retry_at=1060.0)
    record = kept.task.steps["1"]
    assert (record.attempt, len(record.failures)) == (2, 1)


def test_a_limit_over_all_attempts_is_counted_from_the_start_of_the_first() -> None:
    kept = running()
    (first,) = kept.start()
    kept.finish(error=LATE, retry_at=1060.0)
    kept.now = 1060.0
    (second,) = kept.start()
    record = kept.task.steps["1"]
    assert (record.began, record.started) == (first.timestamp, second.timestamp)


def test_an_idempotent_step_is_retried_without_a_start() -> None:
    kept = running()
    kept.write(kept.task.finish_step(1, kept.now, PAY, 1, error=LATE.to_data(), retry_at=1060.0))
    record = kept.task.steps["1"]
    assert (record.attempt, record.in_doubt, record.began) == (1, False, 1001.0)
    kept.write(kept.task.finish_step(1, kept.now, PAY, 2, value=7))
    assert (record.attempt, record.retry_at, record.errors) == (2, None, (LATE,))


def test_a_failed_attempt_ends_a_row_of_strikes_as_an_outcome_does() -> None:
    kept = Kept()
    for _ in range(3):
        kept.activate(limit=None)
    kept.start()
    kept.finish(error=LATE, retry_at=1060.0)
    assert (kept.task.strikes, kept.task.deaths, kept.task.strikes_if_lost) == (0, 0, 1)


def test_a_task_that_fails_lists_no_step_that_waits_for_its_retry_as_in_doubt() -> None:
    kept = running()
    kept.start("1/1")
    kept.start("1/2")
    kept.finish("1/1", error=LATE, retry_at=1060.0)
    (event,) = kept.fail()
    assert isinstance(event, Failed)
    assert event.doubts == ["1/2"]


@pytest.mark.parametrize("retry_at", [None, 1060.0])
def test_what_a_person_has_run_again_begins_anew(retry_at: float | None) -> None:
    kept = running()
    kept.start()
    kept.finish(error=LATE, retry_at=1060.0)
    kept.start()
    if retry_at is None:
        kept.finish(error=BUG)
    kept.hold(FAILED_STEP if retry_at is None else IN_DOUBT)
    (released,) = kept.resolve("rerun")
    record = kept.task.steps["1"]
    assert (record.failures, record.retry_at, record.outcome) == ((), None, None)
    assert (record.settled, record.began, record.attempt) == (released, released.timestamp, 2)
    kept.activate()
    (start,) = kept.start()
    assert isinstance(start, StepStarted)
    assert start.attempt == 3
    kept.finish(error=BUG, retry_at=5000.0)
    assert (record.errors, record.began) == ((BUG,), released.timestamp)


def test_a_copy_is_folded_on_and_what_it_was_copied_from_stays() -> None:
    kept = running()
    kept.start()
    before = state(kept.task)
    copy = kept.task.copy()
    fold(copy, copy.finish_step(1, 1060.0, PAY, 1, error=LATE.to_data(), retry_at=1070.0))
    fold(copy, copy.start_step(1, 1070.0, Call("~k/1", "step", "pay", "other"), "", ""))
    assert state(kept.task) == before
    assert copy.steps["1"].errors == (LATE,)
    assert copy.keyed == {"~k": ""}
    kept.finish(value=1)
    assert copy.steps["1"].outcome is None


# ------------------------------------------------------------------ strikes


MARKS: dict[str, Any] = {
    "a": Kept.activate,
    "crash": Kept.crash,
    "stop": Kept.passivate,
    "ok": lambda kept: kept.finish(str(kept.task.scopes.get("", 0) + 1), value=1),
    "error": lambda kept: kept.finish(str(kept.task.scopes.get("", 0) + 1), error=BUG),
    "retry": lambda kept: kept.finish(str(kept.task.scopes.get("", 0) + 1), error=BUG, retry_at=kept.now + 60),
    "wait": lambda kept: kept.passivate(due=kept.now + 60),
    "start": lambda kept: kept.start(str(kept.task.scopes.get("", 0) + 1)),
    "held": lambda kept: kept.hold(DIFFERS),
    "release": Kept.release,
}


@pytest.mark.parametrize(
    ("life", "strikes"),
    [
        ("", 0),
        ("a", 1),
        ("a a", 2),
        ("a start", 1),
        ("a start a start", 2),
        ("a crash", 1),
        ("a crash a", 2),
        ("a crash a crash", 2),
        ("a stop", 0),
        ("a stop a stop a stop a stop", 0),
        ("a a stop", 1),
        ("a crash a stop a", 2),
        ("a ok", 1),
        ("a ok crash", 1),
        ("a a ok", 1),
        ("a a error", 1),
        ("a a retry", 1),
        ("a a retry wait", 0),
        ("a wait a wait a wait a wait", 0),
        ("a a wait a", 2),
        ("a crash a ok a", 2),
        ("a crash a ok stop", 0),
        ("a crash a held", 1),
        ("a crash a held release", 0),
        ("a crash a held release a", 1),
    ],
)
def test_strikes_are_the_activations_since_the_last_outcome_that_crashed_or_left_no_mark(
    life: str, strikes: int
) -> None:
    kept = Kept()
    for mark in life.split():
        MARKS[mark](kept)
    assert kept.task.strikes_if_lost == strikes


def test_a_poisonous_step_is_entered_three_times_and_never_again() -> None:
    kept, bodies = Kept(), 0
    for _ in range(6):  # each start of the process: claim, enter the body, die in it
        events = kept.activate(limit=3)
        if kinds(events) == ["Activated"]:
            kept.start()
            bodies += 1
    assert bodies == 3
    assert kinds(kept.events) == ["Created", *["Activated", "StepStarted"] * 3, "Activated", "Held"]
    held = kept.task.held
    assert held is not None
    assert (held.reason, held.path, held.details) == (
        STRIKES,
        "1",
        {"strikes": 3, "name": "pay", "label": "label", "in_doubt": True},
    )


def test_a_bug_is_restarted_twice_and_then_held_with_the_place_it_came_from() -> None:
    kept = Kept()
    delays = []
    for _ in range(2):
        kept.activate()
        (event,) = kept.crash()
        assert isinstance(event, Restarted)
        delays.append(round(event.due - event.timestamp, 6))
    kept.activate()
    (held,) = kept.crash()
    assert delays == [0.1, 0.2]
    assert isinstance(held, Held)
    assert (held.reason, held.path) == (STRIKES, "")
    assert held.details == {
        "strikes": 3,
        "error": BUG.to_data(),
        "where": "ValueError: no such page, at f.py:7",
    }


def test_without_a_limit_nothing_is_held_for_strikes() -> None:
    kept = Kept()
    for _ in range(50):
        assert kinds(kept.activate(limit=None)) == ["Activated"]
        assert kinds(kept.crash(limit=None)) == ["Restarted"]


def test_a_limit_of_one_holds_at_the_first_crash() -> None:
    kept = Kept()
    kept.activate(limit=1)
    assert kinds(kept.crash(limit=1)) == ["Held"]
    dead = Kept()
    dead.activate(limit=1)
    assert kinds(dead.activate(limit=1)) == ["Activated", "Held"]


# ------------------------------------------------------------------ holds


def test_a_held_task_is_not_claimed_unless_it_is_released_in_the_same_append() -> None:
    kept = running()
    kept.hold(DIFFERS)
    assert kept.activate() == []
    released, activated = kept.activate(release=True)
    assert isinstance(released, Released)
    assert isinstance(activated, Activated)
    assert (released.by, released.path) == ("worker w", "")
    assert (kept.task.status, kept.task.strikes_if_lost) == ("running", 1)


def test_a_release_by_a_worker_clears_the_strikes_before_they_are_counted() -> None:
    kept = running()
    kept.crash()
    kept.activate()
    kept.hold(DIFFERS)
    assert kept.task.strikes == 1
    assert kinds(kept.activate(limit=1, release=True)) == ["Released", "Activated"]


@pytest.mark.parametrize("reason", [IN_DOUBT, STRIKES, FAILED_STEP, UNREADABLE])
def test_a_hold_that_waits_for_a_person_is_released_by_no_worker(reason: str) -> None:
    kept = running()
    kept.hold(reason)
    assert kept.activate(release=True) == []


@pytest.mark.parametrize("reason", [DIFFERS, STRIKES])
def test_a_release_lets_it_go_on_with_no_strikes(reason: str) -> None:
    kept = running()
    kept.activate()
    kept.hold(reason)
    (event,) = kept.release()
    assert isinstance(event, Released)
    assert (event.by, event.decision, event.path) == ("ann", "release", "")
    assert (kept.task.status, kept.task.strikes, kept.task.due) == ("queued", 0, event.timestamp)


@pytest.mark.parametrize("reason", [IN_DOUBT, FAILED_STEP])
def test_a_step_in_question_has_to_be_decided_before_its_task_goes_on(reason: str) -> None:
    kept = running()
    kept.start()
    kept.hold(reason)
    with pytest.raises(ResolveError, match="step 1, which has to be decided first: perdure resolve t 1 ") as caught:
        kept.release()
    assert caught.value.task_id == "t"


@pytest.mark.parametrize("decide", [Kept.release, lambda kept: kept.resolve("rerun")])
@pytest.mark.parametrize("status", ["queued", "running"])
def test_there_is_nothing_to_decide_for_a_task_that_is_not_held(decide: Any, status: str) -> None:
    kept = Kept() if status == "queued" else running()
    with pytest.raises(ResolveError, match=f"task t is not held: it is {status}"):
        decide(kept)


def test_only_the_step_in_question_is_decided() -> None:
    kept = running()
    kept.start("1")
    kept.finish("1")
    kept.start("2")
    kept.hold(IN_DOUBT, "2")
    with pytest.raises(ResolveError, match=r"step 1 is not in question: it is held \(in doubt\), and step 2 waits"):
        kept.resolve("rerun", "1")
    other = running()
    other.hold(DIFFERS)
    with pytest.raises(ResolveError, match=r"it is held \(differs\), and no step waits for a decision"):
        other.resolve("rerun", "1")


def test_a_rerun_by_a_person_is_the_next_attempt_and_may_be_in_doubt_again() -> None:
    kept = running()
    kept.start()
    kept.hold(IN_DOUBT)
    kept.resolve("rerun")
    record = kept.task.steps["1"]
    assert not record.in_doubt
    assert record.outcome is None
    kept.activate()
    kept.start(doubt="rerun by ann")
    assert (record.attempt, record.in_doubt) == (2, True)


@pytest.mark.parametrize("decision", ["value", "fail"])
def test_a_word_of_a_person_is_the_outcome_and_stays_so(decision: str) -> None:
    kept = running()
    kept.start()
    kept.hold(IN_DOUBT)
    (event,) = kept.resolve(decision, value="txn_1")
    assert kept.task.steps["1"].outcome is event
    kept.activate()
    with pytest.raises(RuntimeError, match="has its outcome already"):
        kept.finish(value=1)


def test_a_failed_step_that_a_person_runs_again_may_succeed() -> None:
    kept = running()
    kept.start()
    kept.finish(error=BUG)
    kept.hold(FAILED_STEP)
    kept.resolve("rerun")
    kept.activate()
    kept.start()
    kept.finish(value=1)
    assert isinstance(kept.task.steps["1"].outcome, StepSucceeded)


# ------------------------------------------------------------------ fold


def test_a_log_with_a_gap_a_repeat_or_no_beginning_is_unreadable() -> None:
    kept = running()
    kept.start()
    created, activated, started = kept.events
    for log, version, expected in [
        ([created, started], 3, "version 2 is expected"),
        ([created, activated, activated], 2, "version 3 is expected"),
        ([created, created], 1, "version 2 is expected"),
        ([activated, started], 2, "task.created is expected"),
    ]:
        with pytest.raises(UnreadableTaskError, match=f"task t: version {version} .*{expected}") as caught:
            fold(None, log)
        assert (caught.value.task_id, caught.value.version) == ("t", version)


def test_folding_nothing_is_nothing() -> None:
    assert fold(None, []) is None


# ------------------------------------------------------------------ any life


def strikes_by_the_log(events: list[TaskEvent]) -> int:
    """Count as DESIGN §7 has it, from the activations; the open one, if any, counts as lost."""
    ended: list[bool] = []  # of each activation since the last outcome or release: was its end a strike?
    for event in events:
        if isinstance(event, Activated):
            ended.append(True)
        elif isinstance(event, OUTCOMES):
            ended = ended[-1:]
        elif isinstance(event, Released):
            ended = []
        elif isinstance(event, Passivated | Held | ENDINGS):
            ended[-1:] = [False]
    return sum(ended)


SCOPES = ["", "inner", "keyed", "inner keyed"]
waits = st.floats(0, 1e6)


class AnyLife(RuleBasedStateMachine):
    """Legal commands in any order: claims, deaths (a claim over a live activation), steps, holds, decisions, ends."""

    @initialize(limit=st.sampled_from([None, 1, 2, 3]))
    def spawn(self, limit: int | None) -> None:
        self.kept = Kept()
        self.limit = limit

    def is_running(self) -> bool:
        return self.kept.task.worker is not None

    def unfinished(self) -> list[str]:
        return [record.path for record in self.kept.task.steps.values() if record.outcome is None]

    def next_path(self, scope: str) -> str:
        scopes = self.kept.task.scopes
        number = scopes.get("", 0)
        inside = {"inner": str(number) if number else "", "keyed": "~k", "inner keyed": f"{number}/~k"}.get(scope, "")
        return join(inside, scopes.get(inside, 0) + 1)

    @rule(release=st.booleans())
    def claim(self, release: bool) -> None:
        task = self.kept.task
        status, number = task.status, task.activation
        for_code = task.held is not None and task.held.reason == DIFFERS
        events = self.kept.activate(self.limit, release=release)
        may = status in ("queued", "waiting", "running") or (for_code and release)
        assert bool(events) == may
        assert task.activation == number + may

    @precondition(is_running)
    @rule(scope=st.sampled_from(SCOPES))
    def start(self, scope: str) -> None:
        path = min(self.unfinished(), default=self.next_path(scope))
        self.kept.start(path)

    @precondition(is_running)
    @rule(ok=st.booleans(), scope=st.sampled_from(SCOPES), value=st.none() | st.integers(), wait=st.none() | waits)
    def finish(self, ok: bool, scope: str, value: Any, wait: float | None) -> None:
        path = min(self.unfinished(), default=self.next_path(scope))
        retry_at = None if wait is None else self.kept.now + wait
        self.kept.finish(path, **({"value": value} if ok else {"error": BUG, "retry_at": retry_at}))
        record = self.kept.task.steps[path]
        assert record.retry_at == (None if ok else retry_at)
        assert (record.outcome is None) == (not ok and wait is not None)
        assert not record.in_doubt

    @precondition(is_running)
    @rule(jitter=st.floats(-1, 1))
    def crash(self, jitter: float) -> None:
        before = self.kept.task.strikes
        (event,) = self.kept.crash(self.limit, jitter)
        out = self.limit is not None and before + 1 >= self.limit
        assert isinstance(event, Held if out else Restarted)
        assert self.kept.task.status == ("held" if out else "queued")

    @rule(wait=st.none() | waits)
    def stop(self, wait: float | None) -> None:
        was, task = self.is_running(), self.kept.task
        due = None if wait is None else self.kept.now + wait
        assert bool(self.kept.passivate(due)) == was
        if was:
            assert (task.status, task.due) == (("queued", task.updated) if due is None else ("waiting", due))

    @precondition(is_running)
    @rule(reason=st.sampled_from([IN_DOUBT, DIFFERS, FAILED_STEP]), data=st.data())
    def hold(self, reason: str, data: st.DataObject) -> None:
        steps = self.kept.task.steps
        of_step = {
            IN_DOUBT: [path for path, record in steps.items() if record.in_doubt],
            FAILED_STEP: [path for path, record in steps.items() if isinstance(record.outcome, StepFailed)],
        }.get(reason, ["1"])
        if of_step:
            self.kept.hold(reason, data.draw(st.sampled_from(of_step)))

    @rule(decision=st.sampled_from(["release", "rerun", "value", "fail"]))
    def decide(self, decision: str) -> None:
        held = self.kept.task.held
        if held is None:
            return
        of_step = held.reason in (IN_DOUBT, FAILED_STEP)
        if of_step != (decision != "release"):
            with pytest.raises((ResolveError, TaskEndedError)):
                self.kept.release() if decision == "release" else self.kept.resolve(decision, held.path)
        elif of_step:
            self.kept.resolve(decision, held.path)
        else:
            self.kept.release()

    @precondition(is_running)
    @rule(ok=st.integers(0, 5))
    def end(self, ok: int) -> None:
        if ok == 0:
            self.kept.complete(1)
        elif ok == 1:
            self.kept.fail()

    @invariant()
    def the_state_is_the_fold_of_the_log(self) -> None:
        again = fold(None, self.kept.events)
        assert again is not None
        assert state(again) == state(self.kept.task)

    @invariant()
    def no_step_has_two_outcomes_without_a_persons_word_between(self) -> None:
        known: Counter[str] = Counter()
        for event in self.kept.events:
            if isinstance(event, OUTCOMES):
                assert known[event.path] == 0
                known[event.path] += not (isinstance(event, StepFailed) and event.retry_at is not None)
            elif isinstance(event, Released) and event.path:
                known[event.path] = 0 if event.decision == "rerun" else 1

    @invariant()
    def the_errors_of_a_step_are_those_since_a_person_had_it_run_again(self) -> None:
        errors: dict[str, list[TaskEvent]] = {}
        for event in self.kept.events:
            if isinstance(event, StepFailed):
                errors.setdefault(event.path, []).append(event)
            elif isinstance(event, Released) and event.decision == "rerun":
                errors.pop(event.path, None)
        assert {
            path: list(record.failures) for path, record in self.kept.task.steps.items() if record.failures
        } == errors

    @invariant()
    def an_ending_is_the_last(self) -> None:
        assert not any(isinstance(event, ENDINGS) for event in self.kept.events[:-1])
        assert (self.kept.task.ending is not None) == isinstance(self.kept.events[-1], ENDINGS)

    @invariant()
    def activations_are_numbered_without_a_gap_and_only_the_newest_may_write(self) -> None:
        numbers = [event.number for event in self.kept.events if isinstance(event, Activated)]
        assert numbers == list(range(1, len(numbers) + 1))
        for number in (numbers[:-1] if self.is_running() else numbers)[-2:]:
            with pytest.raises(OwnershipLost):
                self.kept.task.guard(number)

    @invariant()
    def strikes_are_what_the_log_says(self) -> None:
        assert self.kept.task.strikes_if_lost == strikes_by_the_log(self.kept.events)
        if self.limit is not None and self.is_running():
            assert self.kept.task.strikes < self.limit


AnyLife.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestAnyLife = AnyLife.TestCase
