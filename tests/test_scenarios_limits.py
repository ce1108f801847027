"""Scenarios about values at their limits: P18 hostile text, P19 what is too large."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator

import pytest

from actors import (
    AgentSystem,
    InvalidTaskIdError,
    TaskFailedError,
    TaskHeldError,
    UnstorableValueError,
    agent,
    step,
)
from domain.events import StepStarted, StepSucceeded
from domain.values import decode
from stores import Store, open_store
from tests.lives import die, live
from tests.scenario_kit import KILLED, World
from tests.scenario_postgres import on_both

# ------------------------------------------------------------------ P18


HOSTILE = "a\ud83db\0ce\u0301\U0001f469\u200d\U0001f4bb\u202eabc"
PLACES = [*HOSTILE, HOSTILE, "\ud83d", "\udcff", "\ud83d\ude00", "\0", "\x7f", "\u2028", "\ufeff", "\uffff", "\x1b[31m"]
TEXTS = """
    import json
    import sys
    from actors import AgentSystem, TaskFailedError, agent, step
    from tests.scenario_kit import STORE, die_once, effect, say

    TEXTS = json.loads(sys.argv[2])

    @step(label="echo {text}")
    def echo(text):
        effect("echo")
        return [text, {text: [text]}]

    @step
    def fail(text):
        effect("failed")
        raise ValueError(text)

    @agent
    def speak(text):
        answer = echo(text)
        if sys.argv[1] == "kill":
            die_once("C")
        assert answer == [text, {text: [text]}], answer
        return answer

    @agent
    def complain(text):
        fail(text)

    with AgentSystem(STORE) as system:
        wrong = []
        for number, text in enumerate(TEXTS):
            task = system.spawn(speak, text, id=f"speak-{number}", tags={"text": text})
            if task.result(30) != [text, {text: [text]}] or task.describe().tags != {"text": text}:
                wrong.append(number)
            task = system.spawn(complain, text, id=f"complain-{number}", tags={"text": text})
            try:
                wrong.append([number, task.result(30)])
            except TaskFailedError as error:
                message = error.fault.message.encode("utf-8", "backslashreplace").decode()
                if text.encode("utf-8", "backslashreplace").decode() not in message:
                    wrong.append([number, message])
        say(json.dumps([wrong, len(system.tasks())]))
"""


@on_both
def test_hostile_text_comes_back_as_it_went_in(world: World) -> None:
    """P18: as argument, result, key, label, tag and error message; killed in between; listed all the same."""
    program, words = world.write(TEXTS), json.dumps(PLACES)
    world.run(program, "kill", words, code=KILLED)
    for _ in range(2):
        assert json.loads(world.run(program, "go", words)) == [[], 2 * len(PLACES)]
    assert (world.count("echo"), world.count("failed")) == (len(PLACES), len(PLACES))
    with world.client() as client:
        place = PLACES.index(HOSTILE)
        task = client.task(f"speak-{place}")
        returned, by_text = task.result(timeout=5)
        assert returned == HOSTILE
        assert len(returned) == 14
        assert by_text == {HOSTILE: [HOSTILE]}
        assert task.describe().tags == {"text": HOSTILE}
        assert len(client.tasks()) == len(client.tasks(status="completed")) + len(client.tasks(status="failed"))


@step
def echo(text: str) -> list[str]:
    return [text]


@agent
def speak(text: str) -> list[str]:
    return [*echo(text), text]


def test_hostile_text_comes_back_from_memory_too() -> None:
    """P18: on the other store, after a simulated death at each place."""
    for text in PLACES:
        with open_store("memory:") as disk:
            die(disk, speak, text, at="body.after")
            die(disk, speak, text, at="append.after", nth=3)
            assert live(disk, speak, text) == [text, text]


def test_a_task_id_of_hostile_text_is_refused_with_the_place_of_the_first_bad_character() -> None:
    """P18: the id is refused with the index 1, and nothing is stored."""
    with AgentSystem("memory:", run=False) as client:
        for name, index in ((HOSTILE, 1), ("ab\0", 2), ("\u202eabc", 0), ("a\nb", 1)):
            with pytest.raises(InvalidTaskIdError, match=rf"\b{index}\b"):
                client.spawn(speak, "x", id=name)
        for name in ("-x", "--help"):
            with pytest.raises(InvalidTaskIdError, match="begins with no dash, which commands take for an option"):
                client.spawn(speak, "x", id=name)
        assert client.tasks() == []


# ------------------------------------------------------------------ P19


LARGE = """
    import hashlib
    import json
    import sys
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, answer, die_once, effect, say

    @step(retries=3)
    def produce(times):
        effect("produced")
        return bytes(range(256)) * times

    @step
    def small(number):
        effect("small")
        return "x" * 1024

    @agent
    def large(times):
        data = produce(times)
        for number in range(200):
            small(number)
        if "kill" in sys.argv:
            die_once("end")
        return hashlib.sha256(data).hexdigest()

    @agent
    def return_it(times):
        return bytes(range(256)) * times

    with AgentSystem(STORE) as system:
        tasks = [system.spawn(large, 262144, id="large"), system.spawn(large, 10_000, id="fits")]
        tasks.append(system.spawn(return_it, 262144, id="returned"))
        say(json.dumps([answer(task, 60) for task in tasks]))
"""


@on_both
def test_sixty_four_megabytes_fail_the_step_at_once_with_limit_size_and_name(world: World) -> None:
    """P19: entered once, failed, not tried for ever; what fits is the same after a restart; the store stays small."""
    program = world.write(LARGE)
    world.run(program, "kill", code=KILLED)
    digest = hashlib.sha256(bytes(range(256)) * 10_000).hexdigest()
    for _ in range(2):
        assert json.loads(world.run(program)) == ["TaskFailedError", digest, "TaskHeldError"]
    assert [line.task for line in world.ledger("produced")] in (["large", "fits"], ["fits", "large"])
    assert world.count("small") == 200
    with world.client() as client:
        task = client.task("large")
        with pytest.raises(TaskFailedError) as failed:
            task.result(timeout=5)
        assert failed.value.fault.is_a("domain.errors:UnstorableValueError")
        for told in ("step 1 produce", "4,194,304", f"{len(dumped(64 * 2**20)):,}"):
            assert told in str(failed.value)
        assert [type(event) for event in task.events()].count(StepStarted) == 1
        with pytest.raises(TaskHeldError, match=r"what the agent returned cannot be stored.*the limit is 4,194,304"):
            client.task("returned").result(timeout=5)
    assert world.size() < 100 * 2**20


def dumped(size: int) -> str:
    """Write bytes of a size as the log does."""
    return '{"$":"bytes","v":"' + "A" * (4 * -(-size // 3)) + '"}'


@pytest.fixture
def disk() -> Iterator[Store]:
    with open_store("memory:") as store:
        yield store


@step
def repeat(text: str, times: int) -> str:
    return text * times


@agent
def write(text: str, times: int) -> int:
    return len(repeat(text, times))


@pytest.mark.parametrize(("text", "width"), [("x", 1), ("é", 6), ("\0", 6), ("😀", 12)])
def test_the_limit_is_of_what_is_written_and_a_large_value_below_it_is_warned_of(
    disk: Store, caplog: pytest.LogCaptureFixture, text: str, width: int
) -> None:
    """P19: one byte over is refused, the limit itself is stored, with a warning that says how large it is."""
    limit = 4 * 2**20
    fits = (limit - 2) // width
    with caplog.at_level(logging.WARNING, "perdure"), AgentSystem(disk) as system:
        task = system.spawn(write, text, fits)
        assert task.result(30) == fits
        (stored,) = [event.value for event in task.events() if isinstance(event, StepSucceeded)]
        assert decode(stored) == text * fits
        with pytest.raises(TaskFailedError, match=r"step 1 repeat.*takes 4,194,\d+ bytes, the limit is 4,194,304"):
            system.spawn(write, text, fits + 1).result(30)
    assert f"a value of {fits * width + 2:,} bytes is stored" in caplog.text


def test_an_argument_that_is_too_large_is_refused_at_spawn_and_nothing_is_stored(disk: Store) -> None:
    """P19: the caller is told at once."""
    with AgentSystem(disk, run=False) as client:
        with pytest.raises(UnstorableValueError, match="the limit is 4,194,304"):
            client.spawn(write, "x" * 2**23, 1)
        assert client.tasks() == []


def test_a_person_is_told_at_once_too(disk: Store) -> None:
    """P19: a value that is too large is refused when it is given for a step in doubt, and the task stays held."""

    @step(on_doubt="hold")
    def doubtful() -> str:
        return "x"

    @agent
    def hesitate() -> str:
        return doubtful()

    die(disk, hesitate, at="body.after")
    with AgentSystem(disk) as system:
        task = system.spawn(hesitate, id="t")
        with pytest.raises(TaskHeldError):
            task.result(30)
        with pytest.raises(UnstorableValueError, match="the limit is 4,194,304"):
            task.resolve("1", value="x" * 2**23, by="ann")
        assert task.status() == "held"
        task.resolve("1", value="y", by="ann")
        assert task.result(30) == "y"
