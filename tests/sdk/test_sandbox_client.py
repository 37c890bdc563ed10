"""SandboxClient, which opens and replaces its session by itself."""

from __future__ import annotations

import asyncio

import pytest
from kernelbroker import (
    ConnectionLost,
    NotFound,
    PolicyRefused,
    SandboxClient,
    TooManyRequests,
    Unavailable,
    connect,
    events,
    sync,
)
from kernelbroker.protocol.messages import ErrorBody, Execute, Open, Restart


async def noticed(client):
    """Let the event loop run until the client's session knows that its connection ended."""
    async with asyncio.timeout(5):
        while client._session._connection.is_connected:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


async def test_execute_keeps_one_session(connected, scripts):
    """The session opens with the first cell, runs all cells, and closes with the client."""
    connected.cells["c"] = scripts.printing("x")
    async with SandboxClient(timeout=7) as client:
        assert not connected.ops(Open)
        results = await asyncio.gather(client.execute("c"), client.execute("c", timeout=3))
        assert [result.stdout for result in results] == ["x", "x"]
        assert await client.health_check()
    assert len(connected.ops(Open)) == 1
    assert sorted(op.timeout for op in connected.ops(Execute)) == [3, 7]
    assert await connected.no_sessions()


async def test_stream_execute_yields_chunks(connected, scripts):
    """Chunks have text, base64, a bundle, and finally the result as a dict."""
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
    """`reset` restarts the kernel, and does nothing without a session."""
    async with SandboxClient() as client:
        await client.reset()
        await client.execute("a")
        await client.reset()
    assert len(connected.ops(Restart)) == 1


@pytest.mark.parametrize("drop", [False, True])
async def test_a_closed_session_is_replaced_and_reported(connected, drop):
    """The next cell runs in a new session, once, and the result says so."""
    async with SandboxClient() as client:
        assert not (await client.execute("a")).kernel_restarted
        [session_id] = await connected.sessions()
        if drop:
            connected.drop()
            await connected.until(lambda: not connected.links)
        await connected.end(session_id)
        await noticed(client)
        assert (await client.execute("b")).kernel_restarted
        assert not (await client.execute("c")).kernel_restarted
        await connected.end(*await connected.sessions())
        await noticed(client)
        chunks = [chunk async for chunk in client.stream_execute("d")]
        assert chunks[-1].content["kernel_restarted"]
    assert [op.code for op in connected.ops(Execute)] == ["a", "b", "c", "d"]


async def test_a_cell_is_not_repeated_in_a_new_session(connected, scripts):
    """If the session ends while a cell runs, the cell is not sent to another session."""
    connected.cells["c"] = scripts.forever
    async with SandboxClient() as client:
        running = asyncio.create_task(client.execute("c"))
        await connected.until(lambda: connected.ops(Execute))
        await connected.end(*await connected.sessions())
        assert not (await running).success
        await noticed(client)
        assert (await client.execute("d")).kernel_restarted
    assert [op.code for op in connected.ops(Execute)] == ["c", "d"]


@pytest.mark.parametrize("call", ["execute", "stream_execute"])
async def test_a_new_session_after_an_outage(connected, scripts, call):
    """When the broker is back after a long outage, a new session opens, and the loss is reported."""
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


async def test_a_session_that_cannot_reconnect_is_replaced(connected):
    """If reconnecting fails for another reason, the session is replaced as well."""
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
async def test_the_next_result_reports_lost_variables(connected, tmp_path, call):
    """The first result of a new session says that the old one is gone, whatever opened the new one."""
    (tmp_path / "file").touch()
    async with SandboxClient() as client:
        await client.execute("a")
        await connected.end(*await connected.sessions())
        await noticed(client)
        match call:
            case "download":
                with pytest.raises(NotFound):
                    await client.download("x", tmp_path / "x")
            case "upload":
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


async def test_health_check_without_a_broker_is_false():
    """Without a broker the check returns False and raises no exception."""
    async with SandboxClient("http://127.0.0.1:1") as client:
        assert not await client.health_check()


async def test_gateway_url_is_accepted_for_url(connected, scripts):
    """`gateway_url` is another name of `url`; both together, or a number as token, raise an error."""
    async with SandboxClient(gateway_url=connected.url, token=scripts.token) as client:
        assert (await client.execute("c")).success
    with pytest.raises(TypeError, match="give only one"):
        SandboxClient(connected.url, gateway_url=connected.url)
    with pytest.raises(TypeError, match=r"\(url, token, timeout\)"):
        SandboxClient(connected.url, 30)


async def test_reset_returns_true(connected):
    """`reset` returns True, also without a session."""
    async with SandboxClient() as client:
        assert await client.reset() is True
        await client.execute("a")
        assert await client.reset() is True


TABLE = events.DataFrame(
    var_name="df",
    kind="pandas",
    shape=(1, 1),
    columns=["a"],
    dtypes={"a": "int64"},
    preview=[{"a": 1}],
    markdown="| a |",
    memory_usage=8,
)


async def test_reports_of_tables_can_be_left_out(connected):
    """With `include_df_info=False` neither results nor chunks have a table."""
    connected.replace_result(dataframe=TABLE)
    async with SandboxClient() as client:
        assert (await client.execute("c")).dataframe.markdown == "| a |"
        assert (await client.execute("c", include_df_info=False)).dataframe is None
        chunks = [chunk async for chunk in client.stream_execute("c", include_df_info=False)]
        assert chunks[-1].content["dataframe"] is None


async def test_the_synchronous_client_does_the_same(connected, scripts):
    """`sync.SandboxClient` executes, streams, resets, and works again after `close`."""
    connected.cells["c"] = scripts.printing("x")

    def work():
        seen = []
        with sync.SandboxClient(timeout=7) as client:
            assert client.health_check()
            assert client.execute("c", on_stdout=seen.append).stdout == "x"
            assert [chunk.type for chunk in client.stream_execute("c")] == ["stdout", "result"]
            assert client.reset() is True
        assert client.execute("c").stdout == "x"
        client.close()
        return seen

    assert await asyncio.to_thread(work) == ["x"]
    assert {op.timeout for op in connected.ops(Execute)} == {7}
    assert await connected.no_sessions()


def test_several_tasks_in_two_loops(broker_in_thread, scripts):
    """Tasks that wait for one another in a second loop do not use a lock of the first one."""
    broker, _ = broker_in_thread
    client = SandboxClient(broker.url, scripts.token)
    session = connect(broker.url, scripts.token).session("kept", keep=True)

    async def twice():
        return await asyncio.gather(*(client.execute("c") for _ in range(3)))

    async def open_twice():
        opened = await asyncio.gather(*(session._opened() for _ in range(3)))
        await session._connection.close()
        session._connection = None
        return opened

    for _ in range(2):
        assert all(result.success for result in asyncio.run(twice()))
        assert len(set(map(id, asyncio.run(open_twice())))) == 1
    asyncio.run(client.close())
