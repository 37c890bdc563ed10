"""Creates the objects of the broker from its settings.

Nothing is started here. If settings cannot be used, ConfigError says what to change.
"""

from __future__ import annotations

import logging
from pathlib import Path

from kernelbroker.protocol.findings import SandboxKind

from .advice import command
from .audit import Audit
from .backend_factory import docker, kubernetes
from .backends.backend_set import BackendSet
from .backends.base import Backend, Limits, SandboxSpec
from .backends.directories import NO_ID_FILE
from .backends.local import LocalBackend
from .config import ConfigError, Settings
from .config_templates import TemplateSettings
from .egress.host_names import AllowList, InvalidHostName
from .egress.proxy import Proxy, limits_per_sandbox
from .egress.upstream import Resolve
from .kernels.outputs import OutputLimits
from .paths import CHECKOUT, data_dir, run_dir
from .pool.runner import Pool
from .pool.state import PoolLimits
from .service.forges import forge_id
from .service.webhook_message import secret_key
from .service.webhook_sender import WebhookPolicy, WebhookSender
from .service.webhooks import Webhooks
from .sessions.limits import SessionLimits
from .sessions.routes import Routing
from .sessions.store import EventStore
from .state_factory import state_directory
from .supervisor import Supervisor
from .telemetry.events import Observer
from .upstream_factory import forges_of, git_environment, upstreams

logger = logging.getLogger(__name__)

BROKER_ID = "broker-id"
"""In the state directory: the name of the broker's directories below data_dir and run_dir."""


KERNEL_THREADS = 12
"""Of an idle kernel. The contexts that a session may have come on top of what its code may start."""

BROWSER_THREADS = 400
"""Of Chromium with some windows, and of the program that drives it."""


def proxy(
    settings: Settings, audit: Audit, resolve: Resolve | None, supervisor: Supervisor
) -> Proxy:
    """Return the egress proxy of all sandboxes that have an allow list or upstreams."""
    sandboxes = sum(
        template.pool.max_size
        for name, template in settings.templates.items()
        if spec(name, template, settings).uses_proxy
    )
    limits, private = limits_per_sandbox(sandboxes), settings.egress.private_networks
    return Proxy(audit, private, resolve, limits, supervisor, upstreams(settings))


def backends(settings: Settings, proxy: Proxy, supervisor: Supervisor) -> BackendSet:
    """Return the backends that templates use, not started. Creates their default directories.

    The backend of the template `default` is the home of workspaces and state.
    """
    home = backend_name(settings, settings.templates["default"])
    names = {home: None}  # in this order, since the others' records are in the home's directory
    names |= {backend_name(settings, each): None for each in settings.templates.values()}
    if len({data_dir(settings, name) for name in names}) < len(names):
        raise ConfigError(
            "Two of local.data_dir, docker.data_dir and kubernetes.data_dir are the same directory. Give "
            "each backend its own, on one file system"
        )
    state = state_directory(settings, data_dir(settings, home))

    def id_file(name: str) -> Path | None:
        """The file with the id of the backend's directories; None if no sandbox outlives the broker."""
        outlives = any(
            _orphan_grace(settings, each)
            for each in settings.templates.values()
            if backend_name(settings, each) == name
        )
        if state is None or not outlives:
            return None
        if settings.store is not None:
            return NO_ID_FILE
        return state / (BROKER_ID if name == home else f"{BROKER_ID}-{name}")

    def create(name: str) -> Backend:
        directory, file = data_dir(settings, name), id_file(name)
        if name == "local":
            return _local(settings, proxy, supervisor, file)
        kind, _, runtime = name.partition("-")
        if kind == "kubernetes":
            runtime_class = runtime or settings.kubernetes.runtime_class
            return kubernetes(settings.kubernetes, runtime_class, directory, file)
        return docker(settings.docker, proxy, runtime, directory, run_dir(settings, name), file)

    return BackendSet({name: create(name) for name in names}, home)


def backend_name(settings: Settings, template: TemplateSettings) -> str:
    """Return the name of a template's backend. There is one for each runtime, or runtime class."""
    kind = settings.backend_of(template)
    own = settings.docker.runtime if kind == "docker" else settings.kubernetes.runtime_class
    if template.runtime in (None, own):
        return kind
    return f"{kind}-{template.runtime}"


def _kernels_environment() -> str:
    """How the kernels' environment is made and named, as commands if this is a checkout."""
    python = CHECKOUT / ".venv-kernel/bin/python"
    if python.exists():
        named = command("export", f"KERNELBROKER_LOCAL__KERNEL_PYTHON={python}")
        return f"Name the python of the kernels' environment: {named}"
    if (CHECKOUT / "Makefile").exists():
        return f"Make the kernels' environment: {command('make', '-C', CHECKOUT, 'setup')}"
    return (
        "Make the kernels' environment (python3 -m venv DIR && DIR/bin/pip install -r "
        "kernel_image/requirements.txt) and name DIR/bin/python"
    )


def _local(
    settings: Settings, proxy: Proxy, supervisor: Supervisor, id_file: Path | None
) -> Backend:
    local = settings.local
    if local.kernel_python is None:
        raise ConfigError(f"local.kernel_python is not set. {_kernels_environment()}")
    return LocalBackend(
        kernel_python=local.kernel_python,
        bwrap=local.bubblewrap,
        data_dir=data_dir(settings, "local"),
        run_dir=run_dir(settings, "local"),
        require_isolation=local.require_isolation,
        fork_server=local.fork_server,
        proxy=proxy,
        supervisor=supervisor,
        id_file=id_file,
        criu=local.criu
        if any(t.process_checkpoints for t in settings.templates.values())
        else None,
    )


def _orphan_grace(settings: Settings, template: TemplateSettings) -> float:
    """Return how long the template's sandboxes live without a broker."""
    return template.orphan_grace if settings.state_dir != "" else 0.0


def webhooks(settings: Settings, store: EventStore) -> Webhooks:
    """Return the webhooks. Raises ConfigError."""
    own, sessions = settings.webhooks, settings.sessions
    if not own.allowed_hosts:
        return Webhooks(store)
    if own.secret is None:
        raise ConfigError("webhooks.secret must be set, since webhooks.allowed_hosts is")
    try:
        hosts = AllowList(own.allowed_hosts)
    except InvalidHostName as exc:
        raise ConfigError(f"webhooks.allowed_hosts: {exc}") from exc
    try:
        key = secret_key(own.secret.get_secret_value())
    except ValueError as exc:
        raise ConfigError(f"webhooks.secret: {exc}") from exc
    policy = WebhookPolicy(hosts, key, own.private_networks, own.allow_http)
    return Webhooks(store, WebhookSender(policy), own.max_age, sessions.max_lifetime)


def spec(name: str, template: TemplateSettings, settings: Settings) -> SandboxSpec:
    packages, forges = settings.packages, forges_of(settings, template)
    return SandboxSpec(
        template=name,
        image=settings.image_of(template),
        limits=Limits(
            cpus=template.cpus,
            memory=template.memory,
            processes=template.processes
            + KERNEL_THREADS * settings.limits.contexts
            + BROWSER_THREADS * template.browser,
            tmp_size=template.tmp_size,
            open_files=template.open_files,
            workspace_size=template.workspace_size,
            workspace_files=template.workspace_files,
            file_size=template.file_size,
            timeout=template.timeout,
        ),
        imports=template.imports,
        env={**git_environment(forges), **template.env},
        shared_data=template.shared_data,
        wheels=packages.wheels,
        index_url=packages.index_url,
        network=template.network,
        allow=template.allow,
        upstreams=(*template.upstreams, *map(forge_id, forges)),
        orphan_grace=_orphan_grace(settings, template),
        process_checkpoints=template.process_checkpoints,
        ports=template.ports,
        browser=template.browser,
    )


def routing(settings: Settings) -> Routing:
    """Return where cells run in sessions whose template is `auto`."""
    own = settings.routing
    kinds: dict[SandboxKind, str | None] = {
        "subprocess": own.subprocess,
        "docker_simple": own.docker_simple,
        "aio_sandbox": own.aio_sandbox,
    }
    return Routing(
        {kind: name for kind, name in kinds.items() if name is not None},
        own.require,
        frozenset(n for n, each in settings.templates.items() if each.profile == "strict"),
    )


def pool(
    spec: SandboxSpec,
    template: TemplateSettings,
    backend: Backend,
    observer: Observer,
    supervisor: Supervisor,
) -> Pool:
    sizes = template.pool
    limits = PoolLimits(
        min_size=sizes.min_size,
        max_size=sizes.max_size,
        max_waiters=sizes.max_waiters,
        max_launches=sizes.max_launches,
        scale_up_threshold=sizes.scale_up_threshold,
        scale_down_threshold=sizes.scale_down_threshold,
        container_ttl=sizes.container_ttl,
        health_check_interval=sizes.health_check_interval,
    )
    return Pool(
        backend,
        spec,
        limits,
        acquire_timeout=sizes.acquire_timeout,
        launch_timeout=sizes.launch_timeout,
        observer=observer,
        supervisor=supervisor,
    )


def session_limits(settings: Settings) -> SessionLimits:
    sessions, limits = settings.sessions, settings.limits
    return SessionLimits(
        idle_timeout=sessions.idle_timeout,
        max_lifetime=sessions.max_lifetime,
        default_timeout=sessions.default_timeout,
        max_timeout=sessions.max_timeout,
        interrupt_grace=sessions.interrupt_grace,
        sleep_after=sessions.sleep_after if sessions.checkpoint == "on_idle" else None,
        asleep_retention=sessions.asleep_retention,
        contexts=limits.contexts,
        max_code_chars=limits.code_chars,
        max_preview_rows=limits.preview_rows,
        max_file_bytes=limits.file,
        output=OutputLimits(limits.output, limits.event, limits.variables),
    )
