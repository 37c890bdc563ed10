"""Sessions that sleep, with scripted sandboxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kernelbroker.protocol.messages import SessionOptions
from kernelbroker_kernel.contract import INTERNAL_CELL_CODE, INTERNAL_CELL_MIME, METADATA_KEY
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.service.sessions import SessionChange
from kernelbroker_server.sessions.admission import Admission
from kernelbroker_server.sessions.saved_state import KIND
from kernelbroker_server.sessions.session import Session

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.waiting import until
from tests.support.world import World, result_of, submit, world

DAY = 86400.0


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Sandboxes:
    """Sandboxes whose internal cells save and load one stream."""

    def __init__(self, backend: FakeBackend) -> None:
        self.missing: list[dict[str, str]] = []
        self.not_loaded: list[dict[str, str]] = []
        self.saves = 0
        self.loads = 0
        self.on_save: Callable[[], Any] = lambda: None
        self.dies_on_load = 0
        self._backend = backend
        backend.scripts[INTERNAL_CELL_CODE] = self._run

    async def _run(self, cell: Cell) -> None:
        asked = cell.metadata[METADATA_KEY]
        if "save" in asked:
            self.saves += 1
            assert asked["save"]["files"] is False
            cell.kernel.exports[asked["save"]["ticket"]] = b"the variables"
            self.on_save()
            cell.display({INTERNAL_CELL_MIME: {"saved": {"missing": self.missing}}})
            return
        assert cell.kernel.files.pop(asked["load"]["path"]) == b"the variables"
        self.loads += 1
        if self.loads <= self.dies_on_load:
            await self._backend.scripts["die"](cell)
        loaded = {"missing": self.not_loaded, "env_missing": []}
        cell.display({INTERNAL_CELL_MIME: {"loaded": loaded}})


@pytest.fixture
def sandboxes(backend: FakeBackend) -> Sandboxes:
    return Sandboxes(backend)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sleepy(backend: FakeBackend, clock: Clock, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "admission": Admission(50, 100, clock=clock),
        "pool": PoolLimits(min_size=0, max_size=4),
        "sleep_after": 60.0,
        "idle_timeout": 600.0,
        "max_lifetime": DAY,
        "asleep_retention": 7 * DAY,
    }
    return world(backend, **(settings | options))


async def fall_asleep(made: World, session: Session, clock: Clock) -> None:
    clock.now += 61
    await until(lambda: session.state == "asleep" and session.sleeping.is_asleep)
    await until(lambda: session._machine.state.value == "asleep")


async def test_an_idle_session_gives_its_sandbox_back_and_wakes(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """Its sandbox goes, its files stay, and the next cell loads the variables and loses nothing."""
    async with sleepy(backend, clock) as made:
        session = await made.open("s")
        await result_of(submit(session))
        (sandbox,) = backend.live.values()
        (sandbox.workspace / "notes").write_text("kept")
        await fall_asleep(made, session, clock)
        await until(lambda: not backend.live)
        result = await result_of(submit(session))
        assert result.success and not result.kernel_restarted
        assert (sandboxes.saves, sandboxes.loads, session.restarts) == (1, 1, 0)
        (sandbox,) = backend.live.values()
        assert (sandbox.workspace / "notes").read_text() == "kept"
        assert await made.service.workspaces.checkpoints.list("default") == []
        assert made.store.entries(KIND) == []


async def test_a_file_request_wakes_it_as_well(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """Whatever needs a sandbox wakes the session."""
    async with sleepy(backend, clock) as made:
        session = await made.open("s")
        await fall_asleep(made, session, clock)
        async with session.borrow():
            assert session.state == "idle"
        assert sandboxes.loads == 1


async def test_time_asleep_counts_for_no_other_limit(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """Neither idle_timeout nor max_lifetime ends a sleeping session, and its days count for neither."""
    async with sleepy(backend, clock) as made:
        session = await made.open("s")
        await fall_asleep(made, session, clock)
        clock.now += 6 * DAY
        made.registry.close_expired()
        assert session.closed_reason is None
        await result_of(submit(session))
        made.registry.close_expired()
        assert session.closed_reason is None
        at, _ = session.expires_at
        assert at > clock.now
        await fall_asleep(made, session, clock)
        clock.now += 7 * DAY + 1
        await until(lambda: session.closed_reason is not None)
        assert session.closed_reason == f"it was asleep for {7 * DAY:g} s"
        await session.closed
        assert await made.service.workspaces.checkpoints.list("default") == []


async def test_a_session_that_would_lose_something_stays_awake(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """It tells what keeps it awake, is not tried again before it is used, and idles out as others."""
    sandboxes.missing = [{"name": "gen", "reason": "a generator"}]
    async with sleepy(backend, clock) as made:
        session = await made.open("s")
        clock.now += 61
        await until(lambda: bool(session.sleeping.kept_awake_by))
        assert [each.name for each in session.sleeping.kept_awake_by] == ["gen"]
        await until(lambda: not made.service.sleeper._saving)
        assert session.state == "idle" and session.sleeping.due_at is None
        assert await made.service.workspaces.checkpoints.list("default") == []
        at, reason = session.expires_at
        assert (at, reason) == (1600.0, "it was idle for 600 s")
        sandboxes.missing = []
        await result_of(submit(session))
        await fall_asleep(made, session, clock)
        assert session.sleeping.kept_awake_by == ()


async def test_a_cell_that_comes_while_it_is_saved_keeps_it_awake(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """What was saved before that cell is not used."""
    async with sleepy(backend, clock) as made:
        session = await made.open("s")
        logs: list[Any] = []
        sandboxes.on_save = lambda: logs.append(submit(session))
        clock.now += 61
        await until(lambda: bool(logs))
        result = await result_of(logs[0])
        assert not result.kernel_restarted
        await until(lambda: not made.service.sleeper._saving)
        assert session.state == "idle" and len(backend.live) == 1
        assert await made.service.workspaces.checkpoints.list("default") == []


async def test_what_could_not_be_loaded_is_told(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """The first result after waking has `kernel_restarted`, and the session lists the names."""
    sandboxes.not_loaded = [{"name": "model", "reason": "another version"}]
    async with sleepy(backend, clock) as made:
        session = await made.open("s")
        await fall_asleep(made, session, clock)
        assert (await result_of(submit(session))).kernel_restarted
        assert [each.name for each in session.not_restored] == ["model"]
        assert not (await result_of(submit(session))).kernel_restarted


async def test_variables_that_end_every_sandbox_are_given_up(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """A sandbox that ends while it loads is tried again once; then the session wakes without them."""
    sandboxes.dies_on_load = 100
    async with sleepy(backend, clock) as made:
        session = await made.open("s")
        await fall_asleep(made, session, clock)
        first = await result_of(submit(session))
        assert not first.success and session.state == "asleep"
        second = await result_of(submit(session))
        assert second.success and second.kernel_restarted
        assert [each.name for each in session.not_restored] == ["<all>"]


async def test_a_restart_and_a_close_forget_what_was_saved(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """Nothing of a sleep is left after either."""
    async with sleepy(backend, clock) as made:
        for end in ("restart", "close"):
            session = await made.open(end)
            await fall_asleep(made, session, clock)
            assert [each.name for each in made.store.entries(KIND)] == [end]
            await (session.restart() if end == "restart" else session.close("over"))
            assert made.store.entries(KIND) == []
            assert await made.service.workspaces.checkpoints.list("default") == []
            await session.close("over")
        assert sandboxes.loads == 0


async def test_more_sessions_than_sandboxes(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """Four sessions take turns on one sandbox; a change of metadata wakes none."""
    async with sleepy(backend, clock, pool=PoolLimits(min_size=0, max_size=1)) as made:
        sessions = []
        for number in range(4):
            sessions.append(session := await made.open(f"s{number}"))
            await fall_asleep(made, session, clock)
        assert made.tenants.asleep_sessions == 4
        await made.service.sessions.change("s3", SessionChange(metadata={"still": "asleep"}))
        assert made.tenants.asleep_sessions == 4
        for session in sessions:
            assert not (await result_of(submit(session))).kernel_restarted
            await fall_asleep(made, session, clock)
        assert sandboxes.loads == 4


async def test_a_sleeping_session_outlives_its_broker(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """A broker with the same store takes it over; one with secrets is not left behind."""
    async with sleepy(backend, clock) as made:
        session = await made.open("s", env={"A": "1"}, metadata={"of": "ada"})
        hidden = await made.open("hidden", secrets={"TOKEN": "word"})
        await result_of(submit(session))
        await result_of(submit(hidden))
        await until(lambda: len(backend.live) == 2)
        for sandbox in backend.live.values():
            (sandbox.workspace / "notes").write_text("kept")
        clock.now += 61
        await until(lambda: made.tenants.asleep_sessions == 2)
        await until(lambda: not backend.live)
        assert [each.name for each in made.store.entries(KIND)] == ["s"]
        await made.service.sessions.change("s", SessionChange(metadata={"of": "eve"}))
        made.service.sessions.set_lifetime(session, 500)
        lifetime = session.max_lifetime
        store = made.store
        await made.tenants.drain("the broker stops")
        assert [each.name for each in store.entries(KIND)] == ["s"]
    async with sleepy(backend, clock, store=store) as made:
        await made.service.sleeper.resume(b'{"of": "another version"}')
        for entry in store.entries(KIND):
            await made.service.sleeper.resume(entry.value)
        session = made.registry.get("s")
        assert session.state == "asleep"
        assert (session.options.metadata, session.options.env) == ({"of": "eve"}, {"A": "1"})
        assert session.max_lifetime == lifetime
        same, is_new = await made.registry.open(SessionOptions(session_id="s"))
        assert (same, is_new) == (session, False)
        assert not (await result_of(submit(session))).kernel_restarted
        assert sandboxes.loads == 1
        (sandbox,) = backend.live.values()
        assert (sandbox.workspace / "notes").read_text() == "kept"


async def test_a_sleeping_session_that_cannot_be_resumed_is_forgotten(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """Without its variables, or without its template, nothing of it stays."""
    async with sleepy(backend, clock) as made:
        session = await made.open("s")
        await fall_asleep(made, session, clock)
        (entry,) = made.store.entries(KIND)
        store = made.store
        await made.tenants.drain("the broker stops")
    async with sleepy(backend, clock, store=store) as made:
        checkpoints = made.service.workspaces.checkpoints
        (saved,) = await checkpoints.list("default")
        await checkpoints.delete("default", saved.name)
        await made.service.sleeper.resume(entry.value)
        assert made.registry.list() == [] and store.entries(KIND) == []
