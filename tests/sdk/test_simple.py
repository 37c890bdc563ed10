"""The smallest client, over a session that nobody sees."""

from __future__ import annotations

import asyncio

import pytest
from kernelbroker import SandboxClient, SessionGone, events
from kernelbroker.protocol.messages import Execute, Open, Restart


async def noticed(client):
    """Let the loop turn until the client's session knows that its connection ended."""
    async with asyncio.timeout(5):
        while client._session._channel.is_connected:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


async def test_execute_keeps_one_session(connected, scripts):
    """The session opens at first use, serves all cells, and closes with the client."""
    connected.cells["c"] = scripts.printing("x")
    async with SandboxClient(timeout=7) as client:
        assert not connected.ops(Open)
        results = await asyncio.gather(client.execute("c"), client.execute("c", timeout=3))
        assert [result.stdout for result in results] == ["x", "x"]
        assert await client.health_check()
    assert len(connected.ops(Open)) == 1
    assert sorted(op.timeout for op in connected.ops(Execute)) == [3, 7]
    assert not connected.sessions


async def test_stream_execute_yields_chunks(connected, scripts):
    """Chunks carry text, base64, a bundle, and at last the result as a dict."""
    connected.cells["c"] = scripts.emitting(
        events.Stdout(content="o"),
        events.Stderr(content="e"),
        events.Image(mime="image/png", content="AAAA"),
        events.Display(data={"text/plain": "x"}),
        events.Clear(),
    )
    async with SandboxClient() as client:
        chunks = [chunk async for chunk in client.stream_execute("c")]
    kinds = [(chunk.type, chunk.content) for chunk in chunks[:-1]]
    assert kinds == [
        ("stdout", "o"),
        ("stderr", "e"),
        ("image", "AAAA"),
        ("display", {"text/plain": "x"}),
        ("clear", ""),
    ]
    assert chunks[2].mime == "image/png"
    assert chunks[-1].type == "result"
    assert chunks[-1].content["success"] is True


async def test_reset_restarts_the_kernel(connected):
    """`reset` is a restart, and nothing where there is no session yet."""
    async with SandboxClient() as client:
        await client.reset()
        await client.execute("a")
        await client.reset()
    assert len(connected.ops(Restart)) == 1


@pytest.mark.parametrize("drop", [False, True])
async def test_a_session_that_ended_is_replaced_and_told(connected, drop):
    """A cell after the session's end runs in a new one, once, and the result says so."""
    async with SandboxClient() as client:
        assert not (await client.execute("a")).kernel_restarted
        [session_id] = connected.sessions
        if drop:
            connected.end(session_id, "idle")
            connected.drop()
            await connected.until(lambda: not connected.connections)
        else:
            await connected.close_session(session_id, "idle")
        await noticed(client)
        assert (await client.execute("b")).kernel_restarted
        assert not (await client.execute("c")).kernel_restarted
        await connected.close_session(*connected.sessions, "idle")
        await noticed(client)
        chunks = [chunk async for chunk in client.stream_execute("d")]
        assert chunks[-1].content["kernel_restarted"]
    assert [op.code for op in connected.ops(Execute)] == ["a", "b", "c", "d"]


async def test_a_cell_whose_session_ends_under_it_is_not_run_again(connected, scripts):
    """Once sent, a cell is never sent to another session."""
    connected.cells["c"] = scripts.forever
    async with SandboxClient() as client:
        running = asyncio.create_task(client.execute("c"))
        await connected.until(lambda: connected.ops(Execute))
        await connected.close_session(*connected.sessions, "out of its lifetime")
        with pytest.raises(SessionGone):
            await running
        assert (await client.execute("d")).success
    assert [op.code for op in connected.ops(Execute)] == ["c", "d"]


async def test_health_check_of_nothing_is_false():
    """Without a broker the check is False, not an exception."""
    async with SandboxClient("http://127.0.0.1:1") as client:
        assert not await client.health_check()
