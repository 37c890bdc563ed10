"""The broker: creates its parts, starts them, and stops them in order.

A stop refuses connections and leases, closes the sessions and notifies their clients, and then stops the
pools and the backends.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from kernelbroker.protocol.errors import Unavailable

from . import credentials, factories, runtime_file, state_factory, workspace_factory
from .adoption import Adoption
from .api.base import Service
from .api.routes import make_application
from .api.server import BrokerServer
from .audit import Audit
from .cluster.factory import STOP_S, make_cluster
from .config import ConfigError, Settings
from .egress.upstream import Resolve
from .listening import listen, url_of
from .paths import check_data_dirs, mark_data_dirs
from .pool.memory_sampler import MemorySampler
from .project_factory import project_roots
from .service.assessor import Assessor
from .service.external_browsers import ExternalBrowsers
from .service.gauges import gauges
from .service.operations import Operations
from .service.policy import Policies, Policy
from .service.tenant_service import TenantServices
from .sessions.admission import Admission
from .shutdown import Step, run_all
from .startup_check import StartupCheck, check_isolation, check_networks
from .supervisor import Supervisor
from .surfaces import make_surfaces
from .telemetry.audit_observer import AuditObserver
from .telemetry.events import combine_observers
from .telemetry.execution_log import log_executions
from .telemetry.history import History
from .telemetry.loop_watch import watch_loop
from .telemetry.metrics import Metrics
from .telemetry.traces import tracing
from .upstream_factory import forge_clients

logger = logging.getLogger(__name__)

_LAST_WORDS_S = 1.0
"""How long clients may take to receive the reason why their sessions ended."""
_STEP_TIMEOUT_S = 5.0
"""For each small step of the shutdown."""
_REMOVAL_S = 30.0
"""How long the backends may take to remove what it has made, on top of the shutdown timeout."""
_STOPPING = "the broker is shutting down"


class Broker:
    """A broker, from `start` to `stop`.

    Args:
        resolve: resolves host names for the egress proxy; the system's resolver if None.
        new_token: make another token than that of the earlier broker, if the settings name none.

    Attributes, after `start`:
        url: the URL for clients.
        token: the token of the tenant `default`; None if only tokens of the token file are valid.
        state_directory: where a successor finds it; None if it cannot be taken over.
    """

    def __init__(
        self, settings: Settings, *, resolve: Resolve | None = None, new_token: bool = False
    ) -> None:
        self.settings = settings
        self.url = ""
        self._audit = Audit(settings.audit_log)
        self.supervisor = Supervisor()
        proxy = factories.proxy(settings, self._audit, resolve, self.supervisor)
        check_data_dirs(settings)
        self.backends = factories.backends(settings, proxy, self.supervisor)
        data_dir = self.backends.data_dir
        self._state = state_factory.state_directory(settings, data_dir)
        self.token = credentials.token(settings, self._state, new=new_token)
        self._specs = [
            factories.spec(name, template, settings)
            for name, template in settings.templates.items()
        ]
        self._sockets: list[socket.socket] = []
        self._can_leave = settings.shutdown == "adopt" and any(s.orphan_grace for s in self._specs)
        self.state_directory = None
        if self._can_leave and settings.store is None:
            self.state_directory = self._state
        self._history = History()
        self._metrics = Metrics(lambda: gauges(self.pools, self.tenants, self._memory.used))
        self._traces = tracing(os.environ, version("kernelbroker"))
        self.startup_check = StartupCheck(
            name for name, template in settings.templates.items() if template.pool.min_size
        )
        listening = (
            self._metrics,
            self._traces,
            AuditObserver(self._audit),
            self._history,
            self.startup_check,
        )
        observers = [each.on_event for each in listening if each is not None]
        observer = combine_observers([*observers, log_executions])
        self.pools = {
            spec.template: factories.pool(
                spec,
                settings.templates[spec.template],
                self.backends.by_name[
                    factories.backend_name(settings, settings.templates[spec.template])
                ],
                observer,
                self.supervisor,
            )
            for spec in self._specs
        }
        self._memory = MemorySampler(self.pools)
        admission = Admission(settings.limits.concurrent, settings.limits.queued)
        self._workspaces = workspace_factory.workspaces(settings, data_dir)
        policies = Policies(
            {name: Policy(t.policy, t.policy_threshold) for name, t in settings.templates.items()},
            assessor=Assessor(settings.risk.rules, settings.risk.dangerous_patterns),
        )
        self._store = state_factory.store(settings, data_dir)
        self._webhooks = factories.webhooks(settings, self._store)
        self.tenants = TenantServices(
            self.pools,
            factories.session_limits(settings),
            admission,
            self._workspaces,
            self._store,
            observer,
            policies,
            self.supervisor,
            self._webhooks,
            factories.routing(settings),
            project_roots(settings, data_dir),
            forge_clients(settings),
            ExternalBrowsers(settings.browser.endpoint),
        )
        self._operations = Operations(self.tenants, self.pools, self._history, settings.audit_log)
        self._service = Service(
            tenants=self.tenants,
            store=self._store,
            pools=self.pools,
            backends=self.backends,
            keyring=credentials.keyring(settings, self.token),
            version=version("kernelbroker"),
            supervisor=self.supervisor,
            observer=observer,
            metrics=self._metrics,
            operator_tokens=credentials.operator_tokens(settings, self.token),
            allowed_origins=frozenset(settings.allowed_origins),
            operations=self._operations,
        )
        keyring = self._service.keyring
        self._adoption = Adoption(
            self.backends, self.pools, self._store, self.tenants, keyring.tenants
        )
        self._cluster = make_cluster(
            settings,
            self._store,
            self.backends,
            self._adoption,
            self.tenants,
            keyring,
            self._workspaces,
        )
        self._service = dataclasses.replace(self._service, cluster=self._cluster)
        self._server: BrokerServer | None = None
        self._runtime_file: Path | None = None

    async def start(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, and begin to fill the pool.

        Args:
            sockets: those of an earlier broker, which listen already.

        Raises:
            ConfigError, BackendUnavailable: with what to change.
        """
        settings = self.settings
        tls = credentials.tls(settings.tls)
        mark_data_dirs(settings)
        try:
            self._audit.open()
        except OSError as exc:
            raise ConfigError(f"audit_log: {settings.audit_log}: {exc.strerror}") from exc
        await self._open_store()
        try:
            await self.backends.start(self._workspaces.rescue)
        except BaseException:
            await self._store.stop()
            self._audit.close()
            raise
        try:
            await self._begin(sockets, tls)
        except BaseException:  # adopted sandboxes are left to the next broker
            await self.stop(leave=True)
            for each in self._sockets:
                each.close()
            raise

    async def _begin(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None) -> None:
        """Take over what an earlier broker has left, serve, and start what runs beside."""
        settings, keyring = self.settings, self._service.keyring
        check_isolation(settings, self.backends)
        check_networks(self.pools.values())
        surfaces = make_surfaces(
            settings,
            self._store,
            self.backends.data_dir,
            keyring,
            self.tenants,
            self._service.observer,
            takes_over=bool(sockets),
        )
        self._sockets = [each.dup() for each in sockets] or listen(settings)
        await self._adoption.run(self._workspaces.rescue)
        self.url = url_of(settings, self._sockets[0], is_tls=tls is not None)
        application = make_application(self._service, [r for each in surfaces for r in each.routes])
        self._server = BrokerServer(application, self._service.unauthenticated, tls)
        await self.tenants.resume_asleep(self._service.keyring.tenants)
        if self._cluster is not None:
            await self._cluster.start(settings.cluster.url or self.url, self.supervisor)
        self._server.add_sockets(self._sockets)
        keyring.start(self.supervisor)
        for surface in surfaces:
            surface.start(self.supervisor)
        self._workspaces.start(self.supervisor)
        self.supervisor.start("session expiry", self.tenants.close_expired)
        self.supervisor.start("metrics of the last hour", self._operations.keep_history)
        self.supervisor.start("memory sampler", self._memory.run)
        self.supervisor.start(
            "watch of the event loop", partial(watch_loop, self._service.observer)
        )
        for pool in self.pools.values():
            pool.start()
        self._webhooks.resume()
        self._runtime_file = runtime_file.write(self.url, self.token)

    async def _open_store(self) -> None:
        """Open the event store. Raises ConfigError."""
        try:
            await self._store.start()
            if (
                self.token is not None
                and self._state is not None
                and credentials.is_made(self.settings)
            ):
                credentials.keep_token(self.token, self._state)
        except (OSError, Unavailable) as exc:
            await self._store.stop()
            self._audit.close()
            raise state_factory.unusable(self.settings, exc) from exc

    async def drain(self) -> None:
        """Refuse new requests with 503, and close idle sessions, within the drain timeout.

        Others are closed when their executions have ended, or left; see the setting `shutdown`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout):
                if self._cluster is not None and self._can_leave:
                    await self._cluster.leave()
                for pool in self.pools.values():
                    pool.drain()
                if self.settings.shutdown == "sleep":
                    await self.tenants.put_to_sleep()
                await self.tenants.drain(_STOPPING, leave=self._can_leave)

    def stop_accepting(self) -> list[socket.socket]:
        """Accept no connections any more. Returns the sockets, which listen as long as they are open."""
        sockets = [each.dup() for each in self._sockets]
        if self._server is not None:
            self._server.stop()
        return sockets

    async def stop(self, *, leave: bool = False) -> None:
        """Stop everything, within the shutdown timeout. Calling it twice does no harm.

        Each step runs even if one before it fails; see `shutdown`.

        Args:
            leave: after `drain`: what that has left, and warm sandboxes, stay for the next broker.
        """
        leave = leave and self._can_leave
        timeout = self.settings.shutdown_timeout
        stop_sessions = partial(self.tenants.stop, _STOPPING, leave=leave)
        stop_backends = self.backends.leave if leave else self.backends.stop
        await run_all(
            [
                Step("the runtime file", self._forget_runtime_file, _STEP_TIMEOUT_S),
                Step("the listener", self._stop_listening, _STEP_TIMEOUT_S),
                Step("the sessions", stop_sessions, timeout),
                Step("the workspaces", self._workspaces.stop, timeout),
                Step("the WebSockets", self._close_websockets, 2 * _LAST_WORDS_S),
                Step("the pools", partial(self._stop_pools, leave), 2 * timeout + 2.0),
                Step("the backends", stop_backends, timeout + _REMOVAL_S),
                Step("the background tasks", self.supervisor.stop, _STEP_TIMEOUT_S),
                Step("the external browser", self.tenants.external_browsers.stop, _STEP_TIMEOUT_S),
                Step("the webhooks", self._webhooks.stop, _STEP_TIMEOUT_S),
                Step("the event store", self._store.stop, timeout),
                Step("the other brokers", self._stop_passing_on, 2 * STOP_S),
                Step("the traces", self._close_traces, _STEP_TIMEOUT_S),
                Step("the connections", self._close_connections, _STEP_TIMEOUT_S),
                Step("the audit log", self._close_audit, _STEP_TIMEOUT_S),
            ]
        )

    async def _stop_passing_on(self) -> None:
        if self._cluster is not None:
            await self._cluster.stop()

    async def _forget_runtime_file(self) -> None:
        if self._runtime_file is not None:
            runtime_file.remove(self._runtime_file)
            self._runtime_file = None

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.stop()

    async def _close_websockets(self) -> None:
        """Let clients read why their sessions ended, then send a close frame."""
        websockets = list(self._service.websockets)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await asyncio.gather(*(websocket.last_words() for websocket in websockets))
        finally:
            for websocket in websockets:  # Tornado's server does not close them
                websocket.close(1001, _STOPPING)

    async def _stop_pools(self, leave: bool) -> None:
        timeout = self.settings.shutdown_timeout
        steps = [
            Step(
                f"the pool {name}",
                partial(pool.leave if leave else pool.stop, timeout),
                2 * timeout + 1.0,
            )
            for name, pool in self.pools.items()
        ]
        await asyncio.gather(*(run_all([step]) for step in steps))

    async def _close_traces(self) -> None:
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    async def _close_connections(self) -> None:
        if self._server is not None:
            await self._server.close_all_connections()

    async def _close_audit(self) -> None:
        self._audit.close()
