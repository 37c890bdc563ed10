"""A broker that runs out of descriptors: what runs goes on, and the log stays short."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import kernelbroker

from tests.e2e.support import BrokerProcess, call, until, whole_system

pytestmark = whole_system

LIMIT = 256
CONNECTIONS = 400


async def test_more_connections_than_descriptors() -> None:
    """Cells of a connected client run, and other clients are refused; later all can connect again."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        limited = BrokerProcess(Path(directory), within=["prlimit", f"--nofile={LIMIT}:{LIMIT}"])
        try:
            broker = limited.start()
            async with (
                kernelbroker.connect(broker.url, broker.token) as client,
                client.session() as session,
            ):
                await session.run("x = 1")
                address = urlsplit(broker.url)
                flood = [socket.socket() for _ in range(CONNECTIONS)]
                for each in flood:
                    each.setblocking(False)
                    each.connect_ex((address.hostname, address.port))

                async def some_are_refused() -> bool:
                    return any(receive(each).startswith(b"HTTP/1.1 503") for each in flood)

                await until(some_are_refused)
                result = await session.run("open('a', 'w').write('1'); print(x)")
                assert (result.success, result.stdout, len(result.files)) == (True, "1\n", 1)
                for each in flood:
                    each.close()

                async def answers_again() -> bool:
                    try:
                        return (await call(broker, "GET", "/health/live"))[0] == 200
                    except OSError:
                        return False

                await until(answers_again)
                assert (await session.run("print(x)")).stdout == "1\n"
            assert broker.stop() == 0
        finally:
            limited.kill()
        log = broker.log.read_text()
    assert log.count("too many connections") == 1
    assert "Traceback" not in log
    assert len(log) < 20_000


def receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1000)
    except OSError:
        return b""
