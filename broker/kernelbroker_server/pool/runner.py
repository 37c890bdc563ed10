"""Carries out what the pool's rules decide: launches, warms, hands over and removes sandboxes.

A lease is a change of owner in memory. All I/O is done in tasks of the pool's own, so that whoever
acquires or releases waits for nothing but its turn, and may be cancelled at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ..backends.base import Backend, EndCause, LaunchError, Sandbox, SandboxEnd, SandboxSpec
from ..kernels.client import ChannelClosed, KernelClient
from ..kernels.execution import execute_request
from ..kernels.framing import Incoming
from .state import Action, Assign, Launch, PoolLimits, PoolState, Remove, SandboxState

logger = logging.getLogger(__name__)

_BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses after launches that failed one after another."""
_END_GRACE_S = 3.0
"""How long a sandbox whose channel closed may take to be seen as ended, with the cause: a container full
of files takes a moment to go, and its engine another one to tell."""


class AcquireTimeout(Exception):
    """No sandbox became free in time."""


class PoolClosed(Exception):
    """The pool is shutting down."""


@dataclass(frozen=True, slots=True)
class WarmSandbox:
    """A sandbox and the channel to its kernel, which has run a cell."""

    sandbox: Sandbox
    client: KernelClient

    async def end(self) -> SandboxEnd:
        """Wait until nothing more can come from it, and tell why."""
        await first_of(self.sandbox.ended, self.client.closed)
        # The channel closes with the kernel; the sandbox's own end follows, and knows the cause.
        await asyncio.wait([self.sandbox.ended], timeout=_END_GRACE_S)
        if self.sandbox.ended.done():
            return self.sandbox.ended.result()
        return SandboxEnd(EndCause.SANDBOX_LOST, self.client.closed.result())

    @property
    def alive(self) -> bool:
        return not self.sandbox.ended.done() and not self.client.closed.done()


@dataclass(frozen=True, slots=True)
class PoolStatus:
    total_containers: int
    idle_containers: int
    busy_containers: int
    starting_containers: int
    pending_requests: int


class Pool:
    """Warm sandboxes of one template.

    `start` and `stop` frame its life; `acquire` and `release` a lease. Who acquired must release,
    whatever happened to the sandbox meanwhile.

    Args:
        acquire_timeout: seconds that sessions wait for a sandbox at most.
        launch_timeout: seconds that a sandbox may take to become warm.
    """

    def __init__(
        self,
        backend: Backend,
        spec: SandboxSpec,
        limits: PoolLimits,
        *,
        acquire_timeout: float = 30.0,
        launch_timeout: float = 60.0,
    ) -> None:
        self.acquire_timeout = acquire_timeout
        self._backend = backend
        self.spec = spec
        self._launch_timeout = launch_timeout
        self._state = PoolState(limits, lambda: secrets.token_hex(6))
        self._sandboxes: dict[str, WarmSandbox] = {}
        self._waiters: dict[int, asyncio.Future[WarmSandbox]] = {}
        self._waiter_ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._last_failure = ""
        self._closed = False
        self._empty = asyncio.Event()

    def start(self) -> None:
        """Begin to fill the pool, in the background."""
        self._carry_out(self._state.resume_launches())

    async def acquire(self, *, timeout: float, urgent: bool = False) -> WarmSandbox:
        """Lease a sandbox: at once if one is idle, else when it is this caller's turn.

        Args:
            timeout: seconds to wait at most.
            urgent: go before those who have had no sandbox yet.

        Raises:
            PoolClosed, PoolFull, AcquireTimeout.
        """
        if self._closed:
            raise PoolClosed
        waiter = next(self._waiter_ids)
        future: asyncio.Future[WarmSandbox] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = future
        try:
            self._bury_dead()
            self._carry_out(self._state.acquire(waiter, urgent=urgent))
            if not future.done():
                await asyncio.wait([future], timeout=timeout)
            if not future.done():
                raise AcquireTimeout(self._last_failure or "all sandboxes are busy")
            return future.result()
        except BaseException:
            # A hand-over must be accepted: what was assigned to a caller that has gone is given back.
            self._state.cancel(waiter)
            if future.done() and future.exception() is None:
                self.release(future.result())
            raise
        finally:
            del self._waiters[waiter]

    def release(self, warm: WarmSandbox) -> None:
        """End the lease. The sandbox is removed in the background and never leased again."""
        self._carry_out(self._state.release(warm.sandbox.id))

    def status(self) -> PoolStatus:
        count = self._state.count
        return PoolStatus(
            total_containers=count(),
            idle_containers=count(SandboxState.IDLE),
            busy_containers=count(SandboxState.LEASED),
            starting_containers=count(SandboxState.STARTING),
            pending_requests=self._state.waiters,
        )

    @property
    def ready(self) -> bool:
        """Whether a session would get a sandbox now, or could wait for one that is used."""
        count = self._state.count
        return bool(count(SandboxState.IDLE, SandboxState.LEASED))

    @property
    def last_failure(self) -> str:
        """Why the latest launch failed; empty if it did not."""
        return self._last_failure

    async def stop(self, timeout: float) -> None:
        """Refuse new leases, and wait until every sandbox is removed, or until `timeout` seconds on.

        Sandboxes that are still leased go when they are released.
        """
        self._closed = True
        for future in self._waiters.values():
            if not future.done():
                future.set_exception(PoolClosed())
        self._carry_out(self._state.close())
        await asyncio.sleep(0)  # a launch that is cancelled before its first step tells nobody
        for task in self._tasks:
            if task.get_name().startswith("launch"):
                task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._state.empty:
                    self._empty.clear()
                    await self._empty.wait()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    # Carrying out.

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Launch(sandbox_id=name):
                    self._spawn(f"launch {name}", self._launch(name))
                case Remove(sandbox_id=name):
                    self._spawn(f"remove {name}", self._remove(name))
                case Assign(waiter=waiter, sandbox_id=name):
                    future = self._waiters[waiter]
                    if future.done():  # it gave up in this very turn of the loop
                        self._carry_out(self._state.release(name))
                    else:
                        future.set_result(self._sandboxes[name])
        if self._state.empty:
            self._empty.set()

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _launch(self, name: str) -> None:
        try:
            async with asyncio.timeout(self._launch_timeout):
                warm = await self._launch_and_warm(name)
        except (LaunchError, ChannelClosed, TimeoutError) as exc:
            self._launch_failed(name, str(exc) or f"it took over {self._launch_timeout:g} s")
        except asyncio.CancelledError:
            self._state.launch_failed(name)
            self._carry_out([])
            raise
        except Exception as exc:
            logger.exception("launching a sandbox failed in an unforeseen way")
            self._launch_failed(name, f"{type(exc).__name__}: {exc}")
        else:
            self._failures, self._last_failure = 0, ""
            self._sandboxes[name] = warm
            self._spawn(f"watch {name}", self._watch(name, warm))
            self._carry_out(self._state.launched(name))

    async def _launch_and_warm(self, name: str) -> WarmSandbox:
        sandbox = await self._backend.launch(name, self.spec)
        client: KernelClient | None = None
        try:
            opening = asyncio.ensure_future(
                KernelClient.open(sandbox.endpoint, self._launch_timeout)
            )
            try:
                await first_of(opening, sandbox.ended)
            finally:
                if not opening.done():
                    opening.cancel()
                    await asyncio.wait([opening])
                if not opening.cancelled() and opening.exception() is None:
                    client = opening.result()  # to be closed, whatever comes next
            if client is None:
                await asyncio.wait([sandbox.ended], timeout=_END_GRACE_S)
                if sandbox.ended.done():
                    raise LaunchError(f"the sandbox ended at once: {sandbox.ended.result().detail}")
                opening.result()
            assert client is not None
            warm = WarmSandbox(sandbox, client)
            await run_silently(warm, "pass", {})
            return warm
        except BaseException:
            await self._discard(sandbox, client)
            raise

    def _launch_failed(self, name: str, reason: str) -> None:
        pause = _BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)]
        self._failures += 1
        self._last_failure = reason
        logger.warning("a sandbox could not be launched (next try in %g s): %s", pause, reason)
        self._state.launch_failed(name)
        self._carry_out([])
        asyncio.get_running_loop().call_later(pause, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self._carry_out(self._state.resume_launches())

    def _bury_dead(self) -> None:
        """See to those that ended in this very turn of the loop, before `_watch` has its own."""
        for name, warm in self._sandboxes.items():
            if not warm.alive:
                self._carry_out(self._state.died(name))

    async def _watch(self, name: str, warm: WarmSandbox) -> None:
        """A warm sandbox that dies, or becomes deaf, is replaced before anyone gets it."""
        await first_of(warm.sandbox.ended, warm.client.closed)
        self._carry_out(self._state.died(name))

    async def _remove(self, name: str) -> None:
        warm = self._sandboxes[name]
        await self._discard(warm.sandbox, warm.client)
        del self._sandboxes[name]
        self._carry_out(self._state.removed(name))

    async def _discard(self, sandbox: Sandbox, client: KernelClient | None) -> None:
        """Remove every trace, whatever happens to the caller."""

        async def work() -> None:
            if client is not None:
                await client.close()
            await self._backend.remove(sandbox)

        task = asyncio.ensure_future(work())
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as exc:
                cancelled = exc
        if cancelled is not None:
            raise cancelled


async def first_of(*futures: asyncio.Future[Any], timeout: float | None = None) -> bool:
    """Wait until one of them is done, or `timeout` seconds; none is cancelled, none is raised from."""
    done, _ = await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def run_silently(
    warm: WarmSandbox,
    code: str,
    asked: dict[str, Any],
    on_error: Callable[[str], Exception] = ChannelClosed,
) -> None:
    """Run a cell of our own that leaves no trace in the session's history.

    Raises:
        ChannelClosed: the kernel ended.
        what `on_error` makes of the one-line error: the cell failed.
    """
    request = execute_request(code, asked)
    replied: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def on_message(message: Incoming) -> None:
        if (
            message.parent_id == request.msg_id
            and message.channel == "shell"
            and not replied.done()
        ):
            replied.set_result(message.content_as(dict))

    warm.client.on_message = on_message
    try:
        await warm.client.send(request)
        await first_of(replied, warm.client.closed)
        if not replied.done():
            raise ChannelClosed(warm.client.closed.result())
        reply = replied.result()
        if reply.get("status") != "ok":
            raise on_error(f"{reply.get('ename')}: {reply.get('evalue')}")
    finally:
        warm.client.on_message = None
