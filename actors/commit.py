"""The one way in which events get into a store, whatever stumbles: design §5.7."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eventsourcing.persistence import StoredEvent

from stores import AppendConflictError, IndexRow, StoreUnavailableError, TaskRecorder
from stores.task_index import Birth, Expected


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
