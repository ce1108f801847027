"""Trees to look at: the supervision tree of one process, and who works on a store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from actors.entities import Entities
from actors.groups import Child, Group, group_rows, load_group
from actors.mapper import SEPARATOR
from actors.showing import counted
from actors.task_log import TaskLog
from actors.tree import SupervisionTree
from actors.view import headline
from domain.errors import PerdureError
from stores import IndexRow

Where = Callable[[IndexRow, Mapping[str, Any]], str]
"""Says where a task is, by its row and what the living workers say of themselves."""
SHOWN = 100
"""Children of one node that are listed; of more the rest is counted."""


@dataclass(frozen=True)
class TreeNode:
    """One place in a tree, and what stands under it; as a text, the drawn tree.

    `kind`: system, store, supervisor, recovery, lease, worker, group, task, entity or tasks. `name`: which one.
    `detail`: how it is.
    """

    kind: str
    name: str
    detail: str = ""
    children: tuple[TreeNode, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Draw it, line by line."""
        yield f"{self.kind} {self.name}".rstrip() + (f"  {self.detail}" if self.detail else "")
        for child in self.children:
            last = child is self.children[-1]
            for number, line in enumerate(child.lines()):
                branch = ("└── " if last else "├── ") if number == 0 else ("    " if last else "│   ")
                yield branch + line


def node(kind: str, name: str, detail: str, children: Iterable[TreeNode]) -> TreeNode:
    """Give a node with not too many children."""
    listed = list(children)
    if len(listed) > SHOWN:
        listed[SHOWN:] = [TreeNode("…", f"and {len(listed) - SHOWN} more")]
    return TreeNode(kind, name, detail, tuple(listed))


# ------------------------------------------------------------------ one process


def outline_of_process(tree: SupervisionTree | None, entities: Entities) -> TreeNode:
    """Draw what runs in this process: its supervisors, and the actors under each."""
    grouped: dict[str, list[TreeNode]] = defaultdict(list)
    if tree is not None:
        for task_id, actor in sorted(tree.directory.hosted().items()):
            task = actor.appender.task if actor is not None and actor.appender is not None else None
            detail = "starting" if task is None else f"{task.agent}  {task.status}  {headline(task)}"
            grouped[task.group if task is not None else ""].append(TreeNode("task", task_id, detail.rstrip()))
    for box, doing in entities.alive():
        if box.cls is not Group:
            crashes = f", {counted(box.crashes, 'crash', 'crashes')} in a row" if box.crashes else ""
            detail = f"{box.restart}, {doing}{crashes}"
            grouped[box.group].append(TreeNode("entity", str(box), detail))
    alone = grouped.pop("", [])
    groups = [node("group", name, "", children) for name, children in sorted(grouped.items())]
    if tree is None:
        return node("client", "", "runs no tasks", groups + alone)
    parts = [TreeNode(kind, "", state) for kind, state in tree.infrastructure()]
    return node("supervisor", tree.worker.id, "", [*parts, *groups, *alone])


# ------------------------------------------------------------------ a store


def outline_of_store(log: TaskLog, where: Where) -> TreeNode:
    """Draw who works on a store: living workers with their tasks, groups with their children. Raises its errors."""
    workers = log.store.workers.live()
    rows = log.recorder.select_entries(status=("queued", "running", "waiting", "held"))
    owned: dict[str, list[TreeNode]] = defaultdict(list)
    for row in rows:
        if row.owner is not None:
            owned[row.owner].append(_task(row, where(row, workers)))
    children = [
        node("worker", worker, _about(about), owned.pop(worker, ())) for worker, about in sorted(workers.items())
    ]
    children += [
        node("worker", worker, "dead: the next one takes over", lost) for worker, lost in sorted(owned.items())
    ]
    children += [_group(log, row.id.partition(SEPARATOR)[2], workers, where) for row in group_rows(log)]
    counts = Counter(row.status for row in rows if row.owner is None)
    if counts:
        children.append(TreeNode("tasks", ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))))
    return node("store", log.store.url, "" if children else "nobody works on it, and nothing is open", children)


def _about(about: Mapping[str, Any]) -> str:
    facts = [f"pid {about['pid']}"] if "pid" in about else []
    facts += [f"only {about['only']}"] if about.get("only") else []
    agents = about.get("agents", ())
    facts.append(f"agents: {', '.join(agents)}" if agents else "no agents")
    return ", ".join(facts)


def _task(row: IndexRow, detail: str) -> TreeNode:
    return TreeNode("task", row.id, f"{row.agent}  {row.status}  {detail}".rstrip())


def _group(log: TaskLog, name: str, workers: Mapping[str, Any], where: Where) -> TreeNode:
    try:
        group = load_group(log, name, log.patience)
    except PerdureError as error:
        return TreeNode("group", name, str(error))
    return node("group", name, group.strategy, [_child(log, child, workers, where) for child in group.children])


def _child(log: TaskLog, child: Child, workers: Mapping[str, Any], where: Where) -> TreeNode:
    if child.topic:
        return TreeNode("entity", f"{child.topic} {child.id}", child.restart)
    row = log.recorder.select_entry(child.id)
    return TreeNode("task", child.id, "not spawned") if row is None else _task(row, where(row, workers))
