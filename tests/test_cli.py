"""The command line, as real processes with real files: what it shows, decides and refuses."""

import re
import signal
from pathlib import Path

import pytest

from actors import AgentSystem
from actors.cli import app
from tests.shell import Shell, agent_named, words_of

COMMANDS = ["demo", "list", "release", "resolve", "run", "show"]


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
    assert "no live worker knows this agent" in rows[-1]
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
    assert head.split() == ["version", "time", "event", "path", "step", "attempt", "label", "value"]
    assert [row.split()[2] for row in rows] == [
        "Created", "Activated", "StepStarted", "Activated", "Held", "Released", "Activated", "Completed",
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == [str(number) for number in range(1, 9)]
    assert r'invoice("[bold]a\tb")' in rows[0]
    assert re.search(r"pay +1  pay 20 to \[bold\]a\\tb", rows[2])
    assert rows[5].endswith("…")
    assert max(len(row) for row in rows) <= 120
    narrow = shell("show", "i", COLUMNS="90").stdout.splitlines()
    assert max(len(row) for row in narrow[2:]) <= 90


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


# ------------------------------------------------------------------ what cannot be done


IMPOSSIBLE = [
    (["run", "work.py:report", "--id", "x"], "agent report(document: str) -> dict[str, str]: missing a required"),
    (["run", "work.py:typeless", "1", "--id", "a\nb"], "a task's id has printable characters only"),
    (["run", "work.py:typeless", "1", "--id", "x" * 201], "a task's id has 1 to 200 characters"),
    (["run", "work.py:typeless", "2", "--id", "used"], "task used exists already, with other input"),
    (["run", "work.py:bytes_inside", "--id", "used"], "task used exists already, with agent typeless"),
    (["run", "work.py:typeless", "1", "--id", "x", "--store", "mysql://x"], "store URL 'mysql://x': expected "),
    (["run", "work.py:typeless", "1", "--id", "x", "--store", "sqlite:///no/t.db"], "sqlite:///"),
    (["list", "--status", "done"], "there is no status 'done': it is one of queued, "),
    (["list", "--store", "memory:"], "a memory: store is private"),
    (["show", "nobody"], "there is no task 'nobody' in sqlite:///"),
    (["release", "nobody"], "there is no task 'nobody' in sqlite:///"),
    (["release", "used"], "task used has ended: completed"),
    (["resolve", "used", "1", "--rerun"], "task used has ended: completed"),
    (["resolve", "used", "1"], "say exactly one of --value JSON, --rerun and --fail"),
    (["resolve", "used", "1", "--rerun", "--value", "null"], "say exactly one of --value JSON, --rerun and --fail"),
    (["resolve", "used", "1", "--value", "txn"], "--value takes JSON, and 'txn' is none"),
]


def test_what_cannot_be_done_is_one_clear_line_and_exit_code_2(shell: Shell) -> None:
    assert shell("run", "work.py:typeless", "1", "--id", "used").returncode == 0
    ends = shell.each(words for words, _ in IMPOSSIBLE)
    for (words, message), (code, out, err) in zip(IMPOSSIBLE, ends, strict=True):
        assert (words, code, out) == (words, 2, "")
        assert err.startswith(f"perdure: {message}"), err
        assert err.count("\n") == 1
    assert words_of(shell("list").stdout) == ["id", "used"], "nothing was changed"


def test_a_store_that_is_not_there_is_never_made_by_looking(shell: Shell) -> None:
    before = {*shell.folder.iterdir(), shell.folder / "out", shell.folder / "err"}
    for code, _, err in shell.each([["list"], ["show", "x"], ["release", "x"], ["resolve", "x", "1", "--rerun"]]):
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
        assert re.search(rf"^  {command}  .*\.$", done.stdout, re.MULTILINE)
    assert "..." not in done.stdout.partition("Commands:")[2]


def test_version_is_that_of_the_distribution(shell: Shell) -> None:
    assert re.fullmatch(r"perdure \d+\.\d+\.\d+\n", shell("--version").stdout)


def test_the_demo_without_its_mail_server_names_the_command_that_installs_it(shell: Shell) -> None:
    hide = "import sys; sys.modules['aiosmtpd'] = None; from actors.cli import main; main()"
    done = shell.python("-c", hide, "demo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'perdure: the demo needs a mail server: pip install "perdure[demo]"\n'
