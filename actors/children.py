"""Children: tasks that an agent spawns, whose results it waits for, and which its end concerns."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar, TypeVarTuple, cast, get_args, overload

from actors.activation import GRACE, Activation
from actors.appender import Appender
from actors.body import running_body
from actors.colours import drive
from actors.context import Context
from actors.definitions import AnyAgent, Step
from actors.info import checked
from actors.options import Options
from actors.pausing import Awaited, caller_of, raise_if_timed_out, seconds_of
from actors.recorded import AnyCall
from actors.spawned import bound_arguments, checked_tags, unwrapped
from actors.waits import WaitCall, due_in
from domain.errors import ChildError, UnknownTaskError
from domain.events import CancelDelivered, ChildSpawned, Created, SignalReceived, TaskEvent, WaitEnded
from domain.faults import Fault
from domain.record import SPAWN, Call
from domain.task import AgentTask
from domain.waits import CHILD, Source, Wait, child_name

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

OnParentEnd = Literal["cancel", "wait", "abandon"]
"""What becomes of a child that has not ended when its parent does: it is called off; it is waited for; it goes on."""
LONGEST = 120
"""Characters up to which the id of a child begins with that of its parent."""


class ChildRef(Awaited, Generic[R]):
    """A child of the task that runs here, by its id: the same at each replay."""

    def __init__(self, id: str) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"ChildRef({self.id!r})"

    def result(self, *, timeout: float | timedelta | None = None) -> R:
        """Wait for what the child returns, in a sync agent, and give a fresh copy of it.

        `timeout`: seconds, or a timedelta; the child goes on then. Raises ChildError where it has failed or was
        cancelled, WaitTimeoutError, ValueError for what is no child of this task, and what `sleep` does.
        """
        caller = caller_of("ChildRef.result()")
        ended = caller.wait("ChildRef.result()", self._wait(caller, timeout), "child.result_async")
        return self._ended(*ended)

    async def result_async(self, *, timeout: float | timedelta | None = None) -> R:  # noqa: ASYNC109  as `result`
        """Do what `result` does, in an async agent."""
        caller = caller_of("ChildRef.result_async()")
        wait = self._wait(caller, timeout)
        return self._ended(*await caller.wait_async("ChildRef.result_async()", wait, "child.result"))

    def cancel(self, reason: str = "") -> None:
        """Call the child off, in a sync agent: a step, recorded. One that has ended is not changed.

        Raises StepError, and what a step does.
        """
        _cancel_step()(self.id, reason)

    async def cancel_async(self, reason: str = "") -> None:
        """Do what `cancel` does, in an async agent."""
        await _cancel_step().aio(self.id, reason)

    def __await__(self) -> Generator[Any, None, R]:
        """Wait for the result: `await child`."""
        return self.result_async().__await__()

    def source(self, activation: Activation) -> Source:
        if self.id not in activation.task.children:
            raise ValueError(f"{self.id} is no child of task {activation.task.id}: only its parent hears of its end")
        return Source(CHILD, child_name(self.id))

    def take(self, call: WaitCall, letter: SignalReceived | None) -> R:
        assert letter is not None  # noqa: S101  it is what has come
        facts = letter.value
        if facts["status"] == "completed":
            return cast("R", call.value(facts["value"]))
        fault = Fault.from_data(facts["error"]) if facts["status"] == "failed" else None
        why = str(fault) if fault is not None else facts["reason"]
        message = f"child {self.id} {'has failed' if fault is not None else 'was cancelled'}" + (
            f": {why}" if why else ""
        )
        raise ChildError(message, child=self.id, status=facts["status"], fault=fault)

    def _wait(self, caller: Context, timeout: float | timedelta | None) -> Wait:
        due = due_in(caller.activation, seconds_of("a timeout", timeout))
        return Wait(CHILD, self.id, (self.source(caller.activation),), due)

    def _ended(self, call: WaitCall, ended: WaitEnded) -> R:
        raise_if_timed_out(call, ended, f"child {self.id} has not ended")
        return self.take(call, call.letter(ended))


def _cancel_step() -> Step[[str, str], None]:
    return Step(_cancel, ("perdure.cancel_child",), Options(idempotent=True))


def _cancel(child: str, reason: str) -> None:
    body = running_body.get()
    assert body is not None  # noqa: S101  it is a step's
    cancel_child(body.activation, child, reason)


@overload
def spawn_child(
    agent: Callable[[*Ts], Coroutine[Any, Any, R]],
    /,
    *args: *Ts,
    on_parent_end: OnParentEnd = "cancel",
    tags: Mapping[str, str] | None = None,
) -> ChildRef[R]: ...
@overload
def spawn_child(
    agent: Callable[[*Ts], R],
    /,
    *args: *Ts,
    on_parent_end: OnParentEnd = "cancel",
    tags: Mapping[str, str] | None = None,
) -> ChildRef[R]: ...
def spawn_child(
    agent: Callable[[*Ts], Any],
    /,
    *args: *Ts,
    on_parent_end: OnParentEnd = "cancel",
    tags: Mapping[str, str] | None = None,
) -> ChildRef[Any]:
    """Make a task of an agent, as a child of the one that runs here, in a sync agent.

        pages = [spawn_child(read_page, url) for url in urls]
        texts = [page.result() for page in pages]

    The child and the record of it are made in one transaction: a restart finds the same children. Its id follows from
    the parent's and the place in the program. It is a task as any other, and may run in any process of the store.

    Args:
        agent, args, tags: as `AgentSystem.spawn` takes them.
        on_parent_end: what becomes of a child that has not ended when its parent is done, however that ends: "cancel"
            calls it off, "wait" lets the parent's ending wait for it, until the parent is called off then or its
            deadline passes, "abandon" leaves it alone. The parent's ending
            is in the log only when each child has what this says.

    Raises what `AgentSystem.spawn` does for its arguments; ValueError; and what `sleep` does.
    """
    caller = caller_of("spawn_child()")
    caller.check("spawn_child()", "", blocks=True, twin="spawn_child_async")
    return drive(_spawn(caller, agent, args, on_parent_end, tags))


@overload
async def spawn_child_async(
    agent: Callable[[*Ts], Coroutine[Any, Any, R]],
    /,
    *args: *Ts,
    on_parent_end: OnParentEnd = "cancel",
    tags: Mapping[str, str] | None = None,
) -> ChildRef[R]: ...
@overload
async def spawn_child_async(
    agent: Callable[[*Ts], R],
    /,
    *args: *Ts,
    on_parent_end: OnParentEnd = "cancel",
    tags: Mapping[str, str] | None = None,
) -> ChildRef[R]: ...
async def spawn_child_async(
    agent: Callable[[*Ts], Any],
    /,
    *args: *Ts,
    on_parent_end: OnParentEnd = "cancel",
    tags: Mapping[str, str] | None = None,
) -> ChildRef[Any]:
    """Do what `spawn_child` does, in an async agent."""
    caller = caller_of("spawn_child_async()")
    await caller.give_way()
    caller.check("spawn_child_async()", "", blocks=False, twin="spawn_child")
    return await _spawn(caller, agent, args, on_parent_end, tags)


async def _spawn(
    caller: Context, agent: Any, args: tuple[Any, ...], policy: OnParentEnd, tags: Mapping[str, str] | None
) -> ChildRef[Any]:
    if policy not in get_args(OnParentEnd):
        raise ValueError(f"on_parent_end is one of {', '.join(get_args(OnParentEnd))}, not {policy!r}")
    definition, positional, named = unwrapped(agent, args)
    arguments = checked(bound_arguments(definition, positional, named), caller.activation.runtime.value_limit)
    labels = checked_tags(tags or {})
    call = AnyCall(caller, Call(caller.next_place().path, SPAWN, definition.name))
    record = caller.look_up(call, definition.names)
    if record is None:
        call.may_go_on()
        await _append(call, definition, arguments, labels, policy)
        record = caller.activation.task.steps[call.path]
    if isinstance(record.outcome, CancelDelivered):
        call.raise_cancelled()
    assert isinstance(record.outcome, ChildSpawned)  # noqa: S101  a position of that kind has no other
    caller.activation.hints.adopt(record.outcome.child)
    return ChildRef(record.outcome.child)


async def _append(call: AnyCall, agent: AnyAgent, arguments: Any, tags: Any, policy: str) -> None:
    activation, log = call.activation, call.activation.appender.log
    number, cancels, task = activation.number, not call.cleans_up, activation.task
    child = child_id(task, call.path)
    options = {"parent_birth": task.birth}
    created = Created(child, 1, log.now(), secrets.token_hex(8), agent.name, arguments, task.id, tags, options)
    births = [log.birth(created)]
    await call.append(
        lambda task, now: task.begin(number, now, call.call, ChildSpawned, child, policy, cancels=cancels),
        births=births,
    )


def cancel_child(activation: Activation, child: str, reason: str) -> None:
    """Call a child off, once; one that has ended, or was deleted, is left alone. Raises the store's errors.

    So is one that was called off before, or that owes something and is held for a person: another word would end it
    with its undos undone. Only a person's may, who is told so.
    """

    def decide(task: AgentTask, now: float) -> list[TaskEvent]:
        if task.cancel is not None or (task.concluded is not None and task.held is not None):
            return []
        return task.request_cancel(now, reason, by, GRACE)

    log, by, patience = activation.appender.log, f"task {activation.task.id}", activation.appender.patience
    with suppress(UnknownTaskError):
        appender = Appender(log, log.load(child, patience), patience)
        if appender.append(decide):
            activation.hints.ring(child)


def child_id(parent: AgentTask, path: str) -> str:
    """Give the id of the child that is spawned at a place of a task."""
    readable = f"{parent.id}/{path}-{parent.birth[:6]}"
    if len(readable) <= LONGEST:
        return readable
    digest = hashlib.sha256(f"{parent.id}\0{parent.birth}\0{path}".encode()).hexdigest()
    return f"{parent.agent[:40]}-{digest[:24]}"
