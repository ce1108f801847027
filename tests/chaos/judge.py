"""The judge: the ledger, the logs and the ends of the processes in, complaints out. Pure.

Each rule is a function of all the evidence. A kind of program whose result `results_follow` cannot tell (it has no
`numbers`) brings a rule of its own.
"""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from actors.task_log import index_row
from domain.errors import UnreadableTaskError
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
)
from domain.fold import fold
from domain.state import STRIKES, idempotency_key
from domain.values import decode
from stores import IndexRow
from tests.chaos.evidence import Ending, Evidence, History, StepEvent, is_outcome
from tests.chaos.programs import BEATS, KINDS, STEPS, UNRECORDED, OnPurposeError
from tests.chaos.purses import (
    ASK,
    purses_are_never_overdrawn,
    shoppers_get_what_is_booked,
    what_is_asked_is_booked_once,
)


@dataclass(frozen=True)
class Complaint:
    """A broken promise, and the task in which it was broken, if it was one."""

    rule: str
    task: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.task or 'the round'}: {self.text}"


Found = Iterator[tuple[str, str]]
"""The task and the text of each complaint."""


# ------------------------------------------------------------------ nothing is lost


def nothing_is_lost(evidence: Evidence) -> Found:
    """What was accepted is there; all that is there has ended, and stands in log and index alike."""
    accepted = {line.task for line in evidence.lines if line.what == "accepted"}
    for task in sorted(accepted - evidence.logs.keys()):
        yield task, "its spawn had returned, and it is not in the store"
    for task in sorted(evidence.logs.keys() ^ evidence.rows.keys()):
        yield task, "it has a log and no index row" if task in evidence.logs else "it has an index row and no log"
    for task, row in evidence.rows.items():
        if row.status not in ("completed", "failed"):
            yield task, f"it is {row.status} ({row.hold or 'no hold'}) at the end: {row}"


def holds_have_a_reason(evidence: Evidence) -> Found:
    """A task is held for a step that asks for it, or for strikes where there is a limit, and never before that."""
    for task, history in evidence.histories.items():
        for event in history.events:
            if isinstance(event, Held) and event.reason == STRIKES and evidence.strikes is not None:
                if event.details.get("strikes") < evidence.strikes:
                    yield task, f"it was held below its limit of strikes: {event}"
            elif isinstance(event, Held):
                names = {step.name for _, step in history.steps[event.path] if isinstance(step, StepEvent)}
                if not any(name in STEPS and STEPS[name].settings.on_doubt == "hold" for name in names):
                    yield task, f"it was held, and its program gives no reason to: {event}"


# ------------------------------------------------------------------ the log


def logs_are_whole(evidence: Evidence) -> Found:
    """Versions have no gap, one ending stands at the end, and the index row follows from the log."""
    for task, history in evidence.histories.items():
        events = history.events
        versions = [event.originator_version for event in events]
        if versions != list(range(1, len(events) + 1)):
            yield task, f"its versions are {versions}"
        if sum(isinstance(event, Created) for event in events) != 1 or history.created is None:
            yield task, "it is not created once, at its beginning"
        if [event for event in events if isinstance(event, Ending)] != [history.ending]:
            yield task, "it does not end once, at its end"
        yield from _row_follows(task, events, evidence.rows.get(task))


def _row_follows(task: str, events: list[TaskEvent], row: IndexRow | None) -> Found:
    try:
        folded = fold(None, events)
        wanted = index_row(folded) if folded is not None else None
    except (UnreadableTaskError, LookupError, AttributeError) as error:
        yield task, f"its log cannot be folded: {error!r}"
    else:
        if row not in (None, wanted):
            yield task, f"its index row is {row}, and its log says {wanted}"


def activations_are_fences(evidence: Evidence) -> Found:
    """Activations are numbered from 1, and nothing is written for one that is not the newest, or is over."""
    for task, history in evidence.histories.items():
        numbers = [event.number for event in history.events if isinstance(event, Activated)]
        if numbers != list(range(1, len(numbers) + 1)):
            yield task, f"its activations are {numbers}"
        for number, event in zip(history.at, history.events, strict=True):
            if isinstance(event, Restarted | Passivated | Held) and event.activation != number:
                yield task, f"written in activation {number}: {event}"
            elif isinstance(event, StepEvent | Ending) and number == 0:
                yield task, f"written in no activation: {event}"


def outcomes_stand_where_their_attempt_began(evidence: Evidence) -> Found:
    """What an attempt came to is recorded in the activation that began it: a later one has fenced it off."""
    for task, path, history, _ in evidence.steps():
        started: dict[int, int] = {}
        for number, event in history.steps[path]:
            if isinstance(event, StepStarted):
                started[event.attempt] = number
                continue
            ran = isinstance(event, StepFailed) or (isinstance(event, StepSucceeded) and not event.source)
            if ran and event.name not in UNRECORDED and started.get(event.attempt) != number:
                yield task, f"step {path}, begun in activations {started}, ended in {number}: {event}"


def attempts_follow_each_other(evidence: Evidence) -> Found:
    """Attempts are numbered from 1, none follows an outcome or comes before it is due, and no doubt is hidden."""
    for task, path, history, _ in evidence.steps():
        last: TaskEvent | None = None
        attempts = 0
        for _, event in history.steps[path]:
            if last is not None and is_outcome(last):
                yield task, f"step {path} goes on after its outcome {last}: {event}"
            if isinstance(event, StepStarted):
                attempts += 1
                if event.attempt != attempts:
                    yield task, f"step {path}: attempt {event.attempt} is the {attempts}. that was started"
                if isinstance(last, StepFailed) and last.retry_at is not None and event.timestamp < last.retry_at:
                    yield task, f"step {path}: attempt {event.attempt} was not due before {last.retry_at}: {event}"
                if bool(event.doubt) != isinstance(last, StepStarted | Released):
                    yield task, f"step {path}: attempt {event.attempt} says {event.doubt!r} of a doubt after {last}"
            last = event


def restarts_wait(evidence: Evidence) -> Found:
    """A task is activated only when it is due."""
    for task, history in evidence.histories.items():
        due: float | None = None
        for event in history.events:
            if isinstance(event, Activated) and due is not None and event.timestamp < due:
                yield task, f"activation {event.number} came at {event.timestamp}, and was due at {due}"
            if isinstance(event, Restarted | Passivated | Activated):
                due = getattr(event, "due", None)


# ------------------------------------------------------------------ what happened outside


def finished_steps_ran_once(evidence: Evidence) -> Found:
    """Each attempt entered its body once, in the activation that began it, and none came after the outcome."""
    for task, path, history, lines in evidence.steps():
        entries = Counter((line.attempt, line.activation) for line in lines)
        for entry in [entry for entry, times in entries.items() if times > 1]:
            yield task, f"step {path} was entered {entries[entry]} times as (attempt, activation) {entry}"
        outcome = history.outcome(path)
        unrecorded = any(getattr(event, "name", "") in UNRECORDED for _, event in history.steps[path])
        began = {(event.attempt, number) for number, event in history.steps[path] if isinstance(event, StepStarted)}
        for attempt, number in entries:
            if not history.steps[path] or unrecorded:
                if outcome is not None and number > outcome[0]:
                    yield task, f"step {path} ran in activation {number}, and was finished in {outcome[0]}"
            elif (attempt, number) not in began:
                yield task, f"step {path} ran as (attempt, activation) {(attempt, number)}, begun were {began}"


def keys_are_kept(evidence: Evidence) -> Found:
    """All entries into a step carry its key, and no other step has it."""
    owners: dict[str, tuple[str, str]] = {}
    for (task, path), lines in evidence.effects.items():
        history = evidence.histories.get(task)
        birth = history.created.birth if history is not None and history.created is not None else None
        keys = {line.key for line in lines}
        if birth is None or keys != {idempotency_key(birth, path)}:
            yield task, f"step {path} ran with the keys {keys}, birth {birth}"
        for key in keys:
            if owners.setdefault(key, (task, path)) != (task, path):
                yield task, f"step {path} has the key {key} of step {owners[key]}"


def values_are_of_their_effects(evidence: Evidence) -> Found:
    """What the log has of an attempt is what that very entry into the body has made."""
    for task, path, history, lines in evidence.steps():
        made = {(line.attempt, line.activation): line.token for line in lines}
        for number, event in history.steps[path]:
            if getattr(event, "name", "") == ASK:  # its effect is in an entity's log, and not in the ledger
                continue
            if isinstance(event, StepSucceeded) and event.kind == "step" and not event.source:
                if made.get((event.attempt, number)) != token_of(event):
                    yield task, f"step {path}: the entries {made} have not made, in activation {number}, {event}"
            elif isinstance(event, StepFailed) and OnPurposeError.__name__ in str(event.error["kinds"][0]):
                if made.get((event.attempt, number)) != token_of(event):
                    yield task, f"step {path}: the entries {made} have not raised, in activation {number}, {event}"
            elif is_outcome(event) and not isinstance(event, StepFailed) and token_of(event) not in made.values():
                yield task, f"step {path} was decided by a value that nobody made: {event}"


def doubts_are_settled_as_the_step_says(evidence: Evidence) -> Found:
    """A step in doubt is run again only as its `on_doubt` allows; what was answered is what the log goes on with."""
    lines = [line for line in evidence.lines if line.what == "asked"]
    asked = {(line.task, line.path, line.attempt, line.activation, line.token) for line in lines}
    for task, path, history, _ in evidence.steps():
        for number, event in history.steps[path]:
            if isinstance(event, StepStarted) and event.doubt and event.name in STEPS:
                on_doubt = STEPS[event.name].settings.on_doubt
                way = {"rerun": "rerun", "hold": "rerun by "}.get(on_doubt, "not happened")
                if not event.doubt.startswith(way):
                    yield task, f"step {path} was run again without {way!r}: {event}"
            if isinstance(event, StepStarted) and event.doubt == "not happened":
                answer = (event.attempt - 1, number, "")
            elif isinstance(event, StepSucceeded) and event.source == "on_doubt":
                answer = (event.attempt, number, token_of(event))
            else:
                continue
            if (task, path, *answer) not in asked:
                yield task, f"step {path}: nobody gave the answer {answer}: {event}"


def heartbeats_are_heard(evidence: Evidence) -> Found:
    """An attempt is given the last heartbeat that was stored before it could begin, or one that came after all."""
    for heard in [line for line in evidence.lines if line.what == "heard"]:
        began = evidence.histories.get(heard.task, History([])).could_begin(heard.path, heard.attempt)
        step = heard.task, heard.path
        beats = [line for line in evidence.lines if line.what == "beat" and (line.task, line.path) == step]
        stored = [line.number for line in beats if line.attempt < heard.attempt and line.at < began]
        if not max(stored, default=0) <= heard.number <= heard.attempt * BEATS:
            yield heard.task, f"step {heard.path}, attempt {heard.attempt}, heard {heard.number} after {stored}"


def token_of(event: Any) -> str:
    """Give the token that an outcome carries."""
    if isinstance(event, StepFailed):
        return str(event.error["message"])
    value = decode(event.value)
    return str(value[1]) if isinstance(value, list) and len(value) > 1 else ""


# ------------------------------------------------------------------ results


def results_follow(evidence: Evidence) -> Found:
    """A result counts as its program does, and is made of what the log has of its steps, once each."""
    for task, history in evidence.histories.items():
        if history.created is None or history.ending is None:
            continue
        numbers, (args, _) = KINDS[history.created.agent].numbers, decode(history.created.input)
        if numbers is None:
            continue
        wanted = numbers(*args)
        if isinstance(history.ending, Failed):
            if wanted != history.ending.error["message"]:
                yield task, f"it failed, expected is {wanted}: {history.ending.error}"
            continue
        marks = decode(history.ending.value)
        if [mark[0] for mark in marks] != wanted:
            yield task, f"its result counts {[mark[0] for mark in marks]}, expected is {wanted}"
        outcomes = [outcome[1] for path in history.steps if (outcome := history.outcome(path)) is not None]
        if Counter(mark[1] for mark in marks) != Counter(map(token_of, outcomes)):
            yield task, f"its result {marks} is not made of its steps' outcomes {outcomes}"
        yield from _children(task, marks, evidence)


def _children(task: str, marks: list[Any], evidence: Evidence) -> Found:
    for child, result in [mark[2:] for mark in marks if len(mark) > 2]:
        ending = evidence.histories[child].ending if child in evidence.histories else None
        if not isinstance(ending, Completed) or decode(ending.value) != result:
            yield task, f"it was given {result} of its child {child}, which ended with {ending}"


def answers_are_the_results(evidence: Evidence) -> Found:
    """Who waits for a task, in whichever process, is given what its log ends with."""
    for line in evidence.lines:
        ending = evidence.histories.get(line.task, History([])).ending
        if line.what == "answered" and ending is not None:
            result = decode(ending.value) if isinstance(ending, Completed) else ending.error["message"]
            if json.loads(line.token) != result:
                yield line.task, f"its result is {result}, told was {line.token}"


# ------------------------------------------------------------------ processes


def processes_end_as_they_are_told(evidence: Evidence) -> Found:
    """A process dies of what kills it or leaves in good order, and tells of no error that is not meant."""
    died = {line.number for line in evidence.lines if line.what == "died"}
    for end in evidence.ends or []:
        killed = (signal.SIGKILL in end.signals or end.pid in died) and end.code == -signal.SIGKILL
        left = signal.SIGTERM in end.signals and end.code in (0, -signal.SIGTERM)
        if not (killed or left):
            yield "", f"{end.process} was sent {sorted(end.signals)} and ended with {end.code}:\n{end.errors[-2000:]}"
        for trace in re.findall(r"^Traceback .*\n(?:\s.*\n)*(?:.*\n)?", end.errors, re.MULTILINE):
            if OnPurposeError.__name__ not in trace:
                yield "", f"{end.process} told of an error:\n{trace[-2000:]}"


RULES: tuple[Callable[[Evidence], Found], ...] = (
    nothing_is_lost,
    holds_have_a_reason,
    logs_are_whole,
    activations_are_fences,
    outcomes_stand_where_their_attempt_began,
    attempts_follow_each_other,
    restarts_wait,
    finished_steps_ran_once,
    keys_are_kept,
    values_are_of_their_effects,
    doubts_are_settled_as_the_step_says,
    heartbeats_are_heard,
    results_follow,
    answers_are_the_results,
    purses_are_never_overdrawn,
    what_is_asked_is_booked_once,
    shoppers_get_what_is_booked,
    processes_end_as_they_are_told,
)


def judge(evidence: Evidence) -> list[Complaint]:
    """Give all that is wrong, rule by rule; nothing where every promise was kept."""
    return [Complaint(rule.__name__, task, text) for rule in RULES for task, text in rule(evidence)]
