"""The contract suite and the state machine see what they are there for: stores that break the contract, one by one."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from stores.contract import LastingStoreContract, Maker, StoreContract, stores_agree
from stores.store import Store
from tests.mutants import MUTANTS, TestSound

ROOT = Path(__file__).parents[1]
QUICKLY = settings(deadline=None, database=None, derandomize=True, max_examples=300, phases=[Phase.generate])

TestSound.__test__ = False  # it is run with the others, and not once more here


def run_all(report: Path) -> dict[tuple[str, str], list[str]]:
    """Run the whole suite on the sound store, and on each mutant the test that has to see it.

    Gives by class and test the first lines of its failures.
    """
    nodes = [f"tests/mutants.py::{name}::{mutant.seen_by}" for name, mutant in MUTANTS.items()]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options, "tests/mutants.py::TestSound", *nodes]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found: dict[tuple[str, str], list[str]] = {}
    for case in ET.parse(report).iter("testcase"):
        key = case.attrib["classname"].rpartition(".")[2], case.attrib["name"].partition("[")[0]
        failed = [one.attrib["message"] for one in case if one.tag in ("failure", "error")]
        found.setdefault(key, []).extend(failed)
    return found


def test_the_suite_passes_a_sound_store_and_sees_each_that_breaks_the_contract(tmp_path: Path) -> None:
    verdicts = run_all(tmp_path / "report.xml")
    sound = {test: failures for (name, test), failures in verdicts.items() if name == "TestSound"}
    assert set(sound) == {name for name in dir(LastingStoreContract) if name.startswith("test_")}
    assert [failures for failures in sound.values() if failures] == []
    seen = {name: verdicts[name, mutant.seen_by] for name, mutant in MUTANTS.items()}
    assert [name for name, failures in seen.items() if not failures] == []
    slips = ("TypeError", "AttributeError", "NameError")  # a mutant that cannot even be called
    assert [failures for failures in seen.values() for line in failures if line.startswith(slips)] == []


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.seen_by_the_machine])
def test_the_state_machine_sees_a_store_that_breaks_the_contract(name: str) -> None:
    mutant: Any = MUTANTS[name]()
    with pytest.raises(AssertionError, match=r"mutant: \w+ gave"):
        stores_agree({"mutant": Maker(mutant.fresh, mutant.again)}, QUICKLY)


def test_a_store_that_says_not_how_it_is_opened_is_told_so() -> None:
    class Forgetful(StoreContract):
        pass

    class HalfWay(LastingStoreContract):
        def fresh(self, folder: Path) -> Store:
            raise NotImplementedError

    with pytest.raises(TypeError, match="fresh"):
        Forgetful()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="again"):
        HalfWay()  # type: ignore[abstract]
