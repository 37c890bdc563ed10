"""The proxy on a real socket, before real servers: what comes through, what does not, and the record."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from kernelbroker_server.audit import Audit
from kernelbroker_server.backends.sockets import listen
from kernelbroker_server.egress import proxy as proxy_module
from kernelbroker_server.egress.passage import Limits
from kernelbroker_server.egress.proxy import Door, Proxy, limits_among

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
    door: Door
    path: Path
    names: Names
    log: Path

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self.path))

    async def ask(self, data: bytes) -> bytes:
        """Send this, and read to the end."""
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
        """The answer to a tunnel that was refused."""
        return await self.ask(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())

    async def tunnel(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that is open, before its first byte."""
        reader, writer = await self.open()
        writer.write(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.readuntil(b"\r\n\r\n")
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
        return reader, writer

    async def records(self, count: int) -> list[dict[str, Any]]:
        """All that there are, once there are so many: each comes after its connection's end."""
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
    """When it is closed, nothing of it may be left."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        path, log = Path(directory, "out.sock"), Path(directory, "audit.log")
        names, audit = Names(addresses), Audit(log)
        networks = [ip_network(private)] if private else []
        server = Proxy(audit, networks, names, Limits(**limits))
        allow = [HOST, "*.example.com"]
        door = server.open(listen(path), sandbox="s1", template="default", allow=allow)
        try:
            yield World(door, path, names, log)
        finally:
            await door.close()
            await door.close()  # which does no harm
            audit.close()
            assert broker_tasks() == set()


@pytest.fixture
async def world(upstream: Upstream) -> AsyncIterator[World]:
    upstream.seen.clear()
    async with proxy({HOST: [[upstream.address]]}) as world:
        yield world


# What comes through


async def test_a_plain_request(world: World, upstream: Upstream) -> None:
    """It reaches the server in origin form, and the answer comes back, marked as the last one."""
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
async def test_a_body(world: World, upstream: Upstream, headers: list[str], body: str) -> None:
    """A body reaches the server, whichever way its length is told."""
    upstream.pages["/up"] = Page(b"thanks")
    answer = await world.get(f"http://{HOST}/up", *headers, method="POST", body=body)
    assert answer.endswith(b"thanks")
    assert upstream.seen == [("http", "POST", "/up", HOST, b"abc")]


async def test_a_body_that_waits_to_be_asked_for(world: World, upstream: Upstream) -> None:
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


async def test_only_one_request_a_connection(world: World, upstream: Upstream) -> None:
    """What follows the first request reaches nobody."""
    upstream.pages["/a"] = Page(b"hello")
    second = f"GET http://{HOST}/b HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
    await world.get(f"http://{HOST}/a", "Content-Length: 3", method="POST", body="abc" + second)
    assert [path for _, _, path, _, _ in upstream.seen] == ["/a"]


async def test_a_redirect_is_judged_anew(world: World, upstream: Upstream) -> None:
    """A redirect is only told; where it leads is a request of its own."""
    there = {"Location": f"http://{METADATA}/latest"}
    upstream.pages["/away"] = Page(b"", status=302, headers=there)
    answer = await world.get(f"http://{HOST}/away")
    assert answer.startswith(b"HTTP/1.1 302 ")
    assert len(upstream.seen) == 1
    assert (await world.get(f"http://{METADATA}/latest")).startswith(b"HTTP/1.1 403 ")


async def test_a_head_request(world: World, upstream: Upstream) -> None:
    """The answer to HEAD has a length and no body."""
    upstream.pages["/a"] = Page(b"hello")
    answer = await world.get(f"http://{HOST}/a", method="HEAD")
    assert b"content-length: 5" in answer.lower()
    assert answer.endswith(b"\r\n\r\n")


def over_tls(path: Path, upstream: Upstream, request: bytes, name: str = HOST) -> bytes:
    """A request in a tunnel, as any client makes it."""
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


async def test_a_tunnel(world: World, upstream: Upstream) -> None:
    """TLS for the name that was asked for goes through untouched, large answers too."""
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


async def test_another_name_within_the_tunnel(world: World, upstream: Upstream) -> None:
    """TLS for another server than the tunnel's is answered by an alert, before a byte is sent on."""
    with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
        await asyncio.to_thread(over_tls, world.path, upstream, b"", "a.example.com")
    record = await world.record()
    assert (record["outcome"], record["reason"]) == ("refused", "not_tls_for_host")
    assert (record["host"], record["bytes_up"]) == (HOST, 0)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-x\r\n"])
async def test_no_tls_within_the_tunnel(world: World, data: bytes) -> None:
    """Anything but TLS ends the tunnel, and reaches nobody."""
    reader, writer = await world.tunnel()
    writer.write(data)
    async with asyncio.timeout(DEADLINE_S):
        assert (await reader.read()).startswith(b"\x15\x03")
    writer.close()
    record = await world.record()
    assert (record["reason"], record["bytes_up"]) == ("not_tls_for_host", 0)


async def test_a_refusal_tells_why(world: World) -> None:
    """Status line and body name the host and what to do; nobody is asked for its address."""
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
async def test_a_name_that_leads_inside(address: str) -> None:
    """A name of the list at an address that is not public is refused, on either way."""
    async with proxy({HOST: [["1.1.1.1", address]]}, private="") as world:
        for answer in (await world.connect(), await world.get(f"http://{HOST}/")):
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"private_networks" in answer
        records = await world.records(2)
        assert {r["reason"] for r in records} == {"private_address"}
        assert {r["address"] for r in records} == {None}


async def test_a_name_that_changes_its_address(upstream: Upstream) -> None:
    """A name is looked up once for a request, and what was checked is what is connected to."""
    answers: list[Any] = [[upstream.address], [METADATA]]
    async with proxy({HOST: answers}) as world:
        assert (await world.get(f"http://{HOST}/")).startswith(b"HTTP/1.1 404 ")
        assert world.names.asked == [HOST]
        assert (await world.get(f"http://{HOST}/")).startswith(b"HTTP/1.1 403 ")
        assert [r["address"] for r in await world.records(2)] == [upstream.address, None]


async def test_where_nobody_is(upstream: Upstream) -> None:
    """A name without an address, or a host that does not listen, is a 502 that says so."""
    nobody = "127.77.77.77"
    async with proxy({HOST: [[nobody]]}) as world:
        assert b"502 kernelbroker: files.example.org cannot be reached" in await world.connect()
        assert b"502 kernelbroker: a.example.com has no address" in await world.get(
            "http://a.example.com/"
        )
        reasons = [(r["outcome"], r["reason"]) for r in await world.records(2)]
        assert reasons == [("failed", "not_connected"), ("failed", "not_resolved")]


async def test_the_second_address_counts(upstream: Upstream) -> None:
    """Where one address does not answer, the next one is tried."""
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
async def test_what_is_no_request(world: World, data: bytes, status: int) -> None:
    """Anything else is refused with a reason, and recorded."""
    answer = await world.ask(data)
    assert answer.startswith(b"HTTP/1.1 %d kernelbroker: " % status)
    assert (await world.record())["outcome"] == "refused"


async def test_a_client_that_hangs_up(world: World, upstream: Upstream) -> None:
    """Who leaves in the middle of a request or a tunnel leaves nothing behind."""
    _, writer = await world.open()
    writer.close()
    _, writer = await world.tunnel()
    writer.close()
    reader, writer = await world.open()
    writer.write(b"GET http://files")
    writer.write_eof()
    async with asyncio.timeout(DEADLINE_S):
        assert b"the request is cut" in await reader.read()
    writer.close()


async def test_an_answer_before_the_body(upstream: Upstream) -> None:
    """A server that refuses a body before it has come is heard."""
    data = b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nshort"
    async with speaking(data) as address, proxy({HOST: [[address]]}) as world:
        length = "Content-Length: 1000000"
        answer = await world.get(f"http://{HOST}/", length, method="POST", body="begin")
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.endswith(b"short")


# Broken servers


@asynccontextmanager
async def speaking(answer: bytes | None) -> AsyncIterator[str]:
    """A server on port 80 of an address of its own that says this and hangs up, or is silent."""
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
async def test_an_answer_that_is_none(answer: bytes) -> None:
    """A server that does not speak HTTP is a 502."""
    async with speaking(answer) as address, proxy({HOST: [[address]]}) as world:
        assert b"502 kernelbroker: files.example.org does not" in await world.get(f"http://{HOST}/")
        assert (await world.record())["reason"] == "broken_answer"


async def test_an_answer_that_is_cut() -> None:
    """A client sees that an answer is not whole."""
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
    async with speaking(data) as address, proxy({HOST: [[address]]}) as world:
        answer = await world.get(f"http://{HOST}/")
        assert b"content-length: 10" in answer.lower()
        assert answer.endswith(b"half")
        assert (await world.record())["outcome"] == "failed"


async def test_an_answer_without_an_end() -> None:
    """An answer that ends with its connection is passed on whole."""
    data = b"HTTP/1.0 200 OK\r\n\r\nall of it"
    async with speaking(data) as address, proxy({HOST: [[address]]}) as world:
        answer = await world.get(f"http://{HOST}/")
        assert b"all of it" in answer
        assert (await world.record())["outcome"] == "allowed"


async def test_a_silent_server() -> None:
    """A server that never answers is a 504 in the end."""
    async with speaking(None) as address, proxy({HOST: [[address]]}, idle_timeout=0.2) as world:
        answer = await world.get(f"http://{HOST}/")
        assert b"504 kernelbroker: files.example.org does not answer" in answer


# Bounds


async def test_a_silent_client() -> None:
    """A connection on which no request comes is closed."""
    async with proxy({}, head_timeout=0.2) as world:
        assert b" 408 " in await world.ask(b"GET ")


async def test_an_idle_tunnel(upstream: Upstream) -> None:
    """A tunnel without a byte is closed, and so is one that is older than it may be."""
    for limit in ({"idle_timeout": 0.2}, {"total_timeout": 0.2}):
        async with proxy({HOST: [[upstream.address]]}, **limit) as world:
            reader, writer = await world.tunnel()
            async with asyncio.timeout(DEADLINE_S):
                assert await reader.read() == b""
            writer.close()


async def test_connections_are_bounded(upstream: Upstream) -> None:
    """Who opens too many waits until one of them ends, and is served then."""
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
def test_connections_are_shared_out(sandboxes: int, connections: int) -> None:
    """Each sandbox has its share of all that there may be, and a few in any case."""
    assert limits_among(sandboxes).connections == connections


async def test_none_takes_what_is_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections the others open and keep, a sandbox is answered."""
    monkeypatch.setattr(proxy_module, "_MAX_PASSAGES", 32)
    limits = dataclasses.replace(limits_among(4), head_timeout=10 * DEADLINE_S)
    server = Proxy(resolve=Names({}), limits=limits)
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        paths = [Path(directory, f"{number}.sock") for number in range(4)]
        *greedy, modest = [server.open(listen(path), path.stem, "web", [HOST]) for path in paths]
        opened = [
            await asyncio.open_unix_connection(str(path)) for path in paths[:3] for _ in range(12)
        ]
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: sum(len(door._passages) for door in greedy) == 24)
        try:
            neighbour = World(modest, paths[3], Names({}), Path(directory, "none"))
            assert b" 403 " in await neighbour.get("http://pypi.org/")
        finally:
            for _, writer in opened:
                writer.close()
            for door in (*greedy, modest):
                await door.close()


async def test_requests_are_paced() -> None:
    """After a burst requests come through at their rate, and none is lost."""
    async with proxy({}, burst=2, rate=20) as world:
        started = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(world.get("http://pypi.org/") for _ in range(8)))
        assert all(b" 403 " in answer for answer in answers)
        assert asyncio.get_running_loop().time() - started > 0.2
        await world.records(8)


async def test_a_client_that_does_not_read(world: World, upstream: Upstream) -> None:
    """What is not read is not fetched: the server waits, and the broker keeps next to nothing."""
    upstream.pages["/big"] = Page(bytes(50_000_000))
    _, writer = await world.open()
    writer.write(f"GET http://{HOST}/big HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    async with asyncio.timeout(DEADLINE_S):
        while not upstream.seen:  # noqa: ASYNC110 - in a thread of its own
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # for it to send what it can
    writer.transport.abort()
    assert (await world.record())["bytes_down"] < 20_000_000


async def test_closing_ends_what_is_open(upstream: Upstream) -> None:
    """A door that closes ends its tunnels and records them."""
    async with proxy({HOST: [[upstream.address]]}) as world:
        reader, writer = await world.tunnel()
        await world.door.close()
        assert (await world.record())["host"] == HOST
        assert await reader.read() == b""
        writer.close()
