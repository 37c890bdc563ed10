"""One message of MCP to the broker's `/mcp`, and the messages that answer it (streamable HTTP)."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

from .discovery import Address
from .http_request import HTTPRequest
from .protocol.errors import ConnectionLost

Message: TypeAlias = dict[str, Any]

_INTERNAL_ERROR = -32603
"""The code of JSON-RPC."""
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The parameter that goes into the header `Mcp-Name` as well."""
_TIMEOUT_S = 60.0
"""The broker sends at least a comment every 15 seconds."""
_MAX_EVENT_BYTES = 32 * 1024**2


class Exchange:
    """Sends one message; `messages` yields what answers it.

    Args:
        connection: the id of a connection of the older revisions, and its protocol version.

    Attributes:
        status: of the HTTP answer.
        connection_id: that the broker has given to a new connection.
    """

    def __init__(
        self,
        address: Address,
        path: str,
        message: Message,
        connection: tuple[str | None, str | None] = (None, None),
    ) -> None:
        self.status = 0
        self.connection_id: str | None = None
        self._message = message
        self._connection = connection
        self._request = HTTPRequest(address, "POST", path, _TIMEOUT_S)

    async def messages(self) -> AsyncIterator[Message]:
        """Send the message, and yield the answers as they come. Closing the iterator closes the connection.

        Raises:
            ConnectionFailed, ConnectionLost: the broker cannot be reached, or did not answer completely.
        """
        body = json.dumps(self._message).encode()
        async with self._request as request:
            await request.begin({**self._headers(), "Content-Length": str(len(body))})
            await request.send(body)
            self.status = await request.answer(may_refuse=True)
            self.connection_id = request.headers.get("Mcp-Session-Id")
            if request.headers.get_content_type() == "text/event-stream":
                async for data in _events(request):
                    yield json.loads(data)
                return
            answer = await request.read_all(_MAX_EVENT_BYTES)
            if answer:
                yield _message_of(answer, self.status)

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        params = self._message.get("params") or {}
        connection_id, version = self._connection
        if own := version_of(self._message):
            method = self._message["method"]
            headers |= {"MCP-Protocol-Version": own, "Mcp-Method": _encoded(method)}
            name = params.get(_NAMED_BY.get(method, ""))
            if isinstance(name, str):
                headers["Mcp-Name"] = _encoded(name)
            return headers
        if version is not None:
            headers["MCP-Protocol-Version"] = version
        if connection_id is not None:
            headers["Mcp-Session-Id"] = connection_id
        return headers


def _message_of(answer: bytes, status: int) -> Message:
    """A message of JSON-RPC. An answer in another form, such as one of HTTP, is an error for the client."""
    try:
        found = json.loads(answer)
    except ValueError as exc:
        raise ConnectionLost(f"the broker's answer {status} is not JSON") from exc
    if isinstance(found, dict) and "jsonrpc" in found:
        return found
    error = found.get("error") if isinstance(found, dict) else None
    text = error.get("message") if isinstance(error, dict) else None
    told = text if isinstance(text, str) else f"the broker has answered with status {status}"
    return {"jsonrpc": "2.0", "error": {"code": _INTERNAL_ERROR, "message": told}}


def version_of(message: Message) -> str | None:
    """The protocol version in a request of 2026-07-28 or later; None in one of the older revisions."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    is_modern = isinstance(version, str) and message.get("method") != "initialize"
    return version if is_modern else None


async def _events(request: HTTPRequest) -> AsyncIterator[bytes]:
    """The data of server-sent events (https://html.spec.whatwg.org/#parsing-an-event-stream)."""
    buffer = bytearray()
    while piece := await request.read_available():
        buffer += piece.replace(b"\r", b"")  # JSON has no carriage return, unless escaped
        while (end := buffer.find(b"\n\n")) >= 0:
            lines = bytes(buffer[:end]).split(b"\n")
            del buffer[: end + 2]
            data = [each[5:].removeprefix(b" ") for each in lines if each.startswith(b"data:")]
            if joined := b"\n".join(data):
                yield joined
        if len(buffer) > _MAX_EVENT_BYTES:
            raise ConnectionLost("an event of the broker is too long")


def _encoded(value: str) -> str:
    """The value for a header. What is not plain ASCII is base64, as the specification says."""
    plain = value.isascii() and value.isprintable() and value == value.strip()
    if plain and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="
