"""The same promises with real processes, each with a hash seed of its own, killed by SIGKILL at random boundaries."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from actors import AgentSystem, TaskError, TaskRef
from domain.events import StepFailed, StepStarted, StepSucceeded
from tests.programs import STEPS, World
from tests.test_crashes import tokens

ROOT = Path(__file__).parent.parent


def random_program(draw: random.Random, depth: int = 0) -> list[Any]:
    program: list[Any] = []
    for _ in range(draw.randint(1, 4)):
        if depth < 2 and draw.random() < 0.3:
            inner = random_program(draw, depth + 1)
            program.append(draw.choice([["agent", inner], ["if", inner, random_program(draw, depth + 1)]]))
        else:
            program.append(["step", draw.choice(sorted(STEPS)), draw.randint(0, 3)])
    if depth == 0 and draw.random() < 0.2:
        program.append(["fail", "on purpose"])
    return program


def live(url: str, program: list[Any], nth: int, world: Path, hash_seed: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.killed_walk", url, json.dumps(program), str(nth)],
        env={**os.environ, "PERDURE_TEST_WORLD": str(world), "PYTHONHASHSEED": str(hash_seed)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_real_deaths_at_random_boundaries_lose_nothing_and_repeat_no_finished_step(
    seeds: range, tmp_path: Path
) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        program, url = random_program(draw), f"sqlite:///{tmp_path}/{seed}.db"
        path = tmp_path / f"world-{seed}"
        path.touch()
        deaths = 0
        for nth in [draw.randint(1, 40) for _ in range(5)] + [0]:
            ended = live(url, program, nth, path, draw.randint(0, 1000))
            assert ended.returncode in (0, -9), ended.stderr
            deaths += ended.returncode == -9
        check(url, json.loads(ended.stdout), World(str(path)), deaths, seed)


def result_of(task: TaskRef[Any]) -> Any:
    try:
        return task.result(timeout=5)
    except TaskError as error:
        return f"{type(error).__name__}: {error}"


def check(url: str, told: Any, world: World, deaths: int, seed: int) -> None:
    with AgentSystem(url, run=False) as system:
        task = system.task("task")
        events = task.events()
        assert result_of(task) == told
    outcomes = [event for event in events if isinstance(event, StepSucceeded | StepFailed)]
    assert len({event.path for event in outcomes}) == len(outcomes), seed
    started = {event.path for event in events if isinstance(event, StepStarted)}
    effects = world.effects()
    assert len(effects) - len({effect["key"] for effect in effects}) <= deaths, seed
    for outcome in outcomes:
        mine = [effect for effect in effects if effect["path"] == outcome.path]
        assert mine, "an outcome without an effect"
        assert len({effect["key"] for effect in mine}) == 1
        attempts = [effect["attempt"] for effect in mine]
        if outcome.path in started:
            assert attempts == sorted(set(attempts))
        if outcome.name == "asking":
            assert len(mine) == 1
        if isinstance(outcome, StepSucceeded):
            assert outcome.value[1] == mine[-1]["token"]
            assert isinstance(told, str) or outcome.value[1] in tokens(told)
