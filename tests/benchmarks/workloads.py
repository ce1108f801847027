"""W1 to W6 and the curves: what is measured, of whom, and how often."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.benchmarks import admission
from tests.benchmarks.bench import Bench, GivenUpError
from tests.benchmarks.contenders import CONTENDERS, SQLITE
from tests.benchmarks.figures import Point, Row, percentile

CHILD = "tests.benchmarks.child"
ALONE = ("raw", "perdure", "idempotent", "async", "dbos", "dbos-wal", "langgraph")
AT_ONCE = ("raw", "perdure", "idempotent", "async", "dbos", "dbos-async", "dbos-wal", "langgraph", "langgraph-1")
MAIN = ("raw", "perdure", "dbos", "langgraph")
SIZED = ("raw", "perdure", "idempotent", "dbos", "langgraph")


def one_task(bench: Bench) -> list[Row]:
    """W1: the steps of one task, from the first body to the last; and whether the later ones cost more."""
    sizes = bench.sizes
    said = bench.by_turns(bench.among(*ALONE), "steps", sizes.steps, rounds=sizes.rounds)
    rows = rates(bench, "W1", f"{sizes.steps} steps of one task", said)
    said = bench.by_turns(bench.among(*MAIN), "steps", sizes.many, rounds=sizes.few)
    what = f"the last hundred of {sizes.many:,} steps"
    for name, rounds in said.items():
        growth = [one["growth"] for one in rounds]
        if None not in growth:
            rows.append(Row("W1", bench.databases.kind, name, what, "× the first", growth))
    return rows


def many_tasks(bench: Bench) -> list[Row]:
    """W2: many tasks at once, from the first start to the last result."""
    sizes = bench.sizes
    said = bench.by_turns(bench.among(*AT_ONCE), "tasks", sizes.tasks, sizes.length, rounds=sizes.crowds)
    rows = rates(bench, "W2", f"{sizes.tasks} tasks × {sizes.length} steps", said)
    if bench.among("perdure") and bench.databases.kind == SQLITE:
        rows += admission.crowd(bench)
    if bench.among("perdure") and bench.databases.kind != SQLITE:
        rows.append(several_processes(bench, 4))
    return rows


def rates(bench: Bench, workload: str, what: str, said: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """Make rows of steps a second, each beside the raw commits of its round."""
    raw = [one["rate"] for one in said.get("raw", [])]
    return [
        Row(workload, bench.databases.kind, name, what, "steps/s", [one["rate"] for one in rounds], raw)
        for name, rounds in said.items()
    ]


def several_processes(bench: Bench, workers: int) -> Row:
    """Let a client bring tasks to one worker process, then to several, by turns."""
    found: dict[int, list[float]] = {1: [], workers: []}
    count = bench.sizes.tasks * workers
    for _ in range(bench.sizes.few):
        for number, rates_of in found.items():
            bench.say(f"{bench.databases.kind} {number} workers")
            with bench.databases.new() as url, ExitStack() as stack:
                for _ in range(number):
                    process = stack.enter_context(bench.process(CHILD, "perdure", "worker", url))
                    _line_of(process)
                rates_of.append(bench.child("perdure", "client", url, count, bench.sizes.length)["rate"])
    what = f"{'four' if workers == 4 else workers} workers, {count} tasks × {bench.sizes.length} steps of a client"
    return Row("W2", bench.databases.kind, "perdure", what, "steps/s", found[workers], found[1], "one worker")


def _line_of(process: subprocess.Popen[str]) -> str:
    """Wait until a process says that it is ready."""
    return process.stdout.readline() if process.stdout else ""


def latency(bench: Bench) -> list[Row]:
    """W3: from the start of a one-step task to its result, in a running system."""
    sizes, rows = bench.sizes, []
    said = bench.by_turns(bench.among(*ALONE), "latency", sizes.starts, rounds=sizes.few)
    hundredths: dict[str, Callable[[list[float]], float]] = {
        "median": statistics.median,
        "99 of 100 within": lambda times: percentile(times, 99),
    }
    for word, of in hundredths.items():
        figures = {name: [of(one["times"]) * 1e3 for one in rounds] for name, rounds in said.items()}
        for name, values in figures.items():
            what = f"{word}, a task of one step to its result"
            rows.append(Row("W3", bench.databases.kind, name, what, "ms", values, figures.get("raw", [])))
    return rows


def restart(bench: Bench) -> list[Row]:
    """W4: from the start of a process to its first new step, where another was killed; and what every program has."""
    times: dict[str, list[float]] = {}
    with ExitStack() as stack:
        killed = {name: stack.enter_context(bench.databases.new()) for name in bench.among(*ALONE)}
        for name, url in list(killed.items()):
            if not _killed(bench, name, url):
                del killed[name]
        for _ in range(bench.sizes.few + 1):
            for name, url in list(killed.items()):
                try:
                    times.setdefault(name, []).append(_restarted(bench, name, url))
                except GivenUpError as error:
                    bench.words.append(str(error))
                    del killed[name]
        what = f"{bench.sizes.finished:,} finished steps, to the first new one"
        # The first start of each has made its bytecode, and is not counted.
        return [
            Row("W4", bench.databases.kind, name, what, "s", times[name][1:], note=_every_program(bench, name))
            for name in killed
        ]


def _killed(bench: Bench, name: str, url: str) -> bool:
    finished = bench.sizes.finished
    bench.say(f"{bench.databases.kind} killed after {finished} steps: {name}")
    with bench.process(CHILD, name, "killed", url, str(finished)) as process:
        try:
            _, err = process.communicate(timeout=bench.sizes.patience)
        except subprocess.TimeoutExpired:
            err = f"not done within {bench.sizes.patience:.0f} s"
    if process.returncode != -signal.SIGKILL or err.startswith("not done"):
        bench.words.append(f"{name} was to be killed after {finished} steps: exit {process.returncode}\n{err}")
        return False
    return True


def _restarted(bench: Bench, name: str, url: str) -> float:
    """Time one start, and see that it goes on where the killed process was: after every step that was finished."""
    finished = bench.sizes.finished
    with bench.databases.copy(url) as copy:
        seconds, line = bench.seconds_to_a_line("-m", CHILD, name, "restart", copy, str(finished))
    number = json.loads(line)["number"]
    if number != finished:
        bench.words.append(f"{CONTENDERS[name].label}: {finished} steps were finished, and step {number} ran")
    return seconds


def _every_program(bench: Bench, name: str) -> str:
    """Say what of a start is Python's, and what the import's."""
    module = CONTENDERS[name].factory.partition(":")[0]
    python = min(bench.seconds_to_a_line("-c", "print()")[0] for _ in range(bench.sizes.few))
    imports = min(bench.seconds_to_a_line("-c", f"import {module}; print()")[0] for _ in range(bench.sizes.few))
    return f"import {imports - python:.2f} s, Python {python:.2f} s"


def dormant(bench: Bench) -> list[Row]:
    """W5: a process that starts beside many tasks which sleep: its memory, and the time to the end of a new task."""
    rows = []
    for count in bench.sizes.dormant:
        found = []
        for name in bench.among(*MAIN):
            bench.say(f"{bench.databases.kind} {count} dormant tasks: {name}")
            try:
                found.append(_beside(bench, name, count))
            except GivenUpError as error:
                bench.words.append(f"{error}, beside {count:,} dormant tasks")
        rows += [row for measure in zip(*found, strict=True) for row in measure]
    if bench.among("perdure") and bench.databases.kind == SQLITE:
        rows += admission.claims(bench)
    return rows


def _beside(bench: Bench, name: str, count: int) -> list[Row]:
    said = []
    with bench.databases.new() as url:
        bench.child(name, "fall_asleep", url)
        bench.databases.multiply(url, count)
        for _ in range(bench.sizes.few):
            with bench.databases.copy(url) as copy:
                said.append(bench.child(name, "ready", copy))
    note = f"{said[0]['imports']:.0f} MB after the imports"
    measures = (
        ("seconds", "ready, with a new task's result", "s", ""),
        ("quiet", "until it has no more to do", "s", ""),
        ("peak", "memory at the most", "MB", note),
    )
    return [
        Row("W5", bench.databases.kind, name, f"{count:,} dormant: {what}", unit, [one[key] for one in said], note=note)
        for key, what, unit, note in measures
    ]


def stored(bench: Bench) -> list[Row]:
    """W6: how much the database grows with each step of one task."""
    sizes: dict[str, list[float]] = {}
    for name in bench.among(*SIZED):
        bench.say(f"{bench.databases.kind} bytes a step: {name}")
        grown = []
        for steps in (0, bench.sizes.stored):
            with bench.databases.new() as url:
                bench.child(name, "size", url, steps)
                grown.append(bench.databases.size(url))
        sizes[name] = [(grown[1] - grown[0]) / bench.sizes.stored]
    return [
        Row("W6", bench.databases.kind, name, "bytes a step", "bytes", values, sizes.get("raw", []))
        for name, values in sizes.items()
    ]


def curves(bench: Bench) -> list[Point]:
    """Measure how the cost grows: with the steps of a task, and with the tasks at once."""
    points, kind, sizes = [], bench.databases.kind, bench.sizes
    for count in sizes.by_steps:
        said = bench.by_turns(bench.among(*SIZED), "steps", count, rounds=sizes.few)
        for name, rounds in said.items():
            points.append(Point("steps", kind, name, count, [1 / one["rate"] for one in rounds]))
    for count in sizes.by_tasks:
        said = bench.by_turns(bench.among(*SIZED), "tasks", count, sizes.length, rounds=sizes.few)
        for name, rounds in said.items():
            points.append(Point("tasks", kind, name, count, [one["rate"] for one in rounds]))
    return points


WORKLOADS: dict[str, Callable[[Bench], list[Row]]] = {
    "W1": one_task,
    "W2": many_tasks,
    "W3": latency,
    "W4": restart,
    "W5": dormant,
    "W6": stored,
}
