"""The figures in the terminal: a table for each workload, with what was to be reached."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from tests.benchmarks.figures import Figures, Row, shown
from tests.benchmarks.targets import TARGETS

TITLES = {
    "W1": "W1  one task",
    "W2": "W2  many tasks at once",
    "W3": "W3  start to result, in a running system",
    "W4": "W4  killed, and started again: the whole process",
    "W5": "W5  beside tasks that wait",
    "W6": "W6  what the database grows by",
}
REACHED, MISSED = "reached", "MISSED"


def print_figures(figures: Figures, console: Console) -> None:
    """Print a table for each workload and database, and below them what else is to be known."""
    for (workload, database), rows in groupby(figures.rows, lambda row: (row.workload, row.database)):
        table = Table(title=f"{TITLES[workload]}, {database}", title_justify="left")
        for heading in ("", "who, and how durable", "median (spread)", "beside", "target", ""):
            table.add_column(heading, justify="right" if heading == "median (spread)" else "left")
        before = ""
        for row in rows:
            if before and before != row.what:
                table.add_section()
            table.add_row("" if before == row.what else row.what, *cells(row, figures.rows))
            before = row.what
        console.print(table)
    for word in figures.words:
        console.print(word, highlight=False)
    console.print("; ".join(f"{name} {value}" for name, value in figures.machine.items()), highlight=False)
    console.print("A ratio is the median of each round's own; a target speaks of the numbers named in its row.")


def cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """Give a row's cells after the first: who, figure, ratio or note, target, verdict."""
    least, most = row.spread
    spread = f" ({shown(least)}–{shown(most)})" if len(row.values) > 1 else ""
    beside = f"{shown(row.ratio)} of {row.beside_what}" if row.ratio is not None and row.contender != "raw" else ""
    judged = verdicts(row, rows)
    return [
        f"{row.label} [dim]{row.durability}[/dim]",
        f"{shown(row.median)} {row.unit}{spread}",
        "; ".join(filter(None, (beside, row.note))),
        "\n".join(target for target, _ in judged),
        "\n".join(verdict for _, verdict in judged),
    ]


def verdicts(row: Row, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Give each target of a row in words, and whether it is reached, with the ratio where the row does not show it."""
    judged = []
    for target in TARGETS:
        if target.means(row) and (figure := target.figure(row, rows)) is not None:
            verdict = REACHED if target.reached(figure) else MISSED
            judged.append(
                (str(target), f"{verdict} ({shown(figure)})" if target.against not in {"itself", "raw"} else verdict)
            )
    return judged
