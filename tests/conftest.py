"""Options and fixtures of the whole suite."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from actors import definitions
from stores import Store, open_store
from tests.postgres import fresh_schema, remove_shared, shared_url
from tests.scenario_kit import World
from tests.scenario_postgres import PostgresWorld

RUN = "PERDURE_TEST_RUN"


def pytest_configure(config: pytest.Config) -> None:
    """Name the run, which its other processes inherit.

    Hear Ctrl-C, and let children hear it, also where the run was started in the background of a script.
    """
    if not hasattr(config, "workerinput"):  # who starts the others, and is the last
        os.environ[RUN] = uuid4().hex
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--trials", type=int, default=15, help="how often a test that kills real processes tries")
    parser.addoption("--unscaled", action="store_true", help="play scenarios about leases in their own time")
    parser.addoption("--seeds", type=int, default=3, help="how many random seeds a test of random runs takes")
    parser.addoption(
        "--chaos-seconds", type=float, default=5.0, help="how long processes are killed in a round of chaos"
    )


@pytest.fixture(autouse=True)
def own_agents() -> Iterator[None]:
    """Let the agents that are made inside a test be its own: the next one may give others their names."""
    before = dict(definitions._agents)
    yield
    for name, made in list(definitions._agents.items()):
        if "<locals>" in made.fn.__qualname__ and before.get(name) is not made:
            del definitions._agents[name]
            definitions._agents.update({name: before[name]} if name in before else {})


@pytest.fixture(scope="session")
def trials(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("--trials"))


@pytest.fixture(scope="session")
def seeds(pytestconfig: pytest.Config) -> range:
    return range(int(pytestconfig.getoption("--seeds")))


@pytest.fixture(scope="session")
def scale(pytestconfig: pytest.Config) -> float:
    """Give what the times of a scenario about leases are multiplied by."""
    return 1.0 if pytestconfig.getoption("--unscaled") else 1 / 6


@pytest.fixture(params=["memory", "sqlite"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Give the store that outlives the systems of a test."""
    with open_store("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/tasks.db") as store:
        yield store


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str | None]]:
    """Give what gives a new store at each call: its URL, or None for one in memory."""
    numbers = itertools.count()
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        with ExitStack() as schemas:
            yield lambda: schemas.enter_context(fresh_schema(server))
    else:
        yield lambda: None if request.param == "memory" else f"sqlite:///{tmp_path}/{next(numbers)}.db"


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytecode")
    with World(folder, folder) as world:
        world.run(world.write("import tests.scenario_kit"))
    return folder


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, bytecode: Path) -> Iterator[World]:
    """Give a world with an SQLite file; `on_both` has it with PostgreSQL too."""
    if getattr(request, "param", "") == "postgres":
        with PostgresWorld(tmp_path, bytecode, request.getfixturevalue("postgres_server")) as world:
            yield world
    else:
        with World(tmp_path, bytecode) as world:
            yield world


@pytest.fixture
def families() -> Iterator[None]:
    """Forget what members of families did before this test, and open all their gates after it."""
    from tests.families import did, gates

    did.clear()
    gates.clear()
    gates["gate"] = threading.Event()
    yield
    for gate in gates.values():
        gate.set()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        remove_shared(os.environ[RUN])


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """Give the URL of a real server, one for the whole run."""
    return shared_url(os.environ[RUN])


@pytest.fixture
def postgres(postgres_server: str) -> Iterator[str]:
    """Give the URL of a store in PostgreSQL that is this test's own, and not there yet."""
    with fresh_schema(postgres_server) as url:
        yield url
