"""Every snippet and command of the README is run, and what it shows is what comes out."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from actors.testing import every_crash_point
from tests.shell import Shell

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
CONSOLE = [body for language, body in BLOCKS if language == "console"]
SNIPPETS = {body.splitlines()[0].removeprefix("# "): body for language, body in BLOCKS if language == "python"}
PYTHON = {name: body for name, body in SNIPPETS.items() if name.endswith(".py")}


def perdure(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "actors", *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def assert_shown(shown: str, real: str) -> None:
    """What is shown stands in what came out, in this order; … stands for anything, and times may be other ones."""
    pattern = re.escape(shown.strip()).replace("\\ …", "…").replace("\\\n", "\\s+").replace("…", ".*?")
    pattern = re.sub(r"[\d.\\]+\\ s\b", r"[\\d.]+ m?s", pattern)
    assert re.search(pattern, real, re.DOTALL), f"the README shows\n{shown}\nand the command gave\n{real}"


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 225


def test_the_demo_does_what_is_shown() -> None:
    demo, tests = CONSOLE[0].split("$ ")[1:]
    install_and_run, _, shown = demo.partition("\n")
    assert install_and_run == 'pip install -e ".[demo]" && perdure demo'
    assert tests.startswith('pip install -e ".[dev]" && pytest -q')
    ended = perdure("demo", cwd=ROOT)
    assert ended.returncode == 0
    assert_shown(shown, ended.stdout + ended.stderr)


def test_the_test_command_is_what_ci_runs() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "'.[dev]'" in ci
    assert "pytest -q" in ci


@pytest.fixture
def weather(tmp_path: Path) -> Path:
    for name, body in PYTHON.items():
        (tmp_path / name).write_text(body, encoding="utf-8")
    return tmp_path


def test_the_agent_is_killed_and_goes_on_as_shown(weather: Path) -> None:
    words, _, shown = CONSOLE[1].partition("\n")
    words_of_it = words.removeprefix("$ perdure ").split()
    with subprocess.Popen(
        [sys.executable, "-m", "actors", *words_of_it], cwd=weather, stderr=subprocess.PIPE, text=True
    ) as first:
        assert first.stderr is not None
        for line in first.stderr:
            if line.startswith("running   2"):
                os.kill(first.pid, signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL
    again = perdure(*words_of_it, cwd=weather)
    assert again.returncode == 0
    assert_shown(shown, again.stderr + again.stdout)
    sent = (weather / "sent.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split()[1] for line in sent] == ["ann", "bob", "cy"]
    by_python = subprocess.run(
        [sys.executable, "weather.py"], cwd=weather, capture_output=True, text=True, timeout=60, check=True
    )
    assert by_python.stdout.strip() == "['sent to ann', 'sent to bob', 'sent to cy']"
    for command in (["list"], ["show", "rome"]):
        assert "rome" in perdure(*command, cwd=weather).stdout


def test_a_worker_on_another_machine_goes_on_as_shown(weather: Path, postgres: str) -> None:
    """Two terminals, one kill; the URL is that of the test's own database."""
    _, run, serve = re.split(r"^(?:one|two)\$ export .*\n", CONSOLE[2], flags=re.MULTILINE)
    environment = os.environ | {"PERDURE_STORE": postgres}
    words, _, shown = run.removeprefix("one$ perdure ").partition("\n")
    command = [sys.executable, "-m", "actors"]
    first_shown, last_shown = shown.replace("…\n", "").splitlines()
    with subprocess.Popen(
        [*command, *words.split()], cwd=weather, stderr=subprocess.PIPE, text=True, env=environment
    ) as first:
        assert first.stderr is not None
        for line in first.stderr:
            if line.strip() == first_shown:
                os.kill(first.pid, signal.SIGKILL)
    assert (last_shown, first.returncode) == ("Killed", -signal.SIGKILL)
    words, _, shown = serve.removeprefix("two$ perdure ").partition("\n")
    work, look = words.split(" & perdure ")
    with subprocess.Popen([*command, *work.split()], cwd=weather, env=environment) as worker:
        try:
            followed = subprocess.run(
                [*command, *look.split()], env=environment, capture_output=True, text=True, timeout=60, check=True
            )
        finally:
            worker.terminate()
    assert_shown(shown, followed.stdout + followed.stderr)
    sent = (weather / "sent.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split()[1] for line in sent] == ["ann", "bob", "cy"]


def test_the_conversation_asks_before_it_orders_as_shown(weather: Path) -> None:
    (shown,) = [block for block in CONSOLE if "helper.py" in block]
    words, _, shown = shown.removeprefix("$ perdure ").partition("\n")
    command, told = [sys.executable, "-m", "actors", *shlex.split(words)], list[str]()
    with subprocess.Popen(command, cwd=weather, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stdout is not None
        for line in running.stderr:
            told.append(line)
            if line.startswith("asks"):
                assert perdure(*shlex.split(line.partition("perdure ")[2]), cwd=weather).returncode == 0
        told.append(running.stdout.read())
    assert_shown(shown, "".join(told))
    assert "tool      4/1/3" in perdure("show", "umbrella", cwd=weather).stdout


def test_a_real_provider_takes_two_other_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    _, imports, made = SNIPPETS["in place of the script"].splitlines()
    code = PYTHON["helper.py"].replace('llm_agent("helper"', 'llm_agent("helper of a provider"')
    code, count = re.subn(r"from actors.llm import .*", imports, code)
    code, scripts = re.subn(r"model = ScriptedModel\(\n.*?\n\)\n", f"{made}\n", code, flags=re.DOTALL)
    assert (count, scripts) == (1, 1)
    spoken: dict[str, object] = {"__name__": "helper_of_a_provider"}
    exec(compile(code, "helper_of_a_provider.py", "exec"), spoken)
    assert type(spoken["model"]).__name__ == "OpenAIModel"


def test_nothing_is_ordered_twice_wherever_the_conversation_dies(
    weather: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(weather))
    helper = importlib.import_module("helper").helper
    for run in every_crash_point(helper, "An umbrella for Rome?", answer=lambda _: True):
        run.check()
        assert run.count("order") <= 1
        if run.status == "held":  # on_doubt="hold": it died in the order
            assert "in doubt: step 4/1/3 order" in str(run.error)
        else:
            assert run.result == "It rains. An umbrella is on its way."


def test_the_test_of_the_agent_passes(weather: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_weather.py"],
        cwd=weather,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout


def test_the_store_of_the_environment_is_that_of_the_program_too(weather: Path) -> None:
    environment = os.environ | {"PERDURE_STORE": "sqlite:///elsewhere.db", "PYTHONPATH": str(ROOT)}
    program = ["-c", "import runpy, time; time.sleep = print; runpy.run_path('weather.py', run_name='__main__')"]
    subprocess.run([sys.executable, *program], cwd=weather, env=environment, timeout=60, check=True)
    assert (weather / "elsewhere.db").exists()
    assert not (weather / "perdure.db").exists()


def test_each_extra_that_is_there_is_explained() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (sentences,) = re.findall(r"^The tests take.*?\n\n", TEXT, re.DOTALL | re.MULTILINE)
    assert {extra for extra in extras if f"`{extra}`" not in sentences} == set()


def commands_of(section: str) -> list[list[str]]:
    """The commands in a paragraph's running text that name an agent."""
    return [shlex.split(words) for words in re.findall(r"`perdure (run [^`]*)`", section)]


def test_each_agent_has_a_command_that_runs_it(weather: Path) -> None:
    commands = {words[1]: words for words in commands_of(TEXT)}
    assert set(commands) == {"research.py:research", "trip.py:trip"}
    pages = perdure(*commands["research.py:research"], cwd=weather)
    assert (pages.returncode, pages.stdout) == (0, '["page of a", "page of b", "page of x", "page of y"]\n')
    answers = re.findall(r"`(?:perdure )?((?:approve|signal) trip[^`]*)`", TEXT)
    with subprocess.Popen(
        [sys.executable, "-m", "actors", *commands["trip.py:trip"]],
        cwd=weather,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as trip:
        assert trip.stderr is not None
        asks = next(line for line in trip.stderr if line.startswith("asks"))
        assert re.search(r'"pay 200 for the hotel in Rome"  perdure approve \S', asks)
        for words in answers:
            assert perdure(*shlex.split(words), cwd=weather).returncode == 0
        out, _ = trip.communicate(timeout=60)
    assert (trip.returncode, out) == (0, '"sent to ann, monday"\n')


def test_check_passes_a_ci_job_as_the_text_says(weather: Path) -> None:
    (said,) = re.findall(r"Exit 0: all fit; (\d): some would be held; (\d): some are of agents", TEXT)
    spawning = (
        "from weather import *\nwith AgentSystem('sqlite:///perdure.db', run=False) as s: s.spawn(weather, 'Rome')"
    )
    subprocess.run(
        [sys.executable, "-c", spawning],
        cwd=weather,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=True,
    )
    assert perdure("check", "weather.py", cwd=weather).returncode == 0
    for words, code in (("research.py", said[1]), ("research.py --partial", "0")):
        assert perdure("check", *words.split(), cwd=weather).returncode == int(code)


def test_the_pages_are_fetched_wherever_it_dies(weather: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(weather))
    research = importlib.import_module("research")
    for run in every_crash_point(research.research, ["a", "b"]):
        run.check()
        assert run.result == ["page of a", "page of b", "page of x", "page of y"]


def test_the_trip_is_paid_for_once_or_undone_wherever_it_dies(weather: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(weather))
    monkeypatch.chdir(weather)
    trip = importlib.import_module("trip")
    monkeypatch.setattr(importlib.import_module("weather"), "PACE", 0)
    for approves in (True, False):
        for run in every_crash_point(
            trip.trip,
            "Rome",
            meanwhile=lambda task: task.signal("departure", "monday", signal_id="1"),
            answer=lambda _approval, word=approves: word,
        ):
            run.check()
            assert run.status == ("completed" if approves else "failed")
            assert run.value == ("sent to ann, monday" if approves else None)
            undone = [event.path for event in run.events if getattr(event, "name", "") == "cancel_hotel"]
            assert ("undo/1" in undone) is not approves


def test_every_command_that_is_named_exists(tmp_path: Path) -> None:
    named = set(re.findall(r"`perdure (\w+)", TEXT))
    assert named >= {
        "list",
        "show",
        "resolve",
        "release",
        "check",
        "replay",
        "tree",
        "worker",
        "approvals",
        "signal",
        "cancel",
    }
    helps = [[command, "--help"] for command in sorted(named)]
    assert {code for code, _, _ in Shell(tmp_path).each(helps)} == {0}
