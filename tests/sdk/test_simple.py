"""The smallest client, over a session that nobody sees."""

from __future__ import annotations

import asyncio

import pytest
from kernelbroker import (
    ConnectionLost,
    KernelBrokerError,
    NotFound,
    PolicyRefused,
    SandboxClient,
    SessionGone,
    TooManyRequests,
    Unavailable,
    events,
)
from kernelbroker.protocol.messages import ErrorBody, Execute, Open, Restart


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


@pytest.mark.parametrize("call", ["execute", "stream_execute"])
async def test_an_outage_ends_with_a_new_session(connected, scripts, call):
    """A broker that was away for too long is used again as soon as it is back, and the loss is told."""
    connected.cells["c"] = scripts.forever
    async with SandboxClient() as client:
        running = asyncio.create_task(client.execute("c"))
        await connected.until(lambda: connected.ops(Execute))
        connected.is_up = False
        connected.drop()
        with pytest.raises(ConnectionLost):
            await running
        with pytest.raises(Unavailable):
            await client.execute("d")
        connected.is_up = True
        if call == "execute":
            assert (await client.execute("d")).kernel_restarted
        else:
            chunks = [chunk async for chunk in client.stream_execute("d")]
            assert chunks[-1].content["kernel_restarted"]
        assert not (await client.execute("e")).kernel_restarted
    assert [op.code for op in connected.ops(Execute)] == ["c", "d", "e"]


async def test_a_refusal_to_reconnect_is_not_for_ever(connected):
    """A session that could not be taken up again for another reason is replaced as well."""
    async with SandboxClient() as client:
        await client.execute("a")
        connected.refuse[Open] = ErrorBody(code="too_many_requests", message="Later.")
        connected.drop()
        await noticed(client)
        with pytest.raises(TooManyRequests):
            await client.execute("b")
        connected.refuse.clear()
        assert (await client.execute("c")).kernel_restarted
    assert [op.code for op in connected.ops(Execute)] == ["a", "c"]


@pytest.mark.parametrize("call", ["download", "upload", "reset", "failed reset", "refused cell"])
async def test_lost_variables_are_told_by_the_next_result(connected, tmp_path, call):
    """Whatever opens the new session: the first result from it says that the old one is gone."""
    (tmp_path / "file").touch()
    async with SandboxClient() as client:
        await client.execute("a")
        await connected.close_session(*connected.sessions, "idle")
        await noticed(client)
        match call:
            case "download":
                with pytest.raises(NotFound):
                    await client.download("x", tmp_path / "x")
            case "upload":  # the scripted broker takes no files
                with pytest.raises(KernelBrokerError):
                    await client.upload(tmp_path / "file")
            case "reset":
                await client.reset()
            case "failed reset":
                connected.is_up = False
                with pytest.raises(Unavailable):
                    await client.reset()
                connected.is_up = True
            case "refused cell":
                connected.refuse[Execute] = ErrorBody(code="policy_refused", message="No.")
                with pytest.raises(PolicyRefused):
                    await client.execute("b")
                connected.refuse.clear()
        assert (await client.execute("c")).kernel_restarted
        assert not (await client.execute("d")).kernel_restarted
    assert not connected.ops(Restart)


async def test_health_check_of_nothing_is_false():
    """Without a broker the check is False, not an exception."""
    async with SandboxClient("http://127.0.0.1:1") as client:
        assert not await client.health_check()
