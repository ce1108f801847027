"""Turns at one SQLite file: a queue that nobody jumps, which holds nobody up and never decides what is written."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from eventsourcing.persistence import StoredEvent

from stores import IndexRow, SQLiteStore, turns
from stores.file_lock import FileLock
from stores.turns import Turns
from tests.lives import PATIENCE, wait_for
from tests.scenario_kit import Program, World

LOCKS = ("next", "write")


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Turns]:
    ours, before = Turns(str(tmp_path)), threading.enumerate()
    yield ours
    ours.close()
    wait_for(lambda: new(before) == 0)


class Other:
    """Another process, as far as these locks can tell: it has opened the files itself."""

    def __init__(self, folder: Path) -> None:
        self.locks = {name: FileLock(str(folder / name), create=True) for name in LOCKS}

    def takes(self, *names: str) -> bool:
        return all(self.locks[name].try_lock() for name in names)

    def gives(self, *names: str) -> None:
        for name in names:
            self.locks[name].unlock()

    def finds_free(self, *names: str) -> bool:
        free = [name for name in names if self.takes(name)]
        self.gives(*free)
        return free == [*names]


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    other = Other(tmp_path)
    yield other
    for lock in other.locks.values():
        lock.close()


def new(threads: list[threading.Thread]) -> int:
    """Count the threads that were not there before."""
    return sum(thread not in threads for thread in threading.enumerate())


def test_who_has_the_turn_lets_others_stand_in_line_but_not_write(ours: Turns, other: Other) -> None:
    ours.take(0.0)
    assert other.finds_free("next")
    assert not other.finds_free("write")
    ours.give()
    assert other.finds_free("next", "write")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists who waits for a lock")
def test_turns_come_in_the_order_in_which_they_were_asked_for(tmp_path: Path, other: Other) -> None:
    def waiting() -> int:
        inodes = [f":{os.stat(tmp_path / name).st_ino} " for name in LOCKS]
        lines = Path("/proc/locks").read_text().splitlines()
        return sum("-> " in line and any(inode in line for inode in inodes) for line in lines)

    came: list[int] = []

    def write(number: int) -> None:
        crowd[number].take(PATIENCE)
        came.append(number)
        crowd[number].give()

    assert other.takes("write")
    crowd = [Turns(str(tmp_path)) for _ in range(6)]
    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_for(lambda so_many=number + 1: waiting() == so_many)
    other.gives("write")
    for thread, one in zip(threads, crowd, strict=True):
        thread.join(PATIENCE)
        one.close()
    assert came == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", LOCKS)
def test_a_turn_that_does_not_come_is_waited_for_once_and_taken_when_it_comes_again(
    ours: Turns, other: Other, name: str
) -> None:
    assert other.takes(name)
    ours.take(0.05)
    ours.give()
    began = monotonic()
    for _ in range(3):
        ours.take(PATIENCE)
        ours.give()
    assert monotonic() - began < PATIENCE
    other.gives(name)

    def is_waited_for() -> bool:
        wait_for(lambda: other.finds_free("next", "write"))
        ours.take(0.0)
        ours.give()
        wait_for(lambda: other.takes(name))
        began = monotonic()
        ours.take(0.05)
        ours.give()
        other.gives(name)
        return monotonic() - began >= 0.05

    wait_for(is_waited_for)


def test_a_turn_that_comes_too_late_is_that_of_the_write_that_went_on_without(ours: Turns, other: Other) -> None:
    assert other.takes("write")
    ours.take(0.0)
    other.gives("write")
    wait_for(lambda: not other.finds_free("write"))
    wait_for(lambda: other.finds_free("next"))
    ours.give()
    assert other.finds_free("next", "write")


@pytest.mark.parametrize("name", LOCKS)
def test_a_turn_that_nobody_wants_any_more_is_given_back(ours: Turns, other: Other, name: str) -> None:
    assert other.takes(name)
    ours.take(0.0)
    ours.give()
    other.gives(name)
    wait_for(lambda: other.takes("next", "write"))


@pytest.mark.parametrize("name", LOCKS)
def test_who_is_in_a_hurry_waits_for_no_turn(ours: Turns, other: Other, name: str) -> None:
    assert other.takes(name)
    waiting = threading.Thread(target=ours.take, args=(PATIENCE * 10,))
    waiting.start()
    ours.hurry(on=True)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    ours.give()


@pytest.mark.parametrize("name", LOCKS)
def test_who_leaves_the_line_keeps_no_lock_no_descriptor_and_no_thread(ours: Turns, other: Other, name: str) -> None:
    descriptors, threads = len(os.listdir("/dev/fd")), threading.enumerate()
    assert other.takes(name)
    ours.take(0.0)
    assert (len(os.listdir("/dev/fd")), new(threads)) == (descriptors + 2, 1)
    ours.give()
    ours.close()
    other.gives(name)
    wait_for(lambda: (len(os.listdir("/dev/fd")), new(threads)) == (descriptors, 0))
    assert other.takes("next", "write")


def test_the_thread_that_stands_in_line_goes_when_it_is_not_sent_any_more(
    ours: Turns, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "IDLE", 0.01)
    before = threading.enumerate()
    for _ in range(2):
        assert other.takes("write")
        ours.take(0.0)
        assert new(before) == 1
        other.gives("write")
        ours.give()
        wait_for(lambda: new(before) == 0)
        wait_for(lambda: other.finds_free("next", "write"))


def test_without_a_thread_there_is_no_turn_and_nobody_is_kept_out(
    ours: Turns, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert other.takes("write")
    began = monotonic()
    ours.take(PATIENCE)
    assert monotonic() - began < PATIENCE
    assert other.finds_free("next")
    ours.give()


def test_locks_that_were_removed_or_cannot_be_made_are_made_again_when_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "LOOK_AGAIN", 0.0)
    folder = tmp_path / "locks"
    ours = Turns(str(folder))
    for _ in range(2):
        ours.take(0.0)
        ours.give()
        folder.mkdir()
        ours.take(0.0)
        assert not Other(folder).finds_free("write")
        ours.give()
        assert Other(folder).finds_free("next", "write")
        shutil.rmtree(folder)
    ours.close()


# Real processes


WRITER = """
    import os, signal, sys, threading
    from eventsourcing.persistence import StoredEvent
    from stores import IndexRow, open_store
    from stores.file_lock import FileLock
    from tests.scenario_kit import hear, say

    role, url = sys.argv[1:]
    stop = threading.Event()

    def append(store, head, inside=None):
        entry = IndexRow(role, "birth", head, 0, "queued", "agent", 1.0, 1.0)
        expected = ("birth", head - 1) if head > 1 else None
        store.recorder.insert_events([StoredEvent(role, head, "topic", b"state")], entry=entry, expected=expected,
                                     inside=inside)

    def wait_to_stop():
        hear()
        stop.set()

    def fork():
        os.write(1, f"{os.fork()}{os.linesep}".encode())
        signal.pause()

    if role in ("next", "write"):
        locks = url.removeprefix("sqlite:///") + ".locks"
        lock = FileLock(f"{locks}/{role}", create=True)
        assert lock.try_lock()
        say("frozen")
        os.kill(os.getpid(), signal.SIGSTOP)
        say("thawed")
        hear()
        sys.exit()

    with open_store(url) as store:
        append(store, 1, inside=fork if role == "fork" else None)
        say("ready")
        threading.Thread(target=wait_to_stop).start()
        head = 1
        while not stop.is_set():
            head += 1
            append(store, head)
        say(head)
"""


@pytest.fixture
def store(world: World) -> Iterator[SQLiteStore]:
    with SQLiteStore(str(world.file)) as store:
        yield store


def append(store: SQLiteStore, head: int, **options: object) -> None:
    entry = IndexRow("ours", "birth", head, 0, "queued", "agent", 1.0, 1.0)
    expected = ("birth", head - 1) if head > 1 else None
    stored = [StoredEvent("ours", head, "topic", b"state")]
    store.recorder.insert_events(stored, entry=entry, expected=expected, **options)


def start(world: World, role: str, word: str) -> Program:
    program = world.start(world.write(WRITER), role, world.url)
    assert program.hear() == word
    return program


def others(world: World) -> Other:
    return Other(Path(f"{world.file}.locks"))


def heads(store: SQLiteStore, names: list[str]) -> list[int]:
    return [store.recorder.select_entry(name).head for name in names]


@pytest.mark.parametrize("crowd", [1, 3])
def test_who_writes_now_and_then_is_let_in_among_those_who_write_at_full_rate(
    world: World, store: SQLiteStore, crowd: int
) -> None:
    """Without turns one of some hundred appends waits for seconds, and one writer has many times another's share."""
    names = [f"busy-{number}" for number in range(crowd)]
    busy = [start(world, name, "ready") for name in names]
    begun, meanwhile, waits, pause = heads(store, names), list[int](), list[float](), threading.Event()
    for head in range(1, 41):
        before, began = heads(store, names), monotonic()
        append(store, head)
        waits.append(monotonic() - began)
        meanwhile.append(max(map(int.__sub__, heads(store, names), before)))
        pause.wait(0.02)
    written = [*map(int.__sub__, heads(store, names), begun)]
    for writer in busy:
        writer.say("stop")
        writer.end()
    assert statistics.median(meanwhile) <= 10
    assert max(waits) < 2 * turns.PATIENCE
    assert min(written) > 40
    assert max(written) < 3 * min(written)


@pytest.mark.parametrize("name", LOCKS)
def test_a_process_that_is_stopped_with_a_lock_holds_nobody_up_for_long(
    world: World, store: SQLiteStore, name: str
) -> None:
    frozen = start(world, name, "frozen")
    began = monotonic()
    for head in range(1, 31):
        append(store, head)
    assert turns.PATIENCE <= monotonic() - began < PATIENCE
    frozen._process.send_signal(signal.SIGCONT)
    assert frozen.hear() == "thawed"
    frozen.kill()
    assert has_turns_again(world, store, 31)


def has_turns_again(world: World, store: SQLiteStore, head: int) -> bool:
    """Append until an append has the turn."""
    other, seen = others(world), list[bool]()
    while not any(seen):
        assert len(seen) < 1000
        append(store, head + len(seen), inside=lambda: seen.append(not other.finds_free("write")))
    return True


def test_a_killed_process_leaves_no_lock_behind(world: World, store: SQLiteStore) -> None:
    for number in range(3):
        start(world, f"busy-{number}", "ready").kill()
        assert others(world).takes("next", "write")


def test_a_forked_child_does_not_keep_its_dead_parents_turn(world: World, store: SQLiteStore) -> None:
    parent = world.start(world.write(WRITER), "fork", world.url)
    child = max(int(parent.hear()), int(parent.hear()))  # both live
    assert not others(world).finds_free("write")
    parent._process.kill()
    parent._process.wait()
    assert others(world).takes("next", "write")
    os.kill(child, signal.SIGKILL)  # it has lived so far


@pytest.mark.parametrize("leave", [shutil.rmtree, lambda folder: (shutil.rmtree(folder), folder.touch())])
def test_a_folder_that_was_removed_or_replaced_stops_no_write(world: World, leave: object) -> None:
    with SQLiteStore(str(world.file)) as store, SQLiteStore(str(world.file)) as late:
        append(store, 1)
        leave(Path(f"{world.file}.locks"))
        append(store, 2)
        append(late, 3)
        assert [event.originator_version for event in store.recorder.select_events("ours")] == [1, 2, 3]
