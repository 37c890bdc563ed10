"""Connections are kept, proxies are used, and requests are sent again, as the settings say."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import kernelbroker
import pytest
from kernelbroker import http_connections, sync
from kernelbroker.http_connections import HTTPConnections

from tests.support.waiting import until


class Server:
    """Answers each request with JSON.

    Attributes:
        requests: the first lines and the headers of all requests.
        connections: that were accepted.
        statuses: of the next answers; then 200.
        ends_after: each connection ends after as many answers, without having said so.
        is_dying: it takes requests and closes the connection.
        tunnels_to: the port to which `CONNECT` leads.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.connections = 0
        self.statuses: list[int] = []
        self.ends_after = 10**6
        self.is_dying = False
        self.port = 0
        self.tunnels_to: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(self.ends_after):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.requests.append(head)
                if self.is_dying:
                    break
                if head.startswith("CONNECT"):
                    await self.tunnel(reader, writer)
                    break
                if size := head.lower().partition("content-length: ")[2].partition("\r\n")[0]:
                    await reader.readexactly(int(size))
                status = self.statuses.pop(0) if self.statuses else 200
                error = {"error": {"code": "unavailable", "message": "No room."}}
                body = json.dumps({"status": "ok"} if status == 200 else error).encode()
                writer.write(
                    b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
                )
                await writer.drain()
        writer.close()

    async def tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.tunnels_to is None:
            writer.write(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
            return
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self.tunnels_to)
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")

        async def relay(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
            target.close()

        await asyncio.gather(relay(reader, their_writer), relay(their_reader, writer))


@pytest.fixture
async def make_server() -> AsyncIterator[Callable]:
    servers = []

    async def make() -> Server:
        server = Server()
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        servers.append(listening)
        server.port = listening.sockets[0].getsockname()[1]
        return server

    yield make
    for server in servers:
        server.close()


@pytest.fixture
async def server(make_server: Callable) -> Server:
    return await make_server()


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


# Kept connections


async def test_one_connection_serves_one_request_after_the_other(server: Server) -> None:
    """As many connections as there were requests at once, and none of them stays at the end."""
    async with kernelbroker.connect(server.url, "t") as client:
        for _ in range(20):
            assert await client.health() == {"status": "ok"}
        assert server.connections == 1
        await asyncio.gather(*(client.health() for _ in range(5)))
        assert server.connections <= 5
        assert len(server.requests) == 25
    await until(lambda: not client._address.connections._idle, "idle connections")


async def test_the_synchronous_client_keeps_them_too(server: Server) -> None:
    def work() -> None:
        with sync.connect(server.url, "t") as client:
            for _ in range(5):
                client.health()

    await asyncio.to_thread(work)
    assert (server.connections, len(server.requests)) == (1, 5)


async def test_a_connection_that_has_ended_is_replaced(server: Server) -> None:
    """The end of an idle connection is no failure, seen or not."""
    server.ends_after = 1
    async with kernelbroker.connect(server.url, "t") as client:
        for _ in range(10):  # at once, so that the end may come after the request
            assert await client.health() == {"status": "ok"}
    assert len(server.requests) == 10


async def test_a_request_that_may_have_begun_is_not_sent_again(server: Server) -> None:
    """A POST on a kept connection that ends without an answer fails; a GET is sent on a new one."""
    async with kernelbroker.connect(server.url, "t", retries=3) as client:
        await client.health()
        server.is_dying = True
        with pytest.raises(kernelbroker.ConnectionFailed, match="did not answer"):
            await client.assess("1")
        assert len(server.requests) == 2
        server.is_dying = False
        await client.health()
        server.is_dying = True
        with pytest.raises(kernelbroker.ConnectionFailed, match="did not answer"):
            await client.health()
        assert len(server.requests) == 5


async def test_few_idle_connections_are_kept_and_not_for_long(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kernelbroker.connect(server.url, "t") as client:
        await asyncio.gather(*(client.health() for _ in range(30)))
        idle = client._address.connections._idle
        assert 1 <= len(idle) <= http_connections._MOST_IDLE
        made = server.connections
        monkeypatch.setattr(http_connections, "_IDLE_S", 0.0)
        await client.health()
        assert server.connections == made + 1


async def test_a_forked_process_uses_none_of_them(server: Server) -> None:
    async with kernelbroker.connect(server.url, "t") as client:
        await client.health()
        connections = client._address.connections
        connections._process -= 1  # as a child sees it
        await client.health()
        assert server.connections == 2


# Requests that are sent again


@pytest.mark.parametrize(("retries", "calls"), [(0, 1), (1, 2), (3, 3)])
async def test_what_was_refused_is_sent_again(server: Server, retries: int, calls: int) -> None:
    """As often as the setting says, if the broker is unavailable."""
    server.statuses = [503, 503]
    async with kernelbroker.connect(server.url, "t", retries=retries) as client:
        if retries < 2:
            with pytest.raises(kernelbroker.Unavailable, match="No room"):
                await client.health()
        else:
            assert await client.health() == {"status": "ok"}
    assert len(server.requests) == calls


async def test_what_may_have_begun_is_not(server: Server) -> None:
    """A request that is no repetition of itself is sent once, also if it was refused."""
    server.statuses = [503]
    async with kernelbroker.connect(server.url, "t", retries=3) as client:
        with pytest.raises(kernelbroker.Unavailable, match="No room"):
            await client.assess("1")
    assert len(server.requests) == 1


async def test_a_broker_that_starts_is_waited_for(server: Server, make_server: Callable) -> None:
    """No connection is no failure, while there are retries."""
    with pytest.raises(kernelbroker.ConnectionFailed, match="Is the broker running"):
        await kernelbroker.connect("http://127.0.0.1:1", "t").health()
    async with kernelbroker.connect("http://127.0.0.1:1", "t", retries=5) as client:
        task = asyncio.create_task(client.health())
        await asyncio.sleep(0.1)
        client._address.connections._port = server.port  # it listens now
        assert await task == {"status": "ok"}


async def test_a_session_is_given_up_after_the_timeout(connected, scripts, monkeypatch) -> None:
    """`reconnect_timeout` bounds the wait for a broker that is away."""
    monkeypatch.setattr("kernelbroker.websocket.FURTHER_DELAYS", [0.05] * 1000)
    connected.cells["c"] = scripts.forever
    async with (
        kernelbroker.connect(reconnect_timeout=0.5) as broker,
        broker.session() as session,
    ):
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: session.info and connected.received)
        connected.is_up = False
        connected.drop()
        began = time.monotonic()
        with pytest.raises(kernelbroker.ConnectionLost, match="could not be replaced"):
            await running
        assert 0.3 < time.monotonic() - began < 10
    assert connected.requests.count("/api/v1/ws") > 3


# Proxies


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_a_proxy_gets_the_requests(server: Server, monkeypatch, name: str) -> None:
    """With the broker's whole address, and with the proxy's own credentials."""
    if name == "HTTP_PROXY":
        monkeypatch.setenv(name.lower(), f"http://bob:a%20b@127.0.0.1:{server.port}")
    else:
        monkeypatch.setenv(name, f"http://bob:a%20b@127.0.0.1:{server.port}")
    async with kernelbroker.connect("http://broker.test:8720", "t") as client:
        for _ in range(3):
            assert await client.health() == {"status": "ok"}
    assert server.connections == 1
    assert server.requests[0].startswith("GET http://broker.test:8720/health HTTP/1.1\r\n")
    assert "\r\nHost: broker.test:8720\r\n" in server.requests[0]
    assert "\r\nProxy-Authorization: Basic Ym9iOmEgYg==\r\n" in server.requests[2]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.9.1", "[::1]", "a.localhost"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_proxy_for_this_machine(monkeypatch, host: str, scheme: str) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    connections = HTTPConnections(f"{scheme}://{host}:8720", lambda: None)
    assert connections.proxy is None


@pytest.mark.parametrize(
    ("address", "proxies", "expected"),
    [
        ("http://broker.test", {"http_proxy": "p:3128"}, "http://p:3128"),
        ("http://broker.test", {"https_proxy": "http://p:3128"}, None),
        ("https://broker.test", {"https_proxy": "http://p:3128"}, "http://p:3128"),
        ("https://broker.test", {"http_proxy": "http://p:3128"}, None),
        ("https://broker.test", {"all_proxy": "http://p:3128"}, "http://p:3128"),
        ("http://broker.test", {"http_proxy": "http://p", "no_proxy": ".test"}, None),
        ("http://broker.test", {"http_proxy": "http://p", "no_proxy": "other"}, "http://p"),
        ("http://broker.test", {"http_proxy": "http://p", "no_proxy": "*"}, None),
        ("http://broker.test", {}, None),
    ],
)
def test_which_proxy(monkeypatch, address: str, proxies: dict, expected: str | None) -> None:
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    assert HTTPConnections(address, lambda: None).proxy == expected


async def test_other_kinds_of_proxies_are_refused(monkeypatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://bob:secret@proxy.test:1080")
    async with kernelbroker.connect("http://broker.test", "t") as client:
        with pytest.raises(kernelbroker.ConnectionFailed, match=r"proxy proxy\.test:1080") as told:
            await client.health()
        with pytest.raises(kernelbroker.ConnectionFailed, match=r"proxy proxy\.test:1080"):
            await client.run("1")
    assert "secret" not in str(told.value)


async def test_a_session_goes_through_the_proxy(connected, server: Server, monkeypatch) -> None:
    """WebSockets too."""
    server.tunnels_to = connected.port
    monkeypatch.setenv("http_proxy", server.url)
    async with (
        kernelbroker.connect(f"http://broker.test:{connected.port}") as client,
        client.session() as session,
    ):
        assert (await session.run("c")).success
    assert server.requests[0].startswith(f"CONNECT broker.test:{connected.port} HTTP/1.1\r\n")
