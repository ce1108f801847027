"""The rules for what is called off, and for what is undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from domain.events import (
    CancelDelivered,
    Cancelled,
    CancelRequested,
    Completed,
    Concluded,
    Failed,
    StepStarted,
    StepSucceeded,
    UndoRegistered,
)
from domain.record import STEP, UNDO
from domain.state import UNDOS
from domain.values import decode
from tests.chaos.evidence import Evidence, History, is_of_step

Found = Iterator[tuple[str, str]]


class Owed(NamedTuple):
    """An undo that was registered: the place of what it undoes, the step that does it, the number it is given."""

    path: str
    name: str
    number: Any


def owed(history: History) -> list[Owed]:
    """List the undos that a log has, the last registered first.

    A success counts for what its own attempt has said, and for nothing that an earlier one had said in doubt.
    """
    undos: list[Owed] = []
    for event in history.events:
        if isinstance(event, StepSucceeded) and event.kind == STEP:
            undos = [undo for undo in undos if undo.path != event.path]
        if isinstance(event, StepSucceeded) and event.kind == UNDO:
            undos.append(Owed(event.path, event.name, number_of(event.value)))
        elif isinstance(event, UndoRegistered):
            undos.append(Owed(event.path, event.name, number_of(event.arguments)))
    return undos[::-1]


def number_of(arguments: Any) -> Any:
    args, _ = decode(arguments)  # type: ignore[misc]  as it was registered
    return args[0]


def undos_are_done(evidence: Evidence) -> Found:
    """A task that has failed or was cancelled has done each undo once, the last registered first; no other has one.

    One that a person has ended while it was held may owe some: nothing of it runs any more.
    """
    people = {line.task for line in evidence.lines if line.what == "ended"}
    for task, history in evidence.histories.items():
        done = [e for e in history.events if isinstance(e, StepSucceeded) and e.path.startswith(f"{UNDOS}/")]
        told = [[event.path, event.name, decode(event.value)[0]] for event in done]
        undos = [[f"{UNDOS}/{n}", undo.name, undo.number] for n, undo in enumerate(owed(history), 1)]
        undos = [] if isinstance(history.ending, Completed) else undos
        given_up = history.ending is None or (history.at[-1] == 0 and (task in people or ended_by_cancel(history)))
        if told != (undos[: len(told)] if given_up else undos):
            yield task, f"it owes the undos {undos}, and has done {told}"
        entered = {path for one, path in evidence.effects if one == task and path.startswith(f"{UNDOS}/")}
        if not entered <= {path for path, *_ in undos}:
            yield task, f"it owes the undos {undos}, and has entered {entered}"


def ended_by_cancel(history: History) -> bool:
    """Tell whether a task has ended in the very append in which it was called off, by whoever that was but a task."""
    asked = history.events[-2]
    return isinstance(asked, CancelRequested) and not asked.by.startswith("task ")


def cancels_are_asked_for_once(evidence: Evidence) -> Found:
    """A log has one request to cancel at most, and without it nothing is cancelled, or hears of a cancellation."""
    for task, history in evidence.histories.items():
        asked: CancelRequested | None = None
        for event in history.events:
            if isinstance(event, CancelRequested):
                if asked is not None:
                    yield task, f"it was called off twice: {event}"
                asked = event
                yield from _on_time(task, history, event)
            elif isinstance(event, Cancelled):
                if asked is None or (event.reason, event.by) != (asked.reason, asked.by):
                    yield task, f"it is cancelled after {asked}: {event}"
            elif isinstance(event, CancelDelivered) and asked is None:
                yield task, f"it hears of a cancellation that nobody asked for: {event}"
    for line in [line for line in evidence.lines if line.what == "cancelled"]:
        history = evidence.histories.get(line.task, History([]))
        found = [event.reason for event in history.events if isinstance(event, CancelRequested)]
        if found != [line.token]:
            yield line.task, f"it was called off by {line.token!r}, and its log has {found}"


def _on_time(task: str, history: History, event: CancelRequested) -> Found:
    deadline = None if history.created is None else history.created.options.get("deadline")
    if event.by == "deadline" and (deadline is None or event.timestamp < deadline):
        yield task, f"it was called off before its deadline, {deadline}: {event}"


def clean_up_has_its_grace(evidence: Evidence) -> Found:
    """What was called off is cut short only when its grace is over; but where nobody could clean up."""
    for task, history in evidence.histories.items():
        asked: CancelRequested | None = None
        for number, event in zip(history.at, history.events, strict=True):
            if isinstance(event, CancelRequested):
                asked = event
            elif isinstance(event, Concluded | Cancelled) and event.cut and number > 0:
                decided = isinstance(event, Cancelled) and any(isinstance(one, Concluded) for one in history.events)
                if not decided and (asked is None or event.timestamp < asked.timestamp + asked.grace):
                    yield task, f"it was called off by {asked}, and cut short before its grace was over: {event}"


def endings_name_what_is_in_doubt(evidence: Evidence) -> Found:
    """A task that has failed or was cancelled names the steps of which nobody knows whether they happened."""
    for task, history in evidence.histories.items():
        if not isinstance(history.ending, Failed | Cancelled):
            continue
        doubts: dict[str, bool] = {}
        for event in history.events:
            if isinstance(event, Concluded):
                break
            if is_of_step(event) and not isinstance(event, CancelDelivered):
                doubts[event.path] = isinstance(event, StepStarted)
        wanted = [path for path, in_doubt in doubts.items() if in_doubt]
        if sorted(history.ending.doubts) != sorted(wanted):
            yield task, f"the steps {wanted} are in doubt, and its ending says {history.ending.doubts}"


def what_was_called_off_runs_no_more(evidence: Evidence) -> Found:
    """A step that came to the cancellation of its task has it once, and its body is not entered after that."""
    for task, history in evidence.histories.items():
        delivered = [event for event in history.events if isinstance(event, CancelDelivered)]
        for path, times in Counter(event.path for event in delivered).items():
            if times > 1:
                yield task, f"it hears {times} times of its cancellation at {path}"
        for event in delivered:
            if event.kind != STEP:
                continue
            number = history.at[event.originator_version - 1]
            started = {one.attempt for _, one in history.steps[event.path] if isinstance(one, StepStarted)}
            for line in evidence.effects.get((task, event.path), []):
                late = line.activation == number and line.at > event.timestamp and line.attempt not in started
                if late or line.activation > number:
                    yield task, f"step {event.path} was called off, and entered after that: {line}"
