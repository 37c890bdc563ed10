"""What a session's only task does: run what is queued, one after the other, on the session's lease.

Nobody else uses the lease; they queue, look, and signal. A kernel that died or would not stop is
replaced by a fresh sandbox, with the files moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque

from kernelbroker.protocol.errors import RequestError, SessionGone

from ..telemetry.logs import bound
from .execution import Abort, Execution, ExecutionState
from .gate import Door
from .lease import Lease
from .quota import Watch
from .visits import Visits


class Worker:
    """`run` does the work, until `stop` or, after `finish`, its end; then `end` answers who still waits.

    Args:
        wake: set by whoever gives it something to do.
        grace: seconds that a timed-out cell has to react to its interrupt.

    Attributes:
        running: the execution that runs, or waits for a turn among all sessions' or a sandbox.
        active, active_at: when it last had something to do, by the door's clock; and, to be shown, in
            seconds since the epoch.
        stopped: why it runs nothing more; None before.
    """

    def __init__(
        self,
        lease: Lease,
        visits: Visits,
        watch: Watch,
        door: Door,
        wake: asyncio.Event,
        grace: float,
    ) -> None:
        self.running: Execution | None = None
        self.active, self.active_at = door.clock(), time.time()
        self.stopped: str | None = None
        self._lease = lease
        self._visits = visits
        self._watch = watch
        self._door = door
        self._wake = wake
        self._grace = grace
        self._queue: deque[Execution] = deque()
        self._restarting: asyncio.Future[None] | None = None
        self._displaced = False
        self._is_last = False

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def waits(self) -> bool:
        """For something to do, a turn or a sandbox: nothing runs that could be lost."""
        return self.running is None or self.running.state is ExecutionState.QUEUED

    def touch(self) -> None:
        """It counts as activity; called when it begins, or ends."""
        self.active, self.active_at = self._door.clock(), time.time()
        self._wake.set()

    # What others may do.

    def enqueue(self, execution: Execution) -> None:
        """Queue one that has entered the door; from here on the worker sees to its leaving."""
        self._queue.append(execution)
        self.touch()

    def withdraw(self, errand: Execution) -> None:
        """As `Session.withdraw`."""
        if errand in self._queue:
            self._queue.remove(errand)
            self._door.leave()
        errand.reject("Interrupted", "nobody waits for it any more", cause="interrupted")
        errand.interrupt()

    def interrupt(self, execution_id: str | None) -> None:
        """As `Session.interrupt`."""
        running = self.running
        if running is not None and execution_id in (None, running.id):
            running.interrupt()
            if execution_id is not None:  # it may wait for its turn among all sessions
                running.reject("Interrupted", "interrupted before it ran", cause="interrupted")
        for execution in [e for e in self._queue if e.id == execution_id]:
            self._queue.remove(execution)
            self._door.leave()
            execution.reject("Interrupted", "interrupted before it ran", cause="interrupted")

    async def restart(self) -> None:
        """As `Session.restart`."""
        if self._restarting is None:
            self._restarting = asyncio.get_running_loop().create_future()
            if self.running is not None and self.running.state is ExecutionState.RUNNING:
                self.running.abort(Abort("interrupted", "Restarted", "the kernel was restarted"))
            self._wake.set()
        await asyncio.shield(self._restarting)

    def displace(self) -> None:
        """End whatever runs in the background; the next result says that the state is lost."""
        self._displaced = True
        self._wake.set()

    def finish(self) -> None:
        """Do what there is to do; when there is nothing, and nobody visits, it is over."""
        self._is_last = True
        self._wake.set()

    def stop(self, reason: str) -> None:
        """Run nothing more; what runs ends."""
        self.stopped = reason
        if self.running is not None:
            self.running.abort(Abort("interrupted", "SessionClosed", reason))

    # The work.

    async def run(self) -> None:
        """Until it is stopped or finished, or cancelled; the caller's next duty is `end`."""
        while self.stopped is None:
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
            elif self._is_last and not self._visits.count:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    def end(self, session_id: str) -> None:
        """Answer all who wait: nothing of this session runs any more."""
        reason = self.stopped or "the broker is shutting down"
        gone = f"session {session_id} is closed: {reason}"
        for execution in self._queue:
            execution.reject("SessionClosed", reason)
            self._door.leave()
        self._queue.clear()
        if self._restarting is not None and not self._restarting.done():
            self._restarting.set_exception(SessionGone(gone))
        self._visits.end(SessionGone(gone))

    async def _run_next(self) -> None:
        lease = self._lease
        execution = self.running = self._queue.popleft()
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
                        grace=self._grace,
                        state_lost=state_lost,
                        remark=self._watch.before_result,
                    )
        except RequestError as exc:  # no sandbox to be had; the next execution tries again
            execution.reject(type(exc).__name__, exc.message)
            return
        except asyncio.CancelledError:
            execution.reject("SessionClosed", self.stopped or "the session was closed")
            raise
        except BaseException as exc:
            execution.reject("SandboxLost", str(exc) or type(exc).__name__)
            raise
        finally:
            self.running = None
            self.touch()
            self._watch.end()
        if not usable and self.stopped is None:
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
        finally:  # otherwise `end` answers, for the session ends
            self._lease.state_lost = False  # it was asked for
            self.touch()
