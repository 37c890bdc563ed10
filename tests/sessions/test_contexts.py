"""Contexts: sessions that share the sandbox of another one, each with a kernel of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    SessionGone,
    TooManyRequests,
    Unavailable,
)
from kernelbroker.protocol.messages import ContextOptions, SessionOptions
from kernelbroker_kernel.contract import CONFIGURE_CODE, METADATA_KEY
from kernelbroker_server.service.sessions import SessionChange
from kernelbroker_server.sessions.context_lease import kernel_id_of
from kernelbroker_server.sessions.session import Session
from kernelbroker_server.tenants.tenant import Tenant

from tests.support.backend import FakeBackend, FakeSandbox
from tests.support.gateway import Cell, Gateway
from tests.support.waiting import DEADLINE_S, turns, until
from tests.support.world import (
    Breakpoint,
    World,
    deaf,
    interruptible,
    result_of,
    running,
    submit,
    world,
)


async def context(w: World, session: Session, **options: Any) -> Session:
    opened, is_new = await w.service.sessions.open_context(session.id, ContextOptions(**options))
    assert is_new
    return opened


def sandbox(backend: FakeBackend) -> FakeSandbox:
    """The sandbox that has contexts, or else any."""
    live = backend.live.values()
    return next((each for each in live if each.gateway.further), next(iter(live)))


def kernel(backend: FakeBackend, context: Session) -> Gateway:
    return sandbox(backend).gateway.further[kernel_id_of(context.key)]


async def test_a_context_runs_beside_its_session(backend: FakeBackend) -> None:
    """A cell of a context runs in a kernel of its own while one of the session runs, and before it ends."""
    backend.scripts["wait"] = hold = Breakpoint()
    async with world(backend) as w:
        session = await w.open()
        other = await context(w, session)
        blocked = submit(session, "wait")
        await hold.reached()
        assert (await result_of(submit(other, "pass"))).success
        assert blocked.result is None
        assert [
            cell.code for cell in kernel(backend, other).cells if not cell.content["silent"]
        ] == ["pass"]
        hold.go_on.set()
        assert (await result_of(blocked)).success
        assert (session.state, other.state) == ("idle", "idle")
        assert len(backend.live) <= 2, "no sandbox is launched for a context"


async def test_each_context_has_its_own_order(backend: FakeBackend) -> None:
    """Cells of one context wait for each other; an interrupt reaches only the context that it is for."""
    backend.scripts["first"] = hold = Breakpoint()
    backend.scripts["loop"] = interruptible
    async with world(backend) as w:
        session = await w.open()
        one, two = await context(w, session), await context(w, session)
        first, second = submit(one, "first"), submit(one, "second")
        await hold.reached()
        looping = submit(two, "loop")
        await running(looping)
        await w.service.sessions.interrupt(two.id)
        detail = (await result_of(looping)).error_detail
        assert detail is not None and detail.cause == "interrupted"
        assert (first.state, second.state) == ("running", "queued")
        hold.go_on.set()
        assert (await result_of(second)).success


async def test_a_context_shares_the_environment(backend: FakeBackend) -> None:
    """It gets the variables and secrets of its session, a directory of its own, or that of the session."""
    asked: list[Any] = []

    async def configure(cell: Cell) -> None:
        asked.append(cell.metadata[METADATA_KEY]["configure"])

    backend.scripts[CONFIGURE_CODE] = configure
    async with world(backend) as w:
        session = await w.open("s", env={"A": "1"}, secrets={"B": "hidden text"}, cwd="below")
        other = await context(w, session, cwd="else")
        third = await context(w, session)
        env = {"A": "1", "B": "hidden text"}
        assert asked == [{"env": env, "cwd": where} for where in ("below", "else", "below")]
        assert other.workspace == third.workspace == session.workspace
        backend.scripts["tell"] = tell = Breakpoint()
        tell.go_on.set()

        async def say(cell: Cell) -> None:
            cell.stdout("hidden text\n")

        backend.scripts["say"] = say
        log = submit(other, "say")
        await result_of(log)
        assert b"hidden" not in b"".join(stored.json for stored in log.read())


async def test_defaults_of_a_session_and_its_contexts(backend: FakeBackend) -> None:
    """`language` and `on_error` hold for cells that name none; a context has its session's `on_error`."""
    async with world(backend) as w:
        session = await w.open(on_error="keep")
        plain = await context(w, session)
        shell = await context(w, session, language="bash", on_error="rollback_all")
        for each, request in (
            (session, {}),
            (plain, {}),
            (shell, {}),
            (shell, {"on_error": "keep"}),
        ):
            assert (await result_of(submit(each, "code", **request))).success
        python = submit(shell, "code", language="python")
        assert (await result_of(python)).success
        gateways = [sandbox(backend).gateway, kernel(backend, plain), kernel(backend, shell)]
        options = [
            cell.metadata[METADATA_KEY]
            for each in gateways
            for cell in each.cells
            if not cell.content["silent"]
        ]
        assert [each["on_error"] for each in options] == [
            "keep",
            "keep",
            "rollback_all",
            "keep",
            "rollback_all",
        ]
        assert [each.get("language", {}).get("name") for each in options] == [
            *(None, None, "shell", "shell", None)
        ]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"language": "r"}, "there is no language 'r'"),
        ({"env": {"A": "1"}}, "has the env of its session"),
        ({"workspace": "other"}, "has the workspace of its session"),
        ({"max_lifetime": 5.0}, "has the max_lifetime of its session"),
        ({"template": "other"}, "has the template of its session"),
    ],
)
async def test_what_a_context_must_not_have(
    backend: FakeBackend, asked: dict[str, Any], sentence: str
) -> None:
    """A context has only options of its own; an unknown language is refused with those that there are."""
    async with world(backend) as w:
        session = await w.open()
        with pytest.raises(BadRequest, match=sentence):
            await w.registry.open(SessionOptions(context_of=session.id, **asked))
        assert not session.contexts


async def test_contexts_are_bounded(backend: FakeBackend) -> None:
    """There are so many for each session, also while they are being opened; closing one makes room."""
    async with world(backend, contexts=3) as w:
        session, other = await w.open("s"), await w.open("other")
        options = [SessionOptions(context_of="s") for _ in range(4)]
        found = await asyncio.gather(*map(w.registry.open, options), return_exceptions=True)
        (refused,) = [each for each in found if isinstance(each, BaseException)]
        assert isinstance(refused, TooManyRequests)
        assert len(session.contexts) == 3
        await context(w, other)
        await next(iter(session.contexts.values())).close("enough")
        await context(w, session)


async def test_contexts_are_no_sessions_of_the_list(backend: FakeBackend) -> None:
    """The list of sessions and the tenant's limit do not count them; the session lists its own."""
    async with world(backend) as w:
        session, other = await w.open("s"), await w.open("t")
        one = await context(w, session, context_id="one")
        assert [each.id for each in w.service.sessions.list()] == ["s", "t"]
        assert await w.service.sessions.contexts("s") == [one]
        assert await w.service.sessions.context("s", "one") is one
        with pytest.raises(NotFound, match="session t has no context one"):
            await w.service.sessions.context("t", "one")
        with pytest.raises(NotFound):
            await w.service.sessions.context("s", "t")
        with pytest.raises(BadRequest, match="is a context itself"):
            await w.registry.open(SessionOptions(context_of="one"))
        with pytest.raises(Conflict, match="no context of t"):
            await w.registry.open(SessionOptions(context_of="t", session_id="one"))
        again, is_new = await w.registry.open(SessionOptions(context_of="s", session_id="one"))
        assert (again, is_new) == (one, False)
        assert not other.contexts


async def test_another_tenant_has_no_contexts_here(backend: FakeBackend) -> None:
    """A session of another tenant is unknown as the parent of a context, and so is the context."""
    async with world(backend) as w:
        session = await w.open("s")
        await context(w, session, context_id="one")
        stranger = w.tenants.of(Tenant("stranger"))
        with pytest.raises(NotFound):
            await stranger.registry.open(SessionOptions(context_of="s"))
        for name in ("s", "one"):
            with pytest.raises(NotFound):
                await stranger.sessions.contexts(name)


async def test_the_end_of_a_session_ends_its_contexts(backend: FakeBackend) -> None:
    """Their cells get results that say so, and nothing of them is left."""
    backend.scripts["loop"] = interruptible
    async with world(backend) as w:
        session = await w.open("s")
        other = await context(w, session, context_id="one")
        log, queued = submit(other, "loop"), submit(other)
        await running(log)
        await session.close("it is enough")
        result = await result_of(log)
        assert result.error_detail is not None
        assert (result.error_detail.cause, result.error_detail.value) == (
            "interrupted",
            "its session was closed: it is enough",
        )
        assert (await result_of(queued)).error_detail is not None
        async with asyncio.timeout(DEADLINE_S):
            await other.closed
        with pytest.raises(SessionGone, match="its session was closed"):
            w.registry.get("one")
        with pytest.raises(SessionGone):
            await w.registry.open(SessionOptions(context_of="s"))


async def test_closing_a_context_ends_only_its_kernel(backend: FakeBackend) -> None:
    """The session and the other contexts go on; the kernel is ended at the gateway."""
    backend.scripts["wait"] = hold = Breakpoint()
    async with world(backend) as w:
        session = await w.open()
        one, two = await context(w, session), await context(w, session)
        blocked = submit(session, "wait")
        await hold.reached()
        await one.close("enough")
        assert [*sandbox(backend).gateway.further] == [kernel_id_of(two.key)]
        assert [*session.contexts.values()] == [two]
        hold.go_on.set()
        assert (await result_of(blocked)).success
        assert not (await result_of(submit(two))).kernel_restarted


async def test_the_death_of_a_contexts_kernel(backend: FakeBackend) -> None:
    """Its cell fails at once with the exit status; the next one runs in a new kernel, and says so."""

    async def exit_(cell: Cell) -> None:
        gateway = sandbox(backend).gateway
        name = next(name for name, each in gateway.further.items() if each is cell.kernel)
        gateway.spawn(gateway.end(name, 7))
        await asyncio.Event().wait()

    backend.scripts["exit"] = exit_
    async with world(backend) as w:
        session = await w.open()
        other = await context(w, session)
        result = await result_of(submit(other, "exit"))
        assert result.error == "KernelDied: the kernel exited with status 7"
        assert result.kernel_restarted
        assert not (await result_of(submit(other))).kernel_restarted
        assert not (await result_of(submit(session))).kernel_restarted
        assert (session.restarts, other.restarts) == (0, 1)


async def test_out_of_memory_in_a_context_is_told(backend: FakeBackend) -> None:
    """If the kernel was killed and memory ran out in the sandbox, the cause is `out_of_memory`."""

    async def eat(cell: Cell) -> None:
        fake = sandbox(backend)
        fake.out_of_memory = True
        name = next(name for name, each in fake.gateway.further.items() if each is cell.kernel)
        fake.gateway.spawn(fake.gateway.end(name, 137))
        await asyncio.Event().wait()

    backend.scripts["eat"] = eat
    async with world(backend) as w:
        session = await w.open()
        other = await context(w, session)
        detail = (await result_of(submit(other, "eat"))).error_detail
        assert detail is not None and detail.cause == "out_of_memory"
        assert (await result_of(submit(session))).success


async def test_a_deaf_context_gets_another_kernel(backend: FakeBackend) -> None:
    """A cell that ignores the interrupt of its timeout costs its context the kernel, and no other one."""
    backend.scripts["deaf"] = deaf
    async with world(backend) as w:
        session = await w.open()
        other = await context(w, session)
        result = await result_of(submit(other, "deaf", timeout=0.05))
        assert result.error_detail is not None and result.error_detail.cause == "timeout"
        assert result.kernel_restarted
        assert (await result_of(submit(other))).success
        assert not (await result_of(submit(session))).kernel_restarted


async def test_a_restart_of_the_session_costs_contexts_their_kernels(backend: FakeBackend) -> None:
    """The sandbox is replaced: a context's next result says `kernel_restarted`, in the new sandbox."""
    backend.scripts["loop"] = interruptible
    async with world(backend) as w:
        session = await w.open()
        idle, busy = await context(w, session), await context(w, session)
        log = submit(busy, "loop")
        await running(log)
        await session.restart()
        lost = await result_of(log)
        assert lost.error_detail is not None and lost.error_detail.cause == "sandbox_lost"
        assert "the sandbox of its session has ended" in (lost.error or "")
        assert (await result_of(submit(idle))).kernel_restarted
        assert (await result_of(submit(busy))).success
        assert not (await result_of(submit(idle))).kernel_restarted
        assert (await result_of(submit(session))).kernel_restarted


async def test_a_restart_of_a_context(backend: FakeBackend) -> None:
    """It gets another kernel in the same sandbox; queued cells run there."""
    backend.scripts["loop"] = interruptible
    async with world(backend) as w:
        session = await w.open()
        other = await context(w, session)
        log, queued = submit(other, "loop"), submit(other)
        await running(log)
        await other.restart()
        assert (await result_of(log)).error == "Restarted: the kernel was restarted"
        assert (await result_of(queued)).kernel_restarted
        assert len(sandbox(backend).gateway.further) == 1
        assert not (await result_of(submit(session))).kernel_restarted


async def test_a_session_that_died_gets_a_sandbox_for_its_context(backend: FakeBackend) -> None:
    """A cell of a context brings the session a new sandbox, if the old one has died."""
    async with world(backend) as w:
        session = await w.open()
        other = await context(w, session)
        await sandbox(backend).die()
        assert (await result_of(submit(other))).kernel_restarted
        assert (await result_of(submit(session))).kernel_restarted


async def test_a_busy_context_keeps_its_session_open(backend: FakeBackend) -> None:
    """A session does not expire by idleness while a context is used; a context has no end of its own."""
    backend.scripts["wait"] = hold = Breakpoint()
    async with world(backend, idle_timeout=0.3) as w:
        session = await w.open()
        other = await context(w, session)
        log = submit(other, "wait")
        await hold.reached()
        asked_at = w.service.queue.clock()
        await until(lambda: w.service.queue.clock() > asked_at + 2 * session.idle_timeout)
        w.registry.close_expired()
        assert session.closed_reason is None
        with pytest.raises(BadRequest, match="lives as long as its session"):
            await w.service.sessions.change(other.id, SessionChange(idle_timeout=5))
        hold.go_on.set()
        assert (await result_of(log)).success
        async with asyncio.timeout(DEADLINE_S):
            await other.closed
        assert session.closed_reason == "it was idle for 0.3 s"


async def test_draining_waits_for_contexts(backend: FakeBackend) -> None:
    """`close_when_idle` lets the cells of contexts end first, and refuses new contexts."""
    backend.scripts["wait"] = hold = Breakpoint()
    async with world(backend) as w:
        session = await w.open("s")
        other = await context(w, session)
        log = submit(other, "wait")
        await hold.reached()
        session.close_when_idle("enough")
        await turns(20)
        assert session.closed_reason is None
        with pytest.raises(SessionGone):
            await w.registry.open(SessionOptions(context_of="s"))
        hold.go_on.set()
        assert (await result_of(log)).success
        async with asyncio.timeout(DEADLINE_S):
            await session.closed
        assert not backend.live or not sandbox(backend).gateway.further


async def test_a_session_that_closes_while_a_context_opens(backend: FakeBackend) -> None:
    """The opening is refused, and no kernel is left."""
    hold = asyncio.Event()
    async with world(backend) as w:
        session = await w.open("s")
        gateway = sandbox(backend).gateway
        for fake in backend.live.values():
            fake.gateway.on_start = hold.wait  # type: ignore[assignment]
        opening = asyncio.ensure_future(w.registry.open(SessionOptions(context_of="s")))
        await until(lambda: not session._machine.idle)
        closing = asyncio.ensure_future(session.close("enough"))
        await turns(5)
        hold.set()
        await closing
        with pytest.raises((SessionGone, Unavailable)):
            await opening
        assert not gateway.channels


async def test_an_opening_that_is_cancelled_leaves_no_kernel(backend: FakeBackend) -> None:
    """The client has gone away while the kernel started: it is ended, and the session goes on."""
    hold = asyncio.Event()
    async with world(backend) as w:
        session = await w.open("s")
        for fake in backend.live.values():
            fake.gateway.on_start = hold.wait  # type: ignore[assignment]
        opening = asyncio.ensure_future(w.registry.open(SessionOptions(context_of="s")))
        await until(lambda: not session._machine.idle)
        opening.cancel()
        hold.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await until(lambda: session._machine.idle)
        await until(lambda: not sandbox(backend).gateway.further)
        assert not session.contexts
        assert (await result_of(submit(session))).success
