"""`perdure show --follow`: what happens to a task, as a person and as a program reads it, while it happens."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from actors import (
    AgentSystem,
    ApprovalAnswered,
    ApprovalAsked,
    CancelAsked,
    ChildBegan,
    ChildEnded,
    Emitted,
    Reset,
    SignalArrived,
    StepBegan,
    StepEnded,
    TaskEnded,
    TaskHeld,
    TaskReleased,
    TaskWaiting,
    Update,
    WaitOver,
)
from actors.live import Printer
from actors.wording import UNLIMITED
from domain.values import dumps
from tests.scenario_kit import World
from tests.shell import Shell, agent_named

PROGRAM = """
from actors import agent, emit, receive, request_approval, step, step_info

@step(retries=1, backoff=0, label="about {topic}")
def draft(topic: str) -> str:
    for word in f"Once upon a time\\n\\nthere was a {topic}.\\n".split(" "):
        emit(word + " ")
    emit({"tokens": 9}, "usage")
    if step_info().attempt == 1:
        raise ConnectionError("no route")
    return topic

@step
def wait() -> str:
    emit("who is there? ")
    with open("door") as door:
        return door.readline().strip()

@agent
def story(topic: str) -> str:
    emit(f"I write about {topic}")
    return draft(topic)

@agent
def waiting() -> str:
    return wait()

@agent
def asking() -> str:
    pause = request_approval("go on?", details={"sum": 20})
    return f"{pause.wait().value} {receive('word')}"
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "talk.py").write_text(PROGRAM)
    return Shell(tmp_path)


def printed(*updates: Any, width: int = UNLIMITED, options: str = "") -> str:
    """Give what a printer makes of updates."""
    pieces: list[str] = []
    printer = Printer("t", pieces.append, width, options)
    for update in updates:
        printer.tell(update)
    printer.end_line()
    return re.sub(r"\x1b\[\d*m", "", "".join(pieces))  # without our own colours


def emitted(*pieces: Any, path: str = "1", channel: str = "text") -> list[Emitted]:
    return [Emitted(1, 1.0, path, 1, channel, dumps(piece)) for piece in pieces]


# ------------------------------------------------------------------ lines


def test_a_text_goes_on_in_one_line_until_something_else_is_told() -> None:
    pieces = [*emitted("Once ", "upon", " a", " time"), *emitted("x", path="2"), *emitted("a day")]
    text = printed(*pieces, TaskEnded(1, 1.0, "failed", "no"))
    assert text.splitlines() == [
        "says      1  Once upon a time",
        "says      2  x",
        "says      1  a day",
        "ended     t  failed  no",
    ]


def test_a_text_has_its_lines_but_nothing_in_it_can_break_the_terminal() -> None:
    text = printed(*emitted("two\r\n", "lines\n\n", "  in\tall\x1b[31m\x07", "\n\n"), *emitted("next", path="3/1-"))
    assert text.split("\n") == [
        "says      1  two",
        "          lines",
        "",
        "            in    all\\x1b[31m\\x07",
        "says      next",
        "",
    ]


def test_on_a_terminal_lines_are_broken_between_words() -> None:
    words = [f"{'word' * (number % 4)}{number} " for number in range(60)]
    lines = printed(*emitted(*words, "x" * 70), width=40).splitlines()
    assert max(len(line) for line in lines[:-1]) <= 40
    assert all(line.startswith(" " * 10) for line in lines[1:])
    assert " ".join(line[10:].strip() for line in lines).split()[1:] == "".join([*words, "x" * 70]).split()
    assert lines[-1] == " " * 10 + "x" * 70


def test_other_channels_and_other_values_have_a_line_each() -> None:
    text = printed(*emitted("x"), *emitted({"done": 1}, "two\nlines", channel="pro\x7fgress"), *emitted([1]))
    assert text.splitlines() == [
        "says      1  x",
        'says      1  pro\\x7fgress: {"done": 1}',
        'says      1  pro\\x7fgress: "two\\nlines"',
        "says      1  text: [1]",
    ]


def test_each_update_has_its_line() -> None:
    lines = printed(
        StepBegan(1, 5.0, "1", "pay", "[red]ann", 1),
        StepEnded(2, 6.5, "1", "pay", 1, "E: no\nroute", 7.5),
        StepBegan(3, 7.5, "1", "pay", "[red]ann", 2),
        Reset(4, 8.0, "1", 2),
        StepEnded(5, 10.0, "1", "pay", 2, None, None),
        StepEnded(6, 10.0, "2", "idempotent", 1, None, None),
        Reset(7, 10.0, "3-", 2),
        TaskWaiting(8, 10.0, None, "signal word", "4"),
        TaskWaiting(9, 10.0, None, "", ""),
        TaskHeld(9, 10.0, "in doubt", "3", "nobody knows"),
        TaskReleased(10, 10.0, "3", "fail", "ann"),
        TaskReleased(11, 10.0, "", "release", "bob"),
        TaskEnded(12, 10.0, "completed", ""),
        Update(13, 10.0),
    ).splitlines()
    assert lines == [
        'running   1  pay "[red]ann"',
        'failed    1  pay "[red]ann"  E: no\\nroute; attempt 2 in 1 s',
        'running   1  pay "[red]ann" (attempt 2)',
        "again     1  what was said above counts no more",
        'finished  1  pay "[red]ann" (attempt 2)  2 s',
        "finished  2  idempotent",
        "again     what was said above counts no more",
        "waiting   4  for signal word",
        "held      in doubt: step 3: nobody knows; what leads out tells: perdure show t",
        "decided   3  given up, by ann",
        "released  by bob",
        "ended     t  completed",
        "          Update(cursor=13, at=10.0)",
    ]


def test_what_a_task_waits_for_has_the_command_that_brings_it() -> None:
    lines = printed(
        ApprovalAsked(1, 1.0, "2", "pay 20\nto acme", "t#2@51a2b3", dumps({"sum": 20})),
        ApprovalAsked(1, 1.0, "3", "sure?", "t#3@51a2b3", "null"),
        TaskWaiting(2, 1.0, None, "approval 2", "4"),
        TaskWaiting(2, 1.0, None, "approval 9", "5"),
        TaskWaiting(3, 1.0, 0.0, "signal go, signal a word", "6", ("go", "a word")),
        options=" --store sqlite:///x.db",
    ).splitlines()
    assert lines == [
        """asks      2  "pay 20\\nto acme"  perdure approve 't#2@51a2b3' --store sqlite:///x.db""",
        '          {"sum": 20}',
        """asks      3  "sure?"  perdure approve 't#3@51a2b3' --store sqlite:///x.db""",
        'waiting   4  for approval "pay 20\\nto acme"',
        "waiting   5  for approval 9",
        "waiting   6  for signal go, signal a word now",
        "          perdure signal t go JSON --store sqlite:///x.db",
        "          perdure signal t 'a word' JSON --store sqlite:///x.db",
    ]


def test_a_task_that_only_waits_is_said_to_where_it_was_not_said_for_what() -> None:
    lines = printed(
        TaskWaiting(1, 1.0, 0.0, "", ""),
        TaskWaiting(2, 1.0, None, "child t/1", "2"),
        TaskWaiting(3, 1.0, None, "", ""),
        WaitOver(4, 1.0, "2", "child t/1", False),
        TaskWaiting(5, 1.0, None, "", ""),
    ).splitlines()
    assert lines == [
        "waiting   goes on now",
        "waiting   2  for child t/1",
        "finished  2  child t/1",
        "waiting   for what others bring",
    ]


def test_what_comes_from_outside_has_its_line() -> None:
    lines = printed(
        ApprovalAnswered(1, 1.0, "2", False, "ann", "too\ndear", "null"),
        ApprovalAnswered(1, 1.0, "2", True, "ann", "", dumps({"limit": 5})),
        SignalArrived(2, 1.0, "go\n", "bob", dumps((1,))),
        ChildBegan(3, 1.0, "5", "t/5"),
        ChildEnded(4, 1.0, "t/5", "failed"),
        WaitOver(5, 1.0, "6", "signal go", True),
        WaitOver(6, 1.0, "7", "sleep", False),
        CancelAsked(7, 1.0, "ann", "not\nneeded"),
        CancelAsked(8, 1.0, "ann", ""),
    ).splitlines()
    assert lines == [
        'received  no to 2, by ann: "too\\ndear"',
        'received  yes to 2, by ann, {"limit": 5}',
        "received  signal go\\n  [1]  by bob",
        "spawned   5  t/5",
        "received  child t/5  failed",
        "finished  6  signal go  timed out",
        "finished  7  sleep",
        "cancel    by ann: not\\nneeded",
        "cancel    by ann",
    ]


# ------------------------------------------------------------------ the command


def test_show_follow_tells_a_task_from_its_beginning_to_its_end(shell: Shell) -> None:
    assert shell("run", "talk.py:story", "log", "--id", "s").returncode == 0
    done = shell("show", "s", "--follow")
    assert (done.returncode, done.stderr) == (0, "")
    told = [
        "says      1  Once upon a time",
        "",
        "          there was a log.",
        'says      1  usage: {"tokens": 9}',
    ]
    lines = done.stdout.splitlines()
    assert lines[:6] == ["says      I write about log", 'running   1  draft "about log"', *told]
    assert lines[6].startswith('failed    1  draft "about log"  ConnectionError: no route; attempt 2 ')
    assert lines[7:9] == [
        'running   1  draft "about log" (attempt 2)',
        "again     1  what was said above counts no more",
    ]
    assert lines[9:13] == told
    assert lines[13].startswith('finished  1  draft "about log" (attempt 2)')
    assert lines[14:] == ["ended     s  completed"]


def test_show_follow_json_is_a_document_a_line_and_goes_on_after_a_cursor(shell: Shell) -> None:
    assert shell("run", "talk.py:story", "log", "--id", "story").returncode == 0
    done = shell("show", "sto", "--follow", "--json")
    assert done.returncode == 0
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    first, began, *_, ended = documents
    assert list(first) == ["cursor", "type", "at", "path", "attempt", "channel", "value"]
    assert (first["type"], first["path"], first["value"]) == ("Emitted", "1-", "I write about log")
    assert first["at"].endswith("Z")
    assert (began["type"], began["label"]) == ("StepBegan", "about log")
    assert {"type": "TaskEnded", "status": "completed", "reason": ""}.items() <= ended.items()
    failed = next(document for document in documents if document["type"] == "StepEnded")
    assert failed["error"] == "ConnectionError: no route"
    assert failed["retry_at"].endswith("Z")
    for place in (0, 5, len(documents) - 1):
        after = shell("show", "story", "--follow", "--json", "--after", str(documents[place]["cursor"]))
        assert after.stdout == "".join(f"{line}\n" for line in done.stdout.splitlines()[place + 1 :])


def test_show_follow_tells_what_happens_while_it_happens_and_leaves_at_the_end(shell: Shell) -> None:
    with AgentSystem(shell.url, run=False) as client:
        client.spawn(agent_named("waiting"), id="w")
    run = ("run", "talk.py:waiting", "--id", "w")
    with shell.start("show", "w", "--follow", "--json") as following, shell.start(*run):
        assert following.process.stdout is not None
        seen = [json.loads(following.process.stdout.readline()) for _ in range(2)]
        assert [document["type"] for document in seen] == ["StepBegan", "Emitted"]
        shell.open_door("ann")
        code, out, err = following.end()
    assert (code, err) == (0, "")
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["StepEnded", "TaskEnded"]


def test_who_follows_can_answer_with_the_commands_that_are_shown(shell: Shell) -> None:
    with AgentSystem(shell.url, run=False) as client:
        client.spawn(agent_named("asking"), id="a")
    with shell.start("run", "talk.py:asking", "--id", "a"), shell.start("show", "a", "--follow") as following:
        assert following.process.stdout is not None
        for verb, more in (("approve", ["--value", '"yes"']), ("signal", [])):
            command = next(line for line in following.process.stdout if f"perdure {verb}" in line)
            words = shlex.split(command.partition("perdure ")[2].replace("JSON", "'[1]'"))
            assert shell(*words, *more).returncode == 0
        code, out, err = following.end()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "ended     a  completed"
    documents = [json.loads(line) for line in shell("show", "a", "--follow", "--json").stdout.splitlines()]
    types = [document["type"] for document in documents]
    assert [kind for kind in types if kind not in ("TaskWaiting", "WaitOver")] == [
        "ApprovalAsked",
        "ApprovalAnswered",
        "SignalArrived",
        "TaskEnded",
    ]
    asked, answered, arrived = (documents[types.index(kind)] for kind in types if kind.startswith(("Appr", "Sign")))
    assert (asked["details"], asked["question"], asked["pause"][:4]) == ({"sum": 20}, "go on?", "a#1@")
    assert (answered["approved"], answered["value"], arrived["value"]) == (True, "yes", [1])


def test_ctrl_c_ends_a_line_and_leaves_without_a_traceback(shell: Shell) -> None:
    with shell.start("run", "talk.py:waiting", "--id", "w") as running:
        running.read_until("running ")
        with shell.start("show", "w", "--follow") as following:
            assert following.process.stdout is not None
            seen = ""
            while not seen.endswith("?"):  # nothing in the pipe says that the line is whole
                seen += following.process.stdout.read(1)
            assert seen == "running   1  wait\nsays      1  who is there?"
            following.process.send_signal(signal.SIGINT)
            assert following.end() == (130, "\n", "")


def test_what_show_follow_cannot_do_is_said_in_one_line(shell: Shell) -> None:
    with AgentSystem(shell.url, run=False) as client:
        client.spawn(agent_named("nobody's"), id="t")
    wrong = [
        (["show", "nobody", "--follow"], "there is no task 'nobody'"),
        (["show", "t", "--after", "5"], "--after takes a cursor, a whole number from 0, and goes with --follow"),
        (["show", "t", "--follow", "--after", "-1"], "--after takes a cursor"),
    ]
    for words, message in wrong:
        done = shell(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_show_follow_of_a_damaged_log_tells_what_stands_before_and_leads_out(shell: Shell, world: World) -> None:
    assert shell("run", "talk.py:story", "log", "--id", "s").returncode == 0
    world.file = shell.folder / "perdure.db"
    world.flip("s", 4, 20)
    done = shell("show", "s", "--follow")
    assert done.returncode == 1
    assert done.stdout.splitlines()[:2] == ["says      I write about log", 'running   1  draft "about log"']
    assert "version 4 of its log cannot be read" in done.stderr
    assert done.stderr.endswith("mended, it goes on after: perdure release s\n")
