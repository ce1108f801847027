"""`perdure check` and `perdure replay`: today's code against logs, through the real command line."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import pytest

from actors import AgentSystem
from tests.shell import PERDURE, Shell, agent_named

FETCHING = """
from functools import partial
from actors import agent, gather, step

@step
def fetch(what: str) -> str:
    with open("ledger", "a") as ledger:
        ledger.write("fetch\\n")
    return what

@step
def other(what: str) -> str:
    raise AssertionError("no body runs")
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Leave report-1 in its second step, trip-1 waiting for its second, and invoice-1 held in doubt."""
    shell = Shell(tmp_path_factory.mktemp("left"))
    assert shell("run", "work.py:report", "notes.txt", "--id", "report-1").returncode == -signal.SIGKILL
    with shell.start("run", "work.py:trip", "Rome", "--id", "trip-1") as running:
        running.read_until("failed ")
        running.process.terminate()
        assert running.end()[0] == 143
    (shell.folder / "died").unlink()
    words = ("run", "work.py:invoice", "acme", "--id", "invoice-1")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    return shell.folder


@pytest.fixture
def left(shell: Shell, leaving: Path) -> Shell:
    """Give a copy of what was left."""
    for file in (*leaving.glob("perdure.db*"), leaving / "ledger", leaving / "died"):
        if file.is_file():
            shutil.copy(file, shell.folder)
    return shell


def change(shell: Shell, before: str, after: str) -> None:
    file = shell.folder / "work.py"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))


def logs(shell: Shell) -> dict[str, Any]:
    with AgentSystem(shell.url, run=False) as client:
        return {task.id: (task.status(), task.events()) for task in client.tasks()}


# ------------------------------------------------------------------ check


def test_code_that_fits_all_logs_is_said_in_one_line_and_changes_nothing(left: Shell) -> None:
    before, ledger, files = logs(left), left.ledger, sorted(left.folder.glob("perdure.db.locks/*"))
    done = left("check", "work.py")
    assert (done.returncode, done.stderr) == (0, "")
    note, blank, last = done.stdout.splitlines()
    assert note.startswith('note      invoice-1: it is held for a person: in doubt: step 1 pay "pay 20 to acme"')
    assert (blank, last) == ("", "3 tasks: 2 fit, 0 would be held, 1 held for a person")
    assert (logs(left), left.ledger) == (before, ledger)
    assert sorted(left.folder.glob("perdure.db.locks/*")) == files


def test_what_would_be_held_is_listed_with_position_and_both_sides(left: Shell) -> None:
    change(left, '"body": draft(document), ', "")
    done = left("check", "work")
    assert done.returncode == 1
    assert done.stdout.startswith(
        "report-1  agent report  running\n"
        "  would be held: code differs at position 1\n"
        "    the log has        step draft\n"
        "    the code asks for  step send\n"
    )
    assert done.stdout.endswith("\n3 tasks: 1 fits, 1 would be held, 1 held for a person\n")
    assert left.ledger == ["draft", "send", "draft", "travel", "pay"], "no body has run"


def test_a_worker_finds_what_check_has_found(left: Shell) -> None:
    change(left, '"body": draft(document), ', "")
    assert left("run", "work.py:report", "notes.txt", "--id", "report-1").returncode == 3
    assert "report-1  agent report  held\n  would be held: code differs" in left("check", "work.py").stdout
    change(left, 'return {"mail"', 'return {"body": draft(document), "mail"')
    done = left("check", "work.py")
    assert done.returncode == 0
    assert "note      report-1: it is held for its code, and fits now: it goes on when a worker starts" in done.stdout
    assert left("run", "work.py:report", "notes.txt", "--id", "report-1").returncode == 0


def test_an_agent_that_crashes_or_hangs_before_its_next_step_is_listed_with_its_line(left: Shell) -> None:
    change(left, "def trip(where: str) -> str:", 'def trip(where: str) -> str:\n    {}["gone"]')
    change(
        left, "def report(document: str) -> dict[str, str]:", "def report(document):\n    while True: time.sleep(0.01)"
    )
    began = time.monotonic()
    done = left("check", "work.py", "--timeout", "0.5")
    assert time.monotonic() - began < 30
    assert done.returncode == 1
    assert "trip-1  agent trip  waiting\n  would crash: KeyError: 'gone'\n  Traceback (most" in done.stdout
    assert "\n    a worker would start it again, crash after crash, and hold it at the strike limit\n" in done.stdout
    assert f'    File "{left.folder}/work.py", line ' in done.stdout
    hangs = r"would hang: it did not come to its next step within 0\.5 s: it is at \S+/work\.py:\d+\n    a w"
    assert re.search(hangs, done.stdout)
    assert done.stdout.endswith("3 tasks: 0 fit, 0 would be held, 1 would crash, 1 would hang, 1 held for a person\n")


def test_code_that_keeps_its_process_does_not_keep_the_command(left: Shell) -> None:
    change(
        left,
        "def trip(where: str) -> str:",
        "def trip(where: str) -> str:\n    import threading\n"
        "    t = threading.Thread(target=time.sleep, args=[1000])\n    t.start()\n    t.join()",
    )
    done = left("check", "work.py", "--timeout", "0.5", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["counts"]["hangs"] == 1


def test_tasks_of_agents_that_the_modules_have_not_are_counted_and_pass_only_where_that_is_said(shell: Shell) -> None:
    with AgentSystem(shell.url, run=False) as client:
        for number in range(7):
            client.spawn(agent_named("elsewhere"), id=f"e-{number}")
    (shell.folder / "shop.py").write_text(FETCHING + "@agent\ndef shop(): return fetch('x')\n")
    done = shell("check", "work.py", "shop")
    assert done.returncode == 3
    assert done.stdout == (
        "not here  agent elsewhere: 7 tasks (e-0, e-1, e-2, e-3, e-4 and 2 more)\n\n"
        "7 tasks: 0 fit, 0 would be held, 7 not looked at, as work.py, shop has no such agent\n"
    )
    partial = shell("check", "work.py", "shop", "--partial")
    assert (partial.returncode, partial.stdout) == (0, done.stdout)
    assert shell("check", "work.py", "--json").returncode == 3


def test_what_would_be_held_counts_for_more_than_what_was_not_looked_at(left: Shell) -> None:
    with AgentSystem(left.url, run=False) as client:
        client.spawn(agent_named("elsewhere"), id="e")
    change(left, '"body": draft(document), ', "")
    for more in ([], ["--partial"]):
        assert left("check", "work.py", *more).returncode == 1


def test_a_step_in_doubt_that_a_person_would_decide_is_a_note(shell: Shell) -> None:
    assert shell("run", "work.py:invoice", "acme", "--id", "i").returncode == -signal.SIGKILL
    done = shell("check", "work.py")
    assert done.returncode == 0
    assert done.stdout == (
        "note      i: step 1 pay is in doubt, and a person has to decide it: a worker that starts holds the task\n\n"
        "1 task: 0 fit, 0 would be held, 1 in doubt\n"
    )
    (task,) = json.loads(shell("check", "work.py", "--json").stdout)["tasks"]
    assert task["verdict"] == "in doubt"


def test_other_arguments_at_a_finished_step_are_a_note_of_the_task(left: Shell) -> None:
    change(left, '"body": draft(document), ', '"body": draft(document + "!"), ')
    note = "step 1 draft has other arguments than when it was recorded; its recorded outcome stands"
    done, document = left("check", "work.py"), json.loads(left("check", "work.py", "--json").stdout)
    assert done.returncode == 0
    assert f"note      report-1: {note}\n" in done.stdout
    assert note in done.stderr
    assert {task["id"]: task["notes"] for task in document["tasks"]}["report-1"] == [note]
    assert not any("other arguments" in note for task in document["tasks"][1:] for note in task["notes"])


def test_check_works_while_a_worker_runs_and_says_nothing_of_a_body_that_runs(shell: Shell) -> None:
    change(shell, '@step(label="until the door opens")', '@step(on_doubt="hold")')
    with shell.start("run", "work.py:waiting", "--id", "w") as running:
        running.read_until("running  ")
        done = shell("check", "work.py")
        replayed = shell("replay", "w", "work.py:waiting")
        shell.open_door("open")
        assert running.end()[0] == 0
    assert (done.returncode, done.stdout) == (0, "1 task: 1 fits, 0 would be held\n")
    assert re.match(r"running   1  wait  attempt 1 began \d\d:\d\d:\d\d\nw  running  the code fits", replayed.stdout)


ASYNC = """
@agent
async def crawl(what: str):
    return await gather(fetch.aio(what), fetch.aio("b"), asyncio.sleep(0))
"""


def test_async_agents_and_branches_are_checked_like_any_other(shell: Shell) -> None:
    file = shell.folder / "crawl.py"
    file.write_text(f"import asyncio\n{FETCHING}{ASYNC}")
    with AgentSystem(shell.url, run=False) as client:
        client.spawn(agent_named("crawl"), "a", id="new")
    dies = "import crawl, os; crawl.fetch.fn.__code__ = (lambda what: __import__('os')._exit(9)).__code__"
    run = f"{dies}; from actors.cli import main; main()"
    assert shell.python("-c", run, "run", "crawl:crawl", "a", "--id", "c").returncode == 9
    done = shell("check", "crawl.py")
    assert (done.returncode, done.stdout) == (0, "2 tasks: 2 fit, 0 would be held\n")
    file.write_text(file.read_text().replace("gather(fetch.aio(what), fetch.aio", "gather(other.aio(what), other.aio"))
    done = shell("check", "crawl.py")
    assert done.returncode == 1
    assert "would be held: code differs at position 1/" in done.stdout
    assert "    the log has        step fetch\n    the code asks for  step other\n" in done.stdout
    assert done.stdout.endswith("2 tasks: 1 fits, 1 would be held\n")
    file.write_text(file.read_text().replace("await gather", "await asyncio.Event().wait(); await gather"))
    done = shell("check", "crawl.py", "--timeout", "0.3")
    assert done.stdout.count("did not come to its next step within 0.3 s") == 2


def test_check_as_json(left: Shell) -> None:
    change(left, "def trip(where: str) -> str:", 'def trip(where: str) -> str:\n    print("user code prints this")')
    change(left, '"body": draft(document), ', "")
    done = left("check", "work.py", "--json")
    assert done.returncode == 1
    assert "user code prints this" in done.stderr
    document = json.loads(done.stdout)
    assert list(document) == ["store", "counts", "tasks"]
    assert document["store"] == left.url
    assert document["counts"] == {
        "fits": 1, "held": 1, "crashes": 0, "hangs": 0, "in_doubt": 0, "for_a_person": 1, "not_here": 0,
    }  # fmt: skip
    tasks = {task["id"]: task for task in document["tasks"]}
    assert tasks["report-1"] == {
        "id": "report-1",
        "agent": "report",
        "status": "running",
        "verdict": "held",
        "reason": "differs",
        "position": "1",
        "log": "step draft",
        "code": "step send",
        "message": "code differs at position 1: the log has step draft, the code asks for step send",
        "notes": [],
    }
    assert [tasks[one]["verdict"] for one in ("trip-1", "invoice-1")] == ["fits", "for a person"]


def test_a_task_whose_value_no_class_fits_and_one_whose_log_is_damaged_are_listed(shell: Shell) -> None:
    file = shell.folder / "values.py"
    source = (
        "import os\nfrom dataclasses import dataclass\nfrom actors import agent, step\n@dataclass\nclass Page:\n"
        "    text: str\n@step\ndef get() -> Page: return Page('x')\n@step\ndef die() -> None: os._exit(9)\n"
        "@agent\ndef pages() -> None:\n    get()\n    die()\n"
    )
    file.write_text(source)
    assert shell("run", "values.py:pages", "--id", "p").returncode == 9
    file.write_text(source.replace("Page", "Leaf"))
    done = shell("check", "values.py")
    assert done.returncode == 1
    assert (
        "p  agent pages  running\n  would be held: unknown class\n    the value of step 1 get cannot be read: "
        in done.stdout
    )
    assert "Page" in done.stdout
    assert shell("run", "values.py:pages", "--id", "p").returncode == 3
    held = shell("show", "p").stdout
    assert (
        "it goes on by itself when a worker starts with code that has the class\n  try again now    perdure release p\n"
        in held
    )
    shell.python(
        "-c",
        "import sqlite3; c = sqlite3.connect('perdure.db');"
        "c.execute(\"update task_index set status='queued', hold=null\");"
        "c.execute('update stored_events set state=? where originator_version=3', [b'x' * 40]); c.commit()",
    )
    done = shell("check", "values.py")
    assert done.returncode == 1
    assert "would be held: unreadable\n    task p: version 3 of its log cannot be read" in done.stdout


WRONG = [
    (["check", "empty.py"], "empty.py: no agent in it"),
    (["check"], None),
    (["check", "nowhere.py"], "there is no file nowhere.py in "),
    (["check", "nowhere"], "there is no module nowhere in "),
    (["check", "work.py:report"], "'work.py:report': all agents of a module are meant: write work.py"),
    (["check", "broken.py"], "broken.py cannot be imported:"),
    (["check", "work.py", "--timeout", "0"], "--timeout is a number of seconds above 0, not 0"),
    (["check", "work.py", "--timeout", "nan"], "--timeout is a number of seconds above 0, not nan"),
    (["check", "work.py", "--store", "memory:"], "a memory: store is private"),
    (["check", "work.py", "--store", "sqlite:///none.db"], "there is no store "),
    (["replay", "x"], None),
    (["replay", "nobody", "work.py:report"], "there is no task 'nobody' in sqlite:///"),
    (["replay", "used", "work.py"], "'work.py' names no agent"),
    (["replay", "used", "work.py:nothing"], "work.py has no 'nothing'; its agents: report, "),
    (["replay", "used", "broken.py:x"], "broken.py cannot be imported:"),
    (["replay", "used", "work.py:report"], "task used is one of agent typeless, and work.py:report is agent report"),
    (["replay", "used", "work.py:typeless", "--debugger"], "--debugger needs a terminal"),
    (["replay", "used", "work.py:typeless", "--store", "sqlite:///none.db"], "there is no store "),
]


def test_bad_input_is_a_clear_error_and_exit_code_2(shell: Shell) -> None:
    assert shell("run", "work.py:typeless", "1", "--id", "used").returncode == 0
    (shell.folder / "broken.py").write_text("import no_such_thing\n")
    (shell.folder / "empty.py").write_text("")
    ends = shell.each(words for words, _ in WRONG)
    for (words, message), (code, out, err) in zip(WRONG, ends, strict=True):
        assert (words, code, out) == (words, 2, "")
        if message is not None:
            assert err.startswith(f"perdure: {message}"), err
            assert err.count("\n") == 1 or "cannot be imported" in message


# ------------------------------------------------------------------ replay


def test_a_replay_tells_each_step_and_where_it_stops_and_runs_and_writes_nothing(left: Shell) -> None:
    before, ledger = logs(left), left.ledger
    report, trip, invoice = (left("replay", one, f"work.py:{one}") for one in ("report", "trip", "invoice"))
    assert [report.returncode, trip.returncode, invoice.returncode] == [0, 0, 0]
    assert re.fullmatch(
        r'replayed  1  draft "of notes\.txt"  "summary of notes\.txt"\n'
        r'in doubt  2  send "mail to team@example\.org"  attempt 1 began \d\d:\d\d:\d\d, its end is not in the log\n'
        r"report-1  running  the code fits the log, which ends here\n",
        report.stdout,
    )
    waits = r'waits     2  travel "to Rome"  attempt 2 at \d\d:\d\d:\d\d after ConnectionError: no road to Rome\n'
    assert re.search(waits, trip.stdout)
    assert re.search(r"in doubt  1  pay .*; a person decides\ninvoice-1  held  the code fits", invoice.stdout)
    assert (logs(left), left.ledger) == (before, ledger)


def test_a_finished_task_is_replayed_to_its_end(shell: Shell) -> None:
    assert shell("run", "work.py:stumbling", "--id", "s").returncode == 0
    done = shell("replay", "s", "work.py:stumbling")
    assert done.returncode == 0
    assert re.fullmatch(
        r"          1  patch new way\n"
        r"          2  the clock: 20\d\d-.*\n"
        r'replayed  3  stumble \(2 attempts\)  "up again"\n'
        r'replayed  4/1/1  draft "of a"  "summary of a"\n'
        r'replayed  4/2/1  draft "of b"  "summary of b"\n'
        r"s  completed  the code fits the log, and comes to its end: it returns"
        r' \["up again", "summary of a", "summary of b"\]\n',
        done.stdout,
    )
    change(shell, "return [stumble(), ", "return [1, stumble(), ")
    other = shell("replay", "s", "work.py:stumbling")
    assert other.returncode == 0
    assert 'it returns [1, "up again"' in other.stdout
    assert '\n  the task has ended with ["up again", "summary of a", "summary of b"], and that stands\n' in other.stdout


def test_a_failed_task_is_replayed_to_its_end(shell: Shell) -> None:
    assert shell("run", "work.py:failing", "no", "--id", "f").returncode == 1
    done = shell("replay", "f", "work.py:failing")
    assert done.returncode == 0
    assert done.stdout == (
        "failed    1  refuse  ConnectionError: no\n"
        "f  failed  the code fits the log, and comes to its end: it fails with ConnectionError: no\n"
    )


def test_a_replay_says_where_the_code_differs_or_crashes(left: Shell) -> None:
    change(left, '"body": draft(document), ', '"body": draft(document), "again": draft("x"), ')
    done = left("replay", "report-1", "work.py:report")
    assert done.returncode == 1
    assert done.stdout.endswith(
        "report-1  running\n"
        "  would be held: code differs at position 2\n"
        "    the log has        step send\n"
        "    the code asks for  step draft\n"
    )
    change(left, "def trip(where: str) -> str:", 'def trip(where: str) -> str:\n    {}["gone"]')
    done = left("replay", "trip-1", "work.py:trip")
    assert done.returncode == 1
    assert "trip-1  waiting\n  would crash: KeyError: 'gone'\n  Traceback" in done.stdout


def test_a_step_that_has_not_begun_or_is_to_be_run_again_is_said_so(shell: Shell) -> None:
    words = ("run", "work.py:invoice", "acme", "--id", "i")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    assert shell("resolve", "i", "1", "--rerun", "--by", "ann").returncode == 0
    done = shell("replay", "i", "work.py:invoice")
    assert done.stdout.startswith('next      1  pay "pay 20 to acme"  to be run again, by ann\n')
    with AgentSystem(shell.url, run=False) as client:
        client.spawn(agent_named("last"), id="l")
    assert shell("replay", "l", "work.py:last").stdout.startswith("next      1  wait  it has not begun\n")


def test_a_breakpoint_in_the_code_works(shell: Shell) -> None:
    assert shell("run", "work.py:asking", "who", "--id", "a").returncode == 0
    change(shell, '    with branch("tool/mail"):', '    breakpoint()\n    with branch("tool/mail"):')
    done = shell.python("-m", "actors", "replay", "a", "work.py:asking", input="p pair\nc\n")
    assert done.returncode == 0, done.stderr
    assert "(Pdb) ('who?', 'why?')" in done.stdout
    assert "a  completed  the code fits the log" in done.stdout


@pytest.mark.parametrize(("agent", "line"), [("stumbling", "info, new = "), ("asking", "pair = await ")])
def test_under_the_debugger_it_stops_at_the_agents_first_line(shell: Shell, agent: str, line: str) -> None:
    arguments = ["who"] if agent == "asking" else []
    assert shell("run", f"work.py:{agent}", *arguments, "--id", "t").returncode == 0
    with Terminal(shell, "replay", "t", f"work.py:{agent}", "--debugger") as terminal:
        seen = terminal.read_until("(Pdb) ")
        assert f"{agent}()" in seen
        assert f"-> {line}" in seen
        terminal.type("n")
        assert "perdure" not in terminal.read_until("(Pdb) ").replace("perdure.db", ""), "it steps over what is ours"
        terminal.type("c")
        assert "the code fits the log, and comes to its end" in terminal.read_until("end: it returns")
    with Terminal(shell, "replay", "t", f"work.py:{agent}", "--debugger") as terminal:
        terminal.read_until("(Pdb) ")
        terminal.type("q")
        terminal.read_until("you have left the debugger before it came to its end")


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self._master, slave = pty.openpty()
        environment = {**shell.environment, "TERM": "dumb"}
        self._process = subprocess.Popen(
            [*PERDURE, *words], cwd=shell.folder, env=environment, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    def read_until(self, text: str) -> str:
        seen, until = "", time.monotonic() + 30
        while text not in seen:
            ready, _, _ = select.select([self._master], [], [], until - time.monotonic())
            assert ready, f"{text!r} has not come: {seen}"
            seen += os.read(self._master, 10_000).decode(errors="replace")
        return seen
