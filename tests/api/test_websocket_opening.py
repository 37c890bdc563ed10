"""A session that is being opened over the WebSocket: what is sent meanwhile, and who gives up."""

from __future__ import annotations

import asyncio

import pytest
from kernelbroker.protocol.messages import Closed, Done, ErrorReply, Opened

from tests.support.http import Api
from tests.support.waiting import DEADLINE_S, turns, until


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
async def test_client_goes_away_while_opening(
    api: Api, full: asyncio.Event, behind: str | None
) -> None:
    """A client that goes away while it waits for a sandbox leaves nobody waiting, whatever it sent."""
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
async def test_close_while_opening(api: Api, full: asyncio.Event, at_once: bool) -> None:
    """A close ends the opening with all that waits for it; the same session can be opened again."""
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


async def test_close_right_behind_open(api: Api) -> None:
    """A close closes a session that was there before it was opened here."""
    await api.world.open("mine")
    async with api.socket() as socket:
        await socket.send("open", session_id="mine")
        await socket.send("close")
        assert (await socket.until(Closed)).reason == "its client closed it"
    assert api.world.registry.list() == []


async def test_sent_while_opening(api: Api, full: asyncio.Event) -> None:
    """What is sent while the session is opened is done after that, in order, however much it is."""
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


@pytest.mark.parametrize("count", range(12))
async def test_client_goes_away_at_any_moment(api: Api, count: int) -> None:
    """Whenever the connection is lost, the broker forgets it, and can be used on."""
    async with api.socket() as socket:
        await socket.send("open", session_id="mine")
        await turns(count)
        socket.connection.transport.abort()
    await until(lambda: not api.service.websockets)
    async with api.socket() as again:
        opened = await again.open(session_id="mine")
        assert isinstance(opened, Opened)
        await until(lambda: len(api.world.registry.get("mine").executions._watchers) == 1)
