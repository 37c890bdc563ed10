"""Requests to a gateway, streamed both ways: to one that behaves, and to those that do not."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kernelbroker_server.kernels import transfer
from kernelbroker_server.kernels.endpoint import TcpEndpoint, UnixEndpoint
from kernelbroker_server.kernels.transfer import Exchange, TransferFailed

from tests.support.raw import answering, saying
from tests.support.waiting import DEADLINE_S

MIB = 1024**2
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def path() -> object:
    """Short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        yield Path(name, "gateway.sock")


async def flood(head: bytes, writer: asyncio.StreamWriter, first: bytes, again: bytes) -> None:
    writer.write(first)
    while True:
        writer.write(again)
        await writer.drain()


async def ask(path: Path, limit: int = MIB) -> bytes:
    """A request, and all of its answer."""
    async with await Exchange.open(UnixEndpoint(path), "GET", "/x") as exchange:
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
async def test_answers(path: Path, answer: bytes) -> None:
    """A body comes as it was framed, in one piece or byte by byte, and no more of it."""
    for pieces in ([answer], [bytes([byte]) for byte in answer]):
        async with answering(saying(*pieces), path):
            assert await ask(path) == b"hello"
        path.unlink(missing_ok=True)


async def test_tcp() -> None:
    """Over TCP the gateway's token is sent."""
    heads = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(OK + b"Content-Length: 0\r\n\r\n")

    async with answering(answer) as port:
        endpoint = TcpEndpoint("127.0.0.1", port, "secret")
        async with await Exchange.open(endpoint, "GET", "/x?y=z") as exchange:
            await exchange.answer()
            assert (exchange.status, await exchange.body(0)) == (200, b"")
    assert heads[0].startswith(b"GET /x?y=z HTTP/1.1\r\n")
    assert b"authorization: token secret" in heads[0].lower()


@pytest.mark.parametrize("length", [3 * MIB, None])
async def test_upload(path: Path, length: int | None) -> None:
    """A body arrives whole, its length announced or not."""
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
        async with await Exchange.open(UnixEndpoint(path), "PUT", "/x", framing) as exchange:
            for letter in b"abc":
                assert await exchange.send(bytes([letter]) * MIB)
            await exchange.answer()
    finally:
        server.close()
    assert [(await received).count(letter) for letter in (b"a", b"b", b"c")] == [MIB] * 3


async def test_a_body_from_another_socket(path: Path) -> None:
    """It is passed on as far as it goes; what it lacks, and a refusal on the way, are told apart."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        received.append(await reader.read(2 * MIB))
        while len(received[-1]) < 2 * MIB and (more := await reader.read(2 * MIB)):
            received[-1] += more
        writer.write(b"HTTP/1.1 413 Full\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    loop = asyncio.get_running_loop()
    server = await asyncio.start_unix_server(serve, str(path))
    giver, source = socket.socketpair()
    for end in (giver, source):
        end.setblocking(False)
    framing = {"Content-Length": str(100 * MIB)}
    try:
        async with (
            asyncio.timeout(DEADLINE_S),
            await Exchange.open(UnixEndpoint(path), "PUT", "/x", framing) as exchange,
        ):
            feeding = asyncio.create_task(loop.sock_sendall(giver, b"a" * 100 * MIB))
            assert await exchange.send(b"begin")
            assert not await exchange.take_from(source, 100 * MIB - 5, DEADLINE_S)
            await exchange.answer()
            assert exchange.status == 413
            feeding.cancel()
            await asyncio.wait([feeding])
        assert received[0].startswith(b"begin")
        assert set(received[0][5:]) == set(b"a")
        giver.close()
        async with await Exchange.open(UnixEndpoint(path), "PUT", "/x", framing) as exchange:
            with pytest.raises(EOFError):
                await exchange.take_from(source, 100 * MIB, DEADLINE_S)
    finally:
        server.close()
        giver.close()
        source.close()


async def test_an_answer_before_the_end_of_the_request(path: Path) -> None:
    """A gateway that refuses in the middle of an upload is heard, and gets no more."""
    refusal = b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\nno"
    async with answering(saying(refusal), path):
        framing = {"Content-Length": str(1000 * MIB)}
        async with await Exchange.open(UnixEndpoint(path), "PUT", "/x", framing) as exchange:
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
async def test_liars(path: Path, answer: bytes) -> None:
    """Whatever a gateway answers that is not what it announces is an error, and soon."""
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
async def test_endless_answers(path: Path, first: bytes, again: bytes) -> None:
    """A head or a body without end is cut off at its bound."""

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        await flood(head, writer, first, again)

    async with answering(answer, path), asyncio.timeout(DEADLINE_S):
        with pytest.raises(TransferFailed):
            await ask(path, 64 * 1024)


async def test_silence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that neither answers, goes on, nor reads is given up."""
    monkeypatch.setattr(transfer, "_SILENCE_S", 0.05)
    monkeypatch.setattr(transfer, "_HEAD_TIMEOUT_S", 0.05)
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
            async with await Exchange.open(UnixEndpoint(path), "PUT", "/x", framing) as exchange:
                with pytest.raises(TransferFailed, match="in time"):
                    for _ in range(100):
                        await exchange.send(bytes(MIB))
            over.set()
        path.unlink(missing_ok=True)


async def test_nobody_there(path: Path) -> None:
    """A gateway that is gone is an error that says so."""
    with pytest.raises(TransferFailed, match="be reached"):
        await ask(path)


async def test_pulled_only(path: Path) -> None:
    """What nobody asks for stays where it is: the sender is held up, and told when we hang up."""
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
        async with await Exchange.open(UnixEndpoint(path), "GET", "/x") as exchange:
            await exchange.answer()
            chunks = exchange.chunks()
            taken = len(await anext(chunks))
            for _ in range(200):
                await asyncio.sleep(0)
            assert sent - taken < 2 * MIB
            await chunks.aclose()
        async with asyncio.timeout(DEADLINE_S):
            await hung_up.wait()


async def test_cancellation(path: Path) -> None:
    """Wherever a request is cancelled, its connection is closed."""
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
    """Whatever happened, no task is left behind."""
    before = asyncio.all_tasks()
    yield
    for _ in range(5):
        await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - before if "serve" not in repr(task)}
    assert not left - {asyncio.current_task()}
