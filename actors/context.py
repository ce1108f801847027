"""What running agent code calls: the live run is the replay.

An activation walks its agent's code from the top. Each step takes the next position of its scope; the log's word for
that position is given back as a fresh copy, and only where the log has none does a body run, between the record of
its start and of its outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from actors.activation import Activation
from actors.body import from_users_code, running_body
from actors.call import StepCall
from actors.colours import asyncio_task, drive
from actors.definitions import AnyAgent, AnyStep, current
from actors.entity_actor import refuse_inside_entity
from actors.info import StepInfo, TaskInfo
from actors.raised import FAILS, step_error_of
from actors.recorded import AnyCall
from actors.scope import Scope
from actors.threads import NoThreadError
from actors.waits import WaitCall
from domain.errors import BlockingCallError, InsideTaskError, OutsideTaskError, TaskCancelled
from domain.events import StepSucceeded, WaitEnded
from domain.journal import (
    Differs,
    Place,
    arguments_changed,
    is_replay,
    look_up,
    look_up_patch,
    look_up_scope,
)
from domain.record import NOW, PATCH, UNDO, Call, StepRecord
from domain.waits import Wait

if TYPE_CHECKING:
    from actors.threads import Job

logger = logging.getLogger("perdure")

R = TypeVar("R")


@dataclass(frozen=True)
class Outcome:
    """How an agent's function left: `value`, or `error`; neither counts where the activation was closed."""

    value: Any = None
    error: BaseException | None = None


def step_info() -> StepInfo:
    """Tell the running step about itself. Raises OutsideTaskError where no step's body runs."""
    body = running_body.get()
    if body is None:
        raise OutsideTaskError(
            "step_info() was called outside of the body of a step: only a step has a key and an attempt"
        )
    return body.info


def task_info() -> TaskInfo | None:
    """Tell agent code about its task; None where no task runs, and inside the body of a step."""
    here = context()
    if here is None:
        return None
    task = here.activation.task
    return TaskInfo(task.id, task.agent, here.activation.number, dict(task.tags), here)


def inside_task() -> bool:
    """Tell whether this code is that of an agent, between its steps, on whatever thread or asyncio task it runs.

    For bridges to frameworks, which make asyncio tasks of their own: there `task_info()` is None, since calls have no
    order; `with branch(key):` gives them a place. False outside of a task, and inside the body of a step. Not
    guaranteed: that the task still goes on; what has closed it is raised by the next call.
    """
    return running_body.get() is None and isinstance(current.get(), Context)


def context() -> Context | None:
    """Give the place in a program at which this code runs, between its steps; None elsewhere."""
    caller = current.get()
    if running_body.get() is not None or not isinstance(caller, Context) or not caller.is_here():
        return None
    return caller


def lend_place() -> AbstractContextManager[None]:
    """Lend the place of the task whose body runs here, if one does, while it waits for another task."""
    body = running_body.get()
    return nullcontext() if body is None else body.activation.hints.lend()


def refuse_inside_agent(what: str, instead: str) -> None:
    """Raise InsideTaskError between an agent's steps, and in an entity's own code: it would happen again there."""
    refuse_inside_entity(what)
    if context() is not None:
        raise InsideTaskError(f"{what} inside an agent would happen again at each replay: {instead}")


def refuse_on_loop(what: str, instead: str) -> None:
    """Raise BlockingCallError on an event loop on which the async body of a step runs: the call would block it."""
    if running_body.get() is not None and asyncio_task() is not None:
        raise BlockingCallError(f"{what} would block the event loop that runs this body: {instead}")


def refuse_on_any_loop(what: str, instead: str) -> None:
    """Raise BlockingCallError where an event loop runs on this thread, for a call that may block it for long."""
    if asyncio_task() is not None:
        raise BlockingCallError(f"{what} would block the event loop that runs here: {instead}")


def patched(name: str) -> bool:
    """Tell whether this task is to run the new code that you have put under `if patched(name):`.

    True in a task that has not come further than this place yet, and from then on at each replay of it; False in one
    whose log was written by the old code here. It takes a position, as a step does, only where it is true; its answer
    is in the log with the next append. The first answer holds: in a loop, a task that has begun with the old code
    goes on with it. When no task is left that began before the patch, drop the old code and leave the call.

    Raises OutsideTaskError where no task runs.
    """
    here = context()
    if here is None:
        raise OutsideTaskError(f"patched({name!r}) was called where no agent's code runs")
    return here.patched(name)


class Context(Scope):
    """A scope whose calls are those of an agent's code."""

    # ------------------------------------------------------------------ steps

    def call_step(self, step: AnyStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the step at the next position, and block until it is done."""
        self.check(f"step {step.name}", step.name, blocks=True, is_async=step.is_async)
        call, found = self._find(step, args, kwargs)
        if found is not None and found.outcome is not None:
            return call.hand_over(found)
        return drive(call.perform(found))

    async def call_step_async(self, step: AnyStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the step at the next position."""
        await self.give_way()
        self.check(f"step {step.name}", step.name, blocks=False, is_async=step.is_async)
        call, found = self._find(step, args, kwargs)
        if found is not None and found.outcome is not None:
            return call.hand_over(found)
        return await call.perform(found)

    def _find(self, step: AnyStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[StepCall, Any]:
        """Take the next position for a call, and look up what the log has there."""
        arguments = step.arguments(args, kwargs)
        place = self.next_place()
        call = StepCall(self, step, place, arguments, args, kwargs)
        found = look_up(self.activation.task, place, "step", step.names, call.call.digest)
        if isinstance(found, Differs):
            self.hold_for_code(found)
        if found is not None and arguments_changed(found, call.call.digest):
            logger.warning(
                "task %s: step %s %s has other arguments than when it was recorded; its recorded outcome stands",
                *(self.activation.task.id, place.path, step.name),
            )
        return call, found

    # ------------------------------------------------------------------ waits

    def wait(self, what: str, wait: Wait, twin: str = "") -> tuple[WaitCall, WaitEnded]:
        """Wait at the next position, and block until it is over. `twin` is what async code awaits instead."""
        self.check(what, "", blocks=True, twin=twin)
        call, found = self._find_wait(wait)
        return call, drive(call.perform(found))

    async def wait_async(self, what: str, wait: Wait, twin: str = "") -> tuple[WaitCall, WaitEnded]:
        """Wait at the next position. `twin` is what sync code calls instead."""
        await self.give_way()
        self.check(what, "", blocks=False, twin=twin)
        call, found = self._find_wait(wait)
        return call, await call.perform(found)

    def _find_wait(self, wait: Wait) -> tuple[WaitCall, StepRecord | None]:
        call = WaitCall(self, self.next_place(), wait)
        return call, self.look_up(call)

    def look_up(self, call: AnyCall, names: Collection[str] = ()) -> StepRecord | None:
        """Give what the log has at a call's place; where that is something else, the task is held."""
        place, kind = Place(call.path, self.beside), call.call.kind
        found = look_up(self.activation.task, place, kind, names or (call.call.name,), "")
        if isinstance(found, Differs):
            self.hold_for_code(found)
        return found

    # ------------------------------------------------------------------ agents

    def call_agent(self, agent: AnyAgent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an agent in a scope of its own, which takes one position of the caller's, and block until it returns."""
        if context() is None and not agent.is_async:
            return agent.fn(*args, **kwargs)
        self.check(f"agent {agent.name}", agent.name, blocks=True, is_async=agent.is_async)
        path = self._agent_path(agent)
        if agent.is_async:
            try:
                job: Job[Outcome] = self.activation.runtime.loop.start(
                    lambda: self._inside_async(path, agent, args, kwargs)
                )
            except NoThreadError as error:
                self.activation.wait_for_threads(error, here=True)
            return self._returned(job.result())
        return self._returned(self._inside(path, agent, args, kwargs))

    async def call_agent_async(self, agent: AnyAgent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an agent in a scope of its own, which takes one position of the caller's: of who awaits this."""
        here = context()
        if here is None and agent.is_async:
            return await agent.fn(*args, **kwargs)
        here = here or self
        await here.give_way()
        here.check(f"agent {agent.name}", agent.name, blocks=False, is_async=agent.is_async)
        path = here._agent_path(agent)
        if agent.is_async:
            return here._returned(await here._inside_async(path, agent, args, kwargs))
        threads = here.activation.runtime.threads
        try:
            outcome, cancelled = await here.colour.run(threads, here._inside, path, agent, args, kwargs)
        except NoThreadError as error:
            here.activation.wait_for_threads(error, here=False)
        if cancelled:
            logger.warning(
                "task %s: agent %s at %s was cancelled from outside; sync code cannot be, and no replay could follow:"
                " give its steps a limit by timeout= instead",
                *(here.activation.task.id, agent.name, path),
            )
        return here._returned(outcome)

    def _agent_path(self, agent: AnyAgent) -> str:
        place = self.next_place()
        if differs := look_up_scope(self.activation.task, place.path, f"a call of agent {agent.name}"):
            self.hold_for_code(differs)
        return place.path

    def _inside(self, path: str, agent: AnyAgent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        return self.inner(path).run(lambda: agent.fn(*args, **kwargs), self)

    async def _inside_async(self, path: str, agent: AnyAgent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        return await self.inner(path).run_async(lambda: agent.fn(*args, **kwargs), self)

    def _returned(self, outcome: Outcome) -> Any:
        self.activation.check()
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    # ------------------------------------------------------------------ running

    def run(self, code: Callable[[], Any], outer: Scope | None = None) -> Outcome:
        """Run the code of this scope on this line of execution, and tell how it left."""
        token = current.set(self)
        try:
            outcome = Outcome(code())
        except BaseException as error:
            outcome = Outcome(error=from_users_code(from_users_code(error)))
        finally:
            current.reset(token)
        self.left(outcome, outer)
        return outcome

    async def run_async(self, code: Callable[[], Any], outer: Scope | None = None) -> Outcome:
        """Run the async code of this scope on this line of execution, and tell how it left."""
        token = current.set(self)
        try:
            outcome = Outcome(await code())
        except BaseException as error:
            outcome = Outcome(error=from_users_code(error))
        finally:
            current.reset(token)
        self.left(outcome, outer)
        return outcome

    def left(self, outcome: Outcome, outer: Scope | None) -> None:
        """End this scope. A crash is no difference, unless the code around it goes on after it."""
        if outer is not None:
            outer.cancelled = outer.cancelled or self.cancelled
        if self.activation.closed is not None:
            return
        if outcome.error is None or self._is_an_ending(outcome.error):
            with suppress(BaseException):  # it has closed the activation, which is looked at
                self.end()
        if outcome.error is not None and outer is not None:
            self.leave_by(outer)

    def _is_an_ending(self, error: BaseException) -> bool:
        ends = issubclass(type(error), (*FAILS, TaskCancelled))
        return ends or step_error_of(error, self.activation.declared) is not None

    # ------------------------------------------------------------------ the same in every run

    @property
    def is_replaying(self) -> bool:
        """Whether the log goes on from here."""
        return is_replay(self.activation.task, self.next_position)

    def now(self) -> float:
        """Give the time at which this place was first reached; it rides in the next append."""
        place = self.next_place()
        found = look_up(self.activation.task, place, NOW, (NOW,), "")
        if isinstance(found, Differs):
            self.hold_for_code(found)
        if found is not None and isinstance(found.outcome, StepSucceeded):
            return float(found.outcome.value)
        now = self.activation.runtime.clock.now()
        self._ride(place, NOW, NOW, now)
        return now

    def patched(self, name: str) -> bool:
        """Tell whether new code is to run here; see `patched`."""
        activation = self.activation
        answer = look_up_patch(activation.task, self.next_position, name)
        if answer is None:
            answer = activation.patches.get(name, True)
            if answer:
                self._ride(self.next_place(), PATCH, name, True)
        elif answer:
            self.next_place()
        activation.patches.setdefault(name, answer)
        return answer

    def register_undo(self, name: str, arguments: Any) -> None:
        """Take note of an undo; it rides in the next append."""
        place = self.next_place()
        found = look_up(self.activation.task, place, UNDO, (name,), "")
        if isinstance(found, Differs):
            self.hold_for_code(found)
        if found is None:
            self._ride(place, UNDO, name, arguments)

    def _ride(self, place: Place, kind: str, name: str, value: Any) -> None:
        number, call = self.activation.number, Call(place.path, kind, name)
        if not self.activation.probe:
            self.activation.appender.ride(lambda task, now: task.finish_step(number, now, call, 1, value=value))


def run_agent(activation: Activation, agent: AnyAgent, args: list[Any], kwargs: dict[str, Any]) -> Outcome:
    """Call an agent from the top, on this thread or on the shared loop, and tell how it left.

    Where the activation was closed, that decides, and not what the function did about it.
    """
    if not agent.is_async:
        return Context(activation).run(lambda: agent.fn(*args, **kwargs))

    async def run() -> Outcome:
        return await Context(activation).run_async(lambda: agent.fn(*args, **kwargs))

    job = activation.runtime.loop.start(run)
    activation.cancel = job.cancel
    try:
        return job.result()
    except BaseException as error:  # the loop was closed under it
        return Outcome(error=error)
