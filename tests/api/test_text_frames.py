"""A client that leaves while a message is written to it is no error of the broker."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from kernelbroker_server.api.text_frames import WebSocket
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application

_HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def test_a_client_leaves_while_it_is_written_to() -> None:
    """No exception is reported that nobody has retrieved, though nobody waits for the message."""
    closed = asyncio.Event()

    class Handler(WebSocket):
        def open(self, *_args: str, **_kwargs: str) -> None:
            self.write_message(b"x" * 64 * 1024**2, binary=True)

        def on_close(self) -> None:
            closed.set()

    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context))
    server = HTTPServer(Application([("/", Handler)]))
    listener, port = bind_unused_port()
    server.add_socket(listener)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(1000)
        writer.transport.abort()
        async with asyncio.timeout(10):
            await closed.wait()
        await asyncio.sleep(0.05)
        gc.collect()
        await asyncio.sleep(0)
    finally:
        server.stop()
        await server.close_all_connections()
    assert reported == []
