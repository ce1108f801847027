"""The one way in which events get into a store, and logs out of it, whatever stumbles: design §5.7."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eventsourcing.persistence import StoredEvent

from stores import AppendConflictError, IndexRow, StoreUnavailableError, TaskRecorder
from stores.task_index import Birth, Expected

REINDEX = "perdure reindex"
"""What makes the index again; an error that names it needs no other word on how to go on."""


def commit(
    recorder: TaskRecorder,
    rows: Sequence[StoredEvent],
    entry: IndexRow,
    expected: Expected,
    *,
    read_on: Callable[[], list[StoredEvent]],
    away: Callable[[StoreUnavailableError], None],
    inside: Callable[[], None] | None = None,
    births: Sequence[Birth] = (),
) -> list[StoredEvent]:
    """Append rows and their index row, and what is born with them.

    Gives what stands in their place instead, or nothing where they are stored. What stands there may be these very
    rows, by an append whose acknowledgement was lost: their token tells. While the store is away the same rows are sent
    again; `away` waits each time, or raises when patience is out. `read_on` gives the rows beyond what is expected.

    Raises AppendConflictError where the index row is not as expected and no row says why; what `inside` raises.
    """
    while True:
        try:
            recorder.insert_events(rows, entry=entry, expected=expected, inside=inside, births=births)
        except AppendConflictError:
            if found := read_on():
                return found
            raise
        except StoreUnavailableError as error:
            away(error)
            if found := read_on():
                return found
        else:
            return []


def has_lost_its_row(recorder: TaskRecorder, stream: str) -> bool:
    """Tell whether a stream has a log and no index row: the same log before and after a look for the row.

    Between two looks one life of it may end, and another begin: then nothing is lost.
    """
    before = recorder.select_events(stream, limit=1)
    if not before or recorder.select_entry(stream) is not None:
        return False
    return [row.state for row in recorder.select_events(stream, limit=1)] == [row.state for row in before]


def remove(
    recorder: TaskRecorder,
    name: str,
    prepare: Callable[[IndexRow | None], IndexRow | None],
    away: Callable[[StoreUnavailableError], None],
) -> bool:
    """Delete a log and all that belongs to it, by compare-and-swap; tells whether there was one.

    `prepare` sees its row, does what has to be done before, and gives the row that is to go; None where there is none,
    which it may also refuse. It is called again where somebody has changed the log meanwhile, or the store was away.
    """
    tried = ""
    while True:
        row = None
        try:
            found = recorder.select_entry(name)
            if tried and (found is None or found.birth != tried):
                return True  # it was deleted, and the word of that was lost
            row = prepare(found)
            if row is None:
                return False
            recorder.delete_task(name, expected=(row.birth, row.head))
        except AppendConflictError:
            continue
        except StoreUnavailableError as error:
            tried = row.birth if row is not None and error.unknown_fate else tried
            away(error)
        else:
            return True
