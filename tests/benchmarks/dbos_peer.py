"""DBOS Transact for Python, used as its documentation does it.

Workflows and steps: docs.dbos.dev/python/tutorials/workflow-tutorial and …/step-tutorial. Settings:
docs.dbos.dev/python/reference/configuration and …/tutorials/database-connection; none but the database is chosen here
(and a quieter log), for the defaults are what is documented. A step's outcome is committed before the workflow goes on.

Of its ways to run many workflows at once the two quickest are measured: `start_workflow`, a thread for each, and
`start_workflow_async`, a coroutine for each. A queue (…/tutorials/queue-tutorial) adds a poll of a second.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from dbos import DBOS, DBOSConfig, SetWorkflowID

from tests.benchmarks.contender import path_of
from tests.benchmarks.raw import TASK
from tests.benchmarks.work import WORD, work

FAR = 1e8


@DBOS.step()
def small_step(word: str, number: int) -> str:
    return work(number)


@DBOS.workflow()
def small_steps(count: int) -> None:
    for number in range(count):
        small_step(WORD, number)


@DBOS.step()
async def async_step(word: str, number: int) -> str:
    return work(number)


@DBOS.workflow()
async def async_steps(count: int) -> None:
    for number in range(count):
        await async_step(WORD, number)


# Async, for its recovery then costs a coroutine, where a sync one would cost a thread each.
@DBOS.workflow()
async def sleeper() -> None:
    await DBOS.sleep_async(FAR)


class Transact:
    """A thread for each workflow. One workflow is called directly, which is the quickest."""

    @contextmanager
    def open(self, url: str) -> Iterator[None]:
        """Launch; that also recovers what an earlier process left."""
        config: DBOSConfig = {"name": "benchmark", "system_database_url": url, "log_level": "ERROR"}
        DBOS(config=config)
        DBOS.launch()
        yield
        DBOS.destroy()

    def run(self, tasks: int, steps: int) -> None:
        """Call one, or start all and wait."""
        if tasks == 1:
            small_steps(steps)
            return
        for handle in [DBOS.start_workflow(small_steps, steps) for _ in range(tasks)]:
            handle.get_result()

    def begin(self, steps: int) -> None:
        """Run under an id."""
        with SetWorkflowID(TASK):
            small_steps(steps)

    def start_over(self, steps: int) -> None:
        """Wait for what the launch has recovered: docs.dbos.dev/python/tutorials/workflow-tutorial, "Reliability"."""
        DBOS.retrieve_workflow(TASK).get_result()

    def fall_asleep(self, name: str) -> None:
        """Let one sleep, until its wake-up time is a row."""
        with SetWorkflowID(name):
            DBOS.start_workflow(sleeper)
        while not any(step["function_name"] == "DBOS.sleep" for step in DBOS.list_workflow_steps(name)):
            time.sleep(0.01)


class AsyncTransact(Transact):
    """A coroutine for each workflow."""

    def run(self, tasks: int, steps: int) -> None:
        """Start all and wait, on one loop."""

        async def all_of_them() -> None:
            for handle in [await DBOS.start_workflow_async(async_steps, steps) for _ in range(tasks)]:
                await handle.get_result()

        asyncio.run(all_of_them())


class WALTransact(Transact):
    """The same on a file that was switched to WAL before; DBOS keeps what it finds, and `synchronous` stays FULL."""

    @contextmanager
    def open(self, url: str) -> Iterator[None]:
        """Switch, and launch."""
        with closing(sqlite3.connect(path_of(url))) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        with super().open(url):
            yield
