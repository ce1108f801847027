"""`perdure demo` does what it says, says when a count is wrong, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.demo import ACTS
from actors.demo_agent import summarize

ROOT = Path(__file__).parent.parent
DEMO = ("-m", "actors", "demo")
LOSING = (
    "-c",
    "from rich.console import Console; from actors.demo import play; raise SystemExit(play(Console(), lose=3))",
)
MISSING = (
    "-c",
    "import sys; sys.modules['aiosmtpd'] = None; from actors.demo import demo; raise SystemExit(demo())",
)


def start(words: Sequence[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a command that keeps its temporary files in the folder."""
    clean = {name: value for name, value in os.environ.items() if name != "PERDURE_STORE"}
    told = {**clean, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "COLUMNS": "80", **environment}
    command = [sys.executable, *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=told, text=True, **pipes)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def assert_nothing_is_left(output: str, folder: Path) -> None:
    pids = {int(pid) for pid in re.findall(r"pid (\d+)", output)}
    assert pids
    assert not [pid for pid in pids if is_alive(pid)]
    assert list(folder.iterdir()) == []


def test_the_counts_are_as_claimed_and_nothing_is_left(tmp_path: Path) -> None:
    began = time.monotonic()
    with start(DEMO, tmp_path) as process:
        output, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (0, "")
    assert time.monotonic() - began < 30
    assert [act.mails for act in ACTS] == [2, 1, 2, 1]
    assert re.findall(r"^  mailbox +(.+)$", output, re.MULTILINE) == [
        "2 e-mails, 2 Message-IDs",
        "1 e-mail",
        "2 e-mails, same Message-ID",
        "1 e-mail",
    ]
    assert len(re.findall(r"^  pid \d+ +KILLED", output, re.MULTILINE)) == len(ACTS)
    assert "The mailboxes are as claimed: 2, 1, 2, 1 e-mails." in output
    assert max(map(len, output.splitlines())) <= 80
    assert_nothing_is_left(output, tmp_path)


def test_a_mail_that_the_world_loses_is_told_and_fails_the_demo(tmp_path: Path) -> None:
    with start(LOSING, tmp_path, PYTHONIOENCODING="ascii") as process:
        output, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (1, "")
    assert re.findall(r"^NOT AS CLAIMED: (act \w+)", output, re.MULTILINE) == ["act 2"]
    assert "as claimed:" not in output
    assert_nothing_is_left(output, tmp_path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_a_signal_it_leaves_nothing_behind(tmp_path: Path, number: int, code: int) -> None:
    with start(DEMO, tmp_path, PYTHONUNBUFFERED="1") as process:
        assert process.stdout is not None
        heard = ""
        while "restart" not in heard:
            line = process.stdout.readline()
            assert line, "it ended before it was stopped"
            heard += line
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)

    assert process.returncode == code
    assert "Traceback" not in errors
    assert "as claimed" not in output
    assert_nothing_is_left(heard + output, tmp_path)


def test_without_the_mail_server_it_says_what_to_install(tmp_path: Path) -> None:
    with start(MISSING, tmp_path) as process:
        output, errors = process.communicate(timeout=60)

    assert (process.returncode, output) == (2, "")
    assert 'pip install "perdure[demo]"' in errors


def test_the_same_text_gives_the_same_summary(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "actors" / "demo_notes.txt").read_text()
    summary = summarize(text)
    assert summary == summarize(text)
    assert len(summary.splitlines()) == 3
    assert set(" ".join(text.split())) >= set(summary) - {"\n"}
    assert all(sentence in " ".join(text.split()) for sentence in summary.splitlines())
    assert "picked 3 of 18 sentences" in capsys.readouterr().out
