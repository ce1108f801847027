"""Measure perdure beside the bare database and its peers, and show it: see `python -m tests.benchmarks --help`.

Exit 0, whatever the figures are; what was missed is said. Nothing here is a timed test.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console

from tests.benchmarks import databases, raw
from tests.benchmarks.bench import QUICK, Bench, GivenUpError, Sizes
from tests.benchmarks.charts import draw
from tests.benchmarks.contenders import CONTENDERS, POSTGRES, SQLITE, installed
from tests.benchmarks.figures import Figures
from tests.benchmarks.table import print_figures
from tests.benchmarks.workloads import WORKLOADS, curves

CURVES = "curves"
PACKAGES = ("dbos", "langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "psycopg")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or read what was measured; then print the table and draw the charts."""
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    sizes = QUICK if options.quick else Sizes()
    figures = Figures.load(options.read) if options.read else measure(options, sizes)
    if options.json:
        figures.save(options.json)
    print_figures(figures, Console(width=None if sys.stdout.isatty() else 190))
    for path in draw(figures, options.charts):
        print(f"chart: {path}")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="What perdure costs, beside the bare database and, with the extra `bench`, its peers.",
    )
    parser.add_argument("--quick", action="store_true", help="some minutes; smaller numbers, figures vary more")
    parser.add_argument("--only", default=",".join([*WORKLOADS, CURVES]), help="such as W2,W4 or curves")
    parser.add_argument("--who", default=",".join(CONTENDERS), help="such as raw,perdure: who is measured")
    parser.add_argument("--on", default=f"{SQLITE},{POSTGRES}", help="which databases")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to be measured")
    parser.add_argument("--json", type=Path, help="keep the numbers in this file")
    parser.add_argument("--read", type=Path, help="measure nothing: show what --json has kept")
    parser.add_argument("--charts", type=Path, default=Path(), help="the folder for the two SVGs; here by default")
    options = parser.parse_args(arguments)
    for name, known in (("only", [*WORKLOADS, CURVES]), ("who", [*CONTENDERS]), ("on", [SQLITE, POSTGRES])):
        chosen = [part.strip().casefold() for part in getattr(options, name).split(",")]
        if unknown := set(chosen) - {part.casefold() for part in known}:
            parser.error(f"--{name}: {', '.join(sorted(unknown))} is not one of {', '.join(known)}")
        setattr(options, name, [part for part in known if part.casefold() in chosen])
    return options


def measure(options: argparse.Namespace, sizes: Sizes) -> Figures:
    """Measure what was asked for, on each database that is there."""
    figures, names = Figures(), [name for name in options.who if installed(name)]
    for package in sorted({CONTENDERS[name].needs for name in options.who if name not in names}):
        figures.words.append(f"{package} left out: it is not installed; pip install -e '.[bench]'")
        print(figures.words[-1], file=sys.stderr)
    print("measuring: half an hour or more, --quick some minutes", file=sys.stderr)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder, ignore_cleanup_errors=True)))
        figures.machine = machine(folder, names)
        places: list[databases.Databases] = [databases.SQLiteFiles(folder)] if SQLITE in options.on else []
        if POSTGRES in options.on:
            server = stack.enter_context(databases.postgres())
            if isinstance(server, str):
                figures.words.append(server)
            else:
                places.append(server)
        for place in places:
            there = able(place, names, figures.words)
            run(Bench(place, there, sizes, folder / "bytecode", said, figures.words), options, figures)
    figures.machine["load at the end"] = f"{os.getloadavg()[0]:.1f}"
    return figures


def run(bench: Bench, options: argparse.Namespace, figures: Figures) -> None:
    """Make the workloads' rows and points in one database, and keep what there is after each."""
    for name in options.only:
        try:
            if name == CURVES:
                figures.points += curves(bench)
            else:
                figures.rows += WORKLOADS[name](bench)
        except GivenUpError as error:
            figures.words.append(f"{name} on {bench.databases.kind} given up: {error}")
        figures.rows.sort(key=lambda row: row.workload)
        if options.json:
            figures.save(options.json)


def able(place: databases.Databases, names: Sequence[str], words: list[str]) -> list[str]:
    """Leave out who cannot use this kind of database."""
    there = [name for name in names if place.kind in CONTENDERS[name].durability]
    with place.new() as url:
        if reason := databases.can_open(url):
            words.append(f"perdure left out on {place.kind}: it has no store there ({reason})")
            there = [name for name in there if CONTENDERS[name].needs != "actors" or name == "raw"]
    return there


def machine(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Say where this was measured, and of which versions."""
    about = {
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "processors": str(os.cpu_count()),
        "fdatasync": f"{raw.fdatasync_seconds(folder) * 1e6:.0f} µs",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }
    for package in PACKAGES if set(names) - {"raw", "perdure", "idempotent", "async"} else ():
        try:
            about[package] = version(package)
        except PackageNotFoundError:
            continue
    return about


def said(word: str) -> None:
    """Show on standard error what is being done; only where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{word}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
