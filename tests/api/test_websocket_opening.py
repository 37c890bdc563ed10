"""Opening a session over the WebSocket: operations that are sent meanwhile, and cancellation."""

from __future__ import annotations

import asyncio

import pytest
from kernelbroker.protocol.messages import Closed, Done, ErrorReply, Opened

from tests.support.http import Api
from tests.support.waiting import DEADLINE_S, MOMENTS, moment, turns, until
from tests.support.world import watchers_of


@pytest.fixture
async def full(api: Api) -> asyncio.Event:
    """A pool whose one sandbox is leased; until the event is set it has no other one."""
    hold = asyncio.Event()

    async def launch(_sandbox: object) -> None:
        await hold.wait()

    await until(lambda: api.world.pool.status().idle_containers == 1)
    api.world.backend.on_launch = launch
    await api.world.open("taken")
    return hold


@pytest.mark.parametrize("behind", [None, "execute", "interrupt"])
async def test_a_disconnect_while_opening_leaves_no_waiter(
    api: Api, full: asyncio.Event, behind: str | None
) -> None:
    """A client that disconnects while it waits for a sandbox leaves no waiter."""
    async with api.socket() as socket:
        await socket.send("open", session_id="mine")
        await until(lambda: api.world.pool.status().pending_requests == 1)
        if behind is not None:
            await socket.send(behind, **({"code": "1"} if behind == "execute" else {}))
        await asyncio.wait_for(await socket.connection.ping(), DEADLINE_S)
        socket.connection.transport.abort()
    await until(lambda: api.world.pool.status().pending_requests == 0)
    await until(lambda: not api.service.websockets)
    full.set()
    assert [session.id for session in api.world.registry.list()] == ["taken"]


@pytest.mark.parametrize("at_once", [True, False])
async def test_close_cancels_the_opening(api: Api, full: asyncio.Event, at_once: bool) -> None:
    """A close cancels the opening and all operations behind it; the session can be opened again."""
    async with api.socket() as socket:
        await socket.send("open", session_id="mine")
        if not at_once:
            await until(lambda: api.world.pool.status().pending_requests == 1)
            await socket.send("execute", code="1", execution_id="e")
        await socket.send("close", op_id="c")
        answers = [await socket.get() for _ in range(2 if at_once else 3)]
        (done,) = [answer for answer in answers if isinstance(answer, Done)]
        assert (done.op, done.op_id) == ("close", "c")
        refused = {a.op: a.error.code for a in answers if isinstance(a, ErrorReply)}
        assert refused.pop("open") == "session_gone"
        assert refused == ({} if at_once else {"execute": "bad_request"})
        await until(lambda: api.world.pool.status().pending_requests == 0)
        full.set()
        assert (await socket.open(session_id="mine")).session.session_id == "mine"


async def test_close_behind_open_closes_an_existing_session(api: Api) -> None:
    """A close right behind `open` closes a session that existed before."""
    await api.world.open("mine")
    async with api.socket() as socket:
        await socket.send("open", session_id="mine")
        await socket.send("close")
        assert (await socket.until(Closed)).reason == "its client closed it"
    assert api.world.registry.list() == []


async def test_operations_sent_while_opening_run_afterwards(api: Api, full: asyncio.Event) -> None:
    """Operations that are sent while the session is opened are performed afterwards, in order."""
    names = [f"e{number}" for number in range(100)]
    async with api.socket() as socket:
        await socket.send("open")
        await until(lambda: api.world.pool.status().pending_requests == 1)
        for name in names[:50]:
            await socket.send("execute", code=name, execution_id=name)
        await turns(50)
        full.set()
        for name in names[50:]:
            await socket.send("execute", code=name, execution_id=name)
        assert isinstance(await socket.get(), Opened)
        for name in names:
            assert len(await socket.events(name)) == 2
        assert [cell.code for cell in api.world.backend.cells] == names


@pytest.mark.parametrize("count", MOMENTS)
async def test_a_disconnect_at_any_moment_leaves_nothing(api: Api, count: int | None) -> None:
    """If the connection is lost at any moment, the broker releases everything."""
    async with api.socket() as socket:
        await socket.send("open", session_id="mine")
        await moment(count, lambda: api.world.registry.list())
        socket.connection.transport.abort()
    await until(lambda: not api.service.websockets)
    async with api.socket() as again:
        opened = await again.open(session_id="mine")
        assert isinstance(opened, Opened)
        await until(lambda: watchers_of(api.world.registry.get("mine")) == 1)
