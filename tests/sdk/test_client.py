"""The calls of a broker and its sessions, except running cells."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import kernelbroker
import pytest
from kernelbroker import sync
from kernelbroker.protocol.messages import ErrorBody, ErrorReply, Execute, Open, Restart

from tests.support.backend import fake_backend
from tests.support.http import serving
from tests.support.world import world


async def test_attach_uses_an_existing_session(connected) -> None:
    """The attached session runs cells, and stays open afterwards unless `keep` is false."""
    async with kernelbroker.connect() as broker:
        async with broker.session("mine", keep=True) as session:
            await session.run("a")
        async with await broker.attach("mine") as session:
            assert session.session_id == "mine"
            assert (await session.run("b")).success
        assert await connected.sessions() == ["mine"]
        async with await broker.attach("mine", keep=False) as session:
            assert session.info.executions == 2
        await connected.until(connected.no_sessions)


async def test_attach_opens_no_session(connected) -> None:
    """If the session does not exist, `attach` raises NotFound and opens none."""
    async with kernelbroker.connect() as broker:
        with pytest.raises(kernelbroker.NotFound):
            await broker.attach("none")
        with pytest.raises(kernelbroker.NotFound):
            await broker.attach("no/such session")
        async with broker.session("old"):
            pass
        with pytest.raises(kernelbroker.SessionGone):
            await broker.attach("old")
    assert [op.session_id for op in connected.ops(Open)] == ["old"]
    assert await connected.no_sessions()


async def test_attach_refuses_a_new_session_with_the_same_id(connected, second_broker) -> None:
    """If another session has the id when the connection opens, it is not used."""
    async with second_broker() as other, kernelbroker.connect() as broker:
        await connected.api.world.open("mine")
        path = "/api/v1/sessions/mine"

        attaching = asyncio.create_task(broker.attach("mine"))
        await connected.until(lambda: path in connected.requests)
        connected.pause()
        connected.broker_port = other.api.port
        connected.unpause()
        with pytest.raises(kernelbroker.SessionGone):
            await attaching
        await connected.until(other.no_sessions)


async def test_sessions_lists_open_sessions(connected) -> None:
    """Each open session is listed, with its times as datetimes."""
    async with kernelbroker.connect() as broker:
        assert await broker.sessions() == []
        async with broker.session("one", metadata={"a": 1}), broker.session("two"):
            one, two = sorted(await broker.sessions(), key=lambda info: info.session_id)
    assert (one.session_id, two.session_id) == ("one", "two")
    assert one.metadata == {"a": 1}
    assert isinstance(one.created_at, datetime)
    assert abs(datetime.now(UTC) - one.created_at) < timedelta(minutes=5)


async def test_executions_lists_the_history(connected, scripts) -> None:
    """Executions are listed from the oldest to the newest, each with its outcome."""
    connected.cells["bad"] = scripts.failing
    async with kernelbroker.connect() as broker, broker.session() as session:
        await session.run("good")
        await session.run("bad")
        good, bad = await session.executions()
    assert (good.state, good.success, good.error) == ("done", True, None)
    assert (bad.success, bad.error) == (False, "ValueError: no")
    assert good.accepted_at <= bad.accepted_at


async def test_update_changes_only_given_options(connected) -> None:
    """The given timeouts and metadata change; omitted ones do not."""
    async with (
        kernelbroker.connect() as broker,
        broker.session(idle_timeout=100, metadata={"a": 1}) as session,
    ):
        info = await session.update(idle_timeout=200)
        assert (info.idle_timeout, info.metadata) == (200, {"a": 1})
        info = await session.update(metadata={"b": 2}, max_lifetime=500)
        assert (info.idle_timeout, info.max_lifetime) == (200, 500)
        assert info.metadata == {"b": 2}
        with pytest.raises(kernelbroker.BadRequest):
            await session.update(idle_timeout=10**9)


async def test_unavailable_arrives_with_retry_after(tmp_path, scripts, monkeypatch) -> None:
    """A pool without a free sandbox raises `Unavailable`, not ConnectionFailed."""
    stuck = asyncio.Event()

    async def never(_sandbox: object) -> None:
        await stuck.wait()

    async with fake_backend() as backend:
        backend.on_launch = never
        async with world(backend, acquire_timeout=0.6) as w, serving(w) as api:
            url = f"http://127.0.0.1:{api.port}"
            # As with the defaults, the broker waits for longer than `timeout`.
            async with kernelbroker.connect(url, scripts.token, timeout=0.5) as broker:
                with pytest.raises(kernelbroker.Unavailable) as info:
                    await broker.run("c")
            assert info.value.retry_after
            async with kernelbroker.SandboxClient(url, scripts.token) as client:
                with pytest.raises(kernelbroker.Unavailable):
                    await client.execute("c")
            async with kernelbroker.SandboxClient(url, scripts.token, open_timeout=0.1) as client:
                with pytest.raises(kernelbroker.ConnectionFailed, match=r"no session in 0\.1 s"):
                    await client.execute("c")
            stuck.set()


def test_the_default_timeout_is_longer_than_the_brokers() -> None:
    """With the defaults of both sides, the client receives the broker's refusal."""
    from kernelbroker.client import OPEN_TIMEOUT
    from kernelbroker_server.config import Settings

    acquire_timeout = Settings().pool.acquire_timeout
    assert 2 * acquire_timeout <= OPEN_TIMEOUT


async def test_a_restart_may_wait_for_a_sandbox(connected) -> None:
    """`open_timeout` also bounds a restart, which needs a sandbox."""
    connected.silent_on.add(Restart)
    async with (
        kernelbroker.connect(timeout=30, open_timeout=1) as broker,
        broker.session() as session,
    ):
        began = time.monotonic()
        with pytest.raises(kernelbroker.ConnectionLost, match="did not answer in 1 s"):
            await session.restart()
        assert time.monotonic() - began < 10


async def test_allow_stdin_needs_on_input(connected) -> None:
    """`run(allow_stdin=True)` without `on_input` raises ValueError and sends nothing, in each client."""
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(ValueError, match="on_input"):
            await session.run("c", allow_stdin=True)
        with pytest.raises(ValueError, match="on_input"):
            await broker.run("c", allow_stdin=True)
    async with kernelbroker.SandboxClient() as client:
        with pytest.raises(ValueError, match="on_input"):
            await client.execute("c", allow_stdin=True)
    assert not connected.ops(Execute)


async def test_errors_have_attributes(connected) -> None:
    """An error has its details as attributes."""
    body = ErrorBody(code="unavailable", message="Full.", request_id="r1", retry_after=2.5)
    connected.answers.append(ErrorReply(error=body))
    async with kernelbroker.connect() as broker:
        with pytest.raises(kernelbroker.Unavailable) as info:
            await broker.session().open()
    assert (info.value.code, info.value.message) == ("unavailable", "Full.")
    assert (info.value.request_id, info.value.retry_after) == ("r1", 2.5)


async def test_files_stream_has_progress_in_both_clients(connected) -> None:
    """`stream` reports progress; the synchronous client does so in the calling thread."""
    content = b"x" * 100_000
    got: list[tuple[int, int | None]] = []
    async with kernelbroker.connect() as broker, broker.session("s", keep=True) as session:
        await session.files.write("f", content)
        pieces = [piece async for piece in session.files.stream("f", lambda *a: got.append(a))]
        assert b"".join(pieces) == content
        assert got[-1] == (len(content), len(content))

    def work() -> list[tuple[int, int | None]]:
        seen: list[tuple[int, int | None]] = []
        with sync.connect() as broker, broker.attach("s", keep=False) as session:
            pieces = session.files.stream("f", progress=lambda *a: seen.append(a))
            assert b"".join(pieces) == content
        return seen

    assert (await asyncio.to_thread(work))[-1] == (len(content), len(content))


async def test_export_needs_a_format(connected, tmp_path) -> None:
    """If the file name has no known suffix, `format` is required."""
    async with kernelbroker.connect() as broker, broker.session() as session:
        with pytest.raises(ValueError, match="give `format`"):
            await session.export("df", tmp_path / "table.xlsx")
    assert list(tmp_path.iterdir()) == []
