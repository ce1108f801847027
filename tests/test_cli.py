"""The command line, as real processes with real files: what it shows, decides and refuses."""

import json
import re
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from actors import AgentSystem
from actors.cli import app
from tests.shell import Shell, agent_named, words_of

COMMANDS = [
    *("approvals", "approve", "cancel", "check", "delete", "demo", "list", "reindex", "reject", "release", "replay"),
    *("resolve", "run", "show", "signal", "tree", "vacuum", "verify", "worker"),
]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# ------------------------------------------------------------------ list and show


def test_list_says_of_each_task_where_it_is_or_why_it_does_not_go_on(shell: Shell) -> None:
    assert shell("run", "work.py:typeless", "1", "--id", "done").returncode == 0
    assert shell("run", "work.py:failing", "[red]no\nroute", "--id", "bad").returncode == 1
    words = ("run", "work.py:invoice", "[bold]acme\x1b[31m", "--id", "[red]held")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    with AgentSystem(shell.url, run=False) as client:
        client.spawn(agent_named("nobody's"), id="i" * 200)
    listed = shell("list")
    assert "\x1b" not in listed.stdout
    head, *rows = listed.stdout.splitlines()
    assert head.split() == ["id", "status", "age", "agent", "where", "/", "why"]
    assert [row.split()[:2] for row in rows if not row.startswith(" ")] == [
        ["done", "completed"],
        ["bad", "failed"],
        ["[red]held", "held"],
        ["i" * 200, "queued"],
    ]
    assert "ConnectionError: step 1 refuse: [red]no" in rows[1]
    assert r'in doubt: step 1 pay "pay 20 to [bold]acme\x1b[31m"' in listed.stdout
    assert "no worker runs" in rows[-1]
    assert words_of(shell("list", "--status", "failed").stdout) == ["id", "bad"]
    assert words_of(shell("list", "--agent", "nobody's").stdout) == ["id", "i" * 200]
    assert shell("list", "--agent", "x").stdout == ""


def test_list_says_nothing_against_a_queued_task_that_a_worker_knows(shell: Shell) -> None:
    with AgentSystem(shell.url, only="nothing") as worker:
        worker.spawn(agent_named("known to one task's worker only"), id="a")
        assert "no live worker knows this agent" in shell("list").stdout
    with AgentSystem(shell.url) as worker:
        worker.spawn(agent_named("known"), id="b")
        assert "no live worker knows" not in shell("list", "--agent", "known").stdout


def test_show_is_the_log_as_a_table(shell: Shell) -> None:
    words = ("run", "work.py:invoice", "[bold]a\tb", "--id", "i")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    assert shell("resolve", "i", "1", "--value", '"' + "x" * 500 + '"', "--by", "ann").returncode == 0
    assert shell(*words).returncode == 0
    done = shell("show", "i")
    assert done.returncode == 0
    status, blank, head, *rows = done.stdout.splitlines()
    assert status.startswith("i  completed  agent invoice  created 20")
    assert blank == ""
    assert head.split() == ["version", "time", "event", "path", "what"]
    assert [row.split()[2] for row in rows] == [
        "Created", "Activated", "StepStarted", "Activated", "Held", "Released", "Activated", "Completed",
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == [str(number) for number in range(1, 9)]
    assert r'invoice("[bold]a\tb")' in rows[0]
    assert re.search(r'1     pay "pay 20 to \[bold\]a\\tb"$', rows[2])
    assert rows[5].endswith(f'happened, with "{"x" * 500}", by ann'), "nothing is cut that goes to no terminal"
    narrow = shell("show", "i", COLUMNS="60").stdout.splitlines()
    assert max(len(row) for row in narrow[2:]) <= 60
    (step,) = json.loads(shell("show", "i", "--json").stdout)["steps"]
    assert (step["state"], step["decision"], step["by"], len(step["value"])) == ("decided", "value", "ann", 500)


def test_show_ends_with_why_a_task_is_held_or_how_it_failed(shell: Shell) -> None:
    words = ("run", "work.py:invoice", "acme", "--id", "i")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    assert re.search(r'\n\ni  held .*  in doubt: step 1 pay "pay 20 to acme".*\n  it may', shell("show", "i").stdout)
    assert shell("run", "work.py:failing", "no", "--id", "f").returncode == 1
    assert "\n\nf  failed  ConnectionError: step 1 refuse: no\n  Traceback" in shell("show", "f").stdout


def test_show_and_list_run_nothing(shell: Shell) -> None:
    with AgentSystem(shell.url, run=False) as client:
        client.spawn(agent_named("report"), "x", id="r")
        before = client.task("r").events()
        assert [shell("show", "r").returncode, shell("list").returncode] == [0, 0]
        assert client.task("r").events() == before


def test_show_and_list_tell_of_a_wait_for_another_attempt(shell: Shell) -> None:
    leave_waiting(shell)
    listed = shell("list", "--status", "waiting").stdout
    assert re.search(
        r"^t  +waiting  \d+ m?s +trip +tries step 2 travel again in \d+ s; no worker runs", listed, re.MULTILINE
    )
    assert shell("list", "--status", "queued").stdout == ""
    status, *rows = shell("show", "t").stdout.splitlines()
    assert re.match(r"t  waiting  tries step 2 travel again in \d+ s  agent trip", status)
    failed = next(row for row in rows if "StepFailed" in row)
    assert re.search(r"2     travel  ConnectionError, again \d\d:\d\d:\d\d: no road to Rome$", failed)
    assert re.search(r"Passivated +waits until \d\d:\d\d:\d\d$", rows[-1])


def leave_waiting(shell: Shell) -> None:
    """Leave task t where its second step waits for its second attempt."""
    with shell.start("run", "work.py:trip", "Rome", "--id", "t") as running:
        running.read_until("failed ")
        running.process.terminate()
        assert running.end()[0] == 143


def test_show_has_gathers_branches_patches_and_the_clock(shell: Shell) -> None:
    assert shell("run", "work.py:stumbling", "--id", "s").returncode == 0
    assert shell("run", "work.py:asking", "who", "--id", "a").returncode == 0
    shown = shell("show", "s").stdout
    assert re.search(r"Patched +1 +new way$", shown, re.MULTILINE)
    assert re.search(r"ClockRead +2 +now  20\d\d-\d\d-\d\d \d\d:", shown, re.MULTILINE)
    assert re.search(r"StepStarted +3 +stumble \(attempt 2\)$", shown, re.MULTILINE)
    assert re.search(r'StepStarted +4/2/1 +draft "of b"$', shown, re.MULTILINE)
    assert re.search(r'StepStarted +~tool%2Fmail/1 +draft "of mail"$', shell("show", "a").stdout, re.MULTILINE)


def test_a_hold_for_a_body_that_was_given_up_says_so(shell: Shell) -> None:
    done = shell("run", "work.py:phoning", "ann", "--id", "p")
    assert done.returncode == 3
    for text in (done.stderr, shell("show", "p").stdout):
        assert re.search(
            r'p  held .*in doubt: step 1 call "call ann", attempt 1 began \d\d:\d\d:\d\d'
            r" and was given up at its time limit, after 0.1 s\n  it may or may not have happened; idempotency key pd_",
            text,
        )
        assert "not in the log" not in text


def test_piped_every_task_and_every_event_is_one_whole_line(shell: Shell) -> None:
    assert shell("run", "work.py:failing", "no route " * 100, "--id", "f").returncode == 1
    (shell.folder / "reason").write_text("a bug")
    assert shell("run", "work.py:crashing", "--id", "c").returncode == 3
    listed = shell("list").stdout
    assert len(listed.splitlines()) == 3
    assert re.search(r"^f .*no route n?o?…$|^f .*…$", listed, re.MULTILINE)
    assert re.search(r"^c +held .*  3 crashes in a row: KeyError: 'a bug', at \S+work\.py:\d+$", listed, re.MULTILINE)
    failed, held = shell("show", "f").stdout, shell("show", "c").stdout
    assert re.search(rf"StepFailed +1 +refuse  ConnectionError: {'no route ' * 100}$".rstrip(" $"), failed)
    assert "…" not in failed
    assert re.search(r"Held .* strikes; 3 crashes in a row: KeyError: 'a bug', at \S+work\.py:\d+$", held, re.MULTILINE)


def test_values_are_plain_but_in_a_history(shell: Shell) -> None:
    assert shell("run", "work.py:bytes_inside", "--id", "b").returncode == 0
    shown = json.loads(shell("show", "b", "--json").stdout)
    assert shown["value"] == ["/w==", "café"]
    assert {"$": "tuple", "v": [{"$": "bytes", "v": "/w=="}, "café"]} in shown["history"]["rows"][-1][2]
    assert re.search(r'Completed +\["/w==", "café"\]$', shell("show", "b").stdout, re.MULTILINE)


# ------------------------------------------------------------------ for programs


def test_list_as_json_has_what_the_table_has(shell: Shell) -> None:
    assert shell("run", "work.py:typeless", "1", "--id", "done").returncode == 0
    leave_waiting(shell)
    done, waiting = json.loads(shell("list", "--json").stdout)
    assert list(done) == [
        "id", "status", "agent", "created", "updated", "due", "worker", "worker_lives", "strikes", "hold", "where",
    ]  # fmt: skip
    assert (done["id"], done["status"], done["due"]) == ("done", "completed", None)
    assert (waiting["id"], waiting["status"]) == ("t", "waiting")
    assert waiting["where"].startswith("tries step 2 travel again in ")
    due, updated = (datetime.fromisoformat(waiting[key]) for key in ("due", "updated"))
    assert due.tzinfo == UTC
    assert 50 < (due - updated).total_seconds() <= 60
    ends = shell.each([["list", "--json", "--status", "failed"], ["list", "--json", "--status", "no"]])
    assert [(code, out) for code, out, _ in ends] == [(0, "[]\n"), (2, "")]


def test_show_as_json_has_everything_and_is_a_history(shell: Shell) -> None:
    words = ("run", "work.py:invoice", "acmé", "--id", "i")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    done = shell("show", "i", "--json", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0
    assert done.stdout.isascii()
    shown = json.loads(done.stdout)
    assert list(shown) == [
        "id", "status", "agent", "parent", "created", "updated", "due", "worker", "worker_lives", "activation",
        "strikes", "version", "tags", "arguments", "value", "hold", "why", "error", "cancel", "waits", "approvals",
        "undos", "children", "steps", "unreadable", "history",
    ]  # fmt: skip
    assert (shown["status"], shown["hold"], shown["version"], shown["arguments"]) == (
        "held",
        "in doubt",
        5,
        [["acmé"], {}],
    )
    (step,) = shown["steps"]
    assert (step["path"], step["name"], step["state"], step["errors"]) == ("1", "pay", "started", [])
    assert step["idempotency_key"] in shown["why"]
    assert [row[:2] for row in shown["history"]["rows"]][-1] == [5, "task.held"]
    (shell.folder / "history.json").write_text(done.stdout)
    test = (
        "from actors.testing import replay_history; from work import invoice; replay_history(invoice, 'history.json')"
    )
    assert shell.python("-c", test).returncode == 0


def test_show_as_json_has_errors_and_values(shell: Shell) -> None:
    assert shell("run", "work.py:failing", "no", "--id", "f").returncode == 1
    assert shell("run", "work.py:stumbling", "--id", "s").returncode == 0
    failed, stumbled = (json.loads(shell("show", one, "--json").stdout) for one in "fs")
    assert (failed["error"]["kind"], failed["error"]["message"]) == ("ConnectionError", "step 1 refuse: no")
    assert [error["message"] for error in failed["steps"][0]["errors"]] == ["no"]
    assert stumbled["value"] == ["up again", "summary of a", "summary of b"]
    kinds = {step["path"]: (step["kind"], step["attempt"], step["state"]) for step in stumbled["steps"]}
    assert kinds["1"] == ("patch", 1, "finished")
    assert kinds["2"] == ("now", 1, "finished")
    assert kinds["3"] == ("step", 2, "finished")


# ------------------------------------------------------------------ the beginning of an id


def test_the_beginning_of_an_id_is_enough_where_only_one_begins_so(shell: Shell) -> None:
    words = ("run", "work.py:invoice", "acme", "--id", "invoice-7")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    assert shell("show", "inv").stdout.startswith("invoice-7  held")
    resolved = shell("resolve", "invo", "1", "--value", '"txn"', "--by", "ann")
    assert resolved.stdout.startswith("invoice-7: step 1 happened")
    assert shell("release", "i").stderr.startswith("perdure: task invoice-7 is not held")
    assert shell("replay", "i", "work.py:invoice").stdout.startswith(
        'decided   1  pay "pay 20 to acme"  happened, with "txn", by ann\n'
    )
    shell("run", "work.py:invoice", "acme", "--id", "invoice")
    assert len(json.loads(shell("list", "--json").stdout)) == 2, "run takes its id as it is"


def test_an_exact_id_comes_first_and_an_ambiguous_one_is_an_error_with_some_of_them(shell: Shell) -> None:
    with AgentSystem(shell.url, run=False) as client:
        for number in range(8):
            client.spawn(agent_named("many"), id="report" if number == 0 else f"report-{number}")
    for code, out, err in shell.each([["show", "report-"], ["replay", "repo", "work.py:report"], ["release", "r"]]):
        assert (code, out) == (2, "")
        assert re.match(
            r"perdure: [78] tasks have an id that begins with 'r\S*': report\S*, (report-\d, ){3}report-\d and", err
        )
        assert err.endswith((" and 2 more\n", " and 3 more\n"))
    ends = shell.each([["show", "report"], ["show", "report-3"], ["show", "reports"], ["show", ""]])
    assert [code for code, _, _ in ends] == [0, 0, 2, 2]
    assert "there is no task 'reports'" in ends[2][2]
    assert "there is no task ''" in ends[3][2]


# ------------------------------------------------------------------ what cannot be done


IMPOSSIBLE = [
    (["run", "work.py:report", "--id", "x"], "agent report(document: str) -> dict[str, str]: missing a required"),
    (["run", "work.py:typeless", "1", "--id", "a\nb"], "a task's id has printable characters only"),
    (["run", "work.py:typeless", "1", "--id", "x" * 201], "a task's id has 1 to 200 characters"),
    (["run", "work.py:typeless", "2", "--id", "used"], "task used exists already, with other input"),
    (["run", "work.py:bytes_inside", "--id", "used"], "task used exists already, with agent typeless"),
    (["run", "work.py:typeless", "1", "--id", "x", "--store", "mysql://x"], "store URL 'mysql://…': expected "),
    (["run", "work.py:typeless", "1", "--id", "x", "--store", "sqlite:///no/t.db"], "sqlite:///"),
    (["list", "--status", "done"], "there is no status 'done': it is one of queued, "),
    (["list", "--status", "waiting for it"], "there is no status 'waiting for it'"),
    (["list", "--store", "memory:"], "a memory: store is private"),
    (["show", "nobody"], "there is no task 'nobody' in sqlite:///"),
    (["release", "nobody"], "there is no task 'nobody' in sqlite:///"),
    (["release", "used"], "task used has ended: completed"),
    (["resolve", "used", "1", "--rerun"], "task used has ended: completed"),
    (["resolve", "used", "1"], "say exactly one of --value JSON, --rerun and --fail"),
    (["resolve", "used", "1", "--rerun", "--value", "null"], "say exactly one of --value JSON, --rerun and --fail"),
    (["resolve", "used", "1", "--value", "txn"], "--value takes JSON, and 'txn' is none"),
    (["worker", "no.py"], "there is no file no.py in "),
    (["worker", "no.where"], "there is no module no.where in "),
    (["worker", "shlex"], "shlex: no agent in it: @agent makes one of a function"),
    (["worker", "work.py:report"], "'work.py:report': all agents of a module are meant: write work.py"),
    (["worker", "work.py", "--processes", "0"], "--processes is a whole number from 1, not 0"),
    (["worker", "work.py", "--max-active", "0"], "--max-active is a whole number from 1, not 0"),
    (["worker", "work.py", "--grace", "-1"], "--grace is a number of seconds from 0 to 1e+09, not -1"),
    (["worker", "work.py", "--grace", "nan"], "--grace is a number of seconds from 0 to 1e+09, not nan"),
    (["worker", "work.py", "--grace", "inf", "--processes", "2"], "--grace is a number of seconds from 0 to 1e+09"),
    (["worker", "work.py", "--store", "memory:"], "a memory: store is private to the process that made it"),
    (["worker", "work.py", "--store", "mysql://x"], "store URL 'mysql://…': expected "),
]


def test_a_value_that_does_not_fit_the_step_is_refused_at_once_where_the_code_is_named(shell: Shell) -> None:
    words = ("run", "work.py:invoice", "acme", "--id", "i")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    (shell.folder / "other.py").write_text("from actors import agent\n@agent\ndef another(): ...\n")
    by_name = "from actors import *\n@agent\ndef invoice(who): run_step('pay', print, who)\n"
    (shell.folder / "named.py").write_text(by_name)
    wrong = [
        (["work.py", "5"], "task i: step 1 pay gives str, and this value does not fit: expected str, found 5 (int)"),
        (
            ["named.py", "5"],
            "named.py: step 'pay': this process has no step of that name: nothing was changed; without",
        ),
        (["other.py", '"txn"'], "other.py has no agent invoice, of which task i is one: nothing was changed"),
    ]
    for (code, value), message in wrong:
        refused = shell("resolve", "i", "1", "--value", value, "--code", code)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"perdure: {message}")
        assert refused.stderr.count("\n") == 1
    assert shell("resolve", "i", "1", "--value", '"txn"', "--code", "work.py").returncode == 0
    assert shell(*words).stdout == '"txn"\n'


def test_what_cannot_be_done_is_one_clear_line_and_exit_code_2(shell: Shell) -> None:
    assert shell("run", "work.py:typeless", "1", "--id", "used").returncode == 0
    ends = shell.each(words for words, _ in IMPOSSIBLE)
    for (words, message), (code, out, err) in zip(IMPOSSIBLE, ends, strict=True):
        assert (words, code, out) == (words, 2, "")
        assert err.startswith(f"perdure: {message}"), err
        assert err.count("\n") == 1
    assert words_of(shell("list").stdout) == ["id", "used"], "nothing was changed"


LOOKING = [
    ["list"],
    ["show", "x"],
    ["release", "x"],
    ["resolve", "x", "1", "--rerun"],
    ["check", "work.py"],
    ["replay", "x", "work.py:report"],
]


def test_a_store_that_is_not_there_is_never_made_by_looking(shell: Shell) -> None:
    before = {*shell.folder.iterdir(), shell.folder / "out", shell.folder / "err"}
    for code, _, err in shell.each(LOOKING):
        assert code == 2
        assert f"there is no store {shell.folder / 'perdure.db'}" in err
    assert set(shell.folder.iterdir()) == before


def test_an_option_is_missing(shell: Shell) -> None:
    done = shell("run", "work.py:report", "x")
    assert done.returncode == 2
    assert "--id" in done.stderr


# ------------------------------------------------------------------ the command itself


def test_the_store_is_the_option_else_the_environment_else_a_file_here(shell: Shell) -> None:
    words = ("run", "work.py:typeless", "1", "--id", "x")
    shell(*words, PERDURE_STORE="sqlite:///environment.db")
    shell(*words, "--store", "sqlite:///option.db", PERDURE_STORE="sqlite:///environment.db")
    shell(*words)
    assert {file.name for file in shell.folder.glob("*.db")} == {"environment.db", "option.db", "perdure.db"}
    assert shell("run", "work.py:typeless", "1", "--id", "x", "--store", "memory:").stdout == "1\n"


def test_the_commands_are_these() -> None:
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    assert sorted(names) == COMMANDS


def test_the_help_of_a_command_says_what_it_does_and_shows_it(shell: Shell) -> None:
    for command, (code, out, _) in zip(COMMANDS, shell.each([name, "--help"] for name in COMMANDS), strict=True):
        usage, blank, purpose, *_ = out.splitlines()
        assert code == 0
        assert usage.startswith(f"Usage: perdure {command}")
        assert (blank, purpose[:2]) == ("", "  ")
        assert f"Example:  perdure {command}" in out
        assert re.findall(r"^  (?:--[\w-]+|\S+ <\S+>)(?: [A-Z]+)?$", out, re.MULTILINE) == [], "what has no description"


def test_help_lists_every_command_with_a_whole_sentence(shell: Shell) -> None:
    done = shell("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command}  .*[.?]$", done.stdout, re.MULTILINE)
    assert "..." not in done.stdout.partition("Commands:")[2]


def test_version_is_that_of_the_distribution(shell: Shell) -> None:
    assert re.fullmatch(r"perdure \d+\.\d+\.\d+\n", shell("--version").stdout)


def test_the_demo_without_its_mail_server_names_the_command_that_installs_it(shell: Shell) -> None:
    hide = "import sys; sys.modules['aiosmtpd'] = None; from actors.cli import main; main()"
    done = shell.python("-c", hide, "demo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'perdure: the demo needs a mail server: pip install "perdure[demo]"\n'
