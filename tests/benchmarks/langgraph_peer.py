"""LangGraph, used as its documentation does it: a graph whose node comes round until the task is done.

The loop: docs.langchain.com/oss/python/langgraph/use-graph-api, "Create and control loops". The savers:
docs.langchain.com/oss/python/langgraph/persistence (`from_conn_string`; PostgreSQL's wants `setup()` once).
`durability="sync"`: docs.langchain.com/oss/python/langgraph/durable-execution, "Durability modes"; it is the only mode
that writes a checkpoint before the next step begins.

The state keeps only the latest result. Were it to collect them, each checkpoint would hold all that came before, and
the cost would grow with the square of the steps.

The functional API (`@entrypoint`, `@task`) is not measured: what its tasks write is handed to a thread in the
background in every mode, so a task's result may be lost though the next one has begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from tests.benchmarks.contender import path_of
from tests.benchmarks.raw import TASK
from tests.benchmarks.work import work


class State(TypedDict):
    """Where a task is."""

    word: str
    number: int
    count: int
    result: str


def small_step(state: State) -> dict[str, Any]:
    return {"result": work(state["number"]), "number": state["number"] + 1}


def what_next(state: State) -> str:
    return "small_step" if state["number"] < state["count"] else END


def sleeper(state: State) -> dict[str, Any]:
    return {"result": interrupt("for years")}


class LangGraph:
    """Many tasks by `batch`, with the number of threads that it takes by default."""

    threads: int | None = None

    def __init__(self) -> None:
        self._names = iter(range(1_000_000_000))

    @contextmanager
    def open(self, url: str) -> Iterator[None]:
        """Open the saver, and compile the graph with it."""
        with self._saver(url) as saver:
            saver.setup()
            builder = StateGraph(State)
            builder.add_node("small_step", small_step)
            builder.add_edge(START, "small_step")
            builder.add_conditional_edges("small_step", what_next, ["small_step", END])
            self._graph = builder.compile(checkpointer=saver)
            sleeping = StateGraph(State)
            sleeping.add_node("sleeper", sleeper)
            sleeping.add_edge(START, "sleeper")
            self._sleeping = sleeping.compile(checkpointer=saver)
            yield

    @staticmethod
    def _saver(url: str) -> Any:
        # Each is imported where it is used: a program has one of them.
        if url.startswith("sqlite"):
            from langgraph.checkpoint.sqlite import SqliteSaver

            return SqliteSaver.from_conn_string(path_of(url))
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver.from_conn_string(url)

    def run(self, tasks: int, steps: int) -> None:
        """Invoke each in a thread of its own name."""
        configs = [self._config(f"task-{next(self._names)}", steps) for _ in range(tasks)]
        self._graph.batch([self._input(steps)] * tasks, configs, durability="sync")

    def begin(self, steps: int) -> None:
        """Invoke under an id."""
        self._graph.invoke(self._input(steps), self._config(TASK, steps), durability="sync")

    def start_over(self, steps: int) -> None:
        """Invoke with no input, which goes on: …/langgraph/durable-execution, "Starting points for resuming"."""
        self._graph.invoke(None, self._config(TASK, steps), durability="sync")

    def fall_asleep(self, name: str) -> None:
        """Interrupt a task. Nothing will wake it by itself: there are no timers here."""
        self._sleeping.invoke(self._input(1), self._config(name, 1), durability="sync")

    def _input(self, steps: int) -> State:
        return {"word": "word", "number": 0, "count": steps, "result": ""}

    def _config(self, name: str, steps: int) -> Any:
        limit = {"max_concurrency": self.threads} if self.threads else {}
        return {"configurable": {"thread_id": name}, "recursion_limit": steps + 10, **limit}


class LangGraphOneByOne(LangGraph):
    """One task after the other, which is quicker here: its savers let one thread in at a time."""

    threads = 1
