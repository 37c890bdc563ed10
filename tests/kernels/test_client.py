"""The channel to a gateway: one that behaves, and those that do not."""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from kernelbroker_server.kernels.client import ChannelClosed, KernelClient
from kernelbroker_server.kernels.endpoint import TcpEndpoint, UnixEndpoint
from kernelbroker_server.kernels.framing import Incoming, Outgoing
from kernelbroker_server.kernels.requests import execute_request
from tornado.iostream import IOStream, StreamClosedError
from tornado.websocket import WebSocketHandler

from tests.support.gateway import Cell, Gateway, frame, raw_frame
from tests.support.raw import CREATED, answering, flooding, switching
from tests.support.waiting import DEADLINE_S, broker_tasks, turns, until

MIB = 1024**2


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        yield Path(name)


@pytest.fixture
async def gateway(directory: Path) -> AsyncIterator[Gateway]:
    gateway = Gateway(directory / "gateway.sock")
    gateway.start()
    yield gateway
    await gateway.stop()


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """No test may leave a reader behind."""
    yield
    await turns(5)
    assert not broker_tasks()


async def opened(gateway: Gateway) -> KernelClient:
    return await KernelClient.open(UnixEndpoint(gateway.path), DEADLINE_S)


async def reason(client: KernelClient) -> str:
    """Why the channel ended, once it has; the client is closed."""
    async with asyncio.timeout(DEADLINE_S):
        why = await client.closed
    await client.close()
    return why


async def answer_of(client: KernelClient) -> list[Incoming]:
    """What a silent cell brings, up to its idle."""
    request = execute_request("pass", {})
    found: list[Incoming] = []
    ended = asyncio.Event()

    def on_message(message: Incoming) -> None:
        if message.parent_id == request.msg_id:
            found.append(message)
            if b"idle" in message.content:
                ended.set()

    client.on_message = on_message
    await client.send(request)
    async with asyncio.timeout(DEADLINE_S):
        await ended.wait()
    client.on_message = None
    return found


async def test_messages_both_ways(gateway: Gateway) -> None:
    """A request reaches the kernel, and all that it brings comes back in order."""
    client = await opened(gateway)
    found = await answer_of(client)
    assert [message.header.msg_type for message in found] == ["status", "execute_reply", "status"]
    assert [message.channel for message in found] == ["iopub", "shell", "iopub"]
    assert gateway.cells[0].code == "pass"
    await client.close()


async def test_interrupt(gateway: Gateway) -> None:
    """An interrupt is a request of its own, and wakes the kernel's loop by a message on shell."""
    client = await opened(gateway)
    interrupted = asyncio.Event()

    async def wait(cell: Cell) -> None:
        await cell.interrupted.wait()
        interrupted.set()

    gateway.scripts["wait"] = wait
    await client.send(execute_request("wait", {}))
    await client.interrupt()
    async with asyncio.timeout(DEADLINE_S):
        await interrupted.wait()
    await client.close()


async def test_interrupt_of_a_gateway_that_is_gone(gateway: Gateway) -> None:
    """To interrupt what has ended does nothing."""
    client = await opened(gateway)
    await gateway.stop()
    await client.interrupt()
    assert "closed" in await reason(client)


async def test_closed_by_the_gateway(gateway: Gateway) -> None:
    """The end of the gateway ends the channel, and later messages cannot be sent."""
    client = await opened(gateway)
    await gateway.stop()
    assert "gateway closed the channel" in await reason(client)
    with pytest.raises(ChannelClosed):
        await client.send(Outgoing("shell", "kernel_info_request", {}))


async def test_closed_midway(gateway: Gateway) -> None:
    """A gateway that ends within a frame ends the channel."""

    async def half_a_frame(handler: WebSocketHandler) -> None:
        await stream_of(handler).write(b"\x82\x7f" + (5000).to_bytes(8, "big") + b"x" * 100)
        stream_of(handler).close()

    gateway.on_channel = half_a_frame
    assert "gateway closed the channel" in await reason(await opened(gateway))


async def test_closed_by_us(gateway: Gateway) -> None:
    """To close at once, and twice, resolves `closed` and leaves nothing."""
    client = await opened(gateway)
    await client.close()
    await client.close()
    assert client.closed.done()


async def test_a_callback_that_fails(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours in handling a message ends the channel, and is logged."""
    client = await opened(gateway)

    def fail(message: Incoming) -> None:
        raise RuntimeError("a fault")

    client.on_message = fail
    await client.send(execute_request("pass", {}))
    assert await reason(client) == "a fault of the broker's own"
    assert "a fault" in caplog.text


def stream_of(handler: WebSocketHandler) -> IOStream:
    assert handler.ws_connection is not None
    return handler.ws_connection.stream  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("data", "binary"),
    [
        (b"garbage", True),
        (b"", True),
        (b"\xff" * 5000, True),
        (raw_frame([b"iopub", b"[]", b"{}", b"{}", b"{}"]), True),
        (raw_frame([b"iopub", b"[" * 100_000, b"{}", b"{}", b"{}"]), True),
        ('{"header": {}}', False),
    ],
)
async def test_frames_that_are_no_messages(
    gateway: Gateway, data: bytes | str, binary: bool
) -> None:
    """What is not a Jupyter message ends the channel, and is said to be the sandbox's fault."""

    async def garbage(handler: WebSocketHandler) -> None:
        await handler.write_message(data, binary=binary)

    gateway.on_channel = garbage
    client = await opened(gateway)
    assert "not a Jupyter message" in await reason(client)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x83\x00", b"\xf2\x01x", b"\x89\x7f"])
async def test_bytes_that_are_no_frames(gateway: Gateway, data: bytes) -> None:
    """What is not a WebSocket frame ends the channel."""

    async def garbage(handler: WebSocketHandler) -> None:
        await stream_of(handler).write(data)
        stream_of(handler).close()

    gateway.on_channel = garbage
    assert "gateway closed the channel" in await reason(await opened(gateway))


def rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def write_until_cut(handler: WebSocketHandler, data: bytes, before: int) -> int:
    """Write again and again; the growth of this process's memory until the other side hung up."""
    growth = 0
    try:
        while True:
            await stream_of(handler).write(data)
            growth = max(growth, rss() - before)
    except StreamClosedError:
        return growth


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        pytest.param(
            b"\x82\x7f" + (1024**3).to_bytes(8, "big"), b"\x00" * MIB, id="a frame of 1 GiB"
        ),
        pytest.param(
            b"\x02\x7f" + MIB.to_bytes(8, "big") + b"\x00" * MIB,
            b"\x00\x7f" + MIB.to_bytes(8, "big") + b"\x00" * MIB,
            id="a message of endless frames",
        ),
    ],
)
async def test_endless_messages(gateway: Gateway, first: bytes, rest: bytes) -> None:
    """A message larger than any gateway may pass on ends the channel, and costs no memory."""
    grown: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    before = rss()

    async def endless(handler: WebSocketHandler) -> None:
        await stream_of(handler).write(first)
        grown.set_result(await write_until_cut(handler, rest, before))

    gateway.on_channel = endless
    client = await opened(gateway)
    assert "gateway closed the channel" in await reason(client)
    async with asyncio.timeout(DEADLINE_S):
        assert await grown < 64 * MIB


async def test_gateway_that_does_not_read(gateway: Gateway) -> None:
    """A send that the gateway does not take can be given up, and the channel closed."""
    client = await opened(gateway)
    gateway.stop_reading()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            for _ in range(100):
                await client.send(execute_request("x" * MIB, {}))
    async with asyncio.timeout(1):
        await client.close()


HTTP_ANSWERS = {
    "nothing": b"",
    "garbage": b"garbage\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000,
    "huge length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    "large body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000,
    "endless chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1000\r\n" * 1
    + (b"x" * 0x1000 + b"\r\n1000\r\n") * 50,
    "status 500": b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
    "status 302": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
} | {
    f"body {body[:20]!r}": b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    for body in (b"", b"[]", b"{}", b"3", b"not JSON", b"\xff", b"[" * 60_000, b'{"id":"\\ud800"}')
}


@pytest.mark.parametrize("name", HTTP_ANSWERS)
async def test_http_answers_that_are_none(directory: Path, name: str) -> None:
    """Whatever answers the first request that is not a gateway's, the channel is not opened."""
    path = directory / "gateway.sock"

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(HTTP_ANSWERS[name])
        await writer.drain()

    async with answering(answer, path):
        with pytest.raises(ChannelClosed):
            await KernelClient.open(UnixEndpoint(path), DEADLINE_S)


@pytest.mark.parametrize(
    "second",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: ws://elsewhere.invalid/\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000,
    ],
)
async def test_handshakes_that_are_none(directory: Path, second: bytes) -> None:
    """A gateway that starts its kernel and then does not become a WebSocket is not one."""
    path = directory / "gateway.sock"

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(CREATED if head.startswith(b"POST") else second)
        await writer.drain()

    async with answering(answer, path):
        with pytest.raises(ChannelClosed):
            await KernelClient.open(UnixEndpoint(path), DEADLINE_S)


@pytest.mark.parametrize("answers_first", [False, True])
async def test_silence(directory: Path, answers_first: bool) -> None:
    """A gateway that accepts and says nothing is given up after the timeout."""
    path = directory / "gateway.sock"
    silent = asyncio.Event()

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        if answers_first and head.startswith(b"POST"):
            writer.write(CREATED)
            return
        await silent.wait()

    async with answering(answer, path):
        before = time.monotonic()
        with pytest.raises(ChannelClosed, match=r"within 0\.1 s"):
            await KernelClient.open(UnixEndpoint(path), 0.1)
        assert time.monotonic() - before < 2
        silent.set()
        await turns(5)


async def test_no_socket(directory: Path) -> None:
    """Where nothing listens, nothing is opened."""
    with pytest.raises(ChannelClosed, match="could not be reached"):
        await KernelClient.open(UnixEndpoint(directory / "none.sock"), DEADLINE_S)


async def serve_tcp(
    elsewhere: Callable[[int], bytes],
) -> tuple[list[bytes], int]:
    """Open a channel over TCP to a gateway that sends us elsewhere; heads seen, and strays."""
    heads: list[bytes] = []
    strays: list[bytes] = []

    async def stray(head: bytes, _writer: asyncio.StreamWriter) -> None:
        strays.append(head)

    async with answering(stray) as other:

        async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
            heads.append(head)
            writer.write(CREATED if head.startswith(b"POST") else elsewhere(other))
            await writer.drain()

        async with answering(answer) as port:
            with pytest.raises(ChannelClosed):
                await KernelClient.open(TcpEndpoint("127.0.0.1", port, "secret"), DEADLINE_S)
    return heads, len(strays)


async def test_redirects_lead_nowhere() -> None:
    """A hostile gateway cannot send the broker, and its token, to another address."""
    heads, strays = await serve_tcp(
        lambda other: b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:%d/\r\n\r\n" % other
    )
    assert strays == 0
    assert len(heads) == 2
    assert all(b"Authorization: token secret" in head for head in heads)


async def test_tcp(directory: Path) -> None:
    """Over TCP the token goes with every request."""
    heads: list[bytes] = []
    ended = asyncio.Event()

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        if head.startswith(b"POST"):
            writer.write(CREATED)
            return
        writer.write(switching(head))
        await writer.drain()
        await ended.wait()

    async with answering(answer) as port:
        client = await KernelClient.open(TcpEndpoint("127.0.0.1", port, "secret"), DEADLINE_S)
        await client.close()
        ended.set()
        await turns(5)
    assert len(heads) == 2
    assert all(b"Authorization: token secret" in head for head in heads)


@pytest.mark.parametrize("after", range(0, 40, 2))
async def test_cancelled_while_opening(gateway: Gateway, after: int) -> None:
    """An opening that is cancelled at any turn of the loop leaves no connection behind."""
    opening = asyncio.ensure_future(opened(gateway))
    await turns(after)
    opening.cancel()
    await asyncio.wait([opening])
    if not opening.cancelled():
        await opening.result().close()
    await until(lambda: not gateway.channels)


async def test_flood_starves_nobody(gateway: Gateway, directory: Path) -> None:
    """While one gateway sends replies that nobody asked for, another's answers come promptly."""
    reply = frame("shell", "execute_reply", "nobody's", {"status": "ok"})
    path = directory / "flood.sock"
    with flooding(path, reply, seconds=1):
        flooded = await KernelClient.open(UnixEndpoint(path), DEADLINE_S)
        received = 0

        def count(_message: Incoming) -> None:
            nonlocal received
            received += 1

        flooded.on_message = count
        other = await opened(gateway)
        slowest = 0.0
        while not flooded.closed.done():
            before = time.monotonic()
            await answer_of(other)
            slowest = max(slowest, time.monotonic() - before)
        await flooded.close()
        await other.close()
    assert received > 1000
    assert slowest < 0.5
