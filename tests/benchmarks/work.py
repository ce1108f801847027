"""What a step does, the same for perdure and everybody beside it: note the time, give a hundred bytes.

Imports nothing but the standard library's quickest: a process that is timed from its start imports this.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

WORD = "word"
"""The first argument of every step; its number is the second."""
RESULT = "r" * 98
"""As a log holds it, with its quotes: 100 bytes."""

stamps: list[float] = []
"""When each body of this process began: between the first and the last of n + 1 there are n whole steps."""
on_step: list[Callable[[int], None]] = []
"""What else a body does with its number: nothing, but where a process is to die or to say where it is."""


def work(number: int) -> str:
    """Be the body of a step."""
    stamps.append(perf_counter())
    for meet in on_step:
        meet(number)
    return RESULT
