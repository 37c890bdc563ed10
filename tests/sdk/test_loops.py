"""A client that is used in several event loops, one after the other."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import kernelbroker
import pytest
from kernelbroker.protocol.messages import Execute, Open


@pytest.fixture
def found(broker_in_thread, scripts, monkeypatch):
    """A broker that outlives the event loops of a test and that clients find."""
    fake, _ = broker_in_thread
    monkeypatch.setenv("KERNELBROKER_URL", fake.url)
    monkeypatch.setenv("KERNELBROKER_TOKEN", scripts.token)
    return fake


@pytest.fixture(params=["ends", "is left"])
def run(request):
    """Runs a coroutine in a new event loop, which is closed at once or at the end of the test."""
    with ExitStack() as left:
        if request.param == "ends":
            yield asyncio.run
        else:
            yield lambda work: left.enter_context(asyncio.Runner()).run(work)


def test_a_session_says_that_it_belongs_to_another_loop(found, run):
    """In a second loop each call raises an error with advice; closing still works."""
    broker = kernelbroker.connect()
    session = broker.session()
    assert run(session.run("a")).success
    for call in (session.open, lambda: session.run("b"), session.interrupt, session.restart):
        with pytest.raises(kernelbroker.ConnectionLost, match=r"another event loop.*asyncio\.run"):
            run(asyncio.wait_for(call(), 20))
    run(broker.close())
    assert found.requests[-1] == f"/api/v1/sessions/{session.session_id}"
    run(session.close())


def test_sandbox_client_opens_a_new_session_in_a_new_loop(found, run):
    """In a second loop `SandboxClient` opens a new session, reports it, and closes the old one."""
    client = kernelbroker.SandboxClient()
    assert not run(client.execute("a")).kernel_restarted
    assert run(client.execute("b")).kernel_restarted
    first, second = (op.session_id for op in found.ops(Open))
    assert f"/api/v1/sessions/{first}" in found.requests
    run(client.close())
    assert found.requests[-1] == f"/api/v1/sessions/{second}"


async def test_a_cancelled_reader_ends_the_session(connected, scripts):
    """If all tasks are cancelled, as at the end of a loop, no caller waits for the session."""
    connected.cells["c"] = scripts.forever
    async with kernelbroker.connect() as broker, broker.session() as session:
        running = asyncio.create_task(session.run("c"))
        await connected.until(lambda: connected.ops(Execute))
        session._connection._reader.cancel()
        with pytest.raises(kernelbroker.ConnectionLost, match="reader was cancelled"):
            await asyncio.wait_for(running, 20)
        with pytest.raises(kernelbroker.ConnectionLost):
            await session.run("d")
