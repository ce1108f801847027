"""Who is measured: perdure's kinds of step, the bare database, and its peers, each with what its commits are worth.

All of them commit each step before the next one begins. W4 sees to it that no finished step runs again after a kill;
`PRAGMA synchronous` of the peers' own connections is 2 (FULL), which is SQLite's default; DBOS commits a row a step,
LangGraph a row for each write and one for the checkpoint, in two transactions.

A peer that is not installed is left out, with a word: `pip install 'perdure[bench]'` brings them.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
WAL = "WAL, FULL"
SYNC = "synchronous_commit=on"


@dataclass(frozen=True)
class Entry:
    """A contender as it is shown.

    Args:
        label: its name on the table.
        factory: `module:callable` that makes it, imported only in its own process.
        durability: by database, which settings its commits have; a database that is not there is not measured.
        needs: the package without which it cannot be.
        dies_asleep: its process is not to close in order when its task sleeps, since it would wait for it.
    """

    label: str
    factory: str
    durability: dict[str, str]
    needs: str = "actors"
    dies_asleep: bool = False


_BOTH = {SQLITE: WAL, POSTGRES: SYNC}
_GRAPH = {SQLITE: f"{WAL}, durability=sync", POSTGRES: f"{SYNC}, durability=sync"}
_SHIPPED = {SQLITE: "as shipped: rollback journal, FULL", POSTGRES: SYNC}
_HERE = "tests.benchmarks"

CONTENDERS: dict[str, Entry] = {
    "raw": Entry("raw commits", f"{_HERE}.raw:Raw", _BOTH),
    "perdure": Entry("perdure", f"{_HERE}.ours:default", _BOTH),
    "idempotent": Entry("perdure, idempotent steps", f"{_HERE}.ours:idempotent", _BOTH),
    "async": Entry("perdure, async agents", f"{_HERE}.ours:asynchronous", _BOTH),
    "dbos": Entry("DBOS", f"{_HERE}.dbos_peer:Transact", _SHIPPED, "dbos", dies_asleep=True),
    "dbos-async": Entry("DBOS, async", f"{_HERE}.dbos_peer:AsyncTransact", _SHIPPED, "dbos", dies_asleep=True),
    "dbos-wal": Entry("DBOS", f"{_HERE}.dbos_peer:WALTransact", {SQLITE: WAL}, "dbos", dies_asleep=True),
    "langgraph": Entry("LangGraph", f"{_HERE}.langgraph_peer:LangGraph", _GRAPH, "langgraph"),
    "langgraph-1": Entry("LangGraph, one by one", f"{_HERE}.langgraph_peer:LangGraphOneByOne", _GRAPH, "langgraph"),
}
PEERS = tuple(name for name, entry in CONTENDERS.items() if entry.needs != "actors")


def installed(name: str) -> bool:
    """Tell whether a contender's package is there."""
    return importlib.util.find_spec(CONTENDERS[name].needs) is not None
