"""`@agent` and `@step`: names, labels, and what is refused where it is written."""

import asyncio
import functools
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from actors import (
    Agent,
    AsyncAgent,
    AsyncStep,
    DefinitionError,
    Doubt,
    Happened,
    OutsideTaskError,
    RetryPolicy,
    Step,
    UnknownAgentError,
    agent,
    run_step,
    step,
)
from actors.definitions import find_agent, known_agents
from actors.naming import LABEL_LIMIT, NAME_LIMIT


@pytest.fixture(autouse=True)
def no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins, and leaves the others, without the agents of this one."""
    monkeypatch.setattr("actors.definitions._agents", {})


def draft(document: str, words: int = 100, *, lang: str = "en") -> str:
    """Draft a summary."""
    return f"{document} {words} {lang}"


async def fetch(document: str, words: int = 100, *, lang: str = "en") -> str:
    """Draft a summary."""
    return f"{document} {words} {lang}"


def asks(doubt: Doubt) -> Happened:
    return Happened()


# ------------------------------------------------------------------ what a decorated function still is


@pytest.mark.parametrize("function", [draft, fetch])
@pytest.mark.parametrize("decorate", [step, agent], ids=["step", "agent"])
def test_a_decorated_function_keeps_what_it_is(decorate: Any, function: Any) -> None:
    made, name = decorate(function), function.__name__
    assert made.fn is function
    assert inspect.signature(made) == inspect.signature(function)
    assert (made.__name__, made.__qualname__, made.__module__) == (name, name, __name__)
    assert made.__doc__ == "Draft a summary."
    assert inspect.unwrap(made) is function
    assert made.is_async is inspect.iscoroutinefunction(function)


def test_its_plain_function_is_called_as_ever() -> None:
    assert step(draft).fn("a", lang="fr") == "a 100 fr"
    assert agent(draft)("a", 5) == "a 5 en"
    assert asyncio.run(step(fetch).fn("a", lang="fr")) == "a 100 fr"
    assert asyncio.run(agent(fetch)("a", 5)) == "a 5 en"


@pytest.mark.parametrize(
    ("decorate", "function", "kind"),
    [(step, draft, Step), (step, fetch, AsyncStep), (agent, draft, Agent), (agent, fetch, AsyncAgent)],
)
def test_decorators_may_be_bare_or_have_options(decorate: Any, function: Any, kind: type) -> None:
    assert type(decorate(function)) is kind
    assert type(decorate()(function)) is kind
    assert decorate(name="another")(function).name == "another"
    assert decorate(function).name == function.__name__


CARRIED = ["name", "names", "fn", "settings", "options", "label", "arguments", "returns", "is_async", "aio", "where"]


@pytest.mark.parametrize("decorate", [step, agent], ids=["step", "agent"])
def test_what_a_function_carries_does_not_change_what_is_made_of_it(decorate: Any) -> None:
    def send(to: str) -> str:
        return to

    plain = decorate(name="send")(send)
    own = {name: getattr(plain, name) for name in CARRIED if hasattr(plain, name)}
    for name in CARRIED:
        setattr(send, name, "hijacked")
    send.mark = "kept"  # type: ignore[attr-defined]
    made = decorate(name="send")(send)
    assert made.mark == "kept"
    for name, value in own.items():
        if inspect.ismethod(value):
            assert getattr(made, name).__func__ is value.__func__
        else:
            assert getattr(made, name) == value


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


@pytest.mark.parametrize("function", [draft, fetch])
def test_an_agent_is_found_by_the_names_that_it_had_before(function: Any) -> None:
    made = agent(name="report", aliases=("summary", "old report"))(function)
    assert made.name == "report"
    assert [find_agent(name) for name in ("report", "summary", "old report")] == [made] * 3
    assert known_agents() == {"report", "summary", "old report"}
    assert step(aliases=["sketch"])(function).names == (function.__name__, "sketch")


@pytest.mark.parametrize("decorate", [step, agent], ids=["step", "agent"])
@pytest.mark.parametrize("aliases", ["draft", None, {"draft"}, {"draft": 1}, 5])
def test_aliases_are_a_sequence_of_names(decorate: Any, aliases: Any) -> None:
    with pytest.raises(DefinitionError, match="draft: aliases is a tuple of names, not "):
        decorate(aliases=aliases)(draft)


@pytest.mark.parametrize("decorate", [step, agent], ids=["step", "agent"])
@pytest.mark.parametrize("alias", ["", "a\nb", "x" * (NAME_LIMIT + 1), None])
def test_an_alias_has_to_be_a_name(decorate: Any, alias: Any) -> None:
    with pytest.raises(DefinitionError, match="a name has 1 to 200 printable characters, not "):
        decorate(aliases=("fine", alias))(draft)
    assert known_agents() == set()


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


def test_an_alias_is_a_name_that_another_file_cannot_take(load: Any) -> None:
    first = load("one.py", REPORT.replace("@agent", "@agent(aliases=('old',))"))
    with pytest.raises(DefinitionError, match=r"two agents are named 'old': .*one\.py:3 and .*other\.py:3"):
        load("other.py", REPORT.replace("def report", "def old"))
    with pytest.raises(DefinitionError, match=r"two agents are named 'report': .*one\.py:3 and .*third\.py:3"):
        load("third.py", REPORT.replace("@agent", "@agent(name='new', aliases=('report',))"))
    assert find_agent("old") is find_agent("report") is first.report
    assert known_agents() == {"report", "old"}


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


def generator() -> Iterator[int]:
    yield 1


async def stream() -> Any:
    yield 1


class Callable:
    def __call__(self) -> None: ...


@pytest.mark.parametrize("decorate", [step, agent], ids=["step", "agent"])
@pytest.mark.parametrize("function", [generator, stream])
def test_generators_are_refused(decorate: Any, function: Any) -> None:
    with pytest.raises(DefinitionError, match=f"{function.__name__}: generators cannot be {decorate.__name__}s"):
        decorate(function)


@pytest.mark.parametrize("decorate", [step, agent], ids=["step", "agent"])
@pytest.mark.parametrize(
    "thing",
    [
        len,
        Callable,
        Callable(),
        functools.partial(draft, "a"),
        "a name",
        5,
        staticmethod(draft),
        step(draft),
        step(fetch),
    ],
)
def test_only_functions_written_with_def_can_be_decorated(decorate: Any, thing: Any) -> None:
    with pytest.raises(DefinitionError, match="is for functions written with def, not for"):
        decorate(thing)


@pytest.mark.parametrize("value", [None, "", "Rerun", "ask", 1, True, ["hold"], Happened(), fetch])
def test_on_doubt_is_one_of_two_words_or_a_function(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"step draft: on_doubt is 'rerun', 'hold' or a function .doubt. -> "):
        step(on_doubt=value)(draft)


@pytest.mark.parametrize("value", ["rerun", "hold", asks, functools.partial(asks)])
def test_on_doubt_takes_its_three_forms(value: Any) -> None:
    assert step(on_doubt=value)(draft).settings.on_doubt is value


@pytest.mark.parametrize("value", ["hold", asks])
def test_an_idempotent_step_is_never_in_doubt(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"step draft: idempotent=True .* on_doubt cannot be had with it"):
        step(idempotent=True, on_doubt=value)(draft)
    assert step(idempotent=True)(draft).settings.idempotent


BAD: dict[str, Any] = {
    "retries": [-1, 1.0, "3", True, None],
    "backoff": [-0.1, math.inf, math.nan, "1", None, True],
    "max_backoff": [-1, math.inf, math.nan, "1"],
    "jitter": [-0.1, 1.1, math.nan, None],
    "retry_on": [OSError(), "OSError", [OSError], None, (OSError, 5), int],
    "give_up_on": [OSError(), "OSError", [OSError], None, (OSError, 5), int],
    "retry": [3, None, "never", RetryPolicy],
    "timeout": [0, -1, math.inf, math.nan, "1", True],
    "total_timeout": [0, -1, math.inf, math.nan, "1", True],
    "heartbeat_timeout": [0, -1, math.inf, math.nan, "1", True],
    "raises": [[OSError()], (OSError(),), ("OSError",), (KeyboardInterrupt,), None],
    "tries": [3],
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, values in BAD.items() for value in values])
def test_an_option_that_makes_no_sense_is_refused_wherever_it_is_given(option: str, value: Any) -> None:
    given = {option: value}
    names = f"there is no option {option}; there are retries" if option == "tries" else f"{option} is "
    for name, refuse in [
        ("draft", lambda: step(**given)(draft)),
        ("draft", lambda: step(draft).options(**given)),
        ("another", lambda: run_step("another", draft, "a", **given)),
    ]:
        with pytest.raises(DefinitionError, match=f"step {name}: {names}"):
            refuse()


def test_a_policy_is_a_start_that_single_options_change() -> None:
    policy = RetryPolicy(retries=2, backoff=5.0, give_up_on=KeyError)
    made = step(retry=policy, retries=7)(draft)
    assert made.settings.retry == RetryPolicy(retries=7, backoff=5.0, give_up_on=KeyError)
    assert policy.retries == 2
    assert step(draft).settings.retry == RetryPolicy(retries=0)


@pytest.mark.parametrize("function", [draft, fetch])
def test_a_step_with_other_options_is_the_same_step(function: Any) -> None:
    made = step(name="fetch", aliases=("get",), timeout=3, label="of {document}", retries=1)(function)
    other = made.options(retries=5, label="{lang}", timeout=None)
    assert type(other) is type(made)
    assert (other.names, other.fn, other.is_async) == (made.names, made.fn, made.is_async)
    assert (other.settings.retry.retries, other.settings.timeout) == (5, None)
    assert (made.settings.retry.retries, made.settings.timeout) == (1, 3)
    assert other.label({"document": "a"}) == "en"
    assert other.options(timeout=1).settings.retry.retries == 5
    with pytest.raises(DefinitionError, match="names 'nobody'"):
        made.options(label="{nobody}")


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
    refused = pytest.raises(OutsideTaskError, match=r"step \w+ was called where no task runs.*call .* \w+\.fn")
    with refused:
        step(draft)("a")
    with refused:
        step(draft).options(retries=1)("a")
    with refused:
        step(fetch).sync("a")
    for call in (step(draft).aio, step(fetch)):
        with refused:
            asyncio.run(call("a"))


def test_an_agent_of_the_other_colour_outside_of_a_task_names_its_plain_function() -> None:
    with pytest.raises(OutsideTaskError, match=r"agent draft\.aio.* where no task runs: call draft\.fn"):
        asyncio.run(agent(draft).aio("a"))
    with pytest.raises(OutsideTaskError, match=r"agent fetch\.sync.* where no task runs: await fetch\.fn"):
        agent(fetch).sync("a")


@pytest.mark.parametrize("place", [("f",), (None, 1), "ab", ("f", "x"), 5, ("f", 1, 2)], ids=repr)
def test_a_place_that_is_none_is_refused(place: Any) -> None:
    with pytest.raises(DefinitionError, match="made_at is a file and a line, such as"):

        @agent(name="made nowhere", made_at=place)
        def made() -> None: ...


def test_an_agent_that_a_function_makes_is_known_by_who_called_that() -> None:
    def factory() -> Any:
        @agent(name="made there", made_at=("there.py", 7))
        def made() -> None: ...

        return made

    assert factory().where.endswith("/there.py:7")
    assert factory().file == os.path.realpath(__file__)
