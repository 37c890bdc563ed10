"""The broker as a whole: put together from its parts, started, and stopped in order.

Stopping: no new connections, no new leases, sessions closed and told so, then pool and backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import tempfile
from importlib.metadata import version
from pathlib import Path

from kernelbroker.protocol.runtime import runtime_file
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from . import parts
from .api.base import Service
from .api.routes import make_application
from .audit import Audit
from .backends.base import Isolation, LaunchError, Network
from .config import ConfigError, Settings
from .egress.dial import Resolve
from .sessions.gate import Gate
from .sessions.policy import Policies, Policy
from .sessions.registries import Registries
from .sessions.workspace import Workspaces
from .telemetry.audited import Audited
from .telemetry.facts import all_of
from .telemetry.metrics import Metrics
from .telemetry.traces import tracing

logger = logging.getLogger(__name__)

_MAX_CHUNKED_BODY = 64 * 1024**2
"""Where Tornado itself hangs up; handlers refuse far smaller bodies with an answer."""
_READ_BYTES = 256 * 1024
"""Read from a connection at once, so that uploads are fast; Tornado's own 64 KiB are not."""
_LAST_WORDS_S = 1.0
"""How long clients may take to read why their sessions ended."""
_STOPPING = "the broker is shutting down"


class Broker:
    """A running service. `start` and `stop` frame its life.

    Args:
        resolve: how the proxy finds the addresses of names, if not as the system does.

    Attributes, after `start`:
        url: where clients reach it.
        token: what they must show; None where only tokens of the file count.
    """

    def __init__(self, settings: Settings, *, resolve: Resolve | None = None) -> None:
        self.settings = settings
        self.token = parts.token(settings)
        self.url = ""
        self._audit = Audit(settings.audit_log)
        self.backend = parts.backend(settings, parts.proxy(settings, self._audit, resolve))
        self._specs = [
            parts.spec(name, template, settings.packages)
            for name, template in settings.templates.items()
        ]
        self._metrics = Metrics(self._gauges)
        self._traces = tracing(os.environ, version("kernelbroker"))
        listening = (self._metrics, self._traces, Audited(self._audit))
        observer = all_of([each.notice for each in listening if each is not None])
        self.pools = {
            spec.template: parts.pool(
                spec, settings.templates[spec.template], self.backend, observer
            )
            for spec in self._specs
        }
        gate = Gate(settings.limits.concurrent, settings.limits.queued)
        self._workspaces = Workspaces(
            self.backend.kept,
            retention=settings.sessions.workspace_retention,
            max_size=settings.sessions.workspaces_size,
        )
        policies = Policies(
            {name: Policy(t.policy, t.policy_threshold) for name, t in settings.templates.items()}
        )
        self.registries = Registries(
            self.pools, parts.session_limits(settings), gate, self._workspaces, observer, policies
        )
        self._service = Service(
            registries=self.registries,
            pools=self.pools,
            backend=self.backend,
            keyring=parts.keyring(settings, self.token),
            version=version("kernelbroker"),
            observer=observer,
            metrics=self._metrics,
            operator_tokens=parts.operator_tokens(settings, self.token),
            allowed_origins=frozenset(settings.allowed_origins),
        )
        self._server: HTTPServer | None = None
        self._runtime_file: Path | None = None

    async def start(self) -> None:
        """Listen, and begin to fill the pool.

        Raises:
            ConfigError, BackendUnavailable: with what to change.
        """
        settings = self.settings
        tls = parts.tls(settings.tls)
        try:
            self._audit.open()
        except OSError as exc:
            raise ConfigError(f"audit_log: {settings.audit_log}: {exc.strerror}") from exc
        await self.backend.start()
        try:
            self._check_networks()
            if self.backend.isolation is Isolation.PROCESS and not (
                settings.on_loopback or settings.unsafe_expose_without_isolation
            ):
                raise ConfigError(
                    f"user code would run without isolation, so host must not be {settings.host}. "
                    "Install bubblewrap (apt-get install bubblewrap), listen on 127.0.0.1, or accept "
                    "the danger by unsafe_expose_without_isolation = true"
                )
            sockets = _listen(settings)
        except BaseException:
            await self.backend.stop()
            self._audit.close()
            raise
        port = sockets[0].getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"{'http' if tls is None else 'https'}://{host}:{port}"
        self._server = HTTPServer(
            make_application(self._service),
            max_body_size=_MAX_CHUNKED_BODY,
            chunk_size=_READ_BYTES,
            ssl_options=tls,
        )
        self._server.add_sockets(sockets)
        self._workspaces.start()
        for pool in self.pools.values():
            pool.start()
        self._runtime_file = _write_runtime_file(self.url, self.token)

    async def drain(self) -> None:
        """Refuse what is new, with 503, and close sessions, within the drain timeout.

        Idle ones are closed at once, others when what runs in them has ended.
        """
        for pool in self.pools.values():
            pool.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout):
                await self.registries.drain(_STOPPING)

    async def stop(self) -> None:
        """End everything, within the shutdown timeout; calling it twice does no harm."""
        timeout = self.settings.shutdown_timeout
        if self._runtime_file is not None:
            _remove_runtime_file(self._runtime_file)
            self._runtime_file = None
        if self._server is not None:
            self._server.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.registries.stop(_STOPPING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await asyncio.gather(*(ws.last_words() for ws in self._service.websockets))
        for websocket in list(self._service.websockets):  # HTTPServer does not close them
            websocket.close(1001, _STOPPING)
        await asyncio.gather(*(pool.stop(timeout) for pool in self.pools.values()))
        await self.backend.stop()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._server.close_all_connections()
        self._audit.close()

    def _check_networks(self) -> None:
        """Raises ConfigError where the backend cannot give a template its network."""
        for spec in self._specs:
            try:
                self.backend.require_network(spec)
            except LaunchError as exc:
                raise ConfigError(str(exc)) from exc
            if spec.network is Network.OPEN:
                logger.warning(
                    "OPEN NETWORK: sandboxes of the template %s reach whatever this host reaches",
                    spec.template,
                )

    def _gauges(self) -> dict[str, dict[tuple[str, ...], float]]:
        """What the metrics look at; see `telemetry.metrics`."""
        status = {name: pool.status() for name, pool in self.pools.items()}
        doors = [(registry.tenant.name, registry.door) for registry in self.registries]
        return {
            "sandboxes": {
                (name, state): getattr(each, f"{state}_containers")
                for name, each in status.items()
                for state in ("idle", "busy", "starting")
            },
            "pool_waiters": {(name,): each.pending_requests for name, each in status.items()},
            "sessions": {
                (registry.tenant.name,): len(registry.list()) for registry in self.registries
            },
            "executions": {
                (name, state): getattr(door, state)
                for name, door in doors
                for state in ("waiting", "running")
            },
        }


def _listen(settings: Settings) -> list[socket.socket]:
    """Raises ConfigError where the address is taken, or none of this machine's."""
    try:
        return bind_sockets(settings.port, settings.host)
    except OSError as exc:
        advice = (
            "Another broker may run there: end it, or set KERNELBROKER_PORT (0 takes a free port)"
            if exc.errno == errno.EADDRINUSE
            else "Set KERNELBROKER_HOST, or KERNELBROKER_PORT"
        )
        raise ConfigError(
            f"cannot listen on {settings.host}, port {settings.port}: {exc.strerror}. {advice}"
        ) from exc


def _write_runtime_file(url: str, token: str | None) -> Path | None:
    """Let this user's clients, and the health check, find the broker; the newest one wins."""
    path = runtime_file(os.environ, os.getuid())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)  # mode 0600
        with os.fdopen(handle, "w") as file:
            json.dump({"url": url, "token": token, "pid": os.getpid()}, file)
        Path(name).replace(path)
    except OSError as exc:
        logger.warning("clients must be told the URL and the token: %s: %s", path, exc.strerror)
        return None
    return path


def _remove_runtime_file(path: Path) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()
