"""The demo by hand, as a model: who plays, where the process stands, and what may be done.

Pure: a `Scene` is what is known at one moment, and the functions put it into words.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from actors.showing import counted
from domain.events import Activated, StepFailed, StepStarted, StepSucceeded, TaskEvent

BEFORE, GAP, AFTER, ASKS, TOLD = "before", "gap", "after", "asks", "told"
"""Where a process stands still: before a body, between its effect and its record, after the record; and before it asks
what became of a step in doubt, and with the answer, which is not recorded yet."""
NEXT, KILL, RESTART = "next", "kill", "restart"
BUTTONS = (NEXT, KILL, RESTART)
ALIVE, KILLED, ENDED = "alive", "killed", "ended"

_STEPS = {
    "draft_summary": ("draft the summary", "the summary is made"),
    "send_email": ("send the mail", "the mail is out"),
    "mark_complete": ("tick off the task", "the task is ticked off"),
}
"""The steps of each agent, in order: what the body is to do, and what is so when it has."""


@dataclass(frozen=True)
class Part:
    """One of the agents: `key` is the key that begins it, `name` is what `demo_agent` calls it."""

    key: str
    name: str
    title: str

    @property
    def logged(self) -> bool:
        """Whether it has a log."""
        return self.name != "naive_report"

    @property
    def asks(self) -> bool:
        """Whether its send_email can ask what became of it."""
        return self.name == "mail_report_asking"


CAST = {
    part.key: part
    for part in (
        Part("1", "naive_report", "naive"),
        Part("2", "mail_report", "with a log"),
        Part("3", "mail_report_asking", "with a log, and asks"),
    )
}


@dataclass(frozen=True)
class Stop:
    """Where a process stands still until it is told to go on."""

    place: str
    step: str
    attempt: int


@dataclass(frozen=True)
class Scene:
    """All that can be seen at one moment.

    `code` is how the process ended, minus the signal that killed it, None while it lives; `stop` where it stands, or
    stood last; `said` what it wrote since the last act; `memory` the steps that the naive agent remembers. `deaths`
    has of each killed process the version at which the log ended, and its pid. What is newer than `seen_version`, and
    than the first `seen_mails`, has come by the last act; `moral` says what that meant.
    """

    part: Part
    task: str
    pid: int
    code: int | None = None
    stop: Stop | None = None
    events: tuple[TaskEvent, ...] = ()
    message_ids: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    deaths: tuple[tuple[int, int], ...] = ()
    seen_version: int = 0
    seen_mails: int = 0
    moral: str = ""

    @property
    def state(self) -> str:
        """Whether the process is alive, killed, or has ended by itself."""
        return ALIVE if self.code is None else KILLED if self.code < 0 else ENDED

    @property
    def condition(self) -> str:
        """The state in words: killed by what, ended how."""
        if self.state == KILLED:
            return f"{KILLED} by " + ("SIGKILL" if self.code == -signal.SIGKILL else f"signal {-(self.code or 0)}")
        return self.state + (f" with exit code {self.code}" if self.code else "")

    @property
    def version(self) -> int:
        """The version at which the log ends, 0 where there is none."""
        return self.events[-1].originator_version if self.events else 0


def todo(step: str) -> str:
    """Say what the body of a step is to do."""
    return _STEPS[step][0]


def done(step: str, message_ids: Sequence[str]) -> str:
    """Say what is so when the body of a step has ended; of a mail only where one has arrived."""
    if step == "send_email" and not message_ids:
        return "the body has ended without a mail"
    return _STEPS[step][1]


def following(step: str) -> str:
    """Name the step after this one; empty after the last."""
    steps = list(_STEPS)
    return next(iter(steps[steps.index(step) + 1 :]), "")


# ---------------------------------------------------------------------- what may be done


def refusal(scene: Scene, button: str) -> str:
    """Say why a button can do nothing now; empty where it can."""
    pid, state = scene.pid, scene.state
    if button == RESTART:
        return f"pid {pid} is alive, there is nothing to restart" if state == ALIVE else ""
    if state == ALIVE:
        return ""
    dead = "is dead" if state == KILLED else "has ended"
    return f"pid {pid} {dead}: restart starts a new process" if button == NEXT else f"pid {pid} {dead} already"


def offer(scene: Scene, button: str) -> str:
    """Say what a button would do now, where it can."""
    if button == RESTART:
        return "a new process: the same command" + (", the same store" if scene.part.logged else ", and no memory")
    if scene.stop is None:
        return "wait until it stands somewhere" if button == NEXT else "SIGKILL, wherever it is"
    place, step = scene.stop.place, scene.stop.step
    if button == NEXT:
        return {
            BEFORE: f"run the body of {step}: {todo(step)}",
            GAP: f"write the record: {step} succeeded",
            AFTER: f"go on to {following(step)}" if following(step) else "return, which ends the task",
            ASKS: "ask the mail server whether the mail has arrived",
            TOLD: "go by the answer, and record it",
        }[place]
    where = {
        BEFORE: "before the body",
        GAP: "between the effect and its record",
        AFTER: "after the record" if scene.part.logged else "and its memory goes with it",
        ASKS: "before it asks",
        TOLD: "before the answer is recorded",
    }[place]
    return f"SIGKILL, {where}"


# ---------------------------------------------------------------------- where it stands


def whereabouts(scene: Scene) -> str:
    """Say where the process stands, or stood when it died."""
    if scene.state == ENDED:
        return "with an error" if scene.code else "all its steps are done"
    if scene.stop is None:
        return "before anything of it ran"
    place, step = scene.stop.place, scene.stop.step
    effect = done(step, scene.message_ids)
    again = f" (attempt {scene.stop.attempt})" if scene.stop.attempt > 1 else ""
    if not scene.part.logged and place == AFTER:
        return f"after {step}: {effect}, its memory alone knows"
    return {
        BEFORE: f"before {step}{again}: its body has not run",
        GAP: f"in {step}{again}: {effect}, its record is not",
        AFTER: f"after {step}: {effect}, and recorded",
        ASKS: f"at {step}, in doubt: it has not asked yet",
        TOLD: f"at {step}, in doubt: it has asked, the answer is not recorded",
    }[place]


def event_line(event: TaskEvent) -> str:
    """Tell an event of a log in a line."""
    facts = ""
    if isinstance(event, Activated):
        facts = f"{event.number}"
    elif isinstance(event, StepStarted | StepSucceeded | StepFailed):
        facts = event.name + (f", attempt {event.attempt}" if event.attempt > 1 else "")
        source = getattr(event, "source", "")
        facts += f", by {source}" if source else ""
    return f"{event.originator_version:2} {type(event).__name__:13} {facts}".rstrip()


def log_lines(scene: Scene) -> Iterator[tuple[str, bool]]:
    """Tell the log line by line, each with whether it is new, and the deaths where they fell.

    Of the naive agent it is the memory.
    """
    if not scene.part.logged:
        yield from ((f"-- pid {pid} KILLED, its memory gone --", False) for _, pid in scene.deaths)
        new = scene.memory[-1:] if scene.stop is not None and scene.stop.place == AFTER else ()
        yield from ((f"pid {scene.pid} has done {step}", step in new) for step in scene.memory)
        if scene.state == ALIVE and not scene.memory:
            yield f"pid {scene.pid} has done nothing yet", False
        if scene.state == ENDED:
            yield f"-- pid {scene.pid} ended, its memory gone --", False
        return
    for version in range(scene.version + 1):
        if version:
            yield event_line(scene.events[version - 1]), version > scene.seen_version
        yield from ((f"-- pid {pid} KILLED --", False) for died, pid in scene.deaths if died == version)


def count(message_ids: Sequence[str]) -> list[str]:
    """Count the mails of a mailbox, and say of several whether they are one to the world."""
    mails, different = len(message_ids), len(set(message_ids))
    if mails < 2:
        return [counted(mails, "e-mail")]
    return [f"{mails} e-mails", "same Message-ID" if different == 1 else f"{different} Message-IDs"]
