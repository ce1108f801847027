"""What a user can see: exported, documented, drawn as it is, and clear when it cannot start."""

import copy
import importlib
import inspect
import os
import pickle
import pkgutil
import re
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import actors
import actors.llm
import actors.testing
import domain
import domain.errors
import stores
import stores.errors
from actors.keeping import Keeper
from actors.spawning import Spawner
from domain.faults import Fault
from stores import IndexRow

HOME = Path(actors.__file__).resolve().parent.parent
FACADES = [actors, actors.llm, actors.testing, stores]


def run(source: str, folder: Path, *first: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder of its own, with these folders first on its path."""
    path = os.pathsep.join(str(place) for place in (*first, HOME))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", source],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# ------------------------------------------------------------------ exported


@pytest.mark.parametrize("module", FACADES, ids=lambda module: module.__name__)
def test_all_is_sorted_and_each_name_is_there(module: ModuleType) -> None:
    assert module.__all__ == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        getattr(module, name)


def test_all_is_exactly_what_can_be_imported() -> None:
    submodules = {f"actors.{info.name}" for info in pkgutil.iter_modules(actors.__path__)}
    imported = {
        name
        for name, value in vars(actors).items()
        if not name.startswith("_") and getattr(value, "__name__", None) not in submodules
    }
    assert imported - {"annotations"} == set(actors.__all__)


def test_every_error_that_a_caller_may_catch_is_exported() -> None:
    errors = {name for name, value in vars(domain.errors).items() if is_ours(value, "domain.errors")}
    assert errors <= set(actors.__all__)


# ------------------------------------------------------------------ two colours

NO_TWIN = {
    "entity",
    "group",
    "know",
    "begin",
    "task",
    "tree",
    "wake",
    "wait_for_look",
    "may_go_on",
    "hosts",
    "will_look_at",
}
"""Methods of a system that never wait for the store; what a task's `follow` gives has two colours itself."""


KINDS = [actors.AgentSystem, actors.TaskRef, actors.TaskGroup, Spawner, Keeper]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_method_that_touches_the_store_has_an_async_twin_with_the_same_parameters(kind: type) -> None:
    methods = {name: value for name, value in vars(kind).items() if inspect.isfunction(value) and name[0] != "_"}
    twins = {name.removesuffix("_async") for name in methods if name.endswith("_async")}
    plain = {name for name in methods if not name.endswith("_async")}
    no_twin = NO_TWIN if kind is actors.AgentSystem else {"follow"} & plain
    assert twins == plain - no_twin
    for name in twins:
        one, other = methods[name], methods[f"{name}_async"]
        assert inspect.signature(other) == inspect.signature(one), name
        assert inspect.iscoroutinefunction(other), name
        assert not inspect.iscoroutinefunction(one), name


def test_a_system_opens_and_a_result_is_awaited_in_both_colours() -> None:
    for name in ("__enter__", "__exit__"):
        twin = "__a" + name[2:]
        assert inspect.iscoroutinefunction(getattr(actors.AgentSystem, twin))
        signatures = [inspect.signature(getattr(actors.AgentSystem, each)) for each in (name, twin)]
        assert list(signatures[0].parameters) == list(signatures[1].parameters)
    assert issubclass(actors.TaskRef, Awaitable)


@pytest.mark.parametrize(
    ("plain", "coroutine"), [(actors.Step, actors.AsyncStep), (actors.Agent, actors.AsyncAgent)], ids=["step", "agent"]
)
def test_what_is_decorated_has_one_call_of_the_other_colour(plain: type, coroutine: type) -> None:
    assert {name for name in vars(plain) if not name.startswith("_")} - {"fn"} == {"aio"}
    assert {name for name in vars(coroutine) if not name.startswith("_")} - {"fn"} == {"sync"}
    assert inspect.iscoroutinefunction(vars(plain)["aio"])
    assert not inspect.iscoroutinefunction(vars(coroutine)["sync"])


# ------------------------------------------------------------------ documented


def public_members(value: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and (inspect.isfunction(function) or isinstance(member, property)):
            yield name, inspect.getdoc(getattr(value, name))  # a doc is inherited with what it says


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module in FACADES for name in module.__all__],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_what_is_public_is_documented(module: ModuleType, name: str) -> None:
    value = getattr(module, name)
    text = value.__doc__ or ""
    assert text.strip()
    if inspect.isclass(value):
        assert not text.startswith(f"{name}("), "a dataclass has a text of its own"
        assert [member for member, doc in public_members(value) if not doc] == []


# ------------------------------------------------------------------ the tree of errors


def is_ours(value: object, module: str = "") -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, BaseException)
        and value.__module__.startswith(module or ("actors.", "domain.", "stores."))
        and not value.__name__.startswith("_")
    )


def drawn(text: str) -> dict[str, str | None]:
    """Read a drawing: each class and the one it hangs on, None for a root."""
    parents: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        found = re.match(r"^([ │├└─]*?)([A-Z]\w*)(?: \(BaseException\))?(?=\s{2,}|$)", line)
        if not found:
            continue
        column, name = len(found[1]), found[2]
        while above and above[-1][0] >= column:
            above.pop()
        hangs = "─" in found[1]
        assert name not in parents, f"{name} is drawn twice"
        parents[name] = above[-1][1] if hangs else None
        above.append((column, name))
    return parents


@pytest.mark.parametrize("module", [domain.errors, stores.errors], ids=lambda module: module.__name__)
def test_the_drawn_tree_is_the_tree(module: ModuleType) -> None:
    classes = {name: value for name, value in vars(module).items() if is_ours(value, module.__name__)}
    real = {
        name: next((base.__name__ for base in value.__bases__ if base.__name__ in classes), None)
        for name, value in classes.items()
    }
    assert drawn(module.__doc__ or "") == real


def test_what_must_not_be_caught_by_accident_is_no_exception() -> None:
    roots = {name for name, parent in drawn(domain.errors.__doc__ or "").items() if parent is None}
    assert roots == {"PerdureError", "FailTask", "GivenUp", "Rejected", "Suspended", "TaskCancelled"}
    assert issubclass(domain.errors.FailTask, Exception)
    for kind in (domain.errors.GivenUp, domain.errors.Suspended, domain.errors.TaskCancelled):
        assert not issubclass(kind, Exception)
    assert re.findall(r"(\w+) \(BaseException\)", domain.errors.__doc__ or "") == [
        "TaskCancelled",
        "GivenUp",
        "Suspended",
    ]


@pytest.mark.parametrize("module", [domain.errors, stores.errors], ids=lambda module: module.__name__)
def test_each_error_says_when_it_is_raised(module: ModuleType) -> None:
    for name, value in vars(module).items():
        if is_ours(value, module.__name__):
            assert re.match(r"Raised |(The b|B)ase of |Raise it |Unwinds ", value.__doc__ or ""), name


# ------------------------------------------------------------------ errors pickle


def all_errors() -> list[type[BaseException]]:
    found: set[type[BaseException]] = set()
    for package in (actors, domain, stores):
        for info in pkgutil.iter_modules(package.__path__):
            if info.name != "__main__":
                module = importlib.import_module(f"{package.__name__}.{info.name}")
                found |= {value for value in vars(module).values() if is_ours(value)}
    return sorted(found, key=lambda kind: kind.__name__)


ROW = IndexRow("t", "birth", 3, 1, "held", "agent", 1.0, 2.0, None, None, 0, "in doubt", "note")
FACTS: dict[str, Any] = {
    "activation": 2,
    "approved": True,
    "attempts": 3,
    "by": "ann",
    "child": "t/1-abc",
    "cut": True,
    "doubts": ["2"],
    "entity_id": "team-7",
    "errors": (Fault(("m:Late", "Exception"), "late"), Fault(("m:Declined", "Exception"), "no")),
    "expected": ("birth", 2),
    "fault": Fault(("m:Declined", "Exception"), "no", "trace", ("KeyError: 1",)),
    "found": 9,
    "known": 1,
    "message": "what is wrong, and what to do",
    "path": "3/1",
    "point": "body.after",
    "reason": "disk full",
    "retry_after": 7.5,
    "status": "completed",
    "step": "pay",
    "task_id": "t",
    "topic": "budget",
    "type_name": "set",
    "unknown_fate": True,
    "url": "sqlite:////tasks.db",
    "version": 7,
    "where": "f.py:7",
}


def made(kind: type[BaseException]) -> BaseException:
    """Make one with every fact that it takes."""
    if not inspect.isfunction(kind.__init__):
        return kind(FACTS["message"])
    arguments, options = [], {}
    for name, parameter in list(inspect.signature(kind.__init__).parameters.items())[1:]:
        fact = ROW if (kind is stores.AppendConflictError and name == "found") else FACTS[name]
        if parameter.kind is parameter.KEYWORD_ONLY:
            options[name] = fact
        else:
            arguments.append(fact)
    return kind(*arguments, **options)


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_an_error_pickles_with_its_message_and_its_facts(kind: type[BaseException]) -> None:
    error = made(kind)
    facts = dict(vars(error))
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (*copies, copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error) != ""
        assert vars(again) == facts
        assert again.args == error.args


def test_the_facts_of_a_message_are_attributes() -> None:
    for kind in all_errors():
        error = made(kind)
        parameters = set(inspect.signature(kind.__init__).parameters) & set(FACTS) - {"message"}
        assert parameters <= set(vars(error)), kind


# ------------------------------------------------------------------ names that collide


@pytest.mark.parametrize("name", ["domain", "stores"])
@pytest.mark.parametrize("form", ["package", "module"])
def test_a_foreign_package_that_hides_ours_is_named_with_ours_and_a_way_out(
    tmp_path: Path, name: str, form: str
) -> None:
    theirs = tmp_path / name / "__init__.py" if form == "package" else tmp_path / f"{name}.py"
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("raise SystemExit('the foreign package was run')\n")
    done = run("import actors", tmp_path, tmp_path)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: perdure needs its own package")
    assert repr(name) in last
    assert str(HOME / "actors") in last
    assert str(theirs.resolve()) in last
    assert "Rename the other package, or keep its folder off sys.path" in last


def test_a_foreign_package_that_was_imported_first_is_named_too(tmp_path: Path) -> None:
    theirs = tmp_path / "domain.py"
    theirs.write_text("")
    source = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import domain; sys.path.pop(0); import actors"
    done = run(source, tmp_path.parent)
    assert done.stderr.strip().splitlines()[-1].startswith("ImportError: perdure needs its own package 'domain'")
    assert str(theirs.resolve()) in done.stderr


def test_a_foreign_package_further_back_does_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    (folder / "domain").mkdir(parents=True)
    (folder / "domain" / "__init__.py").write_text("")
    done = run(f"import sys; sys.path.append({str(folder)!r}); import actors", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------ a library that is quiet, but never silent


def test_an_import_prints_nothing_starts_nothing_and_configures_nothing(tmp_path: Path) -> None:
    done = run(
        "import logging, signal, threading\n"
        "before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]\n"
        "import actors\n"
        "system = actors.AgentSystem('sqlite:///tasks.db')\n"
        "assert threading.active_count() == 1\n"
        "assert not logging.getLogger().handlers and not logging.getLogger('perdure').handlers\n"
        "assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]\n",
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


CRASH = """
from actors import AgentSystem, TaskHeldError, agent

@agent
def report():
    raise ValueError("no such page")

with AgentSystem("memory:", strikes=2) as system:
    try:
        system.spawn(report, id="report-7").result(30)
    except TaskHeldError:
        pass
"""


def test_a_crash_is_reported_where_logging_is_not_configured(tmp_path: Path) -> None:
    done = run(CRASH, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    reports = [line for line in done.stderr.splitlines() if line.startswith("task report-7: agent report crashed at ")]
    assert len(reports) == 2
    assert "ValueError: no such page; restart 1 in 0.1 s" in reports[0]
    assert reports[1].endswith("ValueError: no such page; held after 2 crashes in a row")
    assert done.stderr.count("Traceback (most recent call last):") == 2
    assert "in report" in done.stderr


def test_a_task_that_goes_well_prints_nothing(tmp_path: Path) -> None:
    done = run(CRASH.replace('raise ValueError("no such page")', "return 1"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
