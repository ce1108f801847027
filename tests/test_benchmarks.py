"""The benchmarks run, and reckon right. Nothing here looks at how fast anything is."""

from __future__ import annotations

import doctest
import importlib
import io
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from tests.benchmarks import __main__ as program
from tests.benchmarks.admission import crowd
from tests.benchmarks.bench import Bench, GivenUpError, Sizes
from tests.benchmarks.charts import draw, goals_of
from tests.benchmarks.contenders import CONTENDERS, POSTGRES, SQLITE
from tests.benchmarks.databases import SQLiteFiles
from tests.benchmarks.figures import Figures, Point, Row
from tests.benchmarks.table import print_figures, verdicts
from tests.benchmarks.targets import TARGETS
from tests.benchmarks.workloads import restart

SMALLEST = Sizes(
    rounds=1,
    crowds=1,
    few=1,
    steps=5,
    tasks=3,
    length=2,
    many=120,
    starts=3,
    finished=7,
    dormant=(50,),
    queue=200,
    crowd=70,
    stored=20,
    by_steps=(2, 4),
    by_tasks=(1, 2),
    patience=60.0,
)


def row(
    value: float, *, workload: str = "W2", who: str = "perdure", what: str = "200 tasks × 10 steps", on: str = SQLITE
) -> Row:
    return Row(workload, on, who, what, "steps/s", [value])


def in_words(figures: Figures) -> str:
    said = io.StringIO()
    print_figures(figures, Console(file=said, width=200))
    return said.getvalue()


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.timeout(300)  # it starts some forty processes
def test_all_workloads_of_perdure_and_of_raw_commits_come_to_a_table_and_to_two_charts(tmp_path: Path) -> None:
    options = program.parsed(["--who", "raw,perdure", "--on", "sqlite", "--folder", str(tmp_path)])
    figures = program.measure(options, SMALLEST)
    assert figures.words == []
    assert {(row.workload, row.contender) for row in figures.rows} == {
        (workload, who) for workload in ("W1", "W2", "W3", "W4", "W5", "W6") for who in ("raw", "perdure")
    }
    assert all(value > 0 for row in figures.rows for value in row.values)
    assert {(point.curve, point.contender, point.size) for point in figures.points} == {
        (curve, who, size)
        for who in ("raw", "perdure")
        for curve, size in (("steps", 2), ("steps", 4), ("tasks", 1), ("tasks", 2))
    }
    table = in_words(figures)
    for word in ("5 steps of one task", "3 tasks × 2 steps", "7 finished steps", "50 dormant: ready", "bytes a step"):
        assert word in table
    bars, growth = draw(figures, tmp_path)
    assert "W4  Killed and started again, to the first new step, SQLite" in texts(bars)
    assert texts(growth).count("perdure") == 2


def test_the_kept_numbers_give_the_same_table_and_charts_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = Figures(
        {"Python": "3"}, [row(3.0), row(2.0, who="raw")], [Point("tasks", SQLITE, "raw", 1, [2.0])], ["a word"]
    )
    figures.save(tmp_path / "kept.json")
    assert Figures.load(tmp_path / "kept.json") == figures
    program.main(["--read", str(tmp_path / "kept.json"), "--charts", str(tmp_path / "new" / "folder")])
    said = capsys.readouterr().out
    assert "200 tasks × 10 steps" in said
    assert "a word" in said
    assert (tmp_path / "new" / "folder" / "benchmarks.svg").exists()
    assert (tmp_path / "new" / "folder" / "benchmarks-growth.svg").exists()


def test_a_ratio_is_the_median_of_the_ratios_within_the_rounds() -> None:
    slow_round = Row(
        "W1", SQLITE, "perdure", "200 steps of one task", "steps/s", [50.0, 9.0, 60.0], [100.0, 10.0, 100.0]
    )
    assert slow_round.ratio == 0.6  # the medians' own ratio would be 0.5
    assert slow_round.median == 50.0
    assert row(1.0).ratio is None


def test_a_row_without_as_many_rounds_beside_it_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        _ = Row("W1", SQLITE, "perdure", "", "steps/s", [1.0, 2.0], [1.0]).ratio


def test_a_target_is_held_against_raw_commits_or_the_best_peer_or_its_own_bound() -> None:
    ours = Row("W2", SQLITE, "perdure", "200 tasks × 10 steps", "steps/s", [900.0], [1000.0])
    peers = [row(100.0, who="dbos"), row(200.0, who="langgraph-1"), row(5000.0, who="idempotent")]
    assert verdicts(ours, [ours, *peers]) == [("≥ 1 of raw", "MISSED"), ("≥ 5 × the best peer", "MISSED (4.50)")]
    assert verdicts(ours, [ours, peers[0]]) == [("≥ 1 of raw", "MISSED"), ("≥ 5 × the best peer", "reached (9.00)")]
    assert verdicts(ours, [ours]) == [("≥ 1 of raw", "MISSED")]
    on_postgres = row(300.0, on=POSTGRES)
    others = [row(50.0, who="dbos", on=POSTGRES), row(299.0, who="langgraph", on=POSTGRES)]
    assert verdicts(on_postgres, [on_postgres, *others]) == [("≥ 5 × DBOS", "reached (6.00)")]
    quick = Row("W4", SQLITE, "perdure", "5,000 finished steps, to the first new one", "s", [0.4])
    assert verdicts(quick, [quick]) == [("≤ 0.4", "reached")]


def test_a_target_speaks_only_of_the_numbers_that_it_names() -> None:
    fewer = row(900.0, what="20 tasks × 10 steps")
    assert [target for target in TARGETS if target.means(fewer)] == []


def test_targets_lie_on_the_chart_in_the_units_of_their_bars() -> None:
    ours = Row("W2", SQLITE, "perdure", "200 tasks × 10 steps", "steps/s", [900.0], [1200.0])
    assert goals_of(ours, [ours, row(100.0, who="dbos")]) == pytest.approx([1200.0, 500.0])


def test_charts_bear_everybody_on_both_databases_with_their_durability(tmp_path: Path) -> None:
    figures = Figures()
    for number, (name, entry) in enumerate(CONTENDERS.items(), 1):
        for kind in entry.durability:
            figures.rows += [
                row(number * 10.0, workload=f"W{one}", who=name, on=kind, what="median ready until memory")
                for one in range(1, 7)
            ]
            figures.points += [
                Point(curve, kind, name, size, [number / size]) for curve in ("steps", "tasks") for size in (1, 10)
            ]
    bars, growth = draw(figures, tmp_path)
    for path in (bars, growth):
        found = texts(path)
        for entry in CONTENDERS.values():
            assert entry.label in found
            assert set(entry.durability.values()) <= set(found)
        root = ET.parse(path).getroot()
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for element in root.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 <= float(element.attrib["x"]) <= width
            assert 0 <= float(element.attrib["y"]) <= height


def test_a_peer_that_is_not_installed_is_left_out_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "installed", lambda name: name == "raw")
    options = program.parsed(
        ["--who", "raw,dbos,dbos-wal", "--only", "W6", "--on", "sqlite", "--folder", str(tmp_path)]
    )
    figures = program.measure(options, SMALLEST)
    assert [row.contender for row in figures.rows] == ["raw"]
    assert figures.words == ["dbos left out: it is not installed; pip install -e '.[bench]'"]


def test_who_loses_a_finished_step_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(SQLiteFiles(tmp_path), ["raw"], SMALLEST, tmp_path / "bytecode", str)
    monkeypatch.setattr(bench, "seconds_to_a_line", lambda *_: (0.1, '{"number": 6}'))
    restart(bench)
    assert set(bench.words) == {"raw commits: 7 steps were finished, and step 6 ran"}


def test_what_takes_too_long_is_given_up_with_a_word_and_its_process_is_gone(tmp_path: Path) -> None:
    sizes = replace(SMALLEST, patience=0.3)
    bench = Bench(SQLiteFiles(tmp_path), ["raw", "perdure"], sizes, tmp_path / "bytecode", str)
    with pytest.raises(GivenUpError, match="had no line after"):
        bench.seconds_to_a_line("-c", "import threading; threading.Event().wait()")
    with pytest.raises(GivenUpError, match=r"^70 tasks at once took over 0\.3 s$"):
        crowd(bench)
    assert bench.by_turns(["perdure"], "latency", 100_000, rounds=1) == {}
    assert bench.words == ["perdure on SQLite: latency (100000,) took over 0.3 s"]


@pytest.mark.parametrize(("option", "value"), [("--only", "W7"), ("--who", "nobody"), ("--on", "oracle")])
def test_an_unknown_name_is_a_wrong_use(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main([option, value])
    assert f"{value.casefold()} is not one of" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["charts", "contender", "figures", "svg", "targets"])
def test_the_examples_of_the_benchmarks_are_true(name: str) -> None:
    tested = doctest.testmod(importlib.import_module(f"tests.benchmarks.{name}"), raise_on_error=True)
    assert tested.attempted > 0
