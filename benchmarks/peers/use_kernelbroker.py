"""kernelbroker with default settings: SDK, broker, a pool of warm bubblewrap jails."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from asyncio import StreamReader, StreamWriter
from contextlib import AsyncExitStack

import kernelbroker
from kernelbroker_side import running_broker, until_warm

from peers.adapter import AWAY_S, Adapter, Outcome

TOKEN = secrets.token_hex(16)
WARM = 3
"""The default of the setting `pool.min_size`."""


class Used(Adapter):
    async def start(self) -> None:
        self._stack = AsyncExitStack()
        self._warm = 0 if self.cold else WARM
        self._broker = await self._stack.enter_async_context(
            running_broker(warm=self._warm, KERNELBROKER_TOKEN=TOKEN)
        )

    async def settle(self) -> None:
        await until_warm(self._broker, self._warm)

    async def open(self) -> kernelbroker.Session:
        session = self._broker.session()
        await session.open()
        return session

    async def run(
        self, session: kernelbroker.Session, code: str, timeout: float | None = None
    ) -> Outcome:
        if "sleep" in code:  # the cell whose first output is measured
            return await _stream(session, code)
        result = await session.run(code, timeout=timeout)
        shown = [each["data"].get("text/plain", "") for each in result.outputs if "data" in each]
        text = "".join([result.stdout, *shown])
        return Outcome(text, len(result.images), result.error, result.truncated is not None)

    async def restart(self, session: kernelbroker.Session) -> kernelbroker.Session:
        await session.restart()
        return session

    async def close(self, session: kernelbroker.Session) -> None:
        await session.close()

    async def stop(self) -> None:
        await self._stack.aclose()

    async def resume(self, _session: kernelbroker.Session, code: str) -> str:
        """Cut the connection at a relay between SDK and broker; the SDK comes back by itself."""
        async with (
            Relay(self._broker.url) as relay,
            kernelbroker.connect(relay.url, TOKEN) as broker,
            broker.session() as session,
        ):
            text = ""
            async for event in session.stream(code):
                if isinstance(event, kernelbroker.events.Stdout):
                    if not text:
                        relay.cut()
                    text += event.content
            return text


async def _stream(session: kernelbroker.Session, code: str) -> Outcome:
    outcome = Outcome()
    async with contextlib.aclosing(session.stream(code)) as stream:
        async for event in stream:
            if isinstance(event, kernelbroker.events.Stdout):
                outcome.see(event.content)
            elif isinstance(event, kernelbroker.events.Result):
                outcome.error = event.error
    return outcome


class Relay:
    """A TCP relay to a broker whose connections can be cut."""

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._writers: set[StreamWriter] = set()
        self._away_until = 0.0

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections, and refuse new ones for `AWAY_S`."""
        self._away_until = time.monotonic() + AWAY_S
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _relay(self, reader: StreamReader, writer: StreamWriter) -> None:
        if time.monotonic() < self._away_until:
            writer.transport.abort()
            return
        there_reader, there = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, there}
        await asyncio.gather(_copy(reader, there), _copy(there_reader, writer))


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()
