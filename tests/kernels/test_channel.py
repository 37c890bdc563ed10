"""Gateway connections and kernel channels, with gateways that behave and gateways that do not."""

from __future__ import annotations

import asyncio
import itertools
import resource
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from kernelbroker_kernel.contract import ALL_SENT
from kernelbroker_server.kernels.channel import ChannelClosed, KernelChannel
from kernelbroker_server.kernels.endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from kernelbroker_server.kernels.framing import Incoming, Outgoing
from kernelbroker_server.kernels.gateway import GatewayConnection
from kernelbroker_server.kernels.requests import execute_request
from tornado.iostream import IOStream, StreamClosedError
from tornado.websocket import WebSocketHandler
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosedError

from tests.support.gateway import Cell, Gateway, frame, raw_frame
from tests.support.raw import CREATED, answering, flooding, switching
from tests.support.waiting import DEADLINE_S, broker_tasks, turns, until

MIB = 1024**2


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        yield Path(name)


@pytest.fixture
async def gateway(directory: Path) -> AsyncIterator[Gateway]:
    """A scripted gateway that listens on a unix socket."""
    gateway = Gateway(directory / "gateway.sock")
    gateway.start()
    yield gateway
    await gateway.stop()


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """Fail if a test leaves a task of a reader behind."""
    yield
    await turns(5)
    assert not broker_tasks()


async def opened(endpoint: Endpoint, timeout: float = DEADLINE_S) -> KernelChannel:
    """The channel of a new kernel. A failed opening leaves nothing behind."""
    gateway = GatewayConnection(endpoint)
    try:
        return await gateway.start_kernel(timeout)
    except BaseException:
        await gateway.close()
        raise


async def reason(channel: KernelChannel) -> str:
    """Close a channel that has ended; returns the reason."""
    async with asyncio.timeout(DEADLINE_S):
        why = await channel.closed
    await channel.close()
    return why


async def answer_of(channel: KernelChannel) -> list[Incoming]:
    """Send a silent cell; returns the messages that answer it, up to its idle status."""
    request = execute_request("pass", {})
    found: list[Incoming] = []
    ended = asyncio.Event()

    def on_message(message: Incoming) -> None:
        found.append(message)
        if b"idle" in message.content:
            ended.set()

    with channel.subscribe(on_message, [request.msg_id]):
        await channel.send(request)
        async with asyncio.timeout(DEADLINE_S):
            await ended.wait()
    return found


async def test_request_and_replies(gateway: Gateway) -> None:
    """A request reaches the kernel, and its replies come back in order."""
    channel = await opened(UnixEndpoint(gateway.path))
    found = await answer_of(channel)
    assert [message.header.msg_type for message in found] == ["status", "execute_reply", "status"]
    assert [message.channel for message in found] == ["iopub", "shell", "iopub"]
    assert gateway.cells[0].code == "pass"
    await channel.close()


async def test_interrupt_wakes_the_kernel(gateway: Gateway) -> None:
    """An interrupt is an HTTP request, followed by a message on shell that wakes the kernel's loop."""
    channel = await opened(UnixEndpoint(gateway.path))
    interrupted = asyncio.Event()

    async def wait(cell: Cell) -> None:
        await cell.interrupted.wait()
        interrupted.set()

    gateway.scripts["wait"] = wait
    await channel.send(execute_request("wait", {}))
    await channel.interrupt()
    async with asyncio.timeout(DEADLINE_S):
        await interrupted.wait()
    await channel.close()


async def test_interrupt_of_a_gateway_that_is_gone(gateway: Gateway) -> None:
    """Interrupting a kernel whose gateway has ended does nothing."""
    channel = await opened(UnixEndpoint(gateway.path))
    await gateway.stop()
    await channel.interrupt()
    assert "closed" in await reason(channel)


async def test_gateway_closes_the_channel(gateway: Gateway) -> None:
    """The end of the gateway ends the channel; sending raises an error."""
    channel = await opened(UnixEndpoint(gateway.path))
    await gateway.stop()
    assert "gateway closed the channel" in await reason(channel)
    with pytest.raises(ChannelClosed):
        await channel.send(Outgoing("shell", "kernel_info_request", {}))


async def test_gateway_closes_within_a_frame(gateway: Gateway) -> None:
    """A gateway that ends within a frame ends the channel."""

    async def half_a_frame(handler: WebSocketHandler) -> None:
        await stream_of(handler).write(b"\x82\x7f" + (5000).to_bytes(8, "big") + b"x" * 100)
        stream_of(handler).close()

    gateway.on_channel = half_a_frame
    assert "gateway closed the channel" in await reason(await opened(UnixEndpoint(gateway.path)))


async def test_close_twice(gateway: Gateway) -> None:
    """Closing at once, and twice, resolves `closed` and leaves nothing behind."""
    channel = await opened(UnixEndpoint(gateway.path))
    await channel.close()
    await channel.close()
    assert channel.closed.done()


async def test_subscribers_get_what_they_asked_for(gateway: Gateway) -> None:
    """Several subscribers get the messages of their requests, or all messages; others are dropped."""
    channel = await opened(UnixEndpoint(gateway.path))
    first, second, unasked = (execute_request("pass", {}) for _ in range(3))
    parents: dict[str, list[str]] = {"first": [], "second": [], "both": [], "all": []}

    def into(name: str) -> Callable[[Incoming], None]:
        return lambda message: parents[name].append(message.parent_id)

    with (
        channel.subscribe(into("first"), [first.msg_id]),
        channel.subscribe(into("second"), [second.msg_id]),
        channel.subscribe(into("both"), [first.msg_id, second.msg_id, first.msg_id]),
        channel.subscribe(into("all")),
    ):
        assert channel.subscriptions == 4
        for request in (first, unasked, second):
            await channel.send(request)
        await until(lambda: len(parents["all"]) == 9)
    assert channel.subscriptions == 0
    await answer_of(channel)
    assert parents == {
        "first": [first.msg_id] * 3,
        "second": [second.msg_id] * 3,
        "both": [first.msg_id] * 3 + [second.msg_id] * 3,
        "all": [first.msg_id] * 3 + [unasked.msg_id] * 3 + [second.msg_id] * 3,
    }
    await channel.close()


async def test_a_subscriber_that_fails(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    """A subscriber that raises is logged once and gets no more messages; the others continue."""
    channel = await opened(UnixEndpoint(gateway.path))

    def fail(_message: Incoming) -> None:
        raise RuntimeError("a fault")

    with channel.subscribe(fail) as failing:
        assert len(await answer_of(channel)) == 3
        assert len(await answer_of(channel)) == 3
        assert failing.closed.result() == "a fault of the broker's own"
    assert caplog.text.count("RuntimeError: a fault") == 1
    assert not channel.closed.done()
    await channel.close()


async def test_a_subscriber_that_ends_another(gateway: Gateway) -> None:
    """A subscription that another callback closes does not get the current message."""
    channel = await opened(UnixEndpoint(gateway.path))
    seen: list[str] = []

    def first(_message: Incoming) -> None:
        seen.append("first")
        later.close("not needed")

    with channel.subscribe(first), channel.subscribe(lambda _: seen.append("later")) as later:
        await answer_of(channel)
        assert later.closed.result() == "not needed"
    assert seen == ["first"] * 3
    await channel.close()


async def test_subscriptions_end_with_the_channel(gateway: Gateway) -> None:
    """Subscriptions get the channel's reason; one to a closed channel is closed from the start."""
    channel = await opened(UnixEndpoint(gateway.path))
    with channel.subscribe(lambda _: None) as to_all, channel.subscribe(print, ["x"]) as to_one:
        await gateway.stop()
        why = await reason(channel)
        assert to_all.closed.result() == to_one.closed.result() == why
        with channel.subscribe(print) as late:
            assert late.closed.result() == why
    assert channel.subscriptions == 0


class Frames:
    """A WebSocket that yields these frames without ever waiting."""

    def __init__(self, frames: list[bytes | str]) -> None:
        self.frames = frames
        self.acknowledged: list[int] = []
        self.transport = self

    def abort(self) -> None:
        self.frames = []

    async def send(self, text: str) -> None:
        self.acknowledged.append(int(text))

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        for each in self.frames:
            yield each


@pytest.mark.parametrize(("size", "messages"), [(16 * MIB, 1), (MIB // 4, 4), (10, 64)])
async def test_the_reader_lets_others_run(size: int, messages: int) -> None:
    """After 64 messages, or 1 MiB of messages, the reader lets other tasks run."""
    data = frame("iopub", "stream", "", {"name": "stdout", "text": "x" * size})
    turn = 0
    by_turn: Counter[int] = Counter()

    async def interrupt(_: str) -> None:
        pass

    def count(_message: Incoming) -> None:
        by_turn[turn] += 1

    websocket = Frames([data] * messages * 4)
    channel = KernelChannel("k", cast(ClientConnection, websocket), interrupt)
    with channel.subscribe(count):
        while not channel.closed.done():
            await asyncio.sleep(0)
            turn += 1
    assert max(by_turn.values()) <= messages
    assert by_turn.total() == messages * 4


@pytest.mark.parametrize(
    ("size", "acknowledged"), [(MIB, [1, 2, 3]), (MIB // 4, [4, 8, 12]), (10, [1024, 2048])]
)
async def test_messages_are_acknowledged_in_groups(size: int, acknowledged: list[int]) -> None:
    """After 1 MiB or 1,000 messages the gateway may forget them, or when the callback says so."""
    data = frame("iopub", "stream", "", {"name": "stdout", "text": "x" * size})
    count, asked = acknowledged[-1], []

    async def interrupt(_: str) -> None:
        pass

    def ask(channel: KernelChannel, allowed: bool) -> None:
        asked.append(channel.received)
        if allowed:
            channel.acknowledge(channel.received)

    for allowed in (None, True, False):
        websocket = Frames([data] * count)
        channel = KernelChannel("k", cast(ClientConnection, websocket), interrupt, received=100)
        if allowed is not None:
            channel.on_received = partial(ask, channel, allowed)
        await channel.closed
        await turns(3)
        assert channel.received == 100 + count
        numbers = [100 + each for each in acknowledged]
        assert websocket.acknowledged == ([] if allowed is False else numbers)
        assert asked == ([] if allowed is None else numbers)
        asked.clear()


@pytest.mark.parametrize("stored", [None, True, False])
async def test_the_last_messages_are_acknowledged_once_they_are_stored(stored: bool | None) -> None:
    """A gateway that has sent all of a kernel that has ended may then forget it, and end."""
    data = frame("iopub", "stream", "", {"name": "stdout", "text": "x"})
    steps: list[str] = []

    async def interrupt(_: str) -> None:
        pass

    async def store() -> bool:
        steps.append(f"storing {websocket.acknowledged}")
        await asyncio.sleep(0)
        steps.append(f"stored {websocket.acknowledged}")
        return bool(stored)

    websocket = Frames([data, data, ALL_SENT])
    channel = KernelChannel("k", cast(ClientConnection, websocket), interrupt, received=100)
    channel.on_received = lambda: None
    if stored is not None:
        channel.on_all_sent = store
    await channel.closed
    await turns(3)
    assert channel.received == 102
    assert websocket.acknowledged == ([] if stored is False else [102])
    assert steps == ([] if stored is None else ["storing []", "stored []"])


async def test_what_a_gateway_sent_before_its_end_is_read() -> None:
    """A gateway that has ended takes no acknowledgement. Its last messages arrive nevertheless."""
    data = frame("iopub", "stream", "", {"name": "stdout", "text": "x" * MIB})
    got: list[Incoming] = []

    async def interrupt(_: str) -> None:
        pass

    class Ended(Frames):
        async def send(self, text: str) -> None:
            raise ConnectionClosedError(None, None)

    channel = KernelChannel("k", cast(ClientConnection, Ended([data] * 5)), interrupt)
    with channel.subscribe(got.append):
        await channel.closed
    assert len(got) == 5


async def test_a_broker_goes_on_with_a_kernel(gateway: Gateway) -> None:
    """It gets the messages that it asks for, once it is ready, and knows what the kernel was sent."""
    connection = GatewayConnection(UnixEndpoint(gateway.path))
    first = await connection.start_kernel(DEADLINE_S)
    await first.send(Outgoing("shell", "kernel_info_request", {}))
    texts = [frame("iopub", "stream", "", {"name": "stdout", "text": str(i)}) for i in range(5)]
    for each in texts[:3]:
        gateway.send(each)
    await until(lambda: first.received == 3)
    await connection.close()
    for each in texts[3:]:
        gateway.send(each)
    connection = GatewayConnection(UnixEndpoint(gateway.path))
    channel = await connection.join_kernel("the-kernel", DEADLINE_S, after=2)
    assert (channel.sent, channel.received) == (1, 2)
    await asyncio.sleep(0.05)
    got: list[Incoming] = []
    with channel.subscribe(got.append):
        channel.release()
        await until(lambda: len(got) == 3)
    assert [each.content_as(dict)["text"] for each in got] == ["2", "3", "4"]
    await connection.close()
    connection = GatewayConnection(UnixEndpoint(gateway.path))
    channel = await connection.join_kernel("the-kernel", DEADLINE_S)
    assert channel.received == 5, "nothing is needed of what came before"
    await connection.close()


@pytest.mark.parametrize(
    "hello", [b"binary", "text", '{"received": 1}', '{"received": 1, "first": 7}']
)
async def test_a_kernel_that_cannot_go_on_is_refused(gateway: Gateway, hello: bytes | str) -> None:
    """The gateway says something else first, or has forgotten what is needed."""

    async def greet(handler: WebSocketHandler) -> None:
        await handler.write_message(hello, binary=isinstance(hello, bytes))

    gateway.on_channel = greet
    connection = GatewayConnection(UnixEndpoint(gateway.path))
    with pytest.raises(ChannelClosed, match=r"could not be reached|begins at 7"):
        await connection.join_kernel("the-kernel", DEADLINE_S, after=2)
    await connection.close()


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
async def test_invalid_messages_end_the_channel(
    gateway: Gateway, data: bytes | str, binary: bool
) -> None:
    """A message that is no Jupyter message ends the channel, and the sandbox is named as the cause."""

    async def garbage(handler: WebSocketHandler) -> None:
        await handler.write_message(data, binary=binary)

    gateway.on_channel = garbage
    channel = await opened(UnixEndpoint(gateway.path))
    assert "not a Jupyter message" in await reason(channel)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x83\x00", b"\xf2\x01x", b"\x89\x7f"])
async def test_invalid_frames_end_the_channel(gateway: Gateway, data: bytes) -> None:
    """Bytes that are no WebSocket frame end the channel."""

    async def garbage(handler: WebSocketHandler) -> None:
        await stream_of(handler).write(data)
        stream_of(handler).close()

    gateway.on_channel = garbage
    assert "gateway closed the channel" in await reason(await opened(UnixEndpoint(gateway.path)))


def rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def write_until_cut(handler: WebSocketHandler, data: bytes, before: int) -> int:
    """Write until the other side hangs up. Returns the growth of this process's memory."""
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
async def test_endless_messages_end_the_channel(
    gateway: Gateway, first: bytes, rest: bytes
) -> None:
    """A message beyond the limit ends the channel, and takes no memory."""
    grown: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    before = rss()

    async def endless(handler: WebSocketHandler) -> None:
        await stream_of(handler).write(first)
        grown.set_result(await write_until_cut(handler, rest, before))

    gateway.on_channel = endless
    channel = await opened(UnixEndpoint(gateway.path))
    assert "gateway closed the channel" in await reason(channel)
    async with asyncio.timeout(DEADLINE_S):
        assert await grown < 64 * MIB


async def test_gateway_that_does_not_read(gateway: Gateway) -> None:
    """A send that the gateway does not read can be cancelled, and the channel closed."""
    channel = await opened(UnixEndpoint(gateway.path))
    gateway.stop_reading()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            for _ in range(100):
                await channel.send(execute_request("x" * MIB, {}))
    async with asyncio.timeout(1):
        await channel.close()


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
async def test_invalid_http_responses(directory: Path, name: str) -> None:
    """A channel is not opened if the first response is not a gateway's."""
    path = directory / "gateway.sock"

    async def answer(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(HTTP_ANSWERS[name])
        await writer.drain()

    async with answering(answer, path):
        with pytest.raises(ChannelClosed):
            await opened(UnixEndpoint(path))


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
async def test_invalid_handshakes(directory: Path, second: bytes) -> None:
    """A channel is not opened if the WebSocket handshake fails."""
    path = directory / "gateway.sock"

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(CREATED if head.startswith(b"POST") else second)
        await writer.drain()

    async with answering(answer, path):
        with pytest.raises(ChannelClosed):
            await opened(UnixEndpoint(path))


@pytest.mark.parametrize("answers_first", [False, True])
async def test_gateway_that_does_not_answer(directory: Path, answers_first: bool) -> None:
    """Opening a channel to a gateway that does not respond ends after the timeout."""
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
            await opened(UnixEndpoint(path), 0.1)
        assert time.monotonic() - before < 2
        silent.set()
        await turns(5)


async def test_missing_socket(directory: Path) -> None:
    """Opening a channel to a missing socket raises ChannelClosed."""
    with pytest.raises(ChannelClosed, match="could not be reached"):
        await opened(UnixEndpoint(directory / "none.sock"))


async def serve_tcp(
    elsewhere: Callable[[int], bytes],
) -> tuple[list[bytes], int]:
    """Open a channel to a gateway that redirects. Returns the heads seen, and the redirected requests."""
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
                await opened(TcpEndpoint("127.0.0.1", port, "secret"))
    return heads, len(strays)


async def test_redirects_are_not_followed() -> None:
    """A hostile gateway cannot redirect the broker, and its token, to another address."""
    heads, strays = await serve_tcp(
        lambda other: b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:%d/\r\n\r\n" % other
    )
    assert strays == 0
    assert len(heads) == 2
    assert all(b"Authorization: token secret" in head for head in heads)


async def test_token_is_sent_over_tcp(directory: Path) -> None:
    """Every request over TCP has the token."""
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
        channel = await opened(TcpEndpoint("127.0.0.1", port, "secret"))
        await channel.close()
        ended.set()
        await turns(5)
    assert len(heads) == 2
    assert all(b"Authorization: token secret" in head for head in heads)


async def test_cancelled_while_opening(gateway: Gateway) -> None:
    """An opening that is cancelled at any turn of the loop leaves no connection behind."""
    for after in itertools.count():
        opening = asyncio.ensure_future(opened(UnixEndpoint(gateway.path)))
        await turns(after)
        is_open = opening.done()
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await opening.result().close()
        await until(lambda: not gateway.channels)
        if is_open:
            break
    assert after > 5


async def test_flood_delays_no_other_channel(gateway: Gateway, directory: Path) -> None:
    """While one gateway sends unrequested replies, another gateway's answers arrive promptly."""
    reply = frame("shell", "execute_reply", "nobody's", {"status": "ok"})
    path = directory / "flood.sock"
    with flooding(path, reply, seconds=1):
        flooded = await opened(UnixEndpoint(path))
        received = 0

        def count(_message: Incoming) -> None:
            nonlocal received
            received += 1

        other = await opened(UnixEndpoint(gateway.path))
        slowest = 0.0
        with flooded.subscribe(count):
            while not flooded.closed.done():
                before = time.monotonic()
                await answer_of(other)
                slowest = max(slowest, time.monotonic() - before)
        await flooded.close()
        await other.close()
    assert received > 1000
    assert slowest < 0.5
