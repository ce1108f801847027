"""A model-and-tools loop as ordinary code. After a death every reply and every tool result comes from the log.

    perdure run tests/examples/model_and_tools.py:research notes.txt --id research-1
    python tests/examples/model_and_tools.py notes.txt research-1

The model is a script, so that this runs anywhere; put a call of a real one into `ask_model`. Each call of the model and
of a tool appends a line to the file LEDGER, if there is one: the proof of what was called how often.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors import AgentSystem, agent, step

Message = dict[str, Any]


@agent
def research(document: str) -> str:
    """Let a model look into a document with tools, until it has its answer."""
    messages: list[Message] = [{"role": "user", "text": f"What is {document} about?"}]
    while True:
        reply = ask_model(messages)
        messages.append(reply)
        if not reply["calls"]:
            return str(reply["text"])
        for call in reply["calls"]:
            result = use_tool(call["tool"], call["arguments"])
            messages.append({"role": "tool", "call": call["id"], "text": result})


@step(label="{messages[0][text]}")
def ask_model(messages: list[Message]) -> Message:
    """Ask the model for its next reply."""
    reply = scripted_model(messages)
    note("model", str(len(messages)))
    return reply


@step(label="{name} {arguments}")
def use_tool(name: str, arguments: dict[str, str]) -> str:
    """Call a tool that the model asked for."""
    result = TOOLS[name](**arguments)
    note("tool", f"{name} {arguments}")
    return str(result)


def count_words(document: str) -> int:
    return len(Path(document).read_text().split())


def count_lines_with(document: str, word: str) -> int:
    return sum(word in line for line in Path(document).read_text().splitlines())


TOOLS: dict[str, Callable[..., int]] = {"count_words": count_words, "count_lines_with": count_lines_with}


def scripted_model(messages: list[Message]) -> Message:
    """Reply as a model would: from the messages alone."""
    document = messages[0]["text"].removeprefix("What is ").removesuffix(" about?")
    results = [message["text"] for message in messages if message["role"] == "tool"]
    calls: list[Message] = []
    text = ""
    if not results:
        calls = [
            {"id": "c1", "tool": "count_words", "arguments": {"document": document}},
            {"id": "c2", "tool": "count_lines_with", "arguments": {"document": document, "word": "bridge"}},
        ]
    elif len(results) == 2:
        calls = [{"id": "c3", "tool": "count_lines_with", "arguments": {"document": document, "word": "ferry"}}]
    else:
        text = f"{results[0]} words; {results[1]} lines tell of a bridge, {results[2]} of a ferry."
    return {"role": "model", "text": text, "calls": calls}


def note(what: str, which: str) -> None:
    if "LEDGER" in os.environ:
        with open(os.environ["LEDGER"], "a") as ledger:
            ledger.write(f"{what} {which}\n")


if __name__ == "__main__":
    document, task_id = sys.argv[1:]
    with AgentSystem(os.environ.get("PERDURE_STORE", "sqlite:///perdure.db")) as system:
        print(system.spawn(research, document, id=task_id).result(timeout=60))
