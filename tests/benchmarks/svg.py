"""As much SVG as two charts need. A plotting library would be a dependency of a hundred times its size."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

FONT = "font-family='Helvetica, Arial, sans-serif'"
INK, FAINT, RULE = "#1b1f24", "#6a737d", "#d8dee4"


class Drawing:
    """Collects shapes; lengths are in pixels, from the upper left corner."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:g}' height='{height:g}'"
            f" viewBox='0 0 {width:g} {height:g}' role='img' {FONT}>\n<title>{escape(title)}</title>"
        )
        self._shapes: list[str] = []
        self.box(0, 0, width, height, "#ffffff")

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Fill a rectangle."""
        self._shapes.append(
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' fill='{colour}'/>"
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1, dash: str = "") -> None:
        """Join points."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f" stroke-dasharray='{dash}'" if dash else ""
        self._shapes.append(
            f"<polyline points='{places}' fill='none' stroke='{colour}' stroke-width='{width:g}'{dashed}/>"
        )

    def dot(self, x: float, y: float, colour: str, radius: float = 3) -> None:
        """Fill a circle."""
        self._shapes.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:g}' fill='{colour}'/>")

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 12,
        colour: str = INK,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write on a base line at y; `anchor` is what of the words stands at x: start, middle or end."""
        weight = " font-weight='bold'" if bold else ""
        self._shapes.append(
            f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size:g}' fill='{colour}' text-anchor='{anchor}'{weight}>"
            f"{escape(words)}</text>"
        )

    def __str__(self) -> str:
        """Give the whole file."""
        return "\n".join([self._head, *self._shapes, "</svg>\n"])


def apart(places: Sequence[float], gap: float, lowest: float) -> list[float]:
    """Move places until no two are closer than `gap` and none is below `lowest`; the order stays.

    >>> apart([10, 11, 40, 9], 5, 100), apart([10, 90, 91], 5, 92)
    ([14, 19, 40, 9], [10, 87, 92])
    """
    moved = list(places)
    order = sorted(range(len(places)), key=lambda index: places[index])
    for above, below in pairwise(order):
        moved[below] = max(moved[below], moved[above] + gap)
    for index in reversed(order):
        moved[index], lowest = min(moved[index], lowest), min(moved[index], lowest) - gap
    return moved
