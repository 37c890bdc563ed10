"""A session: one lease, one workspace, and executions that run one after the other.

This is what others ask of it, and its life from open to close. What runs when is seen to by its worker
(`worker.py`), what is remembered by its history (`history.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import (
    Conflict,
    NotFound,
    RequestError,
    SessionGone,
)
from kernelbroker.protocol.findings import Assessment
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

from ..backends.base import SandboxSpec
from ..backends.usage import Usage
from ..kernels.client import KernelClient
from ..kernels.requests import Errand
from ..pool.runner import Pool
from ..telemetry.facts import (
    ExecutionEnded,
    Observer,
    SessionClosed,
    SessionOpened,
    Teller,
    code_hash,
)
from ..telemetry.logs import apart
from .execution import Execution
from .gate import Door
from .history import History
from .lease import Lease
from .limits import SessionLimits
from .policy import Policies
from .quota import Quota, Upload, Watch
from .visits import Visits
from .worker import Worker
from .workspace import Workspace

logger = logging.getLogger(__name__)

Measure: TypeAlias = Callable[[Path, int], Awaitable[Usage]]


class SessionState(enum.StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    CLOSED = "closed"


class Session:
    """Made by the registry, by `open`.

    `on_closed` is called once, with the reason.

    Attributes:
        scope: where confirmations are good: in this session, unless it is one of a single execution.
        weight: bytes that it holds besides its executions: what it was opened with.
    """

    def __init__(
        self,
        session_id: str,
        options: SessionOptions,
        limits: SessionLimits,
        pool: Pool,
        door: Door,
        policies: Policies,
        workspace: Workspace,
        measure: Measure,
        observer: Observer,
        on_closed: Callable[[Session, str], None],
    ) -> None:
        self.id = self.scope = session_id
        self.options = options
        self.weight = len(encode(options))
        self.limits = limits
        self.idle_timeout = min(options.idle_timeout or limits.idle_timeout, limits.max_lifetime)
        self.max_lifetime = min(options.max_lifetime or limits.max_lifetime, limits.max_lifetime)
        self.created_at = time.time()  # to be shown; the deadlines are by a clock that nobody sets
        self._opened = door.clock()
        self.executions = History()
        self.workspace = workspace.name
        self._on_closed = on_closed
        self._tell = Teller(observer, door.tenant, options.template, session_id)
        self._door = door
        self._policies = policies
        self._lease = Lease(pool, options, workspace, door.tenant, self._tell)
        wake = asyncio.Event()
        self._visits = Visits(self._lease, wake)
        self._watch = Watch(
            Quota.of(pool.spec.limits),
            workspace.before,
            measure=measure,
            workspace=lambda: self._lease.workspace,
            running=lambda: self._worker.running,
            replace=lambda: self._worker.displace(),
            grace=limits.interrupt_grace,
        )
        self._worker = Worker(
            self._lease, self._visits, self._watch, door, wake, limits.interrupt_grace
        )
        self._retiring = ""
        self._working: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    # Open and close.

    async def open(self) -> None:
        """Acquire a sandbox and deliver what belongs to this session alone.

        Raises:
            TooManyRequests, Unavailable: there is no sandbox to be had.
            BadRequest: the kernel refused `env` or `cwd`.
        """
        try:
            await self._lease.acquire()
        except BaseException:
            await self._lease.release()
            raise
        for_all = apart("tenant", session_id=self.id)
        self._working = asyncio.create_task(
            self._work(), name=f"session {self.id}", context=for_all.copy()
        )
        self._watching = asyncio.create_task(
            self._watch.run(), name=f"session {self.id} watch", context=for_all
        )
        self._tell(SessionOpened)

    async def close(self, reason: str) -> None:
        """End the session: running and waiting executions get their results, the sandbox goes."""
        working = self._working
        if self.closed_reason is None:
            self._closed(reason)
            if working and self._worker.waits:
                # Not at once: a task that is cancelled before its first step would give nothing back.
                asyncio.get_running_loop().call_soon(working.cancel)
        if working is not None:
            await asyncio.wait([working])

    async def retire(self, reason: str) -> None:
        """As `close`, but what runs, waits or is transferred may end before."""
        self._retiring = reason
        self._worker.finish()
        if self._working is not None:
            await asyncio.wait([self._working])

    async def _work(self) -> None:
        try:
            await self._worker.run()
            if self.closed_reason is None:
                self._closed(self._retiring)
        except Exception:
            logger.exception("session %s failed", self.id)
            if self.closed_reason is None:
                self._closed("a fault of the broker's own")
        finally:
            if self._watching is not None:
                self._watching.cancel()
            self._worker.end(self.id)
            self.executions.end()
            await self._lease.release()

    def _closed(self, reason: str) -> None:
        self._worker.stop(reason)
        self._on_closed(self, reason)
        self._tell(SessionClosed, reason)

    @property
    def closed_reason(self) -> str | None:
        """None while it is open."""
        return self._worker.stopped

    @property
    def state(self) -> SessionState:
        if self.closed_reason is not None:
            return SessionState.CLOSED
        busy = self._worker.running is not None or self._worker.queued
        return SessionState.BUSY if busy else SessionState.IDLE

    @property
    def spec(self) -> SandboxSpec:
        """What its sandboxes are made by."""
        return self._lease.spec

    @property
    def patience(self) -> float:
        """Seconds that something may wait for its turn in this session."""
        return self._lease.timeout

    @property
    def restarts(self) -> int:
        """How often its kernel was replaced."""
        return self._lease.replaced

    @property
    def queued(self) -> int:
        return self._worker.queued

    @property
    def active_at(self) -> float:
        """When it was last used, in seconds since the epoch."""
        return self._worker.active_at

    @property
    def expires_at(self) -> tuple[float, str]:
        """The time, by the door's clock, at which it is to be closed as things stand; and why."""
        end = self._opened + self.max_lifetime
        idle_end = self._worker.active + self.idle_timeout
        if self.state is SessionState.IDLE and not self._visits.count and idle_end < end:
            return idle_end, f"it was idle for {self.idle_timeout:g} s"
        return end, f"it reached its lifetime of {self.max_lifetime:g} s"

    # Executions.

    async def judge(self, request: ExecutionRequest) -> Assessment | None:
        """What `submit` wants to know of the code; None where it does not matter.

        Raises: as `submit`.
        """
        self._expect_open()
        if request.execution_id in self.executions:
            return None
        self.limits.timeout_of(request)
        return await self._policies.judge(request, self.options.template)

    def submit(
        self,
        request: ExecutionRequest,
        *,
        allow_stdin: bool = False,
        assessment: Assessment | None = None,
        errand: Errand | None = None,
    ) -> Execution:
        """Queue a cell, or an errand in its place.

        The same request under the same id is the same execution, not a second one, and needs no second
        confirmation.

        Raises:
            BadRequest, TooManyRequests, Conflict, SessionGone.
            PolicyRefused, ConfirmationRequired: the session's policy does not let it run, or not yet.
        """
        self._expect_open()
        asked, request = request, msgspec.structs.replace(request, confirm=None)
        if request.execution_id is not None:
            earlier = self.executions.get(request.execution_id)
            if earlier is not None:
                if earlier.request != request:
                    raise Conflict(
                        f"execution {request.execution_id} is another one; choose a new execution_id"
                    )
                return earlier
        timeout = self.limits.timeout_of(request)
        self._door.enter()
        try:
            findings = self._policies.admit(asked, self.options.template, self.scope, assessment)
        except RequestError:
            self._door.leave()
            raise
        execution = Execution(
            request.execution_id or self._door.new_id(),
            request,
            timeout,
            self.limits.output,
            allow_stdin=allow_stdin,
            secrets=self.options.secrets.values(),
            findings=findings,
            on_done=self._executed,
            errand=errand,
        )
        execution.ids = {**execution.ids, "session_id": self.id, "execution_id": execution.id}
        self._worker.enqueue(execution)
        self.executions.add(execution)
        return execution

    def _executed(self, execution: Execution) -> None:
        result, request, total = execution.journal.result, execution.request, execution.age
        assert result is not None, "it has ended"
        self._tell(
            ExecutionEnded,
            execution_id=execution.id,
            language=request.language,
            code_sha256=code_hash(request.code),
            outcome=execution.outcome,
            started_at=execution.accepted_at,
            queued_s=total if execution.queued_s is None else execution.queued_s,
            total_s=total,
            output_bytes=execution.journal.size,
            packages=execution.packages,
        )

    def run_errand(self, errand: Errand) -> Execution:
        """Queue a cell of the broker's own, which is in no list; the caller's next duty is `withdraw`.

        Raises:
            TooManyRequests, Unavailable, SessionGone.
        """
        self._expect_open()
        execution = Execution(
            self._door.new_id(),
            ExecutionRequest(code=""),
            self.limits.max_timeout,
            self.limits.output,
            secrets=self.options.secrets.values(),
            errand=errand,
        )
        self._door.enter()
        self._worker.enqueue(execution)
        return execution

    def withdraw(self, errand: Execution) -> None:
        """Take an errand out of the line, or interrupt it; does nothing to one that has ended."""
        self._worker.withdraw(errand)

    def execution(self, execution_id: str) -> Execution:
        """Raises NotFound where it is not known, or not remembered any more."""
        try:
            return self.executions[execution_id]
        except KeyError:
            raise NotFound(f"session {self.id} has no execution {execution_id}") from None

    def interrupt(self, execution_id: str | None = None) -> None:
        """Raise KeyboardInterrupt in the running cell; does nothing where none runs.

        With an id, that execution alone is meant: one that waits is taken out of the line.
        """
        self._expect_open()
        self._worker.interrupt(execution_id)

    async def restart(self) -> None:
        """Replace the kernel: state lost, files kept. A running cell ends; waiting ones stay in line.

        Raises:
            SessionGone, Unavailable.
        """
        self._expect_open()
        await self._worker.restart()

    @contextlib.asynccontextmanager
    async def visit(self, *, changes: bool = False) -> AsyncIterator[KernelClient]:
        """The living sandbox's gateway, for something beside the executions; it counts as activity.

        Args:
            changes: something is changed there: if the sandbox was replaced meanwhile, it may be lost.

        Raises:
            SessionGone, TooManyRequests, Unavailable.
        """
        self._expect_open()
        try:
            async with self._visits.visit(changes=changes) as client:
                self._expect_open()
                yield client
        finally:
            self._worker.touch()
            if changes:
                self._watch.visited()

    def upload(self, size: int) -> AbstractAsyncContextManager[Upload]:
        """As `Watch.upload`."""
        return self._watch.upload(size)

    def _expect_open(self) -> None:
        if self.closed_reason is not None:
            raise SessionGone(f"session {self.id} is closed: {self.closed_reason}")
