"""Talks: tasks that wait for time, for signals, for people and for their children, and say what has come.

A talk is a list of ops, drawn. What the client and the operator of a round bring to it follows from its id and its
input, and from nothing else, so that whoever died before can be made up for. `waits.py` has the rules for all waits.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from actors import (
    ChildError,
    ChildRef,
    Signal,
    Timer,
    WaitTimeoutError,
    agent,
    gather,
    receive,
    receive_async,
    request_approval,
    request_approval_async,
    sleep,
    sleep_async,
    sleep_until,
    sleep_until_async,
    spawn_child,
    spawn_child_async,
    step,
    step_info,
    task_info,
    wait_any,
    wait_any_async,
)
from domain.events import ChildSpawned, Completed, StepSucceeded, WaitEnded
from domain.values import decode
from domain.waits import answer_name, child_name
from tests.chaos import ledger, programs
from tests.chaos.ledger import Line
from tests.chaos.programs import COMMON, Mark, effect, errands, errands_async, some
from tests.chaos.trips import booker, draw_trip

if TYPE_CHECKING:
    from tests.chaos.evidence import Evidence, History

CANCEL_CHILD = "perdure.cancel_child"
"""The step by which an agent calls a child off."""
CHILDREN: dict[str, Any] = {made.name: made for made in (errands, booker)}

BESIDE = ["plain", "asking"]
"""What is done beside two waits."""
JOINED = {"now": None, "soon": 0.3, "cancel": None}
"""How a child is joined where that is at once: within so many seconds, None for as long as it takes."""


@step
def telling(number: int, name: str) -> Mark:
    """Send a signal to the very task that runs this."""
    assert programs.system is not None
    mark, info = effect(number + 1), step_info()
    value = [number, name]
    programs.system.task(info.task_id).signal(name, value, signal_id=info.idempotency_key)
    ledger.write(Line("signalled", info.task_id, token=json.dumps([info.idempotency_key, name, value])))
    return mark


STEPS: dict[str, Any] = {telling.name: telling}

# ------------------------------------------------------------------ agents


@agent(name="chaos.talker")
def talker(number: int, talk: list[list[Any]]) -> list[Any]:
    """Say what has come, op by op."""
    said: list[Any] = []
    last: list[ChildRef[Any]] = []
    waits = {"child": wait_for_children, "first": wait_for_the_first}
    for what, *how in talk:
        said += waits.get(what, wait_for_others)(number, last, what, *how)
    return said + [joined(child) for child in last]


def wait_for_others(number: int, last: list[ChildRef[Any]], what: str, *how: Any) -> Iterator[Any]:
    if what == "errands":
        yield errands(number, *how)
    elif what in ("sleep", "until"):
        (sleep if what == "sleep" else until)(how[0])
    elif what == "receive":
        yield heard(*how[:2])
    elif what == "any":
        first = wait_any(Signal(how[0]), Timer(how[1]))
        yield [first.index, first.value]
    elif what == "both":
        yield from gather(partial(heard, *how[:2]), partial(sleep, how[3]), partial(errands, number, BESIDE))
    elif what == "tell":
        yield [telling(number, how[0]), receive(how[0])]
    elif what == "ask":
        pauses = [request_approval(f"question {n}", details=number) for n in range(how[0])]
        yield from [pause.wait().approved for pause in reversed(pauses)]


def wait_for_children(
    number: int, last: list[ChildRef[Any]], what: str, policy: Any, join: str, name: str, args: list[Any]
) -> Iterator[Any]:
    child = spawn_child(CHILDREN[name], *args, on_parent_end=policy)
    yield child.id
    if join == "last":
        last.append(child)
    if join == "cancel":
        child.cancel("its parent has thought better of it")
    if join in JOINED:
        yield joined(child, JOINED[join])


def wait_for_the_first(
    number: int, last: list[ChildRef[Any]], what: str, name: str, seconds: float, delay: float, args: list[Any]
) -> Iterator[Any]:
    child = spawn_child(errands, *args)
    first = wait_any(Signal(name), child, Timer(seconds))
    yield [first.index, first.value]


def until(seconds: float) -> None:
    sleep_until(now() + timedelta(seconds=seconds))


async def until_async(seconds: float) -> None:
    await sleep_until_async(now() + timedelta(seconds=seconds))


def now() -> Any:
    info = task_info()
    assert info is not None
    return info.now()


def heard(name: str, within: float | None) -> Any:
    try:
        return receive(name, timeout=within)
    except WaitTimeoutError:
        return "nothing"


def joined(child: ChildRef[Any], within: float | None = None) -> Any:
    try:
        return child.result(timeout=within)
    except WaitTimeoutError:
        return "nothing"
    except ChildError as error:
        return error.status


@agent(name="chaos.talker_async")
async def talker_async(number: int, talk: list[list[Any]]) -> list[Any]:
    said: list[Any] = []
    last: list[ChildRef[Any]] = []
    waits = {"child": wait_for_children_async, "first": wait_for_the_first_async}
    for what, *how in talk:
        wait = waits.get(what, wait_for_others_async)
        said += [one async for one in wait(number, last, what, *how)]
    return said + [await joined_async(child) for child in last]


async def wait_for_others_async(number: int, last: list[ChildRef[Any]], what: str, *how: Any) -> AsyncIterator[Any]:
    if what == "errands":
        yield await errands_async(number, *how)
    elif what in ("sleep", "until"):
        await (sleep_async if what == "sleep" else until_async)(how[0])
    elif what == "receive":
        yield await heard_async(*how[:2])
    elif what == "any":
        first = await wait_any_async(Signal(how[0]), Timer(how[1]))
        yield [first.index, first.value]
    elif what == "both":
        beside = errands_async(number, BESIDE)
        for one in await gather(heard_async(*how[:2]), sleep_async(how[3]), beside):
            yield one
    elif what == "tell":
        yield [await telling.aio(number, how[0]), await receive_async(how[0])]
    elif what == "ask":
        pauses = [await request_approval_async(f"question {n}", details=number) for n in range(how[0])]
        for pause in reversed(pauses):
            yield (await pause).approved


async def wait_for_children_async(
    number: int, last: list[ChildRef[Any]], what: str, policy: Any, join: str, name: str, args: list[Any]
) -> AsyncIterator[Any]:
    child = await spawn_child_async(CHILDREN[name], *args, on_parent_end=policy)
    yield child.id
    if join == "last":
        last.append(child)
    if join == "cancel":
        await child.cancel_async("its parent has thought better of it")
    if join in JOINED:
        yield await joined_async(child, JOINED[join])


async def wait_for_the_first_async(
    number: int, last: list[ChildRef[Any]], what: str, name: str, seconds: float, delay: float, args: list[Any]
) -> AsyncIterator[Any]:
    child = await spawn_child_async(errands, *args)
    first = await wait_any_async(Signal(name), child, Timer(seconds))
    yield [first.index, first.value]


async def heard_async(name: str, within: float | None) -> Any:
    try:
        return await receive_async(name, timeout=within)
    except WaitTimeoutError:
        return "nothing"


async def joined_async(child: ChildRef[Any], within: float | None = None) -> Any:
    try:
        return await child.result_async(timeout=within)
    except WaitTimeoutError:
        return "nothing"
    except ChildError as error:
        return error.status


TALKERS = talker.name, talker_async.name

# ------------------------------------------------------------------ what is drawn


def draw_talk(draw: Random) -> tuple[Any, ...]:
    return draw.randint(0, 99), [draw_op(draw) for _ in range(draw.randint(2, 6))]


def draw_op(draw: Random) -> list[Any]:
    """Draw one op; the last facts of one that wants a signal are its name, a time, and when the signal is sent."""
    what = draw.choices(
        ("errands", "sleep", "until", "receive", "any", "both", "ask", "child", "stray", "tell", "first"),
        weights=(6, 4, 2, 6, 4, 3, 4, 8, 1, 2, 3),
    )[0]
    name, delay = draw.choice("ab"), draw.choice((0.0, 0.0, draw.uniform(0.1, 3.0)))
    if what == "errands":
        return [what, some(draw, 3)]
    if what in ("sleep", "until"):
        return [what, draw.choice((draw.uniform(0.05, 0.5), draw.uniform(0.5, 2.0)))]
    if what == "receive":
        return [what, name, draw.choice((None, draw.uniform(0.05, 1.5))), delay]
    if what in ("any", "stray"):
        return [what, name, draw.uniform(0.05, 1.5), delay]
    if what == "first":
        return [what, name, draw.uniform(0.05, 1.5), delay, [draw.randint(0, 99), some(draw, 3)]]
    if what == "both":
        return [what, name, None, delay, draw.uniform(0.05, 1.5)]
    if what == "tell":
        return [what, name]
    if what == "ask":
        return [what, draw.randint(1, 2)]
    policy = draw.choice(("cancel", "wait", "abandon"))
    join = draw.choice(("now", "last", "soon", "never", "never", "cancel"))
    if draw.random() < 0.3:
        return [what, policy, join, booker.name, list(draw_trip(draw))]
    return [what, policy, join, errands.name, [draw.randint(0, 99), some(draw, 4, (*COMMON, "patient", "awaiting"))]]


# ------------------------------------------------------------------ what is brought


class Sending(NamedTuple):
    """A signal that is to be sent to a talk, `delay` seconds after it was spawned."""

    id: str
    name: str
    value: Any
    delay: float


def sendings(talk: list[list[Any]]) -> list[Sending]:
    """List the signals that a talk is sent: one for each op that may want one, and some that nobody wants."""
    return [
        Sending(f"op-{number}", op[1], [number, op[1]], op[3])
        for number, op in enumerate(talk)
        if op[0] in ("receive", "any", "both", "stray", "first")
    ]


def will_approve(pause: str) -> bool:
    """Decide about an approval."""
    return crc32(pause.encode()) % 3 > 0


# ------------------------------------------------------------------ the rule


class Teller:
    """Tells from its log what a talk must have said: it walks the ops as the agent does, and takes their places."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.place = 0

    def say(self, number: int, talk: list[list[Any]]) -> list[Any]:
        """Give what is said."""
        said: list[Any] = []
        last: list[str] = []
        for what, *how in talk:
            if what == "errands":
                scope = self.next()
                said.append([self.mark(f"{scope}/{n}") for n in range(1, len(how[0]) + 1)])
            elif what in ("sleep", "until"):
                self.place += 1 + (what == "until")
            elif what == "receive":
                said.append(self.came(self.next()))
            elif what in ("any", "first"):
                self.place += what == "first"
                came = self.came(path := self.next())
                ended = self.history.end_at(path)
                said.append([getattr(ended, "source", None), None if came == "nothing" else came])
            elif what == "both":
                scope = self.next()
                marks = [self.mark(f"{scope}/3/1/{n}") for n in (1, 2)]
                said += [self.came(f"{scope}/1/1"), None, marks]
            elif what == "tell":
                said.append([self.mark(self.next()), self.came(self.next())])
            elif what == "ask":
                self.place += how[0]
                said += [self.came(self.next()) for _ in range(how[0])]
            elif what == "child":
                said += self.child(*how[:2], last)
        return said + [self.came(self.next()) for _ in last]

    def next(self) -> str:
        """Take a place."""
        self.place += 1
        return str(self.place)

    def child(self, policy: str, join: str, last: list[str]) -> Iterator[Any]:
        spawned = self.history.spawned_at(self.next())
        assert isinstance(spawned, ChildSpawned)
        yield spawned.child if spawned.policy == policy else f"not by {spawned.policy}"
        if join == "last":
            last.append(spawned.child)
        self.place += join == "cancel"
        if join in JOINED:
            yield self.came(self.next())

    def mark(self, path: str) -> Any:
        event = self.history.value_at(path)
        return decode(event.value) if isinstance(event, StepSucceeded) else None

    def came(self, path: str) -> Any:
        """Give what came for the wait at a place: a value, yes or no, a child's result or how it ended."""
        ended = self.history.end_at(path)
        if not isinstance(ended, WaitEnded):
            return "no end"
        letter = self.history.letters.get(ended.signal)
        if letter is None:
            return "nothing"
        if letter.name.startswith(answer_name("")):
            return letter.value["approved"]
        if letter.name.startswith(child_name("")):
            return decode(letter.value["value"]) if letter.value["status"] == "completed" else letter.value["status"]
        return decode(letter.value)


def talkers_say_what_came(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The result of a talk is what its log has of its waits and steps, place by place."""
    for task, history in evidence.histories.items():
        if history.created is None or history.created.agent not in TALKERS or history.ending is None:
            continue
        if not isinstance(history.ending, Completed):
            if not history.is_cancelled:
                yield task, f"it ends with {history.ending}"
            continue
        args, _ = decode(history.created.input)  # type: ignore[misc]  as it was drawn
        try:
            wanted: Any = Teller(history).say(*args)
        except (AssertionError, LookupError) as error:
            wanted = repr(error)
        if decode(history.ending.value) != wanted:
            yield task, f"it said {decode(history.ending.value)}, and its log says {wanted}"
