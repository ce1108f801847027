"""Whoever plays by hand acts through this: it starts, leads and kills the one process, and sees what that has changed.

The kill is a SIGKILL from here, while the process stands still. Whatever else ends the process, as a kill from another
terminal, is seen with the next look.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory

from actors.demo_agent import NOTES, STORE, TODO
from actors.demo_moral import moral
from actors.demo_play import AFTER, KILL, KILLED, NEXT, RESTART, Part, Scene, Stop, refusal
from actors.demo_puppet import STOP
from actors.demo_stage import MailServer, mail_server, started
from actors.system import AgentSystem
from domain.errors import UnknownTaskError
from domain.events import TaskEvent

PATIENCE = 30.0
"""Seconds after which a process that neither stands still nor ends is killed."""


class Puppeteer:
    """One process at a time, and what is known of it. Not for several threads."""

    def __init__(self, folder: Path, world: MailServer, client: AgentSystem) -> None:
        self.world = world
        self._folder = folder
        self._client = client
        self._begun = 0
        self._scene: Scene | None = None
        self._process: Popen[str] | None = None
        self._life = ExitStack()

    @property
    def scene(self) -> Scene:
        """Give the scene. Raises RuntimeError before an agent has begun."""
        if self._scene is None:
            raise RuntimeError("no agent has begun")
        return self._scene

    # ------------------------------------------------------------------ what a person does

    def begin(self, part: Part) -> None:
        """Begin anew with an agent, a task and a mailbox of its own; the process before is killed."""
        self.close()
        self._scene = None
        self._begun += 1
        scene = Scene(part, f"play-{self._begun}", 0)
        with (self._folder / TODO).open("a") as todo:
            todo.write(f"[ ] {_recipient(scene)}\n")
        self._start(scene)

    def press(self, button: str) -> str:
        """Do what a button does; says why not, where it can do nothing."""
        self.look()
        scene, process = self.scene, self._process
        if why := refusal(scene, button):
            return why
        if button == RESTART:
            self._start(scene)
        elif button == KILL and process is not None:
            process.kill()
            self._follow(scene)
        elif button == NEXT and process is not None and process.stdin is not None:
            with suppress(BrokenPipeError):  # it has died this moment, which is seen at once
                os.write(process.stdin.fileno(), b"\n")
            self._follow(scene)
        return ""

    def look(self) -> bool:
        """See whether the process has died by another hand, and tell so."""
        if self._process is None or self._process.poll() is None:
            return False
        self._follow(self.scene)
        return True

    def close(self) -> None:
        """End the process, if it lives."""
        self._process = None
        self._life.close()

    # ------------------------------------------------------------------ what comes of it

    def _start(self, scene: Scene) -> None:
        told = {"PERDURE_DEMO_PORT": str(self.world.port), "PERDURE_DEMO_KILL": ""}
        words = ["-m", "actors.demo_puppet", scene.part.name, _recipient(scene)]
        self._process = self._life.enter_context(started(words, self._folder, told))
        self._follow(replace(scene, pid=self._process.pid, code=None, stop=None))

    def _follow(self, scene: Scene) -> None:
        """Listen until the process stands still or has ended, and look at all that has changed since this scene."""
        said, stop = self._listen()
        code = self._bury() if stop is None else None
        events = tuple(self._read_log(scene.task)) if scene.part.logged else ()
        after = replace(
            scene,
            code=code,
            stop=stop or scene.stop,
            events=events,
            message_ids=tuple(self.world.message_ids(_recipient(scene))),
            said=tuple(said),
            seen_version=scene.version,
            seen_mails=len(scene.message_ids),
        )
        if after.stop is not None and not scene.part.logged:
            has_done = stop is not None and stop.place == AFTER
            after = replace(after, memory=(*scene.memory, after.stop.step) if has_done else scene.memory)
        if code is not None:
            after = replace(after, memory=())
        if after.state == KILLED:
            after = replace(after, deaths=(*scene.deaths, (after.version, scene.pid)))
        self._scene = replace(after, moral=moral(self._scene, after))

    def _listen(self) -> tuple[list[str], Stop | None]:
        """Give what the process says until it stands still, and where that is; None where it has ended."""
        process, said = self._process, list[str]()
        if process is None:
            return said, None
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            for line in process.stdout or ():
                if line.startswith(f"{STOP} "):
                    _, place, step, attempt = line.split()
                    return said, Stop(place, step, int(attempt))
                said.append(line.rstrip())
        finally:
            watchdog.cancel()
        return said, None

    def _bury(self) -> int:
        code = self._process.wait() if self._process is not None else 0
        self.close()
        return code

    def _read_log(self, task: str) -> list[TaskEvent]:
        """Read the log as any other process could; a client runs nothing. Empty where the task was never accepted."""
        try:
            return self._client.task(task).events()
        except UnknownTaskError:
            return []


@contextmanager
def puppeteer() -> Iterator[Puppeteer]:
    """Set the stage for the length of the block: a folder, a mail server, and no agent yet. All is gone afterwards."""
    with TemporaryDirectory(prefix="perdure-demo-") as name, mail_server(Path(name)) as world:
        folder = Path(name)
        (folder / NOTES).write_text(Path(__file__).with_name("demo_notes.txt").read_text())
        with (
            AgentSystem(STORE.replace("///", f"///{folder}/"), run=False) as client,
            closing(Puppeteer(folder, world, client)) as hand,
        ):
            yield hand


def _recipient(scene: Scene) -> str:
    """Give the mailbox of a task."""
    return f"{scene.task}@example.org"
