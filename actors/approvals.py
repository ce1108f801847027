"""Approvals, in two phases: the question is in the log before anybody is shown it, and only then it is waited for."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from actors.activation import Activation
from actors.colours import drive
from actors.context import Context
from actors.info import checked
from actors.pausing import Awaited, caller_of, raise_if_timed_out, seconds_of
from actors.recorded import AnyCall
from actors.view import pause_id
from actors.waits import WaitCall, due_in
from domain.events import ApprovalRequested, CancelDelivered, SignalReceived, WaitEnded
from domain.record import REQUEST, Call
from domain.waits import APPROVAL, Source, Wait, answer_name

LABEL_LIMIT = 200
"""Characters of a question that are kept."""


@dataclass(frozen=True)
class Decision:
    """What was decided of an approval, true where that is yes: with a value, by whom, with a note, and when, in UTC."""

    approved: bool
    value: Any
    by: str
    note: str
    at: datetime

    def __bool__(self) -> bool:
        """Tell whether it is a yes."""
        return self.approved


def decision_of(letter: SignalReceived, value: Any) -> Decision:
    """Read an answer."""
    facts = letter.value
    at = datetime.fromtimestamp(letter.timestamp, UTC)
    return Decision(facts["approved"], value, letter.by, facts["note"], at)


class Approval(Awaited):
    """An approval that was asked for. `id` is how people answer it: it is in the log already."""

    def __init__(self, id: str, path: str, line: Context) -> None:
        self.id = id
        self._path = path
        self._line = line

    def __repr__(self) -> str:
        return f"Approval({self.id!r})"

    def __bool__(self) -> bool:
        """Refuse: that it was asked for says nothing. Raises TypeError."""
        raise TypeError(f"approval {self.id} is neither yes nor no: wait for its answer, .wait().approved")

    def wait(self, *, timeout: float | timedelta | None = None) -> Decision:
        """Wait for the answer, in a sync agent. It may be waited for more than once, and then gives the same.

        `timeout`: seconds, or a timedelta. An approval that was not answered in time can still be, until the task ends.
        Raises WaitTimeoutError, and what `sleep` does.
        """
        caller = caller_of("Approval.wait()")
        return self._decided(*caller.wait("Approval.wait()", self._wait(caller, timeout), "approval.wait_async"))

    async def wait_async(self, *, timeout: float | timedelta | None = None) -> Decision:  # noqa: ASYNC109  as `wait`
        """Do what `wait` does, in an async agent."""
        caller = caller_of("Approval.wait_async()")
        wait = self._wait(caller, timeout)
        return self._decided(*await caller.wait_async("Approval.wait_async()", wait, "approval.wait"))

    def __await__(self) -> Generator[Any, None, Decision]:
        """Wait for the answer: `await approval`."""
        return self.wait_async().__await__()

    def source(self, activation: Activation) -> Source:  # noqa: ARG002  its name is the same in every activation
        return Source(APPROVAL, answer_name(self._path))

    def take(self, call: WaitCall, letter: SignalReceived | None) -> Decision:
        assert letter is not None  # noqa: S101  it is what has come
        return decision_of(letter, call.value(letter.value["value"]))

    def _wait(self, caller: Context, timeout: float | timedelta | None) -> Wait:
        due = due_in(caller.activation, seconds_of("a timeout", timeout))
        return Wait(APPROVAL, self._path, (self.source(caller.activation),), due)

    def _decided(self, call: WaitCall, ended: WaitEnded) -> Decision:
        raise_if_timed_out(call, ended, f"approval {self.id} was not answered")
        return self.take(call, call.letter(ended))


def request_approval(question: str, *, details: Any = None) -> Approval:
    """Ask for an approval, in a sync agent: when this returns, the question is in the log, and people can answer it.

        pause = request_approval("pay 20 to acme", details={"invoice": 7})
        if pause.wait(timeout=timedelta(days=2)).approved: …

    They do so by `TaskRef.answer`, `perdure approve` and `perdure reject`, in any order and at any time until the task
    ends; the first answer counts. `question`: one line for people, of which 200 characters are kept. `details`: any
    value that can be stored.

    Raises UnstorableValueError; TypeError; and what `sleep` does.
    """
    caller = caller_of("request_approval()")
    caller.check("request_approval()", "", blocks=True, twin="request_approval_async")
    return drive(_request(caller, question, details))


async def request_approval_async(question: str, *, details: Any = None) -> Approval:
    """Do what `request_approval` does, in an async agent."""
    caller = caller_of("request_approval_async()")
    await caller.give_way()
    caller.check("request_approval_async()", "", blocks=False, twin="request_approval")
    return await _request(caller, question, details)


async def _request(caller: Context, question: str, details: Any) -> Approval:
    if type(question) is not str or not question.strip():
        raise TypeError(f"a question is a text, not {question!r:.80}")
    activation = caller.activation
    encoded = checked(details, activation.runtime.value_limit)
    call = AnyCall(caller, Call(caller.next_place().path, REQUEST, APPROVAL))
    record = caller.look_up(call)
    if record is None:
        number, cancels, label = activation.number, not caller.cancelled, question[:LABEL_LIMIT]
        call.may_go_on()
        await call.append(
            lambda task, now: task.begin(number, now, call.call, ApprovalRequested, label, encoded, cancels=cancels)
        )
        record = activation.task.steps[call.path]
    if isinstance(record.outcome, CancelDelivered):
        call.raise_cancelled()
    return Approval(pause_id(activation.task.id, activation.task.birth, call.path), call.path, caller)
