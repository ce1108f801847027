"""What a store raises.

StoreError
├── StoreUnavailableError    locked, full, unreachable, or a commit of unknown fate: try again later
├── StoreCorruptError        damaged, or not a store of perdure
├── NewerStoreError          written by a newer perdure
├── InvalidStoreURLError     the URL says nothing that can be opened (a ValueError too)
├── AppendConflictError      the index row is not as the append expected it
├── StoreClosedError         used after its close
└── StoreForkedError         used in a child made by fork

All of them pickle, and carry as attributes what their message says.
"""

from stores.task_index import Expected, IndexRow


class StoreError(Exception):
    """Base of the errors that a store raises by its own word.

    `url`: the store, as `Store.url` has it, or "" where that is not known.
    """

    def __init__(self, message: str, *, url: str = "") -> None:
        super().__init__(message)
        self.url = url


class StoreUnavailableError(StoreError):
    """Raised when the store cannot serve now: locked beyond the limit, disk full, I/O error, unknown fate.

    `reason`: the words of the operating system or of the database. `unknown_fate`: True when the error came
    out of the commit itself, so that only reading back tells whether the append is stored.
    """

    def __init__(self, message: str, *, url: str = "", reason: str = "", unknown_fate: bool = False) -> None:
        super().__init__(message, url=url)
        self.reason = reason
        self.unknown_fate = unknown_fate


class StoreCorruptError(StoreError):
    """Raised when the file is damaged, or is not a store of perdure; nothing was changed in it."""


class NewerStoreError(StoreError):
    """Raised when a newer perdure wrote the store; not a byte was changed in it.

    `found`: the schema version in the file. `known`: the newest that this perdure can read.
    """

    def __init__(self, message: str, *, url: str = "", found: int = 0, known: int = 0) -> None:
        super().__init__(message, url=url)
        self.found = found
        self.known = known


class InvalidStoreURLError(StoreError, ValueError):
    """Raised when a store URL cannot be understood; the message lists the forms that can."""


class StoreClosedError(StoreError):
    """Raised when a store is used after its `close()`."""


class StoreForkedError(StoreError):
    """Raised when a child made by fork uses a store that its parent opened; the parent's is unharmed."""


class AppendConflictError(StoreError):
    """Raised when the index row is not as the append expected it; nothing was written.

    `expected`: birth and head, or None for "no such task yet". `found`: the row that stands there, or None.
    `task_id`: the task.
    """

    def __init__(self, expected: Expected, found: IndexRow | None, task_id: str = "", url: str = "") -> None:
        self.expected = expected
        self.found = found
        self.task_id = task_id or (found.id if found else "")
        super().__init__(str(self), url=url)
        self.args = (expected, found, self.task_id, url)  # what pickle calls the class with

    def __str__(self) -> str:
        def words(mark: Expected) -> str:
            return "no such task" if mark is None else f"birth {mark[0]} at version {mark[1]}"

        found = (self.found.birth, self.found.head) if self.found else None
        return f"task {self.task_id!r}: the append expected {words(self.expected)}, the store has {words(found)}"
