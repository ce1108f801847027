"""What a running activation and its surroundings tell each other, past the mailbox that its agent keeps busy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field


@dataclass
class Hints:
    """Flags and calls; all may be used from any thread.

    `stop`, the worker's, and `way`, the task's own, are looked at before each body; after `over` nobody waits for
    bodies any more. `proven` is called at the first outcome, `lend` while a body waits for a task. While not
    `leased()`, no body begins; where it is `crowded()`, others stand in line for the place. `look` makes the worker
    look for work at once, `ring` at a task that may run here; `adopt` tells it of a child.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    way: threading.Event = field(default_factory=threading.Event)
    proven: Callable[[], None] = lambda: None
    lend: Callable[[], AbstractContextManager[None]] = nullcontext
    leased: Callable[[], bool] = lambda: True
    crowded: Callable[[], bool] = lambda: False
    look: Callable[[], None] = lambda: None
    adopt: Callable[[str], None] = lambda _: None
    ring: Callable[[str], None] = lambda _: None

    def asked_to_stop(self) -> bool:
        """Tell whether no further body may start: the worker stops, or the task is to make way for another."""
        return self.stop.is_set() or self.way.is_set()


@dataclass(frozen=True)
class Refusal:
    """Why the task would be held, as a probe has found it."""

    reason: str
    path: str
    message: str


class StopAsked(Exception):  # noqa: N818  control flow, caught where it is raised for
    """Tells that no body may begin any more: the activation was asked to stop. Raised in a transaction, it undoes it.

    Its arguments are the paths of steps whose start is in the log all the same.
    """
