"""Operations over connections that fail: what is tried again, how often, and after which pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kernelbroker import CodeOperationError, SandboxConnectionError, SandboxResourceError
from kernelbroker.code import Code
from kernelbroker.code_errors import error_of
from kernelbroker.discovery import Address

ANSWER = b'{"success":true,"result":{"content":"a","sha256":"b"}}'
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(ANSWER),
    ANSWER,
)


class Broker:
    """Answers the n-th request with the n-th of `answers`, the last one again and again."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = [*answers]
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(size)
        self.requests += 1
        writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
        await writer.drain()
        writer.close()


@asynccontextmanager
async def broker_at(*answers: bytes) -> AsyncIterator[tuple[Broker, Code]]:
    broker = Broker(*answers)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    async with server:
        yield broker, code_at(server.sockets[0].getsockname()[1])


def code_at(port: int) -> Code:
    async def opened() -> str:
        return "/api/v1/sessions/mine"

    address = Address(f"http://127.0.0.1:{port}", "token", "the test", "the test")
    return Code(address, 10.0, opened, pauses=(0.0, 0.0))


async def test_reading_is_tried_again() -> None:
    """A request that only reads is sent three times."""
    async with broker_at(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"", WHOLE) as (
        broker,
        code,
    ):
        assert (await code.read("a")).result["content"] == "a"
        assert broker.requests == 3
    async with broker_at(b"") as (broker, code):
        with pytest.raises(SandboxConnectionError) as caught:
            await code.read("a")
        assert broker.requests == 3
        assert (caught.value.sandbox_id, caught.value.operation) == ("mine", "read")


@pytest.mark.parametrize(
    "operation",
    [
        lambda code: code.edit("a", "b"),
        lambda code: code.apply_patch("x"),
        lambda code: code.git_commit("x"),
        lambda code: code.git_create_pr("x"),
        lambda code: code.git_push(),
        lambda code: code.run("x"),
        lambda code: code.run_tests(),
    ],
)
async def test_what_may_have_run_is_not_repeated(operation: Callable[[Code], Any]) -> None:
    """After the request was sent, a lost connection is an error at once."""
    async with broker_at(b"") as (broker, code):
        with pytest.raises(SandboxConnectionError, match=r"may have run|answer"):
            await operation(code)
        assert broker.requests == 1


async def test_connections_are_tried_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation waits for the broker: three attempts, with pauses of 2 and 4 seconds."""
    pauses: list[float] = []
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    code = code_at(port)
    code._pauses = (2.0, 10.0)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    with monkeypatch.context() as patch:
        patch.setattr("kernelbroker.code.asyncio.sleep", pause)
        with pytest.raises(SandboxConnectionError) as caught:
            await code.edit("a", "b")
    assert pauses == [2.0, 4.0]
    assert caught.value.code == "connection"


async def test_a_refusal_is_not_repeated() -> None:
    """An answer of the broker is no failure of the connection."""
    body = b'{"error":{"code":"unavailable","message":"no"}}'
    refusal = b"HTTP/1.1 503 No\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    async with broker_at(refusal % (len(body), body)) as (broker, code):
        with pytest.raises(CodeOperationError, match="no") as caught:
            await code.read("a")
        assert caught.value.code == "unavailable"
        assert broker.requests == 1


@pytest.mark.parametrize("code", ["too_large", "out_of_memory", "quota_exceeded"])
def test_resource_errors(code: str) -> None:
    """No space, no memory and too much of something are errors of resources."""
    error = error_of(code, "full", "mine", "run")
    assert isinstance(error, SandboxResourceError)
    assert (error.message, error.sandbox_id, error.operation, error.code) == (
        "full", "mine", "run", code,
    )  # fmt: skip
