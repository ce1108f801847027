"""Threads of our own: work comes, is done, its outcome is told once; nothing of it keeps the process."""

import asyncio
import contextvars
import gc
import logging
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

import actors.threads
from actors.threads import Job, Threads
from domain.errors import Suspended

PATIENCE = 30.0

ERRORS = [ValueError("v"), KeyboardInterrupt("k"), SystemExit(3), GeneratorExit(), Suspended("s")]

here: contextvars.ContextVar[str] = contextvars.ContextVar("here", default="nowhere")


class Crowd:
    """Counts who is inside of it, and how many there were at most."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def visit(self, number: int) -> int:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        with self.lock:
            self.now -= 1
        return number


def run_program(program: str, *, code: int = 0) -> str:
    """Run a program to its end; returns its standard output, where nothing was said on standard error."""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, check=False, text=True, timeout=2 * PATIENCE)
    assert (ran.returncode, ran.stderr) == (code, "")
    return ran.stdout


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """Let the machine have no thread left: not one with a stack of this size."""
    before = threading.stack_size(1 << 47)
    yield
    threading.stack_size(before)


def test_work_is_done_on_a_daemon_thread_with_a_name_of_its_own() -> None:
    thread = Threads("bodies").run(threading.current_thread).result(PATIENCE)

    assert thread.daemon
    assert thread.name == "bodies-1"


def test_an_idle_thread_is_taken_again() -> None:
    threads = Threads("again")
    first = threads.run(threading.current_thread).result(PATIENCE)
    pause, deadline = threading.Event(), time.monotonic() + PATIENCE
    while not threads._idle:  # its outcome is known a moment before it is idle
        assert not pause.wait(0.001)
        assert time.monotonic() < deadline

    assert threads.run(threading.current_thread).result(PATIENCE) is first


def test_threads_end_after_they_were_idle() -> None:
    threads = Threads("idle", idle=0.01)
    together = threading.Barrier(4)

    def meet() -> threading.Thread:
        together.wait(PATIENCE)
        return threading.current_thread()

    met = [job.result(PATIENCE) for job in [threads.run(meet) for _ in range(4)]]

    assert len(set(met)) == 4
    for thread in met:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert threads.run(threading.current_thread).result(PATIENCE) not in met


def test_work_that_comes_when_patience_ends_is_never_lost() -> None:
    threads = Threads("hasty", limit=2, idle=0.0)

    assert [threads.run(int, str(n)).result(PATIENCE) for n in range(500)] == list(range(500))


def test_without_a_limit_nothing_waits_for_other_work() -> None:
    threads = Threads("many")
    together = threading.Barrier(50)

    jobs = [threads.run(together.wait, PATIENCE) for _ in range(50)]

    assert sorted(job.result(PATIENCE) for job in jobs) == list(range(50))


@pytest.mark.parametrize("limit", [1, 2])
def test_work_beyond_the_limit_waits_for_its_turn(limit: int) -> None:
    threads, crowd, gate, order = Threads("few", limit=limit), Crowd(), threading.Event(), list[int]()

    def work(number: int) -> None:
        order.append(number)
        gate.wait(PATIENCE)
        crowd.visit(number)

    jobs = [threads.run(work, n) for n in range(20)]
    gate.set()
    for job in jobs:
        job.result(PATIENCE)

    assert crowd.most <= limit
    assert threads._started == limit
    assert sorted(order) == list(range(20))
    assert limit > 1 or order == list(range(20))


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Threads("none", limit=0)


def test_two_thousand_calls_through_eight_threads_all_answer() -> None:
    threads, crowd = Threads("eight", limit=8, idle=0.01), Crowd()

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(threads.call(crowd.visit, n) for n in range(2000)))

    before = set(threading.enumerate())
    assert asyncio.run(all_of_them()) == list(range(2000))

    assert crowd.most <= 8
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_work_sees_a_copy_of_the_callers_context() -> None:
    threads = Threads("contexts", limit=1)

    def change() -> str:
        found = here.get()
        here.set("in the thread")
        return found

    async def change_by_call() -> str:
        return await threads.call(change)

    token = here.set("at the caller's")
    try:
        jobs = [threads.run(change), threads.run(change)]
        assert [job.result(PATIENCE) for job in jobs] == ["at the caller's"] * 2
        assert asyncio.run(change_by_call()) == "at the caller's"
        assert here.get() == "at the caller's"
    finally:
        here.reset(token)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_error_ends_a_thread(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    threads = Threads("robust", limit=1)

    def fail() -> None:
        raise error

    threads.start(fail)
    with caplog.at_level(logging.ERROR, "perdure"):
        assert threads.run(threading.current_thread).result(PATIENCE).name == "robust-1"

    (record,) = caplog.records
    assert record.name == "perdure"
    assert record.getMessage() == "work on thread robust-1 ended in an error"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_result_of_failed_work_is_its_own_error(error: BaseException) -> None:
    def fail() -> None:
        raise error

    job = Threads("failing").run(fail)

    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            job.result(PATIENCE)
        assert caught.value is error


def test_a_result_that_does_not_come_in_time_is_a_time_out() -> None:
    gate = threading.Event()
    job = Threads("slow").run(gate.wait, PATIENCE)

    with pytest.raises(TimeoutError, match=r"no outcome after 0\.01 s"):
        job.result(0.01)
    assert not job.done.wait(0)
    gate.set()
    assert job.result(PATIENCE)


def test_a_callback_is_called_once_whenever_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    gate, told, called = threading.Event(), list[tuple[str, Job[bool], str]](), threading.Event()
    job = Threads("calling").run(gate.wait, PATIENCE)

    def tell(when: str) -> None:
        job.add_done_callback(lambda done: told.append((when, done, threading.current_thread().name)))

    tell("before")
    job.add_done_callback(lambda _job: 1 / 0)
    job.add_done_callback(lambda _job: called.set())
    gate.set()
    assert called.wait(PATIENCE)
    tell("after")

    assert told == [("before", job, "calling-1"), ("after", job, threading.current_thread().name)]
    assert "ended in an error, which changes nothing" in caplog.text


def test_the_first_word_about_a_job_counts() -> None:
    job: Job[int] = Job()
    job.succeed(1)
    job.succeed(2)
    job.fail(ValueError())

    assert job.result() == 1


def test_an_idle_thread_remembers_nothing_of_its_work() -> None:
    class Heavy:
        def work(self) -> None:
            raise ValueError("heavy")

    threads, heavy = Threads("light", limit=1), Heavy()
    remembered = weakref.ref(heavy)
    job = threads.run(heavy.work)
    with pytest.raises(ValueError, match="heavy"):
        job.result(PATIENCE)
    del job, heavy
    threads.run(int).result(PATIENCE)
    gc.collect()

    assert remembered() is None


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_awaited_work_raises_is_raised_in_the_awaiter_alone(error: BaseException) -> None:
    threads = Threads("awaited")

    def fail() -> None:
        raise error

    async def catch() -> BaseException | None:
        try:
            await threads.call(fail)
        except BaseException as raised:
            return raised
        return None

    async def two() -> list[object]:
        return await asyncio.gather(catch(), threads.call(str, "others go on"))

    assert asyncio.run(two()) == [error, "others go on"]


def test_a_cancelled_awaiter_goes_and_the_work_goes_on() -> None:
    threads, began, gate = Threads("cancelled"), threading.Event(), threading.Event()
    ended = threading.Event()

    def work() -> None:
        began.set()
        gate.wait(PATIENCE)
        ended.set()
        raise SystemExit("nobody hears this")

    async def cancel() -> None:
        task = asyncio.create_task(threads.call(work))
        await threads.call(began.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not ended.is_set()
        gate.set()
        assert await threads.call(ended.wait, PATIENCE)

    asyncio.run(cancel())


def test_a_loop_that_was_closed_meanwhile_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    threads, gate = Threads("late", limit=1), threading.Event()

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(threads.call(gate.wait, PATIENCE), 0.01)

    asyncio.run(leave())
    gate.set()

    assert threads.run(str, "done").result(PATIENCE) == "done"
    assert not caplog.records


@pytest.mark.usefixtures("no_thread_left")
def test_where_the_machine_has_no_thread_left_nothing_is_queued() -> None:
    threads = Threads("none")

    async def call() -> None:
        await threads.call(int)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.start(int)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        asyncio.run(call())

    assert (threads._count, len(threads._queue)) == (0, 0)


def test_where_the_machine_has_no_further_thread_work_waits_for_one_that_is_there() -> None:
    threads, gate = Threads("one"), threading.Event()
    first = threads.run(gate.wait, PATIENCE)
    before = threading.stack_size(1 << 47)
    try:
        second = threads.run(str, "later")
    finally:
        threading.stack_size(before)
    assert not second.done.is_set()
    gate.set()

    assert (first.result(PATIENCE), second.result(PATIENCE)) == (True, "later")


def test_the_process_ends_at_once_while_a_body_hangs() -> None:
    said = run_program(
        "import sys, threading\n"
        "from actors.threads import Threads\n"
        "threads, began = Threads('hanging', limit=1), threading.Event()\n"
        "threads.start(lambda: (began.set(), threading.Event().wait()))\n"
        "threads.start(lambda: print('never'))\n"
        f"assert began.wait({PATIENCE})\n"
        "print('ends')\n"
    )
    assert said == "ends\n"


def test_threads_need_neither_asyncio_nor_an_executor() -> None:
    said = run_program(
        "import runpy, sys\n"
        f"Threads = runpy.run_path({actors.threads.__file__!r})['Threads']\n"
        f"Threads('lean').run(int).result({PATIENCE})\n"
        "print({'asyncio', 'concurrent.futures'} & set(sys.modules))\n"
    )
    assert said == "set()\n"


def test_a_child_made_by_fork_begins_with_no_thread_and_no_queue() -> None:
    said = run_program(
        "import os, threading, warnings\n"
        "from actors.threads import Threads\n"
        "warnings.simplefilter('ignore')\n"
        "threads, began, gate = Threads('forked', limit=1), threading.Event(), threading.Event()\n"
        f"busy = threads.run(lambda: (began.set(), gate.wait({PATIENCE})))\n"
        "queued = threads.run(print, 'once', flush=True)\n"
        f"assert began.wait({PATIENCE})\n"
        "child = os.fork()\n"
        "if not child:\n"
        f"    print(threads.run(str, 'child').result({PATIENCE}), flush=True)\n"
        "    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "gate.set()\n"
        f"queued.result({PATIENCE})\n"
    )
    assert said == "child\nonce\n"


def test_work_that_forks_leaves_no_thread_of_ours_in_the_child() -> None:
    said = run_program(
        "import os, warnings\n"
        "from actors.threads import Threads\n"
        "warnings.simplefilter('ignore')\n"
        "threads = Threads('forking')\n"
        f"child = threads.run(os.fork).result({PATIENCE})\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), threads.run(str, 'parent').result(9))\n"
    )
    assert said == "0 parent\n"


def test_who_is_idle_goes_when_dismissed_and_work_is_still_done() -> None:
    threads = Threads("test-dismiss", idle=60.0)
    idle = threads.run(threading.current_thread).result(PATIENCE)
    threads.dismiss()
    idle.join(PATIENCE)
    assert not idle.is_alive()
    late = threads.run(threading.current_thread).result(PATIENCE)
    late.join(PATIENCE)
    assert not late.is_alive()
