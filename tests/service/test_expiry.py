"""Sessions whose time is over, or is set anew, with scripted sandboxes."""

from __future__ import annotations

from typing import Any

import pytest
from kernelbroker.protocol.errors import BadRequest, Conflict, SessionGone, Unavailable

from tests.service.test_sleeper import Clock, Sandboxes, sleepy
from tests.support.backend import FakeBackend
from tests.support.gateway import CellFailed
from tests.support.waiting import until
from tests.support.world import result_of, submit


@pytest.fixture
def sandboxes(backend: FakeBackend) -> Sandboxes:
    return Sandboxes(backend)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def world_of(backend: FakeBackend, clock: Clock, **options: Any) -> Any:
    """Sessions that fall asleep only when they are told to."""
    return sleepy(backend, clock, sleep_after=None, **options)


@pytest.mark.parametrize("ends", [{"idle_timeout": 60.0}, {"max_lifetime": 60.0}])
async def test_a_session_sleeps_in_the_place_of_closing(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock, ends: dict[str, float]
) -> None:
    """With on_expiry="sleep" a session sleeps when its time is over, even if something is lost."""
    sandboxes.missing = [{"name": "g", "reason": "a generator"}]
    async with world_of(backend, clock) as made:
        sleeps = await made.open("sleeps", on_expiry="sleep", **ends)
        closes = await made.open("closes", **ends)
        clock.now += 61
        await until(lambda: sleeps.state == "asleep" and closes.closed_reason is not None)
        made.service.sessions.set_lifetime(sleeps, 100)
        assert (await result_of(submit(sleeps))).success
        clock.now += 7 * 86400 + 200
        await until(lambda: sleeps.state == "asleep")
        clock.now += 7 * 86400 + 1
        await until(lambda: sleeps.closed_reason is not None)
        assert "asleep" in str(sleeps.closed_reason)


async def test_a_session_that_cannot_sleep_closes_at_its_end(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """A session that cannot be saved at all closes when its time is over, with the reason."""

    def fail() -> None:
        raise CellFailed("RuntimeError", "it cannot be saved")

    sandboxes.on_save = fail
    async with world_of(backend, clock) as made:
        session = await made.open("s", on_expiry="sleep", max_lifetime=60.0)
        clock.now += 61
        await until(lambda: session.closed_reason is not None)
        assert "lifetime of 60 s" in str(session.closed_reason)


async def test_a_session_is_put_to_sleep_and_woken(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """`sleep` does not wait for idleness; a second one is a conflict; `wake` gives a sandbox again."""
    async with world_of(backend, clock) as made:
        session = await made.open("s")
        await made.service.sleeper.sleep(session)
        assert session.state == "asleep"
        with pytest.raises(Conflict, match="asleep already"):
            await made.service.sleeper.sleep(session)
        await made.service.sessions.wake(session)
        assert session.state == "idle"
        assert (sandboxes.saves, sandboxes.loads) == (1, 1)
        await session.close("it ends")
        with pytest.raises(SessionGone):
            await made.service.sleeper.sleep(session)


async def test_what_cannot_be_saved_is_named(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """`sleep` refuses a session of which something cannot be saved, and the session goes on."""
    sandboxes.missing = [{"name": "g", "reason": "a generator"}]
    async with world_of(backend, clock) as made:
        session = await made.open("s")
        with pytest.raises(Conflict, match="g: a generator"):
            await made.service.sleeper.sleep(session)
        assert (await result_of(submit(session))).success
        sandboxes.missing = []
        await made.service.sleeper.sleep(session)
        assert session.state == "asleep"


async def test_a_cell_that_comes_meanwhile_prevents_it(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """A session that is used while it is saved stays awake, and the caller is told to try again."""
    async with world_of(backend, clock) as made:
        session = await made.open("s")
        sandboxes.on_save = lambda: submit(session)
        with pytest.raises(Unavailable, match="try again"):
            await made.service.sleeper.sleep(session)
        sandboxes.on_save = lambda: None
        await made.service.sleeper.sleep(session)
        assert session.state == "asleep"


async def test_a_lifetime_counts_from_now(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """set_lifetime counts from now, without the time asleep, and stays within the limit of all."""
    async with world_of(backend, clock, max_lifetime=1000.0, idle_timeout=1000.0) as made:
        session = await made.open("s", max_lifetime=100.0)
        clock.now += 40
        sessions = made.service.sessions
        sessions.set_lifetime(session, 100)
        assert (session.age, session.expires_in) == (40, 100)
        sessions.set_lifetime(session, 50, only_longer=True)
        assert session.expires_in == 100
        sessions.set_lifetime(session, 50)
        assert session.expires_in == 50
        await made.service.sleeper.sleep(session)
        clock.now += 5000
        await sessions.wake(session)
        assert session.age == pytest.approx(40)
        sessions.set_lifetime(session, 1000)
        assert session.expires_in == pytest.approx(960), "its whole life is limited"
        with pytest.raises(BadRequest, match="1000 s"):
            sessions.set_lifetime(session, 1001)
