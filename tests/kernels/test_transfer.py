"""Streamed requests to a gateway, and responses of correct, faulty and silent gateways."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kernelbroker_server.kernels import transfer
from kernelbroker_server.kernels.endpoint import TcpEndpoint, UnixEndpoint
from kernelbroker_server.kernels.transfer import GatewayRequest, TransferFailed

from tests.support.raw import answering, saying
from tests.support.waiting import DEADLINE_S

MIB = 1024**2
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def path() -> object:
    """The path of a unix socket; a temporary directory of pytest's would be too long."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        yield Path(name, "gateway.sock")


async def flood(head: bytes, writer: asyncio.StreamWriter, first: bytes, again: bytes) -> None:
    """Send `first`, then `again` without end."""
    writer.write(first)
    while True:
        writer.write(again)
        await writer.drain()


async def ask(path: Path, limit: int = MIB) -> bytes:
    """Send a request; returns the body of the response."""
    async with await GatewayRequest.open(UnixEndpoint(path), "GET", "/x") as exchange:
        await exchange.answer()
        return await exchange.body(limit)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 5\r\n\r\nhello",
        OK + b"Content-Length: 5\r\n\r\nhello and more",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        OK + b"Connection: close\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello",
    ],
)
async def test_a_body_has_the_announced_length(path: Path, answer: bytes) -> None:
    """A body is read to its announced end, in one piece or byte by byte, and no further."""
    for pieces in ([answer], [bytes([byte]) for byte in answer]):
        async with answering(saying(*pieces), path):
            assert await ask(path) == b"hello"
        path.unlink(missing_ok=True)


async def test_the_token_is_sent_over_tcp() -> None:
    """Over TCP each request has the gateway's token."""
    heads = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(OK + b"Content-Length: 0\r\n\r\n")

    async with answering(answer) as port:
        endpoint = TcpEndpoint("127.0.0.1", port, "secret")
        async with await GatewayRequest.open(endpoint, "GET", "/x?y=z") as exchange:
            await exchange.answer()
            assert (exchange.status, await exchange.body(0)) == (200, b"")
    assert heads[0].startswith(b"GET /x?y=z HTTP/1.1\r\n")
    assert b"authorization: token secret" in heads[0].lower()


@pytest.mark.parametrize("length", [3 * MIB, None])
async def test_an_upload_arrives_complete(path: Path, length: int | None) -> None:
    """A body arrives completely, with a length or chunked."""
    received = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        end = b"" if b"ontent-" in head else b"0\r\n\r\n"
        body = b""
        while not (body.endswith(end) if end else len(body) == length):
            body += await reader.read(MIB)
        received.set_result(body)
        writer.write(OK + b"Content-Length: 0\r\n\r\n")
        writer.close()

    framing = {"Transfer-Encoding": "chunked"}
    if length is not None:
        framing = {"Content-Length": str(length)}
    server = await asyncio.start_unix_server(serve, str(path), limit=8 * MIB)
    try:
        async with await GatewayRequest.open(UnixEndpoint(path), "PUT", "/x", framing) as exchange:
            for letter in b"abc":
                assert await exchange.send(bytes([letter]) * MIB)
            await exchange.answer()
    finally:
        server.close()
    assert [(await received).count(letter) for letter in (b"a", b"b", b"c")] == [MIB] * 3


async def test_a_response_during_an_upload_ends_it(path: Path) -> None:
    """A response that arrives during an upload is read, and the rest of the body is not sent."""
    refusal = b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\nno"
    async with answering(saying(refusal), path):
        framing = {"Content-Length": str(1000 * MIB)}
        async with await GatewayRequest.open(UnixEndpoint(path), "PUT", "/x", framing) as exchange:
            async with asyncio.timeout(DEADLINE_S):
                while await exchange.send(bytes(MIB)):
                    pass
                await exchange.answer()
            assert (exchange.status, await exchange.body(10)) == (409, b"no")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200\r\n",
        OK + b"Content-Length: 10\r\n\r\nshort",
        OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: ten\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
        OK + b"Content-Length: 99999999999999\r\n\r\n" + bytes(2 * MIB),
        OK + b"X: " + b"x" * MIB + b"\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n" * 100,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        OK + b"Connection: close\r\n\r\n" + bytes(2 * MIB),
    ],
)
async def test_invalid_responses_are_errors(path: Path, answer: bytes) -> None:
    """A malformed, truncated or oversized response raises TransferFailed, without a long wait."""
    async with answering(saying(answer), path), asyncio.timeout(DEADLINE_S):
        with pytest.raises(TransferFailed):
            await ask(path)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (OK, b"X-Header: value\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (OK + b"Connection: close\r\n\r\n", bytes(64 * 1024)),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"x" * 4096),
    ],
)
async def test_endless_responses_are_cut_off(path: Path, first: bytes, again: bytes) -> None:
    """A response without an end raises TransferFailed at its size limit."""

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        await flood(head, writer, first, again)

    async with answering(answer, path), asyncio.timeout(DEADLINE_S):
        with pytest.raises(TransferFailed):
            await ask(path, 64 * 1024)


async def test_a_silent_gateway_times_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that stops responding, sending or reading causes a timeout."""
    monkeypatch.setattr(transfer, "_IDLE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(transfer, "_RESPONSE_TIMEOUT_S", 0.05)
    for said in (b"", OK, OK + b"Content-Length: 10\r\n\r\n12345"):
        over = asyncio.Event()

        async def answer(
            head: bytes,
            writer: asyncio.StreamWriter,
            said: bytes = said,
            over: asyncio.Event = over,
        ) -> None:
            writer.write(said)
            await over.wait()

        async with answering(answer, path):
            with pytest.raises(TransferFailed, match="in time"):
                await ask(path)
            framing = {"Content-Length": str(100 * MIB)}
            async with await GatewayRequest.open(
                UnixEndpoint(path), "PUT", "/x", framing
            ) as exchange:
                with pytest.raises(TransferFailed, match="in time"):
                    for _ in range(100):
                        await exchange.send(bytes(MIB))
            over.set()
        path.unlink(missing_ok=True)


async def test_a_missing_gateway_is_reported(path: Path) -> None:
    """A request to a gateway that has ended raises an error that says so."""
    with pytest.raises(TransferFailed, match="be reached"):
        await ask(path)


async def test_unread_chunks_slow_the_gateway(path: Path) -> None:
    """The gateway cannot send on while chunks are unread, and sees when the connection closes."""
    sent, hung_up = 0, asyncio.Event()

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(OK + b"Content-Length: 1000000000\r\n\r\n")
        try:
            while True:
                writer.write(bytes(64 * 1024))
                await writer.drain()
                sent += 64 * 1024
        finally:
            hung_up.set()

    async with answering(answer, path):
        async with await GatewayRequest.open(UnixEndpoint(path), "GET", "/x") as exchange:
            await exchange.answer()
            chunks = exchange.chunks()
            taken = len(await anext(chunks))
            for _ in range(200):
                await asyncio.sleep(0)
            assert sent - taken < 2 * MIB
            await chunks.aclose()
        async with asyncio.timeout(DEADLINE_S):
            await hung_up.wait()


async def test_a_cancelled_request_closes_its_connection(path: Path) -> None:
    """A request that is cancelled while it waits closes its connection."""
    over = asyncio.Event()
    connections: list[asyncio.StreamReader] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(reader)
        await over.wait()
        writer.close()

    server = await asyncio.start_unix_server(serve, str(path))
    try:
        waiting = asyncio.create_task(ask(path))
        while not connections:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(DEADLINE_S):
            assert (await connections[0].read()).startswith(b"GET /x")  # up to its end
    finally:
        over.set()
        server.close()


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """Fail if a test leaves a task behind."""
    before = asyncio.all_tasks()
    yield
    for _ in range(5):
        await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - before if "serve" not in repr(task)}
    assert not left - {asyncio.current_task()}
