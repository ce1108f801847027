"""TLS for tests: certificates that are made on the spot, and an end of it before a server that knows none."""

from __future__ import annotations

import select
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

ASKS_FOR_TLS = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
ASKS_FOR_GSS = (8).to_bytes(4, "big") + (80877104).to_bytes(4, "big")


class Certificate(NamedTuple):
    """A certificate that nobody has signed but itself, and its key."""

    file: Path
    key: Path


def certificate(folder: Path, *, host: str = "localhost") -> Certificate:
    """Make one for a host."""
    openssl = shutil.which("openssl")
    assert openssl, "no openssl is here, by which tests make their certificates: install it"
    made = Certificate(folder / f"{host}.crt", folder / f"{host}.key")
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj"]
    name = (f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}")
    command = [openssl, *words, *name, "-out", str(made.file), "-keyout", str(made.key)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return made


class Terminator:
    """Ends TLS, as a pooler does, before a server whose socket it is given; without a certificate it knows none.

    `port`: where it listens on 127.0.0.1. `plain`: connections that came without TLS.
    """

    def __init__(self, there: Path, shown: Certificate | None) -> None:
        self._there = there
        self._context: ssl.SSLContext | None = None
        if shown is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(shown.file, shown.key)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.plain = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._there))
            first = client.recv(8, socket.MSG_WAITALL)
            while first in (ASKS_FOR_GSS, ASKS_FOR_TLS):
                if first == ASKS_FOR_TLS and self._context is not None:
                    client.sendall(b"S")
                    with self._context.wrap_socket(client, server_side=True) as inner:
                        _pass_on(inner, server)
                    return
                client.sendall(b"N")
                first = client.recv(8, socket.MSG_WAITALL)
            if first:
                self.plain += 1
                server.sendall(first)
                _pass_on(client, server)


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    """Pass on what both say, on one thread: nobody may read and write at once by TLS."""
    while True:
        is_pending = isinstance(client, ssl.SSLSocket) and client.pending()
        for end in [client] if is_pending else select.select([client, server], [], [])[0]:
            said = end.recv(65536)
            if not said:
                return
            (server if end is client else client).sendall(said)
