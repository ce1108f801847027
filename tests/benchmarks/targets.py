"""What is to be reached, and whether it is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.benchmarks.contenders import PEERS, POSTGRES, SQLITE
from tests.benchmarks.figures import Row

RAW, ITSELF = "raw", "itself"


@dataclass(frozen=True)
class Target:
    """A bound on one measure of one contender.

    Args:
        what: how the measure's `what` begins.
        against: what the figure is divided by: "raw" (or whatever stands beside it), "itself" for not at all, or the
            beginning of the peers' names whose best is meant ("" for all).
    """

    workload: str
    database: str
    contender: str
    what: str
    against: str
    sign: str
    bound: float

    def means(self, row: Row, contender: str | None = None) -> bool:
        """Tell whether a row is what is held to the bound, or the same measure of another contender."""
        place = (row.workload, row.database, row.contender)
        return place == (self.workload, self.database, contender or self.contender) and row.what.startswith(self.what)

    def figure(self, row: Row, rows: Sequence[Row]) -> float | None:
        """Give what is to be compared with the bound; None where its other side was not measured."""
        if self.against == ITSELF:
            return row.median
        if self.against == RAW:
            return row.ratio
        names = [name for name in PEERS if name.startswith(self.against)]
        peers = [other.median for other in rows for name in names if self.means(other, name)]
        return row.median / max(peers) if peers else None

    def reached(self, figure: float) -> bool:
        """Tell whether a figure is within the bound.

        >>> Target("W4", "SQLite", "perdure", "", "itself", "≤", 0.4).reached(0.3)
        True
        """
        compare: Callable[[float, float], bool] = operator.ge if self.sign == "≥" else operator.le
        return compare(figure, self.bound)

    def __str__(self) -> str:
        """Say the bound in words."""
        words = {RAW: " of raw", ITSELF: "", "dbos": " × DBOS", "": " × the best peer"}[self.against]
        return f"{self.sign} {self.bound:g}{' × one' if self.what == FOUR else words}"


FOUR = "four workers, 800 tasks"

TARGETS = (
    Target("W1", SQLITE, "perdure", "200 steps", RAW, "≥", 0.35),
    Target("W1", SQLITE, "idempotent", "200 steps", RAW, "≥", 0.6),
    Target("W1", SQLITE, "perdure", "the last hundred of 10,000", ITSELF, "≤", 1.3),
    Target("W2", SQLITE, "perdure", "200 tasks", RAW, "≥", 1.0),
    Target("W2", SQLITE, "perdure", "200 tasks", "", "≥", 5),
    Target("W2", SQLITE, "idempotent", "200 tasks", RAW, "≥", 1.3),
    Target("W2", SQLITE, "perdure", "threads", ITSELF, "≤", 72),
    Target("W3", SQLITE, "perdure", "median", ITSELF, "≤", 1.5),
    Target("W4", SQLITE, "perdure", "5,000 finished", ITSELF, "≤", 0.4),
    Target("W5", SQLITE, "perdure", "100,000 dormant: ready", ITSELF, "≤", 1.0),
    Target("W5", SQLITE, "perdure", "100,000 dormant: memory", ITSELF, "≤", 100),
    Target("W5", SQLITE, "perdure", "the next task beside", ITSELF, "≤", 5.0),
    Target("W6", SQLITE, "perdure", "bytes", ITSELF, "≤", 450),
    Target("W6", SQLITE, "idempotent", "bytes", ITSELF, "≤", 280),
    Target("W2", POSTGRES, "perdure", "200 tasks", RAW, "≥", 0.5),
    Target("W2", POSTGRES, "perdure", "200 tasks", "dbos", "≥", 5),
    Target("W2", POSTGRES, "perdure", FOUR, RAW, "≥", 1.0),
)
