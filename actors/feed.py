"""`Feed`: the updates of one task in one order, from any process, as they come.

The order is that of commits. First the head of the log is read, then the events up to it, then what was emitted while
one of these was the head: nothing that comes later can stand before any of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

from actors.colours import LoopBell
from actors.context import lend_place, refuse_inside_agent, refuse_on_any_loop
from actors.mapper import is_stream
from actors.patience import CLIENT_PATIENCE
from actors.runtime import Runtime
from actors.task_log import TaskLog
from actors.updates import Update, cursor_of, place_of, spoilt, update_of, update_of_emission
from domain.errors import UnknownTaskError, UnreadableTaskError
from domain.state import UNREADABLE
from stores import IndexRow, StoreCorruptError, StoreUnavailableError
from stores.emissions import Emission

FIRST_POLL, LONGEST_POLL = 0.05, 0.5
"""Seconds between two looks: the first of them while the task is running, growing to the longest while it is not."""
PAGE = 1_000
"""Rows of events, and of emissions, that one look reads at most."""
MOST_CURSOR = 2**53
"""Beyond every cursor."""

_OPEN = ("queued", "running", "waiting", "held")


class Source(Protocol):
    """The system through which a task is followed."""

    @property
    def log(self) -> TaskLog:
        """The log. Raises SystemClosedError, RuntimeError before the system is open."""
        ...

    @property
    def runtime(self) -> Runtime:
        """Threads for what an event loop must not be blocked by."""
        ...


class Feed(Iterator[Update], AsyncIterator[Update]):
    """The updates of one task, for `for` and `async for`; given by `TaskRef.follow`. For one consumer at a time.

    Nothing is held open between two updates: a feed that nobody goes on with needs not be closed. `id`: the task's.
    `cursor`: that of the last update given; a new feed after it goes on there.
    """

    def __init__(self, source: Source, id: str, after: int) -> None:
        self.id = id
        self.cursor = after
        self._source = source
        self._found = _Found("", min(after, MOST_CURSOR))
        self._pause = 0.0
        self._away_since: float | None = None

    def __repr__(self) -> str:
        return f"Feed({self.id!r}, after={self.cursor})"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Update:
        """Wait for the next update. Raises what `TaskRef.follow` names."""
        refuse_inside_agent("following a task", "do it in a step")
        refuse_on_any_loop("following a task", "use `async for`")
        if not self._is_ready():
            self._take(self._look())
        if not self._is_ready():
            with lend_place(), self._source.log.watch(self.id, threading.Event()) as changed:
                while not self._take(self._look()):
                    changed.wait(self._pause)
                    changed.clear()
        return self._give(StopIteration)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update:
        """Wait for the next update, without blocking the event loop; cancelled, nothing is lost."""
        import asyncio  # noqa: PLC0415  a loop runs, so it is there

        refuse_inside_agent("following a task", "do it in a step")
        call = self._source.runtime.commits.call
        if not self._is_ready():
            self._take(await call(self._look))
        if not self._is_ready():
            bell = LoopBell(asyncio.Event(), asyncio.get_running_loop())
            with lend_place(), self._source.log.watch(self.id, bell):
                while not self._take(await call(self._look)):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(bell.event.wait(), self._pause)
                    bell.event.clear()
        return self._give(StopAsyncIteration)

    # ------------------------------------------------------------------ what was found

    def _is_ready(self) -> bool:
        found = self._found
        return bool(found.updates) or found.is_over or found.error is not None

    def _take(self, found: _Found) -> bool:
        """Go on from what a look has found; tells whether there is something to give."""
        if found.reached > self._found.reached:
            self._pause = 0.0  # there may be more to read by now
        elif found.is_running:
            self._pause = FIRST_POLL
        else:
            self._pause = min(max(self._pause * 1.5, FIRST_POLL), LONGEST_POLL)
        self._found = found
        return self._is_ready()

    def _give(self, end: Callable[[], Exception]) -> Update:
        found = self._found
        if found.updates:
            update = found.updates.popleft()
            self.cursor = update.cursor
            return update
        if found.error is not None:
            raise found.error
        raise end()

    # ------------------------------------------------------------------ looking

    def _look(self) -> _Found:
        """Look once, after what was found before, and change nothing: a caller that is cancelled has lost nothing.

        Raises UnknownTaskError, SystemClosedError; StoreUnavailableError when the store was away for 30 s.
        """
        log, before = self._source.log, self._found
        try:
            row = log.recorder.select_entry(self.id)
            if row is None or is_stream(self.id):
                raise UnknownTaskError(f"there is no task {self.id!r} in {log.store.url}", task_id=self.id)
            if before.birth not in ("", row.birth):
                raise UnknownTaskError(f"task {self.id} was deleted, its id is another task's now", task_id=self.id)
            found = _read(log, row, before.reached)
        except StoreUnavailableError:
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > CLIENT_PATIENCE:
                raise
            return before
        self._away_since = None
        return found


@dataclass
class _Found:
    """What a look has found: updates in order, and the cursor up to which all is read.

    `error` comes after the updates; so does the end, where it `is_over`.
    """

    birth: str
    reached: int
    updates: deque[Update] = field(default_factory=deque)
    error: UnreadableTaskError | StoreCorruptError | None = None
    is_over: bool = False
    is_running: bool = False


def _read(log: TaskLog, row: IndexRow, after: int) -> _Found:
    """Read what comes after a cursor, up to the head that the index row has."""
    (version, _), ended = place_of(after), row.status not in _OPEN
    error: UnreadableTaskError | StoreCorruptError | None
    items, error = _events(log, row, version)
    last = place_of(items[-1][0])[0] if items else version
    upto = last - 1 if ended and last >= row.head else last  # what is emitted after the end is not told
    said = log.recorder.select_emissions(row.id, row.birth, after=place_of(after), upto=upto, limit=PAGE)
    count, unread = _unread(log, row, said)
    items += [(cursor_of(each.base, each.number), update_of_emission(each)) for each in said[:count]]
    items.sort(key=lambda item: item[0])
    reached = max(after, items[-1][0] if items else 0)
    if unread is not None:  # nothing after it is told
        reached, error = _before(said[count], after), unread
    elif len(said) == PAGE:  # there may be more of them before the next event
        reached, error = cursor_of(said[-1].base, said[-1].number), None
    updates = deque(update for cursor, update in items if update is not None and cursor <= reached)
    is_over = ended and error is None and reached >= cursor_of(row.head)
    return _Found(row.birth, reached, updates, error, is_over, row.status == "running")


def _unread(log: TaskLog, row: IndexRow, said: list[Emission]) -> tuple[int, StoreCorruptError | None]:
    """Give how many emissions stand before the first that cannot be read, and what is wrong with that, if there is."""
    for place, each in enumerate(said):
        if why := spoilt(each):
            message = (
                f"{log.store.url}: task {row.id}: what it emitted, {each.base}.{each.number}, cannot be read: {why}."
                " Its log is not concerned, and can be shown without following it; perdure verify names all of it"
            )
            return place, StoreCorruptError(message, url=log.store.url)
    return len(said), None


def _before(row: Emission, after: int) -> int:
    """Give the cursor before an emission that cannot be read; `after`, where its place is what cannot be."""
    has_place = all(type(one) is int for one in (row.base, row.number))
    return cursor_of(row.base, row.number) - 1 if has_place else after


_Items = list[tuple[int, Update | None]]


def _events(log: TaskLog, row: IndexRow, version: int) -> tuple[_Items, UnreadableTaskError | None]:
    """Give the cursors of the next events, with what is told of each; and why the log does not go on there, if so."""
    items: _Items = []
    try:
        for event in log.events.get(row.id, gt=version, lte=row.head, limit=PAGE, birth=row.birth):
            items.append((cursor_of(event.originator_version), update_of(event, row.birth)))
    except UnreadableTaskError as error:
        return items, error
    last = place_of(items[-1][0])[0] if items else version
    if len(items) < PAGE and (last < row.head or row.hold == UNREADABLE):
        ends = f"task {row.id}: its log ends at version {last}, its index row says {row.head}"
        why = row.note if row.hold == UNREADABLE else ends
        return items, UnreadableTaskError(why, task_id=row.id, version=last + 1)
    return items, None
