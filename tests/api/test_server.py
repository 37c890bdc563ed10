"""Limits for clients without a token: connections, time and memory."""

# ruff: noqa: ASYNC221 - a test may block its own loop

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import socket
import ssl
import subprocess
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import ConnectionFailed
from kernelbroker_server.api import server
from kernelbroker_server.api.routes import ROUTES
from kernelbroker_server.api.server import UnauthenticatedConnections

from tests.support.backend import FakeBackend
from tests.support.http import TOKEN, Api, serving
from tests.support.requires import requires
from tests.support.waiting import DEADLINE_S, until
from tests.support.world import world

MIB = 1024**2
LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
SESSIONS = b"GET /api/v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n"
GOOD = SESSIONS % TOKEN.encode()
BAD = SESSIONS % b"wrong"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def bounded(
    backend: FakeBackend, *, limit: int = 100, timeout: float = DEADLINE_S
) -> AsyncIterator[Api]:
    unauthenticated = UnauthenticatedConnections(limit, timeout)
    async with world(backend) as w, serving(w, unauthenticated=unauthenticated) as api:
        yield api


async def connect(api: Api) -> Connection:
    """A connection that the broker has accepted."""
    before = len(api.service.unauthenticated)
    limit = api.service.unauthenticated._limit
    connection = await asyncio.open_connection("127.0.0.1", api.port)
    if before < limit:
        await until(lambda: len(api.service.unauthenticated) > before)
    return connection


async def ask(connection: Connection, request: bytes) -> int:
    reader, writer = connection
    async with asyncio.timeout(DEADLINE_S):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        await reader.readexactly(length)
    return int(head.split()[1])


async def ended(connection: Connection) -> bytes:
    """All that still comes, once the broker has closed the connection."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            return await connection[0].read()
        except ConnectionError:
            return b""


async def hang_up(connection: Connection) -> None:
    connection[1].close()
    with contextlib.suppress(OSError):
        await connection[1].wait_closed()


@pytest.mark.parametrize(
    "begin",
    [b"", b"GET /hea", GOOD[:-2], LIVE, BAD, b"\x16\x03\x01", b"POST /api/v1/exec HTTP/1.1\r\nA: "],
    ids=["silence", "half a line", "half a head", "health", "a wrong token", "tls", "half a value"],
)
async def test_a_client_without_a_token_has_little_time(backend: FakeBackend, begin: bytes) -> None:
    """Its connection ends, whether it sends much, little or nothing."""
    async with bounded(backend, timeout=0.2) as api:
        connection = await connect(api)

        async def drip() -> None:
            while True:
                connection[1].write(b"a")
                await asyncio.sleep(0.02)

        connection[1].write(begin)
        dripping = asyncio.create_task(drip())
        await ended(connection)
        dripping.cancel()
        await hang_up(connection)
        assert len(api.service.unauthenticated) == 0


async def test_a_client_with_a_token_has_time(backend: FakeBackend) -> None:
    """Its connection outlives the deadline of the others, and serves its next requests."""
    async with bounded(backend, timeout=1.0) as api:
        kept, silent = await connect(api), await connect(api)
        assert await ask(kept, GOOD) == 200
        await ended(silent)
        await hang_up(silent)
        assert await ask(kept, LIVE) == 200
        assert await ask(kept, GOOD) == 200
        await hang_up(kept)


async def test_the_oldest_of_too_many_connections_ends(backend: FakeBackend) -> None:
    """A flood of silent clients keeps neither new clients out nor those that have shown a token."""
    async with bounded(backend, limit=3) as api:
        trusted = await connect(api)
        assert await ask(trusted, GOOD) == 200
        flood = [await connect(api) for _ in range(3)]
        assert len(api.service.unauthenticated) == 3
        newcomer = await connect(api)
        assert await ended(flood[0]) == b""
        assert await ask(newcomer, GOOD) == 200
        assert await ask(trusted, GOOD) == 200
        assert await ask(flood[1], LIVE) == 200
        assert len(api.service.unauthenticated) == 2
        for connection in (trusted, newcomer, *flood):
            await hang_up(connection)
        await until(lambda: not len(api.service.unauthenticated))


async def test_an_idle_connection_ends(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has shown a token may wait between requests, but not for ever."""
    monkeypatch.setattr(server, "_IDLE_TIMEOUT_S", 0.1)
    async with bounded(backend) as api:
        connection = await connect(api)
        assert await ask(connection, GOOD) == 200
        assert await ended(connection) == b""
        await hang_up(connection)


async def test_a_body_that_never_ends(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with a token has to send its body within the timeout."""
    monkeypatch.setattr(server, "_BODY_TIMEOUT_S", 0.1)
    async with bounded(backend) as api:
        connection = await connect(api)
        head = (
            b"POST /api/v1/exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
            % TOKEN.encode()
        )
        connection[1].write(head + b"Content-Length: 9\r\n\r\n{")
        assert await ended(connection) == b""
        await hang_up(connection)


async def test_tls_to_a_broker_without_it(backend: FakeBackend) -> None:
    """A client that begins TLS is told at once that there is none; other connections go on."""
    async with world(backend) as w, serving(w) as api:
        plain = await connect(api)
        address = f"https://127.0.0.1:{api.port}"
        async with asyncio.timeout(5), kernelbroker.connect(address, token=TOKEN) as broker:
            for call in (broker.health, broker.session("a").open):
                with pytest.raises(ConnectionFailed, match="without TLS: use http://127") as raised:
                    await call()
                assert str(api.port) in str(raised.value)
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(b"\x16")  # its first byte alone
        assert (await reader.read()).endswith(b"use http:// in its address.\n")
        writer.close()
        assert await ask(plain, GOOD) == 200
        await hang_up(plain)


@requires("openssl")
async def test_a_tls_handshake_that_never_ends(backend: FakeBackend, tmp_path: Path) -> None:
    """A client that begins no handshake, or half of one, has as little time."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    client.check_hostname = False
    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="x").do_handshake()
    unauthenticated = UnauthenticatedConnections(timeout=1.0)
    async with (
        world(backend) as w,
        serving(w, unauthenticated=unauthenticated, tls=context) as api,
    ):
        waiting = [await connect(api) for _ in range(3)]
        whole = hello.read()
        waiting[1][1].write(whole[:20])
        waiting[2][1].write(whole)
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port, ssl=client)
        assert await ask((reader, writer), GOOD) == 200
        for connection in waiting:
            await ended(connection)
            await hang_up(connection)
        assert len(unauthenticated) == 0
        assert await ask((reader, writer), GOOD) == 200
        await hang_up((reader, writer))


@pytest.mark.slow
@pytest.mark.parametrize("framing", ["Content-Length: 15728640", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("token", ["", "Authorization: Bearer wrong\r\n"], ids=["none", "wrong"])
async def test_bodies_without_a_token_are_not_kept(
    backend: FakeBackend, token: str, framing: str
) -> None:
    """On every path the token is checked first. The body of a refused request is dropped."""
    paths = {re.sub(r"\{\w+\}", "x", path) for path, _ in ROUTES} | {"/none"}
    async with bounded(backend) as api:
        tracemalloc.start()
        try:
            for path, method in itertools.product(sorted(paths), ("GET", "POST", "PUT")):
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{token}{framing}\r\n\r\n"
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                await send_15_mib(api, head.encode(), chunked="chunked" in framing)
                peak = tracemalloc.get_traced_memory()[1] - before
                assert peak < 6 * MIB, (method, path, peak)
        finally:
            tracemalloc.stop()


async def send_15_mib(api: Api, head: bytes, *, chunked: bool) -> None:
    """Send a body, or as much of it as the broker takes before it closes the connection."""
    loop = asyncio.get_running_loop()
    piece = bytes(MIB)
    with socket.socket() as client:
        client.setblocking(False)
        async with asyncio.timeout(DEADLINE_S):
            await loop.sock_connect(client, ("127.0.0.1", api.port))
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(client, head)
                for _ in range(15):
                    await loop.sock_sendall(client, b"100000\r\n" if chunked else b"")
                    await loop.sock_sendall(client, piece)
                    await loop.sock_sendall(client, b"\r\n" if chunked else b"")
                await loop.sock_sendall(client, b"0\r\n\r\n" if chunked else b"")
            answer = await loop.sock_recv(client, 1024)
            assert int(answer.split()[1]) in (200, 401, 405, 503), answer
