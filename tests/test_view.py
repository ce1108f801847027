"""What a person is told: views of steps, the line in a list, and why a task is held."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from actors import AgentSystem, agent, patched, register, step, step_info, task_info
from actors.showing import plain_json, value_text
from actors.task_log import index_row
from actors.testing import FakeClock
from actors.view import clock_time, describe, explain, headline
from domain.events import Activated, Created, Failed, Held, Passivated, Released, StepFailed, StepStarted, StepSucceeded
from domain.fold import fold, preview
from domain.task import AgentTask
from domain.values import encode

NO_ROAD = {"kinds": ["ConnectionError", "OSError", "Exception"], "message": "no road"}
CREATED = Created("t", 1, 100.0, "b", "trip", [["Rome"], {}], "", {}, {})
ACTIVATED = Activated("t", 2, 100.0, 1, "w", "0")
STARTED = StepStarted("t", 3, 100.0, "1", "step", "travel", 1, "d", "to Rome", "", None)
FAILED = StepFailed("t", 4, 101.0, "1", "step", "travel", "d", 1, NO_ROAD, 160.0)


def task_after(*events: Any) -> AgentTask:
    task = fold(None, [CREATED, ACTIVATED, *events])
    assert task is not None
    return task


def held(reason: str, path: str = "1", **details: Any) -> AgentTask:
    return task_after(STARTED, Held("t", 4, 101.0, 1, reason, path, details))


# ------------------------------------------------------------------ steps


def test_a_step_that_waits_for_its_next_attempt_has_its_errors_and_its_due_time() -> None:
    (view,) = describe(task_after(STARTED, FAILED)).steps
    assert (view.state, view.attempt, view.due, view.kind) == ("waiting", 1, 160.0, "step")
    assert [str(error) for error in view.errors] == ["ConnectionError: no road"]


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (StepStarted("t", 5, 160.0, "1", "step", "travel", 2, "d", "to Rome", "", None), "started"),
        (StepSucceeded("t", 5, 160.0, "1", "step", "travel", "d", 2, "here", ""), "finished"),
        (StepFailed("t", 5, 160.0, "1", "step", "travel", "d", 2, NO_ROAD, None), "failed"),
    ],
)
def test_after_the_wait_a_step_is_in_the_state_of_its_last_event(event: Any, state: str) -> None:
    (view,) = describe(task_after(STARTED, FAILED, event)).steps
    assert (view.state, view.due) == (state, None)
    assert len(view.errors) == (2 if state == "failed" else 1)


@pytest.mark.parametrize(("decision", "state"), [("rerun", "to rerun"), ("fail", "decided"), ("value", "decided")])
def test_a_persons_word_is_the_state_of_a_step(decision: str, state: str) -> None:
    released = Released("t", 5, 102.0, "1", decision, None, "ann")
    task = task_after(STARTED, Held("t", 4, 101.0, 1, "in doubt", "1", {}), released)
    assert describe(task).steps[0].state == state


@step(retries=1, backoff=30, jitter=0)
def twice() -> str:
    if step_info().attempt == 1:
        raise ConnectionError("not yet")
    return "there"


@agent(name="view-kinds")
def kinds() -> str:
    info = task_info()
    assert info is not None
    info.now()
    return twice() if patched("new") else ""


def test_patches_and_readings_of_the_clock_are_told_apart_from_steps() -> None:
    with AgentSystem("memory:", clock=FakeClock(jump=True)) as system:
        task = system.spawn(kinds)
        assert task.result(30) == "there"
        steps = task.describe().steps
    assert [(view.path, view.kind, view.name) for view in steps] == [
        ("1", "now", "now"),
        ("2", "patch", "new"),
        ("3", "step", "twice"),
    ]
    assert (steps[2].attempt, [error.message for error in steps[2].errors]) == (2, ["not yet"])


# ------------------------------------------------------------------ where a task is


def test_the_line_of_a_waiting_task_names_the_step_that_is_tried_first() -> None:
    later = StepStarted("t", 5, 101.0, "2/1/1", "step", "fetch", 1, "e", "", "", None)
    sooner = StepFailed("t", 6, 102.0, "2/1/1", "step", "fetch", "e", 1, NO_ROAD, 110.0)
    task = task_after(STARTED, FAILED, later, sooner)
    passivated = Passivated("t", 7, 103.0, 1, [], 110.0, True)
    row = index_row(preview(task, [passivated]))
    assert (row.status, row.due, row.note) == ("waiting", 110.0, "tries step 2/1/1 fetch again")
    whole = fold(task, [passivated])
    assert whole is not None
    assert headline(whole) == row.note


def test_the_line_of_a_failed_task_says_that_it_goes_on() -> None:
    failed = Failed("t", 3, 101.0, {"kinds": ["ValueError"], "message": "x" * 500}, [])
    line = headline(task_after(failed))
    assert (len(line), line[:13], line[-2:]) == (200, "ValueError: x", "x…")


def test_a_moment_of_another_day_has_its_date() -> None:
    now = time.time()
    today = datetime.fromtimestamp(now).replace(hour=9, minute=44, second=31)
    assert clock_time(today.timestamp()) == "09:44:31"
    assert clock_time(today.replace(year=2020, month=2, day=3).timestamp()) == "2020-02-03 09:44:31"
    other = today.replace(month=7 if today.month != 7 else 8, day=9)
    assert clock_time(other.timestamp()) == f"{other:%m}-09 09:44:31"


def test_the_line_of_a_step_in_doubt_is_the_same_on_any_day() -> None:
    now = time.time()
    begun = StepStarted("t", 3, now, "1", "step", "travel", 1, "d", "", "", None)
    task = task_after(begun, Held("t", 4, now, 1, "in doubt", "1", {}))
    assert re.search(r"began \d\d-\d\d \d\d:\d\d:\d\d, its end", headline(task))
    assert re.search(r"began \d\d:\d\d:\d\d, its end", explain(task))


def test_the_line_of_strikes_has_the_last_error_and_its_place() -> None:
    error = {"kinds": ["ValueError"], "message": "no\nand more"}
    where = "ValueError: no\nand more, at f.py:12"
    task = held("strikes", strikes=3, name="travel", where=where, error=error)
    assert headline(task) == "3 crashes in a row: ValueError: no, at f.py:12"
    long = {"kinds": ["ValueError"], "message": "x" * 500}
    line = headline(held("strikes", strikes=3, name="travel", where=f"ValueError: {'x' * 500}, at f.py:12", error=long))
    assert line.endswith("xx…, at f.py:12")
    assert headline(held("strikes", strikes=3, name="travel", in_doubt=True)) == "3 crashes in a row, in step 1 travel"


# ------------------------------------------------------------------ values


class Colour(Enum):
    RED = 1


class Access(Flag):
    READ = 1
    WRITE = 2


@dataclass
class Page:
    url: str
    at: datetime


register(Colour, name="view-colour")
register(Access, name="view-access")
register(Page, name="shop:Page")
MOMENT = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
PLAIN = [
    ((27, [None, True, 1.5]), [27, [None, True, 1.5]]),
    ({2, 1}, [1, 2]),
    (Page("a", MOMENT), {"url": "a", "at": "2026-07-01T12:00:00+02:00"}),
    (Colour.RED, "RED"),
    (Access.READ | Access.WRITE, ["READ", "WRITE"]),
    (MOMENT.date(), "2026-07-01"),
    (MOMENT.time(), "12:00:00"),
    (UUID(int=0), "00000000-0000-0000-0000-000000000000"),
    (Decimal("1.50"), "1.50"),
    (Path("a/b"), "a/b"),
    (Path("a\udcff"), "a\\udcff"),
    (timedelta(days=1, seconds=90, microseconds=500), "P1DT90.0005S"),
    (timedelta(0), "PT0S"),
    (timedelta(days=2), "P2D"),
    (timedelta(seconds=-5), "-PT5S"),
    (b"\xff", "/w=="),
    (2**3000, 2**3000),
    (2**30000, hex(2**30000)),
    ({(1, 2): "a", None: 1}, {"[1, 2]": "a", "null": 1}),
    ({1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
    ({"$": (1,)}, {"$": [1]}),
    ("\udcff!", "\\udcff!"),
    ([math.inf, -math.inf, math.nan], ["inf", "-inf", "nan"]),
]


@pytest.mark.parametrize(("value", "plain"), PLAIN, ids=[str(number) for number in range(len(PLAIN))])
def test_a_value_is_plain_json_for_who_reads_it(value: Any, plain: Any) -> None:
    assert plain_json(encode(value)) == plain
    json.dumps(plain_json(encode(value)), allow_nan=False)
    assert '"$"' not in value_text(encode(value)).replace('{"$": [1]}', "")


def test_a_value_in_a_line_has_the_names_of_classes() -> None:
    value = (Page("a", MOMENT), Colour.RED, Access.READ | Access.WRITE, {1: {"b": {3}}})
    text = '[Page(url="a", at="2026-07-01T12:00:00+02:00"), view-colour.RED, view-access.READ|view-access.WRITE, '
    assert value_text(encode(value)) == text + '{1: {"b": [3]}}]'


def test_what_cannot_be_read_is_shown_as_it_is() -> None:
    for stored in ({"$": "new", "v": 1}, {"$": "obj"}, {"$": "date", "v": 5}, {"$": ["x"]}):
        assert plain_json(stored) == stored
        assert json.loads(value_text(stored)) == stored


# ------------------------------------------------------------------ why a task is held


def test_a_body_that_was_given_up_is_not_said_to_have_died() -> None:
    why = explain(held("in doubt", answer="it was given up at its time limit, after 5 s")).splitlines()
    assert why[0].startswith('in doubt: step 1 travel "to Rome", attempt 1 began ')
    assert why[0].endswith(" and was given up at its time limit, after 5 s")
    assert why[1].startswith("it may or may not have happened; idempotency key pd_")
    assert "perdure resolve t 1 --rerun" in "\n".join(why)


def test_a_process_that_died_and_an_answer_that_does_not_help_are_said_so() -> None:
    first, second, *_ = explain(held("in doubt", answer="asking does not know: no folder")).splitlines()
    assert first.endswith(", its end is not in the log")
    assert second == "asking does not know: no folder"


def test_a_hold_for_a_class_says_that_other_code_ends_it() -> None:
    message = "the value of step 1 travel cannot be read: a Page"
    why = explain(held("unknown class", message=message), " --store x")
    assert why.splitlines() == [
        message,
        "it goes on by itself when a worker starts with code that has the class",
        "try again now    perdure release t --store x",
    ]
