"""`EntityRef`: an entity by its id, and how it is asked; inside an agent, as a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, cast

from actors.body import running_body
from actors.colours import AWAITING, asyncio_task
from actors.context import context, refuse_inside_agent
from actors.definitions import AsyncStep, Step, current
from actors.entities import Entities
from actors.info import checked
from actors.mailbox import Command, Envelope
from actors.options import Options
from domain.entity import Entity, topic_of
from domain.entity_state import command_name
from domain.errors import AskTimeoutError, BlockingCallError, OutsideTaskError, Rejected
from domain.values import decode, digest

E = TypeVar("E", bound=Entity)
P = ParamSpec("P")
R = TypeVar("R")

ASK_TIMEOUT = 30.0
"""Seconds that one waits for an answer, unless told otherwise."""


class EntityRef(Generic[E]):
    """An entity, by its class and id: the same from every process. Made by `system.entity` and `entity`.

    Guaranteed: a reply says that what the command has decided is in the log; commands of one process are done one by
    one, and between processes the log judges: who comes second decides again. With a key, a repeat gives the first
    reply. A query sees what was in the log when it was answered. Not guaranteed: without a key, that a command which
    was not answered was not done.
    """

    def __init__(
        self, entities: Entities, cls: type[E], id: str, *, timeout: float | None = ASK_TIMEOUT, key: str = ""
    ) -> None:
        self._entities = entities
        self._cls = cls
        self._timeout = timeout
        self._key = key
        self.id = id

    def __repr__(self) -> str:
        return f"EntityRef({self._cls.__qualname__}, {self.id!r})"

    def with_key(self, key: str) -> EntityRef[E]:
        """Give this entity to be asked one command with a key, of 1 to 200 characters: a repeat gives the first reply.

        Not inside an agent, where each ask has a key of its own.
        """
        if not 0 < len(key) <= 200:
            raise ValueError(f"a key has 1 to 200 characters, not {key!r:.250}")
        return EntityRef(self._entities, self._cls, self.id, timeout=self._timeout, key=key)

    def with_timeout(self, timeout: float | None) -> EntityRef[E]:
        """Give this entity with other patience: seconds, or None for ever."""
        return EntityRef(self._entities, self._cls, self.id, timeout=timeout, key=self._key)

    def ask(self, command: Callable[Concatenate[E, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do a command, such as `Budget.spend`, and give its reply, once its events are in the log.

        Inside an agent, between its steps, it is a step: recorded, never done twice, and a `Rejected` arrives as
        itself; in the body of a step, and anywhere else, it is a plain call.

        Raises Rejected where the answer is no; EntityCrashError where the command ended in any other error, and nothing
        of it is stored (a StepError, inside an agent); AskTimeoutError; UnstorableValueError; KeyConflictError;
        UnreadableEntityError; SystemClosedError; the store's errors.
        """
        name = command_name(self._cls, command)
        if self._is_in_agent():
            step: Step[Any, Any] = Step(self._step_body, (f"{topic_of(self._cls)}.{name}",), _options())
            return cast("R", step(self.id, name, list(args), kwargs))
        if asyncio_task() is not None:
            raise BlockingCallError(f"ask() would block the event loop that runs here: await ask_async({name}, …)")
        return cast("R", self._ask(name, list(args), kwargs, self._key))

    async def ask_async(self, command: Callable[Concatenate[E, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do what `ask` does, without blocking the event loop; cancelled, it goes, and the command may yet be done."""
        name = command_name(self._cls, command)
        if self._is_in_agent():
            step: AsyncStep[Any, Any] = AsyncStep(self._async_step_body, (f"{topic_of(self._cls)}.{name}",), _options())
            return cast("R", await step(self.id, name, list(args), kwargs))
        envelope = self._sent(name, list(args), kwargs, self._key)
        assert envelope.job is not None  # noqa: S101  it is asked
        try:
            if not await AWAITING.wait(envelope.job, self._timeout):
                self._too_late(name, envelope, self._timeout)
        except BaseException:
            envelope.give_up()
            raise
        return cast("R", decode(envelope.job.result(0)))

    def tell(self, command: Callable[Concatenate[E, P], Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Put a command into the entity's mailbox, and wait for nothing. An answer that is no reply is logged.

        Not guaranteed: that it is done; until its events are in the log it is in memory only. Raises InsideTaskError
        inside an agent, UnstorableValueError, SystemClosedError.
        """
        refuse_inside_agent("tell()", "ask, which is a step")
        self._sent(command_name(self._cls, command), list(args), kwargs, self._key, asked=False)

    def _is_in_agent(self) -> bool:
        """Tell whether an ask here is a step. Raises OutsideTaskError where it would have to be, and cannot."""
        if running_body.get() is not None or current.get() is None:
            return False
        if self._key and context() is not None:
            raise OutsideTaskError("inside an agent each ask has a key of its own: leave out with_key(…)")
        return True

    def _sent(
        self, name: str, args: list[Any], kwargs: dict[str, Any], key: str, *, asked: bool = True
    ) -> Envelope:  # fmt: skip
        arguments = checked([args, kwargs], self._entities.value_limit)
        envelope = Envelope(Command(name, arguments, key, digest(arguments) if key else ""), asked=asked)
        self._entities.send(self._cls, self.id, envelope)
        return envelope

    def _ask(self, name: str, args: list[Any], kwargs: dict[str, Any], key: str) -> Any:
        envelope = self._sent(name, args, kwargs, key)
        assert envelope.job is not None  # noqa: S101  it is asked
        if not envelope.job.done.wait(self._timeout):
            self._too_late(name, envelope, self._timeout)
        return decode(envelope.job.result(0))

    def _too_late(self, name: str, envelope: Envelope, timeout: float | None) -> NoReturn:
        what = "has not begun, and will not be done" if envelope.give_up() else "has begun, and may yet be done"
        raise AskTimeoutError(f"{topic_of(self._cls)} {self.id} did not answer {name} within {timeout:g} s: it {what}")

    def _step_body(self, entity: str, command: str, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002
        return EntityRef(self._entities, self._cls, self.id, timeout=None)._ask(command, args, kwargs, _key())

    async def _async_step_body(self, entity: str, command: str, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002
        envelope = self._sent(command, args, kwargs, _key())
        assert envelope.job is not None  # noqa: S101  it is asked
        await AWAITING.wait(envelope.job, None)
        return decode(envelope.job.result(0))


def _key() -> str:
    body = running_body.get()
    assert body is not None  # noqa: S101  it is the body of a step
    return body.info.idempotency_key


def _options() -> Options:
    """Give the options of a step that asks: its key makes it safe to repeat, and a no arrives as itself."""
    return Options(idempotent=True, label="{entity}", raises=(Rejected, *_kinds_of_no(Rejected)))


def _kinds_of_no(kind: type[Rejected]) -> list[type[Rejected]]:
    return [one for sub in kind.__subclasses__() for one in (sub, *_kinds_of_no(sub))]


def entity(cls: type[E], id: str, /) -> EntityRef[E]:
    """Give an entity inside an agent, or inside the body of a step: `entity(Budget, "team-7").ask(Budget.spend, 20)`.

    Elsewhere it is `system.entity(…)`. Raises OutsideTaskError where no task runs, ValueError for a bad id.
    """
    body, caller = running_body.get(), context()
    activation: Any = body.activation if body is not None else getattr(caller, "activation", None)
    if activation is None:
        raise OutsideTaskError("entity() was called where no task runs: ask system.entity(…)")
    return EntityRef(activation.runtime.entities, cls, checked_entity_id(id), timeout=ASK_TIMEOUT)


def checked_entity_id(id: object) -> str:
    """Give the id back. Raises ValueError for one that no entity may have."""
    if not isinstance(id, str) or not 0 < len(id) <= 200 or not id.isprintable():
        raise ValueError(f"an entity's id has 1 to 200 printable characters, not {id!r:.250}")
    return id
