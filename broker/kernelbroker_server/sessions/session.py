"""The public interface of a session: ordered executions, files, and a kernel that can be restarted.

Scheduling is decided in `machine.py` and carried out in `runner.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from kernelbroker.protocol.errors import NotFound, RequestError
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest, MissingVariable
from kernelbroker.protocol.messages import SessionState as PublicState

from ..backends.base import SandboxSpec
from ..cancellation import run_to_completion
from ..kernels.channel import ChannelClosed
from ..kernels.gateway import GatewayConnection
from ..kernels.requests import InternalCell
from ..supervisor import Supervisor
from ..telemetry.events import SessionEmitter
from ..workspaces.quota_watch import Upload
from .admission import TenantQueue
from .borrowing import borrowed
from .execution import Execution
from .lease import Lease
from .limits import SessionLimits
from .progress import Left
from .runner import SessionRunner
from .saved_state import SavedState
from .sleeping import Sleeping
from .states import SessionState
from .store import EventStore, ExecutionLog, SessionRecord, Watcher


class Session:
    """One session, from `open` to `closed`. The registry creates it.

    Args:
        on_ended: called once, when an open session ends, with the session and the reason.
        asleep_at: by the queue's clock, for a session that fell asleep in an earlier broker.

    Attributes:
        sleeping: when it falls asleep.
        key: its key in the event store.
        emit: emits telemetry of this session.
        closed: resolved when its sandbox and workspace are given back.
        drained: resolved when it is closed, or left to the next broker.
    """

    def __init__(
        self,
        record: SessionRecord,
        limits: SessionLimits,
        lease: Lease,
        queue: TenantQueue,
        store: EventStore,
        emit: SessionEmitter,
        on_ended: Callable[[Session, str], None],
        supervisor: Supervisor,
        asleep_at: float | None = None,
    ) -> None:
        self.id, self.key = record.session_id, record.key
        self.options = options = record.options
        self.limits = limits
        self.idle_timeout = min(options.idle_timeout or limits.idle_timeout, limits.max_lifetime)
        self.max_lifetime = min(options.max_lifetime or limits.max_lifetime, limits.max_lifetime)
        self.created_at = record.opened_at
        self._created = queue.clock()
        self._on_ended = on_ended
        self._lease = lease
        self._store = store
        self.emit = emit
        self._runner = runner = SessionRunner(
            record,
            lease,
            queue,
            store,
            emit,
            limits.interrupt_grace,
            self._ended,
            supervisor,
            SessionState.OPENING if asleep_at is None else SessionState.ASLEEP,
        )
        self._machine = runner.machine
        self.sleeping = Sleeping(runner, limits, queue.clock, asleep_at)
        self.closed, self.drained = runner.closed, runner.drained

    # Opening and closing.

    async def open(self, *, adopted: bool = False) -> None:
        """Acquire a sandbox and deliver the session's own settings. If cancelled, the session closes.

        Args:
            adopted: the lease has the sandbox, and the store the session, from an earlier broker.

        Raises:
            TooManyRequests, Unavailable: there is no sandbox.
            BadRequest: the kernel refused `env` or `cwd`.
        """
        if adopted:
            self._created -= max(0.0, time.time() - self.created_at)
        self._runner.open(adopted=adopted)
        try:
            await asyncio.shield(self._runner.opened)
        except asyncio.CancelledError:
            await run_to_completion(self.close("it was given up while it was opened"))
            raise
        except RequestError:
            await run_to_completion(self._until_closed())
            raise

    async def close(self, reason: str) -> None:
        """End the session: running and waiting executions get their results, the sandbox is removed."""
        self._runner.apply(self._machine.close(reason))
        await self._until_closed()

    def close_when_idle(self, reason: str) -> None:
        """Close the session as soon as nothing runs, waits or is transferred. `closed` resolves then."""
        self._runner.apply(self._machine.close_when_idle(reason))

    def leave_when_idle(self, reason: str) -> None:
        """As `close_when_idle`, but if it can go on, leave it to the next broker. `drained` tells when."""
        secret, spec = bool(self.options.secrets), self._lease.sandbox_spec
        decide = self._machine.leave_when_idle
        if secret or not spec.orphan_grace:  # no broker could go on with it
            decide = self._machine.close_when_idle
        self._runner.apply(decide(reason))

    def leave_now(self) -> None:
        """After `leave_when_idle`: leave it with what runs and waits, if the next broker can go on."""
        self._runner.apply(self._machine.leave())

    def hand_over(self) -> None:
        """Give the next broker what it needs of a session that is left. Nothing may follow."""
        self._lease.workspace.hand_over()

    async def leave(self, reason: str) -> None:
        """End a sleeping session here; its saved variables and its record stay for a later broker."""
        self._lease.keep_saved(None)
        await self.close(reason)

    def resume(self, saved: SavedState, awake: float) -> None:
        """Begin asleep, in place of `open`.

        Args:
            awake: seconds that it was awake before it fell asleep.
        """
        self._created = self._runner.active - awake
        self._runner.resume(saved)

    async def settled(self) -> None:
        """Wait until nothing runs, waits or is transferred."""
        await self._runner.settled()

    async def _until_closed(self) -> None:
        await asyncio.wait([self.closed])

    def _ended(self, reason: str) -> None:
        self._on_ended(self, reason)

    # Properties.

    @property
    def state(self) -> PublicState:
        """The state for clients: `busy` while an execution runs or waits."""
        if self.closed_reason is not None:
            return "closed"
        machine = self._machine
        if self.sleeping.is_asleep and not machine.queued:
            return "asleep"
        return "idle" if machine.running is None and not machine.queued else "busy"

    @property
    def closed_reason(self) -> str | None:
        """The reason why the session is closed; None while it is open."""
        return self._machine.closed_reason

    @property
    def is_left(self) -> bool:
        """Whether it accepts nothing more, and is left to the next broker."""
        return self._machine.state is SessionState.LEAVING

    @property
    def queued(self) -> int:
        """The number of waiting executions, except the one that waits for its turn."""
        queue_length = self._machine.queued
        return queue_length - 1 if queue_length and self._machine.running is None else queue_length

    @property
    def spec(self) -> SandboxSpec:
        """The specification of its sandboxes."""
        return self._lease.spec

    @property
    def workspace(self) -> str:
        """The name of its workspace."""
        return self._lease.workspace.name

    @property
    def acquire_timeout(self) -> float:
        """Seconds that a request may wait for its turn in this session."""
        return self._lease.timeout

    @property
    def active_at(self) -> float:
        """When it was last used, in seconds since the epoch."""
        return self._runner.active_at

    @property
    def restarts(self) -> int:
        """How often its kernel was replaced."""
        return self._lease.replaced

    @property
    def outlives_the_broker(self) -> bool:
        """Whether another broker can wake it: its files are kept, and it has no secrets, which are not."""
        return self._lease.workspace.is_kept and not self.options.secrets

    @property
    def not_restored(self) -> Sequence[MissingVariable]:
        """What could not be loaded of the checkpoint that it began with."""
        return self._lease.not_restored

    @property
    def expires_at(self) -> tuple[float, str]:
        """Return the time, by the admission's clock, at which the session expires, and the reason."""
        if (asleep_end := self.sleeping.expires_at) is not None:
            return asleep_end
        end = self._created + self.max_lifetime + self.sleeping.slept
        idle_end = self._runner.active + self.idle_timeout
        if self._machine.idle and idle_end < end:
            return idle_end, f"it was idle for {self.idle_timeout:g} s"
        return end, f"it reached its lifetime of {self.max_lifetime:g} s"

    @property
    def executions(self) -> Mapping[str, ExecutionLog]:
        """Return the remembered executions by id, oldest first."""
        return self._store.executions(self.key)

    def watch(self) -> contextlib.AbstractContextManager[Watcher]:
        """Return a queue of the executions that are accepted from now on; see `EventStore.watch`."""
        return self._store.watch(self.key)

    def execution(self, execution_id: str) -> ExecutionLog:
        """Return an execution. Raises NotFound if it is unknown or forgotten."""
        try:
            return self.executions[execution_id]
        except KeyError:
            raise NotFound(f"session {self.id} has no execution {execution_id}") from None

    def expect_open(self) -> None:
        """Check that the session is open. Raises SessionGone."""
        self._machine.expect_open()

    # Executions.

    def enqueue(
        self,
        execution_id: str,
        request: ExecutionRequest,
        timeout: float,
        *,
        allow_stdin: bool = False,
        findings: Sequence[Finding] = (),
        internal_cell: InternalCell | None = None,
        listed: bool = True,
    ) -> Execution:
        """Queue a cell, or an internal cell in its place, that the tenant's queue has admitted.

        Args:
            timeout: seconds.
            listed: the session's history lists it.

        Raises:
            SessionGone
        """
        self.expect_open()
        packages = internal_cell.packages if internal_cell is not None else ()
        log = self._store.create_execution(
            self.key if listed else None,
            execution_id,
            request,
            packages,
            findings,
            allow_stdin=allow_stdin,
        )
        return self._submit(log, timeout, internal_cell)

    def go_on(self, left: Left | None) -> Sequence[Execution]:
        """Go on with the executions that an earlier broker has left in the log, also those that waited.

        Args:
            left: the one that ran.

        Returns:
            Those that have not ended.
        """
        found = []
        for log in self.executions.values():
            if log.result is None:
                self._runner.readmit()
                # Of an installation nothing is needed but its end.
                installs = InternalCell("", {}, silent=False, packages=log.packages)
                cell = installs if log.packages else None
                ran = left if log.state == "running" else None
                timeout = (
                    self.limits.timeout_of(log.request) if ran is None else ran.progress.timeout
                )
                found.append(self._submit(log, timeout, cell, ran))
        return found

    def _submit(
        self,
        log: ExecutionLog,
        timeout: float,
        internal_cell: InternalCell | None,
        left: Left | None = None,
    ) -> Execution:
        execution = Execution(
            log,
            timeout,
            self.limits.output,
            secrets=self.options.secrets.values(),
            internal_cell=internal_cell,
            left=left,
        )
        execution.ids = {**execution.ids, "session_id": self.id, "execution_id": execution.id}
        self._runner.submit(execution)
        return execution

    def withdraw(self, execution: Execution) -> None:
        """Take an internal cell out of the queue, or interrupt it. Does nothing if it has ended."""
        if self.closed_reason is None and not execution.done.done():
            self._runner.apply(self._machine.interrupt(execution.id))

    def interrupt(self, execution_id: str | None = None) -> None:
        """Raise KeyboardInterrupt in the running cell. Does nothing if none runs.

        With an id, interrupt only that execution. A waiting one is taken out of the queue.

        Raises:
            SessionGone
        """
        self._runner.apply(self._machine.interrupt(execution_id))

    async def answer(self, execution_id: str, value: str) -> None:
        """Answer `input()` in an execution.

        Raises:
            NotFound: there is no such execution.
            ChannelClosed: it does not wait for input.
        """
        execution = self._runner.executions.get(execution_id)
        if execution is None:
            self.execution(execution_id)
            raise ChannelClosed("the execution has ended")
        await execution.answer(value)

    async def restart(self) -> None:
        """Replace the kernel: state lost, files kept. A running cell ends; waiting ones stay queued.

        Raises:
            SessionGone, Unavailable
        """
        self.expect_open()
        await self._runner.restart()

    def borrow(
        self, *, changes: bool = False
    ) -> contextlib.AbstractAsyncContextManager[GatewayConnection]:
        """Yield the gateway of the living sandbox; see `borrowing.borrowed`."""
        return borrowed(self._runner, self._lease, changes=changes)

    def upload(self, size: int) -> contextlib.AbstractAsyncContextManager[Upload]:
        """Reserve space for an upload; see `QuotaWatch.upload`."""
        return self._runner.watch.upload(size)
