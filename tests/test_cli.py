"""The command line, as real processes with real files: what is typed, printed, killed and typed again."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import pytest

from actors import Agent, AgentSystem
from actors.cli import app
from actors.target import CommandError, parse_json, read_argument, read_arguments

PERDURE = [sys.executable, "-m", "actors"]
COMMANDS = ["demo", "list", "release", "resolve", "run", "show"]

AGENTS = """
import os
import signal
import sys
from pathlib import Path

from actors import AgentSystem, agent, step


def note(line):
    with open("ledger", "a") as ledger:
        ledger.write(line + "\\n")


def die_once():
    if not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


@step(label="of {document}")
def draft(document: str) -> str:
    note("draft")
    print("a body prints this")
    os.system("echo and so does its child")
    return f"summary of {document}"


@step(label="mail to {to}")
def send(to: str, body: str) -> str:
    note("send")
    die_once()
    return "sent"


@step(on_doubt="hold", label="pay {amount} to {who}")
def pay(who: str, amount: int) -> str:
    note("pay")
    die_once()
    return "paid"


@step
def refuse(why: str) -> None:
    raise ConnectionError(why)


@step(label="until the door opens")
def wait() -> str:
    note("wait")
    with open("door") as door:
        return door.readline().strip()


@agent
def report(document: str) -> dict[str, str]:
    return {"body": draft(document), "mail": send("team@example.org", "…")}


@agent
def invoice(who: str) -> str:
    return pay(who, 20)


@agent
def failing(why: str) -> None:
    refuse(why)


@agent
def crashing() -> None:
    draft("x")
    raise KeyError(Path("reason").read_text())


@agent
def waiting() -> str:
    return draft(wait())


@agent
def last() -> str:
    return wait()


@agent(name="another name")
def renamed() -> str:
    return "renamed"


@agent
def typed(text: str, number: float, maybe: int | None = None, *rest: str) -> list:
    return [repr(value) for value in (text, number, maybe, *rest)]


@agent
def typeless(value):
    return value


@agent
def bytes_inside() -> tuple[bytes, str]:
    return b"\\xff", "café"


if __name__ == "__main__":
    with AgentSystem("sqlite:///perdure.db") as system:
        print(system.spawn(report, sys.argv[1], id=sys.argv[2]).result(timeout=60))
"""


MANY = """
import json, os, sys
from pathlib import Path
from actors.cli import main

ends, real = [], os.dup(1)
for words in json.load(sys.stdin):
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["perdure", *words]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    ends.append([code, Path("out").read_text(), Path("err").read_text()])
os.write(real, json.dumps(ends).encode())
"""


class Shell:
    """A folder with `work.py` in it, and the commands that are typed there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "work.py").write_text(AGENTS)
        os.mkfifo(folder / "door")
        hidden = {"PERDURE_STORE", "COLUMNS", "FORCE_COLOR", "NO_COLOR"}
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "actors", *words, **environment)

    def each(self, commands: Iterable[Sequence[str]]) -> list[tuple[int, str, str]]:
        """Type commands that have nothing to do with each other, all in one process: exit code, output, errors."""
        done = self.python("-c", MANY, input=json.dumps([list(words) for words in commands]))
        assert done.returncode == 0, done.stderr
        return [(code, out, err) for code, out, err in json.loads(done.stdout)]

    def python(self, *words: str, input: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env={**self.environment, **environment},
            input=input,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def start(self, *words: str) -> "Running":
        return Running(self, words)

    def open_door(self, text: str) -> None:
        """Let the body at the door go on with this text."""
        with (self.folder / "door").open("w") as door:
            door.write(f"{text}\n")

    @property
    def ledger(self) -> list[str]:
        """The bodies that were entered."""
        file = self.folder / "ledger"
        return file.read_text().split() if file.exists() else []

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'perdure.db'}"


class Running:
    """A command that runs; its standard error is read line by line, and each wait has the test's own time-out."""

    def __init__(self, shell: Shell, words: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [*PERDURE, *words],
            cwd=shell.folder,
            env=shell.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def read_until(self, beginning: str) -> str:
        assert self.process.stderr is not None
        seen = ""
        for line in self.process.stderr:
            seen += line
            if line.startswith(beginning):
                return seen
        raise AssertionError(f"no line begins with {beginning!r}:\n{seen}")

    def end(self) -> tuple[int, str, str]:
        """Wait for the end: exit code, standard output, the rest of standard error."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def words_of(text: str) -> list[str]:
    """The first word of each line, as progress has it."""
    return [re.split(r"\s{2,}", line)[0] for line in text.splitlines()]


# ------------------------------------------------------------------ run


def test_a_run_that_was_killed_goes_on_where_it_was_and_prints_its_record_ever_after(shell: Shell) -> None:
    words = ("run", "work.py:report", "notes.txt", "--id", "report-1")
    killed = shell(*words)
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout == ""
    again = shell(*words)
    assert again.returncode == 0
    assert json.loads(again.stdout) == {"body": "summary of notes.txt", "mail": "sent"}
    assert shell.ledger == ["draft", "send", "send"]
    first, *progress = again.stderr.splitlines()
    assert first == f"perdure: {shell.url} · 1 task open"
    assert words_of("\n".join(progress)) == ["replayed", "in doubt", "running", "finished"]
    assert progress[0] == 'replayed  1  draft "of notes.txt"'
    assert progress[2] == 'running   2  send "mail to team@example.org" (attempt 2)'
    recorded = shell(*words)
    assert (recorded.returncode, recorded.stdout) == (0, again.stdout)
    assert "nothing runs again" in recorded.stderr
    assert shell.ledger == ["draft", "send", "send"]


def test_only_the_result_goes_to_standard_output(shell: Shell) -> None:
    (shell.folder / "died").touch()
    done = shell("run", "work.py:report", "notes.txt", "--id", "r")
    assert done.stdout.count("\n") == 1
    assert json.loads(done.stdout)["mail"] == "sent"
    assert "a body prints this" in done.stderr
    assert "and so does its child" in done.stderr


def test_values_without_a_json_form_are_printed_tagged(shell: Shell) -> None:
    done = shell("run", "work.py:bytes_inside", "--id", "b")
    assert done.stdout == '{"$": "tuple", "v": [{"$": "bytes", "v": "/w=="}, "café"]}\n'


def test_python_file_and_perdure_run_are_the_same_agent_and_the_same_task(shell: Shell) -> None:
    (shell.folder / "died").touch()
    script = shell.python("work.py", "notes.txt", "r")
    assert script.returncode == 0, script.stderr
    done = shell("run", "./work.py:report", "notes.txt", "--id", "r")
    module = shell("run", "work:report", "notes.txt", "--id", "r")
    assert [done.returncode, module.returncode] == [0, 0]
    assert json.loads(done.stdout) == json.loads(module.stdout) == {"body": "summary of notes.txt", "mail": "sent"}
    assert shell.ledger == ["draft", "send"]


def test_a_file_finds_what_is_beside_it_from_any_folder(shell: Shell) -> None:
    inside = shell.folder / "inside"
    inside.mkdir()
    (inside / "helper.py").write_text("from work2 import hello\nassert __name__ == 'helper'\n")
    (inside / "work2.py").write_text(
        "import sys\nfrom actors import agent\n@agent\ndef hello() -> str:\n    import helper\n"
        "    return __name__ + ' ' + str(helper.hello is hello) + ' ' + sys.path[0]\n"
    )
    done = shell("run", "inside/work2.py:hello", "--id", "h")
    assert done.stdout == f'"work2 True {inside}"\n'
    assert not (inside / "__pycache__" / f"work2.{sys.implementation.cache_tag}.pyc").exists()


def test_a_failed_task_prints_its_fault_with_the_traceback_and_exits_with_1(shell: Shell) -> None:
    for _ in range(2):
        done = shell("run", "work.py:failing", "no route", "--id", "f")
        assert (done.returncode, done.stdout) == (1, "")
        assert "failed    f  ConnectionError: step 1 refuse: no route" in done.stderr
        assert f'File "{shell.folder / "work.py"}", line' in done.stderr
        assert "in refuse" in done.stderr


def test_a_step_in_doubt_is_held_with_exit_code_3_and_goes_on_when_it_is_resolved(shell: Shell) -> None:
    words = ("run", "work.py:invoice", "acme", "--id", "invoice-7")
    assert shell(*words).returncode == -signal.SIGKILL
    held = shell(*words)
    assert (held.returncode, held.stdout) == (3, "")
    paragraph = held.stderr[held.stderr.index("invoice-7  held") :].splitlines()
    assert paragraph[0].startswith('invoice-7  held just now  in doubt: step 1 pay "pay 20 to acme", attempt 1 began ')
    assert all(line.startswith("  ") for line in paragraph[1:])
    assert re.search(r"idempotency key pd_[\w-]{24}", held.stderr)
    resolved = shell("resolve", "invoice-7", "1", "--value", '"txn_1"', "--by", "ann")
    assert resolved.returncode == 0
    assert resolved.stdout.startswith('invoice-7: step 1 happened, with "txn_1". It goes on when a worker starts')
    done = shell(*words)
    assert (done.returncode, done.stdout) == (0, '"txn_1"\n')
    assert shell.ledger == ["pay"]


@pytest.mark.parametrize(("decision", "code", "entered"), [("--rerun", 0, 2), ("--fail", 1, 1)])
def test_a_step_in_doubt_is_run_again_or_given_up(shell: Shell, decision: str, code: int, entered: int) -> None:
    words = ("run", "work.py:invoice", "acme", "--id", "i")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    assert shell("resolve", "i", "1", decision).returncode == 0
    done = shell(*words)
    assert done.returncode == code, done.stderr
    assert shell.ledger == ["pay"] * entered


def test_an_agent_that_crashes_is_held_and_goes_on_when_it_is_mended_and_released(shell: Shell) -> None:
    (shell.folder / "reason").write_text("a bug")
    words = ("run", "work.py:crashing", "--id", "c")
    held = shell(*words)
    assert held.returncode == 3
    assert held.stderr.count("crashed   KeyError: 'a bug'; restart") == 2
    assert "perdure release c" in held.stderr
    assert shell("run", "work.py:crashing", "--id", "c").returncode == 3, "a person has to release it"
    source = (shell.folder / "work.py").read_text()
    (shell.folder / "work.py").write_text(source.replace('raise KeyError(Path("reason").read_text())', "return 7"))
    released = shell("release", "c", "--by", "ann")
    assert (released.returncode, released.stdout[:12]) == (0, "c: released.")
    done = shell(*words)
    assert (done.returncode, done.stdout) == (0, "7\n")
    assert shell.ledger == ["draft"]


def test_a_task_held_for_its_code_goes_on_by_itself_when_the_code_fits_again(shell: Shell) -> None:
    source = (shell.folder / "work.py").read_text()
    words = ("run", "work.py:report", "notes.txt", "--id", "r")
    assert shell(*words).returncode == -signal.SIGKILL
    (shell.folder / "work.py").write_text(source.replace('"body": draft(document), ', ""))
    for _ in range(2):
        held = shell(*words)
        assert held.returncode == 3
        assert "code differs at position 1: the log has step draft, the code asks for step send" in held.stderr
    (shell.folder / "work.py").write_text(source)
    done = shell(*words)
    assert done.returncode == 0, done.stderr
    assert shell.ledger == ["draft", "send", "send"]


def test_a_task_whose_log_cannot_be_read_is_held_and_shown_as_far_as_it_can_be_read(shell: Shell) -> None:
    words = ("run", "work.py:invoice", "acme", "--id", "i")
    assert shell(*words).returncode == -signal.SIGKILL
    _change_row(shell, 3, lambda state: state[:-5] + bytes([state[-5] ^ 1]) + state[-4:])
    held = shell(*words)
    assert held.returncode == 3
    assert "version 3 of its log cannot be read" in held.stderr
    assert "Traceback" not in held.stderr
    shown = shell("show", "i")
    assert shown.returncode == 1
    assert [line.split()[2] for line in shown.stdout.splitlines()[3:5]] == ["Created", "Activated"]
    assert "perdure: task i: version 3 of its log cannot be read" in shown.stderr
    _change_row(shell, 3, lambda state: state[:-5] + bytes([state[-5] ^ 1]) + state[-4:])
    assert shell(*words).returncode == 3
    assert "in doubt" in shell("show", "i").stdout
    assert shell.ledger == ["pay"]


def _change_row(shell: Shell, version: int, change: Any) -> None:
    connection = sqlite3.connect(shell.folder / "perdure.db")
    where = "FROM stored_events WHERE originator_version=?"
    ((state,),) = connection.execute(f"SELECT state {where}", [version])
    connection.execute("UPDATE stored_events SET state=? WHERE originator_version=?", [change(state), version])
    connection.commit()
    connection.close()


# ------------------------------------------------------------------ processes and signals


def runner_and_follower(one: Running, other: Running) -> tuple[Running, Running]:
    """Wait until both say that the body runs, and tell which of them runs it."""
    follows = {each: "followed" in each.read_until("running  ") for each in (one, other)}
    assert sorted(follows.values()) == [False, True]
    return (other, one) if follows[one] else (one, other)


def test_two_runs_of_one_id_enter_each_body_once_and_print_the_same(shell: Shell) -> None:
    words = ("run", "work.py:waiting", "--id", "w")
    with shell.start(*words) as one, shell.start(*words) as other:
        runner_and_follower(one, other)
        shell.open_door("open")
        ends = [one.end(), other.end()]
    assert [code for code, _, _ in ends] == [0, 0]
    assert {out for _, out, _ in ends} == {'"summary of open"\n'}
    assert shell.ledger == ["wait", "draft"]


def test_who_follows_a_run_takes_over_at_once_when_it_dies(shell: Shell) -> None:
    words = ("run", "work.py:waiting", "--id", "w")
    with shell.start(*words) as one, shell.start(*words) as other:
        dead, heir = runner_and_follower(one, other)
        dead.process.kill()
        heir.read_until("in doubt  1  wait")
        heir.read_until('running   1  wait "until the door opens" (attempt 2)')
        shell.open_door("open")
        code, out, _ = heir.end()
    assert (code, out) == (0, '"summary of open"\n')
    assert shell.ledger == ["wait", "wait", "draft"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_body_end_and_stores_its_outcome(shell: Shell, number: signal.Signals) -> None:
    words = ("run", "work.py:waiting", "--id", "w")
    with shell.start(*words) as running:
        running.read_until("running  ")
        running.process.send_signal(number)
        running.read_until("stopping ")
        shell.open_door("open")
        code, out, err = running.end()
    assert (code, out) == (128 + number, "")
    assert words_of(err) == ["finished", "stopped", "stopped"]
    done = shell(*words)
    assert (done.returncode, done.stdout) == (0, '"summary of open"\n')
    assert 'replayed  1  wait "until the door opens"' in done.stderr
    assert shell.ledger == ["wait", "draft"]


def test_a_task_that_ends_within_the_grace_is_stored_and_printed_the_next_time(shell: Shell) -> None:
    with shell.start("run", "work.py:last", "--id", "l") as running:
        running.read_until("running  ")
        running.process.terminate()
        running.read_until("stopping ")
        shell.open_door("open")
        code, _, err = running.end()
    assert code == 143
    assert "the same command again" in err
    assert shell("run", "work.py:last", "--id", "l").stdout == '"open"\n'
    assert shell.ledger == ["wait"]


def test_a_second_signal_leaves_at_once(shell: Shell) -> None:
    with shell.start("run", "work.py:waiting", "--id", "w") as running:
        running.read_until("running  ")
        running.process.terminate()
        running.read_until("stopping ")
        running.process.terminate()
        code, _, _ = running.end()
    assert code == 143
    assert "its worker died" in shell("list").stdout


def test_a_run_claims_no_other_task(shell: Shell) -> None:
    with AgentSystem(shell.url, run=False) as client:
        client.spawn(_agent("report"), "x", id="other")
    done = shell("run", "work.py:typeless", "1", "--id", "mine")
    assert (done.returncode, shell.ledger) == (0, [])
    assert "2 tasks open" in done.stderr


def _agent(name: str) -> Agent[Any, Any]:
    def function(*arguments: Any) -> None:
        raise AssertionError("only the name is used")

    return Agent(function, name=name)


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("word", "annotation", "value"),
    [
        ("5", str, "5"),
        ("null", str, "null"),
        ('"quoted"', str, "quoted"),
        ("plain text", str, "plain text"),
        ("5", int, 5),
        ("5", float, 5.0),
        ("5", int | str, 5),
        ("5", str | None, "5"),
        ("null", str | None, None),
        ("1.50", Decimal, Decimal("1.50")),
        ("12345678123456781234567812345678", UUID, UUID("12345678123456781234567812345678")),
        ("2026-11-01T01:30:00+00:00", datetime, datetime(2026, 11, 1, 1, 30, tzinfo=UTC)),
        ("[1, 2]", tuple[int, ...], (1, 2)),
        ("text", bytes, b"text"),
        ("NaN", str, "NaN"),
        ('{"$": "bytes"}', dict, {"$": "bytes"}),
    ],
)
def test_an_argument_is_json_then_text_then_what_the_annotation_asks_for(
    word: str, annotation: Any, value: Any
) -> None:
    read = read_argument(word, annotation)
    assert (type(read), read) == (type(value), value)


def test_an_argument_without_annotation_is_json_where_it_can_be() -> None:
    words = ["1", "true", '{"a": [1]}', "[1, 2", "hello", "NaN", "", "[" * 100_000]
    assert [read_argument(word) for word in words] == [1, True, {"a": [1]}, *words[3:]]


def test_nothing_but_json_is_taken_for_json() -> None:
    for text in ("NaN", "-Infinity", "[NaN]", "abc", "", "[" * 100_000):
        with pytest.raises(ValueError, match=r"\w"):
            parse_json(text)


def test_arguments_of_a_real_command_fit_the_signature(shell: Shell) -> None:
    done = shell("run", "work.py:typed", "--id", "t", "--", "7", "-5", "null", "8", "x y")
    assert json.loads(done.stdout) == ["'7'", "-5.0", "None", "'8'", "'x y'"]


def test_annotations_that_cannot_be_resolved_leave_the_others_in_force() -> None:
    def function(text: str, strange: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert read_arguments(Agent(function, name="half annotated"), ["5", "5"]) == ["5", 5]


def test_wrong_arguments_name_the_signature() -> None:
    def pay(who: str, amount: int = 1) -> None: ...

    agent = Agent(pay, name="pay for the test of arguments")
    with pytest.raises(
        CommandError, match=r"\(who: str, amount: int = 1\) -> None: missing a required argument: 'who'"
    ):
        read_arguments(agent, [])
    with pytest.raises(CommandError, match=r"argument amount: expected int, found 'many' \(str\)"):
        read_arguments(agent, ["acme", "many"])


# ------------------------------------------------------------------ what cannot be done


NO_AGENT = [
    ("work.py", "'work.py' names no agent: write FILE.py:AGENT or MODULE:AGENT"),
    ("nowhere.py:x", "there is no file nowhere.py in "),
    ("nowhere:x", "there is no module nowhere in "),
    ("work.inside:x", "there is no module work.inside in "),
    ("a b:x", "'a b' is neither a module nor a file"),
    ("work.py:nothing", "work.py has no 'nothing'; its agents: report, invoice, failing, "),
    ("work.py:draft", "'draft' in work.py is a step, not an agent; its agents: report, "),
    ("work.py:os", "'os' in work.py is a module, not an agent; its agents: report, "),
    ("empty.py:x", "empty.py has no 'x'; it has no agent at all"),
    ("leaving.py:x", "leaving.py called sys.exit(5) while it was imported"),
]


def test_a_target_that_names_no_agent_is_one_clear_line(shell: Shell) -> None:
    (shell.folder / "empty.py").write_text("")
    (shell.folder / "leaving.py").write_text("import sys\nsys.exit(5)\n")
    ends = shell.each(["run", target, "--id", "x"] for target, _ in NO_AGENT)
    for (target, message), (code, out, err) in zip(NO_AGENT, ends, strict=True):
        assert (target, code, out) == (target, 2, "")
        assert err.startswith(f"perdure: {message}"), err
        assert err.count("\n") == 1
    assert not (shell.folder / "perdure.db").exists()


def test_an_agent_is_found_by_its_name_in_the_log_too(shell: Shell) -> None:
    assert shell("run", "work.py:another name", "--id", "x").stdout == '"renamed"\n'


@pytest.mark.parametrize("place", ["broken.py", "broken"])
def test_an_error_in_the_users_file_shows_the_users_frames_only(shell: Shell, place: str) -> None:
    (shell.folder / "broken.py").write_text("from deeper import x\n")
    (shell.folder / "deeper.py").write_text("def f():\n    import missing_one\nf()\n")
    done = shell("run", f"{place}:x", "--id", "x")
    assert done.returncode == 2
    files = re.findall(r'File "(.*?)", line (\d+)', done.stderr)
    assert files == [
        (str(shell.folder / "broken.py"), "1"),
        (str(shell.folder / "deeper.py"), "3"),
        (str(shell.folder / "deeper.py"), "2"),
    ]
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'missing_one'\n")


def test_a_syntax_error_names_its_line(shell: Shell) -> None:
    (shell.folder / "broken.py").write_text("x = 1\ndef f(:\n")
    done = shell("run", "broken.py:x", "--id", "x")
    assert done.returncode == 2
    assert re.findall(r'File ".*?(\w+\.py)", line (\d+)', done.stderr) == [("broken.py", "2")]


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


# ------------------------------------------------------------------ list and show


def test_list_says_of_each_task_where_it_is_or_why_it_does_not_go_on(shell: Shell) -> None:
    assert shell("run", "work.py:typeless", "1", "--id", "done").returncode == 0
    assert shell("run", "work.py:failing", "[red]no\nroute", "--id", "bad").returncode == 1
    words = ("run", "work.py:invoice", "[bold]acme\x1b[31m", "--id", "[red]held")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    with AgentSystem(shell.url, run=False) as client:
        client.spawn(_agent("nobody's"), id="i" * 200)
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
        worker.spawn(_agent("known to one task's worker only"), id="a")
        assert "no live worker knows this agent" in shell("list").stdout
    with AgentSystem(shell.url) as worker:
        worker.spawn(_agent("known"), id="b")
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
        client.spawn(_agent("report"), "x", id="r")
        before = client.task("r").events()
        assert [shell("show", "r").returncode, shell("list").returncode] == [0, 0]
        assert client.task("r").events() == before


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
