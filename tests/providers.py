"""A server that speaks as a provider of models does, strictly, from a script; and its troubles."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest

from actors.llm import AnthropicModel, OpenAIModel, Prices, ToolCall, ToolError, UserMessage, llm_agent, tool

USAGE = {"input": 100, "output": 20, "cached": 40}
"""What each reply says that it took: of the input, 40 tokens were cached."""
PRICES = Prices(input=10, output=100, cached=1)


NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What providers take as the name of a tool, also in what was said before."""


def refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


@dataclass(frozen=True)
class Line:
    """What the model says at one turn: text, and calls as id, name and JSON; `blocks` are Anthropic's, instead."""

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    reason: str | None = None
    blocks: tuple[dict[str, Any], ...] = ()


@dataclass
class Trouble:
    """What happens to one request instead of its reply, or to its stream after some pieces.

    A stream that is cut ends as if all were well, or, where it is `torn`, in the middle; `error` is sent before.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=lambda: {"type": "api_error", "message": "no luck"})
    after: int = 0
    torn: bool = False
    says: bool = False


class Provider:
    """A server with a script. `asked` has the bodies of all requests, `wrong` what was wrong with any of them."""

    chunks: Callable[[Line], Iterator[tuple[str, dict[str, Any]]]]
    path: str

    def __init__(self, *lines: Line) -> None:
        self.lines = lines
        self.asked: list[dict[str, Any]] = []
        self.wrong: list[str] = []
        self.troubles: deque[Trouble] = deque()
        self.door = threading.Event()
        self.door.set()
        self.left = threading.Event()

    def __enter__(self) -> Self:
        provider = self

        class Handler(_Handler):
            served = provider

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.door.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        assert self.wrong == []

    def model(self, **options: Any) -> Any:
        raise NotImplementedError

    def turn(self, asked: dict[str, Any]) -> int:
        return sum(message["role"] == "assistant" for message in asked["messages"])

    @property
    def turns(self) -> list[int]:
        """Which turn each request was for."""
        return [self.turn(asked) for asked in self.asked]

    def count(self) -> int:
        """Count the pieces of the first line."""
        return len(list(self.chunks(self.lines[0])))


class OpenAI(Provider):
    """Chat completions."""

    path = "/v1/chat/completions"
    extra = "openai"
    kind = OpenAIModel

    def model(self, **options: Any) -> Any:
        from openai import AsyncOpenAI

        client = partial(AsyncOpenAI, base_url=f"{self.url}/v1", api_key="none")
        return OpenAIModel("m-1", **{"prices": PRICES, "client": client, **options})

    def chunks(self, line: Line) -> Iterator[tuple[str, dict[str, Any]]]:
        def chunk(delta: dict[str, Any], reason: str | None = None) -> tuple[str, dict[str, Any]]:
            return "", {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

        base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
        yield chunk({"role": "assistant", "content": ""})
        for word in line.text.split(" ") if line.text else []:
            yield chunk({"content": f"{word} "})
        for index, (key, name, arguments) in enumerate(line.calls):
            head = {"index": index, "id": key, "type": "function", "function": {"name": name, "arguments": ""}}
            yield chunk({"tool_calls": [head]})
            for part in (arguments[:4], arguments[4:]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
        yield chunk({}, line.reason or ("tool_calls" if line.calls else "stop"))
        tokens = {"prompt_tokens": USAGE["input"], "completion_tokens": USAGE["output"], "total_tokens": 120}
        details = {"prompt_tokens_details": {"cached_tokens": USAGE["cached"]}}
        yield "", {**base, "choices": [], "usage": {**tokens, **details}}

    last = b"data: [DONE]\n\n"
    needed = 1
    """Pieces at the end without which a reply is whole all the same: the usage."""

    def refuse(self, asked: dict[str, Any]) -> str:
        """Say what is wrong with a request; empty where there is nothing."""
        open_calls: list[str] = []
        for message in [*asked["messages"], {"role": "user"}]:
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
            elif open_calls:
                return f"no result for {open_calls}"
            for call in message.get("tool_calls", ()):
                json.loads(call["function"]["arguments"], parse_constant=refuse_constant)
                if not NAME.fullmatch(call["function"]["name"]):
                    return f"a tool named {call['function']['name']!r}"
                open_calls.append(call["id"])
            if len(set(open_calls)) < len(open_calls):
                return f"two calls have the same id: {open_calls}"
        return "" if asked["stream"] and asked["stream_options"]["include_usage"] else "no stream"


class Anthropic(Provider):
    """Messages."""

    path = "/v1/messages"
    extra = "anthropic"
    kind = AnthropicModel

    def model(self, **options: Any) -> Any:
        from anthropic import AsyncAnthropic

        client = partial(AsyncAnthropic, base_url=self.url, api_key="none")
        return AnthropicModel("m-1", **{"prices": PRICES, "client": client, **options})

    def chunks(self, line: Line) -> Iterator[tuple[str, dict[str, Any]]]:
        def event(kind: str, **more: Any) -> tuple[str, dict[str, Any]]:
            return kind, {"type": kind, **more}

        usage = {"input_tokens": USAGE["input"] - USAGE["cached"], "cache_read_input_tokens": USAGE["cached"]}
        message = {"id": "x", "type": "message", "role": "assistant", "content": [], "model": "m-1"}
        ends = {"stop_reason": None, "stop_sequence": None}
        yield event("message_start", message={**message, **ends, "usage": {**usage, "output_tokens": 1}})
        yield event("ping")
        for index, block in enumerate(line.blocks or list(blocks_of(line))):
            head, deltas = pieces_of(block)
            yield event("content_block_start", index=index, content_block=head)
            for delta in deltas:
                yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        reason = line.reason or ("tool_use" if line.calls else "end_turn")
        delta = {"stop_reason": reason, "stop_sequence": None}
        yield event("message_delta", delta=delta, usage={"output_tokens": USAGE["output"]})
        yield event("message_stop")

    last = b""
    needed = 0

    def refuse(self, asked: dict[str, Any]) -> str:
        """Say what is wrong with a request; empty where there is nothing."""
        open_calls: list[str] = []
        seen: set[str] = set()
        role = "assistant"
        for message in [*asked["messages"], {"role": "assistant" if asked["messages"] else "", "content": []}]:
            if message["role"] == role:
                return f"two messages of {role}"
            role = message["role"]
            found = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
            if sorted(found) != sorted(open_calls):
                return f"results for {found}, calls were {open_calls}"
            if any(block["type"] == "text" and not block["text"].strip() for block in message["content"]):
                return "an empty text"
            used = [block for block in message["content"] if block["type"] == "tool_use"]
            if not all(NAME.fullmatch(word) for block in used for word in (block["id"], block["name"])):
                return f"an id or a name in {used}"
            open_calls = [block["id"] for block in used]
            if not seen.isdisjoint(open_calls) or len(set(open_calls)) < len(open_calls):
                return f"a call's id twice: {open_calls}"
            seen.update(open_calls)
        return "" if asked["stream"] and asked["max_tokens"] else "no stream"


def blocks_of(line: Line) -> Iterator[dict[str, Any]]:
    if line.text:
        yield {"type": "text", "text": line.text}
    for key, name, arguments in line.calls:
        yield {"type": "tool_use", "id": key, "name": name, "json": arguments}


def pieces_of(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if block["type"] == "text":
        words = [f"{word} " for word in block["text"].split(" ")]
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": word} for word in words]
    if block["type"] == "thinking":
        thought = [{"type": "thinking_delta", "thinking": block["thinking"]}]
        signed = [{"type": "signature_delta", "signature": block["signature"]}]
        return {"type": "thinking", "thinking": "", "signature": ""}, thought + signed
    head = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
    parts = [block["json"][:4], block["json"][4:]]
    return head, [{"type": "input_json_delta", "partial_json": part} for part in parts if part]


class _Handler(BaseHTTPRequestHandler):
    served: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        served = self.served
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body, parse_constant=refuse_constant)
        served.asked.append(asked)
        trouble = served.troubles.popleft() if served.troubles else None
        if self.path != served.path or self.headers["Connection"] != "close":
            served.wrong.append(f"{self.path}, {self.headers['Connection']}")
        if why := served.refuse(asked):
            served.wrong.append(why)
            trouble = Trouble(400, error={"type": "invalid_request_error", "message": why})
        if trouble is not None and trouble.status != 200:
            self.answer(trouble)
        else:
            with suppress(ConnectionError):
                self.stream(served.lines[served.turn(asked)], trouble)

    def answer(self, trouble: Trouble) -> None:
        body = json.dumps({"type": "error", "error": trouble.error}).encode()
        self.send_response(trouble.status)
        for name, value in {**trouble.headers, "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, line: Line, trouble: Trouble | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        served = self.served
        for number, (kind, data) in enumerate(served.chunks(line)):
            if trouble is not None and number == trouble.after:
                if trouble.says:
                    self.send("error" if kind else "", {"type": "error", "error": trouble.error})
                if not trouble.torn:
                    self.write(b"")
                return
            self.send(kind, data)
            self.wait_at_the_door()
        if served.last:
            self.write(served.last)
        self.write(b"")

    def wait_at_the_door(self) -> None:
        """Where it is shut, wait until it is open, or until the client has left."""
        if self.served.door.is_set():
            return
        self.connection.settimeout(0.01)
        while not self.served.door.is_set():
            with suppress(TimeoutError), self.seen_leaving():
                if not self.connection.recv(1):
                    raise ConnectionAbortedError
        self.connection.settimeout(None)

    @contextmanager
    def seen_leaving(self) -> Iterator[None]:
        """Take note of a client that has left, however its connection tells."""
        try:
            yield
        except ConnectionError:
            self.served.left.set()
            raise

    def send(self, kind: str, data: dict[str, Any]) -> None:
        self.write((f"event: {kind}\n" if kind else "").encode() + f"data: {json.dumps(data)}\n\n".encode())

    def write(self, data: bytes) -> None:
        with self.seen_leaving():
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()


# ------------------------------------------------------------------ what tests talk about

BOTH = pytest.mark.parametrize("kind", [OpenAI, Anthropic], ids=["openai", "anthropic"])


@tool
def weather(city: str) -> str:
    """Tell the weather in a city.

    Args:
        city: where.
    """
    if city == "Atlantis":
        raise ToolError("there is no such city")
    return f"rain in {city}"


@tool
async def population(city: str) -> int:
    """Count people."""
    return {"Rome": 2_800_000}[city]


ROME = '{"city": "Rome"}'
TALK = (
    Line("I look.", (("c1", "weather", ROME), ("c1", "population", ROME))),
    Line(calls=(("c1", "weather", '{"city": "Atlantis"}'), ("c9", "weather", '{"city": "Ro'))),
    Line("Rome is big and wet."),
)
ANSWER = "Rome is big and wet. "
ONE = Line("It rains.", (("c1", "weather", ROME),))
HI = [UserMessage("hi")]


def helper_of(model: Any, **options: Any) -> Any:
    return llm_agent("providers: helper", model=model, tools=[weather, population], instructions="Be brief.", **options)


def ask(model: Any, messages: Any = HI, tools: Any = (), on_delta: Callable[[str], None] = lambda _text: None) -> Any:
    """Ask a model outside of a task."""
    return asyncio.run(model.reply(messages, tools, on_delta=on_delta))


def rome(id: str, name: str) -> ToolCall:
    return ToolCall(id, name, {"city": "Rome"})
