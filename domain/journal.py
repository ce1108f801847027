"""The replay rule: what the code asks for, held against what the log has.

An agent's code runs from the top at each replay, and each step is known by its place in the program: its path. Code
may have changed in the meantime. Where code and log do not fit, nothing runs, and the task is held with both sides
named.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from domain.record import PATCH, STEP, StepRecord
from domain.task import AgentTask


@dataclass(frozen=True)
class Differs:
    """Code and log do not fit at a position. `recorded` and `asked` say what each has there.

    `in_doubt` tells that it is a step in doubt, or whose last attempt failed, with other arguments: under the same key
    they cannot be tried, and a person may say whether it happened.
    """

    path: str
    recorded: str
    asked: str
    in_doubt: bool = False

    def __str__(self) -> str:
        return f"code differs at position {self.path}: the log has {self.recorded}, the code asks for {self.asked}"


class Place(NamedTuple):
    """A position of the program. `beside` are the gathers around it, in whose branches nothing has an order."""

    path: str
    beside: Collection[str] = ()


def look_up(
    task: AgentTask, place: Place, kind: str, names: Collection[str], digest: str
) -> StepRecord | Differs | None:
    """Find what the log has for a call; None where it has nothing and the body may run.

    `names` are the name of what is called and, after it, those that it had before. A record without an outcome is in
    doubt, or waits. Arguments that differ at a finished step are no difference (`arguments_changed` tells); but when
    the log has them at another path of the same name, the order has changed, and in doubt they would make the key a
    lie.
    """
    path, name = place.path, next(iter(names))
    record = task.steps.get(path)
    if record is None:
        return _absent(task, place, f"{kind} {name}")
    if record.kind != kind or record.name not in names:
        return Differs(path, f"{record.kind} {record.name}", f"{kind} {name}")
    if kind == STEP and arguments_changed(record, digest):
        others = (task.places.get((known, digest)) for known in names)
        other = next((found for found in others if found is not None and found != path), None)
        if other is not None:
            return Differs(path, f"{kind} {name} with these arguments at position {other}", f"them at {path}")
        if record.outcome is None:
            state = "in doubt" if record.in_doubt or record.settled else "to be tried again"
            return Differs(path, f"{kind} {name} {state} with other arguments", f"{kind} {name} with new ones", True)
    return record


def look_up_scope(task: AgentTask, path: str, what: str) -> Differs | None:
    """Check that `what` has a scope where the log has no step; a scope without steps leaves no trace."""
    record = task.steps.get(path)
    if record is None:
        return None
    return Differs(path, f"{record.kind} {record.name}", what)


def look_up_gather(task: AgentTask, path: str, branches: int) -> Differs | None:
    """Check that a gather has a branch for all that the log has of it, and stands where the log has no step."""
    asked = f"a gather of {branches} branches"
    for number in range(1, task.scopes.get(path, 0) + 1):
        record = task.steps.get(join(path, number))
        if record is not None:
            return Differs(path, f"a call of an agent, with {record.kind} {record.name}", asked)
    return look_up_scope(task, path, asked) or left_over(task, path, branches)


def look_up_patch(task: AgentTask, place: Place, name: str) -> bool | None:
    """Tell whether the log has a patch at this place; None where it has nothing from here on, and any answer fits."""
    record = task.steps.get(place.path)
    if record is not None:
        return record.kind == PATCH and record.name == name
    return None if _absent(task, place, name) is None else False


def is_replay(task: AgentTask, place: Place) -> bool:
    """Tell whether the log goes on from this place: the code here has run before."""
    return place.path in task.steps or _absent(task, place, "") is not None


def left_over(task: AgentTask, scope: str, asked: int, opened: Collection[str] = ()) -> Differs | None:
    """Check at the end of a scope that the log has no more of it.

    It has asked for `asked` positions, and `opened` the branches of these paths.
    """
    for path, parent in task.keyed.copy().items():  # another branch's append may enter a key meanwhile
        if parent == scope and path not in opened:
            return Differs(path, "a branch", "no branch of that key")
    highest = task.scopes.get(scope, 0)
    if highest <= asked:
        return None
    path = join(scope, asked + 1)
    return Differs(path, _describe(task, scope, asked + 1), "nothing more")


def arguments_changed(record: StepRecord, digest: str) -> bool:
    """Tell whether a call's arguments are known to differ from the recorded ones."""
    return bool(digest and record.digest and record.digest != digest)


def join(scope: str, number: int) -> str:
    """Give the path of position `number` in a scope.

    >>> join("", 2), join("3/1", 2)
    ('2', '3/1/2')
    """
    return f"{scope}/{number}" if scope else str(number)


def branch_path(scope: str, key: str, times: int = 1) -> str:
    """Give the path of a branch by its key; `times` counts the openings of that key in its scope.

    >>> branch_path("", "mail/ann"), branch_path("3/1", "a", 2)
    ('~mail%2Fann', '3/1/~a#2')
    """
    plain = key.replace("%", "%25").replace("/", "%2F").replace("#", "%23")
    step = f"~{plain}" if times == 1 else f"~{plain}#{times}"
    return f"{scope}/{step}" if scope else step


def _absent(task: AgentTask, place: Place, asked: str) -> Differs | None:
    """Check that a new body would be the last thing of the program so far: the log has nothing after it anywhere.

    What stands beside it has no order: other branches of a gather, and whatever surrounds a branch that has a key.
    """
    path = inside = place.path
    if path in task.scopes:
        return Differs(path, "a call of an agent or a gather", asked)
    while inside:
        scope, _, number = inside.rpartition("/")
        if not number.isdecimal():
            break
        if task.scopes.get(scope, 0) > int(number) and scope not in place.beside:
            return Differs(path, f"nothing, but {_describe(task, scope, int(number) + 1)} after it", asked)
        inside = scope
    return None


def _describe(task: AgentTask, scope: str, number: int) -> str:
    """Name the first thing that the log has in a scope from `number` on."""
    for position in range(number, task.scopes.get(scope, 0) + 1):
        path = join(scope, position)
        record = task.steps.get(path)
        if record is not None:
            return f"{record.kind} {record.name}"
        if path in task.scopes:
            return "a call of an agent or a gather"
    return "nothing"
