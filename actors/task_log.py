"""The log of every task: an eventsourcing Application that makes tasks, loads them, and keeps their index."""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from shlex import quote
from typing import Any, Protocol, TypeAlias, TypeVar

from eventsourcing.application import AggregateNotFoundError, Application
from eventsourcing.persistence import IntegrityError
from eventsourcing.utils import Environment, EnvType

from actors.commit import REINDEX
from actors.entity_log import entity_row
from actors.mapper import TOKEN_SIZE, TaskEvents, TaskMapper, is_stream
from actors.patience import Patience
from actors.view import call_text, headline
from domain.errors import PerdureError, TaskConflictError, UnknownTaskError, UnreadableTaskError
from domain.events import Created, Ending, TaskEvent
from domain.fold import fold
from domain.state import UNREADABLE
from domain.task import AgentTask
from domain.values import dumps
from stores import AppendConflictError, IndexRow, Store, StoreError, StoreUnavailableError, TaskRecorder
from stores.task_index import Birth

logger = logging.getLogger("perdure")


ASKS, UNTOLD = "asks", "untold"
"""What the index has as the hold of a task that is not held, but has asked for an approval; and of one that has ended,
and whose parent has not been told of it for certain."""


Claim: TypeAlias = Callable[[AgentTask, float], list[TaskEvent]]
"""Decides that a task is a worker's, now."""


class EndBell:
    """What hears of the end of a task for which it is rung: the task's birth, and its last event."""

    heard: tuple[str, Ending] | None = None

    def has_heard(self, birth: str) -> Ending | None:
        """Give the last event of this life of the task, if it was heard of."""
        return self.heard[1] if self.heard is not None and self.heard[0] == birth else None


class Settable(Protocol):
    """An event that can be set, from any thread."""

    def set(self) -> None:
        """Set it."""
        ...


SomeEvent = TypeVar("SomeEvent", bound=Settable)


class TaskLog(Application[str]):
    """Loads tasks, makes new ones, and says when one has ended or is held.

    Guarded by the store, safe in all threads.
    """

    name = "perdure"
    mapper: TaskMapper
    events: TaskEvents
    recorder: TaskRecorder

    def __init__(self, store: Store, *, patience: Patience | None = None, now: Callable[[], float] = time.time) -> None:
        self.store = store
        self.now = now
        self.patience = patience or Patience()
        self._watchers: dict[str, set[Any]] = {}
        self._watching = threading.Lock()
        self._deafen: Callable[[], None] | None = None
        self._chance = random.Random(secrets.token_bytes(32))
        super().__init__()

    def construct_env(self, name: str, env: EnvType | None = None) -> Environment:  # noqa: ARG002
        """Keep `os.environ` out: a stray COMPRESSOR_TOPIC of another application must not change our rows."""
        return Environment(name, {})

    def construct_factory(self, env: Environment) -> Store:  # noqa: ARG002
        """Give the opened store."""
        return self.store

    def construct_mapper(self) -> TaskMapper:
        """Give our own mapper: token, checksum, closed table of topics."""
        return TaskMapper()

    def construct_recorder(self) -> TaskRecorder:
        """Give the store's recorder."""
        return self.store.recorder

    def construct_event_store(self) -> TaskEvents:
        """Give the event store that knows births."""
        return TaskEvents(self.mapper, self.recorder)

    def token(self) -> bytes:
        """Give the token of an append: random, so that two of them, of whatever process, are never the same.

        From a generator of this log's own: to ask the system each time lets other threads run, and waits for them.
        """
        return self._chance.getrandbits(8 * TOKEN_SIZE).to_bytes(TOKEN_SIZE, "big")

    def close(self) -> None:
        """Leave the store open, also when this is collected as garbage: whoever opened the store closes it."""
        self.closing.set()

    def load(self, task_id: str, patience: Patience | None = None) -> AgentTask:
        """Rehydrate a task by replay.

        Raises UnknownTaskError, UnreadableTaskError, or the store's errors when patience is out.
        """
        away = (patience or self.patience).waiter()
        while True:
            try:
                return self.repository.get(task_id, projector_func=fold)
            except AggregateNotFoundError:
                raise UnknownTaskError(f"there is no task {task_id!r} in {self.store.url}", task_id=task_id) from None
            except StoreUnavailableError as error:
                away(error)
            except (StoreError, PerdureError):
                raise
            except Exception as error:
                raise UnreadableTaskError(
                    f"task {task_id}: its log cannot be followed: {type(error).__name__}: {error}",
                    task_id=task_id,
                    version=0,
                ) from error

    def create(
        self,
        task_id: str,
        agent: str,
        arguments: Any,
        tags: Any,
        parent: str = "",
        aliases: Collection[str] = (),
        group: str = "",
        deadline: float | None = None,
        birth: str = "",
        claim: Claim | None = None,
    ) -> AgentTask:
        """Make a task, or give the one that has this id with the same agent and input, ended or not.

        `aliases` are the names that the agent had before, `group` is the group to which it belongs, if any,
        `deadline` when it is called off, in Unix seconds.
        `birth` is that of the task, if it is made; by default a random one. `claim` claims it in the same append, and
        that is tried once: StoreUnavailableError then, and one asks again without it.
        When it returns, the task is in the store. Raises TaskConflictError where the id is in use otherwise; nothing
        is changed then.
        """
        options: dict[str, Any] = {"group": group} if group else {}
        options |= {"deadline": deadline} if deadline is not None else {}
        birth = birth or secrets.token_hex(8)
        created = Created(task_id, 1, self.now(), birth, agent, arguments, parent, tags, options)
        task, events = _begun(created), list[TaskEvent]([created])
        if claim is not None:
            events += claim(task, created.timestamp)
            fold(task, events[1:])
        token = self.token()
        rows = [self.mapper.to_stored_event(event, birth=created.birth, token=token) for event in events]
        away = self.patience.waiter()
        while True:
            try:
                self.recorder.insert_events(rows, entry=index_row(task), expected=None)
            except AppendConflictError:
                break
            except IntegrityError:
                raise UnreadableTaskError(
                    f"task {task_id}: its log is there, its index row is not: make the index again, by {REINDEX}",
                    task_id=task_id,
                    version=1,
                ) from None
            except StoreUnavailableError as error:
                if claim is not None:
                    raise
                away(error)
            else:
                return task
        return self._in_use(created, (agent, *aliases))

    def birth(self, created: Created) -> Birth:
        """Give what makes a task: its first row, and its index row."""
        row = self.mapper.to_stored_event(created, birth=created.birth, token=self.token())
        return Birth(row, index_row(_begun(created)))

    def taken(self, task_id: str) -> TaskConflictError:
        """Name the conflict of a child that cannot be spawned, since its id is in use."""
        return TaskConflictError(f"task {task_id} exists already, and is no child of its parent", task_id=task_id)

    def _in_use(self, created: Created, names: Collection[str]) -> AgentTask:
        """Settle a spawn under an id that is in use; after a lost acknowledgement it may be our own."""
        task = fold(None, self.events.get(created.originator_id, lte=1))
        if task is None:
            raise UnknownTaskError(f"task {created.originator_id} was deleted meanwhile", task_id=created.originator_id)
        same = task.agent in names and dumps(task.input) == dumps(created.input)
        group = created.options.get("group", "")
        if task.birth == created.birth:
            return self.load(created.originator_id)
        if same and group in ("", task.group):
            return task
        what = "other input" if task.agent in names else f"agent {task.agent}"
        what = f"group {task.group or 'none'}" if same else what
        raise TaskConflictError(
            f"task {task.id} exists already, with {what}: it was spawned as {call_text(task.agent, task.input)}, asked"
            f" for is {call_text(created.agent, created.input)}. Nothing was changed; choose another id",
            task_id=task.id,
        )

    def mark_unreadable(self, error: UnreadableTaskError) -> IndexRow | None:
        """Hold a task in its index row alone: nothing is ever appended to a log that cannot be read. Gives its row."""
        row = self.recorder.select_entry(error.task_id)
        if row is None:
            return None
        held = row._replace(status="held", due=None, owner=None, hold=UNREADABLE, note=str(error))
        if held != row:
            logger.error("%s. The task is held; mended, it goes on after: perdure release %s", error, quote(row.id))
            self.recorder.update_index(held._replace(updated=self.now()), expected=(row.birth, row.head))
        self.hint(row.id)
        return row

    def mended(self, row: IndexRow, *, by_a_person: bool) -> bool:
        """Look at an unreadable task again, and let it go on where its log can be read. Raises UnreadableTaskError.

        A log that ends before its index row says goes on only by a person's word: what is missing may have been done.
        """
        task = self.load(row.id, None if by_a_person else Patience(0.0))
        if not by_a_person and (task.birth, task.version) != (row.birth, row.head):
            raise self._astray(row, task)
        self.recorder.update_index(index_row(task), expected=(row.birth, row.head))
        return task.held is None

    def _astray(self, row: IndexRow, task: AgentTask) -> UnreadableTaskError:
        return UnreadableTaskError(
            f"task {task.id}: its index row says birth {row.birth} and version {row.head}, its log says birth"
            f" {task.birth} and ends at version {task.version}: one of them was changed from outside",
            task_id=task.id,
            version=task.version + 1,
        )

    def astray(self, task: AgentTask, row: IndexRow | None) -> PerdureError:
        """Name a conflict for which the log has no cause: the task was deleted, or its index row is not its log's."""
        if row is None or self.load(task.id).birth != task.birth:
            return UnknownTaskError(f"task {task.id} was deleted while it ran", task_id=task.id)
        return self._astray(row, task)

    def compare(self, task_id: str) -> None:
        """Look why a task that is due could not be claimed, and mend its index row where it is not what its log says.

        Raises UnreadableTaskError where log and index row are not of one task, or the log is the shorter.
        """
        row = self.recorder.select_entry(task_id)
        if row is None:
            return
        task = self.load(task_id)
        if row.birth != task.birth or row.head > task.version:
            if self.recorder.select_entry(task_id) != row:
                return  # it was deleted, and made anew, between the two looks
            raise self._astray(row, task)
        if row.head == task.version and not fits(row, task):
            logger.warning("the index row of task %s was changed from outside; it is made again from the log", task_id)
            with suppress(AppendConflictError):
                self.recorder.update_index(index_row(task), expected=(row.birth, row.head))
                self.hint(task_id)

    def rebuild_index(self) -> list[IndexRow]:
        """Rebuild the index from the log, and find what cannot be read by reading. Returns the new rows.

        Raises PerdureError, and changes nothing, while a worker lives: it would lose what it owns.
        """
        live = self.store.workers.live()
        if live:
            raise PerdureError(f"the index cannot be rebuilt while a worker lives: {', '.join(sorted(live))}")
        return self.recorder.rebuild_index(self._row_from_log)

    def _row_from_log(self, task_id: str, old: IndexRow | None) -> IndexRow | None:
        if is_stream(task_id):
            return entity_row(self.recorder, task_id, old)
        try:
            return index_row(self.load(task_id))
        except UnreadableTaskError as error:
            row = old or IndexRow(task_id, "", error.version - 1, 0, "held", "?", 0.0, 0.0, None, None, 0, None, "")
            return row._replace(status="held", due=None, owner=None, hold=UNREADABLE, note=str(error))

    @contextmanager
    def watch(self, task_id: str, event: SomeEvent) -> Iterator[SomeEvent]:
        """Set an event each time the task has ended or is held in this process, or its actor here is gone.

        And when another process says so, where the store tells of that: it is listened to from the first watch on.
        """
        self.listen()
        with self._watching:
            self._watchers.setdefault(task_id, set()).add(event)
        try:
            yield event
        finally:
            with self._watching:
                events = self._watchers[task_id]
                events.discard(event)
                if not events:
                    del self._watchers[task_id]

    def listen(self, wake: Callable[[str], object] = str) -> None:
        """Have hints come from other processes too, where the store tells of them; `wake` is called with each id.

        An id is "" where it is not known of which task there is news. Called again it does nothing.
        """

        def heard(ids: Collection[str] | None) -> None:
            with self._watching:
                ids = list(self._watchers) if ids is None else ids
            for task_id in ids:
                self.hint(task_id)
                wake(task_id)
            wake("")

        with self._watching:
            if self._deafen is None:
                self._deafen = self.store.listen(heard)

    def deafen(self) -> None:
        """Hear nothing of other processes any more."""
        if self._deafen is not None:
            self._deafen()

    def hint(self, task_id: str, task: AgentTask | None = None) -> None:
        """Wake who watches a task here; a hint only, the log is what counts. `task`: what the log has, if it is known.

        An EndBell hears of the task's end by it, and need not ask the store.
        """
        with self._watching:
            for event in self._watchers.get(task_id, ()):
                if task is not None and task.ending is not None and isinstance(event, EndBell):
                    event.heard = task.birth, task.ending
                event.set()


def _begun(created: Created) -> AgentTask:
    task = fold(None, [created])
    assert task is not None  # noqa: S101  it is its first event
    return task


def _in_utf_8(text: str) -> str:
    """Give a text that every database can hold: what people and programs have said may not be one."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _marked(task: AgentTask) -> str | None:
    """Give the kind of hold of a task; or what else makes a row one that is looked for."""
    if task.held is not None:
        return task.held.reason
    if task.ending is not None:
        return UNTOLD if task.parent else None
    return ASKS if task.open_pauses else None


def fits(row: IndexRow, task: AgentTask) -> bool:
    """Tell whether an index row is what the task's log says; whether its parent was told is not in its log."""
    said = index_row(task)
    return row == said or (said.hold == UNTOLD and row == said._replace(hold=None))


def index_row(task: AgentTask) -> IndexRow:
    """Give the index row that follows from a task's log; due is what stands in line, and since when."""
    return IndexRow(
        task.id,
        task.birth,
        task.version,
        task.activation,
        task.status,
        task.agent,
        task.created,
        task.updated,
        None if task.due is None else task.line,
        task.worker,
        task.suspicion,
        _marked(task),
        _in_utf_8(headline(task)),
    )
