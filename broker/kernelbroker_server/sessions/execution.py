"""One execution, from its acceptance to the result in its log.

The log gets exactly one result in every case: an error, a timeout, an interrupt, a dead kernel, a
closed session.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from kernelbroker.protocol.events import Cause, Event, Result, Started, Stderr
from kernelbroker.protocol.messages import ExecutionRequest

from ..kernels.cell_state import Phase
from ..kernels.channel import ChannelClosed, KernelChannel, Subscription
from ..kernels.execution import CellExecution
from ..kernels.framing import Incoming, Outgoing
from ..kernels.outputs import OutputLimits
from ..kernels.redaction import Redactor
from ..kernels.requests import InternalCell, NotebookCell
from ..pool.warm_sandbox import WarmSandbox
from ..telemetry.logs import bound_ids
from .effects import NOT_STORED, Failure
from .execution_summary import summary_of
from .progress import LeftExecution, Progress, begun
from .routes import Place
from .store import ExecutionLog
from .waking import Waking

logger = logging.getLogger(__name__)

QUOTA_EXCEEDED = "QuotaExceeded"
_AGAIN = (0.25, 0.5)
"""Pauses, of the grace, before an interrupt is sent again: pools of threads need a second one to end."""


class Execution:
    """A cell, or an internal cell or the cell of a Jupyter client in its place.

    The values of `secrets` and of the request's secrets are masked in all events. With `left`, this is the
    execution that an earlier broker has begun, and goes on.

    Attributes:
        log: where the events are stored.
        timeout: seconds from the kernel taking the cell to its interruption.
        ids: the ids for log records about this execution.
        begun: set when the execution runs, or has ended without running.
        done: resolved with the result when the result is stored.
        is_silent: a cell that the session's user does not see.
        place: where it has to run; None for anywhere.
        is_detached: nothing of it is stored from now on, and it is left to the next broker.
    """

    def __init__(
        self,
        log: ExecutionLog,
        timeout: float,
        limits: OutputLimits,
        *,
        secrets: Iterable[str] = (),
        internal_cell: InternalCell | None = None,
        notebook_cell: NotebookCell | None = None,
        left: LeftExecution | None = None,
        place: Place | None = None,
    ) -> None:
        self.log = log
        self.timeout = timeout
        self.ids = bound_ids()
        self.is_notebook_cell = notebook_cell is not None
        self.is_detached = False
        self.place = place
        self._tell: Callable[[Result, Place | None], None] | None = None
        self.begun = asyncio.Event()
        self.done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._accepted = time.monotonic() - max(0.0, time.time() - log.accepted_at)
        self._redactor = Redactor([*secrets, *log.request.secrets.values()])
        self._cell = CellExecution(
            log.request,
            limits,
            allow_stdin=log.allow_stdin,
            internal_cell=internal_cell,
            notebook_cell=notebook_cell,
            clean=self._redactor.clean,
            clean_beginning=self._redactor.clean_beginning,
            state=None if left is None else left.progress.cell,
        )
        self.is_silent = self._cell.is_silent
        self._left = left
        self._progress: Progress | None = None if left is None else left.progress
        self._repeated = 0 if left is None else len(log.read()) - left.progress.events
        """The number of events that come once more, and are in the log."""
        self._taken = asyncio.Event()
        """The kernel has the cell, or has ended it."""
        if self._cell.taken:
            self._taken.set()
        self._running_on: WarmSandbox | None = None
        self._state_lost = False
        self._pending: Result | None = None
        """The kernel's result, which is not stored yet."""
        self._abort: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self._interruption: tuple[Cause, str] | None = None
        """The next interrupt to send."""
        self._interrupting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def id(self) -> str:
        return self.log.id

    @property
    def request(self) -> ExecutionRequest:
        return self.log.request

    @property
    def was_left(self) -> bool:
        """Whether an earlier broker has begun it."""
        return self._left is not None

    @property
    def age(self) -> float:
        """Seconds since the execution was accepted."""
        return time.monotonic() - self._accepted

    def summary(self) -> dict[str, Any]:
        """The fields of its `ExecutionEnded`."""
        worker = None if self._running_on is None else self._running_on.sandbox.id
        return summary_of(self.log, self.ids, self.age, worker)

    @property
    def in_kernel(self) -> bool:
        """Whether it runs and the kernel has sent no result."""
        return self._running_on is not None and self._pending is None and self.log.result is None

    def reject(self, failure: Failure) -> None:
        """End the execution before it runs. Does nothing if it has ended."""
        if self._running_on is None and self.log.result is None:
            self._append(failure.result())

    def abort(self, failure: Failure) -> None:
        """End the execution now. Its sandbox must not be used again."""
        if not self._abort.done():
            self._abort.set_result(failure)

    def interrupt(self, cause: Cause = "interrupted", message: str = "interrupted") -> None:
        """Raise KeyboardInterrupt in the cell, if it runs.

        Several interrupts during the sending of one are sent as one.
        """
        if self.in_kernel:
            self._interruption = (cause, message)
            if self._interrupting is None or self._interrupting.done():
                assert self._running_on is not None
                self._interrupting = self._spawn(self._send_interrupts(self._running_on.channel))

    async def answer(self, value: str) -> None:
        """Answer `input()` in the cell.

        Raises:
            ChannelClosed: the execution, or its kernel, has ended.
        """
        if self._running_on is None or not self.in_kernel:
            raise ChannelClosed("the execution does not run")
        await self._running_on.channel.send(Outgoing("stdin", "input_reply", {"value": value}))

    async def run(
        self,
        warm: WarmSandbox,
        *,
        grace: float,
        state_lost: bool,
        tell: Callable[[Result, Place | None], None] | None = None,
        remark: Callable[[Result], Awaitable[str | None]],
        workspace_known: bool = False,
    ) -> str | None:
        """Run in this sandbox until the result is stored.

        Args:
            grace: seconds that a timed-out cell has to react to its interrupt.
            state_lost: the session has lost its variables since the last execution; the result says so.
            tell: told the result, and the place, before the result is stored.
            remark: returns a message about the workspace, sent on standard error before the result.
            workspace_known: nobody else has changed files since this kernel's last cell.

        Returns:
            The cause why the sandbox cannot be used again; None if it can.
        """
        channel = warm.channel
        channel.release()
        if self._left is not None and self._left.channel is not channel:
            self._end(Failure("sandbox_lost", "SandboxLost", "its sandbox ended with the broker"))
            return None
        self._running_on = warm
        can_watch = warm.sandbox.process_saver is None
        self._cell.add_option("workspace", {"known": workspace_known, "watch": can_watch})
        self._tell = None if self.is_silent else tell
        self._state_lost = state_lost
        if self._progress is None:
            self._progress = begun(self.timeout, state_lost, channel, self._cell.state)
            if not self.log.begin(self._progress) or not await self.log.stored():
                self._append(NOT_STORED.result())
                return None
        self._state_lost |= self._progress.state_lost
        self.begun.set()
        wake = Waking()

        def on_message(message: Incoming) -> None:
            if self.is_detached:
                return
            for event in self._cell.receive(message):
                if isinstance(event, Result):
                    self._pending = event
                else:
                    self._append(event)
            if not self._taken.is_set() and (self._cell.taken or self._pending is not None):
                self._taken.set()
            if self._cell.phase is Phase.ENDED:
                wake()

        messages = channel.subscribe(on_message)
        channel.on_received, channel.on_all_sent = self._proceed, self._store_all
        for end in (messages.closed, self._abort):
            end.add_done_callback(wake)
        try:
            # A gateway that does not read must not delay the timeout.
            unsent = self._cell.outgoing[channel.sent - self._progress.sent :]
            await channel.send_soon(unsent, self._spawn)
            usable = await self._wait(warm, messages, wake, grace)
            if self._pending is not None and self.log.result is None:
                await self._conclude(self._pending, remark)
            if usable and self._tasks:
                # An interrupt that is being sent must not reach the next cell.
                await asyncio.wait(self._tasks)
            return None if usable else self.log.outcome
        except BaseException:
            self.give_up()
            raise
        finally:
            if not self.is_detached:  # else the next broker needs what follows
                channel.on_received = channel.on_all_sent = None
            messages.close("the execution has ended")
            for task in self._tasks:
                task.cancel()

    def _proceed(self) -> None:
        """Record the progress. When it is stored, the gateway may forget the messages until now."""
        progress, warm = self._progress, self._running_on
        if progress is None or warm is None or self.is_detached or self._pending is not None:
            return
        progress.received = warm.channel.received
        progress.events = len(self.log.read()) - self._repeated
        self.log.proceed(progress, progress.received, warm.channel.acknowledge)

    async def _store_all(self) -> bool:
        """Store what the messages of a kernel that has ended led to. Returns whether it is stored."""
        if self._pending is not None:
            await asyncio.wait([self.done])
        else:
            self._proceed()
        return not self.is_detached and await self.log.stored()

    async def _send_interrupts(self, channel: KernelChannel) -> None:
        await self._taken.wait()  # a kernel that has no cell would ignore the interrupt
        while self._interruption is not None and self.in_kernel:
            (cause, message), self._interruption = self._interruption, None
            self._cell.interrupted(cause, message)
            self._proceed()  # another broker must know why the cell ends
            await channel.interrupt()

    def give_up(self) -> None:
        """Store a result: the kernel's result if it can be stored, else one that the broker makes.

        Does nothing if there is one, or the next broker gets the execution.
        """
        if self.is_detached or self.log.result is not None:
            return
        lost = Failure("sandbox_lost", "SandboxLost", "the broker gave up this execution")
        try:
            if self._pending is None:
                self._end(lost)
            elif self.log.result is None:
                self._append(self._pending)
        except Exception:
            logger.exception("the result of %s could not be stored", self.id)
            result = lost.result()
            result.kernel_restarted = True
            self._append(result)

    async def _conclude(
        self, result: Result, remark: Callable[[Result], Awaitable[str | None]]
    ) -> None:
        text = await remark(result)
        detail = result.error_detail
        if text is not None and (detail is None or detail.cause != "quota_exceeded"):
            self._append(Stderr(content=f"{QUOTA_EXCEEDED}: {text}\n"))
        self._append(result)

    async def _wait(
        self,
        warm: WarmSandbox,
        messages: Subscription,
        wake: Waking,
        grace: float,
    ) -> bool:
        """Wait for the end of the cell, for at most its timeout and the grace period of an interrupt."""
        too_long = f"the cell ran longer than {self.timeout:g} s"

        def is_over() -> bool:
            ended = self._cell.phase is Phase.ENDED
            return ended or messages.closed.done() or self._abort.done()

        timeout = self.timeout if self._left is None else self._left.progress.seconds_left
        if not await wake.until(is_over, timeout):
            kept = "the state is kept"
            if self.request.language not in (None, "python"):
                kept = "Python's state is kept"
            interruption = f"{too_long} and was interrupted; {kept}"
            self.interrupt("timeout", interruption)
            for part in _AGAIN:
                if not await wake.until(is_over, part * grace):
                    self.interrupt("timeout", interruption)
            await wake.until(is_over, (1 - sum(_AGAIN)) * grace)
        if self._cell.phase is Phase.ENDED:
            return True
        if warm.channel.closed.done():
            end = await warm.end()
            self._end(Failure.of(end))
        elif messages.closed.done():
            self._end(Failure("sandbox_lost", "SandboxLost", messages.closed.result()))
        elif self._abort.done():
            self._end(self._abort.result())
        else:
            message = (
                f"{too_long} and did not react to an interrupt within {grace:g} s; "
                "the kernel was replaced, its variables are lost, its files are kept"
            )
            self._end(Failure("timeout", "TimeoutError", message))
        return False

    def _end(self, failure: Failure) -> None:
        for event in self._cell.end(failure.cause, failure.name, failure.message, restarted=True):
            self._append(event)

    def _append(self, event: Event) -> None:
        if self._repeated and not isinstance(event, Result):
            self._repeated -= 1
            return
        if isinstance(event, Started):
            self.log.queued_s = event.queued_s = round(self.age, 6)
        elif isinstance(event, Result):
            event.kernel_restarted |= self._state_lost
            event.findings = self.log.findings
            if self._tell is not None:
                self._tell(event, self.place)
        for clean in self._redactor.events(event):
            self.log.append(clean)
        if self.log.result is not None and not self.done.done():
            self.begun.set()
            self.done.set_result(self.log.result)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
