"""Single HTTP requests: cancellation, TLS, and invalid servers."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import ConnectionFailed, sync

from tests.support.requires import require
from tests.support.waiting import until


async def test_requests_that_wait_hold_no_thread(silent_server: Silent) -> None:
    """However many wait for an answer, there is no thread for each of them, and others go on."""
    before = threading.active_count()
    async with kernelbroker.connect(silent_server.url, "t", timeout=30) as client:
        waiting = [asyncio.create_task(client.health()) for _ in range(200)]
        await until(lambda: silent_server.heads == 200)
        assert threading.active_count() - before < 20
        async with asyncio.timeout(2):
            assert await asyncio.to_thread(lambda: 5) == 5
        for each in waiting:
            each.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait(waiting)


async def test_results_that_are_waited_for_hold_no_thread(connected, scripts) -> None:
    """Nor do the events of executions, and all of them arrive."""
    before = threading.active_count()
    connected.cells["c"] = scripts.forever
    connected.cells["d"] = scripts.printing(*(f"{number}\n" for number in range(100)))
    async with kernelbroker.connect() as broker, broker.session() as session:
        first = await session.submit("c")
        later = [await session.submit("d") for _ in range(40)]
        waiting = [asyncio.create_task(handle.result()) for handle in later]
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in waiting)
        assert threading.active_count() - before < 20
        assert (await broker.health())["status"] == "ok"
        await first.interrupt()
        expected = "".join(f"{number}\n" for number in range(100))
        assert [result.stdout for result in await asyncio.gather(*waiting)] == [expected] * 40


async def test_objects_say_what_they_are(silent: str) -> None:
    """`repr` has the address, and of a session its id and state, but no token."""
    async with kernelbroker.connect(silent, "secret") as client:
        assert repr(client) == f"<kernelbroker.Broker at {silent}>"
        assert repr(client.session("a b")) == f"<kernelbroker.Session 'a b', not open, at {silent}>"


class Silent:
    """A server that accepts requests and never answers.

    Attributes:
        heads: of requests that have arrived.
    """

    def __init__(self) -> None:
        self.heads = 0
        self.url = ""


@pytest.fixture
async def silent_server() -> AsyncIterator[Silent]:
    connected: list[asyncio.StreamWriter] = []
    silent = Silent()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        silent.heads += 1

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=500)
    silent.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield silent
    for writer in connected:
        writer.close()
    server.close()
    await server.wait_closed()


@pytest.fixture
def silent(silent_server: Silent) -> str:
    return silent_server.url


def workers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("asyncio_")}


@pytest.mark.parametrize("call", ["health", "pool_status", "workspaces", "sessions"])
async def test_a_cancelled_request_leaves_no_busy_thread(silent: str, call: str) -> None:
    """The end of the event loop does not wait for a cancelled request."""
    before = workers()
    async with kernelbroker.connect(silent, "token", timeout=60) as broker:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await getattr(broker, call)()
    async with asyncio.timeout(5):
        await asyncio.get_running_loop().shutdown_default_executor()
    assert workers() <= before


async def test_many_cancelled_requests_leave_no_busy_thread(silent: str) -> None:
    """A request that is cancelled while it waits for a thread does not start."""
    before = workers()
    async with kernelbroker.connect(silent, "token", timeout=60) as broker:
        calls = [asyncio.create_task(broker.health()) for _ in range(50)]
        await until(lambda: workers() - before)
        for task in calls:
            task.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait(calls)
        assert all(task.cancelled() for task in calls)
    async with asyncio.timeout(5):
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_connecting_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection attempt uses no thread, since the event loop connects."""
    asked = asyncio.Event()

    async def never(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", never)
    async with kernelbroker.connect("http://127.0.0.1:1", "token") as broker:
        call = asyncio.create_task(broker.health())
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    async with asyncio.timeout(5):
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_silent_broker_times_out(silent: str) -> None:
    """`timeout` bounds the wait for a response."""
    async with kernelbroker.connect(silent, "token", timeout=0.1) as broker:
        with pytest.raises(ConnectionFailed, match="did not answer"):
            await broker.health()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a self-signed certificate for 127.0.0.1."""
    path = tmp_path_factory.mktemp("tls") / "broker.pem"
    require("openssl")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", path, "-out", path.with_suffix(".crt")),
        ],
        check=True,
        capture_output=True,
    )
    path.write_bytes(path.read_bytes() + path.with_suffix(".crt").read_bytes())
    return path


@pytest.fixture
async def tls_url(broker, certificate: Path) -> AsyncIterator[str]:
    """The URL of the broker behind a TLS server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", broker.port)
        both = {
            asyncio.create_task(relay(reader, inner_writer)),
            asyncio.create_task(relay(inner_reader, writer)),
        }
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        for end in (writer, inner_writer):
            end.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()


async def test_ssl_settings_are_used_for_every_connection(
    tls_url: str, certificate: Path, scripts
) -> None:
    """With the certificate cells, files and requests work; without it all of them fail."""
    trusting = ssl.create_default_context(cafile=certificate.with_suffix(".crt"))
    async with kernelbroker.connect(tls_url, scripts.token, ssl=trusting) as broker:
        assert (await broker.health())["status"] == "ok"
        async with broker.session() as session:
            assert (await session.run("c")).success
            await session.files.write("x", b"y" * 10**6)
            assert await session.files.read("x") == b"y" * 10**6
    async with kernelbroker.SandboxClient(tls_url, scripts.token, ssl=trusting) as client:
        assert await client.health_check()
        assert (await client.execute("c")).success
    async with kernelbroker.connect(tls_url, scripts.token) as broker:
        with pytest.raises(ConnectionFailed, match="certificate"):
            await broker.health()
        with pytest.raises(ConnectionFailed, match="certificate"):
            await broker.run("c")


def test_ssl_settings_for_http_are_refused() -> None:
    """`ssl` with an http address is an error."""
    for connect in (kernelbroker.connect, sync.connect, kernelbroker.SandboxClient):
        with pytest.raises(ConnectionFailed, match="is not https"):
            connect("http://127.0.0.1:1", "token", ssl=ssl.create_default_context())
