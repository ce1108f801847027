"""Prose on a console, broken at words: paragraphs, and lines with a label before them."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.text import Text

WIDEST = 100
"""Characters of a line of prose, also where the terminal is wider."""
INDENT = 15
"""Characters before what stands behind a label: room for `pid` and a process id."""


class Prose:
    """Writes to a console, in which nothing is taken for markup."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, label: str, text: str, style: str = "") -> None:
        """Write a text behind a label."""
        first, *rest = textwrap.wrap(text, self._width - INDENT) or [""]
        self.console.print(Text(f"  {label}".ljust(INDENT)) + Text(first, style), soft_wrap=True)
        for line in rest:
            self.console.print(Text(" " * INDENT) + Text(line, style), soft_wrap=True)

    def say(self, text: str = "", style: str = "") -> None:
        """Write a paragraph."""
        self.console.print(Text(textwrap.fill(text, self._width), style), soft_wrap=True)

    @property
    def _width(self) -> int:
        return max(40, min(self.console.width, WIDEST))
