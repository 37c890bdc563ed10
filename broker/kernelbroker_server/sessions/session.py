"""A session: one lease, one workspace, and executions that run one after the other.

One task, the worker, owns the lease and runs what is queued; everybody else only queues, looks, and
signals. A kernel that died or would not stop is replaced by a fresh sandbox, with the files moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import (
    BadRequest,
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
from ..kernels.execution import Errand
from ..kernels.outputs import OutputLimits
from ..pool.runner import Pool
from ..telemetry.logs import apart, bound
from .execution import Abort, Execution, ExecutionState
from .gate import Door
from .lease import Lease
from .policy import Policies
from .quota import Quota, Watch
from .visits import Visits
from .workspace import Workspace

logger = logging.getLogger(__name__)

Measure: TypeAlias = Callable[[Path, int], Awaitable[Usage]]

_HISTORY = 100
"""Executions that a session remembers."""
_HISTORY_BYTES = 32 * 1024**2
"""What their journals may hold together, besides the latest."""
_WATCHER_LAG = 200
"""Executions that a watcher may be behind before it is cut off."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Durations in seconds."""

    idle_timeout: float = 1800.0
    max_lifetime: float = 7200.0
    default_timeout: float = 30.0
    max_timeout: float = 300.0
    interrupt_grace: float = 2.0
    max_code_chars: int = 100_000
    max_preview_rows: int = 500
    max_file_bytes: int = 100 * 1024**2
    max_metadata_bytes: int = 16 * 1024
    output: OutputLimits = field(default_factory=OutputLimits)

    def timeout_of(self, request: ExecutionRequest) -> float:
        """The execution's timeout, in seconds. Raises BadRequest where the request is beyond a limit."""
        if len(request.code) > self.max_code_chars:
            raise BadRequest(
                f"the code has {len(request.code):,} characters; {self.max_code_chars:,} is the limit. "
                "Write large data to a file in the workspace instead"
            )
        if request.preview_rows > self.max_preview_rows:
            raise BadRequest(f"preview_rows is at most {self.max_preview_rows}")
        if request.timeout is not None and request.timeout > self.max_timeout:
            raise BadRequest(f"timeout is at most {self.max_timeout:g} s")
        return request.timeout or self.default_timeout

    def check_metadata(self, metadata: dict[str, Any]) -> None:
        """Raises BadRequest where it is more than a session keeps."""
        size = len(encode(metadata))
        if size > self.max_metadata_bytes:
            raise BadRequest(
                f"metadata has {size:,} bytes as JSON; {self.max_metadata_bytes:,} is the limit. "
                "Keep what is larger in a file of the workspace"
            )


class SessionState(enum.StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    CLOSED = "closed"


class Session:
    """Made by the registry, by `open`.

    `on_closed` is called once, with the reason; `on_executed` for each execution that has ended;
    `on_lease` with the id of each sandbox that it gets, and the seconds that it waited; `on_replace`
    with the reason why one is given up for another.

    Attributes:
        scope: where confirmations are good: in this session, unless it is one of a single execution.
    """

    def __init__(
        self,
        session_id: str,
        options: SessionOptions,
        limits: SessionLimits,
        pool: Pool,
        door: Door,
        on_closed: Callable[[Session, str], None],
        on_executed: Callable[[Session, Execution], None],
        on_lease: Callable[[Session, str, float], None],
        on_replace: Callable[[Session, str], None],
        policies: Policies,
        workspace: Workspace,
        measure: Measure,
    ) -> None:
        self.id = self.scope = session_id
        self.options = options
        self.limits = limits
        self.idle_timeout = min(options.idle_timeout or limits.idle_timeout, limits.max_lifetime)
        self.max_lifetime = min(options.max_lifetime or limits.max_lifetime, limits.max_lifetime)
        self._clock = door.clock
        self.created_at = self.active_at = (
            time.time()
        )  # to be shown; the clock may be set meanwhile
        self._opened = self._active = self._clock()
        self.closed_reason: str | None = None
        self.executions: OrderedDict[str, Execution] = OrderedDict()
        self._door = door
        self._on_closed = on_closed
        self._on_executed = on_executed
        self._policies = policies
        self._queue: deque[Execution] = deque()
        self._running: Execution | None = None
        self._wake = asyncio.Event()
        self._restarting: asyncio.Future[None] | None = None
        self.workspace = workspace.name
        self._lease = Lease(
            pool,
            options,
            workspace,
            door.tenant,
            lambda *facts: on_lease(self, *facts),
            lambda cause: on_replace(self, cause),
        )
        self._visits = Visits(self._lease, self._wake)
        self._watch = Watch(
            Quota.of(pool.spec.limits),
            workspace.before,
            measure=measure,
            workspace=lambda: self._lease.workspace,
            running=lambda: self._running,
            replace=self._displace,
            grace=limits.interrupt_grace,
        )
        self._watching: asyncio.Task[None] | None = None
        self._displaced = False
        self._worker: asyncio.Task[None] | None = None
        self._watchers: set[asyncio.Queue[Execution | None]] = set()

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
        self._worker = asyncio.create_task(
            self._work(), name=f"session {self.id}", context=for_all.copy()
        )
        self._watching = asyncio.create_task(
            self._watch.run(), name=f"session {self.id} watch", context=for_all
        )

    async def close(self, reason: str) -> None:
        """End the session: running and waiting executions get their results, the sandbox goes."""
        worker = self._worker
        if self.closed_reason is None:
            self.closed_reason = reason
            self._on_closed(self, reason)
            if self._running is not None:
                self._running.abort(Abort("interrupted", "SessionClosed", reason))
            if worker and (self._running is None or self._running.state is ExecutionState.QUEUED):
                # It may wait for a sandbox or a turn; nothing runs that could be lost. Not at once: a
                # task that is cancelled before its first step would give nothing back.
                asyncio.get_running_loop().call_soon(worker.cancel)
        if worker is not None:
            await asyncio.wait([worker])

    @property
    def state(self) -> SessionState:
        if self.closed_reason is not None:
            return SessionState.CLOSED
        busy = self._running is not None or self._queue
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
        return len(self._queue)

    @property
    def expires_at(self) -> tuple[float, str]:
        """The time, by the door's clock, at which it is to be closed as things stand; and why."""
        end = self._opened + self.max_lifetime
        idle_end = self._active + self.idle_timeout
        if self.state is SessionState.IDLE and not self._visits.count and idle_end < end:
            return idle_end, f"it was idle for {self.idle_timeout:g} s"
        return end, f"it reached its lifetime of {self.max_lifetime:g} s"

    # Executions.

    async def judge(self, request: ExecutionRequest) -> Assessment | None:
        """What `submit` wants to know of the code, found in a thread; None where it does not matter.

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
            on_done=lambda execution: self._on_executed(self, execution),
            errand=errand,
        )
        execution.ids = {**execution.ids, "session_id": self.id, "execution_id": execution.id}
        self._enqueue(execution)
        self.executions[execution.id] = execution
        self._forget_old()
        for watcher in self._watchers:
            if watcher.qsize() < _WATCHER_LAG:
                watcher.put_nowait(execution)
            elif watcher.qsize() == _WATCHER_LAG:
                watcher.put_nowait(None)
        return execution

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
            errand=errand,
        )
        self._door.enter()
        self._enqueue(execution)
        return execution

    def withdraw(self, errand: Execution) -> None:
        """Take an errand out of the line, or interrupt it; does nothing to one that has ended."""
        if errand in self._queue:
            self._queue.remove(errand)
            self._door.leave()
        errand.reject("Interrupted", "nobody waits for it any more", cause="interrupted")
        errand.interrupt()

    def _enqueue(self, execution: Execution) -> None:
        self._queue.append(execution)
        self._touch()
        self._wake.set()

    def _touch(self) -> None:
        """It is not idle at this moment."""
        self.active_at, self._active = time.time(), self._clock()

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
        running = self._running
        if running is not None and execution_id in (None, running.id):
            running.interrupt()
            if execution_id is not None:  # it may wait for its turn among all sessions
                running.reject("Interrupted", "interrupted before it ran", cause="interrupted")
        for execution in [e for e in self._queue if e.id == execution_id]:
            self._queue.remove(execution)
            self._door.leave()
            execution.reject("Interrupted", "interrupted before it ran", cause="interrupted")

    async def restart(self) -> None:
        """Replace the kernel: state lost, files kept. A running cell ends; waiting ones stay in line.

        Raises:
            SessionGone, Unavailable.
        """
        self._expect_open()
        if self._restarting is None:
            self._restarting = asyncio.get_running_loop().create_future()
            if self._running is not None and self._running.state is ExecutionState.RUNNING:
                self._running.abort(Abort("interrupted", "Restarted", "the kernel was restarted"))
            self._wake.set()
        await asyncio.shield(self._restarting)

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
            self._touch()
            if changes:
                self._watch.visited()

    @contextlib.contextmanager
    def watch(self) -> Iterator[asyncio.Queue[Execution | None]]:
        """A queue of the executions submitted from now on; None says that the watcher fell behind."""
        queue: asyncio.Queue[Execution | None] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            yield queue
        finally:
            self._watchers.discard(queue)

    def _expect_open(self) -> None:
        if self.closed_reason is not None:
            raise SessionGone(f"session {self.id} is closed: {self.closed_reason}")

    def _forget_old(self) -> None:
        """Keep the history within its bounds, oldest first; never one that has not ended."""
        held = sum(execution.journal.size for execution in self.executions.values())
        for execution in list(self.executions.values())[:-1]:
            if len(self.executions) <= _HISTORY and held <= _HISTORY_BYTES:
                break
            if execution.state is ExecutionState.DONE:
                held -= execution.journal.size
                del self.executions[execution.id]

    # The worker: the only one that uses the lease.

    async def _work(self) -> None:
        try:
            while self.closed_reason is None:
                if self._restarting is not None:
                    await self._restart(self._restarting)
                elif self._displaced:
                    self._displaced = False
                    with contextlib.suppress(RequestError):  # the next execution tries again
                        await self._lease.replace("quota_exceeded")
                elif self._visits.waiting is not None:
                    await self._visits.renew()
                elif self._queue:
                    await self._run_next()
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except Exception:
            logger.exception("session %s failed", self.id)
            self.closed_reason = self.closed_reason or "a fault of the broker's own"
            self._on_closed(self, self.closed_reason)
        finally:
            if self._watching is not None:
                self._watching.cancel()
            self._end()
            await self._lease.release()

    async def _run_next(self) -> None:
        lease = self._lease
        execution = self._running = self._queue.popleft()
        try:
            async with self._door.turn():
                warm = await lease.living()
                if self._restarting is not None:
                    await self._restart(self._restarting)
                    warm = await lease.living()
                self._visits.end(None)  # not only when the cell has ended
                if execution.state is ExecutionState.DONE:  # interrupted while it waited
                    return
                state_lost = lease.state_lost
                lease.state_lost = state_lost and execution.is_silent  # the next one tells
                self._watch.begin()
                with bound(**execution.ids):
                    usable = await execution.run(
                        warm,
                        grace=self.limits.interrupt_grace,
                        state_lost=state_lost,
                        remark=self._watch.before_result,
                    )
        except RequestError as exc:  # no sandbox to be had; the next execution tries again
            execution.reject(type(exc).__name__, exc.message)
            return
        except asyncio.CancelledError:
            execution.reject("SessionClosed", self.closed_reason or "the session was closed")
            raise
        except BaseException as exc:
            execution.reject("SandboxLost", str(exc) or type(exc).__name__)
            raise
        finally:
            self._running = None
            self._touch()
            self._watch.end()
        if not usable and self.closed_reason is None:
            with contextlib.suppress(RequestError):
                await lease.replace(execution.outcome)
            lease.state_lost = execution.is_silent  # else that execution's own result said so

    async def _restart(self, restarting: asyncio.Future[None]) -> None:
        try:
            await self._lease.replace("restart")
        except RequestError as exc:
            self._restarting = None
            restarting.set_exception(exc)
        else:
            self._restarting = None
            restarting.set_result(None)
        finally:  # otherwise `_end` answers, for the session ends
            self._lease.state_lost = False  # it was asked for
            self._touch()

    def _displace(self) -> None:
        """End whatever runs in the background; the next result says that the state is lost."""
        self._displaced = True
        self._wake.set()

    def _end(self) -> None:
        reason = self.closed_reason or "the broker is shutting down"
        for execution in self._queue:
            execution.reject("SessionClosed", reason)
            self._door.leave()
        self._queue.clear()
        if self._restarting is not None and not self._restarting.done():
            self._restarting.set_exception(SessionGone(f"session {self.id} is closed: {reason}"))
        self._visits.end(SessionGone(f"session {self.id} is closed: {reason}"))
        # An execution may be remembered for longer than its session, whose others are in nobody's way.
        self.executions.clear()
        for watcher in self._watchers:
            watcher.put_nowait(None)
