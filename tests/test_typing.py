"""Type checkers see what a user means: right uses pass, and each misuse is refused where it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
RIGHT, LLM, WRONG = TESTS / "typing_signatures.py", TESTS / "typing_llm.py", TESTS / "wrong_signatures.py"


@pytest.fixture(scope="module")
def refused() -> dict[str, dict[int, str]]:
    """Give what mypy --strict says of the files: for each its lines, and what is wrong there."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", str(RIGHT), str(LLM), str(WRONG)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, timeout=110, check=False)
    assert done.stderr == ""
    lines: dict[str, dict[int, str]] = {RIGHT.name: {}, LLM.name: {}, WRONG.name: {}}
    for line in done.stdout.splitlines():
        found = re.match(r"(?:.*/)?(\w+\.py):(\d+): error: (.*)", line)
        if found:
            lines[found[1]].setdefault(int(found[2]), found[3])
    return lines


def test_right_uses_are_accepted(refused: dict[str, dict[int, str]]) -> None:
    assert refused[RIGHT.name] == refused[LLM.name] == {}


def test_exactly_the_marked_misuses_are_refused(refused: dict[str, dict[int, str]]) -> None:
    text = WRONG.read_text().splitlines()
    marked = {number: line.strip() for number, line in enumerate(text, 1) if "# refused: " in line}
    assert len(marked) >= 25
    found = refused[WRONG.name]
    assert {line: marked[line] for line in sorted(marked.keys() - found.keys())} == {}, "accepted, though wrong"
    assert {line: found[line] for line in sorted(found.keys() - marked.keys())} == {}, "refused, though right"
