"""The same promises with real processes, each with a hash seed of its own, killed by SIGKILL at random boundaries."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from actors import AgentSystem, TaskError, TaskRef
from domain.events import StepFailed, StepStarted, StepSucceeded
from tests.programs import STEPS, WALKERS, World
from tests.test_crashes import tokens

ROOT = Path(__file__).parent.parent


def random_program(draw: random.Random, depth: int = 0) -> list[Any]:
    program: list[Any] = []
    for _ in range(draw.randint(1, 4)):
        if depth < 2 and draw.random() < 0.3:
            inner, other = random_program(draw, depth + 1), random_program(draw, depth + 1)
            program.append(
                draw.choice([["agent", inner], ["if", inner, other], ["gather", [inner, other]], ["keyed", "k", inner]])
            )
        elif draw.random() < 0.1:
            program.append(draw.choice([["now"], ["random"], ["patched", "a"]]))
        else:
            program.append(["step", draw.choice(sorted(STEPS)), draw.randint(0, 3)])
    if depth == 0:
        branches = [[["step", "asking", number], *random_program(draw, 2)] for number in range(2)]
        program.insert(draw.randint(0, len(program)), ["gather", branches])
        if draw.random() < 0.2:
            program.append(["fail", "on purpose"])
    return program


def live(
    url: str, colour: str, program: list[Any], nth: int, world: Path, hash_seed: int
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.killed_walk", url, colour, json.dumps(program), str(nth)],
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
        colour = sorted(WALKERS)[seed % 2]
        path = tmp_path / f"world-{seed}"
        path.touch()
        deaths = 0
        for nth in [draw.randint(1, 40) for _ in range(5)] + [0]:
            ended = live(url, colour, program, nth, path, draw.randint(0, 1000))
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
    outcomes = [event for event in events if isinstance(event, StepSucceeded | StepFailed) and event.kind == "step"]
    assert len({event.path for event in outcomes}) == len(outcomes), seed
    started = {event.path for event in events if isinstance(event, StepStarted)}
    effects = world.effects()
    activations = [effect["activation"] for effect in effects]
    assert activations == sorted(activations), seed
    again = Counter(effect["key"] for effect in effects)
    assert max(again.values()) <= deaths + 1, seed
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
