"""`perdure demo`: a task is killed around its e-mail, and the mail server counts what the world got.

Everything is real: the agents are processes, a kill is SIGKILL, the mails go by SMTP to a mail server in a
process of its own, and the counts are its mailboxes'. Nothing waits for effect.
"""

from __future__ import annotations

import ast
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from actors.demo_agent import AFTER_THE_RECORD, IN_THE_GAP, NOTES, STORE, TODO
from actors.demo_play import count, event_line
from actors.demo_prose import Prose
from actors.demo_stage import Ending, MailServer, in_good_order, mail_server, run_module
from actors.showing import counted
from actors.system import AgentSystem
from domain.errors import UnknownTaskError
from domain.events import Activated, StepFailed, StepStarted, StepSucceeded, TaskEvent

LONGEST = 25.0
"""Seconds after which whatever still runs is ended, and the demo has failed."""
MISSING = 'perdure demo needs a mail server to send to: pip install "perdure[demo]"'


@dataclass(frozen=True)
class Act:
    """What is done, and what it is claimed to come to: `mails` in the mailbox, with `ids` different Message-IDs."""

    number: str
    title: str
    lesson: str
    agent: str
    kill: str
    killed: str
    mails: int
    ids: int
    source: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def task(self) -> str:
        """The task's id, which is also its mailbox."""
        return f"act-{self.number}"

    @property
    def recipient(self) -> str:
        """Where its mail goes."""
        return f"{self.task}@example.org"

    @property
    def logged(self) -> bool:
        """Whether it has a log."""
        return self.agent != "naive_report"


ACTS = (
    Act(
        number="1",
        title="a naive agent, which keeps in memory what it has done",
        lesson="naive,\nkilled after\nthe send",
        agent="naive_report",
        kill=AFTER_THE_RECORD,
        killed="at the first line of mark_complete: mail sent",
        mails=2,
        ids=2,
    ),
    Act(
        number="2",
        title="a perdure agent with the same steps, killed at the same line",
        lesson="perdure,\nkilled after\nthe send was\nrecorded",
        agent="mail_report",
        kill=AFTER_THE_RECORD,
        killed="at the first line of mark_complete: mail sent and logged",
        mails=1,
        ids=1,
        source=("draft_summary", "send_email", "mark_complete", "mail_report"),
    ),
    Act(
        number="3a",
        title="the same agent, killed in the gap between the send and its record",
        doubt='"rerun" (the default): run it again, with the same key',
        lesson='killed in\nthe gap,\non_doubt=\n"rerun"',
        agent="mail_report",
        kill=IN_THE_GAP,
        killed="inside send_email: mail sent, but not yet in the log",
        mails=2,
        ids=1,
    ),
    Act(
        number="3b",
        title="the same gap, but the step can ask the mail server",
        doubt="has_arrived: ask",
        lesson="killed in\nthe gap,\non_doubt=\nhas_arrived",
        agent="mail_report_asking",
        kill=IN_THE_GAP,
        killed="inside send_email: mail sent, but not yet in the log",
        mails=1,
        ids=1,
        source=("has_arrived", "send_email_or_ask"),
    ),
)


@dataclass
class Played:
    """What became of an act, as the mail server and the log have it."""

    act: Act
    runs: list[Ending] = field(default_factory=list)
    message_ids: list[str] = field(default_factory=list)
    events: list[TaskEvent] = field(default_factory=list)
    ticked: bool = False

    def complaints(self) -> Iterator[str]:
        """Say what is not as claimed."""
        act = self.act
        codes = [run.code for run in self.runs]
        if codes != [-signal.SIGKILL, 0]:
            yield f"act {act.number}: the two runs ended by {codes}, not by SIGKILL and 0"
        mails, ids = len(self.message_ids), len(set(self.message_ids))
        if (mails, ids) != (act.mails, act.ids):
            has = f"{counted(mails, 'e-mail')} ({ids} different)"
            yield f"act {act.number}: the mailbox has {has}, not {act.mails} ({act.ids})"
        ends = sum(isinstance(event, StepSucceeded) and event.name == "send_email" for event in self.events)
        if ends != act.logged:
            yield f"act {act.number}: the log has send_email as finished {counted(ends, 'time')}, not {act.logged:d}"
        if not self.ticked:
            yield f"act {act.number}: the task is not marked complete"


def demo(console: Console | None = None) -> int:
    """Play the demo and give the exit code.

    0; 1 if a count is not what it claims; 2 if the mail server is not installed; 130 after Ctrl-C. However it ends, but
    for SIGKILL, its processes and its folder are gone.
    """
    if find_spec("aiosmtpd") is None:
        Console(stderr=True, highlight=False).print(MISSING, markup=False, soft_wrap=True)
        return 2
    return in_good_order(lambda: play(console or Console(highlight=False)))


def play(console: Console, *, lose: int = 0) -> int:
    """Play the demo. `lose`: the number of a mail that the mail server drops, so that the claims can fail."""
    began = time.monotonic()
    with TemporaryDirectory(prefix="perdure-demo-") as name, mail_server(Path(name), lose) as world:
        folder, stage = Path(name), _Stage(console)
        (folder / NOTES).write_text(Path(__file__).with_name("demo_notes.txt").read_text())
        (folder / TODO).write_text("".join(f"[ ] {act.recipient}\n" for act in ACTS))
        stage.open(world)
        played = [_play_act(act, stage, folder, world, began + LONGEST) for act in ACTS]
        stage.compare(played)
    complaints = [complaint for act in played for complaint in act.complaints()]
    return stage.close(complaints, time.monotonic() - began)


def _play_act(act: Act, stage: _Stage, folder: Path, world: MailServer, deadline: float) -> Played:
    """Run the agent until it is killed, and again until it ends."""
    stage.announce(act)
    played = Played(act)
    for kill in (act.kill, ""):
        told = {"PERDURE_DEMO_PORT": str(world.port), "PERDURE_DEMO_KILL": kill}
        words, patience = [act.agent, act.recipient], max(0.0, deadline - time.monotonic())
        played.runs.append(run_module("actors.demo_agent", words, folder, told, stage.hear, patience))
        played.events = _read_log(folder, act) if act.logged else []
        stage.tell_end(played)
    played.message_ids = world.message_ids(act.recipient)
    played.ticked = f"[x] {act.recipient}" in (folder / TODO).read_text()
    stage.tell_mailbox(played)
    return played


def _read_log(folder: Path, act: Act) -> list[TaskEvent]:
    """Read a task's log as any other process could; a client runs nothing. Empty where the task was never accepted."""
    with AgentSystem(STORE.replace("///", f"///{folder}/"), run=False) as client:
        try:
            return client.task(act.task).events()
        except UnknownTaskError:
            return []


class _Stage(Prose):
    """What the audience sees."""

    def open(self, world: MailServer) -> None:
        self.say("perdure demo: one task, killed around its e-mail", "bold")
        self.say()
        self.say(
            f"A task is received: draft a summary of {NOTES}, send it by e-mail, tick it off in {TODO}. Each run"
            " of an agent is a process of its own. A kill is a real SIGKILL, which the process sends to itself at"
            " the place named. The outside world is a mail server, and its mailboxes are what counts."
        )
        self.line("world", f"pid {world.pid}, SMTP on 127.0.0.1:{world.port}")

    def announce(self, act: Act) -> None:
        self.say()
        self.say(f"Act {act.number}: {act.title}", "bold")
        if act.source:
            self.line("code", "as it stands in actors/demo_agent.py")
        for name in act.source:
            self.say()
            code = Syntax("", "python", theme="ansi_dark", background_color="default").highlight(_source(name))
            for line in code.split("\n"):
                self.console.print(Text("    ") + line, soft_wrap=True)
        if act.source:
            self.say()
        if act.doubt:
            self.line("on_doubt", act.doubt)

    def hear(self, pid: int, line: str) -> None:
        self.line(f"pid {pid}", line)

    def tell_end(self, played: Played) -> None:
        act, end = played.act, played.runs[-1]
        if not end.killed:
            if end.code:
                self.line(f"pid {end.pid}", f"ended with exit code {end.code}", "bold red")
            return
        self.line(f"pid {end.pid}", f"KILLED {act.killed}", "bold red")
        if act.logged:
            self.line("log", _summary(played.events))
        else:
            self.line("memory", "gone with the process, and what was done with it")
        self.line("restart", "the same command, a new process")

    def tell_mailbox(self, played: Played) -> None:
        mails = len(played.message_ids)
        style = "red" if mails != played.act.mails else "green" if mails == 1 else "yellow"
        self.line("mailbox", ", ".join(count(played.message_ids)), f"bold {style}")

    def compare(self, played: Sequence[Played]) -> None:
        self.say()
        self.say("What the logs know, and what the world got", "bold")
        table = Table(show_lines=True)
        for title in ("act", "log", "mailbox"):
            table.add_column(title, overflow="fold")
        for one in played:
            mailbox = [*count(one.message_ids), *(f"{message_id[:13]}..>" for message_id in one.message_ids)]
            cells = (f"{one.act.number} {one.act.lesson}", "\n".join(_log_lines(one)), "\n".join(mailbox))
            table.add_row(*(Text(cell) for cell in cells))
        self.console.print(table)

    def close(self, complaints: Sequence[str], seconds: float) -> int:
        self.say()
        self.say(
            "What to learn: a step whose end is in the log never runs again, whatever dies. Between an effect"
            " and its record there is a gap that nobody can close. A step that dies there is in doubt, and its"
            " on_doubt says what then: run it again with the same key, by which the world can tell; ask; or hold"
            " it for a person."
        )
        self.say('Not promised: that an outside effect happens "exactly once".')
        self.say()
        for complaint in complaints:
            self.say(f"NOT AS CLAIMED: {complaint}", "bold red")
        if not complaints:
            counts = ", ".join(str(act.mails) for act in ACTS)
            self.say(f"The mailboxes are as claimed: {counts} e-mails. It took {seconds:.1f} s.", "bold green")
        return 1 if complaints else 0


def _source(name: str) -> str:
    """Give a function of the demo's agents as it stands in its file."""
    text = Path(__file__).with_name("demo_agent.py").read_text()
    (function,) = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name]
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : function.end_lineno])


def _summary(events: Sequence[TaskEvent]) -> str:
    """Say in one line how far the log has the steps."""
    states: dict[str, str] = {}
    for event in events:
        if isinstance(event, StepStarted | StepSucceeded | StepFailed):
            states[event.name] = "begun" if isinstance(event, StepStarted) else "finished"
    return ", ".join(f"{name} {state}" for name, state in states.items())


def _log_lines(played: Played) -> Iterator[str]:
    """Tell a log line by line, with the kill where it fell: before the next process claimed the task."""
    if not played.act.logged:
        yield "none"
    for event in played.events:
        if isinstance(event, Activated) and event.number > 1:
            yield f"-- pid {played.runs[0].pid} KILLED --"
        yield event_line(event)
