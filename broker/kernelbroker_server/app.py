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
import stat
import tempfile
from importlib.metadata import version
from pathlib import Path

from kernelbroker.protocol.runtime import runtime_file
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from .api.base import Service
from .api.routes import make_application
from .backends.base import Backend, Isolation, Limits, SandboxSpec
from .backends.local import LocalBackend
from .config import ConfigError, DockerSettings, LocalSettings, Settings, TemplateSettings
from .kernels.outputs import OutputLimits
from .pool.runner import Pool
from .pool.state import PoolLimits
from .sessions.gate import Gate
from .sessions.registry import Registry
from .sessions.session import SessionLimits

logger = logging.getLogger(__name__)

_MAX_CHUNKED_BODY = 64 * 1024**2
"""Where Tornado itself hangs up; handlers refuse far smaller bodies with an answer."""
_LAST_WORDS_S = 1.0
"""How long clients may take to read why their sessions ended."""


class Broker:
    """A running service. `start` and `stop` frame its life.

    Attributes, after `start`:
        url: where clients reach it.
        token: what they must show.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.token = (
            secrets.token_urlsafe(24)
            if settings.token is None
            else settings.token.get_secret_value()
        )
        self.url = ""
        if not self.token:
            raise ConfigError("token is empty; leave it out to have one made")
        self.backend = _backend(settings)
        self.pools = {
            name: _pool(name, template, self.backend)
            for name, template in settings.templates.items()
        }
        gate = Gate(settings.limits.concurrent, settings.limits.queued)
        self.registry = Registry(self.pools, _session_limits(settings), gate)
        self._service = Service(
            registry=self.registry,
            pools=self.pools,
            backend=self.backend,
            token=self.token,
            version=version("kernelbroker"),
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
        await self.backend.start()
        try:
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
            raise
        port = sockets[0].getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http://{host}:{port}"
        self._server = HTTPServer(make_application(self._service), max_body_size=_MAX_CHUNKED_BODY)
        self._server.add_sockets(sockets)
        self.registry.start()
        for pool in self.pools.values():
            pool.start()
        self._runtime_file = _write_runtime_file(self.url, self.token)

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
                await self.registry.stop("the broker is shutting down")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await asyncio.gather(*(ws.last_words() for ws in self._service.websockets))
        for websocket in list(self._service.websockets):  # HTTPServer does not close them
            websocket.close(1001, "the broker is shutting down")
        await asyncio.gather(*(pool.stop(timeout) for pool in self.pools.values()))
        await self.backend.stop()
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._server.close_all_connections()


def _backend(settings: Settings) -> Backend:
    return _docker(settings.docker) if settings.backend == "docker" else _local(settings.local)


def _local(local: LocalSettings) -> Backend:
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
    )


def _docker(docker: DockerSettings) -> Backend:
    try:
        from .backends.docker import DockerBackend
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"backend = \"docker\" needs {exc.name}: pip install 'kernelbroker[server,docker]'"
        ) from exc
    own_data, own_run = Path("/var/tmp"), Path(tempfile.gettempdir())
    return DockerBackend(
        image=docker.image,
        host=docker.host,
        runtime=docker.runtime,
        # Apart from the local backend's: each reaps what dead brokers of its own kind left.
        data_dir=docker.data_dir or _own_directory(own_data, "docker.data_dir") / "docker",
        run_dir=docker.run_dir or _own_directory(own_run, "docker.run_dir") / "docker",
    )


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


def _pool(name: str, template: TemplateSettings, backend: Backend) -> Pool:
    spec = SandboxSpec(
        template=name,
        image=template.image,
        limits=Limits(
            cpus=template.cpus,
            memory=template.memory,
            processes=template.processes,
            tmp_size=template.tmp_size,
            open_files=template.open_files,
        ),
        imports=template.imports,
        env=template.env,
        shared_data=template.shared_data,
        network=template.network,
        allow=template.allow,
    )
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
