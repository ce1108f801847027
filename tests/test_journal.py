"""The replay rule: code and log fit, or nothing runs."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from domain.events import Activated, Created, Released, StepFailed, StepStarted, StepSucceeded, TaskEvent
from domain.faults import Fault
from domain.fold import fold
from domain.journal import (
    PATCH,
    STEP,
    Differs,
    Place,
    arguments_changed,
    branch_path,
    is_replay,
    join,
    left_over,
    look_up,
    look_up_gather,
    look_up_patch,
    look_up_scope,
)
from domain.record import StepRecord
from domain.task import AgentTask

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

    @property
    def bodies(self) -> tuple["Program", ...]:
        return (self.body,)

    def having(self, bodies: tuple["Program", ...]) -> "Inner":
        return replace(self, body=bodies[0])


@dataclass(frozen=True)
class Keyed(Inner):
    """A branch that has a key, with what it does; it takes no position."""


@dataclass(frozen=True)
class Gather:
    """A gather of branches, with what each does."""

    bodies: tuple["Program", ...]

    def having(self, bodies: tuple["Program", ...]) -> "Gather":
        return Gather(bodies)


@dataclass(frozen=True)
class Patch:
    """What the code does where `patched` says yes, and what it did before; inserted into old code."""

    name: str
    new: tuple[Any, ...]
    old: tuple[Any, ...]


Item: TypeAlias = Call | Inner | Keyed | Gather | Patch
Program: TypeAlias = tuple[Item, ...]


def placed(program: Program, scope: str = "") -> Iterator[tuple[str, Item]]:
    """List the items of one scope with their paths."""
    number, opened = 0, Counter[str]()
    for item in program:
        if isinstance(item, Keyed):
            opened[item.name] += 1
            yield branch_path(scope, item.name, opened[item.name]), item
        else:
            number += 1
            yield join(scope, number), item


def asked(program: Program, scope: str = "") -> Iterator[tuple[str, Call]]:
    """List what a program asks for, each step with its path, in the order of one of its runs."""
    for path, item in placed(program, scope):
        if isinstance(item, Call):
            yield path, item
        elif isinstance(item, Gather):
            for number, body in enumerate(item.bodies, 1):
                yield from asked(body, join(path, number))
        elif isinstance(item, Inner):
            yield from asked(item.body, path)


def gathers_of(program: Program, scope: str = "") -> Iterator[str]:
    """List the paths of the gathers."""
    for path, item in placed(program, scope):
        if isinstance(item, Gather):
            yield path
            for number, body in enumerate(item.bodies, 1):
                yield from gathers_of(body, join(path, number))
        elif isinstance(item, Inner):
            yield from gathers_of(item.body, path)


def order_of(program: Program) -> Callable[[str, str], bool]:
    """Give the order of a program: whether what stands at one path is over before that at another can begin.

    Branches of a gather have none, and what is in a branch that has a key is over before nothing outside of it.
    """
    gathers = set(gathers_of(program))

    def before(one: str, other: str) -> bool:
        first, second = one.split("/"), other.split("/")
        depth = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        if depth is None or "~" in "".join(first[depth:]) or second[depth][0] == "~":
            return False
        return "/".join(first[:depth]) not in gathers and int(first[depth]) < int(second[depth])

    return before


def made(events: list[TaskEvent]) -> AgentTask:
    head: list[TaskEvent] = [
        Created("t", 1, 1.0, "birth", "agent", [], "", {}, {}),
        Activated("t", 2, 1.0, 1, "w", "token"),
    ]
    task = fold(None, [*head, *events])
    assert task is not None
    return task


def recorded(program: Program, steps: int | None = None, *, doubt: bool = False) -> AgentTask:
    """Run a program for so many steps, all by default; the last may be left in doubt."""
    calls = list(asked(program))[:steps]
    return log_of(calls, doubts={calls[-1][0]} if doubt and calls else set())


def log_of(calls: list[tuple[str, Call]], doubts: set[str]) -> AgentTask:
    """Record these steps in this order, all but those in doubt with an outcome."""
    events: list[TaskEvent] = []
    for path, call in calls:
        named = (path, "step", call.name)
        events.append(StepStarted("t", len(events) + 3, 1.0, *named, 1, call.digest, "", "", None))
        if path not in doubts:
            events.append(StepSucceeded("t", len(events) + 3, 1.0, *named, call.digest, 1, path, ""))
    return made(events)


@st.composite
def runs(draw: st.DrawFn, program: Program) -> tuple[list[tuple[str, Call]], set[str]]:
    """Draw how far a program has come: its steps in any order that it allows, and those of them in doubt."""
    before, waiting = order_of(program), dict(asked(program))
    calls: list[tuple[str, Call]] = []
    for _ in range(draw(st.integers(0, len(waiting)))):
        ready = [path for path in waiting if not any(before(other, path) for other in waiting)]
        path = draw(st.sampled_from(ready))
        calls.append((path, waiting.pop(path)))
    last = [path for path, _ in calls if not any(before(path, other) for other, _ in calls)]
    return calls, draw(st.sets(st.sampled_from(last))) if last else set()


class Replay:
    """A walk of a program over a log, as an activation does it: `handed`, `ran` and where it was stopped.

    With `records` what is run is recorded too, and the walk is that of a life that goes on.
    """

    def __init__(self, task: AgentTask, program: Program, *, records: bool = False) -> None:
        self.task = task
        self.handed: list[tuple[StepRecord, Call]] = []
        self.ran: list[str] = []
        self.places: list[tuple[Place, bool]] = []
        self.differs: Differs | None = None
        self._records = records
        self._patches: dict[str, bool] = {}
        self._walk(program, "", ())

    def _walk(self, program: Program, scope: str, beside: tuple[str, ...]) -> bool:
        items, number, opened = deque(program), 0, Counter[str]()
        while items and self.differs is None:
            item, path = items.popleft(), join(scope, number + 1)
            if isinstance(item, Keyed):
                opened[item.name] += 1
                self._walk(item.body, branch_path(scope, item.name, opened[item.name]), beside)
            elif isinstance(item, Patch):
                yes = self._patched(item, Place(path, beside))
                number += yes
                items.extendleft(reversed(item.new if yes else item.old))
            else:
                number += 1
                self._do(item, path, beside)
        paths = [branch_path(scope, key, n) for key in opened for n in range(1, opened[key] + 1)]
        self.differs = self.differs or left_over(self.task, scope, number, paths)
        return self.differs is None

    def _do(self, item: Item, path: str, beside: tuple[str, ...]) -> None:
        if isinstance(item, Gather):
            self.differs = look_up_gather(self.task, path, len(item.bodies))
            for number, body in enumerate(item.bodies, 1):
                if self.differs is None:
                    self._walk(body, join(path, number), (*beside, path))
            self.differs = self.differs or left_over(self.task, path, len(item.bodies))
        elif isinstance(item, Inner):
            self.differs = look_up_scope(self.task, path, f"a call of agent {item.name}")
            if self.differs is None:
                self._walk(item.body, path, beside)
        elif isinstance(item, Call):
            self._call(item, Place(path, beside))

    def _call(self, call: Call, place: Place) -> None:
        self.places.append((place, is_replay(self.task, place)))
        found = look_up(self.task, place, STEP, (call.name,), call.digest)
        if isinstance(found, Differs):
            self.differs = found
        elif found is None or found.in_doubt:
            self._run(place.path, STEP, call.name, call.digest)
        else:
            self.handed.append((found, call))

    def _patched(self, patch: Patch, place: Place) -> bool:
        answer = look_up_patch(self.task, place, patch.name)
        if answer is None:
            answer = self._patches.get(patch.name, True)
            if answer:
                self._run(place.path, PATCH, patch.name, "")
        self._patches.setdefault(patch.name, answer)
        return answer

    def _run(self, path: str, kind: str, name: str, digest: str) -> None:
        self.ran.append(path)
        if self._records:
            fold(self.task, [StepSucceeded("t", self.task.version + 1, 1.0, path, kind, name, digest, 1, path, "")])


def early(replay: Replay, program: Program) -> list[str]:
    """List what ran, though it is over before the place at which the difference was found can be reached."""
    before, differs = order_of(program), replay.differs
    return [path for path in replay.ran if differs is not None and before(path, differs.path)]


# ------------------------------------------------------------------ each row of the rule


A1, A2, A3, B1, B2, C1 = Call("a", 1), Call("a", 2), Call("a", 3), Call("b", 1), Call("b", 2), Call("c", 1)
G_AB, K_A, K_B = Gather(((A1,), (B1,))), Keyed("k", (A1,)), Keyed("l", (B1,))
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
        "position 1: the log has a call of an agent or a gather, the code asks for step a",
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
        "position 1: the log has nothing, but a call of an agent or a gather after it, the code asks for step a",
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
        "position 2: the log has a call of an agent or a gather, the code asks for nothing more",
    ),
    (
        "only an agent without steps is left of two",
        (A1, Inner("s"), Inner("r", (B1,))),
        (A1, Inner("s")),
        "position 3: the log has a call of an agent or a gather, the code asks for nothing more",
    ),
    ("a gather", (A1, G_AB, C1), (A1, G_AB, C1), None),
    ("a gather without steps", (Gather(((), ())), B1), (Gather(()), B1), None),
    ("more branches at the end", (Gather(((A1,),)),), (Gather(((A1,), (B1,))), C1), None),
    ("more in each branch", (G_AB,), (Gather(((A1, C1), (B1, C1))),), None),
    (
        "more in a branch, and the log goes on after the gather",
        (G_AB, C1),
        (Gather(((A1, C1), (B1,))), C1),
        "position 1/1/2: the log has nothing, but step c after it, the code asks for step c",
    ),
    (
        "a branch deleted",
        (G_AB,),
        (Gather(((A1, B1),)),),
        "position 1/2: the log has a call of an agent or a gather, the code asks for nothing more",
    ),
    (
        "branches that changed places",
        (G_AB,),
        (Gather(((B1,), (A1,))),),
        "position 1/1/1: the log has step a, the code asks for step b",
    ),
    (
        "the branches of one step changed places",
        (Gather(((A1,), (A2,))),),
        (Gather(((A2,), (A1,))),),
        "position 1/1/1: the log has step a with these arguments at position 1/2/1, the code asks for them at 1/1/1",
    ),
    (
        "a gather where a step was",
        (A1, B1),
        (G_AB, B1),
        "position 1: the log has step a, the code asks for a gather of 2 branches",
    ),
    (
        "a step where a gather was",
        (G_AB,),
        (A1,),
        "position 1: the log has a call of an agent or a gather, the code asks for step a",
    ),
    (
        "a gather where an agent was",
        (Inner("s", (A1, B1)),),
        (G_AB,),
        "position 1: the log has a call of an agent, with step a, the code asks for a gather of 2 branches",
    ),
    (
        "an agent where a gather was",
        (G_AB,),
        (Inner("s", (A1, B1)),),
        "position 1/1: the log has a call of an agent or a gather, the code asks for step a",
    ),
    (
        "a gather where an agent with branches was",
        (Inner("s", (Keyed("k", (A1,)),)),),
        (G_AB,),
        "position 1/~k: the log has a branch, the code asks for no branch of that key",
    ),
    ("a branch with a key", (A1, Keyed("k", (B1,)), C1), (A1, Keyed("k", (B1,)), C1), None),
    ("branches with keys changed places", (K_A, K_B), (K_B, K_A), None),
    ("code that was put around a branch with a key", (K_A,), (B1, K_A, Inner("s"), C1), None),
    ("more in a branch with a key", (K_A, C1), (Keyed("k", (A1, B1)), C1), None),
    ("one more branch with a key", (K_A, C1), (K_A, K_B, C1), None),
    ("one more of the same key", (K_A,), (K_A, Keyed("k", (A1,))), None),
    (
        "no branch of that key",
        (A1, K_B),
        (A1,),
        "position ~l: the log has a branch, the code asks for no branch of that key",
    ),
    (
        "one less of the same key",
        (K_A, K_A),
        (K_A,),
        "position ~k#2: the log has a branch, the code asks for no branch of that key",
    ),
    (
        "another key",
        (K_A,),
        (Keyed("m", (A1,)),),
        "position ~k: the log has a branch, the code asks for no branch of that key",
    ),
    (
        "less in a branch with a key",
        (Keyed("k", (A1, B1)),),
        (K_A,),
        "position ~k/2: the log has step b, the code asks for nothing more",
    ),
    (
        "another name in a branch with a key",
        (K_A,),
        (Keyed("k", (B1,)),),
        "position ~k/1: the log has step a, the code asks for step b",
    ),
    (
        "a step where an agent with branches was",
        (Inner("s", (K_A,)),),
        (A1,),
        "position 1: the log has a call of an agent or a gather, the code asks for step a",
    ),
    (
        "a step before an agent with branches",
        (Inner("s"), Inner("r", (K_A,))),
        (B1, Inner("r", (K_A,))),
        "position 1: the log has nothing, but a call of an agent or a gather after it, the code asks for step b",
    ),
]


@pytest.mark.parametrize(("log", "code", "message"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_code_that_does_not_fit_its_log_is_told_where_and_how(log: Program, code: Program, message: str | None) -> None:
    replay = Replay(recorded(log), code)
    assert (replay.differs and str(replay.differs)) == (message and f"code differs at {message}")
    if replay.differs is not None:
        assert early(replay, code) == []


def test_a_step_in_doubt_with_other_arguments_would_make_its_key_a_lie() -> None:
    task = recorded((A1,), doubt=True)
    assert look_up(task, Place("1"), "step", ("a",), A1.digest) is task.steps["1"]
    found = look_up(task, Place("1"), "step", ("a",), A2.digest)
    assert str(found) == (
        "code differs at position 1: the log has step a in doubt with other arguments, the code asks for step a with"
        " new ones"
    )


def test_a_step_whose_arguments_cannot_be_told_apart_may_be_in_doubt() -> None:
    for log, code in [(A1, Call("a", None)), (Call("a", None), A1)]:
        task = recorded((log,), doubt=True)
        assert look_up(task, Place("1"), "step", ("a",), code.digest) is task.steps["1"]


def test_another_kind_at_a_place_is_a_difference() -> None:
    found = look_up(recorded((A1,)), Place("1"), "timer", ("a",), "")
    assert found == Differs("1", "step a", "timer a")


def test_a_failed_step_and_one_that_a_person_decided_are_handed_over_too() -> None:
    for outcome in (
        StepFailed("t", 3, 1.0, "1", "step", "a", A1.digest, 1, Fault(("E",), "m").to_data(), None),
        Released("t", 3, 1.0, "1", "value", 7, "ann"),
    ):
        task = recorded((A1,), doubt=True)
        task.version = 2
        fold(task, [outcome])
        found = look_up(task, Place("1"), "step", ("a",), A1.digest)
        assert isinstance(found, StepRecord)
        assert found.outcome is outcome


def test_a_branch_may_run_on_while_the_log_has_more_of_another() -> None:
    code = (Gather(((A1, B1), (A2, B2))),)
    for path in ("1/1/1", "1/2/1"):
        replay = Replay(log_of([(path, dict(asked(code))[path])], set()), code)
        assert replay.differs is None
        assert [record.path for record, _ in replay.handed] == [path]
        assert {*replay.ran, path} == {"1/1/1", "1/1/2", "1/2/1", "1/2/2"}


@pytest.mark.parametrize("log", [[("1/3/1", A1)], [("1/1/1", A1), ("1/4/2/1", B1)], [("1/~k/1", A1)]])
def test_a_gather_that_lacks_a_branch_of_its_log_runs_none_of_the_others(log: list[tuple[str, Call]]) -> None:
    replay = Replay(log_of(log, set()), (Gather(((A1, B1), (C1,))),))
    assert replay.differs is not None
    assert (replay.handed, replay.ran) == ([], [])


def test_only_the_gathers_around_a_place_are_beside_it() -> None:
    task = log_of([("1/2/1", A1), ("2", B1)], set())
    assert look_up(log_of([("1/2/1", A1)], set()), Place("1/1/1", ["1"]), STEP, ["c"], "") is None
    assert isinstance(look_up(log_of([("1/2/1", A1)], set()), Place("1/1/1"), STEP, ["c"], ""), Differs)
    assert isinstance(look_up(task, Place("1/1/1", ["1"]), STEP, ["c"], ""), Differs)


def test_a_step_is_found_by_the_names_that_it_had_before() -> None:
    task = recorded((A1, A2))
    for names in (("new", "a"), ("new", "other", "a"), ("a", "new")):
        assert look_up(task, Place("1"), STEP, names, A1.digest) is task.steps["1"]
    found = look_up(task, Place("1"), STEP, ("new", "other"), A1.digest)
    assert found == Differs("1", "step a", "step new")


def test_the_order_of_renamed_steps_has_changed_too() -> None:
    found = look_up(recorded((A1, A2)), Place("1"), STEP, ("new", "a"), A2.digest)
    assert found == Differs("1", "step new with these arguments at position 2", "them at 1")


def test_a_step_that_waits_for_its_next_attempt_with_other_arguments_would_make_its_key_a_lie_too() -> None:
    failed = StepFailed("t", 3, 1.0, "1", "step", "a", A1.digest, 1, Fault(("E",), "m").to_data(), 9.0)
    task = made([failed])
    found = look_up(task, Place("1"), STEP, ("a",), A1.digest)
    assert isinstance(found, StepRecord)
    assert (found.outcome, found.in_doubt, found.retry_at) == (None, False, 9.0)
    differs = look_up(task, Place("1"), STEP, ("a",), A2.digest)
    assert isinstance(differs, Differs)
    assert differs.in_doubt


@pytest.mark.parametrize(
    ("scope", "key", "times", "path"),
    [
        ("", "k", 1, "~k"),
        ("3/1", "k", 2, "3/1/~k#2"),
        ("~k", "a/b", 1, "~k/~a%2Fb"),
        ("", "a#2", 1, "~a%232"),
        ("", "a%2Fb", 1, "~a%252Fb"),
        ("", "~", 1, "~~"),
    ],
)
def test_the_path_of_a_branch_has_its_key(scope: str, key: str, times: int, path: str) -> None:
    assert branch_path(scope, key, times) == path


@given(st.lists(st.tuples(st.text("ab/#%~2F", min_size=1), st.integers(1, 3)), unique=True, min_size=2, max_size=2))
def test_two_branches_never_have_one_path(branches: list[tuple[str, int]]) -> None:
    one, other = (branch_path("1", key, times) for key, times in branches)
    assert one != other
    assert one.count("/") == other.count("/") == 1


@pytest.mark.parametrize(
    ("log", "code", "changed"),
    [(A1, A1, False), (A1, A2, True), (A1, Call("a", None), False), (Call("a", None), A1, False)],
)
def test_arguments_have_changed_where_both_are_known_and_differ(log: Call, code: Call, changed: bool) -> None:
    assert arguments_changed(recorded((log,)).steps["1"], code.digest) is changed


# ------------------------------------------------------------------ patches


def patched(task: AgentTask, path: str, *beside: str, name: str = "p") -> bool | None:
    return look_up_patch(task, Place(path, beside), name)


def answered(path: str, name: str = "p") -> AgentTask:
    return made([StepSucceeded("t", 3, 1.0, path, PATCH, name, "", 1, True, "")])


def test_new_code_is_for_tasks_that_have_not_come_further() -> None:
    task = recorded((A1, Inner("s", (B1,))))
    assert [patched(task, path) for path in ("1", "2", "2/1", "2/2", "3")] == [False, False, False, None, None]


def test_what_was_answered_is_in_the_log() -> None:
    task = answered("2/1")
    assert patched(task, "2/1") is True
    assert patched(task, "2/1", name="another") is False
    assert patched(task, "1") is False
    assert patched(task, "2/2") is None
    assert look_up(task, Place("2/1"), STEP, ("p",), "") == Differs("2/1", "patch p", "step p")


def test_a_branch_may_be_told_of_a_patch_while_the_log_goes_on_in_another() -> None:
    task = log_of([("1/2/1", A1)], set())
    assert patched(task, "1/1/1", "1") is None
    assert patched(task, "1/2/1", "1") is False
    assert patched(task, "~k/1") is None


# ------------------------------------------------------------------ any program, any edit


calls = st.builds(Call, st.sampled_from("abc"), st.sampled_from([1, 2]))


def items_of(inner: st.SearchStrategy[Program]) -> st.SearchStrategy[Item]:
    return st.one_of(
        calls,
        st.builds(Inner, st.sampled_from("sr"), inner),
        st.builds(Keyed, st.sampled_from("kl"), inner),
        st.builds(Gather, st.lists(inner, max_size=3).map(tuple)),
    )


short = st.lists(calls, max_size=2).map(tuple)
programs = st.recursive(
    st.lists(calls, max_size=4).map(tuple),
    lambda inner: st.lists(items_of(inner), max_size=4).map(tuple),
    max_leaves=6,
)
EDITS = ["insert", "delete", "rename", "swap", "duplicate"]
At: TypeAlias = tuple[tuple[int, int], ...]
"""Where a body stands: for each level the index of an item, and which of its bodies."""


def bodies_in(program: Program, at: At = ()) -> Iterator[tuple[At, Program]]:
    """List the program and the bodies of all that it calls."""
    yield at, program
    for index, item in enumerate(program):
        if isinstance(item, Inner | Gather):
            for which, body in enumerate(item.bodies):
                yield from bodies_in(body, (*at, (index, which)))


def replaced(program: Program, at: At, body: Program) -> Program:
    if not at:
        return body
    (index, which), *deeper = at
    item = program[index]
    assert isinstance(item, Inner | Gather)
    bodies = list(item.bodies)
    bodies[which] = replaced(bodies[which], tuple(deeper), body)
    return (*program[:index], item.having(tuple(bodies)), *program[index + 1 :])


def renamed(item: Any) -> Any:
    """Give it another name; a gather becomes agents that are called one after the other, at the same places."""
    if isinstance(item, Call):
        return Call("z", item.argument)
    if isinstance(item, Gather):
        return Inner("z", tuple(Inner("z", body) for body in item.bodies))
    return replace(item, name="z")


@st.composite
def changed(draw: st.DrawFn, listed: tuple[Any, ...], more: st.SearchStrategy[Any], kinds: list[str]) -> Any:
    """Draw a list after one edit."""
    kind = draw(st.sampled_from(kinds if listed else ["insert"]))
    index = draw(st.integers(0, len(listed) if kind == "insert" else len(listed) - 1))
    if kind == "insert":
        return (*listed[:index], draw(more), *listed[index:])
    if kind == "delete":
        return (*listed[:index], *listed[index + 1 :])
    if kind == "duplicate":
        return (*listed[: index + 1], *listed[index:])
    if kind == "rename":
        return (*listed[:index], renamed(listed[index]), *listed[index + 1 :])
    other, swapped = draw(st.integers(0, len(listed) - 1)), list(listed)
    swapped[index], swapped[other] = swapped[other], swapped[index]
    return tuple(swapped)


@st.composite
def edited(draw: st.DrawFn) -> tuple[Program, Program]:
    """Draw a program, and what it is after one edit somewhere in it: of a body, or of the branches of a gather."""
    program = draw(programs)
    at, body = draw(st.sampled_from(list(bodies_in(program))))
    gathers = [index for index, item in enumerate(body) if isinstance(item, Gather)]
    if gathers and draw(st.booleans()):
        index = draw(st.sampled_from(gathers))
        item = body[index]
        assert isinstance(item, Gather)
        branches = draw(changed(item.bodies, short, ["insert", "delete", "swap", "duplicate"]))
        return program, replaced(program, at, (*body[:index], Gather(branches), *body[index + 1 :]))
    return program, replaced(program, at, draw(changed(body, items_of(short), EDITS)))


@st.composite
def lives(
    draw: st.DrawFn, changes: st.SearchStrategy[tuple[Program, Program]]
) -> tuple[list[tuple[str, Call]], set[str], Program]:
    """Draw what the log of a program has, what of it is in doubt, and the code of today."""
    before, after = draw(changes)
    log, doubts = draw(runs(before))
    return log, doubts, after


def fits(log: Mapping[str, Call], doubts: set[str], program: Program) -> bool:
    """Tell by the words of DESIGN 5.11 whether the code fits: all that is in the log, then what is new."""
    known, code, before = set(log.values()), dict(asked(program)), order_of(program)
    for path, call in log.items():
        now = code.get(path)
        if now is None or now.name != call.name or (now != call and (now in known or path in doubts)):
            return False
    return not any(before(path, other) for path in code.keys() - log.keys() for other in log)


unchanged = programs.map(lambda program: (program, program))


@settings(max_examples=200, deadline=None)
@given(lives(unchanged))
def test_a_program_fits_its_own_log_and_goes_on_where_it_was(
    life: tuple[list[tuple[str, Call]], set[str], Program],
) -> None:
    log, doubts, program = life
    replay = Replay(log_of(log, doubts), program)
    whole, finished = [path for path, _ in asked(program)], {path for path, _ in log} - doubts
    assert replay.differs is None
    assert [record.path for record, _ in replay.handed] == [path for path in whole if path in finished]
    assert replay.ran == [path for path in whole if path not in finished]


@settings(max_examples=200, deadline=None)
@given(lives(unchanged))
def test_a_life_that_goes_on_leaves_a_log_that_its_program_fits_and_nothing_to_run(
    life: tuple[list[tuple[str, Call]], set[str], Program],
) -> None:
    log, doubts, program = life
    task, whole = log_of(log, doubts), [path for path, _ in asked(program)]
    assert Replay(task, program, records=True).differs is None
    again = Replay(task, program)
    assert (again.differs, again.ran) == (None, [])
    assert [record.path for record, _ in again.handed] == whole
    assert not any(record.in_doubt for record in task.steps.values())


@settings(max_examples=200, deadline=None)
@given(lives(unchanged))
def test_code_is_replayed_up_to_the_last_of_its_line_that_is_in_the_log(
    life: tuple[list[tuple[str, Call]], set[str], Program],
) -> None:
    log, doubts, program = life
    before, known = order_of(program), {path for path, _ in log}
    for place, replaying in Replay(log_of(log, doubts), program).places:
        path = place.path
        assert replaying is (path in known or any(before(path, other) for other in known))


@settings(max_examples=300, deadline=None)
@given(lives(edited()))
def test_no_record_is_handed_to_a_step_of_another_name(
    life: tuple[list[tuple[str, Call]], set[str], Program],
) -> None:
    log, doubts, program = life
    for record, call in Replay(log_of(log, doubts), program).handed:
        assert (record.kind, record.name) == ("step", call.name)


@settings(max_examples=400, deadline=None)
@given(lives(edited()))
@example(([("2/1", A1)], set(), (Inner("r", (A1,)),)))
@example(([("1/1", A1), ("2/1", A1), ("2/2", B1)], set(), (Inner("r", (A1, B1)), Inner("s", (A1,)))))
@example(([("1/~k/1", A1)], set(), (G_AB,)))
@example(([("1/2/1", A1)], set(), (Gather(((A1,),)),)))
def test_nothing_runs_before_a_difference_is_found(
    life: tuple[list[tuple[str, Call]], set[str], Program],
) -> None:
    log, doubts, program = life
    replay = Replay(log_of(log, doubts), program)
    if replay.differs is not None:
        assert set(early(replay, program)) <= doubts, f"these ran, then: {replay.differs}"


@settings(max_examples=600, deadline=None)
@given(lives(edited()))
def test_an_edit_is_found_where_the_rule_can_tell(
    life: tuple[list[tuple[str, Call]], set[str], Program],
) -> None:
    log, doubts, program = life
    assert (Replay(log_of(log, doubts), program).differs is None) is fits(dict(log), doubts, program)


@st.composite
def patches(draw: st.DrawFn) -> tuple[Program, Program]:
    """Draw a program, and what it is with a patch put somewhere in it, in the place of some of its items or of none.

    Branches that have a key stay out of the patch: whether one stands before or after a place, its key does not tell.
    """
    program = draw(programs)
    at, body = draw(st.sampled_from(list(bodies_in(program))))
    start = draw(st.integers(0, len(body)))
    end = draw(st.integers(start, len(body)))
    new = draw(st.lists(items_of(short), max_size=3).map(tuple))
    assume(not any(isinstance(item, Keyed) for item in (*new, *body[start:end])))
    return program, replaced(program, at, (*body[:start], Patch("p", new, body[start:end]), *body[end:]))


@settings(max_examples=400, deadline=None)
@given(lives(patches()))
def test_a_patch_fits_every_log_of_the_code_before_it_and_its_answer_holds(
    life: tuple[list[tuple[str, Call]], set[str], Program],
) -> None:
    log, doubts, program = life
    task = log_of(log, doubts)
    first = Replay(task, program, records=True)
    assert first.differs is None
    assert {record.path for record, _ in first.handed} == {path for path, _ in log} - doubts
    again = Replay(task, program)
    assert (again.differs, again.ran) == (None, [])
