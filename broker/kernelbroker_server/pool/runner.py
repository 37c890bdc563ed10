"""Carries out what the pool's rules decide: launches, checks, hands over, removes sandboxes.

How one is launched, and found to be well, stands in `warm.py`. A lease is a change of owner in memory. All
I/O is done in tasks of the pool's own, so that whoever acquires or releases waits for nothing but its turn,
and may be cancelled at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ..backends.base import Backend, LaunchError, SandboxSpec
from ..kernels.client import ChannelClosed
from ..telemetry.facts import LaunchEnded, Observer, nobody
from ..telemetry.logs import apart
from .sandboxes import SandboxState
from .state import (
    Action,
    Assign,
    Check,
    Launch,
    PoolFull,
    PoolLimits,
    PoolState,
    Refuse,
    Remove,
)
from .warm import WarmSandbox, complaint_of, discard, first_of, launch

logger = logging.getLogger(__name__)

_TICK_S = 0.25
"""How late the pool may notice that it is time for something."""


class AcquireTimeout(Exception):
    """No sandbox became free in time."""


class PoolClosed(Exception):
    """The pool is shutting down."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How many sandboxes there are, and who waits; one that is being checked counts as idle."""

    total_containers: int
    idle_containers: int
    busy_containers: int
    starting_containers: int
    pending_requests: int


@dataclass(frozen=True, slots=True)
class PoolDetails:
    """What else an operator may want to know.

    Attributes:
        spare_containers: how many are kept free at present, as far as there is room.
        utilization: what is leased or waited for, divided by what is leased, free or starting; None
            where somebody waits and there is nothing.
        last_launch_failure: why the latest launch failed; None if it did not.
        back_off_s: seconds until launches are tried again after that.
    """

    removing_containers: int
    spare_containers: int
    utilization: float | None
    last_launch_failure: str | None
    failed_launches: int
    back_off_s: float


class Pool:
    """Warm sandboxes of one template.

    `start` and `stop` frame its life; `acquire` and `release` a lease. Who acquired must release,
    whatever happened to the sandbox meanwhile.

    Args:
        acquire_timeout: seconds that sessions wait for a sandbox at most.
        launch_timeout: seconds that a sandbox may take to become warm.
        clock: seconds, of any monotonic clock.
    """

    def __init__(
        self,
        backend: Backend,
        spec: SandboxSpec,
        limits: PoolLimits,
        *,
        acquire_timeout: float = 30.0,
        launch_timeout: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        observer: Observer = nobody,
    ) -> None:
        self._observer = observer
        self.acquire_timeout = acquire_timeout
        self._backend = backend
        self.spec = spec
        self._launch_timeout = launch_timeout
        self._clock = clock
        self._state = PoolState(limits, lambda: secrets.token_hex(6), clock())
        self._sandboxes: dict[str, WarmSandbox] = {}
        self._waiters: dict[int, asyncio.Future[WarmSandbox]] = {}
        self._waiter_ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._until_stop: set[asyncio.Task[None]] = set()
        self._last_failure = ""
        self._closed = False
        self._empty = asyncio.Event()

    def start(self) -> None:
        """Begin to fill the pool, in the background."""
        self._carry_out(self._state.tick(self._clock()))
        self._spawn("pool clock", self._keep_time(), until_stop=True)

    async def acquire(
        self, *, timeout: float, tenant: str = "", urgent: bool = False
    ) -> WarmSandbox:
        """Lease a sandbox: at once if one is idle, else when it is this caller's turn.

        Args:
            tenant: for whom: those that wait take turns.
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
            self._carry_out(self._state.acquire(waiter, tenant=tenant, urgent=urgent))
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
            idle_containers=count(SandboxState.IDLE, SandboxState.CHECKING),
            busy_containers=count(SandboxState.LEASED),
            starting_containers=count(SandboxState.STARTING),
            pending_requests=self._state.waiters,
        )

    def details(self) -> PoolDetails:
        state = self._state
        return PoolDetails(
            removing_containers=state.count(SandboxState.REMOVING),
            spare_containers=state.spare,
            utilization=round(state.load, 3) if math.isfinite(state.load) else None,
            last_launch_failure=self._last_failure or None,
            failed_launches=state.failures,
            back_off_s=round(state.back_off, 3),
        )

    @property
    def ready(self) -> bool:
        """Whether a session would get a sandbox now, or could wait for one that is used.

        Or, where none is kept free, for one that is launched for it, unless launches fail just now.
        """
        state = self._state
        there = state.count(SandboxState.IDLE, SandboxState.CHECKING, SandboxState.LEASED)
        return bool(there) or not (state.spare or state.back_off)

    @property
    def last_failure(self) -> str:
        """Why the latest launch failed; empty if it did not."""
        return self._last_failure

    def drain(self) -> None:
        """Launch no more than is waited for: what is released now is not to be used again."""
        self._state.drain()

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
        for task in self._until_stop:
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
                    self._spawn(f"launch {name}", self._launch(name), until_stop=True)
                case Check(sandbox_id=name):
                    self._spawn(f"check {name}", self._check(name))
                case Remove(sandbox_id=name):
                    self._spawn(f"remove {name}", self._remove(name))
                case Assign(waiter=waiter, sandbox_id=name):
                    future = self._waiters[waiter]
                    if future.done():  # it gave up in this very turn of the loop
                        self._carry_out(self._state.release(name))
                    else:
                        future.set_result(self._sandboxes[name])
                case Refuse(waiter=waiter):
                    if not (future := self._waiters[waiter]).done():
                        future.set_exception(PoolFull())
        if self._state.empty:
            self._empty.set()

    def _spawn(
        self, name: str, work: Coroutine[Any, Any, None], *, until_stop: bool = False
    ) -> None:
        """Have a task of the pool's own; with `until_stop` one that is of no use to a pool that stops."""
        # In a context of its own: it is often made in a request that it has nothing to do with.
        task = asyncio.create_task(work, name=name, context=apart())
        self._tasks.add(task)
        if until_stop:
            self._until_stop.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._until_stop.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the pool's task %r failed", task.get_name(), exc_info=error)

    async def _launch(self, name: str) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._launch_timeout):
                warm = await launch(self._backend, name, self.spec, self._launch_timeout)
        except (LaunchError, ChannelClosed, TimeoutError) as exc:
            reason = str(exc) or f"it took over {self._launch_timeout:g} s"
            self._launch_failed(name, reason, time.monotonic() - began)
        except asyncio.CancelledError:
            self._state.launch_failed(name)
            self._carry_out([])
            raise
        except Exception as exc:
            logger.exception("launching a sandbox failed in an unforeseen way")
            self._launch_failed(name, f"{type(exc).__name__}: {exc}", time.monotonic() - began)
        else:
            self._observer(LaunchEnded(self.spec.template, time.monotonic() - began, None))
            self._last_failure = ""
            self._sandboxes[name] = warm
            self._spawn(f"watch {name}", self._watch(name, warm))
            self._carry_out(self._state.launched(name))

    def _launch_failed(self, name: str, reason: str, seconds: float) -> None:
        self._observer(LaunchEnded(self.spec.template, seconds, reason))
        self._last_failure = reason
        pause = self._state.launch_failed(name)
        logger.warning("a sandbox could not be launched (next try in %g s): %s", pause, reason)
        self._carry_out([])

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._carry_out(self._state.tick(self._clock()))

    async def _check(self, name: str) -> None:
        """Ask an idle sandbox something trivial; one that is not well is replaced."""
        try:
            complaint = await complaint_of(self._sandboxes[name], self.spec.limits.memory)
        except Exception as exc:
            logger.exception("checking a sandbox failed in an unforeseen way")
            complaint = f"its check failed: {type(exc).__name__}"
        if complaint and self._state.is_checking(name):
            logger.warning("sandbox %s is replaced: %s", name, complaint)
        self._carry_out(self._state.checked(name, healthy=not complaint))

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
        await discard(self._backend, warm.sandbox, warm.client)
        del self._sandboxes[name]
        self._carry_out(self._state.removed(name))
