"""Connections are accepted, with pauses when the process has no descriptors."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kernelbroker_server.api import accepting
from kernelbroker_server.api.accepting import Acceptor


class Short(socket.socket):
    """A listener of a process that has no more descriptors for a while."""

    failures: list[OSError]
    asked = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.asked += 1
        if self.failures:
            raise self.failures.pop()
        return super().accept()


@pytest.fixture
def listener() -> Iterator[Short]:
    with Short() as found:
        found.failures = []
        found.bind(("127.0.0.1", 0))
        found.listen()
        found.setblocking(False)
        yield found


async def served(listener: Short, *, answers: bool = True) -> tuple[bytes, list[socket.socket]]:
    """What a client reads that connects, and the accepted connections."""
    accepted: list[socket.socket] = []
    acceptor = Acceptor(
        listener, lambda connection, _: accepted.append(connection), answers=answers
    )
    try:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        read = asyncio.create_task(reader.read())
        await asyncio.wait([read], timeout=1)
        for each in accepted:
            each.close()
        data = await read
        writer.close()
        await writer.wait_closed()
        return data, accepted
    finally:
        acceptor.stop()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_a_shortage(listener: Short, caplog: pytest.LogCaptureFixture, number: int) -> None:
    """The client is told, the process rests, and the log has one line."""
    listener.failures = [OSError(number, "none are left")]
    with caplog.at_level(logging.ERROR):
        data, accepted = await served(listener)
    assert data.startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\n")
    assert accepted == []
    assert listener.asked < 6
    assert [record.message.startswith("too many connections") for record in caplog.records] == [
        True
    ]
    assert caplog.records[0].exc_info is None
    assert (await served(listener))[1] != []


async def test_one_shortage_after_another(listener: Short, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time a client is told."""
    monkeypatch.setattr(accepting, "_PAUSE_S", 0.01)
    acceptor = Acceptor(listener, lambda *_: None, answers=True)
    try:
        for _ in range(3):
            listener.failures = [OSError(errno.EMFILE, "none are left")]
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            async with asyncio.timeout(10):
                assert (await reader.read()).startswith(b"HTTP/1.1 503")
            writer.close()
    finally:
        acceptor.stop()


async def test_a_client_that_has_left(listener: Short) -> None:
    """A connection that was given up before it was accepted is none."""
    listener.failures = [ConnectionAbortedError(errno.ECONNABORTED, "aborted")]
    assert len((await served(listener))[1]) == 1


@pytest.mark.parametrize("answers", [True, False])
async def test_the_reserve(listener: Short, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """The last descriptors are not for connections. With TLS a client is not answered."""
    monkeypatch.setattr(accepting, "_most_connections", lambda: 0)
    data, accepted = await served(listener, answers=answers)
    assert (data[:12], accepted) == (b"HTTP/1.1 503" if answers else b"", [])


def test_the_reserve_is_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter at most is kept."""
    for limit, most in ((65536, 65408), (256, 192), (-1, 2**63 - 1)):
        monkeypatch.setattr(accepting.resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert accepting._most_connections() == most
