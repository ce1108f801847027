"""What a person types to name an agent and its arguments."""

import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from actors import agent
from actors.definitions import AnyAgent
from actors.target import CommandError, load_agent, load_module, parse_json, read_argument, read_arguments
from tests.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# ------------------------------------------------------------------ the agent


def test_a_file_finds_what_is_beside_it_from_any_folder(shell: Shell) -> None:
    inside = shell.folder / "inside"
    inside.mkdir()
    (inside / "helper.py").write_text("from work2 import hello\nassert __name__ == 'helper'\n")
    (inside / "work2.py").write_text(
        "import sys\nfrom actors import agent\n@agent\ndef hello() -> str:\n    import helper\n"
        "    return __name__ + ' ' + str(helper.hello is hello) + ' ' + sys.path[0]\n"
    )
    done = shell("run", "inside/work2.py:hello", "--id", "h")
    assert done.stdout == f'"work2 True {inside}"\n'
    assert not (inside / "__pycache__" / f"work2.{sys.implementation.cache_tag}.pyc").exists()


NO_AGENT = [
    ("work.py", "'work.py' names no agent: write FILE.py:AGENT or MODULE:AGENT"),
    ("nowhere.py:x", "there is no file nowhere.py in "),
    ("nowhere:x", "there is no module nowhere in "),
    ("work.inside:x", "there is no module work.inside in "),
    ("a b:x", "'a b' is neither a module nor a file"),
    ("work.py:nothing", "work.py has no 'nothing'; its agents: report, invoice, failing, "),
    ("work.py:draft", "'draft' in work.py is a step, not an agent; its agents: report, "),
    ("work.py:os", "'os' in work.py is a module, not an agent; its agents: report, "),
    ("work.py:number", "'number' in work.py is an int, not an agent; "),
    ("empty.py:x", "empty.py has no 'x'; it has no agent at all"),
    ("leaving.py:x", "leaving.py called sys.exit(5) while it was imported"),
]


def test_a_target_that_names_no_agent_is_one_clear_line(shell: Shell) -> None:
    (shell.folder / "empty.py").write_text("")
    source = (shell.folder / "work.py").read_text()
    (shell.folder / "work.py").write_text(f"{source}number = 5\n")
    (shell.folder / "leaving.py").write_text("import sys\nsys.exit(5)\n")
    ends = shell.each(["run", target, "--id", "x"] for target, _ in NO_AGENT)
    for (target, message), (code, out, err) in zip(NO_AGENT, ends, strict=True):
        assert (target, code, out) == (target, 2, "")
        assert err.startswith(f"perdure: {message}"), err
        assert err.count("\n") == 1
    assert not (shell.folder / "perdure.db").exists()


def test_an_agent_is_found_by_its_name_in_the_log_too(shell: Shell) -> None:
    assert shell("run", "work.py:another name", "--id", "x").stdout == '"renamed"\n'


@pytest.mark.parametrize("place", ["broken.py", "broken"])
def test_an_error_in_the_users_file_shows_the_users_frames_only(shell: Shell, place: str) -> None:
    (shell.folder / "broken.py").write_text("from deeper import x\n")
    (shell.folder / "deeper.py").write_text("def f():\n    import missing_one\nf()\n")
    done = shell("run", f"{place}:x", "--id", "x")
    assert done.returncode == 2
    files = re.findall(r'File "(.*?)", line (\d+)', done.stderr)
    assert files == [
        (str(shell.folder / "broken.py"), "1"),
        (str(shell.folder / "deeper.py"), "3"),
        (str(shell.folder / "deeper.py"), "2"),
    ]
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'missing_one'\n")


def test_a_syntax_error_names_its_line(shell: Shell) -> None:
    (shell.folder / "broken.py").write_text("x = 1\ndef f(:\n")
    done = shell("run", "broken.py:x", "--id", "x")
    assert done.returncode == 2
    assert re.findall(r'File ".*?(\w+\.py)", line (\d+)', done.stderr) == [("broken.py", "2")]


def test_an_async_agent_is_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "waits.py").write_text(
        "from actors import agent, step\n"
        "@step\nasync def ask(): ...\n"
        "@agent\nasync def waits_for_target_test(number: int) -> int:\n    return number\n"
    )
    target = f"{tmp_path}/waits.py"
    found = load_agent(f"{target}:waits_for_target_test")
    assert isinstance(found, AnyAgent)
    assert found.is_async
    assert read_arguments(found, ["5"]) == [5]
    assert load_module(target).waits_for_target_test.name == found.name
    with pytest.raises(CommandError, match=r"'ask' in .* is a step, not an agent; its agents: waits_for_target_test"):
        load_agent(f"{target}:ask")


# ------------------------------------------------------------------ its arguments


@pytest.mark.parametrize(
    ("word", "annotation", "value"),
    [
        ("5", str, "5"),
        ("null", str, "null"),
        ('"quoted"', str, "quoted"),
        ("plain text", str, "plain text"),
        ("5", int, 5),
        ("5", float, 5.0),
        ("5", int | str, 5),
        ("5", str | None, "5"),
        ("null", str | None, None),
        ("1.50", Decimal, Decimal("1.50")),
        ("12345678123456781234567812345678", UUID, UUID("12345678123456781234567812345678")),
        ("2026-11-01T01:30:00+00:00", datetime, datetime(2026, 11, 1, 1, 30, tzinfo=UTC)),
        ("[1, 2]", tuple[int, ...], (1, 2)),
        ("text", bytes, b"text"),
        ("NaN", str, "NaN"),
        ('{"$": "bytes"}', dict, {"$": "bytes"}),
    ],
)
def test_an_argument_is_json_then_text_then_what_the_annotation_asks_for(
    word: str, annotation: Any, value: Any
) -> None:
    read = read_argument(word, annotation)
    assert (type(read), read) == (type(value), value)


def test_an_argument_without_annotation_is_json_where_it_can_be() -> None:
    words = ["1", "true", '{"a": [1]}', "[1, 2", "hello", "NaN", "", "[" * 100_000]
    assert [read_argument(word) for word in words] == [1, True, {"a": [1]}, *words[3:]]


def test_nothing_but_json_is_taken_for_json() -> None:
    for text in ("NaN", "-Infinity", "[NaN]", "abc", "", "[" * 100_000):
        with pytest.raises(ValueError, match=r"\w"):
            parse_json(text)


def test_arguments_of_a_real_command_fit_the_signature(shell: Shell) -> None:
    done = shell("run", "work.py:typed", "--id", "t", "--", "7", "-5", "null", "8", "x y")
    assert json.loads(done.stdout) == ["'7'", "-5.0", "None", "'8'", "'x y'"]


def test_a_negative_number_that_is_taken_for_an_option_is_told_how_it_is_none(shell: Shell) -> None:
    for words in (["-5", "--id", "t"], ["x", "--id", "t", "-.5"]):
        done = shell("run", "work.py:typed", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "a negative number is taken for an option, unless it comes last, after `--`: -- -5" in done.stderr
    assert "negative" not in shell("run", "work.py:typed", "-x", "--id", "t").stderr


def test_annotations_that_cannot_be_resolved_leave_the_others_in_force() -> None:
    def function(text: str, strange: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert read_arguments(agent(name="half annotated")(function), ["5", "5"]) == ["5", 5]


def test_wrong_arguments_name_the_signature() -> None:
    def pay(who: str, amount: int = 1) -> None: ...

    paying = agent(name="pay for the test of arguments")(pay)
    with pytest.raises(
        CommandError, match=r"\(who: str, amount: int = 1\) -> None: missing a required argument: 'who'"
    ):
        read_arguments(paying, [])
    with pytest.raises(CommandError, match=r"argument amount: expected int, found 'many' \(str\)"):
        read_arguments(paying, ["acme", "many"])


@pytest.mark.parametrize(
    ("annotation", "sample"),
    [
        (list[str], '["a", "b"]'),
        (tuple[int, ...], "[1, 2]"),
        (tuple[str, int, bool], '["a", 1, true]'),
        (list[dict[str, float]] | None, '[{"a": 0.5}]'),
        (Sequence[Path], '["…"]'),
        (dict, '{"a": 1}'),
        (list, '["a", "b"]'),
    ],
)
def test_who_writes_a_list_or_a_dict_wrong_is_shown_one_that_fits(annotation: Any, sample: str) -> None:
    def visit(where): ...

    visit.__annotations__ = {"where": annotation}
    visiting = agent(name="visit for the test of arguments")(visit)
    for words in (["Rome"], ["Rome", "Oslo"], []):
        with pytest.raises(CommandError) as caught:
            read_arguments(visiting, words)
        assert str(caught.value).endswith(f" JSON in quotes: '{sample}'")
    if "…" not in sample:
        read_arguments(visiting, [sample])


@pytest.mark.parametrize("annotation", [str, int, None, Any, str | None, Path])
def test_who_writes_anything_else_wrong_is_shown_no_list(annotation: Any) -> None:
    def visit(where): ...

    visit.__annotations__ = {"where": annotation}
    with pytest.raises(CommandError) as caught:
        read_arguments(agent(name="visit for the test of arguments")(visit), [])
    assert "JSON" not in str(caught.value)


def test_arguments_that_come_by_name_alone_are_said_to_need_a_default() -> None:
    def order(what: str, *, count: int) -> None: ...

    with pytest.raises(
        CommandError,
        match=r"'count'; `run` passes arguments by position only, and what comes by name alone needs a default$",
    ):
        read_arguments(agent(name="order for the test of arguments")(order), ["milk"])
