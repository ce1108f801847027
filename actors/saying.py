"""Lines that tell of a task as it goes on: a word, coloured on a terminal, and what there is to say."""

from __future__ import annotations

from contextlib import suppress

import typer

INDENT = 10
"""Columns that stand before the text of a line."""

_COLOURS = {
    "running": "cyan", "finished": "green", "failed": "red", "crashed": "red", "in doubt": "yellow",
    "replayed": "bright_black", "recorded": "bright_black", "waiting": "yellow", "asks": "yellow",
    "decided": "bright_black", "held": "yellow",
}  # fmt: skip


def say(word: str, text: str) -> None:
    """Print a line on standard error: its first word, coloured on a terminal, and the rest."""
    head = head_of(word) if word else ""
    if head or text:
        with suppress(OSError):  # whether anybody can read it decides nothing about the task
            typer.echo(head + text, err=True)


def head_of(word: str) -> str:
    """Give the beginning of a line: its first word, coloured where it is written to a terminal."""
    return typer.style(f"{word:<{INDENT - 2}}  ", fg=_COLOURS.get(word))
