"""What every store's recorder can do: the library's recorder, with an index row in each append.

One contract suite (`stores.contract`) holds all of them to it, also those that others write.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn
from uuid import UUID

from eventsourcing.persistence import ApplicationRecorder, StoredEvent

from stores.emissions import Emission
from stores.orphans import Orphans
from stores.task_index import START, Birth, Expected, IndexRow, Place

RowOf = Callable[[str, IndexRow | None], IndexRow | None]


class TaskRecorder(ApplicationRecorder):
    """Stored events and the task index, changed together or not at all; beside them heartbeats, emissions, beats.

    Guarantee: an append that returned is committed, and survives what its store's docstring says; one that
    raised AppendConflictError, IntegrityError or an error of `inside` has left nothing. Any thread may
    call; appends take turns. Not guaranteed: after StoreUnavailableError with `unknown_fate` the append may
    be stored; read back.

    Every method raises StoreUnavailableError, StoreCorruptError, StoreClosedError and StoreForkedError; no
    error of the database driver goes through.
    """

    @abstractmethod
    def insert_events(  # type: ignore[override]  # an append without its index row must not type-check
        self,
        stored_events: Sequence[StoredEvent],
        *,
        entry: IndexRow,
        expected: Expected,
        inside: Callable[[], None] | None = None,
        births: Sequence[Birth] = (),
    ) -> None:
        """Append the events and set the index row to `entry`, if the row is as expected; one transaction.

        `expected` None: there must be no row yet. `births` are other tasks that are made in it: of these there must be
        no row either. `inside` is called before the commit, with everything written; what it raises (BaseException
        included) undoes all and goes on to the caller.

        Raises AppendConflictError (row not as expected; its `task_id` says whose), eventsourcing's IntegrityError
        (row as expected, but an event of that version stands in the log), ValueError (events that do not lead from
        `expected` to `entry.head`, a birth that is none, an id twice).
        """

    @abstractmethod
    def submit_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        entry: IndexRow,
        expected: Expected,
        done: Callable[[BaseException | None], object],
        inside: Callable[[], None] | None = None,
        births: Sequence[Birth] = (),
    ) -> None:
        """Begin the same append and return. Waits for no disk, no lock and no server.

        `done` is called once, on any thread, perhaps before this returns: with None when it is committed, else with
        what `insert_events` would have raised. It has to be quick, and must not write to this store.

        Raises ValueError like `insert_events`; StoreUnavailableError where too many appends wait already, or the
        machine has no thread left; StoreClosedError; StoreForkedError. `done` is not called then.
        """

    @abstractmethod
    def update_index(self, entry: IndexRow, *, expected: tuple[str, int]) -> None:
        """Set the index row alone, by the same compare-and-swap; AppendConflictError if it fails."""

    @abstractmethod
    def rebuild_index(self, row_of: RowOf) -> list[IndexRow]:
        """Make the index consist of what `row_of` gives, and return it. For a rebuild while no worker lives.

        `row_of` is called with each id in the log and its old row, if any, and may read the log; None leaves the id
        out. One transaction: nobody appends between what it reads and what is written.
        """

    @abstractmethod
    def delete_task(self, task_id: str, *, expected: tuple[str, int]) -> None:
        """Delete a task, if its row is as expected: events, row, heartbeats, emissions; one transaction.

        Its id is free then: a later task under it has another birth. Raises AppendConflictError, with nothing deleted.

        Not guaranteed: that its bytes stand nowhere any more; see `Store.vacuum`.
        """

    @abstractmethod
    def delete_orphans(self) -> int:
        """Delete the heartbeats and emissions that `select_orphans` gives; returns how many rows they were."""

    @abstractmethod
    def select_orphans(self) -> list[Orphans]:
        """Give the heartbeats and emissions that no task has, by table, id and birth.

        Those are of an id that the index has with another birth, or that neither index nor log has.
        """

    @abstractmethod
    def schema_version(self) -> int:
        """Give the version of the store's schema as it is now: a newer process may have raised it meanwhile."""

    @abstractmethod
    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> list[StoredEvent]:
        """Give the events of one task by version: above `gt`, up to `lte`, at most `limit`."""

    @abstractmethod
    def select_entry(self, task_id: str) -> IndexRow | None:
        """Give the index row of one task, or None."""

    @abstractmethod
    def select_rows(self, ids: Collection[str]) -> dict[str, IndexRow]:
        """Give the index rows of these tasks by id, of those that have one, at the price of a few statements.

        Not guaranteed: that they are all of one moment; each row is as it was at some moment of the call.
        """

    @abstractmethod
    def select_entries(
        self,
        *,
        status: Collection[str] | None = None,
        agent: str | None = None,
        hold: Collection[str] | None = None,
        prefix: str | None = None,
        after: float | None = None,
        limit: int | None = None,
    ) -> list[IndexRow]:
        """Give the rows that match all that is given, newest created last; only the newest `limit`.

        `prefix`: what the id begins with, exactly: code point by code point, no wildcards, case matters. `after`:
        Unix seconds; only rows whose `updated` is later. With `hold` or `prefix` no more is read than what matches
        that; all else reads every row.

        Not guaranteed: that asking `after` the newest `updated` seen finds all that has changed. The column is what
        the writer says it is: by its own clock, from before its commit, and mostly left alone by who changes only the
        row.
        """

    @abstractmethod
    def select_page(self, *, after: str = "", limit: int) -> list[IndexRow]:
        """Give the rows whose id comes after this one, in the order of code points; at most `limit`."""

    @abstractmethod
    def select_held(self, hold: str, *, after: Place = START, limit: int) -> list[IndexRow]:
        """Give the rows with this kind of hold that come after a place, by `updated`, then id; at most `limit`.

        No more is read than what is given. What `select_entries` does not guarantee of `after`, is not here either.
        """

    @abstractmethod
    def select_ready(
        self,
        now: float,
        *,
        agents: Collection[str],
        busy_owners: Collection[str],
        after: Place = START,
        limit: int,
    ) -> list[IndexRow]:
        """Give rows that may be claimed: due, of these agents, owned by none of `busy_owners`.

        `now`: Unix seconds. By due time, then id, those that come after a place; at most `limit`. However many rows
        there are, what is read beyond those given is little: one for each agent, and those of busy owners.
        """

    @abstractmethod
    def next_due(self, after: float, *, agents: Collection[str]) -> float | None:
        """Give the earliest due time of tasks of these agents that is later than `after`, or None."""

    @abstractmethod
    def save_heartbeat(self, task_id: str, birth: str, path: str, attempt: int, detail: str) -> None:
        """Set the one heartbeat of a step; committed when it returns. Neither log nor index is read or written.

        A row of another birth is replaced. A lower attempt than that of the row, of the same birth, changes nothing
        and is no error: the late heartbeat of a body that was given up must not overwrite its successor's. Not
        guaranteed: anything between two births; it is the reader who says which one it means.

        `path`: the step. `attempt`: number of the entry into its body. `detail`: any text that UTF-8 can hold; it
        has no meaning here.
        """

    @abstractmethod
    def select_heartbeat(self, task_id: str, birth: str, path: str) -> tuple[int, str] | None:
        """Give attempt and detail of a step's last heartbeat; None when there is none, or one of another birth."""

    @abstractmethod
    def delete_heartbeats(self, task_id: str, path: str | None = None) -> None:
        """Delete the heartbeats of a task, whatever their birth, or only that of one step; none is no error.

        Not guaranteed: that none comes later, from a body that is still running.
        """

    @abstractmethod
    def save_emissions(self, task_id: str, birth: str, rows: Sequence[Emission]) -> None:
        """Store what a task has said, in this order, after what it said before; all or nothing, and never in the log.

        Left out are: all of it where the index has no row of that task and birth; what is of an older activation than
        that row's; a reset where nothing of its path was stored since its last one. Of a task the newest 10,000 rows
        are kept, and none of another birth. `base` and `number` are set here, whatever they are.

        Guaranteed: (base, number) rises from commit to commit, and a row with base v was committed while v was the
        task's head. Not guaranteed: that nothing is stored twice, asked again after a commit of unknown fate.
        """

    @abstractmethod
    def select_emissions(
        self, task_id: str, birth: str, *, after: tuple[int, int] = (0, 0), upto: int, limit: int
    ) -> list[Emission]:
        """Give what a task has said, in order: rows after this (base, number), of a base of at most `upto`."""

    @abstractmethod
    def delete_emissions(self, task_id: str) -> None:
        """Delete what a task has said, whatever its birth; none is no error. Not guaranteed: that none comes later."""

    @abstractmethod
    def save_beat(self, worker: str, count: int, lease: float) -> None:
        """Set the one beat of a worker; committed when it returns. Any count replaces any other.

        `count`: how often it has beaten. `lease`: seconds for which it is to be taken for alive without a further one.
        Whether there is such a worker is not asked.
        """

    @abstractmethod
    def select_beats(self) -> dict[str, tuple[int, float]]:
        """Give count and lease of each worker's last beat."""

    @abstractmethod
    def delete_beat(self, worker: str) -> None:
        """Delete the beat of a worker; none is no error. Not guaranteed: that none comes later."""

    @abstractmethod
    def select_ids(self, *, after: str = "", limit: int | None = None) -> list[str]:
        """Give the ids in the log that come after this one, sorted; at most `limit`. Reads the log, not the index."""

    def select_notifications(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: nothing here tails the log by a number."""
        raise NotImplementedError(_NO_TAIL)

    def max_notification_id(self) -> NoReturn:
        """Refuse: nothing here tails the log by a number."""
        raise NotImplementedError(_NO_TAIL)

    def subscribe(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: nothing here tails the log by a number."""
        raise NotImplementedError(_NO_TAIL)


_NO_TAIL = "perdure's stores number no events across tasks; ask the task index what has changed"


def check_append(
    stored_events: Sequence[StoredEvent], entry: IndexRow, expected: Expected, births: Sequence[Birth] = ()
) -> None:
    """Raise ValueError unless the events lead, without a gap, from `expected` to the head of the entry.

    A compare-and-swap keeps two writers apart; this keeps one writer with a wrong count from making a log
    that cannot be read.
    """
    head = 0 if expected is None else expected[1]
    for event in stored_events:
        head += 1
        if event.originator_version != head or event.originator_id != entry.id:
            raise ValueError(
                f"task {entry.id!r}: version {head} comes next, "
                f"not version {event.originator_version} of {event.originator_id!r}"
            )
    if entry.head != head:
        raise ValueError(f"task {entry.id!r}: the append ends at version {head}, its index row says {entry.head}")
    ids = {entry.id}
    for birth in births:
        check_append([birth.event], birth.entry, None)
        if birth.entry.id in ids:
            raise ValueError(f"task {birth.entry.id!r} is in one append twice")
        ids.add(birth.entry.id)
