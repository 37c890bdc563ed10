"""The egress proxy: one listener for each sandbox.

Each sandbox has its own unix socket, which identifies it to the proxy. `ProxyLimits` bounds the rate and
the number of connections. Connections beyond that wait in the socket's queue, at no cost to the broker.
Every request is written to the audit log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence

from ..audit import Audit
from ..supervisor import Supervisor
from .addresses import Network
from .connection import ProxyConnection, ProxyLimits, ProxyPolicy
from .host_names import AllowList
from .reverse_proxy import Upstream, Upstreams
from .rules import MAX_HEAD_BYTES
from .upstream import Resolve, SystemResolver

log = logging.getLogger(__name__)

_MAX_CONNECTIONS = 256
"""Connections at the same time over all sandboxes; each uses two file descriptors of the broker."""
_MIN_CONNECTIONS = 8
"""The least that a sandbox may have open: pip keeps a few open."""


def limits_per_sandbox(sandboxes: int) -> ProxyLimits:
    """The limits of one sandbox if there are at most so many, so that none takes the share of another.

    With more than `_MAX_CONNECTIONS / _MIN_CONNECTIONS` sandboxes the shares add up to more than there is.
    """
    most, share = ProxyLimits().connections, _MAX_CONNECTIONS // max(1, sandboxes)
    return ProxyLimits(connections=max(_MIN_CONNECTIONS, min(most, share)))


class Proxy:
    """Opens a listener for each sandbox that has an allow list.

    Args:
        audit: where requests are recorded.
        private: private networks that sandboxes may connect to.
        resolve: resolves names; as the system does if left out.
        limits: of one sandbox; see `limits_per_sandbox`.
        supervisor: restarts a listener that fails to accept connections.
        upstreams: the servers behind addresses of ours, of which each sandbox may use some.
    """

    def __init__(
        self,
        audit: Audit | None = None,
        private: Sequence[Network] = (),
        resolve: Resolve | None = None,
        limits: ProxyLimits = ProxyLimits(),  # noqa: B008 - frozen
        supervisor: Supervisor | None = None,
        upstreams: Sequence[Upstream] = (),
    ) -> None:
        self._audit = audit or Audit(None)
        self._upstreams = tuple(upstreams)
        self._private = tuple(private)
        self._resolve = resolve or SystemResolver()
        self._limits = limits
        self._supervisor = supervisor or Supervisor()
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)

    def open(
        self,
        listener: socket.socket,
        sandbox: str,
        template: str,
        allow: Sequence[str],
        upstreams: Sequence[str] = (),
    ) -> ProxyListener:
        """Serve one sandbox on a listening unix socket, which the proxy owns from now on.

        Args:
            upstreams: the ids of those that the sandbox may use.

        Raises:
            InvalidHostName: an entry of `allow` is invalid. The socket is closed.
        """
        try:
            names = AllowList(allow)
        except ValueError:
            listener.close()
            raise
        usable = Upstreams(each for each in self._upstreams if each.id in upstreams)
        policy = ProxyPolicy(template, names, self._private, self._resolve, self._limits, usable)
        return ProxyListener(listener, sandbox, policy, self._audit, self._slots, self._supervisor)


class ProxyListener:
    """Serves the connections of one sandbox. Made by `Proxy.open`; the caller must `close` it."""

    def __init__(
        self,
        listener: socket.socket,
        sandbox: str,
        policy: ProxyPolicy,
        audit: Audit,
        slots: asyncio.Semaphore,
        supervisor: Supervisor,
    ) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._sandbox = sandbox
        self._policy = policy
        self._audit = audit
        self._slots = slots
        self._own_slots = asyncio.Semaphore(policy.limits.connections)
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting = supervisor.start("egress listener", self._accept)

    async def close(self) -> None:
        """Stop listening and end all connections. Calling it again does no harm."""
        await self._accepting.stop()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        self._listener.close()

    async def _accept(self) -> None:
        """Accept connections until cancelled.

        Raises:
            OSError: the broker is out of file descriptors or memory.
        """
        loop, limits = asyncio.get_running_loop(), self._policy.limits
        # A leaky bucket: `rate` connections leave it each second, and it holds `burst`.
        served_until = loop.time()
        while True:
            await self._own_slots.acquire()
            now = loop.time()
            served_until = max(served_until, now) + 1 / limits.rate
            await asyncio.sleep(served_until - now - limits.burst / limits.rate)
            try:
                client, _ = await loop.sock_accept(self._listener)
            except BaseException as error:
                self._own_slots.release()
                error.add_note(f"while accepting a connection of sandbox {self._sandbox}")
                raise
            task = asyncio.create_task(self._serve(client), name=f"egress of {self._sandbox}")
            self._connections.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._own_slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request of sandbox %s failed", self._sandbox, exc_info=error)

    async def _serve(self, client: socket.socket) -> None:
        with contextlib.closing(client):
            async with self._slots:
                reader, writer = await asyncio.open_unix_connection(
                    sock=client, limit=MAX_HEAD_BYTES
                )
                connection = ProxyConnection(self._policy, reader, writer)
                started = asyncio.get_running_loop().time()
                try:
                    await connection.run()
                finally:
                    self._record(connection, asyncio.get_running_loop().time() - started)

    def _record(self, connection: ProxyConnection, duration: float) -> None:
        refused, destination = connection.refused, connection.destination
        if refused is None and not destination.host:
            return  # the client sent no request
        if refused is not None and not destination.host:
            destination = refused.destination
        outcome = "allowed"
        if refused is not None:
            outcome = "refused" if refused.status < 500 else "failed"
        own = {} if connection.upstream is None else {"upstream": connection.upstream}
        self._audit.record(
            "network.request",
            **own,
            template=self._policy.template,
            sandbox=self._sandbox,
            method=destination.method,
            host=destination.host,
            port=destination.port,
            address=connection.address,
            outcome=outcome,
            reason=None if refused is None else refused.reason,
            bytes_up=connection.streams.bytes_up,
            bytes_down=connection.streams.bytes_down,
            duration_s=round(duration, 3),
        )
