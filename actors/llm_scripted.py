"""A model that follows a script: for tests, and for examples that run offline."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from actors.llm_messages import Message, Model, Reply, ToolSpec, illegal

Line: TypeAlias = Reply | str | Callable[[Sequence[Message]], Reply | str]
"""One line of a script: a reply, its text, or a function of the messages that gives either."""


class ScriptedModel(Model):
    """A model that gives the lines of a script, one a turn, and refuses what a strict provider would.

        model = ScriptedModel(Reply(tool_calls=[ToolCall("c1", "weather", {"city": "Rome"})]), "It rains.")

    Which line is next follows from the messages alone, so that it goes on where it was in another process too.
    `transcripts` has the messages of each call that was made of it, in this process. It tells its text word by word.

    Raises ValueError where the messages are no legal transcript, and where the script has come to its end.
    """

    def __init__(self, *lines: Line) -> None:
        self.lines = lines
        self.transcripts: list[list[Message]] = []

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],  # noqa: ARG002  the script knows them
        *,
        on_delta: Callable[[str], None],
    ) -> Reply:
        """Give the line of this turn."""
        self.transcripts.append(list(messages))
        if wrong := illegal(messages):
            raise ValueError(f"no legal transcript: {wrong}")
        turn = sum(isinstance(message, Reply) for message in messages)
        if turn >= len(self.lines):
            raise ValueError(f"the script has {len(self.lines)} lines, and this is turn {turn + 1}")
        line = self.lines[turn]
        said = line(messages) if callable(line) else line
        reply = Reply(said) if isinstance(said, str) else said
        for word in re.findall(r"\s*\S+", reply.text):
            on_delta(word)
        return reply
