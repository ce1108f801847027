"""The rules for parents and children."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from actors.outbox import end_of
from domain.events import CancelRequested, ChildSpawned, Concluded, TaskEvent
from domain.state import ABANDON, CANCEL, WAIT
from domain.waits import child_name
from tests.chaos.evidence import Evidence, History

Found = Iterator[tuple[str, str]]


def children_are_their_parents(evidence: Evidence) -> Found:
    """A child was spawned once, by the task that its own log names: nobody has a child, or a parent, of its own."""
    spawned: dict[str, list[str]] = defaultdict(list)
    for task, history in evidence.histories.items():
        for event in spawns(history):
            spawned[event.child].append(task)
            created = evidence.histories.get(event.child, History([])).created
            birth = None if history.created is None else history.created.birth
            if created is None or (created.parent, created.options.get("parent_birth")) != (task, birth):
                yield task, f"it has spawned {event.child}, which was created as {created}"
    for task, history in evidence.histories.items():
        parent = "" if history.created is None else history.created.parent
        if parent and spawned[task] != [parent]:
            yield task, f"it is a child of {parent}, and was spawned by {spawned[task]}"


def spawns(history: History) -> list[ChildSpawned]:
    """List the spawns of children in a log."""
    return [event for event in history.events if isinstance(event, ChildSpawned)]


def ends_are_told_once(evidence: Evidence) -> Found:
    """A parent's log has one word at most about the end of each child, after that end, and it is true.

    It has one where the parent has ended and waits for its children; and in the end nobody is left to be told.
    """
    for task, history in evidence.histories.items():
        for event in spawns(history):
            told = [letter for letter in history.letters.values() if letter.name == child_name(event.child)]
            ending = evidence.histories.get(event.child, History([])).ending
            if len(told) > 1 or (event.policy == WAIT and not told):
                yield task, f"its child {event.child} ({event.policy}) was told of {len(told)} times: {told}"
            for letter in told:
                if ending is None or letter.value != end_of(ending) or letter.timestamp < ending.timestamp:
                    yield task, f"it was told {letter} of its child {event.child}, which has ended with {ending}"
    for task, row in evidence.rows.items():
        if row.hold == "untold":
            yield task, f"its parent was not told of its end: {row}"


def endings_wait_for_what_is_owed(evidence: Evidence) -> Found:
    """When a parent's ending is in its log each child has what its policy owes; but a person may have ended it."""
    for task, history in evidence.histories.items():
        if history.ending is None or history.at[-1] == 0:
            continue
        for event in spawns(history):
            child = evidence.histories.get(event.child, History([]))
            done: list[TaskEvent] = [child.ending] if child.ending is not None else []
            if event.policy == CANCEL:
                done += [one for one in child.events if isinstance(one, CancelRequested | Concluded)]
            if event.policy != ABANDON and not any(one.timestamp <= history.ending.timestamp for one in done):
                yield task, f"it has ended, and owes ({event.policy}) its child {event.child}: {history.ending} {done}"
