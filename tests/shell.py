"""A folder with agents in a file, and the commands that are typed there, as real processes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from actors import Agent, agent

PERDURE = [sys.executable, "-m", "actors"]

AGENTS = """
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from actors import (
    AgentSystem, FailTask, TaskCancelled, agent, branch, compensate, gather, patched, receive, request_approval, sleep,
    spawn_child, step, task_info,
)


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


@step(retries=2, backoff=60, jitter=0, label="to {where}")
def travel(where: str) -> str:
    note("travel")
    if not Path("road").exists():
        raise ConnectionError(f"no road to {where}")
    return f"in {where}"


@step(retries=1, backoff=0.05, jitter=0)
def stumble() -> str:
    note("stumble")
    if Path("stumbled").exists():
        return "up again"
    Path("stumbled").touch()
    raise ConnectionError("a stone")


@step(timeout=0.1, on_doubt="hold", label="call {who}")
def call(who: str) -> str:
    time.sleep(0.5)
    return "answered"


@step
async def ask(question: str) -> str:
    note("ask")
    return f"{question}?"


@agent
def trip(where: str) -> str:
    return draft("the trip") + travel(where)


@agent
def stumbling() -> list[str]:
    info, new = task_info(), patched("new way")
    info.now()
    return [stumble(), *gather(partial(draft, "a"), partial(draft, "b"))]


@agent
def phoning(who: str) -> str:
    return call(who)


@agent
async def asking(question: str) -> list[str]:
    pair = await gather(ask(question), ask("why"))
    with branch("tool/mail"):
        mail = await draft.aio("mail")
    return [*pair, mail]


@step(label="book {what}")
def book(what: str) -> str:
    note("book")
    compensate(unbook, f"number of {what}")
    return f"number of {what}"


@step
def unbook(number: str) -> None:
    note("unbook")


@agent
def journey(where: str) -> str:
    number = book(where)
    pause = request_approval(f"pay for {where}", details={"number": number})
    tickets = spawn_child(typeless, f"ticket to {where}")
    decision = pause.wait(timeout=3600)
    if not decision.approved:
        raise FailTask(f"not paid: {decision.note}")
    return f"{tickets.result()}, {receive('departure')}, {decision.value}"


@agent
def hasty() -> str:
    spawn_child(napping)
    return draft("at once")


@agent
def napping() -> str:
    try:
        sleep(3600)
    except TaskCancelled:
        draft("the end")
        raise


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


def words_of(text: str) -> list[str]:
    """The first word of each line, as progress has it."""
    return [re.split(r"\s{2,}", line)[0] for line in text.splitlines()]


def agent_named(name: str) -> Agent[Any, Any]:
    """Make an agent that is only known by its name: no worker here is meant to run it."""

    def function(*arguments: Any) -> None:
        raise AssertionError("only the name is used")

    return agent(name=name)(function)
