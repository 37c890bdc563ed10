"""The broker as a whole: built from its settings, started, and stopped in order.

Stopping: no new connections, no new leases, sessions closed and told so, then pool and backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import ssl
import stat
import tempfile
from importlib.metadata import version
from pathlib import Path

from kernelbroker.protocol.runtime import runtime_file
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from .api.base import Service
from .api.routes import make_application
from .audit import Audit
from .backends.base import Backend, Isolation, LaunchError, Limits, Network, SandboxSpec
from .backends.local import LocalBackend
from .config import (
    ConfigError,
    DockerSettings,
    LocalSettings,
    PackageSettings,
    Settings,
    TemplateSettings,
    TlsSettings,
)
from .egress.dial import Resolve
from .egress.proxy import Proxy
from .kernels.outputs import OutputLimits
from .pool.runner import Pool
from .pool.state import PoolLimits
from .sessions.gate import Gate
from .sessions.limits import SessionLimits
from .sessions.policy import Policies, Policy
from .sessions.registries import Registries
from .sessions.workspace import Workspaces
from .telemetry.audited import Audited
from .telemetry.facts import Observer, all_of
from .telemetry.metrics import Metrics
from .telemetry.traces import tracing
from .tenants.keyring import Keyring
from .tenants.tenant import TenantLimits, Tenants
from .tenants.tokens import TokenError, TokenFile

logger = logging.getLogger(__name__)

_MAX_CHUNKED_BODY = 64 * 1024**2
"""Where Tornado itself hangs up; handlers refuse far smaller bodies with an answer."""
_READ_BYTES = 256 * 1024
"""Read from a connection at once, so that uploads are fast; Tornado's own 64 KiB are not."""
_LAST_WORDS_S = 1.0
"""How long clients may take to read why their sessions ended."""


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
        self.token = _token(settings)
        self.url = ""
        self._audit = Audit(settings.audit_log)
        proxy = Proxy(self._audit, settings.egress.private_networks, resolve)
        self.backend = _backend(settings, proxy)
        self._specs = [
            _spec(name, template, settings.packages)
            for name, template in settings.templates.items()
        ]
        self._metrics = Metrics(self._gauges)
        self._traces = tracing(os.environ, version("kernelbroker"))
        listening = (self._metrics, self._traces, Audited(self._audit))
        observer = all_of([each.notice for each in listening if each is not None])
        self.pools = {
            spec.template: _pool(spec, settings.templates[spec.template], self.backend, observer)
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
            self.pools, _session_limits(settings), gate, self._workspaces, observer, policies
        )
        self._service = Service(
            registries=self.registries,
            pools=self.pools,
            backend=self.backend,
            keyring=_keyring(settings, self.token),
            version=version("kernelbroker"),
            observer=observer,
            metrics=self._metrics,
            operator_tokens=_operator_tokens(settings, self.token),
            allowed_origins=frozenset(origin.rstrip("/") for origin in settings.allowed_origins),
        )
        self._server: HTTPServer | None = None
        self._runtime_file: Path | None = None

    async def start(self) -> None:
        """Listen, and begin to fill the pool.

        Raises:
            ConfigError, BackendUnavailable: with what to change.
            OSError: the address cannot be listened on.
        """
        settings = self.settings
        tls = _tls(settings.tls)
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
            sockets = bind_sockets(settings.port, settings.host)
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
        if self.token is not None:
            self._runtime_file = _write_runtime_file(self.url, self.token)

    async def drain(self) -> None:
        """Refuse what is new, with 503, and let what runs end, within the drain timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout):
                await self.registries.drain()

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
                await self.registries.stop("the broker is shutting down")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await asyncio.gather(*(ws.last_words() for ws in self._service.websockets))
        for websocket in list(self._service.websockets):  # HTTPServer does not close them
            websocket.close(1001, "the broker is shutting down")
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


def _operator_tokens(settings: Settings, token: str | None) -> tuple[str, ...]:
    secret = settings.metrics_token
    metrics = None if secret is None else secret.get_secret_value()
    return tuple(each for each in (token, metrics) if each)


def _token(settings: Settings) -> str | None:
    if settings.token is not None and settings.token_file is not None:
        raise ConfigError("token and token_file are both set; leave one out")
    if settings.token_file is not None:
        try:
            token = settings.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"token_file cannot be read: {exc}") from exc
    elif settings.token is not None:
        token = settings.token.get_secret_value()
    else:
        return secrets.token_urlsafe(24) if settings.tokens_file is None else None
    if not token:
        raise ConfigError("token is empty; leave it out to have one made")
    return token


def _backend(settings: Settings, proxy: Proxy) -> Backend:
    if settings.backend == "docker":
        return _docker(settings.docker, proxy)
    return _local(settings.local, proxy)


def _local(local: LocalSettings, proxy: Proxy) -> Backend:
    if local.kernel_python is None:
        raise ConfigError(
            "local.kernel_python is not set. Make the kernels' environment (python3 -m venv DIR && "
            "DIR/bin/pip install -r kernel_image/requirements.txt) and name DIR/bin/python; "
            "`make run` does both"
        )
    return LocalBackend(
        kernel_python=local.kernel_python,
        data_dir=local.data_dir or _own_directory(Path("/var/tmp"), "local.data_dir"),
        run_dir=local.run_dir or _own_directory(Path(tempfile.gettempdir()), "local.run_dir"),
        require_isolation=local.require_isolation,
        proxy=proxy,
    )


def _docker(docker: DockerSettings, proxy: Proxy) -> Backend:
    try:
        from .backends.docker import DockerBackend
        from .backends.docker_ways import Transport
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"backend = \"docker\" needs {exc.name}: pip install 'kernelbroker[server,docker]'"
        ) from exc
    own_data, own_run = Path("/var/tmp"), Path(tempfile.gettempdir())
    return DockerBackend(
        image=docker.image,
        host=docker.host,
        runtime=docker.runtime,
        transport=Transport(docker.transport),
        network=docker.network,
        proxy=proxy,
        # Apart from the local backend's: each reaps what dead brokers of its own kind left.
        data_dir=docker.data_dir or _own_directory(own_data, "docker.data_dir") / "docker",
        run_dir=docker.run_dir or _own_directory(own_run, "docker.run_dir") / "docker",
    )


def _keyring(settings: Settings, token: str | None) -> Keyring:
    limits = {
        name: TenantLimits(
            sessions=tenant.max_sessions,
            concurrent=tenant.max_concurrent,
            rate=tenant.rate,
            templates=None if tenant.templates is None else frozenset(tenant.templates),
            policy=tenant.policy,
            policy_threshold=tenant.policy_threshold,
        )
        for name, tenant in settings.tenants.items()
    }
    file = None if settings.tokens_file is None else TokenFile(settings.tokens_file)
    if file is not None:
        try:
            count = len(file.list())
        except TokenError as exc:
            raise ConfigError(f"tokens_file: {exc}") from exc
        if not count and token is None:
            logger.warning(
                "Nobody can be let in: there is no token. Make one, at any time, by "
                "`kernelbroker-server token create TENANT`"
            )
    return Keyring(Tenants(limits), token, file)


def _tls(tls: TlsSettings) -> ssl.SSLContext | None:
    if tls.certificate is None or tls.key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except OSError as exc:  # ssl.SSLError is one
        raise ConfigError(f"tls.certificate and tls.key cannot be used: {exc}") from exc
    return context


def _own_directory(parent: Path, key: str) -> Path:
    """A directory of this user's alone below one that all may write to."""
    path = parent / f"kernelbroker-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ConfigError(f"{path} is not a directory of this user's; set {key}")
    path.chmod(0o700)
    return path


def _spec(name: str, template: TemplateSettings, packages: PackageSettings) -> SandboxSpec:
    return SandboxSpec(
        template=name,
        image=template.image,
        limits=Limits(
            cpus=template.cpus,
            memory=template.memory,
            processes=template.processes,
            tmp_size=template.tmp_size,
            open_files=template.open_files,
            workspace_size=template.workspace_size,
            workspace_files=template.workspace_files,
        ),
        imports=template.imports,
        env=template.env,
        shared_data=template.shared_data,
        wheels=packages.wheels,
        index_url=packages.index_url,
        network=template.network,
        allow=template.allow,
    )


def _pool(
    spec: SandboxSpec, template: TemplateSettings, backend: Backend, observer: Observer
) -> Pool:
    pool = template.pool
    limits = PoolLimits(
        min_size=pool.min_size,
        max_size=pool.max_size,
        max_waiters=pool.max_waiters,
        max_launches=pool.max_launches,
        scale_up_threshold=pool.scale_up_threshold,
        scale_down_threshold=pool.scale_down_threshold,
        container_ttl=pool.container_ttl,
        health_check_interval=pool.health_check_interval,
    )
    return Pool(
        backend,
        spec,
        limits,
        acquire_timeout=pool.acquire_timeout,
        launch_timeout=pool.launch_timeout,
        observer=observer,
    )


def _session_limits(settings: Settings) -> SessionLimits:
    sessions, limits = settings.sessions, settings.limits
    return SessionLimits(
        idle_timeout=sessions.idle_timeout,
        max_lifetime=sessions.max_lifetime,
        default_timeout=sessions.default_timeout,
        max_timeout=sessions.max_timeout,
        interrupt_grace=sessions.interrupt_grace,
        max_code_chars=limits.code_chars,
        max_preview_rows=limits.preview_rows,
        max_file_bytes=limits.file,
        output=OutputLimits(limits.output, limits.event, limits.variables),
    )


def _write_runtime_file(url: str, token: str) -> Path | None:
    """Let this user's clients find the broker; the newest one wins."""
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
