"""The agents of `perdure demo`: the same three steps, naively and with perdure.

`python -m actors.demo_agent AGENT RECIPIENT` runs one in this process, in a folder that has `notes.txt` and
`todo.txt`. `PERDURE_DEMO_PORT` is the mail server's port; `PERDURE_DEMO_KILL` names the place, if any, where the
process kills itself with SIGKILL.
"""

# What the demo shows of this file stands as a user would write it:
# ruff: noqa: D103

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
from collections import Counter
from email.message import EmailMessage
from pathlib import Path
from smtplib import SMTP

from actors import AgentSystem, Doubt, Happened, NotHappened, agent, step, step_info

NOTES, TODO, STORE = "notes.txt", "todo.txt", "sqlite:///tasks.db"
IN_THE_GAP, AFTER_THE_RECORD = "in the gap", "after the record"
PATIENCE = 10.0
"""Seconds that a run may take."""


# ---------------------------------------------------------------------- what touches the world


def summarize(text: str, count: int = 3) -> str:
    """Pick the `count` sentences with the most frequent words, in the order of the text.

    The same text gives the same summary.
    """
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    sentences = [found for paragraph in paragraphs for found in re.findall(r"[A-Z][^.!?]+[.!?](?=\s|$)", paragraph)]
    frequency = Counter(re.findall(r"[a-z]{5,}", text.lower()))
    weights = [sum(frequency[word] - 1 for word in set(re.findall(r"[a-z]{5,}", s.lower()))) for s in sentences]
    best = sorted(range(len(sentences)), key=lambda index: -weights[index])[:count]
    say(f"draft_summary  picked {len(best)} of {len(sentences)} sentences")
    return "\n".join(sentences[index] for index in sorted(best))


def deliver(to: str, body: str, message_id: str) -> str:
    """Hand a mail to the mail server; returns its Message-ID."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "agent@example.org", to, f"Summary of {NOTES}"
    message["Message-ID"] = message_id
    message.set_content(body)
    with mail_server() as server:
        server.send_message(message)
    say(f"send_email     sent {message_id}")
    die_if_told(IN_THE_GAP)
    return message_id


def is_there(message_id: str) -> bool:
    """Ask the mail server whether a mail has arrived."""
    with mail_server() as server:
        code, _ = server.verify(message_id)
    say(f"has_arrived    the mail server says {'yes' if code == 250 else 'no'}")
    return code == 250


def tick_off(to: str) -> None:
    """Mark the task complete in the list."""
    die_if_told(AFTER_THE_RECORD)
    todo = Path(TODO)
    todo.write_text(todo.read_text().replace(f"[ ] {to}", f"[x] {to}"))
    say(f"mark_complete  [x] {to}")


def mail_server() -> SMTP:
    """Connect to the mail server. Both names are given: looking them up would ask the network."""
    return SMTP("127.0.0.1", int(os.environ["PERDURE_DEMO_PORT"]), local_hostname="localhost", timeout=PATIENCE)


def die_if_told(place: str) -> None:
    """Kill this process here, if this is the place: no handler runs, nothing is flushed, nothing is said."""
    if os.environ.get("PERDURE_DEMO_KILL") == place:
        os.kill(os.getpid(), signal.SIGKILL)


def say(line: str) -> None:
    """Tell whoever watches, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# ---------------------------------------------------------------------- the naive agent


def naive_report(notes: str, to: str) -> None:
    """Do the three steps; which of them are done is known to this process alone."""
    done: dict[str, str] = {}
    if "draft" not in done:
        done["draft"] = summarize(Path(notes).read_text())
    if "sent" not in done:
        done["sent"] = deliver(to, done["draft"], f"<{secrets.token_hex(12)}@example.org>")
    tick_off(to)


# ---------------------------------------------------------------------- the perdure agents


@step
def draft_summary(notes: str) -> str:
    return summarize(Path(notes).read_text())


@step(label="to {to}")
def send_email(to: str, body: str) -> str:
    return deliver(to, body, f"<{step_info().idempotency_key}@example.org>")


@step
def mark_complete(to: str) -> None:
    tick_off(to)


@agent
def mail_report(notes: str, to: str) -> str:
    body = draft_summary(notes)
    message_id = send_email(to, body)
    mark_complete(to)
    return message_id


def has_arrived(doubt: Doubt) -> Happened | NotHappened:
    message_id = f"<{doubt.idempotency_key}@example.org>"
    return Happened(message_id) if is_there(message_id) else NotHappened()


@step(name="send_email", on_doubt=has_arrived, label="to {to}")
def send_email_or_ask(to: str, body: str) -> str:
    return deliver(to, body, f"<{step_info().idempotency_key}@example.org>")


@agent
def mail_report_asking(notes: str, to: str) -> str:
    body = draft_summary(notes)
    message_id = send_email_or_ask(to, body)
    mark_complete(to)
    return message_id


def main(name: str, to: str) -> None:
    """Run one agent to its end. A task's id is its recipient's: run again, it is the same task."""
    if name == naive_report.__name__:
        naive_report(NOTES, to)
        return
    agents = {known.name: known for known in (mail_report, mail_report_asking)}
    with AgentSystem(STORE) as system:
        system.spawn(agents[name], NOTES, to, id=to.partition("@")[0]).result(timeout=PATIENCE)


if __name__ == "__main__":
    main(*sys.argv[1:])
