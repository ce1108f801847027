"""Misuses that a type checker must refuse: exactly the marked lines. Checked by test_typing.py, never run."""

from __future__ import annotations

from functools import partial

from actors import AgentSystem, Doubt, Happened, agent, step, task_info


@step
def draft(document: str, words: int = 100) -> str:
    return f"{document} {words}"


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
    return number + len(lang)


def program(system: AgentSystem) -> None:
    system.spawn(report)  # refused: an argument is missing
    system.spawn(report, 3)  # refused: of another type
    system.spawn(report, "x", 3)  # refused: of another type
    system.spawn(report, "x", "fr", "more")  # refused: one too many
    system.spawn(report, "x", id=7)  # refused: an id is text
    system.spawn(report, "x", tags=["a"])  # refused: tags are a mapping
    system.spawn(partial(report, lang=3), "x")  # refused: of another type
    system.spawn("report", "x")  # refused: a name is no agent
    text: str = system.spawn(report, "x").result()  # refused: its agent gives an int
    system.spawn(report, "x").result("60")  # refused: seconds are a number
    system.task(7)  # refused: an id is text
    system.task("a").resolve(1, rerun=True)  # refused: a path is text
    system.task("a").resolve("1", value=text, rerun="yes")  # refused: it is a yes or a no
    system.tasks(status="done")  # refused: no such status


def answers(doubt: Doubt) -> bool:
    return doubt.attempt > 1


@step(idempotent="yes")  # refused: it is a yes or a no
def one() -> None: ...


@step(label=3)  # refused: a label is text
def two() -> None: ...


@step(retry=3)  # refused: no such option
def three() -> None: ...


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
