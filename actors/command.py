"""What the commands share: where the store is, which task is meant, and how errors are told."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from typing import Annotated, Any

import typer

from actors.commit import REINDEX
from actors.mapper import is_stream
from actors.target import CommandError
from actors.wording import plain
from domain.errors import UnreadableTaskError
from stores import Store, open_store
from stores.shown_url import shown_url

DEFAULT_STORE = "sqlite:///perdure.db"
SHOWN = 5
"""Ids that are named where several begin with what was typed."""

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="PERDURE_STORE",
        help="Where the tasks are: sqlite:///tasks.db, postgresql://….",
    ),
]
TaskId = Annotated[
    str, typer.Argument(metavar="ID", help="The task's id, or the beginning of one.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead, with times in UTC.")]


def complain(error: Exception) -> None:
    """Tell an error on standard error; a traceback in it keeps its lines."""
    first, *rest = str(error).splitlines() or [type(error).__name__]
    typer.echo("\n".join([f"perdure: {plain(first)}", *[plain(line) for line in rest]]), err=True)


def complain_of_damage(error: UnreadableTaskError) -> None:
    """Tell of a log or an index that is damaged, and how it goes on."""
    complain(error)
    if REINDEX not in str(error):
        typer.echo(f"mended, it goes on after: perdure release {plain(quote(error.task_id))}", err=True)


def existing(url: str, *, looks: bool = False) -> Store:
    """Open a store that is there: looking at tasks never makes a new one.

    `looks`: the command only looks, and leaves the file of an older perdure as it is.
    """
    if url == "memory:":
        raise CommandError("a memory: store is private to the process that made it: there is nothing to see in it")
    path = url.partition("?")[0].removeprefix("sqlite:///")
    if url.startswith("sqlite:///") and path and not os.path.exists(path):
        raise CommandError(f"there is no store {os.path.abspath(path)}: --store or PERDURE_STORE says where it is")
    return open_store(url, make=False, upgrade=not looks)


def options(store: str) -> str:
    """Give the words that a command needs to find the store, where it was named by option."""
    is_known = store in (DEFAULT_STORE, os.environ.get("PERDURE_STORE"))
    return "" if is_known else f" --store {quote(shown_url(store))}"


def full_id(store: Store, typed: str) -> str:
    """Give the id that was typed, or the only one that begins so; what no id begins with is given back as it is.

    Raises CommandError where several begin so.
    """
    recorder = store.recorder
    if not typed or recorder.select_entry(typed) is not None or recorder.select_events(typed, limit=1):
        return typed
    ids = [row.id for row in recorder.select_entries(prefix=typed) if not is_stream(row.id)]
    if len(ids) > 1:
        more = f" and {len(ids) - SHOWN:,} more" if len(ids) > SHOWN else ""
        raise CommandError(f"{len(ids):,} tasks have an id that begins with {typed!r}: {', '.join(ids[:SHOWN])}{more}")
    return ids[0] if ids else typed


@contextmanager
def result_only() -> Iterator[Any]:
    """Keep standard output for the result: what user code and its children print goes to standard error instead.

    Gives the function that writes the result, a text.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)

    def write(result: str) -> None:
        with open(saved, "wb", closefd=False) as out:
            out.write(f"{result}\n".encode())

    try:
        yield write
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def log_to_stderr(*told: str) -> None:
    """Show the library's log where the user has set up none; not what begins as one of `told`."""
    logger = logging.getLogger("perdure")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("perdure: %(message)s"))
        handler.addFilter(lambda record: not record.msg.startswith(told))
        logger.addHandler(handler)
