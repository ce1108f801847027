"""The examples for other frameworks keep perdure's promises through crashes, with scripted models."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.testing import Run, every_crash_point, run_through_crashes
from actors.view import ApprovalView

EXAMPLES = Path(__file__).parent / "examples"


def asks_twice_only_in_doubt(run: Run) -> None:
    run.check()
    assert len({(body.path, body.life) for body in run.bodies}) == len(run.bodies)


def test_an_agent_of_the_openai_sdk_pays_once_what_was_approved_wherever_it_dies() -> None:
    pytest.importorskip("agents", reason="needs the extra examples")
    from tests.examples.openai_agents import assist

    def up_to_20(approval: ApprovalView) -> bool:
        return "pay 20" in approval.question

    paid = 0
    for run in every_crash_point(assist, "pay acme", answer=up_to_20):
        asks_twice_only_in_doubt(run)
        assert run.status in ("completed", "held")  # in doubt whether it has paid, it waits for a person
        if run.status == "completed":
            paid += 1
            assert run.result == "paid 20 to acme, refused"
        assert [body.attempt for body in run.bodies if body.step == "pay"] in ([1], [])
    assert paid > 20


def test_a_graph_of_langgraph_runs_each_node_once_wherever_it_dies() -> None:
    pytest.importorskip("langgraph", reason="needs the extra examples")
    from tests.examples.langgraph_agent import newsletter

    for run in every_crash_point(newsletter, "bridges", answer=lambda _: True):
        asks_twice_only_in_doubt(run)
        assert run.result == "bridges in the archive and bridges in the web"
        assert {body.step for body in run.bodies} == {"archive", "web", "write"}
    refused = run_through_crashes(newsletter, "bridges", answer=lambda _: False)
    assert refused.result.startswith("not published")


@pytest.mark.parametrize("file", ["openai_agents.py", "langgraph_agent.py"])
def test_an_example_for_a_framework_is_short(file: str) -> None:
    lines = (EXAMPLES / file).read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 60
