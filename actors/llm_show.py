"""A conversation as people read it: who said what, which tool was called, what it took, and what waits for whom."""

from __future__ import annotations

from actors.llm_log import Used, call_of, is_reply, opening, reply_of, turns, usage_of
from actors.llm_messages import Message, Reply, SystemMessage, ToolCall, ToolResult, Usage, UserMessage
from actors.llm_tools import MODEL
from actors.showing import value_text
from actors.view import clock_time
from actors.wording import fitted, named, plain, until
from domain.errors import PerdureError
from domain.record import STEP, StepRecord
from domain.task import AgentTask
from domain.values import encode

INDENT = " " * 10
"""What stands before the second line of a text."""
LONGEST = 300
"""Characters of what a tool is given, and of what it gives, that are shown where lines have an end."""

_WHO = {SystemMessage: "system", UserMessage: "user", Reply: "model", ToolResult: "tool"}


def conversation_lines(task: AgentTask, now: float) -> list[tuple[str, str]]:
    """Give the conversation of a task as lines, each with the word for who speaks; none where no model has replied."""
    usage, lines, many = Usage(), _opened(task), 0
    for turn in turns(task):
        if isinstance(turn, UserMessage):
            lines.append(("user", _text(turn.text)))
            continue
        many, usage = many + 1, usage + turn.reply.usage
        lines.append(("model", _told(turn.path, turn.reply)))
        lines += [("tool", _used(task, used)) for used in turn.used]
    lines += [_open(record, now) for record in task.steps.values() if _is_open(record)]
    replies, took = f"{many} repl{'ies' if many > 1 else 'y'}", usage_of(Reply(usage=usage))
    return [*lines, ("in all", f"{replies}, {took}" if took else replies)] if many else []


def said(task: AgentTask, record: StepRecord) -> tuple[str, str]:
    """Give what one finished step has brought to a conversation, with the word for who speaks; two empty texts if none.

    A reply is its text and what it took; a tool has the call, and what came of it.
    """
    if is_reply(record):
        return "model", _told(record.path, reply_of(record))
    used = call_of(task, record)
    return ("", "") if used is None else ("tool", _used(task, used))


def _opened(task: AgentTask) -> list[tuple[str, str]]:
    try:
        messages = opening(task) or []
    except (PerdureError, ValueError):  # of a class that this process has not
        return []
    return [(_WHO[type(message)], _said(message)) for message in messages]


def _said(message: Message) -> str:
    calls = [_call(call) for call in message.tool_calls] if isinstance(message, Reply) else []
    return "\n".join(
        [*([_text(message.text)] if message.text else []), *(f"{INDENT}wants {call}" for call in calls)]
    ).strip()


def _told(path: str, reply: Reply) -> str:
    wants = "" if reply.text else f"wants {', '.join(call.name for call in reply.tool_calls)}"
    took = usage_of(reply)
    return f"{path}  {_text(reply.text) or plain(wants)}" + (f"  ({took})" if took else "")


def _used(task: AgentTask, used: Used) -> str:
    text = f"{used.path}  {_call(used.call)}"
    if used.over:
        word = "" if used.state == "done" or used.result.text.startswith(used.state) else f"{used.state}: "
        return f"{text} → {word}{plain(fitted(used.result.text, LONGEST))}"
    if used.path in task.asked_for and task.ending is None:
        return f"{text}  waits for yes or no"
    return f"{text}  {used.state}"


def _call(call: ToolCall) -> str:
    if not isinstance(call.arguments, dict):
        return plain(fitted(f"{call.name}({call.arguments})", LONGEST))
    given = ", ".join(f"{name}={value_text(encode(value))}" for name, value in call.arguments.items())
    return plain(fitted(f"{call.name}({given})", LONGEST))


def _text(text: str) -> str:
    """Give a text with its line breaks, each line under the first, and nothing else that does not print."""
    return f"\n{INDENT}".join(plain(line) for line in text.splitlines())


def _is_open(record: StepRecord) -> bool:
    return record.kind == STEP and record.name == MODEL and record.outcome is None


def _open(record: StepRecord, now: float) -> tuple[str, str]:
    text = named(record.path, "", record.label, record.attempt).replace("  ", " ").strip()
    if record.retry_at is not None:
        return "model", f"{text}  failed: {plain(str(record.errors[-1]))}; asked again {until(record.retry_at, now)}"
    return "model", f"{text}  asked at {clock_time(record.started)}, its reply is not in the log"
