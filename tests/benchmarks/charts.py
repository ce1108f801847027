"""Two charts of one run's figures: bars for each workload, and how cost grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.contenders import CONTENDERS, POSTGRES, SQLITE
from tests.benchmarks.figures import Figures, Point, Row, shown
from tests.benchmarks.svg import FAINT, INK, RULE, Drawing, apart
from tests.benchmarks.targets import ITSELF, TARGETS

COLOURS = {
    "raw": "#8b949e",
    "perdure": "#0b4fb3",
    "idempotent": "#4f8fe6",
    "async": "#12808c",
    "dbos": "#d9661f",
    "dbos-async": "#eb9a63",
    "dbos-wal": "#b98a00",
    "langgraph": "#3d8b37",
    "langgraph-1": "#86bd80",
}
PANELS = (
    ("W1", "", "W1  Steps of one task", "steps a second, more is better"),
    ("W2", "", "W2  Steps of many tasks at once", "steps a second, more is better"),
    ("W3", "median", "W3  A task of one step, start to result", "milliseconds, less is better"),
    ("W4", "", "W4  Killed and started again, to the first new step", "seconds, less is better"),
    ("W5", "ready", "W5  Ready beside dormant tasks, with a result", "seconds, less is better"),
    ("W5", "until", "W5  Until that process is quiet, all recovered", "seconds, less is better"),
    ("W5", "memory", "W5  Memory of that process at the most", "megabytes, less is better"),
    ("W6", "", "W6  What a step takes in the database", "less is better"),
)
"""By panel: workload, a word of the measure that is drawn (else the first one), title, unit."""
WIDTH, LABELS, VALUES = 640, 270, 70
"""Pixels of a column, and in it what the names on the left and the figures on the right take."""
BAR, ROW, TOP, MARGIN = 15, 31, 54, 24


def draw(figures: Figures, folder: Path) -> list[Path]:
    """Write the charts of what there is, and give their places."""
    charts = {"benchmarks.svg": bars(figures), "benchmarks-growth.svg": growth(figures)}
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in charts.items():
        if drawing is not None:
            (folder / name).write_text(str(drawing), encoding="utf-8")
            written.append(folder / name)
    return written


def kinds(things: Sequence[Row] | Sequence[Point]) -> list[str]:
    """Give the databases that occur."""
    return [kind for kind in (SQLITE, POSTGRES) if any(thing.database == kind for thing in things)]


# ---------------------------------------------------------------------- bars


def bars(figures: Figures) -> Drawing | None:
    """Draw a panel for each workload, a column for each database."""
    columns = kinds(figures.rows)
    panels = [[rows_of(figures.rows, kind, *panel[:2]) for kind in columns] for panel in PANELS]
    heights = [TOP + ROW * max(map(len, rows), default=0) if any(rows) else 0 for rows in panels]
    if not any(heights):
        return None
    title = "perdure beside the bare database and its peers"
    drawing = Drawing(MARGIN + WIDTH * len(columns), 92 + sum(heights) + 18, title)
    drawing.text(MARGIN, 34, title, 20, bold=True)
    drawing.text(MARGIN, 54, about(figures), 12, FAINT)
    drawing.text(
        MARGIN,
        72,
        "A bar is the median of its rounds, the thin line their spread; ┊ is what was to be reached.",
        12,
        FAINT,
    )
    y = 92.0
    for panel, rows, height in zip(PANELS, panels, heights, strict=True):
        for column, some in enumerate(rows):
            if some:
                bar_panel(
                    drawing, MARGIN + column * WIDTH, y, f"{panel[2]}, {columns[column]}", panel[3], some, figures.rows
                )
        y += height
    return drawing


def about(figures: Figures) -> str:
    """Say on what machine this was."""
    wanted = ("processors", "fdatasync", "Python", "SQLite", "dbos", "langgraph")
    return ", ".join(f"{name} {figures.machine[name]}" for name in wanted if name in figures.machine)


def rows_of(rows: Sequence[Row], kind: str, workload: str, word: str) -> list[Row]:
    """Give the rows of one panel: of the first measure there, or the one with the most tasks where a word is given."""
    some = [row for row in rows if (row.workload, row.database) == (workload, kind) and word in row.what]
    if not some:
        return []
    what = some[-1 if workload == "W5" else 0].what  # W5 is in the order of its numbers
    return [row for row in some if row.what == what]


def bar_panel(
    drawing: Drawing, x: float, y: float, title: str, unit: str, rows: Sequence[Row], all_rows: Sequence[Row]
) -> None:
    """Draw one panel, its upper left corner at (x, y)."""
    drawing.text(x, y + 16, title, 14, bold=True)
    drawing.text(x, y + 32, f"{rows[0].what} · {unit}", 11, FAINT)
    goals = {row.contender: goals_of(row, all_rows) for row in rows}
    longest = max([row.spread[1] for row in rows] + [goal for some in goals.values() for goal in some])
    left, scale = x + LABELS, (WIDTH - LABELS - VALUES - MARGIN) / longest
    for number, row in enumerate(rows):
        top = y + 42 + number * ROW
        drawing.text(left - 8, top + 9, row.label, 12, anchor="end", bold="perdure" in row.label)
        drawing.text(left - 8, top + 21, row.durability, 9.5, FAINT, "end")
        least, most = row.spread
        drawing.box(left, top + 2, row.median * scale, BAR, COLOURS[row.contender])
        middle = top + 2 + BAR / 2
        drawing.line([(left + least * scale, middle), (left + most * scale, middle)], INK)
        words = left + most * scale + 6
        for goal in sorted(goals[row.contender]):
            place = left + goal * scale
            drawing.line([(place, top - 2), (place, top + BAR + 6)], "#ffffff", 4)
            drawing.line([(place, top - 2), (place, top + BAR + 6)], INK, 1.6, "3 2")
            if words - 6 <= place <= words + VALUES - 20:
                words = place + 6
        drawing.text(words, top + 14, shown(row.median), 12)
    drawing.line([(left, y + 40), (left, y + 40 + ROW * len(rows) - 8)], FAINT)


def goals_of(row: Row, rows: Sequence[Row]) -> list[float]:
    """Give where a row's targets lie in its own unit."""
    goals = []
    for target in TARGETS:
        figure = target.figure(row, rows) if target.means(row) else None
        if figure:
            goals.append(target.bound if target.against == ITSELF else target.bound * row.median / figure)
    return goals


# ---------------------------------------------------------------------- curves

CURVES = (
    ("steps", "What a step costs, by the steps of its task", "steps of the task", "milliseconds a step", 1e3),
    ("tasks", "Steps a second, by the tasks at once", "tasks at once, ten steps each", "steps a second", 1.0),
)
PLOT, HIGH = (64, 350), 260
"""Where in a column the plot begins and how wide it is; how high it is."""


def growth(figures: Figures) -> Drawing | None:
    """Draw two panels for each database, with logarithmic scales."""
    rows = kinds(figures.points)
    if not rows:
        return None
    title = "How cost grows"
    drawing = Drawing(MARGIN + WIDTH * len(CURVES), 70 + len(rows) * (HIGH + 110), title)
    drawing.text(MARGIN, 34, title, 20, bold=True)
    drawing.text(MARGIN, 54, f"{about(figures)}. Both scales of each panel are logarithmic.", 12, FAINT)
    for number, kind in enumerate(rows):
        for column, (curve, *words, factor) in enumerate(CURVES):
            points = [point for point in figures.points if (point.curve, point.database) == (curve, kind)]
            if points:
                corner = (MARGIN + column * WIDTH, 70 + number * (HIGH + 110))
                curve_panel(drawing, corner, kind, [str(word) for word in words], points, float(factor))
    return drawing


def curve_panel(
    drawing: Drawing,
    corner: tuple[float, float],
    kind: str,
    words: Sequence[str],
    points: Sequence[Point],
    factor: float,
) -> None:
    """Draw one panel: title, scales, a line for each contender, its name at the line's end."""
    x, y = corner
    title, below, beside = words
    drawing.text(x, y + 16, f"{title}, {kind}", 14, bold=True)
    drawing.text(x, y + 32, beside, 11, FAINT)
    across = Scale([point.size for point in points], x + PLOT[0], x + PLOT[0] + PLOT[1])
    up = Scale([point.median * factor for point in points], y + 48 + HIGH, y + 48)
    for value in across.ticks():
        place = across(value)
        drawing.line([(place, y + 48), (place, y + 48 + HIGH)], RULE)
        drawing.text(place, y + 64 + HIGH, f"{value:,.0f}", 11, FAINT, "middle")
    for value in up.ticks():
        drawing.line([(x + PLOT[0], up(value)), (x + PLOT[0] + PLOT[1], up(value))], RULE)
        drawing.text(x + PLOT[0] - 8, up(value) + 4, f"{value:,.10g}", 11, FAINT, "end")
    drawing.text(x + PLOT[0] + PLOT[1] / 2, y + 82 + HIGH, below, 11, FAINT, "middle")
    names = list(dict.fromkeys(point.contender for point in points))
    lines = {name: [(across(p.size), up(p.median * factor)) for p in points if p.contender == name] for name in names}
    ends = apart([lines[name][-1][1] for name in names], 28, y + 34 + HIGH)
    for name, end in zip(names, ends, strict=True):
        drawing.line(lines[name], COLOURS[name], 3 if name == "perdure" else 2)
        for spot in lines[name]:
            drawing.dot(*spot, COLOURS[name])
        label = x + PLOT[0] + PLOT[1] + 14
        drawing.line([lines[name][-1], (label - 3, end)], COLOURS[name], 0.8)
        drawing.text(label, end + 3, CONTENDERS[name].label, 12, COLOURS[name], bold=name == "perdure")
        drawing.text(label, end + 15, CONTENDERS[name].durability[kind], 9, FAINT)


class Scale:
    """A logarithmic scale from the least to the greatest of some values, rounded outwards to 1, 2 or 5 of a power."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low, self._high = rounded(min(values), up=False), rounded(max(values), up=True)
        if self._low == self._high:
            self._high = self._low * 10
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """Give the place of a value."""
        part = math.log(value / self._low) / math.log(self._high / self._low)
        return self._start + part * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Give the powers of ten; with them 2 and 5 of each where they are few."""
        powers = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
        steps = (1, 2, 5) if self._high / self._low <= 100 else (1,)
        every = [step * 10.0**power for power in powers for step in steps]
        return [tick for tick in every if self._low * 0.999 <= tick <= self._high * 1.001]


def rounded(value: float, *, up: bool) -> float:
    """Give the nearest of 1, 2, 5, 10 times a power of ten that is not on the inner side of a value.

    >>> rounded(0.13, up=False), rounded(730, up=True), rounded(10, up=True)
    (0.1, 1000.0, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(value))
    steps = [step * power for step in (1, 2, 5, 10)]
    if up:
        return next(step for step in steps if step >= value * 0.999999)
    return next(step for step in reversed(steps) if step <= value * 1.000001)
