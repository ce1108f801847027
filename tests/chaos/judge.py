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

from domain.events import CancelDelivered, Cancelled, Completed, Failed, Held, StepFailed, StepStarted, StepSucceeded
from domain.state import ENDED, FAILED_STEP, STRIKES, idempotency_key
from domain.values import decode
from tests.chaos.evidence import Evidence, History, StepEvent, is_outcome
from tests.chaos.families import children_are_their_parents, endings_wait_for_what_is_owed, ends_are_told_once
from tests.chaos.kinds import KINDS, STEPS, UNRECORDED, UNTOLD
from tests.chaos.logs import (
    activations_are_fences,
    attempts_follow_each_other,
    logs_are_whole,
    outcomes_stand_where_their_attempt_began,
    restarts_wait,
)
from tests.chaos.programs import BEATS, OnPurposeError
from tests.chaos.purses import (
    purses_are_never_overdrawn,
    shoppers_get_what_is_booked,
    what_is_asked_is_booked_once,
)
from tests.chaos.talks import talkers_say_what_came
from tests.chaos.trips import bookers_end_as_they_say, unbook_reluctant
from tests.chaos.undoing import (
    cancels_are_asked_for_once,
    clean_up_has_its_grace,
    endings_name_what_is_in_doubt,
    undos_are_done,
    what_was_called_off_runs_no_more,
)
from tests.chaos.waits import (
    approvals_are_decided_once,
    signals_are_taken_once_and_in_order,
    the_log_beats_a_time,
    waits_end_once,
    what_was_sent_is_kept,
)

LONGEST = 20_000
"""Characters that are told of what a process wrote to standard error."""


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
        if row.status not in ENDED:
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
                if event.reason == FAILED_STEP and names == {unbook_reluctant.name}:
                    continue
                if not any(name in STEPS and STEPS[name].settings.on_doubt == "hold" for name in names):
                    yield task, f"it was held, and its program gives no reason to: {event}"


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
            if getattr(event, "name", "") in UNTOLD:
                continue
            if isinstance(event, StepSucceeded) and event.kind == "step" and not event.source:
                if made.get((event.attempt, number)) != token_of(event):
                    yield task, f"step {path}: the entries {made} have not made, in activation {number}, {event}"
            elif isinstance(event, StepFailed) and OnPurposeError.__name__ in str(event.error["kinds"][0]):
                if made.get((event.attempt, number)) != token_of(event):
                    yield task, f"step {path}: the entries {made} have not raised, in activation {number}, {event}"
            elif (
                is_outcome(event)
                and not isinstance(event, StepFailed | CancelDelivered)
                and token_of(event) not in made.values()
            ):
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
        if numbers is None or isinstance(history.ending, Cancelled):
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
            result = decode(ending.value) if isinstance(ending, Completed) else _message(ending)
            if json.loads(line.token) != result:
                yield line.task, f"its result is {result}, told was {line.token}"


def _message(ending: Failed | Cancelled) -> str:
    return str(ending.error["message"]) if isinstance(ending, Failed) else ending.reason


# ------------------------------------------------------------------ processes


def processes_end_as_they_are_told(evidence: Evidence) -> Found:
    """A process dies of what kills it or leaves in good order, and tells of no error that is not meant."""
    died = {line.number for line in evidence.lines if line.what == "died"}
    for end in evidence.ends or []:
        killed = (signal.SIGKILL in end.signals or end.pid in died) and end.code == -signal.SIGKILL
        left = signal.SIGTERM in end.signals and end.code in (0, -signal.SIGTERM)
        if not (killed or left):
            yield (
                "",
                f"{end.process} was sent {sorted(end.signals)} and ended with {end.code}:\n{end.errors[-LONGEST:]}",
            )
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
    talkers_say_what_came,
    bookers_end_as_they_say,
    waits_end_once,
    signals_are_taken_once_and_in_order,
    the_log_beats_a_time,
    what_was_sent_is_kept,
    approvals_are_decided_once,
    children_are_their_parents,
    ends_are_told_once,
    endings_wait_for_what_is_owed,
    undos_are_done,
    cancels_are_asked_for_once,
    clean_up_has_its_grace,
    endings_name_what_is_in_doubt,
    what_was_called_off_runs_no_more,
    processes_end_as_they_are_told,
)


def judge(evidence: Evidence) -> list[Complaint]:
    """Give all that is wrong, rule by rule; nothing where every promise was kept."""
    return [Complaint(rule.__name__, task, text) for rule in RULES for task, text in rule(evidence)]
