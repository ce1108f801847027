"""The actor of one entity: takes its commands one by one, and answers each when its events are in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol, Self

from actors.entity_log import EntityLog
from actors.info import checked
from actors.mailbox import Command, Envelope, Mailbox
from actors.patience import Patience
from actors.supervised import Down, SupervisedActor
from actors.where import users_code
from domain.entity import topic_of
from domain.entity_state import EntityState, Receipt
from domain.errors import EntityCrashError, InsideTaskError, KeyConflictError, Rejected, UnreadableEntityError
from domain.faults import Fault
from domain.json_text import Json
from domain.values import decode
from stores import StoreError
from stores.crash import SimulatedCrash

_own_code: ContextVar[str] = ContextVar("perdure_entity", default="")
"""Which entity's own code runs in this context: its commands, its events, in a replay as well."""


@contextmanager
def _in_own_code(name: str) -> Iterator[None]:
    token = _own_code.set(name)
    try:
        yield
    finally:
        _own_code.reset(token)


def refuse_inside_entity(what: str) -> None:
    """Raise InsideTaskError in an entity's own code: it may be called again, and could wait for itself."""
    if name := _own_code.get():
        raise InsideTaskError(
            f"{what} inside the code of {name} would happen again whenever that is called again, and could wait for"
            " itself: call it outside, with what the entity has replied"
        )


class Post(Protocol):
    """Where an actor gets its commands from."""

    log: EntityLog
    value_limit: int

    @property
    def patience(self) -> Patience:
        """How long to try a store that is away."""
        ...

    def now(self) -> float:
        """Tell the time as Unix seconds."""
        ...

    def rest(self, box: Mailbox, seconds: float) -> None:
        """Wait, at most until all is closed."""
        ...

    def next(self, box: Mailbox) -> Envelope | None:
        """Wait for the next command; None where the actor is to end, and no longer counts as the entity's."""
        ...

    def fell(self, box: Mailbox) -> None:
        """Tell the siblings of an entity that it has crashed."""
        ...

    def answered(self, box: Mailbox, envelope: Envelope, answer: Json | BaseException) -> None:
        """Deliver an answer."""
        ...

    def failed(self, box: Mailbox, envelope: Envelope, error: BaseException) -> None:
        """Deliver an answer that ends the actor."""
        ...


class EntityActor(SupervisedActor):
    """One incarnation of one entity.

    Its state is what its log says, read when it begins. It ends when nothing was asked of it for a while, when it is
    to begin anew, or by a crash: an error of its code that is no answer.
    """

    def __init__(
        self, box: Mailbox, pause: float, post: Post, report: Callable[[Down], None], created: Callable[[Self], None]
    ) -> None:
        super().__init__(str(box), report)
        self.box = box
        self._pause = pause
        self._post = post
        created(self)

    def live(self) -> None:
        """Serve the mailbox."""
        post, box = self._post, self.box
        post.rest(box, self._pause)
        state: EntityState | None = None
        while (envelope := post.next(box)) is not None:
            if envelope.begin():
                state = self._serve(state, envelope)

    def _serve(self, state: EntityState | None, envelope: Envelope) -> EntityState:
        """Answer one command. Raises what ends the actor, after it was the answer."""
        post, box = self._post, self.box
        answer: Json | BaseException
        try:
            with _in_own_code(self.name):
                state = state or post.log.load(box.cls, box.id, post.patience)
                answer = self._reply(state, envelope.command)
        except (Rejected, KeyConflictError) as no:
            answer = BaseException.with_traceback(no, None)  # whatever its class does about that
        except (StoreError, UnreadableEntityError, SimulatedCrash) as error:
            post.failed(box, envelope, error)
            raise
        except BaseException as error:
            crash = self._crash(envelope.command, error)
            crash.__cause__ = error
            post.failed(box, envelope, crash)
            post.fell(box)
            raise crash  # noqa: B904  its cause is set, before anybody sees it
        post.answered(box, envelope, answer)
        assert state is not None  # noqa: S101  it was loaded
        return state

    def _reply(self, state: EntityState, command: Command) -> Json:
        """Decide until the decision is made on what the log has, and is in it; after a conflict, decide again."""
        log, limit = self._post.log, self._post.value_limit
        while True:
            if command.key in state.receipts:
                if self._reads_on(state):  # it may be a deleted one's, and count no more
                    continue
                return self._first_reply(state.receipts[command.key], command)
            now = datetime.fromtimestamp(self._post.now(), UTC)
            try:
                given: Any = decode(command.arguments)
                args, kwargs = given
                events, reply = state.decide(command.name, args, kwargs, now)
                encoded: Json = checked(reply, limit)
            except Exception:
                if self._reads_on(state):  # it was decided on what is no longer so
                    continue
                raise
            if not events:
                if self._reads_on(state):
                    continue
                return encoded
            receipt = Receipt(command.key, command.name, command.digest, encoded) if command.key else None
            if log.append(state, events, receipt, self._post.patience):
                return encoded

    def _reads_on(self, state: EntityState) -> bool:
        """Tell whether the log has something else than the state was made of: more, or nothing of it any more."""
        before = state.birth, state.version
        self._post.log.read_on(state, self._post.patience)
        return (state.birth, state.version) != before

    def _first_reply(self, first: Receipt, command: Command) -> Json:
        if (first.command, first.digest) != (command.name, command.digest):
            raise KeyConflictError(
                f"{self.name}: key {command.key} was used for {first.command} before, and now for {command.name}"
                f"{' with other arguments' if first.command == command.name else ''}: nothing was done. A key is for"
                " one command",
                topic=topic_of(self.box.cls),
                entity_id=self.box.id,
            )
        return first.reply

    def _crash(self, command: Command, error: BaseException) -> EntityCrashError:
        fault = Fault.of(users_code(error))
        return EntityCrashError(
            f"{self.name}: its command {command.name} ended in {fault}; nothing of it was stored. An answer is a value,"
            " or a Rejected",
            topic=topic_of(self.box.cls),
            entity_id=self.box.id,
            fault=fault,
        )
