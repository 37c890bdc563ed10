"""The egress proxy on a real socket, with real servers: relayed requests, refusals, and audit records."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from kernelbroker_server import supervisor as supervisor_module
from kernelbroker_server.audit import Audit
from kernelbroker_server.backends.sockets import listen
from kernelbroker_server.egress import proxy as proxy_module
from kernelbroker_server.egress.connection import ProxyLimits
from kernelbroker_server.egress.proxy import Proxy, ProxyListener, limits_per_sandbox
from kernelbroker_server.supervisor import Supervisor

from tests.support.upstream import Names, Page, Upstream, serving_http
from tests.support.waiting import broker_tasks, until

DEADLINE_S = 30.0
HOST = "files.example.org"
METADATA = "169.254.169.254"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with tempfile.TemporaryDirectory() as directory, serving_http(Path(directory), HOST) as server:
        yield server


@dataclass
class World:
    listener: ProxyListener
    path: Path
    names: Names
    log: Path
    supervisor: Supervisor = field(default_factory=Supervisor)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self.path))

    async def ask(self, data: bytes) -> bytes:
        """Send these bytes and read to the end."""
        reader, writer = await self.open()
        try:
            writer.write(data)
            async with asyncio.timeout(DEADLINE_S):
                return await reader.read()
        finally:
            writer.close()

    async def get(self, url: str, *headers: str, method: str = "GET", body: str = "") -> bytes:
        host = url.partition("://")[2].partition("/")[0]
        lines = [f"{method} {url} HTTP/1.1", f"Host: {host}", *headers, "", body]
        return await self.ask("\r\n".join(lines).encode())

    async def connect(self, authority: str = f"{HOST}:443") -> bytes:
        """The response to a CONNECT request that is refused."""
        return await self.ask(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())

    async def tunnel(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """An open tunnel, before its first byte."""
        reader, writer = await self.open()
        writer.write(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.readuntil(b"\r\n\r\n")
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
        return reader, writer

    async def records(self, count: int) -> list[dict[str, Any]]:
        """All audit records, as soon as there are `count` of them."""
        records: list[dict[str, Any]] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(records) < count:
                await asyncio.sleep(0.01)
                if self.log.exists():
                    records = [json.loads(line) for line in self.log.read_text().splitlines()]
        assert len(records) == count
        return records

    async def record(self) -> dict[str, Any]:
        return (await self.records(1))[0]


@asynccontextmanager
async def proxy(
    addresses: dict[str, list[Any]], private: str = "127.0.0.0/8", **limits: Any
) -> AsyncIterator[World]:
    """A proxy listener; it must leave nothing behind when it is closed."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        path, log = Path(directory, "out.sock"), Path(directory, "audit.log")
        names, audit = Names(addresses), Audit(log)
        networks = [ip_network(private)] if private else []
        supervisor = Supervisor()
        server = Proxy(audit, networks, names, ProxyLimits(**limits), supervisor)
        allow = [HOST, "*.example.com"]
        listener = server.open(listen(path), sandbox="s1", template="default", allow=allow)
        try:
            yield World(listener, path, names, log, supervisor)
        finally:
            await listener.close()
            await listener.close()  # which does no harm
            audit.close()
            assert broker_tasks() == set()


@pytest.fixture
async def world(upstream: Upstream) -> AsyncIterator[World]:
    upstream.seen.clear()
    async with proxy({HOST: [[upstream.address]]}) as world:
        yield world


# What comes through


async def test_a_plain_request_is_relayed(world: World, upstream: Upstream) -> None:
    """It reaches the server in origin form, and the response comes back with `Connection: close`."""
    upstream.pages["/a"] = Page(b"hello", headers={"X-Own": "1", "Connection": "keep-alive"})
    answer = await world.get(f"http://{HOST.upper()}/a?b=c")
    start, _, body = answer.partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"x-own: 1" in start.lower()
    assert b"connection: close" in start.lower()
    assert b"keep-alive" not in start
    assert body == b"hello"
    assert upstream.seen == [("http", "GET", "/a?b=c", HOST, b"")]
    record = await world.record()
    assert record.pop("time").endswith("+00:00")
    assert record.pop("duration_s") >= 0
    assert record.pop("bytes_up") > 0
    assert record.pop("bytes_down") > len(body)
    assert record == {
        "event": "network.request",
        "template": "default",
        "sandbox": "s1",
        "method": "GET",
        "host": HOST,
        "port": 80,
        "address": upstream.address,
        "outcome": "allowed",
        "reason": None,
    }


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Length: 3"], "abc"),
        (["Transfer-Encoding: chunked"], "1\r\na\r\n2;x=y\r\nbc\r\n0\r\nTrailer: x\r\n\r\n"),
    ],
)
async def test_a_body_is_relayed(
    world: World, upstream: Upstream, headers: list[str], body: str
) -> None:
    """A body reaches the server, with a length or chunked."""
    upstream.pages["/up"] = Page(b"thanks")
    answer = await world.get(f"http://{HOST}/up", *headers, method="POST", body=body)
    assert answer.endswith(b"thanks")
    assert upstream.seen == [("http", "POST", "/up", HOST, b"abc")]


async def test_expect_100_continue_is_answered_once(world: World, upstream: Upstream) -> None:
    """A client that expects 100 Continue gets it, once."""
    upstream.pages["/up"] = Page(b"thanks")
    reader, writer = await world.open()
    lines = [f"PUT http://{HOST}/up HTTP/1.1", f"Host: {HOST}", "Content-Length: 3"]
    writer.write("\r\n".join([*lines, "Expect: 100-continue", "", ""]).encode())
    async with asyncio.timeout(DEADLINE_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"abc")
        assert (await reader.read()).endswith(b"thanks")
    writer.close()
    assert upstream.seen[0][4] == b"abc"


async def test_a_connection_carries_one_request(world: World, upstream: Upstream) -> None:
    """Bytes after the first request reach no server."""
    upstream.pages["/a"] = Page(b"hello")
    second = f"GET http://{HOST}/b HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
    await world.get(f"http://{HOST}/a", "Content-Length: 3", method="POST", body="abc" + second)
    assert [path for _, _, path, _, _ in upstream.seen] == ["/a"]


async def test_a_redirect_is_not_followed(world: World, upstream: Upstream) -> None:
    """A redirect goes back to the client; the next request is checked on its own."""
    there = {"Location": f"http://{METADATA}/latest"}
    upstream.pages["/away"] = Page(b"", status=302, headers=there)
    answer = await world.get(f"http://{HOST}/away")
    assert answer.startswith(b"HTTP/1.1 302 ")
    assert len(upstream.seen) == 1
    assert (await world.get(f"http://{METADATA}/latest")).startswith(b"HTTP/1.1 403 ")


async def test_a_response_to_head_has_no_body(world: World, upstream: Upstream) -> None:
    """The response to HEAD has a length and no body."""
    upstream.pages["/a"] = Page(b"hello")
    answer = await world.get(f"http://{HOST}/a", method="HEAD")
    assert b"content-length: 5" in answer.lower()
    assert answer.endswith(b"\r\n\r\n")


def over_tls(path: Path, upstream: Upstream, request: bytes, name: str = HOST) -> bytes:
    """Send a request through a tunnel, and return the response."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(DEADLINE_S)
        raw.connect(str(path))
        raw.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 200 ")
        context = ssl.create_default_context(cafile=upstream.ca)
        with context.wrap_socket(raw, server_hostname=name) as secure:
            secure.sendall(request)
            answer = bytearray()
            while data := secure.recv(65536):
                answer += data
            return bytes(answer)


async def test_a_tunnel_relays_tls_unchanged(world: World, upstream: Upstream) -> None:
    """TLS for the requested name passes unchanged, also large responses."""
    upstream.pages["/big"] = Page(bytes(20_000_000), headers={"Connection": "close"})
    request = f"GET /big HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    answer = await asyncio.to_thread(over_tls, world.path, upstream, request)
    assert len(answer.partition(b"\r\n\r\n")[2]) == 20_000_000
    assert upstream.seen[0][0] == "https"
    record = await world.record()
    assert (record["method"], record["port"], record["outcome"]) == ("CONNECT", 443, "allowed")
    assert record["bytes_down"] > 20_000_000
    assert 0 < record["bytes_up"] < 10_000


# What does not


async def test_a_tunnel_with_another_server_name_gets_an_alert(
    world: World, upstream: Upstream
) -> None:
    """TLS for another server than the tunnel's is answered by an alert, before any byte is relayed."""
    with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
        await asyncio.to_thread(over_tls, world.path, upstream, b"", "a.example.com")
    record = await world.record()
    assert (record["outcome"], record["reason"]) == ("refused", "not_tls_for_host")
    assert (record["host"], record["bytes_up"]) == (HOST, 0)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-x\r\n"])
async def test_a_tunnel_without_tls_is_closed(world: World, data: bytes) -> None:
    """Anything but TLS ends the tunnel and reaches no server."""
    reader, writer = await world.tunnel()
    writer.write(data)
    async with asyncio.timeout(DEADLINE_S):
        assert (await reader.read()).startswith(b"\x15\x03")
    writer.close()
    record = await world.record()
    assert (record["reason"], record["bytes_up"]) == ("not_tls_for_host", 0)


async def test_a_refusal_says_what_to_do(world: World) -> None:
    """Status line and body name the host and what to do; the name is not resolved."""
    for answer in (await world.get("http://pypi.org/simple"), await world.connect("pypi.org:443")):
        start, _, body = answer.decode().partition("\r\n\r\n")
        text = "kernelbroker: pypi.org is not in `allow` of the template default: ask your operator"
        assert start.startswith(f"HTTP/1.1 403 {text}")
        assert "Connection: close" in start
        assert body.startswith(text)
    assert world.names.asked == []
    outcomes = [(r["outcome"], r["reason"], r["host"], r["method"]) for r in await world.records(2)]
    assert outcomes == [
        ("refused", "not_listed", "pypi.org", "GET"),
        ("refused", "not_listed", "pypi.org", "CONNECT"),
    ]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "::1",
        METADATA,
        "10.0.0.1",
        "172.17.0.1",
        "100.64.0.1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "fe80::1%eth0",
        "0.0.0.0",
    ],
)
async def test_a_name_with_a_private_address_is_refused(address: str) -> None:
    """An allowed name with an address that is not public is refused, for both kinds of request."""
    async with proxy({HOST: [["1.1.1.1", address]]}, private="") as world:
        for answer in (await world.connect(), await world.get(f"http://{HOST}/")):
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"private_networks" in answer
        records = await world.records(2)
        assert {r["reason"] for r in records} == {"private_address"}
        assert {r["address"] for r in records} == {None}


async def test_a_name_is_resolved_once(upstream: Upstream) -> None:
    """The proxy connects to the address that it checked."""
    answers: list[Any] = [[upstream.address], [METADATA]]
    async with proxy({HOST: answers}) as world:
        assert (await world.get(f"http://{HOST}/")).startswith(b"HTTP/1.1 404 ")
        assert world.names.asked == [HOST]
        assert (await world.get(f"http://{HOST}/")).startswith(b"HTTP/1.1 403 ")
        assert [r["address"] for r in await world.records(2)] == [upstream.address, None]


async def test_an_unreachable_host_is_a_502(upstream: Upstream) -> None:
    """A name without an address, or a host that refuses connections, is a 502 that says so."""
    nobody = "127.77.77.77"
    async with proxy({HOST: [[nobody]]}) as world:
        assert b"502 kernelbroker: files.example.org cannot be reached" in await world.connect()
        assert b"502 kernelbroker: a.example.com has no address" in await world.get(
            "http://a.example.com/"
        )
        reasons = [(r["outcome"], r["reason"]) for r in await world.records(2)]
        assert reasons == [("failed", "not_connected"), ("failed", "not_resolved")]


async def test_the_next_address_is_tried(upstream: Upstream) -> None:
    """If one address does not answer, the next one is tried."""
    async with proxy({HOST: [["127.77.77.77", upstream.address]]}) as world:
        assert (await world.get(f"http://{HOST}/")).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: files.example.org\r\n\r\n", 400),
        (b"GET / HTTP/3.7\r\nHost: files.example.org\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET http://files.example.org/ HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"a" * 100_000, 431),
        (b"POST http://files.example.org/ HTTP/1.1\r\nHost: files.example.org\r\n"
         b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"POST http://files.example.org/ HTTP/1.1\r\nHost: files.example.org\r\n"
         b"Transfer-Encoding: chunked\r\n\r\nno chunk\r\n", 400),
        (b"POST http://files.example.org/ HTTP/1.1\r\nHost: files.example.org\r\n"
         b"Transfer-Encoding: chunked, identity\r\n\r\n", 400),
    ],
)  # fmt: skip
async def test_an_invalid_request_is_refused(world: World, data: bytes, status: int) -> None:
    """It gets a reason and is recorded."""
    answer = await world.ask(data)
    assert answer.startswith(b"HTTP/1.1 %d kernelbroker: " % status)
    assert (await world.record())["outcome"] == "refused"


async def test_a_client_that_hangs_up_leaves_nothing(world: World, upstream: Upstream) -> None:
    """A client that leaves during a request or a tunnel leaves no connection behind."""
    _, writer = await world.open()
    writer.close()
    _, writer = await world.tunnel()
    writer.close()
    reader, writer = await world.open()
    writer.write(b"GET http://files")
    writer.write_eof()
    async with asyncio.timeout(DEADLINE_S):
        assert b"the request is truncated" in await reader.read()
    writer.close()


async def test_a_response_before_the_body_is_relayed(upstream: Upstream) -> None:
    """A server may refuse a body before it has been sent."""
    data = b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nshort"
    async with speaking(data) as address, proxy({HOST: [[address]]}) as world:
        length = "Content-Length: 1000000"
        answer = await world.get(f"http://{HOST}/", length, method="POST", body="begin")
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.endswith(b"short")


# Broken servers


@asynccontextmanager
async def speaking(answer: bytes | None) -> AsyncIterator[str]:
    """A server on port 80 of its own address that sends these bytes and closes, or stays silent."""
    address = "127.88.88.88"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, address, 80)
    async with server:
        yield address


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 "]
)
async def test_a_response_that_is_not_http_is_a_502(answer: bytes) -> None:
    """A server that does not speak HTTP is a 502."""
    async with speaking(answer) as address, proxy({HOST: [[address]]}) as world:
        assert b"502 kernelbroker: files.example.org does not" in await world.get(f"http://{HOST}/")
        assert (await world.record())["reason"] == "broken_answer"


async def test_a_truncated_response_stays_truncated() -> None:
    """The client can tell that a response is incomplete."""
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
    async with speaking(data) as address, proxy({HOST: [[address]]}) as world:
        answer = await world.get(f"http://{HOST}/")
        assert b"content-length: 10" in answer.lower()
        assert answer.endswith(b"half")
        assert (await world.record())["outcome"] == "failed"


async def test_a_response_without_a_length_is_relayed() -> None:
    """A response that ends with its connection is relayed completely."""
    data = b"HTTP/1.0 200 OK\r\n\r\nall of it"
    async with speaking(data) as address, proxy({HOST: [[address]]}) as world:
        answer = await world.get(f"http://{HOST}/")
        assert b"all of it" in answer
        assert (await world.record())["outcome"] == "allowed"


async def test_a_silent_server_is_a_504() -> None:
    """A server that never answers is a 504."""
    async with speaking(None) as address, proxy({HOST: [[address]]}, idle_timeout=0.2) as world:
        answer = await world.get(f"http://{HOST}/")
        assert b"504 kernelbroker: files.example.org does not answer" in answer


# Bounds


async def test_a_silent_client_is_disconnected() -> None:
    """A connection on which no request arrives is closed."""
    async with proxy({}, head_timeout=0.2) as world:
        assert b" 408 " in await world.ask(b"GET ")


async def test_an_idle_tunnel_is_closed(upstream: Upstream) -> None:
    """A tunnel is closed when it is idle for too long, and when it is too old."""
    for limit in ({"idle_timeout": 0.2}, {"total_timeout": 0.2}):
        async with proxy({HOST: [[upstream.address]]}, **limit) as world:
            reader, writer = await world.tunnel()
            async with asyncio.timeout(DEADLINE_S):
                assert await reader.read() == b""
            writer.close()


async def test_connections_are_bounded(upstream: Upstream) -> None:
    """A connection beyond the limit waits until another one ends."""
    async with proxy({HOST: [[upstream.address]]}, connections=2) as world:
        tunnels = [await world.tunnel() for _ in range(2)]
        third = asyncio.create_task(world.get("http://pypi.org/"))
        await asyncio.sleep(0.1)  # there is no event for what does not happen
        assert not third.done()
        tunnels[0][1].close()
        assert b" 403 " in await third
        tunnels[1][1].close()


@pytest.mark.parametrize(
    ("sandboxes", "connections"), [(0, 32), (8, 32), (9, 28), (32, 8), (1000, 8)]
)
def test_connections_are_shared_among_sandboxes(sandboxes: int, connections: int) -> None:
    """Each sandbox has an equal share, and a few connections in any case."""
    assert limits_per_sandbox(sandboxes).connections == connections


async def test_a_sandbox_cannot_use_the_share_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox is served however many connections the others keep open."""
    monkeypatch.setattr(proxy_module, "_MAX_CONNECTIONS", 32)
    limits = dataclasses.replace(limits_per_sandbox(4), head_timeout=10 * DEADLINE_S)
    server = Proxy(resolve=Names({}), limits=limits)
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        paths = [Path(directory, f"{number}.sock") for number in range(4)]
        *greedy, modest = [server.open(listen(path), path.stem, "web", [HOST]) for path in paths]
        opened = [
            await asyncio.open_unix_connection(str(path)) for path in paths[:3] for _ in range(12)
        ]
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: sum(len(listener._connections) for listener in greedy) == 24)
        try:
            neighbour = World(modest, paths[3], Names({}), Path(directory, "none"))
            assert b" 403 " in await neighbour.get("http://pypi.org/")
        finally:
            for _, writer in opened:
                writer.close()
            for listener in (*greedy, modest):
                await listener.close()


async def test_requests_are_rate_limited() -> None:
    """After a burst, connections are accepted at their rate, and none is lost."""
    async with proxy({}, burst=2, rate=20) as world:
        started = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(world.get("http://pypi.org/") for _ in range(8)))
        assert all(b" 403 " in answer for answer in answers)
        assert asyncio.get_running_loop().time() - started > 0.2
        await world.records(8)


async def test_a_client_that_does_not_read_slows_the_server(
    world: World, upstream: Upstream
) -> None:
    """What the client does not read is not fetched from the server."""
    upstream.pages["/big"] = Page(bytes(50_000_000))
    _, writer = await world.open()
    writer.write(f"GET http://{HOST}/big HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    async with asyncio.timeout(DEADLINE_S):
        while not upstream.seen:  # noqa: ASYNC110 - in a thread of its own
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # for it to send what it can
    writer.transport.abort()
    assert (await world.record())["bytes_down"] < 20_000_000


async def test_close_ends_open_tunnels(upstream: Upstream) -> None:
    """A listener that is closed ends its tunnels and records them."""
    async with proxy({HOST: [[upstream.address]]}) as world:
        reader, writer = await world.tunnel()
        await world.listener.close()
        assert (await world.record())["host"] == HOST
        assert await reader.read() == b""
        writer.close()


async def test_accepting_goes_on_after_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors of accepting show that the broker is degraded; later connections are served."""
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (0.0,))
    loop, failures = asyncio.get_running_loop(), 5  # more than there are connections
    accept = loop.sock_accept

    async def no_descriptor_left(listener: socket.socket) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", no_descriptor_left)
    async with proxy({}, connections=2) as world:
        assert b" 403 " in await world.get("http://pypi.org/")
        assert failures == 0
        assert [task.name for task in world.supervisor.failing()] == ["egress listener"]
    assert "the background task 'egress listener' failed" in caplog.text
    assert "while accepting a connection of sandbox s1" in caplog.text
