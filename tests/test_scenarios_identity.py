"""Scenarios about what is the same: P04 a submit knocks many times, P21 a step slips in, P22 a comment is no change."""

from __future__ import annotations

import json

import pytest

from domain.events import Activated, Created, Held, StepStarted
from tests.scenario_kit import KILLED, World

SHOP = """
    import json
    import secrets
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier
    from actors import AgentSystem, TaskConflictError, agent, step
    from tests.scenario_kit import STORE, effect, hear, say

    @step
    def charge(amount):
        effect("charge", amount)
        return secrets.token_hex(8)

    @agent
    def order(amount):
        return charge(amount)

    @agent
    def refund(amount):
        return charge(-amount)

    def knock(agent, amount):
        try:
            task = system.spawn(agent, amount, id="order-42")
        except TaskConflictError as conflict:
            return ["conflict", str(conflict), conflict.task_id]
        return [task.id, task.result(timeout=30)]

    def knock_together(agent, amount):
        together.wait()
        return knock(agent, amount)

    with AgentSystem(STORE) as system, ThreadPoolExecutor(8) as pool:
        say("ready")
        while words := hear():
            name, amount, threads = json.loads(words)
            together = Barrier(threads)
            waiting = [pool.submit(knock_together, globals()[name], amount) for _ in range(threads)]
            say(json.dumps([each.result() for each in waiting]))
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_task_that_is_submitted_many_times_at_once_is_one_task_with_one_result(world: World, processes: int) -> None:
    """P04: eight threads in one process, then in two; later, and in a new process, it is still the same task."""
    program = world.write(SHOP)
    shops = [world.start(program) for _ in range(processes)]
    for shop in shops:
        assert shop.hear() == "ready"
    for shop in shops:
        shop.say(json.dumps(["order", 5, 8]))
    answers = [tuple(answer) for shop in shops for answer in json.loads(shop.hear())]
    assert len(answers) == 8 * processes
    assert len(set(answers)) == 1
    for shop in shops:
        shop.say("")
        shop.end()
    late = world.start(program)
    late.say(json.dumps(["order", 5, 2]))
    assert late.hear() == "ready"
    assert [tuple(answer) for answer in json.loads(late.hear())] == [answers[0]] * 2
    assert world.count("charge") == 1
    with world.client() as client:
        assert [task.id for task in client.tasks()] == ["order-42"]
        assert [type(event) for event in client.task("order-42").events()].count(Created) == 1


def test_a_submit_with_other_words_under_a_used_id_is_a_conflict_and_changes_nothing(world: World) -> None:
    """P04: other input, of another type but equal, or another agent, while it is open and after its end."""
    program = world.write(SHOP)
    shop = world.start(program)
    shop.say(json.dumps(["order", 5, 1]))
    assert shop.hear() == "ready"
    ((task_id, receipt),) = json.loads(shop.hear())
    before = world.rows("order-42")
    for name, amount, told in [
        ("order", 6, "6"),
        ("order", 5.0, "5.0"),
        ("order", "5", '"5"'),
        ("refund", 5, "refund"),
    ]:
        shop.say(json.dumps([name, amount, 2]))
        for kind, message, about in json.loads(shop.hear()):
            assert (kind, about) == ("conflict", task_id)
            assert told in message
            assert "Nothing was changed" in message
    assert world.rows("order-42") == before
    shop.say(json.dumps(["order", 5, 1]))
    assert json.loads(shop.hear()) == [[task_id, receipt]]
    shop.say("")
    shop.end()
    assert world.count("charge") == 1


RELEASES = """
    import sys
    from threading import Event
    from actors import AgentSystem, agent, patched, step
    from tests.scenario_kit import STORE, TIMEOUT, answer, die_once, effect

    reached = Event()

    def make(name, alias=None, before=()):
        def body(given="", /):
            effect(name, given)
            if name == "b" and "die in b" in sys.argv:
                die_once("b")
            if name == "c":
                reached.set()
            return given + name
        body.__qualname__ = name
        return step(name=alias, aliases=before)(body)

    a, b, c, x, b2 = (make(name) for name in ("a", "b", "c", "x", "b2"))
    renamed = make("b2", alias="b")
    aliased = make("b2", before=("b",))

    @agent
    def inner(given):
        return b(given)

    @agent
    def chain():
        {body}

    @step
    def tick():
        return "tick"

    @agent
    def bystander():
        return [tick() for _ in range(5)]

    with AgentSystem(STORE) as system:
        task = system.spawn(chain, id="chain")
        if "look" in sys.argv:  # what this worker looks at when it starts comes before what is new
            answer(system.spawn(bystander))
        if "reach c" in sys.argv:
            assert reached.wait(TIMEOUT)
        print(answer(task))
"""
V1 = 'given = b(a()); die_once("after b"); return c(given)'
HELD = "TaskHeldError"

CHANGES = [
    pytest.param("given = a(); x(); return c(b(given))", "2", "b", "x", id="a step slips in"),
    pytest.param("return c(b2(a()))", "2", "b", "b2", id="a step is renamed"),
    pytest.param("return c(a())", "2", "b", "c", id="a step is taken out"),
    pytest.param("return a()", "2", "b", "nothing", id="it ends early"),
    pytest.param("return 'none'", "1", "a", "nothing", id="it has no steps"),
    pytest.param("return c(a(b()))", "1", "a", "b", id="two steps change places"),
    pytest.param("return c(inner(a()))", "2", "b", "inner", id="a step moves into an agent"),
]


@pytest.mark.parametrize(("body", "position", "recorded", "found"), CHANGES)
def test_where_code_and_log_differ_nothing_runs_until_the_code_fits_again(
    world: World, body: str, position: str, recorded: str, found: str
) -> None:
    """P21: killed after b is stored, started with other code, twice, then with its own again."""
    world.run(world.write(RELEASES.replace("{body}", V1)), code=KILLED)
    before = world.ledger()
    changed = world.write(RELEASES.replace("{body}", body))
    for patience in ("", "look"):
        assert world.run(changed, patience) == HELD
    assert world.ledger() == before
    assert [line.effect for line in before] == ["a", "b"]
    with world.client() as client:
        view = client.task("chain").describe()
        events = client.task("chain").events()
    assert (view.status, view.hold) == ("held", "differs")
    assert f"code differs at position {position}" in view.why
    assert f"step {recorded}" in view.why
    assert found in view.why
    assert [type(event) for event in events].count(Held) == 1
    assert [type(event) for event in events][-2:] == [Activated, Held]  # the second look has written nothing
    assert world.run(world.write(RELEASES.replace("{body}", V1)), "reach c") == "abc"
    assert [(line.effect, line.attempt) for line in world.ledger()] == [("a", 1), ("b", 1), ("c", 1)]


def test_code_that_was_mended_goes_on_by_the_words_it_was_started_with(world: World) -> None:
    """P21: whoever runs the old code again, and asks for the result as ever, gets it."""
    world.run(world.write(RELEASES.replace("{body}", V1)), code=KILLED)
    assert world.run(world.write(RELEASES.replace("{body}", "return a()"))) == HELD
    assert world.run(world.write(RELEASES.replace("{body}", V1))) == "abc"


def test_a_renamed_step_that_keeps_its_recorded_name_goes_on(world: World) -> None:
    """P21, with the explicit alias, `@step(name=…)`: completes, and the recorded value is what it was."""
    world.run(world.write(RELEASES.replace("{body}", V1)), code=KILLED)
    assert world.run(world.write(RELEASES.replace("{body}", "return c(renamed(a()))"))) == "abc"
    assert [line.effect for line in world.ledger()] == ["a", "b", "c"]


def test_a_renamed_step_that_says_what_it_was_called_goes_on(world: World) -> None:
    """P21, with `@step(aliases=…)`: completes, the recorded value is what it was, and the new name is in new logs."""
    world.run(world.write(RELEASES.replace("{body}", V1)), code=KILLED)
    assert world.run(world.write(RELEASES.replace("{body}", "return c(aliased(a()))"))) == "abc"
    assert [line.effect for line in world.ledger()] == ["a", "b", "c"]


def test_a_step_that_slips_in_behind_a_patch_runs_in_new_tasks_alone(world: World) -> None:
    """P21, with `patched`: the old task completes without it, also when it is killed once more; a new one has it."""
    world.run(world.write(RELEASES.replace("{body}", V1)), code=KILLED)
    body = 'given = a(); patched("polite") and x(); given = b(given); die_once("again"); return c(given)'
    patched = RELEASES.replace("{body}", body)
    world.run(world.write(patched), code=KILLED)
    assert world.run(world.write(patched)) == "abc"
    assert [line.effect for line in world.ledger()] == ["a", "b", "c"]
    assert world.run(world.write(patched.replace('id="chain"', 'id="new"'))) == "abc"
    assert [line.effect for line in world.ledger(task="new")] == ["a", "x", "b", "c"]


def test_a_step_in_doubt_is_not_run_again_by_code_that_differs(world: World) -> None:
    """P21, killed inside b: neither b nor what stands in its place is entered until b is there again."""
    first = RELEASES.replace("{body}", V1)
    world.run(world.write(first), "die in b", code=KILLED)
    for body in ("return c(b2(a()))", "return c(b('other' + a()))"):
        assert world.run(world.write(RELEASES.replace("{body}", body)), "look") == HELD
        assert [line.effect for line in world.ledger()] == ["a", "b"]
    world.run(world.write(first), "reach c", code=KILLED)
    assert world.run(world.write(first)) == "abc"
    assert [(line.effect, line.attempt) for line in world.ledger()] == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]


def test_a_task_whose_agent_is_gone_from_the_code_waits_for_it(world: World) -> None:
    """P21, the agent itself is taken out: nothing is written, and the old code finishes it."""
    world.run(world.write(RELEASES.replace("{body}", V1)), code=KILLED)
    before = world.rows("chain")
    gone = RELEASES.replace("{body}", "return a()").replace("chain", "other")
    assert world.run(world.write(gone)) == "a"
    assert world.rows("chain") == before
    assert world.run(world.write(RELEASES.replace("{body}", V1))) == "abc"


MAIN = """
    import sys
    from actors import AgentSystem
    from tests.scenario_kit import STORE, answer
    from shop import trade
    from other import idle

    with AgentSystem(STORE) as system:
        print(answer(system.spawn(trade, "tea", id="trade")))
        print(answer(system.spawn(idle, id="idle")))
"""
SHOP_MODULE = """
    from actors import agent, step
    from tests.scenario_kit import die_once, effect

    @step(label="buy {what}")
    def buy(what):
        effect("buy")
        return f"bill for {what}"

    @step
    def sell(what, bill):
        effect("sell", bill)
        return f"sold {what}"

    @agent
    def trade(what):
        bill = buy(what)
        die_once("between")
        return sell(what, bill)
"""
EDITED_SHOP_MODULE = '''
    """A docstring that was not there."""

    import math
    from actors import agent, step
    from tests.scenario_kit import die_once, effect


    def unrelated(number):
        return math.sqrt(number)


    @step
    def new_and_never_called():
        effect("never")


    @step(label="purchase of {what}")
    def buy(what: str) -> str:
        """Buy it."""
        effect("buy")
        return f"another bill for {what}"  # the recorded one stands


    @step
    def sell(what: str, bill: str) -> str:
        # A comment.
        effect("sell", bill)
        return f"sold {what}"


    @agent
    def trade(what: str) -> str:
        """Buy and sell."""
        # A comment.
        receipt = buy(what)
        die_once("between")
        return sell(what, bill=receipt)
'''
OTHER_MODULE = """
    from actors import agent, step
    from tests.scenario_kit import effect

    @step
    def rest():
        effect("rest")

    @agent
    def idle():
        {body}
"""


def test_comments_other_functions_other_agents_and_a_moved_folder_strand_no_task(world: World) -> None:
    """P22: killed between two steps, edited all around and moved; it goes on with no word from anyone."""
    main = world.write(MAIN, "here/main.py")
    world.write(SHOP_MODULE, "here/shop.py")
    world.write(OTHER_MODULE.replace("{body}", "rest()"), "here/other.py")
    world.run(main, code=KILLED)
    (world.folder / "here").rename(world.folder / "there")
    world.write(EDITED_SHOP_MODULE, "there/shop.py")
    world.write(OTHER_MODULE.replace("{body}", "rest(); rest(); return 'rested'"), "there/other.py")
    assert world.run(world.folder / "there" / "main.py").splitlines() == ["sold tea", "rested"]
    assert world.count("buy") == 1
    assert [line.note for line in world.ledger("sell")] == ["bill for tea"]
    assert world.count("never") == 0
    with world.client() as client:
        assert not [event for event in client.task("trade").events() if isinstance(event, Held)]


def test_a_prompt_that_was_edited_is_a_notice_and_the_recorded_outcome_stands(world: World) -> None:
    """P22: other words for a step that has finished strand nothing either; one warning says so."""
    world.write(SHOP_MODULE, "shop.py")
    world.write(OTHER_MODULE.replace("{body}", "return 'idle'"), "other.py")
    main = world.write(MAIN)
    world.run(main, code=KILLED)
    edited = SHOP_MODULE.replace("bill = buy(what)", "bill = buy('the best ' + what)")
    world.write(edited, "shop.py")
    again = world.start(main)
    assert again.end().splitlines() == ["sold tea", "idle"]
    assert again.errors.count("step 1 buy has other arguments") == 1
    assert [line.note for line in world.ledger("sell")] == ["bill for tea"]
    with world.client() as client:
        starts = [event for event in client.task("trade").events() if isinstance(event, StepStarted)]
    assert [(event.name, event.attempt) for event in starts] == [("buy", 1), ("sell", 1)]
