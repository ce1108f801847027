"""Scenarios about who owns a task: P05, the sleeper wakes, and all the sleepers from whom nothing is taken."""

from __future__ import annotations

import threading
from time import monotonic

from actors import AgentSystem, agent, step
from domain.events import Activated, StepSucceeded
from tests.lives import PATIENCE, wait_for
from tests.scenario_kit import Program, World
from tests.scenario_postgres import on_both

WORKER = """
    import sys
    import time
    from threading import Event
    from actors import AgentSystem, agent, step
    from tests.scenario_kit import STORE, answer, effect, hear, say

    name, lease = sys.argv[1], float(sys.argv[2])
    go = Event()

    def stay(place):
        if name == "A":
            say(place)
            go.wait()

    @step
    def one():
        effect("one", name)

    @step
    def two(place):
        if place == "in the body":
            stay(place)
        effect("two", name)
        return name

    @step
    def three():
        effect("three", name)

    @agent
    def chain(place, idempotent):
        one()
        if place == "between":
            stay(place)
        value = two.options(idempotent=idempotent and place == "between")(place)
        three.options(idempotent=idempotent)()
        return value

    @step
    def work(seconds):
        say("busy")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        effect("worked", name)
        return name

    @agent
    def busy(seconds):
        return work(seconds)

    with AgentSystem(STORE, lease=lease) as system:
        say("ready")
        for order, *words in iter(lambda: hear().split(","), [""]):
            match order:
                case "chain":
                    system.spawn(chain, words[1], words[2] == "idempotent", id=words[0])
                case "busy":
                    system.spawn(busy, float(words[1]), id=words[0])
                case "go":
                    go.set()
                case "answer":
                    say(answer(system.task(words[0])))
"""


def start(world: World, name: str, lease: float) -> Program:
    program = world.start(world.write(WORKER), name, lease)
    assert program.hear() == "ready"
    return program


def end(*programs: Program) -> None:
    for program in programs:
        program.say("")
        program.end()


def until(moment: float) -> None:
    wait_for(lambda: monotonic() >= moment)


def counts(world: World) -> dict[str, int]:
    """Tell how often each worker has beaten."""
    with world.client() as client:
        return {worker: count for worker, (count, _) in client.log.recorder.select_beats().items()}


def wait_for_beats(world: World, beats: int) -> None:
    """Wait until every worker has beaten so many times more."""
    before = counts(world)
    wait_for(lambda: all(counts(world)[worker] >= count + beats for worker, count in before.items()))


def wait_for_a_beat_of_the_other(world: World) -> None:
    """Wait until one worker has beaten and looked at the beats, while nobody else beats."""
    before = sum(counts(world).values())
    wait_for(lambda: sum(counts(world).values()) >= before + 2)


def activations(world: World, task: str) -> list[int]:
    with world.client() as client:
        return [event.number for event in client.task(task).events() if isinstance(event, Activated)]


# ------------------------------------------------------------------ P05


IN_THE_BODY = ["in the body,default", "in the body,idempotent"]
BETWEEN = ["between,default", "between,idempotent"]


@on_both
def test_the_sleeper_wakes_and_starts_nothing_more_of_what_was_taken_from_it(world: World, scale: float) -> None:
    """P05: A is frozen in step 2, before its effect, and before step 2; also where no append precedes the next body."""
    lease = 2 * scale
    places = dict(zip("wxyz", IN_THE_BODY + BETWEEN, strict=True))
    a = start(world, "A", lease)
    for task, place in places.items():
        a.say(f"chain,{task},{place}")
        assert a.hear() == place.split(",")[0]
    b = start(world, "B", lease)
    world.freeze(a)
    for task in places:
        b.say(f"answer,{task}")
        assert b.hear() == "B"
    a.say("go")
    a.thaw()
    wait_for(lambda: all(f"task {task}: ownership lost" in a.errors for task in places))
    end(b)
    a.say("chain,new,nowhere,default")
    a.say("answer,new")
    assert a.hear() == "A"
    end(a)
    for task, place in places.items():
        check_taken(world, task, twice=place in IN_THE_BODY)
    assert [line.note for line in world.ledger(task="new")] == ["A"] * 3


def check_taken(world: World, task: str, *, twice: bool) -> None:
    """See that a task of A was completed by B, and what both of them did."""
    done = {name: [line.note for line in world.ledger(name, task)] for name in ("one", "two", "three")}
    assert done == {"one": ["A"], "two": ["B", "A"] if twice else ["B"], "three": ["B"]}
    assert len({line.key for line in world.ledger("two", task)}) == 1
    with world.client() as client:
        events = client.task(task).events()
    ended = {event.path: event.value for event in events if isinstance(event, StepSucceeded)}
    assert ended == {"1": None, "2": "B", "3": None}
    assert sum(isinstance(event, StepSucceeded) for event in events) == 3
    assert activations(world, task) == [1, 2]


# ------------------------------------------------------------------ nothing is taken


@on_both
def test_whoever_was_frozen_robs_nobody_when_it_wakes_whether_that_one_was_awake_or_frozen_too(
    world: World, scale: float
) -> None:
    """B is frozen for longer than its lease, alone and then with A; it is the first to wake, with time to rob A."""
    lease = 4 * scale
    a = start(world, "A", lease)
    a.say("chain,t,in the body,default")
    assert a.hear() == "in the body"
    b = start(world, "B", lease)
    wait_for_beats(world, 2)
    world.freeze(b)
    until(monotonic() + 1.1 * lease)
    b.thaw()
    wait_for_beats(world, 3)
    world.freeze(a)
    wait_for_a_beat_of_the_other(world)
    world.freeze(b)
    until(monotonic() + 1.1 * lease)
    b.thaw()
    wait_for_a_beat_of_the_other(world)
    a.thaw()
    wait_for_beats(world, 3)
    a.say("go")
    a.say("answer,t")
    assert a.hear() == "A"
    assert activations(world, "t") == [1]
    assert [(line.effect, line.note) for line in world.ledger()] == [("one", "A"), ("two", "A"), ("three", "A")]
    end(a, b)


def test_a_body_that_keeps_the_interpreter_busy_for_four_leases_costs_no_task_its_owner(
    world: World, scale: float
) -> None:
    """Unscaled: busy for 12 s, with a lease of 3 s."""
    lease = 3 * scale
    a = start(world, "A", lease)
    a.say(f"busy,t,{4 * lease}")
    assert a.hear() == "busy"
    b = start(world, "B", lease)
    a.say("answer,t")
    assert a.hear() == "A"
    assert activations(world, "t") == [1]
    assert world.count("worked") == 1
    end(a, b)


def test_who_was_locked_out_of_the_store_for_longer_than_its_lease_enters_no_body_until_it_has_renewed(
    world: World,
) -> None:
    between, go = threading.Event(), threading.Event()
    entered: list[float] = []

    @step(idempotent=True, name="P05: enter")
    def enter() -> None:
        entered.append(monotonic())

    @agent(name="P05: locked out")
    def flow() -> None:
        between.set()
        assert go.wait(PATIENCE)
        enter()

    with AgentSystem(world.url, lease=0.3) as system:
        task = system.spawn(flow)
        assert between.wait(PATIENCE)
        with world.database() as connection:
            connection.execute("BEGIN IMMEDIATE")
            until(monotonic() + 0.4)
            go.set()
            until(monotonic() + 0.3)
            released = monotonic()
        task.result(PATIENCE)
    assert len(entered) == 1
    assert entered[0] >= released
    assert activations(world, task.id) == [1]
