"""Measure, and print one table: `python -m tests.benchmarks [--quick] [--folder FOLDER]`. Exit 0, whatever it shows."""

from __future__ import annotations

import argparse
import operator
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks import admission, restart, sizes, steps

TARGETS: dict[str, tuple[str, float]] = {
    "default": ("≥", 0.33),
    "idempotent": ("≥", 0.6),
    "restart": ("≤", 0.35),
    "bytes": ("≤", 500),
    "dormant": ("≤", 1.0),
    "megabytes": ("≤", 100),
    "threads": ("≤", 72),
    "claim": ("≤", 5.0),
}


def main() -> None:
    """Measure in this order: steps, restart, sizes, many tasks."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="What perdure costs.")
    parser.add_argument("--quick", action="store_true", help="few rounds, a tenth of the tasks: figures vary more")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where to write; on the disk to be measured")
    options = parser.parse_args()
    rounds, restarts = (3, 3) if options.quick else (15, 5)
    table = Table(title="perdure beside raw sqlite3 (WAL, FULL, one insert and commit)", title_justify="left")
    for heading in ("", "measured", "beside", "target", ""):
        table.add_column(heading)
    with steps.new_folder(Path(options.folder)) as folder:
        for kind in steps.KINDS:
            add_speed(table, kind, steps.measure(folder, kind, rounds))
        add_restart(table, restart.measure(folder, restarts))
        for kind in steps.KINDS:
            add_size(table, kind, sizes.bytes_a_step(folder, kind))
        add_admission(table, folder, 10 if options.quick else 1)
    Console().print(table)
    print(f"medians of {rounds} rounds (steps) and {restarts} restarts; a ratio is to the raw commits just before it.")
    print("steps: inside the agent's run, from before its first step to after its last, as many commits on both sides.")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors: on a loaded machine the figures mean little.")


def add_speed(table: Table, kind: str, speed: steps.Speed) -> None:
    """Show the rate of steps, and the raw rate and the disk of the same rounds."""
    spread = f"{min(speed.ratios):.2f}–{max(speed.ratios):.2f}"
    table.add_row(
        f"{steps.STEPS} {kind} steps of one task",
        f"{speed.ratio:.2f} of raw ({spread}), {speed.steps_per_second:,.0f} steps/s",
        f"raw {speed.raw_per_second:,.0f} commits/s, fdatasync {speed.fdatasync * 1e6:.0f} µs",
        *judged(kind, speed.ratio),
    )


def add_restart(table: Table, times: restart.Restart) -> None:
    """Show the time to the first new step, and how much of it every program has."""
    table.add_row(
        f"{restart.FINISHED:,} finished steps, to the first new one",
        f"{times.whole:.3f} s from the start of the process",
        f"import actors {times.imports:.3f} s, python {times.python:.3f} s",
        *judged("restart", times.whole),
    )


def add_size(table: Table, kind: str, size: float) -> None:
    """Show the bytes of a step; only those of a default one have a target."""
    verdict = judged("bytes", size) if kind == "default" else ("", "")
    table.add_row(f"a{'n' * (kind[0] in 'aeiou')} {kind} step in the file", f"{size:.0f} bytes", "", *verdict)


def add_admission(table: Table, folder: Path, divisor: int) -> None:
    """Show what many tasks cost that do not run."""
    count = 100_000 // divisor
    start = admission.dormant(folder, count)
    beside = f"{start['imports']:.0f} MB after the imports"
    table.add_row(
        f"{count:,} dormant tasks, to the end of a new one",
        f"{start['seconds']:.3f} s",
        "",
        *judged("dormant", start["seconds"]),
    )
    table.add_row("the process at its largest", f"{start['peak']:.0f} MB", beside, *judged("megabytes", start["peak"]))
    count = 10_000 // divisor
    crowd = admission.at_once(folder, count)
    table.add_row(
        f"{count:,} tasks at once, 64 active, bodies of 10 ms",
        f"{crowd['threads']:.0f} threads alive at most",
        f"{crowd['finished']:,} finished, {count / crowd['seconds']:,.0f} tasks/s, {crowd['peak']:.0f} MB",
        *judged("threads", crowd["threads"]),
    )
    spawns = admission.spawning(folder, 1000)
    table.add_row(
        "spawning beside 64 bodies that block",
        f"{spawns['rate']:,.0f} tasks/s",
        f"{spawns['alone']:,.0f} tasks/s alone",
        "",
        "",
    )
    count = 1_000_000 // divisor
    for name, claim in admission.claims(folder, count).items():
        table.add_row(
            f"the next task beside {count:,} {name}",
            f"{claim.whole * 1e3:.2f} ms",
            f"found in {claim.finding * 1e3:.2f} ms, claimed in {claim.claiming * 1e3:.2f} ms",
            *judged("claim", claim.whole * 1e3),
        )


def judged(name: str, figure: float) -> tuple[str, str]:
    """Give the target in words, and whether it is reached.

    >>> judged("restart", 0.3)
    ('≤ 0.35', 'reached')
    """
    sign, target = TARGETS[name]
    reached: Callable[[float, float], bool] = operator.ge if sign == "≥" else operator.le
    return f"{sign} {target:g}", "reached" if reached(figure, target) else "missed"


if __name__ == "__main__":
    main()
