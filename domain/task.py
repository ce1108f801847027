"""The aggregate `AgentTask`: one run of an agent, as its log tells it.

State is a fold of events and nothing else (`fold.py`). A decision is a pure function of state and command to events:
it changes nothing, and its events count only once they are in the log. `guard` is the fence: what is written for an
activation is refused unless it is the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any, TypeAlias

from domain.errors import OwnershipLost, ResolveError, SignalConflictError, TaskEndedError, UnknownApprovalError
from domain.events import (
    Activated,
    ApprovalRequested,
    CancelDelivered,
    Cancelled,
    CancelRequested,
    ChildSpawned,
    Completed,
    Concluded,
    Failed,
    Held,
    Passivated,
    Released,
    RestartAsked,
    Restarted,
    SignalReceived,
    StepFailed,
    StepStarted,
    StepSucceeded,
    TaskEvent,
    UndoRegistered,
    WaitBegan,
    WaitEnded,
)
from domain.faults import Fault
from domain.record import Call
from domain.retry import is_out, restart_delay
from domain.state import (
    DIFFERS,
    FAILED_STEP,
    FOR_CODE,
    IN_DOUBT,
    SPENT,
    STRIKES,
    Named,
    TaskState,
)
from domain.values import digest
from domain.waits import Moment, Wait, answer_name, settled

Begun: TypeAlias = ApprovalRequested | ChildSpawned


class AgentTask(TaskState):
    """One run of an agent, and all that can be decided about it. Made by `fold`, never by hand."""

    def guard(self, activation: int) -> None:
        """Refuse to go on for an activation that is not the newest, or is over. Raises OwnershipLost."""
        if self.activation != activation or self.worker is None:
            raise OwnershipLost(
                f"task {self.id}: ownership lost: activation {activation} is over"
                f" (status {self.status}, newest activation {self.activation})"
            )

    def activate(
        self, now: float, *, worker: str, token: str, limit: int | None, release: bool = False
    ) -> list[TaskEvent]:
        """Claim the task for a worker; at its strike limit it is held in the same append, and its agent not called.

        `release` also ends a hold for its code. Nothing is decided for a task that has ended, or is held otherwise.
        """
        if self.ending is not None or (self.held is not None and not (release and self.held.reason in FOR_CODE)):
            return []
        version, events = self.version, list[TaskEvent]()
        if self.held is not None:
            version += 1
            events.append(Released(self.id, version, now, "", "release", None, f"worker {worker}"))
        number, strikes = self.activation + 1, 0 if events else self.strikes_if_lost
        events.append(Activated(self.id, version + 1, now, number, worker, token))
        if is_out(strikes, limit):
            path, details = self.strike_facts(strikes)
            events.append(Held(self.id, version + 2, now, number, STRIKES, path, details))
        return events

    def start_step(
        self,
        activation: int,
        now: float,
        call: Call,
        label: str,
        doubt: str,
        *,
        cancels: bool = False,
        reserved: Any = None,
    ) -> list[TaskEvent]:
        """Begin the next attempt at a step; the body runs only after this is in the log.

        `cancels`: where the task is cancelled, that is what the call comes to, and no body runs.
        """
        self.guard(activation)
        record, (path, kind, name, digest) = self.steps.get(call.path), call
        facts = path, kind, name, 1 if record is None else record.attempt + 1, digest, label, doubt, reserved
        return self._delivered(now, call, cancels) or [StepStarted(self.id, self.version + 1, now, *facts)]

    def finish_step(
        self,
        activation: int,
        now: float,
        call: Call,
        attempt: int,
        *,
        value: Any = None,
        source: str = "",
        error: dict[str, Any] | None = None,
        retry_at: float | None = None,
        undos: Sequence[tuple[str, Any]] = (),
    ) -> list[TaskEvent]:
        """Record how an attempt ended: its value, or its error as data and when the next attempt is due, if any.

        A step that has an outcome never gets a second one. `undos` are those that its body has registered.
        """
        self.guard(activation)
        path, kind, name, digest = call
        record = self.steps.get(path)
        if record is not None and record.outcome is not None:
            raise RuntimeError(f"task {self.id}: step {path} {name} has its outcome already")
        version = self.version + 1
        if error is not None:
            return [StepFailed(self.id, version, now, path, kind, name, digest, attempt, error, retry_at)]
        if source and not undos:  # its body ran, and what that has registered stands
            undos = [(undo.name, undo.arguments) for undo in self.undos if undo.path == path]
        ended: list[TaskEvent] = [
            StepSucceeded(self.id, version, now, path, kind, name, digest, attempt, value, source)
        ]
        if undos:
            ended += self._undos(version + 1, now, [(path, *undo) for undo in undos])
        return ended

    def deliver_cancel(
        self, activation: int, now: float, call: Call, undos: Sequence[tuple[str, Any]] = ()
    ) -> list[TaskEvent]:
        """Let the call come to the cancellation of its task; `undos` are those of its body, which is in doubt then."""
        self.guard(activation)
        record = self.steps.get(call.path)
        delivered = self._delivered(now, call, record is None or record.outcome is None)
        named = self.unregistered([(call.path, *undo) for undo in undos])
        return [*delivered, *self._undos(self.version + 2, now, named)] if delivered else []

    def _delivered(self, now: float, call: Call, cancels: bool) -> list[TaskEvent]:
        if not cancels or self.cancel is None:
            return []
        path, kind, name, digest = call
        return [CancelDelivered(self.id, self.version + 1, now, path, kind, name, digest)]

    def _undos(self, version: int, now: float, undos: Named) -> list[TaskEvent]:
        """Register undos; but what an undo says of how to undo itself counts nothing: it would never end."""
        if self.concluded is not None:
            return []
        return [UndoRegistered(self.id, version + n, now, *undo) for n, undo in enumerate(undos)]

    def register_undos(self, activation: int, now: float, undos: Named) -> list[TaskEvent]:
        """Register what bodies that were given up, and may have happened, have said of how to undo them."""
        self.guard(activation)
        return self._undos(self.version + 1, now, self.unregistered(undos))

    def restart(
        self, activation: int, now: float, error: Fault, *, where: str, jitter: float, limit: int | None
    ) -> list[TaskEvent]:
        """Decide what follows a crash of the agent: another start after a delay, or a hold at the strike limit."""
        self.guard(activation)
        strikes = self.strikes + 1
        if is_out(strikes, limit):
            path, details = self.strike_facts(strikes)
            details |= {"error": error.to_data(), "where": f"{error}, at {where}"}
            return [Held(self.id, self.version + 1, now, activation, STRIKES, path, details)]
        due = now + restart_delay(strikes, jitter)
        return [Restarted(self.id, self.version + 1, now, activation, error.to_data(), strikes, due)]

    def ask_to_restart(self, now: float, group: str, *, cause: str, by: str) -> list[TaskEvent]:
        """Let the task begin anew at its next step boundary, since `by` of its group has crashed; once for each cause.

        Nothing where it is not of that group, or does not run: it has nothing in memory that could be stale.
        """
        if self.worker is None or self.group != group or self.asked == cause:
            return []
        return [RestartAsked(self.id, self.version + 1, now, cause, by)]

    def passivate(
        self, activation: int, now: float, cut_off: list[str], *, due: float | None = None, undos: Named = ()
    ) -> list[TaskEvent]:
        """Mark a deliberate stop, so that it is no strike; nothing where the activation is over already.

        With `due` the task does nothing but wait until then. `undos` are those of bodies that were cut off.
        """
        if self.activation != activation or self.worker is None:
            return []
        owed = self._undos(self.version + 1, now, self.unregistered(undos)) if undos else []
        version = self.version + len(owed) + 1
        return [*owed, Passivated(self.id, version, now, activation, cut_off, due, due is not None)]

    def hold(self, activation: int, now: float, reason: str, path: str, details: dict[str, Any]) -> list[TaskEvent]:
        """Park the task with a reason."""
        self.guard(activation)
        return [Held(self.id, self.version + 1, now, activation, reason, path, details)]

    def complete(self, activation: int, now: float, value: Any) -> list[TaskEvent]:
        """End the task with its agent's value; or decide that, where something is owed first."""
        self.guard(activation)
        return self._concluded(self.version + 1, now, "completed", value)

    def fail(self, activation: int, now: float, error: Fault) -> list[TaskEvent]:
        """End the task with an error; or decide that, where something is owed first."""
        self.guard(activation)
        return self._concluded(self.version + 1, now, "failed", error.to_data())

    def end_cancelled(self, activation: int, now: float, *, cut: bool = False, undos: Named = ()) -> list[TaskEvent]:
        """End the task as cancelled, or decide that, where something is owed first.

        `cut`: the agent's own clean-up did not come to its end; it is over for this activation then, as one is that was
        stopped. `undos` are those of bodies that were cut off: owed, like those that are registered.
        """
        self.guard(activation)
        owed = self._undos(self.version + 1, now, self.unregistered(undos))
        version = self.version + len(owed) + 1
        events = [*owed, *self._concluded(version, now, "cancelled", cut=cut, owes=bool(owed))]
        if cut and isinstance(events[-1], Concluded):
            events.append(Passivated(self.id, version + 1, now, activation, [], None, False))
        return events

    def settle(self, activation: int, now: float) -> list[TaskEvent]:
        """End the task as was concluded: nothing is owed any more."""
        self.guard(activation)
        concluded = self.concluded
        if concluded is None:
            raise RuntimeError(f"task {self.id}: its agent is not done")
        return [self._ending(self.version + 1, now, concluded)]

    def _concluded(
        self, version: int, now: float, status: str, outcome: Any = None, *, cut: bool = False, owes: bool = False
    ) -> list[TaskEvent]:
        value, error = (outcome, None) if status == "completed" else (None, outcome)
        doubts = [record.path for record in self.doubts]
        concluded = Concluded(self.id, version, now, status, value, error, doubts, cut)
        owes = owes or bool(self.owed_children) or (status != "completed" and bool(self.undos))
        return [concluded] if owes else [self._ending(version, now, concluded)]

    def _ending(self, version: int, now: float, concluded: Concluded) -> TaskEvent:
        if concluded.status == "completed":
            return Completed(self.id, version, now, concluded.value)
        if concluded.status == "failed":
            return Failed(self.id, version, now, concluded.error, concluded.doubts)
        reason, by = ("", "") if self.cancel is None else (self.cancel.reason, self.cancel.by)
        return Cancelled(self.id, version, now, reason, by, concluded.doubts, concluded.cut)

    # ------------------------------------------------------------------ waits

    def wait(
        self, activation: int, now: float, call: Call, wait: Wait, moment: Moment, *, cancels: bool
    ) -> list[TaskEvent]:
        """Begin a wait, or end it where what it waits for is in the log, or its time has come; nothing where neither.

        `cancels`: where the task is cancelled, that is what the call comes to.
        """
        self.guard(activation)
        record, version, (path, kind, name, _) = self.steps.get(call.path), self.version + 1, call
        if record is not None and record.outcome is not None:
            return []
        if delivered := self._delivered(now, call, cancels):
            return delivered
        over = settled(wait, self.first_mail, moment)
        if over is not None:
            return [WaitEnded(self.id, version, now, path, kind, name, *over)]
        return [WaitBegan(self.id, version, now, path, kind, name, *wait.stored())] if record is None else []

    def suspend(self, activation: int, now: float, due: float | None, moment: Moment) -> list[TaskEvent]:
        """Mark that all the task does is wait, until `due` at most; or that it goes on at once, where the log has news.

        So nothing is missed that came while it was about to let go.
        """
        if self.activation != activation or self.worker is None:
            return []
        came = any(settled(wait, self.first_mail, moment) is not None for wait in self.waiting.values())
        waits = not came and not self.called_off and (self.cancel is None or self.concluded is not None)
        if self.deadline is not None and self.cancel is None:
            due = self.deadline if due is None else min(due, self.deadline)
        return [Passivated(self.id, self.version + 1, now, activation, [], due if waits else None, waits)]

    def begin(
        self, activation: int, now: float, call: Call, kind: type[Begun], *facts: Any, cancels: bool
    ) -> list[TaskEvent]:
        """Ask for an approval, or spawn a child, whose own first event goes into the same transaction."""
        self.guard(activation)
        begun = kind(self.id, self.version + 1, now, call.path, call.kind, call.name, *facts)
        return self._delivered(now, call, cancels) or [begun]

    # ------------------------------------------------------------------ from outside

    def receive(self, now: float, signal: str, name: str, value: Any, by: str, *, after: int = 0) -> list[TaskEvent]:
        """Accept a signal, once; `after` so many other events of the same append.

        Raises TaskEndedError, SignalConflictError for an id that another signal had.
        """
        known = self.signals.get(signal)
        if known is not None:
            before = self.letters[known]
            if (before.name, digest(before.value)) != (name, digest(value)):
                raise SignalConflictError(
                    f"task {self.id}: the signal id {signal.removeprefix('id ')!r} was used before, for a signal"
                    f" {before.name!r}, with another value or name: nothing was changed",
                    task_id=self.id,
                )
            return []
        self._refuse_if_ended()
        return [SignalReceived(self.id, self.version + after + 1, now, signal, name, value, by)]

    def decide(self, now: float, path: str, answer: dict[str, Any], by: str) -> list[TaskEvent]:
        """Answer an approval; nothing where that was done. Raises TaskEndedError, UnknownApprovalError."""
        if path not in self.pauses:
            message = f"task {self.id}: it has not asked for an approval at {path}"
            raise UnknownApprovalError(message, task_id=self.id)
        if self.answer(path) is not None:
            return []
        self._refuse_if_ended()
        if path not in self.asked_for:
            message = f"task {self.id} was called off: it does not ask for the approval at {path} any more"
            raise TaskEndedError(message, task_id=self.id, status=self.status)
        name = answer_name(path)
        return [SignalReceived(self.id, self.version + 1, now, name, name, answer, by)]

    def request_cancel(self, now: float, reason: str, by: str, grace: float) -> list[TaskEvent]:
        """Call the task off, once; nothing where it has ended, or how it ends is decided.

        One that has never run, or is held, has nobody who could clean up: it ends at once, or with what it owes. One
        whose agent is done and that waits for children ends as was decided, and calls those off.
        """
        decided = self.cancel is not None or (self.concluded is not None and not self.owed_children)
        if self.ending is not None or (decided and self.held is None):
            return []
        events = list[TaskEvent]()
        if self.cancel is None:
            events.append(CancelRequested(self.id, self.version + 1, now, reason, by, grace))
        if self.held is None and self.activation > 0:
            return events
        after = self
        if events:
            after = self.copy()
            after.cancel = events[0]  # type: ignore[assignment]
        if self.concluded is not None:  # what it still owes is nobody's to do any more
            return [*events, after._ending(self.version + len(events) + 1, now, self.concluded)]
        return [*events, *after._concluded(self.version + len(events) + 1, now, "cancelled", cut=self.activation > 0)]

    def expire(self, now: float, grace: float) -> list[TaskEvent]:
        """Call the task off where its deadline has passed."""
        if self.deadline is None or now < self.deadline or self.cancel is not None:
            return []
        return self.request_cancel(now, "its deadline has passed", "deadline", grace)

    def _refuse_if_ended(self) -> None:
        if self.ending is not None:
            raise TaskEndedError(f"task {self.id} has ended: {self.status}", task_id=self.id, status=self.status)

    def release(self, now: float, by: str, grant: Any = None) -> list[TaskEvent]:
        """Let a held task go on; `grant`, encoded, is what it may have besides, where it is held as spent.

        Raises TaskEndedError, or ResolveError where it is not held, or not for that, or a step is in question.
        """
        held = self._held()
        if grant is not None and held.reason != SPENT:
            raise ResolveError(f"task {self.id} is held ({held.reason}): there is nothing to grant", task_id=self.id)
        if held.reason in (IN_DOUBT, FAILED_STEP):
            why = f"task {self.id} is held because of step {held.path}, which has to be decided first:"
            how = f"perdure resolve {quote(self.id)} {held.path} --value JSON | --rerun | --fail"
            raise ResolveError(f"{why} {how}", task_id=self.id)
        return [Released(self.id, self.version + 1, now, "", "release", grant, by)]

    def resolve(self, now: float, path: str, decision: str, value: Any, by: str) -> list[TaskEvent]:
        """Decide what became of the step in question: it happened (`value`), is to `rerun`, or is given up (`fail`)."""
        held = self._held()
        if path != self.question:
            raise ResolveError(
                f"task {self.id}: step {path} is not in question: it is held ({held.reason}), and"
                f" {f'step {self.question}' if self.question else 'no step'} waits for a decision",
                task_id=self.id,
            )
        if held.reason == DIFFERS and decision == "rerun":
            message = f"task {self.id}: step {path} cannot be rerun with other arguments: its idempotency key would lie"
            raise ResolveError(message, task_id=self.id)
        return [Released(self.id, self.version + 1, now, path, decision, value, by)]

    def _held(self) -> Held:
        self._refuse_if_ended()
        if self.held is None:
            what = f"task {self.id} is not held: it is {self.status}; there is nothing to decide"
            raise ResolveError(what, task_id=self.id)
        return self.held
