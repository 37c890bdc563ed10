"""The proxy: a door for each sandbox, on a socket of its own, so that it is known who asks.

A sandbox is let through as fast as `Limits` says. What is too much waits in the socket's queue, and
costs the broker nothing. Every request is recorded, whatever became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence

from ..audit import Audit
from .addresses import Network
from .dial import Resolve, SystemResolver
from .names import AllowList
from .passage import Limits, Passage, Regime
from .rules import MAX_HEAD_BYTES

log = logging.getLogger(__name__)

_MAX_PASSAGES = 256
"""Requests at the same time over all sandboxes; each has two descriptors of the broker's."""
_MIN_CONNECTIONS = 8
"""Of one sandbox: pip needs a few, and keeps them open."""
_ACCEPT_PAUSE_S = 1.0
"""After a failure to accept: the broker is out of descriptors, or of memory."""


def limits_among(sandboxes: int) -> Limits:
    """What one sandbox may have where there are as many at most: none can take what is the others'.

    Beyond `_MAX_PASSAGES` / `_MIN_CONNECTIONS` of them that holds no more.
    """
    most, share = Limits().connections, _MAX_PASSAGES // max(1, sandboxes)
    return Limits(connections=max(_MIN_CONNECTIONS, min(most, share)))


class Proxy:
    """
    Args:
        audit: where requests are recorded.
        private: networks that may be connected to although they are not public.
        resolve: how names become addresses.
        limits: of one sandbox; see `limits_among`.
    """

    def __init__(
        self,
        audit: Audit | None = None,
        private: Sequence[Network] = (),
        resolve: Resolve | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        self._audit = audit or Audit(None)
        self._private = tuple(private)
        self._resolve = resolve or SystemResolver()
        self._limits = limits
        self._slots = asyncio.Semaphore(_MAX_PASSAGES)

    def open(
        self, listener: socket.socket, sandbox: str, template: str, allow: Sequence[str]
    ) -> Door:
        """Begin to serve one sandbox; takes the listening unix socket over, also if it fails.

        Raises names.BadName.
        """
        try:
            names = AllowList(allow)
        except ValueError:
            listener.close()
            raise
        regime = Regime(template, names, self._private, self._resolve, self._limits)
        return Door(listener, sandbox, regime, self._audit, self._slots)


class Door:
    """One sandbox's way out; made by `Proxy.open`."""

    def __init__(
        self,
        listener: socket.socket,
        sandbox: str,
        regime: Regime,
        audit: Audit,
        slots: asyncio.Semaphore,
    ) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._sandbox = sandbox
        self._regime = regime
        self._audit = audit
        self._slots = slots
        self._own_slots = asyncio.Semaphore(regime.limits.connections)
        self._passages: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(), name=f"egress of {sandbox}")

    async def close(self) -> None:
        """End it and all connections through it; calling it twice does no harm."""
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        for passage in self._passages:
            passage.cancel()
        if self._passages:
            await asyncio.wait(self._passages)
        self._listener.close()

    async def _accept(self) -> None:
        loop, limits = asyncio.get_running_loop(), self._regime.limits
        # As if a server took `rate` a second, and `burst` could be ahead of it.
        served_until = loop.time()
        while True:
            await self._own_slots.acquire()
            now = loop.time()
            served_until = max(served_until, now) + 1 / limits.rate
            await asyncio.sleep(served_until - now - limits.burst / limits.rate)
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                log.error("The proxy cannot serve sandbox %s for now: %s", self._sandbox, error)
                self._own_slots.release()
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            passage = asyncio.create_task(self._pass(connection), name=f"egress of {self._sandbox}")
            self._passages.add(passage)
            passage.add_done_callback(self._passed)

    def _passed(self, passage: asyncio.Task[None]) -> None:
        self._passages.discard(passage)
        self._own_slots.release()
        if not passage.cancelled() and (error := passage.exception()) is not None:
            log.error("A request of sandbox %s failed", self._sandbox, exc_info=error)

    async def _pass(self, connection: socket.socket) -> None:
        with contextlib.closing(connection):
            async with self._slots:
                reader, writer = await asyncio.open_unix_connection(
                    sock=connection, limit=MAX_HEAD_BYTES
                )
                passage = Passage(self._regime, reader, writer)
                started = asyncio.get_running_loop().time()
                try:
                    await passage.run()
                finally:
                    self._record(passage, asyncio.get_running_loop().time() - started)

    def _record(self, passage: Passage, duration: float) -> None:
        refused, asked = passage.refused, passage.asked
        if refused is None and not asked.host:
            return  # nobody asked for anything
        if refused is not None and not asked.host:
            asked = refused.asked
        outcome = "allowed"
        if refused is not None:
            outcome = "refused" if refused.status < 500 else "failed"
        self._audit.record(
            "network.request",
            template=self._regime.template,
            sandbox=self._sandbox,
            method=asked.method,
            host=asked.host,
            port=asked.port,
            address=passage.address,
            outcome=outcome,
            reason=None if refused is None else refused.reason,
            bytes_up=passage.pipe.bytes_up,
            bytes_down=passage.pipe.bytes_down,
            duration_s=round(duration, 3),
        )
