"""One connection from a sandbox: one request, judged, and carried to whom it is for.

Bytes of a tunnel are passed on as they are. A plain request and its answer are read and written anew,
so that what the server gets is what was judged, and nothing behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import h11

from .addresses import Network
from .dial import Resolve, checked_addresses, connect
from .hello import ALERT_UNRECOGNIZED_NAME, BadHello, server_name
from .names import AllowList, BadName, canonical
from .rules import MAX_HEAD_BYTES, Asked, Reason, Refused, Target, check_lines, judge

_READ_BYTES = 64 * 1024
_LAST_WORDS_S = 1.0
"""How long a client may take to hang up after the end."""
_HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"trailer", b"upgrade"}


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
        bytes_up, bytes_down: sent to the server and received from it.
    """

    def __init__(
        self, regime: Regime, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.asked = Asked()
        self.address: str | None = None
        self.refused: Refused | None = None
        self.bytes_up = 0
        self.bytes_down = 0
        self._regime = regime
        self._reader = reader
        self._writer = writer
        _write_through(writer)
        self._clock = asyncio.timeout(None)
        self._server: asyncio.StreamWriter | None = None
        self._answered = False

    async def run(self) -> None:
        """Serve the connection to its end, and close it."""
        try:
            async with asyncio.timeout(self._regime.limits.total_timeout):
                try:
                    await self._serve()
                except Refused as refused:
                    self.refused = refused
                    await self._refuse(refused)
        except (OSError, TimeoutError):  # somebody hung up, or is silent
            pass
        finally:
            if self._server is not None:
                self._server.transport.abort()
            self._writer.transport.abort()

    async def _serve(self) -> None:
        limits, regime = self._regime.limits, self._regime
        client = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        target = await self._target(client)
        addresses = await checked_addresses(
            self.asked, regime.resolve, regime.private, limits.resolve_timeout
        )
        address, reader, writer = await connect(self.asked, addresses, limits.connect_timeout)
        self.address = str(address)
        self._server = writer
        _write_through(writer)
        if target.head is None:
            with suppress(TimeoutError):
                async with self._idle_clock():
                    await self._tunnel(reader, writer)
        else:
            try:
                async with self._idle_clock():
                    await self._exchange(client, target.head, reader, writer)
            except TimeoutError:
                text = f"{self.asked.host} does not answer"
                raise Refused(Reason.TIMEOUT, text, self.asked, 504) from None
        await self._flush()

    async def _target(self, client: h11.Connection) -> Target:
        try:
            async with asyncio.timeout(self._regime.limits.head_timeout):
                head = await self._reader.readuntil(b"\r\n\r\n")
            if len(head) > MAX_HEAD_BYTES:
                raise asyncio.LimitOverrunError("", 0)
            check_lines(head)
            client.receive_data(head)
            request = client.next_event()
            if not isinstance(request, h11.Request):
                raise h11.RemoteProtocolError("it does not end")
        except TimeoutError:
            raise Refused(Reason.TIMEOUT, "no request came", self.asked, 408) from None
        except asyncio.LimitOverrunError:
            text = f"the head of a request has at most {MAX_HEAD_BYTES} bytes"
            raise Refused(Reason.MALFORMED, text, self.asked, 431) from None
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                raise ConnectionError from None
            raise Refused(Reason.MALFORMED, "the request is cut", self.asked, 400) from None
        except h11.RemoteProtocolError:
            raise Refused(Reason.MALFORMED, "this is no HTTP request", self.asked, 400) from None
        target = judge(request, self._regime.allow, self._regime.template)
        self.asked = target.asked
        return target

    # A tunnel.

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self._answered = True
        hello = await self._hello()
        writer.write(hello)
        self.bytes_up += len(hello)
        copies = [
            asyncio.create_task(self._copy_up(writer)),
            asyncio.create_task(self._copy_down(reader)),
        ]
        try:  # clients that close one direction only, and still expect something, do not speak TLS
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(*copies)

    async def _hello(self) -> bytes:
        data = b""
        try:
            while (name := server_name(data)) is None:
                if not (more := await self._reader.read(_READ_BYTES)):
                    raise BadHello("the connection does not begin as TLS does")
                data += more
            if canonical(name) != self.asked.host:
                raise BadHello("the TLS hello (SNI) is for another host")
        except (BadHello, BadName) as error:
            text = f"{error}, in a tunnel to {self.asked.host}"
            raise Refused(Reason.NOT_TLS_FOR_HOST, text, self.asked) from None
        return data

    async def _copy_up(self, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await self._reader.read(_READ_BYTES):
                self.bytes_up += len(data)
                writer.write(data)
                await writer.drain()
                self._awake()

    async def _copy_down(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                self.bytes_down += len(data)
                self._writer.write(data)
                await self._writer.drain()
                self._awake()

    # A plain request.

    async def _exchange(
        self,
        client: h11.Connection,
        head: h11.Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        server = h11.Connection(h11.CLIENT, max_incomplete_event_size=4 * MAX_HEAD_BYTES)
        self._send_up(server, writer, head)
        up = asyncio.create_task(self._copy_body(client, server, writer))
        try:
            while not isinstance(event := await self._next(server, reader), h11.EndOfMessage):
                if isinstance(event, h11.Response):
                    self._answered = True
                    self._send_down(client, _answer(event))
                elif isinstance(event, h11.Data):
                    self._send_down(client, event)
                elif not isinstance(event, h11.InformationalResponse):  # those are for us
                    raise h11.RemoteProtocolError("the connection was closed")
                await self._writer.drain()
            self._send_down(client, h11.EndOfMessage())
            await self._writer.drain()
        except h11.ProtocolError:
            if up.done() and up.exception() is not None:
                text = "the body of the request is cut or malformed"
                raise Refused(Reason.MALFORMED, text, self.asked, 400) from None
            text = f"{self.asked.host} does not answer in HTTP"
            raise Refused(Reason.BROKEN_ANSWER, text, self.asked, 502) from None
        finally:
            await _cancel(up)

    async def _next(self, server: h11.Connection, reader: asyncio.StreamReader) -> object:
        while (event := server.next_event()) is h11.NEED_DATA:
            try:
                data = await reader.read(_READ_BYTES)
            except OSError:
                raise h11.RemoteProtocolError("the connection was reset") from None
            self.bytes_down += len(data)
            server.receive_data(data)
            self._awake()
        return event

    async def _copy_body(
        self, client: h11.Connection, server: h11.Connection, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while not isinstance(event := client.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    self._send_up(server, writer, event)
                    await writer.drain()
                elif event is h11.NEED_DATA:
                    if client.they_are_waiting_for_100_continue and not self._answered:
                        go_on = h11.InformationalResponse(status_code=100, headers=[])
                        self._send_down(client, go_on)
                    client.receive_data(await self._read_client())
                    self._awake()
                else:
                    raise h11.RemoteProtocolError("the connection was closed")
            self._send_up(server, writer, h11.EndOfMessage())
            await writer.drain()
        except h11.ProtocolError:
            writer.transport.abort()  # a body that is cut is none; the answer ends with it
            raise
        except OSError:  # the server hung up, perhaps behind its answer, which tells
            pass

    async def _read_client(self) -> bytes:
        """Empty at the end, however it comes about."""
        try:
            return await self._reader.read(_READ_BYTES)
        except OSError:
            return b""

    def _send_up(
        self, server: h11.Connection, writer: asyncio.StreamWriter, event: h11.Event
    ) -> None:
        data = server.send(event)
        assert data is not None
        self.bytes_up += len(data)
        writer.write(data)

    def _send_down(self, client: h11.Connection, event: h11.Event) -> None:
        data = client.send(event)
        assert data is not None
        self._writer.write(data)

    # Time, and the end.

    def _idle_clock(self) -> asyncio.Timeout:
        self._clock = asyncio.timeout(self._regime.limits.idle_timeout)
        return self._clock

    def _awake(self) -> None:
        """Bytes have moved; only their absence ends a connection before its time."""
        if not self._clock.expired():
            now = asyncio.get_running_loop().time()
            self._clock.reschedule(now + self._regime.limits.idle_timeout)

    async def _refuse(self, refused: Refused) -> None:
        if self._answered:
            if refused.reason is Reason.NOT_TLS_FOR_HOST:
                self._writer.write(ALERT_UNRECOGNIZED_NAME)
        else:
            self._writer.write(_error(refused))
        await self._flush()

    async def _flush(self) -> None:
        """Let the client read to the end; it may still be sending, and must not be reset."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._writer.drain()
                self._writer.write_eof()
                while await self._reader.read(_READ_BYTES):
                    pass


def _write_through(writer: asyncio.StreamWriter) -> None:
    """Have `drain` wait until all is out: what is left in between at the end would be lost."""
    writer.transport.set_write_buffer_limits(high=0)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # the other direction tells what happened


def _answer(response: h11.Response) -> h11.Response:
    headers = [(name, value) for name, value in response.headers if name not in _HOP_BY_HOP]
    return h11.Response(
        status_code=response.status_code,
        reason=response.reason,
        headers=[*headers, (b"Connection", b"close")],
    )


def _error(refused: Refused) -> bytes:
    # The text is also the reason phrase: of a refused CONNECT, clients show nothing else.
    text = f"kernelbroker: {refused.text}".encode("ascii", "replace")
    lines = [
        b"HTTP/1.1 %d %s" % (refused.status, text),
        b"Content-Type: text/plain",
        b"Content-Length: %d" % (len(text) + 1),
        b"Connection: close",
    ]
    return b"\r\n".join([*lines, b"", text + b"\n"])
