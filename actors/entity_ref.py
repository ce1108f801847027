"""`EntityRef`: an entity by its id, and how it is asked; inside an agent, as a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from actors.body import Body, running_body, was_cancelled
from actors.colours import AWAITING, BLOCKING, Colour, asyncio_task, drive
from actors.context import context, refuse_inside_agent, refuse_on_loop
from actors.definitions import AsyncStep, Step, current
from actors.entities import Entities
from actors.entity_actor import refuse_inside_entity
from actors.info import checked
from actors.mailbox import Command, Envelope
from actors.options import Options
from domain.entity import Entity, topic_of
from domain.entity_state import called
from domain.errors import (
    AskTimeoutError,
    BlockingCallError,
    EntityStoppedError,
    GivenUp,
    InsideTaskError,
    OutsideTaskError,
    Rejected,
    SystemClosedError,
)
from domain.retry import MOST_SECONDS, RetryPolicy
from domain.values import decode, digest
from stores import StoreError

E = TypeVar("E", bound=Entity)
P = ParamSpec("P")
R = TypeVar("R")

ASK_TIMEOUT = 30.0
"""Seconds that one waits for an answer, unless told otherwise."""
STOPPED = RetryPolicy(retries=10, backoff=0.5, retry_on=EntityStoppedError)
"""How often an agent asks again where nothing was done, as the machine had no thread left for the entity."""


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
        if timeout is not None and not (type(timeout) in (int, float) and 0 <= timeout <= MOST_SECONDS):
            raise ValueError(
                f"a timeout is a number of seconds from 0 to {MOST_SECONDS:g}, or None, not {timeout!r:.40}"
            )
        self._topic = topic_of(cls)
        self._entities = entities
        self._cls = cls
        self._timeout = timeout
        self._key = key
        self._of_an_agent = False
        self.id = id

    def __repr__(self) -> str:
        return f"EntityRef({self._cls.__qualname__}, {self.id!r})"

    def with_key(self, key: str) -> EntityRef[E]:
        """Give this entity to be asked one command with a key, of 1 to 200 characters: a repeat gives the first reply.

        A `Rejected` is no event, and is not kept: a repeat is judged anew. Not inside an agent, where each ask has a
        key of its own.
        """
        if type(key) is not str or not 0 < len(key) <= 200:
            raise ValueError(f"a key has 1 to 200 characters, not {key!r:.250}")
        return self._but(timeout=self._timeout, key=key)

    def with_timeout(self, timeout: float | None) -> EntityRef[E]:
        """Give this entity with other patience: seconds, or None for ever."""
        return self._but(timeout=timeout, key=self._key)

    def _but(self, *, timeout: float | None, key: str) -> EntityRef[E]:
        other = EntityRef(self._entities, self._cls, self.id, timeout=timeout, key=key)
        other._of_an_agent = self._of_an_agent
        return other

    def ask(self, command: Callable[Concatenate[E, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do a command, such as `Budget.spend`, and give its reply, once its events are in the log.

        Inside an agent, between its steps, it is a step: recorded, never done twice, waited for without a limit, and a
        `Rejected` arrives as itself; in the body of a step, and anywhere else, it is a plain call.

        Raises Rejected where the answer is no; EntityCrashError where the command ended in another error (a StepError,
        inside an agent): nothing of it is stored, and the entity's next commands wait for a pause that grows with each
        crash in a row, from 0.1 s to a minute; AskTimeoutError; TypeError for what is no command, or other arguments
        than it takes; UnstorableValueError; KeyConflictError; UnreadableEntityError; EntityStoppedError;
        InsideTaskError in an entity's own code; SystemClosedError; the store's errors.
        """
        asked = called(self._cls, command, args, kwargs)
        if self._is_in_agent():
            if (here := context()) is not None and here.colour.awaits:
                raise BlockingCallError(
                    f"ask() would block the event loop of async agents: await ask_async({asked[0]}, …)"
                )
            step: Step[Any, Any] = Step(self._step_body, (f"{self._topic}.{asked[0]}",), _options())
            return cast("R", step(self.id, *asked))
        if asyncio_task() is not None:
            raise BlockingCallError(f"ask() would block the event loop that runs here: await ask_async({asked[0]}, …)")
        return cast("R", drive(self._answer(BLOCKING, self._sent(*asked, key=self._key))))

    async def ask_async(self, command: Callable[Concatenate[E, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do what `ask` does, without blocking the event loop; cancelled, it goes, and the command may yet be done.

        Inside an agent, a cancellation waits for the answer to a command that has begun: it belongs into the log.
        """
        asked = called(self._cls, command, args, kwargs)
        if self._is_in_agent():
            if (here := context()) is not None and not here.colour.awaits:
                raise OutsideTaskError(f"ask_async() was awaited in sync code of a task: call ask({asked[0]}, …)")
            step: AsyncStep[Any, Any] = AsyncStep(self._async_step_body, (f"{self._topic}.{asked[0]}",), _options())
            return cast("R", await step(self.id, *asked))
        return cast("R", await self._answer(AWAITING, self._sent(*asked, key=self._key)))

    def tell(self, command: Callable[Concatenate[E, P], Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Put a command into the entity's mailbox, and wait for nothing. An answer that is no reply is logged.

        Not guaranteed: that it is done; until its events are in the log it is in memory only. Raises InsideTaskError
        inside an agent, and what `ask` raises before the command is sent.
        """
        if self._is_in_agent():
            raise InsideTaskError("tell() inside an agent would happen again at each replay: ask, which is a step")
        self._sent(*called(self._cls, command, args, kwargs), key=self._key, asked=False)

    def delete(self) -> bool:
        """Delete the entity: its log, its row, the replies that are kept for keys. Tells whether there was anything.

        It is new then, as one of any other id is. It is one transaction, and a command comes before it or after it: one
        that is decided and not yet stored is decided again, by the new entity. So is one that is repeated with its key.

        Not guaranteed: that its text stands in the database's file nowhere any more; see `AgentSystem.vacuum`. What it
        has replied to tasks stays in their logs. Another process that has it in memory keeps it there until its next
        command, which meets the new one, or until it leaves memory.

        Raises InsideTaskError in an agent between its steps, and in an entity's own code; BlockingCallError;
        UnreadableEntityError where the index has lost its row; SystemClosedError; the store's errors.
        """
        refuse_inside_agent("delete()", "call it in a step")
        refuse_on_loop("delete()", "await delete_async()")
        return self._entities.delete(self._cls, self.id)

    async def delete_async(self) -> bool:
        """Do what `delete` does, without blocking the event loop."""
        refuse_inside_agent("delete_async()", "call it in a step")
        return await self._entities.commits.call(self.delete)

    # ------------------------------------------------------------------ asking

    def _is_in_agent(self) -> bool:
        """Tell whether an ask here is a step, or would have to be and cannot, which the step says."""
        if running_body.get() is not None:
            return False
        if current.get() is None and self._of_an_agent:
            raise OutsideTaskError(
                f"{self!r} of an agent was asked on a thread of the agent's own, where no replay could follow: use"
                " gather(…), or ask in a step"
            )
        if current.get() is None:
            return False
        if self._key and context() is not None:
            raise InsideTaskError("inside an agent each ask has a key of its own: leave out with_key(…)")
        return True

    def _sent(self, name: str, args: list[Any], kwargs: dict[str, Any], *, key: str, asked: bool = True) -> Envelope:
        """Send a command. Raises what keeps it from being sent: then nothing is done."""
        whose = f"{self._topic} {self.id}"
        refuse_inside_entity(f"asking {whose}")
        arguments = checked([args, kwargs], self._entities.value_limit)
        envelope = Envelope(Command(name, arguments, key, digest(arguments) if key else ""), whose, asked=asked)
        self._entities.send(self._cls, self.id, envelope)
        return envelope

    async def _answer(self, colour: Colour, envelope: Envelope) -> Any:
        """Wait for an answer, and give it."""
        assert envelope.job is not None  # noqa: S101  it is asked
        with envelope.awaited():
            answered = await colour.wait(envelope.job, self._timeout)
        fate = "answered" if answered else envelope.give_up()
        if fate != "answered":
            what = "has not begun, and is never done" if fate == "never done" else "has begun, and may yet be done"
            raise AskTimeoutError(f"{envelope} was not answered within {self._timeout:g} s: it {what}")
        return decode(envelope.job.result())

    def _step_body(self, entity: str, command: str, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002
        return drive(self._reply(BLOCKING, command, args, kwargs))

    async def _async_step_body(self, entity: str, command: str, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002
        return await self._reply(AWAITING, command, args, kwargs)

    async def _reply(self, colour: Colour, command: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Ask for a step, under its key. Where the worker has given all up, nothing is known: that is a doubt."""
        body = cast("Body", running_body.get())
        over = body.activation.hints.over
        try:
            envelope = self._sent(command, args, kwargs, key=body.info.idempotency_key)
            assert envelope.job is not None  # noqa: S101  it is asked
            while not envelope.job.done.is_set():
                try:
                    await colour.wait(envelope.job, None)
                except BaseException as error:
                    if over.is_set() or not was_cancelled(error) or envelope.withdraw():
                        envelope.give_up()
                        raise
            return decode(envelope.job.result())
        except (StoreError, SystemClosedError) as error:
            if over.is_set():
                raise GivenUp(f"{command} of {self._topic} {self.id}: its worker was stopped: {error}") from error
            raise


def _options() -> Options:
    """Give the options of a step that asks: its key makes it safe to repeat, and a no arrives as itself."""
    return Options(retry=STOPPED, idempotent=True, raises=(Rejected, *_kinds_of_no(Rejected)))


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
    ref = EntityRef(activation.runtime.entities, cls, checked_entity_id(id), timeout=ASK_TIMEOUT)
    ref._of_an_agent = body is None
    return ref


def checked_entity_id(id: object, what: str = "an entity's id") -> str:
    """Give the id back. Raises ValueError for one that no entity, or `what` it is for, may have."""
    if not isinstance(id, str) or not 0 < len(id) <= 200 or not id.isprintable():
        raise ValueError(f"{what} has 1 to 200 printable characters, not {id!r:.250}")
    return id
