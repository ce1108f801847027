"""The examples do what they say, in real processes killed by SIGKILL, with a real mail server."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from actors import AgentSystem
from actors.demo_stage import MailServer, mail_server
from domain.events import Activated, StepStarted, StepSucceeded, TaskEvent

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "tests" / "examples"
NOTES = ROOT / "actors" / "demo_notes.txt"
TO = "team@example.org"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MailServer]:
    with mail_server(tmp_path) as server:
        yield server


class Example:
    """An example as its user runs it, in a folder of its own."""

    def __init__(self, folder: Path, file: str, agent: str, *arguments: str, **environment: str) -> None:
        self.file, self.agent, self.arguments = str(EXAMPLES / file), agent, arguments
        self.url = f"sqlite:///{folder / 'tasks.db'}"
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "PERDURE_STORE": self.url, **environment}

    def run(self) -> str:
        done = self._python(self.file, *self.arguments, "task-1")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run_until(self, point: str, what: str) -> int:
        words = (self.file, self.agent, json.dumps(self.arguments), "task-1", self.url, point, what)
        done = self._python("-m", "tests.dying_worker", *words)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    def events(self) -> list[TaskEvent]:
        with AgentSystem(self.url, run=False) as client:
            return client.task("task-1").events()

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            env=self.environment,
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def report(tmp_path: Path, world: MailServer) -> Example:
    place = {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(world.port)}
    return Example(tmp_path, "report.py", "report", str(NOTES), TO, **place)


def test_the_report_is_sent_once_however_often_it_is_run(report: Example, world: MailServer) -> None:
    first = report.run()
    assert first == report.run()
    assert world.message_ids(TO) == [first]
    assert "Two of the eight hangers" not in world.file.read_text()
    assert "Money: the repair of the bridge costs 18,400" in world.file.read_text()


@pytest.mark.parametrize(
    ("point", "what", "mails", "attempts", "told_by"),
    [
        pytest.param("append.after", "task.created", 0, [1], "", id="accepted"),
        pytest.param("append.after", "step.succeeded", 0, [1], "", id="drafted"),
        pytest.param("body.before", "send_email", 0, [1, 2], "", id="begun, not sent"),
        pytest.param("body.after", "send_email", 1, [1], "on_doubt", id="sent, not recorded"),
        pytest.param("append.after", "task.completed", 1, [1], "", id="completed"),
    ],
)
def test_a_report_killed_anywhere_arrives_once(
    report: Example, world: MailServer, point: str, what: str, mails: int, attempts: list[int], told_by: str
) -> None:
    assert report.run_until(point, what) == -signal.SIGKILL
    assert len(world.message_ids(TO)) == mails

    assert report.run() == world.message_ids(TO)[0]
    assert len(world.message_ids(TO)) == 1
    sends = [event for event in report.events() if getattr(event, "name", "") == "send_email"]
    assert [event.attempt for event in sends if isinstance(event, StepStarted)] == attempts
    assert [event.source for event in sends if isinstance(event, StepSucceeded)] == [told_by]


@pytest.fixture
def research(tmp_path: Path) -> Example:
    return Example(tmp_path, "model_and_tools.py", "research", str(NOTES), LEDGER=str(tmp_path / "ledger"))


CALLS = [
    "model 1",
    f"tool count_words {{'document': '{NOTES}'}}",
    f"tool count_lines_with {{'document': '{NOTES}', 'word': 'bridge'}}",
    "model 4",
    f"tool count_lines_with {{'document': '{NOTES}', 'word': 'ferry'}}",
    "model 6",
]


def test_neither_model_nor_tool_is_called_again_when_killed_after_every_step(research: Example, tmp_path: Path) -> None:
    codes = [research.run_until("append.after", "step.succeeded") for _ in CALLS]
    assert codes == [-signal.SIGKILL] * len(CALLS)

    assert research.run() == "221 words; 8 lines tell of a bridge, 4 of a ferry."
    assert (tmp_path / "ledger").read_text().splitlines() == CALLS
    assert sum(isinstance(event, Activated) for event in research.events()) == len(CALLS) + 1


def test_an_unharmed_run_gives_the_same_answer_with_the_same_calls(research: Example, tmp_path: Path) -> None:
    assert research.run() == research.run() == "221 words; 8 lines tell of a bridge, 4 of a ferry."
    assert (tmp_path / "ledger").read_text().splitlines() == CALLS


# ------------------------------------------------------------------ a shared budget


@pytest.fixture
def budget(tmp_path: Path) -> Example:
    return Example(tmp_path, "budget.py", "shopper", "team-7", "ann")


def shop(budget: Example) -> "subprocess.Popen[str]":
    words = [sys.executable, budget.file, "team-7"]
    return subprocess.Popen(words, env=budget.environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def check_statement(said: str) -> None:
    """See that what the shoppers say is what the budget has booked."""
    *shoppers, statement = said.splitlines()
    prices = (Decimal("0.90"), Decimal("2.50"), Decimal("1.75"))
    shares = {}
    for line in shoppers:
        name, _, bought = line.partition(" bought ")
        times = 3 if bought.startswith("all") else int(bought[0])
        assert times == 3 or "is more than the" in bought
        shares[name] = sum(prices[:times], Decimal(0))
    told = ", ".join(f"{name} {share}" for name, share in sorted(shares.items()) if share)
    total = sum(shares.values(), Decimal(0))
    assert total <= 20
    assert statement == f"{total} of 20.00 spent: {told}"


def test_a_shared_budget_is_spent_once_by_three_processes_and_the_same_when_run_again(budget: Example) -> None:
    runs = [shop(budget) for _ in range(3)]
    said = {run.communicate(timeout=60)[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0, 0]
    (first,) = said
    check_statement(first)
    again, _ = shop(budget).communicate(timeout=60)
    assert again == first


@pytest.mark.parametrize("point", ["append.before", "append.inside", "append.after"])
def test_a_shopper_killed_at_its_booking_has_booked_once(budget: Example, point: str) -> None:
    assert budget.run_until(point, "budget.Spent") == -signal.SIGKILL
    assert budget.run_until("never", "") == 0
    with AgentSystem(budget.url, run=False) as client:
        assert client.task("task-1").result() == "ann bought all 3"
        booked = client.log.recorder.select_events("budget\x1fteam-7")
    assert [row.topic for row in booked] == ["budget.Created", *["budget.Spent"] * 3]
