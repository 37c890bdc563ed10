"""One execution of a session: its request, its journal, and its run on a leased sandbox.

Whatever happens (an error, a timeout, an interrupt, a death, the session's end), the journal gets
exactly one result, and the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import Cause, ErrorDetail, Event, Result, Started, Stderr
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest

from ..backends.base import EndCause
from ..kernels.client import ChannelClosed, KernelClient
from ..kernels.execution import CellExecution, Phase
from ..kernels.framing import Incoming, Outgoing
from ..kernels.outputs import OutputLimits
from ..kernels.redaction import Redactor
from ..kernels.requests import Errand
from ..pool.warm import WarmSandbox, first_of
from ..telemetry.logs import bound_ids
from .journal import Journal

logger = logging.getLogger(__name__)

QUOTA_EXCEEDED = "QuotaExceeded"
_END_NAMES = {
    EndCause.OUT_OF_MEMORY: "OutOfMemory",
    EndCause.KERNEL_DIED: "KernelDied",
    EndCause.SANDBOX_LOST: "SandboxLost",
}


class ExecutionState(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Abort:
    """Why an execution is ended from outside, without waiting for its kernel."""

    cause: Cause
    name: str
    message: str


class Execution:
    """A cell from accepted to its result; `on_done` is called once, when that is in the journal.

    The values of `secrets`, and of the request's own, are masked in all that it brings.

    Attributes:
        begun: set when it runs, or has ended without.
        packages: what it installs; empty for a cell.
        is_silent: an errand of the broker's, which the session's user does not see.
        queued_s: seconds from accepted to taken by the kernel, or to its end where none took it.
    """

    def __init__(
        self,
        execution_id: str,
        request: ExecutionRequest,
        timeout: float,
        limits: OutputLimits,
        *,
        allow_stdin: bool = False,
        secrets: Iterable[str] = (),
        findings: Sequence[Finding] = (),
        on_done: Callable[[Execution], None] = lambda _: None,
        errand: Errand | None = None,
    ) -> None:
        self.id = execution_id
        self._request_size = len(encode(request))
        self.findings = list(findings)
        self.request = request
        self.packages = errand.packages if errand is not None else ()
        self.timeout = timeout
        self.journal = Journal(execution_id)
        self.accepted_at = time.time()
        self.queued_s: float | None = None
        self.ids = bound_ids()
        self._accepted = time.monotonic()
        self._on_done = on_done
        self._redactor = Redactor([*secrets, *request.secrets.values()])
        self._cell = CellExecution(
            request,
            limits,
            allow_stdin=allow_stdin,
            errand=errand,
            clean=self._redactor.clean,
        )
        self._taken = asyncio.Event()
        self.begun = asyncio.Event()
        self.is_silent = errand is not None and errand.silent
        self._running_on: WarmSandbox | None = None
        self._state_lost = False
        self._pending: Result | None = None
        self._abort: asyncio.Future[Abort] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> ExecutionState:
        if self.journal.result is not None:
            return ExecutionState.DONE
        return ExecutionState.RUNNING if self._running_on is not None else ExecutionState.QUEUED

    @property
    def weight(self) -> int:
        """Bytes that it holds: what was asked for, and what came."""
        return self._request_size + self.journal.size

    @property
    def age(self) -> float:
        """Seconds since it was accepted."""
        return time.monotonic() - self._accepted

    @property
    def outcome(self) -> str:
        """`success`, or the cause of its failure; once it has ended."""
        result = self.journal.result
        assert result is not None, "it has ended"
        return "success" if result.error_detail is None else result.error_detail.cause

    def reject(self, name: str, message: str, cause: Cause = "rejected") -> None:
        """End it before it ran; does nothing to one that has ended."""
        if self.state is ExecutionState.QUEUED:
            detail = ErrorDetail(name=name, value=message, cause=cause)
            self._append(Result(success=False, error=f"{name}: {message}", error_detail=detail))

    def abort(self, abort: Abort) -> None:
        """End it now, running or not. A running one takes its sandbox with it."""
        if not self._abort.done():
            self._abort.set_result(abort)

    def interrupt(self, cause: Cause = "interrupted", message: str = "interrupted") -> None:
        """Raise KeyboardInterrupt in the cell, if it runs."""
        if self._running_on is not None and self._runs:
            self._spawn(self._interrupt(self._running_on.client, cause, message))

    async def _interrupt(self, client: KernelClient, cause: Cause, message: str) -> None:
        await self._taken.wait()  # before, the kernel would take it for nobody's
        if self._runs:
            self._cell.interrupted(cause, message)
            await client.interrupt()

    async def answer(self, value: str) -> None:
        """Answer `input()`.

        Raises:
            ChannelClosed: nobody waits for it any more: the execution, or its kernel, has ended.
        """
        if self._running_on is None or not self._runs:
            raise ChannelClosed("the execution does not run")
        await self._running_on.client.send(Outgoing("stdin", "input_reply", {"value": value}))

    @property
    def _runs(self) -> bool:
        """In its kernel, as far as is known."""
        return self.state is ExecutionState.RUNNING and self._pending is None

    async def run(
        self,
        warm: WarmSandbox,
        *,
        grace: float,
        state_lost: bool,
        remark: Callable[[Result], Awaitable[str | None]],
    ) -> bool:
        """Run on this sandbox until the result is in the journal.

        Args:
            grace: seconds that a timed-out cell has to react to its interrupt.
            state_lost: the session's kernel was replaced since its last execution; the result says so.
            remark: what else is to be said on standard error, before a result that the kernel gave.

        Returns:
            Whether the sandbox can be used on; if not, the session's state is lost.
        """
        self._running_on = warm
        self._state_lost = state_lost
        self.begun.set()
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_message(message: Incoming) -> None:
            for event in self._cell.receive(message):
                if isinstance(event, Result):
                    self._pending = event
                else:
                    self._append(event)
            if not self._taken.is_set() and (self._cell.taken or self._pending is not None):
                self._taken.set()
            if self._cell.phase is Phase.ENDED and not finished.done():
                finished.set_result(None)

        warm.client.on_message = on_message
        try:
            self._spawn(self._send(warm))  # a gateway that does not read must hold up nothing here
            usable = await self._wait(warm, finished, grace)
            if self._pending is not None and self.journal.result is None:
                await self._conclude(self._pending, remark)
            if usable and self._tasks:
                # An interrupt on its way must not hit the next cell.
                await asyncio.wait(self._tasks)
            return usable
        except BaseException:
            self._give_up()
            raise
        finally:
            warm.client.on_message = None
            for task in self._tasks:
                task.cancel()

    def _give_up(self) -> None:
        """There must be a result: the kernel's, if that came and can be kept, or one of ours."""
        lost = ErrorDetail(
            name="SandboxLost", value="the broker gave up this execution", cause="sandbox_lost"
        )
        try:
            if self._pending is None:
                self._end(lost.cause, lost.name, lost.value)
            elif self.journal.result is None:
                self._append(self._pending)
        except Exception:
            logger.exception("the result of %s could not be kept", self.id)
            error = f"{lost.name}: {lost.value}"
            self._append(
                Result(success=False, error=error, error_detail=lost, kernel_restarted=True)
            )

    async def _conclude(
        self, result: Result, remark: Callable[[Result], Awaitable[str | None]]
    ) -> None:
        said = await remark(result)
        detail = result.error_detail
        if said is not None and (detail is None or detail.cause != "quota_exceeded"):
            self._append(Stderr(content=f"{QUOTA_EXCEEDED}: {said}\n"))
        self._append(result)

    async def _send(self, warm: WarmSandbox) -> None:
        with contextlib.suppress(ChannelClosed):  # `closed` tells of it, too
            for message in self._cell.outgoing:
                await warm.client.send(message)

    async def _wait(self, warm: WarmSandbox, finished: asyncio.Future[None], grace: float) -> bool:
        """See the cell through: first its own time, then, once interrupted, the grace period."""
        too_long = f"the cell ran longer than {self.timeout:g} s"
        ends = (finished, warm.client.closed, self._abort)
        if not await first_of(*ends, timeout=self.timeout):
            kept = "the state is kept"
            if self.request.language != "python":
                kept = "Python's state is kept"
            self.interrupt("timeout", f"{too_long} and was interrupted; {kept}")
            await first_of(*ends, timeout=grace)
        if finished.done():
            return True
        if warm.client.closed.done():
            await self._died(warm)
        elif self._abort.done():
            abort = self._abort.result()
            self._end(abort.cause, abort.name, abort.message)
        else:
            self._end(
                "timeout",
                "TimeoutError",
                f"{too_long} and did not react to an interrupt within {grace:g} s; "
                "the kernel was replaced, its variables are lost, its files are kept",
            )
        return False

    async def _died(self, warm: WarmSandbox) -> None:
        end = await warm.end()
        cause: Cause = end.cause.value
        self._end(cause, _END_NAMES[end.cause], end.detail)

    def _end(self, cause: Cause, name: str, message: str) -> None:
        for event in self._cell.end(cause, name, message, restarted=True):
            self._append(event)

    def _append(self, event: Event) -> None:
        if isinstance(event, Started):
            self.queued_s = event.queued_s = round(self.age, 6)
        elif isinstance(event, Result):
            event.kernel_restarted |= self._state_lost
            event.findings = self.findings
        for clean in self._redactor.events(event):
            self.journal.append(clean)
        if self.journal.result is not None:
            self.begun.set()
            self._on_done(self)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
