"""Actors whose every end is told to their supervisor, exactly once.

pykka says nothing about an actor that ends while it starts, or by a `BaseException`, which would stop every actor of
the process besides (library facts B1). So nothing of ours leaves `on_receive`: it is caught here, told once, and the
actor stops by itself. Nor does what befalls an actor of the user's own stop one of ours: pykka's registry, by which it
would, has none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import pykka

A = TypeVar("A", bound=pykka.Actor)


@dataclass(frozen=True)
class Live:
    """The message that starts an actor's life: everything it does happens in it."""


@dataclass(frozen=True)
class Down:
    """An actor's end, as its supervisor is told of it. `error` is None for one that ended as it should."""

    name: str
    actor: SupervisedActor
    error: BaseException | None = None


class UntoldError(Exception):
    """Stands for the error of an actor that has ended, and whose end nobody has answered since."""


class SupervisedActor(pykka.ThreadingActor):
    """An actor that lives for one call of `live()` on a daemon thread that nobody shares, and is then gone.

    Guaranteed: `report` is called once, on the actor's thread, after `live` has ended, or where the actor was stopped
    before it began; or by `launch`, where no thread could be had.
    """

    use_daemon_thread = True

    def __init__(self, name: str, report: Callable[[Down], None]) -> None:
        super().__init__()
        self.name = name
        self._report = report
        self._told = False

    @classmethod
    def launch(cls, *args: Any) -> Self:
        """Start an actor's life. Where the machine has no thread left, that is its end, told like any other."""
        made: list[Self] = []
        try:
            start_unlisted(cls, made, *args)
        except RuntimeError as error:
            actor = made[0]
            actor.actor_stopped.set()
            actor._tell_end(error)
        else:
            with suppress(pykka.ActorDeadError):  # stopped already, and told
                made[0].actor_ref.tell(Live())
        return made[0]

    def live(self) -> None:
        """Do what the actor is there for; overridden."""
        raise NotImplementedError

    def on_receive(self, _message: object, /) -> None:
        """Live, then tell how it ended. Nothing escapes."""
        error: BaseException | None = None
        try:
            self.live()
        except BaseException as raised:
            error = raised
        self.actor_ref.stop(block=False)
        self._tell_end(error)

    def on_stop(self) -> None:
        """Tell of the end of an actor that was stopped before it lived."""
        self._tell_end(None)

    def _tell_end(self, error: BaseException | None) -> None:
        if not self._told:
            self._told = True
            self._report(Down(self.name, self, error))


def start_unlisted(cls: type[A], made: list[A], *args: Any) -> None:
    """Start an actor of ours, put it into `made`, and take it off pykka's registry, also where it cannot start.

    Who stops all that are listed there, or tells them something, means others. Pykka stops them all by itself when an
    actor of anybody's ends by a `BaseException`, and would wait for ours for ever.

    Raises RuntimeError where the machine has no thread left.
    """
    try:
        cls.start(*args, made.append)
    finally:
        for actor in made:
            pykka.ActorRegistry.unregister(actor.actor_ref)
