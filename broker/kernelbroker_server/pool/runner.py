"""Carries out the decisions of `state.py`: launches, checks, hands over and removes sandboxes.

`warm_sandbox.py` launches and checks a single sandbox. A lease is only a change of owner in memory. All I/O
runs in tasks of the pool, so `acquire` and `release` wait for nothing but a free sandbox, and a caller may
be cancelled at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ..backends.base import Backend, LaunchError, SandboxSpec
from ..kernels.channel import ChannelClosed
from ..supervisor import SupervisedTask, Supervisor
from ..telemetry.events import LaunchEnded, Observer, ignore_event
from ..telemetry.logs import detached_context
from .own_sandboxes import AcquireTimeout, OwnSandboxes, PoolClosed, PoolDraining
from .state import (
    Action,
    Assign,
    Check,
    Launch,
    Place,
    PoolFull,
    PoolLimits,
    PoolState,
    Refuse,
    Remove,
)
from .status import LaunchFailure
from .warm_sandbox import WarmSandbox, discard, first_of, health_check, launch

logger = logging.getLogger(__name__)

_TICK_S = 0.25
"""Seconds between two ticks of the pool's clock."""


class Pool(OwnSandboxes):
    """The warm sandboxes of one template.

    Call `start` first and `stop` last. Each `acquire` must be followed by a `release`, also if the sandbox
    ended meanwhile.

    Attributes:
        backend: launches its sandboxes.
        spec: of its sandboxes.

    Args:
        acquire_timeout: seconds that sessions wait for a sandbox; not used by the pool itself.
        launch_timeout: seconds that a launch may take.
        clock: seconds of a monotonic clock.
        supervisor: restarts the pool's clock if that fails.
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
        observer: Observer = ignore_event,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._observer = observer
        self.acquire_timeout = acquire_timeout
        self.backend = backend
        self.spec = spec
        self._launch_timeout = launch_timeout
        self._clock = clock
        self._state = PoolState(limits, lambda: secrets.token_hex(6), clock())
        self._sandboxes: dict[str, WarmSandbox] = {}
        self._waiters: dict[int, asyncio.Future[str]] = {}
        self._waiter_ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._until_stop: set[asyncio.Task[None]] = set()
        self._supervisor = supervisor or Supervisor()
        self._ticking: SupervisedTask | None = None
        self._launch_failure: LaunchFailure | None = None
        self._closed = False
        self.draining = False
        self._empty = asyncio.Event()

    def start(self) -> None:
        """Start to fill the pool in the background."""
        self._carry_out(self._state.tick(self._clock()))
        self._ticking = self._supervisor.start(
            f"pool clock of {self.spec.template}", self._tick_forever
        )

    async def acquire(
        self, *, timeout: float, tenant: str = "", urgent: bool = False
    ) -> WarmSandbox:
        """Lease a sandbox, at once if one is idle.

        Args:
            timeout: seconds to wait at most.
            tenant: whose turn it is to use; waiting tenants take turns.
            urgent: whether to go before all callers that are not urgent.

        Raises:
            PoolClosed, PoolDraining, PoolFull, AcquireTimeout
        """
        ask = functools.partial(self._state.acquire, tenant=tenant, urgent=urgent)
        name = await self._wait(ask, timeout, urgent)
        return self._sandboxes[name]

    async def _wait(self, ask: Callable[[int], list[Action]], timeout: float, urgent: bool) -> str:
        """Wait for an `Assign` or a `Place`, and return the id of the sandbox."""
        if self._closed:
            raise PoolClosed
        if self.draining and not urgent:
            raise PoolDraining
        waiter = next(self._waiter_ids)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = future
        try:
            self._reap_dead()
            self._carry_out(ask(waiter))
            if not future.done():
                await asyncio.wait([future], timeout=timeout)
            if not future.done():
                raise AcquireTimeout(self.last_failure or "all sandboxes are busy")
            return future.result()
        except BaseException:
            # If a sandbox was assigned to a caller that fails or is cancelled here, give it back.
            self._state.cancel(waiter)
            if future.done() and future.exception() is None:
                self._carry_out(self._state.release(future.result()))
            raise
        finally:
            del self._waiters[waiter]

    def adopt(self, warm: WarmSandbox, *, leased: bool, beyond_limit: bool = False) -> bool:
        """Add a sandbox that another broker has launched.

        Args:
            leased: a session has it; it must be released later.
            beyond_limit: take it also if there are `max_size` sandboxes.

        Returns:
            whether there is room for it.
        """
        name = warm.sandbox.id
        if not self._state.adopt(name, leased=leased, beyond_limit=beyond_limit):
            return False
        self._sandboxes[name] = warm
        self._spawn(f"watch {name}", self._watch(name, warm), until_stop=True)
        return True

    def release(self, warm: WarmSandbox) -> None:
        """End a lease. The sandbox is removed in the background and never leased again."""
        self._carry_out(self._state.release(warm.sandbox.id))

    def set_draining(self, draining: bool) -> None:
        """Lease no sandboxes to new sessions and remove the free ones, or take that back.

        Callers that wait already are served.
        """
        self.draining = draining
        self._carry_out(self._state.set_draining(draining))

    def drain(self) -> None:
        """From now on launch sandboxes only for callers that wait."""
        self._state.drain()

    async def stop(self, timeout: float) -> None:
        """Refuse new leases and remove all sandboxes; waits at most `timeout` seconds for that.

        Leased sandboxes are removed when they are released.
        """
        await self._close(self._state.close())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._state.empty:
                    self._empty.clear()
                    await self._empty.wait()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    async def leave(self, timeout: float) -> None:
        """Refuse new leases, and leave warm and leased sandboxes to the next broker.

        Waits at most `timeout` seconds for what is being launched, checked or removed.
        """
        self._state.leave()
        await self._close([])
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout)
            for task in late:
                task.cancel()
        await asyncio.gather(*(warm.gateway.close() for warm in self._sandboxes.values()))

    async def _close(self, actions: list[Action]) -> None:
        """Refuse new leases, and end what need not be completed."""
        self._closed = True
        for future in self._waiters.values():
            if not future.done():
                future.set_exception(PoolClosed())
        self._carry_out(actions)
        await asyncio.sleep(0)  # a task cancelled before its first step would not report its end
        for task in self._until_stop:
            task.cancel()
        if self._ticking is not None:
            await self._ticking.stop()

    # Carrying actions out.

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Launch(sandbox_id=name):
                    self._spawn(f"launch {name}", self._launch(name), until_stop=True)
                case Check(sandbox_id=name):
                    self._spawn(f"check {name}", self._check(name))
                case Remove(sandbox_id=name):
                    self._spawn(f"remove {name}", self._remove(name))
                case Assign(waiter=waiter, sandbox_id=name) | Place(waiter=waiter, sandbox_id=name):
                    future = self._waiters[waiter]
                    if future.done():  # it gave up in this turn of the event loop
                        self._carry_out(self._state.release(name))
                    else:
                        future.set_result(name)
                case Refuse(waiter=waiter):
                    if not (future := self._waiters[waiter]).done():
                        future.set_exception(PoolFull())
        if self._state.empty:
            self._empty.set()

    def _spawn(
        self, name: str, work: Coroutine[Any, Any, None], *, until_stop: bool = False
    ) -> None:
        """Start a task that the pool owns.

        Args:
            until_stop: whether `stop` cancels the task at once.
        """
        # A new context: the current one may be that of a request to which the task does not belong.
        task = asyncio.create_task(work, name=name, context=detached_context())
        self._tasks.add(task)
        if until_stop:
            self._until_stop.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._until_stop.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task %r of the pool failed", task.get_name(), exc_info=error)

    async def _launch(self, name: str) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._launch_timeout):
                warm = await launch(self.backend, name, self.spec, self._launch_timeout)
        except (LaunchError, ChannelClosed, TimeoutError) as exc:
            reason = str(exc) or f"the launch took more than {self._launch_timeout:g} s"
            self._launch_failed(name, reason, time.monotonic() - began)
        except asyncio.CancelledError:
            self._state.launch_failed(name)
            self._carry_out([])
            raise
        except Exception as exc:
            logger.exception("launching a sandbox failed unexpectedly")
            self._launch_failed(name, f"{type(exc).__name__}: {exc}", time.monotonic() - began)
        else:
            self._observer(LaunchEnded(self.spec.template, time.monotonic() - began, None))
            self._launch_failure = None
            self._sandboxes[name] = warm
            self._spawn(f"watch {name}", self._watch(name, warm), until_stop=True)
            self._carry_out(self._state.launched(name))

    def _launch_failed(self, name: str, reason: str, seconds: float) -> None:
        self._observer(LaunchEnded(self.spec.template, seconds, reason))
        earlier = self._launch_failure
        since = time.time() if earlier is None else earlier.since
        pause = self._state.launch_failed(name)
        self._launch_failure = LaunchFailure(reason, since, self._state.failures)
        logger.warning("a sandbox could not be launched; next try in %g s: %s", pause, reason)
        self._carry_out([])

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._carry_out(self._state.tick(self._clock()))

    async def _check(self, name: str) -> None:
        """Check an idle sandbox; an unhealthy one is replaced."""
        try:
            problem = await health_check(self._sandboxes[name], self.spec.limits.memory)
        except Exception as exc:
            logger.exception("checking a sandbox failed unexpectedly")
            problem = f"its check failed: {type(exc).__name__}"
        if problem and self._state.is_checking(name):
            logger.warning("sandbox %s is replaced: %s", name, problem)
        self._carry_out(self._state.checked(name, healthy=not problem))

    def _reap_dead(self) -> None:
        """Report sandboxes that ended in this turn of the event loop, before `_watch` has run."""
        for name, warm in self._sandboxes.items():
            if not warm.alive:
                self._carry_out(self._state.died(name))

    async def _watch(self, name: str, warm: WarmSandbox) -> None:
        """Report a sandbox when it ends or its channel closes, so that it is not leased."""
        await first_of(warm.sandbox.ended, warm.channel.closed)
        self._carry_out(self._state.died(name))

    async def _remove(self, name: str) -> None:
        if (warm := self._sandboxes.get(name)) is not None:  # a failed launch has left nothing
            await discard(self.backend, warm.sandbox, warm.gateway)
            del self._sandboxes[name]
        self._carry_out(self._state.removed(name))
