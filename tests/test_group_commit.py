"""Group commit: who comes while another's commit is on its way goes with the others who did."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from eventsourcing.persistence import IntegrityError, StoredEvent

from stores import AppendConflictError, IndexRow, StoreClosedError, StoreUnavailableError, open_store
from stores import group_commit as module
from stores.group_commit import GroupCommit, Verdict
from stores.sqlite import SQLiteRecorder

TIMEOUT = 20.0


class Disk:
    """What is written, and a gate before which a commit stands."""

    def __init__(self) -> None:
        self.batches: list[list[object]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.at_gate = threading.Event()

    def transact(self, requests: Sequence[object]) -> Sequence[Verdict]:
        self.at_gate.set()
        assert self.gate.wait(TIMEOUT)
        self.batches.append(list(requests))
        return [request if isinstance(request, BaseException) else None for request in requests]

    @property
    def written(self) -> list[object]:
        return [request for batch in self.batches for request in batch]


class Writers:
    """Threads that write, begun one after the other, and what came of each."""

    def __init__(self, commits: GroupCommit[object]) -> None:
        self.commits = commits
        self.threads: list[threading.Thread] = []
        self.outcomes: dict[object, Verdict] = {}

    def begin(self, *requests: object, size: int = 0) -> None:
        for request in requests:
            stood = len(self.commits._queue)
            thread = threading.Thread(target=self._write, args=(request, size))
            thread.start()
            self.threads.append(thread)
            while thread.is_alive() and len(self.commits._queue) == stood and self.commits._leader is None:
                threading.Event().wait(0.001)
            while thread.is_alive() and len(self.commits._queue) == stood and self.commits._batch != []:
                if any(entry.request is request for entry in self.commits._batch):
                    break
                threading.Event().wait(0.001)

    def _write(self, request: object, size: int) -> None:
        try:
            self.commits.do(request, size)
        except BaseException as error:
            self.outcomes[request] = error
        else:
            self.outcomes[request] = None

    def end(self) -> None:
        for thread in self.threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def commits(disk: Disk) -> GroupCommit[object]:
    return GroupCommit(disk.transact, url="test:")


def held_up(disk: Disk, writers: Writers) -> None:
    """Let a first write stand in the middle of its commit."""
    disk.gate.clear()
    disk.at_gate.clear()
    writers.begin("first")
    assert disk.at_gate.wait(TIMEOUT)


def test_who_finds_nobody_goes_at_once_and_alone(disk: Disk, commits: GroupCommit[object]) -> None:
    for request in range(3):
        commits.do(request)
    assert disk.batches == [[0], [1], [2]]


def test_who_comes_during_a_commit_goes_with_the_others_in_the_order_of_their_coming(
    disk: Disk, commits: GroupCommit[object]
) -> None:
    writers = Writers(commits)
    held_up(disk, writers)
    writers.begin("a", "b", "c")
    disk.gate.set()
    writers.end()
    assert disk.batches == [["first"], ["a", "b", "c"]]
    assert set(writers.outcomes.values()) == {None}


def test_an_error_of_ones_own_reaches_nobody_else(disk: Disk, commits: GroupCommit[object]) -> None:
    writers, mine = Writers(commits), AppendConflictError(None, None, "b")
    held_up(disk, writers)
    writers.begin("a", mine, "c")
    disk.gate.set()
    writers.end()
    assert writers.outcomes == {"first": None, "a": None, mine: mine, "c": None}


def test_what_fails_the_transaction_fails_all_that_are_in_it_and_each_has_a_copy(disk: Disk) -> None:
    full = StoreUnavailableError("full", url="test:", reason="full")

    def transact(requests: Sequence[object]) -> Sequence[Verdict]:
        verdicts = disk.transact(requests)
        if len(requests) > 1:
            raise full
        return verdicts

    writers = Writers(GroupCommit(transact, url="test:"))
    held_up(disk, writers)
    writers.begin("a", "b", "c")
    disk.gate.set()
    writers.end()
    errors = [writers.outcomes[name] for name in "abc"]
    assert writers.outcomes["first"] is None
    assert all(isinstance(error, StoreUnavailableError) and error.reason == "full" for error in errors)
    assert len({id(error) for error in errors}) == 3


def test_a_lock_that_does_not_come_fails_those_who_have_waited_for_it_and_no_later_ones(disk: Disk) -> None:
    locked, waiting, stuck = threading.Event(), threading.Event(), [True]

    def prepare() -> None:
        if stuck[0]:
            waiting.set()
            assert locked.wait(TIMEOUT)
            stuck[0] = False
            raise StoreUnavailableError("locked", url="test:", reason="locked")

    commits: GroupCommit[object] = GroupCommit(disk.transact, url="test:", prepare=prepare)
    writers = Writers(commits)
    writers.begin("a")
    assert waiting.wait(TIMEOUT)
    writers.begin("late")
    locked.set()
    writers.end()
    assert isinstance(writers.outcomes["a"], StoreUnavailableError)
    assert writers.outcomes["late"] is None
    assert disk.written == ["late"]


def test_an_interrupt_is_the_leaders_own_and_the_others_have_to_read_back(disk: Disk) -> None:
    def transact(requests: Sequence[object]) -> Sequence[Verdict]:
        disk.transact(requests)
        if len(requests) > 1:
            raise KeyboardInterrupt
        return [None]

    writers = Writers(GroupCommit(transact, url="test:"))
    held_up(disk, writers)
    writers.begin("a", "b", "c")
    disk.gate.set()
    writers.end()
    assert isinstance(writers.outcomes["a"], KeyboardInterrupt)
    for name in "bc":
        error = writers.outcomes[name]
        assert isinstance(error, StoreUnavailableError)
        assert error.unknown_fate


def test_a_transaction_has_its_bounds(disk: Disk) -> None:
    commits: GroupCommit[object] = GroupCommit(disk.transact, url="test:", most=3)
    writers = Writers(commits)
    held_up(disk, writers)
    writers.begin(*"abcde")
    disk.gate.set()
    writers.end()
    assert disk.batches == [["first"], ["a", "b", "c"], ["d", "e"]]


def test_a_transaction_has_its_bounds_in_bytes(
    disk: Disk, commits: GroupCommit[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    writers = Writers(commits)
    held_up(disk, writers)
    writers.begin(*"abcd", size=6)
    disk.gate.set()
    writers.end()
    assert disk.batches == [["first"], ["a", "b"], ["c", "d"]]


# ---------------------------------------------------------------------- submitting


class Told:
    """What was told of requests that nobody waits for."""

    def __init__(self, most: int) -> None:
        self.verdicts: list[Verdict] = []
        self.most = most
        self.all = threading.Event()

    def __call__(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        if len(self.verdicts) == self.most:
            self.all.set()


def test_a_thousand_are_submitted_by_one_thread_and_go_in_few_transactions(
    disk: Disk, commits: GroupCommit[object]
) -> None:
    told = Told(1000)
    disk.gate.clear()
    for number in range(1000):
        commits.submit(number, told)
    disk.gate.set()
    assert told.all.wait(TIMEOUT)
    assert disk.written == list(range(1000))
    assert len(disk.batches) <= 1 + 1000 // module.MOST + 1
    commits.close()


def test_what_is_submitted_goes_with_what_others_wait_for(disk: Disk, commits: GroupCommit[object]) -> None:
    writers, told = Writers(commits), Told(2)
    held_up(disk, writers)
    commits.submit("a", told)
    writers.begin("b")
    commits.submit("c", told)
    disk.gate.set()
    writers.end()
    assert told.all.wait(TIMEOUT)
    assert disk.batches == [["first"], ["a", "b", "c"]]
    commits.close()


def test_each_hears_its_own_verdict_and_one_who_fails_at_hearing_stops_nobody(
    disk: Disk, commits: GroupCommit[object], caplog: pytest.LogCaptureFixture
) -> None:
    told, conflict = Told(3), AppendConflictError(None, None, "b")

    def deaf(verdict: Verdict) -> None:
        told(verdict)
        raise ValueError("deaf")

    disk.gate.clear()
    commits.submit("a", told)
    commits.submit(conflict, deaf)
    commits.submit("c", told)
    disk.gate.set()
    assert told.all.wait(TIMEOUT)
    assert told.verdicts == [None, conflict, None]
    commits.close()
    assert "who was told of a commit has failed" in caplog.text


def test_no_more_stand_in_line_than_fit(
    disk: Disk, commits: GroupCommit[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SUBMITTED", 5)
    writers, told = Writers(commits), Told(5)
    held_up(disk, writers)
    for number in range(5):
        commits.submit(number, told)
    with pytest.raises(StoreUnavailableError, match="5 writes stand in line"):
        commits.submit("one too many", told)
    disk.gate.set()
    assert told.all.wait(TIMEOUT)
    writers.end()
    commits.submit("again", told)
    commits.close()
    assert disk.written == ["first", 0, 1, 2, 3, 4, "again"]


def test_the_thread_that_leads_for_others_is_gone_when_nobody_wants_it_and_comes_again(
    disk: Disk, commits: GroupCommit[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE", 0.01)
    for _ in range(2):
        told = Told(1)
        commits.submit("a", told)
        assert told.all.wait(TIMEOUT)
        threads = [thread for thread in threading.enumerate() if thread.name == "perdure-writer"]
        for thread in threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
    commits.close()


def test_closing_writes_all_that_stand_in_line_and_takes_no_more(disk: Disk, commits: GroupCommit[object]) -> None:
    writers, told = Writers(commits), Told(1)
    held_up(disk, writers)
    writers.begin("a")
    commits.submit("b", told)
    closing = threading.Thread(target=commits.close)
    closing.start()
    while not commits._closed:
        threading.Event().wait(0.001)
    with pytest.raises(StoreClosedError):
        commits.do("late")
    with pytest.raises(StoreClosedError):
        commits.submit("late", told)
    assert closing.is_alive()
    disk.gate.set()
    closing.join(TIMEOUT)
    assert not closing.is_alive()
    writers.end()
    assert told.verdicts == [None]
    assert disk.written == ["first", "a", "b"]
    commits.close()


# ---------------------------------------------------------------------- all at once


class Crowd:
    """What many threads ask of one group commit, and what each is answered."""

    def __init__(self, commits: GroupCommit[object]) -> None:
        self.commits = commits
        self.answers: dict[object, list[Verdict]] = {}

    def write(self, requests: list[object]) -> None:
        for request in requests:
            answers = self.answers.setdefault(request, [])
            try:
                self.commits.do(request)
                answers.append(None)
            except Exception as error:
                answers.append(error)

    def submit(self, requests: list[object]) -> None:
        for request in requests:
            self.commits.submit(request, self.answers.setdefault(request, []).append)

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
        self.commits.close()


def test_in_a_crowd_each_gets_its_own_verdict_once(disk: Disk) -> None:
    """Threads that write and threads that submit; a third of it fails by itself, some transactions do by chance."""
    chance = random.Random(7)

    def transact(requests: Sequence[object]) -> Sequence[Verdict]:
        verdicts = disk.transact(requests)
        if chance.random() < 0.05:
            raise StoreUnavailableError("away", url="test:", reason="away", unknown_fate=True)
        return verdicts

    crowd = Crowd(GroupCommit(transact, url="test:", most=16))
    jobs: list[Callable[[], None]] = []
    for who in range(32):
        names = [f"{who}-{each}" for each in range(60)]
        requests = [AppendConflictError(None, None, name) if name[-1] in "036" else name for name in names]
        jobs.append(partial(crowd.submit if who % 4 == 0 else crowd.write, requests))
    crowd.run(jobs)
    assert len(crowd.answers) == 32 * 60
    for request, said in crowd.answers.items():
        assert len(said) == 1
        own = request if isinstance(request, BaseException) else None
        assert said[0] is own or isinstance(said[0], StoreUnavailableError)
    assert sorted(map(str, disk.written)) == sorted(map(str, crowd.answers))


INTERRUPTED = """
import signal, sys, threading
from stores.group_commit import GroupCommit

written, gate, inside = [], threading.Event(), threading.Event()

def transact(requests):
    inside.set()
    gate.wait()
    written.extend(requests)
    return [None] * len(requests)

commits = GroupCommit(transact, url="test:")
other = threading.Thread(target=commits.do, args=["other"])
other.start()
inside.wait()
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    commits.do("mine")
except KeyboardInterrupt:
    print("interrupted", flush=True)
gate.set()
other.join()
commits.do("next")
print(written, flush=True)
"""


def test_who_is_torn_away_before_his_turn_is_not_written_and_holds_up_nobody() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["interrupted", "['other', 'next']"]


# ---------------------------------------------------------------------- on SQLite

ROW = IndexRow("", "birth", 1, 0, "queued", "agent", 1.0, 1.0)


def appended(recorder: SQLiteRecorder, task: str, version: int, inside: Callable[[], None] | None = None) -> None:
    event = StoredEvent(task, version, "topic", f"{task} {version}".encode())
    entry = ROW._replace(id=task, head=version)
    recorder.insert_events(
        [event], entry=entry, expected=None if version == 1 else ("birth", version - 1), inside=inside
    )


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all transactions of a file, as they come."""
    from stores.sqlite_file import SQLiteFile

    seen: list[int] = []
    transact = SQLiteFile._transact

    def counted(self: SQLiteFile, works: Sequence[object]) -> Sequence[Verdict]:
        seen.append(len(works))
        return transact(self, works)  # type: ignore[arg-type]

    monkeypatch.setattr(SQLiteFile, "_transact", counted)
    return seen


def test_conflicts_in_a_crowd_reach_their_own_callers_and_nobody_else(tmp_path: Path, sizes: list[int]) -> None:
    """Each of 64 has a task of its own, and half of its appends race for a shared one."""
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        recorder = store.recorder
        assert isinstance(recorder, SQLiteRecorder)
        appended(recorder, "shared", 1)
        won: list[int] = []
        lost: list[AppendConflictError] = []

        def write(me: int) -> None:
            for version in range(1, 21):
                appended(recorder, f"own-{me}", version)
                try:
                    appended(recorder, "shared", version + 1)
                    won.append(version + 1)
                except AppendConflictError as conflict:
                    lost.append(conflict)

        threads = [threading.Thread(target=write, args=(me,)) for me in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT * 3)
            assert not thread.is_alive()
        for me in range(64):
            assert [row.originator_version for row in recorder.select_events(f"own-{me}")] == list(range(1, 21))
        head = 1 + len(won)
        assert sorted(won) == list(range(2, head + 1))
        assert {conflict.task_id for conflict in lost} == {"shared"}
        assert [row.originator_version for row in recorder.select_events("shared")] == list(range(1, head + 1))
        assert len(won) + len(lost) == 64 * 20
    assert max(sizes) > 1


def together(recorder: SQLiteRecorder, works: Sequence[Callable[[], None]]) -> list[BaseException | None]:
    """Do all of these in one transaction: they come while another one is on its way."""
    gate, at_gate = threading.Event(), threading.Event()

    def stand() -> None:
        at_gate.set()
        assert gate.wait(TIMEOUT)

    outcomes: list[BaseException | None] = [None] * len(works)

    def attempt(place: int) -> None:
        try:
            works[place]()
        except BaseException as error:
            outcomes[place] = error

    first = threading.Thread(target=appended, args=(recorder, "first", 1, stand))
    first.start()
    assert at_gate.wait(TIMEOUT)
    threads = [threading.Thread(target=attempt, args=(place,)) for place in range(len(works))]
    commits = recorder.datastore._commits
    for place, thread in enumerate(threads):
        thread.start()
        while len(commits._queue) <= place:
            threading.Event().wait(0.001)
    gate.set()
    for thread in (first, *threads):
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    return outcomes


def test_what_is_undone_from_inside_is_undone_alone(tmp_path: Path, sizes: list[int]) -> None:
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        recorder = store.recorder
        assert isinstance(recorder, SQLiteRecorder)
        for task in "abc":
            appended(recorder, task, 1)

        class Stop(BaseException):
            pass

        def stop() -> None:
            raise Stop

        outcomes = together(
            recorder,
            [
                lambda: appended(recorder, "a", 2),
                lambda: appended(recorder, "b", 2, stop),
                lambda: appended(recorder, "c", 2),
                lambda: appended(recorder, "new", 1),
            ],
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), Stop, type(None), type(None)]
        heads = {task: row.head for task, row in recorder.select_rows(["a", "b", "c", "new"]).items()}
        assert heads == {"a": 2, "b": 1, "c": 2, "new": 1}
        assert [len(recorder.select_events(task)) for task in ("a", "b", "c", "new")] == [2, 1, 2, 1]
    assert 4 in sizes


def test_two_appends_to_one_task_in_one_transaction_are_in_their_order(tmp_path: Path, sizes: list[int]) -> None:
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        recorder = store.recorder
        assert isinstance(recorder, SQLiteRecorder)
        for task in "ab":
            appended(recorder, task, 1)
        versions = [("a", 2), ("b", 2), ("a", 3), ("a", 3)]
        works = [lambda task=task, version=version: appended(recorder, task, version) for task, version in versions]
        outcomes = together(recorder, works)
        assert [type(outcome) for outcome in outcomes] == [type(None)] * 3 + [AppendConflictError]
        assert [row.originator_version for row in recorder.select_events("a")] == [1, 2, 3]
    assert 4 in sizes


def test_a_clash_of_keys_in_a_transaction_is_the_error_of_its_own_caller(tmp_path: Path, sizes: list[int]) -> None:
    with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        recorder = store.recorder
        assert isinstance(recorder, SQLiteRecorder)
        for task in "abc":
            appended(recorder, task, 1)
        row = "INSERT INTO stored_events VALUES ('b', 2, 'ghost', x'00')"
        recorder.datastore.write(lambda cursor: cursor.execute(row))
        outcomes = together(recorder, [lambda task=task: appended(recorder, task, 2) for task in "abc"])
        assert [type(outcome) for outcome in outcomes] == [type(None), IntegrityError, type(None)]
        assert {task: found.head for task, found in recorder.select_rows("abc").items()} == {"a": 2, "b": 1, "c": 2}
    assert 3 in sizes
