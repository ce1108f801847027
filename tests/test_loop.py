"""The shared loop: nothing on it ends it, blocks it unseen, or keeps the process."""

import asyncio
import contextvars
import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import CodeType

import pytest

from actors.loop import LoopJob, SharedLoop
from actors.threads import Threads
from domain.errors import Suspended, SystemClosedError
from stores.crash import SimulatedCrash

PATIENCE = 30.0

ERRORS = [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Suspended, StopIteration]

here: contextvars.ContextVar[str] = contextvars.ContextVar("here", default="nowhere")


@pytest.fixture
def loop() -> Iterator[SharedLoop]:
    shared = SharedLoop("tested-loop", blocked=PATIENCE)
    yield shared
    shared.close()
    gc.collect()  # what asyncio has to say about a task says it now, while its test runs


class Reports:
    """What a watchdog has told."""

    def __init__(self) -> None:
        self.told: list[tuple[float, list[tuple[CodeType, int]]]] = []
        self.came = threading.Semaphore(0)

    def __call__(self, seconds: float, frames: list[tuple[CodeType, int]]) -> None:
        self.told.append((seconds, frames))
        self.came.release()


def run_program(program: str) -> str:
    """Run a program to its end; returns its standard output, where nothing was said on standard error."""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, check=False, text=True, timeout=2 * PATIENCE)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


async def number_five() -> int:
    return 5


async def hang() -> None:
    await asyncio.Event().wait()


def running(loop: SharedLoop) -> tuple[LoopJob[None], threading.Event]:
    """Start a coroutine that hangs until it is cancelled, and tells then; returns when it hangs."""
    began, ended = threading.Event(), threading.Event()

    async def until_cancelled() -> None:
        began.set()
        try:
            await hang()
        finally:
            ended.set()

    job = loop.start(until_cancelled)
    assert began.wait(PATIENCE)
    return job, ended


def test_a_coroutine_runs_on_a_daemon_thread_that_all_share(loop: SharedLoop) -> None:
    async def where() -> tuple[threading.Thread, bool, asyncio.AbstractEventLoop]:
        return threading.current_thread(), loop.is_current(), asyncio.get_running_loop()

    assert not loop.is_current()
    first, second = (loop.start(where).result(PATIENCE) for _ in range(2))

    assert first == second
    assert first[1]
    assert first[0].daemon
    assert first[0].name == "tested-loop"
    assert not loop.is_current()


def test_nothing_is_started_before_the_first_coroutine() -> None:
    before = set(threading.enumerate())
    loop = SharedLoop()
    assert set(threading.enumerate()) == before
    loop.close()

    with pytest.raises(SystemClosedError, match="was closed"):
        loop.start(number_five)
    assert set(threading.enumerate()) == before


def test_a_coroutine_sees_a_copy_of_the_callers_context(loop: SharedLoop) -> None:
    async def change() -> str:
        found = here.get()
        here.set("on the loop")
        return found

    token = here.set("at the caller's")
    try:
        jobs = [loop.start(change), loop.start(change)]
        assert [job.result(PATIENCE) for job in jobs] == ["at the caller's"] * 2
        assert here.get() == "at the caller's"
    finally:
        here.reset(token)


@pytest.mark.parametrize("kind", [*ERRORS, lambda _text: SimulatedCrash("here")])
def test_what_a_coroutine_raises_is_raised_where_its_result_is_asked_and_leaves_the_others_running(
    loop: SharedLoop, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    other, other_ended = running(loop)
    error = kind("mine")

    async def fail() -> None:
        raise error

    job = loop.start(fail)
    # Python itself allows no StopIteration to leave a coroutine
    expected = RuntimeError if isinstance(error, StopIteration) else type(error)
    with pytest.raises(expected) as caught:
        job.result(PATIENCE)

    assert error in (caught.value, caught.value.__cause__)
    assert loop.start(number_five).result(PATIENCE) == 5
    assert not other_ended.is_set()
    assert not other.done.is_set()
    assert not caplog.records


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_users_own_task_that_raises_into_the_loop_does_not_end_it(
    loop: SharedLoop, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    other, _ = running(loop)

    async def raise_it() -> None:
        raise kind("from a task of my own")

    async def spawn_and_await() -> str:
        with pytest.raises(kind):
            await asyncio.create_task(raise_it())
        return "goes on"

    assert loop.start(spawn_and_await).result(PATIENCE) == "goes on"

    assert not other.done.is_set()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("perdure", "ERROR")
    assert "into the event loop, which goes on" in record.getMessage()


def test_a_users_own_stop_does_not_end_the_loop(loop: SharedLoop) -> None:
    async def stop() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "goes on"

    assert loop.start(stop).result(PATIENCE) == "goes on"


def test_an_error_that_nobody_took_from_a_users_task_goes_to_our_logger(
    loop: SharedLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("nobody asks")

    async def forget() -> None:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])

    loop.start(forget).result(PATIENCE)
    gc.collect()
    loop.start(number_five).result(PATIENCE)

    assert [record.name for record in caplog.records] == ["perdure"]
    assert "on the event loop: Task exception was never retrieved" in caplog.text
    assert "ValueError: nobody asks" in caplog.text


def test_what_is_no_coroutine_function_is_an_error_of_its_job(loop: SharedLoop) -> None:
    with pytest.raises(TypeError, match="await"):
        loop.start(lambda: 5).result(PATIENCE)  # type: ignore[arg-type,return-value]


def test_cancelling_a_job_cancels_its_coroutine(loop: SharedLoop) -> None:
    job, ended = running(loop)
    other, _ = running(loop)
    job.cancel()

    with pytest.raises(asyncio.CancelledError):
        job.result(PATIENCE)
    assert ended.is_set()
    assert not other.done.is_set()
    job.cancel()
    assert job.done.is_set()


def test_a_job_cancelled_before_it_began_is_done_all_the_same(loop: SharedLoop) -> None:
    blocks, gate, began = threading.Event(), threading.Event(), list[int]()

    async def block() -> None:
        blocks.set()
        gate.wait(PATIENCE)

    async def begin() -> None:
        began.append(1)

    loop.start(block)
    assert blocks.wait(PATIENCE)
    job = loop.start(begin)
    job.cancel()
    gate.set()

    with pytest.raises(asyncio.CancelledError, match="before it began"):
        job.result(PATIENCE)
    assert not began


def test_two_thousand_calls_from_two_hundred_coroutines_all_answer(loop: SharedLoop) -> None:
    threads = Threads("few", limit=8)

    async def ten(first: int) -> list[int]:
        return [await threads.call(int, str(n)) for n in range(first, first + 10)]

    jobs = [loop.start(lambda first=first: ten(first)) for first in range(0, 2000, 10)]

    assert [n for job in jobs for n in job.result(PATIENCE)] == list(range(2000))


def test_many_threads_may_start_the_loop_at_once(loop: SharedLoop) -> None:
    threads, together = Threads("starters"), threading.Barrier(20)

    def start() -> int:
        together.wait(PATIENCE)
        return loop.start(number_five).result(PATIENCE)

    assert [job.result(PATIENCE) for job in [threads.run(start) for _ in range(20)]] == [5] * 20


def test_a_loop_that_found_no_thread_begins_when_there_is_one(loop: SharedLoop) -> None:
    before = threading.stack_size(1 << 47)  # the machine has no thread with a stack of this size
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            loop.start(number_five)
    finally:
        threading.stack_size(before)

    assert not loop.is_current()
    assert loop.start(number_five).result(PATIENCE) == 5


# ---------------------------------------------------------------------- closing


def test_closing_cancels_what_is_left_and_ends_the_loops_threads(caplog: pytest.LogCaptureFixture) -> None:
    before = set(threading.enumerate())
    loop = SharedLoop(blocked=PATIENCE)
    cleaned = list[str]()

    async def child() -> None:
        try:
            await hang()
        finally:
            await asyncio.sleep(0)
            cleaned.append("child")
            cleaned.append(asyncio.create_task(hang()).get_name())

    async def letters() -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            cleaned.append("generator")

    async def parent() -> None:
        asyncio.create_task(child(), name="kept")  # noqa: RUF006  a user's carelessness
        generator = letters()
        await anext(generator)
        await hang()

    job, ended = running(loop)
    forgotten = loop.start(parent)
    loop.start(number_five).result(PATIENCE)
    loop.close()

    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert ended.is_set()
    assert {"child", "generator"} < set(cleaned)
    for left in (job, forgotten):
        with pytest.raises(asyncio.CancelledError):
            left.result(0)
        left.cancel()
    loop.close()
    del job, forgotten, left
    gc.collect()
    assert not caplog.records


def test_closing_leaves_behind_what_refuses_to_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    loop, refused, gate = SharedLoop(blocked=PATIENCE), threading.Event(), threading.Event()

    async def refuse() -> str:
        while not gate.is_set():
            try:
                await hang()
            except asyncio.CancelledError:
                refused.set()
                await Threads("gate").call(gate.wait, PATIENCE)
        return "in its own time"

    job = loop.start(refuse)
    loop.start(number_five).result(PATIENCE)
    before = time.monotonic()
    loop.close()
    loop.close()

    assert time.monotonic() - before < PATIENCE
    assert refused.is_set()
    assert not job.done.is_set()
    gate.set()
    assert job.result(PATIENCE) == "in its own time"
    assert not caplog.records


def test_closing_waits_no_longer_than_a_second_for_a_blocked_loop() -> None:
    loop, blocks, gate = SharedLoop(blocked=PATIENCE), threading.Event(), threading.Event()

    async def block() -> None:
        blocks.set()
        gate.wait(PATIENCE)

    job = loop.start(block)
    assert blocks.wait(PATIENCE)
    before = time.monotonic()
    loop.close()

    assert 0.9 < time.monotonic() - before < PATIENCE - 1
    gate.set()
    job.result(PATIENCE)


def test_closing_on_the_loop_itself_waits_for_nothing(loop: SharedLoop) -> None:
    async def close() -> None:
        loop.close()
        await hang()

    job = loop.start(close)

    with pytest.raises(asyncio.CancelledError):
        job.result(PATIENCE)


# ---------------------------------------------------------------------- the watchdog


def test_a_blockage_is_told_once_with_the_stack_that_blocks() -> None:
    reports, gates = Reports(), [threading.Event(), threading.Event()]
    loop = SharedLoop(blocked=0.1, on_blocked=reports)

    async def block(gate: threading.Event) -> None:
        gate.wait(PATIENCE)

    for gate in gates:
        job = loop.start(lambda gate=gate: block(gate))
        assert reports.came.acquire(timeout=PATIENCE)
        assert not reports.came.acquire(timeout=0.3)
        gate.set()
        job.result(PATIENCE)
    loop.close()

    assert len(reports.told) == 2
    for seconds, frames in reports.told:
        names = [code.co_qualname for code, _ in frames]
        assert seconds >= 0.1
        assert names[0].endswith("run_forever")
        assert names.index(block.__qualname__) < names.index("Event.wait")
        (line,) = [line for code, line in frames if code is block.__code__]
        assert line == block.__code__.co_firstlineno + 1


def test_the_default_report_is_one_warning_that_names_the_line(caplog: pytest.LogCaptureFixture) -> None:
    loop, seen, gate = SharedLoop(blocked=0.05), threading.Event(), threading.Event()

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.set()

    async def block() -> None:
        gate.wait(PATIENCE)

    logger, handler = logging.getLogger("perdure"), Seen()
    logger.addHandler(handler)
    try:
        job = loop.start(block)
        assert seen.wait(PATIENCE)
        gate.set()
        job.result(PATIENCE)
        loop.close()
    finally:
        logger.removeHandler(handler)

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{Path(__file__)}:{block.__code__.co_firstlineno + 1}:" in record.getMessage()
    assert block.__qualname__ in record.getMessage()


def test_a_loop_that_only_waits_is_not_blocked() -> None:
    reports = Reports()
    loop = SharedLoop(blocked=0.02, on_blocked=reports)
    job, _ = running(loop)

    assert not reports.came.acquire(timeout=0.5)
    job.cancel()
    loop.close()


def test_an_error_in_on_blocked_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Semaphore(0)

    def fail(_seconds: float, _frames: object) -> None:
        called.release()
        raise SystemExit("from the report")

    loop = SharedLoop(blocked=0.05, on_blocked=fail)

    async def block() -> str:
        called.acquire(timeout=PATIENCE)
        return "goes on"

    for _ in range(2):
        assert loop.start(block).result(PATIENCE) == "goes on"
    loop.close()
    assert loop._watchdog is not None
    loop._watchdog.join(PATIENCE)
    assert caplog.text.count("on_blocked ended in an error") == 2


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts how often a thread wakes, by Linux' own books")
def test_nothing_wakes_up_while_nothing_runs() -> None:
    loop = SharedLoop(blocked=0.02)
    loop.start(number_five).result(PATIENCE)
    native = [thread.native_id for thread in (loop._thread, loop._watchdog) if thread is not None]

    def wakings() -> int:
        books = "".join(Path(f"/proc/self/task/{one}/status").read_text() for one in native)
        return sum(int(line.split()[1]) for line in books.splitlines() if line.startswith("voluntary"))

    before = wakings()
    assert not threading.Event().wait(0.5)  # at a watch of 0.01 s some hundred wakings, were there any
    assert wakings() - before < 12
    loop.close()


# ---------------------------------------------------------------------- the process


def test_the_process_ends_at_once_while_a_coroutine_hangs() -> None:
    said = run_program(
        "import asyncio, threading\n"
        "from actors.loop import SharedLoop\n"
        "from actors.threads import Threads\n"
        "loop, began, threads = SharedLoop(), threading.Event(), Threads('hanging')\n"
        "async def hang():\n"
        "    child = asyncio.create_task(asyncio.Event().wait())\n"
        "    began.set()\n"
        "    await threads.call(threading.Event().wait)\n"
        "job = loop.start(hang)\n"
        f"assert began.wait({PATIENCE})\n"
        "print('ends')\n"
    )
    assert said == "ends\n"


@pytest.mark.parametrize("how", ["await asyncio.Event().wait()", "threading.Event().wait()"])
def test_the_process_ends_without_a_word_after_a_close_that_was_refused(how: str) -> None:
    said = run_program(
        "import asyncio, threading\n"
        "from actors.loop import SharedLoop\n"
        "loop, began = SharedLoop(blocked=60), threading.Event()\n"
        "async def refuse():\n"
        "    began.set()\n"
        "    while True:\n"
        "        try:\n"
        f"            {how}\n"
        "        except asyncio.CancelledError: pass\n"
        "loop.start(refuse)\n"
        f"assert began.wait({PATIENCE})\n"
        "loop.close()\n"
        "print('ends')\n"
    )
    assert said == "ends\n"


def test_a_child_made_by_fork_begins_with_a_loop_of_its_own() -> None:
    said = run_program(
        "import asyncio, os, sys, warnings\n"
        "from actors.loop import SharedLoop\n"
        "warnings.simplefilter('ignore')\n"
        "loop = SharedLoop()\n"
        "async def five(): await asyncio.sleep(0); return 5\n"
        "async def hang(): await asyncio.Event().wait()\n"
        "left = loop.start(hang)\n"
        f"loop.start(five).result({PATIENCE})\n"
        "child = os.fork()\n"
        "if not child:\n"
        f"    print('child', loop.start(five).result({PATIENCE}), flush=True)\n"
        "    loop.close()\n"
        "    sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        f"print('parent', loop.start(five).result({PATIENCE}), left.done.is_set())\n"
    )
    assert said == "child 5\nparent 5 False\n"
