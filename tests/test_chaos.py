"""Chaos in small doses, seeded; and the judge, which has to see every kind of broken promise."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors import AgentSystem, open_store
from actors.task_log import UNTOLD
from actors.testing import CrashPlan, SimulatedCrash
from domain.events import (
    Activated,
    ApprovalRequested,
    CancelDelivered,
    Cancelled,
    CancelRequested,
    ChildSpawned,
    Completed,
    Concluded,
    Created,
    Failed,
    Held,
    Passivated,
    Released,
    Restarted,
    SignalReceived,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
    UndoRegistered,
    WaitBegan,
    WaitEnded,
)
from domain.state import idempotency_key
from stores import Store
from stores.crash import CrashingStore
from tests.chaos import ledger, programs, purses, talks, trips
from tests.chaos.client import answer, send
from tests.chaos.evidence import Evidence
from tests.chaos.fleet import End
from tests.chaos.judge import RULES, judge
from tests.chaos.ledger import Line
from tests.chaos.plan import draw_plan
from tests.chaos.rounds import SETTLING, collect, play
from tests.lives import PATIENCE, die, wait_for

LONGEST = 60.0
"""Seconds of chaos that a test may be asked for."""


@pytest.mark.timeout(LONGEST + SETTLING + 90)
@pytest.mark.parametrize(("seed", "database"), [(1, "sqlite"), (2, "sqlite"), (3, "postgres"), (4, "postgres")])
def test_whatever_dies_nothing_is_lost_nothing_is_repeated_and_no_log_is_torn(
    seed: int, database: str, tmp_path: Path, bytecode: Path, request: pytest.FixtureRequest
) -> None:
    """Once with a limit of strikes, and a person who lets go on what is held; once with workers that rob each other."""
    seconds = min(request.config.getoption("--chaos-seconds"), LONGEST)
    store = request.getfixturevalue("postgres") if database == "postgres" else None
    verdict = play(seed, seconds, tmp_path, bytecode=bytecode, store=store)
    print(verdict)
    assert not verdict.complaints
    assert verdict.totals["kill"] > 0 < verdict.totals["steps"]


def test_a_plan_follows_from_its_seed_and_leaves_no_process_out() -> None:
    plan = draw_plan(7, 60, 3)
    assert plan == draw_plan(7, 60, 3) != draw_plan(8, 60, 3)
    assert {action.process.partition(".")[0] for action in plan.actions} == {
        *("worker-1", "worker-2", "worker-3", "client-1"),
    }
    assert {action.what for action in plan.actions} == {"start", "kill", "freeze", "thaw", "leave"}
    assert all(0 <= action.at < plan.seconds for action in plan.actions)


# ------------------------------------------------------------------ what was honestly done


def live_badly(disk: Store) -> None:
    """Let the task `t` die in every way that leaves a doubt: an effect that happened, a hold, one that did not."""
    given = (1, ["asking", "guarded", "asking", "plain"])
    die(disk, programs.errands, *given)
    die(disk, programs.errands, *given)
    with AgentSystem(disk):
        wait_for(lambda: bool(disk.recorder.select_entries(status=["held"])))
    with AgentSystem(disk, run=False) as client:
        client.task("t").resolve("2", rerun=True, by="me")
    die(disk, programs.errands, *given, at="body.before", nth=2)


STOPS = [["before", "plain"], ["", trips.book.name], ["", trips.book_flaky.name]]
TALK = [
    ["receive", "a", None, 0.0],
    ["any", "b", 1.0, 9.0],
    ["ask", 1],
    ["child", "wait", "now", "chaos.errands", [1, ["plain"]]],
    ["child", "cancel", "never", "chaos.booker", [1, STOPS, "wait", "raise"]],
    ["child", "abandon", "last", "chaos.errands", [1, ["plain"]]],
]


def be_called_off(disk: Store) -> None:
    """Let the task `off` be called off when its process has died in its first step."""
    life = CrashingStore(disk, CrashPlan(1, "body.after"))
    with pytest.raises(SimulatedCrash), AgentSystem(life) as system:
        system.spawn(trips.booker, 1, STOPS, "complete", "raise", id="off").result(PATIENCE)
    life.close()
    with AgentSystem(disk, run=False) as client:
        assert client.task("off").cancel("enough", by="me").accepted
    ledger.write(Line("cancelled", "off", token="enough"))
    with AgentSystem(disk) as programs.system:
        assert answer(programs.system.task("off")) == "enough"


def talk_to(system: AgentSystem, task: str) -> None:
    """Send a talker its first signal, twice, and answer its question, once that is open."""
    for _ in range(2):
        send(system.task(task), talks.sendings(TALK)[0])
    wait_for(lambda: bool(system.approvals()))
    (approval,) = system.approvals()
    system.task(task).answer(approval.id, approved=True)
    ledger.write(Line("decided", task, path=approval.path, number=1))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evidence]:
    """Give the evidence of an honest little round."""
    with pytest.MonkeyPatch.context() as patch, open_store("memory:") as disk:
        patch.chdir(tmp_path_factory.mktemp("honest"))
        be_called_off(disk)
        live_badly(disk)
        with AgentSystem(disk) as programs.system:
            given = {
                "errands": (programs.errands, 5, ["idempotent", "flaky", "failing", "beating", "awaiting"]),
                "fan": (programs.fan_async, 10, [["plain"], ["asking"]], 2),
                "stumbler": (programs.stumbler, 3),
                "quitter": (programs.quitter, 3, ["plain"]),
                "shopper": (purses.shopper, "purse-1", [300, 200, 100]),
                "booker": (trips.booker_async, 3, STOPS, "fail", "raise"),
                "talker": (talks.talker, 3, TALK),
            }
            for name, (agent, *args) in given.items():
                programs.system.spawn(agent, *args, id=name)
                ledger.write(Line("accepted", name))
            talk_to(programs.system, "talker")
            for name in ("t", "off", *given):
                ledger.write(Line("answered", name, token=json.dumps(answer(programs.system.task(name)))))
            wait_for(lambda: not disk.recorder.select_entries(status=["queued", "running", "waiting"]))
            wait_for(lambda: not disk.recorder.select_held(UNTOLD, limit=1))
            yield Evidence(ledger.read(), *collect(programs.system), None, [], purses.bookings(programs.system))


def test_the_judge_has_no_complaint_about_an_honest_round(honest: Evidence) -> None:
    assert judge(honest) == []


# ------------------------------------------------------------------ what was not

Change = Callable[[list[TaskEvent]], list[TaskEvent]]


def but(fact: Any, **changes: Any) -> Any:
    """Give an event with other facts."""
    return type(fact)(*({name: getattr(fact, name) for name in fact.NAMES} | changes).values())


def numbered(events: list[TaskEvent]) -> list[TaskEvent]:
    return [but(event, originator_version=version) for version, event in enumerate(events, 1)]


def log(task: str, change: Change) -> Callable[[Evidence], Evidence]:
    """Falsify a log, and number its events anew, so that nothing else is wrong with it than what was changed."""
    return lambda evidence: replace(evidence, logs=evidence.logs | {task: numbered(change(evidence.logs[task]))})


def at(events: list[TaskEvent], kind: type, nth: int = 1, **facts: Any) -> int:
    """Find the nth event of a kind that has these facts."""
    wanted = [
        index
        for index, event in enumerate(events)
        if isinstance(event, kind) and all(getattr(event, name) == fact for name, fact in facts.items())
    ]
    return wanted[nth - 1]


def changed(kind: type, nth: int = 1, changes: Any = None, **facts: Any) -> Change:
    """Change what an event says; with no changes it is left out."""

    def change(events: list[TaskEvent]) -> list[TaskEvent]:
        index = at(events, kind, nth, **facts)
        return events[:index] + ([but(events[index], **changes)] if changes else []) + events[index + 1 :]

    return change


def inserted(kind: type, before: TaskEvent | Callable[[list[TaskEvent]], TaskEvent], **facts: Any) -> Change:
    """Put an event in front of another."""

    def change(events: list[TaskEvent]) -> list[TaskEvent]:
        index = at(events, kind, **facts)
        return [*events[:index], before(events) if callable(before) else before, *events[index:]]

    return change


def copied(kind: type, **changes: Any) -> Callable[[list[TaskEvent]], TaskEvent]:
    """Give a changed copy of the first event of a kind."""
    return lambda events: but(events[at(events, kind)], **changes)


def row(task: str, **changes: Any) -> Callable[[Evidence], Evidence]:
    return lambda evidence: replace(evidence, rows=evidence.rows | {task: evidence.rows[task]._replace(**changes)})


def without(task: str, *parts: str) -> Callable[[Evidence], Evidence]:
    """Lose the log of a task, its index row, or both."""
    return lambda evidence: replace(
        evidence,
        **{part: {key: kept for key, kept in getattr(evidence, part).items() if key != task} for part in parts},
    )


def line(change: Callable[[Line], list[Line]], **facts: Any) -> Callable[[Evidence], Evidence]:
    """Replace the first line of the ledger that has these facts by others."""

    def falsify(evidence: Evidence) -> Evidence:
        lines = evidence.lines
        index = next(i for i, one in enumerate(lines) if all(getattr(one, key) == facts[key] for key in facts))
        return replace(evidence, lines=[*lines[:index], *change(lines[index]), *lines[index + 1 :]])

    return falsify


def process(code: int, signals: set[int], errors: str = "", pid: int = 1) -> Callable[[Evidence], Evidence]:
    return lambda evidence: replace(evidence, ends=[End("worker-1.1", pid, code, frozenset(signals), errors)])


def limited(falsify: Callable[[Evidence], Evidence]) -> Callable[[Evidence], Evidence]:
    """Let the workers have had a limit of strikes."""
    return lambda evidence: replace(falsify(evidence), strikes=3)


def child(nth: int, falsify: Callable[[str], Callable[[Evidence], Evidence]]) -> Callable[[Evidence], Evidence]:
    """Falsify what is known of the nth child of the talker."""

    def change(evidence: Evidence) -> Evidence:
        events = evidence.logs["talker"]
        return falsify(events[at(events, ChildSpawned, nth)].child)(evidence)  # type: ignore[attr-defined]

    return change


def twice(kind: type, **facts: Any) -> Change:
    """Let an event stand in the log two times."""
    return lambda events: inserted(kind, events[at(events, kind, **facts)], **facts)(events)


def earlier(kind: type, **facts: Any) -> Change:
    """Put an event where the log begins."""

    def change(events: list[TaskEvent]) -> list[TaskEvent]:
        index = at(events, kind, **facts)
        return [events[0], events[index], *events[1:index], *events[index + 1 :]]

    return change


def ended_while_held(events: list[TaskEvent]) -> list[TaskEvent]:
    """Let a task have ended where a person had to decide about an undo of it, and nobody has."""
    index = at(events, StepSucceeded, path="undo/2")
    number = sum(isinstance(event, Activated) for event in events)
    return [*events[:index], Held("booker", 0, 0.0, number, "failed step", "undo/2", {}), events[-1]]


def completed(events: list[TaskEvent]) -> list[TaskEvent]:
    """Let a task have completed, whatever it did."""
    return [*events[:-1], Completed(events[0].originator_id, 0, 0.0, [])]


def out_of_order(events: list[TaskEvent]) -> list[TaskEvent]:
    """Let a second signal be taken before the first."""
    second = at(events, SignalReceived, name="a") + 1
    events = [*events[:second], but(events[second - 1], signal="id other"), *events[second:]]
    return changed(WaitEnded, changes={"signal": second + 1}, path="1")(events)


held = Held("t", 0, 0.0, 1, "strikes", "", {"strikes": 2})
passivated = Passivated("t", 0, 0.0, 1, [], None, False)
released = Released("quitter", 0, 0.0, "1/1", "rerun", None, "me")
odd = {"kinds": ["FailTask"], "message": "other"}
failure = {"kinds": ["FailTask"], "message": "on purpose, at 5"}
trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    f()\nKeyError: 1\n'


def booked(change: Callable[[list[Any]], list[Any]]) -> Callable[[Evidence], Evidence]:
    """Falsify what a purse has booked."""
    return lambda evidence: replace(evidence, purses={name: change(one) for name, one in evidence.purses.items()})


def no_is_booked(evidence: Evidence) -> Evidence:
    """Book what the second ask of the shopper was refused."""
    created = evidence.histories["shopper"].created
    assert created is not None
    return booked(lambda one: [*one, replace(one[0], key=idempotency_key(created.birth, "2"))])(evidence)


FALSE: dict[str, list[tuple[str, str, Callable[[Evidence], Evidence]]]] = {
    "nothing_is_lost": [
        ("not in the store", "fan", without("fan", "logs", "rows")),
        ("no log", "fan", without("fan", "logs")),
        ("no index row", "fan", without("fan", "rows")),
        ("it is waiting", "t", row("t", status="waiting")),
    ],
    "holds_have_a_reason": [
        ("no reason", "fan", log("fan", inserted(Completed, but(held, reason="differs")))),
        ("no reason", "fan", log("fan", inserted(Completed, held))),
        ("no reason", "t", log("t", changed(Held, changes={"path": "1"}))),
        ("below its limit", "fan", limited(log("fan", inserted(Completed, held)))),
    ],
    "logs_are_whole": [
        ("versions", "t", lambda evidence: replace(evidence, logs=evidence.logs | {"t": evidence.logs["t"][:3] * 2})),
        ("not created once", "t", log("t", changed(Created))),
        ("not created once", "t", log("t", inserted(Completed, copied(Created)))),
        ("cannot be folded", "t", log("t", changed(Created))),
        ("does not end once", "t", log("t", changed(Completed))),
        ("does not end once", "t", log("t", inserted(Completed, copied(Completed)))),
        ("does not end once", "quitter", log("quitter", lambda events: [*events, events[-1]])),
        ("does not end once", "quitter", log("quitter", lambda events: [*events, events[2]])),
        ("its index row", "t", row("t", activation=9)),
        ("its index row", "fan", row("fan", due=1.0)),
    ],
    "activations_are_fences": [
        ("its activations", "t", log("t", changed(Activated, 2, {"number": 1}))),
        ("its activations", "t", log("t", changed(Activated, 2, {"number": 4}))),
        ("in activation 1", "fan", log("fan", inserted(Completed, but(passivated, activation=0)))),
        ("in activation 1", "stumbler", log("stumbler", changed(Restarted, changes={"activation": 2}))),
        ("in no activation", "fan", log("fan", inserted(Completed, passivated))),
        ("in no activation", "fan", log("fan", inserted(StepSucceeded, passivated))),
        ("in no activation", "off", log("off", inserted(Cancelled, but(passivated, activation=2)))),
        ("in no activation", "talker", log("talker", inserted(WaitEnded, passivated))),
    ],
    "outcomes_stand_where_their_attempt_began": [
        ("ended in 2", "fan", log("fan", inserted(StepSucceeded, copied(Activated, number=2)))),
        ("ended in 2", "errands", log("errands", inserted(StepFailed, copied(Activated, number=2)))),
        ("begun in activations {}", "quitter", log("quitter", changed(StepStarted))),
        ("ended in 2", "t", log("t", changed(StepSucceeded, changes={"source": ""}, source="on_doubt"))),
    ],
    "attempts_follow_each_other": [
        ("after its outcome", "quitter", log("quitter", inserted(Failed, copied(StepSucceeded)))),
        ("after its outcome", "quitter", log("quitter", inserted(Failed, copied(StepStarted, attempt=2)))),
        ("after its outcome", "quitter", log("quitter", inserted(Failed, released))),
        ("is the 1. that", "quitter", log("quitter", changed(StepStarted, changes={"attempt": 2}))),
        ("not due before", "errands", log("errands", changed(StepFailed, changes={"retry_at": 1e11}))),
        ("of a doubt", "errands", log("errands", changed(StepStarted, changes={"doubt": "rerun"}, attempt=2))),
        ("of a doubt", "t", log("t", changed(StepStarted, changes={"doubt": ""}, attempt=2))),
    ],
    "restarts_wait": [
        ("was due", "stumbler", log("stumbler", changed(Restarted, changes={"due": 1e11}))),
        ("was due", "stumbler", log("stumbler", inserted(Activated, but(passivated, due=1e11), number=2))),
        ("due at inf", "stumbler", log("stumbler", inserted(Activated, but(passivated, waits=True), number=2))),
    ],
    "finished_steps_ran_once": [
        ("entered 2 times", "quitter", line(lambda one: [one, one], what="effect", task="quitter")),
        ("(2, 1), begun", "quitter", line(lambda one: [one, replace(one, attempt=2)], what="effect", task="quitter")),
        ("(1, 2), begun", "quitter", line(lambda one: [replace(one, activation=2)], what="effect", task="quitter")),
        (
            "ran in activation 2",
            "errands",
            line(lambda one: [one, replace(one, activation=2)], what="effect", task="errands", path="1"),
        ),
    ],
    "keys_are_kept": [
        ("ran with the keys", "quitter", line(lambda one: [replace(one, key="x")], what="effect", task="quitter")),
        (
            "ran with the keys",
            "t",
            line(lambda one: [one, replace(one, attempt=2, key="x")], what="effect", task="t", path="2"),
        ),
        ("has the key", "lost", line(lambda one: [one, replace(one, task="lost")], what="effect", task="quitter")),
    ],
    "values_are_of_their_effects": [
        ("not made", "quitter", line(lambda one: [], what="effect", task="quitter")),
        ("not made", "quitter", line(lambda one: [replace(one, token="x")], what="effect", task="quitter")),
        ("not raised", "errands", log("errands", changed(StepFailed, changes={"attempt": 9}))),
        ("nobody made", "t", line(lambda one: [replace(one, token="x")], what="effect", task="t", path="1")),
        ("nobody made", "t", log("t", changed(StepSucceeded, changes={"value": [2, "x"]}, path="1"))),
    ],
    "doubts_are_settled_as_the_step_says": [
        (
            "without 'not happened'",
            "t",
            log("t", changed(StepStarted, changes={"doubt": "rerun"}, path="3", attempt=2)),
        ),
        ("without 'rerun by '", "t", log("t", changed(StepStarted, changes={"doubt": "rerun"}, path="2", attempt=2))),
        ("nobody gave", "t", line(lambda one: [], what="asked", task="t", path="1")),
        ("nobody gave", "t", line(lambda one: [], what="asked", task="t", path="3")),
        ("nobody gave", "t", line(lambda one: [replace(one, token="found")], what="asked", task="t", path="3")),
        ("nobody gave", "t", log("t", changed(StepSucceeded, changes={"value": [2, "x"]}, path="1"))),
    ],
    "heartbeats_are_heard": [
        ("heard 3", "errands", line(lambda one: [replace(one, number=3)], what="heard", task="errands", attempt=2)),
        ("heard 9", "errands", line(lambda one: [replace(one, number=9)], what="heard", task="errands", attempt=2)),
        ("heard 4", "errands", line(lambda one: [replace(one, number=4)], what="heard", task="errands", attempt=1)),
    ],
    "results_follow": [
        ("counts []", "fan", log("fan", changed(Completed, changes={"value": []}))),
        ("not made of", "t", log("t", changed(StepSucceeded, changes={"value": [2, "x"]}, path="1"))),
        ("it failed", "quitter", log("quitter", changed(Failed, changes={"error": failure}))),
        (
            "it failed",
            "stumbler",
            log("stumbler", lambda events: [*events[:-1], Failed("stumbler", 0, 0.0, failure, [])]),
        ),
        ("of its child", "errands", without("errands.5", "logs")),
        ("of its child", "errands", log("errands.5", changed(Completed, changes={"value": [[9, "x"]]}))),
    ],
    "answers_are_the_results": [
        ("told was", "fan", line(lambda one: [replace(one, token="[]")], what="answered", task="fan")),
        ("told was", "quitter", line(lambda one: [replace(one, token='"?"')], what="answered", task="quitter")),
        ("told was", "t", log("t", changed(Completed, changes={"value": []}))),
    ],
    "purses_are_never_overdrawn": [
        ("leaves -", "", booked(lambda one: [*one, replace(one[0], amount=101)])),
        ("leaves 100", "", booked(lambda one: [replace(one[0], reply=99), *one[1:]])),
    ],
    "what_is_asked_is_booked_once": [
        ("booked are []", "shopper", booked(lambda one: one[:1])),
        ("booked are [Booking", "shopper", booked(lambda one: [*one, one[0]])),
        ("booked are [Booking", "shopper", booked(lambda one: [replace(one[0], reply=7), *one[1:]])),
        ("was told no", "shopper", no_is_booked),
        ("for no step", "", booked(lambda one: [*one, replace(one[0], key="x")])),
    ],
    "shoppers_get_what_is_booked": [
        ("were answered [300, 0, 100]", "shopper", log("shopper", changed(Completed, changes={"value": [300]}))),
    ],
    "talkers_say_what_came": [
        ("it said []", "talker", log("talker", changed(Completed, changes={"value": []}))),
        ("its log says", "talker", log("talker", changed(WaitEnded, changes={"signal": 0}, path="1"))),
        ("it ends with", "talker", log("talker", lambda events: [*events[:-1], Failed("talker", 0, 0.0, failure, [])])),
    ],
    "bookers_end_as_they_say": [
        (
            "has failed: other",
            "booker",
            log("booker", changed(Failed, changes={"error": odd})),
        ),
        (
            "was to end by 'fail'",
            "booker",
            log("booker", completed),
        ),
        ("was to end by 'raise'", "off", log("off", completed)),
    ],
    "waits_end_once": [
        ("more than once", "talker", log("talker", twice(WaitEnded, path="1"))),
        ("more than once", "talker", log("talker", twice(WaitBegan, path="2"))),
        ("ended before it began", "talker", log("talker", earlier(WaitEnded, path="2"))),
        ("waits at 2", "talker", log("talker", changed(WaitEnded, path="2"))),
    ],
    "signals_are_taken_once_and_in_order": [
        ("by nothing", "talker", log("talker", changed(WaitEnded, changes={"signal": 1}, path="1"))),
        ("by nothing", "talker", log("talker", earlier(WaitEnded, path="1"))),
        ("was ended by SignalReceived", "talker", log("talker", changed(SignalReceived, changes={"name": "b"}))),
        ("nobody had taken was", "talker", log("talker", out_of_order)),
        ("nobody had taken was None", "talker", log("talker", twice(WaitEnded, path="1"))),
    ],
    "the_log_beats_a_time": [
        ("by its time after", "talker", log("talker", inserted(WaitEnded, copied(SignalReceived, name="b"), path="2"))),
        ("inf s before its time", "talker", log("talker", changed(WaitEnded, changes={"source": 0}, path="2"))),
        ("s before its time", "talker", log("talker", changed(WaitEnded, changes={"timestamp": 1.0}, path="2"))),
    ],
    "what_was_sent_is_kept": [
        ("its log has []", "talker", log("talker", changed(SignalReceived, name="a"))),
        ("its log has [", "talker", log("talker", changed(SignalReceived, changes={"value": 7}, name="a"))),
        ("2 signals with the id", "talker", log("talker", twice(SignalReceived, name="a"))),
    ],
    "approvals_are_decided_once": [
        ("asked for twice", "talker", log("talker", twice(ApprovalRequested))),
        ("decided before", "talker", log("talker", earlier(SignalReceived, name="~answer 3"))),
        ("decided more than once", "talker", log("talker", twice(SignalReceived, name="~answer 3"))),
        ("its log has []", "talker", log("talker", changed(SignalReceived, name="~answer 3"))),
        ("was decided by 0", "talker", line(lambda one: [replace(one, number=0)], what="decided")),
    ],
    "children_are_their_parents": [
        ("created as None", "talker", child(1, lambda name: without(name, "logs"))),
        ("created as Created", "talker", child(1, lambda name: log(name, changed(Created, changes={"parent": "t"})))),
        ("was spawned by []", "talker/5", log("talker", changed(ChildSpawned))),
        ("was spawned by ['talker', 'talker']", "talker/5", log("talker", twice(ChildSpawned))),
    ],
    "ends_are_told_once": [
        ("was told of 0 times", "talker", log("talker", changed(SignalReceived, by="chaos.errands"))),
        ("was told of 2 times", "talker", log("talker", twice(SignalReceived, by="chaos.errands"))),
        ("which has ended with", "talker", child(1, lambda name: log(name, changed(Completed, changes={"value": []})))),
        ("which has ended with", "talker", child(1, lambda name: log(name, changed(Completed)))),
        ("was not told of its end", "talker/5", child(1, lambda name: row(name, hold=UNTOLD))),
    ],
    "endings_wait_for_what_is_owed": [
        ("owes (wait)", "talker", child(1, lambda name: log(name, changed(Completed, changes={"timestamp": 1e11})))),
        ("owes (cancel)", "talker", child(2, lambda name: log(name, lambda events: events[:1]))),
    ],
    "undos_are_done": [
        ("it owes the undos", "booker", log("booker", changed(StepSucceeded, path="undo/2"))),
        ("it owes the undos", "booker", log("booker", earlier(StepSucceeded, path="undo/2"))),
        ("it owes the undos", "booker", log("booker", twice(StepSucceeded, path="undo/2"))),
        ("it owes the undos", "booker", log("booker", changed(UndoRegistered))),
        ("it owes the undos", "booker", log("booker", ended_while_held)),
        ("it owes the undos []", "off", log("off", completed)),
        ("has entered", "fan", line(lambda one: [one, replace(one, path="undo/1")], what="effect", task="fan")),
    ],
    "cancels_are_asked_for_once": [
        ("called off twice", "off", log("off", twice(CancelRequested))),
        ("it is cancelled after None", "off", log("off", changed(CancelRequested))),
        ("it is cancelled after C", "off", log("off", changed(Cancelled, changes={"by": "nobody"}))),
        ("before its deadline", "off", log("off", changed(CancelRequested, changes={"by": "deadline"}))),
        ("that nobody asked for", "off", log("off", changed(CancelRequested))),
        ("its log has ['other']", "off", log("off", changed(CancelRequested, changes={"reason": "other"}))),
    ],
    "clean_up_has_its_grace": [
        ("cut short before", "off", log("off", changed(Concluded, changes={"cut": True}))),
    ],
    "endings_name_what_is_in_doubt": [
        ("its ending says []", "off", log("off", changed(Cancelled, changes={"doubts": []}))),
        ("its ending says ['1']", "booker", log("booker", changed(Failed, changes={"doubts": ["1"]}))),
    ],
    "what_was_called_off_runs_no_more": [
        ("hears 2 times", "off", log("off", twice(CancelDelivered))),
        ("entered after that", "off", line(lambda one: [one, replace(one, activation=9)], what="effect", task="off")),
        (
            "entered after that",
            "off",
            line(lambda one: [one, replace(one, attempt=2, activation=2, at=1e11)], what="effect", task="off"),
        ),
    ],
    "processes_end_as_they_are_told": [
        ("ended with 1", "", process(1, {signal.SIGTERM})),
        ("ended with 0", "", process(0, set())),
        ("ended with -9", "", process(-signal.SIGKILL, {signal.SIGTERM})),
        ("ended with -9", "", process(-signal.SIGKILL, set())),
        ("ended with -11", "", process(-signal.SIGSEGV, {signal.SIGKILL})),
        ("told of an error", "", process(0, {signal.SIGTERM}, trace)),
    ],
}


@pytest.mark.parametrize(
    ("rule", "words", "task", "falsify"), [(rule, *lie) for rule, lies in FALSE.items() for lie in lies]
)
def test_the_judge_sees_a_lie_of_every_kind(
    honest: Evidence, rule: str, words: str, task: str, falsify: Callable[[Evidence], Evidence]
) -> None:
    complaints = judge(falsify(honest))
    found = [one for one in complaints if (one.rule, one.task.partition("-")[0]) == (rule, task)]
    assert any(words in one.text for one in found), complaints


def test_every_rule_of_the_judge_has_a_lie_that_it_sees() -> None:
    assert [rule.__name__ for rule in RULES] == list(FALSE)


@pytest.mark.parametrize(
    "fine",
    [
        process(-signal.SIGKILL, {signal.SIGKILL}),
        process(0, {signal.SIGTERM}, trace.replace("KeyError", "OnPurposeError")),
        lambda evidence: replace(
            process(-signal.SIGKILL, set(), pid=7)(evidence), lines=[*evidence.lines, Line("died", "t", number=7)]
        ),
        line(lambda one: [one, replace(one, attempt=0)], what="beat"),
    ],
)
def test_the_judge_does_not_complain_of_what_is_meant(honest: Evidence, fine: Any) -> None:
    assert judge(fine(honest)) == []
