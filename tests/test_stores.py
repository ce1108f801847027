"""The stores of perdure keep to the contract of every store, agree with each other, and say what their URLs mean."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stores
from stores import (
    AppendConflictError,
    InvalidStoreURLError,
    MemoryStore,
    NewerStoreError,
    SQLiteStore,
    Store,
    StoreClosedError,
    StoreCorruptError,
    StoreForkedError,
    StoreUnavailableError,
    open_store,
)
from stores.contract import LastingStoreContract, Maker, StoreContract, stores_agree
from stores.contract.kit import contents, create, emitted, row, said
from stores.crash import CrashingStore, CrashPlan, SimulatedCrash
from stores.emissions import LAST_NUMBER
from stores.shown_url import hidden
from tests.postgres import fresh_schema


def in_memory(folder: Path) -> Store:
    return open_store("memory:")


def sqlite(folder: Path) -> Store:
    return open_store(f"sqlite:///{folder}/tasks.db")


def sqlite_again(store: Store) -> Store:
    return open_store(store.url)


def that_may_crash(store: Store) -> Store:
    return CrashingStore(store, CrashPlan(None), close_inner=True)


MAKERS = {
    "memory": Maker(in_memory),
    "sqlite": Maker(sqlite, sqlite_again),
    "crashing": Maker(lambda folder: that_may_crash(sqlite(folder)), lambda store: that_may_crash(sqlite_again(store))),
}


class TestMemory(StoreContract):
    has_commits = False

    def fresh(self, folder: Path) -> Store:
        return in_memory(folder)


class TestSQLite(LastingStoreContract):
    def fresh(self, folder: Path) -> Store:
        return sqlite(folder)

    def again(self, store: Store) -> Store:
        return sqlite_again(store)


class TestCrashing(LastingStoreContract):
    def fresh(self, folder: Path) -> Store:
        return that_may_crash(sqlite(folder))

    def again(self, store: Store) -> Store:
        return that_may_crash(sqlite_again(store))


class TestPostgres(LastingStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, postgres: str) -> None:
        self.url = postgres

    def fresh(self, folder: Path) -> Store:
        return open_store(self.url)

    def again(self, store: Store) -> Store:
        return open_store(self.url)


@pytest.mark.timeout(600)  # where it fails, it looks for the shortest way to that
def test_all_stores_agree_with_a_few_dictionaries_whatever_they_are_asked(postgres_server: str) -> None:
    with ExitStack() as schemas:

        def fresh(folder: Path) -> Store:
            return open_store(schemas.enter_context(fresh_schema(postgres_server)))

        few = settings(deadline=None, max_examples=30, stateful_step_count=30)
        stores_agree(MAKERS | {"postgres": Maker(fresh, lambda store: open_store(store.url))}, few)


awkward = st.text(st.sampled_from("aAbé%_*'\0\ud7ff\ue000\U0010fffe\U0010ffff"), max_size=3)


@settings(deadline=None, max_examples=30)
@given(st.sets(awkward, max_size=12), st.lists(awkward | st.text(max_size=1) | st.just("a\udcff"), max_size=12))
def test_all_stores_agree_with_python_on_what_begins_with_a_text(
    tmp_path_factory: pytest.TempPathFactory, ids: set[str], prefixes: list[str]
) -> None:
    for fresh in (in_memory, sqlite):
        with fresh(tmp_path_factory.mktemp("begin")) as store:
            for task_id in ids:
                store.recorder.insert_events([], entry=row(task_id, 0), expected=None)
            for prefix in prefixes:
                found = [entry.id for entry in store.recorder.select_entries(prefix=prefix)]
                assert found == sorted(task_id for task_id in ids if task_id.startswith(prefix))


@pytest.fixture(params=[*MAKERS, "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgres":
        with open_store(request.getfixturevalue("postgres")) as store:
            yield store
    else:
        with MAKERS[request.param].fresh(tmp_path) as store:
            yield store


def test_emissions_end_where_their_numbers_do(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stores.emissions, stores.memory):
        monkeypatch.setattr(module, "LAST_NUMBER", 2)
    entry = create(store)
    store.recorder.save_emissions("a", entry.birth, [said("1", text) for text in "xyz"])
    assert emitted(store) == [(1, 1, "x"), (1, 2, "y")]
    assert LAST_NUMBER == 2**24 - 1


def test_every_memory_store_is_its_own() -> None:
    with open_store("memory:") as one, open_store("memory:") as other:
        create(one)
        assert contents(other) == ([], {})


def test_a_url_is_made_absolute_and_opens_the_same_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///tasks #1%20.db?timeout=0.5") as store:
        assert store.url == f"sqlite:///{tmp_path}/tasks #1%20.db?timeout=0.5"
        create(store)
        monkeypatch.chdir("/")
        with open_store(store.url) as same:
            assert same.recorder.select_ids() == ["a"]
            assert same.url == store.url
    assert {path.name for path in tmp_path.iterdir()} == {"tasks #1%20.db", "tasks #1%20.db.locks"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "tasks.db",
        "sqlite:tasks.db",
        "sqlite://tasks.db",
        "sqlite:///",
        "sqlite:///?timeout=1",
        "sqlite:///:memory:",
        "sqlite:///a\0b",
        "memory:x",
        "memory:?timeout=1",
        "mysql://host/db",
        "sqlite:///a.db?timeout=soon",
        "sqlite:///a.db?timeout=-1",
        "sqlite:///a.db?timeout=inf",
        "sqlite:///a.db?mode=ro",
        "sqlite:///a.db?timeout",
    ],
)
def test_a_bad_url_is_named_with_what_is_expected(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidStoreURLError, match="expected 'memory:'") as caught:
        open_store(url)
    assert caught.value.url == hidden(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        AppendConflictError(("b", 1), row()),
        AppendConflictError(None, None, "ghost", "memory:"),
        StoreUnavailableError("locked", url="u", reason="r", unknown_fate=True),
        NewerStoreError("newer", url="u", found=2, known=1),
        InvalidStoreURLError("bad", url="u"),
        StoreCorruptError("bad", url="u"),
        StoreClosedError("closed", url="u"),
        StoreForkedError("forked", url="u"),
        SimulatedCrash("append.after"),
    ],
)
def test_errors_pickle_with_their_facts(error: BaseException) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_what_is_exported_is_what_is_named() -> None:
    assert sorted(stores.__all__) == stores.__all__
    exported = {name for name, value in vars(stores).items() if getattr(value, "__module__", "").startswith("stores")}
    assert {name for name in exported if not name.startswith("_")} == set(stores.__all__)
    assert {MemoryStore, SQLiteStore} < set(Store.__subclasses__())


def test_a_store_can_be_used_where_neither_pytest_nor_hypothesis_is_there() -> None:
    script = """
import sys
sys.modules |= {"pytest": None, "hypothesis": None}  # as if they were not installed
import actors, stores
stores.open_store("memory:").close()
try:
    import stores.contract
except ImportError as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout == "stores.contract needs pytest and Hypothesis: pip install 'perdure[testing]'\n"
