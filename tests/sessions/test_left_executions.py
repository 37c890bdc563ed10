"""Executions that an earlier broker has left: another one goes on with them, at any message."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kernelbroker.protocol.events import Event, Result, Started, Stdout
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.kernels import channel as channels
from kernelbroker_server.kernels.channel import KernelChannel
from kernelbroker_server.kernels.execution import CellExecution
from kernelbroker_server.kernels.framing import Outgoing
from kernelbroker_server.kernels.gateway import GatewayConnection
from kernelbroker_server.kernels.outputs import OutputLimits
from kernelbroker_server.pool.warm_sandbox import WarmSandbox
from kernelbroker_server.sessions.durable_store import DurableStore
from kernelbroker_server.sessions.execution import Execution
from kernelbroker_server.sessions.memory_store import REMEMBERED
from kernelbroker_server.sessions.progress import LeftExecution, Progress, decode_progress
from kernelbroker_server.sessions.store import ExecutionLog, SessionRecord

from tests.support.backend import FakeSandbox
from tests.support.gateway import Cell
from tests.support.results import cause_of
from tests.support.waiting import DEADLINE_S, until

LINES = 30
KEY = "the key"


async def lines(cell: Cell) -> None:
    for number in range(LINES):
        cell.stdout(f"line {number}\n")
        if number % 3 == 0:
            await asyncio.sleep(0)


async def lines_later(cell: Cell) -> None:
    """Print when a broker has left the cell."""
    cell.stdout("begins\n")
    await cell.interrupted.wait()
    await lines(cell)


async def interrupted_late(cell: Cell) -> None:
    """React to an interrupt when the broker that has sent it is gone."""
    cell.stdout("begins\n")
    await cell.interrupted.wait()
    await until(lambda: not cell.kernel.connected.is_set())
    await cell.until_interrupted()


SCRIPTS = {"lines": lines, "lines later": lines_later, "interrupted late": interrupted_late}


@pytest.fixture
async def sandbox() -> AsyncIterator[FakeSandbox]:
    """It outlives the brokers."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        sandbox = FakeSandbox("s", SandboxSpec(), Path(name), dict(SCRIPTS))
        sandbox.gateway.start()
        yield sandbox
        await sandbox.gateway.stop()


@pytest.fixture(autouse=True)
def acknowledged_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "_YIELD_MESSAGES", 2)
        patch.setattr(channels, "_ACKNOWLEDGED_MESSAGES", 6)
        yield


class Broker:
    """As much of a broker as runs one execution."""

    def __init__(self, path: Path, sandbox: FakeSandbox) -> None:
        self.store = DurableStore(path)
        self.connection = GatewayConnection(sandbox.endpoint)
        self._path = path
        self._sandbox = sandbox
        self.execution: Execution | None = None
        self._running: asyncio.Task[None] | None = None

    async def begin(self, request: ExecutionRequest) -> ExecutionLog:
        """Run an execution."""
        await self.store.start()
        await self.store.end_lost()
        self.store.record_session(SessionRecord(KEY, "default", "mine", SessionOptions()))
        log = self.store.create_execution(KEY, "e", request)
        self._run(log, await self.connection.start_kernel(DEADLINE_S))
        return log

    async def go_on(self) -> ExecutionLog:
        """Go on with what an earlier broker has left, unless it has ended."""
        await self.store.start()
        (session,) = await self.store.adoptable()
        await self.store.end_lost({KEY})
        log = self.store.executions(KEY)["e"]
        if session.progress is not None:
            assert log.state == "running"
            progress = decode_progress(session.progress)
            assert progress.received >= self._sandbox.gateway.acknowledged
            channel = await self.connection.join_kernel("the-kernel", DEADLINE_S, progress.received)
            self._run(log, channel, LeftExecution(progress, channel))
        return log

    def _run(
        self, log: ExecutionLog, channel: KernelChannel, left: LeftExecution | None = None
    ) -> None:
        async def remark(_result: Result) -> None:
            return None

        warm = WarmSandbox(self._sandbox, self.connection, channel)
        self.execution = Execution(log, DEADLINE_S, OutputLimits(), left=left)
        self._running = asyncio.create_task(
            self.execution.run(warm, grace=1, state_lost=False, remark=remark)  # type: ignore[arg-type]
        )

    async def kill(self) -> Broker:
        """Return the next broker, which has the files as a kill would leave them now."""
        for channel in self.connection.channels:
            channel._reader.cancel()
            channel._websocket.transport.abort()
        copy = self._path.with_name(f"{self._path.name}+")
        shutil.copytree(self._path, copy)
        await self.stop()
        return Broker(copy, self._sandbox)

    async def detach(self) -> None:
        """Leave the execution, as a stop does before the connections are closed."""
        assert self.execution is not None
        assert self._running is not None
        self.execution.is_detached = True
        self._running.cancel()
        await asyncio.wait([self._running])

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await self.connection.close()
        await self.store.stop()


async def events_of(log: ExecutionLog) -> list[Event]:
    async with asyncio.timeout(DEADLINE_S):
        return [stored.event async for stored in log.follow()]


@pytest.mark.parametrize(
    "kills", [*((n,) for n in range(1, 32, 3)), (5, 20), (1, 2, 3), (9, 9, 30)]
)
async def test_each_event_comes_once(
    sandbox: FakeSandbox, tmp_path: Path, kills: tuple[int, ...]
) -> None:
    """Brokers are killed when they have stored so many events."""
    broker = Broker(tmp_path / "state", sandbox)
    log = await broker.begin(ExecutionRequest(code="lines"))
    for seq in kills:
        async for stored in log.follow():
            if stored.event.seq >= seq:
                break
        broker = await broker.kill()
        log = await broker.go_on()
    events = await events_of(log)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    first, *middle, last = events
    assert isinstance(first, Started)
    assert isinstance(last, Result)
    assert last.success
    text = "".join(event.content for event in middle if isinstance(event, Stdout))
    assert text == "".join(f"line {number}\n" for number in range(LINES))
    assert len(sandbox.gateway.cells) == 1
    assert sandbox.gateway.acknowledged > 0
    await broker.stop()


async def test_a_broker_that_leaves_acknowledges_nothing(
    sandbox: FakeSandbox, tmp_path: Path
) -> None:
    """What the cell prints between the leaving and the end of the connection is the next broker's."""
    broker = Broker(tmp_path / "state", sandbox)
    log = await broker.begin(ExecutionRequest(code="lines later"))
    async for stored in log.follow():
        if isinstance(stored.event, Stdout):
            break
    await broker.detach()
    sandbox.gateway.interrupt()
    (channel,) = broker.connection.channels
    await until(lambda: channel.received >= LINES)
    broker = await broker.kill()
    events = await events_of(await broker.go_on())
    text = "".join(event.content for event in events if isinstance(event, Stdout))
    assert text == "begins\n" + "".join(f"line {number}\n" for number in range(LINES))
    await broker.stop()


async def test_the_reason_of_an_interrupt_is_kept(sandbox: FakeSandbox, tmp_path: Path) -> None:
    """A cell that ends by an interrupt of an earlier broker says so."""
    broker = Broker(tmp_path / "state", sandbox)
    log = await broker.begin(ExecutionRequest(code="interrupted late"))
    async for stored in log.follow():
        if isinstance(stored.event, Stdout):
            break
    assert broker.execution is not None
    broker.execution.interrupt("quota_exceeded", "too many files")
    await until(lambda: sandbox.gateway.interrupts == 1)
    broker = await broker.kill()
    *_, result = await events_of(await broker.go_on())
    assert isinstance(result, Result)
    assert cause_of(result) == "quota_exceeded"
    await broker.stop()


async def test_only_the_latest_execution_goes_on(tmp_path: Path) -> None:
    """What was not stored before a later one began has ended: it is neither run again nor gone on with."""
    store = DurableStore(tmp_path / "state")
    await store.start()
    store.record_session(SessionRecord(KEY, "default", "mine", SessionOptions()))
    request = ExecutionRequest(code="1")
    progress = [
        Progress(0, 1, False, 0, number, 0, CellExecution(request, OutputLimits()).state)
        for number in range(2)
    ]
    store.create_execution(KEY, "not begun, it seems", request)
    store.create_execution(KEY, "not ended, it seems", request).begin(progress[0])
    store.create_execution(KEY, "runs", request).begin(progress[1])
    await store.stop()
    store = DurableStore(tmp_path / "state")
    await store.start()
    (session,) = await store.adoptable()
    assert session.progress is not None
    assert decode_progress(session.progress).received == 1
    await store.end_lost([KEY])
    logs = store.executions(KEY)
    assert logs["runs"].result is None
    for name in ("not begun, it seems", "not ended, it seems"):
        result = logs[name].result
        assert result is not None
        assert cause_of(result) == "sandbox_lost"
    await store.stop()


async def test_all_that_wait_are_restored(tmp_path: Path) -> None:
    """More executions may wait than ended ones are remembered; the one that runs is the oldest."""
    store = DurableStore(tmp_path / "state")
    await store.start()
    store.record_session(SessionRecord(KEY, "default", "mine", SessionOptions()))
    request = ExecutionRequest(code="1")
    progress = Progress(0, 1, False, 0, 0, 0, CellExecution(request, OutputLimits()).state)
    for number in range(3):
        store.create_execution(KEY, f"ended {number}", request).append(Result(success=True))
    store.create_execution(KEY, "runs", request).begin(progress)
    waiting = [f"waits {number}" for number in range(REMEMBERED + 20)]
    for name in waiting:
        store.create_execution(KEY, name, request)
    await store.stop()
    store = DurableStore(tmp_path / "state")
    await store.start()
    assert [each.record.key for each in await store.adoptable()] == [KEY]
    await store.end_lost([KEY])
    assert list(store.executions(KEY)) == ["runs", *waiting]
    await store.stop()


@pytest.mark.parametrize("sent", [0, 1, 2])
async def test_what_was_not_sent_is_sent_once(
    sandbox: FakeSandbox, tmp_path: Path, sent: int
) -> None:
    """The broker was killed before it had sent the cell, or the report cell behind it."""
    request = ExecutionRequest(code="lines", result_var="x")
    path = tmp_path / "state"
    earlier = DurableStore(path)
    await earlier.start()
    earlier.record_session(SessionRecord(KEY, "default", "mine", SessionOptions()))
    log = earlier.create_execution(KEY, "e", request)
    connection = GatewayConnection(sandbox.endpoint)
    channel = await connection.start_kernel(DEADLINE_S)
    await channel.send(Outgoing("shell", "kernel_info_request", {}))
    cell = CellExecution(request, OutputLimits())
    log.begin(Progress(time.monotonic(), DEADLINE_S, False, channel.sent, 0, 0, cell.state))
    for message in cell.outgoing[:sent]:
        await channel.send(message)
    await until(lambda: sandbox.gateway.received == 1 + sent)
    await connection.close()
    await earlier.stop()
    broker = Broker(path, sandbox)
    events = await events_of(await broker.go_on())
    assert isinstance(events[-1], Result)
    assert [each.msg_id for each in sandbox.gateway.cells] == list(cell.state.ids)
    await broker.stop()


async def test_what_is_not_stored_cannot_go_on(sandbox: FakeSandbox, tmp_path: Path) -> None:
    """Executions with secrets, and sessions in which one runs: they end, and say so."""
    store = DurableStore(tmp_path / "state")
    await store.start()
    for key in ("plain", "secret", "waits"):
        store.record_session(SessionRecord(key, "default", key, SessionOptions()))
    progress = Progress(
        0, 1, False, 0, 0, 0, CellExecution(ExecutionRequest(code="1"), OutputLimits()).state
    )
    secret = ExecutionRequest(code="1", secrets={"KEY": "hidden value"})
    for key, request in (("plain", ExecutionRequest(code="1")), ("secret", secret)):
        store.create_execution(key, "runs", request).begin(progress)
    for name, request in (("waits", ExecutionRequest(code="1")), ("secret", secret)):
        store.create_execution("waits", name, request, allow_stdin=True)
    store.create_execution("waits", "installs", ExecutionRequest(code="1"), ["package"])
    await store.stop()
    store = DurableStore(tmp_path / "state")
    await store.start()
    left = {each.record.key: each for each in await store.adoptable()}
    assert left.keys() == {"plain", "waits"}
    assert left["plain"].progress is not None
    assert left["waits"].progress is None
    await store.end_lost(left.keys())
    (plain,) = store.executions("plain").values()
    assert (plain.state, plain.result) == ("running", None)
    logs = store.executions("waits")
    assert (logs["waits"].state, logs["waits"].allow_stdin) == ("queued", True)
    for name in ("secret", "installs"):
        result = logs[name].result
        assert result is not None
        assert cause_of(result) == "rejected"
    (lost,) = await store.past_executions("default", "secret")
    assert lost.result is not None
    assert cause_of(lost.result) == "sandbox_lost"
    await store.stop()
