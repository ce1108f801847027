"""The rules for all waits: what they wait for comes once, in order, and beats a time that has passed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from math import inf
from typing import Any

from domain.events import (
    ApprovalRequested,
    CancelDelivered,
    Completed,
    SignalReceived,
    StepFailed,
    WaitBegan,
    WaitEnded,
)
from domain.record import STEP
from domain.values import decode
from domain.waits import APPROVAL, CHILD, RESERVED, SIGNAL, answer_name, child_name
from tests.chaos.evidence import Evidence, History

SLEW = 0.05
"""Seconds by which the wall clock and the monotonic one may differ over one wait."""

Found = Iterator[tuple[str, str]]


def waits_end_once(evidence: Evidence) -> Found:
    """Each wait begins once, ends once, and not before it has begun; who has completed waits for nothing."""
    for task, history in evidence.histories.items():
        for path, events in history.places.items():
            began = [event for event in events if isinstance(event, WaitBegan)]
            ended = [event for event in events if is_end(event)]
            if len(began) > 1 or len(ended) > 1:
                yield task, f"the wait at {path} began or ended more than once: {began} {ended}"
            elif began and ended and began[0].originator_version > ended[0].originator_version:
                yield task, f"the wait at {path} ended before it began: {began} {ended}"
            elif began and not ended and isinstance(history.ending, Completed):
                yield task, f"it has completed, and waits at {path}: {began}"


def is_end(event: Any) -> bool:
    """Tell whether an event is the end of a wait."""
    cancelled = isinstance(event, CancelDelivered | StepFailed) and event.kind != STEP
    return isinstance(event, WaitEnded) or cancelled


def signals_are_taken_once_and_in_order(evidence: Evidence) -> Found:
    """What ends a wait is the first of its name that nobody has taken; answers and ends of children are for all."""
    for task, history in evidence.histories.items():
        for event in history.events:
            if not isinstance(event, WaitEnded) or not event.signal:
                continue
            letter = history.letters.get(event.signal)
            if letter is None or letter.originator_version > event.originator_version:
                yield task, f"this wait was ended by nothing that was in the log: {event}"
                continue
            names = wanted(history, event)
            if names is not None and letter.name not in names:
                yield task, f"this wait was ended by {letter}: {event}"
            first = first_of(history, letter.name, event.originator_version)
            if first != event.signal:
                yield task, f"this wait was ended by {letter}, the first that nobody had taken was {first}: {event}"


def wanted(history: History, event: WaitBegan | WaitEnded) -> list[str] | None:
    """Give the names for which a wait waits; None where the log does not say so, for it ended as it began."""
    began = next((one for one in history.places[event.path] if isinstance(one, WaitBegan)), None)
    if began is not None:
        return [name for kind, name, _ in began.sources if name]
    names = {SIGNAL: event.name, APPROVAL: answer_name(event.name), CHILD: child_name(event.name)}
    return [names[event.kind]] if event.kind in names else None


def first_of(history: History, name: str, before: int) -> int | None:
    """Give the version of the first thing under a name that nobody had taken before that version."""
    came = [version for version, letter in history.letters.items() if letter.name == name and version < before]
    if name.startswith(RESERVED):
        return min(came, default=None)
    taken = {event.signal for event in history.events[: before - 1] if isinstance(event, WaitEnded)}
    return min((version for version in came if version not in taken), default=None)


def the_log_beats_a_time(evidence: Evidence) -> Found:
    """No wait ends by a time while what it waits for is in the log, and none by a time that has not come."""
    for task, history in evidence.histories.items():
        for event in history.events:
            if not isinstance(event, WaitEnded) or event.signal:
                continue
            for name in wanted(history, event) or []:
                first = first_of(history, name, event.originator_version)
                if first is not None:
                    yield task, f"this wait has ended by its time after {history.letters[first]}: {event}"
            due = due_of(history, event)
            if due is not None and event.timestamp < due - SLEW:
                yield task, f"this wait has ended {due - event.timestamp} s before its time: {event}"


def due_of(history: History, event: WaitEnded) -> float | None:
    """Give the time by which a wait has ended, as its beginning in the log has it: none that ever comes, if need be."""
    began = next((one for one in history.places[event.path] if isinstance(one, WaitBegan)), None)
    if began is None:
        return None
    due: Any = began.due if event.source < 0 else began.sources[event.source][2]
    return inf if due is None else float(due[0])


def what_was_sent_is_kept(evidence: Evidence) -> Found:
    """Each signal whose sending has returned is in the log, once for its id, however often it was sent."""
    for task, history in evidence.histories.items():
        for signal, times in Counter(letter.signal for letter in history.letters.values()).items():
            if times > 1:
                yield task, f"it has {times} signals with the id {signal!r}"
    for line in [line for line in evidence.lines if line.what == "signalled"]:
        history = evidence.histories.get(line.task, History([]))
        key, name, value = json.loads(line.token)
        letters = [letter for letter in history.letters.values() if letter.signal == f"id {key}"]
        if [(letter.name, decode(letter.value)) for letter in letters] != [(name, value)]:
            yield line.task, f"it was sent {line.token}, and its log has {letters}"


def approvals_are_decided_once(evidence: Evidence) -> Found:
    """An approval is asked for once, decided once and after that, and who has decided it was told what stands."""
    for task, history in evidence.histories.items():
        asked: dict[str, ApprovalRequested] = {}
        answers: Counter[str] = Counter()
        for event in history.events:
            if isinstance(event, ApprovalRequested):
                if event.path in asked:
                    yield task, f"an approval was asked for twice: {event}"
                asked[event.path] = event
            elif isinstance(event, SignalReceived) and event.name.startswith(answer_name("")):
                answers[event.name] += 1
                if event.name not in map(answer_name, asked):
                    yield task, f"an approval was decided before it was asked for: {event}"
                if answers[event.name] > 1:
                    yield task, f"an approval was decided more than once: {event}"
    for line in [line for line in evidence.lines if line.what == "decided"]:
        history = evidence.histories.get(line.task, History([]))
        stands = [letter for letter in history.letters.values() if letter.name == answer_name(line.path)]
        if [int(letter.value["approved"]) for letter in stands] != [line.number]:
            yield line.task, f"the approval at {line.path} was decided by {line.number}, its log has {stands}"
