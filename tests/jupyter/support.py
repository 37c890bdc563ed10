"""A Jupyter client of the tests' own, which sees every message as it comes."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kernelbroker_server.kernels.framing import SUBPROTOCOL, join_parts, split_frame
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.e2e.support import DEADLINE_S, BrokerProcess, call

DIRECTORY = Path(
    os.environ.get("KERNELBROKER_TEST_JUPYTER_CLIENTS", "/var/tmp/kernelbroker-jupyter-clients")
)
SCRIPTS = Path(__file__).parents[1] / "support" / "jupyter_clients"

Message = dict[str, Any]


async def kernel_of(broker: BrokerProcess, session_id: str) -> str:
    """The id of a session as a kernel."""
    status, kernel = await call(broker, "GET", f"/jupyter/api/kernels/{session_id}")
    assert status == 200
    return str(kernel["id"])


class KernelClient:
    """The `channels` of a kernel, with the subprotocol or without it.

    Attributes:
        messages: all that have come and that nobody has asked for.
    """

    def __init__(self, websocket: ClientConnection, session: str) -> None:
        self.websocket = websocket
        self.session = session
        self.messages: list[Message] = []

    async def send(
        self,
        msg_type: str,
        content: Mapping[str, Any],
        *,
        channel: str = "shell",
        buffers: tuple[bytes, ...] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Send a request. Returns its id."""
        msg_id = uuid.uuid4().hex
        header = {
            "msg_id": msg_id,
            "msg_type": msg_type,
            "username": "me",
            "session": self.session,
            "date": "2026-01-01T00:00:00Z",
            "version": "5.3",
        }
        if self.websocket.subprotocol is None:
            message = {"header": header, "parent_header": {}, "metadata": metadata or {}}
            text = json.dumps({**message, "content": content, "channel": channel})
            await self.websocket.send(text)
        else:
            parts = [header, {}, metadata or {}, content]
            encoded = [json.dumps(part).encode() for part in parts]
            await self.websocket.send(join_parts([channel.encode(), *encoded, *buffers]))
        return msg_id

    async def execute(self, code: str, **content: Any) -> str:
        """Send a cell. Returns its id."""
        content = {"silent": False, "store_history": True, "user_expressions": {}, **content}
        return await self.send("execute_request", {"code": code, "allow_stdin": False, **content})

    async def next(self) -> Message:
        """The next message."""
        async with asyncio.timeout(DEADLINE_S):
            data = await self.websocket.recv()
        if isinstance(data, str):
            message: Message = json.loads(data)
            return message
        if self.websocket.subprotocol is None:
            count = int.from_bytes(data[:4], "big")
            starts = [int.from_bytes(data[4 * n : 4 * n + 4], "big") for n in range(1, count + 1)]
            text, *buffers = (
                data[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)
            )
            return {**json.loads(text), "buffers": buffers}
        channel, header, parent, metadata, content, *buffers = split_frame(data)
        return {
            "channel": channel.decode(),
            "header": json.loads(header),
            "parent_header": json.loads(parent),
            "metadata": json.loads(metadata),
            "content": json.loads(content),
            "buffers": buffers,
        }

    async def until(self, msg_type: str, parent: str | None = None, **content: Any) -> Message:
        """Wait for a message of this type, which answers this request, with these fields."""
        while True:
            message = await self.next()
            self.messages.append(message)
            if (
                message["header"]["msg_type"] == msg_type
                and parent in (None, message["parent_header"].get("msg_id"))
                and content.items() <= message["content"].items()
            ):
                return message

    async def done(self, msg_id: str) -> list[Message]:
        """Wait until a request has its reply and its idle status. Returns all messages that answer it."""
        while True:
            answers = self.answers(msg_id)
            has_reply = any(each["channel"] in ("shell", "control") for each in answers)
            if has_reply and "idle" in kinds(answers):
                return answers
            self.messages.append(await self.next())

    def answers(self, msg_id: str) -> list[Message]:
        """The messages so far that answer a request."""
        return [each for each in self.messages if each["parent_header"].get("msg_id") == msg_id]

    async def ask(self, msg_type: str, content: Mapping[str, Any], **options: Any) -> Message:
        """Send a request and return the content of its reply."""
        msg_id = await self.send(msg_type, content, **options)
        return reply_of(await self.done(msg_id))

    async def run(self, code: str, **content: Any) -> list[Message]:
        """Run a cell. Returns the messages that answer it."""
        return await self.done(await self.execute(code, **content))


def reply_of(messages: list[Message]) -> Message:
    """The content of the one reply among these messages."""
    (reply,) = [each for each in messages if each["channel"] in ("shell", "control")]
    content: Message = reply["content"]
    return content


def kinds(messages: list[Message]) -> list[str]:
    """The types of messages, with the state of a status."""
    return [
        each["content"].get("execution_state") or each["header"]["msg_type"] for each in messages
    ]


def text_of(messages: list[Message]) -> str:
    """What the cell has printed."""
    return "".join(
        each["content"]["text"] for each in messages if each["header"]["msg_type"] == "stream"
    )


@asynccontextmanager
async def connected(
    broker: BrokerProcess,
    kernel_id: str,
    *,
    legacy: bool = False,
    session: str | None = None,
    token: str | None = None,
    prefix: str = "/jupyter",
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[KernelClient]:
    """Connect to a kernel, with the token in the query unless there are headers or a prefix with it."""
    session = session or uuid.uuid4().hex
    query = {"session_id": session}
    if headers is None and prefix == "/jupyter":
        query["token"] = broker.token if token is None else token
    address = broker.url.replace("http", "ws", 1)
    url = f"{address}{prefix}/api/kernels/{kernel_id}/channels?{urlencode(query)}"
    async with connect(
        url,
        subprotocols=None if legacy else [Subprotocol(SUBPROTOCOL)],
        additional_headers=headers,
        max_size=None,
    ) as websocket:
        yield KernelClient(websocket, session)
