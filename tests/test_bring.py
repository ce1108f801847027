"""The commands that bring something to a task, as real processes: signals, answers, a cancellation."""

import json
import re
from pathlib import Path

import pytest

from actors import AgentSystem
from tests.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


SPAWN = """
import sys
from actors import AgentSystem
from work import journey
with AgentSystem("sqlite:///perdure.db", run=False) as client:
    client.spawn(journey, sys.argv[1], id=sys.argv[1])
"""


def test_a_journey_is_approved_signalled_and_run_to_its_end_by_commands_alone(shell: Shell) -> None:
    with shell.start("run", "work.py:journey", "Rome", "--id", "rome") as running:
        seen = running.read_until("waiting   4")
        assert 'waiting   4  for approval "pay for Rome" in ' in seen
        assert re.search(r'asks      2  "pay for Rome"  perdure approve .?rome#2@', seen)
        listed = shell("approvals")
        first, details, *_ = listed.stdout.splitlines()
        assert re.fullmatch(r'rome#2@[0-9a-f]{6}  "pay for Rome"  asked \d+ s ago', first)
        assert details == '  {"number": "number of Rome"}'
        (document,) = json.loads(shell("approvals", "--json").stdout)
        assert document["id"] == first.split()[0]
        assert (document["task"], document["details"]) == ("rome", {"number": "number of Rome"})
        assert 'waits for approval "pay for Rome" or goes on in 59 min' in shell("list").stdout
        yes = shell("approve", "rome", "--value", '"by card"', "--by", "ann")
        assert re.fullmatch(r"rome#2@\w{6}: approved by ann\. A worker that is running goes on with it\.\n", yes.stdout)
        running.read_until("waiting   6  for signal departure")
        assert (
            "\nrome  waits for signal departure\n  perdure signal rome departure JSON\n" in shell("show", "rome").stdout
        )
        assert shell("signal", "rome", "departure", '"monday"', "--signal-id", "1").returncode == 0
        assert running.end()[:2] == (0, '"ticket to Rome, monday, by card"\n')
    again = shell("approve", "rome", "--by", "bob")
    assert (again.returncode, again.stdout) == (0, yes.stdout.partition(".")[0] + ".\n")
    late = shell("reject", "rome", "--by", "bob")
    assert late.returncode == 1
    assert "already decided: yes, by ann; nothing was changed" in late.stderr
    assert shell("signal", "rome", "departure", "1").stderr == "perdure: task rome has ended: completed\n"
    assert shell("approvals").stderr.endswith("nothing waits for an approval\n")
    assert shell.ledger == ["book"]


def test_a_rejection_fails_the_task_and_undoes_what_was_booked(shell: Shell) -> None:
    with shell.start("run", "work.py:journey", "Oslo", "--id", "oslo") as running:
        running.read_until("waiting   4")
        shown = shell("show", "oslo").stdout
        assert "ApprovalRequested" in shown
        assert "UndoRegistered" in shown
        assert re.search(r'\noslo  asks "pay for Oslo"\n  perdure approve .oslo#2@\w{6}.\n', shown)
        no = shell("reject", "oslo#2", "--note", "too dear", "--by", "ann")
        assert "rejected by ann" in no.stdout
        code, _, errors = running.end()
        assert code == 1
        assert "FailTask: not paid: too dear" in errors
    assert shell.ledger == ["book", "unbook"]
    shown = shell("show", "oslo").stdout
    assert re.search(r"SignalReceived +no to 2, by ann: \"too dear\"", shown)
    assert re.search(r"StepSucceeded +undo/1  unbook", shown)


def test_a_task_is_called_off_by_a_command_and_cleans_up(shell: Shell) -> None:
    with shell.start("run", "work.py:napping", "--id", "nap") as running:
        running.read_until("waiting   1  for")
        off = shell("cancel", "nap", "--reason", "enough", "--by", "ann")
        assert off.stdout == "task nap: cancel requested. A worker that is running goes on with it.\n"
        code, _, errors = running.end()
        assert code == 1
        assert "cancel    by ann: enough" in errors
        assert "cancelled  nap  by ann: enough" in errors
    assert shell.ledger == ["draft"]
    again = shell("cancel", "nap")
    assert (again.returncode, again.stdout) == (0, "task nap: already cancelled\n")
    assert shell("list", "--status", "cancelled").stdout.splitlines()[1].split()[:2] == ["nap", "cancelled"]
    assert shell("run", "work.py:typeless", "1", "--id", "done").returncode == 0
    late = shell("cancel", "done")
    assert (late.returncode, late.stdout) == (1, "task done: already completed\n")


def test_what_waits_for_its_first_run_is_called_off_at_once(shell: Shell) -> None:
    shell.python("-c", SPAWN, "bern")
    off = shell("cancel", "bern", "--by", "ann")
    assert off.stdout == "task bern: cancelled\n"
    with AgentSystem(shell.url, run=False) as client:
        assert client.task("bern").status() == "cancelled"


def test_bad_input_gets_a_clear_error(shell: Shell) -> None:
    shell.python("-c", SPAWN, "bern")
    ends = shell.each(
        [
            ["signal", "bern", "departure", "monday"],
            ["signal", "bern", "~departure", "1"],
            ["signal", "nobody", "departure", "1"],
            ["approve", "bern"],
            ["approve", "nobody#1@abcdef"],
            ["approve", "bern", "--value", "x"],
            ["cancel", "nobody"],
            ["approvals", "--store", "sqlite:///nowhere.db"],
        ]
    )
    assert [code for code, _, _ in ends] == [2] * len(ends)
    errors = [error.removeprefix("perdure: ").rstrip("\n") for _, _, error in ends]
    assert errors[0].startswith("the value takes JSON, and 'monday' is none; a text has quotes")
    assert errors[1].startswith("the name of a signal has 1 to 200 printable characters")
    assert errors[2].startswith("there is no task 'nobody'")
    assert errors[3].startswith("there is no approval 'bern'")
    assert errors[4].startswith("there is no approval 'nobody#1@abcdef'")
    assert errors[5].startswith("--value takes JSON, and 'x' is none")
    assert errors[6].startswith("there is no task 'nobody'")
    assert errors[7].startswith("there is no store")


def test_run_stays_until_the_children_that_it_has_called_off_have_cleaned_up(shell: Shell) -> None:
    done = shell("run", "work.py:hasty", "--id", "h")
    assert (done.returncode, done.stdout) == (0, '"summary of at once"\n')
    assert shell.ledger.count("draft") == 2 or "cancelled" in shell("list").stdout, "a child may not have begun"
    with AgentSystem(shell.url, run=False) as client:
        assert {task.status() for task in client.tasks()} == {"completed", "cancelled"}
    again = shell("run", "work.py:hasty", "--id", "h")
    assert "nothing runs again" in again.stderr


def test_run_names_the_command_that_answers_with_its_store_and_again_after_a_restart(shell: Shell) -> None:
    words = ("run", "work.py:journey", "Rome", "--id", "rome", "--store", "sqlite:///other.db")
    for _ in range(2):
        with shell.start(*words) as running:
            seen = running.read_until("asks")
            assert re.search(r'asks      2  "pay for Rome"  perdure approve \S+ --store sqlite:///other.db', seen)


def test_who_answers_for_a_task_that_was_called_off_is_told_so(shell: Shell) -> None:
    with shell.start("run", "work.py:journey", "Rome", "--id", "rome") as running:
        running.read_until("waiting   4")
    assert shell("cancel", "rome", "--by", "ann").returncode == 0
    assert shell("approvals").stderr.endswith("nothing waits for an approval\n")
    late = shell("approve", "rome#2")
    assert late.returncode == 1
    assert "task rome was called off: it does not ask for the approval at 2 any more" in late.stderr
