"""Sandboxes that are launched for one session, which needs a spec of its own, such as a mounted project.

Each takes a place in the pool, from before its launch until it is removed. `state.py` says who
gets the next one.
"""

from __future__ import annotations

import asyncio
import functools
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
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
        self, spec: SandboxSpec, *, timeout: float, tenant: str = "", urgent: bool = False
    ) -> WarmSandbox:
        """Launch a sandbox of this spec for the caller, who must release it like any other.

        Args:
            timeout: seconds to wait for a place at most.
            tenant: whose turn it is to use; waiting tenants take turns.
            urgent: whether to get one although the pool is drained.

        Raises:
            PoolClosed, PoolDraining, PoolFull, AcquireTimeout, LaunchFailed
        """
        ask = functools.partial(self._state.acquire_own, tenant=tenant, urgent=urgent)
        name = await self._wait(ask, timeout, urgent)
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

    _sandboxes: dict[str, WarmSandbox]

    @abstractmethod
    async def _wait(
        self, ask: Callable[[int], list[Action]], timeout: float, urgent: bool
    ) -> str: ...

    @abstractmethod
    def _carry_out(self, actions: list[Action]) -> None: ...

    @abstractmethod
    def _spawn(
        self, name: str, work: Coroutine[Any, Any, None], *, until_stop: bool = False
    ) -> None: ...

    @abstractmethod
    async def _watch(self, name: str, warm: WarmSandbox) -> None: ...
