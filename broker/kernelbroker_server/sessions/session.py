"""The public interface of a session: ordered executions, files, and a kernel that can be restarted.

Scheduling is decided in `machine.py` and carried out in `runner.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from kernelbroker.protocol.errors import RequestError
from kernelbroker.protocol.events import Result
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest

from ..cancellation import run_to_completion
from ..kernels.channel import ChannelClosed
from ..kernels.requests import InternalCell, NotebookCell
from ..supervisor import Supervisor
from ..telemetry.events import SessionEmitter
from ..workspaces.disk_room import DiskRoom
from ..workspaces.quota_watch import QuotaWatch
from .admission import TenantQueue
from .effects import Failure
from .execution import Execution
from .lease import Lease
from .limits import SessionLimits
from .lost_results import lost_result
from .progress import LeftExecution
from .routes import Place
from .runner import SessionRunner
from .sandbox_user import SandboxUser
from .saved_state import SavedState, note_slept, slept_before
from .sleeping import Sleeping
from .states import SessionState
from .store import EventStore, ExecutionLog, SessionRecord
from .streams import Streams

_SKIPPED = Failure("rejected", "Aborted", "a cell before it failed")


class Session(SandboxUser):
    """One session, from `open` to `closed`. The registry creates it.

    Args:
        on_ended: called once, when an open session ends, with the session and the reason.
        asleep_at: by the queue's clock, for a session that fell asleep in an earlier broker.
        context_of: the session that this one is a context of; it shares the sandbox of that one.

    Attributes:
        emit: emits telemetry of this session.
        feed: what its kernels send.
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
        room: DiskRoom,
        asleep_at: float | None = None,
        context_of: Session | None = None,
    ) -> None:
        super().__init__(context_of)
        self.id, self.key, self._tenant = record.session_id, record.key, record.tenant
        self.options = options = record.options
        self._limits = limits
        self.idle_timeout = min(options.idle_timeout or limits.idle_timeout, limits.max_lifetime)
        self.max_lifetime = min(options.max_lifetime or limits.max_lifetime, limits.max_lifetime)
        self.created_at, self.origin = record.opened_at, record.origin
        self._created = queue.clock()
        self._on_ended = on_ended
        self._lease, self.feed = lease, lease.feed
        self._store = store
        self._queue = queue
        self.emit = emit
        watch = QuotaWatch(
            lease.quota,
            lease.workspace.initial_usage,
            usage=lease.usage,
            grace=limits.interrupt_grace,
            room=room,
        )
        watch = watch if context_of is None else context_of._runner.watch
        self._runner = runner = SessionRunner(
            record,
            lease,
            queue,
            store,
            emit,
            limits.interrupt_grace,
            self._ended,
            supervisor,
            watch,
            SessionState.OPENING if asleep_at is None else SessionState.ASLEEP,
        )
        self._machine = runner.machine
        self.streams = Streams(runner)
        self.sleeping = Sleeping(
            runner,
            limits,
            queue.clock,
            self.streams,
            asleep_at,
            at_end=options.on_expiry == "sleep",
            on_woken=self._woken,
        )
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
            self.sleeping.adopt(slept_before(self._store, self._tenant, self.key))
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
        """Close the session as soon as nothing runs, waits or is transferred. `closed` resolves then.

        Its contexts are closed so before it.
        """
        for context in (*self.contexts.values(),):
            context.close_when_idle(reason)
        self._after_contexts(lambda: self._machine.close_when_idle(reason))

    def leave_when_idle(self, reason: str) -> None:
        """As `close_when_idle`, but if it can go on, leave it to the next broker. `drained` tells when."""
        secret, spec = bool(self.options.secrets), self._lease.sandbox_spec
        decide = self._machine.leave_when_idle
        if secret or not spec.orphan_grace:  # no broker could go on with it
            decide = self._machine.close_when_idle
        for context in (*self.contexts.values(),):
            context.leave_when_idle(reason)
        self._after_contexts(lambda: decide(reason))

    def leave_now(self) -> None:
        """After `leave_when_idle`: leave it with what runs and waits, if the next broker can go on."""
        for context in (*self.contexts.values(),):
            context.leave_now()
        if (decide := self._pending) is not None:
            self._pending = None
            self._runner.apply(decide())
        running = self._runner.executions.get(self._machine.running or "")
        if running is None or not running.request.secrets:  # their values are not stored
            self._runner.apply(self._machine.leave())

    def hand_over(self) -> None:
        """Give the next broker what it needs of a session that is left. Nothing may follow."""
        self._lease.hand_over()

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

    def _woken(self) -> None:
        slept = max(0.0, time.time() - self.created_at - self.age)
        note_slept(self._store, self._tenant, self.key, slept, self._limits.max_lifetime)

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
        notebook_cell: NotebookCell | None = None,
        listed: bool = True,
        place: Place | None = None,
    ) -> Execution:
        """Queue a cell, or another one in its place, that the tenant's queue has admitted.

        Args:
            timeout: seconds.
            listed: the session's history lists it.
            place: where it runs, if the session is routed.

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
        return self._submit(log, timeout, internal_cell, notebook_cell=notebook_cell, place=place)

    def reject(self, execution_id: str, request: ExecutionRequest, result: Result) -> ExecutionLog:
        """Store a cell that must not run, with its result. Raises SessionGone."""
        self.expect_open()
        log = self._store.create_execution(self.key, execution_id, request, (), ())
        log.append(result)
        return log

    def go_on(self, left: LeftExecution | None) -> Sequence[Execution]:
        """Go on with the executions that an earlier broker has left in the log, also those that waited.

        Args:
            left: the one that ran.

        Returns:
            Those that have not ended.
        """
        found = []
        for log in self.executions.values():
            ran = left if log.state == "running" else None
            if log.result is not None:
                continue
            if ran is not None and log.packages and not ran.was_sent:
                ran.channel.release()
                log.append(lost_result("the broker ended before it began", begun=False))
                continue
            # Of an installation nothing is needed but its end.
            installs = InternalCell("", {}, silent=False, packages=log.packages)
            timeout = log.request.timeout or self.limits.default_timeout
            self._queue.readmit()
            timeout = timeout if ran is None else ran.progress.timeout
            # Where it was to run is not known any more, so it runs isolated.
            place = None if self.routes is None or ran is not None else self.routes.isolated()
            cell = installs if log.packages else None
            found.append(self._submit(log, timeout, cell, ran, place=place))
        return found

    def _submit(
        self,
        log: ExecutionLog,
        timeout: float,
        internal_cell: InternalCell | None,
        left: LeftExecution | None = None,
        place: Place | None = None,
        notebook_cell: NotebookCell | None = None,
    ) -> Execution:
        execution = Execution(
            log,
            timeout,
            self.output_limits,
            secrets=self.options.secrets.values(),
            internal_cell=internal_cell,
            notebook_cell=notebook_cell,
            left=left,
            place=place,
        )
        if notebook_cell is not None:
            on_end = notebook_cell.on_end
            execution.done.add_done_callback(lambda done: on_end(done.result()))
        execution.ids = {**execution.ids, "session_id": self.id, "execution_id": execution.id}
        self._runner.submit(execution)
        return execution

    def withdraw(self, execution: Execution) -> None:
        """Take an internal cell out of the queue, or interrupt it. Does nothing if it has ended."""
        if self.closed_reason is None and not execution.done.done():
            self._runner.apply(self._machine.interrupt(execution.id))

    def skip_notebook_cells(self) -> None:
        """End the cells of Jupyter clients that wait, as a stock kernel does after a cell that failed."""
        if self.closed_reason is None:
            for execution in list(self._runner.executions.values()):
                if execution.is_notebook_cell:
                    self._runner.apply(self._machine.reject(execution.id, _SKIPPED))

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
