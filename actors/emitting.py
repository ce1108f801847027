"""`emit`: what running code lets others see while it runs."""

from __future__ import annotations

from typing import Any

from actors.activation import Activation
from actors.body import running_body
from actors.context import Context, context
from actors.entity_actor import refuse_inside_entity
from actors.info import checked
from domain.errors import OutsideTaskError
from domain.values import dumps
from stores.emissions import EMIT, RESET, Emission

EMISSION_LIMIT = 64 * 1024
"""Bytes that an encoded emission may take."""
CHANNEL_LIMIT = 100
"""Characters that the name of a channel may have."""


def emit(value: Any, channel: str = "text") -> None:
    """Let who follows the task (`TaskRef.follow`) see a value at once, from a step's body or an agent's code.

        @step
        def draft(topic: str) -> str:
            parts = []
            for part in model.stream(topic):
                emit(part)
                parts.append(part)
            return "".join(parts)

    It is in no log and part of no state: what counts is what the step returns. `channel` tells kinds apart; of "text"
    each piece goes on where the one before it ended. A thread that has copied a body's context may emit too.

    Guaranteed: it neither waits for the store nor fails because of it. It is stored within about 50 ms, in order, and
    before the outcome of the step. Code between steps emits nothing at a replay, where the log goes on from there. A
    new attempt at a step says all anew, and followers are told to forget what the last one said. Dropped is what a body
    says that was given up, or whose worker has lost the task. Not guaranteed: that it is stored. A killed process loses
    the last 50 ms, and of each task only the newest 10,000 emissions are kept.

    Raises OutsideTaskError outside of a task, InsideTaskError in an entity's code, UnstorableValueError for what cannot
    be stored or takes more than 64 KiB, ValueError for a channel that is not 1 to 100 printable characters.
    """
    refuse_inside_entity("emit()")
    body, here = running_body.get(), context()
    if body is None and here is None:
        raise OutsideTaskError("emit() was called where no task runs: only a step's body and an agent's code can")
    if type(channel) is not str or not channel.isprintable() or not 0 < len(channel) <= CHANNEL_LIMIT:
        raise ValueError(f"a channel is a text of 1 to {CHANNEL_LIMIT} printable characters, not {channel!r}")
    text = dumps(checked(value, EMISSION_LIMIT, ": emit it in parts, or say where it is"))
    if body is not None:
        info, activation = body.info, body.activation
        said = Emission(info.path, info.attempt, activation.number, EMIT, channel, text, _now(activation))
        body.unless_given_up(lambda: _add(activation, [said]))
    elif here is not None and not _is_silent(here):
        _emit_between_steps(here, channel, text)


def said_before(path: str) -> str:
    """Give the path of what an agent's code emits before it comes to a position; no step has it.

    >>> said_before("3/1/2")
    '3/1/2-'
    """
    return f"{path}-"


def _is_silent(here: Context) -> bool:
    """Tell whether nobody is to hear an agent's code here: it has run before, or does not count."""
    activation = here.activation
    over = activation.probe or activation.closed is not None or activation.hints.over.is_set()
    return over or here.is_replaying


def _emit_between_steps(here: Context, channel: str, text: str) -> None:
    """Hand on what an agent's code says; at a place where an earlier activation may have spoken, that is void first."""
    activation, path = here.activation, said_before(here.next_position.path)
    said = Emission(path, activation.number, activation.number, EMIT, channel, text, _now(activation))
    is_first, here.emitted_at = here.emitted_at != here.asked, here.asked
    reset = [said._replace(kind=RESET, channel="", value="")] if is_first and activation.number > 1 else []
    _add(activation, [*reset, said])


def _add(activation: Activation, rows: list[Emission]) -> None:
    task = activation.task
    activation.runtime.output.add(activation.store.recorder, task.id, task.birth, rows)


def _now(activation: Activation) -> float:
    return activation.runtime.clock.now()
