"""Following a session: the events of all executions, each once, across lost connections."""

from __future__ import annotations

import asyncio

import kernelbroker
import pytest
from kernelbroker import events, session_follower
from kernelbroker.protocol.messages import Open

from tests.sdk.test_cli import start
from tests.support.waiting import DEADLINE_S
from tests.support.world import Breakpoint


async def test_all_executions_are_followed(connected, scripts):
    """A follower sees what runs and waits from its beginning, what comes later, and not what had ended."""
    point = Breakpoint()

    async def wait(cell):
        cell.stdout("begun")
        await point(cell)

    connected.cells.update(wait=wait, c=scripts.printing("1", "2"))
    got: list[events.Event] = []
    async with kernelbroker.connect() as broker, broker.session("s", keep=True) as session:
        await session.run("c")
        handles = [await session.submit("wait"), await session.submit("c")]
        await point.reached()

        async def follow() -> None:
            async for event in broker.follow("s"):
                got.append(event)
                if len(got) == 2:
                    handles.append(await session.submit("c"))
                    point.go_on.set()
                if isinstance(event, events.Result) and event.execution_id == last():
                    await connected.end("s")

        def last() -> str:
            return handles[-1].execution_id

        async with asyncio.timeout(DEADLINE_S):
            await follow()
    assert list(dict.fromkeys(e.execution_id for e in got)) == [h.execution_id for h in handles]
    for handle in handles:
        mine = [event for event in got if event.execution_id == handle.execution_id]
        assert [event.seq for event in mine] == list(range(1, len(mine) + 1))
        assert isinstance(mine[-1], events.Result)


async def test_lost_connections_leave_nothing_out(connected, scripts):
    """While its connection is cut again and again, a follower gets each event once."""
    connected.cells["c"] = scripts.printing(*(f"{i}\n" for i in range(30)))
    lines: dict[str, list[str]] = {}
    async with kernelbroker.connect() as broker, broker.session("s", keep=True) as session:
        await session.open()
        following = broker.follow("s")
        waiting = asyncio.create_task(anext(following))
        await connected.until(lambda: len(connected.ops(Open)) == 2)
        connected.budget, connected.budgets = 2_000, [1_500, 3_000, 1_200]
        url = f"http://127.0.0.1:{connected.api.port}"
        async with kernelbroker.connect(url) as other, await other.attach("s") as same:
            for _ in range(3):
                await same.submit("c")
        async with asyncio.timeout(DEADLINE_S):
            event = await waiting
            for _ in range(3 * 32 - 1):
                if isinstance(event, events.Stdout):
                    lines.setdefault(event.execution_id, []).append(event.content)
                event = await anext(following)
        assert isinstance(event, events.Result)
        await following.aclose()
        await connected.end("s")
    assert list(lines.values()) == [[f"{i}\n" for i in range(30)]] * 3


async def test_what_ends_before_the_connection_is_there(connected, scripts, monkeypatch):
    """An execution that runs and ends while the follower connects is followed, too."""
    connected.cells["c"] = scripts.printing("1")
    connect, ran = session_follower.connect_session, []

    async def late(*args):
        url = f"http://127.0.0.1:{connected.api.port}"
        async with kernelbroker.connect(url) as other, await other.attach("s") as same:
            ran.append((await same.run("c")).execution_id)
        return await connect(*args)

    monkeypatch.setattr(session_follower, "connect_session", late)
    async with kernelbroker.connect() as broker, broker.session("s", keep=True) as session:
        await session.run("c")
        following = broker.follow("s")
        async with asyncio.timeout(DEADLINE_S):
            got = [await anext(following) for _ in range(3)]
        await following.aclose()
        await connected.end("s")
    assert {event.execution_id for event in got} == {*ran}


async def test_refusals(connected):
    """A session that is unknown or closed cannot be followed."""
    async with kernelbroker.connect() as broker:
        with pytest.raises(kernelbroker.NotFound):
            await anext(broker.follow("nobody"))
        async with broker.session("s"):
            pass
        with pytest.raises(kernelbroker.SessionGone):
            await anext(broker.follow("s"))


async def test_the_command(connected, scripts):
    """`kernelbroker attach` shows code and output of others, until the session ends."""
    connected.cells["c\nd"] = scripts.printing("out\n")
    async with kernelbroker.connect() as broker, broker.session("s", keep=True) as session:
        point = Breakpoint()
        connected.cells["wait"] = point
        await session.submit("wait")
        await point.reached()
        process = await start("attach", "s")
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            assert (await process.stdout.readline()).startswith(b"In [")
            await session.submit("c\nd")
            point.go_on.set()
            assert await process.stdout.readline() in (b"In [1]: c\n", b"In [2]: c\n")
            assert await process.stdout.readline() == b"    d\n"
            assert await process.stdout.readline() == b"out\n"
            await connected.end("s")
            _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
