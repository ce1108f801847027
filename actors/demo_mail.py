"""The outside world of `perdure demo`: a real mail server on 127.0.0.1, in a process of its own.

`python demo_mail.py FILE [LOSE]` prints its port and serves until its standard input ends, so it never
outlives whoever started it. It keeps what arrives in `FILE`, an mbox, and answers VRFY with whether a Message-ID
has arrived: the question that a real program asks by IMAP, or its provider's API. It knows nothing of perdure.
"""

from __future__ import annotations

import asyncio
import mailbox
import sys
from contextlib import closing
from email import message_from_bytes
from pathlib import Path

from aiosmtpd.smtp import SMTP, Envelope, Session


class PostOffice:
    """Keeps each mail before it says 250. `lose`: the number of the one mail that it drops all the same, for tests."""

    def __init__(self, file: Path, lose: int = 0) -> None:
        self._file = file
        self._lose = lose
        self._accepted = 0
        self._arrived: set[str] = set()

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: ARG002, N802
        """Keep a mail."""
        self._accepted += 1
        if self._accepted != self._lose:
            message = message_from_bytes(envelope.original_content or b"")
            with closing(mailbox.mbox(self._file)) as box:
                box.add(message)
            self._arrived.add(message["Message-ID"].strip())
        return "250 kept"

    async def handle_VRFY(self, server: SMTP, session: Session, envelope: Envelope, address: str) -> str:  # noqa: ARG002, N802
        """Tell whether a mail with this Message-ID has arrived."""
        return "250 it has arrived" if f"<{address}>" in self._arrived else "550 it has not arrived"


async def serve(file: Path, lose: int) -> None:
    """Serve until standard input ends."""
    loop, office = asyncio.get_running_loop(), PostOffice(file, lose)
    server = await loop.create_server(lambda: SMTP(office, hostname="localhost"), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int([*sys.argv, "0"][2])))
