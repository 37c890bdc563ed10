"""A model server that follows a script: the APIs of Anthropic, Google and OpenAI, with streaming.

A script is a list of turns: a text, and calls of tools. The turn is found from the conversation that a
request holds, so that agents may repeat requests. Requests without tools (titles, summaries) get "ok".
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = (120, 30)
"""Tokens of each request: read and written."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model answers: a text, and calls of tools as (name, arguments)."""

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()


@dataclass(slots=True)
class ScriptedModel:
    """A running server.

    Attributes:
        url: its address.
        script: its answers; the last one is repeated.
        status: answers all requests with this status, if not 200.
        seen: the requests: path, headers in lower case, and body.
    """

    url: str
    script: Sequence[Turn]
    status: int = 200
    seen: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    def conversations(self) -> list[Any]:
        """The bodies of the requests that had tools."""
        return [body for _, _, body in self.seen if isinstance(body, dict) and body.get("tools")]

    def turn(self, answered: int, has_tools: bool) -> Turn:
        if not has_tools:
            return Turn("ok")
        return self.script[min(answered, len(self.script) - 1)]


@contextlib.contextmanager
def serving_model(
    script: Sequence[Turn], address: str = "127.0.0.1", port: int = 0
) -> Iterator[ScriptedModel]:
    """Serve a script in a thread, until the block ends."""
    server = ThreadingHTTPServer((address, port), _Handler)
    server.daemon_threads = True
    model = ScriptedModel(f"http://{address}:{server.server_port}", script)
    server.model = model  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._reply(404, b"{}")

    def do_HEAD(self) -> None:
        self._reply(404, b"{}")

    def do_POST(self) -> None:
        model: ScriptedModel = self.server.model  # type: ignore[attr-defined]
        body = json.loads(self._body() or b"null")
        path = self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        model.seen.append((self.path, headers, body))
        if model.status != 200:
            error = {"type": "error", "error": {"type": "authentication_error", "message": "no"}}
            self._reply(model.status, json.dumps(error).encode())
        elif path.endswith("/messages"):
            self._send(anthropic(model, body), body.get("stream"))
        elif path.endswith("/count_tokens"):
            self._reply(200, b'{"input_tokens": 100}')
        elif path.endswith("/chat/completions"):
            self._send(openai(model, body), body.get("stream"))
        elif path.endswith((":streamGenerateContent", ":generateContent")):
            self._send(google(model, body), path.endswith(":streamGenerateContent"))
        else:
            self._reply(404, b"{}")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, answer: tuple[dict[str, Any], list[str]], streams: bool | None) -> None:
        whole, pieces = answer
        if streams:
            self._reply(200, "".join(pieces).encode(), "text/event-stream")
        else:
            self._reply(200, json.dumps(whole).encode())

    def _reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def anthropic(model: ScriptedModel, body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The answer of Anthropic's Messages API, and the events of its stream."""
    answered = sum(each["role"] == "assistant" for each in body["messages"])
    turn = model.turn(answered, bool(body.get("tools")))
    blocks: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
    for number, (name, arguments) in enumerate(turn.calls):
        call = {"type": "tool_use", "id": f"toolu_{answered}_{number}", "name": name}
        blocks.append(call | {"input": arguments})
    usage = {"input_tokens": USAGE[0], "output_tokens": USAGE[1]}
    reason = "tool_use" if turn.calls else "end_turn"
    message = {
        "id": f"msg_{len(model.seen)}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": usage})
    events.append({"type": "message_stop"})
    pieces = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events]
    return message | {"content": blocks, "stop_reason": reason}, pieces


def openai(model: ScriptedModel, body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The answer of OpenAI's chat completions, and the pieces of its stream."""
    answered = sum(each["role"] == "assistant" for each in body["messages"])
    turn = model.turn(answered, bool(body.get("tools")))
    calls = [
        {
            "id": f"call_{answered}_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(turn.calls)
    ]
    reason = "tool_calls" if calls else "stop"
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    head = {"id": f"chat-{len(model.seen)}", "created": 1, "model": body.get("model")}
    usage = {
        "prompt_tokens": USAGE[0],
        "completion_tokens": USAGE[1],
        "total_tokens": sum(USAGE),
    }
    indexed = [{"index": number, **call} for number, call in enumerate(calls)]
    delta = message | ({"tool_calls": indexed} if calls else {})
    choices = [
        {"index": 0, "delta": delta, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": reason},
    ]
    chunk = {**head, "object": "chat.completion.chunk"}
    chunks = [{**chunk, "choices": [choice]} for choice in choices]
    chunks.append({**chunk, "choices": [], "usage": usage})
    pieces = [f"data: {json.dumps(each)}\n\n" for each in chunks] + ["data: [DONE]\n\n"]
    complete = message | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "message": complete, "finish_reason": reason}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    return whole, pieces


def google(model: ScriptedModel, body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The answer of Google's generateContent, and the one piece of its stream."""
    answered = sum(each.get("role") == "model" for each in body["contents"])
    turn = model.turn(answered, bool(body.get("tools")))
    if "responseJsonSchema" in (body.get("generationConfig") or {}):  # which model to take
        turn = Turn(json.dumps({"complexity_reasoning": "small", "complexity_score": 10}))
    parts: list[dict[str, Any]] = [{"text": turn.text}] if turn.text else []
    parts += [{"functionCall": {"name": name, "args": args}} for name, args in turn.calls]
    content = {"role": "model", "parts": parts}
    answer = {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": USAGE[0],
            "candidatesTokenCount": USAGE[1],
            "totalTokenCount": sum(USAGE),
        },
        "modelVersion": "scripted",
    }
    return answer, [f"data: {json.dumps(answer)}\r\n\r\n"]
