"""The root supervisor: every actor's end arrives here, once, and is answered.

`one_for_one`: one bad task never takes its siblings along. What a crash of an agent means, a restart after a growing
delay or a hold at the limit, its actor has appended before it ended (`task_actor.py`), so that nothing here waits for
the store. The restart itself is recovery's: the index knows when the task is due again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Self

import pykka

from actors.directory import Directory
from actors.supervised import Down, UntoldError, start_unlisted
from actors.task_actor import AgentCrashError, TaskActor
from actors.worker import Worker
from domain.errors import OwnershipLost
from domain.retry import FIRST_DELAY
from stores import StoreUnavailableError
from stores.crash import SimulatedCrash

logger = logging.getLogger("perdure")


class Supervisor(pykka.ThreadingActor):
    """Answers the ends of actors: gives places back, lets rest what fell, and has what else died made anew, by name."""

    use_daemon_thread = True

    def __init__(
        self,
        worker: Worker,
        directory: Directory,
        place_free: Callable[[TaskActor], None],
        rebuild: Callable[[Down], None],
        created: Callable[[Self], None],
    ) -> None:
        super().__init__()
        self._worker = worker
        self._directory = directory
        self._place_free = place_free
        self._rebuild = rebuild
        created(self)

    @classmethod
    def launch(cls, *args: Any) -> pykka.ActorRef[Self]:
        """Start it. Raises RuntimeError where the machine has no thread left."""
        made: list[Self] = []
        start_unlisted(cls, made, *args)
        return made[0].actor_ref

    def on_receive(self, down: Down) -> None:
        """Answer one end. One that is told a second time changes nothing.

        Whatever goes wrong in the answer is reported, and the task's place is given back all the same.
        """
        answered = False
        try:
            if isinstance(down.error, OwnershipLost):
                logger.warning("%s; nothing more of it is written here", down.error)
            elif down.error is not None and not isinstance(down.error, SimulatedCrash):
                self._answer(down, down.error)
            answered = True
        except BaseException as error:
            if not self._worker.over.is_set() and not isinstance(error, OwnershipLost | SimulatedCrash):
                logger.error("the end of %s could not be answered; its log decides", down.name, exc_info=error)
        finally:
            if isinstance(down.actor, TaskActor):
                fell = _fell(down.error) or not answered or not (down.actor.claimed or down.actor.too_early)
                self._directory.leave(down.name, down.actor, fell=fell)
                self._place_free(down.actor)

    def _answer(self, down: Down, error: BaseException) -> None:
        if isinstance(error, AgentCrashError):
            logger.debug("%s crashed, and its log says what follows", down.name)
        elif isinstance(error, StoreUnavailableError):
            logger.warning("task %s stopped; what it did last may not be stored: %s", down.name, error)
        elif isinstance(error, UntoldError) and isinstance(down.actor, TaskActor):
            logger.debug("the end of %s was told again", down.name)
        elif not self._worker.over.is_set():
            logger.error("%s ended by an error that is not its agent's", down.name, exc_info=error)
            if not isinstance(down.actor, TaskActor) and not self._worker.over.wait(FIRST_DELAY):
                self._rebuild(down)


def _fell(error: BaseException | None) -> bool:
    """Tell whether an actor ended by what is no crash of its agent: no event says when it is due again."""
    return error is not None and not isinstance(error, AgentCrashError | OwnershipLost | SimulatedCrash | UntoldError)
