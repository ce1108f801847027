"""One task and its descendants, for a worker that is there for that one task."""

from __future__ import annotations

from actors.directory import Directory
from actors.task_log import TaskLog
from domain.errors import PerdureError
from stores import IndexRow


class Family:
    """A task, its children, and theirs, as their logs have them. For one thread.

    The log of one that does not run here is read again only where it has changed.
    """

    def __init__(self, log: TaskLog, directory: Directory, root: str) -> None:
        self._log = log
        self._directory = directory
        self._root = root
        self._children: dict[str, tuple[int, list[str]]] = {}

    def rows(self) -> list[IndexRow]:
        """Give the index rows of all of them. Raises the store's errors."""
        found: dict[str, IndexRow] = {}
        generation = [self._root]
        while generation:
            rows = self._log.recorder.select_rows([one for one in generation if one not in found])
            found |= rows
            generation = [child for row in rows.values() for child in self._children_of(row)]
        return list(found.values())

    def _children_of(self, row: IndexRow) -> list[str]:
        actor = self._directory.hosted().get(row.id)
        if actor is not None and actor.activation is not None:
            return list(actor.activation.task.children.copy())
        head, children = self._children.get(row.id, (0, []))
        if head != row.head:
            try:
                children = list(self._log.load(row.id).children)
            except PerdureError:  # it cannot be read: nobody runs it
                children = []
            self._children[row.id] = row.head, children
        return children
