"""Files over HTTP, with a scripted file server in place of the sandbox. `tests/security` uses real ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from kernelbroker_server.api import upload
from kernelbroker_server.kernels.endpoint import UnixEndpoint
from kernelbroker_server.kernels.gateway import GatewayConnection
from kernelbroker_server.kernels.transfer import GatewayRequest

from tests.support import http
from tests.support.http import Api
from tests.support.raw import Answer, answering, saying
from tests.support.waiting import DEADLINE_S

FILES = "/api/v1/sessions/one/files"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
PUT = f"PUT {FILES}/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer the-token\r\n".encode()
LARGE = b"Content-Length: 90000000\r\n"

ServeAnswer = Callable[[Answer], AbstractAsyncContextManager[int]]


@pytest.fixture
async def serve_answer(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServeAnswer]:
    """A session whose file requests a scripted gateway answers."""
    await api.world.open("one")
    path = api.world.backend.root / "files.sock"

    async def request(gateway: GatewayConnection, *arguments: Any) -> GatewayRequest:
        return await GatewayRequest.open(UnixEndpoint(path), *arguments)

    monkeypatch.setattr(GatewayConnection, "request", request)
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
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 409 No\r\nContent-Length: 31\r\n\r\n{"code": "unauthorized", "message": ""}'[
            :90
        ],
        b"HTTP/1.1 409 No\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 200_000,
    ],
)
async def test_invalid_answers_of_the_sandbox(
    api: Api, serve_answer: ServeAnswer, answer: bytes
) -> None:
    """An invalid answer of the sandbox gives 503 with the reason, for every call."""
    async with serve_answer(saying(answer)):
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


async def test_a_gateway_that_does_not_know_a_path(api: Api, serve_answer: ServeAnswer) -> None:
    """The image of the sandbox is too old: the answer is 409 and says so."""
    async with serve_answer(saying(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope")):
        said = await api.ask("GET", f"{FILES}/x")
        assert (said.status, said.error["code"]) == (409, "conflict")
        assert "image" in said.error["message"]


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
async def test_invalid_listings_get_503(
    api: Api, serve_answer: ServeAnswer, listing: bytes
) -> None:
    """A listing that is invalid or too long gives 503."""
    head = OK + b"Content-Length: %d\r\n\r\n" % len(listing)
    async with serve_answer(saying(head, listing)):
        assert (await api.ask("GET", FILES)).status == 503


async def test_error_messages_of_the_sandbox_are_bounded(
    api: Api, serve_answer: ServeAnswer
) -> None:
    """An error of the sandbox is passed on with a known code and a message of bounded length."""
    body = json.dumps({"code": "conflict", "message": "x" * 50_000}).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with serve_answer(saying(answer.replace(b"200 OK", b"409 No"))):
        error = (await api.ask("GET", f"{FILES}/x")).error
        assert (error["code"], len(error["message"])) == ("conflict", 1000)


async def test_headers_of_the_sandbox_are_dropped(api: Api, serve_answer: ServeAnswer) -> None:
    """Only Content-Length and Content-Range of the sandbox's headers are passed on."""
    evil = (
        b"Set-Cookie: a=b\r\nContent-Type: text/html\r\nLocation: /\r\nContent-Length: 2\r\n\r\nhi"
    )
    async with serve_answer(saying(b"HTTP/1.1 200 OK\r\n" + evil)):
        answer = await api.ask("GET", f"{FILES}/report.pdf")
        assert (answer.status, answer.body) == (200, b"hi")
        assert answer.headers["content-type"] == "application/pdf"
        assert not {"set-cookie", "location"} & set(answer.headers)


async def test_a_download_that_breaks_off(
    api: Api, serve_answer: ServeAnswer, caplog: pytest.LogCaptureFixture
) -> None:
    """If the sandbox sends too few bytes, the connection is closed early, and no error is logged."""
    async with serve_answer(saying(OK + b"Content-Length: 100\r\n\r\nhalf")):
        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await api.ask("GET", f"{FILES}/x")
    assert caught.value.partial == b"half"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_download_whose_client_disconnects(api: Api, serve_answer: ServeAnswer) -> None:
    """The request to the sandbox ends when the client disconnects."""
    hung_up = asyncio.Event()

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Content-Length: 100000000000\r\n\r\n")
        try:
            while True:
                writer.write(bytes(64 * 1024))
                await writer.drain()
        finally:
            hung_up.set()

    async with serve_answer(answer):
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
async def test_an_upload_whose_client_disconnects(
    api: Api, serve_answer: ServeAnswer, body: bytes
) -> None:
    """An incomplete upload is not passed on as a complete one."""
    seen = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen.set_result(await reader.read())
        writer.close()

    path = api.world.backend.root / "files.sock"
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


async def test_a_large_upload_that_is_refused(api: Api, serve_answer: ServeAnswer) -> None:
    """A client that expects `100 Continue` gets it, and one that still sends gets the error."""
    refusal = b'{"code": "too_large", "message": "it is full"}'

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Full\r\nContent-Length: %d\r\n\r\n" % len(refusal) + refusal)

    async with serve_answer(answer), asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(PUT + LARGE + b"Expect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 (Continue)\r\n\r\n"
        exchange = http.Exchange(reader, writer)
        writer.write(bytes(20 * 2**20))
        await exchange.head()
        assert exchange.status == 413
        assert exchange.headers["x-request-id"]
        assert json.loads(await exchange.body())["error"]["message"] == "it is full"
        exchange.hang_up()


async def test_a_large_upload_that_never_begins(
    api: Api, serve_answer: ServeAnswer, caplog: pytest.LogCaptureFixture
) -> None:
    """If the client disconnects after the headers, no error is logged and no content is sent."""
    bodies: list[bytes] = []

    async def answer(_head: bytes, _writer: asyncio.StreamWriter) -> None:
        bodies.append(_head.partition(b"\r\n\r\n")[2])

    async with serve_answer(answer):
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(PUT + LARGE + b"\r\n")
            writer.transport.abort()
        assert (await api.ask("GET", "/api/v1/sessions/one")).status == 200
    assert not any(bodies)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_upload_whose_client_is_silent(
    api: Api, serve_answer: ServeAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends nothing for too long is answered with an error."""
    monkeypatch.setattr(upload, "_CLIENT_TIMEOUT_S", 0.1)
    over = asyncio.Event()

    async def answer(_head: bytes, _writer: asyncio.StreamWriter) -> None:
        await over.wait()

    async with serve_answer(answer), asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(PUT + LARGE + b"\r\nhello")
        exchange = http.Exchange(reader, writer)
        await exchange.head()
        assert exchange.status == 400
        assert "sent nothing" in json.loads(await exchange.body())["error"]["message"]
        await exchange.close()
        over.set()


async def test_an_upload_whose_sandbox_goes_away(api: Api, serve_answer: ServeAnswer) -> None:
    """The client is answered when it sends the next piece."""
    asked = asyncio.Event()
    over = asyncio.Event()

    async def answer(_head: bytes, _writer: asyncio.StreamWriter) -> None:
        asked.set()
        await over.wait()

    async with serve_answer(answer), asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(PUT + LARGE + b"\r\nhello")
        await asked.wait()
        over.set()
        exchange = http.Exchange(reader, writer)
        writer.write(bytes(2**20))
        await exchange.head()
        assert exchange.status == 503
        exchange.hang_up()


async def test_invalid_file_requests_are_refused(api: Api, serve_answer: ServeAnswer) -> None:
    """Invalid requests are refused before the sandbox is asked."""
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


async def test_an_upload_over_the_limit_is_refused(api: Api, serve_answer: ServeAnswer) -> None:
    """A Content-Length over the limit is refused at once, a chunked body as soon as it is too long."""
    limit = (await api.world.open("one")).limits.max_file_bytes
    answer = await api.ask("PUT", f"{FILES}/x", length=limit + 1)
    assert (answer.status, answer.error["code"]) == (413, "too_large")
