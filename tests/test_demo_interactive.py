"""`perdure demo --interactive`: what a person does is done to a real process, and what is shown is so, on both ways."""

import codecs
import itertools
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Self

import pytest
from rich.console import Console

from actors.demo_moral import moral
from actors.demo_play import AFTER, ASKS, BEFORE, BUTTONS, CAST, GAP, TOLD, Scene, Stop, offer, refusal
from actors.demo_screen import draw
from tests.lives import PATIENCE, wait_for
from tests.test_demo import ROOT, assert_nothing_is_left, start

PAINT = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")
BY_HAND = ("-m", "actors", "demo", "--interactive")
PLAYED = {
    "in the gap": "n n n n kill kill next restart RESTART n n",
    "asking": "3 n n n n k r n n",
    "naive": "1 n n n n k r n n n n n n r",
    "before the body": "2 n n n k r n n n n n n n r nonsense",
}
"""What is typed, a line each; the first three leave their task unfinished, the last is followed by the end of input."""


# ------------------------------------------------------------------ by prompts


@pytest.fixture(scope="module")
def acts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each of them had to show; all are played in one run."""
    folder = tmp_path_factory.mktemp("by-prompts")
    with start(BY_HAND, folder) as process:
        output, errors = process.communicate(" ".join(PLAYED.values()).replace(" ", "\n"), timeout=100)
    assert (process.returncode, errors) == (0, "")
    assert output.endswith("\nnext / kill / restart / quit? \nIts processes and its folder are gone.\n")
    assert max(map(len, output.splitlines())) <= 80
    assert_nothing_is_left(output, folder)
    _, *parts = re.split(r"\n\nAgent \d: ", output)
    return dict(zip(PLAYED, parts, strict=True))


def told(act: str, label: str) -> list[str]:
    """All that was told behind a label."""
    return [" ".join(text.split()) for text in re.findall(rf"^  {label} +(\S.*(?:\n {{15}}\S.*)*)", act, re.MULTILINE)]


def mails(act: str) -> tuple[str, list[str]]:
    """The last count of the mailbox, and the Message-IDs that were told with each count."""
    shown = [text.split(" <") for text in told(act, "mailbox")]
    return shown[-1][0], ["<" + message_id for _, *ids in shown for message_id in ids]


def test_killed_in_the_gap_it_sends_again_under_the_same_message_id(acts: dict[str, str]) -> None:
    act = acts["in the gap"]
    count, ids = mails(act)
    assert count == "2 e-mails, same Message-ID"
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert "It died between the effect and the record: send_email is in doubt; a restart runs it again" in " ".join(
        told(act, "meaning")
    )
    assert [line.split(" ", 1)[1] for line in told(act, "log")] == [
        "Created", "Activated 1", "StepStarted draft_summary", "StepSucceeded draft_summary", "StepStarted send_email",
        "Activated 2", "StepStarted send_email, attempt 2", "StepSucceeded send_email, attempt 2",
    ]  # fmt: skip
    first, second = dict.fromkeys(re.findall(r"^  process +pid (\d+)", act, re.MULTILINE))
    assert f"pid {first} killed by SIGKILL, in send_email: the mail is out, its record is not" in told(act, "process")
    assert second != first


def test_what_cannot_be_done_now_is_refused_in_a_sentence(acts: dict[str, str]) -> None:
    act = " ".join(acts["in the gap"].split())
    for refused in (
        r"kill There is no kill now: pid \d+ is dead already\. next /",
        r"next There is no next now: pid \d+ is dead: restart starts a new process\. next /",
        r"RESTART There is no restart now: pid \d+ is alive, there is nothing to restart\. next /",
    ):
        assert re.search(refused, act)
    nonsense = " ".join(acts["before the body"].split())
    assert "nonsense 'nonsense' is nothing that can be done here. Say next, kill, restart or quit" in nonsense


def test_where_the_mail_server_can_be_asked_no_second_mail_is_sent(acts: dict[str, str]) -> None:
    act = acts["asking"]
    assert mails(act)[0] == "1 e-mail"
    assert "It asked, and the mail server says yes. That is not in the log yet." in told(act, "meaning")
    assert told(act, "log")[:3] == ["1 Created", "2 Activated 1", "3 StepStarted draft_summary"], "no other task's"
    assert told(act, "log")[-2:] == ["6 Activated 2", "7 StepSucceeded send_email, by on_doubt"]


def test_what_only_memory_knew_is_done_again_and_nobody_can_tell(acts: dict[str, str]) -> None:
    act = acts["naive"]
    count, ids = mails(act)
    assert count == "2 e-mails, 2 Message-IDs"
    assert len(set(ids)) == 2
    assert [line.split(" ", 2)[2] for line in told(act, "memory")] == [
        "has done draft_summary", "has done send_email", "has done draft_summary", "has done send_email",
        "has done mark_complete",
    ]  # fmt: skip
    assert "A new process, which remembers nothing: it begins at the first step, though the mail is out." in told(
        act, "meaning"
    )


def test_killed_before_the_body_it_is_in_doubt_and_sends_its_only_mail_as_attempt_2(acts: dict[str, str]) -> None:
    act = acts["before the body"]
    assert mails(act)[0] == "1 e-mail"
    assert told(act, "log")[5:8] == [
        "6 Activated 2",
        "7 StepStarted send_email, attempt 2",
        "8 StepSucceeded send_email, attempt 2",
    ]


def test_restarted_after_its_end_it_runs_nothing(acts: dict[str, str]) -> None:
    act = acts["before the body"]
    assert told(act, "log")[-1] == "11 Completed"
    assert told(act, "meaning")[-2:] == [
        "The task is done. One e-mail has arrived.",
        "The task had ended before: its result came from the log, and nothing ran.",
    ]


# ------------------------------------------------------------------ on a terminal


class Terminal:
    """A real pseudo-terminal, and the demo on it as on a person's: its controlling one."""

    CLAIM = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        " os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )

    def __init__(self, folder: Path, columns: int, rows: int, **environment: str) -> None:
        hidden = {"PERDURE_STORE", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
        clean = {name: value for name, value in os.environ.items() if name not in hidden}
        self.master, self.slave = os.openpty()
        self.written, self.decoder = "", codecs.getincrementaldecoder("utf-8")()
        self.resize(columns, rows)
        self.settings = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CLAIM, *BY_HAND],
            env={**clean, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "TERM": "xterm-256color", **environment},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        termios.tcsetwinsize(self.slave, (rows, columns))

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read_until(self, condition: Callable[[str], bool]) -> str:
        """Read on until what is on the screen is as expected, and give it."""
        until = time.monotonic() + 3 * PATIENCE
        while not condition(screen := self.screen):
            assert time.monotonic() < until, f"it never came about:\n{screen}"
            assert self.process.poll() is None, f"it has ended:\n{screen}"
            self.read(0.5)
        return screen

    def read(self, patience: float) -> bool:
        """Read what comes within so many seconds, if anything comes."""
        if not select.select([self.master], [], [], patience)[0]:
            return False
        self.written += self.decoder.decode(os.read(self.master, 65536))
        return True

    @property
    def screen(self) -> str:
        """What is on the screen: the last drawing that came whole. Before and after all of them, the plain lines."""
        _, _, tail = self.written.rpartition("\x1b[?1049")
        if not tail.startswith("h"):
            return tail.removeprefix("l")
        for drawing in reversed(tail.split("\x1b[1;1H")):
            rows = [PAINT.sub("", row) for row in re.split(r"\x1b\[\d+;1H", drawing)]
            if [len(row) for row in rows] == [self.columns] * self.rows:
                return "\n".join(rows)
        return ""

    def end(self) -> int:
        """Wait for the end of the demo, and give its exit code."""
        while self.process.poll() is None:
            self.read(0.1)
        while self.read(0):
            pass
        return self.process.returncode

    @property
    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.slave) == self.settings


def is_running(pid: int) -> bool:
    """Whether a process is there and not only waits to be buried, which is its new parent's business."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(shown.strip()) and not shown.startswith("Z")


def test_on_a_terminal_single_keys_lead_it_and_the_screen_shows_what_changes(tmp_path: Path) -> None:
    with Terminal(tmp_path, 80, 24) as terminal:
        drawn = terminal.read_until(lambda screen: "[n]ext" in screen and "3 StepStarted" in screen)
        assert "[r]estart   not now: pid" in drawn
        assert re.search(r"\x1b\[90m \[r\]", terminal.written), "greyed"
        terminal.type("nnnn")
        drawn = terminal.read_until(lambda screen: "The mail is out, and the log does not know it yet" in screen)
        assert "1 e-mail " in drawn
        assert "[k]ill      SIGKILL, between the effect and its record" in drawn
        terminal.type("k")
        drawn = terminal.read_until(lambda screen: "It died between the effect and the record" in screen)
        assert re.search(r"pid (\d+)  killed by SIGKILL", drawn)
        assert re.search(r"│  -- pid \d+ KILLED --", drawn)
        assert "[n]ext      not now: pid" in drawn
        terminal.type("\x1b[Br")  # an arrow is no key of ours
        terminal.read_until(lambda screen: "│ + 7 StepStarted   send_email, attempt 2 " in screen)
        terminal.type("nnnnnn")
        drawn = terminal.read_until(lambda screen: "11 Completed" in screen)
        assert "2 e-mails, same Message-ID" in drawn
        terminal.resize(120, 40)
        drawn = terminal.read_until(bool)
        assert re.search(r"│ 2 <pd_\S{24}@example.org> ", drawn)
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.is_as_before
        assert re.search(r"mailbox +2 e-mails, same Message-ID.*are gone\.\s+\Z", terminal.screen, re.DOTALL)
        assert terminal.written.count("\x1b[?1049h") == terminal.written.count("\x1b[?1049l") == 1
        assert terminal.written.rindex("\x1b[?25h") > terminal.written.rindex("\x1b[?25l")
        assert_nothing_is_left(terminal.written, tmp_path)


def test_stopped_by_ctrl_c_it_leaves_the_terminal_as_it_was_and_nothing_behind(tmp_path: Path) -> None:
    with Terminal(tmp_path, 80, 24) as terminal:
        (pid,) = re.findall(r"pid (\d+)  alive", terminal.read_until(lambda screen: "alive" in screen))
        os.kill(int(pid), signal.SIGKILL)
        drawn = terminal.read_until(lambda screen: f"pid {pid}  killed by SIGKILL" in screen)
        assert "It died before the body." in drawn, "a death by another hand is seen without a key"
        terminal.type("1\x03\x03")
        assert terminal.end() == 130
        assert terminal.is_as_before
        assert "Traceback" not in terminal.written
        assert terminal.screen.endswith("stopped; its processes and its folder are gone\r\n")
        assert_nothing_is_left(terminal.written, tmp_path)


def test_killed_itself_it_leaves_no_process_and_the_terminal_in_order(tmp_path: Path) -> None:
    with Terminal(tmp_path, 80, 24) as terminal:
        terminal.read_until(lambda screen: "[q]uit" in screen)
        assert not terminal.is_as_before
        terminal.process.kill()
        wait_for(lambda: terminal.is_as_before)
        assert terminal.end() == -signal.SIGKILL
        assert "\x1b[?1049l\x1b[?25h" in terminal.written
        pids = {int(pid) for pid in re.findall(r"pid (\d+)", terminal.written)}
        assert len(pids) == 2
        wait_for(lambda: not any(map(is_running, pids)))


def test_a_dumb_terminal_gets_prompts_and_a_termination_leaves_nothing(tmp_path: Path) -> None:
    with Terminal(tmp_path, 80, 24, TERM="dumb") as terminal:
        terminal.read_until(lambda screen: screen.endswith("quit? "))
        terminal.type("next\n")
        terminal.read_until(lambda screen: screen.count("quit? ") == 2 and screen.endswith("quit? "))
        assert "quit? next\r\n  pid" in terminal.written, "the terminal's own echo is the only one"
        assert "\x1b" not in terminal.written
        terminal.process.terminate()
        assert terminal.end() == 128 + signal.SIGTERM
        assert "Traceback" not in terminal.written
        assert_nothing_is_left(terminal.written, tmp_path)


# ------------------------------------------------------------------ the words and the drawing


def every_scene() -> Iterator[Scene]:
    """Every scene that can be met, but for its log."""
    places = itertools.product((BEFORE, GAP, AFTER, ASKS, TOLD), ("draft_summary", "send_email", "mark_complete"))
    stops = [None, *(Stop(place, step, attempt) for place, step in places for attempt in (1, 11))]
    for part, stop, code, ids in itertools.product(
        CAST.values(), stops, (None, -9, 0, 1), ((), ("<1@example.org>",), ("<1@example.org>",) * 22)
    ):
        yield Scene(part, "play-100", 1234567, code, stop, (), ids, said=("x" * 40,), deaths=((0, 1234567),) * 30)


def test_what_it_means_is_told_in_two_lines_of_80_columns_and_what_a_key_does_in_one() -> None:
    for scene in every_scene():
        for before in (None, Scene(scene.part, scene.task, 1), scene):
            assert len(moral(before, scene)) <= 2 * 74
        for button in BUTTONS:
            assert 0 < len(refusal(scene, button) or offer(scene, button)) <= 80 - 12 - len("not now: ")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (72, 18), (71, 30), (20, 5), (1, 1)])
def test_a_scene_is_drawn_into_the_size_that_there_is(size: tuple[int, int]) -> None:
    width, height = size
    for scene in itertools.islice(every_scene(), None, None, 101):
        console = Console(file=StringIO(), width=width, height=height)
        lines = console.render_lines(draw(scene, moral(None, scene), size, 1), console.options)
        assert len(lines) <= height
        assert all(sum(segment.cell_length for segment in line) <= width for line in lines)
