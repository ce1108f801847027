"""Misuses that a type checker must refuse: exactly the marked lines. Checked by test_typing.py, never run."""

from __future__ import annotations

from functools import partial

from actors import (
    AgentSystem,
    Doubt,
    Entity,
    Happened,
    NotHappened,
    Signal,
    Timer,
    agent,
    compensate,
    entity,
    gather,
    map_steps,
    receive,
    request_approval,
    run_step,
    sleep,
    sleep_until,
    spawn_child,
    spawn_child_async,
    step,
    task_info,
    wait_any,
)


@step
def draft(document: str, words: int = 100) -> str:
    return f"{document} {words}"


@step
async def fetch(url: str) -> bytes:
    return url.encode()


@agent
async def crawl(url: str) -> int:
    text: str = draft.aio(url)  # refused: it has to be awaited
    data: str = await fetch(url)  # refused: it gives bytes
    await fetch(3)  # refused: of another type
    await draft.aio(url, words="many")  # refused: of another type
    await gather(draft("a"), fetch(url))  # refused: a value is no branch
    pair: tuple[bytes, int] = await gather(fetch(url), draft.aio(url))  # refused: the second gives a str
    await map_steps(fetch, [3])  # refused: of another type
    await map_steps(draft, [url])  # refused: a list is not awaited
    fetch.aio(url)  # refused: it is async itself
    return len(text) + len(data) + len(pair)


@agent
def report(document: str, lang: str = "en") -> int:
    draft()  # refused: an argument is missing
    draft(3)  # refused: of another type
    draft("a", words="many")  # refused: of another type
    draft("a", 1, 2)  # refused: one too many
    draft("a", pages=3)  # refused: no such parameter
    number: int = draft("a")  # refused: it gives a str
    print(draft("a").fn)  # refused: the value is no step
    print(task_info().id)  # refused: there may be no task
    draft.options(retries=3)("a", words="many")  # refused: of another type
    draft.options(tries=3)  # refused: no such option
    draft.sync("a")  # refused: it is sync itself
    fetch.sync(3)  # refused: of another type
    length: int = fetch("a")  # refused: it has to be awaited
    triple: tuple[int, int, int] = gather(lambda: 1, lambda: 2)  # refused: there are two
    gather(draft, draft)  # refused: a branch takes no arguments
    lengths: list[int] = map_steps(draft, ["a"])  # refused: it gives texts
    map_steps(draft, ["a"], limit="2")  # refused: a number
    run_step("ask", draft.fn, "a", timeout="1")  # refused: seconds are a number
    return number + len(lang) + length + triple[0] + lengths[0]


def program(system: AgentSystem) -> None:
    system.spawn(report)  # refused: an argument is missing
    system.spawn(report, 3)  # refused: of another type
    system.spawn(report, "x", 3)  # refused: of another type
    system.spawn(report, "x", "fr", "more")  # refused: one too many
    system.spawn(report, "x", id=7)  # refused: an id is text
    system.spawn(report, "x", tags=["a"])  # refused: tags are a mapping
    system.spawn(partial(report, lang=3), "x")  # refused: of another type
    system.spawn("report", "x")  # refused: a name is no agent
    system.spawn(crawl, 3)  # refused: of another type
    words: str = system.spawn(crawl, "x").result()  # refused: its agent gives an int
    text: str = system.spawn(report, "x").result()  # refused: its agent gives an int
    system.spawn(report, "x").result("60")  # refused: seconds are a number
    system.task(7)  # refused: an id is text
    system.task("a").resolve(1, rerun=True)  # refused: a path is text
    system.task("a").resolve("1", value=text + words, rerun="yes")  # refused: it is a yes or a no
    system.task("a").on_end(answers)  # refused: it is told a Notice
    system.task("a").on_end(print, also=["ended"])  # refused: an end is told anyway
    system.task("a").follow("7")  # refused: a cursor is a number
    system.tasks(status="done")  # refused: no such status


async def program_async(system: AgentSystem) -> str:
    await system.spawn_async(crawl)  # refused: an argument is missing
    text: str = await system.spawn(crawl, "x")  # refused: its agent gives an int
    return text


def answers(doubt: Doubt) -> bool:
    return doubt.attempt > 1


async def finds_out_async(doubt: Doubt) -> NotHappened:
    return NotHappened()


@step(idempotent="yes")  # refused: it is a yes or a no
def one() -> None: ...


@step(label=3)  # refused: a label is text
def two() -> None: ...


@step(tries=3)  # refused: no such option
def three() -> None: ...


@step(retry=3)  # refused: a policy
def three_times() -> None: ...


@step(retries="3")  # refused: a number
def three_retries() -> None: ...


@step(timeout="3")  # refused: seconds are a number
def three_seconds() -> None: ...


@step(retry_on=OSError("no"))  # refused: a class, not an error
def on_errors() -> None: ...


@step(raises=(KeyboardInterrupt,))  # refused: only Exceptions are handed on
def raising() -> None: ...


@step(aliases=3)  # refused: names
def renamed() -> None: ...


@step(on_doubt=finds_out_async)  # refused: it is called, not awaited
def four_and_a_half() -> None: ...


@step(on_doubt="ask")  # refused: no such word
def four() -> None: ...


@step(on_doubt=answers)  # refused: it answers with something else
def five() -> None: ...


@step(on_doubt=lambda: Happened(1))  # refused: it takes the doubt
def six() -> None: ...


@agent(on_failure="never")  # refused: no such word
def seven() -> None: ...


AgentSystem("memory:", max_active="4")  # refused: a number
AgentSystem()  # refused: a store is needed
AgentSystem("memory:", 4)  # refused: options have names


class Stock(Entity):
    TOPIC = "typed-stock"

    def __init__(self) -> None:
        self.left = 0

    def take(self, number: int) -> int:
        return self.left - number


class Other(Entity):
    TOPIC = "typed-other"

    def take(self, number: int) -> int:
        return number


def asks(system: AgentSystem) -> None:
    stock = system.entity(Stock, "nuts")
    stock.ask(Stock.take)  # refused: an argument is missing
    stock.ask(Stock.take, "many")  # refused: of another type
    stock.ask(Other.take, 3)  # refused: a command of another entity
    text: str = stock.ask(Stock.take, 3)  # refused: it gives an int
    entity(str, "nuts")  # refused: no entity
    return len(text)  # refused: asks gives nothing


@agent
def waits(text: str) -> str:
    sleep("3")  # refused: seconds are a number
    sleep()  # refused: for how long
    sleep_until(3)  # refused: a moment is a datetime
    receive(3)  # refused: a name is text
    receive("paid", timeout="3")  # refused: seconds are a number
    receive("paid", 3)  # refused: options have names
    request_approval(3)  # refused: a question is text
    yes: bool = request_approval("pay?").wait()  # refused: it gives a Decision
    compensate(draft.fn, "a")  # refused: an undo is a step
    compensate(draft)  # refused: an argument is missing
    compensate(draft, 3)  # refused: of another type
    spawn_child(report)  # refused: an argument is missing
    spawn_child(report, 3)  # refused: of another type
    spawn_child(report, "a", "fr", "more")  # refused: one too many
    spawn_child("report", "a")  # refused: a name is no agent
    spawn_child(report, "a", on_parent_end="kill")  # refused: no such policy
    spawn_child(report, "a", id="b")  # refused: its id follows from its place
    spawn_child(report, "a", tags=["a"])  # refused: tags are a mapping
    words: str = spawn_child(report, "a").result()  # refused: its agent gives an int
    number: str = spawn_child(crawl, "a").result()  # refused: its agent gives an int
    spawn_child(report, "a").result("60")  # refused: seconds have a name
    spawn_child(report, "a").result(timeout="60")  # refused: seconds are a number
    spawn_child(report, "a").cancel(3)  # refused: a reason is text
    wait_any("paid")  # refused: a name is nothing to wait for
    wait_any(Signal(3))  # refused: a name is text
    wait_any(Timer("3"))  # refused: a time is no text
    index: str = wait_any(Signal("paid")).index  # refused: it is a number
    return words + number + index + str(yes)


@agent
async def waits_async(text: str) -> int:
    child = await spawn_child_async(report)  # refused: an argument is missing
    words: str = await (await spawn_child_async(report, text))  # refused: its agent gives an int
    spawn_child_async(report, text).result()  # refused: it has to be awaited
    return len(words) + len(str(child))
