"""`@agent` and `@step`: names, labels, and what is refused where it is written."""

import functools
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from actors import Agent, DefinitionError, Doubt, Happened, OutsideTaskError, Step, UnknownAgentError, agent, step
from actors.definitions import LABEL_LIMIT, NAME_LIMIT, find_agent, known_agents


@pytest.fixture(autouse=True)
def no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins, and leaves the others, without the agents of this one."""
    monkeypatch.setattr("actors.definitions._agents", {})


def draft(document: str, words: int = 100, *, lang: str = "en") -> str:
    """Draft a summary."""
    return f"{document} {words} {lang}"


def asks(doubt: Doubt) -> Happened:
    return Happened()


# ------------------------------------------------------------------ what a decorated function still is


@pytest.mark.parametrize("decorate", [step, agent], ids=["step", "agent"])
def test_a_decorated_function_keeps_what_it_is(decorate: Any) -> None:
    made = decorate(draft)
    assert made.fn is draft
    assert inspect.signature(made) == inspect.signature(draft)
    assert (made.__name__, made.__qualname__, made.__module__) == ("draft", "draft", __name__)
    assert made.__doc__ == "Draft a summary."
    assert inspect.unwrap(made) is draft


def test_its_plain_function_is_called_as_ever() -> None:
    assert step(draft).fn("a", lang="fr") == "a 100 fr"
    assert agent(draft)("a", 5) == "a 5 en"


@pytest.mark.parametrize(("decorate", "kind"), [(step, Step), (agent, Agent)], ids=["step", "agent"])
def test_decorators_may_be_bare_or_have_options(decorate: Any, kind: type) -> None:
    assert isinstance(decorate(draft), kind)
    assert isinstance(decorate()(draft), kind)
    assert decorate(name="another")(draft).name == "another"
    assert decorate(draft).name == "draft"


def test_what_a_function_carries_does_not_change_what_its_step_is() -> None:
    def send(to: str) -> str:
        return to

    send.name, send.fn, send.on_doubt = "hijacked", print, "hold"  # type: ignore[attr-defined]
    send.mark = "kept"  # type: ignore[attr-defined]
    made: Any = step(name="send")(send)
    assert (made.name, made.fn, made.on_doubt, made.mark) == ("send", send, "rerun", "kept")


# ------------------------------------------------------------------ names


def test_a_function_is_known_by_its_qualified_name() -> None:
    @step
    def inner() -> None: ...

    assert inner.name == "test_a_function_is_known_by_its_qualified_name.<locals>.inner"


@pytest.mark.parametrize("decorate", [step, agent], ids=["step", "agent"])
@pytest.mark.parametrize("name", ["", "a\nb", "a\tb", "a\0b", "x" * (NAME_LIMIT + 1), "\u202e", 5])
def test_a_name_has_to_be_printable_and_short(decorate: Any, name: Any) -> None:
    with pytest.raises(DefinitionError, match="a name has 1 to 200 printable characters, not "):
        decorate(name=name)(draft)


@pytest.mark.parametrize("name", ["x" * NAME_LIMIT, "Grüße 你好", "a b", "a.b:c/d"])
def test_any_printable_name_will_do(name: str) -> None:
    assert step(name=name)(draft).name == name


def test_an_agent_is_found_by_its_name() -> None:
    made = agent(name="report it")(draft)
    assert find_agent("report it") is made
    assert "report it" in known_agents()
    with pytest.raises(UnknownAgentError, match="no agent 'lost' is known to this process: import") as error:
        find_agent("lost")
    assert "report it" in str(error.value)


# ------------------------------------------------------------------ two agents of one name


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Import a file of a folder."""

    def load(file: str, source: str) -> ModuleType:
        path = tmp_path / file
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


REPORT = "from actors import agent\n\n@agent\ndef report():\n    return 1\n"


def test_two_agents_of_one_name_from_two_files_are_refused_and_both_are_named(load: Any, tmp_path: Path) -> None:
    first = load("one.py", REPORT)
    with pytest.raises(DefinitionError) as error:
        load("other.py", "\n" * 4 + REPORT)
    message = str(error.value)
    assert f"{tmp_path.resolve()}/one.py:3" in message
    assert f"{tmp_path.resolve()}/other.py:7" in message
    assert "@agent(name=" in message
    assert find_agent(first.report.name) is first.report


def test_the_same_file_may_be_imported_again(load: Any) -> None:
    load("one.py", REPORT)
    again = load("one.py", REPORT + "    # changed\n")
    assert find_agent(again.report.name) is again.report


def test_one_file_under_two_paths_is_one_file(load: Any, tmp_path: Path) -> None:
    load("one.py", REPORT)
    (tmp_path / "link.py").symlink_to(tmp_path / "one.py")
    spec = importlib.util.spec_from_file_location("link", tmp_path / "link.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_two_agents_wrapped_by_a_decorator_of_a_third_file_are_still_from_two_files(load: Any, tmp_path: Path) -> None:
    third = load(
        "third.py",
        "import functools\n\ndef logged(fn):\n    @functools.wraps(fn)\n    def inner(*args):\n"
        "        return fn(*args)\n    return inner\n",
    )
    wrapped = REPORT.replace("def report", "@logged\ndef report")
    source = f"import sys\nlogged = sys.modules['definitions_third'].logged\n{wrapped}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "definitions_third", third)
        load("one.py", source)
        with pytest.raises(DefinitionError, match=r"one\.py.*other\.py"):
            load("other.py", source)


# ------------------------------------------------------------------ what cannot be one


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def stream() -> Any:
    yield 1


class Callable:
    def __call__(self) -> None: ...


@pytest.mark.parametrize("decorate", [step, agent], ids=["step", "agent"])
@pytest.mark.parametrize("function", [coroutine, generator, stream])
def test_async_functions_and_generators_are_refused(decorate: Any, function: Any) -> None:
    with pytest.raises(DefinitionError, match=f"{function.__name__}: async functions and generators cannot be"):
        decorate(function)


@pytest.mark.parametrize("decorate", [step, agent], ids=["step", "agent"])
@pytest.mark.parametrize(
    "thing", [len, Callable, Callable(), functools.partial(draft, "a"), "a name", 5, staticmethod(draft), step(draft)]
)
def test_only_functions_written_with_def_can_be_decorated(decorate: Any, thing: Any) -> None:
    with pytest.raises(DefinitionError, match="is for functions written with def, not for"):
        decorate(thing)


@pytest.mark.parametrize("value", [None, "", "Rerun", "ask", 1, True, ["hold"], Happened()])
def test_on_doubt_is_one_of_two_words_or_a_function(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"step draft: on_doubt is 'rerun', 'hold' or a function .doubt. -> "):
        step(on_doubt=value)(draft)


@pytest.mark.parametrize("value", ["rerun", "hold", asks, functools.partial(asks)])
def test_on_doubt_takes_its_three_forms(value: Any) -> None:
    assert step(on_doubt=value)(draft).on_doubt is value


@pytest.mark.parametrize("value", ["hold", asks])
def test_an_idempotent_step_is_never_in_doubt(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"step draft: idempotent=True .* on_doubt cannot be had with it"):
        step(idempotent=True, on_doubt=value)(draft)
    assert step(idempotent=True)(draft).idempotent


@pytest.mark.parametrize("value", ["", "Hold", None, 1])
def test_on_failure_is_one_of_two_words(value: Any) -> None:
    with pytest.raises(DefinitionError, match="agent draft: on_failure is 'fail' or 'hold', not"):
        agent(on_failure=value)(draft)


def test_an_agent_that_is_refused_is_not_known() -> None:
    with pytest.raises(DefinitionError):
        agent(name="refused", on_failure="never")(draft)  # type: ignore[call-overload]
    assert "refused" not in known_agents()


# ------------------------------------------------------------------ labels


def labelled(text: Any, *args: Any, **kwargs: Any) -> str:
    made = step(label=text)(draft)
    return made.label(made.arguments(args, kwargs))


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("draft of {document}", "draft of a.txt"),
        ("{document} in {words:>5} words", "a.txt in   100 words"),
        ("{document!r} {lang}", "'a.txt' en"),
        ("{document.__class__.__name__} {document[0]}", "str a"),
        ("no names", "no names"),
        ("{{document}}", "{document}"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_label_is_formatted_with_arguments_and_defaults(text: Any, label: str) -> None:
    assert labelled(text, "a.txt") == label


@pytest.mark.parametrize(
    "text", ["{to}", "{}", "{0}", "{documents}", "{document} {nobody}", "{ document}", "{to.name}", "{to[0]}"]
)
def test_a_label_that_names_what_is_no_parameter_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match=r"step draft: label .* names .*, which is not one of its parameters"):
        step(label=text)(draft)


@pytest.mark.parametrize("text", ["{document", "document}", "{document!}", "{", 5, b"x"])
def test_a_label_that_is_no_format_is_refused(text: Any) -> None:
    with pytest.raises(DefinitionError, match=r"step draft: label .* is not a format"):
        step(label=text)(draft)


class Unprintable:
    def __format__(self, spec: str) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("text", "argument", "label"),
    [
        ("<{document:d}>", "text", "<?>"),
        ("<{document.nothing}>", "text", "<?>"),
        ("<{document[9]}>", "text", "<?>"),
        ("<{document!x}>", "text", "<?>"),
        ("<{document:{words}}>", "text", "<?>"),
        ("<{document}>", Unprintable(), "<?>"),
        ("<{document}>", "\ud83d", "<?>"),
        ("{document}", "x" * 1000, "x" * (LABEL_LIMIT - 1) + "…"),
        ("{document}", "x" * LABEL_LIMIT, "x" * LABEL_LIMIT),
    ],
)
def test_what_cannot_be_formatted_is_a_question_mark_and_a_label_is_cut(text: str, argument: Any, label: str) -> None:
    assert labelled(text, argument) == label


# ------------------------------------------------------------------ arguments


def everything(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "bound"),
    [
        (draft, ("a",), {}, {"document": "a"}),
        (draft, (), {"document": "a"}, {"document": "a"}),
        (draft, ("a",), {"lang": "fr"}, {"document": "a", "lang": "fr"}),
        (everything, (1, 2, 3, 4), {"d": 5}, {"a": 1, "b": 2, "rest": (3, 4), "more": {"d": 5}}),
        (asks, (1,), {}, {"doubt": 1}),
        (draft, ("a", 7), {}, {"document": "a", "words": 7}),
    ],
)
def test_arguments_are_bound_to_names_without_defaults(function: Any, args: Any, kwargs: Any, bound: Any) -> None:
    assert step(function).arguments(args, kwargs) == bound


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), (("a", 1, 2), {}), (("a",), {"document": "b"}), ((), {"x": 1})])
def test_arguments_that_do_not_fit_are_a_type_error(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError):
        step(draft).arguments(args, kwargs)


def test_a_return_annotation_that_cannot_be_resolved_says_nothing() -> None:
    def ghost() -> "NoSuchThing":  # type: ignore[name-defined]  # noqa: F821
        ...

    assert step(ghost).returns is inspect.Parameter.empty
    assert step(draft).returns is str


def test_a_step_outside_of_a_task_names_its_plain_function() -> None:
    with pytest.raises(OutsideTaskError, match=r"step draft was called where no task runs.*call .* draft\.fn"):
        step(draft)("a")
