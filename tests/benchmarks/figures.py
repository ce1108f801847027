"""What was measured, and the arithmetic on it: medians, spreads, ratios within a round."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.benchmarks.contenders import CONTENDERS


@dataclass(frozen=True)
class Row:
    """One measure of one contender.

    Args:
        workload: W1 to W6.
        database: SQLite or PostgreSQL.
        contender: a key of `CONTENDERS`.
        what: what is counted; the same words for all that are compared.
        unit: of the values.
        values: one of each round.
        beside: what it is divided by, of the same rounds; the raw database's as a rule. May be empty.
        beside_what: what that is.
        note: a word more.
    """

    workload: str
    database: str
    contender: str
    what: str
    unit: str
    values: list[float]
    beside: list[float] = field(default_factory=list)
    beside_what: str = "raw"
    note: str = ""

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the most of the rounds."""
        return min(self.values), max(self.values)

    @property
    def ratio(self) -> float | None:
        """The median of each round's ratio: what slows a round down slows both its sides down."""
        return statistics.median(ratios(self.values, self.beside)) if self.beside else None

    @property
    def durability(self) -> str:
        """What the contender's commits are worth on this database."""
        return CONTENDERS[self.contender].durability.get(self.database, "")

    @property
    def label(self) -> str:
        """Who it is."""
        return CONTENDERS[self.contender].label


@dataclass(frozen=True)
class Point:
    """One point of a curve: how `value` grows with `size`.

    Args:
        curve: "steps" (seconds a step, by steps a task) or "tasks" (steps a second, by tasks at once).
    """

    curve: str
    database: str
    contender: str
    size: int
    values: list[float]

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.values)


@dataclass
class Figures:
    """All that one run has found, as it is kept in a file."""

    machine: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write them as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Figures:
        """Read what `save` has written."""
        kept = json.loads(path.read_text(encoding="utf-8"))
        rows, points = [Row(**row) for row in kept["rows"]], [Point(**point) for point in kept["points"]]
        return cls(kept["machine"], rows, points, kept["words"])


def ratios(values: Sequence[float], beside: Sequence[float]) -> list[float]:
    """Divide round by round.

    >>> ratios([2.0, 30.0], [4.0, 10.0])
    [0.5, 3.0]
    """
    return [mine / theirs for mine, theirs in zip(values, beside, strict=True)]


def percentile(values: Iterable[float], hundredths: int) -> float:
    """Give the least value that so many hundredths of all do not exceed.

    >>> percentile(range(1, 201), 99), percentile([7.0], 50)
    (198, 7.0)
    """
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * hundredths // 100) - 1)]


def shown(value: float) -> str:
    """Write a number with about three digits that count.

    >>> [shown(number) for number in (0.00123, 0.5, 12.34, 999.6, 1234567)]
    ['0.00123', '0.50', '12.3', '1,000', '1,234,567']
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"
