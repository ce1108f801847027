"""`perdure run`, as real processes: what is printed, killed, stopped, and typed again."""

import json
import re
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from actors import AgentSystem
from tests.shell import Running, Shell, agent_named, words_of


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


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


def test_values_without_a_json_form_are_printed_as_plain_json(shell: Shell) -> None:
    done = shell("run", "work.py:bytes_inside", "--id", "b")
    assert done.stdout == '["/w==", "café"]\n'


def test_python_file_and_perdure_run_are_the_same_agent_and_the_same_task(shell: Shell) -> None:
    (shell.folder / "died").touch()
    script = shell.python("work.py", "notes.txt", "r")
    assert script.returncode == 0, script.stderr
    done = shell("run", "./work.py:report", "notes.txt", "--id", "r")
    module = shell("run", "work:report", "notes.txt", "--id", "r")
    assert [done.returncode, module.returncode] == [0, 0]
    assert json.loads(done.stdout) == json.loads(module.stdout) == {"body": "summary of notes.txt", "mail": "sent"}
    assert shell.ledger == ["draft", "send"]


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
    assert 'decided   1  pay "pay 20 to acme"  happened, with "txn_1", by ann\n' in done.stderr
    assert "replayed" not in done.stderr
    assert shell.ledger == ["pay"]


@pytest.mark.parametrize(("decision", "code", "entered"), [("--rerun", 0, 2), ("--fail", 1, 1)])
def test_a_step_in_doubt_is_run_again_or_given_up(shell: Shell, decision: str, code: int, entered: int) -> None:
    words = ("run", "work.py:invoice", "acme", "--id", "i")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    assert shell("resolve", "i", "1", decision, "--by", "ann").returncode == 0
    done = shell(*words)
    assert done.returncode == code, done.stderr
    assert "replayed" not in done.stderr
    assert ('decided   1  pay "pay 20 to acme"  given up by ann\n' in done.stderr) == (decision == "--fail")
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


def test_a_replayed_step_that_has_failed_or_was_decided_is_not_said_to_have_finished(shell: Shell) -> None:
    (shell.folder / "more.py").write_text(
        "from work import *\nfrom actors import StepError\n@agent\ndef stubborn() -> str:\n    try:\n"
        "        refuse('no')\n    except StepError:\n        return pay('acme', 1) + draft('x') + send('a', 'b')\n"
    )
    words = ("run", "more.py:stubborn", "--id", "s")
    assert [shell(*words).returncode, shell(*words).returncode] == [-signal.SIGKILL, 3]
    (shell.folder / "died").unlink()
    assert shell("resolve", "s", "2", "--value", '"' + "x" * 1000 + '"', "--by", "ann").returncode == 0
    assert shell(*words).returncode == -signal.SIGKILL
    lines = shell(*words).stderr.splitlines()
    assert lines[1] == "failed    1  refuse  ConnectionError: no"
    assert re.fullmatch(r'decided   2  pay "pay 1 to acme"  happened, with "x+…x+", by ann', lines[2])
    assert lines[3] == 'replayed  3  draft "of x"'
    told = shell("replay", "s", "more.py:stubborn").stdout.splitlines()
    assert told[0] == "failed    1  refuse  ConnectionError: no"
    assert told[1] == f'decided   2  pay "pay 1 to acme"  happened, with "{"x" * 1000}", by ann'
    assert told[2] == 'replayed  3  draft "of x"  "summary of x"'


# ------------------------------------------------------------------ attempts and waits


def test_a_failed_attempt_is_told_with_the_next_one(shell: Shell) -> None:
    done = shell("run", "work.py:stumbling", "--id", "s")
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"(?:running|failed|finished)  .*", done.stderr)
    assert lines[0] == "running   3  stumble"
    assert re.fullmatch(r"failed    3  stumble  ConnectionError: a stone; attempt 2 in \d+ ms", lines[1])
    assert lines[2] == "running   3  stumble (attempt 2)"
    assert sorted(line.split()[0] for line in lines[4:]) == ["finished", "finished", "running", "running"]
    assert "now" not in done.stderr, "a patch and a reading of the clock are not told"


def test_a_run_of_a_task_that_waits_says_until_when_and_can_be_stopped_at_once(shell: Shell) -> None:
    words = ("run", "work.py:trip", "Rome", "--id", "t")
    with shell.start(*words) as running:
        assert re.search(r"ConnectionError: no road to Rome; attempt 2 in (59|60) s\n$", running.read_until("failed "))
        running.process.terminate()
        assert running.end()[::2] == (143, "stopped   the same command again goes on where it was\n")
    with shell.start(*words) as running:
        seen = running.read_until("waiting ")
        assert re.search(r"waiting   tries step 2 travel again in \d+ s\n$", seen)
        running.process.terminate()
        assert running.end()[::2] == (143, "stopped   the same command again goes on where it was\n")
    assert shell.ledger == ["draft", "travel"]


def test_after_a_wait_nothing_is_told_twice(shell: Shell) -> None:
    source = (shell.folder / "work.py").read_text()
    (shell.folder / "work.py").write_text(source.replace("retries=2, backoff=60", "retries=2, backoff=1.5"))
    with shell.start("run", "work.py:trip", "Rome", "--id", "t") as running:
        running.read_until("failed ")
        (shell.folder / "road").touch()
        code, out, err = running.end()
    assert (code, out) == (0, '"summary of the tripin Rome"\n')
    assert words_of(err) == ["running", "finished"]
    log = shell("show", "t").stdout
    assert log.count("Passivated") == 1
    assert log.count("Activated") == 2


# ------------------------------------------------------------------ async agents


def test_an_async_agent_runs_and_goes_on_like_any_other(shell: Shell) -> None:
    words = ("run", "work.py:asking", "who", "--id", "a")
    done = shell(*words)
    assert (done.returncode, json.loads(done.stdout)) == (0, ["who?", "why?", "summary of mail"])
    told = sorted(re.findall(r"running   .*", done.stderr))  # what a body prints may stand before it
    assert told == ["running   1/1/1  ask", "running   1/2/1  ask", 'running   ~tool%2Fmail/1  draft "of mail"']
    again = shell(*words)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert sorted(shell.ledger) == ["ask", "ask", "draft"]


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
    assert words_of(err) == ["finished", "stopped"]
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
        client.spawn(agent_named("report"), "x", id="other")
    done = shell("run", "work.py:typeless", "1", "--id", "mine")
    assert (done.returncode, shell.ledger) == (0, [])
    assert "2 tasks open" in done.stderr
