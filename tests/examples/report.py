"""The report agent: it drafts a summary of a text file and sends it by e-mail.

    perdure run tests/examples/report.py:report notes.txt team@example.org --id report-2026-11
    python tests/examples/report.py notes.txt team@example.org report-2026-11

The mail server is at SMTP_HOST and SMTP_PORT (localhost, 25); the task is in PERDURE_STORE (sqlite:///perdure.db).
Killed and started again with the same words, it goes on where it was.
"""

import os
import re
import sys
from email.message import EmailMessage
from pathlib import Path
from smtplib import SMTP

from actors import AgentSystem, Doubt, Happened, NotHappened, Unknown, agent, step, step_info


@step
def draft_summary(document: str) -> str:
    """Take the first sentence of each paragraph: the same text gives the same summary."""
    paragraphs = re.split(r"\n\s*\n", Path(document).read_text().strip())
    return "\n".join(re.split(r"(?<=[.!?])\s", " ".join(paragraph.split()))[0] for paragraph in paragraphs)


def look_in_mailbox(doubt: Doubt) -> Happened | NotHappened | Unknown:
    """Find out whether the mail got there. A server that does not tell (many answer 252) leaves it to a person."""
    with mail_server() as server:
        code, answer = server.verify(message_id(doubt.idempotency_key))
    if code == 250:
        return Happened(message_id(doubt.idempotency_key))
    return NotHappened() if code == 550 else Unknown(f"the mail server answers {code} {answer.decode()}")


@step(on_doubt=look_in_mailbox, label="mail to {to}")
def send_email(to: str, body: str) -> str:
    """Send the mail; its Message-ID is the same in every attempt."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "agent@example.org", to, "Report"
    message["Message-ID"] = message_id(step_info().idempotency_key)
    message.set_content(body)
    with mail_server() as server:
        server.send_message(message)
    return str(message["Message-ID"])


@agent
def report(document: str, to: str = "team@example.org") -> str:
    """Summarise a document for somebody."""
    body = draft_summary(document)
    return send_email(to, body)


def message_id(key: str) -> str:
    return f"<{key}@example.org>"


def mail_server() -> SMTP:
    host, port = os.environ.get("SMTP_HOST", "localhost"), int(os.environ.get("SMTP_PORT", "25"))
    return SMTP(host, port, local_hostname="localhost", timeout=30)


if __name__ == "__main__":
    document, to, task_id = sys.argv[1:]
    with AgentSystem(os.environ.get("PERDURE_STORE", "sqlite:///perdure.db")) as system:
        print(system.spawn(report, document, to, id=task_id).result(timeout=60))
