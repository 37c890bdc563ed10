"""Using a session's sandbox beside its executions: whatever becomes of the sandbox meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from kernelbroker.protocol.errors import SessionGone, TooManyRequests, Unavailable
from kernelbroker_server.backends.base import LaunchError
from kernelbroker_server.kernels.transfer import TransferFailed
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions.session import Session

from tests.support.backend import FakeBackend, FakeSandbox
from tests.support.waiting import DEADLINE_S, turns, until
from tests.support.world import Breakpoint, result_of, submit, world


def sandbox_of(backend: FakeBackend) -> FakeSandbox:
    """The one whose channel has been used by a session, of the pool of one."""
    (sandbox,) = backend.live.values()
    return sandbox


ONE = PoolLimits(min_size=0, max_size=1)


async def test_beside_a_running_cell(backend: FakeBackend) -> None:
    """A visit waits for no cell."""
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend) as w:
        session = await w.open()
        held = submit(session, "hold")
        await hold.reached()
        async with asyncio.timeout(DEADLINE_S), session.visit(changes=True):
            assert held.journal.result is None
        hold.go_on.set()
        assert (await result_of(held)).success


async def test_a_sandbox_that_died_while_nothing_ran(backend: FakeBackend) -> None:
    """Whoever visits gets the next one, and the next execution still tells that state was lost."""
    async with world(backend, pool=ONE) as w:
        session = await w.open()
        await sandbox_of(backend).die()
        async with asyncio.timeout(DEADLINE_S), session.visit():
            assert session.restarts == 1
        assert (await result_of(submit(session))).kernel_restarted


async def test_while_it_is_replaced(backend: FakeBackend) -> None:
    """Visitors wait for the sandbox that is being launched, all of them."""
    launch = asyncio.Event()

    async def on_launch(sandbox: FakeSandbox) -> None:
        await launch.wait()

    async with world(backend, pool=ONE) as w:
        session = await w.open()
        backend.on_launch = on_launch
        restart = asyncio.create_task(session.restart())
        await until(lambda: backend.launched == 2)

        async def visit() -> None:
            async with session.visit():
                assert launch.is_set()

        visitors = [asyncio.create_task(visit()) for _ in range(3)]
        await turns(10)
        launch.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(restart, *visitors)


async def test_no_sandbox_to_be_had(backend: FakeBackend) -> None:
    """Where none can be launched, a visitor is told to come again."""

    async def on_launch(sandbox: FakeSandbox) -> None:
        raise LaunchError("not today")

    async with world(backend, pool=ONE, acquire_timeout=0.1) as w:
        session = await w.open()
        backend.on_launch = on_launch
        await sandbox_of(backend).die()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(DEADLINE_S), session.visit():
                pass
        backend.on_launch = None


async def test_closing(backend: FakeBackend) -> None:
    """Who waits for a sandbox when the session is closed is told so; a closed one takes no visitors."""

    async def on_launch(sandbox: FakeSandbox) -> None:
        await asyncio.Event().wait()

    async def visit(session: Session) -> None:
        async with session.visit():
            pass

    async with world(backend, pool=ONE) as w:
        session = await w.open()
        backend.on_launch = on_launch
        await sandbox_of(backend).die()
        visitor = asyncio.create_task(visit(session))
        await until(lambda: backend.launched == 2)
        await session.close("the test says so")
        with pytest.raises(SessionGone, match="the test says so"):
            await visitor
        with pytest.raises(SessionGone):
            await visit(session)


async def test_a_change_may_be_lost(backend: FakeBackend) -> None:
    """What was changed in a sandbox that was replaced meanwhile is not said to be done."""
    async with world(backend) as w:
        session = await w.open()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(Unavailable, match="replaced"):
                async with session.visit(changes=True):
                    await session.restart()
            async with session.visit():
                await session.restart()


async def test_failures_are_unavailable(backend: FakeBackend) -> None:
    """A gateway that fails is the sandbox's fault, and may be another's next time."""
    async with world(backend) as w:
        session = await w.open()
        with pytest.raises(Unavailable, match="it lied"):
            async with session.visit():
                raise TransferFailed("it lied")


async def test_they_are_bounded(backend: FakeBackend) -> None:
    """So many at a time and no more; who leaves, or is cancelled, makes room."""
    inside, leave = 0, asyncio.Event()

    async def visit(session: Session) -> None:
        nonlocal inside
        async with session.visit():
            inside += 1
            await leave.wait()

    async with world(backend) as w:
        session = await w.open()
        visitors = [asyncio.create_task(visit(session)) for _ in range(16)]
        await until(lambda: inside == 16)
        with pytest.raises(TooManyRequests):
            await visit(session)
        visitors.pop().cancel()
        await turns(3)
        visitors.append(asyncio.create_task(visit(session)))
        await until(lambda: inside == 17)
        leave.set()
        await asyncio.gather(*visitors)


async def test_they_are_activity(backend: FakeBackend) -> None:
    """A session with a visitor is not idle, and its idle time counts from the end of the visit."""
    async with world(backend) as w:
        session = await w.open(idle_timeout=0.2)
        async with session.visit():
            session._worker.active -= 1000
            at, _ = session.expires_at
            assert at == session._opened + session.max_lifetime
        at, reason = session.expires_at
        assert "idle" in reason
        assert at > session._opened
