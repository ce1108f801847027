"""The replay rule: what the code asks for, held against what the log has.

An agent's code runs from the top at each replay, and each step is known by its place in the program: its path. Code
may have changed in the meantime. Where code and log do not fit, nothing runs, and the task is held with both sides
named.
"""

from __future__ import annotations

from dataclasses import dataclass

from domain.record import StepRecord
from domain.task import AgentTask


@dataclass(frozen=True)
class Differs:
    """Code and log do not fit at a position. `recorded` and `asked` say what each has there.

    `in_doubt` tells that it is a step in doubt with other arguments: a person may say whether it happened.
    """

    path: str
    recorded: str
    asked: str
    in_doubt: bool = False

    def __str__(self) -> str:
        return f"code differs at position {self.path}: the log has {self.recorded}, the code asks for {self.asked}"


def look_up(task: AgentTask, path: str, kind: str, name: str, digest: str) -> StepRecord | Differs | None:
    """Find what the log has for a call; None where it has nothing and the body may run.

    A record without an outcome is in doubt. Arguments that differ at a finished step are no difference
    (`arguments_changed` tells); but when the log has them at another path of the same name, the order has changed,
    and in doubt they would make the key a lie.
    """
    record = task.steps.get(path)
    if record is None:
        return _absent(task, path, f"{kind} {name}")
    if record.kind != kind or record.name != name:
        return Differs(path, f"{record.kind} {record.name}", f"{kind} {name}")
    if arguments_changed(record, digest):
        other = task.places.get((name, digest))
        if other is not None and other != path:
            return Differs(path, f"{kind} {name} with these arguments at position {other}", f"them at {path}")
        if record.outcome is None:
            return Differs(path, f"{kind} {name} in doubt with other arguments", f"{kind} {name} with new ones", True)
    return record


def look_up_scope(task: AgentTask, path: str, name: str) -> Differs | None:
    """Check that a call of an agent does not stand where the log has a step; an agent without steps leaves no trace."""
    record = task.steps.get(path)
    if record is None:
        return None
    return Differs(path, f"{record.kind} {record.name}", f"a call of agent {name}")


def left_over(task: AgentTask, scope: str, asked: int) -> Differs | None:
    """Check at the end of a scope, which asked for `asked` positions, that the log has no more of it."""
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


def _absent(task: AgentTask, path: str, asked: str) -> Differs | None:
    """Check that a new body would be the last thing of the program so far: the log has nothing after it anywhere."""
    if path in task.scopes:
        return Differs(path, "a call of an agent", asked)
    place = path
    while place:
        scope, _, number = place.rpartition("/")
        if task.scopes.get(scope, 0) > int(number):
            return Differs(path, f"nothing, but {_describe(task, scope, int(number) + 1)} after it", asked)
        place = scope
    return None


def _describe(task: AgentTask, scope: str, number: int) -> str:
    """Name the first thing that the log has in a scope from `number` on."""
    for position in range(number, task.scopes.get(scope, 0) + 1):
        path = join(scope, position)
        record = task.steps.get(path)
        if record is not None:
            return f"{record.kind} {record.name}"
        if path in task.scopes:
            return "a call of an agent"
    return "nothing"
