"""Who is let in by a server that asks: passwords by each of libpq's ways, and TLS with and without a look at whose."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from actors import AgentSystem, agent, step
from stores import Store, StoreUnavailableError, open_store
from tests.clusters import cluster, free_port, with_tls
from tests.lives import PATIENCE
from tests.postgres import own_server
from tests.shell import Shell
from tests.tls import Certificate, Terminator, certificate

SECRET = "s3cr3t of ann"
WRONG = "wr0ng of ann"

ASKING = """
local all postgres trust
local all all scram-sha-256
host all postgres 127.0.0.1/32 trust
"""


@step
def plus_one(number: int) -> int:
    return number + 1


@agent(name="entry: counter")
def counter(upto: int) -> int:
    number = 0
    while number < upto:
        number = plus_one(number)
    return number


def works(url: str) -> None:
    """See that a whole system works there, with all the connections that it makes."""
    with AgentSystem(url) as system, AgentSystem(url, run=False) as client:
        assert client.spawn(counter, 3).result(PATIENCE) == 3
        assert len(system.log.store.workers.live()) == 1


# ------------------------------------------------------------------ passwords


@pytest.fixture(scope="module")
def asking() -> Iterator[str]:
    """Give the host of a server that wants a password of all but its administrator."""
    with own_server() as server:
        (server.folder / "pg_hba.conf").write_text(ASKING)
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"SELECT pg_reload_conf(); CREATE ROLE ann LOGIN PASSWORD '{SECRET}'")
            admin.execute("CREATE DATABASE agents OWNER ann")
            ((kept,),) = admin.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'ann'").fetchall()
        assert str(kept).startswith("SCRAM-SHA-256$")
        yield str(server.socket.parent)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take away whatever of libpq's own stands in the environment or at home."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PGPASSFILE", "/nowhere")


def password_file(folder: Path, host: str, password: str) -> Path:
    file = folder / "passwords"
    file.write_text(f"{host}:*:agents:ann:{password}\n")
    file.chmod(0o600)
    return file


def by_variable(host: str, folder: Path, password: str) -> tuple[str, dict[str, str]]:
    return f"postgresql://ann@/agents?host={host}", {"PGPASSWORD": password}


def by_file(host: str, folder: Path, password: str) -> tuple[str, dict[str, str]]:
    return f"postgresql://ann@/agents?host={host}", {"PGPASSFILE": str(password_file(folder, host, password))}


def by_file_in_url(host: str, folder: Path, password: str) -> tuple[str, dict[str, str]]:
    return f"postgresql://ann@/agents?host={host}&passfile={password_file(folder, host, password)}", {}


def by_service(host: str, folder: Path, password: str) -> tuple[str, dict[str, str]]:
    file = folder / "services"
    file.write_text(f"[agents]\nhost={host}\nuser=ann\ndbname=agents\npassword={password}\n")
    return "postgresql:///?service=agents", {"PGSERVICEFILE": str(file)}


def by_url(host: str, folder: Path, password: str) -> tuple[str, dict[str, str]]:
    return f"postgresql://ann:{password.replace(' ', '%20')}@/agents?host={host}", {}


def by_parameter(host: str, folder: Path, password: str) -> tuple[str, dict[str, str]]:
    return f"postgresql://ann@/agents?host={host}&password={password.replace(' ', '%20')}", {}


def by_variables_alone(host: str, folder: Path, password: str) -> tuple[str, dict[str, str]]:
    return "postgresql://", {"PGHOST": host, "PGUSER": "ann", "PGDATABASE": "agents", "PGPASSWORD": password}


WAYS = [by_variable, by_file, by_file_in_url, by_service, by_url, by_parameter, by_variables_alone]
Way = Callable[[str, Path, str], tuple[str, dict[str, str]]]


@pytest.mark.parametrize("way", WAYS)
def test_a_password_is_found_by_each_of_libpqs_ways_and_a_wrong_one_is_refused_and_not_shown(
    asking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    url, environment = way(asking, tmp_path, WRONG)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreUnavailableError, match="password authentication failed") as caught:
        open_store(url)
    shown = f"{caught.value!r} {caught.value} {caught.value.url} {caught.value.reason} {caught.value.__cause__!r}"
    assert WRONG not in shown
    assert WRONG.replace(" ", "%20") not in shown
    url, environment = way(asking, tmp_path, SECRET)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    works(url)


def test_who_has_no_password_is_told_so(asking: str) -> None:
    with pytest.raises(StoreUnavailableError, match="no password supplied"):
        open_store(f"postgresql://ann@/agents?host={asking}")


@pytest.mark.parametrize("way", WAYS)
def test_commands_find_it_by_the_same_ways_and_print_it_nowhere(asking: str, tmp_path: Path, way: Way) -> None:
    shell = Shell(tmp_path)
    url, environment = way(asking, tmp_path, SECRET)
    ran = shell("run", "work.py:renamed", "--id", f"by-{way.__name__}", "--store", url, **environment)
    assert (ran.returncode, ran.stdout) == (0, '"renamed"\n'), ran.stderr
    listed = shell("list", PERDURE_STORE=url, **environment)
    assert f"by-{way.__name__}" in listed.stdout
    url, environment = way(asking, tmp_path, WRONG)
    refused = shell("verify", "--store", url, **environment)
    assert refused.returncode == 2
    assert "password authentication failed" in refused.stderr
    said = "".join(done.stdout + done.stderr for done in (ran, listed, refused))
    assert not any(word in said for text in (SECRET, WRONG) for word in (text, text.replace(" ", "%20")))


# ------------------------------------------------------------------ TLS


class End:
    """An end of TLS. `certificate`: what it shows. `url`: of a store behind it, by TCP, with parameters of libpq's."""

    def __init__(self, shown: Certificate, port: int) -> None:
        self.certificate = shown
        self._port = port

    def url(self, *parameters: str, host: str = "localhost") -> str:
        words = "&".join([f"host={host}", "hostaddr=127.0.0.1", f"port={self._port}", *parameters])
        return f"postgresql://postgres@/postgres?{words}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Certificate, Certificate]:
    """Give a certificate for localhost, and one for another host."""
    folder = tmp_path_factory.mktemp("certificates")
    return certificate(folder), certificate(folder, host="db.example.org")


@contextmanager
def pooler(shown: Certificate) -> Iterator[End]:
    with own_server() as server, Terminator(server.socket, shown) as terminator:
        yield End(shown, terminator.port)
        assert not terminator.plain


@contextmanager
def itself(shown: Certificate) -> Iterator[End]:
    programs, user = with_tls()
    with cluster(programs, user) as server:
        server.make()
        for name, file in (("server.crt", shown.file), ("server.key", shown.key)):
            server.put(name, file.read_bytes())
        (server.data / "pg_hba.conf").write_text("local all all trust\nhostssl all all 127.0.0.1/32 trust\n")
        port = free_port()
        server.start(ssl="on", listen_addresses="127.0.0.1", port=port)
        yield End(shown, port)


@pytest.fixture(scope="module", params=[pooler, itself])
def end(request: pytest.FixtureRequest, certificates: tuple[Certificate, Certificate]) -> Iterator[End]:
    """Give an end of TLS: a pooler before the server that comes from pip, which knows none, and a server that does."""
    with request.param(certificates[0]) as end:
        yield end


def is_encrypted(store: Store) -> bool:
    links = store.recorder.datastore
    return all(link.connection.pgconn.ssl_in_use for link in (links._writer, *links._free))


def test_a_system_works_by_tls_and_knows_whom_it_speaks_to(end: End) -> None:
    for words in (["sslmode=require"], ["sslmode=verify-full", f"sslrootcert={end.certificate.file}"]):
        with open_store(end.url(*words)) as store:
            assert is_encrypted(store)
            assert list(store.damages()) == []
        works(end.url(*words))


def test_the_environment_says_so_too(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGSSLROOTCERT", str(end.certificate.file))
    with open_store(end.url()) as store:
        assert is_encrypted(store)


def test_who_shows_another_certificate_or_another_name_is_not_spoken_to(
    end: End, certificates: tuple[Certificate, Certificate]
) -> None:
    with pytest.raises(StoreUnavailableError, match="certificate verify failed"):
        open_store(end.url("sslmode=verify-full", f"sslrootcert={certificates[1].file}"))
    trusted = ("sslmode=verify-full", f"sslrootcert={end.certificate.file}")
    with pytest.raises(StoreUnavailableError, match=r'certificate for "localhost" .*does not match host name "db'):
        open_store(end.url(*trusted, host="db.example.org"))
    with pytest.raises(StoreUnavailableError, match=r"root certificate file .* does not exist"):
        open_store(end.url("sslmode=verify-full", "sslrootcert=/nowhere"))


def test_who_wants_tls_does_not_speak_to_a_server_without_it() -> None:
    with own_server() as server, Terminator(server.socket, None) as plain:
        url = f"postgresql://postgres@127.0.0.1:{plain.port}/postgres"
        with pytest.raises(StoreUnavailableError, match="does not support SSL"):
            open_store(f"{url}?sslmode=require")
        assert not plain.plain
        works(url)
