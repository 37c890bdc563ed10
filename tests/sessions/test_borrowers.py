"""Borrowing the gateway of a session beside its executions, while its sandbox ends or is replaced."""

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


async def test_a_borrower_waits_for_no_cell(backend: FakeBackend) -> None:
    """A borrower does not wait for the running cell."""
    hold = Breakpoint()
    backend.scripts["hold"] = hold
    async with world(backend) as w:
        session = await w.open()
        held = submit(session, "hold")
        await hold.reached()
        async with asyncio.timeout(DEADLINE_S), session.borrow(changes=True):
            assert held.result is None
        hold.go_on.set()
        assert (await result_of(held)).success


async def test_a_borrower_gets_the_next_sandbox_after_a_death(backend: FakeBackend) -> None:
    """A borrower gets the next sandbox, and the next execution reports the lost state."""
    async with world(backend, pool=ONE) as w:
        session = await w.open()
        await sandbox_of(backend).die()
        async with asyncio.timeout(DEADLINE_S), session.borrow():
            assert session.restarts == 1
        assert (await result_of(submit(session))).kernel_restarted


async def test_borrowers_wait_for_the_replacement(backend: FakeBackend) -> None:
    """All borrowers wait for the sandbox that is being launched."""
    launch = asyncio.Event()

    async def on_launch(sandbox: FakeSandbox) -> None:
        await launch.wait()

    async with world(backend, pool=ONE) as w:
        session = await w.open()
        backend.on_launch = on_launch
        restart = asyncio.create_task(session.restart())
        await until(lambda: backend.launched == 2)

        async def borrow() -> None:
            async with session.borrow():
                assert launch.is_set()

        borrowers = [asyncio.create_task(borrow()) for _ in range(3)]
        await turns(10)
        launch.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(restart, *borrowers)


async def test_a_borrower_is_refused_without_a_sandbox(backend: FakeBackend) -> None:
    """If no sandbox can be launched, a borrower gets an error with Retry-After."""

    async def on_launch(sandbox: FakeSandbox) -> None:
        raise LaunchError("not today")

    async with world(backend, pool=ONE, acquire_timeout=0.1) as w:
        session = await w.open()
        backend.on_launch = on_launch
        await sandbox_of(backend).die()
        with pytest.raises(Unavailable):
            async with asyncio.timeout(DEADLINE_S), session.borrow():
                pass
        backend.on_launch = None


async def test_closing_refuses_borrowers(backend: FakeBackend) -> None:
    """A borrower that waits when the session is closed gets the reason; a closed session refuses others."""

    async def on_launch(sandbox: FakeSandbox) -> None:
        await asyncio.Event().wait()

    async def borrow(session: Session) -> None:
        async with session.borrow():
            pass

    async with world(backend, pool=ONE) as w:
        session = await w.open()
        backend.on_launch = on_launch
        await sandbox_of(backend).die()
        borrower = asyncio.create_task(borrow(session))
        await until(lambda: backend.launched == 2)
        await session.close("the test says so")
        with pytest.raises(SessionGone, match="the test says so"):
            await borrower
        with pytest.raises(SessionGone):
            await borrow(session)


async def test_a_change_in_a_replaced_sandbox_is_reported_as_lost(backend: FakeBackend) -> None:
    """A change in a sandbox that was replaced meanwhile is not reported as done."""
    async with world(backend) as w:
        session = await w.open()
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(Unavailable, match="replaced"):
                async with session.borrow(changes=True):
                    await session.restart()
            async with session.borrow():
                await session.restart()


async def test_a_failed_gateway_is_unavailable(backend: FakeBackend) -> None:
    """A failing gateway gives `Unavailable`; a later attempt can succeed."""
    async with world(backend) as w:
        session = await w.open()
        with pytest.raises(Unavailable, match="it lied"):
            async with session.borrow():
                raise TransferFailed("it lied")


async def test_borrowers_are_bounded(backend: FakeBackend) -> None:
    """The number of borrowers is limited; one that leaves or is cancelled makes room."""
    inside, leave = 0, asyncio.Event()

    async def borrow(session: Session) -> None:
        nonlocal inside
        async with session.borrow():
            inside += 1
            await leave.wait()

    async with world(backend) as w:
        session = await w.open()
        borrowers = [asyncio.create_task(borrow(session)) for _ in range(16)]
        await until(lambda: inside == 16)
        with pytest.raises(TooManyRequests):
            await borrow(session)
        borrowers.pop().cancel()
        await turns(3)
        borrowers.append(asyncio.create_task(borrow(session)))
        await until(lambda: inside == 17)
        leave.set()
        await asyncio.gather(*borrowers)


async def test_borrowers_count_as_activity(backend: FakeBackend) -> None:
    """A session with a borrower is not idle, and its idle time begins when the borrower leaves."""
    async with world(backend) as w:
        session = await w.open(idle_timeout=0.2)
        async with session.borrow():
            session._runner.active -= 1000
            at, _ = session.expires_at
            assert at == session._created + session.max_lifetime
        at, reason = session.expires_at
        assert "idle" in reason
        assert at > session._created
