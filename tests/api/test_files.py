"""Files over HTTP, where the sandbox is not what it should be; `tests/security` has real ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from kernelbroker_server.api import upload
from kernelbroker_server.kernels.client import KernelClient
from kernelbroker_server.kernels.endpoint import UnixEndpoint
from kernelbroker_server.kernels.transfer import Exchange

from tests.support import http
from tests.support.http import Api
from tests.support.raw import Answer, answering, saying
from tests.support.waiting import DEADLINE_S

FILES = "/api/v1/sessions/one/files"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
PUT = f"PUT {FILES}/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer the-token\r\n".encode()
LARGE = b"Content-Length: 90000000\r\n"

Lying = Callable[[Answer], AbstractAsyncContextManager[int]]


@pytest.fixture
async def lying(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lying]:
    """A session whose files another gateway answers for."""
    await api.world.open("one")
    path = api.world.backend.root / "liar.sock"

    async def request(client: KernelClient, *arguments: Any) -> Exchange:
        return await Exchange.open(UnixEndpoint(path), *arguments)

    monkeypatch.setattr(KernelClient, "request", request)
    yield lambda answer: answering(answer, path)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage",
        OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Range: bytes 0-4/5\r\n\r\nhello",
        b"HTTP/1.1 206 Part\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 206 Part\r\nContent-Length: 1\r\nContent-Range: bytes x\r\n\r\nh",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 409 No\r\nContent-Length: 31\r\n\r\n{"code": "unauthorized", "message": ""}'[
            :90
        ],
        b"HTTP/1.1 409 No\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 200_000,
    ],
)
async def test_liars(api: Api, lying: Lying, answer: bytes) -> None:
    """What is no proper answer is 503 for every call, with the reason."""
    async with lying(saying(answer)):
        for method, path in [
            ("GET", f"{FILES}/x"),
            ("PUT", f"{FILES}/x"),
            ("DELETE", f"{FILES}/x"),
            ("POST", f"{FILES}/x?op=mkdir"),
            ("GET", FILES),
        ]:
            said = await api.ask(method, path)
            assert (said.status, said.error["code"]) == (503, "unavailable"), (method, said.body)
            assert "sandbox" in said.error["message"]


@pytest.mark.parametrize(
    "listing",
    [
        b"[]",
        b'{"entries": [{}]}',
        b'{"entries": [{"path": 1, "kind": "file", "size": 1, "modified_at": ""}]}',
        b'{"entries": [{"path": "", "kind": "device", "size": 1, "modified_at": ""}]}',
        b"[" * 100_000,
        b"x" * (17 * 1024**2),
    ],
)
async def test_lists_that_are_none(api: Api, lying: Lying, listing: bytes) -> None:
    """A list that is not one, or too long, is not passed on."""
    head = OK + b"Content-Length: %d\r\n\r\n" % len(listing)
    async with lying(saying(head, listing)):
        assert (await api.ask("GET", FILES)).status == 503


async def test_a_refusal_is_cut(api: Api, lying: Lying) -> None:
    """The message of a refusal is the sandbox's, of bounded length; its code is one of few."""
    body = json.dumps({"code": "conflict", "message": "x" * 50_000}).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with lying(saying(answer.replace(b"200 OK", b"409 No"))):
        error = (await api.ask("GET", f"{FILES}/x")).error
        assert (error["code"], len(error["message"])) == ("conflict", 1000)


async def test_headers_are_ours(api: Api, lying: Lying) -> None:
    """Of the sandbox's headers only the length and the part are passed on."""
    evil = (
        b"Set-Cookie: a=b\r\nContent-Type: text/html\r\nLocation: /\r\nContent-Length: 2\r\n\r\nhi"
    )
    async with lying(saying(b"HTTP/1.1 200 OK\r\n" + evil)):
        answer = await api.ask("GET", f"{FILES}/report.pdf")
        assert (answer.status, answer.body) == (200, b"hi")
        assert answer.headers["content-type"] == "application/pdf"
        assert not {"set-cookie", "location"} & set(answer.headers)


async def test_a_download_that_breaks_off(
    api: Api, lying: Lying, caplog: pytest.LogCaptureFixture
) -> None:
    """Fewer bytes than announced end the connection early, and are no fault of the broker's."""
    async with lying(saying(OK + b"Content-Length: 100\r\n\r\nhalf")):
        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await api.ask("GET", f"{FILES}/x")
    assert caught.value.partial == b"half"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_client_that_leaves(api: Api, lying: Lying) -> None:
    """A download whose client has gone is given up: the sandbox need not send the rest."""
    hung_up = asyncio.Event()

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Content-Length: 100000000000\r\n\r\n")
        try:
            while True:
                writer.write(bytes(64 * 1024))
                await writer.drain()
        finally:
            hung_up.set()

    async with lying(answer):
        async with api.exchange("GET", f"{FILES}/x") as exchange:
            assert exchange.status == 200
            exchange.hang_up()
        async with asyncio.timeout(DEADLINE_S):
            await hung_up.wait()


@pytest.mark.parametrize(
    "body",
    [b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", LARGE + b"\r\nhello"],
    ids=["chunked", "large"],
)
async def test_an_upload_whose_client_leaves(api: Api, lying: Lying, body: bytes) -> None:
    """What was not sent whole is not passed on as if it were."""
    seen = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen.set_result(await reader.read())
        writer.close()

    path = api.world.backend.root / "liar.sock"
    server = await asyncio.start_unix_server(serve, str(path))
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(PUT + body)
        await writer.drain()
        await asyncio.sleep(0)
        writer.transport.abort()
        async with asyncio.timeout(DEADLINE_S):
            assert not (await seen).endswith(b"0\r\n\r\n")
    finally:
        server.close()


async def test_a_large_upload_that_is_refused(api: Api, lying: Lying) -> None:
    """Who waits for a word before it sends gets it, and one that still sends hears the refusal."""
    refusal = b'{"code": "too_large", "message": "it is full"}'

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Full\r\nContent-Length: %d\r\n\r\n" % len(refusal) + refusal)

    async with lying(answer), asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(PUT + LARGE + b"Expect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        exchange = http.Exchange(reader, writer)
        writer.write(bytes(20 * 2**20))
        await exchange.head()
        assert (exchange.status, exchange.headers["connection"]) == (413, "close")
        assert exchange.headers["x-request-id"]
        assert json.loads(await exchange.body())["error"]["message"] == "it is full"
        exchange.hang_up()


async def test_a_large_upload_that_never_begins(
    api: Api, lying: Lying, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that leaves after the head is no fault of the broker's, and the sandbox is not asked."""
    asked = []

    async def answer(head: bytes, _writer: asyncio.StreamWriter) -> None:
        asked.append(head)

    async with lying(answer):
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(PUT + LARGE + b"\r\n")
            writer.transport.abort()
        assert (await api.ask("GET", "/api/v1/sessions/one")).status == 200
    assert asked == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_large_upload_in_silence(
    api: Api, lying: Lying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that stops sending is told so, and one that ends too early, too."""
    monkeypatch.setattr(upload, "_SILENCE_S", 0.1)

    over = asyncio.Event()

    async def answer(_head: bytes, _writer: asyncio.StreamWriter) -> None:
        await over.wait()

    async with lying(answer), asyncio.timeout(DEADLINE_S):
        for ending, words in ((False, "nothing came"), (True, "before it was complete")):
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(PUT + LARGE + b"\r\nhello")
            if ending:
                writer.write_eof()
            exchange = http.Exchange(reader, writer)
            await exchange.head()
            assert exchange.status == 400
            assert words in json.loads(await exchange.body())["error"]["message"]
            await exchange.close()
        over.set()


@pytest.mark.parametrize("length", [b"90000000", b"5"])
async def test_a_body_framed_twice(api: Api, lying: Lying, length: bytes) -> None:
    """A length and a transfer coding at once are refused: a proxy may read them otherwise than we do."""
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        framing = b"Content-Length: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % length
        writer.write(PUT + framing + b"5\r\nhello\r\n0\r\n\r\n")
        exchange = http.Exchange(reader, writer)
        await exchange.head()
        assert exchange.status == 400
        exchange.hang_up()


async def test_a_large_upload_whose_session_is_closed(api: Api, lying: Lying) -> None:
    """A client that sends nothing at the time hears of it at once."""
    asked = asyncio.Event()
    over = asyncio.Event()

    async def answer(_head: bytes, _writer: asyncio.StreamWriter) -> None:
        asked.set()
        await over.wait()

    async with lying(answer), asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(PUT + LARGE + b"\r\nhello")
        await asked.wait()
        over.set()
        exchange = http.Exchange(reader, writer)
        await exchange.head()
        assert exchange.status == 503
        exchange.hang_up()


async def test_what_is_asked_wrongly(api: Api, lying: Lying) -> None:
    """Requests that make no sense are refused before the sandbox is asked."""
    for method, path, status in [
        ("POST", f"{FILES}/x", 400),
        ("POST", f"{FILES}/x?op=copy", 400),
        ("POST", f"{FILES}/x?op=move", 400),
        ("DELETE", f"{FILES}/x?recursive=1", 400),
        ("GET", f"{FILES}?recursive=yes", 400),
        ("PATCH", f"{FILES}/x", 405),
        ("PUT", "/api/v1/sessions/none/files/x", 404),
        ("GET", "/api/v1/sessions/none/files/x", 404),
        ("GET", "/api/v1/sessions/none/files", 404),
    ]:
        answer = await api.ask(method, path)
        assert (answer.status, bool(answer.error)) == (status, True), (method, path)
    for method in ("GET", "PUT", "DELETE", "POST"):
        assert (await api.ask(method, f"{FILES}/x", token="wrong")).status == 401


async def test_too_large(api: Api, lying: Lying) -> None:
    """A length over the limit is refused at once, and no length as soon as there is too much."""
    limit = (await api.world.open("one")).limits.max_file_bytes
    answer = await api.ask("PUT", f"{FILES}/x", length=limit + 1)
    assert (answer.status, answer.error["code"]) == (413, "too_large")
