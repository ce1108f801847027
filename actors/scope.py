"""Where in its program running code stands: scopes, in which calls are counted, and who may count in them.

A scope is an agent, a branch of a gather, or a branch that has a key. It belongs to the thread, or to the asyncio task,
that runs its code: only there calls have an order that a replay can follow.
"""

from __future__ import annotations

import hashlib
import threading
import time
from functools import cached_property
from random import Random
from typing import NoReturn, Self
from uuid import UUID

from actors.activation import Activation
from actors.body import running_body
from actors.colours import AWAITING, BLOCKING, Colour, asyncio_task
from domain.errors import BlockingCallError, NestedStepError, OutsideTaskError
from domain.journal import Differs, Place, branch_path, join, left_over


class Scope:
    """One numbered stretch of the program, and the line of execution that runs it.

    `cancelled` tells that it knows of the cancellation of its task: what it calls now is clean-up. `left_to` has the
    open branches for which its line of execution only waits.
    """

    def __init__(self, activation: Activation, path: str = "", beside: tuple[str, ...] = ()) -> None:
        self.activation = activation
        self.path = path
        self.beside = beside
        self.asked = 0
        self.emitted_at = -1
        self.opened: set[str] = set()
        self.left_to: list[Scope] = []
        self.passed_over: Differs | None = None
        self.cancelled = False
        self.thread = threading.get_ident()
        self.asyncio_task = asyncio_task()
        self.colour: Colour = BLOCKING if self.asyncio_task is None else AWAITING
        self._openings: dict[str, int] = {}
        self._opening = threading.Lock()

    # ------------------------------------------------------------------ who may call

    def is_here(self) -> bool:
        """Tell whether the caller is the line of execution of this scope: contexts can be copied to others."""
        return threading.get_ident() == self.thread and asyncio_task() is self.asyncio_task

    def check(self, what: str, name: str, *, blocks: bool, is_async: bool = False, twin: str = "") -> None:
        """Refuse a call from where it may not come; `blocks` tells whether it would block an event loop.

        `name` is that of the function that is called, `is_async` its own colour; empty for what has no plain function,
        but a `twin` of the other colour. Raises NestedStepError, OutsideTaskError, BlockingCallError, or what has
        closed the activation.
        """
        here = self.is_here()
        if running_body.get() is not None or not here or blocks is self.colour.awaits or self.activation.closed:
            awaited = twin or f"{name}{'' if is_async else '.aio'}"
            called = twin or f"{name}{'.sync' if is_async else ''}"
            self._refuse(what, name, here=here, blocks=blocks, instead=awaited if blocks else called)

    def _refuse(self, what: str, name: str, *, here: bool, blocks: bool, instead: str) -> NoReturn:
        body, task_id = running_body.get(), self.activation.task.id
        plain = f", or call the plain function {name}.fn(…)" if name else ""
        if body is not None:
            info = body.info
            raise NestedStepError(
                f"{what} was called inside the body of step {info.path} {info.name} of task {info.task_id}:"
                f" a body is one effect; call it in the agent{plain}"
            )
        if not here:
            raise OutsideTaskError(f"{what} was called {self._elsewhere()}{plain}")
        if self.activation.closed is not None and not self.colour.awaits:
            time.sleep(self.activation.seconds_for_who_goes_on())
        self.activation.check()
        if blocks:
            raise BlockingCallError(
                f"{what} was called in async code of task {task_id}, where it would block the event loop that all async"
                f" agents share: await {instead}(…)"
            )
        raise OutsideTaskError(f"{what} was awaited in sync code of task {task_id}: call {instead}(…)")

    async def give_way(self) -> None:
        """Keep async code that goes on after the end of its activation from keeping the loop for itself."""
        if self.activation.closed is not None and (seconds := self.activation.seconds_for_who_goes_on()):
            import asyncio  # noqa: PLC0415  a loop runs, so it is there

            await asyncio.sleep(seconds)

    def _elsewhere(self) -> str:
        task_id = self.activation.task.id
        if asyncio_task() is None:
            return (
                f"on another thread than that of its task {task_id}, where calls have no order that a replay could"
                ' follow: use gather(…), or open a branch("key") there'
            )
        if self.asyncio_task is None:
            return (
                f"in an event loop that the code of its task {task_id} runs by itself, where calls have no order that a"
                ' replay could follow: make the agent async, or open a branch("key") there'
            )
        return (
            f"in another asyncio task than that of its task {task_id}, where calls have no order that a replay could"
            " follow (asyncio.gather, create_task and, on Python 3.11, wait_for make such tasks): use perdure's"
            ' gather(…), give the step a time limit by timeout=, or open a branch("key") there'
        )

    # ------------------------------------------------------------------ places

    def next_place(self) -> Place:
        """Take the next position. Holds the task where the code has passed over what the log has."""
        if self.passed_over is not None:
            self.hold_for_code(self.passed_over)
        self.asked += 1
        return Place(join(self.path, self.asked), self.beside)

    @property
    def next_position(self) -> Place:
        """The position that would be taken next."""
        return Place(join(self.path, self.asked + 1), self.beside)

    def inner(self, path: str) -> Self:
        """Give the scope of an agent that is called at a position of this one."""
        return self._within(path, self.beside)

    def branch(self, gather: str, number: int) -> Self:
        """Give the scope of one branch of a gather."""
        return self._within(join(gather, number), (*self.beside, gather))

    def keyed(self, key: str) -> Self:
        """Give the scope of a branch that has a key; the second one of that key has `#2`. Any thread may call."""
        with self._opening:
            self._openings[key] = times = self._openings.get(key, 0) + 1
            path = branch_path(self.path, key, times)
            self.opened.add(path)
        return self._within(path, self.beside)

    def _within(self, path: str, beside: tuple[str, ...]) -> Self:
        made = type(self)(self.activation, path, beside)
        made.cancelled = self.cancelled
        return made

    def end(self) -> None:
        """End the scope: the log must have no more of it, or the task is held."""
        if differs := self.passed_over or left_over(self.activation.task, self.path, self.asked, self.opened):
            self.hold_for_code(differs)

    def leave_by(self, outer: Scope) -> None:
        """Note on `outer` what a scope that an exception leaves had passed over: no difference, unless one goes on."""
        mine = self.passed_over or left_over(self.activation.task, self.path, self.asked, self.opened)
        outer.passed_over = outer.passed_over or mine

    def hold_for_code(self, differs: Differs) -> NoReturn:
        """Hold the task until its code fits its log."""
        self.activation.hold_for_code(differs, here=not self.colour.awaits)

    # ------------------------------------------------------------------ the same in every run

    @cached_property
    def random(self) -> Random:
        """Random numbers that are the same at each replay, and of this scope's own."""
        return Random(self._seed("random"))

    @cached_property
    def _ids(self) -> Random:
        return Random(self._seed("uuid"))

    def uuid4(self) -> UUID:
        """Give a UUID that is the same at each replay."""
        return UUID(int=self._ids.getrandbits(128), version=4)

    def _seed(self, what: str) -> int:
        facts = f"{self.activation.task.birth}\0{what}\0{self.path}"
        return int.from_bytes(hashlib.sha256(facts.encode()).digest(), "big")
