"""A proxy between a client and the broker that records operations and breaks connections.

It relays HTTP as it is, and WebSockets frame by frame. A test can take connections away, drop or answer
operations in the broker's place, and send messages of its own to the client.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kernelbroker.protocol.codec import decode_operation, encode
from kernelbroker.protocol.messages import ErrorBody, ErrorReply, Operation

from .waiting import DEADLINE_S

_TEXT = 1
_SMALL_BUFFER = 16 * 1024


@dataclass(eq=False)
class Link:
    """A connection of a client, and the one to the broker that belongs to it."""

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter | None = None

    def abort(self) -> None:
        for writer in (self.client, self.broker):
            if writer is not None:
                with suppress(AttributeError):  # a transport that has been closed
                    writer.transport.abort()


class Proxy:
    """Listens from `start` to `stop`.

    Attributes:
        received: the operations that clients sent, also those that were dropped.
        requests: the paths of all HTTP requests.
        links: the connections that are open.
        lose: take the connection away when such an operation arrives, once, and do not relay it.
        silent_on: do not relay operations of these types.
        refuse: answer operations of these types with an error, and do not relay them.
        answers: messages that are sent as they are in place of the next answers to `open`.
        rewrite: makes the messages for the client out of one of the broker.
        is_up: False answers each request with 503.
        budget: bytes that may still be relayed to clients before the connection is cut; None for no
            bound.
        budgets: what `budget` is after each cut; None after the last.
        relayed: bytes that were relayed to clients.
    """

    def __init__(self, broker_port: int) -> None:
        self.broker_port = broker_port
        self.received: list[Operation] = []
        self.requests: list[str] = []
        self.links: set[Link] = set()
        self.lose: type | None = None
        self.silent_on: set[type] = set()
        self.refuse: dict[type, ErrorBody] = {}
        self.answers: list[object] = []
        self.rewrite: Callable[[bytes], list[bytes]] | None = None
        self.is_up = True
        self.budget: int | None = None
        self.budgets: list[int] = []
        self.relayed = 0
        self._changed = asyncio.Condition()
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ops(self, type_: type) -> list[Any]:
        """The operations of this type that were received."""
        return [operation for operation in self.received if type(operation) is type_]

    def drop(self) -> None:
        """Cut all connections, as a failing network does."""
        for link in list(self.links):
            link.abort()

    def pause(self) -> None:
        """Let new connections wait until `unpause`."""
        self._unpaused.clear()

    def unpause(self) -> None:
        self._unpaused.set()

    async def until(self, predicate: Callable[[], Any]) -> None:
        """Wait until an event in this proxy makes the predicate true; it may be async."""

        async def holds() -> bool:
            value = predicate()
            return bool(await value if inspect.isawaitable(value) else value)

        async with asyncio.timeout(DEADLINE_S):
            while not await holds():
                async with self._changed:
                    with suppress(TimeoutError):  # the broker changes without a message, too
                        await asyncio.wait_for(self._changed.wait(), 0.01)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = Link(writer)
        self.links.add(link)
        try:
            await self._relay(reader, link)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            link.abort()
            self.links.discard(link)
            self._tasks.discard(task)
            await self._notify()

    async def _relay(self, reader: asyncio.StreamReader, link: Link) -> None:
        await self._unpaused.wait()
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head.split()[1].decode())
        await self._notify()
        if not self.is_up:
            body = json.dumps({"error": {"code": "unavailable", "message": "No."}}).encode()
            link.client.write(
                b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            await link.client.drain()
            link.client.close()
            await link.client.wait_closed()
            return
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.broker_port))
        from_broker, link.broker = await asyncio.open_connection(sock=sock, limit=_SMALL_BUFFER)
        is_websocket = b"upgrade: websocket" in head.lower()
        if not is_websocket:  # so that each request is recorded, and can be broken
            head = head.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n"
        link.broker.write(head)
        upwards = self._operations if is_websocket else self._bytes_up
        downwards = self._messages if is_websocket else self._bytes_down
        both = {
            asyncio.create_task(upwards(reader, link)),
            asyncio.create_task(downwards(from_broker, link)),
        }
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _bytes_up(self, reader: asyncio.StreamReader, link: Link) -> None:
        assert link.broker is not None
        while data := await reader.read(65536):
            link.broker.write(data)
            await link.broker.drain()

    async def _bytes_down(self, reader: asyncio.StreamReader, link: Link) -> None:
        while data := await reader.read(65536):
            await self._to_client(link, data)
        link.client.close()
        await link.client.wait_closed()

    async def _operations(self, reader: asyncio.StreamReader, link: Link) -> None:
        assert link.broker is not None
        while True:
            opcode, payload, data = await _frame(reader)
            if opcode != _TEXT or await self._take(decode_operation(payload), link):
                link.broker.write(data)
                await link.broker.drain()

    async def _take(self, operation: Operation, link: Link) -> bool:
        """Record an operation; returns whether it is relayed."""
        self.received.append(operation)
        kind = type(operation)
        try:
            if kind is self.lose:
                self.lose = None
                link.abort()
                return False
            if kind in self.silent_on:
                return False
            if error := self.refuse.get(kind):
                op_id = getattr(operation, "op_id", None)
                execution_id = getattr(operation, "execution_id", None)
                reply = ErrorReply(error=error, op_id=op_id, execution_id=execution_id)
                await self.inject(reply, link)
                return False
            if operation.__struct_config__.tag == "open" and self.answers:
                await self.inject(self.answers.pop(0), link)
                return False
            return True
        finally:
            await self._notify()

    async def inject(self, message: object, link: Link) -> None:
        """Send a message to a client; text is sent unchanged."""
        data = message.encode() if isinstance(message, str) else encode(message)
        await self._to_client(link, _text_frame(data))

    async def _messages(self, reader: asyncio.StreamReader, link: Link) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await self._to_client(link, head)
        if b" 101 " not in head.split(b"\r\n")[0]:
            await self._bytes_down(reader, link)
            return
        while True:
            opcode, payload, data = await _frame(reader)
            if opcode == _TEXT and self.rewrite is not None:
                data = b"".join(map(_text_frame, self.rewrite(payload)))
            await self._to_client(link, data)
            await self._notify()

    async def _to_client(self, link: Link, data: bytes) -> None:
        if self.budget is not None:
            data, is_cut = data[: self.budget], len(data) > self.budget
            self.budget -= len(data)
            if is_cut:
                self.budget = self.budgets.pop(0) if self.budgets else None
                link.client.write(data)
                await link.client.drain()
                self._cut(link)
                return
        self.relayed += len(data)
        link.client.write(data)
        await link.client.drain()

    def _cut(self, link: Link) -> None:
        """End the connection behind what was written, so that exactly this much arrives."""
        sock = link.client.get_extra_info("socket")
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        if link.broker is not None:
            link.broker.transport.abort()

    async def start(self) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL_BUFFER)
        sock.bind(("127.0.0.1", 0))
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=2**26)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.unpause()
        self.drop()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()


@asynccontextmanager
async def proxied(broker_port: int) -> AsyncIterator[Proxy]:
    """Run a proxy in front of the broker at this port."""
    proxy = Proxy(broker_port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """The next WebSocket frame: its opcode, its payload without mask, and its bytes (RFC 6455, 5.2)."""
    head = await reader.readexactly(2)
    is_masked, length = bool(head[1] & 0x80), head[1] & 0x7F
    data = bytearray(head)
    if length > 125:
        extended = await reader.readexactly(2 if length == 126 else 8)
        data += extended
        length = int.from_bytes(extended, "big")
    mask = await reader.readexactly(4) if is_masked else b""
    data += mask
    payload = await reader.readexactly(length)
    data += payload
    if is_masked:
        repeated = (mask * (length // 4 + 1))[:length]
        payload = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(
            length, "big"
        )
    return head[0] & 0x0F, payload, bytes(data)


def _text_frame(payload: bytes) -> bytes:
    """An unmasked text frame, as a server sends it."""
    length = len(payload)
    if length < 126:
        head = struct.pack(">BB", 0x81, length)
    elif length < 2**16:
        head = struct.pack(">BBH", 0x81, 126, length)
    else:
        head = struct.pack(">BBQ", 0x81, 127, length)
    return head + payload
