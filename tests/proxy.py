"""A network between a client and PostgreSQL that can be cut, at the worst of moments too."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from stores.postgres_url import parsed

IDLE = b"I"
READY = b"Z"


class Proxy:
    """Passes on what client and server say to each other, on a socket in a folder of its own.

    `url`: the server's, by way of the proxy.
    """

    def __init__(self, url: str) -> None:
        query, there = url.partition("?")[2], parsed(url).libpq
        self._there = str(there.get("host", "localhost")), int(there.get("port", 5432))
        self._folder = tempfile.TemporaryDirectory(prefix="perdure-proxy-")
        ours = [pair for pair in query.split("&") if pair.startswith(("schema=", "timeout="))]
        user, name = there.get("user", "postgres"), there.get("dbname", "postgres")
        self.url = f"postgresql://{user}@/{name}?{'&'.join([f'host={self._folder.name}', *ours])}"
        self._listening = socket.socket(socket.AF_UNIX)
        self._lock = threading.Lock()
        self._pairs: set[_Pair] = set()
        self._is_up = True
        self._mark: bytes | None = None
        self._goes_down = False
        self.cuts = 0
        self.flows = threading.Event()
        self.flows.set()

    def __enter__(self) -> Self:
        self._listening.bind(str(Path(self._folder.name) / ".s.PGSQL.5432"))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_up = False
        self.flows.set()
        self._listening.close()
        self.cut()
        self._folder.cleanup()

    def cut(self) -> None:
        """Cut all connections, at once."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            pair.cut()

    def go_down(self) -> None:
        """Cut all connections, and let nobody through until `come_up`."""
        self._is_up = False
        self.cut()

    def come_up(self) -> None:
        self._is_up = True

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Pass nothing on, and close nothing: as a machine that has stopped, or a switch that drops all."""
        self.flows.clear()
        try:
            yield
        finally:
            self.flows.set()

    def lose_the_answer_to(self, mark: bytes, *, then_go_down: bool = False) -> None:
        """Once: where a client says something with this in it, cut its connection when the server has committed it.

        `then_go_down`: all others too, so that nobody can ask what has become of it until `come_up`.
        """
        with self._lock:
            self._mark, self._goes_down = mark, then_go_down

    def lost(self) -> None:
        """Take note that an answer was lost."""
        if self._goes_down:
            self.go_down()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if not self._is_up:
                    client.close()
                    continue
                pair = _Pair(self, client, self._connect())
                with self._lock:
                    self._pairs.add(pair)
                pair.start()

    def _connect(self) -> socket.socket:
        host, port = self._there
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def takes(self, said: bytes) -> bool:
        """Tell whether this is what the answer is to be lost of."""
        with self._lock:
            if self._mark is None or self._mark not in said:
                return False
            self._mark = None
            self.cuts += 1
            return True


class _Pair:
    """One connection: two sockets, and a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._is_doomed = False

    def start(self) -> None:
        for pump in (self._to_server, self._to_client):
            threading.Thread(target=pump, daemon=True).start()

    def cut(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _to_server(self) -> None:
        with suppress(OSError):
            while said := self._client.recv(65536):
                self._proxy.flows.wait()
                self._is_doomed |= self._proxy.takes(said)
                self._server.sendall(said)
        self.cut()

    def _to_client(self) -> None:
        """Pass on answers, each up to the word that the server is ready again; but not the one that is to be lost."""
        rest = b""
        with suppress(OSError):
            while more := self._server.recv(65536):
                self._proxy.flows.wait()
                rest += more
                done, committed = _whole_messages(rest)
                if self._is_doomed and committed:
                    self._proxy.lost()
                    break
                self._client.sendall(rest[:done])
                rest = rest[done:]
        self.cut()


def _whole_messages(said: bytes) -> tuple[int, bool]:
    """Tell how many bytes of this are whole messages, and whether the server is outside any transaction by one."""
    at, committed = 0, False
    while at + 5 <= len(said):
        end = at + 1 + int.from_bytes(said[at + 1 : at + 5], "big")
        if end > len(said):
            break
        committed |= said[at : at + 1] == READY and said[at + 5 : at + 6] == IDLE
        at = end
    return at, committed
