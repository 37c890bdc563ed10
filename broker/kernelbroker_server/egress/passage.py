"""One connection from a sandbox: one request, judged, and carried to whom it is for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import h11

from .addresses import Network
from .dial import Resolve, checked_addresses, connect
from .exchange import Exchange
from .hello import ALERT_UNRECOGNIZED_NAME, BadHello, server_name
from .names import AllowList, BadName, canonical
from .pipe import Pipe
from .rules import MAX_HEAD_BYTES, Asked, Reason, Refused, Target, check_lines, judge

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_LAST_WORDS_S = 1.0
"""How long a client may take to hang up after the end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one sandbox. Durations in seconds."""

    connections: int = 32
    burst: int = 100
    """Requests at once; each more waits its turn, `rate` of them a second."""
    rate: float = 20.0
    head_timeout: float = 15.0
    resolve_timeout: float = 10.0
    connect_timeout: float = 15.0
    idle_timeout: float = 120.0
    total_timeout: float = 3600.0


@dataclass(frozen=True, slots=True)
class Regime:
    """What holds for all connections of one sandbox."""

    template: str
    allow: AllowList
    private: Sequence[Network]
    resolve: Resolve
    limits: Limits


class Passage:
    """`run` it once.

    Attributes, for the audit log:
        asked: what was asked for, as far as it was understood.
        address: what was connected to.
        refused: why not, if so.
        pipe: how many bytes passed.
    """

    def __init__(
        self, regime: Regime, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.asked = Asked()
        self.address: str | None = None
        self.refused: Refused | None = None
        self.pipe = Pipe(reader, writer, regime.limits.idle_timeout)
        self._regime = regime
        self._reader = reader
        self._tunnelled = False
        self._exchange: Exchange | None = None

    async def run(self) -> None:
        """Serve the connection to its end, and close it."""
        try:
            async with asyncio.timeout(self._regime.limits.total_timeout):
                try:
                    await self._serve()
                except Refused as refused:
                    self.refused = refused
                    await self.pipe.to_client(self._words_for(refused))
                await self.pipe.last_words(_LAST_WORDS_S)
        except (OSError, TimeoutError):  # somebody hung up, or is silent
            pass
        finally:
            self.pipe.close()

    async def _serve(self) -> None:
        limits, regime = self._regime.limits, self._regime
        client = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        target = await self._target(client)
        asked = self.asked = target.asked
        addresses = await checked_addresses(
            asked, regime.resolve, regime.private, limits.resolve_timeout
        )
        address, reader, writer = await connect(asked, addresses, limits.connect_timeout)
        self.address = str(address)
        self.pipe.join(reader, writer)
        if target.head is None:
            with suppress(TimeoutError):  # that nothing is said any more is no failure
                async with self.pipe.until_idle():
                    await self._tunnel()
            return
        exchange = self._exchange = Exchange(self.pipe, client, asked)
        try:
            async with self.pipe.until_idle():
                await exchange.run(target.head)
        except TimeoutError:
            text = f"{asked.host} does not answer"
            raise Refused(Reason.TIMEOUT, text, asked, 504) from None

    async def _target(self, client: h11.Connection) -> Target:
        try:
            async with asyncio.timeout(self._regime.limits.head_timeout):
                head = await self._reader.readuntil(b"\r\n\r\n")
            check_lines(head)
            client.receive_data(head)
            request = client.next_event()
            if not isinstance(request, h11.Request):
                raise h11.RemoteProtocolError("it does not end")
        except TimeoutError:
            raise Refused(Reason.TIMEOUT, "no request came", Asked(), 408) from None
        except asyncio.LimitOverrunError:
            text = f"the head of a request has at most {MAX_HEAD_BYTES} bytes"
            raise Refused(Reason.MALFORMED, text, Asked(), 431) from None
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                raise ConnectionError from None
            raise Refused(Reason.MALFORMED, "the request is cut", Asked(), 400) from None
        except h11.RemoteProtocolError:
            raise Refused(Reason.MALFORMED, "this is no HTTP request", Asked(), 400) from None
        return judge(request, self._regime.allow, self._regime.template)

    async def _tunnel(self) -> None:
        pipe = self.pipe
        await pipe.to_client(_ESTABLISHED)
        self._tunnelled = True
        await pipe.to_server(await self._hello())
        copies = [
            asyncio.create_task(_copy(pipe.from_client, pipe.to_server)),
            asyncio.create_task(_copy(pipe.from_server, pipe.to_client)),
        ]
        try:  # clients that close one direction only, and still expect something, do not speak TLS
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)

    async def _hello(self) -> bytes:
        """All that came with it, once it is seen to be for whom the tunnel is. Raises Refused."""
        data = b""
        try:
            while (name := server_name(data)) is None:
                if not (more := await self.pipe.from_client()):
                    raise BadHello("the connection does not begin as TLS does")
                data += more
            if canonical(name) != self.asked.host:
                raise BadHello("the TLS hello (SNI) is for another host")
        except (BadHello, BadName) as error:
            text = f"{error}, in a tunnel to {self.asked.host}"
            raise Refused(Reason.NOT_TLS_FOR_HOST, text, self.asked) from None
        return data

    def _words_for(self, refused: Refused) -> bytes:
        """What the client is told, where it can still be told anything."""
        if self._tunnelled:
            return ALERT_UNRECOGNIZED_NAME
        if self._exchange is not None and self._exchange.answered:
            return b""
        # The text is also the reason phrase: of a refused CONNECT, clients show nothing else.
        text = f"kernelbroker: {refused.text}".encode("ascii", "replace")
        lines = [
            b"HTTP/1.1 %d %s" % (refused.status, text),
            b"Content-Type: text/plain",
            b"Content-Length: %d" % (len(text) + 1),
            b"Connection: close",
        ]
        return b"\r\n".join([*lines, b"", text + b"\n"])


async def _copy(
    read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]]
) -> None:
    with suppress(OSError):
        while data := await read():
            await write(data)
