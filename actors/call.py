"""One call of a step: hand over what the log has, settle a doubt, or run attempts, each between its two records.

Written once for sync and async code: a coroutine that never suspends in the first (`colours.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

from actors.activation import LOOK_AGAIN
from actors.body import NO_LIMITS, Body, Ended, forget_heartbeat, last_heartbeat, limits_of, was_cancelled
from actors.colours import asyncio_task
from actors.hints import StopAsked
from actors.info import Doubt, Happened, NotHappened, StepInfo, Unknown, checked
from actors.raised import asked_wait, to_data
from actors.recorded import RecordedCall
from actors.reserving import NothingLeft, reservation
from actors.threads import Job, NoThreadError
from domain.errors import GivenUp, StepTimeoutError, SystemClosedError, UnstorableValueError
from domain.events import TaskEvent
from domain.faults import Fault
from domain.record import StepRecord
from domain.state import SPENT, idempotency_key
from domain.task import AgentTask
from domain.values import loads
from stores.emissions import RESET, Emission


class StepCall(RecordedCall):
    """One call of a step, at its place."""

    __slots__ = ()

    async def perform(self, record: StepRecord | None) -> Any:
        """Go on with this call where the log ends: run it, hand it over, wait for its retry, settle a doubt."""
        if record is not None and record.outcome is not None:
            return self.hand_over(record)
        if self.cancels and not self.activation.probe:
            await self._deliver()
            return self.hand_over(self.activation.task.steps[self.path])
        if record is None:
            return await self._run("")
        if record.retry_at is not None:
            return await self._retry()
        if record.settled is not None:
            return await self._run(f"rerun by {record.settled.by}")
        return await self._settle(record)

    # ------------------------------------------------------------------ attempts

    async def _run(self, doubt: str) -> Any:
        """Make attempts until one has a value, or there is to be no further one, and hand that over."""
        await self._attempt(doubt)
        return await self._retry()

    async def _retry(self) -> Any:
        """Wait for the next attempt and make it, as long as there is to be one; hand over what came of it."""
        task = self.activation.task
        while (due := task.steps[self.path].retry_at) is not None:
            if self.cancels:
                await self._deliver()
            elif await self._wait(due):
                await self._cancelled(task.steps[self.path].attempt)
            else:
                await self._attempt("")
        return self.hand_over(task.steps[self.path])

    async def _attempt(self, doubt: str) -> None:
        """Make the next attempt, within what is left of its limits."""
        activation = self.activation
        waited = await self._await_lease(self.may_go_on)
        self.may_go_on()
        record = activation.task.steps.get(self.path)
        attempt = 1 if record is None else record.attempt + 1
        limits = limits_of(self.settings, None if record is None else record.began, activation.runtime.clock.now())
        last, cancelled = await self._last_heartbeat() if self._was_entered(attempt) else (None, False)
        cancelled = cancelled or waited
        detail = None if last is None else self._decoded(loads(last), "the last heartbeat")
        body = Body(activation, self._info(attempt, detail), limits or NO_LIMITS, cleans_up=self.cleans_up)
        if limits is None:
            await self._fail(attempt - 1, StepTimeoutError(self._over_all()), retry=False)
        else:
            await self._run_body(body, doubt, cancelled)
        if last is not None or body.has_beaten:
            await self.run_blocking(self._after_heartbeats, body)

    async def _run_body(self, body: Body, doubt: str, cancelled: bool) -> None:
        """Run a body between its two records: its start is in the log before, its end before anyone sees it."""
        activation, attempt, step = self.activation, body.info.attempt, self.step
        activation.enter_body(body, self.path)  # before its start is in the log: who closes now waits for its end
        try:
            if await self._start(doubt) or cancelled or await self._cancellation_waits():
                await self._cancelled(attempt)
            elif not self._was_delivered():
                self._forget_emissions(attempt)
                ended = await self._enter("body", body, step.fn, self.args, self.kwargs, is_async=step.is_async)
                if self._is_cut_short(ended):
                    activation.leave_body(body)
                    self._leave_in_doubt(body)
                await self._record(body, ended)
        except NothingLeft as spent:
            activation.leave_body(body)
            activation.hold(SPENT, self.path, spent.details, here=not self.colour.awaits)
        except StopAsked as asked:
            activation.leave_body(body)
            activation.stop(here=not self.colour.awaits, cut_off=asked.args)
        except NoThreadError as error:
            activation.leave_body(body)
            activation.wait_for_threads(error, here=not self.colour.awaits)
        finally:
            activation.leave_body(body)

    async def _start(self, doubt: str) -> bool:
        """Record that an attempt starts; tells whether it was cancelled meanwhile. Raises StopAsked."""
        if self.settings.idempotent:
            if self.cancels:
                await self._deliver()
            return False
        activation, label = self.activation, self.step.label(self.arguments)
        return await self.append(
            lambda task, now: task.start_step(
                *(activation.number, now, self.call, label, doubt),
                cancels=not self.cleans_up,
                reserved=reservation(self.settings.reserve, task, activation.runtime.value_limit),
            ),
            activation.unless_stopped,
        )

    async def _deliver(self, body: Body | None = None) -> None:
        """Let this call come to the cancellation of its task; a body that ran is in doubt, and its undos are owed."""
        number, undos = self.activation.number, body.undos if body is not None else []
        await self.append(lambda task, now: task.deliver_cancel(number, now, self.call, undos))

    def _was_delivered(self) -> bool:
        task = self.activation.task
        record = None if task.cancel is None else task.steps.get(self.path)
        return record is not None and record.outcome is not None

    async def _cancellation_waits(self) -> bool:
        """Tell whether a cancellation from outside waits for the next await: no body begins under it."""
        cancelling = getattr(asyncio_task(), "cancelling", None) if self.colour.awaits else None
        if cancelling is None or not cancelling():
            return False
        import asyncio  # noqa: PLC0415  a loop runs, so it is there

        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return True
        return False

    async def _record(self, body: Body, ended: Ended) -> None:
        """Record how an attempt ended."""
        attempt = body.info.attempt
        if self.cancels and (ended.given_up or ended.cancelled or issubclass(type(ended.error), GivenUp)):
            await self._deliver(body)
        elif ended.given_up:
            await self._after_giving_up(body, ended)
        elif issubclass(type(ended.error), GivenUp) and self.activation.hints.over.is_set():
            self._leave_in_doubt(body)
        elif ended.cancelled:
            await self._cancelled(attempt, body)
        elif ended.error is not None:
            await self._fail(attempt, ended.error)
        else:
            try:
                encoded = checked(ended.value, self.activation.runtime.value_limit)
            except UnstorableValueError as error:
                error.args = (f"what it returned cannot be stored: {error}",)
                await self._fail(attempt, error, retry=False)
            else:
                await self._succeed(attempt, encoded, "", body.undos)

    async def _succeed(self, attempt: int, encoded: Any, source: str, undos: Sequence[tuple[str, Any]] = ()) -> None:
        number, finish = self.activation.number, {"value": encoded, "source": source, "undos": undos}
        await self.append(lambda task, now: task.finish_step(number, now, self.call, attempt, **finish))
        self.activation.after_outcome()

    async def _fail(self, attempt: int, error: BaseException, *, retry: bool = True) -> None:
        """Record an attempt that ended in an error, and when the next one is due, if any is."""
        policy, total, number = self.settings.retry, self.settings.total_timeout, self.activation.number
        again, jitter = retry and policy.wants(error), random.uniform(-1, 1)
        data, at_least = to_data(error, self.settings.raises, self.activation.runtime.value_limit), asked_wait(error)

        def decide(task: AgentTask, now: float) -> list[TaskEvent]:
            record, due = task.steps.get(self.path), None
            if again:
                failures = 1 if record is None else len(record.failures) + 1
                until = None if total is None else total + (now if record is None else record.began)
                due = policy.next_attempt(failures, now, jitter=jitter, until=until, at_least=at_least)
            return task.finish_step(number, now, self.call, max(attempt, 1), error=data, retry_at=due)

        await self.append(decide)
        self.activation.after_outcome()

    async def _wait(self, due: float) -> bool:
        """Wait until the next attempt is due; where all of the task waits, it is unwound meanwhile.

        Tells whether a cancellation from outside came first.
        """
        activation = self.activation
        if activation.probe or activation.closed is not None:
            activation.stop(here=not self.colour.awaits)
        self._reach("retry.wait", None)
        try:
            return await self.wait_in_place(lambda: due - activation.clock.now(), lambda: self.cancels)
        except NoThreadError:
            activation.suspend(due, here=not self.colour.awaits)

    async def _after_giving_up(self, body: Body, ended: Ended) -> None:
        """Settle the doubt about a body that was given up; where it may be run again, that was a failed attempt."""
        attempt, number, undos = body.info.attempt, self.activation.number, list(body.undos)
        self._reach("body.given up", None)
        if undos:
            named = [(self.path, *undo) for undo in undos]
            await self.append(lambda task, now: task.register_undos(number, now, named))
        if self.activation.hints.over.is_set():
            self._leave_in_doubt(body)
        record = self.activation.task.steps.get(self.path)
        if self.settings.on_doubt == "hold":
            self._hold_in_doubt(ended.given_up)
        if callable(self.settings.on_doubt) and record is not None and await self._ask(record):
            return
        if ended.cancelled:
            await self._cancelled(attempt)
        else:
            await self._fail(attempt, StepTimeoutError(ended.given_up))

    async def _cancelled(self, attempt: int, body: Body | None = None) -> None:
        """Record that a cancellation from outside has reached this step: no replay could follow it."""
        import asyncio  # noqa: PLC0415  who was cancelled has it

        if self.activation.hints.over.is_set():
            self._leave_in_doubt(body)
        message = (
            f"step {self.path} {self.step.name} was cancelled from outside (asyncio.timeout or wait_for around it, or a"
            " cancelled task), at a moment that no replay could find again: give the step a limit by timeout= instead"
        )
        await self._fail(attempt, asyncio.CancelledError(message), retry=False)

    def _over_all(self) -> str:
        total = self.settings.total_timeout
        return f"the limit over all its attempts, {total:g} s, has passed; the last one may have happened"

    # ------------------------------------------------------------------ doubt

    async def _settle(self, record: StepRecord) -> Any:
        on_doubt = self.settings.on_doubt
        if on_doubt == "rerun":
            return await self._run("rerun")
        self.may_go_on()
        if on_doubt == "hold":
            self._hold_in_doubt("")
        if await self._ask(record):
            return self.hand_over(self.activation.task.steps[self.path])
        return await self._run("not happened")

    async def _ask(self, record: StepRecord) -> bool:
        """Ask `on_doubt`, and tell whether it happened, which is in the log then; where nobody can tell, hold."""
        ask = cast("Callable[..., Any]", self.settings.on_doubt)
        ended, undos = await self._enter_doubt(record, ask)
        if self._is_cut_short(ended):
            self.activation.stop(here=not self.colour.awaits)
        answer, why = ended.value, ""
        name = getattr(ask, "__name__", "on_doubt")
        if isinstance(answer, NotHappened):
            return False
        if isinstance(answer, Happened):
            try:
                encoded = checked(answer.value, self.activation.runtime.value_limit)
                await self._succeed(record.attempt, encoded, "on_doubt", undos)
            except UnstorableValueError as error:
                why = f"{name} could not tell: {Fault.of(error)}"
            else:
                return True
        elif ended.error is not None:
            why = f"{name} could not tell: {Fault.of(ended.error)}"
        elif isinstance(answer, Unknown):
            why = f"{name} does not know" + (f": {answer.why}" if answer.why else "")
        else:
            why = f"{name} answered {type(answer).__name__}, not one of Happened, NotHappened, Unknown"
        return self._hold_in_doubt(why)

    async def _enter_doubt(
        self, record: StepRecord, ask: Callable[..., Any]
    ) -> tuple[Ended, Sequence[tuple[str, Any]]]:
        """Enter the function that is asked about a step in doubt; it may have a word on how to undo it, too."""
        activation = self.activation
        key = idempotency_key(activation.task.birth, self.path)
        facts = (activation.task.id, self.path, self.step.name, record.attempt, record.started)
        doubt = Doubt(*facts, key, self.args, self.kwargs)
        body = Body(activation, self._info(record.attempt, None))
        activation.enter_body(body, self.path)
        try:
            return await self._enter("doubt", body, ask, (doubt,), {}, is_async=False), body.undos
        except StopAsked as asked:
            activation.leave_body(body)
            activation.stop(here=not self.colour.awaits, cut_off=asked.args)
        except NoThreadError as error:
            activation.leave_body(body)
            activation.wait_for_threads(error, here=not self.colour.awaits)
        finally:
            activation.leave_body(body)

    def _is_cut_short(self, ended: Ended) -> bool:
        """Tell whether user code has asked its own system for something while that closes."""
        return issubclass(type(ended.error), SystemClosedError) and self.activation.hints.stop.is_set()

    def _leave_in_doubt(self, body: Body | None) -> NoReturn:
        """Stop with a body that is cut off because its worker closes: no failure of the step's own."""
        undos = [(self.path, *undo) for undo in body.undos] if body is not None else []
        self.activation.stop(here=not self.colour.awaits, cut_off=[self.path], undos=undos)

    # ------------------------------------------------------------------ parts

    async def _await_lease(self, may_go_on: Callable[[], None]) -> bool:
        """Wait in place while the worker's lease does not hold; tells whether a cancellation from outside came first.

        `may_go_on` is called meanwhile, again and again, and ends the wait by raising.
        """
        while not self.activation.hints.leased():
            may_go_on()
            try:
                await self.colour.wait(Job(), LOOK_AGAIN)
            except BaseException as error:
                if not was_cancelled(error):
                    raise
                return True
        return False

    def _may_enter(self, kind: str) -> None:
        """End the wait before a body where the task is lost or all stops; a start that is in the log is in doubt then.

        Raises OwnershipLost, StopAsked.
        """
        self.activation.check_owned()
        if self.activation.hints.stop.is_set():
            is_recorded = kind == "body" and not self.settings.idempotent
            raise StopAsked(*([self.path] if is_recorded else []))

    def _info(self, attempt: int, detail: Any) -> StepInfo:
        task = self.activation.task
        return StepInfo(task.id, self.path, self.step.name, attempt, task.birth, detail)

    async def _enter(
        self,
        kind: str,
        body: Body,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_async: bool,
    ) -> Ended:
        """Enter a function that touches the world, when the worker's lease holds and the task is still ours."""
        cancelled = await self._await_lease(lambda: self._may_enter(kind))
        self.activation.check_owned()
        if cancelled:
            import asyncio  # noqa: PLC0415  who was cancelled has it

            return Ended(error=asyncio.CancelledError("before it was entered"), cancelled=True)
        self._reach(f"{kind}.before", body.info)
        ended = await body.run(self.colour, fn, args, kwargs, is_async=is_async)
        if ended.given_up:
            self.activation.leave_body(body)
        else:
            self._reach(f"{kind}.after", body.info)
        return ended

    def _was_entered(self, attempt: int) -> bool:
        """Tell whether the body may have been entered before this attempt."""
        return attempt > 1 or (self.settings.idempotent and self.activation.number > 1)

    def _forget_emissions(self, attempt: int) -> None:
        """Have followers forget what earlier attempts have emitted: this one says it anew."""
        if self._was_entered(attempt):
            activation, task = self.activation, self.activation.task
            runtime, recorder = activation.runtime, activation.store.recorder
            reset = Emission(self.path, attempt, activation.number, RESET, "", "", runtime.clock.now())
            runtime.output.add(recorder, task.id, task.birth, [reset])

    async def _last_heartbeat(self) -> tuple[str | None, bool]:
        """Give the last detail as it is stored, and whether a cancellation from outside came meanwhile."""
        found: list[str | None] = []
        cancelled = await self.run_blocking(lambda: found.append(last_heartbeat(self.activation, self.path)))
        return found[0], cancelled

    def _after_heartbeats(self, body: Body) -> None:
        body.flush()
        forget_heartbeat(self.activation, self.path)

    def _reach(self, point: str, info: StepInfo | None) -> None:
        try:
            self.activation.store.reach(point, info=info)
        except BaseException as death:
            self.activation.close(death)
