"""The commands that look after a store: delete, vacuum, verify, reindex. None of them runs a task."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import closing
from shlex import quote
from typing import Annotated

import typer

from actors.command import DEFAULT_STORE, StoreUrl, existing, full_id, options
from actors.entity_log import EntityLog
from actors.keeping import checked_endings
from actors.mapper import is_stream
from actors.patience import Patience
from actors.showing import counted
from actors.system import AgentSystem
from actors.target import CommandError
from actors.task_log import TaskLog
from actors.verify import Read, verify
from actors.wording import plain
from domain.retry import MOST_SECONDS
from domain.state import ENDED, UNREADABLE, Status
from stores import Store, StoreCorruptError

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
"""Seconds of what follows the number of an age."""


def delete(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="The task's whole id.", show_default=False)] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="All that ended so long ago: 90s, 45m, 12h, 30d.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="S", help=f"With --older-than: which of {','.join(ENDED)}; all by default."),
    ] = None,
    entity: Annotated[
        str | None, typer.Option("--entity", metavar="TOPIC", help="ID is that of an entity of this TOPIC.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also a task whose log cannot be read.")] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Do what `perdure vacuum` does, after it.")] = False,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Delete a task, an entity, or what ended some time ago.

    Log, index row, heartbeats and what was emitted go, in one transaction for each task. One that has not ended is
    refused, with the command that ends it. A parent is told of its child's end first. An entity is new then: workers
    that have it in memory do its next command on nothing. In an SQLite file some text may stand in unused parts until
    `perdure vacuum`.

    Exit code: 0 deleted, 2 not.
    """
    if (id is None) == (older_than is None):
        raise CommandError("say one of two: a task's ID, or --older-than AGE")
    if (older_than is not None or entity is not None) and force:
        raise CommandError("--force is for one task, by its ID")
    if id is not None and status is not None:
        raise CommandError("--status goes with --older-than AGE: what has an ID is deleted whatever its ending is")
    if id is None and entity is not None:
        raise CommandError("--entity TOPIC is for one entity, by its ID")
    with closing(existing(store)) as opened, AgentSystem(opened, run=False) as system:
        deleted = 1
        if id is None:
            deleted = system.delete_ended(age_of(older_than or ""), status=_endings(status))
            typer.echo(f"{counted(deleted, 'task')} deleted")
        elif entity is not None:
            _delete_entity(opened, entity, id)
        else:
            _check_id(opened, id)
            system.task(id).delete(force=force)
            typer.echo(plain(f"{id}: deleted"))
        if deleted or vacuum:
            _clear(opened, store, vacuum=vacuum)


def _delete_entity(store: Store, topic: str, id: str) -> None:
    """Delete an entity, whose class need not be known here."""
    if not EntityLog(store).delete(topic, id, Patience()):
        raise CommandError(f"there is no entity {id!r} of TOPIC {topic!r} in {store.url}")
    typer.echo(plain(f"{topic} {id}: deleted"))


def _check_id(store: Store, id: str) -> None:
    """Refuse the beginning of an id: what is deleted is gone."""
    try:
        full = full_id(store, id)
    except CommandError as error:
        raise CommandError(f"{error}; to delete a task its whole id is wanted") from None
    if full != id:
        raise CommandError(f"there is no task {id!r}: to delete one its whole id is wanted, such as {quote(full)}")


def _endings(status: str | None) -> Collection[Status]:
    chosen = ENDED if status is None else [one.strip() for one in status.split(",")]
    if wrong := [one for one in chosen if one not in ENDED]:
        raise CommandError(f"--status: only what has ended is deleted, {' or '.join(ENDED)}; not {wrong[0]!r}")
    return checked_endings(chosen)


def age_of(text: str) -> float:
    """Give an age in seconds. Raises CommandError.

    >>> age_of("90s"), age_of("1.5h"), age_of("30d")
    (90.0, 5400.0, 2592000.0)
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text)
    if found is None:
        raise CommandError(f"--older-than takes a number and s, m, h, d or w, such as 30d, not {text!r}")
    seconds = float(found[1]) * UNITS[found[2]]
    if seconds > MOST_SECONDS:
        raise CommandError(f"--older-than is at most {MOST_SECONDS / UNITS['d']:,.0f}d, not {text!r}")
    return seconds


def _clear(store: Store, url: str, *, vacuum: bool) -> None:
    """Take what was deleted out of the database's files, as far as that was asked for; say what is left."""
    if vacuum:
        store.vacuum()
        return
    emptied = store.empty_journal()
    where = "unused parts of the file" if emptied else "the write-ahead log, which others read, and unused parts"
    typer.echo(f"some text may still stand in {where}, until: perdure vacuum{options(url)}", err=True)


def vacuum(store: StoreUrl = DEFAULT_STORE) -> None:
    """Make the store anew: no trace of what was deleted is left.

    The room that it took is free then. It needs as much room again meanwhile. Others can read, and wait to write.
    """
    with closing(existing(store)) as opened:
        opened.vacuum()
        typer.echo(plain(f"{opened.url}: done"))


def verify_store(store: StoreUrl = DEFAULT_STORE) -> None:
    """Read and replay everything, and say what is wrong and where.

    Checksums, gaps, endings, the index against the logs, orphans, and the file itself. Nothing is changed; workers may
    go on meanwhile. Whether today's code fits the open tasks is for `perdure check`.

    Exit code: 0 sound, 1 something is wrong.
    """
    read, wrong = Read(), 0
    try:
        with closing(existing(store, looks=True)) as opened:
            for text in verify(TaskLog(opened), read):
                typer.echo(plain(text))
                wrong += 1
            url = opened.url
    except StoreCorruptError as error:
        typer.echo(plain(str(error)))
        raise typer.Exit(1) from None
    verdict = "sound" if not wrong else f"{counted(wrong, 'thing is', 'things are')} wrong"
    found = [counted(read.tasks, "task"), counted(read.events, "event")]
    found[1:1] = [counted(read.entities, "entity", "entities")] if read.entities else []
    typer.echo(plain(f"{url}: {', '.join(found)}: {verdict}"), err=wrong > 0)
    if wrong:
        raise typer.Exit(1)


def reindex(store: StoreUrl = DEFAULT_STORE) -> None:
    """Make the index again from the logs.

    Refused while a worker lives. A task whose log cannot be read is held, and named.

    Exit code: 0 done, 1 done, and some logs cannot be read, 2 not done.
    """
    with closing(existing(store)) as opened:
        rows = TaskLog(opened).rebuild_index()
        entities = sum(is_stream(row.id) for row in rows)
        typer.echo(
            plain(f"{opened.url}: {counted(len(rows) - entities, 'task')}, {counted(entities, 'entity', 'entities')}")
        )
    unreadable = [row for row in rows if row.hold == UNREADABLE]
    for row in unreadable:
        typer.echo(plain(row.note), err=True)
    if unreadable:
        raise typer.Exit(1)
