"""Sandboxes that are launched for one session, which needs a spec of its own, such as a mounted project.

Each takes a place in the pool, from before its launch until it is removed. A free one makes room for it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any

from ..backends.base import Backend, LaunchError, SandboxSpec
from ..kernels.channel import ChannelClosed
from ..telemetry.events import LaunchEnded, Observer
from .pool_view import PoolView
from .state import Action, PoolState
from .warm_sandbox import WarmSandbox, launch


class AcquireTimeout(Exception):
    """No sandbox became free within the timeout."""


class PoolClosed(Exception):
    """The pool is shutting down."""


class PoolDraining(Exception):
    """An operator drains the pool: only sessions that are open get sandboxes."""


class LaunchFailed(Exception):
    """The session's own sandbox could not be launched; the message says why."""


class OwnSandboxes(PoolView):
    """The part of `Pool` that launches sandboxes for one session each."""

    backend: Backend
    draining: bool
    _state: PoolState
    _observer: Observer
    _launch_timeout: float
    _closed: bool

    async def acquire_own(
        self, spec: SandboxSpec, *, timeout: float, urgent: bool = False
    ) -> WarmSandbox:
        """Launch a sandbox of this spec for the caller, who must release it like any other.

        Args:
            timeout: seconds to wait for a place at most.
            urgent: whether to get one although the pool is drained.

        Raises:
            PoolClosed, PoolDraining, AcquireTimeout, LaunchFailed
        """
        name = await self._reserve(timeout, urgent)
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._launch_timeout):
                warm = await launch(self.backend, name, spec, self._launch_timeout)
        except (LaunchError, ChannelClosed, TimeoutError) as exc:
            self._carry_out(self._state.release(name))
            reason = str(exc) or f"the launch took more than {self._launch_timeout:g} s"
            self._observer(LaunchEnded(spec.template, time.monotonic() - began, reason))
            raise LaunchFailed(reason) from exc
        except BaseException:
            self._carry_out(self._state.release(name))
            raise
        self._observer(LaunchEnded(spec.template, time.monotonic() - began, None))
        self._sandboxes[name] = warm
        self._spawn(f"watch {name}", self._watch(name, warm), until_stop=True)
        return warm

    async def _reserve(self, timeout: float, urgent: bool) -> str:
        """Take a place in the pool, and return the id of the sandbox."""
        self._state.own_waiters += 1
        try:
            return await self._place(time.monotonic() + timeout, urgent)
        finally:
            self._state.own_waiters -= 1

    async def _place(self, deadline: float, urgent: bool) -> str:
        while True:
            if self._closed:
                raise PoolClosed
            if self.draining and not urgent:
                raise PoolDraining
            name = secrets.token_hex(6)
            if self._state.adopt(name, leased=True):
                return name
            self._carry_out(self._state.make_room())
            left = deadline - time.monotonic()
            if left <= 0:
                raise AcquireTimeout("all sandboxes are busy")
            self._removed.clear()
            try:
                await asyncio.wait_for(self._removed.wait(), left)
            except TimeoutError:
                raise AcquireTimeout(self.last_failure or "all sandboxes are busy") from None

    _removed: asyncio.Event
    """Set when a sandbox has been removed."""
    _sandboxes: dict[str, WarmSandbox]

    @abstractmethod
    def _carry_out(self, actions: list[Action]) -> None: ...

    @abstractmethod
    def _spawn(
        self, name: str, work: Coroutine[Any, Any, None], *, until_stop: bool = False
    ) -> None: ...

    @abstractmethod
    async def _watch(self, name: str, warm: WarmSandbox) -> None: ...
