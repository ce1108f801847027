"""Who is alive: a lock says so, whichever way a worker ends. What every store guarantees of it: stores/contract."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stores import Store, open_store
from stores.file_lock import FileLock
from stores.workers import FileWorkers, WorkerLock

TIMEOUT = 30
ROOT = Path(__file__).parents[1]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        yield store


def files(store: Store) -> set[str]:
    folder = Path(store.url.removeprefix("sqlite:///") + ".locks")
    return {path.name for path in folder.iterdir()} - {"open", "next", "write"}


@contextlib.contextmanager
def worker(store: Store, script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds worker "w" of the store, as `lock`, and says a line when it does."""
    prelude = f"""
import os, signal, sys
from stores import open_store
store = open_store({store.url!r})
lock = store.workers.hold("w", {{"pid": os.getpid()}})
"""
    command = [sys.executable, "-c", prelude + script]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_closing_the_store_releases_its_workers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    with open_store(url) as watcher:
        with open_store(url) as store:
            store.workers.hold("w", {})
            assert watcher.workers.is_alive("w")
        assert not watcher.workers.is_alive("w")
        assert files(watcher) == set()


def test_another_process_sees_a_worker_and_what_it_says(store: Store) -> None:
    with worker(store, "print(flush=True); sys.stdin.read(); store.close()") as process:
        process.stdout.readline()
        assert store.workers.live() == {"w": {"pid": process.pid}}
        process.communicate(timeout=TIMEOUT)
    assert store.workers.live() == {}


def test_a_killed_worker_is_dead_at_once_and_its_file_goes(store: Store) -> None:
    with worker(store, "print(flush=True); sys.stdin.read()") as process:
        process.stdout.readline()
        assert store.workers.is_alive("w")
        process.kill()
        process.wait(TIMEOUT)
        assert files(store) == {"w.worker"}
        assert not store.workers.is_alive("w")
        assert files(store) == set()


def test_listing_removes_the_files_of_the_dead(store: Store) -> None:
    lock = store.workers.hold("v", {})
    with worker(store, "os.kill(os.getpid(), signal.SIGKILL)") as process:
        process.wait(TIMEOUT)
    assert store.workers.live() == {"v": {}}
    assert files(store) == {"v.worker"}
    lock.release()


@pytest.mark.parametrize("fork", ["os.fork()", "fork_by_multiprocessing()"])
def test_a_forked_child_does_not_keep_its_dead_parent_alive(store: Store, fork: str) -> None:
    script = f"""
import multiprocessing
def fork_by_multiprocessing():
    if multiprocessing.get_context("fork").Process(target=child).start() is None:
        return 1
def child():
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
if {fork} == 0:
    child()
sys.stdout.flush()
signal.pause()
"""
    with worker(store, script) as process:
        child = int(process.stdout.readline())
        assert child != process.pid
        assert store.workers.is_alive("w")
        process.kill()
        process.wait(TIMEOUT)
        assert Path(f"/proc/{child}").exists() or sys.platform != "linux"
        assert not store.workers.is_alive("w")
        process.stdin.close()  # the child ends


def test_a_child_started_by_exec_does_not_keep_its_dead_parent_alive(store: Store) -> None:
    script = """
import subprocess
subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"], close_fds=False)
signal.pause()
"""
    with worker(store, script) as process:
        process.stdout.readline()
        assert store.workers.is_alive("w")
        process.kill()
        process.wait(TIMEOUT)
        assert not store.workers.is_alive("w")


def test_a_forked_child_that_releases_leaves_its_parents_lock(store: Store) -> None:
    script = """
if os.fork() == 0:
    lock.release()
    store.close()
    os._exit(0)
os.wait()
print(flush=True)
sys.stdin.read()
"""
    with worker(store, script) as process:
        process.stdout.readline()
        assert store.workers.live() == {"w": {"pid": process.pid}}


def test_those_who_look_at_once_do_not_take_each_other_for_the_worker(store: Store) -> None:
    folder = store.url.removeprefix("sqlite:///") + ".locks"
    dead = FileLock(f"{folder}/w.worker", create=True)
    looking = FileLock(dead.path, create=False)
    assert looking.try_lock(shared=True)
    assert not store.workers.is_alive("w")
    looking.close()
    dead.close()


def test_a_worker_that_is_looked_at_while_it_begins_is_alive_in_the_end(store: Store) -> None:
    """A look between making the file and locking it takes it for dead and removes it."""
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            store.workers.live()

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for number in range(200):
            lock = store.workers.hold(f"w{number}", {})
            assert store.workers.is_alive(f"w{number}")
            lock.release()
    finally:
        stop.set()
        for looker in lookers:
            looker.join(TIMEOUT)
    assert files(store) == set()


def test_a_slow_look_at_a_dead_worker_leaves_the_file_that_a_new_one_has_made_meanwhile(store: Store) -> None:
    path = Path(store.url.removeprefix("sqlite:///") + ".locks") / "w.worker"
    dead = FileLock(str(path), create=True)
    slow = FileLock(str(path), create=False)
    assert slow.try_lock(shared=True)
    assert not store.workers.is_alive("w")
    lock = store.workers.hold("w", {})
    assert isinstance(store.workers, FileWorkers)
    store.workers._remove(slow)
    assert store.workers.is_alive("w")
    lock.release()
    for closed in (slow, dead):
        closed.close()


def both(*calls: Callable[[], object]) -> list[object]:
    """Call these at once, each in a thread of its own; give what they returned or raised."""
    begin, ends = threading.Barrier(len(calls)), list[object]()

    def run(call: Callable[[], object]) -> None:
        begin.wait(TIMEOUT)
        try:
            ends.append(call())
        except Exception as error:
            ends.append(error)

    threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    return ends


def test_two_threads_that_look_after_a_lock_which_was_removed_make_it_again_once(store: Store) -> None:
    lock = store.workers.hold("w", {})
    path = Path(store.url.removeprefix("sqlite:///") + ".locks") / "w.worker"
    for _ in range(60):
        path.unlink()
        assert sorted(map(repr, both(*[lambda: lock.keep({})] * 2))) == ["False", "True"]
        assert store.workers.is_alive("w")
    lock.release()


def test_a_worker_that_is_released_while_its_lock_is_looked_after_is_dead(store: Store) -> None:
    for number in range(60):
        lock, released = store.workers.hold(f"w{number}", {}), threading.Event()

        def look(lock: WorkerLock = lock, released: threading.Event = released) -> bool:
            while not released.is_set():
                lock.keep({})
            return lock.keep({})

        def release(lock: WorkerLock = lock, released: threading.Event = released) -> None:
            try:
                lock.release()
            finally:
                released.set()

        assert sorted(map(repr, both(look, release))) == ["None", "True"]
        assert not store.workers.is_alive(f"w{number}")
    assert files(store) == set()


def test_a_child_forked_while_its_parents_lock_is_looked_after_can_let_go_of_its_copy(store: Store) -> None:
    """The thread that had the lock's mutex is not in the child."""
    script = """
def forks(about):
    if os.fork() == 0:
        signal.alarm(20)
        lock.keep({})
        lock.release()
        lock.abandon()
        store.close()
        os._exit(0)
    print(os.wait()[1], flush=True)
    return remake(about)
remake, lock._remake = lock._remake, forks
os.unlink(lock._lock.path)
lock.keep({"pid": os.getpid()})
sys.stdin.read()
"""
    with worker(store, script) as process:
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        process.stdin.close()


def test_what_a_worker_says_may_be_unreadable_without_making_it_dead(store: Store) -> None:
    lock = store.workers.hold("w", {"pid": 1})
    path = Path(store.url.removeprefix("sqlite:///") + ".locks") / "w.worker"
    path.write_bytes(b"{")
    assert store.workers.live() == {"w": {}}
    lock.release()
