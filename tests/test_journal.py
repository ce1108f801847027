"""The replay rule: code and log fit, or nothing runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from domain.events import Activated, Created, Released, StepFailed, StepStarted, StepSucceeded, TaskEvent
from domain.faults import Fault
from domain.journal import Differs, arguments_changed, join, left_over, look_up, look_up_scope
from domain.record import StepRecord
from domain.task import AgentTask, fold

# ------------------------------------------------------------------ programs


@dataclass(frozen=True)
class Call:
    """A call of a step, with one argument; None is one that cannot be encoded."""

    name: str
    argument: int | None = 0

    @property
    def digest(self) -> str:
        return "" if self.argument is None else f"digest of {self.argument}"


@dataclass(frozen=True)
class Inner:
    """A call of an agent, with what it does."""

    name: str
    body: tuple[Any, ...] = ()


Item: TypeAlias = Call | Inner
Program: TypeAlias = tuple[Item, ...]


def asked(program: Program, scope: str = "") -> Iterator[tuple[str, Call]]:
    """List what a program asks for, each step with its path, in the order of its run."""
    for number, item in enumerate(program, 1):
        path = join(scope, number)
        if isinstance(item, Call):
            yield path, item
        else:
            yield from asked(item.body, path)


def recorded(program: Program, steps: int | None = None, *, doubt: bool = False) -> AgentTask:
    """Run a program for so many steps, all by default; the last may be left in doubt."""
    calls = list(asked(program))[:steps]
    events: list[TaskEvent] = [
        Created("t", 1, 1.0, "birth", "agent", [], "", {}, {}),
        Activated("t", 2, 1.0, 1, "w", "token"),
    ]
    for path, call in calls:
        named = (path, "step", call.name)
        events.append(StepStarted("t", len(events) + 1, 1.0, *named, 1, call.digest, "", ""))
        if not (doubt and path == calls[-1][0]):
            events.append(StepSucceeded("t", len(events) + 1, 1.0, *named, call.digest, 1, path, ""))
    task = fold(None, events)
    assert task is not None
    return task


class Replay:
    """A walk of a program over a log, as an activation does it: `handed`, `ran` and where it was stopped."""

    def __init__(self, task: AgentTask, program: Program) -> None:
        self.task = task
        self.handed: list[tuple[StepRecord, Call]] = []
        self.ran: list[str] = []
        self.differs: Differs | None = None
        self._walk(program, "")

    def _walk(self, program: Program, scope: str) -> bool:
        for number, item in enumerate(program, 1):
            path = join(scope, number)
            if isinstance(item, Inner):
                self.differs = look_up_scope(self.task, path, item.name)
                if self.differs or not self._walk(item.body, path):
                    return False
                continue
            found = look_up(self.task, path, "step", item.name, item.digest)
            if isinstance(found, Differs):
                self.differs = found
                return False
            if found is None or found.in_doubt:
                self.ran.append(path)
            else:
                self.handed.append((found, item))
        self.differs = left_over(self.task, scope, len(program))
        return self.differs is None


# ------------------------------------------------------------------ each branch


A1, A2, A3, B1, B2, C1 = Call("a", 1), Call("a", 2), Call("a", 3), Call("b", 1), Call("b", 2), Call("c", 1)
TABLE: list[tuple[str, Program, Program, str | None]] = [
    ("the same", (A1, B1), (A1, B1), None),
    ("more at the end", (A1,), (A1, B1), None),
    ("another name", (A1, B1), (A1, C1), "position 2: the log has step b, the code asks for step c"),
    ("an insert", (A1, B1), (C1, A1, B1), "position 1: the log has step a, the code asks for step c"),
    ("a delete", (A1, B1), (B1,), "position 1: the log has step a, the code asks for step b"),
    ("a delete at the end", (A1, B1), (A1,), "position 2: the log has step b, the code asks for nothing more"),
    ("all deleted", (A1, B1), (), "position 1: the log has step a, the code asks for nothing more"),
    ("other arguments", (A1, B1), (A3, B1), None),
    (
        "the order changed",
        (A1, A2),
        (A2, A1),
        "position 1: the log has step a with these arguments at position 2, the code asks for them at 1",
    ),
    ("arguments that nobody can tell apart", (Call("a", None), Call("a", None)), (A1, A2), None),
    ("equal calls", (A1, A1), (A1, A1), None),
    (
        "equal calls, one deleted",
        (A1, A1),
        (A1,),
        "position 2: the log has step a, the code asks for nothing more",
    ),
    ("an agent", (Inner("s", (A1,)), B1), (Inner("s", (A1,)), B1), None),
    ("a renamed agent", (Inner("s", (A1,)), B1), (Inner("r", (A1,)), B1), None),
    ("an agent without steps", (Inner("s"), B1), (Inner("s"), B1), None),
    (
        "an agent where a step was",
        (A1, B1),
        (Inner("s"), B1),
        "position 1: the log has step a, the code asks for a call of agent s",
    ),
    (
        "a step where an agent was",
        (Inner("s", (A1,)), B1),
        (A1, B1),
        "position 1: the log has a call of an agent, the code asks for step a",
    ),
    (
        "a step where an agent without steps was",
        (Inner("s"), B1),
        (A1, B1),
        "position 1: the log has nothing, but step b after it, the code asks for step a",
    ),
    (
        "a step where an agent without steps was, before one with",
        (Inner("s"), Inner("r", (B1,))),
        (A1, Inner("r", (B1,))),
        "position 1: the log has nothing, but a call of an agent after it, the code asks for step a",
    ),
    (
        "less inside an agent",
        (Inner("s", (A1, B1)), C1),
        (Inner("s", (A1,)), C1),
        "position 1/2: the log has step b, the code asks for nothing more",
    ),
    (
        "another name inside",
        (Inner("s", (A1, B1)), C1),
        (Inner("s", (A1, B1, C1)[::2]), C1),
        "position 1/2: the log has step b, the code asks for step c",
    ),
    (
        "more inside an agent, and the log goes on after it",
        (Inner("s", (A1,)), B1),
        (Inner("s", (A1, C1)), B1),
        "position 1/2: the log has nothing, but step b after it, the code asks for step c",
    ),
    (
        "more inside the last agent",
        (B1, Inner("s", (A1,))),
        (B1, Inner("s", (A1, C1)), C1),
        None,
    ),
    (
        "an agent deleted at the end",
        (A1, Inner("s", (B1,))),
        (A1,),
        "position 2: the log has a call of an agent, the code asks for nothing more",
    ),
    (
        "only an agent without steps is left of two",
        (A1, Inner("s"), Inner("r", (B1,))),
        (A1, Inner("s")),
        "position 3: the log has a call of an agent, the code asks for nothing more",
    ),
]


@pytest.mark.parametrize(("log", "code", "message"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_code_that_does_not_fit_its_log_is_told_where_and_how(log: Program, code: Program, message: str | None) -> None:
    replay = Replay(recorded(log), code)
    assert (replay.differs and str(replay.differs)) == (message and f"code differs at {message}")
    if message:
        assert replay.ran == []


def test_a_step_in_doubt_with_other_arguments_would_make_its_key_a_lie() -> None:
    task = recorded((A1,), doubt=True)
    assert look_up(task, "1", "step", "a", A1.digest) is task.steps["1"]
    found = look_up(task, "1", "step", "a", A2.digest)
    assert str(found) == (
        "code differs at position 1: the log has step a in doubt with other arguments, the code asks for step a with"
        " new ones"
    )


def test_a_step_whose_arguments_cannot_be_told_apart_may_be_in_doubt() -> None:
    for log, code in [(A1, Call("a", None)), (Call("a", None), A1)]:
        task = recorded((log,), doubt=True)
        assert look_up(task, "1", "step", "a", code.digest) is task.steps["1"]


def test_another_kind_at_a_place_is_a_difference() -> None:
    found = look_up(recorded((A1,)), "1", "timer", "a", "")
    assert found == Differs("1", "step a", "timer a")


def test_a_failed_step_and_one_that_a_person_decided_are_handed_over_too() -> None:
    for outcome in (
        StepFailed("t", 3, 1.0, "1", "step", "a", A1.digest, 1, Fault(("E",), "m").to_data(), None),
        Released("t", 3, 1.0, "1", "value", 7, "ann"),
    ):
        task = recorded((A1,), doubt=True)
        task.version = 2
        fold(task, [outcome])
        found = look_up(task, "1", "step", "a", A1.digest)
        assert isinstance(found, StepRecord)
        assert found.outcome is outcome


@pytest.mark.parametrize(
    ("log", "code", "changed"),
    [(A1, A1, False), (A1, A2, True), (A1, Call("a", None), False), (Call("a", None), A1, False)],
)
def test_arguments_have_changed_where_both_are_known_and_differ(log: Call, code: Call, changed: bool) -> None:
    assert arguments_changed(recorded((log,)).steps["1"], code.digest) is changed


# ------------------------------------------------------------------ any program, any edit


calls = st.builds(Call, st.sampled_from("abc"), st.sampled_from([1, 2]))
programs = st.recursive(
    st.lists(calls, max_size=4).map(tuple),
    lambda inner: st.lists(calls | st.builds(Inner, st.sampled_from("sr"), inner), max_size=4).map(tuple),
    max_leaves=5,
)
items = calls | st.builds(Inner, st.sampled_from("sr"), st.lists(calls, max_size=2).map(tuple))
EDITS = ["insert", "delete", "rename", "swap", "duplicate"]


def scopes_of(program: Program, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Program]]:
    yield at, program
    for index, item in enumerate(program):
        if isinstance(item, Inner):
            yield from scopes_of(item.body, (*at, index))


def replaced(program: Program, at: tuple[int, ...], body: Program) -> Program:
    if not at:
        return body
    item = program[at[0]]
    assert isinstance(item, Inner)
    return (*program[: at[0]], Inner(item.name, replaced(item.body, at[1:], body)), *program[at[0] + 1 :])


@st.composite
def edited(draw: st.DrawFn) -> tuple[Program, Program]:
    """Draw a program, and what it is after one edit somewhere in it."""
    program = draw(programs)
    at, body = draw(st.sampled_from(list(scopes_of(program))))
    kind = draw(st.sampled_from(EDITS if body else ["insert"]))
    index = draw(st.integers(0, len(body) if kind == "insert" else len(body) - 1))
    if kind == "insert":
        new = (*body[:index], draw(items), *body[index:])
    elif kind == "delete":
        new = (*body[:index], *body[index + 1 :])
    elif kind == "duplicate":
        new = (*body[: index + 1], *body[index:])
    elif kind == "swap":
        other = draw(st.integers(0, len(body) - 1))
        listed = list(body)
        listed[index], listed[other] = listed[other], listed[index]
        new = tuple(listed)
    else:
        item = body[index]
        renamed = Call("z", item.argument) if isinstance(item, Call) else Inner("z", item.body)
        new = (*body[:index], renamed, *body[index + 1 :])
    return program, replaced(program, at, new)


def fits(log: dict[str, Call], code: dict[str, Call]) -> bool:
    """Tell by the words of DESIGN 5.11 whether the code fits: all that is in the log, then what is new."""
    known = set(log.values())
    for path, call in log.items():
        now = code.get(path)
        if now is None or now.name != call.name or (now != call and now in known):
            return False
    in_log = [path in log for path in code]
    return in_log == sorted(in_log, reverse=True)


@settings(max_examples=150, deadline=None)
@given(programs, st.integers(0, 12), st.booleans())
def test_a_program_fits_its_own_log_and_goes_on_where_it_was(program: Program, steps: int, doubt: bool) -> None:
    whole = list(asked(program))
    replay = Replay(recorded(program, steps, doubt=doubt), program)
    finished = max(0, min(steps, len(whole)) - doubt)
    assert replay.differs is None
    assert [record.path for record, _ in replay.handed] == [path for path, _ in whole[:finished]]
    assert replay.ran == [path for path, _ in whole[finished:]]


@settings(max_examples=200, deadline=None)
@given(edited(), st.integers(0, 12) | st.none(), st.booleans())
def test_no_record_is_handed_to_a_step_of_another_name(
    change: tuple[Program, Program], steps: int | None, doubt: bool
) -> None:
    before, after = change
    for record, call in Replay(recorded(before, steps, doubt=doubt), after).handed:
        assert (record.kind, record.name) == ("step", call.name)


@settings(max_examples=400, deadline=None)
@given(edited(), st.integers(0, 12) | st.none())
@example(((Inner("s"), Inner("r", (A1,))), (Inner("r", (A1,)),)), None)
@example(((Inner("s", (A1,)), Inner("r", (A1, B1))), (Inner("r", (A1, B1)), Inner("s", (A1,)))), None)
def test_nothing_runs_before_a_difference_is_found(change: tuple[Program, Program], steps: int | None) -> None:
    before, after = change
    replay = Replay(recorded(before, steps), after)
    if replay.differs is not None:
        assert replay.ran == [], f"these ran, then: {replay.differs}"


@settings(max_examples=400, deadline=None)
@given(edited(), st.integers(0, 12) | st.none())
def test_an_edit_is_found_where_the_rule_can_tell(change: tuple[Program, Program], steps: int | None) -> None:
    before, after = change
    log, code = dict(list(asked(before))[:steps]), dict(asked(after))
    assert (Replay(recorded(before, steps), after).differs is None) is fits(log, code)
