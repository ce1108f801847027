"""Histories: what releases have written is read and replayed for ever, and so is what users check in."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import actors.testing
from actors import AgentSystem, StepError, agent, register, step
from actors.definitions import AnyAgent
from actors.history import load_history, to_history
from actors.task_log import TaskLog, index_row
from actors.testing import FakeClock, HistoryError, histories, replay_history, save_history
from domain.events import EVENTS, revive
from domain.fold import fold
from domain.values import encode
from stores import Store, open_store
from tests.histories.agents import PROGRAMS, world
from tests.histories.facts import facts_of

FOLDERS = sorted(path for path in (Path(__file__).parent / "histories").iterdir() if path.name[0].isdigit())
RECORDED = [path for folder in FOLDERS for path in histories(folder)]
OPEN = ["async-open", "beside-open", "cut-off", "waiting"]


@pytest.fixture(autouse=True)
def _nothing_goes_wrong() -> Iterator[None]:
    world.clear()
    yield
    world.clear()


def rows_of(path: Path) -> list[list[Any]]:
    rows: list[list[Any]] = json.loads(path.read_text())["rows"]
    return rows


# ------------------------------------------------------------------ what releases have written

each = pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")


@each
def test_what_a_release_has_recorded_fits_todays_code(path: Path) -> None:
    replay_history(PROGRAMS[path.stem][0], path)


@each
def test_what_a_release_has_recorded_says_the_same_as_then_keys_included(path: Path) -> None:
    assert facts_of(load_history(path)) == json.loads(path.read_text())["facts"]


@each
def test_a_recorded_event_is_written_again_as_it_was_or_in_the_older_schema_that_holds_it(path: Path) -> None:
    for version, topic, payload in rows_of(path):
        event = revive(topic, "task", version, list(payload))
        written = event.payload()
        assert written[1:] == payload[1 : len(written)]
        assert payload[len(written) :] == [
            value for schema in range(written[0] + 1, payload[0] + 1) for value in event.ADDED[schema]
        ]


def test_every_kind_of_event_and_of_record_is_in_some_history() -> None:
    rows = [row for path in RECORDED for row in rows_of(path)]
    assert {topic for _, topic, _ in rows} == set(EVENTS)
    outcomes = [revive(topic, "t", version, payload) for version, topic, payload in rows if topic == "step.succeeded"]
    assert {event.__dict__["kind"] for event in outcomes} == {"step", "patch", "now", "undo"}
    assert {event.__dict__["source"] for event in outcomes} == {"", "on_doubt"}
    failures = [revive(topic, "t", version, payload) for version, topic, payload in rows if topic == "step.failed"]
    assert {event.__dict__["retry_at"] is None for event in failures} == {True, False}


def test_no_history_has_a_path_of_the_machine_on_which_it_was_recorded() -> None:
    for path in RECORDED:
        assert 'File \\"/' not in path.read_text(), path


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_open_task_of_an_earlier_release_goes_on_to_its_end(folder: Path, name: str) -> None:
    store = stored(folder / f"{name}.json")
    with AgentSystem(store, clock=FakeClock(jump=True)) as system:
        value = system.task("task").result(30)
        events = system.task("task").events()
    if name == "async-open":
        assert encode(value) == json.loads((folder / "async.json").read_text())["facts"]["value"]
    before = [
        [version, topic, revive(topic, "task", version, payload).payload()]  # in the oldest schema that holds it
        for version, topic, payload in rows_of(folder / f"{name}.json")
    ]
    assert to_history(events)["rows"][: len(before)] == before
    store.close()


def stored(path: Path) -> Store:
    """Put a history into a new store, as it was when it was recorded."""
    store = open_store("memory:")
    log, rows = TaskLog(store), rows_of(path)
    events = [revive(topic, "task", version, list(payload)) for version, topic, payload in rows]
    task = fold(None, events)
    assert task is not None
    raw = [log.mapper.to_stored_event(event, birth=task.birth) for event in events]
    log.recorder.insert_events(raw, entry=index_row(task), expected=None)
    return store


# ------------------------------------------------------------------ what users check in


@step
def draft(topic: str) -> str:
    return f"about {topic}"


@step
def send(text: str) -> str:
    return f"sent {text}"


@step
async def fetch(topic: str) -> str:
    return topic


@agent(name="history-report")
def report(topic: str) -> str:
    return send(draft(topic))


@agent(name="history-report-async")
async def report_async(topic: str) -> str:
    return await send.aio(await fetch(topic))


@contextmanager
def other_code(which: AnyAgent, code: Callable[..., Any]) -> Iterator[None]:
    """Let an agent have other code for a while."""
    before, which.fn = which.fn, code
    try:
        yield
    finally:
        which.fn = before


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return record(report, tmp_path / "report.json", "rain")


def record(which: Any, path: Path, *args: Any) -> Path:
    with AgentSystem("memory:") as system:
        task = system.spawn(which, *args, id="report-1")
        task.result(30)
        save_history(task, path)
    return path


def test_a_saved_history_fits_the_code_that_wrote_it(recorded: Path) -> None:
    replay_history(report, recorded)
    document = json.loads(recorded.read_text())
    assert (document["id"], len(document["birth"]), len(document["rows"])) == ("report-1", 16, 7)
    assert len(recorded.read_text().splitlines()) == 7 + 6, "a row has a line"


def test_a_history_is_never_written_over(recorded: Path) -> None:
    with AgentSystem("memory:") as system, pytest.raises(FileExistsError):
        save_history(system.spawn(report, "snow", id="report-1"), recorded)
    replay_history(report, recorded)


def test_code_that_asks_for_something_else_is_named_with_file_position_and_both_sides(recorded: Path) -> None:
    with other_code(report, send), pytest.raises(HistoryError) as caught:
        replay_history(report, recorded)
    error = caught.value
    assert isinstance(error, AssertionError)
    assert str(error) == (
        f"{recorded}: task report-1 of agent history-report would be held: code differs at position 1:"
        " the log has step draft, the code asks for step send"
    )
    assert (error.where, error.path, error.reason) == (str(recorded), "1", "differs")
    assert (error.expected, error.found) == ("step draft", "step send")


def test_code_that_stops_asking_is_named_too(recorded: Path) -> None:
    with other_code(report, draft), pytest.raises(HistoryError, match="asks for nothing more"):
        replay_history(report, recorded)


def test_code_that_goes_on_after_the_log_or_returns_something_else_fits(recorded: Path) -> None:
    with other_code(report, lambda topic: [send(draft(topic)), send("more")]):
        replay_history(report, recorded)
    with other_code(report, lambda topic: [send(draft(topic))]):
        replay_history(report, recorded)


def test_code_that_crashes_is_named_with_its_line(recorded: Path) -> None:
    def crash(topic: str) -> str:
        return draft(topic) + {}["missing"]  # type: ignore[no-any-return,call-overload]

    with other_code(report, crash), pytest.raises(HistoryError, match="would crash: KeyError: 'missing'") as caught:
        replay_history(report, recorded)
    assert f'File "{__file__}", line' in str(caught.value)
    assert caught.value.reason == "crashes"


def test_code_that_lets_the_failure_of_a_step_through_fits(tmp_path: Path) -> None:
    @step
    def refuse() -> None:
        raise ValueError("no")

    @agent(name="history-refused")
    def refused() -> str:
        try:
            refuse()
        except StepError:
            return "refused"
        return ""

    path = record(refused, tmp_path / "refused.json")
    with other_code(refused, refuse):
        replay_history(refused, path)


def test_a_class_that_is_gone_is_named(tmp_path: Path) -> None:
    @register(name="history.Gone")
    @dataclass
    class Gone:
        number: int

    @step(name="make")
    def make() -> Gone:
        return Gone(1)

    @agent(name="history-gone")
    def gone() -> int:
        return make().number

    path = record(gone, tmp_path / "gone.json")
    path.write_text(path.read_text().replace("history.Gone", "history.NotThere"))
    with pytest.raises(
        HistoryError, match=r"would be held at position 1: unknown class: .*history\.NotThere"
    ) as caught:
        replay_history(gone, path)
    assert caught.value.reason == "unknown class"


def test_an_async_agent_is_replayed_also_where_an_event_loop_runs(tmp_path: Path) -> None:
    path = record(report_async, tmp_path / "async.json", "rain")
    replay_history(report_async, path)

    async def test() -> None:
        replay_history(report_async, path)
        replay_history(report, record_sync)

    record_sync = record(report, tmp_path / "sync.json", "rain")
    asyncio.run(test())

    async def other(topic: str) -> str:
        return await send.aio(topic)

    with other_code(report_async, other), pytest.raises(HistoryError, match="the log has step fetch, the code asks"):
        replay_history(report_async, path)


def test_a_history_of_another_agent_is_refused_with_both_names(recorded: Path) -> None:
    with pytest.raises(HistoryError, match="a history of agent history-report, not of history-report-async"):
        replay_history(report_async, recorded)
    with pytest.raises(TypeError, match="is not an agent"):
        replay_history(len, recorded)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"id": 1, "birth": "b", "rows": [1]}', '{"id": "i", "birth": "b", "rows": []}']
)
def test_a_file_that_is_no_history_is_a_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"other\.json is no history of a task"):
        replay_history(report, path)


def test_a_row_that_this_code_does_not_know_is_named(recorded: Path) -> None:
    recorded.write_text(recorded.read_text().replace("step.succeeded", "step.triumphed"))
    with pytest.raises(HistoryError, match=r"report\.json: its log cannot be read: its topic 'step.triumphed'"):
        replay_history(report, recorded)


def test_a_folder_without_a_history_is_no_test(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no history"):
        histories(tmp_path)


def test_histories_are_sorted(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "notes.txt"):
        (tmp_path / name).write_text("")
    assert [path.name for path in histories(str(tmp_path))] == ["a.json", "b.json"]


def test_the_test_to_paste_runs_and_fails_when_the_code_changes(tmp_path: Path) -> None:
    text = actors.testing.__doc__ or ""
    snippet = dedent(text[text.index("    from pathlib import Path") : text.index("A boundary is")])
    (tmp_path / "test_paste.py").write_text(snippet)
    code = "from actors import agent, step\n@step\ndef draft(): return 1\n@agent\ndef report(): return draft()\n"
    (tmp_path / "report.py").write_text(code)
    (tmp_path / "histories").mkdir()
    save = "from pathlib import Path; from tests.test_history import record; from report import report; "
    run_in(tmp_path, "-c", save + "record(report, Path('histories/report-1.json'))")
    run_in(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_paste.py")
    (tmp_path / "report.py").write_text(code.replace("draft", "outline"))
    failed = run_in(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_paste.py", ends=1)
    assert "the log has step draft, the code asks for step outline" in failed


def run_in(folder: Path, *words: str, ends: int = 0) -> str:
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == ends, done.stdout + done.stderr
    return done.stdout
